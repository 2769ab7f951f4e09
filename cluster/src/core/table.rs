//! The interface of a node's table, for the core.

use crate::core::intent::Intent;
use crate::core::message::{End, Key, Life, Value};
use crate::core::state::{Notes, Page, ShardIx, Time};

/// A value could not be stored: memory that was set aside is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table takes no more, though room was set aside")]
pub struct NoMemory;

/// A table's stock of a shard.
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

/// The table of a node: the entries of all its shards, its page, its notes. When a call returns, its store is visible
/// to every client that READs it.
pub trait Table {
    /// The place where a walk continues.
    type Cursor;

    /// The most consecutive walks that remove an old copy, until other work has its turn.
    const WALKS_AT_ONCE: usize = 1;

    /// A key's value.
    fn get(&mut self, key: &[u8]) -> Option<Value>;

    /// The length of a key's value.
    fn value_len(&mut self, key: &[u8]) -> Option<usize>;

    /// The life of a key's entry. `None`: the key is absent.
    fn life(&mut self, key: &[u8]) -> Option<Life>;

    /// Whether entries may have owners.
    fn has_owners(&self) -> bool;

    /// Some entries that have owners, and where the walk continues. Every such entry that is there from the first of
    /// these calls to the last is among them.
    fn walk_owned(&mut self, from: Option<Self::Cursor>) -> (Vec<OwnedKey>, Option<Self::Cursor>);

    /// The time of day.
    fn now(&self) -> End;

    /// The end of an entry that lives this long from now on. `None`: entries have no ends, or none so late.
    fn end_after(&self, ttl: Time) -> Option<End>;

    /// Some keys, at most this many, whose entries have ended and are still there. Each is returned again after a
    /// while.
    fn ended(&mut self, max: usize) -> Vec<(ShardIx, Key)>;

    /// Gives a key a value, and a life.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing is changed.
    fn put(&mut self, key: &[u8], value: &[u8], life: Life) -> Result<(), NoMemory>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing is changed, or the result is unknown. A node that serves the key then fails.
    fn remove(&mut self, key: &[u8]) -> Result<(), NoMemory>;

    /// Some keys of a shard, and where the walk continues. Every key that is there from the first of these calls to the
    /// last is among them.
    fn walk(&mut self, shard: ShardIx, from: Option<Self::Cursor>) -> (Vec<Key>, Option<Self::Cursor>);

    /// Whether a key may have been read since the last call. A hint, from a table that notes reads.
    fn was_read(&mut self, _key: &[u8]) -> bool {
        false
    }

    /// The table's stock of each of the first `shards` shards.
    fn stock(&mut self, shards: ShardIx) -> Vec<Stock>;

    /// The most room that an entry takes, in bytes.
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

    /// Stores the present intent, or that there is none.
    ///
    /// # Errors
    /// [`NoMemory`]: it is as it was.
    fn store_intent(&mut self, intent: Option<&Intent>) -> Result<(), NoMemory>;

    /// The intent of an earlier process that was killed.
    fn intent(&mut self) -> Option<Intent>;
}
