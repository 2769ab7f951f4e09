//! Waits that a program breaks off: one in a language that looks for signals itself, and then wants to go on elsewhere.
//!
//! Whoever waits for a server asks now and then whether that is still wanted. If not, the wait ends as it does at its
//! deadline: the same may have happened.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// After so long it is asked again.
const ASKED_AFTER: Duration = Duration::from_millis(50);

thread_local!(static IS_UNWANTED: Cell<Option<fn() -> bool>> = const { Cell::new(None) });

/// Does work of this thread whose waits for a server on shm end when `is_unwanted` says so. It is asked every 50 ms, and
/// when a signal comes.
pub fn breakable<R>(is_unwanted: fn() -> bool, work: impl FnOnce() -> R) -> R {
    /// Puts back what was there, also after a panic.
    struct Before(Option<fn() -> bool>);

    impl Drop for Before {
        fn drop(&mut self) {
            IS_UNWANTED.set(self.0);
        }
    }

    let _before = Before(IS_UNWANTED.replace(Some(is_unwanted)));
    work()
}

/// Until when this thread sleeps that waits until `deadline`. `None`: its wait is not wanted any more.
pub(crate) fn sleeps_until(deadline: Instant) -> Option<Instant> {
    match IS_UNWANTED.get() {
        None => Some(deadline),
        Some(is_unwanted) if is_unwanted() => None,
        Some(_) => Some(deadline.min(Instant::now() + ASKED_AFTER)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait is broken off only where that was asked for.
    #[test]
    fn waits_are_broken_off_where_that_was_asked_for() {
        let deadline = Instant::now() + Duration::from_secs(3600);
        assert_eq!(sleeps_until(deadline), Some(deadline));
        breakable(
            || false,
            || {
                assert!(sleeps_until(deadline).is_some_and(|until| until < deadline));
                breakable(|| true, || assert_eq!(sleeps_until(deadline), None));
                assert!(sleeps_until(deadline).is_some_and(|until| until < deadline));
            },
        );
        assert_eq!(sleeps_until(deadline), Some(deadline));
    }
}
