//! The Unix socket of a server: binding its path, clearing a dead server's socket away, and binding it again if others
//! remove it.

use super::end::Retired;
use super::error::ServeError;
use super::session;
use crate::address::Address;
use crate::base::sync::lock_std;
use crate::files::{self, FileError, LockFile};
use crate::outcome::with_causes;
use crate::wire::Refusal;
use mio::net::{UnixListener, UnixStream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The token of the listener's events in workers.
pub(super) const LISTENER: Token = Token(0);

/// Longest wait for the lock of an address. Servers hold it for microseconds.
const CLAIM_MAX: Duration = Duration::from_secs(1);

/// A server's socket: its path, and the listener that is bound to it.
#[derive(Debug)]
pub(super) struct Socket {
    address: Address,
    path: PathBuf,
    state: Mutex<SocketState>,
}

#[derive(Debug)]
struct SocketState {
    bound: Bound,
    /// The registries of the workers that accept clients.
    watched_by: Vec<Registry>,
    /// Whether it was logged that clients do not find the socket any more.
    is_told: bool,
}

/// A listener and the socket in the file system that leads to it.
#[derive(Debug)]
pub(super) struct Bound {
    pub listener: Arc<UnixListener>,
    /// Kept open, so that no other file gets its number.
    file: OwnedFd,
}

impl Bound {
    /// Takes a listener that was just bound to this path, and lets every user connect. Credentials decide about access,
    /// not permissions, so that a refusal can give its reason.
    ///
    /// # Errors
    /// The system's error. Also fails if the path does not lead to a socket of this user any more. Files of others stay
    /// as they are.
    pub fn new(path: &Path, listener: std::os::unix::net::UnixListener) -> io::Result<Bound> {
        listener.set_nonblocking(true)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let about = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(about.st_mode) == FileType::Socket;
        if !is_socket || about.st_uid != files::own_uid() {
            return Err(io::Error::other("another user has put something in the place of the new socket"));
        }
        files::set_mode(&file, Mode::from_raw_mode(0o666))?;
        Ok(Bound { listener: Arc::new(UnixListener::from_std(listener)), file })
    }

    fn watch(&self, registry: &Registry) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.listener.as_raw_fd()), LISTENER, Interest::READABLE)
    }
}

impl Socket {
    /// Takes what was bound to the path of this address.
    pub fn new(address: &Address, path: &Path, bound: Bound) -> Socket {
        let state = SocketState { bound, watched_by: Vec::new(), is_told: false };
        Socket { address: address.clone(), path: files::fixed(path), state: Mutex::new(state) }
    }

    /// The listener to accept from.
    pub fn listener(&self) -> Arc<UnixListener> {
        lock_std(&self.state).bound.listener.clone()
    }

    /// Has a worker accept clients, through this registry.
    pub fn watch(&self, registry: &Registry) -> io::Result<()> {
        let state = &mut *lock_std(&self.state);
        state.bound.watch(registry)?;
        state.watched_by.push(registry.try_clone()?);
        Ok(())
    }

    /// Checks whether clients find the socket. Binds it again if it was removed. If others have put something in its
    /// place, that stays. Logs once what it found.
    pub fn look(&self) {
        let state = &mut *lock_std(&self.state);
        if files::stands_at(&state.bound.file, &self.path) {
            return;
        }
        let address = &self.address;
        let is_told = std::mem::replace(&mut state.is_told, true);
        if self.path.symlink_metadata().is_ok() {
            if !is_told {
                tracing::error!(%address, "the socket was replaced: new clients do not find this server; stop it, or what took its place");
            }
            return;
        }
        match self.bind_again(&state.watched_by) {
            Ok(again) => {
                (state.bound, state.is_told) = (again, false);
                tracing::warn!(%address, "the socket was removed; bound it again");
            }
            Err(why) if !is_told => {
                let why = with_causes(&why);
                tracing::error!(%address, why, "the socket was removed and cannot be bound again: new clients do not find this server");
            }
            Err(_) => {}
        }
    }

    /// Binds the path again, unless another server is about to.
    fn bind_again(&self, watched_by: &[Registry]) -> Result<Bound, ServeError> {
        let failed = |source| ServeError::Listen { address: self.address.clone(), source };
        files::prepare(&self.path)?;
        let _claim = claim(&self.path, Duration::ZERO).map_err(failed)?;
        let bound = bind(&self.address, &self.path)?;
        watched_by.iter().try_for_each(|registry| bound.watch(registry)).map_err(failed)?;
        Ok(bound)
    }

    /// Removes the path, then closes the listener.
    pub fn remove(self, retired: &Retired) {
        // Meanwhile no other server binds the path.
        let _claim = claim(&self.path, CLAIM_MAX);
        self.remove_by(retired, |path| drop(std::fs::remove_file(path)));
    }

    /// No other server takes the address while the listener is open. So clients never see changes of both servers.
    /// Removes only this server's own socket: if another process has removed that before, another server may be at the
    /// path.
    fn remove_by(self, _: &Retired, remove: impl FnOnce(&Path)) {
        let Socket { path, state, .. } = self;
        let Bound { listener, file } = state.into_inner().unwrap_or_else(PoisonError::into_inner).bound;
        if files::stands_at(&file, &path) {
            remove(&path);
        }
        // No client connects any more, even if a child made by `fork` has the same listener.
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        // Clients that found the path before, and were not accepted.
        while let Ok((stream, _)) = listener.accept() {
            session::refuse(&stream, Refusal::Stopping);
        }
        drop(listener);
    }
}

/// Binds the socket, while no other server binds it.
pub(super) fn listen(address: &Address, path: &Path) -> Result<Bound, ServeError> {
    files::prepare(path)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(ServeError::NoFolder { path: folder.into() });
    }
    let _claim = claim(path, CLAIM_MAX).inspect_err(|why| {
        tracing::warn!(%address, %why, "the address is not locked; start no second server here right now");
    });
    bind(address, path)
}

/// Binds the socket. Replaces a socket that no process listens to any more.
fn bind(address: &Address, path: &Path) -> Result<Bound, ServeError> {
    let failed = |source| ServeError::Listen { address: address.clone(), source };
    match UnixStream::connect(path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(failed(e)),
        // A server is there, perhaps without room for one more connection.
        _ => return Err(ServeError::AddressInUse { address: address.clone() }),
    }
    // Removes only a socket.
    match std::fs::symlink_metadata(path).map(|about| about.file_type()) {
        Ok(kind) if std::os::unix::fs::FileTypeExt::is_socket(&kind) => {
            std::fs::remove_file(path).map_err(failed)?;
        }
        Ok(kind) => {
            let kind = match kind {
                kind if kind.is_dir() => "folder",
                kind if kind.is_symlink() => "link",
                _ => "file",
            };
            return Err(ServeError::NoSocket { path: path.into(), kind });
        }
        Err(_) => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
    Bound::new(path, listener).map_err(failed)
}

/// Locks a socket's path until the result is dropped. Without the lock, of two servers that start at once,
/// both could find no server there, and the second would remove the first one's socket. Fails if no file
/// can be made beside the path, or if another process keeps the lock.
fn claim(path: &Path, within: Duration) -> io::Result<LockFile> {
    match LockFile::take(path, within) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(io::Error::new(io::ErrorKind::WouldBlock, "another process keeps its lock")),
        Err(FileError::Os { source, .. }) => Err(source),
        Err(error) => Err(io::Error::other(error)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::end::Ended;
    use super::super::shared::ServerState;
    use super::super::tests::table;
    use super::super::{ServeError, Server, ServerConfig};
    use super::*;
    use crate::address::Address;
    use crate::config::{Config, TableSize};
    use crate::layout::control::{Phase, STATE_WORD, State};
    use crate::region::Backing;
    use crate::wire::Reply;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    fn phase(shared: &ServerState) -> Phase {
        State::from_word(shared.index.region().load(STATE_WORD)).phase
    }

    /// When the path is removed, all threads have ended, an anonymous region is given up (a file is
    /// handed over), and the address is still taken.
    #[test]
    fn a_server_ends_threads_then_region_then_path() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let address = Address::Shm(dir.path().join("socket"));
        for (backing, expected) in
            [(Backing::Anonymous, Phase::Retired), (Backing::File(dir.path().join("region")), Phase::Stopped)]
        {
            let region_stays = expected == Phase::Stopped;
            let config = ServerConfig { backing, ..ServerConfig::new(address.clone(), config) };
            let mut server = Server::start(config.clone()).unwrap();
            assert_eq!(server.shared.region_stays(), region_stays);
            let shared = server.shared.clone();
            assert_eq!((phase(&shared), shared.is_stopping()), (Phase::Serving, false));
            // These are the steps of dropping the server.
            let ended = Ended::new(&shared.stopping, &mut server.threads, &shared.index);
            assert!(shared.is_stopping() && server.threads.is_empty());
            assert_eq!(phase(&shared), Phase::Serving);
            let retired = Retired::new(&ended, &shared.index, shared.region_stays());
            let mut waiting = None;
            Arc::into_inner(server.socket.take().unwrap()).unwrap().remove_by(&retired, |path| {
                assert_eq!(phase(&shared), expected, "{:?}", config.backing);
                // `server` and this test hold the only references: the threads have dropped theirs.
                assert_eq!(Arc::strong_count(&shared), 2, "a thread is left");
                waiting = Some(UnixStream::connect(path).expect("somebody listens"));
                let other = Server::start(ServerConfig { backing: Backing::Anonymous, ..config.clone() });
                assert!(matches!(other, Err(ServeError::AddressInUse { .. })), "the address is taken");
                std::fs::remove_file(path).unwrap();
            });
            // Who was not accepted any more is told why.
            let (mut told, mut expected) = (Vec::new(), Vec::new());
            waiting.expect("the path was removed").read_to_end(&mut told).unwrap();
            Reply::TurnedAway(Refusal::Stopping).encode(0, &mut expected);
            assert_eq!(told, expected);
            drop(server);
            Server::start(ServerConfig { backing: Backing::Anonymous, ..config }).unwrap().stop();
        }
    }

    /// A socket that was removed is bound again, clients are accepted there, and it goes with the server.
    #[test]
    fn a_removed_socket_is_bound_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = Address::Shm(path.clone());
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(address.clone(), config)).unwrap();
        std::fs::remove_file(&path).unwrap();
        server.socket.as_ref().unwrap().look();
        let clients: Vec<_> = (0..8).map(|_| crate::Client::connect(&address).unwrap()).collect();
        assert_eq!(server.shared.stats().clients, clients.len() as u64);
        server.stop();
        assert!(!path.exists(), "it removes what it has bound");
    }

    /// A server in service looks by itself: for its socket, its region file, and the lock of that.
    #[test]
    fn a_server_looks_around() {
        let dir = tempfile::tempdir().unwrap();
        let (path, region) = (dir.path().join("socket"), dir.path().join("region"));
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let config =
            ServerConfig::new(Address::Shm(path.clone()), config).backing(Backing::File(region.clone()));
        for gone in ["region", "region.lock"] {
            let server = Server::start(config.clone()).unwrap();
            for gone in [gone, "socket"] {
                std::fs::remove_file(dir.path().join(gone)).unwrap();
            }
            let give_up = Instant::now() + Duration::from_secs(60);
            while !(path.exists() && server.shared.is_loss_told.load(Ordering::Relaxed)) {
                assert!(Instant::now() < give_up, "it does not notice that {gone} or the socket is gone");
                std::thread::sleep(Duration::from_millis(10));
            }
            server.stop();
            let _ = std::fs::remove_file(&region);
        }
    }

    /// What stands where the socket was, and is not this server's, stays: a successor's socket, whatever its
    /// inode's number, or a file.
    #[test]
    fn a_successor_keeps_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let start = || Server::start(ServerConfig::new(Address::Shm(path.clone()), config));
        let first = start().unwrap();
        let socket = first.socket.clone().unwrap();
        // The first one may look just then, and bind its socket again.
        let second = std::iter::repeat_with(|| {
            let _ = std::fs::remove_file(&path);
            start()
        });
        let second = second.take(1_000).find_map(Result::ok).expect("it finds the address free at last");
        socket.look();
        drop(socket);
        first.stop();
        UnixStream::connect(&path).expect("the second is still there");
        let socket = second.socket.clone().unwrap();
        std::fs::write(dir.path().join("file"), "a file").unwrap();
        std::fs::rename(dir.path().join("file"), &path).unwrap();
        socket.look();
        drop(socket);
        second.stop();
        assert!(path.is_file());
    }

    /// A server whose region file was removed or replaced says that nothing stays, and gives the region up:
    /// nobody takes it over.
    #[test]
    fn a_region_that_is_gone_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, region) = (dir.path().join("socket"), dir.path().join("region"));
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let config = ServerConfig::new(Address::Shm(path), config).backing(Backing::File(region.clone()));
        for (replaced, stays, left) in [
            (None, true, Phase::Stopped),
            (Some(false), false, Phase::Retired),
            (Some(true), false, Phase::Retired),
        ] {
            let server = Server::start(config.clone()).unwrap();
            let shared = server.shared.clone();
            if let Some(is_there) = replaced {
                std::fs::remove_file(&region).unwrap();
                if is_there {
                    std::fs::write(&region, [0; 8192]).unwrap();
                }
            }
            assert_eq!((server.stop().region_stays, phase(&shared)), (stays, left), "{replaced:?}");
            let _ = std::fs::remove_file(&region);
        }
    }

    /// Dropping a server takes all of these steps.
    #[test]
    fn dropping_a_server_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { size: TableSize::Keys(10), ..Config::short() };
        let path = dir.path().join("socket");
        let server = Server::start(ServerConfig::new(Address::Shm(path.clone()), config)).unwrap();
        let shared = server.shared.clone();
        let mut clients: Vec<_> = (0..5).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let give_up = Instant::now() + Duration::from_secs(60);
        while shared.stats().clients < 5 {
            assert!(Instant::now() < give_up);
            std::thread::yield_now();
        }
        server.stop();
        assert_eq!((phase(&shared), shared.is_stopping(), path.exists()), (Phase::Retired, true, false));
        assert_eq!(shared.stats().clients, 0, "nobody is connected any more");
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is told so");
        }
        assert_eq!(Arc::strong_count(&shared), 1, "a thread is left");
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
            let _client = UnixStream::connect(&path).unwrap();
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

    /// Everybody may connect to a new socket. What others have put in its place is not opened to everybody: a link is not
    /// followed, and the start fails.
    #[test]
    fn only_the_new_socket_is_opened_to_all() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let [path, secret] = ["socket", "secret"].map(|name| dir.path().join(name));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let bound = listen(&Address::Shm(path.clone()), &path).unwrap();
        assert_eq!(mode(&path), 0o666);
        drop(bound);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&secret, "of this user alone").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = || {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            listener
        };
        let swapped = listener();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let refused = Bound::new(&path, swapped).unwrap_err();
        assert!(refused.to_string().contains("another user"), "{refused}");
        std::fs::remove_file(&path).unwrap();
        let swapped = listener();
        std::fs::hard_link(&secret, &path).unwrap();
        Bound::new(&path, swapped).unwrap_err();
        assert_eq!(mode(&secret), 0o600);
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
        use rustix::net::{
            AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let busy = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&busy, 0).unwrap();
        let mut clients = Vec::new();
        while let Ok(client) = mio::net::UnixStream::connect(&path) {
            clients.push(client);
        }
        let address = Address::Shm(path.clone());
        match Server::start(ServerConfig::new(address.clone(), table())) {
            Err(ServeError::AddressInUse { address: taken }) => assert_eq!(taken, address),
            other => panic!("{other:?}"),
        }
        assert!(path.exists());
    }
}
