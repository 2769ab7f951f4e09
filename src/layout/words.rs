//! Words of memory that others write, and what loads them one by one.

use super::slot::{Header, Image};
use super::{LINE, WORD};
use crate::base::sync::{AtomicU64, Ordering};

/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE / WORD;

/// Words of eight lines.
pub(crate) const EIGHT_LINES: usize = 8 * LINE_WORDS;

/// Words of a region, to be loaded one by one.
pub(crate) trait Words: Copy {
    /// How many there are.
    fn len(self) -> usize;

    /// Loads the word with this number. Relaxed: pair it with a fence.
    fn load(self, word: usize) -> u64;

    /// The first `words` words, and the others. `None` when there are fewer.
    fn split(self, words: usize) -> Option<(Self, Self)>;

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

/// Loads all words of the slot into as many.
#[inline(always)]
pub(crate) fn load_all(slot: impl Words, into: &mut [u64]) {
    into.iter_mut().enumerate().for_each(|(n, word)| *word = slot.load(n));
}

/// The bytes of a line.
#[inline(always)]
pub(crate) fn load_line(line: impl Words) -> [u8; LINE] {
    bytemuck::cast::<[u64; LINE_WORDS], _>(std::array::from_fn(|n| line.load(n)))
}
