//! Why a call of etcd failed, or what is wrong with its keys.

use super::name::{ClusterName, FORM};
use crate::core::state::{ClusterConfig, ConfigError, NodeId, ShardIx};
use oneread::error::FileError;
use std::time::Duration;

/// Why a call of etcd failed, or what is wrong with its keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No member is named.
    #[error("no endpoint of etcd is given: name one as http://host:2379")]
    NoEndpoint,
    /// The endpoint cannot be the URL of a member.
    #[error("{endpoint:?} is no endpoint of etcd: {why}")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong, and the mend.
        why: &'static str,
    },
    /// etcd asks for a user, or for another one.
    #[error(
        "etcd at {endpoints} does not let this user in ({why}): give a user with its password who may read and write keys \
         that begin with /oneread/, and none where etcd asks for none (`etcdctl auth status`)"
    )]
    Denied {
        /// All members that are named.
        endpoints: String,
        /// etcd's answer.
        why: String,
    },
    /// A file for TLS is not usable.
    #[error("a file for TLS with etcd cannot be read: {why}{}", because(why))]
    File {
        /// What is wrong with it.
        #[from]
        why: FileError,
    },
    /// etcd does not answer, or refuses.
    #[error("etcd at {endpoints} could not be asked: {why}")]
    Call {
        /// All members that are named.
        endpoints: String,
        /// What is wrong.
        why: String,
    },
    /// etcd has reached its quota, and takes no change.
    #[error(
        "etcd at {endpoints} takes no change: its quota is reached (alarm NOSPACE). Compact it, defragment each member, and \
         disarm the alarm (docs/CLUSTER.md has the commands); then have it compacted always (`etcd --auto-compaction-retention=1h`)"
    )]
    NoSpace {
        /// All members that are named.
        endpoints: String,
    },
    /// The members have no leader, or are choosing one.
    #[error(
        "etcd at {endpoints} has no leader ({why}): see whether most of its members run (`etcdctl endpoint status`)"
    )]
    NoLeader {
        /// All members that are named.
        endpoints: String,
        /// etcd's answer.
        why: String,
    },
    /// etcd did not answer in time.
    #[error(
        "etcd at {endpoints} did not answer for {waited:?}: see whether most of its members run (`etcdctl endpoint status`)"
    )]
    Late {
        /// All members that are named.
        endpoints: String,
        /// The time of the wait.
        waited: Duration,
    },
    /// A watch was told that its first revision is compacted.
    #[error("etcd has compacted what the watch wanted to begin with: read everything again")]
    Compacted,
    /// A watch has ended.
    #[error("the watch of etcd has ended: {0}")]
    Watch(String),
    /// A key has a value that no program of a cluster writes.
    #[error(
        "etcd's key {key} has a value that is none of a cluster's ({why}): remove what somebody else has put there"
    )]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster has another form: nodes and clients of this version would look for its keys elsewhere.
    #[error(
        "the cluster {name} is of form {form}, and this version knows form {FORM}: go on with the version that made it, or \
         stop its nodes, remove it (`etcdctl del --prefix /oneread/{name}/`), make it again by `oneread cluster init {name}`, \
         and start its nodes by `oneread serve --fresh`"
    )]
    Form {
        /// The name.
        name: ClusterName,
        /// Its form.
        form: u32,
    },
    /// There is no such cluster.
    #[error(
        "etcd has no cluster {name}: make it by `oneread cluster init {name}`, or see whether that is its name"
    )]
    NotThere {
        /// The name.
        name: ClusterName,
    },
    /// The cluster exists already.
    #[error("etcd has a cluster {name} already: it has {} shards with {} copies each", config.shards, config.replicas)]
    Exists {
        /// The name.
        name: ClusterName,
        /// Its configuration.
        config: Box<ClusterConfig>,
    },
    /// There can be no such cluster.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another operator changes the same keys.
    #[error(
        "another operator changes the cluster {name} at the same time: see what it is by now, and try again"
    )]
    Busy {
        /// The name.
        name: ClusterName,
    },
    /// Shards name the node.
    #[error(
        "node {node} is to have {shards} shards: drain it (`oneread cluster drain`), and see that it has none before it is \
         forgotten"
    )]
    InUse {
        /// The node.
        node: NodeId,
        /// The number of shards that name it.
        shards: usize,
    },
    /// A shard is not lost.
    #[error(
        "shard {shard} is not lost: a node that has a copy of it lives, or nobody has served it yet; `oneread cluster shards` \
         shows who"
    )]
    NotLost {
        /// The shard.
        shard: ShardIx,
    },
    /// The node beats.
    #[error("node {node} runs: stop it before it is forgotten")]
    Runs {
        /// The node.
        node: NodeId,
    },
    /// The keys are valid for another etcd.
    #[error(
        "this etcd was restored from a backup, or copied: what it has of the cluster {name} is good for another one; adopt \
         it by `oneread cluster adopt {name}`, when all nodes that are to go on run"
    )]
    Foreign {
        /// The name.
        name: ClusterName,
    },
    /// etcd was restored under its old token, so that nobody can tell.
    #[error(
        "this etcd was restored from a backup under the token that it had: nodes know newer states of the cluster {name} than it has, \
         and cannot tell that it is another one. Restore the backup again with a new one (`etcdutl snapshot restore --initial-cluster-token TOKEN`), start it, then adopt it"
    )]
    RestoredAlike {
        /// The name.
        name: ClusterName,
    },
    /// The keys are valid for this etcd.
    #[error("there is nothing to adopt: what this etcd has of the cluster {name} is good for it")]
    NothingToAdopt {
        /// The name.
        name: ClusterName,
    },
}

impl EtcdError {
    /// Why etcd takes nothing, in a few words, for a column.
    pub fn brief(&self) -> &'static str {
        match self {
            EtcdError::NoSpace { .. } => "no space",
            EtcdError::Denied { .. } => "no rights",
            EtcdError::NoLeader { .. } => "no leader",
            EtcdError::Late { .. } => "no answer",
            _ => "it cannot be asked",
        }
    }
}

/// The system's error.
fn because(why: &FileError) -> String {
    std::error::Error::source(why).map_or_else(String::new, |source| format!(": {source}"))
}
