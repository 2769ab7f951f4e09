//! Counts of a handle that other threads read while it works.
//!
//! The handle keeps its counts as plain numbers, and copies them into a cache line of its own when it has done more
//! than a GET. No reader writes to that line.

use super::stats::ClientStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// GETs between two copies, if nothing else happens.
pub(super) const GETS_APART: u64 = 64;
/// Not less than the number of counts.
const CELLS: usize = 32;

/// The counts of one [`Client`](crate::Client) handle, for any thread, while the handle works:
/// [`Client::counters`](crate::Client::counters). `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug, Default)]
pub struct ClientCounters(Arc<CounterCells>);

/// Cache lines that have no counts of other handles.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterCells([AtomicU64; CELLS]);

impl ClientCounters {
    /// The counts of the handle. Each change and each failed call is counted when the call has returned. GETs are
    /// counted in steps: after each change, batch or failure, and otherwise after every 64th. Each count is exact, but
    /// they may be read at different instants.
    pub fn stats(&self) -> ClientStats {
        let mut stats = ClientStats::default();
        let mut cells = self.0.0.iter();
        stats.for_each(|count| {
            // Relaxed: a statistic.
            *count = cells.next().map_or(0, |cell| cell.load(Ordering::Relaxed));
        });
        stats
    }

    /// Whether both are the counts of one handle.
    pub(super) fn are_those(&self, others: &ClientCounters) -> bool {
        Arc::ptr_eq(&self.0, &others.0)
    }

    /// Called by the handle.
    pub(super) fn publish(&self, mut stats: ClientStats) {
        let mut cells = self.0.0.iter();
        stats.for_each(|count| {
            if let Some(cell) = cells.next() {
                cell.store(*count, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every count has a cell of its own.
    #[test]
    fn every_count_is_published() {
        let (mut stats, mut n) = (ClientStats::default(), 0);
        stats.for_each(|count| {
            n += 1;
            *count = n;
        });
        assert!((20..=CELLS as u64).contains(&n), "{n} counts");
        let counters = ClientCounters::default();
        counters.publish(stats);
        assert_eq!(counters.clone().stats(), stats);
        // None is left out.
        let text = format!("{stats:?}");
        assert!(!text.contains(": 0,") && !text.contains(": 0 "), "{text}");
        let mut twice = stats;
        twice += stats;
        let (mut expected, mut m) = (stats, 0);
        expected.for_each(|count| {
            m += 1;
            *count = 2 * m;
        });
        assert_eq!(twice, expected);
        assert!(align_of::<CounterCells>() >= 128);
    }
}
