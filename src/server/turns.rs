//! Whether the threads that serve clients still take turns of their event loops.

use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many turns a thread's event loop has begun. One thread counts.
#[derive(Debug, Default)]
pub(super) struct TurnCount(AtomicU64);

impl TurnCount {
    /// Counts a turn that begins.
    #[inline]
    pub fn count(&self) {
        // Relaxed: only the number is communicated, and only this thread stores it.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread's event loop, for other threads: its waker, and the number of its turns.
#[derive(Clone, Debug)]
pub(super) struct EventLoop {
    pub waker: Arc<Waker>,
    pub turns: Arc<TurnCount>,
}

/// Wakes all of these loops. Returns the places of those that have begun no turn within this time. Waits no longer than
/// needed.
pub(super) fn stuck<'l>(loops: impl Iterator<Item = &'l EventLoop>, within: Duration) -> Vec<usize> {
    const PAUSE: Duration = Duration::from_millis(1);
    let until = Instant::now() + within;
    let mut left: Vec<_> = loops.map(|one| (one, one.turns.so_far())).enumerate().collect();
    for (_, (one, _)) in &left {
        // If this fails, the loop does not turn, and is reported.
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
