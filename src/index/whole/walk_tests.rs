//! What a walk shows of values that are not in their slots, and change between its look and its READ of them.

use super::Walk;
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::Index;
use crate::layout::hash::Seeds;
use crate::layout::life::Life;
use crate::outcome::{PutMode, PutOptions};
use crate::region::Region;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const OWNER: u16 = 7;
const KEYS: [&[u8]; 3] = [b"one", b"two", b"three"];
const SIZES: [TableSize; 2] =
    [TableSize::Slots(64), TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) }];

/// All of its keys are of one step.
fn index() -> (Index, Clock) {
    index_of(SIZES[0])
}

fn index_of(size: TableSize) -> (Index, Clock) {
    let config = Config {
        size,
        key_max: 8,
        value_max: 300,
        inline_max: Some(30),
        heap_bytes: matches!(size, TableSize::Slots(_)).then_some(1 << 18),
        grace: Duration::from_micros(200),
        seeds: Some(Seeds::from_number(5)),
        life: true,
        owners: true,
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

/// What was shown of each key: the first byte of its value, its length, and its life.
type EntriesShown = Vec<(Vec<u8>, u8, usize, Life)>;

/// Walks over the table. With the first key that is shown, `meanwhile` runs, with the two others.
fn walk(index: &Index, meanwhile: impl Fn(&[&[u8]])) -> EntriesShown {
    let (mut walk, mut shown) = (Walk::default(), EntriesShown::new());
    let mut see = |key: &[u8], value: &[u8], life: Option<Life>| {
        assert!(value.iter().all(|byte| *byte == value[0]), "of one value");
        if shown.is_empty() {
            let others: Vec<_> = KEYS.into_iter().filter(|other| *other != key).collect();
            meanwhile(&others);
        }
        shown.push((key.to_vec(), value[0], value.len(), life.unwrap()));
    };
    while index.table().walk(&mut walk, &mut see) {}
    assert_eq!(walk.damaged, 0);
    shown
}

/// Each value is shown with the life that was its own: the old one's where it could still be read, the new one's where only
/// that is there any more, whether it stands in its slot or not. What has gone by then is not shown.
#[test]
fn a_value_is_shown_with_its_own_life() {
    for (is_late, len) in [(false, 250), (true, 250), (true, 20)] {
        let (index, clock) = index();
        for key in KEYS {
            index.put_with(key, &[1; 200], PutOptions::new().ttl(100 * SECOND)).unwrap();
        }
        let owner = index.owner(OWNER, SECOND).unwrap();
        let shown = walk(&index, |others| {
            index.put_of(&owner, others[0], &vec![2; len], PutOptions::new()).unwrap();
            index.remove(others[1]).unwrap();
            if is_late {
                // Longer than what is gone stays for readers.
                clock.advance(SECOND);
            }
        });
        let case = format!("{is_late} {len}: {shown:?}");
        assert_eq!(shown.len(), if is_late { 2 } else { 3 }, "{case}");
        let is_old = |life: &Life| life.owner == 0 && life.expiry != 0;
        let is_new = |life: &Life| life.owner == OWNER && life.expiry == 0;
        for (nth, (_, value, shown_len, life)) in shown.iter().enumerate() {
            let is_right = match is_late && nth == 1 {
                true => (*value, *shown_len) == (2, len) && is_new(life),
                false => (*value, *shown_len) == (1, 200) && is_old(life),
            };
            assert!(is_right, "{case}");
        }
        // By now each is what it is.
        let shown = walk(&index, |_| {});
        assert_eq!(shown.len(), 2, "{case}");
        for (_, value, shown_len, life) in shown {
            let is_right = match value {
                1 => shown_len == 200 && is_old(&life),
                _ => shown_len == len && is_new(&life),
            };
            assert!(is_right, "{case}");
        }
    }
}

/// A walk ends with the keys that are there, also where all of them go under it.
#[test]
fn what_goes_under_a_walk_is_left_out() {
    let (index, clock) = index();
    for key in KEYS {
        index.put(key, &[1; 200], PutMode::Insert).unwrap();
    }
    let shown = walk(&index, |others| {
        others.iter().for_each(|key| assert!(index.remove(key).unwrap()));
        clock.advance(SECOND);
    });
    assert_eq!(shown.len(), 1);
    assert_eq!(index.len(), 1);
}

/// A slot that others have written into is counted once, and nothing of it is shown; so it is in a table that grows. Others are
/// shown.
#[test]
fn damaged_slots_are_counted() {
    const MARK: u64 = u64::from_le_bytes([0xab; 8]);
    for size in SIZES {
        for damaged in 0..=2 {
            let (index, _) = index_of(size);
            for key in KEYS {
                index.put(key, &[0xab; 30], PutMode::Insert).unwrap();
            }
            let region = index.region();
            // The first word of each value that has no other bytes in it.
            let is_marked = |word: &usize| region.load(*word) == MARK && region.load(word - 1) != MARK;
            let marked: Vec<usize> = (1..region.bytes() as usize / 8).filter(is_marked).collect();
            assert_eq!(marked.len(), KEYS.len(), "{size:?}");
            marked.iter().take(damaged).for_each(|&word| region.store(word, MARK ^ 1 << 17));
            let (mut walk, mut shown) = (Walk::default(), 0);
            while index.table().walk(&mut walk, &mut |_, _, _| shown += 1) {}
            assert_eq!((shown, walk.damaged), (KEYS.len() - damaged, damaged as u64), "{size:?}");
        }
    }
}
