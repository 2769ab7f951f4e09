//! Tests that drive a worker step by step. It is the only worker, so no other one does its work.

use super::*;
use crate::address::Address;
use crate::config::{Config, TableSize};
use crate::index::Index;
use crate::layout::extent::{Expected, Reference};
use crate::mailbox::memory::{self, Mailbox};
use crate::mailbox::{glance, store};
use crate::outcome::{PutMode, PutOutcome};
use crate::part::{PartChange, Tell};
use crate::server::caller::{Caller, Role};
use crate::server::driver::TableDriver;
use crate::server::mailbox::ServerMailbox;
use crate::server::mailboxes::MailboxCounts;
use crate::server::shared::WarningLimit;
use crate::server::socket::{Bound, listen};
use crate::server::table::index_for;
use crate::server::tests::{HALF_OPEN, HELLO, be_written, frame, reply, shared, table, uid};
use crate::server::{Server, ServerConfig};
use crate::wire::{self, FeedRequest, KeysWriter, Reply, Request, Right, Wants};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Stream;
use std::path::{Path, PathBuf};

/// A worker that is not the first one, and the path of its socket.
pub(super) struct Second {
    pub worker: StreamWorker,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Second {
    pub fn new(shared: ServerState) -> Second {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = Address::Shm(path.clone());
        let socket = Socket::new(&address, &path, listen(&address, &path).unwrap());
        let share = DescriptorShare::now(0, 1);
        let worker = StreamWorker::new(Arc::new(shared), Some(Arc::new(socket)), None, false, share).unwrap();
        Second { worker, path, _dir: dir }
    }

    fn connect(&self) -> Stream {
        let stream = Stream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A client that has been accepted, and its token.
    pub fn client(&mut self) -> (Stream, Token) {
        let (stream, token) = (self.connect(), Token(self.worker.next));
        self.worker.accept_all();
        assert!(self.worker.sessions.contains_key(&token));
        (stream, token)
    }

    /// A client that has also said hello.
    pub fn greeted(&mut self) -> (Stream, Token) {
        let (mut stream, token) = self.client();
        stream.write_all(&frame(&HELLO)).unwrap();
        self.worker.serve(token);
        assert_eq!(reply(&mut stream), Some(Reply::WELCOME));
        (stream, token)
    }

    /// A client with a mailbox that is polled, and its end of the mailbox.
    pub fn served(&mut self) -> (Stream, Token, Mailbox) {
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
    pub fn miss_events(&mut self) {
        let mut events = Events::with_capacity(256);
        while self.worker.poll.poll(&mut events, Some(Duration::ZERO)).is_ok() && !events.is_empty() {}
    }

    /// Runs the worker until `story` ends.
    pub fn run(self, story: impl FnOnce()) {
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

const GET: Request<'_> = Request::Get { key: b"key" };

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

/// The state of a server whose table has memory for long values.
fn shared_with_heap() -> ServerState {
    let config = Config { value_max: 200_000, inline_max: Some(40), heap_bytes: Some(4 << 20), ..table() };
    let config = ServerConfig::new(Address::Shm("nowhere".into()), config);
    ServerState { index: index_for(&config).unwrap().index, ..shared() }
}

/// Three clients upload: by messages, one of which goes on, and by a mailbox. Whether those that have stopped are hung up on.
fn uploads_end() -> bool {
    let mut second = Second::new(shared_with_heap());
    let (begin, bytes) = (Request::UploadBegin { key: b"key", len: 150_000 }, [1; 60_000]);
    let say = |second: &mut Second, (stream, token): &mut (Stream, Token), request| {
        stream.write_all(&frame(&request)).unwrap();
        second.worker.serve(*token);
        reply(stream)
    };
    let (mut slow, mut stopped) = (second.greeted(), second.greeted());
    for client in [&mut slow, &mut stopped] {
        assert_eq!(say(&mut second, client, begin), Some(Reply::Taken));
    }
    let (mut by_mailbox, _, mailbox) = second.served();
    let mut asked = Vec::new();
    begin.encode(1, &mut asked);
    assert!(store(mailbox.request(1), 1, &asked));
    second.worker.sweep();
    let live = |second: &Second| second.worker.shared.index.heap().live_bytes;
    let (begun, of_all) = (Instant::now(), live(&second));
    std::thread::sleep(Duration::from_millis(5));
    for _ in 0..2 {
        let piece = Request::UploadPiece { bytes: &bytes };
        assert_eq!(say(&mut second, &mut slow, piece), Some(Reply::Taken));
    }
    second.worker.drop_halfway(begun + HALF_OPEN + Duration::from_millis(2));
    if second.clients() == 3 {
        return false;
    }
    assert_eq!((second.clients(), live(&second)), (1, of_all / 3), "one has gone on");
    assert_eq!((reply(&mut stopped.0), reply(&mut by_mailbox)), (None, None));
    let last = Request::UploadPiece { bytes: &bytes[..30_000] };
    let put = Request::UploadPut { options: PutMode::Insert.into(), key: b"key" };
    assert_eq!(say(&mut second, &mut slow, last), Some(Reply::Taken));
    assert_eq!(say(&mut second, &mut slow, put), Some(Reply::Put(Ok(PutOutcome::Inserted))));
    second.worker.drop_halfway(Instant::now() + 2 * HALF_OPEN);
    assert_eq!(second.clients(), 1, "it has done");
    assert_eq!(say(&mut second, &mut slow, begin), Some(Reply::Taken));
    second.worker.drop_halfway(Instant::now() + 2 * HALF_OPEN);
    second.clients() == 0 && live(&second) == of_all / 3
}

/// Q8: who stops in the middle of an upload is hung up on, and its memory is free. Each step of an upload has its own time.
#[test]
fn uploads_that_stop_are_dropped() {
    assert!(uploads_end());
}

#[cfg(feature = "faults")]
#[test]
fn uploads_that_stay_are_noticed() {
    let _broken = crate::faults::Broken::rule(crate::faults::Rule::UploadTime);
    assert!(!uploads_end());
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
    requests.extend(frame(&Request::Put { options: PutMode::Insert.into(), key: b"last", value: b"value" }));
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
    second.worker.socket = Some(Arc::new(Socket::new(&Address::Shm("nowhere".into()), &second.path, bound)));
    second.worker.accept_all();
    assert!(second.worker.accept_again.is_some());
    assert!(second.worker.tidy().unwrap() <= Duration::from_millis(10));
}

/// Users may do what they were named for, root everything, and others nothing.
#[test]
fn users_have_roles() {
    let state = ServerState { allow_uids: vec![5, u32::MAX], allow_read_uids: vec![5, 6, 0], ..shared() };
    let roles = [5, 6, 7, 0, u32::MAX].map(|uid| state.role_of(uid));
    assert_eq!(roles, [Some(Role::Change), Some(Role::Read), None, Some(Role::Change), None]);
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

/// Who may do what: each request, of a client that may change the table and of one that may only read, and of any where
/// clients may only read.
#[test]
fn each_request_asks_for_its_right() {
    let (key, value, mode, len, ticket) = (&b"key"[..], &b"value"[..], PutMode::Upsert, 100, 1);
    let (place, within) = (Reference { number: 1, offset: 4096, len: 100, crc: 0 }, Duration::from_secs(1));
    let mut keys = KeysWriter::default();
    assert!(keys.push(key));
    let wants = Wants { lives: false, bits: false, from: 0, most: 100 };
    let requests = [
        Request::Hello { version: 1 },
        Request::Join { nonce: [0; 32], proof: [0; 32] },
        Request::Mailbox { version: 1 },
        Request::Wake,
        Request::Get { key },
        Request::Gets(keys.request(wants)),
        Request::Feed(FeedRequest::Changes {
            table: 0,
            launch: 0,
            from: 0,
            end: u64::MAX,
            values: false,
            prefix: b"",
            passed: None,
            within: Some(within),
        }),
        Request::Feed(FeedRequest::Scan { table: 0, values: false, prefix: b"", cursor: b"" }),
        Request::Stat,
        Request::Growth { shrink: false },
        Request::Heap,
        Request::Times,
        Request::Held,
        Request::GetCounts,
        Request::Log,
        Request::Notes,
        Request::Evictions,
        Request::Snapshot { begin: false },
        Request::Put { options: mode.into(), key, value },
        Request::Swap { key, expected: value, value },
        Request::SwapExtent { key, expected: place, value },
        Request::UploadBegin { key, len },
        Request::UploadPiece { bytes: value },
        Request::UploadPut { options: mode.into(), key },
        Request::UploadSwap { key, expected: Expected::Extent(place) },
        Request::UploadDrop,
        Request::Remove { key },
        Request::RemoveIf { key, expected: Expected::Value(value) },
        Request::Part { key, part: PartChange::OrPadded { bits: value }, tell: Tell::Nothing },
        Request::Part { key, part: PartChange::Increment { delta: 1, absent: None }, tell: Tell::Nothing },
        Request::Part { key, part: PartChange::Or { bits: value }, tell: Tell::Nothing },
        Request::Touch { key, ttl: None },
        Request::Clear { place: [0; 2] },
        Request::Pin { key },
        Request::Unpin { key },
        Request::Owner { number: 1, absent_for: within, tenure: 0 },
        Request::RemoveOwner { number: 1 },
        Request::PutStart { key, len, within },
        Request::PutPiece { key, ticket, bytes: value },
        Request::PutCommit { key, ticket },
        Request::PutAbort { key, ticket },
        Request::GrowFor { keys: 1 },
        Request::Growth { shrink: true },
        Request::Snapshot { begin: true },
    ];
    let rows: Vec<_> = requests.iter().map(|request| request.row()).collect();
    assert_eq!(rows, wire::ROWS, "one of each");
    let other = |notes_reads| TableDriver::Other { notes_reads };
    let drivers = [TableDriver::Clients, other(false), other(true)];
    for (role, driver) in
        [Role::Change, Role::Read].into_iter().flat_map(|role| drivers.map(|driver| (role, driver)))
    {
        let shared = ServerState { driver, ..shared() };
        let mut caller = Caller::new(role);
        for request in requests {
            let reply = shared.answer(&mut caller, request);
            let may_change = role == Role::Change && driver == TableDriver::Clients;
            let is_denied = reply == Some(Reply::Denied);
            match request.row().right {
                Right::Talk => assert_eq!(reply, None, "{request:?}"),
                Right::Look => assert!(!is_denied, "{request:?}"),
                Right::Change => assert_eq!(is_denied, !may_change, "{request:?} of {role:?}"),
            }
        }
        // Once for each that says so, and once for the upload.
        let asked = requests.iter().filter(|request| request.row().right == Right::Change).count() as u64;
        let denied = shared.refused.read().read_only;
        assert_eq!(
            denied,
            if role == Role::Change && driver == TableDriver::Clients { 0 } else { asked - 4 }
        );
        assert_eq!(shared.index.len(), 0, "{role:?}");
    }
}

/// A stranger over TCP, as the worker has accepted it, and its token.
fn stranger(second: &mut Second) -> (std::net::TcpStream, Token) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (theirs, peer) = listener.accept().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let token = Token(second.worker.next);
    second.worker.accept_stranger(TcpStream::from_std(theirs), peer.ip());
    (stream, token)
}

/// The next reply to somebody over TCP.
fn far_reply(stream: &mut std::net::TcpStream) -> Reply {
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes).unwrap();
    bytes.resize(16 + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize, 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    Reply::decode(&wire::decode(&bytes).unwrap().unwrap()).unwrap()
}

/// Serves a connection until a reply has come.
fn loop_reply(second: &mut Second, token: Token, stream: &mut std::net::TcpStream) -> Reply {
    stream.set_nonblocking(true).unwrap();
    serve_until(second, token, |_| stream.peek(&mut [0]).is_ok_and(|n| n > 0));
    stream.set_nonblocking(false).unwrap();
    far_reply(stream)
}

/// Serves a connection until something is so: what was sent may take a while.
fn serve_until(second: &mut Second, token: Token, is_so: impl Fn(&Second) -> bool) {
    let begun = Instant::now();
    while !is_so(second) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        second.worker.serve(token);
    }
}

/// Those who have proven nothing give way to one more of them. Who has joined is none of them any more, and who has left is not,
/// either: of as many as there may be, nobody gives way for those.
#[test]
fn who_has_joined_does_not_give_way() {
    let mut second = Second::new(ServerState { clients_max: 1_000, ..shared() });
    let joining = |second: &Second| second.worker.joining.len();
    // The first two join: they have been there for longest.
    let mut joined: Vec<_> = (0..2).map(|_| stranger(&mut second)).collect();
    for (stream, token) in &mut joined {
        let token = *token;
        stream.write_all(&frame(&HELLO)).unwrap();
        let Reply::Challenge { nonce: theirs } = loop_reply(&mut second, token, stream) else {
            panic!("a number")
        };
        let ours = [7; 32];
        let proof = crate::server::tcp::prove_client(&Default::default(), &theirs, &ours);
        stream.write_all(&frame(&Request::Join { nonce: ours, proof })).unwrap();
        assert!(matches!(loop_reply(&mut second, token, stream), Reply::Table { .. }));
    }
    assert_eq!(joining(&second), 0);
    // Some strangers come and leave.
    for _ in 0..10 {
        let (stream, token) = stranger(&mut second);
        assert_eq!(joining(&second), 1);
        drop(stream);
        serve_until(&mut second, token, |second| !second.worker.sessions.contains_key(&token));
        assert_eq!(joining(&second), 0);
    }
    let joining_max = second.worker.joining_max;
    let strangers: Vec<_> = (0..joining_max).map(|_| stranger(&mut second)).collect();
    let is_there = |second: &Second, token: &Token| second.worker.sessions.contains_key(token);
    assert!(strangers.iter().all(|(_, token)| is_there(&second, token)), "there is room for so many");
    let (_more, token) = stranger(&mut second);
    assert!(is_there(&second, &token) && joining(&second) == joining_max);
    let gone = strangers.iter().filter(|(_, token)| !is_there(&second, token)).count();
    assert_eq!(gone, 1, "one gives way");
    for (stream, token) in &mut joined {
        stream.write_all(&frame(&GET)).unwrap();
        let reply = loop_reply(&mut second, *token, stream);
        assert_eq!(reply, Reply::Value(None), "who has joined is served");
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

/// What a client sends before its hello takes no more memory than a hello, and a quiet client has no
/// buffer.
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
    assert_eq!(second.worker.sessions[&token].memory(), 0);
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
