//! The hooks by which the simulator sees what the core does, and decides which thread goes on.
//!
//! The core reports accesses to an observed region, stores into it, and locks that it needs.
//! Without the feature `sim` the hooks are empty and cost nothing.

#[cfg(feature = "sim")]
pub(crate) use with_sim::{Observer, Scheduler, schedule};

/// The observer of a region, if it has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed(#[cfg(feature = "sim")] Option<std::sync::Arc<dyn Observer>>);

#[cfg(feature = "sim")]
mod with_sim {
    use std::cell::RefCell;
    use std::fmt::Debug;
    use std::panic::RefUnwindSafe;
    use std::rc::Rc;

    /// Receives every store into a region.
    pub(crate) trait Observer: Debug + Send + Sync + RefUnwindSafe {
        /// `word` now has the value `value`.
        fn stored(&self, word: usize, value: u64);
    }

    /// Decides which of several threads goes on.
    pub(crate) trait Scheduler {
        /// Another thread may go on now.
        fn may_pass(&self);
        /// Returns when `is_free` returns `true`.
        #[cfg_attr(loom, allow(dead_code, reason = "loom has locks of its own"))]
        fn wait_until(&self, is_free: &dyn Fn() -> bool);
    }

    thread_local! {
        static SCHEDULER: RefCell<Option<Rc<dyn Scheduler>>> = const { RefCell::new(None) };
    }

    /// Lets `scheduler` decide from now on when this thread goes on; `None` leaves it to the
    /// operating system.
    pub(crate) fn schedule(scheduler: Option<Rc<dyn Scheduler>>) {
        SCHEDULER.set(scheduler);
    }

    pub(super) fn with_scheduler(then: impl FnOnce(&dyn Scheduler)) {
        // A thread that ends may still free a segment's memory, under locks. Nobody schedules it by then.
        let _ = SCHEDULER.try_with(|scheduler| {
            if let Some(scheduler) = &*scheduler.borrow() {
                then(&**scheduler);
            }
        });
    }

    impl super::Observed {
        /// Observed by `observer`.
        pub fn by(observer: std::sync::Arc<dyn Observer>) -> super::Observed {
            super::Observed(Some(observer))
        }
    }
}

impl Observed {
    /// Reports that words are about to be loaded or stored.
    #[inline(always)]
    pub fn access(&self) {
        #[cfg(feature = "sim")]
        if self.0.is_some() {
            with_sim::with_scheduler(|scheduler| scheduler.may_pass());
        }
    }

    /// Reports that a word was stored.
    #[inline(always)]
    pub fn stored(&self, word: usize, value: u64) {
        #[cfg(feature = "sim")]
        if let Some(observer) = &self.0 {
            observer.stored(word, value);
        }
        #[cfg(not(feature = "sim"))]
        let _ = (word, value);
    }
}

/// An observer, borrowed. Takes no room without the feature `sim`.
#[derive(Clone, Copy)]
pub(crate) struct ObservedBy<'a>(
    #[cfg(feature = "sim")] &'a Observed,
    #[cfg(not(feature = "sim"))] std::marker::PhantomData<&'a Observed>,
);

impl<'a> From<&'a Observed> for ObservedBy<'a> {
    #[inline(always)]
    fn from(observed: &'a Observed) -> ObservedBy<'a> {
        #[cfg(feature = "sim")]
        return ObservedBy(observed);
        #[cfg(not(feature = "sim"))]
        {
            let _ = observed;
            ObservedBy(std::marker::PhantomData)
        }
    }
}

impl ObservedBy<'_> {
    /// Reports that words are about to be loaded.
    #[inline(always)]
    pub fn access(self) {
        #[cfg(feature = "sim")]
        self.0.access();
    }
}

/// Reports that this thread is about to take a lock. `is_free` says whether it would get it now.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn before_lock(is_free: impl Fn() -> bool) {
    #[cfg(feature = "sim")]
    with_sim::with_scheduler(|scheduler| {
        scheduler.may_pass();
        scheduler.wait_until(&is_free);
    });
    #[cfg(not(feature = "sim"))]
    let _ = is_free;
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;

    /// A thread takes a lock when it ends, after its scheduler is gone, as crossbeam-epoch does when it runs
    /// what was deferred. (Where this fails, the whole program aborts.)
    #[test]
    fn a_lock_at_the_end_of_a_thread() {
        struct AtExit;
        impl Drop for AtExit {
            fn drop(&mut self) {
                before_lock(|| true);
            }
        }
        thread_local!(static AT_EXIT: AtExit = const { AtExit });
        let ended = std::thread::spawn(|| {
            // What is used later is dropped earlier.
            AT_EXIT.with(|_| {});
            schedule(None);
        });
        assert!(ended.join().is_ok());
    }
}
