//! GETs by request: many keys in one frame, and their values in one reply.
//!
//! ```text
//! request   0..4   what is wanted    bit 0: lives of entries; bit 1: whether keys are there, and nothing else
//!           4..8   from              the first byte of each value that is wanted
//!           8..12  most              so many of its bytes at most
//!           12..   keys              length (2 bytes), and the key's bytes
//!
//! reply     entries, in any order:
//!           0..2   number of the key in the request
//!           2      0: absent; 1: a value; 2: no key of this table
//!           3      bit 0: a life comes, too; bit 1: a reference
//!           4..8   length of the whole value; of a key that is none, the longest of the table
//!           8..    of a value, its bytes that are wanted
//!                  the entry's life (12 bytes)
//!                  the reference to its extent (24 bytes), where it does not stand in its slot
//!
//!     or    a bit for each key: byte n / 8, bit n % 8; whole words of 8 bytes
//! ```
//!
//! A reply is one frame. It has as many entries as fit, at least one. The client asks again for keys that the reply
//! does not name. If only a part of a value has come, the client asks for its other parts. Parts with the same
//! reference are of one value, because bytes of an extent never change while a slot names it.

use super::frame::{BODY_MAX, Frame, HEAD, SOCKET_PIECE_MAX, WireError, begin, encode, end};
use super::reply::REPLY;
use crate::get::Retry;
use crate::layout::WORD;
use crate::layout::extent::{REFERENCE_BYTES, Reference};
use crate::layout::life::{LIFE_BYTES, Life};
use crate::outcome::ReadError;
use crate::sink::{Sink, put_in_parts};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

/// The outcome of a request for keys.
mod status {
    pub const GOT: u16 = 210;
    pub const GOT_BITS: u16 = 211;
    pub const GET_FAILED: u16 = 212;
}

/// The kind of a key's entry.
mod kind {
    pub const ABSENT: u8 = 0;
    pub const VALUE: u8 = 1;
    pub const NO_KEY: u8 = 2;
}

const LIVES: u32 = 1;
const BITS: u32 = 2;
const HAS_LIFE: u8 = 1;
const HAS_REFERENCE: u8 = 2;

/// Bytes of a request before its keys.
const REQUEST_HEAD: usize = 12;
/// Bytes of an entry before its value.
const ENTRY_HEAD: usize = 8;
/// Bytes of an entry without those of its value.
const ENTRY_MAX: usize = ENTRY_HEAD + LIFE_BYTES + REFERENCE_BYTES;
const _: () = assert!(ENTRY_MAX + SOCKET_PIECE_MAX <= BODY_MAX, "a reply has room for one entry");

/// What the client wants of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// The lives of the entries.
    pub lives: bool,
    /// Whether keys are there, and nothing else.
    pub bits: bool,
    /// The first byte of the value.
    pub from: u32,
    /// The most bytes of the value from there on. No more than 60 KiB are sent, as in a piece of an upload.
    pub most: u32,
}

impl Wants {
    /// The wanted bytes of a value of this length.
    pub fn range_of(&self, len: usize) -> Range<usize> {
        let start = (self.from as usize).min(len);
        start..len.min(start + (self.most as usize).min(SOCKET_PIECE_MAX))
    }
}

/// Keys to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetsRequest<'a> {
    /// What is wanted of each.
    pub wants: Wants,
    /// The keys as they are sent.
    keys: &'a [u8],
}

impl<'a> GetsRequest<'a> {
    /// The bytes of the body.
    pub(super) fn parts(&self) -> ([u8; REQUEST_HEAD], &'a [u8]) {
        let Wants { lives, bits, from, most } = self.wants;
        let flags = (u32::from(lives) * LIVES) | (u32::from(bits) * BITS);
        (bytemuck::cast([flags.to_le_bytes(), from.to_le_bytes(), most.to_le_bytes()]), self.keys)
    }

    /// Decodes the request in a body. `None` unless each key is complete.
    pub(super) fn from_body(body: &'a [u8]) -> Option<GetsRequest<'a>> {
        let (head, keys) = body.split_first_chunk::<REQUEST_HEAD>()?;
        let [flags, from, most]: [[u8; 4]; 3] = bytemuck::cast(*head);
        let [flags, from, most] = [flags, from, most].map(u32::from_le_bytes);
        let wants = Wants { lives: flags & LIVES != 0, bits: flags & BITS != 0, from, most };
        let mut rest = keys;
        while !rest.is_empty() {
            rest = split_key(rest)?.1;
        }
        (flags & !(LIVES | BITS) == 0 && !keys.is_empty()).then_some(GetsRequest { wants, keys })
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.keys;
        std::iter::from_fn(move || {
            let (key, others) = split_key(rest)?;
            rest = others;
            Some(key)
        })
    }
}

fn split_key(keys: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = keys.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_le_bytes(*len).into())
}

/// Collects the keys of a request.
#[derive(Debug, Default)]
pub struct KeysWriter(Vec<u8>);

impl KeysWriter {
    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes one more key, if there is room.
    pub fn push(&mut self, key: &[u8]) -> bool {
        let has_room = REQUEST_HEAD + self.0.len() + 2 + key.len() <= BODY_MAX;
        if has_room {
            self.0.extend_from_slice(&(key.len() as u16).to_le_bytes());
            self.0.extend_from_slice(key);
        }
        has_room
    }

    /// The request for these keys.
    pub fn request(&self, wants: Wants) -> GetsRequest<'_> {
        GetsRequest { wants, keys: &self.0 }
    }
}

// ---- the server's side ------------------------------------------------------------------------------

/// Appends the entries of a reply to a buffer. It is the [`Sink`] of the values. With `LIVES` it takes the lives of
/// entries, too.
#[derive(Debug)]
pub(crate) struct GotWriter<'a, const LIVES: bool> {
    out: &'a mut Vec<u8>,
    /// Where the frame begins.
    frame: usize,
    /// Where the present entry begins.
    entry: usize,
    wants: Wants,
    /// The length of the last value that began.
    whole: usize,
    /// Bytes that are still to be skipped, and bytes that are still to be taken after that.
    skipped: usize,
    wanted: usize,
    life: Option<Life>,
    /// Whether the last value had no room.
    is_full: bool,
}

impl<'a, const LIVES: bool> GotWriter<'a, LIVES> {
    /// Begins the reply to the request with this number.
    pub fn new(out: &'a mut Vec<u8>, id: u64, wants: Wants) -> GotWriter<'a, LIVES> {
        let frame = begin(out, REPLY, status::GOT, id);
        let entry = out.len();
        let (whole, skipped, wanted) = (0, 0, 0);
        GotWriter { out, frame, entry, wants, whole, skipped, wanted, life: None, is_full: false }
    }

    /// Ends the entry of the key with this number: with the value that was written last, or without one. Returns
    /// whether there was room for it.
    #[inline]
    pub fn end_entry(&mut self, number: usize, found: Option<Option<Reference>>) -> bool {
        let is_full = std::mem::take(&mut self.is_full);
        let Some(reference) = found else { return self.push(number, kind::ABSENT, 0) };
        if is_full {
            self.out.truncate(self.entry);
            return false;
        }
        let mut flags = 0;
        if let (true, Some(life)) = (LIVES, self.life) {
            flags |= HAS_LIFE;
            self.out.extend_from_slice(&life.to_bytes());
        }
        if let Some(reference) = reference {
            flags |= HAS_REFERENCE;
            self.out.extend_from_slice(&reference.to_bytes());
        }
        let head = head(number, kind::VALUE, flags, self.whole);
        self.out[self.entry..self.entry + ENTRY_HEAD].copy_from_slice(&head);
        self.entry = self.out.len();
        true
    }

    /// Writes that the table cannot have the key with this number. Returns whether there was room for that.
    pub fn no_key(&mut self, number: usize, max: usize) -> bool {
        self.push(number, kind::NO_KEY, max)
    }

    fn push(&mut self, number: usize, kind: u8, whole: usize) -> bool {
        self.out.truncate(self.entry);
        let has_room = self.room() >= ENTRY_HEAD;
        if has_room {
            self.out.extend_from_slice(&head(number, kind, 0, whole));
            self.entry = self.out.len();
        }
        has_room
    }

    /// Bytes that fit into the frame behind the last entry.
    fn room(&self) -> usize {
        self.frame + HEAD + BODY_MAX - self.entry
    }

    /// Ends the reply.
    pub fn finish(self) {
        self.out.truncate(self.entry);
        end(self.out, self.frame);
    }

    /// Replaces the reply by an error.
    pub fn fail(self, id: u64, error: &ReadError) {
        self.out.truncate(self.frame);
        encode(self.out, REPLY, status::GET_FAILED, id, &[bytemuck::bytes_of(&error_to_words(error))]);
    }
}

fn head(number: usize, kind: u8, flags: u8, whole: usize) -> [u8; ENTRY_HEAD] {
    let ([a, b], [c, d, e, f]) = ((number as u16).to_le_bytes(), (whole as u32).to_le_bytes());
    [a, b, kind, flags, c, d, e, f]
}

/// The outcome is whether the key was found.
impl<const LIVES: bool> Sink for GotWriter<'_, LIVES> {
    type Outcome = bool;
    const WANTS_LIFE: bool = LIVES;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        let Range { start, end } = self.wants.range_of(len);
        self.out.truncate(self.entry);
        (self.whole, self.skipped, self.wanted) = (len, start, end - start);
        self.is_full = self.room() < ENTRY_MAX + self.wanted;
        if self.is_full {
            return false;
        }
        self.out.reserve(ENTRY_MAX + self.wanted);
        self.out.extend_from_slice(&[0; ENTRY_HEAD]);
        self.wanted > 0
    }

    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        let is_wanted = self.begin(len);
        self.skipped = 0;
        is_wanted.then(|| self.wants.range_of(len))
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        let bytes = &bytes[skipped..];
        let bytes = &bytes[..self.wanted.min(bytes.len())];
        self.wanted -= bytes.len();
        self.out.extend_from_slice(bytes);
    }

    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        if self.skipped == 0 && len <= self.wanted {
            self.wanted -= len;
            return self.out.put_with(len, fill);
        }
        put_in_parts(self, len, fill);
    }

    /// Copies whole words: that is quicker than copying a length that is only known at run time.
    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        if self.begin(len) {
            let words: [[u8; WORD]; N] = std::array::from_fn(|n| word(n).to_le_bytes());
            if self.wanted < len {
                return self.put(&words.as_flattened()[..len]);
            }
            self.out.extend_from_slice(words.as_flattened());
            self.out.truncate(self.entry + ENTRY_HEAD + len);
            self.wanted = 0;
        }
    }

    fn put_none(&mut self) {
        self.is_full = false;
        self.out.truncate(self.entry);
    }

    #[inline]
    fn put_life(&mut self, life: Option<Life>) {
        self.life = life;
    }

    fn value_len(&self) -> usize {
        self.whole
    }

    fn landed(&self) -> Option<&[u8]> {
        self.out.get(self.entry + ENTRY_HEAD..)
    }

    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}

/// The reply of bits to the request with this number.
pub(crate) fn encode_bits(out: &mut Vec<u8>, id: u64, bits: &[u64]) {
    encode(out, REPLY, status::GOT_BITS, id, &[bytemuck::cast_slice(bits)]);
}

// ---- the client's side ------------------------------------------------------------------------------

/// The server's reply.
#[derive(Clone, Debug)]
pub enum GotReply<'a> {
    /// Entries, still encoded.
    Entries(&'a [u8]),
    /// A bit for each key.
    Bits(&'a [u8]),
    /// The server's look failed.
    Failed(ReadError),
}

/// The reply for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The key is absent.
    Absent,
    /// The key has a value.
    Value {
        /// The length of the whole value.
        whole: usize,
        /// The wanted bytes of the value.
        bytes: &'a [u8],
        /// The entry's life, if it was asked for.
        life: Option<Life>,
        /// The reference to its extent, if it is not in its slot.
        reference: Option<Reference>,
    },
    /// The table takes keys of at most this length, and no empty key.
    NoKey {
        /// That length.
        max: usize,
    },
}

impl<'a> GotReply<'a> {
    /// Decodes the reply in a frame. `None` if it is another kind of reply.
    pub fn decode(frame: &Frame<'a>) -> Option<Result<GotReply<'a>, WireError>> {
        let unfitting = WireError::Body { op: frame.op(), len: frame.body().len() };
        Some(Ok(match (frame.op(), frame.status()) {
            (REPLY, status::GOT) => GotReply::Entries(frame.body()),
            (REPLY, status::GOT_BITS) => GotReply::Bits(frame.body()),
            (REPLY, status::GET_FAILED) => {
                match bytemuck::try_pod_read_unaligned(frame.body()).ok().and_then(error_from_words) {
                    Some(error) => GotReply::Failed(error),
                    None => return Some(Err(unfitting)),
                }
            }
            _ => return None,
        }))
    }
}

/// Splits off the first entry, with the number of its key. `None` if there is none, or if it makes no sense.
pub fn split_entry<'a>(entries: &mut &'a [u8], wants: &Wants) -> Option<(usize, Found<'a>)> {
    let (head, mut rest) = entries.split_first_chunk::<ENTRY_HEAD>()?;
    let [a, b, kind, flags, c, d, e, f] = *head;
    let (number, whole) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]) as usize);
    let found = match kind {
        kind::ABSENT => Found::Absent,
        kind::NO_KEY => Found::NoKey { max: whole },
        kind::VALUE => {
            let (bytes, behind) = rest.split_at_checked(wants.range_of(whole).len())?;
            rest = behind;
            let mut life = None;
            if flags & HAS_LIFE != 0 {
                let (bytes, behind) = rest.split_first_chunk::<LIFE_BYTES>()?;
                (life, rest) = (Some(Life::from_bytes(*bytes)), behind);
            }
            let mut reference = None;
            if flags & HAS_REFERENCE != 0 {
                let (bytes, behind) = rest.split_first_chunk::<REFERENCE_BYTES>()?;
                (reference, rest) = (Some(Reference::from_bytes(*bytes)), behind);
            }
            Found::Value { whole, bytes, life, reference }
        }
        _ => return None,
    };
    *entries = rest;
    Some((number.into(), found))
}

// ---- errors -----------------------------------------------------------------------------------------

const RETRIES: [Retry; 6] =
    [Retry::Torn, Retry::Moved, Retry::Late, Retry::Chain, Retry::Replaced, Retry::OtherKey];

fn error_to_words(error: &ReadError) -> [u64; 4] {
    let number = |why: &Retry| RETRIES.iter().position(|of| of == why).unwrap_or_default() as u64;
    match error {
        ReadError::KeyLength { given, max } => [1, *given as u64, *max as u64, 0],
        ReadError::Contended { retries, last } => [2, (*retries).into(), number(last), 0],
        ReadError::Replaced { len, times } => [3, *len as u64, (*times).into(), 0],
        ReadError::Damaged { .. } => [4, 0, 0, 0],
        ReadError::Deadline { deadline, retries, last } => {
            let deadline = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
            [5, (*retries).into(), number(last), deadline]
        }
    }
}

fn error_from_words([what, a, b, c]: [u64; 4]) -> Option<ReadError> {
    let why = |number: u64| RETRIES.get(number as usize).copied();
    Some(match what {
        1 => ReadError::KeyLength { given: a as usize, max: b as usize },
        2 => ReadError::Contended { retries: a as u32, last: why(b)? },
        3 => ReadError::Replaced { len: a as usize, times: b as u32 },
        4 => ReadError::Damaged { what: "the server has found it so" },
        5 => ReadError::Deadline { deadline: Duration::from_nanos(c), retries: a as u32, last: why(b)? },
        _ => return None,
    })
}
