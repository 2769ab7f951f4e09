//! Other users of the host. Nobody but who runs a server owns its region, or decides who takes part.
//!
//! A thread of the test acts as the other user, which only root can arrange.

use crate::common::*;
use oneread::internals::wire::{PROTOCOL_VERSION, Request};
use oneread::{
    Address, Backing, Client, Config, ConnectError, MutateError, OwnerOptions, RequestPath, ServeError,
    Server, ServerConfig, Snapshots, StartMode, TableSize,
    error::{FileError, Refusal, RegionError, RestoreError, SnapshotError},
};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

fn small() -> Config {
    Config::new().size(TableSize::Keys(100))
}

/// Serves a table from this file, as root would.
fn serve(region: &Path) -> Result<Server, ServeError> {
    let place = Place::new();
    let config = ServerConfig::new(place.address.clone(), small());
    Server::start(config.backing(Backing::File(region.into())).start(StartMode::OpenOrCreate))
}

/// Another user makes the region file first. The server does not put a table into it, whether it is
/// empty or holds one, whatever its mode, and not through a link either.
#[test]
fn a_region_file_of_another_user_is_refused() {
    let dir = open_to_all();
    let path = |name: &str| dir.path().join(name);
    let made = as_stranger(|| {
        for (name, mode) in [("empty", 0o666), ("private", 0o600)] {
            std::fs::write(path(name), "").unwrap();
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        drop(serve(&path("table")).unwrap());
        std::os::unix::fs::symlink(path("private"), path("link")).unwrap();
        std::os::unix::fs::symlink(path("new"), path("dangling")).unwrap();
    });
    if made.is_none() {
        return;
    }
    for name in ["empty", "private", "table"] {
        let before = std::fs::metadata(path(name)).unwrap().len();
        match serve(&path(name)) {
            Err(ServeError::Region(RegionError::File(FileError::Owner { path: which, owner }))) => {
                assert_eq!((which, owner), (path(name), STRANGER));
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(std::fs::metadata(path(name)).unwrap().len(), before);
    }
    for name in ["link", "dangling"] {
        match serve(&path(name)) {
            Err(ServeError::Region(RegionError::File(FileError::Kind { .. }))) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(!path("new").exists());
}

/// Who may not look into the folder of a socket is told so, and not that there is no server.
#[test]
fn a_folder_that_is_closed_hides_no_server() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let address = Address::Shm(dir.path().join("socket"));
    let _server = start(ServerConfig::new(address.clone(), small()));
    let Some(refused) = as_stranger(|| Client::connect(&address)) else { return };
    let error = refused.unwrap_err();
    assert!(matches!(error, ConnectError::NoAccess { .. }), "{error}");
    assert!(error.to_string().contains("its server's user can allow that"), "{error}");
}

/// Another user makes the folders of the default places first: nothing is put there. Those that a
/// server makes are its user's alone. (In a process that no variable tells other places.)
#[test]
fn a_folder_of_another_user_is_no_default_place() {
    Process::start("strangers::default_places_child", &[("ONEREAD_TEST_ADDRESS", "none".into())]).finish();
}

/// Not a test by itself.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn default_places_child() {
    /// Removes folders when dropped.
    struct Gone<'a>(&'a [PathBuf; 2]);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        }
    }
    if told("ONEREAD_TEST_ADDRESS").is_none() {
        return;
    }
    let places_of = |user| {
        as_user(user, || {
            let Address::Shm(socket) = Address::default_of_user() else { panic!("not shm") };
            [oneread::internals::files::regions(), socket.parent().unwrap().to_path_buf()]
        })
    };
    // A user of whom nothing is there: not that of another run of this test.
    let users = 20_000 + std::process::id() % 40_000..;
    let is_new = |user: &u32| places_of(*user).is_none_or(|places| places.iter().all(|at| !at.exists()));
    let user = users.into_iter().find(is_new).expect("a user");
    let Some(places) = places_of(user) else { return };
    assert_eq!(places[0], Path::new(&format!("/dev/shm/oneread-{user}")));
    let [regions, sockets] = &places;
    let _gone = Gone(&places);
    // Somebody else (here: user 1) makes the folders of that user first.
    for folder in &places {
        std::fs::create_dir(folder).unwrap();
        std::os::unix::fs::chown(folder, Some(1), None).unwrap();
    }
    as_user(user, || {
        let config = ServerConfig::new(Address::default_of_user(), small());
        match Server::start(config) {
            Err(ServeError::File(why @ FileError::Squatted { .. })) => {
                let told = why.to_string();
                assert!(told.starts_with(&format!("{}, ", sockets.display())), "{told}");
                assert!(told.contains("user 1") && told.contains("set XDG_RUNTIME_DIR"), "{told}");
            }
            other => panic!("{other:?}"),
        }
        match serve(&regions.join("1.region")) {
            Err(ServeError::Region(RegionError::File(why @ FileError::Squatted { .. }))) => {
                let told = why.to_string();
                assert!(told.starts_with(&format!("{}, ", regions.display())), "{told}");
                assert!(told.contains("user 1") && told.contains("set ONEREAD_SHM"), "{told}");
            }
            other => panic!("{other:?}"),
        }
    });
    // A link of his is no better.
    for folder in &places {
        std::fs::remove_dir(folder).unwrap();
        std::os::unix::fs::symlink("/tmp", folder).unwrap();
        std::os::unix::fs::lchown(folder, Some(1), None).unwrap();
    }
    as_user(user, || {
        for why in [
            oneread::internals::files::prepare(&regions.join("1.region")),
            oneread::internals::files::prepare(&sockets.join("1.sock")),
        ] {
            assert!(matches!(why, Err(FileError::Squatted { owner: 1, .. })), "{why:?}");
        }
    });
    for folder in &places {
        std::fs::remove_file(folder).unwrap();
    }
    // The folders that the server makes are its user's alone.
    as_user(user, || {
        let config = ServerConfig::new(Address::default_of_user(), small());
        let backing = Backing::File(regions.join("1.region"));
        let _server = start(config.backing(backing).start(StartMode::OpenOrCreate));
        for folder in &places {
            let about = std::fs::metadata(folder).unwrap();
            assert_eq!(about.permissions().mode() & 0o7777, 0o700, "{}", folder.display());
        }
    });
}

fn connect(address: &Address) -> Result<Client, ConnectError> {
    Client::connect_with(address, patient())
}

/// A server that others reach, and its folder.
fn reachable(config: impl FnOnce(ServerConfig) -> ServerConfig) -> (Server, Address, tempfile::TempDir) {
    let dir = open_to_all();
    let address = Address::Shm(dir.path().join("socket"));
    let server = start(config(ServerConfig::new(address.clone(), small())));
    (server, address, dir)
}

/// Another user who listens at the address first gets nothing from a client that does not trust
/// that user: no hello, no put. A client that names the user connects.
#[test]
fn a_server_of_another_user_is_not_trusted() {
    let dir = open_to_all();
    let address = Address::Shm(dir.path().join("socket"));
    let Some(server) = as_stranger(|| {
        let root = rustix::process::getuid().as_raw();
        assert_eq!(root, STRANGER);
        start(ServerConfig::new(address.clone(), small()))
    }) else {
        return;
    };
    match connect(&address) {
        Err(ConnectError::Stranger { address: which, uid }) => {
            assert_eq!((which, uid), (address.clone(), STRANGER))
        }
        other => panic!("{other:?}"),
    }
    let named = patient().server_uids([STRANGER]);
    let mut client = Client::connect_with(&address, named).unwrap();
    client.put(b"key", b"value").unwrap();
    assert_eq!(server.stats().inserts, 1);
    // Root's servers are everybody's.
    let (_server, address, _dir) = reachable(|config| config.allow_uids([STRANGER]));
    as_stranger(|| connect(&address).unwrap().put(b"key", b"value").unwrap());
}

/// A server in a folder that root has given to its user is trusted by whoever names that folder, and lets
/// root in. So is not one in a folder that a link leads to: others may have made that.
#[test]
fn a_service_of_another_user_is_trusted_in_its_folder() {
    let folder = match tempfile::tempdir_in("/run") {
        Ok(folder) => folder,
        Err(why) => return eprintln!("skipped: only root can give a folder in /run to a user ({why})"),
    };
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(STRANGER), None).unwrap();
    let (path, region) = (folder.path().join("socket"), folder.path().join("region"));
    let address = Address::Shm(path);
    let Some(server) = as_stranger(|| {
        let config = ServerConfig::new(address.clone(), small()).backing(Backing::File(region));
        start(config.allow_uids([STRANGER + 1]))
    }) else {
        return;
    };
    Client::connect(&address).unwrap().put(b"key", b"value").unwrap();
    assert_eq!(server.stats().inserts, 1);
    let elsewhere = open_to_all();
    std::os::unix::fs::symlink(folder.path(), elsewhere.path().join("link")).unwrap();
    match Client::connect(&Address::Shm(elsewhere.path().join("link/socket"))) {
        Err(ConnectError::Stranger { uid: STRANGER, .. }) => {}
        other => panic!("{other:?}"),
    }
    // Nor if others may put something there.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(matches!(Client::connect(&address), Err(ConnectError::Stranger { .. })));
    as_stranger(|| drop(server));
}

/// A reader of another user locks what it was handed. The next server starts all the same.
#[test]
fn a_reader_stops_no_restart() {
    let dir = open_to_all();
    let (address, region) = (Address::Shm(dir.path().join("socket")), dir.path().join("region"));
    let config = ServerConfig::new(address.clone(), small()).backing(Backing::File(region));
    let config = config.allow_read_uids([STRANGER]).start(StartMode::OpenOrCreate);
    let server = start(config.clone());
    let handed = as_stranger(|| {
        let mut stream = UnixStream::connect(address.socket().unwrap()).unwrap();
        let hello = Request::Hello { version: PROTOCOL_VERSION };
        let mut bytes = Vec::new();
        hello.encode(0, &mut bytes);
        stream.write_all(&bytes).unwrap();
        let (_, handed) = receive(&stream);
        let handed = handed.expect("the region");
        rustix::fs::flock(&handed, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        handed
    });
    let Some(handed) = handed else { return };
    server.stop();
    start(config).stop();
    drop(handed);
}

/// A snapshot that another user has put where a server makes its own is not adopted, whether or not there is
/// a table already. One that is named is.
#[test]
fn a_planted_snapshot_is_refused() {
    let dir = open_to_all();
    let path = |name: &str| dir.path().join(name);
    let planted = as_stranger(|| {
        let place = Place::new();
        let config =
            ServerConfig::new(place.address.clone(), small()).snapshots(Snapshots::new(path("theirs")));
        let server = start(config);
        Client::connect(&place.address).unwrap().put(b"key", b"planted").unwrap();
        server.stop().saved.unwrap().unwrap();
    });
    if planted.is_none() {
        return;
    }
    let place = Place::new();
    let config = ServerConfig::new(place.address.clone(), small())
        .backing(Backing::File(place.dir.path().join("region")))
        .start(StartMode::OpenOrCreate);
    let own = config.clone().snapshots(Snapshots::new(path("theirs")));
    let refused = || match Server::start(own.clone()) {
        Err(ServeError::Restore {
            source: RestoreError::Snapshot(SnapshotError::File { source }), ..
        }) => {
            assert!(matches!(source, FileError::Owner { owner: STRANGER, .. }), "{source}");
        }
        other => panic!("{other:?}"),
    };
    refused();
    let named = start(config.restore(path("theirs")));
    assert_eq!(named.restored().map(|from| from.keys), Some(1));
    named.stop();
    refused();
}

/// A user who may only read gets every GET, and changes nothing, whichever way requests go. A user
/// who may do neither is told so.
#[test]
fn readers_change_nothing() {
    let (server, address, _dir) = reachable(|config| config.allow_read_uids([STRANGER]));
    connect(&address).unwrap().put(b"key", b"value").unwrap();
    let before = server.stats();
    let done = as_stranger(|| {
        for path in [RequestPath::Message, RequestPath::Mailbox] {
            let mut client = Client::connect_with(&address, patient().requests(path)).unwrap();
            assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
            assert_eq!(client.get_two_sided(b"key").unwrap().as_deref(), Some(&b"value"[..]));
            let pairs: Vec<_> = (0..1000u32).map(|n| (n.to_le_bytes(), b"other")).collect();
            for denied in [
                client.put(b"key", b"other").map(drop),
                client.insert(b"new", b"other").map(drop),
                client.update(b"key", b"other").map(drop),
                client.remove(b"key").map(drop),
                client.compare_and_swap(b"key", b"value", b"other").map(drop),
                client.remove_many(&[b"key"]).map(drop),
                client.put_many(&pairs).map(drop),
            ] {
                assert!(matches!(denied, Err(MutateError::ReadOnly { .. })), "{denied:?}");
            }
            let error = client.owner(OwnerOptions::new(7)).unwrap_err();
            assert!(matches!(error, ConnectError::ReadOnly { .. }), "{error}");
            assert_eq!(client.server_stats().unwrap().keys, 1, "the connection is as good as before");
        }
    });
    if done.is_none() {
        return;
    }
    let after = server.stats();
    assert_eq!(
        (after.inserts, after.updates, after.removes),
        (before.inserts, before.updates, before.removes)
    );
    let (_server, address, _dir) = reachable(|config| config);
    as_stranger(|| match connect(&address) {
        Err(ConnectError::TurnedAway { source: Refusal::User { uid: STRANGER }, .. }) => {}
        other => panic!("{other:?}"),
    });
}

/// A permitted user who takes every connection it can get leaves the others theirs.
#[test]
fn a_user_takes_its_own_connections_only() {
    let (server, address, _dir) =
        reachable(|config| config.allow_uids([STRANGER]).clients_max(5).clients_per_peer(3));
    let hoard = as_stranger(|| {
        let clients: Vec<_> = (0..3).map(|_| connect(&address).unwrap()).collect();
        for _ in 0..3 {
            match connect(&address) {
                Err(ConnectError::TurnedAway { source: Refusal::PeerFull { max: 3 }, .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        clients
    });
    let Some(hoard) = hoard else { return };
    connect(&address).unwrap().put(b"key", b"value").unwrap();
    drop(hoard);
    wait_for("all to have gone", || (server.stats().clients == 0).then_some(()));
    as_stranger(|| connect(&address).unwrap());
}

// ---- memory -----------------------------------------------------------------------------------------

/// A table that does not fit into memory is refused at once, and the error names one that fits.
#[test]
fn a_table_that_does_not_fit_is_refused() {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total: u64 = total.unwrap().parse::<u64>().unwrap() << 10;
    let place = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = memory.path().join("region");
    for backing in [Backing::Anonymous, Backing::File(file.clone())] {
        for size in [TableSize::Keys(total / 32), TableSize::Slots(total / 32)] {
            let table = Config::new().size(size);
            let config = ServerConfig::new(place.address.clone(), table).backing(backing.clone());
            let fits = match Server::start(config) {
                Err(ServeError::NoRoom { source: RegionError::NoRoom { need, left, .. }, fits }) => {
                    assert!(need > 2 * total && left < need);
                    // Of its heap, none is taken at once.
                    let most = Config::new().size(fits).geometry().unwrap().bytes_at_first();
                    // What is left now need not be left when the smaller one is made.
                    assert!(most <= left / 10 * 9 && most > left / 2, "{most} of {left}");
                    fits
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(matches!(fits, TableSize::Keys(_)), matches!(size, TableSize::Keys(_)));
        }
    }
    assert!(!file.exists());
}

// ---- file descriptors -------------------------------------------------------------------------------

/// Lets this process have so many file descriptors.
fn limit_descriptors(current: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

/// A server that could let nobody in does not start. Not a test by itself.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn poorest_server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    limit_descriptors(24);
    let refused = oneread::Server::start(ServerConfig::new(address.parse().unwrap(), small())).unwrap_err();
    assert!(matches!(refused, oneread::ServeError::Descriptors { limit: 24 }), "{refused}");
}

/// A server that could let nobody in says so at its start.
#[test]
fn a_server_that_has_no_descriptor_for_a_client_does_not_start() {
    let place = Place::new();
    let address = place.address.to_string();
    Process::start("strangers::poorest_server_child", &[("ONEREAD_TEST_ADDRESS", address)]).finish();
    assert!(!place.address.socket().unwrap().exists());
}

/// Serves with few file descriptors until its parent closes its input. Not a test by itself.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn poor_server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    limit_descriptors(40);
    serve_until_told(ServerConfig::new(address.parse().unwrap(), small()));
}

/// A server without descriptors goes on to serve whom it has, and tells everybody else why they
/// cannot connect. When clients have gone, there is room again.
#[test]
fn a_server_without_descriptors_says_so() {
    let place = Place::new();
    let _server = Process::start(
        "strangers::poor_server_child",
        &[("ONEREAD_TEST_ADDRESS", place.address.to_string())],
    );
    let mut client = wait_for("the server", || Client::connect_with(&place.address, patient()).ok());
    client.put(b"key", b"value").unwrap();
    let socket = place.address.socket().unwrap();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(UnixStream::connect(socket).unwrap());
    }
    for _ in 0..10 {
        match Client::connect_with(&place.address, patient()) {
            Err(ConnectError::TurnedAway { source: Refusal::Descriptors, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    client.put(b"key", b"other").unwrap();
    drop(crowd);
    wait_for("room", || Client::connect_with(&place.address, patient()).ok());
}

/// A client's process with few file descriptors. Not a test by itself.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn poor_client_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let address = address.parse().unwrap();
    limit_descriptors(40);
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    // With 0 to 2 descriptors left: no socket, no region, no alarm.
    for _ in 0..3 {
        match Client::connect_with(&address, patient()) {
            Err(ConnectError::Descriptors { .. }) => {}
            Ok(_) => break,
            other => panic!("{other:?}"),
        }
        taken.pop();
    }
    taken.truncate(10);
    Client::connect_with(&address, patient()).unwrap().put(b"key", b"value").unwrap();
}

/// A client whose own process is out of descriptors is told so, whichever one is missing.
#[test]
fn a_client_without_descriptors_says_so() {
    let place = Place::new();
    let server = start(ServerConfig::new(place.address.clone(), small()));
    Process::start("strangers::poor_client_child", &[("ONEREAD_TEST_ADDRESS", place.address.to_string())])
        .finish();
    assert_eq!(server.stats().inserts, 1);
}
