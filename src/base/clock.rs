//! Time for the server's grace periods and the clients' deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A monotonic clock that also counts the time a machine is suspended (H2).
///
/// It is real, or set by hand, so that a test or simulation decides the time. Cheap to clone;
/// `Send + Sync`.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// `CLOCK_BOOTTIME`.
    #[default]
    System,
    /// A number of nanoseconds that a test advances. Sleeping advances it.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands at 0 until it is moved.
    pub fn manual() -> Clock {
        Clock::Manual(Arc::default())
    }

    /// Nanoseconds since some fixed instant.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Clock::System => {
                let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
            }
            // Relaxed: only the number itself is communicated.
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Sleeps until the clock shows at least `due_ns`.
    pub fn sleep_until(&self, due_ns: u64) {
        match self {
            Clock::System => {
                while let Some(left) = due_ns.checked_sub(self.now_ns()).filter(|&n| n > 0) {
                    std::thread::sleep(Duration::from_nanos(left));
                }
            }
            Clock::Manual(now) => {
                now.fetch_max(due_ns, Ordering::Relaxed);
            }
        }
    }

    /// Moves a manual clock forward. Does nothing to the system's clock.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(now) = self {
            now.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A manual clock only goes forward, by the given time. A clone is the same clock.
    #[test]
    fn a_manual_clock_only_goes_forward() {
        let clock = Clock::manual();
        assert_eq!(clock.now_ns(), 0);
        clock.clone().advance(Duration::new(2, 5));
        assert_eq!(clock.now_ns(), 2_000_000_005);
        clock.sleep_until(2_000_000_004);
        assert_eq!(clock.now_ns(), 2_000_000_005, "that is over");
        clock.sleep_until(3_000_000_000);
        assert_eq!(clock.now_ns(), 3_000_000_000);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(clock.now_ns(), 3_000_000_001);
    }

    /// The system's clock also counts suspended time, in nanoseconds. No sleep ends early.
    #[test]
    fn the_systems_clock_counts_suspended_time() {
        let clock = Clock::default();
        assert!(matches!(clock, Clock::System));
        let boottime = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
        };
        for _ in 0..100 {
            let (before, now, after) = (boottime(), clock.now_ns(), boottime());
            assert!((before..=after).contains(&now), "{before} {now} {after}");
        }
        for time in [0, 1_000, 100_000, 3_000_000] {
            let due = clock.now_ns() + time;
            clock.sleep_until(due);
            assert!(clock.now_ns() >= due);
        }
        clock.sleep_until(0);
        // The system's clock cannot be set.
        clock.advance(Duration::from_secs(1_000_000_000));
        assert!(clock.now_ns() <= boottime());
    }
}
