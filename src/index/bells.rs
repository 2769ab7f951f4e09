//! Wakes threads that sleep until something happens (Q9, Q14).
//!
//! ```text
//! sleeper   bell: asleep ── the number of what has happened: still as it was seen? ── sleeps
//! event     the next number ── is any bell asleep? ── rings those that are
//! ```
//!
//! Either the sleeper sees the number, and does not sleep, or the event sees the bell, and rings. That takes an order of both
//! sides. For changes in the feed it is the turns of the ring: both sides do this in a turn, and a change needs no fence. For
//! what changes wait for (`news.rs`) it is a fence on either side.

use crate::base::sync::{AtomicU64, lock_std};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

/// The bells of all who may sleep until something happens.
#[derive(Debug, Default)]
pub(super) struct Bells {
    /// How many are asleep.
    asleep: AtomicU64,
    all: Mutex<Vec<Weak<BellWord>>>,
}

#[derive(Debug)]
struct BellWord {
    /// 1: its thread sleeps, or is about to.
    asleep: AtomicU64,
    waker: Waker,
}

/// The bell of one thread. It rings while the thread sleeps until something happens.
#[derive(Debug)]
pub(crate) struct ThreadBell(Arc<BellWord>);

impl Bells {
    /// One more bell, which wakes by this.
    pub fn bell(&self, waker: Waker) -> ThreadBell {
        let bell = Arc::new(BellWord { asleep: AtomicU64::new(0), waker });
        lock_std(&self.all).push(Arc::downgrade(&bell));
        ThreadBell(bell)
    }

    /// A thread is about to sleep. It looks a last time after that.
    pub fn sleeps(&self, bell: &ThreadBell) {
        if bell.0.asleep.fetch_or(1, Relaxed) == 0 {
            self.asleep.fetch_add(1, Relaxed);
        }
    }

    /// A thread does not sleep any more.
    pub fn wakes(&self, bell: &ThreadBell) {
        self.is_woken(&bell.0);
    }

    /// Whether somebody sleeps. To be asked after the number is stored.
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

/// A waker of a model: whether it rang.
#[cfg(all(test, loom))]
#[derive(Default)]
pub(super) struct Rung(pub std::sync::atomic::AtomicBool);

#[cfg(all(test, loom))]
impl std::task::Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}
