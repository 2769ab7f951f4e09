//! Scans: all keys of a cluster.

use super::ClusterClient;
use crate::convert::bytes_of;
use crate::fork;
use crate::scan::shown;
use crate::turn::Turn;
use oneread::ScannedKey;
use oneread_cluster::client::{ClusterError, ScanState};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use std::collections::VecDeque;

/// The keys of a cluster, or keys with values, one after the other.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct ClusterScan {
    process: u64,
    client: Py<ClusterClient>,
    values: bool,
    /// Who asks a node has it.
    place: Turn<Place>,
}

/// How far a scan has come.
#[derive(Default)]
struct Place {
    /// `None` at the end.
    state: Option<ScanState>,
    ready: VecDeque<ScannedKey>,
}

impl ClusterScan {
    fn next_ready(&self) -> Option<ScannedKey> {
        self.place.now()?.thing()?.ready.pop_front()
    }

    /// Asks a node for more, if no other thread has done so meanwhile. Whether there may be more.
    fn ask(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(mut place) = self.place.take(py)? else { return Ok(false) };
        if !place.ready.is_empty() {
            return Ok(true);
        }
        let Place { state, ready } = &mut *place;
        let Some(going_on) = state.as_mut() else { return Ok(false) };
        let mut has_ended = false;
        // What has come is kept, also if a handler of a signal raises something: then the work's outcome is lost.
        self.client.get().ask(py, |client| {
            match going_on.next_batch(client)? {
                Some(keys) => *ready = keys,
                None => has_ended = true,
            }
            Ok::<_, ClusterError>(())
        })?;
        if has_ended {
            *state = None;
        }
        Ok(!has_ended)
    }
}

#[pyo3::pymethods]
impl ClusterScan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A child may not wait for its parent's locks.
        fork::check(py, self.process, "scan", "begin another one")?;
        loop {
            if let Some(found) = self.next_ready() {
                return shown(py, found, self.values).map(Some);
            }
            py.check_signals()?;
            if !self.ask(py)? {
                return Ok(None);
            }
        }
    }
}

#[pyo3::pymethods]
impl ClusterClient {
    /// All keys of all shards, in no order, that begin with `prefix`; with `values`, pairs.
    ///
    /// A key that is there throughout is given: once, and perhaps again each time that its shard is moved or its primary
    /// fails meanwhile. Where a shard cannot be read in time, the next key is an `Unavailable`, and the scan can go on.
    #[pyo3(signature = (*, prefix=None, values=false))]
    fn scan(slf: Py<Self>, prefix: Option<&Bound<'_, PyAny>>, values: bool) -> PyResult<ClusterScan> {
        let prefix = prefix.map(|prefix| bytes_of(prefix, "prefix")).transpose()?.unwrap_or_default();
        let state = Some(ScanState::new(&slf.get().config, &prefix, values));
        let place = Turn::new(Place { state, ready: VecDeque::new() });
        Ok(ClusterScan { process: fork::process(), client: slf, values, place })
    }
}
