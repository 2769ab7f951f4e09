//! Wakes threads that sleep until something changes (Q9).
//!
//! ```text
//! sleeper   the ring's turn { bell: asleep ── the feed's next number: still as it was seen? } ── sleeps
//! change    the ring's turn { record, next number ── is any bell asleep? } ── rings those that are
//! ```
//!
//! Both do so in a turn of the ring, and turns have an order. If the change's is first, the sleeper sees its number, and
//! does not sleep. If the sleeper's is first, the change sees the bell, and rings. So a change needs no fence for that.

use crate::base::sync::{AtomicU64, lock_std};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

/// The bells of all who may sleep until something changes.
#[derive(Debug, Default)]
pub(super) struct Bells {
    /// How many are asleep. Goes up in a turn of the ring, and is looked at in one.
    asleep: AtomicU64,
    all: Mutex<Vec<Weak<BellWord>>>,
}

#[derive(Debug)]
struct BellWord {
    /// 1: its thread sleeps, or is about to.
    asleep: AtomicU64,
    waker: Waker,
}

/// The bell of one thread. It rings while the thread sleeps until something changes.
#[derive(Debug)]
pub(crate) struct FeedBell(Arc<BellWord>);

impl Bells {
    /// One more bell, which wakes by this.
    pub fn bell(&self, waker: Waker) -> FeedBell {
        let bell = Arc::new(BellWord { asleep: AtomicU64::new(0), waker });
        lock_std(&self.all).push(Arc::downgrade(&bell));
        FeedBell(bell)
    }

    /// A thread is about to sleep. To be said in a turn of the ring, in which it looks a last time.
    pub fn sleeps(&self, bell: &FeedBell) {
        if bell.0.asleep.fetch_or(1, Relaxed) == 0 {
            self.asleep.fetch_add(1, Relaxed);
        }
    }

    /// A thread does not sleep any more.
    pub fn wakes(&self, bell: &FeedBell) {
        self.is_woken(&bell.0);
    }

    /// Whether somebody sleeps. To be asked in the turn of the ring in which a change was told.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        self.asleep.load(Relaxed) > 0
    }

    /// Wakes all who sleep.
    #[cold]
    pub fn ring(&self) {
        lock_std(&self.all).retain(|bell| {
            let Some(bell) = bell.upgrade() else { return false };
            if self.is_woken(&bell) {
                bell.waker.wake_by_ref();
            }
            true
        });
    }

    /// It is not asleep any more. Returns whether it was.
    fn is_woken(&self, bell: &BellWord) -> bool {
        let was_asleep = bell.asleep.fetch_and(0, Relaxed) == 1;
        if was_asleep {
            self.asleep.fetch_sub(1, Relaxed);
        }
        was_asleep
    }
}
