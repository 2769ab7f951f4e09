//! What the library logs, as Python's `logging` has it.

/// From now on it is handed on.
pub(crate) fn begin() {}
