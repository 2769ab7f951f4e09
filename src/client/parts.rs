//! Changes of a part of a value, and the removal of all keys: by the server.

use super::Client;
use super::changes::ReplyTells;
use super::error::MutateError;
use super::handle::Handle;
use super::{ServerPath, on_path};
use crate::index::Cleared;
use crate::outcome::PutError;
use crate::part::{NewNumber, PartChange, PartEffect, PartOutcome, Tell};
use crate::wire::{Reply, Request};
use std::time::Instant;

/// The progress of a removal that has ended.
const ALL_PPM: u64 = 1_000_000;

impl Client {
    /// Adds `delta` to the counter that is the value of `key`: a number of 64 bits without a sign, 8 bytes
    /// (`u64::to_le_bytes`). Returns its new value; the old value is that less `delta`. No other change of the key
    /// comes between. 1 round trip to the server.
    ///
    /// An absent key counts as `initial`, and `delta` is added to that: `Some(0)` does as Redis does. With `None` an
    /// absent key stays absent, and the answer is `None`. (Memcached puts `initial` without the delta: that is
    /// [`Client::insert`] first.) A sum below 0 or of more than 64 bits is an error, and changes nothing: it does not
    /// wrap, as RDMA's fetch-and-add does, and does not stop at 0, as Memcached's `decr` does.
    ///
    /// **Do not repeat it** after [`MutateError::Deadline`] or [`MutateError::ServerGone`]: it may have been done, and
    /// would be done twice. Get the counter, and compare-and-swap it.
    ///
    /// ```
    /// # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let address = Address::Shm(dir.path().join("s"));
    /// # let server = Server::start(ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100))))?;
    /// # let mut client = Client::connect(&address)?;
    /// assert_eq!(client.add(b"visits", 2, None)?, None);
    /// assert_eq!(client.add(b"visits", 2, Some(0))?, Some(2));
    /// assert_eq!(client.add(b"visits", -1, Some(0))?, Some(1));
    /// assert_eq!(client.get(b"visits")?, Some(1u64.to_le_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::change_part`]. [`MutateError::Part`] where the value has another length, or the counter would leave
    /// its range.
    pub fn add(&mut self, key: &[u8], delta: i64, initial: Option<u64>) -> Result<Option<u64>, MutateError> {
        let added = self.change_part(key, PartChange::Add { delta, initial }, Tell::After)?;
        counter(&added).ok_or_else(|| self.unexpected().into())
    }

    /// Adds `delta` to the number that is the value of `key`, decimal text from -2^63 to 2^63 - 1 ([`PartChange::Increment`]).
    /// Returns what it is then. No other change of the key comes between. 1 round trip to the server. Whoever gets the key
    /// reads the number, and puts one as text. ([`Client::add`] is for counters of 8 bytes.)
    ///
    /// An absent key counts as `absent`, and `delta` is added to that; without it, the key stays absent, and so is the
    /// answer. [`NewNumber::ttl`] is for the entry that comes. One that is there keeps its end.
    ///
    /// **Do not repeat it** after [`MutateError::Deadline`] or [`MutateError::ServerGone`]: it may have been done, and
    /// would be done twice.
    ///
    /// ```
    /// # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let address = Address::Shm(dir.path().join("s"));
    /// # let server = Server::start(ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100))))?;
    /// # let mut client = Client::connect(&address)?;
    /// assert_eq!(client.incr(b"visits", 2, None)?, None);
    /// assert_eq!(client.incr(b"visits", 2, Some(0.into()))?, Some(2));
    /// assert_eq!(client.incr(b"visits", -5, Some(0.into()))?, Some(-3));
    /// assert_eq!(client.get(b"visits")?, Some(b"-3".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::change_part`]. [`MutateError::Part`] where the value is no such text, or the number would leave its
    /// range; [`MutateError::ValueLength`] where the table's values have no room for it; [`MutateError::NoLife`] and
    /// [`MutateError::TimeToLive`] as [`Client::put_with`].
    pub fn incr(
        &mut self,
        key: &[u8],
        delta: i64,
        absent: Option<NewNumber>,
    ) -> Result<Option<i64>, MutateError> {
        let added = self.change_part(key, PartChange::Increment { delta, absent }, Tell::After)?;
        match added.effect {
            PartEffect::Absent => Ok(None),
            _ => added.number().map(Some).ok_or_else(|| self.unexpected().into()),
        }
    }

    /// Sets the bits of the value that are 1 in `bits`. `bits` may be shorter than the value: then it changes the first
    /// bytes. An absent key gets `bits` as its value. [`PartEffect::Unchanged`]: all were set. 1 round trip to the
    /// server.
    ///
    /// It may be repeated after [`MutateError::Deadline`] or [`MutateError::ServerGone`], if nobody clears the bits or
    /// removes the key meanwhile. The effect that it returns is then that of the repetition.
    ///
    /// # Errors
    /// As [`Client::change_part`]. [`MutateError::Part`] where `bits` is longer than the value.
    pub fn or(&mut self, key: &[u8], bits: &[u8]) -> Result<PartEffect, MutateError> {
        Ok(self.change_part(key, PartChange::Or { bits }, Tell::Nothing)?.effect)
    }

    /// Clears the bits of the value that are 1 in `bits`. Lengths are as with [`Client::or`]; an absent key stays absent.
    /// [`PartEffect::Unchanged`]: all were clear. 1 round trip to the server.
    ///
    /// It may be repeated after [`MutateError::Deadline`] or [`MutateError::ServerGone`], if nobody sets the bits
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Client::or`].
    pub fn and_not(&mut self, key: &[u8], bits: &[u8]) -> Result<PartEffect, MutateError> {
        Ok(self.change_part(key, PartChange::AndNot { bits }, Tell::Nothing)?.effect)
    }

    /// Appends `bytes` to the value, if it then has at most `len_max` bytes. An absent key counts as one with an empty
    /// value. 1 round trip to the server. A value that does not fit its slot is copied by the server: that takes as long
    /// as a put of the whole value.
    ///
    /// **Do not repeat it** after [`MutateError::Deadline`] or [`MutateError::ServerGone`]: it may have been done, and
    /// would be done twice. Get the value, and compare-and-swap it.
    ///
    /// # Errors
    /// As [`Client::change_part`]. [`MutateError::Part`] where the value would be longer than `len_max`, and
    /// [`MutateError::ValueLength`] where it would be longer than the table takes, or `bytes` does not fit a request.
    pub fn append(&mut self, key: &[u8], bytes: &[u8], len_max: usize) -> Result<PartEffect, MutateError> {
        Ok(self.change_part(key, PartChange::Append { bytes, len_max }, Tell::Nothing)?.effect)
    }

    /// Changes a part of the value of `key`. Returns the value before or after, if `tell` asks for it. The server makes
    /// the new value of the present one: no other change of the key comes between. 1 round trip to the server. The
    /// change's own bytes go in one piece, of at most 4,080 bytes, and 60 KiB on shm. A value of more than 4,080 bytes
    /// is not returned ([`Client::get`] it).
    ///
    /// [`Client::add`], [`Client::incr`], [`Client::or`], [`Client::and_not`] and [`Client::append`] say which changes may be repeated
    /// after an answer that did not come.
    ///
    /// # Errors
    /// As [`Client::put`]; [`MutateError::Part`] if the change does not fit the value. [`MutateError::Encrypted`] with
    /// `ClientOptions::encryption`, because the server cannot read the value; then nothing is sent. (If a client
    /// without it changes a key with an encrypted value, the server does not notice.) [`MutateError::OldServer`] from a
    /// server that does not know this request yet. None of these changes anything.
    pub fn change_part(
        &mut self,
        key: &[u8],
        part: PartChange<'_>,
        tell: Tell,
    ) -> Result<PartOutcome, MutateError> {
        self.refuse_encrypted()?;
        let deadline = Instant::now() + self.options.deadline;
        match self.ask_until_free(&Request::Part { key, part, tell }, deadline)? {
            Reply::Part(outcome) => Ok(outcome?),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }

    fn refuse_encrypted(&self) -> Result<(), MutateError> {
        if self.options.encryption.is_some() { Err(MutateError::Encrypted) } else { Ok(()) }
    }

    // ---- batches --------------------------------------------------------------------------------

    /// Adds to many counters, as [`Client::add`]. Returns their new values, in order. Costs what [`Client::put_many`]
    /// costs, and is not a transaction either.
    ///
    /// # Errors
    /// As [`Client::change_parts_with`].
    pub fn add_many<K: AsRef<[u8]>>(
        &mut self,
        deltas: &[(K, i64)],
        initial: Option<u64>,
    ) -> Result<Vec<Result<Option<u64>, PutError>>, MutateError> {
        let parts = deltas.iter().map(|(key, delta)| (key, PartChange::Add { delta: *delta, initial }));
        let added = self.change_parts(&parts.collect::<Vec<_>>(), Tell::After)?;
        let counted = added.into_iter().map(|added| match added {
            Ok(added) => counter(&added).map(Ok),
            Err(error) => Some(Err(error)),
        });
        counted.collect::<Option<_>>().ok_or_else(|| self.unexpected().into())
    }

    /// Sets bits of many values, as [`Client::or`].
    ///
    /// # Errors
    /// As [`Client::change_parts_with`].
    pub fn or_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        bits: &[(K, V)],
    ) -> Result<Vec<Result<PartEffect, PutError>>, MutateError> {
        let parts = bits.iter().map(|(key, bits)| (key, PartChange::Or { bits: bits.as_ref() }));
        self.effects(parts.collect())
    }

    /// Clears bits of many values, as [`Client::and_not`].
    ///
    /// # Errors
    /// As [`Client::change_parts_with`].
    pub fn and_not_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        bits: &[(K, V)],
    ) -> Result<Vec<Result<PartEffect, PutError>>, MutateError> {
        let parts = bits.iter().map(|(key, bits)| (key, PartChange::AndNot { bits: bits.as_ref() }));
        self.effects(parts.collect())
    }

    /// Appends to many values, as [`Client::append`].
    ///
    /// # Errors
    /// As [`Client::change_parts_with`].
    pub fn append_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
        len_max: usize,
    ) -> Result<Vec<Result<PartEffect, PutError>>, MutateError> {
        let append = |bytes| PartChange::Append { bytes, len_max };
        self.effects(pairs.iter().map(|(key, bytes)| (key, append(bytes.as_ref()))).collect())
    }

    fn effects<K: AsRef<[u8]>>(
        &mut self,
        parts: Vec<(K, PartChange<'_>)>,
    ) -> Result<Vec<Result<PartEffect, PutError>>, MutateError> {
        let done = self.change_parts(&parts, Tell::Nothing)?;
        Ok(done.into_iter().map(|done| Ok(done?.effect)).collect())
    }

    /// Changes parts of many values, as [`Client::change_part`]. Returns one answer per key, in order: a change that
    /// is rejected does not stop the others.
    ///
    /// # Errors
    /// As [`Client::change_parts_with`].
    pub fn change_parts<K: AsRef<[u8]>>(
        &mut self,
        parts: &[(K, PartChange<'_>)],
        tell: Tell,
    ) -> Result<Vec<Result<PartOutcome, PutError>>, MutateError> {
        let mut answers = vec![None; parts.len()];
        self.change_parts_with(parts, tell, |nth, answer| answers[nth] = Some(answer))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// As [`Client::change_parts`], but calls `each` with the number of each change and its answer, as the answers
    /// come, as [`Client::put_many_with`] does. Each takes effect by itself, in their order. But one that waits for memory
    /// longer than half of [`ClientOptions::deadline`](crate::ClientOptions::deadline) takes effect after the others, or, if
    /// its key comes again in the batch, ends in [`PutError::HeapBusy`].
    ///
    /// # Errors
    /// As [`Client::put_many`]; and [`MutateError::Encrypted`], then nothing was sent. After an error it is known which
    /// changes were answered. Of the others, any may have been done: see [`Client::add`] and [`Client::append`] before
    /// you repeat them.
    pub fn change_parts_with<K: AsRef<[u8]>>(
        &mut self,
        parts: &[(K, PartChange<'_>)],
        tell: Tell,
        mut each: impl FnMut(usize, Result<PartOutcome, PutError>),
    ) -> Result<(), MutateError> {
        self.refuse_encrypted()?;
        let requests: Vec<_> =
            parts.iter().map(|(key, part)| Request::Part { key: key.as_ref(), part: *part, tell }).collect();
        let is_short =
            |part: &PartChange<'_>| matches!(part, PartChange::Add { .. } | PartChange::Increment { .. });
        let is_told = tell != Tell::Nothing && !parts.iter().all(|(_, part)| is_short(part));
        let answer = |reply| match reply {
            Reply::Part(outcome) => Some(outcome),
            Reply::Put(Err(error)) => Some(Err(error)),
            _ => None,
        };
        self.ask_each_until_free(
            &requests,
            if is_told { ReplyTells::Values } else { ReplyTells::Outcomes },
            answer,
            &mut each,
        )
    }

    // ---- all keys -------------------------------------------------------------------------------

    /// Removes every key that is there from the beginning of this call to its end. Returns how many were removed. The
    /// server goes through its table in steps of a millisecond, with 1 round trip each, and serves others in between.
    ///
    /// It is not atomic, and locks no key for longer than a [`Client::remove`] does: GETs and changes by others go on.
    /// A key that somebody puts meanwhile is removed if the removal comes to its place later, and stays if the removal
    /// has passed it. Nothing that is put after it has returned is removed.
    ///
    /// It may be repeated after any error: some of the keys have gone, and it removes the rest.
    ///
    /// # Errors
    /// As [`Client::remove`], and [`MutateError::OldServer`] from a server of a version before this.
    pub fn clear(&mut self) -> Result<u64, MutateError> {
        self.clear_with(|_| true)
    }

    /// As [`Client::clear`]; `progress` is told how far it has come, step by step, and may break it off by returning
    /// `false`.
    ///
    /// # Errors
    /// As [`Client::clear`].
    pub fn clear_with(&mut self, mut progress: impl FnMut(Cleared) -> bool) -> Result<u64, MutateError> {
        let (mut place, mut removed, mut attached) = ([0; 2], 0, None);
        loop {
            let deadline = Instant::now() + self.options.deadline;
            let (now, progress_ppm, next) = match self.ask(&Request::Clear { place }, deadline)? {
                Reply::Cleared { removed, progress_ppm, place } => (removed, progress_ppm, place),
                Reply::Put(Err(error)) => return Err(error.into()),
                _ => return Err(self.unexpected().into()),
            };
            removed += now;
            let attached_now = on_path!(&self.path, handle => handle.reattached());
            // Another server may have another table.
            if attached.replace(attached_now).is_some_and(|before| before != attached_now) {
                place = [0; 2];
                continue;
            }
            if progress_ppm >= ALL_PPM {
                return Ok(removed);
            }
            if !progress(Cleared { removed, progress_ppm: progress_ppm as u32, next: None }) {
                return Ok(removed);
            }
            place = next;
        }
    }
}

/// The counter that a change returns. `None` if it returns none although the key is there.
fn counter(added: &PartOutcome) -> Option<Option<u64>> {
    match added.effect {
        PartEffect::Absent => Some(None),
        _ => added.counter().map(Some),
    }
}
