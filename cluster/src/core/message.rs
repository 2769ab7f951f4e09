//! What nodes and clients say to each other.

use crate::core::ids::{ShardIx, Time};
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

/// How an entry goes that nobody removes. What versions before owners say is read as it is: `None`, and `Some(end)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Not at all.
    #[default]
    Lasting,
    /// At this time.
    Until(End),
    /// With this owner (CL19), or at this time if that comes first.
    Owned(u16, Option<End>),
}

impl Life {
    /// Of an entry with this end, if any, and this owner, if any.
    pub fn new(end: Option<End>, owner: Option<u16>) -> Life {
        match (end, owner) {
            (end, Some(owner)) => Life::Owned(owner, end),
            (Some(end), None) => Life::Until(end),
            (None, None) => Life::Lasting,
        }
    }

    /// When it ends. `None`: not by itself.
    pub fn end(self) -> Option<End> {
        match self {
            Life::Lasting => None,
            Life::Until(end) => Some(end),
            Life::Owned(_, end) => end,
        }
    }

    /// Whose it is. `None`: nobody's.
    pub fn owner(self) -> Option<u16> {
        match self {
            Life::Owned(owner, _) => Some(owner),
            Life::Lasting | Life::Until(_) => None,
        }
    }
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its value.
    pub value: Value,
    /// How it goes.
    pub life: Life,
}

/// A session of an owner (CL19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The owner: 1 to [`OWNER_MAX`].
    pub owner: u16,
    /// A random number, of which there is never another one.
    pub number: u64,
}

/// The largest number of an owner.
pub const OWNER_MAX: u16 = 65_534;

/// What life an entry is to have that is put. What versions before owners say is read as it is: `None`, and `Some(ttl)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// As its node says.
    #[default]
    Usual,
    /// It lives so long.
    For(Time),
    /// It is this session's owner's, and lives so long, or as its node says.
    Owned(Session, Option<Time>),
}

impl Wanted {
    /// So long, if that was said, and this session's owner's, if there is one.
    pub fn new(ttl: Option<Time>, session: Option<Session>) -> Wanted {
        match (ttl, session) {
            (ttl, Some(session)) => Wanted::Owned(session, ttl),
            (Some(ttl), None) => Wanted::For(ttl),
            (None, None) => Wanted::Usual,
        }
    }

    /// How long it is to live. `None`: as its node says.
    pub fn ttl(self) -> Option<Time> {
        match self {
            Wanted::Usual => None,
            Wanted::For(ttl) => Some(ttl),
            Wanted::Owned(_, ttl) => ttl,
        }
    }

    /// Who puts it. `None`: nobody in particular.
    pub fn session(self) -> Option<Session> {
        match self {
            Wanted::Owned(session, _) => Some(session),
            Wanted::Usual | Wanted::For(_) => None,
        }
    }
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
    /// The key is an owner's: whoever has this session may put as that owner from then on, and may be away for so long.
    Own(Session, Time),
    /// The key is an owner's: that session is still there.
    Stay(Session),
    /// The key is an owner's: who its session is.
    Who,
    /// The key is an owner's: that session may put no more, and the owner's entries leave. Done, until they have left.
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

    /// The session that is asked of.
    pub fn session(&self) -> Option<Session> {
        match self {
            Kind::Own(session, _) | Kind::Stay(session) | Kind::RemoveOwner(session) => Some(*session),
            _ => None,
        }
    }

    /// Whether it is asked of an owner, and not of an entry.
    pub fn is_of_owner(&self) -> bool {
        matches!(self, Kind::Own(..) | Kind::Stay(_) | Kind::Who | Kind::RemoveOwner(_))
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
    /// What life the entry has that a put, an insert or an update makes.
    pub wanted: Wanted,
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
    /// The owner has the session with this number.
    Is(u64),
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
    /// Its node has removed it, with its owner.
    OwnerGone,
}

/// The place of a change among those of its shard. All replicas have the same (CL18).
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

/// The version between nodes from which on they answer [`Message::Hello`].
pub const HELLO_SINCE: u32 = 3;

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
    /// The node itself: entries that leave (CL13).
    pub const SELF: Peer = Peer(u64::MAX);
}
