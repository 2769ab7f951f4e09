//! A node's table: what fits, what a walk shows, what survives, what is refused.

use super::*;
use crate::core::hash::ShardHash;
use crate::core::message::{Entry, Life, Outcome, Store};
use crate::core::node::Node;
use crate::core::results::{self, ResultKey};
use crate::core::state::{Adoption, Lived, NodeAbout, NodeId, NodeIds, ShardState, Timing, Word};
use crate::room::with_lengths;
use oneread::{Address, Backing, Config, ServerConfig, StartMode, TableSize};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::Path;
use tempfile::TempDir;

fn cluster(shards: ShardIx, value_max: u32) -> ClusterConfig {
    let timing = Timing::default();
    ClusterConfig { shards, replicas: 2, hash: ShardHash::new(1), key_max: 64, value_max, timing }
}

fn server(folder: &Path, table: Config) -> ServerConfig {
    ServerConfig::new(Address::Shm(folder.join("table.sock")), table)
}

/// A server in a folder, and the table.
fn table(size: TableSize, cluster: &ClusterConfig) -> (NodeTable, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = with_lengths(Config::new().size(size), cluster);
    let server = Arc::new(DrivenServer::start(server(folder.path(), config)).unwrap());
    let (table, page, notes) = NodeTable::open(server, cluster.clone()).unwrap();
    assert_eq!((page, notes), (Page::default(), Notes::default()));
    (table, folder)
}

/// The longest page and notes that there are.
fn longest(cluster: &ClusterConfig) -> (Page, Notes) {
    let lived = Lived { life: u64::MAX, number: u64::MAX };
    let shards = usize::from(cluster.shards);
    let word = Word { epoch: u64::MAX, is_open: true };
    let state = ShardState {
        revision: u64::MAX,
        epoch: u64::MAX,
        primary: Some(NodeId(u64::MAX)),
        in_sync: (0..16).map(|low| NodeId(u64::MAX - low)).collect::<NodeIds>(),
        waits: true,
    };
    let adoption = Adoption { number: u64::MAX, etcd: u64::MAX };
    let page = Page { asked: lived, held: lived, words: vec![word; shards] };
    (page, Notes { adoption, past: vec![u64::MAX; 100], newest: vec![state; shards] })
}

/// The longest intent.
fn longest_intent(cluster: &ClusterConfig) -> Intent {
    let life = Life::Owned(OWNER_MAX, Some(End(u64::MAX)));
    let key = Bytes::from(vec![0xa5; cluster.key_max.into()]);
    let entry = Entry { value: Bytes::from(vec![0xa5; cluster.value_max as usize]), life };
    Intent::of(u64::MAX, &[(key, Some(entry)), outcome(u64::MAX)]).unwrap()
}

/// The outcome of a lane's request with this number.
fn outcome(number: u64) -> Store {
    let value = results::encode(number, Outcome::Done);
    (ResultKey::new(0, u64::MAX).0, Some(Entry { value, life: Life::Lasting }))
}

// ---- what fits ----

/// How long values are.
#[derive(Clone, Copy, Debug)]
enum Lens {
    /// None that is not in its slot.
    Tiny,
    /// All as long as they may be.
    Longest,
    /// All just too long for a slot.
    JustLong,
    /// Any.
    Any,
    /// Most are tiny, some are long.
    Mixed,
}

const ALL: [Lens; 5] = [Lens::Tiny, Lens::Longest, Lens::JustLong, Lens::Any, Lens::Mixed];

/// A table that is kept within what it says that it holds.
struct Filled {
    table: NodeTable,
    _folder: TempDir,
    rng: StdRng,
    value_max: usize,
    memory: u64,
    sum: u64,
    /// Keys, and the lengths of their values.
    entries: FxHashMap<Vec<u8>, usize>,
    keys: Vec<Vec<u8>>,
    value: Vec<u8>,
    what: String,
}

impl Filled {
    fn new(size: TableSize, cluster: &ClusterConfig, seed: u64) -> Filled {
        let (mut table, folder) = self::table(size, cluster);
        let (page, notes) = longest(cluster);
        table.store_page(&page).unwrap();
        table.store_notes(&notes).unwrap();
        table.store_intent(Some(&longest_intent(cluster))).unwrap();
        let value_max = cluster.value_max as usize;
        Filled {
            memory: table.memory(),
            table,
            _folder: folder,
            rng: StdRng::seed_from_u64(seed),
            value_max,
            sum: 0,
            entries: FxHashMap::default(),
            keys: Vec::new(),
            value: vec![0xa5; value_max],
            what: format!("{size}"),
        }
    }

    fn len(&mut self, lens: Lens) -> usize {
        let any = self.rng.random_range(0..=self.value_max);
        match lens {
            Lens::Tiny => self.rng.random_range(0..20),
            Lens::Longest => self.value_max,
            Lens::JustLong => self.rng.random_range(100..200),
            Lens::Any => any,
            Lens::Mixed if self.rng.random_range(0..8) == 0 => any,
            Lens::Mixed => self.rng.random_range(0..40),
        }
    }

    fn new_key(&mut self) -> Vec<u8> {
        let mut key = vec![0; self.rng.random_range(4..=64)];
        self.rng.fill_bytes(&mut key);
        // None of the cluster's own, and none that is there.
        key[0] |= 1;
        key
    }

    /// Puts it if it is within what fits. Then it must fit.
    fn put(&mut self, key: Vec<u8>, len: usize) -> bool {
        let before = self.entries.get(&key).map_or(0, |before| self.table.cost(&key, *before));
        let cost = self.table.cost(&key, len);
        if self.sum - before + cost > self.memory {
            return false;
        }
        let value = &self.value[..len];
        if self.table.put(&key, value, Life::Lasting).is_err() {
            let why = self.table.index().put(&key, value, PutMode::Upsert);
            let (heap, growth) = (self.table.index().heap(), self.table.index().growth());
            panic!(
                "{}: {} of {} bytes with {} keys, and a value of {len} is refused: {why:?}; {heap:?} {growth:?}",
                self.what,
                self.sum,
                self.memory,
                self.entries.len()
            );
        }
        self.sum = self.sum - before + cost;
        if self.entries.insert(key.clone(), len).is_none() {
            self.keys.push(key);
        }
        true
    }

    fn fill(&mut self, lens: Lens) {
        let mut refused = 0;
        // Near the end only short ones fit.
        while refused < 20 {
            let (key, len) = (self.new_key(), self.len(lens));
            if !self.put(key, len) {
                refused += 1;
            }
        }
    }

    fn remove(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.keys.len());
        let key = self.keys.swap_remove(at);
        let len = self.entries.remove(&key).unwrap();
        self.table.remove(&key).unwrap();
        self.sum -= self.table.cost(&key, len);
    }

    fn churn(&mut self, lens: Lens, times: usize) {
        let cluster = self.table.cluster.clone();
        let ((page, notes), intent) = (longest(&cluster), longest_intent(&cluster));
        for number in 0..times {
            let len = self.len(lens);
            match self.rng.random_range(0..4) {
                0 | 1 if !self.keys.is_empty() => {
                    let at = self.rng.random_range(0..self.keys.len());
                    let key = self.keys[at].clone();
                    self.put(key, len);
                }
                2 => self.remove(),
                _ => {
                    let key = self.new_key();
                    self.put(key, len);
                }
            }
            if number % 10 == 0 {
                self.table.store_intent(Some(&intent).filter(|_| number % 20 == 0)).unwrap();
            }
            if number % 1_000 == 0 {
                self.table.store_page(&page).unwrap();
                self.table.store_notes(&notes).unwrap();
            }
        }
    }

    /// Bytes of keys and values, of all that the table may take.
    fn share(&self) -> f64 {
        let bytes: usize = self.entries.iter().map(|(key, len)| key.len() + len).sum();
        bytes as f64 / self.table.geometry().bytes_max() as f64
    }

    /// All is there, and nothing else.
    fn check(&mut self) {
        for (key, len) in &self.entries {
            assert_eq!(self.table.value_len(key), Some(*len));
        }
        let stock = self.table.stock(self.table.cluster.shards);
        let sums = stock.iter().fold((0, 0), |sums, stock| (sums.0 + stock.entries, sums.1 + stock.bytes));
        assert_eq!(sums, (self.entries.len() as u64, self.sum));
        for (shard, stock) in stock.iter().enumerate() {
            let of = |key: &&Vec<u8>| usize::from(self.table.cluster.shard_of(key)) == shard;
            let entries = self.keys.iter().filter(of);
            let cost = |key: &Vec<u8>| self.table.cost(key, self.entries[key]);
            let expected = entries.fold(Stock::default(), |sum, key| Stock {
                entries: sum.entries + 1,
                bytes: sum.bytes + cost(key),
                ..sum
            });
            assert_eq!(*stock, expected);
        }
    }
}

fn fits(size: TableSize, cluster: &ClusterConfig) {
    // One more seed for whoever changes a factor.
    let seed = std::env::var("ONEREAD_SEED").map_or(0, |seed| seed.parse().unwrap());
    for (number, lens) in ALL.into_iter().enumerate() {
        let mut filled = Filled::new(size, cluster, 10 * seed + number as u64);
        filled.what = format!("{size}, {lens:?}");
        filled.fill(lens);
        let (keys, share) = (filled.keys.len(), filled.share());
        let memory = filled.memory as f64 / filled.table.geometry().bytes_max() as f64;
        println!(
            "{size}, {lens:?}: {keys} keys fill {share:.3} of the table's bytes; for shards are {memory:.3}"
        );
        assert!(keys > 0, "nothing fits");
        filled.check();
        for then in ALL {
            filled.what = format!("{size}, {lens:?}, churn with {then:?}");
            filled.churn(then, (3 * keys).clamp(4_000, 30_000));
            filled.what = format!("{size}, {lens:?}, filled again with {then:?}");
            filled.fill(then);
        }
        filled.check();
        // Nearly all goes at once, and something else comes.
        for then in ALL {
            filled.what = format!("{size}, {lens:?}, emptied, then {then:?}");
            for _ in 0..filled.keys.len() * 9 / 10 {
                filled.remove();
            }
            filled.fill(then);
        }
        filled.check();
    }
}

#[test]
fn what_a_growing_table_says_fits() {
    fits(TableSize::up_to(16 << 20), &cluster(4, 4_096));
}

#[test]
fn what_a_growing_table_of_long_values_says_fits() {
    fits(TableSize::up_to(64 << 20), &cluster(64, 1 << 20));
}

#[test]
fn what_a_table_of_one_size_says_fits() {
    fits(TableSize::Keys(20_000), &cluster(4, 4_096));
}

// ---- walks ----

fn key_of(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Every key of a shard that is there throughout is in its walk, while others come and go and the table grows and shrinks.
#[test]
fn a_walk_shows_what_is_there_throughout() {
    let cluster = cluster(4, 4_096);
    let (mut table, _folder) = table(TableSize::up_to(64 << 20), &cluster);
    let (page, notes) = longest(&cluster);
    table.store_page(&page).unwrap();
    table.store_notes(&notes).unwrap();
    for number in 0..5_000 {
        table.put(&key_of(number), b"stays", Life::Lasting).unwrap();
    }
    // Outcomes of requests are walked with their shard; other keys of the cluster's own are not.
    let results: Vec<Key> = (0..50).map(|lane| ResultKey::new((lane % 4) as ShardIx, lane).0).collect();
    results.iter().for_each(|key| table.put(key, b"outcome", Life::Lasting).unwrap());
    let (mut next, mut segments) = (5_000, FxHashSet::default());
    for shard in 0..4 {
        let mut stays: FxHashSet<Vec<u8>> =
            (0..5_000).map(key_of).filter(|key| cluster.shard_of(key) == shard).collect();
        stays.extend(results.iter().filter(|key| cluster.shard_of(key) == shard).map(|key| key.to_vec()));
        assert!(stays.len() > 500);
        let (mut from, mut calls) = (None, 0);
        loop {
            let (keys, on) = table.walk(shard, from);
            for key in keys {
                assert_eq!(cluster.shard_of(&key), shard);
                assert_ne!(&key[..], PAGE_KEY);
                assert_ne!(&key[..], NOTES_KEY);
                stays.remove(&key[..]);
            }
            calls += 1;
            segments.insert(table.index().growth().segments);
            // Walks 0 and 2 run while it grows, the others while it shrinks.
            if shard % 2 == 0 && next < 100_000 {
                (next..next + 2_000)
                    .for_each(|number| table.put(&key_of(number), b"comes", Life::Lasting).unwrap());
                next += 2_000;
            } else if shard % 2 == 1 {
                let first = next.saturating_sub(2_000).max(5_000);
                (first..next).for_each(|number| table.remove(&key_of(number)).unwrap());
                next = first;
                table.index().shrink();
            }
            match on {
                Some(on) => from = Some(on),
                None => break,
            }
            assert!(calls < 100_000, "the walk does not end");
        }
        assert!(stays.is_empty(), "shard {shard}: {} keys were missed in {calls} calls", stays.len());
    }
    assert!(segments.len() > 4, "it has hardly grown: {segments:?}");
}

#[test]
fn a_walk_of_nothing_ends() {
    let (mut table, _folder) = table(TableSize::up_to(16 << 20), &cluster(4, 100));
    let (mut from, mut calls) = (None, 0);
    loop {
        let (keys, on) = table.walk(1, from);
        assert!(keys.is_empty());
        calls += 1;
        match on {
            Some(on) => from = Some(on),
            None => break,
        }
    }
    assert!(calls < 1_000, "{calls}");
}

/// What is taken stock of is of the shards that are asked for.
#[test]
fn stock_is_taken_by_shard() {
    let cluster = cluster(4, 4_096);
    let (mut table, _folder) = table(TableSize::up_to(16 << 20), &cluster);
    assert_eq!(table.stock(4), vec![Stock::default(); 4]);
    for number in 0..1_000 {
        table.put(&key_of(number), &vec![1; number as usize], Life::Lasting).unwrap();
    }
    table.put(&ResultKey::new(3, 7).0, b"outcome", Life::Lasting).unwrap();
    table.put(&ResultKey::new(9, 7).0, b"of a shard that there is not", Life::Lasting).unwrap();
    let stock = table.stock(4);
    assert_eq!(stock.iter().map(|stock| stock.entries).sum::<u64>(), 1_001);
    assert_eq!(table.stock(2), stock[..2]);
    (0..1_000).for_each(|number| table.remove(&key_of(number)).unwrap());
    assert_eq!(table.stock(3), vec![Stock::default(); 3]);
}

// ---- what survives, and what is refused ----

#[test]
fn page_and_notes_survive() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(1_024, 100);
    let table = with_lengths(Config::new().size(TableSize::up_to(64 << 20)), &cluster);
    let config = server(folder.path(), table)
        .backing(Backing::File(folder.path().join("region")))
        .start(StartMode::OpenOrCreate);
    let (page, notes) = longest(&cluster);
    let mut id = None;
    for round in 0..3 {
        let server = Arc::new(DrivenServer::start(config.clone()).unwrap());
        let (mut table, found_page, found_notes) = NodeTable::open(server, cluster.clone()).unwrap();
        let generation = table.geometry().generation();
        assert_eq!(*id.get_or_insert(generation), generation);
        match round {
            0 => {
                assert_eq!((found_page, found_notes), (Page::default(), Notes::default()));
                table.store_page(&page).unwrap();
                table.store_notes(&notes).unwrap();
                table.put(b"key", b"value", Life::Lasting).unwrap();
            }
            1 => {
                assert_eq!((&found_page, &found_notes), (&page, &notes));
                table.store_page(&Page { words: Vec::new(), ..page.clone() }).unwrap();
            }
            _ => {
                assert_eq!((found_page.words, found_notes), (Vec::new(), notes.clone()));
                assert_eq!(table.get(b"key").as_deref(), Some(&b"value"[..]));
                assert_eq!((table.value_len(b"key"), table.value_len(b"none")), (Some(5), None));
            }
        }
    }
}

/// CL15: a process is killed in the middle of a change with an outcome. The next one does the rest, if its first store was
/// made; else nothing of it was.
#[test]
fn what_was_half_done_is_done() {
    let cluster = ClusterConfig { shards: 1, ..cluster(1, 100) };
    let entry = |value: &'static [u8]| Some(Entry { value: Bytes::from_static(value), life: Life::Lasting });
    let old = entry(b"old");
    let cases = [
        // Before, the change, the beats since, whether its entry was stored, and its outcome known in the end.
        (None, entry(b"new"), 0, true, true),
        (None, entry(b"new"), 0, false, false),
        (old.clone(), entry(b"new"), 0, true, true),
        (old.clone(), entry(b"new"), 0, false, false),
        (old.clone(), None, 0, true, true),
        (old.clone(), None, 0, false, false),
        // Nobody can tell, and both are right.
        (old.clone(), entry(b"old"), 0, false, true),
        // A version went on that knows no intents.
        (old.clone(), entry(b"new"), 1, true, false),
    ];
    for (number, (before, after, beats, is_stored, is_known)) in (0..).zip(cases) {
        let folder = tempfile::tempdir().unwrap();
        let table = with_lengths(Config::new().size(TableSize::up_to(16 << 20)), &cluster);
        let config = server(folder.path(), table)
            .backing(Backing::File(folder.path().join("region")))
            .start(StartMode::OpenOrCreate);
        let open = || {
            let server = Arc::new(DrivenServer::start(config.clone()).unwrap());
            NodeTable::open(server, cluster.clone()).unwrap()
        };
        let key = Bytes::from_static(b"key");
        let (mut table, ..) = open();
        let asked = Lived { number: 5 + beats, ..Lived::default() };
        table.store_page(&Page { asked, ..Page::default() }).unwrap();
        let mut store = |entry: &Option<Entry>| match entry {
            Some(entry) => table.put(&key, &entry.value, entry.life).unwrap(),
            None => table.remove(&key).unwrap(),
        };
        store(&before);
        if is_stored {
            store(&after);
        }
        let stores = [(key.clone(), after.clone()), outcome(7)];
        table.store_intent(Intent::of(5, &stores).as_ref()).unwrap();
        drop(table);
        // It is killed again before it has done anything.
        drop(open());
        let (table, page, notes) = open();
        drop(Node::new(NodeId(1), NodeAbout::default(), 1, cluster.timing, table, page, notes));
        let (mut table, ..) = open();
        assert_eq!(table.intent(), None, "{number}");
        let is_there = if is_stored { after } else { before };
        assert_eq!(table.get(&key), is_there.map(|entry| entry.value), "{number}");
        let known = table.get(&outcome(7).0).and_then(|value| results::decode(&value));
        assert_eq!(known, is_known.then_some((7, Outcome::Done)), "{number}");
    }
}

fn refused(size: TableSize, change: impl FnOnce(&DrivenServer)) -> TableError {
    let folder = tempfile::tempdir().unwrap();
    let config = with_lengths(Config::new().size(size), &cluster(4, 100));
    let server = Arc::new(DrivenServer::start(server(folder.path(), config)).unwrap());
    change(&server);
    NodeTable::open(server, cluster(4, 100)).map(|_| ()).unwrap_err()
}

#[test]
fn what_is_no_nodes_table_is_refused() {
    let put = |key: &'static [u8], value: &'static [u8]| {
        move |server: &DrivenServer| {
            server.server().index().put(key, value, PutMode::Upsert).unwrap();
        }
    };
    let size = TableSize::up_to(16 << 20);
    let foreign = refused(size, put(b"key", b"value"));
    assert!(matches!(foreign, TableError::Foreign { entries: 1 }), "{foreign}");
    // Of a later version, damaged, cut short, empty.
    for (key, what) in [(PAGE_KEY, "page"), (NOTES_KEY, "notes")] {
        for wrong in [&[FORM + 1, 0, 0][..], &[FORM, 0xff, 0xff, 0xff], &[FORM], &[]] {
            let unreadable = refused(size, put(key, wrong));
            assert!(
                matches!(&unreadable, TableError::Unreadable { what: of, .. } if *of == what),
                "{unreadable}"
            );
            assert!(unreadable.to_string().contains(what), "{unreadable}");
        }
    }
    // Shorter keys, and shorter values: also than the notes are.
    for (key_max, value_max) in [(63, 1 << 20), (64, 4_095), (64, 4_096)] {
        let folder = tempfile::tempdir().unwrap();
        let table = Config::new().size(size).key_max(key_max).value_max(value_max);
        let server = Arc::new(DrivenServer::start(server(folder.path(), table)).unwrap());
        let short = NodeTable::open(server, cluster(4, 4_096)).map(|_| ()).unwrap_err();
        assert!(matches!(short, TableError::Lengths { .. }), "{short}");
        assert!(short.to_string().contains(&format!("{value_max}")), "{short}");
    }
}
