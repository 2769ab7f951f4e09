//! The server's side of the index: every change to the table.
//!
//! ```text
//! put     lock the key's windows -> present: rewrite its slot
//!                                -> a free slot in the primary window: write it
//!                                -> neither: search a path, lock it, check it again, move along it
//! remove  erase the live slot -> let a displaced key come home into it
//! ```
//!
//! * `writer` changes one slot so that no torn read of it is accepted;
//! * `stripes` keeps server threads apart;
//! * `search` finds the cheapest path of moves;
//! * `grace` takes traces away once no remote reader can depend on them;
//! * `chains` links and unlinks overflow blocks;
//! * `recover` takes a region over from a server that is gone.
//!
//! # Moving a key without hiding it
//!
//! A GET samples slots one by one while keys move. These rules keep a present key from being missed; the
//! proof is in [`crate::get`]:
//!
//! * **M1** The copy at the destination is live before the original is overwritten.
//! * **M2** A slot whose occupant was moved away carries that key's *ghost*, an 8-bit tag in the header,
//!   for twice the grace time, whatever is written into the slot meanwhile. So a vacated slot can take the
//!   next key of the path at once: a path of n moves costs n + 1 slot writes and no waiting.
//! * **M3** A slot has room for one ghost: while it has one, its occupant is not moved.
//! * **M4** The counter of begun moves for the key's home goes up before the original is overwritten.
//! * **M5** The home's filter names a displaced key before the displaced copy is live, and for twice the
//!   grace time after it is gone.
//! * **M6** A delete erases the one live copy. Its old ghosts may outlive it: a reader that meets one
//!   looks again, finds the same ghost, and reports the miss.

mod chains;
mod grace;
mod recover;
mod search;
mod stripes;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod writer;

pub use recover::{RecoverError, Recovered};

use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::families;
use crate::faults::{Rule, broken};
use crate::layout::chain;
use crate::layout::control::{Phase, STATE_WORD, State, move_counter_word};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::slot::{Content, Header};
use crate::layout::superblock::Superblock;
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome};
use crate::reader::{Limits, Reader};
use crate::region::{Region, RegionError};
use crate::sync::{AtomicU64, Ordering, fence};
use chains::Blocks;
use grace::{Grace, Trace};
use search::{MovePath, find_path};
use smallvec::SmallVec;
use stripes::{Displaced, DisplacedAt, Locked, Stripe, StripeSet, Stripes};
use writer::{Owned, SlotWriter};

/// Parts of the index alone, for the model checker.
#[cfg(all(test, loom))]
pub(crate) mod loom_access {
    pub(crate) use super::stripes::{StripeSet, Stripes};
    use super::*;

    pub fn write_slot(region: &Region, geometry: &Geometry, slot: SlotIx, key: &[u8], value: &[u8]) {
        SlotWriter { region, geometry }.write(slot, &Content { key, value, ghost: 0, aux: 0 });
    }

    /// The path that a put of `key` would take now.
    pub fn path(index: &Index, key: &[u8]) -> Option<MovePath> {
        find_path(index.slots(), index.geometry.hashed(key))
    }

    /// Two paths by which a key of a layout with two choices of one slot could be put now, each by one move, over slots
    /// that the other does not touch.
    pub fn paths_by_two_slots(index: &Index, key: &[u8]) -> Option<[MovePath; 2]> {
        let path = |window: Window| -> Option<MovePath> {
            let from = window.first;
            let occupant = index.slots().read(from).key;
            let to = families::destinations(&index.geometry, index.geometry.hashed(&occupant), Some(from));
            let free = to.iter().find_map(|destination| index.free_slot(destination.window));
            Some([from, free.filter(|_| !occupant.is_empty())?].into_iter().collect())
        };
        let mut choices = crate::cuckoo::placement::choices(&index.geometry, index.geometry.hashed(key));
        let paths = [path(choices.next()?)?, path(choices.next()?)?];
        paths[0].iter().all(|slot| !paths[1].contains(slot)).then_some(paths)
    }

    /// Puts `key`, with its own bytes as value, along a path found before.
    pub fn put_along(index: &Index, path: &MovePath, key: &[u8]) -> Option<PutOutcome> {
        index.put_along(path, index.geometry.hashed(key), key, PutMode::Upsert)
    }

    /// Main slots that hold `key`.
    pub fn copies(index: &Index, key: &[u8]) -> usize {
        (0..index.geometry.main_slots()).filter(|&slot| index.slots().holds(SlotIx(slot), key)).count()
    }
}

/// Paths that may be changed by others under our feet before a put gives up.
const ROUNDS_MAX: u32 = 1_000;
/// Times a put that finds no room waits for grace periods to end before the table counts as full.
pub(crate) const WAITS_MAX: u32 = 3;
/// Traces a mutation takes away in passing.
const REAP_MAX: usize = 8;
/// Displaced keys that one delete may bring home, each into the slot that the one before left.
const HOMINGS_MAX: usize = 4;

#[derive(Debug, Default)]
struct IndexCounters {
    keys: AtomicU64,
    inserts: AtomicU64,
    updates: AtomicU64,
    removes: AtomicU64,
    moves: AtomicU64,
    homings: AtomicU64,
    waits: AtomicU64,
}

/// May the occupant of a slot with this ghost be moved (M3)?
fn has_room_for_ghost(ghost: u8) -> bool {
    ghost == 0 || broken(Rule::OneGhost)
}

fn count(counter: &AtomicU64) {
    // Relaxed: a statistic.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The server's view of a table: the one who changes it. `Send + Sync`; all operations take `&self` and
/// may be called from several threads at once.
#[derive(Debug)]
pub struct Index {
    region: Region,
    geometry: Geometry,
    incarnation: u64,
    stripes: Stripes,
    grace: Grace,
    blocks: Blocks,
    counters: IndexCounters,
}

impl Index {
    /// Makes an empty table in `region`, which must be zero and at least
    /// [`Geometry::region_bytes`] long.
    ///
    /// Writes every main slot once, so that each validates.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough memory for the main slots.
    ///
    /// # Panics
    /// When the region is too short.
    pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<Index, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.slot_offset(SlotIx(geometry.main_slots())))?;
        let index = Index::over(region, geometry, clock, 1);
        index.publish_state(Phase::Starting);
        index.publish_superblock();
        for slot in 0..index.geometry.main_slots() {
            index.write(&index.stripes.alone(), SlotIx(slot), &Content::default());
        }
        index.publish_state(Phase::Serving);
        Ok(index)
    }

    fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64) -> Index {
        Index {
            stripes: Stripes::new(geometry.main_slots()),
            grace: Grace::new(clock, geometry.grace()),
            blocks: Blocks::new(geometry.overflow_blocks()),
            region,
            geometry,
            incarnation,
            counters: IndexCounters::default(),
        }
    }

    /// Writes the superblock, once, into a region that nobody reads yet.
    fn publish_superblock(&self) {
        let created = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let words = Superblock::new(&self.geometry, created).to_words();
        words.iter().enumerate().for_each(|(w, &word)| self.region.store(w, word));
    }

    /// Writes the state word: one store, whole by itself.
    fn publish_state(&self, phase: Phase) {
        // Pairs with the fence of whoever loads the state and then reads on.
        fence(Ordering::Release);
        self.region.store(STATE_WORD, State { incarnation: self.incarnation, phase }.to_word());
    }

    /// Tells clients that this table is given up: they must connect anew.
    pub fn retire(&self) {
        self.publish_state(Phase::Retired);
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }
    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Which server process this is, for this region.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
    /// Number of keys.
    pub fn len(&self) -> u64 {
        self.counters.keys.load(Ordering::Relaxed)
    }
    /// Is there no key?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        self.stripes.displaced()
    }
    /// Keys / all slots allocated, overflow included: what the memory really holds.
    pub fn load_true(&self) -> f64 {
        let counts = self.counts();
        counts.keys as f64 / counts.slots as f64
    }

    /// What was done so far. Relaxed counters: each is exact, together they may be of different instants.
    pub fn counts(&self) -> IndexCounts {
        let c = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexCounts {
            keys: load(&c.keys),
            inserts: load(&c.inserts),
            updates: load(&c.updates),
            removes: load(&c.removes),
            moves: load(&c.moves),
            homings: load(&c.homings),
            waits: load(&c.waits),
            slots: self.geometry.main_slots()
                + self.blocks.ever_used() * u64::from(self.geometry.layout().block_slots),
            main_slots: self.geometry.main_slots(),
        }
    }

    /// A reader of this table in this process, by the same GET that clients use.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let fabric = Shm::new(&self.region, &self.geometry);
        Reader::new(fabric, &self.geometry, self.grace.clock().clone(), Limits::default())
    }

    fn slots(&self) -> SlotWriter<'_> {
        SlotWriter { region: &self.region, geometry: &self.geometry }
    }

    // ---- mutations ----------------------------------------------------------------------------------

    /// Puts `key` with `value`, as `mode` allows. When it returns, every GET that starts later sees it.
    ///
    /// # Errors
    /// [`PutError`]; the table is then as it was.
    pub fn put(&self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        self.check_lengths(key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.lock_key(key);
        if let Some(answer) = self.put_present(&mut locked, key, value, mode) {
            return Ok(answer);
        }
        if let Some(slot) = self.free_slot(self.geometry.primary(key)) {
            self.place(&mut locked, slot, key, value);
            return Ok(PutOutcome::Inserted);
        }
        drop(locked);
        self.put_by_moving(key, value, mode)
    }

    /// The rest of a put that found neither the key nor a free slot in its primary window.
    #[cold]
    fn put_by_moving(&self, key: Hashed<'_>, value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            let Some(path) = find_path(self.slots(), key) else {
                if let Some(answer) = self.put_into_chain(key, value, mode) {
                    return Ok(answer);
                }
                if waits < WAITS_MAX && self.wait_for_grace() {
                    waits += 1;
                    continue;
                }
                // Somebody may have put the same key meanwhile.
                let mut locked = self.stripes.lock(self.stripes_of_key(key));
                let answer = if broken(Rule::LastLook) {
                    None
                } else {
                    self.put_present(&mut locked, key, value, mode)
                };
                return answer.ok_or_else(|| {
                    let counts = self.counts();
                    PutError::Full { keys: counts.keys, slots: counts.slots }
                });
            };
            if let Some(answer) = self.put_along(&path, key, value, mode) {
                return Ok(answer);
            }
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX })
    }

    /// Puts a key by moving others along a path that was found without locks. `None` when the path is not
    /// what it was any more.
    fn put_along(&self, path: &MovePath, key: Hashed<'_>, value: &[u8], mode: PutMode) -> Option<PutOutcome> {
        let mut set = self.stripes_of_key(key);
        self.add_path(&mut set, path);
        let mut locked = self.stripes.lock(set);
        // Somebody may have put the same key meanwhile.
        if !broken(Rule::LookAgain)
            && let Some(answer) = self.put_present(&mut locked, key, value, mode)
        {
            return Some(answer);
        }
        if !self.still_good(&locked, path) {
            return None;
        }
        self.move_along(&mut locked, path, |locked| self.place(locked, path[0], key, value));
        Some(PutOutcome::Inserted)
    }

    /// Removes `key`; was it there?
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        self.check_lengths(key, &[])?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.lock_key(key);
        let Some(slot) = self.find(key) else { return Ok(false) };
        self.erase(&mut locked, slot, key);
        drop(locked);
        self.counters.keys.fetch_sub(1, Ordering::Relaxed);
        count(&self.counters.removes);
        self.bring_home(slot);
        Ok(true)
    }

    /// Takes away every trace that is due. Mutations do this in passing; a server also does it when idle.
    /// Returns how long until the next one is due.
    pub fn tidy(&self) -> Option<std::time::Duration> {
        self.reap(usize::MAX);
        self.grace.until_next()
    }

    fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<(), PutError> {
        let (key_max, value_max) = (self.geometry.key_max(), self.geometry.value_max());
        if key.is_empty() || key.len() > key_max {
            return Err(PutError::KeyLength { given: key.len(), max: key_max });
        }
        if value.len() > value_max {
            return Err(PutError::ValueLength { given: value.len(), max: value_max });
        }
        Ok(())
    }

    // ---- finding, under locks -----------------------------------------------------------------------

    /// Locks what a key's presence depends on: its primary window, and its other windows if the home's
    /// filter says that it may be there.
    fn lock_key(&self, key: Hashed<'_>) -> Locked<'_> {
        let primary = self.geometry.primary(key);
        self.region
            .prefetch_bytes(self.geometry.slot_offset(primary.first), self.geometry.window_bytes(primary));
        let mut set = StripeSet::new();
        self.add_window(&mut set, primary);
        let locked = self.stripes.lock(set);
        if !self.may_be_displaced(key) {
            return locked;
        }
        drop(locked);
        self.stripes.lock(self.stripes_of_key(key))
    }

    fn may_be_displaced(&self, key: Hashed<'_>) -> bool {
        families::may_be_displaced(&self.geometry, key, self.slots().header(self.home_slot(key)).aux)
    }

    /// The stripes of all windows of a key.
    fn stripes_of_key(&self, key: Hashed<'_>) -> StripeSet {
        let mut set = StripeSet::new();
        for destination in families::destinations(&self.geometry, key, None) {
            self.add_window(&mut set, destination.window);
        }
        set
    }

    fn add_window(&self, set: &mut StripeSet, window: Window) {
        // A window is at most 64 slots, a stripe's group has 64: first and last slot name all stripes.
        set.push(self.stripes.of(window.first));
        set.push(self.stripes.of(SlotIx(window.first.0 + u64::from(window.slots) - 1)));
    }

    /// The stripes of a path's slots, and of the homes of the keys in them (L2).
    fn add_path(&self, set: &mut StripeSet, path: &MovePath) {
        for &slot in path {
            if slot.0 < self.geometry.main_slots() && !broken(Rule::SlotLock) {
                set.push(self.stripes.of(slot));
            }
            if let Some((_, occupant)) = self.slots().peek(slot).filter(|(_, key)| !key.is_empty()) {
                set.push(self.stripes.of(self.home_slot(self.geometry.hashed(&occupant))));
            }
        }
    }

    fn home_slot(&self, key: Hashed<'_>) -> SlotIx {
        self.geometry.primary(key).first
    }

    /// The main slot whose stripe guards a slot that the key may stand in.
    fn guard_of(&self, slot: SlotIx, key: Hashed<'_>) -> SlotIx {
        if slot.0 < self.geometry.main_slots() { slot } else { self.home_slot(key) }
    }

    /// The main slot whose stripe guards a slot (L1), by what is known of its block and not by what key stands in it;
    /// `None` for a block that nobody uses. For assertions.
    fn known_guard(&self, slot: SlotIx) -> Option<SlotIx> {
        match chain::block_of(&self.geometry, slot) {
            None => Some(slot),
            Some(block) => self.blocks.owner(block).map(|home| self.geometry.window(home).first),
        }
    }

    /// Does the stripe of this main slot guard the slot? For assertions.
    fn is_guarded_by(&self, slot: SlotIx, guard: SlotIx) -> bool {
        // Where a block is unlinked with a ghost in it, the next home that uses it has come to guard that.
        self.known_guard(slot) == Some(guard) || broken(Rule::BlockGhost)
    }

    /// May who holds these locks write the slot (L1)? For assertions.
    fn may_write(&self, locked: &Locked<'_>, slot: SlotIx) -> bool {
        locked.is_alone()
            || self.known_guard(slot).is_some_and(|guard| locked.covers(guard))
            || [Rule::SlotLock, Rule::BlockGhost].into_iter().any(broken)
    }

    /// May who holds these locks insert, update, move or erase the key (L2)? For assertions.
    fn may_change(&self, locked: &Locked<'_>, key: Hashed<'_>) -> bool {
        locked.covers(self.home_slot(key)) || broken(Rule::PathCheck)
    }

    /// What the lock of a home guards beside slots (L2).
    fn stripe<'l>(&self, locked: &'l mut Locked<'_>, home: u64) -> &'l mut Stripe {
        locked.stripe(self.geometry.window(home).first)
    }

    /// Replaces a slot's content. All writes of an index come through here.
    fn write(&self, locked: &Locked<'_>, slot: SlotIx, content: &Content<'_>) {
        debug_assert!(self.may_write(locked, slot), "L1: {slot:?} is written without its lock");
        self.slots().write(slot, content);
    }

    /// Locks the stripe of one main slot.
    fn lock_slot(&self, slot: SlotIx) -> Locked<'_> {
        self.stripes.lock(SmallVec::from_slice(&[self.stripes.of(slot)]))
    }

    /// Locks the stripe of a home slot.
    fn lock_home(&self, home: u64) -> Locked<'_> {
        self.lock_slot(self.geometry.window(home).first)
    }

    /// The slot that holds `key`. The caller holds the key's locks.
    fn find(&self, key: Hashed<'_>) -> Option<SlotIx> {
        let holds = |window: Window| window.iter().find(|&slot| self.slots().holds(slot, key.key()));
        if let Some(slot) = holds(self.geometry.primary(key)) {
            return Some(slot);
        }
        if !self.may_be_displaced(key) {
            return None;
        }
        let mut last = self.geometry.primary(key);
        (1..)
            .map_while(|read| {
                let head_aux = self.slots().header(last.first).aux;
                last = families::after(&self.geometry, key, read, head_aux)?;
                Some(last)
            })
            .find_map(holds)
    }

    fn free_slot(&self, window: Window) -> Option<SlotIx> {
        window.iter().find(|&slot| self.slots().header(slot).is_free())
    }

    /// The part of a put that concerns a key already present.
    fn put_present(
        &self,
        locked: &mut Locked<'_>,
        key: Hashed<'_>,
        value: &[u8],
        mode: PutMode,
    ) -> Option<PutOutcome> {
        debug_assert!(self.may_change(locked, key), "L2");
        let Some(slot) = self.find(key) else {
            return (mode == PutMode::Update).then_some(PutOutcome::Missing);
        };
        if mode == PutMode::Insert {
            return Some(PutOutcome::Exists);
        }
        self.rewrite(locked, slot, self.slots().header(slot), key.key(), value);
        count(&self.counters.updates);
        Some(PutOutcome::Updated)
    }

    // ---- moving -------------------------------------------------------------------------------------

    /// Is a path still what the search saw? The caller holds its locks.
    fn still_good(&self, locked: &Locked<'_>, path: &MovePath) -> bool {
        if broken(Rule::PathCheck) {
            return true;
        }
        let (&last, movers) = path.split_last().expect("a path has a slot");
        self.slots().header(last).is_free()
            && movers.iter().zip(&path[1..]).all(|(&from, &to)| {
                let occupant = self.slots().read(from);
                let mover = self.geometry.hashed(&occupant.key);
                !occupant.key.is_empty()
                    && has_room_for_ghost(occupant.ghost)
                    && locked.covers(self.home_slot(mover))
                    && families::destinations(&self.geometry, mover, Some(from))
                        .iter()
                        .any(|d| d.window.contains(to))
            })
    }

    /// Moves every occupant of the path one step on, from the free end back; `finish` then overwrites
    /// `path[0]`, whose occupant has been copied away, by [`Index::place`] or [`Index::vacate`].
    fn move_along<'a>(&self, locked: &mut Locked<'a>, path: &MovePath, finish: impl FnOnce(&mut Locked<'a>)) {
        let mut came_home: SmallVec<[(u64, u32, SlotIx); 4]> = SmallVec::new();
        let mut filtered_late: SmallVec<[u64; 1]> = SmallVec::new();
        for step in path.windows(2).rev() {
            let (from, to) = (step[0], step[1]);
            let occupant = self.slots().read(from);
            let mover = self.geometry.hashed(&occupant.key);
            debug_assert!(self.may_change(locked, mover), "L2");
            let (primary, home) = (self.geometry.primary(mover), mover.home());
            let bit = families::filter_bit(&self.geometry, mover);
            if broken(Rule::CopyBeforeErase) {
                let free = Content { ghost: 0, aux: occupant.aux, ..Content::default() };
                self.write(locked, from, &free);
            }
            match (primary.contains(from), primary.contains(to)) {
                (true, false) => {
                    self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(to) });
                    if broken(Rule::FilterBeforeCopy) {
                        filtered_late.push(home);
                    } else {
                        self.set_filter(locked, home);
                    }
                }
                (false, false) => self.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to)),
                (_, true) => {}
            }
            // M1: the copy is live before `from` is overwritten, by the next step or the caller.
            self.overwrite(locked, to, &occupant.key, &occupant.value);
            if !primary.contains(from) && primary.contains(to) {
                came_home.push((home, bit, from));
            }
            count(&self.counters.moves);
        }
        finish(locked);
        for home in filtered_late {
            self.set_filter(locked, home);
        }
        // M5: only now are their displaced copies gone; the grace time counts from here.
        for (home, bit, from) in came_home {
            self.linger(locked, home, bit, from);
        }
    }

    /// Writes key and value into a slot that is free, or whose occupant is updated or removed. What the
    /// slot says about other keys, by its ghost (M2) and `aux`, stays as it was `before`.
    fn rewrite(&self, locked: &Locked<'_>, slot: SlotIx, before: Header, key: &[u8], value: &[u8]) {
        let ghost = if broken(Rule::GhostStays) { 0 } else { before.ghost };
        self.write(locked, slot, &Content { key, value, ghost, aux: before.aux });
    }

    /// Writes key and value over whatever is in `slot`. An occupant that is still there has been copied
    /// elsewhere: its ghost stays behind.
    fn overwrite(&self, locked: &Locked<'_>, slot: SlotIx, key: &[u8], value: &[u8]) {
        let before = self.slots().header(slot);
        if before.is_free() {
            return self.rewrite(locked, slot, before, key, value);
        }
        debug_assert!(has_room_for_ghost(before.ghost), "M3");
        let occupant = self.slots().read(slot);
        let moved = self.geometry.hashed(&occupant.key);
        let ghost = if broken(Rule::Ghost) { before.ghost } else { moved.ghost() };
        // M4. The fence pairs with R4: who sees the slot overwritten sees the count. (And who sees the count by R3
        // sees the copy, or its slot being written: the fence before the even pass there came before this.)
        let counted_late = broken(Rule::CountBeforeErase);
        if !counted_late {
            self.region.add(move_counter_word(moved.home()));
            fence(Ordering::Release);
        }
        self.write(locked, slot, &Content { key, value, ghost, aux: before.aux });
        if counted_late {
            self.region.add(move_counter_word(moved.home()));
        }
        let guard = self.guard_of(slot, moved);
        self.grace.push(self.grace.due_ns(Rule::GhostGrace), Trace::Ghost { slot, guard });
    }

    /// Puts a new key into a slot that is free or whose occupant was moved away.
    fn place(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>, value: &[u8]) {
        debug_assert!(self.may_change(locked, key), "L2");
        if !self.geometry.primary(key).contains(slot) {
            let (home, bit) = (key.home(), families::filter_bit(&self.geometry, key));
            self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
            self.set_filter(locked, home);
        }
        self.overwrite(locked, slot, key.key(), value);
        count(&self.counters.keys);
        count(&self.counters.inserts);
    }

    /// Frees a slot whose occupant was moved away.
    fn vacate(&self, locked: &Locked<'_>, slot: SlotIx) {
        self.overwrite(locked, slot, &[], &[]);
    }

    /// Frees the slot of a key that is removed (M6).
    fn erase(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>) {
        debug_assert!(self.may_change(locked, key), "L2");
        self.rewrite(locked, slot, self.slots().header(slot), &[], &[]);
        if !self.geometry.primary(key).contains(slot) {
            self.linger(locked, key.home(), families::filter_bit(&self.geometry, key), slot);
        }
        self.left_slot_of_home(locked, slot, key.home());
    }

    // ---- filters and traces -------------------------------------------------------------------------

    /// Writes the filter of a home as its register says, if that changes it.
    fn set_filter(&self, locked: &mut Locked<'_>, home: u64) {
        let home_slot = self.geometry.window(home).first;
        let mask = families::filter_mask(&self.geometry);
        let aux = self.slots().header(home_slot).aux;
        let filter = self.stripe(locked, home).filter(home);
        self.set_aux(locked, home_slot, aux & !mask | filter);
    }

    /// Writes the `aux` of a slot, if that changes it.
    fn set_aux(&self, locked: &Locked<'_>, slot: SlotIx, aux: u32) {
        let before = self.slots().header(slot);
        if before.aux != aux {
            let Owned { key, value, .. } = self.slots().read(slot);
            self.rewrite(locked, slot, Header { aux, ..before }, &key, &value);
        }
    }

    /// The displaced key of `home` with this filter bit has left `slot`: the bit lingers (M5).
    fn linger(&self, locked: &mut Locked<'_>, home: u64, bit: u32, slot: SlotIx) {
        let until_ns = self.grace.due_ns(Rule::FilterGrace);
        self.stripe(locked, home).change(home, bit, slot, DisplacedAt::Lingers { until_ns });
        self.grace.push(until_ns, Trace::Filter { home });
    }

    /// Takes away up to `most` traces that are due.
    fn reap(&self, most: usize) {
        for _ in 0..most {
            let Some((due_ns, trace)) = self.grace.pop_due() else { return };
            self.take_away(due_ns, trace);
        }
    }

    fn take_away(&self, due_ns: u64, trace: Trace) {
        match trace {
            Trace::Ghost { slot, guard } => {
                debug_assert!(self.is_guarded_by(slot, guard), "L1: {guard:?} does not guard {slot:?}");
                let locked = self.lock_slot(guard);
                let without = Owned { ghost: 0, ..self.slots().read(slot) };
                self.write(&locked, slot, &without.content());
            }
            Trace::Filter { home } => {
                let mut locked = self.lock_home(home);
                self.stripe(&mut locked, home).expire(home, due_ns);
                self.set_filter(&mut locked, home);
            }
            Trace::Unlink { home, block } => self.unlink(home, block, due_ns),
            Trace::Reuse { home, block } => self.reuse(home, block),
        }
    }

    /// Waits until all traces there are now are gone; `false` when there are none.
    fn wait_for_grace(&self) -> bool {
        let Some(due_ns) = self.grace.last_due_ns() else { return false };
        count(&self.counters.waits);
        self.grace.clock().sleep_until(due_ns);
        self.reap(usize::MAX);
        true
    }

    // ---- homing -------------------------------------------------------------------------------------

    /// Lets a displaced key come home into the free slot `free`, another into the slot that one left, and
    /// so on.
    fn bring_home(&self, mut free: SlotIx) {
        if !families::homes_on_delete(&self.geometry) {
            return;
        }
        for _ in 0..HOMINGS_MAX {
            if free.0 >= self.geometry.main_slots() {
                return;
            }
            let Some(left) = self.homes_around(free).find_map(|home| self.bring_one_home(home, free)) else {
                return;
            };
            free = left;
        }
    }

    /// Homes whose primary window contains `slot` and whose filter names somebody. Unlocked: a guess.
    fn homes_around(&self, slot: SlotIx) -> impl Iterator<Item = u64> {
        let bucket = self.geometry.home_of_slot(slot);
        let window_buckets = u64::from(self.geometry.layout().window_buckets);
        let last = bucket.min(self.geometry.homes() - 1);
        (bucket.saturating_sub(window_buckets - 1)..=last).filter(|&home| {
            let aux = self.slots().header(self.geometry.window(home).first).aux;
            families::names_displaced(&self.geometry, aux)
        })
    }

    /// Moves a displaced key of `home` into `free`; the slot it left, if there was one to move.
    fn bring_one_home(&self, home: u64, free: SlotIx) -> Option<SlotIx> {
        let home_slot = self.geometry.window(home).first;
        let candidates: SmallVec<[SlotIx; 4]> = {
            let mut locked = self.lock_home(home);
            let entries = self.stripe(&mut locked, home).displaced(home).iter();
            entries
                .filter_map(|e| if let DisplacedAt::At(slot) = e.place { Some(slot) } else { None })
                .collect()
        };
        candidates.into_iter().find(|&from| {
            let path = MovePath::from_slice(&[from, free]);
            let mut set = StripeSet::from_slice(&[self.stripes.of(home_slot)]);
            self.add_path(&mut set, &path);
            let mut locked = self.stripes.lock(set);
            let still_there = self
                .stripe(&mut locked, home)
                .displaced(home)
                .iter()
                .any(|e| e.place == DisplacedAt::At(from));
            if !still_there || !self.still_good(&locked, &path) {
                return false;
            }
            self.move_along(&mut locked, &path, |locked| self.vacate(locked, from));
            self.left_slot_of_home(&mut locked, from, home);
            count(&self.counters.homings);
            true
        })
    }
}
