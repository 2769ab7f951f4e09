//! Which threads work at a table's own tasks. A thread says that nothing is left only if no other thread works (L15).

use crate::faults::{Rule, kept};
use std::sync::atomic::{AtomicU64, Ordering};

/// The upper half counts the threads that have begun, the lower half those that have not ended.
const BEGUN: u64 = 1 << 32;

/// The threads that do what a table has to do by itself.
#[derive(Debug, Default)]
pub(super) struct TidyShifts(AtomicU64);

/// A thread's shift, until this is dropped.
#[derive(Debug)]
pub(super) struct TidyShift<'s> {
    shifts: &'s TidyShifts,
    /// The counts before it began.
    before: u64,
}

impl TidyShifts {
    /// Begins a shift.
    pub fn begin(&self) -> TidyShift<'_> {
        // Acquire: pairs with the release at the end of other shifts. Their remaining work is seen.
        let before = self.0.fetch_add(BEGUN + 1, Ordering::AcqRel);
        TidyShift { shifts: self, before }
    }
}

impl TidyShift<'_> {
    /// Whether no other thread has worked since this shift began.
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
