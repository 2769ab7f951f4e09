#![doc = include_str!("docs/links.md")]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod chained;
mod clock;
mod config;
mod cuckoo;
pub mod docs;
#[cfg(feature = "herd")]
mod herd;
mod hopscotch;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod observe;
mod outcome;
mod setters;
mod sync;

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
pub mod index;
#[doc(hidden)]
pub mod inspect;
#[doc(hidden)]
pub mod layout;
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
pub use address::{Address, AddressError};
pub use client::{
    Client, ClientOptions, ClientStats, ConnectError, GetError, LinkError, MutateError, RequestPath,
};
pub use clock::Clock;
pub use config::{Config, ConfigError, TableSize};
pub use fabric::{Fabric, shm::Shm};
pub use families::presets;
pub use get::Retry;
pub use index::{Index, RecoverError, Recovered};
pub use layout::geometry::{Family, Geometry, Layout};
pub use layout::hash::Seeds;
pub use layout::superblock::SuperblockError;
pub use outcome::{IndexCounts, PutError, PutMode, PutOutcome, ReadError};
pub use placement::Preset;
pub use reader::{GetStats, Limits, ReadCounts, Reader};
pub use region::{Backing, Region, RegionError};
pub use server::{MailboxCounts, RegisterProgress, ServeError, Server, ServerConfig, StartMode};
pub use verbs::{DeviceChoice, Token, VerbsAddress, VerbsOptions, Wait};
#[cfg(feature = "verbs")]
pub use verbs::{QueueCounts, SetupError, VerbsError};
pub use wire::{ServerStats, WireError};
