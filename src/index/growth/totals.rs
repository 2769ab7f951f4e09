//! Counts of splits and merges, and of refused memory.

use crate::base::sync::Mutex;
use crate::outcome::IndexCounts;
use std::sync::atomic::AtomicU64;

/// Counts of splits and merges, and of segments that are gone.
#[derive(Debug, Default)]
pub(super) struct SplitTotals {
    pub(super) splits: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) given_up: AtomicU64,
    pub(super) moved: AtomicU64,
    /// Waits of puts. A wait may be for several segments.
    pub(super) waits: AtomicU64,
    /// The counts of segments that are gone. Its holder takes no other lock (D9).
    pub(super) gone: Mutex<IndexCounts>,
    pub(super) refused: Refused,
}

/// What the system refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    pub(super) times: AtomicU64,
    pub(super) last_ns: AtomicU64,
    /// When this was last logged.
    pub(super) told_ns: AtomicU64,
}

/// Adds the counts of operations, but not those of present state.
pub(super) fn add_counts(sum: &mut IndexCounts, more: &IndexCounts) {
    sum.inserts += more.inserts;
    sum.updates += more.updates;
    sum.removes += more.removes;
    sum.moves += more.moves;
    sum.homings += more.homings;
    sum.waits += more.waits;
}
