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
#[cfg(feature = "verbs")]
mod herd;
pub mod hopscotch;
pub mod index;
pub mod inspect;
pub mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod observe;
pub mod placement;
pub mod reader;
pub mod region;
pub mod server;
#[cfg(feature = "sim")]
pub mod sim;
mod sync;
pub mod verbs;
pub mod wire;

pub use address::Address;
pub use client::{Client, ClientOptions, ConnectError, GetError, MutateError, RequestPath};
pub use clock::Clock;
pub use config::{Config, ConfigError, TableSize};
pub use index::{Index, PutError, PutMode, PutOutcome};
pub use layout::geometry::{Geometry, Layout};
pub use server::{ServeError, Server, ServerConfig, StartMode};
