//! Drives GET machines over a fabric: one at a time, or many in flight. Counts what it does, bounds what
//! it may do.

mod answers;
mod batch;
mod entries;
mod hidden;
mod look;
mod one;
mod order;
mod patience;
mod stats;
mod values;

#[cfg(all(test, not(loom)))]
mod pair_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use answers::StoredAnswer;
pub(crate) use answers::{Answers, Called, Noting, Present};
pub(crate) use entries::KnownEntries;
pub(crate) use order::in_order;
pub use patience::Limits;
pub(crate) use stats::DirectAnswers;
pub use stats::{GetStats, HintCounts};

use crate::base::clock::Clock;
use crate::fabric::Fabric;
pub use crate::fabric::ReadCounts;
use crate::hints::Hints;
use crate::layout::geometry::Geometry;

/// Looks keys up through a fabric. One per thread (`&mut self`); cheap to make.
#[derive(Debug)]
pub struct Reader<'g, F> {
    fabric: F,
    geometry: &'g Geometry,
    clock: Clock,
    limits: Limits,
    stats: GetStats,
    reads: ReadCounts,
    direct: DirectAnswers,
    hints: Option<&'g Hints>,
    hinted: HintCounts,
    /// Where a batch's values land.
    value: Vec<u8>,
    /// Whether who takes a batch's answers wants bytes of values.
    wants_bytes: bool,
    /// Directory entries, in a table that grows. On shm they only say how many bits it uses.
    entries: KnownEntries,
}

impl<'g, F: Fabric> Reader<'g, F> {
    /// A reader of the table with this geometry.
    pub fn new(fabric: F, geometry: &'g Geometry, clock: Clock, limits: Limits) -> Reader<'g, F> {
        let (stats, reads, direct, hinted, value, entries) = Default::default();
        let (hints, wants_bytes) = (None, true);
        Reader {
            fabric,
            geometry,
            clock,
            limits,
            stats,
            reads,
            direct,
            hints,
            hinted,
            value,
            wants_bytes,
            entries,
        }
    }

    /// The reader, with hints from now on. Each GET first READs the single slots that they name, and teaches
    /// them what it sees. It makes no direct looks.
    #[must_use]
    pub fn with_hints(mut self, hints: &'g Hints) -> Reader<'g, F> {
        self.set_hints(hints);
        self
    }

    /// Has the reader use these hints.
    #[inline]
    pub(crate) fn set_hints(&mut self, hints: &'g Hints) {
        self.hints = Some(hints);
    }

    /// Changes places with directory entries of this table: what a client remembers outlives its readers.
    #[inline]
    pub(crate) fn swap_entries(&mut self, entries: &mut KnownEntries) {
        std::mem::swap(&mut self.entries, entries);
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The fabric, to be told of something between GETs.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Counts so far.
    pub fn stats(&self) -> GetStats {
        let mut stats = self.stats;
        self.direct.add_gets_to(&mut stats);
        stats
    }

    /// What was asked of the fabric so far.
    pub fn read_counts(&self) -> ReadCounts {
        let mut counts = self.reads;
        self.direct.add_reads_to(&mut counts);
        counts
    }

    /// Counts of what hints did so far.
    pub fn hint_counts(&self) -> HintCounts {
        self.hinted
    }
}
