//! Segments that are made before they are needed.
//!
//! Making a segment takes milliseconds: memory is asked for, zeroed, perhaps registered with a device. So a server has
//! a thread that makes segments ahead (`ahead.rs`), and a change that begins a split takes one. Without such a thread,
//! or where it is too slow, the change makes its own.
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
    /// The depths of these segments, a bit for each. Relaxed: a hint.
    depths: AtomicU32,
    /// Whether the last segment that was wanted could not be made. Relaxed: a hint.
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

    /// Takes a segment of any depth.
    pub fn take_any(&self) -> Option<Segment> {
        let mut ready = lock(&self.ready);
        let segment = ready.pop()?;
        self.note(&ready);
        Some(segment)
    }

    /// Whether there is a segment in stock.
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

    /// Sets the thread that makes segments ahead. It is woken when one may be needed.
    pub fn set_maker(&self, thread: Thread) {
        let _ = self.maker.set(thread);
    }

    pub fn maker(&self) -> Option<Thread> {
        self.maker.get().cloned()
    }

    /// Asks for a segment of this depth. Returns whether the maker is about to make one.
    pub fn is_awaited(&self, depth: u32) -> bool {
        if self.depths.load(Relaxed) >> depth & 1 == 1 {
            return false;
        }
        // The maker tries again, even if it could not make one a moment ago. Meanwhile, a put that needs one makes it,
        // or gets the error.
        let may_come = !self.cannot.load(Relaxed);
        may_come & self.maker.get().inspect(|maker| maker.unpark()).is_some()
    }
}
