//! Scans: all keys, by requests to the server.

use super::Client;
use super::error::FeedError;
use crate::outcome::PutError;
use crate::wire::{FeedReply, FeedRequest, Reply, Request, ScannedBody, SentKey, SentValue};
use std::collections::VecDeque;
use std::time::Instant;

/// Where a scan goes on: bytes of the server, which stay valid as long as its table, for its next server, too. They may
/// be stored, and given to another client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    table: u64,
    /// Empty at the beginning. `None` at the end.
    rest: Option<Vec<u8>>,
}

impl ScanCursor {
    /// The bytes of the cursor.
    pub fn to_bytes(&self) -> Vec<u8> {
        let end = u8::from(self.rest.is_none());
        [&self.table.to_le_bytes()[..], &[end], self.rest.as_deref().unwrap_or_default()].concat()
    }

    /// A cursor with bytes of [`ScanCursor::to_bytes`].
    ///
    /// # Errors
    /// [`FeedError::Cursor`] for bytes that cannot be a cursor. The server finds all other mistakes.
    pub fn from_bytes(bytes: &[u8]) -> Result<ScanCursor, FeedError> {
        let parts =
            bytes.split_first_chunk::<8>().and_then(|(table, rest)| Some((table, rest.split_first()?)));
        let (table, rest) = match parts {
            Some((table, (0, rest))) if rest.len() <= 512 => (table, Some(rest.to_vec())),
            Some((table, (1, []))) => (table, None),
            _ => return Err(FeedError::Cursor { given: bytes.len() }),
        };
        Ok(ScanCursor { table: u64::from_le_bytes(*table), rest })
    }
}

/// A key that a scan has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScannedKey {
    /// The key.
    pub key: Vec<u8>,
    /// Its value, if values were asked for.
    pub value: Option<Vec<u8>>,
}

/// A scan of all keys of a table, in no order. [`Client::scan`] begins it.
#[derive(Debug)]
pub struct Scan<'c> {
    client: &'c mut Client,
    prefix: Vec<u8>,
    values: bool,
    cursor: ScanCursor,
    /// Keys of the last reply that were not given yet.
    ready: VecDeque<ScannedKey>,
}

impl Client {
    /// Begins a scan of all keys.
    ///
    /// A key that is there throughout is shown exactly once, whatever moves, grows or shrinks meanwhile, with a value
    /// that it has at an instant of the scan. A key that comes or goes meanwhile is shown once or not at all.
    ///
    /// The server looks at the homes of 64 slots at a time, under their locks, for some microseconds, and sends what it
    /// has seen: 1 round trip for up to 60 KiB of keys and values, over verbs 4 KiB. It keeps nothing between two
    /// requests. The client gets values that are not in their slots by itself.
    pub fn scan(&mut self) -> Scan<'_> {
        let (cursor, ready) = (ScanCursor { table: 0, rest: Some(Vec::new()) }, VecDeque::new());
        Scan { client: self, prefix: Vec::new(), values: false, cursor, ready }
    }

    /// Asks for keys, or for changes.
    pub(super) fn ask_feed(&mut self, request: FeedRequest<'_>) -> Result<FeedReply, FeedError> {
        let (FeedRequest::Scan { prefix, .. } | FeedRequest::Changes { prefix, .. }) = request;
        let (given, max) = (prefix.len(), self.geometry().key_max());
        if given > max {
            return Err(FeedError::PrefixLength { given, max });
        }
        let reply = self.ask(&Request::Feed(request), Instant::now() + self.options.deadline)?;
        self.feed_reply(reply)
    }

    /// What a reply says to a request for keys, or for changes.
    pub(super) fn feed_reply(&mut self, reply: Reply) -> Result<FeedReply, FeedError> {
        match reply {
            Reply::Feed(FeedReply::Refused(why)) => {
                Err(FeedError::Refused { address: self.address.clone(), why })
            }
            Reply::Feed(reply) => Ok(reply),
            // It was not sent.
            Reply::Put(Err(PutError::OldServer)) => {
                Err(FeedError::Unsupported { address: self.address.clone() })
            }
            _ => Err(self.unexpected().into()),
        }
    }

    /// Whether values are stored encrypted.
    pub(super) fn encrypts(&self) -> bool {
        self.options.encryption.is_some()
    }

    /// The value of a key that the server sent: `None` if the key has gone since.
    pub(super) fn sent_value(&mut self, key: &SentKey<'_>) -> Result<Option<Option<Vec<u8>>>, FeedError> {
        Ok(match key.value {
            SentValue::None => Some(None),
            SentValue::Here(value) => Some(Some(self.decrypt_sent(key.key, value.to_vec())?)),
            SentValue::Elsewhere => self.get(key.key)?.map(Some),
        })
    }
}

impl Scan<'_> {
    /// Shows only keys that begin with this.
    #[must_use]
    pub fn prefix(self, prefix: &[u8]) -> Self {
        Scan { prefix: prefix.to_vec(), ..self }
    }

    /// Brings values, too.
    #[must_use]
    pub fn values(self, values: bool) -> Self {
        Scan { values, ..self }
    }

    /// Continues where another scan stood. It should have asked for the same keys.
    #[must_use]
    pub fn from(self, cursor: ScanCursor) -> Self {
        Scan { cursor, ready: VecDeque::new(), ..self }
    }

    /// Where a scan continues that shows the keys behind those of the last reply: all that
    /// [`next_batch`](Scan::next_batch) has not shown.
    pub fn cursor(&self) -> ScanCursor {
        self.cursor.clone()
    }

    /// The keys of the next reply, which may be none. If the iterator has not shown all keys of the last reply, those
    /// first. `None` when no key is left.
    ///
    /// # Errors
    /// [`FeedError`]. The scan can go on.
    pub fn next_batch(&mut self) -> Result<Option<Vec<ScannedKey>>, FeedError> {
        if !self.ready.is_empty() {
            return Ok(Some(self.ready.drain(..).collect()));
        }
        let ScanCursor { table, rest: Some(cursor) } = &self.cursor else { return Ok(None) };
        let (values, prefix) = (self.values, &self.prefix[..]);
        let request = FeedRequest::Scan { table: *table, values, prefix, cursor };
        let FeedReply::Scanned(body) = self.client.ask_feed(request)? else {
            return Err(self.client.unexpected().into());
        };
        let Some(body) = ScannedBody::of(&body) else { return Err(self.client.unexpected().into()) };
        let mut keys = Vec::new();
        for key in body.looks.iter().flat_map(|look| &look.keys) {
            if let Some(value) = self.client.sent_value(key)? {
                keys.push(ScannedKey { key: key.key.to_vec(), value });
            }
        }
        let cursor = body.looks.last().map_or(&[][..], |look| look.cursor);
        let rest = (!cursor.is_empty()).then(|| cursor.to_vec());
        self.cursor = ScanCursor { table: body.table, rest };
        Ok(Some(keys))
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<ScannedKey, FeedError>;

    fn next(&mut self) -> Option<Result<ScannedKey, FeedError>> {
        while self.ready.is_empty() {
            match self.next_batch() {
                Ok(Some(keys)) => self.ready = keys.into(),
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
