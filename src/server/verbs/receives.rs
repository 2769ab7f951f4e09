//! The receives for messages of a worker's clients.

#![allow(unsafe_code)]

use crate::verbs::bootstrap::MESSAGES_MAX;
use crate::verbs::device::{Access, Buffer, ProtectionDomain, SharedReceives};
use crate::verbs::error::VerbsError;
use std::error::Error;
use std::sync::Arc;

/// Most unanswered messages of a client.
pub(super) const MESSAGES: usize = 8;
const _: () = assert!(MESSAGES <= MESSAGES_MAX);

/// A shared receive queue, and the memory of its receives: [`MESSAGES`] slots for each client.
pub(super) struct Receives {
    queue: Arc<SharedReceives>,
    /// The slots have one numbering over all buffers.
    landing: Vec<Buffer>,
}

/// A receive that has completed, with its message. Its holder owns the slot.
pub(super) struct LandedMessage {
    slot: usize,
    length: usize,
}

impl Receives {
    pub fn new(queue: Arc<SharedReceives>) -> Receives {
        Receives { queue, landing: Vec::new() }
    }

    /// The number of clients for which there are receives.
    pub fn clients(&self) -> usize {
        self.landing.len()
    }

    /// Posts the receives of one more client, each for a message of at most this length.
    pub fn add_client(&mut self, domain: &Arc<ProtectionDomain>, bytes: usize) -> Result<(), Box<dyn Error>> {
        let first = self.landing.len() * MESSAGES;
        self.landing.push(Buffer::new(domain.clone(), MESSAGES, bytes, Access::LOCAL)?);
        for slot in first..first + MESSAGES {
            self.post(LandedMessage { slot, length: 0 })?;
        }
        Ok(())
    }

    /// Takes a receive that has completed.
    ///
    /// # Safety
    /// The receive of this slot of these has completed, and this is called once for the completion.
    pub unsafe fn landed(&self, slot: usize, length: usize) -> LandedMessage {
        LandedMessage { slot, length }
    }

    /// The message of such a receive.
    pub fn message<'a>(&'a self, LandedMessage { slot, length }: &'a LandedMessage) -> &'a [u8] {
        // SAFETY: the receive has completed (`landed`), and is posted again only when `post` consumes
        // what the message is borrowed from.
        unsafe { self.landing[slot / MESSAGES].bytes(slot % MESSAGES, *length) }
    }

    /// Posts the receive again, for the next message.
    pub fn post(&self, LandedMessage { slot, .. }: LandedMessage) -> Result<(), VerbsError> {
        let buffer = &self.landing[slot / MESSAGES];
        let element = buffer.element(slot % MESSAGES, buffer.cell_bytes());
        // SAFETY: the slot is new or its receive has completed, and nobody borrows from it: it came by
        // value. Buffers live until the worker's last queue pair is gone.
        unsafe { self.queue.post(slot as u64, element) }
    }
}
