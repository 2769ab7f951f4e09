//! The control protocol: frames for everything that is not a one-sided GET.
//!
//! ```text
//! 0..4    length of the body, bytes (at most 64 KiB)
//! 4..6    operation (request) or reply
//! 6..8    status of a reply, 0 in a request
//! 8..16   number of the request, repeated in its reply
//! 16..    body
//! ```
//!
//! The first request is `Hello`, with magic and protocol version. Its reply, `Welcome`, carries a
//! descriptor of the region that can only be mapped for reading. After that, requests may be
//! pipelined. Replies come in the order of the requests.
//!
//! A client may ask for a [mailbox](crate::server::ServerConfig::mailbox_bytes_max) with the request
//! `Mailbox`. Its reply carries the descriptor of memory that both sides may write. From then on
//! each request goes through that memory or, as before, over the socket. A frame `Wake`, which has
//! no reply and may be sent by either side, wakes the other one: something is in the memory.
//!
//! A value of more than [`FRAME_VALUE_MAX`] bytes, or of more than the table's longest, does not travel in
//! one frame. It is *uploaded*: `LongBegin` names its key and length, `LongPiece`s bring its bytes in
//! order, and `LongPut` or `LongSwap` puts it. Each has a reply, and they may be pipelined with each other
//! and with other requests. A connection has one upload at a time. `LongDrop`, another `LongBegin`, and the
//! end of the connection drop it. An upload that was refused takes nothing more: what follows of it is
//! answered `Unfit`, and so is what belongs to no upload.
//!
//! Decoding takes any bytes. It gives a frame, asks for more bytes, or says what is wrong.

use crate::layout::extent::{Expected, Reference};
use crate::layout::geometry::Geometry;
use crate::layout::slot::REFERENCE_BYTES;
use crate::outcome::{GrowthCounts, HeapCounts, IndexCounts, PutError, PutMode, PutOutcome, SwapOutcome};
use crate::snapshot::SaveStep;
use bytemuck::{Pod, Zeroable};

/// The first bytes of a `Hello`.
const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"ONEREAD?");
/// Version of the control protocol.
pub const PROTOCOL_VERSION: u32 = 2;
/// Longest body, in bytes: longer than any key and value with their lengths.
pub const BODY_MAX: usize = 1 << 16;
const HEAD: usize = size_of::<FrameHead>();
/// Longest value that travels in one frame, in bytes; of a table with shorter ones, the table's longest. A
/// reply with it is 4 KiB long: a datagram, too, can carry it.
pub const FRAME_VALUE_MAX: usize = 4096 - HEAD;
/// Longest piece of a value that is uploaded over a socket. Elsewhere it is [`FRAME_VALUE_MAX`].
pub(crate) const SOCKET_PIECE_MAX: usize = 60 << 10;
/// Longest body of a reply without a value.
const COUNTS_BYTES: usize = {
    let (stats, status) = (size_of::<ServerStats>(), size_of::<SnapshotStatus>());
    if stats > status { stats } else { status }
};
/// Length of the frame of a `Hello`.
pub(crate) const HELLO_BYTES: usize = HEAD + size_of::<HelloBody>();

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FrameHead {
    body_len: u32,
    op: u16,
    status: u16,
    id: u64,
}

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
    pub const LONG_BEGIN: u16 = 14;
    pub const LONG_PIECE: u16 = 15;
    pub const LONG_PUT: u16 = 16;
    pub const LONG_SWAP: u16 = 17;
    pub const LONG_SWAP_EXTENT: u16 = 18;
    pub const LONG_DROP: u16 = 19;
    pub const HEAP: u16 = 20;
    pub const REPLY: u16 = 0x8000;
}

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
}

/// Reasons to turn a client away.
mod reason {
    pub const USER: u64 = 1;
    pub const SERVER_FULL: u64 = 2;
    pub const PEER_FULL: u64 = 3;
    pub const DESCRIPTORS: u64 = 4;
    pub const STOPPING: u64 = 5;
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
        /// What the put may do.
        mode: PutMode,
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
    LongBegin {
        /// The key that it is for.
        key: &'a [u8],
        /// Bytes of the value.
        len: u32,
    },
    /// Brings the next bytes of the value.
    LongPiece {
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Puts the key with the value, all of which was brought.
    LongPut {
        /// What the put may do.
        mode: PutMode,
        /// The key.
        key: &'a [u8],
    },
    /// Puts the key with that value if its value is still the expected one.
    LongSwap {
        /// The key.
        key: &'a [u8],
        /// The value that the key must have.
        expected: Expected<'a>,
    },
    /// Drops the upload, if there is one.
    LongDrop,
    /// Removes a key.
    Remove {
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
    /// Asks what became of the server's snapshots.
    Snapshot {
        /// Asks for one more, too.
        begin: bool,
    },
    /// Asks what a table that grows is made of.
    Growth {
        /// Has segments with few keys merged, too.
        shrink: bool,
    },
    /// Asks what the memory of long values is used for.
    Heap,
    /// Asks for a mailbox, which further requests may go through.
    Mailbox {
        /// The client's version of mailboxes.
        version: u32,
    },
    /// Wakes the server: requests are in the mailbox. Has no reply.
    Wake,
}

/// The server's counters, as a reply carries them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct ServerStats {
    /// Keys in the table.
    pub keys: u64,
    /// Keys inserted since the server started.
    pub inserts: u64,
    /// Keys updated since the server started.
    pub updates: u64,
    /// Keys removed since the server started.
    pub removes: u64,
    /// Keys moved since the server started.
    pub moves: u64,
    /// Displaced keys brought home; part of `moves`.
    pub homings: u64,
    /// Puts that waited for a grace period.
    pub waits: u64,
    /// Slots allocated, overflow included.
    pub slots: u64,
    /// Main slots.
    pub main_slots: u64,
    /// Connections, counted as by [`ServerConfig::clients_max`](crate::ServerConfig::clients_max).
    pub clients: u64,
    /// The server's process id.
    pub pid: u64,
    /// The number of this server process among all that served this region.
    pub incarnation: u64,
}

impl ServerStats {
    pub(crate) fn new(counts: IndexCounts, clients: u64, incarnation: u64) -> ServerStats {
        let IndexCounts { keys, inserts, updates, removes, moves, homings, waits, slots, main_slots } =
            counts;
        let pid = u64::from(std::process::id());
        ServerStats {
            keys,
            inserts,
            updates,
            removes,
            moves,
            homings,
            waits,
            slots,
            main_slots,
            clients,
            pid,
            incarnation,
        }
    }
}

/// [`GrowthCounts`] as a reply carries them: no longer than [`ServerStats`].
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GrowthBody {
    segments: u32,
    segments_max: u32,
    splitting: u32,
    merging: u32,
    depth: u32,
    reserved: u32,
    load_min_ppm: u32,
    load_max_ppm: u32,
    splits: u64,
    merges: u64,
    given_up: u64,
    moved: u64,
    refused: u64,
    bytes_backed: u64,
    bytes_max: u64,
    bytes_returned: u64,
}

const _: () = assert!(size_of::<GrowthBody>() == 96 && size_of::<GrowthBody>() <= size_of::<ServerStats>());

impl From<GrowthCounts> for GrowthBody {
    fn from(counts: GrowthCounts) -> GrowthBody {
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        GrowthBody {
            segments: short(counts.segments),
            segments_max: short(counts.segments_max),
            splitting: short(counts.splitting),
            merging: short(counts.merging),
            depth: short(counts.depth),
            reserved: 0,
            load_min_ppm: short(counts.load_min_ppm),
            load_max_ppm: short(counts.load_max_ppm),
            splits: counts.splits,
            merges: counts.merges,
            given_up: counts.given_up,
            moved: counts.moved,
            refused: counts.refused,
            bytes_backed: counts.bytes_backed,
            bytes_max: counts.bytes_max,
            bytes_returned: counts.bytes_returned,
        }
    }
}

impl From<GrowthBody> for GrowthCounts {
    fn from(body: GrowthBody) -> GrowthCounts {
        GrowthCounts {
            segments: body.segments.into(),
            segments_max: body.segments_max.into(),
            depth: body.depth.into(),
            load_min_ppm: body.load_min_ppm.into(),
            load_max_ppm: body.load_max_ppm.into(),
            splitting: body.splitting.into(),
            merging: body.merging.into(),
            splits: body.splits,
            merges: body.merges,
            given_up: body.given_up,
            moved: body.moved,
            refused: body.refused,
            bytes_backed: body.bytes_backed,
            bytes_max: body.bytes_max,
            bytes_returned: body.bytes_returned,
        }
    }
}

/// What became of a server's snapshots, as a reply carries it. Times are in milliseconds since 1970.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct SnapshotStatus {
    /// Time between snapshots in milliseconds. 0: the server makes none. `u64::MAX`: only on request,
    /// and when it stops.
    pub every_ms: u64,
    /// Number of the last one that somebody asked for. They are counted from 1 since the server
    /// started.
    pub asked: u64,
    /// Number of the last one that was begun.
    pub begun: u64,
    /// Number of the last one that has ended, made or not.
    pub finished: u64,
    /// Number of the last one that was made. Below `finished`, the last one has failed.
    pub saved: u64,
    /// Parts of a million that are done of the one being made.
    pub progress_ppm: u64,
    /// Time up to which the last one made has every acknowledged change. 0: none was made yet.
    pub saved_ms: u64,
    /// How long the last one made took, in microseconds.
    pub took_us: u64,
    /// Keys in it.
    pub keys: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// Time of the last failure. 0: none has failed yet.
    pub failed_ms: u64,
    /// [`SnapshotStatus::failure`] in numbers.
    pub failure: u64,
}

impl SnapshotStatus {
    /// Whether the server makes snapshots.
    pub fn is_on(&self) -> bool {
        self.every_ms != 0
    }

    /// The time between snapshots. `None`: only on request, and when the server stops; or not at all.
    pub fn every(&self) -> Option<std::time::Duration> {
        (self.is_on() && self.every_ms != u64::MAX).then(|| std::time::Duration::from_millis(self.every_ms))
    }

    /// The last failure: which step, and what the operating system said.
    pub fn failure(&self) -> Option<(SaveStep, std::io::Error)> {
        let error = std::io::Error::from_raw_os_error(self.failure as u32 as i32);
        (self.failed_ms != 0).then(|| (SaveStep::from_number((self.failure >> 32) as u32), error))
    }
}

fn allowing(uid: u32) -> &'static str {
    if uid == crate::place::UNMAPPED {
        ", who is nobody, or anybody without a number in the server's user namespace: a container must map the client's user to one"
    } else {
        "; the server's user can allow that in `ServerConfig::allow_uids` or `allow_read_uids`"
    }
}

/// Why a server turns a client away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not serve this user.
    #[error("it does not serve user {uid}{}", allowing(*.uid))]
    User {
        /// The client's user, as the server sees it.
        uid: u32,
    },
    /// It has as many connections as it takes.
    #[error(
        "it has {max} connections, its limit; raise it (`ServerConfig::clients_max`), or use fewer clients"
    )]
    ServerFull {
        /// The limit.
        max: u64,
    },
    /// This peer has as many connections as one may have.
    #[error(
        "this peer has {max} connections, the limit for each; raise it (`ServerConfig::clients_per_peer`), or use fewer clients"
    )]
    PeerFull {
        /// The limit.
        max: u64,
    },
    /// Its process can open no more connections.
    #[error("it is out of file descriptors; raise its limit (RLIMIT_NOFILE)")]
    Descriptors,
    /// It is stopping.
    #[error("it is stopping; try again when it is back")]
    Stopping,
    /// A reason that this version does not know.
    #[error(
        "for a reason that this version does not know ({code}); use the same version of oneread on both sides"
    )]
    Other {
        /// The reason's number.
        code: u64,
    },
}

impl Refusal {
    /// The reason's number, and what else the error says.
    fn to_parts(self) -> (u64, u64) {
        match self {
            Refusal::User { uid } => (reason::USER, uid.into()),
            Refusal::ServerFull { max } => (reason::SERVER_FULL, max),
            Refusal::PeerFull { max } => (reason::PEER_FULL, max),
            Refusal::Descriptors => (reason::DESCRIPTORS, 0),
            Refusal::Stopping => (reason::STOPPING, 0),
            Refusal::Other { code } => (code, 0),
        }
    }

    fn from_parts((code, about): (u64, u64)) -> Refusal {
        match code {
            reason::USER => Refusal::User { uid: about as u32 },
            reason::SERVER_FULL => Refusal::ServerFull { max: about },
            reason::PEER_FULL => Refusal::PeerFull { max: about },
            reason::DESCRIPTORS => Refusal::Descriptors,
            reason::STOPPING => Refusal::Stopping,
            code => Refusal::Other { code },
        }
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The server accepts the client. The region's descriptor comes with it.
    Welcome {
        /// The server's protocol version.
        version: u32,
    },
    /// How a put ended.
    Put(Result<PutOutcome, PutError>),
    /// How a compare-and-swap ended.
    Swapped(Result<SwapOutcome, PutError>),
    /// How a remove ended.
    Removed(Result<bool, PutError>),
    /// What the server found.
    Value(Option<Vec<u8>>),
    /// The server's counters.
    Stat(ServerStats),
    /// What became of its snapshots.
    Snapshot(SnapshotStatus),
    /// What its table is made of, and what it did to grow and shrink.
    Growth(GrowthCounts),
    /// What the memory of long values is used for.
    Heap(HeapCounts),
    /// A part of an upload was taken, or an upload dropped.
    Taken,
    /// A request belongs to no upload, or does not fit the one that there is. That one is dropped.
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
        /// The server's protocol version, or its version of mailboxes: 0 if it has none, the one
        /// asked for if it has no room for another one now.
        version: u32,
    },
    /// Wakes the client: a reply is in the mailbox. Belongs to no request on the socket.
    Wake,
}

/// Why bytes are not a valid frame. The connection that they came from is of no further use.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The announced body is longer than any frame's.
    #[error("a frame of {given} bytes was announced, the longest is {BODY_MAX}")]
    TooLong {
        /// Length announced.
        given: u32,
    },
    /// An operation or status this version does not know.
    #[error("unknown operation {op} with status {status}")]
    Unknown {
        /// The operation.
        op: u16,
        /// The status.
        status: u16,
    },
    /// A body that does not fit its operation.
    #[error("operation {op} with an unfitting body of {len} bytes")]
    Body {
        /// The operation.
        op: u16,
        /// Length of the body.
        len: usize,
    },
    /// A message that ends within a frame.
    #[error("half a frame")]
    Half,
    /// A reply to another request than the one that is due.
    #[error("a reply to request {given} instead of {due}")]
    Order {
        /// The number of the request that was answered.
        given: u64,
        /// The number of the request whose reply is due.
        due: u64,
    },
}

/// Longest value that travels in one frame to or from a table of this geometry, in bytes.
pub fn frame_value_max(geometry: &Geometry) -> usize {
    FRAME_VALUE_MAX.min(geometry.value_max())
}

/// Longest request for a table of this geometry, in bytes. (Over a socket, pieces of uploads may be longer.)
pub fn request_bytes_max(geometry: &Geometry) -> usize {
    // A compare-and-swap: two lengths, a key, two values.
    HEAD + 2 * size_of::<u16>() + geometry.key_max() + 2 * frame_value_max(geometry)
}

/// Longest reply for a table of this geometry, in bytes.
pub fn reply_bytes_max(geometry: &Geometry) -> usize {
    HEAD + COUNTS_BYTES.max(frame_value_max(geometry))
}

/// Longest reply to this request, in bytes.
#[cfg(feature = "verbs")]
pub(crate) fn reply_bytes_max_to(request: &Request<'_>, geometry: &Geometry) -> usize {
    if matches!(request, Request::Get { .. }) { reply_bytes_max(geometry) } else { HEAD + COUNTS_BYTES }
}

/// Longest value in a request or reply through a mailbox, in bytes: one that stands in its slot. What has longer
/// ones goes as a message, so that a mailbox does not grow with the table's longest value.
fn cell_value_max(geometry: &Geometry) -> usize {
    frame_value_max(geometry).min(geometry.shape().payload_max())
}

/// Longest request, and longest reply, that go through a mailbox, in bytes.
pub(crate) fn cell_frames_max(geometry: &Geometry) -> (usize, usize) {
    let value_max = cell_value_max(geometry);
    (HEAD + 2 * size_of::<u16>() + geometry.key_max() + 2 * value_max, HEAD + COUNTS_BYTES.max(value_max))
}

/// Whether a request that the table takes fits a cell of a mailbox, and so does its reply.
pub(crate) fn fits_cells(request: &Request<'_>, geometry: &Geometry) -> bool {
    let longest = match request {
        Request::Put { value, .. } | Request::SwapExtent { value, .. } => value.len(),
        Request::Swap { expected, value, .. } => expected.len().max(value.len()),
        Request::Get { .. } => frame_value_max(geometry),
        _ => 0,
    };
    longest <= cell_value_max(geometry)
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

/// A decoded frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    op: u16,
    status: u16,
    /// Number of the request.
    pub id: u64,
    body: &'a [u8],
    /// Bytes that the frame takes in the buffer.
    pub length: usize,
}

/// Decodes the first frame in `bytes`. `None` when more bytes are needed.
///
/// # Errors
/// [`WireError::TooLong`].
pub fn decode(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Ok(None) };
    let head: FrameHead = bytemuck::pod_read_unaligned(head);
    let length = head.body_len as usize;
    if length > BODY_MAX {
        return Err(WireError::TooLong { given: head.body_len });
    }
    Ok(rest.get(..length).map(|body| Frame {
        op: head.op,
        status: head.status,
        id: head.id,
        body,
        length: HEAD + length,
    }))
}

/// Appends a frame with the parts of its body.
fn encode(out: &mut Vec<u8>, op: u16, status: u16, id: u64, body: &[&[u8]]) {
    let body_len = body.iter().map(|part| part.len()).sum::<usize>();
    debug_assert!(body_len <= BODY_MAX);
    out.extend_from_slice(bytemuck::bytes_of(&FrameHead { body_len: body_len as u32, op, status, id }));
    body.iter().for_each(|part| out.extend_from_slice(part));
}

impl<'a> Request<'a> {
    /// Appends this request to `out`.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        match self {
            Request::Hello { version } => {
                let body = HelloBody { magic: HELLO_MAGIC, version: *version, reserved: 0 };
                encode(out, op::HELLO, 0, id, &[bytemuck::bytes_of(&body)]);
            }
            Request::Put { mode, key, value } => {
                let op = match mode {
                    PutMode::Upsert => op::UPSERT,
                    PutMode::Insert => op::INSERT,
                    PutMode::Update => op::UPDATE,
                };
                encode(out, op, 0, id, &[&(key.len() as u16).to_le_bytes(), key, value]);
            }
            Request::Swap { key, expected, value } => {
                let lengths = [key.len() as u16, expected.len() as u16].map(u16::to_le_bytes).concat();
                encode(out, op::SWAP, 0, id, &[&lengths, key, expected, value]);
            }
            Request::SwapExtent { key, expected, value } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::SWAP_EXTENT, 0, id, &[&klen, &expected.to_bytes(), key, value]);
            }
            Request::LongBegin { key, len } => {
                encode(out, op::LONG_BEGIN, 0, id, &[&len.to_le_bytes(), key]);
            }
            Request::LongPiece { bytes } => encode(out, op::LONG_PIECE, 0, id, &[bytes]),
            Request::LongPut { mode, key } => {
                let mode = match mode {
                    PutMode::Upsert => op::UPSERT,
                    PutMode::Insert => op::INSERT,
                    PutMode::Update => op::UPDATE,
                };
                encode(out, op::LONG_PUT, 0, id, &[&mode.to_le_bytes(), key]);
            }
            Request::LongSwap { key, expected: Expected::Value(expected) } => {
                let klen = (key.len() as u16).to_le_bytes();
                encode(out, op::LONG_SWAP, 0, id, &[&klen, key, expected]);
            }
            Request::LongSwap { key, expected: Expected::Extent(expected) } => {
                encode(out, op::LONG_SWAP_EXTENT, 0, id, &[&expected.to_bytes(), key]);
            }
            Request::LongDrop => encode(out, op::LONG_DROP, 0, id, &[]),
            Request::Heap => encode(out, op::HEAP, 0, id, &[]),
            Request::Remove { key } => encode(out, op::REMOVE, 0, id, &[key]),
            Request::Get { key } => encode(out, op::GET, 0, id, &[key]),
            Request::Stat => encode(out, op::STAT, 0, id, &[]),
            Request::Snapshot { begin } => encode(out, op::SNAPSHOT, 0, id, &[&[u8::from(*begin)]]),
            Request::Growth { shrink } => encode(out, op::GROWTH, 0, id, &[&[u8::from(*shrink)]]),
            Request::Mailbox { version } => encode(out, op::MAILBOX, 0, id, &[&version.to_le_bytes()]),
            Request::Wake => encode(out, op::WAKE, 0, id, &[]),
        }
    }

    /// Decodes the request in a frame.
    ///
    /// # Errors
    /// [`WireError`] when the frame holds no valid request.
    pub fn decode(frame: &Frame<'a>) -> Result<Request<'a>, WireError> {
        let unfitting = WireError::Body { op: frame.op, len: frame.body.len() };
        let put = |mode| {
            let (klen, rest) = frame.body.split_first_chunk::<2>().ok_or(unfitting)?;
            let (key, value) =
                rest.split_at_checked(usize::from(u16::from_le_bytes(*klen))).ok_or(unfitting)?;
            Ok(Request::Put { mode, key, value })
        };
        let swap = || {
            let (klen, rest) = frame.body.split_first_chunk::<2>()?;
            let (elen, rest) = rest.split_first_chunk::<2>()?;
            let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            let (expected, value) = rest.split_at_checked(u16::from_le_bytes(*elen).into())?;
            Some(Request::Swap { key, expected, value })
        };
        let swap_extent = || {
            let (klen, rest) = frame.body.split_first_chunk::<2>()?;
            let (expected, rest) = rest.split_first_chunk::<REFERENCE_BYTES>()?;
            let (key, value) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::SwapExtent { key, expected: Reference::from_bytes(*expected), value })
        };
        let long_put = || {
            let (mode, key) = frame.body.split_first_chunk::<2>()?;
            let mode = match u16::from_le_bytes(*mode) {
                op::UPSERT => PutMode::Upsert,
                op::INSERT => PutMode::Insert,
                op::UPDATE => PutMode::Update,
                _ => return None,
            };
            Some(Request::LongPut { mode, key })
        };
        let long_swap = || {
            let (klen, rest) = frame.body.split_first_chunk::<2>()?;
            let (key, expected) = rest.split_at_checked(u16::from_le_bytes(*klen).into())?;
            Some(Request::LongSwap { key, expected: Expected::Value(expected) })
        };
        let flag = || match frame.body {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(unfitting),
        };
        match frame.op {
            op::HELLO => {
                let hello: HelloBody = bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?;
                if hello.magic != HELLO_MAGIC {
                    return Err(unfitting);
                }
                Ok(Request::Hello { version: hello.version })
            }
            op::UPSERT => put(PutMode::Upsert),
            op::INSERT => put(PutMode::Insert),
            op::UPDATE => put(PutMode::Update),
            op::SWAP => swap().ok_or(unfitting),
            op::REMOVE => Ok(Request::Remove { key: frame.body }),
            op::GET => Ok(Request::Get { key: frame.body }),
            op::STAT if frame.body.is_empty() => Ok(Request::Stat),
            op::MAILBOX => {
                let version = frame.body.try_into().map_err(|_| unfitting)?;
                Ok(Request::Mailbox { version: u32::from_le_bytes(version) })
            }
            op::WAKE if frame.body.is_empty() => Ok(Request::Wake),
            op::SNAPSHOT => Ok(Request::Snapshot { begin: flag()? }),
            op::GROWTH => Ok(Request::Growth { shrink: flag()? }),
            op::SWAP_EXTENT => swap_extent().ok_or(unfitting),
            op::LONG_BEGIN => {
                let (len, key) = frame.body.split_first_chunk::<4>().ok_or(unfitting)?;
                Ok(Request::LongBegin { key, len: u32::from_le_bytes(*len) })
            }
            op::LONG_PIECE => Ok(Request::LongPiece { bytes: frame.body }),
            op::LONG_PUT => long_put().ok_or(unfitting),
            op::LONG_SWAP => long_swap().ok_or(unfitting),
            op::LONG_SWAP_EXTENT => {
                let (expected, key) = frame.body.split_first_chunk().ok_or(unfitting)?;
                let expected = Expected::Extent(Reference::from_bytes(*expected));
                Ok(Request::LongSwap { key, expected })
            }
            op::LONG_DROP if frame.body.is_empty() => Ok(Request::LongDrop),
            op::HEAP if frame.body.is_empty() => Ok(Request::Heap),
            op::STAT | op::WAKE | op::LONG_DROP | op::HEAP => Err(unfitting),
            op => Err(WireError::Unknown { op, status: frame.status }),
        }
    }
}

impl Reply {
    /// Appends this reply to `out`.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let mut reply = |status, body: &[u8]| encode(out, op::REPLY, status, id, &[body]);
        let two = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
        match self {
            Reply::Welcome { version } => reply(status::WELCOME, &version.to_le_bytes()),
            Reply::Refused { version } => reply(status::REFUSED, &version.to_le_bytes()),
            Reply::TurnedAway(why) => {
                let (code, about) = why.to_parts();
                reply(status::TURNED_AWAY, &two(code, about));
            }
            Reply::Denied => reply(status::DENIED, &[]),
            Reply::Mailbox { version } => reply(status::MAILBOX, &version.to_le_bytes()),
            Reply::Wake => reply(status::WAKE, &[]),
            Reply::Put(Ok(PutOutcome::Inserted)) => reply(status::INSERTED, &[]),
            Reply::Put(Ok(PutOutcome::Updated)) => reply(status::UPDATED, &[]),
            Reply::Put(Ok(PutOutcome::Exists)) => reply(status::EXISTS, &[]),
            Reply::Put(Ok(PutOutcome::Missing)) => reply(status::MISSING, &[]),
            Reply::Swapped(Ok(SwapOutcome::Swapped)) => reply(status::SWAPPED, &[]),
            Reply::Swapped(Ok(SwapOutcome::Differs)) => reply(status::DIFFERS, &[]),
            Reply::Swapped(Ok(SwapOutcome::Absent)) => reply(status::SWAP_ABSENT, &[]),
            Reply::Removed(Ok(there)) => reply(status::REMOVED, &[u8::from(*there)]),
            Reply::Value(Some(value)) => reply(status::VALUE, value),
            Reply::Value(None) => reply(status::ABSENT, &[]),
            Reply::Stat(stats) => reply(status::STAT, bytemuck::bytes_of(stats)),
            Reply::Snapshot(about) => reply(status::SNAPSHOT, bytemuck::bytes_of(about)),
            Reply::Growth(counts) => reply(status::GROWTH, bytemuck::bytes_of(&GrowthBody::from(*counts))),
            Reply::Heap(counts) => reply(status::HEAP, bytemuck::bytes_of(counts)),
            Reply::Taken => reply(status::TAKEN, &[]),
            Reply::Unfit => reply(status::UNFIT, &[]),
            Reply::Put(Err(error)) | Reply::Swapped(Err(error)) | Reply::Removed(Err(error)) => {
                match *error {
                    PutError::KeyLength { given, max } => {
                        reply(status::KEY_LENGTH, &two(given as u64, max as u64));
                    }
                    PutError::ValueLength { given, max } => {
                        reply(status::VALUE_LENGTH, &two(given as u64, max as u64));
                    }
                    // Not a server's answer: it knows one length only.
                    PutError::EncryptedLength { stored, stored_max, .. } => {
                        reply(status::VALUE_LENGTH, &two(stored as u64, stored_max as u64));
                    }
                    PutError::Full { keys, slots, bytes_max, heap_bytes } => {
                        reply(status::FULL, bytemuck::bytes_of(&[keys, slots, bytes_max, heap_bytes]));
                    }
                    PutError::Busy { rounds } => reply(status::BUSY, &two(rounds.into(), 0)),
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
        let unknown = WireError::Unknown { op: frame.op, status: frame.status };
        if frame.op != op::REPLY {
            return Err(unknown);
        }
        let unfitting = WireError::Body { op: frame.op, len: frame.body.len() };
        let version = || Ok(u32::from_le_bytes(frame.body.try_into().map_err(|_| unfitting)?));
        let two = || {
            let both: [u64; 2] = bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?;
            Ok((both[0], both[1]))
        };
        Ok(match frame.status {
            status::WELCOME => Reply::Welcome { version: version()? },
            status::REFUSED => Reply::Refused { version: version()? },
            status::TURNED_AWAY => Reply::TurnedAway(Refusal::from_parts(two()?)),
            status::DENIED => Reply::Denied,
            status::MAILBOX => Reply::Mailbox { version: version()? },
            status::WAKE => Reply::Wake,
            status::INSERTED => Reply::Put(Ok(PutOutcome::Inserted)),
            status::UPDATED => Reply::Put(Ok(PutOutcome::Updated)),
            status::EXISTS => Reply::Put(Ok(PutOutcome::Exists)),
            status::MISSING => Reply::Put(Ok(PutOutcome::Missing)),
            status::SWAPPED => Reply::Swapped(Ok(SwapOutcome::Swapped)),
            status::DIFFERS => Reply::Swapped(Ok(SwapOutcome::Differs)),
            status::SWAP_ABSENT => Reply::Swapped(Ok(SwapOutcome::Absent)),
            status::REMOVED => Reply::Removed(Ok(*frame.body.first().ok_or(unfitting)? != 0)),
            status::VALUE => Reply::Value(Some(frame.body.to_vec())),
            status::ABSENT => Reply::Value(None),
            status::STAT => Reply::Stat(bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?),
            status::SNAPSHOT => {
                Reply::Snapshot(bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?)
            }
            status::GROWTH => {
                let body: GrowthBody = bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?;
                Reply::Growth(body.into())
            }
            status::HEAP => Reply::Heap(bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?),
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
                    bytemuck::try_pod_read_unaligned(frame.body).map_err(|_| unfitting)?;
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
            _ => return Err(unknown),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any bytes give a frame, ask for more, or are an error. A request that decodes encodes to
        /// itself.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), op in 0u16..22, len in 0u32..64) {
            let mut framed = bytes.clone();
            if framed.len() >= HEAD {
                framed[..4].copy_from_slice(&len.to_le_bytes());
                framed[4..6].copy_from_slice(&op.to_le_bytes());
            }
            for bytes in [&bytes, &framed] {
                if let Ok(Some(frame)) = decode(bytes) {
                    let _ = Reply::decode(&frame);
                    if let Ok(request) = Request::decode(&frame) {
                        let mut again = Vec::new();
                        request.encode(frame.id, &mut again);
                        let frame = decode(&again).unwrap().unwrap();
                        prop_assert_eq!(Request::decode(&frame).unwrap(), request);
                    }
                }
            }
        }
    }

    #[test]
    fn replies_round_trip() {
        let replies = [
            Reply::Welcome { version: 1 },
            Reply::Refused { version: 9 },
            Reply::Mailbox { version: 1 },
            Reply::Wake,
            Reply::Put(Ok(PutOutcome::Inserted)),
            Reply::Put(Ok(PutOutcome::Updated)),
            Reply::Put(Ok(PutOutcome::Exists)),
            Reply::Put(Ok(PutOutcome::Missing)),
            Reply::Swapped(Ok(SwapOutcome::Swapped)),
            Reply::Swapped(Ok(SwapOutcome::Differs)),
            Reply::Swapped(Ok(SwapOutcome::Absent)),
            Reply::Removed(Ok(true)),
            Reply::Removed(Ok(false)),
            Reply::Value(Some(b"value".to_vec())),
            Reply::Value(Some(Vec::new())),
            Reply::Value(None),
            Reply::Stat(ServerStats { keys: 1, pid: 2, ..Default::default() }),
            Reply::Snapshot(SnapshotStatus { every_ms: 1, failure: 2, ..Default::default() }),
            Reply::Growth(GrowthCounts { segments: 1, bytes_backed: 2, ..Default::default() }),
            Reply::Heap(HeapCounts { values: 1, returned_bytes: 2, ..Default::default() }),
            Reply::Taken,
            Reply::Unfit,
            Reply::Put(Err(PutError::KeyLength { given: 0, max: 255 })),
            Reply::Put(Err(PutError::ValueLength { given: 100, max: 32 })),
            Reply::Put(Err(PutError::Full { keys: 9, slots: 10, bytes_max: 11, heap_bytes: 12 })),
            Reply::Put(Err(PutError::Busy { rounds: 7 })),
            Reply::Put(Err(PutError::NoMemory { keys: 11, bytes: 1 << 20 })),
            Reply::Put(Err(PutError::HeapFull { live_bytes: 5, heap_bytes: 6 })),
            Reply::Put(Err(PutError::HeapBusy { given: 5, waited: std::time::Duration::from_nanos(6) })),
            Reply::Put(Err(PutError::HeapMemory { given: 5 })),
            Reply::Denied,
            Reply::TurnedAway(Refusal::User { uid: 7 }),
            Reply::TurnedAway(Refusal::ServerFull { max: 7 }),
            Reply::TurnedAway(Refusal::PeerFull { max: 7 }),
            Reply::TurnedAway(Refusal::Descriptors),
            Reply::TurnedAway(Refusal::Stopping),
            Reply::TurnedAway(Refusal::Other { code: 99 }),
        ];
        let mut bytes = Vec::new();
        replies.iter().enumerate().for_each(|(id, reply)| reply.encode(id as u64, &mut bytes));
        let mut rest = bytes.as_slice();
        for (id, reply) in replies.iter().enumerate() {
            let frame = decode(rest).unwrap().unwrap();
            assert_eq!((frame.id, &Reply::decode(&frame).unwrap()), (id as u64, reply));
            rest = &rest[frame.length..];
        }
        assert!(rest.is_empty());
    }

    /// Builds a frame from its fields.
    fn frame(op: u16, status: u16, id: u64, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_le_bytes();
        [&length[..], &op.to_le_bytes(), &status.to_le_bytes(), &id.to_le_bytes(), body].concat()
    }

    /// The bytes of each request. Servers and clients of other builds rely on them; a change needs
    /// another protocol version.
    #[test]
    fn golden_requests() {
        assert_eq!((PROTOCOL_VERSION, BODY_MAX, HEAD, FRAME_VALUE_MAX), (2, 65_536, 16, 4_080));
        let put = |mode| Request::Put { mode, key: b"key", value: b"value" };
        let hello = b"ONEREAD?\x01\x02\x03\x04\0\0\0\0";
        let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
        let named = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0";
        let after = |before: &[u8], rest: &[u8]| [before, named, rest].concat();
        let swap_extent = after(b"\x03\0", b"keyvalue");
        let long_swap_extent = after(b"", b"key");
        let long_put = |mode| Request::LongPut { mode, key: b"key" };
        let long_swap = |expected| Request::LongSwap { key: b"key", expected };
        for (op, request, body) in [
            (1, Request::Hello { version: 0x0403_0201 }, &hello[..]),
            (2, put(PutMode::Upsert), b"\x03\0keyvalue"),
            (3, put(PutMode::Insert), b"\x03\0keyvalue"),
            (4, put(PutMode::Update), b"\x03\0keyvalue"),
            (5, Request::Remove { key: b"key" }, b"key"),
            (6, Request::Stat, b""),
            (7, Request::Get { key: b"key" }, b"key"),
            (8, Request::Mailbox { version: 0x0403_0201 }, b"\x01\x02\x03\x04"),
            (9, Request::Wake, b""),
            (
                10,
                Request::Swap { key: b"key", expected: b"old", value: b"value" },
                b"\x03\0\x03\0keyoldvalue",
            ),
            (11, Request::Snapshot { begin: false }, b"\0"),
            (11, Request::Snapshot { begin: true }, b"\x01"),
            (12, Request::Growth { shrink: false }, b"\0"),
            (12, Request::Growth { shrink: true }, b"\x01"),
            (13, Request::SwapExtent { key: b"key", expected: extent, value: b"value" }, &swap_extent),
            (14, Request::LongBegin { key: b"key", len: 0x0403_0201 }, b"\x01\x02\x03\x04key"),
            (15, Request::LongPiece { bytes: b"bytes" }, b"bytes"),
            (16, long_put(PutMode::Upsert), b"\x02\0key"),
            (16, long_put(PutMode::Insert), b"\x03\0key"),
            (16, long_put(PutMode::Update), b"\x04\0key"),
            (17, long_swap(Expected::Value(b"old")), b"\x03\0keyold"),
            (18, long_swap(Expected::Extent(extent)), &long_swap_extent),
            (19, Request::LongDrop, b""),
            (20, Request::Heap, b""),
        ] {
            let id = 0x0102_0304_0506_0708;
            let expected = frame(op, 0, id, body);
            let mut bytes = b"before".to_vec();
            request.encode(id, &mut bytes);
            assert_eq!(bytes, [b"before", &expected[..]].concat(), "{request:?}");
            let decoded = decode(&expected).unwrap().unwrap();
            assert_eq!((decoded.id, decoded.length), (id, expected.len()));
            assert_eq!(Request::decode(&decoded), Ok(request));
        }
    }

    /// The bytes of each reply.
    #[test]
    fn golden_replies() {
        let two = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let counts = IndexCounts {
            keys: 1,
            inserts: 2,
            updates: 3,
            removes: 4,
            moves: 5,
            homings: 6,
            waits: 7,
            slots: 8,
            main_slots: 9,
        };
        let pid = u64::from(std::process::id());
        let stats = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, pid, 11].map(u64::to_le_bytes).concat();
        let snapshots = SnapshotStatus {
            every_ms: 1,
            asked: 2,
            begun: 3,
            finished: 4,
            saved: 5,
            progress_ppm: 6,
            saved_ms: 7,
            took_us: 8,
            keys: 9,
            bytes: 10,
            failed_ms: 11,
            failure: 12,
        };
        let growth = GrowthCounts {
            segments: 1,
            segments_max: 2,
            splitting: 3,
            merging: 4,
            depth: 5,
            load_min_ppm: 6,
            load_max_ppm: 7,
            splits: 8,
            merges: 9,
            given_up: 10,
            moved: 11,
            refused: 12,
            bytes_backed: 13,
            bytes_max: 14,
            bytes_returned: 15,
        };
        let halves = [1u32, 2, 3, 4, 5, 0, 6, 7].map(u32::to_le_bytes).concat();
        let heap = HeapCounts {
            values: 1,
            live_bytes: 2,
            waiting_bytes: 3,
            gap_bytes: 4,
            largest_gap_bytes: 5,
            block_bytes: 6,
            blocks: 7,
            open_blocks: 8,
            heap_bytes: 9,
            moved_bytes: 10,
            returned_bytes: 11,
        };
        assert_eq!((heap.values, heap.live_bytes, heap.returned_bytes), (1, 2, 11));
        let growth_body = [halves, (8..=15).flat_map(u64::to_le_bytes).collect()].concat();
        for (status, reply, body) in [
            (1, Reply::Welcome { version: 0x0102_0304 }, vec![4, 3, 2, 1]),
            (2, Reply::Put(Ok(PutOutcome::Inserted)), vec![]),
            (3, Reply::Put(Ok(PutOutcome::Updated)), vec![]),
            (4, Reply::Put(Ok(PutOutcome::Exists)), vec![]),
            (5, Reply::Put(Ok(PutOutcome::Missing)), vec![]),
            (6, Reply::Removed(Ok(false)), vec![0]),
            (6, Reply::Removed(Ok(true)), vec![1]),
            (7, Reply::Stat(ServerStats::new(counts, 10, 11)), stats),
            (8, Reply::Value(Some(b"value".to_vec())), b"value".to_vec()),
            (9, Reply::Value(None), vec![]),
            (10, Reply::Mailbox { version: 0x0102_0304 }, vec![4, 3, 2, 1]),
            (11, Reply::Wake, vec![]),
            (12, Reply::Swapped(Ok(SwapOutcome::Swapped)), vec![]),
            (13, Reply::Swapped(Ok(SwapOutcome::Differs)), vec![]),
            (14, Reply::Swapped(Ok(SwapOutcome::Absent)), vec![]),
            (15, Reply::Snapshot(snapshots), (1..=12).flat_map(u64::to_le_bytes).collect()),
            (16, Reply::Growth(growth), growth_body),
            (17, Reply::Heap(heap), (1..=11).flat_map(u64::to_le_bytes).collect()),
            (18, Reply::Taken, vec![]),
            (111, Reply::Unfit, vec![]),
            (100, Reply::Put(Err(PutError::KeyLength { given: 300, max: 16 })), two(300, 16)),
            (101, Reply::Put(Err(PutError::ValueLength { given: 301, max: 17 })), two(301, 17)),
            (
                102,
                Reply::Put(Err(PutError::Full { keys: 12, slots: 13, bytes_max: 14, heap_bytes: 15 })),
                (12..=15).flat_map(u64::to_le_bytes).collect(),
            ),
            (103, Reply::Put(Err(PutError::Busy { rounds: 14 })), two(14, 0)),
            (107, Reply::Put(Err(PutError::NoMemory { keys: 15, bytes: 16 })), two(15, 16)),
            (104, Reply::Refused { version: 0x0102_0304 }, vec![4, 3, 2, 1]),
            (105, Reply::Denied, vec![]),
            (106, Reply::TurnedAway(Refusal::User { uid: 14 }), two(1, 14)),
            (106, Reply::TurnedAway(Refusal::ServerFull { max: 14 }), two(2, 14)),
            (106, Reply::TurnedAway(Refusal::PeerFull { max: 14 }), two(3, 14)),
            (106, Reply::TurnedAway(Refusal::Descriptors), two(4, 0)),
            (106, Reply::TurnedAway(Refusal::Stopping), two(5, 0)),
        ] {
            let id = 0x0102_0304_0506_0708;
            let expected = frame(0x8000, status, id, &body);
            let mut bytes = Vec::new();
            reply.encode(id, &mut bytes);
            assert_eq!(bytes, expected, "{reply:?}");
            let decoded = decode(&expected).unwrap().unwrap();
            assert_eq!((decoded.id, decoded.length), (id, expected.len()));
            assert_eq!(Reply::decode(&decoded), Ok(reply));
        }
        // Errors of removes and swaps look like those of puts.
        let (mut removed, mut swapped, mut put) = (Vec::new(), Vec::new(), Vec::new());
        let error = PutError::KeyLength { given: 1, max: 2 };
        Reply::Removed(Err(error.clone())).encode(5, &mut removed);
        Reply::Swapped(Err(error.clone())).encode(5, &mut swapped);
        Reply::Put(Err(error)).encode(5, &mut put);
        assert_eq!((&removed, &swapped), (&put, &put));
    }

    /// A frame decodes only when its last byte is there. A frame that is too long is refused at its
    /// head. Bytes after the frame are not part of it.
    #[test]
    fn frames_decode_when_they_are_whole() {
        for length in [0, 1, 100, BODY_MAX] {
            let mut bytes = frame(5, 0, 9, &vec![7; length]);
            for cut in [0, 1, 4, 15, 16, bytes.len() - 1].into_iter().filter(|cut| *cut < bytes.len()) {
                assert!(decode(&bytes[..cut]).unwrap().is_none(), "{cut} of {length}");
            }
            bytes.extend([1; 20]);
            let decoded = decode(&bytes).unwrap().unwrap();
            assert_eq!((decoded.length, decoded.body), (HEAD + length, &vec![7; length][..]));
        }
        for given in [BODY_MAX as u32 + 1, u32::MAX] {
            let head = [&given.to_le_bytes()[..], &[0; 12]].concat();
            assert_eq!(decode(&head).unwrap_err(), WireError::TooLong { given });
        }
    }

    /// Each error names the operation with the length of its body, or with its status.
    #[test]
    fn invalid_frames_are_refused() {
        let unfitting = |op, len| WireError::Body { op, len };
        let unknown = |op, status| WireError::Unknown { op, status };
        let hello = |magic: &[u8; 8], more: usize| [&magic[..], &vec![0; more]].concat();
        for (op, status, body, expected) in [
            (0, 0, vec![], unknown(0, 0)),
            (21, 3, vec![], unknown(21, 3)),
            (0x8000, 6, vec![1], unknown(0x8000, 6)),
            (1, 0, hello(b"ONEREAD!", 8), unfitting(1, 16)),
            (1, 0, hello(b"ONEREAD?", 7), unfitting(1, 15)),
            (1, 0, hello(b"ONEREAD?", 9), unfitting(1, 17)),
            (2, 0, vec![1], unfitting(2, 1)),
            (3, 0, vec![2, 0, 7], unfitting(3, 3)),
            (4, 0, vec![0, 1, 7], unfitting(4, 3)),
            (6, 0, vec![0], unfitting(6, 1)),
            (8, 0, vec![0; 3], unfitting(8, 3)),
            (8, 0, vec![0; 5], unfitting(8, 5)),
            (9, 0, vec![0; 2], unfitting(9, 2)),
            (10, 0, vec![], unfitting(10, 0)),
            (10, 0, vec![0; 3], unfitting(10, 3)),
            (10, 0, vec![2, 0, 0, 0, 7], unfitting(10, 5)),
            (10, 0, vec![1, 0, 1, 0, 7], unfitting(10, 5)),
            (10, 0, vec![0, 0, 0, 1, 7], unfitting(10, 5)),
            (11, 0, vec![], unfitting(11, 0)),
            (11, 0, vec![2], unfitting(11, 1)),
            (11, 0, vec![1, 0], unfitting(11, 2)),
            (12, 0, vec![], unfitting(12, 0)),
            (12, 0, vec![2], unfitting(12, 1)),
            (13, 0, vec![0; 25], unfitting(13, 25)),
            (13, 0, [&[2, 0][..], &[0; 25]].concat(), unfitting(13, 27)),
            (14, 0, vec![0; 3], unfitting(14, 3)),
            (16, 0, vec![2], unfitting(16, 1)),
            (16, 0, vec![5, 0, 7], unfitting(16, 3)),
            (17, 0, vec![2, 0, 7], unfitting(17, 3)),
            (18, 0, vec![0; 23], unfitting(18, 23)),
            (19, 0, vec![0], unfitting(19, 1)),
            (20, 0, vec![0], unfitting(20, 1)),
        ] {
            let bytes = frame(op, status, 1, &body);
            let decoded = decode(&bytes).unwrap().unwrap();
            assert_eq!(Request::decode(&decoded), Err(expected), "{op} with {body:?}");
        }
        // A key that fills the body, and an empty key, decode: the table checks lengths.
        for (body, key, value) in [(&b"\x02\0ke"[..], &b"ke"[..], &b""[..]), (b"\0\0v", b"", b"v")] {
            let bytes = frame(2, 0, 1, body);
            let put = Request::decode(&decode(&bytes).unwrap().unwrap());
            assert_eq!(put, Ok(Request::Put { mode: PutMode::Upsert, key, value }));
        }
        for (op, status, length, expected) in [
            (5, 6, 1, unknown(5, 6)),
            (0x8001, 6, 1, unknown(0x8001, 6)),
            (0x8000, 0, 0, unknown(0x8000, 0)),
            (0x8000, 15, 95, unfitting(0x8000, 95)),
            (0x8000, 16, 95, unfitting(0x8000, 95)),
            (0x8000, 17, 87, unfitting(0x8000, 87)),
            (0x8000, 19, 0, unknown(0x8000, 19)),
            (0x8000, 108, 4, unfitting(0x8000, 4)),
            (0x8000, 112, 4, unknown(0x8000, 112)),
            (0x8000, 106, 8, unfitting(0x8000, 8)),
            (0x8000, 1, 3, unfitting(0x8000, 3)),
            (0x8000, 104, 5, unfitting(0x8000, 5)),
            (0x8000, 10, 0, unfitting(0x8000, 0)),
            (0x8000, 6, 0, unfitting(0x8000, 0)),
            (0x8000, 7, 95, unfitting(0x8000, 95)),
            (0x8000, 100, 15, unfitting(0x8000, 15)),
            (0x8000, 101, 17, unfitting(0x8000, 17)),
            (0x8000, 102, 8, unfitting(0x8000, 8)),
            (0x8000, 103, 0, unfitting(0x8000, 0)),
            (0x8000, 107, 8, unfitting(0x8000, 8)),
        ] {
            let bytes = frame(op, status, 1, &vec![0; length]);
            let decoded = decode(&bytes).unwrap().unwrap();
            assert_eq!(Reply::decode(&decoded), Err(expected), "{op}, {status} with {length} bytes");
        }
    }

    /// Replies must have the numbers of their requests, in order, and be whole.
    #[test]
    fn replies_must_match_their_requests() {
        let bytes = |ids: &[u64]| {
            let mut bytes = Vec::new();
            ids.iter().for_each(|id| Reply::Removed(Ok(id % 2 == 0)).encode(*id, &mut bytes));
            bytes
        };
        let removed = |ids: &[u64]| ids.iter().map(|id| Reply::Removed(Ok(id % 2 == 0))).collect();
        for first in [0, 7, 1 << 40] {
            let due = [first, first + 1, first + 2];
            for n in 0..=3 {
                assert_eq!(super::replies(&bytes(&due[..n]), first), Ok(removed(&due[..n])));
            }
            let [a, b, c] = due;
            for wrong in [[b, a, c], [a, c, b], [a, a, b], [a, b, b], [b, c, c + 1], [a, b, 0x100 + c]] {
                let error = super::replies(&bytes(&wrong), first).unwrap_err();
                assert!(matches!(error, WireError::Order { .. }), "{wrong:?}: {error}");
            }
            let whole = bytes(&due);
            for cut in (1..whole.len()).filter(|cut| !cut.is_multiple_of(bytes(&[0]).len())) {
                assert!(super::replies(&whole[..cut], first).is_err(), "cut off at {cut}");
            }
        }
    }

    /// The longest request and reply are as long as computed. Cells and messages are sized by that.
    #[test]
    fn the_longest_requests_and_replies() {
        use crate::config::{Config, TableSize};
        for (key_max, value_max) in [
            (1, 0),
            (1, 1),
            (7, 33),
            (8, 8),
            (32, 78),
            (255, 100),
            (255, 3_600),
            (8, 4_080),
            (8, 4_081),
            (255, 1 << 20),
        ] {
            let heap_bytes = (value_max > 3_600).then_some(1 << 30);
            let config =
                Config { key_max, value_max, heap_bytes, size: TableSize::Slots(8), ..Config::default() };
            let geometry = config.geometry().unwrap();
            let frame_max = frame_value_max(&geometry);
            assert_eq!(frame_max, geometry.value_max().min(4_080));
            let (key, value) = (vec![1; key_max], vec![2; frame_max]);
            let length = |request: Request<'_>| {
                let mut bytes = Vec::new();
                request.encode(7, &mut bytes);
                bytes.len()
            };
            let put = length(Request::Put { mode: PutMode::Upsert, key: &key, value: &value });
            let swap = length(Request::Swap { key: &key, expected: &value, value: &value });
            assert_eq!(swap, request_bytes_max(&geometry), "{key_max}, {value_max}");
            assert!(put <= swap && length(Request::Remove { key: &key }) <= swap);
            if geometry.has_heap() {
                let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
                for request in [
                    Request::SwapExtent { key: &key, expected: extent, value: &value },
                    Request::LongBegin { key: &key, len: 1 },
                    Request::LongPiece { bytes: &value },
                    Request::LongPut { mode: PutMode::Upsert, key: &key },
                    Request::LongSwap { key: &key, expected: Expected::Value(&value) },
                    Request::LongSwap { key: &key, expected: Expected::Extent(extent) },
                ] {
                    assert!(length(request) <= swap, "{request:?}");
                }
            }
            let mut found = Vec::new();
            Reply::Value(Some(value)).encode(7, &mut found);
            let mut full = Vec::new();
            Reply::Put(Err(PutError::Full { keys: 1, slots: 2, bytes_max: 3, heap_bytes: 4 }))
                .encode(7, &mut full);
            let mut stats = Vec::new();
            Reply::Stat(ServerStats::default()).encode(7, &mut stats);
            assert!(full.len() <= stats.len(), "not the longest");
            assert_eq!(found.len().max(stats.len()), reply_bytes_max(&geometry));
            // What goes through a mailbox fits its cells. Without a heap, that is all.
            let (request_max, reply_max) = cell_frames_max(&geometry);
            let value = vec![2; frame_max.min(geometry.shape().payload_max())];
            let longer = vec![2; value.len() + 1];
            let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
            let swap = Request::Swap { key: &key, expected: &value, value: &value };
            assert_eq!(length(swap), request_max);
            for request in [
                swap,
                Request::Put { mode: PutMode::Upsert, key: &key, value: &value },
                Request::SwapExtent { key: &key, expected: extent, value: &value },
                Request::Remove { key: &key },
                Request::LongDrop,
            ] {
                let is_of_heaps = matches!(request, Request::SwapExtent { .. }) && !geometry.has_heap();
                assert!(fits_cells(&request, &geometry), "{request:?}");
                assert!(length(request) <= request_max || is_of_heaps, "{request:?}");
            }
            for request in [
                Request::Swap { key: &key, expected: &longer, value: b"" },
                Request::Swap { key: &key, expected: b"", value: &longer },
                Request::SwapExtent { key: &key, expected: extent, value: &longer },
                Request::Put { mode: PutMode::Upsert, key: &key, value: &longer },
            ] {
                assert!(!fits_cells(&request, &geometry), "{request:?}");
            }
            assert_eq!(fits_cells(&Request::Get { key: &key }, &geometry), !geometry.has_heap());
            let mut found = Vec::new();
            Reply::Value(Some(value)).encode(7, &mut found);
            assert_eq!(found.len().max(stats.len()), reply_max);
        }
    }
}
