//! Atomics of the standard library and locks of `parking_lot`, or loom's when the model checker runs
//! (`RUSTFLAGS="--cfg loom"`). The algorithms have the same text in both builds.

#[cfg(loom)]
pub(crate) use self::checked::AtomicU64;
#[cfg(all(loom, any(feature = "verbs", test)))]
pub(crate) use loom::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{Ordering, fence},
};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(all(not(loom), any(feature = "verbs", test)))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(any(loom, target_arch = "aarch64")))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// A fence that also orders what devices see (H3 of docs/HARDWARE.md). On aarch64 the language's
/// release fence is `dmb ish`, which need not reach a NIC.
#[cfg(all(not(loom), target_arch = "aarch64"))]
#[allow(unsafe_code)]
#[inline]
pub(crate) fn fence(order: Ordering) {
    std::sync::atomic::fence(order);
    if order == Ordering::Release {
        // SAFETY: `dmb osh` is a barrier. It touches neither registers nor memory.
        unsafe { std::arch::asm!("dmb osh", options(nostack, preserves_flags)) };
    }
}

/// Locks `mutex`, also if a thread panicked while it held the lock. What the locks here guard is
/// valid between any two writes.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(loom)]
    return mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    #[cfg(not(loom))]
    {
        crate::base::observe::before_lock(|| !mutex.is_locked());
        mutex.lock()
    }
}

/// Locks `mutex`, likewise, if no thread holds the lock.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(loom)]
    return mutex.try_lock().ok();
    #[cfg(not(loom))]
    mutex.try_lock()
}

/// Waits until this is so of what `mutex` guards, whose lock is held. Whoever makes it so tells `told`.
pub(crate) fn wait_until<'m, T>(
    (mutex, told): (&'m Mutex<T>, &Condvar),
    mut guard: MutexGuard<'m, T>,
    is_so: impl Fn(&T) -> bool,
) -> MutexGuard<'m, T> {
    #[cfg(loom)]
    {
        let _ = mutex;
        while !is_so(&guard) {
            guard = told.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
    #[cfg(not(loom))]
    if !is_so(&guard) {
        drop(guard);
        crate::base::observe::before_lock(|| try_lock(mutex).is_some_and(|guarded| is_so(&guarded)));
        guard = lock(mutex);
        while !is_so(&guard) {
            told.wait(&mut guard);
        }
    }
    guard
}

/// The shortest pause of a thread that waits for another one, which does not tell when it has ended.
#[cfg(not(loom))]
pub(crate) const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// Sleeps for the shortest pause. In a model it is the other thread's turn.
pub(crate) fn nap() {
    #[cfg(loom)]
    yield_now();
    #[cfg(not(loom))]
    std::thread::sleep(NAP);
}

/// As [`lock`], for a mutex of the ends, which the model checker does not run.
pub(crate) fn lock_std<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `test` in every way there is with at most this number of preemptions. Returns how often that was.
#[cfg(all(loom, test))]
pub(crate) fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) -> u64 {
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            test();
        });
    }));
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    executions
}

/// Loom (0.7) tries pairs of accesses in both orders, but of each atomic it remembers only the last
/// access. If a thread loads a word and then stores it, its own load hides that the other thread
/// had loaded the word before. Loom then never tries the store before that load. So each load is
/// also a store, to an atomic that the other thread stores to whenever it stores the word.
///
/// For models of two threads: the one that makes the word, and one other.
#[cfg(loom)]
mod checked {
    use super::Ordering;
    use loom::{sync::atomic::AtomicU64 as Word, thread::ThreadId, thread::current};

    #[derive(Debug)]
    pub(crate) struct AtomicU64 {
        word: Word,
        maker: ThreadId,
        /// Stored to at loads, one for each thread.
        loads: [Word; 2],
    }

    impl Default for AtomicU64 {
        fn default() -> AtomicU64 {
            AtomicU64::new(0)
        }
    }

    impl AtomicU64 {
        pub fn new(value: u64) -> AtomicU64 {
            AtomicU64 { word: Word::new(value), maker: current().id(), loads: Default::default() }
        }

        fn me(&self) -> usize {
            usize::from(current().id() == self.maker)
        }

        fn to_store(&self) -> &Word {
            self.loads[1 - self.me()].store(0, Ordering::Relaxed);
            &self.word
        }

        pub fn load(&self, order: Ordering) -> u64 {
            self.loads[self.me()].store(0, Ordering::Relaxed);
            self.word.load(order)
        }

        pub fn store(&self, value: u64, order: Ordering) {
            self.to_store().store(value, order);
        }

        pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.to_store().fetch_add(value, order)
        }

        pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.to_store().fetch_sub(value, order)
        }

        pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.to_store().fetch_or(value, order)
        }

        pub fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
            self.to_store().fetch_min(value, order)
        }

        pub fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.to_store().fetch_and(value, order)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A thread that panics while it holds a lock keeps no other thread from it. The guarded value
    /// is as that thread left it.
    #[test]
    fn a_lock_outlives_a_panic() {
        let mutex = Mutex::new(1);
        let ended = std::thread::scope(|scope| {
            let dying = scope.spawn(|| {
                let mut guard = lock(&mutex);
                *guard += 1;
                panic!("on purpose");
            });
            dying.join()
        });
        assert!(ended.is_err());
        assert_eq!(try_lock(&mutex).as_deref(), Some(&2));
        assert_eq!(*lock(&mutex), 2);
    }
}
