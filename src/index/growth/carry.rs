//! The keys of one home go to the other segment of a pair.

use crate::families;
use crate::faults::{Rule, in_order};
use crate::index::grace::Trace;
use crate::index::moves::has_room_for_ghost;
use crate::index::search::find_path;
use crate::index::segment::Segment;
use crate::index::stripes::{Locked, StripeSet, add_stripe};
use crate::index::writer::Sought;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::segment::{HomeState, Named};
use crate::layout::slot::{Key, Stored};
use crate::outcome::PutMode;
use std::sync::atomic::Ordering::Relaxed;

/// What came of carrying the keys of a home into another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Carried {
    /// So many keys have gone.
    All(u64),
    /// One did not fit. None has gone.
    NoRoom,
    /// One stands in a slot with a ghost (M3). None has gone.
    Stuck,
}

impl Segment {
    pub fn named(&self) -> Named {
        Named { memory: self.memory, incarnation: self.geometry.incarnation() }
    }

    /// Whether every header says what is so: nothing is left of a merge.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Relaxed) == 0
    }

    /// Carries the keys of a home that `goes` names into another segment: copies all, lets `first`
    /// write the header, overwrites the originals, and lets `then` say that they have gone. `rule` is
    /// the switch that takes the second step last.
    pub(super) fn carry(
        &self,
        to: &Segment,
        home: u64,
        goes: impl Fn(Hashed<'_>) -> bool,
        rule: Rule,
        first: impl FnOnce(&mut Locked<'_>),
        then: impl FnOnce(&mut Locked<'_>),
    ) -> Carried {
        let mut locked = self.stripes.none();
        let all = self.lock_keys_of(&mut locked, home);
        let going: Vec<(SlotIx, Key)> =
            all.into_iter().filter(|(_, key)| goes(self.geometry.hashed(key))).collect();
        if !going.iter().all(|&(slot, _)| has_room_for_ghost(self.slots().header(slot).ghost)) {
            return Carried::Stuck;
        }
        for (n, (slot, key)) in going.iter().enumerate() {
            if !to.adopt(self.geometry.hashed(key), self.slots().read(*slot).stored()) {
                going[..n].iter().for_each(|(_, key)| to.disown(self.geometry.hashed(key)));
                return Carried::NoRoom;
            }
        }
        in_order(
            rule,
            &mut locked,
            |locked| first(locked),
            |locked| {
                for (slot, key) in &going {
                    let key = self.geometry.hashed(key);
                    self.vacate(locked, *slot, key);
                    self.counters.left.fetch_add(1, Relaxed);
                    if !self.geometry.primary(key).contains(*slot) {
                        self.linger(locked, home, families::filter_bit(&self.geometry, key), *slot);
                    }
                }
                for (slot, _) in &going {
                    // An earlier one may have been filled by a later one.
                    if self.slots().header(*slot).is_free() {
                        self.left_slot_of_home(locked, *slot, home);
                    }
                }
            },
        );
        then(&mut locked);
        drop(locked);
        going.iter().for_each(|&(slot, _)| self.bring_home(slot));
        Carried::All(going.len() as u64)
    }

    /// Locks a home and every slot that a key of it is in. Returns these slots and keys.
    pub(in crate::index) fn lock_keys_of(&self, locked: &mut Locked<'_>, home: u64) -> Vec<(SlotIx, Key)> {
        let window = self.geometry.window(home);
        let mut set = StripeSet::new();
        self.add_window(&mut set, window);
        loop {
            locked.lock(set.clone());
            let displaced = self.stripe(locked, home).displaced_slots(home);
            let guards = || displaced.iter().filter(|slot| slot.0 < self.geometry.main_slots());
            if guards().all(|&slot| locked.covers(slot)) {
                let all =
                    window.iter().chain(displaced.iter().copied().filter(|&slot| !window.contains(slot)));
                let occupants = all.map(|slot| (slot, self.slots().occupant(slot).1));
                return occupants
                    .filter(|(_, key)| !key.is_empty() && self.geometry.hashed(key).home() == home)
                    .collect();
            }
            guards().for_each(|&slot| add_stripe(&mut set, self.stripes.of(slot)));
        }
    }

    /// Takes a copy of a key that is in the other segment of a pair, whose locks the caller holds (L7).
    /// `false` if there is no room.
    pub(in crate::index) fn adopt(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        let is_in = self.put_free(key, value)
            || self.put_by_path(key, value)
            || self.put_into_chain(key, value, PutMode::Insert, true).is_some();
        if is_in {
            self.counters.came.fetch_add(1, Relaxed);
        }
        is_in
    }

    fn put_free(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        match self.seek(key, may_be_displaced) {
            Sought::Free(slot) => {
                self.place(&mut locked, slot, key, value);
                true
            }
            Sought::At(_) | Sought::Nowhere => false,
        }
    }

    fn put_by_path(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        /// Other threads may change a path that was found.
        const PATHS_MAX: u32 = 16;
        (0..PATHS_MAX).map_while(|_| find_path(self.table(), key)).any(|path| {
            let is_in = self.put_along(&path, key, value, PutMode::Insert, true).is_some();
            if !is_in {
                self.notes.forget(&path);
            }
            is_in
        })
    }

    /// Takes a copy away again.
    pub(super) fn disown(&self, key: Hashed<'_>) {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        if let Some(slot) = self.seek(key, may_be_displaced).at() {
            self.erase(&mut locked, slot, key);
            self.counters.left.fetch_add(1, Relaxed);
        }
    }

    /// All keys, with their homes. For a thread that is alone.
    pub(super) fn keys(&self) -> impl Iterator<Item = (Key, u64)> {
        let all = (0..self.geometry.slots()).map(|slot| self.slots().occupant(SlotIx(slot)).1);
        all.filter(|key| !key.is_empty()).map(|key| {
            let home = self.geometry.hashed(&key).home();
            (key, home)
        })
    }

    /// Has every header say what is so. The homes of a split's child have not been merged: those that are
    /// away have not come yet.
    pub(super) fn state_all_homes(&self, is_of_split: bool) {
        for home in 0..self.geometry.homes() {
            let state = self.share.state(home);
            let state = HomeState { merged: state.merged && !is_of_split, ..state };
            self.set_home_state(&mut self.lock_home(home), home, state);
        }
    }

    pub(super) fn set_home_state(&self, locked: &mut Locked<'_>, home: u64, state: HomeState) {
        let home_slot = self.geometry.window(home).first;
        let aux = self.slots().header(home_slot).aux;
        self.set_aux(locked, home_slot, state.in_aux(aux));
    }

    /// Has the header of a home say what is so, in twice the grace time. `rule` is the switch that
    /// shortens it.
    pub(super) fn settle_later(&self, home: u64, rule: Rule) {
        let due_ns = self.grace.due_ns(rule);
        let mut locked = self.lock_home(home);
        if self.stripe(&mut locked, home).settling.insert(home, due_ns).is_none() {
            self.unsettled.fetch_add(1, Relaxed);
        }
        self.push_trace(due_ns, Trace::Settle { home });
    }

    /// The header of a home is about to say what is so.
    pub(super) fn settled(&self, locked: &mut Locked<'_>, home: u64) {
        if self.stripe(locked, home).settling.remove(&home).is_some() {
            self.unsettled.fetch_sub(1, Relaxed);
        }
    }

    /// Has the header of a home say what is so, unless that was put off to a later time.
    pub(in crate::index) fn settle(&self, home: u64, due_ns: u64) {
        let mut locked = self.lock_home(home);
        if self.stripe(&mut locked, home).settling.get(&home) == Some(&due_ns) {
            self.set_home_state(&mut locked, home, self.share.state(home));
            self.settled(&mut locked, home);
        }
    }
}

/// The keys of a home have come to `to`, under the lock of the home in `from`.
pub(super) fn has_come(to: &Segment, from: &Segment, home: u64) {
    to.share.set_away(home, false);
    from.share.set_away(home, true);
}
