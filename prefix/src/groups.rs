//! Eight neighbours in one entry.
//!
//! A *group* is the blocks 8n to 8n + 7 of a prompt. Its entry has the digest of its first block as key, and the
//! sets of up to eight blocks with a tag for each:
//!
//! ```text
//! 0       1 if it is branched, else 0
//! 1       words of each set, as many as the widest needs
//! 2..8    zero
//! then for each block   tag (u64), set
//! ```
//!
//! Prompts that part inside a group share its entry: nine blocks may want to stand there. When the ninth one comes,
//! the entry is marked as *branched*, and from then on its tags stay as they are: none comes, and one that has no
//! holder any more keeps its place. So where a block stands is decided once. A prompt has a *path* through its group:
//! the group's entry, and the entries that its blocks begin. A block stands in the first entry of the path that has
//! its tag, else in the last one; if that is branched, the block begins an entry of its own, whose key is its digest.
//! That makes at most eight entries, and one where prompts do not part. Nothing is ever moved. Whoever adds a tag
//! swaps an entry that is not branched, and whoever begins an entry has READ a branched one: the two cannot both
//! happen to a block.
//!
//! A tag is 64 bits of the digest. Within an entry two blocks have the same one with 2^-58.

use crate::digests::Key;
use crate::sets::{HOLDERS_MAX, HolderSet, WORD};

/// Blocks of a group.
pub(crate) const GROUP: usize = 8;
const HEADER: usize = 8;
const TAG: usize = 8;

/// Words of the widest set.
const WORDS_MAX: usize = HOLDERS_MAX / 64;

/// The longest value of a group whose sets have this number of words.
pub(crate) const fn value_max(words: usize) -> usize {
    HEADER + GROUP * (TAG + words * WORD)
}

#[inline]
pub(crate) fn tag_of(key: &Key) -> u64 {
    let [a, b] = bytemuck::cast::<Key, [u64; 2]>(*key).map(u64::from_le);
    a ^ b.rotate_left(32)
}

/// The bytes of a group's entry, as they were READ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    is_branched: bool,
    cells: &'a [u8],
    cell: usize,
}

impl<'a> Group<'a> {
    /// `None` for bytes that are no group.
    #[inline]
    pub fn of(value: &'a [u8]) -> Option<Group<'a>> {
        let (header, cells) = value.split_first_chunk::<HEADER>()?;
        let words = usize::from(header[1]);
        let cell = TAG + words * WORD;
        let is_whole = (1..=WORDS_MAX).contains(&words);
        let is_whole = is_whole && cells.len().is_multiple_of(cell) && cells.len() <= GROUP * cell;
        (is_whole && header[0] <= 1).then_some(Group { is_branched: header[0] == 1, cells, cell })
    }

    /// Whether a block that is not here may have an entry of its own.
    #[inline]
    pub fn is_branched(&self) -> bool {
        self.is_branched
    }

    /// The set of a block. The blocks of a prompt mostly stand in order: `hint` is where it is looked for first.
    #[inline]
    pub fn set(&self, tag: u64, hint: usize) -> Option<&'a [u8]> {
        let is_it = |cell: &&[u8]| cell.first_chunk() == Some(&tag.to_le_bytes());
        let hinted = self.cells.get(hint * self.cell..(hint + 1) * self.cell).filter(is_it);
        let cell = hinted.or_else(|| self.cells.chunks_exact(self.cell).find(is_it))?;
        Some(&cell[TAG..])
    }

    /// Whether a block here has one of these holders.
    pub fn has(&self, holders: &HolderSet) -> bool {
        self.cells.chunks_exact(self.cell).any(|cell| holders.meets(&cell[TAG..]))
    }

    /// To change it.
    pub fn to_owned(self) -> OwnedGroup {
        let cell = |cell: &[u8]| {
            let (tag, set) = cell.split_at(TAG);
            (u64::from_le_bytes(tag.try_into().unwrap_or_default()), HolderSet::from_bytes(set))
        };
        let cells = self.cells.chunks_exact(self.cell).map(cell).collect();
        OwnedGroup { is_branched: self.is_branched, cells }
    }
}

/// A group's entry that is being changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedGroup {
    pub is_branched: bool,
    cells: Vec<(u64, HolderSet)>,
}

impl OwnedGroup {
    pub fn has(&self, tag: u64) -> bool {
        self.cells.iter().any(|(of, _)| *of == tag)
    }

    /// Adds a holder to a block. Returns whether the block is there, or found room. There always is room for the
    /// entry's first block, which has the tag `head`.
    pub fn add(&mut self, tag: u64, holder: &HolderSet, head: u64) -> bool {
        if let Some((_, set)) = self.cells.iter_mut().find(|(of, _)| *of == tag) {
            *set = set.or(holder);
            return true;
        }
        let is_head_there = tag == head || self.has(head);
        let has_room = self.cells.len() < GROUP - usize::from(!is_head_there);
        let has_room = has_room && (!self.is_branched || tag == head);
        if has_room {
            self.cells.push((tag, holder.clone()));
        }
        has_room
    }

    /// Tags stay as they are from now on, and that of its first block is one of them.
    pub fn branch(&mut self, head: u64) {
        self.add(head, &HolderSet::default(), head);
        self.is_branched = true;
    }

    /// Takes holders out of the block with this tag, of all blocks if there is none given. Blocks without a holder
    /// go, unless the entry is branched.
    pub fn take(&mut self, tag: Option<u64>, holders: &HolderSet) {
        for (of, set) in &mut self.cells {
            if tag.is_none_or(|tag| tag == *of) {
                *set = set.and_not(holders);
            }
        }
        let is_branched = self.is_branched;
        self.cells.retain(|(_, set)| is_branched || !set.is_empty());
    }

    /// Its bytes. `None`: it is not needed.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        if self.cells.is_empty() && !self.is_branched {
            return None;
        }
        let mut bytes = vec![0; HEADER];
        let words = self.cells.iter().map(|(_, set)| set.words()).max().unwrap_or(0).max(1);
        (bytes[0], bytes[1]) = (u8::from(self.is_branched), words as u8);
        for (tag, set) in &self.cells {
            bytes.extend_from_slice(&tag.to_le_bytes());
            let end = bytes.len() + words * WORD;
            bytes.extend_from_slice(&set.to_bytes());
            bytes.resize(end, 0);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group survives its bytes, which are as wide as its highest bit needs; no other bytes are one, and none makes a
    /// look panic.
    #[test]
    fn groups_have_bytes() {
        for (highest, words) in [(7, 1), (63, 1), (64, 2), (255, 4), (1_023, 16), (4_095, 64)] {
            let mut group = OwnedGroup::default();
            for n in 1..GROUP as u64 {
                assert!(group.add(n << 40, &HolderSet::of(n as u16), 0));
            }
            assert!(!group.add(99, &HolderSet::of(1), 0), "the last place is the first block's");
            group.branch(0);
            assert!(!group.add(99, &HolderSet::of(1), 0), "there is no ninth");
            assert!(group.add(0, &HolderSet::of(0), 0));
            assert!(group.add(0, &HolderSet::of(highest), 0));
            let bytes = group.to_bytes().unwrap();
            assert_eq!(bytes.len(), value_max(words));
            let seen = Group::of(&bytes).unwrap();
            assert_eq!(seen.to_owned(), group);
            assert!(seen.is_branched());
            assert!(seen.has(&HolderSet::of(highest)) && !seen.has(&HolderSet::of(62)));
            for hint in 0..10 {
                let set = |tag| seen.set(tag, hint).map(HolderSet::from_bytes);
                assert_eq!(set(3 << 40), Some(HolderSet::of(3)));
                assert_eq!(set(0), Some(HolderSet::of(0).or(&HolderSet::of(highest))));
                assert_eq!(set(99), None);
            }
            let cell = TAG + words * WORD;
            for length in 0..bytes.len() {
                let is_one = length >= HEADER && (length - HEADER).is_multiple_of(cell);
                assert_eq!(Group::of(&bytes[..length]).is_some(), is_one);
            }
            for wrong in [0, 65, 255] {
                let mut bytes = bytes.clone();
                bytes[1] = wrong;
                assert!(Group::of(&bytes).is_none());
            }
            group.take(Some(0), &HolderSet::of(highest));
            assert_eq!(group.to_bytes().unwrap().len(), value_max(1), "it is as narrow again");
            group.take(Some(1 << 40), &HolderSet::of(1));
            assert!(group.has(0) && group.has(1 << 40), "tags stay");
            assert!(!group.add(99, &HolderSet::of(1), 0), "nobody's place is given to another");
            group.is_branched = false;
            group.take(None, &HolderSet::of(5));
            assert!(!group.has(1 << 40) && !group.has(5 << 40));
            assert!(group.add(99, &HolderSet::of(1), 0), "there is room");
            group.take(None, &(0..=highest).collect());
            assert_eq!(group.to_bytes(), None);
            group.branch(7);
            let bytes = group.to_bytes().unwrap();
            let set = Group::of(&bytes).unwrap().set(7, 0).map(HolderSet::from_bytes);
            assert_eq!(set, Some(HolderSet::default()));
        }
    }
}
