//! Encryption of values by a client that has a key ([`Encryption`]): it stores them encrypted, and decrypts what it
//! reads. Only this file and the calls of it deal with that. Without the feature `encryption` no client has a key, and
//! the compiler leaves all of this out.

use super::Client;
use super::error::{GetError, MutateError};
use super::gets::BatchAnswer;
use super::long::SWAP_ROUNDS_MAX;
use crate::encryption::{DecryptError, Encryption};
use crate::layout::extent::Expected;
use crate::outcome::{PutError, PutOptions, PutOutcome, SwapOutcome};
use crate::reader::{Called, StoredAnswer};
use crate::sink::Sink;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

impl Client {
    /// Inserts or updates many keys. All values are encrypted before anything is sent.
    pub(super) fn put_each_encrypted<'a>(
        &mut self,
        encryption: &Encryption,
        puts: impl Iterator<Item = (&'a [u8], &'a [u8], PutOptions)> + Clone,
        each: &mut dyn FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for (key, value, _) in puts.clone() {
            let start = bytes.len();
            encryption.encrypt_onto(key, value, &mut bytes)?;
            spans.push(start..bytes.len());
        }
        let stored = puts.zip(spans).map(|((key, _, options), span)| (key, &bytes[span], options));
        self.put_each_stored(stored, &mut |nth, answer| each(nth, answer.map_err(plain_rejection)))
    }

    /// A GET into any sink.
    #[cold]
    #[inline(never)]
    pub(super) fn get_decrypted_into<S: Sink>(
        &mut self,
        key: &[u8],
        value: &mut S,
    ) -> Result<S::Outcome, GetError> {
        if let Some(vec) = value.as_vec() {
            let is_found = self.get_decrypted(key, vec)?;
            return Ok(value.outcome(is_found));
        }
        let mut plain = Vec::new();
        let is_found = self.get_decrypted(key, &mut plain)?;
        if !is_found {
            value.put_none();
        } else if value.begin(plain.len()) {
            value.put(&plain);
        }
        Ok(value.outcome(is_found))
    }

    /// A GET that decrypts what it found. Out of line: a client without encryption pays for one branch.
    #[cold]
    #[inline(never)]
    pub(super) fn get_decrypted(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, GetError> {
        let found = self.get_stored(key, value)?;
        if let (true, Some(encryption)) = (found, &self.options.encryption)
            && let Err(error) = encryption.decrypt_in_place(key, value)
        {
            return Err(self.count_failed_get(error.into()));
        }
        Ok(found)
    }

    /// Copies a part of a value, after the whole value was read and decrypted. Returns the value's length.
    pub(super) fn get_range_decrypted(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, GetError> {
        // After an error, nothing of the former content is left.
        part.clear();
        if !self.get_decrypted(key, part)? {
            part.clear();
            return Ok(None);
        }
        let len = part.len();
        part.truncate(range.end);
        part.drain(..range.start.min(part.len()));
        Ok(Some(len))
    }

    /// The length of a value, computed from that of the stored one.
    pub(super) fn plain_len(&mut self, stored: usize) -> Result<usize, GetError> {
        let too_short = || DecryptError::Length { given: stored };
        let plain = stored.checked_sub(Encryption::OVERHEAD).ok_or_else(too_short);
        plain.map_err(|error| self.count_failed_get(error.into()))
    }

    /// Decrypts a stored value that the server has sent.
    pub(super) fn decrypt_sent(&mut self, key: &[u8], mut value: Vec<u8>) -> Result<Vec<u8>, GetError> {
        let Some(encryption) = &self.options.encryption else { return Ok(value) };
        match encryption.decrypt_in_place(key, &mut value) {
            Ok(()) => Ok(value),
            Err(error) => Err(self.count_failed_get(error.into())),
        }
    }

    /// A batch of GETs whose values are decrypted one by one. A value that does not decrypt is its
    /// key's error, and stops no other.
    pub(super) fn get_batch_decrypted<K: AsRef<[u8]>>(
        &mut self,
        encryption: &Encryption,
        keys: &[K],
        each: &mut dyn FnMut(usize, BatchAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        let (mut value, mut undecrypted) = (Vec::new(), 0);
        let mut each = |number: usize, answer: StoredAnswer<'_>| match answer {
            Ok(Some(stored)) => {
                value.clear();
                value.extend_from_slice(stored);
                match encryption.decrypt_in_place(keys[number].as_ref(), &mut value) {
                    Ok(()) => each(number, Ok(Some(&value))),
                    Err(error) => {
                        undecrypted += 1;
                        each(number, Err(error.into()))
                    }
                }
            }
            Ok(None) => each(number, Ok(None)),
            Err(error) => each(number, Err(error.into())),
        };
        let result = self.get_batch_stored(keys, &mut Called::new(Vec::new(), &mut each));
        if undecrypted > 0 {
            self.stats.failures.undecrypted += undecrypted;
            self.publish();
        }
        result
    }

    /// A compare-and-swap by a client that encrypts. No two encrypted values are equal, so the server cannot compare.
    /// The client asks for the stored value, decrypts and compares it, and swaps exactly these stored bytes. If another
    /// change came between, it begins again, because that change may have put the expected value once more: at most
    /// [`SWAP_ROUNDS_MAX`] times, and until the deadline.
    pub(super) fn swap_decrypted(
        &mut self,
        encryption: &Encryption,
        key: &[u8],
        expected: &[u8],
        value: Option<&[u8]>,
    ) -> Result<SwapOutcome, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        let new = value.map(|value| encryption.encrypt(key, value)).transpose()?;
        let mut rounds = 0;
        loop {
            // The server does not send long values. The client reads it.
            let seen = match self.ask_for_value(key, deadline)? {
                Err(PutError::ValueLength { .. }) => self.look(key)?,
                stored => stored?.map(|stored| (stored, None)),
            };
            // The server has just been asked, so this is its geometry. Its rejections do not depend on the present
            // value.
            let max = self.geometry().value_max();
            let lengths = [value.map_or(0, <[u8]>::len), expected.len()];
            for given in lengths.map(|plain| plain + Encryption::OVERHEAD) {
                if given > max {
                    return Err(plain_rejection(PutError::ValueLength { given, max }).into());
                }
            }
            let Some((stored, extent)) = seen else { return Ok(SwapOutcome::Absent) };
            let mut present = stored.clone();
            if let Err(error) = encryption.decrypt_in_place(key, &mut present) {
                self.stats.failures.undecrypted += 1;
                self.publish();
                return Err(error.into());
            }
            if present != expected {
                return Ok(SwapOutcome::Differs);
            }
            let expected_now = extent.map_or(Expected::Value(&stored), Expected::Extent);
            match self.swap_stored(key, expected_now, new.as_deref(), deadline).map_err(plain_error)? {
                SwapOutcome::Differs => rounds += 1,
                outcome => return Ok(outcome),
            }
            if rounds == SWAP_ROUNDS_MAX || Instant::now() >= deadline {
                return Err(MutateError::Busy { rounds });
            }
        }
    }
}

/// The error with the user's lengths. The lengths in the server's error are those of encrypted values.
pub(super) fn plain_error(error: MutateError) -> MutateError {
    match error {
        MutateError::ValueLength { given, max } => {
            plain_rejection(PutError::ValueLength { given, max }).into()
        }
        error => error,
    }
}

fn plain_rejection(error: PutError) -> PutError {
    match error {
        PutError::ValueLength { given: stored, max: stored_max } => {
            let given = stored.saturating_sub(Encryption::OVERHEAD);
            PutError::EncryptedLength { given, stored, stored_max }
        }
        error => error,
    }
}
