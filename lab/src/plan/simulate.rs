//! A discrete-event run of the same system: where curves bend, and what the tails are.
//!
//! An operation visits its resources in the order of [`Resource::BUSY`], once for each round trip,
//! and queues at each: first come, first served. What a resource takes is what the laws say, so
//! that both agree where nothing queues and where one resource is always busy; what the
//! simulation adds is everything between. Three things are by chance: whether a GET needs one more
//! trip, whether a NIC finds a queue pair in its cache, and whether a PUT begins a split and makes a
//! segment first. Keys are dealt by their popularity, so one server is hotter than the others.
//!
//! The queue of events is a [`BinaryHeap`]. The event-queue crates bring executors or graphs of
//! models; what is needed here is the earliest of some thousand numbers.

use super::{Demand, Design, PlanError, Resource, System, within};
use hdrhistogram::Histogram;
use oneread::internals::layout::hash::{mix, reduce};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How operations come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Arrivals {
    /// Each client has so many under way as the workload's depth says.
    Closed,
    /// So many a second come at random, whatever is under way.
    Open(f64),
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Operations to finish. The first quarter warms up and is not counted.
    pub operations: u64,
    /// How they come.
    pub arrivals: Arrivals,
    /// Runs of one seed are equal.
    pub seed: u64,
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Measured {
    /// Operations a second.
    pub ops_per_s: f64,
    /// Half of the GETs are as fast, in seconds. Without GETs, of the PUTs.
    pub p50_s: f64,
    /// 99 of a hundred.
    pub p99_s: f64,
    /// 999 of a thousand.
    pub p999_s: f64,
    /// The mean of all operations.
    pub mean_s: f64,
    /// The resource that was busy for most of its time, and for how much of it.
    pub busiest: (Resource, f64),
}

/// Picoseconds: a run of hours fits, and nothing is rounded away.
type Ps = u64;

fn ps(seconds: f64) -> Ps {
    (seconds * 1e12).round() as Ps
}

/// Where a resource's queues are.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Client,
    Machine,
    Server,
}

/// A resource on the way.
struct Stage {
    resource: Resource,
    place: Place,
    /// How long one trip of a GET and of a PUT takes here.
    trip: [Ps; 2],
    /// The chance that a NIC misses its cache, and what that costs.
    miss: (f64, [Ps; 2]),
    /// The chance that a trip of a PUT begins a split, and what that costs.
    pause: (f64, Ps),
    /// When each unit at each place is free.
    free: Vec<Ps>,
    units: usize,
    /// What was asked of each place, also what is still to be done.
    asked: Vec<Ps>,
    /// What was done when the run was warm.
    warm: Vec<Ps>,
    /// Time on the way before this stage.
    before: [Ps; 2],
}

impl Stage {
    /// How long a place was busy until now. First come, first served: what is still to be done is done
    /// from now on without a pause.
    fn busy(&self, place: usize, now: Ps) -> Ps {
        let units = &self.free[place * self.units..][..self.units];
        self.asked[place] - units.iter().map(|free| free.saturating_sub(now)).sum::<Ps>()
    }
}

/// An operation under way.
#[derive(Clone, Copy)]
struct Op {
    began: Ps,
    client: u32,
    server: u32,
    /// The next stage; after the last, the way back.
    stage: u8,
    trips: u16,
    class: u8,
}

struct Simulation<'a> {
    system: &'a System,
    stages: Vec<Stage>,
    /// Time on the way after the last stage.
    after: [Ps; 2],
    trips: [f64; 2],
    rng: SmallRng,
    popular: Option<Zipf<f64>>,
    ops: Vec<Op>,
    events: BinaryHeap<Reverse<(Ps, u32)>>,
}

// What the memory of a run is bounded by.
const CLIENTS_MAX: u32 = 10_000;
const SERVERS_MAX: u32 = 100;

impl Simulation<'_> {
    fn new<'a>(system: &'a System, design: &Design, run: &Run, puts_per_s: f64) -> Simulation<'a> {
        let w = &system.workload;
        let classes = [system.torn(design, puts_per_s), design.put];
        let mix = classes[0].times(w.gets).plus(1.0 - w.gets, classes[1]);
        let shares = system.nic_shares(&mix);
        // What a client does by itself has no way to go.
        let delay =
            classes.map(|demand| if demand.exchanges() > 0.0 { ps(system.delay_s() / 2.0) } else { 0 });
        // Whatever needs no network needs one visit.
        let trips = classes.map(|demand| demand.trips.max(1.0));
        let is_direct = system.profile.nic.is_none();
        let mut stages = Vec::new();
        for resource in Resource::BUSY {
            if is_direct && resource == Resource::ServerMemory {
                // Its lines' way is in the client's own time.
                continue;
            }
            let place = match resource {
                Resource::ClientCpu => Place::Client,
                Resource::ClientNic | Resource::ClientOut | Resource::ClientIn => Place::Machine,
                _ => Place::Server,
            };
            let share = match resource {
                Resource::ClientNic => shares.0,
                Resource::ServerNic => shares.1,
                _ => 1.0,
            };
            let of = |i: usize| system.busy_s(resource, &classes[i], (1.0, 1.0)) / trips[i];
            let mut trip = [of(0), of(1)];
            let mut pause = (0.0, 0.0);
            if let Some(split) = design.pause.filter(|_| resource == Resource::ServerCpu) {
                // Out of the mean, and now and then whole.
                pause = ((split.chance / trips[1]).min(1.0), split.ns * 1e-9);
                trip[1] = (trip[1] - pause.0 * pause.1).max(0.0);
            }
            if trip.iter().all(|&s| s < 1e-15) {
                continue;
            }
            let places = match place {
                Place::Client => w.clients,
                Place::Machine => w.machines(),
                Place::Server => w.servers,
            } as usize;
            let cores = system.profile.host.cores.value;
            let units = if resource == Resource::ServerCpu { (cores.round() as usize).max(1) } else { 1 };
            // A part of a core is a slower core.
            let slower = if resource == Resource::ServerCpu { units as f64 / cores } else { 1.0 };
            stages.push(Stage {
                resource,
                place,
                trip: trip.map(|s| ps(s * slower)),
                // A miss comes with chance 1 - share and costs 1 / share: the mean is 1 / share.
                miss: (1.0 - share, trip.map(|s| ps(s / share))),
                pause: (pause.0, ps(pause.1 * slower)),
                free: vec![0; places * units],
                asked: vec![0; places],
                warm: vec![0; places],
                units,
                before: [0; 2],
            });
        }
        // Half of the way out before the first stage at a server, half back before the first after.
        if let Some(first) = stages.iter_mut().find(|stage| stage.place == Place::Server) {
            first.before = delay;
        }
        let last_server = stages.iter().rposition(|stage| stage.place == Place::Server);
        let mut after = [0; 2];
        if let Some(last) = last_server {
            match stages.get_mut(last + 1) {
                Some(next) => next.before = delay,
                None => after = delay,
            }
        }
        let popular = Zipf::new(w.keys as f64, w.zipf).ok().filter(|_| w.zipf > 0.0);
        Simulation {
            system,
            stages,
            after,
            trips,
            rng: SmallRng::seed_from_u64(run.seed),
            popular,
            ops: Vec::new(),
            events: BinaryHeap::new(),
        }
    }

    /// A new operation of a client, at some time.
    fn begin(&mut self, number: u32, client: u32, at: Ps) {
        let w = &self.system.workload;
        let class = u8::from(!self.rng.random_bool(w.gets));
        let rank = match &self.popular {
            Some(ranks) => ranks.sample(&mut self.rng) as u64,
            None => self.rng.random(),
        };
        let server = reduce(mix(rank), u64::from(w.servers)) as u32;
        let mean = self.trips[usize::from(class)];
        let more = self.rng.random_bool(mean.fract());
        let trips = mean.floor().min(1000.0) as u16 + u16::from(more);
        self.ops[number as usize] = Op { began: at, client, server, stage: 0, trips, class };
        self.events.push(Reverse((at, number)));
    }

    /// Takes an operation through its next stage. Returns whether it has ended.
    fn step(&mut self, now: Ps, number: u32) -> bool {
        let op = &mut self.ops[number as usize];
        let class = usize::from(op.class);
        let Some(stage) = self.stages.get_mut(usize::from(op.stage)) else {
            op.trips -= 1;
            op.stage = 0;
            if op.trips > 0 {
                self.events.push(Reverse((now, number)));
            }
            return op.trips == 0;
        };
        let place = match stage.place {
            Place::Client => op.client,
            Place::Machine => op.client / self.system.workload.clients_per_machine,
            Place::Server => op.server,
        } as usize;
        let mut takes = stage.trip[class];
        if stage.miss.0 > 0.0 && self.rng.random_bool(stage.miss.0) {
            takes += stage.miss.1[class];
        }
        if class == 1 && stage.pause.0 > 0.0 && self.rng.random_bool(stage.pause.0) {
            takes += stage.pause.1;
        }
        let units = &mut stage.free[place * stage.units..][..stage.units];
        // First come, first served: the unit that is free first takes it.
        let mut until = now;
        if takes > 0
            && let Some(first) = units.iter_mut().min()
        {
            until = now.max(*first) + takes;
            *first = until;
            stage.asked[place] += takes;
        }
        op.stage += 1;
        let way = self.stages.get(usize::from(op.stage)).map_or(self.after[class], |next| next.before[class]);
        self.events.push(Reverse((until + way, number)));
        false
    }

    /// From now on it is measured.
    fn is_warm(&mut self, now: Ps) {
        for stage in &mut self.stages {
            stage.warm = (0..stage.asked.len()).map(|place| stage.busy(place, now)).collect();
        }
    }

    /// The share of its time that the busiest unit of a resource was busy, since it was warm.
    fn busiest(&self, since: Ps, now: Ps) -> (Resource, f64) {
        let share = |stage: &Stage| {
            let each = stage.warm.iter().enumerate();
            let most = each.map(|(place, &warm)| stage.busy(place, now) - warm).max().unwrap_or(0);
            most as f64 / (stage.units as f64 * (now - since).max(1) as f64)
        };
        let each = self.stages.iter().map(|stage| (stage.resource, share(stage)));
        each.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Resource::Waiting, 0.0))
    }
}

impl System {
    /// Runs the system. `progress` hears of each 65,536 operations.
    ///
    /// # Errors
    /// [`PlanError::Number`]: at most 10,000 clients and 100 servers, and 1,000 to 1e9 operations.
    pub fn simulate(
        &self,
        design: &Design,
        run: Run,
        mut progress: impl FnMut(u64),
    ) -> Result<Measured, PlanError> {
        let w = &self.workload;
        within("clients of a simulation", w.clients.into(), 1.0, CLIENTS_MAX.into())?;
        within("servers of a simulation", w.servers.into(), 1.0, SERVERS_MAX.into())?;
        within("operations of a simulation", run.operations as f64, 1e3, 1e9)?;
        if let Arrivals::Open(per_s) = run.arrivals {
            within("operations a second", per_s, 1e-3, 1e12)?;
        }
        let law = self.predict(design);
        let puts_per_s = law.ops_per_s * (1.0 - w.gets);
        let mut world = Simulation::new(self, design, &run, puts_per_s);
        let depth = self.depth(&mixed(design, w.gets)).floor().max(1.0) as u32;
        let nothing = Op { began: 0, client: 0, server: 0, stage: 0, trips: 1, class: 0 };
        let mut gap = None;
        match run.arrivals {
            Arrivals::Closed => {
                within("operations under way", f64::from(w.clients) * f64::from(depth), 1.0, 1e6)?;
                world.ops = vec![nothing; (w.clients * depth) as usize];
                // Clients do not start at one instant: within the time of one operation.
                let spread = ps(self.light_s(&design.get)).max(1);
                for number in 0..world.ops.len() as u32 {
                    let at = world.rng.random_range(0..spread);
                    world.begin(number, number / depth, at);
                }
            }
            Arrivals::Open(per_s) => {
                gap = Some(1e12 / per_s);
                world.ops = vec![nothing];
                let client = world.rng.random_range(0..w.clients);
                world.begin(0, client, 0);
            }
        }
        // In nanoseconds, to three digits, up to a quarter of an hour.
        let mut latencies = Histogram::<u64>::new_with_max(1_000_000_000_000, 3).map_err(|_| {
            PlanError::Number { what: "digits of a histogram", given: 3.0, least: 0.0, most: 5.0 }
        })?;
        let counts_puts = w.gets == 0.0;
        let warm = run.operations / 4;
        let (mut ended, mut since, mut now, mut sum) = (0, 0, 0, 0u128);
        let mut idle: Vec<u32> = Vec::new();
        let mut next_arrival: Ps = 0;
        while ended < run.operations {
            let Some(Reverse((at, number))) = world.events.pop() else { break };
            now = at;
            if let Some(gap) = gap
                && world.ops[number as usize].stage == 0
                && world.ops[number as usize].began == at
                && at >= next_arrival
            {
                // The newest arrival calls the next one.
                let wait = -(1.0 - world.rng.random::<f64>()).ln() * gap;
                next_arrival = at + (wait as Ps).max(1);
                let client = world.rng.random_range(0..w.clients);
                let next = idle.pop().unwrap_or_else(|| {
                    world.ops.push(nothing);
                    world.ops.len() as u32 - 1
                });
                world.begin(next, client, next_arrival);
            }
            if !world.step(at, number) {
                continue;
            }
            let op = world.ops[number as usize];
            ended += 1;
            if ended == warm {
                since = at;
                world.is_warm(at);
            } else if ended > warm {
                sum += u128::from(at - op.began);
                if op.class == 0 || counts_puts {
                    latencies.saturating_record((at - op.began) / 1000);
                }
            }
            if ended & 0xffff == 0 {
                progress(0x1_0000);
            }
            match run.arrivals {
                Arrivals::Closed => world.begin(number, op.client, at),
                Arrivals::Open(_) => idle.push(number),
            }
        }
        let counted = (ended - warm).max(1);
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 * 1e-9;
        Ok(Measured {
            ops_per_s: counted as f64 / ((now - since).max(1) as f64 * 1e-12),
            p50_s: at(0.5),
            p99_s: at(0.99),
            p999_s: at(0.999),
            mean_s: sum as f64 / counted as f64 * 1e-12,
            busiest: world.busiest(since, now),
        })
    }
}

fn mixed(design: &Design, gets: f64) -> Demand {
    design.get.times(gets).plus(1.0 - gets, design.put)
}
