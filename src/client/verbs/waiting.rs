//! How a thread waits for completions.

use crate::client::breaking::ending;
use crate::verbs::Wait;
use crate::verbs::device::CompletionQueue;
use crate::verbs::error::VerbsError;
use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What a thread waits for.
pub(crate) struct WaitPlace<'a> {
    pub queue: &'a CompletionQueue,
    /// Its end shows that the server is gone.
    pub stream: &'a TcpStream,
    pub wait: Wait,
}

/// Takes completions from a queue of its own.
pub(crate) trait Completes: Sized {
    /// Takes completions without waiting. Returns whether there were any.
    fn take_completions(&mut self) -> Result<bool, VerbsError>;

    /// What its thread waits for.
    fn waiting(&self) -> WaitPlace<'_>;

    /// Takes completions until `enough`, for at most this time.
    fn wait_until(&mut self, within: Duration, enough: impl Fn(&Self) -> bool) -> Result<(), VerbsError> {
        /// Polls before the clock is read and the thread yields.
        const SPINS: u32 = 256;
        /// Time between checks that the server is still there.
        const LOOK: Duration = Duration::from_millis(1);
        self.take_completions()?;
        if enough(self) {
            return Ok(());
        }
        let begun = Instant::now();
        let (deadline, mut look) = (begun + within, begun + LOOK);
        let (mut spins, mut is_ended) = (0u32, false);
        loop {
            if self.take_completions()? && enough(self) {
                return Ok(());
            }
            let is_gone = match self.waiting().wait {
                // A poll is pause enough. Emulated processors, used to test without devices, give
                // up their time slice at a PAUSE instruction.
                Wait::Poll if spins < SPINS => {
                    spins += 1;
                    continue;
                }
                Wait::Poll => {
                    spins = SPINS / 2;
                    std::thread::yield_now();
                    // This notices a server that is gone sooner than the device does.
                    let is_due = Instant::now() >= look;
                    if is_due {
                        look += LOOK;
                    }
                    is_due && is_closed(self.waiting().stream)
                }
                Wait::Block => {
                    self.waiting().queue.arm()?;
                    if self.take_completions()? && enough(self) {
                        return Ok(());
                    }
                    let woken = self.waiting().block(deadline)?;
                    self.waiting().queue.take_events();
                    match woken {
                        Woken::Ready => false,
                        Woken::Gone => true,
                        // The rest is as at the deadline.
                        Woken::Ended => {
                            is_ended = true;
                            false
                        }
                    }
                }
            };
            if is_gone || is_ended || Instant::now() >= deadline {
                // The server may have answered before it ended.
                if self.take_completions()? && enough(self) {
                    return Ok(());
                }
                check_stream(self.waiting().stream)?;
                return Err(VerbsError::Late { within });
            }
        }
    }
}

/// What has woken a thread.
enum Woken {
    /// Perhaps a completion.
    Ready,
    /// The server is gone.
    Gone,
    /// The wait is not wanted any more.
    Ended,
}

impl WaitPlace<'_> {
    /// Sleeps until the completion queue has an event, the server is gone, the deadline has come, or nobody wants that any
    /// more.
    fn block(&self, deadline: Instant) -> Result<Woken, VerbsError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let (queue, ending) = (self.queue.fd(), ending());
        let mut watched = SmallVec::<[PollFd<'_>; 3]>::new();
        watched.push(PollFd::from_borrowed_fd(queue, PollFlags::IN));
        watched.push(PollFd::new(self.stream, PollFlags::RDHUP));
        watched.extend(ending.iter().map(|ending| PollFd::new(ending, PollFlags::IN)));
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(_) if !watched[1].revents().is_empty() => Ok(Woken::Gone),
            Ok(_) if watched.get(2).is_some_and(|ending| !ending.revents().is_empty()) => Ok(Woken::Ended),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(Woken::Ready),
            Err(e) => Err(VerbsError::Post { errno: e.raw_os_error() }),
        }
    }
}

/// Looks whether the server still holds this connection open.
///
/// # Errors
/// When the server has closed this connection.
pub(crate) fn check_stream(stream: &TcpStream) -> Result<(), VerbsError> {
    if is_closed(stream) { Err(VerbsError::Closed) } else { Ok(()) }
}

/// Whether the server has closed this connection.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(rustix::event::poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(n) if n > 0)
}
