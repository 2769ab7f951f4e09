//! Calls of what is written in Python: by a program, or in `oneread/_types.py`.
//!
//! While it runs, a thread may give the interpreter's lock away. If the interpreter ends meanwhile, CPython before 3.14
//! ends each thread that wants the lock back by unwinding its stack (`pthread_exit`), and a frame of Rust with anything
//! to drop answers that by an abort of the process. So a thread stops at the call instead, as it does where PyO3 takes
//! the lock by itself, and goes with the process.

#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::{Bound, IntoPyObject, Py, PyAny, PyAnyMethods, PyErr, PyModule, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use std::hint::black_box;
use std::mem::{forget, transmute};
use std::time::Duration;

/// Dropped where the stack is unwound by others than Rust. The thread goes no further, without the interpreter's lock.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}

/// `callable(*arguments)`.
///
/// # Errors
/// What it raises.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    type Plain = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
    type Unwinds = unsafe extern "C-unwind" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
    let py = callable.py();
    let arguments = arguments.into_pyobject(py)?;
    // The compiler must not see which function it is, because PyO3 has declared that it does not unwind.
    let function: Plain = black_box(ffi::PyObject_CallObject);
    // SAFETY: both types are of one way to call.
    let function = unsafe { transmute::<Plain, Unwinds>(function) };
    let stop = Stop;
    // SAFETY: the interpreter's lock is held, and both are objects.
    let made = unsafe { function(callable.as_ptr(), arguments.as_ptr()) };
    forget(stop);
    // SAFETY: it is null, or a new reference.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// What a class or a function of `oneread/_types.py` makes of these.
///
/// # Errors
/// What it raises.
pub(crate) fn made<'py>(
    py: Python<'py>,
    name: &str,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    static TYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let types = TYPES.get_or_try_init(py, || PyModule::import(py, "oneread._types").map(Bound::unbind))?;
    call(&types.bind(py).getattr(name)?, arguments)
}

/// All that an iterable gives.
///
/// # Errors
/// What it raises.
pub(crate) fn list<'py>(iterable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let list = iterable.py().get_type::<PyList>();
    Ok(call(&list, (iterable,))?.cast_into::<PyList>()?)
}
