//! Free slots that are held for keys whose changes wait (L11, L12).

use crate::base::sync::{Mutex, lock};
use crate::layout::geometry::SlotIx;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A free slot that is held for a key of this home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRoom {
    /// The number of the segment's memory.
    pub memory: u32,
    pub slot: SlotIx,
    pub home: u64,
}

/// The held slots of a segment: one for each key that is to come, and whose change waits. A slot is held, and let go, under its
/// own lock and its home's. So the holder of either lock is certain of what is said here.
#[derive(Debug, Default)]
pub(super) struct HeldRooms {
    /// The number of held slots. Mostly there is none, and then no thread takes the lock. Relaxed: the locks of the
    /// slot and of the home order it.
    count: AtomicUsize,
    all: Mutex<HeldState>,
}

#[derive(Debug, Default)]
struct HeldState {
    slots: FxHashSet<SlotIx>,
    /// How many slots are held for keys of each home.
    homes: FxHashMap<u64, u32>,
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
        lock(&self.all).slots.contains(&slot)
    }

    /// Whether a slot is held for a key of this home.
    #[cold]
    #[inline(never)]
    pub fn is_held_for(&self, home: u64) -> bool {
        lock(&self.all).homes.contains_key(&home)
    }

    pub fn add(&self, room: HeldRoom) {
        let mut all = lock(&self.all);
        let is_new = all.slots.insert(room.slot);
        debug_assert!(is_new, "L11: {room:?} is held already");
        *all.homes.entry(room.home).or_default() += 1;
        self.count.store(all.slots.len(), Ordering::Relaxed);
    }

    pub fn remove(&self, room: &HeldRoom) {
        let mut all = lock(&self.all);
        if !all.slots.remove(&room.slot) {
            return;
        }
        if let Entry::Occupied(mut held) = all.homes.entry(room.home) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
        self.count.store(all.slots.len(), Ordering::Relaxed);
    }
}
