//! Changes: by the server.

use super::Client;
use super::encrypted;
use super::error::MutateError;
use super::handle::Deadline;
use super::long::HeapWait;
use super::send::BATCH;
use crate::layout::extent::Expected;
use crate::outcome::{PutError, PutMode, PutOptions, PutOutcome, SwapOutcome};
use crate::wire::{FRAME_VALUE_MAX, Reply, Request};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// The most requests whose replies have values that are sent ahead of them, as [`BATCH`].
const BATCH_TOLD: usize = 32;

/// Whether replies to changes have values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTells {
    Outcomes,
    Values,
}

impl Client {
    /// Inserts `key`, or updates its value. 1 round trip to the server. A value of more than 4,080 bytes goes in
    /// pieces, with 1 round trip for each MiB. It takes effect at once, with the last piece.
    ///
    /// If a value does not fit its slot, and the memory for it still waits for readers of removed values, the put waits
    /// until [`ClientOptions::deadline`](crate::ClientOptions::deadline) ([`MutateError::HeapBusy`]).
    ///
    /// # Errors
    /// [`MutateError`] says whether the change may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Upsert.into(), key, value)
    }

    /// As [`Client::put`], [`Client::insert`] or [`Client::update`], for an entry that may end by itself: no sooner
    /// than its time, and at most a second later as long as the server runs. A GET may find it until then. When a
    /// million end together, a server needs about two cores for that second. Without them, or when more end together,
    /// the last ones go later (`oneread_expiry_lag_seconds`). A put without a time takes the time away; a swap keeps
    /// it.
    ///
    /// The time counts from when the server makes the change, by a clock that also runs while the machine is suspended.
    /// It continues when the server is gone and another one takes the table over. If the machine was started again
    /// meanwhile, the rest goes by the time of day.
    ///
    /// # Errors
    /// As [`Client::put`]; [`PutError::NoLife`] in a table whose entries have no lives, [`PutError::TimeToLive`] for a
    /// time of 0, or one that ends later than the table can store.
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<PutOutcome, MutateError> {
        self.put_one(options, key, value)
    }

    /// Inserts `key` if it is absent. Returns [`PutOutcome::Inserted`] or [`PutOutcome::Exists`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Insert.into(), key, value)
    }

    /// Updates `key` if it is present. Returns [`PutOutcome::Updated`] or [`PutOutcome::Missing`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Update.into(), key, value)
    }

    /// Puts `value` if the value of `key` is `expected`, byte for byte. No other change of the key comes between. 1
    /// round trip to the server. To try again after [`SwapOutcome::Differs`], get the value first, by 1 READ. If the
    /// key has to be absent, use [`Client::insert`]; [`Client::compare_exchange`] does both.
    ///
    /// As long as values do not repeat, at most one of several clients that expect the same value gets
    /// [`SwapOutcome::Swapped`].
    ///
    /// If `expected` has more than 4,080 bytes, the client compares. It gets the value, and the server swaps if nothing
    /// has changed it meanwhile: 2 round trips to the server and the READs of a GET, and again after each change of the
    /// key that comes between. The guarantee is the same.
    ///
    /// With encryption (`ClientOptions::encryption`) only the client can compare. It asks the server for the value,
    /// decrypts it, and has it swapped if nothing has changed it meanwhile: 2 round trips, and again 2 after each
    /// change of the key that comes between. The guarantee is the same.
    ///
    /// # Errors
    /// As [`Client::put`]. Where the client compares, also [`MutateError::Busy`] if 1,000 changes in a row
    /// came between, or the value could not be read. With encryption also `MutateError::Decrypt` where
    /// the value does not decrypt. None of these changes anything. After an error that leaves open whether
    /// the change happened, get the value.
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<SwapOutcome, MutateError> {
        self.swap(key, expected, Some(value))
    }

    /// Removes `key` if its value is `expected`: a [`Client::compare_and_swap`] to absence, with the same guarantee and
    /// cost. [`SwapOutcome::Swapped`]: the key is removed.
    ///
    /// It may be repeated after [`MutateError::Deadline`] or [`MutateError::ServerGone`], if nobody puts the same value
    /// again meanwhile.
    ///
    /// # Errors
    /// As [`Client::compare_and_swap`], and [`MutateError::OldServer`] from a server that does not know this request
    /// yet.
    pub fn remove_if(&mut self, key: &[u8], expected: &[u8]) -> Result<SwapOutcome, MutateError> {
        self.swap(key, expected, None)
    }

    /// A compare-and-swap between any two states of a key, where `None` is absence. From a value, it is
    /// [`Client::compare_and_swap`] or [`Client::remove_if`]. From absence to a value, it is [`Client::insert`], with
    /// [`SwapOutcome::Differs`] if the key is there. From absence to absence, it is a look, by READs.
    ///
    /// # Errors
    /// As these calls.
    pub fn compare_exchange(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<SwapOutcome, MutateError> {
        let is_absent = match (expected, value) {
            (Some(expected), value) => return self.swap(key, expected, value),
            (None, Some(value)) => self.insert(key, value)? == PutOutcome::Inserted,
            (None, None) => self.look(key)?.is_none(),
        };
        Ok(if is_absent { SwapOutcome::Swapped } else { SwapOutcome::Differs })
    }

    /// Many of [`Client::compare_exchange`]. Returns one answer per key, in order. Costs what [`Client::put_many`]
    /// costs, and is not a transaction either. If the client has to look itself (expected values of more than 4,080
    /// bytes, absence both ways, encryption), it makes all of them one by one.
    ///
    /// # Errors
    /// As [`Client::put_many`], and as [`Client::compare_exchange`] for errors that are not answers of a table.
    #[expect(clippy::type_complexity, reason = "a key, and its value before and after")]
    pub fn compare_exchange_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        swaps: &[(K, Option<V>, Option<V>)],
    ) -> Result<Vec<Result<SwapOutcome, PutError>>, MutateError> {
        let swaps: Vec<(&[u8], Option<&[u8]>, Option<&[u8]>)> = swaps
            .iter()
            .map(|(key, expected, value)| {
                (key.as_ref(), expected.as_ref().map(V::as_ref), value.as_ref().map(V::as_ref))
            })
            .collect();
        let is_compared_here = |(_, expected, value): &(&[u8], Option<&[u8]>, Option<&[u8]>)| match expected {
            Some(expected) => expected.len() > FRAME_VALUE_MAX,
            None => value.is_none(),
        };
        if self.options.encryption.is_some() || swaps.iter().any(is_compared_here) {
            let one = |(key, expected, value)| match self.compare_exchange(key, expected, value) {
                Ok(outcome) => Ok(Ok(outcome)),
                Err(error) => error.rejection().map(Err).ok_or(error),
            };
            return swaps.into_iter().map(one).collect();
        }
        let requests: Vec<_> = swaps
            .into_iter()
            .filter_map(|(key, expected, value)| match (expected, value) {
                (Some(expected), Some(value)) => Some(Request::Swap { key, expected, value }),
                (Some(expected), None) => {
                    Some(Request::RemoveIf { key, expected: Expected::Value(expected) })
                }
                (None, Some(value)) => Some(Request::Put { options: PutMode::Insert.into(), key, value }),
                (None, None) => None,
            })
            .collect();
        let answer = |reply| match reply {
            Reply::Swapped(outcome) => Some(outcome),
            Reply::Put(Ok(PutOutcome::Inserted)) => Some(Ok(SwapOutcome::Swapped)),
            Reply::Put(Ok(_)) => Some(Ok(SwapOutcome::Differs)),
            Reply::Put(Err(error)) => Some(Err(error)),
            _ => None,
        };
        let mut answers = vec![None; requests.len()];
        self.ask_each_until_free(&requests, ReplyTells::Outcomes, answer, &mut |nth, answer| {
            answers[nth] = Some(answer);
        })?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// A compare-and-swap to a value, or to absence.
    fn swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: Option<&[u8]>,
    ) -> Result<SwapOutcome, MutateError> {
        if let Some(encryption) = self.options.encryption.clone() {
            return self.swap_decrypted(&encryption, key, expected, value);
        }
        let deadline = Instant::now() + self.options.deadline;
        if expected.len() > FRAME_VALUE_MAX {
            return self.swap_seen(key, expected, value, deadline);
        }
        self.swap_stored(key, Expected::Value(expected), value, deadline)
    }

    /// Compares and swaps values as they are stored.
    pub(super) fn swap_stored(
        &mut self,
        key: &[u8],
        expected: Expected<'_>,
        value: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<SwapOutcome, MutateError> {
        let request = match (expected, value) {
            (expected, None) => Request::RemoveIf { key, expected },
            (Expected::Value(expected), Some(value)) => Request::Swap { key, expected, value },
            (Expected::Extent(expected), Some(value)) => Request::SwapExtent { key, expected, value },
        };
        match self.ask_until_free(&request, deadline)? {
            Reply::Swapped(Ok(outcome)) => Ok(outcome),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }

    /// Gives the entry of `key` another end: it lives for `ttl` from now on, or without one as an entry that is put without a
    /// time. Its value and its number ([`Client::life`]) stay. Returns whether it is there. 1 round trip to the server.
    ///
    /// It may be repeated after any error.
    ///
    /// # Errors
    /// As [`Client::put_with`]; and [`MutateError::OldServer`] from a server of a version before this.
    pub fn touch(&mut self, key: &[u8], ttl: Option<Duration>) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Touch { key, ttl }, deadline)? {
            Reply::Put(outcome) => Ok(outcome? == PutOutcome::Updated),
            _ => Err(self.unexpected().into()),
        }
    }

    /// Removes `key`. Returns whether it was present.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Remove { key }, deadline)? {
            Reply::Removed(there) => Ok(there?),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected().into()),
        }
    }

    /// Inserts or updates many keys. Returns one answer per key, in order: a key that cannot be put
    /// does not stop the others. Requests are sent ahead of the replies, up to 512 of them: a batch
    /// takes 1 round trip on shm, over verbs 1 for some dozens of keys, and 1 for each MiB of long values.
    /// It is not a transaction: each put takes effect by itself, in the order of the pairs. But a put that waits for
    /// memory longer than half of [`ClientOptions::deadline`](crate::ClientOptions::deadline) takes effect after the
    /// others, or, if its key comes again in the batch, ends in [`PutError::HeapBusy`].
    ///
    /// # Errors
    /// [`MutateError`] when the connection failed, or no answer came for as long as
    /// [`ClientOptions::deadline`](crate::ClientOptions::deadline): some of the changes may have happened.
    /// [`Client::put_many_with`] tells which were answered before.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, MutateError> {
        self.put_each(PutMode::Upsert, pairs)
    }

    /// As [`Client::put_many`], but only inserts, as [`Client::insert`].
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, MutateError> {
        self.put_each(PutMode::Insert, pairs)
    }

    /// As [`Client::put_many`], but only updates, as [`Client::update`].
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, MutateError> {
        self.put_each(PutMode::Update, pairs)
    }

    /// Removes many keys. Returns for each whether it was present, in order. Costs what [`Client::put_many`] costs, and
    /// is not a transaction either.
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn remove_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
    ) -> Result<Vec<Result<bool, PutError>>, MutateError> {
        let mut answers = Vec::with_capacity(keys.len());
        self.remove_many_with(keys, |_, there| answers.push(there))?;
        Ok(answers)
    }

    /// As [`Client::put_many`], with these options for all ([`PutMode`], or [`PutOptions`] with a time to live). Calls
    /// `each` with the number of each pair and its answer, as the answers come, mostly in the order of the pairs. So
    /// after an error it is known which were answered. Of the other pairs, any may have been put.
    ///
    /// ```
    /// # use oneread::{Address, Client, Config, PutMode, Server, ServerConfig, TableSize};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let address = Address::Shm(dir.path().join("s"));
    /// # let server = Server::start(ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100))))?;
    /// # let mut client = Client::connect(&address)?;
    /// let mut done = 0;
    /// let pairs = [("a", "1"), ("b", "2")];
    /// let ended = client.put_many_with(PutMode::Upsert, &pairs, |_, put| {
    ///     done += usize::from(put.is_ok());
    /// });
    /// assert!(ended.is_ok() && done == 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn put_many_with<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        options: impl Into<PutOptions>,
        pairs: &[(K, V)],
        mut each: impl FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        let options = options.into();
        let pairs = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref(), options));
        self.put_each_by(pairs, &mut each)
    }

    /// As [`Client::put_many_with`], with options for each pair: entries that end at several times, say.
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn put_many_by<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        puts: &[(K, V, PutOptions)],
        mut each: impl FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        let puts = puts.iter().map(|(key, value, options)| (key.as_ref(), value.as_ref(), *options));
        self.put_each_by(puts, &mut each)
    }

    /// As [`Client::remove_many`], but calls `each` with the number of each key, and whether it was
    /// present, as [`Client::put_many_with`] does.
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn remove_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Result<bool, PutError>),
    ) -> Result<(), MutateError> {
        let requests = keys.iter().map(|key| Request::Remove { key: key.as_ref() });
        let answer = |reply| match reply {
            Reply::Removed(there) => Some(there),
            Reply::Put(Err(error)) => Some(Err(error)),
            _ => None,
        };
        self.ask_each(requests, BATCH, answer, each)
    }

    fn put_each<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        mode: PutMode,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, MutateError> {
        let mut answers = vec![None; pairs.len()];
        self.put_many_with(mode, pairs, |nth, answer| answers[nth] = Some(answer))?;
        Ok(answers.into_iter().flatten().collect())
    }

    fn put_each_by<'a>(
        &mut self,
        puts: impl Iterator<Item = (&'a [u8], &'a [u8], PutOptions)> + Clone,
        each: &mut dyn FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        match self.options.encryption.clone() {
            Some(encryption) => self.put_each_encrypted(&encryption, puts, each),
            None => self.put_each_stored(puts, each),
        }
    }

    /// Puts values as they are to be stored.
    pub(super) fn put_each_stored<'a>(
        &mut self,
        puts: impl Iterator<Item = (&'a [u8], &'a [u8], PutOptions)>,
        each: &mut dyn FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        let puts: Vec<_> = puts.map(|(key, value, options)| Request::Put { options, key, value }).collect();
        let answer = |reply| match reply {
            Reply::Put(answer) => Some(answer),
            _ => None,
        };
        self.ask_each_until_free(&puts, ReplyTells::Outcomes, answer, each)
    }

    /// Makes changes of keys. Repeats those whose memory still waits for readers: they come after the others, and only
    /// if they are the last changes of their keys.
    pub(super) fn ask_each_until_free<A>(
        &mut self,
        changes: &[Request<'_>],
        told: ReplyTells,
        answer: impl Fn(Reply) -> Option<Result<A, PutError>> + Copy,
        each: &mut dyn FnMut(usize, Result<A, PutError>),
    ) -> Result<(), MutateError> {
        let batch = match told {
            ReplyTells::Outcomes => BATCH,
            ReplyTells::Values => BATCH_TOLD,
        };
        let mut busy = Vec::new();
        let mut asked = self.ask_each(changes.iter().copied(), batch, answer, |nth, answer| match answer {
            Err(error @ PutError::HeapBusy { .. }) => busy.push((nth, error)),
            answer => each(nth, answer),
        });
        if busy.is_empty() {
            return asked;
        }
        let last: FxHashMap<_, _> = keys_of(changes).map(|(nth, key)| (key, nth)).collect();
        let is_last = |nth| keys_of(&changes[nth..=nth]).all(|(_, key)| last[key] == nth);
        let (mut waiting, mut ended): (Vec<_>, Vec<_>) = busy.into_iter().partition(|(nth, _)| is_last(*nth));
        let within = self.options.deadline;
        let mut wait = HeapWait::new(Instant::now() + within);
        while asked.is_ok() && !waiting.is_empty() && wait.again() {
            let again = std::mem::take(&mut waiting);
            let before = again.len();
            let requests = again.iter().map(|(nth, _)| changes[*nth]);
            asked = self.ask_each(requests, batch, answer, |n, answer| match answer {
                Err(error @ PutError::HeapBusy { .. }) => waiting.push((again[n].0, error)),
                answer => each(again[n].0, answer),
            });
            if waiting.len() < before {
                wait.renew(within);
            }
        }
        ended.append(&mut waiting);
        for (nth, error) in ended {
            let error = wait.in_all(error);
            self.stats.changes.count_final(&changes[nth], &Reply::Put(Err(error.clone())));
            each(nth, Err(error));
        }
        self.publish();
        asked
    }

    /// Makes requests, as many ahead of their replies as may be, and calls `each` with the number of each
    /// and its answer. `answer` is `None` for a reply that does not belong to such a request.
    fn ask_each<'a, A>(
        &mut self,
        requests: impl Iterator<Item = Request<'a>>,
        batch: usize,
        answer: impl Fn(Reply) -> Option<A>,
        mut each: impl FnMut(usize, A),
    ) -> Result<(), MutateError> {
        let mut requests = requests.peekable();
        let (mut nth, mut replies) = (0, Vec::with_capacity(batch));
        while requests.peek().is_some() {
            let now: Vec<_> = requests.by_ref().take(batch).collect();
            let asked = self.converse(&now, &mut Deadline::within(self.options.deadline), &mut replies);
            for reply in replies.drain(..) {
                each(nth, answer(reply).ok_or_else(|| self.unexpected())?);
                nth += 1;
            }
            asked?;
        }
        Ok(())
    }

    fn put_one(&mut self, options: PutOptions, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        if let Some(encryption) = &self.options.encryption {
            let stored = encryption.encrypt(key, value)?;
            return self.put_stored(options, key, &stored).map_err(encrypted::plain_error);
        }
        self.put_stored(options, key, value)
    }

    /// Puts a value as it is to be stored.
    fn put_stored(
        &mut self,
        options: PutOptions,
        key: &[u8],
        value: &[u8],
    ) -> Result<PutOutcome, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask_until_free(&Request::Put { options, key, value }, deadline)? {
            Reply::Put(answer) => Ok(answer?),
            _ => Err(self.unexpected().into()),
        }
    }
}

/// The number and the key of each change.
fn keys_of<'a>(changes: &[Request<'a>]) -> impl Iterator<Item = (usize, &'a [u8])> {
    changes.iter().enumerate().filter_map(|(nth, change)| match change {
        Request::Put { key, .. }
        | Request::Part { key, .. }
        | Request::Swap { key, .. }
        | Request::RemoveIf { key, .. } => Some((nth, *key)),
        _ => None,
    })
}
