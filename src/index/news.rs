//! News: what changes wait for is there, earlier than by a time that they know (Q14).

use super::bells::{Bells, ThreadBell};
use crate::base::sync::{AtomicU64, Ordering, fence};
use crate::faults::{Rule, broken};
use std::task::Waker;

/// Tells threads that something has happened for which changes may wait: a split has ended, a segment is made, memory is
/// there earlier than by its time. What comes by time alone is not told.
#[derive(Debug, Default)]
pub(crate) struct News {
    told: AtomicU64,
    bells: Bells,
}

impl News {
    /// How often something was told.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// Something has happened. What that is was stored before.
    pub fn tell(&self) {
        self.told.fetch_add(1, Ordering::Release);
        // Pairs with the fence in `may_sleep`. A sleeper that does not see the number is seen here.
        fence(Ordering::SeqCst);
        if self.bells.has_sleepers() && !broken(Rule::WaitBell) {
            self.bells.ring();
        }
    }

    /// The bell of a thread that may sleep until something is told. It wakes by this.
    pub fn bell(&self, waker: Waker) -> ThreadBell {
        self.bells.bell(waker)
    }

    /// A thread is about to sleep until something is told beyond `seen`. Returns whether it may: if something was, it may
    /// not, and is not asleep. It says when it [wakes](News::wakes).
    pub fn may_sleep(&self, bell: &ThreadBell, seen: u64) -> bool {
        self.bells.sleeps(bell);
        // Q14: pairs with the fence in `tell`.
        fence(Ordering::SeqCst);
        let may_sleep = self.told() == seen || broken(Rule::WaitLook);
        if !may_sleep {
            self.bells.wakes(bell);
        }
        may_sleep
    }

    /// A thread does not sleep any more.
    pub fn wakes(&self, bell: &ThreadBell) {
        self.bells.wakes(bell);
    }

    /// Whether a thread sleeps until something is told.
    #[cfg(all(test, not(loom)))]
    pub fn has_sleepers(&self) -> bool {
        self.bells.has_sleepers()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::bells::Rung;
    use super::*;
    use crate::base::sync::model;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    /// Something is told while a thread falls asleep that has seen all before it: it does not sleep, or it is rung for.
    fn news_against_sleeper() {
        let news = Arc::new(News::default());
        let (seen, rung) = (news.told(), Arc::new(Rung::default()));
        let bell = news.bell(Waker::from(Arc::clone(&rung)));
        let other = {
            let news = Arc::clone(&news);
            loom::thread::spawn(move || news.tell())
        };
        let sleeps = news.may_sleep(&bell, seen);
        other.join().expect("the news end");
        assert!(!sleeps || rung.0.load(SeqCst), "it sleeps for ever");
        news.wakes(&bell);
        assert!(!news.bells.has_sleepers());
    }

    #[test]
    fn loom_news_against_sleeper() {
        model(4, news_against_sleeper);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn loom_rules_of_waits() {
        for rule in [Rule::WaitBell, Rule::WaitLook] {
            crate::faults::must_be_caught(rule, 4, news_against_sleeper);
        }
    }
}
