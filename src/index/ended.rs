//! Entries that have come to their end, where somebody else decides when they leave: a table that is one of several
//! copies, of which all are to lose an entry together.

use super::face::Index;
use crate::error::ReadError;
use crate::layout::life::Life;
use crate::sink::LifeSink;
use std::time::Duration;

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
    /// ([`Index::keeping_ended`]). One that is there a second later is shown again then. Returns how many there were: fewer
    /// than `max` if there are no more for now.
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

    /// How long it is until the end of an entry with this life; zero if that has come. `None`: it does not end by itself.
    pub fn ends_in(&self, life: &Life) -> Option<Duration> {
        self.lives().filter(|_| life.expiry != 0).map(|lives| lives.until(life))
    }
}
