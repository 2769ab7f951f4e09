//! A cluster's state in etcd, and a node's page.

use crate::core::hash::ShardHash;
pub use crate::core::ids::{NodeId, NodeIdError, NodeIds, ShardIx, Time};
use crate::core::message::{OWNER_MAX, Request};
use crate::core::own::{self, OWN};
use crate::core::owners;
use serde::{Deserialize, Serialize};

/// A shard's state in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardState {
    /// Goes up with each transaction of the shard.
    pub revision: u64,
    /// Number of the primary's term. 0: no node ever served the shard.
    pub epoch: u64,
    /// The node that serves the shard.
    pub primary: Option<NodeId>,
    /// The nodes with a complete copy, including the primary.
    pub in_sync: NodeIds,
    /// Whether leases on a frozen copy may last: then the primary waits before its first change (CL9).
    pub waits: bool,
}

/// A node's key in etcd: its beats. A life is called by the number of the beat that began it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeKey {
    /// The life.
    pub life: u64,
    /// The last beat.
    pub number: u64,
    /// Whether it may beat. A node that takes a shard over from it sets this to `false`.
    pub alive: bool,
    /// What others need to know of it.
    pub about: NodeAbout,
}

/// What others need to know of a node, besides whether it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAbout {
    /// Its name, for people.
    pub name: String,
    /// Where its table is READ: addresses for `oneread::Client`, the best first.
    pub table: Vec<String>,
    /// Where it takes requests and other nodes' items: `host:port`.
    pub requests: Vec<String>,
    /// The highest version of the protocol between nodes that it understands.
    pub version: u32,
    /// Whether it is about to stop: it hands its shards over, and gets no more.
    #[serde(default)]
    pub leaves: bool,
    /// The shape of its table's slots: all that determines the room of an entry. Empty: not told.
    #[serde(default)]
    pub slots: String,
}

/// A cluster's configuration, which all its nodes and clients share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// The number of shards. It never changes.
    pub shards: ShardIx,
    /// The number of copies of a shard that are wanted, including the primary's.
    pub replicas: u8,
    /// The hash that says which shard has a key. Never changes.
    pub hash: ShardHash,
    /// The longest key, in bytes. Never changes.
    pub key_max: u16,
    /// The longest value, in bytes. Never changes.
    pub value_max: u32,
    /// Times.
    pub timing: Timing,
}

/// The etcd for which the cluster's keys are valid (CL17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// Goes up with each adoption by an operator. 0: none yet.
    pub number: u64,
    /// The cluster id in each answer of this etcd.
    pub etcd: u64,
}

/// Times of a cluster, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// A node whose key has not changed for this long may be deposed.
    pub ttl: Time,
    /// How far the rate of a clock may be from true time, in millionths.
    pub rates: u32,
    /// Time between two beats of a node.
    pub beat: Time,
    /// A call of etcd without an answer is repeated after this time.
    pub call: Time,
    /// Items without an answer are repeated after this time.
    pub resend: Time,
    /// A standby that has not answered an item for this long is left out.
    pub late: Time,
    /// Time between two checks of the placement of copies. 0: it is not checked.
    pub place: Time,
}

/// A configuration that no cluster can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cluster cannot have {given} {what}: {allowed}")]
pub struct ConfigError {
    /// The value given.
    pub given: u64,
    /// The setting.
    pub what: &'static str,
    /// The allowed values.
    pub allowed: &'static str,
}

impl ClusterConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ConfigError`] with the value, and the allowed ones.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Timing { ttl, rates, beat, call, resend, late, .. } = self.timing;
        let refused = |given: u64, what, allowed| Err(ConfigError { given, what, allowed });
        match self {
            it if !(1..=1_024).contains(&it.shards) => refused(it.shards.into(), "shards", "1 to 1,024"),
            it if !(1..=8).contains(&it.replicas) => {
                refused(it.replicas.into(), "copies of a shard", "1 to 8")
            }
            it if !(1..=255).contains(&it.key_max) => {
                refused(it.key_max.into(), "bytes of a key", "1 to 255")
            }
            it if !(1..=64 << 20).contains(&it.value_max) => {
                refused(it.value_max.into(), "bytes of a value", "1 to 64 MiB")
            }
            _ if !(100_000..=600_000_000).contains(&ttl) => {
                refused(ttl, "microseconds until a node is given up", "0.1 s to 600 s")
            }
            _ if rates >= 100_000 => refused(rates.into(), "millionths between clocks", "less than 100,000"),
            _ if beat == 0 || 4 * beat > ttl => refused(
                beat,
                "microseconds between beats",
                "at most a fourth of the time until a node is given up",
            ),
            _ if call == 0 || resend == 0 || late < 2 * resend => refused(
                late,
                "microseconds for a standby",
                "at least twice the time until items are sent again",
            ),
            _ => Ok(()),
        }
    }

    /// The shard of a key. One of the cluster's own keys names its shard.
    #[inline]
    pub fn shard_of(&self, key: &[u8]) -> ShardIx {
        if let Some(shard) = own::shard_of(key) {
            return shard;
        }
        // The high bits of a product are even over the shards.
        ((u128::from(self.hash.of(key)) * u128::from(self.shards)) >> 64) as ShardIx
    }

    /// Whether a key and a value have allowed lengths, and the key is not one of the cluster's own.
    #[inline]
    pub fn may_hold(&self, key: &[u8], value_len: usize) -> bool {
        let is_length = (1..=usize::from(self.key_max)).contains(&key.len());
        is_length && value_len <= self.value_max as usize && !key.starts_with(OWN)
    }

    /// Whether a request names its key's shard, and nothing in it is too long for the cluster.
    pub fn may_ask(&self, request: &Request) -> bool {
        let Request { shard, key, kind, .. } = request;
        let is_right = if kind.is_of_owner() {
            let session = kind.session();
            let is_its = |owner| session.is_none_or(|session| session.owner == owner);
            let owner = owners::parts(key).map(|(_, owner)| owner);
            request.id.is_none()
                && owner.is_some_and(|owner| (1..=OWNER_MAX).contains(&owner) && is_its(owner))
        } else {
            let session = request.wanted.session();
            let is_owner = session.is_none_or(|session| (1..=OWNER_MAX).contains(&session.owner));
            is_owner && self.may_hold(key, kind.value_len())
        };
        is_right && *shard < self.shards && self.shard_of(key) == *shard
    }
}

impl Timing {
    /// The times for this TTL, and for clocks that differ from true time by up to 1 in 1,000.
    pub fn of(ttl: Time) -> Timing {
        let (beat, call, resend, late, place) = (ttl / 8, ttl / 4, ttl / 10, ttl / 2, ttl / 4);
        Timing { ttl, rates: 1_000, beat, call, resend, late, place }
    }

    /// How long a lease lasts from the first of its two READs on (CL2): `D * (1 + r) / (1 - r) < TTL`.
    pub fn lease(&self) -> Time {
        let (fast, slow) = (1_000_000 + u64::from(self.rates), 1_000_000 - u64::from(self.rates));
        (self.ttl * slow / fast).saturating_sub(2)
    }

    /// How long other nodes wait until all earlier leases are over, by their own clock.
    pub fn wait(&self) -> Time {
        let (fast, slow) = (1_000_000 + u64::from(self.rates), 1_000_000 - u64::from(self.rates));
        self.lease() * fast / slow + 1
    }
}

/// The times for a TTL of two seconds.
impl Default for Timing {
    fn default() -> Timing {
        Timing::of(2_000_000)
    }
}

/// A number within a life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lived {
    /// The life.
    pub life: u64,
    /// The number.
    pub number: u64,
}

/// A shard's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Its epoch.
    pub epoch: u64,
    /// Whether the shard is served here.
    pub is_open: bool,
}

/// The page of a node, which clients READ: two beats, and a word for each shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The last beat that was sent, or is about to be sent.
    pub asked: Lived,
    /// The last beat that etcd has written.
    pub held: Lived,
    /// The words, by shard.
    pub words: Vec<Word>,
}

/// A node's notes in its memory, beside its entries: its knowledge of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// The etcd that it believes.
    pub adoption: Adoption,
    /// The etcds that it believed before.
    pub past: Vec<u64>,
    /// The newest state of each shard that it has seen.
    pub newest: Vec<ShardState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transactions compare the adoption's value as text: it must stay as it is, whatever comes besides in later versions.
    #[test]
    fn an_adoption_is_written_so() {
        let adoption = Adoption { number: 7, etcd: 1 << 63 };
        assert_eq!(serde_json::to_string(&adoption).unwrap(), r#"{"number":7,"etcd":9223372036854775808}"#);
    }

    /// Both ends of each rule.
    #[test]
    fn configurations_are_checked() {
        let good = ClusterConfig {
            shards: 1_024,
            replicas: 8,
            hash: ShardHash::new(0),
            key_max: 255,
            value_max: 64 << 20,
            timing: Timing::default(),
        };
        assert_eq!(good.check(), Ok(()));
        let with = |change: fn(&mut ClusterConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().map_err(|error| error.what)
        };
        assert_eq!(with(|config| config.shards = 0), Err("shards"));
        assert_eq!(with(|config| config.shards = 1_025), Err("shards"));
        assert_eq!(with(|config| config.replicas = 0), Err("copies of a shard"));
        assert_eq!(with(|config| config.key_max = 256), Err("bytes of a key"));
        assert_eq!(with(|config| config.value_max = 0), Err("bytes of a value"));
        assert_eq!(with(|config| config.timing.ttl = 99_999), Err("microseconds until a node is given up"));
        assert_eq!(with(|config| config.timing.rates = 100_000), Err("millionths between clocks"));
        assert_eq!(with(|config| config.timing.beat = 500_001), Err("microseconds between beats"));
        assert_eq!(
            with(|config| config.timing.late = config.timing.resend),
            Err("microseconds for a standby")
        );
    }
}
