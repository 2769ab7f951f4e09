//! What Python gives as digests: one buffer, or a sequence of buffers, of numbers or of texts.

use crate::calls;
use crate::convert::has_buffer;
use crate::error::Raise;
use crate::keys::Items;
use oneread_prefix::{Digests, Key, PrefixError};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python};
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyStringMethods, PyTypeMethods};
use std::borrow::Cow;

/// What the items of a sequence are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    Number,
    Text,
}

impl Kind {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Kind> {
        Ok(if object.is_instance_of::<PyBytes>() {
            Kind::Bytes
        } else if object.is_instance_of::<PyString>() {
            Kind::Text
        } else if object.is_instance_of::<PyBool>() {
            Kind::Bytes
        } else if object.is_instance_of::<PyInt>() {
            Kind::Number
        } else if object.hasattr("__index__")? && !object.hasattr("__len__")? {
            // A number of NumPy's. An array has a length besides.
            Kind::Number
        } else {
            Kind::Bytes
        })
    }
}

/// What the items of a buffer are.
enum Form {
    /// Bytes of digests, or numbers of 64 bits as the machine has them.
    Digests,
    /// Text, objects, or numbers of the other byte order: each is to be looked at.
    Items,
    /// Numbers that are no digests, and why not.
    No(&'static str),
}

/// The keys of blocks: of one contiguous buffer of digests, of many buffers, of numbers of 64 bits, or of texts. They are
/// copied, because others may write to a buffer meanwhile.
pub(super) fn keys_of(
    py: Python<'_>,
    digests: &Bound<'_, PyAny>,
    width: Option<usize>,
    secret: &[u8; 16],
) -> PyResult<Vec<Key>> {
    if Kind::of(digests)? != Kind::Bytes {
        let text = "digests are many: give a list, also of one";
        return Err(PyTypeError::new_err(text));
    }
    if has_buffer(digests) {
        match form_of(digests)? {
            Form::Digests => {}
            Form::Items => return of_items(py, &Items::List(calls::list(digests)?), secret),
            Form::No(why) => return Err(PyTypeError::new_err(why)),
        }
    }
    match Items::of(digests, width, "digests")? {
        Items::Fixed { count: 0, .. } => Ok(Vec::new()),
        Items::Fixed { held, width, .. } => {
            let digests = Digests::packed(held.bytes(py), width).map_err(PrefixError::from).raise(py)?;
            Ok(digests.keys().to_vec())
        }
        sequence @ (Items::List(_) | Items::Tuple(_)) => of_items(py, &sequence, secret),
    }
}

/// By the format that Python's module `struct` describes.
fn form_of(buffer: &Bound<'_, PyAny>) -> PyResult<Form> {
    let buffer = PyUntypedBuffer::get(buffer)?;
    let format = buffer.format().to_bytes();
    let is_other_order = match format.first() {
        Some(b'>' | b'!') => cfg!(target_endian = "little"),
        Some(b'<') => cfg!(target_endian = "big"),
        Some(_) | None => false,
    };
    Ok(match format.last() {
        Some(b'w' | b'O') => Form::Items,
        Some(b'e' | b'f' | b'd' | b'g') => {
            Form::No("digests are floats, which hold no number of 64 bits; give an array of uint64, or bytes")
        }
        Some(b'h' | b'H' | b'i' | b'I' | b'l' | b'L')
            if (2..8).contains(&buffer.item_size()) && buffer.dimensions() < 2 =>
        {
            Form::No(
                "digests are numbers of fewer than 64 bits; give an array of uint64 (`array.astype(\"uint64\")`)",
            )
        }
        Some(_) if is_other_order && buffer.item_size() > 1 => Form::Items,
        Some(_) | None => Form::Digests,
    })
}

/// The keys of the items of a sequence, which are all of one kind.
fn of_items(py: Python<'_>, sequence: &Items<'_>, secret: &[u8; 16]) -> PyResult<Vec<Key>> {
    let objects = sequence.some(0, sequence.len())?;
    let kinds = objects.iter().map(Kind::of).collect::<PyResult<Vec<_>>>()?;
    let Some(&kind) = kinds.first() else { return Ok(Vec::new()) };
    if let Some(other) = kinds.iter().position(|given| *given != kind) {
        let [first, given] = [&objects[0], &objects[other]].map(|object| object.get_type().name());
        let text = format!(
            "digest {other} is of type {}, and the first one of type {}; give one kind in a call",
            given?, first?
        );
        return Err(PyTypeError::new_err(text));
    }
    let digests = match kind {
        Kind::Bytes => Digests::slices(&sequence.bytes(py, 0, objects.len(), &objects, "digest")?),
        Kind::Number => {
            let numbers = objects.iter().enumerate().map(|(nth, object)| number(nth, object));
            Digests::slices(&numbers.collect::<PyResult<Vec<_>>>()?)
        }
        Kind::Text => {
            let texts = objects.iter().map(|text| text.cast::<PyString>()?.to_cow());
            let texts = texts.collect::<PyResult<Vec<Cow<'_, str>>>>()?;
            Ok(Digests::texts(&texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(), secret))
        }
    };
    Ok(digests.map_err(PrefixError::from).raise(py)?.keys().to_vec())
}

/// The bytes of a number of 64 bits, with a sign or without.
fn number(nth: usize, object: &Bound<'_, PyAny>) -> PyResult<[u8; 8]> {
    let number = object.extract::<u64>().map(u64::to_ne_bytes);
    number.or_else(|_| object.extract::<i64>().map(i64::to_ne_bytes)).map_err(|_| {
        let text = format!(
            "digest {nth} is a number of more than 64 bits; give its bytes, such as `number.to_bytes(32, \"big\")`"
        );
        PyOverflowError::new_err(text)
    })
}
