//! A walk over all keys while they change and move (D1, D2), also between segments (D4, D5).
//!
//! ```text
//! step: the homes of 64 slots of a segment
//!
//! table that grows:   each part of the directory ── each step ── each segment, or pair, of that part
//! ```
//!
//! A step takes microseconds for each segment. Between steps nothing is locked.
//!
//! The *place* of a key in the directory is its directory hash with the bits reversed. So the keys of a segment are
//! neighbours, and so are those of a pair. A *part* is the places of one segment, or pair, when the walk comes to it.
//! The homes of all segments have the same numbers. So the key's bytes determine the part and the step in which it is
//! shown, wherever it goes meanwhile.

use super::table::Table;
use crate::faults::{Rule, disobey, kept};
use crate::index::growth::Growth;
use crate::index::homes::{SlotShown, homes_of_step, steps};
use crate::index::segment::Segment;
use crate::index::share::{HomesHere, PLACES, PairRole, places, reversed};
use crate::layout::extent::Reference;
use crate::layout::life::Life;
use crate::layout::slot::Key;
use crate::outcome::ReadError;
use crate::sink::LivedSink;
use crossbeam_epoch as epoch;
use std::ops::Range;
use std::time::Duration;

/// How far a walk over all keys has come.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    step: u64,
    /// The places of the present part, in a table that grows.
    part: Range<u32>,
    /// Slots that do not pass a remote reader's checks. Their content is not shown.
    pub damaged: u64,
    /// Keys of this step whose values are not in their slots.
    long: Vec<LongValue>,
}

impl Walk {
    /// A walk that has come to this place ([`Walk::place`]). Accepts any numbers: the walk may then leave keys out.
    pub fn at([step, part]: [u64; 2]) -> Walk {
        let (start, end) = (part as u32, (part >> u32::BITS) as u32);
        let part = if start <= end && end <= PLACES { start..end } else { 0..0 };
        Walk { step: step.min(u64::from(u32::MAX)), part, ..Walk::default() }
    }

    /// How far the walk has come, in two numbers.
    pub fn place(&self) -> [u64; 2] {
        [self.step, u64::from(self.part.start) | u64::from(self.part.end) << u32::BITS]
    }
}

/// A key whose value is not in its slot.
#[derive(Debug)]
struct LongValue {
    key: Key,
    reference: Reference,
    life: Option<Life>,
}

/// Takes a key, its value, and the entry's life.
pub(crate) type SeeEntry<'s> = dyn FnMut(&[u8], &[u8], Option<Life>) + 's;

/// What one step has seen of a segment or a pair.
#[derive(Debug, Default)]
pub(super) struct StepKeys {
    /// Keys and values.
    bytes: Vec<u8>,
    /// The lengths of each key and value, and the entry's life.
    lengths: Vec<(usize, usize, Option<Life>)>,
    long: Vec<LongValue>,
    damaged: u64,
    /// The number of the feed's next change, under the locks of the first segment and of the last (J3).
    numbers: Option<(u64, u64)>,
}

impl StepKeys {
    fn add(&mut self, key: &[u8], value: &[u8], life: Option<Life>) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lengths.push((key.len(), value.len(), life));
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
        self.long.clear();
        self.damaged = 0;
        self.numbers = None;
    }

    /// Keys whose values are in their slots.
    fn short(&self) -> impl Iterator<Item = (&[u8], &[u8], Option<Life>)> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |&(key, value, life)| {
            let (record, after) = rest.split_at(key + value);
            rest = after;
            let (key, value) = record.split_at(key);
            (key, value, life)
        })
    }

    /// All keys, with their values where these are in their slots, and their owners.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>, u16)> {
        let owner = |life: Option<Life>| life.map_or(0, |life| life.owner);
        let long = self.long.iter().map(move |long| (&long.key[..], None, owner(long.life)));
        self.short().map(move |(key, value, life)| (key, Some(value), owner(life))).chain(long)
    }

    fn show(&self, see: &mut SeeEntry<'_>) {
        self.short().for_each(|(key, value, life)| see(key, value, life));
    }

    /// The numbers of the feed's next change when the first and the last segment were looked into.
    pub fn numbers(&self) -> Range<u64> {
        self.numbers.map_or(0..0, |(first, last)| first..last)
    }

    fn note(&mut self, number: u64) {
        let first = self.numbers.map_or(number, |(first, _)| first);
        self.numbers = Some((first, number));
    }
}

impl Table {
    /// Shows `see` some more keys, with their values. Returns whether there were any left. `see` may run under locks,
    /// so it should only copy. For a value that is not in its slot, it runs under none.
    ///
    /// Over all steps, it shows each key once that is in the table from the first step to the last, with a value that
    /// the key has at an instant of its step. It shows a key that is put or removed meanwhile once or not at all.
    pub(crate) fn walk(&self, walk: &mut Walk, see: &mut SeeEntry<'_>) -> bool {
        let clock = self.clock();
        let begun_ns = clock.now_ns();
        let had_some = match self {
            Table::One(one) => walk_one(one.segment(), walk, see),
            Table::Many(growth) => walk_many(growth, walk, see),
        };
        let mut value = Vec::new();
        for LongValue { key, reference, life } in walk.long.drain(..) {
            // X3: if the name has ended, it ended after the step began. So its memory is not used again for this time.
            let kept = self.geometry().heap().kept_for(self.geometry().grace(), reference.len);
            value.clear();
            let is_there = self.extents().is_some_and(|extents| extents.read(&reference, &key, &mut value));
            let took_ns = clock.now_ns() - begun_ns;
            if is_there && kept_in_time(took_ns, kept) {
                see(&key, &value, life);
            } else if let Some(life) = self.has_one_now(&key, &mut value) {
                see(&key, &value, life);
            } else if !is_there {
                walk.damaged += 1;
            }
        }
        had_some
    }

    /// Walks over keys alone. Reads no value that is not in its slot.
    pub(crate) fn walk_keys(&self, walk: &mut Walk, see: &mut dyn FnMut(&[u8])) -> bool {
        let mut see_key = |key: &[u8], _: &[u8], _: Option<Life>| see(key);
        let had_some = match self {
            Table::One(one) => walk_one(one.segment(), walk, &mut see_key),
            Table::Many(growth) => walk_many(growth, walk, &mut see_key),
        };
        walk.long.drain(..).for_each(|long| see(&long.key));
        had_some
    }

    /// Reads the value that a key has now, if it is still there. Returns its entry's life.
    #[cold]
    fn has_one_now(&self, key: &[u8], value: &mut Vec<u8>) -> Option<Option<Life>> {
        let mut entry = LivedSink::new(value);
        // This loop ends: a server thread can read faster than its others can replace.
        loop {
            match self.reader().get_into(key, &mut entry) {
                Ok(is_there) => return is_there.then_some(entry.life),
                Err(ReadError::Damaged { .. } | ReadError::KeyLength { .. }) => return None,
                Err(_) => {}
            }
        }
    }

    /// How much the walk has seen, and of how much.
    pub(crate) fn walked(&self, walk: &Walk) -> (u64, u64) {
        let steps = steps(self.geometry());
        match self {
            Table::One(_) => (walk.step, steps),
            Table::Many(_) => {
                let Range { start, end } = walk.part;
                let done = u64::from(start) * steps + u64::from(end - start) * walk.step;
                (done, u64::from(PLACES) * steps)
            }
        }
    }
}

/// Whether `kept` was longer than the time since the step began, so that the memory was not used again.
fn kept_in_time(took_ns: u64, kept: Duration) -> bool {
    u128::from(took_ns) < kept.as_nanos()
}

/// [`Table::walk`] in a table of one size.
fn walk_one(segment: &Segment, walk: &mut Walk, see: &mut SeeEntry<'_>) -> bool {
    let homes = homes_of_step(segment.geometry(), walk.step);
    if homes.is_empty() {
        return false;
    }
    walk.step += 1;
    let mut locked = segment.homes().lock_step(&homes);
    let Walk { damaged, long, .. } = walk;
    segment.homes().show(&mut locked, homes, damaged, &mut |key, SlotShown { value, reference, life }| {
        // O3
        if life.is_some_and(|life| segment.hides(&life)) {
            return;
        }
        match reference {
            None => see(key.key(), value, life),
            Some(reference) => long.push(LongValue { key: key.key().into(), reference, life }),
        }
    });
    true
}

/// [`Table::walk`] in a table that grows.
fn walk_many(growth: &Growth, walk: &mut Walk, see: &mut SeeEntry<'_>) -> bool {
    let mut homes = homes_of_step(&growth.geometry, walk.step);
    if walk.part.is_empty() || homes.is_empty() {
        let first = walk.part.end;
        if first == PLACES {
            return false;
        }
        let guard = epoch::pin();
        let (_, share, _) = growth.pair_at(reversed(first), &guard);
        (walk.part, walk.step) = (first..places(share).end, 0);
        homes = homes_of_step(&growth.geometry, 0);
    }
    walk.step += 1;
    let (mut at, mut seen) = (walk.part.start, StepKeys::default());
    while at < walk.part.end {
        seen.clear();
        // Ends: each time that a look fails, a home of this step has gone to the other segment, or a pair
        // has begun or ended.
        let Some(end) = look(growth, at..walk.part.end, &homes, &mut seen) else { continue };
        seen.show(see);
        walk.long.append(&mut seen.long);
        walk.damaged += seen.damaged;
        at = end;
    }
    true
}

/// As [`look`], in any table. A table of one size has all places.
pub(super) fn look_at(
    table: &Table,
    places_left: Range<u32>,
    homes: &Range<u64>,
    seen: &mut StepKeys,
) -> Option<u32> {
    match table {
        Table::Many(growth) => look(growth, places_left, homes, seen),
        Table::One(one) => {
            look_into(one.segment(), &places_left, homes, seen);
            Some(PLACES)
        }
    }
}

/// Looks at the keys of these homes in the segment, or the pair, that has the first of these places. Returns the place
/// at which its keys end. `None` if keys went from one segment to the other meanwhile: then the look does not count
/// (D5).
fn look(growth: &Growth, places_left: Range<u32>, homes: &Range<u64>, seen: &mut StepKeys) -> Option<u32> {
    let guard = epoch::pin();
    let (segment, share, child) = growth.pair_at(reversed(places_left.start), &guard);
    let here = look_into(segment, &places_left, homes, seen);
    let is_so = here.share == share
        && match child.map(|child| look_into(child, &places_left, homes, seen)) {
            Some(child) => kept(Rule::WalkPair, || here.goes_with(&child)),
            None => share.role == PairRole::Whole,
        };
    is_so.then(|| places(share).end)
}

/// Sees the keys of these homes that a segment has, at these places.
fn look_into(
    segment: &Segment,
    places_left: &Range<u32>,
    homes: &Range<u64>,
    seen: &mut StepKeys,
) -> HomesHere {
    let mut locked = segment.homes().lock_step(homes);
    // No key of these homes leaves while they are locked.
    let here = segment.share().homes_here(homes);
    // J8: before the first look at an owner's bit. If that is not set, the owner's going is told under this number or a
    // later one.
    let mut number = segment.observers().feed().next();
    let mut damaged = 0;
    segment.homes().show(&mut locked, homes.clone(), &mut damaged, &mut |key, shown| {
        let SlotShown { value, reference, life } = shown;
        let directory = key.first().directory();
        // D4: the keys of other places were shown before, or will be.
        let is_in_part = || places_left.contains(&reversed(directory));
        // O3
        let is_hidden = life.is_some_and(|life| segment.hides(&life));
        if !is_hidden && here.has(directory, key.home()) && kept(Rule::WalkPlaces, is_in_part) {
            match reference {
                None => seen.add(key.key(), value, life),
                Some(reference) => seen.long.push(LongValue { key: key.key().into(), reference, life }),
            }
        }
    });
    seen.damaged += damaged;
    disobey(Rule::OwnerNumber, || number = segment.observers().feed().next());
    drop(locked);
    disobey(Rule::FeedNumber, || {
        // Other threads may go on.
        segment.region().load(0);
        number = segment.observers().feed().next();
    });
    seen.note(number);
    here
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::super::one::OneSize;
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::index::growth::pace::Pace;
    use crate::layout::geometry::{Geometry, SlotIx};
    use crate::layout::hash::Seeds;
    use crate::outcome::PutMode;
    use crate::placement::families::presets;
    use crate::region::Region;
    use crate::sim::{Adversary, Random, Recorder, turns};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const GRACE: Duration = Duration::from_micros(200);
    const SLOTS: u64 = 200;

    /// Memory for a table whose accesses threads take turns at. Values that are longer than `inline_max` do not fit their
    /// slots.
    fn memory_for(
        layout: &str,
        size: TableSize,
        inline_max: Option<usize>,
        seed: u64,
    ) -> (Region, Geometry, Clock) {
        let config = Config {
            layout: layout.parse().unwrap(),
            size,
            key_max: 8,
            // Slots of two lines: what is written there is torn for longer.
            value_max: 60,
            inline_max,
            grace: GRACE,
            seeds: Some(Seeds::from_number(seed)),
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
        (recorder.region(geometry.region_bytes()), geometry, clock)
    }

    /// A nearly full table over four stripes, whose accesses threads take turns at. Keys whose number is
    /// even stay as they are. Returns how many keys there are.
    fn crowded(layout: &str, seed: u64) -> (OneSize, u64) {
        let (region, geometry, clock) = memory_for(layout, TableSize::Slots(SLOTS), None, seed);
        let index = OneSize::create(region, geometry, clock).unwrap();
        let fits = |n: &u64| {
            let is_in = index.put(&n.to_le_bytes(), &value(*n, 0), PutMode::Insert).is_ok();
            is_in && index.len() < index.geometry().main_slots() * 9 / 10
        };
        (1..).take_while(fits).for_each(drop);
        let keys = index.len();
        (index, keys)
    }

    fn value(n: u64, version: u64) -> Vec<u8> {
        let word = (n << 32 | version).to_le_bytes();
        word.repeat(1 + n as usize % 7)
    }

    /// Removes keys that do not stay, puts them again, and updates some.
    fn change(index: &OneSize, keys: u64, seed: u64, changes: u64) {
        let mut random = Random::new(seed);
        for version in 1..=changes {
            let n = 1 + 2 * random.pick(keys as usize / 2) as u64;
            let key = n.to_le_bytes();
            match random.pick(3) {
                0 => drop(index.put(&key, &value(n, version), PutMode::Update)),
                1 => drop(index.put(&key, &value(n, version), PutMode::Upsert)),
                _ => drop(index.remove(&key)),
            }
            index.homes().grace().clock().advance(GRACE / 4);
            if random.pick(4) == 0 {
                index.tidy();
            }
        }
    }

    type Shown = BTreeMap<u64, Vec<Vec<u8>>>;

    fn walk(index: &OneSize) -> (Shown, u64) {
        let (mut seen, mut walk) = (Shown::new(), Walk::default());
        let mut see = |key: &[u8], value: &[u8], _: Option<Life>| {
            seen.entry(u64::from_le_bytes(key.try_into().unwrap())).or_default().push(value.to_vec());
        };
        while walk_one(index, &mut walk, &mut see) {}
        assert_eq!(walk.step, steps(index.geometry()), "all steps");
        (seen, walk.damaged)
    }

    /// What is wrong with what a walk has seen of keys that stay and keys that were changed meanwhile.
    fn wrong(seen: &Shown, damaged: u64, keys: u64, changes: u64) -> Option<String> {
        for n in 1..=keys {
            let values = seen.get(&n).map_or(&[][..], |values| values);
            let stays = n % 2 == 0;
            if stays && values != [value(n, 0)] {
                return Some(format!("key {n} stays, and the walk saw {values:?}"));
            }
            if values.len() > 1 || values.iter().any(|it| (0..=changes).all(|v| *it != value(n, v))) {
                return Some(format!("key {n}: the walk saw {values:?}"));
            }
        }
        (damaged > 0).then(|| format!("{damaged} damaged slots"))
    }

    type WalkOrChange<'a> = Box<dyn FnOnce() -> Option<(Shown, u64)> + Send + 'a>;

    /// Walks and changes that take turns, with this seed. Returns how many keys were moved, too.
    fn turn(layout: &str, seed: u64) -> (Option<String>, u64) {
        const CHANGES: u64 = 60;
        let (index, keys) = crowded(layout, seed % 8);
        let before = index.counts().moves;
        let shared = &index;
        let work: Vec<WalkOrChange<'_>> = vec![
            Box::new(move || {
                change(shared, keys, seed, CHANGES);
                None
            }),
            Box::new(move || Some(walk(shared))),
        ];
        let (seen, damaged) = turns::run(seed, work).into_iter().flatten().next().expect("one walks");
        (wrong(&seen, damaged, keys, CHANGES), index.counts().moves - before)
    }

    /// D1, D2: keys that stay are seen once, with their values, while others make them move. In every
    /// layout, at whatever access the threads take turns.
    #[test]
    fn a_walk_sees_every_key_that_stays_once() {
        let mut moving = Vec::new();
        for preset in presets() {
            let mut moves = 0;
            for seed in 0..100 {
                let (wrong, moved) = turn(preset.name, seed);
                assert_eq!(wrong, None, "{}, seed {seed}", preset.name);
                moves += moved;
            }
            println!("{}: {moves} moves", preset.name);
            moving.extend((moves > 100).then_some(preset.name));
        }
        assert!(moving.len() >= 7, "keys moved in {moving:?} only");
    }

    /// At rest, a walk sees exactly the keys that GETs find, in every layout, at any size.
    #[test]
    fn a_walk_at_rest_sees_all() {
        for preset in presets() {
            let (index, keys) = crowded(preset.name, 3);
            assert!(index.homes().displaced() > 0 || preset.layout.window_buckets > 8, "{}", preset.name);
            let (seen, damaged) = walk(&index);
            assert_eq!((seen.len() as u64, damaged), (index.len(), 0), "{}", preset.name);
            assert!((1..=keys).all(|n| seen[&n] == [value(n, 0)]), "{}", preset.name);
        }
    }

    /// A slot that others have written into is not passed off as good.
    #[test]
    fn a_damaged_slot_is_counted() {
        let (index, keys) = crowded("windowed:8", 1);
        let victim = (0..SLOTS).map(SlotIx).find(|&slot| !index.slots().header(slot).is_free()).unwrap();
        let word = index.geometry().slot_word(victim) + 3;
        index.region().store(word, index.region().load(word) ^ 1 << 17);
        let (seen, damaged) = walk(&index);
        assert_eq!((seen.len() as u64, damaged), (keys - 1, 1));
    }

    /// With either rule broken, some order of accesses shows it.
    #[cfg(feature = "faults")]
    #[test]
    fn a_broken_walk_is_noticed() {
        use crate::faults::Broken;
        for (rule, layout) in [(Rule::WalkLock, "windowed:8"), (Rule::WalkSettled, "pilaf")] {
            let _broken = Broken::rule(rule);
            let found = (0..2_000).find_map(|seed| Some((seed, turn(layout, seed).0?)));
            let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
            println!("{rule:?} broken, {layout}: seed {seed}: {wrong}");
        }
    }

    // ---- tables that grow -----------------------------------------------------------------------

    const SEGMENT_SLOTS: u64 = 128;
    const STAY: u64 = 30;

    /// A table of some segments, whose accesses threads take turns at.
    fn growing(layout: &str, inline_max: Option<usize>, seed: u64) -> Index {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(SEGMENT_SLOTS) };
        let (region, geometry, clock) = memory_for(layout, size, inline_max, seed);
        let index = Index::create_at_pace(region, geometry, clock, Pace::small()).unwrap();
        for n in 1..=2 * STAY {
            index.put(&n.to_le_bytes(), &value(n, 0), PutMode::Insert).unwrap();
        }
        index
    }

    /// Makes the table grow and shrink, and gives merges up. Keys with an even number up to a limit stay.
    fn grow(index: &Index, seed: u64, changes: u64) {
        let mut random = Random::new(seed);
        let mut grows = random.pick(2) == 0;
        for version in 1..=changes {
            if random.pick(60) == 0 {
                grows = !grows;
            }
            let range = if random.pick(2) == 0 { STAY } else { 10 * STAY };
            let n = 1 + 2 * random.pick(range as usize) as u64;
            let key = n.to_le_bytes();
            if grows {
                let _ = index.put(&key, &value(n, version), PutMode::Upsert);
            } else {
                index.remove(&key).unwrap();
            }
            index.table().clock().advance(GRACE / 4);
            match random.pick(40) {
                0..20 => (0..2).for_each(|_| {
                    index.tidy();
                }),
                20..24 if !grows => drop(index.shrink()),
                24..26 => index.give_up_merges(),
                _ => {}
            }
        }
    }

    fn walk_all(index: &Index) -> (Shown, u64) {
        let (mut seen, mut walk) = (Shown::new(), Walk::default());
        let mut see = |key: &[u8], value: &[u8], _: Option<Life>| {
            seen.entry(u64::from_le_bytes(key.try_into().unwrap())).or_default().push(value.to_vec());
        };
        let mut done = 0;
        while index.table().walk(&mut walk, &mut see) {
            let (now, all) = index.table().walked(&walk);
            assert!(now > done && now <= all, "{now} of {all} after {done}");
            done = now;
        }
        assert_eq!(done, index.table().walked(&walk).1, "all steps");
        (seen, walk.damaged)
    }

    /// A walk while the table grows and shrinks. Returns what is wrong, and how many keys went between
    /// segments meanwhile, at most.
    fn turn_growing(layout: &str, inline_max: Option<usize>, seed: u64) -> (Option<String>, [u64; 4]) {
        const CHANGES: u64 = 400;
        let index = growing(layout, inline_max, seed % 8);
        grow(&index, seed, (seed * 37) % CHANGES);
        // The keys that do not stay may be there or not.
        let before = index.growth();
        let shared = &index;
        let work: Vec<WalkOrChange<'_>> = vec![
            Box::new(move || {
                grow(shared, !seed, CHANGES);
                None
            }),
            Box::new(move || Some(walk_all(shared))),
        ];
        let (seen, damaged) = turns::run(seed, work).into_iter().flatten().next().expect("one walks");
        let after = index.growth();
        let met = [
            after.moved - before.moved,
            after.splits - before.splits,
            after.merges - before.merges,
            after.given_up - before.given_up,
        ];
        let wrong = (1..=20 * STAY).find_map(|n| {
            let values = seen.get(&n).map_or(&[][..], |values| values);
            if n % 2 == 0 && n <= 2 * STAY {
                return (values != [value(n, 0)])
                    .then(|| format!("key {n} stays, and the walk saw {values:?}"));
            }
            let is_known = |it: &Vec<u8>| (0..=CHANGES).any(|v| *it == value(n, v));
            (values.len() > 1 || !values.iter().all(is_known))
                .then(|| format!("key {n}: the walk saw {values:?}"))
        });
        (wrong.or_else(|| (damaged > 0).then(|| format!("{damaged} damaged slots"))), met)
    }

    /// In a table that grows, a key may go as soon as its segment was looked at. What has taken its value's
    /// memory by the time that this is read is not shown as its value.
    #[test]
    fn a_long_value_that_has_gone_is_not_shown() {
        let config = Config {
            size: TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) },
            key_max: 8,
            value_max: 1_000,
            inline_max: Some(30),
            grace: GRACE,
            seeds: Some(Seeds::from_number(1)),
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        index.put(b"short", b"value", PutMode::Insert).unwrap();
        index.put(b"long", &[1; 1_000], PutMode::Insert).unwrap();
        let (mut shown, mut walk) = (Vec::new(), Walk::default());
        let mut see = |key: &[u8], _: &[u8], _: Option<Life>| {
            shown.push(key.to_vec());
            if key == b"short" {
                assert!(index.remove(b"long").unwrap());
                clock.advance(Duration::from_secs(1));
                index.put(b"other", &[2; 1_000], PutMode::Insert).unwrap();
            }
        };
        while index.table().walk(&mut walk, &mut see) {}
        assert_eq!(shown, [b"short"]);
        assert_eq!(walk.damaged, 0, "it has gone");
    }

    /// D5: so it is with values that do not fit their slots: a look that fails, because keys went to the other segment, leaves
    /// none of them behind.
    #[test]
    fn a_walk_over_a_growing_table_sees_every_long_value_once() {
        for layout in ["windowed:8", "farm"] {
            let mut sum = [0; 4];
            for seed in 0..150 {
                let (wrong, met) = turn_growing(layout, Some(20), seed);
                assert_eq!(wrong, None, "{layout}, seed {seed}");
                sum.iter_mut().zip(met).for_each(|(sum, met)| *sum += met);
            }
            println!("{layout}: moved, splits, merges, given up: {sum:?}");
            assert!(sum[0] > 500 && sum[1] > 2, "{layout}: {sum:?}");
        }
    }

    /// D4, D5: keys that stay are seen once, with their values, while others make the table grow and
    /// shrink.
    #[test]
    fn a_walk_over_a_growing_table_sees_every_key_that_stays_once() {
        for preset in presets() {
            let mut sum = [0; 4];
            for seed in 0..100 {
                let (wrong, met) = turn_growing(preset.name, None, seed);
                assert_eq!(wrong, None, "{}, seed {seed}", preset.name);
                sum.iter_mut().zip(met).for_each(|(sum, met)| *sum += met);
            }
            println!("{}: moved, splits, merges, given up: {sum:?}", preset.name);
            assert!(sum[0] > 1_000 && sum[1..].iter().all(|&n| n > 2), "{}: {sum:?}", preset.name);
        }
    }

    /// At rest, and with splits and merges under way, a walk sees exactly what GETs find.
    #[test]
    fn a_walk_over_a_growing_table_at_rest_sees_all() {
        let mut pairs = [0; 2];
        for preset in presets() {
            for seed in 0..20 {
                let index = growing(preset.name, None, seed);
                grow(&index, seed, 50 * seed);
                // Until a split is under way, in every second table.
                let more = (1_000..1_200u64).take_while(|_| seed % 2 == 0 && index.growth().splitting == 0);
                more.for_each(|n| drop(index.put(&n.to_le_bytes(), &value(n, 0), PutMode::Insert)));
                let growth = index.growth();
                pairs = [pairs[0] + growth.splitting, pairs[1] + growth.merging];
                let (seen, damaged) = walk_all(&index);
                assert_eq!((seen.len() as u64, damaged), (index.len(), 0), "{}, seed {seed}", preset.name);
                let (mut reader, mut got) = (index.reader(), Vec::new());
                for n in 1..=1_200u64 {
                    let found = reader.get_into(&n.to_le_bytes(), &mut got).unwrap().then_some(&got);
                    let shown = seen.get(&n).map(|values| &values[0]);
                    assert_eq!(shown, found, "{}, seed {seed}: {n}", preset.name);
                }
            }
        }
        assert!(pairs.iter().all(|&n| n > 2), "splitting and merging: {pairs:?}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_broken_walk_over_a_growing_table_is_noticed() {
        use crate::faults::Broken;
        for rule in [Rule::WalkPlaces, Rule::WalkPair] {
            let _broken = Broken::rule(rule);
            let found = (0..3_000).find_map(|seed| Some((seed, turn_growing("windowed:8", None, seed).0?)));
            let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
            println!("{rule:?} broken: seed {seed}: {wrong}");
        }
    }
}
