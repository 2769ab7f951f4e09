//! Which entry goes, where two could: one that nobody has read, not the one for which room is made, and of what no policy knows
//! no record is lost.

use super::*;
use crate::clock::Clock;
use crate::config::{Config, TableSize};
use crate::layout::hash::Seeds;
use crate::outcome::{PutMode, PutOutcome};
use crate::region::Region;

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
