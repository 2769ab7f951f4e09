//! Requests of a client.

use super::feed::FeedRequest;
use super::frame::{Frame, HEAD, WireError, encode, set_patience};
use super::gets::GetsRequest;
use crate::layout::extent::{Expected, REFERENCE_BYTES, Reference};
use crate::outcome::{PutMode, PutOptions};
use crate::part::{NewNumber, PartChange, Tell};
use crate::wire::proof::{Nonce, TokenProof};
use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use std::time::Duration;

/// The first bytes of a `Hello`.
const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"ONEREAD?");

/// Length of the frame of a `Hello`.
pub(crate) const HELLO_BYTES: usize = HEAD + size_of::<HelloBody>();

/// Length of the frame of a `Join`.
pub(crate) const JOIN_BYTES: usize = HEAD + size_of::<[Nonce; 2]>();

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HelloBody {
    magic: u64,
    version: u32,
    reserved: u32,
}

/// Operations of frames.
mod op {
    pub const HELLO: u16 = 1;
    pub const UPSERT: u16 = 2;
    pub const INSERT: u16 = 3;
    pub const UPDATE: u16 = 4;
    pub const REMOVE: u16 = 5;
    pub const STAT: u16 = 6;
    pub const GET: u16 = 7;
    pub const MAILBOX: u16 = 8;
    pub const WAKE: u16 = 9;
    pub const SWAP: u16 = 10;
    pub const SNAPSHOT: u16 = 11;
    pub const GROWTH: u16 = 12;
    pub const SWAP_EXTENT: u16 = 13;
    pub const UPLOAD_BEGIN: u16 = 14;
    pub const UPLOAD_PIECE: u16 = 15;
    pub const UPLOAD_PUT: u16 = 16;
    pub const UPLOAD_SWAP: u16 = 17;
    pub const UPLOAD_SWAP_EXTENT: u16 = 18;
    pub const UPLOAD_DROP: u16 = 19;
    pub const HEAP: u16 = 20;
    pub const GROW_FOR: u16 = 21;
    pub const PART: u16 = 22;
    pub const REMOVE_IF: u16 = 23;
    pub const REMOVE_IF_EXTENT: u16 = 24;
    pub const CLEAR: u16 = 25;
    pub const HELD: u16 = 26;
    pub const GET_COUNTS: u16 = 27;
    pub const LOG: u16 = 28;
    pub const PUT_FOR: u16 = 60;
    pub const PIN: u16 = 70;
    pub const UNPIN: u16 = 71;
    pub const UPLOAD_PUT_FOR: u16 = 61;
    pub const TIMES: u16 = 62;
    pub const TOUCH: u16 = 63;
    pub const OWNER: u16 = 80;
    pub const REMOVE_OWNER: u16 = 81;
    pub const PUT_START: u16 = 90;
    pub const PUT_PIECE: u16 = 91;
    pub const PUT_COMMIT: u16 = 92;
    pub const PUT_ABORT: u16 = 93;
    pub const JOIN: u16 = 110;
    pub const GETS: u16 = 111;
    pub const NOTES: u16 = 125;
    pub const EVICTIONS: u16 = 126;
}

/// Kinds of changes of a part.
mod part {
    pub const ADD: u8 = 1;
    /// An add that says which value an absent key counts as.
    pub const ADD_FROM: u8 = 2;
    pub const OR: u8 = 3;
    pub const AND_NOT: u8 = 4;
    pub const APPEND: u8 = 5;
    pub const INCREMENT: u8 = 6;
    /// With what an absent key counts as.
    pub const INCREMENT_FROM: u8 = 7;
    /// With how long the entry lives then, too.
    pub const INCREMENT_FROM_FOR: u8 = 8;
    /// An `or` that may lengthen the value.
    pub const OR_PADDED: u8 = 9;
}

/// The operation that stands for a mode.
fn op_of(mode: PutMode) -> u16 {
    match mode {
        PutMode::Upsert => op::UPSERT,
        PutMode::Insert => op::INSERT,
        PutMode::Update => op::UPDATE,
    }
}

fn mode_of(op: u16) -> Option<PutMode> {
    Some(match op {
        op::UPSERT => PutMode::Upsert,
        op::INSERT => PutMode::Insert,
        op::UPDATE => PutMode::Update,
        _ => return None,
    })
}

/// A time to live in a request. A longer one than the word can have is cut to a time that no table takes.
fn nanoseconds(ttl: Duration) -> [u8; 8] {
    u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

/// The options of a put of an entry that ends.
fn take_options(body: &[u8]) -> Option<(PutOptions, &[u8])> {
    let (op, rest) = body.split_first_chunk()?;
    let (ttl, rest) = rest.split_first_chunk()?;
    let ttl = Duration::from_nanos(u64::from_le_bytes(*ttl));
    Some((PutOptions::from(mode_of(u16::from_le_bytes(*op))?).ttl(ttl), rest))
}

/// A request, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Opens the conversation.
    Hello {
        /// The client's protocol version.
        version: u32,
    },
    /// Puts a key.
    Put {
        /// What the put may do, and how long the entry lives.
        options: PutOptions,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Puts a key if its value is still the expected one.
    Swap {
        /// The key.
        key: &'a [u8],
        /// The value that the key must have.
        expected: &'a [u8],
        /// The value to put.
        value: &'a [u8],
    },
    /// Puts a key if its slot still names the extent in which the client has read the expected value.
    SwapExtent {
        /// The key.
        key: &'a [u8],
        /// The extent, as the slot has named it.
        expected: Reference,
        /// The value to put.
        value: &'a [u8],
    },
    /// Begins the upload of a value, and drops the one before.
    UploadBegin {
        /// The key that it is for.
        key: &'a [u8],
        /// Bytes of the value.
        len: u32,
    },
    /// Brings the next bytes of the value.
    UploadPiece {
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Puts the key with the value, all of which was brought.
    UploadPut {
        /// What the put may do, and how long the entry lives.
        options: PutOptions,
        /// The key.
        key: &'a [u8],
    },
    /// Puts the key with that value if its value is still the expected one.
    UploadSwap {
        /// The key.
        key: &'a [u8],
        /// The value that the key must have.
        expected: Expected<'a>,
    },
    /// Drops the upload, if there is one.
    UploadDrop,
    /// Removes a key.
    Remove {
        /// The key.
        key: &'a [u8],
    },
    /// Removes a key if its value is still the expected one.
    RemoveIf {
        /// The key.
        key: &'a [u8],
        /// The value that the key must have.
        expected: Expected<'a>,
    },
    /// Changes a part of a value.
    Part {
        /// The key.
        key: &'a [u8],
        /// The change.
        part: PartChange<'a>,
        /// Which value the reply tells.
        tell: Tell,
    },
    /// Gives an entry another end, and keeps its value.
    Touch {
        /// The key.
        key: &'a [u8],
        /// How long it lives from now on. `None`: as one that is put without a time.
        ttl: Option<Duration>,
    },
    /// Removes some of all keys.
    Clear {
        /// How far it has come, as the last reply says; zeros at first.
        place: [u64; 2],
    },
    /// Pins a key that is there, while the connection lasts.
    Pin {
        /// The key.
        key: &'a [u8],
    },
    /// Takes a pin back.
    Unpin {
        /// The key.
        key: &'a [u8],
    },
    /// Asks the server to look up a key. This is a GET without one-sided READs, for comparison.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Asks for the server's counters.
    Stat,
    /// Asks for the state of the server's snapshots.
    Snapshot {
        /// Whether to make a snapshot, too.
        begin: bool,
    },
    /// Asks for the counts of a table that grows.
    Growth {
        /// Whether to merge segments with few keys, too.
        shrink: bool,
    },
    /// Says how many keys a table that grows will have, and asks for its counts.
    GrowFor {
        /// All keys, including those that are there.
        keys: u64,
    },
    /// Asks for the counts of the memory of long values.
    Heap,
    /// Asks how long puts take, and for further counts.
    Times,
    /// Asks what clients hold, or what is held for them.
    Held,
    /// Asks how many GETs clients have made.
    GetCounts,
    /// Asks how far the log of changes is.
    Log,
    /// Asks for a mailbox, which further requests may go through.
    Mailbox {
        /// The client's version of mailboxes.
        version: u32,
    },
    /// Wakes the server: requests are in the mailbox. Has no reply.
    Wake,
    /// Makes the connection a session of an owner, until it ends: its puts are the owner's.
    Owner {
        /// The owner.
        number: u16,
        /// How long it may be without a session.
        absent_for: Duration,
        /// The owner's tenure, from the first reply; 0: the present owner with the number, or a new one.
        tenure: u64,
    },
    /// Hides all entries of an owner. Then they are removed.
    RemoveOwner {
        /// The owner.
        number: u16,
    },
    /// Starts a put in two steps. The reply has its ticket.
    PutStart {
        /// The key.
        key: &'a [u8],
        /// Bytes of the value.
        len: u32,
        /// How long its room is held.
        within: Duration,
    },
    /// Brings the next bytes of the value.
    PutPiece {
        /// The key.
        key: &'a [u8],
        /// The put's ticket.
        ticket: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Commits the put.
    PutCommit {
        /// The key.
        key: &'a [u8],
        /// The put's ticket.
        ticket: u64,
    },
    /// Gives the put up.
    PutAbort {
        /// The key.
        key: &'a [u8],
        /// The put's ticket.
        ticket: u64,
    },
    /// Asks for the counts of notes on entries.
    Notes,
    /// Asks for the counts of evicted entries.
    Evictions,
    /// Asks for keys, or for changes.
    Feed(FeedRequest<'a>),
    /// Over TCP: proves that the client knows the server's token.
    Join {
        /// The client's number.
        nonce: Nonce,
        /// Its proof.
        proof: TokenProof,
    },
    /// Over TCP: looks up many keys.
    Gets(GetsRequest<'a>),
}

/// The right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// None: the request is about the conversation.
    Talk,
    /// Reading the table.
    Look,
    /// Changing the table. Requests that take the server's disk or much of its time need it, too.
    Change,
}

/// The properties of a request, whatever it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// Its name.
    pub name: &'static str,
    /// The level that a server must have to know it ([`LEVEL`](super::LEVEL)).
    pub level: u16,
    /// The right that it needs.
    pub right: Right,
}

macro_rules! rows {
    ($($name:ident { $($fields:tt)* } => $level:literal, $right:ident;)*) => {
        /// All rows.
        #[cfg(test)]
        pub(crate) const ROWS: &[RequestRow] =
            &[$(RequestRow { name: stringify!($name), level: $level, right: Right::$right }),*];

        impl Request<'_> {
            /// The request's row.
            pub fn row(&self) -> RequestRow {
                match self {
                    $(Request::$name { $($fields)* } => {
                        RequestRow { name: stringify!($name), level: $level, right: Right::$right }
                    })*
                }
            }
        }
    };
}

// Without a row for each request, this does not compile.
rows! {
    Hello { .. }              => 0, Talk;
    Join { .. }               => 3, Talk;
    Mailbox { .. }            => 0, Talk;
    Wake { .. }               => 0, Talk;
    Get { .. }                => 0, Look;
    Gets { .. }               => 3, Look;
    Feed { 0: FeedRequest::Changes { within: Some(_), .. } } => 6, Look;
    Feed { .. }               => 2, Look;
    Stat { .. }               => 0, Look;
    Growth { shrink: false }  => 0, Look;
    Heap { .. }               => 0, Look;
    Times { .. }              => 2, Look;
    Held { .. }               => 4, Look;
    GetCounts { .. }          => 7, Look;
    Log { .. }                => 8, Look;
    Notes { .. }              => 4, Look;
    Evictions { .. }          => 5, Look;
    Snapshot { begin: false } => 0, Look;
    Put { .. }                => 0, Change;
    Swap { .. }               => 0, Change;
    SwapExtent { .. }         => 0, Change;
    UploadBegin { .. }        => 0, Change;
    UploadPiece { .. }        => 0, Change;
    UploadPut { .. }          => 0, Change;
    UploadSwap { .. }         => 0, Change;
    UploadDrop { .. }         => 0, Change;
    Remove { .. }             => 0, Change;
    RemoveIf { .. }           => 1, Change;
    Part { part: PartChange::OrPadded { .. }, .. } => 6, Change;
    Part { part: PartChange::Increment { .. }, .. } => 6, Change;
    Part { .. }               => 1, Change;
    Touch { .. }              => 6, Change;
    Clear { .. }              => 1, Change;
    Pin { .. }                => 2, Change;
    Unpin { .. }              => 2, Change;
    Owner { .. }              => 4, Change;
    RemoveOwner { .. }        => 2, Change;
    PutStart { .. }           => 2, Change;
    PutPiece { .. }           => 2, Change;
    PutCommit { .. }          => 2, Change;
    PutAbort { .. }           => 2, Change;
    GrowFor { .. }            => 0, Change;
    Growth { shrink: true }   => 0, Change;
    Snapshot { begin: true }  => 0, Change;
}

impl<'a> Request<'a> {
    /// The level that a server must have to know it ([`LEVEL`](super::LEVEL)).
    pub fn level(&self) -> u16 {
        self.row().level
    }

    /// Appends this request to `out`, with how long it may wait for memory of a long value ([`Frame::patience`]). Servers
    /// of earlier versions do not look at that.
    pub fn encode_patient(&self, id: u64, patience: Duration, out: &mut Vec<u8>) {
        let start = out.len();
        self.encode(id, out);
        set_patience(out, start, patience);
    }

    /// Appends this request to `out`.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        match self {
            Request::Hello { version } => {
                let body = HelloBody { magic: HELLO_MAGIC, version: *version, reserved: 0 };
                encode(out, op::HELLO, 0, id, &[bytemuck::bytes_of(&body)]);
            }
            Request::Put { options, key, value } => {
                let (op, klen) = (op_of(options.mode), (key.len() as u16).to_le_bytes());
                match options.ttl {
                    None => encode(out, op, 0, id, &[&klen, key, value]),
                    Some(ttl) => {
                        let body = [&op.to_le_bytes()[..], &nanoseconds(ttl), &klen, key, value];
                        encode(out, op::PUT_FOR, 0, id, &body);
                    }
                }
            }
            Request::Swap { key, expected, value } => {
                let lengths = [key.len() as u16, expected.len() as u16].map(u16::to_le_bytes).concat();
                encode(out, op::SWAP, 0, id, &[&lengths, key, expected, value]);
            }
            Request::SwapExtent { key, expected, value } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::SWAP_EXTENT, 0, id, &[&klen, &expected.to_bytes(), key, value]);
            }
            Request::UploadBegin { key, len } => {
                encode(out, op::UPLOAD_BEGIN, 0, id, &[&len.to_le_bytes(), key]);
            }
            Request::UploadPiece { bytes } => encode(out, op::UPLOAD_PIECE, 0, id, &[bytes]),
            Request::UploadPut { options, key } => {
                let op = op_of(options.mode).to_le_bytes();
                match options.ttl {
                    None => encode(out, op::UPLOAD_PUT, 0, id, &[&op, key]),
                    Some(ttl) => encode(out, op::UPLOAD_PUT_FOR, 0, id, &[&op, &nanoseconds(ttl), key]),
                }
            }
            Request::UploadSwap { key, expected: Expected::Value(expected) } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::UPLOAD_SWAP, 0, id, &[&klen, key, expected]);
            }
            Request::UploadSwap { key, expected: Expected::Extent(expected) } => {
                encode(out, op::UPLOAD_SWAP_EXTENT, 0, id, &[&expected.to_bytes(), key]);
            }
            Request::UploadDrop => encode(out, op::UPLOAD_DROP, 0, id, &[]),
            Request::Heap => encode(out, op::HEAP, 0, id, &[]),
            Request::Times => encode(out, op::TIMES, 0, id, &[]),
            Request::Notes => encode(out, op::NOTES, 0, id, &[]),
            Request::Evictions => encode(out, op::EVICTIONS, 0, id, &[]),
            Request::Held => encode(out, op::HELD, 0, id, &[]),
            Request::GetCounts => encode(out, op::GET_COUNTS, 0, id, &[]),
            Request::Log => encode(out, op::LOG, 0, id, &[]),
            Request::Remove { key } => encode(out, op::REMOVE, 0, id, &[key]),
            Request::RemoveIf { key, expected: Expected::Value(expected) } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::REMOVE_IF, 0, id, &[&klen, key, expected]);
            }
            Request::RemoveIf { key, expected: Expected::Extent(expected) } => {
                encode(out, op::REMOVE_IF_EXTENT, 0, id, &[&expected.to_bytes(), key]);
            }
            Request::Part { key, part, tell } => encode_part(out, id, key, part, *tell),
            Request::Touch { key, ttl } => match ttl {
                None => encode(out, op::TOUCH, 0, id, &[&[0], key]),
                Some(ttl) => encode(out, op::TOUCH, 0, id, &[&[1], &nanoseconds(*ttl), key]),
            },
            Request::Clear { place } => encode(out, op::CLEAR, 0, id, &[bytemuck::bytes_of(place)]),
            Request::Pin { key } => encode(out, op::PIN, 0, id, &[key]),
            Request::Unpin { key } => encode(out, op::UNPIN, 0, id, &[key]),
            Request::Get { key } => encode(out, op::GET, 0, id, &[key]),
            Request::Stat => encode(out, op::STAT, 0, id, &[]),
            Request::Snapshot { begin } => encode(out, op::SNAPSHOT, 0, id, &[&[u8::from(*begin)]]),
            Request::Growth { shrink } => encode(out, op::GROWTH, 0, id, &[&[u8::from(*shrink)]]),
            Request::GrowFor { keys } => encode(out, op::GROW_FOR, 0, id, &[&keys.to_le_bytes()]),
            Request::Mailbox { version } => encode(out, op::MAILBOX, 0, id, &[&version.to_le_bytes()]),
            Request::Wake => encode(out, op::WAKE, 0, id, &[]),
            Request::Owner { number, absent_for, tenure } => {
                let body = [&number.to_le_bytes()[..], &nanoseconds(*absent_for), &tenure.to_le_bytes()];
                encode(out, op::OWNER, 0, id, &body);
            }
            Request::RemoveOwner { number } => encode(out, op::REMOVE_OWNER, 0, id, &[&number.to_le_bytes()]),
            Request::PutStart { key, len, within } => {
                encode(out, op::PUT_START, 0, id, &[&len.to_le_bytes(), &nanoseconds(*within), key]);
            }
            Request::PutPiece { key, ticket, bytes } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::PUT_PIECE, 0, id, &[&ticket.to_le_bytes(), &klen, key, bytes]);
            }
            Request::PutCommit { key, ticket } => {
                encode(out, op::PUT_COMMIT, 0, id, &[&ticket.to_le_bytes(), key]);
            }
            Request::PutAbort { key, ticket } => {
                encode(out, op::PUT_ABORT, 0, id, &[&ticket.to_le_bytes(), key]);
            }
            Request::Feed(request) => request.encode(id, out),
            Request::Join { nonce, proof } => encode(out, op::JOIN, 0, id, &[nonce, proof]),
            Request::Gets(request) => {
                let (head, keys) = request.parts();
                encode(out, op::GETS, 0, id, &[&head, keys]);
            }
        }
    }

    /// Decodes the request in a frame.
    ///
    /// # Errors
    /// [`WireError`] when the frame holds no valid request.
    pub fn decode(frame: &Frame<'a>) -> Result<Request<'a>, WireError> {
        let unfitting = WireError::Body { op: frame.op(), len: frame.body().len() };
        let put = |mode| {
            let (klen, rest) = frame.body().split_first_chunk::<2>().ok_or(unfitting)?;
            let (key, value) =
                rest.split_at_checked(usize::from(u16::from_le_bytes(*klen))).ok_or(unfitting)?;
            Ok(Request::Put { options: PutMode::into(mode), key, value })
        };
        let put_for = || {
            let (options, rest) = take_options(frame.body())?;
            let (klen, rest) = rest.split_first_chunk::<2>()?;
            let (key, value) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::Put { options, key, value })
        };
        let swap = || {
            let (klen, rest) = frame.body().split_first_chunk::<2>()?;
            let (elen, rest) = rest.split_first_chunk::<2>()?;
            let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            let (expected, value) = rest.split_at_checked(u16::from_le_bytes(*elen).into())?;
            Some(Request::Swap { key, expected, value })
        };
        let swap_extent = || {
            let (klen, rest) = frame.body().split_first_chunk::<2>()?;
            let (expected, rest) = rest.split_first_chunk::<REFERENCE_BYTES>()?;
            let (key, value) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::SwapExtent { key, expected: Reference::from_bytes(*expected), value })
        };
        let upload_put = || {
            let (mode, key) = frame.body().split_first_chunk::<2>()?;
            let options = mode_of(u16::from_le_bytes(*mode))?.into();
            Some(Request::UploadPut { options, key })
        };
        let upload_put_for = || {
            let (options, key) = take_options(frame.body())?;
            Some(Request::UploadPut { options, key })
        };
        let upload_swap = || {
            let (klen, rest) = frame.body().split_first_chunk::<2>()?;
            let (key, expected) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::UploadSwap { key, expected: Expected::Value(expected) })
        };
        let touch = || {
            let (has_ttl, rest) = frame.body().split_first()?;
            let (ttl, key) = match has_ttl {
                0 => (None, rest),
                1 => {
                    let (ttl, key) = rest.split_first_chunk()?;
                    (Some(Duration::from_nanos(u64::from_le_bytes(*ttl))), key)
                }
                _ => return None,
            };
            Some(Request::Touch { key, ttl })
        };
        let remove_if = || {
            let (klen, rest) = frame.body().split_first_chunk::<2>()?;
            let (key, expected) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::RemoveIf { key, expected: Expected::Value(expected) })
        };
        let flag = || match frame.body() {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(unfitting),
        };
        match frame.op() {
            op::HELLO => {
                let hello: HelloBody =
                    bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                if hello.magic != HELLO_MAGIC {
                    return Err(unfitting);
                }
                Ok(Request::Hello { version: hello.version })
            }
            op::UPSERT => put(PutMode::Upsert),
            op::INSERT => put(PutMode::Insert),
            op::UPDATE => put(PutMode::Update),
            op::SWAP => swap().ok_or(unfitting),
            op::REMOVE => Ok(Request::Remove { key: frame.body() }),
            op::REMOVE_IF => remove_if().ok_or(unfitting),
            op::REMOVE_IF_EXTENT => {
                let (expected, key) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let expected = Expected::Extent(Reference::from_bytes(*expected));
                Ok(Request::RemoveIf { key, expected })
            }
            op::PART => decode_part(frame.body()).ok_or(unfitting),
            op::TOUCH => touch().ok_or(unfitting),
            op::CLEAR => {
                let place = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Ok(Request::Clear { place })
            }
            op::PIN => Ok(Request::Pin { key: frame.body() }),
            op::UNPIN => Ok(Request::Unpin { key: frame.body() }),
            op::GET => Ok(Request::Get { key: frame.body() }),
            op::STAT if frame.body().is_empty() => Ok(Request::Stat),
            op::MAILBOX => {
                let version = frame.body().try_into().map_err(|_| unfitting)?;
                Ok(Request::Mailbox { version: u32::from_le_bytes(version) })
            }
            op::WAKE if frame.body().is_empty() => Ok(Request::Wake),
            op::SNAPSHOT => Ok(Request::Snapshot { begin: flag()? }),
            op::GROWTH => Ok(Request::Growth { shrink: flag()? }),
            op::GROW_FOR => {
                let keys = frame.body().try_into().map_err(|_| unfitting)?;
                Ok(Request::GrowFor { keys: u64::from_le_bytes(keys) })
            }
            op::SWAP_EXTENT => swap_extent().ok_or(unfitting),
            op::UPLOAD_BEGIN => {
                let (len, key) = frame.body().split_first_chunk::<4>().ok_or(unfitting)?;
                Ok(Request::UploadBegin { key, len: u32::from_le_bytes(*len) })
            }
            op::UPLOAD_PIECE => Ok(Request::UploadPiece { bytes: frame.body() }),
            op::UPLOAD_PUT => upload_put().ok_or(unfitting),
            op::PUT_FOR => put_for().ok_or(unfitting),
            op::UPLOAD_PUT_FOR => upload_put_for().ok_or(unfitting),
            op::UPLOAD_SWAP => upload_swap().ok_or(unfitting),
            op::UPLOAD_SWAP_EXTENT => {
                let (expected, key) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let expected = Expected::Extent(Reference::from_bytes(*expected));
                Ok(Request::UploadSwap { key, expected })
            }
            op::OWNER => {
                let (number, rest) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let (time, tenure) = rest.split_first_chunk().ok_or(unfitting)?;
                let absent_for = Duration::from_nanos(u64::from_le_bytes(*time));
                let tenure = u64::from_le_bytes(tenure.try_into().map_err(|_| unfitting)?);
                Ok(Request::Owner { number: u16::from_le_bytes(*number), absent_for, tenure })
            }
            op::PUT_START => {
                let (len, rest) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let (within, key) = rest.split_first_chunk().ok_or(unfitting)?;
                let within = Duration::from_nanos(u64::from_le_bytes(*within));
                Ok(Request::PutStart { key, len: u32::from_le_bytes(*len), within })
            }
            op::PUT_PIECE => {
                let (ticket, rest) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let (klen, rest) = rest.split_first_chunk().ok_or(unfitting)?;
                let (key, bytes) =
                    rest.split_at_checked(u16::from_le_bytes(*klen).into()).ok_or(unfitting)?;
                Ok(Request::PutPiece { key, ticket: u64::from_le_bytes(*ticket), bytes })
            }
            op::PUT_COMMIT | op::PUT_ABORT => {
                let (ticket, key) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let ticket = u64::from_le_bytes(*ticket);
                Ok(match frame.op() {
                    op::PUT_COMMIT => Request::PutCommit { key, ticket },
                    _ => Request::PutAbort { key, ticket },
                })
            }
            op::REMOVE_OWNER => {
                let number = frame.body().try_into().map_err(|_| unfitting)?;
                Ok(Request::RemoveOwner { number: u16::from_le_bytes(number) })
            }
            op::JOIN => {
                let [nonce, proof] = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Ok(Request::Join { nonce, proof })
            }
            op::GETS => GetsRequest::from_body(frame.body()).map(Request::Gets).ok_or(unfitting),
            op::UPLOAD_DROP if frame.body().is_empty() => Ok(Request::UploadDrop),
            op::HEAP if frame.body().is_empty() => Ok(Request::Heap),
            op::TIMES if frame.body().is_empty() => Ok(Request::Times),
            op::NOTES if frame.body().is_empty() => Ok(Request::Notes),
            op::EVICTIONS if frame.body().is_empty() => Ok(Request::Evictions),
            op::HELD if frame.body().is_empty() => Ok(Request::Held),
            op::GET_COUNTS if frame.body().is_empty() => Ok(Request::GetCounts),
            op::LOG if frame.body().is_empty() => Ok(Request::Log),
            op::STAT
            | op::WAKE
            | op::UPLOAD_DROP
            | op::HEAP
            | op::TIMES
            | op::NOTES
            | op::EVICTIONS
            | op::HELD
            | op::GET_COUNTS
            | op::LOG => Err(unfitting),
            op => {
                let unknown = Err(WireError::Unknown { op, status: frame.status() });
                FeedRequest::decode(frame).map_or(unknown, |request| request.map(Request::Feed))
            }
        }
    }
}

/// Appends a change of a part: its kind, what its reply has, the key's length; the numbers of the kind; key and bytes.
fn encode_part(out: &mut Vec<u8>, id: u64, key: &[u8], part: &PartChange<'_>, tell: Tell) {
    let mut numbers = SmallVec::<[u8; 24]>::new();
    let (kind, bytes) = match part {
        PartChange::Add { delta, initial } => {
            numbers.extend_from_slice(&delta.to_le_bytes());
            let initial = initial.map(u64::to_le_bytes);
            initial.iter().for_each(|initial| numbers.extend_from_slice(initial));
            (if initial.is_some() { part::ADD_FROM } else { part::ADD }, &[][..])
        }
        PartChange::Increment { delta, absent } => {
            numbers.extend_from_slice(&delta.to_le_bytes());
            if let Some(NewNumber { value, ttl }) = absent {
                numbers.extend_from_slice(&value.to_le_bytes());
                ttl.iter().for_each(|ttl| numbers.extend_from_slice(&nanoseconds(*ttl)));
            }
            let kind = match absent {
                None => part::INCREMENT,
                Some(NewNumber { ttl: None, .. }) => part::INCREMENT_FROM,
                Some(NewNumber { ttl: Some(_), .. }) => part::INCREMENT_FROM_FOR,
            };
            (kind, &[][..])
        }
        PartChange::Or { bits } => (part::OR, *bits),
        PartChange::OrPadded { bits } => (part::OR_PADDED, *bits),
        PartChange::AndNot { bits } => (part::AND_NOT, *bits),
        PartChange::Append { bytes, len_max } => {
            // No value is longer.
            let len_max = u32::try_from(*len_max).unwrap_or(u32::MAX);
            numbers.extend_from_slice(&len_max.to_le_bytes());
            (part::APPEND, *bytes)
        }
    };
    let tell = match tell {
        Tell::Nothing => 0,
        Tell::Before => 1,
        Tell::After => 2,
    };
    let [low, high] = (key.len() as u16).to_le_bytes();
    encode(out, op::PART, 0, id, &[&[kind, tell, low, high], &numbers, key, bytes]);
}

fn decode_part(body: &[u8]) -> Option<Request<'_>> {
    let ([kind, tell, low, high], rest) = body.split_first_chunk::<4>()?;
    let klen = usize::from(u16::from_le_bytes([*low, *high]));
    let tell = match tell {
        0 => Tell::Nothing,
        1 => Tell::Before,
        2 => Tell::After,
        _ => return None,
    };
    let (part, key) = match *kind {
        part::ADD | part::ADD_FROM => {
            let (delta, mut rest) = rest.split_first_chunk::<8>()?;
            let mut initial = None;
            if *kind == part::ADD_FROM {
                let (from, key) = rest.split_first_chunk::<8>()?;
                (initial, rest) = (Some(u64::from_le_bytes(*from)), key);
            }
            let (key, []) = rest.split_at_checked(klen)? else { return None };
            (PartChange::Add { delta: i64::from_le_bytes(*delta), initial }, key)
        }
        part::INCREMENT | part::INCREMENT_FROM | part::INCREMENT_FROM_FOR => {
            let (delta, mut rest) = rest.split_first_chunk()?;
            let mut absent = None;
            if *kind != part::INCREMENT {
                let (value, key) = rest.split_first_chunk()?;
                (absent, rest) = (Some(NewNumber::from(i64::from_le_bytes(*value))), key);
            }
            if let (part::INCREMENT_FROM_FOR, Some(absent)) = (*kind, &mut absent) {
                let (ttl, key) = rest.split_first_chunk()?;
                (absent.ttl, rest) = (Some(Duration::from_nanos(u64::from_le_bytes(*ttl))), key);
            }
            let (key, []) = rest.split_at_checked(klen)? else { return None };
            (PartChange::Increment { delta: i64::from_le_bytes(*delta), absent }, key)
        }
        part::OR => {
            let (key, bits) = rest.split_at_checked(klen)?;
            (PartChange::Or { bits }, key)
        }
        part::OR_PADDED => {
            let (key, bits) = rest.split_at_checked(klen)?;
            (PartChange::OrPadded { bits }, key)
        }
        part::AND_NOT => {
            let (key, bits) = rest.split_at_checked(klen)?;
            (PartChange::AndNot { bits }, key)
        }
        part::APPEND => {
            let (len_max, rest) = rest.split_first_chunk::<4>()?;
            let (key, bytes) = rest.split_at_checked(klen)?;
            (PartChange::Append { bytes, len_max: u32::from_le_bytes(*len_max) as usize }, key)
        }
        _ => return None,
    };
    Some(Request::Part { key, part, tell })
}
