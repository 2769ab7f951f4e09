//! Handles of one client for any number of threads.

use super::Client;
use super::counters::ClientCounters;
use super::error::ConnectError;
use super::options::ClientOptions;
use super::stats::ClientStats;
use crate::address::Address;
use crate::base::process::Process;
use crate::base::sync::lock_std;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most handles of a pool, by default.
const HANDLES_MAX: usize = 64;

/// Handles of one client for any number of threads, each used by one thread at a time.
///
/// [`ClientPool::get`] lends a [`Client`], and takes it back when the guard is dropped. Nothing is locked
/// while the handle is used: taking it and giving it back lock a list for some dozens of nanoseconds. A
/// thread that makes many GETs should keep the guard for all of them.
///
/// `Send`, `Sync` and `Clone`. A clone is the same pool.
///
/// ```
/// # use oneread::{Address, ClientPool, Config, Server, ServerConfig, TableSize};
/// # let dir = tempfile::tempdir().unwrap();
/// # let address = Address::Shm(dir.path().join("s"));
/// # let server = Server::start(ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100))))?;
/// let pool = ClientPool::connect(&address)?;
/// std::thread::scope(|threads| {
///     for n in 0..8u8 {
///         let pool = &pool;
///         threads.spawn(move || {
///             let mut client = pool.get();
///             client.put(&[n], b"value").unwrap();
///             assert!(client.get(&[n]).unwrap().is_some());
///         });
///     }
/// });
/// assert_eq!(pool.stats().changes.puts, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # How many handles
///
/// A handle is made, as a clone of the first, when all others are in use, up to
/// [`ClientPool::handles_max`] (64 by default). They stay until the pool is dropped. At the bound,
/// [`ClientPool::get`] waits for a handle, [`ClientPool::get_timeout`] for so long, and
/// [`ClientPool::try_get`] not at all. A thread that waits while it holds handles itself may wait for ever:
/// take one at a time. A handle that has made a change keeps a connection, of which a server has
/// [`ServerConfig::clients_max`](crate::ServerConfig::clients_max).
///
/// # In an async program
///
/// Take handles by [`ClientPool::try_get`], and give them back before the next `.await`:
/// [`ClientPool::get`] would stop the thread that runs the tasks. `ClientPool::run` (feature `tokio`) makes
/// changes. It uses at most half of the handles, so that GETs find one while changes wait for the server.
///
/// # When something goes wrong
///
/// * **The server is gone, or back**: each handle behaves as [`Client`] says. It reconnects by itself, so none
///   is thrown away.
/// * **A thread panics while it holds a handle**: that handle is dropped, because it may be in the middle of a
///   conversation. The pool makes another when it needs one. What the handle did stays counted.
/// * **After a fork**, the pool belongs to the parent. In the child, [`ClientPool::get`] waits for nothing,
///   each operation ends in [`ConnectError::Forked`], and [`ClientPool::stats`] is zero. Dropping a guard or
///   the pool there does the parent's no harm.
#[derive(Clone, Debug)]
pub struct ClientPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    process: Process,
    /// The client of which handles are clones. It makes no requests itself.
    first: Client,
    handles: Mutex<Handles>,
    /// Notified when a handle comes back, or another one may be made.
    room: Condvar,
}

#[derive(Debug)]
struct Handles {
    max: usize,
    /// How many of those in use are in [`ClientPool::run`].
    running: usize,
    /// Handles that nobody uses. The last one was used last.
    idle: Vec<Client>,
    /// The counts of all present handles.
    counters: Vec<ClientCounters>,
    /// The sum of the counts of dropped handles.
    gone: ClientStats,
}

/// A handle of a [`ClientPool`], for one thread at a time. Dropping it gives the handle back.
#[derive(Debug)]
pub struct PooledClient {
    /// `None` only while it is dropped.
    client: Option<Client>,
    user: User,
    pool: Arc<Shared>,
}

/// The user of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Caller,
    /// [`ClientPool::run`], which leaves half of the handles to others.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    Run,
}

impl ClientPool {
    /// A pool of this client and clones of it.
    pub fn new(client: Client) -> ClientPool {
        let handles = Handles {
            max: HANDLES_MAX,
            running: 0,
            counters: vec![client.counters()],
            gone: ClientStats::default(),
            idle: Vec::new(),
        };
        let shared = Shared {
            process: Process::this(),
            first: client.clone(),
            handles: Mutex::new(handles),
            room: Condvar::new(),
        };
        shared.give_back(client, User::Caller);
        ClientPool(Arc::new(shared))
    }

    /// Connects as [`Client::connect`] does.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(address: &Address) -> Result<ClientPool, ConnectError> {
        Client::connect(address).map(ClientPool::new)
    }

    /// Connects as [`Client::connect_with`] does.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &Address, options: ClientOptions) -> Result<ClientPool, ConnectError> {
        Client::connect_with(address, options).map(ClientPool::new)
    }

    /// The most handles that there are at a time, at least 1. A lower number than there are takes effect as
    /// handles come back.
    #[must_use]
    pub fn handles_max(self, max: usize) -> ClientPool {
        if self.0.process.is_this() {
            lock_std(&self.0.handles).max = max.max(1);
            self.0.room.notify_all();
        }
        self
    }

    /// A handle. If the most handles are in use, waits until one comes back, however long that takes. Not for a task of
    /// an async program: it would stop the thread that runs it, and the other tasks there.
    pub fn get(&self) -> PooledClient {
        self.lend(User::Caller, None).unwrap_or_else(|| self.clone_of_first())
    }

    /// Like `get`, but `None` after this time.
    pub fn get_timeout(&self, time: Duration) -> Option<PooledClient> {
        self.lend(User::Caller, Some(time))
    }

    /// A handle. `None` if the most handles are in use. Does not wait.
    pub fn try_get(&self) -> Option<PooledClient> {
        self.get_timeout(Duration::ZERO)
    }

    /// A handle, within this time, if there is a bound.
    fn lend(&self, user: User, time: Option<Duration>) -> Option<PooledClient> {
        if !self.0.process.is_this() {
            return Some(self.clone_of_first());
        }
        let client = self.0.lend(user, time)?;
        Some(PooledClient { client: Some(client), user, pool: self.0.clone() })
    }

    /// The sum of the counts of all handles: the client of which the pool was made, handles in use, and dropped ones.
    /// All counts of a handle that has come back are there. GETs of a handle in use are counted in steps, as
    /// [`ClientCounters::stats`] says.
    pub fn stats(&self) -> ClientStats {
        if !self.0.process.is_this() {
            return ClientStats::default();
        }
        let handles = lock_std(&self.0.handles);
        let mut sum = handles.gone;
        handles.counters.iter().for_each(|counters| sum += counters.stats());
        sum
    }

    /// Runs `work` with a handle on a thread that may block, and returns what it returns: for an async program
    /// that must not wait itself. Handing it over costs some microseconds. So GETs on shm, of some hundred
    /// nanoseconds, are better called in the task, with [`ClientPool::try_get`] and a short
    /// [`Limits::deadline`](crate::Limits::deadline); many changes together cost less as one
    /// [`Client::put_many`].
    ///
    /// At most half of the handles, rounded up, run work at a time. Other work waits, on threads that may block.
    ///
    /// Once begun, the work is done even if the future is dropped.
    ///
    /// # Errors
    /// `tokio`'s error if `work` panicked, or the runtime ended before it began.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> R + Send + 'static,
    ) -> Result<R, tokio::task::JoinError> {
        let pool = self.clone();
        tokio::task::spawn_blocking(move || {
            let client = pool.lend(User::Run, None);
            work(&mut client.unwrap_or_else(|| pool.clone_of_first()))
        })
        .await
    }

    /// A handle, in another process than the pool's.
    fn clone_of_first(&self) -> PooledClient {
        PooledClient { client: Some(self.0.first.clone()), user: User::Caller, pool: self.0.clone() }
    }
}

impl Shared {
    /// An idle handle, or a new one. `None` if there is none in time. Not for another process than the pool's: there
    /// the lock may be held by a thread that does not exist.
    fn lend(&self, user: User, time: Option<Duration>) -> Option<Client> {
        let begun = Instant::now();
        let mut handles = lock_std(&self.handles);
        loop {
            if user == User::Caller || handles.running < handles.max.div_ceil(2) {
                let client = handles.idle.pop().or_else(|| {
                    (handles.counters.len() < handles.max).then(|| {
                        let client = self.first.clone();
                        handles.counters.push(client.counters());
                        client
                    })
                });
                if client.is_some() {
                    handles.running += usize::from(user == User::Run);
                    return client;
                }
            }
            handles = match time {
                None => self.room.wait(handles).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let left = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
                    self.room.wait_timeout(handles, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn give_back(&self, mut client: Client, user: User) {
        client.publish();
        let mut handles = lock_std(&self.handles);
        handles.running -= usize::from(user == User::Run);
        // A thread that panics may have left it in the middle of a conversation.
        let dropped = if std::thread::panicking() || handles.counters.len() > handles.max {
            handles.gone += client.stats();
            handles.counters.retain(|counters| !counters.are_those(&client.counters));
            Some(client)
        } else {
            handles.idle.push(client);
            None
        };
        drop(handles);
        // Notifies all: the next user may be one that may not have this handle.
        self.room.notify_all();
        // Dropping it may close a connection.
        drop(dropped);
    }
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && self.pool.process.is_this()
        {
            self.pool.give_back(client, self.user);
        }
    }
}

impl Deref for PooledClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("there until it is dropped")
    }
}

impl DerefMut for PooledClient {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("there until it is dropped")
    }
}
