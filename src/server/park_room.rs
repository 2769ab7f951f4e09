//! How many requests may be parked, and for how long (Q12).

use crate::faults::{Rule, obey};
use crate::index::ChangeWait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Most parked requests of all connections. Each takes some 400 bytes, and a look after each change.
const PARKED_MAX: u64 = 1 << 14;
/// Longest time that a request is parked.
const PARKED_FOR_MAX: Duration = Duration::from_secs(60);
/// Requests whose times end close to each other are answered together: up to this part of its time late. Else a thousand
/// that wait would wake their worker a thousand times.
const SLACK: u32 = 16;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestAt {
    /// In the input of a socket.
    Socket,
    /// In a message over verbs.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "messages go over verbs"))]
    Message {
        /// Whether it is the message, and none is behind it.
        is_alone: bool,
    },
    /// In a mailbox.
    Mailbox,
}

impl RequestAt {
    /// In any message over verbs.
    #[cfg(feature = "verbs")]
    pub const MESSAGE: RequestAt = RequestAt::Message { is_alone: false };

    /// Whether a request for changes of the table may wait there: where the next request ends the wait.
    pub fn may_wait_for_feed(self) -> bool {
        match self {
            RequestAt::Socket => true,
            RequestAt::Message { is_alone } => is_alone,
            RequestAt::Mailbox => false,
        }
    }

    /// Whether both are requests of one queue.
    pub fn is_queue_of(self, other: RequestAt) -> bool {
        match (self, other) {
            (RequestAt::Socket, RequestAt::Socket)
            | (RequestAt::Message { .. }, RequestAt::Message { .. })
            | (RequestAt::Mailbox, RequestAt::Mailbox) => true,
            (RequestAt::Socket | RequestAt::Message { .. } | RequestAt::Mailbox, _) => false,
        }
    }
}

/// The room for parked requests of all connections.
#[derive(Debug)]
pub(super) struct ParkRoom {
    taken: Arc<AtomicU64>,
    most: u64,
    /// Times end at multiples of their slack since then.
    begun: Instant,
}

/// A place of a parked request. Given back when dropped.
#[derive(Debug)]
pub(super) struct ParkPlace(Arc<AtomicU64>);

impl Default for ParkRoom {
    fn default() -> ParkRoom {
        ParkRoom { taken: Arc::default(), most: PARKED_MAX, begun: Instant::now() }
    }
}

impl ParkRoom {
    /// Room for `most` requests.
    #[cfg(all(test, not(loom)))]
    pub fn of(most: u64) -> ParkRoom {
        ParkRoom { most, ..ParkRoom::default() }
    }

    /// How many requests may be parked.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// How many requests are parked.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// A place for one more. `None`: there is no room.
    pub fn place(&self) -> Option<ParkPlace> {
        let fits = |taken: u64| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, fits).ok()?;
        Some(ParkPlace(Arc::clone(&self.taken)))
    }

    /// How long a change may wait for this, whose client lets it wait so long for memory. Clients of earlier versions do
    /// not, and ask again by themselves.
    pub fn longest(wait: ChangeWait, patience: Duration) -> Duration {
        match wait {
            ChangeWait::Memory { .. } => patience.min(PARKED_FOR_MAX),
            ChangeWait::Readers { .. } | ChangeWait::Thread | ChangeWait::Maker | ChangeWait::Decided => {
                PARKED_FOR_MAX
            }
        }
    }

    /// When the time of a request is over that may wait so long.
    pub fn until(&self, within: Duration) -> Instant {
        let within = within.min(PARKED_FOR_MAX);
        let slack = (within / SLACK).max(Duration::from_nanos(1)).as_nanos();
        let least = (self.begun.elapsed() + within).as_nanos();
        let since = least.next_multiple_of(slack);
        self.begun + Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

impl Drop for ParkPlace {
    fn drop(&mut self) {
        // Q12
        obey(Rule::ParkPlace, || {
            self.0.fetch_sub(1, Relaxed);
        });
    }
}
