//! Counts as dicts.

use oneread::stats::{ClientStats, ServerStats};
use pyo3::prelude::{Bound, PyResult, Python};
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
