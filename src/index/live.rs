//! The segments that server threads may use. A thread that looks at one keeps it from being freed
//! by a guard of `crossbeam-epoch`. Remote readers hold nothing.

#![allow(unsafe_code)]

use super::Segment;
use crossbeam_epoch::{Atomic, Guard, Owned};
use std::sync::atomic::Ordering;

/// Segments by the numbers of their memory.
#[derive(Debug)]
pub(super) struct LiveSegments(Box<[Atomic<Segment>]>);

impl LiveSegments {
    pub fn new(segments_max: u64) -> LiveSegments {
        LiveSegments((0..segments_max).map(|_| Atomic::null()).collect())
    }

    /// The segment in this memory, if there is one.
    #[inline]
    pub fn get<'g>(&'g self, memory: u32, guard: &'g Guard) -> Option<&'g Segment> {
        let segment = self.0.get(memory as usize)?.load(Ordering::Acquire, guard);
        // SAFETY: what stands here was an `Owned`, and is freed by `remove` only: after every guard
        // that was there then is gone. `guard` outlives the reference.
        unsafe { segment.as_ref() }
    }

    /// Lets threads use a segment. Its memory has none.
    pub fn insert(&self, segment: Segment) {
        let memory = segment.memory as usize;
        self.0[memory].store(Owned::new(segment), Ordering::Release);
    }

    /// Takes a segment away. It is freed when no thread uses it any more, and `then` is called.
    pub fn remove(&self, memory: u32, guard: &Guard, then: impl FnOnce() + Send + 'static) {
        let segment = self.0[memory as usize].swap(crossbeam_epoch::Shared::null(), Ordering::AcqRel, guard);
        if !segment.is_null() {
            // SAFETY: nobody finds the segment from here on, and the swap gave it to this thread
            // alone. `then` owns what it needs.
            unsafe {
                guard.defer_unchecked(move || {
                    drop(segment.into_owned());
                    then();
                });
            }
        }
    }

    /// All segments.
    pub fn all<'g>(&'g self, guard: &'g Guard) -> impl Iterator<Item = &'g Segment> {
        (0..self.0.len() as u32).filter_map(|memory| self.get(memory, guard))
    }
}

impl Drop for LiveSegments {
    fn drop(&mut self) {
        for segment in &mut self.0 {
            // SAFETY: `&mut self`: no thread uses any of them, and each is named once.
            drop(unsafe { std::mem::replace(segment, Atomic::null()).try_into_owned() });
        }
    }
}
