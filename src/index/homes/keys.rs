//! A home's keys: a key comes into a free slot, a key is removed, and all keys.

use super::Homes;
use super::counters::count;
use crate::base::cores::Cores;
use crate::index::slots::{Locked, Note, SlotWritten};
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::{Key, Stored};
use crate::placement::families;
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
        key: &Hashed<'_>,
        value: &Stored<'_>,
    ) -> SlotWritten {
        let note = Note::of_key(self.geometry(), slot, *key);
        self.name_displaced(locked, note, slot, key);
        let written = self.slots.rewrite(locked, slot, key.key(), value, Some(note));
        count(&self.counters.mine().inserts);
        written
    }

    /// Frees the slot of a key that is removed (M6).
    pub fn erase(&self, locked: &mut Locked<'_>, slot: SlotIx, key: &Hashed<'_>) -> SlotWritten {
        debug_assert!(self.slots.may_change(locked, *key), "L2");
        let written = self.slots.free(locked, slot);
        if !self.geometry().primary(*key).contains(slot) {
            self.linger(locked, key.home(), families::filter_bit(self.geometry(), *key), slot);
        }
        self.left_slot_of_home(locked, slot, key.home());
        written
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
