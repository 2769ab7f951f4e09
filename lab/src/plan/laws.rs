//! Operational laws: from demands and hardware to throughput, latency, and what binds.
//!
//! * Utilization: a resource that serves one operation in D seconds is busy X D of each second, so
//!   X is at most 1 / D, and `units / D` where so many do the same.
//! * Little: N operations under way, each taking R, end N / R times a second.
//! * Bottleneck: the smallest of these bounds holds. The next one is what binds once that is gone.
//!
//! Demands are means. A queue in front of a resource is taken for one with random arrivals and
//! fixed service (M/D/c, after Sakasegawa); that enters the latency at 80 % only.

use super::{Demand, Design, HostFigures, PlanError, Profile, Side, Workload};
use serde::Serialize;

/// What an operation may have to wait for, in the order of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Resource {
    /// The clients' threads.
    ClientCpu,
    /// The client machines' NICs.
    ClientNic,
    /// The client machines' links, towards the servers.
    ClientOut,
    /// The hottest server's link, inwards.
    ServerIn,
    /// The hottest server's NIC.
    ServerNic,
    /// Its way from memory.
    ServerPcie,
    /// Its memory's bandwidth.
    ServerMemory,
    /// Its cores.
    ServerCpu,
    /// Its link, outwards.
    ServerOut,
    /// The client machines' links, inwards.
    ClientIn,
    /// Nothing is busy: clients wait for answers, and have no more operations under way.
    Waiting,
}

impl Resource {
    /// Everything that can be busy.
    pub const BUSY: [Resource; 10] = [
        Resource::ClientCpu,
        Resource::ClientNic,
        Resource::ClientOut,
        Resource::ServerIn,
        Resource::ServerNic,
        Resource::ServerPcie,
        Resource::ServerMemory,
        Resource::ServerCpu,
        Resource::ServerOut,
        Resource::ClientIn,
    ];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Resource::ClientCpu => "client CPU",
            Resource::ClientNic => "client NIC",
            Resource::ClientOut | Resource::ClientIn => "client wire",
            Resource::ServerNic => "server NIC",
            Resource::ServerIn | Resource::ServerOut => "server wire",
            Resource::ServerPcie => "server PCIe",
            Resource::ServerMemory => "memory",
            Resource::ServerCpu => "server CPU",
            Resource::Waiting => "latency",
        }
    }
}

/// One resource under a design.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Which.
    pub resource: Resource,
    /// How long one unit of it is busy with one operation, in seconds.
    pub busy_s: f64,
    /// Operations a second of the whole system at which it is always busy.
    pub ops_per_s: f64,
}

/// What the model says of one design.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The design's name.
    pub name: String,
    /// Whose CPU looks a key up.
    pub side: Side,
    /// READs or messages of a GET.
    pub exchanges: f64,
    /// Bytes that a GET fetches.
    pub fetched_bytes: f64,
    /// Memory at each server.
    pub server_bytes: f64,
    /// Memory at each client machine.
    pub client_bytes: f64,
    /// Why it cannot be had, if so.
    pub impossible: Option<String>,
    /// The bounds, the lowest first.
    pub bounds: Vec<Load>,
    /// Operations a second with the workload's clients.
    pub ops_per_s: f64,
    /// Operations a second if these clients had enough operations under way.
    pub ops_saturated_per_s: f64,
    /// GETs a second at each server.
    pub gets_per_server_per_s: f64,
    /// The usual GET when nothing else is under way, in seconds: as many round trips as half of
    /// the GETs need.
    pub get_light_s: f64,
    /// The mean GET at 80 % of saturation, in seconds.
    pub get_busy_s: f64,
    /// Clients that fill what binds at the servers; `None` if clients do everything by themselves.
    pub clients_to_saturate: Option<f64>,
    /// Cores that each server spends, at `ops_per_s`.
    pub server_cores: f64,
}

impl Prediction {
    /// What binds.
    pub fn binding(&self) -> Resource {
        self.bounds.first().map_or(Resource::Waiting, |bound| bound.resource)
    }

    /// What binds once that is gone: the lowest bound of another name.
    pub fn next(&self) -> Option<&Load> {
        self.bounds.iter().find(|bound| bound.resource.name() != self.binding().name())
    }
}

/// A workload on hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// What is asked.
    pub workload: Workload,
    /// What there is.
    pub profile: Profile,
    /// The share of operations that the hottest server gets.
    hottest: f64,
    /// The chance that two operations are of one key.
    same_key: f64,
}

/// Bytes that each packet of PCIe carries besides at most 256 of payload (header, framing, CRC).
const PCIE_HEADER: f64 = 24.0;
const PCIE_PAYLOAD: f64 = 256.0;
const LINE: f64 = 64.0;

/// How long a slot is odd while it is rewritten: some 200 instructions.
const SLOT_WRITE_S: f64 = 100e-9;

/// The sum of 1/k^s for k from 1 to n: the first terms one by one, the others by the integral of
/// Euler and Maclaurin. Exact to 1e-9 for the exponents allowed here.
pub(crate) fn harmonic(n: f64, s: f64) -> f64 {
    const FIRST: f64 = 1000.0;
    let head: f64 = (1..=n.min(FIRST) as u64).map(|k| (k as f64).powf(-s)).sum();
    if n <= FIRST {
        return head;
    }
    let integral = if (s - 1.0).abs() < 1e-9 {
        (n / FIRST).ln()
    } else {
        (n.powf(1.0 - s) - FIRST.powf(1.0 - s)) / (1.0 - s)
    };
    head + integral + (n.powf(-s) - FIRST.powf(-s)) / 2.0
}

/// The mean wait in a queue with random arrivals, fixed service, `units` servers, each busy for
/// `busy` of its time.
pub(crate) fn wait(service_s: f64, busy: f64, units: f64) -> f64 {
    let busy = busy.clamp(0.0, 0.999);
    service_s * busy.powf((2.0 * (units + 1.0)).sqrt() - 1.0) / (units * (1.0 - busy)) / 2.0
}

impl System {
    /// A system of this workload on machines of this profile.
    ///
    /// # Errors
    /// [`PlanError::Number`] when a number of the workload is out of range.
    pub fn new(workload: Workload, profile: Profile) -> Result<System, PlanError> {
        workload.check()?;
        let (keys, zipf, servers) = (workload.keys as f64, workload.zipf, f64::from(workload.servers));
        let all = harmonic(keys, zipf);
        // The hottest key is on one server; the others spread evenly.
        let hottest = 1.0 / servers + (1.0 - 1.0 / servers) / all;
        let same_key = harmonic(keys, 2.0 * zipf) / (all * all);
        Ok(System { workload, profile, hottest, same_key })
    }

    fn clients(&self) -> f64 {
        self.workload.clients.into()
    }

    /// Operations that one client can have under way.
    pub(crate) fn depth(&self, demand: &Demand) -> f64 {
        let asked = f64::from(self.workload.depth);
        let Some(nic) = &self.profile.nic else {
            // Loads from memory: one core does one GET after the other.
            return 1.0;
        };
        if demand.reads == 0.0 {
            return asked;
        }
        let at_once = (demand.reads / demand.trips.max(1e-9)).max(1.0);
        asked.min(nic.outstanding.value * f64::from(self.workload.servers) / at_once).max(1.0)
    }

    /// The share of the NIC's rate that is left, at a client machine and at a server.
    pub(crate) fn nic_shares(&self, demand: &Demand) -> (f64, f64) {
        let Some(nic) = &self.profile.nic else { return (1.0, 1.0) };
        let threads = self.clients().min(self.workload.clients_per_machine.into());
        let in_flight = threads * self.depth(demand) * demand.exchanges() / demand.trips.max(1.0);
        let client_pairs = threads * f64::from(self.workload.servers);
        (nic.pairs.at(client_pairs) * nic.in_flight.at(in_flight), nic.pairs.at(self.clients()))
    }

    /// How long one unit of a resource is busy with one operation, in seconds.
    pub fn busy_s(&self, resource: Resource, demand: &Demand, shares: (f64, f64)) -> f64 {
        let HostFigures { clock_ghz, per_cycle, memory_ns, memory_gbyte_per_s, .. } = &self.profile.host;
        let ns = |instructions: f64, lines: f64| {
            instructions / (clock_ghz.value * per_cycle.value) + lines * memory_ns.value
        };
        let exchanges = demand.exchanges();
        let memory = |bytes: f64| bytes / (memory_gbyte_per_s.value * 1e9);
        let Some(nic) = &self.profile.nic else {
            return match resource {
                // What goes by message on a network goes by mailbox here.
                Resource::ClientCpu => {
                    ns(demand.client_instructions, demand.client_lines + demand.hint_lines) * 1e-9
                }
                Resource::ServerCpu => {
                    (ns(demand.server_instructions, demand.server_lines) + demand.server_ns) * 1e-9
                }
                Resource::ServerMemory => memory(demand.touched_lines * LINE),
                _ => 0.0,
            };
        };
        let byte_s = 8e-9 / nic.wire_gbit_per_s.value;
        let header = nic.header_bytes.value;
        let pieces = |bytes: f64, most: f64| exchanges * (bytes / exchanges.max(1e-9) / most).ceil().max(1.0);
        let towards = || (exchanges * header + demand.sent_bytes) * byte_s;
        let back = || (demand.fetched_bytes + pieces(demand.fetched_bytes, nic.mtu.value) * header) * byte_s;
        match resource {
            Resource::ClientCpu => {
                // Landed bytes are in the cache: what waits for memory is the other side's.
                let local = if exchanges == 0.0 { demand.client_lines } else { 0.0 };
                let posted = exchanges * nic.post_ns.value + demand.doorbells * nic.doorbell_ns.value;
                (ns(demand.client_instructions, local + demand.hint_lines) + posted) * 1e-9
            }
            Resource::ClientNic => exchanges / (nic.reads_per_s.value * shares.0),
            Resource::ServerNic => exchanges / (nic.reads_per_s.value * shares.1),
            Resource::ClientOut | Resource::ServerIn => towards(),
            Resource::ServerPcie => {
                let packets = pieces(demand.fetched_bytes, PCIE_PAYLOAD);
                (demand.fetched_bytes + packets * PCIE_HEADER) / (nic.pcie_gbyte_per_s.value * 1e9)
            }
            Resource::ServerMemory => memory(demand.fetched_bytes.max(LINE * exchanges)),
            Resource::ServerCpu => {
                (ns(demand.server_instructions, demand.server_lines) + demand.server_ns) * 1e-9
            }
            Resource::ServerOut | Resource::ClientIn => back(),
            Resource::Waiting => 0.0,
        }
    }

    /// How many units of a resource share the system's operations, the hottest server's lot counted
    /// for all.
    pub(crate) fn units(&self, resource: Resource) -> f64 {
        match resource {
            Resource::ClientCpu | Resource::Waiting => self.clients(),
            Resource::ClientNic | Resource::ClientOut | Resource::ClientIn => self.workload.machines().into(),
            Resource::ServerCpu => self.profile.host.cores.value / self.hottest,
            _ => 1.0 / self.hottest,
        }
    }

    /// The time on the way that is nobody's work: what a READ of 64 bytes takes, less what each
    /// resource has to do with it.
    pub(crate) fn delay_s(&self) -> f64 {
        let Some(nic) = &self.profile.nic else { return 0.0 };
        let read = Demand { reads: 1.0, trips: 1.0, fetched_bytes: LINE, ..Demand::default() };
        let work: f64 = Resource::BUSY
            .iter()
            .filter(|&&resource| resource != Resource::ClientCpu)
            .map(|&resource| self.busy_s(resource, &read, (1.0, 1.0)))
            .sum();
        (nic.read_us.value * 1e-6 - work).max(0.0)
    }

    /// How long an operation takes when nothing else is under way.
    pub fn light_s(&self, demand: &Demand) -> f64 {
        // Where a client reads memory itself, its lines' way is in its own time.
        let is_way = |resource| self.profile.nic.is_some() || resource != Resource::ServerMemory;
        let way = Resource::BUSY.iter().filter(|&&resource| is_way(resource));
        let work: f64 = way.map(|&resource| self.busy_s(resource, demand, (1.0, 1.0))).sum();
        work + if demand.exchanges() > 0.0 { demand.trips * self.delay_s() } else { 0.0 }
    }

    /// A design's GET with the READs that torn slots cost, at so many PUTs a second.
    pub(crate) fn torn(&self, design: &Design, puts_per_s: f64) -> Demand {
        let again = if design.side == Side::Layout || design.side == Side::OneSided {
            (puts_per_s * SLOT_WRITE_S * self.same_key).min(1.0)
        } else {
            0.0
        };
        design.get.times(1.0 + again)
    }

    fn mixed(&self, design: &Design, puts_per_s: f64) -> (Demand, Demand) {
        let get = self.torn(design, puts_per_s);
        (get, get.times(self.workload.gets).plus(1.0 - self.workload.gets, design.put))
    }

    fn bounds(&self, mix: &Demand) -> Vec<Load> {
        let shares = self.nic_shares(mix);
        let mut bounds: Vec<Load> = Resource::BUSY
            .iter()
            .map(|&resource| (resource, self.busy_s(resource, mix, shares)))
            // Longer than a second for an operation no unit is, shorter than this is nothing.
            .filter(|&(_, busy_s)| busy_s > 1e-15)
            .map(|(resource, busy_s)| Load { resource, busy_s, ops_per_s: self.units(resource) / busy_s })
            .collect();
        bounds.sort_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        bounds
    }

    /// What the laws say of a design.
    pub fn predict(&self, design: &Design) -> Prediction {
        let w = &self.workload;
        // PUTs tear slots, and READs repeated for that leave fewer PUTs: once around is enough.
        let lowest = |bounds: &[Load]| bounds.first().map_or(0.0, |bound| bound.ops_per_s);
        let first = lowest(&self.bounds(&self.mixed(design, 0.0).1));
        let (get, mix) = self.mixed(design, first * (1.0 - w.gets));
        let mut bounds = self.bounds(&mix);
        let saturated = lowest(&bounds);
        let depth = self.depth(&get);
        let put = self.light_s(&design.put);
        let light = w.gets * self.light_s(&get) + (1.0 - w.gets) * put;
        // Without a network, the client's CPU says the same.
        if self.profile.nic.is_some() && light > 0.0 {
            let ops_per_s = self.clients() * depth / light;
            let busy_s = light / depth;
            let at = bounds.iter().position(|bound| bound.ops_per_s > ops_per_s).unwrap_or(bounds.len());
            bounds.insert(at, Load { resource: Resource::Waiting, busy_s, ops_per_s });
        }
        let ops_per_s = lowest(&bounds);
        // Client machines are as full as the workload says, so their bounds grow with the clients.
        let at_clients = |bound: &&Load| {
            use Resource::{ClientCpu, ClientIn, ClientNic, ClientOut, Waiting};
            matches!(bound.resource, ClientCpu | ClientIn | ClientNic | ClientOut | Waiting)
        };
        let of_one = bounds.iter().find(at_clients).map(|bound| bound.ops_per_s / self.clients());
        let at_servers = bounds.iter().find(|bound| !at_clients(bound)).map(|bound| bound.ops_per_s);
        let clients_to_saturate = at_servers.zip(of_one).map(|(servers, one)| servers / one);
        let usual_trips = get.trips.round().max(if get.trips > 0.0 { 1.0 } else { 0.0 });
        let usual = if get.trips > 0.0 { get.times(usual_trips / get.trips) } else { get };
        let shares = self.nic_shares(&mix);
        let queued: f64 = bounds
            .iter()
            .filter(|bound| bound.resource != Resource::Waiting)
            .map(|bound| {
                let visits = get.trips.max(1.0);
                let service = self.busy_s(bound.resource, &get, shares) / visits;
                let cores =
                    if bound.resource == Resource::ServerCpu { self.profile.host.cores.value } else { 1.0 };
                visits * wait(service, 0.8 * saturated / bound.ops_per_s, cores)
            })
            .sum();
        let servers = f64::from(w.servers);
        let keys = w.keys as f64;
        let server_bytes = keys * design.bytes_per_key / servers;
        let client_bytes = keys * design.client_bytes_per_key;
        let room = self.profile.host.memory_gib.value * f64::from(1 << 30);
        let impossible = if server_bytes > room {
            Some(format!("{:.0} GiB at each server, which has {:.0}", server_bytes / GIB, room / GIB))
        } else if client_bytes > w.copy_bytes as f64 {
            Some(format!(
                "{:.2} GiB at each client machine, which may spend {:.2}",
                client_bytes / GIB,
                w.copy_bytes as f64 / GIB
            ))
        } else {
            None
        };
        Prediction {
            name: design.name.clone(),
            side: design.side,
            exchanges: get.exchanges(),
            fetched_bytes: get.fetched_bytes,
            server_bytes,
            client_bytes,
            impossible,
            ops_per_s,
            ops_saturated_per_s: saturated,
            gets_per_server_per_s: ops_per_s * w.gets / servers,
            get_light_s: self.light_s(&usual),
            get_busy_s: self.light_s(&get) + queued,
            clients_to_saturate,
            server_cores: ops_per_s * self.busy_s(Resource::ServerCpu, &mix, shares) / servers,
            bounds,
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// A change, and what it does to the operations a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The change.
    pub change: &'static str,
    /// Operations a second after it over those before it, less 1.
    pub gain: f64,
}

/// What each change by a factor of two would bring, the greatest gain first.
pub fn what_ifs(system: &System, design: &Design) -> Vec<WhatIf> {
    type Varied = fn(&mut System, &mut Design);
    fn nic(system: &mut System, change: impl Fn(&mut super::NicFigures)) {
        system.profile.nic.iter_mut().for_each(change);
    }
    let changes: [(&'static str, Varied); 9] = [
        ("twice the wire", |s, _| nic(s, |nic| nic.wire_gbit_per_s.value *= 2.0)),
        ("a NIC of twice the rate", |s, _| nic(s, |nic| nic.reads_per_s.value *= 2.0)),
        ("twice the PCIe", |s, _| nic(s, |nic| nic.pcie_gbyte_per_s.value *= 2.0)),
        ("half the network's latency", |s, _| nic(s, |nic| nic.read_us.value /= 2.0)),
        ("twice the clients", |s, _| s.workload.clients = s.workload.clients.saturating_mul(2)),
        ("twice the depth", |s, _| s.workload.depth = s.workload.depth.saturating_mul(2)),
        ("twice the server cores", |s, _| s.profile.host.cores.value *= 2.0),
        ("memory of half the latency", |s, _| s.profile.host.memory_ns.value /= 2.0),
        ("half the bytes of a GET", |_, d| d.get.fetched_bytes /= 2.0),
    ];
    let before = system.predict(design).ops_per_s;
    let mut told: Vec<WhatIf> = changes
        .into_iter()
        .map(|(change, apply)| {
            let (mut system, mut design) = (system.clone(), design.clone());
            apply(&mut system, &mut design);
            WhatIf { change, gain: system.predict(&design).ops_per_s / before.max(1e-9) - 1.0 }
        })
        .collect();
    told.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    told
}
