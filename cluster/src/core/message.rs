//! What nodes and clients say to each other.

use crate::core::feed::FeedAt;
use crate::core::state::{NodeId, ShardIx, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A key or a value.
pub type Key = Bytes;
/// A value.
pub type Value = Bytes;

/// When an entry ends, by the time of day: milliseconds since 1970. What a replica has of it is the same, or
/// less than an eighth of a second later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End(pub u64);

/// The longest time to live, in microseconds: ten years. A table's own ends go up to seventeen years after it was made.
pub const TTL_MAX: Time = 3_650 * 86_400_000_000;

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its value.
    pub value: Value,
    /// `None`: it does not end by itself.
    pub end: Option<End>,
}

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
    /// It has this value, if there was such a key.
    Update(Value),
}

impl Kind {
    /// Bytes of the longest value in it.
    pub fn value_len(&self) -> usize {
        match self {
            Kind::Put(value) | Kind::Insert(value) | Kind::Update(value) => value.len(),
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
    /// How long the entry lives that a put or an insert makes. `None`: as its node says.
    pub ttl: Option<Time>,
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
    /// It has a time to live, and entries of the node's table have none, or none as long.
    NoLife,
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
pub type Store = (Key, Option<Entry>);

/// Bytes of the value that is stored. `None`: the key is gone.
pub fn value_len((_, entry): &Store) -> Option<usize> {
    entry.as_ref().map(|entry| entry.value.len())
}

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
    /// Its node has removed it, so that others find room.
    Evicted,
    /// Its node has removed it, at its end.
    Expired,
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
    /// A key with what it has, which was there before.
    Walked(Key, Entry),
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
    /// The node itself: entries that leave (CL13).
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
    Removes {
        /// The copy.
        copy: u64,
        /// The key.
        key: Key,
        /// Evicted, or expired; nothing, of an outcome.
        effect: Effect,
    },
}
