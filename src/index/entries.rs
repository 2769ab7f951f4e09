//! The entries of a segment, by hash: their keys, their lives, and whether they are hidden.

use super::home_set::HomeSet;
use super::homes::{KeyAt, homes_of_step, steps};
use super::segment::{EntryFound, Segment, Stop, design_percents};
use super::slots::Locked;
use crate::faults::{Rule, broken, disobey};
use crate::layout::WORD;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::{First, Hashed};
use crate::layout::life::Life;
use crate::layout::owners;
use crate::layout::slot::{Key, Stored};

/// An entry, as it was seen under its key's lock.
#[derive(Clone, Debug)]
pub(super) struct EntrySeen {
    pub key: Key,
    /// Whether its value is an extent.
    pub is_long: bool,
    /// Whether it is hidden (O3).
    pub is_hidden: bool,
}

impl Segment {
    /// Whether the entry in a slot whose lock is held is hidden (O3).
    #[inline(always)]
    pub(super) fn is_hidden(&self, slot: SlotIx) -> bool {
        self.geometry().has_owners() && self.slots().life(slot).is_some_and(|life| self.hides(&life))
    }

    /// Whether entries with this life are hidden. Relaxed: the caller heard of the owner from the thread that stored
    /// the bit. The bit is cleared only when the owner has no entries (O4).
    #[inline(always)]
    pub fn hides(&self, life: &Life) -> bool {
        self.hides_owner(life.owner)
    }

    /// Whether entries of this owner are hidden, as [`Segment::hides`].
    #[inline(always)]
    pub(super) fn hides_owner(&self, owner: u16) -> bool {
        self.geometry().has_owners() && owner != 0 && self.is_bit_set(owner)
    }

    /// The life of the entry in a slot whose lock is held.
    #[inline(always)]
    pub(super) fn life_in(&self, slot: SlotIx) -> Option<Life> {
        if self.geometry().has_life() { self.life_read(slot) } else { None }
    }

    /// The life of the entry in a slot whose lock is held, in a table whose entries have lives.
    #[cold]
    #[inline(never)]
    pub(super) fn life_read(&self, slot: SlotIx) -> Option<Life> {
        self.slots().life(slot)
    }

    /// V3, P1: notes the end and the owner of an entry that was written. `before` is the life that the key had, if any.
    /// (Not inlined: most tables have no lives, and their updates keep more in registers without it.)
    #[cold]
    #[inline(never)]
    pub(super) fn note_life_after(&self, key: &Hashed<'_>, before: Option<Life>, value: &Stored<'_>) {
        if let Some(started) = self.observers().started() {
            started.count(before.map(|life| life.owner), Some(value.owner()));
        }
        let ended = before.map_or(0, |life| life.expiry);
        if (ended, value.expiry()) != (0, 0) {
            self.observers().ends().replaced(key.first(), ended, value.expiry());
        }
    }

    /// What a change finds in a slot whose lock is held.
    #[inline(always)]
    pub(super) fn found_in(&self, slot: SlotIx) -> EntryFound {
        let life = if self.geometry().has_owners() { self.life_read(slot) } else { None };
        self.found(life)
    }

    /// What a change finds where there is an entry with this life.
    #[inline(always)]
    pub(super) fn found(&self, life: Option<Life>) -> EntryFound {
        match life {
            Some(life) if self.hides(&life) => EntryFound::Hidden,
            life => EntryFound::Of(life.map_or(0, |life| life.owner)),
        }
    }

    #[cold]
    fn is_bit_set(&self, owner: u16) -> bool {
        let word = self.region().load(self.geometry().owner_word(owner));
        word & owners::bit(owner) != 0 && !broken(Rule::OwnerAbsent)
    }

    /// The keys with this hash, with their home locked.
    fn lock_hashed(&self, locked: &mut Locked<'_>, hash: First) -> Result<Vec<KeyAt>, Stop> {
        let any = self.geometry().hashed_to(&[], hash);
        let is_it = |key: Hashed<'_>| key.first() == hash;
        let all = self.homes().lock_keys_of(locked, HomeSet::one(any.home()), is_it);
        // Which segment has a key follows from its hash.
        if self.is_elsewhere(&any) {
            return Err(Stop::Elsewhere);
        }
        Ok(all)
    }

    /// Prefetches the primary window of keys with this hash, or its beginning.
    pub fn expect(&self, hash: First) {
        let geometry = self.geometry();
        let window = geometry.primary(geometry.hashed_to(&[], hash));
        let bytes = u64::from(window.slots) * geometry.shape().bytes() as u64;
        self.region().prefetch_bytes((geometry.slot_word(window.first) * WORD) as u64, bytes);
    }

    /// The keys with this hash, and their lives.
    pub fn lives_of(&self, hash: First) -> Result<Vec<(Key, Life)>, Stop> {
        self.lives_locked(&mut self.slots().none(), hash)
    }

    /// The lives of keys whose time has come. Notes when the next of these entries ends. Notes `again` for one that has
    /// ended (V3).
    pub fn lives_due(&self, hash: First, now: u64, again: u32) -> Result<Vec<(Key, Life)>, Stop> {
        let mut locked = self.slots().none();
        let lives = self.lives_locked(&mut locked, hash)?;
        disobey(Rule::EndLock, || locked = self.slots().none());
        let ends = lives.iter().map(|(_, life)| life).filter(|life| life.expiry != 0);
        if let Some(next) = ends.map(|life| if life.has_ended(now) { again } else { life.expiry }).min() {
            self.observers().ends().set(hash, next);
        }
        Ok(lives)
    }

    fn lives_locked(&self, locked: &mut Locked<'_>, hash: First) -> Result<Vec<(Key, Life)>, Stop> {
        let all = self.lock_hashed(locked, hash)?;
        let lives = all.into_iter().filter_map(|at| Some((self.slots().life(at.slot)?, at.key)));
        Ok(lives.map(|(life, key)| (key, life)).collect())
    }

    /// Shows the hash and the life of each key.
    pub fn show_lives(&self, see: &mut dyn FnMut(First, Option<Life>)) {
        let mut damaged = 0;
        for homes in (0..steps(self.geometry())).map(|step| homes_of_step(self.geometry(), step)) {
            let mut locked = self.homes().lock_step(&homes);
            self.homes().show(&mut locked, homes, &mut damaged, &mut |key, shown| {
                see(key.first(), shown.life);
            });
        }
    }

    /// The entries of keys with this hash.
    pub fn entries_of(&self, hash: First) -> Result<Vec<EntrySeen>, Stop> {
        let mut locked = self.slots().none();
        let all = self.lock_hashed(&mut locked, hash)?;
        let seen = |at: KeyAt| EntrySeen {
            is_long: self.slots().header(at.slot).is_reference(),
            is_hidden: self.is_hidden(at.slot),
            key: at.key,
        };
        Ok(all.into_iter().map(seen).collect())
    }

    /// Whether the segment has more keys than its design load.
    pub fn is_crowded(&self) -> bool {
        self.len() * 100 > design_percents(self.geometry())
    }

    /// The keys in the primary window of a key. `None` if that is in another segment.
    pub fn keys_beside(&self, key: &Hashed<'_>) -> Option<Vec<Key>> {
        let _locked = self.slots().lock_primary(key);
        if self.is_elsewhere(key) {
            return None;
        }
        let window = self.geometry().primary(*key);
        let keys = (window.first.0..window.end()).map(|slot| self.slots().occupant(SlotIx(slot)).1);
        Some(keys.filter(|key| !key.is_empty()).collect())
    }
}
