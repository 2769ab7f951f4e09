//! The library's errors as Python's: the classes of `oneread/_errors.py`, with the library's text.

use oneread::ErrorKind;
use oneread::error::{
    AskError, ConfigError, ConnectError, FeedError, GetError, KeyError, MutateError, PutError, ReadError,
    RegionError, ServeError, SnapshotError, TlsError,
};
use oneread::internals::words::{self, Door};
use oneread_cluster::client::ClusterError;
use oneread_cluster::etcd::EtcdError;
use oneread_prefix::PrefixError;
use pyo3::prelude::{Bound, Py, PyAnyMethods, PyErr, PyModule, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::error::Error;
use std::fmt::Write;

/// What a caller does about an error of the library: its class.
fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "Invalid",
        ErrorKind::Unreachable => "Disconnected",
        ErrorKind::TimedOut => "Timeout",
        ErrorKind::Busy => "Busy",
        ErrorKind::Full => "Full",
        ErrorKind::Refused => "Refused",
        ErrorKind::Incompatible => "Incompatible",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Undecrypted => "Undecrypted",
        ErrorKind::System => "SystemRefused",
        ErrorKind::Cancelled => "Cancelled",
        _ => "OnereadError",
    }
}

/// An error of the library, with its class.
pub(crate) trait Classed: Error {
    fn class(&self) -> &'static str;

    /// Whether a change may have been made all the same.
    fn maybe_made(&self) -> bool {
        false
    }

    /// Of a change of a batch: whether nobody knows if it was made.
    fn is_unknown(&self) -> bool {
        false
    }

    /// Of a change of a batch: whether nobody answers. Further changes would wait as long, in vain.
    fn ends_batch(&self) -> bool {
        false
    }
}

/// Those whose class follows from their kind alone.
macro_rules! by_kind {
    ($($error:ty),*) => {$(
        impl Classed for $error {
            fn class(&self) -> &'static str {
                class_of(self.kind())
            }
        }
    )*};
}

by_kind!(
    AskError,
    ConfigError,
    ConnectError,
    FeedError,
    ReadError,
    RegionError,
    ServeError,
    SnapshotError,
    TlsError
);

impl<E: Classed> Classed for Box<E> {
    fn class(&self) -> &'static str {
        (**self).class()
    }

    fn maybe_made(&self) -> bool {
        (**self).maybe_made()
    }
}

impl Classed for GetError {
    fn class(&self) -> &'static str {
        match self {
            GetError::KeyLength { .. } => "KeyTooLong",
            error => class_of(error.kind()),
        }
    }
}

impl Classed for KeyError {
    fn class(&self) -> &'static str {
        match self {
            KeyError::Length(_) => "KeyTooLong",
            error => class_of(error.kind()),
        }
    }
}

impl Classed for MutateError {
    fn class(&self) -> &'static str {
        match self {
            MutateError::KeyLength { .. } => "KeyTooLong",
            MutateError::ValueLength { .. } | MutateError::EncryptedLength { .. } => "ValueTooLong",
            error => class_of(error.kind()),
        }
    }

    fn maybe_made(&self) -> bool {
        matches!(self, MutateError::ServerGone { .. } | MutateError::Deadline { .. })
    }
}

impl Classed for PutError {
    fn class(&self) -> &'static str {
        match self {
            PutError::KeyLength { .. } => "KeyTooLong",
            PutError::ValueLength { .. } | PutError::EncryptedLength { .. } => "ValueTooLong",
            error => class_of(error.kind()),
        }
    }
}

impl Classed for PrefixError {
    fn class(&self) -> &'static str {
        match self {
            PrefixError::Digest(_)
            | PrefixError::Count { .. }
            | PrefixError::Name { .. }
            | PrefixError::Grouped => "Invalid",
            PrefixError::Table { .. } => "Incompatible",
            PrefixError::Holders { .. } => "Full",
            PrefixError::HolderGone { .. } => "HolderGone",
            PrefixError::Busy { .. } => "Busy",
            PrefixError::Get(error) => error.class(),
            PrefixError::Change(error) => error.class(),
            PrefixError::Refused(error) => error.class(),
            PrefixError::Connect(error) => error.class(),
            PrefixError::Scan(error) => error.class(),
            _ => "OnereadError",
        }
    }

    fn maybe_made(&self) -> bool {
        matches!(self, PrefixError::Change(error) if error.maybe_made())
    }
}

impl Classed for EtcdError {
    fn class(&self) -> &'static str {
        match self {
            EtcdError::NoEndpoint
            | EtcdError::Endpoint { .. }
            | EtcdError::Config(_)
            | EtcdError::NotThere { .. } => "Invalid",
            EtcdError::Denied { .. } => "Refused",
            EtcdError::File { .. } => "SystemRefused",
            EtcdError::Call { .. } | EtcdError::NoLeader { .. } => "Disconnected",
            EtcdError::Compacted | EtcdError::Watch(_) => "Disconnected",
            EtcdError::NoSpace { .. } => "Full",
            EtcdError::Late { .. } => "Timeout",
            EtcdError::Value { .. } => "Corrupt",
            EtcdError::Foreign { .. } => "Incompatible",
            EtcdError::Busy { .. } => "Busy",
            // What only an operator's calls say.
            _ => "OnereadError",
        }
    }
}

impl Classed for ClusterError {
    fn class(&self) -> &'static str {
        match self {
            ClusterError::Etcd(error) => error.class(),
            ClusterError::Threads(_) => "SystemRefused",
            ClusterError::Invalid { key_len, key_max, .. } if !(1..=*key_max).contains(key_len) => {
                "KeyTooLong"
            }
            ClusterError::Invalid { value_len, value_max, .. } if value_len > value_max => "ValueTooLong",
            ClusterError::Invalid { .. }
            | ClusterError::Position
            | ClusterError::TimeToLive { .. }
            | ClusterError::NoLife { .. }
            | ClusterError::NoOwners { .. }
            | ClusterError::OwnerNumber { .. }
            | ClusterError::AbsentFor { .. } => "Invalid",
            ClusterError::OwnerTaken { .. } | ClusterError::OwnerGone { .. } => "Refused",
            ClusterError::OwnerLeaves { .. } => "Timeout",
            ClusterError::Unavailable { .. } => "Unavailable",
            ClusterError::NotDone { .. } => "NotDone",
            ClusterError::Unknown { .. } => "Unknown",
            ClusterError::Full { .. } => "Full",
            _ => "OnereadError",
        }
    }

    fn is_unknown(&self) -> bool {
        matches!(self, ClusterError::Unknown { .. })
    }

    fn ends_batch(&self) -> bool {
        !matches!(self, ClusterError::Full { .. })
    }
}

/// The error in words, with its causes.
pub(crate) fn told(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// An error of the library, raised.
pub(crate) trait Raise<R> {
    fn raise(self, py: Python<'_>) -> PyResult<R>;
}

impl<R, E: Classed> Raise<R> for Result<R, E> {
    #[inline]
    fn raise(self, py: Python<'_>) -> PyResult<R> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(raised(py, &error)),
        }
    }
}

/// This error of the library.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &dyn Classed) -> PyErr {
    let raised = error_of(py, error.class(), told(error));
    if error.maybe_made() { is_maybe_made(py, raised) } else { raised }
}

/// This error, which says that a change may have been made all the same.
#[cold]
pub(crate) fn is_maybe_made(py: Python<'_>, error: PyErr) -> PyErr {
    match error.value(py).setattr("maybe_made", true) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// An error of this class, in Python's words.
#[cold]
pub(crate) fn error_of(py: Python<'_>, class: &str, text: String) -> PyErr {
    match class_named(py, class) {
        Ok(class) => PyErr::from_type(class, words::said(Door::Python, &text)),
        Err(error) => error,
    }
}

/// An error about one key of a batch.
#[cold]
pub(crate) fn error_at(py: Python<'_>, class: &str, text: String, position: usize) -> PyErr {
    let error = error_of(py, class, text);
    match error.value(py).setattr("position", position) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// The class of this name.
pub(crate) fn class_named<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || PyModule::import(py, "oneread._errors").map(Bound::unbind))?;
    Ok(errors.bind(py).getattr(name)?.cast_into::<PyType>()?)
}
