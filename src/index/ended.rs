//! Entries that have an end or an owner, where somebody else decides when they leave: a table that is one of several
//! copies, of which all are to lose an entry together.

use super::face::Index;
use super::lives::Lives;
use super::whole::KeyCursor;
use crate::error::ReadError;
use crate::layout::OWNER_MAX;
use crate::layout::life::{Life, TICK_NS};
use crate::outcome::{PutError, PutOptions, PutOutcome};
use crate::sink::LifeSink;
use std::time::Duration;

const TICK: Duration = Duration::from_nanos(TICK_NS);

impl Index {
    /// The same table, where entries that have come to their end stay until they are removed like any other, or put again.
    /// Who is to remove them asks [`Index::see_ended`]. It does not go with the table to the next server. No difference
    /// where entries have no life.
    #[must_use]
    pub fn keeping_ended(mut self) -> Index {
        self.lives = self.lives.take().map(|lives| Box::new(lives.keeping_ended()));
        self
    }

    /// Shows up to `max` keys whose entries have come to their end: of a table that keeps them
    /// ([`Index::keeping_ended`]). One that is there a second later is shown again then. Returns how many were
    /// shown.
    pub fn see_ended(&self, max: usize, mut see: impl FnMut(&[u8])) -> usize {
        let mut seen = 0;
        if let Some(lives) = self.lives() {
            lives.expire(self.table(), max, |key, _| {
                seen += 1;
                see(key);
                false
            });
        }
        seen
    }

    /// The life of the entry that a key has. `None`: the key is absent, or entries have none
    /// ([`Config::life`](crate::Config::life)).
    ///
    /// # Errors
    /// As [`Reader::get_into`](crate::embedded::Reader::get_into).
    pub fn life(&self, key: &[u8]) -> Result<Option<Life>, ReadError> {
        Ok(self.reader().get_into(key, &mut LifeSink::default())?.flatten())
    }

    /// How old the table is, by its own clock, which goes on while the machine sleeps and does not jump. `None` where
    /// entries have no life.
    pub fn age(&self) -> Option<Duration> {
        self.lives().map(Lives::age)
    }

    /// How old the table will be when an entry with this life ends. `None`: it does not end by itself.
    pub fn ends_at(&self, life: &Life) -> Option<Duration> {
        (life.expiry != 0).then(|| TICK.saturating_mul(life.expiry))
    }

    /// Whether an entry that is put now can live so long.
    pub fn can_live(&self, ttl: Duration) -> bool {
        self.lives().is_some_and(|lives| lives.check(ttl).is_ok())
    }

    /// Puts an entry that ends when the table is as old as this, rounded up to an eighth of a second; with what
    /// [`Index::ends_at`] says of an entry, another one ends with it. One whose time has come ends at once, and one whose
    /// time is beyond all that entries can have, with the last of those.
    ///
    /// `owner` is whose it is, 0: nobody's. In a table that knows no owners itself the number stands in the entry's life, and
    /// means nothing to the table; in one with owners ([`Config::owners`](crate::Config::owners)) it is 0.
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
        if owner > OWNER_MAX || owner != 0 && self.geometry().has_owners() {
            return Err(PutError::OwnerNumber { given: owner });
        }
        let ttl = end.zip(self.age()).map(|(end, age)| {
            let ticks = u32::try_from(end.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u32::MAX);
            // Half a tick less: rounded up it is the same one, also if this thread stands still for a moment.
            let end = TICK.saturating_mul(ticks).saturating_sub(TICK / 2);
            end.saturating_sub(age).max(Duration::from_nanos(1))
        });
        self.put_with(key, value, PutOptions { owner, ..PutOptions::new().ttl(ttl) })
    }

    /// As [`Index::scan_keys`], of keys whose entries have an owner, with its number.
    pub fn scan_owned(&self, cursor: &mut KeyCursor, mut see: impl FnMut(&[u8], u16)) -> bool {
        self.scan_with_owners(cursor, |key, owner| {
            if owner != 0 {
                see(key, owner);
            }
        })
    }
}
