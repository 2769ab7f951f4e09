//! One segment: a table of one size, whose slots are numbered by themselves.
//!
//! ```text
//! put     lock the key's windows -> present: rewrite its slot
//!                                -> a free slot in the primary window: write it
//!                                -> neither: search a path, lock it, check it again, move along it
//! remove  erase the live slot -> let a displaced key come home into it
//! ```

use super::budget::Budget;
use super::chains::Blocks;
use super::counters::{Counters, count};
use super::extents::Extents;
use super::grace::Grace;
use super::moves::SlotWritten;
use super::notes::Notes;
use super::refusals::{NoPath, Refusals, VainSearches};
use super::search::{Searched, find_path};
use super::share::{KeyShare, PairRole, SharedKeyShare};
use super::stripes::{Locked, Stripes};
use super::undo::UndoLines;
use super::writer::{SlotWriter, Sought};
use crate::clock::Clock;
use crate::families;
use crate::faults::{Rule, kept, obey};
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::extent::{Expected, Reference};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::slot::{Key, Stored};
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome, SwapOutcome};
use crate::region::Region;
use crate::sync::{Ordering, fence};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Paths of one put that other threads may change before the put gives up.
pub(super) const ROUNDS_MAX: u32 = 1_000;
/// Times that a put without room waits for grace periods before the table counts as full.
pub(super) const WAITS_MAX: u32 = 3;
/// A put that takes so long is traced.
const SLOW_PUT: Duration = Duration::from_millis(10);
/// Traces that a mutation takes away in passing.
pub(super) const REAP_MAX: usize = 8;

/// The server's side of one segment; in a table of one size, of the table.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(super) region: Region,
    pub(super) geometry: Geometry,
    pub(super) incarnation: u64,
    /// The number of its memory, and which keys it has; 0, and all, in a table of one segment.
    pub(super) memory: u32,
    pub(super) share: SharedKeyShare,
    /// Homes whose headers still say what a merge has left there.
    pub(super) unsettled: AtomicU64,
    pub(super) stripes: Stripes,
    pub(super) grace: Grace,
    pub(super) blocks: Blocks,
    pub(super) undo: UndoLines,
    pub(super) counters: Counters,
    pub(super) notes: Notes,
    pub(super) refusals: Refusals,
    pub(super) vain: VainSearches,
    /// Where long values are, if there are any.
    pub(super) extents: Option<Arc<Extents>>,
}

/// Why a segment did not do what was asked.
#[derive(Debug)]
pub(super) enum Stop {
    /// The key is in another segment.
    Elsewhere,
    /// There is no room for the key until the segment is split.
    NoRoom,
    /// The put is refused.
    Refused(PutError),
}

impl From<PutError> for Stop {
    fn from(error: PutError) -> Stop {
        Stop::Refused(error)
    }
}

impl Stop {
    /// The error of a table of one segment.
    #[cold]
    fn in_one(self) -> PutError {
        match self {
            Stop::Refused(error) => error,
            Stop::Elsewhere | Stop::NoRoom => unreachable!("the one segment has every key"),
        }
    }
}

/// A hundred times the keys for which a segment is meant.
pub(super) fn design_percents(geometry: &Geometry) -> u64 {
    geometry.main_slots() * u64::from(geometry.layout().preset().map_or(75, |preset| preset.design_load))
}

impl Segment {
    pub(super) fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64) -> Segment {
        Segment {
            extents: Extents::new(&region, &geometry, &clock, &Budget::new(geometry.heap().bytes)),
            stripes: Stripes::new(geometry.main_slots()),
            grace: Grace::new(clock, geometry.grace()),
            blocks: Blocks::new(geometry.overflow_blocks()),
            undo: UndoLines::new(),
            notes: Notes::new(geometry.main_slots()),
            region,
            geometry,
            incarnation,
            memory: 0,
            share: SharedKeyShare::new(KeyShare::ALL, 0),
            unsettled: AtomicU64::new(0),
            counters: Counters::default(),
            refusals: Refusals::new(),
            vain: VainSearches::default(),
        }
    }

    /// A segment of a table that grows.
    pub(super) fn part(
        region: Region,
        geometry: Geometry,
        grace: Grace,
        undo: UndoLines,
        memory: u32,
        share: KeyShare,
        extents: Option<Arc<Extents>>,
    ) -> Segment {
        let homes = geometry.homes();
        Segment {
            stripes: Stripes::of_segment(geometry.main_slots()),
            blocks: Blocks::all_free(geometry.overflow_blocks()),
            notes: Notes::new(geometry.main_slots()),
            region,
            geometry,
            incarnation: 0,
            memory,
            share: SharedKeyShare::new(share, homes),
            unsettled: AtomicU64::new(0),
            counters: Counters::default(),
            refusals: Refusals::none(),
            vain: VainSearches::default(),
            extents,
            grace,
            undo,
        }
    }

    /// Writes the state word, with one store.
    pub(super) fn publish_state(&self, phase: Phase) {
        publish_state(&self.region, self.incarnation, phase);
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.counters.keys()
    }
    /// The number of displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        self.stripes.each(|_, stripe| self.displaced_in(stripe)).into_iter().sum()
    }
    /// What was done so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let c = &self.counters;
        IndexCounts {
            keys: c.keys(),
            inserts: c.sum(|part| &part.inserts).saturating_sub(c.came.load(Ordering::Relaxed)),
            updates: c.sum(|part| &part.updates),
            removes: c.sum(|part| &part.removes),
            moves: c.sum(|part| &part.moves),
            homings: c.sum(|part| &part.homings),
            waits: c.waits.load(Ordering::Relaxed),
            slots: self.slots_allocated(),
            main_slots: self.geometry.main_slots(),
        }
    }

    /// A reader of this table in this process. It does the same GET as clients.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn reader(&self) -> crate::reader::Reader<'_, crate::fabric::shm::Shm<'_>> {
        use crate::fabric::shm::Shm;
        use crate::reader::{Limits, Reader};
        let fabric = Shm::new(&self.region, &self.geometry);
        Reader::new(fabric, &self.geometry, self.grace.clock().clone(), Limits::default())
    }

    pub(super) fn table(&self) -> Searched<'_> {
        Searched { slots: self.slots(), notes: &self.notes }
    }

    pub(super) fn slots(&self) -> SlotWriter<'_> {
        SlotWriter { region: &self.region, geometry: &self.geometry }
    }

    /// Puts `key` with `value`, as `mode` allows. Every GET that starts after the return sees it.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    #[inline(always)]
    pub fn put<'v>(
        &self,
        key: &[u8],
        value: impl Into<Stored<'v>>,
        mode: PutMode,
    ) -> Result<PutOutcome, PutError> {
        let value = value.into();
        check_stored(&self.geometry, key, value)?;
        self.reap(REAP_MAX);
        self.put_hashed(self.geometry.hashed(key), value, mode).map_err(Stop::in_one)
    }

    /// The same, of a key whose length fits.
    #[inline(always)]
    pub(super) fn put_hashed(
        &self,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
    ) -> Result<PutOutcome, Stop> {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        if self.is_elsewhere(key) {
            return Err(Stop::Elsewhere);
        }
        let seen = self.seek(key, may_be_displaced);
        if let Some(answer) = self.put_over(&mut locked, seen.at(), key, value, mode) {
            return Ok(answer);
        }
        if self.geometry.grows() && self.is_kept_for_a_split() {
            return Err(Stop::NoRoom);
        }
        if let Sought::Free(slot) = seen {
            self.place(&mut locked, slot, key, value);
            return Ok(PutOutcome::Inserted);
        }
        if self.geometry.grows() {
            drop(locked);
            // No move makes room where no slot is free.
            return if self.has_no_free_slot() || self.searches_in_vain() {
                Err(Stop::NoRoom)
            } else {
                self.put_with_moves(key, value, mode)
            };
        }
        // L6 holds: the key's locks are held since it was looked for.
        let room_made = self.counters.room_made();
        if self.has_no_free_slot()
            || self.refusals.know(NoPath::of(&self.geometry, key, room_made))
            || self.searches_in_vain()
        {
            return Err(self.full().into());
        }
        drop(locked);
        self.put_by_moving(key, value, mode)
    }

    /// Whether the room that is left is for keys of the parent: without it the split would never end, nor
    /// could another one begin. The homes that have not come are expected to have as many keys each as
    /// those that have.
    fn is_kept_for_a_split(&self) -> bool {
        /// With so many hundredths of the design load it is looked at,
        const LOOKED_AT: u64 = 60;
        /// and if so many are expected, the rest is kept.
        const KEPT_FROM: u64 = 96;
        if self.share.get().role != PairRole::Child {
            return false;
        }
        let (keys, design) = (self.counters.keys(), design_percents(&self.geometry));
        let homes = self.geometry.homes();
        let have_come = homes - self.share.homes_away();
        keys * 10_000 >= design * LOOKED_AT && keys * homes * 10_000 >= design * have_come * KEPT_FROM
    }

    /// Whether a key is not in this segment, or not any more (L8).
    #[inline(always)]
    pub(super) fn is_elsewhere(&self, key: Hashed<'_>) -> bool {
        let has = || self.share.has(key.first().directory(), key.home());
        self.geometry.grows() && !kept(Rule::StillHere, has)
    }

    /// Whether a key stands in every slot. `false` in layouts with chains.
    pub(super) fn has_no_free_slot(&self) -> bool {
        self.geometry.overflow_blocks() == 0 && self.counters.keys() >= self.geometry.main_slots()
    }

    /// Whether to look for no room, because other keys found none a moment ago. Only where a search looks at much
    /// of the table, and does not depend on a chain.
    fn searches_in_vain(&self) -> bool {
        self.geometry.overflow_blocks() == 0
            && self.vain.are_any()
            && self.vain.is_one_more(self.room_made_or_left())
    }

    /// A number that goes up whenever there is more room, also when a key goes to another segment.
    pub(super) fn room_made_or_left(&self) -> u64 {
        self.counters.room_made().wrapping_add(self.counters.left.load(Ordering::Relaxed))
    }

    /// Sums only what it says.
    pub(super) fn full(&self) -> PutError {
        let (keys, slots) = (self.counters.keys(), self.slots_allocated());
        PutError::Full { keys, slots, bytes_max: 0, heap_bytes: 0 }
    }

    /// Main slots, and overflow slots ever used.
    pub(super) fn slots_allocated(&self) -> u64 {
        let block_slots = u64::from(self.geometry.layout().block_slots);
        let overflow = if block_slots == 0 { 0 } else { self.blocks.ever_used() * block_slots };
        self.geometry.main_slots() + overflow
    }

    /// The rest of a put that found neither the key nor a free slot in its primary window.
    #[cold]
    pub(super) fn put_by_moving(
        &self,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
    ) -> Result<PutOutcome, Stop> {
        let begun_ns = self.grace.clock().now_ns();
        let answer = self.put_with_moves(key, value, mode);
        let took = Duration::from_nanos(self.grace.clock().now_ns().saturating_sub(begun_ns));
        if took >= SLOW_PUT {
            tracing::info!(?took, ?answer, keys = self.len(), "a slow put");
        }
        answer
    }

    pub(super) fn put_with_moves(
        &self,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
    ) -> Result<PutOutcome, Stop> {
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            if self.is_elsewhere(key) {
                return Err(Stop::Elsewhere);
            }
            // Room that is made from here on, the search may have missed.
            let room_made = self.counters.room_made();
            let left = self.counters.left.load(Ordering::Relaxed);
            let Some(path) = find_path(self.table(), key) else {
                if let Some(answer) = self.put_into_chain(key, value, mode, false) {
                    return Ok(answer);
                }
                self.vain.note(room_made.wrapping_add(left));
                if self.geometry.grows() {
                    return Err(Stop::NoRoom);
                }
                if waits < WAITS_MAX && self.wait_for_grace() {
                    waits += 1;
                    continue;
                }
                // L6: another thread may have put the same key meanwhile.
                let mut locked = self.stripes.lock(self.stripes_of_key(key));
                let answer = obey(Rule::LastLook, || self.put_present(&mut locked, key, value, mode));
                self.refusals.remember(NoPath::of(&self.geometry, key, room_made));
                return answer.ok_or_else(|| self.full().into());
            };
            if let Some(answer) = self.put_along(&path, key, value, mode, false) {
                self.vain.forget();
                return Ok(answer);
            }
            self.notes.forget(&path);
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX }.into())
    }

    /// Puts `value` if the key's value is `expected`. The key's lock is held from the look to the
    /// write (L2), so no other change of the key comes between.
    ///
    /// # Errors
    /// [`PutError::KeyLength`], or [`PutError::ValueLength`] for either value.
    pub fn compare_and_swap<'v>(
        &self,
        key: &[u8],
        expected: impl Into<Expected<'v>>,
        value: impl Into<Stored<'v>>,
    ) -> Result<SwapOutcome, PutError> {
        let (expected, value) = (expected.into(), value.into());
        check_lengths(&self.geometry, key, expected.bytes())?;
        check_stored(&self.geometry, key, value)?;
        self.reap(REAP_MAX);
        self.swap_hashed(self.geometry.hashed(key), expected, value).map_err(Stop::in_one)
    }

    /// The same, of a key and values whose lengths fit.
    pub(super) fn swap_hashed(
        &self,
        key: Hashed<'_>,
        expected: Expected<'_>,
        value: Stored<'_>,
    ) -> Result<SwapOutcome, Stop> {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        debug_assert!(self.may_change(&locked, key), "L2");
        if self.is_elsewhere(key) {
            return Err(Stop::Elsewhere);
        }
        let Some(slot) = self.seek(key, may_be_displaced).at() else { return Ok(SwapOutcome::Absent) };
        let content = self.slots().read(slot);
        let is_expected = match (expected, content.reference, &self.extents) {
            // X7: a slot that names the extent that the client has read has the value that it has read.
            (Expected::Extent(expected), now, _) => now == Some(expected),
            (Expected::Value(expected), Some(now), Some(extents)) => extents.holds(&now, expected),
            (Expected::Value(expected), ..) => content.stored() == expected.into(),
        };
        if !is_expected {
            return Ok(SwapOutcome::Differs);
        }
        let written = self.rewrite(&locked, slot, Some(key), value);
        self.ended(content.reference, written);
        count(&self.counters.mine().updates);
        Ok(SwapOutcome::Swapped)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    #[inline(always)]
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        check_lengths(&self.geometry, key, &[])?;
        self.reap(REAP_MAX);
        self.remove_hashed(self.geometry.hashed(key)).map_err(Stop::in_one)
    }

    /// The same, of a key whose length fits.
    #[inline(always)]
    pub(super) fn remove_hashed(&self, key: Hashed<'_>) -> Result<bool, Stop> {
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        if self.is_elsewhere(key) {
            return Err(Stop::Elsewhere);
        }
        let Some(slot) = self.seek(key, may_be_displaced).at() else { return Ok(false) };
        let before = self.reference_in(slot);
        let written = self.erase(&mut locked, slot, key);
        self.ended(before, written);
        // Before the lock goes: a segment that is merged away is counted when all its homes have gone.
        count(&self.counters.mine().removes);
        drop(locked);
        self.bring_home(slot);
        Ok(true)
    }

    /// Takes away every trace that is due. Mutations do this in passing; a server also does it when
    /// idle. Returns how long until the next trace is due.
    pub fn tidy(&self) -> Option<std::time::Duration> {
        self.reap(usize::MAX);
        self.grace.until_next()
    }

    /// The reference in a slot whose lock is held.
    #[inline(always)]
    pub(super) fn reference_in(&self, slot: SlotIx) -> Option<Reference> {
        self.extents.as_ref().and_then(|_| self.slots().read(slot).reference)
    }

    /// X3: a put or a remove has ended this name, if there was one.
    #[inline(always)]
    fn ended(&self, reference: Option<Reference>, written: SlotWritten) {
        if let (Some(reference), Some(extents)) = (reference, &self.extents) {
            extents.ended(&reference, written);
        }
    }

    /// Does something with the slot of a key with this hash that names such an extent, under its lock. `None`
    /// if there is none, or the segment does not have the key (L8): while a home goes to the other segment of
    /// a pair, a slot may have a copy that is not the key's yet, or an original that is not any more.
    pub(super) fn with_name<R>(
        &self,
        hash: First,
        is_it: impl Fn(&Reference) -> bool,
        act: impl FnOnce(&Locked<'_>, SlotIx, &Key, Reference) -> R,
    ) -> Option<R> {
        let mut locked = self.stripes.none();
        let all = self.lock_keys_of(&mut locked, self.geometry.home(hash.0));
        all.iter()
            .filter(|(_, key)| kept(Rule::MoveHere, || !self.is_elsewhere(self.geometry.hashed(key))))
            .find_map(|(slot, key)| {
                let reference = self.reference_in(*slot).filter(&is_it)?;
                Some((slot, key, reference))
            })
            .map(|(slot, key, reference)| act(&locked, *slot, key, reference))
    }

    /// X6: has the slot name another extent, if it still names the first.
    pub(super) fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten> {
        let is_it = |there: &Reference| kept(Rule::MoveCheck, || there.number == old.number);
        self.with_name(hash, is_it, |locked, slot, key, _| {
            let key = self.geometry.hashed(key);
            self.rewrite(locked, slot, Some(key), Stored::reference(&new.to_bytes()))
        })
    }

    pub(super) fn may_be_displaced(&self, key: Hashed<'_>) -> bool {
        families::may_be_displaced(&self.geometry, key, self.slots().aux(self.home_slot(key)))
    }

    pub(super) fn home_slot(&self, key: Hashed<'_>) -> SlotIx {
        self.geometry.primary(key).first
    }

    /// Looks for `key` in its primary window, and if it may be displaced in its others. The caller
    /// holds the key's locks.
    #[inline(always)]
    pub(super) fn seek(&self, key: Hashed<'_>, may_be_displaced: bool) -> Sought {
        let primary = self.geometry.primary(key);
        let seen = self.slots().seek(primary, key.key());
        if may_be_displaced && seen.at().is_none() {
            return self.find_displaced(key, primary).map_or(seen, Sought::At);
        }
        seen
    }

    /// The slot outside the primary window that holds `key`.
    #[cold]
    pub(super) fn find_displaced(&self, key: Hashed<'_>, primary: Window) -> Option<SlotIx> {
        let mut last = primary;
        let mut windows = (1..).map_while(|read| {
            let head_aux = self.slots().aux(last.first);
            last = families::after(&self.geometry, key, read, head_aux)?;
            Some(last)
        });
        windows.find_map(|window| self.slots().seek(window, key.key()).at())
    }

    pub(super) fn free_slot(&self, window: Window) -> Option<SlotIx> {
        window.iter().find(|&slot| self.slots().header(slot).is_free())
    }

    /// Finishes a put whose key is present, or whose mode needs the key present. `None` otherwise.
    pub(super) fn put_present(
        &self,
        locked: &mut Locked<'_>,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
    ) -> Option<PutOutcome> {
        let seen = self.seek(key, self.may_be_displaced(key));
        self.put_over(locked, seen.at(), key, value, mode)
    }

    /// The same, where it is known which slot holds the key.
    #[inline(always)]
    pub(super) fn put_over(
        &self,
        locked: &mut Locked<'_>,
        slot: Option<SlotIx>,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
    ) -> Option<PutOutcome> {
        debug_assert!(self.may_change(locked, key), "L2");
        match (slot, mode) {
            (None, PutMode::Update) => Some(PutOutcome::Missing),
            (None, _) => None,
            (Some(_), PutMode::Insert) => Some(PutOutcome::Exists),
            (Some(slot), _) => {
                self.update(locked, slot, key, value);
                Some(PutOutcome::Updated)
            }
        }
    }

    /// Puts another value into the slot that holds the key.
    #[inline(never)]
    fn update(&self, locked: &Locked<'_>, slot: SlotIx, key: Hashed<'_>, value: Stored<'_>) {
        let before = self.reference_in(slot);
        let written = self.rewrite(locked, slot, Some(key), value);
        self.ended(before, written);
        count(&self.counters.mine().updates);
    }
}

/// Writes the state word, with one store.
pub(super) fn publish_state(region: &Region, incarnation: u64, phase: Phase) {
    // Pairs with the acquire fences of a GET that follows a load of the state.
    fence(Ordering::Release);
    region.store(STATE_WORD, State { incarnation, phase }.to_word());
}

#[inline(always)]
pub(super) fn check_lengths(geometry: &Geometry, key: &[u8], value: &[u8]) -> Result<(), PutError> {
    let (key_max, value_max) = (geometry.key_max(), geometry.value_max());
    if key.is_empty() || key.len() > key_max {
        return Err(PutError::KeyLength { given: key.len(), max: key_max });
    }
    if value.len() > value_max {
        return Err(PutError::ValueLength { given: value.len(), max: value_max });
    }
    Ok(())
}

/// The same of what a slot is to have for a value.
#[inline(always)]
pub(super) fn check_stored(geometry: &Geometry, key: &[u8], value: Stored<'_>) -> Result<(), PutError> {
    check_lengths(geometry, key, value.bytes())?;
    debug_assert!(geometry.is_inline(key, value.bytes().len()), "a long value has an extent");
    Ok(())
}
