//! Values that land in objects of Python's.

#![allow(unsafe_code)]

use oneread::sink::Sink;
use pyo3::ffi;
use pyo3::prelude::{Bound, PyErr, PyResult, Python};
use pyo3::types::PyBytes;
use std::mem::MaybeUninit;

/// A value that becomes `bytes`, without a copy in between.
pub(crate) struct BytesSink<'py> {
    py: Python<'py>,
    /// What the value lands in. Nobody else has seen it.
    bytes: Option<Bound<'py, PyBytes>>,
    /// How many bytes of it were written.
    at: usize,
    len: usize,
}

impl<'py> BytesSink<'py> {
    #[inline]
    pub fn new(py: Python<'py>) -> BytesSink<'py> {
        BytesSink { py, bytes: None, at: 0, len: 0 }
    }

    /// The value, which the GET says was found.
    ///
    /// # Errors
    /// `MemoryError`.
    #[inline]
    pub fn into_bytes(self) -> PyResult<Bound<'py, PyBytes>> {
        match self.bytes {
            Some(bytes) if self.at == self.len => Ok(bytes),
            _ => Err(PyErr::take(self.py).unwrap_or_else(|| pyo3::exceptions::PyMemoryError::new_err(()))),
        }
    }

    /// New bytes of this length: these, or any if the pointer is null.
    #[inline]
    fn make(&mut self, from: *const u8, len: usize) {
        // SAFETY: `from` is null, or `len` bytes are there; the interpreter's lock is held.
        let made = unsafe { ffi::PyBytes_FromStringAndSize(from.cast(), len as ffi::Py_ssize_t) };
        // SAFETY: it is null, or a new reference to `bytes`.
        self.bytes =
            unsafe { Bound::from_owned_ptr_or_opt(self.py, made).map(|made| made.cast_into_unchecked()) };
    }

    /// The memory of the bytes that are not written yet.
    #[inline]
    fn rest(&mut self) -> &mut [MaybeUninit<u8>] {
        let Some(bytes) = &self.bytes else { return &mut [] };
        // SAFETY: it is `bytes`.
        let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) }.cast::<MaybeUninit<u8>>();
        // SAFETY: the object has `len` bytes, of which `at` are written, and nobody else has seen it.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.at), self.len - self.at) }
    }
}

impl Sink for BytesSink<'_> {
    type Outcome = bool;

    fn begin(&mut self, len: usize) -> bool {
        if self.bytes.is_none() || self.len != len || self.is_shared() {
            self.make(std::ptr::null(), len);
        }
        (self.at, self.len) = (0, len);
        self.bytes.is_some()
    }

    fn put(&mut self, bytes: &[u8]) {
        let to = &mut self.rest()[..bytes.len()];
        to.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = MaybeUninit::new(byte));
        self.at += bytes.len();
    }

    fn put_with(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        let memory = &mut self.rest()[..len];
        let start = memory.as_ptr().cast::<u8>();
        let filled = fill(0, memory);
        assert!(
            std::ptr::eq(filled.as_ptr(), start) && filled.len() == len,
            "the memory that was given, filled"
        );
        self.at += len;
    }

    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        let words: [[u8; 8]; N] = std::array::from_fn(|n| word(n).to_le_bytes());
        let bytes = &words.as_flattened()[..len];
        self.make(bytes.as_ptr(), len);
        (self.at, self.len) = (len, len);
    }

    fn put_none(&mut self) {
        (self.bytes, self.at, self.len) = (None, 0, 0);
    }

    fn value_len(&self) -> usize {
        self.len
    }

    fn landed(&self) -> Option<&[u8]> {
        let bytes = self.bytes.as_ref()?;
        // SAFETY: it is `bytes`, of which `at` were written.
        Some(unsafe { std::slice::from_raw_parts(ffi::PyBytes_AsString(bytes.as_ptr()).cast(), self.at) })
    }

    #[inline(always)]
    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}

impl BytesSink<'_> {
    /// Whether the interpreter has given such bytes out before: there is one empty `bytes`, and one for each byte.
    fn is_shared(&self) -> bool {
        self.len <= 1
    }
}
