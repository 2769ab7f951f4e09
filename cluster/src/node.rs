//! A node as a process: a table that all clients may READ, a thread that follows the rules, and a runtime for etcd and
//! connections.
//!
//! ```text
//! connections ─▶ the node's thread: core::node, the table ─▶ replies, items to others, calls of etcd
//! ```
//!
//! Only this thread changes the table. It takes what has come, does what is due, and then sends the core's outputs.
//! Whatever they depend on was stored before.

mod compacting;
mod followers;
mod health;

use crate::clock;
use crate::core::etcd::{CallId, EtcdAnswer, EtcdCall};
use crate::core::message::{Message, NotDone, Peer, Reply, Request, TTL_MAX};
use crate::core::node::{Node, Standing};
use crate::core::outbox::Output;
use crate::core::shard::Role;
use crate::core::state::{ClusterConfig, NodeAbout, NodeId, Notes, ShardIx, Time};
use crate::etcd::{ClusterName, EtcdError, EtcdOptions, EtcdStore};
use crate::room::{CONNECTIONS_MAX, NOTES_KEY, with_lengths};
use crate::table::{NodeTable, TableError, note_stop};
use crate::wire::{
    Arrived, Bounds, ClusterMap, Identity, Later, Links, NodeHealth, NodePort, NodeStatus, Question, Replies,
    Said, Secret, ShardStatus, VERSION, WireError,
};
use followers::Followers;
use health::{EtcdTrouble, Health};
use oneread::driven::DrivenServer;
use oneread::internals::server::UndoStart;
use oneread::{Address, DeviceChoice, Evict, ServeError, Server, ServerConfig, VerbsAddress};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Events that the thread takes before it looks at the clock again, and sends.
const EVENTS_AT_ONCE: usize = 256;
/// Frames that it takes in that time: each may have thousands of requests, and beats must go on.
const FRAMES_AT_ONCE: usize = 16;
/// Replies in a frame. It is far from too long with them.
const REPLIES_AT_ONCE: usize = 8_192;
/// The shortest and the longest time between two ticks.
const TICK_MIN: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(20);
/// The longest time for its thread to report its status.
const ASK: Duration = Duration::from_secs(1);
/// Failed calls of etcd are logged at most once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// The options of a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// The node's name, for people. Status shows it; nothing else uses it.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterName,
    /// How to reach its etcd.
    pub etcd: EtcdOptions,
    /// The secret of the cluster.
    pub secret: Secret,
    /// The options of the table's server. The cluster determines the lengths of keys and values; clients of the table
    /// only read. With a region file the node is the same one when it starts again; without one it comes back as
    /// another node. With `evict`, which can only be [`Evict::Clock`], the node evicts entries of the shards of which
    /// it is primary (CL13). With lives ([`Config::life`](oneread::Config::life)) entries may have an end, at which
    /// they leave in the same way; `ttl` is the time to live of entries that are put without one. All nodes must have
    /// the same of these options.
    pub server: ServerConfig,
    /// The addresses at which it takes requests and other nodes' changes: `host:port`. Port 0 is any free port.
    pub listen: Vec<String>,
    /// These addresses as other hosts reach them, if they differ.
    pub advertise: Vec<String>,
    /// The table's addresses as other hosts reach them, if they differ: addresses for `oneread::Client`, the best
    /// first.
    pub advertise_table: Vec<String>,
    /// The most connections of clients and nodes at a time.
    pub connections_max: usize,
    /// The newest version of the protocol between nodes that it offers. An older one makes it behave as an older
    /// program.
    #[doc(hidden)]
    pub version: u32,
}

impl NodeConfig {
    /// A node of a cluster, with this server, on a free port of this host.
    pub fn new(cluster: ClusterName, etcd: EtcdOptions, server: ServerConfig) -> NodeConfig {
        NodeConfig {
            name: String::new(),
            cluster,
            etcd,
            secret: Secret::default(),
            server,
            listen: vec!["127.0.0.1:0".into()],
            advertise: Vec::new(),
            advertise_table: Vec::new(),
            connections_max: CONNECTIONS_MAX,
            version: VERSION,
        }
    }
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// etcd, or its keys of the cluster.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The table's server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The node's address.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A node cannot have this option of a server.
    #[error("a node cannot have {option}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Why, and the mend.
        why: &'static str,
    },
    /// Its table has other slots than another node's, so the room of an entry at one node says nothing about the other
    /// (CL12).
    #[error(
        "this node's table has slots of {slots}, and node {other} ({name}) has slots of {others}: start all nodes with the same \
         options for slots (`Config::inline_max`, `Config::key_inline`, `Config::life`)"
    )]
    Slots {
        /// This node's slots.
        slots: String,
        /// The other node.
        other: NodeId,
        /// The other node's name.
        name: String,
        /// The other node's slots.
        others: String,
    },
    /// Its region file is an older copy of what the node had (CL22).
    #[error(
        "node {id} has beaten {written} times, and its table knows of {known}: the region file is an old copy, and lacks what \
         was put since; put the newest one back, or start with an empty region file (`oneread serve --fresh`), and the node is \
         copied its shards anew"
    )]
    OldCopy {
        /// The node.
        id: NodeId,
        /// The last beat that etcd has written.
        written: u64,
        /// The last beat that the table knows of.
        known: u64,
    },
    /// Threads could not be started.
    #[error("the node's threads could not be started: {0}")]
    Threads(io::Error),
}

/// An event for the node's thread.
enum Event {
    Answer(EtcdAnswer),
    /// The watch that began with this call has ended.
    WatchEnded(CallId),
    /// A question for the node's status.
    Status(std_mpsc::Sender<NodeStatus>),
    Leave,
    Stop,
}

/// A task for the runtime.
enum Want {
    Call(CallId, EtcdCall),
    Watch(EtcdAnswer),
}

/// A running node. Stops when dropped, at once: see [`ClusterNode::stop`].
#[derive(Debug)]
pub struct ClusterNode {
    id: NodeId,
    server: Arc<DrivenServer>,
    requests: Vec<String>,
    events: mpsc::Sender<Event>,
    /// The number of shards of which it is primary and others have a copy, once it leaves.
    left: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl ClusterNode {
    /// Starts the table's server, and joins the cluster. Returns once clients can connect. The node gets shards later,
    /// from etcd and other nodes.
    ///
    /// # Errors
    /// [`NodeError`]. Nothing is left running.
    pub fn start(config: NodeConfig) -> Result<ClusterNode, NodeError> {
        check(&config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("oneread-node-etcd")
            .enable_all()
            .build()
            .map_err(NodeError::Threads)?;
        let connections =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(NodeError::Threads)?;
        let store = runtime.block_on(EtcdStore::connect(config.cluster.clone(), config.etcd))?;
        let (cluster, read) = runtime.block_on(store.read_config())?;
        let feed_bytes = config.server.feed_bytes;
        let (evicts, ttl) = (config.server.evict.is_some(), config.server.ttl.map(micros));
        let mut server = config.server;
        server.table = with_lengths(server.table, &cluster);
        server.token = config.secret.token();
        // The table's own server removes no entry by itself: the entry's primary does (CL13).
        let server = Arc::new(DrivenServer::start(server)?);
        let starting = Starting(Some(server.server()));
        let (table, page, notes) = NodeTable::open(server.clone(), cluster.clone())?;
        let id = NodeId(server.server().index().geometry().generation());
        // CL22
        let written = read.node(id).and_then(|(key, _)| key).map_or(0, |key| key.number);
        if written > page.asked.number {
            return Err(NodeError::OldCopy { id, written, known: page.asked.number });
        }
        let slots = slots(server.server());
        runtime.block_on(check_slots(&slots, &store, &cluster, read, id))?;
        let bounds = Bounds::of(&cluster);
        let newest = config.version;
        let who = Identity { newest, ..Identity::new(config.cluster, Some(id), config.secret, bounds) };
        let port =
            connections.block_on(NodePort::bind(&config.listen, who.clone(), config.connections_max))?;
        let is_anywhere = |at: &String| at.contains("0.0.0.0:") || at.contains("[::]:");
        let anywhere = |why| Err(NodeError::Option { option: "every address of its host as its own", why });
        if config.advertise.is_empty() && port.addresses().iter().any(is_anywhere) {
            return anywhere(
                "others cannot reach it by that name: say what they call it (`NodeConfig::advertise`), or listen at one",
            );
        }
        let table_at = if config.advertise_table.is_empty() {
            addresses(server.server())
        } else {
            config.advertise_table
        };
        if table_at.iter().any(is_anywhere) {
            return anywhere(
                "others cannot READ the table by that name: say what they call it (`NodeConfig::advertise_table`), or serve it at one",
            );
        }
        let requests = if config.advertise.is_empty() { port.addresses() } else { config.advertise };
        let about = NodeAbout {
            name: config.name,
            table: table_at,
            requests: requests.clone(),
            version: newest,
            leaves: false,
            slots,
        };
        let (events, inbox) = mpsc::channel(4 * EVENTS_AT_ONCE);
        let (wants, wanted) = mpsc::unbounded_channel();
        let replies = port.replies();
        let (arrivals, arrived) = mpsc::channel(EVENTS_AT_ONCE);
        connections.spawn(port.run(arrivals));
        let [ttl_of_node, beat] = [cluster.timing.ttl, cluster.timing.beat].map(Duration::from_micros);
        runtime.spawn(compacting::run(store.clone(), id, ttl_of_node, beat));
        let trouble = EtcdTrouble::default();
        runtime.spawn(call_etcd(store, wanted, events.clone(), trouble.clone()));
        let links = Links::new(who, connections.handle().clone());
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let tick = Duration::from_micros(cluster.timing.resend.min(cluster.timing.beat) / 8);
        let mut node = Node::new(id, about, cluster.shards, cluster.timing, table, page, notes)
            .evicting(evicts)
            .with_ttl(ttl);
        node.keep_changes(usize::try_from(feed_bytes).unwrap_or(usize::MAX));
        let turns = Turns {
            node,
            cluster,
            bounds,
            followers: Followers::default(),
            links,
            replies,
            wants,
            watch: None,
            left: left.clone(),
            reads: FxHashSet::default(),
            tick: tick.clamp(TICK_MIN, TICK_MAX),
            health: Health::new(trouble),
            namesake: None,
        };
        let thread = std::thread::Builder::new()
            .name("oneread-node".into())
            .spawn(move || {
                turns.run(&connections, inbox, arrived);
                // A name that is being looked up is not waited for.
                connections.shutdown_background();
            })
            .map_err(NodeError::Threads)?;
        starting.has_begun();
        Ok(ClusterNode { id, server, requests, events, left, thread: Some(thread), runtime: Some(runtime) })
    }

    /// The node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The addresses at which it takes requests.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// The table's server. Only the node may change its index.
    pub fn server(&self) -> &Server {
        self.server.server()
    }

    /// The node's notes of etcd, in its table. `None`: none yet.
    pub fn notes(&self) -> Option<Notes> {
        let mut notes = Vec::new();
        let is_there = self.server().index().reader().get_into(NOTES_KEY, &mut notes).unwrap_or(false);
        is_there.then(|| crate::table::decode(&notes).ok()).flatten()
    }

    /// Whether its thread runs. It ends only when it is told to, or by a bug of this crate.
    pub fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The node's status. `None`: its thread has ended, or has not answered for a second.
    pub fn status(&self) -> Option<NodeStatus> {
        let (asks, answers) = std_mpsc::channel();
        self.events.try_send(Event::Status(asks)).ok()?;
        answers.recv_timeout(ASK).ok()
    }

    /// Hands its shards over to standbys, waits for that at most this long, and stops. Returns the number of shards of
    /// which it was still primary, and of which others had a copy: they take over when the TTL is over.
    pub fn stop(mut self, within: Duration) -> usize {
        /// Nodes that have not heard yet that this one leaves may be about to hand a shard over to it. It hands that back.
        const HEARD_WITHIN: Duration = Duration::from_millis(250);
        let until = Instant::now() + within;
        self.tell(Event::Leave);
        let mut free_since = None;
        while Instant::now() < until && self.runs() {
            match self.left() {
                0 if free_since.get_or_insert_with(Instant::now).elapsed() >= HEARD_WITHIN => break,
                0 => {}
                _ => free_since = None,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // If nothing was counted, it was primary of nothing.
        let left = if self.left() == usize::MAX { 0 } else { self.left() };
        self.end();
        left
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.tell(Event::Stop);
            let _ = thread.join();
            note_stop(self.server().index());
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Sends an event to the thread. May be called within a program's own runtime.
    fn tell(&self, event: Event) {
        let mut event = Some(event);
        while let Some(told) = event.take() {
            match self.events.try_send(told) {
                Err(mpsc::error::TrySendError::Full(back)) => {
                    event = Some(back);
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
        }
    }
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.end();
    }
}

/// A start that has made a table. If it fails later, the table is removed: no client could change it.
struct Starting<'s>(Option<&'s Server>);

impl Starting<'_> {
    fn has_begun(mut self) {
        self.0 = None;
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.0 {
            server.undo_start(UndoStart::Always);
        }
    }
}

/// Refuses options that a node's server cannot have: it would be readable by anybody, or entries would come or go
/// without the node (CL13).
fn check(config: &NodeConfig) -> Result<(), NodeError> {
    let refused = |option, why| Err(NodeError::Option { option, why });
    match &config.server {
        ServerConfig { address: Address::Verbs(_), .. } if config.secret.is_empty() => refused(
            "a table over verbs without the cluster's secret",
            "whoever reaches the port could read it; give all nodes and clients one (`NodeConfig::secret`)",
        ),
        ServerConfig { ttl: Some(_), table, .. } if !table.life => {
            refused("a time to live without lives", "its entries have no ends; give them (`Config::life`)")
        }
        ServerConfig { ttl: Some(ttl), .. } if !(1..=TTL_MAX).contains(&micros(*ttl)) => {
            refused("this time to live", "it is more than 0, and ten years at most")
        }
        ServerConfig { evict: Some(policy), .. } if *policy != Evict::Clock => refused(
            "a policy of eviction other than clock",
            "in a cluster a shard's entries leave in the order of its table, but for those that were read: take the policy clock (`ServerConfig::evict`)",
        ),
        ServerConfig { snapshots: Some(_), .. } | ServerConfig { restore: Some(_), .. } => {
            refused("snapshots", "a copy of a shard is whole or none: have a region file, and standbys")
        }
        ServerConfig { table, .. } if table.owners => refused(
            "a table with owners",
            "a cluster keeps its owners by itself, in any table with lives: leave `Config::owners` out",
        ),
        _ => Ok(()),
    }
}

fn micros(time: Duration) -> Time {
    Time::try_from(time.as_micros()).unwrap_or(Time::MAX)
}

/// The shape of a table's slots, which determines the room of an entry, for people.
fn slots(server: &Server) -> String {
    let geometry = server.index().geometry();
    let (shape, key) = (geometry.shape(), geometry.key_inline());
    let life = if geometry.has_life() { ", a life" } else { "" };
    format!("{} B, keys to {key}, all to {}{life}", shape.bytes(), shape.payload_max())
}

/// Checks that the other living nodes have the same slots. If one has others, takes a TTL, in which it listens whether
/// that one lives.
async fn check_slots(
    slots: &str,
    store: &EtcdStore,
    cluster: &ClusterConfig,
    read: EtcdAnswer,
    me: NodeId,
) -> Result<(), NodeError> {
    let differs = |about: &NodeAbout| !about.slots.is_empty() && about.slots != slots;
    let other = read.nodes().find(|(id, key)| *id != me && key.alive && differs(&key.about));
    let Some((other, key)) = other else { return Ok(()) };
    tokio::time::sleep(Duration::from_micros(cluster.timing.ttl)).await;
    let (_, now) = store.read_config().await?;
    if !now.beats(other, &read) {
        return Ok(());
    }
    let NodeAbout { name, slots: others, .. } = key.about.clone();
    Err(NodeError::Slots { slots: slots.to_owned(), other, name, others })
}

/// The addresses at which a server's table is READ, the best first.
fn addresses(server: &Server) -> Vec<String> {
    let tcp = server.tcp_address().map(|at| Address::Tcp(at.clone()).to_string());
    let first = as_others_say(server.address()).to_string();
    std::iter::once(first.clone()).chain(tcp.filter(|tcp| *tcp != first)).collect()
}

/// An address without the name of this host's device: other hosts have devices of their own.
fn as_others_say(address: &Address) -> Address {
    match address {
        Address::Verbs(at) => {
            Address::Verbs(VerbsAddress::new(at.host(), at.port(), DeviceChoice::default()))
        }
        other => other.clone(),
    }
}

/// Makes calls of etcd, each in a task of its own, and watches it.
async fn call_etcd(
    store: EtcdStore,
    mut wanted: mpsc::UnboundedReceiver<Want>,
    events: mpsc::Sender<Event>,
    trouble: EtcdTrouble,
) {
    let mut watch: Option<tokio::task::JoinHandle<()>> = None;
    let told = Arc::new(std::sync::Mutex::new(None::<Instant>));
    while let Some(want) = wanted.recv().await {
        let (store, events, told, trouble) = (store.clone(), events.clone(), told.clone(), trouble.clone());
        match want {
            Want::Call(call, what) => drop(tokio::spawn(async move {
                let changes = matches!(what, EtcdCall::Transaction { .. });
                match store.call(call, what).await {
                    Ok(answer) => {
                        trouble.note(changes, None);
                        drop(events.send(Event::Answer(answer)).await);
                    }
                    // The core asks again. It learns from etcd's keys whether a transaction was made.
                    Err(error) => {
                        trouble.note(changes, Some(error.brief()));
                        tell(&told, &error);
                    }
                }
            })),
            Want::Watch(read) => {
                if let Some(before) = watch.take() {
                    before.abort();
                }
                watch = Some(tokio::spawn(async move {
                    let (deliver, call) = (events.clone(), read.call);
                    let error =
                        store.watch(&read, |answer| deliver.try_send(Event::Answer(answer)).is_ok()).await;
                    tracing::debug!(%error, "a watch of etcd has ended, and begins anew");
                    let _ = events.send(Event::WatchEnded(call)).await;
                }));
            }
        }
    }
    if let Some(watch) = watch {
        watch.abort();
    }
}

/// Logs an error of etcd, but not each one.
fn tell(told: &std::sync::Mutex<Option<Instant>>, error: &EtcdError) {
    let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if told.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
        *told = Some(Instant::now());
        tracing::warn!(%error, "a call of etcd has failed");
    }
}

/// The state of the node's thread.
struct Turns {
    node: Node<NodeTable>,
    cluster: ClusterConfig,
    bounds: Bounds,
    followers: Followers,
    links: Links,
    replies: Replies,
    wants: mpsc::UnboundedSender<Want>,
    /// The call behind whose answer etcd is watched.
    watch: Option<CallId>,
    left: Arc<AtomicUsize>,
    /// Calls under way that read all keys.
    reads: FxHashSet<CallId>,
    tick: Duration,
    health: Health,
    /// The last node seen with its name.
    namesake: Option<NodeId>,
}

impl Turns {
    /// Until it is told to stop.
    fn run(
        mut self,
        connections: &tokio::runtime::Runtime,
        mut inbox: mpsc::Receiver<Event>,
        mut arrived: mpsc::Receiver<Arrived>,
    ) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let mut said = Vec::with_capacity(EVENTS_AT_ONCE);
        let (mut ticked, mut leaves, mut was, mut works) = (None::<Instant>, false, None::<String>, false);
        loop {
            let is_open = connections.block_on(async {
                // What was said in the last turn is sent, and what has come is read, before this thread sleeps or goes on.
                tokio::task::yield_now().await;
                tokio::select! {
                    // etcd's answers come first: beats go on, however much else comes.
                    biased;
                    n = inbox.recv_many(&mut events, EVENTS_AT_ONCE) => n > 0,
                    n = arrived.recv_many(&mut said, FRAMES_AT_ONCE) => n > 0,
                    () = tokio::time::sleep(if works { Duration::ZERO } else { self.tick }) => true,
                }
            });
            if !is_open {
                tracing::error!("the node's runtime has ended");
                return;
            }
            while said.len() < FRAMES_AT_ONCE
                && let Ok(arrived) = arrived.try_recv()
            {
                said.push(arrived);
            }
            let is_idle = said.is_empty() && events.is_empty();
            let now = clock::now();
            for arrived in said.drain(..) {
                self.arrived(now, arrived);
            }
            for event in events.drain(..) {
                match event {
                    Event::Answer(answer) => self.answered(now, answer),
                    Event::WatchEnded(call) => {
                        self.watch.take_if(|watch| *watch == call);
                    }
                    Event::Status(asks) => drop(asks.send(self.status(now))),
                    Event::Leave => {
                        self.node.leave();
                        leaves = true;
                        self.left.store(self.node.to_hand_over(), Ordering::Relaxed);
                    }
                    Event::Stop => return,
                }
            }
            let is_due = ticked.is_none_or(|at| at.elapsed() >= self.tick);
            if is_due {
                ticked = Some(Instant::now());
                self.node.tick(now);
                self.health.see_beat(now, self.node.page().held);
                if leaves {
                    self.left.store(self.node.to_hand_over(), Ordering::Relaxed);
                }
                let namesake = self.namesake(now);
                if let Some(other) = namesake.filter(|_| self.namesake != namesake) {
                    tracing::warn!(
                        node = %self.node.id(), %other,
                        "another node has this one's name: commands cannot tell them apart by it; start one with a name of its own (`oneread serve --node-name NAME`)"
                    );
                }
                self.namesake = namesake;
                let (id, (standing, is_trouble)) = (self.node.id(), self.standing(now));
                if was.as_ref() != Some(&standing) {
                    match is_trouble {
                        true => tracing::warn!(node = %id, %standing, "standing"),
                        false => tracing::info!(node = %id, %standing, "standing"),
                    }
                    was = Some(standing);
                }
            }
            // While other work waits, only ticks do that.
            works = is_idle && self.node.remove_owned(now) || works && !is_idle;
            self.carry_out();
            self.followers.tell(&self.node, &self.replies, self.bounds, is_due);
        }
    }

    fn answered(&mut self, now: Time, answer: EtcdAnswer) {
        // A watch can begin behind a call that reads all keys. One from before an adoption is not trusted any more.
        let is_read = !answer.is_watched && answer.entries.len() > 1 && self.reads.remove(&answer.call);
        let read = is_read.then(|| answer.clone());
        self.health.see_nodes(now, &answer);
        self.node.answered(now, answer);
        let is_good = self.watch.is_some_and(|call| self.node.is_current(call));
        if let Some(read) = read.filter(|read| !is_good && self.node.is_current(read.call)) {
            self.watch = Some(read.call);
            let _ = self.wants.send(Want::Watch(read));
        }
        for (id, about) in self.node.nodes() {
            if id != self.node.id() {
                self.links.know(id, &about.requests);
            }
        }
    }

    fn arrived(&mut self, now: Time, arrived: Arrived) {
        match arrived {
            Arrived::Messages(from, messages) => {
                messages.into_iter().for_each(|message: Message| self.node.received(now, from, message));
            }
            Arrived::Requests(peer, requests) => {
                requests.into_iter().for_each(|request| self.requested(now, peer, request));
            }
            Arrived::Follows(peer, follow, version) => {
                self.followers.come(peer, follow, version, self.cluster.shards);
            }
            Arrived::Asked(peer, Question::Map) => {
                let map = ClusterMap {
                    adoption: self.node.notes().adoption,
                    shards: self.node.notes().newest.clone(),
                    nodes: self.node.nodes().map(|(id, about)| (id, about.clone())).collect(),
                };
                self.replies.send(peer, &Said::Map(map));
            }
            Arrived::Asked(peer, Question::Notes) => {
                self.replies.send(peer, &Said::Notes(self.node.notes().clone()));
            }
            Arrived::Asked(peer, Question::Config) => {
                self.replies.send(peer, &Said::Config(self.cluster.clone()));
            }
            Arrived::Asked(peer, Question::Status) => {
                self.replies.send(peer, &Said::Status(self.status(now)))
            }
        }
    }

    /// The client may have computed another shard, or have other lengths.
    fn requested(&mut self, now: Time, peer: Peer, request: Request) {
        if self.cluster.may_ask(&request) {
            self.node.requested(now, peer, request);
        } else {
            let reply = Reply { copy: request.copy, ended: Err(NotDone::Invalid) };
            self.replies.send(peer, &Said::Replies(vec![reply]));
        }
    }

    /// Sends the core's outputs, in order. Replies to one peer go together.
    fn carry_out(&mut self) {
        let mut replies: FxHashMap<Peer, Vec<Reply>> = FxHashMap::default();
        for output in self.node.outputs() {
            match output {
                Output::Etcd(call, what) => {
                    if what == EtcdCall::Read {
                        self.reads.retain(|read| read + 64 > call);
                        self.reads.insert(call);
                    }
                    let _ = self.wants.send(Want::Call(call, what));
                }
                Output::Node(to, message) => self.links.send(to, message),
                // Nobody waits for the end of its own removals.
                Output::Reply(Peer::SELF, _) | Output::Removes { .. } => {}
                Output::Reply(peer, reply) => replies.entry(peer).or_default().push(reply),
            }
        }
        for (peer, replies) in replies {
            for some in replies.chunks(REPLIES_AT_ONCE) {
                self.replies.send(peer, &Said::Replies(some.to_vec()));
            }
        }
    }

    /// In words: what the core says, and what it does not know; and whether an operator is to see to it. A node that asks is on
    /// its way.
    fn standing(&self, now: Time) -> (String, bool) {
        let says = standing_name(self.node.standing());
        let why = self.health.etcd();
        let reason = |why: &str| if why.is_empty() { String::new() } else { format!(": {why}") };
        match self.node.standing() {
            Standing::Good => {
                let ttl = self.cluster.timing.ttl;
                if self.health.beat_age(now).is_none_or(|age| age >= ttl) {
                    return (format!("etcd takes no beat of it{}", reason(why)), true);
                }
                match self.refused_by(now) {
                    (false, refused) if !refused.is_empty() => {
                        (format!("no other node takes its hello{}", reason(&refused[0].1)), true)
                    }
                    (false, _) if self.is_unanswered(now) => {
                        ("asks other nodes whether they take its hello".into(), false)
                    }
                    _ => (says.into(), false),
                }
            }
            Standing::Unborn | Standing::Looking(_) => (format!("{says}{}", reason(why)), !why.is_empty()),
            Standing::Foreign | Standing::Outdated | Standing::Failed => (says.into(), true),
        }
    }

    /// Whether there may be another node that has not been heard yet, and no node has taken its hello.
    fn is_unanswered(&self, now: Time) -> bool {
        let takes = |id| self.links.takes_hello(id) == Some(Ok(()));
        let mut others = self.health.unknown(now, self.cluster.timing.ttl).filter(|id| *id != self.node.id());
        others.next().is_some_and(|first| !takes(first) && !others.any(takes))
    }

    /// Another living node with the same name.
    fn namesake(&self, now: Time) -> Option<NodeId> {
        let mut others = self.health.living(now, self.cluster.timing.ttl).filter(|id| *id != self.node.id());
        others.find(|id| {
            let called =
                |wanted| self.node.nodes().find(move |(id, _)| *id == wanted).map(|(_, about)| &about.name);
            called(*id).is_some_and(|name| !name.is_empty() && called(self.node.id()) == Some(name))
        })
    }

    /// Whether another living node takes its hello, and the nodes that do not.
    fn refused_by(&self, now: Time) -> (bool, Vec<(NodeId, String)>) {
        let (mut is_taken, mut refused) = (false, Vec::new());
        for node in self.health.living(now, self.cluster.timing.ttl).filter(|node| *node != self.node.id()) {
            match self.links.takes_hello(node) {
                Some(Ok(())) | None => is_taken = true,
                Some(Err(why)) => refused.push((node, why.to_owned())),
            }
        }
        refused.sort();
        (is_taken, refused)
    }

    fn status(&self, now: Time) -> NodeStatus {
        let node = &self.node;
        let shards: Vec<ShardStatus> = (0..self.cluster.shards)
            .map(|shard: ShardIx| {
                let replica = node.replica(shard);
                let in_sync = &replica.state().in_sync;
                ShardStatus {
                    shard,
                    role: replica.role(),
                    epoch: replica.state().epoch,
                    used: replica.used(),
                    under_way: replica.under_way() as u64,
                    newcomers: replica.channels().filter(|to| !in_sync.has(*to)).collect(),
                }
            })
            .collect();
        let used = shards.iter().map(|shard| shard.used).sum();
        let led = shards.iter().filter(|shard| shard.role == Role::Primary);
        // A copy at a node that is gone does not count.
        let ttl = self.cluster.timing.ttl;
        let counts = |copy: &NodeId| *copy == node.id() || self.health.lives(now, ttl, *copy);
        let copies = led.map(|shard| node.replica(shard.shard).state().in_sync.iter().filter(counts).count());
        let missing =
            copies.map(|copies| u64::from(self.cluster.replicas).saturating_sub(copies as u64)).sum();
        NodeStatus {
            id: node.id(),
            standing: self.standing(now).0,
            used,
            room_left: node.room_left(),
            evicted: node.evicted(),
            expired: node.expired(),
            missing,
            shards,
            health: Later(Some(NodeHealth {
                beat_age: self.health.beat_age(now),
                etcd: self.health.etcd().into(),
                refused_by: self.refused_by(now).1,
                namesake: self.namesake(now),
            })),
        }
    }
}

/// The standing's name, for people.
fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Good => NodeStatus::GOOD,
        Standing::Unborn => "asks etcd for a life",
        Standing::Looking(_) => "asks etcd who serves what",
        Standing::Foreign => {
            "etcd is another one: an operator must adopt it, or start this node again if that was a mistake"
        }
        Standing::Outdated => {
            "its table is an old copy, or another process uses it: start it with the newest region file, or with an empty one"
        }
        Standing::Failed => NodeStatus::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients choose devices of their own: what the server's are called there says nothing here.
    #[test]
    fn a_nodes_device_is_not_announced() {
        for (at, announced) in [
            ("verbs://10.0.0.1:7471?dev=mlx5_1&port=2&gid=3&mtu=1024", "verbs://10.0.0.1:7471"),
            ("verbs://[fe80::1]:7471?dev=mlx5_1", "verbs://[fe80::1]:7471"),
            ("verbs://10.0.0.1:7471", "verbs://10.0.0.1:7471"),
            ("tcp://10.0.0.1:7471", "tcp://10.0.0.1:7471"),
            ("shm:/run/a.sock", "shm:/run/a.sock"),
        ] {
            let address: Address = at.parse().unwrap();
            assert_eq!(as_others_say(&address).to_string(), announced, "{at}");
        }
    }
}
