//! Atomics and locks: the standard library's, or loom's when the local parts are model-checked
//! (`RUSTFLAGS="--cfg loom"`). The algorithms are the same text either way.

#[cfg(loom)]
pub(crate) use self::checked::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering, fence},
};
#[cfg(all(loom, any(feature = "verbs", test)))]
pub(crate) use loom::{hint::spin_loop, thread::yield_now};
#[cfg(not(any(loom, target_arch = "aarch64")))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(all(not(loom), any(feature = "verbs", test)))]
pub(crate) use std::{hint::spin_loop, thread::yield_now};

/// A fence that also orders what devices see (docs/HARDWARE.md, H3): on aarch64 the language's release fence
/// is `dmb ish`, which need not reach a NIC.
#[cfg(all(not(loom), target_arch = "aarch64"))]
#[allow(unsafe_code)]
#[inline]
pub(crate) fn fence(order: Ordering) {
    std::sync::atomic::fence(order);
    if order == Ordering::Release {
        // SAFETY: a barrier; it touches neither registers nor memory.
        unsafe { std::arch::asm!("dmb osh", options(nostack, preserves_flags)) };
    }
}

/// Locks `mutex`, also after a thread panicked while holding it: what the locks here guard is valid
/// between any two writes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(loom))]
    crate::observe::before_lock(|| !matches!(mutex.try_lock(), Err(std::sync::TryLockError::WouldBlock)));
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Loom (0.7) looks for pairs of accesses to try the other way round, but it remembers one access of an
/// atomic, the last. A thread that loads a word and then stores it thus hides, by its own load, that the
/// other thread had loaded it before, and the store is never tried before that load. So a load is told to
/// loom as a store, too, to an atomic that the other thread stores to whenever it stores the word.
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
        /// Loads of either thread.
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
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A thread that panics while it holds a lock keeps nobody else from it, and what it guards is as that
    /// thread left it.
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
        assert_eq!(*lock(&mutex), 2);
        assert!(mutex.is_poisoned());
    }
}
