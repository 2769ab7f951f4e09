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

/// How far a table has grown for the keys that are foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// There may be more to do.
    On,
    /// A split or merge that is under way must end first.
    Waits,
    /// It is as large as it becomes.
    Done,
}

impl Growth {
    /// The table will have this number of keys. [`Growth::grow_as_foreseen`] makes it as large as it is then.
    pub fn foresee(&self, keys: u64) {
        self.foreseen.fetch_max(keys, Relaxed);
        if let Some(maker) = self.stock.maker() {
            maker.unpark();
        }
    }

    /// Whether keys are foreseen that the table may not be large enough for yet.
    pub fn foresees(&self) -> bool {
        self.foreseen.load(Relaxed) > 0
    }

    /// Splits one segment that would be split if the foreseen keys were there. Where no memory is left, that is
    /// the end: the puts that need it say so.
    pub fn grow_as_foreseen(&self) -> Ahead {
        let keys = self.foreseen.load(Relaxed);
        if keys == 0 {
            return Ahead::Done;
        }
        let guard = epoch::pin();
        let mut segments: Vec<_> =
            self.live.all(&guard).filter(|segment| self.will_be_split(segment, keys)).collect();
        // Where memory ends, all are as deep.
        segments.sort_unstable_by_key(|segment| segment.share().get().depth);
        let mut waits = false;
        for segment in segments {
            match self.begin_split(segment) {
                Ok(()) => {
                    let Some(pair) = self.pair_of(segment) else { return Ahead::On };
                    while self.drive(&pair, self.pace.homes_per_tidy, &guard) == Driven::On {}
                    return Ahead::On;
                }
                Err(NoSplit::Making) => {
                    drop(lock(&self.making));
                    return Ahead::On;
                }
                // It is in a pair, which others may drive as well, or has been until now.
                Err(NoSplit::Busy) => waits = true,
                Err(NoSplit::Limit | NoSplit::Bound | NoSplit::Memory) => {
                    waits = false;
                    break;
                }
            }
        }
        if waits {
            return Ahead::Waits;
        }
        // Another call may have foreseen more meanwhile.
        match self.foreseen.compare_exchange(keys, 0, Relaxed, Relaxed) {
            Ok(_) => Ahead::Done,
            Err(_) => Ahead::On,
        }
    }

    /// Whether a segment is split by the time the table has this number of keys: the one that it is, or, in a pair,
    /// the one that it is so far.
    fn will_be_split(&self, segment: &Segment, keys: u64) -> bool {
        let share = segment.share().get();
        share.role != PairRole::Gone && segment.len().max(keys >> share.depth) >= self.split_at(share)
    }
}
