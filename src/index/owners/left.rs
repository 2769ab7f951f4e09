//! How many entries of each owner have left one by one. What is noted of these is to be forgotten. A thread counts under the
//! key's lock. The lock in here is a leaf.

use crate::base::sync::{Mutex, lock};
use crate::layout::owners::OWNER_MAX;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// From this number on, all together, they are worth a look.
pub(in crate::index) const LOOKED_AT: u64 = 64;

/// Entries that have left, by owner.
#[derive(Debug, Default)]
pub(in crate::index) struct LeftByOwner {
    of: Mutex<FxHashMap<u16, u64>>,
    /// All of them. Relaxed: a hint, stored under the lock.
    all: AtomicU64,
}

impl LeftByOwner {
    /// An entry of this owner has left, or another owner has it now; 0: it was nobody's.
    #[inline]
    pub fn left(&self, owner: u16) {
        if (1..=OWNER_MAX).contains(&owner) {
            self.add(owner, 1);
        }
    }

    /// This number of the owner's entries have left.
    #[cold]
    pub fn add(&self, owner: u16, entries: u64) {
        let mut of = lock(&self.of);
        *of.entry(owner).or_default() += entries;
        self.all.store(self.all.load(Relaxed) + entries, Relaxed);
    }

    /// Takes an owner out, with how many have left, if all are worth a look.
    pub fn take(&self) -> Option<(u16, u64)> {
        if self.all.load(Relaxed) < LOOKED_AT {
            return None;
        }
        let mut of = lock(&self.of);
        let owner = *of.keys().next()?;
        let entries = of.remove(&owner)?;
        self.all.store(self.all.load(Relaxed) - entries, Relaxed);
        Some((owner, entries))
    }
}
