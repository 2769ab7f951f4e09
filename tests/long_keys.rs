//! Keys of 1 to 255 bytes in tables whose slots have room for shorter ones: all that clients do with keys, changes of
//! parts, scans and the feed, expiry, snapshots, and the next server of the region.

mod common;

use common::*;
use oneread::internals::region::Backing;
use oneread::{
    Client, Config, FeedFrom, FeedItem, FeedOptions, PutMode, PutOptions, PutOutcome, RequestPath, Server,
    ServerConfig, StartMode, SwapOutcome, TableSize, error::PutError, layout::Geometry,
};
use std::collections::BTreeMap;
use std::time::Duration;

const PATHS: [RequestPath; 3] = [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox];

/// Slots of one line: a key of more than 24 bytes is in an extent. Entries with a life have two lines.
fn sizes() -> [Config; 2] {
    let growing = TableSize::Growing { bytes_max: 256 << 20, segment_slots: Some(512) };
    [TableSize::Slots(2_000), growing]
        .map(|size| Config::new().size(size).key_inline(24).inline_max(24).value_max(100_000))
        .map(|config| config.heap_bytes(64 << 20))
}

/// A key of so many bytes. Keys of a length differ in one byte, wherever it is; shorter ones begin longer ones.
fn key(len: usize, n: usize) -> Vec<u8> {
    let mut key: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
    key[n % len] ^= 0x20 + (n / len) as u8;
    key
}

fn keys() -> Vec<Vec<u8>> {
    let all = (1..=255).flat_map(|len| [0, len / 2, len - 1].map(|n| key(len, n)));
    let unique: std::collections::BTreeSet<_> = all.collect();
    unique.into_iter().collect()
}

fn serve(place: &Place, table: Config) -> Server {
    Server::start(ServerConfig::new(place.address.clone(), table)).unwrap()
}

fn client(place: &Place, path: RequestPath) -> Client {
    Client::connect_with(&place.address, patient().requests(path)).unwrap()
}

fn value(n: usize) -> Vec<u8> {
    vec![n as u8; [0, 1, 8, 60, 300, 70_000][n % 6]]
}

/// Each key of each length has a value of its own, by every way to ask for it, and is gone when it is removed.
#[test]
fn keys_of_all_lengths() {
    for (table, path) in sizes().into_iter().flat_map(|table| PATHS.map(|path| (table, path))) {
        let place = Place::new();
        let _server = serve(&place, table);
        let mut client = client(&place, path);
        let keys = keys();
        assert!(
            keys.len() > 700 && client.geometry().key_max() == 255 && client.geometry().key_inline() == 24
        );
        let pairs: Vec<_> = keys.iter().zip(0..).map(|(key, n)| (key, value(n))).collect();
        let answers = client.put_many(&pairs).unwrap();
        assert!(answers.iter().all(|answer| *answer == Ok(PutOutcome::Inserted)));
        let all = client.get_many(&keys).unwrap();
        for ((key, value), batched) in pairs.iter().zip(all) {
            assert_eq!(batched.unwrap().as_ref(), Some(value), "{}", key.len());
            assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
            assert_eq!(client.value_len(key).unwrap(), Some(value.len()));
            let mut part = Vec::new();
            let (from, to) = (value.len() / 3, value.len() / 2);
            assert_eq!(client.get_range(key, from..to, &mut part).unwrap(), Some(value.len()));
            assert_eq!(part, value[from..to]);
            assert!(client.contains(key).unwrap());
            if value.len() <= 300 {
                assert_eq!(client.get_two_sided(key).unwrap().as_ref(), Some(value));
            }
        }
        for (nth, (key, value)) in pairs.iter().enumerate() {
            match nth % 4 {
                0 => assert!(client.remove(key).unwrap()),
                1 => {
                    assert_eq!(
                        client.compare_and_swap(key, b"another", b"no").unwrap(),
                        SwapOutcome::Differs
                    );
                    assert_eq!(client.compare_and_swap(key, value, b"yes").unwrap(), SwapOutcome::Swapped);
                    assert_eq!(client.get(key).unwrap().as_deref(), Some(&b"yes"[..]));
                }
                2 => {
                    assert_eq!(client.remove_if(key, b"another").unwrap(), SwapOutcome::Differs);
                    assert_eq!(client.remove_if(key, value).unwrap(), SwapOutcome::Swapped);
                }
                _ => assert_eq!(client.put(key, b"more").unwrap(), PutOutcome::Updated),
            }
            let there = client.get(key).unwrap();
            assert_eq!(there.is_some(), nth % 4 == 1 || nth % 4 == 3, "{}", key.len());
            let mut other = (*key).clone();
            other[key.len() - 1] ^= 0x80;
            assert_eq!(client.get(&other).unwrap(), None);
        }
        let given = [7; 256];
        assert!(client.put(&given, b"").is_err() && client.get(&given).is_err());
    }
}

/// A GET of a key that is not in its slot takes one READ more, and a miss none.
#[test]
fn one_read_more() {
    let place = Place::new();
    let _server = serve(&place, sizes()[0]);
    let mut client = client(&place, RequestPath::Auto);
    let (short, long) = (key(24, 0), key(25, 0));
    for key in [&short, &long] {
        client.put(key, b"value").unwrap();
    }
    let mut reads = |key: &[u8], is_there: bool| {
        let before = client.stats().read.reads;
        assert_eq!(client.get(key).unwrap().is_some(), is_there);
        client.stats().read.reads - before
    };
    // On one host, a value that is not in its slot is looked up again (X4).
    assert_eq!([reads(&short, true), reads(&long, true)], [1, 3]);
    assert_eq!([reads(&key(24, 1), false), reads(&key(25, 1), false)], [1, 1]);
}

/// Counters, bits and what is appended, of keys that do not fit their slots.
#[test]
fn parts_of_values() {
    for table in sizes() {
        let place = Place::new();
        let _server = serve(&place, table);
        let mut client = client(&place, RequestPath::Auto);
        for key in [key(24, 3), key(25, 3), key(90, 3), key(255, 3)] {
            assert_eq!(client.add(&key, 5, None).unwrap(), None);
            assert_eq!(client.add(&key, 5, Some(2)).unwrap(), Some(7));
            assert_eq!(client.add(&key, -3, None).unwrap(), Some(4));
            assert!(client.add(&key, -5, None).is_err());
            client.or(&key, &[1]).unwrap();
            client.and_not(&key, &[4]).unwrap();
            assert_eq!(client.get(&key).unwrap().as_deref(), Some(&1u64.to_le_bytes()[..]));
            for n in 0..100 {
                client.append(&key, &[n; 3], 400).unwrap();
            }
            assert_eq!(client.value_len(&key).unwrap(), Some(308));
        }
        assert_eq!(client.clear().unwrap(), 4);
        assert_eq!(client.get(&key(255, 3)).unwrap(), None);
    }
}

/// A scan and a follower are shown whole keys, and values also where these are short.
#[test]
fn scans_and_the_feed() {
    for table in sizes() {
        let place = Place::new();
        let _server = serve(&place, table);
        let mut client = client(&place, RequestPath::Auto);
        let mut model: BTreeMap<_, _> = keys().into_iter().zip((0..).map(value)).collect();
        for (key, value) in &model {
            client.put(key, value).unwrap();
        }
        let mut scan = client.scan().values(true);
        let mut seen = BTreeMap::new();
        while let Some(batch) = scan.next_batch().unwrap() {
            for one in batch {
                assert!(seen.insert(one.key, one.value.unwrap()).is_none(), "shown twice");
            }
        }
        assert!(seen == model);
        let options = FeedOptions::new().from(FeedFrom::Keys).values(true);
        let mut changes = client.changes(options).unwrap();
        let mut copy = BTreeMap::new();
        let within = Duration::from_secs(30);
        loop {
            match changes.next(within).unwrap().unwrap() {
                FeedItem::Key { key, value, .. } => assert!(copy.insert(key, value.unwrap()).is_none()),
                FeedItem::Joined => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(copy == model);
        for (n, key) in keys().into_iter().enumerate().filter(|(n, _)| n % 5 == 0) {
            if n % 2 == 0 {
                client.remove(&key).unwrap();
                assert!(
                    matches!(changes.next(within).unwrap(), Some(FeedItem::Left { key: left, .. }) if left == key)
                );
                model.remove(&key);
            } else {
                client.put(&key, b"another").unwrap();
                let heard = changes.next(within).unwrap();
                assert!(matches!(heard, Some(FeedItem::Replaced { key: which, value, .. })
                    if which == key && value.as_deref() == Some(b"another")));
                model.insert(key, b"another".to_vec());
            }
        }
        let mut left = BTreeMap::new();
        let mut scan = client.scan().prefix(b"abc").values(true);
        while let Some(batch) = scan.next_batch().unwrap() {
            left.extend(batch.into_iter().map(|one| (one.key, one.value.unwrap())));
        }
        model.retain(|key, _| key.starts_with(b"abc"));
        assert!(left == model && left.len() > 400);
    }
}

/// Keys that do not fit their slots come to their end, too, and have numbers.
#[test]
fn entries_that_end() {
    for table in sizes() {
        let place = Place::new();
        let server = serve(&place, table.life(true));
        let mut client = client(&place, RequestPath::Auto);
        let keys = keys();
        for (n, key) in keys.iter().enumerate() {
            let ttl = (n % 2 == 0).then_some(Duration::from_millis(1_500));
            client.put_with(key, &value(n), PutOptions::new().ttl(ttl)).unwrap();
        }
        let numbers: Vec<u64> = keys.iter().map(|key| client.life(key).unwrap().unwrap().number).collect();
        assert!(client.revalidate(&keys, &numbers).unwrap().iter().all(|is_same| *is_same));
        let gone = keys.iter().step_by(2).count() as u64;
        wait_for("the ends", || (server.index().expired() == gone).then_some(()));
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(client.get(key).unwrap(), (n % 2 == 1).then(|| value(n)), "{}", key.len());
        }
        let same = client.revalidate(&keys, &numbers).unwrap();
        assert!(same.iter().enumerate().all(|(n, is_same)| *is_same == (n % 2 == 1)));
    }
}

/// The next server of a region file has all keys, and so has a table that is made of a snapshot. A table for short keys
/// alone refuses that.
#[test]
fn takeovers_and_snapshots() {
    for table in sizes() {
        let place = Place::new();
        let file = place.dir.path().join("region");
        let config = || {
            ServerConfig::new(place.address.clone(), table)
                .backing(Backing::File(file.clone()))
                .start(StartMode::OpenOrCreate)
        };
        let server = Server::start(config()).unwrap();
        let pairs: Vec<_> = keys().into_iter().zip((0..).map(value)).collect();
        for (key, value) in &pairs {
            server.index().put(key, value, PutMode::Insert).unwrap();
        }
        let snapshot = place.dir.path().join("snapshot");
        server.index().save(&snapshot, &mut |_, _| true).unwrap();
        drop(server);
        let next = Server::start(config()).unwrap();
        let check = |server: &Server| {
            let mut found = Vec::new();
            for (key, value) in &pairs {
                assert!(server.index().reader().get_into(key, &mut found).unwrap() && found == *value);
            }
            assert_eq!(server.index().len(), pairs.len() as u64);
        };
        check(&next);
        let other = Place::new();
        let restored = serve(&other, table);
        let from = oneread::snapshot::Snapshot::open(&snapshot).unwrap();
        restored.index().restore_from(&from, &mut |_, _| {}).unwrap();
        check(&restored);
        let short = Place::new();
        let refused =
            serve(&short, table.key_max(24)).index().restore_from(&from, &mut |_, _| {}).unwrap_err();
        assert!(refused.to_string().contains("255"), "{refused}");
    }
}

/// A table says which keys it takes: up to 255 bytes, unless it was made for fewer.
#[test]
fn what_a_table_takes() {
    let of = |config: Config| -> Geometry { config.size(TableSize::Slots(64)).geometry().unwrap() };
    let lengths = |geometry: Geometry| (geometry.key_max(), geometry.key_inline(), geometry.shape().bytes());
    assert_eq!(lengths(of(Config::new())), (255, 86, 128));
    assert_eq!(lengths(of(Config::new().life(true))), (255, 74, 128));
    assert_eq!(lengths(of(Config::new().key_max(16).value_max(32))), (16, 16, 64));
    assert_eq!(lengths(of(Config::new().key_inline(8).inline_max(8))), (255, 8, 64));
    assert_eq!(lengths(of(Config::new().key_inline(255))), (255, 255, 320));
    let place = Place::new();
    let _server = serve(&place, Config::new().size(TableSize::Slots(64)).key_max(30).value_max(8));
    let mut client = client(&place, RequestPath::Auto);
    let refused = client.put_many(&[([1; 31], b"")]).unwrap();
    assert_eq!(refused, [Err(PutError::KeyLength { given: 31, max: 30 })]);
}
