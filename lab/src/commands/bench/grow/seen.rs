//! What is seen of the two tables of `bench grow` while they change.

use super::reader::{StepReport, latencies};
use crate::measure::quantile;
use anyhow::Result;
use hdrhistogram::Histogram;
use oneread::internals::layout::geometry::Geometry;
use oneread::{embedded::Index, layout::Family};

/// The two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Growing,
    Fixed,
}

impl Which {
    pub const BOTH: [Which; 2] = [Which::Growing, Which::Fixed];
}

/// What readers saw, added up.
pub struct Seen {
    /// GETs while a split or merge was under way, and those while none was.
    pub busy: Histogram<u64>,
    pub quiet: Histogram<u64>,
    pub all: Histogram<u64>,
    pub gets: u64,
    pub hits: u64,
    pub reads: u64,
    pub bytes: u64,
    pub retries: u64,
    pub faults: u64,
}

/// What was seen of one table: while keys were put, and while they were removed.
pub struct Side {
    pub puts: Histogram<u64>,
    pub removes: Histogram<u64>,
    pub cpu: CpuTimes,
    pub inserting: Seen,
    pub removing: Seen,
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
        let [busy, quiet, all] = [latencies()?, latencies()?, latencies()?];
        Ok(Seen { busy, quiet, all, gets: 0, hits: 0, reads: 0, bytes: 0, retries: 0, faults: 0 })
    }

    pub fn add_report(&mut self, report: &StepReport) -> Result<()> {
        for (some, reported) in [(&mut self.busy, &report.busy), (&mut self.quiet, &report.quiet)] {
            for &(ns, count) in reported {
                some.record_n(ns, count)?;
                self.all.record_n(ns, count)?;
            }
        }
        self.gets += report.gets;
        self.hits += report.hits;
        self.reads += report.reads;
        self.bytes += report.bytes;
        self.retries += report.retries;
        self.faults += report.faults;
        Ok(())
    }

    pub fn add(&mut self, more: &Seen) -> Result<()> {
        self.busy.add(&more.busy)?;
        self.quiet.add(&more.quiet)?;
        self.all.add(&more.all)?;
        self.gets += more.gets;
        self.hits += more.hits;
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.retries += more.retries;
        self.faults += more.faults;
        Ok(())
    }

    pub fn reads_per_get(&self) -> Option<f64> {
        (self.hits > 0).then(|| self.reads as f64 / self.hits as f64)
    }

    /// READs of whole directory entries. All other READs are as long as a window.
    pub fn directory_reads_per_get(&self, geometry: &Geometry) -> Option<f64> {
        if geometry.layout().family != Family::Cuckoo || self.hits == 0 {
            return None;
        }
        let (window, slot) = (geometry.window_bytes(geometry.window(0)), geometry.shape().bytes() as u64);
        let directory = (self.reads * window).checked_sub(self.bytes)? / window.checked_sub(slot)?.max(1);
        Some(directory as f64 / self.hits as f64)
    }
}

impl Side {
    pub fn new() -> Result<Side> {
        let [puts, removes] = [latencies()?, latencies()?];
        Ok(Side { puts, removes, cpu: CpuTimes::default(), inserting: Seen::new()?, removing: Seen::new()? })
    }

    pub fn add(&mut self, more: &Side) -> Result<()> {
        self.cpu.add(more.cpu);
        self.puts.add(&more.puts)?;
        self.removes.add(&more.removes)?;
        self.inserting.add(&more.inserting)?;
        self.removing.add(&more.removing)
    }
}

/// A quantile of some GETs to that of others.
pub fn ratio(some: &Histogram<u64>, others: &Histogram<u64>, part: f64) -> Option<f64> {
    let ns = |all| Some(quantile(all, part)? as f64);
    Some(ns(some)? / ns(others)?)
}
