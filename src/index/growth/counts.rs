//! What a table that grows has, and what it did.

use super::Growth;
use super::pairs::{Pair, Toward};
use super::totals::add_counts;
use crate::index::share::PairRole;
use crate::outcome::{GrowthCounts, IndexCounts};
use crate::sync::lock;
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Growth {
    pub fn displaced(&self) -> usize {
        self.live.all(&epoch::pin()).map(|segment| segment.homes().displaced()).sum()
    }

    /// The pieces of memory that have segments.
    #[cfg(feature = "verbs")]
    pub fn memories(&self) -> Vec<u32> {
        self.live.all(&epoch::pin()).map(|segment| segment.memory()).collect()
    }

    pub fn counts(&self) -> IndexCounts {
        let guard = epoch::pin();
        let mut sum = *lock(&self.done.gone);
        sum.waits += self.done.waits.load(Relaxed);
        for segment in self.live.all(&guard) {
            let counts = segment.counts();
            add_counts(&mut sum, &counts);
            sum.keys += counts.keys;
            sum.slots += counts.slots;
            sum.main_slots += counts.main_slots;
        }
        sum
    }

    pub fn growth_counts(&self) -> GrowthCounts {
        let guard = epoch::pin();
        let pairs = lock(&self.pairs).all();
        let merging = |pair: &&Arc<Pair>| pair.state().toward() != Toward::Child;
        let merging = pairs.iter().filter(merging).count() as u64;
        let (mut segments, mut depth) = (0, 0);
        let mut loads = [Vec::new(), Vec::new()];
        for segment in self.live.all(&guard) {
            let share = segment.share().get();
            if share.role != PairRole::Gone {
                segments += 1;
                depth = depth.max(share.depth.into());
                let counts = segment.counts();
                loads[usize::from(share.role != PairRole::Whole)]
                    .push(counts.keys * 1_000_000 / counts.slots.max(1));
            }
        }
        let [whole, paired] = &loads;
        let loads = if whole.is_empty() { paired } else { whole };
        GrowthCounts {
            segments,
            segments_max: self.geometry.segments_max(),
            depth,
            load_min_ppm: loads.iter().copied().min().unwrap_or(0),
            load_max_ppm: loads.iter().copied().max().unwrap_or(0),
            splitting: pairs.len() as u64 - merging,
            merging,
            splits: self.done.splits.load(Relaxed),
            merges: self.done.merges.load(Relaxed),
            given_up: self.done.given_up.load(Relaxed),
            moved: self.done.moved.load(Relaxed),
            refused: self.done.refused.times.load(Relaxed),
            bytes_backed: self.region.backed_bytes(),
            bytes_max: self.geometry.slots_end(),
            bytes_returned: lock(&self.memory).bytes_returned,
        }
    }
}
