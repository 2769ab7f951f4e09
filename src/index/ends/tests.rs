//! Notes of ends, by themselves and in tables: as many as there are entries that have an end.

use super::EndNotes;
use crate::base::clock::Clock;
use crate::base::sync::lock;
use crate::config::{Config, Evict, TableSize};
use crate::index::Index;
use crate::index::growth::pace::Pace;
use crate::layout::hash::{First, Seeds};
use crate::outcome::{PutMode, PutOptions, PutOutcome};
use crate::part::{PartChange, Tell};
use crate::sim::{Adversary, Random, Recorder, turns};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Each hash with its tick, and how many entries have it.
fn noted(notes: &EndNotes) -> BTreeMap<u64, (u32, u32)> {
    let times = lock(&notes.times);
    let of = |(hash, note): (&First, &super::EndNote)| {
        (hash.0, (note.tick, 1 + times.more.get(hash).copied().unwrap_or(0)))
    };
    let noted: BTreeMap<_, _> = times.of.iter().map(of).collect();
    let due: Vec<u64> = times
        .due
        .iter()
        .flat_map(|(tick, all)| all.iter().map(move |h| (h, tick)))
        .map(|(h, tick)| {
            assert_eq!(noted[&h.0].0, *tick);
            h.0
        })
        .collect();
    assert_eq!((due.len(), times.of.len()), (noted.len(), noted.len()), "each hash stands at one tick");
    let soonest = times.due.keys().next().map_or(u64::MAX, |&tick| tick.into());
    assert_eq!(notes.soonest(), soonest);
    noted
}

/// Random entries come, are replaced and leave, several with one hash. A note has the soonest time that any entry of its
/// hash has had since the note was made or set, and goes with the last of them.
#[test]
fn notes_are_of_entries() {
    for seed in 0..200 {
        let (notes, mut random) = (EndNotes::default(), Random::new(seed));
        // By hash and entry: when it ends.
        let mut there: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        for _ in 0..400 {
            let entry = (random.pick(6) as u64, random.pick(3) as u64);
            let (hash, tick) = (First(entry.0), random.pick(20) as u32);
            match (there.get(&entry).copied(), random.pick(3)) {
                (None, _) if tick > 0 => {
                    notes.came(hash, tick);
                    there.insert(entry, tick);
                }
                (Some(_), 0) => {
                    notes.left(hash);
                    there.remove(&entry);
                }
                (Some(before), _) => {
                    notes.replaced(hash, before, tick);
                    if tick == 0 {
                        there.remove(&entry)
                    } else {
                        there.insert(entry, tick)
                    };
                }
                (None, _) => {}
            }
            if random.pick(8) == 0 {
                let now = random.pick(20) as u64;
                for hash in notes.take_due(now, now as u32 + 8, 1 + random.pick(3)) {
                    let next = there.iter().filter(|((of, _), _)| *of == hash.0).map(|(_, tick)| *tick).min();
                    notes.set(hash, next.expect("of an entry that is there"));
                }
            }
            let mut expected: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            for (&(hash, _), &tick) in &there {
                let of = expected.entry(hash).or_insert((tick, 0));
                *of = (of.0.min(tick), of.1 + 1);
            }
            let noted = noted(&notes);
            assert!(noted.keys().eq(expected.keys()), "seed {seed}: {noted:?}, {expected:?}");
            for (hash, (soonest, entries)) in expected {
                let (tick, of) = noted[&hash];
                assert!(
                    tick <= soonest && of == entries,
                    "seed {seed}: {hash}: {tick} {soonest}, {of} {entries}"
                );
            }
            assert_eq!(notes.len(), noted.len() as u64);
        }
    }
}

/// When nobody changes the table: what is wrong with its notes.
fn wrong_notes(index: &Index) -> Option<String> {
    let mut there: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    index.table().show_lives(&mut |hash, life| {
        if let Some(life) = life.filter(|life| life.expiry != 0) {
            let of = there.entry(hash.0).or_insert((life.expiry, 0));
            *of = (of.0.min(life.expiry), of.1 + 1);
        }
    });
    let noted = noted(index.table().observers().ends());
    let lost =
        there.iter().find(|(hash, (soonest, _))| noted.get(hash).is_none_or(|(tick, _)| tick > soonest));
    let idle = noted.iter().find(|(hash, (_, of))| there.get(hash).is_none_or(|(_, entries)| of != entries));
    lost.map(|lost| format!("not noted: {lost:?}")).or(idle.map(|idle| format!("of nothing: {idle:?}")))
}

fn config(size: TableSize) -> Config {
    let heap_bytes = matches!(size, TableSize::Slots(_)).then_some(1 << 20);
    Config {
        size,
        key_max: 8,
        value_max: 3_000,
        inline_max: Some(20),
        heap_bytes,
        life: true,
        grace: Duration::from_micros(200),
        seeds: Some(Seeds::from_number(1)),
        ..Config::default()
    }
}

const SIZES: [TableSize; 2] =
    [TableSize::Slots(64), TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) }];

/// Changes a key of some in some way that concerns its end.
fn change(index: &Index, random: &mut Random, keys: u64) {
    let key = random.pick(keys as usize).to_le_bytes();
    let ttl = [None, Some(SECOND), Some(2 * SECOND), Some(9 * SECOND)][random.pick(4)];
    match random.pick(8) {
        0..4 => {
            let value = if random.pick(8) == 0 { &[7; 200][..] } else { &[8; 8] };
            let _ = index.put_with(&key, value, PutOptions::new().ttl(ttl));
        }
        4 => drop(index.put(&key, &[9; 8], PutMode::Update).unwrap()),
        5 => drop(index.change_part(&key, PartChange::Append { bytes: b"!", len_max: 64 }, Tell::Nothing)),
        6 => drop(index.compare_and_swap(&key, &[8; 8], &[9; 8]).unwrap()),
        _ => drop(index.remove(&key).unwrap()),
    }
}

/// Two threads change the same few keys and end them, while the clock goes on. Returns what is wrong in the end.
fn turn_of_ends(size: TableSize, seed: u64) -> Option<String> {
    let (geometry, clock) = (config(size).geometry().unwrap(), Clock::manual());
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = recorder.region(geometry.region_bytes());
    let index = Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap();
    let index = if seed.is_multiple_of(2) { index.with_eviction(Evict::S3Fifo).unwrap() } else { index };
    (100..140u64).for_each(|n| drop(index.put(&n.to_le_bytes(), b"", PutMode::Upsert)));
    let work = |thread: u64| {
        let (index, clock) = (&index, &clock);
        move || {
            let mut random = Random::new(seed * 2 + thread);
            for n in 0..30 {
                change(index, &mut random, 3);
                if n % 6 == 0 {
                    clock.advance(SECOND / 2);
                    index.tidy();
                }
            }
        }
    };
    drop(turns::run(seed, vec![work(0), work(1)]));
    wrong_notes(&index)
}

/// V3: each entry that has an end is noted, and no other, whatever threads do.
#[test]
fn entries_are_noted_as_long_as_they_are_there() {
    for size in SIZES {
        for seed in 0..150 {
            assert_eq!(turn_of_ends(size, seed), None, "{size:?}, seed {seed}");
        }
    }
}

/// One thread gives an entry that has ended a value without an end, while another one ends what has ended. Returns whether the
/// value is there.
fn has_new_value(size: TableSize, seed: u64) -> bool {
    let (geometry, clock) = (config(size).geometry().unwrap(), Clock::manual());
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = recorder.region(geometry.region_bytes());
    let index = Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap();
    index.put_with(b"key", b"", PutOptions::new().ttl(Some(SECOND))).unwrap();
    clock.advance(2 * SECOND);
    let work = |puts: bool| {
        let index = &index;
        move || match puts {
            true => assert!(index.put(b"key", b"new", PutMode::Upsert).is_ok()),
            false => while index.tidy() == Some(Duration::ZERO) {},
        }
    };
    drop(turns::run(seed, vec![work(true), work(false)]));
    index.reader().get_into(b"key", &mut Vec::new()).unwrap()
}

/// V2: an entry that has got another time since its end was seen stays.
#[test]
fn ends_count_under_the_lock() {
    for size in SIZES {
        (0..200).for_each(|seed| assert!(has_new_value(size, seed), "{size:?}, seed {seed}"));
        #[cfg(feature = "faults")]
        {
            use crate::faults::{Broken, Rule};
            let _broken = Broken::rule(Rule::ExpiryCheck);
            assert!((0..4_000).any(|seed| !has_new_value(size, seed)), "case lost: ExpiryCheck");
        }
    }
}

/// With either rule broken, some order of accesses shows it.
#[cfg(feature = "faults")]
#[test]
fn broken_notes_are_noticed() {
    use crate::faults::{Broken, Rule};
    for rule in [Rule::EndLock, Rule::EndForgotten] {
        let _broken = Broken::rule(rule);
        let found = (0..4_000).find_map(|seed| Some((seed, turn_of_ends(SIZES[0], seed)?)));
        let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
        println!("{rule:?} broken: seed {seed}: {wrong}");
    }
}

/// Threads that run change and end entries of a table that evicts, grows and shrinks. When they have done, the notes are
/// right. Then the time of all comes, and no entry that has an end is left, nor a note.
#[test]
fn threads_leave_no_note_behind() {
    for (size, evict) in [
        (TableSize::Slots(2_000), true),
        (TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(256) }, false),
    ] {
        let clock = Clock::manual();
        let geometry = config(size).geometry().unwrap();
        let region = crate::region::Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let index = if evict { index.with_eviction(Evict::Sieve).unwrap() } else { index };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (index, clock) = (&index, &clock);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for n in 0..30_000 {
                        // The table fills, and then is nearly empty.
                        let keys = if n / 5_000 % 2 == 0 { 6_000 } else { 200 };
                        change(index, &mut random, keys);
                        if n % 50 == 0 {
                            clock.advance(SECOND / 50);
                            index.tidy();
                        }
                    }
                });
            }
        });
        assert_eq!(wrong_notes(&index), None, "{size:?}");
        clock.advance(20 * SECOND);
        while index.tidy() == Some(Duration::ZERO) {}
        assert_eq!((wrong_notes(&index), index.notes().ends), (None, 0), "{size:?}");
        assert_eq!(index.put(b"key", b"", PutMode::Upsert), Ok(PutOutcome::Inserted));
    }
}
