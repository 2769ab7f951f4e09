//! A program's view of the feed of changes.

use super::Client;
use super::breaking;
use super::error::{AskError, FeedError};
use super::follow::{FeedPosition, FeedSource, Follower, GapCause, HeardItem, HeardValue};
use super::handle::Posted;
use super::tries::Backoff;
use crate::base::setters::setters;
use crate::index::{Changed, LeftCause};
use crate::wire::{FeedRefusal, FeedReply, FeedRequest, Reply, Request, SentKey, SentValue};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the server lets a request wait for a change. Then it answers that there is none, and is asked again.
const WAITS_FOR: Duration = Duration::from_secs(30);
/// Longer than that nobody waits.
const WITHIN_MAX: Duration = Duration::from_secs(1 << 30);
/// As much later the answer may come: the server answers requests together whose times end close to each other.
const WAITS_LONGER: Duration = Duration::from_secs(4);
/// The pause before a server is asked again that answers at once and has nothing new: it doubles from the first to the
/// last.
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

/// Ends waits of a [`ChangeFeed`] from any thread. [`ChangeFeed::interrupter`] makes it.
#[derive(Clone, Debug)]
pub struct FeedInterrupter {
    /// Readable while a wait is to end.
    readable: Arc<OwnedFd>,
}

impl FeedInterrupter {
    /// Ends the wait for a change that is under way, or else the next one, as if its time were over.
    pub fn interrupt(&self) {
        // It fails only where it is readable anyway.
        let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
    }
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
    /// Costs 1 round trip for up to 60 KiB of changes, over verbs 4 KiB. While nothing changes, a request waits at the
    /// server and its reply is on the way as soon as something does; it is asked again every 30 s. (A server of an earlier
    /// version is asked every 5 ms, and so is one at which too many wait already.) Over verbs a follower has a queue pair of
    /// its own. Each change costs the server some 100 ns more as long as somebody follows.
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
        let client = self.clone();
        let asking = Asking { client, prefix, values, posted: None, old: None, ending: None };
        let mut changes = ChangeFeed { asking, follower: Follower::new(at) };
        match from {
            FeedFrom::Keys => changes.resync()?,
            _ => drop(changes.follower.step(&mut changes.asking)?),
        }
        Ok(changes)
    }
}

impl ChangeFeed {
    /// What comes next. `None` if nothing has come within this time: asks once at least. The thread sleeps meanwhile. An
    /// error says what is wrong now, and the next call asks again: the server may be back, and then what was missed is a
    /// gap.
    ///
    /// The request that waits at the server stays there when the time is over. The next call waits for its reply, or with no
    /// time has the server answer it at once.
    ///
    /// # Errors
    /// [`FeedError`]. Nothing that was not given is lost. A server that is suspended is noticed after 39 s: it had 30 s to
    /// answer.
    pub fn next(&mut self, within: Duration) -> Result<Option<FeedItem>, FeedError> {
        let (begun, mut backoff) = (Instant::now(), Backoff::new(PAUSE_FIRST, PAUSE_MAX));
        loop {
            if let Some(heard) = self.follower.peek() {
                self.asking.bring(heard)?;
                return Ok(self.follower.take().map(item));
            }
            let (at, until) = (self.follower.waits_from(), begun + within.min(WITHIN_MAX));
            let is_new = match at.filter(|at| self.asking.may_wait(*at, within)) {
                Some(at) => match self.asking.wait(at, (!within.is_zero()).then_some(until))? {
                    Waited::Answered(answer) => self.follower.hear_answer(&mut self.asking, answer)?,
                    Waited::NotYet => false,
                    Waited::AskAgain => self.follower.step(&mut self.asking)?,
                },
                None => self.follower.step(&mut self.asking)?,
            };
            if is_new {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !breaking::is_wanted() || self.asking.is_interrupted() {
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
        self.asking.take_back();
        self.follower.join(&mut self.asking)
    }

    /// What ends waits of this feed from another thread. It takes a descriptor of the process, once.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn interrupter(&mut self) -> io::Result<FeedInterrupter> {
        let readable = match &self.asking.ending {
            Some(readable) => Arc::clone(readable),
            None => {
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                Arc::clone(self.asking.ending.insert(Arc::new(eventfd(0, flags)?)))
            }
        };
        Ok(FeedInterrupter { readable })
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
    /// Until when an answer must be there to a request that waits at the server.
    posted: Option<Instant>,
    /// The server, by its number, that does not know how to let requests wait.
    old: Option<u64>,
    /// Readable while a wait is to end.
    ending: Option<Arc<OwnedFd>>,
}

/// What came of waiting at the server.
enum Waited {
    /// What the request was answered.
    Answered(Result<Vec<u8>, FeedError>),
    /// Nothing so far.
    NotYet,
    /// The request was lost, or could not be made: it is to be asked in the other way.
    AskAgain,
}

impl Asking {
    /// Whether a request may wait at the server for changes from there on.
    fn may_wait(&self, at: FeedPosition, within: Duration) -> bool {
        self.posted.is_some() || !within.is_zero() && self.old != Some(at.launch)
    }

    /// Has a request wait at the server, and waits for its answer until then; without a time, has it answered at once.
    fn wait(&mut self, at: FeedPosition, until: Option<Instant>) -> Result<Waited, FeedError> {
        match self.wait_for_reply(at, until) {
            Ok(Some(reply)) => {
                let answer = self.client.feed_reply(reply).and_then(|reply| match reply {
                    FeedReply::Changed(body) => Ok(body),
                    FeedReply::Scanned(_) | FeedReply::Refused(_) => Err(self.nonsense()),
                });
                Ok(Waited::Answered(answer))
            }
            Ok(None) if self.posted.is_some() => Ok(Waited::NotYet),
            Ok(None) => Ok(Waited::AskAgain),
            Err(error) => {
                self.posted = None;
                match error {
                    // Another one may be there.
                    AskError::ServerGone { .. } => Ok(Waited::AskAgain),
                    error => Err(error.into()),
                }
            }
        }
    }

    fn wait_for_reply(
        &mut self,
        at: FeedPosition,
        until: Option<Instant>,
    ) -> Result<Option<Reply>, AskError> {
        let patience = self.client.options.deadline;
        let ends = match self.posted {
            Some(ends) => ends,
            None => {
                let FeedPosition { table, launch, number: from } = at;
                let (end, values, prefix) = (u64::MAX, self.values, &self.prefix[..]);
                let (passed, within) = (None, Some(WAITS_FOR));
                let wanted =
                    FeedRequest::Changes { table, launch, from, end, values, prefix, passed, within };
                match self.client.post(&Request::Feed(wanted))? {
                    Posted::OldServer => {
                        self.old = Some(launch);
                        return Ok(None);
                    }
                    Posted::Sent => *self.posted.insert(Instant::now() + WAITS_FOR + WAITS_LONGER + patience),
                }
            }
        };
        let (until, ends) = match until {
            Some(until) => (until, ends),
            None => {
                self.client.hurry()?;
                let ends = Instant::now() + patience;
                (ends, ends)
            }
        };
        let Asking { client, ending, .. } = self;
        let reply = breaking::ended_by(ending.clone(), || client.late_reply(until.min(ends)))?;
        if reply.is_some() {
            self.posted = None;
        } else if Instant::now() >= ends {
            self.client.disconnect();
            let address = self.client.address().clone();
            return Err(AskError::Deadline { address, deadline: patience });
        }
        Ok(reply)
    }

    /// Whether a wait was to end. It does so once.
    fn is_interrupted(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| rustix::io::read(ending, &mut [0; 8]).is_ok())
    }

    /// Takes back a request that waits at the server.
    fn take_back(&mut self) {
        if self.posted.take().is_some() {
            let patience = Instant::now() + self.client.options.deadline;
            // Where it does not come, the next request opens another connection.
            if let Err(error) = self.client.hurry().and_then(|()| self.client.late_reply(patience)) {
                tracing::debug!(error = &error as &dyn std::error::Error, "a request that waited was lost");
            }
        }
    }

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
        let within = None;
        let request = FeedRequest::Changes { table, launch, from, end, values, prefix, passed, within };
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
