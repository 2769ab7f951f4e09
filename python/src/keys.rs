//! Many keys, or values, of one call: one contiguous buffer of items with one width, or a sequence of bytes.

use crate::calls;
use crate::convert::{Held, bytes_of, has_buffer};
use crate::error::error_at;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python};
use pyo3::types::{PyBytes, PyList, PyListMethods, PyTuple, PyTupleMethods};
use std::borrow::Cow;

/// So many are looked for together.
pub(crate) const CHUNK: usize = 512;

/// Many keys, or values.
pub(crate) enum Items<'py> {
    Fixed { held: Held, width: usize, count: usize },
    List(Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
}

impl<'py> Items<'py> {
    /// Those of `object`. `width`: what the caller says that each has.
    pub fn of(object: &Bound<'py, PyAny>, width: Option<usize>, what: &str) -> PyResult<Items<'py>> {
        if let Ok(list) = object.cast::<PyList>() {
            return Ok(Items::List(list.clone()));
        }
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return Ok(Items::Tuple(tuple.clone()));
        }
        if object.is_instance_of::<pyo3::types::PyString>() {
            return Err(PyTypeError::new_err(format!(
                "{what} are bytes, or one buffer of them, not str; encode them"
            )));
        }
        let is_buffer = object.is_instance_of::<PyBytes>() || has_buffer(object);
        if !is_buffer {
            return Ok(Items::List(calls::list(object)?));
        }
        let held = Held::new(object, what)?;
        let buffer = held.shape();
        let len = buffer.len_bytes();
        if buffer.format().to_bytes().ends_with(b"w") {
            return Err(PyTypeError::new_err(format!("{what} are text, and have to be bytes; encode them")));
        }
        let natural = match buffer.dimensions() {
            0 | 1 if buffer.item_size() > 1 => Some(buffer.item_size()),
            0 | 1 => None,
            _ => len.checked_div(buffer.shape()[0]),
        };
        let argument = if what == "values" { "value_width" } else { "width" };
        let width = match (width, natural) {
            (Some(width), Some(natural)) if width != natural && len > 0 => {
                return Err(PyValueError::new_err(format!(
                    "{what} have {natural} bytes each, and {argument} is {width}"
                )));
            }
            (Some(0), _) => {
                return Err(PyValueError::new_err(format!(
                    "{what} have 0 bytes each ({argument}); give 1 or more"
                )));
            }
            (Some(width), _) | (None, Some(width)) => width,
            (None, None) if len == 0 => 1,
            (None, None) => {
                return Err(PyTypeError::new_err(format!(
                    "{what} are one buffer of single bytes; say how long each is ({argument})"
                )));
            }
        };
        let count = len.checked_div(width).unwrap_or(0);
        if count * width != len {
            return Err(PyValueError::new_err(format!(
                "{what} have {len} bytes in all, no multiple of {width} ({argument})"
            )));
        }
        Ok(Items::Fixed { held, width, count })
    }

    pub fn len(&self) -> usize {
        match self {
            Items::Fixed { count, .. } => *count,
            Items::List(list) => list.len(),
            Items::Tuple(tuple) => tuple.len(),
        }
    }

    /// Some of them, from `from` on, kept alive. Fewer than `count` where a list was made shorter meanwhile.
    pub fn some(&self, from: usize, count: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        match self {
            Items::Fixed { .. } => Ok(Vec::new()),
            Items::List(list) => (from..from + count).map(|nth| list.get_item(nth)).collect(),
            Items::Tuple(tuple) => (from..from + count).map(|nth| tuple.get_item(nth)).collect(),
        }
    }

    /// The bytes of some of them. `some` are the objects that have them.
    pub fn bytes<'a>(
        &'a self,
        py: Python<'a>,
        from: usize,
        count: usize,
        some: &'a [Bound<'py, PyAny>],
        what: &str,
    ) -> PyResult<Vec<Cow<'a, [u8]>>> {
        match self {
            Items::Fixed { held, width, .. } => {
                let bytes = &held.bytes(py)[from * width..(from + count) * width];
                Ok(bytes.chunks_exact(*width).map(Cow::Borrowed).collect())
            }
            Items::List(_) | Items::Tuple(_) => bytes_of_each(some, from, what),
        }
    }

    /// All of them, where nobody changes them.
    pub fn keep(&self, py: Python<'py>) -> PyResult<Kept<'py>> {
        Ok(match self {
            Items::Fixed { held, width, .. } => {
                Kept::Copied { bytes: held.bytes(py).to_vec(), width: *width }
            }
            sequence => Kept::Objects(sequence.some(0, sequence.len())?),
        })
    }
}

/// Many keys, or values, where nobody changes them.
pub(crate) enum Kept<'py> {
    Copied { bytes: Vec<u8>, width: usize },
    Objects(Vec<Bound<'py, PyAny>>),
}

impl Kept<'_> {
    /// Their bytes.
    pub fn bytes(&self, what: &str) -> PyResult<Vec<Cow<'_, [u8]>>> {
        match self {
            Kept::Copied { bytes, width } => Ok(bytes.chunks_exact(*width).map(Cow::Borrowed).collect()),
            Kept::Objects(objects) => bytes_of_each(objects, 0, what),
        }
    }
}

/// A key with its value.
pub(crate) type Pair<'k> = (Cow<'k, [u8]>, Cow<'k, [u8]>);

/// Many keys with their values, where nobody changes them. Refuses them if there are more of one.
pub(crate) fn kept_pairs<'py>(
    py: Python<'py>,
    keys: &Items<'py>,
    values: &Items<'py>,
) -> PyResult<(Kept<'py>, Kept<'py>)> {
    if keys.len() != values.len() {
        let text = format!("there are {} keys, and {} values; give one for each", keys.len(), values.len());
        return Err(PyValueError::new_err(text));
    }
    Ok((keys.keep(py)?, values.keep(py)?))
}

/// The keys with their values.
pub(crate) fn pairs_of<'k>((keys, values): &'k (Kept<'_>, Kept<'_>)) -> PyResult<Vec<Pair<'k>>> {
    Ok(keys.bytes("key")?.into_iter().zip(values.bytes("value")?).collect())
}

/// The bytes of some objects, the first of which has this number.
fn bytes_of_each<'a>(
    objects: &'a [Bound<'_, PyAny>],
    from: usize,
    what: &str,
) -> PyResult<Vec<Cow<'a, [u8]>>> {
    let bytes = objects.iter().enumerate().map(|(nth, object)| {
        bytes_of(object, what).inspect_err(|error| {
            let _ = error.value(object.py()).call_method1("add_note", (format!("{what} {}", from + nth),));
        })
    });
    bytes.collect()
}

/// Refuses keys of lengths that the table does not take, before anything is done.
pub(crate) fn check_lengths<'a>(
    py: Python<'_>,
    keys: impl IntoIterator<Item = &'a Cow<'a, [u8]>>,
    from: usize,
    max: usize,
) -> PyResult<()> {
    let mut lengths = keys.into_iter().map(|key| key.len()).enumerate();
    match lengths.find(|(_, length)| !(1..=max).contains(length)) {
        None => Ok(()),
        Some((nth, given)) => Err(wrong_length(py, from + nth, given, max)),
    }
}

#[cold]
pub(crate) fn wrong_length(py: Python<'_>, position: usize, given: usize, max: usize) -> pyo3::PyErr {
    let why = oneread::GetError::KeyLength { given, max };
    error_at(py, "KeyTooLong", format!("key {position}: {why}"), position)
}
