//! Changes of a part of a value, of any length (L14).

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;

use super::change::{SwapFrom, SwapTo};
use super::decide::{PartInSlot, PartWork};
use super::face::Index;
use super::owners::OwnerSession;
use super::segment::ROUNDS_MAX;
use super::slots::SlotCopy;
use super::waits::ChangeWaits;
use super::wanted::{Patience, WantedChange};
use crate::layout::extent::Expected;
use crate::outcome::{PutError, PutMode, PutOutcome, SwapOutcome};
use crate::part::{PartChange, PartEffect, PartOutcome, Tell, ValueBytes};
use std::cell::RefCell;

impl Index {
    /// Changes a part of the value of `key`. The outcome has the value before or after, if `tell` asks for it.
    ///
    /// A value that stands in its slot is changed under the key's lock. One that does not, or would not any more, is
    /// copied and swapped in. That takes time and memory for the whole value, and begins again if another change of the
    /// key comes between. Either way, no other change comes between the old value and the new one.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged. [`PutError::Part`] where the change does not fit the value.
    pub fn change_part(&self, key: &[u8], part: PartChange<'_>, tell: Tell) -> Result<PartOutcome, PutError> {
        self.part_by(key, &PartWork { part, tell, tell_max: usize::MAX }, None, Patience::Sleeps)
    }

    /// As [`Index::change_part`], for a thread that has others to serve ([`Index::try_put`]). The outcome has values of up
    /// to `tell_max` bytes.
    pub(crate) fn try_part(
        &self,
        key: &[u8],
        part: PartChange<'_>,
        (tell, tell_max): (Tell, usize),
        owner: Option<&OwnerSession>,
        waits: &ChangeWaits,
    ) -> Result<PartOutcome, PutError> {
        self.part_by(key, &PartWork { part, tell, tell_max }, owner, Patience::Tries(waits))
    }

    fn part_by(
        &self,
        key: &[u8],
        work: &PartWork<'_>,
        owner: Option<&OwnerSession>,
        patience: Patience<'_>,
    ) -> Result<PartOutcome, PutError> {
        for _ in 0..ROUNDS_MAX {
            let in_slot = RefCell::new(PartInSlot::new(work, self.geometry(), key));
            let change = WantedChange::new(key, &in_slot).ttl(work.part.ttl()).by(owner);
            self.make(change.patience(patience))?;
            let there = match in_slot.into_inner().outcome() {
                Ok(outcome) => return Ok(outcome),
                Err(there) => there,
            };
            if let Some(outcome) = self.part_of_long(key, there, work, (owner, patience))? {
                return Ok(outcome);
            }
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX })
    }

    /// Changes a part of a value that is in an extent, or comes into one, by a compare-and-swap. `None` if the key has
    /// changed meanwhile, or its value has moved.
    #[cold]
    fn part_of_long(
        &self,
        key: &[u8],
        there: Option<Box<SlotCopy>>,
        work: &PartWork<'_>,
        (owner, patience): (Option<&OwnerSession>, Patience<'_>),
    ) -> Result<Option<PartOutcome>, PutError> {
        let (expected, before) = match &there {
            None => (None, None),
            Some(there) => match there.reference {
                None => (Some(Expected::Value(&there.value)), Some(there.value.clone())),
                Some(reference) => {
                    let mut value = Vec::new();
                    // The value that was read counts only if the slot still names it (X2, X7).
                    let is_read =
                        self.table().extents().is_some_and(|of| of.read(&reference, key, &mut value));
                    if !is_read {
                        tracing::error!(?reference, "a slot names what is no extent; put the value again");
                        return Err(PutError::Busy { rounds: 0 });
                    }
                    (Some(Expected::Extent(reference)), Some(ValueBytes::from_vec(value)))
                }
            },
        };
        let made = work.make(self.geometry(), before);
        let is_other = matches!(made, Ok((PartEffect::Inserted | PartEffect::Updated, _)));
        let is_so = match (expected, &made) {
            (Some(expected), Ok((_, made))) if is_other => {
                let swap = WantedChange::new(key, SwapFrom(expected, SwapTo::Value)).value(&made.value);
                self.make(swap.patience(patience))?.0 == SwapOutcome::Swapped
            }
            (None, Ok((_, made))) if is_other => {
                let put = WantedChange::put(key, PutMode::Insert.into()).value(&made.value);
                let put = put.ttl(work.part.ttl()).by(owner);
                self.make(put.patience(patience))? == PutOutcome::Inserted
            }
            // Nothing is to be stored, but what was read must still be true.
            (Some(expected), _) => {
                let same = WantedChange::new(key, SwapFrom(expected, SwapTo::Same));
                self.make(same.patience(patience))?.0 == SwapOutcome::Swapped
            }
            // The key was absent under its lock.
            (None, _) => true,
        };
        if !is_so {
            return Ok(None);
        }
        made.map(|(effect, made)| Some(PartOutcome { effect, value: made.told }))
    }
}
