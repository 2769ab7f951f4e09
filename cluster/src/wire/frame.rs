//! Frames: their contents, and their longest length.

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

/// The content of a frame, after the handshake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// Nothing: a sign of life.
    Ping,
    /// Messages of one node to another.
    Messages(Vec<Message>),
    /// Requests of a client to a node.
    Requests(Vec<Request>),
    /// Replies of a node to a client.
    Replies(Vec<Reply>),
    /// A question of a client or an operator to a node.
    Ask(Question),
    /// The answer to [`Question::Map`].
    Map(ClusterMap),
    /// The answer to [`Question::Notes`].
    Notes(Notes),
    /// The answer to [`Question::Status`].
    Status(NodeStatus),
    /// A client's question to a node for changes (CL18).
    Follow(Follow),
    /// The answer to [`Said::Follow`].
    Changes(Changes),
    /// The answer to [`Question::Config`].
    Config(ClusterConfig),
}

/// A question to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Who serves what, as far as the node knows: for clients whose etcd does not answer.
    Map,
    /// Its notes of etcd: for an operator who adopts a restored etcd.
    Notes,
    /// Its status.
    Status,
    /// The cluster's configuration: for an operator whose etcd has lost it.
    Config,
}

/// Asks for changes of shards. The node answers when there are some, or after a second. The next question over the same
/// connection replaces this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// The number of the question.
    pub ask: u64,
    /// Shards, each with its last known change; `None`: changes from the next one on.
    pub shards: Vec<(ShardIx, Option<FeedAt>)>,
    /// Whether values are wanted.
    pub values: bool,
}

/// Changes of shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The number of the question that they answer.
    pub ask: u64,
    /// Some of the shards. `None`: the node does not serve the shard, or does not have the follower's place.
    pub shards: Vec<(ShardIx, Option<FeedPart>)>,
}

/// Who serves what, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The etcd that it believes.
    pub adoption: Adoption,
    /// The states, by shard.
    pub shards: Vec<ShardState>,
    /// The nodes, and their addresses.
    pub nodes: Vec<(NodeId, NodeAbout)>,
}

/// A node's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's number.
    pub id: NodeId,
    /// Its standing with etcd, in words.
    pub standing: String,
    /// Room that its entries take, in bytes.
    pub used: u64,
    /// Room that no shard has set aside, in bytes.
    pub room_left: u64,
    /// Entries that it has evicted since it began, as primary.
    pub evicted: u64,
    /// Entries that have left at their end, or with their owner.
    pub expired: u64,
    /// Missing copies of the shards of which it is primary.
    pub missing: u64,
    /// Its parts, by shard.
    pub shards: Vec<ShardStatus>,
    /// Its health with etcd and other nodes.
    pub health: Later<NodeHealth>,
}

/// A field at the end of a frame that earlier versions do not have.
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

/// A node's health with etcd and other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// Microseconds since it learned that etcd has taken one of its beats. `None`: of none yet.
    pub beat_age: Option<u64>,
    /// Why etcd takes none, in a few words: no space, no rights, no leader, no answer. Empty: it takes them.
    pub etcd: String,
    /// Living nodes that do not take its hello, each with the reason.
    pub refused_by: Vec<(NodeId, String)>,
    /// Another living node with its name.
    pub namesake: Option<NodeId>,
}

impl NodeStatus {
    /// The standing of a node that serves.
    pub(crate) const GOOD: &str = "good";

    /// Whether it serves its shards: etcd has taken one of its beats within the TTL, and another node takes its hello,
    /// if there is one.
    pub fn is_good(&self) -> bool {
        self.standing == NodeStatus::GOOD
    }

    /// The standing of a node whose table has refused what it must take.
    pub(crate) const FAILED: &str = "its table takes no more: others take over";

    /// Whether only a restart mends it.
    pub fn has_failed(&self) -> bool {
        self.standing == NodeStatus::FAILED
    }
}

/// A node's part in a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardIx,
    /// The node's role for it.
    pub role: Role,
    /// The epoch that it knows.
    pub epoch: u64,
    /// Room that its entries take, in bytes.
    pub used: u64,
    /// Changes under way.
    pub under_way: u64,
    /// Nodes to which it copies the shard.
    pub newcomers: Vec<NodeId>,
}

/// The longest keys, values and frames of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest key, in bytes, including the cluster's own.
    pub key_max: usize,
    /// The longest value, in bytes.
    pub value_max: usize,
    /// The longest frame, in bytes.
    pub frame_max: usize,
}

/// Bytes of a frame beside its longest values.
const FRAME_LEAST: usize = 1 << 20;

impl Bounds {
    /// The bounds of any cluster, for a program that does not know yet which it is.
    pub fn any() -> Bounds {
        let (key_max, value_max) = (255, 64 << 20);
        Bounds { key_max, value_max, frame_max: FRAME_LEAST + 2 * (key_max + value_max) }
    }

    /// The bounds of a cluster.
    pub fn of(config: &ClusterConfig) -> Bounds {
        let (key_max, value_max) = (usize::from(config.key_max).max(64), config.value_max as usize);
        // A swap has two values. A map of 1,024 shards fits, too.
        Bounds { key_max, value_max, frame_max: FRAME_LEAST + 2 * (key_max + value_max) }
    }

    /// Bytes of keys and values at which a frame is full enough.
    pub fn enough(&self) -> usize {
        FRAME_LEAST / 4
    }

    /// Frames with these bounds over a connection.
    pub(super) fn frames(&self, stream: TcpStream) -> Frames {
        let codec = LengthDelimitedCodec::builder().max_frame_length(self.frame_max).new_codec();
        Frames::new(stream, codec)
    }

    /// Decodes a frame, and checks all lengths.
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

/// Decodes the content of a frame. Further bytes are a later version's.
pub(super) fn decode<'f, S: Deserialize<'f>>(frame: &'f [u8]) -> Result<S, WireError> {
    postcard::take_from_bytes(frame)
        .map(|(said, _)| said)
        .map_err(|error| WireError::Rubbish(error.to_string()))
}

/// Sends something as a frame.
pub(super) async fn send(frames: &mut Frames, said: &impl Serialize) -> Result<(), WireError> {
    frames.send(encode(said)?).await.map_err(WireError::Broken)
}

/// As `send`, if the other end takes it in time.
pub(super) async fn send_in_time(frames: &mut Frames, said: &impl Serialize) -> Result<(), WireError> {
    timeout(SILENCE, send(frames, said)).await.unwrap_or(Err(WireError::Silent(SILENCE)))
}

/// Encodes a frame.
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
