//! What is seen of the two tables of `bench grow` while they change.

use crate::measure::{latencies, quantile};
use anyhow::Result;
use hdrhistogram::Histogram;
use oneread::internals::layout::geometry::Geometry;
use oneread::{embedded::Index, layout::Family};
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// The two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Growing,
    Fixed,
}

impl Which {
    pub const BOTH: [Which; 2] = [Which::Growing, Which::Fixed];
}

/// What is done to them: keys are put, and then removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    Filling,
    Emptying,
}

/// What readers saw, added up.
pub struct Seen {
    /// GETs while a split or merge was under way, and those while none was.
    pub busy: Histogram<u64>,
    pub quiet: Histogram<u64>,
    pub all: Histogram<u64>,
    pub counts: GetCounts,
}

/// What GETs came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetCounts {
    pub gets: u64,
    /// GETs of keys that were there, their READs and bytes.
    pub hits: u64,
    pub reads: u64,
    pub bytes: u64,
    /// GETs that had to look again.
    pub retries: u64,
    /// Pages that the kernel mapped when they were first read.
    pub faults: u64,
}

impl AddAssign for GetCounts {
    fn add_assign(&mut self, more: GetCounts) {
        self.gets += more.gets;
        self.hits += more.hits;
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.retries += more.retries;
        self.faults += more.faults;
    }
}

/// What one reader saw in one step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StepReport {
    pub step: u64,
    #[serde(flatten)]
    pub counts: GetCounts,
    /// GETs that ended in an error, of these the first.
    pub failed: u64,
    pub error: Option<String>,
    /// Answers with another key's value, or for a key that was removed or never put.
    pub wrong: u64,
    /// Keys that were there and not found.
    pub missed: u64,
    /// Latencies in nanoseconds and how often: while a split or merge was under way, and else.
    pub busy: Vec<(u64, u64)>,
    pub quiet: Vec<(u64, u64)>,
}

/// What was seen of one table, by courses.
pub struct Side {
    /// How long each change took.
    pub changes: [Histogram<u64>; 2],
    pub seen: [Seen; 2],
    pub cpu: CpuTimes,
}

/// The CPU time of changes. What other threads did meanwhile is no part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTimes {
    /// The longest.
    pub max_ns: u64,
    /// Changes that took longer than [`LONG_NS`].
    pub long: u64,
}

/// No change is to take more CPU time.
pub const LONG_NS: u64 = 500_000;

impl CpuTimes {
    pub fn took(&mut self, ns: u64) {
        self.max_ns = self.max_ns.max(ns);
        self.long += u64::from(ns > LONG_NS);
    }

    fn add(&mut self, more: CpuTimes) {
        *self = CpuTimes { max_ns: self.max_ns.max(more.max_ns), long: self.long + more.long };
    }
}

/// Loads looked at. Parts double the keys in equal steps of the logarithm, and each has as many looks: so a mean
/// is one over the logarithm of the keys.
#[derive(Clone, Copy, Debug)]
pub struct Loads {
    pub min: f64,
    pub sum: f64,
    pub looks: u64,
}

impl Default for Loads {
    fn default() -> Loads {
        Loads { min: f64::MAX, sum: 0.0, looks: 0 }
    }
}

impl Loads {
    pub fn look(&mut self, index: &Index) {
        let load = index.load_true();
        *self = Loads { min: self.min.min(load), sum: self.sum + load, looks: self.looks + 1 };
    }

    pub fn add(&mut self, more: &Loads) {
        *self =
            Loads { min: self.min.min(more.min), sum: self.sum + more.sum, looks: self.looks + more.looks };
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.looks.max(1) as f64
    }
}

impl Seen {
    pub fn new() -> Result<Seen> {
        Ok(Seen { busy: latencies()?, quiet: latencies()?, all: latencies()?, counts: GetCounts::default() })
    }

    pub fn add_report(&mut self, report: &StepReport) -> Result<()> {
        for (some, reported) in [(&mut self.busy, &report.busy), (&mut self.quiet, &report.quiet)] {
            for &(ns, count) in reported {
                some.record_n(ns, count)?;
                self.all.record_n(ns, count)?;
            }
        }
        self.counts += report.counts;
        Ok(())
    }

    pub fn add(&mut self, more: &Seen) -> Result<()> {
        self.busy.add(&more.busy)?;
        self.quiet.add(&more.quiet)?;
        self.all.add(&more.all)?;
        self.counts += more.counts;
        Ok(())
    }

    pub fn reads_per_get(&self) -> Option<f64> {
        let GetCounts { hits, reads, .. } = self.counts;
        (hits > 0).then(|| reads as f64 / hits as f64)
    }

    /// READs of whole directory entries. All other READs are as long as a window.
    pub fn directory_reads_per_get(&self, geometry: &Geometry) -> Option<f64> {
        let GetCounts { hits, reads, bytes, .. } = self.counts;
        if geometry.layout().family != Family::Cuckoo || hits == 0 {
            return None;
        }
        let (window, slot) = (geometry.window_bytes(geometry.window(0)), geometry.shape().bytes() as u64);
        let directory = (reads * window).checked_sub(bytes)? / window.checked_sub(slot)?.max(1);
        Some(directory as f64 / hits as f64)
    }
}

impl Side {
    pub fn new() -> Result<Side> {
        let changes = [latencies()?, latencies()?];
        Ok(Side { changes, seen: [Seen::new()?, Seen::new()?], cpu: CpuTimes::default() })
    }

    pub fn add(&mut self, more: &Side) -> Result<()> {
        self.cpu.add(more.cpu);
        self.changes.iter_mut().zip(&more.changes).try_for_each(|(all, more)| all.add(more))?;
        self.seen.iter_mut().zip(&more.seen).try_for_each(|(all, more)| all.add(more))
    }
}

/// A quantile of some GETs to that of others.
pub fn ratio(some: &Histogram<u64>, others: &Histogram<u64>, part: f64) -> Option<f64> {
    let ns = |all| Some(quantile(all, part)? as f64);
    Some(ns(some)? / ns(others)?)
}
