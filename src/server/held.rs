//! The server's memory that clients' connections hold, over every fabric (I).
//!
//! ```text
//! a turn of a connection ends ── what it holds now ── the sum ── above the bound? the one that holds most ends
//! ```
//!
//! Memory that a connection has for its whole time (a mailbox, messages of a queue pair) is
//! [taken](ClientMemory::take), or refused. Memory that comes and goes (unread replies, requests that are not answered,
//! TLS) is [held](HeldShare::hold). It is never refused, because it is already in use.
//! never refused: it is there by then.

#![allow(unsafe_code)]

use crate::base::sync::lock_std;
use crate::faults::{Rule, broken, kept};
use mio::Waker;
use rustc_hash::FxHashMap;
use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};

/// With this much memory that was held and is not any more, it is given back to the system at once.
const GIVE_BACK: u64 = 16 << 20;
/// Marks a connection that has to end. Its bytes do not count any more (Q7).
const ENDS: u64 = u64::MAX;

/// The memory that the connections of all clients hold together. Relaxed, where nothing else is said: only sums are
/// communicated.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    most: u64,
    /// Negative for a moment, where a connection has to end that has just reported more.
    held: AtomicI64,
    /// The most that was held since memory was given back.
    peak: AtomicU64,
    /// Connections that were ended because they held most.
    ended: AtomicU64,
    all: Mutex<FxHashMap<u64, Arc<HeldBytes>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct HeldBytes {
    /// [`ENDS`]: the connection has to end.
    bytes: AtomicU64,
    /// Wakes the worker that serves the connection. `None` in tests, which turn by themselves.
    waker: Option<Arc<Waker>>,
}

/// What a connection holds. Given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldShare {
    memory: Arc<ClientMemory>,
    held: Arc<HeldBytes>,
    number: u64,
    /// The bytes that the connection last reported.
    bytes: u64,
}

/// What a connection holds for its whole time. Given back when dropped.
#[derive(Debug)]
pub(crate) struct TakenShare {
    memory: Arc<ClientMemory>,
    bytes: u64,
}

/// What the connections of all clients hold ([`Server::client_memory`](super::Server::client_memory)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientMemoryCounts {
    /// Bytes that they hold.
    pub bytes: u64,
    /// Bytes that they may hold ([`ServerConfig::client_bytes_max`](super::ServerConfig::client_bytes_max)).
    pub bytes_max: u64,
    /// Connections that were ended because they held most when all together held too much.
    pub ended: u64,
}

impl ClientMemory {
    /// A bound of this many bytes.
    pub fn new(most: u64) -> Arc<ClientMemory> {
        Arc::new(ClientMemory {
            most,
            held: AtomicI64::new(0),
            peak: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            all: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    pub fn counts(&self) -> ClientMemoryCounts {
        ClientMemoryCounts { bytes: self.bytes(), bytes_max: self.most, ended: self.ended.load(Relaxed) }
    }

    fn bytes(&self) -> u64 {
        self.held.load(Relaxed).try_into().unwrap_or(0)
    }

    /// How many connections have had to end. A connection [learns](HeldShare::is_to_end) of it before it is counted.
    pub fn ended(&self) -> u64 {
        self.ended.load(Acquire)
    }

    /// Q6: whether half of the memory is in use, so that no client may leave much unread.
    pub fn is_short(&self) -> bool {
        self.bytes() > self.most / 2 && !broken(Rule::ShortMemory)
    }

    /// Takes memory that a connection has for its whole time. `None` if not as much is left.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<TakenShare> {
        let fits = |held: i64| {
            let sum = held.checked_add_unsigned(bytes)?;
            u64::try_from(sum).is_ok_and(|sum| sum <= self.most).then_some(sum)
        };
        self.held.fetch_update(Relaxed, Relaxed, fits).ok()?;
        Some(TakenShare { memory: Arc::clone(self), bytes })
    }

    /// A connection that holds nothing yet. `waker` wakes the worker that serves it.
    pub fn share(self: &Arc<Self>, waker: Option<&Arc<Waker>>) -> HeldShare {
        let number = self.next.fetch_add(1, Relaxed);
        let held = Arc::new(HeldBytes { bytes: AtomicU64::new(0), waker: waker.cloned() });
        lock_std(&self.all).insert(number, Arc::clone(&held));
        HeldShare { memory: Arc::clone(self), held, number, bytes: 0 }
    }

    /// Q7: ends the connections that hold most, until the others hold no more than they may.
    #[cold]
    fn make_room(&self) {
        let all = lock_std(&self.all);
        while self.bytes() > self.most {
            let stay = all.values().filter(|held| !held.is_to_end());
            let Some(worst) = stay.max_by_key(|held| held.bytes.load(Relaxed)) else { return };
            // Its bytes do not count any more, so no other connection ends in its place.
            worst.end(self);
            // Pairs with the load in `ended`: a thread that sees the number sees the flag.
            self.ended.fetch_add(1, Release);
            if let Some(Err(error)) = worst.waker.as_ref().map(|waker| waker.wake()) {
                tracing::warn!(%error, "a worker could not be woken");
            }
        }
    }

    /// Gives memory back to the system that was held and is not any more. The allocator would keep it for this process:
    /// long blocks come from its heaps, which get shorter only at their ends.
    pub fn give_back(&self) {
        let held = self.bytes();
        if self.peak.load(Relaxed).saturating_sub(held) >= GIVE_BACK {
            self.peak.store(held, Relaxed);
            // SAFETY: it may be called at any time, from any thread.
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            unsafe {
                libc::malloc_trim(0);
            }
        }
    }
}

impl HeldShare {
    /// Reports the bytes that the connection holds now.
    pub fn hold(&mut self, bytes: u64) {
        if bytes == std::mem::replace(&mut self.bytes, bytes) {
            return;
        }
        let Some(more) = self.held.say(bytes) else { return };
        let sum = self.memory.held.fetch_add(more, Relaxed).saturating_add(more).try_into().unwrap_or(0);
        if more > 0 {
            self.memory.peak.fetch_max(sum, Relaxed);
            if !kept(Rule::MostEnds, || sum <= self.memory.most) {
                self.memory.make_room();
            }
        }
    }

    /// The bytes that the connection last reported.
    #[cfg(all(test, not(loom)))]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the connection has to end, because it held most (Q7).
    pub fn is_to_end(&self) -> bool {
        self.held.is_to_end()
    }
}

impl HeldBytes {
    /// Stores the bytes that the connection holds now. Returns how many more they are; `None` if the connection has to
    /// end.
    fn say(&self, bytes: u64) -> Option<i64> {
        let is_counted = |before: u64| (before != ENDS).then_some(bytes);
        let before = self.bytes.fetch_update(Relaxed, Relaxed, is_counted).ok()?;
        Some(bytes as i64 - before as i64)
    }

    /// Marks the connection as one that has to end. Its bytes do not count any more.
    fn end(&self, memory: &ClientMemory) {
        let before = self.bytes.swap(ENDS, Relaxed);
        if before != ENDS {
            memory.held.fetch_sub(before as i64, Relaxed);
        }
    }

    fn is_to_end(&self) -> bool {
        self.bytes.load(Relaxed) == ENDS
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        lock_std(&self.memory.all).remove(&self.number);
        self.held.end(&self.memory);
    }
}

impl Drop for TakenShare {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes as i64, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What all hold is one sum, and who goes gives its part back, whatever it held and whether it had to go.
    #[test]
    fn all_hold_of_one_sum() {
        let memory = ClientMemory::new(1_000);
        let bytes = |memory: &ClientMemory| memory.counts().bytes;
        let taken = memory.take(400).expect("there is room");
        assert!(memory.take(601).is_none() && memory.take(u64::MAX).is_none());
        assert!(!memory.is_short());
        let (mut one, mut other) = (memory.share(None), memory.share(None));
        one.hold(100);
        assert!(!memory.is_short(), "half of it");
        other.hold(1);
        assert!(memory.is_short());
        one.hold(50);
        assert_eq!(bytes(&memory), 451);
        drop(one);
        assert_eq!((bytes(&memory), memory.ended()), (401, 0));
        other.hold(600);
        assert_eq!((bytes(&memory), memory.ended()), (1_000, 0), "as much as they may");
        other.hold(601);
        assert!(other.is_to_end() && memory.ended() == 1);
        assert_eq!(bytes(&memory), 400, "it counts no more");
        other.hold(700);
        drop(other);
        drop(taken);
        assert_eq!(bytes(&memory), 0);
    }

    /// Q7: those end that hold most, as many as have to, whoever has asked for more.
    fn left_of(all: &[u64], more: u64) -> (Vec<u64>, u64) {
        let memory = ClientMemory::new(1_000);
        let mut shares: Vec<_> = all.iter().map(|_| memory.share(None)).collect();
        shares.iter_mut().zip(all).for_each(|(share, bytes)| share.hold(*bytes));
        let mut last = memory.share(None);
        last.hold(more);
        let stay = shares.iter().zip(all).filter(|(share, _)| !share.is_to_end());
        (stay.map(|(_, bytes)| *bytes).collect(), memory.counts().bytes)
    }

    #[test]
    fn those_end_that_hold_most() {
        assert_eq!(left_of(&[300, 200, 400, 100], 1), (vec![300, 200, 100], 601));
        assert_eq!(left_of(&[300, 200, 400, 50], 999), (vec![300, 200, 400, 50], 950), "itself");
        assert_eq!(left_of(&[300, 310, 200, 190], 301), (vec![300, 200, 190], 991));
        assert_eq!(left_of(&[400, 500, 90], 300), (vec![400, 90], 790));
        assert_eq!(left_of(&[10], 1_001), (vec![10], 10));
    }

    /// One that has to end is still in its turn, and says at the end of it that it holds more: no other one ends for that.
    #[test]
    fn who_has_to_end_counts_no_more() {
        let memory = ClientMemory::new(1_000);
        let [mut worst, mut other, mut last] = [600, 300, 50].map(|bytes| {
            let mut share = memory.share(None);
            share.hold(bytes);
            share
        });
        last.hold(200);
        assert!(worst.is_to_end() && memory.ended() == 1);
        for bytes in [900, 601, 2_000] {
            worst.hold(bytes);
            assert!(worst.is_to_end() && !other.is_to_end() && !last.is_to_end(), "{bytes}");
            assert_eq!((memory.counts().bytes, memory.ended()), (500, 1), "{bytes}");
        }
        other.hold(100);
        drop(worst);
        assert_eq!(memory.counts().bytes, 300);
        drop((other, last));
        assert_eq!(memory.counts().bytes, 0);
    }

    /// Those who are gone are not among those that may have to end: whoever asks for too much ends by itself, once, and nothing is
    /// kept of the others.
    #[test]
    fn who_is_gone_does_not_end() {
        let memory = ClientMemory::new(1_000);
        for round in 0..3 {
            let mut all: Vec<_> = (0..4).map(|_| memory.share(None)).collect();
            all.iter_mut().for_each(|share| share.hold(200));
            drop(all);
            assert_eq!(
                (memory.counts().bytes, memory.ended(), memory.all.lock().unwrap().len()),
                (0, round, 0)
            );
            let (mut one, other) = (memory.share(None), memory.share(None));
            one.hold(1_001);
            assert!(one.is_to_end() && !other.is_to_end());
            assert_eq!((memory.ended(), memory.all.lock().unwrap().len()), (round + 1, 2));
        }
    }

    /// The worker is woken whose connection is to end, and no other one: it may sleep, while another one's connection asks for more.
    #[test]
    fn who_serves_those_that_end_is_woken() {
        use mio::{Events, Poll, Token};
        use std::time::Duration;
        let memory = ClientMemory::new(1_000);
        let mut workers: Vec<_> = (0..3)
            .map(|_| {
                let poll = Poll::new().unwrap();
                let waker = Arc::new(Waker::new(poll.registry(), Token(7)).unwrap());
                (poll, memory.share(Some(&waker)), waker)
            })
            .collect();
        for ((_, share, _), bytes) in workers.iter_mut().zip([300, 500, 100]) {
            share.hold(bytes);
        }
        // The last one asks for more, and the second one ends.
        workers[2].1.hold(400);
        let mut events = Events::with_capacity(4);
        for (nth, (poll, share, _)) in workers.iter_mut().enumerate() {
            let (is_worst, within) = (nth == 1, Duration::from_secs(if nth == 1 { 60 } else { 0 }));
            poll.poll(&mut events, Some(within)).unwrap();
            assert_eq!((!events.is_empty(), share.is_to_end()), (is_worst, is_worst), "{nth}");
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn who_holds_too_much_is_noticed() {
        let _broken = crate::faults::Broken::rule(Rule::MostEnds);
        assert_eq!(left_of(&[300, 200, 400, 100], 1), (vec![300, 200, 400, 100], 1_001));
    }
}
