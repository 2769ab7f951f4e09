use super::*;
use crate::config::{Config, TableSize};
use crate::faults::Broken;
use crate::index::seams::Nobody;
use crate::index::segment::Segment;
use crate::index::whole::Table;
use crate::index::{ChangeWaits, Index};
use crate::layout::slot::Stored;
use crate::outcome::PutMode;
use crossbeam_epoch as epoch;
use std::cell::Cell;

/// Puts another value of one key, once, just before a copy of the old one is to be named.
struct Meddling<'a> {
    index: &'a Index,
    has_put: Cell<bool>,
}

impl ExtentNames for Meddling<'_> {
    fn named(&self, hash: First, number: u64) -> Option<(First, Reference)> {
        self.index.table().named(hash, number)
    }

    fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten> {
        if hash == self.index.geometry().hashed(b"key").first() && !self.has_put.replace(true) {
            self.index.put(b"key", &[3; 240], PutMode::Update).unwrap();
        }
        self.index.table().rename(hash, old, new)
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Room for 14 of these values in each of three blocks, and one block is the reserve.
fn four_blocks() -> (Index, Clock) {
    four_blocks_of(Config::default())
}

/// Such room in a table that is otherwise so.
fn four_blocks_of(config: Config) -> (Index, Clock) {
    let config = Config {
        size: TableSize::Slots(64),
        key_max: 8,
        value_max: 240,
        inline_max: Some(30),
        heap_bytes: Some(4 * 4096),
        grace: Duration::from_micros(1),
        ..config
    };
    let geometry = config.geometry().unwrap();
    let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

/// A value that comes in pieces of any lengths is the same value.
#[test]
fn a_value_comes_in_uneven_pieces() {
    let value: Vec<u8> = (0..240u32).map(|n| (n * 37 / 4) as u8).collect();
    for len in (60..=240).step_by(11).chain([239, 240]) {
        for piece in (1..=17).chain([63, 64, 65, 200]) {
            let (index, _clock) = four_blocks();
            let mut draft = index.draft_at_once(b"key", len).unwrap().unwrap();
            for bytes in value[..len].chunks(piece) {
                draft.write(bytes);
            }
            assert_eq!(draft.left(), 0);
            index.put_draft(b"key", draft, PutMode::Insert.into(), None).unwrap();
            let mut got = Vec::new();
            assert!(index.reader().get_into(b"key", &mut got).unwrap());
            assert_eq!(got, value[..len], "{len} bytes in pieces of {piece}");
        }
    }
}

/// A block that should leave has a value that a client uploads. Nobody looks at it without pause until it
/// is there, and then it moves.
#[test]
fn an_unfinished_upload_is_waited_for_with_pauses() {
    let (index, clock) = four_blocks();
    let mut draft = index.draft_at_once(b"key", 240).unwrap().unwrap();
    for n in 0..41u64 {
        assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
    }
    (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
    clock.advance(Duration::from_micros(10));
    let is_leaving = || lock(&index.table().extents().unwrap().heap).heap.is_leaving();
    let waits: Vec<_> = (0..100).map(|_| index.tidy()).collect();
    assert!(is_leaving() && waits.iter().filter(|wait| **wait == Some(AGAIN)).count() > 40, "{waits:?}");
    draft.write(&[3; 240]);
    index.put_draft(b"key", draft, PutMode::Insert.into(), None).unwrap();
    for _ in 0..100 {
        clock.advance(AGAIN);
        index.tidy();
    }
    assert_eq!((is_leaving(), index.tidy()), (false, None));
    assert!(index.heap().moved_bytes > 0 && index.heap().open_blocks == 1, "{:?}", index.heap());
    // Whole extents have moved: a header, a value, and what rounds them up.
    let extent = extent_bytes(240);
    assert!(extent > 240 && index.heap().moved_bytes.is_multiple_of(extent), "{:?}", index.heap());
    let mut got = Vec::new();
    assert!(index.reader().get_into(b"key", &mut got).unwrap() && got == [3; 240]);
}

/// X10: a block that should leave has a value that a client uploads. It moves between any two pieces, also in
/// the middle of a word, and not once it is whole and about to be named.
#[test]
fn an_unfinished_upload_moves() {
    let value: Vec<u8> = (0..240u32).map(|n| (n * 37 / 4) as u8).collect();
    for len in (0..240).step_by(7).chain([240]) {
        let (index, clock) = four_blocks();
        let upload = index.upload(b"key", 240).unwrap().unwrap();
        assert!(upload.write(&value[..len]));
        let at = || lock(&upload.cell).as_ref().map(ExtentDraft::at);
        let begun = at();
        for n in 0..41u64 {
            assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
        }
        (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
        for _ in 0..100 {
            clock.advance(AGAIN);
            index.tidy();
        }
        assert!(at() != begun && index.tidy().is_none() && index.heap().open_blocks == 1, "{len} bytes");
        assert!(upload.write(&value[len..]) && !upload.write(b"more"));
        let draft = upload.whole().unwrap();
        assert!(lock(&index.table().extents().unwrap().heap).uploads.is_empty());
        index.put_draft(b"key", draft, PutMode::Insert.into(), None).unwrap();
        let mut got = Vec::new();
        assert!(index.reader().get_into(b"key", &mut got).unwrap() && got == value, "{len} bytes");
        (36..41u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
        assert_eq!(index.heap().live_bytes, extent_bytes(240), "{len} bytes");
        // One that is not whole leaves nothing.
        let upload = index.upload(b"key", 240).unwrap().unwrap();
        assert!(upload.write(&value[..len / 2]) && upload.whole().is_none());
        assert_eq!(index.heap().live_bytes, extent_bytes(240), "{len} bytes");
        assert!(lock(&index.table().extents().unwrap().heap).uploads.is_empty());
    }
}

/// A damaged region: two slots name one value, or a slot names what is no value. The takeover frees the slot of
/// one of the two, or of the one, and counts it; all else is there, and the books are right.
#[test]
fn keys_without_values_are_freed() {
    let growing = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
    for (size, heap_bytes) in [(TableSize::Slots(64), Some(1 << 18)), (growing, None)] {
        for is_anothers in [false, true] {
            let config = Config { size, value_max: 1_000, heap_bytes, ..Config::short() };
            let geometry = config.inline_max(30).geometry().unwrap();
            let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
            let index = Index::create(region, geometry, clock.clone()).unwrap();
            let keys: [&[u8]; 3] = [b"one", b"two", b"three"];
            (0..).zip(keys).for_each(|(n, key)| assert!(index.put(key, &[n; 900], PutMode::Insert).is_ok()));
            let named = |key: &[u8]| {
                let hash = index.geometry().hashed(key).first();
                let name = |segment: &Segment| {
                    let all = segment.homes().all_references(crate::base::cores::Cores(1)).into_iter();
                    all.map(|(_, name)| name).find(|name| {
                        let at = Extents::first_word(name) - EXTENT_HEADER_WORDS + 1;
                        segment.region().load(at) == hash.0
                    })
                };
                index.table().with_segment_of(hash, name).unwrap()
            };
            let (one, two) = (named(b"one"), named(b"two"));
            let bad = if is_anothers { two } else { Reference { offset: one.offset + 1, ..one } };
            let key = index.geometry().hashed(b"one");
            index.table().with_segment_of(key.first(), |segment| {
                let slots = segment.homes().all_references(crate::base::cores::Cores(1)).into_iter();
                let slot =
                    slots.map(|(slot, _)| slot).find(|&slot| segment.homes().key_in(slot)[..] == *b"one")?;
                let bytes = bad.to_bytes();
                segment.slots().rewrite(
                    &segment.slots().lock_slot(slot),
                    slot,
                    b"one",
                    &Stored::in_heap(&bytes),
                    None,
                );
                Some(())
            });
            let region = index.region().alias();
            drop(index);
            let (index, found) = Index::open(region, clock).unwrap();
            assert_eq!((found.misplaced, found.keys, index.len()), (1, 2, 2), "{size:?}: {found:?}");
            let heap = index.heap();
            assert_eq!((heap.values, heap.live_bytes), (2, 2 * extent_bytes(900)), "{size:?}: {heap:?}");
            let mut got = Vec::new();
            let there = keys.map(|key| index.reader().get_into(key, &mut got).unwrap());
            assert!(there[2] && there[0] != there[1] && (is_anothers || there[1]), "{size:?}: {there:?}");
            assert!(got == [2; 900], "{size:?}");
            for key in keys {
                assert!(index.put(key, &[7; 900], PutMode::Upsert).is_ok(), "{size:?}");
                assert!(index.reader().get_into(key, &mut got).unwrap() && got == [7; 900], "{size:?}");
            }
        }
    }
}

/// T1, X5: the next server of one that was killed waits twice the grace time, and no memory of the heap is used
/// before readers of the longest value have done. Neither is a nanosecond shorter: a client's clock may run at half
/// the rate.
#[test]
fn a_takeover_waits_as_long_as_readers_may() {
    let growing = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
    for (size, heap_bytes) in [(TableSize::Slots(64), Some(1 << 18)), (growing, None)] {
        let config = Config { size, value_max: 1_000, heap_bytes, ..Config::short() };
        let geometry = config.inline_max(30).geometry().unwrap();
        let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
        let index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
        assert!(index.put(b"key", &[1; 900], PutMode::Insert).is_ok());
        let (region, killed_ns) = (index.region().alias(), clock.now_ns());
        drop(index);
        let (index, _) = Index::open(region, clock.clone()).unwrap();
        let begins_ns = clock.now_ns();
        assert!(begins_ns - killed_ns >= 2 * geometry.grace().as_nanos() as u64, "{size:?}");
        let longest = geometry.heap().kept_for(geometry.grace(), 1_000);
        let draft = || index.table().extents().unwrap().draft(geometry.hashed(b"key").first(), 900).map(drop);
        let busy = |wait| assert!(matches!(draft(), Err(NoMemory::Busy(left)) if left == wait), "{size:?}");
        busy(longest);
        clock.advance(longest - Duration::from_nanos(1));
        busy(Duration::from_nanos(1));
        clock.advance(Duration::from_nanos(1));
        assert!(draft().is_ok(), "{size:?}");
    }
}

/// X6: a put comes between the copying of an extent and its naming.
fn put_while_it_moves() -> bool {
    let (index, clock) = four_blocks();
    index.put(b"key", &[1; 240], PutMode::Insert).unwrap();
    for n in 0..41u64 {
        assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
    }
    (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
    let extents = index.table().extents().unwrap();
    let meddling = Meddling { index: &index, has_put: Cell::new(false) };
    for _ in 0..100 {
        clock.advance(Duration::from_micros(10));
        extents.tidy(&meddling);
    }
    assert!(meddling.has_put.get(), "the key's extent has moved");
    let mut got = Vec::new();
    assert!(index.reader().get_into(b"key", &mut got).unwrap());
    assert!(got == [1; 240] || got == [3; 240]);
    got == [3; 240]
}

/// Whether the copy of a key that is about to go to a segment's child gets an extent's new name; and
/// whether the original does.
fn renamed_in_copy_and_original() -> [bool; 2] {
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
    let geometry =
        Config { size, value_max: 240, inline_max: Some(30), ..Config::short() }.geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry.clone(), Clock::manual()).unwrap();
    let directory = |n: &u64| geometry.hashed(&n.to_le_bytes()).first().directory();
    let name = (0..).find(|n| directory(n) & 1 == 1).unwrap().to_le_bytes();
    index.put(&name, &[7; 240], PutMode::Insert).unwrap();
    index.split(&name);
    let (Table::Many(growth), guard, key) = (index.table(), epoch::pin(), geometry.hashed(&name)) else {
        unreachable!("it grows")
    };
    let (parent, _, child) = growth.pair_at(key.first().directory(), &guard);
    let slot = parent.slots().seek(&key, true).at().unwrap();
    let old = parent.reference_in(slot).unwrap();
    let copy = child.expect("a split is under way");
    assert!(copy.put_copy(key, parent.slots().read(slot).stored()));
    let new = Reference { number: old.number + 1, ..old };
    [copy, parent].map(|segment| segment.rename(key.first(), &old, &new).is_some())
}

/// X6, L8: the copy may be erased again.
#[test]
fn an_extent_is_renamed_where_its_key_is() {
    assert_eq!(renamed_in_copy_and_original(), [false, true]);
    let _broken = Broken::rule(Rule::MoveHere);
    assert_eq!(renamed_in_copy_and_original(), [true, true], "case lost");
}

#[test]
fn a_put_while_an_extent_moves_stays() {
    assert!(put_while_it_moves());
    let _broken = Broken::rule(Rule::MoveCheck);
    // The other value is lost, or the heap notices.
    let noticed = std::panic::catch_unwind(put_while_it_moves).map_or(true, |stays| !stays);
    assert!(noticed, "case lost");
}

/// A value has gone before the put that has named it has counted it: no count is below zero.
#[test]
fn a_value_that_has_gone_at_once_is_none() {
    let (index, _clock) = four_blocks();
    let mut draft = index.draft_at_once(b"key", 240).unwrap().unwrap();
    draft.write(&[3; 240]);
    let named = index.geometry().slot_reference(b"key", draft.finish());
    let waits = ChangeWaits::default();
    index.table().change(b"key", PutMode::Insert, named.stored(), Nobody, &waits).unwrap();
    // It is visible.
    assert!(index.remove(b"key").unwrap());
    assert_eq!(index.heap().values, 0);
    draft.named();
    assert_eq!(index.heap().values, 0);
}

/// Puts in two steps end, while a thread copies what has come of the value of one to other memory. Nobody else waits for that.
#[test]
fn a_start_that_is_given_up_holds_up_nobody() {
    let tidies = |index: &Index| {
        index.tidy();
    };
    let starts_again = |index: &Index| {
        index.put_start(&index.start_session().unwrap(), b"key", 1, HOUR).unwrap();
    };
    let ends: [fn(&Index); 2] = [tidies, starts_again];
    for end in ends {
        let (index, clock) = four_blocks_of(Config { life: true, owners: true, ..Config::default() });
        let session = index.start_session().unwrap();
        index.put_start(&session, b"key", 240, HOUR).unwrap();
        let cell = lock(&index.table().extents().unwrap().heap).uploads.values().next().cloned().unwrap();
        let copying = lock(&cell);
        clock.advance(2 * HOUR);
        let (told, is_told) = std::sync::mpsc::channel();
        let index = &index;
        std::thread::scope(|scope| {
            scope.spawn(|| end(index));
            scope.spawn(move || {
                while index.starts().late == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                told.send(())
            });
            let is_free = is_told.recv_timeout(Duration::from_secs(60)).is_ok();
            drop(copying);
            assert!(is_free, "who looks at what is started waits");
        });
        drop(session);
    }
}
