//! What clients, servers and tables count, and what a server says of its start and its end.
//!
//! Each number is exact, but those of one struct may be of different instants while others work. All
//! structs are `#[non_exhaustive]`: later versions count more.
//!
//! ```
//! # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//! # let dir = tempfile::tempdir()?;
//! # let address = Address::Shm(dir.path().join("s"));
//! # let table = Config::new().size(TableSize::Keys(100));
//! # let server = Server::start(ServerConfig::new(address.clone(), table))?;
//! let mut client = Client::connect(&address)?;
//! client.put(b"ACME", b"101.25")?;
//! client.get(b"ACME")?;
//! client.get(b"none")?;
//! let stats = client.stats();
//! assert_eq!((stats.get.gets, stats.get.hits), (2, 1));
//! # server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | counted by | what |
//! |---|---|
//! | a handle ([`Client::stats`](crate::Client::stats)) | [`ClientStats`]: GETs, READs, changes, failures, hints |
//! | all handles of a pool ([`ClientPool::stats`](crate::ClientPool::stats)) | the same, added up |
//! | a server ([`Server::stats`](crate::Server::stats), or asked by a client) | [`ServerStats`] |
//! | a server, of the requests that it refused ([`Server::refused`](crate::Server::refused)) | [`RefusedCounts`] |
//! | a server, of GETs on its host and over TCP ([`Server::get_counts`](crate::Server::get_counts), or asked by a client) | [`GetCounts`] |
//! | a server, of what clients hold ([`Server::client_memory`](crate::Server::client_memory), or asked by a client) | [`ClientMemoryCounts`], [`HeldCounts`] |
//! | a server with a log ([`Server::log`](crate::Server::log), or asked by a client) | [`LogStatus`] |
//! | a server that takes the times of puts ([`ServerConfig::timed`](crate::ServerConfig::timed)) | [`ServerTimes`] |
//! | a handle that takes those of GETs ([`ClientOptions::timed`](crate::ClientOptions::timed)) | [`TimeCounts`] |
//! | a table ([`Index::counts`](crate::embedded::Index::counts)) | [`IndexCounts`], [`GrowthCounts`], [`HeapCounts`], [`StartCounts`] |
//!
//! With the cargo feature `metrics`, `oneread::metrics` gives all of them to the facade crate of that name.

pub use crate::base::times::{TIME_RANGES, TimeCounts};
pub use crate::client::{ChangeCounts, ClientCounters, ClientStats, FailureCounts, RequestCounts};
pub use crate::log::LogStatus;
pub use crate::outcome::{
    EvictCounts, GetCounts, GrowthCounts, HeapCounts, IndexCounts, NoteCounts, StartCounts,
};
pub use crate::reader::{GetStats, HintCounts, ReadCounts};
pub use crate::server::{
    ClientMemoryCounts, MailboxCounts, RefusedCounts, StartProgress, StartStep, Stopped,
};
#[cfg(feature = "verbs")]
pub use crate::verbs::QueueCounts;
pub use crate::wire::{HeldCounts, ServerStats, ServerTimes, SlowPut, SnapshotStatus};
