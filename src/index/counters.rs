//! What the server did, counted by each thread apart, so that threads do not wait for one line.

use crate::sync::{AtomicU64, Ordering, fence};
use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

/// Server threads are few.
const PARTS: usize = if cfg!(loom) { 1 } else { 8 };

/// The counts of some threads, in lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadCounts {
    pub inserts: AtomicU64,
    pub updates: AtomicU64,
    pub removes: AtomicU64,
    pub moves: AtomicU64,
    pub homings: AtomicU64,
    /// Traces taken away.
    pub reaped: AtomicU64,
}

/// All counts of a table's server.
#[derive(Debug, Default)]
pub(super) struct Counters {
    parts: [ThreadCounts; PARTS],
    /// Keys found at a takeover.
    pub found: AtomicU64,
    /// Keys that came from another segment, which also count as inserts, and keys that left for one.
    pub came: AtomicU64,
    pub left: AtomicU64,
    pub waits: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    // Release: pairs with `room_made`. Whoever sees that a key has gone sees the note that its slot is free.
    counter.fetch_add(1, Ordering::Release);
}

std::thread_local! {
    static PART: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % PARTS)
    };
}

impl Counters {
    /// This thread's counts.
    #[inline]
    pub fn mine(&self) -> &ThreadCounts {
        &self.parts[PART.get() % PARTS]
    }

    /// The sum over all threads of one counter.
    pub fn sum(&self, of: impl Fn(&ThreadCounts) -> &AtomicU64) -> u64 {
        self.parts.iter().map(|part| of(part).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// The number of keys, while other threads change it: at least so many were there at one instant
    /// of this call. What is removed is counted later than what is inserted.
    pub fn keys(&self) -> u64 {
        let came = self.found.load(Ordering::Relaxed).wrapping_add(self.sum(|part| &part.inserts));
        let left = self.left.load(Ordering::Relaxed);
        came.saturating_sub(self.sum(|part| &part.removes)).saturating_sub(left)
    }

    /// A number that goes up whenever something makes room, or lets keys make room: a delete, a move,
    /// a trace that is taken away.
    pub fn room_made(&self) -> u64 {
        let made: [fn(&ThreadCounts) -> &AtomicU64; 3] = [|c| &c.removes, |c| &c.moves, |c| &c.reaped];
        let made = made.into_iter().map(|of| self.sum(of)).fold(0, u64::wrapping_add);
        // Pairs with `count`: notes are looked at after this.
        fence(Ordering::Acquire);
        made
    }
}
