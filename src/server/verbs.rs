//! The server over verbs: a registered region, an acceptor (TCP) where clients join, and workers
//! that answer their messages. GETs involve none of these threads.
//!
//! Each worker has one completion queue and one shared receive queue for all its clients. A client
//! may have [`MESSAGES`] unanswered messages, and that many receives are posted for it when it
//! joins. So every message finds a receive in the queue, however much other clients send.

#![allow(unsafe_code)]

use super::caller::{Caller, Role};
use super::chunks::{self, RegisteredChunks, StartedChunks};
use super::end::Thread;
use super::shared::{ACCEPT_AGAIN, Admission, Peer, ServerState};
use crate::address::VerbsAddress;
#[cfg(feature = "herd")]
use crate::herd;
use crate::layout::geometry::Geometry;
use crate::layout::superblock::SUPERBLOCK_WORDS;
use crate::outcome::with_causes;
use crate::start::{Start, StartProgress, StartStep};
use crate::verbs::bootstrap::MESSAGES_MAX;
use crate::verbs::bootstrap::{self, Challenge, Descriptor, Join, JoinAnswer, Nonce, Welcome};
use crate::verbs::device::{
    Access, Buffer, CompletionQueue, Depth, DeviceEvent, QueuePair, RegisteredRegion, SharedReceives,
    Transport, Work, WorkKind, succeeded,
};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use crate::verbs::station::Station;
use crate::verbs::{Token, Wait};
use crate::wire;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Waker};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Most unanswered messages of a client.
const MESSAGES: usize = 8;
const _: () = assert!(MESSAGES <= MESSAGES_MAX);
/// Most clients that may be joining at the same time. They have proven nothing yet, so for one more
/// another gives way ([`gives_way`]).
const JOINING_MAX: usize = 256;
/// Time for one client's messages per turn.
const TURN_TIME: Duration = Duration::from_millis(2);
/// Time that a client's resources are kept after it has gone, if the device does not report that
/// its queue pair has taken its last receive. (Some devices report that only when the queue pair is
/// destroyed.) Far longer than any completion takes.
const LAST_RECEIVE_WITHIN: Duration = Duration::from_millis(100);
/// Time between checks for traces that no worker knows of.
const IDLE: Duration = Duration::from_secs(1);

const LISTENER: mio::Token = mio::Token(0);
const WAKER: mio::Token = mio::Token(1);
const COMPLETIONS: mio::Token = mio::Token(2);
const EVENTS: mio::Token = mio::Token(3);
const FIRST_CLIENT: usize = 4;

/// The state that all threads of a verbs server share.
pub(crate) struct VerbsServer {
    shared: Arc<ServerState>,
    station: Arc<Station>,
    region: RegisteredRegion,
    /// The chunks of a table that grows, which stay registered.
    _chunks: Option<Arc<RegisteredChunks>>,
    superblock: Vec<u64>,
    token: Token,
    read_token: Token,
    message_bytes: usize,
    wait: Wait,
    #[cfg(feature = "herd")]
    herd: Option<herd::server::HerdAcceptor>,
}

/// Options of a verbs server.
pub(crate) struct VerbsServing {
    pub token: Token,
    pub read_token: Token,
    pub wait: Wait,
    #[cfg(feature = "herd")]
    pub herd: bool,
    pub workers: usize,
    pub progress: Option<fn(StartProgress)>,
}

/// Registers the region, listens, and starts the acceptor and the workers. Returns the address with
/// the port that clients connect to. `all` receives the started threads, also after an error.
pub(crate) fn start(
    shared: Arc<ServerState>,
    address: &VerbsAddress,
    how: VerbsServing,
    all: &mut Vec<Thread>,
) -> Result<VerbsAddress, SetupError> {
    let listen = |source: io::Error| SetupError::Listen {
        address: crate::verbs::host_and_port(address.host(), address.port()),
        source: Arc::new(source),
    };
    let mut places = (address.host(), address.port()).to_socket_addrs().map_err(listen)?;
    let place = places.next().ok_or_else(|| listen(io::Error::other("the name has no address")))?;
    let listener = TcpListener::bind(place).map_err(listen)?;
    let port = listener.local_addr().map_err(listen)?.port();

    let near = Some(place.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
    let station = Station::open(address.device(), near)?;
    tracing::info!(device = station.domain().context().name(), why = station.why(), "verbs");
    let geometry = shared.index.geometry();
    let message_bytes = message_bytes(geometry);
    let (region, chunks) = register(&station, &shared, how.progress)?;
    let (chunks, chunk_thread) = chunks.unzip();
    let superblock = (0..SUPERBLOCK_WORDS).map(|word| shared.index.region().load(word)).collect();
    let VerbsServing { token, read_token, wait, workers, .. } = how;
    #[cfg(feature = "herd")]
    let (herd, herd_threads) =
        how.herd.then(|| herd::server::HerdAcceptor::open(&shared, &station, workers)).transpose()?.unzip();
    let host = Arc::new(VerbsServer {
        shared,
        station,
        region,
        _chunks: chunks,
        superblock,
        token,
        read_token,
        message_bytes,
        wait,
        #[cfg(feature = "herd")]
        herd,
    });

    let threads =
        |e: io::Error| SetupError::Call { call: "starting threads", errno: e.raw_os_error().unwrap_or(0) };
    let mut inboxes = Vec::new();
    for number in 0..workers.max(1) {
        let (worker, inbox) = VerbsWorker::new(host.clone())?;
        let thread = std::thread::Builder::new()
            .name(format!("oneread-{number}"))
            .spawn(move || worker.run())
            .map_err(threads)?;
        all.push((Some(inbox.waker.clone()), thread));
        inboxes.push(inbox);
    }
    let (acceptor, waker) = Acceptor::new(host, listener, inboxes).map_err(threads)?;
    let thread = std::thread::Builder::new()
        .name("oneread-acceptor".into())
        .spawn(move || acceptor.run())
        .map_err(threads)?;
    all.push((Some(waker), thread));
    // These threads end with the last of the threads above: nobody asks them for anything any more.
    all.extend(chunk_thread.map(|thread| (None, thread)));
    #[cfg(feature = "herd")]
    all.extend(herd_threads.into_iter().flatten().map(|thread| (None, thread)));
    Ok(address.with_port(port))
}

/// Registers the region, or what is used of it if the table grows, and reports the progress.
fn register(
    station: &Arc<Station>,
    shared: &Arc<ServerState>,
    progress: Option<fn(StartProgress)>,
) -> Result<(RegisteredRegion, Option<StartedChunks>), SetupError> {
    let geometry = shared.index.geometry();
    let start = Start { tell: progress, ..Start::default() };
    let front = if geometry.grows() {
        geometry.slot_offset(geometry.segment_first(0))
    } else {
        shared.index.region().bytes()
    };
    let region =
        start.step(StartStep::Register, front, |done| chunks::register(station, shared, 0..front, done))?;
    if !geometry.grows() {
        return Ok((region, None));
    }
    let bytes = chunks::bytes_in_use(shared);
    let step = |done: &mut dyn FnMut(u64)| RegisteredChunks::start(station, shared, done);
    let chunks = start.step(StartStep::Register, bytes, step)?;
    Ok((region, Some(chunks)))
}

/// Size of a message: room for the largest request, the largest answer, and dozens of small ones.
fn message_bytes(geometry: &Geometry) -> usize {
    const USUAL: usize = 4096;
    wire::request_bytes_max(geometry).max(wire::reply_bytes_max(geometry)).max(USUAL)
}

// ---- the acceptor -------------------------------------------------------------------------------

/// Lets clients join. One thread for all, which does not wait for a slow client. (The kernel may
/// resolve a client's address while it connects the client's queue pair. That takes up to a second
/// if the client cannot be reached.)
struct Acceptor {
    host: Arc<VerbsServer>,
    poll: Poll,
    listener: TcpListener,
    joining: HashMap<mio::Token, PendingSession>,
    next: usize,
    inboxes: Vec<WorkerInbox>,
}

/// A client that has not joined yet.
struct PendingSession {
    stream: TcpStream,
    host: IpAddr,
    nonce: Nonce,
    input: Vec<u8>,
    since: Instant,
}

/// The acceptor's end of a worker.
struct WorkerInbox {
    queue: Arc<CompletionQueue>,
    receives: Arc<SharedReceives>,
    clients: Arc<AtomicUsize>,
    events: mpsc::Sender<WorkerEvent>,
    waker: Arc<Waker>,
}

/// A message from the acceptor to a worker.
enum WorkerEvent {
    Joined(Box<VerbsSession>),
    /// The device reports this for a queue pair, which may belong to another worker.
    LastReceive {
        number: u32,
    },
}

impl WorkerInbox {
    /// Number of clients that its queues have room for.
    fn room(&self) -> usize {
        (self.queue.capacity() as usize / (2 * MESSAGES)).min(self.receives.capacity() as usize / MESSAGES)
    }
}

impl Acceptor {
    fn new(
        host: Arc<VerbsServer>,
        mut listener: TcpListener,
        inboxes: Vec<WorkerInbox>,
    ) -> io::Result<(Acceptor, Arc<Waker>)> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let events = host.station.domain().context().events_fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&events), EVENTS, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok((Acceptor { host, poll, listener, joining: HashMap::new(), next: FIRST_CLIENT, inboxes }, waker))
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut more = false;
        let join_within = self.host.shared.half_open;
        while !self.host.shared.is_stopping() {
            let timeout = match more {
                true => Some(ACCEPT_AGAIN),
                false => (!self.joining.is_empty()).then_some(join_within / 4),
            };
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                return tracing::error!(error = %e, "polling failed; no more clients are let in");
            }
            for token in events.iter().map(|event| event.token()).collect::<Vec<_>>() {
                match token {
                    LISTENER => more = true,
                    WAKER => {}
                    EVENTS => self.take_events(),
                    token => self.listen_to(token),
                }
            }
            if more {
                more = self.accept_some();
            }
            self.joining.retain(|_, client| client.since.elapsed() < join_within);
        }
        // Nobody connects any more, also if a child made by `fork` has the same listener.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Takes the device's events, and passes on those for the workers.
    fn take_events(&self) {
        while let Some(event) = self.host.station.domain().context().next_event() {
            tracing::debug!(?event, "from the device");
            let DeviceEvent::LastReceive { number } = event else { continue };
            for inbox in &self.inboxes {
                let _ = inbox.events.send(WorkerEvent::LastReceive { number });
                let _ = inbox.waker.wake();
            }
        }
    }

    /// Accepts waiting clients, but a limited number, so that joining ones do not starve. Returns
    /// whether there may be more.
    fn accept_some(&mut self) -> bool {
        for _ in 0..JOINING_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.accept(stream, peer.ip()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => {
                    // For example, out of descriptors until one of the joining clients gives up.
                    tracing::warn!(error = %e, "accepting a client failed; trying again");
                    return true;
                }
            }
        }
        true
    }

    fn accept(&mut self, mut stream: TcpStream, host: IpAddr) {
        if self.joining.len() >= JOINING_MAX {
            let joining = self.joining.iter().map(|(token, client)| (*token, client.host, client.since));
            if let Some(gone) = gives_way(joining).and_then(|token| self.joining.remove(&token)) {
                self.host.shared.warn_of(&gone.host, "too many are joining, of this host most");
            }
        }
        let _ = stream.set_nodelay(true);
        crate::verbs::keep_alive(&stream);
        let Ok(nonce) = bootstrap::nonce() else { return };
        #[cfg(feature = "herd")]
        let extension = self.host.herd.as_ref().map(|acceptor| herd::told(&acceptor.offer()));
        #[cfg(not(feature = "herd"))]
        let extension = None;
        let challenge =
            Challenge { oneread: bootstrap::NAME.into(), version: bootstrap::VERSION, nonce, extension };
        let token = mio::Token(self.next);
        self.next += 1;
        // The socket's buffer is empty, so these few bytes are sent whole or not at all.
        let sent = stream.write(&bootstrap::encode(&challenge));
        let watched = self.poll.registry().register(&mut stream, token, Interest::READABLE);
        if sent.is_ok() && watched.is_ok() {
            let since = Instant::now();
            self.joining.insert(token, PendingSession { stream, host, nonce, input: Vec::new(), since });
        }
    }

    fn listen_to(&mut self, token: mio::Token) {
        let Some(client) = self.joining.get_mut(&token) else { return };
        let mut join = match client.hear() {
            Ok(None) => return,
            Ok(Some(join)) => join,
            Err(why) => {
                tracing::debug!(%why, "a client that did not join");
                self.joining.remove(&token);
                return;
            }
        };
        let Some(PendingSession { mut stream, nonce, .. }) = self.joining.remove(&token) else { return };
        let _ = self.poll.registry().deregister(&mut stream);
        if let Err((token, why, mut stream)) = self.admit(stream, &nonce, &mut join) {
            self.host.shared.warn_of(&stream.peer_addr().ok(), &why);
            let _ = stream.write(&bootstrap::encode(&JoinAnswer::Refused { token, why }));
        }
    }

    /// Makes the client's queue pair and hands it to a worker.
    fn admit(
        &self,
        stream: TcpStream,
        nonce: &Nonce,
        join: &mut Join,
    ) -> Result<(), (bool, String, TcpStream)> {
        let host = &self.host;
        if join.version != bootstrap::VERSION {
            let why = format!("it speaks version {}, the server {}", join.version, bootstrap::VERSION);
            return Err((false, why, stream));
        }
        let theirs = join.nonce;
        let proof = join.proof;
        let mut knows = |token: &Token| {
            join.proof = proof;
            bootstrap::is_proven(token, nonce, &theirs, join)
        };
        let role = if knows(&host.token) {
            Role::Change
        } else if !host.read_token.is_empty() && knows(&host.read_token) {
            Role::Read
        } else {
            return Err((true, "its token is not the server's".into(), stream));
        };
        let peer = match stream.peer_addr() {
            Ok(peer) => Peer::Host(peer.ip()),
            Err(e) => return Err((false, e.to_string(), stream)),
        };
        let inbox = self.inboxes.iter().min_by_key(|inbox| inbox.clients.load(Ordering::Relaxed));
        let inbox = inbox.expect("a host has workers");
        if inbox.clients.load(Ordering::Relaxed) >= inbox.room() {
            return Err((false, "the server's device has as many clients as it can take".into(), stream));
        }
        let admission = match host.shared.admit(peer) {
            Ok(admission) => admission,
            Err(why) => return Err((false, why.to_string(), stream)),
        };
        let client = host.client_for(inbox, join, nonce, stream, role, admission);
        client
            .map(|client| {
                inbox.clients.fetch_add(1, Ordering::Relaxed);
                // The worker learns of the client before the client learns that it has joined. The
                // inbox of a worker that has ended is closed for good.
                if inbox.events.send(WorkerEvent::Joined(Box::new(client))).is_err() {
                    inbox.clients.store(usize::MAX / 2, Ordering::Relaxed);
                }
                let _ = inbox.waker.wake();
            })
            .map_err(|(why, stream)| (false, why, stream))
    }
}

/// Which of those who are joining gives way to one more: of the host that has most of them, who has
/// taken longest. So a host without a token does not keep others from joining.
fn gives_way<T: Copy>(joining: impl Iterator<Item = (T, IpAddr, Instant)> + Clone) -> Option<T> {
    let mut of_host = HashMap::new();
    joining.clone().for_each(|(_, host, _)| *of_host.entry(host).or_insert(0) += 1);
    joining.max_by_key(|(_, host, since)| (of_host[host], Reverse(*since))).map(|(who, ..)| who)
}

impl PendingSession {
    /// Returns the client's message, once it is complete.
    fn hear(&mut self) -> Result<Option<Join>, String> {
        let joined = |input: &[u8]| bootstrap::decode(input).map_err(|e| with_causes(&e));
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("hung up".into()),
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return joined(&self.input);
                }
                Err(e) => return Err(e.to_string()),
            }
            // Checked after each chunk, so that a message that is too long is refused before it is
            // collected.
            if let Some(join) = joined(&self.input)? {
                return Ok(Some(join));
            }
        }
    }
}

impl VerbsServer {
    fn client_for(
        &self,
        inbox: &WorkerInbox,
        join: &Join,
        nonce: &Nonce,
        stream: TcpStream,
        role: Role,
        admission: Admission,
    ) -> Result<VerbsSession, (String, TcpStream)> {
        let made = || -> Result<_, SetupError> {
            let domain = self.station.domain();
            let mut pair = QueuePair::new(
                domain.clone(),
                inbox.queue.clone(),
                Some(inbox.receives.clone()),
                Transport::Rc,
                Depth { sends: MESSAGES as u32, receives: 0 },
                self.station.route().clone(),
            )?;
            pair.connect(&join.endpoint, Access::RemoteRead)?;
            let outgoing = Buffer::new(domain.clone(), MESSAGES, self.message_bytes, Access::Local)?;
            Ok((pair, outgoing))
        };
        let mtu = join.endpoint.mtu;
        if !crate::verbs::is_mtu(mtu) {
            return Err((format!("{mtu} bytes is no path MTU"), stream));
        }
        if let Err(why) = self.station.check(&join.endpoint.at, join.network) {
            return Err((format!("{why} (\"this side\" being the server's)"), stream));
        }
        let (pair, outgoing) = match made() {
            Ok(made) => made,
            Err(error) => {
                let why = with_causes(&error);
                return Err((format!("the server's queue pair cannot be connected: {why}"), stream));
            }
        };
        #[cfg(feature = "herd")]
        let (seating, extension) =
            match herd::server::admit(self.herd.as_ref(), join.extension.as_ref(), role) {
                Ok(admitted) => admitted,
                Err(why) => return Err((why, stream)),
            };
        #[cfg(not(feature = "herd"))]
        let extension = None;
        #[cfg(not(feature = "herd"))]
        if join.extension.is_some() {
            return Err(("it asks for what this server does not serve".into(), stream));
        }
        let mut welcome = Welcome {
            proof: Default::default(),
            endpoint: pair.endpoint(),
            region: Descriptor {
                address: self.region.address(),
                key: self.region.remote_key(),
                bytes: self.shared.index.region().bytes(),
            },
            superblock: self.superblock.clone(),
            messages: MESSAGES as u16,
            message_bytes: self.message_bytes as u32,
            network: self.station.network(),
            extension,
        };
        let token = if role == Role::Change { &self.token } else { &self.read_token };
        bootstrap::prove(token, nonce, &join.nonce, &mut welcome);
        let welcome = JoinAnswer::Welcome(Box::new(welcome));
        let free = (0..MESSAGES).collect();
        let welcome = bootstrap::encode(&welcome);
        let (requests, ready) = (VecDeque::new(), VecDeque::new());
        Ok(VerbsSession {
            pair,
            outgoing,
            stream,
            caller: Caller::new(role),
            _admission: admission,
            welcome,
            free,
            requests,
            answer: Vec::new(),
            ready,
            is_spent: false,
            #[cfg(feature = "herd")]
            seating,
        })
    }
}

// ---- workers ------------------------------------------------------------------------------------

/// A client that has joined.
struct VerbsSession {
    // The queue pair is dropped before the buffer that its work requests name.
    pair: QueuePair,
    outgoing: Buffer,
    /// Its end shows that the client is gone.
    stream: TcpStream,
    caller: Caller,
    /// It counts as a connection until it is dropped.
    _admission: Admission,
    /// Sent once the worker has taken the client.
    welcome: Vec<u8>,
    /// Slots of `outgoing` whose SENDs have completed.
    free: Vec<usize>,
    /// Messages received: receive slot, length, bytes answered.
    requests: VecDeque<ReceivedMessage>,
    /// The answer to the first of `requests`, so far.
    answer: Vec<u8>,
    /// Answers that wait for a free slot of `outgoing`.
    ready: VecDeque<Vec<u8>>,
    /// Whether its queue pair has taken its last receive.
    is_spent: bool,
    /// HERD's workers poll for the client while this exists.
    #[cfg(feature = "herd")]
    seating: Option<herd::server::HerdLease>,
}

struct ReceivedMessage {
    slot: usize,
    length: usize,
    done: usize,
}

/// A client that is gone. It is kept until all completions of its queue pair have been taken.
struct Leaving {
    client: Box<VerbsSession>,
    /// When all of them have completed.
    ends: Instant,
}

/// Answers the messages of its clients.
struct VerbsWorker {
    host: Arc<VerbsServer>,
    poll: Poll,
    // Clients' queue pairs are dropped before the receives they draw from.
    clients: HashMap<u32, Box<VerbsSession>>,
    leaving: Vec<Leaving>,
    by_token: HashMap<mio::Token, u32>,
    next: usize,
    events: mpsc::Receiver<WorkerEvent>,
    count: Arc<AtomicUsize>,
    queue: Arc<CompletionQueue>,
    receives: Arc<SharedReceives>,
    /// Buffers for messages to land in. Slots are numbered through all of them.
    landing: Vec<Buffer>,
    /// Clients with unanswered messages, each once.
    turns: VecDeque<u32>,
}

impl VerbsWorker {
    fn new(host: Arc<VerbsServer>) -> Result<(VerbsWorker, WorkerInbox), SetupError> {
        let context = host.station.domain().context();
        // Room for `clients_max` clients, as far as the device allows. The device's own limit may
        // be millions, and the memory for them would be locked at once.
        let room = |for_one: usize, limit: i32| {
            let for_all = host.shared.clients_max.saturating_mul(for_one as u64);
            for_all.clamp(1, limit.max(1) as u64) as u32
        };
        let limits = context.limits();
        let queue = CompletionQueue::new(context.clone(), room(2 * MESSAGES, limits.max_cqe))?;
        let receives = SharedReceives::new(host.station.domain().clone(), room(MESSAGES, limits.max_srq_wr))?;
        let os = |e: io::Error| SetupError::Call { call: "epoll", errno: e.raw_os_error().unwrap_or(0) };
        let poll = Poll::new().map_err(os)?;
        let fd = queue.fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), COMPLETIONS, Interest::READABLE).map_err(os)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(os)?);
        let (sender, events) = mpsc::channel();
        let count = Arc::new(AtomicUsize::new(0));
        let inbox = WorkerInbox {
            queue: queue.clone(),
            receives: receives.clone(),
            clients: count.clone(),
            events: sender,
            waker,
        };
        let worker = VerbsWorker {
            host,
            poll,
            clients: HashMap::new(),
            leaving: Vec::new(),
            by_token: HashMap::new(),
            next: FIRST_CLIENT,
            events,
            count,
            queue,
            receives,
            landing: Vec::new(),
            turns: VecDeque::new(),
        };
        Ok((worker, inbox))
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(64);
        if let Err(error) = self.serve(&mut events) {
            tracing::error!(%error, "the device or the event queue failed; this worker ends");
        }
        // Their ends are heard, also where a child made by `fork` has the same descriptors.
        for session in self.clients.values() {
            let _ = session.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn serve(&mut self, events: &mut Events) -> Result<(), Box<dyn std::error::Error>> {
        /// Rounds, busy or not, between checks of descriptors and traces.
        const ROUNDS: u32 = 1024;
        let mut rounds = 0;
        while !self.host.shared.is_stopping() {
            let busy = self.take_completions()? | self.take_turns();
            rounds += 1;
            if rounds < ROUNDS && (busy || self.host.wait == Wait::Poll) {
                std::hint::spin_loop();
                continue;
            }
            rounds = 0;
            let tidy = self.host.shared.index.tidy();
            self.host.shared.looks_now();
            let timeout = match self.host.wait {
                Wait::Poll => Duration::ZERO,
                Wait::Block if busy => Duration::ZERO,
                Wait::Block => {
                    // A completion between the last poll and arming does not wake the worker, so
                    // poll once more.
                    self.queue.arm()?;
                    let busy = self.take_completions()?;
                    if busy { Duration::ZERO } else { tidy.unwrap_or(IDLE).min(self.idle()) }
                }
            };
            match self.poll.poll(events, Some(timeout)) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e.into()),
                _ => {}
            }
            for token in events.iter().map(|event| event.token()).collect::<Vec<_>>() {
                match token {
                    WAKER => self.hear_news(),
                    COMPLETIONS => self.queue.take_events(),
                    token => self.look_after(token),
                }
            }
            if self.host.wait == Wait::Poll {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    // ---- clients come and go --------------------------------------------------------------------

    /// Longest time that the worker may sleep.
    fn idle(&self) -> Duration {
        let now = Instant::now();
        self.leaving
            .iter()
            .map(|gone| gone.ends.saturating_duration_since(now))
            .min()
            .unwrap_or(IDLE)
            .min(IDLE)
    }

    fn hear_news(&mut self) {
        while let Ok(events) = self.events.try_recv() {
            match events {
                WorkerEvent::Joined(client) => {
                    let number = client.pair.number();
                    if let Err(why) = self.adopt(client) {
                        tracing::warn!(%why, number, "a client could not be taken in");
                        self.count.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                WorkerEvent::LastReceive { number } => {
                    if let Some(client) = self.clients.get_mut(&number) {
                        client.is_spent = true;
                    }
                    if let Some(gone) =
                        self.leaving.iter_mut().find(|gone| gone.client.pair.number() == number)
                    {
                        gone.ends = Instant::now();
                    }
                }
            }
        }
    }

    fn adopt(&mut self, mut client: Box<VerbsSession>) -> Result<(), String> {
        // One receive for each message that all clients together may have unanswered.
        while self.landing.len() <= self.clients.len() + self.leaving.len() {
            self.post_receives().map_err(|e| e.to_string())?;
        }
        let token = mio::Token(self.next);
        self.next += 1;
        let registry: &Registry = self.poll.registry();
        registry.register(&mut client.stream, token, Interest::READABLE).map_err(|e| e.to_string())?;
        let number = client.pair.number();
        // The socket's buffer is empty, so this is sent whole or not at all.
        let welcome = std::mem::take(&mut client.welcome);
        if client.stream.write(&welcome).map_err(|e| e.to_string())? != welcome.len() {
            return Err("its socket took half a welcome".into());
        }
        self.by_token.insert(token, number);
        self.clients.insert(number, client);
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let buffer = Buffer::new(
            self.host.station.domain().clone(),
            MESSAGES,
            self.host.message_bytes,
            Access::Local,
        )?;
        let first = self.landing.len() * MESSAGES;
        self.landing.push(buffer);
        for slot in first..first + MESSAGES {
            self.post_receive(slot)?;
        }
        Ok(())
    }

    fn post_receive(&self, slot: usize) -> Result<(), VerbsError> {
        post_receive(&self.landing, &self.receives, slot)
    }

    /// Called when a client's TCP connection is readable, which normally means that the client is
    /// gone.
    fn look_after(&mut self, token: mio::Token) {
        let Some(&number) = self.by_token.get(&token) else { return };
        let gone = match self.clients.get_mut(&number) {
            None => true,
            Some(client) => match client.stream.read(&mut [0; 64]) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
                // After the handshake, only the end of the connection is expected.
                _ => true,
            },
        };
        if gone {
            self.drop_client(number, "it hung up");
        }
    }

    /// Drops a client, and keeps its queue pair for some time. The queue pair has taken receives
    /// whose completions have not been seen, and may be taking another one. If it were destroyed
    /// now, those receives would be lost and could not be posted again. The device reports when the
    /// queue pair has taken its last receive.
    fn drop_client(&mut self, number: u32, why: &str) {
        let Some(mut client) = self.clients.remove(&number) else { return };
        tracing::debug!(number, why, "a client is gone");
        self.by_token.retain(|_, of| *of != number);
        client.pair.fail();
        #[cfg(feature = "herd")]
        {
            client.seating = None;
        }
        for request in client.requests.drain(..) {
            let _ = self.post_receive(request.slot);
        }
        let ends = Instant::now() + if client.is_spent { Duration::ZERO } else { LAST_RECEIVE_WITHIN };
        self.leaving.push(Leaving { client, ends });
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Takes completions. Returns whether there were any.
    fn take_completions(&mut self) -> Result<bool, VerbsError> {
        let mut completions = [Completion::default(); 32];
        let polled_at = (!self.leaving.is_empty()).then(Instant::now);
        let n = self.queue.poll(&mut completions)?;
        for completion in &completions[..n] {
            self.take(completion);
        }
        if let Some(polled_at) = polled_at.filter(|_| n < completions.len()) {
            // Completions from before that time have been taken.
            let leaving = self.leaving.len();
            self.leaving.retain(|gone| gone.ends > polled_at);
            self.count.fetch_sub(leaving - self.leaving.len(), Ordering::Relaxed);
        }
        Ok(n > 0)
    }

    fn take(&mut self, completion: &Completion) {
        let number = completion.qp_num;
        let (is_send, slot) = (completion.wr_id() & SEND != 0, (completion.wr_id() & !SEND) as usize);
        let what = if is_send { "SEND" } else { "RECV" };
        let failed = succeeded(completion, what).err();
        match (self.clients.get_mut(&number), failed) {
            (Some(client), None) if is_send => {
                client.free.push(slot);
                if let Err(error) = client.flush() {
                    self.drop_client(number, &error.to_string());
                }
            }
            (Some(client), None) if client.requests.len() + client.ready.len() >= MESSAGES => {
                let _ = self.post_receive(slot);
                self.drop_client(number, "it has more messages unanswered than it may");
            }
            (Some(client), None) => {
                client.requests.push_back(ReceivedMessage { slot, length: completion.len(), done: 0 });
                if client.requests.len() == 1 {
                    self.turns.push_back(number);
                }
            }
            (_, failed) => {
                // A message of a client that is gone, or a failed completion.
                if !is_send {
                    let _ = self.post_receive(slot);
                }
                if let Some(error) = failed {
                    self.drop_client(number, &error.to_string());
                }
            }
        }
    }

    /// Gives the next client its turn. Returns whether there was one.
    fn take_turns(&mut self) -> bool {
        let Some(number) = self.turns.pop_front() else { return false };
        match self.turn(number) {
            Ok(true) => self.turns.push_back(number),
            Ok(false) => {}
            Err(why) => self.drop_client(number, &why),
        }
        true
    }

    /// Answers a client's messages for at most one turn. Returns whether there are more.
    fn turn(&mut self, number: u32) -> Result<bool, String> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(false) };
        let ends = Instant::now() + TURN_TIME;
        while let Some(request) = client.requests.front_mut() {
            let buffer = &self.landing[request.slot / MESSAGES];
            // SAFETY: the receive has completed, and is posted again only below.
            let message = unsafe { buffer.bytes(request.slot % MESSAGES, request.length) };
            while request.done < message.len() {
                if Instant::now() >= ends {
                    return Ok(true);
                }
                let frame = wire::decode(&message[request.done..]).map_err(|e| e.to_string())?;
                let frame = frame.ok_or("it sent half a frame")?;
                let asked = wire::Request::decode(&frame).map_err(|e| e.to_string())?;
                let reply = self
                    .host
                    .shared
                    .answer(&mut client.caller, asked)
                    .ok_or("it said hello twice, or asked for slots")?;
                reply.encode(frame.id, &mut client.answer);
                request.done += frame.length;
            }
            if client.answer.len() > client.outgoing.cell_bytes() {
                return Err("it asked for more than an answer holds".into());
            }
            let slot = request.slot;
            client.requests.pop_front();
            let answer = std::mem::take(&mut client.answer);
            client.ready.push_back(answer);
            // Posted before the client learns that it may send another message.
            post_receive(&self.landing, &self.receives, slot).map_err(|e| e.to_string())?;
            client.flush().map_err(|e| e.to_string())?;
        }
        Ok(false)
    }
}

/// Posts a receive into a worker's slot. The slot must be new, or its message answered or dropped,
/// so that nothing borrows from it.
fn post_receive(landing: &[Buffer], receives: &SharedReceives, slot: usize) -> Result<(), VerbsError> {
    let buffer = &landing[slot / MESSAGES];
    let element = buffer.element(slot % MESSAGES, buffer.cell_bytes());
    // SAFETY: as required above; buffers live until the worker's last queue pair is gone.
    unsafe { receives.post(slot as u64, element) }
}

/// Marks work requests that are SENDs.
const SEND: u64 = 1 << 63;

impl VerbsSession {
    /// Sends answers while there are free slots.
    fn flush(&mut self) -> Result<(), VerbsError> {
        while let (Some(&slot), Some(answer)) = (self.free.last(), self.ready.front()) {
            // SAFETY: the slot is free: its last SEND has completed.
            let bytes = unsafe { self.outgoing.fill(slot, &[answer]) };
            let work = Work {
                id: SEND | slot as u64,
                element: self.outgoing.element(slot, bytes),
                kind: WorkKind::Send,
                signalled: true,
            };
            // SAFETY: as above; it is written again only once it is free.
            unsafe { self.pair.post([work]) }?;
            self.free.pop();
            self.ready.pop_front();
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Of many strangers of one host the oldest gives way, not a client of another, which came before all of
    /// them or after. Where each host has one, it is the oldest of all.
    #[test]
    fn the_host_with_most_gives_way() {
        let (stranger, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let begun = Instant::now();
        let of = |all: &[(IpAddr, u64)]| {
            let all: Vec<_> =
                all.iter().map(|&(host, n)| (n, host, begun + Duration::from_secs(n))).collect();
            gives_way(all.iter().copied())
        };
        assert_eq!(of(&[(other, 1), (stranger, 5), (stranger, 3), (stranger, 4), (other, 9)]), Some(3));
        assert_eq!(of(&[(stranger, 2), (other, 1)]), Some(1));
        assert_eq!(of(&[]), None);
    }
}
