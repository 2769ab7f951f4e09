//! The native part of the Python package `oneread`: the module `oneread._native`.
//!
//! It has the library's nouns, and Python's buffers. What is more like Python (a dict, `asyncio`, pickles) is written
//! in Python, above it.
//!
//! No call panics on what a program gives it. Whatever waits is done without the interpreter's lock.

mod calls;
mod client;
mod cluster;
mod command;
mod convert;
mod counts;
mod error;
mod feed;
mod follow;
mod fork;
mod handles;
mod index;
mod keys;
mod log;
mod mend;
mod options;
mod plain;
mod prefix;
mod puts;
mod scan;
mod server;
mod sinks;
mod turn;
mod verbs;
mod waiting;

use pyo3::prelude::{Bound, PyModule, PyModuleMethods, PyResult};

/// The native part of `oneread`.
#[pyo3::pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch();
    waiting::begin(module.py())?;
    log::watch(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::PutTicket>()?;
    module.add_class::<cluster::ClusterChanges>()?;
    module.add_class::<cluster::ClusterClient>()?;
    module.add_class::<cluster::ClusterScan>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<index::Index>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<feed::Changes>()?;
    module.add_class::<prefix::LocationIndex>()?;
    module.add_class::<prefix::PlacementIndex>()?;
    module.add_class::<prefix::Holder>()?;
    module.add_class::<prefix::EventStream>()?;
    module.add_function(pyo3::wrap_pyfunction!(log::log_level, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(options::time_to_live, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(plain::plain_dumps, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(plain::plain_loads, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(server::listener, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(prefix::block_hashes, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(command::main, module)?)?;
    Ok(())
}

/// Python's objects begin at multiples of this.
const OBJECT_ALIGN: usize = 16;

const _: () = {
    assert!(align_of::<client::Client>() <= OBJECT_ALIGN && align_of::<client::PutTicket>() <= OBJECT_ALIGN);
    assert!(align_of::<server::Server>() <= OBJECT_ALIGN && align_of::<index::Index>() <= OBJECT_ALIGN);
    assert!(align_of::<cluster::ClusterClient>() <= OBJECT_ALIGN);
    assert!(align_of::<cluster::ClusterScan>() <= OBJECT_ALIGN);
    assert!(align_of::<cluster::ClusterChanges>() <= OBJECT_ALIGN);
    assert!(align_of::<prefix::LocationIndex>() <= OBJECT_ALIGN);
    assert!(align_of::<prefix::PlacementIndex>() <= OBJECT_ALIGN);
    assert!(align_of::<prefix::Holder>() <= OBJECT_ALIGN);
    assert!(align_of::<prefix::EventStream>() <= OBJECT_ALIGN);
    assert!(align_of::<scan::Scan>() <= OBJECT_ALIGN && align_of::<feed::Changes>() <= OBJECT_ALIGN);
};
