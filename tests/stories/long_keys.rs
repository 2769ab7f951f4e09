//! Keys of 1 to 255 bytes in tables whose slots have room for shorter ones: all that clients do with keys, changes of
//! parts, scans and the feed, expiry, snapshots, and the next server of the region.

use crate::common::*;
use oneread::embedded::{Clock, Index};
use oneread::internals::region::{Backing, Region};
use oneread::layout::{Geometry, LIFE_BYTES, Life};
use oneread::sink::LifeSink;
use oneread::snapshot::Snapshot;
use oneread::{
    Client, Config, Evict, FeedFrom, FeedItem, FeedOptions, PutMode, PutOptions, PutOutcome, RequestPath,
    Server, ServerConfig, StartMode, SwapOutcome, TableSize, error::PutError,
};
use std::collections::BTreeMap;
use std::time::Duration;

over_shm_and_tcp! {
    keys_of_all_lengths,
    parts_of_values,
    scans_and_the_feed,
    entries_that_end,
    what_a_table_takes,
    #[cfg(feature = "encryption")]
    encrypted_values_are_the_keys_own,
}

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
fn keys_of_all_lengths(over: Over) {
    for (table, path) in
        sizes().into_iter().flat_map(|table| over.paths().into_iter().map(move |path| (table, path)))
    {
        let place = over.place();
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
fn parts_of_values(over: Over) {
    for table in sizes() {
        let place = over.place();
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
fn scans_and_the_feed(over: Over) {
    for table in sizes() {
        let place = over.place();
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
fn entries_that_end(over: Over) {
    for table in sizes() {
        let place = over.place();
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
        let from = Snapshot::open(&snapshot).unwrap();
        restored.index().restore_from(&from, &mut |_, _| {}).unwrap();
        check(&restored);
        let short = Place::new();
        let refused =
            serve(&short, table.key_max(24)).index().restore_from(&from, &mut |_, _| {}).unwrap_err();
        assert!(refused.to_string().contains("255"), "{refused}");
    }
}

/// They have owners and ends, by which they go, also of the next server and of a table that is made of a snapshot.
#[test]
fn owners_and_ends_outlive_the_server() {
    const SECOND: Duration = Duration::from_secs(1);
    const GONE: u16 = 7;
    let owner_of = |n: usize| [GONE, 9, 0][n % 3];
    let ends = |n: usize| (n / 3).is_multiple_of(2);
    for table in sizes() {
        let dir = tempfile::tempdir().unwrap();
        let (file, saved) = (dir.path().join("region"), dir.path().join("saved"));
        let (geometry, clock) = (table.life(true).owners(true).geometry().unwrap(), Clock::manual());
        let memory = Region::create(&Backing::File(file.clone()), geometry.region_bytes()).unwrap();
        let index = Index::create(memory, geometry.clone(), clock.clone()).unwrap();
        let sessions = [GONE, 9].map(|owner| index.owner(owner, 1_000 * SECOND).unwrap());
        let keys = keys();
        // Of key and value together, beside a life.
        let room = geometry.shape().payload_max() - LIFE_BYTES;
        for (n, key) in keys.iter().enumerate() {
            let options = PutOptions::new().ttl(ends(n).then_some(10 * SECOND));
            let put = match owner_of(n) {
                0 => index.put_with(key, &value(n), options),
                owner => index.put_of(&sessions[usize::from(owner != GONE)], key, &value(n), options),
            };
            assert_eq!(put, Ok(PutOutcome::Inserted));
        }
        let lives = |index: &Index| -> Vec<_> {
            let mut reader = index.reader();
            let mut life = |key| reader.get_into(key, &mut LifeSink::default()).unwrap().flatten();
            keys.iter().map(|key| life(&key[..])).collect()
        };
        let check = |index: &Index, is_there: &dyn Fn(usize) -> bool, what: &str| {
            let (mut reader, mut got) = (index.reader(), Vec::new());
            for (n, key) in keys.iter().enumerate() {
                let found = reader.get_into(key, &mut got).unwrap();
                assert_eq!(found, is_there(n), "{what}: {} bytes", key.len());
                assert!(!found || got == value(n), "{what}: {} bytes", key.len());
            }
        };
        let tidied = |index: &Index, clock: &Clock| {
            for _ in 0..100 {
                while index.tidy() == Some(Duration::ZERO) {}
                clock.advance(SECOND / 100);
            }
            let lives = lives(index);
            let is_short = |n: usize| keys[n].len() <= 24 && keys[n].len() + value(n).len() <= room;
            let in_heap = (0..keys.len()).filter(|&n| lives[n].is_some() && !is_short(n)).count();
            assert_eq!(index.heap().values, in_heap as u64, "no other has memory");
        };
        let before = lives(&index);
        assert!((0..keys.len()).all(|n| before[n].is_some_and(|life| life.owner == owner_of(n))));
        index.save(&saved, &mut |_, _| true).unwrap();
        // Without a word.
        drop((sessions, index));
        let (index, found) = Index::open(Region::open(&file).unwrap(), clock.clone()).unwrap();
        assert_eq!((found.keys, found.misplaced), (keys.len() as u64, 0));
        assert!(lives(&index) == before, "a takeover changes no life");
        check(&index, &|_| true, "taken over");
        assert_eq!(index.remove_owner(GONE), Ok(true));
        check(&index, &|n| owner_of(n) != GONE, "hidden");
        tidied(&index, &clock);
        clock.advance(10 * SECOND);
        tidied(&index, &clock);
        let stays = |n: usize| owner_of(n) != GONE && !ends(n);
        check(&index, &stays, "ended");
        assert_eq!(index.len(), (0..keys.len()).filter(|&n| stays(n)).count() as u64);
        let clock = Clock::manual();
        let memory = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let restored = Index::create(memory, geometry.clone(), clock.clone()).unwrap();
        restored.restore_from(&Snapshot::open(&saved).unwrap(), &mut |_, _| {}).unwrap();
        check(&restored, &|_| true, "restored");
        let owners = |life: Option<Life>| life.map(|life| (life.owner, life.expiry != 0));
        let after = lives(&restored);
        assert!((0..keys.len()).all(|n| owners(after[n]) == Some((owner_of(n), ends(n)))));
        assert_eq!(restored.remove_owner(GONE), Ok(true));
        check(&restored, &|n| owner_of(n) != GONE, "restored, and hidden");
        clock.advance(11 * SECOND);
        tidied(&restored, &clock);
        check(&restored, &stays, "restored, and ended");
    }
}

/// They make room for others, and others for them: every put goes through, in a table that is too small for
/// them, and nobody finds what is not there.
#[test]
fn entries_make_room() {
    const PUTS: usize = 12_000;
    let growing = TableSize::Growing { bytes_max: 3 << 20, segment_slots: Some(256) };
    // Of all lengths.
    let key = |n: usize| -> Vec<u8> {
        let number = n.to_le_bytes();
        number.into_iter().cycle().take(8 + n * 31 % 248).collect()
    };
    let value = |n: usize| vec![n as u8; if n.is_multiple_of(7) { 3_000 } else { n % 40 }];
    for (size, heap) in [(TableSize::Slots(2_000), Some(1 << 20)), (growing, None)] {
        let table = Config::new().size(size).key_inline(24).inline_max(24).value_max(3_000);
        let geometry = table.heap_bytes(heap).grace(Duration::ZERO).geometry().unwrap();
        for (policy, _) in Evict::ALL {
            let case = format!("{size:?} {policy:?}");
            let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
            let index = Index::create(region, geometry.clone(), Clock::System).unwrap();
            let index = index.with_eviction(policy).unwrap();
            let found = |n: usize| {
                let mut got = Vec::new();
                let found = index.reader().get_into(&key(n), &mut got).unwrap();
                assert!(!found || got == value(n), "{case}: {n}");
                found
            };
            let pinned: Vec<_> = (0..PUTS)
                .filter_map(|n| {
                    let put = index.put(&key(n), &value(n), PutMode::Upsert);
                    assert_eq!(put, Ok(PutOutcome::Inserted), "{case}: {n}");
                    assert!(found(n), "{case}: {n}");
                    n.is_multiple_of(500).then(|| (n, index.pin(&key(n)).unwrap().expect("it is there")))
                })
                .collect();
            assert!(pinned.iter().all(|&(n, _)| found(n)), "{case}: pinned");
            let (counts, keys) = (index.evictions(), index.len());
            println!("{case}: {keys} keys, {counts:?}, {:?}", index.heap());
            assert_eq!((0..PUTS).filter(|&n| found(n)).count() as u64, keys, "{case}");
            assert_eq!((counts.evicted(), counts.records), (PUTS as u64 - keys, keys), "{case}");
            let long = (0..PUTS).filter(|&n| key(n).len() > 24 && found(n)).count();
            assert!(
                counts.for_heap > 1_000 && counts.evicted() > 5_000 && long > 500,
                "{case}: {long}, {counts:?}"
            );
        }
    }
}

/// An encrypted value is bound to the whole key: under another one, in whichever byte that differs, it is none.
#[cfg(feature = "encryption")]
fn encrypted_values_are_the_keys_own(over: Over) {
    use oneread::{Encryption, GetError};
    let secret = || Encryption::new(&[7; 32], "tests");
    for table in sizes() {
        let place = over.place();
        let _server = serve(&place, table);
        let mut plain = client(&place, RequestPath::Auto);
        let options = patient().encryption(secret());
        let mut ours = Client::connect_with(&place.address, options).unwrap();
        for len in [24, 25, 100, 255] {
            let (whole, text) = (vec![b'k'; len], vec![5; 100]);
            ours.put(&whole, &text).unwrap();
            assert_eq!(ours.get(&whole).unwrap(), Some(text.clone()));
            let stored = plain.get(&whole).unwrap().unwrap();
            assert_eq!(secret().decrypt(&whole, &stored), Ok(text.clone()));
            for at in 0..len {
                let mut other = whole.clone();
                other[at] ^= 1;
                plain.put(&other, &stored).unwrap();
                let got = ours.get(&other);
                assert!(matches!(got, Err(GetError::Decrypt(_))), "{len}, {at}: {got:?}");
            }
            assert_eq!(ours.get(&whole).unwrap(), Some(text.clone()));
            assert_eq!(ours.compare_and_swap(&whole, &text, b"next").unwrap(), SwapOutcome::Swapped);
            assert_eq!(ours.get(&whole).unwrap().as_deref(), Some(&b"next"[..]));
        }
    }
}

/// A table says which keys it takes: up to 255 bytes, unless it was made for fewer.
fn what_a_table_takes(over: Over) {
    let of = |config: Config| -> Geometry { config.size(TableSize::Slots(64)).geometry().unwrap() };
    let lengths = |geometry: Geometry| (geometry.key_max(), geometry.key_inline(), geometry.shape().bytes());
    assert_eq!(lengths(of(Config::new())), (255, 86, 128));
    assert_eq!(lengths(of(Config::new().life(true))), (255, 74, 128));
    assert_eq!(lengths(of(Config::new().key_max(16).value_max(32))), (16, 16, 64));
    assert_eq!(lengths(of(Config::new().key_inline(8).inline_max(8))), (255, 8, 64));
    assert_eq!(lengths(of(Config::new().key_inline(255))), (255, 255, 320));
    let place = over.place();
    let _server = serve(&place, Config::new().size(TableSize::Slots(64)).key_max(30).value_max(8));
    let mut client = client(&place, RequestPath::Auto);
    let refused = client.put_many(&[([1; 31], b"")]).unwrap();
    assert_eq!(refused, [Err(PutError::KeyLength { given: 31, max: 30 })]);
}
