//! Replies of the server.

use super::counts::{GrowthBody, HeldCounts, LogBody, NoLogBody, ServerStats, ServerTimes, SnapshotStatus};
use super::feed::FeedReply;
use super::frame::{Frame, LEVEL, PROTOCOL_VERSION, WireError, decode, encode};
use super::refusal::Refusal;
use crate::layout::superblock::SUPERBLOCK_WORDS;
use crate::log::LogStatus;
use crate::outcome::{
    EvictCounts, GetCounts, GrowthCounts, HeapCounts, NoteCounts, PutError, PutOutcome, StartBound,
    SwapOutcome,
};
use crate::part::{PartEffect, PartError, PartOutcome};
use crate::wire::proof::{Nonce, TokenProof};

/// The operation of a reply.
pub(super) const REPLY: u16 = 0x8000;

/// Outcomes of requests.
mod status {
    pub const WELCOME: u16 = 1;
    pub const INSERTED: u16 = 2;
    pub const UPDATED: u16 = 3;
    pub const EXISTS: u16 = 4;
    pub const MISSING: u16 = 5;
    pub const REMOVED: u16 = 6;
    pub const STAT: u16 = 7;
    pub const VALUE: u16 = 8;
    pub const ABSENT: u16 = 9;
    pub const MAILBOX: u16 = 10;
    pub const WAKE: u16 = 11;
    pub const SWAPPED: u16 = 12;
    pub const DIFFERS: u16 = 13;
    pub const SWAP_ABSENT: u16 = 14;
    pub const SNAPSHOT: u16 = 15;
    pub const GROWTH: u16 = 16;
    pub const HEAP: u16 = 17;
    pub const TAKEN: u16 = 18;
    pub const CLEARED: u16 = 19;
    pub const HELD: u16 = 20;
    pub const GET_COUNTS: u16 = 21;
    pub const LOG: u16 = 22;
    pub const TIMES: u16 = 62;
    pub const NOTES: u16 = 65;
    pub const EVICTIONS: u16 = 66;
    /// The first of eight: four effects, each without a value and with one.
    pub const PARTS: u16 = 40;
    pub const PARTS_END: u16 = 48;
    pub const KEY_LENGTH: u16 = 100;
    pub const VALUE_LENGTH: u16 = 101;
    pub const FULL: u16 = 102;
    pub const BUSY: u16 = 103;
    pub const REFUSED: u16 = 104;
    pub const DENIED: u16 = 105;
    pub const TURNED_AWAY: u16 = 106;
    pub const NO_MEMORY: u16 = 107;
    pub const HEAP_FULL: u16 = 108;
    pub const HEAP_BUSY: u16 = 109;
    pub const HEAP_MEMORY: u16 = 110;
    pub const UNFIT: u16 = 111;
    pub const WITHDRAWN: u16 = 112;
    pub const PART: u16 = 113;
    pub const TIME_TO_LIVE: u16 = 160;
    pub const NO_LIFE: u16 = 161;
    pub const ENTRY_NUMBERS: u16 = 162;
    pub const OWNER_NUMBER: u16 = 180;
    pub const OWNER_GONE: u16 = 181;
    pub const NO_OWNERS: u16 = 182;
    pub const ALREADY_STARTED: u16 = 190;
    pub const NOT_STARTED: u16 = 191;
    pub const STARTED_LENGTH: u16 = 192;
    pub const START_BOUND: u16 = 193;
    pub const PIN: u16 = 70;
    pub const PINNED: u16 = 170;
    pub const PINS: u16 = 171;
    pub const CHALLENGE: u16 = 200;
    pub const TABLE: u16 = 201;
}

/// The effect of a change of a part, in the order of its statuses.
const EFFECTS: [PartEffect; 4] =
    [PartEffect::Inserted, PartEffect::Updated, PartEffect::Unchanged, PartEffect::Absent];

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The server accepts the client. The region's descriptor comes with it.
    Welcome {
        /// The server's protocol version.
        version: u16,
        /// The level of requests that it knows ([`LEVEL`](super::LEVEL)).
        level: u16,
    },
    /// How a put ended.
    Put(Result<PutOutcome, PutError>),
    /// How a compare-and-swap ended.
    Swapped(Result<SwapOutcome, PutError>),
    /// How a remove ended.
    Removed(Result<bool, PutError>),
    /// How a change of a part ended.
    Part(Result<PartOutcome, PutError>),
    /// How far a removal of all keys has come.
    Cleared {
        /// Keys removed by this request.
        removed: u64,
        /// Finished parts of a million. At the last one, the removal has ended.
        progress_ppm: u64,
        /// Where the removal continues.
        place: [u64; 2],
    },
    /// Whether a key is there, and pinned now; or whether it was pinned, and is not any more.
    Pin(bool),
    /// The value that the server found.
    Value(Option<Vec<u8>>),
    /// The server's counters.
    Stat(ServerStats),
    /// The state of its snapshots.
    Snapshot(SnapshotStatus),
    /// The counts of a table that grows.
    Growth(GrowthCounts),
    /// Counts of the memory of long values.
    Heap(HeapCounts),
    /// Counts of notes on entries.
    Notes(NoteCounts),
    /// Counts of evicted entries.
    Evictions(EvictCounts),
    /// How long puts take, and further counts.
    Times(Box<ServerTimes>),
    /// What clients hold, or what is held for them.
    Held(HeldCounts),
    /// How many GETs clients have made.
    GetCounts(GetCounts),
    /// How far the log of changes is. `None`: there is none.
    Log(Option<LogStatus>),
    /// A part of an upload was taken, or an upload dropped.
    Taken,
    /// The request belongs to no upload, or does not fit the present one, which is dropped.
    Unfit,
    /// The client has a mailbox. The descriptor of its memory comes with it.
    Mailbox {
        /// The server's version of mailboxes.
        version: u32,
    },
    /// The server does not take the client. It hangs up.
    TurnedAway(Refusal),
    /// The client may not make this request: it may only read.
    Denied,
    /// The server does not speak the client's version of the protocol, or has no mailbox for it.
    Refused {
        /// The server's protocol version, or its version of mailboxes: 0 if it has none, the client's version if there
        /// is no room for another mailbox now.
        version: u32,
    },
    /// Wakes the client: a reply is in the mailbox. Belongs to no request on the socket.
    Wake,
    /// Keys, or changes.
    Feed(FeedReply),
    /// Over TCP: the answer to a hello. The client has to prove that it knows the token.
    Challenge {
        /// The server's number.
        nonce: Nonce,
    },
    /// Over TCP: the server accepts the client.
    Table {
        /// The server's proof.
        proof: TokenProof,
        /// The level of requests that the server knows ([`LEVEL`](super::LEVEL)), and the words of the superblock. The
        /// proof covers it.
        about: Box<TableBytes>,
    },
}

/// The server's level, in a word of its own, and the words of its superblock, little-endian.
pub type TableBytes = [u8; TABLE_BYTES];

/// The length of [`TableBytes`].
const TABLE_BYTES: usize = size_of::<u64>() * (1 + SUPERBLOCK_WORDS);

impl Reply {
    /// The answer of a server of this version to a hello.
    pub const WELCOME: Reply = Reply::Welcome { version: PROTOCOL_VERSION as u16, level: LEVEL };

    /// The reply to the same request, if its change was refused with this error.
    pub(crate) fn refused(&self, error: PutError) -> Reply {
        match self {
            Reply::Swapped(_) => Reply::Swapped(Err(error)),
            Reply::Removed(_) => Reply::Removed(Err(error)),
            Reply::Part(_) => Reply::Part(Err(error)),
            _ => Reply::Put(Err(error)),
        }
    }

    /// Bytes of the value that it tells.
    pub(crate) fn told_bytes(&self) -> usize {
        match self {
            Reply::Part(Ok(outcome)) => outcome.value.as_ref().map_or(0, Vec::len),
            Reply::Value(value) => value.as_ref().map_or(0, Vec::len),
            _ => 0,
        }
    }

    /// Appends this reply to `out`.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let mut reply = |status, body: &[u8]| encode(out, REPLY, status, id, &[body]);
        let two = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
        match self {
            Reply::Welcome { version, level } => {
                reply(status::WELCOME, &[version.to_le_bytes(), level.to_le_bytes()].concat());
            }
            Reply::Refused { version } => reply(status::REFUSED, &version.to_le_bytes()),
            Reply::TurnedAway(why) => {
                let (code, about) = why.to_parts();
                reply(status::TURNED_AWAY, &two(code, about));
            }
            Reply::Denied => reply(status::DENIED, &[]),
            Reply::Mailbox { version } => reply(status::MAILBOX, &version.to_le_bytes()),
            Reply::Wake => reply(status::WAKE, &[]),
            Reply::Feed(answer) => answer.encode(&mut reply),
            Reply::Challenge { nonce } => reply(status::CHALLENGE, nonce),
            Reply::Table { proof, about } => reply(status::TABLE, &[&proof[..], &about[..]].concat()),
            Reply::Put(Ok(PutOutcome::Inserted)) => reply(status::INSERTED, &[]),
            Reply::Put(Ok(PutOutcome::Updated)) => reply(status::UPDATED, &[]),
            Reply::Put(Ok(PutOutcome::Exists)) => reply(status::EXISTS, &[]),
            Reply::Put(Ok(PutOutcome::Missing)) => reply(status::MISSING, &[]),
            Reply::Swapped(Ok(SwapOutcome::Swapped)) => reply(status::SWAPPED, &[]),
            Reply::Swapped(Ok(SwapOutcome::Differs)) => reply(status::DIFFERS, &[]),
            Reply::Swapped(Ok(SwapOutcome::Absent)) => reply(status::SWAP_ABSENT, &[]),
            Reply::Removed(Ok(there)) => reply(status::REMOVED, &[u8::from(*there)]),
            Reply::Part(Ok(PartOutcome { effect, value })) => {
                let nth = EFFECTS.iter().position(|of| of == effect).expect("all effects are there");
                let status = status::PARTS + 2 * nth as u16 + u16::from(value.is_some());
                reply(status, value.as_deref().unwrap_or_default());
            }
            Reply::Cleared { removed, progress_ppm, place: [a, b] } => {
                reply(status::CLEARED, bytemuck::bytes_of(&[*removed, *progress_ppm, *a, *b]));
            }
            Reply::Pin(is_so) => reply(status::PIN, &[u8::from(*is_so)]),
            Reply::Value(Some(value)) => reply(status::VALUE, value),
            Reply::Value(None) => reply(status::ABSENT, &[]),
            Reply::Stat(stats) => reply(status::STAT, bytemuck::bytes_of(stats)),
            Reply::Snapshot(about) => reply(status::SNAPSHOT, bytemuck::bytes_of(about)),
            Reply::Growth(counts) => reply(status::GROWTH, bytemuck::bytes_of(&GrowthBody::from(*counts))),
            Reply::Heap(counts) => reply(status::HEAP, bytemuck::bytes_of(counts)),
            Reply::Notes(counts) => reply(status::NOTES, bytemuck::bytes_of(counts)),
            Reply::Evictions(counts) => reply(status::EVICTIONS, bytemuck::bytes_of(counts)),
            Reply::Times(times) => reply(status::TIMES, bytemuck::bytes_of(&**times)),
            Reply::Held(counts) => reply(status::HELD, bytemuck::bytes_of(counts)),
            Reply::GetCounts(counts) => reply(status::GET_COUNTS, bytemuck::bytes_of(counts)),
            Reply::Log(None) => reply(status::LOG, &[]),
            Reply::Log(Some(log)) => reply(status::LOG, bytemuck::bytes_of(&LogBody::from(*log))),
            Reply::Taken => reply(status::TAKEN, &[]),
            Reply::Unfit => reply(status::UNFIT, &[]),
            Reply::Put(Err(error))
            | Reply::Swapped(Err(error))
            | Reply::Removed(Err(error))
            | Reply::Part(Err(error)) => {
                match *error {
                    PutError::KeyLength { given, max } => {
                        reply(status::KEY_LENGTH, &two(given as u64, max as u64));
                    }
                    PutError::ValueLength { given, max } => {
                        reply(status::VALUE_LENGTH, &two(given as u64, max as u64));
                    }
                    // Only clients give this answer: the server knows one length only.
                    PutError::EncryptedLength { stored, stored_max, .. } => {
                        reply(status::VALUE_LENGTH, &two(stored as u64, stored_max as u64));
                    }
                    PutError::Full { keys, slots, bytes_max, heap_bytes } => {
                        reply(status::FULL, bytemuck::bytes_of(&[keys, slots, bytes_max, heap_bytes]));
                    }
                    PutError::Busy { rounds } => reply(status::BUSY, &two(rounds.into(), 0)),
                    PutError::Withdrawn => reply(status::WITHDRAWN, &[]),
                    PutError::Part(error) => reply(status::PART, bytemuck::bytes_of(&error.to_parts())),
                    // Only clients give this answer.
                    PutError::OldServer => reply(status::UNFIT, &[]),
                    PutError::TimeToLive { given } => {
                        let given = u64::try_from(given.as_nanos()).unwrap_or(u64::MAX);
                        reply(status::TIME_TO_LIVE, &two(given, 0));
                    }
                    PutError::NoLife => reply(status::NO_LIFE, &[]),
                    PutError::EntryNumbers => reply(status::ENTRY_NUMBERS, &[]),
                    PutError::OwnerNumber { given } => reply(status::OWNER_NUMBER, &two(given.into(), 0)),
                    PutError::OwnerGone { owner } => reply(status::OWNER_GONE, &two(owner.into(), 0)),
                    PutError::NoOwners => reply(status::NO_OWNERS, &[]),
                    PutError::AlreadyStarted => reply(status::ALREADY_STARTED, &[]),
                    PutError::NotStarted => reply(status::NOT_STARTED, &[]),
                    PutError::StartedLength { given, stated } => {
                        reply(status::STARTED_LENGTH, &two(given as u64, stated as u64));
                    }
                    PutError::StartBound(bound) => {
                        reply(status::START_BOUND, bytemuck::bytes_of(&bound.to_parts()));
                    }
                    PutError::Pinned => reply(status::PINNED, &[]),
                    PutError::Pins { max } => reply(status::PINS, &two(max.into(), 0)),
                    PutError::NoMemory { keys, bytes } => reply(status::NO_MEMORY, &two(keys, bytes)),
                    PutError::HeapFull { live_bytes, heap_bytes } => {
                        reply(status::HEAP_FULL, &two(live_bytes, heap_bytes));
                    }
                    PutError::HeapBusy { given, waited } => {
                        reply(status::HEAP_BUSY, &two(given as u64, waited.as_nanos() as u64));
                    }
                    PutError::HeapMemory { given } => reply(status::HEAP_MEMORY, &two(given as u64, 0)),
                }
            }
        }
    }

    /// Decodes the reply in a frame.
    ///
    /// # Errors
    /// [`WireError`] when the frame holds no valid reply.
    pub fn decode(frame: &Frame<'_>) -> Result<Reply, WireError> {
        let unknown = WireError::Unknown { op: frame.op(), status: frame.status() };
        if frame.op() != REPLY {
            return Err(unknown);
        }
        let unfitting = WireError::Body { op: frame.op(), len: frame.body().len() };
        let version = || Ok(u32::from_le_bytes(frame.body().try_into().map_err(|_| unfitting)?));
        let two = || {
            let both: [u64; 2] = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
            Ok((both[0], both[1]))
        };
        Ok(match frame.status() {
            status::WELCOME => {
                let both = version()?;
                Reply::Welcome { version: both as u16, level: (both >> u16::BITS) as u16 }
            }
            status::REFUSED => Reply::Refused { version: version()? },
            status::TURNED_AWAY => Reply::TurnedAway(Refusal::from_parts(two()?)),
            status::DENIED => Reply::Denied,
            status::MAILBOX => Reply::Mailbox { version: version()? },
            status::WAKE => Reply::Wake,
            status::CHALLENGE => Reply::Challenge { nonce: frame.body().try_into().map_err(|_| unfitting)? },
            status::TABLE => {
                let (proof, about) = frame.body().split_first_chunk().ok_or(unfitting)?;
                let about: &TableBytes = about.try_into().map_err(|_| unfitting)?;
                Reply::Table { proof: *proof, about: Box::new(*about) }
            }
            status::INSERTED => Reply::Put(Ok(PutOutcome::Inserted)),
            status::UPDATED => Reply::Put(Ok(PutOutcome::Updated)),
            status::EXISTS => Reply::Put(Ok(PutOutcome::Exists)),
            status::MISSING => Reply::Put(Ok(PutOutcome::Missing)),
            status::SWAPPED => Reply::Swapped(Ok(SwapOutcome::Swapped)),
            status::DIFFERS => Reply::Swapped(Ok(SwapOutcome::Differs)),
            status::SWAP_ABSENT => Reply::Swapped(Ok(SwapOutcome::Absent)),
            status::REMOVED => Reply::Removed(Ok(*frame.body().first().ok_or(unfitting)? != 0)),
            status::VALUE => Reply::Value(Some(frame.body().to_vec())),
            status::ABSENT => Reply::Value(None),
            of @ status::PARTS..status::PARTS_END => {
                let (nth, is_told) = ((of - status::PARTS) / 2, (of - status::PARTS) % 2 == 1);
                if !is_told && !frame.body().is_empty() {
                    return Err(unfitting);
                }
                let value = is_told.then(|| frame.body().to_vec());
                Reply::Part(Ok(PartOutcome { effect: EFFECTS[usize::from(nth)], value }))
            }
            status::CLEARED => {
                let [removed, progress_ppm, a, b] =
                    bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Cleared { removed, progress_ppm, place: [a, b] }
            }
            status::PART => {
                let parts = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Put(Err(PutError::Part(PartError::from_parts(parts))))
            }
            status::STAT => {
                Reply::Stat(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::SNAPSHOT => {
                Reply::Snapshot(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::GROWTH => {
                let body: GrowthBody =
                    bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Growth(body.into())
            }
            status::HEAP => {
                Reply::Heap(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::NOTES => {
                Reply::Notes(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::EVICTIONS => {
                Reply::Evictions(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::TIMES => {
                let times = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Times(Box::new(times))
            }
            status::HELD => {
                Reply::Held(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::GET_COUNTS => {
                Reply::GetCounts(bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?)
            }
            status::LOG if frame.body().is_empty() => Reply::Log(None),
            status::LOG => {
                let body: LogBody = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Log(Some(LogStatus::try_from(body).map_err(|NoLogBody| unfitting)?))
            }
            status::TAKEN => Reply::Taken,
            status::UNFIT => Reply::Unfit,
            status::KEY_LENGTH => two().map(|(given, max)| {
                Reply::Put(Err(PutError::KeyLength { given: given as usize, max: max as usize }))
            })?,
            status::VALUE_LENGTH => two().map(|(given, max)| {
                Reply::Put(Err(PutError::ValueLength { given: given as usize, max: max as usize }))
            })?,
            status::FULL => {
                let [keys, slots, bytes_max, heap_bytes] =
                    bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Put(Err(PutError::Full { keys, slots, bytes_max, heap_bytes }))
            }
            status::HEAP_FULL => two().map(|(live_bytes, heap_bytes)| {
                Reply::Put(Err(PutError::HeapFull { live_bytes, heap_bytes }))
            })?,
            status::HEAP_BUSY => two().map(|(given, waited)| {
                let waited = std::time::Duration::from_nanos(waited);
                Reply::Put(Err(PutError::HeapBusy { given: given as usize, waited }))
            })?,
            status::HEAP_MEMORY => {
                two().map(|(given, _)| Reply::Put(Err(PutError::HeapMemory { given: given as usize })))?
            }
            status::NO_MEMORY => {
                two().map(|(keys, bytes)| Reply::Put(Err(PutError::NoMemory { keys, bytes })))?
            }
            status::BUSY => {
                two().map(|(rounds, _)| Reply::Put(Err(PutError::Busy { rounds: rounds as u32 })))?
            }
            status::WITHDRAWN => Reply::Put(Err(PutError::Withdrawn)),
            status::TIME_TO_LIVE => two().map(|(given, _)| {
                let given = std::time::Duration::from_nanos(given);
                Reply::Put(Err(PutError::TimeToLive { given }))
            })?,
            status::NO_LIFE => Reply::Put(Err(PutError::NoLife)),
            status::ENTRY_NUMBERS => Reply::Put(Err(PutError::EntryNumbers)),
            status::OWNER_NUMBER => {
                two().map(|(given, _)| Reply::Put(Err(PutError::OwnerNumber { given: given as u16 })))?
            }
            status::OWNER_GONE => {
                two().map(|(owner, _)| Reply::Put(Err(PutError::OwnerGone { owner: owner as u16 })))?
            }
            status::NO_OWNERS => Reply::Put(Err(PutError::NoOwners)),
            status::ALREADY_STARTED => Reply::Put(Err(PutError::AlreadyStarted)),
            status::NOT_STARTED => Reply::Put(Err(PutError::NotStarted)),
            status::STARTED_LENGTH => two().map(|(given, stated)| {
                let (given, stated) = (given as usize, stated as usize);
                Reply::Put(Err(PutError::StartedLength { given, stated }))
            })?,
            status::START_BOUND => {
                let parts = bytemuck::try_pod_read_unaligned(frame.body()).map_err(|_| unfitting)?;
                Reply::Put(Err(PutError::StartBound(StartBound::from_parts(parts).ok_or(unfitting)?)))
            }
            status::PIN => Reply::Pin(*frame.body().first().ok_or(unfitting)? != 0),
            status::PINNED => Reply::Put(Err(PutError::Pinned)),
            status::PINS => two().map(|(max, _)| Reply::Put(Err(PutError::Pins { max: max as u32 })))?,
            _ => return FeedReply::decode(frame).unwrap_or(Err(unknown)).map(Reply::Feed),
        })
    }
}

/// Decodes the replies in `bytes`, which hold whole frames, to requests numbered from `first`.
///
/// # Errors
/// [`WireError`], also for half a frame or a reply to another request.
pub fn replies(mut bytes: &[u8], first: u64) -> Result<Vec<Reply>, WireError> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let frame = decode(bytes)?.ok_or(WireError::Half)?;
        let due = first + replies.len() as u64;
        if frame.id != due {
            return Err(WireError::Order { given: frame.id, due });
        }
        replies.push(Reply::decode(&frame)?);
        bytes = &bytes[frame.length..];
    }
    Ok(replies)
}
