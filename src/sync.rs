//! Atomics and locks: the standard library's, or loom's when the local parts are model-checked
//! (`RUSTFLAGS="--cfg loom"`). The algorithms are the same text either way.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
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
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
