//! The server's side of the index: every change to the table.
//!
//! ```text
//! put     lock the key's windows -> present: rewrite its slot
//!                                -> a free slot in the primary window: write it
//!                                -> neither: search a path, lock it, check it again, move along it
//! remove  erase the live slot -> let a displaced key come home into it
//! ```
//!
//! Comments cite rules by id (M4). docs/PROTOCOL.md has all rules and their proofs. `src/faults.rs`
//! has one line for each rule that a test can break. Its switches (`kept`, `obey`, `disobey`,
//! `by_rule`, `in_order`) are constants in a real build, which keeps every rule.
//!
//! * `writer` changes one slot so that no torn read of it is accepted. `undo` keeps what is written
//!   over, for the server that takes over from one that was killed.
//! * `stripes` keeps server threads apart; `locks` chooses the stripes that an operation locks.
//! * `search` finds the cheapest path of moves; `moves` walks it. `notes` saves the search reads, and
//!   `refusals` saves searches.
//! * `chains` links and unlinks overflow blocks.
//! * `homing` brings displaced keys home after a delete.
//! * `counters` has what was done, one part for each thread.
//! * `traces` maintains filters. It takes traces away when `grace` says that no remote reader can
//!   depend on them.
//! * `create` makes an empty table; `recover` takes a region over from a server that was killed,
//!   `handover` from one that stopped.

mod chains;
mod counters;
mod create;
mod grace;
pub(crate) mod handover;
mod homing;
mod locks;
#[cfg(all(test, loom))]
pub(crate) mod loom_access;
mod moves;
mod notes;
mod recover;
mod refusals;
mod search;
mod stripes;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod traces;
mod undo;
mod writer;

pub use recover::{RecoverError, Recovered};

use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::families;
use crate::faults::{AtOnce, Rule, by_rule, disobey, in_order, kept, obey};
use crate::layout::chain;
use crate::layout::control::{Phase, STATE_WORD, State, move_counter_word};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::slot::Content;
use crate::layout::superblock::Superblock;
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome, SwapOutcome};
use crate::reader::{Limits, Reader};
use crate::region::{Region, RegionError};
use crate::sync::{Ordering, fence};
use chains::Blocks;
use counters::{Counters, count};
use grace::{Grace, Trace};
use moves::has_room_for_ghost;
use notes::Notes;
use refusals::{NoPath, Refusals};
use search::{MovePath, Searched, find_path};
use smallvec::SmallVec;
use std::time::Duration;
use stripes::{Displaced, DisplacedAt, Locked, Stripe, StripeSet, Stripes};
use undo::{Undo, UndoLines};
use writer::{SlotWriter, Sought};

/// Paths of one put that other threads may change before the put gives up.
const ROUNDS_MAX: u32 = 1_000;
/// Times that a put without room waits for grace periods before the table counts as full.
pub(crate) const WAITS_MAX: u32 = 3;
/// A put that takes so long is traced.
const SLOW_PUT: Duration = Duration::from_millis(10);
/// Traces that a mutation takes away in passing.
const REAP_MAX: usize = 8;

/// The server's side of a table: it makes every change.
///
/// `Send + Sync`: all operations take `&self`, and several threads may call them at once.
#[derive(Debug)]
pub struct Index {
    region: Region,
    geometry: Geometry,
    incarnation: u64,
    stripes: Stripes,
    grace: Grace,
    blocks: Blocks,
    undo: UndoLines,
    counters: Counters,
    notes: Notes,
    refusals: Refusals,
}

impl Index {
    fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64) -> Index {
        Index {
            stripes: Stripes::new(geometry.main_slots()),
            grace: Grace::new(clock, geometry.grace()),
            blocks: Blocks::new(geometry.overflow_blocks()),
            undo: UndoLines::new(),
            notes: Notes::new(geometry.main_slots()),
            region,
            geometry,
            incarnation,
            counters: Counters::default(),
            refusals: Refusals::new(),
        }
    }

    /// Writes the state word, with one store.
    fn publish_state(&self, phase: Phase) {
        // Pairs with the acquire fences of a GET that follows a load of the state.
        fence(Ordering::Release);
        self.region.store(STATE_WORD, State { incarnation: self.incarnation, phase }.to_word());
    }

    /// Tells clients that this table is given up and that they must connect again.
    pub fn retire(&self) {
        self.publish_state(Phase::Retired);
    }

    /// The table's region.
    pub fn region(&self) -> &Region {
        &self.region
    }
    /// The table's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Which server process of this region this is, counted from 1.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.counters.keys()
    }
    /// Whether the table has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        self.stripes.each(|_, stripe| self.displaced_in(stripe)).into_iter().sum()
    }
    /// Keys divided by all slots allocated, overflow included.
    pub fn load_true(&self) -> f64 {
        let counts = self.counts();
        counts.keys as f64 / counts.slots as f64
    }

    /// What was done so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let c = &self.counters;
        IndexCounts {
            keys: c.keys(),
            inserts: c.sum(|part| &part.inserts),
            updates: c.sum(|part| &part.updates),
            removes: c.sum(|part| &part.removes),
            moves: c.sum(|part| &part.moves),
            homings: c.sum(|part| &part.homings),
            waits: c.waits.load(Ordering::Relaxed),
            slots: self.geometry.main_slots()
                + self.blocks.ever_used() * u64::from(self.geometry.layout().block_slots),
            main_slots: self.geometry.main_slots(),
        }
    }

    /// A reader of this table in this process. It does the same GET as clients.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let fabric = Shm::new(&self.region, &self.geometry);
        Reader::new(fabric, &self.geometry, self.grace.clock().clone(), Limits::default())
    }

    fn table(&self) -> Searched<'_> {
        Searched { slots: self.slots(), notes: &self.notes }
    }

    fn slots(&self) -> SlotWriter<'_> {
        SlotWriter { region: &self.region, geometry: &self.geometry }
    }

    /// Puts `key` with `value`, as `mode` allows. Every GET that starts after the return sees it.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub fn put(&self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        self.check_lengths(key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        let seen = self.seek(key, may_be_displaced);
        if let Some(answer) = self.put_over(&mut locked, seen.at(), key, value, mode) {
            return Ok(answer);
        }
        if let Sought::Free(slot) = seen {
            self.place(&mut locked, slot, key, value);
            return Ok(PutOutcome::Inserted);
        }
        // L6 holds: the key's locks are held since it was looked for.
        let room_made = self.counters.room_made();
        if self.has_no_free_slot() || self.refusals.know(NoPath::of(&self.geometry, key, room_made)) {
            return Err(self.full());
        }
        drop(locked);
        self.put_by_moving(key, value, mode)
    }

    /// Whether a key stands in every slot. `false` in layouts with chains.
    fn has_no_free_slot(&self) -> bool {
        self.geometry.overflow_blocks() == 0 && self.counters.keys() >= self.geometry.main_slots()
    }

    fn full(&self) -> PutError {
        let counts = self.counts();
        PutError::Full { keys: counts.keys, slots: counts.slots }
    }

    /// The rest of a put that found neither the key nor a free slot in its primary window.
    #[cold]
    fn put_by_moving(&self, key: Hashed<'_>, value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        let begun_ns = self.grace.clock().now_ns();
        let answer = self.put_with_moves(key, value, mode);
        let took = Duration::from_nanos(self.grace.clock().now_ns().saturating_sub(begun_ns));
        if took >= SLOW_PUT {
            tracing::info!(?took, ?answer, keys = self.len(), "a slow put");
        }
        answer
    }

    fn put_with_moves(&self, key: Hashed<'_>, value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            // Room that is made from here on, the search may have missed.
            let room_made = self.counters.room_made();
            let Some(path) = find_path(self.table(), key) else {
                if let Some(answer) = self.put_into_chain(key, value, mode) {
                    return Ok(answer);
                }
                if waits < WAITS_MAX && self.wait_for_grace() {
                    waits += 1;
                    continue;
                }
                // L6: another thread may have put the same key meanwhile.
                let mut locked = self.stripes.lock(self.stripes_of_key(key));
                let answer = obey(Rule::LastLook, || self.put_present(&mut locked, key, value, mode));
                self.refusals.remember(NoPath::of(&self.geometry, key, room_made));
                return answer.ok_or_else(|| self.full());
            };
            if let Some(answer) = self.put_along(&path, key, value, mode) {
                return Ok(answer);
            }
            self.notes.forget(&path);
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX })
    }

    /// Puts `value` if the key's value is `expected`. The key's lock is held from the look to the
    /// write (L2), so no other change of the key comes between.
    ///
    /// # Errors
    /// [`PutError::KeyLength`], or [`PutError::ValueLength`] for either value.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<SwapOutcome, PutError> {
        self.check_lengths(key, expected)?;
        self.check_lengths(key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        debug_assert!(self.may_change(&locked, key), "L2");
        let Some(slot) = self.seek(key, may_be_displaced).at() else { return Ok(SwapOutcome::Absent) };
        if *self.slots().read(slot).value != *expected {
            return Ok(SwapOutcome::Differs);
        }
        self.rewrite(&locked, slot, Some(key), value);
        count(&self.counters.mine().updates);
        Ok(SwapOutcome::Swapped)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        self.check_lengths(key, &[])?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        let Some(slot) = self.seek(key, may_be_displaced).at() else { return Ok(false) };
        self.erase(&mut locked, slot, key);
        drop(locked);
        count(&self.counters.mine().removes);
        self.bring_home(slot);
        Ok(true)
    }

    /// Takes away every trace that is due. Mutations do this in passing; a server also does it when
    /// idle. Returns how long until the next trace is due.
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

    fn may_be_displaced(&self, key: Hashed<'_>) -> bool {
        families::may_be_displaced(&self.geometry, key, self.slots().aux(self.home_slot(key)))
    }

    fn home_slot(&self, key: Hashed<'_>) -> SlotIx {
        self.geometry.primary(key).first
    }

    /// Looks for `key` in its primary window, and if it may be displaced in its others. The caller
    /// holds the key's locks.
    #[inline(always)]
    fn seek(&self, key: Hashed<'_>, may_be_displaced: bool) -> Sought {
        let primary = self.geometry.primary(key);
        let seen = self.slots().seek(primary, key.key());
        if may_be_displaced && seen.at().is_none() {
            return self.find_displaced(key, primary).map_or(seen, Sought::At);
        }
        seen
    }

    /// The slot outside the primary window that holds `key`.
    #[cold]
    fn find_displaced(&self, key: Hashed<'_>, primary: Window) -> Option<SlotIx> {
        let mut last = primary;
        let mut windows = (1..).map_while(|read| {
            let head_aux = self.slots().aux(last.first);
            last = families::after(&self.geometry, key, read, head_aux)?;
            Some(last)
        });
        windows.find_map(|window| self.slots().seek(window, key.key()).at())
    }

    fn free_slot(&self, window: Window) -> Option<SlotIx> {
        window.iter().find(|&slot| self.slots().header(slot).is_free())
    }

    /// Finishes a put whose key is present, or whose mode needs the key present. `None` otherwise.
    fn put_present(
        &self,
        locked: &mut Locked<'_>,
        key: Hashed<'_>,
        value: &[u8],
        mode: PutMode,
    ) -> Option<PutOutcome> {
        let seen = self.seek(key, self.may_be_displaced(key));
        self.put_over(locked, seen.at(), key, value, mode)
    }

    /// The same, where it is known which slot holds the key.
    #[inline]
    fn put_over(
        &self,
        locked: &mut Locked<'_>,
        slot: Option<SlotIx>,
        key: Hashed<'_>,
        value: &[u8],
        mode: PutMode,
    ) -> Option<PutOutcome> {
        debug_assert!(self.may_change(locked, key), "L2");
        let Some(slot) = slot else {
            return (mode == PutMode::Update).then_some(PutOutcome::Missing);
        };
        if mode == PutMode::Insert {
            return Some(PutOutcome::Exists);
        }
        self.rewrite(locked, slot, Some(key), value);
        count(&self.counters.mine().updates);
        Some(PutOutcome::Updated)
    }
}
