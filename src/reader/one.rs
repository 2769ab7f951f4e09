//! GETs, one at a time.

use super::Reader;
use super::look::Looked;
use super::patience::RetryBudget;
use super::values::FoundValue;
use crate::fabric::Fabric;
use crate::get::{HintedLook, Landed, Step};
use crate::hints::Hints;
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::slot::Key;
use smallvec::SmallVec;
use std::ops::Range;

impl<F: Fabric> Reader<'_, F> {
    /// Looks `key` up; its value replaces what was in `value`. Returns whether it was found. Usually 1
    /// READ and 1 round trip, and one more of each if the value is not in its slot; allocates only if
    /// `value` is too small.
    ///
    /// # Errors
    /// [`ReadError`], or the fabric's own; absence is not one.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        if self.hints.is_none()
            && let Some(found) = self.fabric.glance(key, value)
        {
            self.direct.count(found, self.geometry);
            return Ok(found);
        }
        self.get_otherwise(key, value)
    }

    /// A GET for which a glance does not suffice.
    #[inline(never)]
    pub(crate) fn get_otherwise(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        self.check_key(key)?;
        if let Some(hints) = self.hints {
            return self.get_hinted(hints, key, value);
        }
        match self.fabric.get_directly(self.geometry.hashed(key), value, &mut self.reads) {
            Some(found) => {
                self.direct.count(found, self.geometry);
                Ok(found)
            }
            None => self.get_all(key, value),
        }
    }

    /// The GET of a whole value by the machine.
    pub(crate) fn get_all(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        Ok(self.get_part(key, &(0..usize::MAX), value)?.is_some())
    }

    /// Looks `key` up, and says in which extent its value is. `None` if it is in its slot. For X7.
    pub(crate) fn get_with_extent(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.check_key(key)?;
        Ok(self.get_part(key, &(0..usize::MAX), value)?.map(|found| found.extent))
    }

    /// Looks `key` up; the bytes `range` of its value replace what was in `part`. Returns the length of
    /// the whole value; `None` if the key is absent. Bytes beyond the value's end are left out. Costs what
    /// [`Reader::get_into`] costs, but READs no more bytes of a long value than these.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn get_range(
        &mut self,
        key: &[u8],
        range: Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<usize>, F::Error> {
        self.check_key(key)?;
        Ok(self.get_part(key, &range, part)?.map(|found| found.len))
    }

    /// The length of the key's value, without its bytes; `None` if the key is absent. Usually 1 READ.
    ///
    /// # Errors
    /// As [`Reader::get_into`].
    pub fn value_len(&mut self, key: &[u8]) -> Result<Option<usize>, F::Error> {
        self.check_key(key)?;
        let mut value = std::mem::take(&mut self.value);
        let looked = self.look_up(key, &mut value, &mut RetryBudget::default());
        let len = value.len();
        self.value = value;
        let found = match looked? {
            Looked::Absent => None,
            Looked::Here => Some(len),
            Looked::At(reference, _) => Some(reference.len as usize),
        };
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    /// A GET by the machine, of a part of the value.
    fn get_part(
        &mut self,
        key: &[u8],
        range: &Range<usize>,
        part: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, F::Error> {
        let mut patience = RetryBudget::default();
        let looked = self.look_up(key, part, &mut patience)?;
        let found = self.bring(key, looked, range, part, &mut patience)?;
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    /// The hinted look, and where it does not find the key, the whole algorithm. Out of line: a
    /// reader without hints pays for one branch.
    #[cold]
    #[inline(never)]
    fn get_hinted(&mut self, hints: &Hints, key: &[u8], value: &mut Vec<u8>) -> Result<bool, F::Error> {
        let key = self.geometry.hashed(key);
        let windows = self.entries.hinted(hints, self.geometry, key);
        if windows.is_empty() || windows.len() > self.fabric.credits() {
            return self.get_all(key.key(), value);
        }
        let mut look = HintedLook::new(self.geometry, key.key());
        let needs_mark = self.geometry.has_heap() || !look.is_proof(F::EXACT);
        let mark = needs_mark.then(|| self.fabric.mark(key.home()));
        let mut wrong = WrongSlots::new();
        let mut take = |nth: usize, landed: &mut F::Landed<'_>| {
            let slot = windows[nth].first;
            if !look.feed(slot, landed, value) {
                wrong.push((slot, landed.occupant(slot)));
            }
        };
        self.count_hinted(windows.len());
        self.reads.doorbells += 1;
        if let [window] = windows[..] {
            self.fabric.read(window, |landed| take(0, landed))?;
        } else {
            let reads: Vec<_> = (0..).zip(windows.iter().copied()).collect();
            self.fabric.post(&reads)?;
            let mut left = reads.len();
            while left > 0 {
                self.fabric.poll(|nth, landed| {
                    left -= 1;
                    take(nth as usize, landed);
                })?;
            }
        }
        let proof = || self.fabric.proof(key.home(), mark.expect("taken where a hit needs proof"));
        let ended = look.judge(F::EXACT, proof);
        hints.correct_all(self.geometry, &wrong, key, ended == Some(Step::Found));
        match ended {
            None => self.get_all(key.key(), value),
            Some(step) => {
                self.hinted.hits += u64::from(step == Step::Found);
                if let (Some(reference), Some(mark)) = (look.reference(), mark) {
                    let looked = Looked::At(reference, mark);
                    return self.finish(key.key(), looked, value).map(|found| found.is_some());
                }
                self.stats.gets += 1;
                self.stats.hits += u64::from(step == Step::Found);
                Ok(step == Step::Found)
            }
        }
    }

    /// Brings the whole value of a look that has ended, and counts the GET.
    fn finish(
        &mut self,
        key: &[u8],
        looked: Looked<F::Mark>,
        value: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, F::Error> {
        let found = self.bring(key, looked, &(0..usize::MAX), value, &mut RetryBudget::default())?;
        self.stats.gets += 1;
        self.stats.hits += u64::from(found.is_some());
        Ok(found)
    }

    pub(super) fn count_hinted(&mut self, slots: usize) {
        self.hinted.hinted += 1;
        self.hinted.reads += slots as u64;
        self.reads.reads += slots as u64;
        self.reads.bytes += (slots * self.geometry.shape().bytes()) as u64;
    }
}

/// Slots that hints named, and that do not hold the key: what they seem to hold.
pub(super) type WrongSlots = SmallVec<[(SlotIx, Key); 2]>;
