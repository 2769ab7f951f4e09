//! The gaps between extents: which gap an extent takes, and what is left of it.

use super::Heap;
use super::blocks::{BlockUse, GapByLength};
use super::shape::Spot;

/// Gaps of leaving blocks that one call hides from puts.
pub(super) const HIDE_MAX: usize = 64;

impl Heap {
    /// The smallest public gap of at least this length.
    pub(super) fn smallest_gap(&self, len: u32) -> Option<GapByLength> {
        let mut from = GapByLength { len, spot: Spot { block: 0, at: 0 } };
        loop {
            let gap = *self.by_length.range(from..).next()?;
            if self.is_public(gap.spot.block) {
                return Some(gap);
            }
            // The gaps of this length in this block lie side by side in the order.
            from = GapByLength { len: gap.len, spot: Spot { block: gap.spot.block + 1, at: 0 } };
        }
    }

    pub(super) fn largest_gap(&self) -> Option<GapByLength> {
        let mut gaps = self.by_length.range(..);
        loop {
            let gap = *gaps.next_back()?;
            if self.is_public(gap.spot.block) {
                return Some(gap);
            }
            let first = GapByLength { len: gap.len, spot: Spot { block: gap.spot.block, at: 0 } };
            gaps = self.by_length.range(..first);
        }
    }

    /// Granules of all gaps of a block that is not empty.
    pub(super) fn gaps_of(&self, number: u32) -> u64 {
        let block = &self.blocks[number as usize];
        u64::from(self.shape.block_len - block.used - block.waiting)
    }

    /// Puts may use the gaps of this block.
    pub(super) fn is_public(&self, block: u32) -> bool {
        self.blocks[block as usize].used_for == BlockUse::Open
            && self.leaving.is_none_or(|leaving| leaving.into != Some(block))
    }

    /// Takes gaps of leaving blocks out of the order by length: a bounded part, since a block may have millions. Until
    /// then the search passes over the others.
    pub(super) fn hide_gaps(&mut self) {
        let mut left = HIDE_MAX;
        while left > 0
            && let Some(Spot { block: number, at }) = self.to_hide.front_mut()
        {
            let block = &self.blocks[*number as usize];
            if block.used_for == BlockUse::Leaving
                && let Some((&gap, &len)) = block.gaps.range(*at..).next()
            {
                self.by_length.remove(&GapByLength { len, spot: Spot { block: *number, at: gap } });
                *at = gap + 1;
                left -= 1;
            } else {
                self.to_hide.pop_front();
            }
        }
    }

    /// Takes the beginning of a gap for an extent.
    pub(super) fn take_front(&mut self, gap: GapByLength, len: u32) -> Spot {
        self.take_gap(gap);
        let Spot { block, at } = gap.spot;
        if gap.len > len {
            self.insert_gap(Spot { block, at: at + len }, gap.len - len);
        }
        self.begin_extent(gap.spot, len)
    }

    /// Takes the end of a gap for an extent.
    pub(super) fn take_back(&mut self, gap: GapByLength, len: u32) -> Spot {
        self.take_gap(gap);
        if gap.len > len {
            self.insert_gap(gap.spot, gap.len - len);
        }
        let Spot { block, at } = gap.spot;
        self.begin_extent(Spot { block, at: at + gap.len - len }, len)
    }

    pub(super) fn begin_extent(&mut self, spot: Spot, len: u32) -> Spot {
        self.blocks[spot.block as usize].set_extent(spot.at, len, self.shape.block_len);
        self.used += u64::from(len);
        spot
    }

    /// Adds a gap where an extent was, joined with the gaps beside it.
    pub(super) fn add_gap(&mut self, spot: Spot, len: u32) {
        let gaps = &self.blocks[spot.block as usize].gaps;
        let before = gaps.range(..spot.at).next_back().map(|(&at, &its)| (at, its));
        let before = before.filter(|&(at, its)| at + its == spot.at);
        let behind = gaps.get(&(spot.at + len)).map(|&its| (spot.at + len, its));
        let (mut at, mut all) = (spot.at, len);
        for (beside, its) in before.into_iter().chain(behind) {
            self.take_gap(GapByLength { len: its, spot: Spot { block: spot.block, at: beside } });
            at = at.min(beside);
            all += its;
        }
        self.insert_gap(Spot { block: spot.block, at }, all);
    }

    pub(super) fn insert_gap(&mut self, spot: Spot, len: u32) {
        self.blocks[spot.block as usize].gaps.insert(spot.at, len);
        if self.blocks[spot.block as usize].used_for == BlockUse::Open {
            self.by_length.insert(GapByLength { len, spot });
        }
        self.gaps += u64::from(len);
        if self.is_public(spot.block) {
            self.public += u64::from(len);
        }
    }

    pub(super) fn take_gap(&mut self, gap: GapByLength) {
        self.blocks[gap.spot.block as usize].gaps.remove(&gap.spot.at);
        self.by_length.remove(&gap);
        self.gaps -= u64::from(gap.len);
        if self.is_public(gap.spot.block) {
            self.public -= u64::from(gap.len);
        }
    }
}
