//! What a slot in a mapping has: its key, its value, the reference to it.
//!
//! These functions promise nothing about consistency: words of different writes may come back. The
//! caller holds the slot's lock, or validates the stamp around the call.

use super::compare::{FIRST_LINE_KEY, HEADER_WORDS, has_key, has_two_words, line_holds, value_len};
use super::digest::LongKey;
use super::extent::Reference;
use super::life::{LIFE_BYTES, Life};
use super::slot::{FURTHER, HEADER, Header, Key, SlotShape, Torn, View};
use super::words::{LINE_WORDS, Words, header, image, load_line};
use super::{LINE, WORD};
use crate::sink::Sink;

/// The slot's header and key, which is empty if the slot does not have it; loads no more words than these take.
#[inline]
pub(crate) fn header_and_key(shape: SlotShape, slot: impl Words) -> Result<(Header, Key), Torn> {
    let Some((header, bytes)) = short_key(shape, slot) else {
        return View::consistent(shape, &image(slot)).map(|view| (view.header(), view.key()));
    };
    let mut key = Key::from(bytes);
    key.truncate(header.klen.into());
    Ok((header, key))
}

/// The slot's header, and the bytes of a key that ends in the slot's first line; those behind its length are no part of
/// it. `None` if the key is another one.
#[inline(always)]
pub(crate) fn short_key(shape: SlotShape, slot: impl Words) -> Option<(Header, [u8; FIRST_LINE_KEY])> {
    let header = header(slot);
    let klen = usize::from(header.klen);
    if klen > FIRST_LINE_KEY || klen > shape.payload_max() || header.is_long_key() {
        return None;
    }
    let mut words = [0u64; FIRST_LINE_KEY / WORD];
    for (n, to) in words.iter_mut().enumerate().take(klen.div_ceil(WORD)) {
        *to = slot.load(HEADER_WORDS + n);
    }
    Some((header, bytemuck::cast(words)))
}

/// The reference that the slot has for a value; `header` is the slot's. A sink that wants the entry's life has
/// it.
#[inline]
pub(crate) fn reference(
    shape: SlotShape,
    slot: impl Words,
    header: &Header,
    value: &mut impl Sink,
) -> Option<Reference> {
    if !header.is_reference() {
        return None;
    }
    put_life(shape, slot, header, value);
    reference_of(shape, slot)
}

#[cold]
fn reference_of(shape: SlotShape, slot: impl Words) -> Option<Reference> {
    let image = image(slot);
    View::consistent(shape, &image).ok()?.reference()
}

/// What the slot has of a key that does not fit it.
#[cold]
pub(crate) fn long_key(shape: SlotShape, slot: impl Words) -> Option<LongKey> {
    let image = image(slot);
    View::consistent(shape, &image).ok()?.long_key()
}

/// Puts the entry's life into a sink that wants it; `header` is the slot's.
#[inline(always)]
fn put_life<S: Sink>(shape: SlotShape, slot: impl Words, header: &Header, value: &mut S) {
    if S::WANTS_LIFE {
        value.put_life(if header.has_life() { life(shape, slot, header) } else { None });
    }
}

/// The entry's life, which `header`, the slot's, says that it has.
#[inline(always)]
pub(crate) fn life(shape: SlotShape, slot: impl Words, header: &Header) -> Option<Life> {
    line_life(shape, slot, header).or_else(|| far_life(shape, slot))
}

/// The entry's life, if it ends in the slot's first line.
#[inline(always)]
fn line_life(shape: SlotShape, slot: impl Words, header: &Header) -> Option<Life> {
    let from = HEADER + header.key_bytes() + header.value_bytes();
    if from + LIFE_BYTES > LINE || shape.bytes() < LINE {
        return None;
    }
    // Two words have it, or three.
    let (word, shift) = (from / WORD, 8 * (from % WORD));
    let load = |word| u128::from(slot.load(word));
    let mut bits = (load(word) | load(word + 1) << 64) >> shift;
    if from % WORD + LIFE_BYTES > 2 * WORD {
        bits |= load(word + 2) << (128 - shift);
    }
    let bytes = bits.to_le_bytes();
    bytes.first_chunk().map(|bytes| Life::from_bytes(*bytes))
}

#[cold]
fn far_life(shape: SlotShape, slot: impl Words) -> Option<Life> {
    View::consistent(shape, &image(slot)).ok()?.life()
}

/// Replaces `value` with the value that the slot has; `header` is the slot's. A reference is none.
#[inline]
pub(crate) fn value_into(
    shape: SlotShape,
    slot: impl Words,
    header: &Header,
    value: &mut impl Sink,
) -> Result<(), Torn> {
    let (mut key_left, mut value_left) = (usize::from(header.klen), header.inline_bytes());
    if key_left + value_left > shape.payload_max() {
        return Err(Torn::Lengths);
    }
    put_life(shape, slot, header, value);
    if !value.begin(value_left) {
        return Ok(());
    }
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
            value.put(&payload[key_left..][..value_left]);
            break;
        };
        let payload = &load_line(line)[..FURTHER];
        append::<FURTHER>(payload, &mut key_left, &mut value_left, value);
        rest = after;
    }
    Ok(())
}

/// Appends to the value what this part of the payload, `N` bytes, has of it. (Whole parts of a length known
/// beforehand are copied in place: a call for each takes longer.)
#[inline(always)]
fn append<const N: usize>(
    payload: &[u8],
    key_left: &mut usize,
    value_left: &mut usize,
    value: &mut impl Sink,
) {
    if *key_left == 0
        && *value_left >= N
        && let Some(whole) = payload.first_chunk::<N>()
    {
        value.put(whole);
        *value_left -= N;
        return;
    }
    let behind_key = &payload[N.min(*key_left)..];
    let part = &behind_key[..behind_key.len().min(*value_left)];
    value.put(part);
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
pub(crate) fn line_value<S: Sink>(slot: impl Words, key: &[u8], value: &mut S) -> LineShows {
    if S::WANTS_LIFE && line_holds(slot, key) {
        put_life(SlotShape::LINE, slot, &header(slot), value);
    }
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

#[inline(always)]
fn value_of<const N: usize>(value: &mut impl Sink, vlen: usize, word: impl Fn(usize) -> u64) -> LineShows {
    if vlen > N * WORD {
        return LineShows::Nonsense;
    }
    value.put_words::<N>(vlen, word);
    LineShows::Value
}

#[inline(never)]
fn line_value_of_any(slot: impl Words, key: &[u8], value: &mut impl Sink) -> LineShows {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::AtomicU64;
    use crate::layout::compare::{KeyEnd, begins_with};
    use crate::layout::slot::{Content, Identity, Image, Stored, encode};
    use crate::sink::LifeSink;

    fn mapped(image: &[u64]) -> Vec<AtomicU64> {
        image.iter().map(|&word| AtomicU64::new(word)).collect()
    }

    /// A life is read in place as from a copy, wherever it stands, in the first line and behind it.
    #[test]
    fn lives_in_place() {
        let identity = Identity { generation: 3, index: 77 };
        let life = Life { number: 0xba98_7654_3210, owner: 0xfedc, expiry: 0x1357_9bdf };
        let mut ways = [0; 2];
        for bytes in [32, 64, 128, 192] {
            let shape = SlotShape::from_bytes(bytes).unwrap();
            let max = shape.payload_max().saturating_sub(LIFE_BYTES);
            let lengths = (1..=max.min(64)).flat_map(|klen| (0..=max - klen).map(move |vlen| (klen, vlen)));
            for (klen, vlen) in lengths {
                let (key, value) = (vec![0xff; klen], vec![0xff; vlen]);
                let stored = Stored::from(&value).with_life(Some(&life));
                let slot = mapped(&encode(
                    shape,
                    identity,
                    4,
                    &Content { key: &key, value: stored, ..Content::default() },
                ));
                let (header, mut found) = (header(&slot[..]), LifeSink::default());
                put_life(shape, &slot[..], &header, &mut found);
                assert_eq!(found.life(), Some(life), "{bytes}: {klen} + {vlen}");
                let in_place = line_life(shape, &slot[..], &header);
                assert!(in_place.is_none_or(|found| found == life));
                ways[usize::from(in_place.is_some())] += 1;
            }
        }
        assert!(ways.iter().all(|&count| count > 1_000), "{ways:?}");
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
