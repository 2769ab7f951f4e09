#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod address;
pub mod chained;
pub mod client;
pub mod clock;
pub mod config;
pub mod cuckoo;
pub mod fabric;
pub mod families;
pub mod faults;
pub mod get;
#[cfg(feature = "herd")]
mod herd;
pub mod hopscotch;
pub mod index;
pub mod inspect;
pub mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod observe;
mod outcome;
pub mod placement;
pub mod reader;
pub mod region;
pub mod server;
mod setters;
#[cfg(feature = "sim")]
pub mod sim;
mod sync;
pub mod verbs;
pub mod wire;

// What an embedder needs: to configure, to call, to handle errors, to read counts.
pub use address::{Address, AddressError};
pub use client::{
    Client, ClientOptions, ClientStats, ConnectError, GetError, LinkError, MutateError, RequestPath,
};
pub use clock::Clock;
pub use config::{Config, ConfigError, TableSize};
pub use families::presets;
pub use get::Retry;
pub use index::{Index, RecoverError, Recovered};
pub use layout::geometry::{Family, Geometry, Layout};
pub use layout::hash::Seeds;
pub use layout::superblock::SuperblockError;
pub use outcome::{IndexCounts, PutError, PutMode, PutOutcome};
pub use placement::Preset;
pub use reader::{GetStats, Limits, ReadCounts, ReadError, Reader};
pub use region::{Backing, Region, RegionError};
pub use server::{MailboxCounts, RegisterProgress, ServeError, Server, ServerConfig, StartMode};
pub use verbs::{DeviceChoice, Token, VerbsAddress, VerbsOptions, Wait};
#[cfg(feature = "verbs")]
pub use verbs::{SetupError, VerbsError};
pub use wire::{ServerStats, WireError};
