//! Homing: after a delete, displaced keys come back into their primary windows.

use super::*;

/// Displaced keys that one delete may bring home. Each takes the slot that the one before left.
const HOMINGS_MAX: usize = 4;

impl Index {
    /// Moves a displaced key home into the free slot `free`, then another into the slot that this
    /// one left, and so on.
    pub(super) fn bring_home(&self, mut free: SlotIx) {
        if !families::homes_on_delete(&self.geometry) {
            return;
        }
        for _ in 0..HOMINGS_MAX {
            if free.0 >= self.geometry.main_slots() {
                return;
            }
            let Some(left) = self.homes_around(free).find_map(|home| self.bring_one_home(home, free)) else {
                return;
            };
            free = left;
        }
    }

    /// Homes whose primary window contains `slot` and whose filter has a bit. No lock is held, so
    /// this is a guess.
    pub(super) fn homes_around(&self, slot: SlotIx) -> impl Iterator<Item = u64> {
        let bucket = self.geometry.home_of_slot(slot);
        let window_buckets = u64::from(self.geometry.layout().window_buckets);
        let last = bucket.min(self.geometry.homes() - 1);
        (bucket.saturating_sub(window_buckets - 1)..=last).filter(|&home| {
            let aux = self.slots().header(self.geometry.window(home).first).aux;
            families::names_displaced(&self.geometry, aux)
        })
    }

    /// Moves a displaced key of `home` into `free`. Returns the slot that it left, or `None` if no
    /// key was moved.
    pub(super) fn bring_one_home(&self, home: u64, free: SlotIx) -> Option<SlotIx> {
        let home_slot = self.geometry.window(home).first;
        let candidates: SmallVec<[SlotIx; 4]> = {
            let mut locked = self.lock_home(home);
            let entries = self.stripe(&mut locked, home).displaced(home).iter();
            entries
                .filter_map(|e| if let DisplacedAt::At(slot) = e.place { Some(slot) } else { None })
                .collect()
        };
        candidates.into_iter().find(|&from| {
            let path = MovePath::from_slice(&[from, free]);
            let mut set = StripeSet::from_slice(&[self.stripes.of(home_slot)]);
            self.add_path(&mut set, &path);
            let mut locked = self.stripes.lock(set);
            let still_there = self
                .stripe(&mut locked, home)
                .displaced(home)
                .iter()
                .any(|e| e.place == DisplacedAt::At(from));
            if !still_there || !self.still_good(&locked, &path) {
                return false;
            }
            self.move_along(&mut locked, &path, |locked| self.vacate(locked, from));
            self.left_slot_of_home(&mut locked, from, home);
            count(&self.counters.mine().homings);
            true
        })
    }
}
