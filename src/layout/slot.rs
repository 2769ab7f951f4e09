//! The slot: the unit that validates itself.
//!
//! ```text
//! line 0   0..4    stamp   u32  even: at rest; odd: being written; +2 with every write
//!          4..8    crc     u32  CRC-32C of generation, slot index, stamp, bytes 8..16, key, value
//!          8       klen    u8   0: free
//!          9       ghost   u8   tag of a key that moved out of here (M2), or 0
//!         10..12   vlen    u16  bytes of value; 0x8018: the value is a reference; 0x8028: so is the key
//!                               (`long.rs`); + 0x4000: with a life
//!         12..16   aux     u32  of a home or head of a chain block: filter of displaced keys, link
//!         16..64   key, then value, then the entry's life (`life.rs`)
//! line n   0..62   life, value or key goes on
//!         62..64   u16 copy of the low half of the stamp
//! ```
//!
//! A *reference* says where a value is that is too long for its slot (`extent.rs`). Whoever copies or
//! moves slots does not care; who takes a value out of one does.
//!
//! A slot is 32 bytes (half a line) or 1 to 64 whole lines. `aux` and `ghost` belong to the slot,
//! not to the key in it, and stay when the key goes.
//!
//! # Validation
//!
//! The slot writer (`index/slots/writer.rs`) makes every line's stamp odd, stores the bytes, and makes
//! every line's stamp even. Readers have two independent checks. Each suffices under its own
//! assumption:
//!
//! * **S1, stamps.** If a 64-byte line is read at one instant (H1), even and equal stamps mean that
//!   all lines are of one write. The u16 copies wrap after 32,768 writes (G7).
//! * **S2, CRC.** Without H1, bytes of another table, slot or time, or a mixture, pass with
//!   probability 2^-32 per torn read.
//!
//! [`check`] applies both to bytes that a fabric has landed in private memory. Readers that can
//! load the region's words themselves use the slot as a seqlock instead
//! ([`MappedSlots`](crate::fabric::shm::MappedSlots)).
//!
//! A network reader takes keys and values only from a [`View`] that [`check`] made.

use super::crc::{append, append_both, of_line, of_payload, of_words};
use super::digest::{LONG_KEY_BYTES, LongKey};
use super::extent::{REFERENCE_BYTES, Reference};
use super::life::{LIFE_BYTES, Life};
use super::{LINE, WORD};
use crate::base::sync::AtomicU64;
use crate::sink::Sink;
use bytemuck::Zeroable;
use smallvec::SmallVec;
use std::mem::{offset_of, size_of};

/// Bytes of header before the key.
pub const HEADER: usize = 16;
/// The largest slot, in bytes.
pub const SLOT_BYTES_MAX: usize = 64 * LINE;
/// The longest key that any slot can hold, in bytes (`klen` is one byte).
pub const KEY_MAX: usize = 255;
/// Payload bytes of a further line. Its last two bytes carry the copy of the stamp.
pub(crate) const FURTHER: usize = LINE - 2;
/// Set in [`Header::vlen`] where the value is in an extent. No value in a slot is so long.
const IN_HEAP: u16 = 0x8000;
/// [`Header::vlen`] of a slot that has a reference for its value.
const REFERENCE_VLEN: u16 = IN_HEAP | REFERENCE_BYTES as u16;
/// Like `REFERENCE_VLEN`, of a slot that has a digest for its key besides ([`LongKey`]).
const LONG_KEY_VLEN: u16 = IN_HEAP | LONG_KEY_BYTES as u16;
/// Set in [`Header::vlen`] where the entry's life stands behind the value.
const WITH_LIFE: u16 = 0x4000;
/// Words in the header.
const HEADER_WORDS: usize = HEADER / WORD;

/// The first 16 bytes of every slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Header {
    /// Even: at rest. Odd: being written. Grows by 2 with every write, and wraps.
    pub stamp: u32,
    /// CRC-32C over generation, slot index, stamp, the rest of the header, key and value.
    pub crc: u32,
    /// Length of the key in bytes, whether it is in the slot or not; 0 when the slot is free.
    pub klen: u8,
    /// Tag of a key that moved out of this slot (M2), or 0. It stays for at least twice the grace
    /// time, until the server takes it away.
    pub ghost: u8,
    /// Length of the value in bytes, or the mark of a reference; and whether the entry's life stands behind.
    pub vlen: u16,
    /// Filter of displaced keys and link, in the first slot of a home or chain block. Otherwise 0.
    pub aux: u32,
}

const _: () = {
    assert!(size_of::<Header>() == HEADER);
    assert!(offset_of!(Header, stamp) == 0);
    assert!(offset_of!(Header, crc) == 4);
    assert!(offset_of!(Header, klen) == 8);
    assert!(offset_of!(Header, ghost) == 9);
    assert!(offset_of!(Header, vlen) == 10);
    assert!(offset_of!(Header, aux) == 12);
};

impl Header {
    /// The header as it stands in the first two words of a slot.
    #[inline]
    pub fn from_words(words: [u64; HEADER_WORDS]) -> Header {
        bytemuck::cast(words)
    }

    #[inline]
    pub(crate) fn to_words(self) -> [u64; HEADER_WORDS] {
        bytemuck::cast(self)
    }

    /// Bytes that the slot has for the value; of a long key, for both.
    #[inline(always)]
    pub(crate) fn value_bytes(&self) -> usize {
        if self.is_reference() { self.inline_bytes() & !usize::from(IN_HEAP) } else { self.inline_bytes() }
    }

    /// Bytes of the key that the slot has.
    #[inline(always)]
    pub(super) fn key_bytes(&self) -> usize {
        if self.is_long_key() { 0 } else { usize::from(self.klen) }
    }

    /// Bytes of the value, if it is no reference; of a reference, more than any slot has.
    #[inline(always)]
    pub(super) fn inline_bytes(&self) -> usize {
        usize::from(self.vlen & !WITH_LIFE)
    }

    /// Bytes of key, value and life.
    #[inline(always)]
    pub(super) fn payload_bytes(&self) -> usize {
        let inline = usize::from(self.klen) + self.inline_bytes();
        let both = if self.vlen & IN_HEAP == 0 { inline } else { self.key_bytes() + self.value_bytes() };
        both + if self.has_life() { LIFE_BYTES } else { 0 }
    }

    /// Whether the slot has a reference, not the value.
    #[inline(always)]
    pub fn is_reference(&self) -> bool {
        matches!(self.vlen & !WITH_LIFE, REFERENCE_VLEN | LONG_KEY_VLEN)
    }

    /// Whether it has a digest besides, not the key.
    #[inline(always)]
    pub fn is_long_key(&self) -> bool {
        self.vlen & !WITH_LIFE == LONG_KEY_VLEN
    }

    /// Whether the entry's life stands behind the value.
    #[inline(always)]
    pub fn has_life(&self) -> bool {
        self.vlen & WITH_LIFE != 0
    }

    /// Whether the slot holds no key.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.klen == 0
    }
}

/// The size of slots, and what fits into one. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    bytes: u32,
}

impl SlotShape {
    /// Slots of one line. Most tables have them, so what is done most often is compiled twice: once for
    /// them alone.
    pub(crate) const LINE: SlotShape = SlotShape { bytes: LINE as u32 };

    /// The smallest slot that holds any key of at most `key_max` bytes with any value of at most
    /// `value_max` bytes. `None` when no slot is that large.
    pub fn for_lengths(key_max: usize, value_max: usize) -> Option<SlotShape> {
        let payload = key_max.checked_add(value_max)?;
        if payload <= LINE / 2 - HEADER {
            return Some(SlotShape { bytes: (LINE / 2) as u32 });
        }
        let further = payload.saturating_sub(LINE - HEADER).div_ceil(FURTHER);
        SlotShape::from_bytes(further.checked_add(1)?.checked_mul(LINE)?)
    }

    /// A slot of `bytes` bytes. `None` unless that is 32 or 1 to 64 whole lines.
    pub fn from_bytes(bytes: usize) -> Option<SlotShape> {
        let fits =
            bytes == LINE / 2 || (bytes.is_multiple_of(LINE) && (LINE..=SLOT_BYTES_MAX).contains(&bytes));
        fits.then_some(SlotShape { bytes: bytes as u32 })
    }

    /// Bytes in a slot.
    #[inline]
    pub fn bytes(self) -> usize {
        self.bytes as usize
    }

    /// Words in a slot.
    #[inline]
    pub fn words(self) -> usize {
        self.bytes as usize / WORD
    }

    /// Lines in a slot. A 32-byte slot counts as one.
    #[inline]
    pub fn lines(self) -> usize {
        self.bytes().div_ceil(LINE)
    }

    /// The most bytes of key and value together.
    #[inline]
    pub fn payload_max(self) -> usize {
        if self == SlotShape::LINE {
            return LINE - HEADER;
        }
        let first = self.bytes().min(LINE) - HEADER;
        first + (self.lines() - 1) * FURTHER
    }

    /// The byte ranges of the slot that hold the first `len` bytes of payload.
    fn pieces(self, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut left = len;
        (0..self.lines()).map_while(move |line| {
            let start = if line == 0 { HEADER } else { line * LINE };
            let room = if line == 0 { self.bytes().min(LINE) - HEADER } else { FURTHER };
            let take = left.min(room);
            left -= take;
            (take > 0).then_some(start..start + take)
        })
    }
}

/// What a slot has for a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored<'a> {
    bytes: &'a [u8],
    /// [`Header::vlen`], without a life.
    vlen: u16,
    life: Option<&'a Life>,
}

impl<'a> Stored<'a> {
    /// A reference to the value, or what a slot has of a long key.
    pub fn in_heap(bytes: &'a [u8]) -> Stored<'a> {
        debug_assert!([REFERENCE_BYTES, LONG_KEY_BYTES].contains(&bytes.len()));
        Stored { bytes, vlen: IN_HEAP | bytes.len() as u16, life: None }
    }

    /// Whether it stands for the key, too.
    #[inline(always)]
    fn is_long_key(self) -> bool {
        self.vlen == LONG_KEY_VLEN
    }

    /// Whether the value is in an extent.
    #[inline(always)]
    pub(crate) fn is_reference(self) -> bool {
        self.vlen & IN_HEAP != 0
    }

    /// This value with this life behind it.
    #[inline(always)]
    pub(crate) fn with_life(self, life: Option<&'a Life>) -> Stored<'a> {
        Stored { life, ..self }
    }

    /// Bytes in the slot.
    #[inline(always)]
    pub(crate) fn slot_bytes(self) -> usize {
        self.bytes.len() + if self.life.is_some() { LIFE_BYTES } else { 0 }
    }

    /// The value, or the reference to it.
    #[inline(always)]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The life behind it.
    #[inline(always)]
    pub(crate) fn life(self) -> Option<&'a Life> {
        self.life
    }

    /// Whose entry it is; 0: nobody's.
    #[inline(always)]
    pub(crate) fn owner(self) -> u16 {
        self.life.map_or(0, |life| life.owner)
    }

    /// The tick with which the entry ends; 0: it does not end.
    #[inline(always)]
    pub(crate) fn expiry(self) -> u32 {
        self.life.map_or(0, |life| life.expiry)
    }

    /// The reference, if that is what the slot has.
    pub(crate) fn as_reference(self) -> Option<Reference> {
        let bytes = self.bytes.last_chunk().filter(|_| self.is_reference())?;
        Some(Reference::from_bytes(*bytes))
    }

    #[inline(always)]
    fn vlen(self) -> u16 {
        self.vlen | if self.life.is_some() { WITH_LIFE } else { 0 }
    }
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Stored<'a> {
    /// The value itself.
    #[inline(always)]
    fn from(value: &'a B) -> Stored<'a> {
        let bytes = value.as_ref();
        Stored { bytes, vlen: bytes.len() as u16, life: None }
    }
}

/// The content to write into a slot. `ghost` and `aux` belong to the slot, key and value to the
/// occupant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Content<'a> {
    /// The key; empty for a free slot. The whole key, whether the slot has it or not.
    pub key: &'a [u8],
    /// The value, or a reference to it; of a long key, with its digest.
    pub value: Stored<'a>,
    /// See [`Header::ghost`].
    pub ghost: u8,
    /// See [`Header::aux`].
    pub aux: u32,
}

/// A slot's words in private memory. Slots of up to four lines need no allocation.
pub type Image = SmallVec<[u64; 32]>;

/// A key in private memory. A key that fits into the first line needs no allocation.
pub type Key = SmallVec<[u8; LINE - HEADER]>;

/// The identity that a slot's CRC binds its bytes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Generation of the slot's table.
    pub generation: u64,
    /// Number of the slot in its table.
    pub index: u64,
}

/// The words of a slot with `content`, at rest under the even stamp `stamp`.
///
/// Key and value together must have at most [`SlotShape::payload_max`] bytes.
pub fn encode(shape: SlotShape, identity: Identity, stamp: u32, content: &Content<'_>) -> Image {
    let mut words: Image = SmallVec::from_elem(0, shape.words());
    lay_out(shape, content, &mut words);
    seal(shape, identity, stamp, &mut words);
    words
}

/// Lays `content` out in these words, which are zero. Stamp and CRC are left to [`seal`].
#[inline(always)]
pub(crate) fn lay_out(shape: SlotShape, content: &Content<'_>, words: &mut [u64]) {
    match <&mut [u64; LINE / WORD]>::try_from(&mut *words) {
        Ok(line) => *line = lay_out_line(content),
        Err(_) => lay_out_pieces(shape, content, words),
    }
}

/// Like `lay_out`, for slots of any shape.
#[inline(always)]
fn lay_out_pieces(shape: SlotShape, content: &Content<'_>, words: &mut [u64]) {
    let life = content.value.life.map(|life| life.to_bytes());
    let (mut key, mut value, mut life) =
        (content.key, content.value.bytes(), life.as_ref().map_or(&[][..], |life| life));
    if content.value.is_long_key() {
        key = &[];
    }
    let len = key.len() + value.len() + life.len();
    debug_assert!(len <= shape.payload_max());
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
    for piece in shape.pieces(len) {
        let room = &mut bytes[piece];
        let (for_key, room) = room.split_at_mut(key.len().min(room.len()));
        let (for_value, for_life) = room.split_at_mut(value.len().min(room.len()));
        key = fill(for_key, key);
        value = fill(for_value, value);
        if !for_life.is_empty() {
            life = fill(for_life, life);
        }
    }
    words[..HEADER_WORDS].copy_from_slice(&header_of(content).to_words());
}

/// The header of a slot with this content, without stamp and CRC.
#[inline(always)]
fn header_of(content: &Content<'_>) -> Header {
    Header {
        klen: content.key.len() as u8,
        ghost: content.ghost,
        vlen: content.value.vlen(),
        aux: content.aux,
        ..Header::zeroed()
    }
}

/// Like `lay_out`, for slots of one line.
#[inline(always)]
pub(crate) fn lay_out_line(content: &Content<'_>) -> [u64; LINE / WORD] {
    let [none, header] = header_of(content).to_words();
    // Usual lengths, word for word: a call for each copy takes longer.
    if content.value.life.is_none()
        && let (([k0, k1], []), ([v0, v1, v2, v3], [])) =
            (content.key.as_chunks(), content.value.bytes().as_chunks())
    {
        let [k0, k1, v0, v1, v2, v3] = [k0, k1, v0, v1, v2, v3].map(|word| u64::from_le_bytes(*word));
        return [none, header, k0, k1, v0, v1, v2, v3];
    }
    let mut words = [0; LINE / WORD];
    lay_out_pieces(SlotShape::LINE, content, &mut words);
    words
}

/// Puts the even stamp, and the CRC that follows, into a slot's words.
#[inline(always)]
pub(crate) fn seal(shape: SlotShape, identity: Identity, stamp: u32, words: &mut [u64]) {
    debug_assert!(stamp.is_multiple_of(2) && words.len() == shape.words());
    for word in stamp_copies(shape) {
        words[word] = with_copy(words[word], stamp);
    }
    words[0] = Header { stamp, ..Header::zeroed() }.to_words()[0];
    let crc = crc(shape, identity, words);
    words[0] = Header { stamp, crc, ..Header::zeroed() }.to_words()[0];
}

/// The first word of a slot of one line with this stamp, this second word, and the payload that stands in it. `None` if
/// the payload neither fills the line nor is empty. The caller holds the slot's lock.
#[inline(always)]
pub(crate) fn seal_line(
    identity: Identity,
    stamp: u32,
    second: u64,
    [_, _, payload @ ..]: &[AtomicU64; LINE / WORD],
) -> Option<u64> {
    let bound = [identity.generation, bound_index(identity), u64::from(stamp), second];
    let crc = match Header::from_words([0, second]).payload_bytes() {
        0 => of_words(bound),
        full if full == LINE - HEADER => of_payload(bound, payload),
        _ => return None,
    };
    Some(Header { stamp, crc, ..Header::zeroed() }.to_words()[0])
}

/// The slot's number, to which its CRC is bound.
#[inline(always)]
fn bound_index(identity: Identity) -> u64 {
    if crate::faults::broken(crate::faults::Rule::CrcBindsSlot) { 0 } else { identity.index }
}

/// Puts what belongs to the slot, not to its key, into a slot's words.
#[inline]
pub(crate) fn set_ghost_and_aux(words: &mut [u64], ghost: u8, aux: u32) {
    // As one word. By bytes it would be loaded again before it is stored whole.
    let word = |ghost, aux| Header { ghost, aux, ..Header::zeroed() }.to_words()[1];
    words[1] = words[1] & !word(u8::MAX, u32::MAX) | word(ghost, aux);
}

/// Fills `to` from the front of `from`. Returns the rest of `from`.
fn fill<'a>(to: &mut [u8], from: &'a [u8]) -> &'a [u8] {
    let (now, later) = from.split_at(to.len());
    to.copy_from_slice(now);
    later
}

/// CRC-32C over identity, stamp, the rest of the header, key and value, as they stand in the slot.
#[inline(always)]
fn crc(shape: SlotShape, identity: Identity, words: &[u64]) -> u32 {
    let header = Header::from_words([words[0], words[1]]);
    let bound = [identity.generation, bound_index(identity), u64::from(header.stamp)];
    if let (SlotShape::LINE, Ok(line)) = (shape, words.try_into()) {
        // Full of a key and its value, the most usual case: without a mark, a length is what it says.
        if usize::from(header.klen) + usize::from(header.vlen) == LINE - HEADER {
            return of_line(bound, line);
        }
        return crc_of_line(bound, line, header.payload_bytes());
    }
    let payload = header.payload_bytes();
    let slot: &[u8] = bytemuck::cast_slice(words);
    let mut pieces = shape.pieces(payload);
    let end = pieces.next().map_or(HEADER, |first| first.end);
    let mut crc = append_both(0, bound, &slot[WORD..end]);
    for piece in pieces {
        crc = append(crc, &slot[piece]);
    }
    crc
}

/// The CRC of `bound`, and of the words of a slot of one line from its second on, up to
/// the end of `payload` bytes behind its header.
#[inline(always)]
fn crc_of_line(bound: [u64; 3], line: &[u64; LINE / WORD], payload: usize) -> u32 {
    // A full line, the most usual case, has no loop.
    if payload == LINE - HEADER {
        return of_line(bound, line);
    }
    if payload == 0 {
        let [a, b, c] = bound;
        return of_words([a, b, c, line[1]]);
    }
    append_both(0, bound, &bytemuck::bytes_of(line)[WORD..HEADER + payload])
}

/// The position of the u16 copy of the stamp, in a word that ends a further line.
pub(crate) const COPY_SHIFT: u32 = 48;

/// A word that ends a further line, with the copy of this stamp.
#[inline]
pub(crate) fn with_copy(word: u64, stamp: u32) -> u64 {
    word & !(0xffff << COPY_SHIFT) | u64::from(stamp as u16) << COPY_SHIFT
}

/// Numbers, within a slot, of the words that carry a copy of the stamp: each further line's last
/// word (high 16 bits).
#[inline]
pub(crate) fn stamp_copies(shape: SlotShape) -> impl Iterator<Item = usize> {
    (1..shape.lines()).map(|line| line * (LINE / WORD) + LINE / WORD - 1)
}

/// Why a slot's bytes cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    /// A stamp is odd: the slot is being written.
    Writing,
    /// The lines' stamps differ, so the lines are of different writes.
    Stamps,
    /// The lengths are none that a writer stores.
    Lengths,
    /// The CRC does not match.
    Crc,
}

/// Validates the landed bytes of one slot: stamps (S1), lengths, CRC (S2).
///
/// `words` is private memory of exactly [`SlotShape::words`] words, with any content.
pub fn check(shape: SlotShape, identity: Identity, words: &[u64]) -> Result<View<'_>, Torn> {
    use crate::faults::{Rule, broken};
    debug_assert_eq!(words.len(), shape.words());
    let view = View { shape, words };
    let header = view.header();
    if !broken(Rule::StampCheck) {
        if header.stamp % 2 == 1 {
            return Err(Torn::Writing);
        }
        if stamp_copies(shape).any(|w| (words[w] >> COPY_SHIFT) as u16 != header.stamp as u16) {
            return Err(Torn::Stamps);
        }
    }
    if header.payload_bytes() > shape.payload_max() {
        return Err(Torn::Lengths);
    }
    if !broken(Rule::CrcCheck) && header.crc != crc(shape, identity, words) {
        return Err(Torn::Crc);
    }
    Ok(view)
}

/// One slot's bytes, with lengths that fit. One that [`check`] made is validated: over a network,
/// only a key found in such a view is a hit. `View::consistent` makes one that is not.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    shape: SlotShape,
    words: &'a [u64],
}

impl<'a> View<'a> {
    /// A view without validation: stamps and CRC are not looked at. The words are known to be of
    /// one write, because the caller holds the slot's lock or has validated them; or the view is
    /// only a guess.
    ///
    /// Lengths are checked nonetheless, because they index into `words`.
    pub(crate) fn consistent(shape: SlotShape, words: &'a [u64]) -> Result<View<'a>, Torn> {
        let view = View { shape, words };
        let header = view.header();
        if words.len() != shape.words() || header.payload_bytes() > shape.payload_max() {
            return Err(Torn::Lengths);
        }
        Ok(view)
    }

    /// The slot's header.
    #[inline]
    pub fn header(&self) -> Header {
        Header::from_words([self.words[0], self.words[1]])
    }

    /// Whether this slot holds `key`. A free slot holds none: keys have at least one byte.
    pub fn holds(&self, key: &[u8]) -> bool {
        let header = self.header();
        if key.is_empty() || usize::from(header.klen) != key.len() || header.is_long_key() {
            return false;
        }
        let bytes: &[u8] = bytemuck::cast_slice(self.words);
        let mut rest = key;
        self.shape.pieces(key.len()).all(|piece| {
            let (here, further) = rest.split_at(piece.len());
            rest = further;
            bytes[piece] == *here
        })
    }

    /// The key; empty when the slot is free, or does not have it ([`View::long_key`]).
    pub fn key(&self) -> Key {
        let mut out = Key::new();
        self.payload(0, self.header().key_bytes(), |part| out.extend_from_slice(part));
        out
    }

    /// What the slot has of a key that does not fit it.
    pub(crate) fn long_key(&self) -> Option<LongKey> {
        let bytes = self.header().is_long_key().then(|| self.value())?;
        Some(LongKey::from_bytes(bytes[..].try_into().expect("40 bytes")))
    }

    /// Replaces the content of `out` with the value, or the reference to it. Allocates only if `out` is
    /// too small.
    pub fn value_into(&self, out: &mut impl Sink) {
        let header = self.header();
        let (klen, vlen) = (header.key_bytes(), header.value_bytes());
        if out.begin(vlen) {
            self.payload(klen, klen + vlen, |part| out.put(part));
        }
    }

    /// The reference to the value, if the slot has one.
    pub fn reference(&self) -> Option<Reference> {
        if !self.header().is_reference() {
            return None;
        }
        self.value().last_chunk().map(|bytes| Reference::from_bytes(*bytes))
    }

    /// The value, or the reference to it.
    pub(crate) fn value(&self) -> SmallVec<[u8; 112]> {
        let header = self.header();
        let (klen, vlen) = (header.key_bytes(), header.value_bytes());
        let mut out = SmallVec::new();
        self.payload(klen, klen + vlen, |part| out.extend_from_slice(part));
        out
    }

    /// The entry's life, if it stands behind the value.
    pub(crate) fn life(&self) -> Option<Life> {
        let header = self.header();
        if !header.has_life() {
            return None;
        }
        let from = header.key_bytes() + header.value_bytes();
        let mut bytes = SmallVec::<[u8; LIFE_BYTES]>::new();
        self.payload(from, from + LIFE_BYTES, |part| bytes.extend_from_slice(part));
        Some(Life::from_bytes(bytes[..].try_into().expect("12 bytes")))
    }

    /// Puts the entry's life into a sink that wants it.
    #[inline(always)]
    pub(crate) fn life_into<S: Sink>(&self, out: &mut S) {
        if S::WANTS_LIFE {
            out.put_life(self.life());
        }
    }

    /// Gives payload bytes `from..to` to `take`, line by line.
    fn payload(&self, from: usize, to: usize, mut take: impl FnMut(&'a [u8])) {
        let bytes: &'a [u8] = bytemuck::cast_slice(self.words);
        let mut at = 0;
        for piece in self.shape.pieces(to) {
            let skip = from.saturating_sub(at).min(piece.len());
            at += piece.len();
            take(&bytes[piece.start + skip..piece.end]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(bytes: usize) -> SlotShape {
        SlotShape::from_bytes(bytes).unwrap()
    }

    const ID: Identity = Identity { generation: 3, index: 77 };

    #[test]
    fn shapes_follow_from_lengths() {
        for (key, value, bytes) in
            [(8, 8, 32), (8, 9, 64), (16, 32, 64), (16, 33, 128), (16, 94, 128), (16, 95, 192)]
        {
            let s = SlotShape::for_lengths(key, value).unwrap();
            assert_eq!((s.bytes(), s.payload_max() >= key + value), (bytes, true), "{key}+{value}");
        }
        assert_eq!(shape(SLOT_BYTES_MAX).payload_max(), 48 + 63 * 62);
        assert!(SlotShape::for_lengths(255, shape(SLOT_BYTES_MAX).payload_max() - 254).is_none());
        assert!(SlotShape::for_lengths(usize::MAX, 1).is_none());
        assert!([0, 16, 33, 96, 65 * 64].iter().all(|&b| SlotShape::from_bytes(b).is_none()));
    }

    /// Lengths that lead out of the slot are refused, also under a seqlock.
    #[test]
    fn lengths_are_always_checked() {
        let s = shape(64);
        let mut image =
            encode(s, ID, 2, &Content { key: b"key", value: b"value".into(), ..Content::default() });
        assert!(View::consistent(s, &image).is_ok());
        image[1] |= 0xffff << 16;
        assert_eq!(View::consistent(s, &image).err(), Some(Torn::Lengths));
        assert_eq!(View::consistent(s, &[0; 4]).err(), Some(Torn::Lengths));
    }

    /// Each bit of stamp, header, key, value and copies counts, in slots of every kind. So does
    /// each bit of the slot's identity. Bytes behind the value do not count.
    #[test]
    fn each_covered_bit_counts() {
        for (bytes, klen, vlen) in
            [(32, 1, 0), (32, 16, 0), (32, 3, 13), (64, 5, 20), (128, 16, 94), (192, 60, 70)]
        {
            let s = shape(bytes);
            let (key, value) = (vec![7u8; klen], vec![8u8; vlen]);
            let content = Content { key: &key, value: (&value).into(), ghost: 5, aux: 0x1234 };
            let image = encode(s, ID, 0x0001_000a, &content);
            for bit in 0..64 {
                let generation = Identity { generation: ID.generation ^ 1 << bit, ..ID };
                assert_eq!(check(s, generation, &image).err(), Some(Torn::Crc), "generation, bit {bit}");
                let index = Identity { index: ID.index ^ 1 << bit, ..ID };
                assert_eq!(check(s, index, &image).err(), Some(Torn::Crc), "index, bit {bit}");
            }
            for bit in 0..bytes * 8 {
                let mut changed = image.clone();
                changed[bit / 64] ^= 1 << (bit % 64);
                let at = bit / 8;
                let is_copy = at >= LINE && at % LINE >= FURTHER;
                let is_payload = s.pieces(klen + vlen).any(|piece| piece.contains(&at));
                let expected = match at {
                    _ if bit == 0 => Some(Torn::Writing),
                    _ if is_copy => Some(Torn::Stamps),
                    0..2 if bytes > LINE => Some(Torn::Stamps),
                    8 | 10 | 11 => {
                        let lengths = Header::from_words([changed[0], changed[1]]).payload_bytes();
                        Some(if lengths > s.payload_max() { Torn::Lengths } else { Torn::Crc })
                    }
                    _ if at < HEADER || is_payload => Some(Torn::Crc),
                    _ => None,
                };
                assert_eq!(
                    check(s, ID, &changed).err(),
                    expected,
                    "{bytes} bytes, {klen} + {vlen}: bit {bit}"
                );
            }
        }
    }

    proptest! {
        /// A view shows what was encoded, for every slot size and every split of the payload.
        #[test]
        fn a_view_shows_what_was_encoded(lines in 0usize..6, klen in 0usize..=255, vlen in 0usize..400, stamp in any::<u32>(), fill in any::<u8>()) {
            let s = shape(if lines == 0 { 32 } else { lines * LINE });
            let klen = klen.min(s.payload_max());
            let vlen = if klen == 0 { 0 } else { vlen.min(s.payload_max() - klen) };
            let key: Vec<u8> = (0..klen).map(|i| fill.wrapping_add(i as u8)).collect();
            let value: Vec<u8> = (0..vlen).map(|i| fill.wrapping_mul(3).wrapping_sub(i as u8)).collect();
            let image = encode(s, ID, stamp & !1, &Content { key: &key, value: (&value).into(), ghost: fill, aux: stamp });
            let view = check(s, ID, &image).unwrap();
            let mut got = vec![9];
            view.value_into(&mut got);
            prop_assert_eq!((view.key().to_vec(), &got), (key.clone(), &value));
            prop_assert_eq!(view.holds(&key), klen > 0);
            prop_assert_eq!((view.header().ghost, view.header().aux), (fill, stamp));
        }

        /// A flipped bit that the CRC covers is noticed. So are the bytes of another slot or table.
        #[test]
        fn any_covered_bit_counts(lines in 1usize..4, bit in 0usize..(4 * 512)) {
            let s = shape(lines * LINE);
            let key = vec![7u8; 16];
            let value = vec![8u8; s.payload_max() - 16];
            let mut image = encode(s, ID, 10, &Content { key: &key, value: (&value).into(), ghost: 0, aux: 0 });
            prop_assert_eq!(check(s, Identity { index: 78, ..ID }, &image).err(), Some(Torn::Crc));
            prop_assert_eq!(check(s, Identity { generation: 4, ..ID }, &image).err(), Some(Torn::Crc));
            let bit = bit % (image.len() * 64);
            image[bit / 64] ^= 1 << (bit % 64);
            prop_assert!(check(s, ID, &image).is_err(), "bit {bit}");
        }
    }
}
