//! The client: GETs read the server's region; changes are requests to the server. [`Client`] states its guarantees for
//! when the server is gone.

mod asks;
pub(crate) mod breaking;
mod changes;
mod counters;
mod encrypted;
mod error;
mod feed;
mod follow;
mod gets;
mod handle;
#[cfg(any(feature = "verbs", test))]
mod lanes;
mod link;
mod lives;
mod long;
mod options;
mod owners;
mod owning;
mod parts;
mod pins;
mod pool;
mod scan;
mod send;
mod shm;
mod stats;
mod tcp;
pub(crate) mod tries;
mod two_steps;
pub(crate) mod values;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;

pub use counters::ClientCounters;
pub use error::{AskError, ConnectError, FeedError, GetError, LinkError, MutateError};
pub use feed::{ChangeFeed, FeedFrom, FeedInterrupter, FeedItem, FeedOptions};
pub use follow::{FeedPosition, GapCause};
pub use gets::BatchAnswer;
pub use lives::{EntryLife, LifeAnswer};
pub use options::{ClientOptions, OwnerOptions, RequestPath};
pub use pool::{ClientPool, PooledClient};
pub use scan::{Scan, ScanCursor, ScannedKey};
pub use stats::{ChangeCounts, ClientStats, FailureCounts, RequestCounts};
pub use two_steps::PutTicket;

use crate::address::Address;
use crate::base::times::TimeCounts;
use crate::encryption::Encryption;
use crate::layout::geometry::Geometry;
use crate::outcome::GetCounts;
use crate::reader::{DirectAnswers, GetStats};
use crate::region::Region;
use crate::wire::{Reply, Request};
use counters::GETS_APART;
use handle::{Deadline, Handle, Posted};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A handle on a served table. Each thread has its own handle: `Client` is `Send`, and `Clone`
/// makes another. [`ClientPool`] lends handles to any number of threads. Operations take `&mut self`,
/// because a handle has one conversation with the server, and counts without atomic instructions.
///
/// Over shm, cloning is cheap: handles share the mapping and one connection, which one of them at a
/// time uses for its requests; others open one of their own at their first request. One thread
/// watches the connections of all clients of the process. Over verbs each handle has its own queue pair, made
/// at first use, or all handles share a few ([`VerbsOptions::pairs`](crate::VerbsOptions::pairs)).
///
/// It is also `Sync`, but that is of little use, since all operations take `&mut self`. Clone it, or take
/// a pool: behind a mutex, GETs wait for each other and for changes.
///
/// # What blocks, and for how long
///
/// | call | waits for | at most |
/// |---|---|---|
/// | GETs on shm | nothing: no system call, no server. If a slot is being written, the GET reads it again: it spins, then yields, then sleeps 50 microseconds between attempts | [`Limits::deadline`](crate::Limits::deadline), 1 s |
/// | GETs over TCP | the server's answer, and a connection if there is none. If the connection failed, a new connection | [`ClientOptions::deadline`] without an answer |
/// | GETs over verbs | the NIC, some microseconds, spinning or asleep ([`Wait`](crate::Wait)). If the connection failed, a new connection | [`ClientOptions::deadline`], 5 s, and [`Limits::deadline`](crate::Limits::deadline) |
/// | changes, [`get_two_sided`](Client::get_two_sided), [`server_stats`](Client::server_stats) | the server's answer, and a connection if there is none | [`ClientOptions::deadline`] |
/// | [`connect`](Client::connect) | the server | [`ClientOptions::deadline`] |
/// | cloning | nothing | |
/// | dropping a handle | nothing. With the last client on shm of the process, the end of the watching thread, some microseconds | |
///
/// A batch takes as long as its READs, or its changes, take. The bounds above limit only the time without
/// progress. [`Server`](crate::Server) says what its calls wait for.
///
/// # When the server is gone
///
/// * **Suspended or busy** (SIGSTOP, debugger, overload): GETs work as usual. The exception is a
///   GET that needs a slot which the server was just writing, at most one slot per server thread.
///   Such a GET ends at its bound ([`ClientOptions::limits`]). Changes end in
///   [`MutateError::Deadline`] and may still happen at any later time.
/// * **Gone** (exit, crash, kill -9): the operating system hangs up the connection. The watching
///   thread notices as soon as it runs. (It also watches the server's process, because a child of that
///   may keep the connection open.) GETs still answer from the region as the
///   server left it, until the client has reconnected or its lease ([`ClientOptions::lease`]) ends.
///   After the lease they end in [`GetError::ServerGone`]. Meanwhile the thread tries to
///   reconnect, at once and then after pauses that grow from 1 ms to 100 ms.
/// * **Gone already**, or silent, when the client connects: [`ClientOptions::region`] names the file to read.
/// * **Back** at the same address: the thread reconnects within 100 ms, or within 2 s if an
///   attempt was under way and got no answer. Every handle reads the new server's region from its
///   next GET on. If the new server took over the region file, the old mapping shows its changes
///   even before that. If it made a new region, GETs may answer from the old one until then.
/// * **Stopped** by [`Server::stop`](crate::Server::stop) or by dropping the server: a region file
///   stays, and GETs answer as from a server that is gone, until the lease ends. Any other region
///   is marked as given up. GETs then end in `ServerGone` at once, unless the client has
///   reconnected.
///
/// Over verbs the registered memory goes with the server, however it ended: once the kernel has
/// torn down its queue pairs, no GET answers from its region. After a failed READ the client
/// reconnects, at first at once, later every 100 ms, until [`ClientOptions::deadline`]. It repeats
/// the GETs under way over the new connection, with that server's geometry and generation. If it
/// cannot connect, they end in [`GetError::Connect`]. Over TCP it is the same, and a server that is suspended
/// answers no GET either: they end in [`GetError::Deadline`].
///
/// # After a fork
///
/// Clients stay with the process that made them. In a child made by `fork`, all of their operations end in
/// [`ConnectError::Forked`]: no thread there notices that a server is gone, and both processes would
/// use the same sockets and mailboxes. Dropping them there does the parent's no harm. The child connects
/// clients of its own. (A child that shares the memory of its parent, as `vfork` makes it, is not noticed,
/// nor is one on Linux before 4.14.) [`Client::region`] is readable in the child, too: for as long as it
/// likes, and without notice that the server is gone.
///
/// # In an async program
///
/// There is no `async` variant, because a GET on shm ends before a task could be switched. Call
/// GETs on shm directly in a task, with a handle of a [`ClientPool`] and a short
/// [`Limits::deadline`](crate::Limits::deadline). Leave all other calls to a thread that may block:
/// `ClientPool::run` (feature `tokio`) does so, as in `examples/tokio.rs`. Where there are many changes, one
/// thread that owns a handle and receives them from a channel can send batches
/// ([`put_many`](Client::put_many)). Over verbs, such a thread should also do the GETs, with
/// [`get_many`](Client::get_many), unless a task may wait for the NIC.
///
/// ```
/// # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
/// # let dir = tempfile::tempdir().unwrap();
/// # let address = Address::Shm(dir.path().join("s"));
/// # let config = Config::new().size(TableSize::Keys(100));
/// let server = Server::start(ServerConfig::new(address.clone(), config))?;
///
/// let mut client = Client::connect(&address)?;
/// client.put(b"key", b"value")?; // a request to the server
/// let value = client.get(b"key")?; // one READ, no request
/// assert_eq!(value.as_deref(), Some(&b"value"[..]));
/// assert_eq!(client.stats().read.reads, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    address: Address,
    options: ClientOptions,
    path: ServerPath,
    /// The counts, without those of `direct`.
    stats: ClientStats,
    direct: DirectAnswers,
    counters: ClientCounters,
    gets_until_published: u64,
    /// What the server was told of its GETs, and the handle's number among those of this host, or another's.
    told: GetCounts,
    number: usize,
}

/// How the client reaches the server's region.
#[derive(Clone, Debug)]
enum ServerPath {
    Shm(shm::ShmHandle),
    Tcp(Box<tcp::TcpHandle>),
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::VerbsHandle>),
}

/// Runs an expression on the handle of any path: `on_path!(&mut self.path, handle => ...)`.
macro_rules! on_path {
    ($path:expr, $handle:ident => $then:expr) => {
        match $path {
            ServerPath::Shm($handle) => $then,
            ServerPath::Tcp($handle) => $then,
            #[cfg(feature = "verbs")]
            ServerPath::Verbs($handle) => $then,
        }
    };
}
use on_path;

impl Client {
    /// Connects to the server at `address`. On shm it maps the region for reading. Everything about
    /// the table comes from the region's superblock.
    ///
    /// # Errors
    /// [`ConnectError`] says what failed, and what to do about it.
    pub fn connect(address: &Address) -> Result<Client, ConnectError> {
        Client::connect_with(address, ClientOptions::default())
    }

    /// Connects with the given options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &Address, options: ClientOptions) -> Result<Client, ConnectError> {
        let options = options.bounded();
        address.check()?;
        check_path(options.requests, address)?;
        if options.exact_expiry && !matches!(address, Address::Shm(_)) {
            return Err(ConnectError::ExactExpiry { address: address.clone() });
        }
        let path = match address {
            Address::Shm(socket) => ServerPath::Shm(shm::ShmHandle::connect(socket, &options)?),
            Address::Tcp(at) => ServerPath::Tcp(Box::new(tcp::TcpHandle::connect(at, &options)?)),
            #[cfg(feature = "verbs")]
            Address::Verbs(at) => ServerPath::Verbs(Box::new(verbs::VerbsHandle::connect(at, &options)?)),
            #[cfg(not(feature = "verbs"))]
            Address::Verbs(_) => return Err(ConnectError::NotBuilt { address: address.clone() }),
        };
        Ok(Client::new(address.clone(), options, path))
    }

    fn new(address: Address, options: ClientOptions, path: ServerPath) -> Client {
        /// Handles of this process so far.
        static HANDLES: AtomicUsize = AtomicUsize::new(0);
        let (stats, direct, counters, told) = Default::default();
        // Processes begin elsewhere, so that few handles share a number.
        let number = (std::process::id() as usize).wrapping_add(HANDLES.fetch_add(1, Ordering::Relaxed));
        let gets_until_published = GETS_APART;
        Client { address, options, path, stats, direct, counters, gets_until_published, told, number }
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The geometry of the table being read.
    pub fn geometry(&self) -> &Geometry {
        on_path!(&self.path, handle => handle.geometry())
    }

    /// The longest value, in bytes, that this client can put: that of the table, less
    /// `Encryption::OVERHEAD` with encryption. (0 also where not even the overhead fits.)
    pub fn value_max(&self) -> usize {
        let max = self.geometry().value_max();
        if self.options.encryption.is_some() {
            return max.saturating_sub(Encryption::OVERHEAD);
        }
        max
    }

    /// Whether a server was there when the client last looked. If not, GETs answer from the region
    /// that a server left, or from its file ([`ClientOptions::region`]). Always `true` over verbs and TCP.
    pub fn is_served(&self) -> bool {
        match &self.path {
            ServerPath::Shm(handle) => handle.is_served(),
            ServerPath::Tcp(_) => true,
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(_) => true,
        }
    }

    /// The region being read. `None` over verbs and TCP, where it is not mapped.
    pub fn region(&self) -> Option<&Region> {
        match &self.path {
            ServerPath::Shm(handle) => Some(handle.region()),
            ServerPath::Tcp(_) => None,
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(_) => None,
        }
    }

    /// Over TCP, the socket to the server while there is one: for `oneread doctor`, which asks the system about it.
    #[doc(hidden)]
    pub fn tcp_socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.path {
            ServerPath::Tcp(handle) => handle.socket(),
            _ => None,
        }
    }

    /// Counts of this handle since it was made.
    pub fn stats(&self) -> ClientStats {
        let mut stats = self.stats;
        stats.reattached = on_path!(&self.path, handle => handle.reattached());
        self.direct.add_gets_to(&mut stats.get);
        self.direct.add_reads_to(&mut stats.read);
        stats
    }

    /// How long this handle's GETs of one key took. `None` without [`ClientOptions::timed`].
    pub fn get_times(&self) -> Option<&TimeCounts> {
        on_path!(&self.path, handle => handle.times())
    }

    /// Bytes of memory for hints ([`ClientOptions::hint_bytes`]), 0 without. All clones share them.
    pub fn hint_bytes(&self) -> u64 {
        on_path!(&self.path, handle => handle.hint_bytes())
    }

    /// The counts of this handle, for other threads, while the handle works. [`ClientCounters::stats`] says when they
    /// are there.
    pub fn counters(&self) -> ClientCounters {
        self.counters.clone()
    }

    #[cold]
    fn publish(&mut self) {
        self.gets_until_published = GETS_APART;
        let stats = self.stats();
        self.counters.publish(stats);
        self.tell_gets(&stats.get);
    }

    /// Tells a server of this host how many GETs this handle has made since it last told. Others count them themselves, or
    /// do not hear of them.
    fn tell_gets(&mut self, stats: &GetStats) {
        let now = GetCounts { gets: stats.gets, hits: stats.hits };
        let since = now.since(std::mem::replace(&mut self.told, now));
        match &self.path {
            ServerPath::Shm(handle) if since != GetCounts::default() => handle.tell_gets(self.number, since),
            ServerPath::Shm(_) | ServerPath::Tcp(_) => {}
            #[cfg(feature = "verbs")]
            ServerPath::Verbs(_) => {}
        }
    }

    /// Counts a failed GET, and tells other threads what has been done.
    #[cold]
    fn count_failed_get(&mut self, error: GetError) -> GetError {
        self.stats.failures.count_get(&error);
        self.publish();
        error
    }

    /// Called after a GET: tells other threads now and then what has been done, and at once if it failed.
    #[inline(always)]
    fn count_get<R>(&mut self, found: Result<R, GetError>) -> Result<R, GetError> {
        match found {
            Ok(found) => {
                self.gets_until_published -= 1;
                if self.gets_until_published == 0 {
                    self.publish();
                }
                Ok(found)
            }
            Err(error) => Err(self.count_failed_get(error)),
        }
    }

    /// Counts of the verbs queues: doorbells, READs, messages, completions. `None` on other
    /// fabrics. Where handles share queue pairs, the thread that polls posts for all handles and
    /// counts that as its own. Then only the sum over all handles is meaningful.
    #[cfg(feature = "verbs")]
    pub fn queue_counts(&self) -> Option<crate::verbs::QueueCounts> {
        match &self.path {
            ServerPath::Shm(_) | ServerPath::Tcp(_) => None,
            ServerPath::Verbs(handle) => Some(handle.queue_counts()),
        }
    }

    fn ask(&mut self, request: &Request<'_>, deadline: Instant) -> Result<Reply, AskError> {
        self.ask_patiently(request, deadline, Duration::ZERO)
    }

    /// Makes a request, which the server may have wait so long for memory.
    fn ask_patiently(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
        patience: Duration,
    ) -> Result<Reply, AskError> {
        let mut deadline = Deadline { at: deadline, allowed: self.options.deadline, patience };
        let mut replies = Vec::with_capacity(1);
        self.converse(std::slice::from_ref(request), &mut deadline, &mut replies)?;
        replies.pop().ok_or_else(|| self.unexpected())
    }

    /// Sends a request whose reply may be long in coming, over a connection that no other handle uses, and does not wait
    /// for that. Whatever else this handle asks for gives it up.
    fn post(&mut self, request: &Request<'_>) -> Result<Posted, AskError> {
        self.check_process()?;
        let deadline = Instant::now() + self.options.deadline;
        let posted = on_path!(&mut self.path, handle => handle.post(request, deadline, &mut self.stats));
        self.counted(posted)
    }

    /// The reply to that request, if it comes until then.
    fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, AskError> {
        self.check_process()?;
        let reply = on_path!(&mut self.path, handle => handle.late_reply(until));
        self.counted(reply)
    }

    /// Has the server answer it at once.
    fn hurry(&mut self) -> Result<(), AskError> {
        self.check_process()?;
        let deadline = Instant::now() + self.options.deadline;
        let hurried = on_path!(&mut self.path, handle => handle.hurry(deadline));
        self.counted(hurried)
    }

    /// Gives up a connection, and with it a request that was posted.
    fn disconnect(&mut self) {
        on_path!(&mut self.path, handle => handle.disconnect());
    }

    /// Two processes with one mailbox, or one socket, would take each other's answers.
    fn check_process(&self) -> Result<(), AskError> {
        match on_path!(&self.path, handle => handle.process().is_this()) {
            true => Ok(()),
            false => Err(ConnectError::Forked { address: self.address.clone() }.into()),
        }
    }

    fn counted<R>(&mut self, asked: Result<R, AskError>) -> Result<R, AskError> {
        if let Err(error) = &asked {
            self.stats.failures.count_ask(error);
        }
        self.publish();
        asked
    }

    /// Appends one reply for each request, in order; after an error, as many as there are. Counts them.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), AskError> {
        let answered = self.check_process().and_then(|()| {
            on_path!(&mut self.path, handle => handle.converse(requests, deadline, replies, &mut self.stats))
        });
        let answered = answered.and_then(|()| {
            if replies.len() != requests.len() {
                replies.truncate(requests.len());
                return Err(self.misunderstood());
            }
            Ok(())
        });
        let denied = replies.iter().position(|reply| *reply == Reply::Denied);
        let answered = match denied {
            Some(first) => {
                replies.truncate(first);
                Err(AskError::ReadOnly { address: self.address.clone() })
            }
            None => answered,
        };
        let both = requests.iter().zip(&*replies);
        both.for_each(|(request, reply)| self.stats.changes.count(request, reply));
        if let Err(error) = &answered {
            self.stats.failures.count_ask(error);
        }
        self.publish();
        answered
    }

    /// Drops the connection after a reply that does not belong to the request. Counts that.
    fn unexpected(&mut self) -> AskError {
        let error = self.misunderstood();
        self.stats.failures.count_ask(&error);
        self.publish();
        error
    }

    fn misunderstood(&mut self) -> AskError {
        self.disconnect();
        AskError::ServerGone { address: self.address.clone(), source: LinkError::Unexpected }
    }
}

/// The server is told of the last GETs. A child made by `fork` has a copy of the handle, which has told nothing.
impl Drop for Client {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.publish();
        }
    }
}

impl Clone for Client {
    /// Makes a handle for another thread, with no connection of its own and zero counts.
    fn clone(&self) -> Client {
        Client::new(self.address.clone(), self.options.clone(), self.path.clone())
    }
}

/// Looks whether requests can travel this way over the address's fabric.
///
/// # Errors
/// When requests cannot travel this way over the address's fabric.
fn check_path(path: RequestPath, address: &Address) -> Result<(), ConnectError> {
    let why = match (address, path) {
        #[cfg(feature = "verbs")]
        (Address::Shm(_), RequestPath::Extension(_)) => {
            "that is for verbs; on shm, use a mailbox, or messages"
        }
        (Address::Verbs(_), RequestPath::Mailbox) => "that is for shm; over verbs, use messages",
        (Address::Tcp(_), RequestPath::Mailbox) => "that is for shm; over TCP, use messages",
        #[cfg(feature = "verbs")]
        (Address::Tcp(_), RequestPath::Extension(_)) => "that is for verbs; over TCP, use messages",
        _ => return Ok(()),
    };
    Err(ConnectError::RequestPath { path, address: address.clone(), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The auto traits that the documentation promises.
    #[test]
    fn handles_go_to_other_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Client>();
    }
}
