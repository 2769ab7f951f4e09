//! Changes: requests to the server.

use super::Client;
use crate::convert::{bytes_of, optional_bytes_of, seconds};
use crate::keys::{Items, check_lengths};
use crate::options;
use crate::verbs::Verbs;
use oneread::{MutateError, NewNumber, PartEffect, PutMode, PutOptions, PutOutcome, SwapOutcome};
use pyo3::prelude::{Bound, PyAny, PyResult, Python};
use std::sync::Mutex;

/// A put that was started, and is to be committed or given up.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct PutTicket {
    /// `None` once it was used.
    ticket: Mutex<Option<oneread::PutTicket>>,
    key: Vec<u8>,
}

impl PutTicket {
    fn take(&self) -> Result<oneread::PutTicket, MutateError> {
        // Who has the lock takes it, or was a thread of a parent, that had. Nobody waits.
        self.ticket.try_lock().ok().and_then(|mut ticket| ticket.take()).ok_or(MutateError::NotStarted)
    }
}

#[pyo3::pymethods]
impl PutTicket {
    /// The key.
    #[getter]
    fn key(&self) -> &[u8] {
        &self.key
    }
}

fn changes(effect: PartEffect) -> bool {
    matches!(effect, PartEffect::Inserted | PartEffect::Updated)
}

crate::puts::puts!(Client);

#[pyo3::pymethods]
impl Client {
    /// Removes the key. Whether it was there.
    #[pyo3(signature = (key, /))]
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.ask(py, |client| client.remove(&key))
    }

    /// Gives the key `value` if it has `expected`, where `None` is absence. Whether it had.
    #[pyo3(signature = (key, expected, value, /))]
    fn compare_exchange(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        let expected = optional_bytes_of(expected, "the expected value")?;
        let value = optional_bytes_of(value, "a value")?;
        let swap = |client: &mut oneread::Client| {
            client.compare_exchange(&key, expected.as_deref(), value.as_deref())
        };
        Ok(self.ask(py, swap)? == SwapOutcome::Swapped)
    }

    /// Adds to a counter, 8 bytes of value, the lowest first. What it is then. An absent key counts as `initial`; without
    /// one it stays absent, and the answer is `None`.
    #[pyo3(signature = (key, delta=1, /, *, initial=None))]
    fn add(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        delta: i64,
        initial: Option<u64>,
    ) -> PyResult<Option<u64>> {
        let key = bytes_of(key, "a key")?;
        self.ask(py, |client| client.add(&key, delta, initial))
    }

    /// Adds to a number, decimal text, from -2**63 to 2**63 - 1. What it is then. An absent key counts as `initial`, and the
    /// entry that comes lives for `ttl` seconds; without one it stays absent, and the answer is `None`.
    #[pyo3(signature = (key, delta=1, /, *, initial=None, ttl=None))]
    fn incr(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        delta: i64,
        initial: Option<i64>,
        ttl: Option<f64>,
    ) -> PyResult<Option<i64>> {
        let key = bytes_of(key, "a key")?;
        let ttl = options::ttl(py, ttl)?;
        let absent = initial.map(|value| NewNumber { value, ttl });
        self.ask(py, |client| client.incr(&key, delta, absent))
    }

    /// Has the entry end `ttl` seconds from now; without a time it lives as one that is put without. Its value stays. Whether
    /// it is there.
    #[pyo3(signature = (key, /, *, ttl=None))]
    fn touch(&self, py: Python<'_>, key: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<bool> {
        let (key, ttl) = (bytes_of(key, "a key")?, options::ttl(py, ttl)?);
        self.ask(py, |client| client.touch(&key, ttl))
    }

    /// Sets bits of the value. Whether that has changed it. An absent key gets these bits as its value.
    #[pyo3(signature = (key, bits, /))]
    fn or_(&self, py: Python<'_>, key: &Bound<'_, PyAny>, bits: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (key, bits) = (bytes_of(key, "a key")?, bytes_of(bits, "bits")?);
        self.ask(py, |client| client.or(&key, &bits)).map(changes)
    }

    /// Clears bits of the value. Whether that has changed it.
    #[pyo3(signature = (key, bits, /))]
    fn and_not(&self, py: Python<'_>, key: &Bound<'_, PyAny>, bits: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (key, bits) = (bytes_of(key, "a key")?, bytes_of(bits, "bits")?);
        self.ask(py, |client| client.and_not(&key, &bits)).map(changes)
    }

    /// Appends to the value, which may then have `len_max` bytes, or as many as the table takes. Whether that has changed
    /// it. An absent key counts as one with an empty value.
    #[pyo3(signature = (key, value, /, *, len_max=None))]
    fn append(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        len_max: Option<usize>,
    ) -> PyResult<bool> {
        let (key, value) = (bytes_of(key, "a key")?, bytes_of(value, "what is appended")?);
        self.ask(py, |client| {
            let len_max = len_max.unwrap_or_else(|| client.value_max());
            client.append(&key, &value, len_max)
        })
        .map(changes)
    }

    /// Puts many keys with their values. How many keys are new.
    ///
    /// Lengths are looked at first: where one is wrong, nothing is put. What the table has no room for is an error that
    /// names those keys, `rejected`; the others are put. After any other error, some may be put.
    #[pyo3(signature = (keys, values, /, *, ttl=None, width=None, value_width=None))]
    fn put_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        width: Option<usize>,
        value_width: Option<usize>,
    ) -> PyResult<usize> {
        let options = PutOptions::new().ttl(options::ttl(py, ttl)?);
        self.put_all(py, (keys, width), (values, value_width), |client, part, note| {
            client.put_many_with(options, part, |number, outcome| {
                note(number, outcome.map(|outcome| outcome == PutOutcome::Inserted));
            })
        })
    }

    /// Removes many keys. How many were there. Errors are as those of `put_many`.
    #[pyo3(signature = (keys, /, *, width=None))]
    fn remove_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, width: Option<usize>) -> PyResult<usize> {
        let kept = Items::of(keys, width, "keys")?.keep(py)?;
        let keys = kept.bytes("key")?;
        check_lengths(py, &keys, 0, self.longest_key(py)?)?;
        self.change_all(py, &keys, |client, part, note| client.remove_many_with(part, note))
    }

    /// Removes all keys. How many there were.
    fn clear(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, |client| client.clear())
    }

    /// Removes all entries of an owner, and the owner. Whether there was one.
    #[pyo3(signature = (number, /))]
    fn remove_owner(&self, py: Python<'_>, number: u16) -> PyResult<bool> {
        self.ask(py, |client| client.remove_owner(number))
    }

    /// Keeps the key from leaving to make room for others, until `unpin`, or the client is closed. Whether it is there.
    #[pyo3(signature = (key, /))]
    fn pin(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.mending(py, || self.ask_bound(py, |client| client.pin(&key)))
    }

    /// Takes a pin of this client away. Whether there was one.
    #[pyo3(signature = (key, /))]
    fn unpin(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.mending(py, || self.ask_bound(py, |client| client.unpin(&key)))
    }

    /// Starts a put with a value of `length` bytes: the server holds the room for it, for `within` seconds. Nobody sees
    /// it before `put_commit`.
    #[pyo3(signature = (key, length, /, *, within=10.0))]
    fn put_start(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        length: usize,
        within: f64,
    ) -> PyResult<PutTicket> {
        let key = bytes_of(key, "a key")?;
        let within = seconds(py, within, "within")?;
        let ticket =
            self.mending(py, || self.ask_bound(py, |client| client.put_start(&key, length, within)))?;
        Ok(PutTicket { ticket: Mutex::new(Some(ticket)), key: key.into_owned() })
    }

    /// Puts the value of a put that was started. Whether the key is new.
    #[pyo3(signature = (ticket, value, /))]
    fn put_commit(&self, py: Python<'_>, ticket: &PutTicket, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = bytes_of(value, "a value")?;
        let commit = |client: &mut oneread::Client| client.put_commit(ticket.take()?, &value);
        Ok(self.ask_bound(py, commit)? == PutOutcome::Inserted)
    }

    /// Gives up a put that was started. Whether its room was still held.
    #[pyo3(signature = (ticket, /))]
    fn put_abort(&self, py: Python<'_>, ticket: &PutTicket) -> PyResult<bool> {
        self.ask_bound(py, |client| client.put_abort(ticket.take()?))
    }
}
