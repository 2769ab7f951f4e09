//! What puts in two steps may hold.

use std::time::Duration;

/// What puts that were started and not committed may hold of a table, all of them together, and for how long
/// ([`Client::put_start`](crate::Client::put_start)). It is no part of the table: the next server may have another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartLimits {
    /// Percent of the slots that the table may have, and of its memory for values that do not fit their slots. There is
    /// room for one start at least; with 0, for none.
    pub percent: u32,
    /// The longest time that one may hold its room.
    pub within_max: Duration,
}

impl StartLimits {
    /// A quarter of the table, for an hour.
    pub const fn new() -> StartLimits {
        StartLimits { percent: 25, within_max: Duration::from_secs(3600) }
    }

    /// This share of so many.
    pub(crate) fn share(&self, all: u64) -> u64 {
        let percent = u64::from(self.percent.min(100));
        (u128::from(all) * u128::from(percent) / 100) as u64
    }
}

impl Default for StartLimits {
    /// As [`StartLimits::new`].
    fn default() -> StartLimits {
        StartLimits::new()
    }
}

crate::base::setters::setters!(StartLimits { percent: u32, within_max: Duration });
