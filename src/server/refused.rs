//! Counts of the changes that a server refused, by cause.

use crate::outcome::PutError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests for changes that a server refused, by cause ([`Server::refused`](super::Server::refused)). Changes through
/// the index of an embedder do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedCounts {
    /// The table was full ([`PutError::Full`]).
    pub full: u64,
    /// The heap was full ([`PutError::HeapFull`]).
    pub heap_full: u64,
    /// Memory for a long value was not free yet ([`PutError::HeapBusy`]). Clients ask again until their deadline,
    /// and each time counts.
    pub heap_busy: u64,
    /// The system refused memory for a segment, or for a long value ([`PutError::NoMemory`],
    /// [`PutError::HeapMemory`]).
    pub no_memory: u64,
    /// The key or the value was too long, or the key empty.
    pub length: u64,
    /// A change of a part did not fit the value ([`PutError::Part`]).
    pub part: u64,
    /// Other changes interfered each time ([`PutError::Busy`]).
    pub busy: u64,
    /// What the change had to wait for refused it ([`PutError::Withdrawn`]).
    pub withdrawn: u64,
    /// The time to live was not possible for an entry, or entries have no lives ([`PutError::TimeToLive`],
    /// [`PutError::NoLife`]), or all numbers of entries were given ([`PutError::EntryNumbers`]).
    pub life: u64,
    /// The owner was removed ([`PutError::OwnerGone`]), its number was not possible, or entries have no owners.
    pub owner: u64,
    /// All that could make room was pinned, or a connection had all pins that it may have ([`PutError::Pinned`],
    /// [`PutError::Pins`]).
    pub pinned: u64,
    /// Started puts held all that they may, or a put was to hold its room for too long ([`PutError::StartBound`]).
    pub started: u64,
    /// The client may only read.
    pub read_only: u64,
}

impl RefusedCounts {
    /// The sum of all causes.
    pub fn all(&self) -> u64 {
        let RefusedCounts { full, heap_full, heap_busy, no_memory, length, part, .. } = self;
        let RefusedCounts { busy, withdrawn, life, owner, pinned, started, read_only, .. } = self;
        let of_memory = full + heap_full + heap_busy + no_memory + pinned + started;
        of_memory + length + part + busy + withdrawn + life + owner + read_only
    }
}

/// The atomic counters behind [`RefusedCounts`].
#[derive(Debug, Default)]
pub(super) struct RefusedCounters {
    full: AtomicU64,
    heap_full: AtomicU64,
    heap_busy: AtomicU64,
    no_memory: AtomicU64,
    length: AtomicU64,
    part: AtomicU64,
    busy: AtomicU64,
    withdrawn: AtomicU64,
    life: AtomicU64,
    owner: AtomicU64,
    pinned: AtomicU64,
    started: AtomicU64,
    read_only: AtomicU64,
}

impl RefusedCounters {
    #[cold]
    pub fn count(&self, error: &PutError) {
        let cause = match error {
            PutError::Full { .. } => &self.full,
            PutError::HeapFull { .. } => &self.heap_full,
            PutError::HeapBusy { .. } => &self.heap_busy,
            PutError::NoMemory { .. } | PutError::HeapMemory { .. } => &self.no_memory,
            PutError::KeyLength { .. } | PutError::ValueLength { .. } | PutError::EncryptedLength { .. } => {
                &self.length
            }
            PutError::Part(_) => &self.part,
            PutError::Busy { .. } => &self.busy,
            // Only clients give this answer.
            PutError::OldServer => return,
            PutError::Withdrawn => &self.withdrawn,
            PutError::TimeToLive { .. } | PutError::NoLife | PutError::EntryNumbers => &self.life,
            PutError::OwnerNumber { .. } | PutError::OwnerGone { .. } | PutError::NoOwners => &self.owner,
            PutError::AlreadyStarted => &self.busy,
            PutError::NotStarted | PutError::StartedLength { .. } => &self.length,
            PutError::StartBound(_) => &self.started,
            PutError::Pinned | PutError::Pins { .. } => &self.pinned,
        };
        // Relaxed, here and below: only the numbers are communicated.
        cause.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    pub fn count_read_only(&self) {
        self.read_only.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> RefusedCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RefusedCounts {
            full: of(&self.full),
            heap_full: of(&self.heap_full),
            heap_busy: of(&self.heap_busy),
            no_memory: of(&self.no_memory),
            length: of(&self.length),
            part: of(&self.part),
            busy: of(&self.busy),
            withdrawn: of(&self.withdrawn),
            life: of(&self.life),
            owner: of(&self.owner),
            pinned: of(&self.pinned),
            started: of(&self.started),
            read_only: of(&self.read_only),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::outcome::StartBound;
    use crate::part::PartError;
    use std::time::Duration;

    /// Each error counts for one cause.
    #[test]
    fn causes_are_told_apart() {
        let waited = Duration::ZERO;
        type Cause = fn(&RefusedCounts) -> u64;
        let causes: [(PutError, Cause); 19] = [
            (PutError::Full { keys: 1, slots: 1, bytes_max: 0, heap_bytes: 0 }, |of| of.full),
            (PutError::HeapFull { live_bytes: 1, heap_bytes: 1 }, |of| of.heap_full),
            (PutError::HeapBusy { given: 1, waited }, |of| of.heap_busy),
            (PutError::NoMemory { keys: 1, bytes: 1 }, |of| of.no_memory),
            (PutError::HeapMemory { given: 1 }, |of| of.no_memory),
            (PutError::KeyLength { given: 0, max: 1 }, |of| of.length),
            (PutError::ValueLength { given: 2, max: 1 }, |of| of.length),
            (PutError::Part(PartError::CounterLength { given: 1 }), |of| of.part),
            (PutError::Busy { rounds: 1 }, |of| of.busy),
            (PutError::Withdrawn, |of| of.withdrawn),
            (PutError::TimeToLive { given: waited }, |of| of.life),
            (PutError::NoLife, |of| of.life),
            (PutError::EntryNumbers, |of| of.life),
            (PutError::OwnerNumber { given: 0 }, |of| of.owner),
            (PutError::OwnerGone { owner: 1 }, |of| of.owner),
            (PutError::NoOwners, |of| of.owner),
            (PutError::Pinned, |of| of.pinned),
            (PutError::Pins { max: 1 }, |of| of.pinned),
            (StartBound::Slots { held: 1, max: 1 }.into(), |of| of.started),
        ];
        for (error, cause) in causes {
            let counters = RefusedCounters::default();
            counters.count(&error);
            counters.count_read_only();
            let counts = counters.read();
            let RefusedCounts { full, heap_full, heap_busy, no_memory, length, .. } = counts;
            let RefusedCounts { part, busy, withdrawn, life, owner, pinned, started, .. } = counts;
            assert_eq!(cause(&counts), 1, "{error}");
            let others = full + heap_full + heap_busy + no_memory + length + part + busy + withdrawn;
            let others = others + life + owner + pinned + started;
            assert_eq!((others, counts.read_only, counts.all()), (1, 1, 2), "{error}");
        }
    }
}
