//! GETs of one key.

#![allow(unsafe_code)]

use super::Client;
use crate::calls::made;
use crate::convert::{Held, bytes_of};
use crate::error::error_of;
use crate::plain;
use crate::sinks::BytesSink;
use oneread::sink::{LengthSink, SliceOutcome, SliceSink};
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyResult, Python};
use pyo3::types::{PyString, PyStringMethods};

#[pyo3::pymethods]
impl Client {
    /// The value of `key`, or `default` if it is absent.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes_of(key, "a key")?;
        let found = self.look(py, |client| {
            let mut value = BytesSink::new(py);
            let is_found = client.get_into(&key, &mut value)?;
            Ok(is_found.then_some(value))
        })?;
        match found {
            Some(value) => Ok(Some(value.into_bytes()?.into_any())),
            None => Ok(default),
        }
    }

    /// The value of a text, or `default` if it is absent, for the codecs `"plain"` and `"pickle"`. What is not theirs alone,
    /// what has something before it, and what cannot be read, is for `otherwise`, which is given the key and the entry.
    #[pyo3(name = "_value", signature = (key, default, codec, otherwise, /))]
    fn value<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyString>,
        default: Bound<'py, PyAny>,
        codec: &Bound<'py, PyString>,
        otherwise: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let raw = key.to_str()?.as_bytes();
        let found = self.look(py, |client| {
            let mut value = BytesSink::new(py);
            let is_found = client.get_into(raw, &mut value)?;
            Ok(is_found.then_some(value))
        })?;
        let Some(found) = found else { return Ok(default) };
        let stored = found.into_bytes()?;
        match plain::usual(&stored, codec)? {
            Some(value) => Ok(value),
            None => otherwise.call1((key, stored)),
        }
    }

    /// Whether the key is in the table.
    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        if self.options.encryption.is_some() {
            return self.look(py, |client| client.contains(&key));
        }
        self.look(py, |client| Ok(client.get_into(&key, &mut LengthSink::default())?.is_some()))
    }

    /// The value of `key` lands at the beginning of `buffer`. Its length; `None` if the key is absent.
    #[pyo3(signature = (key, buffer, /))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let key = bytes_of(key, "a key")?;
        let held = Held::writable(buffer, "the buffer")?;
        let outcome = self.look(py, |client| {
            // SAFETY: the buffer is there and can be written as long as it is held, and who calls has said that nobody
            // else uses it meanwhile: the interpreter's lock is held.
            let mut memory = unsafe { SliceSink::from_raw(held.start(), held.len()) };
            client.get_into(&key, &mut memory)
        })?;
        match outcome {
            SliceOutcome::Value(len) => Ok(Some(len)),
            SliceOutcome::Absent => Ok(None),
            SliceOutcome::TooLong(needed) => {
                let has = held.len();
                let text =
                    format!("the value is {needed} bytes long, and the buffer has {has}; give a longer one");
                let error = error_of(py, "TooShort", text);
                error.value(py).setattr("needed", needed)?;
                Err(error)
            }
        }
    }

    /// The length of the value of `key`; `None` if the key is absent.
    #[pyo3(signature = (key, /))]
    fn value_len(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let key = bytes_of(key, "a key")?;
        self.look(py, |client| client.value_len(&key))
    }

    /// The entry's number, its owner and the seconds that it still lives; `None` if the key is absent, or entries of
    /// this table have no life.
    #[pyo3(signature = (key, /))]
    fn life(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let key = bytes_of(key, "a key")?;
        let life = self.look(py, |client| {
            let life = client.life(&key)?;
            Ok(life.map(|life| (life, client.ends_in(&life))))
        })?;
        let Some((life, ends_in)) = life else { return Ok(None) };
        made(py, "Life", (life.number, life.owner, ends_in.map(|left| left.as_secs_f64())))
            .map(|life| Some(life.unbind()))
    }
}
