//! The table against a `HashMap`, with values from nothing to 64 MiB: whole, in parts, their lengths, in
//! batches, swapped, and after other servers have taken the region over.

#![cfg(feature = "sim")]

use crate::common::{Numbers, key};
use oneread::internals::families::presets;
#[cfg(feature = "faults")]
use oneread::internals::faults::{Broken, Rule};
use oneread::internals::layout::extent::VALUE_MAX;
use oneread::internals::region::{Backing, Region};
use oneread::{
    Config, PutMode, PutOutcome, SwapOutcome, TableSize,
    embedded::{Clock, Index},
    error::PutError,
    layout::{Layout, Seeds},
};
use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, RngAlgorithm, TestRng, TestRunner};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

const GRACE: Duration = Duration::from_micros(100);
/// The longest key: one that stands in its slot, and one that does not.
const KEY_MAX: [usize; 2] = [16, 120];
const KEYS: u32 = 24;

/// A value: how it is filled, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filled {
    seed: u64,
    len: usize,
}

impl Filled {
    fn bytes(self) -> Vec<u8> {
        let mut numbers = Numbers(self.seed);
        let words: Vec<u64> = (0..self.len.div_ceil(8)).map(|_| numbers.next()).collect();
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }
}

#[derive(Clone, Debug)]
enum LongOp {
    Put(u32, PutMode, Filled),
    /// Expects the value that the key has, or one that differs in its last byte.
    Swap(u32, bool, Filled),
    Remove(u32),
    Get(u32),
    /// From this part of the value to that.
    Range(u32, f64, f64),
    Batch(u32),
    Wait(u32),
    Tidy,
    /// The next server takes the region over, after a stop or a kill.
    Next(bool),
}

/// A table, and the operations on it.
#[derive(Clone, Debug)]
struct LongStory {
    layout: Layout,
    grows: bool,
    /// The longest key.
    key_max: usize,
    /// The longest value, as a power of two.
    longest: u32,
    seed: u64,
    ops: Vec<LongOp>,
}

fn stories(longest: std::ops::RangeInclusive<u32>, ops: usize) -> impl Strategy<Value = LongStory> {
    let layouts: Vec<Layout> = presets().map(|preset| preset.layout).collect();
    let lengths = (prop::sample::select(&KEY_MAX[..]), longest);
    let shape = (prop::sample::select(layouts), any::<bool>(), lengths, any::<u64>(), 1..ops);
    shape.prop_flat_map(|(layout, grows, (key_max, longest), seed, length)| {
        prop::collection::vec(op(longest), length).prop_map(move |ops| LongStory {
            layout,
            grows,
            key_max,
            longest,
            seed,
            ops,
        })
    })
}

/// Lengths are as likely between 64 and 128 bytes as between 32 and 64 MiB.
fn op(longest: u32) -> impl Strategy<Value = LongOp> {
    let filled = (any::<u64>(), 0..=longest, 0.5..=1.0).prop_map(move |(seed, bits, part)| Filled {
        seed,
        len: if bits == 0 { 0 } else { ((1u64 << bits) as f64 * part) as usize },
    });
    let k = 0..KEYS;
    let mode =
        prop::sample::select(&[PutMode::Upsert, PutMode::Upsert, PutMode::Insert, PutMode::Update][..]);
    prop_oneof![
        20 => (k.clone(), mode, filled.clone()).prop_map(|(k, mode, v)| LongOp::Put(k, mode, v)),
        6 => (k.clone(), any::<bool>(), filled).prop_map(|(k, is_it, v)| LongOp::Swap(k, is_it, v)),
        8 => k.clone().prop_map(LongOp::Remove),
        6 => k.clone().prop_map(LongOp::Get),
        6 => (k.clone(), 0.0..1.1, 0.0..1.1).prop_map(|(k, from, to)| LongOp::Range(k, from, to)),
        2 => k.prop_map(LongOp::Batch),
        4 => (0u32..8).prop_map(LongOp::Wait),
        3 => Just(LongOp::Tidy),
        2 => any::<bool>().prop_map(LongOp::Next),
    ]
}

/// A server, and what must be in its table.
struct Checked {
    /// `None` between two servers.
    index: Option<Index>,
    clock: Clock,
    key_max: usize,
    model: HashMap<u32, Filled>,
    /// Puts for which the heap had no room.
    refused: u64,
}

impl Checked {
    fn new(story: &LongStory, file: &Path) -> Checked {
        // Two blocks. One is the reserve, and the other one takes four of the longest values.
        let heap_bytes = (9 << story.longest) + (4 << 12);
        let size = match story.grows {
            true => TableSize::Growing { bytes_max: 2 * heap_bytes + (4 << 20), segment_slots: Some(256) },
            false => TableSize::Slots(64),
        };
        let config = Config::new().layout(story.layout).size(size).key_max(story.key_max);
        let config = config.value_max((1 << story.longest).min(VALUE_MAX)).inline_max(64);
        let config = config.grace(GRACE).seeds(Seeds::from_number(story.seed));
        let config = if story.grows { config } else { config.heap_bytes(heap_bytes) };
        let geometry = config.geometry().unwrap();
        let backing = Backing::File(file.to_path_buf());
        let region =
            Region::create_sparse(&backing, geometry.region_bytes(), geometry.bytes_at_first()).unwrap();
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        Checked { index: Some(index), clock, key_max: story.key_max, model: HashMap::new(), refused: 0 }
    }

    fn index(&self) -> &Index {
        self.index.as_ref().expect("it serves")
    }

    /// The outcome that the model expects, or no room and no change.
    fn took<T: PartialEq + std::fmt::Debug>(&mut self, outcome: Result<T, PutError>, right: T) -> bool {
        match outcome {
            Ok(outcome) => {
                assert_eq!(outcome, right);
                true
            }
            // Keys with one digest have the same windows, and only so many slots.
            Err(PutError::HeapFull { .. } | PutError::Full { .. }) => {
                self.refused += 1;
                false
            }
            Err(error) => panic!("{right:?}: {error}"),
        }
    }

    fn apply(&mut self, op: &LongOp, file: &Path) {
        match *op {
            LongOp::Put(k, mode, v) => {
                let is_there = self.model.contains_key(&k);
                let right = match (mode, is_there) {
                    (PutMode::Insert, true) => PutOutcome::Exists,
                    (PutMode::Update, false) => PutOutcome::Missing,
                    (_, true) => PutOutcome::Updated,
                    (_, false) => PutOutcome::Inserted,
                };
                let outcome = self.index().put(&key(k, self.key_max), &v.bytes(), mode);
                let has_changed = matches!(right, PutOutcome::Updated | PutOutcome::Inserted);
                if self.took(outcome, right) && has_changed {
                    self.model.insert(k, v);
                }
            }
            LongOp::Swap(k, is_it, v) => {
                let there = self.model.get(&k).copied();
                let mut expected = there.map(Filled::bytes).unwrap_or_default();
                match expected.last_mut() {
                    Some(last) if !is_it => *last ^= 1,
                    None if !is_it => expected.push(7),
                    _ => {}
                }
                let right = match (there, is_it) {
                    (None, _) => SwapOutcome::Absent,
                    (_, true) => SwapOutcome::Swapped,
                    (_, false) => SwapOutcome::Differs,
                };
                if expected.len() > self.index().geometry().value_max() {
                    return;
                }
                let outcome = self.index().compare_and_swap(&key(k, self.key_max), &expected, &v.bytes());
                if self.took(outcome, right) && right == SwapOutcome::Swapped {
                    self.model.insert(k, v);
                }
            }
            LongOp::Remove(k) => {
                let was_there = self.model.remove(&k).is_some();
                assert_eq!(self.index().remove(&key(k, self.key_max)), Ok(was_there));
            }
            LongOp::Get(k) => self.check(k),
            LongOp::Range(k, from, to) => {
                let there = self.model.get(&k);
                let len = there.map_or(0, |v| v.len);
                let [from, to] = [from, to].map(|part| (part * len as f64) as usize);
                let mut part = vec![0xee; 3];
                let found = self.index().reader().get_range(&key(k, self.key_max), from..to, &mut part);
                assert_eq!(found, Ok(there.map(|v| v.len)));
                let right = there.map(|v| v.bytes()).unwrap_or_default();
                assert!(
                    part == right[from.min(len).min(to.min(len))..to.min(len)]
                        || from > to && part.is_empty()
                );
            }
            LongOp::Batch(first) => {
                let numbers: Vec<u32> = (first..first + 6).collect();
                let keys: Vec<_> = numbers.iter().map(|&k| key(k, self.key_max)).collect();
                let mut answers = 0;
                let each = |n: usize, value: Option<&[u8]>| {
                    answers += 1;
                    let right = self.model.get(&numbers[n]).map(|v| v.bytes());
                    assert!(value == right.as_deref(), "key {} of a batch", numbers[n]);
                };
                self.index().reader().get_many(&keys, each).unwrap();
                assert_eq!(answers, keys.len());
            }
            LongOp::Wait(graces) => self.clock.advance(GRACE * graces),
            LongOp::Tidy => {
                self.index().tidy();
            }
            LongOp::Next(stops) => {
                if stops {
                    assert!(self.index().stop());
                }
                self.index = None;
                let (index, found) = Index::open(Region::open(file).unwrap(), self.clock.clone()).unwrap();
                assert_eq!((found.keys, found.misplaced), (self.model.len() as u64, 0));
                self.index = Some(index);
            }
        }
    }

    /// A key's value, and its length.
    fn check(&self, k: u32) {
        let (name, right) = (key(k, self.key_max), self.model.get(&k));
        let (mut reader, mut got) = (self.index().reader(), vec![0xee; 3]);
        assert_eq!(reader.get_into(&name, &mut got), Ok(right.is_some()), "key {k}");
        assert!(right.is_none_or(|v| got == v.bytes()), "key {k} is not {right:?}");
        assert_eq!(reader.value_len(&name), Ok(right.map(|v| v.len)));
    }
}

/// What a story came to: values that ended in the heap, puts refused, bytes moved.
fn tell(story: &LongStory) -> [u64; 3] {
    let folder = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(folder).unwrap();
    let file = folder.path().join("region");
    let mut checked = Checked::new(story, &file);
    let mut moved_bytes = 0;
    for op in &story.ops {
        let moved = checked.index().heap().moved_bytes;
        checked.apply(op, &file);
        moved_bytes += checked.index().heap().moved_bytes.saturating_sub(moved);
        assert_eq!(checked.index().len(), checked.model.len() as u64, "{op:?}");
    }
    (0..KEYS).for_each(|k| checked.check(k));
    let heap = checked.index().heap();
    let long = checked.model.values().filter(|v| v.len > 128).count();
    assert!(heap.values as usize >= long, "{long}: {heap:?}");
    // All memory comes back.
    (0..KEYS).for_each(|k| assert!(checked.index().remove(&key(k, story.key_max)).is_ok()));
    for _ in 0..1_000 {
        let Some(wait) = checked.index().tidy() else { break };
        checked.clock.advance(wait.max(GRACE));
    }
    checked.clock.advance(Duration::from_secs(1));
    let left = checked.index().heap();
    assert_eq!([left.values, left.live_bytes, left.waiting_bytes, left.open_blocks], [0; 4], "{left:?}");
    [heap.values, checked.refused, moved_bytes]
}

/// Runs stories that are the same each time.
fn for_stories(cases: u32, stories: impl Strategy<Value = LongStory>) -> [u64; 3] {
    let config = RunnerConfig { cases, failure_persistence: None, ..RunnerConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let sum = std::cell::Cell::new([0; 3]);
    let result = runner.run(&stories, |story| {
        let [told, before] = [tell(&story), sum.get()];
        sum.set(std::array::from_fn(|n| told[n] + before[n]));
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    sum.get()
}

/// Values from nothing to some 64 KiB, in heaps that are often full.
#[test]
fn a_table_of_long_values_is_a_map() {
    let cases = if std::env::var_os("ONEREAD_LONG").is_some() { 20_000 } else { 600 };
    let [values, refused, moved] = for_stories(cases, stories(8..=16, 240));
    println!("{cases} tables: {values} values in heaps, {refused} puts refused, {moved} bytes moved");
    assert!(values > 3 * u64::from(cases) && refused > 0 && moved > 100_000);
}

/// Values up to the longest, 64 MiB.
#[test]
fn a_table_of_the_longest_values_is_a_map() {
    let cases = if std::env::var_os("ONEREAD_LONG").is_some() { 200 } else { 6 };
    let [values, refused, moved] = for_stories(cases, stories(26..=26, 60));
    println!("{cases} tables: {values} values in heaps, {refused} puts refused, {moved} bytes moved");
    assert!(values > u64::from(cases));
}

/// The model with digests of five bits: half of the keys that are in extents have another one's digest.
#[cfg(feature = "faults")]
#[test]
fn keys_of_equal_digests_are_keys_of_their_own() {
    let _few_bits = Broken::rule(Rule::WideDigest);
    let cases = if std::env::var_os("ONEREAD_LONG").is_some() { 10_000 } else { 300 };
    let long = stories(6..=12, 240).prop_map(|story| LongStory { key_max: KEY_MAX[1], ..story });
    let [values, refused, moved] = for_stories(cases, long);
    println!("{cases} tables: {values} values in heaps, {refused} puts refused, {moved} bytes moved");
    assert!(values > 3 * u64::from(cases) && moved > 10_000);
}
