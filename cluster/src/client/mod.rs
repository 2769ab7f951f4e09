//! A client of a cluster.

mod changes;
mod feed;
mod gets;
mod owner;
mod pages;
mod requests;
mod routes;
mod scan;
#[cfg(test)]
mod tests;

use crate::clock;
pub use crate::core::feed::FeedAt;
use crate::core::message::{OWNER_MAX, RequestId};
use crate::core::state::{ClusterConfig, NodeAbout, NodeId, ShardIx};
use crate::etcd::{ClusterName, EtcdError, EtcdOptions};
use crate::wire::Secret;
use arc_swap::{ArcSwap, Cache};
pub use feed::{ClusterFeed, ClusterFeedItem, ClusterFeedOptions, ClusterInterrupter, ClusterPosition};
use gets::Tables;
use oneread::internals::breaking;
use oneread::{Address, Client, ClientOptions, ConnectError};
use owner::Owning;
use pages::Hurried;
use rand::TryRng;
use rand::rngs::SysRng;
use requests::{Ended, Runtime};
use routes::{Known, Routes};
use rustc_hash::FxHashMap;
pub use scan::{ClusterScan, ScanState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The longest pause before a request that was not done looks again at what it waits for.
const AGAIN: Duration = Duration::from_millis(20);
/// Time between two questions to a node why it gives no lease.
const REASON_EVERY: Duration = Duration::from_millis(500);

/// The options of a client of a cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// The secret of the cluster.
    pub secret: Secret,
    /// The longest time for one call. A failover, with a lease on the new primary, takes a TTL and a second, and one
    /// TTL more if the primary had just got the shard by a move.
    pub deadline: Duration,
    /// How tables are READ. The token is the cluster's. The lease of a region in shared memory never ends: leases on
    /// nodes decide, and [`ClusterClient::get_advisory`] continues to READ when the server is gone.
    pub tables: ClientOptions,
}

impl Default for ClusterOptions {
    /// No secret, and 10 s.
    fn default() -> ClusterOptions {
        let deadline = Duration::from_secs(10);
        ClusterOptions {
            secret: Secret::default(),
            deadline,
            tables: ClientOptions::new().deadline(Duration::from_secs(1)),
        }
    }
}

/// Why a call of a cluster failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// etcd, or its keys of the cluster.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The client's threads could not be started.
    #[error("the client's threads could not be started: {0}")]
    Threads(std::io::Error),
    /// The key or the value is longer than the cluster allows, or the key is one of the cluster's own.
    #[error(
        "a key of {key_len} bytes with a value of {value_len} bytes cannot be in this cluster: it has keys of 1 to {key_max} \
         bytes that do not begin with the bytes \"\\0oneread\\0\", and values of at most {value_max} bytes"
    )]
    Invalid {
        /// Length of the key given.
        key_len: usize,
        /// Length of the value given.
        value_len: usize,
        /// The longest key.
        key_max: usize,
        /// The longest value.
        value_max: usize,
    },
    /// No value could be trusted in time.
    #[error("shard {shard} could not be read for {waited:?}: {why}")]
    Unavailable {
        /// The shard of the key.
        shard: ShardIx,
        /// The time of the tries.
        waited: Duration,
        /// What was missing last.
        why: String,
    },
    /// The change was certainly not made.
    #[error("shard {shard} took no change for {waited:?}: {why}; it was certainly not made")]
    NotDone {
        /// The shard of the key.
        shard: ShardIx,
        /// The time of the tries.
        waited: Duration,
        /// What was missing last.
        why: String,
    },
    /// The change may have been made, or may still be made.
    #[error(
        "shard {shard} did not answer for {waited:?}: the change may have been made, or may yet be; read the key to see, or \
         make changes exactly once"
    )]
    Unknown {
        /// The shard of the key.
        shard: ShardIx,
        /// The time of the wait.
        waited: Duration,
    },
    /// The position cannot be used here.
    #[error(
        "the position is of another cluster, or this one was removed and made again: begin without one, and scan"
    )]
    Position,
    /// No entry can have this time to live.
    #[error(
        "no entry of a cluster lives for {given:?}: a time to live is more than 0, and ten years at most"
    )]
    TimeToLive {
        /// The time given.
        given: Duration,
    },
    /// Entries have no ends.
    #[error(
        "entries of shard {shard} have no ends: a time to live needs nodes that were made by `oneread serve --life`, all of them; adding it \
         later loses all entries (docs/CLUSTER.md)"
    )]
    NoLife {
        /// The shard of the key.
        shard: ShardIx,
    },
    /// No owner has this number.
    #[error("{given} is no number of an owner: give one of 1 to {OWNER_MAX}")]
    OwnerNumber {
        /// The number given.
        given: u16,
    },
    /// No owner may be away for so short a time, or so long.
    #[error("an owner cannot be away for {given:?}: give {least:?}, the cluster's TTL, to ten years")]
    AbsentFor {
        /// The time given.
        given: Duration,
        /// The shortest time: the cluster's TTL.
        least: Duration,
    },
    /// The owner has another session, or its former entries are still leaving.
    #[error(
        "owner {owner} has another session, or its entries are still leaving, at shard {shard}: remove the owner first, or take \
         another number"
    )]
    OwnerTaken {
        /// The owner.
        owner: u16,
        /// The first such shard.
        shard: ShardIx,
    },
    /// The owner was removed, or was silent for longer than it may be away.
    #[error(
        "owner {owner} was removed, or was away for longer than it said, and its entries leave: remove it everywhere, and \
         begin as this owner again"
    )]
    OwnerGone {
        /// The owner.
        owner: u16,
    },
    /// The owner's entries are being removed. It puts no more.
    #[error("entries of owner {owner} are still leaving at {shards} shards after {waited:?}: ask again")]
    OwnerLeaves {
        /// The owner.
        owner: u16,
        /// The number of shards that still have some, or have not confirmed that they have none.
        shards: usize,
        /// The time of the wait.
        waited: Duration,
    },
    /// Entries have no owners.
    #[error(
        "entries of shard {shard} have no owners: they need nodes that were made by `oneread serve --life`, all of them, and of a version that \
         knows owners (docs/CLUSTER.md)"
    )]
    NoOwners {
        /// The shard.
        shard: ShardIx,
    },
    /// There is no room for the entry, at the primary or a standby.
    #[error("shard {shard} is full at one of its nodes: give nodes more memory, or add nodes")]
    Full {
        /// The shard of the key.
        shard: ShardIx,
    },
}

/// The state that the handles of a client share.
#[derive(Debug)]
struct Shared {
    config: ClusterConfig,
    options: ClusterOptions,
    known: Mutex<Known>,
    routes: Arc<ArcSwap<Routes>>,
    /// Goes up when something was learned for which a call may wait.
    version: Mutex<u64>,
    changed: Condvar,
    /// Told when `version` goes up: tasks wait for that.
    learned: watch::Sender<()>,
    /// A client of each node's table that a handle READs.
    tables: Mutex<FxHashMap<NodeId, Client>>,
    copies: AtomicU64,
    /// The nodes' reasons for giving no lease, and when they were asked.
    reasons: Mutex<FxHashMap<NodeId, (Instant, String)>>,
    /// Nodes on which leases are wanted now: their pages are READ at once.
    hurried: Arc<Hurried>,
    runtime: Runtime,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Publishes what `learn` has changed, if it says so.
    fn learn(self: &Arc<Shared>, learn: impl FnOnce(&mut Known) -> bool) {
        let mut known = lock(&self.known);
        let mut lacking = Vec::new();
        if learn(&mut known) {
            self.routes.store(Arc::new(known.routes(clock::now())));
            lacking = known.lacking();
        }
        drop(known);
        self.wake();
        // Shards have moved there, and are READ where they were meanwhile.
        for node in lacking {
            if !lock(&self.tables).contains_key(&node) && self.hurried.may_seek(node) {
                let shared = self.clone();
                self.runtime.spawn_blocking(move || {
                    let _ = shared.table(node);
                    shared.hurried.has_sought(node);
                });
            }
            self.hurried.hurry(node);
        }
    }

    /// A READ has not counted: where that was for want of a lease on a primary of before, it is made at the newest one.
    fn look_again(&self) {
        let mut known = lock(&self.known);
        let now = clock::now();
        if known.are_over(&self.routes.load(), now) {
            self.routes.store(Arc::new(known.routes(now)));
            drop(known);
            self.wake();
        }
    }

    fn wake(&self) {
        *lock(&self.version) += 1;
        self.changed.notify_all();
        self.learned.send_replace(());
    }

    fn version(&self) -> u64 {
        *lock(&self.version)
    }

    /// Waits until something was learned after this version, but no longer than `longest`.
    fn wait(&self, version: u64, longest: Duration) {
        let now = lock(&self.version);
        let _ = self.changed.wait_timeout_while(now, longest, |now| *now == version);
    }

    fn read_failed(&self, node: NodeId) {
        lock(&self.known).read_failed(node);
    }

    fn knows(&self, node: NodeId) -> bool {
        lock(&self.known).about(node).is_some()
    }

    /// A client of a node's table. The first one keeps a lease on the node from now on.
    fn table(self: &Arc<Shared>, node: NodeId) -> Result<Client, String> {
        if let Some(client) = lock(&self.tables).get(&node) {
            return Ok(client.clone());
        }
        let about = lock(&self.known).about(node).cloned();
        let client = connect(node, about.as_ref(), &self.options)?;
        let mut tables = lock(&self.tables);
        if let Some(other) = tables.get(&node) {
            return Ok(other.clone());
        }
        pages::keep(self, node, client.clone()).map_err(|error| error.to_string())?;
        tables.insert(node, client.clone());
        Ok(client)
    }

    /// Why there is no lease on a node, if the node has said so: for example, etcd takes no beat of it. It is asked in
    /// the background, now and then, so at first nothing is known.
    fn why_no_lease(self: &Arc<Shared>, node: NodeId) -> String {
        let mut reasons = lock(&self.reasons);
        let is_due = reasons.get(&node).is_none_or(|(at, _)| at.elapsed() >= REASON_EVERY);
        let (at, why) = reasons.entry(node).or_insert_with(|| (Instant::now(), String::new()));
        let told = why.clone();
        if is_due {
            *at = Instant::now();
            drop(reasons);
            requests::ask_why(self, node);
        }
        told
    }

    /// Drops a node's table: nothing keeps a lease on it any more. The next use connects again.
    fn lose_table(&self, node: NodeId) {
        lock(&self.tables).remove(&node);
        self.wake();
    }
}

/// The table's token follows from the secret: no option has one.
const ANOTHER_SECRET: &str =
    "it has another secret than this client: give all nodes and clients of the cluster the same one";

/// Connects to a node's table, at the first of its addresses that answers.
fn connect(node: NodeId, about: Option<&NodeAbout>, options: &ClusterOptions) -> Result<Client, String> {
    let about = about.ok_or_else(|| format!("where node {node} is was not told yet"))?;
    let mut why = format!("node {node} names no address of its table");
    for at in &about.table {
        let connected = at.parse::<Address>().map_err(|error| error.to_string()).and_then(|address| {
            let options = options.tables.clone().token(options.secret.token()).lease(Duration::MAX);
            Client::connect_with(&address, options).map_err(|error| match error {
                ConnectError::Token { .. } => ANOTHER_SECRET.to_owned(),
                error => error.to_string(),
            })
        });
        match connected {
            Ok(client) if client.geometry().generation() == node.0 => return Ok(client),
            Ok(_) => why = format!("{at} is another node by now"),
            Err(error) => why = format!("node {node} at {at}: {error}"),
        }
    }
    Err(why)
}

/// A handle of a client of a cluster: the calls of `Client`, over all shards.
///
/// A clone is a handle for another thread. It shares connections for requests, the state of the cluster, and leases.
/// `Send`, and all calls take `&mut self`.
///
/// A GET is one READ at the shard's primary, and a look at the clock. For the leases, a thread for each node READs the
/// node's page three times a beat, 12 times a second with the default times. The first GET at a node waits for two such
/// READs, up to two beats.
#[derive(Debug)]
pub struct ClusterClient {
    shared: Arc<Shared>,
    routes: Cache<Arc<ArcSwap<Routes>>, Arc<Routes>>,
    tables: Tables,
    /// Of a batch's keys: kept for the next one.
    shards: Vec<ShardIx>,
    replies: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
    /// If it has one, outcomes are stored: the lane, and the last number.
    lane: Option<RequestId>,
    /// The owner as which it puts.
    owner: Option<Arc<Owning>>,
    /// The longest time for one call.
    deadline: Duration,
}

impl Clone for ClusterClient {
    fn clone(&self) -> ClusterClient {
        let owner = self.owner.clone();
        ClusterClient { owner, ..ClusterClient::of(self.shared.clone()).exactly_once(self.lane.is_some()) }
    }
}

/// Checks a key and the length of a value. Returns the shard.
#[inline]
fn check(config: &ClusterConfig, key: &[u8], value_len: usize) -> Result<ShardIx, ClusterError> {
    if config.may_hold(key, value_len) {
        Ok(config.shard_of(key))
    } else {
        Err(refused(config, key.len(), value_len))
    }
}

#[cold]
fn refused(config: &ClusterConfig, key_len: usize, value_len: usize) -> ClusterError {
    let (key_max, value_max) = (config.key_max.into(), config.value_max as usize);
    ClusterError::Invalid { key_len, value_len, key_max, value_max }
}

/// A number that is never drawn again. From the system: two children of a process (fork) would have the same generator.
fn random() -> u64 {
    SysRng.try_next_u64().unwrap_or_else(|_| rand::random())
}

impl ClusterClient {
    /// Reads the state of the cluster from etcd, and follows it from then on.
    ///
    /// # Errors
    /// [`ClusterError::Etcd`], if etcd does not answer, or has no such cluster; [`ClusterError::Threads`].
    pub fn connect(
        name: ClusterName,
        etcd: EtcdOptions,
        options: ClusterOptions,
    ) -> Result<ClusterClient, ClusterError> {
        let (runtime, start) = Runtime::start(name, etcd, &options)?;
        let config = start.config.clone();
        let mut known = Known::new(&config);
        known.learn(&start.read);
        let routes = Arc::new(ArcSwap::from_pointee(known.routes(clock::now())));
        let shared = Arc::new(Shared {
            config,
            options,
            known: Mutex::new(known),
            routes,
            version: Mutex::new(0),
            changed: Condvar::new(),
            learned: watch::Sender::new(()),
            tables: Mutex::default(),
            copies: AtomicU64::new(0),
            reasons: Mutex::default(),
            hurried: Arc::default(),
            runtime,
        });
        shared.runtime.follow(&shared, start);
        Ok(ClusterClient::of(shared))
    }

    fn of(shared: Arc<Shared>) -> ClusterClient {
        let routes = Cache::new(shared.routes.clone());
        let tables = Tables::new(shared.clone());
        let deadline = shared.options.deadline;
        let shards = Vec::new();
        let (lane, owner) = (None, None);
        ClusterClient { shared, routes, tables, shards, replies: mpsc::channel(), lane, owner, deadline }
    }

    /// Whether outcomes of changes are stored, so that a request whose answer was lost can be repeated and is still
    /// done once. Then there is no [`ClusterError::Unknown`] if the cluster recovers in time. It costs an entry for
    /// each handle and shard, and each change replicates two entries.
    #[must_use]
    pub fn exactly_once(mut self, is_so: bool) -> ClusterClient {
        self.lane = is_so.then(|| RequestId { lane: random(), number: 0 });
        self
    }

    /// The cluster's configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.shared.config
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> ShardIx {
        self.shared.config.shard_of(key)
    }

    /// The primary of a shard, if it is known.
    pub fn primary(&self, shard: ShardIx) -> Option<NodeId> {
        lock(&self.shared.known).primary(shard)
    }

    /// The known nodes, with what others need to know of them.
    pub fn nodes(&self) -> Vec<(NodeId, NodeAbout)> {
        lock(&self.shared.known).nodes().map(|(id, about)| (id, about.clone())).collect()
    }

    /// Whether a READ of this key would be believed if it landed now.
    pub fn has_lease(&mut self, key: &[u8]) -> bool {
        let shard = self.shard_of(key);
        let route = self.routes.load().of(shard);
        route.and_then(|route| route.lease.as_ref()).is_some_and(|lease| lease.lasts(clock::now()))
    }

    #[inline]
    fn check(&self, key: &[u8], value_len: usize) -> Result<ShardIx, ClusterError> {
        check(&self.shared.config, key, value_len)
    }

    /// The time that is left for a call. `None`: it is over, or the wait is not wanted any more.
    fn left(&self, begun: Instant) -> Option<Duration> {
        self.deadline.checked_sub(begun.elapsed()).filter(|_| breaking::is_wanted())
    }
}
