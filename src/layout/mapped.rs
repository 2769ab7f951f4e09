//! Slots as words of region memory: loads, and comparison in place.
//!
//! These functions promise nothing about consistency: words of different writes may come back. The caller
//! holds the slot's lock, or validates the stamp around the call.

use super::slot::{Header, Image, Key, SlotShape, Torn, View};
use super::{LINE, WORD};
use crate::sync::{AtomicU64, Ordering};

const FIRST_LINE_KEY: usize = LINE - super::slot::HEADER;

/// The slot's header.
#[inline]
pub(crate) fn header(slot: &[AtomicU64]) -> Header {
    Header::from_words([slot[0].load(Ordering::Relaxed), slot[1].load(Ordering::Relaxed)])
}

/// All words of the slot.
#[inline]
pub(crate) fn image(slot: &[AtomicU64]) -> Image {
    let mut image = Image::from_elem(0, slot.len());
    for (to, from) in image.iter_mut().zip(slot) {
        *to = from.load(Ordering::Relaxed);
    }
    image
}

/// The slot's header and key; loads no more words than these take.
#[inline]
pub(crate) fn header_and_key(shape: SlotShape, slot: &[AtomicU64]) -> Result<(Header, Key), Torn> {
    let header = header(slot);
    let klen = usize::from(header.klen);
    if klen > FIRST_LINE_KEY || klen > shape.payload_max() {
        return View::consistent(shape, &image(slot)).map(|view| (view.header(), view.key()));
    }
    let mut words = [0u64; FIRST_LINE_KEY / WORD];
    for (to, from) in words.iter_mut().zip(&slot[super::slot::HEADER / WORD..]).take(klen.div_ceil(WORD)) {
        *to = from.load(Ordering::Relaxed);
    }
    let mut key = Key::from(bytemuck::cast::<_, [u8; FIRST_LINE_KEY]>(words));
    key.truncate(klen);
    Ok((header, key))
}

/// Does the slot's payload begin with `key`? The caller has compared the length.
#[inline]
pub(crate) fn begins_with(shape: SlotShape, slot: &[AtomicU64], key: &[u8]) -> bool {
    if key.len() > FIRST_LINE_KEY {
        return holds_long(shape, slot, key);
    }
    let words = &slot[super::slot::HEADER / WORD..];
    let mut chunks = key.chunks_exact(WORD);
    for (word, chunk) in words.iter().zip(&mut chunks) {
        if word.load(Ordering::Relaxed) != u64::from_le_bytes(chunk.try_into().expect("8 bytes")) {
            return false;
        }
    }
    let rest = chunks.remainder();
    if rest.is_empty() {
        return true;
    }
    let mut last = [0u8; WORD];
    last[..rest.len()].copy_from_slice(rest);
    let mask = !0u64 >> (64 - 8 * rest.len());
    words[key.len() / WORD].load(Ordering::Relaxed) & mask == u64::from_le_bytes(last)
}

#[cold]
fn holds_long(shape: SlotShape, slot: &[AtomicU64], key: &[u8]) -> bool {
    View::consistent(shape, &image(slot)).is_ok_and(|view| view.holds(key))
}

/// Replaces `value` with the slot's value; `header` is the slot's.
#[inline]
pub(crate) fn value_into(
    shape: SlotShape,
    slot: &[AtomicU64],
    header: &Header,
    value: &mut Vec<u8>,
) -> Result<(), Torn> {
    if shape.lines() > 1 {
        return View::consistent(shape, &image(slot)).map(|view| view.value_into(value));
    }
    let (klen, vlen) = (usize::from(header.klen), usize::from(header.vlen));
    if klen + vlen > shape.payload_max() {
        return Err(Torn::Lengths);
    }
    let mut words = [0u64; FIRST_LINE_KEY / WORD];
    for (to, from) in words.iter_mut().zip(&slot[super::slot::HEADER / WORD..]) {
        *to = from.load(Ordering::Relaxed);
    }
    value.clear();
    value.extend_from_slice(&bytemuck::cast_slice(&words)[klen..klen + vlen]);
    Ok(())
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
                    let content = Content { key: &key, value: &value, ghost: 9, aux: 8 };
                    let image_there = encode(shape, identity, 4, &content);
                    let slot = mapped(&image_there);
                    let case = format!("{bytes}: {klen} + {vlen}");

                    assert_eq!(image(&slot), image_there);
                    let (there, found) = header_and_key(shape, &slot).unwrap();
                    assert_eq!((there, &*found), (header(&slot), &*key), "{case}");
                    assert_eq!((there.stamp, there.ghost, there.aux), (4, 9, 8), "{case}");
                    assert!(begins_with(shape, &slot, &key), "{case}");
                    for at in 0..klen {
                        let mut other = key.clone();
                        other[at] ^= 0x80;
                        assert!(!begins_with(shape, &slot, &other), "{case}: byte {at}");
                    }
                    let mut found = vec![1, 2, 3];
                    value_into(shape, &slot, &there, &mut found).unwrap();
                    assert_eq!(found, value, "{case}");
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
                assert_eq!(value_into(shape, &slot, &said, &mut Vec::new()).is_ok(), whole, "{case}");
                match header_and_key(shape, &slot) {
                    Ok((there, key)) => assert!(there == said && key.len() == klen && klen <= max, "{case}"),
                    Err(torn) => assert!(torn == Torn::Lengths && !whole, "{case}"),
                }
            }
        }
    }
}
