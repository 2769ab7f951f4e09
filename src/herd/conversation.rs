//! What client and server say to each other before the first request, and what both know of cells and datagrams.

use crate::layout::geometry::Geometry;
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::Endpoint;
use crate::verbs::error::SetupError;
use crate::wire;
use ibverbs_sys::ibv_qp_type;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Version of the cells and datagrams.
pub(super) const VERSION: u32 = 1;
/// W: the number of requests of one client that may be unanswered. HERD's value is 4 (section 4.2).
pub(super) const WINDOW: usize = 4;
/// Bytes of the header that stands before a datagram in the receiver's memory.
pub(super) const GRH: usize = 40;

/// Which queue pairs carry the WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WriteTransport {
    Uc,
    Rc,
}

impl WriteTransport {
    pub fn pair_type(self) -> ibv_qp_type::Type {
        match self {
            WriteTransport::Uc => ibv_qp_type::IBV_QPT_UC,
            WriteTransport::Rc => ibv_qp_type::IBV_QPT_RC,
        }
    }
}

/// Part of the challenge: this server takes requests HERD's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HerdOffer {
    pub version: u32,
    /// The best transport that the server's device can do. RC is always possible.
    pub carrier: WriteTransport,
}

/// Part of the client's answer: it will use HERD's way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct HerdJoin {
    pub carrier: WriteTransport,
    /// The queue pair that WRITEs requests.
    pub requests: Endpoint,
    /// The queue pair that receives replies.
    pub replies: Endpoint,
}

/// Part of the welcome: where requests go, and where replies come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HerdWelcome {
    /// The queue pair that receives the WRITEs.
    pub requests: Endpoint,
    /// The client's area: [`WINDOW`] cells for each worker.
    pub area: Descriptor,
    pub cell_bytes: u32,
    /// Numbers of the queue pairs that send replies, one for each worker.
    pub workers: Vec<u32>,
}

/// Bytes of a cell, for a table of this geometry.
pub(super) fn cell_bytes(geometry: &Geometry) -> usize {
    crate::mailbox::cell_bytes(wire::request_bytes_max(geometry))
}

/// Encodes an extension of the conversation.
pub(super) fn told(what: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(what).expect("numbers, names and lists")
}

/// Decodes an extension of the conversation.
pub(super) fn known<T: DeserializeOwned>(told: &serde_json::Value) -> Result<T, SetupError> {
    T::deserialize(told).map_err(|e| SetupError::Extension {
        name: "HERD",
        why: "the other side's answer makes no sense".into(),
        source: Some(Arc::new(e)),
    })
}

/// The error for this reason.
pub(super) fn refused(why: impl Into<String>) -> SetupError {
    SetupError::Extension { name: "HERD", why: why.into(), source: None }
}
