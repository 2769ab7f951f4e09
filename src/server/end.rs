//! The end of a server: first its threads, then its region, then its socket's name.
//!
//! Each step needs the proof that the step before returns, so no other order compiles.

use super::session;
use crate::index::Index;
use crate::wire::Refusal;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread and its waker. `None` for a thread that never sleeps, or that wakes when the others
/// end.
pub(super) type Thread = (Option<Arc<mio::Waker>>, JoinHandle<()>);

/// Proof that no thread of the server answers requests any more.
#[derive(Debug)]
pub(super) struct Ended(());

impl Ended {
    /// Tells the threads to stop and waits for them.
    pub fn new(stopping: &AtomicBool, threads: &mut Vec<Thread>) -> Ended {
        stopping.store(true, Ordering::Release);
        for (waker, thread) in threads.drain(..) {
            // The waker is kept until the thread has ended: closing it would discard its event.
            if let Some(waker) = &waker {
                let _ = waker.wake();
            }
            let _ = thread.join();
        }
        Ended(())
    }
}

/// Proof that the region says that its server has ended: it is given up, or handed over.
#[derive(Debug)]
pub(super) struct Retired(());

/// Longest time to wait until no trace is left.
const REST_MAX: Duration = Duration::from_secs(1);

impl Retired {
    /// Marks the region as given up, or hands it over to the next server.
    pub fn new(_: &Ended, index: &Index, region_stays: bool) -> Retired {
        let begun = Instant::now();
        if !region_stays {
            index.retire();
        } else if let Err(why) = index.hand_over(REST_MAX) {
            let error = &why as &dyn std::error::Error;
            tracing::warn!(error, "the table is not handed over; the next server looks at every slot");
        } else {
            tracing::info!(keys = index.len(), took = ?begun.elapsed(), "handed the table over");
        }
        Retired(())
    }
}

/// A server's socket: its path and its listener.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Socket {
    /// Takes a listener bound to this path.
    pub fn new(path: &Path, listener: UnixListener) -> Socket {
        Socket { path: path.into(), listener }
    }

    /// Another handle on the listener, for a worker.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Removes the path, then closes the listener.
    pub fn remove(self, retired: &Retired) {
        self.remove_by(retired, |path| drop(std::fs::remove_file(path)));
    }

    /// No other server takes the address while the listener is open. So clients never see changes
    /// of both servers, and the socket that is removed is this server's.
    fn remove_by(self, _: &Retired, remove: impl FnOnce(&Path)) {
        let Socket { path, listener } = self;
        remove(&path);
        // Whoever found the path before, and was not accepted.
        while let Ok((stream, _)) = listener.accept() {
            session::refuse(&stream, Refusal::Stopping);
        }
        drop(listener);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{ServeError, Server, ServerConfig, ServerState};
    use super::*;
    use crate::address::Address;
    use crate::config::{Config, TableSize};
    use crate::layout::control::{Phase, STATE_WORD, State};
    use crate::region::Backing;
    use crate::wire::Reply;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn phase(shared: &ServerState) -> Phase {
        State::from_word(shared.index.region().load(STATE_WORD)).phase
    }

    /// When the path is removed, all threads have ended, an anonymous region is given up (a file is
    /// handed over), and the address is still taken.
    #[test]
    fn a_server_ends_threads_then_region_then_path() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { size: TableSize::Keys(10), ..Config::default() };
        let address = Address::Shm(dir.path().join("socket"));
        for (backing, expected) in
            [(Backing::Anonymous, Phase::Retired), (Backing::File(dir.path().join("region")), Phase::Stopped)]
        {
            let region_stays = expected == Phase::Stopped;
            let config = ServerConfig { backing, ..ServerConfig::new(address.clone(), config) };
            let mut server = Server::start(config.clone()).unwrap();
            assert_eq!(server.shared.region_stays, region_stays);
            let shared = server.shared.clone();
            assert_eq!((phase(&shared), shared.is_stopping()), (Phase::Serving, false));
            // The same steps as when the server is dropped.
            let ended = Ended::new(&shared.stopping, &mut server.threads);
            assert!(shared.is_stopping() && server.threads.is_empty());
            assert_eq!(phase(&shared), Phase::Serving);
            let retired = Retired::new(&ended, &shared.index, shared.region_stays);
            let mut waiting = None;
            server.socket.take().unwrap().remove_by(&retired, |path| {
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

    /// Dropping a server takes all of these steps.
    #[test]
    fn dropping_a_server_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { size: TableSize::Keys(10), ..Config::default() };
        let path = dir.path().join("socket");
        let server = Server::start(ServerConfig::new(Address::Shm(path.clone()), config)).unwrap();
        let shared = server.shared.clone();
        let mut clients: Vec<_> = (0..5).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while shared.stats().clients < 5 {
            assert!(std::time::Instant::now() < give_up);
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
}
