//! Frames: what is said, and how long it may be.

use super::{Frames, SILENCE, WireError};
use crate::core::feed::{FeedAt, FeedPart, Told};
use crate::core::message::{Item, Message, Reply, Request, Store, value_len};
use crate::core::shard::Role;
use crate::core::state::{Adoption, ClusterConfig, NodeAbout, NodeId, Notes, ShardIx, ShardState};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::codec::LengthDelimitedCodec;

/// What is said over a connection, after the handshake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// Nothing: a sign of life.
    Ping,
    /// One node to another.
    Messages(Vec<Message>),
    /// A client to a node.
    Requests(Vec<Request>),
    /// A node to a client.
    Replies(Vec<Reply>),
    /// A client or an operator to a node.
    Ask(Question),
    /// The answer to [`Question::Map`].
    Map(ClusterMap),
    /// The answer to [`Question::Notes`].
    Notes(Notes),
    /// The answer to [`Question::Status`].
    Status(NodeStatus),
    /// A client to a node: it wants to hear of changes (CL18).
    Follow(Follow),
    /// The answer to [`Said::Follow`].
    Changes(Changes),
    /// The answer to [`Question::Config`].
    Config(ClusterConfig),
}

/// What a node can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Who serves what, as far as it knows: for clients whose etcd does not answer.
    Map,
    /// What it has noted of etcd: for an operator who adopts a restored one.
    Notes,
    /// How it is.
    Status,
    /// What the cluster is: for an operator whose etcd has lost that.
    Config,
}

/// Asks for changes of shards. It is answered when there are some, or after a second; the next one of the same
/// connection takes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// Names it.
    pub ask: u64,
    /// Shards, and behind which change of theirs; `None`: from the next one on.
    pub shards: Vec<(ShardIx, Option<FeedAt>)>,
    /// Whether values are wanted.
    pub values: bool,
}

/// Changes of shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// What they answer.
    pub ask: u64,
    /// Some of the shards. `None`: the node does not serve this one, or has not heard of what is asked for.
    pub shards: Vec<(ShardIx, Option<FeedPart>)>,
}

/// Who serves what, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The etcd that it believes.
    pub adoption: Adoption,
    /// By shard.
    pub shards: Vec<ShardState>,
    /// Nodes, and where they are.
    pub nodes: Vec<(NodeId, NodeAbout)>,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub id: NodeId,
    /// Its standing with etcd, in words.
    pub standing: String,
    /// Room that its entries take, in bytes.
    pub used: u64,
    /// Room that no shard has set aside, in bytes.
    pub room_left: u64,
    /// Entries that it has removed by itself since it began, as primary: to make room.
    pub evicted: u64,
    /// Entries that have left at their end, or with their owner.
    pub expired: u64,
    /// Copies that shards lack of which it is primary.
    pub missing: u64,
    /// By shard.
    pub shards: Vec<ShardStatus>,
    /// How etcd and other nodes take it.
    pub health: Later<NodeHealth>,
}

/// What the end of a frame says in this version, and not in earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Later<T>(pub Option<T>);

impl<T: Serialize> Serialize for Later<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(said) => said.serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}

impl<'f, T: Deserialize<'f>> Deserialize<'f> for Later<T> {
    fn deserialize<D: Deserializer<'f>>(deserializer: D) -> Result<Later<T>, D::Error> {
        Ok(Later(T::deserialize(deserializer).ok()))
    }
}

/// How etcd and other nodes take a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// Microseconds since it learned that etcd has taken a beat of its. `None`: of none yet.
    pub beat_age: Option<u64>,
    /// Why etcd takes none, in a few words: no space, no rights, no leader, no answer. Empty: it takes them.
    pub etcd: String,
    /// Nodes that live and do not take its hello, each with why.
    pub refused_by: Vec<(NodeId, String)>,
    /// Another node that beats, and has its name.
    pub namesake: Option<NodeId>,
}

impl NodeStatus {
    /// The standing of one that serves.
    pub(crate) const GOOD: &str = "good";

    /// Whether it serves what etcd says: etcd has taken a beat of its within the TTL, and another node takes its hello, if
    /// there is one.
    pub fn is_good(&self) -> bool {
        self.standing == NodeStatus::GOOD
    }

    /// The standing of one whose table has refused what it must take.
    pub(crate) const FAILED: &str = "its table takes no more: others take over";

    /// Whether only another start mends it.
    pub fn has_failed(&self) -> bool {
        self.standing == NodeStatus::FAILED
    }
}

/// A node's part in a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardIx,
    /// What the node is for it.
    pub role: Role,
    /// The epoch that it knows.
    pub epoch: u64,
    /// Room that its entries take, in bytes.
    pub used: u64,
    /// Changes under way.
    pub under_way: u64,
    /// Nodes that it copies the shard to.
    pub newcomers: Vec<NodeId>,
}

/// How long keys, values and frames of a cluster may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Keys, in bytes: those of the cluster's own, too.
    pub key_max: usize,
    /// Values, in bytes.
    pub value_max: usize,
    /// Frames, in bytes.
    pub frame_max: usize,
}

/// Bytes of a frame that need no long value: beside the longest one.
const FRAME_LEAST: usize = 1 << 20;

impl Bounds {
    /// Of any cluster: for who does not know yet which it is.
    pub fn any() -> Bounds {
        let (key_max, value_max) = (255, 64 << 20);
        Bounds { key_max, value_max, frame_max: FRAME_LEAST + 2 * (key_max + value_max) }
    }

    /// Of a cluster.
    pub fn of(config: &ClusterConfig) -> Bounds {
        let (key_max, value_max) = (usize::from(config.key_max).max(64), config.value_max as usize);
        // A swap has two values; and a map of 1,024 shards has its place.
        Bounds { key_max, value_max, frame_max: FRAME_LEAST + 2 * (key_max + value_max) }
    }

    /// Bytes of keys and values at which a frame is full enough.
    pub fn enough(&self) -> usize {
        FRAME_LEAST / 4
    }

    /// These frames over a connection.
    pub(super) fn frames(&self, stream: TcpStream) -> Frames {
        let codec = LengthDelimitedCodec::builder().max_frame_length(self.frame_max).new_codec();
        Frames::new(stream, codec)
    }

    /// What came in a frame. All lengths are checked.
    pub fn decode(&self, frame: &[u8]) -> Result<Said, WireError> {
        let said: Said = decode(frame)?;
        if self.may_hold(&said) {
            Ok(said)
        } else {
            Err(WireError::Rubbish("a key or a value is too long".into()))
        }
    }

    fn may_hold(&self, said: &Said) -> bool {
        let is_key = |key: &Bytes| key.len() <= self.key_max;
        let is_value = |value: &Bytes| value.len() <= self.value_max.max(64);
        let is_store =
            |(key, entry): &Store| is_key(key) && entry.as_ref().is_none_or(|entry| is_value(&entry.value));
        match said {
            Said::Messages(messages) => messages.iter().all(|message| match message {
                Message::Item { item: Item::Change(_, stores), .. } => stores.iter().all(is_store),
                Message::Item { item: Item::Walked(key, entry), .. } => is_key(key) && is_value(&entry.value),
                _ => true,
            }),
            Said::Changes(Changes { shards, .. }) => {
                let mut told =
                    shards.iter().filter_map(|(_, part)| part.as_ref()).flat_map(|part| &part.changes);
                told.all(|Told { key, value, .. }| is_key(key) && value.as_ref().is_none_or(is_value))
            }
            Said::Requests(requests) => requests.iter().all(|Request { key, kind, .. }| {
                let len = kind.value_len();
                is_key(key) && len <= self.value_max
            }),
            _ => true,
        }
    }
}

/// Bytes of keys and values in a message.
pub(super) fn weight(message: &Message) -> usize {
    const REST: usize = 48;
    let of_store = |store: &Store| store.0.len() + value_len(store).unwrap_or(0);
    REST + match message {
        Message::Item { item: Item::Change(_, stores), .. } => stores.iter().map(of_store).sum(),
        Message::Item { item: Item::Walked(key, entry), .. } => key.len() + entry.value.len(),
        _ => 0,
    }
}

/// What a frame says. Bytes behind it are a later version's.
pub(super) fn decode<'f, S: Deserialize<'f>>(frame: &'f [u8]) -> Result<S, WireError> {
    postcard::take_from_bytes(frame)
        .map(|(said, _)| said)
        .map_err(|error| WireError::Rubbish(error.to_string()))
}

/// Sends something as a frame.
pub(super) async fn send(frames: &mut Frames, said: &impl Serialize) -> Result<(), WireError> {
    frames.send(encode(said)?).await.map_err(WireError::Broken)
}

/// The same, if the other end takes it in time.
pub(super) async fn send_in_time(frames: &mut Frames, said: &impl Serialize) -> Result<(), WireError> {
    timeout(SILENCE, send(frames, said)).await.unwrap_or(Err(WireError::Silent(SILENCE)))
}

/// A frame that says something.
pub(super) fn encode(said: &impl Serialize) -> Result<Bytes, WireError> {
    let bytes = postcard::to_stdvec(said);
    bytes.map(Bytes::from).map_err(|error| WireError::Broken(io::Error::other(error)))
}

/// The next frame.
pub(super) async fn next(frames: &mut Frames) -> Result<Bytes, WireError> {
    match frames.next().await {
        Some(Ok(frame)) => Ok(frame.freeze()),
        Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Err(WireError::Rubbish(error.to_string()))
        }
        Some(Err(error)) => Err(WireError::Broken(error)),
        None => Err(WireError::Ended),
    }
}
