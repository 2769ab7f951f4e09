//! How long the server's puts take, and which were the slowest.

use crate::base::sync::lock_std;
use crate::base::times::{TimeCounters, TimeCounts};
use crate::wire::{SLOW_KEY_MAX, SLOW_PUTS, SlowPut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a slow put is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The times of puts, of a server that takes them.
#[derive(Debug)]
pub(super) struct PutTimes {
    begun: Instant,
    counters: TimeCounters,
    /// Until `again_ns`, a put that took no longer than this is not among the slowest. Both are stored under the lock
    /// of `slowest`. Relaxed: a late value costs a look, or a put that is not remembered.
    floor_ns: AtomicU64,
    /// When the first of the remembered puts is forgotten.
    again_ns: AtomicU64,
    /// Each put, and when it was done, since `begun`. The slowest first.
    slowest: Mutex<Vec<(u64, SlowPut)>>,
}

impl PutTimes {
    pub fn new() -> PutTimes {
        PutTimes {
            begun: Instant::now(),
            counters: TimeCounters::default(),
            floor_ns: AtomicU64::new(0),
            again_ns: AtomicU64::new(0),
            slowest: Mutex::default(),
        }
    }

    /// A put of this key has ended that began then.
    pub fn took(&self, key: &[u8], begun: Instant) {
        let ended = Instant::now();
        self.note(key, (ended - begun).as_nanos() as u64, (ended - self.begun).as_nanos() as u64);
    }

    fn note(&self, key: &[u8], took_ns: u64, now_ns: u64) {
        self.counters.add(took_ns);
        if took_ns > self.floor_ns.load(Ordering::Relaxed) || now_ns >= self.again_ns.load(Ordering::Relaxed)
        {
            self.remember(key, took_ns, now_ns);
        }
    }

    #[cold]
    fn remember(&self, key: &[u8], took_ns: u64, now_ns: u64) {
        let mut slowest = lock_std(&self.slowest);
        forget(&mut slowest, now_ns);
        let place = slowest.partition_point(|(_, slow)| slow.took_ns >= took_ns);
        slowest.insert(place, (now_ns, SlowPut::new(key, took_ns)));
        slowest.truncate(SLOW_PUTS);
        let floor_ns = if slowest.len() < SLOW_PUTS { 0 } else { slowest[SLOW_PUTS - 1].1.took_ns };
        let oldest_ns = slowest.iter().map(|(at_ns, _)| *at_ns).min().unwrap_or(now_ns);
        self.floor_ns.store(floor_ns, Ordering::Relaxed);
        self.again_ns.store(oldest_ns + REMEMBERED.as_nanos() as u64, Ordering::Relaxed);
    }

    /// All times since the server began.
    pub fn counts(&self) -> TimeCounts {
        self.counters.read()
    }

    /// The slowest puts of the last ten seconds, the slowest first; the others are zeros.
    pub fn slowest(&self) -> [SlowPut; SLOW_PUTS] {
        let mut slowest = lock_std(&self.slowest);
        forget(&mut slowest, self.begun.elapsed().as_nanos() as u64);
        std::array::from_fn(|nth| slowest.get(nth).map_or(SlowPut::default(), |(_, slow)| *slow))
    }
}

fn forget(slowest: &mut Vec<(u64, SlowPut)>, now_ns: u64) {
    slowest.retain(|(at_ns, _)| now_ns.saturating_sub(*at_ns) < REMEMBERED.as_nanos() as u64);
}

const _: () = assert!(SLOW_KEY_MAX <= u8::MAX as usize, "the length is a byte");

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The slowest are kept, each for ten seconds, with the beginning of its key.
    #[test]
    fn the_slowest_puts_are_remembered() {
        let times = PutTimes::new();
        let second = 1_000_000_000;
        // Now is far behind these, for a look: so it forgets none.
        for (nth, took_ns) in [5, 1, 9, 3, 7, 2, 8].into_iter().enumerate() {
            times.note(&[nth as u8; 100], took_ns, second);
        }
        let told = times.slowest();
        assert_eq!(told.map(|slow| slow.took_ns), [9, 8, 7, 5, 3]);
        assert_eq!(told[0].key(), &[2; SLOW_KEY_MAX]);
        assert_eq!(times.counts().count(), 7);
        // Those from before are too old; a quick one is among the slowest again.
        times.note(b"late", 1, 12 * second);
        assert_eq!(times.slowest().map(|slow| slow.took_ns), [1, 0, 0, 0, 0]);
        assert_eq!((times.slowest()[0].key(), times.slowest()[1].key()), (&b"late"[..], &b""[..]));
    }
}
