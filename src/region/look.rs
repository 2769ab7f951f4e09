//! A region as readers look at it: windows of slots, lines, words.

use super::words::Region;
use crate::base::observe::ObservedBy;
use crate::base::sync::{AtomicU64, Ordering};
use crate::layout::compare::{self, Lines, Loadable, SideBySide};
use crate::layout::control::{CONTROL_WORDS, STATE_WORD};
use crate::layout::words::{LINE_WORDS, Words};

/// Words of a region. Each slot's look is an access of its own.
#[derive(Clone, Copy)]
pub(crate) struct MappedWords<'a> {
    words: &'a [AtomicU64],
    observed: ObservedBy<'a>,
}

impl Words for MappedWords<'_> {
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
}

impl Lines for MappedWords<'_> {
    #[inline(always)]
    fn lines_with(self, key: &[u8]) -> u32 {
        match SideBySide::of(self.words, key) {
            Some(side_by_side) => {
                side_by_side.lines().iter().for_each(|_| self.observed.access());
                side_by_side.lines_with_key()
            }
            None => compare::lines_with(self, key),
        }
    }
}

impl Loadable for Region {
    type Words<'a> = MappedWords<'a>;

    #[inline(always)]
    fn words_within(&self, first: usize, len: usize) -> Option<MappedWords<'_>> {
        let words = self.slice_within(first, len)?;
        self.accessed();
        Some(MappedWords { words, observed: self.observer() })
    }

    #[inline(always)]
    fn word_within(&self, number: usize) -> Option<u64> {
        self.accessed();
        self.word_at(number)
    }

    /// Each line's look is an access.
    #[inline(always)]
    fn control(&self) -> MappedWords<'_> {
        MappedWords { words: self.slice(STATE_WORD, CONTROL_WORDS), observed: self.observer() }
    }

    #[inline(always)]
    fn expect(&self, first: usize) {
        self.prefetch_four(first);
    }

    #[inline(always)]
    fn eight_lines_within(&self, first: usize) -> Option<MappedWords<'_>> {
        let words = self.eight_lines_from(first)?;
        self.accessed();
        Some(MappedWords { words, observed: self.observer() })
    }
}
