//! Homing: after a delete, displaced keys come back into their primary windows.

use super::Moves;
use super::search::MovePath;
use crate::index::home_set::HomeSet;
use crate::index::homes::count;
use crate::index::slots::{DisplacedAt, StripeSet};
use crate::layout::geometry::SlotIx;
use crate::placement::families;
use std::ops::Range;

/// Displaced keys that one delete may bring home. Each takes the slot that the one before left.
const HOMINGS_MAX: usize = 4;

impl Moves {
    /// Moves a displaced key home into the free slot `free`, then another into the slot that this
    /// one left, and so on.
    pub fn bring_home(&self, mut free: SlotIx) {
        if !families::homes_on_delete(self.geometry()) {
            return;
        }
        for _ in 0..HOMINGS_MAX {
            if free.0 >= self.geometry().main_slots() {
                return;
            }
            match self.bring_any_home(free) {
                Some(left) => free = left,
                None => return,
            }
        }
    }

    /// Brings keys home into many free slots, mostly in increasing order. Looks at each home around them once.
    pub fn bring_all_home(&self, free: impl Iterator<Item = SlotIx>) {
        if !families::homes_on_delete(self.geometry()) {
            return;
        }
        // The homes before `looked_to` were looked at. `last` is the last of them that may have a displaced key.
        let (mut looked_to, mut last) = (None, None);
        for slot in free.filter(|slot| slot.0 < self.geometry().main_slots()) {
            let around = self.homes_around(slot);
            let from = looked_to.unwrap_or(around.start).max(around.start);
            if from < around.end {
                let displaced = self.slots().with_displaced(HomeSet::of(from..around.end));
                last = displaced.ends().map(|(_, last)| last).or(last);
            }
            looked_to = Some(from.max(around.end));
            if last.is_some_and(|last| last >= around.start) {
                self.bring_home(slot);
            }
        }
    }

    /// Moves a displaced key of any home around into `free`. Returns the slot that it left.
    fn bring_any_home(&self, free: SlotIx) -> Option<SlotIx> {
        // No lock is held, so the filters are a guess.
        let homes = self.slots().with_displaced(HomeSet::of(self.homes_around(free)));
        homes.iter().find_map(|home| self.bring_one_home(home, free))
    }

    /// Homes whose primary window contains `slot`.
    fn homes_around(&self, slot: SlotIx) -> Range<u64> {
        let bucket = self.geometry().home_of_slot(slot);
        let window_buckets = u64::from(self.geometry().layout().window_buckets);
        bucket.saturating_sub(window_buckets - 1)..self.geometry().homes().min(bucket + 1)
    }

    /// Moves a displaced key of `home` into `free`. Returns the slot that it left, or `None` if no
    /// key was moved.
    pub fn bring_one_home(&self, home: u64, free: SlotIx) -> Option<SlotIx> {
        let home_slot = self.geometry().window(home).first;
        let mut locked = self.slots().lock_ends(home_slot, free);
        let candidates = self.homes.stripe(&mut locked, home).displaced_slots(home);
        candidates.into_iter().find(|&from| {
            // The key's home is locked, and so are the blocks of its chain.
            if from.0 < self.geometry().main_slots() && !locked.covers(from) {
                let all = [home_slot, free, from].map(|slot| self.slots().stripe_of(slot));
                locked.lock(StripeSet::from_slice(&all));
            }
            let still_there = self
                .homes
                .stripe(&mut locked, home)
                .displaced(home)
                .iter()
                .any(|e| e.place == DisplacedAt::At(from));
            let path = MovePath::from_slice(&[from, free]);
            let movers = [self.slots().reader().hash_in(from)];
            // A key that is about to go to another segment stays. If it moved here, it would leave a ghost in its slot,
            // which would keep a key there from being moved (M3).
            if !still_there
                || self.homes.share().may_go(movers[0])
                || !self.still_good(&locked, &path, &movers)
            {
                return false;
            }
            self.move_along(&mut locked, &path, &movers, |locked| self.homes.vacate(locked, from, movers[0]));
            self.homes.left_slot_of_home(&mut locked, from, home);
            count(&self.homes.counters().mine().homings);
            true
        })
    }
}
