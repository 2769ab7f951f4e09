//! The state that a server's threads share, and the answer to a request.

use crate::index::Index;
use crate::outcome::PutError;
use crate::outcome::ReadError;
use crate::region::Region;
use crate::wire::{Reply, Request, ServerStats};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state that all threads of a server share.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) index: Index,
    pub(super) stopping: AtomicBool,
    pub(super) clients: AtomicU64,
    pub(crate) clients_max: u64,
    pub(super) allow_uids: Vec<u32>,
    /// Whether the region stays for the next server. Otherwise it is marked as given up when this
    /// one stops.
    pub(super) region_stays: bool,
    /// Whether clients on shm may have mailboxes.
    pub(crate) mailbox: bool,
    pub(super) mailboxes: MailboxCounters,
}

/// Counts of mailbox work on shm ([`Server::mailbox_counts`](super::Server::mailbox_counts)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailboxCounts {
    /// Requests answered.
    pub requests: u64,
    /// Polls of all mailboxes whose clients recently made requests.
    pub sweeps: u64,
    /// Times a mailbox was no longer polled because its client had been quiet.
    pub rests: u64,
    /// Times a sleeping client was woken.
    pub rings: u64,
}

/// The atomic counters behind [`MailboxCounts`].
#[derive(Debug, Default)]
pub(super) struct MailboxCounters {
    pub requests: AtomicU64,
    pub sweeps: AtomicU64,
    pub rests: AtomicU64,
    pub rings: AtomicU64,
}

impl MailboxCounters {
    pub(super) fn counts(&self) -> MailboxCounts {
        let MailboxCounters { requests, sweeps, rests, rings } = self;
        let [requests, sweeps, rests, rings] =
            [requests, sweeps, rests, rings].map(|count| count.load(Ordering::Relaxed));
        MailboxCounts { requests, sweeps, rests, rings }
    }
}

impl ServerState {
    pub(super) fn stats(&self) -> ServerStats {
        let clients = self.clients.load(Ordering::Relaxed);
        ServerStats::new(self.index.counts(), clients, self.index.incarnation())
    }

    /// Whether the server is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Counts one more client, unless the limit is reached. Returns whether it did.
    pub(crate) fn admit_client(&self) -> bool {
        let admitted = self.clients.fetch_add(1, Ordering::Relaxed) < self.clients_max;
        if !admitted {
            self.dismiss_client();
        }
        admitted
    }

    /// Counts one client fewer.
    pub(crate) fn dismiss_client(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Answers a request. `None` for requests about the conversation itself.
    pub(crate) fn answer(&self, request: Request<'_>) -> Option<Reply> {
        Some(match request {
            Request::Hello { .. } | Request::Mailbox { .. } | Request::Wake => return None,
            Request::Put { mode, key, value } => Reply::Put(self.index.put(key, value, mode)),
            Request::Remove { key } => Reply::Removed(self.index.remove(key)),
            Request::Get { key } => self.look_up(key),
            Request::Stat => Reply::Stat(self.stats()),
        })
    }

    fn look_up(&self, key: &[u8]) -> Reply {
        let mut value = Vec::new();
        match self.index.reader().get_into(key, &mut value) {
            Ok(found) => Reply::Value(found.then_some(value)),
            Err(ReadError::KeyLength { given, max }) => Reply::Put(Err(PutError::KeyLength { given, max })),
            Err(
                ReadError::Contended { retries: rounds, .. } | ReadError::Deadline { retries: rounds, .. },
            ) => Reply::Put(Err(PutError::Busy { rounds })),
        }
    }
}

impl AsRef<Region> for ServerState {
    fn as_ref(&self) -> &Region {
        self.index.region()
    }
}
