//! Which process this is, for a load: a child made by `fork` has another number than its parent. And what each process
//! makes for itself.

#![allow(unsafe_code)]

use crate::error::error_of;
use pyo3::prelude::{PyErr, PyResult, Python};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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
    if made_in == process() { Ok(()) } else { Err(refused(py, what, instead)) }
}

/// What a child is told of what its parent has made.
#[cold]
pub(crate) fn refused(py: Python<'_>, what: &str, instead: &str) -> PyErr {
    let text = format!("this {what} is one of the process that has made this one (fork); {instead}");
    error_of(py, "Closed", text)
}

/// Something of which each process has its own, because threads and connections are not there in a child.
///
/// In a child, the parent's stays as it is, in memory that nobody uses: a thread that is not there may have been using
/// it, or its locks.
pub(crate) struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    process: u64,
    thing: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub fn new(thing: T) -> PerProcess<T> {
        PerProcess { made: AtomicPtr::new(PerProcess::boxed(thing)) }
    }

    fn boxed(thing: T) -> *mut Made<T> {
        Box::into_raw(Box::new(Made { process: process(), thing }))
    }

    /// This process's. In a child that has none yet, makes it by `again`, which is given the parent's.
    #[inline]
    pub fn get<E>(&self, again: impl FnOnce(&T) -> Result<T, E>) -> Result<&T, E> {
        let made = self.known();
        if made.process == process() { Ok(&made.thing) } else { self.make_again(made, again) }
    }

    /// This process's. `None` in a child that has none yet.
    pub fn own(&self) -> Option<&T> {
        let made = self.known();
        (made.process == process()).then_some(&made.thing)
    }

    #[inline]
    fn known(&self) -> &Made<T> {
        // Acquire: pairs with the release of who stored it, so it is whole.
        let made = self.made.load(Ordering::Acquire);
        // SAFETY: it came from a box. A parent's stays for ever, and this process's until `self` is dropped.
        unsafe { &*made }
    }

    #[cold]
    fn make_again<E>(&self, parents: &Made<T>, again: impl FnOnce(&T) -> Result<T, E>) -> Result<&T, E> {
        let made = PerProcess::boxed(again(&parents.thing)?);
        let parents = std::ptr::from_ref(parents).cast_mut();
        // Release: pairs with the acquiring load, so that it is whole. Acquire: another thread's is.
        if self.made.compare_exchange(parents, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was first.
            // SAFETY: it came from a box, and nobody else has it.
            drop(unsafe { Box::from_raw(made) });
        }
        Ok(&self.known().thing)
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        // SAFETY: it came from a box, and nobody else has it.
        if unsafe { (*made).process } == process() {
            // SAFETY: as above. A parent's stays.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}
