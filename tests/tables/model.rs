//! The table against a `HashMap`: the same operations must give the same answers, on every preset.
//! The tables are tiny, so that nearly every insert has to move a key.

use crate::common::*;
use oneread::internals::fabric::shm::Shm;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::geometry::Family;
use oneread::internals::placement::Preset;
use oneread::internals::reader::{Limits, Reader};
use oneread::{PutMode, PutOutcome, embedded::Clock, error::PutError};
use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, RngAlgorithm, TestRng, TestRunner};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

/// The longest key and value for each kind of slot: half a line, one line (with keys of two words, and with
/// keys of several, the last of them cut), two, and seven.
const SHAPES: [(usize, usize); 5] = [(8, 8), (16, 32), (28, 20), (29, 78), (255, 120)];

/// A table, and the operations on it.
#[derive(Clone, Debug)]
struct Story {
    slots: u64,
    shape: (usize, usize),
    seed: u64,
    ops: Vec<Op>,
}

/// Stories about tables of 1 to 64 slots. There are few enough keys that they come back, and enough
/// that the table is mostly full.
fn stories() -> impl Strategy<Value = Story> {
    (1u64..=64, prop::sample::select(&SHAPES[..]), any::<u64>(), 1usize..240).prop_flat_map(
        |(slots, shape, seed, length)| {
            prop::collection::vec(op(2 * slots as u32 + 4, shape), length).prop_map(move |ops| Story {
                slots,
                shape,
                seed,
                ops,
            })
        },
    )
}

fn op(keys: u32, (key_max, value_max): (usize, usize)) -> impl Strategy<Value = Op> {
    let k = (0..keys).prop_map(move |n| key(n, key_max));
    let length = prop_oneof![1 => Just(0), 1 => Just(value_max), 4 => 0..=value_max];
    let v = (any::<u64>(), length).prop_map(|(seed, length)| value(seed, length));
    prop_oneof![
        24 => (k.clone(), v.clone()).prop_map(|(k, v)| Op::Put(k, v)),
        12 => (k.clone(), v.clone()).prop_map(|(k, v)| Op::Insert(k, v)),
        6 => (k.clone(), v.clone()).prop_map(|(k, v)| Op::Update(k, v)),
        6 => (k.clone(), any::<bool>(), v).prop_map(|(k, of_the_key, v)| Op::Swap(k, of_the_key, v)),
        14 => k.clone().prop_map(Op::Remove),
        8 => k.clone().prop_map(Op::Get),
        2 => prop::collection::vec(k, 0..40).prop_map(Op::GetMany),
        // Up to 3T: traces go after 2T.
        4 => (0u64..3 * GRACE.as_micros() as u64).prop_map(|us| Op::AdvanceTime(Duration::from_micros(us))),
        2 => Just(Op::Tidy),
    ]
}

/// Runs `test` on stories that are the same each time.
fn for_stories(cases: u32, test: impl Fn(&Story)) {
    let config = RunnerConfig { cases, failure_persistence: None, ..RunnerConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&stories(), |story| {
        test(&story);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The number of random cases. `PROPTEST_CASES` sets it (cargo-mutants needs few).
fn cases(short: u32) -> u32 {
    let said = std::env::var("PROPTEST_CASES").ok().map(|n| n.parse().expect("a number"));
    let long = std::env::var_os("ONEREAD_LONG").is_some();
    said.unwrap_or(if long { 100 * short } else { short })
}

/// The slot of each key, with key and value.
fn places(table: &Table) -> HashMap<u64, (Vec<u8>, Vec<u8>)> {
    let occupied = table.inspector().slots().filter(|report| !report.key.is_empty());
    occupied.map(|report| (report.slot.0, (report.key, report.value))).collect()
}

/// Whatever is done, a table answers as a map does. It refuses a put only when there is no room,
/// and then stays unchanged. Every GET costs what `placement` says. When all is quiet, nothing is
/// left of the moves.
#[test]
fn every_preset_is_a_map() {
    on_every_preset(|preset| {
        for_stories(cases(200), |story| {
            let (key_max, value_max) = story.shape;
            let mut table = Table::new(&config(preset, story.slots, key_max, value_max, story.seed));
            let mut model = Model::default();
            for op in &story.ops {
                let before = is_insert(op, &model).then(|| places(&table));
                if let Some(newcomer) = model.apply(&mut table, op) {
                    assert_eq!(Some(places(&table)), before, "full, and yet something changed");
                    assert!(is_full_for(&table, &model, &newcomer), "there was room: {op:?}");
                }
            }
            check_structure(&table, &model);
            check_gets(&table, &model, story);
            table.settle();
            check_structure(&table, &model);
            check_settled(&table);
            check_gets(&table, &model, story);
        });
    });
}

fn is_insert(op: &Op, model: &Model) -> bool {
    matches!(op, Op::Put(k, _) | Op::Insert(k, _) if !model.keys.contains_key(k))
}

/// Every key of the story is found with its value or not at all, by the right number of READs.
fn check_gets(table: &Table, model: &Model, story: &Story) {
    let geometry = table.geometry();
    let most = table.geometry().layout().choices as u64 + geometry.overflow_blocks();
    let mut reader = table.reader();
    let mut value = Vec::new();
    for n in 0..2 * story.slots as u32 + 4 {
        let key = key(n, story.shape.0);
        let before = reader.read_counts().reads;
        let found = reader.get_into(&key, &mut value).expect("a conclusive look");
        let reads = reader.read_counts().reads - before;
        assert_eq!(found.then_some(&value), model.keys.get(&key), "{key:02x?}");
        assert!((1..=most).contains(&reads), "{reads} READs for {key:02x?}");
        assert_eq!(reads, reads_expected(table, &key), "READs for {key:02x?}");
    }
    assert_eq!(reader.stats().hits, model.keys.len() as u64);
    assert_eq!(reader.stats().gets, 2 * story.slots + 4);
}

/// Emptying a full table leaves nothing: all slots are free, there are no displaced keys and no
/// chains, and the same keys fit again.
#[test]
fn an_emptied_table_is_like_new() {
    on_every_preset(|preset| {
        for (slots, shape) in [(1, SHAPES[0]), (7, SHAPES[1]), (64, SHAPES[4]), (1000, SHAPES[1])] {
            let mut table = Table::new(&config(preset, slots, shape.0, shape.1, slots));
            let fill = |table: &mut Table, model: &mut Model| {
                // A put without room waits for every trace to go: a few such puts are enough.
                let mut refused = 0;
                for n in 0..2 * slots as u32 {
                    let op = Op::Put(key(n, shape.0), value(n.into(), shape.1));
                    refused += u32::from(model.apply(table, &op).is_some());
                    if refused > 10 {
                        break;
                    }
                }
            };
            let mut model = Model::default();
            fill(&mut table, &mut model);
            let first_time = model.keys.len();
            check_structure(&table, &model);
            // In an order that the table does not know, but the same each time.
            let mut keys: Vec<_> = model.keys.keys().cloned().collect();
            keys.sort_by_key(|k| crc32c::crc32c(k));
            for k in keys {
                model.apply(&mut table, &Op::Remove(k));
            }
            check_structure(&table, &model);
            table.settle();
            check_settled(&table);
            assert_eq!((table.index.len(), table.index.displaced()), (0, 0));
            fill(&mut table, &mut model);
            check_structure(&table, &model);
            assert_eq!(model.keys.len(), first_time, "the same keys fit");
        }
    });
}

/// Keys come and go while there are ghosts, so moves that would tidy up are often forbidden (M3).
/// When the ghosts are gone, nothing is left over: no filter bit, and no empty block in a chain.
#[test]
fn nothing_is_left_when_ghosts_forbid_moves() {
    on_every_preset(|preset| {
        for seed in 0..u64::from(cases(300)) {
            let slots = 1 + seed % 24;
            let mut table = Table::new(&config(preset, slots, 8, 8, seed));
            let mut model = Model::default();
            let mut numbers = Numbers(seed);
            for _ in 0..4 * slots {
                let k = key(numbers.below(2 * slots) as u32, 8);
                let op = match numbers.below(5) {
                    0..3 => Op::Put(k, value(numbers.next(), 8)),
                    _ => Op::Remove(k),
                };
                model.apply(&mut table, &op);
            }
            check_structure(&table, &model);
            table.settle();
            check_structure(&table, &model);
            check_settled(&table);
        }
    });
}

/// Where no ghost forbids it, a delete fills the hole that it makes. The home's window stays full,
/// and its chain has no more blocks than its keys need.
#[test]
fn chains_have_no_holes() {
    on_every_preset(|preset| {
        let block_slots = preset.layout.block_slots as usize;
        for seed in 0..if block_slots == 0 { 0 } else { 8 } {
            let mut table = Table::new(&config(preset, 1, 8, 8, seed));
            let mut model = Model::default();
            let main_slots = table.geometry().main_slots() as usize;
            let check = |table: &Table, model: &Model| {
                check_structure(table, model);
                let in_chain = model.keys.len().saturating_sub(main_slots);
                assert_eq!(linked_blocks(table).len(), in_chain.div_ceil(block_slots), "{in_chain} keys");
            };
            for n in 0..(main_slots + 3 * block_slots) as u32 {
                let full = model.apply(&mut table, &Op::Put(key(n, 8), value(n.into(), 8)));
                if full.is_some() {
                    break;
                }
                check(&table, &model);
            }
            let blocks = linked_blocks(&table).len();
            assert!(blocks > 1, "a chain");
            let (counts, slots) = (table.index.counts(), (main_slots + blocks * block_slots) as u64);
            assert_eq!((counts.slots, counts.main_slots), (slots, main_slots as u64));
            assert_eq!(table.index.load_true(), model.keys.len() as f64 / slots as f64);
            let mut numbers = Numbers(seed);
            while !model.keys.is_empty() {
                let nth = numbers.below(model.keys.len() as u64) as usize;
                let k = model.keys.keys().nth(nth).unwrap().clone();
                model.apply(&mut table, &Op::Remove(k));
                table.settle();
                check(&table, &model);
            }
            assert_eq!(table.index.load_true(), 0.0);
        }
    });
}

/// Lengths at every boundary: the shortest and longest key with the shortest and longest value, and
/// around each place where the payload goes on in the next line.
#[test]
fn lengths_at_every_boundary() {
    let shapes = [(1, 0), (1, 15), (16, 0), (1, 47), (48, 0), (49, 0), (110, 0), (255, 0), (255, 3699)];
    on_every_preset(|preset| {
        for (key_max, value_max) in SHAPES.into_iter().chain(shapes) {
            boundaries(preset, key_max, value_max);
        }
    });
}

fn boundaries(preset: &Preset, key_max: usize, value_max: usize) {
    /// Payload lengths at the end of half a line, one, two and three lines, and their neighbours.
    const EDGES: [usize; 12] = [15, 16, 17, 47, 48, 49, 109, 110, 111, 171, 172, 173];
    let mut table = Table::new(&config(preset, 64, key_max, value_max, 5));
    let mut model = Model::default();
    let keys = (1..=key_max).filter(|k| [1, 2, key_max - 1, key_max].contains(k) || EDGES.contains(k));
    for k in keys {
        let at_edge =
            |v: &usize| [0, 1, value_max].contains(v) || v + 1 == value_max || EDGES.contains(&(k + v));
        for v in (0..=value_max).filter(at_edge) {
            let key = value(k as u64, k);
            assert_eq!(model.apply(&mut table, &Op::Put(key.clone(), value(v as u64, v))), None);
            model.apply(&mut table, &Op::Get(key));
        }
        let before = places(&table);
        let too_long = vec![1; value_max + 1];
        let refused = table.index.put(&value(k as u64, k), &too_long, PutMode::Upsert);
        assert_eq!(refused, Err(PutError::ValueLength { given: value_max + 1, max: value_max }));
        assert_eq!(places(&table), before);
    }
    for given in [0, key_max + 1, 256, 70_000] {
        let before = (places(&table), table.index.counts());
        let (key, wrong) = (vec![7; given], PutError::KeyLength { given, max: key_max });
        assert_eq!(table.index.put(&key, b"", PutMode::Upsert), Err(wrong.clone()));
        assert_eq!(table.index.put(&key, b"", PutMode::Insert), Err(wrong.clone()));
        assert_eq!(table.index.put(&key, b"", PutMode::Update), Err(wrong.clone()));
        assert_eq!(table.index.compare_and_swap(&key, b"", b""), Err(wrong.clone()));
        assert_eq!(table.index.remove(&key), Err(wrong));
        let max = key_max;
        let wrong = oneread::error::ReadError::KeyLength { given, max };
        assert_eq!(table.index.reader().get_into(&key, &mut Vec::new()), Err(wrong.clone()));
        let many = table.index.reader().get_many(&[vec![1], key], |_, _| panic!("checked first"));
        assert_eq!(many, Err(wrong));
        assert_eq!((places(&table), table.index.counts()), before);
    }
    check_structure(&table, &model);
}

/// A batch of GETs answers like single GETs: with more keys than fit in flight, with one key twice,
/// and with no key.
#[test]
fn a_batch_answers_every_key() {
    on_every_preset(|preset| {
        let mut table = Table::new(&config(preset, 200, 16, 32, 9));
        let mut model = Model::default();
        (0..150).for_each(|n| {
            model.apply(&mut table, &Op::Put(key(n, 16), value(n.into(), 20)));
        });
        let keys: Vec<_> = (0..300).chain(0..20).map(|n| key(n, 16)).collect();
        for length in [0, 1, 2, 15, 16, 17, 33, keys.len()] {
            model.apply(&mut table, &Op::GetMany(keys[..length].to_vec()));
            let mut reader = table.reader();
            reader.get_many(&keys[..length], |_, _| {}).unwrap();
            let reads: u64 = keys[..length].iter().map(|k| reads_expected(&table, k)).sum();
            let counts = reader.read_counts();
            assert_eq!(counts.reads, reads, "a batch of {length} READs as much as {length} GETs");
            assert!(counts.doorbells <= counts.reads, "{counts:?}");
            let hits = keys[..length].iter().filter(|key| model.keys.contains_key(*key)).count() as u64;
            assert_eq!((reader.stats().gets, reader.stats().hits), (length as u64, hits));
        }
    });
}

/// A put does what it reports, and `len` and the counters follow.
#[test]
fn a_put_does_what_it_reports() {
    on_every_preset(|preset| {
        let table = Table::new(&config(preset, 64, 8, 8, 3));
        let put = |value: &[u8], mode| table.index.put(b"key", value, mode).unwrap();
        let get = |value: &mut Vec<u8>| table.index.reader().get_into(b"key", value).unwrap();
        let mut value = Vec::new();
        assert_eq!(put(b"a", PutMode::Update), PutOutcome::Missing);
        assert!(!get(&mut value));
        assert_eq!(put(b"b", PutMode::Insert), PutOutcome::Inserted);
        assert_eq!(put(b"c", PutMode::Insert), PutOutcome::Exists);
        assert!(get(&mut value) && value == b"b");
        assert_eq!(put(b"d", PutMode::Update), PutOutcome::Updated);
        assert_eq!(put(b"", PutMode::Upsert), PutOutcome::Updated);
        assert!(get(&mut value) && value.is_empty());
        assert_eq!(table.index.remove(b"key"), Ok(true));
        assert_eq!(table.index.remove(b"key"), Ok(false));
        assert_eq!(put(b"e", PutMode::Upsert), PutOutcome::Inserted);
        let counts = table.index.counts();
        assert_eq!((counts.keys, counts.inserts, counts.updates, counts.removes), (1, 2, 2, 1));
    });
}

/// Deletes bring displaced keys home in all layouts where a key has more than one window, or a
/// chain. Only `pilaf` does not, as published.
#[test]
fn displaced_keys_come_home_except_in_pilaf() {
    on_every_preset(|preset| {
        let table = Table::new(&config(preset, 64, 8, 8, 1));
        let keys: Vec<_> = (0..200).map(|n| key(n, 8)).collect();
        let there = |key: &&Vec<u8>| table.index.put(key, b"", PutMode::Insert).is_ok();
        let there: Vec<_> = keys.iter().filter(there).collect();
        assert!(table.index.displaced() > 0, "{} keys", there.len());
        for key in there {
            table.settle();
            assert_eq!(table.index.remove(key), Ok(true));
        }
        assert_eq!(table.index.counts().homings == 0, preset.name == "pilaf");
    });
}

/// A key or value that is too long is refused. The error names the allowed length and the remedy.
#[test]
fn lengths_out_of_range_are_refused() {
    let table = Table::new(&config(default_preset(), 64, 8, 16, 1));
    let refused = |key: &[u8], value: &[u8]| {
        let error = table.index.put(key, value, PutMode::Upsert).expect_err("refused");
        error.to_string()
    };
    assert_eq!(
        refused(b"", b""),
        "the key is 0 bytes long, this table takes 1 to 8; give one that is not empty"
    );
    assert_eq!(
        refused(b"nine byte", b""),
        "the key is 9 bytes long, this table takes 1 to 8; longer ones need a new table, with a `Config::key_max` of at least 9"
    );
    assert_eq!(
        refused(b"key", &[0; 17]),
        "the value is 17 bytes long, this table takes 0 to 16; longer ones need a new table, with a `Config::value_max` of at least 17"
    );
}

/// Two threads put and remove the same few keys in a nearly full table, while another reads. Each
/// key was inserted as often as it was removed, or once more if it is there. No reader sees an
/// older value of one thread after a newer one.
#[test]
fn two_threads_change_the_same_keys() {
    const KEYS: u32 = 12;
    const CHANGES: u32 = 40_000;
    on_every_preset(|preset| {
        let index = index(&config(preset, 64, 8, 8, 5), Clock::System);
        for n in 0..48 {
            index.put(&key(KEYS + n, 8), &[0; 8], PutMode::Insert).unwrap();
        }
        let inserted = [const { AtomicI64::new(0) }; KEYS as usize];
        let writers_left = AtomicU32::new(2);
        /// Counts a writer out, also one that panics, so that the reader does not wait for it.
        struct Left<'a>(&'a AtomicU32);
        impl Drop for Left<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let change = |thread: u32| {
            let _left = Left(&writers_left);
            let mut numbers = Numbers(thread.into());
            for sequence in 1..=CHANGES {
                let n = numbers.below(KEYS.into()) as u32;
                let by = if numbers.below(2) == 0 {
                    let value: [u8; 8] = bytemuck::cast([thread, sequence]);
                    match index.put(&key(n, 8), &value, PutMode::Upsert) {
                        Ok(put) => i64::from(put == PutOutcome::Inserted),
                        Err(PutError::Full { .. }) => 0,
                        Err(error) => panic!("{error}"),
                    }
                } else {
                    -i64::from(index.remove(&key(n, 8)).unwrap())
                };
                inserted[n as usize].fetch_add(by, Ordering::Relaxed);
            }
        };
        let read = || {
            let (mut newest, mut value) = ([[0; 2]; KEYS as usize], Vec::new());
            let limits = Limits::new().retries_max(u32::MAX).deadline(SOON);
            let fabric = Shm::new(index.region(), index.geometry());
            let mut reader = Reader::new(fabric, index.geometry(), Clock::System, limits);
            let mut hits = 0;
            loop {
                let is_last = writers_left.load(Ordering::Relaxed) == 0;
                for n in 0..KEYS {
                    if reader.get_into(&key(n, 8), &mut value).unwrap() {
                        let [thread, sequence]: [u32; 2] = bytemuck::pod_read_unaligned(&value);
                        let newest = &mut newest[n as usize][thread as usize];
                        assert!(sequence >= *newest, "key {n}: {sequence} of thread {thread} after {newest}");
                        *newest = sequence;
                        hits += 1;
                    }
                }
                if is_last {
                    break;
                }
            }
            assert!(hits > 0, "a reader that sees nothing shows nothing");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| change(0));
            scope.spawn(|| change(1));
            scope.spawn(read);
        });
        let mut value = Vec::new();
        for n in 0..KEYS {
            let is_there = index.reader().get_into(&key(n, 8), &mut value).unwrap();
            assert_eq!(inserted[n as usize].load(Ordering::Relaxed), i64::from(is_there), "key {n}");
            let slots = Inspector::new(index.region(), index.geometry()).slots();
            let copies = slots.filter(|report| report.key == key(n, 8)).count();
            assert_eq!(copies, usize::from(is_there), "key {n}");
        }
        let counts = index.counts();
        assert!(
            counts.moves > 0 || preset.layout.family == Family::Chained,
            "nobody had to move: {counts:?}"
        );
        println!("{}: {counts:?}", preset.layout);
    });
}

/// A put that waits for room is traced, with how long it took.
#[test]
fn slow_puts_are_traced() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = log.reopen().unwrap();
    let traced = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    let grace = Duration::from_millis(100);
    let table = config(default_preset(), 64, 8, 8, 3).grace(grace);
    tracing::subscriber::with_default(traced, || {
        let index = crate::common::index(&table, Clock::System);
        let is_full = |n: &u32| index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_err();
        (0..1000).find(is_full).expect("a full table");
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(
        log.contains("a change that waited") && log.contains("Full") && log.contains("waited="),
        "{log:?}"
    );
}
