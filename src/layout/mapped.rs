//! Slots as words of region memory: loads, and comparison in place.
//!
//! These functions promise nothing about consistency: words of different writes may come back. The
//! caller holds the slot's lock, or validates the stamp around the call.

use super::extent::Reference;
use super::replace::replace;
use super::slot::{FURTHER, HEADER, Header, Image, Key, SlotShape, Torn, View};
use super::{LINE, WORD};
use crate::sync::{AtomicU64, Ordering};

const FIRST_LINE_KEY: usize = LINE - HEADER;
const LINE_WORDS: usize = LINE / WORD;
const HEADER_WORDS: usize = HEADER / WORD;

/// Words of a region, to be loaded one by one.
pub(crate) trait Words: Copy {
    /// How many there are.
    fn len(self) -> usize;

    /// Loads the word with this number. Relaxed: pair it with a fence.
    fn load(self, word: usize) -> u64;

    /// The first `words` words, and the others. `None` when there are not so many.
    fn split(self, words: usize) -> Option<(Self, Self)>;

    /// Which of these lines, at most eight, show the end of the key: bit `2 * n` stands for line `n`. Finds it
    /// without a branch where that saves time: a wrong guess costs as much as a line takes to come.
    #[inline(always)]
    fn lines_with(self, key: &[u8]) -> u32 {
        lines_with(self, key)
    }

    /// The line with this number.
    #[inline(always)]
    fn line(self, number: usize) -> Self {
        let (_, rest) = self.split(number * LINE_WORDS).expect("there are so many");
        rest.split(LINE_WORDS).expect("and one more").0
    }
}

impl Words for &[AtomicU64] {
    #[inline(always)]
    fn len(self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn load(self, word: usize) -> u64 {
        self[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn split(self, words: usize) -> Option<(Self, Self)> {
        self.split_at_checked(words)
    }
}

/// Memory that can be loaded word by word.
pub(crate) trait Loadable {
    /// Some consecutive words of it.
    type Words<'a>: Words
    where
        Self: 'a;

    /// So many words, from the one with this number on.
    fn words(&self, first: usize, len: usize) -> Self::Words<'_>;

    /// Loads one word. Relaxed: pair it with a fence.
    #[inline(always)]
    fn word(&self, number: usize) -> u64 {
        self.words(number, 1).load(0)
    }

    /// Asks for the four lines that begin with this word, if that saves time: most keys are in the first four
    /// of their window. No effect otherwise, whether there is such a word or not.
    #[inline(always)]
    fn expect(&self, first: usize) {
        let _ = first;
    }

    /// Eight lines, from the word with this number on.
    #[inline(always)]
    fn eight_lines(&self, first: usize) -> Self::Words<'_> {
        self.words(first, EIGHT_LINES)
    }
}

/// Words of eight lines.
pub(crate) const EIGHT_LINES: usize = 8 * LINE_WORDS;

impl<T: Loadable> Loadable for &T {
    type Words<'a>
        = T::Words<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn words(&self, first: usize, len: usize) -> Self::Words<'_> {
        T::words(self, first, len)
    }

    #[inline(always)]
    fn word(&self, number: usize) -> u64 {
        T::word(self, number)
    }

    #[inline(always)]
    fn expect(&self, first: usize) {
        T::expect(self, first);
    }

    #[inline(always)]
    fn eight_lines(&self, first: usize) -> Self::Words<'_> {
        T::eight_lines(self, first)
    }
}

/// The slot's header.
#[inline]
pub(crate) fn header(slot: impl Words) -> Header {
    Header::from_words([slot.load(0), slot.load(1)])
}

/// All words of the slot.
#[inline]
pub(crate) fn image(slot: impl Words) -> Image {
    if slot.len() == LINE_WORDS {
        return Image::from_slice(&std::array::from_fn::<_, LINE_WORDS, _>(|n| slot.load(n)));
    }
    let mut image = Image::from_elem(0, slot.len());
    image.iter_mut().enumerate().for_each(|(n, word)| *word = slot.load(n));
    image
}

/// The slot's header and key; loads no more words than these take.
#[inline]
pub(crate) fn header_and_key(shape: SlotShape, slot: impl Words) -> Result<(Header, Key), Torn> {
    let header = header(slot);
    let klen = usize::from(header.klen);
    if klen > FIRST_LINE_KEY || klen > shape.payload_max() {
        return View::consistent(shape, &image(slot)).map(|view| (view.header(), view.key()));
    }
    let mut words = [0u64; FIRST_LINE_KEY / WORD];
    for (n, to) in words.iter_mut().enumerate().take(klen.div_ceil(WORD)) {
        *to = slot.load(HEADER_WORDS + n);
    }
    let mut key = Key::from(bytemuck::cast::<_, [u8; FIRST_LINE_KEY]>(words));
    key.truncate(klen);
    Ok((header, key))
}

/// What the last word of a key shows in a slot with this key (G8). The key is not empty, and ends
/// in the slot's first line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyEnd {
    word: usize,
    /// The bits of the word that are the key's, and what they are.
    mask: u64,
    bits: u64,
}

impl KeyEnd {
    /// The longest key that ends in a slot's first line.
    pub const KEY_MAX: usize = FIRST_LINE_KEY;

    /// What every slot shows.
    pub const ANY: KeyEnd = KeyEnd { word: 0, mask: 0, bits: 0 };

    /// `None` for a key that is longer.
    #[inline(always)]
    pub fn of(key: &[u8]) -> Option<KeyEnd> {
        let words_before = key.len().wrapping_sub(1) / WORD;
        if words_before >= KeyEnd::KEY_MAX / WORD {
            return None;
        }
        let unused = (8 * ((words_before + 1) * WORD - key.len()) as u32) & 63;
        let bits = match key.last_chunk() {
            Some(last) => u64::from_le_bytes(*last) >> unused,
            None => key.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
        };
        Some(KeyEnd { word: HEADER_WORDS + words_before, mask: !0 >> unused, bits })
    }

    /// Whether the slot may hold the key. If not, the key is not there at the instant of the load.
    #[inline(always)]
    pub fn is_in(self, slot: impl Words) -> bool {
        slot.load(self.word) & self.mask == self.bits
    }

    /// Whether the slot has the words of the key before the last one.
    #[inline(always)]
    fn follows(self, slot: impl Words, key: &[u8]) -> bool {
        for (word, chunk) in (HEADER_WORDS..self.word).zip(key.as_chunks().0) {
            if slot.load(word) != u64::from_le_bytes(*chunk) {
                return false;
            }
        }
        true
    }
}

/// Does the slot's payload begin with `key`? The caller has compared the length.
#[inline]
pub(crate) fn begins_with(shape: SlotShape, slot: impl Words, key: &[u8]) -> bool {
    let Some(end) = KeyEnd::of(key) else { return key.is_empty() || holds_long(shape, slot, key) };
    let whole = key.chunks_exact(WORD).enumerate();
    end.is_in(slot)
        && whole
            .map(|(n, chunk)| (HEADER_WORDS + n, chunk))
            .all(|(word, chunk)| slot.load(word) == u64::from_le_bytes(chunk.try_into().expect("8 bytes")))
}

#[cold]
fn holds_long(shape: SlotShape, slot: impl Words, key: &[u8]) -> bool {
    View::consistent(shape, &image(slot)).is_ok_and(|view| view.holds(key))
}

/// The reference that the slot has for a value; `header` is the slot's.
#[inline]
pub(crate) fn reference(shape: SlotShape, slot: impl Words, header: &Header) -> Option<Reference> {
    if header.is_reference() { reference_of(shape, slot) } else { None }
}

#[cold]
fn reference_of(shape: SlotShape, slot: impl Words) -> Option<Reference> {
    let image = image(slot);
    View::consistent(shape, &image).ok()?.reference()
}

/// Replaces `value` with the value that the slot has; `header` is the slot's. A reference is none.
#[inline]
pub(crate) fn value_into(
    shape: SlotShape,
    slot: impl Words,
    header: &Header,
    value: &mut Vec<u8>,
) -> Result<(), Torn> {
    let (mut key_left, mut value_left) = (usize::from(header.klen), usize::from(header.vlen));
    if key_left + value_left > shape.payload_max() {
        return Err(Torn::Lengths);
    }
    value.clear();
    value.reserve(value_left);
    let mut rest = slot;
    if let Some((line, after)) = rest.split(LINE_WORDS) {
        let payload = &load_line(line)[HEADER..];
        append::<FIRST_LINE_KEY>(payload, &mut key_left, &mut value_left, value);
        rest = after;
    }
    while value_left > 0 {
        let Some((line, after)) = rest.split(LINE_WORDS) else {
            // A slot of less than a line.
            let image = image(rest);
            let payload = &bytemuck::cast_slice(&image)[HEADER..];
            value.extend_from_slice(&payload[key_left..][..value_left]);
            break;
        };
        let payload = &load_line(line)[..FURTHER];
        append::<FURTHER>(payload, &mut key_left, &mut value_left, value);
        rest = after;
    }
    Ok(())
}

#[inline(always)]
fn load_line(line: impl Words) -> [u8; LINE] {
    bytemuck::cast::<[u64; LINE_WORDS], _>(std::array::from_fn(|n| line.load(n)))
}

/// Appends to the value what this part of the payload, `N` bytes, has of it. (Whole parts of a length known
/// beforehand are copied in place: a call for each takes longer.)
#[inline(always)]
fn append<const N: usize>(payload: &[u8], key_left: &mut usize, value_left: &mut usize, value: &mut Vec<u8>) {
    if *key_left == 0
        && *value_left >= N
        && let Some(whole) = payload.first_chunk::<N>()
    {
        value.extend_from_slice(whole);
        *value_left -= N;
        return;
    }
    let behind_key = &payload[N.min(*key_left)..];
    let part = &behind_key[..behind_key.len().min(*value_left)];
    value.extend_from_slice(part);
    *key_left = key_left.saturating_sub(N);
    *value_left -= part.len();
}

/// What a slot of one line shows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineShows {
    /// The key and its value, with lengths that a writer stores.
    Value,
    /// Another key, or none.
    NotIt,
    /// The key, and impossible lengths.
    Nonsense,
}

/// Replaces `value` with the value in a slot of one line, if the slot holds `key`, and its lengths are such
/// that a writer stores.
#[inline(always)]
pub(crate) fn line_value(slot: impl Words, key: &[u8], value: &mut Vec<u8>) -> LineShows {
    // Usual keys, which end where a word does: their values go from word to word.
    if key.len() != 2 * WORD {
        return line_value_of_any(slot, key, value);
    }
    let Some(vlen) = value_len(slot, key) else { return LineShows::NotIt };
    if !has_two_words(slot, key) {
        return LineShows::NotIt;
    }
    value_of::<4>(value, vlen, |n| slot.load(4 + n))
}

/// Whether the slot, of one line, holds the key.
#[inline(always)]
pub(crate) fn line_holds(slot: impl Words, key: &[u8]) -> bool {
    value_len(slot, key).is_some()
        && if key.len() == 2 * WORD { has_two_words(slot, key) } else { has_key(slot, key) }
}

/// Whether the payload begins with these two words.
#[inline(always)]
fn has_two_words(slot: impl Words, key: &[u8]) -> bool {
    match key.as_chunks::<WORD>() {
        ([begin, end], []) => {
            slot.load(HEADER_WORDS) == u64::from_le_bytes(*begin)
                && slot.load(HEADER_WORDS + 1) == u64::from_le_bytes(*end)
        }
        _ => false,
    }
}

/// Whether the payload begins with this key, which ends in the slot's line.
#[inline(never)]
fn has_key(slot: impl Words, key: &[u8]) -> bool {
    KeyEnd::of(key).is_some_and(|end| end.is_in(slot) && end.follows(slot, key))
}

/// The length of the value that the slot says it has; `None` if this key has another length.
#[inline(always)]
fn value_len(slot: impl Words, key: &[u8]) -> Option<usize> {
    let header = slot.load(1);
    (usize::from(header as u8) == key.len()).then_some(usize::from((header >> 16) as u16))
}

#[inline(always)]
fn value_of<const N: usize>(value: &mut Vec<u8>, vlen: usize, word: impl Fn(usize) -> u64) -> LineShows {
    if vlen > N * WORD {
        return LineShows::Nonsense;
    }
    replace::<N>(value, vlen, word);
    LineShows::Value
}

#[inline(never)]
fn line_value_of_any(slot: impl Words, key: &[u8], value: &mut Vec<u8>) -> LineShows {
    let Some(vlen) = value_len(slot, key) else { return LineShows::NotIt };
    if !has_key(slot, key) {
        return LineShows::NotIt;
    }
    if key.len() + vlen > FIRST_LINE_KEY {
        return LineShows::Nonsense;
    }
    let word = |n| slot.load(HEADER_WORDS + n);
    let padded = [word(0), word(1), word(2), word(3), word(4), word(5), 0, 0, 0, 0, 0, 0];
    let behind_key = &bytemuck::bytes_of(&padded)[key.len()..][..FIRST_LINE_KEY];
    let words: [u64; FIRST_LINE_KEY / WORD] = bytemuck::pod_read_unaligned(behind_key);
    value_of::<{ FIRST_LINE_KEY / WORD }>(value, vlen, |n| words[n])
}

/// The first of the lines that [`Words::lines_with`] names.
#[inline(always)]
pub(crate) fn first_line(shown: u32) -> usize {
    shown.trailing_zeros() as usize / 2
}

/// The bit that stands for the line with this number.
#[inline(always)]
pub(crate) fn bit_of(line: u32) -> u32 {
    2 * line
}

/// [`Words::lines_with`], one line after the other.
#[inline(never)]
pub(crate) fn lines_with(words: impl Words, key: &[u8]) -> u32 {
    let Some(end) = KeyEnd::of(key) else { return 0 };
    let (mut rest, mut number, mut lines) = (words, 0, 0);
    while let Some((line, after)) = rest.split(LINE_WORDS) {
        lines |= u32::from(end.is_in(line)) << (2 * number);
        (rest, number) = (after, number + 1);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::slot::{Content, Identity, encode};

    fn mapped(image: &[u64]) -> Vec<AtomicU64> {
        image.iter().map(|&word| AtomicU64::new(word)).collect()
    }

    /// What is read in place is what was written, for slots of one line, of half a one and of more, and for each
    /// length of key and value about where words and lines end.
    #[test]
    fn in_place_as_in_a_copy() {
        let identity = Identity { generation: 3, index: 77 };
        for bytes in [32, 64, 128, 192] {
            let shape = SlotShape::from_bytes(bytes).unwrap();
            let max = shape.payload_max();
            for klen in (1..=max.min(64)).chain([max.min(110), max]) {
                for vlen in [0, 1, 7, 8, 48, max - klen].into_iter().filter(|vlen| klen + vlen <= max) {
                    let key: Vec<u8> = (0..klen).map(|i| 1 + i as u8).collect();
                    let value: Vec<u8> = (0..vlen).map(|i| 200 - i as u8).collect();
                    let content = Content { key: &key, value: (&value).into(), ghost: 9, aux: 8 };
                    let image_there = encode(shape, identity, 4, &content);
                    let slot = mapped(&image_there);
                    let case = format!("{bytes}: {klen} + {vlen}");

                    assert_eq!(image(&slot[..]), image_there);
                    let (there, found) = header_and_key(shape, &slot[..]).unwrap();
                    assert_eq!((there, &*found), (header(&slot[..]), &*key), "{case}");
                    assert_eq!((there.stamp, there.ghost, there.aux), (4, 9, 8), "{case}");
                    assert!(begins_with(shape, &slot[..], &key), "{case}");
                    for at in 0..klen {
                        let mut other = key.clone();
                        other[at] ^= 0x80;
                        assert!(!begins_with(shape, &slot[..], &other), "{case}: byte {at}");
                    }
                    let mut found = vec![1, 2, 3];
                    value_into(shape, &slot[..], &there, &mut found).unwrap();
                    assert_eq!(found, value, "{case}");
                    if bytes == LINE {
                        assert_eq!(line_value(&slot[..], &key, &mut found), LineShows::Value, "{case}");
                        assert_eq!(found, value, "{case}");
                        let others = (0..klen).map(|at| {
                            let mut other = key.clone();
                            other[at] ^= 0x80;
                            other
                        });
                        let shorter = (klen > 1).then(|| key[1..].to_vec());
                        for other in others.chain(shorter) {
                            let shows = line_value(&slot[..], &other, &mut Vec::new());
                            assert_eq!(shows, LineShows::NotIt, "{case}: {other:?}");
                        }
                    }
                }
            }
        }
    }

    /// A slot that is being written may say any length.
    #[test]
    fn lengths_are_never_believed() {
        for bytes in [32, 64, 128] {
            let shape = SlotShape::from_bytes(bytes).unwrap();
            let max = shape.payload_max();
            for (klen, vlen) in
                (0..=255).flat_map(|klen| [0, max - klen.min(max), 4_000].map(|vlen| (klen, vlen)))
            {
                let said = Header { klen: klen as u8, vlen: vlen as u16, ..bytemuck::Zeroable::zeroed() };
                let mut image = Image::from_elem(0, shape.words());
                image[..2].copy_from_slice(&bytemuck::cast::<_, [u64; 2]>(said));
                let slot = mapped(&image);
                let case = format!("{bytes}: {klen} + {vlen}");
                let whole = klen + vlen <= max;
                assert_eq!(value_into(shape, &slot[..], &said, &mut Vec::new()).is_ok(), whole, "{case}");
                if bytes == LINE && (1..=KeyEnd::KEY_MAX).contains(&klen) {
                    let key = vec![0; klen];
                    let shows = line_value(&slot[..], &key, &mut Vec::new());
                    assert_eq!(shows, if whole { LineShows::Value } else { LineShows::Nonsense }, "{case}");
                }
                match header_and_key(shape, &slot[..]) {
                    Ok((there, key)) => assert!(there == said && key.len() == klen && klen <= max, "{case}"),
                    Err(torn) => assert!(torn == Torn::Lengths && !whole, "{case}"),
                }
            }
        }
    }
}
