//! A table without a server: in memory that you choose, changed and read by your own threads.
//!
//! A [`Region`] is the memory. An [`Index`] makes every change to the table in it, from any number of
//! threads. A [`Reader`] does the GET that clients do, over any [`Fabric`](crate::fabric::Fabric).
//!
//! ```
//! use oneread::embedded::{Clock, Index, Region};
//! use oneread::{Backing, Config, PutMode, TableSize};
//!
//! let geometry = Config::new().size(TableSize::Keys(1_000)).geometry()?;
//! let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
//! let index = Index::create(region, geometry, Clock::System)?;
//! index.put(b"ACME", b"101.25", PutMode::Upsert)?;
//!
//! let (mut reader, mut value) = (index.reader(), Vec::new());
//! assert!(reader.get_into(b"ACME", &mut value)? && value == b"101.25");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The region may be a file that other processes map, or memory that a network card reads. What they
//! need to know of the table is in its first page ([`Geometry`](crate::layout::Geometry)). Who may
//! write into it is up to you: an `Index` takes the lock of a region file, and there may be one only.

pub use crate::base::clock::Clock;
pub use crate::index::{Index, KeyCursor, OwnerSession, Recovered, Restored, StartSession};
pub use crate::reader::Reader;
pub use crate::region::{Backing, MemoryShare, Region};
