//! The memory that no segment has.

use super::live::UnusedMemory;
use crate::index::budget::Budget;
use crate::layout::geometry::Geometry;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Free pieces of memory that are kept for the next splits.
pub(super) const KEPT_FREE: usize = 2;

/// Memory that no segment has.
#[derive(Debug)]
pub(super) struct FreeMemory {
    /// The memory that segments and extents may take together.
    budget: Arc<Budget>,
    /// The length of a piece, in bytes.
    piece_bytes: u64,
    /// Pieces that have memory behind them.
    pub(super) free: Vec<u32>,
    /// Pieces given back to the system.
    pub(super) bare: Vec<u32>,
    /// Pieces ever used.
    pub(super) used: u32,
    pub(super) bytes_returned: u64,
    /// Pieces of segments that were merged away, and that threads may still use.
    pub(super) coming: u32,
    /// The system takes no memory back.
    keeps_all: bool,
    /// The server has ended. What is still to come back is the next one's.
    pub(super) closed: bool,
}

impl FreeMemory {
    pub(super) fn new(geometry: &Geometry, budget: &Arc<Budget>) -> FreeMemory {
        let (budget, piece_bytes) = (Arc::clone(budget), geometry.slots() * geometry.shape().bytes() as u64);
        let (free, bare) = (Vec::new(), Vec::new());
        FreeMemory {
            budget,
            piece_bytes,
            free,
            bare,
            used: 0,
            bytes_returned: 0,
            coming: 0,
            keeps_all: false,
            closed: false,
        }
    }

    /// The memory of a table whose last server left these segments. `give_back` gives pieces without a segment back to
    /// the system, and returns whether the system has taken them.
    pub(super) fn left(
        &mut self,
        segments: &BTreeSet<u32>,
        give_back: impl Fn(std::ops::Range<u32>) -> bool,
    ) {
        for &memory in segments {
            let between = std::mem::replace(&mut self.used, memory + 1)..memory;
            let is_bare = between.is_empty() || give_back(between.clone());
            if is_bare { &mut self.bare } else { &mut self.free }.extend(between);
        }
        let taken = segments.len() + self.free.len();
        self.budget.have(taken as u64 * self.piece_bytes);
    }

    /// What segments and values have taken.
    pub(super) fn bytes_taken(&self) -> u64 {
        self.budget.taken()
    }

    pub(super) fn has_any(&self, segments_max: u64) -> bool {
        let has_piece = !self.bare.is_empty() || u64::from(self.used) < segments_max;
        !self.free.is_empty() && !self.budget.is_short() || has_piece && self.budget.has(self.piece_bytes)
    }

    /// Whether there is memory for this number of pieces.
    pub(super) fn has_spare(&self, segments_max: u64, pieces: u64) -> bool {
        let left = self.free.len() + self.bare.len();
        let all = left as u64 + segments_max.saturating_sub(self.used.into());
        let bare = pieces.saturating_sub(self.free.len() as u64);
        all >= pieces && self.budget.has(bare * self.piece_bytes)
    }

    pub(super) fn take(&mut self, segments_max: u64) -> Option<u32> {
        if let Some(memory) = self.free.pop_if(|_| !self.budget.is_short()) {
            return Some(memory);
        }
        if !self.has_any(segments_max) || !self.budget.take(self.piece_bytes) {
            return None;
        }
        self.bare.pop().or_else(|| {
            self.used += 1;
            Some(self.used - 1)
        })
    }

    /// Takes a piece back that has no memory behind it.
    pub(super) fn put_bare(&mut self, memory: u32) {
        self.budget.give(self.piece_bytes);
        self.bare.push(memory);
    }

    /// Takes a piece back, with its memory.
    pub(super) fn keep(&mut self, memory: UnusedMemory) {
        self.free.push(memory.number());
    }

    /// Takes a piece back, unless the server has ended.
    pub(super) fn put(&mut self, memory: UnusedMemory) {
        if !self.closed {
            self.keep(memory);
        }
    }

    /// Takes back the piece of a segment that was merged away.
    pub(super) fn come_back(&mut self, memory: UnusedMemory) {
        self.coming -= 1;
        self.put(memory);
    }

    /// Takes out a piece that no segment has, to give its memory back to the system.
    pub(super) fn take_unused(&mut self) -> Option<u32> {
        if self.closed || self.keeps_all { None } else { self.free.pop() }
    }

    /// Takes out a piece whose memory the system may have back. The pieces that are left suffice for the next splits.
    pub(super) fn take_surplus(&mut self) -> Option<u32> {
        if self.closed || self.keeps_all || self.free.len() <= KEPT_FREE { None } else { self.free.pop() }
    }

    /// Notes that the system has taken the memory of a surplus piece, or cannot take it.
    pub(super) fn returned(&mut self, memory: u32, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => {
                self.bytes_returned += bytes;
                self.put_bare(memory);
            }
            None => {
                self.keeps_all = true;
                self.free.push(memory);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::FreeMemory;
    use crate::config::{Config, TableSize};
    use crate::index::budget::Budget;

    /// After a takeover, the memory between segments counts as taken only where the system has not taken it
    /// back. There it is taken again without more memory; then the rest is.
    #[test]
    fn the_budget_counts_memory_that_was_left() {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let bytes = geometry.slots() * geometry.shape().bytes() as u64;
        for (segments, free) in [
            (vec![0], vec![]),
            (vec![0, 1], vec![]),
            (vec![0, 3, 5], vec![1, 2, 4]),
            (vec![4], vec![0, 1, 2, 3]),
        ] {
            for is_kept in [false, true] {
                let budget = Budget::new(8 * bytes);
                let mut memory = FreeMemory::new(&geometry, &budget);
                let told = std::cell::RefCell::new(Vec::new());
                memory.left(&segments.iter().copied().collect(), |pieces| {
                    told.borrow_mut().extend(pieces);
                    !is_kept
                });
                let what = format!("{segments:?}, kept: {is_kept}");
                assert_eq!(*told.borrow(), free, "{what}");
                let taken = segments.len() + if is_kept { free.len() } else { 0 };
                let left = (8 - taken as u64) * bytes;
                assert!(budget.has(left) && !budget.has(left + 1), "{what}");
                let mut again: Vec<u32> = (0..free.len()).filter_map(|_| memory.take(100)).collect();
                again.sort_unstable();
                assert_eq!(again, free, "{what}");
                let left = (8 - segments.len() - free.len()) as u64 * bytes;
                assert!(budget.has(left) && !budget.has(left + 1), "{what}");
                let more: Vec<u32> = std::iter::from_fn(|| memory.take(100)).collect();
                assert_eq!(more, (segments.last().unwrap() + 1..8).collect::<Vec<_>>(), "{what}");
                assert!(!budget.has(1) && !memory.has_any(100), "{what}");
            }
        }
    }
}
