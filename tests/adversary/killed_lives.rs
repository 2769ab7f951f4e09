//! Servers killed at every store of a change of an entry that has a life, and at every store with which entries end.
//! The next server has each entry with its number and its time, gives no number again, and ends what is due.

use super::cases::recorded;
use super::extents::{config, key, value};
use super::killed_owners::{Entries, entries};
use oneread::internals::families::presets;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{Instant, Pace, Recorder};
use oneread::layout::Layout;
use oneread::sink::LifeSink;
use oneread::{Config, PutMode, PutOptions, PutOutcome, SwapOutcome, TableSize};
use oneread::{embedded::Clock, embedded::Index};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const KEYS: u64 = 12;
/// Bytes of values: in the slot, and not.
const INLINE: usize = 8;
const LONG: usize = 200;

/// A change: from which store to which, and what was there before and after.
struct Step {
    name: &'static str,
    from: Instant,
    to: Instant,
    before: Entries,
    after: Entries,
    /// All numbers that were seen before it.
    numbers: BTreeSet<u64>,
}

struct Lived {
    geometry: Geometry,
    recorder: Arc<Recorder>,
    steps: Vec<Step>,
}

/// What lives do in their time.
fn lived(config: &Config) -> Lived {
    let geometry = config.geometry().unwrap();
    let (region, recorder, clock) = recorded(&geometry);
    let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap();
    let (mut steps, mut numbers, mut put) = (Vec::new(), BTreeSet::new(), 0);
    let mut step = |name, act: &mut dyn FnMut(u64)| {
        let (from, before) = (recorder.now(), entries(&index, KEYS));
        put += 1;
        act(put);
        let after = entries(&index, KEYS);
        steps.push(Step {
            name,
            from,
            to: recorder.now(),
            before,
            after: after.clone(),
            numbers: numbers.clone(),
        });
        numbers.extend(after.values().map(|(_, life)| life.number));
    };
    let put_with = |number, len, seconds: Option<u32>| {
        let index = &index;
        move |n| {
            let options = PutOptions::new().ttl(seconds.map(|seconds| SECOND * seconds));
            index.put_with(&key(number), &value(n, len), options).unwrap();
        }
    };
    let tidy = |_| while index.tidy() == Some(Duration::ZERO) {};
    for number in 0..KEYS {
        let len = if number % 3 == 0 { LONG } else { INLINE };
        step("put", &mut put_with(number, len, (number % 2 == 0).then_some(1 + number as u32 / 4)));
    }
    step("another time", &mut put_with(2, INLINE, Some(9)));
    step("no time any more", &mut put_with(4, INLINE, None));
    step("a time now", &mut put_with(1, INLINE, Some(1)));
    step("a longer value", &mut put_with(5, LONG, Some(3)));
    step("a shorter value", &mut put_with(6, INLINE, Some(2)));
    step("swapped", &mut |n| {
        let (there, _) = entries(&index, KEYS)[&8].clone();
        assert_eq!(index.compare_and_swap(&key(8), &there, &value(n, INLINE)), Ok(SwapOutcome::Swapped));
    });
    step("removed", &mut |_| assert_eq!(index.remove(&key(7)), Ok(true)));
    step("put again", &mut |n| {
        assert_eq!(index.put(&key(7), &value(n, INLINE), PutMode::Insert), Ok(PutOutcome::Inserted));
    });
    for _ in 0..4 {
        clock.advance(SECOND);
        step("tidied", &mut { tidy });
    }
    let left: Vec<u64> = entries(&index, KEYS).into_keys().collect();
    assert_eq!(left, [2, 3, 4, 7, 9, 11], "the others have ended");
    // So many that the next takes further numbers from the region.
    while !entries(&index, KEYS)[&3].1.number.is_multiple_of(1 << 10) {
        put_with(3, INLINE, None)(1);
    }
    step("further numbers", &mut put_with(3, INLINE, None));
    Lived { geometry, recorder, steps }
}

/// The server after one that was killed at this store.
fn next_after(lived: &Lived, at: Instant) -> (Index, Clock, Arc<Recorder>) {
    let (region, recorder, clock) = recorded(&lived.geometry);
    lived.recorder.repeat(at, &region, &clock);
    let (index, found) = Index::open_at_pace(region, clock.clone(), Pace::small()).unwrap();
    assert_eq!(found.misplaced, 0, "killed at {}", at.0);
    (index, clock, recorder)
}

/// Kills the server at every store. Returns how often.
fn every_kill(name: &str, config: &Config) -> u64 {
    let lived = lived(config);
    let mut kills = 0;
    for Step { name: what, from, to, before, after, numbers } in &lived.steps {
        for at in from.0..=to.0 {
            let when = format!("{name}, {what}, killed at store {} of {}", at - from.0, to.0 - from.0);
            let (index, clock, _recorder) = next_after(&lived, Instant(at));
            let there = entries(&index, KEYS);
            // Of those that end, each may have gone or not.
            let is_one_of_both = |number: &u64| {
                let now = there.get(number);
                now == before.get(number) || now == after.get(number)
            };
            assert!((0..KEYS).all(|number| is_one_of_both(&number)), "{when}: {there:?}");
            assert!(at < to.0 || there == *after, "{when}: {there:?}, not {after:?}");
            kills += 1;
            // V1
            let mut given = numbers.clone();
            given.extend(there.values().map(|(_, life)| life.number));
            assert!(index.put(&key(KEYS), b"", PutMode::Upsert).is_ok(), "{when}");
            let new = index.reader().get_into(&key(KEYS), &mut LifeSink::default()).unwrap().flatten();
            assert!(new.is_some_and(|life| given.insert(life.number)), "{when}: {new:?} was given before");
            // V3
            clock.advance(SECOND * 20);
            while index.tidy() == Some(Duration::ZERO) {}
            let stays: Vec<_> = there.iter().filter(|(_, (_, life))| life.expiry == 0).collect();
            assert_eq!(entries(&index, KEYS).iter().collect::<Vec<_>>(), stays, "{when}, and 20 s later");
        }
    }
    kills
}

fn with_lives(layout: Layout) -> Config {
    config(layout, 2).life(true)
}

#[test]
fn every_kill_of_lives() {
    for preset in presets() {
        let kills = every_kill(preset.name, &with_lives(preset.layout).size(TableSize::Slots(64)));
        println!("{}: {kills} kills", preset.name);
        assert!(kills > 300, "{}: {kills}", preset.name);
    }
}

/// Kills in a table that grows.
#[test]
fn every_kill_of_lives_in_a_table_that_grows() {
    for name in ["bucketized:4", "windowed:8", "farm", "list"] {
        let size = TableSize::Growing { bytes_max: 256 << 10, segment_slots: Some(64) };
        let kills = every_kill(name, &with_lives(name.parse().unwrap()).size(size));
        println!("{name}, which grows: {kills} kills");
        assert!(kills > 300, "{name}: {kills}");
    }
}

/// X1: a number is given again by the next server.
#[cfg(feature = "faults")]
#[test]
fn a_number_that_is_given_twice_is_noticed() {
    use oneread::internals::faults::{Broken, Rule};
    let _broken = Broken::rule(Rule::NumberFirst);
    let config = with_lives("windowed:8".parse().unwrap()).size(TableSize::Slots(64));
    let panic =
        std::panic::catch_unwind(|| every_kill("NumberFirst broken", &config)).expect_err("case lost");
    let said = panic.downcast_ref::<String>().expect("an assertion");
    println!("{said}");
    assert!(said.contains("was given before"), "{said}");
}
