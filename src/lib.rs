#![doc = include_str!("docs/links.md")]
#![doc = include_str!("../README.md")]
//!
//! ## Which types
//!
//! | to | take |
//! |---|---|
//! | serve a table | [`Server`], with a [`ServerConfig`] around the table's [`Config`] |
//! | keep a table over restarts | [`Backing::File`] with [`StartMode::OpenOrCreate`] |
//! | change or read it in the server's own process | [`Server::index`]: an [`Index`] |
//! | get and change keys from elsewhere | [`Client`], one clone for each thread; [`ClientOptions`] |
//! | say where the server is | [`Address`] |
//! | bound what a GET or a change may take | [`ClientOptions::limits`], [`ClientOptions::deadline`] |
//! | see why a GET, a change or a start failed | [`GetError`], [`MutateError`], [`ConnectError`], [`ServeError`] |
//! | keep values from the server (feature `encryption`) | `Encryption`, as `ClientOptions::encryption` |
//! | go over RDMA (feature `verbs`) | [`VerbsAddress`], [`VerbsOptions`], [`Token`] |
//! | choose a layout | [`Config::layout`] and [`presets`] |
//! | count | [`Client::stats`], [`Server::stats`] |
//! | have a table without a server or sockets | [`Region`], [`Index`] and [`Reader`] over a [`Fabric`] |
//!
//! `examples/server.rs` and `examples/client.rs` are whole programs, `examples/tokio.rs` is a client
//! in an async one.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod chained;
mod clock;
mod config;
mod cores;
mod cuckoo;
pub mod docs;
#[cfg(feature = "encryption")]
mod encryption;
#[cfg(feature = "herd")]
mod herd;
mod hopscotch;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod observe;
mod outcome;
#[cfg(feature = "plan")]
pub mod plan;
mod process;
mod room;
mod route;
mod setters;
#[doc(hidden)]
pub mod snapshot;
mod start;
mod sync;
mod values;

// Public for the tests, the fuzz targets, the benches and the command. Not for embedders.
#[doc(hidden)]
pub mod client;
#[doc(hidden)]
pub mod fabric;
#[doc(hidden)]
pub mod families;
#[doc(hidden)]
pub mod faults;
#[doc(hidden)]
pub mod get;
#[doc(hidden)]
pub mod hints;
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod inspect;
#[doc(hidden)]
pub mod layout;
#[doc(hidden)]
pub mod place;
#[doc(hidden)]
pub mod placement;
#[doc(hidden)]
pub mod reader;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod server;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
#[doc(hidden)]
pub mod verbs;
#[doc(hidden)]
pub mod wire;

// What an embedder needs to configure, to call, to handle errors and to read counts.
pub use address::{Address, AddressError, VerbsAddress};
pub use client::{
    BatchAnswer, ChangeCounts, Client, ClientCounters, ClientOptions, ClientStats, ConnectError,
    FailureCounts, GetError, LinkError, MutateError, RequestCounts, RequestPath,
};
pub use clock::Clock;
pub use config::{Config, ConfigError, TableSize};
#[cfg(feature = "encryption")]
pub use encryption::{DecryptError, EncryptError, Encryption};
pub use fabric::{Fabric, shm::Shm};
pub use families::presets;
pub use get::Retry;
pub use index::{Index, RecoverError, Recovered, RestoreError, Restored};
pub use layout::geometry::{Family, Geometry, Layout};
pub use layout::hash::Seeds;
pub use layout::superblock::SuperblockError;
pub use outcome::{
    GrowthCounts, HeapCounts, IndexCounts, KeyError, KeyLengthError, PutError, PutMode, PutOutcome,
    ReadError, SwapOutcome,
};
pub use place::PlaceError;
pub use placement::Preset;
pub use reader::{GetStats, HintCounts, Limits, ReadCounts, Reader};
pub use region::{Backing, MemoryShare, Region, RegionError};
pub use server::{
    MailboxCounts, ServeError, Server, ServerConfig, Snapshots, StartMode, StartProgress, StartStep, Stopped,
};
pub use snapshot::{
    SaveError, SaveStep, Saved, Snapshot, SnapshotBlock, SnapshotBlocks, SnapshotContent, SnapshotError,
    SnapshotTerms,
};
pub use values::Values;
#[cfg(feature = "verbs")]
pub use verbs::gid::{GidError, GidMismatch};
pub use verbs::{DeviceChoice, Token, VerbsOptions, Wait};
#[cfg(feature = "verbs")]
pub use verbs::{QueueCounts, SetupError, VerbsError};
pub use wire::{Refusal, ServerStats, SnapshotStatus, WireError};
