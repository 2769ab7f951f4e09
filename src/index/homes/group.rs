//! All keys of neighbouring homes at once. They go to another segment, or come from one.

use super::Homes;
use super::counters::count_all;
use super::grace::Trace;
use crate::faults::{Rule, disobey, in_order};
use crate::index::home_set::HomeSet;
use crate::index::slots::{Filling, GhostAfter, Locked, Note, Slots, Stripes, add_stripe};
use crate::layout::control::MOVE_COUNTERS;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::slot::Key;
use crate::placement::families;
use smallvec::SmallVec;
use std::ops::Range;

/// A key, and where it stands.
#[derive(Debug)]
pub(crate) struct KeyAt {
    pub slot: SlotIx,
    pub key: Key,
    first: First,
    home: u64,
}

impl KeyAt {
    pub fn home(&self) -> u64 {
        self.home
    }

    /// The key for a geometry of its table.
    pub fn hashed(&self, geometry: &Geometry) -> Hashed<'_> {
        geometry.hashed_to(&self.key, self.first)
    }
}

/// The free slots in the windows of neighbouring homes: at most 64 homes, and as many slots behind.
struct FreeSlots {
    first: u64,
    bits: u128,
}

impl FreeSlots {
    /// Takes the first one in a window.
    fn take_in(&mut self, window: Window) -> Option<SlotIx> {
        let shift = window.first.0 - self.first;
        // A window has at most 64 slots.
        let within = (self.bits >> shift) as u64 & (u64::MAX >> (64 - window.slots));
        if within == 0 {
            return None;
        }
        let bit = shift + u64::from(within.trailing_zeros());
        self.bits &= !(1 << bit);
        Some(SlotIx(self.first + bit))
    }
}

impl Homes {
    /// The slots of the windows of these homes.
    fn slots_of(&self, homes: HomeSet) -> Range<u64> {
        homes.ends().map_or(0..0, |(first, last)| self.slots_of_step(&(first..last + 1)))
    }

    /// Locks these homes.
    pub fn lock_homes(&self, homes: HomeSet) -> Locked<'_> {
        self.slots.lock(self.slots.stripes_of_all(self.slots_of(homes)))
    }

    /// Locks these homes, and every slot that a key of them is in. Returns the keys that `wanted` names.
    pub fn lock_keys_of(
        &self,
        locked: &mut Locked<'_>,
        homes: HomeSet,
        wanted: impl Fn(Hashed<'_>) -> bool,
    ) -> Vec<KeyAt> {
        let geometry = self.geometry();
        let range = self.slots_of(homes);
        let mut set = self.slots.stripes_of_all(range.clone());
        let mut displaced: SmallVec<[SlotIx; 16]>;
        loop {
            locked.lock(set.clone());
            displaced = SmallVec::new();
            // C3: of a home without a filter bit, no key is displaced.
            for home in self.slots.with_displaced_locked(locked, homes).iter() {
                displaced.extend(self.stripe(locked, home).displaced_slots(home));
            }
            let guards = || displaced.iter().filter(|slot| slot.0 < geometry.main_slots());
            if guards().all(|&slot| locked.covers(slot)) {
                break;
            }
            guards().for_each(|&slot| add_stripe(&mut set, self.slots.stripe_of(slot)));
        }
        let mut keys = Vec::with_capacity(homes.len() as usize);
        let mut occupied = self.slots.occupied(&range);
        let near = std::iter::from_fn(|| {
            let next = (occupied != 0).then(|| SlotIx(range.start + u64::from(occupied.trailing_zeros())));
            occupied &= occupied.wrapping_sub(1);
            next
        });
        let is_further = |slot: &SlotIx| !range.contains(&slot.0) && !self.slots.header(*slot).is_free();
        for slot in near.chain(displaced.into_iter().filter(is_further)) {
            self.slots.reader().with_key(slot, |key| {
                let hashed = geometry.hashed(key);
                if homes.contains(hashed.home()) && wanted(hashed) {
                    let (first, home) = (hashed.first(), hashed.home());
                    keys.push(KeyAt { slot, key: Key::from_slice(key), first, home });
                }
            });
        }
        keys
    }

    /// Copies keys of these homes from the slots of another segment into free slots of their primary windows. Returns
    /// those that find no free slot.
    pub fn put_copies_free<'k>(&self, from: &Slots, homes: HomeSet, keys: &'k [KeyAt]) -> Vec<&'k KeyAt> {
        if keys.is_empty() {
            return Vec::new();
        }
        let range = self.slots_of(homes);
        let locked = self.slots.lock(self.slots.stripes_of_all(range.clone()));
        let mut free = FreeSlots { first: range.start, bits: self.slots.free_among(&range) };
        let mut left = Vec::new();
        for at in keys {
            let window = self.geometry().window(at.home);
            let Some(slot) = free.take_in(window) else {
                left.push(at);
                continue;
            };
            let note = Note::AtHome((slot.0 - window.first.0) as u8);
            let copy = (Filling::Copy(from.words(at.slot)), GhostAfter::Stays);
            self.slots.fill(&locked, slot, copy, note);
        }
        let copied = (keys.len() - left.len()) as u64;
        in_order(
            Rule::CopiesCame,
            &self.counters,
            |counters| counters.came(copied),
            |counters| {
                count_all(&counters.mine().inserts, copied);
                // Other threads may go on.
                disobey(Rule::CopiesCame, || {
                    self.slots.region().load(0);
                });
            },
        );
        left
    }

    /// Frees the slots of keys of these homes that were copied to another segment. The slots have room for their
    /// ghosts.
    pub fn vacate_all(&self, locked: &mut Locked<'_>, gone: &[KeyAt]) {
        if gone.is_empty() {
            return;
        }
        // M4: one count for all of them.
        let counters = gone.iter().fold(0u64, |counters, at| counters | 1 << (at.home % MOVE_COUNTERS));
        in_order(
            Rule::CountBeforeErase,
            &mut *locked,
            |_| self.count_moves((0..MOVE_COUNTERS).filter(|home| counters >> home & 1 == 1)),
            |locked| {
                for at in gone {
                    let nothing = (Filling::Nothing, GhostAfter::Of(at.first.ghost()));
                    self.slots.fill(locked, at.slot, nothing, Note::Free);
                }
            },
        );
        self.counters.left(gone.len() as u64);
        self.push_ghosts(gone);
        for at in gone {
            let key = at.hashed(self.geometry());
            if !self.geometry().primary(key).contains(at.slot) {
                self.linger(locked, at.home, families::filter_bit(self.geometry(), key), at.slot);
            }
        }
        for at in gone.iter().filter(|at| at.slot.0 >= self.geometry().main_slots()) {
            // A later key may have filled the slot of an earlier one.
            if self.slots.header(at.slot).is_free() {
                self.left_slot_of_home(locked, at.slot, at.home);
            }
        }
    }

    /// Queues the ghosts of these keys, those of one stripe together.
    fn push_ghosts(&self, gone: &[KeyAt]) {
        let due_ns = self.grace.due_ns(Rule::GhostGrace);
        let mut together: Option<(SlotIx, u64)> = None;
        for at in gone {
            if at.slot.0 >= self.geometry().main_slots() {
                let guard = self.slots.guard_of(at.slot, at.hashed(self.geometry()));
                self.push_trace(due_ns, Trace::Ghost { slot: at.slot, guard });
                continue;
            }
            let first = Stripes::first_of_group(at.slot);
            let slots = 1 << (at.slot.0 - first.0);
            match &mut together {
                Some((of, all)) if *of == first => *all |= slots,
                _ => {
                    let before = together.replace((first, slots));
                    before.inspect(|&(first, slots)| self.push_trace(due_ns, Trace::Ghosts { first, slots }));
                }
            }
        }
        together.inspect(|&(first, slots)| self.push_trace(due_ns, Trace::Ghosts { first, slots }));
    }
}
