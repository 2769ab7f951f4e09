use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::fabric::shm::{MappedSlots, Shm};
use crate::fabric::{Direct, Fabric, ReadId, Stretch};
use crate::get::Proof;
use crate::index::Index;
use crate::layout::geometry::Layout;
use crate::layout::hash::{Seeds, mix};
use crate::outcome::{PutMode, ReadError};
use crate::placement::families::presets;
use crate::reader::{Limits, Reader};
use crate::region::Region;
use crate::sink::Sink;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

const SLOTS: u64 = 1_000;

fn index(layout: Layout, value_max: usize) -> Index {
    let (size, seeds) = (TableSize::Slots(SLOTS), Some(Seeds::from_number(1)));
    let geometry =
        Config { layout, size, seeds, key_max: 8, value_max, ..Config::default() }.geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    Index::create(region, geometry, Clock::manual()).unwrap()
}

/// A table of that layout with keys `0..n` in it, four fifths full.
fn filled(layout: Layout) -> (Index, u64) {
    let (index, n) = (index(layout, 8), SLOTS * 4 / 5);
    for n in 0..n {
        index.put(&n.to_le_bytes(), &mix(n).to_le_bytes(), PutMode::Insert).unwrap();
    }
    (index, n)
}

fn reader<'a>(index: &'a Index, hints: &'a Hints) -> Reader<'a, Shm<'a>> {
    let fabric = Shm::new(index.region(), index.geometry());
    Reader::new(fabric, index.geometry(), Clock::manual(), Limits::default()).with_hints(hints)
}

/// Looks for every key, and as many that are absent. Each answer is right.
fn look_for_all<F: Fabric>(reader: &mut Reader<'_, F>, n: u64)
where
    F::Error: std::fmt::Debug,
{
    let mut value = Vec::new();
    for key in 0..2 * n {
        assert_eq!(reader.get_into(&key.to_le_bytes(), &mut value).unwrap(), key < n, "{key}");
        assert!(key >= n || value == mix(key).to_le_bytes());
    }
}

/// Of a table that grows, the memory counts that the segments need where the client has come to: none at first.
#[test]
fn memory_of_a_table_that_grows() {
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
    let geometry =
        Config { size, key_max: 8, value_max: 8, seeds: Some(Seeds::from_number(7)), ..Config::default() }
            .geometry()
            .unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::manual()).unwrap();
    let hints = Hints::new(index.geometry(), usize::MAX).unwrap();
    let (slots, mut segments) = (index.geometry().slots(), 0);
    assert_eq!(hints.bytes(), index.geometry().segments_max() * slots);
    for n in 0..2_000u64 {
        assert!(hints.bytes_used() <= segments * slots && hints.bytes_used() < hints.bytes());
        index.put(&n.to_le_bytes(), b"", PutMode::Insert).unwrap();
        segments = index.growth().segments;
        assert!(reader(&index, &hints).get_into(&n.to_le_bytes(), &mut Vec::new()).unwrap());
    }
    // A client comes to a segment when it looks for a key there.
    let used = hints.bytes_used();
    assert!(segments > 10 && used >= segments / 2 * slots, "{segments}: {used}");
}

/// The four tags of a key are four different bytes, and none is 0. A word is compared as its
/// bytes are.
#[test]
fn tags_of_a_key() {
    let mut seen = [false; 256];
    for n in 0..20_000 {
        let tags = Tags::of(First(mix(n)));
        let ranges = [1..=127u8, 128..=191, 192..=223, 224..=255];
        assert!((0..4).all(|nth| ranges[nth].contains(&tags.0[nth])), "{tags:?}");
        tags.0.iter().for_each(|&tag| seen[usize::from(tag)] = true);
        // A word with some of the tags, their neighbours, 0 and 255.
        let near = |nth: u64| match mix(n * 8 + nth) % 6 {
            0 => 0,
            1 => 255,
            other => tags.0[other as usize % 4].wrapping_add((mix(n + nth) % 3) as u8).wrapping_sub(1),
        };
        let bytes: [u8; 8] = std::array::from_fn(|nth| near(nth as u64));
        let found = matches(u64::from_le_bytes(bytes), tags).to_le_bytes();
        assert!((0..8).all(|nth| found[nth] == if tags.has(bytes[nth]) { 0x80 } else { 0 }), "{bytes:?}");
    }
    assert!(seen[1..].iter().all(|&seen| seen) && !seen[0]);
}

/// The next tag goes round, and past those that another key has.
#[test]
fn the_next_tag() {
    let tags = Tags([1, 128, 192, 224]);
    let other = |tags| Tags(tags);
    let nobody = other([2, 129, 193, 225]);
    assert_eq!([1, 128, 192, 224, 77].map(|tag| tags.after(tag, nobody)), [128, 192, 224, 1, 1]);
    assert_eq!(tags.after(1, other([2, 128, 192, 225])), 224);
    assert_eq!(tags.after(1, other([2, 128, 192, 224])), 1);
    assert_eq!(tags.after(1, tags), 0);
}

/// Hints take what they may take, and no more than a byte a slot, however large a table says it
/// is.
#[test]
fn memory_is_bounded() {
    let layout = "windowed:8".parse().unwrap();
    let of = |slots, bytes| {
        let config = Config { layout, size: TableSize::Slots(slots), ..Config::short() };
        let geometry = config.geometry().unwrap();
        Hints::new(&geometry, bytes).map(|hints| (hints.bytes(), hints.is_whole()))
    };
    for (slots, bytes, expected) in [
        (1_000, 0, None),
        (1_000, 7, None),
        (1_000, 8, Some((8, false))),
        (1_000, 999, Some((992, false))),
        (1_000, 1_000, Some((1_000, true))),
        (1_001, 1_008, Some((1_008, true))),
        (1_000, usize::MAX, Some((1_000, true))),
        (1 << 39, 4_100, Some((4_096, false))),
    ] {
        assert_eq!(of(slots, bytes), expected, "{slots} slots, {bytes} bytes");
    }
}

/// Once every key has been looked for, hits READ single slots, in each layout: all of them where
/// no key overflows. Few READ two.
#[test]
fn hits_take_one_slot() {
    for preset in presets() {
        let (index, n) = filled(preset.layout);
        let Some(hints) = Hints::new(index.geometry(), usize::MAX) else {
            assert_eq!(preset.name, "list");
            continue;
        };
        let mut value = Vec::new();
        for _ in 0..6 {
            let mut reader = reader(&index, &hints);
            (0..n).for_each(|key| assert!(reader.get_into(&key.to_le_bytes(), &mut value).unwrap()));
        }
        let mut reader = reader(&index, &hints);
        (0..n).for_each(|key| assert!(reader.get_into(&key.to_le_bytes(), &mut value).unwrap()));
        let (stats, reads, hinted) = (reader.stats(), reader.read_counts(), reader.hint_counts());
        assert_eq!((stats.gets, stats.hits), (n, n));
        let overflown = if preset.layout.block_slots == 0 { 0 } else { index.displaced() as u64 };
        // A few keys match three slots, and READ a window.
        assert!(hinted.hits + overflown >= n - n / 50, "{}: {hinted:?}, {overflown}", preset.name);
        assert!(hinted.reads <= hinted.hinted + n / 10, "{}: {hinted:?}", preset.name);
        let slot = index.geometry().shape().bytes() as u64;
        let windows = n - hinted.hits;
        assert!(reads.bytes >= hinted.reads * slot, "{reads:?}");
        assert_eq!(reads.bytes == hinted.reads * slot, windows == 0, "{}: {reads:?}", preset.name);
    }
}

/// Whatever hints say, the answers are the same: tags at random, tags of another table, and tags
/// that all match. Each GET reads at most two slots more.
#[test]
fn any_tags_are_harmless() {
    for (preset, bytes) in presets().flat_map(|preset| [(preset, usize::MAX), (preset, 64)]) {
        let (index, n) = filled(preset.layout);
        let mut plain = index.reader();
        look_for_all(&mut plain, n);
        for seed in 0..4 {
            let Some(hints) = Hints::new(index.geometry(), bytes) else { continue };
            for (nth, word) in (0..).zip(&hints.words) {
                word.store([mix(nth ^ seed << 32), ONES * 7, !0][seed.min(2) as usize], Ordering::Relaxed);
            }
            let mut reader = reader(&index, &hints);
            look_for_all(&mut reader, n);
            let (all, hinted) = (reader.read_counts(), reader.hint_counts());
            assert!(hinted.reads <= 2 * hinted.hinted);
            assert!(all.reads <= plain.read_counts().reads + hinted.reads, "{all:?}, {hinted:?}");
        }
    }
}

/// A batch reads the same single slots as GETs one by one do, two of one look with one doorbell.
/// It may be broken off.
#[test]
fn batches_use_hints() {
    use std::ops::ControlFlow;
    let (index, n) = filled("windowed:8".parse().unwrap());
    let hints = Hints::new(index.geometry(), usize::MAX).unwrap();
    // Absent keys in between, and one too long.
    let mut keys: Vec<Vec<u8>> = (0..n + 100).map(|n| n.to_le_bytes().to_vec()).collect();
    keys.insert(7, vec![0; 9]);
    let number = |at: usize| if at > 7 { at as u64 - 1 } else { at as u64 };
    for round in 0..3 {
        let mut reader = reader(&index, &hints);
        let mut answered = vec![0; keys.len()];
        let ended = reader.get_each(&keys, |at, answer| {
            answered[at] += 1;
            match (at, answer) {
                (7, answer) => assert!(answer.is_err()),
                (at, Ok(value)) => {
                    let expected = (number(at) < n).then(|| mix(number(at)).to_le_bytes());
                    assert_eq!(value, expected.as_ref().map(|value| &value[..]));
                }
                other => panic!("{other:?}"),
            }
            ControlFlow::Continue(())
        });
        assert_eq!(ended.unwrap(), ControlFlow::Continue(()));
        assert!(answered.iter().all(|&times| times == 1));
        let (stats, hinted, reads) = (reader.stats(), reader.hint_counts(), reader.read_counts());
        assert_eq!((stats.gets, stats.hits), (n + 100, n));
        assert!(round == 0 || hinted.hits > n * 99 / 100, "{round}: {hinted:?}");
        assert!(round == 0 || reads.doorbells * 8 < reads.reads, "{reads:?}");
    }
    for stop in [1, 10, 500] {
        let (mut reader, mut left) = (reader(&index, &hints), stop);
        let ended = reader.get_each(&keys, |_, _| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((ended.unwrap(), left), (ControlFlow::Break(()), 0));
        // READs of the broken-off batch are not taken for those of this one.
        look_for_all(&mut reader, n);
    }
}

/// A fabric with `credits` READs under way, each of which completes alone.
struct OneByOne {
    shm: Shm<'static>,
    credits: usize,
    posted: VecDeque<(ReadId, Window)>,
}

impl OneByOne {
    fn reader<'a>(index: &'static Index, hints: &'a Hints, credits: usize) -> Reader<'a, OneByOne> {
        let shm = Shm::new(index.region(), index.geometry());
        let fabric = OneByOne { shm, credits, posted: VecDeque::new() };
        Reader::new(fabric, index.geometry(), Clock::manual(), Limits::default()).with_hints(hints)
    }
}

impl Direct for OneByOne {}

impl Fabric for OneByOne {
    type Landed<'a> = MappedSlots<'static>;
    const EXACT: bool = true;
    type Mark = u64;
    type Error = ReadError;

    fn credits(&self) -> usize {
        self.credits
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.posted.extend(reads);
        assert!(self.posted.len() <= self.credits, "more READs than credits");
        Ok(())
    }

    fn poll(&mut self, sink: impl FnMut(ReadId, &mut MappedSlots<'static>)) -> Result<(), ReadError> {
        self.shm.post(&[self.posted.pop_front().expect("a READ under way")])?;
        self.shm.poll(sink)
    }

    fn mark(&mut self, home: u64) -> u64 {
        self.shm.mark(home)
    }

    fn proof(&mut self, home: u64, mark: u64) -> Proof {
        self.shm.proof(home, mark)
    }

    fn took_less(&mut self, mark: u64, allowance: Duration) -> bool {
        self.shm.took_less(mark, allowance)
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        self.shm.fetch(stretches, out)
    }
}

/// With one READ at a time, a key for which two slots are named is looked for as without hints.
#[test]
fn two_slots_take_two_credits() {
    let (index, n) = filled("windowed:8".parse().unwrap());
    let index: &Index = Box::leak(Box::new(index));
    let (geometry, hints) = (index.geometry(), Hints::new(index.geometry(), usize::MAX).unwrap());
    look_for_all(&mut reader(index, &hints), n);
    let named_twice = |n: &u64| hints.of(geometry, geometry.hashed(&n.to_le_bytes()), None).len() == 2;
    assert!((0..2 * n).filter(named_twice).count() > 2);
    let mut reader = OneByOne::reader(index, &hints, 1);
    look_for_all(&mut reader, n);
    let keys: Vec<_> = (0..2 * n).map(u64::to_le_bytes).collect();
    let mut found = 0;
    reader.get_many(&keys, |_, value| found += u64::from(value.is_some())).unwrap();
    assert_eq!(found, n);
}

/// A batch that goes by hints and is broken off leaves no READ behind: the next one's answers are its own.
#[test]
fn a_batch_that_is_broken_off_leaves_no_reads() {
    let (index, n) = filled("windowed:8".parse().unwrap());
    let index: &Index = Box::leak(Box::new(index));
    let hints = Hints::new(index.geometry(), usize::MAX).unwrap();
    let mut reader = OneByOne::reader(index, &hints, 8);
    look_for_all(&mut reader, n);
    let keys: Vec<_> = (0..n).map(u64::to_le_bytes).collect();
    let others: Vec<_> = (n / 2..2 * n).rev().map(u64::to_le_bytes).collect();
    for last in [1, 2, 5] {
        let mut answered = 0;
        let flow = reader.get_each(&keys, |_, _| {
            answered += 1;
            if answered == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((flow, answered), (Ok(ControlFlow::Break(())), last));
        assert!(reader.fabric().posted.is_empty());
        let right = |nth: usize, value: Option<&[u8]>| {
            let key = u64::from_le_bytes(others[nth]);
            assert_eq!(value, (key < n).then(|| mix(key).to_le_bytes()).as_ref().map(|it| &it[..]), "{key}");
        };
        reader.get_many(&others, right).unwrap();
    }
}

/// A new table has no hints. Handles of one table share them.
#[test]
fn a_new_table_has_no_hints() {
    let layout = "windowed:8".parse().unwrap();
    let geometry = |slots, seed| {
        let (size, seeds) = (TableSize::Slots(slots), Some(Seeds::from_number(seed)));
        Config { layout, size, seeds, ..Config::short() }.geometry().unwrap()
    };
    let (shared, one) = (SharedHints::new(1 << 20), geometry(100, 1));
    let (mut mine, mut theirs) = (None, None);
    shared.refresh(&one, &mut mine);
    shared.refresh(&one, &mut theirs);
    let is_same = |a: &Option<Arc<Hints>>, b: &Option<Arc<Hints>>| {
        Arc::ptr_eq(a.as_ref().unwrap(), b.as_ref().unwrap())
    };
    assert!(is_same(&mine, &theirs));
    mine.as_ref().unwrap().set(SlotIx(3), 9);
    for other in [geometry(100, 2), geometry(200, 1)] {
        let before = theirs.clone();
        shared.refresh(&other, &mut theirs);
        assert!(!is_same(&before, &theirs) && theirs.as_ref().unwrap().tag(SlotIx(3)) == 0);
        let mut third = None;
        shared.refresh(&other, &mut third);
        assert!(is_same(&third, &theirs));
    }
    let mut none = None;
    SharedHints::new(0).refresh(&one, &mut none);
    assert!(none.is_none());
}
