//! Scans: all keys of a table.

use crate::client::Client;
use crate::convert::bytes_of;
use crate::error::Raise;
use oneread::{ScanCursor, ScannedKey};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The keys of a table, or keys with values, one after the other.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct Scan {
    client: Py<Client>,
    prefix: Vec<u8>,
    values: bool,
    at: Mutex<Place>,
}

/// How far a scan has come.
#[derive(Default)]
struct Place {
    /// `None` at the beginning.
    cursor: Option<ScanCursor>,
    ready: VecDeque<ScannedKey>,
    has_ended: bool,
}

impl Scan {
    fn next_ready(&self) -> (Option<ScannedKey>, bool) {
        let mut place = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        (place.ready.pop_front(), place.has_ended)
    }

    /// Asks the server for more.
    fn ask(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client.get();
        client.ask(py, |client| {
            let mut place = self.at.lock().unwrap_or_else(PoisonError::into_inner);
            let scan = client.scan().prefix(&self.prefix).values(self.values);
            let mut scan = match &place.cursor {
                Some(cursor) => scan.from(cursor.clone()),
                None => scan,
            };
            match scan.next_batch().map_err(Box::new)? {
                Some(batch) => place.ready.extend(batch),
                None => place.has_ended = true,
            }
            place.cursor = Some(scan.cursor());
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
        loop {
            match self.next_ready() {
                (Some(ScannedKey { key, value, .. }), _) => {
                    let key = PyBytes::new(py, &key);
                    return Ok(Some(match self.values {
                        true => (key, value.map(|value| PyBytes::new(py, &value))).into_bound_py_any(py)?,
                        false => key.into_any(),
                    }));
                }
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
    fn cursor<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let place = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        place
            .cursor
            .as_ref()
            .filter(|_| place.ready.is_empty())
            .map(|cursor| PyBytes::new(py, &cursor.to_bytes()))
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
        Ok(Scan { client: slf, prefix, values, at: Mutex::new(Place { cursor, ..Place::default() }) })
    }
}
