//! Scans: all keys of a table, and how keys of a scan come, of a table or of a cluster.

use crate::client::Client;
use crate::convert::bytes_of;
use crate::error::Raise;
use crate::fork;
use crate::turn::Turn;
use crate::verbs::Verbs;
use oneread::{ScanCursor, ScannedKey};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys of a scan that have come, and `S`, by which more are asked for.
pub(crate) struct Walk<S> {
    process: u64,
    values: bool,
    /// Locked for moments only, in which nothing of Python runs.
    at: Mutex<Place>,
    /// Who asks has it.
    asks: Turn<S>,
}

/// How far a scan has come.
#[derive(Default)]
struct Place {
    /// `None` at the beginning, and where a scan has none.
    cursor: Option<ScanCursor>,
    ready: VecDeque<ScannedKey>,
    has_ended: bool,
}

impl<S: Default + Send> Walk<S> {
    pub fn new(asks: S, values: bool, cursor: Option<ScanCursor>) -> Walk<S> {
        let at = Mutex::new(Place { cursor, ..Place::default() });
        Walk { process: fork::process(), values, at, asks: Turn::new(asks) }
    }

    /// A child has another client, and may not wait for its parent's locks.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        fork::check(py, self.process, "scan", "begin another one")
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More keys have come, or `None`: the end. It is called within what waits: if a handler of a signal raises something
    /// then, the keys are kept.
    pub fn came(&self, keys: Option<VecDeque<ScannedKey>>, cursor: Option<ScanCursor>) {
        let mut place = self.place();
        place.cursor = cursor;
        place.has_ended = keys.is_none();
        place.ready.extend(keys.into_iter().flatten());
    }

    /// The next key as Python has it: itself, or with its value. `ask` asks for more, from this cursor on.
    pub fn next<'py>(
        &self,
        py: Python<'py>,
        ask: impl Fn(&mut S, Option<ScanCursor>) -> PyResult<()>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.check(py)?;
        loop {
            let (next, has_ended) = {
                let mut place = self.place();
                (place.ready.pop_front(), place.has_ended)
            };
            if let Some(ScannedKey { key, value, .. }) = next {
                let key = PyBytes::new(py, &key);
                return match self.values {
                    true => {
                        (key, value.map(|value| PyBytes::new(py, &value))).into_bound_py_any(py).map(Some)
                    }
                    false => Ok(Some(key.into_any())),
                };
            }
            if has_ended {
                return Ok(None);
            }
            py.check_signals()?;
            let Some(mut asks) = self.asks.take(py)? else { return Ok(None) };
            let place = self.place();
            // Another thread may have asked meanwhile.
            if place.ready.is_empty() && !place.has_ended {
                let cursor = place.cursor.clone();
                drop(place);
                ask(&mut asks, cursor)?;
            }
        }
    }
}

/// The keys of a table, or keys with values, one after the other.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct Scan {
    client: Py<Client>,
    prefix: Vec<u8>,
    walk: Walk<()>,
}

#[pyo3::pymethods]
impl Scan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.walk.next(py, |(), cursor| {
            self.client.get().ask(py, |client| {
                let scan = client.scan().prefix(&self.prefix).values(self.walk.values);
                let mut scan = match cursor.clone() {
                    Some(cursor) => scan.from(cursor),
                    None => scan,
                };
                let batch = scan.next_batch().map_err(Box::new)?;
                self.walk.came(batch.map(VecDeque::from), Some(scan.cursor()));
                Ok::<_, Box<oneread::FeedError>>(())
            })
        })
    }

    /// Where another scan, with the same arguments, goes on. Keys that this one has not given yet come again.
    #[getter]
    fn cursor<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.walk.check(py)?;
        let place = self.walk.place();
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
        Ok(Scan { client: slf, prefix, walk: Walk::new((), values, cursor) })
    }
}
