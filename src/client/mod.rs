//! The client: GETs read the server's region; changes are requests to the server. [`Client`] says
//! what it promises when the server is gone.

#[cfg(any(feature = "verbs", test))]
mod lanes;
mod mailbox;
mod shm;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;

use crate::address::Address;
use crate::get::Retry;
use crate::layout::geometry::Geometry;
use crate::layout::superblock::SuperblockError;
use crate::outcome::{PutError, PutMode, PutOutcome, ReadError};
use crate::reader::{GetStats, Limits, ReadCounts};
use crate::region::{Region, RegionError};
use crate::setters::setters;
use crate::verbs::VerbsOptions;
#[cfg(feature = "verbs")]
use crate::verbs::{SetupError, VerbsError};
use crate::wire::{PROTOCOL_VERSION, Reply, Request, ServerStats, WireError};
use std::io;
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
/// let options = ClientOptions::new().limits(Limits::new().deadline(soon)).deadline(soon);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Bounds of a GET that has to be repeated.
    pub limits: Limits,
    /// Longest time of a connect, a change or a batch of changes. Over verbs it also bounds a READ,
    /// including the attempts to reconnect if the READ fails.
    pub deadline: Duration,
    /// How long GETs still answer after the server is gone: it was killed, or it stopped and its
    /// region is a file. Other memory is given up by [`Server::stop`](crate::Server::stop): GETs
    /// then end at once. Only for shm: over verbs there is nothing left to read.
    pub lease: Duration,
    /// How requests to the server (changes, [`Client::rpc_get`], [`Client::server_stats`]) travel.
    pub requests: RequestPath,
    /// Options for verbs. Shm ignores them.
    pub verbs: VerbsOptions,
}

/// How requests to the server (changes, [`Client::rpc_get`], [`Client::server_stats`]) travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestPath {
    /// As messages: over the server's Unix socket, or over verbs by SEND and RECV on a queue pair.
    /// Over verbs it is the queue pair that carries the READs, or one more where handles share
    /// queue pairs. The server may sleep.
    #[default]
    Message,
    /// Only on shm: through a mailbox, memory that one handle and the server share. The server must
    /// have been started with [`ServerConfig::mailbox`](crate::ServerConfig::mailbox).
    ///
    /// A mailbox takes 28 KiB with the default lengths, up to 508 KiB with the longest. The handle
    /// that connects has one, and each clone from its first request on. There is no system call
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
    /// Deadline 5 s, lease 10 s, requests as messages.
    fn default() -> ClientOptions {
        ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            requests: RequestPath::Message,
            verbs: VerbsOptions::default(),
        }
    }
}

setters!(ClientOptions {
    limits: Limits,
    deadline: Duration,
    lease: Duration,
    requests: RequestPath,
    verbs: VerbsOptions,
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
    /// No server listens there.
    #[error(
        "no server at {address}: {source}; start one with `oneread serve --at {address}`, or name another address"
    )]
    NotThere {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The server refused the client.
    #[error(
        "the server at {address} (protocol version {theirs}, here {PROTOCOL_VERSION}) turned this client away: another user's server takes only users that it allows (`ServerConfig::allow_uids`, `serve --allow-uid`), and a limited number of connections"
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
    #[error("talking to the server at {address}: {source}")]
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
        "this build of oneread cannot reach {address}: it has no verbs fabric; build it with `--features verbs`"
    )]
    NotBuilt {
        /// The address.
        address: Address,
    },
    /// Verbs could not be set up, or the server there could not be reached.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] SetupError),
    /// The superblock of the region is not valid.
    #[error("the region of the server at {address}: {source}")]
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
    #[error("no answer within {0:?}; the server may be suspended (SIGSTOP) or busy")]
    Deadline(Duration),
    /// The server closed the connection.
    #[error("the server hung up")]
    HungUp,
    /// The bytes are not valid frames.
    #[error("the peer does not speak oneread's protocol: {0}")]
    Wire(#[from] WireError),
    /// A reply that does not belong to the request.
    #[error("the peer does not speak oneread's protocol: an unexpected reply")]
    Unexpected,
    /// A system call failed.
    #[error(transparent)]
    Os(io::Error),
    /// The server hung up, and the lease of its region has ended.
    #[error("the lease of {0:?} has ended; it is tried again in the background")]
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
    /// Over verbs: no READ completed in time ([`ClientOptions::deadline`]).
    #[error(
        "the server at {address} could not be read from within {deadline:?}; it may be suspended (SIGSTOP) or unreachable"
    )]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The server is gone. Over shm the lease has also ended, or the region was given up. Over
    /// verbs the queue pair failed, and so did its successors.
    #[error("the server at {address} is gone: {source}")]
    ServerGone {
        /// The address.
        address: Address,
        /// What failed or ended.
        source: LinkError,
    },
    /// Over verbs: the connection was lost, and no other could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl From<ReadError> for GetError {
    fn from(error: ReadError) -> GetError {
        match error {
            ReadError::KeyLength { given, max } => GetError::KeyLength { given, max },
            ReadError::Contended { retries, last } => GetError::Contended { retries, last },
            ReadError::Deadline { deadline: within, retries, last } => {
                GetError::Inconclusive { within, retries, last }
            }
        }
    }
}

/// Why a change did not happen, or may not have happened. The first four mean that the table is
/// unchanged: the server rejected the change ([`MutateError::rejection`]), or the client rejected
/// it by the limits of the server that it is connected to.
///
/// | the server | a change ends in | may it have happened? |
/// |---|---|---|
/// | rejects the change | one of the first four | no |
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
    /// The table has no room for the key.
    #[error("{}", PutError::Full { keys: *keys, slots: *slots })]
    Full {
        /// Keys in the table.
        keys: u64,
        /// Slots allocated.
        slots: u64,
    },
    /// Other changes interfered each time. Try again.
    #[error("{}", PutError::Busy { rounds: *rounds })]
    Busy {
        /// Attempts made.
        rounds: u32,
    },
    /// No answer in time. The change may still happen, or may have happened.
    #[error(
        "the server at {address} did not answer within {deadline:?}; it may be suspended (SIGSTOP) or busy, and the change may still happen"
    )]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The connection ended before the answer. The change may have happened.
    #[error("the server at {address} went away before it answered ({source}); the change may have happened")]
    ServerGone {
        /// The address.
        address: Address,
        /// How the connection ended.
        source: LinkError,
    },
    /// No connection. The change did not happen.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl From<PutError> for MutateError {
    fn from(error: PutError) -> MutateError {
        match error {
            PutError::KeyLength { given, max } => MutateError::KeyLength { given, max },
            PutError::ValueLength { given, max } => MutateError::ValueLength { given, max },
            PutError::Full { keys, slots } => MutateError::Full { keys, slots },
            PutError::Busy { rounds } => MutateError::Busy { rounds },
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
            MutateError::Full { keys, slots } => Some(PutError::Full { keys, slots }),
            MutateError::Busy { rounds } => Some(PutError::Busy { rounds }),
            _ => None,
        }
    }
}

/// Counts of what a client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// GETs, hits, and retries by cause.
    pub get: GetStats,
    /// READs, the bytes they requested, and doorbells (round trips).
    pub read: ReadCounts,
    /// Times this handle switched to a new region, or over verbs reconnected.
    pub reattached: u64,
}

/// A handle on a served table. Each thread has its own handle: `Client` is `Send`, and `Clone`
/// makes another.
///
/// Over shm, cloning is cheap: handles share the mapping, and each opens its own connection at its
/// first change. Over verbs each handle has its own queue pair, made at first use, or all handles
/// share a few ([`VerbsOptions::pairs`]).
///
/// It is also `Sync`, but that is of little use, since all operations take `&mut self`. Clone it:
/// behind a mutex, GETs wait for each other and for changes.
///
/// # What blocks, and for how long
///
/// | call | waits for | at most |
/// |---|---|---|
/// | GETs on shm | nothing: no system call, no server. If a slot is being written, the GET reads it again: it spins, then yields, then sleeps 50 microseconds between attempts | [`Limits::deadline`], 1 s |
/// | GETs over verbs | the NIC, some microseconds, spinning or asleep ([`Wait`](crate::Wait)). If the connection failed, a new connection | [`ClientOptions::deadline`], 5 s, and [`Limits::deadline`] |
/// | changes, [`rpc_get`](Client::rpc_get), [`server_stats`](Client::server_stats) | the server's answer, and a connection if there is none | [`ClientOptions::deadline`] |
/// | [`connect`](Client::connect) | the server | [`ClientOptions::deadline`] |
/// | cloning | nothing | |
/// | dropping the last handle | the end of the watcher thread, some microseconds | |
///
/// A batch of GETs takes as long as its READs take. The bounds above limit only the time without
/// progress. [`Server`](crate::Server) says what its calls wait for.
///
/// # When the server is gone
///
/// * **Suspended or busy** (SIGSTOP, debugger, overload): GETs work as usual. The exception is a
///   GET that needs a slot which the server was just writing, at most one slot per server thread.
///   Such a GET ends at its bound ([`ClientOptions::limits`]). Changes end in
///   [`MutateError::Deadline`] and may still happen at any later time.
/// * **Gone** (exit, crash, kill -9): the operating system hangs up the connection. A watcher
///   thread of the client notices as soon as it runs. GETs still answer from the region as the
///   server left it, until the client has reconnected or its lease ([`ClientOptions::lease`]) ends.
///   After the lease they end in [`GetError::ServerGone`]. Meanwhile the watcher tries to
///   reconnect, at once and then after pauses that grow from 1 ms to 100 ms.
/// * **Back** at the same address: the watcher reconnects within 100 ms, or within 2 s if an
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
/// # In an async program
///
/// There is no `async` variant, because a GET on shm ends before a task could be switched. Call
/// GETs on shm directly in a task, with one clone per task and a short [`Limits::deadline`]. Leave
/// all other calls to a thread that may block: `spawn_blocking`, or better one thread that owns a
/// handle and receives changes from a channel, and so can send batches
/// ([`put_many`](Client::put_many)). `examples/tokio.rs` does both. Over verbs, such a thread
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
/// client.put(b"key", b"value")?;                            // a request to the server
/// assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..])); // one READ, no request
/// assert_eq!(client.stats().read.reads, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    address: Address,
    options: ClientOptions,
    path: ServerPath,
    stats: ClientStats,
}

/// One thread's path to a server: what each fabric implements for a [`Client`], whose methods state
/// the guarantees. A clone is for another thread. It shares what can be shared and has no
/// connection yet.
trait Handle: Clone {
    /// The geometry of the table being read.
    fn geometry(&self) -> &Geometry;

    /// Times it switched to a new region, or reconnected.
    fn reattached(&self) -> u64;

    /// Replaces the contents of `value` with the value of `key`. Returns whether the key was found.
    /// Adds its counts to `stats`.
    fn get_into(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
        stats: &mut ClientStats,
    ) -> Result<bool, GetError>;

    /// Calls `each` once per key with the key's index and value, in any order.
    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
        stats: &mut ClientStats,
    ) -> Result<(), GetError>;

    /// Sends requests and collects their replies, in order, until the deadline. Connects if there
    /// is no connection. A connection that failed is not used again.
    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, MutateError>;

    /// Drops the connection for changes. The next change opens another one.
    fn disconnect(&mut self);
}

/// How the client reaches the server's region.
#[derive(Clone, Debug)]
enum ServerPath {
    Shm(shm::ShmHandle),
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::VerbsHandle>),
}

/// Runs an expression on the [`Handle`] of either path: `on_path!(&mut self.path, handle => ...)`.
macro_rules! on_path {
    ($path:expr, $handle:ident => $then:expr) => {
        match $path {
            ServerPath::Shm($handle) => $then,
            #[cfg(feature = "verbs")]
            ServerPath::Verbs($handle) => $then,
        }
    };
}

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
        options.requests.check(address)?;
        let path = match address {
            Address::Shm(socket) => ServerPath::Shm(shm::ShmHandle::connect(socket, &options)?),
            #[cfg(feature = "verbs")]
            Address::Verbs(at) => ServerPath::Verbs(Box::new(verbs::VerbsHandle::connect(at, &options)?)),
            #[cfg(not(feature = "verbs"))]
            Address::Verbs(_) => return Err(ConnectError::NotBuilt { address: address.clone() }),
        };
        Ok(Client { address: address.clone(), options, path, stats: ClientStats::default() })
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The geometry of the table being read.
    pub fn geometry(&self) -> &Geometry {
        on_path!(&self.path, handle => handle.geometry())
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
        ClientStats { reattached: on_path!(&self.path, handle => handle.reattached()), ..self.stats }
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
        on_path!(&mut self.path, handle => handle.get_into(key, value, &mut self.stats))
    }

    /// Returns whether `key` is present. The cost is that of [`Client::get_into`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, GetError> {
        self.get_into(key, &mut Vec::new())
    }

    /// Returns the values of many keys, in order. READs are pipelined: as many are in flight as the
    /// fabric allows, and all that are ready share one doorbell.
    ///
    /// # Errors
    /// As [`Client::get`], for the first key that fails.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, GetError> {
        let mut values = vec![None; keys.len()];
        self.get_many_with(keys, |number, value| values[number] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// Like [`Client::get_many`], but calls `each` with the index and the value of each key, in no
    /// particular order. Allocates nothing for the values.
    ///
    /// # Errors
    /// As [`Client::get_many`]. By then, `each` may have been called for some of the keys.
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), GetError> {
        on_path!(&mut self.path, handle => handle.get_many(keys, each, &mut self.stats))
    }

    // ---- GETs by the server, for comparison -----------------------------------------------------

    /// Returns the value of `key` as the server looks it up. It is the baseline for
    /// [`Client::get`]: no READ, 1 round trip, and the server's CPU. The request travels as changes
    /// do ([`ClientOptions::requests`]).
    ///
    /// # Errors
    /// [`MutateError`]; the variants about changes do not occur here. Absence is `Ok(None)`.
    pub fn rpc_get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Get { key }, deadline)? {
            Reply::Value(value) => Ok(value),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.unexpected()),
        }
    }

    // ---- changes: by the server -----------------------------------------------------------------

    /// Inserts `key`, or updates its value. 1 round trip to the server.
    ///
    /// # Errors
    /// [`MutateError`] says whether the change may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Upsert, key, value })
    }

    /// Inserts `key` if it is absent. Returns [`PutOutcome::Inserted`] or [`PutOutcome::Exists`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Insert, key, value })
    }

    /// Updates `key` if it is present. Returns [`PutOutcome::Updated`] or [`PutOutcome::Missing`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Update, key, value })
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

    /// Puts many keys. Requests are sent ahead of the replies, so a batch takes fewer round trips
    /// than single puts. Returns one answer per key, in order.
    ///
    /// # Errors
    /// [`MutateError`] when the connection failed: some of the changes may have happened.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        let mut answers = Vec::with_capacity(pairs.len());
        for batch in pairs.chunks(BATCH) {
            let requests = batch.iter().map(|(key, value)| Request::Put {
                mode: PutMode::Upsert,
                key: key.as_ref(),
                value: value.as_ref(),
            });
            let requests: Vec<_> = requests.collect();
            let replies = self.converse(&requests, deadline)?;
            for reply in replies {
                let Reply::Put(answer) = reply else { return Err(self.unexpected()) };
                answers.push(answer);
            }
        }
        Ok(answers)
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

    fn mutate_one(&mut self, request: Request<'_>) -> Result<PutOutcome, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&request, deadline)? {
            Reply::Put(answer) => Ok(answer?),
            _ => Err(self.unexpected()),
        }
    }

    fn ask(&mut self, request: &Request<'_>, deadline: Instant) -> Result<Reply, MutateError> {
        let mut replies = self.converse(std::slice::from_ref(request), deadline)?;
        replies.pop().ok_or_else(|| self.unexpected())
    }

    /// Returns one reply for each request, in order.
    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, MutateError> {
        let replies = on_path!(&mut self.path, handle => handle.converse(requests, deadline))?;
        if replies.len() != requests.len() {
            return Err(self.unexpected());
        }
        Ok(replies)
    }

    /// Drops the connection after a reply that does not belong to the request.
    fn unexpected(&mut self) -> MutateError {
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
        Client {
            address: self.address.clone(),
            options: self.options.clone(),
            path: self.path.clone(),
            stats: ClientStats::default(),
        }
    }
}

/// Sends the requests that a table of this geometry takes, and inserts the rejections of the others
/// among the replies, each in its place. A rejected request is not sent: no frame or slot could
/// hold it. The geometry must be that of the server that `send` reaches now: another server may
/// take what this one does not.
pub(crate) fn send_fitting<E>(
    requests: &[Request<'_>],
    geometry: &Geometry,
    send: impl FnOnce(&[Request<'_>]) -> Result<Vec<Reply>, E>,
) -> Result<Vec<Reply>, E> {
    if fit(requests, geometry) {
        return send(requests);
    }
    let checked: Vec<_> =
        requests.iter().map(|request| check(request, geometry).map(|()| *request)).collect();
    let fitting: Vec<_> = checked.iter().filter_map(|request| request.as_ref().ok().copied()).collect();
    let replies = if fitting.is_empty() { Vec::new() } else { send(&fitting)? };
    let mut replies = replies.into_iter();
    let in_place = checked.into_iter().map_while(|request| match request {
        Ok(_) => replies.next(),
        Err(why) => Some(Reply::Put(Err(why))),
    });
    Ok(in_place.collect())
}

/// Whether a table of this geometry takes all of these requests.
fn fit(requests: &[Request<'_>], geometry: &Geometry) -> bool {
    requests.iter().all(|request| check(request, geometry).is_ok())
}

fn check(request: &Request<'_>, geometry: &Geometry) -> Result<(), PutError> {
    let (key_max, value_max) = (geometry.key_max(), geometry.value_max());
    match request {
        Request::Put { key, .. } | Request::Remove { key } | Request::Get { key }
            if key.is_empty() || key.len() > key_max =>
        {
            Err(PutError::KeyLength { given: key.len(), max: key_max })
        }
        Request::Put { value, .. } if value.len() > value_max => {
            Err(PutError::ValueLength { given: value.len(), max: value_max })
        }
        _ => Ok(()),
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
            requests: RequestPath::Message,
            verbs: VerbsOptions::default(),
        };
        assert_eq!(ClientOptions::default(), expected);
        assert_eq!([RETRY_FIRST, RETRY_MAX, ATTEMPT_MAX], [1, 100, 2000].map(Duration::from_millis));
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
            (put(b"k", &long), Some(value_length)),
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
                let send = |requests: &[Request<'_>]| {
                    sent.extend(requests.iter().map(|request| format!("{request:?}")));
                    // Each has a reply of its own.
                    Ok::<_, LinkError>(
                        (0..requests.len()).map(|n| Reply::Value(Some(vec![n as u8]))).collect(),
                    )
                };
                let replies = send_fitting(&asked, &geometry, send).unwrap();
                let mut fitting = 0;
                let expected = wrong.iter().map(|wrong| {
                    wrong.clone().unwrap_or_else(|| {
                        fitting += 1;
                        Reply::Value(Some(vec![fitting - 1]))
                    })
                });
                assert_eq!(replies, expected.collect::<Vec<_>>());
                let those = asked.iter().zip(&wrong).filter(|(_, wrong)| wrong.is_none());
                assert_eq!(sent, those.map(|(request, _)| format!("{request:?}")).collect::<Vec<_>>());
            }
        }
        let asked: Vec<_> = all.iter().map(|(request, _)| *request).collect();
        let too_few = |_: &[Request<'_>]| Ok::<_, LinkError>(vec![Reply::Value(None)]);
        assert_eq!(send_fitting(&asked, &geometry, too_few).unwrap().len(), 2);
        let failed = send_fitting(&asked, &geometry, |_| Err(LinkError::HungUp));
        assert!(matches!(failed, Err(LinkError::HungUp)));
    }
}
