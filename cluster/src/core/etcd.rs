//! Calls of etcd, and its answers, as values. Who makes them is somebody else's job.

use crate::core::placement::Wishes;
use crate::core::state::{Adoption, ClusterConfig, NodeId, NodeKey, ShardIx, ShardState};

/// A key of the cluster in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EtcdKey {
    /// What the cluster is.
    Config,
    /// For which etcd all this is good.
    Adoption,
    /// What an operator wants.
    Wishes,
    /// A node: its beats.
    Node(NodeId),
    /// A shard: epoch, primary, who is in sync.
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

/// What is asked of etcd.
#[derive(Clone, Debug, PartialEq)]
pub enum EtcdCall {
    /// All keys of the cluster, as they are when etcd answers: not from a member that may be behind.
    Read,
    /// If [`EtcdKey::Adoption`] has this value, and each of `compare` was changed last just then, puts all of `put`.
    /// Either way answers with the keys of `compare` and [`EtcdKey::Adoption`], as they are afterwards.
    ///
    /// The value is compared, not when it was changed: an etcd that was restored counts changes again from where its
    /// backup was, so that a transaction from before would find what it rests on.
    Transaction {
        /// What the cluster's keys are good for.
        adoption: Adoption,
        /// Keys, and when they were changed last.
        compare: Vec<(EtcdKey, At)>,
        /// What they are to be.
        put: Vec<(EtcdKey, EtcdValue)>,
    },
}

/// An answer, or something that a watch has brought.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdAnswer {
    /// The call; of what a watch has brought, the [`EtcdCall::Read`] from whose revision on it watches.
    pub call: CallId,
    /// Whether a watch has brought it.
    pub is_watched: bool,
    /// Which etcd it is: the cluster id in the answer's header.
    pub etcd: u64,
    /// etcd's revision.
    pub revision: i64,
    /// Whether the transaction was made. True of all else.
    pub is_done: bool,
    /// Keys, as they were then. After [`EtcdCall::Read`] there are no others.
    pub entries: Vec<Entry>,
}

impl EtcdAnswer {
    /// Whether it answers this call.
    pub fn is_of(&self, call: CallId) -> bool {
        self.call == call && !self.is_watched
    }

    /// For which etcd its contents are good, if the answer says so.
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

    /// When a key was changed last. 0: it is not there.
    pub fn at(&self, key: EtcdKey) -> At {
        self.entries.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.at)
    }

    /// Whether a node lives, and has beaten since an earlier answer.
    pub fn beats(&self, node: NodeId, before: &EtcdAnswer) -> bool {
        let lives = self.node(node).is_some_and(|(key, _)| key.is_some_and(|key| key.alive));
        lives && self.at(EtcdKey::Node(node)) != before.at(EtcdKey::Node(node))
    }

    /// What the cluster is, if the answer has it.
    pub fn config(&self) -> Option<&ClusterConfig> {
        self.values().find_map(|value| match value {
            EtcdValue::Config(config) => Some(config),
            _ => None,
        })
    }

    /// What an operator wants, if the answer has it.
    pub fn wishes(&self) -> Option<&Wishes> {
        self.values().find_map(|value| match value {
            EtcdValue::Wishes(wishes) => Some(wishes),
            _ => None,
        })
    }

    /// All nodes that it has.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeKey)> {
        self.entries.iter().filter_map(|entry| match (entry.key, &entry.value) {
            (EtcdKey::Node(id), Some(EtcdValue::Node(key))) => Some((id, key)),
            _ => None,
        })
    }

    /// All shards that it has.
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
