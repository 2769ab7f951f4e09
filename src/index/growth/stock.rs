//! Segments that are made before they are needed.
//!
//! To make a segment takes milliseconds: memory is asked for, zeroed, perhaps registered with a device. So a
//! server has a thread that makes them ahead ([`Growth::make_ahead`]), and a change that begins a split takes one.
//! Where nobody makes them ahead, or not fast enough, the change makes its own.
//!
//! The headers of a segment's homes say how deep it is. So a segment is made for one depth.

use super::Growth;
use super::foreseen::Ahead;
use super::live::UnusedMemory;
use crate::index::segment::Segment;
use crate::index::share::{KeyShare, PairRole};
use crate::sync::{Mutex, lock};
use crossbeam_epoch as epoch;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::Thread;

/// The most segments that are kept ahead. Beside that, at most one for each eight that there are.
const AHEAD_MAX: u64 = 4;

/// A segment may be needed soon when it has this many hundredths of the keys with which it is split.
const SOON_AT: u64 = 85;

/// Memory for this number of segments is left to values and to the puts that need it.
const LEFT: u64 = 8;

/// Segments that were made ahead.
#[derive(Debug, Default)]
pub(super) struct Stock {
    ready: Mutex<Vec<Segment>>,
    /// The depths of these, a bit for each. Relaxed: a hint.
    depths: AtomicU32,
    /// The last one that was wanted could not be made. Relaxed: a hint.
    cannot: AtomicBool,
    /// The thread that makes them.
    maker: OnceLock<Thread>,
}

impl Stock {
    /// Takes a segment of this depth.
    pub fn take(&self, depth: u32) -> Option<Segment> {
        let mut ready = lock(&self.ready);
        let at = ready.iter().position(|segment| segment.share().get().depth == depth)?;
        let segment = ready.swap_remove(at);
        self.note(&ready);
        Some(segment)
    }

    /// Takes a segment of whatever depth.
    pub fn take_any(&self) -> Option<Segment> {
        let mut ready = lock(&self.ready);
        let segment = ready.pop()?;
        self.note(&ready);
        Some(segment)
    }

    /// Whether there is any.
    pub fn has_any(&self) -> bool {
        self.depths.load(Relaxed) != 0
    }

    /// Keeps a segment that is not needed now.
    pub fn keep(&self, segment: Segment) {
        let mut ready = lock(&self.ready);
        ready.push(segment);
        self.note(&ready);
    }

    fn note(&self, ready: &[Segment]) {
        let depths = ready.iter().fold(0, |depths, segment| depths | 1 << segment.share().get().depth);
        self.depths.store(depths, Relaxed);
    }

    /// From now on this thread makes segments ahead. It is woken when one may be needed.
    pub fn set_maker(&self, thread: Thread) {
        let _ = self.maker.set(thread);
    }

    pub fn maker(&self) -> Option<Thread> {
        self.maker.get().cloned()
    }

    /// A segment of this depth may be needed soon. Returns whether the maker is about to make one, and has not.
    pub fn is_awaited(&self, depth: u32) -> bool {
        if self.depths.load(Relaxed) >> depth & 1 == 1 {
            return false;
        }
        // Also if it could not a moment ago: it tries again. Meanwhile, who needs one makes it, or is told.
        let may_come = !self.cannot.load(Relaxed);
        may_come & self.maker.get().inspect(|maker| maker.unpark()).is_some()
    }
}

impl Growth {
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
