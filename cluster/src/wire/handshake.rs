//! The beginning of a connection.
//!
//! ```text
//! who connects ── Hello: versions, cluster, its node, a random number ─▶
//!              ◀─ Welcome: versions, cluster, its node, a random number, a proof ──
//!              ── Proof ─▶
//! ```
//!
//! A proof is an HMAC under the cluster's secret, over the prover's end and both hellos, and so over both random
//! numbers. Nobody can use a proof that he has seen, nor the other end's. It covers the bytes of the hellos as they
//! were sent, including fields of later versions that this one does not know.

use super::frame::{Bounds, decode, encode, next, send};
use super::secret::Secret;
use super::{Frames, HANDSHAKE, WireError};
use crate::core::state::NodeId;
use crate::etcd::ClusterName;
use futures_util::SinkExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The newest version of the protocol between nodes and clients that this program speaks.
pub const VERSION: u32 = 3;
/// The oldest version that it speaks.
pub const LEAST: u32 = 2;

/// Longest frame of a handshake, in bytes.
pub(super) const FRAME_MAX: usize = 1_024;

/// The identity of this end of connections.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterName,
    /// The node; `None` for a client.
    pub id: Option<NodeId>,
    /// The cluster's secret.
    pub secret: Secret,
    /// The bounds of keys, values and frames.
    pub bounds: Bounds,
    /// The newest version that it offers: [`VERSION`].
    pub newest: u32,
}

impl Identity {
    /// The identity of this program, in this cluster.
    pub fn new(cluster: ClusterName, id: Option<NodeId>, secret: Secret, bounds: Bounds) -> Identity {
        Identity { cluster, id, secret, bounds, newest: VERSION }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) magic: [u8; 8],
    pub(super) newest: u32,
    pub(super) least: u32,
    pub(super) cluster: String,
    pub(super) node: Option<NodeId>,
    pub(super) random: [u8; 32],
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// A [`Hello`], as bytes, and a proof.
    Hello(Vec<u8>, [u8; 32]),
    Refused(String),
}

const MAGIC: [u8; 8] = *b"oneread\x01";

impl Hello {
    pub(super) fn of(who: &Identity) -> Hello {
        let (cluster, node) = (who.cluster.to_string(), who.id);
        Hello { magic: MAGIC, newest: who.newest, least: LEAST, cluster, node, random: rand::random() }
    }

    /// The version that both ends speak.
    fn check(&self, who: &Identity) -> Result<u32, WireError> {
        if self.magic != MAGIC {
            return Err(WireError::Rubbish("it does not begin as a connection of a cluster does".into()));
        }
        let (ours, theirs) = (who.cluster.to_string(), self.cluster.clone());
        if ours != theirs {
            return Err(WireError::OtherCluster { ours, theirs });
        }
        let (least, newest) = (self.least, self.newest);
        if newest < LEAST || who.newest < least {
            return Err(WireError::Version { least, newest, our_least: LEAST, our_newest: who.newest });
        }
        Ok(newest.min(who.newest))
    }
}

/// The statement that an end proves.
pub(super) fn parts<'h>(hellos: [&'h [u8]; 2], end: &'static [u8]) -> [&'h [u8]; 3] {
    [end, hellos[0], hellos[1]]
}
pub(super) const CONNECTS: &[u8] = b"oneread cluster: who connects";
const LISTENS: &[u8] = b"oneread cluster: who listens";

/// Frames that are no longer than those of a handshake.
pub(super) fn short(stream: TcpStream) -> Frames {
    Bounds { key_max: 0, value_max: 0, frame_max: FRAME_MAX }.frames(stream)
}

fn long(mut frames: Frames, who: &Identity) -> Frames {
    frames.codec_mut().set_max_frame_length(who.bounds.frame_max);
    frames
}

async fn in_time<R>(within: Duration, f: impl Future<Output = Result<R, WireError>>) -> Result<R, WireError> {
    timeout(within, f).await.unwrap_or(Err(WireError::Silent(within)))
}

/// Begins a connection to a node: to this one, if one is named. Also returns the node.
pub async fn connect(
    stream: TcpStream,
    who: &Identity,
    wanted: Option<NodeId>,
) -> Result<(Frames, NodeId), WireError> {
    in_time(HANDSHAKE, async {
        stream.set_nodelay(true)?;
        let mut frames = short(stream);
        let ours = encode(&Hello::of(who))?;
        frames.send(ours.clone()).await?;
        let (bytes, proof) = match decode(&next(&mut frames).await?)? {
            Welcome::Hello(hello, proof) => (hello, proof),
            Welcome::Refused(why) => return Err(WireError::Refused(why)),
        };
        let theirs: Hello = decode(&bytes)?;
        theirs.check(who)?;
        let hellos = [&ours[..], &bytes[..]];
        if !who.secret.proves(&parts(hellos, LISTENS), &proof) {
            return Err(WireError::Secret);
        }
        let found = theirs.node.ok_or_else(|| WireError::Rubbish("it is no node".into()))?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            return Err(WireError::OtherNode { found, wanted });
        }
        send(&mut frames, &who.secret.proof(&parts(hellos, CONNECTS))).await?;
        Ok((long(frames, who), found))
    })
    .await
}

/// Begins a connection that another program has made to this node. Also returns that node; `None`: a client. And the
/// version that both ends speak.
pub async fn accept(stream: TcpStream, who: &Identity) -> Result<(Frames, Option<NodeId>, u32), WireError> {
    in_time(HANDSHAKE, async {
        stream.set_nodelay(true)?;
        let mut frames = short(stream);
        let bytes = next(&mut frames).await?;
        let theirs: Hello = decode(&bytes)?;
        let version = match theirs.check(who) {
            Ok(version) => version,
            Err(error) => {
                // A stranger that does not speak this protocol gets no answer.
                if theirs.magic == MAGIC {
                    send(&mut frames, &Welcome::Refused(error.to_string())).await?;
                }
                return Err(error);
            }
        };
        let ours = encode(&Hello::of(who))?;
        let hellos = [&bytes[..], &ours[..]];
        let proof = who.secret.proof(&parts(hellos, LISTENS));
        send(&mut frames, &Welcome::Hello(ours.to_vec(), proof)).await?;
        let proof: [u8; 32] = decode(&next(&mut frames).await?)?;
        if !who.secret.proves(&parts(hellos, CONNECTS), &proof) {
            return Err(WireError::Secret);
        }
        Ok((long(frames, who), theirs.node, version))
    })
    .await
}
