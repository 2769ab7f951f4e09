//! An owner goes and comes again while others change its key, and read it. Threads take turns, in any order that the
//! locks allow.

use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::{Index, LeftCause};
use crate::layout::hash::Seeds;
use crate::layout::life::TICK_NS;
use crate::outcome::{PutMode, PutOptions};
use crate::sim::{Recorder, turns};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const GRACE: Duration = Duration::from_micros(200);
const HOUR: Duration = Duration::from_secs(3600);
const OWNER: u16 = 7;
const KEY: &[u8] = b"key";
/// Orders that are tried.
const SEEDS: u64 = 300;
/// Tidyings of one thread in a story.
const TIDIES_MAX: u32 = 8;

fn index(seed: u64, size: TableSize) -> Index {
    let config = Config {
        size,
        key_max: 8,
        value_max: 16,
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        life: true,
        owners: true,
        ..Config::default()
    };
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    Index::create(recorder.region(geometry.region_bytes()), geometry, clock).unwrap()
}

fn any_index(seed: u64) -> Index {
    let growing = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
    index(seed, if seed.is_multiple_of(2) { TableSize::Slots(64) } else { growing })
}

/// Takes the table on until the owner may come again, and begins its session.
fn session(index: &Index) -> crate::index::OwnerSession {
    loop {
        if let Ok(session) = index.owner(OWNER, HOUR) {
            return session;
        }
        index.tidy();
        index.table().clock().advance(GRACE);
    }
}

fn got(index: &Index) -> Option<u64> {
    let mut value = Vec::new();
    let is_there = index.reader().get_into(KEY, &mut value).unwrap();
    is_there.then(|| u64::from_le_bytes(value.try_into().unwrap()))
}

type OwnerWork<'w> = Box<dyn FnOnce() -> Option<String> + Send + 'w>;

fn wrong(seed: u64, works: Vec<OwnerWork<'_>>) -> Option<String> {
    turns::run(seed, works).into_iter().flatten().next()
}

/// What an owner had is found by a GET that begins after it was removed.
fn comes_back(seed: u64) -> Option<String> {
    const TIMES: u64 = 4;
    let index = any_index(seed);
    let (removed, is_over) = (AtomicU64::new(0), AtomicU64::new(0));
    let goes = || {
        for nth in 1..=TIMES {
            let session = session(&index);
            index.put_of(&session, KEY, &nth.to_le_bytes(), PutOptions::new()).unwrap();
            assert!(index.remove_owner(OWNER).unwrap());
            removed.store(nth, Relaxed);
        }
        is_over.store(1, Relaxed);
        None
    };
    let reads = || {
        while is_over.load(Relaxed) == 0 {
            let before = removed.load(Relaxed);
            if let Some(nth) = got(&index).filter(|&nth| nth <= before) {
                return Some(format!("entry {nth} is found after {before} was removed"));
            }
        }
        None
    };
    wrong(seed, vec![Box::new(goes), Box::new(reads)])
}

/// A key that always has an entry, whosever, is absent.
fn is_missed(seed: u64) -> Option<String> {
    const TIMES: u64 = 4;
    let index = any_index(seed);
    index.put(KEY, &0u64.to_le_bytes(), PutMode::Insert).unwrap();
    let is_over = AtomicU64::new(0);
    let goes = || {
        for nth in 1..=TIMES {
            let session = session(&index);
            index.put_of(&session, KEY, &nth.to_le_bytes(), PutOptions::new()).unwrap();
            index.put(KEY, &nth.to_le_bytes(), PutMode::Upsert).unwrap();
            assert!(index.remove_owner(OWNER).unwrap());
        }
        is_over.store(1, Relaxed);
        None
    };
    let reads = || {
        while is_over.load(Relaxed) == 0 {
            if got(&index).is_none() {
                return Some("it is absent".into());
            }
        }
        None
    };
    wrong(seed, vec![Box::new(goes), Box::new(reads)])
}

/// What another puts in the place of a hidden entry goes with it.
fn takes_another(seed: u64) -> Option<String> {
    let index = any_index(seed);
    let removed = AtomicU64::new(0);
    let goes = || {
        let session = session(&index);
        index.put_of(&session, KEY, &1u64.to_le_bytes(), PutOptions::new()).unwrap();
        index.remove_owner(OWNER).unwrap();
        removed.store(1, Relaxed);
        drop(self::session(&index));
        None
    };
    let puts = || {
        while removed.load(Relaxed) == 0 {
            got(&index);
        }
        index.put(KEY, &2u64.to_le_bytes(), PutMode::Upsert).unwrap();
        None
    };
    let wrong = wrong(seed, vec![Box::new(goes), Box::new(puts)]);
    wrong.or_else(|| (got(&index) != Some(2)).then(|| "what came in its place is gone".into()))
}

/// Who hears that an owner has gone still finds what it had.
fn is_told_early(seed: u64) -> Option<String> {
    let index = any_index(seed);
    let from = index.feed().start(1 << 16).unwrap();
    let session = session(&index);
    index.put_of(&session, KEY, &1u64.to_le_bytes(), PutOptions::new()).unwrap();
    let goes = || {
        assert!(index.remove_owner(OWNER).unwrap());
        None
    };
    let hears = || {
        loop {
            let mut has_gone = false;
            index.feed().read(from..u64::MAX, &mut |_, change| {
                let is_it = change.key.is_empty() && change.owner == OWNER;
                has_gone |= is_it && change.cause == LeftCause::OwnerGone;
                true
            });
            let found = got(&index);
            if has_gone {
                return found.map(|_| "it was heard, and is found".into());
            }
        }
    };
    wrong(seed, vec![Box::new(goes), Box::new(hears)])
}

/// Two threads of a server remove and tidy at once, a third one puts as the owner: what was acknowledged before the
/// removal is gone, what comes later is refused, and in the end nothing is left.
fn is_left_over(seed: u64) -> Option<String> {
    let index = any_index(seed);
    let session = session(&index);
    let is_removed = AtomicU64::new(0);
    let puts = || {
        for nth in 1..=20u64 {
            let before = is_removed.load(Relaxed);
            let put = index.put_of(&session, &nth.to_le_bytes(), b"value", PutOptions::new());
            if before > 0 && put.is_ok() {
                return Some(format!("put {nth} came after the removal"));
            }
        }
        None
    };
    let goes = || {
        (0..seed % 100).for_each(|_| assert!(got(&index).is_none()));
        index.remove_owner(OWNER).unwrap();
        is_removed.store(1, Relaxed);
        drop(self::session(&index));
        (!index.is_empty()).then(|| "the number is given again, and entries are left".into())
    };
    let tidies = || {
        for _ in 0..20 {
            index.tidy();
            index.table().clock().advance(GRACE / 2);
        }
        None
    };
    wrong(seed, vec![Box::new(puts), Box::new(goes), Box::new(tidies)])
}

/// Two remove an owner who is putting: each of them finds nothing of his when it returns, whoever was first.
fn is_acknowledged_early(seed: u64) -> Option<String> {
    let index = any_index(seed);
    let session = session(&index);
    index.put_of(&session, KEY, &1u64.to_le_bytes(), PutOptions::new()).unwrap();
    let puts = || {
        let put = || index.put_of(&session, b"other", b"value", PutOptions::new());
        while put().is_ok() {}
        None
    };
    let removes = || {
        let is_first = index.remove_owner(OWNER).unwrap();
        got(&index).map(|_| format!("it is found when it was removed, by the first: {is_first}"))
    };
    wrong(seed, vec![Box::new(puts), Box::new(removes), Box::new(removes)])
}

/// An owner who was away for too long comes back while others tidy: who was taken as the owner may put, and what he puts stays.
fn is_back_in_vain(seed: u64) -> Option<String> {
    let index = any_index(seed);
    drop(index.owner(OWNER, Duration::ZERO).unwrap());
    let tidies = || {
        for _ in 0..TIDIES_MAX {
            index.tidy();
            index.table().clock().advance(GRACE);
        }
        None
    };
    let comes = || {
        let session = index.owner(OWNER, HOUR).ok()?;
        let put = index.put_of(&session, KEY, &1u64.to_le_bytes(), PutOptions::new());
        (0..20).find_map(|_| match (&put, got(&index)) {
            (Ok(_), Some(_)) => None,
            (Ok(_), None) => Some("what he has put is gone".into()),
            (Err(error), _) => Some(format!("he was taken, and then: {error}")),
        })
    };
    wrong(seed, vec![Box::new(tidies), Box::new(comes)])
}

/// Two tidy: who is told that nothing is left finds neither an entry of an owner who was away for too long, nor one that has
/// ended.
fn is_tidied_early(seed: u64) -> Option<String> {
    let index = any_index(seed / 2);
    if seed.is_multiple_of(2) {
        let session = index.owner(OWNER, Duration::ZERO).unwrap();
        index.put_of(&session, KEY, &1u64.to_le_bytes(), PutOptions::new()).unwrap();
    } else {
        let (value, ttl) = (1u64.to_le_bytes(), Duration::from_nanos(TICK_NS));
        index.put_with(KEY, &value, PutOptions::new().ttl(ttl)).unwrap();
    }
    index.table().clock().advance(Duration::from_nanos(3 * TICK_NS));
    // Two that are always at it at the same time meet each other for ever: nobody sleeps here between two looks.
    let tidies = || {
        let is_told = (0..TIDIES_MAX).any(|_| {
            let next = index.tidy();
            index.table().clock().advance(GRACE);
            next.is_none()
        });
        is_told.then(|| got(&index)).flatten().map(|_| "it is found when nothing was left to do".to_owned())
    };
    wrong(seed, vec![Box::new(tidies), Box::new(tidies)])
}

type OwnerCase = fn(u64) -> Option<String>;

#[test]
fn owners_go_at_once_whatever_others_do() {
    let cases: [(&str, OwnerCase); 8] = [
        ("comes back", comes_back),
        ("is missed", is_missed),
        ("takes another", takes_another),
        ("is told early", is_told_early),
        ("is left over", is_left_over),
        ("is acknowledged early", is_acknowledged_early),
        ("is tidied early", is_tidied_early),
        ("is back in vain", is_back_in_vain),
    ];
    for (name, case) in cases {
        for seed in 0..SEEDS {
            assert_eq!(case(seed), None, "{name}, seed {seed}");
        }
    }
}

/// Each rule that is broken is noticed in some order.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_are_noticed() {
    use crate::faults::{Broken, Rule};
    let cases: [(Rule, OwnerCase); 10] = [
        (Rule::OwnerMask, comes_back),
        (Rule::OwnerProof, comes_back),
        (Rule::OwnerCount, comes_back),
        (Rule::OwnerAgain, is_missed),
        (Rule::OwnerCheck, takes_another),
        (Rule::OwnerFirst, is_told_early),
        (Rule::OwnerPuts, is_left_over),
        (Rule::OwnerTwice, is_acknowledged_early),
        (Rule::OwnerBack, is_back_in_vain),
        // An entry that has ended stays noted while a thread has it (V3): so only of an owner's.
        (Rule::TidyAlone, |seed| is_tidied_early(2 * seed)),
    ];
    for (rule, case) in cases {
        let _broken = Broken::rule(rule);
        let found = (0..20 * SEEDS).find_map(|seed| Some((seed, case(seed)?)));
        let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
        println!("{rule:?} broken: seed {seed}: {wrong}");
    }
}
