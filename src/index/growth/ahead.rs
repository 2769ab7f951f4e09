//! A table grows before the keys come that are foreseen, and makes segments before they are needed (`stock.rs`).
//!
//! A segment without keys is split sooner than one that is full: no key is copied, and no ghost waits.

use super::Growth;
use super::live::UnusedMemory;
use super::pairs::{Driven, NoSplit};
use crate::base::sync::lock;
use crate::index::segment::Segment;
use crate::index::share::{KeyShare, PairRole};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Thread;

/// The most segments that are kept ahead. Beside that, at most one for each eight that there are.
const AHEAD_MAX: u64 = 4;

/// A segment may be needed soon when it has this many hundredths of the keys with which it is split.
const SOON_AT: u64 = 85;

/// Memory for this number of segments is left to values and to the puts that need it.
const LEFT: u64 = 8;

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

    /// The thread that calls [`Growth::make_ahead`] from now on.
    pub fn set_maker(&self, thread: Thread) {
        self.stock.set_maker(thread);
    }

    /// With how many keys a segment of this share may soon be split.
    pub(super) fn soon_split_at(&self, share: KeyShare) -> u64 {
        self.split_at(share) * SOON_AT / 100
    }

    /// Makes a segment that may be needed soon, or gives memory back that is not needed. Returns whether there may be
    /// more to do. What is needed is bounded: at most [`AHEAD_MAX`] segments, and one for each eight that
    /// there are.
    pub fn make_ahead(&self) -> bool {
        if self.give_surplus_back() {
            return true;
        }
        if self.grow_as_foreseen() == Ahead::On {
            return true;
        }
        let (mut wanted, segments) = self.depths_wanted();
        wanted.truncate(AHEAD_MAX.min(1 + segments / 8) as usize);
        let mut unneeded = None;
        for segment in lock(&self.stock.ready).iter() {
            let depth = segment.share().get().depth;
            match wanted.iter().position(|&of| of == depth) {
                Some(at) => drop(wanted.swap_remove(at)),
                None => unneeded = Some(depth),
            }
        }
        if let Some(segment) = unneeded.and_then(|depth| self.stock.take(depth)) {
            lock(&self.memory).put(UnusedMemory::of(segment));
            return true;
        }
        let Some(&depth) = wanted.first() else { return false };
        let is_made = self.make_one(depth);
        self.stock.cannot.store(!is_made, Relaxed);
        is_made
    }

    fn make_one(&self, depth: u32) -> bool {
        if self.was_refused() || !lock(&self.memory).has_spare(self.geometry.segments_max(), LEFT) {
            return false;
        }
        let _making = lock(&self.making);
        let made = self.make(KeyShare { prefix: 0, depth, role: PairRole::Child });
        made.map_err(|why| self.refused(why)).map(|segment| self.stock.keep(segment)).is_ok()
    }

    /// The depths of the segments that may be needed soon, and how many segments there are. A segment that may soon
    /// be merged needs none.
    fn depths_wanted(&self) -> (Vec<u32>, u64) {
        let guard = epoch::pin();
        let (mut wanted, mut segments) = (Vec::new(), 0);
        for segment in self.live.all(&guard) {
            segments += 1;
            let share = segment.share().get();
            if share.role == PairRole::Whole && segment.len() >= self.soon_split_at(share) {
                wanted.push(share.depth + 1);
            }
        }
        // The least deep first: there, more segments follow.
        wanted.sort_unstable();
        (wanted, segments)
    }
}
