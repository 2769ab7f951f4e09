//! Nodes over a real etcd, in one process.

mod common;

use common::{Etcd, config, has_etcd, name, node, until};
use oneread::{LeftCause, OwnerOptions, PutMode, PutOptions, SwapOutcome};
use oneread_cluster::client::{
    ClusterClient, ClusterError, ClusterFeed, ClusterFeedItem, ClusterFeedOptions, ClusterOptions,
    ClusterScan,
};
use oneread_cluster::core::shard::Role;
use oneread_cluster::core::state::{ClusterConfig, NodeId};
use oneread_cluster::etcd::{EtcdError, EtcdStore};
use oneread_cluster::node::{ClusterNode, NodeConfig, NodeError};
use oneread_cluster::wire::{Bounds, Identity, NodeConnection, NodeStatus, Question, Said, Secret, VERSION};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Connections live in the runtime in which they were made.
fn block<R>(f: impl Future<Output = R>) -> R {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    let multi =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    RUNTIME.get_or_init(multi).block_on(f)
}

const TTL: Duration = Duration::from_millis(1_000);

struct Cluster {
    folder: tempfile::TempDir,
    etcd: Etcd,
    nodes: Vec<Option<ClusterNode>>,
}

impl Cluster {
    fn start(nodes: usize, shards: u16, replicas: u8) -> Cluster {
        let mut cluster = Cluster::none(shards, replicas);
        (0..nodes).for_each(|number| cluster.run(number));
        cluster
    }

    fn none(shards: u16, replicas: u8) -> Cluster {
        Cluster::of(config(shards, replicas, TTL))
    }

    fn of(config: ClusterConfig) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(folder.path());
        block(async {
            let store = EtcdStore::connect(name(), etcd.options()).await.unwrap();
            store.init(&config).await.unwrap();
        });
        Cluster { folder, etcd, nodes: Vec::new() }
    }

    fn run(&mut self, number: usize) {
        self.run_as(number, node(self.folder.path(), number, self.etcd.options()));
    }

    /// A small one, where entries leave so that others find room.
    fn run_evicting(&mut self, number: usize) {
        let mut config = node(self.folder.path(), number, self.etcd.options());
        config.server.table = config.server.table.size(oneread::TableSize::up_to(8 << 20));
        config.server.evict = Some(oneread::Evict::Clock);
        self.run_as(number, config);
    }

    /// One whose entries may end.
    fn run_with_lives(&mut self, number: usize, ttl: Option<Duration>) {
        let mut config = node(self.folder.path(), number, self.etcd.options());
        config.server.table = config.server.table.life(true);
        config.server.ttl = ttl;
        self.run_as(number, config);
    }

    fn run_as(&mut self, number: usize, config: NodeConfig) {
        let node = ClusterNode::start(config).unwrap();
        self.nodes.resize_with(self.nodes.len().max(number + 1), || None);
        self.nodes[number] = Some(node);
    }

    fn client(&self) -> ClusterClient {
        let mut options = ClusterOptions::default();
        options.deadline = common::SOON;
        ClusterClient::connect(name(), self.etcd.options(), options).unwrap()
    }

    fn id(&self, number: usize) -> NodeId {
        self.nodes[number].as_ref().unwrap().id()
    }

    /// Waits until each shard has so many copies.
    fn until_copies(&self, copies: usize) {
        let (states, shards) = (|| self.shards(), self.shards().len());
        until("each shard has its copies", || {
            let states = states();
            states.len() == shards && states.iter().all(|state| state.in_sync.len() >= copies)
        });
    }

    /// Waits until a node has a copy of each shard.
    fn until_has_copies(&self, number: usize) {
        let newcomer = self.id(number);
        let has_copies = || self.shards().iter().all(|state| state.in_sync.has(newcomer));
        until("the newcomer has copies", has_copies);
    }

    /// What a node says of itself.
    fn status(&self, number: usize) -> NodeStatus {
        let node = self.nodes[number].as_ref().unwrap();
        block(async {
            let store = EtcdStore::connect(name(), self.etcd.options()).await.unwrap();
            let bounds = Bounds::of(&store.read_config().await.unwrap().0);
            let who = Identity::new(name(), None, Secret::default(), bounds);
            let mut connection = NodeConnection::connect(node.requests(), who, node.id()).await.unwrap();
            connection.send(&Said::Ask(Question::Status)).await.unwrap();
            match connection.next().await.unwrap() {
                Said::Status(status) => status,
                other => panic!("{other:?}"),
            }
        })
    }

    /// The entries that a node's table has of the cluster's keys, by key.
    fn entries(&self, number: usize) -> HashMap<Vec<u8>, Vec<u8>> {
        let index = self.nodes[number].as_ref().unwrap().server().index();
        let (mut cursor, mut keys) = (oneread::embedded::KeyCursor::default(), Vec::new());
        while index.scan_keys(&mut cursor, |key| keys.push(key.to_vec())) {}
        let value = |key: &[u8]| {
            let mut value = Vec::new();
            index.reader().get_into(key, &mut value).unwrap();
            value
        };
        let own = |key: &Vec<u8>| [&b"page"[..], b"notes", b"boot"].iter().any(|own| key.ends_with(own));
        keys.into_iter().filter(|key| !own(key)).map(|key| (key.clone(), value(&key))).collect()
    }

    fn shards(&self) -> Vec<oneread_cluster::core::state::ShardState> {
        block(async {
            let store = EtcdStore::connect(name(), self.etcd.options()).await.unwrap();
            let (_, read) = store.read_config().await.unwrap();
            read.shards().map(|(_, state)| state.clone()).collect()
        })
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

#[test]
fn calls_do_what_they_say() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::start(2, 8, 2);
    let mut client = cluster.client();
    assert_eq!(client.get(b"key").unwrap(), None);
    client.put(b"key", b"one").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"one"[..]));
    assert!(!client.insert(b"key", b"two").unwrap());
    assert!(client.insert(b"new", b"two").unwrap());
    assert_eq!(client.compare_and_swap(b"key", b"two", b"three").unwrap(), SwapOutcome::Differs);
    assert_eq!(client.compare_and_swap(b"key", b"one", b"three").unwrap(), SwapOutcome::Swapped);
    assert_eq!(client.compare_and_swap(b"none", b"one", b"three").unwrap(), SwapOutcome::Absent);
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"three"[..]));
    assert!(client.remove(b"key").unwrap());
    assert!(!client.remove(b"key").unwrap());
    assert_eq!(client.get(b"key").unwrap(), None);
    for wrong in [&b""[..], &[0; 65], b"\0oneread\0page"] {
        assert!(matches!(client.put(wrong, b"value"), Err(ClusterError::Invalid { .. })), "{wrong:?}");
        assert!(matches!(client.get(wrong), Err(ClusterError::Invalid { .. })), "{wrong:?}");
    }
    assert!(matches!(client.put(b"key", &[0; 4_097]), Err(ClusterError::Invalid { .. })));

    let entries: Vec<_> =
        (0..1_000u32).map(|number| (key(number), vec![number as u8; number as usize])).collect();
    assert!(client.put_many(&entries).into_iter().all(|ended| ended.is_ok()));
    let keys: Vec<_> = entries.iter().map(|(key, _)| key).collect();
    let values = client.get_many(&keys).unwrap();
    assert!(values.iter().zip(&entries).all(|(value, (_, put))| value.as_ref() == Some(put)));
    // Another handle, whose changes are done once.
    let mut other = client.clone().exactly_once(true);
    assert!(other.insert(b"once", b"value").unwrap());
    assert!(!other.insert(b"once", b"value").unwrap());
    assert_eq!(other.get_advisory(b"once").unwrap().as_deref(), Some(&b"value"[..]));
    // A client of a node's table reads, and changes nothing.
    let address = cluster.nodes[0].as_ref().unwrap().server().address().clone();
    let mut table = oneread::Client::connect(&address).unwrap();
    assert!(matches!(table.put(b"key", b"value"), Err(oneread::MutateError::ReadOnly { .. })));
}

/// Batches of GETs over a wire are READ at all nodes at once.
#[test]
fn batches_over_a_wire() {
    if !has_etcd() {
        return;
    }
    // With 8 shards, one node in nine cases or so would be the first for none.
    let mut cluster = Cluster::none(32, 1);
    for number in 0..3 {
        let anywhere = "tcp://127.0.0.1:0".parse().unwrap();
        cluster
            .run_as(number, common::node_at(anywhere, cluster.folder.path(), number, cluster.etcd.options()));
    }
    let mut client = cluster.client();
    let entries: Vec<_> = (0..1_000u32).map(|number| (key(number), vec![1; number as usize])).collect();
    assert!(client.put_many(&entries).into_iter().all(|ended| ended.is_ok()));
    until("each node serves something", || {
        cluster.shards().iter().filter_map(|state| state.primary).collect::<HashSet<_>>().len() == 3
    });
    let keys: Vec<_> = (0..2_000u32).map(key).collect();
    let values = client.get_many(&keys).unwrap();
    for (number, value) in values.into_iter().enumerate() {
        assert_eq!(value, entries.get(number).map(|(_, put)| put.clone()), "{number}");
    }
}

/// A scan shows all keys, while shards move and a primary is gone for good: some of them twice, perhaps.
#[test]
fn scans_show_all() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(3, 8, 2);
    let mut client = cluster.client();
    let entries: Vec<_> = (0..5_000u32).map(|number| (key(number), number.to_le_bytes())).collect();
    assert!(client.put_many(&entries).into_iter().all(|ended| ended.is_ok()));
    // Its outcome is an entry of the table, and no key.
    client.clone().exactly_once(true).put(b"\xffonce", b"value").unwrap();
    cluster.until_copies(2);
    let scanned = |scan: ClusterScan<'_>, mut then: Box<dyn FnMut() + '_>| {
        let (mut found, mut count) = (HashMap::new(), 0);
        for key in scan {
            let key = key.unwrap();
            assert_eq!(found.insert(key.key, key.value.clone()).unwrap_or(key.value.clone()), key.value);
            count += 1;
            if count == 500 {
                then();
            }
        }
        (found, count)
    };
    let (found, count) = scanned(client.scan(), Box::new(|| {}));
    assert_eq!((found.len(), count), (5_001, 5_001));
    assert!(found.values().all(Option::is_none));
    let (found, _) = scanned(client.scan().prefix(&[0, 0, 1]).values(true), Box::new(|| {}));
    assert_eq!(found.len(), 256);
    assert!(found.iter().all(|(key, value)| value.as_ref().is_some_and(|value| value.iter().rev().eq(key))));
    assert_eq!(client.scan().prefix(&[0; 65]).count(), 0);
    // The primary of some shards is gone in the middle of it.
    let gone = client.primary(0).unwrap();
    let goes =
        cluster.nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.id() == gone)).unwrap();
    let nodes = &mut cluster.nodes;
    let (found, count) = scanned(client.scan().values(true), Box::new(|| drop(nodes[goes].take())));
    assert_eq!(found.len(), 5_001, "{count} were shown");
}

/// CL9: once the wait after a hand-over is over, etcd has it so: a takeover from then on need not wait again.
#[test]
fn a_wait_is_over_in_etcd_too() {
    if !has_etcd() {
        return;
    }
    // A standby that is slow is left out, and then there is nobody to hand over to.
    let handed_over = (0..20).find_map(|_| {
        let mut cluster = Cluster::start(2, 4, 2);
        cluster.until_copies(2);
        assert_eq!(cluster.nodes[0].take().unwrap().stop(common::SOON), 0);
        let next = cluster.id(1);
        let is_so = cluster.shards().iter().all(|state| state.primary == Some(next));
        is_so.then_some(cluster)
    });
    let cluster = handed_over.expect("a node that stops hands its shards over");
    until("no shard waits", || cluster.shards().iter().all(|state| !state.waits));
}

/// The only copies are lost with their node's memory. The shards begin anew, empty, also where an old copy is left.
#[test]
fn lost_shards_begin_anew() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    let mut client = cluster.client();
    let put_all = |client: &mut ClusterClient| {
        (0..100u32).for_each(|number| client.put(&key(number), &number.to_le_bytes()).unwrap());
    };
    put_all(&mut client);
    cluster.until_copies(2);
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    assert!(block(store.lost()).unwrap().shards.is_empty(), "all live");
    // The second has old copies by the time at which the first is gone, and is in sync with nothing.
    drop(cluster.nodes[1].take());
    let (first, second) = (cluster.id(0), cluster.folder.path().join("n0.region"));
    until("the first goes on alone", || {
        put_all(&mut client);
        cluster.shards().iter().all(|state| state.in_sync.iter().eq([first]))
    });
    drop(cluster.nodes[0].take());
    std::fs::remove_file(second).unwrap();
    cluster.run(1);
    let lost = block(store.lost()).unwrap();
    assert_eq!(lost.shards.len(), 4, "{lost:?}");
    block(store.begin_anew(&lost)).unwrap();
    assert!(matches!(block(store.begin_anew(&lost)), Err(EtcdError::NotLost { shard: 0 })));
    assert_eq!(client.get(&key(1)).unwrap(), None, "the old copy is gone");
    put_all(&mut client);
    assert_eq!(client.get(&key(1)).unwrap().as_deref(), Some(&1u32.to_le_bytes()[..]));
    cluster.run(0);
    assert_ne!(cluster.id(0), first);
    cluster.until_copies(2);
    block(store.forget(first)).unwrap();
    assert!(block(store.lost()).unwrap().shards.is_empty());
}

/// A node joins, one is stopped, one is dropped without notice and comes back: nothing is missing.
/// What a feed tells until it has told of this key: a copy of what is there, and how many gaps there were.
fn copy_until(feed: &mut ClusterFeed, copy: &mut HashMap<Vec<u8>, Vec<u8>>, last: &[u8]) -> usize {
    let mut gaps = 0;
    loop {
        match feed.next(common::SOON).unwrap().expect("the feed goes on") {
            ClusterFeedItem::Came { key, value, .. } => {
                assert_eq!(copy.insert(key.to_vec(), value.unwrap().to_vec()), None);
                if key == last {
                    return gaps;
                }
            }
            ClusterFeedItem::Replaced { key, value, .. } => {
                assert!(copy.insert(key.to_vec(), value.unwrap().to_vec()).is_some());
            }
            ClusterFeedItem::Left { key, cause, .. } => {
                assert_eq!(cause, oneread::LeftCause::Removed);
                assert!(copy.remove(&key[..]).is_some());
            }
            ClusterFeedItem::Gap { shard, .. } => {
                gaps += 1;
                copy.retain(|key, _| feed.shard_of(key) != shard);
            }
            _ => unreachable!(),
        }
    }
}

/// A follower hears of every change, in the order of each key, over moves and a node that vanishes; also one that was
/// away. One who is away for too long is told.
#[test]
fn followers_hear_of_all_changes() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(3, 4, 2);
    let (client, mut writer) = (cluster.client(), cluster.client());
    cluster.until_copies(2);
    writer.put(b"before", b"is not told").unwrap();
    let options = || ClusterFeedOptions::new().values(true);
    let mut feed = client.changes(options()).unwrap();
    let position = serde_json::to_string(feed.position()).unwrap();
    let (mut copy, mut truth) = (HashMap::new(), HashMap::new());
    let mut change_all = |from: u32, truth: &mut HashMap<Vec<u8>, Vec<u8>>| {
        for number in from..from + 300 {
            let value = number.to_le_bytes();
            writer.put(&key(number % 100), &value).unwrap();
            truth.insert(key(number % 100).to_vec(), value.to_vec());
            if number % 7 == 0 && writer.remove(&key(number / 7 % 100)).unwrap() {
                truth.remove(&key(number / 7 % 100)[..]);
            }
        }
    };
    // The last one of each shard comes at last.
    let end = |round: &str| {
        let mut writer = client.clone();
        let shard = |number: u32| client.config().shard_of(format!("{round} {number}").as_bytes());
        let all = (0..4).map(|wanted| (0..).find(|number| shard(*number) == wanted).unwrap());
        let keys: Vec<Vec<u8>> = all.map(|number| format!("{round} {number}").into_bytes()).collect();
        keys.iter().for_each(|key| assert!(writer.insert(key, b"the end").unwrap()));
        keys
    };
    let hear = |feed: &mut ClusterFeed, copy: &mut HashMap<Vec<u8>, Vec<u8>>, keys: &[Vec<u8>]| {
        for key in keys {
            if !copy.contains_key(key) {
                assert_eq!(copy_until(feed, copy, key), 0, "nothing is missing");
            }
        }
    };
    change_all(0, &mut truth);
    let first = end("one");
    hear(&mut feed, &mut copy, &first);
    // One that was away since the beginning.
    let position = serde_json::from_str(&position).unwrap();
    let (mut from_then, mut late) = (client.changes(options().from(position)).unwrap(), HashMap::new());
    hear(&mut from_then, &mut late, &first);
    assert_eq!((&late, from_then.position()), (&copy, feed.position()));
    // Some of what they follow is served by others from now on, twice.
    for (number, round) in [(0, "two"), (1, "three")] {
        cluster.until_copies(2);
        let node = cluster.nodes[number].take().unwrap();
        match number {
            0 => drop(node.stop(Duration::from_secs(20))),
            _ => drop(node),
        }
        change_all(300 * (number as u32 + 1), &mut truth);
        let keys = end(round);
        truth.extend(keys.iter().map(|key| (key.clone(), b"the end".to_vec())));
        hear(&mut feed, &mut copy, &keys);
        hear(&mut from_then, &mut late, &keys);
    }
    truth.extend(first.iter().map(|key| (key.clone(), b"the end".to_vec())));
    assert_eq!(copy, truth);
    assert_eq!(late, truth);
    assert_eq!(feed.position(), from_then.position());
    assert_eq!(feed.next(Duration::from_millis(50)).unwrap(), None);
    // Who begins with all keys.
    let mut all = client.changes(options().keys(true)).unwrap();
    let mut shown = HashMap::new();
    loop {
        match all.next(common::SOON).unwrap().unwrap() {
            ClusterFeedItem::Key { key, value, .. } => {
                drop(shown.insert(key.to_vec(), value.unwrap().to_vec()))
            }
            item => break assert_eq!(item, ClusterFeedItem::Joined { shard: None }),
        }
    }
    assert_eq!(shown.remove(&b"before"[..]).as_deref(), Some(&b"is not told"[..]));
    assert_eq!(shown, truth);
    // Without values; only some keys.
    let mut some = client.changes(ClusterFeedOptions::new().prefix("one ")).unwrap();
    let mut writer = client.clone();
    writer.put(b"other", b"1").unwrap();
    writer.put(&first[0], b"2").unwrap();
    let item = some.next(common::SOON).unwrap();
    let Some(ClusterFeedItem::Replaced { key, value: None, shard, at }) = item else { panic!("{item:?}") };
    assert_eq!((key.as_ref(), some.position().of(shard)), (&first[0][..], Some(at)));
    // A position of another cluster.
    let other = Cluster::start(1, 2, 1);
    let wrong = other.client().changes(options().from(feed.position().clone()));
    assert!(matches!(wrong, Err(ClusterError::Position)));
}

/// Who is away for longer than the memory of changes reaches, or while all that know them start again, is told of a gap.
#[test]
fn followers_are_told_of_gaps() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(1, 1);
    let mut config = node(cluster.folder.path(), 0, cluster.etcd.options());
    config.server.feed_bytes = 2_000;
    cluster.run_as(0, config);
    let (client, mut writer) = (cluster.client(), cluster.client());
    let mut feed = client.changes(ClusterFeedOptions::new()).unwrap();
    let first = feed.position().clone();
    // Numbers of changes, up to that of this key; 0 for a gap, with the number before what follows.
    let told = |feed: &mut ClusterFeed, last: u32| {
        let mut numbers = Vec::new();
        loop {
            match feed.next(common::SOON).unwrap().unwrap() {
                ClusterFeedItem::Gap { to, .. } => numbers.extend([0, to.number]),
                ClusterFeedItem::Came { at, key: came, .. } => {
                    numbers.push(at.number);
                    if came[..] == key(last) {
                        return numbers;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    (0..100).for_each(|number| writer.put(&key(number), b"value").unwrap());
    let numbers = told(&mut client.changes(ClusterFeedOptions::new().from(first)).unwrap(), 99);
    let kept = numbers.len() as u64 - 2;
    assert!((5..50).contains(&kept), "{numbers:?}");
    assert_eq!(numbers[1..], Vec::from_iter(100 - kept..=100), "a gap, and then one after the other");
    // This one asks all the time. It may be too slow as well, and misses no more than it is told of.
    let numbers = told(&mut feed, 99);
    let mut last = 0;
    for two in [&[0], &numbers[..]].concat().windows(2) {
        // After a gap it may be any that is later.
        let is_next = two[1] == last + 1 || two[0] == 0 && two[1] > last;
        assert!(two[1] == 0 || is_next, "{numbers:?}");
        last = last.max(two[1]);
    }
    assert!(numbers[0] <= 1 && numbers.last() == Some(&100));
    cluster.nodes[0].take().unwrap().stop(Duration::ZERO);
    cluster.run(0);
    writer.put(&key(100), b"value").unwrap();
    assert_eq!(told(&mut feed, 100), [0, 0, 1]);
    // What is there, of this shard: each key once, and then what becomes of them.
    feed.resync(Some(0));
    feed.resync(Some(0));
    let mut shown = HashSet::new();
    loop {
        match feed.next(common::SOON).unwrap().unwrap() {
            ClusterFeedItem::Key { shard: 0, key, value: None } => assert!(shown.insert(key)),
            item => break assert_eq!(item, ClusterFeedItem::Joined { shard: Some(0) }),
        }
    }
    assert_eq!(shown.len(), 101);
    assert_eq!(feed.next(Duration::ZERO).unwrap(), None);
}

#[test]
fn nodes_come_and_go() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 8, 2);
    let mut client = cluster.client();
    for number in 0..1_000u32 {
        client.put(&key(number), &number.to_le_bytes()).unwrap();
    }
    let all_are_there = |client: &mut ClusterClient| {
        for number in 0..1_000u32 {
            let value = client.get(&key(number)).unwrap();
            assert_eq!(value.as_deref(), Some(&number.to_le_bytes()[..]), "{number}");
        }
    };
    all_are_there(&mut client);
    cluster.run(2);
    let newcomer = cluster.id(2);
    until("the newcomer has a copy", || cluster.shards().iter().any(|state| state.in_sync.has(newcomer)));
    all_are_there(&mut client);
    cluster.until_copies(2);
    // One that is told to stop hands over what it serves.
    let (first, left) = (cluster.id(0), cluster.nodes[0].take().unwrap().stop(common::SOON));
    assert_eq!(left, 0);
    // Those that others have a copy of: a standby that is slow is left out.
    let kept: Vec<_> = cluster.shards().into_iter().filter(|state| state.primary == Some(first)).collect();
    assert!(kept.iter().all(|state| state.in_sync.len() == 1), "{kept:?}");
    if kept.is_empty() {
        all_are_there(&mut client);
    }
    cluster.run(0);
    assert_eq!(cluster.id(0), first, "its region file makes it the same node");
    cluster.until_copies(2);
    // One that goes without a word is missed for a TTL.
    let second = cluster.id(1);
    drop(cluster.nodes[1].take());
    until("others have taken over", || cluster.shards().iter().all(|state| state.primary != Some(second)));
    all_are_there(&mut client);
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    // It is gone for good, once nobody has it for a standby any more.
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    until("it is forgotten", || {
        let number = client.clone().shard_of(b"key");
        client.put(&key(number.into()), b"so that a standby that is silent is noticed").unwrap();
        (0..100u32).for_each(|number| client.put(&key(number), &number.to_le_bytes()).unwrap());
        block(store.forget(second)).is_ok()
    });
    assert!(!client.nodes().is_empty());
}

/// The only copy's server is gone. Who has its memory reads on, if an old value will do.
/// CL22: a region file from a backup lacks what was put since, and nobody would know.
#[test]
fn an_old_region_file_is_refused() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(1, 4, 1);
    let mut client = cluster.client();
    client.put(b"key", b"old").unwrap();
    let (first, region) = (cluster.id(0), cluster.folder.path().join("n0.region"));
    cluster.nodes[0].take().unwrap().stop(Duration::ZERO);
    let backup = std::fs::read(&region).unwrap();
    cluster.run(0);
    client.put(b"key", b"new").unwrap();
    cluster.nodes[0].take().unwrap().stop(Duration::ZERO);
    let newest = std::fs::read(&region).unwrap();
    std::fs::write(&region, &backup).unwrap();
    let refused = ClusterNode::start(node(cluster.folder.path(), 0, cluster.etcd.options()));
    let refused = refused.err();
    assert!(matches!(refused, Some(NodeError::OldCopy { id, .. }) if id == first), "{refused:?}");
    std::fs::write(&region, &newest).unwrap();
    cluster.run(0);
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn memory_is_read_when_its_server_is_gone() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(1, 4, 1);
    let mut options = ClusterOptions::default();
    options.deadline = common::SOON;
    options.tables = options.tables.lease(Duration::ZERO);
    let mut client = ClusterClient::connect(name(), cluster.etcd.options(), options).unwrap();
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    drop(cluster.nodes[0].take());
    until("the lease ends", || !client.has_lease(b"key"));
    assert_eq!(client.get_advisory(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.get_advisory(b"none").unwrap(), None);
}

/// While etcd is away, leases end and nobody is read; behind that all goes on.
#[test]
fn etcd_goes_and_comes_back() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    let mut client = cluster.client();
    client.put(b"key", b"value").unwrap();
    cluster.until_copies(2);
    cluster.etcd.kill();
    let mut options = ClusterOptions::default();
    options.deadline = Duration::from_millis(500);
    assert!(matches!(
        ClusterClient::connect(name(), cluster.etcd.options(), options),
        Err(ClusterError::Etcd(EtcdError::Late { .. } | EtcdError::Call { .. }))
    ));
    until("the last lease ends", || {
        let begun = std::time::Instant::now();
        assert_eq!(client.get_advisory(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        let primary = client.primary(client.shard_of(b"key"));
        let has_lease = client.clone().has_lease(b"key");
        assert!(primary.is_some() && begun.elapsed() < common::SOON);
        !has_lease
    });
    cluster.etcd.run();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    client.put(b"key", b"other").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"other"[..]));
}

/// CL17: a restored etcd is not believed until an operator has adopted it.
#[test]
fn a_restored_etcd_is_adopted() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    let mut client = cluster.client();
    client.put(b"key", b"old").unwrap();
    let backup = cluster.folder.path().join("backup");
    cluster.etcd.back_up(&backup);
    cluster.until_copies(2);
    client.put(b"key", b"new").unwrap();
    cluster.etcd.restore(&backup);
    let notes = || cluster.nodes.iter().flatten().map(|node| node.notes().unwrap()).collect::<Vec<_>>();
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    let wishes = block(store.change_wishes(|_| {}));
    assert!(matches!(wishes, Err(EtcdError::Foreign { .. })), "{wishes:?}");
    until("leases end", || !client.has_lease(b"key"));
    let adoption = block(store.adopt(&notes(), 1)).unwrap();
    assert_eq!(adoption.number, 2);
    assert!(matches!(block(store.adopt(&notes(), 1)), Err(EtcdError::NothingToAdopt { .. })));
    // What the backup did not know of is still there.
    assert_eq!(cluster.client().get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
    client.put(b"key", b"newer").unwrap();
    cluster.until_copies(2);
}

/// CL13: entries with a time to live leave at all copies, by changes that followers hear of, also after a failover and a copy.
/// Swaps keep the end, puts do not; what is put while an entry ends stays. Outcomes of requests have an end, too.
#[test]
fn entries_end() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(4, 2);
    (0..2).for_each(|number| cluster.run_with_lives(number, None));
    let mut client = cluster.client();
    cluster.until_copies(2);
    let mut feed = client.changes(ClusterFeedOptions::new()).unwrap();
    let ttl = |time: Duration| PutOptions::new().ttl(time);
    let (soon, long) = (Duration::from_millis(700), Duration::from_secs(3_600));
    let begun = Instant::now();
    let entries: Vec<_> = (0..200).map(|number| (key(number), b"ends")).collect();
    for ended in client.put_many_with(&entries, ttl(soon)).unwrap() {
        assert!(ended.unwrap());
    }
    assert!(client.put_with(b"swapped", b"old", ttl(soon)).unwrap());
    assert_eq!(client.compare_and_swap(b"swapped", b"old", b"new").unwrap(), SwapOutcome::Swapped);
    for name in ["put", "longer"] {
        assert!(client.put_with(name.as_bytes(), b"ends", ttl(soon).mode(PutMode::Insert)).unwrap());
        assert!(!client.put_with(name.as_bytes(), b"ends", ttl(long).mode(PutMode::Insert)).unwrap());
    }
    client.put(b"put", b"stays").unwrap();
    assert!(client.put_with(b"longer", b"stays", ttl(long).mode(PutMode::Update)).unwrap());
    assert!(!client.put_with(b"none", b"", PutMode::Update).unwrap());
    let got = client.get_many(&entries.iter().map(|entry| entry.0).collect::<Vec<_>>()).unwrap();
    assert!(begun.elapsed() >= soon || got.iter().all(Option::is_some));
    until("all have ended", || cluster.entries(0).len() == 2 && cluster.entries(1).len() == 2);
    assert!(begun.elapsed() >= soon);
    assert_eq!(cluster.entries(0), cluster.entries(1));
    assert_eq!(client.get(b"swapped").unwrap(), None);
    for name in [&b"put"[..], b"longer"] {
        assert_eq!(client.get(name).unwrap().as_deref(), Some(&b"stays"[..]));
    }
    let expired: u64 = (0..2).map(|number| cluster.status(number).expired).sum();
    assert_eq!(expired, 201);
    let mut left = 0;
    while left < 201 {
        if let ClusterFeedItem::Left { cause, .. } = feed.next(common::SOON).unwrap().unwrap() {
            assert_eq!(cause, LeftCause::Expired);
            left += 1;
        }
    }
    // Ends survive the loss of a node, a newcomer's copy, and the loss of whom it was copied from.
    for number in 0..100 {
        client.put_with(&key(number), b"ends", ttl(Duration::from_secs(6))).unwrap();
    }
    drop(cluster.nodes[0].take());
    cluster.run_with_lives(2, Some(Duration::from_secs(2)));
    cluster.until_has_copies(2);
    drop(cluster.nodes[1].take());
    until("what was copied has ended", || cluster.entries(2).len() == 2);
    // An outcome, which is kept for a day; and what lives as long as its node says.
    let mut once = client.clone().exactly_once(true);
    once.put(b"node's", b"ends").unwrap();
    let result = |key: &[u8]| key.starts_with(b"\0oneread\0r");
    let result = cluster.entries(2).into_keys().find(|key| result(key)).unwrap();
    let index = cluster.nodes[2].as_ref().unwrap().server().index();
    let end = index.ends_at(&index.life(&result).unwrap().unwrap()).unwrap() - index.age().unwrap();
    assert!((23..=24).contains(&(end.as_secs() / 3_600)), "{end:?}");
    until("it has ended", || client.get(b"node's").unwrap().is_none());
    let never = client.put_with(b"never", b"", ttl(Duration::MAX)).unwrap_err();
    assert!(matches!(never, ClusterError::TimeToLive { .. }), "{never}");
    // Where entries have no lives.
    let cluster = Cluster::start(1, 4, 1);
    let none = cluster.client().put_with(b"key", b"", ttl(soon)).unwrap_err();
    assert!(matches!(none, ClusterError::NoLife { .. }), "{none}");
}

/// CL19: entries go with their owner: when it is removed, and when it is not heard, also after a failover and a copy. Followers
/// hear of it. A swap leaves an entry whose it is, a put of somebody else does not.
#[test]
fn entries_go_with_their_owner() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(4, 2);
    (0..2).for_each(|number| cluster.run_with_lives(number, None));
    let mut client = cluster.client();
    cluster.until_copies(2);
    let mut feed = client.changes(ClusterFeedOptions::new()).unwrap();
    let owner = |number| OwnerOptions::new(number).absent_for(Duration::from_secs(3_600));
    let mut first = client.owner(owner(7)).unwrap();
    let entries: Vec<_> = (0..200).map(|number| (key(number), b"7's")).collect();
    first.clone().put_many(&entries).into_iter().for_each(|ended| ended.unwrap());
    assert!(first.insert(b"swapped", b"7's").unwrap());
    assert_eq!(client.compare_and_swap(b"swapped", b"7's", b"still").unwrap(), SwapOutcome::Swapped);
    first.put(b"taken", b"7's").unwrap();
    client.put(b"taken", b"nobody's").unwrap();
    let mut other = client.owner(owner(8)).unwrap();
    first.put(b"8's", b"7's").unwrap();
    assert!(other.put_with(b"8's", b"8's", PutMode::Update).unwrap());
    // One session at a time, and no other one is hurt by the second.
    let taken = client.owner(owner(7)).unwrap_err();
    assert!(matches!(taken, ClusterError::OwnerTaken { owner: 7, .. }), "{taken}");
    first.put(&key(0), b"7's").unwrap();
    assert!(!client.remove_owner(9).unwrap());
    assert!(client.remove_owner(7).unwrap());
    assert!(!client.remove_owner(7).unwrap());
    let mut keys: Vec<Vec<u8>> = entries.iter().map(|entry| entry.0.to_vec()).collect();
    keys.push(b"swapped".to_vec());
    assert!(client.get_many(&keys).unwrap().iter().all(Option::is_none));
    let stays = [(&b"taken"[..], &b"nobody's"[..]), (b"8's", b"8's")];
    for (key, value) in stays {
        assert_eq!(client.get(key).unwrap().as_deref(), Some(value));
    }
    until("standbys have heard", || cluster.entries(0) == cluster.entries(1));
    let mut left = 0;
    while left < 201 {
        if let ClusterFeedItem::Left { cause, .. } = feed.next(common::SOON).unwrap().unwrap() {
            assert_eq!(cause, LeftCause::OwnerGone);
            left += 1;
        }
    }
    // The session that was removed puts nothing, though there is another one.
    let mut second = client.owner(owner(7)).unwrap();
    second.put(b"second", b"7's").unwrap();
    let gone = first.put(b"first", b"7's").unwrap_err();
    assert!(matches!(gone, ClusterError::OwnerGone { owner: 7 }), "{gone}");
    assert_eq!(client.get(b"first").unwrap(), None);
    // Owners survive the loss of a node, a newcomer's copy, and the loss of whom it was copied from.
    second.put_many(&entries).into_iter().for_each(|ended| ended.unwrap());
    drop(cluster.nodes[0].take());
    cluster.run_with_lives(2, None);
    cluster.until_has_copies(2);
    drop(cluster.nodes[1].take());
    second.put(b"again", b"7's").unwrap();
    assert!(client.remove_owner(7).unwrap());
    assert!(client.get_many(&keys).unwrap().iter().all(Option::is_none));
    assert_eq!(client.get(b"again").unwrap(), None);
    for (key, value) in stays {
        assert_eq!(client.get(key).unwrap().as_deref(), Some(value));
    }
    // One that says that it is there stays, for longer than it may be away. One that does not goes.
    let absent_for = 2 * TTL;
    let here = client.owner(OwnerOptions::new(1).absent_for(absent_for)).unwrap();
    let away = client.owner(OwnerOptions::new(2).absent_for(absent_for)).unwrap();
    here.clone().put(b"here", b"1's").unwrap();
    away.clone().put(b"away", b"2's").unwrap();
    drop(away);
    until("the other one has gone", || client.get(b"away").unwrap().is_none());
    assert_eq!(client.get(b"here").unwrap().as_deref(), Some(&b"1's"[..]));
    drop(here);
    until("it has gone, too", || client.get(b"here").unwrap().is_none());
    until("the number is free", || client.owner(owner(2)).is_ok());
    // What cannot be.
    let number = client.owner(owner(0)).unwrap_err();
    assert!(matches!(number, ClusterError::OwnerNumber { given: 0 }), "{number}");
    let number = client.remove_owner(u16::MAX).unwrap_err();
    assert!(matches!(number, ClusterError::OwnerNumber { .. }), "{number}");
    for absent_for in [TTL / 2, Duration::MAX] {
        let short = client.owner(OwnerOptions::new(1).absent_for(absent_for)).unwrap_err();
        assert!(matches!(short, ClusterError::AbsentFor { .. }), "{short}");
    }
    let cluster = Cluster::start(1, 4, 1);
    let none = cluster.client().owner(owner(1)).unwrap_err();
    assert!(matches!(none, ClusterError::NoOwners { .. }), "{none}");
}

/// Nodes and clients of two versions work together. Owners begin only where all copies know them, and a node that does not is
/// copied no shard that has some.
#[test]
fn versions_one_apart_work_together() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(4, 2);
    let older = |cluster: &mut Cluster, number: usize| {
        let mut config = node(cluster.folder.path(), number, cluster.etcd.options());
        config.server.table = config.server.table.life(true);
        config.version = VERSION - 1;
        cluster.run_as(number, config);
    };
    older(&mut cluster, 0);
    cluster.run_with_lives(1, None);
    cluster.until_copies(2);
    let mut client = cluster.client();
    let entries: Vec<_> = (0..200).map(|number| (key(number), b"value")).collect();
    let ttl = PutOptions::new().ttl(Duration::from_secs(3_600));
    for ended in client.put_many_with(&entries, ttl).unwrap() {
        assert!(ended.unwrap());
    }
    until("both have all", || cluster.entries(0).len() == 200 && cluster.entries(0) == cluster.entries(1));
    let owner = OwnerOptions::new(7);
    let refused = client.owner(owner).unwrap_err();
    assert!(matches!(refused, ClusterError::NoOwners { .. }), "{refused}");
    // The older one is updated. Until both have been, there are no owners.
    drop(cluster.nodes[0].take());
    cluster.run_with_lives(0, None);
    let mut begun = None;
    until("all copies know owners", || {
        begun = client.owner(owner).ok();
        begun.is_some()
    });
    cluster.until_copies(2);
    let mut owner = begun.unwrap();
    owner.put_many(&entries).into_iter().for_each(|ended| ended.unwrap());
    // Back again: the shards have owners, and it is not among their copies.
    drop(cluster.nodes[0].take());
    until("it has been left out", || cluster.shards().iter().all(|state| state.in_sync.len() == 1));
    older(&mut cluster, 2);
    std::thread::sleep(3 * TTL);
    assert!(cluster.shards().iter().all(|state| state.in_sync.len() == 1));
    assert!(client.remove_owner(7).unwrap());
    cluster.until_copies(2);
    until("both have the rest", || cluster.entries(2) == cluster.entries(1));
}

/// An entry leaves at its end though changes of its key are under way all the time: a lock that others try to get, a counter. A
/// standby forgets the times of what has left, and a newcomer is copied such a key, too.
#[test]
fn entries_end_that_are_always_asked_for() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(1, 2);
    (0..2).for_each(|number| cluster.run_with_lives(number, None));
    cluster.until_copies(2);
    let mut client = cluster.client();
    let ttl = |ms: u64| PutOptions::new().ttl(Duration::from_millis(ms));
    client.put_with(b"lock", b"who has died", ttl(700)).unwrap();
    client.put_with(b"counter", b"0", ttl(1_000)).unwrap();
    let begun = Instant::now();
    let goes_on = || {
        assert!(begun.elapsed() < common::SOON, "it never ends");
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = cluster.client();
            scope.spawn(move || {
                while !client.put_with(b"lock", b"mine", ttl(200).mode(PutMode::Insert)).unwrap() {
                    goes_on();
                }
            });
        }
        for count in 0u32.. {
            let (old, new) = (count.to_string(), (count + 1).to_string());
            match client.compare_and_swap(b"counter", old.as_bytes(), new.as_bytes()).unwrap() {
                SwapOutcome::Swapped => goes_on(),
                SwapOutcome::Absent => break,
                SwapOutcome::Differs => panic!("{count}"),
            }
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(1_000));
    until("all have left", || (0..2).all(|number| cluster.entries(number).is_empty()));
    let lag = |number: usize| cluster.nodes[number].as_ref().unwrap().server().index().expiry_lag();
    until("no times are left", || (0..2).all(|number| lag(number) == Duration::ZERO));
    // A key of which a change is always under way.
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in 0..4u32 {
            let (mut client, is_over) = (cluster.client(), &is_over);
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    match client.insert(b"busy", &key(name)) {
                        // Its node is gone.
                        Ok(_) | Err(ClusterError::Unknown { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    goes_on();
                }
            });
        }
        let gone = cluster.id(1);
        drop(cluster.nodes[1].take());
        cluster.run_with_lives(2, None);
        until("the newcomer has a copy", || {
            let states = cluster.shards();
            states.iter().all(|state| state.in_sync.has(cluster.id(2)) && !state.in_sync.has(gone))
        });
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(cluster.client().get(b"busy").unwrap().is_some());
}

/// CL13: more is put than there is room for. Others leave, at all copies alike; those that are read stay.
#[test]
fn entries_make_room_for_others() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(4, 2);
    (0..2).for_each(|number| cluster.run_evicting(number));
    let mut client = cluster.client();
    client.put(b"first", b"value").unwrap();
    cluster.until_copies(2);
    const PUT: u32 = 20_000;
    const HOT: u32 = 20;
    let value = |number: u32| vec![number as u8; 1_000];
    let put = |client: &mut ClusterClient, numbers: std::ops::Range<u32>| {
        let entries: Vec<_> = numbers.map(|number| (key(number), value(number))).collect();
        for ended in client.put_many(&entries) {
            ended.unwrap();
        }
    };
    put(&mut client, 0..HOT);
    let hot: Vec<_> = (0..HOT).map(key).collect();
    let mut once = client.clone().exactly_once(true);
    for begin in (HOT..PUT).step_by(200) {
        put(&mut client, begin..(begin + 200).min(PUT));
        client.get_many(&hot).unwrap();
        // Its outcome is no entry that leaves: one a shard, in which it is the last.
        once.put(&key(begin), &value(begin)).unwrap();
    }
    let stay = client.get_many(&hot).unwrap().into_iter().flatten().count();
    assert!(stay as u32 >= HOT - 2, "{stay} of {HOT} that were read all the time");
    assert_eq!(client.get(&key(PUT - 1)).unwrap(), Some(value(PUT - 1)), "the last one");
    // One that was late is copied to again.
    until("both have the same", || cluster.entries(0) == cluster.entries(1));
    let first = cluster.entries(0);
    let results = first.keys().filter(|key| key.starts_with(b"\0oneread\0r")).count();
    assert_eq!(results, 4, "an outcome a shard");
    let status = [0, 1].map(|number| cluster.status(number));
    let evicted: u64 = status.iter().map(|status| status.evicted).sum();
    // Some keys were put a second time, by then perhaps as new ones.
    let left = first.len() - results;
    assert!((1_000..8_000).contains(&left), "{left} are left");
    assert!(evicted >= u64::from(PUT) - left as u64 && evicted < u64::from(PUT) * 2, "{evicted} have left");
    // The standby goes on with it.
    drop(cluster.nodes[0].take());
    put(&mut client, 0..PUT / 2);
    // By itself: of many at once, which the new primary takes at different times, nobody says which was the last.
    put(&mut client, PUT - 1..PUT);
    assert_eq!(client.get(&key(PUT - 1)).unwrap(), Some(value(PUT - 1)));
    assert!(cluster.status(1).evicted > status[1].evicted);
    assert!(cluster.entries(1).len() < 8_000);
}

/// Nodes are full, and one is lost: the others have kept room back for its copies.
#[test]
fn a_full_cache_has_room_for_a_lost_node() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(48, 2);
    (0..3).for_each(|number| cluster.run_evicting(number));
    let mut client = cluster.client();
    cluster.until_copies(2);
    let mut put = |value: u8| {
        let entries: Vec<_> = (0..12_000u32).map(|number| (key(number), [value; 1_000])).collect();
        entries.chunks(500).flat_map(|some| client.put_many(some)).for_each(|ended| ended.unwrap());
    };
    put(1);
    assert!((0..3).map(|number| cluster.status(number).evicted).sum::<u64>() > 1_000);
    let lost = cluster.id(2);
    drop(cluster.nodes[2].take());
    put(2);
    // Also while others go on to put.
    until("what was lost is copied", || {
        put(2);
        let states = cluster.shards();
        let whole = states.iter().filter(|state| state.in_sync.len() == 2 && !state.in_sync.has(lost));
        // The ranking is a hash: one node may have far more shards than another.
        whole.count() >= 40
    });
    put(3);
    let shards = [0, 1].into_iter().flat_map(|number| cluster.status(number).shards);
    let served: Vec<_> = shards.filter(|shard| shard.role == Role::Primary).map(|shard| shard.used).collect();
    assert_eq!(served.len(), 48);
    let (least, most) = (*served.iter().min().unwrap(), *served.iter().max().unwrap());
    assert!(most < 3 * least, "{least} {most}");
}

/// What never fits has nobody leave. Outcomes do not leave either: where a shard has nothing else, it takes no more.
#[test]
fn what_never_fits_has_nobody_leave() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::of(ClusterConfig { value_max: 1 << 16, ..config(100, 1, TTL) });
    cluster.run_evicting(0);
    // All of its memory: nobody has set anything aside.
    let share = cluster.status(0).room_left as usize / 100;
    assert!((2_000..1 << 16).contains(&share), "{share}");
    let mut client = cluster.client();
    client.put(b"key", b"value").unwrap();
    let large = client.put(b"key", &vec![1; share]).unwrap_err();
    assert!(matches!(large, ClusterError::Full { .. }), "{large}");
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(cluster.status(0).evicted, 0);
    let mut options = ClusterOptions::default();
    options.deadline = Duration::from_secs(1);
    let client = ClusterClient::connect(name(), cluster.etcd.options(), options).unwrap();
    let refused = (0..200).find_map(|_| client.clone().exactly_once(true).put(b"key", b"value").err());
    assert!(matches!(refused, Some(ClusterError::NotDone { .. } | ClusterError::Full { .. })), "{refused:?}");
    assert!(cluster.entries(0).keys().filter(|key| key.starts_with(b"\0oneread\0r")).count() > 4);
}

#[test]
fn what_cannot_be_is_refused() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::start(1, 4, 1);
    let folder = cluster.folder.path();
    let etcd = || cluster.etcd.options();
    let with = |change: &dyn Fn(&mut oneread_cluster::node::NodeConfig)| {
        let mut config = node(folder, 7, etcd());
        change(&mut config);
        ClusterNode::start(config).map(drop).unwrap_err()
    };
    let other = |config: &mut oneread_cluster::node::NodeConfig| config.cluster = "other".parse().unwrap();
    assert!(matches!(with(&other), NodeError::Etcd(EtcdError::NotThere { .. })));
    let ttl = with(&|config| config.server.ttl = Some(Duration::from_secs(1)));
    assert!(ttl.to_string().contains("`Config::life`"), "{ttl}");
    for wrong in [Duration::ZERO, Duration::MAX] {
        let ttl = with(&|config| {
            config.server.table = config.server.table.life(true);
            config.server.ttl = Some(wrong);
        });
        assert!(matches!(ttl, NodeError::Option { option: "this time to live", .. }), "{ttl}");
    }
    let evict = with(&|config| config.server.evict = Some(oneread::Evict::Sieve));
    assert!(evict.to_string().contains("`ServerConfig::evict`"), "{evict}");
    let open = with(&|config| config.listen = vec!["0.0.0.0:0".into()]);
    assert!(open.to_string().contains("`NodeConfig::secret`"), "{open}");
    let anywhere = with(&|config| {
        config.listen = vec!["0.0.0.0:0".into()];
        config.secret = oneread_cluster::wire::Secret::new(b"secret").unwrap();
    });
    assert!(anywhere.to_string().contains("`NodeConfig::advertise`"), "{anywhere}");
    let store = block(EtcdStore::connect(name(), etcd())).unwrap();
    until("it serves", || cluster.shards().iter().all(|state| state.primary.is_some()));
    let mut longer = node(folder, 8, etcd());
    longer.server.table = longer.server.table.inline_max(200);
    let slots = ClusterNode::start(longer).map(drop).unwrap_err();
    assert!(slots.to_string().contains("(n0) has slots of"), "{slots}");
    for refused in ["n7", "n8"] {
        let left =
            [".region", ".region.lock", ".sock"].map(|end| folder.join(format!("{refused}{end}")).exists());
        assert_eq!(left, [false; 3], "{refused} has left something");
    }
    let named = block(store.forget(cluster.id(0))).unwrap_err();
    assert!(matches!(named, EtcdError::InUse { shards: 4, .. }), "{named}");
    let again = block(store.init(&config(4, 1, TTL))).unwrap_err();
    assert!(matches!(again, EtcdError::Exists { .. }), "{again}");
    // A table that is no node's.
    let path = folder.join("foreign");
    let address = oneread::Address::Shm(folder.join("foreign.sock"));
    let table =
        oneread::Config::new().key_max(64).value_max(1 << 20).size(oneread::TableSize::up_to(32 << 20));
    let config = oneread::ServerConfig::new(address, table).backing(oneread::Backing::File(path));
    let server = oneread::Server::start(config.clone()).unwrap();
    server.index().put(b"key", b"value", oneread::PutMode::Upsert).unwrap();
    server.stop();
    let foreign = with(&|node| node.server = config.clone().start(oneread::StartMode::Open));
    assert!(foreign.to_string().contains("was no node's so far"), "{foreign}");
}

/// A client with another secret reaches no node: each of its changes was certainly not made, however often it was tried.
#[test]
fn a_change_with_a_wrong_secret_was_certainly_not_made() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::start(1, 4, 1);
    until("it serves", || cluster.shards().iter().all(|state| state.primary.is_some()));
    let mut options = ClusterOptions::default();
    options.secret = oneread_cluster::wire::Secret::new(b"another").unwrap();
    for (deadline, exactly_once) in [(1_000, false), (1_000, true), (0, false)] {
        options.deadline = Duration::from_millis(deadline);
        let client = ClusterClient::connect(name(), cluster.etcd.options(), options.clone()).unwrap();
        let refused = client.exactly_once(exactly_once).put(b"key", b"value").unwrap_err();
        assert!(matches!(refused, ClusterError::NotDone { .. }), "{refused}");
        assert!(deadline == 0 || refused.to_string().contains("secret"), "{refused}");
    }
    assert_eq!(cluster.client().get(b"key").unwrap(), None);
}

/// A node with another secret beats as the others do, and nobody takes what it says: it is not good, and what it is called is
/// the reason. The others are, and say who refuses them.
#[test]
fn a_node_with_another_secret_is_not_good() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::none(8, 2);
    let run_with = |cluster: &mut Cluster, number, secret: &[u8]| {
        let mut config = node(cluster.folder.path(), number, cluster.etcd.options());
        config.secret = Secret::new(secret).unwrap();
        cluster.run_as(number, config);
    };
    run_with(&mut cluster, 0, b"one");
    run_with(&mut cluster, 1, b"one");
    cluster.until_copies(2);
    run_with(&mut cluster, 2, b"another");
    let status = |number: usize| cluster.nodes[number].as_ref().unwrap().status();
    until("the one is not good", || {
        status(2).is_some_and(|status| !status.is_good() && status.standing.contains("another secret"))
    });
    let refused_by =
        |number| status(number).and_then(|status| status.health.0).map(|health| health.refused_by);
    until("the others say who refuses them", || {
        [0, 1].into_iter().all(|number| {
            let is_good = status(number).is_some_and(|status| status.is_good());
            let wanted = vec![(cluster.id(2), "another secret".to_owned())];
            is_good && refused_by(number) == Some(wanted)
        })
    });
    // Who asks it with their secret is told the same.
    let who = Identity::new(name(), None, Secret::new(b"one").unwrap(), Bounds::of(&config(8, 2, TTL)));
    let asked = cluster.nodes[2].as_ref().unwrap();
    let refused = block(NodeConnection::connect(asked.requests(), who, asked.id())).unwrap_err();
    assert_eq!(refused.brief(), "another secret", "{refused}");
}

/// A copy at a node that is gone is none, also while etcd still names it.
#[test]
fn copies_of_a_lost_node_do_not_count() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    cluster.until_copies(2);
    let missing =
        |cluster: &Cluster| cluster.nodes[0].as_ref().unwrap().status().map(|status| status.missing);
    until("no copy is missing", || missing(&cluster) == Some(0));
    drop(cluster.nodes[1].take());
    until("each shard lacks a copy", || missing(&cluster) == Some(4));
    let gone: Vec<NodeId> = vec![];
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    // It is forgotten once no shard names it; who beats is not.
    until("nobody names it", || cluster.shards().iter().all(|state| state.in_sync.len() == 1));
    assert_ne!(block(store.forget_dead()).unwrap(), gone);
    assert_eq!(block(store.forget_dead()).unwrap(), gone);
    cluster.run(1);
    cluster.until_copies(2);
    until("no copy is missing again", || missing(&cluster) == Some(0));
}

/// A backup that is restored under its old token is taken for the etcd that there was. Whoever adopts it is told; restored
/// under another one it is adopted, and nothing is missing.
#[test]
fn a_backup_under_the_old_token_is_told_of() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    let mut client = cluster.client();
    cluster.until_copies(2);
    client.put(b"key", b"old").unwrap();
    let backup = cluster.folder.path().join("backup");
    cluster.etcd.back_up(&backup);
    // Who serves what changes, and etcd forgets that.
    drop(cluster.nodes[0].take());
    until("one goes on alone", || cluster.shards().iter().all(|state| state.in_sync.len() == 1));
    cluster.run(0);
    cluster.until_copies(2);
    client.put(b"key", b"new").unwrap();
    cluster.etcd.restore_alike(&backup);
    let notes = || cluster.nodes.iter().flatten().map(|node| node.notes().unwrap()).collect::<Vec<_>>();
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    let refused = block(store.adopt(&notes(), 1)).unwrap_err();
    assert!(matches!(refused, EtcdError::RestoredAlike { .. }), "{refused}");
    assert!(refused.to_string().contains("--initial-cluster-token"), "{refused}");
    cluster.etcd.restore(&backup);
    block(store.adopt(&notes(), 1)).unwrap();
    assert_eq!(cluster.client().get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
    client.put(b"key", b"newer").unwrap();
    cluster.until_copies(2);
}

/// An etcd that has lost all is told by nodes that run what it had.
#[test]
fn an_emptied_etcd_is_told_by_nodes() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 2);
    let mut client = cluster.client();
    cluster.until_copies(2);
    client.put(b"key", b"value").unwrap();
    cluster.etcd.forget_all();
    let store = block(EtcdStore::connect(name(), cluster.etcd.options())).unwrap();
    let missing = block(store.read_config()).unwrap_err();
    assert!(matches!(missing, EtcdError::NotThere { .. }), "{missing}");
    until("leases end", || !client.has_lease(b"key"));
    let asked = cluster.nodes[0].as_ref().unwrap();
    let (config, map) = block(async {
        let who = Identity::new(name(), None, Secret::default(), Bounds::any());
        let (mut connection, node) = NodeConnection::connect_any(&asked.requests()[0], who).await.unwrap();
        assert_eq!(node, asked.id());
        connection.send(&Said::Ask(Question::Config)).await.unwrap();
        let Said::Config(config) = connection.next().await.unwrap() else { panic!("it was asked for that") };
        connection.send(&Said::Ask(Question::Map)).await.unwrap();
        let Said::Map(map) = connection.next().await.unwrap() else { panic!("it was asked for that") };
        (config, map)
    });
    assert_eq!(&config, client.config());
    let known: HashSet<NodeId> = map.nodes.iter().map(|(id, _)| *id).collect();
    assert_eq!(known, HashSet::from([cluster.id(0), cluster.id(1)]));
    let notes: Vec<_> = cluster.nodes.iter().flatten().map(|node| node.notes().unwrap()).collect();
    let adoption = block(store.adopt_from(&config, &notes, 1)).unwrap();
    assert_eq!(adoption.number, 2);
    let again = block(store.adopt_from(&config, &notes, 1)).unwrap_err();
    assert!(matches!(again, EtcdError::Exists { .. }), "{again}");
    assert_eq!(cluster.client().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    client.put(b"key", b"other").unwrap();
    cluster.until_copies(2);
}

/// Two nodes of one name both say so, while both beat.
#[test]
fn a_name_that_is_taken_is_told() {
    if !has_etcd() {
        return;
    }
    let mut cluster = Cluster::start(2, 4, 1);
    let namesake = |cluster: &Cluster, number: usize| {
        let status = cluster.nodes[number].as_ref().unwrap().status();
        status.and_then(|status| status.health.0).and_then(|health| health.namesake)
    };
    let mut config = node(cluster.folder.path(), 2, cluster.etcd.options());
    config.name = "n1".into();
    cluster.run_as(2, config);
    until("both say so", || {
        [(1, 2), (2, 1)].into_iter().all(|(one, other)| namesake(&cluster, one) == Some(cluster.id(other)))
    });
    assert_eq!(namesake(&cluster, 0), None);
    drop(cluster.nodes[2].take());
    until("the name is free again", || namesake(&cluster, 1).is_none());
}
