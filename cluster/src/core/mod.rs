//! The rules of a cluster (docs/CLUSTER.md), as code without I/O. [`Node`](node::Node) is a node. A client keeps to
//! [`Leases`](lease::Leases) and [`Sending`](sending::Sending).

pub mod adopt;
mod context;
pub mod etcd;
pub mod feed;
pub mod hash;
pub mod ids;
pub mod intent;
pub mod lease;
mod memory;
pub mod message;
pub mod node;
pub mod outbox;
pub mod own;
pub mod owners;
pub mod placement;
pub mod results;
pub mod sending;
pub mod shard;
pub mod state;
pub mod table;
pub mod view;
