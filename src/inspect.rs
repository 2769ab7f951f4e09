//! Looks into a region from outside: slot by slot, without a server.
//!
//! For people and tools (`oneread inspect`, `oneread dump`), not for GETs: nothing here proves a
//! key absent.

use crate::layout::chain::CHAIN_MAX;
use crate::layout::control::{
    BLOCKS_WORD, DIRECTORY_WORD, MADE_WORD, MOVE_COUNTERS, STATE_WORD, State, move_counter_word,
};
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::life::Life;
use crate::layout::owners;
use crate::layout::segment::{DirectoryEntry, Named, Pending, directory_bits_max, low};
use crate::layout::slot::{Header, Image, Torn, View, check};
use crate::layout::superblock::{Superblock, SuperblockError};
use crate::layout::{crc, words};
use crate::placement::families;
use crate::region::Region;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The content of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// The slot's number.
    pub slot: SlotIx,
    /// The header as loaded.
    pub header: Header,
    /// Whether a remote reader accepts the slot: stamps and CRC, as in [`check`].
    pub verdict: Result<(), Torn>,
    /// The key; empty if the slot is free or not accepted, or if its key was in an extent and is not there any more.
    pub key: Vec<u8>,
    /// The value, or the reference to it; empty if the slot is free or not accepted. Of a key that does not fit its
    /// slot, with a digest of it in front.
    /// [`Inspector::value`] follows the reference.
    pub value: Vec<u8>,
    /// The life of the entry, if it has one.
    pub life: Option<Life>,
}

impl SlotReport {
    /// Where the value is, if it is not in the slot.
    pub fn reference(&self) -> Option<Reference> {
        let bytes = self.value.last_chunk().filter(|_| self.header.is_reference())?;
        Some(Reference::from_bytes(*bytes))
    }
}

/// Slots by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Main slots with a key.
    pub live_main: u64,
    /// Overflow slots with a key.
    pub live_overflow: u64,
    /// Slots with a ghost: a key was moved out, and the server has not yet taken its ghost away. It
    /// does so no earlier than twice the grace time after.
    pub ghosts: u64,
    /// Homes whose filter has a bit of a displaced key.
    pub filters: u64,
    /// Keys outside their primary window.
    pub displaced: u64,
    /// Slots that a remote reader does not accept.
    pub torn: u64,
}

/// Where a GET of one key looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// The slots of each window, in the order of its READs. Slots are numbered through.
    pub windows: Vec<Vec<SlotReport>>,
    /// Whether the home's filter sends it beyond the first window.
    pub filter: bool,
}

/// Further looks at one slot that is being written: some microseconds each, if other threads have work.
const LOOKS_OF_ONE: u32 = 100;
/// Further looks of a walk, at all slots together: a damaged region has many that nobody is writing.
const LOOKS_OF_ALL: u32 = 10_000;

fn named_by(entry: DirectoryEntry) -> Vec<Named> {
    match entry.pending {
        Pending::Nothing => vec![entry.segment],
        Pending::Child(other) | Pending::Parent(other) => vec![entry.segment, other],
    }
}

/// Looks into a region. `Send + Sync`.
#[derive(Clone, Copy, Debug)]
pub struct Inspector<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
}

impl<'a> Inspector<'a> {
    /// An inspector of `region`, which has this geometry.
    pub fn new(region: &'a Region, geometry: &'a Geometry) -> Inspector<'a> {
        Inspector { region, geometry }
    }

    /// The superblock, and the geometry that it describes.
    ///
    /// # Errors
    /// [`SuperblockError`] when the superblock is not valid.
    pub fn superblock(region: &Region) -> Result<(Geometry, Superblock), SuperblockError> {
        Superblock::open(region.bytes(), |word| region.load(word))
    }

    /// The state word.
    pub fn state(&self) -> State {
        State::from_word(self.region.load(STATE_WORD))
    }

    /// The number of moves begun since the region was made. The reuse of an overflow block counts
    /// as one move. A takeover by another server counts as one for each of the [`MOVE_COUNTERS`].
    pub fn moves_begun(&self) -> u64 {
        (0..MOVE_COUNTERS).map(|home| self.region.load(move_counter_word(home))).sum()
    }

    /// Whether readers take the entry of a slot for absent: its owner has gone, or it is not committed (O3).
    pub fn is_hidden(&self, report: &SlotReport) -> bool {
        let owner = report.life.filter(|_| self.geometry.has_owners()).map_or(0, |life| life.owner);
        owner != 0 && self.region.load(self.geometry.owner_word(owner)) & owners::bit(owner) != 0
    }

    /// When the entry of a slot ends, by the time of day. `None`: it does not end by itself.
    pub fn end(&self, report: &SlotReport) -> Option<SystemTime> {
        let life = report.life.filter(|life| life.expiry != 0)?;
        Some(UNIX_EPOCH + Duration::from_nanos(self.region.load(MADE_WORD)) + life.end())
    }

    /// Loads one slot. If it is being written, loads it a few times more before it is reported as
    /// torn.
    pub fn slot(&self, slot: SlotIx) -> SlotReport {
        self.slot_of(self.geometry, slot)
    }

    /// The value of the key in a slot, wherever it is. `None` if it is not there any more: the key was put or
    /// removed meanwhile, or the region is damaged.
    pub fn value(&self, report: &SlotReport) -> Option<Vec<u8>> {
        let Some(reference) = report.reference() else { return Some(report.value.clone()) };
        if !reference.is_sound(self.geometry) {
            return None;
        }
        let mut value = Vec::new();
        self.region.append_bytes(reference.offset, reference.len as usize, &mut value);
        if crc::append_long(0, &value) != reference.crc {
            return None;
        }
        let before = self.geometry.bytes_before_value(&report.key);
        (before <= value.len()).then(|| value.split_off(before))
    }

    /// The key of a slot that was accepted. One in an extent that is not there any more has another digest.
    fn key_of(&self, view: &View<'_>) -> Vec<u8> {
        let Some(long) = view.long_key() else { return view.key().to_vec() };
        let (mut key, len) = (Vec::new(), view.header().klen);
        if long.reference.is_sound(self.geometry) && u32::from(len) <= long.reference.len {
            self.region.append_bytes(long.reference.offset, len.into(), &mut key);
        }
        if !long.may_be(self.geometry, self.geometry.hashed(&key)) {
            key.clear();
        }
        key
    }

    fn slot_of(&self, geometry: &Geometry, slot: SlotIx) -> SlotReport {
        let mut looks = LOOKS_OF_ONE;
        self.slot_by(geometry, slot, &mut looks)
    }

    /// Loads one slot, and again while it is being written. Takes no more further looks than there are left.
    fn slot_by(&self, geometry: &Geometry, slot: SlotIx, looks: &mut u32) -> SlotReport {
        let shape = geometry.shape();
        let look = || -> Image { words::image(self.region.words(geometry.slot_word(slot), shape.words())) };
        let verdict_of = |image: &Image| check(shape, geometry.identity(slot), image).map(|_| ());
        let mut image = look();
        let mut verdict = verdict_of(&image);
        while verdict.is_err() && *looks > 0 {
            *looks -= 1;
            std::thread::yield_now();
            image = look();
            verdict = verdict_of(&image);
        }
        let (mut key, mut value, mut life) = (Vec::new(), Vec::new(), None);
        let header = Header::from_words([image[0], image[1]]);
        if let (Ok(()), Ok(view)) = (verdict, View::consistent(shape, &image)) {
            key = self.key_of(&view);
            view.value_into(&mut value);
            life = view.life();
        }
        SlotReport { slot, header, verdict, key, value, life }
    }

    /// The geometry of each segment that has keys now, and how many of its slots were ever used. One for
    /// a table of one size.
    fn segments(&self) -> Vec<(Geometry, u64)> {
        if !self.geometry.grows() {
            return vec![(self.geometry.clone(), self.slots_used_of_one())];
        }
        let entries = (0..1 << self.directory_bits()).filter_map(|number| self.entry(number));
        let named: BTreeSet<(u32, u32)> =
            entries.flat_map(named_by).map(|segment| (segment.memory, segment.incarnation)).collect();
        let all = named.into_iter().map(|(memory, incarnation)| self.geometry.segment(memory, incarnation));
        all.map(|geometry| (geometry, self.geometry.slots())).collect()
    }

    /// Every slot with the geometry of its segment, in which it is numbered.
    fn each_slot(&self) -> impl Iterator<Item = (Rc<Geometry>, SlotReport)> + use<'a> {
        let this = *self;
        let mut looks = LOOKS_OF_ALL;
        self.segments()
            .into_iter()
            .flat_map(|(geometry, used)| {
                let geometry = Rc::new(geometry);
                (0..used).map(move |n| (Rc::clone(&geometry), SlotIx(n)))
            })
            .map(move |(geometry, slot)| {
                let report = this.slot_by(&geometry, slot, &mut looks);
                (geometry, report)
            })
    }

    /// Every slot ever used, in order; in a table that grows, of all segments. Keys that move meanwhile
    /// may be seen twice or not at all.
    pub fn slots(&self) -> impl Iterator<Item = SlotReport> + use<'a> {
        self.each_slot()
            .map(|(geometry, report)| SlotReport { slot: geometry.numbered_through(report.slot), ..report })
    }

    /// The number of slots that [`slots`](Inspector::slots) visits: main slots, and overflow slots
    /// ever used.
    pub fn slots_used(&self) -> u64 {
        self.segments().iter().map(|(_, used)| used).sum()
    }

    fn slots_used_of_one(&self) -> u64 {
        let blocks = self.region.load(BLOCKS_WORD).min(self.geometry.overflow_blocks());
        self.geometry.main_slots() + blocks * u64::from(self.geometry.layout().block_slots)
    }

    /// The windows that a GET of `key` may READ in a table of one size, in order, and whether the home's filter sends it
    /// beyond the first one.
    pub fn windows(&self, key: &[u8]) -> (Vec<Window>, bool) {
        self.windows_in(self.geometry, key)
    }

    fn windows_in(&self, geometry: &Geometry, key: &[u8]) -> (Vec<Window>, bool) {
        let key = geometry.hashed(key);
        let mut windows = vec![geometry.primary(key)];
        for read in 1..CHAIN_MAX {
            let head_aux = self.slot_of(geometry, windows[windows.len() - 1].first).header.aux;
            let Some(next) = families::after(geometry, key, read, head_aux) else { break };
            windows.push(next);
        }
        let home_aux = self.slot_of(geometry, windows[0].first).header.aux;
        (windows, families::may_be_displaced(geometry, key, home_aux))
    }

    /// Where a GET of `key` looks. In a table that grows, in the segment that the directory names; while
    /// that is being split or merged, in that one of the two that has the key.
    pub fn key(&self, key: &[u8]) -> KeyReport {
        let all: Vec<KeyReport> = self.segments_of(key).iter().map(|one| self.key_in(one, key)).collect();
        let has = |one: &KeyReport| {
            one.windows.iter().flatten().any(|slot| slot.verdict.is_ok() && slot.key == key)
        };
        let chosen = all.iter().position(has).unwrap_or(0);
        all.into_iter().nth(chosen).unwrap_or_default()
    }

    fn key_in(&self, geometry: &Geometry, key: &[u8]) -> KeyReport {
        let (windows, filter) = self.windows_in(geometry, key);
        let slots = |window: &Window| {
            let all = window.iter().map(|slot| self.slot_of(geometry, slot));
            all.map(|report| SlotReport { slot: geometry.numbered_through(report.slot), ..report }).collect()
        };
        KeyReport { windows: windows.iter().map(slots).collect(), filter }
    }

    /// The segments that may have a key: one, or the two of a split or merge; none in a damaged region.
    fn segments_of(&self, key: &[u8]) -> Vec<Geometry> {
        if !self.geometry.grows() {
            return vec![self.geometry.clone()];
        }
        let number = self.geometry.hashed(key).first().directory() & low(self.directory_bits());
        let Some(entry) = self.entry(number) else { return Vec::new() };
        let both = named_by(entry).into_iter();
        both.map(|Named { memory, incarnation }| self.geometry.segment(memory, incarnation)).collect()
    }

    /// So many bits of a key's directory hash choose its entry; 0 in a table of one size.
    fn directory_bits(&self) -> u32 {
        self.region.load(DIRECTORY_WORD).min(directory_bits_max(self.geometry).into()) as u32
    }

    fn entry(&self, number: u32) -> Option<DirectoryEntry> {
        let report = self.slot(SlotIx(number.into()));
        DirectoryEntry::from_slot(self.geometry, &report.key, &report.value)
    }

    /// The number of segments that the directory names: 1 for a table of one size.
    pub fn segments_named(&self) -> u64 {
        self.segments().len() as u64
    }

    /// Counts slots by what they hold. Reads the whole table. Calls `progress` with each slot's
    /// number.
    pub fn occupancy(&self, mut progress: impl FnMut(u64)) -> Occupancy {
        let mut found = Occupancy::default();
        for ((geometry, report), number) in self.each_slot().zip(0..) {
            let main = report.slot.0 < geometry.main_slots();
            progress(number);
            if report.verdict.is_err() {
                found.torn += 1;
                continue;
            }
            found.ghosts += u64::from(report.header.ghost != 0);
            found.filters += u64::from(main && families::names_displaced(&geometry, report.header.aux));
            if !report.key.is_empty() {
                *if main { &mut found.live_main } else { &mut found.live_overflow } += 1;
                let primary = geometry.primary(geometry.hashed(&report.key));
                found.displaced += u64::from(!primary.contains(report.slot));
            }
        }
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::layout::hash::Seeds;
    use crate::outcome::PutMode;

    /// However many overflow blocks a damaged region says that it has, no slot behind the last is looked at.
    #[test]
    fn blocks_that_are_not_there_are_not_looked_at() {
        let config =
            Config { layout: "cluster".parse().unwrap(), size: TableSize::Slots(64), ..Config::short() };
        let geometry = config.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, Clock::manual()).unwrap();
        index.put(b"key", b"value", PutMode::Insert).unwrap();
        for blocks in [0, 1, u64::from(u32::MAX), u64::MAX] {
            index.region().store(BLOCKS_WORD, blocks);
            let inspector = Inspector::new(index.region(), index.geometry());
            assert_eq!(inspector.slots().count() as u64, inspector.slots_used(), "{blocks}");
            assert!(inspector.slots_used() <= index.geometry().slots(), "{blocks}");
            assert_eq!(inspector.occupancy(|_| {}).live_main, 1, "{blocks}");
        }
    }

    /// A value that is not in its slot is the one that its reference names. If its bytes are others, or the
    /// reference names no bytes of the heap, there is none.
    #[test]
    fn values_that_are_not_what_they_were() {
        let config = Config { size: TableSize::Slots(64), value_max: 1000, ..Config::short() };
        let geometry = config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, Clock::manual()).unwrap();
        index.put(b"key", &[7; 900], PutMode::Insert).unwrap();
        let inspector = Inspector::new(index.region(), index.geometry());
        let report = inspector.slots().find(|slot| slot.key == b"key").unwrap();
        assert_eq!(inspector.value(&report), Some(vec![7; 900]));
        let reference = report.reference().unwrap();
        for other in [
            Reference { offset: u64::MAX - 7, ..reference },
            Reference { offset: 0, ..reference },
            Reference { len: 899, ..reference },
        ] {
            let report = SlotReport { value: other.to_bytes().to_vec(), ..report.clone() };
            assert_eq!(inspector.value(&report), None, "{other:?}");
        }
        index.region().store(reference.offset as usize / 8, 0);
        assert_eq!(inspector.value(&report), None);
    }

    /// A walk over a region full of slots that nobody ends writing gives up after a bounded number of looks.
    #[cfg(feature = "sim")]
    #[test]
    fn torn_slots_are_not_waited_for_one_by_one() {
        use crate::base::observe::{Scheduler, schedule};
        use std::cell::Cell;
        struct Looks(Cell<u64>);
        impl Scheduler for Looks {
            fn may_pass(&self) {
                self.0.set(self.0.get() + 1);
            }
            fn wait_until(&self, _: &dyn Fn() -> bool) {}
        }
        let config = Config { size: TableSize::Slots(5_000), ..Config::short() };
        let geometry = config.geometry().unwrap();
        let recorder = crate::sim::Recorder::new(Clock::manual(), Duration::from_nanos(1));
        let region = std::sync::Arc::new(recorder).region(geometry.region_bytes());
        (0..geometry.slots()).for_each(|slot| region.store(geometry.slot_word(SlotIx(slot)), 1));
        let looks = Rc::new(Looks(Cell::new(0)));
        schedule(Some(looks.clone()));
        let inspector = Inspector::new(&region, &geometry);
        let walks = [inspector.occupancy(|_| ()).torn, inspector.slots().count() as u64];
        schedule(None);
        assert_eq!(walks, [geometry.slots(); 2]);
        let most = 2 * (geometry.slots() + u64::from(LOOKS_OF_ALL) + 10);
        assert!(looks.0.get() <= most, "{} looks", looks.0.get());
    }

    /// In a table that grows, each key is found where it is, in either segment of a split or merge, under one
    /// number for its slot. A damaged directory is not looked at beyond its end.
    #[test]
    fn keys_of_a_table_that_grows() {
        for seed in 0..20 {
            keys_of_a_growing_table(Seeds::from_number(seed));
        }
    }

    fn keys_of_a_growing_table(seeds: Seeds) {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, seeds: Some(seeds), ..Config::short() }.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let inspector = Inspector::new(index.region(), index.geometry());
        let check = |keys: std::ops::Range<u32>| {
            let slots: Vec<_> = inspector.slots().collect();
            let numbers: BTreeSet<_> = slots.iter().map(|report| report.slot.0).collect();
            assert_eq!((numbers.len(), slots.len() as u64), (slots.len(), inspector.slots_used()));
            for key in keys.map(u32::to_le_bytes) {
                let at = |report: &SlotReport| (report.key == key).then_some(report.slot);
                let there: BTreeSet<_> = slots.iter().filter_map(at).collect();
                let seen = inspector.key(&key);
                let seen: Vec<_> = seen.windows.iter().flatten().filter_map(at).collect();
                assert!(!seen.is_empty() && seen.iter().all(|slot| there.contains(slot)), "{key:?}");
            }
            assert_eq!(inspector.segments_named(), index.growth().segments);
        };
        let tidy = |is_done: &dyn Fn() -> bool| {
            for _ in 0..10_000 {
                if is_done() {
                    return;
                }
                clock.advance(index.tidy().unwrap_or(Duration::from_millis(1)));
            }
            panic!("{:?}", index.growth());
        };
        let put = |key: u32| assert!(index.put(&key.to_le_bytes(), b"value", PutMode::Insert).is_ok());
        let is_splitting = || index.growth().splitting > 0;
        let split = (0..).inspect(|&key| put(key)).find(|_| is_splitting()).unwrap() + 1;
        check(0..split);
        // Some homes have gone.
        index.tidy();
        check(0..split);
        tidy(&|| !is_splitting());
        check(0..split);
        // A merge begins by itself, or when it is asked for.
        let is_merging = || index.growth().merging > 0;
        (4..split).inspect(|key| assert!(index.remove(&key.to_le_bytes()).unwrap())).find(|_| is_merging());
        tidy(&|| is_merging() || index.shrink() > 0);
        // At each step of it, to its end.
        tidy(&|| {
            check(0..4);
            !is_merging()
        });
        index.region().store(DIRECTORY_WORD, u64::MAX);
        assert!(inspector.segments_named() <= index.growth().segments_max);
    }
}
