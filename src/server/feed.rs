//! Scans and the feed of changes: the server's answers.

use crate::faults::{Rule, kept};
use crate::index::{Index, ScanPoint};
use crate::wire::{ChangedWriter, FeedRefusal, FeedReply, FeedRequest, ScannedWriter, SentValue};
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks of a scan for one request: each takes some microseconds.
const LOOKS_MAX: usize = 32;
/// Changes that are looked at for one request, whether they are wanted or not.
const CHANGES_MAX: u64 = 1 << 13;

/// Counts of what followers were told.
#[derive(Debug, Default)]
pub(crate) struct FollowerCounters {
    /// How many changes the last follower to ask had not seen. Relaxed, as the next: statistics.
    lag: AtomicU64,
    /// Times that changes were missed.
    gaps: AtomicU64,
}

impl FollowerCounters {
    /// Counts a request for changes from the number `from`. It was told the changes from `told_from`, of those before
    /// `next`.
    fn count(&self, from: u64, told_from: u64, next: u64) {
        self.lag.store(next.saturating_sub(from), Ordering::Relaxed);
        if told_from > from {
            self.gaps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How far the last follower to ask was behind, and how often followers missed changes.
    pub fn read(&self) -> (u64, u64) {
        (self.lag.load(Ordering::Relaxed), self.gaps.load(Ordering::Relaxed))
    }
}

/// What is found for a request.
pub(crate) enum FeedFound {
    /// Something to tell, if only that it is refused.
    Told(FeedReply),
    /// No change that is wanted. The reply says so. Every change before `seen` was looked at.
    Nothing { reply: FeedReply, seen: u64 },
}

/// Answers a request, in a body of at most `room` bytes. `feed_bytes` is the memory for the feed's records.
pub(crate) fn answer(
    index: &Index,
    request: FeedRequest<'_>,
    feed_bytes: u64,
    room: usize,
    followers: &FollowerCounters,
) -> FeedReply {
    match find(index, request, 0, feed_bytes, room, followers) {
        FeedFound::Told(reply) | FeedFound::Nothing { reply, .. } => reply,
    }
}

/// Looks for what a request asks for, likewise. Changes before `seen` were looked at before: none of them is wanted.
pub(crate) fn find(
    index: &Index,
    request: FeedRequest<'_>,
    seen: u64,
    feed_bytes: u64,
    room: usize,
    followers: &FollowerCounters,
) -> FeedFound {
    let found = match request {
        FeedRequest::Scan { table, values, prefix, cursor } => check(index, table, prefix)
            .and_then(|()| scan(index, values, prefix, cursor, room))
            .map(FeedFound::Told),
        FeedRequest::Changes { table, prefix, .. } => match feed_bytes {
            0 => Err(FeedRefusal::Off),
            _ => check(index, table, prefix)
                .and_then(|()| changes(index, request, seen, feed_bytes, room, followers)),
        },
    };
    found.unwrap_or_else(|why| FeedFound::Told(FeedReply::Refused(why)))
}

fn check(index: &Index, table: u64, prefix: &[u8]) -> Result<(), FeedRefusal> {
    let (this, max) = (index.geometry().generation(), index.geometry().key_max());
    if table != 0 && table != this {
        return Err(FeedRefusal::OtherTable { given: table, this });
    }
    if prefix.len() > max {
        return Err(FeedRefusal::Prefix { given: prefix.len(), max });
    }
    Ok(())
}

fn point(index: &Index, cursor: &[u8]) -> Result<ScanPoint, FeedRefusal> {
    ScanPoint::from_bytes(cursor, index.geometry()).map_err(|why| {
        tracing::debug!(why, "a cursor that no scan has had");
        FeedRefusal::Cursor
    })
}

fn scan(
    index: &Index,
    values: bool,
    prefix: &[u8],
    cursor: &[u8],
    room: usize,
) -> Result<FeedReply, FeedRefusal> {
    let geometry = index.geometry();
    let mut point = point(index, cursor)?;
    let mut out = ScannedWriter::new(geometry.generation(), index.launch(), room).ok_or(FeedRefusal::Room)?;
    for nth in 0..LOOKS_MAX {
        out.begin();
        let number = index.scan(&mut point, &mut |key, value, owner| {
            let value = match value {
                _ if !values => SentValue::None,
                Some(value) => SentValue::Here(value),
                None => SentValue::Elsewhere,
            };
            !key.starts_with(prefix) || out.key(key, owner, value)
        });
        let cursor = if point.is_at_end() { Vec::new() } else { point.to_bytes(geometry) };
        debug_assert!(nth == 0 || number.is_some(), "the end was told");
        out.end(number.unwrap_or_else(|| index.feed().next()), &cursor);
        if cursor.is_empty() || !out.has_room() {
            break;
        }
    }
    Ok(out.finish())
}

fn changes(
    index: &Index,
    request: FeedRequest<'_>,
    seen: u64,
    feed_bytes: u64,
    room: usize,
    followers: &FollowerCounters,
) -> Result<FeedFound, FeedRefusal> {
    let FeedRequest::Changes { table: given, launch, from, end, values, prefix, passed, .. } = request else {
        unreachable!("the caller has looked")
    };
    let (geometry, this) = (index.geometry(), index.launch());
    let passed = passed.map(|cursor| point(index, cursor)).transpose()?;
    let mut out = ChangedWriter::new(room).ok_or(FeedRefusal::Room)?;
    let started = index.feed().start(feed_bytes);
    let next = started.map_err(|error| {
        tracing::warn!(%error, "no memory for a feed of changes");
        FeedRefusal::Memory { bytes: feed_bytes }
    })?;
    let table = geometry.generation();
    // Numbers of an earlier server mean nothing here. The follower sees a gap.
    if from == 0 || given != 0 && launch != this {
        return Ok(FeedFound::Told(out.finish(table, this, next..next)));
    }
    if from > next {
        return Err(FeedRefusal::Future { given: from, next });
    }
    let first = from.max(seen);
    let end = end.min(first.saturating_add(CHANGES_MAX));
    // J7
    let has_passed = |key: &[u8]| {
        let point = passed.as_ref();
        point.is_none_or(|point| kept(Rule::FeedPassed, || point.has_passed(geometry, key)))
    };
    let mut is_any = false;
    let mut numbers = index.feed().read(first..end, &mut |number, change| {
        // The record of an owner that has gone may concern any key.
        let is_wanted = change.key.is_empty() || change.key.starts_with(prefix) && has_passed(change.key);
        is_any |= is_wanted;
        !is_wanted || out.change(number, change, values)
    });
    followers.count(first, numbers.start, next);
    // Q10
    if numbers.start == first {
        numbers.start = from;
    }
    // Not where some were missed, or where it has not come to the end.
    let is_nothing = !is_any && numbers.start == from && (next..end).contains(&numbers.end);
    let (seen, reply) = (numbers.end, out.finish(table, this, numbers));
    Ok(if is_nothing { FeedFound::Nothing { reply, seen } } else { FeedFound::Told(reply) })
}
