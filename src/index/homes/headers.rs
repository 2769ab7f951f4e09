//! The headers of homes, in a table that grows: how many bits the hashes of a home's keys have in common, and whether
//! the keys were merged away (E3 to E6).

use super::Homes;
use super::grace::Trace;
use crate::base::sync::Ordering::Relaxed;
use crate::faults::Rule;
use crate::index::home_set::HomeSet;
use crate::index::slots::Locked;
use crate::layout::segment::{HomeState, STATE_MASK};

impl Homes {
    /// Whether every header has its final state: nothing is left of a merge.
    pub fn are_settled(&self) -> bool {
        self.unsettled.load(Relaxed) == 0
    }

    /// What the header of a home says.
    pub fn header_of(&self, home: u64) -> HomeState {
        HomeState::of(self.slots.aux(self.geometry().window(home).first))
    }

    /// Sets the header of a home.
    pub fn set_header(&self, locked: &Locked<'_>, home: u64, state: HomeState) {
        let home_slot = self.geometry().window(home).first;
        let aux = self.slots.aux(home_slot);
        if state.in_aux(aux) != aux {
            self.slots.set_aux_part(locked, home_slot, STATE_MASK, state.in_aux(0));
        }
    }

    /// Sets every header to its final state. The homes of a split's child were not merged: those that are away have not
    /// come yet.
    pub fn set_all_headers(&self, is_of_split: bool) {
        for home in 0..self.geometry().homes() {
            let state = self.share.state(home);
            let state = HomeState { merged: state.merged && !is_of_split, ..state };
            self.set_header(&self.slots.lock_home(home), home, state);
        }
    }

    /// Has the headers of these homes set to their final state in twice the grace time. `rule` is the switch that
    /// shortens it.
    pub fn settle_later(&self, homes: HomeSet, rule: Rule) {
        if homes.is_empty() {
            return;
        }
        let due_ns = self.grace.due_ns(rule);
        let mut locked = self.lock_homes(homes);
        let news = homes.iter().filter(|&home| self.stripe(&mut locked, home).settle_at(home, due_ns));
        self.unsettled.fetch_add(news.count() as u64, Relaxed);
        self.push_trace(due_ns, Trace::Settle { homes });
    }

    /// Notes that the header of a home is about to get its final state.
    pub fn settled(&self, locked: &mut Locked<'_>, home: u64) {
        if self.stripe(locked, home).settled(home) {
            self.unsettled.fetch_sub(1, Relaxed);
        }
    }

    /// Sets the headers of these homes to their final state, unless that was put off to a later time.
    pub(super) fn settle(&self, homes: HomeSet, due_ns: u64) {
        let mut locked = self.lock_homes(homes);
        for home in homes.iter() {
            if self.stripe(&mut locked, home).settles_at(home, due_ns) {
                self.set_header(&locked, home, self.share.state(home));
                self.settled(&mut locked, home);
            }
        }
    }
}
