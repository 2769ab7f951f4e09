//! Entries that end, and their numbers (V), by the index alone and through a server.

use oneread::embedded::{Clock, Index, KeyCursor};
use oneread::error::{MutateError, PutError};
use oneread::internals::index::{drive, driven};
use oneread::internals::region::{Backing, Region};
use oneread::layout::{Life, Seeds};
use oneread::snapshot::Snapshot;
use oneread::{
    Address, Client, Config, Evict, PutMode, PutOptions, PutOutcome, Server, ServerConfig, SwapOutcome,
    TableSize, TcpAddress,
};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const LAYOUTS: [&str; 4] = ["windowed:8", "bucketized:4", "farm", "cluster"];
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const KEYS: u64 = 900;

/// Slots of one line, in which lives take room from values, and an extent for what is longer.
fn config(layout: &str, size: TableSize) -> Config {
    let heap = matches!(size, TableSize::Slots(_)).then_some(8 << 20);
    let config = Config::new().layout(layout.parse().unwrap()).size(size).seeds(Seeds::from_number(5));
    config.key_max(8).value_max(3_000).inline_max(28).heap_bytes(heap).grace(Duration::ZERO).life(true)
}

fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(2_000), TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(256) }]
}

fn region(index: &Config) -> Region {
    Region::create(&Backing::Anonymous, index.geometry().unwrap().region_bytes()).unwrap()
}

/// An index whose clock stands still until it is moved.
fn index(config: &Config) -> (Index, Clock) {
    let clock = Clock::manual();
    (Index::create(region(config), config.geometry().unwrap(), clock.clone()).unwrap(), clock)
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).to_le_bytes()
}

/// Short values, and some that do not fit their slots.
fn value(n: u64, version: u8) -> Vec<u8> {
    vec![version; if n.is_multiple_of(7) { 3_000 } else { n as usize % 29 }]
}

fn ttl(time: Duration) -> PutOptions {
    PutOptions::new().ttl(time)
}

fn tidy(index: &Index) {
    while index.tidy() == Some(Duration::ZERO) {}
}

fn life(index: &Index, key: &[u8]) -> Option<Life> {
    index.life(key).unwrap()
}

/// Each key is there with its value until its time has come, and gone a second later; keys without a time stay.
/// Meanwhile the table grows, keys move, and values move to other memory.
#[test]
fn entries_end_in_their_time() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        let (index, clock) = index(&config(layout, size));
        let ends = |n: u64| (!n.is_multiple_of(3)).then(|| SECOND * (1 + n as u32 % 10));
        for n in 0..KEYS {
            let outcome = index.put_with(&key(n), &value(n, 1), PutOptions::new().ttl(ends(n)));
            assert_eq!(outcome, Ok(PutOutcome::Inserted), "{layout} {size:?} {n}");
        }
        let mut got = Vec::new();
        for second in 0..=12 {
            tidy(&index);
            for n in 0..KEYS {
                let is_there = index.reader().get_into(&key(n), &mut got).unwrap();
                let case = format!("{layout} {size:?}: key {n} after {second} s");
                match ends(n) {
                    Some(end) if SECOND * second > end => assert!(!is_there, "{case}"),
                    Some(end) if SECOND * second == end => {}
                    _ => assert!(is_there && got == value(n, 1), "{case}"),
                }
            }
            clock.advance(SECOND);
        }
        assert_eq!(index.len(), KEYS.div_ceil(3), "{layout} {size:?}");
    }
}

/// An entry gets another end, sooner, later or none. Its value and its number stay, also where the value is not in its slot,
/// and it ends in its new time. What is absent, or has ended and is still there, stays as it is.
#[test]
fn a_touch_sets_the_end_and_keeps_the_entry() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        let (index, clock) = index(&config(layout, size));
        let before = |n: u64| (!n.is_multiple_of(4)).then(|| 5 * SECOND);
        let after = |n: u64| [None, Some(2 * SECOND), Some(9 * SECOND)][n as usize % 3];
        for n in 0..KEYS {
            index.put_with(&key(n), &value(n, 1), PutOptions::new().ttl(before(n))).unwrap();
        }
        for n in 0..KEYS {
            let first = life(&index, &key(n)).unwrap();
            assert_eq!(index.touch(&key(n), after(n)), Ok(true), "{layout} {size:?} {n}");
            let now = life(&index, &key(n)).unwrap();
            assert_eq!((now.number, now.owner), (first.number, first.owner), "{layout} {size:?} {n}");
        }
        let ends = (0..KEYS).filter(|n| after(*n).is_some()).count() as u64;
        assert_eq!((index.touch(&key(KEYS), None), index.notes().ends), (Ok(false), ends));
        let mut got = Vec::new();
        for second in 0..=10 {
            tidy(&index);
            for n in (0..KEYS).filter(|n| after(*n) != Some(SECOND * second)) {
                let is_there = index.reader().get_into(&key(n), &mut got).unwrap();
                let lives = after(n).is_none_or(|end| SECOND * second < end);
                assert_eq!(is_there, lives, "{layout} {size:?}: key {n} after {second} s");
                assert!(!is_there || got == value(n, 1), "{layout} {size:?}: key {n} after {second} s");
            }
            clock.advance(SECOND);
        }
    }
    // It has ended, and nobody has tidied.
    let (ended, clock) = index(&config("windowed:8", sizes()[0]));
    ended.put_with(&key(0), b"value", ttl(SECOND)).unwrap();
    clock.advance(2 * SECOND);
    assert_eq!((ended.touch(&key(0), Some(DAY)), ended.len()), (Ok(false), 1));
    let without = Config::new().size(TableSize::Slots(100));
    let (index, _clock) = self::index(&without);
    assert_eq!(index.touch(b"key", None), Err(PutError::NoLife));
}

/// A number that comes gets its end; one that is there keeps the end that it has.
#[test]
fn a_number_gets_its_end_when_it_comes() {
    let (index, clock) = index(&config("windowed:8", sizes()[1]));
    let add = |ttl| {
        let absent = Some(oneread::NewNumber { value: 0, ttl });
        let add = oneread::PartChange::Increment { delta: 1, absent };
        index.change_part(b"hits", add, oneread::Tell::After).unwrap().value.unwrap()
    };
    assert_eq!(add(Some(5 * SECOND)), b"1");
    clock.advance(3 * SECOND);
    assert_eq!(add(Some(DAY)), b"2");
    clock.advance(3 * SECOND);
    tidy(&index);
    assert_eq!((life(&index, b"hits"), add(None)), (None, b"1".to_vec()));
}

/// Nobody tidies: changes end what has ended.
#[test]
fn changes_end_others_in_passing() {
    let (index, clock) = index(&config("windowed:8", sizes()[1]));
    for n in 0..KEYS {
        index.put_with(&key(n), b"ends", ttl(SECOND)).unwrap();
    }
    clock.advance(2 * SECOND);
    for n in 0..2_000 {
        index.put(&key(KEYS), &value(1, n as u8), PutMode::Upsert).unwrap();
    }
    assert_eq!(index.len(), 1);
}

/// There are as many notes of ends as entries that have one, whatever went before: entries that were evicted or removed,
/// put again for a shorter time or for none, or that have ended; in a table that keeps what has ended, too.
#[test]
fn ends_are_noted_of_what_is_there() {
    const PUTS: u64 = 40_000;
    let growing = TableSize::Growing { bytes_max: 400 << 10, segment_slots: Some(256) };
    for (size, keeps) in [sizes()[0], growing].into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let make = |evicts: bool| {
            let (index, clock) = index(&config("windowed:8", size));
            let index = if evicts { index.with_eviction(Evict::S3Fifo).unwrap() } else { index };
            (if keeps { drive(index) } else { index }, clock)
        };
        let (evicting, _) = make(true);
        for n in 0..PUTS {
            evicting.put_with(&key(n), b"value", ttl(DAY)).unwrap();
        }
        let gone = evicting.evictions().evicted();
        assert_eq!((evicting.notes().ends, gone), (evicting.len(), PUTS - evicting.len()), "{size:?}");
        let (again, clock) = make(false);
        for round in 0..PUTS / KEYS {
            for time in [Some(DAY), Some(SECOND), None, Some(SECOND)] {
                for n in 0..KEYS {
                    again.put_with(&key(n), b"value", PutOptions::new().ttl(time)).unwrap();
                }
                assert_eq!(again.notes().ends, if time.is_some() { KEYS } else { 0 }, "{size:?}: {round}");
            }
            if round.is_multiple_of(2) {
                (0..KEYS).for_each(|n| assert!(again.remove(&key(n)).unwrap()));
            }
            clock.advance(SECOND * 5 / 4);
            tidy(&again);
            driven(&again).see_ended(usize::MAX, |_| {});
            assert_eq!(again.notes().ends, again.len(), "{size:?}: {round}");
        }
    }
}

/// A table that keeps what has ended removes nothing by itself. It shows which entries have ended, each again a second later
/// until somebody has removed it.
#[test]
fn what_has_ended_may_be_somebody_elses_to_remove() {
    let (index, clock) = index(&config("windowed:8", sizes()[1]));
    let index = drive(index);
    let ended = |index: &Index, max| {
        let mut keys = Vec::new();
        assert_eq!(driven(index).see_ended(max, |key| keys.push(key.to_vec())), keys.len());
        keys.sort();
        keys
    };
    for n in 0..KEYS {
        index.put_with(&key(n), &value(n, 1), ttl(SECOND * (1 + n as u32 % 3))).unwrap();
    }
    index.put(&key(KEYS), b"stays", PutMode::Insert).unwrap();
    let left =
        |n: u64| Some(index.ends_at(&life(&index, &key(n)).unwrap())?.saturating_sub(index.age().unwrap()));
    assert_eq!([left(0), left(2), left(KEYS)], [Some(SECOND), Some(3 * SECOND), None]);
    assert!(ended(&index, 10).is_empty());
    clock.advance(SECOND * 5 / 2);
    for n in 0..2_000 {
        index.put(&key(KEYS), &value(1, n as u8), PutMode::Upsert).unwrap();
    }
    tidy(&index);
    assert_eq!((index.len(), left(1), index.expired()), (KEYS + 1, Some(Duration::ZERO), 0));
    // One of those that are due has another time by now.
    index.put_with(&key(1), b"again", ttl(2 * SECOND)).unwrap();
    let mut seen = ended(&index, 10);
    assert_eq!(seen.len(), 10);
    seen.extend(ended(&index, usize::MAX));
    seen.sort();
    let mut due: Vec<_> = (0..KEYS).filter(|n| n % 3 != 2 && *n != 1).map(|n| key(n).to_vec()).collect();
    due.sort();
    assert!(seen == due && ended(&index, usize::MAX).is_empty());
    for key in &due[1..] {
        assert!(index.remove(key).unwrap());
    }
    clock.advance(SECOND);
    let rest = ended(&index, usize::MAX);
    let third = (2..KEYS).step_by(3).map(|n| key(n).to_vec());
    let mut expected: Vec<_> = third.chain([due[0].clone()]).collect();
    expected.sort();
    assert_eq!(rest, expected);
}

/// An entry that is put with another one's end has the same one, as often as it is put so, and whenever.
#[test]
fn an_end_is_kept() {
    let (index, clock) = index(&config("windowed:8", sizes()[1]));
    let end = |index: &Index| index.ends_at(&life(index, &key(1)).unwrap());
    index.put_with(&key(1), b"value", ttl(3 * SECOND)).unwrap();
    let first = end(&index).unwrap();
    for _ in 0..290 {
        clock.advance(Duration::from_millis(10));
        driven(&index).put_until(&key(1), b"again", end(&index), 0).unwrap();
        assert_eq!(end(&index), Some(first));
    }
    tidy(&index);
    assert_eq!((index.len(), index.ends_at(&life(&index, &key(1)).unwrap())), (1, Some(first)));
    clock.advance(SECOND / 8);
    tidy(&index);
    assert_eq!(index.len(), 0);
    // Not in between, over, beyond all, never.
    driven(&index).put_until(&key(1), b"", Some(4 * SECOND + Duration::from_nanos(1)), 0).unwrap();
    assert_eq!(end(&index), Some(4 * SECOND + SECOND / 8));
    driven(&index).put_until(&key(1), b"", Some(SECOND), 0).unwrap();
    assert_eq!(end(&index), Some(3 * SECOND + SECOND / 8));
    driven(&index).put_until(&key(1), b"", Some(Duration::MAX), 0).unwrap();
    assert_eq!(end(&index), Some(SECOND / 8 * u32::MAX));
    driven(&index).put_until(&key(1), b"", None, 0).unwrap();
    assert_eq!(end(&index), None);
    assert!(
        driven(&index).can_live(SECOND)
            && ![Duration::ZERO, Duration::MAX].map(|ttl| driven(&index).can_live(ttl)).contains(&true)
    );
}

/// The number of an owner goes with an entry, and means nothing to a table that knows no owners. A scan shows those that have
/// one; a table with owners refuses it.
#[test]
fn an_owner_of_somebody_elses_is_kept() {
    for size in sizes() {
        let (index, clock) = index(&config("windowed:8", size));
        for n in 0..KEYS {
            let (end, owner) = (Some(index.age().unwrap() + SECOND).filter(|_| n % 2 == 0), (n % 3) as u16);
            driven(&index).put_until(&key(n), &value(0, n as u8), end, owner).unwrap();
        }
        index.put(&key(1), b"nobody's", PutMode::Update).unwrap();
        let of = |n: u64| life(&index, &key(n)).unwrap().owner;
        assert_eq!([of(0), of(1), of(2)], [0, 0, 2]);
        let (mut cursor, mut owned) = (KeyCursor::default(), Vec::new());
        while driven(&index).scan_owned(&mut cursor, |key, owner| owned.push((key.to_vec(), owner))) {}
        owned.sort();
        let mut expected: Vec<_> =
            (2..KEYS).filter(|n| n % 3 != 0).map(|n| (key(n).to_vec(), (n % 3) as u16)).collect();
        expected.sort();
        assert!(owned == expected);
        assert_eq!(
            driven(&index).put_until(&key(0), b"", None, u16::MAX),
            Err(PutError::OwnerNumber { given: u16::MAX })
        );
        clock.advance(2 * SECOND);
        tidy(&index);
        assert_eq!(index.len(), KEYS / 2);
    }
    let (index, _) = index(&config("windowed:8", sizes()[0]).owners(true));
    assert_eq!(driven(&index).put_until(&key(0), b"", None, 1), Err(PutError::OwnerNumber { given: 1 }));
    driven(&index).put_until(&key(0), b"", None, 0).unwrap();
}

/// A time that was noted for an entry does not end the one that has come in its place: not one with another time,
/// nor one without. A shorter time counts at once.
#[test]
fn another_time_counts_instead() {
    for layout in LAYOUTS {
        let (index, clock) = index(&config(layout, sizes()[1]));
        let is_there = |n| index.reader().get_into(&key(n), &mut Vec::new()).unwrap();
        for n in 0..6 {
            index.put_with(&key(n), b"", ttl(10 * SECOND)).unwrap();
        }
        index.put_with(&key(1), b"", ttl(20 * SECOND)).unwrap();
        index.put(&key(2), b"", PutMode::Update).unwrap();
        index.put_with(&key(3), b"", ttl(SECOND)).unwrap();
        assert_eq!(index.compare_and_swap(&key(4), b"", b"swapped"), Ok(SwapOutcome::Swapped));
        assert_eq!(index.remove(&key(5)), Ok(true));
        index.put(&key(5), b"", PutMode::Insert).unwrap();
        let steps: [(u64, [bool; 6]); 3] = [
            (2, [true, true, true, false, true, true]),
            (9, [false, true, true, false, false, true]),
            (10, [false, false, true, false, false, true]),
        ];
        for (seconds, there) in steps {
            clock.advance(SECOND * seconds as u32);
            tidy(&index);
            assert_eq!([0, 1, 2, 3, 4, 5].map(is_there), there, "{layout}: {seconds} s later");
        }
    }
}

/// V1: an entry keeps its number while it moves, and gets another with each value. No number comes twice, also not
/// after a takeover. What is noted of its end is noted again by the next server.
#[test]
fn numbers_and_times_outlive_the_server() {
    for (layout, size) in LAYOUTS.iter().flat_map(|layout| sizes().map(|size| (layout, size))) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("region");
        let (config, clock) = (config(layout, size), Clock::manual());
        let (geometry, kept) = (config.geometry().unwrap(), Backing::File(file.clone()));
        let memory = Region::create(&kept, geometry.region_bytes()).unwrap();
        let index = Index::create(memory, geometry, clock.clone()).unwrap();
        let mut numbers = std::collections::BTreeSet::new();
        let all = |index: &Index| (0..KEYS).map(|n| life(index, &key(n)).unwrap()).collect::<Vec<_>>();
        for n in 0..KEYS {
            index.put_with(&key(n), &value(n, 1), ttl(SECOND * (10 + n as u32 % 10))).unwrap();
        }
        let first = all(&index);
        assert!(first.iter().all(|life| numbers.insert(life.number)), "{layout}");
        for n in 0..KEYS / 2 {
            let outcome = match n % 2 {
                0 => index.put(&key(n), &value(n, 1), PutMode::Update).map(|_| ()),
                _ => index.compare_and_swap(&key(n), &value(n, 1), &value(n, 1)).map(|_| ()),
            };
            outcome.unwrap();
        }
        let second = all(&index);
        for (n, (before, now)) in first.iter().zip(&second).enumerate() {
            match n as u64 {
                n if n >= KEYS / 2 => assert_eq!(before, now, "{layout} {n}"),
                n if n % 2 == 0 => assert!(now.expiry == 0 && numbers.insert(now.number), "{layout} {n}"),
                _ => assert!(now.expiry == before.expiry && numbers.insert(now.number), "{layout} {n}"),
            }
        }
        // The server is gone without a word.
        drop(index);
        let memory = Region::open(&file).unwrap();
        let (next, found) = Index::open(memory, clock.clone()).unwrap();
        assert_eq!((found.keys, all(&next)), (KEYS, second), "{layout} {size:?}");
        next.put(&key(KEYS), b"", PutMode::Insert).unwrap();
        assert!(numbers.insert(life(&next, &key(KEYS)).unwrap().number), "{layout}");
        clock.advance(15 * SECOND + SECOND / 2);
        tidy(&next);
        for n in 0..KEYS {
            let is_there = (n < KEYS / 2 && n % 2 == 0) || 10 + n % 10 > 15;
            assert_eq!(life(&next, &key(n)).is_some(), is_there, "{layout} {size:?} {n}");
        }
    }
}

/// A snapshot carries what is left of each time, and is refused by a table whose entries have none.
#[test]
fn snapshots_carry_times() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let (index, _) = index(&config("windowed:8", sizes()[1]));
    for n in 0..KEYS {
        let time = (n % 2 == 0).then(|| SECOND * (100 + n as u32));
        index.put_with(&key(n), &value(n, 1), PutOptions::new().ttl(time)).unwrap();
    }
    index.save(&path, &mut |_, _| true).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    for size in sizes() {
        let (other, clock) = self::index(&config("farm", size));
        clock.advance(1_000 * SECOND);
        assert_eq!(other.restore_from(&snapshot, &mut |_, _| {}).unwrap().keys, KEYS);
        for n in 0..KEYS {
            let life = life(&other, &key(n)).unwrap();
            let left = u64::from(life.expiry) / 8;
            // This has not taken a minute.
            let expected = 1_000 + 100 + n;
            let is_right =
                if n % 2 == 0 { (expected - 60..=expected).contains(&left) } else { life.expiry == 0 };
            assert!(is_right, "key {n} ends after {left} s");
        }
    }
    let (plain, _) = self::index(&config("windowed:8", sizes()[0]).life(false));
    let refused = plain.restore_from(&snapshot, &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("Config::life"), "{refused}");
    assert!(plain.is_empty());
}

/// However many end together, one call ends some thousands of them, and says whether there are more; tidying in passing
/// ends a hundred.
#[test]
fn many_that_end_together_go_in_large_steps() {
    const MANY: u64 = 10_000;
    for size in [TableSize::Keys(MANY), TableSize::Growing { bytes_max: 8 << 20, segment_slots: None }] {
        let (index, clock) = index(&config("windowed:8", size));
        for n in 0..MANY {
            // What is put by a change that looks for ended entries ends none: their time has not come.
            index.put_with(&key(n), b"", ttl(SECOND)).unwrap();
        }
        assert!(!index.end_due() && index.len() == MANY);
        clock.advance(2 * SECOND);
        assert_eq!(index.tidy(), Some(Duration::ZERO));
        assert_eq!(index.len(), MANY - 100, "{size:?}");
        let steps = (0..100).take_while(|_| index.end_due()).count();
        assert!(
            index.is_empty() && (1..=3).contains(&steps),
            "{size:?}: {steps} steps, {} left",
            index.len()
        );
    }
}

/// Times that no entry can have, and tables whose entries have none, are refused, and change nothing.
#[test]
fn impossible_times_are_refused() {
    let (alive, _) = index(&config("windowed:8", sizes()[0]));
    for given in [Duration::ZERO, Duration::from_secs(1 << 30), Duration::MAX] {
        assert_eq!(alive.put_with(b"key", b"", ttl(given)), Err(PutError::TimeToLive { given }));
    }
    assert_eq!(alive.put_with(b"key", b"", ttl(Duration::from_nanos(1))), Ok(PutOutcome::Inserted));
    let (plain, _) = index(&config("windowed:8", sizes()[0]).life(false));
    assert_eq!(plain.put_with(b"key", b"", ttl(SECOND)), Err(PutError::NoLife));
    assert!(plain.is_empty() && life(&plain, b"key").is_none());
}

/// Through a server: a time to live on every way that a value goes, the number of an entry, whether it is still the
/// same, and what is left of its time.
#[test]
fn clients_have_entries_that_end() {
    let dir = tempfile::tempdir().unwrap();
    for address in [Address::Shm(dir.path().join("table")), Address::Tcp(TcpAddress::new("127.0.0.1", 0))] {
        entries_end_for_clients_at(address);
    }
}

fn entries_end_for_clients_at(address: Address) {
    let table = Config::new().key_max(16).value_max(1 << 20).size(TableSize::up_to(64 << 20)).life(true);
    let is_far = matches!(address, Address::Tcp(_));
    let server = Server::start(ServerConfig::new(address, table)).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    let begun = Instant::now();
    let values = [vec![1; 3], vec![2; 4_000], vec![3; 600_000]];
    for (n, value) in values.iter().enumerate() {
        assert_eq!(client.put_with(&[n as u8; 4], value, ttl(2 * SECOND)).unwrap(), PutOutcome::Inserted);
    }
    client.put(b"stays", b"here").unwrap();
    let insert = ttl(SECOND).mode(PutMode::Insert);
    assert_eq!(client.put_with(b"stays", b"there", insert).unwrap(), PutOutcome::Exists);
    let keys: Vec<Vec<u8>> =
        (0..3).map(|n| vec![n; 4]).chain([b"stays".to_vec(), b"none".to_vec()]).collect();
    let lives: Vec<_> = keys.iter().map(|key| client.life(key).unwrap()).collect();
    assert_eq!(lives[4], None);
    for life in lives[..3].iter().flatten() {
        assert_ne!(life.expiry, 0);
        let left = client.ends_in(life);
        // Over a network the client does not have the server's clock.
        let is_right = |left| left <= 2 * SECOND + SECOND / 8 && left + begun.elapsed() >= 2 * SECOND;
        assert!(left.map_or(is_far, is_right), "{left:?}");
    }
    assert_eq!(client.ends_in(&lives[3].unwrap()), None);
    let numbers: Vec<u64> = lives.iter().map(|life| life.map_or(0, |life| life.number)).collect();
    // Values and lives in one batch: of slots, of longer values, of a key that is absent, and up to a break.
    let mut told = vec![None; keys.len()];
    let batch = client.get_many_with_life(&keys, |n, answer| {
        told[n] = Some(answer.unwrap().map(|(value, life)| (value.to_vec(), life)));
        ControlFlow::Continue(())
    });
    batch.unwrap();
    for (n, told) in told.into_iter().enumerate() {
        let expected = lives[n].map(|life| (client.get(&keys[n]).unwrap().unwrap(), Some(life)));
        assert_eq!(told, Some(expected), "{n}");
    }
    let mut calls = 0;
    let broken_off = client.get_many_with_life(&keys, |_, _| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert!(broken_off.is_ok() && calls == 1, "{calls}");
    assert_eq!(client.revalidate(&keys, &numbers).unwrap(), [true, true, true, true, false]);
    client.put(b"stays", b"here").unwrap();
    assert_eq!(client.revalidate(&keys, &numbers).unwrap(), [true, true, true, false, false]);
    assert_eq!(client.get(&keys[2]).unwrap().as_deref(), Some(&values[2][..]));
    let given = Duration::ZERO;
    assert!(matches!(
        client.put_with(b"key", b"", ttl(given)),
        Err(MutateError::TimeToLive { given: Duration::ZERO })
    ));
    // By itself: the server is idle.
    while server.stats().keys > 1 {
        assert!(begun.elapsed() < 60 * SECOND, "they are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= 2 * SECOND, "too early");
    assert_eq!(client.revalidate(&keys, &numbers).unwrap(), [false; 5]);
    assert_eq!(client.get(b"stays").unwrap().as_deref(), Some(&b"here"[..]));
}

/// What a server left that ended with these keys in its table, and no longer ends them: `keys` of them end at once, in
/// their slots and outside; one stays.
struct Left {
    _dir: tempfile::TempDir,
    address: Address,
    region: std::path::PathBuf,
}

impl Left {
    fn new(keys: u64) -> Left {
        // The server must have stopped before the first of them ends. On a slow machine that takes longer.
        (0..6).find_map(|n| Left::ending_after(keys, SECOND / 2 * (1 << n))).expect("a server stops in 16 s")
    }

    /// `None` if the server was still there when the first key ended.
    fn ending_after(keys: u64, time: Duration) -> Option<Left> {
        let dir = tempfile::tempdir().unwrap();
        let (address, region) = (Address::Shm(dir.path().join("sock")), dir.path().join("region"));
        let config = ServerConfig::new(address.clone(), config("windowed:8", sizes()[1]));
        let server = Server::start(config.backing(Backing::File(region.clone()))).unwrap();
        server.index().put(&key(keys), b"stays", PutMode::Insert).unwrap();
        let begun = Instant::now();
        for n in 0..keys {
            server.index().put_with(&key(n), &value(n, 1), ttl(time)).unwrap();
        }
        server.stop();
        let put_within = begun.elapsed();
        if put_within >= time {
            return None;
        }
        // Its end is rounded up to an eighth of a second.
        std::thread::sleep(time + SECOND / 4);
        Some(Left { _dir: dir, address, region })
    }

    fn reader(&self, is_exact: bool) -> Client {
        let options = oneread::ClientOptions::new().region(self.region.clone()).exact_expiry(is_exact);
        Client::connect_with(&self.address, options).unwrap()
    }
}

/// Without a server nobody removes what has ended. A usual reader finds it; by no call does an exact one. What has not
/// ended both find.
#[test]
fn exact_readers_find_nothing_that_has_ended() {
    const KEYS: u64 = 30;
    let left = Left::new(KEYS);
    let keys: Vec<[u8; 8]> = (0..=KEYS).map(key).collect();
    for is_exact in [false, true] {
        let mut client = left.reader(is_exact);
        for n in 0..=KEYS {
            let is_there = n == KEYS || !is_exact;
            let expected = is_there.then(|| if n == KEYS { b"stays".to_vec() } else { value(n, 1) });
            let len = expected.as_ref().map(Vec::len);
            assert_eq!(client.get(&key(n)).unwrap(), expected, "{n}");
            assert_eq!(client.contains(&key(n)).unwrap(), is_there, "{n}");
            assert_eq!(client.value_len(&key(n)).unwrap(), len, "{n}");
            let mut part = Vec::new();
            assert_eq!(client.get_range(&key(n), 0..2, &mut part).unwrap(), len, "{n}");
            assert_eq!(client.life(&key(n)).unwrap().is_some(), is_there, "{n}");
        }
        let there = if is_exact { 1 } else { keys.len() };
        let many = client.get_many(&keys).unwrap();
        assert_eq!(many.iter().filter(|value| matches!(value, Ok(Some(_)))).count(), there);
        assert_eq!(many[KEYS as usize].as_ref().unwrap().as_deref(), Some(&b"stays"[..]));
        let mut present = Vec::new();
        client.contains_many(&keys, &mut present).unwrap();
        assert_eq!(present.iter().map(|word| word.count_ones()).sum::<u32>(), there as u32);
        // A key that the table cannot hold is an error of its own.
        let many = client.get_many(&[&[1; 9][..], &key(KEYS)]).unwrap();
        assert!(many[0].is_err() && many[1].as_ref().unwrap().is_some(), "{many:?}");
    }
}

/// A client elsewhere has no clock to be exact by, and says so.
#[test]
fn exact_readers_are_on_shm() {
    for address in ["verbs://127.0.0.1:1", "tcp://127.0.0.1:1"] {
        let options = oneread::ClientOptions::new().exact_expiry(true);
        let refused = Client::connect_with(&address.parse().unwrap(), options).unwrap_err();
        assert!(matches!(refused, oneread::ConnectError::ExactExpiry { .. }), "{refused}");
    }
}

/// A table's own time to live counts where a put has none, on every way that a key comes, and goes with no table to
/// the next server. A time that cannot be, and a table whose entries have no life, are refused at the start.
#[test]
fn a_table_has_a_time_to_live() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("sock"));
    let server = |config: Config, ttl| Server::start(ServerConfig::new(address.clone(), config).ttl(ttl));
    let table = Config::new().key_max(16).value_max(64).size(TableSize::Keys(1_000)).life(true);
    for (config, ttl) in [(table, Duration::ZERO), (table, Duration::MAX), (table.life(false), SECOND)] {
        let refused = server(config, ttl).unwrap_err();
        assert!(matches!(refused, oneread::ServeError::TimeToLive(_)), "{refused}");
    }
    let server = server(table, SECOND).unwrap();
    let mut client = Client::connect(&address).unwrap();
    let begun = Instant::now();
    client.put(b"put", b"").unwrap();
    client.insert_many(&[("many", "")]).unwrap();
    client.add(b"part", 1, Some(0)).unwrap();
    let longer = ttl(1_000 * SECOND);
    client.put_with(b"longer", b"", longer).unwrap();
    client.put_many_with(longer, &[("longer too", "")], |_, put| assert!(put.is_ok())).unwrap();
    for (name, is_longer) in
        [("put", false), ("many", false), ("part", false), ("longer", true), ("longer too", true)]
    {
        let life = client.life(name.as_bytes()).unwrap().expect(name);
        let left = client.ends_in(&life).expect(name);
        assert_eq!(left > 500 * SECOND, is_longer, "{name}: {left:?}");
    }
    while server.stats().keys > 2 {
        assert!(begun.elapsed() < 60 * SECOND, "they are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= SECOND, "too early");
    assert!(client.contains(b"longer").unwrap() && client.contains(b"longer too").unwrap());
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::meanwhile::Meanwhile;
    use oneread::internals::faults::{Broken, Rule};
    use oneread::internals::index::Seams;
    use std::sync::Arc;

    /// V1: who asks whether an entry is the same is told so although it has another value.
    fn another_value_looks_the_same() -> bool {
        let (index, _) = index(&config("windowed:8", sizes()[1]));
        let number = || life(&index, b"key").unwrap().number;
        index.put(b"key", b"one", PutMode::Upsert).unwrap();
        let first = number();
        index.put(b"key", b"two", PutMode::Upsert).unwrap();
        number() == first
    }

    #[test]
    fn numbers_tell_values_apart() {
        assert!(!another_value_looks_the_same());
        let _broken = Broken::rule(Rule::EntryNumber);
        assert!(another_value_looks_the_same());
    }

    /// V4: an exact reader finds what has ended.
    #[test]
    fn exact_readers_judge() {
        let left = Left::new(1);
        let mut client = left.reader(true);
        assert_eq!(client.get(&key(0)).unwrap(), None);
        let _broken = Broken::rule(Rule::ReaderExpiry);
        assert!(client.get(&key(0)).unwrap().is_some());
    }

    /// V3: the time of an entry that waits is noted, has come, and finds nothing.
    fn stays_for_ever() -> bool {
        let (index, clock) = index(&config("windowed:8", sizes()[1]));
        let waits = Arc::new(Meanwhile::default());
        let index = Arc::new(index.with_seams(Arc::clone(&waits) as Arc<dyn Seams>));
        let (other, of_other) = (Arc::downgrade(&index), clock.clone());
        waits.set(move || {
            of_other.advance(2 * SECOND);
            tidy(&other.upgrade().unwrap());
        });
        index.put_with(b"key", b"", ttl(SECOND)).unwrap();
        clock.advance(100 * SECOND);
        tidy(&index);
        life(&index, b"key").is_some()
    }

    #[test]
    fn times_are_noted_when_entries_are_there() {
        assert!(!stays_for_ever());
    }

    /// V3: what has left is noted for ever.
    #[test]
    fn ends_of_what_has_left_are_forgotten() {
        let left = || {
            let (index, _) = index(&config("windowed:8", sizes()[0]));
            for n in 0..KEYS {
                index.put_with(&key(n), b"", ttl(DAY)).unwrap();
                assert!(index.remove(&key(n)).unwrap());
            }
            index.notes().ends
        };
        assert_eq!(left(), 0);
        let _broken = Broken::rule(Rule::EndForgotten);
        assert_eq!(left(), KEYS);
    }
}
