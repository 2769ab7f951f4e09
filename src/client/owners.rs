//! Owners of entries: handles whose entries go with them.

use super::error::{ConnectError, MutateError};
use super::options::OwnerOptions;
use super::{Client, ClientOptions};
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Client {
    /// Another handle of the same table, with connections of its own, that puts as an owner: entries that it and its
    /// clones put or insert are the owner's. What others put in their place is not, and a change of an entry that is
    /// there leaves it whose it is.
    ///
    /// Each connection is a session of the owner. When the last one has ended, and none has begun for
    /// [`OwnerOptions::absent_for`], or somebody calls [`Client::remove_owner`], all entries of the owner are gone at
    /// once, for every reader, however many they are. Then they are removed, some ten thousands a second. Until that is
    /// done, the number is not given again. A client that goes on putting is refused ([`MutateError::OwnerGone`]); it
    /// begins again by this call.
    ///
    /// A server that is stopped or suspended does not count the time against its owners, and the next server
    /// of the same region gives them all of it again, rounded up to a power of two.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::Owner`] with the reason, over verbs
    /// `SetupError::Owner`.
    pub fn owner(&self, owner: OwnerOptions) -> Result<Client, ConnectError> {
        let options = ClientOptions { owner: Some(owner), ..self.options.clone() };
        Client::connect_with(&self.address, options)
    }

    /// Hides all entries of an owner, with one store: as soon as this returns, no reader finds one of them. They are
    /// removed after that. Its sessions put nothing any more. Returns whether this call has hidden them: `false` if there was
    /// no such owner, or another call has. It may be repeated, and promises the same then, also while another call is at it.
    ///
    /// # Errors
    /// As [`Client::remove`]; [`MutateError::NoOwners`].
    pub fn remove_owner(&mut self, number: u16) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::RemoveOwner { number }, deadline)? {
            Reply::Removed(there) => Ok(there?),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }
}
