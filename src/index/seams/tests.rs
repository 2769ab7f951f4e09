//! Changes that wait between their decision and their effect: alone, beside other threads, and by turns.

use super::{Awaited, Changed, DecidedChange, Decision, KeyChange, KeyPlace, Seams, SlotValue};
use crate::base::clock::Clock;
use crate::base::sync::{NAP, lock_std};
use crate::config::{Config, TableSize};
use crate::fabric::shm::Shm;
#[cfg(feature = "faults")]
use crate::faults::{Broken, Rule};
use crate::faults::{all_broken, break_all};
use crate::index::Index;
use crate::index::feed::LeftCause;
use crate::index::growth::pace::Pace;
use crate::index::slots::Note;
use crate::index::whole::Table;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Seeds;
use crate::outcome::{PutError, PutMode, PutOutcome, ReadError, SwapOutcome};
use crate::part::{PartChange, PartEffect, PartOutcome, Tell};
use crate::placement::families::presets;
use crate::reader::{Limits, Reader};
use crate::region::Region;
use crate::sim::{Adversary, Instant, Random, Recorder, take_turns};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const GRACE: Duration = Duration::from_nanos(500);
/// A value that fits no slot.
const LONG: [u8; 200] = [7; 200];

fn config(layout: &str, size: TableSize, seed: u64) -> Config {
    Config {
        layout: layout.parse().unwrap(),
        size,
        key_max: 8,
        value_max: 240,
        inline_max: Some(30),
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        ..Config::default()
    }
}

fn growing(layout: &str, seed: u64) -> Config {
    let slots = 16.max(2 * u64::from(config(layout, TableSize::Slots(64), seed).layout.window_slots()));
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(slots) };
    config(layout, size, seed)
}

// ---- one who hears -----------------------------------------------------------------------------------

/// What a change waits for that a test stops: another thread says how it ends.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, Option<Ends>)>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Made,
    Withdrawn,
    Panics,
}

impl Gate {
    /// Returns when a change waits here.
    fn is_reached(&self) {
        let state = lock_std(&self.state);
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn open(&self, ends: Ends) {
        lock_std(&self.state).1 = Some(ends);
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct AtGate(Arc<Gate>);

impl Awaited for AtGate {
    fn then(self: Box<Self>, change: DecidedChange) {
        lock_std(&self.0.state).0 = true;
        self.0.changed.notify_all();
        let state = self.0.changed.wait_while(lock_std(&self.0.state), |state| state.1.is_none()).unwrap();
        match state.1.unwrap() {
            Ends::Made => change.make(),
            Ends::Withdrawn => drop(change),
            Ends::Panics => panic!("on purpose"),
        }
    }
}

/// Takes no changes for a while. Counts how often it is asked.
#[derive(Debug, Default)]
struct Stands {
    asked: AtomicU64,
    goes_on: AtomicBool,
}

impl Seams for Stands {
    fn decided(&self, _: &KeyChange<'_>, _: LeftCause) -> Decision {
        Decision::Now
    }

    fn has_room(&self) -> bool {
        self.asked.fetch_add(1, Relaxed);
        self.goes_on.load(Relaxed)
    }

    fn done(&self, _: &KeyChange<'_>, _: KeyPlace) {}
}

/// A thread whose change has to wait for another thread sleeps between two tries, in every table: a log's disk may stand still for
/// long.
#[test]
fn who_waits_for_another_thread_sleeps() {
    for config in [config("windowed:8", TableSize::Slots(64), 1), growing("windowed:8", 1)] {
        let geometry = config.geometry().unwrap();
        let index = Index::create(Region::private(geometry.region_bytes()), geometry, Clock::System).unwrap();
        let stands = Arc::new(Stands::default());
        let index = index.with_seams(stands.clone());
        let begun = std::time::Instant::now();
        std::thread::scope(|scope| {
            let puts = scope.spawn(|| index.put(b"key", b"value", PutMode::Insert));
            while stands.asked.load(Relaxed) < 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(10));
            stands.goes_on.store(true, Relaxed);
            assert_eq!(puts.join().unwrap(), Ok(PutOutcome::Inserted));
        });
        let most = begun.elapsed().div_duration_f64(NAP) as u64 + 2;
        let asked = stands.asked.load(Relaxed);
        assert!(asked <= most, "asked {asked} times, and {most} pauses fit into the time");
    }
}

type Heard = (Changed, Vec<u8>, Option<Vec<u8>>);

/// Has the first change of some keys wait, and writes down what was done.
#[derive(Debug, Default)]
struct Ear {
    gates: Mutex<BTreeMap<Vec<u8>, Arc<Gate>>>,
    decided: Mutex<Vec<Heard>>,
    done: Mutex<Vec<Heard>>,
}

fn heard(change: &KeyChange<'_>) -> Heard {
    let value = change.value.map(|value| match value {
        SlotValue::Inline(value) => value.to_vec(),
        SlotValue::Extent(reference) => vec![0; reference.len as usize],
    });
    (change.what, change.key.to_vec(), value)
}

impl Ear {
    /// The next change of this key will wait.
    fn stop(&self, key: &[u8]) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        lock_std(&self.gates).insert(key.to_vec(), gate.clone());
        gate
    }

    fn done_of(&self, key: &[u8]) -> Vec<Changed> {
        lock_std(&self.done).iter().filter(|heard| heard.1 == key).map(|heard| heard.0).collect()
    }
}

impl Seams for Ear {
    fn decided(&self, change: &KeyChange<'_>, _: LeftCause) -> Decision {
        lock_std(&self.decided).push(heard(change));
        match lock_std(&self.gates).remove(change.key) {
            Some(gate) => Decision::After(Box::new(AtGate(gate))),
            None => Decision::Now,
        }
    }

    fn done(&self, change: &KeyChange<'_>, _: KeyPlace) {
        lock_std(&self.done).push(heard(change));
    }
}

/// A table whose changes are heard.
fn table(config: &Config) -> (Index, Arc<Ear>) {
    let geometry = config.geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let ear = Arc::new(Ear::default());
    let index = Index::create_at_pace(region, geometry, Clock::manual(), Pace::small()).unwrap();
    (index.with_seams(ear.clone()), ear)
}

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn get(index: &Index, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    index.reader().get_into(key, &mut value).unwrap().then_some(value)
}

/// Makes a change on a thread of its own, which breaks the same rules. While it waits, `meanwhile` runs. Then the
/// change ends so. Returns what the change answered.
fn while_it_waits<R: Send>(
    gate: &Gate,
    ends: Ends,
    change: impl FnOnce() -> R + Send,
    meanwhile: impl FnOnce(),
) -> R {
    let rules = all_broken();
    std::thread::scope(|scope| {
        let changing = scope.spawn(move || {
            break_all(rules);
            change()
        });
        gate.is_reached();
        let seen = catch_unwind(AssertUnwindSafe(meanwhile));
        gate.open(ends);
        let answer = changing.join();
        seen.and(answer).unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Puts keys with this number and the next ones, until some in a row find no room. Returns those that did.
fn fill(index: &Index, from: u64, refused_max: usize) -> Vec<u64> {
    let (mut there, mut refused) = (Vec::new(), 0);
    for n in from.. {
        match index.put(&key(n), &key(n), PutMode::Insert) {
            Ok(outcome) => {
                assert_eq!(outcome, PutOutcome::Inserted);
                there.push(n);
            }
            Err(PutError::Full { .. }) => refused += 1,
            Err(error) => panic!("key {n}: {error}"),
        }
        if refused == refused_max {
            break;
        }
    }
    there
}

/// What must hold of a table in which nothing is under way.
fn check_rest(index: &Index) {
    assert_eq!(index.keys_under_way(), 0);
    let Table::One(one) = index.table() else { return };
    let slots = one.segment().slots();
    for slot in (0..index.geometry().main_slots()).map(SlotIx) {
        let (note, is_free) = (slots.notes().of(slot), slots.header(slot).is_free());
        assert!(note == Note::Unknown || (note == Note::Free) == is_free, "{slot:?}: {note:?}");
        assert!(!slots.is_held(slot));
    }
}

fn notes(index: &Index) -> Vec<Note> {
    let Table::One(one) = index.table() else { unreachable!("it does not grow") };
    (0..index.geometry().main_slots()).map(|slot| one.segment().slots().notes().of(SlotIx(slot))).collect()
}

// ---- one table, two threads --------------------------------------------------------------------------

/// While a change of a key waits, nothing of it is seen, the next change of that key waits behind it, and
/// changes of all other keys go on. Each is heard once, in the order in which they are seen.
fn changes_of_a_key_queue(config: &Config) {
    let (index, ear) = table(config);
    let (held, gate) = (key(1), ear.stop(&key(1)));
    let next = std::thread::scope(|scope| {
        let mut next = None;
        let put = || index.put(&held, b"first", PutMode::Upsert);
        let answer = while_it_waits(&gate, Ends::Made, put, || {
            assert_eq!(get(&index, &held), None, "L13");
            let (rules, index) = (all_broken(), &index);
            next = Some(scope.spawn(move || {
                break_all(rules);
                index.put(&held, b"second", PutMode::Insert)
            }));
            for n in 2..8 {
                assert_eq!(index.put(&key(n), b"", PutMode::Upsert), Ok(PutOutcome::Inserted));
                assert_eq!(index.put(&key(n), b"b", PutMode::Update), Ok(PutOutcome::Updated));
                assert_eq!(index.compare_and_swap(&key(n), b"b", b"c"), Ok(SwapOutcome::Swapped));
                assert_eq!(index.remove(&key(n)), Ok(true));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!next.as_ref().unwrap().is_finished(), "L10");
            assert!(ear.done_of(&held).is_empty(), "L13");
            assert_eq!(index.keys_under_way(), 1);
        });
        assert_eq!(answer, Ok(PutOutcome::Inserted));
        next.unwrap().join().unwrap()
    });
    assert_eq!(next, Ok(PutOutcome::Exists));
    assert_eq!(get(&index, &held).as_deref(), Some(&b"first"[..]));
    assert_eq!(ear.done_of(&held), [Changed::Came]);
    assert_eq!(ear.done_of(&key(2)), [Changed::Came, Changed::Replaced, Changed::Replaced, Changed::Left]);
    assert_eq!(*lock_std(&ear.decided), {
        let mut all = lock_std(&ear.done).clone();
        all.sort_by_key(|heard| heard.1 != held);
        all
    });
    check_rest(&index);
}

#[test]
fn changes_of_a_key_queue_and_others_go_on() {
    for preset in presets() {
        changes_of_a_key_queue(&config(preset.name, TableSize::Slots(100), 1));
        changes_of_a_key_queue(&growing(preset.name, 1));
    }
}

/// A put, a swap and a remove of a key that is there wait: until then the old value is there. If they are
/// withdrawn, it stays, and so do counts and memory.
#[test]
fn every_change_waits_or_is_withdrawn() {
    for (layout, grows) in [("windowed:8", false), ("cluster", false), ("pilaf", true), ("farm", true)] {
        let config = if grows { growing(layout, 2) } else { config(layout, TableSize::Slots(100), 2) };
        for old in [&b"old"[..], &LONG] {
            let (index, ear) = table(&config);
            let name = key(9);
            let long = LONG.map(|byte| byte + 1);
            type Act<'a> = Box<dyn Fn() -> Result<bool, PutError> + Send + Sync + 'a>;
            let put =
                |value: &[u8]| index.put(&name, value, PutMode::Upsert).map(|put| put == PutOutcome::Updated);
            let swap = |value: &[u8]| {
                index.compare_and_swap(&name, old, value).map(|swap| swap == SwapOutcome::Swapped)
            };
            let append = |bytes: &[u8]| {
                let part = PartChange::Append { bytes, len_max: 240 };
                let appended = index.change_part(&name, part, Tell::Nothing);
                appended.map(|appended| appended.effect == PartEffect::Updated)
            };
            let [more, much_more] = [&b"+"[..], &[b'+'; 40]].map(|bytes| [old, bytes].concat());
            let acts: [(Act<'_>, Option<&[u8]>); 8] = [
                (Box::new(|| put(b"new")), Some(b"new")),
                (Box::new(|| put(&long)), Some(&long)),
                (Box::new(|| swap(b"new")), Some(b"new")),
                (Box::new(|| swap(&long)), Some(&long)),
                (Box::new(|| index.remove(&name)), None),
                (Box::new(|| append(b"+")), Some(&more)),
                (Box::new(|| append(&[b'+'; 40])), Some(&much_more)),
                (Box::new(|| index.remove_if(&name, old).map(|swap| swap == SwapOutcome::Swapped)), None),
            ];
            for (act, new) in &acts {
                for ends in [Ends::Withdrawn, Ends::Panics, Ends::Made] {
                    index.put(&name, old, PutMode::Upsert).unwrap();
                    // Memory that waits for readers is free again.
                    index.tidy();
                    let before = (index.counts(), index.heap().values, index.heap().live_bytes);
                    let done = lock_std(&ear.done).len();
                    let gate = ear.stop(&name);
                    let answer = catch_unwind(AssertUnwindSafe(|| {
                        while_it_waits(&gate, ends, act, || {
                            assert_eq!(get(&index, &name).as_deref(), Some(old));
                            assert_eq!(index.counts(), before.0);
                        })
                    }));
                    let is_made = ends == Ends::Made;
                    match ends {
                        Ends::Made => assert_eq!(answer.unwrap(), Ok(true)),
                        Ends::Withdrawn => assert_eq!(answer.unwrap(), Err(PutError::Withdrawn)),
                        Ends::Panics => assert!(answer.is_err()),
                    }
                    assert_eq!(get(&index, &name).as_deref(), if is_made { *new } else { Some(old) });
                    assert_eq!(lock_std(&ear.done).len(), done + usize::from(is_made));
                    if !is_made {
                        assert_eq!((index.counts(), index.heap().values, index.heap().live_bytes), before);
                    }
                    check_rest(&index);
                }
            }
        }
    }
}

/// A key that comes into a table of one size, and waits. Others find all room but its own. If it is withdrawn,
/// everything is as before.
fn room_stays_held(layout: &str, seed: u64) {
    let (index, ear) = table(&config(layout, TableSize::Slots(64), seed));
    let there = fill(&index, 0, 20);
    let mut random = Random::new(seed);
    // Another place each time, by each kind of room.
    for round in 0..12u64 {
        let gone = there[random.pick(there.len())];
        index.remove(&key(gone)).unwrap();
        index.tidy();
        let mut fresh = Vec::new();
        // A key for which there is room, of which another would be the last.
        for n in (10_000 * (round + 1)..).take(200) {
            let (name, ends) = (key(n), if n % 2 == 0 { Ends::Made } else { Ends::Withdrawn });
            let gate = ear.stop(&name);
            let before = (index.counts(), notes(&index));
            let put = || index.put(&name, &LONG, PutMode::Insert);
            // It comes to the gate, or is refused.
            let refused = std::thread::scope(|scope| {
                let rules = all_broken();
                let (gate, putting) = (
                    &gate,
                    scope.spawn(move || {
                        break_all(rules);
                        put()
                    }),
                );
                while !putting.is_finished() && !lock_std(&gate.state).0 {
                    std::thread::yield_now();
                }
                if putting.is_finished() {
                    lock_std(&ear.gates).clear();
                    return true;
                }
                assert_eq!(get(&index, &name), None, "L13");
                for n in n + 1_000_000..n + 1_000_020 {
                    if index.put(&key(n), &key(n), PutMode::Insert).is_ok() {
                        fresh.push(n);
                    }
                }
                index.tidy();
                gate.open(ends);
                let answer = putting.join().unwrap();
                match ends {
                    Ends::Made => assert_eq!(answer, Ok(PutOutcome::Inserted)),
                    _ => assert_eq!(answer, Err(PutError::Withdrawn)),
                }
                false
            });
            if refused {
                continue;
            }
            if ends == Ends::Made {
                assert_eq!(get(&index, &name).as_deref(), Some(&LONG[..]));
                assert_eq!(index.remove(&name), Ok(true));
            } else {
                assert_eq!((get(&index, &name), index.heap().values), (None, 0));
                if fresh.is_empty() && index.counts().moves == before.0.moves {
                    let now = notes(&index);
                    assert_eq!(index.counts(), before.0);
                    let differ = now.iter().zip(&before.1).filter(|(now, before)| {
                        now != before && **now != Note::Unknown && **before != Note::Unknown
                    });
                    assert_eq!(differ.count(), 0, "{layout}");
                }
            }
            check_rest(&index);
            break;
        }
        for n in fresh {
            assert_eq!(
                get(&index, &key(n)).as_deref(),
                Some(&key(n)[..]),
                "{layout}: it took another's room"
            );
            assert_eq!(index.remove(&key(n)), Ok(true));
        }
        index.put(&key(gone), &key(gone), PutMode::Insert).ok();
        index.tidy();
    }
    let mut shown = BTreeSet::new();
    assert_eq!(index.show_all(&mut |name, _| assert!(shown.insert(name.to_vec()), "twice")), 0);
    assert_eq!(shown.len() as u64, index.len());
}

#[test]
fn a_full_table_keeps_the_room() {
    for preset in presets() {
        (0..4).for_each(|seed| room_stays_held(preset.name, seed));
    }
}

/// A key comes into a segment and waits, while a split, or a merge, would take its home away. The home stays
/// until the key is there, and then goes.
fn home_stays(layout: &str, is_merge: bool, ends: Ends) {
    let (index, ear) = table(&growing(layout, 3));
    let geometry = index.geometry().clone();
    let directory = |n: u64| geometry.hashed(&key(n)).first().directory();
    let others: Vec<u64> = (100..108).collect();
    for &n in &others {
        index.put(&key(n), &key(n), PutMode::Insert).unwrap();
    }
    // A key of the half that goes.
    let mine = (1..).map(|n| n * 1_000).find(|&n| directory(n) & 1 == 1).unwrap();
    let drive = || (0..200).for_each(|_| index.drive(8));
    let under_way = || index.growth().splitting + index.growth().merging;
    let rest = || {
        for _ in 0..200 {
            if under_way() == 0 {
                return;
            }
            index.tidy();
            drive();
            // Ghosts go.
            let Table::Many(growth) = index.table() else { unreachable!("it grows") };
            growth.grace.clock().advance(4 * GRACE);
        }
        panic!("{layout}: it does not end");
    };
    if is_merge {
        index.split(&key(mine));
        rest();
    }
    let gate = ear.stop(&key(mine));
    let answer = while_it_waits(
        &gate,
        ends,
        || index.put(&key(mine), &LONG, PutMode::Upsert),
        || {
            if is_merge {
                index.merge(&key(mine))
            } else {
                index.split(&key(mine))
            }
            for _ in 0..20 {
                drive();
                let Table::Many(growth) = index.table() else { unreachable!("it grows") };
                growth.grace.clock().advance(4 * GRACE);
                index.tidy();
            }
            assert_eq!(get(&index, &key(mine)), None, "L13");
            assert_eq!(under_way(), 1, "{layout}: L12");
            others.iter().for_each(|&n| assert_eq!(get(&index, &key(n)).as_deref(), Some(&key(n)[..])));
        },
    );
    let is_made = ends == Ends::Made;
    assert_eq!(answer, if is_made { Ok(PutOutcome::Inserted) } else { Err(PutError::Withdrawn) });
    let value = || get(&index, &key(mine));
    assert_eq!(value().as_deref(), is_made.then_some(&LONG[..]));
    rest();
    assert_eq!(value().as_deref(), is_made.then_some(&LONG[..]));
    assert_eq!(index.len(), 8 + u64::from(is_made));
    check_rest(&index);
}

#[test]
fn a_home_stays_where_a_key_of_it_waits() {
    for preset in presets() {
        for ends in [Ends::Made, Ends::Withdrawn] {
            home_stays(preset.name, false, ends);
            home_stays(preset.name, true, ends);
        }
    }
}

/// Threads that want the same key come in the order in which they asked.
#[test]
fn turns_come_in_order() {
    let (index, ear) = table(&config("farm", TableSize::Slots(100), 5));
    let (name, gate) = (key(1), ear.stop(&key(1)));
    std::thread::scope(|scope| {
        while_it_waits(
            &gate,
            Ends::Made,
            || index.put(&name, b"0", PutMode::Upsert).unwrap(),
            || {
                for n in 1..6u8 {
                    let index = &index;
                    scope.spawn(move || index.put(&key(1), &[n], PutMode::Upsert).unwrap());
                    // It asks before the next one is there.
                    std::thread::sleep(Duration::from_millis(20));
                }
            },
        );
    });
    let values: Vec<_> = lock_std(&ear.done).iter().map(|heard| heard.2.clone().unwrap()[0]).collect();
    assert_eq!(values, [b'0', 1, 2, 3, 4, 5]);
}

// ---- by turns ----------------------------------------------------------------------------------------

/// What one change of a key did, by the instant at which it was heard to be done.
#[derive(Clone, Debug)]
struct DoneAt {
    at: Instant,
    number: u64,
    what: Changed,
    value: Option<Vec<u8>>,
}

/// Has changes wait for some turns, and looks at the key with a reader's eyes whenever it hears of one.
#[derive(Debug)]
struct Onlooker {
    region: Region,
    geometry: Geometry,
    recorder: Arc<Recorder>,
    random: Mutex<Random>,
    heard: Mutex<Vec<DoneAt>>,
    wrong: Mutex<Vec<String>>,
    /// From when to when a change of a key waited.
    waits: Mutex<Vec<(Instant, Instant, u64)>>,
    /// Keys with a change that has been told to wait, and has not yet.
    must_wait: Mutex<BTreeSet<u64>>,
}

fn number(key: &[u8]) -> u64 {
    u64::from_le_bytes(key.try_into().unwrap())
}

impl Onlooker {
    /// What a GET answers now, unless another thread stands in the middle of something.
    fn sees(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let (fabric, limits) = (Shm::new(&self.region, &self.geometry), Limits::new().retries_max(20));
        let mut value = Vec::new();
        let mut reader = Reader::new(fabric, &self.geometry, Clock::manual(), limits);
        match reader.get_into(key, &mut value) {
            Ok(found) => Some(found.then_some(value)),
            Err(ReadError::Contended { .. } | ReadError::Replaced { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A key must have this value now.
    fn look(&self, when: &str, number: u64, right: &Option<Vec<u8>>) {
        if let Some(seen) = self.sees(&key(number))
            && seen != *right
        {
            lock_std(&self.wrong).push(format!("{when}: key {number} is {seen:?}, not {right:?}"));
        }
    }

    /// What the changes that were done have left of a key.
    fn left(&self, number: u64) -> Option<Vec<u8>> {
        let heard = lock_std(&self.heard);
        heard.iter().rev().find(|done| done.number == number).and_then(|done| done.value.clone())
    }

    fn value_of(&self, change: &KeyChange<'_>) -> Option<Vec<u8>> {
        Some(match change.value? {
            SlotValue::Inline(value) => value.to_vec(),
            SlotValue::Extent(reference) => {
                let mut value = Vec::new();
                self.region.append_bytes(reference.offset, reference.len as usize, &mut value);
                value
            }
        })
    }
}

/// Hands what it hears to an [`Onlooker`].
#[derive(Debug)]
struct Watching(Arc<Onlooker>);

#[derive(Debug)]
struct SomeTurns {
    onlooker: Arc<Onlooker>,
    number: u64,
    turns: usize,
    ends: Ends,
}

impl Seams for Watching {
    fn decided(&self, change: &KeyChange<'_>, _: LeftCause) -> Decision {
        let (number, onlooker) = (number(change.key), &self.0);
        let was = onlooker.left(number);
        if was.is_none() != (change.what == Changed::Came) {
            lock_std(&onlooker.wrong).push(format!("key {number}: {change:?}, and it was {was:?}"));
        }
        onlooker.look("decided", number, &was);
        let (kind, turns) = {
            let mut random = lock_std(&onlooker.random);
            (random.pick(4), 1 << random.pick(9))
        };
        if kind == 0 {
            return Decision::Now;
        }
        let ends = if kind == 1 { Ends::Withdrawn } else { Ends::Made };
        lock_std(&onlooker.must_wait).insert(number);
        Decision::After(Box::new(SomeTurns { onlooker: onlooker.clone(), number, turns, ends }))
    }

    fn done(&self, change: &KeyChange<'_>, _: KeyPlace) {
        let (number, value) = (number(change.key), self.0.value_of(change));
        self.0.look("done", number, &value);
        if lock_std(&self.0.must_wait).contains(&number) {
            lock_std(&self.0.wrong).push(format!("L13: key {number} was to wait"));
        }
        let done = DoneAt { at: self.0.recorder.now(), number, what: change.what, value };
        lock_std(&self.0.heard).push(done);
    }
}

impl Awaited for SomeTurns {
    fn then(self: Box<Self>, change: DecidedChange) {
        let (onlooker, from) = (&self.onlooker, self.onlooker.recorder.now());
        let right = onlooker.left(self.number);
        for turn in 0..self.turns {
            // Another thread may go on.
            onlooker.region.load(0);
            if turn % 32 == 0 {
                onlooker.look("waiting", self.number, &right);
            }
        }
        lock_std(&onlooker.must_wait).remove(&self.number);
        lock_std(&onlooker.waits).push((from, onlooker.recorder.now(), self.number));
        match self.ends {
            Ends::Withdrawn => drop(change),
            Ends::Made | Ends::Panics => change.make(),
        }
    }
}

/// What a thread did that had an effect: a key, and what its value became.
type Effect = (u64, Option<Vec<u8>>);

/// Changes of few keys, and whatever else a table that grows does.
fn work(index: &Index, clock: &Clock, thread: u64, seed: u64, changes: u64) -> Vec<Effect> {
    let (mut random, mut effects) = (Random::new(seed ^ thread << 32), Vec::new());
    let grows = index.geometry().grows();
    for change in 0..changes {
        let most = [4, 40][random.pick(2)];
        let n = random.pick(most) as u64;
        let unique = ((thread << 32) | (change + 1)).to_le_bytes();
        let value = unique.repeat(if random.pick(4) == 0 { 9 } else { 1 });
        match random.pick(10) {
            0..4 => match index.put(&key(n), &value, PutMode::Upsert) {
                Ok(_) => effects.push((n, Some(value))),
                Err(PutError::Withdrawn | PutError::Full { .. } | PutError::HeapBusy { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            4 | 5 => match index.remove(&key(n)) {
                Ok(true) => effects.push((n, None)),
                Ok(false) | Err(PutError::Withdrawn) => {}
                Err(error) => panic!("{error}"),
            },
            6 => {
                let Some((_, Some(expected))) = effects.iter().rev().find(|effect| effect.0 == n).cloned()
                else {
                    continue;
                };
                match index.compare_and_swap(&key(n), &expected, &value) {
                    Ok(SwapOutcome::Swapped) => effects.push((n, Some(value))),
                    Ok(_) | Err(PutError::Withdrawn | PutError::HeapBusy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            7 => match index.change_part(&key(n), PartChange::Or { bits: &unique }, Tell::After) {
                Ok(PartOutcome { effect: PartEffect::Unchanged, .. }) => {}
                Ok(PartOutcome { value, .. }) => effects.push((n, value)),
                Err(PutError::Withdrawn | PutError::Full { .. } | PutError::HeapBusy { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            8 if grows => {
                index.pair_up(&key(n), random.pick(2) == 0);
                index.drive(1 + random.pick(8) as u32);
            }
            _ => {
                clock.advance(GRACE / 4);
                index.tidy();
            }
        }
    }
    effects
}

/// Two threads by turns, whose changes wait for some turns each. Returns what went wrong, and how many changes
/// waited.
fn by_turns(config: &Config, seed: u64) -> Result<usize, String> {
    const CHANGES: u64 = 40;
    let geometry = config.geometry().unwrap();
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let bytes = Index::bytes_with_handover(&geometry);
    let region = recorder.region(bytes);
    let onlooker = Arc::new(Onlooker {
        region: region.alias(),
        geometry: geometry.clone(),
        recorder: recorder.clone(),
        random: Mutex::new(Random::new(seed)),
        heard: Mutex::default(),
        wrong: Mutex::default(),
        waits: Mutex::default(),
        must_wait: Mutex::default(),
    });
    let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap();
    let index = index.with_seams(Arc::new(Watching(onlooker.clone())));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let (index, clock) = (&index, &clock);
        take_turns(seed, [1, 2].map(|thread| move || work(index, clock, thread, seed, CHANGES)).into())
    }));
    let effects = ran.map_err(|panic| {
        panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a thread panicked".into())
    })?;
    if let Some(wrong) = lock_std(&onlooker.wrong).first() {
        return Err(wrong.clone());
    }
    // Each change was heard once, and each that was heard was made.
    let heard = lock_std(&onlooker.heard).clone();
    let mut all: Vec<Effect> = effects.into_iter().flatten().collect();
    let mut done: Vec<Effect> = heard.iter().map(|done| (done.number, done.value.clone())).collect();
    all.sort();
    done.sort();
    if all != done {
        return Err(format!("made were {all:?}, and heard {done:?}"));
    }
    // In an order that makes sense, which ends in what is there.
    let mut values: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for DoneAt { number, what, value, .. } in &heard {
        let was = match value {
            Some(value) => values.insert(*number, value.clone()),
            None => values.remove(number),
        };
        if was.is_some() == (*what == Changed::Came) {
            return Err(format!("key {number}: {what:?}, and it was {was:?}"));
        }
    }
    let mut shown: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut twice = 0;
    let damaged = index.show_all(&mut |name, value| {
        twice += usize::from(shown.insert(number(name), value.to_vec()).is_some());
    });
    if (shown != values) | (damaged + twice as u64 > 0) || index.len() != values.len() as u64 {
        return Err(format!("there are {shown:?} ({} keys), and heard was {values:?}", index.len()));
    }
    if index.keys_under_way() > 0 {
        return Err("a turn never ended".into());
    }
    // A server that is killed while a change waits: the next one finds nothing of it.
    let waits = lock_std(&onlooker.waits).clone();
    for &(from, to, number) in waits.iter().step_by(1 + waits.len() / 3) {
        let killed = Instant(from.0 + (to.0 - from.0) / 2);
        let (region, clock) = (Region::private(bytes), Clock::manual());
        recorder.repeat(killed, &region, &clock);
        let (next, _) = Index::open(region, clock).map_err(|error| error.to_string())?;
        let of = |number: u64| heard.iter().filter(move |done| done.number == number);
        let last = of(number).rfind(|done| done.at <= killed).and_then(|done| done.value.clone());
        if get(&next, &key(number)) != last {
            return Err(format!("killed at {}: key {number} is not {last:?}", killed.0));
        }
        // Other changes may have been in the middle.
        for other in (0..40).filter(|&other| other != number) {
            let found = get(&next, &key(other));
            let last = of(other).rfind(|done| done.at <= killed).and_then(|done| done.value.clone());
            let under_way = of(other).find(|done| done.at > killed);
            if found != last && under_way.is_none_or(|done| done.value != found) {
                return Err(format!("killed at {}: key {other} is {found:?}", killed.0));
            }
        }
    }
    Ok(waits.len())
}

const BY_TURNS: [&str; 5] = ["windowed:8", "farm", "cluster", "pilaf", "list"];

#[test]
fn changes_that_wait_by_turns() {
    let mut waited = 0;
    for layout in BY_TURNS {
        for seed in 0..20 {
            for config in [growing(layout, seed), config(layout, TableSize::Slots(32), seed)] {
                waited += by_turns(&config, seed).unwrap_or_else(|wrong| panic!("{layout}, {seed}: {wrong}"));
            }
        }
    }
    assert!(waited > 2_000, "{waited} changes waited");
}

// ---- broken rules ------------------------------------------------------------------------------------

/// Each broken rule of changes that wait is noticed, by a story and by turns.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_changes_that_wait_are_noticed() {
    const MOST: u64 = 300;
    let stories: [(Rule, fn()); 4] = [
        (Rule::KeyTurn, || changes_of_a_key_queue(&config("farm", TableSize::Slots(100), 1))),
        (Rule::HeldSlot, || (0..4).for_each(|seed| room_stays_held("windowed:8", seed))),
        (Rule::HeldHome, || home_stays("farm", false, Ends::Made)),
        (Rule::WaitFirst, || changes_of_a_key_queue_unless_it_never_waits()),
    ];
    for (rule, story) in stories {
        let _broken = Broken::rule(rule);
        assert!(catch_unwind(story).is_err(), "{rule:?}: case lost");
        let mut seeds = (0..MOST).flat_map(|seed| BY_TURNS.map(|layout| (seed, layout)));
        let found = seeds.find(|&(seed, layout)| by_turns(&growing(layout, seed), seed).is_err());
        eprintln!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?}: {MOST} seeds");
    }
}

/// The first part of that story, for a table that may not wait at all.
#[cfg(feature = "faults")]
fn changes_of_a_key_queue_unless_it_never_waits() {
    let (index, ear) = table(&config("farm", TableSize::Slots(100), 1));
    let gate = ear.stop(&key(1));
    index.put(&key(1), b"first", PutMode::Upsert).unwrap();
    assert!(lock_std(&gate.state).0, "L13: it has waited");
}
