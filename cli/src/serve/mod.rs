//! `serve`: creates or takes over a table, and serves it until a signal.

mod daemon;
// For other commands that serve something, too.
pub mod ending;
mod index;
#[cfg(all(feature = "cluster", feature = "metrics"))]
mod of_node;
mod ready;
mod refused;
#[cfg(feature = "metrics")]
mod scraped;
pub mod serving;
pub mod systemd;
mod told;
mod undo;
mod watchdog;

use crate::connect::At;
use crate::region_file::{is_of_region, look_into, region_file, remove, what_stays};
use crate::snapshot;
use crate::users::UserId;
use anyhow::{Context, Result, ensure};
use clap::Args;
use ending::{Asked, Ending, Hangup};
use oneread::internals::files;
use oneread::internals::peer::DescriptorShare;
use oneread::internals::region::Backing;
use oneread::internals::verbs::Wait;
use oneread::{
    Address, Config, Evict, Fsync, LogConfig, ServeError, ServerConfig, ServerTls, Snapshots, StartLimits,
    StartMode, TableSize, TcpAddress, Token,
    embedded::MemoryShare,
    layout::{Geometry, Layout},
};
use oneread_kit::units::{ByteSize, Period, length, some_bytes, some_time};
use oneread_kit::{TokenArgs, names, show};
use oneread_prefix::IndexTable;
pub use refused::advise;
#[cfg(feature = "metrics")]
use scraped::Listener;
#[cfg(feature = "metrics")]
pub use scraped::answer_scrapes;
#[cfg(not(feature = "cluster"))]
use serving::Serving;
use serving::Watched;
use signal_hook::consts::SIGXFSZ;
#[cfg(feature = "metrics")]
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use systemd::{Said, notify};
use told::{show_start, size_of};
use undo::Ready;

/// Serve a table until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("background").args(["daemonize", "detached"]))]
#[command(after_help = "EXAMPLES
  oneread serve                   a table that grows, at this user's address
  oneread serve --daemonize       in the background, once it serves
  oneread serve --max-memory 8GiB     the most that it may take
  oneread serve --capacity 50000000 --value-max 32
      a table of one size, for so many keys with short values
  oneread serve --value-max 64MiB values of any length up to that
  oneread serve --capacity 1000000 --heap 8GiB
      so many keys, and so much memory for values that do not fit their slots
  oneread serve --layout windowed:16 --at shm:/tmp/a.sock
  oneread serve --anonymous       memory that is freed with the server
  oneread serve --fresh           forget the table that was there
  oneread serve --snapshot /var/lib/oneread/t.snap --snapshot-every 60s
      a table that survives a crash of the machine, but for a minute's changes
  oneread serve --restore /backup/t.snap   a new table with these keys
  oneread serve --metrics 127.0.0.1:9464   its counts for Prometheus
  oneread serve --index placement   who has which blocks of LLM caches
  ONEREAD_TOKEN=secret oneread serve --at verbs://0.0.0.0:7471
      over RDMA (built with --features verbs)

Without a size, the table begins with a few MiB, and grows and shrinks with its
keys while it is read, up to --max-memory. The first line says how much that is.
If the system has no more memory, a put that needs some fails, and all else goes
on. `oneread stat` shows how far the table has grown; `oneread shrink` gives
memory back. With --capacity or --slots, the table has that size, all of it is
taken at once, and a full table is an error.

Keys have up to 255 bytes and values up to 1 MiB, unless --key-max and
--value-max say otherwise. Slots have 128 bytes then: a key and a value of 110
bytes together fit one. A longer value, or a key of more than 86 bytes, is in
memory of its own, the heap, and a GET of it takes two READs. With --inline-max,
values up to that length stand in their slots, which are as long as that needs.
With a --value-max that a slot can hold, up to about 3.8 KiB, all values do.

The table is in a file in memory (/dev/shm). It survives a restart of the
server, but not a reboot. With --region on a disk it also survives a clean
reboot. After a crash of the machine, start with --fresh: the file then mixes
old and new pages, and nothing detects that.

With --snapshot, the server also writes all keys into a file on a disk: when it
stops, when `oneread snapshot` asks for it, and with --snapshot-every now and
then, while it goes on serving. A new table begins with the keys of that file.
So a crash of the machine costs at most the changes of that time, and of the
time that one snapshot takes (`oneread stat`).

Over verbs memory is registered with the device as the table takes it, in chunks
of 16 MiB and more, and stays in memory that cannot be swapped. `ulimit -l` must
allow the whole table.

Connected clients on this host go on reading while the server is away, until
their lease ends (10 s by default). Over verbs they cannot.

`oneread layouts --list` names the layouts.")]
pub struct Serve {
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    index: index::IndexArgs,
    /// Serve clients over TCP, too, as in tcp://0.0.0.0:7471: each GET there is a request to this server;
    /// beyond this host clients need the token, and without --tls-cert what travels can be read on the way
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<TcpAddress>,
    /// How keys are placed, as in windowed:8, pilaf, hopscotch:farm [default: windowed:8]
    #[arg(long, value_name = "NAME", value_parser = names::layout(), hide_possible_values = true)]
    layout: Option<Layout>,
    /// The most memory that the table may take, as in 512MiB, 8GiB: it grows with its keys [default: half
    /// of this machine's, or less where limits or free space say so]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, conflicts_with_all = ["capacity", "slots"])]
    max_memory: Option<ByteSize>,
    /// A table of one size: the number of keys that it has room for
    #[arg(long, value_name = "KEYS", conflicts_with = "slots")]
    capacity: Option<u64>,
    /// A table of one size: the number of its main slots
    #[arg(long, value_name = "N")]
    slots: Option<u64>,
    /// Longest key in bytes, up to 255 [default: 255]
    #[arg(long, value_name = "BYTES")]
    key_max: Option<usize>,
    /// Longest key that stands in its slot; a GET of a longer one takes a READ more [default: --key-max, up
    /// to what slots of 128 bytes hold: 86, with --life 74]
    #[arg(long, value_name = "BYTES")]
    key_inline: Option<usize>,
    /// Longest value, as in 78, 1MiB; up to 64MiB [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = length)]
    value_max: Option<usize>,
    /// The most memory for values that do not fit their slots, as in 1GiB; taken as they come [default: what
    /// --max-memory allows; in a table of one size, as much as its slots, and room for a few of the longest]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    heap: Option<ByteSize>,
    /// Longest value that stands in its slot, with the longest key there, in bytes [default: --value-max if a slot
    /// can hold it, else what slots of 128 bytes hold]
    #[arg(long, value_name = "SIZE", value_parser = length)]
    inline_max: Option<usize>,
    /// Entries have a life: a number, and a time when they end (`put --ttl`); 12 bytes of each slot. All
    /// nodes of a cluster have it from their first start, or none
    #[arg(long)]
    life: bool,
    /// Entries may have owners, with whom they go (`put --owner`, `owner`); includes --life
    #[arg(long)]
    owners: bool,
    /// Entries that are put without a time of their own end after this one, as in 10s, 1h; includes --life
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    ttl: Option<Period>,
    /// Grace time: how long a GET over a network may take, as in 500us, 2ms [default: 2ms]
    #[arg(long, value_name = "TIME")]
    grace: Option<Period>,
    /// The file that holds the table [default: in /dev/shm/oneread-UID, by the address]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["anonymous", "huge_pages"])]
    region: Option<PathBuf>,
    /// Hold the table in memory without a file, in huge pages if enough are reserved for all that it may
    /// take; it is gone with the server
    #[arg(long, conflicts_with = "huge_pages")]
    anonymous: bool,
    /// Hold the table in memory without a file, in pages of 2 MiB, or not at all: the administrator must have reserved
    /// enough
    #[arg(long)]
    huge_pages: bool,
    /// Leave the table's memory in the pages that the system's settings give it: else it is moved into
    /// pages of 2 MiB where the kernel can (Linux 6.1)
    #[arg(long, conflicts_with = "huge_pages")]
    small_pages: bool,
    /// The file for snapshots: written on request, and when the server stops; a new table begins with
    /// the keys in it
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Also write a snapshot every so often, as in 60s, 1m30s, 1h
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "snapshot")]
    snapshot_every: Option<Period>,
    /// The folder for a log, in which each change is before it is answered: it survives a power cut. Without --snapshot, the
    /// snapshots from which it goes on are in it, too
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// When the log is on the disk: before a change is answered, or every second, or when the system writes it
    #[arg(long, value_name = "WHEN", default_value = "always", requires = "log")]
    fsync: Fsync,
    /// Go on without this record of a damaged log and all later ones
    #[arg(long, value_name = "NUMBER", requires = "log")]
    log_truncate_at: Option<u64>,
    /// Begin a new table with the keys of this snapshot, and of its layout and size if no others are
    /// given
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// Remove the region file first
    #[arg(long, conflicts_with_all = ["anonymous", "huge_pages"])]
    fresh: bool,
    /// Number of threads that make changes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Another user who may read and change the table, by name or number (shm only; repeatable)
    #[arg(long, value_name = "USER")]
    allow_uid: Vec<UserId>,
    /// Another user who may read the table, and not change it (shm only; repeatable)
    #[arg(long, value_name = "USER")]
    allow_read_uid: Vec<UserId>,
    /// The file that holds the token of clients who may only read (verbs and TCP)
    #[arg(long, value_name = "FILE")]
    read_token_file: Option<PathBuf>,
    /// Most connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    clients_max: usize,
    /// Most connections of one user other than this one; over verbs and TCP, of one host
    #[arg(long, value_name = "N", default_value_t = 1024)]
    clients_per_peer: usize,
    /// Longest time for a client to join, or to finish a request that it has begun to send
    #[arg(long, value_name = "TIME", default_value = "10s")]
    half_open: Period,
    /// Unread replies at which a client is heard no more (shm and TCP)
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = length)]
    unread_max: usize,
    /// Most memory that the connections of all clients hold together: unread replies, mailboxes and the like;
    /// beyond it, those that hold most are ended
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    client_memory_max: ByteSize,
    /// Most of the table that puts in two steps may hold before they are committed, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=100))]
    starts_max: u32,
    /// Longest time that one of them may hold its room
    #[arg(long, value_name = "TIME", default_value = "1h")]
    start_time_max: Period,
    #[command(flatten)]
    token: TokenArgs,
    /// Speak TLS with clients over TCP, and show them this certificate (PEM), which those come after that it
    /// comes from; SIGHUP has the files read again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Over TLS, let in only clients whose certificate comes from one of those in this file; the token is
    /// asked for all the same, if there is one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Let in everybody who reaches the port, without a token (verbs only)
    #[arg(long, conflicts_with = "token_file")]
    no_token: bool,
    /// Wait for messages without sleeping: faster changes, but busy cores (verbs only)
    #[arg(long)]
    poll: bool,
    /// Most memory for the mailboxes of all clients, through which requests go without system calls;
    /// clients without one use messages (shm only)
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    mailbox_max: ByteSize,
    /// Memory for the last changes, for those who follow them (`oneread watch`); taken when the first one
    /// does, and a quarter more; 0: nobody can
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    feed_max: ByteSize,
    /// Where the table or its memory for long values is full, have entries make room for others, by this
    /// policy: s3-fifo, sieve or clock; without it, puts are refused then. A node of a cluster: clock, and all its nodes
    /// alike
    #[arg(long, value_name = "POLICY")]
    evict: Option<Evict>,
    /// Also take requests HERD's way, for comparison; keeps cores busy; wants a --value-max that fits a
    /// datagram (verbs only)
    #[cfg(all(feature = "lab", feature = "verbs"))]
    #[arg(long)]
    herd: bool,
    /// Answer scrapes of Prometheus at http://ADDR/metrics, as in 127.0.0.1:9464; whoever reaches ADDR may
    /// read the counts (no key, no value), and port 0 is any that is free
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "ADDR", value_parser = scraped::address)]
    metrics: Option<SocketAddr>,
    /// Take the time of each put, for `oneread top`; --metrics does so, too
    #[arg(long)]
    put_times: bool,
    /// Go into the background when the table is served; `oneread stop` ends it
    #[arg(long)]
    daemonize: bool,
    /// The file for messages of a server in the background [default: beside its socket, .log]
    #[arg(long, value_name = "FILE", requires = "background")]
    log_file: Option<PathBuf>,
    /// Write the number of the server's process into this file when it serves
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// What --daemonize starts
    #[arg(long, hide = true, conflicts_with = "daemonize")]
    detached: bool,
    /// Print the line that reports readiness as JSON
    #[arg(long)]
    json: bool,
    #[cfg(feature = "cluster")]
    #[command(flatten, next_help_heading = "Options for a node of a cluster")]
    node: crate::cluster::NodeArgs,
    /// Die with the process that started this one
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Reads the certificates again, and says what came of it.
fn read_again(tls: &ServerTls) {
    match tls.read_again() {
        Ok(()) => {
            show::complain("oneread: the certificates were read again; new clients are shown the new ones")
        }
        Err(error) => show::complain(format_args!(
            "oneread: the certificates cannot be read again, and the old ones stay in use: {:#}; mend that, and send SIGHUP again",
            anyhow::Error::from(error)
        )),
    }
}

/// What a server opens before it has clients, and has not opened when it looks.
const OWN_DESCRIPTORS: u64 = 16;

/// Less memory is not worth a table that nobody has given a size.
const LEAST: u64 = 16 << 20;

impl Serve {
    /// Whether the table is to be a node's of a cluster, whose secret says who reads it.
    fn is_node(&self) -> bool {
        #[cfg(feature = "cluster")]
        return self.node.is_node();
        #[cfg(not(feature = "cluster"))]
        false
    }

    pub fn run(self) -> Result<ExitCode> {
        if self.die_with_parent {
            // This signal also ends a stopped process.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        }
        let token = if self.no_token { Token::default() } else { self.token.token()? };
        ensure!(
            !matches!(self.at.address(), Address::Verbs(_))
                || self.no_token
                || !token.is_empty()
                || self.is_node(),
            "over verbs whoever reaches the port can read and change the table: give server and clients a token (ONEREAD_TOKEN, or --token-file FILE), or add --no-token to let everybody in"
        );
        if self.daemonize {
            return daemon::start(&self.at.address(), self.log_file.as_deref());
        }
        let index = self.index.table(self.owners)?;
        ensure!(
            self.log.is_none() || !self.is_node(),
            "a node of a cluster has no log: its copies are what outlives it; leave --log or --cluster out"
        );
        ensure!(
            index.is_none() || !self.is_node(),
            "an index is a table of one server, and a node of a cluster has none; leave --index or --cluster out"
        );
        let ending = Ending::begin(match self.tls_cert {
            Some(_) => Hangup::ReadsAgain,
            None => Hangup::Ends,
        })?;
        let tls = self.tls()?;
        // What grows beyond the limit on the length of files ends in an error, the log included.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        let address = self.at.address();
        let source = self.source();
        let base = source.map(|path| snapshot::config_for(&path, self.layout)).transpose();
        // A table that is taken over has terms of its own, and needs no snapshot that can be read.
        let (backing, is_taken_over) = if self.anonymous {
            (Backing::Anonymous, false)
        } else if self.huge_pages {
            (Backing::HugePages, false)
        } else {
            let (path, has_table) = self.prepare_file(&address, index)?;
            (Backing::File(path), has_table)
        };
        let base = if is_taken_over { None } else { base? };
        let share = if is_taken_over || base.is_some() { None } else { self.default_share(&backing)? };
        let base = match (base, &share) {
            (Some(base), _) => base,
            (None, Some(share)) => Config::new().size(TableSize::up_to(share.bytes)),
            (None, None) => Config::new(),
        };
        let config = self.config(base, index);
        if is_over_verbs(&address) && !is_taken_over {
            check_locked_memory(&config)?;
        }
        #[cfg(not(feature = "cluster"))]
        let served_at = address.clone();
        let how = self.how(address, config, backing.clone(), token)?.tls(tls.clone()).cancel(ending.cancel());
        raise_descriptors(self.clients_max, self.workers);
        // What another server has is told before a table is made; so is an address that cannot be.
        let pid_file = self.pid_file.as_deref().map(daemon::PidFile::take).transpose()?;
        let pid_file = Arc::new(Mutex::new(pid_file));
        #[cfg(feature = "metrics")]
        let scrapes = self.metrics.map(Listener::bind).transpose()?;
        #[cfg(feature = "cluster")]
        let started = self.node.start(how, self.listen.is_some(), self.die_with_parent);
        #[cfg(not(feature = "cluster"))]
        let started =
            oneread::Server::start(how).map(Serving::Table).map_err(|error| advise(error, &served_at));
        let serving = match started {
            Err(error) if matches!(error.downcast_ref(), Some(ServeError::Cancelled)) => {
                show::complain("oneread: stopped before the table was ready; nothing is left of a new one");
                return Ok(ExitCode::SUCCESS);
            }
            started => started?,
        };
        if let Some(Err(why)) = index.map(|index| index.mark(serving.server())) {
            serving.undo_start();
            return Err(why.into());
        }
        let server = Watched::new(Mutex::new(Some(serving)));
        ending.ends_by({
            let (server, pid_file) = (server.clone(), pid_file.clone());
            move || undo::undo(&server, &pid_file)
        });
        let ready = Ready {
            backing: &backing,
            share,
            #[cfg(feature = "metrics")]
            scrapes,
            pid_file: &pid_file,
        };
        if let Err(why) = self.get_ready(&server, ready) {
            undo::undo(&server, &pid_file);
            return Err(why);
        }
        ending.serves();
        while ending.next() == Asked::ReadAgain {
            // A disk may let it wait, and no signal waits for that.
            if let Some(tls) = tls.clone() {
                std::thread::spawn(move || read_again(&tls));
            }
        }
        notify(Said::Stopping);
        let serving = server.lock().unwrap_or_else(PoisonError::into_inner).take().context("the server")?;
        let address = serving.server().address().clone();
        let bytes = serving.server().index().region().backed_bytes();
        let stopped = serving.stop();
        undo::drop_file(&pid_file);
        let Some(stopped) = stopped else { return Ok(ExitCode::SUCCESS) };
        if let Backing::File(path) = &backing
            && !self.json
        {
            if stopped.region_stays {
                show::complain(what_stays(path, bytes, &address));
            } else {
                show::complain(format_args!(
                    "the table is gone: {} was removed, or another file put in its place, while it was served",
                    path.display()
                ));
            }
        }
        match (stopped.saved, &self.snapshot) {
            (Some(Ok(saved)), Some(path)) if !self.json => show::complain(format_args!(
                "snapshot of {} in {} ({}, {})",
                show::counted(saved.keys, "key"),
                path.display(),
                show::bytes(saved.bytes),
                show::time(saved.took)
            )),
            (Some(Err(error)), _) => return Err(error).context("the last snapshot was not made"),
            _ => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What the options ask of the server.
    fn how(&self, address: Address, config: Config, backing: Backing, token: Token) -> Result<ServerConfig> {
        let how = ServerConfig::new(address, config)
            .backing(backing)
            .tcp(self.listen.clone())
            .small_pages(self.small_pages)
            .start(StartMode::OpenOrCreate)
            .workers(self.workers.into())
            .allow_uids(numbers(&self.allow_uid))
            .allow_read_uids(numbers(&self.allow_read_uid))
            .clients_max(self.clients_max)
            .clients_per_peer(self.clients_per_peer)
            .half_open(self.half_open.0)
            .unread_bytes_max(self.unread_max)
            .client_bytes_max(self.client_memory_max.0)
            .starts(StartLimits::new().percent(self.starts_max).within_max(self.start_time_max.0))
            .read_token(match &self.read_token_file {
                Some(path) => oneread_kit::token_in(path)?,
                None => Token::default(),
            })
            .token(token)
            .wait(if self.poll { Wait::Poll } else { Wait::Block })
            .mailbox_bytes_max(self.mailbox_max.0)
            .feed_bytes(self.feed_max.0)
            .ttl(self.ttl.map(|Period(ttl)| ttl))
            .timed(self.is_timed())
            .evict(self.evict)
            .log(
                self.log
                    .as_ref()
                    .map(|path| LogConfig::new(path).fsync(self.fsync).truncate_at(self.log_truncate_at)),
            )
            .snapshots(
                self.snapshot
                    .as_ref()
                    .map(|path| Snapshots::new(path).every(self.snapshot_every.map(|Period(every)| every))),
            )
            .restore(self.restore.clone());
        // What started this server shows its own progress on the same terminal.
        let how = if self.die_with_parent { how } else { how.progress(show_start) };
        #[cfg(all(feature = "lab", feature = "verbs"))]
        let how = how.herd(self.herd);
        Ok(how)
    }

    /// Whether the time of each put is taken.
    fn is_timed(&self) -> bool {
        #[cfg(feature = "metrics")]
        let is_scraped = self.metrics.is_some();
        #[cfg(not(feature = "metrics"))]
        let is_scraped = false;
        self.put_times || is_scraped
    }

    fn tls(&self) -> Result<Option<ServerTls>> {
        let shown = self.tls_cert.as_ref().zip(self.tls_key.as_ref());
        let tls = shown.map(|(cert, key)| ServerTls::new(cert, key, self.tls_client_ca.as_deref()));
        Ok(tls.transpose()?)
    }

    /// Says where --allow-uid and --allow-read-uid let in more users than they name, or fewer.
    fn warn_of_users(&self, address: &Address) {
        let named = [&self.allow_uid[..], &self.allow_read_uid].concat();
        if named.is_empty() {
            return;
        }
        let folder = match address {
            Address::Shm(socket) => socket.parent().filter(|folder| !folder.as_os_str().is_empty()),
            _ => None,
        };
        if let Some((folder, about)) = folder.and_then(|folder| Some((folder, folder.metadata().ok()?)))
            && about.mode() & 0o011 == 0
        {
            show::complain(format_args!(
                "oneread: users let in by --allow-uid do not reach the socket: {} is its owner's alone (mode {:o}); chmod go+x, or serve elsewhere with --at",
                folder.display(),
                about.mode() & 0o7777,
            ));
        }
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let has_all = map.split_whitespace().eq(["0", "0", "4294967295"]);
        if named.contains(&UserId(files::UNMAPPED)) && !has_all {
            show::complain(format_args!(
                "oneread: in this user namespace {} is every user without a number here: all of them are let in",
                files::UNMAPPED,
            ));
        }
    }

    /// The snapshot that a new table begins with.
    fn source(&self) -> Option<PathBuf> {
        let in_log = self.log.as_ref().map(|path| LogConfig::new(path).snapshot());
        let own = self.snapshot.clone().or(in_log).filter(|path| path.symlink_metadata().is_ok());
        self.restore.clone().or(own)
    }

    /// How much a table may take of which the user has not said how large it may be. `None`: the user
    /// has, or it has one size.
    fn default_share(&self, backing: &Backing) -> Result<Option<MemoryShare>> {
        let is_sized = self.slots.is_some() || self.capacity.is_some() || self.max_memory.is_some();
        if is_sized {
            return Ok(None);
        }
        let mut share = backing.default_share().context(
            "the system does not say how much memory there is; say how much the table may take, by --max-memory",
        )?;
        let mut mend = match backing {
            Backing::HugePages => "reserve more (sysctl vm.nr_hugepages=N), or leave --huge-pages out",
            Backing::File(_) => "make room, or name a file elsewhere with --region",
            _ => "make room, or raise the limit",
        };
        if is_over_verbs(&self.at.address())
            && let Some(limit) = crate::doctor::locked_memory_max().map(|limit| limit / 10 * 9)
            && limit < share.bytes
        {
            share.bytes = limit;
            share.part = "nine tenths of what this process may lock in memory (ulimit -l)".into();
            mend = "raise the limit (`oneread doctor` says how)";
        }
        ensure!(
            share.bytes >= LEAST,
            "there is no memory for a table: {} is {}; {mend}",
            share.part,
            show::bytes(share.bytes),
        );
        Ok(Some(share))
    }

    /// Whether entries of a new table are to have a life.
    fn gives_life(&self) -> bool {
        self.life || self.owners || self.ttl.is_some()
    }

    /// `base` with the options that the user gave.
    fn config(&self, base: Config, index: Option<IndexTable>) -> Config {
        let size = match (self.slots, self.capacity, self.max_memory) {
            (Some(n), _, _) => TableSize::Slots(n),
            (_, Some(n), _) => TableSize::Keys(n),
            (_, _, Some(ByteSize(n))) => TableSize::up_to(n),
            _ => base.size,
        };
        let base = index::over(base, size, index);
        Config::new()
            .layout(self.layout.unwrap_or(base.layout))
            .size(size)
            .key_max(self.key_max.unwrap_or(base.key_max))
            .key_inline(self.key_inline.or(base.key_inline))
            .value_max(self.value_max.unwrap_or(base.value_max))
            .heap_bytes(self.heap.map(|ByteSize(bytes)| bytes).or(base.heap_bytes))
            .inline_max(self.inline_max.or(base.inline_max))
            .life(self.gives_life() || base.life)
            .owners(self.owners || base.owners)
            .grace(self.grace.map_or(base.grace, |Period(grace)| grace))
    }

    /// The region file, and whether it holds a table, which is as requested. Else the server makes one.
    fn prepare_file(&self, address: &Address, index: Option<IndexTable>) -> Result<(PathBuf, bool)> {
        let path = match &self.region {
            Some(path) => path.clone(),
            None => {
                let path = region_file(address);
                let shm = path.parent().and_then(Path::parent).context("a folder")?;
                ensure!(
                    shm.is_dir(),
                    "there is no {} here; name a region file with --region, or serve --anonymous",
                    shm.display()
                );
                path
            }
        };
        files::prepare(&path)?;
        let found = match std::fs::symlink_metadata(&path) {
            Ok(about) if about.len() > 0 || !about.is_file() => look_into(&path),
            _ => Ok(None),
        };
        if self.fresh && found.as_ref().map_or_else(is_of_region, Option::is_some) {
            ensure!(remove(&path)?, "{} is in use by another server; stop that one first", path.display());
            return Ok((path, false));
        }
        let Some(has) = found? else { return Ok((path, false)) };
        ensure!(
            self.restore.is_none(),
            "{} holds a table with keys of its own; --restore is for a new table: add --fresh to remove this one, or leave --restore out and use `oneread restore` to put the keys over these",
            path.display()
        );
        self.check(&path, &has, index)?;
        Ok((path, true))
    }

    /// Checks that the table in the file is what the user asked for.
    fn check(&self, path: &Path, has: &Geometry, index: Option<IndexTable>) -> Result<()> {
        // What is not given is as it is.
        let asked = self.config(Config::from(has), index);
        let mut differ = Vec::new();
        let mut compare = |what: &str, has: String, asked: String| {
            if has != asked {
                differ.push(format!("{what} {has}, asked for was {asked}"));
            }
        };
        compare("layout", has.layout().to_string(), asked.layout.to_string());
        compare("key-max", has.key_max().to_string(), asked.key_max.to_string());
        compare("value-max", has.value_max().to_string(), asked.value_max.to_string());
        let said = |has_some| if has_some { "yes" } else { "no" }.to_string();
        compare("life", said(has.has_life()), said(asked.life));
        compare("owners", said(has.has_owners()), said(asked.owners));
        compare("grace", show::time(has.grace()), show::time(asked.grace));
        match asked.geometry() {
            Ok(asked_for) => {
                if self.slots.is_some() || self.capacity.is_some() || self.max_memory.is_some() {
                    compare("size", size_of(has), size_of(&asked_for));
                }
                if self.heap.is_some() || self.inline_max.is_some() {
                    let bytes = |geometry: &Geometry| (geometry.heap().bytes, geometry.shape().bytes());
                    let ((heap, slot), (heap_asked, slot_asked)) = (bytes(has), bytes(&asked_for));
                    compare("heap", heap.to_string(), heap_asked.to_string());
                    compare("bytes in a slot", slot.to_string(), slot_asked.to_string());
                }
            }
            // Options that fit no table like this one ask for another table; others for none.
            Err(why) => ensure!(!differ.is_empty(), why),
        }
        ensure!(
            differ.is_empty(),
            "{} holds another table than the one asked for: it has {}; drop these options to serve what is there, or add --fresh to remove it and make a new one",
            path.display(),
            differ.join("; it has ")
        );
        Ok(())
    }
}

/// Whether memory is registered with a device. A build without devices says so later.
fn is_over_verbs(address: &Address) -> bool {
    cfg!(feature = "verbs") && matches!(address, Address::Verbs(_))
}

/// Checks that all of a table may be locked in memory, before any of it is taken.
fn check_locked_memory(config: &Config) -> Result<()> {
    let need = config.geometry()?.bytes_max();
    if let Some(limit) = crate::doctor::locked_memory_max().filter(|limit| *limit < need) {
        anyhow::bail!(
            "over verbs a table is locked in memory: up to {}, and this process may lock only {}; raise the limit (ulimit -l, or LimitMEMLOCK= in a systemd unit; `oneread doctor` says how), or serve less, by --max-memory or --capacity",
            show::bytes(need),
            show::bytes(limit),
        );
    }
    Ok(())
}

fn numbers(users: &[UserId]) -> Vec<u32> {
    users.iter().map(|user| user.0).collect()
}

/// Raises the limit of file descriptors as far as this user may, and says if it is too low. Each
/// connection takes one.
fn raise_descriptors(clients_max: usize, workers: u16) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let DescriptorShare { limit, clients, strangers } = DescriptorShare::now(OWN_DESCRIPTORS, workers.into());
    if clients < clients_max as u64 {
        show::complain(format_args!(
            "oneread: this process may have {limit} file descriptors: room for {clients} clients, fewer than --clients-max {clients_max}, and over TCP for {} that are joining; raise the limit (ulimit -Hn)",
            strangers * usize::from(workers)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        serve: Serve,
    }

    /// Each option reaches the server, in its unit.
    #[test]
    fn options_reach_the_server() {
        let how = |options: &[&str]| {
            let all = ["oneread", "--at", "shm:/tmp/sock"].iter().chain(options);
            let serve = <Command as clap::Parser>::parse_from(all).serve;
            let address = serve.at.address();
            serve.how(address, Config::new(), Backing::Anonymous, Token::default()).unwrap()
        };
        let usual = how(&[]);
        let own = ServerConfig::new(usual.address.clone(), Config::new());
        assert_eq!((usual.workers, usual.clients_max), (own.workers, own.clients_max));
        assert_eq!((usual.half_open, usual.clients_per_peer), (own.half_open, own.clients_per_peer));
        assert_eq!(usual.unread_bytes_max, own.unread_bytes_max);
        assert_eq!((usual.client_bytes_max, usual.starts), (own.client_bytes_max, own.starts));
        let held = how(&["--client-memory-max", "7MiB", "--starts-max", "3", "--start-time-max", "2m"]);
        assert_eq!(held.client_bytes_max, 7 << 20);
        assert_eq!((held.starts.percent, held.starts.within_max), (3, Duration::from_secs(120)));
        assert_eq!((usual.mailbox_bytes_max, usual.wait), (own.mailbox_bytes_max, own.wait));
        assert_eq!((usual.feed_bytes, how(&["--feed-max", "1MiB"]).feed_bytes), (own.feed_bytes, 1 << 20));
        assert_eq!((usual.ttl, how(&["--ttl", "90s"]).ttl), (None, Some(Duration::from_secs(90))));
        assert_eq!([&[][..], &["--put-times"]].map(|options| how(options).timed), [false, true]);
        #[cfg(feature = "metrics")]
        assert!(how(&["--metrics", "127.0.0.1:0"]).timed);
        assert_eq!((&usual.snapshots, &usual.restore), (&None, &None));
        let users = how(&["--allow-uid", "5", "--allow-uid", "6", "--allow-read-uid", "7"]);
        assert_eq!((users.allow_uids, users.allow_read_uids), (vec![5, 6], vec![7]));
        let limits = how(&["--clients-max", "11", "--clients-per-peer", "3", "--half-open", "250ms"]);
        assert_eq!((limits.clients_max, limits.clients_per_peer), (11, 3));
        assert_eq!(limits.half_open, Duration::from_millis(250));
        let memory = how(&["--unread-max", "3KiB", "--mailbox-max", "5MiB", "--workers", "4", "--poll"]);
        assert_eq!((memory.unread_bytes_max, memory.mailbox_bytes_max), (3 << 10, 5 << 20));
        assert_eq!((memory.workers, memory.wait), (4, Wait::Poll));
        let saved = how(&["--snapshot", "a", "--snapshot-every", "2m", "--restore", "b"]);
        assert_eq!(saved.snapshots, Some(Snapshots::new("a").every(Duration::from_secs(120))));
        assert_eq!(saved.restore, Some("b".into()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token").display().to_string();
        oneread_kit::write_secret(path.as_ref(), b"for readers\n").unwrap();
        assert_eq!(
            (how(&["--read-token-file", &path]).read_token, usual.read_token),
            (Token::new("for readers"), Token::default())
        );
        #[cfg(all(feature = "lab", feature = "verbs"))]
        assert!(format!("{:?}", how(&["--herd"])).contains("extension: Some(herd)"));
    }

    /// Each option reaches the table, and what is not given is that of the table's base.
    #[test]
    fn options_reach_the_table() {
        let base = Config::new()
            .layout("farm".parse().unwrap())
            .size(TableSize::Slots(77))
            .key_max(9)
            .value_max(99)
            .heap_bytes(1 << 30)
            .inline_max(41)
            .grace(Duration::from_micros(5));
        let config = |options: &[&str]| {
            let all = ["oneread", "--at", "shm:/tmp/sock"].iter().chain(options);
            let serve = <Command as clap::Parser>::parse_from(all).serve;
            serve.config(base, serve.index.table(serve.owners).unwrap())
        };
        assert_eq!(config(&[]), base);
        let sized = |made: Config| made.layout(base.layout).grace(base.grace);
        let wide = oneread_prefix::PlacementTable::grouped(2_000).unwrap();
        let grouped = ["--index", "grouped", "--holders", "2000", "--capacity", "5", "--owners"];
        assert_eq!(config(&grouped[..6]), sized(wide.config(TableSize::Keys(5))));
        assert_eq!(config(&grouped), sized(wide.owners(true).config(TableSize::Keys(5))));
        let locations = IndexTable::Location.config(base.size);
        assert_eq!(config(&["--index", "location"]), sized(locations));
        for (options, expected) in [
            (["--layout", "pilaf"], base.layout("pilaf".parse().unwrap())),
            (["--slots", "5"], base.size(TableSize::Slots(5))),
            (["--capacity", "5"], base.size(TableSize::Keys(5))),
            (["--max-memory", "1GiB"], base.size(TableSize::up_to(1 << 30))),
            (["--key-max", "5"], base.key_max(5)),
            (["--key-inline", "5"], base.key_inline(5)),
            (["--value-max", "2KiB"], base.value_max(2048)),
            (["--value-max", "0"], base.value_max(0)),
            (["--heap", "3MiB"], base.heap_bytes(3 << 20)),
            (["--inline-max", "0"], base.inline_max(0)),
            (["--grace", "300us"], base.grace(Duration::from_micros(300))),
        ] {
            assert_eq!(config(&options), expected, "{options:?}");
        }
    }

    /// Of two snapshots, the one that --restore names counts. The own one counts if it is there.
    #[test]
    fn a_table_begins_with_one_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own").display().to_string();
        let source = |options: &[&str]| {
            let serve = <Command as clap::Parser>::parse_from(["oneread"].iter().chain(options)).serve;
            serve.source()
        };
        assert_eq!(source(&["--snapshot", &own]), None);
        assert_eq!(source(&["--snapshot", &own, "--restore", "other"]), Some("other".into()));
        std::fs::write(&own, "").unwrap();
        assert_eq!(source(&["--snapshot", &own]), Some((&own).into()));
        assert_eq!(source(&["--snapshot", &own, "--restore", "other"]), Some("other".into()));
    }
}
