//! A client of a cluster.

mod feed;
mod owner;
mod pages;
mod requests;
mod routes;
mod scan;

use crate::clock;
pub use crate::core::feed::FeedAt;
use crate::core::message::{Kind, NotDone, OWNER_MAX, Outcome, Reply, Request, RequestId, TTL_MAX, Wanted};
use crate::core::owners;
use crate::core::sending::Sending;
use crate::core::state::{ClusterConfig, NodeAbout, NodeId, ShardIx};
use crate::etcd::{ClusterName, EtcdError, EtcdOptions};
use crate::wire::Secret;
use arc_swap::{ArcSwap, Cache};
use bytes::Bytes;
pub use feed::{ClusterFeed, ClusterFeedItem, ClusterFeedOptions, ClusterPosition};
use oneread::error::KeyError;
use oneread::internals::breaking;
use oneread::{Address, Client, ClientOptions, ConnectError, PutMode, PutOptions, SwapOutcome};
use owner::Owning;
use rand::TryRng;
use rand::rngs::SysRng;
use requests::{Ended, Runtime};
use routes::{Known, Route, Routes};
use rustc_hash::{FxHashMap, FxHashSet};
pub use scan::{ClusterScan, ScanState};
use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Longest time between two looks at what a request that was not done waits for.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a reply may still come from a node after it was heard that another one is primary, at least: a node that does
/// not know it yet learns it by its next call of etcd.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// With less time left than this, a change that was certainly not done so far is not sent again. A node that refuses it
/// does so within a round trip or two.
const LATE: Duration = Duration::from_millis(100);

/// What a client of a cluster is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// What nodes and clients of the cluster must know.
    pub secret: Secret,
    /// Longest time for one call: a failover, with a lease on the new primary, takes a TTL and
    /// a second, and one TTL more if the primary had just got the shard by a move.
    pub deadline: Duration,
    /// How tables are READ. The token is the cluster's, and the lease of a region in shared memory is without end: what counts,
    /// leases on nodes say, and [`ClusterClient::get_advisory`] reads on when its server is gone.
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
    /// etcd, or what it has of the cluster.
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
    /// No value could be believed in time.
    #[error("shard {shard} could not be read for {waited:?}: {why}")]
    Unavailable {
        /// The shard of the key.
        shard: ShardIx,
        /// How long it was tried.
        waited: Duration,
        /// What was missing at last.
        why: String,
    },
    /// The change was certainly not made.
    #[error("shard {shard} took no change for {waited:?}: {why}; it was certainly not made")]
    NotDone {
        /// The shard of the key.
        shard: ShardIx,
        /// How long it was tried.
        waited: Duration,
        /// What was missing at last.
        why: String,
    },
    /// The change may have been made, or may yet be.
    #[error(
        "shard {shard} did not answer for {waited:?}: the change may have been made, or may yet be; read the key to see, or \
         make changes exactly once"
    )]
    Unknown {
        /// The shard of the key.
        shard: ShardIx,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A feed cannot begin there.
    #[error(
        "the position is of another cluster, or this one was removed and made again: begin without one, and scan"
    )]
    Position,
    /// No entry lives as long, or as short.
    #[error(
        "no entry of a cluster lives for {given:?}: a time to live is more than 0, and ten years at most"
    )]
    TimeToLive {
        /// The time given.
        given: Duration,
    },
    /// Entries have no lives.
    #[error(
        "entries of shard {shard} have no ends: a time to live needs nodes that were made with --life, all of them; adding it \
         later loses all entries (docs/CLUSTER.md)"
    )]
    NoLife {
        /// The shard of the key.
        shard: ShardIx,
    },
    /// No owner has that number.
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
    /// The owner has another session, or its entries of before are still leaving.
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
    /// The owner was removed, or was not heard for longer than it may be away.
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
        /// How many shards still have some, or have not said that they have none.
        shards: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Entries have no owners.
    #[error(
        "entries of shard {shard} have no owners: they need nodes that were made with --life, all of them, and of a version that \
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

/// What the handles of a client share.
#[derive(Debug)]
struct Shared {
    config: ClusterConfig,
    options: ClusterOptions,
    known: Mutex<Known>,
    routes: Arc<ArcSwap<Routes>>,
    /// Goes up when something was learned that somebody may wait for.
    version: Mutex<u64>,
    changed: Condvar,
    /// A client of each node's table that some handle READs.
    tables: Mutex<FxHashMap<NodeId, Client>>,
    copies: AtomicU64,
    runtime: Runtime,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Publishes what `learn` has changed, if it says so.
    fn learn(&self, learn: impl FnOnce(&mut Known) -> bool) {
        let mut known = lock(&self.known);
        if learn(&mut known) {
            self.routes.store(Arc::new(known.routes()));
        }
        drop(known);
        self.wake();
    }

    fn wake(&self) {
        *lock(&self.version) += 1;
        self.changed.notify_all();
    }

    fn version(&self) -> u64 {
        *lock(&self.version)
    }

    /// Waits until something was learned after this version, but not for longer than this.
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

    /// A client of a node's table. The first one keeps a lease on the node from then on.
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

    /// Nothing keeps a lease on the node any more: the next use connects anew.
    fn lose_table(&self, node: NodeId) {
        lock(&self.tables).remove(&node);
        self.wake();
    }
}

/// Connects to a node's table at the first of its addresses where it is.
fn connect(node: NodeId, about: Option<&NodeAbout>, options: &ClusterOptions) -> Result<Client, String> {
    let about = about.ok_or_else(|| format!("where node {node} is was not told yet"))?;
    let mut why = format!("node {node} names no address of its table");
    for at in &about.table {
        let connected = at.parse::<Address>().map_err(|error| error.to_string()).and_then(|address| {
            let options = options.tables.clone().token(options.secret.token()).lease(Duration::MAX);
            Client::connect_with(&address, options).map_err(|error: ConnectError| error.to_string())
        });
        match connected {
            Ok(client) if client.geometry().generation() == node.0 => return Ok(client),
            Ok(_) => why = format!("{at} is another node by now"),
            Err(error) => why = format!("node {node} at {at}: {error}"),
        }
    }
    Err(why)
}

/// A handle of a client of a cluster: `Client`'s calls, over all its shards.
///
/// A clone is a handle of its own for another thread; it shares connections for requests, what is known of the cluster,
/// and leases. `Send`, and all calls take `&mut self`.
///
/// A GET is one READ at the shard's primary, and a look at the clock. For that, one thread for each node that is READ
/// READs the node's page three times a beat, 12 times a second with the default times. The first GET at a node
/// waits for two such READs, up to two beats.
#[derive(Debug)]
pub struct ClusterClient {
    shared: Arc<Shared>,
    routes: Cache<Arc<ArcSwap<Routes>>, Arc<Routes>>,
    tables: Tables,
    /// Of a batch's keys: kept for the next one.
    shards: Vec<ShardIx>,
    replies: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
    /// With one, outcomes are remembered: the lane, and the last number.
    lane: Option<RequestId>,
    /// As whom it puts.
    owner: Option<Arc<Owning>>,
    /// Longest time for one call.
    deadline: Duration,
}

impl Clone for ClusterClient {
    fn clone(&self) -> ClusterClient {
        let owner = self.owner.clone();
        ClusterClient { owner, ..ClusterClient::of(self.shared.clone()).exactly_once(self.lane.is_some()) }
    }
}

/// A key of a batch, and where it stands among those that were asked for.
#[derive(Debug)]
struct BatchKey<'k> {
    at: usize,
    key: &'k [u8],
}

impl AsRef<[u8]> for BatchKey<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.key
    }
}

/// Keys that are READ together at one node.
#[derive(Debug)]
struct Batch<'k> {
    route: &'k Route,
    keys: Vec<BatchKey<'k>>,
    /// Values that another thread has READ: where each stands among those that were asked for.
    found: Vec<(usize, Option<Vec<u8>>)>,
    /// Where keys stand that could not be READ, and why.
    failed: Vec<(usize, KeyError)>,
    /// Whether a lease lasted after all had landed (CL4), or why nothing was READ.
    is_leased: Result<bool, Why>,
}

impl<'k> Batch<'k> {
    fn new(route: &'k Route, keys: usize) -> Batch<'k> {
        let (found, failed) = (Vec::new(), Vec::new());
        Batch { route, keys: Vec::with_capacity(keys), found, failed, is_leased: Ok(false) }
    }

    /// What is seen counts only with the lease; without one all keys are READ again, and seen again.
    fn read(&mut self, client: &mut Client, mut see: impl FnMut(usize, Option<Vec<u8>>)) {
        let Batch { route: Route { node, lease, .. }, keys, failed, .. } = self;
        let read = look_at(client, *node, |client| {
            client.get_many_with(keys, |index, value| {
                let at = keys[index].at;
                match value {
                    Ok(value) => see(at, value.map(<[u8]>::to_vec)),
                    Err(error) => failed.push((at, error)),
                }
                ControlFlow::<()>::Continue(())
            })
        });
        self.is_leased = read.map(|_| lease.as_ref().is_some_and(|lease| lease.lasts(clock::now())));
    }

    fn read_beside(&mut self, client: &mut Client) {
        let mut found = Vec::with_capacity(self.keys.len());
        self.read(client, |at, value| found.push((at, value)));
        self.found = found;
    }
}

/// Why something could not be READ.
type Why = Box<str>;

#[cold]
fn why(error: impl Display) -> Why {
    error.to_string().into()
}

/// READs at a table, and looks whether it is this node's: one at the same address may be another's by now.
#[inline]
fn look_at<T, E: Display>(
    client: &mut Client,
    node: NodeId,
    read: impl FnOnce(&mut Client) -> Result<T, E>,
) -> Result<T, Why> {
    match read(client) {
        Ok(found) if client.geometry().generation() == node.0 => Ok(found),
        Ok(_) => Err(why(format_args!("node {node} is gone"))),
        Err(error) => Err(why(error)),
    }
}

/// A handle's clients of nodes' tables.
#[derive(Debug)]
struct Tables {
    shared: Arc<Shared>,
    /// By place.
    clients: Vec<Option<Client>>,
}

impl Tables {
    /// READs at a shard's primary. What was found counts if a lease lasts after it has landed (CL4).
    #[inline]
    fn read<T, E: Display>(
        &mut self,
        route: &Route,
        read: impl FnOnce(&mut Client) -> Result<T, E>,
    ) -> Result<T, Why> {
        let Some(lease) = &route.lease else { return Err(self.want_lease(route)) };
        let found = self.look(route.node, route.place, read)?;
        if lease.lasts(clock::now()) { Ok(found) } else { Err(self.want_lease(route)) }
    }

    /// Sees to it that somebody READs the node's page. Who did may have given up while the node was away. Returns what is
    /// missing.
    #[cold]
    fn want_lease(&mut self, route: &Route) -> Why {
        let is_kept = lock(&self.shared.tables).contains_key(&route.node);
        if let Some(client) = self.clients.get_mut(route.place).filter(|_| !is_kept) {
            *client = None;
        }
        match self.connect(route.node, route.place) {
            Ok(_) => why(format_args!("there is no lease on node {}", route.node)),
            Err(why) => why,
        }
    }

    /// READs batches, each at its node: over a wire at all nodes at once, in memory one after the other.
    fn read_each(&mut self, batches: &mut [Batch<'_>], values: &mut [Option<Vec<u8>>]) {
        for batch in batches.iter_mut().filter(|batch| batch.route.lease.is_some()) {
            batch.is_leased = self.connect(batch.route.node, batch.route.place).map(|_| false);
        }
        let mut clients: Vec<Option<&mut Client>> = self.clients.iter_mut().map(Option::as_mut).collect();
        let begun = batches.iter_mut().filter(|batch| batch.route.lease.is_some());
        let begun = begun.filter_map(|batch| clients[batch.route.place].take().map(|client| (batch, client)));
        let (over_wire, in_memory): (Vec<_>, Vec<_>) =
            begun.partition(|(_, client)| client.region().is_none());
        for (batch, client) in in_memory {
            batch.read(client, |at, value| values[at] = value);
        }
        let (threads, left) = (over_wire.len(), Mutex::new(over_wire));
        let read_all = || {
            loop {
                let Some((batch, client)) = lock(&left).pop() else { return };
                batch.read_beside(client);
            }
        };
        if threads > 0 {
            std::thread::scope(|scope| {
                // Where no thread can be had, this one reads all.
                for _ in 1..threads {
                    if std::thread::Builder::new().spawn_scoped(scope, read_all).is_err() {
                        break;
                    }
                }
                read_all();
            });
        }
        for batch in batches {
            batch.found.drain(..).for_each(|(at, value)| values[at] = value);
            if batch.is_leased.is_err() {
                self.clients[batch.route.place] = None;
            }
        }
    }

    /// READs at a node, whatever it is by now for a shard.
    #[inline]
    fn look<T, E: Display>(
        &mut self,
        node: NodeId,
        place: usize,
        read: impl FnOnce(&mut Client) -> Result<T, E>,
    ) -> Result<T, Why> {
        let client = match self.clients.get_mut(place) {
            Some(Some(client)) => client,
            _ => self.connect(node, place)?,
        };
        let looked = look_at(client, node, read);
        if looked.is_err() {
            self.clients[place] = None;
        }
        looked
    }

    /// A client of a node's table, which is connected if it was not.
    #[cold]
    fn connect(&mut self, node: NodeId, place: usize) -> Result<&mut Client, Why> {
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        let client = &mut self.clients[place];
        match client {
            Some(client) => Ok(client),
            None => Ok(client.insert(self.shared.table(node)?)),
        }
    }
}

/// The shard of a key that the cluster may hold.
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

/// A number that is never given again. From the system: a generator of this thread would give two children of a process
/// (fork) the same one.
fn random() -> u64 {
    SysRng.try_next_u64().unwrap_or_else(|_| rand::random())
}

impl ClusterClient {
    /// Learns from etcd what the cluster is, and follows it from then on.
    ///
    /// # Errors
    /// [`ClusterError::Etcd`], if it does not answer, or has no such cluster; [`ClusterError::Threads`].
    pub fn connect(
        name: ClusterName,
        etcd: EtcdOptions,
        options: ClusterOptions,
    ) -> Result<ClusterClient, ClusterError> {
        let (runtime, start) = Runtime::start(name, etcd, &options)?;
        let config = start.config.clone();
        let mut known = Known::new(&config);
        known.learn(&start.read);
        let routes = Arc::new(ArcSwap::from_pointee(known.routes()));
        let shared = Arc::new(Shared {
            config,
            options,
            known: Mutex::new(known),
            routes,
            version: Mutex::new(0),
            changed: Condvar::new(),
            tables: Mutex::default(),
            copies: AtomicU64::new(0),
            runtime,
        });
        shared.runtime.follow(&shared, start);
        Ok(ClusterClient::of(shared))
    }

    fn of(shared: Arc<Shared>) -> ClusterClient {
        let routes = Cache::new(shared.routes.clone());
        let tables = Tables { shared: shared.clone(), clients: Vec::new() };
        let deadline = shared.options.deadline;
        let shards = Vec::new();
        let (lane, owner) = (None, None);
        ClusterClient { shared, routes, tables, shards, replies: mpsc::channel(), lane, owner, deadline }
    }

    /// Whether outcomes of changes are remembered, so that a request whose answer was lost is made again and still done
    /// once: then there is no [`ClusterError::Unknown`] where the cluster goes on in time. It costs an entry a handle
    /// and shard, and each change replicates two entries.
    #[must_use]
    pub fn exactly_once(mut self, is_so: bool) -> ClusterClient {
        self.lane = is_so.then(|| RequestId { lane: random(), number: 0 });
        self
    }

    /// What the cluster is.
    pub fn config(&self) -> &ClusterConfig {
        &self.shared.config
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> ShardIx {
        self.shared.config.shard_of(key)
    }

    /// The primary of a shard, as it is known.
    pub fn primary(&self, shard: ShardIx) -> Option<NodeId> {
        lock(&self.shared.known).primary(shard)
    }

    /// Nodes that are known, and what they say of themselves.
    pub fn nodes(&self) -> Vec<(NodeId, NodeAbout)> {
        lock(&self.shared.known).nodes().map(|(id, about)| (id, about.clone())).collect()
    }

    /// Whether a READ of this key would be believed, if it landed now.
    pub fn has_lease(&mut self, key: &[u8]) -> bool {
        let shard = self.shard_of(key);
        let route = self.routes.load().of(shard);
        route.and_then(|route| route.lease.as_ref()).is_some_and(|lease| lease.lasts(clock::now()))
    }

    #[inline]
    fn check(&self, key: &[u8], value_len: usize) -> Result<ShardIx, ClusterError> {
        check(&self.shared.config, key, value_len)
    }

    // ---- GETs ----

    /// A key's value, or `None`: linearizable. One READ at the primary, and while no lease covers its shard, a wait for one.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`]; [`ClusterError::Unavailable`] after [`ClusterOptions::deadline`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        let mut value = Vec::new();
        let is_there = self.get_into(key, &mut value)?;
        Ok(is_there.then_some(value))
    }

    /// The same, into `value`, which is cleared first. Whether the key is there.
    ///
    /// # Errors
    /// As [`ClusterClient::get`].
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ClusterError> {
        let shard = self.check(key, 0)?;
        value.clear();
        // What is usual stands apart, without what other tries need.
        if let Some(route) = self.routes.load().of(shard)
            && let Ok(is_there) = self.tables.read(route, |client| client.get_into(key, value))
        {
            return Ok(is_there);
        }
        self.get_again(shard, key, value)
    }

    #[cold]
    fn get_again(&mut self, shard: ShardIx, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ClusterError> {
        self.until_found(shard, &mut Some(Instant::now()), |tables, _, route| {
            tables.read(route, |client| client.get_into(key, value))
        })
    }

    /// Values of many keys: one READ each, many at once at each node. Over a wire all nodes are READ at once, each by a thread of
    /// its own for as long as the call lasts; tables in memory are READ one after the other.
    ///
    /// # Errors
    /// As [`ClusterClient::get`], for any of them.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, ClusterError> {
        let (config, mut shards) = (&self.shared.config, std::mem::take(&mut self.shards));
        shards.clear();
        shards.resize(keys.len(), 0);
        for (shard, key) in shards.iter_mut().zip(keys) {
            *shard = check(config, key.as_ref(), 0)?;
        }
        let mut values = vec![None; keys.len()];
        let mut begun = None;
        // All at one node: its table takes the keys as they are.
        if let Some(route) = self.routes.load().of_all(&shards) {
            let read = self.tables.read(route, |client| {
                client.get_many_with(keys, |at, value| match value {
                    Ok(value) => {
                        values[at] = value.map(<[u8]>::to_vec);
                        ControlFlow::Continue(())
                    }
                    Err(_) => ControlFlow::Break(()),
                })
            });
            if read.is_ok_and(|read| read.is_continue()) {
                self.shards = shards;
                return Ok(values);
            }
            begun = Some(Instant::now());
        }
        self.get_apart(keys, &shards, &mut values, &mut begun)?;
        self.shards = shards;
        Ok(values)
    }

    /// The same, of keys at several nodes, and again until all are known.
    #[inline(never)]
    fn get_apart<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        shards: &[ShardIx],
        values: &mut [Option<Vec<u8>>],
        begun: &mut Option<Instant>,
    ) -> Result<(), ClusterError> {
        // In order.
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while let Some(&first) = left.first() {
            self.until_found(shards[first], begun, |tables, routes, _| {
                let mut missing = Vec::new();
                let (mut batches, mut of_site) = (Vec::<Batch<'_>>::new(), vec![usize::MAX; routes.sites()]);
                for &at in &left {
                    let Some(route) = routes.of(shards[at]) else {
                        missing.push(at);
                        continue;
                    };
                    let index = &mut of_site[usize::from(route.site)];
                    if *index == usize::MAX {
                        *index = batches.len();
                        batches.push(Batch::new(route, left.len()));
                    }
                    batches[*index].keys.push(BatchKey { at, key: keys[at].as_ref() });
                }
                tables.read_each(&mut batches, values);
                let mut first_misses = Why::default();
                for Batch { route, keys, failed, is_leased, .. } in batches {
                    let is_of_first = keys.first().is_some_and(|key| key.at == first);
                    let lacks = match is_leased {
                        Ok(true) => {
                            for (at, error) in failed {
                                missing.push(at);
                                if at == first {
                                    first_misses = why(error);
                                }
                            }
                            continue;
                        }
                        Ok(false) => tables.want_lease(route),
                        Err(lacks) => lacks,
                    };
                    missing.extend(keys.iter().map(|key| key.at));
                    if is_of_first {
                        first_misses = lacks;
                    }
                }
                missing.sort_unstable();
                left = missing;
                if left.first() == Some(&first) { Err(first_misses) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// A key's value in any whole copy of its shard, the primary's first: never torn, perhaps old, and it asks neither
    /// for a lease nor for etcd. A copy that was once whole may have been left out since. `None` may be as old.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`]; [`ClusterError::Unavailable`] at once, if no copy can be READ.
    pub fn get_advisory(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        let shard = self.check(key, 0)?;
        let begun = Instant::now();
        let copies = lock(&self.shared.known).copies(shard);
        let mut why = Why::from("nobody was ever known to have a copy");
        for node in copies {
            let place = lock(&self.shared.known).place(node);
            match self.tables.look(node, place, |client| client.get(key)) {
                Ok(value) => return Ok(value),
                Err(error) => why = error,
            }
        }
        Err(ClusterError::Unavailable { shard, waited: begun.elapsed(), why: why.into() })
    }

    /// What is left of the time for a call. `None`: it is over, or nobody wants to wait any more.
    fn left(&self, begun: Instant) -> Option<Duration> {
        self.deadline.checked_sub(begun.elapsed()).filter(|_| breaking::is_wanted())
    }

    /// Tries until a READ counts, or the time is over. When it was `begun` is noted when something has failed: before that
    /// there is no look at the time, and the second try is made at once.
    fn until_found<T>(
        &mut self,
        shard: ShardIx,
        begun: &mut Option<Instant>,
        mut try_at: impl FnMut(&mut Tables, &Routes, &Route) -> Result<T, Why>,
    ) -> Result<T, ClusterError> {
        loop {
            let version = begun.map(|_| self.shared.version());
            let routes = self.routes.load();
            let tried = match routes.of(shard) {
                Some(route) => try_at(&mut self.tables, routes, route),
                None => Err(why("nobody serves it, as far as etcd says")),
            };
            let why = match tried {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            let begun = *begun.get_or_insert_with(Instant::now);
            let Some(left) = self.left(begun) else {
                return Err(ClusterError::Unavailable { shard, waited: begun.elapsed(), why: why.into() });
            };
            if let Some(version) = version {
                self.shared.wait(version, left.min(AGAIN));
            }
        }
    }

    // ---- changes ----

    /// Gives a key a value, new or not. It is visible, and at all standbys in sync, when this returns.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`], [`Full`](ClusterError::Full), [`NotDone`](ClusterError::NotDone),
    /// [`Unknown`](ClusterError::Unknown).
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClusterError> {
        self.change(key, Kind::Put(Bytes::copy_from_slice(value))).map(drop)
    }

    /// Gives a key a value, as `options` say: whether the key may be there ([`PutMode`]), and how long
    /// the entry lives. Whether it was so, and the key has the value.
    ///
    /// An entry with a time to live leaves when its primary sees that it has ended, usually some milliseconds later; that is
    /// a change like others, and GETs find the entry until then. Whether it has ended, its primary's clock says; after a
    /// failover another node's. Swaps keep an entry's end, puts do not.
    ///
    /// # Errors
    /// As [`ClusterClient::put`]; [`TimeToLive`](ClusterError::TimeToLive); [`NoLife`](ClusterError::NoLife) for a time to
    /// live where entries have no lives.
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: impl Into<PutOptions>,
    ) -> Result<bool, ClusterError> {
        let asked = Asked::put(value, options.into())?;
        Ok(self.change(key, asked)? == Outcome::Done)
    }

    /// Gives a key a value, if there is no such key. Whether it was so.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, ClusterError> {
        Ok(self.change(key, Kind::Insert(Bytes::copy_from_slice(value)))? == Outcome::Done)
    }

    /// Removes a key. Whether it was there.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, ClusterError> {
        Ok(self.change(key, Kind::Remove)? == Outcome::Done)
    }

    /// Gives a key the value `new`, if it has the value `expected`.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<SwapOutcome, ClusterError> {
        let (expected, new) = (Bytes::copy_from_slice(expected), Bytes::copy_from_slice(new));
        Ok(match self.change(key, Kind::Swap { expected, new })? {
            Outcome::Absent => SwapOutcome::Absent,
            Outcome::Differs => SwapOutcome::Differs,
            _ => SwapOutcome::Swapped,
        })
    }

    /// Many puts at once, each by itself. What became of each, in order.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: &[(K, V)],
    ) -> Vec<Result<(), ClusterError>> {
        let changes = entries.iter().map(|(key, value)| {
            let value = Bytes::copy_from_slice(value.as_ref());
            (key.as_ref(), Kind::Put(value).into())
        });
        self.change_all(changes).into_iter().map(|ended| ended.map(drop)).collect()
    }

    /// The same, each as [`ClusterClient::put_with`].
    pub fn put_many_with<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: &[(K, V)],
        options: impl Into<PutOptions>,
    ) -> Result<Vec<Result<bool, ClusterError>>, ClusterError> {
        let options = options.into();
        let changes =
            entries.iter().map(|(key, value)| Ok((key.as_ref(), Asked::put(value.as_ref(), options)?)));
        let changes = changes.collect::<Result<Vec<_>, ClusterError>>()?;
        Ok(self
            .change_all(changes)
            .into_iter()
            .map(|ended| ended.map(|ended| ended == Outcome::Done))
            .collect())
    }

    fn change(&mut self, key: &[u8], asked: impl Into<Asked>) -> Result<Outcome, ClusterError> {
        match self.change_all([(key, asked.into())]).pop() {
            Some(ended) => ended,
            None => Err(ClusterError::Unknown { shard: 0, waited: Duration::ZERO }),
        }
    }

    fn change_all<'k>(
        &mut self,
        changes: impl IntoIterator<Item = (&'k [u8], Asked)>,
    ) -> Vec<Result<Outcome, ClusterError>> {
        let all = changes.into_iter().map(|(key, asked)| self.begin(key, asked)).collect();
        self.carry_out(all)
    }

    /// Sends all, and each again that may be (CL15), until all have ended or the time is over.
    fn carry_out(
        &mut self,
        mut all: Vec<Result<Change, ClusterError>>,
    ) -> Vec<Result<Outcome, ClusterError>> {
        let begun = Instant::now();
        // Copies under way: which change each is of.
        let mut copies = FxHashMap::default();
        // Replies to what was given up before.
        while self.replies.1.try_recv().is_ok() {}
        let mut is_sent_again = true;
        loop {
            let version = self.shared.version();
            let left = self.left(begun);
            if let Some(left) = left
                && std::mem::take(&mut is_sent_again)
            {
                self.send(&mut all, &mut copies, left);
            }
            if !all.iter().flatten().any(Change::is_under_way) {
                break;
            }
            let Some(left) = left else { break };
            // What is certainly not done waits for something to be learned; the rest waits for replies.
            let has_open =
                all.iter().flatten().any(|change| change.is_under_way() && !change.sending.is_not_done());
            if !has_open {
                self.shared.wait(version, left.min(AGAIN));
                is_sent_again = true;
                continue;
            }
            match self.replies.1.recv_timeout(left.min(AGAIN)) {
                Ok(ended) => {
                    for ended in std::iter::once(ended).chain(self.replies.1.try_iter()) {
                        is_sent_again |= settle(&mut all, &mut copies, ended);
                    }
                }
                Err(_) => is_sent_again = true,
            }
        }
        let waited = begun.elapsed();
        let ended: Vec<_> =
            all.into_iter().map(|change| change.and_then(|change| change.end(waited))).collect();
        if let Some(owner) = &self.owner {
            owner.see(&ended);
        }
        ended
    }

    fn begin(&mut self, key: &[u8], mut asked: Asked) -> Result<Change, ClusterError> {
        let shard = self.check(key, asked.kind.value_len())?;
        if let Some(owner) = &self.owner {
            asked.wanted = owner.wants(&asked)?;
        }
        let id = self.lane.as_mut().map(|last| {
            last.number += 1;
            *last
        });
        let key = Bytes::copy_from_slice(key);
        Ok(Change { id, ..Change::new(shard, key, asked, Sending::new(id.is_some())) })
    }

    /// Sends what is not under way, or may have been lost with its connection. With little time left, nothing that was
    /// certainly not done is sent again: its end would hardly be heard, and nothing be certain any more.
    fn send(
        &mut self,
        all: &mut [Result<Change, ClusterError>],
        copies: &mut FxHashMap<u64, usize>,
        left: Duration,
    ) {
        let is_late = left < LATE.min(self.deadline / 10);
        let mut requests: FxHashMap<NodeId, Vec<Request>> = FxHashMap::default();
        let known = lock(&self.shared.known);
        let now = Instant::now();
        let last_words = LAST_WORDS.max(2 * Duration::from_micros(self.shared.config.timing.call));
        // Requests of one lane come one after the other in each shard: the last outcome is all that is remembered.
        let mut lanes = FxHashSet::default();
        for (index, change) in all.iter_mut().enumerate() {
            let Ok(change) = change else { continue };
            if !change.is_under_way() {
                continue;
            }
            if change.id.is_some() && !lanes.insert(change.shard) {
                change
                    .lost
                    .get_or_insert_with(|| "changes of the same handle before it have not ended".into());
                continue;
            }
            let primary = known.served_by(change.shard);
            change.hears_of(primary, now, last_words);
            let Some(primary) = primary else { continue };
            // Under way where it should be.
            let is_there = !change.sending.is_not_done() && change.at == Some(primary);
            let is_over = is_late && change.sending.is_not_done();
            let waits = is_over || change.not_before.is_some_and(|time| now < time);
            if is_there || waits || !change.sending.may_send() {
                continue;
            }
            let copy = self.shared.copies.fetch_add(1, Ordering::Relaxed);
            change.sending.sends(copy);
            // A node that knows no owners would not understand it.
            let version = known.about(primary.0).map_or(0, |about| about.version);
            if change.asked.has_owner() && version < owners::SINCE_VERSION {
                change.replied(Reply { copy, ended: Err(NotDone::NoOwners) });
                continue;
            }
            change.at = Some(primary);
            copies.insert(copy, index);
            let (id, shard, key) = (change.id, change.shard, change.key.clone());
            let Asked { kind, wanted } = change.asked.clone();
            requests.entry(primary.0).or_default().push(Request { copy, id, shard, key, kind, wanted });
        }
        drop(known);
        for (node, requests) in requests {
            self.shared.runtime.send(node, requests, self.replies.0.clone());
        }
    }
}

/// What is asked of a key, and what life the entry has that comes of it.
#[derive(Clone, Debug)]
struct Asked {
    kind: Kind,
    wanted: Wanted,
}

impl From<Kind> for Asked {
    fn from(kind: Kind) -> Asked {
        Asked { kind, wanted: Wanted::Usual }
    }
}

impl Asked {
    fn put(value: &[u8], options: PutOptions) -> Result<Asked, ClusterError> {
        let value = Bytes::copy_from_slice(value);
        let kind = match options.mode {
            PutMode::Upsert => Kind::Put(value),
            PutMode::Insert => Kind::Insert(value),
            PutMode::Update => Kind::Update(value),
        };
        let micros = |given: Duration| {
            let micros = given.as_nanos().div_ceil(1_000).try_into().ok();
            micros.filter(|ttl| (1..=TTL_MAX).contains(ttl)).ok_or(ClusterError::TimeToLive { given })
        };
        Ok(Asked { kind, wanted: Wanted::new(options.ttl.map(micros).transpose()?, None) })
    }

    /// Whether only nodes understand it that know owners.
    fn has_owner(&self) -> bool {
        self.wanted.session().is_some() || self.kind.is_of_owner()
    }
}

/// A change under way.
#[derive(Debug)]
struct Change {
    shard: ShardIx,
    key: Bytes,
    asked: Asked,
    id: Option<RequestId>,
    sending: Sending,
    outcome: Option<Outcome>,
    /// Where its last copy was sent, and in which epoch.
    at: Option<(NodeId, u64)>,
    /// Why its last copy is not known to be done.
    lost: Option<String>,
    /// No reply can come any more, and it must not be sent again.
    is_lost: bool,
    /// When it was first seen that its node is the primary no more, or of another epoch.
    moved: Option<Instant>,
    /// It was certainly not done, and is not sent again before that.
    not_before: Option<Instant>,
}

impl Change {
    fn new(shard: ShardIx, key: Bytes, asked: Asked, sending: Sending) -> Change {
        Change {
            shard,
            key,
            asked,
            id: None,
            sending,
            outcome: None,
            at: None,
            lost: None,
            is_lost: false,
            moved: None,
            not_before: None,
        }
    }

    /// Who is primary now, in which epoch. With another one, what is under way is forgotten; and its node may be stopped.
    fn hears_of(&mut self, primary: Option<(NodeId, u64)>, now: Instant, last_words: Duration) {
        if self.at.is_none() || self.at == primary || self.sending.may_send() {
            self.moved = None;
        } else {
            self.is_lost = now >= *self.moved.get_or_insert(now) + last_words;
        }
    }

    fn is_under_way(&self) -> bool {
        self.outcome.is_none() && !self.is_lost
    }

    fn replied(&mut self, reply: Reply) {
        self.outcome = self.outcome.or(self.sending.replied(reply));
        // It will be so next time, too.
        let is_lasting = matches!(reply.ended, Err(NotDone::NoLife | NotDone::NoOwners | NotDone::OwnerGone));
        self.is_lost |= is_lasting && self.sending.is_not_done();
    }

    fn end(self, waited: Duration) -> Result<Outcome, ClusterError> {
        let Change { shard, sending, outcome, lost, asked, .. } = self;
        match outcome {
            Some(Outcome::Full) => Err(ClusterError::Full { shard }),
            Some(outcome) => Ok(outcome),
            None if !sending.is_not_done() => Err(ClusterError::Unknown { shard, waited }),
            None => {
                let why = match (lost, sending.why()) {
                    (_, Some(NotDone::NoLife)) => return Err(ClusterError::NoLife { shard }),
                    (_, Some(NotDone::NoOwners)) => return Err(ClusterError::NoOwners { shard }),
                    (_, Some(NotDone::OwnerGone)) => {
                        let owner = asked.wanted.session().map_or(0, |session| session.owner);
                        return Err(ClusterError::OwnerGone { owner });
                    }
                    (Some(lost), _) => lost,
                    (None, Some(NotDone::NoRoomForResult)) => {
                        "there is no room to remember its outcome".into()
                    }
                    (None, Some(NotDone::Invalid)) => {
                        "its node knows another configuration of the cluster".into()
                    }
                    (None, Some(NotDone::NotServed)) => "its primary has changed, or is about to".into(),
                    (None, None) => "nobody serves it, as far as etcd says".into(),
                };
                Err(ClusterError::NotDone { shard, waited, why })
            }
        }
    }
}

/// A copy has ended. Returns whether there is something to send.
fn settle(
    all: &mut [Result<Change, ClusterError>],
    copies: &mut FxHashMap<u64, usize>,
    ended: Ended,
) -> bool {
    let copy = match &ended {
        Ended::Replied(reply) => reply.copy,
        Ended::NotSent(copy, _) | Ended::Lost(copy) => *copy,
    };
    let Some(Ok(change)) = copies.remove(&copy).and_then(|index| all.get_mut(index)) else { return false };
    match ended {
        Ended::Replied(reply) => {
            change.replied(reply);
            (change.lost, change.not_before) = (None, Some(Instant::now() + AGAIN));
        }
        Ended::NotSent(_, why) => {
            change.sending.replied(Reply { copy, ended: Err(NotDone::NotServed) });
            (change.lost, change.not_before) = (Some(why), Some(Instant::now() + AGAIN));
        }
        // It may have been done. With an id another copy may be sent.
        Ended::Lost(_) => change.is_lost = !change.sending.may_send(),
    }
    change.at = None;
    // The next one of its lane may go.
    change.outcome.is_none() || change.id.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change without an id whose node is primary no more is waited for a little longer, and not until the deadline.
    #[test]
    fn a_change_at_a_deposed_primary_ends() {
        let (node, other) = (Some((NodeId(1), 1)), Some((NodeId(2), 2)));
        let under_way = |has_id| {
            let mut sending = Sending::new(has_id);
            sending.sends(1);
            Change { at: node, ..Change::new(0, Bytes::new(), Kind::Remove.into(), sending) }
        };
        let (mut change, now) = (under_way(false), Instant::now());
        let mut hears = |primary, after| {
            change.hears_of(primary, now + after, LAST_WORDS);
            change.is_under_way()
        };
        assert!(hears(node, LAST_WORDS) && hears(other, LAST_WORDS) && hears(other, 2 * LAST_WORDS - AGAIN));
        // What was heard before was old: what is under way may yet be answered.
        assert!(hears(node, 2 * LAST_WORDS) && hears(None, 3 * LAST_WORDS));
        // The same node has forgotten it in its next epoch.
        assert!(!hears(Some((NodeId(1), 3)), 4 * LAST_WORDS));
        assert!(matches!(change.end(LAST_WORDS), Err(ClusterError::Unknown { .. })));
        // With an id it is sent again.
        let mut change = under_way(true);
        change.hears_of(other, now, LAST_WORDS);
        change.hears_of(other, now + 2 * LAST_WORDS, LAST_WORDS);
        assert!(change.is_under_way());
    }
}
