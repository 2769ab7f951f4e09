//! Servers killed at every store of a change of a value that does not fit its slot, and the next ones in
//! their takeovers. No acknowledged value is lost, and no memory.

use super::extents::{Life, config, key, value};
use super::{grace, ns};
use oneread::internals::families::presets;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::extent::extent_bytes;
use oneread::internals::sim::{Adversary, Instant, Random};
use oneread::{Config, PutMode, PutOutcome, SwapOutcome, TableSize, embedded::Index, error::PutError};
use std::collections::BTreeMap;

/// All keys of the table.
const KEYS: u64 = 60;
/// Bytes of values: in the slot, and not.
const INLINE: usize = 8;
const SHORT: usize = 48;
const LONG: usize = 200;
const LONGEST: usize = 240;

/// From which store to which a change went.
struct Changed {
    name: &'static str,
    from: Instant,
    to: Instant,
}

/// A table whose values were put, replaced, removed and moved.
fn lived(config: &Config) -> (Life, Vec<Changed>) {
    let mut life = Life::new(config, KEYS);
    let (mut changes, mut puts) = (Vec::new(), 0);
    let mut change = |life: &mut Life, name, act: &mut dyn FnMut(&mut Life, u64)| {
        let (from, moved_bytes) = (life.now(), life.index.heap().moved_bytes);
        puts += 1;
        act(life, puts);
        let has_moved = life.index.heap().moved_bytes > moved_bytes;
        changes.push(Changed { name: if has_moved { "moves" } else { name }, from, to: life.now() });
        check_books(&life.index, name);
    };
    let put = |number, len| {
        move |life: &mut Life, n| {
            life.put(number, value(n, len)).unwrap();
        }
    };
    change(&mut life, "first put", &mut put(0, SHORT));
    change(&mut life, "replaced by a longer value", &mut put(0, LONG));
    change(&mut life, "replaced by one as long", &mut put(0, LONG));
    change(&mut life, "replaced by a shorter value", &mut put(0, SHORT));
    change(&mut life, "replaced by a value in the slot", &mut put(0, INLINE));
    change(&mut life, "replaces a value in the slot", &mut put(0, LONG));
    change(&mut life, "refused", &mut |life, n| {
        let outcome = life.index.put(&key(0), &value(n, SHORT), PutMode::Insert);
        assert_eq!(outcome, Ok(PutOutcome::Exists));
    });
    change(&mut life, "swapped", &mut |life, n| {
        let (from, new) = (life.now(), value(n, LONG));
        let mut there = Vec::new();
        assert_eq!(life.index.reader().get_into(&key(0), &mut there), Ok(true));
        assert_eq!(life.index.compare_and_swap(&key(0), &there, &new), Ok(SwapOutcome::Swapped));
        life.note(0, Some(new), from);
    });
    change(&mut life, "removed", &mut |life, _| assert!(life.remove(0)));
    life.clock.advance(5 * grace());
    change(&mut life, "put again", &mut put(0, SHORT));
    // A block becomes sparse, while others are full, and the values in it move.
    (1..42).for_each(|number| change(&mut life, "fills", &mut put(number, LONGEST)));
    (1..37).for_each(|number| change(&mut life, "thins out", &mut |life, _| assert!(life.remove(number))));
    for _ in 0..30 {
        change(&mut life, "tidies", &mut |life, _| {
            life.index.tidy();
        });
        life.clock.advance(4 * grace());
    }
    assert!(life.index.heap().moved_bytes > 0, "a server is killed while an extent moves");
    (42..KEYS).for_each(|number| change(&mut life, "uses memory again", &mut put(number, LONG)));
    (life, changes)
}

/// The heap has memory for what slots name, and for nothing else.
pub fn check_books(index: &Index, when: &str) {
    let inspector = Inspector::new(index.region(), index.geometry());
    let named: BTreeMap<u64, _> =
        inspector.slots().filter_map(|report| report.reference()).map(|it| (it.offset, it)).collect();
    let mut end = 0;
    for (offset, it) in &named {
        assert!(it.is_sound(index.geometry()) && *offset >= end, "{when}: {it:?}");
        end = offset + extent_bytes(it.len as usize);
    }
    let (heap, bytes) = (index.heap(), named.values().map(|it| extent_bytes(it.len as usize)).sum());
    assert_eq!((heap.values, heap.live_bytes), (named.len() as u64, bytes), "{when}: {heap:?}");
}

/// Lets all that waits have its time.
fn settle(life: &Life, when: &str) {
    // X5
    life.clock.advance(8 * grace());
    for _ in 0..1_000 {
        match life.index.tidy() {
            Some(wait) => life.clock.advance(wait.max(ns(1))),
            None => return,
        }
    }
    panic!("{when}: it does not end: {:?}", life.index.heap());
}

/// All memory is of use again: when all is removed the heap is empty, and takes as much as a new one.
fn check_memory(life: &mut Life, when: &str) {
    settle(life, when);
    check_books(&life.index, when);
    for number in 0..KEYS {
        life.remove(number);
    }
    settle(life, when);
    let heap = life.index.heap();
    let left = [heap.values, heap.live_bytes, heap.waiting_bytes, heap.gap_bytes, heap.open_blocks];
    assert_eq!(left, [0; 5], "{when}: {heap:?}");
    // One block is the reserve.
    let most = (heap.blocks - 1) * (heap.block_bytes / extent_bytes(LONGEST));
    for number in 0..most {
        let put = life.put(number, value(number, LONGEST));
        assert_eq!(put, Ok(PutOutcome::Inserted), "{when}: {number} of {most}, {:?}", life.index.heap());
    }
    let full = life.put(most, value(most, LONGEST));
    assert!(matches!(full, Err(PutError::HeapFull { .. })), "{when}: {full:?}, {:?}", life.index.heap());
    check_books(&life.index, when);
}

/// Kills the server at every store of `each` of these changes, and the next one at some stores of its
/// takeover, or at all. Returns the numbers of both.
fn every_kill(config: &Config, name: &str, each: usize, second: usize) -> [u64; 2] {
    let (life, changes) = lived(config);
    let (mut kills, mut random) = ([0; 2], Random::new(1));
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for Changed { name: what, from, to } in changes {
        // Of those that are alike, one in so many.
        let nth = last.entry(what).or_default();
        *nth += 1;
        if *nth % each != 1 % each {
            continue;
        }
        for at in from.0..=to.0 {
            let when = format!("{name}, {what}, killed at store {at}");
            let mut next = life.killed(Instant(at));
            check_books(&next.index, &when);
            kills[0] += 1;
            let stores = next.now().0 - at;
            let some: Vec<usize> = match second.min(stores) == stores {
                true => (at..next.now().0).collect(),
                false => (0..second).map(|_| at + random.pick(stores)).collect(),
            };
            for again in some {
                let when = format!("{when}, and the next at {again}");
                let mut third = next.killed(Instant(again));
                check_books(&third.index, &when);
                if random.pick(8) == 0 {
                    check_memory(&mut third, &when);
                }
                kills[1] += 1;
            }
            if random.pick(3) == 0 {
                check_memory(&mut next, &when);
            }
        }
    }
    kills
}

#[test]
fn every_kill_of_extents() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    for preset in presets() {
        let config = config(preset.layout, 2).size(TableSize::Slots(128));
        let (each, second) = if is_long { (1, usize::MAX) } else { (12, 2) };
        let [kills, again] = every_kill(&config, preset.name, each, second);
        println!("{}: {kills} kills, {again} in takeovers", preset.name);
        assert!(kills > 300 && again > 500, "{}: {kills}, {again}", preset.name);
    }
}

/// Kills in a table that grows, and of the next servers at every store of their takeovers.
#[test]
fn every_kill_of_extents_in_a_table_that_grows() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    for name in ["bucketized:4", "windowed:8", "farm", "list"] {
        let size = TableSize::Growing { bytes_max: 256 << 10, segment_slots: Some(64) };
        let config = config(name.parse().unwrap(), 2).size(size);
        let (each, second) = if is_long { (1, usize::MAX) } else { (40, 2) };
        let [kills, again] = every_kill(&config, name, each, second);
        println!("{name}, which grows: {kills} kills, {again} in takeovers");
        assert!(kills > 100 && again > 200, "{name}: {kills}, {again}");
    }
}
