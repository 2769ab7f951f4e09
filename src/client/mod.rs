//! The client: GETs read the server's region; changes are requests to the server. [`Client`] says
//! what it promises when the server is gone.

mod counters;
#[cfg(feature = "encryption")]
mod encrypted;
#[cfg(any(feature = "verbs", test))]
mod lanes;
mod long;
mod mailbox;
mod pool;
mod shm;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod watch;

pub use counters::ClientCounters;
pub use pool::{ClientPool, PooledClient};

use crate::address::{Address, AddressError};
#[cfg(feature = "encryption")]
use crate::encryption::{DecryptError, EncryptError, Encryption};
use crate::get::Retry;
use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::layout::superblock::SuperblockError;
use crate::outcome::{
    GrowthCounts, HeapCounts, KeyError, PutError, PutMode, PutOutcome, ReadError, SwapOutcome,
};
use crate::process::Process;
use crate::reader::{DirectAnswers, GetStats, HintCounts, Limits, ReadCounts, StoredAnswer};
use crate::region::{Region, RegionError};
use crate::setters::setters;
use crate::units::time;
use crate::values::Values;
use crate::verbs::VerbsOptions;
#[cfg(feature = "verbs")]
use crate::verbs::{SetupError, VerbsError};
use crate::wire::{
    self, FRAME_VALUE_MAX, PROTOCOL_VERSION, Refusal, Reply, Request, ServerStats, SnapshotStatus, WireError,
};
use counters::GETS_APART;
use long::{HeapWait, PieceMax, send_uploading, value_of};
use rustc_hash::FxHashMap;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The pause between attempts to reconnect: it doubles from the first to the last.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(1);
pub(crate) const RETRY_MAX: Duration = Duration::from_millis(100);
/// An attempt to reconnect that gets no answer ends after this time. Another one follows.
pub(crate) const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// Bounds on a client's operations, and the paths it uses. A time of more than a hundred years is
/// cut to that.
///
/// ```
/// use oneread::{ClientOptions, Limits};
/// use std::time::Duration;
/// let soon = Duration::from_millis(100);
/// let limits = Limits::new().deadline(soon);
/// let options = ClientOptions::new().limits(limits).deadline(soon);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Bounds of a GET that has to be repeated.
    pub limits: Limits,
    /// Longest time of a connect or a change. In a batch of changes, and in the pieces of a long value, it
    /// is the longest time without an answer. Over verbs it also bounds a READ, including the attempts to
    /// reconnect if the READ fails.
    pub deadline: Duration,
    /// How long GETs still answer after the server is gone: it was killed, or it stopped and its
    /// region is a file. Other memory is given up by [`Server::stop`](crate::Server::stop): GETs
    /// then end at once. Only for shm: over verbs there is nothing left to read.
    pub lease: Duration,
    /// How requests to the server (changes, [`Client::get_two_sided`], [`Client::server_stats`])
    /// travel.
    pub requests: RequestPath,
    /// The most bytes of memory for *hints*: where the client has last seen keys, one byte for each
    /// main slot, or for some of them if that is more. A GET of a key that the client has seen READs
    /// that one slot instead of a window. All clones share the memory. 0 turns hints off. `None` is
    /// 16 MiB over verbs, and 0 on shm, where a window costs hardly more than a slot.
    ///
    /// Hints change no answer. They cost a READ where they are wrong: keys that were moved, and one
    /// in eight keys that are absent.
    pub hint_bytes: Option<usize>,
    /// On shm: users whose servers the client trusts, beside its own user, root, and the user to whom root
    /// has given the socket's folder (as `/run/oneread` is given to a service's user). A server learns
    /// what clients put, decides what they read, and can end them by making a region file shorter.
    pub server_uids: Vec<u32>,
    /// On shm: the server's region file, to be read if no server answers when the client connects.
    /// The client then only reads ([`Client::is_served`]), without a lease, until a server comes. The
    /// file must belong to this user or root.
    pub region: Option<PathBuf>,
    /// Options for verbs. Shm ignores them.
    pub verbs: VerbsOptions,
    /// A key to encrypt values with before they are sent, and to decrypt them with after they were
    /// read. The server and other readers then see ciphertext. Every call that carries a value uses
    /// it; a value that does not decrypt is an error, also one that was put without encryption. All
    /// clones have the same. `None` stores and reads values as they are.
    ///
    /// What reads the table without a `Client` sees stored values: [`Client::region`], an
    /// [`Index`](crate::Index), a [`Reader`](crate::Reader). [`Encryption::decrypt`] is for them.
    #[cfg(feature = "encryption")]
    pub encryption: Option<Encryption>,
}

/// How requests to the server (changes, [`Client::get_two_sided`], [`Client::server_stats`])
/// travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestPath {
    /// The fastest way that the server offers. On shm, requests go through a
    /// [mailbox](RequestPath::Mailbox), and batches of more than 32 as one
    /// [message](RequestPath::Message). If the server has no mailboxes, or no room for another one
    /// ([`ServerConfig::mailbox_bytes_max`](crate::ServerConfig::mailbox_bytes_max)), all go as
    /// messages; after a second without room the handle asks for one again. Over verbs, all go as
    /// messages. [`ClientStats::requests`] tells which way requests went.
    #[default]
    Auto,
    /// As messages: over the server's Unix socket, or over verbs by SEND and RECV on a queue pair.
    /// Over verbs it is the queue pair that carries the READs, or one more where handles share
    /// queue pairs. The server may sleep.
    Message,
    /// Only on shm: requests through a mailbox, memory that one handle and the server share. If the
    /// server gives none, the connection fails ([`ConnectError::RequestPath`]). What has a value too long
    /// for its slot goes as a message, and so does [`Client::get_two_sided`] of a table that has such
    /// values.
    ///
    /// A mailbox takes 40 KiB with the default lengths, and up to 772 KiB with the longest slots. The
    /// handle that connects has one, and each clone from its first request on. There is no system call
    /// while both sides are busy. A client polls for its reply for up to 20 microseconds, a server
    /// for requests for up to 50. Each polls for less time where that was in vain. Then it sleeps,
    /// and the other side wakes it over the socket.
    Mailbox,
    /// Only over verbs, for comparison: as in HERD (Kalia et al., SIGCOMM'14), the client WRITEs
    /// requests and the replies are datagrams. The server must have been started with
    /// [`ServerConfig::herd`](crate::ServerConfig::herd). Its workers never sleep while such a
    /// client is connected.
    #[cfg(feature = "herd")]
    Herd,
}

impl RequestPath {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            RequestPath::Auto => "auto",
            RequestPath::Message => "message",
            RequestPath::Mailbox => "mailbox",
            #[cfg(feature = "herd")]
            RequestPath::Herd => "herd",
        }
    }

    /// # Errors
    /// When requests cannot travel this way over the address's fabric.
    fn check(self, address: &Address) -> Result<(), ConnectError> {
        let why = match (address, self) {
            #[cfg(feature = "herd")]
            (Address::Shm(_), RequestPath::Herd) => "that is for verbs; on shm, use a mailbox, or messages",
            (Address::Verbs(_), RequestPath::Mailbox) => "that is for shm; over verbs, use messages",
            _ => return Ok(()),
        };
        Err(ConnectError::RequestPath { path: self, address: address.clone(), why: why.into() })
    }
}

impl Default for ClientOptions {
    /// Deadline 5 s, lease 10 s, requests the fastest way that the server offers.
    fn default() -> ClientOptions {
        ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            requests: RequestPath::Auto,
            hint_bytes: None,
            server_uids: Vec::new(),
            region: None,
            verbs: VerbsOptions::default(),
            #[cfg(feature = "encryption")]
            encryption: None,
        }
    }
}

setters!(ClientOptions {
    limits: Limits,
    deadline: Duration,
    lease: Duration,
    requests: RequestPath,
    hint_bytes: usize,
    server_uids: impl Into<Vec<u32>>,
    region: PathBuf,
    verbs: VerbsOptions,
    #[cfg(feature = "encryption")]
    encryption: impl Into<Option<Encryption>>,
});

impl ClientOptions {
    /// The same as [`ClientOptions::default`].
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Cuts every time so that it can be added to a clock's time.
    fn bounded(mut self) -> ClientOptions {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        for time in [&mut self.limits.deadline, &mut self.deadline, &mut self.lease] {
            *time = LONGEST.min(*time);
        }
        self
    }
}

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No socket can have this address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No server listens there.
    #[error("no server at {address}")]
    NotThere {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// This user may not write to the socket, or may not look into its folder.
    #[error(
        "this user may not connect to {address}; its server's user can allow that (`ServerConfig::allow_uids`)"
    )]
    NoAccess {
        /// Where.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The server does not take this client.
    #[error("the server at {address} turned this client away")]
    TurnedAway {
        /// The address.
        address: Address,
        /// Why.
        source: Refusal,
    },
    /// On shm: the server runs as a user whom this client does not trust. Nothing was sent to it.
    #[error(
        "the server at {address} runs as user {uid}, neither this one nor root; if that is right, name the user in `ClientOptions::server_uids`"
    )]
    Stranger {
        /// The address.
        address: Address,
        /// The server's user.
        uid: u32,
    },
    /// The client was made by another process, of which this one is a copy (`fork`). Nothing was sent.
    #[error(
        "this client of {address} was made by another process, of which this one is a copy (fork); connect a client in this process"
    )]
    Forked {
        /// The address.
        address: Address,
    },
    /// This process, or the system, has no file descriptor left.
    #[error(
        "no file descriptor is left for a connection to {address}; raise the limit (RLIMIT_NOFILE), or use fewer clients"
    )]
    Descriptors {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "the server at {address} speaks version {theirs} of the protocol, this client version {PROTOCOL_VERSION}; use the same version of oneread on both sides"
    )]
    Refused {
        /// The address.
        address: Address,
        /// The server's protocol version.
        theirs: u32,
    },
    /// Requests cannot travel that way ([`ClientOptions::requests`]).
    #[error("requests to the server at {address} cannot go by {}: {why}", path.name())]
    RequestPath {
        /// The requested path.
        path: RequestPath,
        /// The address.
        address: Address,
        /// Why not, and what to do about it.
        why: String,
    },
    /// The connection failed.
    #[error("talking to the server at {address}")]
    Link {
        /// The address.
        address: Address,
        /// What happened.
        source: LinkError,
    },
    /// The region could not be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// This build has no verbs fabric.
    #[error(
        "this build of oneread cannot reach {address}: it has no verbs fabric; build it with the cargo feature `verbs`"
    )]
    NotBuilt {
        /// The address.
        address: Address,
    },
    /// Verbs could not be set up, or the server there could not be reached.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] SetupError),
    /// No server is there, and its region file ([`ClientOptions::region`]) is given up, or was never
    /// finished.
    #[error("no server at {address}, and {} holds no table that can be read; start a server", path.display())]
    NoTable {
        /// The address.
        address: Address,
        /// The file.
        path: PathBuf,
    },
    /// The superblock of the region is not valid.
    #[error("the region of the server at {address} cannot be read")]
    Superblock {
        /// The address.
        address: Address,
        /// What is wrong.
        source: SuperblockError,
    },
}

/// What can go wrong on a connection to the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No answer in time.
    #[error("no answer within {}; the server may be suspended (SIGSTOP) or busy", time(*.0))]
    Deadline(Duration),
    /// The server closed the connection.
    #[error("the server hung up; it may be stopping")]
    HungUp,
    /// The bytes are not valid frames.
    #[error("the peer does not speak oneread's protocol; use the same version of oneread on both sides")]
    Wire(#[from] WireError),
    /// A reply that does not belong to the request.
    #[error(
        "the peer does not speak oneread's protocol: an unexpected reply; use the same version of oneread on both sides"
    )]
    Unexpected,
    /// A system call failed.
    #[error(transparent)]
    Os(io::Error),
    /// The server hung up, and the lease of its region has ended.
    #[error("the lease of {} has ended; it is tried again in the background", time(*.0))]
    LeaseEnded(Duration),
    /// The server has given up its region.
    #[error("it has given its region up; it is tried again in the background")]
    Retired,
    /// The queue pair failed, or it carried invalid bytes.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl From<io::Error> for LinkError {
    /// A server that ends resets the connections that it has not accepted or not read to the end.
    fn from(error: io::Error) -> LinkError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LinkError::HungUp,
            _ => LinkError::Os(error),
        }
    }
}

/// Why a GET gave no answer. Absence is not an error. An error that a change can also have is the
/// variant of the same name in [`MutateError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// The key's length is out of range.
    #[error("{}", ReadError::KeyLength { given: *given, max: *max })]
    KeyLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The bound on retries was reached ([`Limits::retries_max`]).
    #[error("{}", ReadError::Contended { retries: *retries, last: *last })]
    Contended {
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// No pass was conclusive in time ([`Limits::deadline`]).
    #[error("{}", ReadError::Deadline { deadline: *within, retries: *retries, last: *last })]
    Inconclusive {
        /// The bound.
        within: Duration,
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// The key's value was replaced each time, faster than it could be read.
    #[error("{}", ReadError::Replaced { len: *len, times: *times })]
    Replaced {
        /// Length of the last value.
        len: usize,
        /// How often it was begun.
        times: u32,
    },
    /// What a slot says of a long value cannot be so, or the value's bytes are not what was put.
    #[error("{}", ReadError::Damaged { what })]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// Over verbs: no READ completed in time ([`ClientOptions::deadline`]).
    #[error(
        "the server at {address} could not be read from within {}; it may be suspended (SIGSTOP) or unreachable",
        time(*deadline)
    )]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The server is gone. Over shm the lease has also ended, or the region was given up. Over
    /// verbs the queue pair failed, and so did its successors.
    #[error("the server at {address} is gone; start it again")]
    ServerGone {
        /// The address.
        address: Address,
        /// What failed or ended.
        source: LinkError,
    },
    /// Over verbs: the connection was lost, and no other could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The key is there, and its value does not decrypt ([`ClientOptions::encryption`]).
    #[cfg(feature = "encryption")]
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
}

impl From<ReadError> for GetError {
    fn from(error: ReadError) -> GetError {
        match error {
            ReadError::KeyLength { given, max } => GetError::KeyLength { given, max },
            ReadError::Contended { retries, last } => GetError::Contended { retries, last },
            ReadError::Deadline { deadline: within, retries, last } => {
                GetError::Inconclusive { within, retries, last }
            }
            ReadError::Replaced { len, times } => GetError::Replaced { len, times },
            ReadError::Damaged { what } => GetError::Damaged { what },
        }
    }
}

/// Why a change did not happen, or may not have happened. Those up to `ReadOnly` mean that the table
/// is unchanged: the server rejected the change ([`MutateError::rejection`]), or the client rejected
/// it by the limits of the server, which it has asked whether it is there.
///
/// | the server | a change ends in | may it have happened? |
/// |---|---|---|
/// | rejects the change | one of those up to [`ReadOnly`](MutateError::ReadOnly) | no |
/// | cannot be connected to | [`Connect`](MutateError::Connect); over verbs after attempts until the deadline | no |
/// | ends, or hangs up, before it has answered | [`ServerGone`](MutateError::ServerGone) | yes |
/// | is silent (suspended, busy, unreachable) | [`Deadline`](MutateError::Deadline) | yes, and it may still happen later |
///
/// A change that may have happened takes effect once or never. The client does not repeat it. After
/// `Deadline` it may take effect even after later changes of the same client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MutateError {
    /// The key's length is out of range.
    #[error("{}", PutError::KeyLength { given: *given, max: *max })]
    KeyLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The value is too long.
    #[error("{}", PutError::ValueLength { given: *given, max: *max })]
    ValueLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// A server's answer has no room for the value ([`Client::get_two_sided`]).
    #[error(
        "the value is {given} bytes long, and a server's answer has room for {max}; let the client READ it: `Client::get`"
    )]
    LongValue {
        /// Length of the value.
        given: usize,
        /// Longest that the server sends.
        max: usize,
    },
    /// The table must grow for this key, and the system has refused the memory.
    #[error("{}", PutError::NoMemory { keys: *keys, bytes: *bytes })]
    NoMemory {
        /// Keys in the table.
        keys: u64,
        /// Bytes of a segment.
        bytes: u64,
    },
    /// No memory is left for a value that does not fit its slot.
    #[error("{}", PutError::HeapFull { live_bytes: *live_bytes, heap_bytes: *heap_bytes })]
    HeapFull {
        /// Bytes in use by values, their headers included.
        live_bytes: u64,
        /// Length of the heap.
        heap_bytes: u64,
    },
    /// Memory for a value that does not fit its slot did not become free in time.
    #[error("{}", PutError::HeapBusy { given: *given, waited: *waited })]
    HeapBusy {
        /// Length of the value.
        given: usize,
        /// How long the put waited.
        waited: Duration,
    },
    /// The system has refused memory for a value that does not fit its slot.
    #[error("{}", PutError::HeapMemory { given: *given })]
    HeapMemory {
        /// Length of the value.
        given: usize,
    },
    /// The value is too long once it is encrypted (`ClientOptions::encryption`).
    #[error("{}", PutError::EncryptedLength { given: *given, stored: *stored, stored_max: *stored_max })]
    EncryptedLength {
        /// Length given.
        given: usize,
        /// Length as it would be stored.
        stored: usize,
        /// Longest that the table stores.
        stored_max: usize,
    },
    /// The table has no room for the key.
    #[error(
        "{}",
        PutError::Full { keys: *keys, slots: *slots, bytes_max: *bytes_max, heap_bytes: *heap_bytes }
    )]
    Full {
        /// Keys in the table.
        keys: u64,
        /// Slots allocated.
        slots: u64,
        /// Bytes that the table may take, if it has them all. 0 if that is not why it is full.
        bytes_max: u64,
        /// Of these, bytes that values have which do not fit their slots.
        heap_bytes: u64,
    },
    /// Other changes interfered each time. Try again.
    #[error("{}", PutError::Busy { rounds: *rounds })]
    Busy {
        /// Attempts made.
        rounds: u32,
    },
    /// The server lets this client read only
    /// ([`ServerConfig::allow_read_uids`](crate::ServerConfig::allow_read_uids),
    /// [`ServerConfig::read_token`](crate::ServerConfig::read_token)). Nothing was changed.
    #[error(
        "the server at {address} lets this client read the table, and not change it; its user can allow changes (`ServerConfig::allow_uids`)"
    )]
    ReadOnly {
        /// The address.
        address: Address,
    },
    /// No answer in time. The change may still happen, or may have happened.
    #[error(
        "the server at {address} did not answer within {}; it may be suspended (SIGSTOP) or busy, and the change may still happen",
        time(*deadline)
    )]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The connection ended before the answer. The change may have happened.
    #[error("the server at {address} went away before it answered; the change may have happened")]
    ServerGone {
        /// The address.
        address: Address,
        /// How the connection ended.
        source: LinkError,
    },
    /// No connection. The change did not happen.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The value could not be encrypted. Nothing was sent.
    #[cfg(feature = "encryption")]
    #[error(transparent)]
    Encrypt(#[from] EncryptError),
    /// The value that the key has does not decrypt. [`Client::compare_and_swap`] has not changed it.
    #[cfg(feature = "encryption")]
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
}

impl From<PutError> for MutateError {
    fn from(error: PutError) -> MutateError {
        match error {
            PutError::KeyLength { given, max } => MutateError::KeyLength { given, max },
            PutError::ValueLength { given, max } => MutateError::ValueLength { given, max },
            PutError::EncryptedLength { given, stored, stored_max } => {
                MutateError::EncryptedLength { given, stored, stored_max }
            }
            PutError::Full { keys, slots, bytes_max, heap_bytes } => {
                MutateError::Full { keys, slots, bytes_max, heap_bytes }
            }
            PutError::Busy { rounds } => MutateError::Busy { rounds },
            PutError::NoMemory { keys, bytes } => MutateError::NoMemory { keys, bytes },
            PutError::HeapFull { live_bytes, heap_bytes } => MutateError::HeapFull { live_bytes, heap_bytes },
            PutError::HeapBusy { given, waited } => MutateError::HeapBusy { given, waited },
            PutError::HeapMemory { given } => MutateError::HeapMemory { given },
        }
    }
}

impl MutateError {
    /// Why the change was rejected, in the form that [`Client::put_many`] uses for each key. `None`
    /// if the change was not rejected, or if the client cannot know.
    pub fn rejection(&self) -> Option<PutError> {
        match *self {
            MutateError::KeyLength { given, max } => Some(PutError::KeyLength { given, max }),
            MutateError::ValueLength { given, max } => Some(PutError::ValueLength { given, max }),
            MutateError::EncryptedLength { given, stored, stored_max } => {
                Some(PutError::EncryptedLength { given, stored, stored_max })
            }
            MutateError::Full { keys, slots, bytes_max, heap_bytes } => {
                Some(PutError::Full { keys, slots, bytes_max, heap_bytes })
            }
            MutateError::Busy { rounds } => Some(PutError::Busy { rounds }),
            MutateError::NoMemory { keys, bytes } => Some(PutError::NoMemory { keys, bytes }),
            MutateError::HeapFull { live_bytes, heap_bytes } => {
                Some(PutError::HeapFull { live_bytes, heap_bytes })
            }
            MutateError::HeapBusy { given, waited } => Some(PutError::HeapBusy { given, waited }),
            MutateError::HeapMemory { given } => Some(PutError::HeapMemory { given }),
            _ => None,
        }
    }
}

/// Counts of what a client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// GETs, hits, and retries by cause.
    pub get: GetStats,
    /// READs, the bytes they requested, and doorbells (round trips).
    pub read: ReadCounts,
    /// What hints did ([`ClientOptions::hint_bytes`]).
    pub hints: HintCounts,
    /// Requests sent, by the way they went.
    pub requests: RequestCounts,
    /// Changes that the server answered, by kind.
    pub changes: ChangeCounts,
    /// Calls that failed, by cause.
    pub failures: FailureCounts,
    /// Times this handle switched to a new region, or over verbs reconnected.
    pub reattached: u64,
}

/// Adds up the counts of several handles.
impl std::ops::AddAssign for ClientStats {
    fn add_assign(&mut self, other: ClientStats) {
        let (mut other, mut others) = (other, smallvec::SmallVec::<[u64; 32]>::new());
        other.for_each(|count| others.push(*count));
        let mut others = others.into_iter();
        self.for_each(|count| *count += others.next().unwrap_or(0));
    }
}

impl ClientStats {
    /// Calls `each` with every count, in the same order each time.
    fn for_each(&mut self, each: impl FnMut(&mut u64)) {
        let ClientStats { get, read, hints, requests, changes, failures, reattached } = self;
        let GetStats {
            gets,
            hits,
            retries_torn,
            retries_moved,
            retries_late,
            retries_chain,
            retries_replaced,
        } = get;
        let ReadCounts { reads, bytes, doorbells } = read;
        let ChangeCounts { puts, swaps, removes, rejected } = changes;
        let FailureCounts {
            deadlines,
            contended,
            gone,
            refused,
            #[cfg(feature = "encryption")]
            undecrypted,
        } = failures;
        [gets, hits, retries_torn, retries_moved, retries_late, retries_chain, reads, bytes, doorbells]
            .into_iter()
            .chain([retries_replaced])
            .chain([&mut hints.hinted, &mut hints.hits, &mut hints.reads])
            .chain([&mut requests.message, &mut requests.mailbox])
            .chain([
                puts,
                swaps,
                removes,
                rejected,
                deadlines,
                contended,
                gone,
                refused,
                reattached,
                #[cfg(feature = "encryption")]
                undecrypted,
                #[cfg(feature = "herd")]
                &mut requests.herd,
            ])
            .for_each(each);
    }
}

/// Changes that the server answered. Each of a batch counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeCounts {
    /// Puts, inserts and updates.
    pub puts: u64,
    /// Compare-and-swaps.
    pub swaps: u64,
    /// Removes.
    pub removes: u64,
    /// Of all these, those that were rejected: lengths, a full table, interference.
    pub rejected: u64,
}

/// Calls that failed. A batch counts once, but for `undecrypted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureCounts {
    /// No answer in time, or no conclusive look ([`Limits::deadline`], [`ClientOptions::deadline`]).
    pub deadlines: u64,
    /// GETs that reached [`Limits::retries_max`].
    pub contended: u64,
    /// The server was gone, or could not be connected to. So counts a GET whose value is damaged.
    pub gone: u64,
    /// Changes by a client that may only read, and GETs of keys with wrong lengths.
    pub refused: u64,
    /// Values that did not decrypt ([`ClientOptions::encryption`]). Each of a batch counts.
    #[cfg(feature = "encryption")]
    pub undecrypted: u64,
}

impl ChangeCounts {
    fn count(&mut self, request: &Request<'_>, reply: &Reply) {
        // Such a request is made again.
        if !long::is_busy(reply) {
            self.count_final(request, reply);
        }
    }

    fn count_final(&mut self, request: &Request<'_>, reply: &Reply) {
        *match request {
            Request::Put { .. } => &mut self.puts,
            Request::Swap { .. } | Request::SwapExtent { .. } => &mut self.swaps,
            Request::Remove { .. } => &mut self.removes,
            _ => return,
        } += 1;
        let is_rejected =
            matches!(reply, Reply::Put(Err(_)) | Reply::Swapped(Err(_)) | Reply::Removed(Err(_)));
        self.rejected += u64::from(is_rejected);
    }
}

impl FailureCounts {
    #[cold]
    fn count_get(&mut self, error: &GetError) {
        *match error {
            GetError::KeyLength { .. } => &mut self.refused,
            GetError::Contended { .. } | GetError::Replaced { .. } => &mut self.contended,
            GetError::Inconclusive { .. } | GetError::Deadline { .. } => &mut self.deadlines,
            GetError::ServerGone { .. } | GetError::Connect(_) | GetError::Damaged { .. } => &mut self.gone,
            #[cfg(feature = "encryption")]
            GetError::Decrypt(_) => &mut self.undecrypted,
        } += 1;
    }

    #[cold]
    fn count_request(&mut self, error: &MutateError) {
        *match error {
            MutateError::Deadline { .. } => &mut self.deadlines,
            MutateError::ServerGone { .. } | MutateError::Connect(_) => &mut self.gone,
            _ => &mut self.refused,
        } += 1;
    }
}

/// Counts of the requests that a client sent, by the way they went ([`RequestPath`]). Each request
/// of a batch counts, and of a long value each piece. Requests that the client rejected itself do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests as messages.
    pub message: u64,
    /// Requests through a mailbox.
    pub mailbox: u64,
    /// Requests as in HERD.
    #[cfg(feature = "herd")]
    pub herd: u64,
}

impl std::ops::AddAssign for RequestCounts {
    fn add_assign(&mut self, other: RequestCounts) {
        self.message += other.message;
        self.mailbox += other.mailbox;
        #[cfg(feature = "herd")]
        {
            self.herd += other.herd;
        }
    }
}

/// A handle on a served table. Each thread has its own handle: `Client` is `Send`, and `Clone`
/// makes another. [`ClientPool`] lends handles to any number of threads. Operations take `&mut self`,
/// because a handle has one conversation with the server, and counts without atomic instructions.
///
/// Over shm, cloning is cheap: handles share the mapping and one connection, which one of them at a
/// time uses for its requests; others open one of their own at their first request. One thread
/// watches the connections of all clients of the process. Over verbs each handle has its own queue pair, made at first use, or all handles
/// share a few ([`VerbsOptions::pairs`]).
///
/// It is also `Sync`, but that is of little use, since all operations take `&mut self`. Clone it, or take
/// a pool: behind a mutex, GETs wait for each other and for changes.
///
/// # What blocks, and for how long
///
/// | call | waits for | at most |
/// |---|---|---|
/// | GETs on shm | nothing: no system call, no server. If a slot is being written, the GET reads it again: it spins, then yields, then sleeps 50 microseconds between attempts | [`Limits::deadline`], 1 s |
/// | GETs over verbs | the NIC, some microseconds, spinning or asleep ([`Wait`](crate::Wait)). If the connection failed, a new connection | [`ClientOptions::deadline`], 5 s, and [`Limits::deadline`] |
/// | changes, [`get_two_sided`](Client::get_two_sided), [`server_stats`](Client::server_stats) | the server's answer, and a connection if there is none | [`ClientOptions::deadline`] |
/// | [`connect`](Client::connect) | the server | [`ClientOptions::deadline`] |
/// | cloning | nothing | |
/// | dropping a handle | nothing. With the last client on shm of the process, the end of the watching thread, some microseconds | |
///
/// A batch takes as long as its READs, or its changes, take. The bounds above limit only the time without
/// progress. [`Server`](crate::Server) says what its calls wait for.
///
/// # When the server is gone
///
/// * **Suspended or busy** (SIGSTOP, debugger, overload): GETs work as usual. The exception is a
///   GET that needs a slot which the server was just writing, at most one slot per server thread.
///   Such a GET ends at its bound ([`ClientOptions::limits`]). Changes end in
///   [`MutateError::Deadline`] and may still happen at any later time.
/// * **Gone** (exit, crash, kill -9): the operating system hangs up the connection. The watching
///   thread notices as soon as it runs. (It also watches the server's process, because a child of that
///   may keep the connection open.) GETs still answer from the region as the
///   server left it, until the client has reconnected or its lease ([`ClientOptions::lease`]) ends.
///   After the lease they end in [`GetError::ServerGone`]. Meanwhile the thread tries to
///   reconnect, at once and then after pauses that grow from 1 ms to 100 ms.
/// * **Gone already**, or silent, when the client connects: [`ClientOptions::region`] names the file to read.
/// * **Back** at the same address: the thread reconnects within 100 ms, or within 2 s if an
///   attempt was under way and got no answer. Every handle reads the new server's region from its
///   next GET on. If the new server took over the region file, the old mapping shows its changes
///   even before that. If it made a new region, GETs may answer from the old one until then.
/// * **Stopped** by [`Server::stop`](crate::Server::stop) or by dropping the server: a region file
///   stays, and GETs answer as from a server that is gone, until the lease ends. Any other region
///   is marked as given up. GETs then end in `ServerGone` at once, unless the client has
///   reconnected.
///
/// Over verbs the registered memory goes with the server, however it ended: once the kernel has
/// torn down its queue pairs, no GET answers from its region. After a failed READ the client
/// reconnects, at first at once, later every 100 ms, until [`ClientOptions::deadline`]. It repeats
/// the GETs under way over the new connection, with that server's geometry and generation. If it
/// cannot connect, they end in [`GetError::Connect`].
///
/// # After a fork
///
/// Clients stay with the process that made them. In a child made by `fork`, all of their operations end in
/// [`ConnectError::Forked`]: no thread there notices that a server is gone, and both processes would
/// use the same sockets and mailboxes. Dropping them there does the parent's no harm. The child connects
/// clients of its own. (A child that shares the memory of its parent, as `vfork` makes it, is not noticed,
/// nor is one on Linux before 4.14.) [`Client::region`] is readable in the child, too: for as long as it
/// likes, and without notice that the server is gone.
///
/// # In an async program
///
/// There is no `async` variant, because a GET on shm ends before a task could be switched. Call
/// GETs on shm directly in a task, with a handle of a [`ClientPool`] and a short
/// [`Limits::deadline`]. Leave all other calls to a thread that may block: `ClientPool::run` (feature
/// `tokio`) does so, as in `examples/tokio.rs`. Where there are many changes, one thread that owns a
/// handle and receives them from a channel can send batches
/// ([`put_many`](Client::put_many)). Over verbs, such a thread
/// should also do the GETs, with [`get_many`](Client::get_many), unless a task may wait for the
/// NIC.
///
/// ```
/// # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
/// # let dir = tempfile::tempdir().unwrap();
/// # let address = Address::Shm(dir.path().join("s"));
/// # let config = Config::new().size(TableSize::Keys(100));
/// let server = Server::start(ServerConfig::new(address.clone(), config))?;
///
/// let mut client = Client::connect(&address)?;
/// client.put(b"key", b"value")?; // a request to the server
/// let value = client.get(b"key")?; // one READ, no request
/// assert_eq!(value.as_deref(), Some(&b"value"[..]));
/// assert_eq!(client.stats().read.reads, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    address: Address,
    options: ClientOptions,
    path: ServerPath,
    /// Without `direct`.
    stats: ClientStats,
    direct: DirectAnswers,
    counters: ClientCounters,
    gets_until_published: u64,
}

/// The outcome of one key of a batch: its value, or `None` if it is absent.
pub type BatchAnswer<'a> = Result<Option<&'a [u8]>, KeyError>;

/// One thread's path to a server: what each fabric implements for a [`Client`], whose methods state
/// the guarantees. A clone is for another thread. It shares what can be shared and has no
/// connection yet.
trait Handle: Clone {
    /// The process that made the client.
    fn process(&self) -> Process;

    /// The geometry of the table being read.
    fn geometry(&self) -> &Geometry;

    /// Times it switched to a new region, or reconnected.
    fn reattached(&self) -> u64;

    /// Bytes of memory that its hints take.
    fn hint_bytes(&self) -> u64;

    /// Calls `each` once per key with the key's index and outcome, in any order, until it breaks off.
    /// Adds its counts to `stats`.
    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError>;

    /// Sends requests and appends their replies to `replies`, in order, also those that came before an
    /// error. Connects if there is no connection. A connection that failed is not used again. Adds its
    /// counts to `stats`.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), MutateError>;

    /// Drops the connection for changes. The next change opens another one.
    fn disconnect(&mut self);
}

/// Until when a client waits for the server. Each answer renews it: it bounds the time without
/// progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub at: Instant,
    allowed: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn within(allowed: Duration) -> Deadline {
        Deadline { at: Instant::now() + allowed, allowed }
    }

    /// After an answer: as long again, but no less than was left.
    pub fn renew(&mut self) {
        self.at = self.at.max(Instant::now() + self.allowed);
    }
}

/// How the client reaches the server's region.
#[derive(Clone, Debug)]
enum ServerPath {
    Shm(shm::ShmHandle),
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::VerbsHandle>),
}

/// Runs an expression on the handle of either path: `on_path!(&mut self.path, handle => ...)`.
macro_rules! on_path {
    ($path:expr, $handle:ident => $then:expr) => {
        match $path {
            ServerPath::Shm($handle) => $then,
            #[cfg(feature = "verbs")]
            ServerPath::Verbs($handle) => $then,
        }
    };
}
use on_path;

impl Client {
    /// Connects to the server at `address`. On shm it maps the region for reading. Everything about
    /// the table comes from the region's superblock.
    ///
    /// # Errors
    /// [`ConnectError`] says what failed, and what to do about it.
    pub fn connect(address: &Address) -> Result<Client, ConnectError> {
        Client::connect_with(address, ClientOptions::default())
    }

    /// Connects with the given options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &Address, options: ClientOptions) -> Result<Client, ConnectError> {
        let options = options.bounded();
        address.check()?;
        options.requests.check(address)?;
        let path = match address {
            Address::Shm(socket) => ServerPath::Shm(shm::ShmHandle::connect(socket, &options)?),
            #[cfg(feature = "verbs")]
            Address::Verbs(at) => ServerPath::Verbs(Box::new(verbs::VerbsHandle::connect(at, &options)?)),
            #[cfg(not(feature = "verbs"))]
            Address::Verbs(_) => return Err(ConnectError::NotBuilt { address: address.clone() }),
        };
        Ok(Client::new(address.clone(), options, path))
    }

    fn new(address: Address, options: ClientOptions, path: ServerPath) -> Client {
        let (stats, direct, counters) = Default::default();
        Client { address, options, path, stats, direct, counters, gets_until_published: GETS_APART }
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The geometry of the table being read.
    pub fn geometry(&self) -> &Geometry {
        on_path!(&self.path, handle => handle.geometry())
    }

    /// The longest value, in bytes, that this client can put: that of the table, less
    /// `Encryption::OVERHEAD` with encryption. (0 also where not even the overhead fits.)
    pub fn value_max(&self) -> usize {
        let max = self.geometry().value_max();
        #[cfg(feature = "encryption")]
        if self.options.encryption.is_some() {
            return max.saturating_sub(Encryption::OVERHEAD);
        }
        max
    }

    /// Whether a server was there when the client last looked. If not, GETs answer from the region
    /// that a server left, or from its file ([`ClientOptions::region`]). Always `true` over verbs.
    pub fn is_served(&self) -> bool {
        match &self.path {
            ServerPath::Shm(handle) => handle.is_served(),
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(_) => true,
        }
    }

    /// The region being read. `None` over verbs, where it is not mapped.
    pub fn region(&self) -> Option<&Region> {
        match &self.path {
            ServerPath::Shm(handle) => Some(handle.region()),
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(_) => None,
        }
    }

    /// Counts of this handle since it was made.
    pub fn stats(&self) -> ClientStats {
        let mut stats = self.stats;
        stats.reattached = on_path!(&self.path, handle => handle.reattached());
        self.direct.add_gets_to(&mut stats.get);
        self.direct.add_reads_to(&mut stats.read);
        stats
    }

    /// Bytes of memory for hints ([`ClientOptions::hint_bytes`]), 0 without. All clones share them.
    pub fn hint_bytes(&self) -> u64 {
        on_path!(&self.path, handle => handle.hint_bytes())
    }

    /// The same counts, for other threads, while this handle works. [`ClientCounters::stats`] says
    /// when they are there.
    pub fn counters(&self) -> ClientCounters {
        self.counters.clone()
    }

    #[cold]
    fn publish(&mut self) {
        self.gets_until_published = GETS_APART;
        self.counters.publish(self.stats());
    }

    /// Counts a failed GET, and tells other threads what has been done.
    #[cold]
    fn count_failed_get(&mut self, error: GetError) -> GetError {
        self.stats.failures.count_get(&error);
        self.publish();
        error
    }

    /// Called after a GET: tells other threads now and then what has been done, and at once if it failed.
    #[inline(always)]
    fn count_get<R>(&mut self, found: Result<R, GetError>) -> Result<R, GetError> {
        match found {
            Ok(found) => {
                self.gets_until_published -= 1;
                if self.gets_until_published == 0 {
                    self.publish();
                }
                Ok(found)
            }
            Err(error) => Err(self.count_failed_get(error)),
        }
    }

    /// Counts of the verbs queues: doorbells, READs, messages, completions. `None` on other
    /// fabrics. Where handles share queue pairs, the thread that polls posts for all handles and
    /// counts that as its own. Then only the sum over all handles is meaningful.
    #[cfg(feature = "verbs")]
    pub fn queue_counts(&self) -> Option<crate::verbs::QueueCounts> {
        match &self.path {
            ServerPath::Shm(_) => None,
            ServerPath::Verbs(handle) => Some(handle.queue_counts()),
        }
    }

    // ---- GETs: by READs, without the server -----------------------------------------------------

    /// Returns the value of `key`. Usually 1 READ and 1 round trip.
    ///
    /// # Errors
    /// [`GetError`]. Absence is `Ok(None)`, not an error.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the contents of `value` with the value of `key`. Returns whether the key was found.
    /// Allocates only if `value` is too small.
    ///
    /// # Errors
    /// As [`Client::get`].
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, GetError> {
        #[cfg(feature = "encryption")]
        if self.options.encryption.is_some() {
            return self.get_decrypted(key, value);
        }
        self.get_stored(key, value)
    }

    /// The same for the value as it is stored.
    #[inline]
    fn get_stored(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, GetError> {
        let found = on_path!(&mut self.path, handle => {
            handle.get_into(&mut self.stats, &mut self.direct, key, value)
        });
        self.count_get(found)
    }

    /// Replaces the contents of `part` with the bytes `range` of the value of `key`. Bytes beyond the
    /// value's end are left out. Returns the length of the whole value; `None` if the key is absent.
    ///
    /// A value in its slot costs what [`Client::get_into`] costs. Of a longer one, one more READ brings
    /// just these bytes. The answer is one version of the value, and two calls may see two: a value that is
    /// read in several parts should carry a number.
    ///
    /// With encryption (`ClientOptions::encryption`) the whole value is read and decrypted first, because it
    /// is encrypted in one piece: no byte of it is believed before the last one is there. So a part costs
    /// what the whole costs, and an error leaves `part` empty.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_range(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, GetError> {
        #[cfg(feature = "encryption")]
        if self.options.encryption.is_some() {
            return self.get_range_decrypted(key, range, part);
        }
        let found = on_path!(&mut self.path, handle => {
            handle.read(&mut self.stats, |reader| reader.get_range(key, range.clone(), part))
        });
        self.count_get(found)
    }

    /// Returns the length of the value of `key`, `None` if the key is absent. Usually 1 READ, of the slot's
    /// window: a value that is not in its slot is not read. With encryption, this is the length that the
    /// value has decrypted. It follows from that of the stored one, which is not decrypted: that of a value
    /// which does not decrypt has no meaning.
    ///
    /// # Errors
    /// As [`Client::get`]. With encryption, [`GetError::Decrypt`] if the stored value is too short for an
    /// encrypted one.
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, GetError> {
        let found = on_path!(&mut self.path, handle => {
            handle.read(&mut self.stats, |reader| reader.value_len(key))
        });
        let found = self.count_get(found)?;
        #[cfg(feature = "encryption")]
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
        self.get_all(keys, |number, answer| values.set(number, answer))
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
        self.get_batch_stored(keys, |number, answer| {
            present[number / 64] |= u64::from(answer.is_ok_and(|value| value.is_some())) << (number % 64);
            ControlFlow::Continue(())
        })
    }

    /// Like [`Client::get_many`], but calls `each` with the index and the outcome of each key, in no
    /// particular order, until it breaks off. Returns what it broke off with. Over verbs, the READs
    /// that are then under way are waited for. Allocates nothing for the values.
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
        mut each: impl FnMut(usize, BatchAnswer<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, GetError> {
        let mut broken_off = ControlFlow::Continue(());
        let each = |number, answer: BatchAnswer<'_>| match each(number, answer) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(with) => {
                broken_off = ControlFlow::Break(with);
                ControlFlow::Break(())
            }
        };
        self.get_batch(keys, each)?;
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
        #[cfg(feature = "encryption")]
        if let Some(encryption) = self.options.encryption.clone() {
            return self.get_batch_decrypted(&encryption, keys, &mut each);
        }
        self.get_batch_stored(keys, |number, answer| each(number, answer.map_err(KeyError::from)))
    }

    /// The same for values as they are stored.
    fn get_batch_stored<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        match on_path!(&mut self.path, handle => handle.get_many(keys, each, &mut self.stats)) {
            Ok(_) => {
                self.publish();
                Ok(())
            }
            Err(error) => Err(self.count_failed_get(error)),
        }
    }

    // ---- GETs by the server, for comparison -----------------------------------------------------

    /// Returns the value of `key` as the server looks it up: a two-sided GET, the baseline for
    /// [`Client::get`]: no READ, 1 round trip, and the server's CPU. The request travels as changes
    /// do ([`ClientOptions::requests`]).
    ///
    /// # Errors
    /// [`MutateError`]; the variants about changes do not occur here, but for
    /// [`MutateError::LongValue`]: the server sends no value of more than 4,080 bytes. Absence is
    /// `Ok(None)`.
    pub fn get_two_sided(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        let value = self.ask_for_value(key, deadline)?;
        #[cfg(feature = "encryption")]
        let value = value.map(|value| self.decrypt_sent(key, value)).transpose()?;
        Ok(value)
    }

    /// Asks for a value as it is stored.
    fn ask_for_value(&mut self, key: &[u8], deadline: Instant) -> Result<Option<Vec<u8>>, MutateError> {
        match self.ask(&Request::Get { key }, deadline)? {
            Reply::Value(value) => Ok(value),
            Reply::Put(Err(PutError::ValueLength { given, max })) => {
                Err(MutateError::LongValue { given, max })
            }
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected()),
        }
    }

    // ---- changes: by the server -----------------------------------------------------------------

    /// Inserts `key`, or updates its value. 1 round trip to the server. A value of more than 4,080 bytes
    /// goes in pieces, with 1 round trip for each MiB. It takes effect at once, with the last of them.
    ///
    /// Where a value does not fit its slot, and the memory for it is what was removed or replaced a moment
    /// ago, the client asks again until [`ClientOptions::deadline`] ([`MutateError::HeapBusy`]).
    ///
    /// # Errors
    /// [`MutateError`] says whether the change may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Upsert, key, value)
    }

    /// Inserts `key` if it is absent. Returns [`PutOutcome::Inserted`] or [`PutOutcome::Exists`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Insert, key, value)
    }

    /// Updates `key` if it is present. Returns [`PutOutcome::Updated`] or [`PutOutcome::Missing`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.put_one(PutMode::Update, key, value)
    }

    /// Puts `value` if the value of `key` is `expected`, byte for byte: no other change of the key
    /// comes between. 1 round trip to the server. To try again after [`SwapOutcome::Differs`], get the
    /// value first, by 1 READ. Where the key has to be absent, use [`Client::insert`].
    ///
    /// As long as values do not repeat, at most one of several clients that expect the same value gets
    /// [`SwapOutcome::Swapped`].
    ///
    /// If `expected` has more than 4,080 bytes, the client compares. It gets the value, and the server swaps
    /// if nothing has changed it meanwhile: 2 round trips to the server and the READs of a GET, and again
    /// after each change of the key that comes between. The promise is the same.
    ///
    /// With encryption (`ClientOptions::encryption`) only the client can compare. It asks the server for the value,
    /// decrypts it, and has it swapped if nothing has changed it meanwhile: 2 round trips, and again 2
    /// after each change of the key that comes between. The promise is the same.
    ///
    /// # Errors
    /// As [`Client::put`]. Where the client compares, also [`MutateError::Busy`] if 1,000 changes in a row
    /// came between, or the value could not be read. With encryption also `MutateError::Decrypt` where
    /// the value does not decrypt. None of these changes anything. After an error that leaves open whether the change happened, get the value.
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<SwapOutcome, MutateError> {
        #[cfg(feature = "encryption")]
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
    fn swap_stored(
        &mut self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        deadline: Instant,
    ) -> Result<SwapOutcome, MutateError> {
        let request = match expected {
            Expected::Value(expected) => Request::Swap { key, expected, value },
            Expected::Extent(expected) => Request::SwapExtent { key, expected, value },
        };
        match self.ask_until_free(&request, deadline)? {
            Reply::Swapped(Ok(outcome)) => Ok(outcome),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected()),
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
            _ => Err(self.unexpected()),
        }
    }

    /// Inserts or updates many keys. Returns one answer per key, in order: a key that cannot be put
    /// does not stop the others. Requests are sent ahead of the replies, up to 512 of them: a batch
    /// takes 1 round trip on shm, over verbs 1 for some dozens of keys, and 1 for each MiB of long values.
    /// It is no transaction: each put takes effect by itself, in the order of the pairs. But a put that has
    /// to wait for memory ([`PutError::HeapBusy`]) takes effect after the others, or, if its key comes
    /// again in the batch, ends in that error.
    ///
    /// # Errors
    /// [`MutateError`] when the connection failed, or no answer came for as long as
    /// [`ClientOptions::deadline`]: some of the changes may have happened. [`Client::put_many_with`] tells
    /// which were answered before.
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

    /// Removes many keys. Returns for each whether it was present, in order. Costs what
    /// [`Client::put_many`] costs, and is no transaction either.
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

    /// As [`Client::put_many`], as `mode` says, but calls `each` with the number of each pair and its answer,
    /// as the answers come, mostly in the order of the pairs. So after an error it is known what was
    /// answered before; of the other pairs, any may have been put.
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
        mode: PutMode,
        pairs: &[(K, V)],
        mut each: impl FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        #[cfg(feature = "encryption")]
        if let Some(encryption) = self.options.encryption.clone() {
            return self.put_each_encrypted(&encryption, mode, pairs, &mut each);
        }
        let stored = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
        self.put_each_stored(mode, stored, &mut each)
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
        self.ask_each(requests, answer, each)
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

    /// Puts values as they are to be stored.
    fn put_each_stored<'a>(
        &mut self,
        mode: PutMode,
        pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        each: &mut dyn FnMut(usize, Result<PutOutcome, PutError>),
    ) -> Result<(), MutateError> {
        let puts: Vec<_> = pairs.map(|(key, value)| Request::Put { mode, key, value }).collect();
        let answer = |reply| match reply {
            Reply::Put(answer) => Some(answer),
            _ => None,
        };
        let mut busy = Vec::new();
        let mut asked = self.ask_each(puts.iter().copied(), answer, |nth, answer| match answer {
            Err(error @ PutError::HeapBusy { .. }) => busy.push((nth, error)),
            answer => each(nth, answer),
        });
        if busy.is_empty() {
            return asked;
        }
        let last: FxHashMap<_, _> = pairs_of(&puts).map(|(nth, key)| (key, nth)).collect();
        let is_last = |nth| pairs_of(&puts[nth..=nth]).all(|(_, key)| last[key] == nth);
        let (mut waiting, mut ended): (Vec<_>, Vec<_>) = busy.into_iter().partition(|(nth, _)| is_last(*nth));
        let within = self.options.deadline;
        let mut wait = HeapWait::new(Instant::now() + within);
        while asked.is_ok() && !waiting.is_empty() && wait.again() {
            let again = std::mem::take(&mut waiting);
            let before = again.len();
            asked =
                self.ask_each(again.iter().map(|(nth, _)| puts[*nth]), answer, |n, answer| match answer {
                    Err(error @ PutError::HeapBusy { .. }) => waiting.push((again[n].0, error)),
                    answer => each(again[n].0, answer),
                });
            if waiting.len() < before {
                wait.renew(within);
            }
        }
        ended.append(&mut waiting);
        for (nth, error) in ended {
            let answer = Err(wait.in_all(error));
            self.stats.changes.count_final(&puts[nth], &Reply::Put(answer.clone()));
            each(nth, answer);
        }
        self.publish();
        asked
    }

    /// Makes requests, as many ahead of their replies as may be, and calls `each` with the number of each
    /// and its answer. `answer` is `None` for a reply that does not belong to such a request.
    fn ask_each<'a, A>(
        &mut self,
        requests: impl Iterator<Item = Request<'a>>,
        answer: impl Fn(Reply) -> Option<A>,
        mut each: impl FnMut(usize, A),
    ) -> Result<(), MutateError> {
        let mut requests = requests.peekable();
        let (mut nth, mut replies) = (0, Vec::with_capacity(BATCH));
        while requests.peek().is_some() {
            let batch: Vec<_> = requests.by_ref().take(BATCH).collect();
            let asked = self.converse(&batch, &mut Deadline::within(self.options.deadline), &mut replies);
            for reply in replies.drain(..) {
                each(nth, answer(reply).ok_or_else(|| self.unexpected())?);
                nth += 1;
            }
            asked?;
        }
        Ok(())
    }

    /// Returns the server's counters.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn server_stats(&mut self) -> Result<ServerStats, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Stat, deadline)? {
            Reply::Stat(stats) => Ok(stats),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what became of the server's snapshots.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn snapshot_status(&mut self) -> Result<SnapshotStatus, MutateError> {
        self.ask_about_snapshots(false)
    }

    /// Asks the server for a snapshot with every change acknowledged so far, and does not wait for it:
    /// it is made when [`SnapshotStatus::finished`] has reached the [`SnapshotStatus::asked`] of the
    /// answer. The server writes the file that it was started with
    /// ([`ServerConfig::snapshots`](crate::ServerConfig::snapshots)). If it makes none, nothing
    /// happens, and [`SnapshotStatus::is_on`] is `false`.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer, or this client may only read.
    pub fn ask_for_snapshot(&mut self) -> Result<SnapshotStatus, MutateError> {
        self.ask_about_snapshots(true)
    }

    fn ask_about_snapshots(&mut self, begin: bool) -> Result<SnapshotStatus, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Snapshot { begin }, deadline)? {
            Reply::Snapshot(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what the server's table is made of, and what it did to grow and shrink; all zero for a
    /// table of one size.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn growth(&mut self) -> Result<GrowthCounts, MutateError> {
        self.ask_about_growth(false)
    }

    /// Has the server begin every merge of two segments that leaves at most 85 % of what a segment is
    /// meant for, and does not wait: [`GrowthCounts::merging`] of the answer are under way. When they
    /// have ended, more may be possible. A table of one size stays as it is.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer, or this client may only read.
    pub fn shrink(&mut self) -> Result<GrowthCounts, MutateError> {
        self.ask_about_growth(true)
    }

    fn ask_about_growth(&mut self, shrink: bool) -> Result<GrowthCounts, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Growth { shrink }, deadline)? {
            Reply::Growth(counts) => Ok(counts),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what the memory of the server's long values is used for; all zero for a table whose values all
    /// fit their slots.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn heap(&mut self) -> Result<HeapCounts, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Heap, deadline)? {
            Reply::Heap(counts) => Ok(counts),
            _ => Err(self.unexpected()),
        }
    }

    fn put_one(&mut self, mode: PutMode, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        #[cfg(feature = "encryption")]
        if let Some(encryption) = &self.options.encryption {
            let stored = encryption.encrypt(key, value)?;
            return self.put_stored(mode, key, &stored).map_err(encrypted::plain_error);
        }
        self.put_stored(mode, key, value)
    }

    /// Puts a value as it is to be stored.
    fn put_stored(&mut self, mode: PutMode, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask_until_free(&Request::Put { mode, key, value }, deadline)? {
            Reply::Put(answer) => Ok(answer?),
            _ => Err(self.unexpected()),
        }
    }

    fn ask(&mut self, request: &Request<'_>, deadline: Instant) -> Result<Reply, MutateError> {
        let mut deadline = Deadline { at: deadline, allowed: self.options.deadline };
        let mut replies = Vec::with_capacity(1);
        self.converse(std::slice::from_ref(request), &mut deadline, &mut replies)?;
        replies.pop().ok_or_else(|| self.unexpected())
    }

    /// Appends one reply for each request, in order; after an error, as many as there are. Counts them.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), MutateError> {
        let answered = on_path!(&mut self.path, handle => match handle.process().is_this() {
            true => handle.converse(requests, deadline, replies, &mut self.stats),
            // Two processes with one mailbox, or one socket, would take each other's answers.
            false => Err(ConnectError::Forked { address: self.address.clone() }.into()),
        });
        let answered = answered.and_then(|()| {
            if replies.len() != requests.len() {
                replies.truncate(requests.len());
                return Err(self.misunderstood());
            }
            Ok(())
        });
        let denied = replies.iter().position(|reply| *reply == Reply::Denied);
        let answered = match denied {
            Some(first) => {
                replies.truncate(first);
                Err(MutateError::ReadOnly { address: self.address.clone() })
            }
            None => answered,
        };
        let both = requests.iter().zip(&*replies);
        both.for_each(|(request, reply)| self.stats.changes.count(request, reply));
        if let Err(error) = &answered {
            self.stats.failures.count_request(error);
        }
        self.publish();
        answered
    }

    /// Drops the connection after a reply that does not belong to the request. Counts that.
    fn unexpected(&mut self) -> MutateError {
        let error = self.misunderstood();
        self.stats.failures.count_request(&error);
        self.publish();
        error
    }

    fn misunderstood(&mut self) -> MutateError {
        on_path!(&mut self.path, handle => handle.disconnect());
        MutateError::ServerGone { address: self.address.clone(), source: LinkError::Unexpected }
    }
}

/// Most requests sent ahead of their replies. The replies to this many requests fit into a socket's
/// buffer, so neither side waits for the other to read.
const BATCH: usize = 512;

impl Clone for Client {
    /// Makes a handle for another thread, with no connection of its own and zero counts.
    fn clone(&self) -> Client {
        Client::new(self.address.clone(), self.options.clone(), self.path.clone())
    }
}

/// The number and the key of each put.
fn pairs_of<'a>(puts: &[Request<'a>]) -> impl Iterator<Item = (usize, &'a [u8])> {
    puts.iter().enumerate().filter_map(|(nth, put)| match put {
        Request::Put { key, .. } => Some((nth, *key)),
        _ => None,
    })
}

/// Sends the requests that a table of this geometry takes, and inserts the rejections of the others
/// among the replies, each in its place. A rejected request is not sent: no frame or slot could
/// hold it. The geometry must be that of the server that `send` reaches. Another server may take what
/// this one does not, so a rejection counts only if the server answers something: where none of the
/// requests is sent, it is asked for its counters. Values that fit no frame are uploaded, in pieces of
/// at most `piece_max`. `has_sent`: whether any of the requests was sent.
fn send_fitting<E>(
    requests: &[Request<'_>],
    geometry: &Geometry,
    piece_max: PieceMax,
    replies: &mut Vec<Reply>,
    has_sent: &mut bool,
    mut send: impl FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>,
) -> Result<(), E> {
    if fit(requests, geometry, piece_max) {
        *has_sent = true;
        return send_uploading(requests, geometry, piece_max, replies, send);
    }
    let checked: Vec<_> =
        requests.iter().map(|request| check(request, geometry, piece_max).map(|()| *request)).collect();
    let fitting: Vec<_> = checked.iter().filter_map(|request| request.as_ref().ok().copied()).collect();
    let mut answers = Vec::with_capacity(fitting.len().max(1));
    let mut result = Ok(());
    if fitting.is_empty() {
        send(&[Request::Stat], &mut answers)?;
    } else {
        *has_sent = true;
        result = send_uploading(&fitting, geometry, piece_max, &mut answers, send);
    }
    let mut answers = answers.into_iter();
    replies.extend(checked.into_iter().map_while(|request| match request {
        Ok(_) => answers.next(),
        Err(why) => Some(Reply::Put(Err(why))),
    }));
    result
}

/// Whether a table of this geometry takes all of these requests.
fn fit(requests: &[Request<'_>], geometry: &Geometry, piece_max: PieceMax) -> bool {
    requests.iter().all(|request| check(request, geometry, piece_max).is_ok())
}

fn check(request: &Request<'_>, geometry: &Geometry, piece_max: PieceMax) -> Result<(), PutError> {
    let (key_max, frame_max) = (geometry.key_max(), wire::frame_value_max(geometry));
    let value_max = piece_max.map_or(frame_max, |_| geometry.value_max());
    match request {
        Request::Put { key, .. }
        | Request::Swap { key, .. }
        | Request::SwapExtent { key, .. }
        | Request::Remove { key }
        | Request::Get { key }
            if key.is_empty() || key.len() > key_max =>
        {
            Err(PutError::KeyLength { given: key.len(), max: key_max })
        }
        // A longer one is expected by an extent.
        Request::Swap { expected, .. } if expected.len() > frame_max => {
            Err(PutError::ValueLength { given: expected.len(), max: frame_max })
        }
        request => match value_of(request) {
            Some(value) if value.len() > value_max => {
                Err(PutError::ValueLength { given: value.len(), max: value_max })
            }
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    /// The auto traits that the documentation promises.
    #[test]
    fn handles_go_to_other_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Client>();
        fn sent<T: Send + Sync + std::error::Error + 'static>() {}
        sent::<GetError>();
        sent::<MutateError>();
        sent::<ConnectError>();
    }

    /// The result of a GET is a few words, although errors carry much more.
    #[test]
    fn results_of_gets_are_small() {
        assert!(size_of::<Result<bool, GetError>>() <= 128, "{}", size_of::<GetError>());
    }

    /// Each time that is too long for a clock is cut by itself; the others stay as they are.
    #[test]
    fn long_times_are_cut() {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        let second = Duration::from_secs(1);
        let options = |[limit, deadline, lease]: [Duration; 3]| ClientOptions {
            limits: Limits { retries_max: 7, deadline: limit },
            deadline,
            lease,
            requests: RequestPath::Mailbox,
            ..ClientOptions::default()
        };
        for which in 0..3 {
            for (time, bounded) in [
                (Duration::ZERO, Duration::ZERO),
                (century - second, century - second),
                (century, century),
                (century + second, century),
                (Duration::MAX, century),
            ] {
                let (mut given, mut expected) = ([second; 3], [second; 3]);
                (given[which], expected[which]) = (time, bounded);
                assert_eq!(options(given).bounded(), options(expected), "time {which} of {time:?}");
            }
        }
    }

    /// The defaults are those that the documentation names.
    #[test]
    fn defaults_are_as_documented() {
        let expected = ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            requests: RequestPath::Auto,
            hint_bytes: None,
            server_uids: Vec::new(),
            region: None,
            verbs: VerbsOptions::default(),
            #[cfg(feature = "encryption")]
            encryption: None,
        };
        assert_eq!(ClientOptions::default(), expected);
        assert_eq!([RETRY_FIRST, RETRY_MAX, ATTEMPT_MAX], [1, 100, 2000].map(Duration::from_millis));
    }

    /// A rejection keeps its kind, its numbers and its words from the table to the caller and back. What is
    /// no rejection is none.
    #[test]
    fn rejections_keep_their_kind() {
        let waited = Duration::from_millis(9);
        for error in [
            PutError::NoMemory { keys: 1, bytes: 2 },
            PutError::KeyLength { given: 3, max: 4 },
            PutError::ValueLength { given: 5, max: 6 },
            PutError::EncryptedLength { given: 7, stored: 8, stored_max: 9 },
            PutError::Full { keys: 10, slots: 11, bytes_max: 17, heap_bytes: 18 },
            PutError::HeapFull { live_bytes: 12, heap_bytes: 13 },
            PutError::HeapBusy { given: 14, waited },
            PutError::HeapMemory { given: 15 },
            PutError::Busy { rounds: 16 },
        ] {
            let told = MutateError::from(error.clone());
            assert_eq!((told.rejection(), told.to_string()), (Some(error.clone()), error.to_string()));
        }
        let address = || Address::Shm("/nowhere".into());
        for error in [
            MutateError::LongValue { given: 1, max: 0 },
            MutateError::ReadOnly { address: address() },
            MutateError::Deadline { address: address(), deadline: waited },
            MutateError::ServerGone { address: address(), source: LinkError::HungUp },
            MutateError::Connect(ConnectError::Refused { address: address(), theirs: 1 }),
        ] {
            assert_eq!(error.rejection(), None, "{error}");
        }
    }

    /// A call that failed counts once, by what it failed of. An answer to a change counts by the change's kind,
    /// unless it says that the change is to be asked for again.
    #[test]
    fn failures_and_changes_are_counted_by_kind() {
        let address = || Address::Shm("/nowhere".into());
        let (within, last) = (Duration::from_millis(9), Retry::Moved);
        let refused = || ConnectError::Refused { address: address(), theirs: 1 };
        let hung_up = || LinkError::HungUp;
        let kinds = |counts: FailureCounts| [counts.deadlines, counts.contended, counts.gone, counts.refused];
        // Deadlines, contended, gone, refused.
        for (error, expected) in [
            (GetError::KeyLength { given: 0, max: 1 }, [0, 0, 0, 1]),
            (GetError::Contended { retries: 1, last }, [0, 1, 0, 0]),
            (GetError::Replaced { len: 1, times: 2 }, [0, 1, 0, 0]),
            (GetError::Inconclusive { within, retries: 1, last }, [1, 0, 0, 0]),
            (GetError::Deadline { address: address(), deadline: within }, [1, 0, 0, 0]),
            (GetError::Damaged { what: "it" }, [0, 0, 1, 0]),
            (GetError::ServerGone { address: address(), source: hung_up() }, [0, 0, 1, 0]),
            (GetError::Connect(refused()), [0, 0, 1, 0]),
        ] {
            let mut counts = FailureCounts::default();
            counts.count_get(&error);
            assert_eq!(kinds(counts), expected, "{error}");
        }
        for (error, expected) in [
            (MutateError::Deadline { address: address(), deadline: within }, [1, 0, 0, 0]),
            (MutateError::ServerGone { address: address(), source: hung_up() }, [0, 0, 1, 0]),
            (MutateError::Connect(refused()), [0, 0, 1, 0]),
            (MutateError::ReadOnly { address: address() }, [0, 0, 0, 1]),
        ] {
            let mut counts = FailureCounts::default();
            counts.count_request(&error);
            assert_eq!(kinds(counts), expected, "{error}");
        }
        let (key, value, mode) = (&b"key"[..], &b"value"[..], PutMode::Upsert);
        let extent = crate::layout::extent::Reference { number: 1, offset: 2, len: 3, crc: 4 };
        let busy = || PutError::HeapBusy { given: 1, waited: within };
        let full = || PutError::Full { keys: 1, slots: 1, bytes_max: 0, heap_bytes: 0 };
        // Puts, swaps, removes, rejected.
        for (request, reply, expected) in [
            (Request::Put { mode, key, value }, Reply::Put(Ok(PutOutcome::Exists)), [1, 0, 0, 0]),
            (Request::Put { mode, key, value }, Reply::Put(Err(full())), [1, 0, 0, 1]),
            (Request::Put { mode, key, value }, Reply::Put(Err(busy())), [0; 4]),
            (
                Request::Swap { key, expected: value, value },
                Reply::Swapped(Ok(SwapOutcome::Absent)),
                [0, 1, 0, 0],
            ),
            (Request::Swap { key, expected: value, value }, Reply::Put(Err(full())), [0, 1, 0, 1]),
            (Request::Swap { key, expected: value, value }, Reply::Swapped(Err(full())), [0, 1, 0, 1]),
            (Request::Swap { key, expected: value, value }, Reply::Swapped(Err(busy())), [0; 4]),
            (
                Request::SwapExtent { key, expected: extent, value },
                Reply::Swapped(Ok(SwapOutcome::Differs)),
                [0, 1, 0, 0],
            ),
            (Request::Remove { key }, Reply::Removed(Ok(false)), [0, 0, 1, 0]),
            (Request::Remove { key }, Reply::Removed(Err(full())), [0, 0, 1, 1]),
            (Request::Get { key }, Reply::Value(None), [0; 4]),
            (Request::Get { key }, Reply::Put(Err(full())), [0; 4]),
            (Request::LongDrop, Reply::Taken, [0; 4]),
        ] {
            let mut counts = ChangeCounts::default();
            counts.count(&request, &reply);
            let counted = [counts.puts, counts.swaps, counts.removes, counts.rejected];
            assert_eq!(counted, expected, "{request:?}, {reply:?}");
        }
    }

    /// Only the errors of a closed connection become `HungUp`.
    #[test]
    fn a_closed_connection_is_a_hang_up() {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, Other, TimedOut};
        for (kind, is_hung_up) in [
            (ConnectionReset, true),
            (BrokenPipe, true),
            (ConnectionRefused, false),
            (TimedOut, false),
            (Other, false),
        ] {
            match LinkError::from(io::Error::from(kind)) {
                LinkError::HungUp => assert!(is_hung_up, "{kind:?}"),
                LinkError::Os(error) => assert!(!is_hung_up && error.kind() == kind, "{kind:?}"),
                other => panic!("{kind:?}: {other}"),
            }
        }
    }

    /// A request that does not fit is not sent, and its rejection takes the place of its reply.
    /// Missing replies are not made up.
    #[test]
    fn rejections_are_in_their_places() {
        let config = Config { size: TableSize::Keys(10), key_max: 4, value_max: 4, ..Config::default() };
        let geometry = config.geometry().unwrap();
        let put = |key, value| Request::Put { mode: PutMode::Upsert, key, value };
        let swap = |key, expected, value| Request::Swap { key, expected, value };
        let long = [1; 5];
        let key_length = |given| Reply::Put(Err(PutError::KeyLength { given, max: 4 }));
        let value_length = Reply::Put(Err(PutError::ValueLength { given: 5, max: 4 }));
        // Each request, and its rejection if any.
        let all = [
            (put(b"k", b"v"), None),
            (put(b"", b"v"), Some(key_length(0))),
            (put(b"four", b"four"), None),
            (put(&long, b""), Some(key_length(5))),
            (put(&long, &long), Some(key_length(5))),
            (put(b"k", &long), Some(value_length.clone())),
            (swap(b"k", b"four", b"four"), None),
            (swap(&long, b"", b""), Some(key_length(5))),
            (swap(b"k", &long, b""), Some(value_length.clone())),
            (swap(b"k", b"", &long), Some(value_length.clone())),
            (Request::Remove { key: b"four" }, None),
            (Request::Remove { key: &long }, Some(key_length(5))),
            (Request::Get { key: b"k" }, None),
            (Request::Get { key: b"" }, Some(key_length(0))),
            (Request::Stat, None),
        ];
        for first in 0..all.len() {
            for last in first..=all.len() {
                let (asked, wrong): (Vec<_>, Vec<_>) = all[first..last].iter().cloned().unzip();
                let mut sent = Vec::new();
                let send = |requests: &[Request<'_>], replies: &mut Vec<Reply>| {
                    sent.extend(requests.iter().map(|request| format!("{request:?}")));
                    // Each has a reply of its own.
                    replies.extend((0..requests.len()).map(|n| Reply::Value(Some(vec![n as u8]))));
                    Ok::<_, LinkError>(())
                };
                let (mut replies, mut has_sent) = (Vec::new(), false);
                send_fitting(&asked, &geometry, Some(4), &mut replies, &mut has_sent, send).unwrap();
                let mut fitting = 0;
                let expected = wrong.iter().map(|wrong| {
                    wrong.clone().unwrap_or_else(|| {
                        fitting += 1;
                        Reply::Value(Some(vec![fitting - 1]))
                    })
                });
                assert_eq!(replies, expected.collect::<Vec<_>>());
                let those = asked.iter().zip(&wrong).filter(|(_, wrong)| wrong.is_none());
                let those: Vec<_> = those.map(|(request, _)| format!("{request:?}")).collect();
                assert_eq!(has_sent, asked.is_empty() || !those.is_empty());
                // Where none is sent, the server is asked whether it is there.
                assert_eq!(sent, if has_sent { those } else { vec!["Stat".to_string()] });
            }
        }
        let asked: Vec<_> = all.iter().map(|(request, _)| *request).collect();
        let ask = |asked: &[_], piece_max, come: usize, result: Result<(), LinkError>| {
            let (mut replies, mut result) = (Vec::new(), Some(result));
            let send = |_: &[Request<'_>], replies: &mut Vec<Reply>| {
                replies.extend(vec![Reply::Value(None); come]);
                result.take().unwrap()
            };
            let result = send_fitting(asked, &geometry, piece_max, &mut replies, &mut false, send);
            (replies.len(), result.is_ok())
        };
        assert_eq!(ask(&asked, None, 1, Ok(())), (2, true));
        // What came before an error is there, and no rejection that nobody confirmed.
        assert_eq!(ask(&asked, Some(4), 2, Err(LinkError::HungUp)), (6, false));
        assert_eq!(ask(&asked[1..2], Some(4), 0, Err(LinkError::HungUp)), (0, false));
    }
}
