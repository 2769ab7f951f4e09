//! A system model: which resource binds, before anything is built.
//!
//! A [`Design`] is a list of demands for each operation, counted where they are ours
//! ([`Sample::count`]) and published where they are a rival's ([`rivals`]). A [`Profile`] says what
//! the hardware can do, each figure with its source. [`System::predict`] joins both by operational
//! laws: utilization, Little's law, bottleneck bounds. [`PUBLISHED`] holds the predictions against
//! what papers report.
//!
//! Nothing here does I/O. Times are in seconds unless a name says otherwise. docs/MODEL.md has the
//! arithmetic by hand.
//!
//! ```
//! use oneread_lab::plan::{Profile, Sample, System, Workload};
//!
//! let workload = Workload { keys: 1_000_000, ..Workload::default() };
//! let sample = Sample::count("windowed:8".parse()?, 4096, None, workload.zipf)?;
//! let design = sample.design(&workload)?;
//! let system = System::new(workload, Profile::shipped("cx6-200g")?)?;
//! let prediction = system.predict(&design);
//! assert!(prediction.ops_per_s > 1e6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choice;
mod cluster;
mod demand;
mod growth;
mod laws;
mod profile;
mod published;
mod sample;
mod simulate;

pub use choice::Verdict;
pub use cluster::{ClusterPlan, ClusterWorkload};
pub use demand::{COSTS, Cost, Demand, Design, Side, SplitPause, rivals};
pub use growth::{Course, GetCosts, GetKinds, GrowthCourse, GrowthPart, GrowthRun, GrowthSample};
pub use laws::{Load, Prediction, Resource, System, WhatIf, what_ifs};
pub use profile::{Figure, HostFigures, NicFigures, Profile, SHIPPED, Share, Surety};
pub use published::{Held, PUBLISHED, Report};
pub use sample::{HintedSample, Sample, SampleTable, hinted_name};
pub use simulate::{Arrivals, Measured, Run};

use serde::Serialize;

/// What is asked of the system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Keys in all tables together.
    pub keys: u64,
    /// Length of a key.
    pub key_bytes: u64,
    /// Length of a value.
    pub value_bytes: u64,
    /// GETs, as a share of the operations; the others are PUTs.
    pub gets: f64,
    /// GETs that find their key, as a share of the GETs.
    pub hits: f64,
    /// PUTs that add a key, as a share of the PUTs. As many keys leave, but where tables grow.
    pub inserts: f64,
    /// The keys that PUTs add stay: tables grow by splits, while they have so many keys.
    pub grows: bool,
    /// Exponent of the keys' popularity: 0 is uniform, 0.99 is YCSB's.
    pub zipf: f64,
    /// Server machines.
    pub servers: u32,
    /// Client threads.
    pub clients: u32,
    /// Client threads of one machine.
    pub clients_per_machine: u32,
    /// Operations that one client has in flight.
    pub depth: u32,
    /// Bytes of memory that each client machine may spend on a copy of everything, or on hints.
    pub copy_bytes: u64,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            keys: 100_000_000,
            key_bytes: 16,
            value_bytes: 32,
            gets: 0.95,
            hits: 1.0,
            inserts: 0.0,
            grows: false,
            zipf: 0.99,
            servers: 1,
            clients: 64,
            clients_per_machine: 16,
            depth: 8,
            copy_bytes: 1 << 30,
        }
    }
}

impl Workload {
    /// Looks whether each number is in its range.
    ///
    /// # Errors
    /// [`PlanError::Number`] names the first number that is out of range.
    fn check(&self) -> Result<(), PlanError> {
        within("keys", self.keys as f64, 1.0, 1e15)?;
        within("key bytes", self.key_bytes as f64, 1.0, 1e6)?;
        within("value bytes", self.value_bytes as f64, 0.0, 1e9)?;
        within("the share of GETs", self.gets, 0.0, 1.0)?;
        within("the share of hits", self.hits, 0.0, 1.0)?;
        within("the share of inserts", self.inserts, 0.0, 1.0)?;
        if self.grows {
            // Without either, nothing grows.
            within("the share of GETs beside growth", self.gets, 0.0, 0.999_999)?;
            within("the share of inserts by which tables grow", self.inserts, 1e-6, 1.0)?;
        }
        within("zipf", self.zipf, 0.0, 2.0)?;
        within("servers", self.servers.into(), 1.0, 10_000.0)?;
        within("clients", self.clients.into(), 1.0, 1e6)?;
        within("clients per machine", self.clients_per_machine.into(), 1.0, 4096.0)?;
        within("depth", self.depth.into(), 1.0, 4096.0)
    }

    /// Machines that the clients fill.
    pub fn machines(&self) -> u32 {
        self.clients.div_ceil(self.clients_per_machine)
    }
}

/// Why something cannot be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number of the workload is out of range.
    #[error("{what}: {given} is not within {least} to {most}")]
    Number {
        /// Which.
        what: &'static str,
        /// What was given.
        given: f64,
        /// Smallest allowed.
        least: f64,
        /// Largest allowed.
        most: f64,
    },
    /// No shipped profile has that name.
    #[error("no profile {given:?}; there are: {}", SHIPPED.map(|(name, _)| name).join(", "))]
    UnknownProfile {
        /// What was asked for.
        given: String,
    },
    /// A profile is no TOML, or lacks a field, or has one too many.
    #[error("the profile {from} cannot be used")]
    Profile {
        /// Its name or path.
        from: String,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A figure of a profile is out of range.
    #[error("the profile {from}: {field} is {given}; allowed: {allowed}")]
    Figure {
        /// The profile.
        from: String,
        /// The figure.
        field: &'static str,
        /// What it is.
        given: f64,
        /// What it may be.
        allowed: &'static str,
    },
    /// A layout cannot hold such keys and values.
    #[error(transparent)]
    Config(#[from] oneread::error::ConfigError),
    /// The sample table could not be made.
    #[error("no memory for the sample table; take a smaller one")]
    Memory(#[from] oneread::error::RegionError),
    /// The sample table took no key, or a GET of it failed.
    #[error("the sample of {layout} cannot be counted: {why}")]
    Sample {
        /// The layout.
        layout: String,
        /// What went wrong.
        why: String,
    },
    /// There can be no such cluster.
    #[error("{what}: {why}")]
    Cluster {
        /// Which number.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// An error unless a number is in its range. Not a number is in none.
fn within(what: &'static str, given: f64, least: f64, most: f64) -> Result<(), PlanError> {
    match (least..=most).contains(&given) {
        true => Ok(()),
        false => Err(PlanError::Number { what, given, least, most }),
    }
}

#[cfg(test)]
mod tests;
