//! Which entry goes, where two could: one that nobody has read, not the one for which room is made, and of what no policy knows
//! no record is lost.

use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, StartLimits, TableSize};
use crate::layout::hash::Seeds;
use crate::outcome::{PutMode, PutOptions, PutOutcome};
use crate::region::Region;
use std::time::Duration;

fn policies() -> [Evict; 3] {
    Evict::ALL.map(|(policy, _)| policy)
}

fn index(size: TableSize, heap_bytes: Option<u64>, policy: Evict) -> Index {
    let config = Config {
        size,
        key_max: 8,
        value_max: 3_000,
        inline_max: Some(30),
        heap_bytes,
        grace: Duration::ZERO,
        seeds: Some(Seeds::from_number(5)),
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    Index::create(region, geometry, Clock::System).unwrap().with_eviction(policy).unwrap()
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).to_le_bytes()
}

fn is_there(index: &Index, key: &[u8]) -> bool {
    index.reader().get_into(key, &mut Vec::new()).unwrap()
}

/// Of those that stand where a key may, one goes: none that is pinned, none that was read where another was not.
#[test]
fn who_was_read_stays_beside_who_was_not() {
    for policy in policies() {
        let index = index(TableSize::Slots(512), Some(1 << 16), policy);
        (0..380).for_each(|n| assert!(index.put(&key(n), b"", PutMode::Insert).is_ok()));
        let (mut tried, wanted) = (0, 1_000..1_200);
        for n in wanted {
            let beside = index.table().keys_beside(&key(n));
            if beside.len() < 3 {
                continue;
            }
            // One is pinned, all but one of the others were read; which one, by turns.
            let unread = &beside[1 + n as usize % (beside.len() - 1)];
            let pin = index.pin(&beside[0]).unwrap().unwrap();
            beside.iter().filter(|key| *key != unread).for_each(|key| index.note_read(key));
            let evictor = index.evictor().unwrap();
            let hash = |key: &[u8]| index.geometry().hashed(key).first();
            // Keys may share the place of what is noted.
            if beside.iter().all(|key| evictor.rank(hash(key)).0 == (key != unread)) {
                assert!(index.evict_beside(evictor, &key(n)), "{policy}");
                assert!(!is_there(&index, unread), "{policy} {n}");
                let left = beside.iter().filter(|key| is_there(&index, key)).count();
                assert_eq!(left, beside.len() - 1, "{policy} {n}: one");
                tried += 1;
            }
            drop(pin);
            // Nothing is noted of them for the next one.
            for key in &beside {
                evictor.look(hash(key));
            }
        }
        assert!(tried > 20, "{policy}: {tried}");
        assert_eq!(index.evictions().at_put, tried, "{policy}");
        assert_eq!(index.evictions().records, index.len(), "{policy}");
    }
}

/// All others were read a moment ago: the key that has just come is there all the same.
#[test]
fn who_came_stays() {
    for policy in policies() {
        let index = index(TableSize::Slots(64), Some(1 << 16), policy);
        for n in 0..1_000 {
            (0..n).rev().take(64).for_each(|n| index.note_read(&key(n)));
            // What is noted of this one is of before.
            index.evictor().unwrap().look(index.geometry().hashed(&key(n)).first());
            assert_eq!(index.put(&key(n), b"", PutMode::Insert), Ok(PutOutcome::Inserted), "{policy} {n}");
            assert!(is_there(&index, &key(n)), "{policy} {n}");
            assert_eq!(index.evictions().records, index.len(), "{policy} {n}");
        }
        assert!(index.evictions().evicted() > 900, "{policy}");
    }
}

/// The heap is full, and most entries have nothing in it: these stay, and the policy goes on knowing them.
#[test]
fn what_frees_no_memory_stays_known() {
    for policy in policies() {
        let index = index(TableSize::Slots(4_096), Some(1 << 17), policy);
        for n in 0..1_500 {
            index.put(&key(n), b"short", PutMode::Insert).unwrap();
        }
        for n in 10_000..10_400 {
            index.put(&key(n), &[7; 2_000], PutMode::Insert).unwrap();
            index.tidy();
        }
        let counts = index.evictions();
        assert!(counts.for_heap > 300 && counts.evicted() == counts.for_heap, "{policy}: {counts:?}");
        assert!((0..1_500).all(|n| is_there(&index, &key(n))), "{policy}: they free no memory");
        assert_eq!(counts.records, index.len(), "{policy}");
    }
}

/// Why a long value finds no memory: all that is there is pinned, or there is nothing that could go. When one pin of two is
/// dropped, its key stays pinned by the other.
#[test]
fn a_long_value_is_told_why_it_finds_no_room() {
    for policy in policies() {
        let index = index(TableSize::Slots(1_024), Some(1 << 16), policy);
        let mut pins = Vec::new();
        let mut n = 0;
        let refused = loop {
            match index.put(&key(n), &[7; 2_000], PutMode::Insert) {
                Ok(_) => pins.push([(); 2].map(|()| index.pin(&key(n)).unwrap().unwrap())),
                Err(error) => break error,
            }
            n += 1;
            assert!(n < 1_000);
        };
        assert_eq!(refused, PutError::Pinned, "{policy}");
        assert!(index.evictions().refused > 0, "{policy}");
        // One of two, of each.
        let mut pins: Vec<KeyPin> = pins.into_iter().map(|[one, _]| one).collect();
        assert_eq!(index.evictions().pinned, n, "{policy}");
        assert_eq!(index.put(&key(n), &[7; 2_000], PutMode::Insert), Err(PutError::Pinned), "{policy}");
        assert!((0..n).all(|n| is_there(&index, &key(n))), "{policy}");
        pins.remove(3);
        assert_eq!(index.put(&key(n), &[7; 2_000], PutMode::Insert), Ok(PutOutcome::Inserted), "{policy}");
        assert!(!is_there(&index, &key(3)), "{policy}");
        drop(pins);
        assert_eq!(index.evictions().pinned, 0, "{policy}");
    }
}

/// Entries have owners, and puts in two steps may hold all that there is. The clock stands still.
fn owned(size: TableSize, heap_bytes: u64, policy: Evict) -> Index {
    let config = Config {
        size,
        key_max: 8,
        value_max: 3_000,
        inline_max: Some(30),
        heap_bytes: Some(heap_bytes),
        grace: Duration::from_millis(2),
        seeds: Some(Seeds::from_number(5)),
        life: true,
        owners: true,
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    let index = Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap();
    index.with_eviction(policy).unwrap().with_starts(StartLimits::new().percent(100))
}

const SECOND: Duration = Duration::from_secs(1);

/// What is started stands in all slots of a table: a put is told that nothing may leave. When one is given up, it finds room.
#[test]
fn what_is_started_makes_no_room() {
    for policy in policies() {
        let index = owned(TableSize::Slots(64), 1 << 16, policy);
        let session = index.start_session().unwrap();
        let mut tickets = Vec::new();
        for n in 0..1_000 {
            if let Ok(ticket) = index.put_start(&session, &key(n), 0, SECOND) {
                tickets.push((n, ticket));
            }
        }
        assert!(tickets.len() > 50, "{policy}: {}", tickets.len());
        let before = index.evictions().refused;
        let puts: Vec<_> = (2_000..2_100).map(|n| index.put(&key(n), b"", PutMode::Insert)).collect();
        let refused: Vec<_> = puts.into_iter().filter_map(Result::err).collect();
        assert!(
            refused.len() > 50 && refused.iter().all(|why| *why == PutError::Pinned),
            "{policy}: {refused:?}"
        );
        assert_eq!(index.evictions().refused - before, refused.len() as u64, "{policy}");
        for (n, ticket) in &tickets[..32] {
            assert_eq!(index.put_abort(&session, &key(*n), *ticket), Ok(true), "{policy}");
        }
        assert!((2_000..2_010).all(|n| index.put(&key(n), b"", PutMode::Insert).is_ok()), "{policy}");
        for (n, ticket) in &tickets[32..] {
            assert_eq!(
                index.put_commit(&session, &key(*n), *ticket, None),
                Ok(PutOutcome::Inserted),
                "{policy}"
            );
        }
    }
}

/// What is started holds all memory for long values, and none of it names a key that could leave: a put is told that there is
/// no memory, and not that something is pinned. With a key that may leave, it finds room.
#[test]
fn memory_of_starts_is_not_pinned() {
    for policy in policies() {
        let index = owned(TableSize::Slots(1_024), 1 << 16, policy);
        let session = index.start_session().unwrap();
        let mut tickets = Vec::new();
        while let Ok(ticket) = index.put_start(&session, &key(tickets.len() as u64), 2_000, SECOND) {
            tickets.push(ticket);
        }
        assert!(tickets.len() > 10, "{policy}: {}", tickets.len());
        // Whether it comes to be free, nobody can say.
        let refused = index.put_at_once(b"long", &[7; 2_000], PutMode::Insert.into(), None);
        let is_right = matches!(refused, Err(PutError::HeapFull { .. } | PutError::HeapBusy { .. }));
        assert!(is_right, "{policy}: {refused:?}");
        // One is committed, and its key leaves for the next value.
        for piece in [&[1; 1_000][..], &[1; 1_000]] {
            index.put_piece(&session, &key(0), tickets[0], piece).unwrap();
        }
        index.put_commit(&session, &key(0), tickets[0], None).unwrap();
        let mut put = index.put_at_once(b"long", &[7; 2_000], PutMode::Insert.into(), None);
        for _ in 0..1_000 {
            if put.is_ok() {
                break;
            }
            assert!(matches!(put, Err(PutError::HeapBusy { .. })), "{policy}: {put:?}");
            index.table().clock().advance(Duration::from_millis(1));
            index.tidy();
            put = index.put_at_once(b"long", &[7; 2_000], PutMode::Insert.into(), None);
        }
        assert_eq!(put, Ok(PutOutcome::Inserted), "{policy}");
        assert!(!is_there(&index, &key(0)) && is_there(&index, b"long"), "{policy}");
        assert_eq!(index.starts().started, tickets.len() as u64 - 1, "{policy}");
    }
}

/// An entry that readers do not find is not there to be pinned: of an owner who has gone, or of a put that is started.
#[test]
fn what_is_hidden_is_not_pinned() {
    let index = owned(TableSize::Slots(1_024), 1 << 16, Evict::S3Fifo);
    let (session, owner) = (index.start_session().unwrap(), index.owner(7, SECOND).unwrap());
    index.put_of(&owner, &key(0), b"", PutOptions::new()).unwrap();
    index.put(&key(1), b"", PutMode::Insert).unwrap();
    let ticket = index.put_start(&session, &key(2), 0, SECOND).unwrap();
    let is_pinned = |n: u64| index.pin(&key(n)).unwrap().is_some();
    assert_eq!([0, 1, 2, 3].map(is_pinned), [true, true, false, false]);
    index.remove_owner(7).unwrap();
    index.put_commit(&session, &key(2), ticket, None).unwrap();
    assert_eq!([0, 1, 2, 3].map(is_pinned), [false, true, true, false]);
    assert_eq!(index.evictions().pinned, 0);
}

/// What went for a long value may still be read for a while. Until then no try sends more after it; then the value finds room. So
/// it is for each of some values, one after the other.
#[test]
fn room_settles_before_more_goes() {
    const SHORT: usize = 2_000;
    const LONG: usize = 1 << 20;
    for policy in policies() {
        let config = Config {
            size: TableSize::Slots(10_000),
            key_max: 8,
            value_max: LONG,
            heap_bytes: Some(12 << 20),
            grace: Duration::from_millis(5),
            seeds: Some(Seeds::from_number(5)),
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, clock.clone()).unwrap().with_eviction(policy).unwrap();
        let put =
            |n: u64, len: usize| index.put_at_once(&key(n), &vec![7; len], PutMode::Insert.into(), None);
        let mut n = 0;
        while index.evictions().for_heap < 200 {
            match put(n, SHORT) {
                Ok(_) => n += 1,
                Err(PutError::HeapBusy { .. }) => {
                    clock.advance(Duration::from_millis(1));
                    index.tidy();
                }
                Err(error) => panic!("{policy}: {error}"),
            }
            assert!(n < 20_000, "{policy}: {:?}", index.evictions());
        }
        let (evictor, mut settled) = (index.evictor().unwrap(), 0);
        for nth in 0..6u64 {
            // What went for short ones before has settled.
            clock.advance(SECOND);
            index.tidy();
            let (before, mut times, mut steps) = (index.evictions().evicted(), 0, 0);
            let put_long = || put(1 << 40 | nth, LONG);
            loop {
                let had_gone = index.evictions().evicted();
                match put_long() {
                    Ok(_) => break,
                    Err(PutError::HeapBusy { .. }) => {}
                    Err(error) => panic!("{policy}: {error}"),
                }
                steps += 1;
                assert!(steps < 1_000, "{policy} {nth}: {:?}", index.heap());
                let Some(wait) = evictor.settles_in(clock.now_ns()) else {
                    // Not enough has gone yet; where nothing more goes, others' memory is in its way.
                    if index.evictions().evicted() == had_gone {
                        clock.advance(Duration::from_millis(1));
                        index.tidy();
                    }
                    continue;
                };
                // However often others ask, nothing more goes meanwhile.
                let gone = index.evictions().evicted();
                for _ in 0..100 {
                    assert!(matches!(put_long(), Err(PutError::HeapBusy { .. })), "{policy} {nth}");
                }
                assert_eq!(index.evictions().evicted(), gone, "{policy} {nth}");
                clock.advance(wait);
                index.tidy();
                times += 1;
                assert!(times <= 3, "{policy} {nth}: {:?}", index.heap());
            }
            let gone = index.evictions().evicted() - before;
            assert!(gone <= 3 * (LONG / SHORT) as u64, "{policy} {nth}: {gone} went");
            settled += times;
        }
        assert!(settled > 0, "{policy}: room was waited for {settled} times");
    }
}
