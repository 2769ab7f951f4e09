//! Changes that depend on the value that is there: alone, and two threads by turns.

use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::growth::pace::Pace;
use crate::index::{ChangeWaits, Index};
use crate::layout::hash::Seeds;
use crate::outcome::{PutError, PutMode, PutOutcome, SwapOutcome};
use crate::part::{NewNumber, PartChange, PartEffect, PartError, PartOutcome, Tell, ValueBytes};
use crate::placement::families::presets;
use crate::region::Region;
use crate::sim::{Adversary, Random, Recorder, turns};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const GRACE: Duration = Duration::from_nanos(500);
const VALUE_MAX: usize = 240;

/// Values of some 40 bytes and more do not fit their slots.
fn config(layout: &str, size: TableSize, seed: u64) -> Config {
    Config {
        layout: layout.parse().unwrap(),
        size,
        key_max: 8,
        value_max: VALUE_MAX,
        inline_max: Some(30),
        heap_bytes: matches!(size, TableSize::Slots(_)).then_some(1 << 18),
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        ..Config::default()
    }
}

fn growing(layout: &str, seed: u64) -> Config {
    let slots = 16.max(2 * u64::from(config(layout, TableSize::Slots(64), seed).layout.window_slots()));
    config(layout, TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(slots) }, seed)
}

fn table(config: &Config) -> (Index, Clock) {
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    let region = Region::private(geometry.region_bytes());
    (Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap(), clock)
}

/// A table whose accesses threads take turns at.
fn table_by_turns(config: &Config) -> (Index, Clock) {
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = recorder.region(geometry.region_bytes());
    (Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap(), clock)
}

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn get(index: &Index, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    index.reader().get_into(key, &mut value).unwrap().then_some(value)
}

fn add(index: &Index, key: &[u8], delta: i64, initial: Option<u64>) -> Result<Option<u64>, PutError> {
    Ok(index.change_part(key, PartChange::Add { delta, initial }, Tell::After)?.counter())
}

// ---- alone -------------------------------------------------------------------------------------------

/// What a change answers, and what the key has then, by a map of values.
fn by_map(
    map: &mut BTreeMap<u64, Vec<u8>>,
    n: u64,
    part: PartChange<'_>,
    tell: Tell,
) -> Result<PartOutcome, PutError> {
    let before = map.get(&n).cloned();
    let mut value = ValueBytes::from_slice(before.as_deref().unwrap_or_default());
    let effect = part.apply(&mut value, before.is_some())?;
    let after = (effect != PartEffect::Absent).then(|| value.to_vec());
    if let Some(given) = after.as_ref().map(Vec::len).filter(|len| *len > VALUE_MAX) {
        return Err(PutError::ValueLength { given, max: VALUE_MAX });
    }
    after.iter().for_each(|after| drop(map.insert(n, after.clone())));
    let value = match tell {
        Tell::Nothing => None,
        Tell::Before => before,
        Tell::After => after,
    };
    Ok(PartOutcome { effect, value })
}

/// Changes of parts are made of the value that is there, in its slot or not, and it is what they say. Errors change
/// nothing.
#[test]
fn parts_are_made_of_the_value_that_is_there() {
    let mut seen = BTreeMap::<String, u64>::new();
    for (seed, preset) in (0..).zip(presets()) {
        for config in [config(preset.name, TableSize::Slots(100), seed), growing(preset.name, seed)] {
            let (index, clock) = table(&config);
            let (mut map, mut random) = (BTreeMap::new(), Random::new(seed));
            for _ in 0..4_000 {
                let bytes: Vec<u8> = (0..random.pick(48)).map(|_| random.pick(8) as u8).collect();
                let delta = random.pick(5) as i64 - 2;
                let initial = (random.pick(2) == 0).then(|| random.pick(4) as u64);
                let kind = random.pick(9);
                // Most counters have keys of their own.
                let is_counter = matches!(kind, 4 | 5) && random.pick(4) > 0;
                let n = match kind {
                    8 if random.pick(4) > 0 => 60 + random.pick(8),
                    _ if is_counter => 50 + random.pick(8),
                    _ => random.pick(40),
                } as u64;
                let part = match kind {
                    0 if initial.is_some() => PartChange::OrPadded { bits: &bytes },
                    0 => PartChange::Or { bits: &bytes },
                    1 => PartChange::AndNot { bits: &bytes },
                    2 | 3 => PartChange::Append { bytes: &bytes, len_max: [20, 60, 300][random.pick(3)] },
                    4 | 5 => PartChange::Add { delta, initial },
                    // Decimal text may be longer than it was, and out of its slot.
                    8 => PartChange::Increment {
                        delta: delta.signum() * (i64::MAX / 10_i64.pow(random.pick(19) as u32)),
                        absent: initial.map(|from| NewNumber::from(from as i64)),
                    },
                    6 if random.pick(4) == 0 => {
                        assert_eq!(index.remove(&key(n)), Ok(map.remove(&n).is_some()));
                        continue;
                    }
                    _ => {
                        clock.advance(GRACE);
                        index.tidy();
                        continue;
                    }
                };
                let tell = [Tell::Nothing, Tell::Before, Tell::After][random.pick(3)];
                let expected = by_map(&mut map, n, part, tell);
                let what = match &expected {
                    Ok(PartOutcome { effect, .. }) => format!("{effect:?}"),
                    Err(error) => format!("{error:?}").split_inclusive(['(', ' ']).take(2).collect(),
                };
                *seen.entry(what).or_default() += 1;
                assert_eq!(index.change_part(&key(n), part, tell), expected, "{part:?}, {tell:?}");
                assert_eq!(get(&index, &key(n)).as_ref(), map.get(&n), "{part:?}");
            }
            assert_eq!(index.len(), map.len() as u64);
            let is_long = |n: u64, value: &Vec<u8>| !index.geometry().is_inline(&key(n), value.len());
            let long = map.iter().filter(|(n, value)| is_long(**n, value)).count();
            assert!(long > 3 && index.heap().values == long as u64, "{long}");
        }
    }
    println!("{seen:?}");
    assert!(seen.len() >= 9 && seen.values().all(|&n| n > 50), "{seen:?}");
}

/// The value that is asked for must fit the answer, or nothing is changed.
#[test]
fn what_is_told_must_fit_the_answer() {
    let (index, _clock) = table(&config("windowed:8", TableSize::Slots(100), 1));
    for len in [10, 100] {
        index.put(b"key", &vec![1; len], PutMode::Upsert).unwrap();
        let append = PartChange::Append { bytes: b"+", len_max: 240 };
        let tell = |tell, max| index.try_part(b"key", append, (tell, max), None, &ChangeWaits::default());
        let too_long = |given, max| Err(PutError::Part(PartError::AnswerLength { given, max }));
        assert_eq!(tell(Tell::Before, len - 1), too_long(len, len - 1));
        assert_eq!(tell(Tell::After, len), too_long(len + 1, len));
        assert_eq!(get(&index, b"key").unwrap().len(), len);
        assert_eq!(tell(Tell::Before, len).unwrap().value, Some(vec![1; len]));
        assert_eq!(tell(Tell::Nothing, 0).unwrap().effect, PartEffect::Updated);
        assert_eq!(get(&index, b"key").unwrap().len(), len + 2);
    }
}

/// A table without room for the key, and one without memory for the value, say so, and nothing is changed.
#[test]
fn parts_find_no_room() {
    let (index, _clock) = table(&config("windowed:8", TableSize::Slots(16), 1));
    let refused = (0..100).find(|&n| index.put(&key(n), b"value", PutMode::Insert).is_err()).unwrap();
    let counts = index.counts();
    let or = PartChange::Or { bits: b"bits" };
    let answer = index.change_part(&key(refused), or, Tell::Nothing);
    assert!(matches!(answer, Err(PutError::Full { .. })), "{answer:?}");
    let and_not =
        index.change_part(&key(refused), PartChange::AndNot { bits: b"bits" }, Tell::After).unwrap();
    assert_eq!((and_not.effect, and_not.value), (PartEffect::Absent, None));
    assert_eq!((index.counts(), get(&index, &key(refused))), (counts, None));
    for bad in [&b""[..], &[0; 9]] {
        let answer = index.change_part(bad, or, Tell::Nothing);
        assert_eq!(answer, Err(PutError::KeyLength { given: bad.len(), max: 8 }));
    }
}

/// A compare-and-swap to absence removes what is expected, and nothing else, also a value that is not in its slot.
#[test]
fn remove_if_removes_what_is_expected() {
    for config in [config("windowed:8", TableSize::Slots(100), 1), growing("pilaf", 1)] {
        let (index, _clock) = table(&config);
        assert_eq!(index.remove_if(b"key", b"value"), Ok(SwapOutcome::Absent));
        for value in [vec![1; 5], vec![2; 100]] {
            index.put(b"key", &value, PutMode::Insert).unwrap();
            let removes = index.counts().removes;
            assert_eq!(index.remove_if(b"key", b"value"), Ok(SwapOutcome::Differs));
            assert_eq!(index.remove_if(b"key", &value[1..]), Ok(SwapOutcome::Differs));
            assert_eq!(get(&index, b"key"), Some(value.clone()));
            assert_eq!(index.remove_if(b"key", &value), Ok(SwapOutcome::Swapped));
            assert_eq!((get(&index, b"key"), index.counts().removes), (None, removes + 1));
            assert_eq!((index.len(), index.heap().values), (0, 0));
        }
    }
}

/// All keys go, also those whose values are not in their slots, and what is put later stays. A place that nobody has
/// named does no harm.
#[test]
fn all_keys_are_cleared() {
    for preset in presets() {
        for config in [config(preset.name, TableSize::Slots(400), 2), growing(preset.name, 2)] {
            let (index, _clock) = table(&config);
            for n in 0..300 {
                index.put(&key(n), &vec![7; if n % 8 == 0 { 40 } else { 8 }], PutMode::Insert).unwrap();
            }
            let mut told = Vec::new();
            let removed = index.clear(&mut |step| {
                told.push((step.removed, step.progress_ppm));
                true
            });
            assert_eq!((removed, index.len(), index.heap().values), (Ok(300), 0, 0), "{}", preset.name);
            assert!(told.is_sorted(), "{told:?}");
            assert_eq!(index.counts().removes, 300);
            index.put(b"later", b"value", PutMode::Insert).unwrap();
            assert!(get(&index, b"later").is_some());
            for place in [[u64::MAX; 2], [3, u64::MAX], [1 << 40, 1 << 32], [0, 5], [7, 1 << 62]] {
                let place = crate::index::ClearPlace(place);
                index.clear_on(place, Duration::ZERO, &ChangeWaits::default()).unwrap();
            }
            index.clear(&mut |_| true).unwrap();
            assert!(index.is_empty());
        }
    }
}

// ---- two threads by turns ------------------------------------------------------------------------------

type ThreadWork<'a, R> = Box<dyn FnOnce() -> R + Send + 'a>;

/// Whatever else goes on in a table: other keys come and go, it grows and shrinks, extents move.
fn stir(index: &Index, clock: &Clock, random: &mut Random) {
    let n = 100 + random.pick(30) as u64;
    match random.pick(4) {
        0 => drop(index.put(&key(n), &key(n).repeat(1 + random.pick(9)), PutMode::Upsert)),
        1 => drop(index.remove(&key(n))),
        _ => move_on(index, clock, random),
    }
}

/// Stirs the table, but no key comes or goes.
fn move_on(index: &Index, clock: &Clock, random: &mut Random) {
    if index.geometry().grows() && random.pick(2) == 0 {
        index.pair_up(&key(random.pick(3) as u64), random.pick(2) == 0);
        index.drive(1 + random.pick(8) as u32);
    } else {
        clock.advance(GRACE / 4);
        index.move_extent();
        index.tidy();
    }
}

/// Two threads add to two counters. Each sum is exact, and each thread is told sums that nobody else is told.
fn counted(config: &Config, seed: u64) -> Option<String> {
    const ADDS: u64 = 25;
    let (index, clock) = table_by_turns(config);
    let work = |thread: u64| -> ThreadWork<'_, Vec<(u64, u64)>> {
        let (index, clock) = (&index, &clock);
        Box::new(move || {
            let (mut random, mut told) = (Random::new(seed ^ thread << 32), Vec::new());
            while (told.len() as u64) < ADDS {
                if random.pick(2) == 0 {
                    stir(index, clock, &mut random);
                } else {
                    let n = random.pick(2) as u64;
                    let sum = add(index, &key(n), 1, Some(0));
                    told.push((n, sum.unwrap().expect("it comes")));
                }
            }
            told
        })
    };
    let mut told = turns::run(seed, vec![work(1), work(2)]).concat();
    told.sort_unstable();
    for n in 0..2 {
        let sums: Vec<_> = told.iter().filter(|told| told.0 == n).map(|told| told.1).collect();
        let all: Vec<_> = (1..=sums.len() as u64).collect();
        let there = get(&index, &key(n)).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
        if sums != all || there != sums.len() as u64 {
            return Some(format!("counter {n} is {there} after {sums:?}"));
        }
    }
    None
}

/// Two threads append to one value, which grows out of its slot, and is now and then taken away. Everything appended is
/// there once, in each thread's order.
fn appended(config: &Config, seed: u64) -> Option<String> {
    const APPENDS: u64 = 14;
    let (index, clock) = table_by_turns(config);
    let work = |thread: u64| -> ThreadWork<'_, Vec<u8>> {
        let (index, clock) = (&index, &clock);
        Box::new(move || {
            let (mut random, mut taken) = (Random::new(seed ^ thread << 32), Vec::new());
            for n in 0..APPENDS {
                (0..random.pick(3)).for_each(|_| stir(index, clock, &mut random));
                let bytes = [[thread as u8, n as u8]; 4].concat();
                let part = PartChange::Append { bytes: &bytes, len_max: VALUE_MAX };
                let done = index.change_part(&key(0), part, Tell::Nothing).unwrap();
                assert!(matches!(done.effect, PartEffect::Inserted | PartEffect::Updated), "{done:?}");
                if random.pick(8) == 0
                    && let Some(value) = get(index, &key(0))
                    && index.remove_if(&key(0), &value) == Ok(SwapOutcome::Swapped)
                {
                    taken.extend(value);
                }
            }
            taken
        })
    };
    let mut all = turns::run(seed, vec![work(1), work(2)]);
    all.push(get(&index, &key(0)).unwrap_or_default());
    let mut tokens: Vec<_> =
        all.iter().flat_map(|bytes| bytes.chunks(8)).map(|token| token.to_vec()).collect();
    tokens.sort_unstable();
    let expected: Vec<_> = [1, 2]
        .into_iter()
        .flat_map(|thread| (0..APPENDS).map(move |n| [[thread as u8, n as u8]; 4].concat()))
        .collect();
    if tokens != expected {
        return Some(format!("appended: {tokens:?}"));
    }
    // What one thread took, or what is left, has each thread's tokens in order.
    for value in [&all[2]] {
        for thread in [1, 2] {
            let of: Vec<_> =
                value.chunks(8).filter(|token| token[0] == thread).map(|token| token[1]).collect();
            if !of.is_sorted() {
                return Some(format!("thread {thread}: {of:?}"));
            }
        }
    }
    None
}

/// Two threads set and clear bits of their own in one bit set, in which a bit of each byte always stays.
fn bits_of_two(config: &Config, seed: u64) -> Option<String> {
    let (index, clock) = table_by_turns(config);
    index.put(&key(0), &[0x80; 40], PutMode::Insert).unwrap();
    let work = |thread: u64| -> ThreadWork<'_, [u8; 40]> {
        let (index, clock) = (&index, &clock);
        Box::new(move || {
            let (mut random, mut mine) = (Random::new(seed ^ thread << 32), [0; 40]);
            for _ in 0..12 {
                stir(index, clock, &mut random);
                let (byte, bit) = (random.pick(40), 1 << (2 * random.pick(3) + thread as usize - 1));
                let mut bits = vec![0; byte + 1];
                bits[byte] = bit;
                let (part, is_new) = match random.pick(3) {
                    0 => (PartChange::AndNot { bits: &bits }, mine[byte] & bit != 0),
                    1 => (PartChange::Or { bits: &bits }, mine[byte] & bit == 0),
                    _ => (PartChange::OrPadded { bits: &bits }, mine[byte] & bit == 0),
                };
                let done = index.change_part(&key(0), part, Tell::After).unwrap();
                assert_eq!(done.effect == PartEffect::Updated, is_new, "nobody else changes it");
                if is_new {
                    mine[byte] ^= bit;
                }
            }
            mine
        })
    };
    let mine = turns::run(seed, vec![work(1), work(2)]);
    let expected: Vec<u8> = mine[0].iter().zip(&mine[1]).map(|(a, b)| 0x80 | a | b).collect();
    let there = get(&index, &key(0)).unwrap();
    (there != expected).then(|| format!("{there:?}, not {expected:?}"))
}

/// One thread clears the table, another one changes it. What stayed throughout has gone, and each key that went is
/// counted once.
fn cleared_by_turns(config: &Config, seed: u64) -> Option<String> {
    let (index, clock) = table_by_turns(config);
    (0..30).for_each(|n| drop(index.put(&key(n), &key(n).repeat(1 + n as usize % 6), PutMode::Insert)));
    let there = index.len();
    let work: Vec<ThreadWork<'_, [u64; 2]>> = vec![
        Box::new(|| [index.clear(&mut |_| true).unwrap(), 0]),
        Box::new(|| {
            let (mut random, mut counts) = (Random::new(seed), [0; 2]);
            for _ in 0..60 {
                let n = 20 + random.pick(30) as u64;
                match random.pick(3) {
                    0 => counts[1] += u64::from(index.remove(&key(n)).unwrap()),
                    1 => {
                        let put = index.put(&key(n), b"value", PutMode::Upsert);
                        counts[0] += u64::from(put == Ok(PutOutcome::Inserted));
                    }
                    _ => move_on(&index, &clock, &mut random),
                }
            }
            counts
        }),
    ];
    let before = index.counts();
    let [[cleared, _], [came, went]] = turns::run(seed, work)[..] else { unreachable!("two worked") };
    let stays = (0..20).find(|n| get(&index, &key(*n)).is_some());
    let is_counted = (index.len(), index.counts().removes - before.removes)
        == (there + came - went - cleared, went + cleared);
    (stays.is_some() || !is_counted).then(|| format!("{stays:?}, {cleared}, {came}, {went}"))
}

type ByTurns = fn(&Config, u64) -> Option<String>;

/// L14, X7: no change of a part is lost, or done twice, whatever another thread does meanwhile, in every layout.
#[test]
fn parts_by_turns_are_exact() {
    let all: [(&str, ByTurns); 4] =
        [("counted", counted), ("appended", appended), ("bits", bits_of_two), ("cleared", cleared_by_turns)];
    for preset in presets() {
        for seed in 0..24 {
            for config in [config(preset.name, TableSize::Slots(200), seed), growing(preset.name, seed)] {
                for (name, by_turns) in all {
                    assert_eq!(by_turns(&config, seed), None, "{name}, {}, seed {seed}", preset.name);
                }
            }
        }
    }
}

/// A value that is read before the lock is taken is noticed.
#[cfg(feature = "faults")]
#[test]
fn a_value_read_before_the_lock_is_noticed() {
    use crate::faults::{Broken, Rule};
    let _broken = Broken::rule(Rule::ValueUnderLock);
    for config in [config("windowed:8", TableSize::Slots(200), 1), growing("windowed:8", 1)] {
        let found = (0..500).find_map(|seed| Some((seed, counted(&config, seed)?)));
        let (seed, wrong) = found.expect("case lost");
        println!("seed {seed}: {wrong}");
    }
}
