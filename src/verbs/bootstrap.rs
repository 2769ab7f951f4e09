//! The conversation before the first READ, over TCP.
//!
//! ```text
//! server  Challenge   version, nonce, what extension it has
//! client  Join        version, nonce, proof of the token, its queue pairs
//! server  Welcome     proof of the token, its queue pairs, where the region is, the superblock
//!     or  Refused     why
//! ```
//!
//! Each message is its length (4 bytes, little-endian) and that many bytes of JSON. A proof is the
//! HMAC-SHA-256, under the token, of the prover's role, both nonces and the whole message with its
//! proof set to zeros. A proof cannot be replayed, and a message cannot be changed on the way. The
//! token keeps strangers out. What crosses the network afterwards is neither encrypted nor signed.
//!
//! The TCP connection stays open without traffic. It tells each side when the other is gone.
use crate::base::units::time;

use super::device::Endpoint;
use super::error::SetupError;
use crate::wire::proof::Token;
use crate::wire::proof::{self, Statement};
pub(crate) use crate::wire::proof::{Nonce, TokenProof};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most messages a client may have unanswered.
pub(crate) const MESSAGES_MAX: usize = 16;

/// Version of this conversation and of the messages after it.
pub(crate) const VERSION: u32 = 1;
/// Longest message of the conversation, in bytes.
const MESSAGE_MAX: usize = 16 << 10;

/// The server's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Challenge {
    /// Always [`NAME`]: identifies the protocol.
    pub oneread: String,
    pub version: u32,
    pub nonce: Nonce,
    /// Which requests the server knows ([`LEVEL`](crate::wire::LEVEL)).
    #[serde(default)]
    pub level: u16,
    /// What the server offers in addition. Other modules define its content.
    pub extension: Option<serde_json::Value>,
}

/// The value of [`Challenge::oneread`].
pub(crate) const NAME: &str = "verbs";

/// The client's reply to the challenge.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub version: u32,
    pub nonce: Nonce,
    pub proof: TokenProof,
    pub endpoint: Endpoint,
    pub network: Network,
    /// Which part of the offer the client takes.
    pub extension: Option<serde_json::Value>,
}

/// The server's last message of the conversation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JoinAnswer {
    Welcome(Box<Welcome>),
    Refused {
        /// Whether the token is the reason.
        token: bool,
        why: String,
    },
}

/// Everything a client needs for its READs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub proof: TokenProof,
    pub endpoint: Endpoint,
    pub region: Descriptor,
    /// The superblock's words: geometry and generation.
    pub superblock: Vec<u64>,
    /// How many messages a client may have unanswered.
    pub messages: u16,
    /// Longest message in bytes, either way.
    pub message_bytes: u32,
    pub network: Network,
    /// What the client gets of the extension that it asked for.
    pub extension: Option<serde_json::Value>,
}

/// A message that proves that its sender knows the token.
pub(crate) trait Proving: Serialize {
    const ROLE: &'static [u8];

    fn proof(&mut self) -> &mut TokenProof;
}

impl Proving for Join {
    const ROLE: &'static [u8] = b"oneread client";

    fn proof(&mut self) -> &mut TokenProof {
        &mut self.proof
    }
}

impl Proving for Welcome {
    const ROLE: &'static [u8] = b"oneread server";

    fn proof(&mut self) -> &mut TokenProof {
        &mut self.proof
    }
}

/// The kind of network that a queue pair is on. It must be the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    pub infiniband: bool,
    /// The kind of GID in use (verbs.h, `enum ibv_gid_type`), if any.
    pub kind: Option<u8>,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Descriptor {
    /// The server's address of its first byte.
    pub address: u64,
    /// The key by which work requests name it.
    pub key: u32,
    /// Length in bytes.
    pub bytes: u64,
}

/// A fresh nonce.
pub(crate) fn nonce() -> Result<Nonce, SetupError> {
    proof::nonce()
        .map_err(|e| SetupError::Call { call: "getrandom", errno: e.raw_os_error().unwrap_or_default() })
}

/// The bytes of a message whose proof is zeros.
fn said<M: Proving>(message: &M) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data")
}

/// Fills in the proof of a message that is otherwise complete.
pub(crate) fn prove<M: Proving>(token: &Token, server: &Nonce, client: &Nonce, message: &mut M) {
    *message.proof() = TokenProof::default();
    let said = &said(message);
    *message.proof() = Statement { role: M::ROLE, server, client, message: said }.prove(token);
}

/// Whether the sender knows the token and the message is unchanged. Sets the proof to zeros. The
/// time it takes does not depend on what is wrong.
pub(crate) fn is_proven<M: Proving>(token: &Token, server: &Nonce, client: &Nonce, message: &mut M) -> bool {
    let proof = std::mem::take(message.proof());
    let said = &said(message);
    Statement { role: M::ROLE, server, client, message: said }.is_proven(token, &proof)
}

/// A message as it goes over the wire.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let body = serde_json::to_vec(message).expect("messages are plain data");
    debug_assert!(body.len() <= MESSAGE_MAX);
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// The message at the start of `bytes`; `None` when more are needed.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<T>, Undecoded> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MESSAGE_MAX {
        return Err(Undecoded::TooLong);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    Ok(Some(serde_json::from_slice(body)?))
}

/// Why bytes are no message. Says what their sender did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecoded {
    #[error("{NO_MESSAGE}")]
    TooLong,
    #[error("sent a message that makes no sense; use the same version of oneread on both sides")]
    Content(#[from] serde_json::Error),
}

pub(crate) const NO_MESSAGE: &str =
    "sent something that is no message of oneread's; is it another service's port?";

/// The client's side of the stream. Every wait ends at the deadline.
pub(crate) struct Handshake {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    deadline: Instant,
    within: Duration,
}

impl Handshake {
    /// Connects to the first of the host's addresses that answers.
    pub fn open(host: &str, port: u16, within: Duration) -> Result<Handshake, SetupError> {
        use std::net::ToSocketAddrs;
        let address = super::host_and_port(host, port);
        let not_there = |e: io::Error| SetupError::NotThere { address: address.clone(), source: Arc::new(e) };
        let deadline = Instant::now() + within;
        let addresses = (host, port).to_socket_addrs().map_err(not_there)?;
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for peer in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&peer, left) {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(Handshake { stream, peer, deadline, within });
                }
                Err(e) => last = e,
            }
        }
        Err(not_there(last))
    }

    /// The error that names this server and what it did.
    pub fn failed(&self, why: impl Into<String>) -> SetupError {
        SetupError::Handshake { peer: self.peer, why: why.into(), source: None }
    }

    /// Like `failed`, with what the operating system or the decoder says of it.
    fn failed_by(&self, why: impl Into<String>, source: impl Error + Send + Sync + 'static) -> SetupError {
        SetupError::Handshake { peer: self.peer, why: why.into(), source: Some(Arc::new(source)) }
    }

    fn io(&self, doing: &str, error: io::Error) -> SetupError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.failed(format!(
                "did not answer within {}; it may be suspended (SIGSTOP) or busy",
                time(self.within)
            )),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                self.failed(format!("hung up while this client was {doing}"))
            }
            _ => self.failed_by(format!("broke off while this client was {doing}"), error),
        }
    }

    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), SetupError> {
        self.limit()?;
        self.stream.write_all(&encode(message)).map_err(|e| self.io("sending", e))
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, SetupError> {
        let mut bytes = vec![0; 4];
        let mut have = 0;
        loop {
            if have == bytes.len() {
                let failed = |error: Undecoded| match (error.to_string(), error) {
                    (did, Undecoded::TooLong) => self.failed(did),
                    (did, Undecoded::Content(source)) => self.failed_by(did, source),
                };
                match decode(&bytes).map_err(failed)? {
                    Some(message) => return Ok(message),
                    None => {
                        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                        bytes.resize(4 + length as usize, 0);
                    }
                }
            }
            self.limit()?;
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => return Err(self.failed("hung up before it had answered")),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io("waiting for its answer", e)),
            }
        }
    }

    /// Sets the stream's timeouts to the time that is left.
    fn limit(&self) -> Result<(), SetupError> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let set = self.stream.set_read_timeout(Some(left)).and(self.stream.set_write_timeout(Some(left)));
        set.map_err(|e| self.io("setting up", e))?;
        if Instant::now() >= self.deadline {
            return Err(self.io("waiting", ErrorKind::TimedOut.into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(num: u32) -> Endpoint {
        let at = ibverbs::QueuePairEndpoint { num, lid: 0, gid: Some(ibverbs::Gid::default()) };
        Endpoint { at, first_packet: 7, mtu: 1024, reads: 16 }
    }

    fn join(num: u32) -> Join {
        Join {
            version: 1,
            nonce: [2; 32],
            proof: [9; 32],
            endpoint: endpoint(num),
            network: Network { infiniband: false, kind: Some(2) },
            extension: None,
        }
    }

    /// The proof depends on every input.
    #[test]
    fn proofs_depend_on_every_input() {
        let (token, other) = (Token::new("secret"), Token::new("secreT"));
        let (server, client) = ([1; 32], [2; 32]);
        let proven = |token: &Token, server: &Nonce, client: &Nonce, change: &dyn Fn(&mut Join)| {
            let mut join = join(5);
            prove(&Token::new("secret"), &[1; 32], &[2; 32], &mut join);
            change(&mut join);
            is_proven(token, server, client, &mut join)
        };
        assert!(proven(&token, &server, &client, &|_| {}));
        assert!(!proven(&other, &server, &client, &|_| {}));
        assert!(!proven(&token, &[3; 32], &client, &|_| {}));
        assert!(!proven(&token, &server, &[3; 32], &|_| {}));
        assert!(!proven(&token, &server, &client, &|join| join.endpoint.at.num = 6));
        assert!(!proven(&token, &server, &client, &|join| join.network.kind = Some(1)));
        assert!(!proven(&token, &server, &client, &|join| join.proof[7] ^= 1));
        assert!(!proven(&token, &server, &client, &|join| join.proof = TokenProof::default()));
        assert_ne!(Join::ROLE, Welcome::ROLE, "a proof cannot be sent back to its sender");
    }

    proptest! {
        /// Any bytes decode to a message, a request for more bytes, or an error.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100), len in 0u32..64) {
            let _ = decode::<Join>(&bytes);
            let framed = [&len.to_le_bytes()[..], &bytes].concat();
            let _ = decode::<JoinAnswer>(&framed);
        }
    }

    /// The deadline is that of the whole conversation. After it, nothing is sent and nothing is
    /// read, not even what has come already. Otherwise a server that sends one byte at a time could
    /// hold a client for long.
    #[test]
    fn nothing_is_said_after_the_deadline() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let within = Duration::from_secs(60);
        let mut handshake = Handshake::open("127.0.0.1", port, within).unwrap();
        let (mut stream, _) = server.accept().unwrap();
        (0..2).for_each(|_| stream.write_all(&encode(&join(9))).unwrap());
        assert_eq!(handshake.receive::<Join>().unwrap().endpoint, endpoint(9));
        handshake.send(&join(9)).unwrap();
        handshake.deadline = Instant::now();
        let late = [handshake.receive::<Join>().map(drop), handshake.send(&join(9))];
        for late in late {
            let why = late.unwrap_err().to_string();
            assert!(why.contains("did not answer within 60 s"), "{why}");
        }
    }

    #[test]
    fn messages_round_trip() {
        let join = join(9);
        let bytes = encode(&join);
        let again: Join = decode(&bytes).unwrap().unwrap();
        assert_eq!((again.endpoint, again.proof), (join.endpoint, join.proof));
        assert!(decode::<Join>(&bytes[..bytes.len() - 1]).unwrap().is_none());
        assert!(decode::<Join>(b"GET / HTTP/1.1\r\n").is_err());
    }
}
