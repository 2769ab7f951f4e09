//! Taking over a table that grows.

use super::Growth;
use super::carry::has_come;
use super::directory::Directory;
use super::handover::GrowthHandover;
use super::pairs::{LeftPair, Pair, Toward};
use crate::base::clock::Clock;
use crate::base::cores::Cores;
use crate::base::sync::lock;
use crate::faults::{Rule, obey};
use crate::index::home_set::HomeSet;
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::segment::Segment;
use crate::index::share::{KeyShare, PLACES, PairRole, places, reversed};
use crate::index::slots::restore_all;
use crate::index::start::{Start, StartStep};
use crate::layout::control::{MOVE_COUNTERS, Phase, STATE_WORD, State};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::segment::{self, DirectoryEntry, Named, Pending, directory_bits_max};
use crate::layout::slot::Key;
use crate::region::Region;
use crossbeam_epoch::{self as epoch, Guard};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Growth {
    /// Takes a table over from a server that is gone.
    pub fn open(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<(Growth, Recovered), RecoverError> {
        let State { incarnation, phase } = State::from_word(region.load(STATE_WORD));
        if phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let growth = Growth::over(region, geometry, clock, incarnation + 1, start.pace);
        if phase == Phase::Stopped {
            if let Some(handover) = growth.handed_over(start.cores) {
                // T7: if this server is killed from here on, nobody takes this handover again.
                obey(Rule::HandoverOnce, || growth.publish_state(Phase::Serving));
                let keys = growth.take_handover(handover);
                let mut found = Recovered { keys, handed_over: true, ..Recovered::default() };
                growth.take_extents(start.cores, &mut found);
                return Ok((growth, found));
            }
            tracing::warn!("what the last server handed over is damaged; every slot is looked at");
        }
        // T1
        growth.grace.clock().sleep_until(growth.grace.due_ns(Rule::TakeoverGrace));
        let mut found = Recovered::default();
        // U4: first the entries, which name the segments.
        let (region, geometry) = (&growth.region, &growth.geometry);
        let mut directory = Directory::left(region, geometry, &growth.undo);
        found.torn += restore_all(region, geometry, |slot, line| {
            (slot < geometry.segment_first(0)).then(|| directory.restore(slot, line))
        });
        let left = Left::of(&directory)?;
        let shares: Vec<_> = left.segments.iter().map(|(&memory, &(_, share))| (memory, share)).collect();
        if let Some(number) = growth.not_all_keys(&shares, &left.pairs) {
            return Err(RecoverError::Directory { number });
        }
        // E1 holds, except in a damaged region.
        let deepest = shares.iter().map(|(_, share)| share.depth).max().unwrap_or(0);
        if !directory.deepen(deepest).is_ok_and(|is_so| is_so) {
            return Err(RecoverError::Directory { number: 0 });
        }
        growth.publish_state(Phase::Serving);
        for (&memory, &(named, share)) in &left.segments {
            debug_assert_eq!(memory, named.memory);
            growth.live.insert(growth.part(named, share));
        }
        let guard = epoch::pin();
        found.torn += restore_all(region, geometry, |slot, line| {
            let number = slot.0.checked_sub(geometry.segment_first(0).0)?;
            let segment = growth.live.get((number / geometry.slots()) as u32, &guard);
            Some(
                segment
                    .is_some_and(|segment| segment.slots().restore(SlotIx(number % geometry.slots()), line)),
            )
        });
        growth.survey(&left, start, &mut found)?;
        // T5: after this, a GET by the counters sees which homes have gone, and their copies in full. The
        // originals are erased only now.
        if let Some(segment) = growth.live.all(&guard).next() {
            segment.homes().count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        }
        left.pairs.iter().for_each(|pair| growth.mend_pair(pair, &mut directory, &guard, &mut found));
        for segment in growth.live.all(&guard).filter(|segment| segment.share().get().role == PairRole::Whole)
        {
            let KeyShare { prefix, depth, .. } = segment.share().get();
            directory.set(
                prefix,
                depth,
                DirectoryEntry { segment: segment.named(), depth, pending: Pending::Nothing },
            );
        }
        let memories = growth.live.all(&guard).map(|segment| segment.memory());
        growth.take_memory(&memories.collect());
        let splits = left.pairs.iter().filter(|pair| pair.toward == Toward::Child);
        let of_splits: BTreeSet<u32> = splits.map(|pair| pair.child).collect();
        growth.live.all(&guard).for_each(|segment| {
            segment.homes().set_all_headers(of_splits.contains(&segment.memory()));
        });
        growth.take_extents(start.cores, &mut found);
        *lock(&growth.directory) = directory;
        drop(guard);
        Ok((growth, found))
    }

    /// Takes over the memory of these segments. All other memory counts as free, and the system gets it back.
    fn take_memory(&self, segments: &BTreeSet<u32>) {
        let start = |memory| self.geometry.slot_offset(self.geometry.segment_first(memory));
        let give_back = |bytes| self.region.give_back(bytes).is_some();
        let mut memory = lock(&self.memory);
        memory.left(segments, |pieces| give_back(start(pieces.start)..start(pieces.end)));
        if u64::from(memory.used) < self.geometry.segments_max() {
            give_back(start(memory.used)..self.geometry.slots_end());
        }
    }

    /// X5, after every segment is mended.
    fn take_extents(&self, cores: Cores, found: &mut Recovered) {
        let Some(extents) = &self.extents else { return };
        let guard = epoch::pin();
        let named = self.live.all(&guard).flat_map(|segment| {
            segment.homes().all_references(cores).into_iter().map(move |name| (segment, name))
        });
        let named: Vec<_> = named.collect();
        let mut bad = Vec::new();
        extents.take_over(named.iter().map(|(_, (_, reference))| *reference), |nth| bad.push(nth));
        // The keys are read first: when one is removed, another key of its chain may come into its slot.
        let keys = bad.into_iter().map(|nth| named[nth]).map(|(it, (slot, _))| (it, it.homes().key_in(slot)));
        for (segment, key) in keys.collect::<Vec<_>>() {
            segment.homes().drop_misplaced(&key, found);
        }
    }

    /// Starts with what another server has handed over.
    fn take_handover(&self, handover: GrowthHandover) -> u64 {
        let GrowthHandover { keys, segments, pairs } = handover;
        self.take_memory(&segments.iter().map(|(segment, _)| segment.memory()).collect());
        for (segment, part) in segments {
            segment.homes().take_handover(part);
            self.live.insert(segment);
        }
        let guard = epoch::pin();
        let mut all = lock(&self.pairs);
        for (LeftPair { parent, child, toward }, away) in pairs {
            if let [Some(parent), Some(child)] = [parent, child].map(|memory| self.live.get(memory, &guard)) {
                parent.share().begin(parent.share().get(), false);
                child.share().begin(child.share().get(), true);
                let is_away = |home: &u64| away[*home as usize / 64] >> (home % 64) & 1 == 1;
                (0..self.geometry.homes())
                    .filter(is_away)
                    .for_each(|home| has_come(child, parent, HomeSet::one(home)));
            }
            self.insert_pair(&mut all, parent, child, toward);
        }
        drop(all);
        *lock(&self.directory) = Directory::left(&self.region, &self.geometry, &self.undo);
        keys
    }

    /// Checks that each key has a segment or a pair among these. Returns the number of an entry whose keys have none.
    pub fn not_all_keys(&self, shares: &[(u32, KeyShare)], pairs: &[LeftPair]) -> Option<u32> {
        let all: BTreeMap<u32, KeyShare> = shares.iter().copied().collect();
        let children: BTreeMap<u32, u32> = pairs.iter().map(|pair| (pair.parent, pair.child)).collect();
        let parents: BTreeMap<u32, u32> = pairs.iter().map(|pair| (pair.child, pair.parent)).collect();
        let is_good = |&&(memory, share): &&(u32, KeyShare)| {
            let KeyShare { prefix, depth, role } = share;
            let of = |memory: &u32| all.get(memory).copied();
            let is_in_pair = match (role, children.get(&memory), parents.get(&memory)) {
                (PairRole::Whole, None, None) => true,
                (PairRole::Parent, Some(child), None) => of(child) == Some(share.child()),
                (PairRole::Child, None, Some(parent)) => {
                    of(parent).is_some_and(|of| of.role == PairRole::Parent && of.child() == share)
                }
                _ => false,
            };
            let is_known = u64::from(memory) < self.geometry.segments_max() && all[&memory] == share;
            let fits = depth <= directory_bits_max(&self.geometry) && prefix & segment::low(depth) == prefix;
            is_in_pair && is_known && fits
        };
        if let Some((_, share)) = shares.iter().find(|share| !is_good(share)) {
            return Some(share.prefix);
        }
        if [children.len(), parents.len()] != [pairs.len(); 2] {
            return Some(0);
        }
        // Side by side, they cover all places of the directory.
        let of = shares.iter().filter(|(_, share)| share.role != PairRole::Child);
        let mut of: Vec<_> = of.map(|&(_, share)| places(share)).collect();
        of.sort_unstable_by_key(|places| places.start);
        let end = of.iter().try_fold(0, |end, places| {
            if places.start == end { Ok(places.end) } else { Err(end.min(places.start)) }
        });
        match end {
            Ok(PLACES) => None,
            Ok(place) | Err(place) => Some(reversed(place)),
        }
    }

    /// T2 to T4, in each segment. All cores work at it.
    fn survey(&self, left: &Left, start: &Start, found: &mut Recovered) -> Result<(), RecoverError> {
        let alone = Start { cores: Cores(1), ..Start::default() };
        let memories: Vec<u32> = left.segments.keys().copied().collect();
        let bytes = self.geometry.main_slots() * self.geometry.shape().bytes() as u64;
        start.step(StartStep::Survey, bytes * memories.len() as u64, |done| {
            let look = |numbers: std::ops::Range<u64>| {
                // Each thread needs a guard of its own.
                let guard = epoch::pin();
                let mut found = Recovered::default();
                for number in numbers {
                    if let Some(segment) = self.live.get(memories[number as usize], &guard) {
                        segment
                            .homes()
                            .survey(&alone, &mut |_| {})
                            .into_iter()
                            .for_each(|seen| found.add(seen));
                    }
                }
                found
            };
            let parts = start.split(0..memories.len() as u64, 1, look, |segments| done(segments * bytes));
            parts.ok_or(RecoverError::Cancelled)?.into_iter().for_each(|part| found.add(part));
            Ok(())
        })
    }

    /// Mends a pair whose split or merge was under way. A home that was cut off has some keys in both segments, and
    /// perhaps some only on the side where all of them are, or will be.
    fn mend_pair(&self, left: &LeftPair, directory: &mut Directory, guard: &Guard, found: &mut Recovered) {
        let &LeftPair { parent, child, toward } = left;
        let [Some(parent), Some(child)] = [parent, child].map(|memory| self.live.get(memory, guard)) else {
            return;
        };
        let (of_parent, of_child) = (parent.share().get(), child.share().get());
        let depth = of_parent.depth;
        let mut homes: FxHashMap<u64, [Vec<Key>; 2]> = FxHashMap::default();
        for (side, segment) in [parent, child].into_iter().enumerate() {
            for (key, home) in segment.homes().keys().filter(|(key, _)| {
                side == 1 || self.geometry.hashed(key).first().directory() >> depth & 1 == 1
            }) {
                homes.entry(home).or_default()[side].push(key);
            }
        }
        // A share with every home on one side, and then the homes that differ.
        parent.share().begin(KeyShare { role: PairRole::Parent, ..of_parent }, false);
        child.share().begin(KeyShare { role: PairRole::Child, ..of_child }, true);
        for home in 0..self.geometry.homes() {
            let nobody = Default::default();
            let [in_parent, in_child] = homes.get(&home).unwrap_or(&nobody);
            let only = |here: &[Key], there: &[Key]| here.iter().any(|key| !there.contains(key));
            let header = |segment: &Segment| segment.homes().header_of(home);
            let by_header = match toward {
                Toward::Child => header(parent).depth > depth,
                Toward::Parent | Toward::Back => !header(child).merged,
            };
            let is_in_child = only(in_child, in_parent) || !only(in_parent, in_child) && by_header;
            let (keeps, loses, from) =
                if is_in_child { (in_child, in_parent, parent) } else { (in_parent, in_child, child) };
            for key in loses.iter().filter(|key| keeps.contains(key)) {
                from.take_copy_away(self.geometry.hashed(key));
                found.doubled += 1;
                found.keys -= 1;
            }
            if is_in_child {
                has_come(child, parent, HomeSet::one(home));
            }
        }
        let nothing = Pending::Nothing;
        match toward {
            Toward::Child => {
                let entry =
                    DirectoryEntry { segment: parent.named(), depth, pending: Pending::Child(child.named()) };
                directory.set(of_parent.prefix, depth, entry);
            }
            Toward::Parent | Toward::Back => {
                let entry = DirectoryEntry { segment: parent.named(), depth: depth + 1, pending: nothing };
                directory.set(of_parent.prefix, depth + 1, entry);
                let pending = Pending::Parent(parent.named());
                directory.set(
                    of_child.prefix,
                    depth + 1,
                    DirectoryEntry { segment: child.named(), depth: depth + 1, pending },
                );
            }
        }
        self.insert_pair(&mut lock(&self.pairs), parent.memory(), child.memory(), toward);
    }

    /// The splits and merges under way. For a thread that is alone.
    pub fn pairs_left(&self) -> Vec<LeftPair> {
        let left = |pair: &Arc<Pair>| {
            let Pair { parent, child, .. } = **pair;
            LeftPair { parent, child, toward: pair.state().toward() }
        };
        lock(&self.pairs).all().iter().map(left).collect()
    }
}

/// The content of a directory that was left behind.
pub(super) struct Left {
    segments: BTreeMap<u32, (Named, KeyShare)>,
    pairs: Vec<LeftPair>,
}

impl Left {
    /// Reads all entries. The entries of one segment may differ: the server may have been killed between two stores.
    fn of(directory: &Directory) -> Result<Left, RecoverError> {
        let mut left = Left { segments: BTreeMap::new(), pairs: Vec::new() };
        let mut add = |named: Named, prefix, depth, role| {
            let share = KeyShare { prefix: prefix & segment::low(depth), depth, role };
            let known = left.segments.entry(named.memory).or_insert((named, share));
            // An entry with a pair is later than one without. Of two without, the one that names more keys is later: it
            // ends a merge.
            if role != PairRole::Whole || known.1.role == PairRole::Whole && depth < known.1.depth {
                *known = (named, share);
            }
        };
        for (number, entry) in directory.entries() {
            let damaged = RecoverError::Directory { number };
            let DirectoryEntry { segment, depth, pending } = entry.ok_or(damaged.clone())?;
            let (parent, child, toward, parent_depth) = match pending {
                Pending::Nothing => {
                    add(segment, number, depth, PairRole::Whole);
                    continue;
                }
                Pending::Child(child) => (segment, child, Toward::Child, depth),
                Pending::Parent(parent) => {
                    (parent, segment, Toward::Parent, depth.checked_sub(1).ok_or(damaged)?)
                }
            };
            add(parent, number & segment::low(parent_depth), parent_depth, PairRole::Parent);
            let in_child = number & segment::low(parent_depth) | 1 << parent_depth;
            add(child, in_child, parent_depth + 1, PairRole::Child);
            let pair = LeftPair { parent: parent.memory, child: child.memory, toward };
            if !left.pairs.contains(&pair) {
                left.pairs.push(pair);
            }
        }
        Ok(left)
    }
}
