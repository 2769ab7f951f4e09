//! Indexes for caches of LLM engines, over [`oneread`]: where is each block, and who has how long a prefix.
//!
//! Both are asked for every prompt, for up to thousands of digests at a time. Here whoever asks READs the answer
//! from the server's memory: by loads on the same host, by RDMA from another. So lookups go on while the server is
//! busy, sweeps, hangs, or is started again.
//!
//! They do not allocate memory for blocks, and move no data.
//!
//! | index | answers | an entry |
//! |---|---|---|
//! | [`LocationIndex`] | where each block is: tier, address and length at an endpoint | one line of 64 bytes |
//! | [`PlacementIndex`] | who has each block, and how long a prefix each has | one line of 64 bytes for 256 holders, up to 4,096 of them; or eight blocks in six lines |
//!
//! ```
//! use oneread::{Address, Client, PutOptions, Server, ServerConfig, TableSize};
//! use oneread_prefix::{Digests, Found, Location, LocationIndex, Search};
//!
//! # let dir = tempfile::tempdir()?;
//! let address = Address::Shm(dir.path().join("blocks.sock"));
//! let table = LocationIndex::config(TableSize::Keys(10_000));
//! let server = Server::start(ServerConfig::new(address.clone(), table))?;
//!
//! // An engine tells where its blocks are.
//! let mut index = LocationIndex::new(Client::connect(&address)?)?;
//! let endpoint = index.endpoint("10.0.0.7:7400")?;
//! let prompt: Vec<[u8; 16]> = (0..4u8).map(|block| [block; 16]).collect();
//! let at = |address| Location { endpoint, tier: 1, address, length: 65_536 };
//! let locations = [at(0), at(65_536), at(131_072)];
//! index.put(&Digests::from(&prompt[..3]), &locations, PutOptions::new())?;
//!
//! // Another one asks, fetches, and asks whether they still were there.
//! let (digests, mut found) = (Digests::from(&prompt[..]), [Found::default(); 4]);
//! assert_eq!(index.longest_prefix(&digests, Search::Exact)?, 3);
//! assert_eq!(index.locate_prefix(&digests, &mut found)?, 3);
//! assert_eq!(found[1].location(), Some(at(65_536)));
//! let mut same = [false; 4];
//! assert_eq!(index.revalidate(&digests, &found, &mut same)?, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod digests;
mod directory;
mod error;
mod events;
#[doc(hidden)]
pub mod faults;
mod groups;
mod hashes;
mod holders;
mod jumps;
mod location;
mod lookup;
mod names;
mod passes;
mod placement;
mod presence;
mod records;
mod sets;
mod table;

pub use digests::{Digests, KEY_BYTES, Key, WIDTHS};
pub use error::{DigestError, HashError, PrefixError};
pub use events::{EventOutcome, EventStream, KvEvent};
pub use hashes::{BlockHashes, HashScheme, block_hashes};
pub use holders::{Holder, HolderOptions};
pub use location::{Found, LOCATION_BYTES, Location, LocationIndex, Search};
pub use lookup::{BlockSet, HolderPrefix};
pub use names::NAME_MAX;
pub use passes::JumpCounts;
pub use placement::{Added, Cleaned, PlacementIndex};
pub use records::Keeps;
pub use sets::HOLDERS_MAX;
pub use table::{HOLDERS, IndexTable, PlacementTable};
