//! A cluster of processes that are killed, stopped and cut off: what clients saw of each key has an order.
//!
//! Three nodes, two clients with three handles each, and an etcd. Each is a process: this test starts itself again for
//! nodes and clients. Nodes have region files, and clients READ these over shared memory, also while a node is
//! stopped: a deposed primary is still readable. Nodes and clients reach etcd through a [`Way`] that can be cut: a client
//! that is not told of the next primary has nothing but its lease.
//!
//! A run is made of rounds with keys of their own. In each, clients do what they like with a few keys, while nodes,
//! clients and etcd fail one after the other, by a seed. Then all is mended, each key is read, and each key's
//! history is checked.
//!
//! ```sh
//! W="cargo test --profile checked -p oneread-cluster --features net,faults --test killed"
//! ONEREAD_LONG=1 ONEREAD_SECONDS=3600 $W histories_have_an_order -- --exact --nocapture
//! ONEREAD_SEED=17 ONEREAD_TRACE=1 $W histories_have_an_order -- --exact --nocapture
//! ```
//!
//! A seed gives the same faults at much the same times, and no more.
//!
//! `killed/apart.rs` has the same with each process on a host of its own, and three etcds; `killed/verbs.rs` with two
//! nodes that are READ over RDMA.

#[path = "killed/apart.rs"]
mod apart;
mod common;
#[path = "common/history.rs"]
mod history;
#[path = "killed/net.rs"]
mod net;
#[path = "killed/verbs.rs"]
mod verbs;

use common::{Etcd, config, has_etcd, name, node, paced, until};
use history::{Event, Kind, NEVER, OWNED, due_of, is_linearizable, value_with_due};
use net::Net;
use oneread::{Address, Client, ClientOptions, OwnerOptions, PutMode, PutOptions, SwapOutcome};
use oneread_cluster::client::{ClusterClient, ClusterError, ClusterOptions};
use oneread_cluster::core::etcd::EtcdValue;
use oneread_cluster::core::message::Outcome;
use oneread_cluster::core::placement::Wishes;
use oneread_cluster::core::state::{ClusterConfig, NodeId, NodeIds, ShardState};
use oneread_cluster::etcd::{EtcdOptions, EtcdStore};
use oneread_cluster::node::{ClusterNode, NodeError};
use oneread_cluster::wire::Secret;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// This and all other times are of the usual pace ([`paced`]).
const TTL: Duration = Duration::from_secs(1);
const NODES: usize = 3;
const SHARDS: u16 = 8;
const COPIES: u8 = 2;
const CLIENTS: usize = 2;
/// Of a round.
const KEYS: u8 = 16;
/// Of these, the first ones are changed by all. The others are put by owners alone, and seldom: some last until the owner is gone.
const OF_ALL: u8 = 12;
/// A call of a client that takes longer has failed, or nobody knows.
const DEADLINE: Duration = Duration::from_secs(2);
/// An owner may be away for so long.
const ABSENT: Duration = Duration::from_secs(2);
/// Longest pause of a handle between two calls, in microseconds. It bounds what there is to check.
const PAUSE: usize = 3_000;
/// A round of a long run takes so long.
const ROUND: Duration = Duration::from_secs(40);

// ---- what all processes have ----

/// Microseconds by a clock that all processes share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    /// A time between so many milliseconds, at the pace of this process.
    fn between(&mut self, least: u64, most: u64) -> Duration {
        paced(Duration::from_millis(least + self.below((most - least) as usize + 1) as u64))
    }
}

/// What the cluster is.
fn settings() -> ClusterConfig {
    config(SHARDS, COPIES, paced(TTL))
}

/// What nodes and clients know.
fn secret() -> Secret {
    Secret::new(b"a secret of the tests").unwrap()
}

/// A round's keys: each shard has one at least.
fn keys(round: u64) -> Vec<(u16, String)> {
    let config = settings();
    let key = |key: u8| {
        let shard = u16::from(key) % SHARDS;
        let names = (0..).map(|n| format!("{round}-{key}-{n}"));
        (shard, names.into_iter().find(|name| config.shard_of(name.as_bytes()) == shard).unwrap())
    };
    (0..KEYS).map(key).collect()
}

/// A value of some length that says whether it is whole.
fn value_of(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number % 301) as usize, number as u8);
    value
}

fn number_of(value: Option<&[u8]>) -> u64 {
    let Some(value) = value else { return 0 };
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, value_of(number), "a value is torn");
    number
}

fn given<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Takes this pace, or that of `ONEREAD_PACE`.
fn take_pace(usual: u32) {
    common::set_pace(given("ONEREAD_PACE").unwrap_or(usual));
}

/// Starts one of the two tests below as a process. It ends with this thread.
fn spawn(program: &[String], what: &str, variables: &[(&str, String)]) -> Child {
    Command::new(&program[0])
        .args(&program[1..])
        .args([what, "--exact", "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child process does first: it dies with its parent, takes its pace, and breaks a rule if it is told to.
fn begin() {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    take_pace(1);
    #[cfg(feature = "faults")]
    if let Some(rule) = given::<String>("ONEREAD_RULE") {
        let broken = BROKEN.into_iter().find(|broken| format!("{broken:?}") == rule);
        oneread_cluster::faults::breaks_everywhere(Some(broken.expect("a rule")));
    }
    #[cfg(feature = "faults")]
    if let Some(millionths) = given("ONEREAD_CLOCK") {
        oneread_cluster::faults::run_clock_at(millionths);
    }
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    if given::<String>("ONEREAD_TRACE").is_some_and(|trace| trace != "1") {
        let wanted: tracing_subscriber::filter::Targets = given("ONEREAD_TRACE").expect("targets and levels");
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        tracing_subscriber::registry().with(log).with(wanted).init();
    }
}

/// A flag that is set when the parent wants an end: it closes this process' input.
fn end_is_wanted() -> Arc<AtomicBool> {
    let is_wanted = Arc::new(AtomicBool::new(false));
    let set = is_wanted.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        set.store(true, Ordering::Relaxed);
    });
    is_wanted
}

/// Writes a file that is there with all it has, or not.
fn write(path: &Path, contents: &[u8]) {
    let whole = path.with_extension("new");
    fs::write(&whole, contents).unwrap();
    fs::rename(whole, path).unwrap();
}

// ---- a node ----

/// A node's process, and no test: without its variables it does nothing.
#[test]
#[ignore = "a process that the others start"]
fn node_process() {
    let Some(folder) = given::<PathBuf>("ONEREAD_NODE_FOLDER") else { return };
    let number: usize = given("ONEREAD_NUMBER").unwrap();
    begin();
    let end = end_is_wanted();
    let mut config = node(&folder, number, etcd());
    config.server.address = given("ONEREAD_TABLE").unwrap();
    config.server.table = config.server.table.life(true);
    config.advertise_table.extend(given("ONEREAD_TABLE_FOR_OTHERS"));
    config.secret = secret();
    if let Some(host) = given::<String>("ONEREAD_HOST") {
        config.listen = vec![format!("{host}:{}", apart::REQUESTS)];
    }
    // etcd may be away.
    let node = loop {
        match ClusterNode::start(config.clone()) {
            Ok(node) => break node,
            Err(NodeError::Etcd(_)) => thread::sleep(Duration::from_millis(100)),
            Err(error) => panic!("node {number}: {error}"),
        }
    };
    write(
        &folder.join(format!("n{number}.id")),
        format!("{} {}", std::process::id(), node.id().0).as_bytes(),
    );
    while !end.load(Ordering::Relaxed) {
        assert!(node.runs(), "the thread of node {number} has ended");
        thread::sleep(Duration::from_millis(20));
    }
    node.stop(paced(Duration::from_secs(10)));
}

/// etcd, as a child process is told of it.
fn etcd() -> EtcdOptions {
    EtcdOptions::new(given::<String>("ONEREAD_ETCD").unwrap().split(','))
}

// ---- a client ----

/// Of a client with this deadline.
fn options(deadline: Duration) -> ClusterOptions {
    let mut options = ClusterOptions::default();
    (options.secret, options.deadline) = (secret(), deadline);
    options
}

/// A client's process, and no test.
#[test]
#[ignore = "a process that the others start"]
fn client_process() {
    let Some(file) = given::<PathBuf>("ONEREAD_CLIENT_FILE") else { return };
    let number: u64 = given("ONEREAD_NUMBER").unwrap();
    let (seed, round): (u64, u64) = (given("ONEREAD_SEED").unwrap(), given("ONEREAD_ROUND").unwrap());
    let base: u64 = given("ONEREAD_BASE").unwrap();
    begin();
    let end = end_is_wanted();
    let mut options = options(paced(DEADLINE));
    options.tables = verbs::options(options.tables, number);
    let client = loop {
        match ClusterClient::connect(name(), etcd(), options.clone()) {
            Ok(client) => break client,
            Err(ClusterError::Etcd(_)) => thread::sleep(Duration::from_millis(100)),
            Err(error) => panic!("client {number}: {error}"),
        }
    };
    // Nothing that these do waits for a primary that is stopped. Over TCP a GET may wait for it, so that each shard has
    // a handle that waits for nothing else.
    let only_gets: Vec<Only> = match given::<String>("ONEREAD_HOST") {
        Some(_) => (0..SHARDS).map(Only::GetsOf).collect(),
        None => vec![Only::Gets],
    };
    let does = [Only::Nothing, Only::Nothing].into_iter().chain(only_gets);
    let handles = [client.clone(), client.clone().exactly_once(true)].into_iter();
    let handles = handles.chain(std::iter::repeat_with(|| client.clone())).zip(does);
    let work = |(handle, (client, only)): (u64, (ClusterClient, Only))| {
        let id = 16 * number + handle;
        let random = Random(seed ^ (id + 1) << 32 ^ round << 16);
        // Less than 2^31 with its number (`value_with_due`, `OWNED`).
        let (known, last) = ([0; KEYS as usize], (id + 1) << 24);
        // One of them is exactly once, and one is not.
        let owning = (handle == number).then(|| Owning::new(number as u16 + 1));
        let worker = Worker { client, only, owning, random, base, keys: keys(round), known, last };
        let end = end.clone();
        thread::spawn(move || worker.run(&end))
    };
    let threads: Vec<_> = (0..).zip(handles).map(work).collect();
    let events: Vec<Event> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    write(&file, &serde_json::to_vec(&events).unwrap());
}

/// What a handle does only.
#[derive(Clone, Copy)]
enum Only {
    Nothing,
    Gets,
    /// Of a shard.
    GetsOf(u16),
}

/// What was put may leave by itself, from then on.
fn may_leave(put: &Event, start: u32) -> Event {
    Event { kind: Kind::Swap(put.value), outcome: Outcome::Done, value: 0, start, end: NEVER, ..*put }
}

/// What a handle does as an owner.
struct Owning {
    number: u16,
    /// The handle, while there is a session.
    client: Option<ClusterClient>,
    /// What the session has put, by shard, and when the last one began that was done.
    put: Vec<(Vec<Event>, u32)>,
    /// What was put by sessions that are over, and is not known to be gone.
    left: Vec<Event>,
}

impl Owning {
    fn new(number: u16) -> Owning {
        let put = vec![(Vec::new(), 0); usize::from(SHARDS)];
        Owning { number, client: None, put, left: Vec::new() }
    }

    /// It has put something, or nobody knows. `is_done`: the session was there then.
    fn has_put(&mut self, event: Event, is_done: bool) {
        let (put, last) = &mut self.put[usize::from(event.shard)];
        put.push(event);
        if is_done {
            *last = event.start;
        }
    }

    /// Its entries may have left, but none before the last one was put in its shard.
    fn may_have_left(&mut self, events: &mut Vec<Event>) {
        for (put, last) in &mut self.put {
            for event in put.drain(..) {
                events.push(may_leave(&event, event.start.max(*last)));
                self.left.push(event);
            }
        }
    }
}

struct Worker {
    client: ClusterClient,
    only: Only,
    owning: Option<Owning>,
    random: Random,
    /// When the round began.
    base: u64,
    keys: Vec<(u16, String)>,
    /// The last value that was got or put, by key.
    known: [u64; KEYS as usize],
    /// The last value that was made.
    last: u64,
}

impl Worker {
    fn run(mut self, end: &AtomicBool) -> Vec<Event> {
        let mut events = Vec::new();
        while !end.load(Ordering::Relaxed) {
            self.own(&mut events);
            let key = match self.only {
                Only::GetsOf(shard) => {
                    let all = self.keys.iter().enumerate().filter(|(_, (of, _))| *of == shard);
                    let all: Vec<usize> = all.map(|(key, _)| key).collect();
                    all[self.random.below(all.len())]
                }
                _ => self.random.below(self.keys.len()),
            };
            self.last += 1;
            let kind = match (self.random.below(100), self.known[key]) {
                _ if !matches!(self.only, Only::Nothing) => Kind::Get,
                (chance, _) if key >= usize::from(OF_ALL) => match &self.owning {
                    Some(Owning { client: Some(_), .. }) if chance < 20 => Kind::Put,
                    _ => Kind::Get,
                },
                (0..50, _) => Kind::Get,
                (50..70, _) => Kind::Put,
                (70..80, _) => Kind::Remove,
                (80..90, _) | (_, 0) => Kind::Insert,
                (_, known) => Kind::Swap(known),
            };
            // Some entries have an end. At any time after it they leave, or are replaced before.
            let is_put = matches!(kind, Kind::Put | Kind::Insert);
            let ttl = is_put && self.random.below(4) == 0;
            let ttl = ttl.then(|| paced(Duration::from_millis(100 + self.random.below(1_500) as u64)));
            let event = self.call(key as u8, kind, ttl);
            events.push(event);
            if event.value & OWNED != 0 && matches!(kind, Kind::Swap(_)) && !event.is_void {
                // Whoever owns the entry goes at a time that is not known here.
                events.push(may_leave(&event, event.start));
            }
            let is_new = is_put || matches!(kind, Kind::Swap(_));
            if let Some(due) = due_of(event.value).filter(|_| is_new && !event.is_void) {
                events.push(may_leave(&event, due));
            }
            let pause = if matches!(self.only, Only::GetsOf(_)) { 4 * PAUSE } else { PAUSE };
            thread::sleep(paced(Duration::from_micros(self.random.below(pause) as u64)));
        }
        if let Some(owning) = &mut self.owning {
            owning.may_have_left(&mut events);
        }
        events
    }

    /// Ends its session at times, or begins one. Once it is told that all entries have left, none is to be seen.
    fn own(&mut self, events: &mut Vec<Event>) {
        let Some(owning) = &mut self.owning else { return };
        // Sessions of one client are short, those of the other long.
        let calls = if owning.number == 1 { 100 } else { 800 };
        if owning.client.is_some() && self.random.below(calls) == 0 {
            owning.client = None;
        }
        if owning.client.is_some() || self.random.below(10) > 0 {
            return;
        }
        owning.may_have_left(events);
        if self.client.remove_owner(owning.number).is_err() {
            return;
        }
        let start = (now() - self.base) as u32;
        let gone = |event| Event { kind: Kind::OwnerGone, start, end: NEVER, is_void: true, ..event };
        events.extend(owning.left.drain(..).map(gone));
        owning.put.iter_mut().for_each(|(_, last)| *last = 0);
        owning.client = self.client.owner(OwnerOptions::new(owning.number).absent_for(paced(ABSENT))).ok();
    }

    fn call(&mut self, key: u8, kind: Kind, ttl: Option<Duration>) -> Event {
        let (shard, name) = &self.keys[usize::from(key)];
        let start = (now() - self.base) as u32;
        let due = match kind {
            Kind::Swap(expected) => due_of(expected).unwrap_or(0),
            _ => ttl.map_or(0, |ttl| start + ttl.as_micros() as u32),
        };
        let mut value = value_with_due(due, self.last);
        let owning = self.owning.as_mut().filter(|_| matches!(kind, Kind::Put | Kind::Insert));
        let is_owners = key >= OF_ALL || self.random.below(2) == 0;
        let mut owner = owning.filter(|owning| owning.client.is_some() && is_owners);
        // A swap leaves an entry whose it is.
        let is_owned = owner.is_some() || matches!(kind, Kind::Swap(expected) if expected & OWNED != 0);
        value |= if is_owned { OWNED } else { 0 };
        let client = owner.as_mut().and_then(|owner| owner.client.as_mut()).unwrap_or(&mut self.client);
        let (name, new) = (name.as_bytes(), value_of(value));
        let ended = match kind {
            Kind::Get => client.get(name).map(|got| {
                value = number_of(got.as_deref());
                Outcome::Done
            }),
            Kind::Put => client.put_with(name, &new, PutOptions::new().ttl(ttl)).map(|_| Outcome::Done),
            Kind::Insert => {
                let options = PutOptions::from(PutMode::Insert).ttl(ttl);
                let put = client.put_with(name, &new, options);
                put.map(|is| if is { Outcome::Done } else { Outcome::Exists })
            }
            Kind::Remove => client.remove(name).map(|is| if is { Outcome::Done } else { Outcome::Absent }),
            Kind::Swap(expected) => {
                client.compare_and_swap(name, &value_of(expected), &new).map(|swap| match swap {
                    SwapOutcome::Swapped => Outcome::Done,
                    SwapOutcome::Differs => Outcome::Differs,
                    SwapOutcome::Absent => Outcome::Absent,
                })
            }
            Kind::Expire | Kind::OwnerGone => unreachable!("only primaries do that"),
        };
        let end = (now() - self.base) as u32 + 1;
        let is_open = matches!(ended, Err(ClusterError::Unknown { .. }));
        let is_void = match &ended {
            Err(ClusterError::Unavailable { .. }) => kind == Kind::Get,
            Err(ClusterError::NotDone { .. } | ClusterError::OwnerGone { .. }) => true,
            Err(ClusterError::Unknown { .. }) | Ok(_) => false,
            // There is room for all.
            Err(error) => panic!("{kind:?}: {error}"),
        };
        let is_done = matches!(ended, Ok(Outcome::Done));
        if is_done {
            self.known[usize::from(key)] = if kind == Kind::Remove { 0 } else { value };
        }
        let is_gone = matches!(ended, Err(ClusterError::OwnerGone { .. }));
        let (end, outcome) = (if is_open { NEVER } else { end }, ended.unwrap_or(Outcome::Done));
        let event = Event { shard: *shard, key, start, end, kind, value, outcome, is_void };
        if let Some(owner) = owner {
            if is_done || is_open {
                owner.has_put(event, is_done);
            }
            owner.client.take_if(|_| is_gone);
        }
        event
    }
}

// ---- what can be cut ----

/// A way to etcd that can be cut: what is sent meanwhile comes later, as over a network that fails for some time.
struct Way {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Way {
    fn to(etcd: u16) -> Way {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let way = Way { port: listener.local_addr().unwrap().port(), is_cut: Arc::default() };
        let is_cut = way.is_cut.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(("127.0.0.1", etcd))) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let is_cut = is_cut.clone();
                    thread::spawn(move || carry(from, to, &is_cut));
                }
            }
        });
        way
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 1 << 14];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        while is_cut.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(2));
        }
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

// ---- the cluster ----

/// A process of the cluster. It is killed when this is dropped.
struct Process {
    name: String,
    child: Child,
    is_stopped: bool,
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

impl Process {
    fn stop(&mut self, is_stopped: bool) {
        signal(self.child.id(), if is_stopped { Signal::STOP } else { Signal::CONT });
        self.is_stopped = is_stopped;
    }

    /// It has not ended by itself.
    fn check(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{} has ended: {}", self.name, ended.unwrap());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A node's process is killed.
    KillNode,
    /// All nodes' processes are killed at once.
    KillNodes,
    /// A node's process is killed, and its memory is lost.
    LoseNode,
    /// A node is told to stop, and hands over.
    LeaveNode,
    StopNode,
    /// A node does not reach etcd.
    CutNode,
    /// etcd is stopped, or a member of it: where there are more, mostly the one that leads.
    StopEtcd,
    KillEtcd,
    StopClient,
    /// A client does not reach etcd.
    CutClient,
    /// A node is stopped, and a client is not told of the next primary.
    StopNodeAndCutClient,
    /// An operator moves a shard, or wants nothing to be moved.
    MoveShard,
    /// An operator drains a node for some time.
    DrainNode,
    /// A node and a client reach each other, and nobody else. From here on these are of hosts apart only.
    CutNodeAndClient,
    /// Two nodes do not reach each other, or one the other.
    CutNodes,
    /// A node does not reach a member of etcd.
    CutNodeFromMember,
    /// A client does not reach a node, or that does not reach it.
    CutClientFromNode,
    /// A member of etcd does not reach the others.
    CutEtcd,
    /// Most members of etcd are killed or stopped.
    LoseQuorum,
    /// etcd forgets what was before.
    CompactEtcd,
    /// A host's links lose very many packets.
    LosePackets,
}

const FAULTS: [Fault; 11] = [
    Fault::KillNode,
    Fault::KillNodes,
    Fault::LoseNode,
    Fault::LeaveNode,
    Fault::StopNode,
    Fault::CutNode,
    Fault::StopEtcd,
    Fault::KillEtcd,
    Fault::StopClient,
    Fault::CutClient,
    Fault::StopNodeAndCutClient,
];

/// What ends a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mend {
    RunNode(usize),
    WakeNode(usize),
    JoinNode(usize),
    WakeEtcd(usize),
    RunEtcd(usize),
    WakeClient(usize),
    JoinClient(usize),
    /// Links that were cut, by their place in [`Cluster::cuts`], and whom that was about.
    Join(usize, Whom),
    /// A host's links are as before.
    LoseFewer(usize),
    /// Nothing is drained.
    Undrain,
}

/// Who has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Node(usize),
    Client(usize),
    Etcd(usize),
}

impl Mend {
    /// Who is not well until then.
    fn whom(self) -> Option<Whom> {
        match self {
            Mend::RunNode(node) | Mend::WakeNode(node) | Mend::JoinNode(node) => Some(Whom::Node(node)),
            Mend::WakeClient(client) | Mend::JoinClient(client) => Some(Whom::Client(client)),
            Mend::RunEtcd(member) | Mend::WakeEtcd(member) => Some(Whom::Etcd(member)),
            Mend::Join(_, whom) => Some(whom),
            Mend::LoseFewer(_) | Mend::Undrain => None,
        }
    }
}

/// Where processes run.
enum Place {
    /// All on this host. Each has a way to etcd, and nodes' tables are at these addresses.
    Here { nodes: Vec<Way>, clients: Vec<Way>, tables: Vec<Address> },
    /// Each on a host of its own: see `apart`.
    Apart(Net),
}

/// How often each thing happened.
type Counts = BTreeMap<String, u64>;

struct Cluster {
    folder: tempfile::TempDir,
    etcds: Vec<Etcd>,
    runtime: tokio::runtime::Runtime,
    store: EtcdStore,
    nodes: Vec<Option<Process>>,
    clients: Vec<Process>,
    /// Links that are cut, from host to host.
    cuts: Vec<Vec<(usize, usize)>>,
    /// The member of etcd that was seen to lead last.
    leader: Option<usize>,
    /// A rule that all processes break.
    rule: Option<String>,
    random: Random,
    /// When this round began.
    base: u64,
    round: u64,
    faults: BTreeSet<(Instant, Mend)>,
    /// As they were seen last.
    shards: Vec<ShardState>,
    counts: Counts,
    log: Vec<String>,
    /// Goes last: all processes have ended by then.
    place: Place,
}

impl Cluster {
    fn start(seed: u64, rule: Option<String>) -> Cluster {
        take_pace(1);
        let folder = tempfile::tempdir().unwrap();
        let tables = (0..NODES).map(|node| Address::Shm(folder.path().join(format!("n{node}.sock"))));
        let tables = tables.collect();
        Cluster::start_here(folder, tables, seed, rule)
    }

    /// On this host, with a node for each of these tables.
    fn start_here(
        folder: tempfile::TempDir,
        tables: Vec<Address>,
        seed: u64,
        rule: Option<String>,
    ) -> Cluster {
        let etcd = Etcd::start(folder.path());
        until("etcd has a leader", || etcd.leads() == Some(true));
        let port = etcd.endpoint().rsplit(':').next().unwrap().parse().unwrap();
        let ways = |n| (0..n).map(|_| Way::to(port)).collect();
        let nodes = tables.len();
        let place = Place::Here { nodes: ways(nodes), clients: ways(CLIENTS), tables };
        Cluster::start_at(place, folder, vec![etcd], nodes, seed, rule)
    }

    fn start_at(
        place: Place,
        folder: tempfile::TempDir,
        etcds: Vec<Etcd>,
        nodes: usize,
        seed: u64,
        rule: Option<String>,
    ) -> Cluster {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut options = EtcdOptions::new(etcds.iter().map(Etcd::endpoint));
        options.timeout = paced(options.timeout);
        let store = runtime.block_on(EtcdStore::connect(name(), options)).unwrap();
        runtime.block_on(store.init(&settings())).unwrap();
        let mut cluster = Cluster {
            folder,
            etcds,
            runtime,
            store,
            nodes: (0..nodes).map(|_| None).collect(),
            clients: Vec::new(),
            cuts: Vec::new(),
            leader: None,
            rule,
            random: Random(seed),
            base: now(),
            round: 0,
            faults: BTreeSet::new(),
            shards: Vec::new(),
            counts: Counts::new(),
            log: Vec::new(),
            place,
        };
        (0..nodes).for_each(|node| cluster.run_node(node));
        cluster.settle();
        cluster
    }

    fn tell(&mut self, what: String) {
        let line = format!("{:9.3} s: {what}", (now() - self.base) as f64 / 1e6);
        if std::env::var_os("ONEREAD_TRACE").is_some() {
            println!("{line}");
        }
        self.log.push(line);
    }

    fn count(&mut self, what: impl ToString, n: u64) {
        *self.counts.entry(what.to_string()).or_default() += n;
    }

    fn file(&self, name: String) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How the program is called that is a node or a client, and what it is told.
    fn program(&mut self, whom: Whom) -> (Vec<String>, Vec<(&'static str, String)>) {
        let (Whom::Node(number) | Whom::Client(number) | Whom::Etcd(number)) = whom;
        let exe = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let (program, etcd) = match (&self.place, whom) {
            (Place::Here { nodes, .. }, Whom::Node(_)) => (vec![exe], nodes[number].endpoint()),
            (Place::Here { clients, .. }, _) => (vec![exe], clients[number].endpoint()),
            (Place::Apart(net), _) => {
                let endpoints: Vec<String> = self.etcds.iter().map(Etcd::endpoint).collect();
                (net.program(apart::host(whom), &exe), endpoints.join(","))
            }
        };
        let mut variables = vec![
            ("ONEREAD_NUMBER", number.to_string()),
            ("ONEREAD_ETCD", etcd),
            ("ONEREAD_PACE", common::pace().to_string()),
        ];
        if matches!(whom, Whom::Node(_)) {
            variables.push(("ONEREAD_TABLE", self.table(number).to_string()));
            let others = verbs::as_others_say(&self.table(number)).map(|at| at.to_string());
            variables.extend(others.map(|at| ("ONEREAD_TABLE_FOR_OTHERS", at)));
        }
        variables.extend(self.rule.iter().map(|rule| ("ONEREAD_RULE", rule.clone())));
        if matches!(self.place, Place::Apart(_)) {
            variables.push(("ONEREAD_HOST", net::address(apart::host(whom))));
            let rate = apart::CLOCKS[self.random.below(apart::CLOCKS.len())];
            variables.push(("ONEREAD_CLOCK", rate.to_string()));
        }
        (program, variables)
    }

    /// Where a node's table is served.
    fn table(&self, node: usize) -> Address {
        match &self.place {
            Place::Here { tables, .. } => tables[node].clone(),
            Place::Apart(_) => apart::table(&net::address(apart::host(Whom::Node(node)))),
        }
    }

    /// Cuts a node or a client off from etcd, or ends that.
    fn cut(&self, whom: Whom, is_cut: bool) {
        match (&self.place, whom) {
            (Place::Here { nodes, .. }, Whom::Node(node)) => nodes[node].cut(is_cut),
            (Place::Here { clients, .. }, Whom::Client(client)) => clients[client].cut(is_cut),
            (Place::Here { .. }, Whom::Etcd(_)) => {}
            (Place::Apart(net), _) => {
                let host = apart::host(whom);
                for member in (0..self.etcds.len()).map(|member| apart::host(Whom::Etcd(member))) {
                    net.cut(host, member, is_cut);
                    net.cut(member, host, is_cut);
                }
            }
        }
    }

    fn run_node(&mut self, number: usize) {
        let _ = fs::remove_file(self.file(format!("n{number}.id")));
        let (program, mut variables) = self.program(Whom::Node(number));
        variables.push(("ONEREAD_NODE_FOLDER", self.folder.path().to_str().unwrap().into()));
        let child = spawn(&program, "node_process", &variables);
        self.nodes[number] = Some(Process { name: format!("node {number}"), child, is_stopped: false });
    }

    /// Starts a round's clients.
    fn run_clients(&mut self) {
        self.base = now();
        for number in 0..CLIENTS {
            let (program, mut variables) = self.program(Whom::Client(number));
            variables
                .push(("ONEREAD_CLIENT_FILE", self.file(format!("c{number}.json")).to_str().unwrap().into()));
            variables.push(("ONEREAD_SEED", self.random.next().to_string()));
            variables.push(("ONEREAD_ROUND", self.round.to_string()));
            variables.push(("ONEREAD_BASE", self.base.to_string()));
            let child = spawn(&program, "client_process", &variables);
            self.clients.push(Process { name: format!("client {number}"), child, is_stopped: false });
        }
    }

    /// Ends them. Returns what they saw.
    fn end_clients(&mut self) -> Vec<Event> {
        self.clients.iter_mut().for_each(|client| drop(client.child.stdin.take()));
        let mut events = Vec::new();
        for (number, mut client) in std::mem::take(&mut self.clients).into_iter().enumerate() {
            let status = wait(&mut client);
            assert!(status.success(), "client {number}: {status}");
            let file = self.file(format!("c{number}.json"));
            let seen: Vec<Event> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            fs::remove_file(file).unwrap();
            events.extend(seen);
        }
        events
    }

    /// The node that runs under this number.
    fn id(&self, number: usize) -> Option<NodeId> {
        let process = self.nodes[number].as_ref()?;
        let file = fs::read_to_string(self.file(format!("n{number}.id"))).ok()?;
        let (pid, id) = file.split_once(' ')?;
        (pid == process.child.id().to_string()).then(|| NodeId(id.parse().unwrap()))
    }

    /// What etcd says of shards.
    fn look(&mut self) -> bool {
        let Ok((_, read)) = self.runtime.block_on(self.store.read_config()) else { return false };
        let shards: Vec<ShardState> = read
            .entries
            .into_iter()
            .filter_map(|entry| match entry.value {
                Some(EtcdValue::Shard(state)) => Some(state),
                _ => None,
            })
            .collect();
        let both = || self.shards.iter().zip(&shards);
        let moves = both().filter(|(was, is)| was.primary != is.primary).count() as u64;
        let epochs = both().map(|(was, is)| is.epoch - was.epoch).sum();
        self.count("moves", moves);
        self.count("epochs", epochs);
        self.shards = shards;
        true
    }

    /// Whether each shard has its copies at nodes that run.
    fn is_whole(&mut self) -> bool {
        let Some(ids) = (0..self.nodes.len()).map(|number| self.id(number)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        self.look()
            && self.shards.len() == usize::from(SHARDS)
            && self.shards.iter().all(|state| {
                state.in_sync.len() >= usize::from(COPIES)
                    && state.primary.is_some_and(|primary| state.in_sync.has(primary))
                    && state.in_sync.iter().all(|node| ids.contains(&node))
            })
    }

    /// Mends everything when it is time, and waits until each shard has its copies.
    fn settle(&mut self) {
        while let Some((at, _)) = self.faults.last().copied() {
            self.pass(at.saturating_duration_since(Instant::now()));
        }
        let begun = Instant::now();
        while !self.is_whole() {
            if begun.elapsed() > paced(common::SOON) {
                panic!("each shard has its copies is not so: {:#?}", self.shards);
            }
            self.pass(Duration::from_millis(20));
        }
    }

    /// Lets time pass, and mends what is due.
    fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            self.nodes.iter_mut().flatten().chain(&mut self.clients).for_each(Process::check);
            let now = Instant::now();
            let due = self.faults.first().copied().filter(|(at, _)| *at <= now);
            if let Some((at, mend)) = due {
                self.faults.remove(&(at, mend));
                self.mend(mend);
                continue;
            }
            if now >= until {
                return;
            }
            thread::sleep((until - now).min(Duration::from_millis(20)));
        }
    }

    fn mend(&mut self, mend: Mend) {
        self.tell(format!("{mend:?}"));
        match mend {
            Mend::RunNode(node) => self.run_node(node),
            Mend::WakeNode(node) => self.nodes[node].as_mut().unwrap().stop(false),
            Mend::JoinNode(node) => self.cut(Whom::Node(node), false),
            Mend::WakeEtcd(member) => signal(self.etcds[member].pid(), Signal::CONT),
            Mend::RunEtcd(member) if self.etcds.len() == 1 => self.etcds[member].run(),
            // Its others may be away.
            Mend::RunEtcd(member) => self.etcds[member].launch(),
            Mend::WakeClient(client) => self.clients[client].stop(false),
            Mend::JoinClient(client) => self.cut(Whom::Client(client), false),
            Mend::Undrain => {
                let is_done = self.wish("nothing is drained".into(), |wishes| {
                    wishes.drained = NodeIds::default();
                });
                if is_done.is_none() {
                    self.mend_in(paced(Duration::from_secs(1)), Mend::Undrain);
                }
            }
            Mend::Join(..) | Mend::LoseFewer(_) => self.mend_apart(mend),
        }
    }

    /// Lets time pass until nothing is wrong with an etcd of one member: an operator can do nothing before.
    fn await_etcd(&mut self) {
        let is_wrong = |fault: &&(Instant, Mend)| fault.1.whom() == Some(Whom::Etcd(0));
        let last = self.faults.iter().rfind(is_wrong).filter(|_| self.etcds.len() == 1);
        if let Some((at, _)) = last.copied() {
            self.pass(at.saturating_duration_since(Instant::now()));
        }
        // It may have begun a moment ago.
        let begun = Instant::now();
        while self.etcds.len() == 1 && !self.look() && begun.elapsed() < paced(Duration::from_secs(5)) {
            self.pass(Duration::from_millis(20));
        }
    }

    /// What an operator does. It fails without etcd.
    fn wish(&mut self, what: String, change: impl Fn(&mut Wishes)) -> Option<()> {
        let is_done = self.runtime.block_on(self.store.change_wishes(change)).is_ok();
        self.tell(if is_done { what } else { format!("etcd was not told: {what}") });
        is_done.then_some(())
    }

    fn mend_in(&mut self, time: Duration, mend: Mend) {
        self.faults.insert((Instant::now() + time, mend));
    }

    /// One of so many that nothing is wrong with. Mostly it waits until nothing is wrong with the others either: who is
    /// well goes on.
    fn any(&mut self, all: usize, is_wrong: fn(Whom) -> Option<usize>) -> Option<usize> {
        let is_wrong = |mend: Mend| mend.whom().and_then(is_wrong);
        let last = self.faults.iter().rfind(|(_, mend)| is_wrong(*mend).is_some()).map(|(at, _)| *at);
        if let Some(at) = last.filter(|_| self.random.below(4) > 0) {
            self.pass(at.saturating_duration_since(Instant::now()));
        }
        let wrong: Vec<usize> = self.faults.iter().filter_map(|(_, mend)| is_wrong(*mend)).collect();
        let good: Vec<usize> = (0..all).filter(|number| !wrong.contains(number)).collect();
        (!good.is_empty()).then(|| good[self.random.below(good.len())])
    }

    fn any_node(&mut self) -> Option<usize> {
        self.any(self.nodes.len(), |whom| match whom {
            Whom::Node(node) => Some(node),
            _ => None,
        })
    }

    fn any_client(&mut self) -> Option<usize> {
        self.any(CLIENTS, |whom| match whom {
            Whom::Client(client) => Some(client),
            _ => None,
        })
    }

    /// A member of etcd. Of more than one, mostly that which leads.
    fn any_etcd(&mut self) -> Option<usize> {
        let member = self.any(self.etcds.len(), |whom| match whom {
            Whom::Etcd(member) => Some(member),
            _ => None,
        })?;
        let leader = if self.etcds.len() > 1 { self.see_leader() } else { None };
        Some(leader.filter(|_| self.random.below(4) > 0).unwrap_or(member))
    }

    /// Whether nothing is wrong with it.
    fn is_well(&self, whom: Whom) -> bool {
        self.faults.iter().all(|(_, mend)| mend.whom() != Some(whom))
    }

    /// Such a one that is primary of most shards, if nothing is wrong with it.
    fn any_primary(&mut self) -> Option<usize> {
        let node = self.any_node()?;
        let is_wrong = |fault: &(Instant, Mend)| matches!(fault.1.whom(), Some(Whom::Etcd(_)));
        if self.faults.iter().any(is_wrong) || !self.look() {
            return Some(node);
        }
        let served = |node: usize| {
            let id = self.id(node);
            self.shards.iter().filter(|state| id.is_some() && state.primary == id).count()
        };
        let is_good = |node: usize| self.is_well(Whom::Node(node));
        (0..self.nodes.len()).filter(|node| is_good(*node)).max_by_key(|node| served(*node))
    }

    /// Does it, if what it is about is not wrong already.
    fn fault(&mut self, fault: Fault) -> Option<()> {
        // Who keeps its memory may be killed at any time. Another copy must be there before memory is lost, and somebody
        // to hand over to.
        if matches!(fault, Fault::LoseNode | Fault::LeaveNode) {
            self.settle();
        }
        let long = self.random.between(200, 4_000);
        let short = self.random.between(0, 2_500);
        match fault {
            Fault::KillNode => {
                let node = self.any_node()?;
                self.tell(format!("node {node} is killed for {short:?}"));
                self.nodes[node].take()?.kill();
                self.mend_in(short, Mend::RunNode(node));
            }
            Fault::KillNodes => {
                for node in 0..self.nodes.len() {
                    let Some(process) = self.nodes[node].take() else { continue };
                    process.kill();
                    self.faults.retain(|(_, mend)| *mend != Mend::WakeNode(node));
                    let time = self.random.between(0, 1_500);
                    self.tell(format!("node {node} is killed for {time:?}"));
                    self.mend_in(time, Mend::RunNode(node));
                }
            }
            Fault::LoseNode => {
                let node = self.any_node()?;
                let id = self.id(node)?;
                self.tell(format!("node {node} is killed for {short:?}"));
                self.nodes[node].take()?.kill();
                self.mend_in(short, Mend::RunNode(node));
                // It may have been about to go on without another one: what it sent is written by now.
                if let Place::Apart(net) = &self.place {
                    until("all was sent", || net.has_sent(apart::host(Whom::Node(node))));
                }
                thread::sleep(paced(Duration::from_millis(200)));
                let has_others = |state: &ShardState| state.in_sync.iter().any(|other| other != id);
                if !self.look() || !self.shards.iter().all(has_others) {
                    self.tell("its memory is the last one and stays".into());
                    return None;
                }
                self.tell("its memory is lost".into());
                fs::remove_file(self.file(format!("n{node}.region"))).unwrap();
            }
            Fault::LeaveNode => {
                let node = self.any_primary()?;
                // Who is not told of the next primary READs the frozen copy.
                if let Some(client) = self.any_client().filter(|_| self.random.below(2) == 0) {
                    self.tell(format!("client {client} is cut off for {long:?}"));
                    self.cut(Whom::Client(client), true);
                    self.mend_in(long, Mend::JoinClient(client));
                }
                self.tell(format!("node {node} leaves for {short:?}"));
                let mut process = self.nodes[node].take()?;
                drop(process.child.stdin.take());
                let status = wait(&mut process);
                assert!(status.success(), "node {node}: {status}");
                self.tell(format!("node {node} is gone"));
                self.mend_in(short, Mend::RunNode(node));
            }
            Fault::StopNode | Fault::StopNodeAndCutClient => {
                let node = if fault == Fault::StopNode {
                    self.any_node()?
                } else {
                    let client = self.any_client()?;
                    let node = self.any_primary()?;
                    self.tell(format!("client {client} is cut off"));
                    self.cut(Whom::Client(client), true);
                    self.mend_in(long, Mend::JoinClient(client));
                    node
                };
                self.tell(format!("node {node} is stopped for {long:?}"));
                self.nodes[node].as_mut()?.stop(true);
                self.mend_in(long, Mend::WakeNode(node));
            }
            Fault::CutNode => {
                let node = self.any_node()?;
                self.tell(format!("node {node} is cut off for {long:?}"));
                self.cut(Whom::Node(node), true);
                self.mend_in(long, Mend::JoinNode(node));
            }
            Fault::StopEtcd | Fault::KillEtcd => {
                let member = self.any_etcd()?;
                self.stop_etcd(member, fault == Fault::KillEtcd, short);
            }
            Fault::StopClient => {
                let client = self.any_client()?;
                self.tell(format!("client {client} is stopped for {long:?}"));
                self.clients[client].stop(true);
                self.mend_in(long, Mend::WakeClient(client));
            }
            Fault::CutClient => {
                let client = self.any_client()?;
                self.tell(format!("client {client} is cut off for {long:?}"));
                self.cut(Whom::Client(client), true);
                self.mend_in(long, Mend::JoinClient(client));
            }
            Fault::MoveShard => {
                self.await_etcd();
                let shard = self.random.below(usize::from(SHARDS)) as u16;
                let node = self.random.below(self.nodes.len());
                let id = self.id(node)?;
                if self.random.below(3) == 0 {
                    self.wish("nothing is pinned".into(), |wishes| wishes.pinned.clear())?;
                } else {
                    let what = format!("shard {shard} is to be served by node {node}");
                    self.wish(what, |wishes| wishes.pinned.extend([(shard, id)]))?;
                }
            }
            Fault::DrainNode => {
                if self.faults.iter().any(|(_, mend)| *mend == Mend::Undrain) {
                    return None;
                }
                self.await_etcd();
                let node = self.any_primary()?;
                let id = self.id(node)?;
                self.wish(format!("node {node} is drained for {long:?}"), |wishes| {
                    wishes.drained = NodeIds::of(id);
                })?;
                self.mend_in(long, Mend::Undrain);
            }
            other => self.fault_apart(other, long)?,
        }
        self.count(format!("{fault:?}"), 1);
        Some(())
    }

    /// Kills a member of etcd for some time, or stops it.
    fn stop_etcd(&mut self, member: usize, is_killed: bool, time: Duration) {
        let how = if is_killed { "killed" } else { "stopped" };
        self.tell(format!("etcd {member} is {how} for {time:?}"));
        if is_killed {
            self.etcds[member].kill();
            self.mend_in(time, Mend::RunEtcd(member));
        } else {
            signal(self.etcds[member].pid(), Signal::STOP);
            self.mend_in(time, Mend::WakeEtcd(member));
        }
    }

    /// One round: faults one after the other, until the time is over and each has been. Returns what clients saw, and
    /// what is there in the end.
    fn round(&mut self, time: Duration, faults: &[Fault], last: &mut ClusterClient) -> Vec<Event> {
        self.settle();
        self.round += 1;
        self.run_clients();
        self.pass(paced(Duration::from_millis(300)));
        let begun = Instant::now();
        let (mut left, mut all_were) = (faults.to_vec(), false);
        while begun.elapsed() < time || !all_were {
            let fault = left.swap_remove(self.random.below(left.len()));
            self.fault(fault);
            self.see_leader();
            if left.is_empty() {
                (left, all_were) = (faults.to_vec(), true);
            }
            let pause = self.random.between(0, 1_200);
            self.pass(pause);
        }
        self.settle();
        let mut events = self.end_clients();
        self.until_copies_are_equal();
        for (key, (shard, name)) in (0..).zip(keys(self.round)) {
            let start = (now() - self.base) as u32;
            let value = number_of(last.get(name.as_bytes()).unwrap().as_deref());
            let (end, kind, outcome) = ((now() - self.base) as u32 + 1, Kind::Get, Outcome::Done);
            events.push(Event { shard, key, start, end, kind, value, outcome, is_void: false });
        }
        events.sort_by_key(|event| event.start);
        events
    }

    /// Each copy that is in sync has what the primary has.
    fn until_copies_are_equal(&mut self) {
        until("all copies are equal", || {
            if !self.is_whole() {
                return false;
            }
            let options = || ClientOptions::new().token(secret().token());
            let connect = |number| {
                let table = self.table(number);
                Client::connect_with(&verbs::as_others_say(&table).unwrap_or(table), options()).ok()
            };
            let tables = (0..self.nodes.len()).map(|number| Some((self.id(number)?, connect(number)?)));
            let Some(mut tables) = tables.collect::<Option<BTreeMap<NodeId, Client>>>() else { return false };
            keys(self.round).iter().all(|(shard, key)| {
                let in_sync = self.shards[usize::from(*shard)].in_sync.iter();
                let read = |node| tables.get_mut(&node)?.get(key.as_bytes()).ok();
                let copies: Vec<_> = in_sync.map(read).collect();
                copies.iter().all(|copy| copy.is_some() && *copy == copies[0])
            })
        });
    }

    /// A client that nothing happens to.
    fn client(&self) -> ClusterClient {
        let options = options(paced(common::SOON));
        let etcd = EtcdOptions::new(self.etcds.iter().map(Etcd::endpoint));
        ClusterClient::connect(name(), etcd, options).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = &self.log[self.log.len().saturating_sub(60)..];
            println!("round {}:\n{}", self.round, log.join("\n"));
        }
    }
}

/// Waits for its end.
fn wait(process: &mut Process) -> ExitStatus {
    let mut ended = None;
    until(&format!("{} has ended", process.name), || {
        ended = process.child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap()
}

// ---- what clients saw ----

/// What was known of a history at some time.
fn so_far(events: &[Event], time: u32) -> Vec<Event> {
    let known = events.iter().filter(|event| event.start <= time).map(|event| match event.end {
        end if end <= time => *event,
        _ => Event { end: NEVER, is_void: event.is_void || event.kind == Kind::Get, ..*event },
    });
    known.collect()
}

/// When a key's history ceased to have an order, and what was seen shortly before.
fn wrong(events: &[Event], key: u8) -> Option<String> {
    let shard = u16::from(key) % SHARDS;
    let of_owners = events.iter().filter(|event| event.key == key && event.kind == Kind::OwnerGone);
    let gone: BTreeMap<u64, u32> = of_owners.map(|event| (event.value, event.start)).collect();
    let is_left = |event: &&Event| {
        let is_got = event.key == key && event.kind == Kind::Get && !event.is_void;
        is_got && gone.get(&event.value).is_some_and(|since| *since < event.start)
    };
    if let Some(left) = events.iter().find(is_left) {
        return Some(format!("{left:?}, and its owner is gone since {}", gone[&left.value]));
    }
    if is_linearizable(events, shard, key) {
        return None;
    }
    let of_key: Vec<Event> = events.iter().filter(|event| event.key == key).copied().collect();
    let mut ends: Vec<u32> = of_key.iter().map(|event| event.end).collect();
    ends.sort_unstable();
    let first = ends.partition_point(|&end| is_linearizable(&so_far(&of_key, end), shard, key));
    let at = ends[first.min(ends.len() - 1)];
    let shortly = paced(TTL * 2).as_micros() as u32;
    let near = of_key.iter().filter(|event| event.start <= at && event.end >= at.saturating_sub(shortly));
    let near: Vec<String> = near.map(|event| format!("{event:?}")).collect();
    let tail = &near[near.len().saturating_sub(40)..];
    Some(format!("key {key} has no order from {at} on:\n{}", tail.join("\n")))
}

/// The longest time without a success of such operations by shard, and when it began, in microseconds.
fn silence(events: &[Event], is_meant: impl Fn(&Event) -> bool) -> Vec<(u32, u32)> {
    let mut last = vec![(0, (0, 0)); usize::from(SHARDS)];
    let is_good = |event: &&Event| event.end != NEVER && !event.is_void && is_meant(event);
    let mut ended: Vec<&Event> = events.iter().filter(is_good).collect();
    ended.sort_by_key(|event| event.end);
    for event in ended {
        let (since, longest) = &mut last[usize::from(event.shard)];
        (*since, *longest) = (event.end, (*longest).max((event.end - *since, *since)));
    }
    last.into_iter().map(|(_, longest)| longest).collect()
}

/// Counts what became of operations.
fn count(events: &[Event], counts: &mut Counts) {
    let got: BTreeSet<u64> =
        events.iter().filter(|event| event.kind == Kind::Get).map(|event| event.value).collect();
    for event in events {
        if matches!(event.kind, Kind::Swap(_)) && event.value == 0 {
            // No client's: an entry may have come to its end, or gone with its owner.
            *counts.entry("ends".into()).or_default() += 1;
            continue;
        }
        if event.kind == Kind::OwnerGone {
            let was_seen = u64::from(got.contains(&event.value));
            *counts.entry("values of owners that are gone".into()).or_default() += was_seen;
            continue;
        }
        let kind = match event.kind {
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Insert => "insert",
            Kind::Swap(_) => "swap",
            Kind::Remove => "remove",
            Kind::Expire => "expire",
            Kind::OwnerGone => "owner gone",
        };
        let what = match event.outcome {
            _ if event.end == NEVER => "unknown".into(),
            _ if event.is_void && event.kind == Kind::Get => "failed GETs".into(),
            _ if event.is_void => "not done".into(),
            Outcome::Done => kind.into(),
            other => format!("{kind}: {other:?}"),
        };
        *counts.entry(what).or_default() += 1;
        *counts.entry("operations".into()).or_default() += 1;
    }
}

/// Two at a time would be too much for a small machine.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ONEREAD_SECONDS` is how long the long run takes, `ONEREAD_SEED` chooses faults, `ONEREAD_TRACE=1` prints them.
#[test]
fn histories_have_an_order() {
    if !has_etcd() {
        return;
    }
    let _one = one_at_a_time();
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let time = Duration::from_secs(given("ONEREAD_SECONDS").filter(|_| is_long).unwrap_or(ROUND.as_secs()));
    let seed = given("ONEREAD_SEED").unwrap_or_else(now);
    println!("ONEREAD_SEED={seed}");
    Cluster::start(seed, given("ONEREAD_RULE")).run(time, &FAULTS, is_long);
}

impl Cluster {
    /// Rounds, until the time is over: what clients saw of each key has an order, and everything has happened.
    fn run(&mut self, time: Duration, faults: &[Fault], is_long: bool) {
        let mut last = self.client();
        let (mut silent, mut changeless) = (vec![(0, 0); usize::from(SHARDS)], (0, 0));
        let begun = Instant::now();
        while begun.elapsed() < time {
            let events = self.round(paced(ROUND).min(time), faults, &mut last);
            count(&events, &mut self.counts);
            for (shard, longest) in silence(&events, |_| true).into_iter().enumerate() {
                self.tell(format!(
                    "shard {shard}: longest time without a success, since, in us: {longest:?}"
                ));
                silent[shard] = longest.max(silent[shard]);
            }
            changeless =
                silence(&events, |event| event.kind != Kind::Get).into_iter().fold(changeless, Ord::max);
            for key in 0..KEYS {
                if let Some(why) = wrong(&events, key) {
                    panic!("{why}");
                }
            }
            if is_long {
                println!("{:?} after {} rounds: {:?}", begun.elapsed(), self.round, self.counts);
            }
        }
        let silent: Vec<u32> = silent.into_iter().map(|(longest, _)| longest / 1_000).collect();
        if let Place::Apart(net) = &self.place {
            println!("packets carried, lost, cut off: {:?}", net.packets());
        }
        println!(
            "{:?}; longest time without a success by shard, in ms: {silent:?}; without a change: {}",
            self.counts,
            changeless.0 / 1_000
        );
        let at_least = |what: &str, least: u64| {
            let n = self.counts.get(what).copied().unwrap_or(0);
            assert!(n >= least, "{what}: {n} times, less than {least}");
        };
        for fault in faults {
            at_least(&format!("{fault:?}"), 1);
        }
        at_least("moves", 4);
        at_least("values of owners that are gone", 1);
        for kind in ["get", "put", "insert", "swap", "remove"] {
            at_least(kind, 50);
        }
    }

    /// Rounds of these faults, until a history has no order: a broken rule is noticed.
    #[cfg(feature = "faults")]
    fn run_until_wrong(&mut self, faults: &[Fault], within: Duration) {
        let rule = self.rule.clone().unwrap();
        let mut last = self.client();
        let begun = Instant::now();
        while begun.elapsed() < within {
            let events = self.round(paced(Duration::from_secs(8)), faults, &mut last);
            count(&events, &mut self.counts);
            if let Some(why) = (0..KEYS).find_map(|key| wrong(&events, key)) {
                println!("{rule} was found after {:?} by {:?}: {why}", begun.elapsed(), self.counts);
                return;
            }
        }
        panic!("{rule} was not found in {:?}: {:?}", begun.elapsed(), self.counts);
    }
}

/// Rules that this test can break.
#[cfg(feature = "faults")]
const BROKEN: [oneread_cluster::faults::Rule; 13] = {
    use oneread_cluster::faults::Rule::*;
    [
        LeaseTooLong,
        LeaseFromSecondRead,
        AnyNewAnswer,
        NoWord,
        VisibleFirst,
        AnsweredFirst,
        LeftOutWithoutEtcd,
        TakenWhileItBeats,
        NoTtl,
        NoWaitAfterHandOver,
        OpenAtStart,
        OldEpochAtStart,
        OwnersNotWalked,
    ]
};

/// The seed of a run, and the rule that is broken in it.
#[cfg(feature = "faults")]
fn broken_rule() -> (u64, String) {
    let seed = given("ONEREAD_SEED").unwrap_or_else(now);
    let rule = given("ONEREAD_RULE").unwrap_or("LeaseTooLong".to_owned());
    println!("ONEREAD_SEED={seed} {rule}");
    (seed, rule)
}

/// A broken rule is noticed: the test sees what it is to see.
#[cfg(feature = "faults")]
#[test]
fn a_broken_rule_is_found() {
    if !has_etcd() {
        return;
    }
    let _one = one_at_a_time();
    let (seed, rule) = broken_rule();
    let faults: &[Fault] =
        if given::<String>("ONEREAD_FAULTS").is_some() { &FAULTS } else { &[Fault::StopNodeAndCutClient] };
    Cluster::start(seed, Some(rule)).run_until_wrong(faults, common::SOON);
}
