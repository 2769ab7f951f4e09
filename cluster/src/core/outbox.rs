//! The outputs of a node: calls of etcd, messages, replies.

use crate::core::etcd::{CallId, EtcdCall};
use crate::core::ids::NodeId;
use crate::core::message::{ChannelId, Effect, Key, Message, NotDone, Peer, Reply, Request};

/// An output of a node. Outputs are in order, and whatever they depend on was stored before.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A call of etcd.
    Etcd(CallId, EtcdCall),
    /// A message to a node. It may be lost, come late, or twice.
    Node(NodeId, Message),
    /// A reply. It may be lost.
    Reply(Peer, Reply),
    /// No action: the node has begun to remove this key by itself (CL13), by this copy of a request. Its end is a reply
    /// to [`Peer::SELF`].
    Removes {
        /// The copy.
        copy: u64,
        /// The key.
        key: Key,
        /// Evicted, expired, or its owner is gone. `Nothing` for an outcome.
        effect: Effect,
    },
}

/// The node's own copies of requests have numbers from here on.
const OWN_COPIES: u64 = 1 << 63;

/// Outputs that were not taken yet, and the last numbers of calls and messages.
#[derive(Debug, Default)]
pub(in crate::core) struct Outbox {
    outputs: Vec<Output>,
    last_call: CallId,
    last_channel: u64,
    last_own: u64,
}

impl Outbox {
    pub fn call(&mut self, call: EtcdCall) -> CallId {
        self.last_call += 1;
        self.outputs.push(Output::Etcd(self.last_call, call));
        self.last_call
    }

    /// The last call of etcd.
    pub fn last_call(&self) -> CallId {
        self.last_call
    }

    pub fn new_channel(&mut self, epoch: u64) -> ChannelId {
        self.last_channel += 1;
        ChannelId { epoch, count: self.last_channel }
    }

    pub fn tell(&mut self, node: NodeId, message: Message) {
        self.outputs.push(Output::Node(node, message));
    }

    pub fn reply(&mut self, peer: Peer, reply: Reply) {
        self.outputs.push(Output::Reply(peer, reply));
    }

    pub fn not_done(&mut self, peer: Peer, request: &Request, why: NotDone) {
        self.reply(peer, Reply { copy: request.copy, ended: Err(why) });
    }

    /// The node begins to remove a key by itself. Returns the copy's number.
    pub fn removes(&mut self, key: Key, effect: Effect) -> u64 {
        self.last_own += 1;
        let copy = OWN_COPIES | self.last_own;
        self.outputs.push(Output::Removes { copy, key, effect });
        copy
    }

    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }
}
