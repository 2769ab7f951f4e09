//! A takeover marks what slots name, and opens the heap with these extents (X5).

use super::Heap;
use super::blocks::{BlockMemory, BlockUse, GapByLength, HeapBlock, bits, first_bit, set_bits};
use super::shape::{HeapShape, Spot, bytes};
use std::ops::Range;

/// Why a range cannot be an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::index) enum MarkError {
    /// It is not aligned, its length is wrong, or it is not inside one block.
    #[error("{extent_bytes} bytes at byte {offset} of the heap can be no extent")]
    Bounds {
        /// Where it begins in the heap.
        offset: u64,
        /// Its length.
        extent_bytes: u64,
    },
    /// Another extent has some of its bytes.
    #[error("the extent of {extent_bytes} bytes at byte {offset} of the heap overlaps another one")]
    Overlap {
        /// Where it begins in the heap.
        offset: u64,
        /// Its length.
        extent_bytes: u64,
    },
}

/// The extents that slots name, while a takeover collects them (X5).
#[derive(Debug)]
pub(in crate::index) struct HeapMarks {
    shape: HeapShape,
    blocks: Vec<HeapBlock>,
    /// A bit for each granule of an extent. Empty where nothing is marked.
    taken: Vec<Box<[u64]>>,
}

impl HeapMarks {
    /// Makes marks without any extent.
    pub fn new(shape: HeapShape) -> HeapMarks {
        HeapMarks {
            shape,
            blocks: (0..shape.blocks).map(|_| HeapBlock::new(BlockUse::Empty)).collect(),
            taken: (0..shape.blocks).map(|_| Box::default()).collect(),
        }
    }

    /// Marks the extent at byte `offset`, which a slot names.
    ///
    /// # Errors
    /// [`MarkError`] if it cannot be an extent. Then nothing is marked.
    pub fn mark(&mut self, offset: u64, extent_bytes: u64) -> Result<(), MarkError> {
        let len = self.shape.granules(extent_bytes);
        let place = len.and_then(|len| Some((self.shape.spot(offset, len)?, len)));
        let (Spot { block, at }, len) = place.ok_or(MarkError::Bounds { offset, extent_bytes })?;
        let taken = &mut self.taken[block as usize];
        if taken.is_empty() {
            *taken = bits(self.shape.block_len);
        }
        if first_bit(taken, at..at + len, true).is_some() {
            return Err(MarkError::Overlap { offset, extent_bytes });
        }
        set_bits(taken, at..at + len);
        self.blocks[block as usize].set_extent(at, len, self.shape.block_len);
        Ok(())
    }

    /// The blocks in which nothing is marked, as ranges of neighbours. From now on they count as without memory.
    pub fn unused(&self) -> impl Iterator<Item = Range<u64>> {
        let (block_bytes, mut end) = (bytes(u64::from(self.shape.block_len)), 0);
        let alike = self.blocks.chunk_by(|a, b| (a.used == 0) == (b.used == 0));
        alike.filter_map(move |blocks| {
            let start = end;
            end += blocks.len() as u64 * block_bytes;
            (blocks[0].used == 0).then_some(start..end)
        })
    }

    /// The heap with these extents. All else is free, but is used no earlier than `ready_ns`.
    pub fn open_after(self, ready_ns: u64) -> Heap {
        let mut heap = Heap { blocks: self.blocks, opens_ns: ready_ns, ..Heap::without_blocks(self.shape) };
        let block_len = heap.shape.block_len;
        let mut by_length = Vec::new();
        for ((block, taken), number) in heap.blocks.iter_mut().zip(self.taken).zip(0..) {
            if block.used == 0 {
                heap.empty.insert(number);
                continue;
            }
            (block.used_for, block.memory) = (BlockUse::Open, BlockMemory::There);
            heap.open += 1;
            heap.used += u64::from(block.used);
            heap.public += u64::from(block_len - block.used);
            let mut from = 0;
            while let Some(at) = first_bit(&taken, from..block_len, false) {
                let end = first_bit(&taken, at..block_len, true).unwrap_or(block_len);
                block.gaps.insert(at, end - at);
                by_length.push(GapByLength { len: end - at, spot: Spot { block: number, at } });
                from = end;
            }
        }
        heap.by_length = by_length.into_iter().collect();
        heap.gaps = heap.public;
        if heap.empty.is_empty() {
            heap.make_reserve();
        }
        heap
    }
}
