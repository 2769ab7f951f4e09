//! Changes and idle time carry splits and merges out.

use super::Growth;
use super::pace::{HURRY_AT, LOOK_EVERY, PAIRS_LOOKED_AT, PRESS_ON_AT};
use super::pairs::{Driven, Pair};
use crate::base::sync::lock;
use crate::index::homes::WaitingTrace;
use crate::index::segment::{Segment, WAITS_MAX};
use crate::index::share::PairRole;
use crate::index::waits::{ChangeWait, ChangeWaits, LateSplit};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Growth {
    /// Most inserts find that nothing is to be done. They should find that soon.
    #[inline(always)]
    pub(super) fn after_insert(&self, segment: &Segment, guard: &Guard, waits: &ChangeWaits) {
        let inserts = segment.homes().counters().mine().inserts.load(Relaxed);
        if self.under_way.load(Relaxed) > 0 || inserts.is_multiple_of(LOOK_EVERY) {
            self.look_after_insert(segment, guard, (inserts, waits));
        }
    }

    #[inline(never)]
    fn look_after_insert(&self, segment: &Segment, guard: &Guard, (inserts, waits): (u64, &ChangeWaits)) {
        let share = segment.share().get();
        if share.role != PairRole::Whole && segment.len() >= self.share_of_design(HURRY_AT) {
            self.drive_own(segment, guard, waits);
        } else if self.under_way.load(Relaxed) > 0 {
            self.drive_oldest(guard, self.pace.homes_per_insert);
        }
        if share.role == PairRole::Whole && inserts.is_multiple_of(LOOK_EVERY) {
            let keys = segment.len();
            if keys < self.soon_split_at(share) || self.stock.is_awaited(share.depth + 1) {
                return;
            }
            if keys >= self.split_at(share) && !self.was_refused() {
                // A put that needs the split reports the error.
                let _ = self.begin_split(segment);
            }
        }
    }

    #[inline(always)]
    pub(super) fn after_remove(&self, segment: &Segment, guard: &Guard) {
        let removes = segment.homes().counters().mine().removes.load(Relaxed);
        if self.under_way.load(Relaxed) > 0 || removes.is_multiple_of(LOOK_EVERY) {
            self.look_after_remove(segment, guard, removes);
        }
    }

    #[inline(never)]
    fn look_after_remove(&self, segment: &Segment, guard: &Guard, removes: u64) {
        let share = segment.share().get();
        if self.under_way.load(Relaxed) > 0 {
            self.drive_oldest(guard, self.pace.homes_per_remove);
        }
        if share.role == PairRole::Whole
            && share.depth > 0
            && removes.is_multiple_of(LOOK_EVERY)
            && segment.len() < self.merge_at(share)
        {
            self.begin_merge(segment, guard, self.merge_at(share));
        }
    }

    /// Carries out a part of the split of a segment that is nearly full.
    #[cold]
    fn drive_own(&self, segment: &Segment, guard: &Guard, waits: &ChangeWaits) {
        let Some(pair) = self.pair_of(segment) else { return };
        self.drive(&pair, self.pace.homes_per_insert, guard);
        if segment.len() >= self.share_of_design(PRESS_ON_AT) {
            let split = LateSplit { memory: segment.memory(), waits: 0 };
            self.press_on_once(split, guard, waits);
        }
    }

    /// Carries out a part of the oldest pair that can go on. Returns whether there was one.
    #[cold]
    pub(super) fn drive_oldest(&self, guard: &Guard, homes: u32) -> bool {
        let rest_ns = self.all_rest_until_ns.load(Relaxed);
        if rest_ns > 0 && self.grace.clock().now_ns() < rest_ns {
            return false;
        }
        let mut taken = 0;
        for _ in 0..self.under_way.load(Relaxed).min(PAIRS_LOOKED_AT) {
            let Some(pair) = lock(&self.pairs).nth(taken) else { return false };
            match self.drive(&pair, homes, guard) {
                Driven::On | Driven::Ended => return true,
                Driven::Taken => taken += 1,
                // A pair that waits holds up no other.
                Driven::Waits => lock(&self.pairs).put_last(&pair),
            }
        }
        let pairs = lock(&self.pairs);
        self.all_rest_until_ns.store(pairs.rest_until_ns(), Relaxed);
        false
    }

    /// Notes that a put waits for this pair: the next step tries all homes that are left.
    pub(super) fn urge(&self, pair: &Pair) {
        pair.rest_until(0);
        self.all_rest_until_ns.store(0, Relaxed);
    }

    /// Goes on with a split that inserts are about to overtake, after a wait. The insert that has found it so is made, and
    /// is answered when the split has ended, or has waited for ghosts often enough.
    #[cold]
    pub fn press_on(&self, waits: &ChangeWaits) {
        if let Some(split) = waits.with(|state| state.split.take()) {
            self.press_on_once(split, &epoch::pin(), waits);
        }
    }

    /// Drives the split as far as it goes. Where keys cannot be moved, the insert waits for ghosts to go.
    fn press_on_once(&self, split: LateSplit, guard: &Guard, waits: &ChangeWaits) {
        if split.waits == WAITS_MAX {
            return;
        }
        // (Another segment may have the memory by now. Then its split goes on.)
        let Some(pair) = lock(&self.pairs).of(split.memory).cloned() else { return };
        self.urge(&pair);
        loop {
            match self.drive(&pair, self.pace.homes_per_tidy, guard) {
                Driven::On => {}
                Driven::Ended => return,
                Driven::Waits | Driven::Taken => break,
            }
        }
        let Some(due_ns) = self.grace.last_due_ns() else { return };
        waits.with(|state| state.split = Some(LateSplit { waits: split.waits + 1, ..split }));
        waits.begin(ChangeWait::Readers { due_ns });
    }

    /// Waits until all present traces are gone. `false` when there are none.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(super) fn wait_for_grace(&self) -> bool {
        let Some(due_ns) = self.grace.last_due_ns() else { return false };
        self.sleep(ChangeWait::Readers { due_ns });
        self.waited(ChangeWait::Readers { due_ns });
        true
    }

    /// Takes away up to `most` traces that are due.
    #[inline]
    pub fn reap(&self, most: usize) {
        for _ in 0..most {
            let Some((due_ns, waiting)) = self.grace.pop_due() else { return };
            self.take_away(due_ns, waiting);
        }
    }

    fn take_away(&self, due_ns: u64, waiting: WaitingTrace) {
        let guard = epoch::pin();
        let segment = self.live.get(waiting.memory, &guard);
        // A segment that was merged away has no traces any more.
        if let Some(segment) = segment.filter(|s| s.geometry().incarnation() == waiting.incarnation) {
            segment.homes().take_away(due_ns, waiting.trace);
        }
    }

    /// Takes away what is due and drives pairs. Returns how long until there is more to do.
    pub fn tidy(&self) -> Option<Duration> {
        self.reap(usize::MAX);
        if self.stock.maker().is_none() {
            while self.give_surplus_back() {}
        }
        let is_busy =
            self.under_way.load(Relaxed) > 0 && self.drive_oldest(&epoch::pin(), self.pace.homes_per_tidy);
        // Entries for the next doubling, a few at a time.
        let filled = lock(&self.directory).fill();
        if is_busy || filled.is_ok_and(|is_whole| !is_whole) {
            return Some(Duration::ZERO);
        }
        /// The time until the next try of a pair that waits for room or for another thread.
        const AGAIN: Duration = Duration::from_millis(1);
        let next = self.grace.until_next();
        if self.under_way.load(Relaxed) == 0 {
            next
        } else {
            Some(next.map_or(AGAIN, |next| next.min(AGAIN)))
        }
    }
}
