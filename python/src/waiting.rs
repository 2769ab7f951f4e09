//! What waits, without the interpreter's lock: a signal that the program wants to hear of ends it.

use pyo3::prelude::{PyErr, PyResult, Python};
use std::cell::RefCell;

thread_local!(static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) });

/// Runs the handlers of signals that have come. Whether one has raised something.
fn is_interrupted() -> bool {
    // `None`: the interpreter ends. Then nobody wants anything.
    let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) else { return false };
    RAISED.set(Some(error));
    true
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
