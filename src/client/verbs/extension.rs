//! The client's end of an extension: a way to make requests over verbs beside messages.
//!
//! The conversation before the first READ has room for one extension. The server offers it in the challenge, a client
//! that wants it says so in its answer, and the welcome has the rest. READs do not depend on it.
//! `server/verbs/extension.rs` has the server's end.

pub(crate) use crate::client::handle::Deadline;
use crate::layout::geometry::Geometry;
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::station::Station;
use crate::verbs::{QueueCounts, Wait};
use crate::wire::{Reply, Request};
use serde_json::Value;
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

/// Makes the client's end of an extension for a server with this offer.
pub(crate) type MakeDraft = fn(&Station, Option<&Value>) -> Result<Box<dyn ExtensionDraft>, SetupError>;

/// An extension that a client may ask for ([`RequestPath::Extension`](crate::RequestPath::Extension)).
#[derive(Clone, Copy)]
pub struct RequestExtension {
    pub(crate) name: &'static str,
    pub(crate) draft: MakeDraft,
}

impl RequestExtension {
    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for RequestExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for RequestExtension {
    fn eq(&self, other: &RequestExtension) -> bool {
        self.name == other.name
    }
}

impl Eq for RequestExtension {}

/// The client's end before the server's welcome.
pub(crate) trait ExtensionDraft {
    /// The extension's part of the client's answer to the challenge.
    fn join(&self) -> Value;

    /// Completes it with the extension's part of the welcome. The end of `stream` will show that the server is gone.
    fn complete(
        self: Box<Self>,
        welcome: Option<&Value>,
        station: &Station,
        geometry: &Arc<Geometry>,
        stream: &Arc<TcpStream>,
        wait: Wait,
    ) -> Result<Box<dyn ExtensionRequests>, SetupError>;
}

/// The client's end of a connection's extension. Each request is one frame, and they may be handled in any
/// order.
pub(crate) trait ExtensionRequests: fmt::Debug + Send + Sync {
    /// Makes the requests. Appends the replies in the order of the requests. After an error, those of the first
    /// requests that were answered.
    fn call(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), VerbsError>;

    /// Takes the counts since the last call.
    fn take_counts(&mut self) -> QueueCounts;
}
