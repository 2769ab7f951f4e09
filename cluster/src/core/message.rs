//! The messages between nodes and clients.

use crate::core::ids::{ShardIx, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A key or a value.
pub type Key = Bytes;
/// A value.
pub type Value = Bytes;

/// When an entry ends, by the time of day: milliseconds since 1970. A replica has the same end, or one less than an
/// eighth of a second later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End(pub u64);

/// The longest time to live, in microseconds: ten years. A table's own ends go up to seventeen years after it was made.
pub const TTL_MAX: Time = 3_650 * 86_400_000_000;

/// When an entry leaves that nobody removes. Encoded as versions before owners encode it: `None`, and `Some(end)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Never.
    #[default]
    Lasting,
    /// At this time.
    Until(End),
    /// With this owner (CL19), or at this time if that comes first.
    Owned(u16, Option<End>),
}

impl Life {
    /// The life of an entry with this end, if any, and this owner, if any.
    pub fn new(end: Option<End>, owner: Option<u16>) -> Life {
        match (end, owner) {
            (end, Some(owner)) => Life::Owned(owner, end),
            (Some(end), None) => Life::Until(end),
            (None, None) => Life::Lasting,
        }
    }

    /// When it ends. `None`: never by itself.
    pub fn end(self) -> Option<End> {
        match self {
            Life::Lasting => None,
            Life::Until(end) => Some(end),
            Life::Owned(_, end) => end,
        }
    }

    /// The owner. `None`: nobody.
    pub fn owner(self) -> Option<u16> {
        match self {
            Life::Owned(owner, _) => Some(owner),
            Life::Lasting | Life::Until(_) => None,
        }
    }
}

/// A key's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its value.
    pub value: Value,
    /// When it leaves.
    pub life: Life,
}

/// A session of an owner (CL19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The owner: 1 to [`OWNER_MAX`].
    pub owner: u16,
    /// A random number, which no other session has.
    pub number: u64,
}

/// The largest number of an owner.
pub const OWNER_MAX: u16 = 65_534;

/// The life that a new entry gets. Encoded as versions before owners encode it: `None`, and `Some(ttl)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// The usual life at its node.
    #[default]
    Usual,
    /// It lives this long.
    For(Time),
    /// It belongs to the owner of this session, and lives this long, or as usual at its node.
    Owned(Session, Option<Time>),
}

impl Wanted {
    /// The life for this time to live, if any, and this session, if any.
    pub fn new(ttl: Option<Time>, session: Option<Session>) -> Wanted {
        match (ttl, session) {
            (ttl, Some(session)) => Wanted::Owned(session, ttl),
            (Some(ttl), None) => Wanted::For(ttl),
            (None, None) => Wanted::Usual,
        }
    }

    /// How long it lives. `None`: as usual at its node.
    pub fn ttl(self) -> Option<Time> {
        match self {
            Wanted::Usual => None,
            Wanted::For(ttl) => Some(ttl),
            Wanted::Owned(_, ttl) => ttl,
        }
    }

    /// The session that puts it. `None`: no session.
    pub fn session(self) -> Option<Session> {
        match self {
            Wanted::Owned(session, _) => Some(session),
            Wanted::Usual | Wanted::For(_) => None,
        }
    }
}

/// What a request does to its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Puts this value.
    Put(Value),
    /// Puts this value, if the key is absent.
    Insert(Value),
    /// Puts the value `new`, if the key has `expected`.
    Swap {
        /// The value that the key must have.
        expected: Value,
        /// The new value.
        new: Value,
    },
    /// Removes the key.
    Remove,
    /// Puts this value, if the key is present.
    Update(Value),
    /// For an owner's key: begins this session. It may put as the owner, and may be away for this long.
    Own(Session, Time),
    /// For an owner's key: the session is still there.
    Stay(Session),
    /// For an owner's key: asks for its session.
    Who,
    /// For an owner's key: the session may put no more, and the owner's entries leave. Its outcome is `Done` until they
    /// have left.
    RemoveOwner(Session),
}

impl Kind {
    /// Bytes of the longest value in it.
    pub fn value_len(&self) -> usize {
        match self {
            Kind::Put(value) | Kind::Insert(value) | Kind::Update(value) => value.len(),
            Kind::Swap { expected, new } => expected.len().max(new.len()),
            _ => 0,
        }
    }

    /// The session that the request names.
    pub fn session(&self) -> Option<Session> {
        match self {
            Kind::Own(session, _) | Kind::Stay(session) | Kind::RemoveOwner(session) => Some(*session),
            _ => None,
        }
    }

    /// Whether the request is about an owner, and not about an entry.
    pub fn is_of_owner(&self) -> bool {
        matches!(self, Kind::Own(..) | Kind::Stay(_) | Kind::Who | Kind::RemoveOwner(_))
    }
}

/// The id under which a request's outcome is stored, for later copies of it (CL15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    /// A random number. Requests with the same lane come one after the other.
    pub lane: u64,
    /// Goes up with each request of the lane.
    pub number: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Names this copy of the request to its client.
    pub copy: u64,
    /// If it has one, its outcome is stored.
    pub id: Option<RequestId>,
    /// The key's shard.
    pub shard: ShardIx,
    /// The key.
    pub key: Key,
    /// What it does to the key.
    pub kind: Kind,
    /// The life of the entry that a put, an insert or an update makes.
    pub wanted: Wanted,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The key was absent.
    Absent,
    /// The key was present.
    Exists,
    /// The key had another value.
    Differs,
    /// There is no room for the entry, here or at a replica.
    Full,
    /// The owner has the session with this number.
    Is(u64),
}

/// Why a copy of a request was certainly not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotDone {
    /// This node does not serve the shard, or not any more.
    NotServed,
    /// There is no room to store its outcome.
    NoRoomForResult,
    /// Its key or value is longer than the cluster allows, or its key is one of the cluster's own.
    Invalid,
    /// It has a time to live, and the node's table has no ends, or none so late.
    NoLife,
    /// Entries of the node's table have no owners, or a node with a copy of the shard knows none.
    NoOwners,
    /// The owner leaves or is gone, or has another session.
    OwnerGone,
}

/// An answer to a copy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The copy.
    pub copy: u64,
    /// How the copy ended.
    pub ended: Result<Outcome, NotDone>,
}

/// A key's new entry. `None`: it has none.
pub type Store = (Key, Option<Entry>);

/// Bytes of the value that is stored. `None`: the key is gone.
pub fn value_len((_, entry): &Store) -> Option<usize> {
    entry.as_ref().map(|entry| entry.value.len())
}

/// What a change does to its key, for followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// The key came.
    Came,
    /// The key has another value.
    Replaced,
    /// The key was removed.
    Removed,
    /// Its node has evicted it.
    Evicted,
    /// Its node has removed it at its end.
    Expired,
    /// Its node has removed it, with its owner.
    OwnerGone,
}

/// The place of a change in its shard. All replicas have the same (CL18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FeedAt {
    /// The epoch in which it was made.
    pub epoch: u64,
    /// Goes up by one with each change, from epoch to epoch.
    pub number: u64,
}

/// Names a channel. A newer one of the same primary has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChannelId {
    /// The primary's epoch.
    pub epoch: u64,
    /// The number of the channel in that epoch.
    pub count: u64,
}

/// An item of a channel from a primary to a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// The first item, to a standby in sync.
    Begin {
        /// The last change before the channel (CL18).
        after: FeedAt,
    },
    /// The first item, to a newcomer. It sets this room aside, and begins with an empty copy.
    Join {
        /// In bytes.
        room: u64,
        /// The last change before the channel (CL18).
        after: FeedAt,
    },
    /// A change or an outcome: the new entries of some keys. The effect is on the first of them.
    Change(Effect, SmallVec<[Store; 2]>),
    /// A key with its entry, from a walk.
    Walked(Key, Entry),
    /// The standby sets this room aside.
    Room(u64),
}

/// The version between nodes from which on they answer [`Message::Hello`].
pub const HELLO_SINCE: u32 = 3;

/// A message between two nodes.
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
    /// The receiver has taken all items up to this one.
    Answer {
        /// The shard.
        shard: ShardIx,
        /// The channel.
        channel: ChannelId,
        /// The last item that was taken.
        number: u64,
        /// The room that is set aside, in bytes.
        room: u64,
        /// Only in tests: the item found no room.
        #[serde(skip)]
        is_refused: bool,
    },
    /// The primary goes on without the receiver.
    GivenUp {
        /// The shard.
        shard: ShardIx,
        /// The channel.
        channel: ChannelId,
    },
    /// Whether messages go both ways (CL20). Not to a node of a version below [`HELLO_SINCE`].
    Hello {
        /// It is to be answered by one that asks nothing.
        asks: bool,
    },
}

/// A connection of a client, or the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub u64);

impl Peer {
    /// The node itself, when it removes entries (CL13).
    pub const SELF: Peer = Peer(u64::MAX);
}
