//! Who has work of a table in hand, so that nobody else says that none is left (L15).

use crate::faults::{Rule, kept};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the shift counts in: those that have begun. Below it, those that have not ended.
const BEGUN: u64 = 1 << 32;

/// The threads that take on what a table has to do by itself.
#[derive(Debug, Default)]
pub(super) struct TidyShifts(AtomicU64);

/// One thread is at it until this is dropped.
#[derive(Debug)]
pub(super) struct TidyShift<'s> {
    shifts: &'s TidyShifts,
    /// What there was when it began.
    before: u64,
}

impl TidyShifts {
    /// A thread begins.
    pub fn begin(&self) -> TidyShift<'_> {
        // Acquire: pairs with the release of who has ended. What he has left to do is seen.
        let before = self.0.fetch_add(BEGUN + 1, Ordering::AcqRel);
        TidyShift { shifts: self, before }
    }
}

impl TidyShift<'_> {
    /// Whether no other thread was at it since this one began.
    pub fn is_alone(&self) -> bool {
        let now = self.shifts.0.load(Ordering::Acquire);
        let nobody_before = (self.before as u32) == 0;
        kept(Rule::TidyAlone, || nobody_before && now == self.before.wrapping_add(BEGUN + 1))
    }
}

impl Drop for TidyShift<'_> {
    fn drop(&mut self) {
        self.shifts.0.fetch_sub(1, Ordering::Release);
    }
}
