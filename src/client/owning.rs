//! As which owner a client puts, and what its connections know of that.

use super::error::ConnectError;
use super::options::{ClientOptions, OwnerOptions};
use crate::address::Address;
use crate::outcome::PutError;
use crate::wire::{Reply, Request};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The owner as which a client puts: what all its connections know of it.
#[derive(Debug)]
pub(super) struct OwnOwner {
    options: OwnerOptions,
    /// Which of all that have the number one after the other; 0: it was not said yet. Relaxed: nothing else is ordered by it.
    tenure: AtomicU64,
}

/// Why a server does not take a client as an owner.
#[derive(Clone, Debug)]
pub(super) enum OwnerRefusal {
    /// The table's reason.
    Rejected(PutError),
    /// The client may only read.
    ReadOnly,
}

impl OwnerRefusal {
    /// As the error of a client of this server.
    pub fn at(self, address: &Address, owner: u16) -> ConnectError {
        let address = address.clone();
        match self {
            OwnerRefusal::Rejected(source) => ConnectError::Owner { address, owner, source },
            OwnerRefusal::ReadOnly => ConnectError::ReadOnly { address },
        }
    }
}

impl OwnOwner {
    /// `None` of a client that puts as nobody.
    pub fn of(options: &ClientOptions) -> Option<OwnOwner> {
        options
            .owner
            .map(|owner| OwnOwner { options: owner, tenure: AtomicU64::new(owner.tenure.unwrap_or(0)) })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.options.number
    }

    /// Whether a server has taken the client as the owner: then it goes on with that one, and with no other (I4).
    pub fn has_begun(&self) -> bool {
        self.tenure().is_some()
    }

    /// What a connection asks, to be a session of it.
    pub fn request(&self) -> Request<'static> {
        let OwnerOptions { number, absent_for, .. } = self.options;
        Request::Owner { number, absent_for, tenure: self.tenure.load(Relaxed) }
    }

    /// Which of all that have its number; `None` as long as no server has said so.
    pub fn tenure(&self) -> Option<u64> {
        Some(self.tenure.load(Relaxed)).filter(|&tenure| tenure != 0)
    }

    /// Hears the reply. `None` if it is none to that request.
    pub fn hear(&self, reply: Option<Reply>) -> Option<Result<(), OwnerRefusal>> {
        match reply? {
            Reply::Value(Some(bytes)) => {
                self.tenure.store(u64::from_le_bytes(bytes.try_into().ok()?), Relaxed);
                Some(Ok(()))
            }
            Reply::Put(Err(error)) => Some(Err(OwnerRefusal::Rejected(error))),
            Reply::Denied => Some(Err(OwnerRefusal::ReadOnly)),
            _ => None,
        }
    }
}
