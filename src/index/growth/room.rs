//! A put that finds no room in its segment.

use super::Growth;
use super::directory::entry_word;
use super::pairs::{Driven, NoSplit};
use crate::base::sync::lock;
use crate::index::refusals::NoPath;
use crate::index::segment::{Segment, WAITS_MAX};
use crate::layout::hash::{First, Hashed};
use crate::layout::segment;
use crate::outcome::PutError;
use crossbeam_epoch::{self as epoch, Guard};
use std::time::Duration;

/// How a put that found no room waits for it.
#[derive(Debug, Default)]
pub(super) struct RoomWait {
    waits: u32,
    /// The number of waits for another thread.
    naps: u32,
    /// Waiting makes no room: no slot of the segment is free, or another put has just waited in vain.
    is_hopeless: bool,
    /// The failed search that a further one would repeat.
    next: Option<NoPath>,
    searched: Option<NoPath>,
}

impl RoomWait {
    /// Notes that this segment has no room for a key, and cannot be split now.
    #[cold]
    pub(super) fn begin(&mut self, growth: &Growth, segment: &Segment, key: Hashed<'_>, no_split: &NoSplit) {
        let NoPath { from, room_made } =
            NoPath::of(segment.geometry(), key, segment.homes().counters().room_made());
        let from = from ^ u64::from(segment.memory()) << 32 ^ u64::from(segment.geometry().incarnation());
        let now = NoPath { from, room_made };
        // Room that was made since the search began is not missed: `room_made` was loaded before the search.
        self.searched = self.next.replace(now).filter(|&before| before == now);
        self.is_hopeless = !no_split.is_busy()
            && (segment.homes().has_no_free_slot()
                || growth.refusals.know(now)
                || segment.would_leave_search_out());
    }
}

impl Growth {
    /// Whether the segment of keys with this hash has more keys than its design load, and cannot be split, because the
    /// table has all the memory that it may have.
    pub fn is_crowded(&self, hash: First) -> bool {
        let entry = entry_word(&self.region, &self.geometry, hash.directory());
        let guard = epoch::pin();
        let segment = self.live.get(segment::memory(entry), &guard);
        !segment::is_paired(entry) && segment.is_some_and(Segment::is_crowded) && self.is_at_bound()
    }

    fn is_at_bound(&self) -> bool {
        !lock(&self.memory).has_any(self.geometry.segments_max()) && !self.stock.has_any()
    }

    /// Makes room for a key by a split of its segment, which has none. Returns why that is not possible now.
    #[cold]
    pub(super) fn make_room(&self, segment: &Segment, guard: &Guard) -> Option<NoSplit> {
        let Some(pair) = self.pair_of(segment) else {
            // The memory of a merged segment need not be asked of the system.
            let is_refused = self.was_refused() && lock(&self.memory).free.is_empty();
            return if is_refused { Some(NoSplit::Memory) } else { self.begin_split(segment).err() };
        };
        self.give_up_merge(&pair, segment);
        self.urge(&pair);
        matches!(self.drive(&pair, self.pace.homes_per_tidy, guard), Driven::Waits | Driven::Taken)
            .then_some(NoSplit::Busy)
    }

    /// Waits for ghosts to go, if there is no other way: then keys can be moved.
    #[cold]
    pub(super) fn wait_for_room(&self, no_split: NoSplit, wait: &mut RoomWait) -> Result<(), PutError> {
        if matches!(no_split, NoSplit::Making) && self.pace.waits_for_memory {
            drop(lock(&self.making));
            return Ok(());
        }
        let is_busy = no_split.is_busy();
        // A table that evicts waits for no ghosts, and for no memory.
        let may_wait = is_busy && !matches!(no_split, NoSplit::Coming) || self.observers.evictor().is_none();
        if may_wait
            && !wait.is_hopeless
            && wait.waits < if is_busy { self.pace.split_waits_max } else { WAITS_MAX }
        {
            if self.wait_for_grace() {
                wait.waits += 1;
                return Ok(());
            }
            if is_busy && wait.naps < self.pace.naps_max {
                // Another thread works.
                wait.naps += u32::from(self.grace.until_next().is_none());
                std::thread::sleep(Duration::from_micros(50));
                return Ok(());
            }
        }
        if let Some(searched) = wait.searched {
            self.refusals.remember(searched);
        }
        let counts = self.counts();
        match no_split {
            NoSplit::Busy | NoSplit::Making | NoSplit::Coming | NoSplit::Limit => {
                Err(PutError::Full { keys: counts.keys, slots: counts.slots, bytes_max: 0, heap_bytes: 0 })
            }
            NoSplit::Bound => {
                let heap = self.extents.as_ref().map(|extents| extents.counts()).unwrap_or_default();
                Err(PutError::Full {
                    keys: counts.keys,
                    slots: counts.slots,
                    bytes_max: self.geometry.slots_end(),
                    heap_bytes: heap.open_blocks * heap.block_bytes,
                })
            }
            NoSplit::Memory => Err(PutError::NoMemory { keys: counts.keys, bytes: self.segment_bytes() }),
        }
    }
}
