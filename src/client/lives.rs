//! Lives of entries: which entry it is, and when it ends.

use super::error::GetError;
use super::{Client, ServerPath};
use crate::clock::Clock;
use crate::layout::life::{Life, TICK_NS};
use crate::sink::LifeSink;
use crate::table_clock;
use std::time::Duration;

impl Client {
    /// Returns the life of the entry that `key` has: its number, owner and end. `None` if the key is absent, or
    /// if the table's entries have none ([`Config::life`](crate::Config::life)). Usually 1 READ. The value is
    /// not decrypted.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn life(&mut self, key: &[u8]) -> Result<Option<Life>, GetError> {
        Ok(self.get_stored(key, &mut LifeSink::default())?.flatten())
    }

    /// Tells of each key whether its entry is still the one with this number ([`Client::life`]): then it was there
    /// all the time, with the same value. Each put, swap or other change of a value gives the entry another
    /// number, one that no entry of the table ever had (V1). A key that is absent, or that the table cannot hold,
    /// is not the same. Usually 1 READ and 1 round trip for each key, one key after the other.
    ///
    /// This is for what a value only points to, in memory of somebody else's: fetch that, then ask whether the
    /// entry is still the same.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Panics
    /// When there are more or fewer numbers than keys.
    pub fn revalidate<K: AsRef<[u8]>>(&mut self, keys: &[K], numbers: &[u64]) -> Result<Vec<bool>, GetError> {
        assert_eq!(keys.len(), numbers.len(), "a number for each key");
        let pairs = keys.iter().zip(numbers);
        pairs
            .map(|(key, &number)| match self.life(key.as_ref()) {
                Ok(life) => Ok(life.is_some_and(|life| life.number == number)),
                Err(GetError::KeyLength { .. }) => Ok(false),
                Err(error) => Err(error),
            })
            .collect()
    }

    /// How long an entry with this life will be there. Zero: it has ended, and is gone at most a second later.
    /// `None` if it does not end by itself; or over verbs, where the client does not have the server's clock.
    pub fn ends_in(&self, life: &Life) -> Option<Duration> {
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
