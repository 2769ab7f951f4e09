//! Waits that a program can break off: a program in a language that handles signals itself, and then wants to go on
//! elsewhere.
//!
//! A thread that waits for a server asks now and then whether the wait is still wanted. If not, the wait ends as it
//! does at its deadline: the request may have been done.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The time between two such questions.
const ASKED_AFTER: Duration = Duration::from_millis(50);

/// Who is asked whether this thread's waits are still wanted, and when next. `None`: 50 ms after the first wait begins.
#[derive(Clone, Copy)]
struct Asked {
    is_unwanted: fn() -> bool,
    next: Option<Instant>,
}

thread_local!(static ASKED: Cell<Option<Asked>> = const { Cell::new(None) });

/// Runs `work` on this thread. Its waits for a server on shm, and its growing of a table, end when `is_unwanted`
/// returns `true`. That is called every 50 ms while they last, and when a signal interrupts one. It is not called for a
/// shorter wait.
pub fn breakable<R>(is_unwanted: fn() -> bool, work: impl FnOnce() -> R) -> R {
    /// Puts back what was there, also after a panic.
    struct Before(Option<Asked>);

    impl Drop for Before {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }

    let _before = Before(ASKED.replace(Some(Asked { is_unwanted, next: None })));
    work()
}

/// Until when this thread may sleep, if it waits until `deadline`. `None`: its wait is not wanted any more.
pub(crate) fn sleeps_until(deadline: Instant) -> Option<Instant> {
    let Some(Asked { is_unwanted, mut next }) = ASKED.get() else { return Some(deadline) };
    if next.is_some_and(|next| next <= Instant::now()) {
        if is_unwanted() {
            return None;
        }
        next = None;
    }
    let next = next.unwrap_or_else(|| Instant::now() + ASKED_AFTER);
    ASKED.set(Some(Asked { is_unwanted, next: Some(next) }));
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
        assert!(begun.elapsed() >= 2 * ASKED_AFTER);
        assert_eq!(ASKS.load(Ordering::Relaxed), 2);
    }
}
