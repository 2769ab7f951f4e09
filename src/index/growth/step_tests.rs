//! Steps of splits and merges, one at a time.

use super::Growth;
use super::ahead::Ahead;
use super::live::UnusedMemory;
use super::memory::KEPT_FREE;
use super::pace::Pace;
use super::pairs::Driven;
use crate::base::clock::Clock;
use crate::base::sync::lock;
use crate::config::{Config, TableSize};
use crate::index::Index;
use crate::index::homes::{Trace, WaitingTrace};
use crate::index::share::KeyShare;
use crate::index::start::Start;
use crate::index::whole::Table;
use crate::layout::segment::Named;
use crate::outcome::{PutMode, PutOutcome};
use crate::region::Region;
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::time::Duration;

/// A table of a few slots a segment, at a pace for these, and its clock.
fn growing(bytes_max: u64) -> (Growth, Clock) {
    let size = TableSize::Growing { bytes_max, segment_slots: Some(64) };
    let geometry = Config { size, ..Config::short() }.geometry().unwrap();
    let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
    (
        Growth::create_unready(
            region,
            geometry,
            clock.clone(),
            &Start { pace: Pace::small(), ..Start::default() },
        )
        .unwrap(),
        clock,
    )
}

/// When there is more to do: at once while the directory's next half is not whole; a moment later while a pair
/// waits for another thread, though no trace is due; and never when all is done.
#[test]
fn tidy_says_when_to_come_again() {
    let (growth, _clock) = growing(1 << 20);
    assert_eq!((0..4).map(|_| growth.tidy()).next_back(), Some(None));
    growth.split(b"a key");
    let pair = lock(&growth.pairs).nth(0).unwrap();
    let taken = pair.state();
    assert_eq!(growth.tidy(), Some(Duration::from_millis(1)));
    drop(taken);
    growth.drive_on(u32::MAX);
    // The directory has 128 entries then, and the next half as many, of which a step writes 64.
    for _ in 1..7 {
        growth.split(b"a key");
        growth.drive_on(u32::MAX);
    }
    let waits: Vec<_> = (0..3).map(|_| growth.tidy()).collect();
    assert_eq!(waits, [Some(Duration::ZERO), None, None]);
    assert_eq!((growth.growth_counts().depth, lock(&growth.directory).fill().ok()), (7, Some(true)));
}

/// A split that waits holds up no other.
#[test]
fn a_pair_that_waits_is_put_last() {
    let (growth, _clock) = growing(1 << 20);
    growth.split(b"a key");
    growth.drive_on(u32::MAX);
    let guard = epoch::pin();
    for memory in [0, 1] {
        growth.begin_split(growth.live.get(memory, &guard).unwrap()).unwrap();
    }
    let first = lock(&growth.pairs).nth(0).unwrap();
    first.rest_until(u64::MAX);
    for _ in 0..growth.geometry.homes() {
        growth.tidy();
    }
    let counts = growth.growth_counts();
    assert_eq!((counts.splits, counts.splitting), (2, 1), "{counts:?}");
    growth.urge(&first);
    growth.drive_on(u32::MAX);
    assert_eq!(growth.growth_counts().splitting, 0);
}

/// A server's worker takes a pair on while the table grows for the keys that are foreseen: they are not forgotten.
#[test]
fn what_is_foreseen_waits_for_a_pair() {
    let (growth, _clock) = growing(1 << 20);
    growth.foresee(1_000);
    growth.split(b"a key");
    let pair = lock(&growth.pairs).nth(0).unwrap();
    let taken = pair.state();
    assert_eq!((0..3).map(|_| growth.grow_as_foreseen()).collect::<Vec<_>>(), [Ahead::Waits; 3]);
    drop(taken);
    growth.drive_on(u32::MAX);
    while growth.grow_as_foreseen() == Ahead::On {}
    let counts = growth.growth_counts();
    assert!(counts.segments >= 1_000 / 64 && !growth.foresees(), "{counts:?}");
}

/// A put finds its segment full, and finds the merge in which that is the parent. It loses the CPU until the merge
/// has ended, and the same two segments are a pair again: it gives nothing up.
#[test]
fn a_merge_that_has_ended_is_not_given_up() {
    let (growth, _clock) = growing(1 << 20);
    growth.split(b"a key");
    growth.drive_on(u32::MAX);
    growth.merge(b"a key");
    let merge = lock(&growth.pairs).nth(0).unwrap();
    growth.drive_on(u32::MAX);
    assert_eq!(growth.growth_counts().merges, 1);
    // When what the merge has left is gone, and the child's memory is back.
    while growth.grace.until_next().is_some() {
        growth.wait_for_grace();
    }
    growth.split(b"a key");
    let guard = epoch::pin();
    let parent = growth.live.get(merge.parent, &guard).unwrap();
    growth.give_up_merge(&merge, parent);
    assert_eq!(growth.drive(&merge, u32::MAX, &guard), Driven::Ended);
    let counts = growth.growth_counts();
    assert_eq!((counts.given_up, counts.splitting), (0, 1));
}

/// The memory of merged segments comes back when no thread uses them any more: puts that need it wait for that.
#[test]
fn a_put_waits_for_memory_that_comes_back() {
    let size = TableSize::Growing { bytes_max: 256 << 10, segment_slots: Some(64) };
    let geometry = Config { size, grace: Duration::ZERO, ..Config::short() }.geometry().unwrap();
    let index = Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap();
    let put = |n: u64| index.put(&n.to_le_bytes(), b"", PutMode::Insert);
    let keys = (0..).take_while(|&n| put(n).is_ok()).count() as u64;
    let (pinned, is_pinned) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel();
    let user = std::thread::spawn(move || {
        let guard = epoch::pin();
        pinned.send(()).unwrap();
        ends.recv().unwrap();
        // The puts below have begun to wait; or not, on a slow machine, and then they need not.
        std::thread::sleep(Duration::from_millis(50));
        drop(guard);
    });
    is_pinned.recv().unwrap();
    (0..keys).for_each(|n| assert_eq!(index.remove(&n.to_le_bytes()), Ok(true)));
    while index.tidy() == Some(Duration::ZERO) {}
    let Table::Many(growth) = index.table() else { unreachable!() };
    assert!(lock(&growth.memory).coming > 0, "{:?}", growth.growth_counts());
    end.send(()).unwrap();
    (0..keys * 9 / 10).for_each(|n| assert_eq!(put(n), Ok(PutOutcome::Inserted), "{n} of {keys}"));
    user.join().unwrap();
}

/// A trace that waits is of one use of its segment's memory. The next use has nothing to do with it.
#[test]
fn a_trace_is_of_one_use_of_its_memory() {
    let (growth, clock) = growing(1 << 20);
    let guard = epoch::pin();
    let segment = growth.live.get(0, &guard).unwrap();
    let incarnation = segment.geometry().incarnation();
    for (incarnation, reaped) in [(incarnation - 1, 0), (incarnation, 1), (incarnation + 1, 1)] {
        let trace = Trace::Filter { home: 0 };
        growth.grace.push(0, 1, WaitingTrace { memory: 0, incarnation, trace });
        clock.advance(Duration::from_nanos(1));
        growth.reap(usize::MAX);
        assert_eq!(growth.grace.until_next(), None);
        assert_eq!(segment.homes().counters().sum(|part| &part.reaped), reaped);
    }
}

/// Memory that comes back when the server has ended is the next one's: nothing is done with it.
#[test]
fn memory_that_comes_back_too_late_is_left_alone() {
    let (growth, _clock) = growing(1 << 20);
    let memory = Arc::clone(&growth.memory);
    let unused = |memory| UnusedMemory::of(growth.part(Named { memory, incarnation: 1 }, KeyShare::ALL));
    let late: Vec<_> = (0..KEPT_FREE as u32 + 1).map(unused).collect();
    lock(&memory).put(unused(7));
    assert_eq!(lock(&memory).free, [7]);
    drop(growth);
    late.into_iter().for_each(|piece| lock(&memory).put(piece));
    let memory = lock(&memory);
    assert_eq!((&memory.free[..], memory.bare.len()), (&[7][..], 0));
}
