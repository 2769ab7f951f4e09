//! Counts of GETs, and of what hints did for them.

use crate::fabric::ReadCounts;
use crate::get::Retry;
use crate::layout::geometry::Geometry;

/// Counts of what GETs did. Add them up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GetStats {
    /// GETs answered.
    pub gets: u64,
    /// Of these, keys found.
    pub hits: u64,
    /// Passes repeated because a slot was being written.
    pub retries_torn: u64,
    /// Passes repeated because the key may have been moved meanwhile.
    pub retries_moved: u64,
    /// Passes over a network repeated because they took the grace time or longer.
    pub retries_late: u64,
    /// Passes repeated because a chain had no end: the memory is damaged.
    pub retries_chain: u64,
    /// Looks at keys repeated because the value was replaced, or moved, while it was read.
    pub retries_replaced: u64,
    /// Looks at keys repeated because another key has the same digest.
    pub retries_other_key: u64,
}

impl std::ops::AddAssign for GetStats {
    fn add_assign(&mut self, other: GetStats) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.retries_torn += other.retries_torn;
        self.retries_moved += other.retries_moved;
        self.retries_late += other.retries_late;
        self.retries_chain += other.retries_chain;
        self.retries_replaced += other.retries_replaced;
        self.retries_other_key += other.retries_other_key;
    }
}

impl GetStats {
    /// A GET has its answer.
    pub(super) fn answered(&mut self, is_found: bool) {
        self.gets += 1;
        self.hits += u64::from(is_found);
    }

    /// A hit is looked for again, and counts then.
    pub(super) fn take_back(&mut self) {
        self.gets -= 1;
        self.hits -= 1;
    }

    pub(super) fn count(&mut self, why: Retry) {
        match why {
            Retry::Torn => self.retries_torn += 1,
            Retry::Moved => self.retries_moved += 1,
            Retry::Late => self.retries_late += 1,
            Retry::Chain => self.retries_chain += 1,
            Retry::Replaced => self.retries_replaced += 1,
            Retry::OtherKey => self.retries_other_key += 1,
        }
    }
}

/// Counts of what hints did. Add them up with `+=`. [`GetStats`] and [`ReadCounts`] count the same
/// GETs and READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HintCounts {
    /// GETs that began with one or two single slots, because hints named them.
    pub hinted: u64,
    /// Of these, GETs that found their key so.
    pub hits: u64,
    /// READs of single slots.
    pub reads: u64,
}

impl std::ops::AddAssign for HintCounts {
    fn add_assign(&mut self, other: HintCounts) {
        self.hinted += other.hinted;
        self.hits += other.hits;
        self.reads += other.reads;
    }
}

/// GETs that a direct look answered. Each read its primary window, at least. (To add to all the counts that
/// follow from these takes as long as a tenth of a GET.)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectAnswers {
    absent: u64,
    found: u64,
    /// Bytes of the primary windows.
    bytes: u64,
    /// Doorbells that are not one for each first window of a look.
    doorbells_shared: u64,
}

impl DirectAnswers {
    #[inline(always)]
    pub fn count(&mut self, found: bool, geometry: &Geometry) {
        match found {
            true => self.found += 1,
            false => self.absent += 1,
        }
        self.bytes += geometry.home_window_bytes();
    }

    /// Counts `answered` answers, of which `found` were hits.
    pub(super) fn count_all(&mut self, answered: u64, found: u64, geometry: &Geometry) {
        self.found += found;
        self.absent += answered - found;
        self.bytes += answered * geometry.home_window_bytes();
    }

    /// Some of their doorbells were rung for several of them.
    pub(super) fn share_doorbells(&mut self, spared: u64) {
        self.doorbells_shared += spared;
    }

    /// Adds them to the counts of all GETs.
    pub fn add_gets_to(&self, stats: &mut GetStats) {
        stats.gets += self.found + self.absent;
        stats.hits += self.found;
    }

    /// Adds their first windows to the counts of all READs.
    pub fn add_reads_to(&self, counts: &mut ReadCounts) {
        let reads = self.found + self.absent;
        counts.reads += reads;
        counts.bytes += self.bytes;
        // Some are shared with looks that had no answer, which are in the counts already.
        counts.doorbells += reads;
        counts.doorbells -= self.doorbells_shared;
    }
}
