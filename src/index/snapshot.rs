//! Snapshots: a walk over all keys while they change and move (D1, D2), and their way back.
//!
//! ```text
//! step: the homes of 64 slots ── locks ──► keys in their primary windows
//!                                     └──► the register ──► their displaced keys ── unlocks ──► disk
//! ```
//!
//! A step takes microseconds. Between steps nothing is locked, and the disk is waited for only then.

use super::*;
use crate::cores::Cores;
use crate::layout::mapped;
use crate::layout::slot::{Image, View, check};
use crate::snapshot::{
    SaveError, Saved, Snapshot, SnapshotBlock, SnapshotError, SnapshotPlace, SnapshotTerms, SnapshotWriter,
};
use crate::sync::lock_std;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::SystemTime;

/// Slots whose homes a step of a walk visits: those of one stripe, side by side.
const STEP_SLOTS: u64 = 64;

/// How far a walk over all keys came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    step: u64,
}

/// Why the keys of a snapshot were not put into a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot cannot be read. The table is unchanged, unless the file has changed while it was
    /// read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A key or value of it is longer than the table takes. The table is unchanged.
    #[error(
        "the snapshot has a {what} of {given} bytes, this table takes {max}; make a table with a larger {what}_max"
    )]
    TooLong {
        /// Key or value.
        what: &'static str,
        /// The longest in the snapshot.
        given: usize,
        /// The longest that the table takes.
        max: usize,
    },
    /// It has more keys than the table has slots. The table is unchanged.
    #[error("the snapshot has {keys} keys, this table has {slots} slots; make a larger table")]
    TooMany {
        /// Keys in the snapshot.
        keys: u64,
        /// Slots of the table.
        slots: u64,
    },
    /// The table was full before all keys were in it.
    #[error("the table was full after {restored} of {keys} keys; make a larger table")]
    Full {
        /// Keys put.
        restored: u64,
        /// Keys in the snapshot.
        keys: u64,
        /// The answer to the first key that found no room.
        source: PutError,
    },
}

/// What was put into a table from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Keys put.
    pub keys: u64,
    /// When the snapshot began. Changes acknowledged later may be missing.
    pub began: SystemTime,
    /// How long it took, the check of the snapshot included.
    pub took: Duration,
}

impl Segment {
    /// Shows `see` the keys of the next homes, with their values. Returns whether there were any
    /// homes left. `see` runs under locks, so it should only copy.
    ///
    /// Over all steps, it shows each key that is in the table all the while, once, with a value that
    /// the key has at an instant of the step. A key that is put or removed meanwhile is shown once or
    /// not at all. `damaged` goes up for each slot that does not pass a remote reader's checks.
    pub(crate) fn walk(&self, walk: &mut Walk, damaged: &mut u64, see: &mut dyn FnMut(&[u8], &[u8])) -> bool {
        let homes = self.homes_of_step(walk.step);
        if homes.is_empty() {
            return false;
        }
        walk.step += 1;
        let (first, last) = (self.geometry.window(homes.start), self.geometry.window(homes.end - 1));
        let slots = first.first.0..last.first.0 + u64::from(last.slots);
        // The homes' own slots share a stripe. Their windows end at most 63 slots further on.
        let mut locked = self.stripes.none();
        locked.lock_two([slots.start, slots.end - 1].map(|slot| self.stripes.of(SlotIx(slot))));
        let mut value = Vec::new();
        // D1: no key of these homes changes or moves until the locks are gone (L2).
        for slot in slots.clone().map(SlotIx) {
            if self.slots().header(slot).is_free() {
                continue;
            }
            let image = mapped::image(self.slots().words(slot));
            let Some(view) = self.sound(slot, &image, damaged) else { continue };
            let key = view.key();
            let hashed = self.geometry.hashed(&key);
            // A key of another home is shown with that home, a displaced one by the register.
            if homes.contains(&hashed.home()) && self.geometry.primary(hashed).contains(slot) {
                view.value_into(&mut value);
                see(&key, &value);
            }
        }
        disobey(Rule::WalkLock, || {
            let again = [slots.start, slots.end - 1].map(|slot| self.stripes.of(SlotIx(slot)));
            locked.lock(StripeSet::from_slice(&again));
        });
        for home in homes {
            if !families::names_displaced(&self.geometry, self.slots().aux(self.geometry.window(home).first))
            {
                continue;
            }
            let displaced = self.stripe(&mut locked, home).displaced(home).iter();
            for entry in displaced {
                let DisplacedAt::At(slot) = entry.place else { continue };
                let image = self.at_rest(slot);
                let Some(view) = self.sound(slot, &image, damaged) else { continue };
                view.value_into(&mut value);
                see(&view.key(), &value);
            }
        }
        true
    }

    /// How many steps a walk has taken, and how many it takes.
    pub(crate) fn walked(&self, walk: &Walk) -> (u64, u64) {
        let slots = self.geometry.homes() * u64::from(self.geometry.layout().bucket_slots);
        (walk.step, slots.div_ceil(STEP_SLOTS))
    }

    fn homes_of_step(&self, step: u64) -> Range<u64> {
        let bucket_slots = u64::from(self.geometry.layout().bucket_slots);
        let from = |step: u64| (step * STEP_SLOTS).div_ceil(bucket_slots).min(self.geometry.homes());
        from(step)..from(step + 1)
    }

    /// The words of a slot whose key stands still, but whose own lock is not held: between two writes
    /// of others, who take its ghost or set its filter (D2). Each of them ends, because it waits for
    /// no lock.
    fn at_rest(&self, slot: SlotIx) -> Image {
        let words = self.slots().words(slot);
        loop {
            let stamp = words[0].load(Ordering::Relaxed);
            // Fences as in the shm reader: R1 and R2.
            fence(Ordering::Acquire);
            let image = mapped::image(self.slots().words(slot));
            fence(Ordering::Acquire);
            let is_settled = || stamp & 1 == 0 && words[0].load(Ordering::Relaxed) == stamp;
            if kept(Rule::WalkSettled, is_settled) {
                return image;
            }
            std::hint::spin_loop();
        }
    }

    /// A slot's key and value, if it passes a remote reader's checks.
    fn sound<'i>(&self, slot: SlotIx, image: &'i Image, damaged: &mut u64) -> Option<View<'i>> {
        let checked = check(self.geometry.shape(), self.geometry.identity(slot), image);
        *damaged += u64::from(checked.is_err());
        checked.ok()
    }
}

impl Index {
    /// The table, if it is of one size. In one that grows, keys also go from segment to segment, which
    /// a walk does not follow yet.
    pub(crate) fn walkable(&self) -> Result<&Segment, SaveError> {
        match &self.table {
            Table::One(segment) => Ok(segment),
            Table::Many(_) => Err(SaveError::Growing),
        }
    }

    /// Writes a snapshot of the table while it is served. Each key that was there when it began, and
    /// is unchanged, is in it. A key that is changed meanwhile is there with one of the values that it
    /// has meanwhile, or not at all if it was absent at an instant.
    ///
    /// The file is written under another name (`PATH.partial`), and takes its place when the disk has
    /// it. `PATH.lock` keeps others from the same path. Changes go on: a put waits for some
    /// microseconds at most. Takes one thread, memory for some blocks of 256 KiB, and as much of the
    /// disk as it gives. `progress` hears how many parts of how many are done, and may break off by
    /// returning `false`.
    ///
    /// # Errors
    /// [`SaveError`]. The file that was there before is still there.
    pub fn save(&self, path: &Path, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Saved, SaveError> {
        self.save_at(&SnapshotPlace::claim(path)?, progress)
    }

    pub(crate) fn save_at(
        &self,
        place: &SnapshotPlace,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Saved, SaveError> {
        let table = self.walkable()?;
        let terms = SnapshotTerms::of(&table.geometry, table.incarnation, SystemTime::now());
        let mut writer = SnapshotWriter::new(place, terms)?;
        let mut walk = Walk::default();
        let mut damaged = 0;
        while table.walk(&mut walk, &mut damaged, &mut |key, value| writer.take(key, value)) {
            if writer.flush()? {
                let (done, total) = table.walked(&walk);
                if !progress(done, total) {
                    return Err(SaveError::BrokenOff);
                }
            }
        }
        let saved = writer.finish(damaged)?;
        if damaged > 0 {
            tracing::error!(
                damaged,
                "slots of the table are damaged; what stood there is not in the snapshot"
            );
        }
        Ok(saved)
    }

    /// Puts every key of a snapshot into the table, over what is there. All cores work at it. First
    /// the whole snapshot is checked: one that is damaged, or that does not fit, changes nothing.
    /// `progress` hears how many bytes of how many were read; each byte is read twice.
    ///
    /// # Errors
    /// [`RestoreError`], which says whether the table was changed.
    pub fn restore_from(
        &self,
        snapshot: &Snapshot,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored, RestoreError> {
        self.restore_from_by(snapshot, Cores::all(), progress)
    }

    pub(crate) fn restore_from_by(
        &self,
        snapshot: &Snapshot,
        cores: Cores,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored, RestoreError> {
        let begun = std::time::Instant::now();
        let bytes = snapshot.bytes();
        let content = snapshot.check(&mut |at| progress(at, 2 * bytes))?;
        for (what, given, max) in [
            ("key", content.longest_key, self.geometry().key_max()),
            ("value", content.longest_value, self.geometry().value_max()),
        ] {
            if given > max {
                return Err(RestoreError::TooLong { what, given, max });
            }
        }
        if content.keys > self.geometry().slots() {
            return Err(RestoreError::TooMany { keys: content.keys, slots: self.geometry().slots() });
        }
        let keys = AtomicU64::new(0);
        let full = std::sync::Mutex::new(None);
        let is_over = AtomicBool::new(false);
        let (send, blocks) = std::sync::mpsc::sync_channel::<SnapshotBlock>(2 * cores.0);
        let blocks = std::sync::Mutex::new(blocks);
        let put = |block: SnapshotBlock| {
            for (key, value) in block.records() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                match self.put(key, value, PutMode::Upsert) {
                    Ok(_) => drop(keys.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => {
                        is_over.store(true, Ordering::Relaxed);
                        lock_std(&full).get_or_insert(error);
                    }
                }
            }
        };
        let next = || lock_std(&blocks).recv().ok();
        let help = || std::iter::from_fn(next).for_each(put);
        std::thread::scope(|scope| -> Result<(), SnapshotError> {
            let spawn = |_: &usize| std::thread::Builder::new().spawn_scoped(scope, help).is_ok();
            let helpers = (0..cores.0).take_while(spawn).count();
            // Dropped at the end of this closure: then the helpers end, too.
            let send = send;
            let mut source = snapshot.blocks();
            while let Some(block) = source.next()? {
                progress(bytes + source.at(), 2 * bytes);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                if helpers == 0 {
                    put(block);
                } else if send.send(block).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        let restored = keys.into_inner();
        if let Some(source) = full.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(RestoreError::Full { restored, keys: content.keys, source });
        }
        Ok(Restored { keys: restored, began: snapshot.terms().began, took: begun.elapsed() })
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::families::presets;
    use crate::layout::hash::Seeds;
    use crate::sim::{Adversary, Random, Recorder, turns};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const GRACE: Duration = Duration::from_micros(200);
    const SLOTS: u64 = 200;

    /// A nearly full table over four stripes, whose accesses threads take turns at. Keys whose number is
    /// even stay as they are. Returns how many keys there are.
    fn crowded(layout: &str, seed: u64) -> (Segment, u64) {
        let config = Config {
            layout: layout.parse().unwrap(),
            size: TableSize::Slots(SLOTS),
            key_max: 8,
            // Slots of two lines: what is written there is torn for longer.
            value_max: 60,
            grace: GRACE,
            seeds: Some(Seeds::from_number(seed)),
        };
        let geometry = config.geometry().unwrap();
        let clock = Clock::manual();
        let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        let index = Segment::create(region, geometry, clock).unwrap();
        let fits = |n: &u64| {
            let is_in = index.put(&n.to_le_bytes(), &value(*n, 0), PutMode::Insert).is_ok();
            is_in && index.len() < index.geometry.main_slots() * 9 / 10
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
    fn change(index: &Segment, keys: u64, seed: u64, changes: u64) {
        let mut random = Random::new(seed);
        for version in 1..=changes {
            let n = 1 + 2 * random.pick(keys as usize / 2) as u64;
            let key = n.to_le_bytes();
            match random.pick(3) {
                0 => drop(index.put(&key, &value(n, version), PutMode::Update)),
                1 => drop(index.put(&key, &value(n, version), PutMode::Upsert)),
                _ => drop(index.remove(&key)),
            }
            index.grace.clock().advance(GRACE / 4);
            if random.pick(4) == 0 {
                index.tidy();
            }
        }
    }

    type Seen = BTreeMap<u64, Vec<Vec<u8>>>;

    fn walk(index: &Segment) -> (Seen, u64) {
        let (mut seen, mut damaged) = (Seen::new(), 0);
        let mut walk = Walk::default();
        let mut see = |key: &[u8], value: &[u8]| {
            seen.entry(u64::from_le_bytes(key.try_into().unwrap())).or_default().push(value.to_vec());
        };
        while index.walk(&mut walk, &mut damaged, &mut see) {}
        assert_eq!(index.walked(&walk).0, index.walked(&walk).1, "all steps");
        (seen, damaged)
    }

    /// What is wrong with what a walk has seen of keys that stay and keys that were changed meanwhile.
    fn wrong(seen: &Seen, damaged: u64, keys: u64, changes: u64) -> Option<String> {
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

    type WalkOrChange<'a> = Box<dyn FnOnce() -> Option<(Seen, u64)> + Send + 'a>;

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
            assert!(index.displaced() > 0 || preset.layout.window_buckets > 8, "{}", preset.name);
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
        let word = index.geometry.slot_word(victim) + 3;
        index.region.store(word, index.region.load(word) ^ 1 << 17);
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
}
