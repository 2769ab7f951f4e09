//! GETs of many keys.

#![allow(unsafe_code)]

use super::{Client, closed};
use crate::calls::made;
use crate::convert::{Held, extracted};
use crate::error::{Classed, error_at, told};
use crate::keys::{CHUNK, Items, check_lengths};
use oneread::error::KeyError;
use oneread::{BatchAnswer, GetError};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::PyList;
use std::ops::ControlFlow;

/// From so many keys in one buffer on, they are looked for without the interpreter's lock. To give it back and take it
/// again costs some 100 ns; but another thread that has it meanwhile may keep it for 5 ms.
const DETACHED: usize = 2048;
/// After so many, some milliseconds, it is looked whether the program is to be interrupted.
const UNINTERRUPTED: usize = 32 * CHUNK;

/// What was wrong with one key.
enum Wrong {
    /// The library says so.
    Key { number: usize, error: KeyError },
    /// The value is longer than its row.
    Row { number: usize, given: usize, has: usize },
    /// Python has raised something.
    Raised,
}

impl Wrong {
    #[cold]
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Wrong::Key { number, error } => {
                error_at(py, error.class(), format!("key {number}: {}", told(&error)), number)
            }
            Wrong::Row { number, given, has } => {
                let text = format!(
                    "key {number}: the value is {given} bytes long, and a row has {has}; give longer ones"
                );
                let error = error_at(py, "TooShort", text, number);
                match error.value(py).setattr("needed", given) {
                    Ok(()) => error,
                    Err(other) => other,
                }
            }
            Wrong::Raised => PyErr::fetch(py),
        }
    }
}

/// How far a look for many keys has come.
enum Stop {
    Wrong(Wrong),
    Get,
}

/// Looks for the keys of a chunk, which begins with this number. Returns how many were found.
#[inline]
fn look_for_chunk<K: AsRef<[u8]>>(
    client: &mut oneread::Client,
    keys: &[K],
    from: usize,
    each: &mut impl FnMut(usize, BatchAnswer<'_>) -> Result<bool, Wrong>,
) -> Result<ControlFlow<Wrong, usize>, GetError> {
    let mut found = 0;
    let flow = client.get_many_with(keys, |number, answer| match each(from + number, answer) {
        Ok(is_found) => {
            found += usize::from(is_found);
            ControlFlow::Continue(())
        }
        Err(wrong) => ControlFlow::Break(wrong),
    })?;
    Ok(match flow {
        ControlFlow::Continue(()) => ControlFlow::Continue(found),
        ControlFlow::Break(wrong) => ControlFlow::Break(wrong),
    })
}

impl Client {
    /// Looks for some of many keys, with the interpreter's lock. Each answer comes with the key's number, perhaps more
    /// than once. Returns how many were found.
    fn look_attached(
        &self,
        py: Python<'_>,
        keys: &Items<'_>,
        range: std::ops::Range<usize>,
        each: &mut impl FnMut(usize, BatchAnswer<'_>) -> Result<bool, Wrong>,
    ) -> PyResult<usize> {
        let key_max = self.longest_key(py)?;
        let mut found = 0;
        for from in range.clone().step_by(CHUNK) {
            let many = CHUNK.min(range.end - from);
            let objects = keys.some(from, many)?;
            let slices = keys.bytes(py, from, many, &objects, "key")?;
            check_lengths(py, &slices, from, key_max)?;
            match self.look(py, |client| look_for_chunk(client, &slices, from, each))? {
                ControlFlow::Continue(more) => found += more,
                ControlFlow::Break(wrong) => return Err(wrong.raise(py)),
            }
            if (from - range.start) % UNINTERRUPTED == UNINTERRUPTED - CHUNK {
                py.check_signals()?;
            }
        }
        Ok(found)
    }

    /// Like `look_attached`, for all of them. Where they are many, and one buffer, without the interpreter's lock.
    fn look_for(
        &self,
        py: Python<'_>,
        keys: &Items<'_>,
        each: &mut (impl FnMut(usize, BatchAnswer<'_>) -> Result<bool, Wrong> + Send),
    ) -> PyResult<usize> {
        let &Items::Fixed { ref held, width, count } = keys else {
            return self.look_attached(py, keys, 0..keys.len(), each);
        };
        if count < DETACHED || width > self.longest_key(py)? {
            return self.look_attached(py, keys, 0..count, each);
        }
        // Others may write to the buffer meanwhile.
        let bytes = held.bytes(py).to_vec();
        let (mut from, mut found) = (0, 0);
        while from < count {
            let until = count.min(from + UNINTERRUPTED);
            let handles = self.handles(py)?;
            let part = &bytes[from * width..until * width];
            let (first, each_of) = (from, &mut *each);
            let looked = py.detach(|| {
                handles.wait_with(|client| {
                    let (mut from, mut found) = (first, 0);
                    for chunk in part.chunks(CHUNK * width) {
                        let keys: Vec<&[u8]> = chunk.chunks_exact(width).collect();
                        match look_for_chunk(client, &keys, from, each_of) {
                            Ok(ControlFlow::Continue(more)) => found += more,
                            Ok(ControlFlow::Break(wrong)) => return (from, found, Some(Stop::Wrong(wrong))),
                            Err(_) => return (from, found, Some(Stop::Get)),
                        }
                        from += keys.len();
                    }
                    (from, found, None)
                })
            });
            let (done, more, stop) = looked.ok_or_else(|| closed(py))?;
            (from, found) = (done, found + more);
            match stop {
                None => {}
                Some(Stop::Wrong(wrong)) => return Err(wrong.raise(py)),
                // It may pass, or a server may have to be started: that look says so.
                Some(Stop::Get) => {
                    let end = count.min(from + CHUNK);
                    found += self.look_attached(py, keys, from..end, each)?;
                    from = end;
                }
            }
            py.check_signals()?;
        }
        Ok(found)
    }
}

/// Rows of the caller's, one for each key, and where it wants to know which were found.
#[derive(Clone, Copy)]
struct Rows {
    start: *mut u8,
    width: usize,
    found: *mut u8,
}

// SAFETY: it is memory, which nobody else uses during the call, whatever thread writes to it.
unsafe impl Send for Rows {}

impl Rows {
    /// Takes the answer for one key. What a row has more than the value is 0.
    ///
    /// # Safety
    /// The memory for this number is there, and nobody else uses it.
    #[inline(always)]
    unsafe fn take(self, number: usize, answer: BatchAnswer<'_>) -> Result<bool, Wrong> {
        let value = match answer {
            Ok(value) => value,
            Err(error) => return Err(Wrong::Key { number, error }),
        };
        let is_found = value.is_some();
        let value = value.unwrap_or_default();
        if value.len() > self.width && !self.start.is_null() {
            return Err(Wrong::Row { number, given: value.len(), has: self.width });
        }
        // SAFETY: the caller has said so, and the value is no longer than the row.
        unsafe {
            if !self.start.is_null() {
                let row = self.start.add(number * self.width);
                row.copy_from_nonoverlapping(value.as_ptr(), value.len());
                row.add(value.len()).write_bytes(0, self.width - value.len());
            }
            if !self.found.is_null() {
                self.found.add(number).write(u8::from(is_found));
            }
        }
        Ok(is_found)
    }
}

/// A buffer of one byte for each key.
fn one_each(object: &Bound<'_, PyAny>, what: &str, count: usize) -> PyResult<Held> {
    let held = Held::writable(object, what)?;
    if held.len() != count {
        let text = format!("{what} has {} bytes, and there are {count} keys; give one for each", held.len());
        return Err(PyValueError::new_err(text));
    }
    Ok(held)
}

#[pyo3::pymethods]
impl Client {
    /// The values of many keys, in order: `None` for each that is absent.
    #[pyo3(signature = (keys, /, *, width=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = Items::of(keys, width, "keys")?;
        // SAFETY: the interpreter's lock is held.
        let list = unsafe { ffi::PyList_New(keys.len() as ffi::Py_ssize_t) };
        // SAFETY: it is null, or a new reference to a list. Its items are null, and nobody uses it before all are there.
        let list = unsafe { Bound::from_owned_ptr_or_err(py, list)? };
        let mut take = |number: usize, answer: BatchAnswer<'_>| {
            let (value, is_found) = match answer {
                // SAFETY: so many bytes are there.
                Ok(Some(value)) => unsafe {
                    (
                        ffi::PyBytes_FromStringAndSize(value.as_ptr().cast(), value.len() as ffi::Py_ssize_t),
                        true,
                    )
                },
                Ok(None) => (py.None().into_ptr(), false),
                Err(error) => return Err(Wrong::Key { number, error }),
            };
            if value.is_null() {
                return Err(Wrong::Raised);
            }
            // SAFETY: the list has an item of this number, and takes the reference. One that is there, of a look that was
            // inconclusive, it drops.
            unsafe { ffi::PyList_SetItem(list.as_ptr(), number as ffi::Py_ssize_t, value) };
            Ok(is_found)
        };
        self.look_attached(py, &keys, 0..keys.len(), &mut take)?;
        Ok(list)
    }

    /// The values of many keys land in `out`, each in a row of its own: as many rows as there are keys. What a row has
    /// more than its value is 0, and so is all of it where the key is absent. Returns how many were found.
    ///
    /// `found`: a buffer of one byte, or bool, for each key, which tells whether it was found.
    #[pyo3(signature = (keys, out, /, *, width=None, found=None))]
    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        width: Option<usize>,
        found: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let keys = Items::of(keys, width, "keys")?;
        let count = keys.len();
        let out = Held::writable(out, "out")?;
        let found = found.map(|found| one_each(found, "found", count)).transpose()?;
        let width = out.len().checked_div(count).unwrap_or(0);
        if width * count != out.len() || (width == 0 && count > 0) {
            let text = format!("out has {} bytes, which are no {count} rows, one for each key", out.len());
            return Err(PyValueError::new_err(text));
        }
        let rows = Rows {
            start: out.start(),
            width,
            found: found.as_ref().map_or(std::ptr::null_mut(), Held::start),
        };
        self.look_for(py, &keys, &mut move |number, answer| {
            let rows = rows;
            // SAFETY: there is a row for each key, and a byte where that is asked for; both buffers are held during the
            // call, and who calls has said that nobody else uses them.
            unsafe { rows.take(number, answer) }
        })
    }

    /// Which of many keys are in the table: one bool for each, in `out`, or in a new NumPy array; in a bytearray where
    /// there is no NumPy.
    #[pyo3(signature = (keys, /, *, width=None, out=None))]
    fn contains_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        width: Option<usize>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = Items::of(keys, width, "keys")?;
        let out = match out {
            Some(out) => out,
            None => made(py, "found_bools", (keys.len(),))?,
        };
        let held = one_each(&out, "out", keys.len())?;
        let rows = Rows { start: std::ptr::null_mut(), width: 0, found: held.start() };
        self.look_for(py, &keys, &mut move |number, answer| {
            let rows = rows;
            // SAFETY: there is a byte for each key; the buffer is held during the call, and who calls has said that nobody
            // else uses it.
            unsafe { rows.take(number, answer) }
        })?;
        Ok(out)
    }

    /// Which of many keys still have the entries of these numbers (`life`): one bool for each.
    #[pyo3(signature = (keys, numbers, /, *, width=None))]
    fn revalidate<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        numbers: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = Items::of(keys, width, "keys")?;
        let numbers: Vec<u64> = extracted(numbers, "numbers")?;
        if numbers.len() != keys.len() {
            let text =
                format!("there are {} numbers, and {} keys; give one for each", numbers.len(), keys.len());
            return Err(PyValueError::new_err(text));
        }
        let all = PyList::empty(py);
        for from in (0..keys.len()).step_by(CHUNK) {
            let many = CHUNK.min(keys.len() - from);
            let objects = keys.some(from, many)?;
            let slices = keys.bytes(py, from, many, &objects, "key")?;
            let numbers = &numbers[from..from + many];
            let are_same = self.look(py, |client| client.revalidate(&slices, numbers))?;
            are_same.into_iter().try_for_each(|is_same| pyo3::types::PyListMethods::append(&all, is_same))?;
        }
        Ok(all.into_any())
    }
}
