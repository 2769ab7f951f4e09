//! What words are loaded by: the processor's longer loads, its copy loop, its prefetch.

#![allow(unsafe_code)]

use crate::base::sync::{AtomicU64, Ordering};
use crate::layout::words::LINE_WORDS;
use crate::layout::{LINE, WORD};
use std::mem::MaybeUninit;

/// Loads all words into memory of that length. Not by way of a buffer on the stack: what is stored there in
/// words and loaded in longer pieces waits for the stores, which takes ten times as long.
pub(super) fn load_bytes<'m>(words: &[AtomicU64], to: &'m mut [MaybeUninit<u8>]) -> &'m mut [u8] {
    assert_eq!(words.len() * WORD, to.len(), "memory of this length");
    match to.len() {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        STRING_MIN.. if std::arch::is_x86_feature_detected!("ermsb") => load_string(words, to),
        _ => load_lines(words, to),
    }
    // SAFETY: as many bytes were written as there are.
    unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), to.len()) }
}

/// Loads words line by line.
fn load_lines(words: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    let (lines, rest) = words.as_chunks::<LINE_WORDS>();
    let (to_lines, to_rest) = to.as_chunks_mut::<LINE>();
    for (to, line) in to_lines.iter_mut().zip(lines) {
        *to = load_line(line).map(MaybeUninit::new);
    }
    for (to, word) in to_rest.as_chunks_mut::<WORD>().0.iter_mut().zip(rest) {
        *to = word.load(Ordering::Relaxed).to_le_bytes().map(MaybeUninit::new);
    }
}

/// Bytes from which on one string instruction is faster than loads: it takes some 50 cycles to begin.
#[cfg(all(target_arch = "x86_64", not(loom)))]
const STRING_MIN: usize = 2048;

/// Like `load_lines`, by the processor's own copy loop, which moves whole lines.
#[cfg(all(target_arch = "x86_64", not(loom)))]
fn load_string(words: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    // SAFETY:
    // * the words are there, and as many bytes of memory of ours: the caller has compared the lengths.
    //   Nothing else is touched;
    // * these are relaxed loads, in no order and of any width, and stores to memory that nobody else
    //   knows. Nobody relies on whole words: the bytes count only if nobody stored there meanwhile (X4);
    // * later loads stay behind them: the manuals order a string's stores, and are silent on its loads,
    //   so a fence orders these.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            "lfence",
            inout("rcx") to.len() => _,
            inout("rsi") words.as_ptr() => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Loads a line of words, two at a time: the compiler does not join atomic loads, and one word a cycle is
/// half of what `memcpy` brings from the cache.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
fn load_line(words: &[AtomicU64; LINE_WORDS]) -> [u8; LINE] {
    use std::arch::x86_64::__m128i;
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY:
    // * the words are there: the instructions load these 64 bytes and touch nothing else;
    // * it is what eight relaxed loads do, in no order. The processor loads each word at once where a pair
    //   of them lies in one line, and where it does not, each is in a line of its own. Nobody relies on
    //   that: the bytes count only if nobody stored there meanwhile (X4).
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            from = in(reg) words.as_ptr(),
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    bytemuck::cast([a, b, c, d])
}

/// Loads a line of words.

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
#[inline(always)]
fn load_line(words: &[AtomicU64; LINE_WORDS]) -> [u8; LINE] {
    bytemuck::cast(std::array::from_fn::<_, LINE_WORDS, _>(|n| {
        words[n].load(Ordering::Relaxed).to_le_bytes()
    }))
}

/// Asks the CPU to fetch a line. No effect but on time, whatever the address.
#[inline(always)]
pub(super) fn prefetch(at: *const AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch touches no memory architecturally, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
