//! A put that finds no room in its segment.

use super::Growth;
use super::directory::entry_word;
use super::pace::TRIES_MAX;
use super::pairs::{Driven, NoSplit};
use crate::base::sync::{lock, nap};
use crate::index::news::News;
use crate::index::refusals::NoPath;
use crate::index::segment::{Segment, WAITS_MAX};
use crate::index::waits::{ChangeWait, RoomWait};
use crate::layout::hash::{First, Hashed};
use crate::layout::segment;
use crate::outcome::PutError;
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering::Relaxed;

impl Growth {
    /// Sleeps until this is over, or may be.
    #[cold]
    pub fn sleep(&self, wait: ChangeWait) {
        match wait {
            ChangeWait::Readers { due_ns } => self.grace.clock().sleep_until(due_ns),
            ChangeWait::Thread => nap(),
            ChangeWait::Maker => drop(lock(&self.making)),
            ChangeWait::Memory { .. } | ChangeWait::Decided => {}
        }
    }

    /// To be called after a wait.
    pub fn waited(&self, wait: ChangeWait) {
        match wait {
            ChangeWait::Readers { .. } => {
                self.done.waits.fetch_add(1, Relaxed);
                self.reap(usize::MAX);
            }
            ChangeWait::Thread | ChangeWait::Maker | ChangeWait::Memory { .. } | ChangeWait::Decided => {}
        }
    }

    /// What changes may wait for, when it is there.
    pub fn news(&self) -> &News {
        self.budget.news()
    }

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

    /// Notes that this segment has no room for a key, and cannot be split now.
    #[cold]
    pub(super) fn finds_no_room(
        &self,
        wait: &mut RoomWait,
        segment: &Segment,
        key: Hashed<'_>,
        no_split: &NoSplit,
    ) {
        let NoPath { from, room_made } =
            NoPath::of(segment.geometry(), key, segment.homes().counters().room_made());
        let from = from ^ u64::from(segment.memory()) << 32 ^ u64::from(segment.geometry().incarnation());
        let now = NoPath { from, room_made };
        // Room that was made since the search began is not missed: `room_made` was loaded before the search.
        wait.searched = wait.next.replace(now).filter(|&before| before == now);
        wait.is_hopeless = !no_split.is_busy()
            && (segment.homes().has_no_free_slot()
                || self.refusals.know(now)
                || segment.would_leave_search_out());
    }

    /// What a put waits for that has found no room: for ghosts to go, if there is no other way. Then keys can be moved.
    ///
    /// # Errors
    /// Waiting makes no room, or has made none so far.
    #[cold]
    pub(super) fn wait_for_room(
        &self,
        no_split: NoSplit,
        wait: &mut RoomWait,
    ) -> Result<ChangeWait, PutError> {
        wait.tries += 1;
        if wait.tries > TRIES_MAX {
            return Err(PutError::Busy { rounds: TRIES_MAX });
        }
        if matches!(no_split, NoSplit::Making) && self.pace.waits_for_memory {
            return Ok(ChangeWait::Maker);
        }
        let is_busy = no_split.is_busy();
        // A table that evicts waits for no ghosts, and for no memory.
        let may_wait = is_busy && !matches!(no_split, NoSplit::Coming) || self.observers.evictor().is_none();
        if may_wait
            && !wait.is_hopeless
            && wait.waits < if is_busy { self.pace.split_waits_max } else { WAITS_MAX }
        {
            if let Some(due_ns) = self.grace.last_due_ns() {
                wait.waits += 1;
                return Ok(ChangeWait::Readers { due_ns });
            }
            if is_busy && wait.naps < self.pace.naps_max {
                // Another thread works.
                wait.naps += u32::from(self.grace.until_next().is_none());
                return Ok(ChangeWait::Thread);
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
