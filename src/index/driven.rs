//! A table that another process drives: it is one of several copies, and all of them have to lose an entry together. No
//! entry leaves it by itself.

use super::face::Index;
use super::lives::EndsBy;
use super::whole::KeyCursor;
use crate::layout::OWNER_MAX;
use crate::layout::life::TICK_NS;
use crate::outcome::{PutError, PutOptions, PutOutcome};
use std::time::Duration;

const TICK: Duration = Duration::from_nanos(TICK_NS);

/// Operations that only the driver of a table uses. A [`DrivenServer`](crate::driven::DrivenServer) has one.
#[derive(Clone, Copy, Debug)]
pub struct DrivenTable<'i>(&'i Index);

/// The index, which the caller drives from now on. An entry that has come to its end stays until somebody removes it,
/// or puts the key again. The next server of the table is not driven.
#[must_use]
pub fn drive(mut index: Index) -> Index {
    index.lives = index.lives.take().map(|lives| Box::new(lives.ending_by(EndsBy::Driver)));
    index
}

/// The driver's view of an index that it [drives](drive).
pub fn driven(index: &Index) -> DrivenTable<'_> {
    DrivenTable(index)
}

impl DrivenTable<'_> {
    /// Shows up to `max` keys whose entries have come to their end. An entry that is still there a second later is
    /// shown again. Returns how many were shown.
    pub fn see_ended(&self, max: usize, mut see: impl FnMut(&[u8])) -> usize {
        let mut seen = 0;
        if let Some(lives) = self.0.lives() {
            lives.expire(self.0.table(), max, |key, _| {
                seen += 1;
                see(key);
                false
            });
        }
        seen
    }

    /// Whether an entry that is put now can live so long.
    pub fn can_live(&self, ttl: Duration) -> bool {
        self.0.lives().is_some_and(|lives| lives.check(ttl).is_ok())
    }

    /// Puts an entry that ends when the table is as old as `end`, rounded up to an eighth of a second. If `end` is the
    /// answer of [`Index::ends_at`] for another entry, both end together. If `end` has passed, the entry ends at once.
    /// If `end` is later than the latest time that the table can store, the entry ends at that latest time.
    ///
    /// `owner` owns the entry; 0: nobody. A table without owners keeps the number in the entry's life and does not use
    /// it. In a table with owners ([`Config::owners`](crate::Config::owners)) it must be 0.
    ///
    /// # Errors
    /// As [`Index::put_with`]; [`PutError::OwnerNumber`].
    pub fn put_until(
        &self,
        key: &[u8],
        value: &[u8],
        end: Option<Duration>,
        owner: u16,
    ) -> Result<PutOutcome, PutError> {
        if owner > OWNER_MAX || owner != 0 && self.0.geometry().has_owners() {
            return Err(PutError::OwnerNumber { given: owner });
        }
        let ttl = end.zip(self.0.age()).map(|(end, age)| {
            let ticks = u32::try_from(end.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u32::MAX);
            // Half a tick less. Rounded up, it is the same tick, even if this thread is stopped for a moment.
            let end = TICK.saturating_mul(ticks).saturating_sub(TICK / 2);
            end.saturating_sub(age).max(Duration::from_nanos(1))
        });
        self.0.put_with(key, value, PutOptions { owner, ..PutOptions::new().ttl(ttl) })
    }

    /// Scans as [`Index::scan_keys`] does. Shows the keys whose entries have an owner, with its number.
    pub fn scan_owned(&self, cursor: &mut KeyCursor, mut see: impl FnMut(&[u8], u16)) -> bool {
        self.0.scan_with_owners(cursor, |key, owner| {
            if owner != 0 {
                see(key, owner);
            }
        })
    }

    /// Whether a client on shm or over TCP has read the key since the last call. A hint: several keys may share one
    /// note. `false` where reads are not noted.
    pub fn take_read(&self, key: &[u8]) -> bool {
        self.0.touches().is_some_and(|touches| touches.take(self.0.geometry().hashed(key).first()))
    }
}
