//! Requests to a server in the way of HERD (Kalia, Kaminsky, Andersen, "Using RDMA efficiently for
//! key-value services", SIGCOMM'14): the two-sided rival that one-sided GETs are measured against.
//!
//! A client WRITEs a request into its cell in the server's memory. A worker of the server polls
//! that memory, does what is asked, and SENDs the reply as a datagram. Workers do not sleep while
//! they have clients. Each GET costs one round trip, no READ, and some of the server's CPU.
//!
//! ```text
//! client                                          server
//! lane 0..W ── WRITE (UC, or RC) ──► its area, cell [worker][lane] ◄── polled by that worker
//!          ◄── datagram (UD) ───────────────────── reply
//! ```
//!
//! The key's hash chooses the worker. A client may have [`WINDOW`] unanswered requests, one in each
//! lane.
//!
//! The cells, and the rules Q1 and Q3, are those of [`crate::mailbox`]. Q2, Q4 and Q5 are added:
//! requests and replies may be lost or come twice, and lanes are not served in order.
//!
//! # Differences from the paper
//!
//! * Each client has a registered area of its own, not a part of one for all, in a protection domain of
//!   its own. Nobody can WRITE into another's requests, even with its key, and the area of a client that is
//!   gone cannot be written any more.
//! * Frames are those of every other path (16 bytes of head). They are not packed into HERD's few
//!   bytes.
//! * Where a device has no UC (iWARP, EFA), RC carries the WRITEs. The server says what it takes,
//!   and a client whose own device cannot do that falls back to RC. RC sends more packets
//!   (acknowledgements); the rules are the same.

mod client;
mod device;
mod sealed;
mod server;

use crate::client::verbs::extension::RequestExtension;
use crate::layout::geometry::Geometry;
use crate::server::verbs::extension::ServerExtension;
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::Endpoint;
use crate::verbs::error::SetupError;
use crate::wire;
use crate::{RequestPath, ServerConfig};
use ibverbs_sys::ibv_qp_type;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

impl ServerConfig {
    /// Over verbs, for comparison: clients may make requests as in HERD ([`RequestPath::HERD`]). Starts
    /// `workers` more threads, which poll without sleeping while such a client is connected.
    pub fn herd(mut self, yes: bool) -> ServerConfig {
        self.extension = yes.then_some(ServerExtension { name: "herd", open: server::open });
        self
    }
}

impl RequestPath {
    /// Only over verbs, for comparison: as in HERD (Kalia et al., SIGCOMM'14), the client WRITEs
    /// requests and the replies are datagrams. The server must have been started with
    /// [`ServerConfig::herd`]. Its workers never sleep while such a client is connected.
    pub const HERD: RequestPath =
        RequestPath::Extension(RequestExtension { name: "herd", draft: client::draft });
}

/// Version of the cells and datagrams.
const VERSION: u32 = 1;
/// W: the number of requests of one client that may be unanswered. HERD's value is 4 (section 4.2).
const WINDOW: usize = 4;
/// Bytes of the header that stands before a datagram in the receiver's memory.
const GRH: usize = 40;

/// Which queue pairs carry the WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WriteTransport {
    Uc,
    Rc,
}

impl WriteTransport {
    fn pair_type(self) -> ibv_qp_type::Type {
        match self {
            WriteTransport::Uc => ibv_qp_type::IBV_QPT_UC,
            WriteTransport::Rc => ibv_qp_type::IBV_QPT_RC,
        }
    }
}

/// Part of the challenge: this server takes requests HERD's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HerdOffer {
    pub version: u32,
    /// The best transport that the server's device can do. RC is always possible.
    pub carrier: WriteTransport,
}

/// Part of the client's answer: it will use HERD's way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct HerdJoin {
    pub carrier: WriteTransport,
    /// The queue pair that WRITEs requests.
    pub requests: Endpoint,
    /// The queue pair that receives replies.
    pub replies: Endpoint,
}

/// Part of the welcome: where requests go, and where replies come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HerdWelcome {
    /// The queue pair that receives the WRITEs.
    pub requests: Endpoint,
    /// The client's area: [`WINDOW`] cells for each worker.
    pub area: Descriptor,
    pub cell_bytes: u32,
    /// Numbers of the queue pairs that send replies, one for each worker.
    pub workers: Vec<u32>,
}

/// Bytes of a cell, for a table of this geometry.
fn cell_bytes(geometry: &Geometry) -> usize {
    crate::mailbox::cell_bytes(wire::request_bytes_max(geometry))
}

/// Encodes an extension of the conversation.
fn told(what: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(what).expect("numbers, names and lists")
}

/// Decodes an extension of the conversation.
fn known<T: DeserializeOwned>(told: &serde_json::Value) -> Result<T, SetupError> {
    T::deserialize(told).map_err(|e| SetupError::Extension {
        name: "HERD",
        why: "the other side's answer makes no sense".into(),
        source: Some(Arc::new(e)),
    })
}

/// The error for this reason.
fn refused(why: impl Into<String>) -> SetupError {
    SetupError::Extension { name: "HERD", why: why.into(), source: None }
}
