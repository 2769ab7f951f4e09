//! Waits that a program can break off: a program in a language that handles signals itself, and then wants to go on
//! elsewhere.
//!
//! A thread that waits for a server asks now and then whether the wait is still wanted. If not, the wait ends as it
//! does at its deadline: the request may have been done.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so long it is asked again. Each time doubles it, up to the longest: who waits for long hardly wakes.
const ASKED_AFTER: Duration = Duration::from_millis(50);
const ASKED_AFTER_MAX: Duration = Duration::from_millis(500);

/// Who is asked whether this thread's waits are still wanted, and when next. `None`: so long after the first wait begins.
#[derive(Clone, Copy)]
struct Asked {
    is_unwanted: fn() -> bool,
    next: Option<Instant>,
    after: Duration,
}

thread_local! {
    static ASKED: Cell<Option<Asked>> = const { Cell::new(None) };
    /// What ends this thread's waits when it is readable.
    static ENDING: RefCell<Option<Arc<OwnedFd>>> = const { RefCell::new(None) };
}

/// Does work of this thread whose waits end as soon as this descriptor is readable.
pub(crate) fn ended_by<R>(ending: Option<Arc<OwnedFd>>, work: impl FnOnce() -> R) -> R {
    /// Puts back what was there, also after a panic.
    struct EndingBefore(Option<Arc<OwnedFd>>);

    impl Drop for EndingBefore {
        fn drop(&mut self) {
            ENDING.set(self.0.take());
        }
    }

    let _before = EndingBefore(ENDING.replace(ending));
    work()
}

/// What this thread's waits are to look at besides.
pub(crate) fn ending() -> Option<Arc<OwnedFd>> {
    ENDING.with_borrow(Option::clone)
}

/// Does work of this thread whose waits for a server on shm, and whose growing of a table, end when `is_unwanted`
/// says so. It is asked after 50 ms, then less and less often up to twice a second while they last, and when a signal
/// interrupts one. A wait that is over sooner asks nobody.
pub fn breakable<R>(is_unwanted: fn() -> bool, work: impl FnOnce() -> R) -> R {
    /// Puts back what was there, also after a panic.
    struct Before(Option<Asked>);

    impl Drop for Before {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }

    let _before = Before(ASKED.replace(Some(Asked { is_unwanted, next: None, after: ASKED_AFTER })));
    work()
}

/// Until when this thread may sleep, if it waits until `deadline`. `None`: its wait is not wanted any more.
pub fn sleeps_until(deadline: Instant) -> Option<Instant> {
    let Some(Asked { is_unwanted, mut next, mut after }) = ASKED.get() else { return Some(deadline) };
    if next.is_some_and(|next| next <= Instant::now()) {
        if is_unwanted() {
            return None;
        }
        (next, after) = (None, (2 * after).min(ASKED_AFTER_MAX));
    }
    let next = next.unwrap_or_else(|| Instant::now() + after);
    ASKED.set(Some(Asked { is_unwanted, next: Some(next), after }));
    Some(deadline.min(next))
}

/// Whether long work, or a wait of another kind, is still wanted. To be called now and then.
pub fn is_wanted() -> bool {
    sleeps_until(Instant::now() + ASKED_AFTER).is_some()
}

/// A signal has interrupted this thread's wait: the question is asked before the next one.
pub(crate) fn interrupted() {
    if let Some(asked) = ASKED.get() {
        ASKED.set(Some(Asked { next: Some(Instant::now()), ..asked }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A wait is broken off only where that was asked for.
    #[test]
    fn waits_are_broken_off_where_that_was_asked_for() {
        let deadline = Instant::now() + Duration::from_secs(3600);
        interrupted();
        assert_eq!(sleeps_until(deadline), Some(deadline));
        breakable(
            || false,
            || {
                assert!(sleeps_until(deadline).is_some_and(|until| until < deadline));
                breakable(
                    || true,
                    || {
                        assert!(
                            sleeps_until(deadline).is_some_and(|until| until < deadline),
                            "it waits first"
                        );
                        interrupted();
                        assert_eq!(sleeps_until(deadline), None);
                    },
                );
                interrupted();
                assert!(sleeps_until(deadline).is_some_and(|until| until > Instant::now()));
            },
        );
        assert_eq!(sleeps_until(deadline), Some(deadline));
    }

    /// Waits that follow each other ask together every 50 ms, however short each is.
    #[test]
    fn short_waits_ask_now_and_then() {
        static ASKS: AtomicU32 = AtomicU32::new(0);
        let count = || ASKS.fetch_add(1, Ordering::Relaxed) == 1;
        let (begun, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        breakable(count, || while sleeps_until(deadline).is_some() {});
        assert!(begun.elapsed() >= 3 * ASKED_AFTER);
        assert_eq!(ASKS.load(Ordering::Relaxed), 2);
    }
}
