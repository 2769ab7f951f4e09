//! Which stripes an operation locks, and what their locks guard (L1, L2).

use super::notes::{Note, home_slot};
use super::search::MovePath;
use super::segment::Segment;
use super::stripes::{Locked, Stripe, StripeSet, add_stripe};
use crate::families;
use crate::faults::{Rule, kept, obey};
use crate::layout::chain;
use crate::layout::compare::Loadable;
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::Hashed;

impl Segment {
    /// Locks what a key's presence depends on: its primary window, and its other windows if the
    /// home's filter says that the key may be there. Returns whether it says so.
    #[inline(always)]
    pub(super) fn lock_key(&self, locked: &mut Locked<'_>, key: Hashed<'_>) -> bool {
        let primary = self.geometry.primary(key);
        Loadable::expect(&self.region, self.geometry.slot_word(primary.first));
        locked.lock_two(self.stripes_of_window(primary));
        let may_be_displaced =
            families::may_be_displaced(&self.geometry, key, self.slots().aux(primary.first));
        if may_be_displaced {
            locked.lock(self.stripes_of_key(key));
        }
        may_be_displaced
    }

    /// The stripes of all windows of a key.
    pub(super) fn stripes_of_key(&self, key: Hashed<'_>) -> StripeSet {
        let mut set = StripeSet::new();
        families::known_windows(&self.geometry, key).for_each(|window| self.add_window(&mut set, window));
        set
    }

    pub(super) fn add_window(&self, set: &mut StripeSet, window: Window) {
        self.stripes_of_window(window).into_iter().for_each(|number| add_stripe(set, number));
    }

    /// The stripes of a window: two, or twice the same.
    fn stripes_of_window(&self, window: Window) -> [usize; 2] {
        // A window has at most 64 slots, a stripe's group has 64. So the first and the last slot
        // name all stripes of the window.
        let last = SlotIx(window.end() - 1);
        [window.first, last].map(|slot| self.stripes.of(slot))
    }

    /// The stripes of a path's slots, and of the homes of the keys in them (L2). By their notes where there
    /// are some: L4 has the path checked again.
    pub(super) fn add_path(&self, set: &mut StripeSet, path: &MovePath) {
        for &slot in path {
            if slot.0 < self.geometry.main_slots() {
                obey(Rule::SlotLock, || add_stripe(set, self.stripes.of(slot)));
            }
            match self.notes.of(slot) {
                Note::Free => {}
                Note::AtHome(distance) => add_stripe(set, self.stripes.of(home_slot(slot, distance))),
                Note::Unknown | Note::Stuck | Note::Displaced => {
                    let occupant = self.slots().peek(slot).filter(|(_, key)| !key.is_empty());
                    let home = occupant.map(|(_, key)| self.home_slot(self.geometry.hashed(&key)));
                    home.into_iter().for_each(|home| add_stripe(set, self.stripes.of(home)));
                }
            }
        }
    }

    /// Locks the stripe of one main slot.
    pub(super) fn lock_slot(&self, slot: SlotIx) -> Locked<'_> {
        let mut locked = self.stripes.none();
        locked.lock_two([self.stripes.of(slot); 2]);
        locked
    }

    /// Locks the stripe of a home slot.
    pub(super) fn lock_home(&self, home: u64) -> Locked<'_> {
        self.lock_slot(self.geometry.window(home).first)
    }

    /// What the lock of a home guards besides slots (L2).
    pub(super) fn stripe<'l>(&self, locked: &'l mut Locked<'_>, home: u64) -> &'l mut Stripe {
        let stripe = locked.stripe(self.geometry.window(home).first);
        if !stripe.unread.is_empty() {
            self.read_register(stripe);
        }
        stripe
    }

    /// The main slot whose stripe guards `slot`, if `key` stands there.
    pub(super) fn guard_of(&self, slot: SlotIx, key: Hashed<'_>) -> SlotIx {
        if slot.0 < self.geometry.main_slots() { slot } else { self.home_slot(key) }
    }

    /// The main slot whose stripe guards `slot` (L1). For a block it goes by the block's owner, not
    /// by the key in the slot. `None` for a block that nobody uses. For assertions.
    pub(super) fn known_guard(&self, slot: SlotIx) -> Option<SlotIx> {
        match chain::block_of(&self.geometry, slot) {
            None => Some(slot),
            Some(block) => self.blocks.owner(block).map(|home| self.geometry.window(home).first),
        }
    }

    /// Whether the stripe of the main slot `guard` guards `slot`. For assertions.
    pub(super) fn is_guarded_by(&self, slot: SlotIx, guard: SlotIx) -> bool {
        // If a block is unlinked with a ghost in it, its next home guards that ghost.
        kept(Rule::BlockGhost, || self.known_guard(slot) == Some(guard))
    }

    /// Whether the holder of these locks may write the slot (L1). For assertions.
    pub(super) fn may_write(&self, locked: &Locked<'_>, slot: SlotIx) -> bool {
        let is_locked = || self.known_guard(slot).is_some_and(|guard| locked.covers(guard));
        locked.is_alone() || kept(Rule::SlotLock, || kept(Rule::BlockGhost, is_locked))
    }

    /// Whether the holder of these locks may insert, update, move or erase the key (L2). For
    /// assertions.
    pub(super) fn may_change(&self, locked: &Locked<'_>, key: Hashed<'_>) -> bool {
        kept(Rule::PathCheck, || locked.covers(self.home_slot(key)))
    }
}
