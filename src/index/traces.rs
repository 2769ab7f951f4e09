//! Traces that a move or a delete leaves for readers under way, and how they are taken away when
//! they are due (M2, M5).

use super::counters::count;
use super::grace::{Trace, WaitingTrace};
use super::segment::Segment;
use super::stripes::{DisplacedAt, Locked};
use crate::families;
use crate::faults::{Rule, by_rule};
use crate::layout::geometry::SlotIx;
use crate::layout::slot::{Header, set_ghost_and_aux};

impl Segment {
    /// Sets the filter of a home to what its register says. Writes only if that changes it.
    pub(super) fn set_filter(&self, locked: &mut Locked<'_>, home: u64) {
        let home_slot = self.geometry.window(home).first;
        let mask = families::filter_mask(&self.geometry);
        let aux = self.slots().header(home_slot).aux;
        let filter = self.stripe(locked, home).filter(home);
        self.set_aux(locked, home_slot, aux & !mask | filter);
    }

    /// Sets the `aux` of a slot. Writes only if that changes it.
    pub(super) fn set_aux(&self, locked: &Locked<'_>, slot: SlotIx, aux: u32) {
        let before = self.slots().header(slot);
        if before.aux != aux {
            let mut image = self.slots().image(slot);
            set_ghost_and_aux(&mut image, by_rule(Rule::GhostStays, before.ghost, 0), aux);
            self.write_image(locked, slot, &mut image, self.notes.of_key_in(slot));
        }
    }

    /// The displaced key of `home` with this filter bit has left `slot`. Its bit lingers (M5).
    pub(super) fn linger(&self, locked: &mut Locked<'_>, home: u64, bit: u32, slot: SlotIx) {
        let until_ns = self.grace.due_ns(Rule::FilterGrace);
        self.stripe(locked, home).change(home, bit, slot, DisplacedAt::Lingers { until_ns });
        self.push_trace(until_ns, Trace::Filter { home });
    }

    /// Has a trace wait until it is due.
    pub(super) fn push_trace(&self, due_ns: u64, trace: Trace) {
        let guard = match trace {
            Trace::Ghost { guard, .. } => guard,
            Trace::Filter { home }
            | Trace::Unlink { home, .. }
            | Trace::Reuse { home, .. }
            | Trace::Settle { home } => self.geometry.window(home).first,
        };
        self.grace.push(
            self.stripes.of(guard),
            due_ns,
            WaitingTrace { memory: self.memory, incarnation: self.geometry.incarnation(), trace },
        );
    }

    /// Takes away up to `most` traces that are due. For a table of one segment.
    #[inline(always)]
    pub(super) fn reap(&self, most: usize) {
        for _ in 0..most {
            let Some((due_ns, waiting)) = self.grace.pop_due() else { return };
            self.take_away(due_ns, waiting.trace);
        }
    }

    pub(super) fn take_away(&self, due_ns: u64, trace: Trace) {
        self.take_from_region(due_ns, trace);
        count(&self.counters.mine().reaped);
    }

    fn take_from_region(&self, due_ns: u64, trace: Trace) {
        match trace {
            Trace::Ghost { slot, guard } => {
                debug_assert!(self.is_guarded_by(slot, guard), "L1: {guard:?} does not guard {slot:?}");
                let locked = self.lock_slot(guard);
                let mut image = self.slots().image(slot);
                let aux = Header::from_words([image[0], image[1]]).aux;
                set_ghost_and_aux(&mut image, 0, aux);
                self.write_image(&locked, slot, &mut image, self.notes.of_key_in(slot));
            }
            Trace::Filter { home } => {
                let mut locked = self.lock_home(home);
                self.stripe(&mut locked, home).expire(home, due_ns);
                self.set_filter(&mut locked, home);
            }
            Trace::Unlink { home, block } => self.unlink(home, block, due_ns),
            Trace::Reuse { home, block } => self.reuse(home, block),
            Trace::Settle { home } => self.settle(home, due_ns),
            // The memory is `Growth`'s.
        }
    }

    /// Waits until all present traces are gone. `false` when there are none.
    pub(super) fn wait_for_grace(&self) -> bool {
        let Some(due_ns) = self.grace.last_due_ns() else { return false };
        count(&self.counters.waits);
        self.grace.clock().sleep_until(due_ns);
        self.reap(usize::MAX);
        true
    }
}
