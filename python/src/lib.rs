//! The native part of the Python package `oneread`: the module `oneread._native`.
//!
//! It has the library's nouns, and Python's buffers. What is more like Python (a dict, `asyncio`, pickles) is written
//! in Python, above it.
//!
//! No call panics on what a program gives it. Whatever waits is done without the interpreter's lock.

mod client;
mod convert;
mod counts;
mod error;
mod fork;
mod handles;
mod keys;
mod log;
mod options;
mod server;
mod sinks;

use pyo3::prelude::{Bound, PyModule, PyModuleMethods, PyResult};

/// The native part of `oneread`.
#[pyo3::pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::PutTicket>()?;
    module.add_class::<server::Server>()?;
    Ok(())
}
