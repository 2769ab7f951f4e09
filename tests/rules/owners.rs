//! Owners of entries (O), by the index alone and through a server.

use oneread::embedded::{Clock, Index, OwnerSession};
use oneread::error::{ConnectError, MutateError, PutError};
use oneread::internals::region::{Backing, Region};
use oneread::layout::{OWNER_MAX, Seeds};
use oneread::sink::LifeSink;
use oneread::snapshot::Snapshot;
use oneread::{
    Address, ChangeFeed, Client, ClientOptions, Config, FeedFrom, FeedItem, FeedOptions, OwnerOptions,
    PartChange, PutMode, PutOptions, PutOutcome, Server, ServerConfig, StartMode, SwapOutcome, TableSize,
    TcpAddress, Tell,
};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LAYOUTS: [&str; 4] = ["windowed:8", "bucketized:4", "farm", "cluster"];
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_millis(2);
const KEYS: u64 = 600;
/// Whose entries go.
const GONE: u16 = 7;
/// Whose stay.
const STAYS: u16 = OWNER_MAX;

fn config(layout: &str, size: TableSize) -> Config {
    let heap = matches!(size, TableSize::Slots(_)).then_some(8 << 20);
    let config = Config::new().layout(layout.parse().unwrap()).size(size).seeds(Seeds::from_number(5));
    let config = config.key_max(8).value_max(3_000).inline_max(28).heap_bytes(heap).grace(GRACE);
    config.life(true).owners(true)
}

fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(2_000), TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(256) }]
}

fn all() -> impl Iterator<Item = (&'static str, TableSize)> {
    LAYOUTS.into_iter().flat_map(|layout| sizes().map(|size| (layout, size)))
}

fn index(config: &Config) -> (Index, Clock) {
    let (clock, geometry) = (Clock::manual(), config.geometry().unwrap());
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).to_le_bytes()
}

/// Short values, and some that do not fit their slots.
fn value(n: u64) -> Vec<u8> {
    vec![1; if n.is_multiple_of(7) { 3_000 } else { n as usize % 29 }]
}

/// Whose key this is: some are nobody's.
fn owner_of(n: u64) -> u16 {
    [GONE, STAYS, 0][n as usize % 3]
}

/// Takes the table on until nothing is left to do for so long.
fn tidy(index: &Index, clock: &Clock, time: Duration) {
    let steps = time.as_millis().div_ceil(50);
    for _ in 0..=steps {
        while index.tidy() == Some(Duration::ZERO) {}
        clock.advance(time / (steps as u32).max(1));
    }
}

/// Puts all keys. Returns the sessions.
fn fill(index: &Index, absent_for: Duration) -> [OwnerSession; 2] {
    let sessions = [GONE, STAYS].map(|owner| index.owner(owner, absent_for).unwrap());
    for n in 0..KEYS {
        let outcome = match owner_of(n) {
            0 => index.put(&key(n), &value(n), PutMode::Insert),
            GONE => index.put_of(&sessions[0], &key(n), &value(n), PutMode::Insert.into()),
            _ => index.put_of(&sessions[1], &key(n), &value(n), PutMode::Insert.into()),
        };
        assert_eq!(outcome, Ok(PutOutcome::Inserted));
    }
    sessions
}

/// Every way of reading shows exactly the keys whose owner is not this one.
fn check_all_but(index: &Index, gone: u16, case: &str) {
    let (mut reader, mut got) = (index.reader(), Vec::new());
    let keys: Vec<[u8; 8]> = (0..KEYS).map(key).collect();
    let is_there = |n: u64| gone == 0 || owner_of(n) != gone;
    for n in 0..KEYS {
        let found = reader.get_into(&key(n), &mut got).unwrap();
        assert_eq!(found, is_there(n), "{case}: {n}");
        assert!(!found || got == value(n), "{case}: {n}");
        let len = reader.value_len(&key(n)).unwrap();
        assert_eq!(len, is_there(n).then(|| value(n).len()), "{case}: {n}");
        let range = reader.get_range(&key(n), 1..5, &mut got).unwrap();
        assert_eq!(range.is_some(), is_there(n), "{case}: {n}");
        let life = reader.get_into(&key(n), &mut LifeSink::default()).unwrap().flatten();
        assert_eq!(life.map(|life| life.owner), is_there(n).then(|| owner_of(n)), "{case}: {n}");
    }
    let mut answered = 0;
    reader
        .get_many(&keys, |n, got| {
            let n = n as u64;
            assert_eq!(got, is_there(n).then(|| value(n)).as_deref(), "{case}: {n}");
            answered += 1;
        })
        .unwrap();
    assert_eq!(answered, KEYS, "{case}");
    #[cfg(feature = "sim")]
    check_shown(index, is_there, case);
}

/// What a snapshot would have.
#[cfg(feature = "sim")]
fn check_shown(index: &Index, is_there: impl Fn(u64) -> bool, case: &str) {
    let mut shown = 0;
    index.show_all(&mut |key, _| {
        let n = u64::from_le_bytes(key.try_into().unwrap()) - 1;
        assert!(is_there(n), "{case}: {n} is shown");
        shown += 1;
    });
    assert_eq!(shown, (0..KEYS).filter(|&n| is_there(n)).count(), "{case}");
}

fn refused(index: &Index, owner: u16) -> bool {
    matches!(index.owner(owner, SECOND), Err(PutError::OwnerGone { owner: of }) if of == owner)
}

/// With the return of one call, no way of reading finds an entry of the owner; what is there of the others stays. Then
/// they are removed, and the number is given again, no earlier than twice the grace time after.
#[test]
fn entries_of_an_owner_are_hidden_at_once() {
    for (layout, size) in all() {
        let case = format!("{layout} {size:?}");
        let (index, clock) = index(&config(layout, size));
        let sessions = fill(&index, SECOND);
        check_all_but(&index, 0, &case);
        assert_eq!(index.remove_owner(GONE), Ok(true), "{case}");
        check_all_but(&index, GONE, &case);
        assert_eq!(index.len(), KEYS, "{case}: they are only hidden");
        // Late puts, and others'.
        let late = index.put_of(&sessions[0], &key(KEYS), b"", PutOptions::new());
        assert_eq!(late, Err(PutError::OwnerGone { owner: GONE }), "{case}");
        assert_eq!(index.remove_owner(GONE), Ok(false), "{case}: once is enough");
        assert!(refused(&index, GONE), "{case}");
        // Until they are removed, bit by bit.
        while index.len() > KEYS - KEYS / 3 {
            let before = index.len();
            assert!(index.tidy().is_some(), "{case}: there is more to do");
            assert!(before - index.len() <= 100, "{case}: a bounded step");
            check_all_but(&index, GONE, &case);
        }
        index.tidy();
        clock.advance(2 * GRACE - Duration::from_nanos(1));
        index.tidy();
        assert!(refused(&index, GONE), "{case}: readers may have seen one");
        clock.advance(Duration::from_nanos(1));
        index.tidy();
        let again = index.owner(GONE, SECOND).unwrap();
        let late = index.put_of(&sessions[0], &key(0), b"", PutOptions::new());
        assert_eq!(late, Err(PutError::OwnerGone { owner: GONE }), "{case}: another session's");
        check_all_but(&index, GONE, &case);
        for n in (0..KEYS).filter(|&n| owner_of(n) == GONE) {
            index.put_of(&again, &key(n), &value(n), PutMode::Insert.into()).unwrap();
        }
        check_all_but(&index, 0, &case);
    }
}

/// By loads, a GET of an entry with an owner takes a READ of the owner's bit more, and one of an entry that is hidden
/// another look besides: in a batch, too.
#[test]
fn looks_at_owners_are_counted() {
    let (index, _) = index(&config("windowed:8", TableSize::Slots(2_000)));
    let _sessions = fill(&index, SECOND);
    index.remove_owner(GONE).unwrap();
    for (owner, looks, bits) in [(0, 1, 0), (STAYS, 1, 1), (GONE, 2, 1)] {
        let keys: Vec<_> = (0..KEYS).filter(|&n| owner_of(n) == owner && n % 7 != 0).map(key).collect();
        let (count, window) = (keys.len() as u64, 8 * index.geometry().shape().bytes() as u64);
        let (mut alone, mut together) = (index.reader(), index.reader());
        for key in &keys {
            assert_eq!(alone.get_into(key, &mut Vec::new()), Ok(owner != GONE));
        }
        together.get_many(&keys, |_, got| assert_eq!(got.is_some(), owner != GONE)).unwrap();
        for (reader, doorbells) in [(alone, count), (together, count.div_ceil(8))] {
            let (reads, stats) = (reader.read_counts(), reader.stats());
            assert_eq!((stats.gets, stats.retries_torn + stats.retries_replaced), (count, 0), "{owner}");
            assert_eq!(reads.reads, count * (looks + bits), "{owner}");
            assert_eq!(reads.bytes, count * (looks * window + bits * 8), "{owner}");
            assert_eq!(reads.doorbells, doorbells + count * (looks - 1 + bits), "{owner}");
        }
    }
}

/// Every change treats a hidden entry as absent, and its slot is used.
#[test]
fn hidden_is_absent_for_changes() {
    for (layout, size) in all() {
        let case = format!("{layout} {size:?}");
        let (index, _) = index(&config(layout, size));
        let _sessions = fill(&index, SECOND);
        index.remove_owner(GONE).unwrap();
        let mut mine = (0..KEYS).filter(|&n| owner_of(n) == GONE);
        for n in mine.by_ref().take(40) {
            let key = key(n);
            assert_eq!(index.put(&key, b"new", PutMode::Update), Ok(PutOutcome::Missing), "{case}");
            assert_eq!(index.compare_and_swap(&key, &value(n), b"new"), Ok(SwapOutcome::Absent), "{case}");
            assert_eq!(index.remove_if(&key, &value(n)), Ok(SwapOutcome::Absent), "{case}");
            assert_eq!(index.remove(&key), Ok(false), "{case}");
            match n % 3 {
                0 => assert_eq!(index.put(&key, b"new", PutMode::Insert), Ok(PutOutcome::Inserted)),
                1 => assert_eq!(index.put(&key, b"new", PutMode::Upsert), Ok(PutOutcome::Inserted)),
                _ => {
                    let add = PartChange::Add { delta: 5, initial: Some(7) };
                    let told = index.change_part(&key, add, Tell::After).unwrap();
                    assert_eq!(told.value.unwrap(), 12u64.to_le_bytes(), "{case}");
                }
            }
            let life = index.reader().get_into(&key, &mut LifeSink::default()).unwrap().flatten();
            assert_eq!(life.unwrap().owner, 0, "{case}: whoever puts has it");
        }
        assert_eq!(index.len(), KEYS, "{case}: in the slots that they were in");
        while index.tidy() == Some(Duration::ZERO) {}
        assert_eq!(index.len(), KEYS - mine.count() as u64, "{case}: what came in their place stays");
    }
}

/// A change of an entry that is there leaves it whose it is; a put makes it whose the put is.
#[test]
fn who_puts_has_it() {
    let (index, _) = index(&config("windowed:8", sizes()[1]));
    let owner = || {
        let life = index.reader().get_into(b"key", &mut LifeSink::default()).unwrap().flatten();
        life.map(|life| life.owner)
    };
    let session = index.owner(GONE, SECOND).unwrap();
    index.put_of(&session, b"key", b"one", PutOptions::new()).unwrap();
    assert_eq!(owner(), Some(GONE));
    assert_eq!(index.compare_and_swap(b"key", b"one", b"two"), Ok(SwapOutcome::Swapped));
    assert_eq!(owner(), Some(GONE));
    index.put(b"key", b"three", PutMode::Upsert).unwrap();
    assert_eq!(owner(), Some(0));
    index.put_of(&session, b"key", b"four", PutOptions::new()).unwrap();
    index.remove_owner(GONE).unwrap();
    assert_eq!((owner(), index.len()), (None, 1));
}

/// An owner is away when its last session has gone, for as long as it has said. Who comes again in time keeps all.
#[test]
fn owners_may_be_away() {
    let (index, clock) = index(&config("windowed:8", sizes()[1]));
    let sessions = fill(&index, 10 * SECOND);
    let second = index.owner(GONE, 10 * SECOND).unwrap();
    drop(sessions);
    tidy(&index, &clock, 9 * SECOND);
    drop(index.owner(STAYS, 10 * SECOND).unwrap());
    tidy(&index, &clock, 9 * SECOND);
    check_all_but(&index, 0, "one has a session, one came again");
    drop(second);
    let stays = index.owner(STAYS, 10 * SECOND).unwrap();
    tidy(&index, &clock, 11 * SECOND);
    check_all_but(&index, GONE, "one has gone");
    assert_eq!(index.len(), KEYS - KEYS / 3);
    // The server was stopped: that is nobody's absence.
    drop(stays);
    index.tidy();
    clock.advance(100 * SECOND);
    index.tidy();
    check_all_but(&index, GONE, "the server was away itself");
    tidy(&index, &clock, 11 * SECOND);
    assert_eq!(index.len(), KEYS / 3);
}

/// Numbers that nobody has, and tables without owners.
#[test]
fn impossible_owners_are_refused() {
    let (with, _) = index(&config("windowed:8", sizes()[0]));
    for given in [0, u16::MAX] {
        assert_eq!(with.owner(given, SECOND).unwrap_err(), PutError::OwnerNumber { given });
        assert_eq!(with.remove_owner(given), Ok(false));
    }
    assert_eq!(with.remove_owner(1), Ok(false));
    assert!(with.owner(OWNER_MAX, Duration::MAX).is_ok() && with.owner(1, Duration::ZERO).is_ok());
    let (without, _) = index(&config("windowed:8", sizes()[0]).owners(false));
    assert_eq!(without.owner(1, SECOND).unwrap_err(), PutError::NoOwners);
    assert_eq!(without.remove_owner(1), Err(PutError::NoOwners));
    let no_life = config("windowed:8", sizes()[0]).life(false).geometry().unwrap_err().to_string();
    assert!(no_life.contains("Config::life"), "{no_life}");
}

/// The next server finds who has gone, goes on removing, and gives the others their time again.
#[test]
fn owners_outlive_the_server() {
    for (layout, size) in all() {
        let case = format!("{layout} {size:?}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("region");
        let (config, clock) = (config(layout, size), Clock::manual());
        let (geometry, kept) = (config.geometry().unwrap(), Backing::File(file.clone()));
        let index =
            Index::create(Region::create(&kept, geometry.region_bytes()).unwrap(), geometry, clock.clone())
                .unwrap();
        let sessions = fill(&index, 10 * SECOND);
        index.remove_owner(GONE).unwrap();
        index.tidy();
        assert!(index.len() > KEYS - KEYS / 3 && index.len() < KEYS, "{case}: half of it is done");
        // The server is gone without a word.
        drop((sessions, index));
        let (index, _) = Index::open(Region::open(&file).unwrap(), clock.clone()).unwrap();
        check_all_but(&index, GONE, &case);
        assert!(refused(&index, GONE), "{case}");
        tidy(&index, &clock, SECOND);
        assert_eq!(index.len(), KEYS - KEYS / 3, "{case}");
        check_all_but(&index, GONE, &case);
        drop(index.owner(GONE, SECOND).unwrap());
        // 10 s are kept as 16.384.
        tidy(&index, &clock, 9 * SECOND);
        check_all_but(&index, GONE, &case);
        tidy(&index, &clock, 10 * SECOND);
        assert_eq!(index.len(), KEYS / 3, "{case}: nobody has come for them");
    }
}

/// A snapshot has what is not hidden, and whose it is. Where nobody comes for it, it goes. A table whose entries have no
/// owners does not take it.
#[test]
fn snapshots_carry_owners() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let (index, _) = index(&config("windowed:8", sizes()[1]));
    let _sessions = fill(&index, SECOND);
    index.remove_owner(GONE).unwrap();
    assert_eq!(index.save(&path, &mut |_, _| true).unwrap().keys, KEYS - KEYS / 3);
    let snapshot = Snapshot::open(&path).unwrap();
    let (other, clock) = self::index(&config("farm", sizes()[1]));
    other.restore_from(&snapshot, &mut |_, _| {}).unwrap();
    check_all_but(&other, GONE, "restored");
    tidy(&other, &clock, 59 * SECOND);
    check_all_but(&other, GONE, "restored, and waited for");
    tidy(&other, &clock, 2 * SECOND);
    assert_eq!(other.len(), KEYS / 3);
    let (without, _) = self::index(&config("farm", sizes()[0]).owners(false));
    let refused = without.restore_from(&snapshot, &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("Config::owners") && without.is_empty(), "{refused}");
}

/// A server, and where clients reach it: on shm or over TCP.
fn serve(dir: &std::path::Path, workers: usize, is_far: bool) -> (Server, Address) {
    let config = config("windowed:8", TableSize::up_to(64 << 20)).value_max(1 << 20);
    let config = ServerConfig::new(Address::Shm(dir.join("table")), config).workers(workers);
    let server = Server::start(config.tcp(TcpAddress::new("127.0.0.1", 0))).unwrap();
    let far = Address::Tcp(server.tcp_address().unwrap().clone());
    let address = if is_far { far } else { server.address().clone() };
    (server, address)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < 60 * SECOND, "{what}");
        std::thread::sleep(5 * MILLI);
    }
}

/// Through a server: a client puts as an owner, on every way that a value goes. Another one removes it. Who follows hears
/// of it once.
#[test]
fn clients_are_owners() {
    for (workers, is_far) in [(1, false), (2, false), (1, true), (2, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (server, address) = serve(dir.path(), workers, is_far);
        let mut other = Client::connect(&address).unwrap();
        let mut changes = other.changes(FeedOptions::new().prefix(b"none".to_vec())).unwrap();
        let mut client = other.owner(OwnerOptions::new(GONE).absent_for(3600 * SECOND)).unwrap();
        let mut clone = client.clone();
        for (n, len) in [3, 2_000, 5_000, 600_000].into_iter().enumerate() {
            let put = if n % 2 == 0 { &mut client } else { &mut clone };
            assert_eq!(put.put(&[n as u8; 4], &vec![1; len]).unwrap(), PutOutcome::Inserted);
            assert_eq!(other.get(&[n as u8; 4]).unwrap().map(|value| value.len()), Some(len));
            assert_eq!(other.life(&[n as u8; 4]).unwrap().unwrap().owner, GONE);
        }
        let many: Vec<([u8; 4], [u8; 2])> =
            (0..2_000u32).map(|n| ((n << 8 | 1).to_le_bytes(), [2; 2])).collect();
        assert!(client.put_many(&many).unwrap().iter().all(|put| *put == Ok(PutOutcome::Inserted)));
        other.put(b"own", b"value").unwrap();
        assert!(other.remove_owner(GONE).unwrap());
        let keys: Vec<[u8; 4]> = many.iter().map(|(key, _)| *key).chain((0..4).map(|n| [n; 4])).collect();
        assert!(other.get_many(&keys).unwrap().iter().all(|got| *got == Ok(None)));
        let mut present = Vec::new();
        other.contains_many(&keys, &mut present).unwrap();
        assert!(present.iter().all(|&bits| bits == 0));
        assert!(!other.contains(&keys[0]).unwrap() && other.get_two_sided(&keys[0]).unwrap().is_none());
        let left: Vec<_> = other.scan().map(|key| key.unwrap().key).collect();
        assert_eq!(left, [b"own"]);
        assert!(matches!(client.put(b"late", b""), Err(MutateError::OwnerGone { owner: GONE })));
        assert!(matches!(clone.insert(b"late", b""), Err(MutateError::OwnerGone { owner: GONE })));
        let item = changes.next(60 * SECOND).unwrap();
        assert!(matches!(item, Some(FeedItem::OwnerGone { owner: GONE, .. })), "{item:?}");
        until("they are removed", || server.stats().keys == 1);
        assert_eq!(changes.next(Duration::ZERO).unwrap(), None, "once");
        let mut again = None;
        until("the number is free", || {
            again = other.owner(OwnerOptions::new(GONE)).ok();
            again.is_some()
        });
        again.unwrap().put(b"late", b"").unwrap();
        assert!(matches!(client.put(b"late", b""), Err(MutateError::OwnerGone { owner: GONE })));
        let wrong = other.owner(OwnerOptions::new(0)).unwrap_err();
        let is_right =
            matches!(&wrong, ConnectError::Owner { source: PutError::OwnerNumber { given: 0 }, .. });
        assert!(is_right, "{wrong}");
    }
}

/// What an owner's client adds or appends to a key that was not there is its own, as what it puts; of a key that is there the
/// entry stays whose it is. Who joins is told whose each is, be it long or short.
#[test]
fn parts_are_their_owners() {
    for is_far in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (_server, address) = serve(dir.path(), 1, is_far);
        let mut other = Client::connect(&address).unwrap();
        let owner = |number| other.owner(OwnerOptions::new(number).absent_for(3600 * SECOND)).unwrap();
        let (mut one, mut two) = (owner(GONE), owner(STAYS));
        other.add(b"nobody", 1, Some(0)).unwrap();
        one.add(b"count", 1, Some(0)).unwrap();
        two.append(b"text", b"two", 100).unwrap();
        one.put(b"long", &[1; 2_000]).unwrap();
        two.put(b"longer", &[1; 3_000]).unwrap();
        for client in [&mut one, &mut two, &mut other] {
            client.add(b"nobody", 1, None).unwrap();
            client.add(b"count", 1, None).unwrap();
            client.append(b"text", b"more", 100).unwrap();
        }
        let whose: BTreeMap<Vec<u8>, u16> =
            [(&b"nobody"[..], 0), (b"count", GONE), (b"text", STAYS), (b"long", GONE), (b"longer", STAYS)]
                .map(|(key, owner)| (key.to_vec(), owner))
                .into();
        for (key, owner) in &whose {
            assert_eq!(other.life(key).unwrap().unwrap().owner, *owner, "{key:?}");
        }
        let (mut changes, mut copy) =
            (other.changes(FeedOptions::new().from(FeedFrom::Keys)).unwrap(), BTreeMap::new());
        hear(&mut changes, &mut copy);
        assert_eq!(copy, whose);
        other.remove_owner(GONE).unwrap();
        hear(&mut changes, &mut copy);
        copy.values().for_each(|owner| assert_ne!(*owner, GONE));
        assert_eq!(copy.len(), 3);
    }
}

/// The entries of a client that is gone go when its time is over, by themselves; those of one that has another session
/// stay. A follower hears of each owner.
#[test]
fn entries_go_with_their_clients() {
    [false, true].into_iter().for_each(goes_with_its_client);
}

fn goes_with_its_client(is_far: bool) {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), 2, is_far);
    let other = Client::connect(&address).unwrap();
    let mut changes = other.changes(FeedOptions::new()).unwrap();
    let owner = |number| other.owner(OwnerOptions::new(number).absent_for(100 * MILLI)).unwrap();
    let (mut one, mut two, _two) = (owner(1), owner(2), owner(2));
    one.put(b"one", b"").unwrap();
    two.put(b"two", b"").unwrap();
    drop((one, two));
    until("it goes", || server.stats().keys == 1);
    let mut heard = Vec::new();
    while let Some(item) = changes.next(Duration::ZERO).unwrap() {
        heard.push(item);
    }
    let came = |number, key: &[u8], owner| FeedItem::Came { number, key: key.to_vec(), value: None, owner };
    let expected = [came(1, b"one", 1), came(2, b"two", 2), FeedItem::OwnerGone { number: 3, owner: 1 }];
    assert_eq!(heard, expected);
    assert!(other.clone().contains(b"two").unwrap());
}

/// A client that only reads stays an owner when the server is replaced.
#[test]
fn sessions_begin_again_by_themselves() {
    [false, true].into_iter().for_each(session_begins_again);
}

fn session_begins_again(is_far: bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = Backing::File(dir.path().join("region"));
    let start = |address: &Address| {
        let config = config("windowed:8", TableSize::up_to(64 << 20));
        let config = ServerConfig::new(address.clone(), config).backing(file.clone());
        Server::start(config.start(StartMode::OpenOrCreate)).unwrap()
    };
    let server = start(&match is_far {
        true => Address::Tcp(TcpAddress::new("127.0.0.1", 0)),
        false => Address::Shm(dir.path().join("table")),
    });
    let address = server.address().clone();
    let other = Client::connect(&address).unwrap();
    let mut client = other.owner(OwnerOptions::new(GONE).absent_for(SECOND)).unwrap();
    client.put(b"key", b"value").unwrap();
    server.stop();
    let server = start(&address);
    let begun = Instant::now();
    while begun.elapsed() < 4 * SECOND {
        assert!(client.contains(b"key").unwrap());
        std::thread::sleep(20 * MILLI);
    }
    client.put(b"other", b"value").unwrap();
    assert_eq!(client.life(b"other").unwrap().unwrap().owner, GONE);
    drop(client);
    until("they go", || server.stats().keys == 0);
}

/// How long it takes to hide an owner with many entries: it is one store, whatever the number.
#[test]
fn hiding_takes_one_store() {
    let config =
        Config::new().size(TableSize::up_to(64 << 20)).key_max(8).value_max(8).life(true).owners(true);
    let (index, _) = index(&config);
    let session = index.owner(GONE, SECOND).unwrap();
    for n in 0..200_000 {
        index.put_of(&session, &key(n), b"", PutOptions::new()).unwrap();
    }
    let begun = Instant::now();
    index.remove_owner(GONE).unwrap();
    println!("{} entries hidden in {:?}", index.len(), begun.elapsed());
    assert!((0..1_000).all(|n| !index.reader().get_into(&key(n), &mut Vec::new()).unwrap()));
    let begun = Instant::now();
    while index.tidy() == Some(Duration::ZERO) {}
    println!("and removed in {:?}", begun.elapsed());
    assert!(index.is_empty());
}

/// A reader that judges by an entry's time asks for its owner's bit, too: it finds what neither has ended nor is
/// hidden. The server is gone before it has removed anything that ends; a usual reader finds that.
#[test]
fn exact_readers_ask_for_owners_too() {
    const KEYS: u64 = 120;
    let dir = tempfile::tempdir().unwrap();
    // The server must have stopped before the first of them ends. On a slow machine that takes longer.
    let left = (0..6).find_map(|n| {
        let (begun, time) = (Instant::now(), SECOND * (1 << n));
        let (address, region) = (Address::Shm(dir.path().join("table")), dir.path().join("region"));
        let config = config("windowed:8", TableSize::Slots(2_000));
        let _ = std::fs::remove_file(&region);
        let config = ServerConfig::new(address.clone(), config).backing(Backing::File(region.clone()));
        let server = Server::start(config).unwrap();
        let nobody = Client::connect(&address).unwrap();
        let client = |owner| nobody.owner(OwnerOptions::new(owner).absent_for(3600 * SECOND)).unwrap();
        let mut clients = [client(GONE), client(STAYS), nobody.clone()];
        for n in 0..KEYS {
            let ends = PutOptions::new().ttl(n.is_multiple_of(4).then_some(time));
            clients[n as usize % 3].put_with(&key(n), &value(n), ends).unwrap();
        }
        assert!(clients[1].remove_owner(GONE).unwrap());
        server.stop();
        (begun.elapsed() < time).then(|| std::thread::sleep(time + SECOND / 4))?;
        Some((address, region))
    });
    let (address, region) = left.expect("a server stops in half a minute");
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    for is_exact in [false, true] {
        let options = ClientOptions::new().region(region.clone()).exact_expiry(is_exact);
        let mut client = Client::connect_with(&address, options).unwrap();
        let is_there = |n: u64| owner_of(n) != GONE && !(is_exact && n.is_multiple_of(4));
        let many = client.get_many(&keys).unwrap();
        for (n, got) in (0..KEYS).zip(many) {
            let expected = is_there(n).then(|| value(n));
            assert_eq!(client.get(&key(n)).unwrap(), expected, "{n}, exact: {is_exact}");
            assert_eq!(got.unwrap(), expected, "{n} of many, exact: {is_exact}");
            assert_eq!(client.life(&key(n)).unwrap().is_some(), is_there(n), "{n}, exact: {is_exact}");
        }
    }
}

/// Hears what there is by now, and makes a copy of it: each key, and whose it is.
fn hear(changes: &mut ChangeFeed, copy: &mut BTreeMap<Vec<u8>, u16>) {
    while let Some(item) = changes.next(Duration::ZERO).unwrap() {
        match item {
            FeedItem::Key { key, owner, .. } => assert_eq!(copy.insert(key, owner), None, "shown once"),
            FeedItem::Came { key, owner, .. } => assert_eq!(copy.insert(key, owner), None, "it was there"),
            FeedItem::Replaced { key, owner, .. } => {
                assert!(copy.insert(key, owner).is_some(), "it was not there");
            }
            FeedItem::Left { key, .. } => assert!(copy.remove(&key).is_some(), "it was not there"),
            FeedItem::OwnerGone { owner, .. } => copy.retain(|_, its| *its != owner),
            FeedItem::Joined => {}
            other => panic!("{other:?}"),
        }
    }
}

/// J8: an owner is removed while one joins by a walk, one follows, and others change his entries. In the end, neither copy
/// has an entry of his.
#[test]
fn followers_keep_nothing_of_an_owner_who_has_gone() {
    const ROUNDS: u16 = 150;
    const ENTRIES: u64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("s"));
    let table = Config::new().size(TableSize::Keys(4_000)).key_max(8).value_max(8).life(true).owners(true);
    let server = Server::start(ServerConfig::new(address.clone(), table).workers(2)).unwrap();
    let mut operator = Client::connect(&address).unwrap();
    let mut other = Client::connect(&address).unwrap();
    let keys: Vec<([u8; 8], [u8; 8])> = (0..ENTRIES).map(|n| (key(n), 1u64.to_le_bytes())).collect();
    let mut met = [0; 2];
    for number in 1..=ROUNDS {
        let mut owner = operator.owner(OwnerOptions::new(number).absent_for(3_600 * SECOND)).unwrap();
        let (mut follows, mut copy) = (operator.changes(FeedOptions::new()).unwrap(), BTreeMap::new());
        owner.put_many(&keys).unwrap();
        let (begins, ends) = (Barrier::new(4), AtomicBool::new(false));
        let joined = std::thread::scope(|scope| {
            let (begins, ends, keys) = (&begins, &ends, &keys);
            let swaps = move |swap: &mut dyn FnMut(&[u8; 8], &[u8; 8]) -> bool| {
                begins.wait();
                let mut swapped = 0;
                for (key, value) in keys.iter().cycle().take_while(|_| !ends.load(Relaxed)) {
                    swapped += u64::from(swap(key, value));
                }
                swapped
            };
            let (index, other) = (server.index(), &mut other);
            let by_index = scope.spawn(move || {
                swaps(&mut |key, value| index.compare_and_swap(key, value, value) == Ok(SwapOutcome::Swapped))
            });
            let by_client = scope.spawn(move || {
                swaps(&mut |key, value| {
                    other.compare_and_swap(key, value, value).unwrap() == SwapOutcome::Swapped
                })
            });
            let joins = operator.clone();
            let joined = scope.spawn(move || {
                begins.wait();
                let mut changes = joins.changes(FeedOptions::new().from(FeedFrom::Keys)).unwrap();
                let mut copy = BTreeMap::new();
                hear(&mut changes, &mut copy);
                (changes, copy)
            });
            begins.wait();
            std::thread::sleep(Duration::from_micros(100 * (u64::from(number) % 30)));
            assert!(operator.remove_owner(number).unwrap());
            let joined = joined.join().unwrap();
            ends.store(true, Relaxed);
            met = [met[0] + by_index.join().unwrap(), met[1] + by_client.join().unwrap()];
            joined
        });
        let (mut joins, mut joined) = joined;
        hear(&mut follows, &mut copy);
        hear(&mut joins, &mut joined);
        let none = BTreeMap::new();
        assert_eq!((&copy, &joined), (&none, &none), "who followed, and who joined, in round {number}");
    }
    println!("swaps by the index, and by a client: {met:?}");
    assert!(met[0] > 0 && met[1] > 0, "{met:?}");
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    fn with_one() -> (Index, Clock, OwnerSession) {
        let (index, clock) = index(&config("windowed:8", sizes()[1]));
        let session = index.owner(GONE, SECOND).unwrap();
        index.put_of(&session, b"key", b"value", PutOptions::new()).unwrap();
        (index, clock, session)
    }

    /// O3: an insert finds an entry that no reader finds.
    fn is_in_the_way() -> bool {
        let (index, ..) = with_one();
        index.remove_owner(GONE).unwrap();
        index.put(b"key", b"", PutMode::Insert) == Ok(PutOutcome::Exists)
    }

    /// O4: the number is given again while a reader by the clock may still have seen an entry of the one before.
    fn is_given_early() -> bool {
        let (index, ..) = with_one();
        index.remove_owner(GONE).unwrap();
        while index.tidy() == Some(Duration::ZERO) {}
        index.tidy();
        index.owner(GONE, SECOND).is_ok()
    }

    /// O6: the time for which the server was stopped counts as an owner's.
    fn goes_with_the_server() -> bool {
        let (index, clock, session) = with_one();
        drop(session);
        index.tidy();
        clock.advance(100 * SECOND);
        index.tidy();
        index.tidy();
        !index.reader().get_into(b"key", &mut Vec::new()).unwrap()
    }

    #[test]
    fn broken_rules_are_noticed() {
        let cases: [(Rule, fn() -> bool); 3] = [
            (Rule::OwnerAbsent, is_in_the_way),
            (Rule::OwnerGrace, is_given_early),
            (Rule::OwnerAwake, goes_with_the_server),
        ];
        for (rule, is_wrong) in cases {
            assert!(!is_wrong(), "{rule:?}");
            let _broken = Broken::rule(rule);
            assert!(is_wrong(), "{rule:?} broken");
        }
    }
}
