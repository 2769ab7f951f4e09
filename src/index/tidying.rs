//! A table's own tasks: traces, ends, owners, started puts, extents, room.

use super::face::Index;
use super::lives::{EndsBy, Lives};
use super::segment::Which;
use super::whole::Table;
use crate::error::ReadError;
use crate::layout::life::{Life, TICK_NS};
use crate::layout::slot::Key;
use crate::sink::LifeSink;
use std::time::Duration;

impl Index {
    /// Takes away every trace that is due. Removes entries that have come to their end, or whose owner has gone. Drives
    /// splits and merges. Mutations do this in passing; a server also does it when idle. Returns how long until there
    /// is more to do. `None`: nothing is left, and no other thread works at it. Does not wait for another thread that
    /// does; then it returns at most a millisecond.
    pub fn tidy(&self) -> Option<Duration> {
        let shift = self.shifts.begin();
        let next = self.tidy_all();
        /// The pause of a thread that has met another one.
        const AGAIN: Duration = Duration::from_millis(1);
        // L15
        if shift.is_alone() { next } else { Some(next.map_or(AGAIN, |next| next.min(AGAIN))) }
    }

    fn tidy_all(&self) -> Option<Duration> {
        /// Entries that are removed at a time: some tenths of a millisecond.
        const AT_ONCE: usize = 100;
        let next = match self.table() {
            Table::One(one) => one.tidy(),
            Table::Many(growth) => growth.tidy(),
        };
        let of_lives = self.lives().and_then(|lives| {
            let next = self.expire(lives, AT_ONCE);
            if next == Some(Duration::ZERO) {
                lives.call_ender();
            }
            next
        });
        let remove = |key: &Key, owner| self.remove_if_free(key, Which::Of(owner)).is_ok();
        let of_owners = self.owners().and_then(|owners| {
            let has_more = owners.forget_left(self.table(), AT_ONCE).then_some(Duration::ZERO);
            has_more.or(owners.tidy(self.shared_table(), AT_ONCE, remove))
        });
        let of_started = self.started().and_then(|started| self.tidy_started(started));
        let extents = self.table().extents();
        let of_extents = extents.and_then(|extents| {
            if extents.tidy(self.table()) { Some(Duration::ZERO) } else { extents.until_next() }
        });
        let of_evicting = (self.evicts() && self.tidy_evicting()).then_some(Duration::ZERO);
        [next, of_lives, of_owners, of_started, of_extents, of_evicting].into_iter().flatten().min()
    }

    /// Removes up to some thousand entries that have come to their end. Returns whether there may be more.
    /// [`Index::tidy`] removes a hundred each time. When many end together, that is not enough to have each gone within
    /// a second. A server has a thread for this. A program that embeds an index may have one, too.
    pub fn end_due(&self) -> bool {
        /// Some milliseconds. Then the thread looks whether it should stop.
        const AT_ONCE: usize = 4_096;
        let next = self.lives().and_then(|lives| self.expire(lives, AT_ONCE));
        next == Some(Duration::ZERO)
    }

    /// Sets the thread that calls [`Index::end_due`] from now on. It is unparked when there is something to do.
    pub(crate) fn set_ender(&self, thread: std::thread::Thread) {
        self.lives().into_iter().for_each(|lives| lives.set_ender(thread.clone()));
    }

    /// Entries that came to their end and were removed, since the server began; 0 where entries have no life.
    pub fn expired(&self) -> u64 {
        self.lives().map_or(0, Lives::expired)
    }

    /// How long the first of the entries that have ended and are still there has been due; zero if there is none.
    /// It is a second at most where somebody calls [`Index::tidy`] that often.
    pub fn expiry_lag(&self) -> Duration {
        self.lives().map_or(Duration::ZERO, Lives::lag)
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
        (life.expiry != 0).then(|| Duration::from_nanos(TICK_NS).saturating_mul(life.expiry))
    }

    /// Removes ended entries now and then. If no server tidies, only changes do it.
    pub(super) fn end_in_passing(&self, lives: &Lives) {
        const IN_PASSING: usize = 64;
        if lives.looks_now() {
            let _shift = self.shifts.begin();
            self.expire(lives, IN_PASSING);
        }
    }

    /// Removes up to `max` entries that have ended. Returns how long until there is more to do.
    fn expire(&self, lives: &Lives, max: usize) -> Option<Duration> {
        match lives.ends_by() {
            EndsBy::Table => lives.expire(self.table(), max, |key, now| {
                self.remove_if_free(key, Which::Ended(now)) == Ok(true)
            }),
            EndsBy::Driver => None,
        }
    }
}
