//! A machine: memory that can be READ while nothing runs there, and a node's process.

use crate::world::TICK;
use bytes::Bytes;
use oneread_cluster::core::intent::Intent;
use oneread_cluster::core::message::{End, Key, Life, Value};
use oneread_cluster::core::node::Node;
use oneread_cluster::core::state::{NodeAbout, NodeId, Notes, Page, ShardIx, Time, Timing};
use oneread_cluster::core::table::{NoMemory, OwnedKey, Stock, Table};
use oneread_cluster::core::{own, owners, results};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Something was stored: READs that lurk sample it.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// The page, with the first word of another life.
    Life,
    /// A key.
    Entry(Key),
}

/// What survives a process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub page: Page,
    pub notes: Notes,
    pub intent: Option<Intent>,
    pub entries: BTreeMap<Key, Value>,
    /// Of those that end by themselves, or have an owner.
    pub lives: BTreeMap<Key, Life>,
    /// The time of day there.
    pub time: u64,
    pub stored: Vec<Stored>,
    /// Keys that there is room for.
    pub keys_max: u64,
    /// Stores of entries and intents until the process is killed, and whether it then lives on until it is about to store an
    /// outcome.
    pub stores_left: Option<(u32, bool)>,
    /// What the memory was when the process was killed. What it does for the rest of its step is not done.
    pub when_killed: Option<Box<Memory>>,
}

impl Memory {
    /// Comes before a store.
    fn burns(&mut self, is_outcome: bool) {
        let Some((left, waits)) = &mut self.stores_left else { return };
        *left = left.saturating_sub(1);
        if *left == 0 && (is_outcome || !*waits) {
            self.stores_left = None;
            self.when_killed = Some(Box::new(self.clone()));
        }
    }
}

#[derive(Debug)]
pub struct SimTable(Rc<RefCell<Memory>>);

/// Keys that a walk looks at in one go.
const WALK: usize = 2;

pub fn key_of(shard: ShardIx, key: u8) -> Key {
    Bytes::copy_from_slice(&[shard as u8, key])
}

pub fn value_of(value: u64) -> Value {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

pub fn number_of(value: Option<&Value>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

fn shard_of(key: &[u8]) -> ShardIx {
    own::shard_of(key).unwrap_or_else(|| ShardIx::from(key[0]))
}

impl Table for SimTable {
    type Cursor = Key;

    fn get(&mut self, key: &[u8]) -> Option<Value> {
        self.0.borrow().entries.get(key).cloned()
    }

    fn value_len(&mut self, key: &[u8]) -> Option<usize> {
        self.0.borrow().entries.get(key).map(Bytes::len)
    }

    fn life(&mut self, key: &[u8]) -> Option<Life> {
        let memory = self.0.borrow();
        memory.entries.get(key).map(|_| memory.lives.get(key).copied().unwrap_or_default())
    }

    fn has_owners(&self) -> bool {
        true
    }

    /// One by one: outcomes, of which there are many, are nobody's.
    fn walk_owned(&mut self, from: Option<Key>) -> (Vec<OwnedKey>, Option<Key>) {
        let memory = self.0.borrow();
        let mut owned = memory.lives.iter().filter_map(|(key, life)| life.owner().map(|owner| (key, owner)));
        let next = owned.find(|(key, _)| from.as_ref().is_none_or(|from| *key > from));
        let Some((key, owner)) = next else { return (Vec::new(), None) };
        (vec![OwnedKey { shard: shard_of(key), key: key.clone(), owner }], Some(key.clone()))
    }

    fn now(&self) -> End {
        End(self.0.borrow().time)
    }

    fn end_after(&self, ttl: Time) -> Option<End> {
        Some(End(self.0.borrow().time + ttl / TICK as Time))
    }

    fn ended(&mut self, max: usize) -> Vec<(ShardIx, Key)> {
        let memory = self.0.borrow();
        let has_ended = |life: &Life| life.end().is_some_and(|end| end.0 <= memory.time);
        let ended = memory.lives.iter().filter(|(_, life)| has_ended(life));
        ended.take(max).map(|(key, _)| (shard_of(key), key.clone())).collect()
    }

    fn put(&mut self, key: &[u8], value: &[u8], life: Life) -> Result<(), NoMemory> {
        let mut memory = self.0.borrow_mut();
        memory.burns(results::is_result(key));
        let key = Bytes::copy_from_slice(key);
        memory.entries.insert(key.clone(), Bytes::copy_from_slice(value));
        memory.lives.insert(key.clone(), life);
        memory.stored.push(Stored::Entry(key));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), NoMemory> {
        let mut memory = self.0.borrow_mut();
        memory.burns(false);
        memory.entries.remove(key);
        memory.lives.remove(key);
        memory.stored.push(Stored::Entry(Bytes::copy_from_slice(key)));
        Ok(())
    }

    fn walk(&mut self, shard: ShardIx, from: Option<Key>) -> (Vec<Key>, Option<Key>) {
        let memory = self.0.borrow();
        let after = |key: &&Key| from.as_ref().is_none_or(|from| *key > from);
        let keys = memory.entries.keys().filter(|key| shard_of(key) == shard).filter(after);
        let keys: Vec<Key> = keys.take(WALK).cloned().collect();
        let next = (keys.len() == WALK).then(|| keys[WALK - 1].clone());
        (keys, next)
    }

    fn stock(&mut self, shards: ShardIx) -> Vec<Stock> {
        let mut stock = vec![Stock::default(); usize::from(shards)];
        for key in self.0.borrow().entries.keys() {
            let stock = &mut stock[usize::from(shard_of(key))];
            (stock.entries, stock.bytes) = (stock.entries + 1, stock.bytes + self.cost(key, 0));
            stock.owners.extend(owners::parts(key).map(|_| key.clone()));
        }
        stock
    }

    fn cost(&self, key: &[u8], _: usize) -> u64 {
        u64::from(own::shard_of(key).is_none())
    }

    fn memory(&self) -> u64 {
        self.0.borrow().keys_max
    }

    fn store_page(&mut self, page: &Page) -> Result<(), NoMemory> {
        let mut memory = self.0.borrow_mut();
        if memory.page.held.life != page.held.life {
            memory.stored.push(Stored::Life);
        }
        memory.page = page.clone();
        Ok(())
    }

    fn store_notes(&mut self, notes: &Notes) -> Result<(), NoMemory> {
        self.0.borrow_mut().notes = notes.clone();
        Ok(())
    }

    fn store_intent(&mut self, intent: Option<&Intent>) -> Result<(), NoMemory> {
        let mut memory = self.0.borrow_mut();
        memory.burns(false);
        memory.intent = intent.cloned();
        Ok(())
    }

    fn intent(&mut self) -> Option<Intent> {
        self.0.borrow().intent.clone()
    }
}

pub struct Machine {
    pub id: NodeId,
    pub memory: Rc<RefCell<Memory>>,
    /// `None`: it does not run.
    pub node: Option<Node<SimTable>>,
    /// How many processes there were.
    pub process: u32,
    /// Entries leave so that others find room.
    pub evicts: bool,
    /// A copy of the memory, and when it is put back in place of the newest one.
    pub copy: Option<Box<Memory>>,
    pub put_back: Option<u32>,
}

impl Machine {
    pub fn new(id: NodeId, keys_max: u64) -> Machine {
        let memory = Memory { keys_max, ..Memory::default() };
        Machine {
            id,
            memory: Rc::new(RefCell::new(memory)),
            node: None,
            process: 0,
            evicts: false,
            copy: None,
            put_back: None,
        }
    }

    /// The process begins, with what the memory has.
    pub fn start(&mut self, shards: ShardIx, timing: Timing, kept: usize) {
        let (page, notes) = {
            let memory = self.memory.borrow();
            (memory.page.clone(), memory.notes.clone())
        };
        let table = SimTable(self.memory.clone());
        self.process += 1;
        let about = NodeAbout { version: owners::SINCE_VERSION, ..NodeAbout::default() };
        let mut node = Node::new(self.id, about, shards, timing, table, page, notes);
        node.keep_changes(kept);
        self.node = Some(node.evicting(self.evicts));
    }

    /// Whether the process was killed in its last step, be it at the end of that. Then the memory is as it was at that moment.
    pub fn ends_when_killed(&mut self) -> bool {
        let mut memory = self.memory.borrow_mut();
        if !memory.stored.is_empty() {
            memory.burns(false);
        }
        let when_killed = memory.when_killed.take();
        let is_killed = when_killed.is_some();
        if let Some(when_killed) = when_killed {
            *memory = *when_killed;
        }
        is_killed
    }

    /// The memory is what it was when it was copied. What time it is, and how much there is room for, is no part of that.
    pub fn put_back(&mut self) {
        self.put_back = None;
        let Some(copy) = self.copy.take() else { return };
        let mut memory = self.memory.borrow_mut();
        let (time, keys_max) = (memory.time, memory.keys_max);
        *memory =
            Memory { time, keys_max, stored: Vec::new(), stores_left: None, when_killed: None, ..*copy };
    }

    /// All that it had is gone: it comes back as another node (CL16).
    pub fn lose_memory(&mut self, id: NodeId) {
        let (keys_max, time) = (self.memory.borrow().keys_max, self.memory.borrow().time);
        let Machine { process, evicts, .. } = *self;
        *self = Machine { process, evicts, ..Machine::new(id, keys_max) };
        self.memory.borrow_mut().time = time;
    }
}
