//! What lookups are made with: a pass over a prompt, and what a handle keeps from one to the next.

use crate::digests::Key;
use crate::groups::{Group, tag_of};
use crate::sets::HolderSet;
use std::ops::{ControlFlow, Range};

/// Memory of a handle for its lookups.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupMemory {
    /// The mask.
    pub mask: Vec<u8>,
    /// Lengths, one for each bit.
    pub lengths: Vec<u32>,
    /// Values of groups.
    pub values: Vec<Vec<u8>>,
}

/// What a handle's lookups did by jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JumpCounts {
    /// Lookups that looked at some blocks only, of some holders at least.
    pub lookups: u64,
    /// Lookups of these that were made block by block, too.
    pub walked: u64,
    /// Holders that are not jumped over any more, because the two told different lengths twice.
    pub stopped: u64,
}

/// What a handle knows of its jumps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jumps {
    pub counts: JumpCounts,
    /// It has seen a holder that is not closed, and may not say so in the table: it makes all lookups block by block.
    pub are_off: bool,
}

/// A pass over a prompt.
pub(crate) struct Match<'a> {
    /// Holders that have all blocks so far.
    left: HolderSet,
    /// It ends when none of these is left. `None`: of all.
    for_: Option<HolderSet>,
    /// Blocks that were looked at.
    done: usize,
    lengths: &'a mut [u32],
}

impl<'a> Match<'a> {
    /// A pass for these holders.
    pub fn new(left: HolderSet, lengths: &'a mut [u32]) -> Match<'a> {
        Match { left, for_: None, done: 0, lengths }
    }

    /// It ends when none of these is left.
    pub fn for_(self, holders: HolderSet) -> Match<'a> {
        Match { for_: Some(holders), ..self }
    }

    /// Blocks that were looked at.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Holders that have all of these.
    pub fn left(self) -> HolderSet {
        self.left
    }

    /// The block has these holders. Breaks off when none is left.
    #[inline]
    pub fn block<B: Default>(&mut self, block: usize, set: &[u8]) -> ControlFlow<B> {
        let (lengths, mut is_other) = (&mut *self.lengths, false);
        self.left.keep(set, |bit| {
            is_other = true;
            if let Some(length) = lengths.get_mut(bit) {
                *length = block as u32;
            }
        });
        self.done = block + 1;
        let is_over = is_other
            && match &self.for_ {
                None => self.left.is_empty(),
                Some(holders) => self.left.and(holders).is_empty(),
            };
        if is_over { ControlFlow::Break(B::default()) } else { ControlFlow::Continue(()) }
    }

    /// The blocks of a group, or those from one on that may have begun the last entry of the path. Breaks off with the
    /// next one that may have begun an entry, or with nothing, when no holder is left.
    #[inline]
    pub fn group(
        &mut self,
        keys: &[Key],
        blocks: Range<usize>,
        path: &[Group<'_>],
    ) -> ControlFlow<Option<usize>> {
        for (hint, block) in blocks.enumerate() {
            let tag = tag_of(&keys[block]);
            let set = path.iter().find_map(|group| group.set(tag, hint));
            if set.is_none() && hint > 0 && path.last().is_some_and(Group::is_branched) {
                return ControlFlow::Break(Some(block));
            }
            self.block(block, set.unwrap_or_default())?;
        }
        ControlFlow::Continue(())
    }

    /// Those that are left have all blocks.
    pub fn end(&mut self, blocks: usize) {
        for bit in self.left.bits() {
            if let Some(length) = self.lengths.get_mut(usize::from(bit)) {
                *length = blocks as u32;
            }
        }
    }
}
