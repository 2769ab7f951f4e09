//! The lives of a table's entries: their numbers, and when they end.
//!
//! ```text
//! put     number ─ slot ─ its time is noted
//! tidy    times that have come ─ the keys with these hashes ─ those that have ended are removed
//! ```
//!
//! A noted time is a hint, as a note of a slot is: what counts is the slot's own life, under the key's lock.
//! So one time suffices for a key, the soonest: when it has come and the entry lives on, its present time is
//! noted.

use super::numbers::NumberSource;
use super::whole::Table;
use crate::clock::Clock;
use crate::faults::{Rule, by_rule};
use crate::layout::control::ENTRIES_WORD;
use crate::layout::hash::First;
use crate::layout::life::{ENTRY_NUMBERS_END, Life, TICK_NS, expiry_after, tick_at};
use crate::layout::slot::Key;
use crate::outcome::PutError;
use crate::region::Region;
use crate::sync::{Mutex, lock};
use crate::table_clock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

/// Numbers of entries that are taken from the region at a time.
const NUMBERS_AT_A_TIME: u64 = 1 << 10;
/// Ticks after which an entry is looked at again that has ended and could not be removed.
const AGAIN_TICKS: u32 = 8;
/// Changes between two looks at what has ended, where nobody tidies.
const LOOK_EVERY: u64 = 32;
/// Keys whose slots are asked for before the first of them is looked at: mostly none is in the processor's caches. With
/// 32 a key takes a fifth less.
const ASKED_AHEAD: usize = 32;

/// The tick at which an entry is looked at again that should have gone.
fn soon(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX).saturating_add(AGAIN_TICKS)
}

/// The lives of a table whose entries have one.
#[derive(Debug)]
pub(super) struct Lives {
    clock: Clock,
    /// When the table was made, by the clock; before 0, if the machine has started since.
    epoch_ns: i64,
    /// How long entries live that are put without a time; `None`: until they are removed.
    ttl: Option<Duration>,
    /// What has ended stays, until somebody else removes it.
    keeps_ended: bool,
    numbers: Mutex<NumberSource>,
    times: Mutex<Times>,
    /// The soonest of the times; `u64::MAX`: none. Relaxed: a hint, stored under the lock.
    soonest: AtomicU64,
    changes: AtomicU64,
    expired: AtomicU64,
    /// The thread that ends what is too much for others in passing, if there is one.
    ender: OnceLock<Thread>,
}

/// When entries may have ended.
#[derive(Debug, Default)]
struct Times {
    /// The hashes of keys by ticks.
    due: BTreeMap<u32, Vec<First>>,
    /// The soonest tick of each hash.
    of: FxHashMap<First, u32>,
}

impl Times {
    /// Notes a time, unless an earlier one is noted.
    fn note(&mut self, hash: First, tick: u32) {
        let noted = self.of.entry(hash).or_insert(u32::MAX);
        if tick < *noted {
            *noted = tick;
            self.due.entry(tick).or_default().push(hash);
        }
    }

    /// Takes a hash whose time has come.
    fn take(&mut self, now: u64) -> Option<First> {
        loop {
            let mut first = self.due.first_entry().filter(|first| u64::from(*first.key()) <= now)?;
            let tick = *first.key();
            let hash = first.get_mut().pop();
            if first.get().is_empty() {
                first.remove();
            }
            let Some(hash) = hash else { continue };
            // Else an earlier time was noted later, and this one is of no use.
            if self.of.get(&hash) == Some(&tick) {
                self.of.remove(&hash);
                return Some(hash);
            }
        }
    }

    fn soonest(&self) -> u64 {
        self.due.first_key_value().map_or(u64::MAX, |(&tick, _)| tick.into())
    }
}

impl Lives {
    /// Those of a new table.
    pub fn make(region: &Region, clock: &Clock) -> Lives {
        // From 1 on: a takeover can tell that they were never begun.
        region.store(ENTRIES_WORD, 1);
        Lives::begin(region, clock, clock.now_ns() as i64)
    }

    /// Those of a table that another server had.
    pub fn open(region: &Region, clock: &Clock) -> Lives {
        Lives::begin(region, clock, table_clock::epoch_ns(region, clock))
    }

    fn begin(region: &Region, clock: &Clock, epoch_ns: i64) -> Lives {
        table_clock::begin(region, clock, epoch_ns);
        Lives {
            clock: clock.clone(),
            epoch_ns,
            ttl: None,
            keeps_ended: false,
            numbers: Mutex::new(NumberSource::from(region, ENTRIES_WORD, NUMBERS_AT_A_TIME)),
            times: Mutex::default(),
            soonest: AtomicU64::new(u64::MAX),
            changes: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            ender: OnceLock::new(),
        }
    }

    /// The same, where an entry that is put without a time lives so long.
    pub fn with_ttl(self, ttl: Option<Duration>) -> Lives {
        Lives { ttl, ..self }
    }

    /// The same, where what has ended stays.
    pub fn keeping_ended(self) -> Lives {
        Lives { keeps_ended: true, ..self }
    }

    /// Whether what has ended stays.
    pub fn keeps_ended(&self) -> bool {
        self.keeps_ended
    }

    /// Notes the times of all entries of a table that another server had.
    pub fn take_over(&self, table: &Table) {
        table.show_lives(&mut |hash, life| life.into_iter().for_each(|life| self.ends(|| hash, life)));
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

    /// The life of an entry that is to be put. `ttl`: how long it lives, if not as long as all. `owner`: whose it is; 0:
    /// nobody's.
    ///
    /// # Errors
    /// [`PutError::TimeToLive`], [`PutError::EntryNumbers`].
    pub fn life(&self, region: &Region, ttl: Option<Duration>, owner: u16) -> Result<Life, PutError> {
        let expiry = ttl.or(self.ttl).map_or(Ok(0), |ttl| self.check(ttl))?;
        let number = lock(&self.numbers).next(region);
        if number >= ENTRY_NUMBERS_END {
            return Err(PutError::EntryNumbers);
        }
        Ok(Life { number: by_rule(Rule::EntryNumber, number, 1), owner, expiry })
    }

    /// The tick in which an entry ends that is put now, and is to live so long.
    ///
    /// # Errors
    /// [`PutError::TimeToLive`].
    pub fn check(&self, ttl: Duration) -> Result<u32, PutError> {
        let expiry = if ttl.is_zero() { None } else { expiry_after(self.since_made_ns(), ttl) };
        expiry.ok_or(PutError::TimeToLive { given: ttl })
    }

    /// An entry of a key with this hash, which is visible, has this life.
    pub fn ends(&self, hash: impl FnOnce() -> First, life: Life) {
        if life.expiry != 0 {
            let mut times = lock(&self.times);
            times.note(hash(), life.expiry);
            self.soonest.store(times.soonest(), Ordering::Relaxed);
        }
    }

    /// Whether a change should look at what has ended: one of so many does.
    pub fn looks_now(&self) -> bool {
        self.changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) && self.is_due()
    }

    fn is_due(&self) -> bool {
        let soonest = self.soonest.load(Ordering::Relaxed);
        soonest != u64::MAX && soonest <= self.now()
    }

    /// The thread that calls [`Lives::expire`] from now on, and is unparked when there is much to do.
    pub fn set_ender(&self, thread: Thread) {
        let _ = self.ender.set(thread);
    }

    /// Who ends entries in passing has left some that have ended: a thread of its own goes on, if there is one.
    pub fn call_ender(&self) {
        self.ender.get().into_iter().for_each(Thread::unpark);
    }

    /// Takes up to `max` keys whose times have come: those that have ended are passed to `remove`, which says
    /// whether it did. Returns how long until there is more to do.
    pub fn expire(
        &self,
        table: &Table,
        max: usize,
        mut remove: impl FnMut(&Key, u64) -> bool,
    ) -> Option<Duration> {
        let now = self.now();
        if self.soonest.load(Ordering::Relaxed) <= now {
            let mut left = max;
            while left > 0 {
                let taken: SmallVec<[First; ASKED_AHEAD]> = {
                    let mut times = lock(&self.times);
                    let some = std::iter::from_fn(|| times.take(now)).take(left.min(ASKED_AHEAD)).collect();
                    self.soonest.store(times.soonest(), Ordering::Relaxed);
                    some
                };
                if taken.is_empty() {
                    break;
                }
                left -= taken.len();
                taken.iter().for_each(|&hash| table.expect(hash));
                for hash in taken {
                    self.end(table, hash, now, &mut remove);
                }
            }
        }
        let soonest = self.soonest.load(Ordering::Relaxed);
        (soonest != u64::MAX).then(|| {
            let due_ns = soonest.saturating_mul(TICK_NS);
            Duration::from_nanos(due_ns.saturating_sub(self.since_made_ns()))
        })
    }

    /// How long ago the table was made.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(self.since_made_ns())
    }

    /// Ends the entries with this hash that have come to their end, and notes the times of the others.
    fn end(&self, table: &Table, hash: First, now: u64, remove: &mut impl FnMut(&Key, u64) -> bool) {
        let Some(lives) = table.lives_of(hash) else {
            return self.ends(|| hash, Life { expiry: soon(now), ..Life::default() });
        };
        for (key, life) in lives {
            if life.has_ended(now) && remove(&key, now) {
                self.expired.fetch_add(1, Ordering::Relaxed);
            } else {
                // It lives on. Or it has another life by now, whose time is noted; or it could not be removed.
                let expiry = if life.has_ended(now) { soon(now) } else { life.expiry };
                self.ends(|| hash, Life { expiry, ..life });
            }
        }
    }

    /// How long the soonest time has been over.
    pub fn lag(&self) -> Duration {
        let soonest = self.soonest.load(Ordering::Relaxed);
        Duration::from_nanos(self.since_made_ns().saturating_sub(soonest.saturating_mul(TICK_NS)))
    }

    /// Entries that have ended, and were removed.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }
}
