//! How long to look before one sleeps.

use std::time::Duration;

/// How often to be as patient as can be, though it was in vain before.
const PROBE: u32 = 64;

/// Time to look for something before one sleeps: long while that succeeds, short when it does not, because whoever is
/// waited for may need the very CPU. Now and then as long as can be, to notice when that has changed.
#[derive(Debug)]
pub(crate) struct SpinTime {
    least: Duration,
    most: Duration,
    now: Duration,
    in_vain: u32,
}

impl SpinTime {
    pub fn new(least: Duration, most: Duration) -> SpinTime {
        SpinTime { least, most, now: most, in_vain: 0 }
    }

    /// How long to look this time.
    #[inline]
    pub fn time(&self) -> Duration {
        if self.in_vain % PROBE == PROBE - 1 { self.most } else { self.now }
    }

    /// It came.
    #[inline]
    pub fn rewarded(&mut self) {
        self.now = (2 * self.now).min(self.most);
        self.in_vain = 0;
    }

    /// It did not come in time.
    pub fn exhausted(&mut self) {
        self.now = (self.now / 2).max(self.least);
        self.in_vain = self.in_vain.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience() {
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
        assert_eq!(times[..4], [8, 4, 2, 1].map(Duration::from_micros));
        assert_eq!(times[4..].iter().filter(|time| **time == most).count(), 2, "now and then");
        assert!(times[4..].iter().all(|time| [least, most].contains(time)));
        patience.rewarded();
        assert_eq!(patience.time(), 2 * least);
        (0..10).for_each(|_| patience.rewarded());
        assert_eq!(patience.time(), most);
        // One time in so many it is as patient as can be, counted from the last reward.
        for before in [0, 5, PROBE - 2] {
            (0..before).for_each(|_| patience.exhausted());
            patience.rewarded();
            let mut in_vain = 0;
            patience.exhausted();
            (0..4).for_each(|_| patience.exhausted());
            while patience.time() < most {
                patience.exhausted();
                in_vain += 1;
            }
            assert_eq!(in_vain + 5, 63, "after {before}");
        }
    }
}
