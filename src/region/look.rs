//! A region as readers look at it: windows of slots, lines, words.

#![allow(unsafe_code)]

use super::processor::LINE_WORDS;
use super::words::Region;
use crate::layout::mapped;
use crate::observe::ObservedBy;
use crate::sync::{AtomicU64, Ordering};

/// Words of a region. Each slot's look is an access of its own.
#[derive(Clone, Copy)]
pub(crate) struct MappedWords<'a> {
    words: &'a [AtomicU64],
    observed: ObservedBy<'a>,
}

impl mapped::Words for MappedWords<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn load(self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn split(self, words: usize) -> Option<(Self, Self)> {
        let (first, others) = self.words.split_at_checked(words)?;
        self.observed.access();
        Some((MappedWords { words: first, ..self }, MappedWords { words: others, ..self }))
    }

    #[inline(always)]
    fn line(self, number: usize) -> Self {
        self.observed.access();
        MappedWords { words: &self.words.as_chunks::<LINE_WORDS>().0[number], ..self }
    }

    #[inline(always)]
    fn lines_with(self, key: &[u8]) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if let (slots, Some(end), ..=mapped::KeyEnd::KEY_MAX) =
            (self.words.as_chunks().0, key.last_chunk(), key.len())
            && (slots.len() == 4 || slots.len() == 8)
        {
            slots.iter().for_each(|_| self.observed.access());
            return slots_with(slots, u64::from_le_bytes(*end), key.len());
        }
        mapped::lines_with(self, key)
    }
}

/// Which of four or eight slots show the last eight bytes of a key of this length: bit `2 * n` stands for slot
/// `n`. Twenty instructions for eight; compilers make forty of loads and comparisons without branches.
///
/// Where the bytes are not aligned, they are of two words, each as it was at an instant of its own. That is
/// as good: while a slot holds the key, both show it at each instant (G8).
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
fn slots_with(slots: &[[AtomicU64; LINE_WORDS]], end: u64, len: usize) -> u32 {
    use std::arch::x86_64::{__m128i, _mm_set1_epi64x, _mm_setzero_si128};
    use std::arch::x86_64::{_mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32};
    assert!((8..=mapped::KeyEnd::KEY_MAX).contains(&len), "the key ends in the slot's line");
    assert!(slots.len() == 4 || slots.len() == 8, "four or eight slots");
    // SAFETY:
    // * each load is of eight bytes of one of these slots: they begin 16 + len - 8 bytes behind its beginning
    //   and, by the first assertion, end in it; by the second, there are as many slots as are loaded from;
    // * the instructions are SSE2, which every x86-64 processor has; they store nothing;
    // * to the compiler, the loads may see any value in memory that others write. They do: what this returns
    //   is a guess until the slot has been read as a seqlock, or the counter of moves again.
    let halves = unsafe {
        let (at, end) = (slots.as_ptr().cast::<u8>().add(8 + len), _mm_set1_epi64x(end.cast_signed()));
        // The comparison of a slot this far behind the first and of the next one: four halves of eight bytes.
        macro_rules! two {
            ($offset:literal) => {{
                let both: __m128i;
                std::arch::asm!(
                    concat!("movq {both}, [{at} + ", $offset, "]"),
                    concat!("movhps {both}, [{at} + ", $offset, " + 64]"),
                    at = in(reg) at,
                    both = out(xmm_reg) both,
                    options(nostack, readonly, preserves_flags),
                );
                _mm_cmpeq_epi32(both, end)
            }};
        }
        let first = _mm_packs_epi32(two!(0), two!(128));
        let others = match slots.len() {
            4 => _mm_setzero_si128(),
            _ => _mm_packs_epi32(two!(256), two!(384)),
        };
        _mm_movemask_epi8(_mm_packs_epi16(first, others)).cast_unsigned()
    };
    halves & halves >> 1 & 0x5555
}

impl mapped::Loadable for Region {
    type Words<'a> = MappedWords<'a>;

    #[inline(always)]
    fn words(&self, first: usize, len: usize) -> MappedWords<'_> {
        self.accessed();
        MappedWords { words: self.slice(first, len), observed: self.observer() }
    }

    #[inline(always)]
    fn word(&self, number: usize) -> u64 {
        self.load(number)
    }

    #[inline(always)]
    fn expect(&self, first: usize) {
        self.prefetch_four(first);
    }

    #[inline(always)]
    fn eight_lines(&self, first: usize) -> MappedWords<'_> {
        let words = self.eight_lines_from(first);
        self.accessed();
        MappedWords { words, observed: self.observer() }
    }
}
