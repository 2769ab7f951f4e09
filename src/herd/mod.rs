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
//! The key's hash chooses the worker. A client may have [`WINDOW`](conversation::WINDOW) unanswered requests, one in each
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
mod conversation;
mod device;
mod sealed;
mod server;

use crate::client::verbs::extension::RequestExtension;
use crate::server::verbs::extension::ServerExtension;
use crate::{RequestPath, ServerConfig};

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
