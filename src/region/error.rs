//! Why a region's memory could not be had, and what would help.

use crate::base::units;
use crate::error::mend;
use crate::files::FileError;
use std::io;
use std::path::PathBuf;

/// Why a region's memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A system call failed.
    #[error("{doing} {what}{}", hint(source))]
    Os {
        /// What was tried.
        doing: &'static str,
        /// On what.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Memory that is there could not be mapped: the process has no addresses left for it.
    #[error(
        "mapping {what} ({}): this process has no address space left for it; raise its limit (RLIMIT_AS, `ulimit -v`)",
        units::bytes(*bytes)
    )]
    AddressSpace {
        /// What was to be mapped.
        what: String,
        /// Its length.
        bytes: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Too few huge pages are reserved, or free.
    #[error(
        "{} in huge pages of 2 MiB are not to be had; reserve more (sysctl vm.nr_hugepages={}), or serve without them",
        units::bytes(*bytes),
        bytes.div_ceil(2 << 20)
    )]
    HugePages {
        /// Bytes asked for.
        bytes: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file, or the folder of a default place, is not this user's alone.
    #[error(transparent)]
    File(#[from] FileError),
    /// The memory that a server handed over is not sealed, and no file of a trusted user either.
    #[error(
        "the server handed over memory that could be made shorter while it is read; it is no server of oneread's; name another address"
    )]
    Unsealed,
    /// Memory that a table was to grow into cannot be registered with the network device.
    #[error(
        "memory for the table to grow into cannot be registered with the network device; raise the limit on locked memory (ulimit -l)"
    )]
    Unregistered {
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A new region does not fit into the memory that is left. None was taken.
    #[error(
        "a region of {} does not fit: {of} leaves {}; ask for a smaller table, or make room",
        units::bytes(*need),
        units::bytes(*left)
    )]
    NoRoom {
        /// Bytes needed.
        need: u64,
        /// Bytes left.
        left: u64,
        /// What bounds them.
        of: String,
    },
    /// A server ended while it made the table in this file, or is still at it. Nobody was ever served from it.
    #[error(
        "the table in {} was never finished: its server ended while it made it, or is still at it; it has no keys, and the next start makes it again",
        path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// The start was cancelled ([`ServerConfig::cancel`](crate::ServerConfig::cancel)).
    #[error("the start was cancelled")]
    Cancelled,
    /// There is no file to open.
    #[error("there is no region file {}; `StartMode::OpenOrCreate` makes one", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another server has the file open.
    #[error("{} is in use by another server; stop it, or serve another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Other names lead to the file, and a server by another name would have another lock.
    #[error(
        "other names lead to {} (hard links, or a mount of the file itself), and a server by another name would not see the lock of this one; leave it one name, or mount its folder",
        path.display()
    )]
    SeveralNames {
        /// The file.
        path: PathBuf,
    },
    /// The file is there already and not empty, and was to be made.
    #[error(
        "{} is there already ({have} bytes; a new table needs {need}); take it over with `StartMode::OpenOrCreate`, or remove it",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        have: u64,
        /// The length asked for.
        need: u64,
    },
}

fn hint(error: &io::Error) -> String {
    let own = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOMEM) => " (not enough memory: ask for a smaller table, or free some)",
        Some(rustix::io::Errno::NOSPC) => {
            " (the file system is full: make room there, ask for a smaller table, or serve a file elsewhere)"
        }
        Some(rustix::io::Errno::FBIG) => {
            " (it is longer than this process may make a file: raise the limit, RLIMIT_FSIZE, `ulimit -f`)"
        }
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            " (check who owns it, or name a file of your own)"
        }
        Some(rustix::io::Errno::NOENT) => " (does the folder exist?)",
        _ => return mend::behind(error),
    };
    own.into()
}

pub(super) fn os(doing: &'static str, what: impl Into<String>) -> impl FnOnce(io::Error) -> RegionError {
    let what = what.into();
    move |source| RegionError::Os { doing, what, source }
}

/// Why `bytes` of memory that is there could not be mapped.
pub(super) fn unmapped(what: impl Into<String>, bytes: u64) -> impl FnOnce(io::Error) -> RegionError {
    let what = what.into();
    move |source| match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOMEM) => RegionError::AddressSpace { what, bytes, source },
        _ => RegionError::Os { doing: "mapping", what, source },
    }
}
