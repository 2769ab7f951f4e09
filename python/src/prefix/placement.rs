//! `oneread.PlacementIndex`: who has each block.

use super::shelf::Shelf;
use super::{GROUPED, PLACEMENT, keys_of, secret_of, table_of};
use crate::calls::made;
use crate::client::Client;
use crate::convert::optional_seconds;
use crate::counts;
use crate::fork;
use oneread_prefix::{Digests, HolderOptions, HolderPrefix, Keeps, Key, PrefixError};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};

/// A worker that has blocks.
#[pyo3::pyclass(frozen, eq, hash, module = "oneread")]
#[derive(Clone)]
pub(crate) struct Holder {
    holder: oneread_prefix::Holder,
    process: u64,
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        self.holder == other.holder
    }
}

impl Eq for Holder {}

impl std::hash::Hash for Holder {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.holder.hash(state);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A parent's connection stays as it is.
        if self.process != fork::process() {
            std::mem::forget(self.holder.clone());
        }
    }
}

impl Holder {
    pub(super) fn of(holder: oneread_prefix::Holder) -> Holder {
        Holder { holder, process: fork::process() }
    }

    pub(super) fn inner(&self) -> &oneread_prefix::Holder {
        &self.holder
    }
}

#[pyo3::pymethods]
impl Holder {
    /// Its name's number, in every table and for ever: 64 bits of the name's hash.
    #[getter]
    fn number(&self) -> u64 {
        self.holder.number()
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.holder.name()
    }

    /// Whether it has no block without those before it, as the table said when this was told.
    #[getter]
    fn prefix_closed(&self) -> bool {
        self.holder.keeps() == Keeps::PrefixClosed
    }

    /// Whether it goes when nobody is there for it.
    #[getter]
    fn goes_by_itself(&self) -> bool {
        self.holder.goes_by_itself()
    }

    /// Whether this object is there for it.
    #[getter]
    fn is_present(&self) -> bool {
        self.holder.is_present()
    }

    fn __repr__(&self) -> String {
        format!("oneread.Holder({:?})", self.holder.name())
    }
}

/// Who has each block: digest -> a set of up to 4,096 holders.
///
/// Lookups read the server's memory, without the server. Any thread may use it, and several at a time.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct PlacementIndex {
    shelf: Shelf<oneread_prefix::PlacementIndex>,
    /// Those that clean: a handle remembers how far it has come.
    cleaners: Shelf<oneread_prefix::PlacementIndex>,
    secret: [u8; 16],
    is_grouped: bool,
    holders_max: usize,
}

impl PlacementIndex {
    /// See `Shelf::with`.
    pub(super) fn with<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut oneread_prefix::PlacementIndex) -> R,
    ) -> PyResult<R> {
        self.shelf.with(py, work)
    }

    /// See `Shelf::ask`.
    pub(super) fn ask<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnMut(&mut oneread_prefix::PlacementIndex) -> Result<R, PrefixError> + Send,
    ) -> PyResult<R> {
        self.shelf.ask(py, work)
    }

    pub(super) fn keys(&self, digests: &Bound<'_, PyAny>, width: Option<usize>) -> PyResult<Vec<Key>> {
        keys_of(digests.py(), digests, width, &self.secret)
    }
}

#[pyo3::pymethods]
impl PlacementIndex {
    #[new]
    #[pyo3(signature = (client, /, *, secret=None))]
    fn new(
        py: Python<'_>,
        client: Py<Client>,
        secret: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PlacementIndex> {
        let secret = secret_of(py, secret)?;
        let shelf = Shelf::<oneread_prefix::PlacementIndex>::new(py, client.clone_ref(py))?;
        let (is_grouped, holders_max) = shelf.with(py, |index| (index.is_grouped(), index.holders_max()))?;
        let cleaners = Shelf::new(py, client)?;
        Ok(PlacementIndex { shelf, cleaners, secret, is_grouped, holders_max })
    }

    /// What a `Server` for so many holders is made with, beside its size. `grouped`: eight neighbours of a prompt stand
    /// in one entry. `owners`: holders may go by themselves.
    #[staticmethod]
    #[pyo3(signature = (holders=1024, *, grouped=false, owners=false))]
    fn table(py: Python<'_>, holders: usize, grouped: bool, owners: bool) -> PyResult<Bound<'_, PyDict>> {
        let index = if grouped { GROUPED } else { PLACEMENT };
        table_of(py, index, Some(holders), owners)?;
        let options = PyDict::new(py);
        options.set_item("index", index)?;
        options.set_item("holders", holders)?;
        options.set_item("owners", owners)?;
        Ok(options)
    }

    /// Whether eight neighbours stand in one entry.
    #[getter]
    fn is_grouped(&self) -> bool {
        self.is_grouped
    }

    /// Most holders at a time.
    #[getter]
    fn holders_max(&self) -> usize {
        self.holders_max
    }

    /// The holder of this name; a new one if no live one has it. `prefix_closed`: it has no block without those before it,
    /// and loses the last ones first; lookups then look at some of its blocks only. `absent_for`: it goes by itself, when
    /// nobody has had this object for so many seconds, because its process has ended.
    #[pyo3(signature = (name, /, *, prefix_closed=false, absent_for=None))]
    fn holder(
        &self,
        py: Python<'_>,
        name: &str,
        prefix_closed: bool,
        absent_for: Option<f64>,
    ) -> PyResult<Holder> {
        let keeps = if prefix_closed { Keeps::PrefixClosed } else { Keeps::Any };
        let absent_for = optional_seconds(py, absent_for, "absent_for")?;
        let options = HolderOptions::new().keeps(keeps).absent_for(absent_for);
        Ok(Holder::of(self.shelf.ask(py, |index| index.holder_with(name, options))?))
    }

    /// All live holders.
    fn holders(&self, py: Python<'_>) -> PyResult<Vec<Holder>> {
        let all = self.shelf.ask(py, oneread_prefix::PlacementIndex::holders)?;
        Ok(all.into_iter().map(Holder::of).collect())
    }

    /// Hides the holder of a name, or of this holder's name, whoever registered it: it has no block for any reader from
    /// now on. Whether it was there.
    #[pyo3(signature = (holder, /))]
    fn drop_holder(&self, py: Python<'_>, holder: &Bound<'_, PyAny>) -> PyResult<bool> {
        let name = match holder.cast::<Holder>() {
            Ok(holder) => holder.get().holder.name().to_owned(),
            Err(_) => crate::convert::extracted(holder, "holder")?,
        };
        self.shelf.ask(py, |index| index.drop_holder(&name))
    }

    /// Drops holders that go by themselves and are gone. How many. Lookups leave them out in any case.
    fn drop_absent(&self, py: Python<'_>) -> PyResult<usize> {
        self.shelf.ask(py, oneread_prefix::PlacementIndex::drop_absent)
    }

    /// Takes holders that were dropped out of the sets, in a step of about so many entries.
    #[pyo3(signature = (entries=10_000, /))]
    fn clean<'py>(&self, py: Python<'py>, entries: usize) -> PyResult<Bound<'py, PyAny>> {
        let cleaned = self.cleaners.ask(py, |index| index.clean(entries))?;
        made(py, "Cleaned", (cleaned.entries, cleaned.freed, cleaned.is_done))
    }

    /// A holder has these blocks, from `start` on. How many it did not have; in a grouped table, how many entries were
    /// changed.
    #[pyo3(signature = (holder, digests, /, *, start=0, width=None))]
    fn add(
        &self,
        py: Python<'_>,
        holder: &Holder,
        digests: &Bound<'_, PyAny>,
        start: usize,
        width: Option<usize>,
    ) -> PyResult<usize> {
        let keys = self.keys(digests, width)?;
        self.shelf.ask(py, |index| index.add(&holder.holder, &Digests::from(&keys[..]), start))
    }

    /// A holder no longer has these blocks, from `start` on. How many it had, as of `add`.
    #[pyo3(signature = (holder, digests, /, *, start=0, width=None))]
    fn remove(
        &self,
        py: Python<'_>,
        holder: &Holder,
        digests: &Bound<'_, PyAny>,
        start: usize,
        width: Option<usize>,
    ) -> PyResult<usize> {
        let keys = self.keys(digests, width)?;
        self.shelf.ask(py, |index| index.remove(&holder.holder, &Digests::from(&keys[..]), start))
    }

    /// How long a prefix each holder has: the longest, and the length by name, of those that have the first block, the
    /// longest first.
    #[pyo3(signature = (digests, /, *, width=None))]
    fn match_prefix<'py>(
        &self,
        py: Python<'py>,
        digests: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<(usize, Bound<'py, PyDict>)> {
        let keys = self.keys(digests, width)?;
        let mut found: Vec<HolderPrefix> = Vec::new();
        let longest = self
            .shelf
            .look(py, keys.len(), |index| index.match_prefix(&Digests::from(&keys[..]), &mut found))?;
        let lengths = PyDict::new(py);
        for one in &found {
            lengths.set_item(one.holder.name(), one.blocks)?;
        }
        Ok((longest, lengths))
    }

    /// The names of the live holders that have each block.
    #[pyo3(signature = (digests, /, *, width=None))]
    fn holders_of(
        &self,
        py: Python<'_>,
        digests: &Bound<'_, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Vec<Vec<String>>> {
        let keys = self.keys(digests, width)?;
        self.shelf.look(py, keys.len(), |index| {
            let mut all = vec![Vec::new(); keys.len()];
            index.holders_of(&Digests::from(&keys[..]), |block, holder| {
                all[block].push(holder.name().to_owned())
            })?;
            Ok(all)
        })
    }

    /// What this index did, but for calls that other threads are in.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut sum = self.shelf.stats();
        sum += self.cleaners.stats();
        counts::of_client(py, &sum)
    }
}
