//! A block of the heap: its use, and where its extents and gaps begin.

use super::shape::Spot;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bits of a word.
const BITS: u32 = u64::BITS;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockUse {
    Empty,
    Open,
    /// It gets no new extents. Those in it move out.
    Leaving,
    /// Empty, while its memory is given back to the machine.
    Lent,
}

#[derive(Debug)]
pub(super) struct HeapBlock {
    pub(super) used_for: BlockUse,
    /// Granules of extents, and of waiting pieces.
    pub(super) used: u32,
    pub(super) waiting: u32,
    /// When all waiting pieces of the block are due.
    pub(super) due_ns: u64,
    /// Where gaps begin, and their lengths.
    pub(super) gaps: BTreeMap<u32, u32>,
    /// A bit for each granule where an extent begins. Empty until the block is first open.
    pub(super) begins: Box<[u64]>,
    pub(super) memory: BlockMemory,
}

/// The memory behind a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockMemory {
    Nothing,
    /// There is memory, even if the block is empty.
    There,
    /// Memory that the machine did not take back when the block was empty last.
    Kept,
}

impl HeapBlock {
    pub(super) fn new(used_for: BlockUse) -> HeapBlock {
        HeapBlock {
            used_for,
            used: 0,
            waiting: 0,
            due_ns: 0,
            gaps: BTreeMap::new(),
            begins: Box::default(),
            memory: BlockMemory::Nothing,
        }
    }

    pub(super) fn has_extent(&self, at: u32) -> bool {
        self.begins.get((at / BITS) as usize).is_some_and(|word| word >> (at % BITS) & 1 != 0)
    }

    pub(super) fn set_extent(&mut self, at: u32, len: u32, block_len: u32) {
        if self.begins.is_empty() {
            self.begins = bits(block_len);
        }
        self.begins[(at / BITS) as usize] |= 1 << (at % BITS);
        self.used += len;
    }

    pub(super) fn clear_extent(&mut self, at: u32, len: u32) {
        self.begins[(at / BITS) as usize] &= !(1 << (at % BITS));
        self.used -= len;
    }

    /// The first extent that begins in this range of granules.
    pub(super) fn extent_in(&self, range: Range<u32>) -> Option<u32> {
        if self.used == 0 { None } else { first_bit(&self.begins, range, true) }
    }
}

/// Words with a bit for each granule of a block. The memory is untouched.
pub(super) fn bits(block_len: u32) -> Box<[u64]> {
    bytemuck::zeroed_slice_box(block_len.div_ceil(BITS) as usize)
}

/// The first bit of this range that is set, or that is not.
pub(super) fn first_bit(words: &[u64], range: Range<u32>, is_set: bool) -> Option<u32> {
    let first = (range.start / BITS) as usize;
    let words = words.get(first..range.end.div_ceil(BITS) as usize)?.iter().enumerate();
    let found = |n, word: u64| {
        let word = if is_set { word } else { !word };
        if n == 0 { word & (!0 << (range.start % BITS)) } else { word }
    };
    let (n, word) = words.map(|(n, &word)| (n, found(n, word))).find(|&(_, word)| word != 0)?;
    Some((first + n) as u32 * BITS + word.trailing_zeros()).filter(|at| range.contains(at))
}

/// Sets the bits of this range.
pub(super) fn set_bits(words: &mut [u64], range: Range<u32>) {
    let mut at = range.start;
    while at < range.end {
        let len = (BITS - at % BITS).min(range.end - at);
        words[(at / BITS) as usize] |= (!0 >> (BITS - len)) << (at % BITS);
        at += len;
    }
}

/// A gap. They are taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GapByLength {
    pub(super) len: u32,
    pub(super) spot: Spot,
}

/// The block whose extents move out now.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeavingBlock {
    pub(super) block: u32,
    /// The reserve, if it was opened for this (Y1).
    pub(super) into: Option<u32>,
    /// It leaves for a put, so all of its extents go into the reserve (Y2).
    pub(super) is_demanded: bool,
    /// Extents before this granule have been tried in this round.
    pub(super) next: u32,
}
