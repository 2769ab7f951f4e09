//! Bytes of words into a caller's vector.

#![allow(unsafe_code)]

use super::WORD;

/// Replaces `out` with the first `len` bytes of these `N` words. Copies them all: that is quicker than to copy
/// a length known at run time.
///
/// # Panics
/// When there are not so many.
#[inline(always)]
pub(crate) fn replace<const N: usize>(out: &mut Vec<u8>, len: usize, word: impl Fn(usize) -> u64) {
    assert!(len <= N * WORD, "no more bytes than there are");
    if out.capacity() < N * WORD {
        make_room(out, N * WORD);
    }
    let to = out.as_mut_ptr().cast::<[u8; WORD]>();
    for n in 0..N {
        // SAFETY: the vector has memory for `N` words, and nobody else refers to it.
        unsafe { to.add(n).write(word(n).to_le_bytes()) };
    }
    // SAFETY: `len` bytes, or more, were written.
    unsafe { out.set_len(len) };
}

#[cold]
#[inline(never)]
fn make_room(out: &mut Vec<u8>, bytes: usize) {
    out.clear();
    out.reserve(bytes);
    assert!(out.capacity() >= bytes, "room was made");
}
