//! Scans, and the feed of changes, as clients see them: two server threads, growth, slow consumers, other servers.

use crate::common::*;
use oneread::internals::region::Backing;
use oneread::{
    Address, ChangeFeed, Client, Config, ErrorKind, FeedError, FeedFrom, FeedItem, FeedOptions, GapCause,
    LeftCause, RequestPath, ScanCursor, Server, ServerConfig, StartMode, TableSize, TcpAddress,
    error::{AskError, FeedRefusal},
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

over_shm_and_tcp! {
    another_server_is_a_gap,
    long_values_are_brought,
    a_prefix_a_number_and_a_position,
    who_is_too_slow_is_told_which_are_missing,
    bad_input_is_refused,
    a_million_changes,
    errors_of_a_server_that_is_gone,
    a_follower_at_rest_waits_at_the_server,
    what_ends_a_wait_at_the_server,
    a_wait_is_interrupted,
}

fn growing() -> Config {
    let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(512) };
    Config::new().size(size).key_max(16).value_max(60)
}

fn serve(place: &Place, table: Config) -> Server {
    start(ServerConfig::new(place.address.clone(), table))
}

fn client(place: &Place) -> Client {
    Client::connect_with(&place.address, patient()).unwrap()
}

/// A client over TCP.
fn far_client(server: &Server) -> Client {
    let address = Address::Tcp(server.tcp_address().unwrap().clone());
    Client::connect_with(&address, patient()).unwrap()
}

fn name(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

/// A copy of a table.
type Copied = BTreeMap<Vec<u8>, Vec<u8>>;

/// Follows into a copy, and begins anew after a gap. Returns how many changes were heard, and gaps. `None` when nothing
/// comes any more.
fn hear(changes: &mut ChangeFeed, copy: &mut Copied, within: Duration) -> Option<[u64; 2]> {
    match changes.next(within).unwrap()? {
        FeedItem::Key { key, value, .. } => {
            assert_eq!(copy.insert(key, value.unwrap()), None, "shown twice");
            Some([0, 0])
        }
        FeedItem::Joined => Some([0, 0]),
        FeedItem::Came { key, value, .. } => {
            assert_eq!(copy.insert(key, value.unwrap()), None, "it was there");
            Some([1, 0])
        }
        FeedItem::Replaced { key, value, .. } => {
            assert!(copy.insert(key, value.unwrap()).is_some(), "it was not there");
            Some([1, 0])
        }
        FeedItem::Left { key, cause, .. } => {
            assert!(copy.remove(&key).is_some() && cause == LeftCause::Removed, "it was not there");
            Some([1, 0])
        }
        FeedItem::Gap { .. } => {
            copy.clear();
            changes.resync().unwrap();
            Some([0, 1])
        }
        other => panic!("{other:?}"),
    }
}

fn hear_all(changes: &mut ChangeFeed, copy: &mut Copied) -> [u64; 2] {
    let mut sum = [0, 0];
    while let Some([heard, gaps]) = hear(changes, copy, Duration::ZERO) {
        sum = [sum[0] + heard, sum[1] + gaps];
    }
    sum
}

fn all(client: &mut Client) -> Copied {
    let mut copy = Copied::new();
    for found in client.scan().values(true) {
        let found = found.unwrap();
        assert_eq!(copy.insert(found.key, found.value.unwrap()), None, "shown twice");
    }
    copy
}

/// Keys of this thread come and go until somebody says so. Returns what is left.
fn work(client: &mut Client, thread: u64, ends: &AtomicBool) -> Copied {
    let (mut numbers, mut own) = (Numbers(thread + 1), Copied::new());
    while !ends.load(Ordering::Relaxed) {
        let key = name(thread << 32 | numbers.below(4_000));
        if numbers.below(3) == 0 {
            assert_eq!(client.remove(&key).unwrap(), own.remove(&key).is_some());
        } else {
            let value = numbers.next().to_le_bytes().repeat(1 + numbers.below(7) as usize);
            client.put(&key, &value).unwrap();
            own.insert(key, value);
        }
    }
    own
}

/// Has workers end, also when the test fails.
struct EndsLater<'e>(&'e AtomicBool);

impl Drop for EndsLater<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While two clients change a table that grows, by two threads of the server, scans show each key that stays once, and
/// who follows has in the end what is there. One of the clients that change it is on shm and one comes over TCP; so does
/// who scans and follows, or not.
#[test]
fn scans_and_followers_beside_changes() {
    let tables = [growing(), growing().size(TableSize::Keys(20_000)), growing()];
    for (table, is_far) in tables.into_iter().zip([false, true, true]) {
        let place = Place::new();
        let beside = TcpAddress::new("127.0.0.1", 0);
        let server = start(ServerConfig::new(place.address.clone(), table).tcp(beside));
        let mut staying = if is_far { far_client(&server) } else { client(&place) };
        let stay: Copied = (0..500).map(|n| (format!("stays:{n}").into_bytes(), vec![n as u8; 20])).collect();
        for (key, value) in &stay {
            staying.put(key, value).unwrap();
        }
        let ends = AtomicBool::new(false);
        let (mut copy, mut heard, mut scans) = (Copied::new(), [0, 0], 0);
        let left: Vec<Copied> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|thread| {
                    let mut client = if thread == 0 { client(&place) } else { far_client(&server) };
                    let ends = &ends;
                    scope.spawn(move || work(&mut client, thread, ends))
                })
                .collect();
            let ending = EndsLater(&ends);
            let options = FeedOptions::new().from(FeedFrom::Keys).values(true);
            let mut changes = staying.changes(options).unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(3) || scans < 3 {
                let seen = all(&mut staying);
                scans += 1;
                let stays: Copied = seen.into_iter().filter(|(key, _)| key.starts_with(b"stays")).collect();
                assert_eq!(stays, stay);
                for _ in 0..20_000 {
                    let Some(more) = hear(&mut changes, &mut copy, Duration::ZERO) else { break };
                    heard = [heard[0] + more[0], heard[1] + more[1]];
                }
            }
            drop(ending);
            let left = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            hear_all(&mut changes, &mut copy);
            left
        });
        println!("{heard:?} changes and gaps, {scans} scans, {:?}", server.growth());
        let mut right = stay.clone();
        left.into_iter().for_each(|own| right.extend(own));
        assert!(heard[0] > 1_000, "{heard:?}");
        assert!(copy == right, "{} keys are known, {} there are", copy.len(), right.len());
        assert!(all(&mut staying) == right);
        assert!(server.growth().splits > 0 || !server.index().geometry().grows());
    }
}

/// Only keys with a prefix, without values, from a number on, and again from a position.
fn a_prefix_a_number_and_a_position(over: Over) {
    let place = over.place();
    let server = serve(&place, growing());
    let mut client = client(&place);
    client.put(b"early", b"").unwrap();
    let mut users = client.changes(FeedOptions::new().prefix(b"user:")).unwrap();
    assert_eq!(users.next(Duration::ZERO).unwrap(), None);
    for n in 0..3u8 {
        client.put(&[b"user:", &[n][..]].concat(), b"one").unwrap();
        client.put(&[b"other:", &[n][..]].concat(), b"two").unwrap();
    }
    client.put(b"user:\0", b"three").unwrap();
    client.remove(b"user:\0").unwrap();
    let came =
        |number, n: u8| FeedItem::Came { number, key: [b"user:", &[n][..]].concat(), value: None, owner: 0 };
    let (key, cause) = (b"user:\0".to_vec(), LeftCause::Removed);
    let right = [
        came(1, 0),
        came(3, 1),
        came(5, 2),
        FeedItem::Replaced { number: 7, key: key.clone(), value: None, owner: 0 },
        FeedItem::Left { number: 8, key, cause },
    ];
    let mut positions = vec![users.position()];
    for item in &right {
        assert_eq!(users.next(SOON).unwrap().as_ref(), Some(item));
        positions.push(users.position());
    }
    assert_eq!(users.next(Duration::from_millis(20)).unwrap(), None);
    for (nth, position) in positions.into_iter().enumerate() {
        let options = FeedOptions::new().prefix(b"user:").from(FeedFrom::Position(position));
        let mut again = client.changes(options).unwrap();
        for item in &right[nth..] {
            assert_eq!(again.next(Duration::ZERO).unwrap().as_ref(), Some(item), "{nth}");
        }
        assert_eq!(again.next(Duration::ZERO).unwrap(), None);
    }
    let mut last = client.changes(FeedOptions::new().from(FeedFrom::Number(6)).values(true)).unwrap();
    let item =
        FeedItem::Came { number: 6, key: b"other:\x02".to_vec(), value: Some(b"two".to_vec()), owner: 0 };
    assert_eq!(last.next(Duration::ZERO).unwrap(), Some(item));
    let keys: BTreeSet<_> =
        client.scan().prefix(b"other:").map(|found| found.unwrap()).map(|it| (it.key, it.value)).collect();
    assert_eq!(keys, (0..3u8).map(|n| ([b"other:", &[n][..]].concat(), None)).collect());
    drop(server);
}

/// One who does not ask for long is told which changes are missing, and the ring ends by itself. When he asks
/// again, it goes on.
fn who_is_too_slow_is_told_which_are_missing(over: Over) {
    let place = over.place();
    let server = start(ServerConfig::new(place.address.clone(), growing()).feed_bytes(1 << 12));
    let mut client = client(&place);
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    for n in 0..1_000 {
        client.put(&name(n), b"value").unwrap();
    }
    let item = changes.next(Duration::ZERO).unwrap();
    let Some(FeedItem::Gap { from, to, cause: GapCause::TooSlow }) = item else { panic!("{item:?}") };
    assert!(from.number == 1 && to.number > 100, "{from:?} {to:?}");
    assert_eq!((from.table, from.launch), (to.table, to.launch));
    assert_eq!(changes.next(Duration::ZERO).unwrap(), None, "the ring had ended");
    client.put(b"one more", b"value").unwrap();
    let item = changes.next(SOON).unwrap();
    assert_eq!(
        item,
        Some(FeedItem::Came { number: to.number, key: b"one more".to_vec(), value: None, owner: 0 })
    );
    // Its copy is whole again after a walk.
    let mut changes = client.changes(FeedOptions::new().from(FeedFrom::Keys).values(true)).unwrap();
    let mut copy = Copied::new();
    hear_all(&mut changes, &mut copy);
    assert!(copy.len() == 1_001 && copy == all(&mut client));
    drop(server);
}

/// Another server of the same region, after a stop and after a new region, is a gap; so are a cursor's and a
/// position's end where the table is another one.
fn another_server_is_a_gap(over: Over) {
    let place = over.place();
    let region = place.dir.path().join("region");
    let config = || {
        ServerConfig::new(place.address.clone(), growing())
            .backing(Backing::File(region.clone()))
            .start(StartMode::OpenOrCreate)
    };
    let server = start(config());
    let mut client = client(&place);
    for n in 0..3_000 {
        client.put(&name(n), &name(n)).unwrap();
    }
    let mut changes = client.changes(FeedOptions::new().from(FeedFrom::Keys).values(true)).unwrap();
    let mut copy = Copied::new();
    hear_all(&mut changes, &mut copy);
    assert_eq!(copy.len(), 3_000);
    // A scan stops in the middle, and its cursor is kept as bytes.
    let mut seen = BTreeSet::new();
    let mut scan = client.scan();
    seen.extend(scan.next_batch().unwrap().unwrap().into_iter().map(|found| found.key));
    let cursor = scan.cursor().to_bytes();
    assert!((1..3_000).contains(&seen.len()), "{}", seen.len());
    drop(server.stop());
    // Over TCP a client waits for the next one, until its deadline.
    if over == Over::Shm {
        let error = changes.next(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    let server = start(config());
    let (mut gaps, begun) = (0, Instant::now());
    client.put(b"meanwhile", b"1").unwrap();
    while !copy.contains_key(&b"meanwhile"[..]) {
        assert!(begun.elapsed() < SOON);
        match changes.next(Duration::ZERO) {
            Ok(Some(FeedItem::Gap { from, to, cause })) => {
                assert_eq!((cause, from.table), (GapCause::OtherServer, to.table));
                assert_ne!(from.launch, to.launch);
                (gaps, copy) = (gaps + 1, Copied::new());
                changes.resync().unwrap();
            }
            Ok(Some(FeedItem::Key { key, value, .. } | FeedItem::Came { key, value, .. })) => {
                copy.insert(key, value.unwrap());
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
    }
    hear_all(&mut changes, &mut copy);
    assert_eq!((gaps, copy.len()), (1, 3_001));
    assert!(copy == all(&mut client));
    // The scan goes on where it stood.
    let rest = client.scan().from(ScanCursor::from_bytes(&cursor).unwrap());
    for found in rest {
        assert!(seen.insert(found.unwrap().key), "shown twice");
    }
    assert!((0..3_000).all(|n| seen.contains(&name(n))));
    // Another table.
    let position = changes.position();
    drop(server.stop());
    std::fs::remove_file(&region).unwrap();
    let server = start(config());
    let error = client.scan().from(ScanCursor::from_bytes(&cursor).unwrap()).next().unwrap().unwrap_err();
    assert!(is_refused(&error, |why| matches!(why, FeedRefusal::OtherTable { .. })), "{error}");
    let error = client.changes(FeedOptions::new().from(FeedFrom::Position(position))).unwrap_err();
    assert!(is_refused(&error, |why| matches!(why, FeedRefusal::OtherTable { .. })), "{error}");
    let item = wait_for("the gap", || changes.next(Duration::ZERO).ok().flatten());
    assert!(matches!(item, FeedItem::Gap { cause: GapCause::OtherTable, .. }), "{item:?}");
    client.put(b"first", b"1").unwrap();
    let item = changes.next(SOON).unwrap();
    assert!(matches!(item, Some(FeedItem::Came { number: 1, .. })), "{item:?}");
    drop(server);
}

fn is_refused(error: &FeedError, is_so: impl FnOnce(&FeedRefusal) -> bool) -> bool {
    matches!(error, FeedError::Refused { why, .. } if is_so(why)) && error.kind() == ErrorKind::Invalid
}

/// What cannot be is refused with a typed error that names it.
#[cfg_attr(feature = "verbs", expect(clippy::result_large_err, reason = "each is looked at at once"))]
fn bad_input_is_refused(over: Over) {
    let place = over.place();
    let server = serve(&place, growing());
    let mut client = client(&place);
    // Of more bytes than a reply of a scan has, wherever they stand.
    for n in 0..10_000 {
        client.put(&name(n), b"value").unwrap();
    }
    let from = |from| FeedOptions::new().from(from);
    let error = client.changes(from(FeedFrom::Number(5))).unwrap_err();
    assert!(is_refused(&error, |why| *why == FeedRefusal::Future { given: 5, next: 1 }), "{error}");
    let now = client.changes(FeedOptions::new()).unwrap().position();
    let mut later = now;
    later.number += 1;
    let error = client.changes(from(FeedFrom::Position(later))).unwrap_err();
    assert!(is_refused(&error, |why| *why == FeedRefusal::Future { given: 2, next: 1 }), "{error}");
    let mut other = now;
    other.table ^= 1;
    let error = client.changes(from(FeedFrom::Position(other))).unwrap_err();
    let (given, this) = (other.table, now.table);
    assert!(is_refused(&error, |why| *why == FeedRefusal::OtherTable { given, this }), "{error}");
    for length in [17, 300] {
        let error = client.changes(FeedOptions::new().prefix(vec![1; length])).unwrap_err();
        let is_so = matches!(error, FeedError::PrefixLength { given, max: 16 } if given == length);
        assert!(is_so && error.to_string().contains("longest key"), "{error}");
        let error = client.scan().prefix(&vec![1; length]).next_batch().unwrap_err();
        assert!(matches!(error, FeedError::PrefixLength { max: 16, .. }), "{error}");
    }
    assert!(client.changes(FeedOptions::new().prefix(vec![1; 16])).is_ok());
    // A cursor with any byte changed, cut, or of nonsense.
    let mut scan = client.scan();
    scan.next_batch().unwrap();
    let good = scan.cursor().to_bytes();
    assert!(good.len() > 30, "in the middle");
    for at in 0..good.len() {
        for change in [1, 0x80] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            let error = ScanCursor::from_bytes(&bytes)
                .and_then(|cursor| client.scan().from(cursor).next_batch().map(drop))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{at}: {error}");
        }
        let error = ScanCursor::from_bytes(&good[..at])
            .and_then(|cursor| match client.scan().from(cursor).next_batch() {
                // Without a place, it begins anew.
                Ok(Some(_)) if at == 9 => Err(FeedError::Cursor { given: at }),
                answer => answer.map(drop),
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{at}: {error}");
    }
    drop(server);
    // A server without a feed, whose tables can be scanned.
    let place = over.place();
    let _server = start(ServerConfig::new(place.address.clone(), growing()).feed_bytes(0));
    let mut client = self::client(&place);
    client.put(b"key", b"value").unwrap();
    let error = client.changes(FeedOptions::new()).unwrap_err();
    assert!(matches!(error, FeedError::Refused { why: FeedRefusal::Off, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(all(&mut client).len(), 1);
}

/// Values that do not stand in their slots are brought, too.
fn long_values_are_brought(over: Over) {
    let place = over.place();
    let _server = serve(&place, growing().value_max(100_000));
    let mut client = client(&place);
    let value = |n: u64| vec![n as u8; (n * n * 10) as usize];
    let mut changes = client.changes(FeedOptions::new().values(true)).unwrap();
    for n in 0..100 {
        client.put(&name(n), &value(n)).unwrap();
    }
    let there = all(&mut client);
    assert!((0..100).all(|n| there[&name(n)] == value(n)));
    let mut copy = Copied::new();
    assert_eq!(hear_all(&mut changes, &mut copy), [100, 0]);
    assert!(copy == there);
}

/// Requests that wait at the server, when there are so many.
fn wait_until_parked(server: &Server, count: u64) {
    wait_for("requests that wait", || (server.parked() == count).then_some(()));
}

/// Follows for a while, in which there is nothing to hear: its request waits then.
fn rest(changes: &mut ChangeFeed, server: &Server) {
    assert_eq!(changes.next(Duration::from_millis(20)).unwrap(), None);
    wait_until_parked(server, 1);
}

/// Who follows and has nothing to hear leaves one request with the server, and hears of a change by its reply: of one that a
/// client makes, and of one that the server's own process makes.
fn a_follower_at_rest_waits_at_the_server(over: Over) {
    let place = over.place();
    let server = serve(&place, growing());
    let mut client = client(&place);
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    let mut others: Vec<_> = (0..20).map(|_| client.changes(FeedOptions::new()).unwrap()).collect();
    let mut hears = |number, key: &[u8], put: &mut dyn FnMut()| {
        let came = FeedItem::Came { number, key: key.to_vec(), value: None, owner: 0 };
        std::thread::scope(|scope| {
            let all = others.iter_mut().chain([&mut changes]);
            let waiting: Vec<_> = all.map(|feed| scope.spawn(|| feed.next(SOON).unwrap())).collect();
            wait_until_parked(&server, 21);
            put();
            waiting.into_iter().for_each(|it| assert_eq!(it.join().unwrap().as_ref(), Some(&came)));
        });
        assert_eq!(server.parked(), 0);
    };
    hears(1, b"one", &mut || {
        client.put(b"one", b"value").unwrap();
    });
    hears(2, b"two", &mut || {
        server.index().put(b"two", b"value", oneread::PutMode::Insert).unwrap();
    });
}

/// A request that waits outlives a call whose time is over, and what follows: a call with no time has it answered, a walk
/// takes it back, the end of the feed ends it, and so does the end of the server, after which the next one is asked.
fn what_ends_a_wait_at_the_server(over: Over) {
    let place = over.place();
    let region = place.dir.path().join("region");
    let config = || {
        ServerConfig::new(place.address.clone(), growing())
            .backing(Backing::File(region.clone()))
            .start(StartMode::OpenOrCreate)
    };
    let server = start(config());
    let mut client = client(&place);
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    let came = |number, key: &[u8]| FeedItem::Came { number, key: key.to_vec(), value: None, owner: 0 };
    for (number, key) in [(1, b"one"), (2, b"two")] {
        rest(&mut changes, &server);
        rest(&mut changes, &server);
        client.put(key, b"value").unwrap();
        assert_eq!(changes.next(Duration::ZERO).unwrap(), Some(came(number, key)));
        assert_eq!((changes.next(Duration::ZERO).unwrap(), server.parked()), (None, 0));
    }
    rest(&mut changes, &server);
    assert_eq!((changes.next(Duration::ZERO).unwrap(), server.parked()), (None, 0), "it was hurried");
    rest(&mut changes, &server);
    changes.resync().unwrap();
    let mut keys = BTreeSet::new();
    while let Some(FeedItem::Key { key, .. }) = changes.next(SOON).unwrap() {
        keys.insert(key);
    }
    assert_eq!(keys, BTreeSet::from([b"one".to_vec(), b"two".to_vec()]));
    rest(&mut changes, &server);
    drop(changes);
    wait_until_parked(&server, 0);
    client.put(b"three", b"value").unwrap();

    let mut changes = client.changes(FeedOptions::new()).unwrap();
    rest(&mut changes, &server);
    drop(server.stop());
    let server = start(config());
    let item = wait_for("the next server", || changes.next(SOON).ok());
    let Some(FeedItem::Gap { cause: GapCause::OtherServer, .. }) = item else { panic!("{item:?}") };
    rest(&mut changes, &server);
}

/// Another thread ends a wait, or the next one.
fn a_wait_is_interrupted(over: Over) {
    let place = over.place();
    let server = serve(&place, growing());
    let mut client = client(&place);
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    let interrupter = changes.interrupter().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| changes.next(Duration::MAX).unwrap());
        wait_until_parked(&server, 1);
        interrupter.interrupt();
        assert_eq!(waiting.join().unwrap(), None);
    });
    interrupter.interrupt();
    assert_eq!(changes.next(Duration::MAX).unwrap(), None);
    assert_eq!(server.parked(), 1, "it waits on");
    client.put(b"key", b"value").unwrap();
    assert!(matches!(changes.next(Duration::MAX).unwrap(), Some(FeedItem::Came { number: 1, .. })));
}

/// A server that does not know the request is not sent it.
#[test]
fn an_older_server_is_named() {
    let (_server, _place, old) =
        older_server(1, |op, _| assert!(![40, 41].contains(&op), "nobody asks for keys or changes"));
    let options = patient().requests(RequestPath::Message);
    let mut client = Client::connect_with(&old.address, options).unwrap();
    let error = client.scan().next_batch().unwrap_err();
    assert!(matches!(error, FeedError::Unsupported { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let error = client.changes(FeedOptions::new()).unwrap_err();
    assert!(error.to_string().contains("same version"), "{error}");
}

/// A server that does not know how to let a request wait is asked again and again.
#[test]
fn an_older_server_is_asked_again() {
    let asked = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&asked);
    let (server, place, old) = older_server(5, move |op, body| {
        if op == 41 {
            assert_eq!(body[32] & 4, 0, "it cannot wait");
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let options = patient().requests(RequestPath::Message);
    let follower = Client::connect_with(&old.address, options).unwrap();
    let mut changes = follower.changes(FeedOptions::new()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| changes.next(SOON).unwrap());
        let before = asked.load(Ordering::Relaxed);
        wait_for("requests", || (asked.load(Ordering::Relaxed) > before + 10).then_some(()));
        assert_eq!(server.parked(), 0);
        client(&place).put(b"key", b"value").unwrap();
        assert!(matches!(waiting.join().unwrap(), Some(FeedItem::Came { number: 1, .. })));
    });
}

/// A server that says that it knows requests up to this level, and is another one's front: it looks at what is asked.
fn older_server(level: u16, look: impl Fn(u16, &[u8]) + Clone + Send + 'static) -> (Server, Place, Place) {
    use oneread::internals::wire::Reply;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let (place, old) = (Place::new(), Place::new());
    let server = serve(&place, growing());
    let oneread::Address::Shm(there) = &place.address else { unreachable!() };
    let oneread::Address::Shm(at) = &old.address else { unreachable!() };
    let listener = UnixListener::bind(at).unwrap();
    let there = there.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, there, look) = (stream.unwrap(), there.clone(), look.clone());
            std::thread::spawn(move || {
                let mut hello = [0; 32];
                stream.read_exact(&mut hello).unwrap();
                let mut server = UnixStream::connect(there).unwrap();
                server.write_all(&hello).unwrap();
                let (reply, fd) = receive(&server);
                let Reply::Welcome { version, .. } = reply else { panic!("{reply:?}") };
                let mut bytes = Vec::new();
                Reply::Welcome { version, level }.encode(0, &mut bytes);
                send_with(&stream, &bytes, &fd.unwrap());
                // What is asked is answered.
                let frame = |from: &mut UnixStream, to: &mut UnixStream| {
                    let mut head = [0; 16];
                    from.read_exact(&mut head).ok()?;
                    let mut body = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
                    from.read_exact(&mut body).ok()?;
                    to.write_all(&[&head[..], &body].concat()).ok()?;
                    Some((u16::from_le_bytes([head[4], head[5]]), body))
                };
                while let Some((op, body)) = frame(&mut stream, &mut server) {
                    look(op, &body);
                    frame(&mut server, &mut stream);
                }
            });
        }
    });
    (server, place, old)
}

/// A million changes through one consumer: how long that takes is printed, and nothing is missing or twice.
fn a_million_changes(over: Over) {
    let place = over.place();
    let server = start(ServerConfig::new(place.address.clone(), growing()).feed_bytes(128 << 20));
    let client = client(&place);
    let mut changes = client.changes(FeedOptions::new().values(true)).unwrap();
    const CHANGES: u64 = 1_000_000;
    let begun = Instant::now();
    for n in 0..CHANGES {
        let key = (n % 50_000).to_le_bytes();
        server.index().put(&key, &n.to_le_bytes(), oneread::PutMode::Upsert).unwrap();
    }
    let (put, begun) = (begun.elapsed(), Instant::now());
    for n in 0..CHANGES {
        match changes.next(SOON).unwrap() {
            Some(
                FeedItem::Came { number, key, value, .. } | FeedItem::Replaced { number, key, value, .. },
            ) => {
                assert_eq!((number, &key[..]), (n + 1, &(n % 50_000).to_le_bytes()[..]));
                assert_eq!(value.as_deref(), Some(&n.to_le_bytes()[..]));
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    println!("{CHANGES} changes put in {put:?}, heard in {:?}", begun.elapsed());
    assert_eq!(changes.next(Duration::ZERO).unwrap(), None);
}

/// A stopped server's error is a connection's.
fn errors_of_a_server_that_is_gone(over: Over) {
    let place = over.place();
    let server = serve(&place, growing());
    // Over TCP it waits for the next one until its deadline.
    let hasty = patient().deadline(Duration::from_millis(200));
    let mut changes = wait_for("a connection", || {
        Client::connect_with(&place.address, hasty.clone()).ok()?.changes(FeedOptions::new()).ok()
    });
    drop(server.stop());
    let error = changes.next(Duration::ZERO).unwrap_err();
    assert!(matches!(error, FeedError::Ask(AskError::Connect(_) | AskError::ServerGone { .. })), "{error}");
}

/// Values that were not heard with their changes cannot be brought, because the server is gone: nothing that was heard is lost.
/// When a server of the table is back, each change is given, with its value, and then what has come since.
#[test]
fn what_was_heard_waits_for_its_value() {
    let place = Over::Tcp.place();
    let region = place.dir.path().join("region");
    let serve = || {
        let table = growing().value_max(10_000).inline_max(60);
        let config = ServerConfig::new(place.address.clone(), table);
        start(config.backing(Backing::File(region.clone())).start(StartMode::OpenOrCreate))
    };
    let server = serve();
    // It waits for the next server until its deadline.
    let hasty = patient().deadline(Duration::from_millis(200));
    let mut changes = wait_for("a connection", || {
        let client = Client::connect_with(&place.address, hasty.clone()).ok()?;
        client.changes(FeedOptions::new().values(true)).ok()
    });
    let mut writer = client(&place);
    for n in 0..5 {
        writer.put(&name(n), &vec![n as u8; 5_000]).unwrap();
    }
    let came = |n: u64| {
        let value = Some(vec![n as u8; 5_000]);
        FeedItem::Came { number: n + 1, key: name(n), value, owner: 0 }
    };
    let next = |changes: &mut ChangeFeed| changes.next(Duration::ZERO).ok().flatten();
    let first = wait_for("the first", || next(&mut changes));
    assert_eq!(first, came(0));
    drop(server.stop());
    (0..3).for_each(|_| assert!(changes.next(Duration::ZERO).is_err(), "its value cannot be brought"));
    let server = serve();
    for n in 1..5 {
        assert_eq!(wait_for("the next", || next(&mut changes)), came(n));
    }
    let gap = wait_for("the gap", || next(&mut changes));
    assert!(matches!(gap, FeedItem::Gap { cause: GapCause::OtherServer, .. }), "{gap:?}");
    drop(server);
}

/// Changes that are missing count once for each follower that is told so, however often it asks then.
#[test]
fn gaps_are_counted_once() {
    let place = Over::Shm.place();
    let server = start(ServerConfig::new(place.address.clone(), growing()).feed_bytes(1 << 12));
    let mut client = client(&place);
    let mut all: Vec<_> = (0..2).map(|_| client.changes(FeedOptions::new()).unwrap()).collect();
    let gaps = || server.times().feed_gaps;
    for changes in &mut all {
        assert_eq!(changes.next(Duration::ZERO).unwrap(), None);
    }
    assert_eq!(gaps(), 0);
    for n in 0..1_000 {
        client.put(&name(n), b"value").unwrap();
    }
    for (nth, changes) in (1..).zip(&mut all) {
        let item = changes.next(Duration::ZERO).unwrap();
        assert!(matches!(item, Some(FeedItem::Gap { .. })), "{item:?}");
        while changes.next(Duration::ZERO).unwrap().is_some() {}
        (0..3).for_each(|_| assert_eq!(changes.next(Duration::ZERO).unwrap(), None));
        assert_eq!(gaps(), nth);
    }
    client.put(b"one more", b"value").unwrap();
    for changes in &mut all {
        assert!(matches!(changes.next(SOON).unwrap(), Some(FeedItem::Came { .. })));
    }
    assert_eq!(gaps(), 2);
}
