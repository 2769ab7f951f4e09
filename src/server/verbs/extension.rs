//! The server's end of an extension: a way to make requests over verbs beside messages. The client's end,
//! and what the conversation has of it, is in `client/verbs/extension.rs`.

use crate::server::caller::Role;
use crate::server::shared::ServerState;
use crate::verbs::error::SetupError;
use crate::verbs::station::Station;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts an extension with this number of workers. Its threads end after it is dropped.
pub(crate) type OpenWith = fn(&Arc<ServerState>, &Arc<Station>, usize) -> Result<OpenExtension, SetupError>;

/// An extension that a server may have.
#[derive(Clone, Copy)]
pub struct ServerExtension {
    /// The name of the option that turns it on.
    pub(crate) name: &'static str,
    pub(crate) open: OpenWith,
}

/// An extension in service, and its threads.
pub(crate) type OpenExtension = (Box<dyn ExtensionAcceptor>, Vec<JoinHandle<()>>);

/// What an extension keeps for a client, until it is dropped.
pub(crate) type ExtensionLease = Box<dyn Send>;

/// Admits clients to an extension.
pub(crate) trait ExtensionAcceptor: Send + Sync {
    /// What the challenge says of it.
    fn offer(&self) -> Value;

    /// Admits a client that asks for it. Returns what the client has until it is gone, and what the welcome
    /// says. `Err` says why not.
    fn admit(&self, asked: &Value, role: Role) -> Result<(ExtensionLease, Value), String>;
}

impl fmt::Debug for ServerExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
