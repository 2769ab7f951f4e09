//! Scans: all keys of a cluster.

use super::ClusterClient;
use crate::convert::bytes_of;
use crate::scan::Walk;
use crate::verbs::Verbs;
use oneread_cluster::client::{ClusterError, ScanState};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};

/// The keys of a cluster, or keys with values, one after the other.
#[pyo3::pyclass(frozen, module = "oneread")]
pub(crate) struct ClusterScan {
    client: Py<ClusterClient>,
    walk: Walk<Option<ScanState>>,
}

#[pyo3::pymethods]
impl ClusterScan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.walk.next(py, |state, _| {
            let Some(state) = state else { return Ok(()) };
            self.client.get().ask(py, |client| {
                self.walk.came(state.next_batch(client)?, None);
                Ok::<_, ClusterError>(())
            })
        })
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
        Ok(ClusterScan { client: slf, walk: Walk::new(state, values, None) })
    }
}
