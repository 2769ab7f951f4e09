//! Pins: keys that are not evicted.

use super::Client;
use super::error::MutateError;
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Client {
    /// Pins `key`: it is not evicted until it is unpinned as often, or the connection ends. Returns whether the key is
    /// there; if not, nothing is pinned. It still ends at its time, and a remove removes it. 1 round trip to the
    /// server. In a table that does not evict ([`ServerConfig::evict`](crate::ServerConfig::evict)), this only returns
    /// whether the key is there.
    ///
    /// The pin belongs to this handle's connection for changes, which may have 4,096 of them. When that ends, as with
    /// [`MutateError::ServerGone`], pin again. Keys are told apart by 64 bits of hash: very seldom, another key is
    /// pinned, too.
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
