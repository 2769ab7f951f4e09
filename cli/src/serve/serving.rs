//! What `serve` serves: a table of its own, or a node of a cluster with its table.

use oneread::Server;
use oneread::internals::server::{Stopped, UndoStart};
#[cfg(feature = "cluster")]
use oneread_cluster::node::ClusterNode;
#[cfg(feature = "cluster")]
use oneread_kit::show;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest time for a node to hand over its shards before it stops.
#[cfg(feature = "cluster")]
const HANDS_OVER: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub enum Serving {
    Table(Server),
    #[cfg(feature = "cluster")]
    Node(ClusterNode),
}

/// What is served, for the threads that look at it. `None` once it stops.
pub type Watched = Arc<Mutex<Option<Serving>>>;

impl Serving {
    pub fn server(&self) -> &Server {
        match self {
            Serving::Table(server) => server,
            #[cfg(feature = "cluster")]
            Serving::Node(node) => node.server(),
        }
    }

    /// Whether others can use it: a node may run, and be heard by nobody.
    pub fn is_good(&self) -> bool {
        match self {
            Serving::Table(_) => true,
            #[cfg(feature = "cluster")]
            Serving::Node(node) => node.status().is_some_and(|status| status.is_good()),
        }
    }

    /// Threads that have taken no turn within this time.
    pub fn stuck_threads(&self, within: Duration) -> Vec<String> {
        match self {
            Serving::Table(server) => server.stuck_threads(within),
            #[cfg(feature = "cluster")]
            Serving::Node(node) => {
                // One that waits for etcd is not helped by a start. One that is stuck, or has failed, is.
                let lives = node.status().is_some_and(|status| !status.has_failed());
                let dead = (!lives).then(|| "oneread-node".to_owned());
                node.server().stuck_threads(within).into_iter().chain(dead).collect()
            }
        }
    }

    /// Its start has failed after all. A node has joined its cluster by then: others may count on its table, so that stays.
    pub fn undo_start(&self) {
        match self {
            Serving::Table(server) => server.undo_start(UndoStart::IfUnchanged),
            #[cfg(feature = "cluster")]
            Serving::Node(_) => {}
        }
    }

    /// A node first hands over what it serves.
    pub fn stop(self) -> Option<Stopped> {
        match self {
            Serving::Table(server) => Some(server.stop()),
            #[cfg(feature = "cluster")]
            Serving::Node(node) => {
                let left = node.stop(HANDS_OVER);
                if left > 0 {
                    show::complain(format_args!(
                        "oneread: {} could not be handed over in time: standbys take over when this node is given up",
                        show::counted(left as u64, "shard")
                    ));
                }
                None
            }
        }
    }
}
