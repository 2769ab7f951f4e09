//! The server's state of a client between two requests: its rights, and a value that it uploads. Only a [`Changer`]
//! changes the table.

use super::driver::TableDriver;
use super::held::{ClientMemory, TakenShare};
use super::snapshots::Saver;
use crate::faults::{Rule, obey};
use crate::index::{
    ChangeWaits, ClearPlace, Cleared, ExtentDraft, Index, KeyPin, OwnerClaim, OwnerSession, Patience,
    StartSession, Upload,
};
use crate::layout::extent::Expected;
use crate::outcome::{PutError, PutOptions, PutOutcome};
use crate::part::{PartChange, Tell};
use crate::tls::ServerTls;
use crate::wire::proof::Token;
use crate::wire::{self, Reply};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most pins of a client at a time.
const PINS_MAX: u32 = 1 << 12;
/// Pins for which memory is taken at a time.
const PINS_AT_ONCE: usize = 64;
/// Bytes of an upload that must come within [`ServerConfig::half_open`](super::ServerConfig::half_open) (Q8).
const UPLOAD_STEP: usize = 1 << 16;

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Read the table.
    Read,
    /// Change it, too.
    Change,
}

impl Role {
    /// The rights of a client over a network, and the token that it has proven to know: the one for changes, or the one
    /// for readers. The empty token counts for nothing, because everybody knows it. `None`: the client knows neither.
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

/// What lets clients in: the secret of clients that may change the table, the secret of clients that may read it, and
/// TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub change: Token,
    pub read: Token,
    pub tls: Option<ServerTls>,
}

/// A client, for the code that answers its requests.
#[derive(Debug)]
pub(crate) struct Caller {
    role: Role,
    upload: UploadState,
    /// The client's pins, which end with it.
    pins: Vec<KeyPin>,
    /// The memory for pins, taken for several at a time.
    pin_memory: Vec<TakenShare>,
    /// The most bytes of a reply to the client.
    reply_bytes: usize,
    /// The owner of the entries that the client puts, if it has begun as one.
    owner: Option<OwnerSession>,
    /// The session of its puts in two steps, if it has started any. They end with the client.
    starts: Option<StartSession>,
}

/// A value that a client uploads. A client uploads one value at a time. So the memory that it holds without a slot that
/// names it is at most one of the longest values. Each step of an upload has a time limit (Q8).
#[derive(Debug, Default)]
enum UploadState {
    /// Nothing is uploaded, or the upload was refused. Its further requests are answered so, without effect.
    #[default]
    None,
    /// An upload is under way. When it is dropped, its memory is free again.
    Begun {
        /// The key of the value.
        key: Box<[u8]>,
        value: Upload,
        /// When the last step was done.
        since: Instant,
        /// Bytes that have come since then.
        given: usize,
    },
}

impl Caller {
    /// A client that uploads nothing yet.
    pub fn new(role: Role) -> Caller {
        Caller {
            role,
            upload: UploadState::None,
            pins: Vec::new(),
            pin_memory: Vec::new(),
            reply_bytes: 0,
            owner: None,
            starts: None,
        }
    }

    /// The client, with this limit for replies.
    pub fn with_replies_of(self, reply_bytes: usize) -> Caller {
        Caller { reply_bytes, ..self }
    }

    /// Bytes of keys or changes that fit into a reply.
    pub fn feed_room(&self) -> usize {
        wire::feed_room(self.reply_bytes)
    }

    /// Since when the next bytes of its upload, or its end, are due. `None` if the client uploads nothing (Q8).
    pub fn uploads_since(&self) -> Option<Instant> {
        match &self.upload {
            UploadState::None => None,
            UploadState::Begun { since, .. } => obey(Rule::UploadTime, || Some(*since)),
        }
    }

    fn leave_pin_memory(&mut self) {
        self.pin_memory.truncate(self.pins.len().div_ceil(PINS_AT_ONCE));
    }

    /// The client as one that changes the table. Fails if its role does not allow that, or if another process drives
    /// the table.
    pub fn changer<'c>(&'c mut self, index: &'c Index, driver: TableDriver) -> Result<Changer<'c>, Denied> {
        match (self.role, driver) {
            (Role::Change, TableDriver::Clients) => Ok(Changer { caller: self, index }),
            (Role::Change, TableDriver::Other { .. })
            | (Role::Read, TableDriver::Clients | TableDriver::Other { .. }) => Err(Denied),
        }
    }

    /// The uploaded value, if it is complete, and for this key.
    fn whole(&mut self, key: &[u8]) -> Option<ExtentDraft> {
        match std::mem::take(&mut self.upload) {
            UploadState::Begun { key: begun, value, .. } if *begun == *key => value.whole(),
            UploadState::Begun { .. } | UploadState::None => None,
        }
    }

    /// Keeps an uploaded value whose change waits, for its next try.
    fn keep_while_it_waits(&mut self, key: &[u8], draft: ExtentDraft, waits: &ChangeWaits) {
        if waits.now().is_some() && !waits.has_outcome() {
            let value = Upload::new(draft);
            self.upload = UploadState::Begun { key: key.into(), value, since: Instant::now(), given: 0 };
        }
    }

    /// Drops what the client uploads, if it does.
    pub fn drop_upload(&mut self) {
        self.upload = UploadState::None;
    }

    fn refuse(&mut self) -> Reply {
        self.upload = UploadState::None;
        Reply::Unfit
    }
}

/// A client that may change the table, for one request. It makes every change that clients ask for.
#[derive(Debug)]
pub(crate) struct Changer<'c> {
    caller: &'c mut Caller,
    index: &'c Index,
}

/// The client may only read.
#[derive(Debug)]
pub(crate) struct Denied;

impl Changer<'_> {
    /// Puts a key.
    pub fn put(self, key: &[u8], value: &[u8], options: PutOptions, waits: &ChangeWaits) -> Reply {
        Reply::Put(self.index.try_put(key, value, options, self.caller.owner.as_ref(), waits))
    }

    /// Puts a key if its value is the expected one.
    pub fn swap(self, key: &[u8], expected: Expected<'_>, value: &[u8], waits: &ChangeWaits) -> Reply {
        Reply::Swapped(self.index.try_swap(key, expected, value, waits))
    }

    /// Removes a key.
    pub fn remove(self, key: &[u8], waits: &ChangeWaits) -> Reply {
        Reply::Removed(self.index.try_remove(key, waits))
    }

    /// Removes a key if its value is the expected one.
    pub fn remove_if(self, key: &[u8], expected: Expected<'_>, waits: &ChangeWaits) -> Reply {
        Reply::Swapped(self.index.remove_expected(key, expected, Patience::Tries(waits)))
    }

    /// Changes a part of a value.
    pub fn part(self, key: &[u8], part: PartChange<'_>, tell: Tell, waits: &ChangeWaits) -> Reply {
        let tell = (tell, wire::frame_value_max(self.index.geometry()));
        Reply::Part(self.index.try_part(key, part, tell, self.caller.owner.as_ref(), waits))
    }

    /// Gives an entry another end.
    pub fn touch(self, key: &[u8], ttl: Option<Duration>, waits: &ChangeWaits) -> Reply {
        let touched = |is_there| if is_there { PutOutcome::Updated } else { PutOutcome::Missing };
        Reply::Put(self.index.touch_by(key, ttl, Patience::Tries(waits)).map(touched))
    }

    /// Continues a removal of all keys at a place.
    pub fn clear_on(self, place: [u64; 2], waits: &ChangeWaits) -> Reply {
        /// A client's turn may be twice as long.
        const STEP: Duration = Duration::from_millis(1);
        match self.index.clear_on(ClearPlace(place), STEP, waits) {
            Ok(Cleared { removed, progress_ppm, next }) => {
                let ClearPlace(place) = next.unwrap_or_default();
                Reply::Cleared { removed, progress_ppm: progress_ppm.into(), place }
            }
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Hides all entries of an owner.
    pub fn remove_owner(self, number: u16, waits: &ChangeWaits) -> Reply {
        Reply::Removed(self.index.try_remove_owner(number, waits))
    }

    /// Has segments with few keys merged.
    pub fn shrink(self) -> Reply {
        self.index.shrink();
        Reply::Growth(self.index.growth())
    }

    /// Makes room ahead for this number of keys.
    pub fn grow_for(self, keys: u64) -> Reply {
        self.index.foresee(keys);
        Reply::Growth(self.index.growth())
    }

    /// Has the server begin a snapshot, if it makes snapshots.
    pub(super) fn snapshot(self, saver: Option<&Saver>) -> Reply {
        Reply::Snapshot(saver.map(Saver::ask).unwrap_or_default())
    }

    /// Makes the connection a session of this owner. The reply has the owner's tenure.
    pub fn be_owner(self, number: u16, claim: OwnerClaim, absent_for: Duration) -> Reply {
        match self.index.owner_by(number, claim, absent_for) {
            Ok(session) => {
                let tenure = session.tenure();
                self.caller.owner = Some(session);
                Reply::Value(Some(tenure.to_le_bytes().to_vec()))
            }
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Starts a put in two steps.
    pub fn put_start(self, key: &[u8], (len, within): (u32, Duration), waits: &ChangeWaits) -> Reply {
        let session = match self.caller.starts.take().map_or_else(|| self.index.start_session(), Ok) {
            Ok(session) => self.caller.starts.insert(session),
            Err(error) => return Reply::Put(Err(error)),
        };
        match self.index.try_put_start(session, key, (len as usize, within), waits) {
            Ok(ticket) => Reply::Value(Some(ticket.to_le_bytes().to_vec())),
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Pins a key. Q7: the memory of the pin counts as the connection's.
    pub fn pin(self, memory: &Arc<ClientMemory>, key: &[u8]) -> Reply {
        /// Bytes of a pin, and of the note that its key is pinned.
        const PIN_BYTES: usize = size_of::<KeyPin>() + 32;
        let Changer { caller, index } = self;
        let pins = caller.pins.len();
        let refused = |max: u32| Reply::Put(Err(PutError::Pins { max }));
        if pins >= PINS_MAX as usize {
            return refused(PINS_MAX);
        }
        if pins == caller.pin_memory.len() * PINS_AT_ONCE {
            let Some(taken) = memory.take((PINS_AT_ONCE * PIN_BYTES) as u64) else {
                return refused(pins as u32);
            };
            caller.pin_memory.push(taken);
        }
        let pinned = index.pin(key).map(|pin| {
            let is_there = pin.is_some();
            caller.pins.extend(pin);
            is_there
        });
        caller.leave_pin_memory();
        pinned.map_or_else(|error| Reply::Put(Err(error)), Reply::Pin)
    }

    /// Takes the next bytes of such a put's value.
    pub fn put_piece(self, key: &[u8], ticket: u64, bytes: &[u8]) -> Reply {
        let Some(session) = &self.caller.starts else { return Reply::Put(Err(PutError::NotStarted)) };
        match self.index.put_piece(session, key, ticket, bytes) {
            Ok(()) => Reply::Taken,
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Commits such a put.
    pub fn put_commit(self, key: &[u8], ticket: u64, waits: &ChangeWaits) -> Reply {
        let Some(session) = &self.caller.starts else { return Reply::Put(Err(PutError::NotStarted)) };
        Reply::Put(self.index.try_put_commit(session, key, ticket, self.caller.owner.as_ref(), waits))
    }

    /// Gives such a put up.
    pub fn put_abort(self, key: &[u8], ticket: u64) -> Reply {
        let Some(session) = &self.caller.starts else { return Reply::Removed(Ok(false)) };
        Reply::Removed(self.index.put_abort(session, key, ticket))
    }

    /// Takes a pin back.
    pub fn unpin(self, key: &[u8]) -> Reply {
        let hash = self.index.geometry().hashed(key).first();
        let its = self.caller.pins.iter().position(|pin| pin.hash() == hash);
        its.into_iter().for_each(|nth| drop(self.caller.pins.swap_remove(nth)));
        self.caller.leave_pin_memory();
        Reply::Pin(its.is_some())
    }

    /// Begins an upload, and drops the one before.
    pub fn begin_upload(self, key: &[u8], len: u32, waits: &ChangeWaits) -> Reply {
        // The old upload is dropped first: the new one may get its memory.
        self.caller.upload = UploadState::None;
        match self.index.try_upload(key, len as usize, waits) {
            Ok(Some(value)) => {
                self.caller.upload =
                    UploadState::Begun { key: key.into(), value, since: Instant::now(), given: 0 };
                Reply::Taken
            }
            // The value fits its slot. No oneread client uploads such a value.
            Ok(None) => Reply::Unfit,
            Err(error) => Reply::Put(Err(error)),
        }
    }

    /// Takes the next bytes of the value.
    pub fn take_piece(self, bytes: &[u8]) -> Reply {
        match &mut self.caller.upload {
            UploadState::Begun { value, since, given, .. } if value.write(bytes) => {
                *given += bytes.len();
                if *given >= UPLOAD_STEP {
                    (*since, *given) = (Instant::now(), *given % UPLOAD_STEP);
                }
                Reply::Taken
            }
            UploadState::Begun { .. } | UploadState::None => self.caller.refuse(),
        }
    }

    /// Puts the uploaded value, which must be complete.
    pub fn put_upload(self, key: &[u8], options: PutOptions, waits: &ChangeWaits) -> Reply {
        let Changer { caller, index } = self;
        let Some(mut draft) = caller.whole(key) else { return caller.refuse() };
        let put = index.try_put_draft(key, &mut draft, options, caller.owner.as_ref(), waits);
        caller.keep_while_it_waits(key, draft, waits);
        Reply::Put(put)
    }

    /// Puts the uploaded value if the key's value is the expected one.
    pub fn swap_upload(self, key: &[u8], expected: Expected<'_>, waits: &ChangeWaits) -> Reply {
        let Changer { caller, index } = self;
        let Some(mut draft) = caller.whole(key) else { return caller.refuse() };
        let swapped = index.try_swap_draft(key, expected, &mut draft, waits);
        caller.keep_while_it_waits(key, draft, waits);
        Reply::Swapped(swapped)
    }

    pub fn drop_upload(self) -> Reply {
        self.caller.refuse();
        Reply::Taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn changer<'c>(caller: &'c mut Caller, index: &'c Index) -> Changer<'c> {
        caller.changer(index, TableDriver::Clients).expect("it may change the table")
    }

    /// Q7: pins take of the memory that all connections may hold, in whatever way they are asked for, and give it back.
    #[test]
    fn pins_take_memory() {
        const MOST: u64 = 20_000;
        let (shared, memory) = (super::super::tests::shared(), ClientMemory::new(MOST));
        let index = &shared.index;
        index.put(b"key", b"value", crate::outcome::PutMode::Insert).unwrap();
        let (mut one, mut other) = (Caller::new(Role::Change), Caller::new(Role::Change));
        assert_eq!(changer(&mut one, index).pin(&memory, b"other"), Reply::Pin(false));
        assert_eq!(memory.counts().bytes, 0, "nothing was pinned");
        let (mut pins, mut most) = (0, 0);
        let refused = loop {
            match changer(&mut one, index).pin(&memory, b"key") {
                Reply::Pin(true) => pins += 1,
                refused => break refused,
            }
            let bytes = memory.counts().bytes;
            assert!(bytes >= pins * size_of::<KeyPin>() as u64 && bytes <= MOST, "{pins}: {bytes}");
            most = bytes;
        };
        assert!(pins > 0 && pins < PINS_MAX.into() && pins.is_multiple_of(PINS_AT_ONCE as u64));
        let all = Reply::Put(Err(PutError::Pins { max: pins as u32 }));
        assert_eq!(refused, all, "as many as it may have now");
        assert_eq!(
            changer(&mut other, index).pin(&memory, b"key"),
            Reply::Put(Err(PutError::Pins { max: 0 }))
        );
        assert_eq!(changer(&mut one, index).unpin(b"key"), Reply::Pin(true));
        assert_eq!(memory.counts().bytes, most, "for the others");
        (1..PINS_AT_ONCE).for_each(|_| assert_eq!(changer(&mut one, index).unpin(b"key"), Reply::Pin(true)));
        assert!(memory.counts().bytes < most);
        assert_eq!(changer(&mut other, index).pin(&memory, b"key"), Reply::Pin(true));
        drop((one, other));
        assert_eq!(memory.counts().bytes, 0);
    }

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

    /// A client that has pinned several keys takes back the one that it names, and only one that it has pinned. One that is pinned
    /// twice stays pinned once.
    #[test]
    fn the_pin_that_is_named_is_taken_back() {
        use super::super::tests::shared;
        use crate::config::Evict;
        use crate::outcome::PutMode;
        let index = shared().index.with_eviction(Evict::S3Fifo).unwrap();
        let keys = [&b"one"[..], b"two", b"three"];
        keys.iter().for_each(|key| assert!(index.put(key, b"", PutMode::Insert).is_ok()));
        let (mut caller, memory) = (Caller::new(Role::Change), ClientMemory::new(1 << 20));
        for key in [b"one", b"two", b"one"] {
            assert_eq!(changer(&mut caller, &index).pin(&memory, key), Reply::Pin(true));
        }
        let pinned = |caller: &Caller| {
            let hash = |key: &[u8]| index.geometry().hashed(key).first();
            keys.map(|key| caller.pins.iter().filter(|pin| pin.hash() == hash(key)).count())
        };
        for (key, was_pinned, left) in [
            (&b"three"[..], false, [2, 1, 0]),
            (b"one", true, [1, 1, 0]),
            (b"absent", false, [1, 1, 0]),
            (b"two", true, [1, 0, 0]),
            (b"two", false, [1, 0, 0]),
        ] {
            assert_eq!(changer(&mut caller, &index).unpin(key), Reply::Pin(was_pinned));
            assert_eq!(pinned(&caller), left);
        }
        assert_eq!(index.evictions().pinned, 1);
        drop(caller);
        assert_eq!(index.evictions().pinned, 0);
    }

    /// A value that is uploaded is put under the key that it was begun for, and under no other; a second upload takes the place of
    /// the first, whose memory is free again.
    #[test]
    fn an_upload_is_of_its_key() {
        use crate::address::Address;
        use crate::config::{Config, TableSize};
        use crate::outcome::PutMode;
        use crate::server::ServerConfig;
        use crate::server::table::index_for;
        const LONG: usize = 10_000;
        let table = Config::new().size(TableSize::Slots(64)).key_max(8).value_max(LONG).inline_max(30);
        let config = ServerConfig::new(Address::Shm("nowhere".into()), table.heap_bytes(Some(80 << 10)));
        let index = index_for(&config).unwrap().index;
        // Others leave room for one such value.
        let mut others = Vec::new();
        loop {
            let mut other = Caller::new(Role::Change);
            match changer(&mut other, &index).begin_upload(b"other", LONG as u32, &ChangeWaits::default()) {
                Reply::Taken => others.push(other),
                _ => break,
            }
        }
        assert!(others.pop().is_some());
        let mut caller = Caller::new(Role::Change);
        let options = PutOptions::from(PutMode::Insert);
        for (begun, put) in [(&b"one"[..], &b"other"[..]), (b"one", b"on"), (b"one", b"one")] {
            for _ in 0..3 {
                assert_eq!(
                    changer(&mut caller, &index).begin_upload(begun, LONG as u32, &ChangeWaits::default()),
                    Reply::Taken
                );
            }
            for _ in 0..10 {
                assert_eq!(changer(&mut caller, &index).take_piece(&[7; LONG / 10]), Reply::Taken);
            }
            let expected = if begun == put { Reply::Put(Ok(PutOutcome::Inserted)) } else { Reply::Unfit };
            assert_eq!(
                changer(&mut caller, &index).put_upload(put, options, &ChangeWaits::default()),
                expected,
                "{begun:?} {put:?}"
            );
            assert_eq!(changer(&mut caller, &index).take_piece(b"more"), Reply::Unfit, "it is over");
        }
        assert_eq!(index.len(), 1);
    }
}
