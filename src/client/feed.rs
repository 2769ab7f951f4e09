//! A program's view of the feed of changes.

use super::Client;
use super::error::FeedError;
use super::follow::{FeedPosition, FeedSource, Follower, GapCause, HeardItem, HeardValue};
use super::tries::Backoff;
use crate::base::setters::setters;
use crate::index::{Changed, LeftCause};
use crate::wire::{FeedRefusal, FeedReply, FeedRequest, SentKey, SentValue};
use std::time::{Duration, Instant};

/// The pause before a server without news is asked again. It doubles from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Where a follower begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedFrom {
    /// With the next change.
    #[default]
    Now,
    /// With all keys that are there, and then their changes.
    Keys,
    /// Where another follower stopped ([`ChangeFeed::position`]). Changes that the server does not have any more are a
    /// gap.
    Position(FeedPosition),
    /// With the change of this number, of the present server.
    Number(u64),
}

/// What a program follows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FeedOptions {
    /// Where it begins.
    pub from: FeedFrom,
    /// Only keys that begin with this are shown.
    pub prefix: Vec<u8>,
    /// Whether values are shown.
    pub values: bool,
}

impl FeedOptions {
    /// From the next change of any key on, without values.
    pub fn new() -> FeedOptions {
        FeedOptions::default()
    }
}

setters!(FeedOptions {
    from: FeedFrom,
    prefix: impl Into<Vec<u8>>,
    values: bool,
});

/// What a follower shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedItem {
    /// The walk shows a key. It was not shown before, since the walk began. Later items are its changes.
    Key {
        /// The key.
        key: Vec<u8>,
        /// Its value, if values are wanted, as in [`FeedItem::Came`].
        value: Option<Vec<u8>>,
        /// The entry's owner; 0: nobody.
        owner: u16,
    },
    /// The walk has shown all keys. A key that was neither shown nor came since the walk began is not there.
    Joined,
    /// A key came.
    Came {
        /// The number of the change.
        number: u64,
        /// The key.
        key: Vec<u8>,
        /// Its value, if values are wanted. The client gets a value that is not in its slot when it shows this item: it
        /// may be a later one, or `None` if the key has gone by then.
        value: Option<Vec<u8>>,
        /// The entry's owner; 0: nobody.
        owner: u16,
    },
    /// A key has another value.
    Replaced {
        /// The number of the change.
        number: u64,
        /// The key.
        key: Vec<u8>,
        /// Its value, as in [`FeedItem::Came`].
        value: Option<Vec<u8>>,
        /// The entry's owner; 0: nobody.
        owner: u16,
    },
    /// A key left.
    Left {
        /// The number of the change.
        number: u64,
        /// The key.
        key: Vec<u8>,
        /// Why.
        cause: LeftCause,
    },
    /// All entries of an owner have gone: every key whose last shown entry is this owner's. Shown whatever prefix was
    /// asked for.
    OwnerGone {
        /// The number of the change.
        number: u64,
        /// The owner.
        owner: u16,
    },
    /// Changes are missing. The next items are the changes after them. [`ChangeFeed::resync`] shows what is there.
    Gap {
        /// The place of the first missing change.
        from: FeedPosition,
        /// The place of the next change that is shown.
        to: FeedPosition,
        /// Why.
        cause: GapCause,
    },
}

/// Follows the changes of a table. [`Client::changes`] begins it. It has a handle of its own, so other requests do not
/// wait for it.
#[derive(Debug)]
pub struct ChangeFeed {
    asking: Asking,
    follower: Follower,
}

impl Client {
    /// Follows the changes of the table, from now on or from where `options` says: which keys came, were replaced and
    /// left. Changes of one key are in order, and each change is shown once. Starts the server's feed if nobody follows
    /// it yet: every change after this returns is shown.
    ///
    /// The server keeps the last changes in memory ([`ServerConfig::feed_bytes`](crate::ServerConfig::feed_bytes)), and
    /// does not wait for followers. A follower that falls further behind, or whose server was replaced, gets a
    /// [`Gap`](FeedItem::Gap), and calls [`ChangeFeed::resync`].
    ///
    /// Costs 1 round trip for up to 60 KiB of changes, over verbs 4 KiB. While nothing changes, the server is asked at
    /// most every 5 ms. As long as somebody follows, each change costs the server some 100 ns more.
    ///
    /// # Errors
    /// [`FeedError`]. A position of another table, or one that is not there yet, is refused.
    pub fn changes(&self, options: FeedOptions) -> Result<ChangeFeed, FeedError> {
        let at = match options.from {
            FeedFrom::Now | FeedFrom::Keys => FeedPosition::default(),
            FeedFrom::Position(position) => position,
            FeedFrom::Number(number) => FeedPosition { number, ..FeedPosition::default() },
        };
        let FeedOptions { from, prefix, values } = options;
        let asking = Asking { client: self.clone(), prefix, values };
        let mut changes = ChangeFeed { asking, follower: Follower::new(at) };
        match from {
            FeedFrom::Keys => changes.resync()?,
            _ => drop(changes.follower.step(&mut changes.asking)?),
        }
        Ok(changes)
    }
}

impl ChangeFeed {
    /// The next item. `None` if none has come within this time. Asks the server at least once. An error says what is
    /// wrong now, and the next call asks again: if the server is back then, missed changes are a gap.
    ///
    /// # Errors
    /// [`FeedError`]. No item is lost.
    pub fn next(&mut self, within: Duration) -> Result<Option<FeedItem>, FeedError> {
        let (begun, mut backoff) = (Instant::now(), Backoff::new(PAUSE_FIRST, PAUSE_MAX));
        loop {
            if let Some(heard) = self.follower.peek() {
                self.asking.bring(heard)?;
                return Ok(self.follower.take().map(item));
            }
            if self.follower.step(&mut self.asking)? {
                continue;
            }
            let left = within.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(backoff.take().min(left));
        }
    }

    /// Shows all keys that are there, and then their changes. From now on, each key is shown as it was at an instant
    /// ([`FeedItem::Key`]), then its changes, and no others. A program that keeps a copy of the table empties it first.
    /// Items that were not shown yet are dropped: the new ones cover them.
    ///
    /// # Errors
    /// [`FeedError`].
    pub fn resync(&mut self) -> Result<(), FeedError> {
        self.follower.join(&mut self.asking)
    }

    /// Where another follower continues after the items of this one.
    pub fn position(&self) -> FeedPosition {
        self.follower.position()
    }
}

/// The client that a follower asks.
#[derive(Debug)]
struct Asking {
    client: Client,
    prefix: Vec<u8>,
    values: bool,
}

impl Asking {
    /// Gets the value of the next item, and decrypts it.
    fn bring(&mut self, heard: &mut HeardItem) -> Result<(), FeedError> {
        let (HeardItem::Key(key, value, _) | HeardItem::Change { key, value, .. }) = heard else {
            return Ok(());
        };
        let sent = match value {
            HeardValue::None => return Ok(()),
            HeardValue::Here(_) if !self.client.encrypts() => return Ok(()),
            HeardValue::Here(value) => SentValue::Here(value),
            HeardValue::Elsewhere => SentValue::Elsewhere,
        };
        let brought = self.client.sent_value(&SentKey { key, owner: 0, value: sent })?.flatten();
        *value = brought.map_or(HeardValue::None, HeardValue::Here);
        Ok(())
    }
}

/// The item that the program gets.
fn item(heard: HeardItem) -> FeedItem {
    let plain = |value| match value {
        HeardValue::Here(value) => Some(value),
        HeardValue::None | HeardValue::Elsewhere => None,
    };
    match heard {
        HeardItem::Joined => FeedItem::Joined,
        HeardItem::Gap { from, to, cause } => FeedItem::Gap { from, to, cause },
        HeardItem::Key(key, value, owner) => FeedItem::Key { key, value: plain(value), owner },
        HeardItem::Change { number, what: Changed::Came, key, value, owner, .. } => {
            FeedItem::Came { number, key, value: plain(value), owner }
        }
        HeardItem::Change { number, what: Changed::Replaced, key, value, owner, .. } => {
            FeedItem::Replaced { number, key, value: plain(value), owner }
        }
        HeardItem::Change { number, cause: LeftCause::OwnerGone, key, owner, .. } if key.is_empty() => {
            FeedItem::OwnerGone { number, owner }
        }
        HeardItem::Change { number, what: Changed::Left, key, cause, .. } => {
            FeedItem::Left { number, key, cause }
        }
    }
}

impl FeedSource for Asking {
    type Error = FeedError;

    fn look(&mut self, table: u64, cursor: &[u8]) -> Result<Vec<u8>, FeedError> {
        let (values, prefix) = (self.values, &self.prefix[..]);
        match self.client.ask_feed(FeedRequest::Scan { table, values, prefix, cursor })? {
            FeedReply::Scanned(body) => Ok(body),
            _ => Err(self.nonsense()),
        }
    }

    fn changes(&mut self, from: FeedPosition, end: u64, passed: Option<&[u8]>) -> Result<Vec<u8>, FeedError> {
        let FeedPosition { table, launch, number: from } = from;
        let (values, prefix) = (self.values, &self.prefix[..]);
        let request = FeedRequest::Changes { table, launch, from, end, values, prefix, passed };
        match self.client.ask_feed(request)? {
            FeedReply::Changed(body) => Ok(body),
            _ => Err(self.nonsense()),
        }
    }

    fn is_of_other_table(&self, error: &FeedError) -> bool {
        matches!(error, FeedError::Refused { why: FeedRefusal::OtherTable { .. }, .. })
    }

    fn nonsense(&mut self) -> FeedError {
        self.client.unexpected().into()
    }
}
