//! Scans: all keys of a table.

use crate::client::Client;
use crate::convert::bytes_of;
use crate::error::Raise;
use crate::fork;
use crate::turn::Turn;
use oneread::{ScanCursor, ScannedKey};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The keys of a table, or keys with values, one after the other.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct Scan {
    process: u64,
    client: Py<Client>,
    prefix: Vec<u8>,
    values: bool,
    /// Locked for moments only, in which nothing of Python runs.
    at: Mutex<Place>,
    /// Who asks the server has it.
    asks: Turn<()>,
}

/// How far a scan has come.
#[derive(Default)]
struct Place {
    /// `None` at the beginning.
    cursor: Option<ScanCursor>,
    ready: VecDeque<ScannedKey>,
    has_ended: bool,
}

/// What Python is given of a key: itself, or with its value.
pub(crate) fn shown(py: Python<'_>, found: ScannedKey, values: bool) -> PyResult<Bound<'_, PyAny>> {
    let ScannedKey { key, value, .. } = found;
    let key = PyBytes::new(py, &key);
    match values {
        true => (key, value.map(|value| PyBytes::new(py, &value))).into_bound_py_any(py),
        false => Ok(key.into_any()),
    }
}

impl Scan {
    /// A child has another client, and may not wait for its parent's locks.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        fork::check(py, self.process, "scan", "begin another one")
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_ready(&self) -> (Option<ScannedKey>, bool) {
        let mut place = self.place();
        (place.ready.pop_front(), place.has_ended)
    }

    /// Asks the server for more.
    fn ask(&self, py: Python<'_>) -> PyResult<()> {
        let _turn = self.asks.take(py)?;
        let cursor = {
            let place = self.place();
            // Another thread may have asked meanwhile.
            if !place.ready.is_empty() || place.has_ended {
                return Ok(());
            }
            place.cursor.clone()
        };
        self.client.get().ask(py, |client| {
            let scan = client.scan().prefix(&self.prefix).values(self.values);
            let mut scan = match cursor.clone() {
                Some(cursor) => scan.from(cursor),
                None => scan,
            };
            let batch = scan.next_batch().map_err(Box::new)?;
            let mut place = self.place();
            place.cursor = Some(scan.cursor());
            place.has_ended = batch.is_none();
            place.ready.extend(batch.into_iter().flatten());
            Ok::<_, Box<oneread::FeedError>>(())
        })
    }
}

#[pyo3::pymethods]
impl Scan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.check(py)?;
        loop {
            match self.next_ready() {
                (Some(found), _) => return shown(py, found, self.values).map(Some),
                (None, true) => return Ok(None),
                (None, false) => {
                    py.check_signals()?;
                    self.ask(py)?;
                }
            }
        }
    }

    /// Where another scan, with the same arguments, goes on. Keys that this one has not given yet come again.
    #[getter]
    fn cursor<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.check(py)?;
        let place = self.place();
        let cursor = place.cursor.as_ref().filter(|_| place.ready.is_empty()).map(ScanCursor::to_bytes);
        drop(place);
        Ok(cursor.map(|cursor| PyBytes::new(py, &cursor)))
    }
}

#[pyo3::pymethods]
impl Client {
    /// All keys, in no order, that begin with `prefix`; with `values`, pairs. `cursor`: where another scan stopped.
    #[pyo3(signature = (*, prefix=None, values=false, cursor=None))]
    fn scan(
        slf: Py<Self>,
        py: Python<'_>,
        prefix: Option<&Bound<'_, PyAny>>,
        values: bool,
        cursor: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Scan> {
        let prefix = match prefix {
            Some(prefix) => bytes_of(prefix, "prefix")?.into_owned(),
            None => Vec::new(),
        };
        let cursor = match cursor {
            Some(cursor) => Some(ScanCursor::from_bytes(&bytes_of(cursor, "cursor")?).raise(py)?),
            None => None,
        };
        let at = Mutex::new(Place { cursor, ..Place::default() });
        Ok(Scan { process: fork::process(), client: slf, prefix, values, at, asks: Turn::new(()) })
    }
}
