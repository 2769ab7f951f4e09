//! The protocol between nodes and clients, over TCP.
//!
//! The rules allow messages to be lost, late, and repeated. So nothing here is acknowledged or repeated: a connection
//! that breaks is made again, and a receiver that cannot keep up misses messages.
//!
//! Each connection begins with a handshake, in which both ends prove that they know the cluster's secret, over random
//! numbers of both (`handshake.rs`). Later data can be read and changed on the way: give the cluster a network of its
//! own.

mod connection;
mod frame;
mod handshake;
mod links;
mod port;
mod secret;
#[cfg(test)]
mod tests;

pub use connection::NodeConnection;
pub use frame::{
    Bounds, Changes, ClusterMap, Follow, Later, NodeHealth, NodeStatus, Question, Said, ShardStatus,
};
pub use handshake::{Identity, VERSION};
pub use links::Links;
pub use port::{Arrived, NodePort, Replies};
pub use secret::{SECRET_MAX, Secret, SecretError};

use crate::core::state::NodeId;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Frames over a connection.
type Frames = Framed<TcpStream, LengthDelimitedCodec>;

/// The longest time to connect to an address, and for a handshake.
const HANDSHAKE: Duration = SILENCE;
/// The time between two signs of life, and the time without any after which a connection is given up. They are shorter
/// in tests.
const PING: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 1_000 });
const SILENCE: Duration = Duration::from_millis(if cfg!(test) { 2_000 } else { 5_000 });

/// Why there is no connection, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// It cannot listen at this address.
    #[error("{address} cannot be listened at: {why}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        why: io::Error,
    },
    /// Other hosts could reach the address, and anybody could change everything.
    #[error(
        "{address} can be reached from other hosts, and the cluster's secret is empty: give all nodes and clients the same \
         secret (`NodeConfig::secret`), or listen at 127.0.0.1"
    )]
    NoSecret {
        /// The address.
        address: String,
    },
    /// Nobody listens there.
    #[error("{address} cannot be reached: {why}")]
    Connect {
        /// The addresses that were tried.
        address: String,
        /// The system's error.
        why: io::Error,
    },
    /// The connection has broken.
    #[error("the connection has broken: {0}")]
    Broken(#[from] io::Error),
    /// The other end hung up.
    #[error(
        "the other end hung up: it has stopped, or has as many connections as it may have, or could not use this one"
    )]
    Ended,
    /// The other end does not read its answers.
    #[error("the other end left more than {0} bytes of replies unread")]
    Unread(usize),
    /// Nothing came for too long.
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    /// The other end does not belong to a cluster, or sends nonsense.
    #[error("what came is no frame of a cluster: {0}")]
    Rubbish(String),
    /// The secrets differ.
    #[error("the other end does not know this cluster's secret: give all nodes and clients the same one")]
    Secret,
    /// The other end refuses this connection.
    #[error("the other end refuses: {0}")]
    Refused(String),
    /// The other end belongs to another cluster.
    #[error("it belongs to the cluster {theirs:?}, and this is of {ours:?}")]
    OtherCluster {
        /// This end's cluster.
        ours: String,
        /// The other end's cluster.
        theirs: String,
    },
    /// Another node has the address now.
    #[error("node {found} is there, and not {wanted}")]
    OtherNode {
        /// The node that is there.
        found: NodeId,
        /// The node that was meant.
        wanted: NodeId,
    },
    /// The versions are too far apart.
    #[error(
        "it speaks the versions {least} to {newest} of the protocol between nodes, and this program {our_least} to \
         {our_newest}: update the older one"
    )]
    Version {
        /// The other end's oldest version.
        least: u32,
        /// The other end's newest version.
        newest: u32,
        /// This end's oldest version.
        our_least: u32,
        /// This end's newest version.
        our_newest: u32,
    },
}

impl WireError {
    /// Why there is no connection, in a few words, for a column.
    pub fn brief(&self) -> &'static str {
        match self {
            WireError::Secret => "another secret",
            WireError::OtherCluster { .. } => "another cluster",
            WireError::OtherNode { .. } => "another node is there",
            WireError::Version { .. } => "another version",
            WireError::Refused(_) => "it refuses",
            WireError::Connect { .. } => "cannot be reached",
            WireError::Silent(_) => "silent",
            WireError::Ended => "it hangs up",
            WireError::Rubbish(_) => "it is no node",
            WireError::Broken(_) | WireError::Unread(_) => "the connection breaks",
            WireError::Listen { .. } | WireError::NoSecret { .. } => "no address",
        }
    }
}
