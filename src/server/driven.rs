//! A server of a table that somebody else drives, and not its clients: a node of a cluster, which has a copy of what others
//! have, too.

use super::{ServeError, Server, ServerConfig};
use crate::index::{DrivenTable, Index, drive, driven};

/// Who changes a server's table, and has its entries leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableDriver {
    /// Its clients, as far as their rights go, and the server itself.
    Clients,
    /// Only this process. Nothing leaves by itself.
    Other {
        /// Whether clients note what they read.
        notes_reads: bool,
    },
}

impl TableDriver {
    /// The index, which this one drives from now on.
    pub(super) fn take(self, index: Index) -> Result<Index, ServeError> {
        match self {
            TableDriver::Clients => Ok(index),
            TableDriver::Other { notes_reads } => {
                if notes_reads {
                    index.begin_noting()?;
                }
                Ok(drive(index))
            }
        }
    }
}

/// A server of a table that only this process changes. Clients read it. No entry leaves by itself: not to make room, and not at
/// its end ([`DrivenTable::see_ended`]).
#[derive(Debug)]
pub struct DrivenServer(Server);

impl DrivenServer {
    /// Starts it. With [`ServerConfig::evict`], clients on shm and over TCP note what they read
    /// ([`DrivenTable::take_read`]); the policy is not used. Nor is [`ServerConfig::ttl`]: each entry is put with its end.
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

    /// What its driver does with the table.
    pub fn table(&self) -> DrivenTable<'_> {
        driven(self.0.index())
    }
}
