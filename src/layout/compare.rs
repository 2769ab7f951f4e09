//! Whether a slot in a mapping holds a key: every comparison with words that others write.
//!
//! Nothing here promises that the words are of one write. The caller holds the slot's lock, or validates the
//! stamp, or the counter of moves, around the call.

#![allow(unsafe_code)]

use super::slot::{HEADER, Header, SlotShape, View};
use super::words::{EIGHT_LINES, LINE_WORDS, Words, image};
use super::{LINE, WORD};
use crate::base::sync::AtomicU64;

/// The most bytes of a key that are in the first line of its slot.
pub(super) const FIRST_LINE_KEY: usize = LINE - HEADER;
pub(super) const HEADER_WORDS: usize = HEADER / WORD;

/// Lines that can be searched for a key.
pub(crate) trait Lines: Words {
    /// Which of these lines, at most eight, show the end of the key: bit `2 * n` stands for line `n`. Finds it
    /// without a branch where that saves time: a wrong guess costs as much as a line takes to come.
    #[inline(always)]
    fn lines_with(self, key: &[u8]) -> u32 {
        lines_with(self, key)
    }
}

impl Lines for &[AtomicU64] {}

/// Memory that can be loaded word by word.
pub(crate) trait Loadable {
    /// Some consecutive words of it.
    type Words<'a>: Lines
    where
        Self: 'a;

    /// So many words, from the one with this number on. `None` if not all of them are there: where damaged bytes
    /// may have led.
    fn words_within(&self, first: usize, len: usize) -> Option<Self::Words<'_>>;

    /// The words of the control page.
    fn control(&self) -> Self::Words<'_>;

    /// Loads one word. Relaxed: pair it with a fence. `None` if there is none with this number.
    #[inline(always)]
    fn word_within(&self, number: usize) -> Option<u64> {
        self.words_within(number, 1).map(|word| word.load(0))
    }

    /// Asks for the four lines that begin with this word, if that saves time: most keys are in the first four
    /// of their window. No effect otherwise, whether there is such a word or not.
    #[inline(always)]
    fn expect(&self, first: usize) {
        let _ = first;
    }

    /// Eight lines, from the word with this number on. `None` if not all of them are there.
    #[inline(always)]
    fn eight_lines_within(&self, first: usize) -> Option<Self::Words<'_>> {
        self.words_within(first, EIGHT_LINES)
    }

    /// Like `eight_lines_within`.
    ///
    /// # Panics
    /// When not all of them are there.
    #[inline(always)]
    fn eight_lines(&self, first: usize) -> Self::Words<'_> {
        self.eight_lines_within(first).expect("a geometry names only slots that are there")
    }
}

impl<T: Loadable> Loadable for &T {
    type Words<'a>
        = T::Words<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn words_within(&self, first: usize, len: usize) -> Option<Self::Words<'_>> {
        T::words_within(self, first, len)
    }

    #[inline(always)]
    fn control(&self) -> Self::Words<'_> {
        T::control(self)
    }

    #[inline(always)]
    fn word_within(&self, number: usize) -> Option<u64> {
        T::word_within(self, number)
    }

    #[inline(always)]
    fn expect(&self, first: usize) {
        T::expect(self, first);
    }

    #[inline(always)]
    fn eight_lines_within(&self, first: usize) -> Option<Self::Words<'_>> {
        T::eight_lines_within(self, first)
    }
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

/// Whether the slot, of one line, holds the key.
#[inline(always)]
pub(crate) fn line_holds(slot: impl Words, key: &[u8]) -> bool {
    value_len(slot, key).is_some()
        && if key.len() == 2 * WORD { has_two_words(slot, key) } else { has_key(slot, key) }
}

/// Whether the payload begins with these two words.
#[inline(always)]
pub(super) fn has_two_words(slot: impl Words, key: &[u8]) -> bool {
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
pub(super) fn has_key(slot: impl Words, key: &[u8]) -> bool {
    KeyEnd::of(key).is_some_and(|end| end.is_in(slot) && end.follows(slot, key))
}

/// The length of the value that the slot says it has, more than any slot has room for if that is a reference;
/// `None` if this key has another length.
#[inline(always)]
pub(super) fn value_len(slot: impl Words, key: &[u8]) -> Option<usize> {
    let word = slot.load(1);
    (usize::from(word as u8) == key.len()).then(|| Header::from_words([0, word]).inline_bytes())
}

/// The first of the lines that [`Lines::lines_with`] names. (Of eight, as the compiler shall know.)
#[inline(always)]
pub(crate) fn first_line(shown: u32) -> usize {
    shown.trailing_zeros() as usize / 2 % 8
}

/// The bit that stands for the line with this number.
#[inline(always)]
pub(crate) fn bit_of(line: u32) -> u32 {
    2 * line
}

/// [`Lines::lines_with`], one line after the other.
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

/// Four or eight lines, and a key, that can be compared at once.
pub(crate) struct SideBySide<'a> {
    lines: &'a [[AtomicU64; LINE_WORDS]],
    /// The last eight bytes of the key, and its length.
    end: u64,
    len: usize,
}

impl<'a> SideBySide<'a> {
    /// `None` where the processor cannot, or where it is of no use.
    #[inline(always)]
    pub fn of(words: &'a [AtomicU64], key: &[u8]) -> Option<SideBySide<'a>> {
        match (words.as_chunks().0, key.last_chunk(), key.len()) {
            (lines, Some(end), len @ ..=KeyEnd::KEY_MAX)
                if cfg!(all(target_arch = "x86_64", not(loom), not(miri)))
                    && (lines.len() == 4 || lines.len() == 8) =>
            {
                Some(SideBySide { lines, end: u64::from_le_bytes(*end), len })
            }
            _ => None,
        }
    }

    /// The lines.
    #[inline(always)]
    pub fn lines(&self) -> &'a [[AtomicU64; LINE_WORDS]] {
        self.lines
    }

    /// As [`Lines::lines_with`].
    #[inline(always)]
    pub fn lines_with_key(&self) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        return slots_with(self.lines, self.end, self.len);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        unreachable!("there is none")
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
    assert!((8..=KeyEnd::KEY_MAX).contains(&len), "the key ends in the slot's line");
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::region::Region;

    /// Eight slots compared at once are what one after the other gives: for keys of every length, their last
    /// byte or another one of their last word changed, and the key in any of the slots, in several, or in none.
    #[test]
    fn eight_lines_as_one_after_the_other() {
        let region = Region::private(3 * LINE as u64 * 8);
        let first = 8 * LINE_WORDS;
        for len in 1..=KeyEnd::KEY_MAX {
            let key: Vec<u8> = (0..len as u8).map(|n| n + 1).collect();
            for which in 0u32..256 {
                for slot in 0..8 {
                    let mut payload = [0xee; LINE - HEADER];
                    payload[..len].copy_from_slice(&key);
                    if which >> slot & 1 == 0 {
                        payload[len - 1 - (which as usize + slot) % ((len - 1) % WORD + 1)] ^=
                            1 << (which % 8);
                    }
                    let words: [u64; 6] = bytemuck::cast(payload);
                    let at = first + slot * LINE_WORDS + HEADER / WORD;
                    (at..).zip(words).for_each(|(at, word)| region.store(at, word));
                }
                let lines = region.eight_lines(first);
                let found = lines.lines_with(&key);
                assert_eq!(found, lines_with(lines, &key), "{len}: {which:b}");
                let expected = (0..8).fold(0, |bits, slot| bits | (which >> slot & 1) << (2 * slot));
                assert_eq!(found, expected, "{len}: {which:b}");
            }
        }
    }
}
