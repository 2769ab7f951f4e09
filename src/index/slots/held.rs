//! Free slots that are held for keys whose changes wait (L11, L12).

use crate::base::sync::{Mutex, lock};
use crate::layout::geometry::SlotIx;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A free slot that is held for a key of this home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRoom {
    /// The number of the segment's memory.
    pub memory: u32,
    pub slot: SlotIx,
    pub home: u64,
}

/// The held slots of a segment: at most one for each thread. A slot is held, and let go, under its own lock and its
/// home's. So the holder of either lock is certain of what is said here.
#[derive(Debug, Default)]
pub(super) struct HeldRooms {
    /// The number of held slots. Mostly there is none, and then no thread takes the lock. Relaxed: the locks of the
    /// slot and of the home order it.
    count: AtomicUsize,
    all: Mutex<Vec<HeldRoom>>,
}

impl HeldRooms {
    /// Whether any slot is held.
    #[inline(always)]
    pub fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether this slot is held.
    #[cold]
    #[inline(never)]
    pub fn is_held(&self, slot: SlotIx) -> bool {
        lock(&self.all).iter().any(|room| room.slot == slot)
    }

    /// Whether a slot is held for a key of this home.
    #[cold]
    #[inline(never)]
    pub fn is_held_for(&self, home: u64) -> bool {
        lock(&self.all).iter().any(|room| room.home == home)
    }

    pub fn add(&self, room: HeldRoom) {
        let mut all = lock(&self.all);
        debug_assert!(all.iter().all(|held| held.slot != room.slot), "L11: {room:?} is held already");
        all.push(room);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    pub fn remove(&self, room: &HeldRoom) {
        let mut all = lock(&self.all);
        all.retain(|held| held != room);
        self.count.store(all.len(), Ordering::Relaxed);
    }
}
