//! The client's path to a server on this host: the mapped region, and a Unix socket for requests.

use super::error::{ConnectError, GetError, LinkError, MutateError};
use super::handle::{Deadline, Handle};
use super::mailbox::{BellSocket, ClientMailbox};
use super::options::{ClientOptions, RequestPath};
use super::send::{fit, send_fitting};
use super::stats::{ClientStats, RequestCounts};
use super::watch::{Watch, WatchedLink};
use crate::address::Address;
use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::hints::{Hints, SharedHints};
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::Superblock;
use crate::mailbox::memory::{self, Mailbox};
use crate::outcome::ReadError;
use crate::peer::SocketPeer;
use crate::place::{self, PlaceError};
use crate::process::{self, Process};
use crate::reader::{DirectAnswers, KnownEntries, Reader, StoredAnswer};
use crate::region::{Region, RegionError};

use crate::sync::lock_std;
use crate::wire::{self, PROTOCOL_VERSION, Refusal, Reply, Request, SOCKET_PIECE_MAX};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use std::io::{self, IoSliceMut, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most requests of a batch that go through a mailbox ([`RequestPath::Auto`]). Longer batches cost
/// less as one message: `docs/BENCHMARKS.md`.
const MAILBOX_BATCH: usize = 32;
/// Time after which a handle asks again for a mailbox that the server had no room for.
const MAILBOX_AGAIN: Duration = Duration::from_secs(1);
/// No news that there are: the handle looks again at its next GET.
const UNHEARD: u64 = u64::MAX;
/// The number of requests whose reply comes with memory, and of their replies.
const MEMORY_ID: u64 = 0;

/// One thread's path to the server.
#[derive(Debug)]
pub(super) struct ShmHandle {
    shared: Arc<ShmShared>,
    attached: Arc<Attachment>,
    /// Hints of the table attached to, if the client wants any.
    hints: Option<Arc<Hints>>,
    /// Directory entries of that table, if it grows.
    entries: KnownEntries,
    conversation: Option<ShmConnection>,
    reattached: u64,
    /// The word of this process, which goes up with news of any server, and what it was when the server was last
    /// seen to be there, with this region.
    news: &'static AtomicU64,
    heard: u64,
    /// Ends with the last handle. `None` in tests without a server.
    watch: Option<Arc<Watch>>,
}

/// What the handles of one client share.
#[derive(Debug)]
pub(super) struct ShmShared {
    process: Process,
    /// The server's address, for messages.
    address: Address,
    /// The server's socket.
    socket: PathBuf,
    options: ClientOptions,
    hints: SharedHints,
    clock: Clock,
    /// The newest mapping.
    newest: Mutex<Arc<Attachment>>,
    /// The version of `newest`, stored under its lock. A hint: a handle with another version takes
    /// the lock.
    version: AtomicU64,
    /// When the server was found gone, by `clock`. 0 while it is there.
    gone_ns: AtomicU64,
    /// The watched connection, until a handle takes it for its requests. So a client with one
    /// handle has one connection.
    spare: Mutex<Option<ShmConnection>>,
}

impl ShmShared {
    /// Looks for a server, by `find`. With what was newest before that: only so can [`ShmShared::publish`]
    /// tell that another server was found meanwhile.
    fn finding<R>(&self, find: impl FnOnce() -> R) -> (SeenVersion, R) {
        let seen = SeenVersion(self.newest().version);
        (seen, find())
    }

    /// Records that a server is there, with this region. If the region is new, every handle
    /// switches to it at its next GET. `seen` is the version before that server was looked for.
    /// Returns `false` if another region was published since: which server came later is then
    /// unknown, and the caller must look again.
    fn publish(&self, seen: SeenVersion, attachment: Attachment, who: Publisher) -> bool {
        let mut newest = lock_std(&self.newest);
        if attachment.identity != newest.identity {
            if newest.version != seen.0 {
                return false;
            }
            let version = seen.0 + 1;
            *newest = Arc::new(Attachment { version, ..attachment });
            // Relaxed: a handle that sees it takes the lock, which orders what was stored under it.
            self.version.store(version, Ordering::Relaxed);
        }
        match who {
            Publisher::Watcher => self.gone_ns.store(0, Ordering::Relaxed),
            // The server was there just now. The watcher will tell whether it still is.
            Publisher::Handle if self.gone_ns.load(Ordering::Relaxed) != 0 => self.is_gone(),
            Publisher::Handle => {}
        }
        process::tell_news();
        true
    }

    /// From now on the lease runs.
    fn is_gone(&self) {
        self.gone_ns.store(self.clock.now_ns().max(1), Ordering::Relaxed);
        process::tell_news();
    }

    fn newest(&self) -> Arc<Attachment> {
        lock_std(&self.newest).clone()
    }

    /// The watched connection, if no handle uses it, with this deadline.
    fn take_spare(&self, deadline: Instant) -> Option<ShmConnection> {
        let spare = lock_std(&self.spare).take().filter(|spare| !is_hung_up(&spare.link.stream))?;
        let link = SocketLink { allowed: self.options.deadline, ..spare.link };
        Some(ShmConnection { link, asked_until: deadline, ..spare })
    }

    /// Keeps a connection for the next handle that has something to ask, if it is the watched one.
    fn keep_spare(&self, connection: ShmConnection) {
        let mut spare = lock_std(&self.spare);
        // The watch has the other reference.
        if spare.is_none() && Arc::strong_count(&connection.link.stream) > 1 {
            *spare = Some(connection);
        }
    }

    // ---- for the watching thread, which must not wait ---------------------------------------------

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Leaves this connection to no handle.
    pub(super) fn drop_spare(&self, link: &Arc<UnixStream>) {
        let spare = lock_std(&self.spare).take_if(|spare| Arc::ptr_eq(&spare.link.stream, link));
        drop(spare);
    }

    /// Records that the server has closed the watched connection.
    pub(super) fn has_lost(&self, link: &Arc<UnixStream>) {
        self.drop_spare(link);
        self.is_gone();
        // A handle may be waiting for an answer over it, and a child of the server's may keep it open.
        let _ = link.shutdown(std::net::Shutdown::Both);
        tracing::warn!(address = %self.address, "the server is gone; reconnecting in the background");
    }

    /// Records that a server is there, whose region is already known.
    pub(super) fn is_back(&self) {
        // Under the lock, because `publish` looks and stores.
        let _newest = lock_std(&self.newest);
        self.gone_ns.store(0, Ordering::Relaxed);
    }

    /// Records that an attempt to connect failed.
    pub(super) fn has_not_found(&self, error: &ConnectError) {
        tracing::debug!(error = error as &dyn std::error::Error, "not yet");
        // A client that gave up its connection to make room (`Watch::gives_way`) finds out here
        // whether the server is gone. One that refuses or is silent is there.
        let is_there = matches!(
            error,
            ConnectError::TurnedAway { .. } | ConnectError::Link { source: LinkError::Deadline(_), .. }
        );
        if !is_there && self.is_served() {
            self.is_gone();
        }
    }

    pub(super) fn is_served(&self) -> bool {
        self.gone_ns.load(Ordering::Relaxed) == 0
    }

    /// Connects and says hello.
    pub(super) fn greet(&self) -> Result<Greeting, ConnectError> {
        let (allowed, now) = (Duration::ZERO, Instant::now());
        let (seen, stream) = self
            .finding(|| open_socket(&self.address, &self.socket, &self.options.server_uids, allowed, now));
        let stream = stream?;
        let server = process_of(&stream);
        let mut link = SocketLink { stream: Arc::new(stream), input: Vec::new(), allowed };
        // An empty socket takes it. If the server has hung up, reading will tell.
        let _ = link.send(&hello(), now);
        Ok(Greeting { link, server, fd: None, seen })
    }

    /// Reads what has come of the answer to a hello. If it is all there, maps the region.
    pub(super) fn receive_welcome(&self, mut greeting: Greeting) -> Result<Greeted, ConnectError> {
        let Greeting { link, fd, seen, .. } = &mut greeting;
        let reply = link.receive_memory(fd).and_then(|()| link.memory_reply());
        let Some(reply) = reply.map_err(|e| link_failed(&self.address, e))? else {
            return Ok(Greeted::NotYet(greeting));
        };
        let attachment = Attachment::new(&self.address, &self.options.server_uids, reply, fd.take())?;
        let geometry = attachment.geometry.clone();
        if !self.publish(*seen, attachment, Publisher::Watcher) {
            return Ok(Greeted::Late);
        }
        let linked = WatchedLink { stream: greeting.link.stream.clone(), server: greeting.server };
        *lock_std(&self.spare) = Some(ShmConnection::new(greeting.link, geometry, Instant::now()));
        tracing::info!(address = %self.address, "reconnected");
        Ok(Greeted::Linked(linked))
    }
}

/// A connection that waits for the answer to its hello.
#[derive(Debug)]
pub(super) struct Greeting {
    link: SocketLink,
    server: Option<OwnedFd>,
    /// The region's descriptor, if it has come.
    fd: Option<OwnedFd>,
    seen: SeenVersion,
}

/// The version of the newest mapping before a server was looked for ([`ShmShared::finding`]).
#[derive(Clone, Copy, Debug)]
struct SeenVersion(u64);

impl Greeting {
    pub fn socket(&self) -> &UnixStream {
        &self.link.stream
    }
}

/// What came of a [`Greeting`].
#[derive(Debug)]
pub(super) enum Greeted {
    /// There is a server, and its region is known.
    Linked(WatchedLink),
    /// The answer is not yet whole.
    NotYet(Greeting),
    /// Another server was found meanwhile ([`ShmShared::publish`]).
    Late,
}

/// Who found the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publisher {
    /// The watcher, which also notices when the server is gone.
    Watcher,
    /// A handle that made a change.
    Handle,
}

/// A mapped region and the contents of its superblock.
#[derive(Debug)]
struct Attachment {
    region: Region,
    geometry: Arc<Geometry>,
    /// Device and inode of the region's memory, and the incarnation of the server that shared it.
    identity: (u64, u64, u64),
    /// The number of regions that the client had before. 0 until it is published.
    version: u64,
    /// Whether the client opened the region's file itself. Such a region has no lease.
    is_file: bool,
}

impl Attachment {
    /// Maps the region that came with the answer to a hello.
    fn new(
        address: &Address,
        trusted: &[u32],
        reply: Reply,
        fd: Option<OwnedFd>,
    ) -> Result<Attachment, ConnectError> {
        let failed = |source| link_failed(address, source);
        let fd = match (reply, fd) {
            (Reply::Welcome { .. }, Some(fd)) => fd,
            (Reply::Refused { version: theirs }, _) => {
                return Err(ConnectError::Refused { address: address.clone(), theirs });
            }
            (Reply::TurnedAway(source), _) => {
                return Err(ConnectError::TurnedAway { address: address.clone(), source });
            }
            _ => return Err(failed(LinkError::Unexpected)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(LinkError::Os(e.into())))?;
        let region = Region::map_handed(fd, trusted)?;
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))
            .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
        let incarnation = State::from_word(region.load(STATE_WORD)).incarnation;
        let identity = (stat.st_dev, stat.st_ino, incarnation);
        Ok(Attachment { region, geometry: Arc::new(geometry), identity, version: 0, is_file: false })
    }
}

impl ShmHandle {
    pub fn connect(socket: &Path, options: &ClientOptions) -> Result<ShmHandle, ConnectError> {
        let address = Address::Shm(socket.into());
        let mut options = options.clone();
        options.server_uids.extend(place::appointed(socket));
        let (link, attachment) = match attach(&address, socket, &options.server_uids, options.deadline) {
            Ok((link, server, attachment)) => (Some((link, server)), attachment),
            Err(error) => (None, open_file(&address, &options, error)?),
        };
        let (link, server) = link.unzip();
        let (attached, clock) = (Arc::new(attachment), Clock::System);
        let gone_ns = if link.is_some() { 0 } else { clock.now_ns().max(1) };
        let watched = link
            .as_ref()
            .zip(server)
            .map(|(link, server)| WatchedLink { stream: link.stream.clone(), server });
        let spare = link.map(|link| ShmConnection::new(link, attached.geometry.clone(), Instant::now()));
        let shared = Arc::new(ShmShared {
            process: Process::this(),
            address: address.clone(),
            socket: socket.into(),
            options: options.clone(),
            hints: SharedHints::new(options.hint_bytes.unwrap_or(0)),
            clock,
            newest: Mutex::new(attached.clone()),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(gone_ns),
            spare: Mutex::new(spare),
        });
        let is_linked = watched.is_some();
        let watch = Watch::new(&shared, watched).map_err(|e| link_failed(&address, LinkError::Os(e)))?;
        let (watch, mut hints, entries) = (Some(Arc::new(watch)), None, KnownEntries::default());
        shared.hints.refresh(&attached.geometry, &mut hints);
        let (news, heard, conversation) = (process::word(), UNHEARD, None);
        let mut handle =
            ShmHandle { shared, attached, hints, entries, conversation, reattached: 0, news, heard, watch };
        if options.requests == RequestPath::Mailbox && is_linked {
            // Fails here if the server has no mailboxes.
            handle.prepare(&[], Instant::now() + options.deadline)?;
        }
        Ok(handle)
    }

    pub fn region(&self) -> &Region {
        &self.attached.region
    }

    /// Whether a server was there when the watcher last looked.
    pub fn is_served(&self) -> bool {
        self.shared.is_served()
    }

    // ---- GETs -----------------------------------------------------------------------------------

    /// Runs GETs, and adds their counts to `stats`.
    #[inline]
    pub(super) fn read<R>(
        &mut self,
        stats: &mut ClientStats,
        get: impl FnOnce(&mut Reader<'_, Shm<'_>>) -> Result<R, ReadError>,
    ) -> Result<R, GetError> {
        self.attach_newest()?;
        let Attachment { region, geometry, .. } = &*self.attached;
        let fabric = Shm::new(region, geometry);
        let mut reader = Reader::new(fabric, geometry, self.shared.clock.clone(), self.shared.options.limits);
        if let Some(hints) = &self.hints {
            reader.set_hints(hints);
        }
        if geometry.grows() {
            self.entries.keep(geometry);
            reader.swap_entries(&mut self.entries);
        }
        let result = get(&mut reader);
        stats.get += reader.stats();
        stats.read += reader.read_counts();
        if self.hints.is_some() {
            stats.hints += reader.hint_counts();
        }
        if geometry.grows() {
            reader.swap_entries(&mut self.entries);
        }
        Ok(result?)
    }

    /// A GET. Nearly always a direct look suffices, and no reader is needed.
    #[inline]
    pub(super) fn get_into(
        &mut self,
        stats: &mut ClientStats,
        direct: &mut DirectAnswers,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, GetError> {
        self.attach_newest()?;
        let Attachment { region, geometry, .. } = &*self.attached;
        if self.hints.is_none()
            && let Some(found) = Shm::glance_from(region, geometry, key, value)
        {
            direct.count(found, geometry);
            return Ok(found);
        }
        self.read(stats, |reader| reader.get_otherwise(key, value))
    }

    /// Switches to a newer region if there is one. Fails when the region may no longer be read, or not by this
    /// process.
    #[inline]
    fn attach_newest(&mut self) -> Result<(), GetError> {
        // Relaxed: only a hint to look again. In a child made by `fork` it is another word.
        let is_heard = self.news.load(Ordering::Relaxed) == self.heard;
        if is_heard && State::is_serving(self.attached.region.load(STATE_WORD)) {
            return Ok(());
        }
        self.look_again()
    }

    #[cold]
    fn look_again(&mut self) -> Result<(), GetError> {
        if !self.shared.process.is_this() {
            return Err(ConnectError::Forked { address: self.shared.address.clone() }.into());
        }
        // Acquire: pairs with `tell_news`. What was stored before these news is seen below.
        let news = self.news.load(Ordering::Acquire);
        if self.shared.version.load(Ordering::Relaxed) != self.attached.version {
            self.reattach();
        }
        let gone_ns = self.shared.gone_ns.load(Ordering::Relaxed);
        let state = self.attached.region.load(STATE_WORD);
        if gone_ns == 0 && State::is_serving(state) {
            self.heard = news;
            return Ok(());
        }
        self.heard = UNHEARD;
        self.check_lease(gone_ns, State::from_word(state))
    }

    fn reattach(&mut self) {
        self.attached = self.shared.newest();
        self.shared.hints.refresh(&self.attached.geometry, &mut self.hints);
        // Nobody says that it is the same table in the same state.
        self.entries = KnownEntries::default();
        self.reattached += 1;
    }

    #[cold]
    fn check_lease(&mut self, gone_ns: u64, state: State) -> Result<(), GetError> {
        let gone = |source| Err(GetError::ServerGone { address: self.shared.address.clone(), source });
        if state.phase == Phase::Retired {
            return gone(LinkError::Retired);
        }
        if self.attached.is_file {
            return Ok(());
        }
        let lease = self.shared.options.lease;
        let since = Duration::from_nanos(self.shared.clock.now_ns().saturating_sub(gone_ns));
        if gone_ns != 0 && since >= lease {
            return gone(LinkError::LeaseEnded(lease));
        }
        Ok(())
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Whether these requests go through a mailbox, if there is one, to a table of this geometry.
    fn wants_mailbox(&self, requests: &[Request<'_>], geometry: &Geometry) -> bool {
        let is_wanted = match self.shared.options.requests {
            RequestPath::Auto => requests.len() <= MAILBOX_BATCH,
            path => path == RequestPath::Mailbox,
        };
        is_wanted && requests.iter().all(|request| wire::fits_cells(request, geometry))
    }

    /// Whether there is a connection that the server has not closed. A client with a mailbox makes
    /// no system call for that right after its last conversation: it finds out while it waits for
    /// the reply. A request that its table does not take is not sent, so for such a request the
    /// socket is always checked, as before a message.
    fn is_linked(&mut self, requests: &[Request<'_>], deadline: Instant) -> bool {
        /// Between the starts of two conversations, measured between their deadlines.
        const RECENT: Duration = Duration::from_millis(1);
        let Some(conversation) = &self.conversation else { return false };
        let wants_mailbox = self.wants_mailbox(requests, &conversation.geometry);
        let Some(ShmConnection { link, geometry, mailbox, asked_until, .. }) = &mut self.conversation else {
            return false;
        };
        let last = std::mem::replace(asked_until, deadline);
        let is_recent = deadline.saturating_duration_since(last) < RECENT;
        let has_mailbox = matches!(mailbox, MailboxState::There(_));
        wants_mailbox && has_mailbox && is_recent && fit(requests, geometry, Some(SOCKET_PIECE_MAX))
            || !is_hung_up(&link.stream)
    }

    /// Takes the client's connection for changes, or opens another one.
    fn open_conversation(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        let mut makes_way = false;
        loop {
            if self.takes_spare(deadline) {
                return Ok(());
            }
            match self.connect_again(deadline) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_full(&error) && Instant::now() < deadline => {
                    let watch = self.watch.as_ref();
                    makes_way |= watch.is_some_and(|watch| watch.gives_way());
                    if !makes_way && lock_std(&self.shared.spare).is_none() {
                        return Err(error);
                    }
                    // Until the server notices that there is room, or the thread has connected.
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens a connection for changes. Returns `false` if another handle, or the watching thread,
    /// has found another server meanwhile.
    fn connect_again(&mut self, deadline: Instant) -> Result<bool, ConnectError> {
        let within = deadline.saturating_duration_since(Instant::now());
        let shared = &self.shared;
        let (seen, found) =
            shared.finding(|| attach(&shared.address, &shared.socket, &shared.options.server_uids, within));
        let (link, server, attachment) = found?;
        let geometry = attachment.geometry.clone();
        if attachment.identity != self.attached.identity {
            // A new server, maybe with a new region. GETs must read where changes go.
            if !shared.publish(seen, attachment, Publisher::Handle) {
                return Ok(false);
            }
            self.reattach();
        }
        let offered = WatchedLink { stream: link.stream.clone(), server };
        let is_watched = self.watch.as_ref().is_some_and(|watch| watch.offer(&self.shared, offered));
        // If the thread has connected meanwhile, that connection is enough.
        if is_watched || !self.takes_spare(deadline) {
            self.conversation = Some(ShmConnection::new(link, geometry, deadline));
        }
        Ok(true)
    }

    /// Takes the client's connection, if no handle uses it.
    fn takes_spare(&mut self, deadline: Instant) -> bool {
        let Some(spare) = self.shared.take_spare(deadline) else { return false };
        // GETs must read where changes go. Relaxed: the region was published before the connection
        // was there to be taken, under its lock.
        if self.shared.version.load(Ordering::Relaxed) != self.attached.version {
            self.reattach();
        }
        self.conversation = Some(spare);
        true
    }

    /// Opens a connection if there is none, and asks for a mailbox if these requests want one and
    /// the server may have one. Returns the connection, and whether they want one.
    fn prepare(
        &mut self,
        requests: &[Request<'_>],
        deadline: Instant,
    ) -> Result<(&mut ShmConnection, bool), ConnectError> {
        if !self.is_linked(requests, deadline) {
            self.conversation = None;
            self.open_conversation(deadline)?;
        }
        let geometry = &self.conversation.as_ref().expect("opened above").geometry;
        let wants_mailbox = self.wants_mailbox(requests, geometry);
        let conversation = self.conversation.as_mut().expect("opened above");
        if wants_mailbox && conversation.mailbox.is_to_be_asked_for() {
            let ShmConnection { link, geometry, mailbox, .. } = conversation;
            *mailbox = match link.take_mailbox(&self.shared.address, geometry, deadline) {
                Ok(mailbox) => MailboxState::There(mailbox),
                Err(error @ ConnectError::Link { .. }) => return Err(error),
                Err(error) if self.shared.options.requests == RequestPath::Mailbox => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "requests go by message");
                    MailboxState::Refused { at: Instant::now() }
                }
            };
        }
        Ok((conversation, wants_mailbox))
    }

    fn lost(&mut self, error: LinkError) -> MutateError {
        self.disconnect();
        let address = self.shared.address.clone();
        match error {
            LinkError::Deadline(_) => {
                MutateError::Deadline { address, deadline: self.shared.options.deadline }
            }
            source => MutateError::ServerGone { address, source },
        }
    }
}

impl Handle for ShmHandle {
    fn process(&self) -> Process {
        self.shared.process
    }

    fn geometry(&self) -> &Geometry {
        &self.attached.geometry
    }

    fn reattached(&self) -> u64 {
        self.reattached
    }

    fn hint_bytes(&self) -> u64 {
        self.hints.as_ref().map_or(0, |hints| hints.bytes())
    }

    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError> {
        self.read(stats, |reader| reader.get_each(keys, each))
    }

    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), MutateError> {
        loop {
            let (conversation, wants_mailbox) = match self.prepare(requests, deadline.at) {
                Ok(prepared) => prepared,
                Err(ConnectError::Link { source: source @ LinkError::Deadline(_), .. }) => {
                    return Err(self.lost(source));
                }
                // The server has no mailbox for it. The connection is as good as before.
                Err(error @ ConnectError::RequestPath { .. }) => return Err(error.into()),
                Err(error) => {
                    self.disconnect();
                    return Err(error.into());
                }
            };
            let (counts, mut has_sent) = (&mut stats.requests, false);
            match conversation.converse(requests, wants_mailbox, deadline, replies, &mut has_sent, counts) {
                // It was another server that would not have taken them.
                Err(LinkError::HungUp) if !has_sent && Instant::now() < deadline.at => self.disconnect(),
                result => return result.map_err(|error| self.lost(error)),
            }
        }
    }

    fn disconnect(&mut self) {
        self.conversation = None;
    }
}

impl Clone for ShmHandle {
    /// Shares the mapping. The clone has no connection yet.
    fn clone(&self) -> ShmHandle {
        ShmHandle {
            shared: self.shared.clone(),
            attached: self.attached.clone(),
            hints: self.hints.clone(),
            entries: self.entries.clone(),
            conversation: None,
            reattached: 0,
            news: self.news,
            heard: self.heard,
            watch: self.watch.clone(),
        }
    }
}

impl Drop for ShmHandle {
    /// Leaves its connection to the next handle, if it is the client's.
    fn drop(&mut self) {
        // In a child made by `fork`, another thread of the parent may have held the lock.
        if self.shared.process.is_this()
            && let Some(connection) = self.conversation.take()
        {
            self.shared.keep_spare(connection);
        }
    }
}

// ---- connecting ---------------------------------------------------------------------------------

/// Connects, says hello, and maps the region. Returns the server's process, too, if it can be watched.
fn attach(
    address: &Address,
    socket: &Path,
    trusted: &[u32],
    within: Duration,
) -> Result<(SocketLink, Option<OwnedFd>, Attachment), ConnectError> {
    let deadline = Instant::now() + within;
    let stream = Arc::new(open_socket(address, socket, trusted, within, deadline)?);
    let server = process_of(&stream);
    let mut link = SocketLink { stream, input: Vec::new(), allowed: within };
    let (reply, fd) = link.ask_for_memory(&hello(), deadline).map_err(|e| link_failed(address, e))?;
    let attachment = Attachment::new(address, trusted, reply, fd)?;
    Ok((link, server, attachment))
}

/// The process that listens at the other end: readable when it has ended. `None` where that cannot be
/// watched: in another namespace of processes, before Linux 5.3, or without a descriptor.
///
/// To be called before the hello. The process that answers it had this number when it began to listen, and
/// has not ended since. So nobody else had the number in between.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = SocketPeer::of(stream).ok()?.pid?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// The first request of every connection.
fn hello() -> Vec<u8> {
    let mut out = Vec::new();
    Request::Hello { version: PROTOCOL_VERSION }.encode(MEMORY_ID, &mut out);
    out
}

/// Whether the server has no room for another connection.
fn is_full(error: &ConnectError) -> bool {
    use Refusal::{Descriptors, PeerFull, ServerFull};
    matches!(
        error,
        ConnectError::TurnedAway { source: ServerFull { .. } | PeerFull { .. } | Descriptors, .. }
    )
}

/// Maps the region file that the options name, for a client that found no server, or one that is silent.
fn open_file(
    address: &Address,
    options: &ClientOptions,
    no_server: ConnectError,
) -> Result<Attachment, ConnectError> {
    let is_stopping = |source: &Refusal| matches!(source, Refusal::Stopping);
    let is_gone = match &no_server {
        ConnectError::NotThere { .. } => true,
        ConnectError::Link { source: LinkError::HungUp | LinkError::Deadline(_), .. } => true,
        ConnectError::TurnedAway { source, .. } => is_stopping(source),
        _ => false,
    };
    let Some(path) = options.region.as_ref().filter(|_| is_gone) else { return Err(no_server) };
    let region = match Region::open_to_read(path) {
        Ok(region) => region,
        // Then that no server is there is what matters.
        Err(RegionError::Place(PlaceError::Os { source, .. }))
            if source.kind() == io::ErrorKind::NotFound =>
        {
            return Err(no_server);
        }
        Err(RegionError::Unfinished { path }) => {
            return Err(ConnectError::NoTable { address: address.clone(), path });
        }
        Err(error) => return Err(error.into()),
    };
    let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))
        .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
    if matches!(State::from_word(region.load(STATE_WORD)).phase, Phase::Starting | Phase::Retired) {
        return Err(ConnectError::NoTable { address: address.clone(), path: path.clone() });
    }
    tracing::warn!(%address, path = %path.display(), "no server answers; reading its region file");
    // No server's: every server has an incarnation of at least 1.
    let (geometry, identity) = (Arc::new(geometry), (0, 0, 0));
    Ok(Attachment { region, geometry, identity, version: 0, is_file: true })
}

/// Opens a non-blocking socket to the server. Never waits past the deadline, although the backlog
/// of a suspended server may be full.
fn open_socket(
    address: &Address,
    path: &Path,
    trusted: &[u32],
    within: Duration,
    deadline: Instant,
) -> Result<UnixStream, ConnectError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let os = |e: rustix::io::Errno| match (address.clone(), io::Error::from(e)) {
        (address, source) if is_out_of_descriptors(&source) => ConnectError::Descriptors { address, source },
        (address, source) if source.kind() == io::ErrorKind::PermissionDenied => {
            ConnectError::NoAccess { address, source }
        }
        (address, source) => ConnectError::NotThere { address, source },
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(os)?;
    let name = SocketAddrUnix::new(path).map_err(os)?;
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
    // Whoever listens at the address, or listened when the connection was made.
    let uid = SocketPeer::of(&socket).map_err(os)?.uid;
    if !place::is_trusted(uid, trusted) {
        return Err(ConnectError::Stranger { address: address.clone(), uid });
    }
    Ok(UnixStream::from(socket))
}

fn link_failed(address: &Address, source: LinkError) -> ConnectError {
    match (address.clone(), source) {
        (address, LinkError::Os(source)) if is_out_of_descriptors(&source) => {
            ConnectError::Descriptors { address, source }
        }
        (address, source) => ConnectError::Link { address, source },
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A handle's connection for changes.
#[derive(Debug)]
struct ShmConnection {
    link: SocketLink,
    /// The geometry of the server at the other end.
    geometry: Arc<Geometry>,
    mailbox: MailboxState,
    /// Number of the next message.
    next_id: u64,
    /// The deadline of the last requests.
    asked_until: Instant,
}

/// Whether a connection has a mailbox.
#[derive(Debug)]
enum MailboxState {
    /// It has not asked for one.
    Unasked,
    /// It got none. Requests go over the stream.
    Refused {
        at: Instant,
    },
    There(Box<ClientMailbox>),
}

impl MailboxState {
    fn is_to_be_asked_for(&self) -> bool {
        match self {
            MailboxState::Unasked => true,
            MailboxState::Refused { at } => at.elapsed() >= MAILBOX_AGAIN,
            MailboxState::There(_) => false,
        }
    }
}

impl ShmConnection {
    /// A connection on which nothing but the hello was said.
    fn new(link: SocketLink, geometry: Arc<Geometry>, asked_until: Instant) -> ShmConnection {
        ShmConnection { link, geometry, mailbox: MailboxState::Unasked, next_id: 0, asked_until }
    }

    /// Sends the requests that the server's table takes, through the mailbox if it is wanted and
    /// there. Returns when all are answered, so no request overtakes one that went the other way.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        wants_mailbox: bool,
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        has_sent: &mut bool,
        counts: &mut RequestCounts,
    ) -> Result<(), LinkError> {
        let ShmConnection { link, geometry, mailbox, next_id, .. } = self;
        send_fitting(requests, geometry, Some(SOCKET_PIECE_MAX), replies, has_sent, |requests, replies| {
            let sent = requests.len() as u64;
            match mailbox {
                MailboxState::There(mailbox) if wants_mailbox => {
                    counts.mailbox += sent;
                    mailbox.converse(link, requests, deadline, replies)
                }
                _ => {
                    counts.message += sent;
                    let first_id = *next_id;
                    *next_id += sent;
                    link.converse(requests, first_id, deadline, replies)
                }
            }
        })
    }
}

/// A connection to the server.
#[derive(Debug)]
struct SocketLink {
    /// Shared with the watch, if that watches this connection.
    stream: Arc<UnixStream>,
    input: Vec<u8>,
    /// The whole time allowed, for error messages.
    allowed: Duration,
}

impl SocketLink {
    /// Sends a request whose reply comes with a descriptor. Returns both; the descriptor may be
    /// missing.
    fn ask_for_memory(
        &mut self,
        request: &[u8],
        deadline: Instant,
    ) -> Result<(Reply, Option<OwnedFd>), LinkError> {
        // A server that refuses hangs up at once. Its refusal can still be read.
        let sent = self.send(request, deadline);
        let mut fd = None;
        loop {
            if let Some(reply) = self.memory_reply()? {
                return Ok((reply, fd));
            }
            self.wait(PollFlags::IN, deadline)?;
            match self.receive_memory(&mut fd) {
                Err(LinkError::HungUp) => {
                    sent?;
                    return Err(LinkError::HungUp);
                }
                received => received?,
            }
        }
    }

    /// The reply to a request for memory, if it is whole.
    fn memory_reply(&mut self) -> Result<Option<Reply>, LinkError> {
        let Some(frame) = wire::decode(&self.input)? else { return Ok(None) };
        let reply = Reply::decode(&frame)?;
        if frame.id != MEMORY_ID {
            return Err(LinkError::Unexpected);
        }
        self.input.drain(..frame.length);
        Ok(Some(reply))
    }

    /// Receives what is there of such a reply, and its descriptor. Does not wait.
    fn receive_memory(&mut self, fd: &mut Option<OwnedFd>) -> Result<(), LinkError> {
        let mut chunk = [0u8; 256];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .map_err(io::Error::from);
        let received = match received {
            Err(e) if is_transient(&e) => return Ok(()),
            received => received?,
        };
        // The kernel could not give this process a descriptor.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LinkError::Os(rustix::io::Errno::MFILE.into()));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                *fd = fds.next().or(fd.take());
            }
        }
        if received.bytes == 0 {
            return Err(LinkError::HungUp);
        }
        self.input.extend_from_slice(&chunk[..received.bytes]);
        Ok(())
    }

    /// Asks the server for a mailbox for further requests.
    fn take_mailbox(
        &mut self,
        address: &Address,
        geometry: &Geometry,
        deadline: Instant,
    ) -> Result<Box<ClientMailbox>, ConnectError> {
        let refused = |why: String| ConnectError::RequestPath {
            path: RequestPath::Mailbox,
            address: address.clone(),
            why,
        };
        let mut request = Vec::new();
        Request::Mailbox { version: memory::VERSION }.encode(MEMORY_ID, &mut request);
        let fd = match self.ask_for_memory(&request, deadline) {
            Ok((Reply::Mailbox { version: memory::VERSION }, Some(fd))) => fd,
            Ok((Reply::Refused { version: 0 }, _)) => {
                return Err(refused("it has none; give it more of `ServerConfig::mailbox_bytes_max`, or use `RequestPath::Auto`".into()));
            }
            Ok((Reply::Refused { version: memory::VERSION }, _)) => {
                return Err(refused("it has no room for another one; give it more of `ServerConfig::mailbox_bytes_max`, or use `RequestPath::Auto`".into()));
            }
            Ok((Reply::Refused { version } | Reply::Mailbox { version }, _))
                if version != memory::VERSION =>
            {
                return Err(refused(format!(
                    "it has version {version} of them, this program version {}; use the same version of oneread on both sides",
                    memory::VERSION
                )));
            }
            other => {
                let source = other.err().unwrap_or(LinkError::Unexpected);
                return Err(ConnectError::Link { address: address.clone(), source });
            }
        };
        Ok(Box::new(ClientMailbox::new(Mailbox::map(fd, geometry)?)))
    }

    /// Sends requests, numbered from `first_id`, and receives their replies.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        first_id: u64,
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), LinkError> {
        let mut out = Vec::new();
        requests.iter().zip(first_id..).for_each(|(request, id)| request.encode(id, &mut out));
        self.send(&out, deadline.at)?;
        let mut missing = first_id..first_id + requests.len() as u64;
        loop {
            let (mut taken, before) = (0, replies.len());
            while !missing.is_empty() {
                let Some(frame) = wire::decode(&self.input[taken..])? else { break };
                taken += frame.length;
                match Reply::decode(&frame)? {
                    // A late ring, for a request that went through the mailbox.
                    Reply::Wake => {}
                    reply if frame.id == missing.start => {
                        missing.start += 1;
                        replies.push(reply);
                    }
                    _ => return Err(LinkError::Unexpected),
                }
            }
            self.input.drain(..taken);
            if replies.len() > before {
                deadline.renew();
            }
            if missing.is_empty() {
                return Ok(());
            }
            if taken > 0 && replies.len() == before {
                self.check(deadline.at)?;
            }
            self.receive(deadline.at)?;
        }
    }

    /// Fails after the deadline. Without this check, a server that always rings and never answers
    /// would keep the client awake for ever.
    fn check(&self, deadline: Instant) -> Result<(), LinkError> {
        if Instant::now() < deadline { Ok(()) } else { Err(LinkError::Deadline(self.allowed)) }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.wait(PollFlags::IN, deadline)?;
        let mut chunk = [0u8; 1 << 14];
        match (&*self.stream).read(&mut chunk) {
            Ok(0) => Err(LinkError::HungUp),
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if is_transient(&e) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match (&*self.stream).write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_transient(&e) => self.wait(PollFlags::OUT, deadline)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Waits until the stream is ready, at most until the deadline.
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
}

/// Whether the other side has closed its end. Does not wait.
pub(super) fn is_hung_up(stream: &UnixStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(rustix::event::poll(&mut watched, Some(&now)), Ok(n) if n > 0)
}

impl BellSocket for SocketLink {
    fn ring(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let mut out = Vec::new();
        Request::Wake.encode(0, &mut out);
        self.send(&out, deadline)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.check(deadline)?;
        self.receive(deadline)?;
        // All requests that went over the stream were answered, so only rings are left.
        let mut taken = 0;
        while let Some(frame) = wire::decode(&self.input[taken..])? {
            if Reply::decode(&frame)? != Reply::Wake {
                return Err(LinkError::Unexpected);
            }
            taken += frame.length;
        }
        self.input.drain(..taken);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::client::Client;
    use crate::config::{Config, TableSize};
    use crate::layout::geometry::SlotIx;
    use crate::outcome::{PutError, PutMode, PutOutcome};
    use crate::reader::Limits;
    use crate::region::Backing;
    use crate::server::{Server, ServerConfig};

    /// What a GET that fails has read is counted, and how often it looked again.
    #[test]
    fn reads_of_failed_gets_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Shm(dir.path().join("s"));
        let config = Config::short().size(TableSize::Slots(64));
        let server = Server::start(ServerConfig::new(address.clone(), config)).unwrap();
        let options = ClientOptions::new().limits(Limits::new().retries_max(3));
        let mut client = Client::connect_with(&address, options).unwrap();
        client.put(b"key", b"value").unwrap();
        // As if a writer had died in each slot.
        let (region, geometry) = (server.index().region(), server.index().geometry());
        for word in (0..geometry.main_slots()).map(|slot| geometry.slot_word(SlotIx(slot))) {
            region.store(word, region.load(word) | 1);
        }
        let answer = client.get(b"key");
        assert!(matches!(answer, Err(GetError::Contended { retries: 3, .. })), "{answer:?}");
        let ClientStats { get, read, .. } = client.stats();
        assert_eq!((get.gets, get.retries_torn), (0, 3), "{get:?}");
        assert!(read.reads >= 4, "{read:?}");
        drop(client);
        server.stop();
    }

    fn attachment(inode: u64) -> Attachment {
        let geometry = Config { size: TableSize::Slots(8), ..Config::short() }.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let (geometry, identity) = (Arc::new(geometry), (1, inode, 1));
        Attachment { region, geometry, identity, version: 0, is_file: false }
    }

    /// What the handles of a client share whose server is not there, with a manual clock.
    pub(in crate::client) fn shared(options: ClientOptions) -> ShmShared {
        let socket = PathBuf::from("/nowhere");
        ShmShared {
            process: Process::this(),
            address: Address::Shm(socket.clone()),
            socket,
            options,
            hints: SharedHints::new(0),
            clock: Clock::manual(),
            newest: Mutex::new(Arc::new(attachment(0))),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(0),
            spare: Mutex::default(),
        }
    }

    /// Leaves this connection to the next handle.
    pub(in crate::client) fn leave(shared: &ShmShared, stream: &Arc<UnixStream>) {
        let link = SocketLink { stream: stream.clone(), input: Vec::new(), allowed: Duration::ZERO };
        let geometry = shared.newest().geometry.clone();
        *lock_std(&shared.spare) = Some(ShmConnection::new(link, geometry, Instant::now()));
    }

    /// A connection that waits for the answer to its hello.
    pub(in crate::client) fn greeting(stream: &Arc<UnixStream>) -> Greeting {
        let link = SocketLink { stream: stream.clone(), input: Vec::new(), allowed: Duration::ZERO };
        Greeting { link, server: None, fd: None, seen: SeenVersion(0) }
    }

    /// Whether a connection is left to the next handle.
    pub(in crate::client) fn has_spare(shared: &ShmShared) -> bool {
        lock_std(&shared.spare).is_some()
    }

    /// A connection that is left to the next handle is taken once, by its time, and not if the server has
    /// closed it. The connection that the server has closed takes no other one with it.
    #[test]
    fn only_a_good_connection_is_taken() {
        let bound = Duration::from_secs(3);
        let shared = shared(ClientOptions { deadline: bound, ..ClientOptions::default() });
        let until = Instant::now() + Duration::from_secs(60);
        assert!(shared.take_spare(until).is_none());
        let ((ours, theirs), (other, peer)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let [ours, other] = [ours, other].map(Arc::new);
        leave(&shared, &ours);
        let taken = shared.take_spare(until).unwrap();
        assert!(Arc::ptr_eq(&taken.link.stream, &ours));
        assert_eq!((taken.link.allowed, taken.asked_until), (bound, until));
        assert!(shared.take_spare(until).is_none(), "it is taken");
        leave(&shared, &ours);
        shared.drop_spare(&other);
        assert!(has_spare(&shared), "that was another one");
        shared.has_lost(&other);
        assert!(has_spare(&shared) && !shared.is_served());
        assert!(is_hung_up(&peer), "a child of the server's may keep the other end");
        shared.drop_spare(&ours);
        assert!(!has_spare(&shared));
        drop(theirs);
        leave(&shared, &ours);
        assert!(shared.take_spare(until).is_none(), "it is closed");
        // What a handle leaves goes to the next one if it is watched, and if there is none yet.
        let connection = |stream: &Arc<UnixStream>| {
            let link = SocketLink { stream: stream.clone(), input: Vec::new(), allowed: bound };
            ShmConnection::new(link, shared.newest().geometry.clone(), until)
        };
        let (other, _peer) = UnixStream::pair().unwrap();
        let other = Arc::new(other);
        shared.keep_spare(connection(&other));
        shared.keep_spare(connection(&ours));
        assert!(Arc::ptr_eq(&shared.take_spare(until).unwrap().link.stream, &other), "the first one stays");
    }

    /// A server that answers a hello with something else than its region is not connected to. The error says
    /// what it is.
    #[test]
    fn only_a_region_is_a_welcome() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let connect_to = |reply: Reply| {
            let server = std::thread::spawn({
                let listener = listener.try_clone().unwrap();
                move || {
                    let (mut client, _) = listener.accept().unwrap();
                    let mut asked = vec![0; hello().len()];
                    io::Read::read_exact(&mut client, &mut asked).unwrap();
                    assert_eq!(asked, hello());
                    let mut bytes = Vec::new();
                    reply.encode(MEMORY_ID, &mut bytes);
                    io::Write::write_all(&mut client, &bytes).unwrap();
                    // The client hangs up.
                    let _ = io::Read::read(&mut client, &mut [0]);
                }
            });
            let options = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::default() };
            let error = ShmHandle::connect(&socket, &options).unwrap_err();
            server.join().unwrap();
            error
        };
        assert!(matches!(
            connect_to(Reply::Refused { version: PROTOCOL_VERSION + 7 }),
            ConnectError::Refused { theirs, .. } if theirs == PROTOCOL_VERSION + 7
        ));
        assert!(matches!(
            connect_to(Reply::TurnedAway(Refusal::User { uid: 9 })),
            ConnectError::TurnedAway { source: Refusal::User { uid: 9 }, .. }
        ));
        for reply in [Reply::Welcome { version: PROTOCOL_VERSION }, Reply::Wake, Reply::Unfit] {
            let error = connect_to(reply);
            assert!(matches!(error, ConnectError::Link { source: LinkError::Unexpected, .. }), "{error}");
        }
    }

    /// An attempt to connect that fails says that the server is gone, unless it was there and did not take the
    /// client, or was silent. The lease runs from the first time.
    #[test]
    fn failed_attempts_say_whether_the_server_is_gone() {
        let address = || Address::Shm("/nowhere".into());
        let link = |source| ConnectError::Link { address: address(), source };
        for (error, is_there) in [
            (ConnectError::TurnedAway { address: address(), source: Refusal::Stopping }, true),
            (ConnectError::TurnedAway { address: address(), source: Refusal::ServerFull { max: 1 } }, true),
            (link(LinkError::Deadline(Duration::ZERO)), true),
            (link(LinkError::HungUp), false),
            (link(LinkError::Unexpected), false),
            (ConnectError::NotThere { address: address(), source: io::ErrorKind::NotFound.into() }, false),
            (ConnectError::Refused { address: address(), theirs: 1 }, false),
            (ConnectError::Stranger { address: address(), uid: 1 }, false),
        ] {
            let shared = shared(ClientOptions::default());
            shared.has_not_found(&error);
            assert_eq!(shared.is_served(), is_there, "{error}");
            assert_eq!(
                shared.gone_ns.load(Ordering::Relaxed),
                u64::from(!is_there),
                "on a clock that reads 0"
            );
            shared.gone_ns.store(7, Ordering::Relaxed);
            shared.clock.advance(Duration::from_nanos(100));
            shared.has_not_found(&error);
            assert_eq!(shared.gone_ns.load(Ordering::Relaxed), 7, "{error}");
            shared.is_back();
            assert!(shared.is_served());
        }
    }

    /// A handle that found a server, and slept until that server was gone and the next one known,
    /// does not publish the first one.
    #[test]
    fn a_late_handle_does_not_publish() {
        let shared = ShmShared { gone_ns: AtomicU64::new(7), ..shared(ClientOptions::default()) };
        let known = || {
            let newest = shared.newest();
            assert_eq!(newest.version, shared.version.load(Ordering::Relaxed), "handles look at this one");
            (newest.identity.1, newest.version)
        };
        assert!(shared.publish(SeenVersion(0), attachment(2), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((2, 1), 0));
        assert!(!shared.publish(SeenVersion(0), attachment(1), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // The region that is already known may be published late.
        assert!(shared.publish(SeenVersion(0), attachment(2), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // A handle says that a server was there just now, not that it still is: the lease begins
        // again.
        shared.gone_ns.store(7, Ordering::Relaxed);
        shared.clock.advance(Duration::from_nanos(100));
        assert!(shared.publish(SeenVersion(1), attachment(3), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 100));
        // The watcher finds the same region: the server is there, and no lease runs.
        assert!(shared.publish(SeenVersion(2), attachment(3), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 0));
        // While the server is not known to be gone, a handle begins no lease.
        assert!(shared.publish(SeenVersion(2), attachment(4), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 0));
        // A late publisher changes nothing.
        for who in [Publisher::Watcher, Publisher::Handle] {
            shared.gone_ns.store(7, Ordering::Relaxed);
            for seen in [2, 4] {
                assert!(!shared.publish(SeenVersion(seen), attachment(5), who));
                assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 7), "{who:?}");
            }
        }
        // The same region on another device, or of another server, is a different one.
        for (at, other) in [(0, (2, 4, 1)), (1, (2, 4, 2))] {
            let other = Attachment { identity: other, ..attachment(4) };
            assert!(shared.publish(SeenVersion(3 + at), other, Publisher::Watcher));
            assert_eq!(known(), (4, 4 + at));
        }
        // A lease begins also on a clock that reads 0.
        let new = ShmShared { clock: Clock::manual(), gone_ns: AtomicU64::new(7), ..shared };
        assert!(new.publish(SeenVersion(5), attachment(6), Publisher::Handle));
        assert_eq!(new.gone_ns.load(Ordering::Relaxed), 1);
    }

    /// Another server is found while one is looked for: nobody knows which of the two came later.
    #[test]
    fn a_server_found_meanwhile_is_noticed() {
        let shared = shared(ClientOptions::default());
        let (late, seen) = shared.finding(|| {
            let (seen, found) = shared.finding(|| attachment(1));
            assert!(shared.publish(seen, found, Publisher::Watcher));
            seen
        });
        for seen in [late, seen] {
            assert!(!shared.publish(seen, attachment(2), Publisher::Handle));
        }
        let (seen, found) = shared.finding(|| attachment(2));
        assert!(shared.publish(seen, found, Publisher::Handle));
    }

    /// A handle of a server that is not there, with a manual clock.
    fn handle(lease: Duration) -> ShmHandle {
        let shared = Arc::new(shared(ClientOptions { lease, ..ClientOptions::default() }));
        let attached = shared.newest();
        let (hints, entries, watch, conversation) = Default::default();
        let (news, heard) = (process::word(), UNHEARD);
        ShmHandle { shared, attached, hints, entries, conversation, reattached: 0, news, heard, watch }
    }

    fn enters(attachment: &Attachment, phase: Phase) {
        attachment.region.store(STATE_WORD, State { incarnation: 1, phase }.to_word());
    }

    /// One request, until this instant.
    fn ask(handle: &mut ShmHandle, request: Request<'_>, at: Instant) -> Result<Vec<Reply>, MutateError> {
        let (mut deadline, mut replies) = (Deadline { at, allowed: Duration::ZERO }, Vec::new());
        let asked = handle.converse(&[request], &mut deadline, &mut replies, &mut ClientStats::default());
        asked.map(|()| replies)
    }

    /// A client that remembers the limits of a server refuses nothing by them before that server has
    /// answered: here it is gone, and its end of the socket is still open somewhere.
    #[test]
    fn a_refusal_is_confirmed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), value_max: 100, ..Config::short() };
        let _server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let small = Config { value_max: 8, ..table }.geometry().unwrap();
        let put = Request::Put { mode: PutMode::Upsert, key: b"key", value: &[1; 50] };
        let mut handle = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let link = SocketLink { stream: Arc::new(stream), input: Vec::new(), allowed: Duration::ZERO };
        let deadline = Instant::now() + Duration::from_secs(60);
        handle.conversation = Some(ShmConnection::new(link, Arc::new(small), deadline));
        // The mailbox would be asked for first.
        handle.conversation.as_mut().unwrap().mailbox = MailboxState::Refused { at: Instant::now() };
        let goes = std::thread::spawn(move || (&theirs).read(&mut [0; 16]).map(|_| ()));
        assert_eq!(ask(&mut handle, put, deadline).unwrap(), [Reply::Put(Ok(PutOutcome::Inserted))]);
        goes.join().unwrap().unwrap();
    }

    /// Connecting again inside a batch takes what is left of its deadline, not all of it.
    #[test]
    fn connecting_again_takes_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        // It accepts connections and never answers.
        let _server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let all = Duration::from_secs(30);
        for requests in [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox] {
            let mut handle = handle(Duration::ZERO);
            let shared = Arc::get_mut(&mut handle.shared).unwrap();
            shared.socket.clone_from(&socket);
            shared.options = ClientOptions { requests, deadline: all, ..ClientOptions::default() };
            for left in [Duration::from_millis(50), Duration::ZERO] {
                let begun = Instant::now();
                let late = ask(&mut handle, Request::Wake, begun + left);
                let took = begun.elapsed();
                let is_late = matches!(late, Err(MutateError::Deadline { deadline, .. }) if deadline == all);
                assert!(is_late, "{late:?}");
                assert!((left..all).contains(&took), "{took:?} of {left:?}");
            }
        }
    }

    /// GETs answer until the last nanosecond of the lease, counted from when the server was found
    /// gone. They never answer from a region that was given up.
    #[test]
    fn gets_answer_until_the_lease_ends() {
        let lease = Duration::from_nanos(1000);
        let mut handle = handle(lease);
        let mut why = |gone_ns: u64, now_ns: u64, phase| {
            enters(&handle.attached, phase);
            let now = handle.shared.clock.now_ns();
            handle.shared.clock.advance(Duration::from_nanos(now_ns - now));
            handle.shared.gone_ns.store(gone_ns, Ordering::Relaxed);
            process::tell_news();
            handle.attach_newest().err().map(|error| match error {
                GetError::ServerGone { address, source } => {
                    assert_eq!(address, Address::Shm("/nowhere".into()));
                    source.to_string()
                }
                error => panic!("{error}"),
            })
        };
        let kept = [Phase::Serving, Phase::Starting, Phase::Stopped];
        for phase in kept {
            assert_eq!(why(0, 5000, phase), None, "it is there");
        }
        assert!(why(0, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert!(why(5000, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(5000, 5000, Phase::Serving), None);
        for phase in kept {
            assert_eq!(why(5000, 5999, phase), None, "{phase:?}");
        }
        assert_eq!(why(9000, 5999, Phase::Serving), None, "another thread's clock was ahead");
        for phase in kept {
            let ended = why(5000, 6000, phase).unwrap();
            assert!(ended.contains("lease of 1 µs has ended"), "{ended}");
        }
        assert!(why(5000, 7000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(6001, 7000, Phase::Serving), None, "it was gone again later");
        assert_eq!(why(0, 7000, Phase::Serving), None, "it is back");
    }

    /// A handle switches once for each newer region that it finds, and counts that. A clone begins
    /// with the region of its original, and counts for itself.
    #[test]
    fn handles_switch_to_newer_regions() {
        let mut first = handle(Duration::ZERO);
        enters(&first.attached, Phase::Serving);
        let mut second = first.clone();
        let mut publish = |inode, seen| {
            let new = attachment(inode);
            enters(&new, Phase::Serving);
            assert!(first.shared.publish(SeenVersion(seen), new, Publisher::Watcher));
            for _ in 0..3 {
                first.attach_newest().unwrap();
            }
            (first.reattached(), first.attached.version, first.attached.identity.1)
        };
        assert_eq!(publish(1, 0), (1, 1, 1));
        assert_eq!(publish(2, 1), (2, 2, 2));
        assert_eq!(publish(2, 2), (2, 2, 2), "the same one");
        // A handle that missed a region switches once.
        second.attach_newest().unwrap();
        second.attach_newest().unwrap();
        assert_eq!((second.reattached(), second.attached.version, second.attached.identity.1), (1, 2, 2));
        let mut third = first.clone();
        third.attach_newest().unwrap();
        assert_eq!((third.reattached(), third.attached.version, third.attached.identity.1), (0, 2, 2));
        assert!(Arc::ptr_eq(&third.attached, &first.attached) && third.conversation.is_none());
        // A handle switches even if the lease of the newer region has ended.
        first.shared.gone_ns.store(1, Ordering::Relaxed);
        process::tell_news();
        first.shared.clock.advance(Duration::from_nanos(2));
        assert!(first.attach_newest().is_err());
        assert_eq!(first.reattached(), 2);
    }

    /// A handle that takes the client's connection, which is to a newer server, has its GETs go where its changes go.
    #[test]
    fn a_handle_that_takes_the_connection_switches() {
        let mut handle = handle(Duration::ZERO);
        assert!(handle.shared.publish(SeenVersion(0), attachment(1), Publisher::Watcher));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let ours = Arc::new(ours);
        for _ in 0..2 {
            leave(&handle.shared, &ours);
            assert!(handle.takes_spare(Instant::now()));
            let Attachment { identity, version, .. } = *handle.attached;
            assert_eq!((handle.reattached(), version, identity.1), (1, 1, 1));
        }
    }

    /// A server that always rings and never answers keeps no client awake past the deadline. The
    /// client does not keep the bytes of the rings.
    #[test]
    fn rings_do_not_extend_the_deadline() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let allowed = Duration::from_secs(3);
        let mut link = SocketLink { stream: Arc::new(stream), input: Vec::new(), allowed };
        let mut rings = Vec::new();
        (0..3).for_each(|_| Reply::Wake.encode(0, &mut rings));
        server.write_all(&rings[..40]).unwrap();
        let (past, soon) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let late = link.sleep(past);
        assert!(matches!(late, Err(LinkError::Deadline(bound)) if bound == allowed), "{late:?}");
        link.sleep(soon).unwrap();
        assert_eq!(link.input, rings[32..40], "half a ring");
        // It waits for replies over the stream: rings among them are late ones.
        let get = [Request::Get { key: b"key" }];
        server.write_all(&rings[40..]).unwrap();
        let converse = |link: &mut SocketLink, first_id, at| {
            let (mut deadline, mut replies) = (Deadline { at, allowed }, Vec::new());
            link.converse(&get, first_id, &mut deadline, &mut replies).map(|()| replies)
        };
        let late = converse(&mut link, 7, past);
        assert!(matches!(late, Err(LinkError::Deadline(bound)) if bound == allowed), "{late:?}");
        let mut answer = rings.clone();
        Reply::Value(None).encode(8, &mut answer);
        server.write_all(&answer).unwrap();
        assert_eq!(converse(&mut link, 8, soon).unwrap(), [Reply::Value(None)]);
        // Anything but a ring is nothing that a client with a mailbox waits for.
        server.write_all(&answer).unwrap();
        let wrong = link.sleep(soon);
        assert!(matches!(wrong, Err(LinkError::Unexpected)), "{wrong:?}");
        drop(server);
        let gone = link.sleep(soon);
        assert!(matches!(gone, Err(LinkError::HungUp)), "{gone:?}");
    }

    /// Each answer renews the deadline, so that a batch is bounded by the time without one. What came before an
    /// error is there.
    #[test]
    fn answers_renew_the_deadline() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let allowed = Duration::from_secs(60);
        let mut link = SocketLink { stream: Arc::new(stream), input: Vec::new(), allowed };
        let answer = |id| {
            let mut bytes = Vec::new();
            Reply::Value(None).encode(id, &mut bytes);
            bytes
        };
        let gets = [Request::Get { key: b"key" }; 3];
        server.write_all(&answer(7)).unwrap();
        let answers = std::thread::spawn(move || {
            for id in [8, 9, 10, 11] {
                std::thread::sleep(Duration::from_millis(30));
                server.write_all(&answer(id)).unwrap();
            }
            // It says no more.
            server.shutdown(std::net::Shutdown::Write).unwrap();
            server
        });
        let mut ask = |first_id| {
            let (mut deadline, mut replies) = (Deadline { at: Instant::now(), allowed }, Vec::new());
            // The first answer is there, and none of the others before the deadline.
            let asked = link.converse(&gets, first_id, &mut deadline, &mut replies);
            (asked, replies.len(), deadline.at > Instant::now())
        };
        let (asked, replies, is_renewed) = ask(7);
        assert!(asked.is_ok() && replies == 3 && is_renewed, "{asked:?}");
        let _server = answers.join().unwrap();
        let (asked, replies, is_renewed) = ask(10);
        assert!(matches!(asked, Err(LinkError::HungUp)) && replies == 2 && is_renewed, "{asked:?}");
    }

    /// A client leaves the watching thread with its last handle, and its connection is closed.
    #[test]
    fn the_watch_ends_with_the_last_handle() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let first = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let (watch, shared) = (Arc::downgrade(first.watch.as_ref().unwrap()), Arc::downgrade(&first.shared));
        let second = first.clone();
        drop(first);
        assert_eq!((watch.strong_count(), server.stats().clients), (1, 1));
        drop(second);
        assert_eq!((watch.strong_count(), shared.strong_count()), (0, 0));
        let until = Instant::now() + Duration::from_secs(60);
        while server.stats().clients > 0 {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }

    /// A client has one connection, which goes from handle to handle: one handle uses it at a time,
    /// and leaves it to the next one. What a handle has to ask meanwhile goes over a connection of
    /// its own. A connection that was given up is replaced by the next one.
    #[test]
    fn handles_pass_the_connection_on() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let mut first = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let clients = |expected| {
            let until = Instant::now() + Duration::from_secs(60);
            while server.stats().clients != expected {
                assert!(Instant::now() < until, "{} instead of {expected}", server.stats().clients);
                std::thread::yield_now();
            }
        };
        let ask = |handle: &mut ShmHandle| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let reply = ask(handle, Request::Get { key: b"k" }, deadline);
            assert_eq!(reply.unwrap(), [Reply::Value(None)]);
            Arc::as_ptr(&handle.conversation.as_ref().unwrap().link.stream)
        };
        let one = ask(&mut first);
        assert_eq!(ask(&mut first), one);
        clients(1);
        let mut second = first.clone();
        assert_ne!(ask(&mut second), one);
        clients(2);
        // Only the watched one is left to others.
        drop(second);
        clients(1);
        assert!(lock_std(&first.shared.spare).is_none());
        let mut third = first.clone();
        drop(first);
        assert_eq!(ask(&mut third), one);
        for _ in 0..3 {
            let before = ask(&mut third);
            third.disconnect();
            assert_ne!(ask(&mut third), before);
            clients(1);
        }
        // The new one is watched, too.
        server.stop();
        let until = Instant::now() + Duration::from_secs(60);
        while third.is_served() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }

    /// The thread and the mapping of a client go with it, even while its server is gone.
    #[test]
    fn nothing_is_left_of_a_client_without_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let handle = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        server.stop();
        let until = Instant::now() + Duration::from_secs(60);
        let wait = || {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        };
        while handle.shared.gone_ns.load(Ordering::Relaxed) == 0 {
            wait();
        }
        let left = Arc::downgrade(&handle.shared);
        drop(handle);
        while left.strong_count() > 0 {
            wait();
        }
    }

    /// A client with a mailbox does not check the socket before a request that follows the last one
    /// at once. It does if it rejects the request itself: otherwise a client that makes only such
    /// requests would never notice the next server.
    #[test]
    fn a_request_that_is_not_sent_looks_for_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let serve = |value_max| {
            let table = Config { size: TableSize::Keys(10), value_max, ..Config::short() };
            let config = ServerConfig::new(Address::Shm(socket.clone()), table);
            Server::start(config).unwrap()
        };
        let put = |value| Request::Put { mode: PutMode::Upsert, key: b"key", value };
        for requests in [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox] {
            let server = serve(8);
            let options = ClientOptions { requests, ..ClientOptions::default() };
            let mut handle = ShmHandle::connect(&socket, &options).unwrap();
            // All conversations have the same deadline, so each follows the last one at once.
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut ask = |put| ask(&mut handle, put, deadline);
            let too_long = [Reply::Put(Err(PutError::ValueLength { given: 50, max: 8 }))];
            for _ in 0..3 {
                assert_eq!(ask(put(&[1; 50])).unwrap(), too_long);
                assert_eq!(ask(put(&[1; 5])).unwrap().len(), 1);
            }
            server.stop();
            let server = serve(100);
            let inserted = [Reply::Put(Ok(PutOutcome::Inserted))];
            assert_eq!(ask(put(&[1; 50])).unwrap(), inserted);
            server.stop();
            // There is no server whose limits could reject it.
            let error = ask(put(&[1; 101])).unwrap_err();
            assert!(matches!(error, MutateError::Connect(ConnectError::NotThere { .. })), "{error}");
        }
    }
}
