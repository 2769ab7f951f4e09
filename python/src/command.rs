//! The command `oneread`, which the package has, too.

#![allow(unsafe_code)]

use pyo3::prelude::Python;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command with these words, and returns its status. `program` and its words run it once more. Nothing else of
/// this process is to use signals, or to go on after it.
#[pyo3::pyfunction]
pub(crate) fn main(py: Python<'_>, program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    // Ctrl-C ends a command, as it ends a program that is not Python.
    // SAFETY: the default is a handler of SIGINT like any other.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let status = py.detach(|| oneread_cli::run(program, arguments));
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == status).unwrap_or(1)
}
