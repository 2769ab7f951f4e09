//! Owners of entries: handles whose entries go when they end.

use super::error::{ConnectError, MutateError};
use super::options::OwnerOptions;
use super::{Client, ClientOptions, ServerPath};
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Client {
    /// Another handle of the same table, with connections of its own, that puts as an owner. Entries that it and its
    /// clones put or insert are the owner's. An entry that another client puts in their place is not. A change of an
    /// entry that is there keeps its owner.
    ///
    /// Each connection is a session of the owner. When the last one has ended, and none has begun for
    /// [`OwnerOptions::absent_for`], or when somebody calls [`Client::remove_owner`], all entries of the owner are gone
    /// at once, for every reader, however many they are. Then they are removed, some ten thousands a second. Until that
    /// is done, the number is not given again. A client that goes on putting is refused for good
    /// ([`MutateError::OwnerGone`]), and so are its clones, even if the number was given to another owner (I4). It
    /// begins again by this call.
    ///
    /// While a server is stopped or suspended, its owners' time does not run. The next server of the same region gives
    /// them all of it again, rounded up to a power of two. A client that is quiet comes back to it by itself: on shm by
    /// the thread that watches servers, over TCP by a thread with a connection of its own (I5). Over verbs it comes
    /// back with its next change, and is refused if that is too late. A server that begins with another table, or with
    /// a snapshot, does not know the owner: the client is refused.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::Owner`] with the reason, [`ConnectError::ReadOnly`] of a client that may not
    /// change the table; over verbs `SetupError::Owner`.
    pub fn owner(&self, owner: OwnerOptions) -> Result<Client, ConnectError> {
        let options = ClientOptions { owner: Some(owner), ..self.options.clone() };
        Client::connect_with(&self.address, options)
    }

    /// The owner's tenure: a random number, which tells it from other owners of its number. For
    /// [`OwnerOptions::tenure`] of a client in another process that continues as this owner, and as no other. `None` of
    /// a client without an owner, or of an owner that no server knows yet.
    pub fn tenure(&self) -> Option<u64> {
        let owner = match &self.path {
            ServerPath::Shm(handle) => handle.owner(),
            ServerPath::Tcp(handle) => handle.owner(),
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(handle) => handle.owner(),
        };
        owner?.tenure()
    }

    /// Hides all entries of an owner, with one store: as soon as this returns, no reader finds one of them. They are
    /// removed after that. The owner's sessions put nothing any more. Returns whether this call has hidden them:
    /// `false` if there was no such owner, or another call has. It may be repeated, and gives the same guarantee, even
    /// while another call is under way.
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
