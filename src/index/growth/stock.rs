//! Segments that are made before they are needed.
//!
//! To make a segment takes milliseconds: memory is asked for, zeroed, perhaps registered with a device. So a
//! server has a thread that makes them ahead (`ahead.rs`), and a change that begins a split takes one.
//! Where nobody makes them ahead, or not fast enough, the change makes its own.
//!
//! The headers of a segment's homes say how deep it is. So a segment is made for one depth.

use crate::base::sync::{Mutex, lock};
use crate::index::segment::Segment;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::Thread;

/// Segments that were made ahead.
#[derive(Debug, Default)]
pub(super) struct Stock {
    pub ready: Mutex<Vec<Segment>>,
    /// The depths of these, a bit for each. Relaxed: a hint.
    depths: AtomicU32,
    /// The last one that was wanted could not be made. Relaxed: a hint.
    pub cannot: AtomicBool,
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
