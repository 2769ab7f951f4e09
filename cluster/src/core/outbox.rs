//! What a node wants done: calls of etcd, messages, replies.

use crate::core::etcd::{CallId, EtcdCall};
use crate::core::ids::NodeId;
use crate::core::message::{ChannelId, Effect, Key, Message, NotDone, Peer, Reply, Request};

/// What a node wants done. In this order: what is stored in its table was stored before any of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A call of etcd.
    Etcd(CallId, EtcdCall),
    /// A message to a node. It may be lost, come late, or twice.
    Node(NodeId, Message),
    /// A reply. It may be lost.
    Reply(Peer, Reply),
    /// Nothing: it has begun to remove this key by itself (CL13), by this copy of a request. Its end is a reply to
    /// [`Peer::SELF`].
    Removes {
        /// The copy.
        copy: u64,
        /// The key.
        key: Key,
        /// Evicted, expired, or its owner is gone; nothing, of an outcome.
        effect: Effect,
    },
}

/// Copies of requests of the node's own have numbers from here on.
const OWN_COPIES: u64 = 1 << 63;

/// Outputs that nobody has taken yet, and the last numbers of what is sent.
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

    /// The node begins to remove a key by itself: by which copy of a request.
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
