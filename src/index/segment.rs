//! One segment: a table of one size, whose slots are numbered by themselves.
//!
//! ```text
//! put     lock the key's windows -> present: rewrite its slot
//!                                -> a free slot in the primary window: write it
//!                                -> neither: search a path, lock it, check it again, move along it
//! remove  erase the live slot -> let a displaced key come home into it
//! ```
//!
//! A change of a key is decided first, and then made. A key comes in [`Segment::come`], and is replaced or leaves in
//! [`Segment::change`]. A [`Between`] hears of both steps, and may delay the change between them.

mod copies;

use super::budget::Budget;
use super::decide::{Becomes, Decides};
use super::evict::Evictor;
use super::extents::Extents;
use super::feed::LeftCause;
use super::homes::{ChainRoom, Grace, Homes, count};
use super::moves::{MovePath, Moves};
use super::observers::Observers;
use super::refusals::{NoPath, Refusals, VainSearches};
use super::seams::{Between, Changed, KeyChange, KeyPlace, LaterValue};
use super::share::{KeyShare, SharedKeyShare};
use super::slots::{HeldRoom, Locked, SlotCopy, SlotWritten, Slots, Sought, UndoLines};
use super::started::StartedPuts;
use crate::base::clock::Clock;
use crate::faults::{Rule, broken, disobey, kept};
use crate::index::start::Start;
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::layout::owners::NOT_COMMITTED;
use crate::layout::segment::Named;
use crate::layout::slot::Stored;
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome};
use crate::region::Region;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Paths of one put that may turn out to be changed by other threads before the put gives up.
pub(super) const ROUNDS_MAX: u32 = 1_000;
/// The most times that a put without room waits for grace periods. Then the table counts as full.
pub(super) const WAITS_MAX: u32 = 3;
/// A put that takes longer is logged.
const SLOW_PUT: Duration = Duration::from_millis(10);

/// What a change finds in its key's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryFound {
    /// A hidden entry: readers see the key as absent (O3).
    Hidden,
    /// An entry of this owner; 0: nobody.
    Of(u16),
}

/// One segment; in a table of one size, the table.
#[derive(Debug)]
pub(crate) struct Segment {
    moves: Moves,
    /// The long values, if the table has any.
    extents: Option<Arc<Extents>>,
    /// The observers of changes. All segments of a table share them.
    observers: Arc<Observers>,
    refusals: Refusals,
    vain: VainSearches,
}

/// Why a segment did not do what was asked.
#[derive(Debug)]
pub(super) enum Stop {
    /// The key is in another segment.
    Elsewhere,
    /// There is no room for the key until the segment is split, or until traces are gone.
    NoRoom,
    /// The put is refused.
    Refused(PutError),
}

impl From<PutError> for Stop {
    fn from(error: PutError) -> Stop {
        Stop::Refused(error)
    }
}

/// Room for a new key. Its locks have been held since it was found.
#[derive(Clone, Copy)]
enum FoundRoom<'r> {
    /// A free slot.
    Free(SlotIx),
    /// The first slot of a path, after these keys have moved.
    Along(&'r MovePath, &'r [Hashed<'r>]),
    /// In the chain of the key's home.
    InChain(ChainRoom),
}

/// Which entry of a key is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Any entry that is not hidden.
    Any,
    /// An entry that has ended by this tick (V2).
    Ended(u64),
    /// An entry of this owner, which is hidden (O5).
    Of(u16),
    /// An entry that is not pinned (Z2): it is evicted.
    Unpinned,
}

/// Why a key is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// A caller asks for it.
    New,
    /// It is a copy: the other segment of a pair has the key, and keeps it (E3).
    Copy,
}

/// A hundred times the design load of a segment, in keys.
pub(super) fn design_percents(geometry: &Geometry) -> u64 {
    geometry.main_slots() * u64::from(geometry.layout().preset().map_or(75, |preset| preset.design_load))
}

impl Segment {
    /// The segment of a table of one size.
    pub fn whole(region: Region, geometry: Geometry, clock: Clock, start: &Start) -> Segment {
        let budget = Budget::new(geometry.heap().bytes);
        let extents = Extents::new(&region, &geometry, &clock, &budget, start.pace.value_numbers);
        Segment::over(Homes::whole(region, geometry, clock), extents, Refusals::new())
    }

    /// One segment of many. Its memory has this number, and it has these keys.
    pub fn part(
        region: Region,
        geometry: Geometry,
        grace: Grace,
        undo: UndoLines,
        memory: u32,
        share: KeyShare,
        extents: Option<Arc<Extents>>,
    ) -> Segment {
        // Their table has the refusals.
        Segment::over(Homes::part(region, geometry, grace, undo, memory, share), extents, Refusals::none())
    }

    fn over(homes: Homes, extents: Option<Arc<Extents>>, refusals: Refusals) -> Segment {
        let (moves, observers, vain) = (Moves::new(homes), Arc::default(), VainSearches::default());
        Segment { moves, extents, observers, refusals, vain }
    }

    /// The segment, with these observers from now on.
    pub fn with_observers(self, observers: &Arc<Observers>) -> Segment {
        Segment { observers: Arc::clone(observers), ..self }
    }

    /// The observers of changes.
    #[inline(always)]
    pub fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// J1: tells the feed of a change that is visible, under its key's lock. The change has replaced or removed an
    /// entry of the owner `before`.
    #[inline(always)]
    fn tell<'c>(&self, change: impl FnOnce() -> KeyChange<'c>, cause: LeftCause, before: u16) {
        let feed = self.observers.feed();
        if feed.is_on() {
            feed.tell(change(), cause, before, |owner| self.hides_owner(owner));
        }
    }

    /// If a test breaks J1, Z1 or V3: releases the lock of a key, and takes it again.
    #[inline(always)]
    fn lock_again_if_broken(&self, locked: &mut Locked<'_>, key: &Hashed<'_>) {
        for rule in [Rule::FeedLock, Rule::RecordLock, Rule::EndLock] {
            disobey(rule, || locked.lock(self.slots().stripes_of_key(*key)));
        }
    }

    #[inline(always)]
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    #[inline(always)]
    pub fn homes(&self) -> &Homes {
        self.moves.homes()
    }

    #[inline(always)]
    pub fn slots(&self) -> &Slots {
        self.moves.slots()
    }

    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        self.moves.geometry()
    }

    #[inline(always)]
    pub fn region(&self) -> &Region {
        self.homes().region()
    }

    /// The long values, if the table has any.
    #[inline(always)]
    pub fn extents(&self) -> Option<&Arc<Extents>> {
        self.extents.as_ref()
    }

    /// Which keys the segment has.
    #[inline(always)]
    pub fn share(&self) -> &SharedKeyShare {
        self.homes().share()
    }

    /// The number of the segment's memory.
    #[inline(always)]
    pub fn memory(&self) -> u32 {
        self.homes().memory()
    }

    /// The segment's name in the directory.
    #[inline]
    pub fn named(&self) -> Named {
        Named { memory: self.memory(), incarnation: self.geometry().incarnation() }
    }

    /// The number of keys.
    #[inline]
    pub fn len(&self) -> u64 {
        self.homes().counters().keys()
    }

    /// Counts of operations so far. Each counter is exact, but they may be read at different instants.
    #[inline]
    pub fn counts(&self) -> IndexCounts {
        self.homes().counts()
    }

    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Puts an absent key, for which there is room. The caller holds its locks.
    #[inline(always)]
    fn come<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        room: FoundRoom<'_>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        between: B,
    ) {
        debug_assert!(self.slots().may_change(locked, *key), "L2");
        let change = || KeyChange::came(key.key(), *value);
        // Decided: the outcome is known, and there is room. Nothing is visible.
        if !between.decided(change, LeftCause::Removed) {
            let room = self.hold(locked, room, key);
            return between.defer(key.key(), LaterValue::of(value, None), Some(room));
        }
        // Done: every look sees it.
        let slot = self.place(locked, room, key, value);
        self.lock_again_if_broken(locked, key);
        if let Some(evictor) = self.observers.evictor() {
            evictor.came(key.first());
        }
        if self.geometry().has_life() {
            self.note_life_after(key, None, value);
        }
        between.done(change, || self.place_of(slot));
        self.tell(change, LeftCause::Removed, 0);
    }

    /// Puts a new key where there is room for it. Returns the slot.
    #[inline(always)]
    fn place(
        &self,
        locked: &mut Locked<'_>,
        room: FoundRoom<'_>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
    ) -> SlotIx {
        match room {
            FoundRoom::Free(slot) => {
                self.homes().place(locked, slot, key, value);
                slot
            }
            FoundRoom::Along(path, movers) => {
                self.moves.place_along(locked, path, movers, *key, *value);
                path[0]
            }
            FoundRoom::InChain(room) => {
                self.homes().place_in_chain(locked, room, *key, *value);
                self.homes().slot_in_chain(room)
            }
        }
    }

    /// Holds room for a new key whose change must wait (L11). Nothing of the key is stored.
    #[cold]
    fn hold(&self, locked: &mut Locked<'_>, room: FoundRoom<'_>, key: &Hashed<'_>) -> HeldRoom {
        let slot = match room {
            FoundRoom::Free(slot) => slot,
            FoundRoom::Along(path, movers) => self.moves.free_along(locked, path, movers),
            FoundRoom::InChain(room) => self.homes().open_in_chain(locked, room, key.home()),
        };
        let room = HeldRoom { memory: self.memory(), slot, home: key.home() };
        self.slots().hold(locked, room);
        room
    }

    /// Puts a key into the slot that was held for it while it waited.
    pub fn put_into_held<B: Between>(
        &self,
        room: &HeldRoom,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        between: B,
    ) -> Result<(), Stop> {
        let mut locked = self.slots().lock_held(room);
        if self.is_elsewhere(key) {
            return Err(Stop::Elsewhere);
        }
        assert_eq!(room.memory, self.memory(), "L12: a home with a held slot stays where it is");
        self.slots().let_go(&locked, room);
        self.come(&mut locked, FoundRoom::Free(room.slot), key, value, between);
        Ok(())
    }

    /// Gives a key another value. The key stands in `slot`, whose value was in the extent `before`, if any. The caller
    /// holds its locks. If the old entry is hidden, listeners hear that the key came (O3). If the new entry is hidden,
    /// they hear that the key left, with this cause.
    #[inline(always)]
    fn replace<B: Between>(
        &self,
        locked: &Locked<'_>,
        (slot, before, found): (SlotIx, Option<Reference>, EntryFound),
        key: &Hashed<'_>,
        value: &Stored<'_>,
        (cause, between): (LeftCause, B),
    ) {
        debug_assert!(self.slots().may_change(locked, *key), "L2");
        let change = || match (found, value.owner()) {
            (EntryFound::Of(_), NOT_COMMITTED) => KeyChange::left(key.key()),
            (EntryFound::Of(_), _) => KeyChange::replaced(key.key(), *value),
            (EntryFound::Hidden, _) => KeyChange::came(key.key(), *value),
        };
        if !between.decided(change, cause) {
            let there = before.map(|before| before.number);
            return between.defer(key.key(), LaterValue::of(value, there), None);
        }
        // An extent that stays the key's does not end.
        let ends = |before: &Reference| value.as_reference().is_none_or(|now| now.number != before.number);
        let life = self.life_in(slot);
        let written = self.slots().rewrite(locked, slot, key.key(), value, None);
        self.end_name(before.filter(ends), written);
        if self.geometry().has_life() {
            self.note_life_after(key, life, value);
        }
        count(&self.homes().counters().mine().updates);
        if let Some(evictor) = self.observers.evictor() {
            evictor.replaced(key.first());
        }
        between.done(change, || self.place_of(slot));
        let owner = match found {
            EntryFound::Hidden => 0,
            EntryFound::Of(owner) => owner,
        };
        // Without lives there are no owners.
        if self.geometry().has_life() && owner != value.owner() {
            self.observers.owned_left().left(owner);
        }
        self.tell(change, cause, owner);
    }

    /// Removes a key from this slot. The caller holds its locks. Listeners hear of it with this cause, unless the entry
    /// was hidden: then they heard before. Returns whether the slot is free. It is not if a put of the key is started
    /// (P1), or if the key leaves later.
    #[inline(always)]
    fn leave<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        (slot, found): (SlotIx, EntryFound),
        key: &Hashed<'_>,
        (cause, between): (LeftCause, B),
    ) -> bool {
        let change = || KeyChange::left(key.key());
        let life = self.life_in(slot);
        if !between.decided(change, cause) {
            between.defer(key.key(), LaterValue::None, None);
            return false;
        }
        let started = self.observers.started();
        let is_free = !started.is_some_and(|started| self.leaves_slot_held(started, locked, slot, key));
        if is_free {
            let before = self.reference_in(slot);
            self.end_name(before, self.homes().erase(locked, slot, key));
        }
        // Counted before the lock is released: the counts of a merged segment are summed when all its homes have gone.
        let counted = self.homes().counters().mine();
        count(if is_free { &counted.removes } else { &counted.updates });
        self.lock_again_if_broken(locked, key);
        if let Some(evictor) = self.observers.evictor().filter(|_| is_free) {
            evictor.left(key.first());
        }
        if life.is_some_and(|life| life.expiry != 0) {
            self.observers.ends().left(key.first());
        }
        between.done(change, || self.place_of(slot));
        if let EntryFound::Of(owner) = found {
            self.observers.owned_left().left(owner);
            self.tell(change, cause, owner);
        }
        is_free
    }

    /// P1: if a put of the key is started, replaces its entry by one that is not committed. Returns whether it did.
    #[cold]
    fn leaves_slot_held(
        &self,
        started: &StartedPuts,
        locked: &Locked<'_>,
        slot: SlotIx,
        key: &Hashed<'_>,
    ) -> bool {
        let life = started.stands_in(key.key());
        started.count(self.slots().life(slot).map(|life| life.owner), life.map(|life| life.owner));
        let Some(life) = life else { return false };
        let there = self.slots().read(slot);
        // A key that does not fit its slot stays where it is.
        let kept = self.geometry().is_long(key.key()).then_some(&there);
        let value = kept.map_or(Stored::from(&[]), SlotCopy::stored).with_life(Some(&life));
        let written = self.slots().rewrite(locked, slot, key.key(), &value, None);
        self.end_name(there.reference.filter(|_| kept.is_none()), written);
        true
    }

    /// X3: a put or remove has ended the name of this extent, if there was one.
    #[inline(always)]
    fn end_name(&self, before: Option<Reference>, written: SlotWritten) {
        if let (Some(reference), Some(extents)) = (before, &self.extents) {
            extents.ended(&reference, written);
        }
    }

    /// Whether a put of this key is started (P1). Its lock is held.
    #[inline(always)]
    fn is_started(&self, key: &Hashed<'_>) -> bool {
        self.observers.started().is_some_and(|started| started.is_started(key.key()))
    }

    fn place_of(&self, slot: SlotIx) -> KeyPlace {
        KeyPlace { memory: self.memory(), slot }
    }

    /// The reference in a slot whose lock is held.
    #[inline(always)]
    pub fn reference_in(&self, slot: SlotIx) -> Option<Reference> {
        self.extents.as_ref().and_then(|_| self.slots().read(slot).reference)
    }

    // ---- the key ---------------------------------------------------------------------------------

    /// Looks for a key whose primary window is locked, under all its locks. `None`: the put is of a new key, which is
    /// in another segment (L8). (The locks are not returned: moving them would cost each change some instructions.)
    #[inline(always)]
    fn seek_here<'l>(&'l self, locked: &mut Locked<'l>, key: &Hashed<'_>, put: Put) -> Option<Sought> {
        let may_be_displaced = self.slots().lock_displaced(locked, key);
        if put == Put::New && self.is_elsewhere(key) {
            return None;
        }
        Some(self.slots().seek(key, may_be_displaced))
    }

    /// Z1: has the eviction policy note the key, if it is there.
    pub fn note(&self, key: &Hashed<'_>) -> Result<(), Stop> {
        let mut locked = self.slots().lock_primary(key);
        let Some(seen) = self.seek_here(&mut locked, key, Put::New) else { return Err(Stop::Elsewhere) };
        if let (Some(evictor), Some(_)) = (self.observers.evictor(), seen.at()) {
            evictor.came(key.first());
        }
        Ok(())
    }

    // ---- put ------------------------------------------------------------------------------------

    /// Puts a key whose length fits.
    #[inline(always)]
    pub fn put<B: Between>(
        &self,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        mode: PutMode,
        between: B,
    ) -> Result<PutOutcome, Stop> {
        let mut locked = self.slots().lock_primary(key);
        let Some(seen) = self.seek_here(&mut locked, key, Put::New) else { return Err(Stop::Elsewhere) };
        if let Some(answer) = self.put_over(&mut locked, seen.at(), key, value, (mode, between)) {
            return Ok(answer);
        }
        if self.geometry().grows() && self.share().is_child() && self.is_kept_for_a_split() {
            return Err(Stop::NoRoom);
        }
        let seen = if B::MAY_WAIT { self.slots().pass_by_held(seen, key) } else { seen };
        if let Sought::Free(slot) = seen {
            let room = FoundRoom::Free(slot);
            self.come(&mut locked, room, key, value, between);
            return Ok(PutOutcome::Inserted);
        }
        if self.geometry().grows() {
            drop(locked);
            // Where no slot is free, no move makes room.
            return if self.homes().has_no_free_slot() || self.leaves_search_out() {
                Err(Stop::NoRoom)
            } else {
                self.put_with_moves(key, value, mode, between)
            };
        }
        // L6 holds: the key's locks have been held since the key was looked for.
        let room_made = self.homes().counters().room_made();
        if self.homes().has_no_free_slot()
            || self.refusals.know(NoPath::of(self.geometry(), *key, room_made))
            || self.leaves_search_out()
        {
            return Err(self.full().into());
        }
        drop(locked);
        self.put_by_moving(key, value, mode, between)
    }

    /// Whether the segment's last room is kept for keys of the parent. Without it the split would never end, nor could
    /// another one begin. The homes that have not come are expected to have as many keys each as those that have. The
    /// segment is a child.
    #[inline(never)]
    fn is_kept_for_a_split(&self) -> bool {
        /// Below this load, in hundredths of the design load, no room is kept.
        const LOOKED_AT: u64 = 60;
        /// Room is kept if the expected load is at least this.
        const KEPT_FROM: u64 = 96;
        let (keys, design) = (self.len(), design_percents(self.geometry()));
        let homes = self.geometry().homes();
        let have_come = homes - self.share().homes_away();
        keys * 10_000 >= design * LOOKED_AT && keys * homes * 10_000 >= design * have_come * KEPT_FROM
    }

    /// Whether a key is not in this segment, or not any more (L8).
    #[inline(always)]
    pub fn is_elsewhere(&self, key: &Hashed<'_>) -> bool {
        let has = || self.share().has(key.first().directory(), key.home());
        self.geometry().grows() && !kept(Rule::StillHere, has)
    }

    /// Whether to leave out the search for room, because searches for other keys failed a moment ago. Only where a
    /// search looks at much of the table, and does not depend on a chain.
    fn leaves_search_out(&self) -> bool {
        !self.homes().has_chains()
            && self.vain.are_any()
            && self.vain.is_one_more(self.homes().counters().room_made_or_left())
    }

    /// Whether a put that would wait for room would leave out the search. Does not count it.
    pub fn would_leave_search_out(&self) -> bool {
        self.vain.are_many(self.homes().counters().room_made_or_left())
    }

    /// Whether a put may wait for room, in a table of one size: until traces are gone. A table that evicts waits for none.
    fn may_wait_for_room(&self) -> bool {
        self.observers.evictor().is_none() && self.homes().grace().last_due_ns().is_some()
    }

    /// Refuses a put whose search for room has failed. No room was made before the search that is not in this count.
    pub fn refuse(&self, key: &Hashed<'_>, room_made: u64) -> PutError {
        self.refusals.remember(NoPath::of(self.geometry(), *key, room_made));
        self.full()
    }

    /// The error of a full table. Sums only the counts that it names.
    fn full(&self) -> PutError {
        let (keys, slots) = (self.len(), self.homes().slots_allocated());
        PutError::Full { keys, slots, bytes_max: 0, heap_bytes: 0 }
    }

    /// Continues a put that found neither the key nor a free slot in its primary window.
    #[cold]
    fn put_by_moving<B: Between>(
        &self,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        mode: PutMode,
        between: B,
    ) -> Result<PutOutcome, Stop> {
        let clock = self.homes().grace().clock();
        let begun_ns = clock.now_ns();
        let answer = self.put_with_moves(key, value, mode, between);
        let took = Duration::from_nanos(clock.now_ns().saturating_sub(begun_ns));
        if took >= SLOW_PUT {
            tracing::info!(?took, ?answer, keys = self.len(), "a slow put");
        }
        answer
    }

    fn put_with_moves<B: Between>(
        &self,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        mode: PutMode,
        between: B,
    ) -> Result<PutOutcome, Stop> {
        let counters = self.homes().counters();
        for _ in 0..ROUNDS_MAX {
            if self.is_elsewhere(key) {
                return Err(Stop::Elsewhere);
            }
            // The search may miss room that is made from here on.
            let room_made = counters.room_made();
            let left = counters.gone();
            let Some(path) = self.moves.find_path(*key) else {
                if let Some(answer) = self.put_into_chain(key, value, (mode, between), Put::New) {
                    return Ok(answer);
                }
                self.vain.note(room_made.wrapping_add(left));
                if self.geometry().grows() || self.may_wait_for_room() {
                    return Err(Stop::NoRoom);
                }
                // L6: another thread may have put the same key meanwhile.
                let mut locked = self.slots().lock(self.slots().stripes_of_key(*key));
                let answer = match broken(Rule::LastLook) {
                    true => None,
                    false => self.put_present(&mut locked, key, value, (mode, between)),
                };
                let full = self.refuse(key, room_made);
                return answer.ok_or_else(|| full.into());
            };
            if let Some(answer) = self.put_along(&path, key, value, (mode, between), Put::New) {
                self.vain.forget();
                return Ok(answer);
            }
            self.slots().notes().forget(&path);
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX }.into())
    }

    /// Puts a key by moving others along a path that was found without locks. `None` when the path
    /// has changed since.
    pub fn put_along<B: Between>(
        &self,
        path: &MovePath,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        how: (PutMode, B),
        put: Put,
    ) -> Option<PutOutcome> {
        let mut locked = self.moves.lock_path(path, *key);
        if let ControlFlow::Break(answer) = self.look_again(&mut locked, key, value, how, put) {
            return answer;
        }
        let movers = self.moves.movers_along(path);
        if !self.moves.still_good(&locked, path, &movers) {
            return None;
        }
        self.put_new(&mut locked, FoundRoom::Along(path, &movers), key, value, (put, how.1));
        Some(PutOutcome::Inserted)
    }

    /// L8, L5: the key may have gone to another segment meanwhile, or another thread may have put it. Then this put
    /// ends, or begins again.
    #[inline(always)]
    fn look_again<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        how: (PutMode, B),
        put: Put,
    ) -> ControlFlow<Option<PutOutcome>> {
        if put == Put::New && self.is_elsewhere(key) {
            return ControlFlow::Break(None);
        }
        let answer = if broken(Rule::LookAgain) { None } else { self.put_present(locked, key, value, how) };
        answer.map_or(ControlFlow::Continue(()), |answer| ControlFlow::Break(Some(answer)))
    }

    /// Puts a key into its home's chain, into a free slot or a new block. `None` when the layout
    /// has no chains, or no block is left.
    fn put_into_chain<B: Between>(
        &self,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        how: (PutMode, B),
        put: Put,
    ) -> Option<PutOutcome> {
        if !self.homes().has_chains() {
            return None;
        }
        let mut locked = self.slots().lock(self.slots().stripes_of_key(*key));
        if let ControlFlow::Break(answer) = self.look_again(&mut locked, key, value, how, put) {
            return answer;
        }
        let room = self.homes().room_in_chain(key.home())?;
        self.put_new(&mut locked, FoundRoom::InChain(room), key, value, (put, how.1));
        Some(PutOutcome::Inserted)
    }

    /// Puts a new key, for which there is room. A copy is not a change: the key is in the other segment.
    #[inline(always)]
    fn put_new<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        room: FoundRoom<'_>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        (put, between): (Put, B),
    ) {
        match put {
            Put::New => self.come(locked, room, key, value, between),
            Put::Copy => drop(self.place(locked, room, key, value)),
        }
    }

    /// Finishes a put whose key is present, or whose mode needs the key present. `None` otherwise.
    fn put_present<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        how: (PutMode, B),
    ) -> Option<PutOutcome> {
        let seen = self.slots().seek(key, self.slots().may_be_displaced(*key));
        self.put_over(locked, seen.at(), key, value, how)
    }

    /// Finishes such a put. `slot` is the slot of the key, if it is present.
    #[inline(always)]
    fn put_over<B: Between>(
        &self,
        locked: &mut Locked<'_>,
        slot: Option<SlotIx>,
        key: &Hashed<'_>,
        value: &Stored<'_>,
        (mode, between): (PutMode, B),
    ) -> Option<PutOutcome> {
        debug_assert!(self.slots().may_change(locked, *key), "L2");
        // O3: the key of a hidden entry is absent, but has its slot.
        let there = slot.map(|slot| (slot, self.found_in(slot)));
        let (slot, found, outcome) = match (there, mode) {
            (None, PutMode::Update) | (Some((_, EntryFound::Hidden)), PutMode::Update) => {
                return Some(PutOutcome::Missing);
            }
            (None, _) => return None,
            (Some((slot, EntryFound::Hidden)), _) => (slot, EntryFound::Hidden, PutOutcome::Inserted),
            (Some(_), PutMode::Insert) => return Some(PutOutcome::Exists),
            (Some((slot, found)), _) => (slot, found, PutOutcome::Updated),
        };
        let how = (LeftCause::Removed, between);
        self.replace(locked, (slot, self.reference_in(slot), found), key, value, how);
        Some(outcome)
    }

    // ---- changes that depend on the value, removes ----------------------------------------------

    /// Makes a change that depends on the key's value. The key's length fits. Its lock is held from the look to the
    /// write (L2, L14), so no other change of the key comes between. Returns what became of the key.
    pub fn change<B: Between>(
        &self,
        key: &Hashed<'_>,
        change: &mut impl Decides,
        between: B,
    ) -> Result<Option<Changed>, Stop> {
        for _ in 0..ROUNDS_MAX {
            let seen_early = broken(Rule::ValueUnderLock).then(|| self.seen(key));
            let mut locked = self.slots().lock_primary(key);
            let Some(seen) = self.seek_here(&mut locked, key, Put::New) else { return Err(Stop::Elsewhere) };
            let slot = seen.at();
            let there = seen_early.unwrap_or_else(|| slot.map(|slot| self.slots().read(slot)));
            let before = there.as_ref().and_then(|there| there.reference);
            // O3: the key of a hidden entry is absent, but has its slot.
            let found = there.as_ref().map_or(EntryFound::Hidden, |there| self.found(there.life));
            let shown = there.as_ref().filter(|_| found != EntryFound::Hidden);
            match (slot, change.decide(shown)?) {
                (_, Becomes::Stays) | (None, Becomes::Leaves) => return Ok(None),
                (Some(_), Becomes::Leaves) if shown.is_none() => return Ok(None),
                (Some(slot), Becomes::Has(value)) => {
                    let how = (LeftCause::Removed, between);
                    self.replace(&locked, (slot, before, found), key, &value, how);
                    return Ok(Some(if shown.is_none() { Changed::Came } else { Changed::Replaced }));
                }
                (Some(slot), Becomes::Leaves) => {
                    let how = (LeftCause::Removed, between);
                    if self.leave(&mut locked, (slot, found), key, how) {
                        drop(locked);
                        self.moves.bring_home(slot);
                    }
                    return Ok(Some(Changed::Left));
                }
                (None, Becomes::Has(value)) => {
                    drop(locked);
                    // The key is put if it is still absent (L5, L6). If not, the change is decided again.
                    if self.put(key, &value, PutMode::Insert, between)? == PutOutcome::Inserted {
                        return Ok(Some(Changed::Came));
                    }
                }
            }
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX }.into())
    }

    /// A copy of the key's slot, at an instant.
    #[cold]
    fn seen(&self, key: &Hashed<'_>) -> Option<SlotCopy> {
        let mut locked = self.slots().lock_primary(key);
        self.seek_here(&mut locked, key, Put::Copy)?.at().map(|slot| self.slots().read(slot))
    }

    /// Removes a key, if its entry is the one that `which` means. The key's length fits. Returns whether it was
    /// removed.
    #[inline(always)]
    pub fn remove<B: Between>(&self, key: &Hashed<'_>, which: Which, between: B) -> Result<bool, Stop> {
        let mut locked = self.slots().lock_primary(key);
        let Some(seen) = self.seek_here(&mut locked, key, Put::New) else { return Err(Stop::Elsewhere) };
        let Some(slot) = seen.at() else { return Ok(false) };
        let found = self.found_in(slot);
        let has = |is_such: &dyn Fn(&Life) -> bool| self.life_read(slot).is_some_and(|life| is_such(&life));
        let (is_it, cause) = match which {
            Which::Any => (found != EntryFound::Hidden, LeftCause::Removed),
            Which::Ended(now) => {
                (kept(Rule::ExpiryCheck, || has(&|life| life.has_ended(now))), LeftCause::Expired)
            }
            // Z2. A started put keeps its slot, so its removal makes no room.
            Which::Unpinned => {
                let is_pinned = |evictor: &Evictor| evictor.is_pinned(key.first());
                let stays = self.observers.evictor().is_some_and(is_pinned) || self.is_started(key);
                (!stays, LeftCause::Evicted)
            }
            // The put was started again: its entry stays.
            Which::Of(NOT_COMMITTED) if self.is_started(key) => return Ok(false),
            Which::Of(owner) => {
                (kept(Rule::OwnerCheck, || has(&|life| life.owner == owner)), LeftCause::OwnerGone)
            }
        };
        if !is_it {
            return Ok(false);
        }
        if self.leave(&mut locked, (slot, found), key, (cause, between)) {
            drop(locked);
            self.moves.bring_home(slot);
        }
        Ok(true)
    }
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

/// Checks the length of a key, and of what its slot will have for the value.
#[inline(always)]
pub(super) fn check_stored(geometry: &Geometry, key: &[u8], value: Stored<'_>) -> Result<(), PutError> {
    // The length of an extent was checked when it was begun.
    check_lengths(geometry, key, if value.is_reference() { &[] } else { value.bytes() })?;
    debug_assert!(
        geometry.slot_key_bytes(key) + value.slot_bytes() <= geometry.shape().payload_max(),
        "a long value has an extent"
    );
    Ok(())
}
