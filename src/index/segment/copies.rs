//! Operations of a segment on keys that do not change: it takes copies of keys from another segment, and renames
//! extents.

use super::{Put, Segment};
use crate::faults::{Rule, kept};
use crate::index::home_set::HomeSet;
use crate::index::homes::KeyAt;
use crate::index::seams::Nobody;
use crate::index::slots::{Locked, SlotWritten, Sought};
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::{First, Hashed};
use crate::layout::slot::{Key, Stored};
use crate::outcome::PutMode;

impl Segment {
    /// Takes copies of keys of these homes from the other segment of a pair, whose locks the caller holds (L7). Returns
    /// the homes with a key that found no room; no copy of their keys is left.
    pub fn put_copies(&self, from: &Segment, homes: HomeSet, keys: &[KeyAt]) -> HomeSet {
        let mut refused = homes.cleared();
        for at in self.homes().put_copies_free(from.slots(), homes, keys) {
            let content = from.slots().read(at.slot);
            if !refused.contains(at.home()) && !self.put_copy(at.hashed(self.geometry()), content.stored()) {
                refused.add(at.home());
            }
        }
        let copied = keys.iter().filter(|at| refused.contains(at.home()));
        copied.for_each(|at| self.take_copy_away(at.hashed(self.geometry())));
        refused
    }

    /// Takes a copy of a key from the other segment of a pair, whose locks the caller holds (L7). `false` if there is
    /// no room.
    pub fn put_copy(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        // D9
        self.homes().counters().came(1);
        let is_in = self.put_copy_free(&key, value)
            || self.put_copy_along(&key, value)
            || self.put_into_chain(&key, &value, (PutMode::Insert, Nobody), Put::Copy).is_some();
        if !is_in {
            self.homes().counters().came_not(1);
        }
        is_in
    }

    fn put_copy_free(&self, key: &Hashed<'_>, value: Stored<'_>) -> bool {
        let mut locked = self.slots().lock_primary(key);
        let Some(seen) = self.seek_here(&mut locked, key, Put::Copy) else { return false };
        match self.slots().pass_by_held(seen, key) {
            Sought::Free(slot) => {
                self.homes().place(&mut locked, slot, key, &value);
                true
            }
            Sought::At(_) | Sought::Nowhere => false,
        }
    }

    fn put_copy_along(&self, key: &Hashed<'_>, value: Stored<'_>) -> bool {
        /// The most paths that may turn out to be changed by other threads.
        const PATHS_MAX: u32 = 16;
        (0..PATHS_MAX).map_while(|_| self.moves.find_path(*key)).any(|path| {
            let how = (PutMode::Insert, Nobody);
            let is_in = self.put_along(&path, key, &value, how, Put::Copy).is_some();
            if !is_in {
                self.slots().notes().forget(&path);
            }
            is_in
        })
    }

    /// Takes a copy away again.
    pub fn take_copy_away(&self, key: Hashed<'_>) {
        let mut locked = self.slots().lock_primary(&key);
        if let Some(Sought::At(slot)) = self.seek_here(&mut locked, &key, Put::Copy) {
            self.homes().erase(&mut locked, slot, &key);
            self.homes().counters().left(1);
        }
    }

    // ---- extents --------------------------------------------------------------------------------

    /// Acts on the slot of a key with this hash that names this extent, under its lock. `None` if there is none, or the
    /// segment does not have the key (L8). While a home goes to the other segment of a pair, a slot may have a copy
    /// that is not the key's yet, or an original that is not any more.
    pub fn with_name<R>(
        &self,
        hash: First,
        is_it: impl Fn(&Reference) -> bool,
        act: impl FnOnce(&Locked<'_>, SlotIx, &Key, Reference) -> R,
    ) -> Option<R> {
        let mut locked = self.slots().none();
        let home = HomeSet::one(self.geometry().home(hash.0));
        let is_here = |key: Hashed<'_>| kept(Rule::MoveHere, || !self.is_elsewhere(&key));
        let all = self.homes().lock_keys_of(&mut locked, home, is_here);
        let named = all.iter().find_map(|at| Some((at, self.reference_in(at.slot).filter(&is_it)?)));
        named.map(|(at, reference)| act(&locked, at.slot, &at.key, reference))
    }

    /// X6: has the slot name the extent `new`, if it still names `old`.
    pub fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten> {
        let is_it = |there: &Reference| kept(Rule::MoveCheck, || there.number == old.number);
        self.with_name(hash, is_it, |locked, slot, key, _| {
            let (new, life) = (self.geometry().slot_reference(key, *new), self.slots().life(slot));
            self.slots().rewrite(locked, slot, key, &new.stored().with_life(life.as_ref()), None)
        })
    }
}
