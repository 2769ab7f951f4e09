//! The state that the handles of one client over TCP share.

use super::connection::TcpConnection;
use crate::address::{Address, TcpAddress};
use crate::base::process::Process;
use crate::client::error::ConnectError;
use crate::client::options::ClientOptions;
use crate::client::owning::OwnOwner;
use std::time::Duration;

/// The state that the handles of one client share.
#[derive(Debug)]
pub(super) struct TcpShared {
    pub process: Process,
    pub at: TcpAddress,
    pub address: Address,
    pub options: ClientOptions,
    /// The owner as which the client puts.
    pub owner: Option<OwnOwner>,
}

impl TcpShared {
    /// Opens a connection.
    pub fn open(&self, within: Duration) -> Result<TcpConnection, ConnectError> {
        TcpConnection::open(&self.at, &self.address, &self.options, self.owner.as_ref(), within)
    }
}
