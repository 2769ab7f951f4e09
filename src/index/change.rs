//! What may be done with a key, and which steps each of these changes needs (`making.rs` takes them).

use super::decide::{Alive, Becomes, Decides, PartInSlot, Swap, Touch};
use super::seams::{Between, Changed};
use super::segment::{Segment, Stop, Which, check_lengths, check_stored};
use crate::faults::{Rule, broken};
use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::layout::slot::Stored;
use crate::outcome::{PutError, PutMode, PutOutcome, SwapOutcome};
use std::cell::RefCell;

/// The result of a change.
pub(super) type Made<W, E = Stop> = Result<<W as What>::Outcome, E>;

/// What is done with a key.
pub(super) trait What: Copy {
    /// The result of this kind of change.
    type Outcome;
    /// Whether the entry gets a life with a number of its own (V1).
    const NEEDS_LIFE: bool = true;
    /// Whether the change makes a replaced entry a new entry, which belongs to whoever puts it.
    const PUTS: bool = false;

    /// Whether entries leave to make room for it.
    #[inline(always)]
    fn needs_room(self) -> bool {
        Self::NEEDS_LIFE
    }

    /// Checks the lengths of what was asked for. `new` is empty where the change brings no value.
    ///
    /// # Errors
    /// [`PutError::KeyLength`], [`PutError::ValueLength`].
    #[inline(always)]
    fn check(self, geometry: &Geometry, key: &[u8], new: &Stored<'_>) -> Result<(), PutError> {
        let _ = new;
        check_lengths(geometry, key, &[])
    }

    /// Makes the change. It may be made again where it stopped. `new` is the value, with its life if entries have one.
    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self>;

    /// What became of the key.
    fn changed(outcome: &Self::Outcome) -> Option<Changed>;
}

/// Puts the value.
impl What for PutMode {
    type Outcome = PutOutcome;
    const PUTS: bool = true;

    #[inline(always)]
    fn check(self, geometry: &Geometry, key: &[u8], new: &Stored<'_>) -> Result<(), PutError> {
        check_stored(geometry, key, *new)
    }

    #[inline(always)]
    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self> {
        at.put(key, new, self, seams)
    }

    #[inline(always)]
    fn changed(outcome: &PutOutcome) -> Option<Changed> {
        match outcome {
            PutOutcome::Inserted => Some(Changed::Came),
            PutOutcome::Updated => Some(Changed::Replaced),
            PutOutcome::Exists | PutOutcome::Missing => None,
        }
    }
}

/// Holds a slot for a key whose put is started, if the key has none (P1). The slot gets a hidden entry with this life.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldSlot(pub Life);

impl What for HoldSlot {
    type Outcome = PutOutcome;
    const NEEDS_LIFE: bool = false;

    fn needs_room(self) -> bool {
        !broken(Rule::StartRoom)
    }

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self> {
        PutMode::Insert.make(at, key, &new.with_life(Some(&self.0)), seams)
    }

    fn changed(outcome: &PutOutcome) -> Option<Changed> {
        PutMode::changed(outcome)
    }
}

/// What a compare-and-swap makes of the expected value.
#[derive(Clone, Copy, Debug)]
pub(super) enum SwapTo {
    /// The value that the change brings.
    Value,
    /// The key becomes absent.
    Absent,
    /// The value stays.
    Same,
}

/// Compares and swaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SwapFrom<'a>(pub Expected<'a>, pub SwapTo);

impl What for SwapFrom<'_> {
    type Outcome = (SwapOutcome, Option<Changed>);

    fn check(self, geometry: &Geometry, key: &[u8], new: &Stored<'_>) -> Result<(), PutError> {
        check_lengths(geometry, key, self.0.bytes())?;
        check_stored(geometry, key, *new)
    }

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self> {
        let becomes = match self.1 {
            SwapTo::Value => Becomes::Has(*new),
            SwapTo::Absent => Becomes::Leaves,
            SwapTo::Same => Becomes::Stays,
        };
        let extents = at.extents().map(|extents| &**extents);
        let mut swap =
            Swap { key: key.key(), expected: self.0, becomes, extents, outcome: SwapOutcome::Absent };
        let changed = decide(&mut swap, at, key, new, seams)?;
        Ok((swap.outcome, changed))
    }

    fn changed((_, changed): &Self::Outcome) -> Option<Changed> {
        *changed
    }
}

/// Changes a part of a value that stands in its slot.
impl What for &RefCell<PartInSlot<'_>> {
    type Outcome = Option<Changed>;

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self> {
        decide(&mut *self.borrow_mut(), at, key, new, seams)
    }

    fn changed(outcome: &Self::Outcome) -> Option<Changed> {
        *outcome
    }
}

/// Gives an entry another end. Its value and its number stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewEnd {
    /// The table's tick.
    pub now: u64,
    /// The tick of the end; 0: none.
    pub expiry: u32,
}

impl What for NewEnd {
    /// Whether the entry is there, and what became of it.
    type Outcome = (bool, Option<Changed>);
    // V1: no other value, no other number.
    const NEEDS_LIFE: bool = false;

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, _: &Stored<'_>, seams: B) -> Made<Self> {
        let NewEnd { now, expiry } = self;
        let mut touch = Touch { now, expiry, touched: None };
        let changed = at.change(key, &mut touch, seams)?;
        Ok((touch.touched.is_some(), changed))
    }

    fn changed((_, changed): &Self::Outcome) -> Option<Changed> {
        *changed
    }
}

/// Makes a change that depends on what the key has.
fn decide<B: Between>(
    change: &mut impl Decides,
    at: &Segment,
    key: &Hashed<'_>,
    new: &Stored<'_>,
    seams: B,
) -> Result<Option<Changed>, Stop> {
    match new.life() {
        None => at.change(key, change, seams),
        Some(life) => at.change(key, &mut Alive { change, new: *life, life: *life }, seams),
    }
}

/// Removes the entry, if it is the one that is meant.
impl What for Which {
    type Outcome = bool;
    const NEEDS_LIFE: bool = false;

    #[inline(always)]
    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, _: &Stored<'_>, seams: B) -> Made<Self> {
        at.remove(key, self, seams)
    }

    #[inline(always)]
    fn changed(has_left: &bool) -> Option<Changed> {
        has_left.then_some(Changed::Left)
    }
}

/// Has the eviction policy note an entry (Z1). The entry does not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoteEntry;

impl What for NoteEntry {
    type Outcome = ();
    const NEEDS_LIFE: bool = false;

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, _: &Stored<'_>, _: B) -> Made<Self> {
        at.note(key)
    }

    fn changed((): &()) -> Option<Changed> {
        None
    }
}
