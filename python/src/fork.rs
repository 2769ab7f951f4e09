//! Which process this is, for a load: a child made by `fork` has another number than its parent.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a process has become a child, from the first on that has loaded this module.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn is_child() {
    // Relaxed: a child begins with one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// From now on, children are counted.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays as long as the process, since no extension is ever unloaded, and what it does may
        // be done in a child of a process with threads.
        unsafe { libc::pthread_atfork(None, None, Some(is_child)) };
    });
}

/// The number of this process.
#[inline]
pub(crate) fn process() -> u64 {
    // Relaxed: as above.
    FORKS.load(Ordering::Relaxed)
}
