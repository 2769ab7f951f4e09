//! Tables of `oneread` on many nodes: shards over etcd, standbys, and READs that a deposed primary cannot spoil.
//!
//! `docs/CLUSTER.md` has the rules; their ids (CL1 and on) stand in the code.

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
