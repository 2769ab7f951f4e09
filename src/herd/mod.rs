//! HERD's way to ask a server (Kalia, Kaminsky, Andersen, "Using RDMA efficiently for key-value services",
//! SIGCOMM'14): the two-sided rival that one-sided GETs are measured against.
//!
//! A client WRITEs a request into its cell in the server's memory; a worker of the server, which polls that
//! memory and never sleeps, does what is asked and SENDs the reply as a datagram. One round trip, no READ,
//! and the server's CPU on every GET.
//!
//! ```text
//! client                                          server
//! lane 0..W ── WRITE (UC, or RC) ──► its area, cell [worker][lane] ◄── polled by that worker
//!          ◄── datagram (UD) ───────────────────── reply
//! ```
//!
//! The worker is chosen by the key's hash. [`WINDOW`] requests may be unanswered, one for each lane.
//!
//! Cells, and the rules Q1 and Q3, are those of [`crate::mailbox`]. Here hold, too:
//!
//! * **Q2.** A datagram may be lost, and over UC a WRITE, too. A client that waits in vain WRITEs the same
//!   request, with the same sequence number and the next attempt.
//! * **Q4.** A lane's next request is WRITTEN only when the lane's last one has been answered or given up: no
//!   cell holds more than one request that anybody waits for. Requests for the same key wait for each other,
//!   since lanes are not served in order.
//! * **Q5.** A reply counts only if it comes from one of the workers' queue pairs and names a request that
//!   waits.
//!
//! # Otherwise than in the paper
//!
//! * Each client has a registered area of its own, not a part of one for all: nobody can WRITE into another's
//!   requests, and what a client left behind cannot be written any more.
//! * Frames are those of every other path (16 bytes of head), not packed into HERD's few bytes.
//! * Where a device has no UC (iWARP, EFA), RC carries the WRITEs: the server says what it takes, and a client
//!   whose own device cannot do that falls back to RC. More packets (acknowledgements), same rules.

pub(crate) mod client;
mod sealed;
pub(crate) mod server;

use crate::layout::geometry::Geometry;
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::{Endpoint, Transport};
use crate::verbs::error::SetupError;
use crate::wire;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of cells and datagrams.
pub(crate) const VERSION: u32 = 1;
/// W: requests of one client that may be unanswered. HERD's 4 (section 4.2).
pub(crate) const WINDOW: usize = 4;
/// What comes before a datagram's bytes in the receiver's memory.
pub(crate) const GRH: usize = 40;

/// Which queue pairs carry the WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WriteTransport {
    Uc,
    Rc,
}

impl WriteTransport {
    pub fn transport(self) -> Transport {
        match self {
            WriteTransport::Uc => Transport::Uc,
            WriteTransport::Rc => Transport::Rc,
        }
    }
}

/// In the challenge: this server takes requests this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HerdOffer {
    pub version: u32,
    /// The best that the server's device can do; RC is always possible.
    pub carrier: WriteTransport,
}

/// In the client's answer: it will ask this way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HerdJoin {
    pub carrier: WriteTransport,
    /// What WRITEs requests.
    pub requests: Endpoint,
    /// Where datagrams are to go.
    pub replies: Endpoint,
}

/// In the welcome: where requests go, and where replies come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HerdWelcome {
    /// What receives the WRITEs.
    pub requests: Endpoint,
    /// The client's area: [`WINDOW`] cells for each worker.
    pub area: Descriptor,
    pub cell_bytes: u32,
    /// Numbers of the queue pairs that send replies, one for each worker.
    pub workers: Vec<u32>,
}

/// Bytes of a cell for a table of this geometry.
fn cell_bytes(geometry: &Geometry) -> usize {
    crate::mailbox::cell_bytes(wire::request_bytes_max(geometry))
}

/// What one side tells the other while they connect, as the conversation carries it.
pub(crate) fn told(what: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(what).expect("numbers, names and lists")
}

/// What the other side has told, if it makes sense.
pub(crate) fn known<T: DeserializeOwned>(told: &serde_json::Value) -> Result<T, SetupError> {
    T::deserialize(told)
        .map_err(|e| SetupError::Herd { why: format!("the other side's answer makes no sense: {e}") })
}
