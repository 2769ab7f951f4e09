//! Tests that drive a worker step by step. It is the only worker, so no other one does its work.

use super::caller::Caller;
use super::mailbox::{MailboxMemory, ServerMailbox};
use super::shared::{MailboxCounters, Role};
use super::*;
use crate::config::TableSize;
use crate::layout::extent::{Expected, Reference};
use crate::mailbox::memory::{self, Mailbox};
use crate::mailbox::{glance, store};
use crate::outcome::{PutError, PutMode};
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Stream;

const HALF_OPEN: Duration = Duration::from_secs(10);

fn table() -> Config {
    Config { size: TableSize::Keys(10), key_max: 16, value_max: 32, ..Config::default() }
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The shared state of a server without workers.
pub(super) fn shared() -> ServerState {
    let config = ServerConfig::new(Address::Shm("nowhere".into()), table());
    ServerState {
        index: index_for(&config).unwrap().index,
        stopping: AtomicBool::new(false),
        clients: AtomicU64::new(0),
        clients_max: 10,
        clients_per_peer: 10,
        peers: Mutex::default(),
        allow_uids: vec![uid()],
        allow_read_uids: Vec::new(),
        half_open: HALF_OPEN,
        unread_bytes_max: 1 << 20,
        refusals: WarningLimit::default(),
        region_file: None,
        looks: WarningLimit::default(),
        is_loss_told: AtomicBool::new(false),
        mailbox_memory: MailboxMemory::new(config.mailbox_bytes_max),
        mailboxes: MailboxCounters::default(),
        saver: None,
    }
}

/// A worker that is not the first one, and the path of its socket.
struct Second {
    worker: ShmWorker,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Second {
    fn new(shared: ServerState) -> Second {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = Address::Shm(path.clone());
        let socket = Socket::new(&address, &path, listen(&address, &path).unwrap());
        let worker = ShmWorker::new(Arc::new(shared), Arc::new(socket), false).unwrap();
        Second { worker, path, _dir: dir }
    }

    fn connect(&self) -> Stream {
        let stream = Stream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A client that has been accepted, and its token.
    fn client(&mut self) -> (Stream, EventToken) {
        let (stream, token) = (self.connect(), EventToken(self.worker.next));
        self.worker.accept_all();
        assert!(self.worker.sessions.contains_key(&token));
        (stream, token)
    }

    /// A client that has also said hello.
    fn greeted(&mut self) -> (Stream, EventToken) {
        let (mut stream, token) = self.client();
        stream.write_all(&frame(&HELLO)).unwrap();
        self.worker.serve(token);
        assert_eq!(reply(&mut stream), Some(Reply::Welcome { version: PROTOCOL_VERSION }));
        (stream, token)
    }

    /// A client with a mailbox that is polled, and its end of the mailbox.
    fn served(&mut self) -> (Stream, EventToken, Mailbox) {
        let (stream, token) = self.greeted();
        let ServerState { index, mailbox_memory, .. } = &*self.worker.shared;
        let geometry = index.geometry();
        let (mut mailbox, memory) = ServerMailbox::new(mailbox_memory, geometry).unwrap().unwrap();
        let memory = Mailbox::map(memory, geometry).unwrap();
        assert!(mailbox.wakes());
        self.worker.sessions.get_mut(&token).unwrap().take_mailbox(mailbox);
        self.worker.awake.push(token);
        (stream, token, memory)
    }

    fn clients(&self) -> u64 {
        assert_eq!(self.worker.shared.stats().clients, self.worker.sessions.len() as u64);
        self.worker.sessions.len() as u64
    }

    fn mailbox_counts(&self) -> MailboxCounts {
        self.worker.shared.mailbox_counts()
    }

    /// Takes all events that are there now. They are not reported again.
    fn miss_events(&mut self) {
        let mut events = Events::with_capacity(256);
        while self.worker.poll.poll(&mut events, Some(Duration::ZERO)).is_ok() && !events.is_empty() {}
    }

    /// Runs the worker until `story` ends.
    fn run(self, story: impl FnOnce()) {
        let Second { worker, path, _dir } = self;
        let shared = worker.shared.clone();
        std::thread::scope(|scope| {
            /// Ends the worker even if a check fails, because the scope waits for it.
            struct Over<'a>(&'a ServerState, &'a Path);
            impl Drop for Over<'_> {
                fn drop(&mut self) {
                    self.0.stopping.store(true, Ordering::Release);
                    let _ = Stream::connect(self.1);
                }
            }
            let _over = Over(&shared, &path);
            scope.spawn(move || worker.run());
            story();
        });
        assert_eq!(shared.stats().clients, 0, "it leaves nobody behind");
    }
}

const HELLO: Request<'_> = Request::Hello { version: PROTOCOL_VERSION };
const GET: Request<'_> = Request::Get { key: b"key" };

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(1, &mut bytes);
    bytes
}

/// The next reply; `None` when the server hangs up instead.
fn reply(stream: &mut Stream) -> Option<Reply> {
    let mut head = [0; 16];
    match stream.read_exact(&mut head) {
        Ok(()) => {}
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            return None;
        }
        Err(e) => panic!("no reply and no end: {e}"),
    }
    let mut frame = head.to_vec();
    frame.resize(16 + u32::from_le_bytes(head[..4].try_into().unwrap()) as usize, 0);
    stream.read_exact(&mut frame[16..]).unwrap();
    Some(Reply::decode(&wire::decode(&frame).unwrap().unwrap()).unwrap())
}

/// A worker sleeps only until the next task that no event announces.
#[test]
fn a_worker_wakes_for_its_next_task() {
    let mut second = Second::new(shared());
    assert_eq!(second.worker.tidy(), None);
    second.worker.looks_around = true;
    assert_eq!(second.worker.tidy(), Some(Duration::from_secs(1)));
    second.worker.looks_around = false;
    let (mut stream, token) = second.client();
    assert_eq!(second.worker.tidy(), Some(Duration::from_millis(2_500)), "no hello");
    stream.write_all(&frame(&HELLO)).unwrap();
    second.worker.serve(token);
    assert_eq!(second.worker.tidy(), None);
    stream.write_all(&frame(&GET)[..1]).unwrap();
    second.worker.serve(token);
    assert_eq!(second.worker.tidy(), Some(Duration::from_millis(2_500)), "half a frame");
    second.worker.unfinished.push(token);
    assert_eq!(second.worker.tidy(), Some(Duration::ZERO));
    second.worker.unfinished.clear();
    second.worker.awake.push(token);
    assert_eq!(second.worker.tidy(), Some(Duration::ZERO));
    second.worker.awake.clear();
    second.worker.accept_again = Some(Instant::now() + Duration::from_secs(1));
    assert!(second.worker.tidy().unwrap() <= Duration::from_secs(1));
    second.worker.accept_again = Some(Instant::now());
    assert_eq!(second.worker.tidy(), Some(Duration::ZERO));
}

/// A client that is in the middle of a frame, or has not said hello, for too long is dropped. It is
/// not dropped earlier, nor if the rest has come meanwhile.
#[test]
fn clients_halfway_for_too_long_are_dropped() {
    let mut second = Second::new(shared());
    let mut silent = second.client().0;
    let mut idle = second.greeted().0;
    let [mut half, mut late] = [(); 2].map(|()| {
        let (mut stream, token) = second.greeted();
        stream.write_all(&frame(&GET)[..7]).unwrap();
        second.worker.serve(token);
        stream
    });
    let now = Instant::now();
    second.worker.drop_halfway(now + Duration::from_secs(9));
    assert_eq!(second.clients(), 4);
    late.write_all(&frame(&GET)[7..]).unwrap();
    second.worker.drop_halfway(now + Duration::from_secs(11));
    assert_eq!(second.clients(), 2);
    assert_eq!((reply(&mut silent), reply(&mut half)), (None, None));
    assert_eq!(reply(&mut late), Some(Reply::Value(None)));
    second.run(|| {
        for stream in [&mut idle, &mut late] {
            stream.write_all(&frame(&GET)).unwrap();
            assert_eq!(reply(stream), Some(Reply::Value(None)));
        }
    });
}

/// Each worker also does the work that no event announces: it drops clients that are halfway for
/// too long, answers requests left over from a turn, and accepts connections that it could not
/// accept before.
#[test]
fn work_without_an_event_is_done() {
    let mut second = Second::new(shared());
    let (mut silent, token) = second.client();
    let long_ago = Instant::now() - 2 * HALF_OPEN;
    second.worker.sessions.get_mut(&token).unwrap().be_halfway_since(long_ago);
    second.miss_events();
    second.run(|| assert_eq!(reply(&mut silent), None));

    let mut second = Second::new(shared());
    let (mut asking, token) = second.greeted();
    asking.write_all(&frame(&GET)).unwrap();
    second.miss_events();
    second.worker.unfinished.push(token);
    second.run(|| assert_eq!(reply(&mut asking), Some(Reply::Value(None))));

    let mut second = Second::new(shared());
    let mut waiting = second.connect();
    waiting.write_all(&frame(&HELLO)).unwrap();
    second.miss_events();
    second.worker.accept_again = Some(Instant::now() + Duration::from_millis(5));
    second.run(|| assert!(matches!(reply(&mut waiting), Some(Reply::Welcome { .. }))));
}

/// If a client's requests take longer than a turn, the others have their turn, and the rest is
/// answered later.
#[test]
fn requests_beyond_a_turn_are_answered_later() {
    const REQUESTS: usize = 100_000;
    let mut second = Second::new(shared());
    let (mut stream, token) = second.greeted();
    second.miss_events();
    let mut requests = frame(&GET).repeat(REQUESTS);
    requests.extend(frame(&Request::Put { mode: PutMode::Insert, key: b"last", value: b"value" }));
    second.worker.sessions.get_mut(&token).unwrap().has_read(&requests);
    second.worker.serve(token);
    assert_eq!(second.worker.unfinished, [token]);
    assert!(second.worker.shared.index.is_empty(), "so fast");
    second.run(|| {
        (0..REQUESTS).for_each(|_| assert_eq!(reply(&mut stream), Some(Reply::Value(None))));
        assert_eq!(reply(&mut stream), Some(Reply::Put(Ok(crate::outcome::PutOutcome::Inserted))));
    });
}

/// Connections that could not be accepted are tried again soon.
#[test]
fn a_failed_accept_is_repeated() {
    let mut second = Second::new(shared());
    // A socket that does not listen.
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    let bound = Bound::new(&second.path, socket.unwrap().into()).unwrap();
    second.worker.socket = Arc::new(Socket::new(&Address::Shm("nowhere".into()), &second.path, bound));
    second.worker.accept_all();
    assert!(second.worker.accept_again.is_some());
    assert!(second.worker.tidy().unwrap() <= Duration::from_millis(10));
}

/// Users may do what they were named for, root everything, and others nothing.
#[test]
fn users_have_roles() {
    let state = ServerState { allow_uids: vec![5], allow_read_uids: vec![5, 6, 0], ..shared() };
    let roles = [5, 6, 7, 0].map(|uid| state.role_of(uid));
    assert_eq!(roles, [Some(Role::Change), Some(Role::Read), None, Some(Role::Change)]);
}

/// Only clients of the named users, and of root, are accepted. The others get a refusal and do not count.
#[test]
fn clients_of_other_users_are_refused() {
    for (allow_uids, is_let_in) in [
        (vec![], false),
        (vec![uid() + 1], false),
        (vec![uid()], true),
        (vec![uid() + 1, uid(), uid() + 2], true),
    ] {
        let is_let_in = is_let_in || uid() == 0;
        let mut second = Second::new(ServerState { allow_uids, ..shared() });
        let mut stream = second.connect();
        second.worker.accept_all();
        assert_eq!(second.clients(), u64::from(is_let_in));
        if !is_let_in {
            let why = Refusal::User { uid: uid() };
            assert_eq!(reply(&mut stream), Some(Reply::TurnedAway(why)));
            assert_eq!(reply(&mut stream), None);
        }
    }
}

/// Who may only read changes nothing, by whatever request. The others are answered.
#[test]
fn readers_change_nothing() {
    let shared = shared();
    let mut caller = Caller::new(Role::Read);
    let (key, value, mode, len) = (&b"key"[..], &b"value"[..], PutMode::Upsert, 100);
    let place = Reference { number: 1, offset: 4096, len: 100, crc: 0 };
    for request in [
        Request::Put { mode, key, value },
        Request::Swap { key, expected: value, value },
        Request::SwapExtent { key, expected: place, value },
        Request::Remove { key },
        Request::Snapshot { begin: true },
        Request::Growth { shrink: true },
        Request::LongBegin { key, len },
        Request::LongPiece { bytes: value },
        Request::LongPut { mode, key },
        Request::LongSwap { key, expected: Expected::Extent(place) },
        Request::LongDrop,
    ] {
        assert_eq!(shared.answer(&mut caller, request), Some(Reply::Denied), "{request:?}");
    }
    for request in [
        Request::Get { key },
        Request::Stat,
        Request::Snapshot { begin: false },
        Request::Growth { shrink: false },
        Request::Heap,
    ] {
        let reply = shared.answer(&mut caller, request);
        assert!(reply.is_some_and(|reply| reply != Reply::Denied), "{request:?}");
    }
}

/// A client beyond the limit gets a refusal. When one has gone, there is room again.
#[test]
fn clients_beyond_the_limit_are_refused() {
    for clients_max in [0, 1, 3] {
        let mut second = Second::new(ServerState { clients_max, ..shared() });
        let mut streams: Vec<_> = (0..clients_max).map(|_| second.greeted()).collect();
        for _ in 0..2 {
            let mut refused = second.connect();
            second.worker.accept_all();
            assert_eq!(second.clients(), clients_max);
            let why = Refusal::ServerFull { max: clients_max };
            assert_eq!(reply(&mut refused), Some(Reply::TurnedAway(why)));
            assert_eq!(reply(&mut refused), None);
        }
        if let Some((stream, token)) = streams.pop() {
            drop(stream);
            second.worker.serve(token);
            assert_eq!(second.clients(), clients_max - 1);
            second.greeted();
        }
    }
}

/// A peer beyond its own limit is refused, and others are not. The server's own user has no such
/// limit. What has gone leaves room again, and nothing is kept about a peer that is gone.
#[test]
fn each_peer_has_a_limit() {
    let shared = Arc::new(ServerState { clients_per_peer: 2, clients_max: 6, ..shared() });
    let (one, other) = (Peer::User(uid() + 1), Peer::User(uid() + 2));
    let mut admitted: Vec<_> = (0..2).map(|_| shared.admit(one).unwrap()).collect();
    for _ in 0..2 {
        assert_eq!(shared.admit(one).unwrap_err(), Refusal::PeerFull { max: 2 });
    }
    let second = shared.admit(other).unwrap();
    admitted.pop();
    admitted.push(shared.admit(one).unwrap());
    assert_eq!(shared.admit(one).unwrap_err(), Refusal::PeerFull { max: 2 }, "one had stayed");
    let own: Vec<_> = (0..3).map(|_| shared.admit(Peer::User(uid())).unwrap()).collect();
    assert_eq!(shared.admit(other).unwrap_err(), Refusal::ServerFull { max: 6 });
    assert_eq!(shared.stats().clients, 6);
    drop((admitted, second, own));
    assert_eq!((shared.stats().clients, shared.peers.lock().unwrap().len()), (0, 0));
}

/// However many clients are turned away, there is one warning a second. It counts the others.
#[test]
fn warnings_are_limited() {
    let (limit, begun) = (WarningLimit::default(), Instant::now());
    let at = |ms| limit.pass(begun + Duration::from_millis(ms));
    assert_eq!([at(0), at(0), at(500), at(999)], [Some(0), None, None, None]);
    assert_eq!([at(1000), at(1001), at(5000), at(9000)], [Some(3), None, Some(1), Some(0)]);
}

/// What a client sends before its hello takes no more memory than a hello, and a quiet client has a
/// small buffer.
#[test]
fn strangers_and_quiet_clients_take_little_memory() {
    let mut second = Second::new(shared());
    let (mut stranger, token) = second.client();
    // The head of the longest frame, and part of its body.
    let head = [&(wire::BODY_MAX as u32).to_le_bytes()[..], &[0; 12]].concat();
    stranger.write_all(&head[..15]).unwrap();
    second.worker.serve(token);
    assert!(second.worker.sessions[&token].memory() <= 8192);
    stranger.write_all(&[0; 40_000]).unwrap();
    second.worker.serve(token);
    assert!(!second.worker.sessions.contains_key(&token), "that is no hello");
    let (mut quiet, token) = second.greeted();
    let puts: Vec<u8> = (0..1000).flat_map(|_| frame(&Request::Remove { key: b"key" })).collect();
    quiet.write_all(&puts).unwrap();
    for _ in 0..1000 {
        second.worker.serve(token);
        if reply(&mut quiet).is_none() {
            panic!("it is still there");
        }
    }
    assert!(second.worker.sessions[&token].memory() <= 8192);
}

/// A sweep answers and counts the requests in mailboxes, and counts rings. A client that writes an
/// invalid cell is dropped, and no other. A quiet client is no longer polled.
#[test]
fn a_sweep_answers_mailboxes() {
    let ask = |memory: &Mailbox, sequence| {
        let mut frame = Vec::new();
        GET.encode(sequence, &mut frame);
        assert!(store(memory.request(sequence), sequence, &frame));
    };
    let mut second = Second::new(shared());
    second.worker.sweep();
    assert_eq!(second.mailbox_counts(), MailboxCounts::default(), "there are none");
    let (mut asleep, first, asks) = second.served();
    let (_looking, third, looks) = second.served();
    let (mut wrong, _, scribbles) = second.served();
    (1..=5).for_each(|sequence| ask(&asks, sequence));
    (1..=2).for_each(|sequence| ask(&looks, sequence));
    asks.client().announce(5);
    assert!(store(scribbles.request(1), 1, b"nonsense"));
    let before = Instant::now();
    second.worker.sweep();
    let counts = second.mailbox_counts();
    assert_eq!((counts.requests, counts.rings), (7, 1));
    assert!((1..=64).contains(&counts.sweeps), "{counts:?}");
    assert_eq!([glance(asks.reply(5)), glance(looks.reply(2))].map(|mark| mark.sequence), [5, 2]);
    let mut bell = [0; 100];
    assert_eq!(asleep.read(&mut bell).unwrap(), 16, "one ring");
    assert_eq!(wire::replies(&bell[..16], 0), Ok(vec![Reply::Wake]));
    assert_eq!(reply(&mut wrong), None);
    assert_eq!(second.clients(), 2);
    // Nothing more comes, so they rest after some time. They are polled again when they ring.
    let mut sweeps = counts.sweeps;
    while !second.worker.awake.is_empty() {
        assert!(before.elapsed() < Duration::from_secs(60), "they never rest");
        second.worker.sweep();
        sweeps += 64;
    }
    let counts = second.mailbox_counts();
    let bytes = 2 * memory::bytes(second.worker.shared.index.geometry());
    assert_eq!(counts, MailboxCounts { requests: 7, rings: 1, rests: 2, sweeps, refused: 0, bytes });
    second.worker.sweep();
    assert_eq!(second.mailbox_counts(), counts);
    assert!(asks.server().heard() != 0 && looks.server().heard() != 0, "they are to ring");
    second.worker.serve(first);
    assert!(second.worker.awake.is_empty(), "nothing has come");
    asleep.write_all(&frame(&Request::Wake)).unwrap();
    second.worker.serve(first);
    assert_eq!(second.worker.awake, [first]);
    assert_eq!((asks.server().heard(), looks.server().heard()), (0, 1));
    ask(&asks, 6);
    second.worker.awake.push(third);
    second.worker.sweep();
    assert_eq!(second.mailbox_counts().requests, 8);
    assert_eq!(second.mailbox_counts().rings, 1, "the same announcement");
}

/// A client that never makes another request soon is not waited for: each time it has rung, its
/// mailbox is polled once. Among many idle clients, only those that ring cost anything.
#[test]
fn quiet_clients_cost_nothing() {
    let mut second = Second::new(ServerState { clients_max: 100, ..shared() });
    let mut served: Vec<_> = (0..100).map(|_| second.served()).collect();
    let give_up = Instant::now() + Duration::from_secs(60);
    let round = |second: &mut Second| {
        let before = second.mailbox_counts();
        while !second.worker.awake.is_empty() {
            assert!(Instant::now() < give_up, "they never rest");
            second.worker.sweep();
        }
        second.mailbox_counts().sweeps - before.sweeps
    };
    round(&mut second);
    second.worker.drop_halfway(Instant::now());
    assert!(second.worker.halfway.is_empty(), "all have said hello");
    let (stream, token, _) = &mut served[42];
    let mut ring = |second: &mut Second| {
        stream.write_all(&frame(&Request::Wake)).unwrap();
        second.worker.serve(*token);
        assert_eq!(second.worker.awake, [*token]);
        assert!(second.worker.halfway.is_empty());
    };
    for _ in 0..5 {
        ring(&mut second);
        round(&mut second);
    }
    for _ in 0..5 {
        ring(&mut second);
        assert_eq!(round(&mut second), 1);
    }
}

/// A worker that polls mailboxes all the time still checks its sockets and drops clients that are
/// halfway.
#[test]
fn mailboxes_do_not_starve_sockets() {
    let mut second = Second::new(shared());
    let (_stream, served, _mailbox) = second.served();
    second.worker.sessions.get_mut(&served).unwrap().mailbox().never_rests();
    let (mut silent, token) = second.client();
    let mut other = second.greeted().0;
    let long_ago = Instant::now() - 2 * HALF_OPEN;
    second.worker.sessions.get_mut(&token).unwrap().be_halfway_since(long_ago);
    second.run(|| {
        other.write_all(&frame(&GET)).unwrap();
        assert_eq!(reply(&mut other), Some(Reply::Value(None)));
        assert_eq!(reply(&mut silent), None);
    });
}

/// When a request in a mailbox takes long, the worker checks its sockets before it answers the next
/// one.
#[test]
fn a_sweep_ends_with_its_turn() {
    let mut second = Second::new(shared());
    let (_stream, _, memory) = second.served();
    for sequence in 1..=2 {
        let mut frame = Vec::new();
        GET.encode(sequence, &mut frame);
        assert!(store(memory.request(sequence), sequence, &frame));
    }
    // The first GET waits for a writer of its key, longer than a turn.
    let shared = second.worker.shared.clone();
    shared.index.put(b"key", b"value", PutMode::Insert).unwrap();
    let written = be_written(&shared.index, b"key");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            written.iter().for_each(|(word, before)| shared.index.region().store(*word, *before));
        });
        second.worker.sweep();
    });
    let counts = second.mailbox_counts();
    assert_eq!((counts.requests, counts.sweeps), (1, 1));
    second.worker.sweep();
    assert_eq!(second.mailbox_counts().requests, 2);
}

/// The mailbox that is polled first changes with each sweep.
#[test]
fn mailboxes_take_turns() {
    let mut second = Second::new(shared());
    let served = [(); 3].map(|()| second.served());
    let [a, b, c] = served.each_ref().map(|(_, token, _)| *token);
    for token in [a, b, c] {
        second.worker.sessions.get_mut(&token).unwrap().mailbox().never_rests();
    }
    for order in [[a, b, c], [b, c, a], [c, a, b], [a, b, c]] {
        assert_eq!(second.worker.awake, order);
        second.worker.sweep();
    }
    assert_eq!(second.mailbox_counts().rests, 0);
}

/// Fills the table and removes its keys, so that keys are moved. Their traces stay for some time.
fn leave_traces(index: &Index) {
    let full = (0..10_000u32).find(|n| index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_err()).unwrap();
    (0..full).for_each(|n| assert_eq!(index.remove(&n.to_le_bytes()), Ok(true)));
}

fn traces(index: &Index) -> u64 {
    crate::inspect::Inspector::new(index.region(), index.geometry()).occupancy(|_| {}).ghosts
}

/// Traces of an embedder's changes are removed without any request to the server. A worker that has
/// seen traces sleeps only until they are due.
#[test]
fn traces_are_removed_without_requests() {
    let dir = tempfile::tempdir().unwrap();
    let table = Config { size: TableSize::Slots(256), layout: "list".parse().unwrap(), ..table() };
    let server = Server::start(ServerConfig::new(Address::Shm(dir.path().join("socket")), table)).unwrap();
    let second = Second::new(ServerState {
        index: index_for(&ServerConfig::new(server.address().clone(), table)).unwrap().index,
        ..shared()
    });
    leave_traces(&second.worker.shared.index);
    assert!(traces(&second.worker.shared.index) > 0);
    assert!(second.worker.tidy().is_some_and(|due| due <= 2 * table.grace));
    leave_traces(server.index());
    let give_up = Instant::now() + Duration::from_secs(60);
    while traces(server.index()) > 0 {
        assert!(Instant::now() < give_up, "they stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server has the given number of workers, at least one. It accepts clients of its own user
/// beside those of the named users. The defaults are as documented.
#[test]
fn a_server_follows_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("socket"));
    let usual = ServerConfig::new(address.clone(), table());
    let ServerConfig { workers, clients_max, token, wait, .. } = usual.clone();
    assert_eq!((workers, clients_max, token, wait), (2, 4096, Token::default(), Wait::Block));
    #[cfg(feature = "herd")]
    assert!(!usual.herd);
    assert_eq!((usual.backing.clone(), usual.start), (Backing::Anonymous, StartMode::Create));
    assert!(usual.allow_uids.is_empty() && usual.allow_read_uids.is_empty() && usual.read_token.is_empty());
    assert_eq!((usual.clients_per_peer, usual.half_open, usual.unread_bytes_max), (1024, HALF_OPEN, 1 << 20));
    for (workers, threads) in [(0, 1), (1, 1), (3, 3)] {
        let config = ServerConfig {
            workers,
            allow_uids: vec![1_234_567, 1_234_568],
            // Who is named twice, or is the server's own user, may do more.
            allow_read_uids: vec![1_234_568, uid(), 1_234_569],
            clients_max: 7,
            clients_per_peer: 6,
            half_open: Duration::from_secs(50),
            unread_bytes_max: 4_000,
            mailbox_bytes_max: 8,
            ..usual.clone()
        };
        let server = Server::start(config).unwrap();
        let names: Vec<_> =
            server.threads.iter().map(|(_, thread)| thread.thread().name().unwrap()).collect();
        let expected: Vec<_> = (0..threads).map(|number| format!("oneread-{number}")).collect();
        assert_eq!(names, expected);
        assert_eq!(server.shared.allow_uids, [1_234_567, 1_234_568, uid()]);
        assert_eq!(server.shared.allow_read_uids, [1_234_568, uid(), 1_234_569]);
        assert_eq!(
            [1_234_568, uid(), 1_234_569, 1_234_570].map(|uid| server.shared.role_of(uid)),
            [Some(Role::Change), Some(Role::Change), Some(Role::Read), None]
        );
        assert_eq!((server.shared.clients_max, server.shared.clients_per_peer), (7, 6));
        let (half_open, unread) = (server.shared.half_open, server.shared.unread_bytes_max);
        assert_eq!((half_open, unread), (Duration::from_secs(50), 4_000));
        assert!(!server.shared.mailbox_memory.has_any(server.index().geometry()));
        assert_eq!(server.address(), &address);
        let mut stream = Stream::connect(address.socket().unwrap()).unwrap();
        stream.write_all(&frame(&HELLO)).unwrap();
        assert!(matches!(reply(&mut stream), Some(Reply::Welcome { .. })));
    }
}

/// Whoever wants to know is told of each step: that it begins, how far it is, and that it is done. A
/// table that was handed over takes no step.
#[test]
fn a_start_tells_how_far_it_is() {
    static TOLD: Mutex<Vec<StartProgress>> = Mutex::new(Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = ServerConfig::new(Address::Shm(path("socket")), table().size(TableSize::Slots(100_000)))
        .backing(Backing::File(path("region")))
        .start(StartMode::OpenOrCreate)
        .progress(|progress| TOLD.lock().unwrap().push(progress));
    let started = || {
        let server = Server::start(config.clone()).unwrap();
        let geometry = server.index().geometry();
        let total = geometry.main_slots() * geometry.shape().bytes() as u64;
        (server, total, std::mem::take(&mut *TOLD.lock().unwrap()))
    };
    let check = |step, total, told: Vec<StartProgress>| {
        let (first, last) = (told[0], told[told.len() - 1]);
        assert_eq!(first, StartProgress { step, ready: 0, total, done: false });
        assert_eq!(last, StartProgress { step, ready: total, total, done: true });
        // (None in between if other threads do all of it.)
        for now in &told[1..told.len() - 1] {
            assert_eq!((now.step, now.total, now.done), (step, total, false));
        }
        assert!(told.iter().is_sorted_by_key(|now| now.ready));
    };
    let (server, total, told) = started();
    check(StartStep::Make, total, told);
    server.stop();
    let (server, total, told) = started();
    assert_eq!(told, []);
    // As a killed server leaves it.
    let killed = std::fs::read(path("region")).unwrap();
    server.stop();
    std::fs::write(path("region"), killed).unwrap();
    let (_server, _, told) = started();
    check(StartStep::Survey, total, told);
}

/// A start ends soon when nobody wants the server any more: while it makes a table, restores one, or takes one
/// over. Nothing is left of a new table; one that was there loses nothing.
#[test]
fn a_start_is_cancelled() {
    static ASKED: Mutex<Option<(StartStep, Arc<AtomicBool>)>> = Mutex::new(None);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let table = table().size(TableSize::Slots(200_000));
    let config = ServerConfig::new(Address::Shm(path("socket")), table)
        .backing(Backing::File(path("region")))
        .start(StartMode::OpenOrCreate)
        .progress(|at| {
            let asked = ASKED.lock().unwrap();
            asked
                .as_ref()
                .filter(|(step, _)| *step == at.step)
                .inspect(|(_, c)| c.store(true, Ordering::Relaxed));
        });
    let cancelled_in = |step, config: &ServerConfig| {
        let cancel = Arc::new(AtomicBool::new(false));
        *ASKED.lock().unwrap() = Some((step, cancel.clone()));
        let started = Server::start(config.clone().cancel(cancel.clone()));
        *ASKED.lock().unwrap() = None;
        assert!(matches!(started, Err(ServeError::Cancelled)), "{step:?}: {started:?}");
        assert!(cancel.load(Ordering::Relaxed), "{step:?} was taken");
        assert!(!path("socket").exists());
    };
    let sizes = [TableSize::Slots(200_000), TableSize::up_to(64 << 20)];
    cancelled_in(StartStep::Make, &config);
    assert!(!path("region").exists());
    for size in sizes {
        let config = config.clone().table(Config { size, ..table });
        let server = Server::start(config.clone()).unwrap();
        for n in 0..10_000u32 {
            server.index().put(&n.to_le_bytes(), b"value", PutMode::Insert).unwrap();
        }
        server.index().save(&path("snapshot"), &mut |_, _| true).unwrap();
        let killed = std::fs::read(path("region")).unwrap();
        server.stop();
        std::fs::write(path("region"), killed).unwrap();
        for _ in 0..2 {
            cancelled_in(StartStep::Survey, &config);
        }
        let server = Server::start(config.clone()).unwrap();
        assert_eq!(server.recovered().unwrap().keys, 10_000);
        server.stop();
        std::fs::remove_file(path("region")).unwrap();
        let restoring = config.clone().restore(path("snapshot"));
        cancelled_in(StartStep::Restore, &restoring);
        assert!(!path("region").exists());
        let server = Server::start(restoring).unwrap();
        assert_eq!(server.restored().unwrap().keys, 10_000);
        server.stop();
        std::fs::remove_file(path("region")).unwrap();
    }
}

/// Nothing is left of a new table whose server could not serve it, whatever the cause. A table that was there
/// stays, and is handed over.
#[test]
fn a_failed_start_leaves_no_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir(path("folder")).unwrap();
    let config = ServerConfig::new(Address::Shm(path("socket")), table())
        .backing(Backing::File(path("region")))
        .start(StartMode::OpenOrCreate);
    let elsewhere = ServerConfig { address: Address::Shm(path("folder")), ..config.clone() };
    let fails = || Server::start(elsewhere.clone()).expect_err("a folder is there");
    for has_empty_file in [false, true] {
        if has_empty_file {
            std::fs::write(path("region"), b"").unwrap();
            permit(&path("region"));
        }
        let error = fails();
        assert!(matches!(error, ServeError::NoSocket { .. } | ServeError::Listen { .. }), "{error:?}");
        assert!(!path("region").exists());
    }
    let server = Server::start(config.clone()).unwrap();
    server.index().put(b"key", b"value", PutMode::Insert).unwrap();
    server.stop();
    fails();
    let found = Server::start(config).unwrap().recovered().unwrap();
    assert_eq!((found.keys, found.handed_over), (1, true));
    // What another has put there meanwhile is not this server's.
    let region = Region::create(&Backing::File(path("new")), 8192).unwrap();
    std::fs::remove_file(path("new")).unwrap();
    std::fs::write(path("new"), b"another").unwrap();
    drop(region);
    assert_eq!(std::fs::read(path("new")).unwrap(), b"another");
}

fn permit(path: &std::path::Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A server that cannot start says why, and what is in the way.
#[test]
fn errors_say_why_a_server_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    std::fs::write(&path, b"no region").unwrap();
    let address = Address::Shm(dir.path().join("no folder").join("socket"));
    let usual = ServerConfig::new(address.clone(), table());
    let start = |backing: &Backing, start: StartMode| {
        let config = ServerConfig { backing: backing.clone(), start, ..usual.clone() };
        Server::start(config).expect_err("it cannot start")
    };
    for backing in [Backing::Anonymous, Backing::HugePages] {
        assert!(matches!(start(&backing, StartMode::Open), ServeError::NothingToOpen));
    }
    for old in [StartMode::Open, StartMode::OpenOrCreate] {
        match start(&Backing::File(path.clone()), old) {
            ServeError::Recover { what, .. } => assert_eq!(what, path.display().to_string()),
            other => panic!("{other}"),
        }
    }
    let file = Backing::File(path.clone());
    assert!(matches!(start(&file, StartMode::Create), ServeError::Region(RegionError::Length { .. })));
    let missing = Backing::File(dir.path().join("missing"));
    assert!(matches!(start(&missing, StartMode::Open), ServeError::Region(RegionError::Missing { .. })));
    let no_table = Config { key_max: 0, ..table() };
    let no_table = ServerConfig { table: no_table, ..usual.clone() };
    assert!(matches!(Server::start(no_table), Err(ServeError::Config(_))));
    let long = dir.path().join("x".repeat(100));
    let length = long.as_os_str().len();
    let too_long = ServerConfig::new(Address::Shm(long.clone()), table());
    match Server::start(too_long) {
        Err(ServeError::Address(error)) => assert_eq!(error, AddressError::TooLong { path: long, length }),
        other => panic!("{other:?}"),
    }
    for start_with in [StartMode::Create, StartMode::OpenOrCreate] {
        match start(&Backing::Anonymous, start_with) {
            ServeError::NoFolder { path } => {
                assert_eq!(Some(&*path), address.socket().and_then(Path::parent));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"no region");
}

/// Each counter appears under its own name.
#[test]
fn counters_keep_their_names() {
    let [requests, sweeps, rests, rings, refused] = [1, 2, 3, 4, 5].map(AtomicU64::new);
    let mailboxes = MailboxCounters { requests, sweeps, rests, rings, refused };
    let shared = Arc::new(ServerState { mailboxes, ..shared() });
    let expected = MailboxCounts { requests: 1, sweeps: 2, rests: 3, rings: 4, refused: 5, bytes: 0 };
    assert_eq!(shared.mailbox_counts(), expected);
    shared.index.put(b"key", b"value", PutMode::Insert).unwrap();
    let _admitted: Vec<_> = (0..3).map(|_| shared.admit(Peer::User(1)).unwrap()).skip(1).collect();
    let stats = shared.stats();
    assert_eq!((stats.keys, stats.inserts, stats.clients, stats.incarnation), (1, 1, 2, 1));
}

/// Leaves the slots of a key as an unfinished writer does. Returns their words as they were.
fn be_written(index: &Index, key: &[u8]) -> Vec<(usize, u64)> {
    let geometry = index.geometry();
    let slots = geometry.primary(geometry.hashed(key)).iter();
    let words = slots.map(|slot| geometry.slot_word(slot)).map(|word| (word, index.region().load(word)));
    let words: Vec<_> = words.collect();
    words.iter().for_each(|(word, before)| index.region().store(*word, before | 1));
    words
}

/// The server's answers to look-ups, and its errors.
#[test]
fn look_ups_are_answered() {
    let shared = shared();
    shared.index.put(b"key", b"value", PutMode::Insert).unwrap();
    let get = |key: &[u8]| shared.answer(&mut Caller::new(Role::Read), Request::Get { key }).unwrap();
    assert_eq!(get(b"key"), Reply::Value(Some(b"value".to_vec())));
    assert_eq!(get(b"none"), Reply::Value(None));
    for given in [0, 17] {
        let error = PutError::KeyLength { given, max: 16 };
        assert_eq!(get(&vec![1; given]), Reply::Put(Err(error)));
    }
    be_written(&shared.index, b"key");
    let Reply::Put(Err(PutError::Busy { rounds })) = get(b"key") else { panic!("an answer") };
    assert!(rounds > 0);
    for about in [HELLO, Request::Mailbox { version: 1 }, Request::Wake] {
        assert_eq!(shared.answer(&mut Caller::new(Role::Change), about), None, "{about:?}");
    }
}

/// Several servers find a socket that nobody listens to, at the same instant. One of them takes it,
/// and clients reach that one.
#[test]
fn one_of_several_servers_takes_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Shm(path.clone());
    let barrier = std::sync::Barrier::new(3);
    for round in 0..200 {
        // A socket left by a killed server.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listeners = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    listen(&address, &path)
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let _client = Stream::connect(&path).unwrap();
        let found = listeners.iter().flatten().filter(|bound| bound.listener.accept().is_ok()).count();
        assert_eq!((found, listeners.iter().flatten().count()), (1, 1), "round {round}: {listeners:?}");
        for refused in listeners.iter().filter_map(|listener| listener.as_ref().err()) {
            assert!(matches!(refused, ServeError::AddressInUse { .. }), "{refused}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// What stands in the socket's place is named, and stays. So is a folder that is missing.
#[test]
fn what_is_no_socket_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "text").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
    for name in ["file", "folder", "link"] {
        let refused = listen(&Address::Shm(at(name)), &at(name)).unwrap_err();
        assert!(matches!(refused, ServeError::NoSocket { kind, .. } if kind == name), "{refused}");
        assert!(at(name).symlink_metadata().is_ok(), "the {name} is gone");
    }
    let missing = listen(&Address::Shm(at("no/socket")), &at("no/socket")).unwrap_err();
    assert!(matches!(&missing, ServeError::NoFolder { path } if *path == at("no")), "{missing}");
    let below = listen(&Address::Shm(at("file/socket")), &at("file/socket")).unwrap_err();
    assert!(matches!(below, ServeError::NoFolder { .. }), "{below}");
}

/// A server waits for the lock of its address, for a limited time. The folder of a bare name is the
/// current one.
#[test]
fn a_locked_address_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let first = claim(&path, Duration::ZERO).unwrap();
    let busy = claim(&path, Duration::from_millis(1)).unwrap_err();
    assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| claim(&path, Duration::from_secs(60)).map(drop));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished(), "it does not wait");
        drop(first);
        waiting.join().unwrap().expect("it is free again");
    });
    let nowhere = claim(&path.join("socket"), Duration::ZERO).unwrap_err();
    assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
    claim(Path::new("socket"), Duration::ZERO).unwrap();
}

/// A server with a full backlog is still there: its socket is not replaced.
#[test]
fn the_socket_of_a_busy_server_is_kept() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let busy = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&busy, 0).unwrap();
    let mut clients = Vec::new();
    while let Ok(client) = UnixStream::connect(&path) {
        clients.push(client);
    }
    let address = Address::Shm(path.clone());
    match Server::start(ServerConfig::new(address.clone(), table())) {
        Err(ServeError::AddressInUse { address: taken }) => assert_eq!(taken, address),
        other => panic!("{other:?}"),
    }
    assert!(path.exists());
}
