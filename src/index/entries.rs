//! What a segment says of the lives of its entries: which keys have one, and which of them are hidden.

use super::home_set::HomeSet;
use super::homes::{homes_of_step, steps};
use super::segment::{Segment, Stop};
use crate::faults::{Rule, broken};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::{First, Hashed};
use crate::layout::life::Life;
use crate::layout::owners;
use crate::layout::slot::Key;

impl Segment {
    /// Whether the entry in a slot whose lock is held is hidden (O3).
    #[inline(always)]
    pub(super) fn is_hidden(&self, slot: SlotIx) -> bool {
        self.geometry().has_owners() && self.slots().life(slot).is_some_and(|life| self.hides(&life))
    }

    /// Whether entries with such a life are hidden. Relaxed: who was told that they are has heard of it from the one
    /// who has stored the bit; and as long as an entry of the owner is there, its bit is not cleared (O4).
    #[inline(always)]
    pub fn hides(&self, life: &Life) -> bool {
        self.geometry().has_owners() && life.owner != 0 && self.hides_owner(life.owner)
    }

    #[cold]
    fn hides_owner(&self, owner: u16) -> bool {
        let word = self.region().load(self.geometry().owner_word(owner));
        word & owners::bit(owner) != 0 && !broken(Rule::OwnerAbsent)
    }

    /// The keys with this hash, and their lives.
    pub fn lives_of(&self, hash: First) -> Result<Vec<(Key, Life)>, Stop> {
        let mut locked = self.slots().none();
        let any = self.geometry().hashed_to(&[], hash);
        let is_it = |key: Hashed<'_>| key.first() == hash;
        let all = self.homes().lock_keys_of(&mut locked, HomeSet::one(any.home()), is_it);
        // Which segment has a key follows from its hash.
        if self.is_elsewhere(&any) {
            return Err(Stop::Elsewhere);
        }
        let lives = all.into_iter().filter_map(|at| Some((self.slots().life(at.slot)?, at.key)));
        Ok(lives.map(|(life, key)| (key, life)).collect())
    }

    /// Shows the hash and the life of each key.
    pub fn show_lives(&self, see: &mut dyn FnMut(First, Life)) {
        let mut damaged = 0;
        for homes in (0..steps(self.geometry())).map(|step| homes_of_step(self.geometry(), step)) {
            let mut locked = self.homes().lock_step(&homes);
            self.homes().show(&mut locked, homes, &mut damaged, &mut |key, shown| {
                if let Some(life) = shown.life {
                    see(key.first(), life);
                }
            });
        }
    }
}
