//! The format of scans and of the feed of changes.
//!
//! ```text
//! Scan       table u64, flags u8, length u8, prefix, cursor
//! Scanned    table u64, launch u64, then looks: number u64, bytes u32, keys; length u16, cursor (none: no key is left)
//!            a key: length u8, value u8, length u16, owner u16, key, value
//! Changes    table u64, launch u64, from u64, end u64, flags u8, length u8, prefix; nanoseconds to wait u64, if flag 4 says
//!            so; cursor of a scan, if flag 2 does
//! Changed    table u64, launch u64, from u64, next u64, then changes:
//!            number u64, what u8, cause u8, and a key as above
//! Refused    code u64, two numbers u64
//! ```
//!
//! An owner that has gone is told as a change without a key. The byte `value` of a key: 0: there is none, or it was not
//! asked for; 1: it is here; 2: a GET finds it. Only the server looks into a cursor.

use super::frame::{Frame, HEAD, WireError, encode};
use crate::index::{ChangeRecord, Changed, LeftCause, RecordValue};
use crate::layout::slot::KEY_MAX;
use std::ops::Range;
use std::time::Duration;

/// Operations of requests, and outcomes.
mod number {
    pub const SCAN: u16 = 40;
    pub const CHANGES: u16 = 41;
    pub const SCANNED: u16 = 60;
    pub const CHANGED: u16 = 61;
    pub const REFUSED: u16 = 140;
}

/// Reasons to refuse a scan, or changes.
mod reason {
    pub const TABLE: u64 = 1;
    pub const FUTURE: u64 = 2;
    pub const CURSOR: u64 = 3;
    pub const PREFIX: u64 = 4;
    pub const OFF: u64 = 5;
    pub const ROOM: u64 = 6;
    pub const MEMORY: u64 = 7;
}

/// Longest body of such a reply over a socket, in bytes.
pub(crate) const FEED_REPLY_MAX: usize = 60 << 10;

/// Longest cursor, in bytes.
const CURSOR_MAX: usize = 24 + KEY_MAX;
/// Bytes in front of a key and its value.
const KEY_HEAD: usize = 6;
/// The least room for a reply. It always has room for one key.
const ROOM_MIN: usize = 1 << 10;

const VALUES: u8 = 1;
const PASSED: u8 = 2;
const WAITS: u8 = 4;

/// A request for keys, or for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedRequest<'a> {
    /// Asks for the next keys of a scan.
    Scan {
        /// The generation of the table that is scanned; 0 for any.
        table: u64,
        /// Whether values are wanted.
        values: bool,
        /// Keys that do not begin with this are not wanted.
        prefix: &'a [u8],
        /// Where the scan continues. Empty at the beginning.
        cursor: &'a [u8],
    },
    /// Asks for changes, and starts the feed if it is off.
    Changes {
        /// The generation of the table whose changes have these numbers; 0 for any.
        table: u64,
        /// The launch number of the server that gave these numbers.
        launch: u64,
        /// The number of the first change that is wanted; 0 for the next one.
        from: u64,
        /// The number behind the last change that is wanted.
        end: u64,
        /// Whether values are wanted.
        values: bool,
        /// Changes of keys that do not begin with this are not wanted.
        prefix: &'a [u8],
        /// Only changes of keys that this scan has passed are wanted.
        passed: Option<&'a [u8]>,
        /// Where nothing is there to tell, the reply may wait so long for something. `None`: it comes at once.
        within: Option<Duration>,
    },
}

impl<'a> FeedRequest<'a> {
    pub(super) fn encode(&self, id: u64, out: &mut Vec<u8>) {
        match *self {
            FeedRequest::Scan { table, values, prefix, cursor } => {
                let flags = u8::from(values) * VALUES;
                let parts = [&table.to_le_bytes()[..], &[flags, prefix.len() as u8], prefix, cursor];
                encode(out, number::SCAN, 0, id, &parts);
            }
            FeedRequest::Changes { table, launch, from, end, values, prefix, passed, within } => {
                let flags = (u8::from(values) * VALUES)
                    | (u8::from(passed.is_some()) * PASSED)
                    | (u8::from(within.is_some()) * WAITS);
                let numbers = [table, launch, from, end].map(u64::to_le_bytes).concat();
                let within = within.map(|within| u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
                let within = within.map(u64::to_le_bytes);
                let within = within.as_ref().map_or(&[][..], |within| within);
                let passed = passed.unwrap_or_default();
                let parts = [&numbers, &[flags, prefix.len() as u8][..], prefix, within, passed];
                encode(out, number::CHANGES, 0, id, &parts);
            }
        }
    }

    /// `None` if it is another request.
    pub(super) fn decode(frame: &Frame<'a>) -> Option<Result<FeedRequest<'a>, WireError>> {
        let unfitting = WireError::Body { op: frame.op(), len: frame.body().len() };
        let mut bytes = FeedBytes(frame.body());
        let request = match frame.op() {
            number::SCAN => (|| {
                let table = bytes.u64()?;
                let (flags, prefix) = bytes.options(VALUES)?;
                Some(FeedRequest::Scan { table, values: flags & VALUES != 0, prefix, cursor: bytes.0 })
            })(),
            number::CHANGES => (|| {
                let [table, launch, from, end] = bytes.four()?;
                let (flags, prefix) = bytes.options(VALUES | PASSED | WAITS)?;
                let within = if flags & WAITS != 0 { Some(Duration::from_nanos(bytes.u64()?)) } else { None };
                let passed = (flags & PASSED != 0).then_some(bytes.0);
                let is_all = passed.is_some() || bytes.0.is_empty();
                let values = flags & VALUES != 0;
                is_all.then_some(FeedRequest::Changes {
                    table,
                    launch,
                    from,
                    end,
                    values,
                    prefix,
                    passed,
                    within,
                })
            })(),
            _ => return None,
        };
        Some(request.ok_or(unfitting))
    }
}

/// The server's answer to a [`FeedRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedReply {
    /// Looks of a scan: [`ScannedBody`].
    Scanned(Vec<u8>),
    /// Changes: [`ChangedBody`].
    Changed(Vec<u8>),
    /// The reason for a refusal.
    Refused(FeedRefusal),
}

impl FeedReply {
    pub(super) fn encode(&self, reply: &mut dyn FnMut(u16, &[u8])) {
        match self {
            FeedReply::Scanned(body) => reply(number::SCANNED, body),
            FeedReply::Changed(body) => reply(number::CHANGED, body),
            FeedReply::Refused(why) => {
                reply(number::REFUSED, &why.to_numbers().map(u64::to_le_bytes).concat());
            }
        }
    }

    /// `None` if it is another reply.
    pub(super) fn decode(frame: &Frame<'_>) -> Option<Result<FeedReply, WireError>> {
        let body = frame.body();
        let unfitting = WireError::Body { op: frame.op(), len: body.len() };
        Some(match frame.status() {
            number::SCANNED => Ok(FeedReply::Scanned(body.to_vec())),
            number::CHANGED => Ok(FeedReply::Changed(body.to_vec())),
            number::REFUSED => {
                let numbers = bytemuck::try_pod_read_unaligned(body).map_err(|_| unfitting);
                numbers.map(|numbers| FeedReply::Refused(FeedRefusal::from_numbers(numbers)))
            }
            _ => return None,
        })
    }
}

/// Why a server refuses to send keys or changes.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedRefusal {
    /// The cursor, or the number, is of another table.
    #[error(
        "it is of the table of generation {given:#018x}, and the server has that of {this:#018x}; begin anew"
    )]
    OtherTable {
        /// The generation that was given.
        given: u64,
        /// The generation of the server's table.
        this: u64,
    },
    /// No change has this number yet.
    #[error("there is no change {given} yet: the next one is {next}")]
    Future {
        /// The number that was given.
        given: u64,
        /// The number of the next change.
        next: u64,
    },
    /// No scan of this table has had this cursor.
    #[error("it is no cursor of a scan of this table; begin anew")]
    Cursor,
    /// No key can begin with this.
    #[error("a prefix of {given} bytes, and the longest key has {max}")]
    Prefix {
        /// Length of the prefix.
        given: usize,
        /// Length of the longest key.
        max: usize,
    },
    /// The server has no feed.
    #[error("the server has no feed of changes (`ServerConfig::feed_bytes` is 0)")]
    Off,
    /// The server's system has no memory for the feed.
    #[error(
        "the server's system has refused {bytes} bytes for the feed of changes; free memory, or have it serve a shorter one (`ServerConfig::feed_bytes`)"
    )]
    Memory {
        /// Bytes of changes.
        bytes: u64,
    },
    /// Replies on this path have no room for a key.
    #[error("a reply that goes this way has no room for a key; have shorter ones")]
    Room,
    /// This version does not know the reason.
    #[error("for reason {code}, which this version does not know; use a newer one")]
    Other {
        /// The reason.
        code: u64,
    },
}

impl FeedRefusal {
    fn to_numbers(self) -> [u64; 3] {
        match self {
            FeedRefusal::OtherTable { given, this } => [reason::TABLE, given, this],
            FeedRefusal::Future { given, next } => [reason::FUTURE, given, next],
            FeedRefusal::Cursor => [reason::CURSOR, 0, 0],
            FeedRefusal::Prefix { given, max } => [reason::PREFIX, given as u64, max as u64],
            FeedRefusal::Off => [reason::OFF, 0, 0],
            FeedRefusal::Room => [reason::ROOM, 0, 0],
            FeedRefusal::Memory { bytes } => [reason::MEMORY, bytes, 0],
            FeedRefusal::Other { code } => [code, 0, 0],
        }
    }

    fn from_numbers([code, a, b]: [u64; 3]) -> FeedRefusal {
        match code {
            reason::TABLE => FeedRefusal::OtherTable { given: a, this: b },
            reason::FUTURE => FeedRefusal::Future { given: a, next: b },
            reason::CURSOR => FeedRefusal::Cursor,
            reason::PREFIX => FeedRefusal::Prefix { given: a as usize, max: b as usize },
            reason::OFF => FeedRefusal::Off,
            reason::ROOM => FeedRefusal::Room,
            reason::MEMORY => FeedRefusal::Memory { bytes: a },
            code => FeedRefusal::Other { code },
        }
    }
}

/// A value in a reply, if it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentValue<'a> {
    /// There is none, or it was not asked for.
    None,
    /// It is here.
    Here(&'a [u8]),
    /// A GET finds it.
    Elsewhere,
}

/// Appends a key, if it fits into `room` bytes. A value that does not fit is elsewhere.
fn append_key(out: &mut Vec<u8>, room: usize, key: &[u8], owner: u16, value: SentValue<'_>) -> bool {
    let (kind, bytes) = match value {
        SentValue::None => (0, &[][..]),
        SentValue::Here(bytes) => (1, bytes),
        SentValue::Elsewhere => (2, &[][..]),
    };
    let value_len = u16::try_from(bytes.len());
    let Ok(value_len) = value_len.map(u16::to_le_bytes) else {
        return append_key(out, room, key, owner, SentValue::Elsewhere);
    };
    if out.len() + KEY_HEAD + key.len() + bytes.len() > room {
        return false;
    }
    out.extend([key.len() as u8, kind]);
    out.extend(value_len);
    out.extend(owner.to_le_bytes());
    out.extend(key);
    out.extend(bytes);
    true
}

/// Writes the body of a [`FeedReply::Scanned`].
#[derive(Debug)]
pub(crate) struct ScannedWriter {
    body: Vec<u8>,
    /// Bytes of the body, less a cursor.
    room: usize,
    /// Where the present look begins.
    look: usize,
    looks: usize,
}

impl ScannedWriter {
    const LOOK_HEAD: usize = 12;

    /// A writer of a body of at most `room` bytes. `None` if that is too few.
    pub fn new(table: u64, launch: u64, room: usize) -> Option<ScannedWriter> {
        let body = [table, launch].map(u64::to_le_bytes).concat();
        (room >= ROOM_MIN).then(|| ScannedWriter { body, room: room - CURSOR_MAX - 2, look: 0, looks: 0 })
    }

    /// Begins a look.
    pub fn begin(&mut self) {
        self.look = self.body.len();
        self.body.extend([0; Self::LOOK_HEAD]);
    }

    /// Whether another look may have room.
    pub fn has_room(&self) -> bool {
        self.body.len() + Self::LOOK_HEAD + KEY_HEAD + KEY_MAX < self.room
    }

    /// Adds a key, if there is room.
    pub fn key(&mut self, key: &[u8], owner: u16, value: SentValue<'_>) -> bool {
        let is_first = self.looks == 0 && self.body.len() == self.look + Self::LOOK_HEAD;
        append_key(&mut self.body, self.room, key, owner, value)
            || is_first && append_key(&mut self.body, self.room, key, owner, SentValue::Elsewhere)
    }

    /// Ends the look.
    pub fn end(&mut self, number: u64, cursor: &[u8]) {
        let keys = self.body.len() - self.look - Self::LOOK_HEAD;
        self.body[self.look..][..8].copy_from_slice(&number.to_le_bytes());
        self.body[self.look + 8..][..4].copy_from_slice(&(keys as u32).to_le_bytes());
        self.body.extend((cursor.len() as u16).to_le_bytes());
        self.body.extend(cursor);
        self.looks += 1;
    }

    pub fn finish(self) -> FeedReply {
        FeedReply::Scanned(self.body)
    }
}

/// Writes the body of a [`FeedReply::Changed`].
#[derive(Debug)]
pub(crate) struct ChangedWriter {
    body: Vec<u8>,
    room: usize,
}

impl ChangedWriter {
    const HEAD: usize = 32;

    /// A writer of a body of at most `room` bytes. `None` if that is too few.
    pub fn new(room: usize) -> Option<ChangedWriter> {
        (room >= ROOM_MIN).then(|| ChangedWriter { body: vec![0; Self::HEAD], room })
    }

    /// Adds a change, if there is room.
    pub fn change(&mut self, number: u64, change: &ChangeRecord<'_>, values: bool) -> bool {
        let (before, is_first) = (self.body.len(), self.body.len() == Self::HEAD);
        self.body.extend(number.to_le_bytes());
        self.body.extend([change.what as u8, change.cause.to_byte()]);
        let value = match change.value {
            RecordValue::Here(value) if values => SentValue::Here(value),
            RecordValue::Elsewhere if values => SentValue::Elsewhere,
            _ => SentValue::None,
        };
        let is_in = append_key(&mut self.body, self.room, change.key, change.owner, value)
            || is_first
                && append_key(&mut self.body, self.room, change.key, change.owner, SentValue::Elsewhere);
        if !is_in {
            self.body.truncate(before);
        }
        is_in
    }

    /// Ends the body. `numbers` are the changes that it has, or passes over.
    pub fn finish(mut self, table: u64, launch: u64, numbers: Range<u64>) -> FeedReply {
        let head = [table, launch, numbers.start, numbers.end].map(u64::to_le_bytes).concat();
        self.body[..Self::HEAD].copy_from_slice(&head);
        FeedReply::Changed(self.body)
    }
}

/// A key in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentKey<'a> {
    pub key: &'a [u8],
    /// The entry's owner; 0: nobody.
    pub owner: u16,
    pub value: SentValue<'a>,
}

/// One look of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentLook<'a> {
    /// The number of the feed's next change at the time of the look.
    pub number: u64,
    pub keys: Vec<SentKey<'a>>,
    /// Where the scan continues. Empty: no key is left.
    pub cursor: &'a [u8],
}

/// The body of a [`FeedReply::Scanned`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScannedBody<'a> {
    /// The table's generation.
    pub table: u64,
    /// The server's number (I3).
    pub launch: u64,
    pub looks: Vec<SentLook<'a>>,
}

impl<'a> ScannedBody<'a> {
    /// `None` if the body makes no sense.
    pub fn of(body: &'a [u8]) -> Option<ScannedBody<'a>> {
        let mut bytes = FeedBytes(body);
        let (table, launch, mut looks) = (bytes.u64()?, bytes.u64()?, Vec::new());
        while !bytes.0.is_empty() {
            let (number, len) = (bytes.u64()?, bytes.u32()?);
            let (mut of_keys, mut keys) = (FeedBytes(bytes.take(len as usize)?), Vec::new());
            while !of_keys.0.is_empty() {
                keys.push(of_keys.key().filter(|key| !key.key.is_empty())?);
            }
            let len = bytes.u16()?;
            looks.push(SentLook { number, keys, cursor: bytes.take(len.into())? });
        }
        (!looks.is_empty()).then_some(ScannedBody { table, launch, looks })
    }
}

/// A change in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentChange<'a> {
    pub number: u64,
    pub what: Changed,
    pub cause: LeftCause,
    pub key: SentKey<'a>,
}

/// The body of a [`FeedReply::Changed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedBody<'a> {
    /// The table's generation.
    pub table: u64,
    /// The server's number (I3).
    pub launch: u64,
    /// The changes that it has, or passes over.
    pub numbers: Range<u64>,
    rest: FeedBytes<'a>,
}

impl<'a> ChangedBody<'a> {
    /// `None` if the body makes no sense.
    pub fn of(body: &'a [u8]) -> Option<ChangedBody<'a>> {
        let mut rest = FeedBytes(body);
        let [table, launch, from, next] = rest.four()?;
        (from <= next).then_some(ChangedBody { table, launch, numbers: from..next, rest })
    }

    /// The next change. `Err` if it makes no sense.
    pub fn next(&mut self) -> Result<Option<SentChange<'a>>, ()> {
        if self.rest.0.is_empty() {
            return Ok(None);
        }
        let rest = &mut self.rest;
        let change = (|| {
            let (number, [what, cause]) = (rest.u64()?, rest.array::<2>()?);
            let what = match what {
                0 => Changed::Came,
                1 => Changed::Replaced,
                2 => Changed::Left,
                _ => return None,
            };
            let (cause, key) = (LeftCause::from_byte(cause), rest.key()?);
            let has_key = !key.key.is_empty() || what == Changed::Left && cause == LeftCause::OwnerGone;
            (has_key && self.numbers.contains(&number)).then_some(SentChange { number, what, cause, key })
        })();
        change.map(Some).ok_or(())
    }
}

/// Bytes that are taken from the front.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FeedBytes<'a>(&'a [u8]);

impl<'a> FeedBytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn four(&mut self) -> Option<[u64; 4]> {
        Some([self.u64()?, self.u64()?, self.u64()?, self.u64()?])
    }

    /// Flags, all of which must be known, and a prefix.
    fn options(&mut self, known: u8) -> Option<(u8, &'a [u8])> {
        let [flags, len] = self.array()?;
        let prefix = self.take(len.into())?;
        (flags & !known == 0).then_some((flags, prefix))
    }

    fn key(&mut self) -> Option<SentKey<'a>> {
        let [key, kind] = self.array()?;
        let (value, owner) = (self.u16()?, self.u16()?);
        let (key, value) = (self.take(key.into())?, self.take(value.into())?);
        let value = match kind {
            0 => SentValue::None,
            1 => SentValue::Here(value),
            2 => SentValue::Elsewhere,
            _ => return None,
        };
        Some(SentKey { key, owner, value })
    }
}

/// Bytes that a reply of this length has for its body.
pub(crate) fn feed_room(reply_bytes: usize) -> usize {
    reply_bytes.saturating_sub(HEAD).min(FEED_REPLY_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::frame::decode;
    use super::super::{Reply, Request};
    use super::*;

    fn encoded(request: FeedRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        Request::Feed(request).encode(7, &mut bytes);
        bytes
    }

    fn frame(op: u16, status: u16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, op, status, 7, &[body]);
        out
    }

    /// The bytes of each request and refusal. Servers and clients of other builds rely on them.
    #[test]
    fn golden_requests_and_refusals() {
        let numbers = |all: &[u64]| all.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let waits = |passed, within| FeedRequest::Changes {
            table: 1,
            launch: 2,
            from: 3,
            end: 4,
            values: passed == Some(&b"cursor"[..]),
            prefix: b"pre",
            passed,
            within,
        };
        let (changes, second) = (|passed| waits(passed, None), Some(Duration::from_secs(1)));
        let head = numbers(&[1, 2, 3, 4]);
        for (op, request, body) in [
            (
                40,
                FeedRequest::Scan { table: 1, values: true, prefix: b"pre", cursor: b"cursor" },
                [&numbers(&[1])[..], b"\x01\x03precursor"].concat(),
            ),
            (
                40,
                FeedRequest::Scan { table: 0, values: false, prefix: b"", cursor: b"" },
                [&numbers(&[0])[..], b"\0\0"].concat(),
            ),
            (41, changes(None), [&head[..], b"\0\x03pre"].concat()),
            (41, changes(Some(b"")), [&head[..], b"\x02\x03pre"].concat()),
            (41, changes(Some(b"cursor")), [&head[..], b"\x03\x03precursor"].concat()),
            (41, waits(None, second), [&head[..], b"\x04\x03pre", &numbers(&[1_000_000_000])].concat()),
            (
                41,
                waits(Some(b"cursor"), second),
                [&head[..], b"\x07\x03pre", &numbers(&[1_000_000_000]), b"cursor"].concat(),
            ),
        ] {
            let bytes = frame(op, 0, &body);
            assert_eq!(encoded(request), bytes, "{request:?}");
            assert_eq!(Request::decode(&decode(&bytes).unwrap().unwrap()), Ok(Request::Feed(request)));
        }
        for (refusal, body) in [
            (FeedRefusal::OtherTable { given: 8, this: 9 }, [1, 8, 9]),
            (FeedRefusal::Future { given: 8, next: 9 }, [2, 8, 9]),
            (FeedRefusal::Cursor, [3, 0, 0]),
            (FeedRefusal::Prefix { given: 8, max: 9 }, [4, 8, 9]),
            (FeedRefusal::Off, [5, 0, 0]),
            (FeedRefusal::Room, [6, 0, 0]),
            (FeedRefusal::Memory { bytes: 8 }, [7, 8, 0]),
            (FeedRefusal::Other { code: 99 }, [99, 0, 0]),
        ] {
            let (reply, mut bytes) = (Reply::Feed(FeedReply::Refused(refusal)), Vec::new());
            reply.encode(7, &mut bytes);
            assert_eq!(bytes, frame(0x8000, 140, &numbers(&body)), "{refusal:?}");
            assert_eq!(Reply::decode(&decode(&bytes).unwrap().unwrap()), Ok(reply));
        }
        let bodies = [(60, FeedReply::Scanned(vec![1, 2])), (61, FeedReply::Changed(vec![1, 2]))];
        for (status, reply) in bodies.map(|(status, reply)| (status, Reply::Feed(reply))) {
            let mut bytes = Vec::new();
            reply.encode(7, &mut bytes);
            assert_eq!(bytes, frame(0x8000, status, &[1, 2]));
            assert_eq!(Reply::decode(&decode(&bytes).unwrap().unwrap()), Ok(reply));
        }
    }

    /// Bodies that do not fit are errors: too short, flags that nobody knows, a cursor that nobody asked for.
    #[test]
    fn unfitting_bodies_are_refused() {
        for (op, body) in [
            (40, vec![0; 9]),
            (40, vec![0, 0, 0, 0, 0, 0, 0, 0, 2, 0]),
            (40, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            (41, vec![0; 33]),
            (41, [&[0; 32][..], &[8, 0]].concat()),
            (41, [&[0; 32][..], &[4, 0, 1, 2, 3]].concat()),
            (41, [&[0; 32][..], &[4, 0], &[9; 9]].concat()),
            (41, [&[0; 32][..], &[1, 0, 9]].concat()),
        ] {
            let bytes = frame(op, 0, &body);
            let error = Request::decode(&decode(&bytes).unwrap().unwrap());
            assert_eq!(error, Err(WireError::Body { op, len: body.len() }), "{body:?}");
        }
        let bytes = frame(0x8000, 140, &[0; 23]);
        let error = Reply::decode(&decode(&bytes).unwrap().unwrap());
        assert_eq!(error, Err(WireError::Body { op: 0x8000, len: 23 }));
    }

    /// Looks and changes come back as they were written, as far as there is room. A value for which there is none
    /// is elsewhere. Whatever bytes come, they are taken apart or refused.
    #[test]
    fn replies_come_back() {
        let value = [5; 500];
        let mut out = ScannedWriter::new(1, 2, ROOM_MIN).unwrap();
        out.begin();
        assert!(out.key(b"a", 0, SentValue::None) && out.key(b"b", 7, SentValue::Here(b"value")));
        out.end(3, b"cursor");
        out.begin();
        assert!(out.key(b"c", 0, SentValue::Here(&value)));
        assert!(!out.key(b"d", 0, SentValue::Here(&value)), "no room");
        assert!(!out.has_room());
        out.end(4, b"");
        assert!(
            ScannedWriter::new(1, 2, ROOM_MIN - 1).is_none() && ChangedWriter::new(ROOM_MIN - 1).is_none()
        );
        let FeedReply::Scanned(body) = out.finish() else { unreachable!() };
        assert!(body.len() <= ROOM_MIN);
        let scanned = ScannedBody::of(&body).unwrap();
        let key = |key, value| SentKey { key, owner: 0, value };
        let looks = [
            SentLook {
                number: 3,
                keys: vec![
                    key(b"a", SentValue::None),
                    SentKey { owner: 7, ..key(b"b", SentValue::Here(b"value")) },
                ],
                cursor: b"cursor",
            },
            SentLook { number: 4, keys: vec![key(b"c", SentValue::Here(&value))], cursor: b"" },
        ];
        assert_eq!((scanned.table, scanned.launch, &scanned.looks[..]), (1, 2, &looks[..]));
        let mut first = ScannedWriter::new(1, 2, ROOM_MIN).unwrap();
        first.begin();
        assert!(first.key(&[1; 255], 0, SentValue::Here(&[6; 5_000])), "elsewhere");
        first.end(1, &[2; CURSOR_MAX]);
        let FeedReply::Scanned(long) = first.finish() else { unreachable!() };
        assert_eq!(ScannedBody::of(&long).unwrap().looks[0].keys, [key(&[1; 255], SentValue::Elsewhere)]);

        let record =
            |what, value| ChangeRecord { what, cause: LeftCause::Removed, key: b"key", owner: 0, value };
        let mut out = ChangedWriter::new(ROOM_MIN).unwrap();
        assert!(out.change(3, &record(Changed::Came, RecordValue::Here(&[7; 5_000])), true));
        assert!(out.change(4, &record(Changed::Left, RecordValue::None), true));
        assert!(out.change(5, &record(Changed::Replaced, RecordValue::Here(b"v")), false));
        assert!(out.change(6, &record(Changed::Replaced, RecordValue::Here(b"v")), true));
        let gone = LeftCause::OwnerGone;
        let of_owner =
            ChangeRecord { key: b"", owner: 9, cause: gone, ..record(Changed::Left, RecordValue::None) };
        assert!(out.change(7, &of_owner, true));
        assert!(!out.change(8, &record(Changed::Came, RecordValue::Here(&[7; 5_000])), true), "no room");
        let FeedReply::Changed(changed) = out.finish(1, 2, 3..8) else { unreachable!() };
        let mut taken = ChangedBody::of(&changed).unwrap();
        assert_eq!((taken.table, taken.launch, taken.numbers.clone()), (1, 2, 3..8));
        for (number, what, value) in [
            (3, Changed::Came, SentValue::Elsewhere),
            (4, Changed::Left, SentValue::None),
            (5, Changed::Replaced, SentValue::None),
            (6, Changed::Replaced, SentValue::Here(b"v")),
        ] {
            let right = SentChange { number, what, cause: LeftCause::Removed, key: key(b"key", value) };
            assert_eq!(taken.next(), Ok(Some(right)));
        }
        let of_owner = SentKey { key: b"", owner: 9, value: SentValue::None };
        let right = SentChange { number: 7, what: Changed::Left, cause: gone, key: of_owner };
        assert_eq!(taken.next(), Ok(Some(right)));
        assert_eq!(taken.next(), Ok(None));
        for bytes in [body, long, changed] {
            for cut in 0..bytes.len() {
                let _ = ScannedBody::of(&bytes[..cut]);
                let mut cut = ChangedBody::of(&bytes[..cut]);
                while let Some(Ok(Some(_))) = cut.as_mut().map(ChangedBody::next) {}
            }
        }
    }
}
