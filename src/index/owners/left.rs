//! Counts of each owner's entries that have left one by one. Their notes are to be forgotten. A thread counts under the
//! key's lock. The lock in here is a leaf.

use crate::base::sync::{Mutex, lock};
use crate::layout::owners::OWNER_MAX;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Fewer entries than this, of all owners together, are not worth a look.
pub(in crate::index) const LOOKED_AT: u64 = 64;

/// Entries that have left, by owner.
#[derive(Debug, Default)]
pub(in crate::index) struct LeftByOwner {
    of: Mutex<FxHashMap<u16, u64>>,
    /// The sum over all owners. Relaxed: a hint, stored under the lock.
    all: AtomicU64,
}

impl LeftByOwner {
    /// Counts an entry of this owner that has left, or has gone to another owner; 0: nobody's.
    #[inline]
    pub fn left(&self, owner: u16) {
        if (1..=OWNER_MAX).contains(&owner) {
            self.add(owner, 1);
        }
    }

    /// Counts this number of the owner's entries.
    #[cold]
    pub fn add(&self, owner: u16, entries: u64) {
        let mut of = lock(&self.of);
        *of.entry(owner).or_default() += entries;
        self.all.store(self.all.load(Relaxed) + entries, Relaxed);
    }

    /// Takes out an owner and its count, if all together are worth a look.
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
