//! Changes that depend on the value that is there (L14): a compare-and-swap, a change of a part of a value.
//!
//! A segment shows a change what the key has, under the key's lock. The change answers what becomes of the key. No other
//! change comes between. A value that is in an extent, or becomes one, takes longer than a lock may be held: such a change
//! makes the value without a lock, and swaps it in (X7).

use super::extents::Extents;
use super::slots::SlotCopy;
use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::layout::life::Life;
use crate::layout::slot::Stored;
use crate::outcome::{PutError, SwapOutcome};
use crate::part::{PartChange, PartEffect, PartError, PartOutcome, Tell, ValueBytes};

/// The state of a key after a change.
#[derive(Clone, Copy, Debug)]
pub(super) enum Becomes<'v> {
    /// It stays as it is.
    Stays,
    /// It has this value.
    Has(Stored<'v>),
    /// It leaves, if it is there.
    Leaves,
}

/// A change that depends on what the key has.
pub(super) trait Decides {
    /// Decides what becomes of a key that has `there`. The key's lock is held. If the change begins again, this is
    /// called again.
    ///
    /// # Errors
    /// The key stays as it is.
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError>;
}

/// A change of an entry that has a life. A new value gives the entry a new number (V1). The entry keeps its owner and
/// its end.
#[derive(Debug)]
pub(super) struct Alive<'a, D> {
    pub change: &'a mut D,
    /// The entry's life, if the key was absent.
    pub new: Life,
    /// The entry's life after the change.
    pub life: Life,
}

impl<D: Decides> Decides for Alive<'_, D> {
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError> {
        let before = there.and_then(|there| there.life).unwrap_or(self.new);
        self.life = Life { number: self.new.number, ..before };
        Ok(match self.change.decide(there)? {
            Becomes::Has(value) => Becomes::Has(value.with_life(Some(&self.life))),
            other => other,
        })
    }
}

/// A compare-and-swap.
#[derive(Debug)]
pub(super) struct Swap<'a> {
    pub key: &'a [u8],
    pub expected: Expected<'a>,
    /// What becomes of the key if it has the expected value.
    pub becomes: Becomes<'a>,
    pub extents: Option<&'a Extents>,
    /// What was found and done.
    pub outcome: SwapOutcome,
}

impl Decides for Swap<'_> {
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError> {
        let Some(there) = there else {
            self.outcome = SwapOutcome::Absent;
            return Ok(Becomes::Stays);
        };
        let is_expected = match (self.expected, there.reference, self.extents) {
            // X7: a slot that names the extent that the client has read has the value that it has read.
            (Expected::Extent(expected), now, _) => now == Some(expected),
            (Expected::Value(expected), Some(now), Some(extents)) => extents.holds(&now, self.key, expected),
            (Expected::Value(expected), ..) => there.value[..] == *expected,
        };
        if is_expected {
            self.outcome = SwapOutcome::Swapped;
            return Ok(self.becomes);
        }
        self.outcome = SwapOutcome::Differs;
        Ok(Becomes::Stays)
    }
}

/// Another end of an entry, which keeps its value and its number.
#[derive(Debug)]
pub(super) struct Touch {
    /// The table's tick. What has ended by then is absent.
    pub now: u64,
    /// The tick of the new end; 0: none.
    pub expiry: u32,
    /// The entry, with that end.
    pub touched: Option<SlotCopy>,
}

impl Decides for Touch {
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError> {
        let life = there.and_then(|there| there.life).filter(|life| !life.has_ended(self.now));
        let (Some(there), Some(life)) = (there, life) else {
            self.touched = None;
            return Ok(Becomes::Stays);
        };
        let touched = SlotCopy { life: Some(Life { expiry: self.expiry, ..life }), ..there.clone() };
        let touched = self.touched.insert(touched);
        Ok(if life.expiry == self.expiry { Becomes::Stays } else { Becomes::Has(touched.stored()) })
    }
}

/// Another life of an entry, which keeps its value. It was decided before.
#[derive(Debug)]
pub(super) struct NewLife {
    life: Life,
    /// The entry, with that life.
    entry: Option<SlotCopy>,
}

impl NewLife {
    pub fn new(life: Life) -> NewLife {
        NewLife { life, entry: None }
    }
}

impl Decides for NewLife {
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError> {
        self.entry = there.map(|there| SlotCopy { life: Some(self.life), ..there.clone() });
        Ok(self.entry.as_ref().map_or(Becomes::Stays, |entry| Becomes::Has(entry.stored())))
    }
}

/// A change of a part of a value.
#[derive(Debug)]
pub(super) struct PartWork<'a> {
    pub part: PartChange<'a>,
    pub tell: Tell,
    /// The longest value that the outcome may have.
    pub tell_max: usize,
}

/// What a change of a part made of a value.
#[derive(Debug, Default)]
pub(super) struct MadePart {
    pub value: ValueBytes,
    pub told: Option<Vec<u8>>,
}

impl PartWork<'_> {
    /// Makes the part's change, of a value or of absence.
    pub fn make(
        &self,
        geometry: &Geometry,
        before: Option<ValueBytes>,
    ) -> Result<(PartEffect, MadePart), PutError> {
        let is_there = before.is_some();
        let mut value = before.unwrap_or_default();
        let told = |value: &[u8]| match value.len() > self.tell_max {
            true => Err(PartError::AnswerLength { given: value.len(), max: self.tell_max }),
            false => Ok(Some(value.to_vec())),
        };
        let before = if self.tell == Tell::Before && is_there { told(&value)? } else { None };
        let effect = self.part.apply(&mut value, is_there)?;
        if effect == PartEffect::Absent {
            return Ok((effect, MadePart::default()));
        }
        let (given, max) = (value.len(), geometry.value_max());
        if given > max {
            return Err(PutError::ValueLength { given, max });
        }
        let told = if self.tell == Tell::After { told(&value)? } else { before };
        Ok((effect, MadePart { value, told }))
    }
}

/// A change of a part of a value that stands in its slot, before and after.
#[derive(Debug)]
pub(super) struct PartInSlot<'a> {
    pub work: &'a PartWork<'a>,
    pub geometry: &'a Geometry,
    pub key: &'a [u8],
    made: MadePart,
    found: FoundPart,
}

/// What a change of a part found.
#[derive(Debug)]
pub(super) enum FoundPart {
    /// It did this.
    Short(PartEffect),
    /// The key has this value. It does not fit the slot, or the changed one would not. Nothing was changed.
    Long(Option<Box<SlotCopy>>),
}

impl<'a> PartInSlot<'a> {
    pub fn new(work: &'a PartWork<'a>, geometry: &'a Geometry, key: &'a [u8]) -> PartInSlot<'a> {
        PartInSlot { work, geometry, key, made: MadePart::default(), found: FoundPart::Long(None) }
    }

    /// What was done. `Err`: the key's value, if it or the changed one does not fit a slot.
    pub fn outcome(self) -> Result<PartOutcome, Option<Box<SlotCopy>>> {
        match self.found {
            FoundPart::Short(effect) => Ok(PartOutcome { effect, value: self.made.told }),
            FoundPart::Long(there) => Err(there),
        }
    }
}

impl Decides for PartInSlot<'_> {
    fn decide(&mut self, there: Option<&SlotCopy>) -> Result<Becomes<'_>, PutError> {
        let len = self.work.part.len_after(there.map(|there| &there.value[..]));
        let is_long = there.is_some_and(|there| there.reference.is_some());
        if is_long || !self.geometry.is_inline(self.key, len) {
            self.found = FoundPart::Long(there.cloned().map(Box::new));
            return Ok(Becomes::Stays);
        }
        let (effect, made) = self.work.make(self.geometry, there.map(|there| there.value.clone()))?;
        (self.found, self.made) = (FoundPart::Short(effect), made);
        Ok(match effect {
            PartEffect::Inserted | PartEffect::Updated => Becomes::Has((&self.made.value).into()),
            PartEffect::Unchanged | PartEffect::Absent => Becomes::Stays,
        })
    }
}
