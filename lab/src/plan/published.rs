//! The model against what was published, under the conditions stated there.
//!
//! Nothing is fitted: profiles and demands are those of everybody. Where a figure of the same paper
//! is an input, the report says so, and what is checked is which resource binds.

use super::demand::{ERPC_NS, HERD_NS, HERD_SINGLE_NS, one_sided, two_sided};
use super::{Demand, Design, Figure, PlanError, Profile, Resource, Side, Surety, System, Workload, rivals};
use serde::Serialize;

/// One published figure, and how the model comes to it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The system and what was measured.
    pub what: &'static str,
    /// The conditions that the model takes over.
    pub conditions: &'static str,
    /// The figure, in `unit`.
    pub reported: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Which assumption explains what is off by more than 20 %, or which figure is an input.
    pub remark: &'static str,
    predict: fn() -> Result<(f64, Resource), PlanError>,
}

/// A report with the model's own figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Held {
    /// The system and what was measured.
    pub what: &'static str,
    /// The conditions that the model takes over.
    pub conditions: &'static str,
    /// What was reported.
    pub reported: f64,
    /// What the model says.
    pub predicted: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// Predicted over reported, less 1.
    pub error: f64,
    /// What binds in the model.
    pub binding: Resource,
    /// Which assumption explains an error of more than 20 %, or which figure is an input.
    pub remark: &'static str,
}

impl Report {
    /// Has the model predict what was reported.
    ///
    /// # Errors
    /// None for those in [`PUBLISHED`]: a test runs each.
    pub fn hold(&self) -> Result<Held, PlanError> {
        let (predicted, binding) = (self.predict)()?;
        let Report { what, conditions, reported, unit, remark, .. } = *self;
        let error = predicted / reported - 1.0;
        Ok(Held { what, conditions, reported, predicted, unit, error, binding, remark })
    }
}

/// Enough clients that they never bind, unless a report says how many.
fn base() -> Workload {
    Workload { gets: 1.0, zipf: 0.0, ..Workload::default() }
}

fn system(profile: &str, workload: Workload) -> Result<System, PlanError> {
    System::new(workload, Profile::shipped(profile)?)
}

fn rival(name: &str, workload: &Workload) -> Result<Design, PlanError> {
    let missing = || PlanError::Sample { layout: name.into(), why: "no such rival".into() };
    rivals(workload).into_iter().find(|design| design.name == name).ok_or_else(missing)
}

fn millions(system: &System, design: &Design) -> (f64, Resource) {
    let prediction = system.predict(design);
    (prediction.ops_per_s / 1e6, prediction.binding())
}

fn plain(get: Demand) -> Design {
    Design {
        name: "plain".into(),
        side: Side::OneSided,
        get,
        put: get,
        bytes_per_key: 64.0,
        client_bytes_per_key: 0.0,
        pause: None,
        source: String::new(),
    }
}

fn infiniband(system: &mut System) {
    let header = Figure::new(30.0, Surety::C, "InfiniBand instead of RoCE");
    system.profile.nic.iter_mut().for_each(|nic| nic.header_bytes = header.clone());
}

/// What was published, and what this project has measured.
pub const PUBLISHED: &[Report] = &[
    Report {
        what: "FaRM, look-ups",
        conditions: "NSDI'14: 20 machines, each server and client, ConnectX-3 40 Gb/s, 16 + 32 bytes, uniform",
        reported: 167.0,
        unit: "M/s",
        remark: "slots of 56 bytes without FaRM's versions in each line",
        predict: || {
            // 31 us at 167 M/s are 259 operations under way on each machine (Little).
            let asked = Workload { servers: 20, clients: 320, clients_per_machine: 16, depth: 16, ..base() };
            let design = rival("FaRM", &asked)?;
            let (remote, binding) = millions(&system("cx3-40g", asked)?, &design);
            // One in twenty is local.
            Ok((remote * 20.0 / 19.0, binding))
        },
    },
    Report {
        what: "XStore, GETs of one server",
        conditions: "OSDI'20: two ConnectX-4 100 Gb/s, 15 client machines, 8 + 8 bytes, 100 M keys",
        reported: 82.0,
        unit: "M/s",
        remark: "READs of a ConnectX-4: scaled from ConnectX-6",
        predict: || {
            // Two NICs stand as two servers.
            let (key_bytes, value_bytes) = (8, 8);
            let asked = Workload { servers: 2, clients: 360, clients_per_machine: 24, ..base() };
            let asked = Workload { key_bytes, value_bytes, ..asked };
            let design = rival("XStore", &asked)?;
            Ok(millions(&system("cx4-100g", asked)?, &design))
        },
    },
    Report {
        what: "SMART's RACE, six client nodes",
        conditions: "ASPLOS'24: ConnectX-6 200 Gb/s InfiniBand, 2 memory nodes, 6 x 96 threads of 8 coroutines, zipf 0.99",
        reported: 75.1,
        unit: "M/s",
        remark: "",
        predict: || {
            let asked = Workload { servers: 2, clients: 576, clients_per_machine: 96, zipf: 0.99, ..base() };
            let design = rival("RACE", &asked)?;
            let mut system = system("cx6-200g", asked)?;
            infiniband(&mut system);
            Ok(millions(&system, &design))
        },
    },
    Report {
        what: "SMART's RACE, one client node",
        conditions: "the same with 96 threads",
        reported: 23.9,
        unit: "M/s",
        remark: "12 READs in flight a thread on average; 16, as in RACE's first step, would give 26 M",
        predict: || {
            let asked = Workload { servers: 2, clients: 96, clients_per_machine: 96, zipf: 0.99, ..base() };
            let design = rival("RACE", &asked)?;
            let mut system = system("cx6-200g", asked)?;
            infiniband(&mut system);
            Ok(millions(&system, &design))
        },
    },
    Report {
        what: "ConnectX-6, READs of one thread",
        conditions: "SMART: 8 bytes, 32 outstanding, a doorbell each",
        reported: 3.4,
        unit: "M/s",
        remark: "post_ns and doorbell_ns are of HERD's bare loop; SMART's coroutines cost twice as much",
        predict: || {
            let asked = Workload { clients: 1, depth: 32, ..base() };
            let read = Demand { client_instructions: 0.0, ..one_sided(1.0, 1.0, 8.0) };
            let mut system = system("cx6-200g", asked)?;
            // Two queue pairs of 16.
            system.profile.nic.iter_mut().for_each(|nic| nic.outstanding.value = 32.0);
            Ok(millions(&system, &plain(read)))
        },
    },
    Report {
        what: "HERD, requests",
        conditions: "SIGCOMM'14: ConnectX-3 56 Gb/s, six server cores, 16 + 32 bytes",
        reported: 26.0,
        unit: "M/s",
        remark: "the NIC's rate is the same paper's: checked is that it binds, not six cores",
        predict: || {
            let asked = Workload { clients: 51, clients_per_machine: 3, ..base() };
            let get = two_sided(16.0, 32.0, HERD_SINGLE_NS, 0.0);
            let mut system = system("cx3-56g", asked)?;
            system.profile.host.cores.value = 6.0;
            Ok(millions(&system, &plain(get)))
        },
    },
    Report {
        what: "Pilaf, 90 % GETs",
        conditions: "ATC'13: one server core, ConnectX-2 20 Gb/s, 1.6 probes",
        reported: 1.3,
        unit: "M/s",
        remark: "1.6 probes are those of a table at 75 %; 1.0 probe would give 1.3 M",
        predict: || {
            let asked = Workload { gets: 0.9, clients: 40, clients_per_machine: 4, ..base() };
            let design = rival("Pilaf", &asked)?;
            let mut system = system("cx2-20g", asked)?;
            system.profile.host.cores.value = 1.0;
            Ok(millions(&system, &design))
        },
    },
    Report {
        what: "eRPC, one core",
        conditions: "NSDI'19: 32-byte RPCs, ConnectX-5, one server core, predicted from HERD's code",
        reported: 10.0,
        unit: "M/s",
        remark: "HERD's code has no sessions, congestion control or retransmission",
        predict: || {
            let mut system = system("cx5-100g", Workload { clients: 64, ..base() })?;
            system.profile.host.cores.value = 1.0;
            Ok(millions(&system, &plain(two_sided(32.0, 32.0, HERD_NS, 0.0))))
        },
    },
    Report {
        what: "eRPC, one NIC",
        conditions: "the same with all cores: 60 to 80 M/s",
        reported: 70.0,
        unit: "M/s",
        remark: "receive descriptors and completions cross PCIe, too, and are not in the model",
        predict: || {
            let system = system("cx5-100g", Workload { clients: 256, ..base() })?;
            Ok(millions(&system, &plain(two_sided(32.0, 32.0, ERPC_NS, 0.0))))
        },
    },
    Report {
        what: "eRPC, latency",
        conditions: "the same, one RPC at a time",
        reported: 2.3,
        unit: "us",
        remark: "",
        predict: || {
            let asked = Workload { clients: 1, depth: 1, ..base() };
            let prediction = system("cx5-100g", asked)?.predict(&plain(two_sided(32.0, 32.0, ERPC_NS, 0.0)));
            Ok((prediction.get_light_s * 1e6, prediction.binding()))
        },
    },
    Report {
        what: "oneread over Soft-RoCE, get_many",
        conditions: "docs/BENCHMARKS.md: 64 in flight, windowed:8, 1.025 READs of 512 bytes",
        reported: 30.0,
        unit: "k/s",
        remark: "the NIC's rate is ib_read_bw's of the same boots",
        predict: || {
            let asked = Workload { clients: 1, depth: 64, ..base() };
            let prediction =
                system("soft-roce", asked)?.predict(&plain(one_sided(1.025, 1.025, 1.025 * 512.0)));
            Ok((prediction.ops_per_s / 1e3, prediction.binding()))
        },
    },
    Report {
        what: "oneread over Soft-RoCE, one GET",
        conditions: "the same, one after the other",
        reported: 125.0,
        unit: "us",
        remark: "a GET pauses 10 to 20 us between READs, and the NIC's thread falls asleep",
        predict: || {
            let asked = Workload { clients: 1, depth: 1, ..base() };
            let prediction =
                system("soft-roce", asked)?.predict(&plain(one_sided(1.025, 1.025, 1.025 * 512.0)));
            Ok((prediction.get_light_s * 1e6, prediction.binding()))
        },
    },
    Report {
        what: "oneread over shm, one GET",
        conditions: "docs/BENCHMARKS.md: out of cache, one client, windowed:8, 1.029 READs",
        reported: 132.0,
        unit: "ns",
        remark: "a core begins the next GET before it has the last one's line, which is not in the model",
        predict: || {
            let asked = Workload { clients: 1, depth: 1, ..base() };
            let prediction = system("shm", asked)?.predict(&plain(one_sided(1.029, 1.029, 1.029 * 512.0)));
            Ok((prediction.get_light_s * 1e9, prediction.binding()))
        },
    },
];
