//! Work on a range, by all cores.

use crate::faults;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

/// How many threads share the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores(pub usize);

impl Cores {
    /// As many as this process may use.
    pub fn all() -> Cores {
        Cores(thread::available_parallelism().map_or(1, usize::from))
    }

    /// Cuts the range into pieces of this length, and lets each thread work at one after the other.
    /// Returns what came of the pieces, in their order. So the result does not depend on the number
    /// of threads. A range of one piece needs no thread but this one, which hears from `done` now
    /// and then how much of the range is done.
    pub fn split<R: Send>(
        self,
        range: Range<u64>,
        piece: u64,
        work: impl Fn(Range<u64>) -> R + Sync,
        mut done: impl FnMut(u64),
    ) -> Vec<R> {
        let pieces = (range.end - range.start).div_ceil(piece);
        let (next, ready) = (AtomicU64::new(0), AtomicU64::new(0));
        // Relaxed: only the numbers themselves are communicated.
        let take = || Some(next.fetch_add(1, Relaxed)).filter(|&number| number < pieces);
        let take = || {
            let number = take()?;
            let start = range.start + number * piece;
            let part = start..range.end.min(start + piece);
            let length = part.end - part.start;
            let result = (number, work(part));
            ready.fetch_add(length, Relaxed);
            Some(result)
        };
        let broken = faults::all_broken();
        let others = (self.0 as u64).min(pieces).saturating_sub(1);
        let mut all = thread::scope(|scope| {
            let help = || {
                faults::break_all(broken);
                std::iter::from_fn(&take).collect::<Vec<_>>()
            };
            // Without a further thread, those that there are do all.
            let spawn = |_| thread::Builder::new().spawn_scoped(scope, help).ok();
            let threads: Vec<_> = (0..others).map_while(spawn).collect();
            let mut all = Vec::new();
            while let Some(result) = take() {
                all.push(result);
                done(ready.load(Relaxed));
            }
            for thread in threads {
                all.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            all
        });
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Barrier, Mutex};

    /// Every part of the range is worked at once, and the results are in order, with any number of
    /// threads.
    #[test]
    fn the_result_does_not_depend_on_the_number_of_threads() {
        for threads in [1, 2, 3, 16] {
            for (range, piece) in [(0..0, 4), (5..6, 4), (3..103, 7), (0..100, 100), (0..100, 1000)] {
                let mut told = Vec::new();
                let parts = Cores(threads).split(range.clone(), piece, |part| part, |done| told.push(done));
                let numbers: Vec<u64> = parts.iter().cloned().flatten().collect();
                assert!(numbers.into_iter().eq(range.clone()), "{threads} threads, {range:?}: {parts:?}");
                assert!(parts.iter().all(|part| part.end - part.start <= piece));
                assert!(told.is_sorted() && told.last().is_none_or(|&last| last <= range.end - range.start));
            }
        }
    }

    /// The threads work at the same time.
    #[test]
    fn all_threads_work() {
        let together = Barrier::new(3);
        let seen = Mutex::new(HashSet::new());
        Cores(3).split(
            0..3,
            1,
            |_| {
                together.wait();
                crate::base::sync::lock_std(&seen).insert(thread::current().id());
            },
            |_| {},
        );
        assert_eq!(crate::base::sync::lock_std(&seen).len(), 3);
    }

    /// Whoever works on the first piece ends after the other has begun the third. So one of the two
    /// works on the first and the last, the other on those between.
    #[test]
    fn results_are_in_the_order_of_the_pieces() {
        let begun = AtomicU64::new(0);
        let work = |part: Range<u64>| {
            begun.fetch_max(part.start, Relaxed);
            // The first waits for the third, and the third for the last.
            while part.start.is_multiple_of(2) && begun.load(Relaxed) < [2, 3][part.start as usize / 2] {
                thread::yield_now();
            }
            part.start
        };
        assert_eq!(Cores(2).split(0..4, 1, work, |_| {}), [0, 1, 2, 3]);
    }

    /// A panic of any thread is the caller's.
    #[test]
    fn a_panic_is_passed_on() {
        for threads in [1, 4] {
            for bad in [0, 37, 99] {
                let work = |part: Range<u64>| assert!(!part.contains(&bad), "on purpose");
                let split = || Cores(threads).split(0..100, 1, work, |_| {});
                assert!(catch_unwind(AssertUnwindSafe(split)).is_err());
            }
        }
    }
}
