//! Names of nodes and shards, and moments.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// A time by a process' own clock, in microseconds since that clock began. Times of two processes cannot be compared.
/// The rates of two clocks may differ by [`Timing::rates`](super::state::Timing::rates).
pub type Time = u64;

/// A shard's place in the cluster's list of shards.
pub type ShardIx = u16;

/// A node. Its number is the generation of its table, which is random. A node whose memory is lost makes another table,
/// and is another node (CL16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> String {
        id.to_string()
    }
}

/// Not the 16 hexadecimal digits of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no node's number: that has 16 hexadecimal digits, in small letters")]
pub struct NodeIdError(String);

impl TryFrom<String> for NodeId {
    type Error = NodeIdError;

    fn try_from(text: String) -> Result<NodeId, NodeIdError> {
        match u64::from_str_radix(&text, 16) {
            // No sign, no capitals.
            Ok(id) if NodeId(id).to_string() == text => Ok(NodeId(id)),
            _ => Err(NodeIdError(text)),
        }
    }
}

/// A set of nodes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<NodeId>")]
pub struct NodeIds(SmallVec<[NodeId; 3]>);

impl From<Vec<NodeId>> for NodeIds {
    fn from(nodes: Vec<NodeId>) -> NodeIds {
        nodes.into_iter().collect()
    }
}

impl NodeIds {
    /// One node.
    pub fn of(node: NodeId) -> NodeIds {
        NodeIds(SmallVec::from_slice(&[node]))
    }

    /// Whether this node is one of them.
    pub fn has(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }

    /// The set, with one more.
    #[must_use]
    pub fn with(mut self, node: NodeId) -> NodeIds {
        if let Err(at) = self.0.binary_search(&node) {
            self.0.insert(at, node);
        }
        self
    }

    /// The set, without one.
    #[must_use]
    pub fn without(mut self, node: NodeId) -> NodeIds {
        self.0.retain(|other| *other != node);
        self
    }

    /// The union of two sets.
    #[must_use]
    pub fn and(self, others: &NodeIds) -> NodeIds {
        others.iter().fold(self, NodeIds::with)
    }

    /// The nodes.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.0.iter().copied()
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<NodeId> for NodeIds {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeIds {
        nodes.into_iter().fold(NodeIds::default(), NodeIds::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_written_in_one_way() {
        let id = NodeId(0xab_0001);
        assert_eq!(NodeId::try_from(String::from(id)), Ok(id));
        for wrong in ["", "ab0001", "0000000000AB0001", "+000000000ab0001", "00000000000ab0001"] {
            assert!(NodeId::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
