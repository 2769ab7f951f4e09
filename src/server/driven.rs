//! A server of a table that this process drives, and not its clients: a node of a cluster. Other nodes have copies of
//! the same entries.

use super::driver::TableDriver;
use super::{ServeError, Server, ServerConfig};
use crate::index::{DrivenTable, driven};

/// A server of a table that only this process changes. Clients read it. No entry leaves by itself: none is evicted, and
/// an ended entry stays ([`DrivenTable::see_ended`]).
#[derive(Debug)]
pub struct DrivenServer(Server);

impl DrivenServer {
    /// Starts the server. With [`ServerConfig::evict`], clients on shm and over TCP note what they read
    /// ([`DrivenTable::take_read`]); the policy is not used. [`ServerConfig::ttl`] is not used either: each entry is
    /// put with its end.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start(config: ServerConfig) -> Result<DrivenServer, ServeError> {
        let driver = TableDriver::Other { notes_reads: config.evict.is_some() };
        Server::start_by(config.evict(None).ttl(None), driver).map(DrivenServer)
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.0
    }

    /// The driver's view of the table.
    pub fn table(&self) -> DrivenTable<'_> {
        driven(self.0.index())
    }
}
