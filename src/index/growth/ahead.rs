//! A table grows before foreseen keys come, and makes segments before they are needed (`stock.rs`).
//!
//! An empty segment is split more cheaply than a full one: no key is copied, and no ghost waits.

use super::Growth;
use super::live::UnusedMemory;
use super::pairs::{Driven, NoSplit};
use crate::base::sync::lock;
use crate::index::segment::Segment;
use crate::index::share::{KeyShare, PairRole};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Thread;

/// The most segments that are kept ahead. There is a second bound: one for each eight segments of the table.
const AHEAD_MAX: u64 = 4;

/// A segment may be needed soon when a segment has this many hundredths of the keys at which it is split.
const SOON_AT: u64 = 85;

/// Memory for this number of segments is left to values, and to puts that need a segment.
const LEFT: u64 = 8;

/// How far the table has grown for the foreseen keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// There may be more to do.
    On,
    /// A split or merge must end first.
    Waits,
    /// The table is as large as it becomes.
    Done,
}

impl Growth {
    /// Notes that the table will have this number of keys. [`Growth::grow_as_foreseen`] grows it for them.
    pub fn foresee(&self, keys: u64) {
        self.foreseen.fetch_max(keys, Relaxed);
        if let Some(maker) = self.stock.maker() {
            maker.unpark();
        }
    }

    /// Whether the table may not yet have grown for all foreseen keys.
    pub fn foresees(&self) -> bool {
        self.foreseen.load(Relaxed) > 0
    }

    /// Splits one segment that would be split if the foreseen keys were there. Ends the growing where no memory is
    /// left: the puts that need it get the error.
    pub fn grow_as_foreseen(&self) -> Ahead {
        let keys = self.foreseen.load(Relaxed);
        if keys == 0 {
            return Ahead::Done;
        }
        let guard = epoch::pin();
        let mut segments: Vec<_> =
            self.live.all(&guard).filter(|segment| self.will_be_split(segment, keys)).collect();
        // If memory runs out, all segments are equally deep.
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
                // It is in a pair, which other threads may drive, or was until now; or memory comes back.
                Err(NoSplit::Busy | NoSplit::Coming) => waits = true,
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

    /// Whether a segment will be split by the time the table has this number of keys. In a pair, its present share
    /// counts.
    fn will_be_split(&self, segment: &Segment, keys: u64) -> bool {
        let share = segment.share().get();
        share.role != PairRole::Gone && segment.len().max(keys >> share.depth) >= self.split_at(share)
    }

    /// Sets the thread that calls [`Growth::make_ahead`] from now on.
    pub fn set_maker(&self, thread: Thread) {
        self.stock.set_maker(thread);
    }

    /// The number of keys with which a segment of this share may soon be split.
    pub(super) fn soon_split_at(&self, share: KeyShare) -> u64 {
        self.split_at(share) * SOON_AT / 100
    }

    /// Makes a segment that may be needed soon, or gives surplus memory back. Returns whether there may be more to do.
    /// At most [`AHEAD_MAX`] segments are made ahead, and at most one for each eight segments of the table.
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
        let making = lock(&self.making);
        let made = self.make(KeyShare { prefix: 0, depth, role: PairRole::Child });
        let is_made = made.map_err(|why| self.refused(why)).map(|segment| self.stock.keep(segment)).is_ok();
        drop(making);
        if is_made {
            self.news().tell();
        }
        is_made
    }

    /// The depths of the segments that may be needed soon, and the number of segments. For a segment that may soon be
    /// merged, none is needed.
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
        // The least deep first: more splits follow there.
        wanted.sort_unstable();
        (wanted, segments)
    }
}
