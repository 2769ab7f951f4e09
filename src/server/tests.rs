//! Tests of a whole server, and what the tests beside it share.

use super::*;
use crate::address::AddressError;
use crate::config::{Config, TableSize};
use crate::outcome::{PutError, PutMode};
use crate::region::tests::until_huge;
use crate::region::{Region, RegionError};
use crate::verbs::Wait;
use crate::wire::proof::Token;
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request};
use caller::{Caller, Role, Tokens};
use feed::FollowerCounters;
use park_room::ParkRoom;
use shared::Peer;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as Stream;
use std::path::Path;
use std::time::Duration;

pub(super) const HALF_OPEN: Duration = Duration::from_secs(10);

pub(super) fn table() -> Config {
    Config { size: TableSize::Keys(10), key_max: 16, value_max: 32, ..Config::default() }
}

pub(super) fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The shared state of a server without workers.
pub(super) fn shared() -> ServerState {
    let config = ServerConfig::new(Address::Shm("nowhere".into()), table());
    let client_memory = ClientMemory::new(config.client_bytes_max);
    ServerState {
        index: index_for(&config).unwrap().index,
        stopping: AtomicBool::new(false),
        clients: AtomicU64::new(0),
        clients_max: 10,
        clients_per_peer: 10,
        peers: Mutex::default(),
        allow_uids: vec![uid()],
        tokens: Tokens::default(),
        allow_read_uids: Vec::new(),
        driver: TableDriver::Clients,
        half_open: HALF_OPEN,
        unread_bytes_max: 1 << 20,
        refusals: WarningLimit::default(),
        region_file: None,
        looks: WarningLimit::default(),
        is_loss_told: AtomicBool::new(false),
        mailbox_memory: MailboxMemory::new(config.mailbox_bytes_max, &client_memory),
        client_memory,
        feed_bytes: config.feed_bytes,
        get_counts: None,
        followers: FollowerCounters::default(),
        parking: ParkRoom::default(),
        put_times: None,
        mailboxes: MailboxCounters::default(),
        refused: RefusedCounters::default(),
        saver: None,
    }
}

pub(super) const HELLO: Request<'_> = Request::Hello { version: PROTOCOL_VERSION };

pub(super) fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(1, &mut bytes);
    bytes
}

/// The next reply; `None` when the server hangs up instead.
pub(super) fn reply(stream: &mut Stream) -> Option<Reply> {
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

/// A server has the given number of workers, at least one. It accepts clients of its own user
/// beside those of the named users. The defaults are as documented.
#[test]
fn a_server_follows_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("socket"));
    let usual = ServerConfig::new(address.clone(), table());
    let ServerConfig { workers, clients_max, token, wait, .. } = usual.clone();
    assert_eq!((workers, clients_max, token, wait), (2, 4096, Token::default(), Wait::Block));
    #[cfg(feature = "verbs")]
    assert!(usual.extension.is_none());
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
        assert_eq!(server.stuck_threads(Duration::from_secs(60)), [""; 0], "all turn");
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
    let many = Server::start(ServerConfig { workers: WORKERS_MAX + 1, ..usual });
    assert!(matches!(many, Err(ServeError::Workers { workers: 1025, max: 1024 })));
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

/// A start that is undone takes the table along that it has made, unless somebody has changed that since and it is not this
/// server's alone. One that it took over stays.
#[test]
fn an_undone_start_leaves_no_new_table() {
    let dir = tempfile::tempdir().unwrap();
    let region = dir.path().join("region");
    let config = ServerConfig::new(Address::Shm(dir.path().join("socket")), table());
    let config = config.backing(Backing::File(region.clone())).start(StartMode::OpenOrCreate);
    let config = config.snapshots(Snapshots::new(dir.path().join("snapshot")));
    for (which, is_old, is_changed, stays) in [
        (UndoStart::IfUnchanged, false, false, false),
        (UndoStart::IfUnchanged, false, true, true),
        (UndoStart::Always, false, true, false),
        (UndoStart::IfUnchanged, true, false, true),
        (UndoStart::Always, true, false, true),
    ] {
        if is_old {
            Server::start(config.clone()).unwrap().stop();
        }
        let server = Server::start(config.clone()).unwrap();
        if is_changed {
            server.index().put(b"key", b"value", PutMode::Insert).unwrap();
        }
        server.undo_start(which);
        assert_eq!(server.stop().region_stays, stays, "{which:?} {is_old} {is_changed}");
        assert_eq!(region.exists(), stays, "{which:?} {is_old} {is_changed}");
        for file in std::fs::read_dir(dir.path()).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
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
pub(super) fn be_written(index: &Index, key: &[u8]) -> Vec<(usize, u64)> {
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

/// A table's memory is moved into huge pages where the kernel can, and left where it is if that is asked for.
#[test]
fn pages_stay_small_if_asked_for() {
    let table = Config { size: TableSize::Slots(1 << 16), ..Config::short() };
    let settings = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let are_never_given = settings.is_ok_and(|text| text.contains("[never]"));
    let pages = |small_pages| {
        let config = ServerConfig::new(Address::Shm("nowhere".into()), table).small_pages(small_pages);
        let prepared = index_for(&config).unwrap();
        let region = prepared.index.region();
        (region.huge_bytes(), region.backed_bytes())
    };
    let (huge, all) = pages(true);
    assert!(!are_never_given || huge == 0, "{huge} of {all}");
    until_huge(|| {
        let (huge, all) = pages(false);
        (huge >= all / 2).then_some(())
    });
}
