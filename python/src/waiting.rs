//! What waits, without the interpreter's lock: a signal that the program wants to hear of ends it.

use pyo3::prelude::{PyAnyMethods, PyErr, PyResult, Python};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

thread_local!(static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) });

/// The thread of Python that runs handlers of signals, as the system numbers it. 0: that is not known.
static MAIN: AtomicI32 = AtomicI32::new(0);

/// Notes which thread runs handlers of signals.
pub(crate) fn begin(py: Python<'_>) -> PyResult<()> {
    let main = py.import("threading")?.call_method0("main_thread")?.getattr("native_id")?;
    // Relaxed: nothing else hangs on it.
    MAIN.store(main.extract().unwrap_or(0), Ordering::Relaxed);
    Ok(())
}

/// Whether this thread may run handlers of signals. In a child made by `fork`, the process's first one does.
fn runs_handlers() -> bool {
    let (this, main) = (rustix::thread::gettid(), MAIN.load(Ordering::Relaxed));
    main == 0 || this.as_raw_nonzero().get() == main || this == rustix::process::getpid()
}

/// Runs the handlers of signals that have come. Whether one has raised something.
fn is_interrupted() -> bool {
    // It was said within this work already: one wait has ended, and who called that asks before the next.
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    // Another thread does not wait for the interpreter's lock in vain.
    if !runs_handlers() {
        return false;
    }
    // `None`: the interpreter ends. Then nobody wants anything.
    let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) else { return false };
    RAISED.set(Some(error));
    true
}

/// For work that does not wait: whether it is to go on. Looks after each hundredth of a second.
pub(crate) fn goes_on(looked: &mut Instant) -> bool {
    if looked.elapsed() < Duration::from_millis(10) {
        return true;
    }
    let goes_on = !is_interrupted();
    *looked = Instant::now();
    goes_on
}

/// Runs work that may wait for long, as [`detached`] does: a thread that runs no handlers does not wake to look for them.
///
/// # Errors
/// What a handler has raised.
pub(crate) fn detached_for_long<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    if runs_handlers() { detached(py, work) } else { Ok(py.detach(work)) }
}

/// Does work without the interpreter's lock.
///
/// # Errors
/// What a handler has raised.
#[inline]
pub(crate) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    let done = py.detach(|| oneread::internals::breaking::breakable(is_interrupted, work));
    match RAISED.take() {
        None => Ok(done),
        Some(error) => Err(error),
    }
}
