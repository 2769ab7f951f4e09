//! Clients and servers in children made by `fork`: they know that they are not the ones of the parent, and leave
//! those alone. And what such a child keeps open keeps no server alive.
//!
//! A program of its own: a child has what other tests' threads have locked, and keeps it locked.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "fork")]

mod common;

use common::{Process, config, default_preset, patient, told, value, wait_for};
use oneread::internals::client::RequestPath;
use oneread::internals::peer::{NoProcess, PeerProcess, SocketPeer};
use oneread::internals::region::{Backing, RegionError};
use oneread::internals::server::StartMode;
use oneread::{
    Address, AskError, Client, ClientOptions, ClientPool, ConnectError, GetError, MutateError, PutOutcome,
    ServeError, Server, ServerConfig, TcpAddress,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// One test at a time: what another one's threads have locked stays locked in a child.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child of this process, killed when this is dropped.
struct Forked(Pid);

impl Forked {
    /// Makes a copy of this process, in which `story` is all that happens.
    fn new(story: impl FnOnce()) -> Forked {
        // SAFETY: no other test runs, and what the child does needs no lock that a server's thread holds for long.
        match unsafe { fork() } {
            0 => {
                let failed = catch_unwind(AssertUnwindSafe(story)).is_err();
                // SAFETY: it ends this process.
                unsafe { _exit(failed.into()) }
            }
            pid => Forked(Pid::from_raw(pid).expect("a child")),
        }
    }

    /// Waits for its end.
    fn succeeds(self) -> bool {
        let ended = waitpid(Some(self.0), WaitOptions::empty()).unwrap();
        std::mem::forget(self);
        ended.is_some_and(|(_, status)| status.exit_status() == Some(0))
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Keeps what this process has open until it is killed.
fn stay() {
    loop {
        std::thread::park();
    }
}

struct Place {
    dir: TempDir,
    config: ServerConfig,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Shm(dir.path().join("sock"));
        let table = config(default_preset(), 1 << 10, 16, 32, 3);
        let backing = Backing::File(dir.path().join("region"));
        let config = ServerConfig::new(address, table).backing(backing).start(StartMode::OpenOrCreate);
        Place { dir, config }
    }

    fn serve(&self) -> Server {
        Server::start(self.config.clone()).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    fn client(&self, options: ClientOptions) -> Client {
        Client::connect_with(&self.config.address, options).unwrap()
    }
}

/// A pool belongs to its process, whatever its threads hold at that moment. In a child it lends handles that
/// answer nothing, at once, even at its bound.
#[test]
fn pools_stay_with_their_process() {
    let _alone = alone();
    let place = Place::new();
    let server = place.serve();
    let pool = ClientPool::new(place.client(patient())).handles_max(1);
    let mut held = Some(pool.get());
    held.as_mut().unwrap().put(b"key", b"value").unwrap();
    let mut theirs = Some(pool.clone());
    let child = Forked::new(|| {
        let pool = theirs.take().unwrap();
        for _ in 0..3 {
            for mut one in [pool.get(), pool.try_get().unwrap()] {
                assert!(matches!(one.get(b"key"), Err(GetError::Connect(ConnectError::Forked { .. }))));
                let put = one.put(b"key", b"child");
                assert!(matches!(put, Err(MutateError::Connect(ConnectError::Forked { .. }))));
            }
        }
        assert_eq!(pool.stats().changes.puts, 0);
        drop(held.take());
        let pool = pool.handles_max(9);
        drop(pool);
    });
    assert!(child.succeeds());
    assert_eq!(held.as_mut().unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(pool.try_get().is_none(), "the child gave nothing back");
    drop(held);
    assert_eq!(pool.get().put(b"key", b"later").unwrap(), PutOutcome::Updated);
    assert_eq!(pool.stats().changes.puts, 2);
    server.stop();
}

/// All operations of a client end at once in a child. The parent's client gets the answers to its own requests,
/// by any path, also while the child asks, clones and drops. A client of the child's own works there.
#[test]
fn clients_stay_with_their_process() {
    let _alone = alone();
    let place = Place::new();
    let server = place.serve();
    for requests in [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox] {
        let mut client = Some(place.client(patient().requests(requests)));
        let mut theirs = client.clone();
        for one in [&mut client, &mut theirs] {
            one.as_mut().unwrap().put(b"key", b"value").unwrap();
            assert!(one.as_mut().unwrap().contains(b"key").unwrap());
        }
        let child = Forked::new(|| {
            for one in [&mut client, &mut theirs] {
                let mut one = one.take().unwrap();
                for _ in 0..100 {
                    let put = one.put(b"child", b"value");
                    assert!(matches!(put, Err(MutateError::Connect(ConnectError::Forked { .. }))));
                    let puts = one.put_many(&[("child", "value")]);
                    assert!(matches!(puts, Err(MutateError::Connect(ConnectError::Forked { .. }))));
                    for get in [one.get(b"key"), one.clone().get(b"key")] {
                        assert!(matches!(get, Err(GetError::Connect(ConnectError::Forked { .. }))));
                    }
                    let gets = one.get_many(&["key"]);
                    assert!(matches!(gets, Err(GetError::Connect(ConnectError::Forked { .. }))));
                    assert!(matches!(one.server_stats(), Err(AskError::Connect(_))));
                }
            }
            let mut own = place.client(patient());
            assert_eq!(own.put(b"own", b"value").unwrap(), PutOutcome::Inserted);
            assert_eq!(own.get(b"own").unwrap().as_deref(), Some(&b"value"[..]));
            assert!(own.is_served());
        });
        for (n, name) in (0..500u32).zip([b"a", b"b"].into_iter().cycle()) {
            for one in [&mut client, &mut theirs] {
                let one = one.as_mut().unwrap();
                let value = value(n.into(), 20);
                one.put(name, &value).unwrap();
                let mut got = Vec::new();
                assert_eq!(server.index().reader().get_into(name, &mut got), Ok(true));
                assert!(got == value && one.get(name).unwrap() == Some(value), "{n}");
            }
        }
        assert!(child.succeeds(), "{requests:?}");
        assert!(client.as_mut().unwrap().contains(b"own").unwrap());
        assert!(!client.as_mut().unwrap().contains(b"child").unwrap());
        assert!(client.as_mut().unwrap().remove(b"own").unwrap());
    }
}

/// A child that drops its copy of a server ends nothing, and lets nobody else have the region.
#[test]
fn servers_stay_with_their_process() {
    let _alone = alone();
    let place = Place::new();
    let mut server = Some(place.serve());
    let mut client = place.client(patient());
    client.put(b"key", b"value").unwrap();
    let child = Forked::new(|| drop(server.take()));
    assert!(child.succeeds());
    assert!(place.socket().exists() && client.is_served());
    assert_eq!(client.put(b"key", b"other").unwrap(), PutOutcome::Updated);
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"other"[..]));
    let address = Address::Shm(place.dir.path().join("other"));
    let mut config = place.config.clone();
    config.address = address;
    let second = Server::start(config);
    assert!(matches!(second, Err(ServeError::Region(RegionError::InUse { .. }))), "{second:?}");
    server.unwrap().stop();
}

/// A server that has stopped is gone for its clients, and the next one may begin, whatever a child keeps open.
#[test]
fn a_child_keeps_no_stopped_server_alive() {
    let _alone = alone();
    let place = Place::new();
    let server = place.serve();
    let mut client = place.client(patient());
    let mut theirs = client.clone();
    for one in [&mut client, &mut theirs] {
        one.put(b"key", b"value").unwrap();
    }
    let name = place.dir.path().join("name");
    std::fs::hard_link(place.socket(), &name).unwrap();
    let _child = Forked::new(stay);
    server.stop();
    wait_for("the client to notice", || (!client.is_served()).then_some(()));
    let refused = UnixStream::connect(&name).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "somebody listens");
    for one in [&mut client, &mut theirs] {
        let gone = one.put(b"key", b"other").unwrap_err();
        assert!(matches!(gone, MutateError::Connect(ConnectError::NotThere { .. })), "{gone}");
    }
    let server = place.serve();
    for one in [&mut client, &mut theirs] {
        assert_eq!(one.put(b"key", b"other").unwrap(), PutOutcome::Updated);
    }
    server.stop();
}

/// Over TCP, too: nobody listens to the port of a stopped server, and the next server does.
#[test]
fn a_child_keeps_no_port() {
    let _alone = alone();
    let mut place = Place::new();
    place.config.address = Address::Tcp(TcpAddress::new("127.0.0.1", 0));
    let server = place.serve();
    place.config.address = server.address().clone();
    let mut client = place.client(patient().deadline(Duration::from_secs(1)));
    client.put(b"key", b"value").unwrap();
    let _child = Forked::new(stay);
    let port = server.tcp_address().unwrap().port();
    server.stop();
    let refused = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "somebody listens");
    let gone = client.put(b"key", b"other").unwrap_err();
    assert!(matches!(gone, MutateError::Connect(ConnectError::NotThere { .. })), "{gone}");
    let server = place.serve();
    let mut next = place.client(patient());
    assert_eq!(next.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(next.put(b"key", b"other").unwrap(), PutOutcome::Updated);
    server.stop();
}

/// A client notices that its server was killed, also if a child of the server's keeps its sockets.
#[test]
fn a_child_keeps_no_killed_server_alive() {
    let _alone = alone();
    let place = Place::new();
    let address = ("ONEREAD_TEST_ADDRESS", place.config.address.to_string());
    let server = Process::start("forking_child", &[address]);
    wait_for("the server to come up", || UnixStream::connect(place.socket()).ok());
    let mut client = place.client(patient());
    client.put(b"key", b"value").unwrap();
    // The child is there.
    wait_for("the child", || client.get(b"forked").unwrap());
    server.signal(Signal::KILL);
    wait_for("the client to notice", || (!client.is_served()).then_some(()));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "the lease");
    assert!(UnixStream::connect(place.socket()).is_ok(), "the child keeps its sockets");
}

/// Who listens is not told by the number of a process that has ended, though a child of it has the socket, and though
/// another process has the number.
#[test]
fn a_number_that_is_anothers_names_nobody() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let listens = Forked::new(|| listen(&listener, 8).unwrap());
    let pid = listens.0;
    assert!(listens.succeeds());
    let stream = UnixStream::connect(&path).expect("this process has the socket");
    assert_eq!(SocketPeer::of(&stream).unwrap().pid, Some(pid));
    let nobody = |found: Result<PeerProcess, NoProcess>| match found {
        Err(NoProcess::Ended(told) | NoProcess::Unproved(told)) => assert_eq!(told, pid),
        other => panic!("{other:?}"),
    };
    let ask = || {
        nobody(PeerProcess::listening(&stream, &path));
        nobody(PeerProcess::holding(pid, &path));
    };
    ask();
    // Only root may say which number is the next one.
    let next = "/proc/sys/kernel/ns_last_pid";
    for _ in 0..1_000 {
        if std::fs::write(next, (pid.as_raw_nonzero().get() - 1).to_string()).is_err() {
            return;
        }
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let has_number = Pid::from_child(&stranger) == pid;
        if has_number {
            ask();
        }
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        if has_number {
            return;
        }
    }
    panic!("no process gets the number {pid:?}");
}

/// Serves, and has a child that stays until its input ends. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn forking_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let table = config(default_preset(), 1 << 10, 16, 32, 3);
    let server = Server::start(ServerConfig::new(address.parse().unwrap(), table)).unwrap();
    let ends = || drop(std::io::stdin().lock().read(&mut [0]));
    // The client is connected.
    let is_put = || server.index().reader().get_into(b"key", &mut Vec::new()) == Ok(true);
    wait_for("the client", || is_put().then_some(()));
    std::mem::forget(Forked::new(ends));
    server.index().put(b"forked", b"", oneread::PutMode::Insert).unwrap();
    ends();
}
