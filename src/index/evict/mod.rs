//! Which entries go where room is needed (Z1 to Z5).
//!
//! Nothing here removes an entry. `evicting.rs` removes it, as any key is removed. The record of an entry is a hint:
//! the table's slot decides, under the key's lock.
//!
//! There are as many policies as a table that grows may have segments, or one for some thousands of keys. A policy has
//! the entries whose hashes end alike, so all of its entries are in one segment. A key that comes takes the place of an
//! entry in its own segment, by that segment's policy.

mod clock;
mod pins;
mod policy;
mod records;
mod s3fifo;
mod sieve;
#[cfg(all(test, not(loom)))]
mod tests;

pub use pins::KeyPin;
pub(super) use pins::Pins;
pub use policy::{Policy, Rank, Sight};

use crate::base::sync::{Mutex, lock};
use crate::config::Evict;
use crate::faults::{Rule, broken};
use crate::layout::geometry::Geometry;
use crate::layout::hash::{DIRECTORY_BITS_MAX, First};
use crate::outcome::EvictCounts;
use crate::region::{RegionError, TouchMap};
use clock::ClockPolicy;
use s3fifo::S3FifoPolicy;
use sieve::SievePolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A policy that has no records yet.
pub fn policy(which: Evict) -> Box<dyn Policy> {
    match which {
        Evict::S3Fifo => Box::new(S3FifoPolicy::default()),
        Evict::Sieve => Box::new(SievePolicy::default()),
        Evict::Clock => Box::new(ClockPolicy::default()),
    }
}

/// About how many keys of a table of one size a policy has.
const KEYS_OF_POLICY: u64 = 1 << 14;

/// Why an entry is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictFor {
    /// To keep room free for keys.
    Ahead,
    /// A put found no room for its key.
    Put,
    /// For memory of values that do not fit their slots.
    Heap,
}

/// Chooses the entries that go.
#[derive(Debug)]
pub(super) struct Evictor {
    policies: Box<[Mutex<Box<dyn Policy>>]>,
    touches: TouchMap,
    pins: Arc<Pins>,
    ahead: AtomicU64,
    at_put: AtomicU64,
    for_heap: AtomicU64,
    refused: AtomicU64,
    run: Mutex<HeapRun>,
}

/// Extents that are evicted for one value.
#[derive(Debug, Default)]
struct HeapRun {
    /// Bytes of those that were evicted for the next value.
    freed: u64,
    /// Until when readers may still read what was evicted for the last value.
    settles_ns: u64,
}

/// Slots that a table may have for keys' homes.
fn slots_at_most(geometry: &Geometry) -> u64 {
    geometry.main_slots() * geometry.segments_max().max(1)
}

/// Memory for what clients note of their GETs of such a table.
///
/// # Errors
/// [`RegionError`] when there is none.
pub(super) fn touches(geometry: &Geometry) -> Result<TouchMap, RegionError> {
    TouchMap::make(slots_at_most(geometry))
}

impl Evictor {
    /// Makes an evictor that has no records yet.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for what clients note.
    pub fn new(geometry: &Geometry, which: Evict) -> Result<Evictor, RegionError> {
        let slots = slots_at_most(geometry);
        let parts = match geometry.grows() {
            true => geometry.segments_max(),
            false => slots / KEYS_OF_POLICY,
        };
        let parts = parts.clamp(1, 1 << 16).next_power_of_two();
        Ok(Evictor {
            policies: (0..parts).map(|_| Mutex::new(policy(which))).collect(),
            touches: touches(geometry)?,
            pins: Arc::default(),
            ahead: AtomicU64::new(0),
            at_put: AtomicU64::new(0),
            for_heap: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            run: Mutex::default(),
        })
    }

    /// What clients note of their GETs.
    pub fn touches(&self) -> &TouchMap {
        &self.touches
    }

    fn policy_of(&self, hash: First) -> &Mutex<Box<dyn Policy>> {
        const { assert!(DIRECTORY_BITS_MAX >= 16) };
        &self.policies[hash.directory() as usize & (self.policies.len() - 1)]
    }

    /// Z1: a key with this hash came, and its lock is held.
    #[cold]
    pub fn came(&self, hash: First) {
        lock(self.policy_of(hash)).came(hash);
    }

    /// Z1: a key with this hash left, and its lock is held.
    #[cold]
    pub fn left(&self, hash: First) {
        lock(self.policy_of(hash)).left(hash);
    }

    /// The value of a key with this hash was replaced. That counts as a read.
    #[cold]
    pub fn replaced(&self, hash: First) {
        self.touches.note(hash);
    }

    /// Takes out the record of the entry that the policy evicts next, where a key with the hash `by` has come. It is
    /// never that key's.
    pub fn victim(&self, by: First) -> Option<First> {
        lock(self.policy_of(by)).victim(&mut |hash| if hash == by { Sight::Pinned } else { self.look(hash) })
    }

    /// Takes out the record of the next entry that nobody has read. It is never that of the key that came.
    pub fn unread_victim(&self, by: First, came: First) -> Option<First> {
        lock(self.policy_of(by)).victim(&mut |hash| match self.look(hash) {
            Sight::Unread if hash != came => Sight::Unread,
            Sight::Unread | Sight::Read | Sight::Pinned => Sight::Pinned,
        })
    }

    /// Whether an entry was read since the last call, and whether it is pinned.
    pub fn look(&self, hash: First) -> Sight {
        match self.touches.take(hash) {
            _ if self.is_pinned(hash) => Sight::Pinned,
            true => Sight::Read,
            false => Sight::Unread,
        }
    }

    /// How much speaks for keeping an entry. A read counts for more than age.
    pub fn rank(&self, hash: First) -> (bool, Rank) {
        (self.touches.is_noted(hash), lock(self.policy_of(hash)).rank(hash))
    }

    /// How long readers may still read what was evicted for a long value.
    pub fn settles_in(&self, now_ns: u64) -> Option<Duration> {
        let settles_ns = lock(&self.run).settles_ns;
        (now_ns < settles_ns).then(|| Duration::from_nanos(settles_ns - now_ns))
    }

    /// Counts bytes that were evicted for the next long value. Returns their sum.
    pub fn freed(&self, bytes: u64) -> u64 {
        let mut run = lock(&self.run);
        run.freed += bytes;
        run.freed
    }

    /// Enough was evicted for the long value. Readers may read it until then.
    pub fn settle_until(&self, settles_ns: u64) {
        *lock(&self.run) = HeapRun { freed: 0, settles_ns };
    }

    /// Counts an entry that was evicted for this reason.
    pub fn count(&self, why: EvictFor) {
        let counter = match why {
            EvictFor::Ahead => &self.ahead,
            EvictFor::Put => &self.at_put,
            EvictFor::Heap => &self.for_heap,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a put that was refused, because every entry that could make room is pinned.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Records of entries, and of some that have left.
    pub fn records(&self) -> u64 {
        self.policies.iter().map(|policy| lock(policy).records() as u64).sum()
    }

    pub fn counts(&self) -> EvictCounts {
        let [ahead, at_put, for_heap, refused] = [&self.ahead, &self.at_put, &self.for_heap, &self.refused]
            .map(|count| count.load(Ordering::Relaxed));
        let records = self.policies.iter().map(|policy| lock(policy).entries() as u64).sum();
        EvictCounts { ahead, at_put, for_heap, refused, records, pinned: self.pins.len() as u64 }
    }

    // ---- pins -----------------------------------------------------------------------------------

    /// Whether an entry of a key with this hash is pinned (Z2).
    pub fn is_pinned(&self, hash: First) -> bool {
        !broken(Rule::PinLook) && self.pins.has(hash)
    }

    /// The pins of the table.
    pub fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}
