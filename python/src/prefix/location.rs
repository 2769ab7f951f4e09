//! `oneread.LocationIndex`: where each block is.

use super::shelf::Shelf;
use super::{Out, copied, keys_of, secret_of};
use crate::calls::{self, made};
use crate::client::Client;
use crate::convert::has_buffer;
use crate::counts;
use crate::error::error_of;
use crate::options;
use crate::verbs::Outcomes;
use oneread::{PutMode, PutOptions, PutOutcome, TableSize};
use oneread_prefix::{Digests, Found, Key, Location, PrefixError, Search};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods, PyListMethods, PyString};

/// One of the library's lookups.
type Locates =
    fn(&mut oneread_prefix::LocationIndex, &Digests<'_>, &mut [Found]) -> Result<usize, PrefixError>;

/// Where each block is: digest -> tier, address and length at an endpoint.
///
/// Lookups read the server's memory, without the server. Any thread may use it, and several at a time.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct LocationIndex {
    shelf: Shelf<oneread_prefix::LocationIndex>,
    secret: [u8; 16],
}

impl LocationIndex {
    fn keys(&self, digests: &Bound<'_, PyAny>, width: Option<usize>) -> PyResult<Vec<Key>> {
        keys_of(digests.py(), digests, width, &self.secret)
    }

    /// A lookup, which leaves a record for each block in `out`, or in a new array, and says how many are there.
    fn locate<'py>(
        &self,
        py: Python<'py>,
        (digests, width): (&Bound<'py, PyAny>, Option<usize>),
        out: Option<Bound<'py, PyAny>>,
        look: Locates,
    ) -> PyResult<(usize, Bound<'py, PyAny>)> {
        let keys = self.keys(digests, width)?;
        let mut out = Out::of::<Found>(out, keys.len(), || made(py, "found_records", (keys.len(),)))?;
        let found = out.items::<Found>();
        let count = self.shelf.look(py, keys.len(), |index| look(index, &Digests::from(&keys[..]), found))?;
        Ok((count, out.object))
    }
}

/// Locations: a buffer of records as lookups give them, or tuples.
fn locations_of(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<Location>> {
    if has_buffer(given) {
        let records = copied::<Found>(py, given, "locations")?;
        let absent = |number| {
            let text = format!("location {number} is of a block that is not there; leave it out");
            error_of(py, "Invalid", text)
        };
        let each = records.iter().enumerate();
        return each.map(|(number, found)| found.location().ok_or_else(|| absent(number))).collect();
    }
    let mut all = Vec::new();
    for (number, item) in calls::list(given)?.iter().enumerate() {
        let (endpoint, tier, address, length) = item.extract().inspect_err(|error: &PyErr| {
            let _ = error.value(py).call_method1("add_note", (format!("location {number}"),));
        })?;
        all.push(Location { endpoint, tier, address, length });
    }
    Ok(all)
}

#[pyo3::pymethods]
impl LocationIndex {
    #[new]
    #[pyo3(signature = (client, /, *, secret=None))]
    fn new(py: Python<'_>, client: Py<Client>, secret: Option<&Bound<'_, PyAny>>) -> PyResult<LocationIndex> {
        Ok(LocationIndex { secret: secret_of(py, secret)?, shelf: Shelf::new(py, client)? })
    }

    /// What a `Server` for locations is made with, beside its size.
    #[staticmethod]
    fn table(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let config = oneread_prefix::LocationIndex::config(TableSize::Keys(1));
        let options = PyDict::new(py);
        options.set_item("key_max", config.key_max)?;
        options.set_item("value_max", config.value_max)?;
        options.set_item("life", config.life)?;
        options.set_item("owners", config.owners)?;
        Ok(options)
    }

    /// Another index, whose blocks are this owner's: they are gone at once when it has been away for `absent_for`
    /// seconds.
    #[pyo3(signature = (number, /, *, absent_for=10.0))]
    fn as_owner(&self, py: Python<'_>, number: u16, absent_for: f64) -> PyResult<LocationIndex> {
        let client = Py::new(py, self.shelf.client().owner(py, number, absent_for)?)?;
        Ok(LocationIndex { secret: self.secret, shelf: Shelf::new(py, client)? })
    }

    /// Hides all blocks of an owner at once, and has them removed. Whether there was one.
    #[pyo3(signature = (number, /))]
    fn remove_owner(&self, py: Python<'_>, number: u16) -> PyResult<bool> {
        self.shelf.ask(py, |index| index.remove_owner(number))
    }

    /// The number of an endpoint's name.
    #[pyo3(signature = (name, /))]
    fn endpoint(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.shelf.ask(py, |index| index.endpoint(name))
    }

    /// The name of an endpoint, `None` if there is no such number.
    #[pyo3(signature = (number, /))]
    fn endpoint_name(&self, py: Python<'_>, number: u32) -> PyResult<Option<String>> {
        self.shelf.look(py, 1, |index| Ok(index.endpoint_name(number)?.map(String::from)))
    }

    /// Puts where blocks are. How many are new. `replace=False`: blocks that the index has stay as they are.
    ///
    /// `locations`: one for each digest, tuples or a buffer of records. What the table has no room for is an error that
    /// names those blocks, `rejected`; the others are put.
    #[pyo3(signature = (digests, locations, /, *, width=None, ttl=None, replace=true))]
    fn put(
        &self,
        py: Python<'_>,
        digests: &Bound<'_, PyAny>,
        locations: &Bound<'_, PyAny>,
        width: Option<usize>,
        ttl: Option<f64>,
        replace: bool,
    ) -> PyResult<usize> {
        let keys = self.keys(digests, width)?;
        let locations = locations_of(py, locations)?;
        let mode = if replace { PutMode::Upsert } else { PutMode::Insert };
        let options = PutOptions::new().mode(mode).ttl(options::ttl(py, ttl)?);
        let put = |index: &mut oneread_prefix::LocationIndex| {
            index.put(&Digests::from(&keys[..]), &locations, options)
        };
        let mut outcomes = Outcomes::of(keys.len());
        for (number, answer) in self.shelf.ask(py, put)?.into_iter().enumerate() {
            outcomes.note(number, answer.map(|outcome| outcome == PutOutcome::Inserted));
        }
        outcomes.end(py)
    }

    /// Removes blocks that still are where the caller says. How many were.
    #[pyo3(signature = (digests, locations, /, *, width=None))]
    fn remove(
        &self,
        py: Python<'_>,
        digests: &Bound<'_, PyAny>,
        locations: &Bound<'_, PyAny>,
        width: Option<usize>,
    ) -> PyResult<usize> {
        let keys = self.keys(digests, width)?;
        let locations = locations_of(py, locations)?;
        self.shelf.ask(py, |index| index.remove(&Digests::from(&keys[..]), &locations))
    }

    /// Finds all blocks. How many are there, and a record for each, in `out`, or in a new NumPy array; in a bytearray
    /// where there is no NumPy (`oneread.FOUND`).
    #[pyo3(signature = (digests, /, *, width=None, out=None))]
    fn locate_many<'py>(
        &self,
        py: Python<'py>,
        digests: &Bound<'py, PyAny>,
        width: Option<usize>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(usize, Bound<'py, PyAny>)> {
        self.locate(py, (digests, width), out, oneread_prefix::LocationIndex::locate_many)
    }

    /// Finds blocks from the first on, up to one that is not there. How many there are, and records as of
    /// `locate_many`, all zero behind them.
    #[pyo3(signature = (digests, /, *, width=None, out=None))]
    fn locate_prefix<'py>(
        &self,
        py: Python<'py>,
        digests: &Bound<'py, PyAny>,
        width: Option<usize>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(usize, Bound<'py, PyAny>)> {
        self.locate(py, (digests, width), out, oneread_prefix::LocationIndex::locate_prefix)
    }

    /// Which blocks are there: one bool for each, in `out`, or in a new NumPy array; in a bytearray where there is no
    /// NumPy.
    #[pyo3(signature = (digests, /, *, width=None, out=None))]
    fn contains_many<'py>(
        &self,
        py: Python<'py>,
        digests: &Bound<'py, PyAny>,
        width: Option<usize>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.keys(digests, width)?;
        let mut out = Out::of::<u8>(out, keys.len(), || made(py, "found_bools", (keys.len(),)))?;
        let present = self.shelf.look(py, keys.len(), |index| {
            let mut present = Vec::new();
            index.contains_many(&Digests::from(&keys[..]), &mut present)?;
            Ok(present)
        })?;
        for (number, is_there) in out.items::<u8>().iter_mut().enumerate() {
            *is_there = (present[number / 64] >> (number % 64) & 1) as u8;
        }
        Ok(out.object)
    }

    /// The length of the longest prefix that is there. `search`: `"exact"`, every block; `"prefix_closed"`, for who
    /// stores no block without those before it; or a number: only that many at the prefix's end.
    #[pyo3(signature = (digests, /, *, search=None, width=None))]
    fn longest_prefix(
        &self,
        py: Python<'_>,
        digests: &Bound<'_, PyAny>,
        search: Option<&Bound<'_, PyAny>>,
        width: Option<usize>,
    ) -> PyResult<usize> {
        let search = match search {
            None => Search::Exact,
            Some(search) => match search.cast::<PyString>() {
                Ok(name) if name == "exact" => Search::Exact,
                Ok(name) if name == "prefix_closed" => Search::PrefixClosed,
                Ok(name) => {
                    let text = format!("search is {name:?}; there are: exact, prefix_closed, or a number");
                    return Err(error_of(py, "Invalid", text));
                }
                Err(_) => Search::Trailing(search.extract().map_err(|_| {
                    PyTypeError::new_err("search is exact, prefix_closed, or how many at the end")
                })?),
            },
        };
        let keys = self.keys(digests, width)?;
        self.shelf.look(py, keys.len(), |index| index.longest_prefix(&Digests::from(&keys[..]), search))
    }

    /// Which blocks still are the entries that were found: one bool for each, as of `contains_many`.
    #[pyo3(signature = (digests, found, /, *, width=None, out=None))]
    fn revalidate<'py>(
        &self,
        py: Python<'py>,
        digests: &Bound<'py, PyAny>,
        found: &Bound<'py, PyAny>,
        width: Option<usize>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.keys(digests, width)?;
        let found = copied::<Found>(py, found, "found")?;
        let mut out = Out::of::<u8>(out, keys.len(), || made(py, "found_bools", (keys.len(),)))?;
        let mut same = vec![false; keys.len()];
        self.shelf
            .look(py, keys.len(), |index| index.revalidate(&Digests::from(&keys[..]), &found, &mut same))?;
        out.items::<u8>().iter_mut().zip(same).for_each(|(to, is_same)| *to = u8::from(is_same));
        Ok(out.object)
    }

    /// What this index did, but for calls that other threads are in.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_client(py, &self.shelf.stats())
    }
}
