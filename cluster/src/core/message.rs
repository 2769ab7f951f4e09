//! What nodes and clients say to each other.

use crate::core::feed::FeedAt;
use crate::core::state::{NodeId, ShardIx};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A key or a value.
pub type Key = Bytes;
/// A value.
pub type Value = Bytes;

/// What is asked of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// It has this value from then on.
    Put(Value),
    /// It has this value, if there was no such key.
    Insert(Value),
    /// It has the value `new`, if it had `expected`.
    Swap {
        /// The value that it is to have had.
        expected: Value,
        /// The value from then on.
        new: Value,
    },
    /// It is gone.
    Remove,
}

impl Kind {
    /// Bytes of the longest value in it.
    pub fn value_len(&self) -> usize {
        match self {
            Kind::Put(value) | Kind::Insert(value) => value.len(),
            Kind::Swap { expected, new } => expected.len().max(new.len()),
            Kind::Remove => 0,
        }
    }
}

/// Makes a request's outcome known to who comes later (CL15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    /// A random number. Requests with one lane come one after the other.
    pub lane: u64,
    /// Goes up with each request of the lane.
    pub number: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Names this copy of the request to its client.
    pub copy: u64,
    /// With one, its outcome is remembered.
    pub id: Option<RequestId>,
    /// The shard.
    pub shard: ShardIx,
    /// The key.
    pub key: Key,
    /// What is asked.
    pub kind: Kind,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done.
    Done,
    /// There was no such key.
    Absent,
    /// There was such a key.
    Exists,
    /// The key had another value.
    Differs,
    /// There is no room for it, here or at a replica.
    Full,
}

/// Why a copy of a request was certainly not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotDone {
    /// This node does not serve the shard, or not any more.
    NotServed,
    /// There is no room to remember its outcome.
    NoRoomForResult,
    /// Its key or value is longer than the cluster allows, or its key is one of the cluster's own.
    Invalid,
}

/// An answer to a copy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The copy.
    pub copy: u64,
    /// What became of it.
    pub ended: Result<Outcome, NotDone>,
}

/// What becomes of a key. `None`: it is gone.
pub type Store = (Key, Option<Value>);

/// What a change does to its key, as followers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// The key came.
    Came,
    /// It has another value.
    Replaced,
    /// It was removed.
    Removed,
    /// Its node has removed it.
    Evicted,
}

/// Names a channel. A newer one of the same primary has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChannelId {
    /// The primary's epoch.
    pub epoch: u64,
    /// Which one of that epoch.
    pub count: u64,
}

/// What goes over a channel from a primary to a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// The first, to one in sync.
    Begin {
        /// Behind which change it begins (CL18).
        after: FeedAt,
    },
    /// The first, to a newcomer. It is to set that much room aside, and to begin with nothing.
    Join {
        /// In bytes.
        room: u64,
        /// Behind which change it begins (CL18).
        after: FeedAt,
    },
    /// What a change, or an outcome, makes of some keys. The effect is on the first of them.
    Change(Effect, SmallVec<[Store; 2]>),
    /// A key with its value, which was there before.
    Walked(Key, Value),
    /// It is to set so much room aside.
    Room(u64),
}

/// Between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// An item of a channel.
    Item {
        /// The shard.
        shard: ShardIx,
        /// The channel.
        channel: ChannelId,
        /// Its number in the channel, from 1.
        number: u64,
        /// The item.
        item: Item,
    },
    /// All items up to this one were taken.
    Answer {
        /// The shard.
        shard: ShardIx,
        /// The channel.
        channel: ChannelId,
        /// The last item that was taken.
        number: u64,
        /// The room that is set aside, in bytes.
        room: u64,
        /// Only for a test: the item found no room.
        #[serde(skip)]
        is_refused: bool,
    },
    /// The primary goes on without whom it sends this.
    GivenUp {
        /// The shard.
        shard: ShardIx,
        /// The channel.
        channel: ChannelId,
    },
}

/// A connection of a client, or the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub u64);

impl Peer {
    /// The node itself: eviction (CL13).
    pub const SELF: Peer = Peer(u64::MAX);
}

/// What a node wants done. In this order: what is stored in its table was stored before any of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A call of etcd.
    Etcd(crate::core::etcd::CallId, crate::core::etcd::EtcdCall),
    /// A message to a node. It may be lost, come late, or twice.
    Node(NodeId, Message),
    /// A reply. It may be lost.
    Reply(Peer, Reply),
    /// Nothing: it has begun to remove this key by itself (CL13), by this copy of a request. Its end is a reply to
    /// [`Peer::SELF`].
    Evicts {
        /// The copy.
        copy: u64,
        /// The key.
        key: Key,
    },
}
