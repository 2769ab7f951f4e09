//! Neighbouring homes.

use std::ops::Range;

/// Some of up to 64 neighbouring homes. Those of one step (`homes/show.rs`) have their own slots in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HomeSet {
    first: u64,
    /// A bit for each home from the first on.
    bits: u64,
}

impl HomeSet {
    /// One home.
    pub const fn one(home: u64) -> HomeSet {
        HomeSet { first: home, bits: 1 }
    }

    /// These homes: at least one, and at most 64.
    pub fn of(homes: Range<u64>) -> HomeSet {
        HomeSet { first: homes.start, bits: u64::MAX >> (64 - (homes.end - homes.start)) }
    }

    /// The empty set of the same homes.
    pub const fn cleared(self) -> HomeSet {
        HomeSet { bits: 0, ..self }
    }

    /// Adds a home, which is one of the 64.
    pub fn add(&mut self, home: u64) {
        self.bits |= 1 << (home - self.first);
    }

    /// Takes out the homes of another set.
    pub fn without(self, others: HomeSet) -> HomeSet {
        debug_assert_eq!(self.first, others.first);
        HomeSet { bits: self.bits & !others.bits, ..self }
    }

    /// The first homes, at most this number.
    pub fn first_few(self, most: u32) -> HomeSet {
        let behind = (most..self.len()).fold(0, |behind, _| behind | 1 << (self.bits & !behind).ilog2());
        HomeSet { bits: self.bits & !behind, ..self }
    }

    pub fn contains(self, home: u64) -> bool {
        home.checked_sub(self.first).is_some_and(|bit| bit < 64 && self.bits >> bit & 1 == 1)
    }

    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    pub fn len(self) -> u32 {
        self.bits.count_ones()
    }

    /// The first and the last home. `None` of an empty set.
    pub fn ends(self) -> Option<(u64, u64)> {
        let last = self.bits.checked_ilog2()?;
        Some((self.first + u64::from(self.bits.trailing_zeros()), self.first + u64::from(last)))
    }

    /// The homes, in order.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        let mut bits = self.bits;
        std::iter::from_fn(move || {
            let next = (bits != 0).then(|| self.first + u64::from(bits.trailing_zeros()));
            bits &= bits.wrapping_sub(1);
            next
        })
    }

    /// The homes as bits in an array of words, a bit for each home of the segment: the number of each word that has
    /// any, and its bits.
    pub fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let (word, shift) = ((self.first / 64) as usize, self.first % 64);
        let low = (word, self.bits << shift);
        let high = (word + 1, if shift == 0 { 0 } else { self.bits >> (64 - shift) });
        [low, high].into_iter().filter(|&(_, bits)| bits != 0)
    }

    /// The homes whose bits are set in such an array. `word` gives its words, and 0 behind the last.
    pub fn set_in(self, word: impl Fn(usize) -> u64) -> HomeSet {
        let (number, shift) = ((self.first / 64) as usize, self.first % 64);
        let high = if shift == 0 { 0 } else { word(number + 1) << (64 - shift) };
        HomeSet { bits: self.bits & (word(number) >> shift | high), ..self }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A set has the homes that were added, wherever it begins, in whichever way it is asked.
    #[test]
    fn a_set_has_what_was_added() {
        for first in [0, 1, 63, 64, 100] {
            let mut set = HomeSet::one(first).cleared();
            assert!(set.is_empty() && set.ends().is_none() && set.words().next().is_none());
            let homes = [first + 2, first + 31, first + 63];
            homes.iter().for_each(|&home| set.add(home));
            assert_eq!(set.iter().collect::<Vec<_>>(), homes);
            assert_eq!((set.len(), set.ends()), (3, Some((homes[0], homes[2]))));
            let by_words = set.words().flat_map(|(word, bits)| {
                (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u64 * 64 + bit)
            });
            assert_eq!(by_words.collect::<Vec<_>>(), homes);
            let mut words = [0u64; 4];
            set.words().for_each(|(number, bits)| words[number] = bits);
            assert_eq!(HomeSet::of(first..first + 64).set_in(|number| words[number]), set);
            assert_eq!(HomeSet::of(first..first + 3).set_in(|number| words[number]).len(), 1);
            for few in 0..5 {
                let expected = &homes[..few.min(3)];
                assert_eq!(set.first_few(few as u32).iter().collect::<Vec<_>>(), expected);
            }
            let all = first.saturating_sub(1)..first + 70;
            assert_eq!(all.filter(|&home| set.contains(home)).collect::<Vec<_>>(), homes);
            let mut others = set.cleared();
            others.add(homes[1]);
            assert_eq!(set.without(others).iter().collect::<Vec<_>>(), [homes[0], homes[2]]);
            assert_eq!(HomeSet::one(first).iter().collect::<Vec<_>>(), [first]);
        }
    }
}
