//! Follows a table: its changes, and a walk that joins them without a hole (J2, J6, J7).
//!
//! ```text
//! start the feed: number p
//! look 1: number n1 ── changes p to n1 of keys passed before ── its keys
//! look 2: number n2 ── changes n1 to n2 of keys passed before ── its keys ...
//! ```
//!
//! The follower asks a [`FeedSource`], so tests can have it ask an index.

use crate::faults::{Rule, broken};
use crate::index::{Changed, LeftCause};
use crate::wire::{ChangedBody, ScannedBody, SentKey, SentValue};
use std::collections::VecDeque;

/// The place of a follower in a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedPosition {
    /// The generation of the table; 0 for any.
    pub table: u64,
    /// Which server of this table counts: a random number, which differs from start to start (I3). 0 with any table.
    pub launch: u64,
    /// The number of the next change; 0: the next that is made.
    pub number: u64,
}

/// Why changes are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapCause {
    /// Newer changes have taken their place in the server's memory. The follower was too slow, or was away.
    TooSlow,
    /// Another server has the table now, and its numbers begin again. `from` is a number of the old server, `to` of the
    /// new one.
    OtherServer,
    /// Another table is served there now.
    OtherTable,
}

/// Where a key's value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeardValue {
    None,
    Here(Vec<u8>),
    /// A GET finds it.
    Elsewhere,
}

/// What a follower has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeardItem {
    /// The walk shows a key.
    Key(Vec<u8>, HeardValue, u16),
    /// The walk has shown all keys.
    Joined,
    /// A key has changed. If it is empty, an owner has gone.
    Change { number: u64, what: Changed, cause: LeftCause, key: Vec<u8>, value: HeardValue, owner: u16 },
    /// Changes are missing.
    Gap { from: FeedPosition, to: FeedPosition, cause: GapCause },
}

/// The source that a follower asks. Each answer is the body of a reply.
pub(super) trait FeedSource {
    type Error;

    /// Asks for the next looks of a walk over this table.
    fn look(&mut self, table: u64, cursor: &[u8]) -> Result<Vec<u8>, Self::Error>;

    /// Asks for changes from a place on, up to the one with the number `end`. If a walk has passed only some keys, only
    /// for changes of those.
    fn changes(
        &mut self,
        from: FeedPosition,
        end: u64,
        passed: Option<&[u8]>,
    ) -> Result<Vec<u8>, Self::Error>;

    /// Whether an error means that another table is there.
    fn is_of_other_table(&self, error: &Self::Error) -> bool;

    /// The error for a body that makes no sense.
    fn nonsense(&mut self) -> Self::Error;
}

/// One look of a walk.
#[derive(Clone, Debug)]
struct OwnLook {
    number: u64,
    keys: Vec<(Vec<u8>, HeardValue, u16)>,
    cursor: Vec<u8>,
}

/// A walk that will join the feed.
#[derive(Clone, Debug, Default)]
struct Joining {
    /// The keys that it has passed. Empty: none.
    cursor: Vec<u8>,
    /// Looks whose keys are not shown yet.
    looks: VecDeque<OwnLook>,
}

/// Follows a table.
#[derive(Debug)]
pub(super) struct Follower {
    at: FeedPosition,
    /// Whether it has received anything yet. Until then, a wrong place is its caller's error.
    has_begun: bool,
    joining: Option<Joining>,
    heard: VecDeque<HeardItem>,
}

fn owned(value: SentValue<'_>) -> HeardValue {
    match value {
        SentValue::None => HeardValue::None,
        SentValue::Here(value) => HeardValue::Here(value.to_vec()),
        SentValue::Elsewhere => HeardValue::Elsewhere,
    }
}

impl Follower {
    /// A follower from this place on.
    pub fn new(at: FeedPosition) -> Follower {
        Follower { at, has_begun: false, joining: None, heard: VecDeque::new() }
    }

    /// The place behind everything that was taken.
    pub fn position(&self) -> FeedPosition {
        let place_of = |heard: &HeardItem| match heard {
            HeardItem::Change { number, .. } => Some(FeedPosition { number: *number, ..self.at }),
            HeardItem::Gap { from, .. } => Some(*from),
            HeardItem::Key(..) | HeardItem::Joined => None,
        };
        self.heard.iter().find_map(place_of).unwrap_or(self.at)
    }

    /// Whether a walk goes on.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// The next item.
    pub fn peek(&mut self) -> Option<&mut HeardItem> {
        self.heard.front_mut()
    }

    /// Takes the next item.
    pub fn take(&mut self) -> Option<HeardItem> {
        self.heard.pop_front()
    }

    /// Begins a walk over all keys. Drops items that were not taken: the walk shows their results.
    pub fn join<S: FeedSource>(&mut self, source: &mut S) -> Result<(), S::Error> {
        let now = FeedPosition { number: 0, ..self.at };
        let mut looks = VecDeque::new();
        if broken(Rule::FeedStart) {
            looks = looks_from(source, FeedPosition::default(), &[])?;
        }
        // J2: before the first look.
        (self.at, self.has_begun) = (place_of(source, now, self.has_begun)?, true);
        self.heard.clear();
        self.joining = Some(Joining { cursor: Vec::new(), looks });
        Ok(())
    }

    /// Makes one request, or tells the keys of a look. Returns whether there was anything to do.
    pub fn step<S: FeedSource>(&mut self, source: &mut S) -> Result<bool, S::Error> {
        let Some(joining) = &mut self.joining else {
            return self.hear(source, u64::MAX, None);
        };
        let Some(look) = joining.looks.front() else {
            match looks_from(source, self.at, &joining.cursor) {
                Ok(looks) if !looks.is_empty() => joining.looks = looks,
                // The look is another server's. The next request shows that.
                Ok(_) => return self.hear(source, u64::MAX, None),
                Err(error) => return self.begin_anew(source, error),
            }
            return Ok(true);
        };
        if self.at.number < look.number {
            let (end, passed) = (look.number, joining.cursor.clone());
            return self.hear(source, end, Some(&passed));
        }
        let Some(look) = joining.looks.pop_front() else { return Ok(false) };
        let heard = look.keys.into_iter().map(|(key, value, owner)| HeardItem::Key(key, value, owner));
        self.heard.extend(heard);
        joining.cursor = look.cursor;
        if joining.cursor.is_empty() {
            self.joining = None;
            self.heard.push_back(HeardItem::Joined);
        }
        Ok(true)
    }

    /// Where it stands, if nothing but a change brings it on.
    pub fn waits_from(&self) -> Option<FeedPosition> {
        (self.has_begun && self.joining.is_none()).then_some(self.at)
    }

    /// Asks for changes up to the one with the number `end`.
    fn hear<S: FeedSource>(
        &mut self,
        source: &mut S,
        end: u64,
        passed: Option<&[u8]>,
    ) -> Result<bool, S::Error> {
        let asked = source.changes(self.at, end, passed);
        self.hear_answer(source, asked)
    }

    /// Hears what was answered to a request for changes from where it stands. Returns whether that is anything new.
    pub fn hear_answer<S: FeedSource>(
        &mut self,
        source: &mut S,
        asked: Result<Vec<u8>, S::Error>,
    ) -> Result<bool, S::Error> {
        let body = match asked {
            Ok(body) => body,
            Err(error) => return self.begin_anew(source, error),
        };
        let Some(mut body) = ChangedBody::of(&body) else { return Err(source.nonsense()) };
        let (before, is_any) = (self.at, self.at.table == 0);
        let from = FeedPosition { table: body.table, launch: body.launch, number: body.numbers.start };
        let mut heard = Vec::new();
        let is_other = !is_any && (before.table, before.launch) != (from.table, from.launch);
        // J6
        let is_gap = before.number > 0 && (is_other || from.number > before.number);
        if is_gap && !broken(Rule::FeedGap) {
            let cause = if is_other { GapCause::OtherServer } else { GapCause::TooSlow };
            self.heard.push_back(HeardItem::Gap { from: before, to: from, cause });
            // The keys that the walk has shown may not be there any more.
            (self.at, self.joining) = (from, None);
            return Ok(true);
        }
        loop {
            match body.next() {
                Ok(None) => break,
                Ok(Some(change)) => heard.push(HeardItem::Change {
                    number: change.number,
                    what: change.what,
                    cause: change.cause,
                    key: change.key.key.to_vec(),
                    value: owned(change.key.value),
                    owner: change.key.owner,
                }),
                Err(()) => return Err(source.nonsense()),
            }
        }
        (self.at, self.has_begun) = (FeedPosition { number: body.numbers.end, ..from }, true);
        let is_new = !heard.is_empty() || self.at.number > before.number;
        self.heard.extend(heard);
        Ok(is_new)
    }

    /// After an error: if another table is served, follows its feed, and notes a gap.
    fn begin_anew<S: FeedSource>(&mut self, source: &mut S, error: S::Error) -> Result<bool, S::Error> {
        if !self.has_begun || !source.is_of_other_table(&error) {
            return Err(error);
        }
        let (from, to) = (self.at, place_of(source, FeedPosition::default(), false)?);
        (self.at, self.joining) = (to, None);
        self.heard.push_back(HeardItem::Gap { from, to, cause: GapCause::OtherTable });
        Ok(true)
    }
}

/// Starts the feed if it is off, and returns the place of its next change.
fn place_of<S: FeedSource>(
    source: &mut S,
    now: FeedPosition,
    may_differ: bool,
) -> Result<FeedPosition, S::Error> {
    let asked = source.changes(now, u64::MAX, None);
    let body = match asked {
        Err(error) if may_differ && source.is_of_other_table(&error) => {
            source.changes(FeedPosition::default(), u64::MAX, None)?
        }
        asked => asked?,
    };
    let Some(body) = ChangedBody::of(&body) else { return Err(source.nonsense()) };
    Ok(FeedPosition { table: body.table, launch: body.launch, number: body.numbers.end })
}

/// The next looks. None if another server made them than the one that is followed.
fn looks_from<S: FeedSource>(
    source: &mut S,
    at: FeedPosition,
    cursor: &[u8],
) -> Result<VecDeque<OwnLook>, S::Error> {
    let body = source.look(at.table, cursor)?;
    let Some(body) = ScannedBody::of(&body) else { return Err(source.nonsense()) };
    if at.table != 0 && body.launch != at.launch {
        return Ok(VecDeque::new());
    }
    let key = |key: &SentKey<'_>| (key.key.to_vec(), owned(key.value), key.owner);
    let looks = body.looks.iter().map(|look| OwnLook {
        number: look.number,
        keys: look.keys.iter().map(key).collect(),
        cursor: look.cursor.to_vec(),
    });
    Ok(looks.collect())
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;

#[cfg(all(test, feature = "sim", not(loom)))]
mod scripted;
