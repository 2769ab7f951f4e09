//! Two of everything: starts, ends, absences and sessions of unequal times, in either order. What is given up or refused
//! gives back all that it held, and leaves the other as it is. The clock stands still until it is moved, so that times are
//! exact.

use oneread::LeftCause;
use oneread::embedded::{Clock, Index, KeyCursor, StartSession};
use oneread::error::{PutError, StartBound};
use oneread::internals::index::{
    Awaited, Changed, DecidedChange, Decision, KeyChange, KeyPlace, Seams, driven,
};
use oneread::internals::region::{Backing, Region};
use oneread::layout::{OWNER_MAX, Seeds};
use oneread::snapshot::Snapshot;
use oneread::{Config, Evict, PutMode, PutOptions, PutOutcome, StartLimits, TableSize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_millis(2);
const OWNER: u16 = 7;
/// Fits its slot, and does not.
const KEYS: [&[u8]; 2] = [b"key", b"a key that does not fit its slot, with a life behind it"];
/// Of values that stand in their slots, and that do not.
const LENGTHS: [usize; 2] = [20, 3_000];

fn config(size: TableSize) -> Config {
    let heap = matches!(size, TableSize::Slots(_)).then_some(1 << 20);
    let config = Config::new().layout("windowed:8".parse().unwrap()).size(size).seeds(Seeds::from_number(5));
    let config =
        config.key_max(64).key_inline(8).value_max(3_000).inline_max(28).heap_bytes(heap).grace(GRACE);
    config.life(true).owners(true)
}

fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(128), TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(128) }]
}

fn index(size: TableSize) -> (Index, Clock) {
    let (clock, geometry) = (Clock::manual(), config(size).geometry().unwrap());
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

/// Takes the table on until nothing is left to do now. Returns when there is more.
fn tidy(index: &Index) -> Option<Duration> {
    loop {
        match index.tidy() {
            Some(Duration::ZERO) => {}
            later => return later,
        }
    }
}

fn is_there(index: &Index, key: &[u8]) -> bool {
    index.reader().get_into(key, &mut Vec::new()).unwrap()
}

/// Whether a put of the key is started: a second start is refused, and one that is not is given up at once.
fn is_started(index: &Index, session: &StartSession, key: &[u8]) -> bool {
    match index.put_start(session, key, 1, SECOND) {
        Err(PutError::AlreadyStarted) => true,
        Ok(ticket) => {
            assert_eq!(index.put_abort(session, key, ticket), Ok(true));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

// ---- puts in two steps --------------------------------------------------------------------------

/// Of two starts, whichever comes first, each ends in its own time: the sooner one's end is what is waited for.
#[test]
fn two_starts_end_each_in_its_time() {
    for (first, second) in [(1, 3), (3, 1)] {
        let (index, clock) = index(sizes()[0]);
        let session = index.start_session().unwrap();
        for seconds in [first, second] {
            index.put_start(&session, &[seconds as u8], 1, seconds * SECOND).unwrap();
        }
        let case = format!("{first} s, then {second} s");
        assert_eq!(tidy(&index), Some(SECOND), "{case}");
        clock.advance(SECOND - MILLI);
        assert_eq!((tidy(&index), index.starts().started), (Some(MILLI), 2), "{case}");
        clock.advance(MILLI);
        assert_eq!((tidy(&index), index.starts().started), (Some(2 * SECOND), 1), "{case}: one has ended");
        assert!(!is_started(&index, &session, &[1]) && is_started(&index, &session, &[3]), "{case}");
        clock.advance(2 * SECOND);
        assert_eq!((tidy(&index), index.starts().started), (None, 0), "{case}: both have");
    }
}

/// However the sooner of two starts is over, what is waited for next is the later one's end, and that one goes on.
#[test]
fn the_other_start_goes_on() {
    type Ends = fn(&Index, StartSession, u64);
    let all: [(&str, Ends); 3] = [
        ("is committed", |index, session, ticket| {
            assert_eq!(index.put_commit(&session, b"sooner", ticket, None), Ok(PutOutcome::Inserted));
            assert_eq!(index.remove(b"sooner"), Ok(true));
            std::mem::forget(session);
        }),
        ("is given up", |index, session, ticket| {
            assert_eq!(index.put_abort(&session, b"sooner", ticket), Ok(true));
            std::mem::forget(session);
        }),
        ("ends with its session", |_, session, _| drop(session)),
    ];
    for (what, ends) in all {
        let (index, clock) = index(sizes()[0]);
        let (one, other) = (index.start_session().unwrap(), index.start_session().unwrap());
        let sooner = index.put_start(&one, b"sooner", 0, SECOND).unwrap();
        let later = index.put_start(&other, b"later", 1, 5 * SECOND).unwrap();
        ends(&index, one, sooner);
        assert_eq!(tidy(&index), Some(5 * SECOND), "{what}");
        assert_eq!((index.starts().started, index.len()), (1, 0), "{what}");
        clock.advance(4 * SECOND);
        assert_eq!(tidy(&index), Some(SECOND), "{what}");
        // Another's session, another one's ticket, another one's key.
        let third = index.start_session().unwrap();
        for (session, key, ticket) in
            [(&third, &b"later"[..], later), (&other, b"later", sooner), (&other, b"sooner", later)]
        {
            let refused = index.put_piece(session, key, ticket, b"x");
            assert_eq!(refused, Err(PutError::NotStarted), "{what}");
            assert_eq!(index.put_commit(session, key, ticket, None), Err(PutError::NotStarted), "{what}");
            assert_eq!(index.put_abort(session, key, ticket), Ok(false), "{what}");
        }
        index.put_piece(&other, b"later", later, b"1").unwrap();
        assert_eq!(index.put_commit(&other, b"later", later, None), Ok(PutOutcome::Inserted), "{what}");
        assert_eq!(tidy(&index), None, "{what}");
    }
}

/// A commit that is refused gives back what its start held: the slot, memory of the value and of the key. Another start goes on.
#[test]
fn a_refused_commit_gives_back_what_it_held() {
    for (size, key, len) in
        sizes().into_iter().flat_map(|size| KEYS.map(|key| LENGTHS.map(|len| (size, key, len)))).flatten()
    {
        let case = format!("{size:?}, a key of {} bytes, {len}", key.len());
        let (index, clock) = index(size);
        let session = index.start_session().unwrap();
        let owner = index.owner(OWNER, SECOND).unwrap();
        let other = index.put_start(&session, b"other", len, 100 * SECOND).unwrap();
        let before = (index.len(), index.heap().live_bytes);
        for round in 0..3 {
            let ticket = index.put_start(&session, key, len, 100 * SECOND).unwrap();
            for piece in vec![9; len].chunks(1_000) {
                index.put_piece(&session, key, ticket, piece).unwrap();
            }
            index.remove_owner(OWNER).unwrap();
            let refused = index.put_commit(&session, key, ticket, Some(&owner));
            assert_eq!(refused, Err(PutError::OwnerGone { owner: OWNER }), "{case}");
            let again = index.put_commit(&session, key, ticket, None);
            assert_eq!(again, Err(PutError::NotStarted), "{case}");
            // What readers may still be at is free later.
            clock.advance(SECOND);
            tidy(&index);
            assert_eq!((index.len(), index.heap().live_bytes), before, "{case} {round}");
        }
        assert!(is_started(&index, &session, b"other"), "{case}");
        for piece in vec![8; len].chunks(1_000) {
            index.put_piece(&session, b"other", other, piece).unwrap();
        }
        assert_eq!(index.put_commit(&session, b"other", other, None), Ok(PutOutcome::Inserted), "{case}");
    }
}

/// A start that is refused holds nothing: one of a key that is started, one that finds no memory for its value, one that
/// finds no slot.
#[test]
fn a_refused_start_holds_nothing() {
    for key in KEYS {
        let (index, clock) = index(sizes()[0]);
        let session = index.start_session().unwrap();
        index.put_start(&session, key, 3_000, 1_000 * SECOND).unwrap();
        let before = (index.len(), index.heap().live_bytes);
        for len in LENGTHS {
            let again = index.put_start(&session, key, len, SECOND);
            assert_eq!(again, Err(PutError::AlreadyStarted), "{len}");
        }
        clock.advance(SECOND);
        tidy(&index);
        assert_eq!((index.len(), index.heap().live_bytes), before, "of one that is started");
        // Others take all that is left.
        let mut full = 0;
        for n in 0..10_000u64 {
            full += u32::from(index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_err());
            clock.advance(GRACE / 4);
            if full == 20 {
                break;
            }
        }
        assert_eq!(full, 20);
        let before = (index.len(), index.heap().live_bytes);
        let mut refused = 0;
        for n in 1_000_000..1_000_100u64 {
            let key = [&n.to_le_bytes()[..], &[7; 40][..key.len().min(40) - 3]].concat();
            match index.put_start(&session, &key, 3_000, SECOND) {
                Err(_) => refused += 1,
                Ok(ticket) => assert_eq!(index.put_abort(&session, &key, ticket), Ok(true)),
            }
            clock.advance(GRACE);
            tidy(&index);
        }
        assert!(refused > 10, "{refused}");
        clock.advance(SECOND);
        tidy(&index);
        assert_eq!((index.len(), index.heap().live_bytes), before, "without a slot");
    }
}

/// A start that found no room is not started: it counts for no share, and the same key is started when there is room. Another
/// start, which was there before, goes on.
#[test]
fn a_refused_start_may_be_made_again() {
    for key in KEYS {
        let (index, clock) = index(sizes()[0]);
        let session = index.start_session().unwrap();
        let other = index.put_start(&session, b"other", 20, 1_000 * SECOND).unwrap();
        let mut n = 0u64;
        while index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_ok() {
            n += 1;
            clock.advance(GRACE / 4);
        }
        let before = index.starts();
        let keys = (0..200u64).map(|n| [&n.to_le_bytes()[..], &[7; 40][..key.len().min(40) - 3]].concat());
        let refused: Vec<_> = keys
            .filter(|key| match index.put_start(&session, key, 20, SECOND) {
                Ok(ticket) => {
                    assert_eq!(index.put_abort(&session, key, ticket), Ok(true));
                    false
                }
                Err(error) => {
                    assert!(!matches!(error, PutError::AlreadyStarted), "{error}");
                    true
                }
            })
            .collect();
        assert!(refused.len() > 10, "{}", refused.len());
        let after = index.starts();
        assert_eq!((after.started, after.heap_bytes), (before.started, before.heap_bytes));
        index.clear(&mut |_| true).unwrap();
        for _ in 0..4 {
            clock.advance(SECOND);
            tidy(&index);
        }
        for key in refused.iter().take(10) {
            let ticket = index.put_start(&session, key, 0, SECOND).unwrap();
            assert_eq!(index.put_commit(&session, key, ticket, None), Ok(PutOutcome::Inserted));
        }
        index.put_piece(&session, b"other", other, &[1; 20]).unwrap();
        assert_eq!(index.put_commit(&session, b"other", other, None), Ok(PutOutcome::Inserted));
        assert_eq!((index.starts().started, index.starts().heap_bytes), (0, 0));
    }
}

/// A start whose time is over gives its slot back also where the key's next one is refused.
#[test]
fn what_has_ended_leaves_nothing_when_it_is_refused_again() {
    for key in KEYS {
        let (index, clock) = index(sizes()[0]);
        let index = index.with_starts(StartLimits::new().within_max(2 * SECOND));
        let session = index.start_session().unwrap();
        let entries = || {
            let counts = index.counts();
            counts.inserts - counts.removes
        };
        for ended in [&b"one"[..], key] {
            index.put_start(&session, ended, 20, SECOND).unwrap();
        }
        assert_eq!(entries(), 2);
        clock.advance(SECOND);
        let refused = index.put_start(&session, key, 20, 3 * SECOND);
        assert!(matches!(refused, Err(PutError::StartBound(StartBound::Time { .. }))), "{refused:?}");
        assert_eq!((entries(), index.starts().started), (1, 1), "the other one is given up in idle time");
        tidy(&index);
        assert_eq!((entries(), index.starts().started), (0, 0));
    }
}

/// Has so many of the next removals wait, and withdraws them.
#[derive(Debug, Default)]
struct WithdrawsRemovals(AtomicU32);

#[derive(Debug)]
struct IsWithdrawn;

impl Awaited for IsWithdrawn {
    fn then(self: Box<Self>, change: DecidedChange) {
        drop(change);
    }
}

impl Seams for WithdrawsRemovals {
    fn decided(&self, change: &KeyChange<'_>, _: LeftCause) -> Decision {
        let one_less = |left: u32| left.checked_sub(u32::from(change.what == Changed::Left));
        match self.0.fetch_update(Relaxed, Relaxed, one_less) {
            Ok(_) if change.what == Changed::Left => Decision::After(Box::new(IsWithdrawn)),
            _ => Decision::Now,
        }
    }

    fn done(&self, _change: &KeyChange<'_>, _at: KeyPlace) {}
}

/// P2: what a put in two steps held could not be removed when the put was over, because those who hear of changes did not have
/// it: it is removed a little later, however often that fails. Another start goes on.
#[test]
fn what_could_not_be_given_up_is_given_up_later() {
    type Ends = fn(&Index, &Clock, StartSession, &[u8], u64);
    let all: [(&str, Ends); 4] = [
        ("is given up", |index, _, session, key, ticket| {
            assert_eq!(index.put_abort(&session, key, ticket), Ok(true));
            std::mem::forget(session);
        }),
        ("ends with its session", |_, _, session, _, _| drop(session)),
        ("ends with its time", |_, clock, session, _, _| {
            clock.advance(SECOND);
            std::mem::forget(session);
        }),
        ("is refused", |index, clock, session, key, ticket| {
            let owner = index.owner(OWNER, SECOND).unwrap();
            index.remove_owner(OWNER).unwrap();
            let refused = index.put_commit(&session, key, ticket, Some(&owner));
            assert_eq!(refused, Err(PutError::OwnerGone { owner: OWNER }));
            clock.advance(2 * GRACE);
            std::mem::forget(session);
        }),
    ];
    for (size, key, times) in
        sizes().into_iter().flat_map(|size| KEYS.map(|key| [1, 4].map(|times| (size, key, times)))).flatten()
    {
        for (what, ends) in all {
            let (index, clock) = index(size);
            let withdraws = Arc::new(WithdrawsRemovals::default());
            let index = index.with_seams(Arc::clone(&withdraws) as Arc<dyn Seams>);
            let (session, stays) = (index.start_session().unwrap(), index.start_session().unwrap());
            let other = index.put_start(&stays, b"other", 0, 100 * SECOND).unwrap();
            let ticket = index.put_start(&session, key, 0, SECOND).unwrap();
            let entries = || {
                let counts = index.counts();
                counts.inserts - counts.removes
            };
            let case = format!("{size:?}, {} bytes of key, {times}: {what}", key.len());
            withdraws.0.store(times, Relaxed);
            ends(&index, &clock, session, key, ticket);
            for _ in 0..100 {
                if entries() == 1 {
                    break;
                }
                let later = tidy(&index);
                assert!(entries() == 1 || later.is_some_and(|later| later <= MILLI), "{case}: {later:?}");
                clock.advance(MILLI);
            }
            assert_eq!((entries(), index.len(), index.starts().started), (1, 0, 1), "{case}");
            assert_eq!(withdraws.0.load(Relaxed), 0, "{case}");
            assert!(!is_started(&index, &stays, key) && is_started(&index, &stays, b"other"), "{case}");
            assert_eq!(index.put_commit(&stays, b"other", other, None), Ok(PutOutcome::Inserted), "{case}");
        }
    }
}

/// However small their share, there is room for one start: of the longest value, or of a short one; and for no second one.
#[test]
fn a_small_share_has_room_for_one() {
    let small = config(TableSize::Slots(64)).heap_bytes(Some(128 << 10));
    for (first, second) in [(3_000, 3_000), (3_000, 20), (20, 3_000)] {
        let geometry = small.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let index = Index::create(region, geometry, Clock::manual()).unwrap();
        let index = index.with_starts(StartLimits::new().percent(1));
        let session = index.start_session().unwrap();
        let ticket = index.put_start(&session, b"first", first, SECOND).unwrap();
        let refused = index.put_start(&session, b"second", second, SECOND);
        assert_eq!(refused, Err(StartBound::Slots { held: 1, max: 1 }.into()), "{first} {second}");
        assert_eq!(index.put_abort(&session, b"first", ticket), Ok(true));
        assert!(index.put_start(&session, b"second", second, SECOND).is_ok(), "{first} {second}");
    }
}

// ---- owners -------------------------------------------------------------------------------------

/// The next server knows an owner that has a session and no entry, by the tenure that it had; whoever has another one is no
/// owner there. So it is with the last number, and with two owners at once.
#[test]
fn an_owner_without_entries_is_known_to_the_next_server() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
    let file = dir.path().join("region");
    let geometry = config(sizes()[0]).geometry().unwrap();
    let memory = Region::create(&Backing::File(file.clone()), geometry.region_bytes()).unwrap();
    let index = Index::create(memory, geometry, clock.clone()).unwrap();
    let sessions = [OWNER, OWNER_MAX].map(|number| index.owner(number, 60 * SECOND).unwrap());
    let [one, other] = sessions.each_ref().map(|session| session.tenure());
    assert_ne!(one, other);
    std::mem::forget(sessions);
    drop(index);
    let (index, _) = Index::open(Region::open(&file).unwrap(), clock).unwrap();
    for (number, tenure, wrong) in [(OWNER, one, other), (OWNER_MAX, other, one)] {
        let gone = PutError::OwnerGone { owner: number };
        assert_eq!(index.owner_again(number, wrong, SECOND).unwrap_err(), gone);
        let session = index.owner_again(number, tenure, SECOND).unwrap();
        assert_eq!((session.owner(), session.tenure()), (number, tenure));
        index.put_of(&session, b"key", b"", PutOptions::new()).unwrap();
    }
}

/// Owners with the first number and the last, with entries and without, that were hidden by the last server are not given again
/// by the next one before theirs are removed, and then they are.
#[test]
fn hidden_owners_are_given_again_by_the_next_server() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
    let file = dir.path().join("region");
    let geometry = config(sizes()[0]).geometry().unwrap();
    let memory = Region::create(&Backing::File(file.clone()), geometry.region_bytes()).unwrap();
    let index = Index::create(memory, geometry, clock.clone()).unwrap();
    let numbers = [1, 2, OWNER_MAX - 1, OWNER_MAX];
    let key = |number: u16| number.to_le_bytes();
    let sessions = numbers.map(|number| index.owner(number, 60 * SECOND).unwrap());
    for session in sessions.iter().filter(|session| session.owner() % 2 == 1) {
        index.put_of(session, &key(session.owner()), b"", PutOptions::new()).unwrap();
    }
    numbers.iter().for_each(|number| assert_eq!(index.remove_owner(*number), Ok(true)));
    std::mem::forget(sessions);
    drop(index);
    let (index, _) = Index::open(Region::open(&file).unwrap(), clock.clone()).unwrap();
    for number in numbers {
        let gone = PutError::OwnerGone { owner: number };
        assert_eq!(index.owner(number, SECOND).unwrap_err(), gone);
        assert!(!is_there(&index, &key(number)));
    }
    tidy(&index);
    clock.advance(2 * GRACE);
    tidy(&index);
    assert_eq!(index.len(), 0);
    for number in numbers {
        let session = index.owner(number, SECOND).unwrap();
        index.put_of(&session, &key(number), b"", PutOptions::new()).unwrap();
        assert!(is_there(&index, &key(number)), "{number}");
    }
}

/// A snapshot's entry of an owner that is away leaves it as long as it has said; one of an owner that is not known is waited for
/// a minute.
#[test]
fn an_entry_of_a_snapshot_waits_as_its_owner_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let (from, _) = index(sizes()[0]);
    let sessions = [1, 2].map(|number| from.owner(number, SECOND).unwrap());
    for session in &sessions {
        from.put_of(session, &[session.owner() as u8], b"", PutOptions::new()).unwrap();
    }
    assert_eq!(from.save(&path, &mut |_, _| true).unwrap().keys, 2);
    let (index, clock) = index(sizes()[1]);
    drop(index.owner(1, SECOND).unwrap());
    index.restore_from(&Snapshot::open(&path).unwrap(), &mut |_, _| {}).unwrap();
    for n in 0..=1_210u32 {
        tidy(&index);
        let there = [1, 2].map(|owner| is_there(&index, &[owner]));
        assert_eq!(there, [n < 20, n < 1_200], "{n}");
        clock.advance(50 * MILLI);
    }
}

/// In a table that knows no owners itself, a snapshot keeps every number that an entry can have.
#[test]
fn numbers_of_owners_survive_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let made = || {
        let geometry = config(sizes()[1]).owners(false).geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        Index::create(region, geometry, Clock::manual()).unwrap()
    };
    let (from, to) = (made(), made());
    let all: BTreeMap<Vec<u8>, u16> = [0, 1, OWNER_MAX - 1, OWNER_MAX]
        .into_iter()
        .flat_map(|owner| LENGTHS.map(|len| ([&owner.to_le_bytes()[..], &[len as u8]].concat(), owner, len)))
        .map(|(key, owner, len)| {
            driven(&from).put_until(&key, &vec![1; len], None, owner).unwrap();
            (key, owner)
        })
        .collect();
    from.save(&path, &mut |_, _| true).unwrap();
    to.restore_from(&Snapshot::open(&path).unwrap(), &mut |_, _| {}).unwrap();
    for index in [&from, &to] {
        for (key, owner) in &all {
            assert_eq!(index.life(key).unwrap().unwrap().owner, *owner, "{key:?}");
        }
        // A scan of entries with owners shows those, be they long or short.
        let (mut cursor, mut shown) = (KeyCursor::default(), BTreeMap::new());
        while driven(index).scan_owned(&mut cursor, |key, owner| {
            assert_eq!(shown.insert(key.to_vec(), owner), None, "once");
        }) {}
        let owned: BTreeMap<_, _> = all.iter().filter(|(_, owner)| **owner != 0).collect();
        assert!(shown.iter().eq(owned), "{shown:?}");
    }
}

/// The next server waits for the longest absence of all sessions that there were at once, in whichever order they came.
#[test]
fn the_longest_absence_counts_for_the_next_server() {
    for order in [[64, 1, 1], [1, 64, 1], [1, 1, 64]] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
        let file = dir.path().join("region");
        let geometry = config(sizes()[0]).geometry().unwrap();
        let memory = Region::create(&Backing::File(file.clone()), geometry.region_bytes()).unwrap();
        let index = Index::create(memory, geometry, clock.clone()).unwrap();
        let sessions = order.map(|seconds| index.owner(OWNER, seconds * SECOND).unwrap());
        index.put_of(&sessions[0], b"key", b"", PutOptions::new()).unwrap();
        // The server is gone without a word.
        std::mem::forget(sessions);
        drop(index);
        let (index, _) = Index::open(Region::open(&file).unwrap(), clock.clone()).unwrap();
        for _ in 0..63_000 / 50 {
            tidy(&index);
            clock.advance(50 * MILLI);
        }
        tidy(&index);
        assert!(is_there(&index, b"key"), "{order:?}");
        // It counts up to twice.
        for _ in 0..66_000 / 50 {
            clock.advance(50 * MILLI);
            tidy(&index);
        }
        assert!(!is_there(&index, b"key"), "{order:?}");
    }
}

/// Of one session after the other only the last counts: a long absence of before is none of the next one's.
#[test]
fn an_absence_of_before_is_forgotten() {
    for (before, then) in [(60, 1), (1, 60)] {
        let (index, clock) = index(sizes()[0]);
        let session = index.owner(OWNER, before * SECOND).unwrap();
        index.put_of(&session, b"key", b"", PutOptions::new()).unwrap();
        drop(session);
        drop(index.owner(OWNER, then * SECOND).unwrap());
        for n in 0..=100 {
            tidy(&index);
            assert_eq!(is_there(&index, b"key"), n < 20 || then == 60, "{before} s, then {then} s: {n}");
            clock.advance(50 * MILLI);
        }
    }
}

/// Of two sessions at once, the one that ends last says how long its owner may be away.
#[test]
fn the_last_session_says_how_long() {
    for (first, last) in [(60, 1), (1, 60)] {
        let (index, clock) = index(sizes()[0]);
        let [one, other] = [first, last].map(|seconds| index.owner(OWNER, seconds * SECOND).unwrap());
        index.put_of(&one, b"key", b"", PutOptions::new()).unwrap();
        drop(one);
        for _ in 0..100 {
            clock.advance(50 * MILLI);
            tidy(&index);
        }
        drop(other);
        for n in 0..=100 {
            tidy(&index);
            assert_eq!(is_there(&index, b"key"), n < 20 || last == 60, "{first} s, then {last} s: {n}");
            clock.advance(50 * MILLI);
        }
    }
}

/// Two owners are away, and one has gone: the soonest of what is to be done is what is waited for, and each goes in its
/// own time.
#[test]
fn two_owners_go_each_in_its_time() {
    for order in [[1, 2], [2, 1]] {
        let (index, clock) = index(sizes()[0]);
        for seconds in order {
            let owner = index.owner(seconds, u32::from(seconds) * SECOND).unwrap();
            index.put_of(&owner, &[seconds as u8], b"", PutOptions::new()).unwrap();
        }
        let later = tidy(&index);
        assert!(later.is_some_and(|later| later <= 50 * MILLI), "{order:?}: {later:?}");
        for n in 0..=42u32 {
            let there = [1, 2].map(|owner| is_there(&index, &[owner]));
            assert_eq!(there, [n < 20, n < 40], "{order:?} {n}");
            clock.advance(50 * MILLI);
            tidy(&index);
        }
        assert_eq!(index.len(), 0, "{order:?}");
    }
    let (index, clock) = index(sizes()[0]);
    let [away, goes] = [1, 2].map(|owner| index.owner(owner, 60 * SECOND).unwrap());
    drop(away);
    assert_eq!(tidy(&index), Some(50 * MILLI), "one is looked for now and then");
    index.remove_owner(2).unwrap();
    assert_eq!(tidy(&index), Some(2 * GRACE), "the other's number is free sooner");
    clock.advance(2 * GRACE);
    assert_eq!(tidy(&index), Some(50 * MILLI));
    drop((goes, index.owner(2, SECOND).unwrap()));
}

/// A session that is dropped when its owner was removed, or has come again, takes nothing of the next one's away.
#[test]
fn a_late_end_of_a_session_harms_nobody() {
    let (index, clock) = index(sizes()[0]);
    let [one, other] = [1, 60].map(|seconds| index.owner(OWNER, seconds * SECOND).unwrap());
    index.remove_owner(OWNER).unwrap();
    tidy(&index);
    clock.advance(2 * GRACE);
    tidy(&index);
    let next = index.owner(OWNER, SECOND).unwrap();
    index.put_of(&next, b"key", b"", PutOptions::new()).unwrap();
    drop((one, other));
    for _ in 0..100 {
        clock.advance(50 * MILLI);
        tidy(&index);
        assert!(is_there(&index, b"key"));
    }
    assert_eq!(index.put_of(&next, b"key", b"1", PutOptions::new()), Ok(PutOutcome::Updated));
}

// ---- ends ---------------------------------------------------------------------------------------

/// Of two entries, whichever comes first, the sooner end is waited for, and then the later one. So it is where both are
/// of one key, one after the other.
#[test]
fn two_ends_are_waited_for_in_order() {
    let ttl = |seconds: u32| PutOptions::new().ttl(seconds * SECOND);
    for (first, second) in [(2, 5), (5, 2)] {
        let (index, clock) = index(sizes()[0]);
        for seconds in [first, second] {
            index.put_with(&[seconds as u8], b"", ttl(seconds)).unwrap();
        }
        let case = format!("{first} s, then {second} s");
        assert_eq!((tidy(&index), index.len()), (Some(2 * SECOND), 2), "{case}");
        clock.advance(2 * SECOND);
        assert_eq!((tidy(&index), index.len()), (Some(3 * SECOND), 1), "{case}");
        assert!(is_there(&index, &[5]), "{case}");
        clock.advance(3 * SECOND);
        assert_eq!((tidy(&index), index.len()), (None, 0), "{case}");
        // One key: what counts is what it has by now.
        for seconds in [first, second] {
            index.put_with(b"key", b"", ttl(seconds)).unwrap();
        }
        clock.advance(2 * SECOND);
        tidy(&index);
        assert_eq!(index.len(), u64::from(second == 5), "{case}: of one key");
        clock.advance(3 * SECOND);
        assert_eq!((tidy(&index), index.len()), (None, 0), "{case}: of one key");
    }
}

// ---- walks --------------------------------------------------------------------------------------

/// A removal of all keys removes long values and short ones, with long keys and short ones.
#[test]
fn all_that_there_is_is_removed() {
    for size in sizes() {
        let (index, _) = index(size);
        for (n, (key, len)) in KEYS.into_iter().flat_map(|key| LENGTHS.map(|len| (key, len))).enumerate() {
            for more in 0..5 {
                let key = [key, &[n as u8, more]].concat();
                index.put(&key, &vec![1; len], PutMode::Insert).unwrap();
            }
        }
        assert_eq!(index.len(), 20);
        assert_eq!((index.clear(&mut |_| true), index.len()), (Ok(20), 0), "{size:?}");
    }
}

// ---- eviction -----------------------------------------------------------------------------------

/// What went for a long value is waited for, not sent after by more: with a grace time, no more go than without one, for each
/// of some values.
#[test]
fn room_that_settles_is_waited_for() {
    const SHORT: usize = 2_000;
    const LONG: usize = 256 << 10;
    let growing = TableSize::Growing { bytes_max: 12 << 20, segment_slots: None };
    for (size, heap) in [(TableSize::Slots(10_000), Some(6 << 20)), (growing, None)] {
        let config = Config::new().size(size).key_max(8).value_max(LONG).heap_bytes(heap).grace(5 * MILLI);
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let index =
            Index::create(region, geometry, Clock::System).unwrap().with_eviction(Evict::S3Fifo).unwrap();
        let mut n = 0u64;
        while index.evictions().for_heap < 200 {
            n += 1;
            let put = index.put(&n.to_le_bytes(), &[7; SHORT], PutMode::Upsert);
            assert_eq!(put, Ok(PutOutcome::Inserted), "{size:?} {n}: {:?}", index.heap());
            assert!(n < 20_000, "{size:?}: {:?} {:?}", index.evictions(), index.heap());
        }
        let mut most = 0;
        for round in 0..6u64 {
            let before = index.evictions().evicted();
            let put = index.put(&(u64::MAX - round).to_le_bytes(), &vec![8; LONG], PutMode::Upsert);
            assert_eq!(put, Ok(PutOutcome::Inserted), "{size:?}: {:?}", index.heap());
            most = most.max(index.evictions().evicted() - before);
        }
        println!("{size:?}: of {n}, at most {most} went for one");
        assert!(most <= 3 * (LONG / SHORT) as u64, "{size:?}: {most} went");
    }
}
