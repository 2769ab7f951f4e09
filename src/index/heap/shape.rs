//! The lengths of a heap, and places in it.

use crate::layout::extent::{BLOCK_BYTES_MAX, GRANULE, LONGEST_PART};

/// Granules of the longest block. Twice as many are still a `u32`.
const BLOCK_LEN_MAX: u64 = BLOCK_BYTES_MAX / GRANULE;

/// The lengths of a heap, its blocks and its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) struct HeapShape {
    pub(super) blocks: u32,
    /// Granules of a block, and of the longest extent.
    pub(super) block_len: u32,
    pub(super) longest: u32,
}

/// These lengths make no heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::index) enum HeapShapeError {
    /// The blocks are no multiple of a granule, or too long.
    #[error("blocks of {block_bytes} bytes: it must be a multiple of {GRANULE}, up to 64 GiB")]
    Block {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// An extent could have more than a quarter of a block.
    #[error(
        "extents of {longest_bytes} bytes in blocks of {block_bytes}: a block must be {LONGEST_PART} times as \
         long"
    )]
    Longest {
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes of the longest extent.
        longest_bytes: u64,
    },
    /// One block is the reserve (Y1), so there must be two.
    #[error("a heap of {heap_bytes} bytes has fewer than two blocks of {block_bytes}, or more than 2^31")]
    Heap {
        /// Bytes of the heap.
        heap_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
}

impl HeapShape {
    /// Extents of up to `longest_bytes` in blocks of `block_bytes`. What is behind the last whole
    /// block is not used.
    ///
    /// # Errors
    /// [`HeapShapeError`] where these lengths make no heap.
    pub fn new(heap_bytes: u64, block_bytes: u64, longest_bytes: u64) -> Result<HeapShape, HeapShapeError> {
        let block_len = block_bytes / GRANULE;
        if !block_bytes.is_multiple_of(GRANULE) || !(1..=BLOCK_LEN_MAX).contains(&block_len) {
            return Err(HeapShapeError::Block { block_bytes });
        }
        let longest = longest_bytes.div_ceil(GRANULE);
        if longest == 0 || longest > block_len / LONGEST_PART {
            return Err(HeapShapeError::Longest { block_bytes, longest_bytes });
        }
        let blocks = heap_bytes / block_bytes;
        if !(2..=1 << 31).contains(&blocks) {
            return Err(HeapShapeError::Heap { heap_bytes, block_bytes });
        }
        Ok(HeapShape { blocks: blocks as u32, block_len: block_len as u32, longest: longest as u32 })
    }

    /// Bytes of all blocks.
    pub fn capacity_bytes(&self) -> u64 {
        bytes(u64::from(self.blocks) * u64::from(self.block_len))
    }

    /// Granules of an extent of this length in bytes. `None` if it is empty or too long.
    pub(super) fn granules(&self, extent_bytes: u64) -> Option<u32> {
        let len = extent_bytes.div_ceil(GRANULE);
        (1..=u64::from(self.longest)).contains(&len).then_some(len as u32)
    }

    /// The place of the extent at byte `offset`, if it lies in one block.
    pub(super) fn spot(&self, offset: u64, len: u32) -> Option<Spot> {
        let (granule, block_len) = (offset / GRANULE, u64::from(self.block_len));
        let block = u32::try_from(granule / block_len).ok().filter(|&block| block < self.blocks)?;
        let at = (granule % block_len) as u32;
        let is_good = offset.is_multiple_of(GRANULE) && u64::from(at) + u64::from(len) <= block_len;
        is_good.then_some(Spot { block, at })
    }

    /// The first place at or behind a byte.
    pub(super) fn spot_behind(&self, offset: u64) -> Spot {
        let (granule, block_len) = (offset.div_ceil(GRANULE), u64::from(self.block_len));
        Spot { block: (granule / block_len) as u32, at: (granule % block_len) as u32 }
    }

    pub(super) fn offset(&self, spot: Spot) -> u64 {
        bytes(u64::from(spot.block) * u64::from(self.block_len) + u64::from(spot.at))
    }
}

/// Granules in bytes.
pub(super) fn bytes(granules: u64) -> u64 {
    granules * GRANULE
}

/// A place in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) block: u32,
    /// Granules from where the block begins.
    pub(super) at: u32,
}
