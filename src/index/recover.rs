//! Taking a region over from a server that is gone.
//!
//! What may be in it: slots left odd by a writer that died, a key in two slots (a move between M1 and the
//! overwriting of the original), filter bits and ghosts whose time nobody keeps any more. Readers may be
//! reading all the while.

use super::stripes::{Displaced, Place};
use super::{Index, Trace};
use crate::clock::Clock;
use crate::faults::Rule;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::Content;
use crate::layout::superblock::{Superblock, SuperblockError};
use crate::placement;
use crate::region::Region;
use crate::sync::Ordering;
use smallvec::SmallVec;

/// Why a region could not be taken over.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum RecoverError {
    /// The superblock is not usable.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// Shorter than a superblock and its control page.
    #[error("this is no oneread region: it is only {have} bytes long; name a file that `oneread serve` made")]
    TooShort {
        /// Its length.
        have: u64,
    },
    /// The server that made it died before it was ready.
    #[error(
        "the server that was making this region died before it was ready; remove the file and serve again"
    )]
    Unfinished,
}

/// What was found in a region that was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Keys there.
    pub keys: u64,
    /// Slots that a writer left half written: their keys are lost.
    pub torn: u64,
    /// Keys that stood in two slots; one copy was freed.
    pub doubled: u64,
}

/// Reads and validates the superblock of a mapped region.
///
/// # Errors
/// [`RecoverError::TooShort`] or [`RecoverError::Superblock`].
pub(crate) fn geometry_of(region: &Region) -> Result<(Geometry, Superblock), RecoverError> {
    let have = region.bytes();
    if have < 2 * crate::layout::PAGE as u64 {
        return Err(RecoverError::TooShort { have });
    }
    let superblock = Superblock::from_words(std::array::from_fn(|w| region.load(w)));
    Ok((superblock.geometry(have)?, superblock))
}

impl Index {
    /// Takes over the table in `region`: frees half-written slots and second copies, rebuilds the register
    /// of displaced keys, and schedules what ghosts and filter bits are left for removal. Takes time in
    /// proportion to the table. Clients that have the region mapped go on reading.
    ///
    /// # Errors
    /// [`RecoverError`]; the region is then unchanged.
    pub fn open(region: Region, clock: Clock) -> Result<(Index, Recovered), RecoverError> {
        let (geometry, superblock) = geometry_of(&region)?;
        if State::from_word(region.load(STATE_WORD)).phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let index = Index::over(region, geometry, clock, superblock.incarnation + 1);
        index.publish(Phase::Serving);
        let mut found = Recovered::default();
        for slot in (0..index.geometry.slots()).map(SlotIx) {
            index.recover_slot(slot, &mut found);
        }
        // Filters are exact again once whatever was due before the server died is surely over.
        let due = index.grace.due_ns(Rule::FilterGrace);
        for home in 0..index.geometry.homes() {
            let home_slot = index.geometry.window(home).first;
            let mut locked = index.stripes.lock(SmallVec::from_slice(&[index.stripes.of(home_slot)]));
            let aux = index.slots().header(home_slot).aux;
            let exact = locked.stripe(home_slot).filter(home);
            if exact & !aux != 0 {
                // Lost with a torn home slot: set it at once.
                index.set_filter(&mut locked, home, home_slot);
            }
            if aux & !exact != 0 {
                let place = Place::Lingers { until_ns: due };
                locked.stripe(home_slot).add(home, Displaced { bit: aux & !exact, place });
                index.grace.push(due, Trace::Filter { home });
            }
        }
        index.counters.keys.store(found.keys, Ordering::Relaxed);
        Ok((index, found))
    }

    fn recover_slot(&self, slot: SlotIx, found: &mut Recovered) {
        if !self.slots().is_valid(slot) {
            self.slots().write(slot, &Content::default());
            found.torn += 1;
            return;
        }
        let content = self.slots().read(slot);
        if content.ghost != 0 {
            let due = self.grace.due_ns(Rule::GhostGrace);
            self.grace.push(due, Trace::Ghost { slot, guard: slot });
        }
        if content.key.is_empty() {
            return;
        }
        let first = self.geometry.seeds().first(&content.key);
        let primary = self.geometry.primary(first);
        let elsewhere = self.find_all(&content.key, first).find(|&other| other.0 < slot.0);
        if elsewhere.is_some() && content.ghost == 0 {
            // Both copies are equal: an update waits for the move to end.
            self.vacate(slot);
            found.doubled += 1;
            return;
        }
        found.keys += 1;
        if !primary.contains(slot) {
            let bit = placement::filter_bit(&self.geometry, first);
            let mut locked = self.stripes.lock(SmallVec::from_slice(&[self.stripes.of(primary.first)]));
            let home = self.geometry.home(first.0);
            locked.stripe(primary.first).add(home, Displaced { bit, place: Place::At(slot) });
        }
    }

    /// Every slot that holds `key`, in any of its windows.
    fn find_all(&self, key: &[u8], first: crate::layout::hash::First) -> impl Iterator<Item = SlotIx> {
        crate::mutation::destinations(&self.geometry, key, first, None)
            .into_iter()
            .flat_map(|destination| destination.window.iter())
            .filter(move |&slot| self.slots().holds(slot, key))
    }
}
