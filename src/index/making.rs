//! How every change of a key is made: one composition, from what was asked for to the table.
//!
//! ```text
//! memory    a value that does not fit its slot is written to memory of its own (X2)
//! room      entries leave until there is room, where entries make room for others (Z3)
//! life      the entry gets its number, its end and its owner (V1, O1)
//! turn      the change waits for its key's turn, where somebody hears of changes (L10)
//! table     the segment that has the key makes the change
//! ```
//!
//! [`Index::make`] takes these steps in this order: for puts, swaps, changes of a part, and removes, and for entries
//! that leave by themselves: at their end, with their owner, or to make room. [`What`] says which steps a change needs.

use super::change::{Made, What};
use super::extents::{ExtentDraft, NoMemory, Upload};
use super::face::Index;
use super::lives::Lives;
use super::seams::{Changed, Nobody, SeamTurns, Turn};
use super::segment::{Which, check_lengths};
use super::wanted::{HeapPatience, NewOwner, WantedChange};
use crate::faults::{Rule, broken, in_order};
use crate::layout::slot::Stored;
use crate::outcome::PutError;
use std::time::Duration;

/// The most times that a put evicts entries beside its key.
const TRIES_MAX: u32 = 16;

impl Index {
    /// Makes a change. Memory is its first step: a value that does not fit its slot is written there.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    #[inline(always)]
    pub(super) fn make<W: What>(&self, change: WantedChange<'_, W>) -> Made<W, PutError> {
        match change.value {
            None => self.with_room(change, Stored::default()),
            Some(value) if self.geometry().is_inline(change.key, value.len()) => {
                self.with_room(change, value.into())
            }
            Some(value) => self.make_long(change, value),
        }
    }

    #[cold]
    fn make_long<W: What>(&self, change: WantedChange<'_, W>, value: &[u8]) -> Made<W, PutError> {
        let mut draft = self.draft(change.key, value.len(), change.patience)?;
        let mut outcome = None;
        // X2
        in_order(
            Rule::ExtentFirst,
            &mut draft,
            |draft| draft.write(value),
            |draft| outcome = Some(self.make_named(change, draft)),
        );
        outcome.expect("both steps were taken")
    }

    /// Makes a change whose value is in the heap (X2). The memory stays the table's if a slot names it then.
    pub(super) fn make_named<W: What>(
        &self,
        change: WantedChange<'_, W>,
        draft: &mut ExtentDraft,
    ) -> Made<W, PutError> {
        let named = self.geometry().slot_reference(change.key, draft.finish());
        let outcome = self.with_room(change, named.stored())?;
        match W::changed(&outcome) {
            Some(Changed::Came | Changed::Replaced) => draft.named(),
            Some(Changed::Left) | None => {}
        }
        Ok(outcome)
    }

    /// The second step: evicts entries, in a table that does.
    #[inline(always)]
    fn with_room<W: What>(&self, change: WantedChange<'_, W>, value: Stored<'_>) -> Made<W, PutError> {
        match self.evicts() && change.what.needs_room() {
            false => self.with_life(change, value),
            true => self.make_evicting(change, value),
        }
    }

    #[cold]
    fn make_evicting<W: What>(&self, change: WantedChange<'_, W>, value: Stored<'_>) -> Made<W, PutError> {
        let Some(evictor) = self.evictor() else { return self.with_life(change, value) };
        for _ in 0..TRIES_MAX {
            match self.with_life(change, value) {
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
        self.with_life(change, value)
    }

    /// The third step: gives the entry its life, where entries have one.
    #[inline(always)]
    fn with_life<W: What>(&self, change: WantedChange<'_, W>, value: Stored<'_>) -> Made<W, PutError> {
        match self.lives() {
            Some(lives) if W::NEEDS_LIFE => self.make_alive(lives, change, value),
            None if change.ttl.is_some() => Err(PutError::NoLife),
            Some(_) | None => self.at_turn(change, value),
        }
    }

    /// Makes a change of an entry that has a life. Ends some entries in passing.
    #[cold]
    fn make_alive<W: What>(
        &self,
        lives: &Lives,
        change: WantedChange<'_, W>,
        value: Stored<'_>,
    ) -> Made<W, PutError> {
        let make = || -> Made<W, PutError> {
            let (key, ttl) = (change.key, change.ttl);
            let (put, owner) = match change.owner {
                NewOwner::Number(owner) => (None, owner),
                NewOwner::Session(session) => (Some(session.begin_put()?), session.owner()),
            };
            let life = lives.life(self.region(), ttl, owner)?;
            let outcome = self.at_turn(change, value.with_life(Some(&life)))?;
            let is_its = match W::changed(&outcome) {
                Some(Changed::Came) => true,
                Some(Changed::Replaced) => W::PUTS,
                Some(Changed::Left) | None => false,
            };
            if let Some(put) = put.filter(|_| is_its) {
                put.note(self.geometry().hashed(key).first(), self.table());
            }
            Ok(outcome)
        };
        let made = make();
        self.end_in_passing(lives);
        made
    }

    /// The fourth step: makes the change in the table, when it is the key's turn.
    #[inline(always)]
    fn at_turn<W: What>(&self, change: WantedChange<'_, W>, new: Stored<'_>) -> Made<W, PutError> {
        let WantedChange { key, what, .. } = change;
        match self.seams() {
            None => self.table().change(key, what, new, Nobody),
            Some(seams) => self.in_turn(seams, key, move |turn| self.table().change(key, what, new, turn)),
        }
    }

    #[cold]
    #[inline(never)]
    fn in_turn<R>(
        &self,
        seams: &SeamTurns,
        key: &[u8],
        change: impl FnOnce(&Turn<'_>) -> Result<R, PutError>,
    ) -> Result<R, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        seams.in_turn(self.geometry().hashed(key).first().0, change)
    }

    /// Removes `key`, if its entry is the one that `which` means. Returns whether it was.
    #[inline(always)]
    pub(super) fn remove_by(&self, key: &[u8], which: Which) -> Result<bool, PutError> {
        self.make(WantedChange::new(key, which))
    }

    // ---- memory of long values ------------------------------------------------------------------

    /// Allocates memory for a value of `len` bytes that does not fit its slot, and for its key, if that does not fit.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    #[cold]
    fn draft(&self, key: &[u8], len: usize, patience: HeapPatience) -> Result<ExtentDraft, PutError> {
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
        let begun_ns = clock.now_ns();
        let patience = match patience {
            HeapPatience::None => Duration::ZERO,
            HeapPatience::Waits => {
                let longest = geometry.heap().kept_for(geometry.grace(), geometry.extent_max() as u32);
                4 * longest + Duration::from_secs(1)
            }
        };
        loop {
            let wait = match extents.draft(hash, before.len() + len) {
                Ok(mut draft) => {
                    draft.write(before);
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
            let waited = Duration::from_nanos(clock.now_ns() - begun_ns);
            if waited >= patience {
                return Err(PutError::HeapBusy { given: len, waited });
            }
            if !extents.tidy(self.table()) {
                let wait = wait.clamp(Duration::from_micros(1), Duration::from_millis(1));
                clock.sleep_until(clock.now_ns() + wait.as_nanos() as u64);
            }
        }
    }

    /// Allocates memory for a value of `len` bytes, if there is some now. `None` if the value fits its slot.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn draft_at_once(&self, key: &[u8], len: usize) -> Result<Option<ExtentDraft>, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        if self.geometry().is_inline(key, len) {
            return Ok(None);
        }
        self.draft(key, len, HeapPatience::None).map(Some)
    }

    /// Begins a value of `len` bytes that comes in pieces, if there is memory now. `None` if it fits its slot.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn upload(&self, key: &[u8], len: usize) -> Result<Option<Upload>, PutError> {
        Ok(self.draft_at_once(key, len)?.map(Upload::new))
    }
}
