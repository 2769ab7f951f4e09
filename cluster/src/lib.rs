//! Tables of `oneread` on many nodes: shards over etcd, standbys, and READs that a deposed primary cannot spoil.
//!
//! `docs/CLUSTER.md` has the rules; their ids (CL1 and on) stand in the code.

pub mod core;
#[cfg_attr(not(feature = "faults"), allow(dead_code))]
pub mod faults;
