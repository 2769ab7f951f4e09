//! How a thread waits for completions.

use crate::verbs::Wait;
use crate::verbs::device::CompletionQueue;
use crate::verbs::error::VerbsError;
use rustix::event::{PollFd, PollFlags, Timespec};
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
        let mut spins = 0u32;
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
                    let is_gone = self.waiting().block(deadline)?;
                    self.waiting().queue.take_events();
                    is_gone
                }
            };
            if is_gone || Instant::now() >= deadline {
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

impl WaitPlace<'_> {
    /// Sleeps until the completion queue has an event, the server is gone, or the deadline has
    /// come. Returns whether the server is gone.
    fn block(&self, deadline: Instant) -> Result<bool, VerbsError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let queue = self.queue.fd();
        let mut watched =
            [PollFd::from_borrowed_fd(queue, PollFlags::IN), PollFd::new(self.stream, PollFlags::RDHUP)];
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(_) => Ok(!watched[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
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
