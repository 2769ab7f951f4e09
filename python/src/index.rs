//! `oneread.Index`: a table without a server, in this process.

use crate::convert::bytes_of;
use crate::counts;
use crate::error::{Raise, error_at, raised};
use crate::fork;
use crate::keys::{Items, check_lengths, kept_pairs, pairs_of};
use crate::options::{self, Arguments};
use crate::sinks::BytesSink;
use crate::waiting::{detached, goes_on};
use oneread::embedded::{Clock, Region};
use oneread::sink::LengthSink;
use oneread::{PutMode, PutOptions, PutOutcome, SwapOutcome};
use pyo3::prelude::{Bound, PyAny, PyResult, Python};
use pyo3::types::{PyBytes, PyDict, PyList};
use std::time::Instant;

/// A table in memory of this process. Any thread may use it.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct Index {
    process: u64,
    /// Apart, because Python's objects begin at multiples of 16 only.
    index: Box<oneread::embedded::Index>,
}

impl Index {
    /// For a change: a child's would meet those of its parent.
    fn own(&self, py: Python<'_>) -> PyResult<&oneread::embedded::Index> {
        fork::check(py, self.process, "index", "that one alone may change it")?;
        Ok(&self.index)
    }

    fn put_one(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        (mode, ttl): (PutMode, Option<f64>),
    ) -> PyResult<PutOutcome> {
        let (key, value) = (bytes_of(key, "a key")?, bytes_of(value, "a value")?);
        let options = PutOptions::new().mode(mode).ttl(options::ttl(py, ttl)?);
        let index = self.own(py)?;
        py.detach(|| index.put_with(&key, &value, options)).raise(py)
    }
}

crate::puts::puts!(Index);

#[pyo3::pymethods]
impl Index {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Index> {
        crate::log::begin();
        let arguments = Arguments::new(py, options)?;
        let (config, backing, ttl, evict) = arguments.index()?;
        arguments.end("Index")?;
        let geometry = config.geometry().raise(py)?;
        let region = py
            .detach(|| Region::create_sparse(&backing, geometry.region_bytes(), geometry.bytes_at_first()))
            .raise(py)?;
        let index =
            py.detach(|| oneread::embedded::Index::create(region, geometry, Clock::System)).raise(py)?;
        let index = index.with_ttl(ttl).raise(py)?;
        let index = match evict {
            Some(policy) => index.with_eviction(policy).raise(py)?,
            None => index,
        };
        Ok(Index { process: fork::process(), index: Box::new(index) })
    }

    /// The value of `key`, or `default` if it is absent.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes_of(key, "a key")?;
        let mut value = BytesSink::new(py);
        match self.index.reader().get_into(&key, &mut value).raise(py)? {
            true => Ok(Some(value.into_bytes()?.into_any())),
            false => Ok(default),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        Ok(self.index.reader().get_into(&key, &mut LengthSink::default()).raise(py)?.is_some())
    }

    /// The values of many keys, in order: `None` for each that is absent.
    #[pyo3(signature = (keys, /, *, width=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let kept = Items::of(keys, width, "keys")?.keep(py)?;
        let keys = kept.bytes("key")?;
        check_lengths(py, &keys, 0, self.index.geometry().key_max())?;
        let mut values = vec![None; keys.len()];
        py.detach(|| {
            self.index.reader().get_many(&keys, |number, value| values[number] = value.map(<[u8]>::to_vec))
        })
        .raise(py)?;
        PyList::new(py, values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))))
    }

    /// Puts many keys with their values, up to the first that the table does not take. How many keys are new.
    #[pyo3(signature = (keys, values, /, *, width=None, value_width=None))]
    fn put_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        width: Option<usize>,
        value_width: Option<usize>,
    ) -> PyResult<usize> {
        let (keys, values) = (Items::of(keys, width, "keys")?, Items::of(values, value_width, "values")?);
        let kept = kept_pairs(py, &keys, &values)?;
        let pairs = pairs_of(&kept)?;
        let index = self.own(py)?;
        check_lengths(py, pairs.iter().map(|(key, _)| key), 0, index.geometry().key_max())?;
        let mut made = 0;
        let put = py.detach(|| {
            let mut new = 0;
            for (key, value) in &pairs {
                new += usize::from(index.put(key, value, PutMode::Upsert)? == PutOutcome::Inserted);
                made += 1;
            }
            Ok::<_, oneread::error::PutError>(new)
        });
        put.map_err(|error| {
            use crate::error::Classed;
            let text = format!("key {made}: {error}; those before it were put, and none after it");
            error_at(py, error.class(), text, made)
        })
    }

    /// Removes the key. Whether it was there.
    #[pyo3(signature = (key, /))]
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        let index = self.own(py)?;
        py.detach(|| index.remove(&key)).raise(py)
    }

    /// Gives the key `value` if it has `expected`. Whether it had.
    #[pyo3(signature = (key, expected, value, /))]
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (key, value) = (bytes_of(key, "a key")?, bytes_of(value, "a value")?);
        let expected = bytes_of(expected, "the expected value")?;
        let index = self.own(py)?;
        match py.detach(|| index.compare_and_swap(&key, &expected, &value)) {
            Ok(outcome) => Ok(outcome == SwapOutcome::Swapped),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Removes all keys. How many there were.
    fn clear(&self, py: Python<'_>) -> PyResult<u64> {
        let (index, mut looked) = (self.own(py)?, Instant::now());
        detached(py, || index.clear(&mut |_| goes_on(&mut looked)))?.raise(py)
    }

    /// Ends entries that have come to their end, which changes also do in passing. Seconds until there is more to do.
    fn tidy(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let index = self.own(py)?;
        Ok(py.detach(|| index.tidy()).map(|left| left.as_secs_f64()))
    }

    /// What the table is made of, and what it did to grow and shrink; all 0 for a table of one size.
    fn growth<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_growth(py, &self.own(py)?.growth())
    }

    /// Makes a table that grows as large as it becomes with this many keys in all, before they come. Takes some 3 ms for
    /// each segment.
    #[pyo3(signature = (keys, /))]
    fn grow_for(&self, py: Python<'_>, keys: u64) -> PyResult<()> {
        let index = self.own(py)?;
        detached(py, || index.grow_for(keys))
    }

    /// Begins to give memory back that the table's keys do not need: `tidy` and changes go on with it. How many merges of
    /// segments were begun.
    fn shrink(&self, py: Python<'_>) -> PyResult<u64> {
        let index = self.own(py)?;
        Ok(py.detach(|| index.shrink()))
    }

    /// How many keys are in the table.
    fn __len__(&self) -> usize {
        self.index.len() as usize
    }

    /// An index is true, whatever is in it.
    fn __bool__(&self) -> bool {
        true
    }
}
