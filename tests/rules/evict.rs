//! Entries that make room for others (Z), by the index alone and through a server.

use crate::common::*;
use oneread::driven::DrivenServer;
use oneread::embedded::{Clock, Index};
use oneread::error::{MutateError, PutError};
use oneread::internals::region::{Backing, Region};
use oneread::layout::Seeds;
use oneread::{
    Client, Config, Evict, FeedItem, FeedOptions, LeftCause, PutMode, PutOptions, PutOutcome, Server,
    ServerConfig, StartMode, TableSize,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

over_shm_and_tcp! {
    what_clients_read_stays,
    reads_are_noted_where_nothing_leaves,
    pins_end_with_their_client,
    followers_are_told_once,
    all_at_once,
}

const LAYOUTS: [&str; 4] = ["windowed:8", "bucketized:4", "farm", "cluster"];
const MIB: usize = 1 << 20;

fn policies() -> [Evict; 3] {
    Evict::ALL.map(|(policy, _)| policy)
}

/// A table of one size, and one that grows to its bound.
fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(2_000), TableSize::Growing { bytes_max: 400 << 10, segment_slots: Some(256) }]
}

fn short(layout: &str, size: TableSize) -> Config {
    let config = Config::new().layout(layout.parse().unwrap()).size(size).seeds(Seeds::from_number(5));
    config.key_max(8).value_max(32).grace(Duration::ZERO)
}

fn index(config: &Config, policy: Evict) -> Index {
    let geometry = config.geometry().unwrap();
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    Index::create(region, geometry, Clock::System).unwrap().with_eviction(policy).unwrap()
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).to_le_bytes()
}

fn value(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(1 + n as usize % 4)
}

fn is_there(index: &Index, n: u64) -> bool {
    let mut got = Vec::new();
    let found = index.reader().get_into(&key(n), &mut got).unwrap();
    assert!(!found || got == value(n), "{n}");
    found
}

/// Every put goes through, in a table that is ten times too small; the table is used as it is meant to be; and there
/// is a record of each key that is there.
#[test]
fn puts_go_through() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        for policy in policies() {
            let case = format!("{layout} {size:?} {policy}");
            let index = index(&short(layout, size), policy);
            let (mut puts, slots) = (0, index.geometry().main_slots());
            let all = if index.geometry().grows() { 40_000 } else { 10 * slots };
            for n in 0..all {
                assert_eq!(
                    index.put(&key(n), &value(n), PutMode::Upsert),
                    Ok(PutOutcome::Inserted),
                    "{case}: {n}"
                );
                assert!(is_there(&index, n), "{case}: {n}");
                puts += 1;
            }
            let (counts, keys) = (index.evictions(), index.len());
            println!("{case}: {keys} keys in {} slots, {counts:?}", index.counts().slots);
            assert_eq!((counts.evicted(), counts.records, counts.refused), (puts - keys, keys, 0), "{case}");
            let found = (0..all).filter(|&n| is_there(&index, n)).count() as u64;
            assert_eq!(found, keys, "{case}");
            let main = slots * index.growth().segments.max(1);
            assert!(keys * 10 > main * 7, "{case}: {keys} keys in {main} slots");
        }
    }
}

/// A pinned key stays, whatever comes. When all that could make room is pinned, a put is refused, and says so;
/// when one is not any more, it goes through.
#[test]
fn pinned_keys_stay() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        let (index, case) = (index(&short(layout, size), Evict::S3Fifo), format!("{layout} {size:?}"));
        let mut pins = BTreeMap::new();
        for n in 0..20_000 {
            index.put(&key(n), &value(n), PutMode::Upsert).unwrap();
            if n % 30 == 0 {
                pins.insert(n, index.pin(&key(n)).unwrap().expect("it is there"));
            }
            if pins.len() > 30 {
                pins.pop_first();
            }
            assert!(pins.keys().all(|&n| is_there(&index, n)), "{case}: {n}");
        }
        assert!(index.pin(&key(30_000)).unwrap().is_none(), "it is not there");
        assert_eq!(index.evictions().pinned, pins.len() as u64, "{case}");
        drop(pins);
        // All that is there.
        let mut pins: Vec<_> = (0..20_000).filter_map(|n| index.pin(&key(n)).unwrap()).collect();
        assert_eq!(pins.len() as u64, index.len(), "{case}");
        let refused = (20_000..60_000).find_map(|n| {
            let refused = index.put(&key(n), &value(n), PutMode::Upsert).err();
            pins.extend(index.pin(&key(n)).unwrap());
            Some((n, refused?))
        });
        let (n, error) = refused.unwrap_or_else(|| panic!("{case}: no put is refused"));
        assert_eq!(error, PutError::Pinned, "{case}");
        assert!(index.evictions().refused > 0);
        drop(pins);
        assert_eq!(index.put(&key(n), &value(n), PutMode::Upsert), Ok(PutOutcome::Inserted), "{case}");
    }
}

/// Z3: a put without room has an entry go from where its key may stand. Where all slots have keys that are pinned, but
/// for some, nothing else leads to room.
#[test]
fn an_entry_beside_makes_room() {
    let run = |policy| {
        let index = index(&short("windowed:8", TableSize::Slots(2_000)), policy);
        let (mut pins, mut refused) = (Vec::new(), 0);
        for n in 0..10_000 {
            match index.put(&key(n), &value(n), PutMode::Upsert) {
                Ok(_) => pins.extend(index.pin(&key(n)).unwrap()),
                Err(PutError::Pinned) => refused += 1,
                Err(error) => return Err(error),
            }
        }
        assert!(pins.len() > 1_900 && refused > 1_000, "{} pins, {refused} refused", pins.len());
        let mut nth = 0;
        pins.retain(|_| {
            nth += 1;
            nth % 3 != 0
        });
        (10_000..10_100).try_for_each(|n| match index.put(&key(n), &value(n), PutMode::Upsert) {
            Ok(_) | Err(PutError::Pinned) => Ok(()),
            Err(error) => Err(error),
        })?;
        Ok(index.evictions().at_put)
    };
    for policy in policies() {
        let at_put = run(policy).unwrap();
        println!("{policy}: {at_put} beside");
        assert!(at_put > 0, "{policy}: {at_put}");
        #[cfg(feature = "faults")]
        {
            use oneread::internals::faults::{Broken, Rule};
            let _broken = Broken::rule(Rule::EvictBeside);
            assert!(matches!(run(policy), Err(PutError::Full { .. })), "{policy}: case lost");
        }
    }
}

/// A value of 1 MiB goes into a heap that is full of small ones, and a bounded number of these go: as many as have its
/// bytes, and some.
#[test]
fn a_long_value_finds_room_among_short_ones() {
    const SHORT: usize = 2_000;
    let sizes = [TableSize::Slots(100_000), TableSize::Growing { bytes_max: 40 << 20, segment_slots: None }];
    for size in sizes {
        let heap = matches!(size, TableSize::Slots(_)).then_some(24 << 20);
        let config =
            Config::new().size(size).key_max(8).value_max(MIB).heap_bytes(heap).grace(Duration::ZERO);
        let index = index(&config, Evict::S3Fifo);
        let mut n = 0;
        // Until some have made room for others.
        while index.evictions().for_heap < 2_000 {
            assert_eq!(
                index.put(&key(n), &[7; SHORT], PutMode::Upsert),
                Ok(PutOutcome::Inserted),
                "{size:?} {n}"
            );
            n += 1;
            assert!(n < 100_000, "{size:?}: {:?} {:?}", index.evictions(), index.heap());
        }
        println!("{size:?}: {n} short ones, {:?}", index.heap());
        for round in 0..20 {
            let before = index.evictions().evicted();
            let outcome = index.put(&key(1_000_000 + round), &vec![8; MIB], PutMode::Upsert);
            assert_eq!(outcome, Ok(PutOutcome::Inserted), "{size:?}: {:?}", index.heap());
            let gone = index.evictions().evicted() - before;
            assert!(gone <= 4 * (MIB / SHORT) as u64, "{size:?}: {gone} went");
            let mut got = Vec::new();
            assert!(
                index.reader().get_into(&key(1_000_000 + round), &mut got).unwrap() && got == vec![8; MIB]
            );
        }
        println!("{size:?}: {:?}", index.evictions());
    }
}

/// Keys have all the memory of a table. Then long values come, and segments give memory to them, in a bounded part of the
/// work for each put; then short ones again, and so on. A value that has come is there, and no put is refused.
#[test]
fn what_is_put_turns_from_short_to_long_and_back() {
    const LONG: usize = 10_000;
    let growing = TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(4 << 10) };
    for (policy, size) in
        policies().into_iter().flat_map(|of| [(of, TableSize::Slots(20_000)), (of, growing)])
    {
        let heap = matches!(size, TableSize::Slots(_)).then_some(4 << 20);
        let config =
            Config::new().size(size).key_max(8).value_max(LONG).heap_bytes(heap).grace(Duration::ZERO);
        let index = index(&config.seeds(Seeds::from_number(5)), policy);
        let (mut n, mut keys) = (0, Vec::new());
        for turn in 0..4 {
            let is_long = turn % 2 == 1;
            for nth in 0..if is_long { 3_000 } else { 80_000 } {
                let value = vec![n as u8; if is_long { LONG } else { 20 }];
                let outcome = index.put(&key(n), &value, PutMode::Upsert);
                assert_eq!(
                    outcome,
                    Ok(PutOutcome::Inserted),
                    "{policy} {size:?}: {turn}, {nth}: {:?}",
                    index.heap()
                );
                let mut got = Vec::new();
                assert!(index.reader().get_into(&key(n), &mut got).unwrap() && got == value);
                n += 1;
                if nth % 64 == 0 {
                    while index.tidy() == Some(Duration::ZERO) {}
                }
            }
            keys.push((index.len(), index.heap().values));
        }
        println!("{policy} {size:?}: keys, long ones of these: {keys:?}, {:?}", index.evictions());
        // In a table that grows each kind takes memory from the other one. There were no long values at first. Keys give
        // memory only where no value may go (Z5): so there is a block of values at least, of some forty. How many blocks
        // there are depends on time.
        assert!(keys[0].1 == 0 && keys[1].1 >= 40 && keys[3].1 >= 40, "{policy} {size:?}: {keys:?}");
        assert!(keys[2].0 >= keys[0].0 * 7 / 10, "{policy} {size:?}: {keys:?}");
    }
}

/// Z5: keys have all memory, and none that may leave. A long value is refused, and told why. When some may leave, it comes.
#[test]
fn segments_give_memory_to_values() {
    // A block for such values is larger than a segment: so what is left when there is no other segment is no block.
    const LONG: usize = 70_000;
    let size = TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(4 << 10) };
    let config = Config::new().size(size).key_max(8).value_max(LONG).grace(Duration::ZERO);
    let config = config.seeds(Seeds::from_number(5));
    let full = |index: &Index| {
        (0..100_000).take_while(|&n| index.put(&key(n), b"", PutMode::Insert).is_ok()).count()
    };
    let put_long = |index: &Index| index.put(b"long", &[7; LONG], PutMode::Insert);
    // Nothing leaves.
    let geometry = config.geometry().unwrap();
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    let stays = Index::create(region, geometry, Clock::System).unwrap();
    assert!(full(&stays) > 10_000);
    let refused = put_long(&stays).unwrap_err();
    assert_eq!(refused, PutError::HeapFull { live_bytes: 0, heap_bytes: 0 });
    assert!(refused.to_string().contains("keys have all the memory"), "{refused}");
    // All may leave, and all are pinned.
    let index = index(&config, Evict::S3Fifo);
    assert_eq!(full(&index), 100_000);
    let mut pins: Vec<_> = (0..100_000).filter_map(|n| index.pin(&key(n)).unwrap()).collect();
    assert_eq!(pins.len() as u64, index.len());
    let refused = put_long(&index).unwrap_err();
    assert!(matches!(refused, PutError::HeapFull { heap_bytes: 0, .. } | PutError::Pinned), "{refused}");
    assert_eq!((index.len(), index.evictions().for_heap), (pins.len() as u64, 0));
    #[cfg(feature = "faults")]
    {
        use oneread::internals::faults::{Broken, Rule};
        pins.clear();
        let _broken = Broken::rule(Rule::GiveSegment);
        let refused = put_long(&index);
        assert!(matches!(refused, Err(PutError::HeapBusy { .. })), "case lost: {refused:?}");
    }
    pins.clear();
    assert_eq!(put_long(&index), Ok(PutOutcome::Inserted));
    let (counts, growth) = (index.evictions(), index.growth());
    println!("{counts:?} {growth:?}");
    assert!(growth.merges > 0 && index.heap().values == 1);
    // As many as were in two segments, and some more.
    assert!(counts.for_heap < 4 * (4 << 10), "{counts:?}");
    (200_000..201_000).for_each(|n| assert!(index.put(&key(n), b"", PutMode::Insert).is_ok()));
}

/// The next server knows the keys that it finds.
#[test]
fn a_takeover_knows_the_keys() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        let (dir, config) = (tempfile::tempdir().unwrap(), short(layout, size));
        let file = dir.path().join("region");
        let geometry = config.geometry().unwrap();
        let memory = Region::create(&Backing::File(file.clone()), geometry.region_bytes()).unwrap();
        let first =
            Index::create(memory, geometry, Clock::System).unwrap().with_eviction(Evict::Sieve).unwrap();
        (0..20_000).for_each(|n| assert!(first.put(&key(n), &value(n), PutMode::Upsert).is_ok()));
        let keys = first.len();
        drop(first);
        let (next, found) = Index::open(Region::open(&file).unwrap(), Clock::System).unwrap();
        let next = next.with_eviction(Evict::S3Fifo).unwrap();
        assert_eq!((next.evictions().records, found.keys), (keys, keys), "{layout} {size:?}");
        for n in 20_000..30_000 {
            assert_eq!(
                next.put(&key(n), &value(n), PutMode::Upsert),
                Ok(PutOutcome::Inserted),
                "{layout} {size:?}"
            );
        }
        assert_eq!(next.evictions().records, next.len(), "{layout} {size:?}");
    }
}

// ---- through a server ---------------------------------------------------------------------------

fn serve(place: &Place, table: Config, policy: Evict) -> Server {
    start(ServerConfig::new(place.address.clone(), table).evict(policy))
}

fn client(place: &Place) -> Client {
    Client::connect_with(&place.address, patient()).unwrap()
}

/// What clients read stays, though the server sees no GET: by single GETs and by batches, of slots and of long values.
fn what_clients_read_stays(over: Over) {
    const HOT: u64 = 300;
    // Each GET is a round trip there, and the policies do not differ in what they hear of.
    let policies_max = if over == Over::Shm { usize::MAX } else { 1 };
    for policy in policies().into_iter().take(policies_max) {
        for how in ["get", "get_many", "get_range", "nothing"] {
            let place = over.place();
            let table = short("windowed:8", TableSize::Slots(2_000))
                .value_max(200)
                .inline_max(30)
                .heap_bytes(8 << 20);
            let server = serve(&place, table, policy);
            let mut client = client(&place);
            let long = |n: u64| if n.is_multiple_of(5) { vec![9; 200] } else { value(n)[..8].to_vec() };
            (0..HOT).for_each(|n| assert!(client.put(&key(n), &long(n)).is_ok()));
            let hot: Vec<_> = (0..HOT).map(key).collect();
            for n in HOT..12_000 {
                client.put(&key(n), &long(n)).unwrap();
                if n % 100 == 0 {
                    match how {
                        "get" => hot.iter().for_each(|key| drop(client.get(key).unwrap())),
                        "get_many" => drop(client.get_many(&hot).unwrap()),
                        "get_range" => hot.iter().for_each(|key| {
                            client.get_range(key, 0..1, &mut Vec::new()).unwrap();
                        }),
                        _ => {}
                    }
                }
            }
            let stay = hot.iter().filter(|key| client.contains(*key).unwrap()).count() as u64;
            println!("{policy} {how}: {stay} of {HOT} stay, {:?}", server.index().evictions());
            if how == "nothing" {
                assert!(stay < HOT / 3, "{policy}: {stay}");
            } else {
                assert!(stay > HOT * 9 / 10, "{policy} {how}: {stay}");
            }
        }
    }
}

/// Whoever drives a table can ask which entries were read. Where no policy was asked for, nobody knows.
fn reads_are_noted_where_nothing_leaves(over: Over) {
    for notes in [true, false] {
        let place = over.place();
        let table = short("windowed:8", TableSize::Slots(2_000));
        let config = ServerConfig::new(place.address.clone(), table).evict(notes.then_some(Evict::Clock));
        let driven = DrivenServer::start(config).unwrap();
        let (server, table) = (driven.server(), driven.table());
        let mut client = client(&place);
        for n in 0..100 {
            server.index().put(&key(n), &value(n), PutMode::Insert).unwrap();
        }
        assert!(matches!(client.put(&key(0), b"").unwrap_err(), MutateError::ReadOnly { .. }));
        assert!((0..100).all(|n| !table.take_read(&key(n))), "a put is no read");
        for n in (0..100).step_by(2) {
            assert!(client.get(&key(n)).unwrap().is_some());
        }
        client.get(&key(1_000)).unwrap();
        let read: Vec<u64> = (0..100).filter(|n| table.take_read(&key(*n))).collect();
        assert!(read.iter().all(|n| n % 2 == 0), "{read:?}");
        // Of keys that share a byte the last one counts.
        assert!(if notes { read.len() > 45 } else { read.is_empty() }, "{read:?}");
        assert!((0..100).all(|n| !table.take_read(&key(n))), "once");
        assert!(client.get(&key(0)).unwrap().is_some(), "nothing has left");
        assert_eq!(server.index().len(), 100);
    }
}

/// Pins end with their connection, and are bounded; who may only read pins nothing.
fn pins_end_with_their_client(over: Over) {
    let place = over.place();
    let server = serve(&place, short("windowed:8", TableSize::Slots(8_000)), Evict::S3Fifo);
    let (mut first, mut second) = (client(&place), client(&place));
    (0..5_000).for_each(|n| assert!(first.put(&key(n), &value(n)).is_ok()));
    assert_eq!(
        [first.pin(&key(1)).unwrap(), first.pin(&key(1)).unwrap(), second.pin(&key(1)).unwrap()],
        [true; 3]
    );
    assert!(!first.pin(&key(6_000)).unwrap(), "it is not there");
    assert_eq!(server.index().evictions().pinned, 1);
    assert_eq!([(); 3].map(|()| first.unpin(&key(1)).unwrap()), [true, true, false]);
    assert_eq!(server.index().evictions().pinned, 1);
    assert!(second.unpin(&key(1)).unwrap());
    assert_eq!(server.index().evictions().pinned, 0);
    assert!(matches!(first.pin(&[0; 9]), Err(MutateError::KeyLength { .. })));
    let most = (0..5_000).position(|n| matches!(first.pin(&key(n)), Err(MutateError::Pins { max: 4_096 })));
    assert_eq!(most, Some(4_096));
    drop(first);
    let until = Instant::now() + Duration::from_secs(60);
    while server.index().evictions().pinned > 0 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Where nothing makes room, pins cost nothing.
    let place = over.place();
    let _server = start(ServerConfig::new(place.address.clone(), short("windowed:8", TableSize::Slots(100))));
    let mut client = client(&place);
    client.put(b"key", b"value").unwrap();
    assert_eq!(
        [client.pin(b"key").unwrap(), client.pin(b"none").unwrap(), client.unpin(b"key").unwrap()],
        [true, false, true]
    );
}

/// Everybody who follows is told of each entry that went, once, and why.
fn followers_are_told_once(over: Over) {
    let place = over.place();
    let server = start(
        ServerConfig::new(place.address.clone(), short("windowed:8", sizes()[1]).life(true).value_max(20))
            .evict(Evict::S3Fifo)
            .feed_bytes(64 << 20),
    );
    let mut changes = client(&place).changes(FeedOptions::new()).unwrap();
    assert!(changes.next(Duration::ZERO).unwrap().is_none());
    let mut client = client(&place);
    let keys: Vec<_> = (0..20_000).map(key).collect();
    for some in keys.chunks(100) {
        let pairs: Vec<_> = some.iter().map(|key| (&key[..], &b"value"[..])).collect();
        client.put_many(&pairs).unwrap().into_iter().for_each(|put| assert!(put.is_ok()));
    }
    let (mut there, mut evicted) = (BTreeMap::new(), 0);
    while let Some(item) = changes.next(Duration::ZERO).unwrap() {
        match item {
            FeedItem::Came { key, .. } => assert_eq!(there.insert(key, ()), None, "it is there"),
            FeedItem::Left { key, cause: LeftCause::Evicted, .. } => {
                evicted += 1;
                assert!(there.remove(&key).is_some(), "it is not there");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((evicted, there.len() as u64), (server.index().evictions().evicted(), server.index().len()));
    assert!(evicted > 10_000, "{evicted}");
    assert!(there.keys().all(|key| client.contains(key).unwrap()));
}

/// Two server threads put, and entries make room and end, while clients read, and while the table grows to its bound;
/// then another server goes on. Each GET finds what was put, or nothing; pinned keys are found by each.
fn all_at_once(over: Over) {
    const KEYS: u64 = 40_000;
    let each = if over == Over::Shm { 30_000 } else { 10_000 };
    let place = over.place();
    let file = place.dir.path().join("region");
    let heap =
        Config::new().key_max(8).value_max(3_000).inline_max(28).life(true).grace(Duration::from_micros(50));
    let table = heap.size(TableSize::Growing { bytes_max: 6 << 20, segment_slots: Some(256) });
    let long = |n: u64| vec![n as u8; if n.is_multiple_of(7) { 3_000 } else { 8 + n as usize % 20 }];
    for round in 0..2 {
        let config = ServerConfig::new(place.address.clone(), table).evict(policies()[round]);
        let server =
            start(config.backing(Backing::File(file.clone())).start(StartMode::OpenOrCreate).workers(2));
        let (stop, puts, hits) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (place, stop, puts, hits) = (&place, &stop, &puts, &hits);
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut client = client(place);
                        let mut pinned = Vec::new();
                        for n in 0..each {
                            let n = (n * 2 + writer) * 7_919 % KEYS;
                            let ends = n.is_multiple_of(5).then_some(Duration::from_millis(200));
                            client.put_with(&key(n), &long(n), PutOptions::new().ttl(ends)).unwrap();
                            puts.fetch_add(1, Ordering::Relaxed);
                            if !n.is_multiple_of(5) && pinned.len() < 50 && client.pin(&key(n)).unwrap() {
                                pinned.push(n);
                            }
                            if n.is_multiple_of(64) {
                                for &n in &pinned {
                                    assert_eq!(client.get(&key(n)).unwrap(), Some(long(n)), "{n} is pinned");
                                }
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                scope.spawn(move || {
                    let (mut client, mut n) = (client(place), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        let wanted = n * 104_729 % KEYS;
                        if let Some(got) = client.get(&key(wanted)).unwrap() {
                            assert_eq!(got, long(wanted));
                            hits.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let ended = writers.into_iter().map(|writer| writer.join()).collect::<Vec<_>>();
            stop.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        let counts = server.index().evictions();
        println!(
            "round {round}: {} hits, {counts:?}, {} keys",
            hits.load(Ordering::Relaxed),
            server.index().len()
        );
        assert!(counts.evicted() > 1_000 && hits.load(Ordering::Relaxed) > 0);
        assert_eq!((counts.records, puts.load(Ordering::Relaxed)), (server.index().len(), 2 * each));
        assert!(server.stop().region_stays);
    }
}
