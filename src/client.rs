//! The client: GETs by reading the server's region, changes by asking the server.
//!
//! # What is promised when the server is not there
//!
//! * **Stopped or busy** (SIGSTOP, debugger, overload): GETs go on as ever. Changes end in
//!   [`MutateError::Deadline`].
//! * **Gone** (exit, crash, kill -9): the operating system hangs the connection up, which a watching
//!   thread of the client's notices at once. From then on GETs still answer from the region as the server
//!   left it, until the client has connected anew or its lease ([`ClientOptions::lease`]) ends; then they
//!   end in [`GetError::ServerGone`]. Meanwhile the watcher tries to connect anew, at first every
//!   millisecond, later every 100 ms.
//! * **Back** at the same address: the watcher connects within 100 ms and every handle reads the new
//!   server's region from its next GET on. If the new server took over the region file, the old mapping
//!   shows its changes even before that. If it made a new region, GETs may answer from the old one for
//!   that long.
//! * **Retired**: a server that gives its region up says so in it; GETs then end in `ServerGone` at once
//!   unless the client has connected anew.

use crate::address::Address;
use crate::clock::Clock;
use crate::fabric::counting::{Counting, ReadCounts};
use crate::fabric::shm::Shm;
use crate::index::{Put, PutError, PutMode, RecoverError, geometry_of};
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::reader::{GetStats, Limits, ReadError, Reader};
use crate::region::{Region, RegionError};
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request, ServerStats, WireError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Bounds on what a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Bounds of a GET that has to look again.
    pub limits: Limits,
    /// Time that connecting, or a change (or a batch of changes), may take.
    pub deadline: Duration,
    /// How long GETs still answer after the server is gone.
    pub lease: Duration,
}

impl Default for ClientOptions {
    /// Changes: 5 s. Lease: 10 s.
    fn default() -> ClientOptions {
        ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
        }
    }
}

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody is there.
    #[error(
        "no server at {address}: {source}; start one with `oneread serve --at {address}`, or name another address"
    )]
    NotThere {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The server turned the client away.
    #[error(
        "the server at {address} (protocol version {theirs}, here {PROTOCOL_VERSION}) turned this client away: another user's server takes only users named with --allow-uid, and a limited number of clients"
    )]
    Refused {
        /// The address.
        address: Address,
        /// The server's protocol version.
        theirs: u32,
    },
    /// The conversation broke off.
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
    /// The region makes no sense.
    #[error("the region of the server at {address}: {source}")]
    Superblock {
        /// The address.
        address: Address,
        /// What is wrong.
        source: RecoverError,
    },
}

/// What can happen to a conversation with the server.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No answer in time.
    #[error("no answer within {0:?}; the server may be stopped or busy")]
    Deadline(Duration),
    /// The connection ended.
    #[error("the server hung up")]
    HungUp,
    /// The bytes make no sense.
    #[error("the peer does not speak oneread's protocol: {0}")]
    Wire(#[from] WireError),
    /// A reply that answers another question.
    #[error("the peer does not speak oneread's protocol: an unexpected reply")]
    Unexpected,
    /// A system call failed.
    #[error(transparent)]
    Os(io::Error),
}

/// Why a GET gave no answer. Absence is not an error.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum GetError {
    /// A key's length is out of range, or no conclusive look within the bounds.
    #[error(transparent)]
    Read(#[from] ReadError<std::convert::Infallible>),
    /// The server is gone and the lease has ended.
    #[error("the server at {address} is gone and {why}; it is tried again in the background")]
    ServerGone {
        /// The address.
        address: Address,
        /// "the lease of ... has ended" or "has given its region up".
        why: String,
    },
}

/// Why a change did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum MutateError {
    /// The server says no. The table is as it was.
    #[error(transparent)]
    Rejected(#[from] PutError),
    /// No answer in time: the change may still happen, or have happened.
    #[error(
        "the server at {address} did not answer within {deadline:?}; it may be stopped or busy, and the change may still happen"
    )]
    Deadline {
        /// The address.
        address: Address,
        /// The bound.
        deadline: Duration,
    },
    /// The connection ended before the answer: the change may have happened.
    #[error("the server at {address} went away before it answered ({reason}); the change may have happened")]
    ServerGone {
        /// The address.
        address: Address,
        /// How it went.
        reason: String,
    },
    /// No connection: the change did not happen.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// What a client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// GETs, hits, and retries by cause.
    pub get: GetStats,
    /// READs, the bytes they asked for, and doorbells (round trips).
    pub read: ReadCounts,
    /// Times this handle went over to a new region.
    pub reattached: u64,
}

/// A handle on a served table: `Send`, one for each thread. Cloning is cheap (handles share the mapping;
/// each opens a connection of its own when it first changes something).
///
/// ```
/// # use oneread::{Address, Client, Config, Server, ServerConfig, Size};
/// # let dir = tempfile::tempdir().unwrap();
/// # let address = Address::Shm(dir.path().join("s"));
/// # let config = Config { size: Size::Keys(100), ..Config::default() };
/// let server = Server::start(ServerConfig::new(address.clone(), config))?;
///
/// let mut client = Client::connect(&address)?;
/// client.put(b"key", b"value")?;                            // the server does this
/// assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..])); // the server knows nothing of this
/// assert_eq!(client.stats().read.reads, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    attached: Arc<Attachment>,
    version: u64,
    link: Option<Link>,
    stats: ClientStats,
}

/// What the handles of one client share.
#[derive(Debug)]
struct Shared {
    address: Address,
    options: ClientOptions,
    clock: Clock,
    /// The newest mapping; handles look only when `version` has changed.
    newest: Mutex<Arc<Attachment>>,
    version: AtomicU64,
    /// When the server was found gone, on `clock`; 0 while it is there.
    gone_ns: AtomicU64,
}

impl Shared {
    /// A server is there, with this region: if it is a new one, every handle goes over to it at its next
    /// GET.
    fn publish(&self, attachment: Attachment) {
        let mut newest = lock(&self.newest);
        if attachment.identity != newest.identity {
            *newest = Arc::new(attachment);
            // Release pairs with the handles' Acquire.
            self.version.fetch_add(1, Ordering::Release);
        }
        self.gone_ns.store(0, Ordering::Relaxed);
    }
}

/// A mapped region and what its superblock says.
#[derive(Debug)]
struct Attachment {
    region: Region,
    geometry: Geometry,
    /// Device and inode of the region's memory, and which server of this region handed it over.
    identity: (u64, u64, u64),
}

impl Client {
    /// Connects to the server at `address`: maps its region for reading and learns everything else from
    /// the superblock.
    ///
    /// # Errors
    /// [`ConnectError`] says who was not there, or what was wrong with it.
    pub fn connect(address: &Address) -> Result<Client, ConnectError> {
        Client::connect_with(address, ClientOptions::default())
    }

    /// Connects with bounds of your own.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &Address, options: ClientOptions) -> Result<Client, ConnectError> {
        let (link, attachment) = attach(address, options.deadline)?;
        let attached = Arc::new(attachment);
        let shared = Arc::new(Shared {
            address: address.clone(),
            options,
            clock: Clock::System,
            newest: Mutex::new(attached.clone()),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("oneread-watch".into())
            .spawn(move || watch(&weak, link))
            .map_err(|e| ConnectError::Link { address: address.clone(), source: LinkError::Os(e) })?;
        Ok(Client { shared, attached, version: 0, link: None, stats: ClientStats::default() })
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// The geometry of the table being read.
    pub fn geometry(&self) -> &Geometry {
        &self.attached.geometry
    }

    /// The region being read.
    pub fn region(&self) -> &Region {
        &self.attached.region
    }

    /// Counts of this handle.
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    // ---- GETs: no server ----------------------------------------------------------------------------

    /// The value of `key`. Usually 1 READ and 1 round trip.
    ///
    /// # Errors
    /// [`GetError`]; absence is `None`.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces what is in `value` with the value of `key`; was it found? Allocates only if `value` is too
    /// small.
    ///
    /// # Errors
    /// As [`Client::get`].
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, GetError> {
        self.read(|reader| reader.get_into(key, value))
    }

    /// Is `key` present? Costs as much as [`Client::get_into`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, GetError> {
        self.read(|reader| reader.get_into(key, &mut Vec::new()))
    }

    /// The values of many keys, in order. READs are pipelined: as many in flight as the fabric allows, a
    /// doorbell for all that are ready.
    ///
    /// # Errors
    /// As [`Client::get`], for the first key that has one.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, GetError> {
        let mut values = vec![None; keys.len()];
        self.get_many_with(keys, |number, value| values[number] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// As [`Client::get_many`], handing each value to `each` with its key's number, in no particular order
    /// and without allocating for it.
    ///
    /// # Errors
    /// As [`Client::get_many`]; `each` may then have been called for some keys.
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), GetError> {
        self.read(|reader| reader.get_many(keys, each))
    }

    #[inline]
    fn read<R>(
        &mut self,
        get: impl FnOnce(&mut Reader<'_, Counting<'_, Shm<'_>>>) -> Result<R, ReadError<std::convert::Infallible>>,
    ) -> Result<R, GetError> {
        self.attach_newest()?;
        let Attachment { region, geometry, .. } = &*self.attached;
        let fabric = Counting::new(Shm::new(region, geometry), geometry);
        let mut reader = Reader::new(fabric, geometry, self.shared.clock.clone(), self.shared.options.limits);
        let result = get(&mut reader);
        self.stats.get += reader.stats();
        self.stats.read += reader.fabric().counts();
        Ok(result?)
    }

    /// Goes over to a newer region if there is one; an error when this one is no longer to be read.
    #[inline]
    fn attach_newest(&mut self) -> Result<(), GetError> {
        // Acquire pairs with the watcher's Release: who sees the version sees the attachment.
        if self.shared.version.load(Ordering::Acquire) != self.version {
            self.reattach();
        }
        let gone_ns = self.shared.gone_ns.load(Ordering::Relaxed);
        let state = State::from_word(self.attached.region.load(STATE_WORD));
        if gone_ns == 0 && state.phase == Phase::Serving {
            return Ok(());
        }
        self.check_lease(gone_ns, state)
    }

    #[cold]
    fn reattach(&mut self) {
        let newest = lock(&self.shared.newest);
        self.version = self.shared.version.load(Ordering::Acquire);
        self.attached = newest.clone();
        self.stats.reattached += 1;
    }

    #[cold]
    fn check_lease(&mut self, gone_ns: u64, state: State) -> Result<(), GetError> {
        let gone = |why| Err(GetError::ServerGone { address: self.shared.address.clone(), why });
        if state.phase == Phase::Retired {
            return gone("has given its region up".into());
        }
        let lease = self.shared.options.lease;
        let since = self.shared.clock.now_ns().saturating_sub(gone_ns);
        if gone_ns != 0 && since >= lease.as_nanos() as u64 {
            return gone(format!("the lease of {lease:?} has ended"));
        }
        Ok(())
    }

    // ---- changes: the server does them --------------------------------------------------------------

    /// Inserts `key` or updates its value.
    ///
    /// # Errors
    /// [`MutateError`] says whether the change may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Upsert, key, value })
    }

    /// Inserts `key` if it is absent: [`Put::Inserted`] or [`Put::Exists`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<Put, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Insert, key, value })
    }

    /// Updates `key` if it is present: [`Put::Updated`] or [`Put::Missing`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<Put, MutateError> {
        self.mutate_one(Request::Put { mode: PutMode::Update, key, value })
    }

    /// Removes `key`; was it there?
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, MutateError> {
        let deadline = Instant::now() + self.shared.options.deadline;
        check_key(key, &self.attached.geometry)?;
        match self.ask(&Request::Remove { key }, deadline)? {
            Reply::Removed(there) => Ok(there?),
            Reply::Put(Err(error)) => Err(error.into()),
            _ => Err(self.lost(LinkError::Unexpected)),
        }
    }

    /// Puts many keys in one conversation: requests are sent ahead of the replies. One answer each, in
    /// order.
    ///
    /// # Errors
    /// [`MutateError`] when the conversation broke off: some of the changes may have happened.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
    ) -> Result<Vec<Result<Put, PutError>>, MutateError> {
        let deadline = Instant::now() + self.shared.options.deadline;
        let mut answers = Vec::with_capacity(pairs.len());
        for batch in pairs.chunks(BATCH) {
            let requests = batch.iter().map(|(key, value)| Request::Put {
                mode: PutMode::Upsert,
                key: key.as_ref(),
                value: value.as_ref(),
            });
            // What does not fit is answered here: the server need not see it, nor could a frame hold it.
            let checked: Vec<_> =
                requests.map(|r| check_request(&r, &self.attached.geometry).map(|()| r)).collect();
            let sound: Vec<_> = checked.iter().filter_map(|r| r.as_ref().ok().copied()).collect();
            let mut replies = self.converse(&sound, deadline)?.into_iter();
            for request in checked {
                answers.push(match request.map(|_| replies.next()) {
                    Err(error) => Err(error),
                    Ok(Some(Reply::Put(answer))) => answer,
                    Ok(_) => return Err(self.lost(LinkError::Unexpected)),
                });
            }
        }
        Ok(answers)
    }

    /// The server's counters.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn server_stats(&mut self) -> Result<ServerStats, MutateError> {
        let deadline = Instant::now() + self.shared.options.deadline;
        match self.ask(&Request::Stat, deadline)? {
            Reply::Stat(stats) => Ok(stats),
            _ => Err(self.lost(LinkError::Unexpected)),
        }
    }

    fn mutate_one(&mut self, request: Request<'_>) -> Result<Put, MutateError> {
        let deadline = Instant::now() + self.shared.options.deadline;
        check_request(&request, &self.attached.geometry)?;
        match self.ask(&request, deadline)? {
            Reply::Put(answer) => Ok(answer?),
            _ => Err(self.lost(LinkError::Unexpected)),
        }
    }

    fn ask(&mut self, request: &Request<'_>, deadline: Instant) -> Result<Reply, MutateError> {
        let mut replies = self.converse(std::slice::from_ref(request), deadline)?;
        replies.pop().ok_or_else(|| self.lost(LinkError::Unexpected))
    }

    /// Sends requests, collects their replies. A conversation that went wrong is not taken up again: the
    /// next one opens a new connection.
    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, MutateError> {
        if self.link.as_ref().is_none_or(Link::is_hung_up) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (link, attachment) = attach(&self.shared.address, left).map_err(|error| match error {
                ConnectError::Link { source: source @ LinkError::Deadline(_), .. } => self.lost(source),
                error => error.into(),
            })?;
            self.link = Some(link);
            if attachment.identity != self.attached.identity {
                // A new server, maybe with a new region: what is put there must be read there.
                self.shared.publish(attachment);
                self.reattach();
            }
        }
        let link = self.link.as_mut().expect("made above");
        link.converse(requests, deadline).map_err(|error| self.lost(error))
    }

    fn lost(&mut self, error: LinkError) -> MutateError {
        self.link = None;
        let address = self.shared.address.clone();
        match error {
            LinkError::Deadline(_) => {
                MutateError::Deadline { address, deadline: self.shared.options.deadline }
            }
            error => MutateError::ServerGone { address, reason: error.to_string() },
        }
    }
}

/// Requests sent ahead of their replies: their replies fit into a socket's buffer, so neither side waits
/// for the other to read.
const BATCH: usize = 512;

impl Clone for Client {
    /// A handle for another thread: shares the mapping, begins with no connection and zero counts.
    fn clone(&self) -> Client {
        Client {
            shared: self.shared.clone(),
            attached: self.attached.clone(),
            version: self.version,
            link: None,
            stats: ClientStats::default(),
        }
    }
}

fn check_key(key: &[u8], geometry: &Geometry) -> Result<(), PutError> {
    let max = geometry.key_max();
    if key.is_empty() || key.len() > max {
        return Err(PutError::KeyLength { given: key.len(), max });
    }
    Ok(())
}

fn check_request(request: &Request<'_>, geometry: &Geometry) -> Result<(), PutError> {
    if let Request::Put { key, value, .. } = request {
        check_key(key, geometry)?;
        if value.len() > geometry.value_max() {
            return Err(PutError::ValueLength { given: value.len(), max: geometry.value_max() });
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- connecting -------------------------------------------------------------------------------------

/// Connects, says hello, maps the region.
fn attach(address: &Address, within: Duration) -> Result<(Link, Attachment), ConnectError> {
    let failed = |source| ConnectError::Link { address: address.clone(), source };
    let deadline = Instant::now() + within;
    let stream = open_socket(address, within, deadline)?;
    let mut link = Link { stream, input: Vec::new(), next_id: 0, allowed: within };
    let fd = match link.hello(deadline) {
        Ok(Ok(fd)) => fd,
        Ok(Err(theirs)) => return Err(ConnectError::Refused { address: address.clone(), theirs }),
        Err(error) => return Err(failed(error)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| failed(LinkError::Os(e.into())))?;
    let region = Region::map_shared(fd)?;
    let (geometry, _) = geometry_of(&region)
        .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
    let incarnation = State::from_word(region.load(STATE_WORD)).incarnation;
    let identity = (stat.st_dev, stat.st_ino, incarnation);
    Ok((link, Attachment { region, geometry, identity }))
}

/// Opens a socket to the server without ever waiting past the deadline: a stopped server's backlog may be
/// full. The socket does not block.
fn open_socket(address: &Address, within: Duration, deadline: Instant) -> Result<UnixStream, ConnectError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let os = |e: rustix::io::Errno| ConnectError::NotThere { address: address.clone(), source: e.into() };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(os)?;
    let name = SocketAddrUnix::new(address.socket()).map_err(os)?;
    loop {
        match rustix::net::connect(&socket, &name) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(rustix::io::Errno::AGAIN) => {
                let source = LinkError::Deadline(within);
                return Err(ConnectError::Link { address: address.clone(), source });
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(os(e)),
        }
    }
    Ok(UnixStream::from(socket))
}

/// Waits for the server to hang up, then connects anew, until the last handle is dropped.
fn watch(shared: &Weak<Shared>, mut link: Link) {
    /// How often it looks whether any handle is left.
    const LOOK: Duration = Duration::from_millis(500);
    const RETRY_MAX: Duration = Duration::from_millis(100);
    loop {
        while !link.wait_for_hang_up(LOOK) {
            if shared.strong_count() == 0 {
                return;
            }
        }
        let Some(gone) = shared.upgrade() else { return };
        gone.gone_ns.store(gone.clock.now_ns().max(1), Ordering::Relaxed);
        tracing::warn!(address = %gone.address, "the server is gone; connecting anew in the background");
        let (address, deadline) = (gone.address.clone(), gone.options.deadline);
        drop(gone);
        let mut pause = Duration::from_millis(1);
        let (new_link, attachment) = loop {
            match attach(&address, deadline) {
                Ok(attached) => break attached,
                Err(error) => tracing::debug!(%error, "not yet"),
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(RETRY_MAX);
            if shared.strong_count() == 0 {
                return;
            }
        };
        let Some(back) = shared.upgrade() else { return };
        back.publish(attachment);
        tracing::info!(%address, "connected anew");
        link = new_link;
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A connection to the server.
#[derive(Debug)]
struct Link {
    stream: UnixStream,
    input: Vec<u8>,
    next_id: u64,
    /// The time that was allowed in all, for error messages.
    allowed: Duration,
}

impl Link {
    /// Says hello; the region's descriptor, or the version of a server that refuses.
    fn hello(&mut self, deadline: Instant) -> Result<Result<OwnedFd, u32>, LinkError> {
        let mut out = Vec::new();
        Request::Hello { version: PROTOCOL_VERSION }.encode(0, &mut out);
        // A server that refuses hangs up at once; its refusal is then still to be read.
        let sent = self.send(&out, deadline);
        let mut fd = None;
        loop {
            if let Some(frame) = wire::decode(&self.input)? {
                let reply = Reply::decode(&frame)?;
                self.input.drain(..frame.length);
                return match (reply, fd) {
                    (Reply::Welcome { .. }, Some(fd)) => Ok(Ok(fd)),
                    (Reply::Refused { version }, _) => Ok(Err(version)),
                    _ => Err(LinkError::Unexpected),
                };
            }
            self.wait(PollFlags::IN, deadline)?;
            let mut chunk = [0u8; 256];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(&mut chunk)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
            .map_err(|e| LinkError::Os(e.into()));
            let received = match received {
                Err(LinkError::Os(e)) if is_transient(&e) => continue,
                received => received?,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                    fd = fds.next().or(fd);
                }
            }
            if received.bytes == 0 {
                sent?;
                return Err(LinkError::HungUp);
            }
            self.input.extend_from_slice(&chunk[..received.bytes]);
        }
    }

    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, LinkError> {
        let first_id = self.next_id;
        self.next_id += requests.len() as u64;
        let mut out = Vec::new();
        requests.iter().zip(first_id..).for_each(|(request, id)| request.encode(id, &mut out));
        self.send(&out, deadline)?;
        let mut replies = Vec::with_capacity(requests.len());
        while replies.len() < requests.len() {
            let mut taken = 0;
            while replies.len() < requests.len() {
                let Some(frame) = wire::decode(&self.input[taken..])? else { break };
                if frame.id != first_id + replies.len() as u64 {
                    return Err(LinkError::Unexpected);
                }
                replies.push(Reply::decode(&frame)?);
                taken += frame.length;
            }
            self.input.drain(..taken);
            if replies.len() < requests.len() {
                self.receive(deadline)?;
            }
        }
        Ok(replies)
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.wait(PollFlags::IN, deadline)?;
        let mut chunk = [0u8; 1 << 14];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(LinkError::HungUp),
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if is_transient(&e) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(LinkError::HungUp),
            Err(e) => Err(LinkError::Os(e)),
        }
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_transient(&e) => self.wait(PollFlags::OUT, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Err(LinkError::HungUp),
                Err(e) => return Err(LinkError::Os(e)),
            }
        }
        Ok(())
    }

    /// Waits until the stream is ready, or the deadline has come.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), LinkError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.stream, what)], Some(&timeout)) {
                Ok(0) => return Err(LinkError::Deadline(self.allowed)),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(LinkError::Os(e.into())),
            }
        }
    }

    fn is_hung_up(&self) -> bool {
        self.wait_for_hang_up(Duration::ZERO)
    }

    /// Has the server hung up, or does it within this time?
    fn wait_for_hang_up(&self, within: Duration) -> bool {
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        let mut watched = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        matches!(rustix::event::poll(&mut watched, Some(&timeout)), Ok(n) if n > 0)
    }
}
