//! Lives of entries: their numbers, their owners and their ends.

use super::error::GetError;
use super::{Client, ServerPath};
use crate::base::clock::Clock;
use crate::faults::{Rule, by_rule};
use crate::layout::life::{Life, TICK_NS};
use crate::outcome::KeyError;
use crate::reader::{Answers, StoredAnswer};
use crate::region::table_clock;
use crate::sink::{LengthSink, LifeSink, LivedSink, Sink};
use std::ops::ControlFlow;
use std::time::Duration;

/// The life of an entry, as a client may keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryLife {
    /// The entry's number, among all entries of all tables, for [`Client::revalidate`]: the table's number
    /// ([`Geometry::generation`](crate::layout::Geometry::generation)), which is random, exclusive or the entry's
    /// number in that table.
    pub number: u64,
    /// The entry's owner; 0: nobody.
    pub owner: u16,
    /// The tick at which the entry ends ([`Client::ends_in`]); 0: it does not end by itself.
    pub expiry: u32,
}

impl EntryLife {
    /// The life of an entry of this table (I2).
    fn of(table: u64, Life { number, owner, expiry }: Life) -> EntryLife {
        EntryLife { number: by_rule(Rule::EntryTable, table ^ number, number), owner, expiry }
    }
}

/// The outcome of one key of a batch: its value, with the life of the entry if the table's entries have one; `None` if
/// the key is absent.
pub type LifeAnswer<'a> = Result<Option<(&'a [u8], Option<EntryLife>)>, KeyError>;

/// Whether an entry is there, and its life if the table's entries have one.
type FoundLife = Result<Option<Option<EntryLife>>, KeyError>;

/// A sink that passes on values with the lives of their entries.
struct WithLives<'a, S, E> {
    landed: LivedSink<&'a mut S>,
    /// The number of the table that answers.
    table: u64,
    each: E,
}

impl<'a, S, E> WithLives<'a, S, E>
where
    E: FnMut(usize, FoundLife, &LivedSink<&'a mut S>) -> ControlFlow<()>,
{
    #[inline(always)]
    fn hand_on(&mut self, number: usize, found: FoundLife) -> ControlFlow<()> {
        (self.each)(number, found, &self.landed)
    }
}

impl<'a, S, E> Answers for WithLives<'a, S, E>
where
    S: Sink,
    E: FnMut(usize, FoundLife, &LivedSink<&'a mut S>) -> ControlFlow<()>,
{
    type Sink = LivedSink<&'a mut S>;

    #[inline(always)]
    fn sink(&mut self) -> &mut LivedSink<&'a mut S> {
        &mut self.landed
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        let life = self.landed.life.map(|life| EntryLife::of(self.table, life));
        self.hand_on(number, Ok(is_there.then_some(life)))
    }

    fn of_table(&mut self, table: u64) {
        self.table = table;
    }

    fn put_life(&mut self, life: Option<Life>) {
        self.landed.put_life(life);
    }

    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        match answer {
            Ok(Some(value)) => {
                if self.landed.begin(value.len()) {
                    self.landed.put(value);
                }
                self.landed(number, true)
            }
            Ok(None) => self.hand_on(number, Ok(None)),
            Err(error) => self.hand_on(number, Err(error.into())),
        }
    }
}

impl Client {
    /// As [`Client::get_many_with`], but shows the life of each entry with its value. It is as quick. Values are as
    /// they are stored: they are not decrypted.
    ///
    /// # Errors
    /// As [`Client::get_many`]. By then, `each` may have been called for some of the keys.
    pub fn get_many_with_life<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, LifeAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        self.lives_of(keys, &mut Vec::new(), |number, answer, landed| {
            let value = landed.landed().unwrap_or_default();
            each(number, answer.map(|life| life.map(|life| (value, life))))
        })
    }

    /// Shows the lives of many entries, each with the sink that has its value.
    fn lives_of<'a, K: AsRef<[u8]>, S: Sink>(
        &mut self,
        keys: &[K],
        sink: &'a mut S,
        each: impl FnMut(usize, FoundLife, &LivedSink<&'a mut S>) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        let mut answers = WithLives { landed: LivedSink::new(sink), table: 0, each };
        self.get_batch_stored(keys, &mut answers).map(drop)
    }

    /// Returns the life of the entry that `key` has: its number, owner and end. `None` if the key is absent, or
    /// if the table's entries have none ([`Config::life`](crate::Config::life)). Usually 1 READ. The value is
    /// not decrypted.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn life(&mut self, key: &[u8]) -> Result<Option<EntryLife>, GetError> {
        let life = self.get_stored(key, &mut LifeSink::default())?.flatten();
        Ok(life.map(|life| EntryLife::of(self.geometry().generation(), life)))
    }

    /// Returns for each key whether its entry is still the one with this number ([`Client::life`]). If so, it was there
    /// all the time, with the same value. Each put, swap or other change of a value gives the entry a new number, which
    /// no entry of this table (V1) or of any other table (I2) ever had. If the server has begun with another table
    /// meanwhile, or with a snapshot of this one, no entry is the same. A key that is absent, or that the table cannot
    /// hold, is not the same. Usually 1 READ for each key, all under way at once.
    ///
    /// This is for values that point to memory elsewhere: fetch that memory, then ask whether the entry is still the
    /// same.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Panics
    /// When there are more or fewer numbers than keys.
    pub fn revalidate<K: AsRef<[u8]>>(&mut self, keys: &[K], numbers: &[u64]) -> Result<Vec<bool>, GetError> {
        assert_eq!(keys.len(), numbers.len(), "a number for each key");
        let mut same = vec![false; keys.len()];
        self.lives_of(keys, &mut LengthSink::default(), |number, answer, _| {
            let life = answer.ok().flatten().flatten();
            same[number] = life.is_some_and(|life| life.number == numbers[number]);
            ControlFlow::Continue(())
        })?;
        Ok(same)
    }

    /// How long an entry with this life will be there. Zero: it has ended, and is gone at most a second later.
    /// `None` if it does not end by itself; or over verbs or TCP, where the client does not have the server's clock.
    pub fn ends_in(&self, life: &EntryLife) -> Option<Duration> {
        match &self.path {
            ServerPath::Shm(handle) if life.expiry != 0 => {
                let clock = Clock::default();
                let (made_ns, now_ns) =
                    (table_clock::epoch_ns(handle.region(), &clock), clock.now_ns() as i64);
                let end_ns = made_ns.saturating_add((u64::from(life.expiry) * TICK_NS) as i64);
                Some(Duration::from_nanos(end_ns.saturating_sub(now_ns).max(0) as u64))
            }
            _ => None,
        }
    }
}
