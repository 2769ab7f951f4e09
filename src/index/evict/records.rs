//! Records of entries, in lists.

use crate::layout::hash::First;
use rustc_hash::FxHashMap;
use std::fmt;

/// No record.
const NONE: u32 = u32::MAX;

/// A record, by its place. It is good until the record is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordAt(u32);

#[derive(Clone, Copy)]
struct EntryRecord {
    hash: First,
    list: u8,
    /// Toward the front of its list, and toward the back.
    front: u32,
    back: u32,
}

#[derive(Clone, Copy)]
struct RecordList {
    front: u32,
    back: u32,
    len: usize,
}

/// A record for each hash, in one of some lists. An operation takes O(1).
pub(super) struct EntryRecords<const LISTS: usize> {
    records: Vec<EntryRecord>,
    free: Vec<u32>,
    of: FxHashMap<First, u32>,
    lists: [RecordList; LISTS],
}

impl<const LISTS: usize> fmt::Debug for EntryRecords<LISTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lists.iter().map(|list| list.len)).finish()
    }
}

impl<const LISTS: usize> Default for EntryRecords<LISTS> {
    fn default() -> EntryRecords<LISTS> {
        let lists = [RecordList { front: NONE, back: NONE, len: 0 }; LISTS];
        EntryRecords { records: Vec::new(), free: Vec::new(), of: FxHashMap::default(), lists }
    }
}

impl<const LISTS: usize> EntryRecords<LISTS> {
    /// How many records a list has.
    pub fn len(&self, list: u8) -> usize {
        self.lists[usize::from(list)].len
    }

    /// The record of a hash.
    pub fn find(&self, hash: First) -> Option<RecordAt> {
        self.of.get(&hash).map(|&at| RecordAt(at))
    }

    pub fn hash(&self, at: RecordAt) -> First {
        self.records[at.0 as usize].hash
    }

    pub fn list(&self, at: RecordAt) -> u8 {
        self.records[at.0 as usize].list
    }

    /// The oldest record of a list.
    pub fn back(&self, list: u8) -> Option<RecordAt> {
        at(self.lists[usize::from(list)].back)
    }

    /// The record in front of this one.
    pub fn before(&self, of: RecordAt) -> Option<RecordAt> {
        at(self.records[of.0 as usize].front)
    }

    /// Makes a record for a hash that has none, at the front of a list.
    pub fn insert(&mut self, hash: First, list: u8) {
        let record = EntryRecord { hash, list, front: NONE, back: NONE };
        let new = match self.free.pop() {
            Some(free) => {
                self.records[free as usize] = record;
                free
            }
            None => {
                self.records.push(record);
                (self.records.len() - 1) as u32
            }
        };
        self.of.insert(hash, new);
        self.link(new);
    }

    /// Has a record go to the front of a list.
    pub fn put_first(&mut self, at: RecordAt, list: u8) {
        self.unlink(at.0);
        self.records[at.0 as usize].list = list;
        self.link(at.0);
    }

    pub fn remove(&mut self, at: RecordAt) {
        self.unlink(at.0);
        self.of.remove(&self.hash(at));
        self.free.push(at.0);
    }

    fn link(&mut self, at: u32) {
        let list = &mut self.lists[usize::from(self.records[at as usize].list)];
        list.len += 1;
        let behind = std::mem::replace(&mut list.front, at);
        match behind {
            NONE => list.back = at,
            behind => self.records[behind as usize].front = at,
        }
        let record = &mut self.records[at as usize];
        (record.front, record.back) = (NONE, behind);
    }

    fn unlink(&mut self, at: u32) {
        let EntryRecord { list, front, back, .. } = self.records[at as usize];
        let list = &mut self.lists[usize::from(list)];
        list.len -= 1;
        match front {
            NONE => list.front = back,
            front => self.records[front as usize].back = back,
        }
        match back {
            NONE => list.back = front,
            back => self.records[back as usize].front = front,
        }
    }
}

fn at(number: u32) -> Option<RecordAt> {
    (number != NONE).then_some(RecordAt(number))
}
