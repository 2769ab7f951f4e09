//! A home's keys: one comes to a free slot, one goes, and which there are.

use super::Homes;
use super::counters::count;
use crate::cores::Cores;
use crate::families;
use crate::index::slots::{Locked, SlotWritten, StripeSet, add_stripe};
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::{Key, Stored};
use std::ops::Range;

/// Slots that a thread looks at before it takes the next ones.
const PIECE: u64 = 1 << 13;

impl Homes {
    /// Puts a new key into a slot that is free.
    #[inline(always)]
    pub fn place(
        &self,
        locked: &mut Locked<'_>,
        slot: SlotIx,
        key: Hashed<'_>,
        value: Stored<'_>,
    ) -> SlotWritten {
        self.name_displaced(locked, slot, key);
        let written = self.slots.rewrite(locked, slot, Some(key), value);
        count(&self.counters.mine().inserts);
        written
    }

    /// Frees the slot of a key that is removed (M6).
    pub fn erase(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>) -> SlotWritten {
        debug_assert!(self.slots.may_change(locked, key), "L2");
        let written = self.slots.rewrite(locked, slot, None, Stored::default());
        if !self.geometry().primary(key).contains(slot) {
            self.linger(locked, key.home(), families::filter_bit(self.geometry(), key), slot);
        }
        self.left_slot_of_home(locked, slot, key.home());
        written
    }

    /// Frees the slots of keys of a home that were copied to another segment, whose slots have room for their
    /// ghosts.
    pub fn vacate_all(&self, locked: &mut Locked<'_>, home: u64, gone: &[(SlotIx, Key)]) {
        for (slot, key) in gone {
            let key = self.geometry().hashed(key);
            self.vacate(locked, *slot, key);
            self.counters.left();
            if !self.geometry().primary(key).contains(*slot) {
                self.linger(locked, home, families::filter_bit(self.geometry(), key), *slot);
            }
        }
        for (slot, _) in gone {
            // An earlier one may have been filled by a later one.
            if self.slots.header(*slot).is_free() {
                self.left_slot_of_home(locked, *slot, home);
            }
        }
    }

    /// Locks a home and every slot that a key of it is in. Returns these slots and keys.
    pub fn lock_keys_of(&self, locked: &mut Locked<'_>, home: u64) -> Vec<(SlotIx, Key)> {
        let (geometry, window) = (self.geometry(), self.geometry().window(home));
        let mut set = StripeSet::new();
        self.slots.add_window(&mut set, window);
        loop {
            locked.lock(set.clone());
            let displaced = self.stripe(locked, home).displaced_slots(home);
            let guards = || displaced.iter().filter(|slot| slot.0 < geometry.main_slots());
            if guards().all(|&slot| locked.covers(slot)) {
                let all =
                    window.iter().chain(displaced.iter().copied().filter(|&slot| !window.contains(slot)));
                let occupants = all.map(|slot| (slot, self.slots.occupant(slot).1));
                return occupants
                    .filter(|(_, key)| !key.is_empty() && geometry.hashed(key).home() == home)
                    .collect();
            }
            guards().for_each(|&slot| add_stripe(&mut set, self.slots.stripe_of(slot)));
        }
    }

    /// All keys, with their homes. For a thread that is alone.
    pub fn keys(&self) -> impl Iterator<Item = (Key, u64)> {
        let all = (0..self.geometry().slots()).map(|slot| self.slots.occupant(SlotIx(slot)).1);
        all.filter(|key| !key.is_empty()).map(|key| {
            let home = self.geometry().hashed(&key).home();
            (key, home)
        })
    }

    /// The references of all slots. For a thread that is alone.
    pub fn all_references(&self, cores: Cores) -> Vec<(SlotIx, Reference)> {
        let of = |slots: Range<u64>| {
            let names = |slot| Some((slot, self.slots.read(slot).reference?));
            let is_reference = |slot: &SlotIx| self.slots.header(*slot).is_reference();
            slots.map(SlotIx).filter(is_reference).filter_map(names).collect::<Vec<_>>()
        };
        cores.split(0..self.slots_allocated(), PIECE, of, |_| {}).into_iter().flatten().collect()
    }

    /// The key in a slot. For a thread that is alone.
    pub fn key_in(&self, slot: SlotIx) -> Key {
        self.slots.read(slot).key
    }
}
