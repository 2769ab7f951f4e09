//! What the server keeps of a client from one request to the next: what it may do, and a value that it
//! uploads.

use crate::index::{ExtentDraft, Index, KeyPin, OwnerClaim, OwnerSession, StartSession, Upload};
use crate::layout::extent::Expected;
use crate::outcome::{PutError, PutOptions};
use crate::verbs::Token;
use crate::wire::{self, Reply, Request};
use std::time::Duration;

/// Most pins of a client at a time.
const PINS_MAX: u32 = 1 << 12;

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Read the table.
    Read,
    /// Change it, too.
    Change,
}

impl Role {
    /// What a client over a network may do, and the token that it has proven to know: the one for changes, or the one for readers.
    /// That is of no use where it is empty, because everybody knows the empty one. `None`: it knows neither.
    pub fn proven<'t>(
        change: &'t Token,
        read: &'t Token,
        mut knows: impl FnMut(&Token) -> bool,
    ) -> Option<(Role, &'t Token)> {
        if knows(change) {
            Some((Role::Change, change))
        } else if !read.is_empty() && knows(read) {
            Some((Role::Read, read))
        } else {
            None
        }
    }
}

/// A client, as its requests are answered.
#[derive(Debug)]
pub(crate) struct Caller {
    role: Role,
    upload: UploadState,
    /// What it has pinned. The pins end with it.
    pins: Vec<KeyPin>,
    /// Bytes of a reply to it.
    reply_bytes: usize,
    /// Whose what it puts is, if it is an owner.
    owner: Option<OwnerSession>,
    /// Whose puts in two steps end with it, if it has started any.
    starts: Option<StartSession>,
}

/// A value that a client uploads. There is one at a time, so the memory that clients hold without a slot
/// that names it is at most one of the longest values for each.
#[derive(Debug, Default)]
enum UploadState {
    /// Nothing is uploaded, or it was refused: what follows of it is answered so, without effect.
    #[default]
    None,
    /// It is under way. Dropped, its memory is free again.
    Begun {
        /// The key that it is for.
        key: Box<[u8]>,
        value: Upload,
    },
}

impl Caller {
    /// A client that uploads nothing yet.
    pub fn new(role: Role) -> Caller {
        Caller {
            role,
            upload: UploadState::None,
            pins: Vec::new(),
            reply_bytes: 0,
            owner: None,
            starts: None,
        }
    }

    /// The same client, where replies may have so many bytes.
    pub fn with_replies_of(self, reply_bytes: usize) -> Caller {
        Caller { reply_bytes, ..self }
    }

    /// Bytes of keys or changes that a reply has room for.
    pub fn feed_room(&self) -> usize {
        wire::feed_room(self.reply_bytes)
    }

    /// Bytes that the server has in its memory for the client, beside its table's: pins.
    pub fn held_bytes(&self) -> usize {
        /// Of the pin itself, and of the note that its key is pinned.
        const PIN_BYTES: usize = size_of::<KeyPin>() + 32;
        self.pins.len() * PIN_BYTES
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// The owner's session that it is.
    pub fn owner(&self) -> Option<&OwnerSession> {
        self.owner.as_ref()
    }

    /// It is a session of this owner from now on. The reply tells the owner's tenure.
    pub fn be_owner(&mut self, index: &Index, number: u16, claim: OwnerClaim, absent_for: Duration) -> Reply {
        match index.owner_by(number, claim, absent_for) {
            Ok(session) => {
                let tenure = session.tenure();
                self.owner = Some(session);
                Reply::Value(Some(tenure.to_le_bytes().to_vec()))
            }
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Starts a put in two steps.
    pub fn put_start(&mut self, index: &Index, key: &[u8], len: u32, within: Duration) -> Reply {
        let session = match self.starts.take().map_or_else(|| index.start_session(), Ok) {
            Ok(session) => self.starts.insert(session),
            Err(error) => return Reply::Put(Err(error)),
        };
        match index.put_start(session, key, len as usize, within) {
            Ok(ticket) => Reply::Value(Some(ticket.to_le_bytes().to_vec())),
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Pins a key.
    pub fn pin(&mut self, index: &Index, key: &[u8]) -> Reply {
        if self.pins.len() >= PINS_MAX as usize {
            return Reply::Put(Err(PutError::Pins { max: PINS_MAX }));
        }
        match index.pin(key) {
            Ok(pin) => {
                let is_there = pin.is_some();
                self.pins.extend(pin);
                Reply::Pin(is_there)
            }
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Takes the next bytes of its value.
    pub fn put_piece(&self, index: &Index, key: &[u8], ticket: u64, bytes: &[u8]) -> Reply {
        let Some(session) = &self.starts else { return Reply::Put(Err(PutError::NotStarted)) };
        match index.put_piece(session, key, ticket, bytes) {
            Ok(()) => Reply::Taken,
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Commits it.
    pub fn put_commit(&self, index: &Index, key: &[u8], ticket: u64) -> Reply {
        let Some(session) = &self.starts else { return Reply::Put(Err(PutError::NotStarted)) };
        Reply::Put(index.put_commit(session, key, ticket, self.owner.as_ref()))
    }

    /// Gives it up.
    pub fn put_abort(&self, index: &Index, key: &[u8], ticket: u64) -> Reply {
        let Some(session) = &self.starts else { return Reply::Removed(Ok(false)) };
        Reply::Removed(index.put_abort(session, key, ticket))
    }

    /// Takes a pin back.
    pub fn unpin(&mut self, index: &Index, key: &[u8]) -> Reply {
        let hash = index.geometry().hashed(key).first();
        let its = self.pins.iter().position(|pin| pin.hash() == hash);
        its.into_iter().for_each(|nth| drop(self.pins.swap_remove(nth)));
        Reply::Pin(its.is_some())
    }

    /// Begins an upload, and drops the one before. Does not wait for memory: the thread has other clients.
    pub fn begin(&mut self, index: &Index, key: &[u8], len: u32) -> Reply {
        // First: its memory may be what this one gets.
        self.upload = UploadState::None;
        match index.upload(key, len as usize) {
            Ok(Some(value)) => {
                self.upload = UploadState::Begun { key: key.into(), value };
                Reply::Taken
            }
            // It fits its slot. No oneread client uploads such a value.
            Ok(None) => Reply::Unfit,
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Takes the next bytes of the value.
    pub fn take(&mut self, bytes: &[u8]) -> Reply {
        match &mut self.upload {
            UploadState::Begun { value, .. } if value.write(bytes) => Reply::Taken,
            _ => self.refuse(),
        }
    }

    /// Puts the value, all of which must be there.
    pub fn put(&mut self, index: &Index, key: &[u8], options: PutOptions) -> Reply {
        match self.whole(key) {
            Some(draft) => Reply::Put(index.put_draft(key, draft, options, self.owner.as_ref())),
            None => self.refuse(),
        }
    }

    /// Puts it if the key's value is the expected one.
    pub fn swap(&mut self, index: &Index, key: &[u8], expected: Expected<'_>) -> Reply {
        match self.whole(key) {
            Some(draft) => Reply::Swapped(index.swap_draft(key, expected, draft)),
            None => self.refuse(),
        }
    }

    pub fn drop_upload(&mut self) -> Reply {
        self.refuse();
        Reply::Taken
    }

    /// The value, if it is whole, and for this key.
    fn whole(&mut self, key: &[u8]) -> Option<ExtentDraft> {
        match std::mem::take(&mut self.upload) {
            UploadState::Begun { key: begun, value } if *begun == *key => value.whole(),
            _ => None,
        }
    }

    fn refuse(&mut self) -> Reply {
        self.upload = UploadState::None;
        Reply::Unfit
    }
}

impl Request<'_> {
    /// Whether it is part of an upload.
    pub(super) fn is_of_upload(&self) -> bool {
        matches!(
            self,
            Request::UploadBegin { .. }
                | Request::UploadPiece { .. }
                | Request::UploadPut { .. }
                | Request::UploadSwap { .. }
                | Request::UploadDrop
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Who may do what by which token: of an empty one for readers, nobody is a reader.
    #[test]
    fn an_empty_token_makes_no_reader() {
        let [none, change, read] = ["", "for changes", "for readers"].map(Token::new);
        let role = |change, read, known: &Token| {
            Role::proven(change, read, |token| token == known).map(|(role, _)| role)
        };
        for (tokens, known, expected) in [
            ((&change, &none), &none, None),
            ((&change, &none), &read, None),
            ((&change, &none), &change, Some(Role::Change)),
            ((&change, &read), &none, None),
            ((&change, &read), &read, Some(Role::Read)),
            ((&change, &read), &change, Some(Role::Change)),
            ((&none, &none), &none, Some(Role::Change)),
            ((&none, &none), &read, None),
        ] {
            assert_eq!(role(tokens.0, tokens.1, known), expected, "{tokens:?} {known:?}");
        }
        let (_, known) = Role::proven(&change, &read, |token| *token == read).unwrap();
        assert_eq!(*known, read, "the server proves to know this one");
    }
}
