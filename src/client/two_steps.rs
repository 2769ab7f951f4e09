//! Puts in two steps: first the room, then the value.

use super::Client;
use super::error::MutateError;
use crate::outcome::{PutError, PutOutcome};
use crate::wire::{FRAME_VALUE_MAX, Reply, Request};
use std::time::{Duration, Instant};

/// A put that was started. The handle that has started it commits it or gives it up.
#[derive(Debug)]
#[must_use = "its room is held"]
pub struct PutTicket {
    key: Vec<u8>,
    number: u64,
}

impl PutTicket {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Client {
    /// Starts a put of `key` with a value of `len` bytes: the server holds all the room that it needs. Until
    /// [`Client::put_commit`], every reader sees the old value, or none, and others may change it. The room is held for
    /// the time `within`, and no longer than this handle has its connection. For tables with owners
    /// ([`Config::owners`](crate::Config::owners)). 1 round trip.
    ///
    /// # Errors
    /// As [`Client::put`], if there is no room; [`MutateError::StartBound`] if all started puts hold as much as they
    /// may, or `within` is longer than allowed ([`StartLimits`](crate::StartLimits)); [`MutateError::AlreadyStarted`]
    /// while another put of the key is started; [`MutateError::NoOwners`]; [`MutateError::Encrypted`] for a client that
    /// encrypts.
    pub fn put_start(&mut self, key: &[u8], len: usize, within: Duration) -> Result<PutTicket, MutateError> {
        if self.encrypts() {
            return Err(MutateError::Encrypted);
        }
        let max = self.geometry().value_max();
        let length = u32::try_from(len).map_err(|_| PutError::ValueLength { given: len, max })?;
        let deadline = Instant::now() + self.options.deadline;
        match self.ask_until_free(&Request::PutStart { key, len: length, within }, deadline)? {
            Reply::Value(Some(bytes)) => match bytes.try_into() {
                Ok(number) => Ok(PutTicket { key: key.to_vec(), number: u64::from_le_bytes(number) }),
                Err(_) => Err(self.unexpected().into()),
            },
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }

    /// Commits a started put, with a value of the stated length. It takes effect at once, and never fails for want of
    /// room. 1 round trip for each 4 KiB, and 1 more.
    ///
    /// # Errors
    /// As [`Client::put`]; [`MutateError::NotStarted`] if its time is over, or the connection was lost;
    /// [`MutateError::StartedLength`]. The put is then given up.
    pub fn put_commit(&mut self, ticket: PutTicket, value: &[u8]) -> Result<PutOutcome, MutateError> {
        let (key, number) = (&ticket.key[..], ticket.number);
        let deadline = Instant::now() + self.options.deadline;
        let pieces =
            value.chunks(FRAME_VALUE_MAX).map(|bytes| Request::PutPiece { key, ticket: number, bytes });
        let mut outcome = Err(PutError::NotStarted);
        for request in pieces.chain([Request::PutCommit { key, ticket: number }]) {
            match self.ask(&request, deadline)? {
                Reply::Taken => {}
                Reply::Put(put) => {
                    outcome = put;
                    break;
                }
                _ => return Err(self.unexpected().into()),
            }
        }
        if outcome.is_err() {
            self.put_abort(ticket)?;
        }
        Ok(outcome?)
    }

    /// Gives a started put up. Returns whether it was still there.
    ///
    /// # Errors
    /// As [`Client::remove`].
    pub fn put_abort(&mut self, ticket: PutTicket) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::PutAbort { key: &ticket.key, ticket: ticket.number }, deadline)? {
            Reply::Removed(there) => Ok(there?),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }
}
