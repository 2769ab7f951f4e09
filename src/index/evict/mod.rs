//! Which entries go where room is needed (Z1 to Z5).
//!
//! Nothing here removes an entry: `evicting.rs` does, as whoever removes a key. A record of an entry is a hint, as a
//! noted time is: what counts is what stands in the table under the key's lock.
//!
//! There are as many policies as a table that grows may have segments, or one for some thousands of keys. Each has
//! the entries whose hashes end alike, so the entries of one are in one segment: a key that comes takes a place in
//! its own segment, from an entry of its own policy.

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

/// Keys of one policy in a table of one size, some.
const KEYS_OF_POLICY: u64 = 1 << 14;

/// Why an entry is to go.
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

/// Extents that go for a value.
#[derive(Debug, Default)]
struct HeapRun {
    /// Bytes of those that went for the next value.
    freed: u64,
    /// Until when what went for the last one may still be read.
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
    /// One that has no records yet.
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

    /// Z1: it left, and its lock is held.
    #[cold]
    pub fn left(&self, hash: First) {
        lock(self.policy_of(hash)).left(hash);
    }

    /// Its value was replaced, which counts as if it was read.
    #[cold]
    pub fn replaced(&self, hash: First) {
        self.touches.note(hash);
    }

    /// Takes the record of the entry out that goes next where a key with this hash has come, which is not that one.
    pub fn victim(&self, by: First) -> Option<First> {
        lock(self.policy_of(by)).victim(&mut |hash| if hash == by { Sight::Pinned } else { self.look(hash) })
    }

    /// Takes the record of the next entry out that nobody has read, and that is not the one that came.
    pub fn unread_victim(&self, by: First, came: First) -> Option<First> {
        lock(self.policy_of(by)).victim(&mut |hash| match self.look(hash) {
            Sight::Unread if hash != came => Sight::Unread,
            Sight::Unread | Sight::Read | Sight::Pinned => Sight::Pinned,
        })
    }

    /// What is seen of an entry since this was asked last.
    pub fn look(&self, hash: First) -> Sight {
        match self.touches.take(hash) {
            _ if self.is_pinned(hash) => Sight::Pinned,
            true => Sight::Read,
            false => Sight::Unread,
        }
    }

    /// How much there is for keeping an entry: a read counts for more than time.
    pub fn rank(&self, hash: First) -> (bool, Rank) {
        (self.touches.is_noted(hash), lock(self.policy_of(hash)).rank(hash))
    }

    /// How long what went for a long value may still be read.
    pub fn settles_in(&self, now_ns: u64) -> Option<Duration> {
        let settles_ns = lock(&self.run).settles_ns;
        (now_ns < settles_ns).then(|| Duration::from_nanos(settles_ns - now_ns))
    }

    /// So many bytes went for the next long value. Returns how many those are in all.
    pub fn freed(&self, bytes: u64) -> u64 {
        let mut run = lock(&self.run);
        run.freed += bytes;
        run.freed
    }

    /// Enough went for it. Until then it may still be read.
    pub fn settle_until(&self, settles_ns: u64) {
        *lock(&self.run) = HeapRun { freed: 0, settles_ns };
    }

    /// An entry has gone for this.
    pub fn count(&self, why: EvictFor) {
        let counter = match why {
            EvictFor::Ahead => &self.ahead,
            EvictFor::Put => &self.at_put,
            EvictFor::Heap => &self.for_heap,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A put was refused, because all that could make room for it are pinned.
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

    /// Whether no entry of a key with this hash may go (Z2).
    pub fn is_pinned(&self, hash: First) -> bool {
        !broken(Rule::PinLook) && self.pins.has(hash)
    }

    /// Who has pinned what.
    pub fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}
