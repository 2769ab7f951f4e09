//! The queue pairs that the handles of one client share: which handle reads over which pair, which handle reconnects a
//! failed pair, and which may request changes.
//!
//! READs go over lanes ([`crate::client::lanes`]). Changes go over one more connection, one handle
//! at a time: they are not the hot path, conversations must not mix, and the full receive queue of
//! a suspended server then delays no READ. That connection is made at the first change.

#![allow(unsafe_code)]

use super::chunk_keys::ChunkKeys;
use super::connection::Connection;
use super::landing::LaneLanding;
use super::long::LongLanding;
use super::waiting::is_closed;
use crate::base::sync::lock_std;
use crate::client::lanes::{Lane, Mux, Posting, ReadQueue, ReadWanted};
use crate::fabric::ReadId;
use crate::fabric::landed::LandedWindow;
use crate::layout::geometry::{Geometry, Window};
use crate::sink::Sink;
use crate::verbs::QueueCounts;
use crate::verbs::Wait;
use crate::verbs::device::{CompletionQueue, ProtectionDomain};
use crate::verbs::error::{SetupError, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

impl ReadQueue for Connection {
    type Landing = LaneLanding;
    type Bell = Arc<CompletionQueue>;
    type Counts = QueueCounts;
    type Error = VerbsError;

    fn room(&self) -> usize {
        self.room()
    }

    unsafe fn post<'a>(
        &mut self,
        reads: impl Iterator<Item = Posting<'a, LaneLanding>>,
    ) -> Result<(), VerbsError> {
        // SAFETY: the caller keeps `ReadQueue::post`'s contract, which is that of `post_for`.
        unsafe { self.post_for(reads) }
    }

    fn poll(&mut self, done: impl FnMut(u32)) -> Result<(), VerbsError> {
        self.take_reads(done)
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        Connection::arm(self)
    }

    fn sleep(bell: &Arc<CompletionQueue>, at_most: Duration) {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut watched = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
        // An error only shortens the sleep.
        let _ = rustix::event::poll(&mut watched, Some(&timeout));
    }

    fn check(&mut self) -> Result<(), VerbsError> {
        self.check_stream()
    }

    fn late(within: Duration) -> VerbsError {
        VerbsError::Late { within }
    }

    fn take_counts(&mut self) -> QueueCounts {
        self.take_counts()
    }
}

// ---- a handle's lane ----------------------------------------------------------------------------

/// A handle's lane, and the geometry of the table that it reads.
#[derive(Debug)]
pub(crate) struct LaneReader {
    lane: Lane<Connection>,
    geometry: Arc<Geometry>,
    keys: Arc<ChunkKeys>,
    /// The socket of the connection. Closed with the connection.
    stream: Weak<TcpStream>,
    counts: QueueCounts,
    long: LongLanding,
    domain: Arc<ProtectionDomain>,
    /// Most bytes of one READ.
    message_max: usize,
}

impl LaneReader {
    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    pub fn keys(&self) -> &Arc<ChunkKeys> {
        &self.keys
    }

    pub fn credits(&self) -> usize {
        self.lane.credits()
    }

    pub fn has_failed(&self) -> bool {
        self.lane.has_failed()
    }

    /// Looks whether the connection still stands.
    ///
    /// # Errors
    /// When the server or the connection is gone. The connection is then of no further use to any
    /// handle.
    pub fn check(&mut self) -> Result<(), VerbsError> {
        // Only the stream is at hand here: the pump owns the connection.
        if self.stream.upgrade().is_some_and(|stream| !is_closed(&stream)) {
            return Ok(());
        }
        self.lane.fail(VerbsError::Closed, &mut self.counts);
        Err(VerbsError::Closed)
    }

    pub fn post(&mut self, reads: &[(ReadId, Window)]) {
        self.lane.submit(reads.iter().map(|&(token, window)| (token, ReadWanted::Window(window))));
    }

    /// Makes room for a value of this length to land. No READ may be in flight.
    pub fn make_room(&mut self, bytes: usize) -> Result<(), SetupError> {
        assert!(!self.is_reading(), "READs may land in memory that is exchanged");
        let LaneReader { lane, long, domain, .. } = self;
        lane.landing().exchange_long(|| {
            let made = long.make_room(bytes, domain);
            (made, long.memory().cloned())
        })
    }

    /// Puts into `out` the first bytes of the memory for long values. No READ may be in flight.
    pub fn copy_long(&self, bytes: usize, out: &mut impl Sink) {
        assert!(!self.is_reading(), "READs may land in memory that is copied");
        // SAFETY: all READs into this memory have completed.
        unsafe { self.long.copy(bytes, out) };
    }

    /// Posts READs into the memory for long values. There must be [room](Self::make_room) for the bytes.
    pub fn post_pieces(&mut self, pieces: &[ReadWanted]) {
        self.lane.submit(pieces.iter().map(|&wanted| (0, wanted)));
    }

    /// The most bytes that one READ brings.
    pub fn message_max(&self) -> usize {
        self.message_max
    }

    /// Waits for at least one READ, if any is in flight, and hands out those that have completed.
    pub fn poll(
        &mut self,
        within: Duration,
        mut sink: impl FnMut(ReadId, &mut LandedWindow<'_>),
    ) -> Result<(), VerbsError> {
        self.lane.wait(within, &mut self.counts)?;
        let geometry = &self.geometry;
        self.lane.hand_out(|token, wanted, landing, slot| {
            let ReadWanted::Window(window) = wanted else { return };
            let words = window.slots as usize * geometry.shape().words();
            // SAFETY: the READ into this slot has completed, and the slot is not posted again
            // before this lane submits another, which takes `&mut self`.
            let words = unsafe { landing.windows().words(slot, words) };
            sink(token, &mut LandedWindow::new(geometry, window, words));
        });
        Ok(())
    }

    /// Whether READs of this handle are in flight.
    pub fn is_reading(&self) -> bool {
        self.lane.in_flight() > 0
    }

    /// Waits for all READs in flight and discards their results.
    pub fn drain(&mut self, within: Duration) -> Result<(), VerbsError> {
        while self.is_reading() {
            self.poll(within, |_, _| {})?;
        }
        Ok(())
    }

    /// Takes the counts since the last call, of the work that this handle's thread did as the pump.
    /// The sum over all handles is what was asked of the queue pairs.
    pub fn take_counts(&mut self) -> QueueCounts {
        std::mem::take(&mut self.counts)
    }
}

// ---- the queue pairs ----------------------------------------------------------------------------

/// The queue pairs of one client.
#[derive(Debug)]
pub(crate) struct SharedPairs {
    pairs: Box<[SharedPair]>,
    pub changes: Changes,
}

/// One queue pair that handles share. After a failure it gets another connection.
#[derive(Debug, Default)]
struct SharedPair {
    state: Mutex<SharedPairState>,
    /// Notified when an attempt to connect has ended.
    attempted: Condvar,
}

#[derive(Debug, Default)]
struct SharedPairState {
    /// Number of handles that read over it.
    handles: usize,
    open: Option<OpenPair>,
    connecting: bool,
    /// Number of attempts to connect that have ended. `failure` is why the last one failed.
    attempts: u64,
    failure: Option<SetupError>,
}

/// A connection that lanes can join.
#[derive(Clone, Debug)]
struct OpenPair {
    link: Arc<Mux<Connection>>,
    geometry: Arc<Geometry>,
    keys: Arc<ChunkKeys>,
    credits: usize,
    domain: Arc<ProtectionDomain>,
    message_max: usize,
    stream: Weak<TcpStream>,
}

impl OpenPair {
    fn new(connection: Connection, wait: Wait) -> OpenPair {
        let (geometry, keys) = (connection.geometry().clone(), connection.keys().clone());
        let (credits, message_max) = (connection.credits(), connection.message_max());
        let (domain, stream) = (connection.domain().clone(), Arc::downgrade(connection.stream()));
        let bell = (wait == Wait::Block).then(|| connection.queue().clone());
        OpenPair { link: Mux::new(connection, bell), geometry, keys, credits, domain, message_max, stream }
    }

    /// Registers memory for a lane. Called without any lock held.
    fn join(self) -> Result<LaneReader, SetupError> {
        let landing = LaneLanding::new(&self.domain, &self.geometry, self.credits)?;
        let lane = self.link.join(landing, self.credits);
        let OpenPair { geometry, keys, stream, domain, message_max, .. } = self;
        let (counts, long) = (QueueCounts::default(), LongLanding::default());
        Ok(LaneReader { lane, geometry, keys, stream, counts, long, domain, message_max })
    }
}

/// A handle's place at a pair. Freed when dropped.
#[derive(Debug)]
pub(crate) struct PairLease {
    pairs: Arc<SharedPairs>,
    number: usize,
}

impl Drop for PairLease {
    fn drop(&mut self) {
        lock_std(&self.pairs.pairs[self.number].state).handles -= 1;
    }
}

impl SharedPairs {
    pub fn new(pairs: usize) -> Arc<SharedPairs> {
        Arc::new(SharedPairs {
            pairs: (0..pairs.max(1)).map(|_| SharedPair::default()).collect(),
            changes: Changes::default(),
        })
    }

    /// Takes a place at the pair with the fewest handles.
    pub fn place(self: &Arc<Self>) -> PairLease {
        let handles = |number: &usize| lock_std(&self.pairs[*number].state).handles;
        let number = (0..self.pairs.len()).min_by_key(handles).unwrap_or(0);
        lock_std(&self.pairs[number].state).handles += 1;
        PairLease { pairs: self.clone(), number }
    }
}

impl PairLease {
    /// Joins the pair's connection. If there is none, or it has failed, one of the handles that ask
    /// makes it with `open`. The others share the outcome.
    pub fn join(
        &self,
        wait: Wait,
        within: Duration,
        open: impl FnOnce() -> Result<Connection, SetupError>,
    ) -> Result<LaneReader, SetupError> {
        let pair = &self.pairs.pairs[self.number];
        let deadline = Instant::now() + within;
        let mut state = lock_std(&pair.state);
        let attempts = state.attempts;
        loop {
            if let Some(open) = state.open.as_ref().filter(|open| !open.link.has_failed()) {
                let open = open.clone();
                drop(state);
                return open.join();
            }
            if let Some(failure) = state.failure.as_ref().filter(|_| state.attempts > attempts) {
                return Err(failure.clone());
            }
            if !state.connecting {
                state.connecting = true;
                drop(state);
                let attempt = Attempt { pair, wait, outcome: None };
                return attempt.end(open());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SetupError::Connecting);
            }
            state = pair.attempted.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An attempt to connect. Dropping it reports its end, also after a panic.
struct Attempt<'a> {
    pair: &'a SharedPair,
    wait: Wait,
    outcome: Option<Result<OpenPair, SetupError>>,
}

impl Attempt<'_> {
    fn end(mut self, opened: Result<Connection, SetupError>) -> Result<LaneReader, SetupError> {
        let outcome = opened.map(|connection| OpenPair::new(connection, self.wait));
        self.outcome = Some(outcome.clone());
        drop(self);
        outcome?.join()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = lock_std(&self.pair.state);
        state.connecting = false;
        state.attempts += 1;
        match self.outcome.take() {
            Some(Ok(open)) => (state.open, state.failure) = (Some(open), None),
            Some(Err(error)) => (state.open, state.failure) = (None, Some(error)),
            // The result of an earlier attempt is not the answer for handles that waited for this one.
            None => (state.open, state.failure) = (None, None),
        }
        self.pair.attempted.notify_all();
    }
}

// ---- changes ------------------------------------------------------------------------------------

/// The connection for changes. One handle at a time has it.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    state: Mutex<ChangesState>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct ChangesState {
    taken: bool,
    connection: Option<Connection>,
}

/// A handle's turn to request changes. At its end, `connection` goes to the next turn.
#[derive(Debug)]
pub(crate) struct ChangeTurn<'a> {
    changes: &'a Changes,
    pub connection: Option<Connection>,
}

impl Changes {
    /// Waits for a turn. `None` if the deadline comes first.
    pub fn turn(&self, deadline: Instant) -> Option<ChangeTurn<'_>> {
        let mut state = lock_std(&self.state);
        while state.taken {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.free.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.taken = true;
        // A turn whose handle panicked has left no connection.
        Some(ChangeTurn { changes: self, connection: state.connection.take() })
    }

    /// Drops the connection, unless another handle has it already.
    pub fn forget(&self) {
        let connection = lock_std(&self.state).connection.take();
        drop(connection);
    }
}

impl Drop for ChangeTurn<'_> {
    fn drop(&mut self) {
        let mut state = lock_std(&self.changes.state);
        state.taken = false;
        state.connection = self.connection.take();
        self.changes.free.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Waits until these threads sleep. Each is a path below /proc.
    fn until_asleep(threads: &[std::path::PathBuf]) {
        let state = |thread| std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
        let is_asleep = |thread| state(thread).unwrap().rsplit(')').next().unwrap().starts_with(" S");
        let (begun, mut looks) = (Instant::now(), 0);
        // A thread may also sleep for a moment on its way.
        while looks < 100 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            looks = if threads.iter().all(is_asleep) { looks + 1 } else { 0 };
            std::thread::yield_now();
        }
    }

    /// One handle connects. The others wait for it, and all of them learn at once how it ended.
    #[test]
    fn all_learn_of_the_end_of_an_attempt() {
        let within = Duration::from_secs(60);
        let pairs = SharedPairs::new(1);
        let [of_the_first, of_another] = [true, false].map(|no_module| SetupError::NoDevice { no_module });
        let is_of_the_first = |error| matches!(error, SetupError::NoDevice { no_module: true });
        std::thread::scope(|scope| {
            let (started, threads) = mpsc::channel();
            let mut waiting = Vec::new();
            let first = pairs.place().join(Wait::Poll, within, || {
                for _ in 0..3 {
                    let (place, started, of_another) = (pairs.place(), started.clone(), of_another.clone());
                    waiting.push(scope.spawn(move || {
                        started.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                        place.join(Wait::Poll, within, || Err(of_another))
                    }));
                }
                until_asleep(&threads.iter().take(3).collect::<Vec<_>>());
                Err(of_the_first.clone())
            });
            assert!(is_of_the_first(first.unwrap_err()));
            let ended = Instant::now();
            for waited in waiting {
                assert!(is_of_the_first(waited.join().unwrap().unwrap_err()));
            }
            assert!(ended.elapsed() < within / 2, "they learnt of it at their own deadline");
        });
        assert_eq!(lock_std(&pairs.pairs[0].state).handles, 0);
    }

    /// A handle waits for another one's attempt until its own deadline, and no longer. An attempt that ended in a
    /// panic told nothing: who has waited for it makes the next, whatever came of those before.
    #[test]
    fn an_attempt_that_tells_nothing_is_made_again() {
        let within = Duration::from_secs(60);
        let pairs = SharedPairs::new(1);
        let [of_the_first, of_the_next] = [true, false].map(|no_module| SetupError::NoDevice { no_module });
        let failed = |place: PairLease, why: &SetupError| {
            let why = why.clone();
            place.join(Wait::Poll, within, || Err(why)).unwrap_err()
        };
        assert!(matches!(failed(pairs.place(), &of_the_first), SetupError::NoDevice { no_module: true }));
        std::thread::scope(|scope| {
            let (started, threads) = mpsc::channel();
            let (place, told) = (pairs.place(), of_the_next.clone());
            let waiting = std::sync::Mutex::new(None);
            let attempt = std::panic::AssertUnwindSafe(|| {
                pairs.place().join(Wait::Poll, within, || {
                    let hasty = pairs.place().join(Wait::Poll, Duration::from_millis(1), || unreachable!());
                    assert!(matches!(hasty, Err(SetupError::Connecting)), "{hasty:?}");
                    *waiting.lock().unwrap() = Some(scope.spawn(move || {
                        started.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                        failed(place, &told)
                    }));
                    until_asleep(&[threads.recv().unwrap()]);
                    panic!("on purpose")
                })
            });
            std::panic::catch_unwind(attempt).unwrap_err();
            let waited = waiting.lock().unwrap().take().unwrap().join().unwrap();
            assert!(matches!(waited, SetupError::NoDevice { no_module: false }), "{waited}");
        });
        assert_eq!(lock_std(&pairs.pairs[0].state).handles, 0);
    }

    /// A handle that waits for its turn gets it when the turn before has ended.
    #[test]
    fn the_end_of_a_turn_wakes_the_next() {
        let within = Duration::from_secs(60);
        let changes = &Changes::default();
        std::thread::scope(|scope| {
            let (started, threads) = mpsc::channel();
            let turn = changes.turn(Instant::now() + within).expect("nobody has it");
            let next = scope.spawn(move || {
                started.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                changes.turn(Instant::now() + within).is_some()
            });
            until_asleep(&[threads.recv().unwrap()]);
            let ended = Instant::now();
            drop(turn);
            assert!(next.join().unwrap());
            assert!(ended.elapsed() < within / 2, "it got it at its own deadline");
        });
    }
}
