//! Counts as dicts.

use crate::calls::made;
use oneread::stats::{ClientStats, GetCounts, GrowthCounts, LogStatus, ServerStats, SnapshotStatus};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};

/// A dict of these fields.
macro_rules! dict {
    ($py:expr, $of:expr, $($name:ident),* $(,)?) => {{
        let (of, dict) = (&$of, PyDict::new($py));
        $(dict.set_item(stringify!($name), of.$name)?;)*
        dict
    }};
}

/// What a client did.
pub(crate) fn of_client<'py>(py: Python<'py>, stats: &ClientStats) -> PyResult<Bound<'py, PyDict>> {
    let all = dict!(py, stats, reattached);
    all.set_item(
        "get",
        dict!(
            py,
            stats.get,
            gets,
            hits,
            retries_torn,
            retries_moved,
            retries_late,
            retries_chain,
            retries_replaced,
            retries_other_key
        ),
    )?;
    all.set_item("read", dict!(py, stats.read, reads, bytes, doorbells))?;
    all.set_item("hints", dict!(py, stats.hints, hinted, hits, reads))?;
    all.set_item("requests", dict!(py, stats.requests, message, mailbox))?;
    all.set_item("changes", dict!(py, stats.changes, puts, swaps, removes, parts, rejected))?;
    all.set_item("failures", dict!(py, stats.failures, deadlines, contended, gone, refused, undecrypted))?;
    Ok(all)
}

/// What a server did.
pub(crate) fn of_server<'py>(py: Python<'py>, stats: &ServerStats) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(
        py,
        stats,
        keys,
        inserts,
        updates,
        removes,
        moves,
        homings,
        waits,
        slots,
        main_slots,
        clients,
        pid,
        incarnation
    ))
}

/// GETs of clients on the server's host, and over TCP.
pub(crate) fn of_gets<'py>(py: Python<'py>, counts: &GetCounts) -> PyResult<Bound<'py, PyDict>> {
    let all = dict!(py, counts, gets, hits);
    all.set_item("misses", counts.misses())?;
    Ok(all)
}

/// What a table is made of, and what it did to grow and shrink.
pub(crate) fn of_growth<'py>(py: Python<'py>, counts: &GrowthCounts) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(
        py,
        counts,
        segments,
        segments_max,
        depth,
        load_min_ppm,
        load_max_ppm,
        splitting,
        merging,
        splits,
        merges,
        given_up,
        moved,
        refused,
        bytes_backed,
        bytes_max,
        bytes_returned
    ))
}

/// How far a server's log is.
pub(crate) fn of_log<'py>(py: Python<'py>, log: &LogStatus) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, log, next, written, durable, bytes, syncs, has_failed))
}

/// What became of a server's snapshots.
pub(crate) fn of_snapshots<'py>(py: Python<'py>, status: &SnapshotStatus) -> PyResult<Bound<'py, PyAny>> {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let told = made(
        py,
        "SnapshotStatus",
        (
            status.is_on(),
            status.every().map(|every| every.as_secs_f64()),
            status.asked,
            status.begun,
            status.finished,
            status.saved,
            status.progress_ppm as f64 / 1e6,
            (status.saved_ms != 0).then(|| seconds(status.saved_ms)),
            status.took_us as f64 / 1e6,
            status.keys,
            status.bytes,
            status.failure().map(|(step, error)| format!("{step}: {error}")),
        ),
    )?;
    // Beside as many as a tuple of Rust's may have here.
    let server = PyDict::new(py);
    server.set_item("launch", status.launch)?;
    told.call_method("_replace", (), Some(&server))
}
