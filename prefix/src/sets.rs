//! Sets of holders: a bit each, in words of 64.

use smallvec::SmallVec;

/// The most holders of a table.
pub const HOLDERS_MAX: usize = 4_096;
/// Bytes of a word.
pub(crate) const WORD: usize = 8;

/// A set of bits. As it stands in an entry, it has as many whole words as its highest bit needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderSet(SmallVec<[u64; 4]>);

impl HolderSet {
    /// From the bytes of a set. Those behind its last whole word do not count.
    pub fn from_bytes(bytes: &[u8]) -> HolderSet {
        let (words, _) = bytes.as_chunks::<WORD>();
        let mut set = HolderSet(words.iter().map(|word| u64::from_le_bytes(*word)).collect());
        set.trim();
        set
    }

    /// As it stands in an entry.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn of(bit: u16) -> HolderSet {
        let mut set = HolderSet::default();
        set.insert(bit);
        set
    }

    pub fn insert(&mut self, bit: u16) {
        let nth = usize::from(bit) / 64;
        if self.0.len() <= nth {
            self.0.resize(nth + 1, 0);
        }
        self.0[nth] |= 1 << (bit % 64);
    }

    pub fn has(&self, bit: u16) -> bool {
        self.0.get(usize::from(bit) / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Words that its highest bit needs.
    pub fn words(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out those that are not in the set with these bytes, and calls `gone` with each.
    #[inline]
    pub fn keep(&mut self, set: &[u8], mut gone: impl FnMut(usize)) {
        let (words, _) = set.as_chunks::<WORD>();
        for (nth, word) in self.0.iter_mut().enumerate() {
            let mut lost = *word & !words.get(nth).map_or(0, |word| u64::from_le_bytes(*word));
            if lost != 0 {
                *word &= !lost;
                while lost != 0 {
                    gone(nth * 64 + lost.trailing_zeros() as usize);
                    lost &= lost - 1;
                }
            }
        }
        self.trim();
    }

    /// Whether one of them is in the set with these bytes.
    pub fn meets(&self, set: &[u8]) -> bool {
        let (words, _) = set.as_chunks::<WORD>();
        self.0.iter().zip(words).any(|(word, other)| word & u64::from_le_bytes(*other) != 0)
    }

    pub fn and(&self, other: &HolderSet) -> HolderSet {
        let mut set = HolderSet(self.0.iter().zip(&other.0).map(|(one, other)| one & other).collect());
        set.trim();
        set
    }

    pub fn and_not(&self, other: &HolderSet) -> HolderSet {
        let mut set = self.clone();
        set.0.iter_mut().zip(&other.0).for_each(|(one, other)| *one &= !other);
        set.trim();
        set
    }

    pub fn or(&self, other: &HolderSet) -> HolderSet {
        let (mut long, short) =
            if self.0.len() < other.0.len() { (other.clone(), self) } else { (self.clone(), other) };
        long.0.iter_mut().zip(&short.0).for_each(|(one, other)| *one |= other);
        long
    }

    /// The bits in it, in order.
    pub fn bits(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().enumerate().flat_map(|(nth, &word)| {
            (0..64u16).filter(move |bit| word >> bit & 1 == 1).map(move |bit| nth as u16 * 64 + bit)
        })
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl FromIterator<u16> for HolderSet {
    fn from_iter<I: IntoIterator<Item = u16>>(bits: I) -> HolderSet {
        let mut set = HolderSet::default();
        bits.into_iter().for_each(|bit| set.insert(bit));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Sets of any width do what sets do, and have as many words as their highest bits need.
    #[test]
    fn sets_are_sets() {
        let all: Vec<BTreeSet<u16>> =
            [&[][..], &[0], &[63], &[64], &[0, 255], &[1, 63, 64, 300], &[300, 4_095]]
                .iter()
                .map(|bits| bits.iter().copied().collect())
                .collect();
        let set = |of: &BTreeSet<u16>| of.iter().copied().collect::<HolderSet>();
        for a in &all {
            let one = set(a);
            assert_eq!(one.bits().collect::<BTreeSet<_>>(), *a);
            assert_eq!(one.words(), a.last().map_or(0, |last| usize::from(*last) / 64 + 1));
            assert_eq!(one.to_bytes().len(), one.words() * WORD);
            assert_eq!(HolderSet::from_bytes(&one.to_bytes()), one);
            let padded = [&one.to_bytes()[..], &[0; 20]].concat();
            assert_eq!(HolderSet::from_bytes(&padded), one, "zeros behind it are none of it");
            for b in &all {
                let (other, bytes) = (set(b), [&set(b).to_bytes()[..], &[0; 8]].concat());
                assert_eq!(one.or(&other), set(&(a | b)));
                assert_eq!(one.and(&other), set(&(a & b)));
                assert_eq!(one.and_not(&other), set(&(a - b)));
                assert_eq!(one.meets(&bytes), !a.is_disjoint(b));
                let (mut kept, mut gone) = (one.clone(), BTreeSet::new());
                kept.keep(&bytes, |bit| assert!(gone.insert(bit as u16)));
                assert_eq!((kept, gone), (set(&(a & b)), a - b));
            }
            for bit in [0, 1, 63, 64, 300, 4_095] {
                assert_eq!(one.has(bit), a.contains(&bit));
            }
        }
    }
}
