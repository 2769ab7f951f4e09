//! Time, as the server's grace periods and the clients' deadlines measure it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A monotonic clock that also counts the time a machine is suspended (H2): real, or set by hand so that
/// a test or simulation decides what time it is. Cheap to clone; `Send + Sync`.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// `CLOCK_BOOTTIME`.
    #[default]
    System,
    /// A number of nanoseconds that somebody else advances. Sleeping advances it.
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
            // Relaxed: the number is all that is communicated.
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Returns no earlier than at `due_ns`.
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

    /// Moves a manual clock forward; the system's clock pays no heed.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(now) = self {
            now.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
