//! A node's memory: its table, its page and its notes, and the owners in its table.

use crate::core::ids::{ShardIx, Time};
use crate::core::intent::Intent;
use crate::core::message::{Effect, Life, Store};
use crate::core::owners::Owners;
use crate::core::results;
use crate::core::state::{Notes, Page, ShardState};
use crate::core::table::{NoMemory, Table};
use crate::faults::{Rule, broken};

/// What a node has stored. Only the methods change the table, so that the owners follow it.
#[derive(Debug)]
pub(in crate::core) struct Memory<T> {
    pub table: T,
    pub page: Page,
    pub notes: Notes,
    pub notes_due: bool,
    pub owners: Owners,
    /// How long entries live that are put without a time.
    pub ttl: Option<Time>,
}

impl<T: Table> Memory<T> {
    /// Changes the page. `false`: there is no memory for that, and the page is unchanged.
    pub fn change_page(&mut self, change: impl FnOnce(&mut Page)) -> bool {
        let mut page = self.page.clone();
        change(&mut page);
        let is_stored = self.table.store_page(&page).is_ok();
        if is_stored {
            self.page = page;
        }
        is_stored
    }

    pub fn close_words(&mut self) -> bool {
        self.change_page(|page| page.words.iter_mut().for_each(|word| word.is_open = false))
    }

    /// The room that an entry takes with this value; 0 without one.
    pub fn cost(&self, key: &[u8], value_len: Option<usize>) -> u64 {
        value_len.map_or(0, |len| self.table.cost(key, len))
    }

    /// The room that a key's entry takes now.
    pub fn cost_now(&mut self, key: &[u8]) -> u64 {
        let len = self.table.value_len(key);
        self.cost(key, len)
    }

    /// Why the entry of a key has to leave by itself. `None`: it is not there, or need not leave.
    pub fn is_over(&mut self, shard: ShardIx, key: &[u8]) -> Option<Effect> {
        let life = self.table.life(key)?;
        if life.end().is_some_and(|end| end <= self.table.now()) {
            return Some(Effect::Expired);
        }
        life.owner().filter(|owner| self.owners.leaves(shard, *owner)).map(|_| Effect::OwnerGone)
    }

    /// Makes a change visible, and stores its outcome. Both happen, even if the process is killed meanwhile (CL15).
    ///
    /// If one of two stores fails, the intent stays. Then the node must store nothing more: it fails.
    pub fn store_all(&mut self, stores: &[Store]) -> Result<(), NoMemory> {
        let intent = Intent::of(self.page.asked.number, stores);
        if intent.is_some() {
            self.table.store_intent(intent.as_ref())?;
        }
        stores.iter().try_for_each(|store| self.store(store))?;
        if intent.is_some() { self.table.store_intent(None) } else { Ok(()) }
    }

    /// Completes the change during which an earlier process was killed (CL15).
    pub fn finish(&mut self) -> Result<(), NoMemory> {
        let Some(intent) = self.table.intent() else { return Ok(()) };
        // A version that does not know intents may have run meanwhile.
        if intent.beat != self.page.asked.number || broken(Rule::HalfDone) {
            return self.table.store_intent(None);
        }
        let now = self.table.get(&intent.key);
        intent.rest(now).iter().try_for_each(|store| self.store(store))?;
        self.table.store_intent(None)
    }

    /// Stores one entry of a change, or of a walk.
    pub fn store(&mut self, store: &Store) -> Result<(), NoMemory> {
        let (key, entry) = store;
        match entry {
            // Each copy counts the day by its own clock. Copies need not agree about it (CL15).
            Some(entry) if results::is_result(key) => {
                let life = Life::new(self.table.end_after(results::KEPT), None);
                self.table.put(key, &entry.value, life)
            }
            Some(entry) => self.table.put(key, &entry.value, entry.life),
            None => self.table.remove(key),
        }?;
        self.owners.see(store);
        Ok(())
    }

    /// Notes the newest state of a shard.
    pub fn note(&mut self, shard: ShardIx, state: &ShardState) {
        self.notes.newest[usize::from(shard)] = state.clone();
        self.notes_due = true;
    }

    /// CL17: nobody acts on a state that is not noted. `false`: there is no memory for the notes.
    pub fn store_notes(&mut self) -> bool {
        self.notes_due = self.notes_due && self.table.store_notes(&self.notes).is_err();
        !self.notes_due
    }
}
