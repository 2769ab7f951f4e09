//! The server: owns the region, makes every change, and shares the region for reading.
//!
//! A takeover begins here: [`Server::start`] calls `index_for` (`table.rs`), which opens the region
//! file and calls [`Index::open`] (`index/whole/table.rs`). Only then are the socket and the threads made.
//!
//! Each worker thread runs an event loop over its own connections and changes the shared [`Index`]
//! directly. A client that sends invalid bytes, stops in the middle of a frame, never reads its
//! replies or disappears loses its own connection and affects no other.

pub(crate) mod caller;
mod config;
mod driven;
mod driver;
mod end;
mod error;
pub(crate) mod feed;
mod gets;
pub(crate) mod held;
mod held_replies;
mod mailbox;
mod mailboxes;
mod park_room;
mod parking;
mod put_times;
mod refused;
mod replay;
#[cfg(all(test, feature = "sim", not(loom)))]
pub(crate) use replay::made_again_of_test;
mod session;
pub(crate) mod shared;
mod snapshots;
mod socket;
mod stream;
mod table;
pub(crate) mod tcp;
mod turns;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod worker;

pub use crate::index::start::{StartProgress, StartStep};
use crate::log::LogStatus;
pub use config::{ServerConfig, StartMode};
pub use driven::DrivenServer;
pub use error::ServeError;
pub use held::ClientMemoryCounts;
pub use mailboxes::MailboxCounts;
pub use refused::RefusedCounts;
pub use snapshots::Snapshots;

use crate::address::{Address, TcpAddress};
use crate::base::peer::DescriptorShare;
use crate::base::process::Process;
use crate::faults;
use crate::files;
use crate::index::{Index, Recovered, Restored};
use crate::layout::control::LastSnapshot;
use crate::outcome::{GetCounts, GrowthCounts};
use crate::region::{Backing, GetCountMap};
use crate::snapshot::{SaveError, Saved, SnapshotPath};
use crate::wire::{self, Request, ServerStats, ServerTimes, SnapshotStatus};
use caller::Tokens;
use driver::TableDriver;
use end::{Ended, Retired, Thread};
use held::ClientMemory;
use mailboxes::{MailboxCounters, MailboxMemory};
use mio::net::TcpListener;
use park_room::ParkRoom;
use put_times::PutTimes;
use refused::RefusedCounters;
use shared::{ServerState, WarningLimit};
use snapshots::{Begins, Saver};
use socket::Socket;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use table::{Prepared, index_for};
use worker::StreamWorker;

/// The most of [`ServerConfig::workers`].
const WORKERS_MAX: usize = 1024;

/// The shares of the process's file descriptors.
///
/// # Errors
/// Where no client could have one.
fn descriptors(config: &ServerConfig) -> Result<DescriptorShare, ServeError> {
    /// Descriptors that the server opens for itself: for its socket, region, lock and snapshots. Each worker's event
    /// loop takes as many.
    const OWN: u64 = 8;
    const EACH: u64 = 2;
    let workers = config.workers.max(1);
    let share = DescriptorShare::now(OWN + EACH * workers as u64, workers);
    let DescriptorShare { limit, clients, strangers } = share;
    if clients == 0 {
        return Err(ServeError::Descriptors { limit });
    }
    tracing::info!(limit, clients, strangers, "file descriptors: so many clients have room");
    Ok(share)
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
/// | [`start`](Server::start), takeover after a kill | the same, and a pass over the whole table; first twice its grace time ([`Config::grace`](crate::Config::grace)) |
/// | [`stop`](Server::stop), or dropping the server | the end of its threads, each of which first ends the request that it is answering; with a region file, also for traces to go (some times its grace time, at most 1 s), and then until the handover is written: 16 bytes for each displaced key, 8 for each stripe and free block; with [`ServerConfig::snapshots`], also for a snapshot, if anything has changed since the last |
/// | [`stuck_threads`](Server::stuck_threads) | the threads, some microseconds; at most as long as it is told |
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
    /// Whether clients could connect. A start that failed ends without clients.
    has_served: bool,
    /// The number of changes with which this server made the table, before clients could connect.
    made_with: Option<u64>,
    undone: OnceLock<UndoStart>,
    has_ended: bool,
    address: Address,
    /// The address over TCP, if there is one.
    tcp: Option<TcpAddress>,
    /// The socket to remove when the server ends, and the port to leave.
    socket: Option<Arc<Socket>>,
    port: Option<Arc<TcpListener>>,
    threads: Vec<Thread>,
}

impl Server {
    /// Makes or opens the table and starts to serve it. Returns once clients can connect.
    ///
    /// # Errors
    /// [`ServeError`]. Nothing is left behind: a region file that was made is removed again.
    pub fn start(config: ServerConfig) -> Result<Server, ServeError> {
        Server::start_by(config, TableDriver::Clients)
    }

    /// Starts a server of a table that this one drives.
    fn start_by(config: ServerConfig, driver: TableDriver) -> Result<Server, ServeError> {
        let cancel = config.cancel.clone();
        Server::start_unless_cancelled(config, driver).map_err(|error| match cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => ServeError::Cancelled,
            _ => error,
        })
    }

    fn start_unless_cancelled(mut config: ServerConfig, driver: TableDriver) -> Result<Server, ServeError> {
        if let Some(log) = &config.log {
            // The snapshots may be in it.
            let made = crate::log::make_folder(&log.path);
            made.map_err(|source| ServeError::Log { path: log.path.clone(), source })?;
            config.snapshots.get_or_insert_with(|| Snapshots::new(log.snapshot()));
        }
        config.address.check()?;
        #[cfg(feature = "verbs")]
        if let (Address::Shm(_), Some(extension)) = (&config.address, config.extension) {
            let (option, address) = (extension.name, config.address);
            return Err(ServeError::Elsewhere { option, fabric: "verbs", address });
        }
        if !config.read_token.is_empty() && (config.token.is_empty() || config.token == config.read_token) {
            return Err(ServeError::ReadToken);
        }
        if config.workers > WORKERS_MAX {
            return Err(ServeError::Workers { workers: config.workers, max: WORKERS_MAX });
        }
        let tokens =
            Tokens { change: config.token.clone(), read: config.read_token.clone(), tls: config.tls.clone() };
        let port = match (&config.address, config.tcp.clone()) {
            (Address::Tcp(_), Some(_)) => return Err(ServeError::TwoPorts),
            (Address::Tcp(at), None) => Some(at.clone()),
            (_, at) => at,
        };
        if port.is_none() && config.tls.is_some() {
            return Err(ServeError::Elsewhere { option: "tls", fabric: "TCP", address: config.address });
        }
        // Impossible addresses are refused before anything is touched.
        let port = port.map(|at| Ok::<_, ServeError>((tcp::places(&at, &tokens)?, at))).transpose()?;
        // Snapshots that cannot be written later are refused now.
        let place =
            config.snapshots.as_ref().map(|snapshots| SnapshotPath::claim(&snapshots.path)).transpose()?;
        let share = descriptors(&config)?;
        let Prepared { index, recovered, restored, as_saved, log } = index_for(&config)?;
        let index = index.with_ttl(config.ttl).map_err(ServeError::TimeToLive)?;
        let index = driver.take(index)?;
        let index = index.with_starts(config.starts);
        let saver = config.snapshots.zip(place).map(|(snapshots, place)| {
            let begins = match as_saved {
                Some(saved) => Begins::AsSaved(saved),
                None if recovered.is_none() && restored.is_none() && index.is_empty() => Begins::Empty,
                None => Begins::Otherwise,
            };
            Saver::new(place, snapshots.every, &index, begins)
        });
        let is_cancelled = || config.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        let index = match log {
            Some(log) => log.go_on(index, saver.as_ref(), &is_cancelled)?,
            None => index,
        };
        let mut allow_uids = config.allow_uids;
        allow_uids.push(files::own_uid());
        let client_memory = ClientMemory::new(config.client_bytes_max);
        let shared = Arc::new(ServerState {
            index,
            stopping: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            clients_max: config.clients_max as u64,
            clients_per_peer: config.clients_per_peer as u64,
            peers: Mutex::default(),
            allow_uids,
            allow_read_uids: config.allow_read_uids,
            driver,
            tokens,
            half_open: config.half_open,
            unread_bytes_max: config.unread_bytes_max,
            refusals: WarningLimit::default(),
            region_file: match config.backing {
                Backing::File(path) => Some(files::fixed(&path)),
                _ => None,
            },
            looks: WarningLimit::default(),
            is_loss_told: AtomicBool::new(false),
            mailbox_memory: MailboxMemory::new(config.mailbox_bytes_max, &client_memory),
            client_memory,
            mailboxes: MailboxCounters::default(),
            refused: RefusedCounters::default(),
            feed_bytes: config.feed_bytes,
            get_counts: GetCountMap::make()
                .inspect_err(|why| tracing::warn!(%why, "GETs of clients are not counted"))
                .ok(),
            followers: feed::FollowerCounters::default(),
            parking: ParkRoom::default(),
            put_times: config.timed.then(|| Box::new(PutTimes::new())),
            saver,
        });
        let made_with = recovered.is_none().then(|| shared.index.changes_made());
        let mut server = Server {
            process: Process::this(),
            shared,
            recovered,
            restored,
            has_served: false,
            made_with,
            undone: OnceLock::new(),
            has_ended: false,
            address: config.address,
            tcp: None,
            socket: None,
            port: None,
            threads: Vec::new(),
        };
        match server.address.clone() {
            Address::Shm(path) => {
                let bound = socket::listen(&server.address, &path)?;
                server.socket = Some(Arc::new(Socket::new(&server.address, &path, bound)));
            }
            Address::Tcp(_) => {}
            #[cfg(feature = "verbs")]
            Address::Verbs(at) => {
                let how = verbs::VerbsServing {
                    token: config.token,
                    read_token: config.read_token,
                    wait: config.wait,
                    extension: config.extension,
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
        server.serve_streams(port, config.workers, share)?;
        server.keep_log_short();
        if server.shared.saver.is_some() {
            let shared = server.shared.clone();
            let thread = std::thread::Builder::new()
                .name("oneread-snapshot".into())
                .spawn(move || {
                    if let Some(saver) = &shared.saver {
                        saver.run(&shared.index);
                    }
                })
                .map_err(ServeError::Threads)?;
            server.threads.push((None, thread));
        }
        if server.index().geometry().grows() {
            let shared = server.shared.clone();
            let thread = std::thread::Builder::new()
                .name("oneread-grow".into())
                .spawn(move || {
                    shared.index.set_maker(std::thread::current());
                    while !shared.is_stopping() {
                        if shared.index.make_ahead() {
                            continue;
                        }
                        if shared.index.foresees() {
                            // A split or merge must end first, by whatever thread.
                            std::thread::park_timeout(Duration::from_millis(1));
                        } else {
                            std::thread::park();
                        }
                    }
                })
                .map_err(ServeError::Threads)?;
            server.threads.push((None, thread));
        }
        if server.index().geometry().has_life() {
            let shared = server.shared.clone();
            let thread = std::thread::Builder::new()
                .name("oneread-ends".into())
                .spawn(move || {
                    shared.index.set_ender(std::thread::current());
                    while !shared.is_stopping() {
                        if !shared.index.end_due() {
                            std::thread::park();
                        }
                    }
                })
                .map_err(ServeError::Threads)?;
            server.threads.push((None, thread));
        }
        server.has_served = true;
        server.index().region().keep();
        tracing::info!(address = %server.address, "serving");
        Ok(server)
    }

    /// Has a snapshot made when the log has become long.
    fn keep_log_short(&self) {
        if let Some(log) = self.index().log() {
            let shared = Arc::downgrade(&self.shared);
            log.when_longer(move || {
                if let Some(saver) = shared.upgrade().as_ref().and_then(|shared| shared.saver.as_ref()) {
                    saver.ask();
                }
            });
        }
    }

    /// Starts the workers for clients on this host, and over TCP, if the server has any.
    fn serve_streams(
        &mut self,
        port: Option<(Vec<SocketAddr>, TcpAddress)>,
        workers: usize,
        share: DescriptorShare,
    ) -> Result<(), ServeError> {
        if let Some((places, at)) = port {
            let (listener, at) = tcp::listen(&places, &at)?;
            if matches!(self.address, Address::Tcp(_)) {
                self.address = Address::Tcp(at.clone());
            }
            self.tcp = Some(at);
            self.port = Some(Arc::new(TcpListener::from_std(listener)));
        }
        if self.port.is_none() && self.socket.is_none() {
            return Ok(());
        }
        // Over verbs there are workers of another kind.
        let kind = if self.threads.is_empty() { "oneread" } else { "oneread-tcp" };
        for number in 0..workers.max(1) {
            let (shared, socket, port) = (self.shared.clone(), self.socket.clone(), self.port.clone());
            let looks_around = number == 0;
            let worker = StreamWorker::new(shared, socket, port, looks_around, share);
            let worker = worker.map_err(ServeError::Threads)?;
            let event_loop = worker.event_loop();
            // A rule that a test breaks is also broken in the server's threads.
            let broken = faults::all_broken();
            let thread = std::thread::Builder::new()
                .name(format!("{kind}-{number}"))
                .spawn(move || {
                    faults::break_all(broken);
                    worker.run()
                })
                .map_err(ServeError::Threads)?;
            self.threads.push((Some(event_loop), thread));
        }
        Ok(())
    }

    /// If this frame is a request for keys, appends a worker's answer to `out`. Returns whether it is. For benches that
    /// count its instructions.
    #[doc(hidden)]
    pub fn answer_gets(&self, frame: &[u8], out: &mut Vec<u8>) -> bool {
        let Ok(Some(frame)) = wire::decode(frame) else { return false };
        let Ok(Request::Gets(request)) = Request::decode(&frame) else { return false };
        gets::answer(&self.shared, frame.id, &request, out);
        true
    }

    /// The table. An embedder may change it directly, without a socket.
    pub fn index(&self) -> &Index {
        &self.shared.index
    }

    /// The address that clients connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address that clients over TCP connect to, with its port, if there is one: [`Server::address`], or
    /// [`ServerConfig::tcp`].
    pub fn tcp_address(&self) -> Option<&TcpAddress> {
        self.tcp.as_ref()
    }

    /// What was found in the region, if this server took it over.
    pub fn recovered(&self) -> Option<Recovered> {
        self.recovered
    }

    /// How far the log is, if the server has one ([`ServerConfig::log`]).
    pub fn log(&self) -> Option<LogStatus> {
        self.index().log().map(|log| log.status())
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

    /// How many GETs clients on this host, and over TCP, have made.
    pub fn get_counts(&self) -> GetCounts {
        self.shared.get_counts()
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

    /// Requests that wait at present: of followers that have nothing to hear, and changes that wait for readers, for a
    /// split, or for memory.
    pub fn parked(&self) -> u64 {
        self.shared.parking.taken()
    }

    /// Requests that may wait at a time.
    pub fn parked_max(&self) -> u64 {
        self.shared.parking.most()
    }

    /// The memory of the server that the connections of all clients hold, and may hold.
    pub fn client_memory(&self) -> ClientMemoryCounts {
        self.shared.client_memory.counts()
    }

    /// Requests for changes that were refused, by cause, since the server started.
    pub fn refused(&self) -> RefusedCounts {
        self.shared.refused.read()
    }

    /// Has each thread that serves clients take a turn of its event loop. Returns the names of those that have begun
    /// none after this time. Usually there is none, after some microseconds. It is for a watchdog within the server's
    /// process, as `oneread serve` has one for systemd: a thread that is named here answers no request. GETs need none
    /// of these threads. The threads that make snapshots and memory are not among them: they may wait for a disk, and
    /// no client waits for them.
    pub fn stuck_threads(&self, within: Duration) -> Vec<String> {
        let loops: Vec<_> = self.threads.iter().filter(|(event_loop, _)| event_loop.is_some()).collect();
        let stuck = turns::stuck(loops.iter().filter_map(|(event_loop, _)| event_loop.as_ref()), within);
        let name = |place: usize| loops[place].1.thread().name().unwrap_or("unnamed").to_owned();
        stuck.into_iter().map(name).collect()
    }

    /// How long puts take, if the server takes the time ([`ServerConfig::timed`]), and further counts.
    pub fn times(&self) -> ServerTimes {
        self.shared.times()
    }

    /// Seconds until the server's TLS certificate ends; negative after its end. `None` without TLS.
    pub fn certificate_seconds(&self) -> Option<i64> {
        self.shared.tokens.tls.as_ref()?.left_seconds()
    }

    /// The most connections that there may be ([`ServerConfig::clients_max`]).
    pub fn clients_max(&self) -> u64 {
        self.shared.clients_max
    }

    /// Stops serving: closes every connection and removes the socket. A region file is handed over
    /// to the next server, which then starts at once, and GETs on shm answer from it until their client's lease ends
    /// ([`ClientOptions::lease`](crate::ClientOptions::lease)). Any other region is marked as given
    /// up: from then on GETs end in [`GetError::ServerGone`](crate::GetError::ServerGone). With
    /// [`ServerConfig::snapshots`], a last one is made first, of every change acknowledged.
    pub fn stop(mut self) -> Stopped {
        self.end()
    }

    /// A step after the start has failed. When the server ends, a table that it has made is removed, with its file, as
    /// if the start itself had failed. A table that it took over stays. For `oneread serve`, and nodes of clusters.
    #[doc(hidden)]
    pub fn undo_start(&self, which: UndoStart) {
        let _ = self.undone.set(which);
    }

    fn end(&mut self) -> Stopped {
        let Server {
            shared, threads, socket, port, has_ended, has_served, recovered, made_with, undone, ..
        } = self;
        if std::mem::replace(has_ended, true) {
            return Stopped { saved: None, region_stays: false };
        }
        if !self.process.is_this() {
            // The threads, the table and the socket belong to the parent of this process.
            std::mem::forget(std::mem::take(threads));
            return Stopped { saved: None, region_stays: false };
        }
        if let Some(saver) = &shared.saver {
            saver.end();
        }
        shared.index.end_owners();
        let ended = Ended::new(&shared.stopping, threads, &shared.index);
        let is_undone = match undone.get() {
            None => false,
            Some(UndoStart::Always) => made_with.is_some(),
            // No thread changes the table any more.
            Some(UndoStart::IfUnchanged) => *made_with == Some(shared.index.changes_made()),
        };
        if is_undone {
            *has_served = false;
            shared.index.region().let_go();
        }
        // A start that failed leaves nothing behind.
        let saver = shared.saver.as_ref().filter(|_| *has_served);
        let saved = saver.and_then(|saver| {
            let saved = saver.save_last(&shared.index);
            let failed = matches!(saved, Some(Err(_)));
            let what = if failed { LastSnapshot::Failed } else { LastSnapshot::Made };
            shared.index.tell_last_snapshot(what);
            saved
        });
        let region_stays = shared.region_stays() && (*has_served || recovered.is_some());
        let retired = Retired::new(&ended, &shared.index, region_stays);
        // The workers, which had references to it, have ended.
        if let Some(socket) = socket.take().and_then(Arc::into_inner) {
            socket.remove(&retired);
        }
        // No client connects any more, even if a child made by `fork` has the same listener.
        if let Some(port) = port.take() {
            let _ = rustix::net::shutdown(&port, rustix::net::Shutdown::Both);
        }
        Stopped { saved, region_stays }
    }
}

/// The tables that are removed when a start is undone ([`Server::undo_start`]).
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoStart {
    /// A table that has not changed since its start.
    IfUnchanged,
    /// Any table: only the process that started the server could change it.
    Always,
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

#[cfg(all(test, not(loom)))]
mod tests;
