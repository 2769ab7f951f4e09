//! A server on this host: its region is mapped, and it is talked to over a Unix socket.

use super::mailbox::{BellSocket, ClientMailbox};
use super::{
    ATTEMPT_MAX, ClientOptions, ClientStats, ConnectError, GetError, Handle, LinkError, MutateError,
    RETRY_FIRST, RETRY_MAX, RequestPath, fit, send_fitting,
};
use crate::address::Address;
use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::Superblock;
use crate::mailbox::memory::{self, Mailbox};
use crate::reader::{ReadError, Reader};
use crate::region::Region;
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One thread's way to the server.
#[derive(Debug)]
pub(super) struct ShmHandle {
    shared: Arc<ShmShared>,
    attached: Arc<Attachment>,
    conversation: Option<ShmConnection>,
    reattached: u64,
    /// Ends with the last handle. (None in tests that have no server.)
    watcher: Option<Arc<Watcher>>,
}

/// The thread that notices when the server is gone.
#[derive(Debug)]
struct Watcher {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// How a watcher is told that there is no handle any more.
#[derive(Debug)]
struct Alarm {
    /// An eventfd.
    raised: OwnedFd,
    /// Is the watcher talking to a server, which may keep it waiting?
    is_attaching: AtomicBool,
}

impl Alarm {
    fn new() -> io::Result<Alarm> {
        let raised = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Alarm { raised, is_attaching: AtomicBool::new(false) })
    }

    /// Is it raised, or is it within this time?
    fn wait(&self, within: Duration) -> bool {
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        let mut watched = [PollFd::new(&self.raised, PollFlags::IN)];
        matches!(rustix::event::poll(&mut watched, Some(&timeout)), Ok(n) if n > 0)
    }
}

impl Drop for Watcher {
    /// The thread ends before this returns, so that a program leaves nothing behind when it ends; unless a
    /// server that does not answer keeps it: then it ends later, by itself.
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.alarm.raised, &1u64.to_ne_bytes());
        // SeqCst, as the watcher's: it looks at the alarm after it has said so, and this the other way round.
        if !self.alarm.is_attaching.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// What the handles of one client share.
#[derive(Debug)]
struct ShmShared {
    /// For messages.
    address: Address,
    /// The server's socket.
    socket: PathBuf,
    options: ClientOptions,
    clock: Clock,
    /// The newest mapping.
    newest: Mutex<Arc<Attachment>>,
    /// Its version, stored under that lock. Only a hint: a handle that has another one looks there.
    version: AtomicU64,
    /// When the server was found gone, on `clock`; 0 while it is there.
    gone_ns: AtomicU64,
}

impl ShmShared {
    /// A server is there, with this region: if it is a new one, every handle goes over to it at its next GET.
    /// `seen` is the version before that server was looked for. `false`: somebody has published another region
    /// since, and whose server came later nobody knows: look again.
    fn publish(&self, seen: u64, attachment: Attachment, who: Publisher) -> bool {
        let mut newest = lock(&self.newest);
        if attachment.identity != newest.identity {
            if newest.version != seen {
                return false;
            }
            let version = seen + 1;
            *newest = Arc::new(Attachment { version, ..attachment });
            // Relaxed: who sees it takes the lock, and that brings what was stored under it.
            self.version.store(version, Ordering::Relaxed);
        }
        match who {
            Publisher::Watcher => self.gone_ns.store(0, Ordering::Relaxed),
            // It was there just now; whether it still is the watcher will tell.
            Publisher::Handle if self.gone_ns.load(Ordering::Relaxed) != 0 => {
                self.gone_ns.store(self.clock.now_ns().max(1), Ordering::Relaxed);
            }
            Publisher::Handle => {}
        }
        true
    }

    fn newest(&self) -> Arc<Attachment> {
        lock(&self.newest).clone()
    }
}

/// Who found a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publisher {
    /// The thread that also notices when it is gone.
    Watcher,
    /// A handle that wanted to change something.
    Handle,
}

/// A mapped region and what its superblock says.
#[derive(Debug)]
struct Attachment {
    region: Region,
    geometry: Arc<Geometry>,
    /// Device and inode of the region's memory, and which server of this region handed it over.
    identity: (u64, u64, u64),
    /// How many the client's handles had before; 0 until it is published.
    version: u64,
}

impl ShmHandle {
    pub fn connect(socket: &Path, options: &ClientOptions) -> Result<ShmHandle, ConnectError> {
        let address = Address::Shm(socket.into());
        let (link, attachment) = attach(&address, socket, options.deadline)?;
        let attached = Arc::new(attachment);
        let shared = Arc::new(ShmShared {
            address: address.clone(),
            socket: socket.into(),
            options: options.clone(),
            clock: Clock::System,
            newest: Mutex::new(attached.clone()),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(0),
        });
        let mut handle = ShmHandle { shared, attached, conversation: None, reattached: 0, watcher: None };
        if options.requests == RequestPath::Mailbox {
            // A server that has no mailboxes is found out here.
            handle.open_conversation(options.deadline)?;
        }
        let failed = |e| ConnectError::Link { address, source: LinkError::Os(e) };
        let weak = Arc::downgrade(&handle.shared);
        let start = || {
            let alarm = Arc::new(Alarm::new()?);
            let thread = std::thread::Builder::new().name("oneread-watch".into()).spawn({
                let alarm = alarm.clone();
                move || watch(&weak, link, &alarm)
            })?;
            Ok(Arc::new(Watcher { alarm, thread: Some(thread) }))
        };
        handle.watcher = Some(start().map_err(failed)?);
        Ok(handle)
    }

    pub fn region(&self) -> &Region {
        &self.attached.region
    }

    // ---- GETs ---------------------------------------------------------------------------------------

    #[inline]
    fn read<R>(
        &mut self,
        stats: &mut ClientStats,
        get: impl FnOnce(&mut Reader<'_, Shm<'_>>) -> Result<R, ReadError>,
    ) -> Result<R, GetError> {
        self.attach_newest()?;
        let Attachment { region, geometry, .. } = &*self.attached;
        let fabric = Shm::new(region, geometry);
        let mut reader = Reader::new(fabric, geometry, self.shared.clock.clone(), self.shared.options.limits);
        let result = get(&mut reader);
        stats.get += reader.stats();
        stats.read += reader.read_counts();
        Ok(result?)
    }

    /// Goes over to a newer region if there is one; an error when this one is no longer to be read.
    #[inline]
    fn attach_newest(&mut self) -> Result<(), GetError> {
        // Relaxed: it only says where to look (`ShmShared::publish`).
        if self.shared.version.load(Ordering::Relaxed) != self.attached.version {
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
        self.attached = self.shared.newest();
        self.reattached += 1;
    }

    #[cold]
    fn check_lease(&mut self, gone_ns: u64, state: State) -> Result<(), GetError> {
        let gone = |source| Err(GetError::ServerGone { address: self.shared.address.clone(), source });
        if state.phase == Phase::Retired {
            return gone(LinkError::Retired);
        }
        let lease = self.shared.options.lease;
        let since = Duration::from_nanos(self.shared.clock.now_ns().saturating_sub(gone_ns));
        if gone_ns != 0 && since >= lease {
            return gone(LinkError::LeaseEnded(lease));
        }
        Ok(())
    }

    // ---- changes ------------------------------------------------------------------------------------

    /// Is there a connection that the server has not hung up? Where requests go by a mailbox, no system call is spent on
    /// that right after the last conversation: that the server is gone then shows while it is waited for. For a
    /// request that will not be sent, because its table does not take it, that would never show.
    fn is_linked(&mut self, requests: &[Request<'_>], deadline: Instant) -> bool {
        /// Between two conversations' beginnings, that is between their deadlines.
        const RECENT: Duration = Duration::from_millis(1);
        let Some(ShmConnection { link, geometry, mailbox, asked_until, .. }) = &mut self.conversation else {
            return false;
        };
        let last = std::mem::replace(asked_until, deadline);
        let is_recent = mailbox.is_some() && deadline.saturating_duration_since(last) < RECENT;
        is_recent && fit(requests, geometry) || !link.is_hung_up()
    }

    /// Opens a connection for changes.
    fn open_conversation(&mut self, within: Duration) -> Result<(), ConnectError> {
        let deadline = Instant::now() + within;
        let (address, mut left) = (&self.shared.address, within);
        loop {
            let seen = self.shared.newest().version;
            let (mut link, attachment) = attach(address, &self.shared.socket, left)?;
            let geometry = attachment.geometry.clone();
            let mut mailbox = None;
            if self.shared.options.requests == RequestPath::Mailbox {
                mailbox = Some(Box::new(link.take_mailbox(address, &geometry, deadline)?));
            }
            if attachment.identity != self.attached.identity {
                // A new server, maybe with a new region: what is put there must be read there.
                if !self.shared.publish(seen, attachment, Publisher::Handle) {
                    left = deadline.saturating_duration_since(Instant::now());
                    continue;
                }
                self.reattach();
            }
            self.conversation =
                Some(ShmConnection { link, geometry, mailbox, next_id: 0, asked_until: deadline });
            return Ok(());
        }
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
    fn geometry(&self) -> &Geometry {
        &self.attached.geometry
    }

    fn reattached(&self) -> u64 {
        self.reattached
    }

    #[inline]
    fn get_into(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
        stats: &mut ClientStats,
    ) -> Result<bool, GetError> {
        self.read(stats, |reader| reader.get_into(key, value))
    }

    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
        stats: &mut ClientStats,
    ) -> Result<(), GetError> {
        self.read(stats, |reader| reader.get_many(keys, each))
    }

    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, MutateError> {
        if !self.is_linked(requests, deadline) {
            let left = deadline.saturating_duration_since(Instant::now());
            self.open_conversation(left).map_err(|error| match error {
                ConnectError::Link { source: source @ LinkError::Deadline(_), .. } => self.lost(source),
                error => error.into(),
            })?;
        }
        let conversation = self.conversation.as_mut().expect("opened above");
        conversation.converse(requests, deadline).map_err(|error| self.lost(error))
    }

    fn disconnect(&mut self) {
        self.conversation = None;
    }
}

impl Clone for ShmHandle {
    /// Shares the mapping; begins with no connection.
    fn clone(&self) -> ShmHandle {
        ShmHandle {
            shared: self.shared.clone(),
            attached: self.attached.clone(),
            conversation: None,
            reattached: 0,
            watcher: self.watcher.clone(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- connecting -------------------------------------------------------------------------------------

/// Connects, says hello, maps the region.
fn attach(
    address: &Address,
    socket: &Path,
    within: Duration,
) -> Result<(SocketLink, Attachment), ConnectError> {
    let failed = |source| ConnectError::Link { address: address.clone(), source };
    let deadline = Instant::now() + within;
    let stream = open_socket(address, socket, within, deadline)?;
    let mut link = SocketLink { stream, input: Vec::new(), allowed: within };
    let fd = match link.ask_for_memory(Request::Hello { version: PROTOCOL_VERSION }, deadline) {
        Ok((Reply::Welcome { .. }, Some(fd))) => fd,
        Ok((Reply::Refused { version: theirs }, _)) => {
            return Err(ConnectError::Refused { address: address.clone(), theirs });
        }
        Ok(_) => return Err(failed(LinkError::Unexpected)),
        Err(error) => return Err(failed(error)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| failed(LinkError::Os(e.into())))?;
    let region = Region::map_shared(fd)?;
    let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))
        .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
    let incarnation = State::from_word(region.load(STATE_WORD)).incarnation;
    let identity = (stat.st_dev, stat.st_ino, incarnation);
    Ok((link, Attachment { region, geometry: Arc::new(geometry), identity, version: 0 }))
}

/// Opens a socket to the server without ever waiting past the deadline: a stopped server's backlog may be
/// full. The socket does not block.
fn open_socket(
    address: &Address,
    path: &Path,
    within: Duration,
    deadline: Instant,
) -> Result<UnixStream, ConnectError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let os = |e: rustix::io::Errno| ConnectError::NotThere { address: address.clone(), source: e.into() };
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
    Ok(UnixStream::from(socket))
}

/// Waits for the server to hang up, then connects anew, until the last handle is dropped.
fn watch(shared: &Weak<ShmShared>, mut link: SocketLink, alarm: &Alarm) {
    loop {
        link.wait_for_hang_up_or(&alarm.raised);
        let Some(gone) = shared.upgrade() else { return };
        gone.gone_ns.store(gone.clock.now_ns().max(1), Ordering::Relaxed);
        tracing::warn!(address = %gone.address, "the server is gone; connecting anew in the background");
        let (address, socket) = (gone.address.clone(), gone.socket.clone());
        let within = gone.options.deadline.min(ATTEMPT_MAX);
        drop(gone);
        let mut pause = RETRY_FIRST;
        link = loop {
            let Some(seen) = shared.upgrade().map(|shared| shared.newest().version) else {
                return;
            };
            alarm.is_attaching.store(true, Ordering::SeqCst);
            if alarm.wait(Duration::ZERO) {
                return;
            }
            let attached = attach(&address, &socket, within);
            alarm.is_attaching.store(false, Ordering::SeqCst);
            match attached {
                Ok((link, attachment)) => {
                    let Some(back) = shared.upgrade() else { return };
                    if back.publish(seen, attachment, Publisher::Watcher) {
                        break link;
                    }
                }
                Err(error) => tracing::debug!(%error, "not yet"),
            }
            if alarm.wait(pause) {
                return;
            }
            pause = (2 * pause).min(RETRY_MAX);
        };
        tracing::info!(%address, "connected anew");
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A handle's connection for changes.
#[derive(Debug)]
struct ShmConnection {
    link: SocketLink,
    /// That of the server at its other end.
    geometry: Arc<Geometry>,
    /// Where requests go, if not over the stream.
    mailbox: Option<Box<ClientMailbox>>,
    /// Number of the next message.
    next_id: u64,
    /// Deadline of the last requests.
    asked_until: Instant,
}

impl ShmConnection {
    fn converse(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, LinkError> {
        let ShmConnection { link, geometry, mailbox, next_id, .. } = self;
        send_fitting(requests, geometry, |requests| match mailbox {
            Some(mailbox) => mailbox.converse(link, requests, deadline),
            None => {
                let first_id = *next_id;
                *next_id += requests.len() as u64;
                link.converse(requests, first_id, deadline)
            }
        })
    }
}

/// A connection to the server.
#[derive(Debug)]
struct SocketLink {
    stream: UnixStream,
    input: Vec<u8>,
    /// The time that was allowed in all, for error messages.
    allowed: Duration,
}

impl SocketLink {
    /// Asks for something that comes with a descriptor: the reply, and that if it came.
    fn ask_for_memory(
        &mut self,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<(Reply, Option<OwnedFd>), LinkError> {
        const ID: u64 = 0;
        let mut out = Vec::new();
        request.encode(ID, &mut out);
        // A server that refuses hangs up at once; its refusal is then still to be read.
        let sent = self.send(&out, deadline);
        let mut fd = None;
        loop {
            if let Some(frame) = wire::decode(&self.input)? {
                let reply = Reply::decode(&frame)?;
                if frame.id != ID {
                    return Err(LinkError::Unexpected);
                }
                self.input.drain(..frame.length);
                return Ok((reply, fd));
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
            .map_err(io::Error::from);
            let received = match received {
                Err(e) if is_transient(&e) => continue,
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

    /// Asks for a mailbox, which requests then go through.
    fn take_mailbox(
        &mut self,
        address: &Address,
        geometry: &Geometry,
        deadline: Instant,
    ) -> Result<ClientMailbox, ConnectError> {
        let refused = |why: String| ConnectError::RequestPath {
            path: RequestPath::Mailbox,
            address: address.clone(),
            why,
        };
        let request = Request::Mailbox { version: memory::VERSION };
        let fd = match self.ask_for_memory(request, deadline) {
            Ok((Reply::Mailbox { version: memory::VERSION }, Some(fd))) => fd,
            Ok((Reply::Refused { version: 0 }, _)) => {
                return Err(refused("start it with `oneread serve --mailbox`, or ask it by messages".into()));
            }
            Ok((Reply::Refused { version } | Reply::Mailbox { version }, _))
                if version != memory::VERSION =>
            {
                return Err(refused(format!(
                    "it has version {version} of them, this program version {}; use the same version of oneread on both sides",
                    memory::VERSION
                )));
            }
            Ok(_) => return Err(refused(LinkError::Unexpected.to_string())),
            Err(source) => return Err(ConnectError::Link { address: address.clone(), source }),
        };
        Ok(ClientMailbox::new(Mailbox::map(fd, geometry)?))
    }

    /// Sends requests, numbered from `first_id` on, and receives their replies.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        first_id: u64,
        deadline: Instant,
    ) -> Result<Vec<Reply>, LinkError> {
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
            Err(e) => Err(e.into()),
        }
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_transient(&e) => self.wait(PollFlags::OUT, deadline)?,
                Err(e) => return Err(e.into()),
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
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut watched = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        matches!(rustix::event::poll(&mut watched, Some(&now)), Ok(n) if n > 0)
    }

    /// Waits until the server has hung up, or `other` is readable.
    fn wait_for_hang_up_or(&self, other: &OwnedFd) {
        let mut watched = [PollFd::new(&self.stream, PollFlags::RDHUP), PollFd::new(other, PollFlags::IN)];
        while !matches!(rustix::event::poll(&mut watched, None), Ok(n) if n > 0) {}
    }
}

/// What comes over the stream of a client with a mailbox only wakes it: whatever the bytes are.
impl BellSocket for SocketLink {
    fn ring(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let mut out = Vec::new();
        Request::Wake.encode(0, &mut out);
        self.send(&out, deadline)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
        // Whoever rings all the time and never answers would keep it awake for ever.
        if Instant::now() >= deadline {
            return Err(LinkError::Deadline(self.allowed));
        }
        self.receive(deadline)?;
        self.input.clear();
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::outcome::{PutError, PutMode, PutOutcome};
    use crate::region::Backing;
    use crate::server::{Server, ServerConfig};

    fn attachment(inode: u64) -> Attachment {
        let geometry = Config { size: TableSize::Slots(8), ..Config::default() }.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        Attachment { region, geometry: Arc::new(geometry), identity: (1, inode, 1), version: 0 }
    }

    /// A handle that found a server, and slept until that one was gone and the next one known, sends nobody back
    /// to the first.
    #[test]
    fn who_comes_late_does_not_publish() {
        let socket = PathBuf::from("/nowhere");
        let shared = ShmShared {
            address: Address::Shm(socket.clone()),
            socket,
            options: ClientOptions::default(),
            clock: Clock::manual(),
            newest: Mutex::new(Arc::new(attachment(0))),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(7),
        };
        let known = || {
            let newest = shared.newest();
            assert_eq!(newest.version, shared.version.load(Ordering::Relaxed), "handles look at this one");
            (newest.identity.1, newest.version)
        };
        assert!(shared.publish(0, attachment(2), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((2, 1), 0));
        assert!(!shared.publish(0, attachment(1), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // The one that is known already may come late.
        assert!(shared.publish(0, attachment(2), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // A handle says that a server was there now, not that it still is: the lease begins anew.
        shared.gone_ns.store(7, Ordering::Relaxed);
        shared.clock.advance(Duration::from_nanos(100));
        assert!(shared.publish(1, attachment(3), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 100));
        // The watcher finds the same one: it is there, and there is no lease.
        assert!(shared.publish(2, attachment(3), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 0));
        // Where no server was missed, a handle begins no lease.
        assert!(shared.publish(2, attachment(4), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 0));
        // Who comes late changes nothing, whoever it is.
        for who in [Publisher::Watcher, Publisher::Handle] {
            shared.gone_ns.store(7, Ordering::Relaxed);
            for seen in [2, 4] {
                assert!(!shared.publish(seen, attachment(5), who));
                assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 7), "{who:?}");
            }
        }
        // The same region of another server of it, or on another device, is another one.
        for (at, other) in [(0, (2, 4, 1)), (1, (2, 4, 2))] {
            let other = Attachment { identity: other, ..attachment(4) };
            assert!(shared.publish(3 + at, other, Publisher::Watcher));
            assert_eq!(known(), (4, 4 + at));
        }
        // On a clock that stands at its beginning, a lease begins all the same.
        let new = ShmShared { clock: Clock::manual(), gone_ns: AtomicU64::new(7), ..shared };
        assert!(new.publish(5, attachment(6), Publisher::Handle));
        assert_eq!(new.gone_ns.load(Ordering::Relaxed), 1);
    }

    /// A handle of a server that is not there, with a clock that is set by hand.
    fn handle(lease: Duration) -> ShmHandle {
        let socket = PathBuf::from("/nowhere");
        let attached = Arc::new(attachment(0));
        let shared = Arc::new(ShmShared {
            address: Address::Shm(socket.clone()),
            socket,
            options: ClientOptions { lease, ..ClientOptions::default() },
            clock: Clock::manual(),
            newest: Mutex::new(attached.clone()),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(0),
        });
        ShmHandle { shared, attached, conversation: None, reattached: 0, watcher: None }
    }

    fn enters(attachment: &Attachment, phase: Phase) {
        attachment.region.store(STATE_WORD, State { incarnation: 1, phase }.to_word());
    }

    /// Connecting again inside a batch takes what is left of its deadline, not all of it.
    #[test]
    fn connecting_again_takes_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        // It takes connections, and never says a word.
        let _server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let all = Duration::from_secs(30);
        for requests in [RequestPath::Message, RequestPath::Mailbox] {
            let mut handle = handle(Duration::ZERO);
            let shared = Arc::get_mut(&mut handle.shared).unwrap();
            shared.socket.clone_from(&socket);
            shared.options = ClientOptions { requests, deadline: all, ..ClientOptions::default() };
            for left in [Duration::from_millis(50), Duration::ZERO] {
                let begun = Instant::now();
                let late = handle.converse(&[Request::Wake], begun + left);
                let took = begun.elapsed();
                let is_late = matches!(late, Err(MutateError::Deadline { deadline, .. }) if deadline == all);
                assert!(is_late, "{late:?}");
                assert!((left..all).contains(&took), "{took:?} of {left:?}");
            }
        }
    }

    /// GETs answer until the lease has lasted to its last nanosecond, counted from when the server was found gone; not
    /// from a region that was given up, lease or not.
    #[test]
    fn a_lease() {
        let lease = Duration::from_nanos(1000);
        let mut handle = handle(lease);
        let mut why = |gone_ns: u64, now_ns: u64, phase| {
            enters(&handle.attached, phase);
            let now = handle.shared.clock.now_ns();
            handle.shared.clock.advance(Duration::from_nanos(now_ns - now));
            handle.shared.gone_ns.store(gone_ns, Ordering::Relaxed);
            handle.attach_newest().err().map(|error| match error {
                GetError::ServerGone { address, source } => {
                    assert_eq!(address, Address::Shm("/nowhere".into()));
                    source.to_string()
                }
                error => panic!("{error}"),
            })
        };
        for phase in [Phase::Serving, Phase::Starting] {
            assert_eq!(why(0, 5000, phase), None, "it is there");
        }
        assert!(why(0, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert!(why(5000, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(5000, 5000, Phase::Serving), None);
        for phase in [Phase::Serving, Phase::Starting] {
            assert_eq!(why(5000, 5999, phase), None, "{phase:?}");
        }
        assert_eq!(why(9000, 5999, Phase::Serving), None, "another thread's clock was ahead");
        for phase in [Phase::Serving, Phase::Starting] {
            let ended = why(5000, 6000, phase).unwrap();
            assert!(ended.contains("lease of 1µs has ended"), "{ended}");
        }
        assert!(why(5000, 7000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(6001, 7000, Phase::Serving), None, "it was gone again later");
        assert_eq!(why(0, 7000, Phase::Serving), None, "it is back");
    }

    /// A handle goes over once for each time that it finds something newer, and counts that; a clone begins where its
    /// original is, and counts for itself.
    #[test]
    fn going_over() {
        let mut first = handle(Duration::ZERO);
        enters(&first.attached, Phase::Serving);
        let mut second = first.clone();
        let mut publish = |inode, seen| {
            let new = attachment(inode);
            enters(&new, Phase::Serving);
            assert!(first.shared.publish(seen, new, Publisher::Watcher));
            for _ in 0..3 {
                first.attach_newest().unwrap();
            }
            (first.reattached(), first.attached.version, first.attached.identity.1)
        };
        assert_eq!(publish(1, 0), (1, 1, 1));
        assert_eq!(publish(2, 1), (2, 2, 2));
        assert_eq!(publish(2, 2), (2, 2, 2), "the same one");
        // Two steps at once are one.
        second.attach_newest().unwrap();
        second.attach_newest().unwrap();
        assert_eq!((second.reattached(), second.attached.version, second.attached.identity.1), (1, 2, 2));
        let mut third = first.clone();
        third.attach_newest().unwrap();
        assert_eq!((third.reattached(), third.attached.version, third.attached.identity.1), (0, 2, 2));
        assert!(Arc::ptr_eq(&third.attached, &first.attached) && third.conversation.is_none());
        // Whoever finds that nobody is there to read from has gone over all the same.
        first.shared.gone_ns.store(1, Ordering::Relaxed);
        first.shared.clock.advance(Duration::from_nanos(2));
        assert!(first.attach_newest().is_err());
        assert_eq!(first.reattached(), 2);
    }

    /// A server that rings all the time and never answers keeps nobody awake past the deadline; what it rings with is
    /// not kept.
    #[test]
    fn rings_after_the_deadline() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let allowed = Duration::from_secs(3);
        let mut link = SocketLink { stream, input: Vec::new(), allowed };
        server.write_all(&[0; 5]).unwrap();
        let late = link.sleep(Instant::now());
        assert!(matches!(late, Err(LinkError::Deadline(bound)) if bound == allowed), "{late:?}");
        link.sleep(Instant::now() + Duration::from_secs(60)).unwrap();
        assert!(link.input.is_empty());
        drop(server);
        let gone = link.sleep(Instant::now() + Duration::from_secs(60));
        assert!(matches!(gone, Err(LinkError::HungUp)), "{gone:?}");
    }

    /// The watching thread has ended when the last handle has been dropped.
    #[test]
    fn the_watcher_goes_with_the_last_handle() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::default() };
        let _server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let first = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let alarm = Arc::downgrade(&first.watcher.as_ref().unwrap().alarm);
        let second = first.clone();
        drop(first);
        assert_eq!(alarm.strong_count(), 2, "that of the thread, and that of who wakes it");
        drop(second);
        assert_eq!(alarm.strong_count(), 0);
    }

    /// A client that is dropped while its server is gone takes its thread and its mapping along.
    #[test]
    fn nothing_is_left_of_a_client_without_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::default() };
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

    /// Requests by mailbox that follow each other at once are not preceded by a look at the socket, unless one is to be
    /// turned down here: somebody who asks for nothing else would never notice the next server.
    #[test]
    fn a_request_that_is_not_sent_looks_for_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let serve = |value_max| {
            let table = Config { size: TableSize::Keys(10), value_max, ..Config::default() };
            let config = ServerConfig::new(Address::Shm(socket.clone()), table);
            Server::start(ServerConfig { mailbox: true, ..config }).unwrap()
        };
        let put = |value| Request::Put { mode: PutMode::Upsert, key: b"key", value };
        for requests in [RequestPath::Message, RequestPath::Mailbox] {
            let server = serve(8);
            let options = ClientOptions { requests, ..ClientOptions::default() };
            let mut handle = ShmHandle::connect(&socket, &options).unwrap();
            // The same for all conversations: each begins when the one before did.
            let deadline = Instant::now() + Duration::from_secs(60);
            let too_long = [Reply::Put(Err(PutError::ValueLength { given: 50, max: 8 }))];
            for _ in 0..3 {
                assert_eq!(handle.converse(&[put(&[1; 50])], deadline).unwrap(), too_long);
                assert_eq!(handle.converse(&[put(&[1; 5])], deadline).unwrap().len(), 1);
            }
            server.stop();
            let server = serve(100);
            let inserted = [Reply::Put(Ok(PutOutcome::Inserted))];
            assert_eq!(handle.converse(&[put(&[1; 50])], deadline).unwrap(), inserted);
            server.stop();
            // Nobody is there to say what would be too long.
            let error = handle.converse(&[put(&[1; 101])], deadline).unwrap_err();
            assert!(matches!(error, MutateError::Connect(ConnectError::NotThere { .. })), "{error}");
        }
    }
}
