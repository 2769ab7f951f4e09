//! GETs, one at a time.

use super::Reader;
use super::look::Looked;
use super::patience::RetryBudget;
use crate::fabric::Fabric;
use crate::hints::Hints;
use crate::layout::extent::Reference;
use crate::sink::{LengthSink, PartSink, Sink};
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
        self.check_key(key)?;
        if self.hints.is_none()
            && let Some(found) = self.fabric.get_directly(self.geometry.hashed(key), value, &mut self.reads)
        {
            self.direct.count(found, self.geometry);
            return Ok(value.outcome(found));
        }
        let found = self.get_by_reads(key, self.hints, value)?;
        Ok(value.outcome(found.is_some()))
    }

    /// Looks `key` up, and says in which extent its value is. `None` if it is in its slot. For X7.
    pub(crate) fn get_with_extent(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.check_key(key)?;
        self.get_by_reads(key, None, value)
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
        self.check_key(key)?;
        let mut part = PartSink::new(range, part);
        let found = self.get_by_reads(key, None, &mut part)?;
        Ok(part.outcome(found.is_some()))
    }

    /// The length of the key's value, without its bytes; `None` if the key is absent. Usually 1 READ.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, F::Error> {
        self.check_key(key)?;
        let mut length = LengthSink::default();
        let found = self.get_by_reads(key, None, &mut length)?;
        Ok(length.outcome(found.is_some()))
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
        let mut patience = RetryBudget::default();
        let hinted = match hints {
            None => None,
            Some(hints) => self.look_where_hinted(hints, key, value)?,
        };
        let looked = match hinted {
            Some(looked) => looked,
            None => self.look_up(key, value, &mut patience)?,
        };
        let found = match looked {
            Looked::Here => Some(None),
            looked => self.bring(key, looked, value, &mut patience)?,
        };
        self.stats.answered(found.is_some());
        Ok(found)
    }
}
