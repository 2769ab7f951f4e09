//! Why a client could not connect, get or change.

use super::options::RequestPath;
use crate::address::{Address, AddressError};
use crate::base::units::time;
use crate::encryption::{DecryptError, EncryptError};
use crate::get::Retry;
use crate::layout::superblock::SuperblockError;
use crate::outcome::{PutError, ReadError, StartBound};
use crate::part::PartError;
use crate::region::RegionError;
#[cfg(feature = "verbs")]
use crate::verbs::{SetupError, VerbsError};
use crate::wire::{FeedRefusal, PROTOCOL_VERSION, Refusal, WireError};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Over TCP: client and server do not have the same token ([`ClientOptions::token`](crate::ClientOptions::token)).
    #[error(
        "the server at {address} has another token than this client; give the client the server's (`ClientOptions::token`)"
    )]
    Token {
        /// The address.
        address: Address,
    },
    /// Over TCP: the server's certificate is not trusted, or it does not trust the client's, or one of the two does
    /// not speak TLS ([`ClientOptions::tls`](crate::ClientOptions::tls)).
    #[error("no TLS with the server at {address}; {}", crate::tls::mend(source))]
    Tls {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// Over TCP: the server speaks TLS, and the client was not told to ([`ClientOptions::tls`](crate::ClientOptions::tls)).
    #[error("the server at {address} speaks TLS; give the client its authority (`ClientOptions::tls`)")]
    WantsTls {
        /// The address.
        address: Address,
    },
    /// Requests cannot travel that way ([`ClientOptions::requests`](crate::ClientOptions::requests)).
    #[error("requests to the server at {address} cannot go by {}: {why}", path.name())]
    RequestPath {
        /// The requested path.
        path: RequestPath,
        /// The address.
        address: Address,
        /// Why not, and what to do about it.
        why: String,
    },
    /// Over a network a client cannot tell when entries end ([`ClientOptions::exact_expiry`](crate::ClientOptions::exact_expiry)).
    #[error(
        "over a network a client does not have the clock of the server at {address}; connect without exact expiry, and entries are gone at most a second after their end"
    )]
    ExactExpiry {
        /// The address.
        address: Address,
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
    /// No server is there, and its region file ([`ClientOptions::region`](crate::ClientOptions::region)) is
    /// given up, or was never finished.
    #[error("no server at {address}, and {} holds no table that can be read; start a server", path.display())]
    NoTable {
        /// The address.
        address: Address,
        /// The file.
        path: PathBuf,
    },
    /// The server does not let the client be this owner ([`ClientOptions::owner`](crate::ClientOptions::owner)).
    #[error("the client cannot be owner {owner} at the server at {address}")]
    Owner {
        /// The address.
        address: Address,
        /// The owner.
        owner: u16,
        /// Why.
        source: PutError,
    },
    /// The client may only read, and so be no owner ([`ClientOptions::owner`](crate::ClientOptions::owner)).
    #[error(
        "the server at {address} lets this client read the table, and not change it, and who cannot change it can be no owner; its user can allow changes (`ServerConfig::allow_uids`; over a network, by the token for changes)"
    )]
    ReadOnly {
        /// The address.
        address: Address,
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
    /// The bound on retries was reached ([`Limits::retries_max`](crate::Limits::retries_max)).
    #[error("{}", ReadError::Contended { retries: *retries, last: *last })]
    Contended {
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// No pass was conclusive in time ([`Limits::deadline`](crate::Limits::deadline)).
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
    /// A server's answer has no room for the value ([`Client::get_two_sided`](crate::Client::get_two_sided)).
    #[error(
        "the value is {given} bytes long, and a server's answer has room for {max}; let the client READ it: `Client::get`"
    )]
    LongValue {
        /// Length of the value.
        given: usize,
        /// Longest that the server sends.
        max: usize,
    },
    /// No READ over verbs completed in time, or the server did not answer in time
    /// ([`ClientOptions::deadline`](crate::ClientOptions::deadline)).
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
    /// Over verbs and TCP: the connection was lost, and no other could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The key is there, and its value does not decrypt
    /// ([`ClientOptions::encryption`](crate::ClientOptions::encryption)).
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
}

/// Why the server gave no answer to a request that carries no change of a key: [`Client::server_stats`](crate::Client::server_stats),
/// [`Client::ask_for_snapshot`](crate::Client::ask_for_snapshot), [`Client::shrink`](crate::Client::shrink) and the like.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The server lets this client read only, and this request would have it do something. Nothing was done.
    #[error("{}", MutateError::ReadOnly { address: address.clone() })]
    ReadOnly {
        /// The address.
        address: Address,
    },
    /// No answer in time. The server may still do what it was asked for.
    #[error("the server at {address} did not answer within {}; it may be suspended (SIGSTOP) or busy", time(*deadline))]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The connection ended before the answer. The server may have done what it was asked for.
    #[error("the server at {address} went away before it answered")]
    ServerGone {
        /// The address.
        address: Address,
        /// How the connection ended.
        source: LinkError,
    },
    /// No connection. The server was asked for nothing.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl AskError {
    /// The error of a connection that failed after the request was sent, or that had no answer within this time.
    pub(super) fn lost(address: &Address, within: Duration, error: LinkError) -> AskError {
        let address = address.clone();
        match error {
            LinkError::Deadline(_) => AskError::Deadline { address, deadline: within },
            source => AskError::ServerGone { address, source },
        }
    }
}

/// Why a scan, or the feed of changes, gave no answer. Everything before it is right, and the same call can be made
/// again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeedError {
    /// The server has no answer to this.
    #[error("the server at {address} refuses: {why}")]
    Refused {
        /// The address.
        address: Address,
        /// Why.
        why: FeedRefusal,
    },
    /// The prefix is longer than any key.
    #[error("a prefix of {given} bytes, and the longest key of this table has {max}")]
    PrefixLength {
        /// Length given.
        given: usize,
        /// Longest key.
        max: usize,
    },
    /// Bytes that are no cursor of a scan.
    #[error("{given} bytes that are no cursor of a scan; begin anew")]
    Cursor {
        /// How many.
        given: usize,
    },
    /// The server is of a version before scans and feeds. Nothing was sent.
    #[error("the server at {address} knows no such request; use the same version of oneread on both sides")]
    Unsupported {
        /// The address.
        address: Address,
    },
    /// A value could not be read.
    #[error("a value that the server does not send could not be read")]
    Get(#[from] GetError),
    /// The server did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

impl From<AskError> for GetError {
    fn from(error: AskError) -> GetError {
        match error {
            AskError::Deadline { address, deadline } => GetError::Deadline { address, deadline },
            AskError::ServerGone { address, source } => GetError::ServerGone { address, source },
            // Every client may read.
            AskError::ReadOnly { address } => GetError::ServerGone { address, source: LinkError::Unexpected },
            AskError::Connect(error) => GetError::Connect(error),
        }
    }
}

impl From<AskError> for MutateError {
    fn from(error: AskError) -> MutateError {
        match error {
            AskError::ReadOnly { address } => MutateError::ReadOnly { address },
            AskError::Deadline { address, deadline } => MutateError::Deadline { address, deadline },
            AskError::ServerGone { address, source } => MutateError::ServerGone { address, source },
            AskError::Connect(ConnectError::Owner { source, .. }) => source.into(),
            AskError::Connect(ConnectError::ReadOnly { address }) => MutateError::ReadOnly { address },
            AskError::Connect(error) => MutateError::Connect(error),
        }
    }
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

/// Why a change did not happen, or may not have happened. The variants up to `ReadOnly` mean that the table is
/// unchanged: the server rejected the change ([`MutateError::rejection`]), or the client rejected it by the server's
/// limits, after it made sure that the server is there.
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
    /// A change of a part does not fit the value that is there. Nothing was changed.
    #[error(transparent)]
    Part(#[from] PartError),
    /// This client encrypts (`ClientOptions::encryption`), and the server would have to change a value that it cannot
    /// read. Nothing was sent.
    #[error(
        "values of this client are encrypted, and a server cannot change a part of one; get the value, change it, and compare-and-swap it"
    )]
    Encrypted,
    /// The server is of a version that does not know this kind of change. Nothing was sent.
    #[error("{}", PutError::OldServer)]
    OldServer,
    /// The change had to wait before it became visible, and was refused meanwhile. Nothing was changed.
    #[error("{}", PutError::Withdrawn)]
    Withdrawn,
    /// An entry cannot have this time to live. Nothing was changed.
    #[error("{}", PutError::TimeToLive { given: *given })]
    TimeToLive {
        /// The time given.
        given: Duration,
    },
    /// A time to live was given, and entries of this table have no lives. Nothing was changed.
    #[error("{}", PutError::NoLife)]
    NoLife,
    /// All numbers of entries were given. Nothing was changed.
    #[error("{}", PutError::EntryNumbers)]
    EntryNumbers,
    /// No owner can have this number.
    #[error("{}", PutError::OwnerNumber { given: *given })]
    OwnerNumber {
        /// The number given.
        given: u16,
    },
    /// The client puts as an owner ([`Client::owner`](crate::Client::owner)) who was removed, or was away for longer than
    /// it said. Nothing was changed.
    #[error("{}", PutError::OwnerGone { owner: *owner })]
    OwnerGone {
        /// The owner.
        owner: u16,
    },
    /// Another put of the key was started ([`Client::put_start`](crate::Client::put_start)). Nothing was changed.
    #[error("{}", PutError::AlreadyStarted)]
    AlreadyStarted,
    /// This handle's put has ended, or there was none. Nothing was changed.
    #[error("{}", PutError::NotStarted)]
    NotStarted,
    /// The value has another length than was stated. Nothing was changed.
    #[error("{}", PutError::StartedLength { given: *given, stated: *stated })]
    StartedLength {
        /// Bytes given.
        given: usize,
        /// Bytes stated when it was started.
        stated: usize,
    },
    /// Entries of this table have no owners.
    #[error("{}", PutError::NoOwners)]
    NoOwners,
    /// Started puts hold all that they may, or this one was to hold its room for too long
    /// ([`StartLimits`](crate::StartLimits)). Nothing was started.
    #[error(transparent)]
    StartBound(StartBound),
    /// Everything that could make room for the key, or its value, is pinned ([`Client::pin`](crate::Client::pin)), or
    /// held by started puts. Nothing was changed.
    #[error("{}", PutError::Pinned)]
    Pinned,
    /// This connection has all the pins that it may have. Nothing was pinned.
    #[error("{}", PutError::Pins { max: *max })]
    Pins {
        /// The most pins that it may have.
        max: u32,
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
        "the server at {address} lets this client read the table, and not change it; its user can allow changes (`ServerConfig::allow_uids`; over a network, by the token for changes)"
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
    #[error(transparent)]
    Encrypt(#[from] EncryptError),
    /// The value that the key has does not decrypt.
    /// [`Client::compare_and_swap`](crate::Client::compare_and_swap) has not changed it.
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
            PutError::Withdrawn => MutateError::Withdrawn,
            PutError::Part(error) => MutateError::Part(error),
            PutError::OldServer => MutateError::OldServer,
            PutError::TimeToLive { given } => MutateError::TimeToLive { given },
            PutError::NoLife => MutateError::NoLife,
            PutError::EntryNumbers => MutateError::EntryNumbers,
            PutError::OwnerNumber { given } => MutateError::OwnerNumber { given },
            PutError::OwnerGone { owner } => MutateError::OwnerGone { owner },
            PutError::NoOwners => MutateError::NoOwners,
            PutError::AlreadyStarted => MutateError::AlreadyStarted,
            PutError::NotStarted => MutateError::NotStarted,
            PutError::StartedLength { given, stated } => MutateError::StartedLength { given, stated },
            PutError::StartBound(bound) => MutateError::StartBound(bound),
            PutError::Pinned => MutateError::Pinned,
            PutError::Pins { max } => MutateError::Pins { max },
        }
    }
}

impl MutateError {
    /// Why the change was rejected, in the form that [`Client::put_many`](crate::Client::put_many) uses for
    /// each key. `None` if the change was not rejected, or if the client cannot know.
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
            MutateError::Withdrawn => Some(PutError::Withdrawn),
            MutateError::Part(error) => Some(PutError::Part(error)),
            MutateError::OldServer => Some(PutError::OldServer),
            MutateError::TimeToLive { given } => Some(PutError::TimeToLive { given }),
            MutateError::NoLife => Some(PutError::NoLife),
            MutateError::EntryNumbers => Some(PutError::EntryNumbers),
            MutateError::OwnerNumber { given } => Some(PutError::OwnerNumber { given }),
            MutateError::OwnerGone { owner } => Some(PutError::OwnerGone { owner }),
            MutateError::NoOwners => Some(PutError::NoOwners),
            MutateError::AlreadyStarted => Some(PutError::AlreadyStarted),
            MutateError::NotStarted => Some(PutError::NotStarted),
            MutateError::StartedLength { given, stated } => Some(PutError::StartedLength { given, stated }),
            MutateError::StartBound(bound) => Some(PutError::StartBound(bound)),
            MutateError::Pinned => Some(PutError::Pinned),
            MutateError::Pins { max } => Some(PutError::Pins { max }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The auto traits that the documentation promises.
    #[test]
    fn errors_go_to_other_threads() {
        fn sent<T: Send + Sync + std::error::Error + 'static>() {}
        sent::<GetError>();
        sent::<MutateError>();
        sent::<AskError>();
        sent::<ConnectError>();
    }

    /// The result of a GET is a few words, although errors carry much more.
    #[test]
    fn results_of_gets_are_small() {
        assert!(size_of::<Result<bool, GetError>>() <= 128, "{}", size_of::<GetError>());
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
            PutError::Withdrawn,
            PutError::TimeToLive { given: waited },
            PutError::NoLife,
            PutError::EntryNumbers,
            StartBound::Slots { held: 20, max: 21 }.into(),
            PutError::Pinned,
            PutError::Pins { max: 19 },
            PutError::Busy { rounds: 16 },
            PutError::Part(PartError::CounterRange { value: 17, delta: -18 }),
            PutError::OldServer,
        ] {
            let told = MutateError::from(error.clone());
            assert_eq!((told.rejection(), told.to_string()), (Some(error.clone()), error.to_string()));
        }
        let address = || Address::Shm("/nowhere".into());
        for error in [
            MutateError::ReadOnly { address: address() },
            MutateError::Deadline { address: address(), deadline: waited },
            MutateError::ServerGone { address: address(), source: LinkError::HungUp },
            MutateError::Connect(ConnectError::Refused { address: address(), theirs: 1 }),
            MutateError::Encrypted,
        ] {
            assert_eq!(error.rejection(), None, "{error}");
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
}
