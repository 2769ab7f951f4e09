//! What the mailboxes of all clients on shm may take together, and the counts of their work.

use super::held::{ClientMemory, TakenShare};
use crate::layout::geometry::Geometry;
use crate::mailbox::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that the mailboxes of all clients may take together, of what their connections may hold.
#[derive(Debug)]
pub(super) struct MailboxMemory {
    most: u64,
    taken: Arc<AtomicU64>,
    of: Arc<ClientMemory>,
}

/// Memory taken for one mailbox. Given back when dropped.
#[derive(Debug)]
pub(super) struct MailboxShare {
    bytes: u64,
    taken: Arc<AtomicU64>,
    _of: TakenShare,
}

impl MailboxMemory {
    /// A bound of this many bytes.
    pub fn new(most: u64, of: &Arc<ClientMemory>) -> MailboxMemory {
        MailboxMemory { most, taken: Arc::default(), of: Arc::clone(of) }
    }

    /// Bytes taken at present.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether there is memory for a mailbox of this table, if it is the only one.
    pub fn has_any(&self, geometry: &Geometry) -> bool {
        memory::bytes(geometry) <= self.most
    }

    /// Takes memory for one mailbox. `None` if not as much is left.
    pub fn take(&self, bytes: u64) -> Option<MailboxShare> {
        let of = self.of.take(bytes)?;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(MailboxShare { bytes, taken: self.taken.clone(), _of: of })
    }
}

impl Drop for MailboxShare {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counts of mailbox work on shm ([`Server::mailbox_counts`](super::Server::mailbox_counts)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxCounts {
    /// Requests answered.
    pub requests: u64,
    /// Polls of all mailboxes whose clients recently made requests.
    pub sweeps: u64,
    /// Times a mailbox was no longer polled because its client had been quiet.
    pub rests: u64,
    /// Times a sleeping client was woken.
    pub rings: u64,
    /// Mailboxes refused because there was no room for another one.
    pub refused: u64,
    /// Bytes of all mailboxes at present
    /// ([`ServerConfig::mailbox_bytes_max`](super::ServerConfig::mailbox_bytes_max)).
    pub bytes: u64,
}

/// The atomic counters behind [`MailboxCounts`].
#[derive(Debug, Default)]
pub(super) struct MailboxCounters {
    pub requests: AtomicU64,
    pub sweeps: AtomicU64,
    pub rests: AtomicU64,
    pub rings: AtomicU64,
    pub refused: AtomicU64,
}

impl MailboxCounters {
    /// The counts, with the bytes of all mailboxes.
    pub fn read(&self, memory: &MailboxMemory) -> MailboxCounts {
        let MailboxCounters { requests, sweeps, rests, rings, refused } = self;
        let [requests, sweeps, rests, rings, refused] =
            [requests, sweeps, rests, rings, refused].map(|count| count.load(Ordering::Relaxed));
        MailboxCounts { requests, sweeps, rests, rings, refused, bytes: memory.taken() }
    }
}
