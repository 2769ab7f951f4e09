//! A client's knowledge of a cluster, and which values it believes.

use crate::core::etcd::{EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::lease::Leases;
use crate::core::state::{Adoption, NodeAbout, NodeId, Page, ShardIx, ShardState, Time, Timing};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;

/// A client's knowledge: the shards' primaries, the nodes' addresses, and its leases.
#[derive(Debug)]
pub struct View {
    adoption: Adoption,
    shards: Vec<ShardState>,
    nodes: FxHashMap<NodeId, NodeAbout>,
    leases: Leases,
}

impl View {
    /// Knows only the cluster's configuration.
    pub fn new(shards: ShardIx, timing: Timing) -> View {
        View {
            adoption: Adoption::default(),
            shards: vec![ShardState::default(); usize::from(shards)],
            nodes: FxHashMap::default(),
            leases: Leases::new(timing),
        }
    }

    /// Takes an answer of etcd, unless it is not the etcd for which the keys are valid (CL17). Returns whether it took
    /// it.
    pub fn learn(&mut self, answer: &EtcdAnswer) -> bool {
        let any = broken(Rule::AnyEtcd) || broken(Rule::RevisionOnly);
        match answer.adoption() {
            Some(adoption) if adoption.etcd == answer.etcd && adoption.number >= self.adoption.number => {
                self.adoption = adoption;
            }
            None if answer.etcd == self.adoption.etcd => {}
            _ if any => {}
            _ => return false,
        }
        for entry in &answer.entries {
            match (entry.key, &entry.value) {
                (EtcdKey::Shard(shard), Some(EtcdValue::Shard(state))) => self.learn_shard(shard, state),
                (EtcdKey::Node(id), Some(EtcdValue::Node(key))) => {
                    self.nodes.insert(id, key.about.clone());
                }
                (EtcdKey::Node(id), None) => {
                    self.nodes.remove(&id);
                    self.leases.forget(id);
                }
                _ => {}
            }
        }
        true
    }

    /// Takes a shard's state, from whatever source: newer states replace older ones.
    pub fn learn_shard(&mut self, shard: ShardIx, state: &ShardState) {
        if let Some(known) = self.shards.get_mut(usize::from(shard))
            && state.revision > known.revision
        {
            *known = state.clone();
        }
    }

    /// The etcd that is believed.
    pub fn adoption(&self) -> Adoption {
        self.adoption
    }

    /// A shard, as it is known.
    pub fn shard(&self, shard: ShardIx) -> &ShardState {
        &self.shards[usize::from(shard)]
    }

    /// The nodes, and their addresses.
    pub fn nodes(&self) -> &FxHashMap<NodeId, NodeAbout> {
        &self.nodes
    }

    /// Notes that a READ of a node's page has landed: [`Leases::page_landed`].
    pub fn page_landed(&mut self, node: NodeId, issued: Time, now: Time, page: &Page) {
        self.leases.page_landed(node, issued, now, page);
    }

    /// Notes that a READ at a node has failed.
    pub fn read_failed(&mut self, node: NodeId) {
        self.leases.read_failed(node);
    }

    /// The leases.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether a READ of a shard's keys at this node would be believed if it landed now.
    #[inline]
    pub fn is_leased(&self, shard: ShardIx, node: NodeId, now: Time) -> bool {
        let state = self.shard(shard);
        state.primary == Some(node) && self.leases.covers(node, shard, state.epoch, now)
    }

    /// Whether a value, or its absence, counts that has landed from a node. `now` is the client's time after it landed
    /// (CL4). It does not matter whether it came by a READ or in a reply.
    #[inline]
    pub fn counts(&self, shard: ShardIx, node: NodeId, now: Time, is_reply: bool) -> bool {
        self.is_leased(shard, node, now)
            || broken(Rule::ClockBeforeRead) && !is_reply
            || broken(Rule::ReplyWithoutLease) && is_reply
    }
}
