//! What the threads of a verbs server share.

use super::chunks::RegisteredChunks;
use super::extension::ExtensionAcceptor;
use crate::server::shared::ServerState;
use crate::verbs::Wait;
use crate::verbs::device::RegisteredRegion;
use crate::verbs::station::Station;
use crate::wire::proof::Token;
use std::sync::Arc;

/// The state that all threads of a verbs server share. It does not change.
pub(super) struct VerbsServer {
    pub shared: Arc<ServerState>,
    pub station: Arc<Station>,
    pub region: RegisteredRegion,
    /// The chunks of a table that grows, which stay registered.
    pub _chunks: Option<Arc<RegisteredChunks>>,
    pub superblock: Vec<u64>,
    pub token: Token,
    pub read_token: Token,
    pub message_bytes: usize,
    pub wait: Wait,
    pub extension: Option<Box<dyn ExtensionAcceptor>>,
}
