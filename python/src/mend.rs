//! Servers that are started again where none is there: those of a `SharedDict`, also for its `client`.

use crate::calls;
use crate::error::class_named;
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};

/// How often one call has a server started.
const MENDS: usize = 2;

/// What starts a server: a function of the program's, which is given the error. It raises one where it cannot.
pub(crate) struct Mender(Py<PyAny>);

impl Mender {
    pub fn new(function: Bound<'_, PyAny>) -> Mender {
        Mender(function.unbind())
    }

    pub fn another(&self, py: Python<'_>) -> Mender {
        Mender(self.0.clone_ref(py))
    }

    /// What the call gives. Where no server is there, one is started, and the call is made again; but not if its change
    /// may have been made.
    #[inline]
    pub fn mending<R>(
        mender: Option<&Mender>,
        py: Python<'_>,
        mut call: impl FnMut() -> PyResult<R>,
    ) -> PyResult<R> {
        match (call(), mender) {
            (Err(error), Some(mender)) => mender.again(py, error, call),
            (done, _) => done,
        }
    }

    #[cold]
    fn again<R>(
        &self,
        py: Python<'_>,
        mut error: PyErr,
        mut call: impl FnMut() -> PyResult<R>,
    ) -> PyResult<R> {
        let disconnected = class_named(py, "Disconnected")?;
        for _ in 0..MENDS {
            if !error.is_instance(py, &disconnected) {
                break;
            }
            calls::call(self.0.bind(py), (error.value(py),))?;
            if error.value(py).getattr("maybe_made")?.extract()? {
                break;
            }
            error = match call() {
                Err(error) => error,
                done => return done,
            };
        }
        Err(error)
    }
}
