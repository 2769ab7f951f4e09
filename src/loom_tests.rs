//! The local parts under loom, which tries every interleaving of threads and every value that the memory
//! model lets a load return: the shm reader against the slot writer, a GET against a move, server threads
//! against each other. Run with `RUSTFLAGS="--cfg loom"` (docs/TESTING.md says how).

use crate::base::clock::Clock;
use crate::base::sync::{AtomicU64, Ordering::Relaxed, model};
use crate::config::{Config, TableSize};
use crate::cuckoo::WINDOWED_8;
use crate::fabric::shm::Shm;
use crate::fabric::{Direct, Fabric};
use crate::get::{Landed, Look};
use crate::index::Index;
use crate::index::loom_access::{
    StripeSet, Stripes, copies, copies_in_all, path, paths_by_two_slots, put_along, write_slot,
};
use crate::layout::PAGE;
use crate::layout::geometry::{Geometry, Layout, SlotIx, Window};
use crate::layout::hash::Seeds;
use crate::layout::long::SoughtKey;
use crate::mailbox::memory::Bell;
use crate::mailbox::{glance, load, store};
use crate::outcome::ReadError;
use crate::outcome::{PutMode, PutOutcome, SwapOutcome};
use crate::reader::{Limits, ReadCounts, Reader};
use crate::region::Region;
use crate::sim::Pace;
use crate::sim::Recorder;
use crate::sim::{KeyNumber, key};
use std::sync::Arc;
use std::time::Duration;

fn geometry(layout: Layout, slots: u64, seed: u64) -> Geometry {
    let config = Config {
        layout,
        size: TableSize::Slots(slots),
        key_max: 8,
        value_max: 8,
        seeds: Some(Seeds::from_number(seed)),
        grace: Duration::ZERO,
        ..Config::default()
    };
    config.geometry().expect("possible")
}

fn list() -> Layout {
    "list".parse().expect("a preset")
}

fn region(geometry: &Geometry) -> Region {
    let recorder = Arc::new(Recorder::new(Clock::manual(), Duration::from_nanos(1)));
    recorder.region(geometry.region_bytes())
}

/// (Generic, because a closure over a concrete fabric's landed window would have to live for ever.)
fn look<F: Fabric>(fabric: &mut F, window: Window, wanted: SoughtKey<'_>, value: &mut Vec<u8>) -> Look {
    let looked = fabric.read(window, |landed| landed.look(window.first, wanted, value));
    looked.unwrap_or(Look::Torn)
}

/// One writer rewrites a slot while one reader looks: the reader sees one write or the other, or that the
/// slot is being written; never a mixture.
fn reader_against_writer() {
    let geometry = Arc::new(geometry(list(), 1, 1));
    let region = Arc::new(region(&geometry));
    // Every value is its key's bytes: a mixture shows.
    write_slot(&region, &geometry, SlotIx(0), &key(1), &key(1));
    let writer = {
        let (region, geometry) = (region.clone(), geometry.clone());
        loom::thread::spawn(move || write_slot(&region, &geometry, SlotIx(0), &key(2), &key(2)))
    };
    let mut value = Vec::new();
    let window = Window { first: SlotIx(0), slots: 1, incarnation: 0 };
    let mut shm = Shm::new(&region, &geometry);
    for wanted in [1, 2] {
        let name = key(wanted);
        let this = SoughtKey { key: geometry.hashed(&name), others: &[] };
        match look(&mut shm, window, this, &mut value) {
            Look::Match => assert_eq!(value, key(wanted), "a mixture"),
            Look::Other(header) => assert_eq!((header.klen, header.stamp % 2), (8, 0)),
            Look::Torn => {}
            Look::Reference(_) => unreachable!("values fit their slots"),
        }
    }
    writer.join().expect("the writer ends");
}

/// A table whose keys are `0..keys`, each with its own bytes as value.
fn table(layout: Layout, slots: u64, seed: u64, keys: KeyNumber) -> Index {
    let geometry = geometry(layout, slots, seed);
    let index = Index::create(region(&geometry), geometry, Clock::manual()).expect("private memory");
    for number in 0..keys {
        index.put(&key(number), &key(number), PutMode::Insert).expect("room");
    }
    index
}

/// A whole GET on shm, which looks twice at most. An answer goes to `check`.
fn get(index: &Index, number: KeyNumber, check: impl FnOnce(bool, &[u8])) {
    let limits = Limits { retries_max: 1, ..Limits::default() };
    let shm = Shm::new(index.region(), index.geometry());
    let mut value = Vec::new();
    match Reader::new(shm, index.geometry(), Clock::manual(), limits).get_into(&key(number), &mut value) {
        Ok(found) => check(found, &value),
        Err(ReadError::Contended { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A key that stands behind another one comes home while a reader looks for it. The reader looks into the
/// slot it comes to, then into the one it came from, and must not miss it.
fn reader_against_move() {
    let index = Arc::new(table(list(), 1, 1, 2));
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || {
            get(&index, 1, |found, value| assert!(found && value == key(1), "missed, or a mixture"));
        })
    };
    assert_eq!(index.remove(&key(0)), Ok(true));
    reader.join().expect("the reader ends");
    assert_eq!(index.counts().homings, 1);
}

/// A key gets another value while a reader looks for it directly. The key stays in its slot, so the
/// reader must not miss it (G8).
fn reader_against_update() {
    let index = Arc::new(table(list(), 1, 1, 1));
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || {
            let mut value = Vec::new();
            let key = key(0);
            let found = look_directly(&index, &key, &mut value);
            match found {
                Some(found) => assert!(found && (value == key || value == [7; 8])),
                None => {} // It is being written.
            }
        })
    };
    index.put(&key(0), &[7; 8], PutMode::Update).expect("it is there");
    reader.join().expect("the reader ends");
}

/// A key that has a long value goes, and another server thread stores into the value's memory while a reader
/// fetches it: the reader sees the value, or that the key has gone (X9).
fn reader_against_memory_used_again() {
    const LEN: usize = 48;
    let config = Config {
        layout: list(),
        size: TableSize::Slots(1),
        key_max: 8,
        value_max: LEN,
        inline_max: Some(24),
        heap_bytes: Some(2 * PAGE as u64),
        seeds: Some(Seeds::from_number(1)),
        grace: Duration::ZERO,
        ..Config::default()
    };
    let (geometry, clock) = (config.geometry().expect("possible"), Clock::manual());
    let index = Arc::new(Index::create(region(&geometry), geometry, clock.clone()).expect("private memory"));
    index.put(&key(0), &[1; LEN], PutMode::Insert).expect("room");
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || {
            get(&index, 0, |found, value| assert!(!found || value == [1; LEN], "bytes of another value"));
        })
    };
    assert_eq!(index.remove(&key(0)), Ok(true));
    clock.advance(Duration::from_secs(1));
    let writer = {
        let index = index.clone();
        loom::thread::spawn(move || {
            let mut draft = index.draft_at_once(&key(1), LEN).expect("memory").expect("it is long");
            draft.write(&[2; LEN]);
        })
    };
    writer.join().expect("the writer ends");
    reader.join().expect("the reader ends");
}

/// Two server threads lock stripes, each in an order of its own: both come to an end, and no stripe is ever
/// held by both.
fn writers_lock_stripes() {
    let stripes = Arc::new(Stripes::new(3));
    let holders: Arc<[AtomicU64; 3]> = Arc::default();
    let lock = |stripes: &Stripes, holders: &[AtomicU64; 3], set: &[usize]| {
        let _locked = stripes.lock(StripeSet::from_slice(set));
        set.iter().for_each(|&n| assert_eq!(holders[n].fetch_add(1, Relaxed), 0, "held by both"));
        set.iter().for_each(|&n| assert_eq!(holders[n].fetch_sub(1, Relaxed), 1, "held by both"));
    };
    let other = {
        let (stripes, holders) = (stripes.clone(), holders.clone());
        loom::thread::spawn(move || lock(&stripes, &holders, &[0, 1, 2]))
    };
    lock(&stripes, &holders, &[2, 0]);
    other.join().expect("the other thread ends");
}

/// Two server threads each have found a path for a newcomer, over the same slots, before the other one changed
/// anything: no key is lost, none is in two slots.
fn writers_cross() {
    /// Keys `0..THERE` are there before. With this seed the paths of the newcomers end in the same free slot,
    /// and but for that slot the two have no stripe in common.
    const SEED: u64 = 128;
    const THERE: KeyNumber = 4;
    const NEWCOMERS: [KeyNumber; 2] = [4, 5];
    let index = Arc::new(table(two_slots(), 6, SEED, THERE));
    let paths = NEWCOMERS.map(|number| path(&index, &key(number)).expect("a path"));
    assert!(paths[0].len() == 2 && paths[0][1] == paths[1][1], "paths that end in the same slot: {paths:?}");
    let put = move |index: &Index, n: usize| {
        put_along(index, &paths[n], &key(NEWCOMERS[n])) == Some(PutOutcome::Inserted)
    };
    let other = {
        let (index, put) = (index.clone(), put.clone());
        with_a_large_stack(move || put(&index, 1))
    };
    let inserted = [put(&index, 0), other.join().expect("the other thread ends")];
    assert!(inserted[0] || inserted[1], "one of them was first");
    for number in 0..THERE {
        assert_eq!(copies(&index, &key(number)), 1, "key {number}, which nobody removed");
    }
    for (number, inserted) in NEWCOMERS.into_iter().zip(inserted) {
        assert_eq!(copies(&index, &key(number)), usize::from(inserted), "key {number}, a newcomer");
    }
}

/// Two server threads put the same key at once, each along a good path of its own, found before the other changed
/// anything: the key comes to stand in one slot, once inserted and once updated. All that either does is under the
/// locks of the newcomer's two slots, so the executions are few, whatever the bound.
fn writers_meet() {
    /// With this seed each of the two slots in which the newcomer may stand is taken by a key that can go to a free one.
    const SEED: u64 = 4;
    let index = Arc::new(table(two_slots(), 6, SEED, 4));
    let newcomer = key(4);
    let paths = paths_by_two_slots(&index, &newcomer).expect("two paths");
    let put = move |index: &Index, n: usize| put_along(index, &paths[n], &newcomer);
    let other = {
        let (index, put) = (index.clone(), put.clone());
        with_a_large_stack(move || put(&index, 1))
    };
    let mut answers = [put(&index, 0), other.join().expect("the other thread ends")];
    answers.sort_by_key(|answer| *answer != Some(PutOutcome::Inserted));
    assert_eq!(
        answers,
        [Some(PutOutcome::Inserted), Some(PutOutcome::Updated)],
        "one came first, and the other saw it"
    );
    for number in 0..=4 {
        assert_eq!(copies(&index, &key(number)), 1, "key {number}");
    }
}

fn two_slots() -> Layout {
    Layout { choices: 2, bucket_slots: 1, window_buckets: 1, ..WINDOWED_8 }
}

/// A table that grows: two segments at most, of one home each. The keys that go to the child when the first
/// is split, of which one is there.
fn growing() -> (Index, [KeyNumber; 2]) {
    let geometry = geometry(list(), 1, 1).growing(2);
    let goes = |&number: &KeyNumber| geometry.hashed(&key(number)).first().directory() & 1 == 1;
    let mut going = (0..).filter(goes);
    let [first, second] = std::array::from_fn(|_| going.next().expect("every other key"));
    let index = Index::create_at_pace(region(&geometry), geometry.clone(), Clock::manual(), Pace::small())
        .expect("private memory");
    index.put(&key(first), &key(first), PutMode::Insert).expect("room");
    (index, [first, second])
}

/// Takes the split of a table with one home to its end.
fn end_split(index: &Index) {
    (0..100).find(|_| {
        index.drive(2);
        index.growth().splitting == 0
    });
}

/// A segment is split while a reader looks directly for a key that goes.
fn reader_against_split() {
    let (index, [goes, _]) = growing();
    index.split(&key(goes));
    let index = Arc::new(index);
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || look_once(&index, goes))
    };
    index.drive(1);
    reader.join().expect("the reader ends");
    assert_eq!(copies_in_all(&index, &key(goes)), 1);
}

/// A table of two segments whose merge begins, with one key in the child.
fn merging() -> (Index, [KeyNumber; 2]) {
    let (index, keys) = growing();
    index.split(&key(keys[0]));
    end_split(&index);
    index.merge(&key(keys[0]));
    assert_eq!(index.growth().merging, 1);
    (index, keys)
}

/// A thread for what has frames that are too large for a stack of loom's.
fn with_a_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(work).expect("a thread")
}

/// Runs a test in such a thread.
fn on_a_large_stack(test: fn()) {
    with_a_large_stack(test).join().expect("the test ends");
}

/// Two segments become one while a reader looks directly for a key that goes to the other one.
fn reader_against_merge() {
    let (index, [goes, _]) = merging();
    let index = Arc::new(index);
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || look_once(&index, goes))
    };
    index.drive(1);
    reader.join().expect("the reader ends");
    assert_eq!(copies_in_all(&index, &key(goes)), 1);
}

/// A direct look, the short form first.
fn look_directly(index: &Index, key: &[u8], value: &mut Vec<u8>) -> Option<bool> {
    let (mut shm, hashed) = (Shm::new(index.region(), index.geometry()), index.geometry().hashed(key));
    shm.glance(key, value).or_else(|| shm.get_directly(hashed, value, &mut ReadCounts::default()))
}

/// A direct look on shm for a key that is there all the time: found, or only the GET machine can tell.
fn look_once(index: &Index, number: KeyNumber) {
    let (mut value, key) = (Vec::new(), key(number));
    if let Some(found) = look_directly(index, &key, &mut value) {
        assert!(found && value == key, "missed, or a mixture");
    }
}

/// The directory doubles while a reader looks directly for a key.
fn reader_against_doubling() {
    let (index, [there, _]) = growing();
    let index = Arc::new(index);
    let reader = {
        let index = index.clone();
        loom::thread::spawn(move || look_once(&index, there))
    };
    index.split(&key(there));
    reader.join().expect("the reader ends");
}

/// A home is split while another thread inserts a key that goes: each key ends in one slot.
fn inserter_against_split() {
    let (index, [goes, comes]) = growing();
    index.split(&key(goes));
    let index = Arc::new(index);
    let other = {
        let index = index.clone();
        loom::thread::spawn(move || index.put(&key(comes), &key(comes), PutMode::Insert))
    };
    index.drive(1);
    assert_eq!(other.join().expect("the other thread ends"), Ok(PutOutcome::Inserted));
    end_split(&index);
    for number in [goes, comes] {
        assert_eq!(copies_in_all(&index, &key(number)), 1, "key {number}");
        assert_eq!(index.remove(&key(number)), Ok(true), "key {number}");
    }
}

/// Two segments become one while another thread inserts a key that goes: each key ends in one slot.
fn inserter_against_merge() {
    let (index, [goes, comes]) = merging();
    let index = Arc::new(index);
    let other = {
        let index = index.clone();
        loom::thread::spawn(move || index.put(&key(comes), &key(comes), PutMode::Insert))
    };
    index.drive(1);
    assert_eq!(other.join().expect("the other thread ends"), Ok(PutOutcome::Inserted));
    for number in [goes, comes] {
        assert_eq!(copies_in_all(&index, &key(number)), 1, "key {number}");
        assert_eq!(index.remove(&key(number)), Ok(true), "key {number}");
    }
}

/// The directory doubles and a segment is split while another thread updates a key that goes: the update
/// finds it, and is not lost.
fn updater_against_doubling_and_split() {
    let (index, [goes, _]) = growing();
    let index = Arc::new(index);
    let other = {
        let index = index.clone();
        loom::thread::spawn(move || index.put(&key(goes), &[7; 8], PutMode::Update))
    };
    index.split(&key(goes));
    index.drive(1);
    assert_eq!(other.join().expect("the other thread ends"), Ok(PutOutcome::Updated));
    end_split(&index);
    assert_eq!(copies_in_all(&index, &key(goes)), 1);
    assert_eq!(index.compare_and_swap(&key(goes), &[7; 8], &[8; 8]), Ok(SwapOutcome::Swapped));
}

/// A client stores a request while the server goes to sleep: whichever way they meet, the client rings, or the server
/// sees the request before it sleeps, and then sees all of it.
fn bell() {
    const REQUEST: &[u8] = b"a request";
    let area: Arc<[AtomicU64; 6]> = Arc::default();
    let client = {
        let area = area.clone();
        loom::thread::spawn(move || {
            let (word, slot) = area.split_first().expect("six words");
            assert!(store(slot, 1, REQUEST));
            Bell(word).heard() != 0
        })
    };
    let (word, slot) = area.split_first().expect("six words");
    Bell(word).announce(1);
    let found = glance(slot).sequence == 1;
    if found {
        Bell(word).withdraw();
        assert_eq!(load(slot, 1, &mut Vec::new()), Some(REQUEST), "half a request");
    }
    let rung = client.join().expect("the client ends");
    assert!(found || rung, "the server sleeps, and nobody wakes it");
}

#[test]
fn loom_reader_against_writer() {
    model(2, reader_against_writer);
}

#[test]
fn loom_reader_against_move() {
    model(1, || on_a_large_stack(reader_against_move));
}

#[test]
fn loom_reader_against_update() {
    model(2, || on_a_large_stack(reader_against_update));
}

#[test]
fn loom_reader_against_memory_used_again() {
    model(1, || on_a_large_stack(reader_against_memory_used_again));
}

#[test]
fn loom_writers_lock_stripes() {
    model(4, writers_lock_stripes);
}

#[test]
fn loom_writers_cross() {
    model(2, || on_a_large_stack(writers_cross));
}

#[test]
fn loom_writers_meet() {
    model(2, || on_a_large_stack(writers_meet));
}

#[test]
fn loom_reader_against_split() {
    model(1, || on_a_large_stack(reader_against_split));
}

#[test]
fn loom_reader_against_doubling() {
    model(2, || on_a_large_stack(reader_against_doubling));
}

#[test]
fn loom_inserter_against_split() {
    model(2, || on_a_large_stack(inserter_against_split));
}

#[test]
fn loom_reader_against_merge() {
    model(1, || on_a_large_stack(reader_against_merge));
}

#[test]
fn loom_inserter_against_merge() {
    model(2, || on_a_large_stack(inserter_against_merge));
}

#[test]
fn loom_updater_against_doubling_and_split() {
    model(1, || on_a_large_stack(updater_against_doubling_and_split));
}

#[test]
fn loom_bell() {
    model(4, bell);
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::faults::{Rule, must_be_caught};

    #[test]
    fn loom_slot_rules() {
        let rules = [
            Rule::ReaderFence,
            Rule::WriterFence,
            Rule::OddPass,
            Rule::StampCheck,
            Rule::StampFence,
            Rule::EvenFence,
        ];
        rules.into_iter().for_each(|rule| must_be_caught(rule, 3, reader_against_writer));
    }

    #[test]
    fn loom_move_rules() {
        let rules = [Rule::CountBeforeErase, Rule::MoveCounter, Rule::CopyBeforeErase];
        rules.into_iter().for_each(|rule| must_be_caught(rule, 1, || on_a_large_stack(reader_against_move)));
    }

    #[test]
    fn loom_key_rule() {
        must_be_caught(Rule::KeyBytes, 2, || on_a_large_stack(reader_against_update));
    }

    #[test]
    fn loom_extent_rules() {
        must_be_caught(Rule::NameFence, 1, || on_a_large_stack(reader_against_memory_used_again));
    }

    #[test]
    fn loom_bell_rule() {
        must_be_caught(Rule::BellFence, 2, bell);
    }

    #[test]
    fn loom_growth_rules() {
        for rule in [Rule::DepthFirst, Rule::CountBeforeErase, Rule::MoveCounter] {
            must_be_caught(rule, 1, || on_a_large_stack(reader_against_split));
        }
        for rule in [Rule::MarkFirst, Rule::CountBeforeErase, Rule::MoveCounter] {
            must_be_caught(rule, 1, || on_a_large_stack(reader_against_merge));
        }
        must_be_caught(Rule::StillHere, 1, || on_a_large_stack(inserter_against_split));
        must_be_caught(Rule::StillHere, 1, || on_a_large_stack(updater_against_doubling_and_split));
    }

    #[test]
    fn loom_lock_rules() {
        must_be_caught(Rule::LockOrder, 2, writers_lock_stripes);
        for rule in [Rule::SlotLock, Rule::PathCheck] {
            must_be_caught(rule, 2, || on_a_large_stack(writers_cross));
        }
        must_be_caught(Rule::LookAgain, 2, || on_a_large_stack(writers_meet));
    }
}
