//! Which process this is, for a load: a child made by `fork` has another number than its parent.

#![allow(unsafe_code)]

use crate::error::error_of;
use pyo3::prelude::{PyResult, Python};
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

/// Refuses what only the process may use that has made it: in a child, a thread may have its lock that is not there.
///
/// # Errors
/// `Closed`, which says what it is, and what to do instead.
pub(crate) fn check(py: Python<'_>, made_in: u64, what: &str, instead: &str) -> PyResult<()> {
    if made_in == process() {
        return Ok(());
    }
    let text = format!("this {what} is one of the process that has made this one (fork); {instead}");
    Err(error_of(py, "Closed", text))
}
