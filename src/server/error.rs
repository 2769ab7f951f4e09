//! Why a server could not start.

use crate::address::{Address, AddressError};
use crate::config::{ConfigError, TableSize};
use crate::error::mend;
use crate::files::FileError;
use crate::index::{RecoverError, RestoreError};
use crate::log::LogError;
use crate::outcome::PutError;
use crate::region::RegionError;
use crate::snapshot::SaveError;
#[cfg(feature = "verbs")]
use crate::verbs::SetupError;
use std::io;
use std::path::PathBuf;

const THREADS: &str = "raise its limits (`ulimit -u`, `ulimit -v`, or a control group's pids.max)";

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No socket can have this address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A table with this configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The region could not be made or opened.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The folder of the default address is not this user's alone.
    #[error(transparent)]
    File(#[from] FileError),
    /// The table does not fit into the memory that is left. None was taken.
    #[error("the table does not fit; one of {fits} would")]
    NoRoom {
        /// How much is missing, and where.
        source: RegionError,
        /// The largest table of this shape that fits.
        fits: TableSize,
    },
    /// The existing region cannot be used.
    #[error("{what} cannot be taken over")]
    Recover {
        /// The region's file.
        what: String,
        /// Why not.
        source: RecoverError,
    },
    /// The snapshot cannot be read, or does not fit the table. No table was made, and no snapshot was
    /// changed.
    #[error("the keys of {} cannot be restored", path.display())]
    Restore {
        /// The snapshot.
        path: PathBuf,
        /// Why not.
        source: RestoreError,
    },
    /// No snapshot can be made at the path in [`ServerConfig::snapshots`](super::ServerConfig::snapshots).
    #[error(transparent)]
    Snapshots(#[from] SaveError),
    /// The log cannot be used ([`ServerConfig::log`](super::ServerConfig::log)). It has not changed.
    #[error("the log in {} cannot be used", path.display())]
    Log {
        /// The log's folder.
        path: PathBuf,
        /// Why not.
        source: LogError,
    },
    /// A change that the log has cannot be made again: the table has no room for it.
    #[error("the log in {} cannot be made again: record {number} has no room in this table; make a larger table", path.display())]
    Replay {
        /// The log's folder.
        path: PathBuf,
        /// The record.
        number: u64,
        /// Why not.
        source: PutError,
    },
    /// [`ServerConfig::cancel`](super::ServerConfig::cancel) has become true. Nothing is left of a new table.
    #[error("the start was cancelled before the table was ready")]
    Cancelled,
    /// Only a region file can be opened ([`StartMode::Open`](super::StartMode::Open)). Other memory does not outlive its
    /// server. For a file that does not exist, the error is [`RegionError::Missing`].
    #[error("only a region file can be opened again; name one, or create a new table")]
    NothingToOpen,
    /// The option belongs to another fabric.
    #[error(
        "`ServerConfig::{option}` is an option of servers over {fabric}, not of one at {address}; leave it out"
    )]
    Elsewhere {
        /// The option's name.
        option: &'static str,
        /// The fabric that has this option.
        fabric: &'static str,
        /// The address.
        address: Address,
    },
    /// [`ServerConfig::read_token`](super::ServerConfig::read_token) without a [`ServerConfig::token`](super::ServerConfig::token) of another content. Everybody,
    /// or every reader, could change the table.
    #[error(
        "a token for readers keeps nobody from changes without another one for changes; set `ServerConfig::token`, too"
    )]
    ReadToken,
    /// More threads than [`ServerConfig::workers`](super::ServerConfig::workers) may be.
    #[error(
        "`ServerConfig::workers` is {workers}; it is at most {max}, and a server needs no more than its host has cores"
    )]
    Workers {
        /// The threads that were asked for.
        workers: usize,
        /// The most that there may be.
        max: usize,
    },
    /// No entry of this table can live as long as [`ServerConfig::ttl`](super::ServerConfig::ttl) says.
    #[error("`ServerConfig::ttl` does not fit this table; it needs a time above 0, and `Config::life`")]
    TimeToLive(#[source] PutError),
    /// Another server is at the address.
    #[error("another server is at {address}; stop it, or serve at another address")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// Something else is where the socket would be.
    #[error(
        "there is a {kind} at {}, where the server's socket would be; remove it, or serve at another address",
        path.display()
    )]
    NoSocket {
        /// The socket's path.
        path: PathBuf,
        /// What it is: a file, a folder, a link.
        kind: &'static str,
    },
    /// There is no folder for the socket.
    #[error("there is no folder {} for the server's socket; make it, or serve at another address", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("listening at {address} failed; {}", mend::of(source).unwrap_or("may you write into that folder?"))]
    Listen {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The port could not be opened.
    #[error(
        "listening at {address} failed; {}",
        mend::of(source).unwrap_or("name an address and a port of this host that nobody has")
    )]
    ListenTcp {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Over TCP, others than this host could connect, and there is no token ([`ServerConfig::token`](super::ServerConfig::token)).
    #[error(
        "at {address} everybody who reaches this host could read and change the table; set a token (`ServerConfig::token`), or listen at 127.0.0.1"
    )]
    NoToken {
        /// The address.
        address: Address,
    },
    /// [`ServerConfig::tcp`](super::ServerConfig::tcp) beside an address that is of TCP itself.
    #[error("a server has one address of TCP; leave `ServerConfig::tcp` out")]
    TwoPorts,
    /// This build has no verbs fabric.
    #[error(
        "this build of oneread cannot serve at {address}: it has no verbs fabric; build it with the cargo feature `verbs`"
    )]
    NotBuilt {
        /// The address.
        address: Address,
    },
    /// Verbs could not be set up.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] SetupError),
    /// The process may open so few file descriptors that no client could connect.
    #[error(
        "this process may have {limit} file descriptors, of which none is left for a client; raise the limit (RLIMIT_NOFILE, `ulimit -n`), or ask for fewer `ServerConfig::workers`"
    )]
    Descriptors {
        /// The limit.
        limit: u64,
    },
    /// Threads or event queues could not be made.
    #[error("the system refuses threads, or what they need, to the server; {}", mend::of(.0).unwrap_or(THREADS))]
    Threads(#[source] io::Error),
}
