//! The segments that server threads may use. A thread that looks at one keeps it from being freed
//! by a guard of `crossbeam-epoch`. Remote readers hold nothing.

#![allow(unsafe_code)]

use crate::index::segment::Segment;
use crossbeam_epoch::{Atomic, Guard, Owned};
use std::sync::atomic::Ordering;

/// The number of a segment's memory, which no thread of the server uses. Only the owner of the segment can prove that.
#[derive(Debug)]
pub(in crate::index) struct UnusedMemory(u32);

impl UnusedMemory {
    pub fn of(segment: Segment) -> UnusedMemory {
        UnusedMemory(segment.memory())
    }

    pub fn number(&self) -> u32 {
        self.0
    }
}

/// Segments by the numbers of their memory.
#[derive(Debug)]
pub(in crate::index) struct LiveSegments(Box<[Atomic<Segment>]>);

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

    /// Lets threads use a segment. Its memory has no other.
    pub fn insert(&self, segment: Segment) {
        let memory = segment.memory() as usize;
        self.0[memory].store(Owned::new(segment), Ordering::Release);
    }

    /// Takes a segment away. When no thread uses it any more, it is freed, and `then` gets its memory.
    pub fn remove(&self, memory: u32, guard: &Guard, then: impl FnOnce(UnusedMemory) + Send + 'static) {
        let segment = self.0[memory as usize].swap(crossbeam_epoch::Shared::null(), Ordering::AcqRel, guard);
        if !segment.is_null() {
            // SAFETY: nobody finds the segment from here on, and the swap gave it to this thread
            // alone. `then` owns what it needs.
            unsafe {
                guard.defer_unchecked(move || then(UnusedMemory::of(*segment.into_owned().into_box())));
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::homes::Grace;
    use crate::index::share::KeyShare;
    use crate::index::slots::UndoLines;
    use crate::region::Region;
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    /// A segment is taken away while a thread looks at it: it stays, and so does its memory, until that
    /// thread has done with it. Whoever looks later finds no segment.
    #[test]
    fn a_segment_stays_while_a_thread_uses_it() {
        const MEMORY: u32 = 3;
        const NONE: u32 = u32::MAX;
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let grace = Grace::new(Clock::manual(), geometry.grace());
        let live = LiveSegments::new(geometry.segments_max());
        let of_segment = geometry.segment(MEMORY, 1);
        live.insert(Segment::part(region, of_segment, grace, UndoLines::new(), MEMORY, KeyShare::ALL, None));
        let unused = Arc::new(AtomicU32::new(NONE));
        let pass = || crossbeam_epoch::pin().flush();
        std::thread::scope(|scope| {
            let live = &live;
            let ((uses, is_used), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
            scope.spawn(move || {
                let guard = crossbeam_epoch::pin();
                let segment = live.get(MEMORY, &guard).expect("it is there");
                uses.send(()).unwrap();
                is_done.recv().unwrap();
                assert_eq!(segment.memory(), MEMORY);
            });
            is_used.recv().unwrap();
            let then = unused.clone();
            live.remove(MEMORY, &crossbeam_epoch::pin(), move |memory| {
                then.store(memory.number(), Ordering::SeqCst);
            });
            // Far more often than an epoch takes that nobody holds up.
            (0..1_000).for_each(|_| pass());
            assert_eq!(unused.load(Ordering::SeqCst), NONE, "a thread uses it");
            assert!(live.get(MEMORY, &crossbeam_epoch::pin()).is_none());
            done.send(()).unwrap();
        });
        let give_up = Instant::now() + Duration::from_secs(60);
        while unused.load(Ordering::SeqCst) == NONE {
            assert!(Instant::now() < give_up, "the memory is lost");
            pass();
            std::thread::yield_now();
        }
        assert_eq!(unused.load(Ordering::SeqCst), MEMORY);
    }
}
