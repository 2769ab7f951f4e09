#![doc = include_str!("docs/links.md")]
//! A hash index in a server's memory. Clients look keys up themselves: with loads from shared memory on
//! the same host, with one RDMA READ from another. The server's CPU has no part in that.
//!
//! ```
//! use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("prices.sock");
//! let address = Address::Shm(path); // a Unix socket
//! // A table that grows with its keys, up to 1 GiB.
//! let table = Config::new().size(TableSize::up_to(1 << 30));
//! let server = Server::start(ServerConfig::new(address.clone(), table))?;
//!
//! // In this process, or any other one of this user:
//! let mut client = Client::connect(&address)?;
//! client.put(b"ACME", b"101.25")?; // a request to the server
//! let price = client.get(b"ACME")?; // 1 READ, no request
//! assert_eq!(price.as_deref(), Some(&b"101.25"[..]));
//! server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It runs on Linux, x86-64 and aarch64. RDMA is the cargo feature `verbs`; without it nothing has to
//! be installed. Keys and values are bytes. The [cookbook](docs::cookbook) has the usual tasks, each in
//! some lines.
//!
//! # Values with a type
//!
//! A struct of plain numbers is its own bytes. With [bytemuck](https://docs.rs/bytemuck):
//!
//! ```
//! use bytemuck::{Pod, Zeroable};
//!
//! #[repr(C)]
//! #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
//! struct Quote {
//!     bid: f64,
//!     ask: f64,
//!     volume: u64,
//! }
//!
//! # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//! # let dir = tempfile::tempdir()?;
//! # let address = Address::Shm(dir.path().join("s"));
//! # let table = Config::new().size(TableSize::Keys(100));
//! # let server = Server::start(ServerConfig::new(address.clone(), table))?;
//! # let mut client = Client::connect(&address)?;
//! let quote = Quote { bid: 101.2, ask: 101.3, volume: 7_000 };
//! client.put(b"ACME", bytemuck::bytes_of(&quote))?; // no copy
//!
//! let mut bytes = Vec::new(); // used again by each GET
//! if client.get_into(b"ACME", &mut bytes)? {
//!     // An error if the value has another length.
//!     let found = bytemuck::try_pod_read_unaligned::<Quote>(&bytes);
//!     assert_eq!(found, Ok(quote));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The bytes are those of the machine that put them. x86-64 and aarch64 have the same order.
//!
//! Everything else needs a format, as [serde](https://docs.rs/serde) has many:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Deserialize, PartialEq, Serialize)]
//! struct User {
//!     name: String,
//!     groups: Vec<String>,
//! }
//!
//! # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//! # let dir = tempfile::tempdir()?;
//! # let address = Address::Shm(dir.path().join("s"));
//! # let table = Config::new().size(TableSize::Keys(100));
//! # let server = Server::start(ServerConfig::new(address.clone(), table))?;
//! # let mut client = Client::connect(&address)?;
//! let user = User { name: "Ada".into(), groups: vec!["admin".into()] };
//! client.put(b"user:1", &serde_json::to_vec(&user)?)?;
//!
//! if let Some(bytes) = client.get(b"user:1")? {
//!     let found: User = serde_json::from_slice(&bytes)?;
//!     assert_eq!(found, user);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which types
//!
//! | to | take |
//! |---|---|
//! | serve a table | [`Server`], with a [`ServerConfig`] around the table's [`Config`] |
//! | keep a table over restarts | [`Backing::File`] with [`StartMode::OpenOrCreate`] |
//! | keep it over crashes of the machine | [`ServerConfig::snapshots`] |
//! | change or read it in the server's own process | [`Server::index`]: an [`Index`](embedded::Index) |
//! | get and change keys from elsewhere | [`Client`], one clone for each thread; [`ClientOptions`] |
//! | count, set bits or append without a get | [`Client::incr`], [`Client::add`], [`Client::or`], [`Client::append`], [`Client::change_part`] |
//! | have an entry end later, or earlier | [`Client::touch`] |
//! | share a client among threads, or tasks (feature `tokio`) | [`ClientPool`] |
//! | say where the server is | [`Address`] |
//! | bound what a GET or a change may take | [`ClientOptions::limits`], [`ClientOptions::deadline`] |
//! | see why a GET, a change or a start failed, and what to do | [`GetError`], [`MutateError`], [`AskError`], [`ConnectError`], [`ServeError`]; the module [`error`] |
//! | keep values from the server | [`Encryption`], as [`ClientOptions::encryption`] |
//! | go over TCP, where there is no RDMA | [`TcpAddress`], [`ServerConfig::tcp`], [`Token`]; with TLS [`ServerTls`], [`ClientTls`] |
//! | go over RDMA | [`VerbsAddress`], [`VerbsOptions`], [`Token`] |
//! | choose a layout | [`Config::layout`] and [`presets`]; the module [`layout`] |
//! | count | [`Client::stats`], [`ClientPool::stats`], [`Server::stats`]; the module [`stats`]; for Prometheus and others the module `metrics` (feature `metrics`) |
//! | have a table without a server or sockets | the module [`embedded`]; over a network of your own, [`fabric`] |
//! | have values land in your own memory | the module [`sink`] |
//! | keep all keys and values in a file | the module [`snapshot`] |
//!
//! Whole programs are in the package's folder `examples`: `server.rs` and `client.rs`, `typed.rs` and
//! `serde.rs` (the two above), `tokio.rs` and `feed.rs`, a client and a follower in an async program, and `fabric.rs`, READs that go another way.
//!
//! # Cargo features
//!
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `encryption` | `Encryption::new`: values that only clients with a key can read | nothing |
//! | `metrics` | the module `metrics`: all counts, for the facade crate of that name | nothing |
//! | `tls` | `ServerTls::new`, `ClientTls::new`: TLS 1.3 over TCP, by rustls | to build: a C compiler |
//! | `tokio` | `ClientPool::run`: changes from tasks of a tokio program | nothing |
//! | `verbs` | addresses that begin with `verbs:` ([VERBS.md]) | to build: the headers of libibverbs, and libclang; to run: `libibverbs.so.1` and a device |
//! | `herd` | for comparison: requests made HERD's way; enables `verbs` | as `verbs` |
//! | `sim`, `faults` | for the tests of this crate | nothing |
//!
//! On Debian, `verbs` is built with `apt-get install gcc libc6-dev libibverbs-dev libclang-dev`.
//! [Operations](docs::operations#installing) says how to keep it from compiling more than it needs. Rust
//! 1.88 or newer is needed, with all features or none.
//!
//! # What is promised
//!
//! * **Single-key operations are linearizable.** A GET answers with a value that the key had at some
//!   instant of the GET, or with absence if it was absent at some instant of it. Otherwise it ends in a
//!   typed error that names the bound it reached. [PROTOCOL.md] has the proofs, the residual rate of
//!   wrong answers (none on shm), and the exception: reads of the region of a *killed* server.
//! * **GETs go on without the server**, for a client that is connected. Suspended, busy, in a debugger:
//!   GETs work. Killed, or stopped with a region file: on shm until the client's lease ends (10 s unless
//!   set); over verbs they end. Back at the same address: the client reconnects by itself. [`Client`]
//!   has the exact terms.
//! * **No byte is trusted.** Any bytes in the region or on the socket give a value, a miss or an error.
//!   Clients cannot write to the region. [SECURITY.md] says who is trusted.
//! * **Every wait for the server has a bound.** [`ClientOptions`] sets it, and an error names it.
//!
//! What it does not do: transactions over several keys.
//!
//! # Read on
//!
//! | page | for |
//! |---|---|
//! | [cookbook](docs::cookbook) | the usual tasks in Rust, and in the shell |
//! | [operations](docs::operations) | whoever runs a server: installing, sizes, restarts, what each error means |
//! | [security](docs::security) | who may do what, and what encryption protects |
//! | [verbs](docs::verbs) | RDMA: devices, addresses, machines without one |
//! | [benchmarks](docs::benchmarks) | times, beside maps and requests |
//! | [layouts](docs::layouts) | what a GET costs, layout by layout |
//! | [architecture](docs::architecture) | whoever reads the code |
//! | [protocol](docs::protocol), [format](docs::format) | every rule and every byte |
//!
//! [`docs`] has them all.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod base;
mod chained;
mod client;
mod config;
mod cuckoo;
pub mod docs;
pub mod driven;
pub mod embedded;
mod encryption;
pub mod error;
pub mod fabric;
mod faults;
mod files;
mod get;
#[cfg(feature = "herd")]
mod herd;
mod hints;
mod hopscotch;
mod index;
mod inspect;
pub mod internals;
pub mod layout;
mod log;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
#[cfg(feature = "metrics")]
pub mod metrics;
mod outcome;
mod part;
mod placement;
mod reader;
mod region;
mod server;
#[cfg(feature = "sim")]
mod sim;
pub mod sink;
pub mod snapshot;
pub mod stats;
mod tls;
mod verbs;
mod wire;

// No page here, but its Rust is tested all the same.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

// What most programs need. The rest has a page for each purpose.
pub use address::{Address, TcpAddress, VerbsAddress};
pub use client::values::Values;
pub use client::{
    AskError, BatchAnswer, ChangeFeed, Client, ClientOptions, ClientPool, ConnectError, EntryLife, FeedError,
    FeedFrom, FeedInterrupter, FeedItem, FeedOptions, FeedPosition, GapCause, GetError, LifeAnswer,
    MutateError, OwnerOptions, PooledClient, PutTicket, RequestPath, Scan, ScanCursor, ScannedKey,
};
pub use config::{Config, Evict, StartLimits, TableSize};
pub use encryption::Encryption;
pub use error::ErrorKind;
pub use index::{Cleared, LeftCause};
pub use log::{Fsync, LogConfig};
pub use outcome::{PutMode, PutOptions, PutOutcome, SwapOutcome};
pub use part::{NewNumber, PartChange, PartEffect, PartOutcome, Tell};
pub use placement::Preset;
pub use placement::families::presets;
pub use reader::Limits;
pub use region::Backing;
pub use server::{ServeError, Server, ServerConfig, Snapshots, StartMode};
pub use tls::{ClientTls, ServerTls};
pub use verbs::{DeviceChoice, VerbsOptions, Wait};
pub use wire::proof::Token;
