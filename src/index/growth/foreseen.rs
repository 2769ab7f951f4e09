//! A table grows before the keys come that are foreseen.
//!
//! A segment without keys is split sooner than one that is full: no key is copied, and no ghost waits.

use super::Growth;
use super::pairs::{Driven, NoSplit};
use crate::index::segment::Segment;
use crate::index::share::PairRole;
use crate::sync::lock;
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering::Relaxed;

impl Growth {
    /// The table will have this number of keys. [`Growth::grow_as_foreseen`] makes it as large as it is then.
    pub fn foresee(&self, keys: u64) {
        self.foreseen.fetch_max(keys, Relaxed);
        if let Some(maker) = self.stock.maker() {
            maker.unpark();
        }
    }

    /// Splits one segment that would be split if the foreseen keys were there. Returns whether there may be more
    /// to do. Ends where no memory is left: the puts that need it say so.
    pub fn grow_as_foreseen(&self) -> bool {
        let keys = self.foreseen.load(Relaxed);
        if keys == 0 {
            return false;
        }
        let guard = epoch::pin();
        let mut segments: Vec<_> =
            self.live.all(&guard).filter(|segment| self.will_be_split(segment, keys)).collect();
        // Where memory ends, all are as deep.
        segments.sort_unstable_by_key(|segment| segment.share().get().depth);
        for segment in segments {
            match self.begin_split(segment) {
                Ok(()) => {
                    let Some(pair) = self.pair_of(segment) else { return true };
                    while self.drive(&pair, self.pace.homes_per_tidy, &guard) == Driven::On {}
                    return true;
                }
                Err(NoSplit::Making) => {
                    drop(lock(&self.making));
                    return true;
                }
                Err(NoSplit::Busy) => {}
                Err(NoSplit::Limit | NoSplit::Bound | NoSplit::Memory) => break,
            }
        }
        // Another call may have foreseen more meanwhile.
        self.foreseen.compare_exchange(keys, 0, Relaxed, Relaxed).is_err()
    }

    /// Whether a segment is split by the time the table has this number of keys.
    fn will_be_split(&self, segment: &Segment, keys: u64) -> bool {
        let share = segment.share().get();
        share.role == PairRole::Whole && segment.len().max(keys >> share.depth) >= self.split_at(share)
    }
}
