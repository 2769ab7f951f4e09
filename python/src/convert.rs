//! Python's objects as the library's bytes and times.

#![allow(unsafe_code)]

use crate::error::error_of;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::{Bound, FromPyObject, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::{PyBytes, PyBytesMethods, PyString, PyTypeMethods};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// The bytes of an object. Those of `bytes` are borrowed: nothing changes them. Those of another buffer are copied,
/// because others may write to it while the interpreter's lock is not held.
#[inline]
pub(crate) fn bytes_of<'a>(object: &'a Bound<'_, PyAny>, what: &str) -> PyResult<Cow<'a, [u8]>> {
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(Cow::Borrowed(bytes.as_bytes())),
        Err(_) => Ok(Cow::Owned(Held::new(object, what)?.bytes(object.py()).to_vec())),
    }
}

/// Like `bytes_of`, where there may be none.
pub(crate) fn optional_bytes_of<'a>(
    object: Option<&'a Bound<'_, PyAny>>,
    what: &str,
) -> PyResult<Option<Cow<'a, [u8]>>> {
    object.map(|object| bytes_of(object, what)).transpose()
}

/// A contiguous buffer, which stays where it is, and as long as it is, until this is dropped.
pub(crate) struct Held(PyUntypedBuffer);

impl Held {
    /// Holds the object's buffer, so that its bytes stay where they are.
    ///
    /// # Errors
    /// `TypeError` if the object has no buffer, `BufferError` if that has gaps, or what the object raises itself.
    pub fn new(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Held> {
        let buffer = PyUntypedBuffer::get(object).map_err(|error| no_buffer(object, what, error))?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(format!(
                "{what} is in a buffer with gaps; copy it into one without (numpy.ascontiguousarray)"
            )));
        }
        if has_objects(buffer.format().to_bytes()) {
            return Err(PyTypeError::new_err(format!(
                "{what} is in a buffer of objects, and has to be bytes"
            )));
        }
        Ok(Held(buffer))
    }

    /// One that can be written to.
    pub fn writable(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Held> {
        let held = Held::new(object, what)?;
        if held.0.readonly() {
            return Err(PyBufferError::new_err(format!(
                "{what} is read-only; give a bytearray, or an array of your own"
            )));
        }
        Ok(held)
    }

    pub fn shape(&self) -> &PyUntypedBuffer {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Its bytes, for as long as the interpreter's lock is held, and nothing runs that Python may have written.
    pub fn bytes<'a>(&'a self, _py: Python<'a>) -> &'a [u8] {
        let (start, len) = (self.0.buf_ptr().cast_const().cast::<u8>(), self.len());
        if len == 0 {
            return &[];
        }
        // SAFETY: so many bytes are there, one behind the other, until the buffer is released; who writes to them does
        // so with the interpreter's lock, or breaks Python's rules for buffers.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Where its bytes are, to be written. The caller of the package has said that nobody else uses them meanwhile.
    pub fn start(&self) -> *mut u8 {
        self.0.buf_ptr().cast()
    }
}

/// Whether items of this format have pointers to objects in them. (Names of fields stand between colons.)
fn has_objects(format: &[u8]) -> bool {
    format.split(|&byte| byte == b':').step_by(2).any(|part| part.contains(&b'O'))
}

#[cold]
fn no_buffer(object: &Bound<'_, PyAny>, what: &str, error: PyErr) -> PyErr {
    let py = object.py();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let hint = if object.is_instance_of::<PyString>() { "; encode it" } else { "" };
    let name = object.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let told = PyTypeError::new_err(format!("{what} is bytes, or another buffer, not {name}{hint}"));
    told.set_cause(py, Some(error));
    told
}

/// The object as another type. An error says what it was to be.
pub(crate) fn extracted<'py, T>(object: &Bound<'py, PyAny>, what: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    object.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        let _ = error.value(object.py()).call_method1("add_note", (format!("argument {what}"),));
        error
    })
}

/// A time, given in seconds. The library adds it to the clock's.
pub(crate) fn seconds(py: Python<'_>, seconds: f64, what: &str) -> PyResult<Duration> {
    let wrong = |why: &str| error_of(py, "Invalid", format!("{what} is {seconds}: {why}; give seconds"));
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| wrong(&error.to_string()))?;
    match Instant::now().checked_add(time.saturating_mul(2)) {
        Some(_) => Ok(time),
        None => Err(wrong("no clock goes so far")),
    }
}

/// Like `seconds`, where there may be none.
pub(crate) fn optional_seconds(py: Python<'_>, given: Option<f64>, what: &str) -> PyResult<Option<Duration>> {
    given.map(|given| seconds(py, given, what)).transpose()
}

/// Whether the object has a buffer.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the interpreter's lock is held, and it is an object.
    unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}
