//! A table that grows and shrinks while it is read: splits and merges of segments (E1 to E7).
//!
//! ```text
//! split   entries: the child is pending
//!         each home:  copy to the child ─ raise the depth ─ overwrite the originals
//!         entries: the child has its keys
//! merge   entries of the child: the parent is pending
//!         each home:  copy to the parent ─ mark as merged ─ overwrite the originals
//!         entries: the parent has the keys; the child's memory is free
//! ```
//!
//! A merge that meets new keys is *given up*: its homes are split again, from where it stands.
//!
//! Whatever happens to a home, happens under its lock in the segment that its keys leave. That
//! thread then locks stripes of the other segment (L7): a pair has one thread at a time, and a
//! segment is in one pair at a time, so no thread waits in a circle.
//!
//! Puts and removes drive pairs on, by a few homes each, and [`Growth::tidy`] does: always the oldest
//! pair that can go on, so that few homes are under way at a time and few GETs have to look in two
//! segments. A put into a segment that is nearly full drives that one's pair.

use super::create;
use super::directory::{Directory, place_of};
use super::extents::{Budget, Extents};
use super::grace::{Grace, Trace, WaitingTrace};
use super::handover::GrowthHandover;
use super::live::{LiveSegments, UnusedMemory};
use super::moves::has_room_for_ghost;
use super::recover::{RecoverError, Recovered, restore_all};
use super::refusals::{NoPath, Refusals};
use super::search::find_path;
use super::segment::{
    REAP_MAX, Segment, Stop, WAITS_MAX, check_lengths, check_stored, design_percents, publish_state,
};
use super::share::{KeyShare, PairRole};
use super::stripes::{Locked, StripeSet, add_stripe};
use super::undo::UndoLines;
use super::walk::{PLACES, places, reversed};
use super::writer::Sought;
use crate::clock::Clock;
use crate::cores::Cores;
use crate::families;
use crate::faults::{Rule, by_rule, disobey, in_order, kept, obey};
use crate::layout::control::{INCARNATIONS_WORD, MOVE_COUNTERS, Phase, STATE_WORD, State};
use crate::layout::extent::Expected;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::{First, Hashed};
use crate::layout::segment::{self, DirectoryEntry, HomeState, Named, Pending, directory_bits_max};
use crate::layout::slot::{Key, Stored};
use crate::outcome::{GrowthCounts, IndexCounts, PutError, PutMode, PutOutcome, SwapOutcome};
use crate::region::{Region, RegionError};
use crate::start::{Start, StartStep};
use crate::sync::{Mutex, lock, try_lock, yield_now};
use crossbeam_epoch::{self as epoch, Guard};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Waits of a put whose segment is being split, in grace times. Others may drive the pair on, and be
/// stopped by the system meanwhile.
pub(super) const SPLIT_WAITS_MAX: u32 = if cfg!(feature = "sim") { 50 } else { 1_000 };

/// Homes by which an insert, a remove, and one call of [`Growth::tidy`] take a pair on.
/// The simulator's segments are small.
const HOMES_PER_INSERT: u32 = if cfg!(feature = "sim") { 1 } else { 32 };
const HOMES_PER_REMOVE: u32 = if cfg!(feature = "sim") { 2 } else { 32 };
const HOMES_PER_TIDY: u32 = if cfg!(feature = "sim") { 3 } else { 512 };
/// Changes of a thread after which it looks at the load of its segment.
const LOOK_EVERY: u64 = 16;
/// A segment is split when so many hundredths of its layout's design load are used. Segments fill
/// nearly together, so they begin at loads that are spread over this range. While all segments pass
/// through it, each gets some 1,500 inserts, and the inserts of all take 512 for each split: so splits
/// do not pile up. A wider range costs load.
const SPLIT_AT: std::ops::Range<u64> = 86..96;
/// Of so many hundredths on, inserts drive the split of their own segment.
const HURRY_AT: u64 = 98;
/// Of so many hundredths on, an insert ends the split of its segment before it returns.
const PRESS_ON_AT: u64 = 104;
/// Two segments are merged when the keys of both are fewer than so many hundredths of that for one.
const MERGE_AT: std::ops::Range<u64> = 52..62;
/// A pair all of whose homes wait is left alone for twice as many looks each time, up to so many.
const LOOKS_SPARED_MAX: u32 = if cfg!(feature = "sim") { 0 } else { 64 };
/// Pairs that a change looks at to find one that it can take on.
const PAIRS_LOOKED_AT: u64 = 4;
/// On request, two segments are merged if both together have at most so many hundredths.
const SHRINK_TO: u64 = 85;
/// A merge is given up when the parent has so many hundredths.
const GIVE_UP_AT: u64 = 95;
/// Free pieces of memory that are kept for the next splits.
const KEPT_FREE: usize = 2;
/// Rounds of a put that finds its key elsewhere, or its segment without room, before it gives up.
const TRIES_MAX: u32 = 10_000;

/// A table that grows.
#[derive(Debug)]
pub(super) struct Growth {
    pub region: Region,
    pub geometry: Geometry,
    pub incarnation: u64,
    pub grace: Grace,
    undo: UndoLines,
    pub extents: Option<Arc<Extents>>,
    pub live: LiveSegments,
    directory: Mutex<Directory>,
    pairs: Mutex<Pairs>,
    /// As many pairs as there are. Relaxed: a hint that saves changes the lock.
    under_way: AtomicU64,
    memory: Arc<Mutex<FreeMemory>>,
    /// One thread at a time makes a segment.
    making: Mutex<()>,
    registrar: OnceLock<Weak<dyn Registrar>>,
    done: SplitTotals,
    /// Of keys that found no room, and waited in vain.
    refusals: Refusals,
}

/// Registers memory with a device.
pub(crate) trait Registrar: Send + Sync {
    /// Sees to it that this memory of a segment is registered, and its key told (E0).
    fn before_use(&self, memory: u32) -> Result<(), RegionError>;

    /// The same for a block of the heap.
    fn before_use_of_block(&self, block: u64) -> Result<(), RegionError>;
}

/// Counts of splits and merges, and of what segments did that are gone.
#[derive(Debug, Default)]
struct SplitTotals {
    splits: AtomicU64,
    merges: AtomicU64,
    given_up: AtomicU64,
    moved: AtomicU64,
    /// Waits of puts, which may have been for several segments.
    waits: AtomicU64,
    gone: Mutex<IndexCounts>,
    refused: Refused,
}

/// What the system refused.
#[derive(Debug, Default)]
struct Refused {
    times: AtomicU64,
    last_ns: AtomicU64,
    /// When the log last heard of it.
    told_ns: AtomicU64,
}

/// Memory that no segment has.
#[derive(Debug)]
struct FreeMemory {
    /// What segments and extents may take together.
    budget: Arc<Budget>,
    /// Bytes of a piece.
    piece_bytes: u64,
    /// Pieces that have memory behind them.
    free: Vec<u32>,
    /// Pieces given back to the system.
    bare: Vec<u32>,
    /// Pieces ever used.
    used: u32,
    bytes_returned: u64,
    /// The server has ended. What is still to come back is the next one's.
    closed: bool,
}

/// All pairs: by the memory of either segment, and the oldest first.
#[derive(Debug, Default)]
struct Pairs {
    by_memory: FxHashMap<u32, Arc<Pair>>,
    queue: VecDeque<Arc<Pair>>,
}

/// A parent and its child, of a split or merge under way.
#[derive(Debug)]
pub(super) struct Pair {
    pub parent: u32,
    pub child: u32,
    state: Mutex<PairState>,
}

/// How far a pair is. Its homes go one after the other, and then those that had to wait.
#[derive(Debug)]
struct PairState {
    toward: Toward,
    next: u64,
    left: VecDeque<u64>,
    /// Homes tried in vain since the last one went.
    in_vain: usize,
    /// So many looks are spared, and were after the last round in vain.
    spare: u32,
    spared: u32,
    has_ended: bool,
}

impl PairState {
    fn new(toward: Toward) -> PairState {
        PairState {
            toward,
            next: 0,
            left: VecDeque::new(),
            in_vain: 0,
            spare: 0,
            spared: 0,
            has_ended: false,
        }
    }

    /// The next home to try. `None` if there is none, or each one left was tried in vain.
    fn next_home(&mut self, homes: u64, has_gone: impl Fn(u64) -> bool) -> Option<u64> {
        while self.next < homes {
            self.next += 1;
            if !has_gone(self.next - 1) {
                return Some(self.next - 1);
            }
        }
        if self.in_vain < self.left.len() { self.left.pop_front() } else { None }
    }
}

/// Where the keys of a pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toward {
    /// To the child, whose split this is.
    Child,
    /// To the parent: a merge.
    Parent,
    /// To the child again: the merge is given up.
    Back,
}

impl Toward {
    /// The one with this number in a handover.
    pub fn from_number(number: u64) -> Option<Toward> {
        [Toward::Child, Toward::Parent, Toward::Back].into_iter().find(|&toward| toward as u64 == number)
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driven {
    /// There is more to do.
    On,
    /// Something must wait: for ghosts, or for room.
    Waits,
    /// Another thread is at it.
    Taken,
    /// The pair is no more.
    Ended,
}

/// How a put that found no room waits for it.
#[derive(Debug, Default)]
struct RoomWait {
    waits: u32,
    /// Waits for another thread.
    naps: u32,
    /// It would wait in vain: no slot of the segment is free, or another put waited a moment ago.
    is_vain: bool,
    /// What the last search in the segment was, if another one follows.
    next: Option<NoPath>,
    searched: Option<NoPath>,
}

impl RoomWait {
    /// There was no room for a key in this segment, which cannot be split now.
    #[cold]
    fn begin(&mut self, growth: &Growth, segment: &Segment, key: Hashed<'_>, no_split: &NoSplit) {
        let NoPath { from, room_made } = NoPath::of(&segment.geometry, key, segment.counters.room_made());
        let from = from ^ u64::from(segment.memory) << 32 ^ u64::from(segment.geometry.incarnation());
        let now = NoPath { from, room_made };
        // Room that was made since the search began is not missed: it was counted before.
        self.searched = self.next.replace(now).filter(|&before| before == now);
        self.is_vain = !no_split.is_busy()
            && (segment.has_no_free_slot()
                || growth.refusals.know(now)
                || segment.vain.are_many(segment.room_made_or_left()));
    }
}

/// Why a segment cannot be split.
#[derive(Debug)]
pub(super) enum NoSplit {
    /// Another split or merge is under way there, or was a moment ago.
    Busy,
    /// Another thread is making a segment.
    Making,
    /// The table has no deeper directory.
    Limit,
    /// The table has all the memory that it may have.
    Bound,
    /// The system has refused the memory.
    Memory,
}

impl NoSplit {
    /// It may be split when others have gone on.
    pub fn is_busy(&self) -> bool {
        matches!(self, NoSplit::Busy | NoSplit::Making)
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        lock(&self.memory).closed = true;
    }
}

impl Growth {
    fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64) -> Growth {
        let undo = UndoLines::new();
        let in_front = geometry.slot_offset(geometry.segment_first(0));
        let budget = Budget::new(geometry.slots_end() - in_front);
        Growth {
            memory: Arc::new(Mutex::new(FreeMemory::new(&geometry, &budget))),
            directory: Mutex::new(Directory::new(&region, &geometry, &undo)),
            extents: Extents::new(&region, &geometry, &clock, &budget),
            grace: Grace::new(clock, geometry.grace()),
            live: LiveSegments::new(geometry.segments_max()),
            pairs: Mutex::default(),
            under_way: AtomicU64::new(0),
            making: Mutex::default(),
            registrar: OnceLock::new(),
            done: SplitTotals::default(),
            refusals: Refusals::new(),
            undo,
            region,
            geometry,
            incarnation,
        }
    }

    /// Makes an empty table of one segment that is not yet in service.
    pub fn create_unready(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Growth, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.table_offset())?;
        let growth = Growth::over(region, geometry, clock, 1);
        growth.publish_state(Phase::Starting);
        create::publish_superblock(&growth.region, &growth.geometry);
        let bytes = growth.segment_bytes();
        let first = start.step(StartStep::Make, bytes, |_| growth.make(KeyShare::ALL))?;
        let named = first.named();
        growth.live.insert(first);
        let entry = DirectoryEntry { segment: named, depth: 0, pending: Pending::Nothing };
        lock(&growth.directory).begin(entry)?;
        Ok(growth)
    }

    /// Writes the state word, with one store.
    pub fn publish_state(&self, phase: Phase) {
        publish_state(&self.region, self.incarnation, phase);
    }

    fn segment_bytes(&self) -> u64 {
        self.geometry.slots() * self.geometry.shape().bytes() as u64
    }

    // ---- takeover -------------------------------------------------------------------------------

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
        let growth = Growth::over(region, geometry, clock, incarnation + 1);
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
        // E1 holds but in a damaged region.
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
            Some(segment.is_some_and(|segment| segment.restore(SlotIx(number % geometry.slots()), line)))
        });
        growth.survey(&left, start, &mut found)?;
        // T5: after this, a GET by the counters sees which homes have gone, and their copies in full. The
        // originals are erased only now.
        if let Some(segment) = growth.live.all(&guard).next() {
            segment.count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        }
        left.pairs.iter().for_each(|pair| growth.mend_pair(pair, &mut directory, &guard, &mut found));
        for segment in growth.live.all(&guard).filter(|segment| segment.share.get().role == PairRole::Whole) {
            let KeyShare { prefix, depth, .. } = segment.share.get();
            directory.set(
                prefix,
                depth,
                DirectoryEntry { segment: segment.named(), depth, pending: Pending::Nothing },
            );
        }
        let memories = growth.live.all(&guard).map(|segment| segment.memory);
        growth.take_memory(&memories.collect());
        let splits = left.pairs.iter().filter(|pair| pair.toward == Toward::Child);
        let of_splits: BTreeSet<u32> = splits.map(|pair| pair.child).collect();
        growth.live.all(&guard).for_each(|segment| {
            segment.state_all_homes(of_splits.contains(&segment.memory));
        });
        growth.take_extents(start.cores, &mut found);
        *lock(&growth.directory) = directory;
        drop(guard);
        Ok((growth, found))
    }

    /// Takes over the memory of these segments. All other memory does not count as taken, so the system gets
    /// back what may still be there.
    fn take_memory(&self, segments: &BTreeSet<u32>) {
        let start = |memory| self.geometry.slot_offset(self.geometry.segment_first(memory));
        let give_back = |bytes| self.region.give_back(bytes).is_some();
        let mut memory = lock(&self.memory);
        memory.left(segments, |pieces| give_back(start(pieces.start)..start(pieces.end)));
        if u64::from(memory.used) < self.geometry.segments_max() {
            give_back(start(memory.used)..self.geometry.slots_end());
        }
    }

    /// X5, when every segment is mended.
    fn take_extents(&self, cores: Cores, found: &mut Recovered) {
        let Some(extents) = &self.extents else { return };
        let guard = epoch::pin();
        let of =
            |segment| Segment::all_references(segment, cores).into_iter().map(move |name| (segment, name));
        let named: Vec<_> = self.live.all(&guard).flat_map(of).collect();
        let mut bad = Vec::new();
        extents.take_over(named.iter().map(|(_, (_, reference))| *reference), |nth| bad.push(nth));
        // First: when one goes, another of its chain may come into its slot.
        let keys = bad.into_iter().map(|nth| named[nth]).map(|(it, (slot, _))| (it, it.key_in(slot)));
        for (segment, key) in keys.collect::<Vec<_>>() {
            segment.drop_misplaced(&key, found);
        }
    }

    /// Starts with what another server has handed over.
    fn take_handover(&self, handover: GrowthHandover) -> u64 {
        let GrowthHandover { keys, segments, pairs } = handover;
        self.take_memory(&segments.iter().map(|(segment, _)| segment.memory).collect());
        for (segment, part) in segments {
            segment.take_handover(part);
            self.live.insert(segment);
        }
        let guard = epoch::pin();
        let mut all = lock(&self.pairs);
        for (LeftPair { parent, child, toward }, away) in pairs {
            if let [Some(parent), Some(child)] = [parent, child].map(|memory| self.live.get(memory, &guard)) {
                parent.share.begin(parent.share.get(), false);
                child.share.begin(child.share.get(), true);
                let is_away = |home: &u64| away[*home as usize / 64] >> (home % 64) & 1 == 1;
                (0..self.geometry.homes()).filter(is_away).for_each(|home| has_come(child, parent, home));
            }
            self.insert_pair(&mut all, parent, child, toward);
        }
        drop(all);
        *lock(&self.directory) = Directory::left(&self.region, &self.geometry, &self.undo);
        keys
    }

    /// The pieces of memory that no segment has.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(super) fn memory_left(&self) -> Vec<u32> {
        let memory = lock(&self.memory);
        let never = memory.used..self.geometry.segments_max() as u32;
        memory.free.iter().chain(&memory.bare).copied().chain(never).collect()
    }

    /// The splits and merges under way. For a thread that is alone.
    pub(super) fn pairs_left(&self) -> Vec<LeftPair> {
        let left = |pair: &Arc<Pair>| {
            let Pair { parent, child, ref state } = **pair;
            LeftPair { parent, child, toward: lock(state).toward }
        };
        lock(&self.pairs).queue.iter().map(left).collect()
    }

    /// Looks whether each key is in one of these segments, or in one of these pairs. Returns the number of
    /// an entry whose keys are not.
    pub(super) fn not_all_keys(&self, shares: &[(u32, KeyShare)], pairs: &[LeftPair]) -> Option<u32> {
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
        // Side by side, they have all places of the directory.
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
                        segment.survey(&alone, &mut |_| {}).into_iter().for_each(|seen| found.add(seen));
                    }
                }
                found
            };
            let parts = start.split(0..memories.len() as u64, 1, look, |segments| done(segments * bytes));
            parts.ok_or(RecoverError::Cancelled)?.into_iter().for_each(|part| found.add(part));
            Ok(())
        })
    }

    /// Mends a pair whose split or merge was under way. A home that was cut off has some keys in both
    /// segments, and perhaps some on the side only where all of them are, or will be.
    fn mend_pair(&self, left: &LeftPair, directory: &mut Directory, guard: &Guard, found: &mut Recovered) {
        let &LeftPair { parent, child, toward } = left;
        let [Some(parent), Some(child)] = [parent, child].map(|memory| self.live.get(memory, guard)) else {
            return;
        };
        let (of_parent, of_child) = (parent.share.get(), child.share.get());
        let depth = of_parent.depth;
        let mut homes: FxHashMap<u64, [Vec<Key>; 2]> = FxHashMap::default();
        for (side, segment) in [parent, child].into_iter().enumerate() {
            for (key, home) in segment.keys().filter(|(key, _)| {
                side == 1 || self.geometry.hashed(key).first().directory() >> depth & 1 == 1
            }) {
                homes.entry(home).or_default()[side].push(key);
            }
        }
        // A share with every home here or there, and then those that differ.
        parent.share.begin(KeyShare { role: PairRole::Parent, ..of_parent }, false);
        child.share.begin(KeyShare { role: PairRole::Child, ..of_child }, true);
        for home in 0..self.geometry.homes() {
            let nobody = Default::default();
            let [in_parent, in_child] = homes.get(&home).unwrap_or(&nobody);
            let only = |here: &[Key], there: &[Key]| here.iter().any(|key| !there.contains(key));
            let header =
                |segment: &Segment| HomeState::of(segment.slots().aux(self.geometry.window(home).first));
            let by_header = match toward {
                Toward::Child => header(parent).depth > depth,
                Toward::Parent | Toward::Back => !header(child).merged,
            };
            let is_in_child = only(in_child, in_parent) || !only(in_parent, in_child) && by_header;
            let (keeps, loses, from) =
                if is_in_child { (in_child, in_parent, parent) } else { (in_parent, in_child, child) };
            for key in loses.iter().filter(|key| keeps.contains(key)) {
                from.disown(self.geometry.hashed(key));
                found.doubled += 1;
                found.keys -= 1;
            }
            if is_in_child {
                has_come(child, parent, home);
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
        self.insert_pair(&mut lock(&self.pairs), parent.memory, child.memory, toward);
    }

    // ---- memory ---------------------------------------------------------------------------------

    /// From now on, memory is registered here before it is used.
    #[cfg(feature = "verbs")]
    pub fn register_with(&self, registrar: Weak<dyn Registrar>) {
        lock(&self.directory).tell_no_keys();
        if let Some(extents) = &self.extents {
            extents.register_with(registrar.clone());
        }
        self.registrar.set(registrar).expect("a server starts once");
    }

    /// The blocks of the heap that have been used.
    #[cfg(feature = "verbs")]
    pub fn blocks_used(&self) -> Vec<u64> {
        self.extents.as_ref().map_or_else(Vec::new, |extents| extents.blocks_used())
    }

    /// The pieces of memory that have segments.
    #[cfg(feature = "verbs")]
    pub fn memories(&self) -> Vec<u32> {
        self.live.all(&epoch::pin()).map(|segment| segment.memory).collect()
    }

    /// Tells clients the remote key of a chunk.
    #[cfg(feature = "verbs")]
    pub fn tell_key(&self, chunk: u32, remote_key: u32) -> Result<(), RegionError> {
        lock(&self.directory).tell_key(chunk, remote_key)
    }

    /// Takes memory and makes an empty segment in it, which nobody reads yet.
    fn make(&self, share: KeyShare) -> Result<Segment, RegionError> {
        let memory = lock(&self.memory).take(self.geometry.segments_max()).ok_or(RegionError::NoRoom {
            need: self.segment_bytes(),
            left: 0,
            of: "the most memory that this table may take".into(),
        })?;
        self.make_in(memory, share).inspect_err(|_| lock(&self.memory).put_bare(memory))
    }

    fn make_in(&self, memory: u32, share: KeyShare) -> Result<Segment, RegionError> {
        if let Some(registrar) = self.registrar.get().and_then(Weak::upgrade) {
            // E0
            registrar.before_use(memory)?;
        }
        // E7: which use of the memory this is, is part of the CRC of every slot.
        self.region.add(INCARNATIONS_WORD);
        let incarnation = by_rule(Rule::SegmentUse, self.region.load(INCARNATIONS_WORD) as u32, 1);
        let segment = self.part(Named { memory, incarnation }, share);
        segment.make_all_slots()?;
        Ok(segment)
    }

    /// Counts and logs that the system has refused memory, but logs not more often than every ten seconds.
    #[cold]
    fn refused(&self, why: RegionError) -> NoSplit {
        const APART_NS: u64 = 10_000_000_000;
        let Refused { times, last_ns, told_ns } = &self.done.refused;
        let now_ns = self.grace.clock().now_ns().max(1);
        times.fetch_add(1, Relaxed);
        last_ns.store(now_ns, Relaxed);
        let told = told_ns.load(Relaxed);
        if (told == 0 || now_ns.saturating_sub(told) >= APART_NS)
            && told_ns.compare_exchange(told, now_ns, Relaxed, Relaxed).is_ok()
        {
            let times = times.load(Relaxed);
            tracing::error!(%why, times, "the table cannot grow: no memory for another segment");
        }
        NoSplit::Memory
    }

    /// Whether it was refused a moment ago. Asking the system again would take each put a millisecond.
    fn was_refused(&self) -> bool {
        const AGAIN_NS: u64 = 10_000_000;
        let last_ns = self.done.refused.last_ns.load(Relaxed);
        last_ns != 0 && self.grace.clock().now_ns().saturating_sub(last_ns) < AGAIN_NS
    }

    pub(super) fn part(&self, named: Named, share: KeyShare) -> Segment {
        let geometry = self.geometry.segment(named.memory, named.incarnation);
        let (region, grace, undo) = (self.region.alias(), self.grace.clone(), self.undo.clone());
        Segment::part(region, geometry, grace, undo, named.memory, share, self.extents.clone())
    }

    /// The memory of a segment that is merged may be used again, or given back, when no thread of this
    /// server uses the segment any more (E7).
    fn retire(&self, segment: &Segment, guard: &Guard) {
        let memory = segment.memory;
        add_counts(&mut lock(&self.done.gone), &segment.counts());
        let (pieces, region) = (Arc::clone(&self.memory), self.region.alias());
        let first = self.geometry.slot_offset(self.geometry.segment_first(memory));
        let bytes = first..first + self.segment_bytes();
        // Threads that still have the segment may be about to take a trace away in it.
        self.live.remove(memory, guard, move |memory| lock(&pieces).put(memory, || region.give_back(bytes)));
        guard.flush();
    }

    // ---- which segment --------------------------------------------------------------------------

    /// The segment with this directory hash and its share; while it shares its keys, the parent with its
    /// share, and the child.
    pub(super) fn pair_at<'g>(
        &'g self,
        directory: u32,
        guard: &'g Guard,
    ) -> (&'g Segment, KeyShare, Option<&'g Segment>) {
        // Shares and entries change under this lock.
        let pairs = lock(&self.pairs);
        let has = |segment: &&Segment| {
            let share = segment.share.get();
            share.role != PairRole::Gone && share.covers(directory)
        };
        let named = segment::memory(place_of(&self.region, &self.geometry, directory));
        let named = self.live.get(named, guard).filter(has);
        // The region may be damaged.
        let segment = named.or_else(|| self.live.all(guard).find(has)).expect("some segment has each key");
        let pair = pairs.by_memory.get(&segment.memory).map(|pair| [pair.parent, pair.child]);
        match pair.map(|both| both.map(|memory| self.live.get(memory, guard))) {
            Some([Some(parent), Some(child)]) => (parent, parent.share.get(), Some(child)),
            _ => (segment, segment.share.get(), None),
        }
    }

    /// The segment that has a key now. It may have left when the segment is locked.
    #[inline]
    fn find<'g>(&'g self, key: Hashed<'_>, guard: &'g Guard) -> Option<&'g Segment> {
        let directory = key.first().directory();
        let place = place_of(&self.region, &self.geometry, directory);
        let has = |memory| self.live.get(memory, guard).filter(|s| s.share.has(directory, key.home()));
        has(segment::memory(place)).or_else(|| has(segment::other_memory(place)))
    }

    /// Does something in the segment that has the key, wherever it goes meanwhile. `done` hears which
    /// segment that was.
    #[inline]
    fn in_segment<R>(
        &self,
        key: Hashed<'_>,
        act: impl Fn(&Segment) -> Result<R, Stop>,
        done: impl Fn(&Segment, &R, &Guard),
    ) -> Result<R, PutError> {
        let mut wait = RoomWait::default();
        for tried in 0..TRIES_MAX {
            give_way(tried);
            let guard = epoch::pin();
            let Some(segment) = self.find(key, &guard) else { continue };
            match act(segment) {
                Ok(result) => {
                    done(segment, &result, &guard);
                    return Ok(result);
                }
                Err(Stop::Elsewhere) => {}
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::NoRoom) => {
                    let Some(no_split) = self.make_room(segment, &guard) else { continue };
                    wait.begin(self, segment, key, &no_split);
                    drop(guard);
                    if let Err(error) = self.wait_for_room(no_split, &mut wait) {
                        return obey(Rule::LastLook, || self.last_look(key, &act, &done)).ok_or(error);
                    }
                }
            }
        }
        Err(PutError::Busy { rounds: TRIES_MAX })
    }

    /// L6: before a put is refused.
    #[cold]
    #[inline(never)]
    fn last_look<R>(
        &self,
        key: Hashed<'_>,
        act: &impl Fn(&Segment) -> Result<R, Stop>,
        done: &impl Fn(&Segment, &R, &Guard),
    ) -> Option<R> {
        for tried in 0..TRIES_MAX {
            give_way(tried);
            let guard = epoch::pin();
            let Some(segment) = self.find(key, &guard) else { continue };
            match act(segment) {
                Ok(result) => {
                    done(segment, &result, &guard);
                    return Some(result);
                }
                Err(Stop::Elsewhere) => {}
                Err(_) => return None,
            }
        }
        None
    }

    pub fn put(&self, key: &[u8], value: Stored<'_>, mode: PutMode) -> Result<PutOutcome, PutError> {
        check_stored(&self.geometry, key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        self.in_segment(
            key,
            |segment| segment.put_hashed(key, value, mode),
            |segment, outcome, guard| {
                if *outcome == PutOutcome::Inserted {
                    self.after_insert(segment, guard);
                }
            },
        )
    }

    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: Stored<'_>,
    ) -> Result<SwapOutcome, PutError> {
        check_lengths(&self.geometry, key, expected.bytes())?;
        check_stored(&self.geometry, key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        self.in_segment(key, |segment| segment.swap_hashed(key, expected, value), |_, _, _| {})
    }

    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        check_lengths(&self.geometry, key, &[])?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        self.in_segment(
            key,
            |segment| segment.remove_hashed(key),
            |segment, was_there, guard| {
                if *was_there {
                    self.after_remove(segment, guard);
                }
            },
        )
    }

    /// Does something in the segment that has the keys with this hash, or in both of the pair that has
    /// them.
    pub fn with_segment_of<R>(&self, hash: First, act: impl Fn(&Segment) -> Option<R>) -> Option<R> {
        let guard = epoch::pin();
        let (segment, _, child) = self.pair_at(hash.directory(), &guard);
        act(segment).or_else(|| child.and_then(&act))
    }

    // ---- when -----------------------------------------------------------------------------------

    /// So many hundredths of the keys for which a segment is meant.
    fn share_of_design(&self, hundredths: u64) -> u64 {
        design_percents(&self.geometry) * hundredths / 10_000
    }

    /// With how many keys a segment is split.
    fn split_at(&self, share: KeyShare) -> u64 {
        self.spread(SPLIT_AT, share.prefix, share.depth)
    }

    /// With how many keys in both, two segments of this depth are merged.
    fn merge_at(&self, share: KeyShare) -> u64 {
        self.spread(MERGE_AT, share.prefix & segment::low(share.depth - 1), share.depth - 1)
    }

    /// So many keys as suit a segment with this prefix, out of a range in hundredths of the design.
    fn spread(&self, range: std::ops::Range<u64>, prefix: u32, depth: u32) -> u64 {
        let (low, high) = (self.share_of_design(range.start), self.share_of_design(range.end));
        low + (((high - low) * u64::from(prefix)) >> depth)
    }

    #[inline]
    fn after_insert(&self, segment: &Segment, guard: &Guard) {
        let share = segment.share.get();
        if share.role != PairRole::Whole && segment.len() >= self.share_of_design(HURRY_AT) {
            self.drive_own(segment, guard);
        } else if self.under_way.load(Relaxed) > 0 {
            self.drive_oldest(guard, HOMES_PER_INSERT);
        }
        if share.role == PairRole::Whole
            && segment.counters.mine().inserts.load(Relaxed).is_multiple_of(LOOK_EVERY)
            && segment.len() >= self.split_at(share)
            && !self.was_refused()
        {
            // A put that needs it says so.
            let _ = self.begin_split(segment);
        }
    }

    #[inline]
    fn after_remove(&self, segment: &Segment, guard: &Guard) {
        let share = segment.share.get();
        if self.under_way.load(Relaxed) > 0 {
            self.drive_oldest(guard, HOMES_PER_REMOVE);
        }
        if share.role == PairRole::Whole
            && share.depth > 0
            && segment.counters.mine().removes.load(Relaxed).is_multiple_of(LOOK_EVERY)
            && segment.len() < self.merge_at(share)
        {
            self.begin_merge(segment, guard, self.merge_at(share));
        }
    }

    /// Takes the split on of a segment that is nearly full.
    #[cold]
    fn drive_own(&self, segment: &Segment, guard: &Guard) {
        let Some(pair) = self.pair_of(segment) else { return };
        self.drive(&pair, HOMES_PER_INSERT, guard);
        if segment.len() >= self.share_of_design(PRESS_ON_AT) {
            self.press_on(segment, guard);
        }
    }

    /// Takes the oldest pair on that can go on. Returns whether there was one.
    #[cold]
    fn drive_oldest(&self, guard: &Guard, homes: u32) -> bool {
        let mut taken = 0;
        for _ in 0..self.under_way.load(Relaxed).min(PAIRS_LOOKED_AT) {
            let Some(pair) = lock(&self.pairs).queue.get(taken).cloned() else { return false };
            match self.drive(&pair, homes, guard) {
                Driven::On | Driven::Ended => return true,
                Driven::Taken => taken += 1,
                // One that waits holds up no other.
                Driven::Waits => lock(&self.pairs).put_last(&pair),
            }
        }
        false
    }

    /// Ends a split that inserts are about to overtake. This insert waits for ghosts to go where keys
    /// cannot be moved.
    #[cold]
    fn press_on(&self, segment: &Segment, guard: &Guard) {
        for _ in 0..WAITS_MAX {
            let Some(pair) = self.pair_of(segment) else { return };
            // This insert waits for it: no look is spared.
            lock(&pair.state).spare = 0;
            loop {
                match self.drive(&pair, HOMES_PER_TIDY, guard) {
                    Driven::On => {}
                    Driven::Ended => return,
                    Driven::Waits | Driven::Taken => break,
                }
            }
            if !self.wait_for_grace() {
                return;
            }
        }
    }

    pub(super) fn pair_of(&self, segment: &Segment) -> Option<Arc<Pair>> {
        lock(&self.pairs).by_memory.get(&segment.memory).cloned()
    }

    /// Makes room in a segment that has none for a key, by a split. Returns why that is not possible
    /// now.
    #[cold]
    pub(super) fn make_room(&self, segment: &Segment, guard: &Guard) -> Option<NoSplit> {
        let Some(pair) = self.pair_of(segment) else {
            // Memory of a segment that was merged need not be asked for.
            let is_refused = self.was_refused() && lock(&self.memory).free.is_empty();
            return if is_refused { Some(NoSplit::Memory) } else { self.begin_split(segment).err() };
        };
        self.give_up_merge(&pair, segment);
        // A put waits for it: no look is spared.
        lock(&pair.state).spare = 0;
        matches!(self.drive(&pair, HOMES_PER_TIDY, guard), Driven::Waits | Driven::Taken)
            .then_some(NoSplit::Busy)
    }

    /// Waits for ghosts to go, which lets keys make room, if there is no other way.
    #[cold]
    fn wait_for_room(&self, no_split: NoSplit, wait: &mut RoomWait) -> Result<(), PutError> {
        /// The other thread may be waiting for the disk of a region file, or for the CPU.
        const NAPS_MAX: u32 = if cfg!(feature = "sim") { 50 } else { TRIES_MAX };
        if matches!(no_split, NoSplit::Making) && !cfg!(feature = "sim") {
            // As long as it takes: it may be registering memory, or waiting for a disk.
            drop(lock(&self.making));
            return Ok(());
        }
        let is_busy = no_split.is_busy();
        if !wait.is_vain && wait.waits < if is_busy { SPLIT_WAITS_MAX } else { WAITS_MAX } {
            if self.wait_for_grace() {
                wait.waits += 1;
                return Ok(());
            }
            if is_busy && wait.naps < NAPS_MAX {
                // Another thread is at it.
                wait.naps += u32::from(self.grace.until_next().is_none());
                std::thread::sleep(Duration::from_micros(50));
                return Ok(());
            }
        }
        if let Some(searched) = wait.searched {
            self.refusals.remember(searched);
        }
        let counts = self.counts();
        match no_split {
            NoSplit::Busy | NoSplit::Making | NoSplit::Limit => {
                Err(PutError::Full { keys: counts.keys, slots: counts.slots, bytes_max: 0, heap_bytes: 0 })
            }
            NoSplit::Bound => {
                let heap = self.extents.as_ref().map(|extents| extents.counts()).unwrap_or_default();
                Err(PutError::Full {
                    keys: counts.keys,
                    slots: counts.slots,
                    bytes_max: self.geometry.slots_end(),
                    heap_bytes: heap.open_blocks * heap.block_bytes,
                })
            }
            NoSplit::Memory => Err(PutError::NoMemory { keys: counts.keys, bytes: self.segment_bytes() }),
        }
    }

    /// Waits until all present traces are gone. `false` when there are none.
    fn wait_for_grace(&self) -> bool {
        let Some(due_ns) = self.grace.last_due_ns() else { return false };
        self.done.waits.fetch_add(1, Relaxed);
        self.grace.clock().sleep_until(due_ns);
        self.reap(usize::MAX);
        true
    }

    /// Takes away up to `most` traces that are due.
    #[inline]
    pub(super) fn reap(&self, most: usize) {
        for _ in 0..most {
            let Some((due_ns, waiting)) = self.grace.pop_due() else { return };
            self.take_away(due_ns, waiting);
        }
    }

    fn take_away(&self, due_ns: u64, waiting: WaitingTrace) {
        let guard = epoch::pin();
        let segment = self.live.get(waiting.memory, &guard);
        // A segment that has been merged away took its traces with it.
        if let Some(segment) = segment.filter(|s| s.geometry.incarnation() == waiting.incarnation) {
            segment.take_away(due_ns, waiting.trace);
        }
    }

    /// Takes away what is due and drives pairs on. Returns how long until there is more to do.
    pub fn tidy(&self) -> Option<Duration> {
        self.reap(usize::MAX);
        let is_busy = self.under_way.load(Relaxed) > 0 && self.drive_oldest(&epoch::pin(), HOMES_PER_TIDY);
        // Entries for the next doubling, a few at a time.
        let filled = lock(&self.directory).fill();
        if is_busy || filled.is_ok_and(|is_whole| !is_whole) {
            return Some(Duration::ZERO);
        }
        /// What waits for room or for another thread is tried again.
        const AGAIN: Duration = Duration::from_millis(1);
        let next = self.grace.until_next();
        if self.under_way.load(Relaxed) == 0 {
            next
        } else {
            Some(next.map_or(AGAIN, |next| next.min(AGAIN)))
        }
    }

    // ---- splits and merges begin ----------------------------------------------------------------

    /// Begins to split a segment.
    pub(super) fn begin_split(&self, parent: &Segment) -> Result<(), NoSplit> {
        let share = parent.share.get();
        if share.role != PairRole::Whole || !parent.is_settled() {
            return Err(NoSplit::Busy);
        }
        if share.depth >= directory_bits_max(&self.geometry) {
            return Err(NoSplit::Limit);
        }
        let Some(_making) = try_lock(&self.making) else { return Err(NoSplit::Making) };
        if parent.share.get() != share {
            return Err(NoSplit::Busy);
        }
        if !lock(&self.memory).has_any(self.geometry.segments_max()) {
            return Err(NoSplit::Bound);
        }
        let of_child = KeyShare {
            prefix: share.prefix | 1 << share.depth,
            depth: share.depth + 1,
            role: PairRole::Child,
        };
        let child = self.make(of_child).map_err(|why| self.refused(why))?;
        child.share.begin(of_child, true);
        let named = child.named();
        let unused = |child, no_split| {
            lock(&self.memory).keep(UnusedMemory::of(child));
            Err(no_split)
        };
        let mut pairs = lock(&self.pairs);
        // Another thread may have been quicker.
        if parent.share.get() != share || pairs.by_memory.contains_key(&parent.memory) || !parent.is_settled()
        {
            return unused(child, NoSplit::Busy);
        }
        let mut directory = lock(&self.directory);
        // E1
        match directory.deepen(share.depth + 1) {
            Ok(true) => {}
            Ok(false) => return unused(child, NoSplit::Limit),
            Err(why) => return unused(child, self.refused(why)),
        }
        self.live.insert(child);
        parent.share.begin(KeyShare { role: PairRole::Parent, ..share }, false);
        // E2: every entry names the child before a key goes there.
        let pending = Pending::Child(named);
        directory.set(
            share.prefix,
            share.depth,
            DirectoryEntry { segment: parent.named(), depth: share.depth, pending },
        );
        self.insert_pair(&mut pairs, parent.memory, named.memory, Toward::Child);
        disobey(Rule::DirectoryLast, || self.name_both(&mut directory, parent, named, share));
        Ok(())
    }

    /// Begins to merge a segment and its sibling, if both have fewer keys than this together.
    fn begin_merge(&self, one: &Segment, guard: &Guard, keys_max: u64) -> bool {
        let share = one.share.get();
        let Some(depth) = share.depth.checked_sub(1) else { return false };
        let sibling = share.prefix ^ 1 << depth;
        let place = place_of(&self.region, &self.geometry, sibling);
        let Some(other) = self.live.get(segment::memory(place), guard) else { return false };
        let (parent, child) = if share.prefix >> depth & 1 == 0 { (one, other) } else { (other, one) };
        let mut pairs = lock(&self.pairs);
        let are_whole = [(one, share.prefix), (other, sibling)].into_iter().all(|(segment, prefix)| {
            segment.share.get() == KeyShare { prefix, depth: share.depth, role: PairRole::Whole }
                && segment.is_settled()
                && !pairs.by_memory.contains_key(&segment.memory)
        });
        if !are_whole || one.len() + other.len() >= keys_max {
            return false;
        }
        child.share.begin(KeyShare { role: PairRole::Child, ..child.share.get() }, false);
        parent.share.begin(KeyShare { depth, role: PairRole::Parent, ..parent.share.get() }, true);
        let pending = Pending::Parent(parent.named());
        let entry = DirectoryEntry { segment: child.named(), depth: share.depth, pending };
        lock(&self.directory).set(child.share.get().prefix, share.depth, entry);
        self.insert_pair(&mut pairs, parent.memory, child.memory, Toward::Parent);
        true
    }

    /// Gives a merge up into whose parent no key fits any more.
    fn give_up_merge(&self, pair: &Pair, full: &Segment) {
        if full.memory == pair.parent {
            let mut state = lock(&pair.state);
            self.turn_back(&mut state);
        }
    }

    /// Gives up every merge under way. For the simulator.
    #[cfg(feature = "sim")]
    pub fn give_up_merges(&self) {
        let pairs = lock(&self.pairs).queue.clone();
        pairs.iter().for_each(|pair| self.turn_back(&mut lock(&pair.state)));
    }

    /// Begins to split the segment that has this key. For the simulator.
    #[cfg(feature = "sim")]
    pub fn split(&self, key: &[u8]) {
        for tried in 0..TRIES_MAX {
            give_way(tried);
            let guard = epoch::pin();
            // Memory comes back when no thread looks at it any more; tests have other threads.
            guard.flush();
            let segment = self.find(self.geometry.hashed(key), &guard).expect("some segment has each key");
            match self.begin_split(segment) {
                Err(NoSplit::Limit | NoSplit::Bound) => {}
                begun => return begun.expect("a segment that is whole can be split"),
            }
        }
        panic!("there is no memory for another segment");
    }

    /// Begins to merge the segment that has this key, and its sibling. For the simulator.
    #[cfg(feature = "sim")]
    pub fn merge(&self, key: &[u8]) {
        let guard = epoch::pin();
        let segment = self.find(self.geometry.hashed(key), &guard).expect("some segment has each key");
        assert!(self.begin_merge(segment, &guard, u64::MAX), "the segment can be merged");
    }

    /// Begins a split, or a merge, of the segment that has this key, if that is possible now. For the simulator.
    #[cfg(feature = "sim")]
    pub fn pair_up(&self, key: &[u8], is_merge: bool) -> bool {
        let guard = epoch::pin();
        let segment = self.find(self.geometry.hashed(key), &guard);
        segment.is_some_and(|segment| match is_merge {
            true => self.begin_merge(segment, &guard, self.share_of_design(GIVE_UP_AT)),
            false => self.begin_split(segment).is_ok(),
        })
    }

    /// Takes the pair on that the segment with this key is in, by so many homes. For the simulator.
    #[cfg(feature = "sim")]
    pub fn drive_at(&self, key: &[u8], homes: u32) {
        let guard = epoch::pin();
        let segment = self.find(self.geometry.hashed(key), &guard);
        if let Some(pair) = segment.and_then(|segment| self.pair_of(segment)) {
            self.drive(&pair, homes, &guard);
        }
    }

    /// Takes the oldest pair on by so many homes. For the simulator.
    #[cfg(feature = "sim")]
    pub fn drive_on(&self, homes: u32) {
        self.drive_oldest(&epoch::pin(), homes);
    }

    fn turn_back(&self, state: &mut PairState) {
        if state.toward == Toward::Parent && !state.has_ended {
            *state = PairState::new(Toward::Back);
            self.done.given_up.fetch_add(1, Relaxed);
        }
    }

    /// Begins every merge that leaves a segment with at most [`SHRINK_TO`]. Returns how many.
    pub fn shrink(&self) -> u64 {
        let guard = epoch::pin();
        let keys_max = self.share_of_design(SHRINK_TO);
        self.live.all(&guard).filter(|segment| self.begin_merge(segment, &guard, keys_max)).count() as u64
    }

    // ---- splits and merges go on ----------------------------------------------------------------

    /// Takes a pair on by up to so many homes.
    pub(super) fn drive(&self, pair: &Pair, homes: u32, guard: &Guard) -> Driven {
        let Some(mut state) = try_lock(&pair.state) else { return Driven::Taken };
        // L9: its segments may be another pair by now.
        if !kept(Rule::PairEnds, || !state.has_ended) {
            return Driven::Ended;
        }
        let [Some(parent), Some(child)] =
            [pair.parent, pair.child].map(|memory| self.live.get(memory, guard))
        else {
            return Driven::Ended;
        };
        if let Some(fewer) = state.spare.checked_sub(1) {
            state.spare = fewer;
            return Driven::Waits;
        }
        let all = self.geometry.homes();
        for _ in 0..homes {
            if state.toward == Toward::Parent && parent.len() > self.share_of_design(GIVE_UP_AT) {
                self.turn_back(&mut state);
            }
            let to_child = state.toward != Toward::Parent;
            let Some(home) = state.next_home(all, |home| child.share.is_away(home) != to_child) else {
                state.in_vain = 0;
                if !state.left.is_empty() {
                    state.spared = (2 * state.spared + 1).clamp(0, LOOKS_SPARED_MAX);
                    state.spare = state.spared;
                    return Driven::Waits;
                }
                return self.finish(parent, child, &mut state, guard);
            };
            let carried = match state.toward {
                Toward::Child => self.split_home(parent, child, home, false),
                Toward::Parent => self.merge_home(parent, child, home),
                Toward::Back => self.split_home(parent, child, home, true),
            };
            match carried {
                Carried::All(keys) => {
                    self.done.moved.fetch_add(keys, Relaxed);
                    (state.in_vain, state.spared) = (0, 0);
                }
                Carried::NoRoom if state.toward == Toward::Parent => self.turn_back(&mut state),
                Carried::NoRoom | Carried::Stuck => {
                    state.left.push_back(home);
                    state.in_vain += 1;
                }
            }
        }
        Driven::On
    }

    /// E3: the keys of a home that belong into the child go there. E6: `back`, after they had been merged.
    fn split_home(&self, parent: &Segment, child: &Segment, home: u64, back: bool) -> Carried {
        let depth = parent.share.get().depth;
        let raised = HomeState { depth: depth + 1, merged: false };
        let raise = |locked: &mut Locked<'_>| parent.set_home_state(locked, home, raised);
        parent.carry(
            child,
            home,
            |key| key.first().directory() >> depth & 1 == 1,
            Rule::DepthFirst,
            |locked| {
                if !back {
                    return raise(locked);
                }
                parent.settled(locked, home);
                obey(Rule::DepthBack, || raise(locked));
            },
            |_| {
                has_come(child, parent, home);
                if back {
                    child.settle_later(home, Rule::MarkStays);
                }
            },
        )
    }

    /// E4: the keys of a home go into the parent.
    fn merge_home(&self, parent: &Segment, child: &Segment, home: u64) -> Carried {
        let marked = HomeState { depth: child.share.get().depth, merged: true };
        child.carry(
            parent,
            home,
            |_| true,
            Rule::MarkFirst,
            |locked| child.set_home_state(locked, home, marked),
            |_| {
                has_come(parent, child, home);
                // E5
                parent.settle_later(home, Rule::DepthStays);
            },
        )
    }

    /// Ends a split or merge: the directory says what is so.
    fn finish(&self, parent: &Segment, child: &Segment, state: &mut PairState, guard: &Guard) -> Driven {
        let toward = state.toward;
        // E6: until then a client may see a home marked whose keys are back.
        if toward == Toward::Back && !child.is_settled() {
            return Driven::Waits;
        }
        // E2: every home has gone.
        let (homes, is_merge) = (self.geometry.homes(), toward == Toward::Parent);
        if child.share.homes_away() != if is_merge { homes } else { 0 } {
            *state = PairState::new(toward);
            return Driven::On;
        }
        let (share, named) = (parent.share.get(), child.named());
        let mut pairs = lock(&self.pairs);
        let mut directory = lock(&self.directory);
        if toward == Toward::Parent {
            // E2
            let entry =
                DirectoryEntry { segment: parent.named(), depth: share.depth, pending: Pending::Nothing };
            directory.set(share.prefix, share.depth, entry);
            child.share.set(KeyShare { role: PairRole::Gone, ..child.share.get() });
            parent.share.set(KeyShare { role: PairRole::Whole, ..share });
            self.done.merges.fetch_add(1, Relaxed);
        } else {
            // E2
            self.name_both(&mut directory, parent, named, share);
            child.share.set(KeyShare { role: PairRole::Whole, ..child.share.get() });
            parent.share.set(KeyShare { depth: share.depth + 1, role: PairRole::Whole, ..share });
            self.done.splits.fetch_add(u64::from(toward == Toward::Child), Relaxed);
        }
        for memory in [parent.memory, child.memory] {
            pairs.by_memory.remove(&memory);
        }
        pairs.queue.retain(|pair| pair.parent != parent.memory);
        state.has_ended = true;
        self.under_way.store(pairs.queue.len() as u64, Relaxed);
        drop((pairs, directory));
        if toward == Toward::Parent {
            self.retire(child, guard);
        }
        Driven::Ended
    }

    fn insert_pair(&self, pairs: &mut Pairs, parent: u32, child: u32, toward: Toward) {
        let pair = Arc::new(Pair { parent, child, state: Mutex::new(PairState::new(toward)) });
        for memory in [parent, child] {
            pairs.by_memory.insert(memory, Arc::clone(&pair));
        }
        pairs.queue.push_back(pair);
        self.under_way.store(pairs.queue.len() as u64, Relaxed);
    }

    /// The directory names parent and child for their keys. `share` is the parent's.
    fn name_both(&self, directory: &mut Directory, parent: &Segment, child: Named, share: KeyShare) {
        for (prefix, segment) in [(share.prefix | 1 << share.depth, child), (share.prefix, parent.named())] {
            let depth = share.depth + 1;
            directory.set(prefix, depth, DirectoryEntry { segment, depth, pending: Pending::Nothing });
        }
    }

    // ---- counts ---------------------------------------------------------------------------------

    pub fn displaced(&self) -> usize {
        self.live.all(&epoch::pin()).map(Segment::displaced).sum()
    }

    pub fn counts(&self) -> IndexCounts {
        let guard = epoch::pin();
        let mut sum = *lock(&self.done.gone);
        sum.waits += self.done.waits.load(Relaxed);
        for segment in self.live.all(&guard) {
            let counts = segment.counts();
            add_counts(&mut sum, &counts);
            sum.keys += counts.keys;
            sum.slots += counts.slots;
            sum.main_slots += counts.main_slots;
        }
        sum
    }

    pub fn growth_counts(&self) -> GrowthCounts {
        let guard = epoch::pin();
        let pairs = lock(&self.pairs).queue.clone();
        let merging = |pair: &&Arc<Pair>| lock(&pair.state).toward != Toward::Child;
        let merging = pairs.iter().filter(merging).count() as u64;
        let (mut segments, mut depth) = (0, 0);
        let mut loads = [Vec::new(), Vec::new()];
        for segment in self.live.all(&guard) {
            let share = segment.share.get();
            if share.role != PairRole::Gone {
                segments += 1;
                depth = depth.max(share.depth.into());
                let counts = segment.counts();
                loads[usize::from(share.role != PairRole::Whole)]
                    .push(counts.keys * 1_000_000 / counts.slots.max(1));
            }
        }
        let [whole, paired] = &loads;
        let loads = if whole.is_empty() { paired } else { whole };
        GrowthCounts {
            segments,
            segments_max: self.geometry.segments_max(),
            depth,
            load_min_ppm: loads.iter().copied().min().unwrap_or(0),
            load_max_ppm: loads.iter().copied().max().unwrap_or(0),
            splitting: pairs.len() as u64 - merging,
            merging,
            splits: self.done.splits.load(Relaxed),
            merges: self.done.merges.load(Relaxed),
            given_up: self.done.given_up.load(Relaxed),
            moved: self.done.moved.load(Relaxed),
            refused: self.done.refused.times.load(Relaxed),
            bytes_backed: self.region.backed_bytes(),
            bytes_max: self.geometry.slots_end(),
            bytes_returned: lock(&self.memory).bytes_returned,
        }
    }
}

/// What a directory that was left behind says.
struct Left {
    segments: BTreeMap<u32, (Named, KeyShare)>,
    pairs: Vec<LeftPair>,
}

/// A split or merge that was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftPair {
    pub parent: u32,
    pub child: u32,
    pub toward: Toward,
}

impl Left {
    /// Reads all entries. Those of one segment may differ: the server may have been killed between two.
    fn of(directory: &Directory) -> Result<Left, RecoverError> {
        let mut left = Left { segments: BTreeMap::new(), pairs: Vec::new() };
        let mut add = |named: Named, prefix, depth, role| {
            let share = KeyShare { prefix: prefix & segment::low(depth), depth, role };
            let known = left.segments.entry(named.memory).or_insert((named, share));
            // An entry with a pair knows more than one without. Of two without, the one that names more
            // keys is later: it ends a merge.
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

impl Pairs {
    fn put_last(&mut self, pair: &Arc<Pair>) {
        if let Some(at) = self.queue.iter().position(|other| Arc::ptr_eq(other, pair)) {
            let pair = self.queue.remove(at);
            self.queue.extend(pair);
        }
    }
}

impl FreeMemory {
    fn new(geometry: &Geometry, budget: &Arc<Budget>) -> FreeMemory {
        let (budget, piece_bytes) = (Arc::clone(budget), geometry.slots() * geometry.shape().bytes() as u64);
        let (free, bare) = (Vec::new(), Vec::new());
        FreeMemory { budget, piece_bytes, free, bare, used: 0, bytes_returned: 0, closed: false }
    }

    /// The last server left these segments. `give_back` hears which pieces are free between them, and says
    /// whether the system has taken their memory.
    fn left(&mut self, segments: &BTreeSet<u32>, give_back: impl Fn(std::ops::Range<u32>) -> bool) {
        for &memory in segments {
            let between = std::mem::replace(&mut self.used, memory + 1)..memory;
            let is_bare = between.is_empty() || give_back(between.clone());
            if is_bare { &mut self.bare } else { &mut self.free }.extend(between);
        }
        let taken = segments.len() + self.free.len();
        self.budget.have(taken as u64 * self.piece_bytes);
    }

    fn has_any(&self, segments_max: u64) -> bool {
        let has_piece = !self.bare.is_empty() || u64::from(self.used) < segments_max;
        !self.free.is_empty() || has_piece && self.budget.has(self.piece_bytes)
    }

    fn take(&mut self, segments_max: u64) -> Option<u32> {
        if let Some(memory) = self.free.pop() {
            return Some(memory);
        }
        if !self.has_any(segments_max) || !self.budget.take(self.piece_bytes) {
            return None;
        }
        self.bare.pop().or_else(|| {
            self.used += 1;
            Some(self.used - 1)
        })
    }

    /// A piece has no memory behind it.
    fn put_bare(&mut self, memory: u32) {
        self.budget.give(self.piece_bytes);
        self.bare.push(memory);
    }

    /// Takes a piece back, with its memory.
    fn keep(&mut self, memory: UnusedMemory) {
        self.free.push(memory.number());
    }

    /// Takes a piece back. Gives its memory to the system if enough is free, where that is possible.
    fn put(&mut self, memory: UnusedMemory, give_back: impl FnOnce() -> Option<u64>) {
        if self.closed {
            return;
        }
        if self.free.len() < KEPT_FREE {
            return self.keep(memory);
        }
        match give_back() {
            None => self.keep(memory),
            Some(bytes) => {
                self.bytes_returned += bytes;
                self.put_bare(memory.number());
            }
        }
    }
}

/// Lets another thread go on that may have been stopped in the middle of a split or merge: its keys are nowhere
/// for so long. The more often, the longer: some 10 s for all of [`TRIES_MAX`].
#[inline]
fn give_way(tried: u32) {
    /// The model checker would try every number of tries.
    const AT_ONCE: u32 = if cfg!(loom) { 1 } else { 16 };
    match tried {
        0..AT_ONCE => {}
        AT_ONCE..1_000 => yield_now(),
        _ => std::thread::sleep(Duration::from_millis(1)),
    }
}

/// The keys of a home have come to `to`, under the lock of the home in `from`.
fn has_come(to: &Segment, from: &Segment, home: u64) {
    to.share.set_away(home, false);
    from.share.set_away(home, true);
}

/// Adds what was done; what there is now is not added.
fn add_counts(sum: &mut IndexCounts, more: &IndexCounts) {
    sum.inserts += more.inserts;
    sum.updates += more.updates;
    sum.removes += more.removes;
    sum.moves += more.moves;
    sum.homings += more.homings;
    sum.waits += more.waits;
}

/// What came of carrying the keys of a home into another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// So many keys have gone.
    All(u64),
    /// One did not fit. None has gone.
    NoRoom,
    /// One stands in a slot with a ghost (M3). None has gone.
    Stuck,
}

impl Segment {
    pub fn named(&self) -> Named {
        Named { memory: self.memory, incarnation: self.geometry.incarnation() }
    }

    /// Whether every header says what is so: nothing is left of a merge.
    fn is_settled(&self) -> bool {
        self.unsettled.load(Relaxed) == 0
    }

    /// Carries the keys of a home that `goes` names into another segment: copies all, lets `first`
    /// write the header, overwrites the originals, and lets `then` say that they have gone. `rule` is
    /// the switch that takes the second step last.
    fn carry(
        &self,
        to: &Segment,
        home: u64,
        goes: impl Fn(Hashed<'_>) -> bool,
        rule: Rule,
        first: impl FnOnce(&mut Locked<'_>),
        then: impl FnOnce(&mut Locked<'_>),
    ) -> Carried {
        let mut locked = self.stripes.none();
        let all = self.lock_keys_of(&mut locked, home);
        let going: Vec<(SlotIx, Key)> =
            all.into_iter().filter(|(_, key)| goes(self.geometry.hashed(key))).collect();
        if !going.iter().all(|&(slot, _)| has_room_for_ghost(self.slots().header(slot).ghost)) {
            return Carried::Stuck;
        }
        for (n, (slot, key)) in going.iter().enumerate() {
            if !to.adopt(self.geometry.hashed(key), self.slots().read(*slot).stored()) {
                going[..n].iter().for_each(|(_, key)| to.disown(self.geometry.hashed(key)));
                return Carried::NoRoom;
            }
        }
        in_order(
            rule,
            &mut locked,
            |locked| first(locked),
            |locked| {
                for (slot, key) in &going {
                    let key = self.geometry.hashed(key);
                    self.vacate(locked, *slot, key);
                    self.counters.left.fetch_add(1, Relaxed);
                    if !self.geometry.primary(key).contains(*slot) {
                        self.linger(locked, home, families::filter_bit(&self.geometry, key), *slot);
                    }
                }
                for (slot, _) in &going {
                    // An earlier one may have been filled by a later one.
                    if self.slots().header(*slot).is_free() {
                        self.left_slot_of_home(locked, *slot, home);
                    }
                }
            },
        );
        then(&mut locked);
        drop(locked);
        going.iter().for_each(|&(slot, _)| self.bring_home(slot));
        Carried::All(going.len() as u64)
    }

    /// Locks a home and every slot that a key of it is in. Returns these slots and keys.
    pub(super) fn lock_keys_of(&self, locked: &mut Locked<'_>, home: u64) -> Vec<(SlotIx, Key)> {
        let window = self.geometry.window(home);
        let mut set = StripeSet::new();
        self.add_window(&mut set, window);
        loop {
            locked.lock(set.clone());
            let displaced = self.stripe(locked, home).displaced_slots(home);
            let guards = || displaced.iter().filter(|slot| slot.0 < self.geometry.main_slots());
            if guards().all(|&slot| locked.covers(slot)) {
                let all =
                    window.iter().chain(displaced.iter().copied().filter(|&slot| !window.contains(slot)));
                let occupants = all.map(|slot| (slot, self.slots().occupant(slot).1));
                return occupants
                    .filter(|(_, key)| !key.is_empty() && self.geometry.hashed(key).home() == home)
                    .collect();
            }
            guards().for_each(|&slot| add_stripe(&mut set, self.stripes.of(slot)));
        }
    }

    /// Takes a copy of a key that is in the other segment of a pair, whose locks the caller holds (L7).
    /// `false` if there is no room.
    pub(super) fn adopt(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        let is_in = self.put_free(key, value)
            || self.put_by_path(key, value)
            || self.put_into_chain(key, value, PutMode::Insert, true).is_some();
        if is_in {
            self.counters.came.fetch_add(1, Relaxed);
        }
        is_in
    }

    fn put_free(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        match self.seek(key, may_be_displaced) {
            Sought::Free(slot) => {
                self.place(&mut locked, slot, key, value);
                true
            }
            Sought::At(_) | Sought::Nowhere => false,
        }
    }

    fn put_by_path(&self, key: Hashed<'_>, value: Stored<'_>) -> bool {
        /// Other threads may change a path that was found.
        const PATHS_MAX: u32 = 16;
        (0..PATHS_MAX).map_while(|_| find_path(self.table(), key)).any(|path| {
            let is_in = self.put_along(&path, key, value, PutMode::Insert, true).is_some();
            if !is_in {
                self.notes.forget(&path);
            }
            is_in
        })
    }

    /// Takes a copy away again.
    fn disown(&self, key: Hashed<'_>) {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        if let Some(slot) = self.seek(key, may_be_displaced).at() {
            self.erase(&mut locked, slot, key);
            self.counters.left.fetch_add(1, Relaxed);
        }
    }

    /// All keys, with their homes. For a thread that is alone.
    fn keys(&self) -> impl Iterator<Item = (Key, u64)> {
        let all = (0..self.geometry.slots()).map(|slot| self.slots().occupant(SlotIx(slot)).1);
        all.filter(|key| !key.is_empty()).map(|key| {
            let home = self.geometry.hashed(&key).home();
            (key, home)
        })
    }

    /// Has every header say what is so. The homes of a split's child have not been merged: those that are
    /// away have not come yet.
    fn state_all_homes(&self, is_of_split: bool) {
        for home in 0..self.geometry.homes() {
            let state = self.share.state(home);
            let state = HomeState { merged: state.merged && !is_of_split, ..state };
            self.set_home_state(&mut self.lock_home(home), home, state);
        }
    }

    fn set_home_state(&self, locked: &mut Locked<'_>, home: u64, state: HomeState) {
        let home_slot = self.geometry.window(home).first;
        let aux = self.slots().header(home_slot).aux;
        self.set_aux(locked, home_slot, state.in_aux(aux));
    }

    /// Has the header of a home say what is so, in twice the grace time. `rule` is the switch that
    /// shortens it.
    fn settle_later(&self, home: u64, rule: Rule) {
        let due_ns = self.grace.due_ns(rule);
        let mut locked = self.lock_home(home);
        if self.stripe(&mut locked, home).settling.insert(home, due_ns).is_none() {
            self.unsettled.fetch_add(1, Relaxed);
        }
        self.push_trace(due_ns, Trace::Settle { home });
    }

    /// The header of a home is about to say what is so.
    fn settled(&self, locked: &mut Locked<'_>, home: u64) {
        if self.stripe(locked, home).settling.remove(&home).is_some() {
            self.unsettled.fetch_sub(1, Relaxed);
        }
    }

    /// Has the header of a home say what is so, unless that was put off to a later time.
    pub(super) fn settle(&self, home: u64, due_ns: u64) {
        let mut locked = self.lock_home(home);
        if self.stripe(&mut locked, home).settling.get(&home) == Some(&due_ns) {
            self.set_home_state(&mut locked, home, self.share.state(home));
            self.settled(&mut locked, home);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    /// After a takeover, the memory between segments counts as taken only where the system has not taken it
    /// back. There it is taken again without more memory; then the rest is.
    #[test]
    fn the_budget_counts_memory_that_was_left() {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let bytes = geometry.slots() * geometry.shape().bytes() as u64;
        for (segments, free) in [
            (vec![0], vec![]),
            (vec![0, 1], vec![]),
            (vec![0, 3, 5], vec![1, 2, 4]),
            (vec![4], vec![0, 1, 2, 3]),
        ] {
            for is_kept in [false, true] {
                let budget = Budget::new(8 * bytes);
                let mut memory = FreeMemory::new(&geometry, &budget);
                let told = std::cell::RefCell::new(Vec::new());
                memory.left(&segments.iter().copied().collect(), |pieces| {
                    told.borrow_mut().extend(pieces);
                    !is_kept
                });
                let what = format!("{segments:?}, kept: {is_kept}");
                assert_eq!(*told.borrow(), free, "{what}");
                let taken = segments.len() + if is_kept { free.len() } else { 0 };
                let left = (8 - taken as u64) * bytes;
                assert!(budget.has(left) && !budget.has(left + 1), "{what}");
                let mut again: Vec<u32> = (0..free.len()).filter_map(|_| memory.take(100)).collect();
                again.sort_unstable();
                assert_eq!(again, free, "{what}");
                let left = (8 - segments.len() - free.len()) as u64 * bytes;
                assert!(budget.has(left) && !budget.has(left + 1), "{what}");
                let more: Vec<u32> = std::iter::from_fn(|| memory.take(100)).collect();
                assert_eq!(more, (segments.last().unwrap() + 1..8).collect::<Vec<_>>(), "{what}");
                assert!(!budget.has(1) && !memory.has_any(100), "{what}");
            }
        }
    }

    /// A table of a few slots a segment, and its clock.
    fn growing(bytes_max: u64) -> (Growth, Clock) {
        let size = TableSize::Growing { bytes_max, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
        (Growth::create_unready(region, geometry, clock.clone(), &Start::default()).unwrap(), clock)
    }

    /// When there is more to do: at once while the directory's next half is not whole; a moment later while a pair
    /// waits for another thread, though no trace is due; and never when all is done.
    #[cfg(feature = "sim")]
    #[test]
    fn tidy_says_when_to_come_again() {
        let (growth, _clock) = growing(1 << 20);
        assert_eq!((0..4).map(|_| growth.tidy()).next_back(), Some(None));
        growth.split(b"a key");
        let pair = lock(&growth.pairs).queue[0].clone();
        let taken = lock(&pair.state);
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
    #[cfg(feature = "sim")]
    #[test]
    fn a_pair_that_waits_is_put_last() {
        let (growth, _clock) = growing(1 << 20);
        growth.split(b"a key");
        growth.drive_on(u32::MAX);
        let guard = epoch::pin();
        for memory in [0, 1] {
            growth.begin_split(growth.live.get(memory, &guard).unwrap()).unwrap();
        }
        let first = lock(&growth.pairs).queue[0].clone();
        lock(&first.state).spare = u32::MAX;
        for _ in 0..growth.geometry.homes() {
            growth.tidy();
        }
        let counts = growth.growth_counts();
        assert_eq!((counts.splits, counts.splitting), (2, 1), "{counts:?}");
        lock(&first.state).spare = 0;
        growth.drive_on(u32::MAX);
        assert_eq!(growth.growth_counts().splitting, 0);
    }

    /// A put finds its segment full, and finds the merge in which that is the parent. It loses the CPU until the merge
    /// has ended, and the same two segments are a pair again: it gives nothing up.
    #[cfg(feature = "sim")]
    #[test]
    fn a_merge_that_has_ended_is_not_given_up() {
        let (growth, _clock) = growing(1 << 20);
        growth.split(b"a key");
        growth.drive_on(u32::MAX);
        growth.merge(b"a key");
        let merge = lock(&growth.pairs).queue[0].clone();
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

    /// A trace that waits is of one use of its segment's memory. The next use has nothing to do with it.
    #[test]
    fn a_trace_is_of_one_use_of_its_memory() {
        let (growth, clock) = growing(1 << 20);
        let guard = epoch::pin();
        let segment = growth.live.get(0, &guard).unwrap();
        let incarnation = segment.geometry.incarnation();
        for (incarnation, reaped) in [(incarnation - 1, 0), (incarnation, 1), (incarnation + 1, 1)] {
            let trace = Trace::Filter { home: 0 };
            growth.grace.push(0, 1, WaitingTrace { memory: 0, incarnation, trace });
            clock.advance(Duration::from_nanos(1));
            growth.reap(usize::MAX);
            assert_eq!(growth.grace.until_next(), None);
            assert_eq!(segment.counters.sum(|part| &part.reaped), reaped);
        }
    }

    /// Memory that comes back when the server has ended is the next one's: nothing is done with it.
    #[cfg(feature = "sim")]
    #[test]
    fn memory_that_comes_back_too_late_is_left_alone() {
        let (growth, _clock) = growing(1 << 20);
        let memory = Arc::clone(&growth.memory);
        let unused = |memory| UnusedMemory::of(growth.part(Named { memory, incarnation: 1 }, KeyShare::ALL));
        let late: Vec<_> = (0..KEPT_FREE as u32 + 1).map(unused).collect();
        lock(&memory).put(unused(7), || unreachable!("it is kept"));
        assert_eq!(lock(&memory).free, [7]);
        drop(growth);
        late.into_iter().for_each(|piece| lock(&memory).put(piece, || unreachable!("it is not ours")));
        let memory = lock(&memory);
        assert_eq!((&memory.free[..], memory.bare.len()), (&[7][..], 0));
    }
}
