//! A node's table: the table of an `oneread` server. Only the node changes it, and all clients READ it.
//!
//! Beside its shards' entries it has some of the cluster's own, whose keys begin with [`OWN`]: the page, the notes, the
//! intent, outcomes of requests, and owners.

use crate::core::intent::Intent;
use crate::core::message::{End, Key, Life, OWNER_MAX, TTL_MAX, Value};
use crate::core::own::{self, OWN};
use crate::core::owners;
use crate::core::state::{ClusterConfig, Notes, Page, ShardIx, Time};
use crate::core::table::{NoMemory, OwnedKey, Stock, Table};
use crate::room::{NOTES_KEY, entry_bytes, lengths, table_room};
use bytes::Bytes;
use oneread::PutMode;
use oneread::driven::{DrivenServer, DrivenTable};
use oneread::embedded::{Index, KeyCursor};
use oneread::error::{PutError, ReadError};
use oneread::layout::{self, Geometry};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The key of a node's page.
pub const PAGE_KEY: &[u8] = b"\0oneread\0page";

/// The key of the boot id of the machine's last start with this table, and whether the node has stopped since.
const BOOT_KEY: &[u8] = b"\0oneread\0boot";

/// The key of the intent, with which another process can complete a change.
const INTENT_KEY: &[u8] = b"\0oneread\0intent";

/// The first byte of the page, the notes and the intent: the form of the rest.
const FORM: u8 = 1;
/// About how many keys one step of a walk returns, and parts of the table that it looks at.
const WALK_KEYS: usize = 64;
const WALK_PARTS: usize = 256;
/// As `WALK_KEYS`, for keys whose entries have owners: each of them may be removed in one turn.
const OWNED_KEYS: usize = 512;
/// The most extents that move with a put of one. A block that extents leave is at most three quarters full, so three
/// moves make the room of one put; some extents move twice.
const MOVES_MAX: usize = 8;
/// The fewest tries of a change for which the table has no memory yet, and the time for them: half of the shortest time
/// until others would take over, and much longer than merges of segments take.
const TRIES: u32 = 3;
const ROOM_WAIT: Duration = Duration::from_millis(500);

// The rules are built without tables.
const _: () = assert!(OWNER_MAX == layout::OWNER_MAX);

/// Why a table cannot be a node's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It was made with shorter lengths.
    #[error(
        "the table holds keys of at most {key_max} bytes and values of at most {value_max}, and the cluster needs \
         {wanted_key} and {wanted_value}: start with an empty region file, and the node is copied its shards anew"
    )]
    Lengths {
        /// The longest key that it holds, in bytes.
        key_max: usize,
        /// The longest value that it holds, in bytes.
        value_max: usize,
        /// The longest key that it has to hold, in bytes.
        wanted_key: usize,
        /// The longest value that it has to hold, in bytes.
        wanted_value: usize,
    },
    /// It has a page, notes or an intent that this version cannot read.
    #[error(
        "the table's {what} cannot be read ({why}): it was written by a newer version, or is damaged; start this node \
         with the newer version, or with an empty region file"
    )]
    Unreadable {
        /// The page, the notes, or the intent.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The machine has crashed since the table was used.
    #[error(
        "the machine was started anew while a node used this table, which then mixes old pages and new ones, and nothing \
         tells: start with an empty region file (`oneread serve --fresh`), and the node is copied its shards anew"
    )]
    Crashed,
    /// It has entries, but was never a node's.
    #[error(
        "the table has {entries} entries and was no node's so far: nobody knows which of them are the cluster's; start \
         with an empty region file, and put them through a client"
    )]
    Foreign {
        /// The number of entries.
        entries: u64,
    },
}

/// The table of a node.
#[derive(Debug)]
pub struct NodeTable {
    server: Arc<DrivenServer>,
    cluster: ClusterConfig,
    value: Vec<u8>,
    /// When the table was made, by the time of day when it was opened: milliseconds since 1970. From then on ends go by
    /// the table's clock. Setting the time of day later moves no end.
    made: u64,
    /// The intent of an earlier process that was killed.
    intent: Option<Intent>,
}

impl NodeTable {
    /// Opens the table of this server, whose clients only read. Also returns the page and the notes of an earlier
    /// process.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn open(
        server: Arc<DrivenServer>,
        cluster: ClusterConfig,
    ) -> Result<(NodeTable, Page, Notes), TableError> {
        let geometry = server.server().index().geometry();
        let (wanted_key, wanted_value) = lengths(&cluster);
        let (key_max, value_max) = (geometry.key_max(), geometry.value_max());
        if key_max < wanted_key || value_max < wanted_value {
            return Err(TableError::Lengths { key_max, value_max, wanted_key, wanted_value });
        }
        let made = time_of_day().saturating_sub(server.server().index().age().map_or(0, millis));
        let mut table = NodeTable { server, cluster, value: Vec::new(), made, intent: None };
        let (page, notes) = (table.decoded(PAGE_KEY, "page")?, table.decoded(NOTES_KEY, "notes")?);
        table.intent = table.decoded(INTENT_KEY, "intent")?.flatten();
        let (entries, before) = (table.index().len(), table.get(BOOT_KEY));
        if page.is_none() && before.is_none() && entries > 0 {
            return Err(TableError::Foreign { entries });
        }
        // After the end or a kill of a node, its memory is intact. After a crash of the machine, a file on a disk may
        // not be.
        let boot = boot();
        // If the system does not tell its boot id, it may be another start.
        let is_same = |before: &[u8]| !boot.is_empty() && before == &boot[..];
        let was_whole = before.is_none_or(|before| before == STOPPED || is_same(&before));
        if !was_whole {
            return Err(TableError::Crashed);
        }
        if table.put(BOOT_KEY, &boot, Life::Lasting).is_err() {
            return Err(TableError::Crashed);
        }
        Ok((table, page.unwrap_or_default(), notes.unwrap_or_default()))
    }

    fn index(&self) -> &Index {
        self.server.server().index()
    }

    fn driven(&self) -> DrivenTable<'_> {
        self.server.table()
    }

    fn geometry(&self) -> &Geometry {
        self.index().geometry()
    }

    /// Lets extents move, if some should. The server's own thread does that when it has time. But once blocks have
    /// taken all memory, extents have no place to move to, and a put is refused although half of the memory is free.
    fn tidy_extents(&self, key: &[u8], value_len: usize) {
        if self.geometry().extent_bytes(key, value_len) > 0 {
            (0..MOVES_MAX).take_while(|_| self.index().tidy() == Some(Duration::ZERO)).for_each(drop);
        }
    }

    fn decoded<V: DeserializeOwned>(
        &mut self,
        key: &[u8],
        what: &'static str,
    ) -> Result<Option<V>, TableError> {
        let Some(bytes) = self.get(key) else { return Ok(None) };
        decode(&bytes).map(Some).map_err(|why| TableError::Unreadable { what, why })
    }

    fn store<V: Serialize>(&mut self, key: &[u8], value: &V) -> Result<(), NoMemory> {
        let bytes = encode(value).ok_or(NoMemory)?;
        self.put(key, &bytes, Life::Lasting)
    }

    /// Merges segments that removes have left less than half full, and that do not merge by themselves. Values may need
    /// their memory.
    #[cold]
    fn make_room(&self) {
        self.index().shrink();
        if let Some(wait) = self.index().tidy() {
            std::thread::sleep(wait.min(Duration::from_millis(1)));
        }
    }

    /// Makes a change of the table. If it is refused for want of memory, repeats it for a while.
    fn changed(&self, mut change: impl FnMut() -> Result<(), PutError>) -> Result<(), NoMemory> {
        let (begun, mut tries) = (Instant::now(), 0);
        loop {
            tries += 1;
            match change() {
                Ok(()) => return Ok(()),
                Err(error)
                    if tries >= TRIES && begun.elapsed() >= ROOM_WAIT
                        || matches!(
                            error,
                            PutError::NoLife | PutError::TimeToLive { .. } | PutError::OwnerNumber { .. }
                        ) =>
                {
                    tracing::error!(%error, "the table refuses a change");
                    return Err(NoMemory);
                }
                Err(_) => self.make_room(),
            }
        }
    }

    /// Shows the next keys of a scan, with their shards, and moves the cursor behind them.
    fn scan(&self, cursor: &mut KeyCursor, mut see: impl FnMut(ShardIx, &[u8])) -> bool {
        self.index().scan_keys(cursor, |key| {
            if is_of_shard(key) {
                see(self.cluster.shard_of(key), key);
            }
        })
    }
}

/// The node has stopped, and does not use its table any more.
const STOPPED: &[u8] = b"stopped";

/// Notes that the node has stopped: its table is intact, even after a restart of the machine.
pub fn note_stop(index: &Index) {
    if let Err(error) = index.put(BOOT_KEY, STOPPED, PutMode::Upsert) {
        tracing::warn!(%error, "that this node has ended cannot be noted in its table");
    }
}

/// The boot id of the machine.
fn boot() -> Vec<u8> {
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Whether a key belongs to a shard. A node's own keys do not.
fn is_of_shard(key: &[u8]) -> bool {
    !key.starts_with(OWN) || own::shard_of(key).is_some()
}

/// Milliseconds since 1970.
fn time_of_day() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The stored form of a page, or of notes. `None`: it is longer than any table can hold.
pub fn encode<V: Serialize>(value: &V) -> Option<Vec<u8>> {
    postcard::to_extend(value, vec![FORM]).ok()
}

/// Decodes a stored page, or notes. `Err` says what is wrong with them.
pub fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, String> {
    match bytes.split_first() {
        Some((&FORM, rest)) => postcard::from_bytes(rest).map_err(|error| error.to_string()),
        Some((form, _)) => Err(format!("its form is {form}, and this version knows {FORM}")),
        None => Err("it is empty".into()),
    }
}

/// The result of a look at the table. A look that was given up, because the process stood still in the middle of it,
/// says nothing, and is repeated: taking it for absence would lose keys. `None`: no such key is possible.
fn certain<R>(mut look: impl FnMut() -> Result<R, ReadError>) -> Option<R> {
    loop {
        match look() {
            Ok(found) => return Some(found),
            Err(ReadError::KeyLength { .. }) => return None,
            // It has waited for as long as a reader does.
            Err(error) => tracing::warn!(%error, "a node reads its table again"),
        }
    }
}

/// The next step of a walk, of about this many keys, and where it continues. `scan` shows the keys of one part of the
/// table, and returns whether there are more.
fn some_keys<K>(
    from: Option<KeyCursor>,
    enough: usize,
    mut scan: impl FnMut(&mut KeyCursor, &mut Vec<K>) -> bool,
) -> (Vec<K>, Option<KeyCursor>) {
    let (mut cursor, mut keys) = (from.unwrap_or_default(), Vec::new());
    for _ in 0..WALK_PARTS {
        if !scan(&mut cursor, &mut keys) {
            return (keys, None);
        }
        if keys.len() >= enough {
            break;
        }
    }
    (keys, Some(cursor))
}

impl Table for NodeTable {
    type Cursor = KeyCursor;

    const WALKS_AT_ONCE: usize = 128;

    fn get(&mut self, key: &[u8]) -> Option<Value> {
        let (server, value) = (&self.server, &mut self.value);
        let is_there = certain(|| {
            value.clear();
            server.server().index().reader().get_into(key, value)
        });
        is_there.unwrap_or(false).then(|| Bytes::copy_from_slice(value))
    }

    fn value_len(&mut self, key: &[u8]) -> Option<usize> {
        certain(|| self.index().reader().value_len(key)).flatten()
    }

    fn life(&mut self, key: &[u8]) -> Option<Life> {
        if !self.geometry().has_life() {
            return self.value_len(key).map(|_| Life::Lasting);
        }
        let life = certain(|| self.index().life(key)).flatten()?;
        let end = self.index().ends_at(&life).map(|end| End(self.made + millis(end)));
        Some(Life::new(end, Some(life.owner).filter(|owner| *owner != 0)))
    }

    fn has_owners(&self) -> bool {
        self.geometry().has_life()
    }

    fn walk_owned(&mut self, from: Option<KeyCursor>) -> (Vec<OwnedKey>, Option<KeyCursor>) {
        some_keys(from, OWNED_KEYS, |cursor, keys| {
            self.driven().scan_owned(cursor, |key, owner| {
                if is_of_shard(key) {
                    let shard = self.cluster.shard_of(key);
                    keys.push(OwnedKey { shard, key: Bytes::copy_from_slice(key), owner });
                }
            })
        })
    }

    fn now(&self) -> End {
        // By the table's clock, which does not jump.
        End(self.made + self.index().age().map_or(0, millis))
    }

    fn end_after(&self, ttl: Time) -> Option<End> {
        let is_within = ttl <= TTL_MAX && self.driven().can_live(Duration::from_micros(ttl));
        is_within.then(|| End(self.now().0 + ttl.div_ceil(1_000)))
    }

    fn ended(&mut self, max: usize) -> Vec<(ShardIx, Key)> {
        let mut keys = Vec::new();
        self.driven().see_ended(max, |key| {
            if is_of_shard(key) {
                keys.push((self.cluster.shard_of(key), Bytes::copy_from_slice(key)));
            }
        });
        keys
    }

    fn put(&mut self, key: &[u8], value: &[u8], life: Life) -> Result<(), NoMemory> {
        // An entry that has ended meanwhile is put, too: its primary removes it (CL13).
        let end = life.end().map(|end| Duration::from_millis(end.0.saturating_sub(self.made)));
        let owner = life.owner().unwrap_or(0);
        self.changed(|| self.driven().put_until(key, value, end, owner).map(drop))?;
        self.tidy_extents(key, value.len());
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), NoMemory> {
        self.changed(|| self.index().remove(key).map(drop))
    }

    fn walk(&mut self, shard: ShardIx, from: Option<KeyCursor>) -> (Vec<Key>, Option<KeyCursor>) {
        some_keys(from, WALK_KEYS, |cursor, keys| {
            self.scan(cursor, |of, key| {
                if of == shard {
                    keys.push(Bytes::copy_from_slice(key));
                }
            })
        })
    }

    fn was_read(&mut self, key: &[u8]) -> bool {
        self.driven().take_read(key)
    }

    fn stock(&mut self, shards: ShardIx) -> Vec<Stock> {
        let mut stock = vec![Stock::default(); usize::from(shards)];
        let mut cursor = KeyCursor::default();
        let mut more = true;
        while more {
            let mut keys = Vec::new();
            more = self.scan(&mut cursor, |shard, key| keys.push((shard, Bytes::copy_from_slice(key))));
            for (shard, key) in keys {
                let len = self.value_len(&key).unwrap_or(0);
                let cost = self.cost(&key, len);
                if let Some(stock) = stock.get_mut(usize::from(shard)) {
                    (stock.entries, stock.bytes) = (stock.entries + 1, stock.bytes + cost);
                    stock.owners.extend(owners::parts(&key).map(|_| key));
                }
            }
        }
        stock
    }

    fn cost(&self, key: &[u8], value_len: usize) -> u64 {
        entry_bytes(self.geometry(), key, value_len)
    }

    fn memory(&self) -> u64 {
        table_room(self.geometry(), &self.cluster)
    }

    fn store_page(&mut self, page: &Page) -> Result<(), NoMemory> {
        self.store(PAGE_KEY, page)
    }

    fn store_notes(&mut self, notes: &Notes) -> Result<(), NoMemory> {
        self.store(NOTES_KEY, notes)
    }

    fn store_intent(&mut self, intent: Option<&Intent>) -> Result<(), NoMemory> {
        self.store(INTENT_KEY, &intent)
    }

    fn intent(&mut self) -> Option<Intent> {
        self.intent.take()
    }
}

#[cfg(test)]
mod tests;
