//! A client whose cluster is a test: that says what etcd says, which shards are leased, and answers each request, or loses
//! it. So each end of a request comes at the wanted moment, and in the wanted order.

use super::requests::AsksOfTest;
use super::*;
use crate::core::etcd::{Entry, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::hash::ShardHash;
use crate::core::message::{Kind, NotDone, Outcome, Reply, Request, Session};
use crate::core::owners;
use crate::core::state::{Adoption, Lived, NodeKey, Page, ShardState, Timing, Word};
use crate::wire::{Bounds, Identity};
use oneread::{Config, OwnerOptions, PutMode, Server, ServerConfig, TableSize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const SHARDS: ShardIx = 4;
const SECOND: Duration = Duration::from_secs(1);

/// A client, and what it was told.
pub(super) struct Scene {
    pub(super) client: ClusterClient,
    revision: u64,
    beat: u64,
    /// By shard: its epoch, and its primary.
    shards: Vec<(u64, NodeId)>,
}

impl Scene {
    /// All shards are A's.
    pub(super) fn new(nodes: [NodeId; 2], deadline: Duration) -> (Scene, AsksOfTest) {
        let timing = Timing { ttl: 100_000_000, ..Timing::default() };
        let config = ClusterConfig {
            shards: SHARDS,
            replicas: 2,
            hash: ShardHash::new(1),
            key_max: 64,
            value_max: 64,
            timing,
        };
        let options = ClusterOptions { deadline, ..ClusterOptions::default() };
        let name = "a-test".parse().unwrap();
        let who = Identity::new(name, None, options.secret.clone(), Bounds::of(&config));
        let (runtime, asks) = Runtime::of_test(who);
        let known = Known::new(&config);
        let shared = Arc::new(Shared {
            config,
            options,
            known: Mutex::new(known),
            routes: Arc::default(),
            version: Mutex::new(0),
            changed: Condvar::new(),
            learned: watch::Sender::new(()),
            tables: Mutex::default(),
            copies: AtomicU64::new(1),
            reasons: Mutex::default(),
            hurried: Arc::default(),
            runtime,
        });
        let client = ClusterClient::of(shared);
        let mut scene = Scene { client, revision: 0, beat: 0, shards: Vec::new() };
        for node in nodes {
            let about =
                NodeAbout { name: node.to_string(), version: owners::SINCE_VERSION, ..NodeAbout::default() };
            let key = NodeKey { life: 1, number: 1, alive: true, about };
            scene.learn(EtcdKey::Node(node), EtcdValue::Node(key));
        }
        for shard in 0..SHARDS {
            scene.shards.push((0, nodes[0]));
            scene.moves(shard, nodes[0]);
        }
        (scene, asks)
    }

    fn learn(&mut self, key: EtcdKey, value: EtcdValue) {
        let adoption = EtcdValue::Adoption(Adoption { number: 1, etcd: 9 });
        let entries = [(EtcdKey::Adoption, adoption), (key, value)];
        let entries = entries.map(|(key, value)| Entry { key, value: Some(value), at: 1 }).to_vec();
        let answer = EtcdAnswer { call: 1, is_watched: true, etcd: 9, revision: 1, is_done: true, entries };
        self.client.shared.learn(|known| known.learn(&answer));
    }

    /// A shard has this primary from now on, in a new epoch. No lease lasts, not even on the last one.
    pub(super) fn moves(&mut self, shard: ShardIx, primary: NodeId) {
        lock(&self.client.shared.known).forget_lease(shard);
        self.revision += 1;
        let known = &mut self.shards[usize::from(shard)];
        *known = (known.0 + 1, primary);
        let in_sync = [primary].into_iter().collect();
        let state = ShardState {
            revision: self.revision,
            epoch: known.0,
            primary: Some(primary),
            in_sync,
            waits: false,
        };
        self.learn(EtcdKey::Shard(shard), EtcdValue::Shard(state));
    }

    /// All of these shards that are its node's are leased, and no other one of its.
    pub(super) fn lease(&mut self, node: NodeId, open: &[ShardIx]) {
        let words = (0..SHARDS).map(|shard| {
            let (epoch, primary) = self.shards[usize::from(shard)];
            Word { epoch, is_open: primary == node && open.contains(&shard) }
        });
        let words: Vec<Word> = words.collect();
        for _ in 0..2 {
            self.beat += 1;
            let lived = Lived { life: 1, number: self.beat };
            let page = Page { asked: lived, held: lived, words: words.clone() };
            let now = clock::now();
            self.client.shared.learn(|known| {
                for shard in (0..SHARDS).filter(|shard| !open.contains(shard)) {
                    if known.primary(shard) == Some(node) {
                        known.forget_lease(shard);
                    }
                }
                known.page_landed(node, now, now, &page);
                true
            });
        }
    }

    /// What `act` does with the client, while `script` answers what it asks. Returns all that was asked, too.
    fn answered<R>(
        &mut self,
        asks: &mut AsksOfTest,
        mut script: impl FnMut(NodeId, &[Request]) -> Vec<Ended> + Send,
        act: impl FnOnce(&mut ClusterClient) -> R,
    ) -> (R, Vec<(NodeId, Request)>) {
        let is_over = AtomicBool::new(false);
        let client = &mut self.client;
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                let mut all = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let Some((node, requests, ends)) = asks.next() else {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    script(node, &requests).into_iter().for_each(|ended| drop(ends.send(ended)));
                    all.extend(requests.into_iter().map(|request| (node, request)));
                }
                all
            });
            let done = act(client);
            is_over.store(true, Ordering::Relaxed);
            (done, answering.join().unwrap())
        })
    }
}

fn done(request: &Request, outcome: Outcome) -> Ended {
    Ended::Replied(Reply { copy: request.copy, ended: Ok(outcome) })
}

fn not_done(request: &Request, why: NotDone) -> Ended {
    Ended::Replied(Reply { copy: request.copy, ended: Err(why) })
}

fn lost(request: &Request) -> Ended {
    Ended::Lost(request.copy)
}

fn not_sent(request: &Request) -> Ended {
    Ended::NotSent(request.copy, "a test".into())
}

/// How often each shard was asked so.
fn counted(asked: &[(NodeId, Request)], is_such: impl Fn(&Kind) -> bool) -> Vec<usize> {
    let count = |shard| asked.iter().filter(|(_, it)| it.shard == shard && is_such(&it.kind)).count();
    (0..SHARDS).map(count).collect()
}

/// The sessions that were asked of.
fn sessions(asked: &[(NodeId, Request)]) -> BTreeSet<(u16, u64)> {
    let sessions = asked.iter().filter_map(|(_, request)| request.kind.session());
    sessions.map(|session| (session.owner, session.number)).collect()
}

fn is_claim(kind: &Kind) -> bool {
    matches!(kind, Kind::Own(..))
}

fn is_removal(kind: &Kind) -> bool {
    matches!(kind, Kind::RemoveOwner(_))
}

fn owner(number: u16) -> OwnerOptions {
    OwnerOptions::new(number).absent_for(1_000 * SECOND)
}

/// Keys, so many of each shard.
fn keys(config: &ClusterConfig, each: usize) -> BTreeMap<ShardIx, Vec<[u8; 8]>> {
    let mut keys: BTreeMap<ShardIx, Vec<[u8; 8]>> = BTreeMap::new();
    for key in (0..10_000u64).map(u64::to_le_bytes) {
        let of_shard = keys.entry(config.shard_of(&key)).or_default();
        if of_shard.len() < each {
            of_shard.push(key);
        }
    }
    assert!(keys.len() == usize::from(SHARDS) && keys.values().all(|keys| keys.len() == each));
    keys
}

// ---- owners -------------------------------------------------------------------------------------

/// A claim that may have been made is made no second time: a copy that comes late would begin the session again that was ended
/// meanwhile. What was claimed is given back, at all shards.
#[test]
fn a_claim_that_may_be_made_is_not_repeated() {
    let (mut scene, mut asks) = Scene::new([A, B], 2 * SECOND);
    let script = |_, requests: &[Request]| {
        requests
            .iter()
            .map(|request| match is_claim(&request.kind) && request.shard == 2 {
                true => lost(request),
                false => done(request, Outcome::Done),
            })
            .collect()
    };
    let (claimed, asked) = scene.answered(&mut asks, script, |client| client.owner(owner(7)).err());
    assert!(matches!(claimed, Some(ClusterError::Unknown { shard: 2, .. })), "{claimed:?}");
    assert_eq!(counted(&asked, is_claim), [1; 4]);
    assert_eq!(counted(&asked, is_removal), [1; 4]);
    assert_eq!(sessions(&asked).len(), 1);
}

/// One that was certainly not made is made again, until it is; and what removes a session may be repeated whatever became
/// of it.
#[test]
fn a_claim_that_was_not_made_is_made_again() {
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    let mut times = BTreeMap::<(bool, ShardIx), u32>::new();
    let script = |_, requests: &[Request]| {
        let mut answer = |request: &Request| {
            let times = times.entry((is_claim(&request.kind), request.shard)).or_default();
            *times += 1;
            match (*times, is_claim(&request.kind)) {
                (1, true) => not_sent(request),
                (2, true) => not_done(request, NotDone::NotServed),
                (1, false) => lost(request),
                _ => done(request, Outcome::Done),
            }
        };
        requests.iter().map(&mut answer).collect()
    };
    let (claimed, asked) = scene.answered(&mut asks, script, |client| client.owner(owner(7)).map(drop));
    claimed.unwrap();
    assert_eq!(counted(&asked, is_claim), [3; 4]);
    assert_eq!(counted(&asked, |kind| matches!(kind, Kind::Stay(_))), [2; 4], "it may be said again");
    assert_eq!(counted(&asked, is_removal), [0; 4]);
}

/// One shard refuses, in either of the two rounds: what others have given is given back, and with the session's own number.
#[test]
fn a_claim_that_is_refused_gives_back() {
    for is_claimed in [false, true] {
        let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
        let script = move |_, requests: &[Request]| {
            let answer = |request: &Request| match (request.shard, &request.kind) {
                (1, Kind::Own(..)) if !is_claimed => done(request, Outcome::Exists),
                (1, Kind::Stay(_)) => done(request, Outcome::Absent),
                _ => done(request, Outcome::Done),
            };
            requests.iter().map(answer).collect()
        };
        let (claimed, asked) = scene.answered(&mut asks, script, |client| client.owner(owner(7)).err());
        match claimed {
            Some(ClusterError::OwnerTaken { owner: 7, shard: 1 }) => assert!(!is_claimed),
            Some(ClusterError::OwnerGone { owner: 7 }) => assert!(is_claimed),
            other => panic!("{other:?}"),
        }
        assert_eq!(counted(&asked, is_removal), [1; 4], "{is_claimed}");
        assert_eq!(sessions(&asked).len(), 1, "{is_claimed}");
    }
}

/// An owner that one shard does not know any more puts no more, anywhere. Its other changes go on, and so do those of a handle
/// that is nobody's.
#[test]
fn an_owner_that_is_gone_puts_nowhere() {
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    let all = keys(scene.client.config(), 1);
    let script = |_, requests: &[Request]| {
        let answer = |request: &Request| match &request.kind {
            Kind::Put(_) if request.shard == 1 && request.wanted.session().is_some() => {
                not_done(request, NotDone::OwnerGone)
            }
            _ => done(request, Outcome::Done),
        };
        requests.iter().map(answer).collect()
    };
    let act = |client: &mut ClusterClient| {
        let (mut plain, mut owning) = (client.clone(), client.owner(owner(7)).unwrap());
        let mut clone = owning.clone();
        owning.put(&all[&0][0], b"").unwrap();
        let refused = owning.put(&all[&1][0], b"");
        assert!(matches!(refused, Err(ClusterError::OwnerGone { owner: 7 })), "{refused:?}");
        for owning in [&mut owning, &mut clone] {
            let refused = owning.insert(&all[&0][0], b"");
            assert!(matches!(refused, Err(ClusterError::OwnerGone { owner: 7 })), "{refused:?}");
        }
        owning.remove(&all[&0][0]).unwrap();
        plain.put(&all[&1][0], b"").unwrap();
    };
    let ((), asked) = scene.answered(&mut asks, script, act);
    assert_eq!(counted(&asked, |kind| matches!(kind, Kind::Insert(_))), [0; 4]);
    assert_eq!(counted(&asked, |kind| matches!(kind, Kind::Put(_))), [1, 2, 0, 0]);
}

/// The thread that says that a session is there says it to all shards, again where an answer was lost, until one of them does
/// not know the session any more: then its handles put no more. It ends, too, when the last handle is dropped.
#[test]
fn who_hears_that_it_is_gone_puts_no_more() {
    for hears_it in [true, false] {
        let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
        let (is_there, ends) = mpsc::channel::<()>();
        let mut is_there = Some(is_there);
        let (mut times, session) = (BTreeMap::<ShardIx, u32>::new(), Session { owner: 7, number: 9 });
        let script = move |_, requests: &[Request]| {
            let mut answer = |request: &Request| {
                assert!(matches!(request.kind, Kind::Stay(of) if of == session), "{request:?}");
                let times = times.entry(request.shard).or_default();
                *times += 1;
                match (request.shard, *times) {
                    (2, 1) => lost(request),
                    (1, 3) if hears_it => done(request, Outcome::Absent),
                    (1, 3) => {
                        is_there = None;
                        done(request, Outcome::Done)
                    }
                    _ => done(request, Outcome::Done),
                }
            };
            requests.iter().map(&mut answer).collect()
        };
        let is_gone = AtomicBool::new(false);
        let absent_for = Duration::from_millis(40);
        let stays = |client: &mut ClusterClient| {
            owner::stay(client.clone(), session, absent_for, &ends, &is_gone);
        };
        let ((), asked) = scene.answered(&mut asks, script, stays);
        assert_eq!(is_gone.load(Ordering::Relaxed), hears_it);
        let counted = counted(&asked, |kind| matches!(kind, Kind::Stay(_)));
        assert!(counted.iter().all(|times| *times >= 3) && counted[2] > counted[0], "{counted:?}");
    }
}

/// A removal goes on until each shard that had a session says that none of its entries is left; others are not asked.
#[test]
fn a_removal_waits_for_all() {
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    for had in [vec![], vec![2], vec![0, 3]] {
        let mut left = BTreeMap::from([(0, 3), (2, 1), (3, 2)]);
        let of = had.clone();
        let script = move |_, requests: &[Request]| {
            let mut answer = |request: &Request| match request.kind {
                Kind::Who if of.contains(&request.shard) => {
                    done(request, Outcome::Is(100 + u64::from(request.shard)))
                }
                Kind::Who => done(request, Outcome::Absent),
                Kind::RemoveOwner(session) => {
                    assert_eq!(session, Session { owner: 7, number: 100 + u64::from(request.shard) });
                    let left = left.get_mut(&request.shard).unwrap();
                    *left -= 1;
                    done(request, if *left == 0 { Outcome::Absent } else { Outcome::Done })
                }
                _ => panic!("{request:?}"),
            };
            requests.iter().map(&mut answer).collect()
        };
        let (removed, asked) = scene.answered(&mut asks, script, |client| client.remove_owner(7));
        assert_eq!(removed.unwrap(), !had.is_empty());
        let asks_of = |shard| if had.contains(&shard) { [3, 0, 1, 2][usize::from(shard)] } else { 0 };
        assert_eq!(counted(&asked, is_removal), (0..SHARDS).map(asks_of).collect::<Vec<_>>());
    }
}

// ---- changes ------------------------------------------------------------------------------------

/// What may be sent again is, and nothing else; and what its caller is told is so.
#[test]
fn changes_are_repeated_only_where_they_may_be() {
    type End = fn(&Request) -> Ended;
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    let key = keys(scene.client.config(), 1)[&2][0];
    let first: [(&str, End, bool); 5] = [
        ("lost", lost, false),
        ("not sent", not_sent, true),
        ("not served", |request| not_done(request, NotDone::NotServed), true),
        ("no room for its outcome", |request| not_done(request, NotDone::NoRoomForResult), true),
        ("invalid", |request| not_done(request, NotDone::Invalid), true),
    ];
    for (what, first, may_repeat) in first {
        for has_id in [false, true] {
            let mut times = 0;
            let script = move |_, requests: &[Request]| {
                times += 1;
                let answer = |it: &Request| if times == 1 { first(it) } else { done(it, Outcome::Done) };
                requests.iter().map(answer).collect()
            };
            let put = |client: &mut ClusterClient| client.clone().exactly_once(has_id).put(&key, b"value");
            let (put, asked) = scene.answered(&mut asks, script, put);
            let case = format!("{what}, {has_id}: {put:?}");
            let is_repeated = may_repeat || has_id;
            assert_eq!(asked.len(), 1 + usize::from(is_repeated), "{case}");
            assert_eq!(put.is_ok(), is_repeated, "{case}");
            if !is_repeated {
                assert!(matches!(put, Err(ClusterError::Unknown { shard: 2, .. })), "{case}");
            }
            // All copies have one id, and each its own number.
            assert!(
                asked.iter().all(|(_, it)| it.id == asked[0].1.id && it.id.is_some() == has_id),
                "{case}"
            );
            let copies: BTreeSet<u64> = asked.iter().map(|(_, it)| it.copy).collect();
            assert_eq!(copies.len(), asked.len(), "{case}");
        }
    }
    type IsIt = fn(&ClusterError) -> bool;
    let last: [(&str, End, IsIt); 4] = [
        ("full", |it| done(it, Outcome::Full), |error| matches!(error, ClusterError::Full { shard: 2 })),
        (
            "no life",
            |it| not_done(it, NotDone::NoLife),
            |error| matches!(error, ClusterError::NoLife { shard: 2 }),
        ),
        (
            "no owners",
            |it| not_done(it, NotDone::NoOwners),
            |error| matches!(error, ClusterError::NoOwners { shard: 2 }),
        ),
        (
            "gone",
            |it| not_done(it, NotDone::OwnerGone),
            |error| matches!(error, ClusterError::OwnerGone { .. }),
        ),
    ];
    for (what, last, is_right) in last {
        let script = move |_, requests: &[Request]| requests.iter().map(last).collect();
        let (put, asked) = scene.answered(&mut asks, script, |client| client.put(&key, b"value"));
        assert!(put.as_ref().is_err_and(is_right), "{what}: {put:?}");
        assert_eq!(asked.len(), 1, "{what}: it will be so next time, too");
    }
}

/// Answers come in another order than requests, some of them to what nobody waits for any more, and some twice: each change
/// has its own.
#[test]
fn answers_come_in_any_order() {
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    scene.moves(1, B);
    scene.moves(3, B);
    let all: Vec<[u8; 8]> = keys(scene.client.config(), 5).into_values().flatten().collect();
    let expected = |key: &[u8]| match key[0] % 4 {
        0 => Outcome::Done,
        1 => Outcome::Full,
        2 => Outcome::Absent,
        _ => Outcome::Exists,
    };
    let script = move |_, requests: &[Request]| {
        let stale = Reply { copy: 1 << 40, ended: Ok(Outcome::Full) };
        let answers = requests.iter().rev().flat_map(|it| {
            let outcome = expected(&it.key);
            let other = if outcome == Outcome::Done { Outcome::Full } else { Outcome::Done };
            [done(it, outcome), done(it, other), Ended::Lost(it.copy)]
        });
        std::iter::once(Ended::Replied(stale)).chain(answers).collect()
    };
    let entries: Vec<_> = all.iter().map(|key| (key, b"value")).collect();
    let put = |client: &mut ClusterClient| client.put_many_with(&entries, PutMode::Insert).unwrap();
    let (put, asked) = scene.answered(&mut asks, script, put);
    for (key, ended) in all.iter().zip(put) {
        match expected(key) {
            Outcome::Full => assert!(matches!(ended, Err(ClusterError::Full { .. })), "{ended:?}"),
            outcome => assert_eq!(ended.unwrap(), outcome == Outcome::Done, "{key:?}"),
        }
    }
    assert_eq!(asked.len(), all.len());
    let config = scene.client.config();
    for (node, request) in asked {
        assert_eq!(request.shard, config.shard_of(&request.key));
        assert_eq!(node, if request.shard % 2 == 1 { B } else { A });
    }
}

/// Of a handle's requests with ids, one is under way in each shard: the next one goes when that has ended, whatever its end.
#[test]
fn a_lane_has_one_request_in_each_shard() {
    let (mut scene, mut asks) = Scene::new([A, B], 60 * SECOND);
    let all: Vec<[u8; 8]> = keys(scene.client.config(), 4).into_values().flatten().collect();
    let mut last = BTreeMap::<ShardIx, (u64, bool)>::new();
    let script = move |_, requests: &[Request]| {
        let mut answer = |request: &Request| {
            let number = request.id.expect("it has one").number;
            let (before, is_lost) = last.get(&request.shard).copied().unwrap_or_default();
            match is_lost {
                true => assert_eq!(number, before, "it is made again before others"),
                false => assert!(number > before),
            }
            // The first copy of every other one is lost.
            let loses = !is_lost && number.is_multiple_of(2);
            last.insert(request.shard, (number, loses));
            if loses { lost(request) } else { done(request, Outcome::Done) }
        };
        let shards: BTreeSet<ShardIx> = requests.iter().map(|request| request.shard).collect();
        assert_eq!(shards.len(), requests.len(), "one of each shard");
        requests.iter().map(&mut answer).collect()
    };
    let entries: Vec<_> = all.iter().map(|key| (key, b"value")).collect();
    let put = |client: &mut ClusterClient| client.clone().exactly_once(true).put_many(&entries);
    let (put, asked) = scene.answered(&mut asks, script, put);
    put.into_iter().for_each(|ended| ended.unwrap());
    assert_eq!(asked.len(), 16 + 8);
}

// ---- scans --------------------------------------------------------------------------------------

/// Two nodes' tables, served here. All keys of all shards are in both, with other values.
pub(super) struct Nodes {
    _dir: tempfile::TempDir,
    _servers: [Server; 2],
    pub(super) ids: [NodeId; 2],
    clients: [Client; 2],
    pub(super) keys: BTreeMap<ShardIx, Vec<[u8; 8]>>,
}

pub(super) fn nodes(config: &ClusterConfig) -> Nodes {
    let dir = tempfile::tempdir().unwrap();
    // More than a reply has room for.
    let keys = keys(config, 800);
    let serve = |name: &str| {
        let address = Address::Shm(dir.path().join(name));
        let table = Config::new().size(TableSize::Keys(10_000)).key_max(8).value_max(64);
        let server = Server::start(ServerConfig::new(address.clone(), table)).unwrap();
        let mut client = Client::connect(&address).unwrap();
        let value = name.repeat(40).into_bytes();
        let entries: Vec<_> = keys.values().flatten().map(|key| (key, &value)).collect();
        assert!(client.put_many(&entries).unwrap().iter().all(Result::is_ok));
        (server, client)
    };
    let ((one, a), (other, b)) = (serve("a"), serve("b"));
    let ids = [&a, &b].map(|client| NodeId(client.geometry().generation()));
    Nodes { _dir: dir, _servers: [one, other], ids, clients: [a, b], keys }
}

impl Nodes {
    /// A client of both. All shards are the first one's, and leased.
    pub(super) fn scene(&self) -> Scene {
        let (mut scene, _) = Scene::new(self.ids, 60 * SECOND);
        for (id, client) in self.ids.iter().zip(&self.clients) {
            lock(&scene.client.shared.tables).insert(*id, client.clone());
        }
        scene.lease(self.ids[0], &[0, 1, 2, 3]);
        scene
    }
}

/// From where each key was shown, once or more.
type Shown = BTreeMap<[u8; 8], BTreeSet<u8>>;

/// Scans, and runs this before the batch with each number, from 0 on.
fn scanned(scene: &mut Scene, mut before: impl FnMut(usize, &mut Scene)) -> (Shown, usize) {
    let (mut shown, mut batches) = (Shown::new(), 0);
    let mut scan = ScanState::new(&scene.client.config().clone(), b"", true);
    loop {
        before(batches, scene);
        let Some(batch) = scan.next_batch(&mut scene.client).unwrap() else { return (shown, batches) };
        for found in batch {
            let from = found.value.unwrap()[0];
            shown.entry(found.key.try_into().unwrap()).or_default().insert(from);
        }
        batches += 1;
    }
}

/// A shard that moves while its node's table is scanned is scanned at its next primary from the beginning on, however far the
/// scan had come; and others go on where they are. So it is with a shard that comes back, in another epoch.
#[test]
fn a_scan_follows_shards_that_move() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    let count = 4 * 800;
    let (shown, batches) = scanned(&mut nodes.scene(), |_, _| {});
    assert_eq!((shown.len(), shown.values().all(|from| *from == BTreeSet::from([b'a']))), (count, true));
    assert!(batches > 3, "{batches}: it takes some replies");
    for at in 0..batches {
        for moved in [&[1][..], &[0, 1, 2, 3], &[3, 2]] {
            let (shown, _) = scanned(&mut nodes.scene(), |batch, scene| {
                if batch == at {
                    moved.iter().for_each(|shard| scene.moves(*shard, nodes.ids[1]));
                    scene.lease(nodes.ids[1], moved);
                    scene.lease(nodes.ids[0], &[0, 1, 2, 3]);
                }
            });
            assert_eq!(shown.len(), count, "{at} {moved:?}");
            for (shard, key) in
                nodes.keys.iter().flat_map(|(shard, keys)| keys.iter().map(move |key| (shard, key)))
            {
                let from = if moved.contains(shard) { b'b' } else { b'a' };
                assert!(
                    shown[key].contains(&from),
                    "{at} {moved:?}: {key:?} of {shard} from {:?}",
                    shown[key]
                );
            }
        }
    }
}

/// A pass of an epoch before counts for nothing: a shard that was away and is back is shown again from the beginning on.
#[test]
fn a_scan_counts_no_pass_of_another_epoch() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    let (_, batches) = scanned(&mut nodes.scene(), |_, _| {});
    for at in 1..batches {
        let mut seen_again = Shown::new();
        let mut scene = nodes.scene();
        let mut scan = ScanState::new(&config, b"", true);
        for nth in 0.. {
            if nth == at {
                scene.moves(1, nodes.ids[1]);
                scene.moves(1, nodes.ids[0]);
                scene.lease(nodes.ids[0], &[0, 1, 2, 3]);
            }
            let Some(batch) = scan.next_batch(&mut scene.client).unwrap() else { break };
            if nth >= at {
                for found in batch.into_iter().filter(|found| config.shard_of(&found.key) == 1) {
                    seen_again.entry(found.key.try_into().unwrap()).or_default();
                }
            }
        }
        assert_eq!(seen_again.len(), 800, "{at}: all of its keys, from the beginning on");
    }
}

/// A shard moves while a batch waits for a lease: what the old primary has of it then counts for nothing.
#[test]
fn a_scan_looks_again_who_is_primary() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    let (_, batches) = scanned(&mut nodes.scene(), |_, _| {});
    for at in 0..batches {
        let (mut scene, mut shown) = (nodes.scene(), Shown::new());
        let mut client = scene.client.clone();
        let mut scan = ScanState::new(&config, b"", true);
        for nth in 0.. {
            let batch = std::thread::scope(|scope| {
                if nth == at {
                    scene.lease(nodes.ids[0], &[]);
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(30));
                        scene.moves(1, nodes.ids[1]);
                        scene.lease(nodes.ids[1], &[1]);
                        scene.lease(nodes.ids[0], &[0, 2, 3]);
                    });
                }
                scan.next_batch(&mut client).unwrap()
            });
            let Some(batch) = batch else { break };
            for found in batch {
                let from = found.value.unwrap()[0];
                shown.entry(found.key.try_into().unwrap()).or_default().insert(from);
            }
        }
        assert_eq!(shown.len(), 4 * 800, "{at}");
        assert!(nodes.keys[&1].iter().all(|key| shown[key].contains(&b'b')), "{at}");
    }
}

/// While a batch waits for a lease, one shard of the pass moves, or stays closed: the others of the pass go on, and are shown once.
#[test]
fn a_shard_holds_no_other_one_up() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    for (shard, moves) in (0..SHARDS).flat_map(|shard| [(shard, false), (shard, true)]) {
        let (mut scene, mut shown) = (nodes.scene(), BTreeMap::<[u8; 8], u32>::new());
        let others: Vec<ShardIx> = (0..SHARDS).filter(|other| *other != shard).collect();
        let mut client = scene.client.clone();
        let mut scan = ScanState::new(&config, b"", true);
        let mut is_served = false;
        for nth in 0.. {
            let batch = std::thread::scope(|scope| {
                if nth == 1 {
                    scene.lease(nodes.ids[0], &[]);
                    let (scene, others, ids) = (&mut scene, &others, nodes.ids);
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(30));
                        if moves {
                            scene.moves(shard, ids[1]);
                        }
                        scene.lease(ids[0], others);
                    });
                }
                scan.next_batch(&mut client)
            });
            let Some(batch) = batch.unwrap() else { break };
            for found in batch {
                *shown.entry(found.key.try_into().unwrap()).or_default() += 1;
            }
            let is_shown = |shard: &ShardIx| nodes.keys[shard].iter().all(|key| shown.contains_key(key));
            // When the others are shown, this one is served again.
            if !is_served && others.iter().all(is_shown) {
                is_served = true;
                let there = if moves { nodes.ids[1] } else { nodes.ids[0] };
                scene.lease(nodes.ids[0], &others);
                scene.lease(there, &(0..SHARDS).collect::<Vec<_>>());
            }
        }
        let case = format!("{shard}, moves: {moves}");
        assert_eq!(shown.len(), 4 * 800, "{case}");
        for other in &others {
            let more: Vec<_> = nodes.keys[other].iter().filter(|key| shown[*key] != 1).collect();
            assert!(more.is_empty(), "{case}: {} of {other} are shown again", more.len());
        }
    }
}

// ---- GETs ---------------------------------------------------------------------------------------

/// At an address where a node was there is another one's table by now: nothing of that counts, and the handle connects again. So
/// it does where nobody READs the node's page any more.
#[test]
fn a_handle_connects_again() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    let mut scene = nodes.scene();
    let key = nodes.keys[&0][0];
    let table = |scene: &Scene, of: usize| {
        lock(&scene.client.shared.tables).insert(nodes.ids[0], nodes.clients[of].clone());
    };
    type Get = fn(&mut ClusterClient, &[u8; 8]) -> Result<Option<u8>, ClusterError>;
    let first = |value: Option<Vec<u8>>| value.map(|value| value[0]);
    let gets: [Get; 2] = [
        |client, key| client.get(key).map(|value| value.map(|value| value[0])),
        |client, key| client.get_many(&[key]).map(|mut all| all.remove(0).map(|value| value[0])),
    ];
    for get in gets {
        let mut scene = nodes.scene();
        table(&scene, 1);
        scene.client.deadline = SECOND / 10;
        let other = get(&mut scene.client, &key);
        let is_gone = |why: &str| why.contains("is gone");
        assert!(matches!(&other, Err(ClusterError::Unavailable { why, .. }) if is_gone(why)), "{other:?}");
        table(&scene, 0);
        scene.client.deadline = 60 * SECOND;
        assert_eq!(get(&mut scene.client, &key).unwrap(), Some(b'a'));
    }
    assert_eq!(first(scene.client.get(&key).unwrap()), Some(b'a'));
    // Who kept the lease has given up, and the node is away: it is looked for where it says to be, which is nowhere.
    scene.client.shared.lose_table(nodes.ids[0]);
    scene.lease(nodes.ids[0], &[]);
    scene.client.deadline = SECOND / 10;
    let away = scene.client.get(&key);
    let is_looked_for = |why: &str| why.contains("names no address");
    assert!(matches!(&away, Err(ClusterError::Unavailable { why, .. }) if is_looked_for(why)), "{away:?}");
    table(&scene, 0);
    scene.lease(nodes.ids[0], &[0, 1, 2, 3]);
    scene.client.deadline = 60 * SECOND;
    assert_eq!(first(scene.client.get(&key).unwrap()), Some(b'a'));
}

/// A value counts from who is primary, under a lease that lasts: neither from a shard that is closed, nor from who was primary
/// before. Alone, and with others.
#[test]
fn values_count_under_leases() {
    let config = Scene::new([A, B], SECOND).0.client.config().clone();
    let nodes = nodes(&config);
    let mut scene = nodes.scene();
    let key = |shard| nodes.keys[&shard][0];
    let from = |value: Option<Vec<u8>>| value.map(|value| value[0]);
    scene.moves(1, nodes.ids[1]);
    scene.lease(nodes.ids[1], &[1]);
    let all: Vec<_> = [0, 1, 2, 1].map(key).to_vec();
    let got = scene.client.get_many(&all).unwrap();
    assert_eq!(got.into_iter().map(from).collect::<Vec<_>>(), [b'a', b'b', b'a', b'b'].map(Some));
    assert_eq!(from(scene.client.get(&key(1)).unwrap()), Some(b'b'));
    // It moves back, and is not leased there yet.
    scene.moves(1, nodes.ids[0]);
    scene.client.deadline = SECOND / 10;
    for refused in [scene.client.get(&key(1)).map(drop), scene.client.get_many(&all).map(drop)] {
        assert!(matches!(refused, Err(ClusterError::Unavailable { shard: 1, .. })), "{refused:?}");
    }
    assert_eq!(from(scene.client.get(&key(0)).unwrap()), Some(b'a'), "others are");
    assert_eq!(from(scene.client.get_advisory(&key(1)).unwrap()), Some(b'a'), "it asks for none");
    scene.lease(nodes.ids[0], &[1]);
    scene.client.deadline = 60 * SECOND;
    assert_eq!(from(scene.client.get(&key(1)).unwrap()), Some(b'a'));
    // All others are closed now.
    scene.client.deadline = SECOND / 10;
    assert!(scene.client.get(&key(0)).is_err());
    assert!(scene.client.has_lease(&key(1)) && !scene.client.has_lease(&key(0)));
}
