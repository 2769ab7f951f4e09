//! The lives of a table's entries: their numbers, and when they end.
//!
//! ```text
//! put     number ─ slot ─ its time is noted, under the key's lock (`ends.rs`)
//! tidy    times that have come ─ the keys with these hashes ─ those that have ended are removed
//! ```
//!
//! A noted time is a hint, as a note of a slot is. The slot's own life, under the key's lock, decides. So one time
//! suffices for a key, the soonest: when it has come and the entry lives on, its present time is noted.

use super::ends::{DUE_AT_A_TIME, EndNotes};
use super::numbers::NumberSource;
use super::whole::Table;
use crate::base::clock::Clock;
use crate::base::sync::{Mutex, lock};
use crate::faults::{Rule, by_rule};
use crate::layout::control::ENTRIES_WORD;
use crate::layout::hash::First;
use crate::layout::life::{ENTRY_NUMBERS_END, Life, TICK_NS, expiry_after, tick_at};
use crate::layout::slot::Key;
use crate::outcome::PutError;
use crate::region::Region;
use crate::region::table_clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

/// Numbers of entries that are taken from the region at a time.
const NUMBERS_AT_A_TIME: u64 = 1 << 10;
/// Ticks until the next look at an entry that has ended and could not be removed.
const AGAIN_TICKS: u32 = 8;
/// Changes between two looks at what has ended, where nobody tidies.
const LOOK_EVERY: u64 = 32;

/// The tick of the next look at an entry that should have gone.
fn soon(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX).saturating_add(AGAIN_TICKS)
}

/// Who removes entries that have come to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndsBy {
    /// The table.
    Table,
    /// The table's driver. Until it does, they stay.
    Driver,
}

/// The lives of a table whose entries have one.
#[derive(Debug)]
pub(super) struct Lives {
    clock: Clock,
    /// When the table was made, by the clock. Negative if the machine has started since.
    epoch_ns: i64,
    /// How long entries live that are put without a time; `None`: until they are removed.
    ttl: Option<Duration>,
    ends_by: EndsBy,
    numbers: Mutex<NumberSource>,
    ends: Arc<EndNotes>,
    changes: AtomicU64,
    expired: AtomicU64,
    /// The thread that ends entries when they are too many to end in passing, if there is one.
    ender: OnceLock<Thread>,
}

impl Lives {
    /// The lives of a new table.
    pub fn make(table: &Table, clock: &Clock) -> Lives {
        // Numbers begin with 1, so that a takeover can tell whether they were begun.
        table.region().store(ENTRIES_WORD, 1);
        Lives::begin(table, clock, clock.now_ns() as i64)
    }

    /// The lives of a table that another server had. Notes when its entries end.
    pub fn open(table: &Table, clock: &Clock) -> Lives {
        let lives = Lives::begin(table, clock, table_clock::epoch_ns(table.region(), clock));
        table.show_lives(&mut |hash, life| {
            if let Some(Life { expiry: expiry @ 1.., .. }) = life {
                lives.ends.came(hash, expiry);
            }
        });
        lives
    }

    fn begin(table: &Table, clock: &Clock, epoch_ns: i64) -> Lives {
        let region = table.region();
        table_clock::begin(region, clock, epoch_ns);
        Lives {
            clock: clock.clone(),
            epoch_ns,
            ttl: None,
            ends_by: EndsBy::Table,
            numbers: Mutex::new(NumberSource::from(region, ENTRIES_WORD, NUMBERS_AT_A_TIME)),
            ends: Arc::clone(table.observers().ends()),
            changes: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            ender: OnceLock::new(),
        }
    }

    /// The lives, where an entry that is put without a time lives this long from now on.
    pub fn with_ttl(self, ttl: Option<Duration>) -> Lives {
        Lives { ttl, ..self }
    }

    /// The lives, where `ends_by` removes ended entries from now on.
    pub fn ending_by(self, ends_by: EndsBy) -> Lives {
        Lives { ends_by, ..self }
    }

    /// Who removes entries that have ended.
    pub fn ends_by(&self) -> EndsBy {
        self.ends_by
    }

    /// When the table was made, by the time of day.
    pub fn made(&self) -> SystemTime {
        SystemTime::now() - Duration::from_nanos(self.since_made_ns())
    }

    /// Nanoseconds since the table was made.
    fn since_made_ns(&self) -> u64 {
        table_clock::since_ns(self.epoch_ns, &self.clock)
    }

    /// The table's tick.
    pub fn now(&self) -> u64 {
        tick_at(self.since_made_ns())
    }

    /// The life of an entry that is about to be put. It lives for `ttl`, or as long as all do. `owner` owns it; 0:
    /// nobody.
    ///
    /// # Errors
    /// [`PutError::TimeToLive`], [`PutError::EntryNumbers`].
    pub fn life(&self, region: &Region, ttl: Option<Duration>, owner: u16) -> Result<Life, PutError> {
        let expiry = self.expiry(ttl)?;
        let number = lock(&self.numbers).next(region);
        if number >= ENTRY_NUMBERS_END {
            return Err(PutError::EntryNumbers);
        }
        Ok(Life { number: by_rule(Rule::EntryNumber, number, 1), owner, expiry })
    }

    /// The tick in which an entry ends that lives for `ttl` from now on, or as long as all do; 0: it does not.
    ///
    /// # Errors
    /// [`PutError::TimeToLive`].
    pub fn expiry(&self, ttl: Option<Duration>) -> Result<u32, PutError> {
        ttl.or(self.ttl).map_or(Ok(0), |ttl| self.check(ttl))
    }

    /// The tick in which an entry ends that is put now and lives this long.
    ///
    /// # Errors
    /// [`PutError::TimeToLive`].
    pub fn check(&self, ttl: Duration) -> Result<u32, PutError> {
        let expiry = if ttl.is_zero() { None } else { expiry_after(self.since_made_ns(), ttl) };
        expiry.ok_or(PutError::TimeToLive { given: ttl })
    }

    /// Whether a change should look for ended entries: one change in [`LOOK_EVERY`] does.
    pub fn looks_now(&self) -> bool {
        self.changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) && self.is_due()
    }

    fn is_due(&self) -> bool {
        let soonest = self.ends.soonest();
        soonest != u64::MAX && soonest <= self.now()
    }

    /// Sets the thread that calls [`Lives::expire`] from now on. It is unparked when there is much to do.
    pub fn set_ender(&self, thread: Thread) {
        let _ = self.ender.set(thread);
    }

    /// Wakes the thread that only ends entries, if there is one. A thread that ended entries in passing has left some.
    pub fn call_ender(&self) {
        self.ender.get().into_iter().for_each(Thread::unpark);
    }

    /// Takes up to `max` keys whose times have come. Passes those that have ended to `remove`, which returns whether it
    /// removed them. Returns how long until there is more to do.
    pub fn expire(
        &self,
        table: &Table,
        max: usize,
        mut remove: impl FnMut(&Key, u64) -> bool,
    ) -> Option<Duration> {
        let now = self.now();
        let mut left = max;
        while left > 0 {
            // An entry that cannot be looked at or removed now is taken again later.
            let taken = self.ends.take_due(now, soon(now), left.min(DUE_AT_A_TIME));
            if taken.is_empty() {
                break;
            }
            left -= taken.len();
            taken.iter().for_each(|&hash| table.expect(hash));
            for hash in taken {
                self.end(table, hash, now, &mut remove);
            }
        }
        let soonest = self.ends.soonest();
        (soonest != u64::MAX).then(|| {
            let due_ns = soonest.saturating_mul(TICK_NS);
            Duration::from_nanos(due_ns.saturating_sub(self.since_made_ns()))
        })
    }

    /// How long ago the table was made.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(self.since_made_ns())
    }

    /// Removes the entries with this hash that have ended.
    fn end(&self, table: &Table, hash: First, now: u64, remove: &mut impl FnMut(&Key, u64) -> bool) {
        let lives = table.look_at(hash, |at| at.lives_due(hash, now, soon(now))).unwrap_or_default();
        let ended = lives.iter().filter(|(_, life)| life.has_ended(now));
        let gone = ended.filter(|(key, _)| remove(key, now)).count();
        self.expired.fetch_add(gone as u64, Ordering::Relaxed);
    }

    /// How long the soonest time has been over.
    pub fn lag(&self) -> Duration {
        let soonest = self.ends.soonest();
        Duration::from_nanos(self.since_made_ns().saturating_sub(soonest.saturating_mul(TICK_NS)))
    }

    /// The number of noted ends.
    pub fn noted(&self) -> u64 {
        self.ends.len()
    }

    /// The number of entries that have ended and were removed.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }
}
