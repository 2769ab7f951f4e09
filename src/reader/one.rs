//! GETs, one at a time.

use super::Reader;
use super::look::Looked;
use super::patience::RetryBudget;
use super::values::Others;
use crate::fabric::{BegunLook, Fabric};
use crate::hints::Hints;
use crate::layout::extent::Reference;
use crate::sink::{AnySink, LengthSink, PartSink, Sink};
use std::ops::Range;

impl<'g, F: Fabric> Reader<'g, F> {
    /// Looks `key` up; its value lands in `value`. For a vector, the outcome is whether the key was found.
    /// Usually 1 READ and 1 round trip, and one more of each if the value is not in its slot; allocates only
    /// if a vector is too small.
    ///
    /// # Errors
    /// [`ReadError`](crate::error::ReadError), or the fabric's own; absence is not one. What is in `value` by then
    /// does not count.
    #[inline]
    pub fn get_into<S: Sink>(&mut self, key: &[u8], value: &mut S) -> Result<S::Outcome, F::Error> {
        if self.hints.is_none()
            && let Some(found) = self.fabric.glance(key, value)
        {
            self.direct.count(found, self.geometry);
            return Ok(value.outcome(found));
        }
        self.get_otherwise(key, value)
    }

    /// A GET for which a glance does not suffice.
    #[inline(never)]
    pub(crate) fn get_otherwise<S: Sink>(
        &mut self,
        key: &[u8],
        value: &mut S,
    ) -> Result<S::Outcome, F::Error> {
        if self.hints.is_none()
            && let Some(found) = self.look_directly(key, None, value)
        {
            self.direct.count(found, self.geometry);
            return Ok(value.outcome(found));
        }
        let found = self.get_any(key, self.hints, value)?;
        Ok(value.outcome(found.is_some()))
    }

    /// The whole direct look for a key, of whatever length; maybe one that has begun. `None` where only the machine can
    /// tell.
    #[inline(always)]
    pub(super) fn look_directly(
        &mut self,
        key: &[u8],
        begun: Option<&BegunLook>,
        value: &mut impl Sink,
    ) -> Option<bool> {
        if self.geometry.may_hold_plainly(key) {
            let hashed = begun.unwrap_or(&BegunLook::NOTHING).hashed(self.geometry, key);
            return self.fabric.get_directly(hashed, value, &mut self.reads);
        }
        if !self.geometry.has_owners() || !self.geometry.may_hold(key) {
            return None;
        }
        let begun = begun.copied().unwrap_or_else(|| self.fabric.expect(key));
        self.fabric.get_unhidden(key, &begun, value, &mut self.reads)
    }

    /// Looks `key` up, and says in which extent its value is. `None` if it is in its slot. For X7.
    pub(crate) fn get_with_extent(
        &mut self,
        key: &[u8],
        value: &mut impl Sink,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.get_any(key, None, value)
    }

    /// Looks `key` up; the bytes `range` of its value land in `part`. Returns the length of the whole value;
    /// `None` if the key is absent. Bytes beyond the value's end are left out. Costs what
    /// [`Reader::get_into`] costs, but READs no more bytes of a long value than these.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn get_range<S: Sink>(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut S,
    ) -> Result<Option<usize>, F::Error> {
        let mut part = PartSink::new(range, part);
        let found = self.get_any(key, None, &mut part)?;
        Ok(part.outcome(found.is_some()))
    }

    /// The length of the key's value, without its bytes; `None` if the key is absent. Usually 1 READ.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, F::Error> {
        let mut length = LengthSink::default();
        let found = self.get_any(key, None, &mut length)?;
        Ok(length.outcome(found.is_some()))
    }

    /// A GET of any key, by READs. Returns the extent that the value is in, and `Some(None)` if it is in its slot.
    fn get_any(
        &mut self,
        key: &[u8],
        hints: Option<&Hints>,
        value: &mut impl Sink,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        match self.geometry.may_hold_plainly(key) {
            true => self.get_by_reads(key, hints, value),
            false => self.get_unhidden(key, hints, &mut AnySink::of(value)),
        }
    }

    /// The one GET by READs: where the hints say, if there are any; by the machine; and where the slot says.
    /// Returns the extent that the value is in, and `Some(None)` if it is in its slot.
    #[inline]
    fn get_by_reads(
        &mut self,
        key: &[u8],
        hints: Option<&Hints>,
        value: &mut impl Sink,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        let found = self.look_and_bring(key, hints, value, &mut RetryBudget::default())?;
        self.stats.answered(found.is_some());
        Ok(found)
    }

    /// Looks for a key, and brings its value. Does not count it.
    #[inline]
    pub(super) fn look_and_bring(
        &mut self,
        key: &[u8],
        hints: Option<&Hints>,
        value: &mut impl Sink,
        patience: &mut RetryBudget,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        let hinted = match hints {
            None => None,
            Some(hints) => self.look_where_hinted(hints, key, value)?,
        };
        let looked = match hinted {
            Some(looked) => looked,
            None => self.look_up(key, &[], &mut AnySink::of(value), patience)?,
        };
        Ok(match looked {
            Looked::Here => Some(None),
            looked => self.bring(key, Others::new(), looked, &mut AnySink::of(value), patience)?,
        })
    }
}
