//! The thread of a publisher: connects, hears batches, asks for those that it missed.
//!
//! ```text
//! SUB  ──subscribes to all──► PUB       topic, number (8 bytes, big-endian), batch
//! DEALER ──"", number──► ROUTER         "", number, batch ... "", -1, ""
//! ```
//!
//! Each connection begins with a look at what the publisher has sent meanwhile, from the last known batch on: if that is
//! there, with the same bytes, what comes next goes on from it. If not, the publisher has begun again, or has forgotten
//! too much: the worker is cleared, and all that the publisher still has is taken in.

use crate::counts::Counts;
use crate::numbers::{Heard, Resumed, digest, resumed};
use crate::publisher::Publisher;
use crate::store::{Store, StoreError};
use crate::worker::Worker;
use crate::zmtp::{Kind, Socket, Stream, ZmtpError};
use rustix::net::sockopt;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a connection may take, and a handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest silence for which a thread sleeps at once.
const QUIET: Duration = Duration::from_secs(60);
/// A subscription has taken effect by then.
const SUBSCRIBED: Duration = Duration::from_secs(1);
/// How long a batch that is sent again may let wait.
const REPLAY: Duration = Duration::from_secs(10);
/// How often batches are asked for again, before they are lost.
const REPLAY_TRIES: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// So many links may be nobody's before they are swept: a sweep looks at as many a second.
const LEFT: usize = 4_096;
/// Behind the last batch that is sent again.
const END: u64 = u64::MAX;

/// What all publishers' threads have in common.
#[derive(Debug)]
pub struct Shared {
    /// Handles on the table.
    pub stores: Stores,
    /// Held while a holder is registered, and while bits of those that are gone are cleaned: who is registered by one handle
    /// could be cleaned by another.
    pub registering: Arc<Mutex<()>>,
    /// What is counted.
    pub counts: Arc<Counts>,
    /// The seed of hashes.
    pub base: u64,
    /// The longest message that is taken.
    pub message_max: usize,
    /// Links of blocks that are gone are to be swept.
    pub sweep: AtomicBool,
    /// Common links that were left to others, since the last sweep was asked for.
    pub left: AtomicUsize,
    /// Some worker has blocks elsewhere than in its device.
    pub has_tiers: AtomicBool,
}

/// Some handles on the table, which threads borrow.
#[derive(Debug)]
pub struct Stores {
    free: Mutex<Vec<Store>>,
    is_free: Condvar,
    /// Goes behind the handles.
    _there: There,
}

/// Says that there are handles on the table.
pub type There = mpsc::Sender<Infallible>;

/// A handle on the table, until it is dropped.
#[derive(Debug)]
pub struct Borrowed<'a> {
    of: &'a Stores,
    store: Option<Store>,
}

impl Stores {
    /// So many handles like this one.
    pub fn new(store: &Store, handles: usize, there: &There) -> Stores {
        let free = (0..handles.max(1)).map(|_| store.clone()).collect();
        Stores { free: Mutex::new(free), is_free: Condvar::new(), _there: there.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Store>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a handle, and does something with it.
    pub fn with<R>(&self, act: impl FnOnce(&mut Store) -> R) -> R {
        let mut free = self.lock();
        let store = loop {
            match free.pop() {
                Some(store) => break store,
                None => free = self.is_free.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(free);
        let mut borrowed = Borrowed { of: self, store: Some(store) };
        match &mut borrowed.store {
            Some(store) => act(store),
            None => unreachable!("it was just put there"),
        }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.of.lock().extend(self.store.take());
        self.of.is_free.notify_one();
    }
}

/// How a publisher's thread does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// What was wrong last.
    pub error: Option<String>,
    /// The number of the last batch that was taken in.
    pub last: Option<u64>,
    /// Blocks that the worker has.
    pub blocks: u64,
}

/// What stops a publisher's thread, and tells how it does.
#[derive(Debug, Default)]
pub struct Control {
    state: Mutex<State>,
    is_over: Condvar,
    /// Held while a change of the table is made.
    changes: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    stream: Option<Stream>,
    status: Status,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread end. When this returns, it changes nothing of the table any more.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(stream) = state.stream.take() {
            stream.shutdown();
        }
        self.is_over.notify_all();
        drop(state);
        drop(self.changes.lock());
    }

    /// Makes a change, unless it is stopped.
    fn changes<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopped() { None } else { Some(act()) }
    }

    /// How it does.
    pub fn status(&self) -> Status {
        self.lock().status.clone()
    }

    fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Sleeps so long, or until it is stopped. Returns whether it is not.
    fn sleeps(&self, time: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .is_over
            .wait_timeout_while(state, time, |state| !state.is_stopped)
            .unwrap_or_else(PoisonError::into_inner);
        !state.is_stopped
    }

    /// The connection that is to end when the thread is stopped. Returns whether it is not stopped yet.
    fn connected(&self, stream: Stream) -> bool {
        let mut state = self.lock();
        if state.is_stopped {
            return false;
        }
        state.stream = Some(stream);
        state.status.is_connected = true;
        state.status.error = None;
        true
    }

    fn failed(&self, error: &dyn std::fmt::Display) {
        let mut state = self.lock();
        state.stream = None;
        state.status.is_connected = false;
        state.status.error = Some(error.to_string());
    }

    fn tell(&self, publisher: &Publisher) {
        let mut state = self.lock();
        state.status.last = publisher.last().map(|(number, _)| number);
        state.status.blocks = publisher.blocks();
    }
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error("{0}")]
    Connection(#[from] ZmtpError),
    #[error("the table: {0}")]
    Store(#[from] StoreError),
    #[error("stopped")]
    Stopped,
}

/// Hears a publisher until it is stopped.
pub fn listen(worker: &Arc<Worker>, shared: &Shared, control: &Control) {
    let mut publisher = None;
    let mut backoff = BACKOFF;
    while !control.is_stopped() {
        let loaded = match publisher.take() {
            Some(publisher) => Ok(publisher),
            None => shared.stores.with(|store| {
                let (counts, registering) = (shared.counts.clone(), shared.registering.clone());
                Publisher::load(store, worker.clone(), shared.base, counts, registering)
            }),
        };
        let mut one = match loaded {
            Ok(one) => one,
            Err(error) => {
                shared.counts.table_errors.one();
                control.failed(&error);
                control.sleeps(backoff);
                backoff = (backoff * 2).min(BACKOFF_MAX);
                continue;
            }
        };
        control.tell(&one);
        let mut listener = Listener { worker, shared, control, publisher: &mut one, has_talked: false };
        // What was heard of it is told, also where it ended badly.
        let ended = listener.converse().and(listener.write());
        if listener.has_talked {
            backoff = BACKOFF;
        }
        publisher = Some(one);
        match ended {
            Err(ListenError::Stopped) | Ok(()) => break,
            Err(error) => {
                shared.counts.disconnections.one();
                control.failed(&error);
                tracing::info!(worker = %worker.instance, endpoint = %worker.endpoint, "{error}");
            }
        }
        control.sleeps(backoff);
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

struct Listener<'a> {
    worker: &'a Worker,
    shared: &'a Shared,
    control: &'a Control,
    publisher: &'a mut Publisher,
    /// Something was heard over this connection.
    has_talked: bool,
}

impl Listener<'_> {
    /// One connection, from its begin to its end.
    fn converse(&mut self) -> Result<(), ListenError> {
        let stream = self.worker.endpoint.connect(self.worker.reach, CONNECT).map_err(ZmtpError::Io)?;
        keep_alive(&stream);
        if !self.control.connected(stream.try_clone().map_err(ZmtpError::Io)?) {
            return Err(ListenError::Stopped);
        }
        let mut socket = Socket::begin(stream, Kind::Sub, self.shared.message_max, CONNECT)?;
        socket.send(&[&[1]], CONNECT).map_err(ZmtpError::Io)?;
        self.shared.counts.connections.one();
        self.publisher.numbers.connected();
        self.resume()?;
        // What is published before the subscription takes effect, and behind what was just sent again, is missed. The next
        // batch tells so; where none comes, it is asked for once more.
        let mut is_sure = false;
        loop {
            let heard = socket.receive(if is_sure { QUIET } else { SUBSCRIBED });
            if self.control.is_stopped() {
                return Err(ListenError::Stopped);
            }
            let heard = heard?;
            if heard.is_none() && !is_sure {
                self.resume()?;
            }
            is_sure = true;
            let mut next = heard;
            while let Some(frames) = next {
                self.has_talked = true;
                match batch_of(&frames) {
                    Some((number, payload)) => self.hear(number, payload)?,
                    None => self.shared.counts.garbage.one(),
                }
                // Those that have come meanwhile are one run.
                next = socket.receive_now()?;
            }
            self.write()?;
        }
    }

    /// A batch that was published.
    fn hear(&mut self, number: u64, payload: &[u8]) -> Result<(), ListenError> {
        let hash = digest(payload);
        match self.publisher.numbers.hear(number, hash) {
            // The first that is heard is not the first that was told.
            Heard::Next if self.publisher.last().is_none() && number > 0 && self.worker.replay.is_some() => {
                self.resume()?;
                match self.publisher.numbers.hear_again(number, hash) {
                    Heard::Late => return Ok(()),
                    Heard::Next => {}
                    Heard::Gap(missed) => self.lose(missed)?,
                    Heard::Restarted => return self.restarted(number, payload),
                }
            }
            Heard::Next => {}
            Heard::Late => {
                self.shared.counts.late.one();
                return Ok(());
            }
            Heard::Gap(missed) => {
                self.shared.counts.gaps.one();
                if !self.resume()? {
                    self.lose(missed)?;
                }
                // It may have been sent again with the others.
                match self.publisher.numbers.hear_again(number, hash) {
                    Heard::Late => return Ok(()),
                    Heard::Next => {}
                    Heard::Gap(missed) => self.lose(missed)?,
                    Heard::Restarted => return self.restarted(number, payload),
                }
            }
            Heard::Restarted => return self.restarted(number, payload),
        }
        self.take(number, payload)
    }

    fn lose(&mut self, missed: u64) -> Result<(), ListenError> {
        self.shared.counts.lost.add(missed);
        tracing::warn!(worker = %self.worker.instance, missed, "batches are lost; the worker is cleared");
        self.change(|publisher, store| publisher.restarted(store))
    }

    /// A publisher that has begun again has nothing of what it told before.
    fn restarted(&mut self, number: u64, payload: &[u8]) -> Result<(), ListenError> {
        self.begin_again()?;
        self.replay(None)?;
        self.publisher.numbers.replayed();
        match self.publisher.numbers.hear_again(number, digest(payload)) {
            Heard::Late => Ok(()),
            Heard::Next => self.take(number, payload),
            // What was sent again ends before: it comes when it is next heard that it is missing.
            Heard::Gap(missed) => self.lose(missed).and_then(|()| self.take(number, payload)),
            Heard::Restarted => self.lose(0).and_then(|()| self.take(number, payload)),
        }
    }

    fn begin_again(&mut self) -> Result<(), ListenError> {
        self.shared.counts.restarts.one();
        tracing::warn!(worker = %self.worker.instance, "the publisher has begun again with its numbers; the worker is cleared");
        self.change(|publisher, store| publisher.restarted(store))
    }

    /// Takes a batch into the run. That is written when nothing more has come, or when it is large enough.
    fn take(&mut self, number: u64, payload: &[u8]) -> Result<(), ListenError> {
        self.publisher.hear(number, payload);
        if self.publisher.is_full() { self.write() } else { Ok(()) }
    }

    /// Writes what was heard.
    fn write(&mut self) -> Result<(), ListenError> {
        if !self.publisher.has_heard() {
            return Ok(());
        }
        self.change(|publisher, store| publisher.write(store))
    }

    /// A change of the table, again until it is made.
    fn change(
        &mut self,
        mut act: impl FnMut(&mut Publisher, &mut Store) -> Result<(), StoreError>,
    ) -> Result<(), ListenError> {
        let mut backoff = BACKOFF;
        loop {
            let publisher = &mut *self.publisher;
            let control = self.control;
            let done = self.shared.stores.with(|store| control.changes(|| act(publisher, store)));
            match done {
                None => return Err(ListenError::Stopped),
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    self.shared.counts.table_errors.one();
                    tracing::warn!(worker = %self.worker.instance, "the table does not take a change; it is made again: {error}");
                    if !self.control.sleeps(backoff) {
                        return Err(ListenError::Stopped);
                    }
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
        let left = std::mem::take(&mut self.publisher.left);
        let is_enough = left > 0 && self.shared.left.fetch_add(left, Ordering::Relaxed) + left >= LEFT;
        if is_enough {
            self.shared.left.store(0, Ordering::Relaxed);
        }
        if std::mem::take(&mut self.publisher.leaves_links) || is_enough {
            self.shared.sweep.store(true, Ordering::Relaxed);
        }
        if self.publisher.has_tiers {
            self.shared.has_tiers.store(true, Ordering::Relaxed);
        }
        self.control.tell(self.publisher);
        Ok(())
    }

    /// Asks for what was missed. Returns whether the publisher has answered: then all is known that it has.
    fn resume(&mut self) -> Result<bool, ListenError> {
        if self.worker.replay.is_none() {
            return Ok(false);
        }
        let mut backoff = BACKOFF;
        for attempt in 1..=REPLAY_TRIES {
            let outcome = match self.publisher.last() {
                None => self.replay(None)?,
                Some(last) => match self.replay(Some(last))? {
                    Replayed::Broken(why) => {
                        match why {
                            Resumed::Lost(missed) => self.lose(missed)?,
                            Resumed::Same | Resumed::Restarted => self.begin_again()?,
                        }
                        self.replay(None)?
                    }
                    outcome => outcome,
                },
            };
            match outcome {
                Replayed::Whole | Replayed::Broken(_) => {
                    self.publisher.numbers.replayed();
                    return Ok(true);
                }
                Replayed::Failed if attempt < REPLAY_TRIES && !self.control.sleeps(backoff) => {
                    return Err(ListenError::Stopped);
                }
                Replayed::Failed => backoff *= 2,
            }
        }
        Ok(false)
    }

    /// Takes in what the publisher sends again, from the last known batch on, or all.
    fn replay(&mut self, last: Option<(u64, u64)>) -> Result<Replayed, ListenError> {
        let replayed = self.hear_again(last);
        self.write()?;
        replayed
    }

    fn hear_again(&mut self, last: Option<(u64, u64)>) -> Result<Replayed, ListenError> {
        let Some(endpoint) = &self.worker.replay else { return Ok(Replayed::Failed) };
        let failed = |error: &dyn std::fmt::Display| {
            tracing::warn!(worker = %self.worker.instance, %endpoint, "batches cannot be asked for again: {error}");
            Replayed::Failed
        };
        let begun = endpoint.connect(self.worker.reach, CONNECT).map_err(ZmtpError::Io).and_then(|stream| {
            let mut socket = Socket::begin(stream, Kind::Dealer, self.shared.message_max, CONNECT)?;
            let from = last.map_or(0, |(number, _)| number);
            socket.send(&[b"", &from.to_be_bytes()], CONNECT)?;
            Ok(socket)
        });
        let mut socket = match begun {
            Ok(socket) => socket,
            Err(error) => return Ok(failed(&error)),
        };
        let mut unverified = last;
        loop {
            if self.control.is_stopped() {
                return Err(ListenError::Stopped);
            }
            let mut next = socket.receive_now();
            let mut begun = Instant::now();
            if matches!(next, Ok(None)) {
                self.write()?;
                begun = Instant::now();
                next = socket.receive(REPLAY);
            }
            let frames = match next {
                Ok(Some(frames)) => frames,
                Ok(None) if begun.elapsed() < REPLAY => continue,
                Ok(None) => return Ok(failed(&"the publisher lets wait for too long")),
                Err(error) => return Ok(failed(&error)),
            };
            let Some((number, payload)) = batch_of(&frames) else {
                return Ok(failed(&"the publisher sent no batch"));
            };
            if number == END && payload.is_empty() {
                return Ok(match unverified {
                    Some(last) => Replayed::Broken(resumed(last, None)),
                    None => Replayed::Whole,
                });
            }
            let hash = digest(payload);
            if let Some(last) = unverified.take() {
                match resumed(last, Some((number, hash))) {
                    Resumed::Same => continue,
                    why @ (Resumed::Lost(_) | Resumed::Restarted) => return Ok(Replayed::Broken(why)),
                }
            }
            self.shared.counts.replayed.one();
            match self.publisher.last() {
                Some((last, _)) if number <= last => continue,
                Some((last, _)) if number - last > 1 => self.lose(number - last - 1)?,
                Some(_) | None => {}
            }
            self.take(number, payload)?;
        }
    }
}

/// What came of asking for batches.
enum Replayed {
    /// All that there are from the first one asked for.
    Whole,
    /// The last known batch is not there, or is another one.
    Broken(Resumed),
    /// The publisher could not be asked, or did not end its answer. What it did send was taken in.
    Failed,
}

/// The number and the bytes of a batch: the last two frames, behind a topic or an empty one.
fn batch_of(frames: &[Vec<u8>]) -> Option<(u64, &[u8])> {
    let [_, number, payload] = frames else { return None };
    Some((u64::from_be_bytes(number.as_slice().try_into().ok()?), payload))
}

/// Has the system notice a host that is gone: a subscriber only listens.
fn keep_alive(stream: &Stream) {
    if let Stream::Tcp(stream) = stream {
        // Without it, it is noticed later.
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(30));
        let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10));
    }
}
