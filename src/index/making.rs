//! How every change of a key is made: one composition, from what was asked for to the table.
//!
//! ```text
//! memory    a value that does not fit its slot is written to memory of its own (X2)
//! room      entries leave until there is room, where entries make room for others (Z3)
//! life      the entry gets its number, its end and its owner (V1, O1)
//! turn      the change takes its key's turn, where somebody hears of changes (L10)
//! table     the segment that has the key makes the change
//! ```
//!
//! [`Index::make`] takes these steps in this order: for puts, swaps, changes of a part, and removes, and for entries
//! that leave by themselves: at their end, with their owner, or to make room. [`What`] says which steps a change needs.
//!
//! A step that has to wait for memory, for readers, or for another thread ends the try (`waits.rs`). The next try begins
//! with the first step again. A change that has to wait *after* it was decided has its outcome, and is made without its
//! first try (`later.rs`).

use super::change::{Made, What};
use super::extents::{ExtentDraft, NoMemory, Upload};
use super::face::Index;
use super::later::end_turn;
use super::lives::Lives;
use super::news::News;
use super::seams::{Changed, Nobody, SeamTurns, TurnTaken};
use super::segment::{Which, check_lengths};
use super::waits::{ChangeWait, ChangeWaits};
use super::wanted::{NewOwner, Patience, WantedChange};
use crate::faults::{Rule, broken, in_order};
use crate::layout::slot::Stored;
use crate::outcome::PutError;
use std::sync::Arc;
use std::time::Duration;
#[cfg(test)]
use {
    super::owners::OwnerSession,
    crate::outcome::{PutOptions, PutOutcome},
};

/// The most times that a put evicts entries beside its key.
const TRIES_MAX: u32 = 16;

impl Index {
    /// Makes a change.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    #[inline(always)]
    pub(super) fn make<W: What>(&self, change: WantedChange<'_, W>) -> Made<W, PutError> {
        // Not by `until_made`: a closure that is called in two places is not inlined.
        match change.patience {
            Patience::Tries(waits) | Patience::HasTurn(waits, _) => self.try_once(change, waits),
            Patience::Sleeps => {
                let waits = ChangeWaits::default();
                // (Made of its parts: so no more than the outcome is moved.)
                match (self.try_once(change, &waits), waits.are_any()) {
                    (Ok(outcome), false) => Ok(outcome),
                    (Err(error), false) => Err(error),
                    (tried, true) => self.make_again(change.apart(), &waits, tried),
                }
            }
        }
    }

    /// Goes on with a change whose first try has to wait.
    #[cold]
    #[inline(never)]
    fn make_again<W: What>(
        &self,
        change: WantedChange<'_, W>,
        waits: &ChangeWaits,
        tried: Made<W, PutError>,
    ) -> Made<W, PutError> {
        self.sleep_until_made(waits, tried, &mut |waits| self.try_once(change, waits))
    }

    /// Tries until something is made or refused, as patiently as this. A try notes in its waits what it waits for.
    #[inline(always)]
    pub(super) fn until_made<R>(
        &self,
        patience: Patience<'_>,
        mut attempt: impl FnMut(&ChangeWaits) -> Result<R, PutError>,
    ) -> Result<R, PutError> {
        match patience {
            Patience::Tries(waits) | Patience::HasTurn(waits, _) => attempt(waits),
            Patience::Sleeps => {
                let waits = ChangeWaits::default();
                let tried = attempt(&waits);
                if waits.are_any() { self.sleep_until_made(&waits, tried, &mut attempt) } else { tried }
            }
        }
    }

    /// Sleeps until the last try can be repeated, and repeats it. Or, where something is made, until it may end.
    #[cold]
    #[inline(never)]
    fn sleep_until_made<R>(
        &self,
        waits: &ChangeWaits,
        mut tried: Result<R, PutError>,
        attempt: &mut dyn FnMut(&ChangeWaits) -> Result<R, PutError>,
    ) -> Result<R, PutError> {
        /// A change that waits longer is logged.
        const SLOW: Duration = Duration::from_millis(10);
        let clock = self.table().clock();
        let begun_ns = clock.now_ns();
        while self.sleep_through(waits) {
            match tried {
                Ok(_) => self.go_on(waits)?,
                Err(_) => tried = attempt(waits),
            }
        }
        let waited = Duration::from_nanos(clock.now_ns().saturating_sub(begun_ns));
        if waited >= SLOW {
            tracing::info!(?waited, refused = ?tried.as_ref().err(), keys = self.len(), "a change that waited");
        }
        tried
    }

    // ---- for a thread that has others to serve --------------------------------------------------

    /// How long a change waits for this at most, until it is to be tried again. What it waits for may be told before
    /// ([`Index::news`]).
    pub(crate) fn wait_left(&self, wait: ChangeWait) -> Duration {
        /// Memory comes by its time; but extents may have to move first, which others do.
        const MEMORY_LOOK: Duration = Duration::from_millis(10);
        const MOVE_LOOK: Duration = Duration::from_micros(100);
        /// Other threads tell when they have ended. A split that goes on may make room before.
        const THREAD_LOOK: Duration = Duration::from_millis(1);
        /// Whoever makes the change tells.
        const DECIDED_LOOK: Duration = Duration::from_secs(1);
        let until = |due_ns: u64| Duration::from_nanos(due_ns.saturating_sub(self.table().clock().now_ns()));
        match wait {
            ChangeWait::Readers { due_ns } => until(due_ns),
            ChangeWait::Memory { due_ns } => until(due_ns).clamp(MOVE_LOOK, MEMORY_LOOK),
            ChangeWait::Thread | ChangeWait::Maker => THREAD_LOOK,
            ChangeWait::Decided => DECIDED_LOOK,
        }
    }

    /// Sleeps until what a change waits for is over, or may be. Returns whether it waited for anything.
    pub(crate) fn sleep_through(&self, waits: &ChangeWaits) -> bool {
        let Some(wait) = waits.end() else { return false };
        match wait {
            ChangeWait::Decided => waits.decided().iter().for_each(|end| end.wait()),
            wait => {
                self.table().sleep(wait);
                self.table().waited(wait);
            }
        }
        true
    }

    /// To be called between a wait and what follows: the next try, or the next step of a change that is made.
    pub(crate) fn end_wait(&self, waits: &ChangeWaits) {
        match waits.end() {
            // Something else was told: it has not waited for readers.
            Some(ChangeWait::Readers { due_ns }) if self.table().clock().now_ns() < due_ns => {
                waits.ended_early();
            }
            Some(ChangeWait::Thread | ChangeWait::Maker) => waits.is_told(),
            Some(wait) => self.table().waited(wait),
            None => {}
        }
    }

    /// The next step of a change that has its outcome, and is not to be answered yet. If it still has to wait, its waits
    /// say so.
    ///
    /// # Errors
    /// [`PutError::Withdrawn`]: it is not made, and never will be.
    pub(crate) fn go_on(&self, waits: &ChangeWaits) -> Result<(), PutError> {
        match waits.decided().map(|end| end.now()) {
            Some(None) => waits.begin(ChangeWait::Decided),
            Some(Some(ended)) => {
                waits.has_ended();
                ended?;
                self.table().go_on(waits);
            }
            None => self.table().go_on(waits),
        }
        Ok(())
    }

    /// What changes may wait for, when it is there.
    pub(crate) fn news(&self) -> &News {
        self.table().news()
    }

    // ---- the steps of a try ---------------------------------------------------------------------

    /// Tries to make a change. Memory is its first step: a value that does not fit its slot is written there.
    #[inline(always)]
    fn try_once<W: What>(&self, change: WantedChange<'_, W>, waits: &ChangeWaits) -> Made<W, PutError> {
        match change.value {
            None => self.with_room(change, Stored::default(), waits),
            Some(value) if self.geometry().is_inline(change.key, value.len()) => {
                self.with_room(change, value.into(), waits)
            }
            Some(value) => self.make_long(change.apart(), value, waits),
        }
    }

    #[cold]
    fn make_long<W: What>(
        &self,
        change: WantedChange<'_, W>,
        value: &[u8],
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        let mut draft = self.draft(change.key, value.len(), waits)?;
        let mut outcome = None;
        // X2
        in_order(
            Rule::ExtentFirst,
            &mut draft,
            |draft| draft.write(value),
            |draft| outcome = Some(self.make_named(change, draft, waits)),
        );
        outcome.expect("both steps were taken")
    }

    /// Tries to make a change whose value is in the heap (X2). The memory stays the table's if a slot names it then.
    pub(super) fn make_named<W: What>(
        &self,
        change: WantedChange<'_, W>,
        draft: &mut ExtentDraft,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        let named = self.geometry().slot_reference(change.key, draft.finish());
        let outcome = self.with_room(change, named.stored(), waits)?;
        match (W::changed(&outcome), waits.decided()) {
            (Some(Changed::Came | Changed::Replaced), None) => draft.named(),
            (Some(Changed::Came | Changed::Replaced), Some(end)) => {
                let mut draft = draft.hand_over();
                end.when_made(move || draft.named());
            }
            (Some(Changed::Left) | None, _) => {}
        }
        Ok(outcome)
    }

    /// The second step: evicts entries, in a table that does.
    #[inline(always)]
    fn with_room<W: What>(
        &self,
        change: WantedChange<'_, W>,
        value: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        match self.evicts() && change.what.needs_room() {
            false => self.with_life(change, value, waits),
            true => self.make_evicting(change.apart(), value, waits),
        }
    }

    #[cold]
    fn make_evicting<W: What>(
        &self,
        change: WantedChange<'_, W>,
        value: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        let Some(evictor) = self.evictor() else { return self.with_life(change, value, waits) };
        for _ in 0..TRIES_MAX {
            match self.with_life(change, value, waits) {
                Err(PutError::Full { .. } | PutError::NoMemory { .. }) if !broken(Rule::EvictBeside) => {
                    if !self.evict_beside(evictor, change.key) {
                        evictor.count_refused();
                        return Err(PutError::Pinned);
                    }
                }
                done => {
                    let came = self.geometry().hashed(change.key).first();
                    if value.is_reference() {
                        self.give_ahead(evictor, came);
                    }
                    self.keep_room(evictor, came);
                    return done;
                }
            }
        }
        self.with_life(change, value, waits)
    }

    /// The third step: gives the entry its life, where entries have one.
    #[inline(always)]
    fn with_life<W: What>(
        &self,
        change: WantedChange<'_, W>,
        value: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        match self.lives() {
            Some(lives) if W::NEEDS_LIFE => self.make_alive(lives, change.apart(), value, waits),
            None if change.ttl.is_some() => Err(PutError::NoLife),
            Some(_) | None => self.at_turn(change, value, waits),
        }
    }

    /// Makes a change of an entry that has a life. Ends some entries in passing.
    #[cold]
    fn make_alive<W: What>(
        &self,
        lives: &Lives,
        change: WantedChange<'_, W>,
        value: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        let make = || -> Made<W, PutError> {
            let (key, ttl) = (change.key, change.ttl);
            let (put, owner) = match change.owner {
                NewOwner::Number(owner) => (None, owner),
                NewOwner::Session(session) => (Some(session.begin_put()?), session.owner()),
            };
            let life = lives.life(self.region(), ttl, owner)?;
            let outcome = self.at_turn(change, value.with_life(Some(&life)), waits)?;
            let is_its = match W::changed(&outcome) {
                Some(Changed::Came) => true,
                Some(Changed::Replaced) => W::PUTS,
                Some(Changed::Left) | None => false,
            };
            if let Some(put) = put.filter(|_| is_its) {
                let hash = self.geometry().hashed(key).first();
                match waits.decided() {
                    None => put.note(hash, self.table()),
                    Some(end) => {
                        let (put, table) = (put.hand_over(), Arc::clone(self.shared_table()));
                        end.when_made(move || put.note(hash, &table));
                    }
                }
            }
            Ok(outcome)
        };
        let made = make();
        self.end_in_passing(lives);
        made
    }

    /// The fourth step: makes the change in the table, when it is the key's turn.
    #[inline(always)]
    fn at_turn<W: What>(
        &self,
        change: WantedChange<'_, W>,
        new: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        match self.seams() {
            None => self.table().change(change.key, change.what, new, Nobody, waits),
            Some(seams) => self.in_turn(seams, change.apart(), new, waits),
        }
    }

    #[cold]
    #[inline(never)]
    fn in_turn<W: What>(
        &self,
        seams: &SeamTurns,
        change: WantedChange<'_, W>,
        new: Stored<'_>,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        let WantedChange { key, what, patience, .. } = change;
        check_lengths(self.geometry(), key, &[])?;
        let hash = self.geometry().hashed(key).first().0;
        let turn = match patience {
            Patience::Sleeps => {
                while !seams.has_room() {
                    self.table().sleep(ChangeWait::Thread);
                }
                Some(seams.take(hash))
            }
            Patience::Tries(_) => seams.try_begin(hash),
            Patience::HasTurn(_, taken) => taken.take(),
        };
        let Some(turn) = turn else {
            waits.begin(ChangeWait::Thread);
            return Err(PutError::Busy { rounds: 0 });
        };
        let outcome = match self.table().change(key, what, new, &turn, waits) {
            Ok(outcome) => outcome,
            Err(error) => {
                // Whoever had it before goes on with it: there may be room when others have left.
                if let Patience::HasTurn(_, taken) = patience {
                    taken.give(turn);
                }
                return Err(error);
            }
        };
        // L13
        match end_turn(turn, self.shared_table()).map(|end| (end.now(), end)) {
            None => {}
            Some((Some(ended), _)) => ended?,
            Some((None, end)) => waits.was_decided(end),
        }
        Ok(outcome)
    }

    /// Takes the key's turn for a change whose steps cannot be tried twice, if its thread does not sleep. Returns how patient
    /// it is then.
    ///
    /// # Errors
    /// [`PutError::Busy`]; the waits say that somebody else has it.
    pub(super) fn take_turn<'w>(
        &self,
        key: &[u8],
        patience: Patience<'w>,
        taken: &'w TurnTaken,
    ) -> Result<Patience<'w>, PutError> {
        let Patience::Tries(waits) = patience else { return Ok(patience) };
        if let Some(seams) = self.seams() {
            let Some(turn) = seams.try_begin(self.geometry().hashed(key).first().0) else {
                waits.begin(ChangeWait::Thread);
                return Err(PutError::Busy { rounds: 0 });
            };
            taken.give(turn);
        }
        Ok(Patience::HasTurn(waits, taken))
    }

    /// Removes `key`, if its entry is the one that `which` means. Returns whether it was.
    #[inline(always)]
    pub(super) fn remove_by(&self, key: &[u8], which: Which) -> Result<bool, PutError> {
        self.make(WantedChange::new(key, which))
    }

    /// As [`Index::remove_by`], if no other change of the key is under way.
    ///
    /// # Errors
    /// As that; [`PutError::Busy`].
    pub(super) fn remove_if_free(&self, key: &[u8], which: Which) -> Result<bool, PutError> {
        self.make(WantedChange::new(key, which).patience(Patience::Tries(&ChangeWaits::default())))
    }

    // ---- memory of long values ------------------------------------------------------------------

    /// Allocates memory for a value of `len` bytes that does not fit its slot, and for its key, if that does not fit.
    /// While it may come, the waits say so.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    #[cold]
    fn draft(&self, key: &[u8], len: usize, waits: &ChangeWaits) -> Result<ExtentDraft, PutError> {
        let geometry = self.geometry();
        check_lengths(geometry, key, &[])?;
        let extents = self.table().extents().filter(|_| len <= geometry.value_max());
        let Some(extents) = extents else {
            return Err(PutError::ValueLength { given: len, max: geometry.value_max() });
        };
        let (hash, clock) = (geometry.hashed(key).first(), self.table().clock());
        let before = &key[..geometry.bytes_before_value(key)];
        // Each put does a part of the pending work.
        extents.tidy(self.table());
        let wait = match extents.draft(hash, before.len() + len) {
            Ok(mut draft) => {
                draft.write(before);
                waits.has_memory();
                return Ok(draft);
            }
            Err(NoMemory::Refused(full @ PutError::HeapFull { .. })) => {
                self.evict_for_extent(before.len() + len, full)?
            }
            Err(NoMemory::Refused(refused @ PutError::HeapMemory { .. })) if self.evicts() => {
                extents.refuse_more();
                self.evict_for_extent(before.len() + len, refused)?
            }
            Err(NoMemory::Refused(error)) => return Err(error),
            // Without memory for a reserve no extent moves. The evicted ones make the room.
            Err(NoMemory::Busy(wait)) if self.evicts() && extents.is_at_bound() => {
                self.evict_for_extent(before.len() + len, PutError::Pinned).unwrap_or(wait)
            }
            Err(NoMemory::Busy(wait)) => wait,
        };
        let longest = geometry.heap().kept_for(geometry.grace(), geometry.extent_max() as u32);
        let patience = 4 * longest + Duration::from_secs(1);
        let now_ns = clock.now_ns();
        let waited = Duration::from_nanos(now_ns.saturating_sub(waits.memory_since(now_ns)));
        if waited < patience {
            waits.begin(ChangeWait::Memory { due_ns: now_ns.saturating_add(wait.as_nanos() as u64) });
        }
        Err(PutError::HeapBusy { given: len, waited })
    }

    /// Allocates memory for a value of `len` bytes, if there is some now. `None` if the value fits its slot. While memory
    /// may come, the waits say so.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn try_draft(
        &self,
        key: &[u8],
        len: usize,
        waits: &ChangeWaits,
    ) -> Result<Option<ExtentDraft>, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        if self.geometry().is_inline(key, len) {
            return Ok(None);
        }
        self.draft(key, len, waits).map(Some)
    }

    /// Begins a value of `len` bytes that comes in pieces, likewise.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn try_upload(
        &self,
        key: &[u8],
        len: usize,
        waits: &ChangeWaits,
    ) -> Result<Option<Upload>, PutError> {
        Ok(self.try_draft(key, len, waits)?.map(Upload::new))
    }
}

#[cfg(all(test, not(loom)))]
impl Index {
    /// As [`Index::put_with`], but returns [`PutError::HeapBusy`] at once.
    pub(crate) fn put_at_once(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        self.until_made_or_memory(|waits| self.try_put(key, value, options, owner, waits))
    }

    /// Begins a value, if there is memory now.
    pub(crate) fn upload(&self, key: &[u8], len: usize) -> Result<Option<Upload>, PutError> {
        self.try_upload(key, len, &ChangeWaits::default())
    }
}

#[cfg(test)]
impl Index {
    /// Tries until something is made or refused. Sleeps for anything but memory: then it returns
    /// [`PutError::HeapBusy`] at once.
    fn until_made_or_memory<R>(
        &self,
        mut attempt: impl FnMut(&ChangeWaits) -> Result<R, PutError>,
    ) -> Result<R, PutError> {
        let waits = ChangeWaits::default();
        let mut tried = attempt(&waits);
        loop {
            match waits.now() {
                None | Some(ChangeWait::Memory { .. }) => return tried,
                Some(
                    ChangeWait::Readers { .. } | ChangeWait::Thread | ChangeWait::Maker | ChangeWait::Decided,
                ) => {
                    self.sleep_through(&waits);
                }
            }
            match tried {
                Ok(_) => self.go_on(&waits)?,
                Err(_) => tried = attempt(&waits),
            }
        }
    }

    /// Allocates memory for a value, if there is some now.
    pub(crate) fn draft_at_once(&self, key: &[u8], len: usize) -> Result<Option<ExtentDraft>, PutError> {
        self.try_draft(key, len, &ChangeWaits::default())
    }

    /// Puts `key` with a value that is already in the heap.
    pub(crate) fn put_draft(
        &self,
        key: &[u8],
        mut draft: ExtentDraft,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        self.until_made_or_memory(|waits| self.try_put_draft(key, &mut draft, options, owner, waits))
    }
}
