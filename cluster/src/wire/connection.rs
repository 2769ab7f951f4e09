//! A client's connection to a node.

use super::frame::{Said, next, send_in_time};
use super::handshake::{Identity, connect};
use super::{Frames, HANDSHAKE, PING, SILENCE, WireError};
use crate::core::state::NodeId;
use std::io;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

/// A connection to a node. It carries requests and replies, and signs of life in both directions.
#[derive(Debug)]
pub struct NodeConnection {
    frames: Frames,
    who: Identity,
    heard: Instant,
    said: Instant,
}

/// Connects to the first of these addresses at which this node is, or any node if none is named. Also returns the node.
pub(super) async fn reach(
    addresses: &[String],
    who: &Identity,
    node: Option<NodeId>,
) -> Result<(Frames, NodeId), WireError> {
    let nobody = io::Error::new(io::ErrorKind::AddrNotAvailable, "the node names no address");
    let address = node.map_or_else(|| "a node".to_owned(), |node| node.to_string());
    let mut why = WireError::Connect { address, why: nobody };
    for address in addresses {
        let stream = timeout(HANDSHAKE, TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let connected = match stream {
            Ok(stream) => connect(stream, who, node).await,
            Err(why) => Err(WireError::Connect { address: address.clone(), why }),
        };
        match connected {
            Ok(reached) => return Ok(reached),
            Err(error) => why = error,
        }
    }
    Err(why)
}

impl NodeConnection {
    /// Connects to a node, at the first of its addresses where it is.
    ///
    /// # Errors
    /// [`WireError`], of the last address. Each takes 10 s at the most.
    pub async fn connect(
        addresses: &[String],
        who: Identity,
        node: NodeId,
    ) -> Result<NodeConnection, WireError> {
        let (frames, _) = reach(addresses, &who, Some(node)).await?;
        Ok(NodeConnection { frames, who, heard: Instant::now(), said: Instant::now() })
    }

    /// Connects to the node at an address, whichever it is. Also returns the node.
    ///
    /// # Errors
    /// As [`NodeConnection::connect`].
    pub async fn connect_any(address: &str, who: Identity) -> Result<(NodeConnection, NodeId), WireError> {
        let (frames, node) = reach(&[address.to_owned()], &who, None).await?;
        Ok((NodeConnection { frames, who, heard: Instant::now(), said: Instant::now() }, node))
    }

    /// Sends something. Waits while earlier data are under way.
    ///
    /// # Errors
    /// [`WireError`]: the connection has broken.
    pub async fn send(&mut self, said: &Said) -> Result<(), WireError> {
        self.said = Instant::now();
        send_in_time(&mut self.frames, said).await
    }

    /// The next message of the node. May be cancelled, and called again, at any time. This sends signs of life, too:
    /// the node hangs up on a client that does not call it for 5 s.
    ///
    /// # Errors
    /// [`WireError`]: the connection has broken, or nothing came for 5 s, not even a sign of life.
    pub async fn next(&mut self) -> Result<Said, WireError> {
        loop {
            // In this order: after a long pause, data that have come meanwhile are a sign of life.
            tokio::select! {
                biased;
                () = sleep_until(self.said + PING) => {
                    self.send(&Said::Ping).await?;
                }
                frame = next(&mut self.frames) => {
                    self.heard = Instant::now();
                    match self.who.bounds.decode(&frame?)? {
                        Said::Ping => {}
                        said => return Ok(said),
                    }
                }
                () = sleep_until(self.heard + SILENCE) => return Err(WireError::Silent(SILENCE)),
            }
        }
    }
}
