//! Blocks open and leave: the extents of a leaving block move out until it is empty (Y1 to Y5).

use super::Heap;
use super::blocks::{BlockMemory, BlockUse, GapByLength, HeapBlock, LeavingBlock};
use super::shape::Spot;

impl Heap {
    /// Whether gaps take more than a quarter of the open blocks, and one block (Y3).
    pub(super) fn is_sparse(&self) -> bool {
        let (open, block_len) = (u64::from(self.open), u64::from(self.shape.block_len));
        self.leaving.is_none() && self.public > open * block_len / 4 + block_len && !self.empty.is_empty()
    }

    /// Y3: the least used block leaves, if the heap is sparse.
    pub(super) fn leave_if_sparse(&mut self) {
        if self.is_sparse()
            && let Some(block) = self.least_used(self.filled)
        {
            self.begin_leaving(block, false);
            self.end_if_unused(block);
        }
    }

    /// Y5: no block is empty. Makes a block leave whose extents fit into one gap. There is one, unless the table was
    /// damaged. Then gaps are used up without a reserve.
    pub(super) fn make_reserve(&mut self) {
        let largest =
            |(block, number): (&HeapBlock, u32)| (block.gaps.values().copied().max().unwrap_or(0), number);
        let mut gaps: Vec<(u32, u32)> = self.blocks.iter().zip(0..).map(largest).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let fits = |number: u32, used: u32| {
            gaps.iter().find(|&&(_, other)| other != number).is_some_and(|&(len, _)| len >= used)
        };
        let blocks = self.blocks.iter().zip(0..).map(|(block, number)| (block.used, number));
        let least = blocks.filter(|&(used, number)| fits(number, used)).min();
        if let Some((_, block)) = least {
            self.needs_reserve = true;
            self.begin_leaving(block, false);
        }
    }

    /// The open block with the least in use.
    pub(super) fn least_used(&self, but: Option<u32>) -> Option<u32> {
        let open = self.blocks.iter().zip(0..).filter(|(block, _)| block.used_for == BlockUse::Open);
        let open = open.filter(|&(_, number)| Some(number) != but);
        open.min_by_key(|(block, _)| block.used).map(|(_, number)| number)
    }

    pub(super) fn begin_leaving(&mut self, block: u32, is_demanded: bool) {
        self.public -= self.gaps_of(block);
        self.open -= 1;
        self.leaving_blocks += 1;
        self.blocks[block as usize].used_for = BlockUse::Leaving;
        self.leaving = Some(LeavingBlock { block, into: None, is_demanded, next: 0 });
        self.to_hide.push_back(Spot { block, at: 0 });
    }

    /// Opens the reserve, for the extents of the leaving block alone (Y1).
    pub(super) fn open_reserve(&mut self) -> Option<u32> {
        let reserve = self.next_empty()?;
        self.leaving.as_mut()?.into = Some(reserve);
        self.open_block(reserve);
        Some(reserve)
    }

    /// The empty block that is opened next: the first with memory behind it, so that no more memory is taken than
    /// needed.
    pub(super) fn next_empty(&self) -> Option<u32> {
        let has_memory = |number: &&u32| self.blocks[**number as usize].memory != BlockMemory::Nothing;
        self.empty.iter().find(has_memory).or_else(|| self.empty.first()).copied()
    }

    pub(super) fn open_block(&mut self, number: u32) {
        self.empty.remove(&number);
        self.open += 1;
        let block = &mut self.blocks[number as usize];
        (block.used_for, block.memory) = (BlockUse::Open, BlockMemory::There);
        self.add_gap(Spot { block: number, at: 0 }, self.shape.block_len);
    }

    /// Ends the leaving of a block. The rest of the reserve is for all (Y4).
    pub(super) fn end_leaving(&mut self) {
        let Some(LeavingBlock { into, .. }) = self.leaving.take() else { return };
        let Some(into) = into else { return };
        self.filled = Some(into);
        self.public += self.gaps_of(into);
        self.end_if_unused(into);
    }

    /// Continues after the last extent, or the last waiting piece, of a block has gone (Y4).
    pub(super) fn end_if_unused(&mut self, number: u32) {
        let block = &self.blocks[number as usize];
        let is_leaving = self.leaving.is_some_and(|leaving| leaving.block == number);
        if block.used > 0 {
            return;
        }
        if block.waiting > 0 {
            if is_leaving && self.leaving.is_some_and(|leaving| leaving.into.is_none()) {
                self.end_leaving();
            }
            return;
        }
        if self.leaving.is_some_and(|leaving| leaving.into == Some(number)) {
            return;
        }
        // The rest is one gap.
        let len = self.shape.block_len;
        self.take_gap(GapByLength { len, spot: Spot { block: number, at: 0 } });
        let block = &mut self.blocks[number as usize];
        match std::mem::replace(&mut block.used_for, BlockUse::Empty) {
            BlockUse::Leaving => self.leaving_blocks -= 1,
            _ => self.open -= 1,
        }
        self.empty.insert(number);
        self.needs_reserve = false;
        if is_leaving {
            self.end_leaving();
        }
    }
}
