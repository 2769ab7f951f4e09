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
