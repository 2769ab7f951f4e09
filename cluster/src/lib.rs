//! Tables of `oneread` on many nodes: shards over etcd, standbys, and READs that a deposed primary cannot spoil.
//!
//! What most programs need stands here; the rest has a page for each purpose. `docs/CLUSTER.md` has the rules; their ids
//! (CL1 and on) stand in the code.
//!
//! ```no_run
//! # #[cfg(feature = "net")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oneread_cluster::{ClusterClient, ClusterOptions, EtcdOptions};
//!
//! let etcd = EtcdOptions::new(["http://127.0.0.1:2379"]);
//! let mut client = ClusterClient::connect("demo".parse()?, etcd, ClusterOptions::default())?;
//! client.put(b"key", b"value")?;
//! assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..]));
//! # Ok(()) }
//! # #[cfg(not(feature = "net"))]
//! # fn main() {}
//! ```

#[cfg(feature = "net")]
pub mod client;
#[cfg(feature = "net")]
mod clock;
pub mod core;
#[cfg(feature = "net")]
pub mod etcd;
#[cfg_attr(not(feature = "faults"), allow(dead_code))]
pub mod faults;
#[cfg(feature = "net")]
pub mod node;
#[cfg(feature = "room")]
pub mod room;
#[cfg(feature = "net")]
pub mod table;
#[cfg(feature = "net")]
pub mod wire;

#[cfg(feature = "net")]
pub use client::{
    ClusterClient, ClusterError, ClusterFeed, ClusterFeedItem, ClusterFeedOptions, ClusterInterrupter,
    ClusterOptions, ClusterPosition, ClusterScan,
};
#[cfg(feature = "net")]
pub use etcd::{ClusterName, EtcdError, EtcdOptions, EtcdTls};
#[cfg(feature = "net")]
pub use node::{ClusterNode, NodeConfig, NodeError};
#[cfg(feature = "net")]
pub use wire::Secret;

pub use crate::core::state::{ClusterConfig, NodeId, ShardIx};
