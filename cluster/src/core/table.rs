//! A node's memory, as the core sees it.

use crate::core::intent::Intent;
use crate::core::message::{End, Key, Life, Value};
use crate::core::state::{Notes, Page, ShardIx, Time};

/// A value could not be stored: there is no memory, against what was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table takes no more, though room was set aside")]
pub struct NoMemory;

/// What a table has of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// Entries.
    pub entries: u64,
    /// The sum of their [`Table::cost`].
    pub bytes: u64,
    /// Keys of owners (CL19).
    pub owners: Vec<Key>,
}

/// A key whose entry has an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedKey {
    /// Its shard.
    pub shard: ShardIx,
    /// The key.
    pub key: Key,
    /// The owner.
    pub owner: u16,
}

/// The table of a node: the entries of all its shards, its page, its notes. Each store is visible to whoever READs it
/// when the call returns.
pub trait Table {
    /// Where a walk goes on.
    type Cursor;

    /// Walks in a row by which an old copy is removed, until something else has its turn.
    const WALKS_AT_ONCE: usize = 1;

    /// A key's value.
    fn get(&mut self, key: &[u8]) -> Option<Value>;

    /// The length of a key's value.
    fn value_len(&mut self, key: &[u8]) -> Option<usize>;

    /// How the entry of a key goes. `None`: there is none.
    fn life(&mut self, key: &[u8]) -> Option<Life>;

    /// Whether entries may have owners.
    fn has_owners(&self) -> bool;

    /// Some entries that have owners, and where to go on. Every such entry that is there from the first of
    /// these calls to the last is among them.
    fn walk_owned(&mut self, from: Option<Self::Cursor>) -> (Vec<OwnedKey>, Option<Self::Cursor>);

    /// What time of day it is.
    fn now(&self) -> End;

    /// When an entry ends that lives so long from now on. `None`: entries have no ends, or none that is so far.
    fn end_after(&self, ttl: Time) -> Option<End>;

    /// Some keys whose entries have ended, and are still there, at most so many. Each is brought again after a while.
    fn ended(&mut self, max: usize) -> Vec<(ShardIx, Key)>;

    /// Gives a key a value, and a life.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing is changed.
    fn put(&mut self, key: &[u8], value: &[u8], life: Life) -> Result<(), NoMemory>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing is changed, or nobody knows. A node that serves the key fails then.
    fn remove(&mut self, key: &[u8]) -> Result<(), NoMemory>;

    /// Some keys of a shard, and where to go on. Every key that is there from the first of these calls to the last is
    /// among them.
    fn walk(&mut self, shard: ShardIx, from: Option<Self::Cursor>) -> (Vec<Key>, Option<Self::Cursor>);

    /// Whether a key may have been read since this was asked last. A hint, from a table that knows.
    fn was_read(&mut self, _key: &[u8]) -> bool {
        false
    }

    /// What the table has of each of the first `shards` shards.
    fn stock(&mut self, shards: ShardIx) -> Vec<Stock>;

    /// The room that an entry takes at most, in bytes.
    fn cost(&self, key: &[u8], value_len: usize) -> u64;

    /// The room for entries of all shards, in bytes.
    fn memory(&self) -> u64;

    /// Stores the page.
    ///
    /// # Errors
    /// [`NoMemory`]: the page is as it was.
    fn store_page(&mut self, page: &Page) -> Result<(), NoMemory>;

    /// Stores the notes.
    ///
    /// # Errors
    /// [`NoMemory`]: the notes are as they were.
    fn store_notes(&mut self, notes: &Notes) -> Result<(), NoMemory>;

    /// Stores what is being done, or that nothing is.
    ///
    /// # Errors
    /// [`NoMemory`]: it is as it was.
    fn store_intent(&mut self, intent: Option<&Intent>) -> Result<(), NoMemory>;

    /// What a process before this one was killed at.
    fn intent(&mut self) -> Option<Intent>;
}
