//! Atomics and locks: the standard library's, or loom's when the local parts are model-checked
//! (`RUSTFLAGS="--cfg loom"`). The algorithms are the same text either way.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(all(loom, any(feature = "verbs", test)))]
pub(crate) use loom::{hint::spin_loop, thread::yield_now};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(all(not(loom), any(feature = "verbs", test)))]
pub(crate) use std::{hint::spin_loop, thread::yield_now};

/// Locks `mutex`, also after a thread panicked while holding it: what the locks here guard is valid
/// between any two writes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
