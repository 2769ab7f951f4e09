//! Calls of etcd, and its answers, as values. Other code makes the calls.

use crate::core::placement::Wishes;
use crate::core::state::{Adoption, ClusterConfig, NodeId, NodeKey, ShardIx, ShardState};

/// A key of the cluster in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EtcdKey {
    /// The cluster's configuration.
    Config,
    /// The cluster id of the etcd for which the keys are valid.
    Adoption,
    /// The operator's wishes.
    Wishes,
    /// A node: its beats.
    Node(NodeId),
    /// A shard: epoch, primary, nodes in sync.
    Shard(ShardIx),
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdValue {
    /// Of [`EtcdKey::Config`].
    Config(ClusterConfig),
    /// Of [`EtcdKey::Adoption`].
    Adoption(Adoption),
    /// Of [`EtcdKey::Wishes`].
    Wishes(Wishes),
    /// Of [`EtcdKey::Node`].
    Node(NodeKey),
    /// Of [`EtcdKey::Shard`].
    Shard(ShardState),
}

/// etcd's own number of a key's last change (`mod_revision`). 0: there is no such key.
pub type At = i64;

/// A key as etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: EtcdKey,
    /// Its value. `None`: there is no such key.
    pub value: Option<EtcdValue>,
    /// When it was changed last.
    pub at: At,
}

/// Names a call of this process.
pub type CallId = u64;

/// A call of etcd.
#[derive(Clone, Debug, PartialEq)]
pub enum EtcdCall {
    /// Reads all keys of the cluster, as they are when etcd answers. Never from a member that may be behind.
    Read,
    /// Puts all of `put`, if [`EtcdKey::Adoption`] has this value, and each key of `compare` was last changed at this
    /// revision. Either way it answers with the keys of `compare` and [`EtcdKey::Adoption`], as they are afterwards.
    ///
    /// The adoption's value is compared, and not the revision of its last change. A restored etcd counts on from its
    /// backup's revision, so a transaction from before could find the revisions that it expects.
    Transaction {
        /// The adoption under which the call is made.
        adoption: Adoption,
        /// Keys, and the revisions of their last changes.
        compare: Vec<(EtcdKey, At)>,
        /// Keys, and their new values.
        put: Vec<(EtcdKey, EtcdValue)>,
    },
}

/// An answer, or changes that a watch has delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdAnswer {
    /// The number of the call. For a watch, that of the [`EtcdCall::Read`] behind whose revision it watches.
    pub call: CallId,
    /// Whether a watch has delivered it.
    pub is_watched: bool,
    /// The cluster id in the answer's header.
    pub etcd: u64,
    /// etcd's revision.
    pub revision: i64,
    /// Whether the transaction was made. `true` for all other answers.
    pub is_done: bool,
    /// Keys, as they were then. After [`EtcdCall::Read`] there are no others.
    pub entries: Vec<Entry>,
}

impl EtcdAnswer {
    /// Whether it is the answer to this call.
    pub fn is_of(&self, call: CallId) -> bool {
        self.call == call && !self.is_watched
    }

    /// The adoption, if the answer has it.
    pub fn adoption(&self) -> Option<Adoption> {
        self.values().find_map(|value| match value {
            EtcdValue::Adoption(adoption) => Some(*adoption),
            _ => None,
        })
    }

    /// A node's key, if the answer has it.
    pub fn node(&self, id: NodeId) -> Option<(Option<&NodeKey>, At)> {
        self.entries.iter().find(|entry| entry.key == EtcdKey::Node(id)).map(|entry| match &entry.value {
            Some(EtcdValue::Node(key)) => (Some(key), entry.at),
            _ => (None, entry.at),
        })
    }

    /// The revision of a key's last change. 0: the key does not exist.
    pub fn at(&self, key: EtcdKey) -> At {
        self.entries.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.at)
    }

    /// Whether a node lives, and has beaten since an earlier answer.
    pub fn beats(&self, node: NodeId, before: &EtcdAnswer) -> bool {
        let lives = self.node(node).is_some_and(|(key, _)| key.is_some_and(|key| key.alive));
        lives && self.at(EtcdKey::Node(node)) != before.at(EtcdKey::Node(node))
    }

    /// The cluster's configuration, if the answer has it.
    pub fn config(&self) -> Option<&ClusterConfig> {
        self.values().find_map(|value| match value {
            EtcdValue::Config(config) => Some(config),
            _ => None,
        })
    }

    /// The operator's wishes, if the answer has them.
    pub fn wishes(&self) -> Option<&Wishes> {
        self.values().find_map(|value| match value {
            EtcdValue::Wishes(wishes) => Some(wishes),
            _ => None,
        })
    }

    /// All nodes in the answer.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeKey)> {
        self.entries.iter().filter_map(|entry| match (entry.key, &entry.value) {
            (EtcdKey::Node(id), Some(EtcdValue::Node(key))) => Some((id, key)),
            _ => None,
        })
    }

    /// All shards in the answer.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIx, &ShardState)> {
        self.entries.iter().filter_map(|entry| match (entry.key, &entry.value) {
            (EtcdKey::Shard(shard), Some(EtcdValue::Shard(state))) => Some((shard, state)),
            _ => None,
        })
    }

    fn values(&self) -> impl Iterator<Item = &EtcdValue> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// A shard's state, if the answer has it.
    pub fn shard(&self, shard: ShardIx) -> Option<(&ShardState, At)> {
        self.entries.iter().find_map(|entry| match &entry.value {
            Some(EtcdValue::Shard(state)) if entry.key == EtcdKey::Shard(shard) => Some((state, entry.at)),
            _ => None,
        })
    }
}
