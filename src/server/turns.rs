//! Whether the threads that serve clients still take turns of their event loops.

use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many turns a thread's event loop has begun. One thread counts.
#[derive(Debug, Default)]
pub(super) struct TurnCount(AtomicU64);

impl TurnCount {
    /// A turn begins.
    #[inline]
    pub fn count(&self) {
        // Relaxed: nothing but the number is told, and only this thread stores it.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread's event loop, as other threads know it: what wakes it from its sleep, and how often it has turned.
#[derive(Clone, Debug)]
pub(super) struct EventLoop {
    pub waker: Arc<Waker>,
    pub turns: Arc<TurnCount>,
}

/// Wakes all of these loops, and returns the places of those that have begun no turn after so long. Waits no
/// longer than it must.
pub(super) fn stuck<'l>(loops: impl Iterator<Item = &'l EventLoop>, within: Duration) -> Vec<usize> {
    const PAUSE: Duration = Duration::from_millis(1);
    let until = Instant::now() + within;
    let mut left: Vec<_> = loops.map(|one| (one, one.turns.so_far())).enumerate().collect();
    for (_, (one, _)) in &left {
        // Where this fails, the loop does not turn, and is reported.
        let _ = one.waker.wake();
    }
    loop {
        left.retain(|(_, (one, before))| one.turns.so_far() == *before);
        if left.is_empty() || Instant::now() >= until {
            return left.into_iter().map(|(place, _)| place).collect();
        }
        std::thread::sleep(PAUSE);
    }
}
