//! What an owner's tidying keeps in mind: entries that could not be removed, many owners, hashes of keys that have gone.

use super::{HASHES_LOOKED_AT, OWNERS_AT_ONCE, OwnedHashes};
use crate::base::clock::Clock;
use crate::base::sync::{lock, try_lock};
use crate::config::{Config, TableSize};
use crate::index::Index;
use crate::index::segment::Which;
use crate::index::whole::Table;
use crate::layout::hash::{First, Seeds};
use crate::layout::owners::time_in;
use crate::outcome::{PutError, PutMode, PutOptions};
use crate::region::Region;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_micros(200);

fn index() -> (Index, Clock) {
    let config = Config {
        size: TableSize::Slots(2_048),
        key_max: 8,
        value_max: 16,
        grace: GRACE,
        seeds: Some(Seeds::from_number(5)),
        life: true,
        owners: true,
        ..Config::default()
    };
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    (Index::create(Region::private(geometry.region_bytes()), geometry, clock.clone()).unwrap(), clock)
}

/// An entry that cannot be removed is tried again, and until then its owner's number is not given again.
#[test]
fn what_could_not_be_removed_is_tried_again() {
    let (index, clock) = index();
    let owners = index.owners().unwrap();
    let session = index.owner(7, SECOND).unwrap();
    for n in 0..5u64 {
        index.put_of(&session, &n.to_le_bytes(), b"", PutOptions::new()).unwrap();
    }
    index.remove_owner(7).unwrap();
    for round in 0..20 {
        let mut tried = 0;
        let later = owners.tidy(index.shared_table(), 100, |_, owner| {
            tried += 1;
            owner != 7
        });
        assert_eq!((tried, later), (1, Some(Duration::from_millis(1))), "{round}");
        clock.advance(SECOND);
        assert_eq!(index.owner(7, SECOND).unwrap_err(), PutError::OwnerGone { owner: 7 }, "{round}");
    }
    assert_eq!(index.len(), 5);
    while index.tidy() == Some(Duration::ZERO) {}
    clock.advance(2 * GRACE);
    index.tidy();
    assert!(index.is_empty() && index.owner(7, SECOND).is_ok());
}

/// More owners are away than have a turn at once. Those in front have come again: the others have theirs all the same, if the
/// table is tidied when it says.
#[test]
fn many_owners_have_their_turns() {
    const OWNERS: u16 = 2 * OWNERS_AT_ONCE as u16 + 10;
    let (index, clock) = index();
    for owner in 1..=OWNERS {
        let session = index.owner(owner, SECOND).unwrap();
        index.put_of(&session, &owner.to_le_bytes(), b"", PutOptions::new()).unwrap();
    }
    let back: Vec<_> = (1..=OWNERS_AT_ONCE as u16).map(|owner| index.owner(owner, SECOND).unwrap()).collect();
    let begun_ns = clock.now_ns();
    while let Some(later) = index.tidy() {
        clock.advance(later.max(Duration::from_millis(1)));
        assert!(clock.now_ns() - begun_ns < 10 * SECOND.as_nanos() as u64, "there is always more to do");
    }
    assert_eq!(index.len(), OWNERS_AT_ONCE as u64, "those that came again");
    assert_eq!(index.owners().unwrap().0.all.lock().len(), back.len(), "no more is known of the others");
}

/// An owner whose keys come and go has as many hashes in mind as it has keys, and half as many again, or a thousand.
#[test]
fn hashes_of_keys_that_have_gone_are_forgotten() {
    let hash = |n: u64| First(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for there in [0, 100, 3_000] {
        let mut hashes = OwnedHashes::default();
        for n in 0..20_000u64 {
            let is_there = |old| (n.saturating_sub(there)..=n).any(|n| hash(n) == old);
            for old in hashes.note(hash(n)).into_iter().filter(|&old| is_there(old)) {
                assert!(hashes.keep(old), "it was taken out");
            }
            if n % 1_000 == 0 {
                assert_eq!(hashes.all.len(), hashes.order.len());
            }
        }
        let most = HASHES_LOOKED_AT.max(2 * there as usize) + 2;
        assert!(hashes.all.len() <= most && hashes.order.len() <= most, "{there}: {}", hashes.order.len());
        let taken: FxHashSet<First> = std::iter::from_fn(|| hashes.take()).collect();
        assert!(
            (20_000 - there..20_000).all(|n| taken.contains(&hash(n))),
            "{there}: those of all that are there"
        );
        assert!(hashes.all.is_empty());
    }
    // One that is noted again stands once.
    let mut hashes = OwnedHashes::default();
    (0..10).for_each(|_| assert!(hashes.note(hash(1)).is_empty()));
    assert_eq!((hashes.take(), hashes.take()), (Some(hash(1)), None));
}

/// Of an owner who puts nothing any more, others remove or replace what he had: what was noted of it is forgotten when the table
/// is tidied. What he has still goes with him.
#[test]
fn notes_of_what_others_remove_are_forgotten() {
    const KEYS: u64 = 1_500;
    let removes = |index: &Index, key: &[u8]| assert!(index.remove(key).unwrap());
    let replaces = |index: &Index, key: &[u8]| {
        index.put(key, b"theirs", PutMode::Update).expect("it is there");
    };
    let ways: [fn(&Index, &[u8]); 2] = [removes, replaces];
    for way in ways {
        let (index, clock) = index();
        let session = index.owner(7, SECOND).unwrap();
        let key = |n: u64| n.to_le_bytes();
        for n in 0..KEYS {
            index.put_of(&session, &key(n), b"", PutOptions::new()).unwrap();
        }
        assert_eq!(index.notes().owned, KEYS);
        (10..KEYS).for_each(|n| way(&index, &key(n)));
        while index.tidy() == Some(Duration::ZERO) {}
        assert_eq!(index.notes().owned, HASHES_LOOKED_AT as u64, "and no more");
        let before = index.len();
        index.remove_owner(7).unwrap();
        while index.tidy() == Some(Duration::ZERO) {}
        assert_eq!(index.len(), before - 10);
        clock.advance(2 * GRACE);
        index.tidy();
        assert!(index.owner(7, SECOND).is_ok());
    }
}

/// L16: an owner's put looks whether another key of its is still there, while somebody has that key's lock. Meanwhile nobody
/// waits for the owner, and its other sessions begin. Returns whether that was so within this time.
fn waits_alone(patience: Duration) -> bool {
    let (index, _clock) = index();
    let (geometry, key) = (index.geometry(), |n: u64| n.to_le_bytes());
    let session = index.owner(7, SECOND).unwrap();
    for n in 0..HASHES_LOOKED_AT as u64 {
        index.put_of(&session, &key(n), b"", PutOptions::new()).unwrap();
    }
    let Table::One(one) = index.table() else { panic!("a table of one size") };
    let (slots, oldest) = (one.segment().slots(), key(0));
    let oldest = geometry.hashed(&oldest);
    let is_far = |n: &u64| {
        let first = |key| geometry.primary(key).first.0;
        (256..1_700).contains(&first(geometry.hashed(&key(*n))).abs_diff(first(oldest)))
    };
    let new = (2_000..).find(is_far).map(key).expect("some key stands far away");
    let owner = Arc::clone(&lock(&index.owners().unwrap().0.all)[&7]);
    let begun = Instant::now();
    let until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    };
    let faults = crate::faults::all_broken();
    let is_so = std::thread::scope(|scope| {
        let locked = slots.lock(slots.stripes_of_key(oldest));
        scope.spawn(|| {
            crate::faults::break_all(faults);
            index.put_of(&session, &new, b"", PutOptions::new()).unwrap();
        });
        let is_noted =
            || try_lock(&owner.state).is_none_or(|state| state.hashes.all.contains(&oldest.first()));
        // It has taken the oldest out to look, and nobody has its lock.
        let is_so = until(&|| !is_noted()) && index.owner(7, SECOND).is_ok();
        drop(locked);
        is_so
    });
    assert!(lock(&owner.state).hashes.all.contains(&oldest.first()), "it is there");
    is_so
}

#[test]
fn a_look_at_a_key_holds_up_no_owner() {
    assert!(waits_alone(Duration::from_secs(60)));
}

#[cfg(feature = "faults")]
#[test]
fn a_look_with_an_owners_lock_is_noticed() {
    let _broken = crate::faults::Broken::rule(crate::faults::Rule::OwnerLast);
    assert!(!waits_alone(2 * SECOND));
}

/// What is said of an owner's absence in the region goes with its last entry, so that the next server does not take it for one
/// that is away.
#[test]
fn a_number_that_is_free_has_no_time() {
    let (index, clock) = index();
    let (region, geometry) = (index.region(), index.geometry());
    let time = |owner| time_in(region.load(geometry.owner_time_word(owner)), owner);
    let [one, other] = [7, 8].map(|owner| index.owner(owner, SECOND).unwrap());
    index.put_of(&one, b"key", b"", PutMode::Insert.into()).unwrap();
    assert!(time(7).is_some() && time(8).is_some());
    index.remove_owner(7).unwrap();
    while index.tidy() == Some(Duration::ZERO) {}
    clock.advance(2 * GRACE);
    index.tidy();
    assert!(time(7).is_none() && time(8).is_some());
    drop(other);
}

/// A key that is started leaves for whoever removes it for a reason that is so: an end that has come, not one that its entry has
/// no more; nobody who makes room, or has another owner.
#[test]
fn a_started_key_leaves_only_for_a_reason() {
    let (index, clock) = index();
    let session = index.start_session().unwrap();
    let is_there = || index.reader().get_into(b"key", &mut Vec::new()).unwrap();
    index.put_with(b"key", b"old", PutOptions::new().ttl(10 * SECOND)).unwrap();
    let ticket = index.put_start(&session, b"key", 0, 100 * SECOND).unwrap();
    let now = |seconds: u64| index.lives().unwrap().now() + 8 * seconds;
    for which in [Which::Ended(now(0)), Which::Ended(now(9)), Which::Of(7), Which::Unpinned] {
        assert_eq!(index.remove_by(b"key", which), Ok(false));
        assert!(is_there());
    }
    clock.advance(10 * SECOND);
    assert_eq!((index.remove_by(b"key", Which::Ended(now(0))), is_there()), (Ok(true), false));
    // Its slot is held, and it is nobody's to remove. It is no key.
    for which in [Which::Ended(now(0)), Which::Unpinned, Which::Any] {
        assert_eq!((index.remove_by(b"key", which), index.len(), index.starts().started), (Ok(false), 0, 1));
    }
    index.put_commit(&session, b"key", ticket, None).unwrap();
    assert!(is_there());
}

/// With the server all sessions end: nobody's entries go for that, be he away for how long, and whoever was away before. Who is
/// removed goes all the same.
#[test]
fn nobody_goes_when_the_server_ends() {
    let (index, clock) = index();
    let sessions = [(1, Duration::ZERO), (2, SECOND), (3, SECOND), (4, SECOND)]
        .map(|(number, absent_for)| index.owner(number, absent_for).unwrap());
    for session in &sessions {
        index.put_of(session, &session.owner().to_le_bytes(), b"", PutOptions::new()).unwrap();
    }
    let [one, two, three, _four] = sessions;
    drop(three);
    index.end_owners();
    drop((one, two));
    index.remove_owner(4).unwrap();
    for _ in 0..100 {
        index.tidy();
        clock.advance(Duration::from_millis(50));
    }
    let is_there = |number: u16| index.reader().get_into(&number.to_le_bytes(), &mut Vec::new()).unwrap();
    assert_eq!([1, 2, 3, 4].map(is_there), [true, true, true, false]);
    assert_eq!(index.len(), 3);
}

/// Who ends entries in passing leaves the rest to the thread that is there for that, and calls it.
#[test]
fn the_thread_that_ends_entries_is_called() {
    use std::sync::mpsc::channel;
    let (index, clock) = index();
    for n in 0..500u64 {
        index.put_with(&n.to_le_bytes(), b"", PutOptions::new().ttl(SECOND)).unwrap();
    }
    let (woke, has_woken) = channel();
    let ender = std::thread::spawn(move || {
        std::thread::park();
        woke.send(()).unwrap();
    });
    index.set_ender(ender.thread().clone());
    index.tidy();
    assert!(has_woken.try_recv().is_err(), "nothing has ended");
    clock.advance(2 * SECOND);
    assert_eq!(index.tidy(), Some(Duration::ZERO), "there is more than is ended in passing");
    let called = has_woken.recv_timeout(Duration::from_secs(60));
    ender.thread().unpark();
    ender.join().unwrap();
    assert!(called.is_ok());
    assert!(!index.end_due() && index.is_empty(), "it ends the rest");
}
