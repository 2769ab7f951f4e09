//! Entries leave so that others find room (Z1 to Z5).
//!
//! ```text
//! a key came, its segment is crowded    one or two entries go, which the policy chooses
//! a put finds no room for its key       one entry goes that stands where the key may stand
//! no memory for a long value            neighbouring extents go, until the value fits
//! none, and keys have all memory        entries of two segments go, until one segment can hold the rest
//! ```
//!
//! Each entry leaves as a removed key does. Then the put tries again. No put looks at more than some dozen entries.

use super::change::NoteEntry;
use super::entries::EntrySeen;
use super::evict::{EvictFor, Evictor, KeyPin, Sight, touches};
use super::face::Index;
use super::growth::Giving;
use super::seams::Nobody;
use super::segment::{Which, check_lengths};
use super::waits::ChangeWaits;
use super::whole::Table;
use crate::config::Evict;
use crate::faults::{Rule, in_order};
use crate::layout::extent::extent_bytes;
use crate::layout::hash::First;
use crate::layout::slot::{Key, Stored};
use crate::outcome::{EvictCounts, PutError};
use crate::region::{RegionError, TouchMap};
use std::sync::Arc;
use std::time::Duration;

/// The most entries that are evicted for a key that came: one more than came, so that the segment becomes less crowded.
const AHEAD_MAX: u32 = 2;
/// Entries that are evicted at a time so that a segment's memory can become a block of values: for a value that waits,
/// and ahead.
const GIVEN_AT_ONCE: u32 = 64;
const GIVEN_AHEAD: u32 = 8;
/// Extents that are evicted for a value before its put has to be tried again.
const EXTENTS_AT_ONCE: u32 = 64;

impl Index {
    /// The table, in which entries make room for others from now on, by this policy. Notes every key, which takes some
    /// 100 ns each. Nobody may change the table meanwhile.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for what clients note of their GETs.
    ///
    /// # Panics
    /// When the table evicts already.
    pub fn with_eviction(mut self, policy: Evict) -> Result<Index, RegionError> {
        self.table().begin_evicting(policy)?;
        self.evicts = true;
        Ok(self)
    }

    pub(super) fn evictor(&self) -> Option<&Evictor> {
        self.table().observers().evictor()
    }

    /// Counts of evicted entries.
    pub fn evictions(&self) -> EvictCounts {
        self.evictor().map_or_else(EvictCounts::default, Evictor::counts)
    }

    /// From now on clients note their GETs, for whoever drives the table. In a table that evicts, they do so anyway.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for it.
    pub(crate) fn begin_noting(&self) -> Result<(), RegionError> {
        if self.touches().is_none() {
            let touches = touches(self.geometry())?;
            self.table().observers().touches().get_or_init(|| touches);
        }
        Ok(())
    }

    /// The notes of clients' GETs, if clients make any.
    pub(crate) fn touches(&self) -> Option<&TouchMap> {
        let observers = self.table().observers();
        observers.evictor().map(Evictor::touches).or_else(|| observers.touches().get())
    }

    /// Notes that a client has read a key. Clients on shm do that by themselves. Does nothing where no reads are noted.
    pub(crate) fn note_read(&self, key: &[u8]) {
        if let Some(touches) = self.touches() {
            touches.note(self.geometry().hashed(key).first());
        }
    }

    /// Evicts entries of the segment into which a key with this hash came.
    pub(super) fn keep_room(&self, evictor: &Evictor, came: First) {
        for _ in 0..AHEAD_MAX {
            if !self.table().is_crowded(came)
                || !self.evict_next(evictor, || evictor.victim(came), EvictFor::Ahead)
            {
                break;
            }
        }
        self.keep_heap_room(evictor, came);
    }

    /// Evicts the entry that the policy names next. Returns whether there was one.
    fn evict_next(&self, evictor: &Evictor, victim: impl Fn() -> Option<First>, why: EvictFor) -> bool {
        /// Records of keys that have left, and others that cannot be evicted.
        const RECORDS_MAX: u32 = 4;
        for _ in 0..RECORDS_MAX {
            let Some(hash) = victim() else { return false };
            let entries = self.table().entries_of(hash);
            let gone = entries.iter().filter(|entry| self.evict(evictor, &entry.key, why)).count();
            if gone > 0 {
                return true;
            }
            // It was pinned meanwhile, or a thread has it.
            self.note_again(&entries);
        }
        false
    }

    /// Z1: has the policy note those of these entries that are still there. Another thread may have removed some.
    fn note_again(&self, entries: &[EntrySeen]) {
        // It is no change: it takes no turn.
        let note =
            |key| self.table().change(key, NoteEntry, Stored::default(), Nobody, &ChangeWaits::default());
        entries.iter().for_each(|entry| drop(note(&entry.key)));
    }

    /// Z3: evicts one entry from the slots that may have this key: the one that the policy values least. `false`: all
    /// are pinned, or their puts are started.
    pub(super) fn evict_beside(&self, evictor: &Evictor, key: &[u8]) -> bool {
        let mut beside = self.table().keys_beside(key);
        let hash = |key: &[u8]| self.geometry().hashed(key).first();
        let all = beside.len();
        // A started put keeps its slot (P1).
        let is_started = |key: &Key| self.started().is_some_and(|started| started.is_started(key));
        beside.retain(|key| !evictor.is_pinned(hash(key)) && !is_started(key));
        beside.sort_by_cached_key(|key| evictor.rank(hash(key)));
        // An entry that was pinned meanwhile stays, and another thread may have evicted one: the put tries again.
        let is_one_gone = beside.iter().any(|key| self.evict(evictor, key, EvictFor::Put));
        is_one_gone || !beside.is_empty() || all < self.geometry().window(0).slots as usize
    }

    /// Evicts an entry, unless it is pinned, or being changed. Returns whether it did.
    fn evict(&self, evictor: &Evictor, key: &[u8], why: EvictFor) -> bool {
        let is_gone = self.remove_if_free(key, Which::Unpinned) == Ok(true);
        if is_gone {
            evictor.count(why);
        }
        is_gone
    }

    // ---- memory of long values ------------------------------------------------------------------

    /// Evicts some extents if little memory is left. Returns whether more should follow.
    fn keep_heap_room(&self, evictor: &Evictor, by: First) -> bool {
        /// Entries without an extent that the policy may name before the next extent is evicted.
        const OTHERS_MAX: u32 = 4;
        let Some(extents) = self.table().extents().filter(|extents| extents.is_crowded()) else {
            return false;
        };
        for _ in 0..OTHERS_MAX {
            let Some(hash) = evictor.victim(by) else { break };
            let entries = self.table().entries_of(hash);
            let long = entries.iter().filter(|entry| entry.is_long);
            let gone = long.filter(|entry| self.evict(evictor, &entry.key, EvictFor::Heap)).count();
            if gone < entries.len() {
                self.note_again(&entries);
            }
            if gone > 0 && !extents.is_crowded() {
                return false;
            }
        }
        for _ in 0..OTHERS_MAX {
            let Some((hash, number)) = extents.next_to_go() else { return false };
            if hash != by && evictor.look(hash) == Sight::Unread {
                self.evict_extent(evictor, hash, number);
            }
        }
        extents.is_crowded()
    }

    /// Z5: has segments give memory for a block of values. Does a bounded part of that.
    fn give(&self, evictor: &Evictor, most: u32, victim: impl Fn(First) -> Option<First>) -> Giving {
        match self.table() {
            Table::One(_) => Giving::Nothing,
            Table::Many(growth) => {
                growth.give(most, &mut |by| self.evict_next(evictor, || victim(by), EvictFor::Heap))
            }
        }
    }

    /// A long value came, and little memory is left for others: evicts entries ahead. Entries that nobody has read go
    /// first.
    pub(super) fn give_ahead(&self, evictor: &Evictor, came: First) {
        if self.table().extents().is_some_and(|extents| extents.is_at_bound() && extents.is_crowded()) {
            self.give(evictor, GIVEN_AHEAD, |by| evictor.unread_victim(by, came));
        }
    }

    /// Evicts entries in idle time. Returns whether there is more to do.
    pub(super) fn tidy_evicting(&self) -> bool {
        const AT_ONCE: u64 = 16;
        let Some(evictor) = self.evictor() else { return false };
        if let Table::Many(growth) = self.table()
            && growth.is_to_give()
            && self.give(evictor, GIVEN_AT_ONCE, |by| evictor.victim(by)) == Giving::On
        {
            return true;
        }
        let (before, mut has_more) = (self.evictions().for_heap, true);
        // Each turn asks another policy.
        (0..AT_ONCE).for_each(|n| {
            let by = First(before.wrapping_add(n) << 24);
            has_more = has_more && self.keep_heap_room(evictor, by);
        });
        has_more && self.evictions().for_heap > before
    }

    /// Z4: there is no memory for an extent of this length. Evicts extents until as many bytes are free, or until it
    /// has looked at a bounded number. Returns how long to wait before the next try.
    ///
    /// # Errors
    /// `full` where no extent can go, [`PutError::Pinned`] where all are pinned.
    #[cold]
    pub(super) fn evict_for_extent(&self, len: usize, full: PutError) -> Result<Duration, PutError> {
        /// Extents that are looked at. Some may be pinned, or have no name yet.
        const LOOKS_MAX: u32 = 4096;
        let (Some(evictor), Some(extents)) = (self.evictor(), self.table().extents()) else {
            return Err(full);
        };
        let (geometry, now_ns) = (self.geometry(), self.table().clock().now_ns());
        if let Some(wait) = evictor.settles_in(now_ns) {
            return Ok(wait);
        }
        let (mut gone, mut looks, mut leaving) = (0, 0, false);
        while gone < EXTENTS_AT_ONCE && looks < LOOKS_MAX {
            let Some((hash, number)) = extents.next_to_go() else { break };
            looks += 1;
            let Some(bytes) = self.evict_extent(evictor, hash, number) else {
                leaving |= !evictor.is_pinned(hash);
                continue;
            };
            gone += 1;
            if evictor.freed(bytes) >= extent_bytes(len) {
                // Their memory is free when no reader can read it any more.
                let longest = geometry.heap().kept_for(geometry.grace(), geometry.extent_max() as u32);
                evictor.settle_until(now_ns + longest.as_nanos() as u64);
                break;
            }
        }
        if gone == 0 && !leaving {
            /// The pause while other threads evict.
            const AGAIN: Duration = Duration::from_micros(100);
            if extents.is_at_bound() {
                match self.give(evictor, GIVEN_AT_ONCE, |by| evictor.victim(by)) {
                    Giving::Done | Giving::On => return Ok(Duration::ZERO),
                    Giving::Waits => return Ok(AGAIN),
                    Giving::Nothing => {}
                }
            }
            evictor.count_refused();
            return Err(if looks == 0 { full } else { PutError::Pinned });
        }
        Ok(Duration::ZERO)
    }

    /// Evicts the key that names this extent, unless it is pinned. Returns the bytes of the extent if it did.
    fn evict_extent(&self, evictor: &Evictor, hash: First, number: u64) -> Option<u64> {
        let (key, len) = self.table().key_of_extent(hash, number)?;
        self.evict(evictor, &key, EvictFor::Heap).then(|| extent_bytes(len as usize))
    }

    // ---- pins -----------------------------------------------------------------------------------

    /// Pins a key that is there: as long as the pin is held, it is not evicted. `None`: the key is not there, and
    /// nothing is pinned. The entry still ends at its time, and a remove still removes it. In a table that does not
    /// evict, a pin changes nothing.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn pin(&self, key: &[u8]) -> Result<Option<KeyPin>, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        let hash = self.geometry().hashed(key).first();
        let pins = self.evictor().map_or_else(Arc::default, |evictor| Arc::clone(evictor.pins()));
        let (mut pin, mut is_there) = (None, false);
        // Z2
        in_order(
            Rule::PinFirst,
            (&mut pin, &mut is_there),
            |(pin, _)| **pin = Some(pins.pin(hash)),
            |(_, is_there)| {
                **is_there =
                    self.table().entries_of(hash).iter().any(|seen| !seen.is_hidden && *seen.key == *key)
            },
        );
        Ok(pin.filter(|_| is_there))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
