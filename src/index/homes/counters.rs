//! Counts of the server's operations. Each thread counts apart, so that threads do not share a cache line.

use crate::base::sync::{AtomicU64, Ordering, fence};
use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

/// Server threads are few.
const PARTS: usize = if cfg!(loom) { 1 } else { 8 };

/// The counts of some threads, in lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounts {
    pub inserts: AtomicU64,
    pub updates: AtomicU64,
    pub removes: AtomicU64,
    pub moves: AtomicU64,
    pub homings: AtomicU64,
    /// Traces taken away, and held slots let go.
    pub reaped: AtomicU64,
}

/// All counts of a table's server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    parts: [ThreadCounts; PARTS],
    /// Keys found at a takeover.
    found: AtomicU64,
    /// Keys that came from another segment, which also count as inserts, and keys that left for another.
    came: AtomicU64,
    left: AtomicU64,
    waits: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    // Release: pairs with `room_made`. Whoever sees that a key has gone sees the note that its slot is free.
    count_all(counter, 1);
}

/// Counts several.
#[inline]
pub(crate) fn count_all(counter: &AtomicU64, several: u64) {
    counter.fetch_add(several, Ordering::Release);
}

std::thread_local! {
    /// Where this thread counts, plus 1; 0 when it has not counted yet.
    static PART: Cell<usize> = const { Cell::new(0) };
}

/// Where this thread counts, plus 1, from now on.
#[cold]
fn take_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let part = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS + 1;
    PART.set(part);
    part
}

impl Counters {
    /// This thread's counts.
    #[inline]
    pub fn mine(&self) -> &ThreadCounts {
        let part = PART.get();
        let part = if part == 0 { take_part() } else { part };
        &self.parts[(part - 1) % PARTS]
    }

    /// Counts keys that were found at a takeover.
    pub fn found(&self, keys: u64) {
        self.found.store(keys, Ordering::Relaxed);
    }

    /// Counts keys that came from another segment. They are counted as inserts after this (D9).
    #[inline]
    pub fn came(&self, keys: u64) {
        self.came.fetch_add(keys, Ordering::Relaxed);
    }

    /// Takes back the count of keys that did not come from another segment.
    pub fn came_not(&self, keys: u64) {
        self.came.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Counts keys that left for another segment, and copies that were taken away again.
    #[inline]
    pub fn left(&self, keys: u64) {
        self.left.fetch_add(keys, Ordering::Relaxed);
    }

    /// Counts a put that waits for room.
    #[inline]
    pub fn waits(&self) {
        count(&self.waits);
    }

    /// How often puts waited for room.
    pub fn waited(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The number of keys that were put, without those that came from another segment.
    pub fn inserted(&self) -> u64 {
        let inserts = self.sum(|part| &part.inserts);
        // D9: pairs with the release of `count_all`. A thread that has seen a copy as an insert sees that it came.
        fence(Ordering::Acquire);
        inserts.saturating_sub(self.came.load(Ordering::Relaxed))
    }

    /// The sum over all threads of one counter.
    pub fn sum(&self, of: impl Fn(&ThreadCounts) -> &AtomicU64) -> u64 {
        self.parts.iter().map(|part| of(part).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// The number of keys, while other threads change it. Inserts are summed before removes, so at least this number was
    /// there at one instant of this call.
    pub fn keys(&self) -> u64 {
        let came = self.found.load(Ordering::Relaxed).wrapping_add(self.sum(|part| &part.inserts));
        let left = self.gone();
        came.saturating_sub(self.sum(|part| &part.removes)).saturating_sub(left)
    }

    /// A number that goes up whenever room is made, or keys may be moved again: by a remove, a move, or a trace that is
    /// taken away.
    pub fn room_made(&self) -> u64 {
        let made: [fn(&ThreadCounts) -> &AtomicU64; 3] = [|c| &c.removes, |c| &c.moves, |c| &c.reaped];
        let made = made.into_iter().map(|of| self.sum(of)).fold(0, u64::wrapping_add);
        // Pairs with `count`: notes are looked at after this.
        fence(Ordering::Acquire);
        made
    }

    /// The number of keys that went to another segment.
    #[inline]
    pub fn gone(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// As [`Counters::room_made`]; goes up when a key goes to another segment, too.
    #[inline]
    pub fn room_made_or_left(&self) -> u64 {
        self.room_made().wrapping_add(self.gone())
    }
}
