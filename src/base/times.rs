//! How long calls took: counts by powers of two of a nanosecond.

use bytemuck::{Pod, Zeroable};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of ranges that times are counted in.
pub const TIME_RANGES: usize = 22;
/// Two to this, in nanoseconds, is where the first range ends: about a microsecond.
const FIRST_END: u32 = 10;

/// How long calls took. Times are counted by ranges: those below 1.024 microseconds (2^10 ns), those from there to
/// twice that, and so on; the last range has those from 1.07 seconds (2^30 ns) on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct TimeCounts {
    /// Calls by ranges of their times.
    pub ranges: [u64; TIME_RANGES],
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
}

/// The range of a time.
#[inline]
fn range_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    (bits.saturating_sub(FIRST_END) as usize).min(TIME_RANGES - 1)
}

impl TimeCounts {
    /// Where a range ends: no time in it is as long. `None`: the last one has no end.
    pub fn range_end(range: usize) -> Option<Duration> {
        (range + 1 < TIME_RANGES).then(|| Duration::from_nanos(1 << (FIRST_END as usize + range)))
    }

    /// All calls.
    pub fn count(&self) -> u64 {
        self.ranges.iter().sum()
    }

    /// A time that this part of all calls did not reach, as 0.99 of them: the end of the range in which the last of
    /// these is, so no more than twice as long as it took. `None` if there were none, or it is in the last range.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut so_far = 0;
        let range = self.ranges.iter().position(|count| {
            so_far += count;
            so_far >= rank
        })?;
        TimeCounts::range_end(range)
    }

    /// Counts one call.
    pub(crate) fn add(&mut self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.ranges[range_of(ns)] += 1;
        self.sum_ns += ns;
    }

    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &TimeCounts) -> TimeCounts {
        let ranges = std::array::from_fn(|range| self.ranges[range].wrapping_sub(before.ranges[range]));
        TimeCounts { ranges, sum_ns: self.sum_ns.wrapping_sub(before.sum_ns) }
    }
}

/// Like `TimeCounts`, for several threads.
#[derive(Debug, Default)]
pub(crate) struct TimeCounters {
    ranges: [AtomicU64; TIME_RANGES],
    sum_ns: AtomicU64,
}

impl TimeCounters {
    /// Counts one call.
    pub fn add(&self, ns: u64) {
        // Relaxed: statistics.
        self.ranges[range_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn read(&self) -> TimeCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TimeCounts {
            ranges: std::array::from_fn(|range| load(&self.ranges[range])),
            sum_ns: load(&self.sum_ns),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each time is in the range whose ends are around it.
    #[test]
    fn ranges_have_their_times() {
        let mut begin = 0;
        for range in 0..TIME_RANGES {
            let end = TimeCounts::range_end(range).map(|end| end.as_nanos() as u64);
            assert_eq!(end.is_none(), range == TIME_RANGES - 1);
            let last = end.map_or(u64::MAX, |end| end - 1);
            assert_eq!([range_of(begin), range_of(last)], [range; 2], "{begin} to {last}");
            begin = last.wrapping_add(1);
        }
        assert_eq!(TimeCounts::range_end(0), Some(Duration::from_nanos(1024)));
        assert_eq!(TimeCounts::range_end(TIME_RANGES - 2), Some(Duration::from_nanos(1 << 30)));
    }

    #[test]
    fn quantiles_are_ends_of_ranges() {
        let (all, mut times) = (TimeCounters::default(), TimeCounts::default());
        assert_eq!((times.quantile(0.5), times.count()), (None, 0));
        for us in [1, 3, 3, 100] {
            all.add(us * 1000);
            times.add(Duration::from_micros(us));
        }
        assert_eq!(all.read(), times);
        assert_eq!((times.count(), times.sum_ns), (4, 107_000));
        let end = |us: u64| Some(Duration::from_nanos((us * 1000).next_power_of_two()));
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 0.76, 1.0].map(|part| times.quantile(part)),
            [end(1), end(1), end(3), end(3), end(100), end(100)]
        );
        let before = times;
        times.add(Duration::from_secs(9));
        assert_eq!((times.since(&before).count(), times.quantile(1.0)), (1, None));
    }
}
