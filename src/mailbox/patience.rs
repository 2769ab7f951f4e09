//! The time to poll before sleeping.

use std::time::Duration;

/// Of this many waits, one takes the longest time even if nothing came in the waits before.
const PROBE: u32 = 256;

/// Adapts the time to poll for something before sleeping. The time grows while polling succeeds. It
/// shrinks, in the end to none, while nothing comes, because the other side may need the same
/// CPU. Now and then it is the longest, to notice when that has changed.
#[derive(Debug)]
pub(crate) struct SpinTime {
    least: Duration,
    most: Duration,
    now: Duration,
    misses: u32,
}

impl SpinTime {
    /// `least` is the shortest time worth polling.
    pub fn new(least: Duration, most: Duration) -> SpinTime {
        SpinTime { least, most, now: most, misses: 0 }
    }

    /// Time to poll in this wait.
    #[inline]
    pub fn time(&self) -> Duration {
        if self.misses % PROBE == PROBE - 1 { self.most } else { self.now }
    }

    /// Records that polling succeeded.
    #[inline]
    pub fn rewarded(&mut self) {
        // A probe that succeeds says that the other side has a CPU of its own again. If it only
        // polled a little longer, both sides would go on to find each other asleep.
        self.now = if self.now.is_zero() { self.most } else { self.most.min(2 * self.now) };
        self.misses = 0;
    }

    /// Records that nothing came while it polled.
    pub fn exhausted(&mut self) {
        self.now = Some(self.now / 2).filter(|time| *time >= self.least).unwrap_or_default();
        self.misses = self.misses.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_shrinks_with_misses_and_grows_with_success() {
        let [least, most] = [1, 8].map(Duration::from_micros);
        let mut patience = SpinTime::new(least, most);
        assert_eq!(patience.time(), most);
        let times: Vec<_> = (0..2 * PROBE)
            .map(|_| {
                let time = patience.time();
                patience.exhausted();
                time
            })
            .collect();
        assert_eq!(times[..5], [8, 4, 2, 1, 0].map(Duration::from_micros));
        assert_eq!(times[4..].iter().filter(|time| **time == most).count(), 2, "now and then");
        assert!(times[4..].iter().all(|time| [Duration::ZERO, most].contains(time)));
        patience.rewarded();
        assert_eq!(patience.time(), most, "the probe succeeded");
        (0..3).for_each(|_| patience.exhausted());
        for time in [1, 2, 4, 8, 8].map(Duration::from_micros) {
            assert_eq!(patience.time(), time);
            patience.rewarded();
        }
        // Every PROBE-th wait takes the longest time, counted from the last success.
        for before in [0, 5, PROBE - 2] {
            (0..before).for_each(|_| patience.exhausted());
            patience.rewarded();
            let mut misses = 0;
            patience.exhausted();
            (0..4).for_each(|_| patience.exhausted());
            while patience.time() < most {
                patience.exhausted();
                misses += 1;
            }
            assert_eq!(misses + 5, PROBE - 1, "after {before}");
        }
    }
}
