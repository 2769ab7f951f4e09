//! GETs: by READs, without the server; and, for comparison, by the server.

use super::error::{AskError, GetError};
use super::handle::Handle;
use super::{Client, ServerPath, on_path};
use crate::client::values::Values;
use crate::outcome::{KeyError, KeyLengthError, PutError};
use crate::reader::{Answers, Called, Present, StoredAnswer, in_order};
use crate::sink::{AnySink, LengthSink, LivedSink, PartSink, Sink};
use crate::wire::{Reply, Request};
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// The outcome of one key of a batch: its value, or `None` if it is absent.
pub type BatchAnswer<'a> = Result<Option<&'a [u8]>, KeyError>;

/// `each`, which also stores in `broken_off` the value with which it breaks off.
#[inline]
fn noting<B>(
    broken_off: &mut ControlFlow<B>,
    mut each: impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<B>,
) -> impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<()> {
    move |number, answer| match each(number, answer) {
        ControlFlow::Continue(()) => ControlFlow::Continue(()),
        ControlFlow::Break(with) => {
            *broken_off = ControlFlow::Break(with);
            ControlFlow::Break(())
        }
    }
}

impl Client {
    /// Returns the value of `key`. Usually 1 READ and 1 round trip.
    ///
    /// # Errors
    /// [`GetError`]. Absence is `Ok(None)`, not an error.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Writes the value of `key` into `value`, a [`Sink`]. A vector's contents are replaced, and the outcome is whether
    /// the key was found. It allocates only if the vector is too small. For memory of a given length, use a
    /// [`SliceSink`](crate::sink::SliceSink).
    ///
    /// # Errors
    /// As [`Client::get`]. Then the content of `value` has no meaning.
    #[inline]
    pub fn get_into<S: Sink>(&mut self, key: &[u8], value: &mut S) -> Result<S::Outcome, GetError> {
        if self.options.encryption.is_some() {
            return self.get_decrypted_into(key, value);
        }
        self.get_stored(key, value)
    }

    /// Like `get_into`, for the value as it is stored.
    #[inline]
    pub(super) fn get_stored<S: Sink>(&mut self, key: &[u8], value: &mut S) -> Result<S::Outcome, GetError> {
        let found = match &mut self.path {
            ServerPath::Shm(handle) => handle.get_into(&mut self.stats, &mut self.direct, key, value),
            ServerPath::Tcp(handle) => {
                let is_there = handle.get_into(&mut self.stats, key, &mut AnySink::of(value));
                is_there.map(|is_there| value.outcome(is_there))
            }
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(handle) => {
                let is_there = handle.get_into(&mut self.stats, key, &mut AnySink::of(value));
                is_there.map(|is_there| value.outcome(is_there))
            }
        };
        self.count_get(found)
    }

    /// Replaces the contents of `part` with the bytes `range` of the value of `key`. Bytes beyond the
    /// value's end are left out. Returns the length of the whole value; `None` if the key is absent.
    ///
    /// A value in its slot costs what [`Client::get_into`] costs. For a longer one, one more READ brings just these
    /// bytes. The answer is of one version of the value, and two calls may see two: a value that is read in several
    /// parts should carry a number.
    ///
    /// With encryption (`ClientOptions::encryption`) the whole value is read and decrypted first, because it is
    /// encrypted in one piece: no byte of it is trusted before the last one is there. So a part costs what the whole
    /// costs, and an error leaves `part` empty.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_range(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, GetError> {
        if self.options.encryption.is_some() {
            return self.get_range_decrypted(key, range, part);
        }
        if self.options.exact_expiry {
            return self.get_stored(key, &mut PartSink::new(range, part));
        }
        let found = on_path!(&mut self.path, handle => {
            let found = handle.read(&mut self.stats, |reader| reader.get_range(key, range.clone(), part));
            if matches!(found, Ok(Some(_))) {
                handle.note(key);
            }
            found
        });
        self.count_get(found)
    }

    /// Returns the length of the value of `key`, `None` if the key is absent. Usually 1 READ, of the slot's window: a
    /// value that is not in its slot is not read. With encryption, this is the length of the decrypted value. It is
    /// computed from the stored value's length. If the value would not decrypt, it has no meaning.
    ///
    /// # Errors
    /// As [`Client::get`]. With encryption, [`GetError::Decrypt`] if the stored value is too short for an
    /// encrypted one.
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, GetError> {
        let found = if self.options.exact_expiry {
            self.get_stored(key, &mut LengthSink::default())?
        } else {
            let found = on_path!(&mut self.path, handle => {
                handle.read(&mut self.stats, |reader| reader.value_len(key))
            });
            self.count_get(found)?
        };
        if self.options.encryption.is_some() {
            return found.map(|stored| self.plain_len(stored)).transpose();
        }
        Ok(found)
    }

    /// Returns whether `key` is present. The cost is that of [`Client::get_into`]. The value is not
    /// decrypted.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, GetError> {
        self.get_stored(key, &mut Vec::new())
    }

    /// Returns the outcomes of many keys, in order: each key's value, `None` if it is absent, or an
    /// error if the table cannot hold such a key, or if the value does not decrypt. READs are
    /// pipelined: as many are in flight as the fabric allows, and all that are ready share one
    /// doorbell. Usually 1 READ for each key.
    ///
    /// # Errors
    /// As [`Client::get`], but for the errors of single keys, for the first key that fails.
    #[expect(clippy::type_complexity, reason = "one outcome for each key, as `put_many` has")]
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
    ) -> Result<Vec<Result<Option<Vec<u8>>, KeyError>>, GetError> {
        let mut values = vec![Ok(None); keys.len()];
        self.get_all(keys, |number, answer| values[number] = answer.map(|value| value.map(<[u8]>::to_vec)))?;
        Ok(values)
    }

    /// Replaces the contents of `values` with the values of many keys. Allocates only if `values` is
    /// too small. [`Values::refused`] names the keys without an outcome.
    ///
    /// # Errors
    /// As [`Client::get_many`]. By then, `values` has some of the values.
    pub fn get_many_into<K: AsRef<[u8]>>(&mut self, keys: &[K], values: &mut Values) -> Result<(), GetError> {
        values.reset(keys.len());
        if self.options.encryption.is_some() {
            return self.get_all(keys, |number, answer| values.set(number, answer));
        }
        self.get_batch_stored(keys, values)
    }

    /// Tells which of many keys are present: in bit `n % 64` of word `n / 64` of `present`, whether
    /// `keys[n]` is. Replaces its contents. A key that the table cannot hold is not present. The cost
    /// is that of [`Client::get_many_into`]. Values are not decrypted.
    ///
    /// # Errors
    /// As [`Client::get_many`]. By then, `present` has some of the answers.
    pub fn contains_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        present: &mut Vec<u64>,
    ) -> Result<(), GetError> {
        present.clear();
        present.resize(keys.len().div_ceil(64), 0);
        self.get_batch_stored(keys, &mut Present::new(present))
    }

    /// As [`Client::get_many`], but calls `each` with the index and the outcome of each key, in no particular order,
    /// until `each` breaks off. Returns the value with which it broke off. Over verbs, the READs that are then under
    /// way are waited for. Allocates nothing for the values.
    ///
    /// ```
    /// # use oneread::{Address, Client, Config, GetError, Server, ServerConfig, TableSize};
    /// use std::ops::ControlFlow;
    ///
    /// /// Whether any of these keys is present.
    /// fn any(client: &mut Client, keys: &[&[u8]]) -> Result<bool, GetError> {
    ///     let found = client.get_many_with(keys, |_, value| match value {
    ///         Ok(Some(_)) => ControlFlow::Break(()),
    ///         _ => ControlFlow::Continue(()),
    ///     })?;
    ///     Ok(found.is_break())
    /// }
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let address = Address::Shm(dir.path().join("s"));
    /// # let config = Config::new().size(TableSize::Keys(100));
    /// # let server = Server::start(ServerConfig::new(address.clone(), config))?;
    /// # let mut client = Client::connect(&address)?;
    /// # client.put(b"b", b"")?;
    /// # assert!(any(&mut client, &[b"", b"a", b"b"])? && !any(&mut client, &[b"", b"a"])?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_many`]. By then, `each` may have been called for some of the keys.
    pub fn get_many_with<K: AsRef<[u8]>, B>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, GetError> {
        let mut broken_off = ControlFlow::Continue(());
        self.get_batch(keys, noting(&mut broken_off, each))?;
        Ok(broken_off)
    }

    /// As [`Client::get_many_with`], but calls `each` in the order of the keys. When it breaks off, no more READs are
    /// posted. So it costs little to ask for many keys if only the first ones, up to one that is absent, are needed.
    /// Answers that come before their turn are copied and held back: at most 128.
    ///
    /// ```
    /// # use oneread::{Address, Client, Config, GetError, Server, ServerConfig, TableSize};
    /// use std::ops::ControlFlow;
    ///
    /// /// How many of these keys are present before the first one that is absent.
    /// fn present(client: &mut Client, keys: &[&[u8]]) -> Result<usize, GetError> {
    ///     let found = client.get_many_in_order(keys, |number, value| match value {
    ///         Ok(Some(_)) => ControlFlow::Continue(()),
    ///         _ => ControlFlow::Break(number),
    ///     })?;
    ///     Ok(found.break_value().unwrap_or(keys.len()))
    /// }
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let address = Address::Shm(dir.path().join("s"));
    /// # let config = Config::new().size(TableSize::Keys(100));
    /// # let server = Server::start(ServerConfig::new(address.clone(), config))?;
    /// # let mut client = Client::connect(&address)?;
    /// # client.put(b"a", b"")?;
    /// # client.put(b"b", b"")?;
    /// # client.put(b"d", b"")?;
    /// # assert_eq!(present(&mut client, &[b"a", b"b", b"c", b"d"])?, 2);
    /// # assert_eq!(present(&mut client, &[b"a", b"", b"b"])?, 1);
    /// # assert_eq!(present(&mut client, &[b"a", b"b"])?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_many_with`].
    pub fn get_many_in_order<K: AsRef<[u8]>, B>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, GetError> {
        let mut broken_off = ControlFlow::Continue(());
        let _ = in_order(keys, noting(&mut broken_off, each), |some, each| self.get_batch(some, each))?;
        Ok(broken_off)
    }

    fn get_all<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, BatchAnswer<'_>),
    ) -> Result<(), GetError> {
        let each = |number, answer: BatchAnswer<'_>| {
            each(number, answer);
            ControlFlow::Continue(())
        };
        self.get_batch(keys, each)
    }

    fn get_batch<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        if let Some(encryption) = self.options.encryption.clone() {
            return self.get_batch_decrypted(&encryption, keys, &mut each);
        }
        let each = |number, answer: StoredAnswer<'_>| each(number, answer.map_err(KeyError::from));
        self.get_batch_stored(keys, &mut Called::new(Vec::new(), each))
    }

    /// Like `get_batch`, for values as they are stored.
    pub(super) fn get_batch_stored<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
    ) -> Result<(), GetError> {
        if self.options.exact_expiry {
            return self.get_each_exactly(keys, answers);
        }
        match on_path!(&mut self.path, handle => handle.get_many(keys, answers, &mut self.stats)) {
            Ok(_) => {
                self.publish();
                Ok(())
            }
            Err(error) => Err(self.count_failed_get(error)),
        }
    }

    /// GETs keys one by one. Entries that have come to their end count as absent (V4).
    #[cold]
    fn get_each_exactly<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
    ) -> Result<(), GetError> {
        for (number, key) in keys.iter().enumerate() {
            let flow = match self.get_stored(key.as_ref(), &mut LivedSink::new(answers.sink())) {
                Ok(is_there) => {
                    answers.of_table(self.geometry().generation());
                    answers.landed(number, is_there)
                }
                Err(GetError::KeyLength { given, max }) => {
                    answers.answer(number, Err(KeyLengthError { given, max }))
                }
                Err(error) => return Err(error),
            };
            if flow.is_break() {
                break;
            }
        }
        self.publish();
        Ok(())
    }

    /// Returns the value of `key` as the server looks it up: a two-sided GET, the baseline for [`Client::get`]. No
    /// READ, 1 round trip, and the server's CPU. The request travels as changes do
    /// ([`ClientOptions::requests`](crate::ClientOptions::requests)).
    ///
    /// # Errors
    /// [`GetError`]. The server sends no value of more than 4,080 bytes ([`GetError::LongValue`]). Absence is
    /// `Ok(None)`.
    pub fn get_two_sided(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
        let deadline = Instant::now() + self.options.deadline;
        let stored = match self.ask_for_value(key, deadline)? {
            Ok(stored) => stored,
            Err(PutError::KeyLength { given, max }) => return Err(GetError::KeyLength { given, max }),
            Err(PutError::ValueLength { given, max }) => return Err(GetError::LongValue { given, max }),
            Err(_) => return Err(self.unexpected().into()),
        };
        stored.map(|stored| self.decrypt_sent(key, stored)).transpose()
    }

    /// Asks for a value as it is stored. The server may reject that, or the client on its behalf.
    pub(super) fn ask_for_value(
        &mut self,
        key: &[u8],
        deadline: Instant,
    ) -> Result<Result<Option<Vec<u8>>, PutError>, AskError> {
        match self.ask(&Request::Get { key }, deadline)? {
            Reply::Value(value) => Ok(Ok(value)),
            Reply::Put(Err(error)) => Ok(Err(error)),
            _ => Err(self.unexpected()),
        }
    }
}
