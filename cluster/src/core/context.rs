//! What all shards of a node share: its clock, its view of other nodes, its memory, its outbox, its room.

use crate::core::etcd::{At, CallId, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use crate::core::feed::Feed;
use crate::core::ids::{NodeId, ShardIx, Time};
use crate::core::memory::Memory;
use crate::core::message::HELLO_SINCE;
use crate::core::outbox::Outbox;
use crate::core::owners;
use crate::core::state::{NodeKey, Timing};
use rustc_hash::FxHashMap;

/// A node's standing with etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It lives, and has read etcd after its birth.
    Good,
    /// It asks for a new life.
    Unborn,
    /// It lives, and reads etcd to learn who serves what.
    Looking(CallId),
    /// etcd is another one: the node waits for the operator (CL17).
    Foreign,
    /// Its memory is an older copy, or another process goes on with it (CL22): it does nothing any more.
    Outdated,
    /// Its table has refused a change that others have. It does not beat any more, so that others take over.
    Failed,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Pending {
    pub call: CallId,
    pub since: Time,
}

/// Another node's key, and since when it has this value, by this node's clock.
#[derive(Debug)]
pub(in crate::core) struct Seen {
    pub key: NodeKey,
    pub at: At,
    pub since: Time,
    /// When it has answered a message last.
    pub heard: Option<Time>,
}

/// Since when etcd answers this node without a pause, and when it did last.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct EtcdHeard {
    since: Time,
    last: Time,
}

impl EtcdHeard {
    /// Beats are answered: a pause is longer than two of them.
    fn lasts(&self, now: Time, timing: &Timing) -> bool {
        now <= self.last + 2 * timing.beat
    }
}

/// Room that no shard has set aside, and the limits of shards.
#[derive(Debug)]
pub(in crate::core) struct Room {
    pub left: u64,
    /// Whether entries are evicted.
    pub evicts: bool,
    /// The most that a shard takes in a node that evicts, beyond the room with which it was copied.
    pub share: u64,
}

impl Room {
    /// Room that a shard gets beyond what it needs, so that it need not ask for each entry. In a node that evicts it
    /// may need no more.
    pub fn growth_of(&self, room: u64) -> u64 {
        if self.evicts { (room / 8).min(self.share.saturating_sub(room)) } else { room / 8 }
    }
}

/// What all shards of a node share.
#[derive(Debug)]
pub(in crate::core) struct Context<T> {
    pub me: NodeId,
    pub timing: Timing,
    /// When this turn began.
    pub now: Time,
    pub standing: Standing,
    pub seen: FxHashMap<NodeId, Seen>,
    pub etcd: Option<EtcdHeard>,
    pub memory: Memory<T>,
    pub outbox: Outbox,
    pub room: Room,
    pub feed: Feed,
    /// Counts of entries that were evicted, and of entries that left at their end, or with their owner.
    pub evicted: u64,
    pub expired: u64,
    /// Old copies that may be worked on before the next tick.
    pub frees_left: u32,
    /// Walks for entries to evict before the next tick. Each takes a millisecond at worst, and beats must go on.
    pub walks_left: u32,
}

impl<T> Context<T> {
    pub fn is_good(&self) -> bool {
        self.standing == Standing::Good
    }

    /// Whether a task is due that was last done at `since`, if ever.
    pub fn is_due(&self, since: Option<Time>, after: Time) -> bool {
        since.is_none_or(|since| self.now >= since + after)
    }

    /// Notes the nodes' keys in an answer of etcd.
    pub fn see(&mut self, answer: &EtcdAnswer) {
        let now = self.now;
        let before = self.etcd.filter(|heard| heard.lasts(now, &self.timing));
        self.etcd = Some(EtcdHeard { since: before.map_or(now, |heard| heard.since), last: now });
        for Entry { key, value, at } in &answer.entries {
            if let (EtcdKey::Node(id), Some(EtcdValue::Node(key))) = (key, value)
                && self.seen.get(id).is_none_or(|seen| seen.at < *at)
            {
                let heard = self.seen.get(id).and_then(|seen| seen.heard);
                self.seen.insert(*id, Seen { key: key.clone(), at: *at, since: self.now, heard });
            }
        }
    }

    pub fn transact(&mut self, compare: Vec<(EtcdKey, At)>, put: Vec<(EtcdKey, EtcdValue)>) -> CallId {
        let adoption = self.memory.notes.adoption;
        self.outbox.call(EtcdCall::Transaction { adoption, compare, put })
    }

    /// A node has answered a message: messages reach it, and its reach this one (CL20).
    pub fn hears(&mut self, node: NodeId) {
        if let Some(seen) = self.seen.get_mut(&node) {
            seen.heard = Some(self.now);
        }
    }

    /// Whether a node is this one, or has answered within a TTL (CL20). Older versions are not asked.
    pub fn reaches(&self, node: NodeId) -> bool {
        let has_answered = |seen: &Seen| seen.heard.is_some_and(|heard| self.now < heard + self.timing.ttl);
        let is_reached = |seen: &Seen| seen.key.about.version < HELLO_SINCE || has_answered(seen);
        node == self.me || self.seen.get(&node).is_some_and(is_reached)
    }

    /// Whether a node's key has not changed for the TTL.
    /// While etcd did not answer this node, nobody was heard.
    pub fn may_be_left_out(&self, node: NodeId) -> bool {
        let Some(heard) = self.etcd.filter(|heard| heard.lasts(self.now, &self.timing)) else { return false };
        let since = |seen: &Seen| seen.since.max(heard.since);
        self.seen.get(&node).is_some_and(|seen| self.now >= since(seen) + self.timing.ttl)
    }

    /// A node's life, as far as etcd has told.
    pub fn life_of(&self, node: NodeId) -> Option<u64> {
        self.seen.get(&node).map(|seen| seen.key.life)
    }

    /// Whether a node is of this version, or a newer one.
    pub fn is_of_version(&self, node: NodeId, version: u32) -> bool {
        self.seen.get(&node).is_some_and(|seen| seen.key.about.version >= version)
    }

    /// Whether a node knows owners.
    pub fn knows_owners(&self, node: NodeId) -> bool {
        self.is_of_version(node, owners::SINCE_VERSION)
    }

    /// The table refuses what it must take: the node stops serving, and others take over.
    pub fn fails(&mut self, shard: ShardIx) {
        tracing::error!(shard, "the table takes no more, though room was set aside: others take over");
        self.standing = Standing::Failed;
    }
}
