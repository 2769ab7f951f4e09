//! The server's end of an extension: a way to make requests over verbs beside messages. `client/verbs/extension.rs` has
//! the client's end, and the extension's part of the conversation.

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

/// An extension's state for a client, until it is dropped.
pub(crate) type ExtensionLease = Box<dyn Send>;

/// Admits clients to an extension.
pub(crate) trait ExtensionAcceptor: Send + Sync {
    /// What the challenge says of the extension.
    fn offer(&self) -> Value;

    /// Admits a client that asks for the extension. Returns what the client holds until it is gone, and what the
    /// welcome says. `Err` says why not.
    fn admit(&self, asked: &Value, role: Role) -> Result<(ExtensionLease, Value), String>;
}

impl fmt::Debug for ServerExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
