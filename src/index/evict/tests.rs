//! Policies by themselves.

use super::*;
use crate::layout::hash::mix;
use std::collections::BTreeSet;

/// Goes through a list of keys with a cache of so many entries. Returns which were there.
fn run(which: Evict, entries: usize, keys: impl IntoIterator<Item = u64>) -> Vec<bool> {
    let (mut policy, mut there, mut read) = (policy(which), BTreeSet::new(), BTreeSet::new());
    let mut hits = Vec::new();
    for key in keys {
        let is_hit = there.contains(&key);
        hits.push(is_hit);
        if is_hit {
            read.insert(key);
            continue;
        }
        if there.len() == entries {
            let look = &mut |hash: First| if read.remove(&hash.0) { Sight::Read } else { Sight::Unread };
            let gone = policy.victim(look).expect("none is pinned");
            assert!(there.remove(&gone.0), "{which}: it is there");
        }
        there.insert(key);
        policy.came(First(key));
        assert_eq!(policy.entries(), there.len());
    }
    hits
}

fn all() -> [Evict; 3] {
    Evict::ALL.map(|(policy, _)| policy)
}

/// Who is read stays, who is not goes, the oldest first.
#[test]
fn what_is_read_stays() {
    for which in all() {
        let hits = run(which, 4, [1, 2, 3, 4, 1, 1, 5, 1, 6, 1, 7, 1]);
        let of_one: Vec<bool> = [4, 5, 7, 9, 11].map(|at| hits[at]).into();
        assert_eq!(of_one, [true; 5], "{which}");
        // 2 was the oldest that nobody had read.
        assert!(!run(which, 4, [1, 2, 3, 4, 1, 5, 2])[6], "{which}");
    }
}

/// s3-fifo keeps who comes back soon after it left. The others do not know it again.
#[test]
fn who_comes_back_soon_is_kept() {
    // Each of 100 keys is read again after 1,000 others, most of which come once.
    let keys =
        (0..20_000u64).flat_map(|n| std::iter::once(n % 100).chain((1..10).map(move |m| n * 10 + m + 1_000)));
    let keys: Vec<u64> = keys.collect();
    for (which, expected) in
        [(Evict::S3Fifo, 0.09..0.101), (Evict::Sieve, 0.0..0.01), (Evict::Clock, 0.0..0.01)]
    {
        let hits = run(which, 800, keys.iter().copied());
        let ratio = hits.iter().filter(|&&hit| hit).count() as f64 / hits.len() as f64;
        println!("{which}: {ratio:.3}");
        assert!(expected.contains(&ratio), "{which}: {ratio}");
    }
}

/// However many are read, a victim is found after a bounded number of looks; none that is pinned; `None` only if
/// all that were looked at are.
#[test]
fn a_victim_is_found_soon() {
    for which in all() {
        let mut policy = policy(which);
        (0..1_000).for_each(|key| policy.came(First(key)));
        for sight in [Sight::Read, Sight::Pinned] {
            let mut looks = 0;
            let victim = policy.victim(&mut |_| {
                looks += 1;
                sight
            });
            assert_eq!((victim.is_some(), looks), (sight == Sight::Read, 64), "{which} {sight:?}");
        }
        // One of so many may go. In some rounds, all of them have.
        let look = &mut |hash: First| if hash.0 % 50 == 7 { Sight::Read } else { Sight::Pinned };
        let gone: BTreeSet<u64> = (0..500).filter_map(|_| policy.victim(look)).map(|hash| hash.0).collect();
        assert!(gone.iter().all(|key| key % 50 == 7) && gone.len() >= 15, "{which}: {gone:?}");
    }
}

/// Records come and go in any order, and the lists stay whole.
#[test]
fn records_come_and_go() {
    for which in all() {
        let (mut policy, mut there) = (policy(which), BTreeSet::new());
        for n in 0..100_000 {
            let random = mix(n);
            let key = random >> 20 & 0x3ff;
            match random % 4 {
                0 | 1 => {
                    policy.came(First(key));
                    there.insert(key);
                }
                2 => {
                    policy.left(First(key));
                    there.remove(&key);
                }
                _ => {
                    let look = &mut |hash: First| {
                        if mix(hash.0 ^ n).is_multiple_of(3) { Sight::Unread } else { Sight::Read }
                    };
                    let gone = policy.victim(look).map(|hash| hash.0);
                    assert_eq!(gone.is_some(), !there.is_empty(), "{which}");
                    assert!(gone.is_none_or(|gone| there.remove(&gone)), "{which}");
                }
            }
            assert_eq!(policy.entries(), there.len(), "{which}");
            assert_eq!(policy.rank(First(key)) != Rank::Unknown, there.contains(&key), "{which}");
        }
        let all = std::iter::from_fn(|| policy.victim(&mut |_| Sight::Unread));
        assert_eq!(all.map(|hash| hash.0).collect::<BTreeSet<_>>(), there, "{which}");
    }
}

// ---- tables -------------------------------------------------------------------------------------

#[cfg(feature = "sim")]
mod tables {
    use super::all;
    use crate::base::clock::Clock;
    use crate::config::{Config, Evict, TableSize};
    use crate::index::Index;
    use crate::index::growth::pace::Pace;
    use crate::layout::hash::Seeds;
    use crate::outcome::{PutMode, PutOutcome};
    use crate::region::{Backing, Region};
    use crate::sim::{Adversary, Random, Recorder, turns};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const GRACE: Duration = Duration::from_micros(200);

    /// A table whose accesses threads take turns at.
    fn index(layout: &str, size: TableSize, policy: Evict) -> Index {
        let seeds = Some(Seeds::from_number(1));
        let config = Config {
            layout: layout.parse().unwrap(),
            size,
            key_max: 8,
            value_max: 60,
            grace: GRACE,
            seeds,
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        Index::create_at_pace(region, geometry, clock, Pace::small()).unwrap().with_eviction(policy).unwrap()
    }

    fn put(index: &Index, n: u64) -> Result<PutOutcome, crate::outcome::PutError> {
        index.put(&n.to_le_bytes(), &n.to_le_bytes(), PutMode::Upsert)
    }

    const SMALL: [TableSize; 2] =
        [TableSize::Slots(64), TableSize::Growing { bytes_max: 96 << 10, segment_slots: Some(64) }];

    /// Two threads put and remove the same few keys in a table that is full. Returns what is wrong: records are of
    /// the keys that are there.
    fn turn_of_records(size: TableSize, seed: u64) -> Option<String> {
        let index = index("windowed:8", size, Evict::S3Fifo);
        (100..400).for_each(|n| drop(put(&index, n)));
        let work = |thread: u64| {
            let index = &index;
            move || {
                let mut random = Random::new(seed * 2 + thread);
                for n in 0..30 {
                    let key = random.pick(3) as u64;
                    match random.pick(2) {
                        0 => drop(put(index, key)),
                        _ => drop(index.remove(&key.to_le_bytes()).unwrap()),
                    }
                    if n % 8 == 0 {
                        put(index, 1_000 + 100 * thread + n).unwrap();
                    }
                }
            }
        };
        drop(turns::run(seed, vec![work(0), work(1)]));
        let (records, keys) = (index.evictions().records, index.len());
        (records != keys).then(|| format!("{records} records of {keys} keys"))
    }

    /// Z1: a policy knows exactly the keys that are there, whatever threads do.
    #[test]
    fn policies_know_the_keys_that_are_there() {
        for size in SMALL {
            for seed in 0..100 {
                assert_eq!(turn_of_records(size, seed), None, "{size:?}, seed {seed}");
            }
        }
    }

    /// One thread pins a key that another one's puts push out. Returns what is wrong: who has been told that it is
    /// pinned finds it.
    fn turn_of_pins(size: TableSize, seed: u64) -> Option<String> {
        let index = index("windowed:8", size, Evict::Clock);
        let (index, is_done) = (&index, &AtomicBool::new(false));
        // The oldest goes first.
        (0..400).for_each(|n| drop(put(index, n)));
        let oldest =
            (0..400u64).find(|n| index.reader().get_into(&n.to_le_bytes(), &mut Vec::new()).unwrap());
        let key = oldest.expect("there are keys").to_le_bytes();
        let works: Vec<Box<dyn FnOnce() -> bool + Send + '_>> = vec![
            Box::new(move || {
                let pin = index.pin(&key).unwrap();
                let mut is_wrong = false;
                while !is_done.load(Ordering::Relaxed) && pin.is_some() {
                    is_wrong |= !index.reader().get_into(&key, &mut Vec::new()).unwrap();
                }
                is_wrong
            }),
            Box::new(move || {
                (1_000..1_040).for_each(|n| drop(put(index, n)));
                is_done.store(true, Ordering::Relaxed);
                false
            }),
        ];
        turns::run(seed, works).contains(&true).then(|| "a pinned key has gone".into())
    }

    /// Z2: a pinned key stays.
    #[test]
    fn a_pinned_key_stays() {
        for size in SMALL {
            for seed in 0..60 {
                assert_eq!(turn_of_pins(size, seed), None, "{size:?}, seed {seed}");
            }
        }
    }

    /// With either rule broken, some order of accesses shows it.
    #[cfg(feature = "faults")]
    #[test]
    fn broken_records_and_pins_are_noticed() {
        use crate::faults::{Broken, Rule};
        type Turn = fn(TableSize, u64) -> Option<String>;
        let cases: [(Rule, Turn); 3] = [
            (Rule::RecordLock, turn_of_records),
            (Rule::PinFirst, turn_of_pins),
            (Rule::PinLook, turn_of_pins),
        ];
        for (rule, turn) in cases {
            let _broken = Broken::rule(rule);
            let found = (0..4_000).find_map(|seed| Some((seed, turn(SMALL[0], seed)?)));
            let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
            println!("{rule:?} broken: seed {seed}: {wrong}");
        }
    }

    /// Z5: keys have all memory, and a long value comes whose put may not wait. Each try has a bounded number of entries go, and
    /// so has each tidying that goes on with it. In the end the value comes.
    #[test]
    fn a_put_that_may_not_wait_has_few_go_at_a_time() {
        const LONG: usize = 70_000;
        let size = TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(4 << 10) };
        for (which, tidies) in all().into_iter().flat_map(|which| [(which, false), (which, true)]) {
            let seeds = Some(Seeds::from_number(1));
            let config =
                Config { size, key_max: 8, value_max: LONG, seeds, grace: GRACE, ..Config::default() };
            let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
            let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
            let index = Index::create(region, geometry, clock.clone()).unwrap().with_eviction(which).unwrap();
            (0..100_000).for_each(|n| assert!(put(&index, n).is_ok()));
            let (mut tries, mut tidied, begun) = (0, 0, index.evictions().evicted());
            loop {
                let before = index.evictions().evicted();
                let outcome = index.put_at_once(b"long", &[7; LONG], PutMode::Upsert.into(), None);
                let gone = index.evictions().evicted() - before;
                assert!(gone <= 80, "{which}: {gone} went");
                match outcome {
                    Ok(outcome) => break assert_eq!(outcome, PutOutcome::Inserted),
                    Err(error) => {
                        assert!(matches!(error, crate::outcome::PutError::HeapBusy { .. }), "{error}")
                    }
                }
                (tries, _) = (tries + 1, clock.advance(GRACE));
                // A thread of another test that the system suspends may keep the memory of a merged segment, by its epoch.
                std::thread::sleep(Duration::from_millis(u64::from(tries > 1_000)));
                assert!(tries < 60_000, "{which}: {:?}", index.growth());
                // Time goes on meanwhile: a merge whose keys find no room yet waits for traces to go.
                while tidies && index.tidy() == Some(Duration::ZERO) {
                    clock.advance(GRACE);
                    let gone = index.evictions().evicted() - before;
                    (tidied, _) = (tidied + 1, assert!(gone <= 80 * (tidied + 2), "{which}: {gone} went"));
                }
            }
            let gone = index.evictions().evicted() - begun;
            println!("{which}: {tries} tries, {tidied} tidyings, {gone} went");
            // A segment has some 3,500 keys, and a block is larger than one.
            assert!(gone < 4 * (4 << 10) && (tidies || tries > 50), "{which}: {tries}, {gone}");
            assert_eq!(index.heap().values, 1);
            // Who asked has it. Soon segments take memory again.
            clock.advance(Duration::from_secs(2));
            (200_000..250_000).for_each(|n| assert!(put(&index, n).is_ok()));
        }
    }

    /// Clients may store anything where they note what they read: puts go through, the table stays within its
    /// bound, and all that is there is right.
    #[test]
    fn garbage_in_the_notes_harms_nobody() {
        for which in all() {
            for size in SMALL {
                let index = index("windowed:8", size, which);
                let mut random = Random::new(7);
                let mut most = 0;
                for n in 0..3_000u64 {
                    for _ in 0..40 {
                        // Every hash of a byte in turn: all look read.
                        index.touches().unwrap().note(crate::layout::hash::First(
                            (random.pick(1 << 32) as u64) << 32 | random.pick(1 << 32) as u64,
                        ));
                    }
                    (0..n.min(300)).for_each(|n| {
                        index.touches().unwrap().note(index.geometry().hashed(&n.to_le_bytes()).first());
                    });
                    assert_eq!(put(&index, n), Ok(PutOutcome::Inserted), "{which} {size:?}: {n}");
                    most = most.max(index.len());
                }
                let counts = index.evictions();
                assert_eq!(counts.evicted() + index.len(), 3_000, "{which} {size:?}: {counts:?}");
                let slots = index.counts().slots;
                assert!(most <= slots && index.len() > slots / 2, "{which} {size:?}: {most} of {slots}");
            }
        }
    }
}
