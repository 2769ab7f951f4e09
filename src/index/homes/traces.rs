//! Traces are taken away when they are due (M2, M5).

use super::Homes;
use super::counters::count;
use super::grace::Trace;
use crate::layout::geometry::SlotIx;

/// Traces that a change takes away in passing.
pub(crate) const REAP_MAX: usize = 8;

impl Homes {
    /// Takes away up to `most` traces that are due. For a table of one segment.
    #[inline(always)]
    pub fn reap(&self, most: usize) {
        for _ in 0..most {
            let Some((due_ns, waiting)) = self.grace.pop_due() else { return };
            self.take_away(due_ns, waiting.trace);
        }
    }

    pub fn take_away(&self, due_ns: u64, trace: Trace) {
        self.take_from_region(due_ns, trace);
        count(&self.counters.mine().reaped);
    }

    fn take_from_region(&self, due_ns: u64, trace: Trace) {
        match trace {
            Trace::Ghost { slot, guard } => {
                debug_assert!(self.slots.is_guarded_by(slot, guard), "L1: {guard:?} does not guard {slot:?}");
                self.slots.take_ghost(&self.slots.lock_slot(guard), slot);
            }
            Trace::Ghosts { first, slots } => {
                let locked = self.slots.lock_slot(first);
                let mut left = slots;
                while left != 0 {
                    let slot = SlotIx(first.0 + u64::from(left.trailing_zeros()));
                    left &= left - 1;
                    debug_assert!(locked.covers(slot), "L1: {first:?} does not guard {slot:?}");
                    self.slots.take_ghost(&locked, slot);
                }
            }
            Trace::Filter { home } => {
                let mut locked = self.slots.lock_home(home);
                self.stripe(&mut locked, home).expire(home, due_ns);
                self.set_filter(&mut locked, home);
            }
            Trace::Unlink { home, block } => self.unlink(home, block, due_ns),
            Trace::Reuse { home, block } => self.reuse(home, block),
            Trace::Settle { homes } => self.settle(homes, due_ns),
            // `Growth` has the memory.
        }
    }

    /// Counts a wait until readers were gone, and takes away what is due.
    pub fn waited(&self) {
        self.counters.waits();
        self.reap(usize::MAX);
    }

    /// Waits until all present traces are gone. `false` when there are none.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn wait_for_grace(&self) -> bool {
        let Some(due_ns) = self.grace.last_due_ns() else { return false };
        self.grace.clock().sleep_until(due_ns);
        self.waited();
        true
    }
}
