//! The owner as which a client puts, and its state for the client's connections.

use super::error::ConnectError;
use super::options::{ClientOptions, OwnerOptions};
use crate::address::Address;
use crate::outcome::PutError;
use crate::wire::{Reply, Request};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The owner as which a client puts, for all its connections.
#[derive(Debug)]
pub(super) struct OwnOwner {
    options: OwnerOptions,
    /// The owner's tenure; 0: no server has told it yet. Relaxed: nothing else is ordered by it.
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
    /// The error of a client of this server.
    pub fn at(self, address: &Address, owner: u16) -> ConnectError {
        let address = address.clone();
        match self {
            OwnerRefusal::Rejected(source) => ConnectError::Owner { address, owner, source },
            OwnerRefusal::ReadOnly => ConnectError::ReadOnly { address },
        }
    }
}

impl OwnOwner {
    /// `None` of a client without an owner.
    pub fn of(options: &ClientOptions) -> Option<OwnOwner> {
        options
            .owner
            .map(|owner| OwnOwner { options: owner, tenure: AtomicU64::new(owner.tenure.unwrap_or(0)) })
    }

    /// The owner's number.
    pub fn number(&self) -> u16 {
        self.options.number
    }

    /// Whether a server has taken the client as the owner. From then on it continues as that owner, and as no other
    /// (I4).
    pub fn has_begun(&self) -> bool {
        self.tenure().is_some()
    }

    /// The request that makes a connection a session of the owner.
    pub fn request(&self) -> Request<'static> {
        let OwnerOptions { number, absent_for, .. } = self.options;
        Request::Owner { number, absent_for, tenure: self.tenure.load(Relaxed) }
    }

    /// The owner's tenure; `None` as long as no server has told it.
    pub fn tenure(&self) -> Option<u64> {
        Some(self.tenure.load(Relaxed)).filter(|&tenure| tenure != 0)
    }

    /// Takes the reply. `None` if it is not a reply to that request.
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
