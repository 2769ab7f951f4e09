//! A process' own clock, in microseconds, that goes on while the machine sleeps.

use crate::core::state::Time;
use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started, including the time that it slept: a lease must not outlast a sleep.
#[inline]
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    // Since the start: neither is negative.
    let now = now.tv_sec as Time * 1_000_000 + now.tv_nsec as Time / 1_000;
    #[cfg(feature = "faults")]
    let now = crate::faults::by_the_rate(now);
    now
}
