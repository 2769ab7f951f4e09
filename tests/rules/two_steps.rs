//! Puts in two steps (P), by the index alone and through a server.

use crate::common::Numbers;
use crate::meanwhile::Meanwhile;
use oneread::embedded::{Clock, Index, StartSession};
use oneread::error::{MutateError, PutError, StartBound};
use oneread::internals::index::Seams;
use oneread::internals::region::{Backing, Region};
use oneread::layout::Seeds;
use oneread::snapshot::Snapshot;
use oneread::stats::StartCounts;
use oneread::{
    Address, Client, Config, Evict, FeedItem, FeedOptions, LeftCause, OwnerOptions, PutMode, PutOptions,
    PutOutcome, Server, ServerConfig, StartLimits, SwapOutcome, TableSize, TcpAddress,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LAYOUTS: [&str; 4] = ["windowed:8", "bucketized:4", "farm", "cluster"];
const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(2);
const KEY: &[u8] = b"key";
/// One that does not fit its slot.
const LONG_KEY: &[u8] = b"a key that does not fit its slot, with a life behind it";

/// A table for such keys.
fn config(layout: &str, size: TableSize, key: &[u8]) -> Config {
    let key_max = if key == KEY { 8 } else { LONG_KEY.len() };
    let heap = matches!(size, TableSize::Slots(_)).then_some(1 << 20);
    let config = Config::new().layout(layout.parse().unwrap()).size(size).seeds(Seeds::from_number(5));
    let config =
        config.key_max(key_max).key_inline(8).value_max(3_000).inline_max(28).heap_bytes(heap).grace(GRACE);
    config.life(true).owners(true)
}

fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(128), TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(128) }]
}

fn all() -> impl Iterator<Item = (&'static str, TableSize, &'static [u8])> {
    let tables = LAYOUTS.into_iter().flat_map(|layout| sizes().map(|size| (layout, size)));
    tables.flat_map(|(layout, size)| [KEY, LONG_KEY].map(|key| (layout, size, key)))
}

fn index(config: &Config) -> (Index, Clock) {
    let (clock, geometry) = (Clock::manual(), config.geometry().unwrap());
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

fn got(index: &Index, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    index.reader().get_into(key, &mut value).unwrap().then_some(value)
}

fn tidy(index: &Index) {
    while index.tidy() == Some(Duration::ZERO) {}
}

fn commit(
    index: &Index,
    session: &StartSession,
    key: &[u8],
    ticket: u64,
    value: &[u8],
) -> Result<PutOutcome, PutError> {
    value.chunks(1_000).try_for_each(|bytes| index.put_piece(session, key, ticket, bytes))?;
    index.put_commit(session, key, ticket, None)
}

/// Short, and so long that it has memory of its own.
const LENGTHS: [usize; 3] = [0, 20, 3_000];

/// Until it is committed, everybody sees what was there before; then the value.
#[test]
fn a_value_is_seen_when_it_is_committed() {
    for (layout, size, key) in all() {
        let (index, _) = index(&config(layout, size, key));
        let session = index.start_session().unwrap();
        for (nth, len) in LENGTHS.into_iter().enumerate() {
            let case = format!("{layout} {size:?} {} bytes of key: {len}", key.len());
            let value = vec![1 + nth as u8; len];
            let ticket = index.put_start(&session, key, len, SECOND).unwrap();
            assert_eq!(got(&index, key), None, "{case}");
            assert_eq!(index.put(key, b"", PutMode::Update), Ok(PutOutcome::Missing), "{case}");
            assert_eq!(index.remove(key), Ok(false), "{case}");
            let again = index.put_start(&session, key, 1, SECOND);
            assert_eq!(again, Err(PutError::AlreadyStarted), "{case}");
            assert_eq!(commit(&index, &session, key, ticket, &value), Ok(PutOutcome::Inserted), "{case}");
            assert_eq!(got(&index, key).as_ref(), Some(&value), "{case}");
            assert_eq!(index.put_commit(&session, key, ticket, None), Err(PutError::NotStarted), "{case}");
            // Over a value that is there, which others may change meanwhile.
            let ticket = index.put_start(&session, key, 5, SECOND).unwrap();
            assert_eq!(got(&index, key).as_ref(), Some(&value), "{case}");
            index.put(key, b"between", PutMode::Update).unwrap();
            assert_eq!(got(&index, key).as_deref(), Some(&b"between"[..]), "{case}");
            assert_eq!(commit(&index, &session, key, ticket, b"after"), Ok(PutOutcome::Updated), "{case}");
            assert_eq!(got(&index, key).as_deref(), Some(&b"after"[..]), "{case}");
            assert_eq!((index.remove(key), index.len()), (Ok(true), 0), "{case}");
        }
    }
}

/// A commit finds its room, however full the table is by then, and whatever became of the key.
#[test]
fn a_commit_needs_no_room() {
    type Meanwhile = fn(&Index, &Clock, &[u8]);
    let meanwhile: [(&str, bool, Meanwhile); 5] = [
        ("nothing", false, |_, _, _| {}),
        ("removed", true, |index, _, key| assert_eq!(index.remove(key), Ok(true))),
        ("removed if", true, |index, _, key| {
            assert_eq!(index.remove_if(key, b"old"), Ok(SwapOutcome::Swapped))
        }),
        ("put and removed", false, |index, _, key| {
            assert_eq!(index.put(key, b"other", PutMode::Insert), Ok(PutOutcome::Inserted));
            assert_eq!(index.remove(key), Ok(true));
        }),
        ("ended", true, |index, clock, key| {
            index.put_with(key, b"old", PutOptions::new().ttl(SECOND)).unwrap();
            clock.advance(2 * SECOND);
            tidy(index);
        }),
    ];
    for ((layout, size, key), len) in all().flat_map(|of| [20, 3_000].map(|len| (of, len))) {
        for (what, is_there, act) in meanwhile {
            let case = format!("{layout} {size:?} {} bytes of key: {len}, {what}", key.len());
            let (index, clock) = index(&config(layout, size, key));
            let session = index.start_session().unwrap();
            if is_there {
                index.put(key, b"old", PutMode::Insert).unwrap();
            }
            let ticket = index.put_start(&session, key, len, 100 * SECOND).unwrap();
            act(&index, &clock, key);
            // Others take all that is left.
            let mut n = 0u64;
            let mut refused = 0;
            while refused < 10 {
                n += 1;
                let value = vec![7; if n.is_multiple_of(2) { 3_000 } else { 20 }];
                refused += u32::from(index.put(&n.to_le_bytes(), &value, PutMode::Insert).is_err());
                clock.advance(GRACE / 4);
            }
            assert_eq!(got(&index, key), None, "{case}");
            let value = vec![9; len];
            assert_eq!(commit(&index, &session, key, ticket, &value), Ok(PutOutcome::Inserted), "{case}");
            assert_eq!(got(&index, key), Some(value), "{case}");
        }
    }
}

/// What is not committed ends: given up, with its session, or with its time. It leaves nothing.
#[test]
fn what_is_not_committed_ends() {
    for (layout, size, key) in all() {
        for is_there in [false, true] {
            let case = format!("{layout} {size:?} {} bytes of key: {is_there}", key.len());
            let (index, clock) = index(&config(layout, size, key));
            if is_there {
                index.put(key, b"old", PutMode::Insert).unwrap();
            }
            let live_bytes = index.heap().live_bytes;
            let before = |what: &str| {
                tidy(&index);
                assert_eq!(got(&index, key).is_some(), is_there, "{case}: {what}");
                assert_eq!(index.len(), u64::from(is_there), "{case}: {what}");
                clock.advance(SECOND);
                tidy(&index);
                assert_eq!(index.heap().live_bytes, live_bytes, "{case}: {what}");
            };
            let session = index.start_session().unwrap();
            let ticket = index.put_start(&session, key, 3_000, SECOND).unwrap();
            assert_eq!(index.put_abort(&session, key, ticket), Ok(true), "{case}");
            assert_eq!(index.put_abort(&session, key, ticket), Ok(false), "{case}");
            before("given up");
            let ticket = index.put_start(&session, key, 3_000, SECOND).unwrap();
            clock.advance(SECOND);
            before("its time was over");
            assert_eq!(index.put_commit(&session, key, ticket, None), Err(PutError::NotStarted), "{case}");
            let other = index.start_session().unwrap();
            let ticket = index.put_start(&other, key, 3_000, 100 * SECOND).unwrap();
            // Another's.
            assert_eq!(index.put_commit(&session, key, ticket, None), Err(PutError::NotStarted), "{case}");
            assert_eq!(index.put_piece(&session, key, ticket, b""), Err(PutError::NotStarted), "{case}");
            assert_eq!(index.put_abort(&session, key, ticket), Ok(false), "{case}");
            drop(other);
            // At once: nobody need tidy first.
            let ticket = index.put_start(&session, key, 3_000, SECOND).unwrap();
            assert_eq!(index.put_abort(&session, key, ticket), Ok(true), "{case}");
            before("its session has ended");
            index.put_start(&session, key, 3_000, SECOND).unwrap();
            let early = index.put_start(&session, key, 3_000, SECOND);
            assert_eq!(early, Err(PutError::AlreadyStarted), "{case}");
            clock.advance(SECOND);
            let ticket = index.put_start(&session, key, 3_000, SECOND).unwrap();
            assert_eq!(index.put_abort(&session, key, ticket), Ok(true), "{case}");
            before("its time was over, and it was started again");
            for stated in [5, 3_000] {
                let ticket = index.put_start(&session, key, stated, SECOND).unwrap();
                let wrong = |given| Err(PutError::StartedLength { given, stated });
                let long = index.put_piece(&session, key, ticket, &vec![6; stated + 1]);
                assert_eq!(long, wrong(stated + 1), "{case}");
                index.put_piece(&session, key, ticket, &vec![4; stated - 1]).unwrap();
                let short = index.put_commit(&session, key, ticket, None);
                assert_eq!(short.map(drop), wrong(stated - 1), "{case}");
                assert_eq!(index.put_abort(&session, key, ticket), Ok(true), "{case}");
                before("too short");
            }
        }
    }
}

/// The next server finds nothing of what was not committed, and may start it again at once. A snapshot has none of it.
#[test]
fn a_takeover_ends_it() {
    for (layout, size, key) in all() {
        let case = format!("{layout} {size:?} {} bytes of key", key.len());
        let dir = tempfile::tempdir().unwrap();
        let (file, saved) = (dir.path().join("region"), dir.path().join("saved"));
        let (config, clock) = (config(layout, size, key), Clock::manual());
        let (geometry, kept) = (config.geometry().unwrap(), Backing::File(file.clone()));
        let memory = Region::create(&kept, geometry.region_bytes()).unwrap();
        let index = Index::create(memory, geometry, clock.clone()).unwrap();
        let session = index.start_session().unwrap();
        index.put(b"stays", b"", PutMode::Insert).unwrap();
        for n in 0..20u64 {
            index.put_start(&session, &n.to_le_bytes(), 20, SECOND).unwrap();
        }
        index.put_start(&session, key, 3_000, SECOND).unwrap();
        assert_eq!(index.save(&saved, &mut |_, _| true).unwrap().keys, 1, "{case}");
        assert!(Snapshot::open(&saved).is_ok());
        // Without a word.
        std::mem::forget(session);
        drop(index);
        let (index, _) = Index::open(Region::open(&file).unwrap(), clock.clone()).unwrap();
        assert_eq!(got(&index, key), None, "{case}");
        let session = index.start_session().unwrap();
        if key == LONG_KEY {
            // What the last server's readers may still be at (X5).
            assert!(matches!(index.put_start(&session, key, 4, SECOND), Err(PutError::HeapBusy { .. })));
            clock.advance(SECOND);
        }
        let ticket = index.put_start(&session, key, 4, SECOND).unwrap();
        tidy(&index);
        assert_eq!((index.len(), index.starts().started), (1, 1), "{case}: one stays, one is started");
        assert_eq!(commit(&index, &session, key, ticket, b"four"), Ok(PutOutcome::Inserted), "{case}");
        assert_eq!(got(&index, key).as_deref(), Some(&b"four"[..]), "{case}");
    }
}

/// A table that evicts.
fn evicting(layout: &str, size: TableSize, policy: Evict) -> (Index, Clock) {
    let (index, clock) = index(&config(layout, size, KEY));
    (index.with_eviction(policy).unwrap(), clock)
}

/// P5: a start finds room as a put does, also for a value that does not fit its slot. What is started stays, and others'
/// puts find room beside it.
#[test]
fn a_start_makes_room() {
    let sizes = [TableSize::Slots(128), TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(128) }];
    for (layout, size) in LAYOUTS.into_iter().flat_map(|layout| sizes.map(|size| (layout, size))) {
        for (policy, name) in Evict::ALL {
            let case = format!("{layout} {size:?} {name}");
            let (index, clock) = evicting(layout, size, policy);
            let index = index.with_starts(StartLimits::new().percent(10));
            let session = index.start_session().unwrap();
            let mut held = Vec::new();
            let may_hold = |index: &Index| {
                let counts = index.starts();
                counts.started < counts.slots_max.min(8)
            };
            for n in 0..4_000u64 {
                let (key, len) = (n.to_le_bytes(), if n.is_multiple_of(5) { 300 } else { 20 });
                let value = vec![n as u8; len];
                // A value that has left may still be read for some time: whoever puts one comes again.
                let ticket = loop {
                    match index.put_start(&session, &key, len, 1_000 * SECOND) {
                        Ok(ticket) => break ticket,
                        Err(PutError::HeapBusy { .. }) => clock.advance(GRACE),
                        Err(error) => panic!("{case}: start {n}: {error}"),
                    }
                };
                if n.is_multiple_of(97) && may_hold(&index) {
                    held.push((key, ticket, value));
                } else {
                    assert_eq!(
                        commit(&index, &session, &key, ticket, &value),
                        Ok(PutOutcome::Inserted),
                        "{case}"
                    );
                    assert!(got(&index, &key).is_none_or(|found| found == value), "{case}: {n}");
                }
                let beside = index.put(&(n | 1 << 32).to_le_bytes(), b"beside", PutMode::Upsert);
                assert_eq!(beside, Ok(PutOutcome::Inserted), "{case}: beside {n}");
                clock.advance(GRACE / 8);
                tidy(&index);
            }
            assert!(index.evictions().evicted() > 300, "{case}: {:?}", index.evictions());
            assert!(held.len() > 1, "{case}");
            for (key, ticket, value) in held {
                assert_eq!(
                    commit(&index, &session, &key, ticket, &value),
                    Ok(PutOutcome::Inserted),
                    "{case}"
                );
            }
        }
    }
}

/// P3: all starts together hold a share of the slots, and of the memory for long values, and none for too long. The
/// error says which bound it was. What is started is no key.
#[test]
fn starts_have_a_share() {
    let sizes = [TableSize::Slots(512), sizes()[1]];
    for (layout, size) in LAYOUTS.into_iter().flat_map(|layout| sizes.map(|size| (layout, size))) {
        let case = format!("{layout} {size:?}");
        let (index, _) = index(&config(layout, size, KEY));
        let index = index.with_starts(StartLimits::new().percent(20).within_max(5 * SECOND));
        let session = index.start_session().unwrap();
        let (given, max) = (5 * SECOND + Duration::from_nanos(1), 5 * SECOND);
        let late = index.put_start(&session, b"late", 1, given);
        assert_eq!(late, Err(StartBound::Time { given, max }.into()), "{case}");
        let StartCounts { slots_max, heap_bytes_max, .. } = index.starts();
        let heap = index.geometry().heap().bytes;
        assert_eq!(heap_bytes_max, heap / 5, "{case}");
        let geometry = index.geometry();
        assert_eq!(slots_max, geometry.main_slots() * geometry.segments_max().max(1) / 5, "{case}");
        let start = |n: u64, len: usize| index.put_start(&session, &n.to_le_bytes(), len, max);
        let refused = |bound: StartBound| Err(PutError::from(bound));
        // Long values first.
        let (mut n, mut tickets) = (0, Vec::new());
        while let Ok(ticket) = start(n, 3_000) {
            tickets.push(ticket);
            n += 1;
        }
        let held = index.starts().heap_bytes;
        let bound = refused(StartBound::HeapBytes { held, max: heap_bytes_max });
        assert_eq!(start(n, 3_000).map(drop), bound, "{case}");
        assert!(held <= heap_bytes_max && held + 4_096 > heap_bytes_max, "{case}: {held}");
        // Then slots: short values need nothing else.
        if matches!(size, TableSize::Slots(_)) {
            while let Ok(ticket) = start(n, 8) {
                tickets.push(ticket);
                n += 1;
            }
            let bound = refused(StartBound::Slots { held: slots_max, max: slots_max });
            assert_eq!((start(n, 8).map(drop), tickets.len() as u64), (bound, slots_max), "{case}");
        }
        let counts = index.starts();
        assert_eq!(
            (counts.started, index.len(), index.counts().keys),
            (tickets.len() as u64, 0, 0),
            "{case}"
        );
        assert!(counts.refused >= 3, "{case}: {counts:?}");
        // One that is given up makes room for another one.
        assert_eq!(index.put_abort(&session, &0u64.to_le_bytes(), tickets[0]), Ok(true), "{case}");
        assert!(start(n, 3_000).is_ok(), "{case}");
        drop(session);
        tidy(&index);
        let left = index.starts();
        assert_eq!((left.started, left.heap_bytes, index.len()), (0, 0, 0), "{case}");
        let none = index.with_starts(StartLimits::new().percent(0));
        let session = none.start_session().unwrap();
        let refused = none.put_start(&session, b"none", 1, SECOND);
        assert_eq!(refused, Err(StartBound::Slots { held: 0, max: 0 }.into()), "{case}");
    }
}

/// P4: what is late is not committed, also if nobody has tidied since.
#[test]
fn what_is_late_is_not_committed() {
    for (layout, size, key) in all() {
        for len in LENGTHS {
            let case = format!("{layout} {size:?} {} bytes of key: {len}", key.len());
            let (index, clock) = index(&config(layout, size, key));
            let session = index.start_session().unwrap();
            // Of two with the same beginning, the one with more time goes on.
            let ticket = index.put_start(&session, key, len, SECOND).unwrap();
            let longer = index.put_start(&session, b"longer", 1, 2 * SECOND).unwrap();
            clock.advance(SECOND);
            let late = commit(&index, &session, key, ticket, &vec![1; len]);
            assert_eq!(late, Err(PutError::NotStarted), "{case}");
            assert_eq!(index.put_piece(&session, key, ticket, b""), Err(PutError::NotStarted), "{case}");
            assert_eq!(commit(&index, &session, b"longer", longer, b"1"), Ok(PutOutcome::Inserted), "{case}");
            assert_eq!((got(&index, key), index.len()), (None, 1), "{case}");
            tidy(&index);
            let counts = index.starts();
            assert_eq!((counts.started, counts.heap_bytes, counts.late), (0, 0, 1), "{case}");
        }
    }
}

/// Two threads start, commit and give up, and two remove and put the same keys. No commit fails, and in the end nothing
/// is left of what was not committed.
#[test]
fn starts_beside_removes() {
    for size in sizes() {
        let (index, _) = index(&config("windowed:8", size, KEY));
        let commits = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (index, commits) = (&index, &commits);
                scope.spawn(move || {
                    let session = index.start_session().unwrap();
                    let mut numbers = Numbers(thread);
                    for _ in 0..20_000 {
                        let key = numbers.below(16).to_le_bytes();
                        if thread >= 2 {
                            match numbers.below(3) {
                                0 => _ = index.put(&key, b"other", PutMode::Upsert).unwrap(),
                                _ => _ = index.remove(&key).unwrap(),
                            }
                            continue;
                        }
                        match index.put_start(&session, &key, 5, 3_600 * SECOND) {
                            Ok(ticket) if numbers.below(4) == 0 => {
                                assert_eq!(index.put_abort(&session, &key, ticket), Ok(true));
                            }
                            Ok(ticket) => {
                                commit(index, &session, &key, ticket, b"value").expect("its room is held");
                                commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            }
                            Err(PutError::AlreadyStarted) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert!(commits.into_inner() > 1_000);
        tidy(&index);
        let found = (0..16u64).filter(|n| got(&index, &n.to_le_bytes()).is_some()).count() as u64;
        assert_eq!((index.len(), index.starts().started), (found, 0), "{size:?}");
        (0..16u64).for_each(|n| _ = index.remove(&n.to_le_bytes()).unwrap());
        let entries = index.counts();
        assert_eq!((index.len(), entries.inserts - entries.removes), (0, 0), "{size:?}: an entry is left");
    }
}

/// A start that has to wait holds up no change of another key.
#[test]
fn a_start_that_waits_holds_up_nobody() {
    let (index, _) = index(&config("windowed:8", sizes()[1], KEY));
    let waits = Arc::new(Meanwhile::default());
    let index = Arc::new(index.with_seams(Arc::clone(&waits) as Arc<dyn Seams>));
    index.put(b"other", b"", PutMode::Insert).unwrap();
    let session = index.start_session().unwrap();
    let beside = Arc::clone(&index);
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    waits.set(move || {
        // Another thread removes a key, and this one goes on when it has.
        std::thread::spawn(move || {
            assert_eq!(beside.remove(b"other"), Ok(true));
            assert!(beside.start_session().is_ok());
            is_done.store(true, std::sync::atomic::Ordering::Release);
        });
        let begun = Instant::now();
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            assert!(begun.elapsed() < 60 * SECOND, "the remove waits for the start");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let ticket = index.put_start(&session, KEY, 1, SECOND).unwrap();
    assert_eq!(commit(&index, &session, KEY, ticket, b"1"), Ok(PutOutcome::Inserted));
}

/// Of values that travel as one frame, and in pieces.
const LENGTHS_SENT: [usize; 5] = [0, 8, 4_080, 4_081, 600_000];

/// Through a server: values of all lengths, an owner's, and what a follower hears. Without owners, it is refused.
#[test]
fn clients_put_in_two_steps() {
    let dir = tempfile::tempdir().unwrap();
    for address in [Address::Shm(dir.path().join("table")), Address::Tcp(TcpAddress::new("127.0.0.1", 0))] {
        two_steps_of_clients_at(address);
    }
}

fn two_steps_of_clients_at(address: Address) {
    let config = Config::new().value_max(1 << 20).size(TableSize::up_to(64 << 20));
    let config = config.life(true).owners(true);
    let server = Server::start(ServerConfig::new(address, config)).unwrap();
    let address = server.address().clone();
    let mut other = Client::connect(&address).unwrap();
    let mut client = other.owner(OwnerOptions::new(7)).unwrap();
    let mut changes = other.changes(FeedOptions::new()).unwrap();
    let lengths = [2, 74, 75, 255].into_iter().flat_map(|bytes| LENGTHS_SENT.map(|len| (bytes, len)));
    for (nth, (bytes, len)) in lengths.enumerate() {
        let (key, value) = ([vec![nth as u8; bytes - 1], vec![b'k']].concat(), vec![nth as u8; len]);
        let ticket = client.put_start(&key, len, 60 * SECOND).unwrap();
        assert_eq!((ticket.key(), other.get(&key).unwrap()), (&key[..], None));
        let again = other.put_start(&key, 1, SECOND);
        assert!(matches!(again, Err(MutateError::AlreadyStarted)), "{again:?}");
        assert_eq!(client.put_commit(ticket, &value).unwrap(), PutOutcome::Inserted);
        assert_eq!(other.get(&key).unwrap(), Some(value));
        assert_eq!(other.life(&key).unwrap().unwrap().owner, 7);
        let number = 1 + nth as u64;
        let came = FeedItem::Came { number, key: key.clone(), value: None, owner: 7 };
        assert_eq!(changes.next(60 * SECOND).unwrap(), Some(came));
    }
    let ticket = client.put_start(b"short", 5, SECOND).unwrap();
    let wrong = client.put_commit(ticket, b"four");
    assert!(matches!(wrong, Err(MutateError::StartedLength { given: 4, stated: 5 })), "{wrong:?}");
    let ticket = client.put_start(b"short", 5, 60 * SECOND).unwrap();
    assert!(client.put_abort(ticket).unwrap());
    let ticket = client.put_start(b"ends", 5, 3_600 * SECOND).unwrap();
    drop((client, ticket));
    let begun = Instant::now();
    while other.put_start(b"ends", 5, SECOND).is_err() {
        assert!(begun.elapsed() < 60 * SECOND, "it does not end with its client");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(changes.next(Duration::ZERO).unwrap(), None, "what is not committed is heard by nobody");
    drop(server);
    let plain = config.life(false).owners(false);
    let _server = Server::start(ServerConfig::new(address.clone(), plain)).unwrap();
    let refused = Client::connect(&address).unwrap().put_start(KEY, 1, SECOND);
    assert!(matches!(refused, Err(MutateError::NoOwners)), "{refused:?}");
}

/// A server has its starts hold no more than it was told, whichever client asks.
#[test]
fn a_server_bounds_starts() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("table"));
    let table = config("windowed:8", sizes()[0], KEY);
    let limits = StartLimits::new().percent(2).within_max(5 * SECOND);
    let server = Server::start(ServerConfig::new(address.clone(), table).starts(limits)).unwrap();
    let (mut client, mut other) = (Client::connect(&address).unwrap(), Client::connect(&address).unwrap());
    let late = client.put_start(b"late", 1, 6 * SECOND);
    assert!(matches!(late, Err(MutateError::StartBound(StartBound::Time { .. }))), "{late:?}");
    let max = server.index().starts().slots_max;
    assert!((1..10).contains(&max), "{max}");
    let tickets: Vec<_> = (0..max)
        .map(|n| {
            let client = if n % 2 == 0 { &mut client } else { &mut other };
            client.put_start(&n.to_le_bytes(), 1, 5 * SECOND).unwrap()
        })
        .collect();
    for client in [&mut client, &mut other] {
        let more = client.put_start(b"more", 1, SECOND);
        assert!(matches!(more, Err(MutateError::StartBound(StartBound::Slots { .. }))), "{more:?}");
    }
    drop(tickets);
}

/// A follower is told why an entry left, whether a put of its key was started or not.
#[test]
fn what_leaves_under_a_start_is_told_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("table"));
    let config = Config::new().size(TableSize::Keys(1_000)).life(true).owners(true);
    let _server = Server::start(ServerConfig::new(address.clone(), config)).unwrap();
    let mut client = Client::connect(&address).unwrap();
    let mut owner = client.owner(OwnerOptions::new(7)).unwrap();
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    let mut next = || changes.next(60 * SECOND).unwrap().expect("it is told");
    let left = |number, cause| FeedItem::Left { number, key: KEY.to_vec(), cause };
    let ends = PutOptions::new().ttl(SECOND);
    client.put_with(KEY, b"ends", ends).unwrap();
    let ticket = client.put_start(KEY, 1, 3_600 * SECOND).unwrap();
    assert!(matches!(next(), FeedItem::Came { number: 1, .. }));
    assert_eq!(next(), left(2, LeftCause::Expired));
    client.put(KEY, b"value").unwrap();
    assert!(matches!(next(), FeedItem::Came { number: 3, .. }));
    assert!(client.remove(KEY).unwrap());
    assert_eq!(next(), left(4, LeftCause::Removed));
    client.put(KEY, b"value").unwrap();
    assert!(matches!(next(), FeedItem::Came { number: 5, .. }));
    assert_eq!(client.remove_if(KEY, b"value").unwrap(), SwapOutcome::Swapped);
    assert_eq!(next(), left(6, LeftCause::Removed));
    owner.put(KEY, b"value").unwrap();
    assert!(matches!(next(), FeedItem::Came { number: 7, owner: 7, .. }));
    assert!(client.remove_owner(7).unwrap());
    assert_eq!(next(), FeedItem::OwnerGone { number: 8, owner: 7 });
    assert_eq!(client.put_commit(ticket, b"1").unwrap(), PutOutcome::Inserted);
    assert!(matches!(next(), FeedItem::Came { number: 9, owner: 0, .. }));
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    /// P1: the second start takes the first one's place.
    fn is_started_twice() -> bool {
        let (index, _) = index(&config("windowed:8", sizes()[1], KEY));
        let session = index.start_session().unwrap();
        index.put_start(&session, KEY, 1, SECOND).unwrap();
        index.put_start(&session, KEY, 1, SECOND).is_ok()
    }

    /// P1: a remove gives the room away.
    fn finds_no_room(key: &[u8]) -> bool {
        let (index, _) = index(&config("windowed:8", sizes()[0], key));
        let session = index.start_session().unwrap();
        index.put(key, b"old", PutMode::Insert).unwrap();
        let ticket = index.put_start(&session, key, 1, SECOND).unwrap();
        index.remove(key).unwrap();
        (0..1_000u64).for_each(|n| drop(index.put(&n.to_le_bytes(), b"", PutMode::Insert)));
        commit(&index, &session, key, ticket, b"1").is_err()
    }

    /// P3: they hold more than their share.
    fn holds_more() -> bool {
        let (index, _) = index(&config("windowed:8", sizes()[0], KEY));
        let index = index.with_starts(StartLimits::new().percent(10));
        let session = index.start_session().unwrap();
        (0..60u64).for_each(|n| drop(index.put_start(&session, &n.to_le_bytes(), 1, SECOND)));
        let counts = index.starts();
        counts.started > counts.slots_max
    }

    /// P4: one is committed whose time is over.
    fn commits_late() -> bool {
        let (index, clock) = index(&config("windowed:8", sizes()[1], KEY));
        let session = index.start_session().unwrap();
        let ticket = index.put_start(&session, KEY, 1, SECOND).unwrap();
        clock.advance(2 * SECOND);
        commit(&index, &session, KEY, ticket, b"1").is_ok()
    }

    /// P5: a start is refused where a put is not.
    fn finds_a_full_table() -> bool {
        let (index, _) = evicting("windowed:8", sizes()[0], Evict::S3Fifo);
        let session = index.start_session().unwrap();
        (0..2_000u64).any(|n| {
            let key = n.to_le_bytes();
            // Others fill the table again.
            (0..4).for_each(|other| {
                drop(index.put(&(n << 8 | other | 1 << 40).to_le_bytes(), b"", PutMode::Upsert))
            });
            match index.put_start(&session, &key, 1, SECOND) {
                Ok(ticket) => commit(&index, &session, &key, ticket, b"1").is_err(),
                Err(error) => matches!(error, PutError::Full { .. }),
            }
        })
    }

    #[test]
    fn broken_rules_are_noticed() {
        let cases: [(Rule, fn() -> bool); 6] = [
            (Rule::StartShare, holds_more),
            (Rule::StartTime, commits_late),
            (Rule::StartRoom, finds_a_full_table),
            (Rule::StartOnce, is_started_twice),
            (Rule::StartKeeps, || finds_no_room(KEY)),
            (Rule::StartKeeps, || finds_no_room(LONG_KEY)),
        ];
        for (rule, is_wrong) in cases {
            assert!(!is_wrong(), "{rule:?}");
            let _broken = Broken::rule(rule);
            assert!(is_wrong(), "{rule:?} broken");
        }
    }
}
