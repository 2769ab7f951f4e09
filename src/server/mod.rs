//! The server: owns the region, makes every change, and shares the region for reading.
//!
//! A takeover begins here: [`Server::start`] calls `index_for`, which opens the region file and
//! calls [`Index::open`] (`index/recover.rs`). Only then are the socket and the threads made.
//!
//! Each worker thread runs an event loop over its own connections and changes the shared [`Index`]
//! directly. A client that sends invalid bytes, stops in the middle of a frame, never reads its
//! replies or disappears loses its own connection and affects no other.

pub(crate) mod caller;
#[cfg(feature = "verbs")]
mod chunks;
mod end;
mod mailbox;
mod session;
pub(crate) mod shared;
mod snapshots;
#[cfg(feature = "verbs")]
mod verbs;

use crate::address::{Address, AddressError};
use crate::clock::Clock;
use crate::config::{Config, ConfigError, TableSize};
use crate::index::{Index, RecoverError, Recovered, RestoreError, Restored};
use crate::layout::geometry::Geometry;
use crate::outcome::GrowthCounts;
use crate::peer::SocketPeer;
use crate::place::{self, LockFile, PlaceError};
use crate::process::Process;
use crate::region::{Backing, Region, RegionError};
use crate::setters::setters;
use crate::snapshot::{SaveError, Saved, Snapshot, SnapshotPlace};
use crate::start::Start;
pub use crate::start::{StartProgress, StartStep};
#[cfg(feature = "verbs")]
use crate::verbs::SetupError;
use crate::verbs::{Token, Wait};
use crate::wire::{Refusal, ServerStats, SnapshotStatus};
use end::{Bound, Ended, Retired, Socket, Thread};
use mailbox::{MailboxMemory, Visit};
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token as EventToken, Waker};
use rustc_hash::{FxHashMap, FxHashSet};
use session::{Fate, Session};
pub use shared::MailboxCounts;
use shared::{MailboxCounters, Peer, ServerState, WarningLimit};
pub use snapshots::Snapshots;
use snapshots::{Begins, Saver};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Whether to make a new table or to take over an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartMode {
    /// Makes a new table. The region file must not exist, be empty, or hold a table that was never
    /// finished.
    Create,
    /// Takes over the table in the region file, which must exist, with its own geometry.
    Open,
    /// Takes over the table in the region file if there is a finished one, with its own geometry.
    /// Otherwise makes a new one.
    OpenOrCreate,
}

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address that clients connect to.
    pub address: Address,
    /// Where the region's memory comes from.
    pub backing: Backing,
    /// What a new table is made from. A table that is taken over keeps its own geometry.
    pub table: Config,
    /// New table or existing one.
    pub start: StartMode,
    /// Threads that serve requests. With 0, the server starts one.
    pub workers: usize,
    /// On shm: users who may read and change the table, beside the server's own and root.
    pub allow_uids: Vec<u32>,
    /// On shm: users who may read the table, and not change it
    /// ([`MutateError::ReadOnly`](crate::MutateError::ReadOnly)).
    pub allow_read_uids: Vec<u32>,
    /// Most connections at a time. Further ones are refused. On shm there is one for a client and
    /// its clones, and one more for each further handle that sends requests (changes,
    /// [`Client::get_two_sided`](crate::Client::get_two_sided),
    /// [`Client::server_stats`](crate::Client::server_stats)) while another one does. Over verbs each queue pair of a
    /// client is one. Each takes a file descriptor of the server's.
    pub clients_max: usize,
    /// Most connections of one peer: on shm a user other than the server's own, over verbs a host.
    pub clients_per_peer: usize,
    /// Longest time for a client to join, or to complete a request that it has begun to send.
    pub half_open: Duration,
    /// On shm: unread bytes of replies at which the server stops reading a client's requests. They
    /// bound the requests of one client that are under way as messages. (A mailbox holds 64, and a
    /// queue pair 8 messages.)
    pub unread_bytes_max: usize,
    /// Over verbs: the secret that clients need to read and change the table. With the empty token,
    /// every client that reaches the port may do both.
    pub token: Token,
    /// Over verbs: the secret of clients that may read the table, and not change it. With the empty
    /// token, there are no such clients.
    pub read_token: Token,
    /// Over verbs: how workers wait for messages.
    pub wait: Wait,
    /// On shm: most bytes that the mailboxes of all clients take together
    /// ([`RequestPath::Mailbox`](crate::client::RequestPath::Mailbox)). A mailbox takes 40 KiB with
    /// the default lengths, and up to 772 KiB with the longest slots. Clients without one make their requests
    /// by message. With 0, no client has one; nor does a further one where the system has less than
    /// 16 MiB left beside it. The workers poll the mailboxes of clients that make
    /// requests, and stop at most 50 microseconds after a client's last request.
    pub mailbox_bytes_max: u64,
    /// Over verbs, for comparison: clients may make requests as in HERD
    /// ([`RequestPath::Herd`](crate::client::RequestPath::Herd)). Starts `workers` more threads,
    /// which poll without sleeping while such a client is connected.
    #[cfg(feature = "herd")]
    pub herd: bool,
    /// The snapshots that the server makes ([`Snapshots`]). A new table begins with the keys of the one
    /// that is there, which must be this user's or root's. (To begin with none, remove the file.) A table that is taken over has newer
    /// keys, and keeps them.
    pub snapshots: Option<Snapshots>,
    /// A new table begins with the keys of this snapshot, and not with those of the one in
    /// `snapshots`. A table that is taken over keeps its own: see [`Server::restored`].
    pub restore: Option<PathBuf>,
    /// Called now and then during steps of the start that take long for a large table.
    pub progress: Option<fn(StartProgress)>,
    /// When this becomes true during the start, the start ends soon, in [`ServeError::Cancelled`]: while a new
    /// table is made or restored, and while one is taken over. Later it has no effect.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl ServerConfig {
    /// Serves a new table at `address` from anonymous memory, for this user, with two workers, for up
    /// to 4,096 connections, with up to 64 MiB of mailboxes.
    pub fn new(address: Address, table: Config) -> ServerConfig {
        ServerConfig {
            address,
            backing: Backing::Anonymous,
            table,
            start: StartMode::Create,
            workers: 2,
            allow_uids: Vec::new(),
            allow_read_uids: Vec::new(),
            clients_max: 4096,
            clients_per_peer: 1024,
            half_open: Duration::from_secs(10),
            unread_bytes_max: 1 << 20,
            token: Token::default(),
            read_token: Token::default(),
            wait: Wait::Block,
            mailbox_bytes_max: 64 << 20,
            #[cfg(feature = "herd")]
            herd: false,
            snapshots: None,
            restore: None,
            progress: None,
            cancel: None,
        }
    }
}

setters!(ServerConfig {
    backing: Backing,
    table: Config,
    start: StartMode,
    workers: usize,
    allow_uids: impl Into<Vec<u32>>,
    allow_read_uids: impl Into<Vec<u32>>,
    clients_max: usize,
    clients_per_peer: usize,
    half_open: Duration,
    unread_bytes_max: usize,
    token: Token,
    read_token: Token,
    wait: Wait,
    mailbox_bytes_max: u64,
    #[cfg(feature = "herd")]
    herd: bool,
    snapshots: impl Into<Option<Snapshots>>,
    restore: impl Into<Option<PathBuf>>,
    progress: fn(StartProgress),
    cancel: impl Into<Option<Arc<AtomicBool>>>,
});

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No socket can have this address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A table with this configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The region could not be made or opened.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The folder of the default address is not this user's alone.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The table does not fit into the memory that is left. None was taken.
    #[error("the table does not fit; one of {fits} would")]
    NoRoom {
        /// How much is missing, and where.
        source: RegionError,
        /// The largest table of this shape that fits.
        fits: TableSize,
    },
    /// The existing region cannot be used.
    #[error("{what} cannot be taken over")]
    Recover {
        /// The region's file.
        what: String,
        /// Why not.
        source: RecoverError,
    },
    /// The snapshot cannot be read, or does not fit the table. No table was made, and no snapshot was
    /// changed.
    #[error("the keys of {} cannot be restored", path.display())]
    Restore {
        /// The snapshot.
        path: PathBuf,
        /// Why not.
        source: RestoreError,
    },
    /// No snapshot can be made at the path in [`ServerConfig::snapshots`].
    #[error(transparent)]
    Snapshots(#[from] SaveError),
    /// [`ServerConfig::cancel`] has become true. Nothing is left of a new table.
    #[error("the start was cancelled before the table was ready")]
    Cancelled,
    /// Only a region file can be opened ([`StartMode::Open`]). Other memory does not outlive its
    /// server. For a file that does not exist, the error is [`RegionError::Missing`].
    #[error("only a region file can be opened again; name one, or create a new table")]
    NothingToOpen,
    /// An option of another fabric.
    #[error(
        "`ServerConfig::{option}` is an option of servers over {fabric}, not of one at {address}; leave it out"
    )]
    Elsewhere {
        /// The option's name.
        option: &'static str,
        /// The fabric that has this option.
        fabric: &'static str,
        /// The address.
        address: Address,
    },
    /// [`ServerConfig::read_token`] without a [`ServerConfig::token`] of another content. Everybody,
    /// or every reader, could change the table.
    #[error(
        "a token for readers keeps nobody from changes without another one for changes; set `ServerConfig::token`, too"
    )]
    ReadToken,
    /// Another server is at the address.
    #[error("another server is at {address}; stop it, or serve at another address")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// Something else is where the socket would be.
    #[error(
        "there is a {kind} at {}, where the server's socket would be; remove it, or serve at another address",
        path.display()
    )]
    NoSocket {
        /// The socket's path.
        path: std::path::PathBuf,
        /// What it is: a file, a folder, a link.
        kind: &'static str,
    },
    /// There is no folder for the socket.
    #[error("there is no folder {} for the server's socket; make it, or serve at another address", path.display())]
    NoFolder {
        /// The folder.
        path: std::path::PathBuf,
    },
    /// The socket could not be made.
    #[error("listening at {address} failed; may you write into that folder?")]
    Listen {
        /// The address.
        address: Address,
        /// The operating system's answer.
        source: io::Error,
    },
    /// This build has no verbs fabric.
    #[error(
        "this build of oneread cannot serve at {address}: it has no verbs fabric; build it with the cargo feature `verbs`"
    )]
    NotBuilt {
        /// The address.
        address: Address,
    },
    /// Verbs could not be set up.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] SetupError),
    /// Threads or event queues could not be made.
    #[error(
        "the system refuses threads to the server; raise its limits (`ulimit -u`, `ulimit -v`, or a control group's pids.max)"
    )]
    Threads(#[source] io::Error),
}

/// A running server. Stops when dropped. It is `Send` and `Sync`; its threads run on their own.
///
/// # What blocks, and for how long
///
/// | call | waits for |
/// |---|---|
/// | [`start`](Server::start), new table | memory for the region (of a table that grows, for its first segment), and threads. Over verbs also the registration of that memory, some seconds per 10 GiB ([`ServerConfig::progress`]) |
/// | [`start`](Server::start), takeover after [`stop`](Server::stop) | the same without memory |
/// | [`start`](Server::start), new table from a snapshot | the same, and two readings of the file, the second at the speed of puts |
/// | [`start`](Server::start), takeover after a kill | the same, and a pass over the whole table; first twice its grace time ([`Config::grace`]) |
/// | [`stop`](Server::stop), or dropping the server | the end of its threads, each of which first ends the request that it is answering; with a region file, also for traces to go (some times its grace time, at most 1 s), and then until the handover is written: 16 bytes for each displaced key, 8 for each stripe and free block; with [`ServerConfig::snapshots`], also for a snapshot, if anything has changed since the last |
/// | the other methods | nothing |
///
/// In an async program, leave the first three to a thread that may block (`spawn_blocking`).
///
/// # After a fork
///
/// The server stays with the process that made it. In a child made by `fork`, stopping or dropping it
/// does nothing, and changes through its [`index`](Server::index) are forbidden: nothing keeps them apart
/// from those of the parent. [`stop`](Server::stop) hangs up also where a child has copies of the
/// sockets. If the parent is *killed*, such a child keeps them, and the lock on a region file, until it
/// ends: have it close what it inherited (`exec` does).
#[derive(Debug)]
pub struct Server {
    process: Process,
    shared: Arc<ServerState>,
    recovered: Option<Recovered>,
    restored: Option<Restored>,
    /// Whether clients could connect: a start that failed ends without.
    has_served: bool,
    has_ended: bool,
    address: Address,
    /// The socket to remove when the server ends.
    socket: Option<Arc<Socket>>,
    threads: Vec<Thread>,
}

impl Server {
    /// Makes or opens the table and starts to serve it. Returns once clients can connect.
    ///
    /// # Errors
    /// [`ServeError`]. Nothing is left behind: a region file that was made is removed again.
    pub fn start(config: ServerConfig) -> Result<Server, ServeError> {
        let cancel = config.cancel.clone();
        Server::start_unless_cancelled(config).map_err(|error| match cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => ServeError::Cancelled,
            _ => error,
        })
    }

    fn start_unless_cancelled(config: ServerConfig) -> Result<Server, ServeError> {
        config.address.check()?;
        #[cfg(feature = "herd")]
        if config.herd && matches!(config.address, Address::Shm(_)) {
            return Err(ServeError::Elsewhere { option: "herd", fabric: "verbs", address: config.address });
        }
        if !config.read_token.is_empty() && (config.token.is_empty() || config.token == config.read_token) {
            return Err(ServeError::ReadToken);
        }
        // What cannot be written later is said now.
        let place =
            config.snapshots.as_ref().map(|snapshots| SnapshotPlace::claim(&snapshots.path)).transpose()?;
        let Prepared { index, recovered, restored, as_saved } = index_for(&config)?;
        let saver = config.snapshots.zip(place).map(|(snapshots, place)| {
            let begins = match as_saved {
                Some(saved) => Begins::AsSaved(saved),
                None if recovered.is_none() && restored.is_none() => Begins::Empty,
                None => Begins::Otherwise,
            };
            Saver::new(place, snapshots.every, &index, begins)
        });
        let mut allow_uids = config.allow_uids;
        allow_uids.push(place::own_uid());
        let shared = Arc::new(ServerState {
            index,
            stopping: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            clients_max: config.clients_max as u64,
            clients_per_peer: config.clients_per_peer as u64,
            peers: Mutex::default(),
            allow_uids,
            allow_read_uids: config.allow_read_uids,
            half_open: config.half_open,
            unread_bytes_max: config.unread_bytes_max,
            refusals: WarningLimit::default(),
            region_file: match config.backing {
                Backing::File(path) => Some(place::fixed(&path)),
                _ => None,
            },
            looks: WarningLimit::default(),
            is_loss_told: AtomicBool::new(false),
            mailbox_memory: MailboxMemory::new(config.mailbox_bytes_max),
            mailboxes: MailboxCounters::default(),
            saver,
        });
        let mut server = Server {
            process: Process::this(),
            shared,
            recovered,
            restored,
            has_served: false,
            has_ended: false,
            address: config.address,
            socket: None,
            threads: Vec::new(),
        };
        match server.address.clone() {
            Address::Shm(socket) => server.serve_shm(&socket, config.workers)?,
            #[cfg(feature = "verbs")]
            Address::Verbs(at) => {
                let how = verbs::VerbsServing {
                    token: config.token,
                    read_token: config.read_token,
                    wait: config.wait,
                    #[cfg(feature = "herd")]
                    herd: config.herd,
                    workers: config.workers,
                    progress: config.progress,
                };
                let shared = server.shared.clone();
                let at = verbs::start(shared, &at, how, &mut server.threads)?;
                server.address = Address::Verbs(at);
            }
            #[cfg(not(feature = "verbs"))]
            Address::Verbs(_) => return Err(ServeError::NotBuilt { address: server.address.clone() }),
        }
        if server.shared.saver.is_some() {
            let thread = snapshots::start(server.shared.clone()).map_err(ServeError::Threads)?;
            server.threads.push((None, thread));
        }
        server.has_served = true;
        server.index().region().keep();
        tracing::info!(address = %server.address, "serving");
        Ok(server)
    }

    fn serve_shm(&mut self, socket: &Path, workers: usize) -> Result<(), ServeError> {
        let bound = listen(&self.address, socket)?;
        let socket = self.socket.insert(Arc::new(Socket::new(&self.address, socket, bound)));
        for number in 0..workers.max(1) {
            let worker = ShmWorker::new(self.shared.clone(), socket.clone(), number == 0)
                .map_err(ServeError::Threads)?;
            let waker = Waker::new(worker.poll.registry(), WAKER).map_err(ServeError::Threads)?;
            let thread = std::thread::Builder::new()
                .name(format!("oneread-{number}"))
                .spawn(move || worker.run())
                .map_err(ServeError::Threads)?;
            self.threads.push((Some(Arc::new(waker)), thread));
        }
        Ok(())
    }

    /// The table. An embedder may change it directly, without a socket.
    pub fn index(&self) -> &Index {
        &self.shared.index
    }

    /// The address that clients connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What was found in the region, if this server took it over.
    pub fn recovered(&self) -> Option<Recovered> {
        self.recovered
    }

    /// What was restored from a snapshot, if this server made the table and there was one.
    pub fn restored(&self) -> Option<Restored> {
        self.restored
    }

    /// What became of the snapshots. `None` without [`ServerConfig::snapshots`].
    pub fn snapshot_status(&self) -> Option<SnapshotStatus> {
        self.shared.saver.as_ref().map(Saver::status)
    }

    /// Asks for a snapshot with every change made so far, and does not wait for it: it is made when
    /// [`SnapshotStatus::finished`] has reached the [`SnapshotStatus::asked`] of the answer. `None`
    /// without [`ServerConfig::snapshots`].
    pub fn ask_for_snapshot(&self) -> Option<SnapshotStatus> {
        self.shared.saver.as_ref().map(Saver::ask)
    }

    /// The server's counters.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// What a table that grows is made of, and what it did to grow and shrink; all zero for a table of
    /// one size.
    pub fn growth(&self) -> GrowthCounts {
        self.shared.index.growth()
    }

    /// Counts of mailbox work on shm, over all workers. Each count is exact, but they may be from
    /// different moments.
    pub fn mailbox_counts(&self) -> MailboxCounts {
        self.shared.mailbox_counts()
    }

    /// Stops serving: closes every connection and removes the socket. A region file is handed over
    /// to the next server, which then starts at once, and GETs on shm answer from it until their client's lease ends
    /// ([`ClientOptions::lease`](crate::ClientOptions::lease)). Any other region is marked as given
    /// up: from then on GETs end in [`GetError::ServerGone`](crate::GetError::ServerGone). With
    /// [`ServerConfig::snapshots`], a last one is made first, of every change acknowledged.
    pub fn stop(mut self) -> Stopped {
        self.end()
    }

    fn end(&mut self) -> Stopped {
        let Server { shared, threads, socket, has_ended, has_served, recovered, .. } = self;
        if std::mem::replace(has_ended, true) {
            return Stopped { saved: None, region_stays: false };
        }
        if !self.process.is_this() {
            // The threads, the table and the socket are those of the parent of this process.
            std::mem::forget(std::mem::take(threads));
            return Stopped { saved: None, region_stays: false };
        }
        if let Some(saver) = &shared.saver {
            saver.end();
        }
        let ended = Ended::new(&shared.stopping, threads);
        // A start that failed leaves nothing behind.
        let saver = shared.saver.as_ref().filter(|_| *has_served);
        let saved = saver.and_then(|saver| saver.save_last(&shared.index));
        let region_stays = shared.region_stays() && (*has_served || recovered.is_some());
        let retired = Retired::new(&ended, &shared.index, region_stays);
        // The workers, which had it, too, have ended.
        if let Some(socket) = socket.take().and_then(Arc::into_inner) {
            socket.remove(&retired);
        }
        Stopped { saved, region_stays }
    }
}

/// How a server stopped.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// The last snapshot. `None` without [`ServerConfig::snapshots`], or if the one that is there has
    /// every change.
    pub saved: Option<Result<Saved, SaveError>>,
    /// Whether the region file stands where the next server finds it. `false` for memory that is no file,
    /// and if the file was removed or replaced meanwhile.
    pub region_stays: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A table that is ready to be served, and where its keys are from.
struct Prepared {
    index: Index,
    recovered: Option<Recovered>,
    restored: Option<Restored>,
    /// The snapshot that has just these keys, and stands where this server makes its own.
    as_saved: Option<Saved>,
}

fn index_for(config: &ServerConfig) -> Result<Prepared, ServeError> {
    let start = Start { tell: config.progress, cancel: config.cancel.clone(), ..Start::default() };
    let own = config.snapshots.as_ref().map(|snapshots| &snapshots.path);
    let source = config.restore.as_ref().or_else(|| own.filter(|path| path.symlink_metadata().is_ok()));
    let create = || -> Result<Prepared, ServeError> {
        let failed = |path: &PathBuf, source| ServeError::Restore { path: path.clone(), source };
        // A file that is no snapshot is noticed before any memory is taken.
        let open = if config.restore.is_some() { Snapshot::open } else { Snapshot::open_own };
        let snapshot = source.map(|path| open(path).map_err(|e| failed(path, e.into()))).transpose()?;
        let geometry = config.table.geometry()?;
        let region =
            Region::create_sparse(&config.backing, geometry.region_bytes(), geometry.bytes_at_first())
                .map_err(|error| match error {
                    // What is left now need not be left at the next start.
                    RegionError::NoRoom { need, left, .. } => {
                        let at_once = need == geometry.bytes_at_first();
                        let of = if at_once { Geometry::bytes_at_first } else { Geometry::region_bytes };
                        match config.table.fitting(left / 10 * 9, of) {
                            Some(fits) => ServeError::NoRoom { source: error, fits },
                            None => error.into(),
                        }
                    }
                    error => error.into(),
                })?;
        let mut restored = None;
        let made = Index::create_filled(
            region,
            geometry,
            Clock::System,
            &start,
            |index| -> Result<(), ServeError> {
                let Some(snapshot) = &snapshot else { return Ok(()) };
                let work = |done: &mut dyn FnMut(u64)| {
                    index.restore_from_by(snapshot, start.cores, &mut |at, _| {
                        done(at);
                        !start.is_cancelled()
                    })
                };
                let answer = start.step(StartStep::Restore, 2 * snapshot.bytes(), work);
                restored = Some(answer.map_err(|source| failed(&snapshot.path().into(), source))?);
                Ok(())
            },
        );
        let is_own = config.restore.is_none();
        let as_saved = snapshot.as_ref().filter(|_| is_own).map(Snapshot::as_saved);
        Ok(Prepared { index: made?, recovered: None, restored, as_saved })
    };
    let open = |path: &PathBuf| -> Result<Prepared, ServeError> {
        if let Some(own) = own.filter(|path| path.symlink_metadata().is_ok()) {
            // It will be replaced. Nothing but a snapshot may be.
            Snapshot::open_own_head(own)
                .map_err(|e| ServeError::Restore { path: own.clone(), source: e.into() })?;
        }
        let (index, recovered) = Index::open_by(Region::open(path)?, Clock::System, &start)
            .map_err(|source| ServeError::Recover { what: path.display().to_string(), source })?;
        Ok(Prepared { index, recovered: Some(recovered), restored: None, as_saved: None })
    };
    match (config.start, &config.backing) {
        (StartMode::Create, _) => create(),
        (StartMode::Open, Backing::File(path)) => open(path),
        (StartMode::Open, _) => Err(ServeError::NothingToOpen),
        (StartMode::OpenOrCreate, Backing::File(path))
            if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) =>
        {
            match open(path) {
                // Nobody has been served from it.
                Err(ServeError::Region(RegionError::Unfinished { .. })) => create(),
                opened => opened,
            }
        }
        (StartMode::OpenOrCreate, _) => create(),
    }
}

/// Binds the socket, while no other server binds it.
fn listen(address: &Address, path: &Path) -> Result<Bound, ServeError> {
    place::prepare(path)?;
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
    // Access is decided by credentials, not by file permissions, so that a refusal can say why.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    Bound::new(path, listener).map_err(failed)
}

/// Locks a socket's path until the result is dropped. Without the lock, of two servers that start at once,
/// both could find no server there, and the second would remove the first one's socket. Fails if no file
/// can be made beside the path, or if another process keeps the lock.
fn claim(path: &Path, within: Duration) -> io::Result<LockFile> {
    match LockFile::take(path, within) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(io::Error::new(io::ErrorKind::WouldBlock, "another process keeps its lock")),
        Err(PlaceError::Os { source, .. }) => Err(source),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Longest wait for the lock of an address. Servers hold it for microseconds.
const CLAIM_MAX: Duration = Duration::from_secs(1);

const LISTENER: EventToken = EventToken(0);
const WAKER: EventToken = EventToken(1);
const FIRST_SESSION: usize = 2;
/// Time between checks for traces that no worker knows of, and of what others may remove.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Polls of mailboxes before a worker checks its sockets again.
const SWEEPS: u64 = 64;
/// Time that a worker answers requests in mailboxes before it checks its sockets again.
const TURN_TIME: Duration = Duration::from_millis(1);
/// Time until a worker accepts the connections that it could not, or did not yet, accept. No event
/// announces them again.
pub(crate) const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// Time between runs of a worker's less urgent work while it polls mailboxes.
const CHORES: Duration = Duration::from_millis(1);

/// Descriptors that are kept to answer those with who are turned away, and for mailboxes.
const DESCRIPTORS_KEPT: u64 = 16;

struct ShmWorker {
    shared: Arc<ServerState>,
    poll: Poll,
    socket: Arc<Socket>,
    sessions: FxHashMap<EventToken, Session>,
    /// Sessions whose mailboxes are polled.
    awake: Vec<EventToken>,
    /// Clients whose descriptors have this number or a higher one are turned away. (The kernel gives
    /// the lowest that is free.)
    descriptors_max: u64,
    /// Sessions that may be halfway ([`Session::is_halfway`]). Every session that is halfway is one
    /// of them, so a round costs nothing for idle clients.
    halfway: FxHashSet<EventToken>,
    /// When to accept again after a failure.
    accept_again: Option<Instant>,
    next: usize,
    /// Sessions whose turn ended before their input did.
    unfinished: Vec<EventToken>,
    /// Whether this worker wakes up now and then: for traces of changes that no worker made (an
    /// embedder's), and to see whether socket and region are still there.
    looks_around: bool,
}

impl ShmWorker {
    fn new(shared: Arc<ServerState>, socket: Arc<Socket>, looks_around: bool) -> io::Result<ShmWorker> {
        let poll = Poll::new()?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let descriptors_max = limit.current.unwrap_or(u64::MAX);
        socket.watch(poll.registry())?;
        Ok(ShmWorker {
            shared,
            poll,
            socket,
            sessions: FxHashMap::default(),
            awake: Vec::new(),
            descriptors_max: descriptors_max.saturating_sub(DESCRIPTORS_KEPT),
            halfway: FxHashSet::default(),
            accept_again: None,
            next: FIRST_SESSION,
            unfinished: Vec::new(),
            looks_around,
        })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut chores_done = Instant::now();
        while !self.shared.is_stopping() {
            let is_polling = !self.awake.is_empty() && self.unfinished.is_empty();
            let timeout = if is_polling && chores_done.elapsed() < CHORES {
                Some(Duration::ZERO)
            } else {
                chores_done = Instant::now();
                self.drop_halfway(chores_done);
                self.tidy()
            };
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(error = %e, "polling failed; this worker ends");
                    return;
                }
                _ => {}
            }
            if self.accept_again.take_if(|at| *at <= Instant::now()).is_some() {
                self.accept_all();
            }
            let unfinished = std::mem::take(&mut self.unfinished);
            for token in unfinished.into_iter().chain(events.iter().map(|event| event.token())) {
                match token {
                    LISTENER => self.accept_all(),
                    WAKER => {}
                    token => self.serve(token),
                }
            }
            self.sweep();
        }
    }

    /// Tidies the table. Returns how long the worker may sleep afterwards. `None` means without
    /// limit.
    fn tidy(&self) -> Option<Duration> {
        let tidy = self.shared.index.tidy();
        if self.looks_around && self.shared.looks_now() {
            self.socket.look();
        }
        let idle = self.looks_around.then_some(LOOK_AROUND);
        let is_halfway = |token| self.sessions.get(token).is_some_and(Session::is_halfway);
        let half = self.halfway.iter().any(is_halfway).then_some(self.shared.half_open / 4);
        let at_once = (!self.unfinished.is_empty() || !self.awake.is_empty()).then_some(Duration::ZERO);
        let again = self.accept_again.map(|at| at.saturating_duration_since(Instant::now()));
        [tidy, idle, half, at_once, again].into_iter().flatten().min()
    }

    /// Answers the requests in the mailboxes of awake clients, for one turn. A client that has been
    /// quiet for some time is no longer polled until it rings.
    fn sweep(&mut self) {
        if self.awake.is_empty() {
            return;
        }
        let turn_ends = Instant::now() + TURN_TIME;
        let (mut requests, mut rings, mut sweeps, mut rests) = (0, 0, 0, 0);
        while sweeps < SWEEPS {
            sweeps += 1;
            let before = requests;
            let mut is_worth_it = false;
            self.awake.retain(|token| {
                let Some(session) = self.sessions.get_mut(token) else { return false };
                match session.visit(&self.shared, turn_ends) {
                    Ok(Visit { answered, has_rung, lingers }) => {
                        requests += answered;
                        is_worth_it |= lingers;
                        rings += u64::from(has_rung);
                    }
                    Err(why) => {
                        tracing::debug!(%why, "a client is gone");
                        self.sessions.remove(token);
                    }
                }
                true
            });
            if requests == before && !is_worth_it {
                break;
            } else if requests == before {
                std::hint::spin_loop();
            } else if Instant::now() >= turn_ends {
                break;
            }
        }
        let now = Instant::now();
        self.awake.retain(|token| {
            let Some(session) = self.sessions.get_mut(token) else { return false };
            let rests_now = session.rests(now);
            rests += u64::from(rests_now);
            !rests_now
        });
        // Rotates the order, so that no client is always the first.
        if !self.awake.is_empty() {
            self.awake.rotate_left(1);
        }
        let counters = &self.shared.mailboxes;
        for (counter, n) in [
            (&counters.requests, requests),
            (&counters.sweeps, sweeps),
            (&counters.rests, rests),
            (&counters.rings, rings),
        ] {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn accept_all(&mut self) {
        let listener = self.socket.listener();
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.accept(stream),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => {
                    // The connection stays in the backlog, and no event announces it again.
                    self.shared.warn_of(&"a client that could not be accepted", &e.to_string());
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn accept(&mut self, mut stream: UnixStream) {
        let uid = match SocketPeer::of(&stream) {
            Ok(peer) => peer.uid,
            Err(e) => return self.shared.warn_of(&"a client without credentials", &e.to_string()),
        };
        let peer = Peer::User(uid);
        let Some(role) = self.shared.role_of(uid) else {
            return self.turn_away(&stream, &peer, Refusal::User { uid });
        };
        if stream.as_raw_fd() as u64 >= self.descriptors_max {
            return self.turn_away(&stream, &peer, Refusal::Descriptors);
        }
        let admission = match self.shared.admit(peer) {
            Ok(admission) => admission,
            Err(why) => return self.turn_away(&stream, &peer, why),
        };
        let token = EventToken(self.next);
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(&mut stream, token, interest) {
            Ok(()) => {
                self.sessions.insert(token, Session::new(stream, role, admission));
                self.halfway.insert(token);
            }
            Err(e) => self.shared.warn_of(&peer, &format!("watching it failed: {e}")),
        }
    }

    fn turn_away(&self, stream: &UnixStream, peer: &dyn std::fmt::Debug, why: Refusal) {
        self.shared.warn_of(peer, &why.to_string());
        session::refuse(stream, why);
    }

    fn serve(&mut self, token: EventToken) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        let fate = session.advance(&self.shared);
        if session.wakes() {
            self.awake.push(token);
        }
        if session.is_halfway() {
            self.halfway.insert(token);
        }
        match fate {
            Fate::Stay => {}
            Fate::Again => self.unfinished.push(token),
            Fate::Close(why) => {
                tracing::debug!(%why, "a client is gone");
                self.sessions.remove(&token);
            }
        }
    }

    fn drop_halfway(&mut self, now: Instant) {
        let mut late = Vec::new();
        self.halfway.retain(|token| {
            let Some(session) = self.sessions.get(token) else { return false };
            if session.halfway_for(now) > self.shared.half_open {
                late.push(*token);
            }
            session.is_halfway()
        });
        for token in late {
            // The worker may have been busy: the rest of the frame may be there by now.
            self.serve(token);
            if self.sessions.get(&token).is_some_and(|s| s.halfway_for(now) > self.shared.half_open) {
                tracing::debug!("a client stopped in the middle of a frame");
                self.sessions.remove(&token);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
