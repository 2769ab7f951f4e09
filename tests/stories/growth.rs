//! A table that grows and shrinks while it is read.

use crate::common::{Over, over_shm_and_tcp};
use oneread::{
    Backing, Config, PutMode, PutOutcome, TableSize,
    embedded::{Clock, Index, Region},
    layout::{Layout, Seeds},
    presets,
};
use std::time::Duration;

over_shm_and_tcp! {
    a_client_foresees_keys,
}

fn growing(layout: Layout, segment_slots: u64, bytes_max: u64, seed: u64) -> Index {
    growing_by(layout, segment_slots, bytes_max, seed, Clock::System)
}

fn growing_by(layout: Layout, segment_slots: u64, bytes_max: u64, seed: u64, clock: Clock) -> Index {
    let size = TableSize::Growing { bytes_max, segment_slots: Some(segment_slots) };
    let config =
        Config::new().layout(layout).size(size).key_max(8).value_max(8).seeds(Seeds::from_number(seed));
    let geometry = config.grace(Duration::from_micros(100)).geometry().unwrap();
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    Index::create(region, geometry, clock).unwrap()
}

/// A table that is told how many keys will come is as large by then, and copies hardly any from segment to segment.
/// One that is told too much takes what it may, and serves.
#[test]
fn every_layout_grows_before_its_keys_come() {
    const KEYS: u64 = 20_000;
    for preset in presets() {
        let filled = |foreseen: u64, there: u64| {
            let index = growing(preset.layout, 256, 16 << 20, 1);
            let put = |n| {
                let outcome = index.put(&key(n), &key(!n), PutMode::Insert);
                assert_eq!(outcome, Ok(PutOutcome::Inserted), "{}: {n}", preset.name);
            };
            (0..there).for_each(put);
            index.grow_for(foreseen);
            let (before, growth) = (index.growth().moved, index.growth());
            assert!((growth.splitting, growth.merging) == (0, 0) || there > 0, "{growth:?}");
            (there..KEYS).for_each(put);
            let mut reader = index.reader();
            let mut value = Vec::new();
            for n in 0..KEYS {
                assert!(reader.get_into(&key(n), &mut value).unwrap() && value == key(!n), "{}", preset.name);
            }
            (growth.segments, index.growth().moved - before, index.growth())
        };
        let (_, moved, surprised) = filled(0, 0);
        assert!(moved > KEYS / 2, "{}: {moved}", preset.name);
        for there in [0, KEYS / 5] {
            let (segments, moved, growth) = filled(KEYS, there);
            // Those that are there may be on their way.
            assert!(moved < KEYS / 20 + there, "{}: {moved}, {there} there", preset.name);
            assert!(segments * 10 > surprised.segments * 6, "{}: {segments}, {surprised:?}", preset.name);
            assert!(growth.segments * 10 < surprised.segments * 13, "{}: {growth:?}", preset.name);
        }
        let (segments, ..) = filled(u64::MAX, 0);
        assert!(segments > 2 * surprised.segments, "{}: {segments}", preset.name);
    }
}

/// A client says how many keys will come, and a thread of the server sees to it.
fn a_client_foresees_keys(over: Over) {
    use oneread::internals::server::ServerConfig;
    use oneread::{Client, Server};
    let place = over.place();
    let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(1 << 10) };
    let table = Config::new().size(size).key_max(8).value_max(8);
    let _server = Server::start(ServerConfig::new(place.address.clone(), table)).unwrap();
    let mut client = Client::connect(&place.address).unwrap();
    assert_eq!(client.growth().unwrap().segments, 1);
    client.grow_for(20_000).unwrap();
    let begun = std::time::Instant::now();
    while client.growth().unwrap().segments < 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", client.growth());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn sorted(numbers: std::ops::Range<u64>) -> Vec<[u8; 8]> {
    let mut keys: Vec<_> = numbers.map(key).collect();
    keys.sort();
    keys
}

/// Every layout grows from one segment to many and shrinks again, and a reader finds each key and
/// nothing else.
#[test]
fn every_layout_grows_and_shrinks() {
    let mut homings = 0;
    for preset in presets() {
        let index = growing(preset.layout, 256, 64 << 20, 1);
        let mut reader = index.reader();
        let mut value = Vec::new();
        let keys = 20_000;
        for n in 0..keys {
            assert_eq!(
                index.put(&key(n), &key(!n), PutMode::Upsert),
                Ok(PutOutcome::Inserted),
                "{}: {n}",
                preset.name
            );
            for other in [n, n / 2, n + 1] {
                let found = reader.get_into(&key(other), &mut value).unwrap();
                assert_eq!(found, other <= n, "{}: {other} of {n}", preset.name);
                assert!(!found || value == key(!other));
            }
        }
        let inspector = oneread::internals::inspect::Inspector::new(index.region(), index.geometry());
        let seen: std::collections::BTreeSet<_> =
            inspector.slots().map(|report| report.key).filter(|key| !key.is_empty()).collect();
        assert!(
            seen.iter().map(|key| &key[..]).eq(sorted(0..keys).iter().map(|key| &key[..])),
            "{}",
            preset.name
        );
        let found = inspector.occupancy(|_| {});
        assert!(found.torn == 0 && found.live_main + found.live_overflow >= keys, "{found:?}");
        let (counts, growth) = (index.counts(), index.growth());
        assert_eq!((index.len(), counts.inserts), (keys, keys));
        assert!(
            growth.segments > 40 && growth.splits >= growth.segments - 1 - growth.splitting,
            "{growth:?}"
        );
        let mut before = counts;
        for n in 0..keys {
            // What segments did that are gone still counts.
            if n % 16 == 0 {
                let now = index.counts();
                assert!(now.homings >= before.homings && now.moves >= before.moves, "{}: {n}", preset.name);
                before = now;
            }
            assert_eq!(index.remove(&key(n)), Ok(true), "{}: {n}", preset.name);
            index.tidy();
            for other in [n, keys - 1, n + 1] {
                let found = reader.get_into(&key(other), &mut value).unwrap();
                assert_eq!(found, other > n && other < keys, "{}: {other} of {n} removed", preset.name);
            }
        }
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while index.growth().merging > 0 && std::time::Instant::now() < end {
            index.tidy();
        }
        let growth = index.growth();
        assert_eq!(index.len(), 0);
        assert!(growth.merges > 20, "{}: {growth:?}", preset.name);
        let now = index.counts();
        assert_eq!((now.inserts, now.removes, now.updates), (keys, keys, 0), "{}: {now:?}", preset.name);
        homings += now.homings;
    }
    assert!(homings > 0, "displaced keys came home");
}

/// A server that ends in the middle of splits and merges loses nothing, and the next one goes on with
/// them.
#[test]
fn the_next_server_goes_on() {
    for preset in presets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let size = TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(256) };
        let config = Config::new().layout(preset.layout).size(size).key_max(8).value_max(8);
        let geometry = config.seeds(Seeds::from_number(3)).grace(Duration::ZERO).geometry().unwrap();
        let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
        let mut index = Index::create(region, geometry, Clock::System).unwrap();
        let keys = 6_000;
        let (mut there, mut value) = (vec![false; keys as usize], Vec::new());
        let mut cut_off = [0, 0];
        for step in 0..4 * keys {
            // Up, and down again.
            let n = step * 7_919 % keys;
            let put = step < 2 * keys;
            if put {
                index.put(&key(n), &key(!n), PutMode::Upsert).unwrap();
            } else {
                index.remove(&key(n)).unwrap();
            }
            there[n as usize] = put;
            let growth = index.growth();
            let is_under_way = growth.splitting + growth.merging > 0;
            if is_under_way || step % 397 == 0 {
                cut_off[0] += growth.splitting;
                cut_off[1] += growth.merging;
                drop(index);
                let (next, found) = Index::open(Region::open(&path).unwrap(), Clock::System).unwrap();
                let expected = there.iter().filter(|&&there| there).count() as u64;
                assert_eq!(
                    (found.keys, next.len()),
                    (expected, expected),
                    "{}: {step} {growth:?}",
                    preset.name
                );
                let mut reader = next.reader();
                for n in (0..keys).step_by(13) {
                    let found = reader.get_into(&key(n), &mut value).unwrap();
                    assert_eq!(found, there[n as usize], "{}: {n} at {step}", preset.name);
                }
                drop(reader);
                index = next;
            }
        }
        println!("{}: cut off in splits and merges: {cut_off:?}", preset.name);
        assert!(cut_off[0] > 8 && cut_off[1] > 2, "{}: {cut_off:?}", preset.name);
    }
}

/// Where a segment was merged, the headers of homes say for 2T what was so before, and so long it is not split
/// again (E5).
#[test]
fn a_merged_segment_rests_before_the_next_split() {
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(256) };
    let config = Config::new().layout("cluster".parse().unwrap()).size(size).key_max(8).value_max(8);
    let geometry = config.seeds(Seeds::from_number(1)).grace(Duration::from_micros(100)).geometry().unwrap();
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    let clock = Clock::manual();
    let index = Index::create(region, geometry, clock.clone()).unwrap();
    let put = |n| assert_eq!(index.put(&key(n), b"", PutMode::Insert), Ok(PutOutcome::Inserted));
    let rest = || {
        clock.advance(Duration::from_secs(1));
        index.tidy();
    };
    let split = (0..).take_while(|_| index.growth().splits == 0).map(put).map(|()| rest()).count() as u64;
    rest();
    let gone =
        (0..split).take_while(|&n| index.growth().merges == 0 && index.remove(&key(n)).unwrap()).count();
    let growth = index.growth();
    assert_eq!((growth.segments, growth.splits, growth.merges), (1, 1, 1), "{growth:?} after {gone}");
    (1_000..1_000 + split).for_each(put);
    let growth = index.growth();
    assert_eq!((growth.splitting, growth.splits), (0, 1), "{growth:?}");
    rest();
    (2_000..2_032).for_each(put);
    assert_eq!(index.growth().splitting + index.growth().splits, 2, "{:?}", index.growth());
}

/// Waits of puts for ghosts and filter bits to go are counted, as in a table of one size.
#[test]
fn waits_are_counted() {
    for layout in ["pilaf", "farm"] {
        let size = TableSize::Growing { bytes_max: 1 << 17, segment_slots: Some(256) };
        let config = Config::new().layout(layout.parse().unwrap()).size(size).key_max(8).value_max(8);
        let config = config.seeds(Seeds::from_number(1)).grace(Duration::from_micros(100));
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let (begun, mut waits) = (clock.now_ns(), 0);
        // The clock goes on only when a put waits.
        for n in 0.. {
            let answer = index.put(&key(n), b"", PutMode::Insert);
            let (counts, waited) = (index.counts(), clock.now_ns() - begun);
            assert_eq!(counts.waits > 0, waited > 0, "{layout}: {n} {counts:?}");
            assert!(counts.waits >= waits, "{layout}: {counts:?}");
            waits = counts.waits;
            if answer.is_err() {
                break;
            }
        }
        assert!(waits > 0, "{layout}");
    }
}

/// New keys leave room in the child of a split for the homes that have not come. The clock goes on only while
/// a put waits, so that ghosts hold up every split; with each of these seeds some child was full
/// before its last homes came, and its keys found no room ever after.
#[test]
fn new_keys_do_not_fill_the_child_of_a_split() {
    let windowed = presets().find(|preset| preset.name == "windowed:8").unwrap();
    for (segment_slots, seeds) in [(64, &[117, 150, 171, 195, 197][..]), (256, &[44])] {
        for &seed in seeds {
            let index = growing_by(windowed.layout, segment_slots, 1 << 20, seed, Clock::manual());
            for n in 0..2_000 {
                let put = index.put(&key(n), b"", PutMode::Insert);
                assert_eq!(put, Ok(PutOutcome::Inserted), "seed {seed}: {n}");
            }
        }
    }
}
