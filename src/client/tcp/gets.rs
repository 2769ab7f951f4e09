//! GETs by request ([`wire::gets`](crate::wire)): one key at a time, in pieces where its value is long; or many
//! keys, some hundred in a frame, with several frames under way.

use super::connection::TcpConnection;
use crate::client::error::LinkError;
use crate::client::handle::Deadline;
use crate::client::stats::ClientStats;
use crate::faults::{Rule, kept};
use crate::layout::extent::Reference;
use crate::outcome::{KeyLengthError, ReadError};
use crate::reader::{Answers, Limits};
use crate::sink::{AnySink, LengthSink, LivedValue, PartSink, Sink};
use crate::wire::{BODY_MAX, Found, GotReply, KeysWriter, SOCKET_PIECE_MAX, Wants, split_entry};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// Requests that are under way at once. Their replies are half of what a server keeps for a client that does
/// not read ([`ServerConfig::unread_bytes_max`](crate::ServerConfig::unread_bytes_max)): it never stops for that.
const WINDOW: usize = 8;
/// Keys of a request: the server looks for some while the client takes the answers to others.
const KEYS_MAX: usize = 256;
/// All bytes of a value, however long it is.
const WHOLE: Range<usize> = 0..usize::MAX;
/// Bytes of a reply for a key, without those of its value.
const ENTRY_BYTES: usize = 32;

/// Why requests for keys had no answer.
pub(in crate::client) enum Unanswered {
    /// The connection failed. Another one may give an answer.
    Link(LinkError),
    /// The answer is an error.
    Read(ReadError),
}

impl From<LinkError> for Unanswered {
    fn from(error: LinkError) -> Unanswered {
        Unanswered::Link(error)
    }
}

impl From<ReadError> for Unanswered {
    fn from(error: ReadError) -> Unanswered {
        Unanswered::Read(error)
    }
}

/// Makes requests for keys. It corresponds to a [`Reader`](crate::reader::Reader) over READs.
pub(in crate::client) struct Requester<'c> {
    pub connection: &'c mut TcpConnection,
    pub deadline: Deadline,
    pub stats: &'c mut ClientStats,
    pub limits: Limits,
}

/// The result of a GET of one key.
type FoundExtent = Option<Option<Reference>>;

impl Requester<'_> {
    /// Looks `key` up, and writes its value into `value`.
    pub fn get_into(&mut self, key: &[u8], value: &mut AnySink<'_>) -> Result<bool, Unanswered> {
        let wanted = if value.wants_bytes() { WHOLE } else { 0..0 };
        Ok(self.get(key, wanted, value)?.is_some())
    }

    /// As `get_into`, but returns the value's extent, too.
    pub fn get_with_extent(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<FoundExtent, Unanswered> {
        self.get(key, WHOLE, &mut AnySink::of(value))
    }

    /// Writes the bytes `range` of the value into `part`. Returns the length of the whole value.
    pub fn get_range(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, Unanswered> {
        let mut part = PartSink::new(range.clone(), part);
        let found = self.get(key, range, &mut AnySink::of(&mut part))?;
        Ok(part.outcome(found.is_some()))
    }

    /// The length of the value.
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, Unanswered> {
        let mut length = LengthSink::default();
        let is_there = self.get_into(key, &mut AnySink::of(&mut length))?;
        Ok(length.outcome(is_there))
    }

    /// A GET of one key, with these bytes of its value. If pieces are of two values, asks for them again.
    fn get(
        &mut self,
        key: &[u8],
        wanted: Range<usize>,
        value: &mut AnySink<'_>,
    ) -> Result<FoundExtent, Unanswered> {
        if let Err(error) = self.check(key) {
            self.confirm()?;
            return Err(ReadError::from(error).into());
        }
        let (mut times, mut until) = (0, None);
        loop {
            let looked = self.look(key, &wanted, value)?;
            let len = match looked {
                LookedFor::Absent => {
                    value.put_none();
                    self.count(1, 0);
                    return Ok(None);
                }
                LookedFor::Value(reference) => {
                    self.count(1, 1);
                    return Ok(Some(reference));
                }
                LookedFor::Replaced { len } => len,
            };
            times += 1;
            self.stats.get.retries_replaced += 1;
            let until = *until.get_or_insert_with(|| Instant::now() + self.limits.deadline);
            if times > self.limits.retries_max || Instant::now() >= until {
                return Err(ReadError::Replaced { len, times }.into());
            }
        }
    }

    fn look(
        &mut self,
        key: &[u8],
        wanted: &Range<usize>,
        value: &mut AnySink<'_>,
    ) -> Result<LookedFor, Unanswered> {
        let first = wanted.start..wanted.start.saturating_add(wanted.len().min(SOCKET_PIECE_MAX));
        let mut keys = KeysWriter::default();
        keys.push(key);
        let lives = value.wants_life();
        let wants = piece(lives, &first);
        self.connection.push(&keys, wants);
        // The wanted bytes, or a value as long as the last one, come without another round trip.
        let mut asked = VecDeque::new();
        let end = if wanted.end == WHOLE.end { self.connection.last_len } else { wanted.end };
        let end = end.min(self.connection.geometry().value_max());
        self.ask_ahead(lives, &keys, first.end..end, &mut asked);
        self.connection.send(&self.deadline)?;
        let value_max = self.connection.geometry().value_max();
        let (len, reference, missing) = loop {
            if let Some(found) = first_entry(self.connection, &wants)? {
                self.deadline.renew();
                match found {
                    Found::Absent => {
                        self.connection.drain(&mut self.deadline)?;
                        return Ok(LookedFor::Absent);
                    }
                    Found::NoKey { max } => {
                        self.connection.drain(&mut self.deadline)?;
                        return Err(ReadError::KeyLength { given: key.len(), max }.into());
                    }
                    Found::Value { whole, bytes, life, reference } => {
                        if whole > value_max {
                            return Err(LinkError::Unexpected.into());
                        }
                        value.put_life(life);
                        let Some(range) = value.begin_part(whole) else {
                            self.connection.drain(&mut self.deadline)?;
                            return Ok(LookedFor::Value(reference));
                        };
                        let came = wants.range_of(whole);
                        if came.start > range.start {
                            return Err(LinkError::Unexpected.into());
                        }
                        let end = came.end.min(range.end);
                        if end > range.start {
                            value.put(&bytes[range.start - came.start..end - came.start]);
                        }
                        break (whole, reference, end.max(range.start)..range.end);
                    }
                }
            }
            self.connection.receive(&self.deadline)?;
        };
        if wanted.end == WHOLE.end {
            self.connection.last_len = len;
        }
        if missing.is_empty() {
            self.connection.drain(&mut self.deadline)?;
            return Ok(LookedFor::Value(reference));
        }
        // A value longer than a piece is in no slot.
        let Some(reference) = reference else { return Err(LinkError::Unexpected.into()) };
        match self.get_pieces(&keys, &reference, len, missing, asked, value)? {
            true => Ok(LookedFor::Value(Some(reference))),
            false => Ok(LookedFor::Replaced { len }),
        }
    }

    /// Asks for pieces of these bytes, as many as may be under way.
    fn ask_ahead(
        &mut self,
        lives: bool,
        keys: &KeysWriter,
        bytes: Range<usize>,
        asked: &mut VecDeque<Range<usize>>,
    ) {
        let mut next = bytes.start;
        while asked.len() < WINDOW && next < bytes.end {
            let range = next..bytes.end.min(next.saturating_add(SOCKET_PIECE_MAX));
            self.connection.push(keys, piece(lives, &range));
            next = range.end;
            asked.push_back(range);
        }
    }

    /// Reads these bytes of the value in an extent, with several requests under way. Some may be under way already,
    /// which begin with these bytes. Returns whether all of them came from there (X11).
    fn get_pieces(
        &mut self,
        keys: &KeysWriter,
        reference: &Reference,
        len: usize,
        missing: Range<usize>,
        mut asked: VecDeque<Range<usize>>,
        value: &mut AnySink<'_>,
    ) -> Result<bool, Unanswered> {
        let lives = value.wants_life();
        let mut next = asked.back().map_or(missing.start, |last| last.end);
        loop {
            // Half a window at once: fewer and longer writes.
            if asked.len() <= WINDOW / 2 {
                self.ask_ahead(lives, keys, next..missing.end, &mut asked);
                next = asked.back().map_or(next, |last| last.end);
                self.connection.send(&self.deadline)?;
            }
            let Some(range) = asked.front().filter(|range| range.start < missing.end) else {
                self.connection.drain(&mut self.deadline)?;
                return Ok(true);
            };
            let Some(found) = first_entry(self.connection, &piece(lives, range))? else {
                self.connection.receive(&self.deadline)?;
                continue;
            };
            self.deadline.renew();
            match found {
                // X11.
                Found::Value { whole, bytes, reference: Some(now), .. }
                    if whole == len && kept(Rule::PieceNumber, || now.number == reference.number) =>
                {
                    // The reply may have more bytes than are wanted.
                    value.put(&bytes[..bytes.len().min(missing.end - range.start)]);
                    asked.pop_front();
                }
                _ => {
                    self.connection.drain(&mut self.deadline)?;
                    return Ok(false);
                }
            }
        }
    }

    /// Passes each key's outcome to `answers`, in any order, until it breaks off. The batch then has the keys without
    /// an outcome.
    pub fn answer_each<K: AsRef<[u8]>, A: Answers>(
        &mut self,
        keys: &[K],
        batch: &mut Batch,
        answers: &mut A,
    ) -> Result<ControlFlow<()>, Unanswered> {
        batch.begin_again();
        answers.of_table(self.connection.geometry().generation());
        let flow = self.answer_short(keys, batch, answers)?;
        if flow.is_break() {
            self.connection.drain(&mut self.deadline)?;
            return Ok(flow);
        }
        // Their values are longer than a piece.
        let mut value = LivedValue::default();
        self.connection.last_len = self.connection.last_len.max(batch.longest);
        while let Some(&number) = batch.long.last() {
            let key = keys[number as usize].as_ref();
            let is_there = self.get(key, WHOLE, &mut AnySink::of(&mut value))?.is_some();
            batch.long.pop();
            answers.put_life(value.life);
            if answers.answer(number as usize, Ok(is_there.then_some(&value.sink))).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if !batch.wrong.is_empty() {
            self.confirm()?;
        }
        while let Some((number, error)) = batch.wrong.pop() {
            if answers.answer(number as usize, Err(error)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn answer_short<K: AsRef<[u8]>, A: Answers>(
        &mut self,
        keys: &[K],
        batch: &mut Batch,
        answers: &mut A,
    ) -> Result<ControlFlow<()>, Unanswered> {
        let wants_bytes = A::Sink::WANTS_BYTES;
        let bits = !wants_bytes && !A::Sink::WANTS_LIFE;
        let most = if wants_bytes { SOCKET_PIECE_MAX as u32 } else { 0 };
        let wants = Wants { lives: A::Sink::WANTS_LIFE, bits, from: 0, most };
        let mut request = KeysWriter::default();
        loop {
            if batch.under_way.len() <= WINDOW / 2 {
                while batch.under_way.len() < WINDOW
                    && batch.collect(keys, &mut request, wants_bytes, self.connection.geometry().key_max())
                {
                    self.connection.push(&request, wants);
                }
                self.connection.send(&self.deadline)?;
            }
            let Some(numbers) = batch.under_way.front().cloned() else {
                return Ok(ControlFlow::Continue(()));
            };
            let value_max = self.connection.geometry().value_max();
            let Some(frame) = self.connection.reply()? else {
                self.connection.receive(&self.deadline)?;
                continue;
            };
            let unexpected = || Unanswered::Link(LinkError::Unexpected);
            let reply = GotReply::decode(&frame).ok_or_else(unexpected)?.map_err(LinkError::from)?;
            let (mut gets, mut hits, mut flow) = (0, 0, ControlFlow::Continue(()));
            let mut failed = None;
            match reply {
                GotReply::Failed(error) => failed = Some(error),
                GotReply::Bits(there) => {
                    if !bits || there.len() != 8 * numbers.len().div_ceil(64) {
                        return Err(unexpected());
                    }
                    for (nth, place) in numbers.clone().enumerate() {
                        let is_there = there[nth / 8] >> (nth % 8) & 1 == 1;
                        let number = batch.answer(place).ok_or_else(unexpected)?;
                        (gets, hits) = (gets + 1, hits + u64::from(is_there));
                        flow = answers.answer(number, Ok(is_there.then_some(&[])));
                        if flow.is_break() {
                            break;
                        }
                    }
                }
                GotReply::Entries(mut entries) => {
                    if bits || entries.is_empty() {
                        return Err(unexpected());
                    }
                    let mut bytes_found = 0;
                    while !entries.is_empty() && flow.is_continue() {
                        let (nth, found) = split_entry(&mut entries, &wants).ok_or_else(unexpected)?;
                        let place = numbers.start + nth;
                        if place >= numbers.end {
                            return Err(unexpected());
                        }
                        let number = batch.answer(place).ok_or_else(unexpected)?;
                        flow = match found {
                            Found::Value { whole, .. } if whole > value_max => return Err(unexpected()),
                            Found::Value { whole, bytes, .. } if wants_bytes && bytes.len() < whole => {
                                batch.long.push(number as u32);
                                batch.longest = batch.longest.max(whole);
                                continue;
                            }
                            Found::Value { bytes, life, .. } => {
                                bytes_found += bytes.len();
                                (gets, hits) = (gets + 1, hits + 1);
                                answers.put_life(life);
                                answers.answer(number, Ok(Some(bytes)))
                            }
                            Found::Absent => {
                                gets += 1;
                                answers.put_life(None);
                                answers.answer(number, Ok(None))
                            }
                            Found::NoKey { max } => {
                                let given = keys[number].as_ref().len();
                                answers.answer(number, Err(KeyLengthError { given, max }))
                            }
                        };
                    }
                    batch.learn(hits as usize, bytes_found);
                }
            }
            batch.under_way.pop_front();
            batch.ask_again_for(numbers);
            self.deadline.renew();
            self.count(gets, hits);
            if let Some(error) = failed {
                self.connection.drain(&mut self.deadline)?;
                return Err(error.into());
            }
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }

    fn count(&mut self, gets: u64, hits: u64) {
        self.stats.get.gets += gets;
        self.stats.get.hits += hits;
        self.stats.requests.gets += gets;
    }

    /// Confirms that the server is there. The server's limits refuse a key only then: the next server may have others.
    fn confirm(&self) -> Result<(), LinkError> {
        if self.connection.is_hung_up() { Err(LinkError::HungUp) } else { Ok(()) }
    }

    /// Refuses a key that no table of this geometry holds.
    fn check(&self, key: &[u8]) -> Result<(), KeyLengthError> {
        check(key, self.connection.geometry().key_max())
    }
}

fn check(key: &[u8], max: usize) -> Result<(), KeyLengthError> {
    match key.is_empty() || key.len() > max {
        true => Err(KeyLengthError { given: key.len(), max }),
        false => Ok(()),
    }
}

/// The result of a look for one key.
enum LookedFor {
    Absent,
    /// The value has landed.
    Value(Option<Reference>),
    /// Pieces were of two values.
    Replaced {
        len: usize,
    },
}

/// The request for one key: these bytes of its value, and maybe the entry's life.
fn piece(lives: bool, range: &Range<usize>) -> Wants {
    // No value is longer.
    let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Wants { lives, bits: false, from: word(range.start), most: word(range.len()) }
}

/// The entry of the next reply, which is for one key.
fn first_entry<'c>(
    connection: &'c mut TcpConnection,
    wants: &Wants,
) -> Result<Option<Found<'c>>, Unanswered> {
    let Some(frame) = connection.reply()? else { return Ok(None) };
    match GotReply::decode(&frame).ok_or(LinkError::Unexpected)?.map_err(LinkError::from)? {
        GotReply::Failed(error) => Err(error.into()),
        GotReply::Entries(mut entries) => match split_entry(&mut entries, wants) {
            Some((0, found)) if entries.is_empty() => Ok(Some(found)),
            _ => Err(LinkError::Unexpected.into()),
        },
        GotReply::Bits(_) => Err(LinkError::Unexpected.into()),
    }
}

/// A key of a batch that has its answer.
const ANSWERED: u32 = u32::MAX;

/// A batch, with the keys that have no answer yet. It outlives a connection.
pub(in crate::client) struct Batch {
    /// Numbers of keys in the order of the requests. Keys that have to be asked for again are appended.
    order: Vec<u32>,
    /// The place of the next one in it.
    next: usize,
    /// Requests without a reply yet: places in the order.
    under_way: VecDeque<Range<usize>>,
    /// Keys with long values, and the length of the longest.
    long: Vec<u32>,
    longest: usize,
    /// Keys that the table does not take.
    wrong: Vec<(u32, KeyLengthError)>,
    /// Bytes of values as they usually are.
    usual_bytes: usize,
}

impl Batch {
    pub fn new(keys: usize) -> Batch {
        Batch {
            order: (0..keys as u32).collect(),
            next: 0,
            under_way: VecDeque::new(),
            long: Vec::new(),
            longest: 0,
            wrong: Vec::new(),
            usual_bytes: 128,
        }
    }

    /// Asks for all keys without an answer again: on another connection, or another server.
    fn begin_again(&mut self) {
        if let Some(lost) = self.under_way.front() {
            self.next = lost.start;
            self.under_way.clear();
        }
        let left = self.order.split_off(self.next);
        self.order.clear();
        self.next = 0;
        self.order.extend(self.wrong.drain(..).map(|(number, _)| number));
        self.order.extend(left.into_iter().filter(|&number| number != ANSWERED));
    }

    /// Collects the keys of the next request. Returns whether there are any.
    fn collect<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        request: &mut KeysWriter,
        wants_bytes: bool,
        key_max: usize,
    ) -> bool {
        request.clear();
        let bytes = if wants_bytes { self.usual_bytes } else { 0 };
        let most = (BODY_MAX / (ENTRY_BYTES + bytes)).clamp(1, KEYS_MAX);
        let mut asked = 0;
        while let (true, Some(&number)) = (asked < most, self.order.get(self.next)) {
            let key = keys[number as usize].as_ref();
            if let Err(error) = check(key, key_max) {
                // The keys of a request are neighbours.
                if asked > 0 {
                    break;
                }
                self.order[self.next] = ANSWERED;
                self.wrong.push((number, error));
                self.next += 1;
                continue;
            }
            if !request.push(key) {
                break;
            }
            self.next += 1;
            asked += 1;
        }
        if asked > 0 {
            self.under_way.push_back(self.next - asked..self.next);
        }
        asked > 0
    }

    /// Notes that the key at this place has its answer. Returns its number. `None` if it had one already.
    fn answer(&mut self, place: usize) -> Option<usize> {
        let number = std::mem::replace(&mut self.order[place], ANSWERED);
        (number != ANSWERED).then_some(number as usize)
    }

    /// Asks again for those of these keys for which a reply had no room.
    fn ask_again_for(&mut self, places: Range<usize>) {
        let left: SmallVec<[u32; 16]> =
            self.order[places].iter().copied().filter(|&number| number != ANSWERED).collect();
        self.order.extend(left);
    }

    /// Learns from the lengths of the values that were found.
    fn learn(&mut self, found: usize, bytes: usize) {
        if found > 0 {
            self.usual_bytes = bytes.div_ceil(found);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
