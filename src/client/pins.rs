//! Keys that must stay, where others leave to make room.

use super::Client;
use super::error::MutateError;
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Client {
    /// Pins `key`: it does not leave to make room for others, until it is unpinned as often or the connection ends.
    /// Returns whether it is there; if not, nothing is pinned. It still ends at its time, and whoever removes it
    /// removes it. 1 round trip to the server. Where entries do not make room for others
    /// ([`ServerConfig::evict`](crate::ServerConfig::evict)), it only tells whether the key is there.
    ///
    /// The pin belongs to the connection of this handle for changes, which may have 4,096 of them. When that ends,
    /// as with [`MutateError::ServerGone`], pin again. Keys are told apart by 64 bits of hash: once in a long while
    /// another one stays, too.
    ///
    /// # Errors
    /// [`MutateError`]; [`MutateError::Pins`] when the connection has all pins that it may have.
    pub fn pin(&mut self, key: &[u8]) -> Result<bool, MutateError> {
        self.ask_about_pin(&Request::Pin { key })
    }

    /// Takes a pin of this handle back. Returns whether there was one.
    ///
    /// # Errors
    /// [`MutateError`].
    pub fn unpin(&mut self, key: &[u8]) -> Result<bool, MutateError> {
        self.ask_about_pin(&Request::Unpin { key })
    }

    fn ask_about_pin(&mut self, request: &Request<'_>) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(request, deadline)? {
            Reply::Pin(is_so) => Ok(is_so),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }
}
