//! A world: machines, clients, links, an etcd, clocks, and what goes wrong.

use crate::Broken;
use crate::clients::Client;
use crate::followers::Followers;
use crate::history::{Event, due_of};
use crate::machine::{Machine, Stored, key_of, number_of};
use crate::owning::Owning;
use oneread_cluster::core::adopt;
use oneread_cluster::core::etcd::{At, CallId, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use oneread_cluster::core::hash::ShardHash;
use oneread_cluster::core::message::{
    Effect, Kind, Message as NodeMessage, Outcome, Peer, Reply, Request, Wanted,
};
use oneread_cluster::core::node::Standing;
use oneread_cluster::core::outbox::Output;
use oneread_cluster::core::placement::Wishes;
use oneread_cluster::core::shard::Role;
use oneread_cluster::core::state::{
    Adoption, ClusterConfig, NodeId, NodeIds, Page, ShardIx, ShardState, Time, Timing,
};
use oneread_cluster::core::{own, results};
use oneread_cluster::faults::Rule;
use std::collections::{BTreeMap, BTreeSet};

/// How far the rate of a clock may be from true time.
const RATES: f64 = 0.10;
/// Microseconds of a tick, by a clock that is right.
pub const TICK: f64 = 1_000.0;
/// Ticks after which a node whose key has not changed may be deposed.
const TTL: u64 = 150;
/// The first ticks, in which nothing goes wrong; a world's length; how much of that is calm, at its end.
pub const WARM: u32 = 120;
pub const TICKS: u32 = 1_750;
pub const CALM: u32 = 600;
/// The last ticks, in which nobody hands over any more.
const LAST: u32 = 250;
/// Ticks that a world goes on at most until each shard is served, and has no owners.
const MORE: u32 = 1_000;

/// By how many ticks the time of day differs from machine to machine, at most.
pub const SKEW: u32 = 20;

pub const MACHINES: usize = 3;
pub const CLIENTS: usize = 3;
pub const SHARDS: usize = 2;
pub const KEYS: u8 = 2;
/// Processes: the machines' nodes, then the clients, then etcd.
pub const ETCD: usize = MACHINES + CLIENTS;
pub const PROCESSES: usize = ETCD + 1;
pub const NOT_SERVED: &str = "not served at the end";

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// From 0 up to 1.
    pub fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.part() < p
    }

    pub fn one<X: Clone>(&mut self, of: &[X]) -> X {
        of[self.below(of.len())].clone()
    }
}

/// What a world is like. Each is drawn from its seed, and much is left out of most worlds: what is rare where
/// everything happens is frequent somewhere.
pub struct Nature {
    pub shards: usize,
    pub keys: u8,
    pub timing: Timing,
    pub stop: f64,
    pub cut: f64,
    pub mend: f64,
    pub kill: f64,
    pub wipe: f64,
    pub restore: f64,
    pub loss: f64,
    pub late: f64,
    pub hand_over: f64,
    pub impatience: f64,
    pub join: f64,
    pub shrink: f64,
    pub evict: f64,
    /// Entries leave where there is no room for others, at nearly all machines.
    pub evicts: bool,
    /// How many of the entries that are put have an end.
    pub lives: f64,
    /// Entries have owners.
    pub owners: bool,
    pub ids: f64,
    pub repeat: f64,
    pub gives_up: f64,
    pub by_request: f64,
    pub gets: f64,
    pub removes: f64,
    /// How many changes are swaps, beside those that are so in any world.
    pub swaps: f64,
    /// READs that take long, are torn, or are sampled when the cell is stored to.
    pub hang: f64,
    pub torn: f64,
    pub lurk: f64,
    /// How often a node does what is due.
    pub ticks: f64,
    /// A process that wakes works off what has come one by one.
    pub slow: bool,
    /// How likely something goes wrong right after a step of each kind.
    pub moments: [f64; MOMENTS],
}

/// What is sure to happen at some time in a world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plot {
    None,
    Deposed,
    Successor,
    Newcomers,
    LeftOut,
    Displaced,
    Restored,
}

/// By how often.
const PLOTS: [(Plot, usize); 7] = [
    (Plot::None, 2),
    (Plot::Deposed, 5),
    (Plot::Successor, 4),
    (Plot::Newcomers, 3),
    (Plot::LeftOut, 3),
    (Plot::Displaced, 3),
    (Plot::Restored, 1),
];

/// What the third machine is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Third {
    Usual,
    /// Only etcd sees it.
    Hidden,
}
const THIRD: usize = 2;

/// Steps after which a fault is likely.
#[derive(Clone, Copy)]
pub enum Moment {
    Beat,
    Transaction,
    Began,
    Taken,
    Visible,
    Closed,
    Learned,
    Started,
    Issued,
    Joined,
}
const MOMENTS: usize = 10;

impl Nature {
    fn draw(random: &mut Random) -> Nature {
        let r = random;
        let wipe = r.one(&[0.0, 0.0, 0.0, 0.001]);
        let mut moments = [0.0; MOMENTS];
        for moment in &mut moments {
            *moment = r.one(&[0.0, 0.0, 0.0, 0.02, 0.2]);
        }
        let ticks = |n: u64| n * TICK as u64;
        let timing = Timing {
            ttl: ticks(TTL),
            rates: (RATES * 1e6) as u32,
            beat: ticks(r.one(&[2, 4, 8])),
            call: ticks(r.one(&[8, 15, 30])),
            resend: ticks(r.one(&[3, 5, 10])),
            late: ticks(r.one(&[10, 25, 60])),
            place: ticks(r.one(&[0, 0, 0, 30])),
        };
        Nature {
            shards: r.one(&[1, 1, 2]),
            keys: r.one(&[1, 1, 2]),
            timing,
            stop: r.one(&[0.0, 0.003, 0.01]),
            cut: r.one(&[0.0, 0.002, 0.006]),
            mend: r.one(&[0.0, 0.002, 0.008]),
            kill: r.one(&[0.0, 0.0, 0.001, 0.004]),
            // Who loses an etcd and a node's memory at once may lose what was acknowledged (docs/CLUSTER.md).
            restore: if wipe == 0.0 { r.one(&[0.0, 0.0, 0.004]) } else { 0.0 },
            wipe,
            loss: r.one(&[0.0, 0.03, 0.1]),
            late: r.one(&[0.0, 0.05, 0.2]),
            hand_over: r.one(&[0.0, 0.002, 0.01, 0.03]),
            impatience: r.one(&[0.0, 0.003, 0.02]),
            join: r.one(&[0.02, 0.1]),
            shrink: r.one(&[0.0, 0.02, 0.1]),
            evict: r.one(&[0.0, 0.0, 0.003, 0.01]),
            evicts: false,
            lives: 0.0,
            owners: false,
            ids: r.one(&[0.0, 0.5, 1.0]),
            repeat: r.one(&[0.01, 0.05, 0.2]),
            gives_up: r.one(&[0.01, 0.05, 0.1]),
            by_request: r.one(&[0.0, 0.0, 0.3]),
            gets: r.one(&[0.4, 0.6, 0.8]),
            removes: r.one(&[0.0, 0.0, 0.2]),
            swaps: 0.0,
            hang: r.one(&[0.0, 0.0, 0.1]),
            torn: r.one(&[0.0, 0.2, 0.6]),
            lurk: r.one(&[0.0, 0.3]),
            ticks: r.one(&[0.3, 0.6, 0.9]),
            slow: r.chance(0.3),
            moments,
        }
    }
}

/// What happened, by name and how often.
pub type Counts = BTreeMap<&'static str, u64>;

/// What goes over a link.
#[derive(Clone, Debug)]
pub enum Message {
    /// To etcd, from this process; a process that starts again hears nothing of it.
    Call {
        from: usize,
        process: u32,
        call: CallId,
        what: EtcdCall,
    },
    Answer {
        process: u32,
        answer: EtcdAnswer,
    },
    /// Between nodes.
    Node {
        to: NodeId,
        from: NodeId,
        message: NodeMessage,
    },
    Request {
        to: NodeId,
        client: usize,
        request: Request,
    },
    /// A GET by request, answered by whatever the process finds, with its page.
    Get {
        to: NodeId,
        client: usize,
        copy: u64,
        shard: ShardIx,
        key: u8,
    },
    Reply {
        reply: Reply,
    },
    Value {
        copy: u64,
        node: NodeId,
        value: u64,
        page: Page,
    },
}

/// etcd: a register a key.
#[derive(Clone)]
pub struct Etcd {
    pub id: u64,
    pub revision: At,
    pub entries: BTreeMap<EtcdKey, (EtcdValue, At)>,
}

impl Etcd {
    pub fn adoption(&self) -> Adoption {
        match self.entries[&EtcdKey::Adoption].0 {
            EtcdValue::Adoption(adoption) => adoption,
            _ => unreachable!(),
        }
    }

    pub fn shard(&self, shard: usize) -> &ShardState {
        match &self.entries[&EtcdKey::Shard(shard as ShardIx)].0 {
            EtcdValue::Shard(state) => state,
            _ => unreachable!(),
        }
    }

    pub fn is_adopted(&self) -> bool {
        self.adoption().etcd == self.id
    }

    fn put(&mut self, key: EtcdKey, value: EtcdValue) {
        self.revision += 1;
        self.entries.insert(key, (value, self.revision));
    }

    fn entry(&self, key: EtcdKey) -> Entry {
        let entry = self.entries.get(&key);
        Entry { key, value: entry.map(|entry| entry.0.clone()), at: entry.map_or(0, |entry| entry.1) }
    }

    fn answer(&self, call: CallId, is_done: bool, keys: impl IntoIterator<Item = EtcdKey>) -> EtcdAnswer {
        let entries = keys.into_iter().map(|key| self.entry(key)).collect();
        EtcdAnswer { call, is_watched: false, etcd: self.id, revision: self.revision, is_done, entries }
    }
}

/// Why a shard's state was changed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    Claim,
    Takeover,
    HandOver,
    Shrink,
    Grow,
    Again,
}

pub struct World {
    pub random: Random,
    /// For what came later: with it or without, a world is the same for the rest.
    pub apart: Random,
    pub broken: Broken,
    pub nature: Nature,
    pub time: u32,
    rates: [f64; PROCESSES],
    /// Until when: a link, from one to another; a process that stands still; one to which watches bring nothing.
    pub cut: [[u32; PROCESSES]; PROCESSES],
    pub stopped: [u32; PROCESSES],
    pub deaf: [u32; PROCESSES],
    slow_link: Option<(usize, usize)>,
    pub plot: Plot,
    pub plot_at: u32,
    /// A node whose beats are lost from some time on.
    silent: Option<(usize, u32)>,
    /// Who is made primary next by hand-overs.
    next: Option<usize>,
    /// A client that only reads.
    pub reader: Option<usize>,
    inbox: [Vec<(u32, Message)>; PROCESSES],
    pub etcd: Etcd,
    backup: Etcd,
    /// Who watches: which process there, from which of its READs on.
    watches: [Option<(u32, CallId)>; PROCESSES],
    pub machines: Vec<Machine>,
    names: u64,
    /// Who is to be in sync when the warm time is over, and primary.
    wanted: [(usize, usize); SHARDS],
    pub clients: Vec<Client>,
    pub followers: Followers,
    pub owning: Owning,
    third: Third,
    /// Memories are copied, and the copies are put back.
    copies: Option<Random>,
    /// Processes that have answered a primary as standbys.
    answered: BTreeSet<(usize, u32, ShardIx)>,
    /// When processes are killed in the middle of what they do.
    fuses: Random,
    pub history: Vec<Event>,
    pub value: u64,
    pub copy: u64,
    /// Removals by the primary itself: which machine's process, the copy, and the event.
    evictions: Vec<((usize, u32, u64), usize)>,
    /// What was wrong beside the history.
    pub wrong: Option<String>,
    pub counts: Counts,
    /// Prints what happens.
    pub traces: bool,
}

// The world, etcd and the operator.
impl World {
    pub fn new(seed: u64, broken: Broken) -> World {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut nature = Nature::draw(&mut random);
        let mut plots = PLOTS.iter().flat_map(|&(plot, times)| std::iter::repeat_n(plot, times));
        let plot = plots.nth(random.below(PLOTS.iter().map(|plot| plot.1).sum())).unwrap();
        let plot = if plot == Plot::Restored && nature.wipe > 0.0 { Plot::Deposed } else { plot };
        match plot {
            Plot::Successor => {
                nature.shards = random.one(&[1, 2]);
                (nature.hand_over, nature.shrink) = (0.0, 0.002);
            }
            Plot::Displaced => nature.ids = 1.0,
            Plot::Restored => nature.restore = 0.0,
            // The standby that answers late is not left out.
            Plot::Newcomers if random.chance(0.7) => nature.timing.late = (2_000.0 * TICK) as Time,
            _ => {}
        }
        let is_quiet = plot != Plot::None && random.chance(0.7);
        if is_quiet {
            nature.moments = [0.0; MOMENTS];
            (nature.stop, nature.cut, nature.kill, nature.wipe, nature.evict) = (0.0, 0.0, 0.0, 0.0, 0.0);
            (nature.loss, nature.impatience) = (0.02, 0.0);
            (nature.gets, nature.keys) = (random.one(&[0.4, 0.6]), random.one(&[1, 1, 2]));
        }
        // Drawn apart: the other worlds are as if there were none of these.
        let mut apart = Random(seed ^ 0xe71c);
        if !is_quiet && apart.chance(0.5) {
            (nature.evicts, nature.keys, nature.ids) = (true, KEYS, apart.one(&[0.0, 1.0, 1.0]));
        }
        if apart.chance(0.2) {
            nature.lives = apart.one(&[0.3, 0.9]);
        }
        let owning = Owning::new(seed);
        nature.owners = owning.are_there;
        // Sessions last, and copies come and go; often one of them answers slowly, and is waited for.
        let lasts = nature.owners && apart.chance(0.6);
        if lasts {
            nature.moments = [0.0; MOMENTS];
            (nature.stop, nature.cut, nature.kill, nature.wipe, nature.restore) = (0.0, 0.0, 0.0, 0.0, 0.0);
            (nature.gets, nature.ids, nature.keys) = (0.4, apart.one(&[0.0, 1.0]), apart.one(&[1, 2]));
            (nature.hand_over, nature.shrink, nature.join) = (apart.one(&[0.0, 0.01]), 0.02, 0.1);
            nature.swaps = apart.one(&[0.3, 0.8]);
        }
        let waits_for = apart.one(&[1, 2]);
        let waits_for = Some(waits_for).filter(|_| lasts && apart.chance(0.2));
        if waits_for.is_some() || lasts && apart.chance(0.7) {
            (nature.hand_over, nature.shrink, nature.timing.late) = (0.0, 0.0, (600.0 * TICK) as Time);
            (nature.late, nature.loss) = (apart.one(&[0.1, 0.4]), 0.0);
        }
        // These are of worlds of their own.
        let mut own = Random(seed ^ 0x7412);
        let third = match own.below(12) {
            0 => Third::Hidden,
            _ => Third::Usual,
        };
        let plot = if third == Third::Usual { plot } else { Plot::None };
        if third != Third::Usual {
            (nature.moments, nature.evicts, nature.timing.place) =
                ([0.0; MOMENTS], false, (30.0 * TICK) as Time);
            (nature.stop, nature.cut, nature.wipe, nature.restore, nature.evict) = (0.0, 0.0, 0.0, 0.0, 0.0);
            (nature.hand_over, nature.join, nature.impatience) = (0.0, 0.0, 0.0);
            nature.timing.late = own.one(&[25, 60]) * TICK as Time;
        }
        let is_copied =
            nature.wipe == 0.0 && nature.restore == 0.0 && plot != Plot::Restored && own.chance(0.2);
        let in_sync = match plot {
            Plot::Successor => 3,
            Plot::Displaced => 2,
            _ => 2 + random.below(2),
        };
        let wanted = std::array::from_fn(|shard| match shard {
            0 => (0, in_sync),
            _ if plot == Plot::Successor => (0, in_sync),
            _ => (random.below(2), in_sync),
        });
        let slow_link = (random.below(PROCESSES), random.below(PROCESSES));
        let slow_link = Some(slow_link).filter(|_| random.chance(0.4) && !is_quiet);
        let slow_link = waits_for.map(|standby| (standby, 0)).or(slow_link);
        let plot_at = WARM + 50 + random.below(350) as u32;

        let config = ClusterConfig {
            shards: nature.shards as ShardIx,
            replicas: 2,
            hash: ShardHash::new(0),
            key_max: 2,
            value_max: 8,
            timing: nature.timing,
        };
        let mut etcd = Etcd { id: 1, revision: 0, entries: BTreeMap::new() };
        etcd.put(EtcdKey::Config, EtcdValue::Config(config));
        etcd.put(EtcdKey::Adoption, EtcdValue::Adoption(Adoption { number: 1, etcd: 1 }));
        for shard in 0..nature.shards {
            let state = ShardState { revision: 1, ..ShardState::default() };
            etcd.put(EtcdKey::Shard(shard as ShardIx), EtcdValue::Shard(state));
        }
        let followers = Followers::new(seed, nature.shards);
        let rates = std::array::from_fn(|_| 1.0 - RATES + 2.0 * RATES * random.part());
        let mut world = World {
            rates,
            nature,
            broken,
            time: 0,
            cut: Default::default(),
            stopped: Default::default(),
            deaf: Default::default(),
            slow_link,
            plot,
            plot_at,
            silent: None,
            next: None,
            reader: None,
            inbox: Default::default(),
            backup: etcd.clone(),
            watches: Default::default(),
            etcd,
            machines: Vec::new(),
            names: 0,
            wanted,
            clients: Vec::new(),
            followers,
            owning,
            third,
            copies: is_copied.then_some(own),
            answered: BTreeSet::new(),
            fuses: Random(seed ^ 0xf05e),
            history: Vec::new(),
            value: 0,
            copy: 0,
            evictions: Vec::new(),
            wrong: None,
            counts: Counts::new(),
            traces: std::env::var_os("ONEREAD_TRACE").is_some(),
            random,
            apart,
        };
        for _ in 0..MACHINES {
            let evicts = world.nature.evicts && world.apart.chance(0.9);
            let keys_max = if third != Third::Usual {
                (SHARDS * usize::from(KEYS)) as u64
            } else if evicts {
                world.apart.one(&[1, 1, 2, 3])
            } else if is_quiet {
                (SHARDS * usize::from(KEYS)) as u64
            } else {
                world.random.one(&[1, 2, 3, 4, 4])
            };
            let id = world.new_name();
            let machine = Machine { evicts, ..Machine::new(id, keys_max) };
            machine.memory.borrow_mut().time = world.apart.below(SKEW as usize) as u64;
            world.machines.push(machine);
        }
        for machine in 0..MACHINES {
            if third == Third::Usual || machine != THIRD {
                world.start(machine);
            }
        }
        let (shards, timing) = (world.nature.shards as ShardIx, world.nature.timing);
        world.clients.extend((0..CLIENTS).map(|_| Client::new(shards, timing)));
        world
    }

    fn new_name(&mut self) -> NodeId {
        self.names += 1;
        NodeId(self.names)
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }

    pub fn is_calm(&self) -> bool {
        self.time + CALM > TICKS || self.time <= WARM
    }

    pub fn clock(&self, process: usize) -> Time {
        (f64::from(self.time) * TICK * self.rates[process]) as Time
    }

    pub fn runs(&self, process: usize) -> bool {
        self.stopped[process] <= self.time && (process >= MACHINES || self.machines[process].node.is_some())
    }

    pub fn machine_of(&self, id: NodeId) -> Option<usize> {
        self.machines.iter().position(|machine| machine.id == id)
    }

    /// The machine of a shard's primary.
    fn primary(&self, shard: usize) -> usize {
        self.etcd.shard(shard).primary.and_then(|id| self.machine_of(id)).unwrap_or(0)
    }

    pub fn send(&mut self, from: usize, to: usize, message: Message) {
        let is_lost = !self.is_calm() && self.random.chance(self.nature.loss);
        let is_watched = matches!(&message, Message::Answer { answer, .. } if answer.is_watched);
        let is_read = matches!(&message, Message::Answer { answer, .. } if answer.entries.len() > 3);
        let is_deaf = self.deaf[to] > self.time && (is_watched || is_read);
        if self.is_cut(from, to) || is_lost || is_deaf {
            return;
        }
        let is_late = !self.is_calm() && self.random.chance(self.nature.late);
        let is_slow = self.slow_link == Some((from, to)) && !self.is_calm();
        let takes = if is_slow {
            self.random.one(&[60, 120, 180, 240])
        } else if is_late {
            self.random.one(&[10, 25, 60, 200])
        } else {
            self.random.one(&[1, 1, 1, 2, 4])
        };
        self.inbox[to].push((self.time + takes, message));
    }

    pub fn tell(&mut self, from: usize, to: NodeId, message: Message) {
        if let Some(machine) = self.machine_of(to) {
            self.send(from, machine, message);
        }
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        let is_hidden = |process: usize| self.third == Third::Hidden && process == THIRD;
        let with_etcd = from == ETCD || to == ETCD;
        self.cut[from][to] > self.time || !with_etcd && is_hidden(from) != is_hidden(to)
    }

    /// Faults come where they hurt: right after a step that others rely on.
    pub fn moment(&mut self, moment: Moment, process: usize) {
        if self.is_calm() || !self.random.chance(self.nature.moments[moment as usize]) {
            return;
        }
        match self.random.below(9) {
            0..=2 => self.stop(process),
            3 if process < MACHINES && self.nature.kill > 0.0 => self.kill(process),
            4 => self.cut_link(process, ETCD),
            5 => self.cut_for(ETCD, process, 300),
            6 => (0..PROCESSES).for_each(|other| self.cut_link(process, other)),
            7 => self.deaf[process] = self.time + 200,
            _ => {
                let primary = self.primary(0);
                if self.nature.kill > 0.0 && self.random.chance(0.5) {
                    self.kill(primary)
                } else {
                    self.stop(primary)
                }
            }
        }
    }

    fn stop(&mut self, process: usize) {
        if process != ETCD {
            self.stopped[process] = self.time + self.random.one(&[5, 20, 60, 200, 200, 400]);
        }
    }

    /// One way.
    pub fn cut_for(&mut self, from: usize, to: usize, ticks: u32) {
        if from != to {
            self.cut[from][to] = self.cut[from][to].max(self.time + ticks);
        }
    }

    fn cut_link(&mut self, a: usize, b: usize) {
        let ticks = self.random.one(&[20, 60, 150, 300, 500]);
        let ways = self.random.one(&[(true, true), (true, true), (true, false), (false, true)]);
        if ways.0 {
            self.cut_for(a, b, ticks);
        }
        if ways.1 {
            self.cut_for(b, a, ticks);
        }
    }

    fn is_in_sync(&self, machine: usize) -> bool {
        self.etcd.shard(0).in_sync.has(self.machines[machine].id)
    }

    /// Stories that need many things at once, and seldom happen by chance.
    fn follow_plot(&mut self) {
        let since = self.time.wrapping_sub(self.plot_at);
        let primary = self.primary(0);
        let others: Vec<usize> = (0..MACHINES).filter(|&other| other != primary).collect();
        let reader = MACHINES + CLIENTS - 1;
        if since == 0 && self.plot != Plot::None && self.random.chance(0.6) {
            self.reader = Some(CLIENTS - 1);
        }
        match (self.plot, since) {
            // The primary is cut off, but not from a client that hears nothing of it.
            (Plot::Deposed, 0) => {
                let ticks = self.random.one(&[200, 250, 300, 400, 500]);
                if self.random.chance(0.4) {
                    // Answers to its last beats are late.
                    self.slow_link = Some((ETCD, primary));
                    self.silent = Some((primary, self.time + 60));
                } else {
                    self.cut_for(primary, ETCD, ticks);
                    if self.random.chance(0.5) {
                        self.cut_for(ETCD, primary, ticks);
                    }
                }
                for other in others {
                    if self.random.chance(0.3) {
                        self.cut_for(primary, other, ticks);
                    }
                }
                match self.random.below(6) {
                    0 => self.stopped[primary] = self.time + ticks - 30,
                    1 | 2 => self.kill(primary),
                    _ => {}
                }
                self.cut_for(reader, ETCD, ticks + 300);
                self.deaf[primary] = self.time + ticks + self.random.one(&[0, 150, 250]);
                self.nature.join = 0.2;
                if self.random.chance(0.35) {
                    (self.nature.hang, self.nature.lurk) = (0.4, 0.8);
                }
            }
            // All are in sync, and the primary hands over; the next one may be silent already.
            (Plot::Successor, 0) => {
                self.nature.hand_over = 0.0;
                if self.etcd.shard(0).in_sync.len() < MACHINES && self.time < WARM + 500 {
                    self.plot_at += 10;
                    self.nature.join = 0.3;
                    return;
                }
                let next = self.random.one(&others);
                if self.random.chance(0.6) {
                    self.cut_for(next, ETCD, 450);
                }
                self.cut_for(reader, ETCD, 600);
                self.next = Some(next);
                if self.random.chance(0.3) {
                    self.slow_link = Some((primary, next));
                    (self.nature.hang, self.nature.lurk) = (0.4, 0.8);
                }
            }
            (Plot::Successor, 190..250) if self.next.is_some_and(|next| next != primary) => {
                self.hand_over(primary, 0);
            }
            // A primary alone, or nearly, and newcomers.
            (Plot::Newcomers, 0) => {
                let stays = others.iter().copied().find(|&other| self.is_in_sync(other));
                let few = self.etcd.shard(0).in_sync.len() < MACHINES;
                let stays = stays.filter(|_| few && self.random.chance(0.7));
                for other in others {
                    if Some(other) == stays {
                        self.slow_link = Some((primary, other));
                    } else {
                        self.cut_for(primary, other, 100);
                    }
                }
                (self.nature.hand_over, self.nature.join) = (0.0, 0.3);
                self.nature.shrink = if stays.is_some() { 0.0 } else { 0.3 };
            }
            // A standby that answers late is left out.
            (Plot::LeftOut, 0) => {
                let late = self.random.one(&others);
                self.slow_link = Some((late, primary));
                self.next = Some(late);
                (self.nature.hand_over, self.nature.shrink, self.nature.join) = (0.03, 0.2, 0.3);
            }
            // etcd goes back to what it was before the primary fell asleep.
            (Plot::Restored, 0) => {
                self.backup = self.etcd.clone();
                self.cut_for(primary, ETCD, 400);
                (0..MACHINES).for_each(|other| self.cut_for(primary, other, 400));
                self.cut_for(reader, ETCD, 700);
                self.deaf[primary] = self.time + 500;
            }
            (Plot::Restored, 380) => {
                if self.etcd.is_adopted() {
                    self.restore();
                }
                if self.random.chance(0.5) {
                    self.stopped[primary] = self.time + 300;
                }
                if self.random.chance(0.5) {
                    let other = self.random.below(MACHINES);
                    self.cut_for(ETCD, other, 150);
                }
            }
            _ => {}
        }
        if let Some((node, _)) = self.silent.take_if(|silent| silent.1 == self.time) {
            self.cut_for(node, ETCD, 350);
        }
    }

    /// The next part of some plots begins when etcd has done something.
    fn plot_thickens(&mut self, primary: usize, why: Why, was: &NodeIds, is: &NodeIds) {
        let since = self.time.wrapping_sub(self.plot_at);
        let changed = |more: &NodeIds, less: &NodeIds| {
            more.iter()
                .filter(|id| !less.has(*id))
                .filter_map(|id| self.machine_of(id))
                .find(|&one| one != primary)
        };
        let (newcomer, late) = (changed(is, was), changed(was, is));
        match (self.plot, why) {
            // The primary does not hear that a newcomer was named.
            (Plot::Newcomers, Why::Grow) if (100..500).contains(&since) && self.random.chance(0.7) => {
                self.cut_for(ETCD, primary, 500);
                self.silent = Some((primary, self.time + 80));
                if let (Some(newcomer), true) = (newcomer, self.random.chance(0.7)) {
                    self.cut_for(primary, newcomer, 500);
                }
                self.plot = Plot::None;
            }
            // It is out of the way: the third takes over from the silent one.
            (Plot::Successor, Why::HandOver) if since < 300 && self.random.chance(0.6) => {
                self.cut_for(primary, ETCD, 300);
            }
            (Plot::LeftOut, Why::Shrink) if (0..500).contains(&since) && self.random.chance(0.7) => {
                let Some(late) = late else { return };
                if self.random.chance(0.5) {
                    // The primary hears late that a standby was left out, and is not heard.
                    self.slow_link = Some((ETCD, primary));
                    self.silent = Some((primary, self.time + 10));
                    self.nature.hand_over = 0.3;
                } else {
                    // It comes back, and old answers of its are still on the way.
                    self.slow_link = Some((late, primary));
                    self.cut_for(primary, late, 400);
                }
                self.plot = Plot::None;
            }
            _ => {}
        }
    }

    /// A request has ended, and its client does not hear of it.
    fn answer_is_lost(&mut self, machine: usize, client: usize, shard: ShardIx) {
        let long = self.plot == Plot::Displaced;
        for other in 0..MACHINES {
            let ticks = if long { 350 } else { self.random.one(&[0, 60, 200]) };
            self.cut_for(MACHINES + client, other, ticks);
        }
        if !long {
            return;
        }
        // Meanwhile another node, a newcomer if there is one, becomes primary; or this one starts again.
        self.plot = Plot::None;
        (self.nature.join, self.nature.repeat, self.nature.gives_up) = (0.3, 0.2, 0.002);
        self.nature.gets = 0.9;
        match self.random.below(3) {
            0 => self.kill(machine),
            _ => {
                self.nature.hand_over = 0.05;
                let in_sync = &self.etcd.shard(usize::from(shard)).in_sync;
                let newcomer = (0..MACHINES).find(|&other| !in_sync.has(self.machines[other].id));
                self.next = newcomer.or(Some((machine + 1) % MACHINES));
            }
        }
    }

    pub fn kill(&mut self, machine: usize) {
        self.machines[machine].node = None;
        self.inbox[machine].clear();
    }

    fn start(&mut self, machine: usize) {
        if self.is(Broken::ResultsInProcess) {
            let mut memory = self.machines[machine].memory.borrow_mut();
            memory.entries.retain(|key, _| !results::is_result(key));
        }
        let timing = self.nature.timing;
        self.lights(machine);
        self.machines[machine].start(self.nature.shards as ShardIx, timing, self.followers.kept);
        if self.was_killed(machine) {
            return self.kill(machine);
        }
        self.moment(Moment::Started, machine);
    }

    /// In some worlds, the process is killed by itself, between two stores.
    fn lights(&mut self, machine: usize) {
        let is_so = !self.is_calm() && self.nature.kill > 0.0 && self.fuses.chance(0.9);
        let most = self.fuses.one(&[4, 20, 60]);
        let lit = (1 + self.fuses.below(most) as u32, self.fuses.chance(0.7));
        self.machines[machine].memory.borrow_mut().stores_left = is_so.then_some(lit);
    }

    /// Whether that was so in the last step.
    fn was_killed(&mut self, machine: usize) -> bool {
        let was_killed = self.machines[machine].ends_when_killed();
        if was_killed {
            self.count("killed between stores");
        }
        was_killed
    }

    fn lose_memory(&mut self, machine: usize) {
        let id = match self.is(Broken::NameKept) {
            true => self.machines[machine].id,
            false => self.new_name(),
        };
        // It would be refused, having no number to go on from.
        let asked = self.machines[machine].memory.borrow().page.asked;
        let notes = self.machines[machine].memory.borrow().notes.clone();
        self.machines[machine].lose_memory(id);
        if self.is(Broken::NameKept) {
            let mut memory = self.machines[machine].memory.borrow_mut();
            (memory.page.asked, memory.notes) = (asked, notes);
        }
        self.count("memory lost");
        self.inbox[machine].clear();
    }

    /// Each operation is one step.
    fn etcd_receives(&mut self, message: Message) {
        let Message::Call { from, process, call, what } = message else { unreachable!() };
        let answer = match what {
            EtcdCall::Read => {
                let keys: Vec<EtcdKey> = self.etcd.entries.keys().copied().collect();
                self.watches[from] = Some((process, call));
                self.etcd.answer(call, true, keys)
            }
            EtcdCall::Transaction { adoption, compare, put } => {
                let is_now = |(key, at): &(EtcdKey, At)| self.etcd.entry(*key).at == *at;
                let beats = matches!(put[..], [(EtcdKey::Node(_), _)]);
                let is_done = adoption == self.etcd.adoption() && compare.iter().all(is_now)
                    || beats && self.is(Broken::Rule(Rule::BeatAfterDeposed))
                    || !beats && self.is(Broken::Rule(Rule::TakenWhileItBeats)) && is_now(&compare[0]);
                let keys: Vec<EtcdKey> = compare.iter().map(|c| c.0).chain([EtcdKey::Adoption]).collect();
                if is_done {
                    self.transact(from, put);
                }
                if beats {
                    self.moment(Moment::Beat, from);
                }
                self.etcd.answer(call, is_done, keys)
            }
        };
        self.send(ETCD, from, Message::Answer { process, answer });
    }

    fn transact(&mut self, from: usize, put: Vec<(EtcdKey, EtcdValue)>) {
        let keys: Vec<EtcdKey> = put.iter().map(|put| put.0).collect();
        let has_node = keys.iter().any(|key| matches!(key, EtcdKey::Node(_)));
        for (key, value) in put {
            let was = match (key, &value) {
                (EtcdKey::Shard(shard), EtcdValue::Shard(new)) => {
                    Some((self.etcd.shard(usize::from(shard)).clone(), new.clone()))
                }
                _ => None,
            };
            self.etcd.put(key, value);
            let Some((was, is)) = was else { continue };
            if self.traces {
                println!("{}: etcd {}: {key:?} is {is:?}", self.time, self.etcd.id);
            }
            let why = match () {
                () if was.epoch == 0 => Why::Claim,
                () if was.epoch == is.epoch && is.in_sync.len() > was.in_sync.len() => Why::Grow,
                () if was.epoch == is.epoch => Why::Shrink,
                () if was.primary == is.primary => Why::Again,
                () if has_node || is.primary == Some(self.machines[from].id) => Why::Takeover,
                () => Why::HandOver,
            };
            if why == Why::Claim && self.third == Third::Hidden && from == THIRD {
                self.wrong.get_or_insert(format!("{key:?} is claimed by who reaches nobody"));
            }
            self.count(match why {
                Why::Claim => "claims",
                Why::Takeover => "takeovers",
                Why::HandOver => "hand-overs",
                Why::Shrink => "left out",
                Why::Grow => "joined",
                Why::Again => "started again as primary",
            });
            self.plot_thickens(from, why, &was.in_sync, &is.in_sync);
            self.moment(Moment::Transaction, from);
            if why == Why::Grow {
                self.moment(Moment::Joined, from);
            }
        }
        self.tell_watchers(keys);
    }

    /// All nodes, and one of the clients.
    fn tell_watchers(&mut self, keys: Vec<EtcdKey>) {
        for process in 0..=MACHINES {
            let Some((incarnation, call)) = self.watches[process] else { continue };
            let mut answer = self.etcd.answer(call, true, keys.clone());
            answer.is_watched = true;
            self.send(ETCD, process, Message::Answer { process: incarnation, answer });
        }
    }

    /// etcd's machines were lost, or somebody erred: it is made again from a backup, under another id (CL17).
    fn restore(&mut self) {
        let id = self.etcd.id + 1;
        self.etcd = self.backup.clone();
        self.etcd.id = id;
        self.watches = Default::default();
        self.count("etcd restored");
    }

    /// Says that this etcd is the right one from now on, once all nodes have refused it (CL17).
    fn operate(&mut self) {
        let is_believed = self.is(Broken::Rule(Rule::RevisionOnly)) || self.is(Broken::Rule(Rule::AnyEtcd));
        if self.etcd.is_adopted() || is_believed {
            return;
        }
        let asked: Vec<usize> = (0..MACHINES)
            .filter(|&machine| {
                let node = self.machines[machine].node.as_ref();
                self.runs(machine) && node.is_some_and(|node| node.standing() == Standing::Foreign)
            })
            .collect();
        let few = self.is(Broken::SomeNodesAsked) || self.is(Broken::Rule(Rule::BackupBelieved));
        if asked.len() < if few { 1 } else { MACHINES } || !self.random.chance(0.1) {
            return;
        }
        let notes = |machine: &usize| self.machines[*machine].node.as_ref().unwrap().notes().clone();
        let known: Vec<_> = asked.iter().map(notes).collect();
        for shard in 0..self.nature.shards {
            let state = adopt::shard(self.etcd.shard(shard), shard as ShardIx, &known);
            self.etcd.put(EtcdKey::Shard(shard as ShardIx), EtcdValue::Shard(state));
        }
        let nodes: Vec<EtcdKey> = self.etcd.entries.keys().copied().collect();
        for key in nodes {
            if let EtcdValue::Node(mut node) = self.etcd.entries[&key].0.clone() {
                node.alive = false;
                self.etcd.put(key, EtcdValue::Node(node));
            }
        }
        let adoption = adopt::adoption(self.etcd.adoption(), self.etcd.id, u64::from(self.time), &known);
        self.etcd.put(EtcdKey::Adoption, EtcdValue::Adoption(adoption));
        self.count("etcd adopted");
    }

    pub fn run(&mut self) {
        while self.time < TICKS
            || self.time < TICKS + MORE
                && !(self.all_are_served() && self.owners_have_left() && self.lacks_copies().is_none())
        {
            self.time += 1;
            for machine in &self.machines {
                machine.memory.borrow_mut().time += 1;
            }
            if self.time == TICKS - CALM + 1 {
                (self.cut, self.stopped, self.deaf) = Default::default();
                for machine in 0..MACHINES {
                    self.machines[machine].memory.borrow_mut().stores_left = None;
                    let waits = self.machines[machine].put_back.is_some();
                    if self.machines[machine].node.is_none() && !waits {
                        self.start(machine);
                    }
                }
            }
            let comes = match self.third {
                Third::Usual => None,
                Third::Hidden => Some(30),
            };
            if comes == Some(self.time) {
                self.start(THIRD);
            }
            (0..MACHINES).for_each(|machine| self.put_back(machine));
            if self.time == WARM + 1 {
                (0..MACHINES).for_each(|machine| self.lights(machine));
            }
            if self.time + LAST == TICKS {
                self.stay();
            }
            for process in 0..PROCESSES {
                self.deliver(process);
            }
            for machine in 0..MACHINES {
                if self.runs(machine) && self.random.chance(self.nature.ticks) {
                    self.node_steps(machine);
                }
            }
            for client in 0..CLIENTS {
                self.nic_samples(client);
                if self.time > WARM && self.runs(MACHINES + client) && self.random.chance(0.7) {
                    self.client_steps(client);
                }
                self.owner_steps(client);
            }
            self.look_at_standbys();
            self.follow();
            self.operate();
            if !self.is_calm() {
                self.something_fails();
            }
        }
        for client in 0..CLIENTS {
            self.ends(client);
        }
        self.follow_to_the_end();
        self.look_at_ends();
        self.look_at_owners();
        if let Some(shard) = self.lacks_copies() {
            self.wrong.get_or_insert(format!("shard {shard} lacks a copy: {:?}", self.etcd.shard(shard)));
        }
        for shard in 0..self.nature.shards {
            if let Some(is_served) = self.is_served(shard) {
                self.count(if is_served { "served at the end" } else { NOT_SERVED });
                if !is_served && self.is(Broken::Nothing) {
                    println!("etcd {} {:?} {:?}", self.etcd.id, self.etcd.adoption(), self.etcd.shard(shard));
                    for machine in &self.machines {
                        let Some(node) = &machine.node else { continue };
                        let replica = node.replica(shard as ShardIx);
                        println!(
                            "{:?} {:?} {:?} {:?} page {:?} {:?} has asked {}",
                            machine.id,
                            node.standing(),
                            replica.role(),
                            replica.state(),
                            node.page(),
                            node.notes().adoption,
                            replica.has_asked(),
                        );
                    }
                }
            }
        }
    }

    /// What was put with a time to live has an end at who serves it, and is gone after that.
    fn look_at_ends(&mut self) {
        for shard in 0..self.nature.shards {
            let Some(machine) = self.server_of(shard) else { continue };
            let memory = self.machines[machine].memory.borrow();
            for key in (0..self.nature.keys).map(|key| key_of(shard as ShardIx, key)) {
                let Some(due) = memory.entries.get(&key).and_then(|value| due_of(number_of(Some(value))))
                else {
                    continue;
                };
                let end = memory.lives.get(&key).and_then(|life| life.end());
                // A standby that is late is left out first.
                let late = 2 * self.nature.timing.late / TICK as Time + 50;
                if end.is_none_or(|end| end.0 + late < memory.time) {
                    let why = format!("{key:?} stays: due {due}, end {end:?}, now {}", memory.time);
                    self.wrong.get_or_insert(why);
                }
            }
        }
    }

    /// Whether a shard's primary has its word open. `None`: the last copy was lost with its machine's memory.
    fn is_served(&self, shard: usize) -> Option<bool> {
        let state = self.etcd.shard(shard);
        let machine = state.primary.and_then(|primary| self.machine_of(primary))?;
        let word = self.machines[machine].memory.borrow().page.words.get(shard).copied();
        Some(word.is_some_and(|word| word.is_open && word.epoch == state.epoch))
    }

    /// Who serves a shard.
    pub fn server_of(&self, shard: usize) -> Option<usize> {
        let primary = self.etcd.shard(shard).primary.filter(|_| self.is_served(shard) == Some(true))?;
        self.machine_of(primary)
    }

    fn all_are_served(&self) -> bool {
        (0..self.nature.shards).all(|shard| self.is_served(shard) != Some(false))
    }

    /// A shard without a second copy, where two machines have room and reach each other.
    fn lacks_copies(&self) -> Option<usize> {
        let is_served = |shard: &usize| self.is_served(*shard) == Some(true);
        let mut served = (0..self.nature.shards).filter(is_served).filter(|_| self.third != Third::Usual);
        served.find(|shard| self.etcd.shard(*shard).in_sync.len() < 2)
    }

    /// CL21: who says that it is a standby has answered a primary.
    fn look_at_standbys(&mut self) {
        for (at, machine) in self.machines.iter().enumerate() {
            let Some(node) = &machine.node else { continue };
            for shard in 0..self.nature.shards as ShardIx {
                let is_new = !self.answered.contains(&(at, machine.process, shard));
                if node.replica(shard).role() == Role::Standby && is_new {
                    self.wrong
                        .get_or_insert(format!("{:?} counts before shard {shard} has come", machine.id));
                }
            }
        }
    }

    /// CL22: a memory is copied; or its process is killed, and the copy comes in its place. No client has a lease by then.
    fn copy_memory(&mut self) {
        let Some(random) = &mut self.copies else { return };
        if !random.chance(0.004) {
            return;
        }
        let machine = random.below(MACHINES);
        let this = &mut self.machines[machine];
        // Of what was made while etcd heard no beat nothing tells that it is old.
        let written = match self.etcd.entries.get(&EtcdKey::Node(this.id)) {
            Some((EtcdValue::Node(key), _)) => key.number,
            _ => 0,
        };
        let is_old = this.copy.as_ref().is_some_and(|copy| copy.page.asked.number < written);
        if this.copy.is_none() {
            this.copy = Some(Box::new(this.memory.borrow().clone()));
        } else if this.put_back.is_none() && is_old {
            this.put_back = Some(self.time + 2 * TTL as u32);
            self.kill(machine);
        }
    }

    /// A copy is put back when it is time. Its node is refused, and begins again with nothing.
    fn put_back(&mut self, machine: usize) {
        if self.machines[machine].put_back.is_some_and(|at| at <= self.time) {
            self.machines[machine].put_back();
            self.start(machine);
        }
        let node = self.machines[machine].node.as_ref();
        if node.is_some_and(|node| node.standing() == Standing::Outdated) {
            self.count("old copies refused");
            self.lose_memory(machine);
            self.start(machine);
        }
    }

    /// Whoever is primary is to stay so: nothing moves any more.
    fn stay(&mut self) {
        let pinned = (0..self.nature.shards)
            .filter_map(|shard| self.etcd.shard(shard).primary.map(|primary| (shard as ShardIx, primary)));
        let wishes = Wishes { pinned: pinned.collect(), ..Wishes::default() };
        self.etcd.put(EtcdKey::Wishes, EtcdValue::Wishes(wishes));
        self.tell_watchers(vec![EtcdKey::Wishes]);
    }

    fn deliver(&mut self, process: usize) {
        if !self.runs(process) {
            return;
        }
        let at_most = if self.nature.slow && process != ETCD && !self.is_calm() { 4 } else { usize::MAX };
        let (mut taken, mut rest) = (0, Vec::new());
        for (at, message) in std::mem::take(&mut self.inbox[process]) {
            if at > self.time || taken == at_most || !self.runs(process) {
                rest.push((at, message));
                continue;
            }
            taken += 1;
            match process {
                ETCD => self.etcd_receives(message),
                client if client >= MACHINES => self.client_receives(client - MACHINES, message),
                machine => self.node_receives(machine, message),
            }
        }
        // What it was killed with is lost.
        if process >= MACHINES || self.machines[process].node.is_some() {
            rest.append(&mut self.inbox[process]);
            self.inbox[process] = rest;
        }
    }

    fn something_fails(&mut self) {
        if self.random.chance(self.nature.stop) {
            let primary = self.primary(0);
            let process = if self.random.chance(0.3) { primary } else { self.random.below(ETCD) };
            self.stop(process);
        }
        if self.random.chance(self.nature.cut) {
            let a = self.random.below(PROCESSES);
            let b = if self.random.chance(0.3) { ETCD } else { self.random.below(PROCESSES) };
            self.cut_link(a, b);
        }
        if self.random.chance(self.nature.mend) {
            self.cut = Default::default();
        }
        self.follow_plot();
        if self.random.chance(self.nature.kill) {
            let machine = self.random.below(MACHINES);
            self.kill(machine);
        }
        self.copy_memory();
        for machine in 0..MACHINES {
            let comes_late = self.machines[machine].process == 0 || self.machines[machine].put_back.is_some();
            if self.machines[machine].node.is_none() && !comes_late && self.random.chance(0.02) {
                self.start(machine);
            }
        }
        if self.random.chance(self.nature.wipe) {
            let machine = self.random.below(MACHINES);
            self.lose_memory(machine);
        }
        if self.random.chance(self.nature.restore) {
            match self.etcd.is_adopted() && self.random.chance(0.3) {
                true if self.etcd.id < 3 => self.restore(),
                _ if self.etcd.is_adopted() => self.backup = self.etcd.clone(),
                _ => {}
            }
        }
    }
}

// Nodes.
impl World {
    fn node_receives(&mut self, machine: usize, message: Message) {
        let now = self.clock(machine);
        let this = &mut self.machines[machine];
        let Some(node) = this.node.as_mut() else { return };
        let mut is_taken = false;
        match message {
            Message::Answer { process, answer } if process == this.process => node.answered(now, answer),
            Message::Node { to, from, message } if to == this.id => {
                is_taken = matches!(message, NodeMessage::Item { .. });
                node.received(now, from, message);
            }
            Message::Request { to, client, request } if to == this.id => {
                node.requested(now, Peer(client as u64), request);
            }
            Message::Get { to, client, copy, shard, key } if to == this.id => {
                let memory = this.memory.borrow();
                let value = number_of(memory.entries.get(&key_of(shard, key)));
                let (node, page) = (to, memory.page.clone());
                drop(memory);
                self.send(machine, MACHINES + client, Message::Value { copy, node, value, page });
            }
            _ => {}
        }
        self.carry_out(machine);
        if is_taken {
            self.moment(Moment::Taken, machine);
        }
    }

    /// In the calm each copy in sync is made primary, and looked at.
    fn hand_over_chance(&self) -> f64 {
        match self.time {
            time if time <= WARM => 0.0,
            time if time + CALM <= TICKS => self.nature.hand_over,
            time if time + LAST <= TICKS => 0.05,
            _ => 0.0,
        }
    }

    fn node_steps(&mut self, machine: usize) {
        let now = self.clock(machine);
        let shard = self.random.below(self.nature.shards);
        let Some(node) = self.machines[machine].node.as_mut() else { return };
        node.tick(now);
        let role = node.replica(shard as ShardIx).role();
        self.carry_out(machine);
        let is_claimed = self.third == Third::Usual && self.wanted[shard].0 == machine;
        if role == Role::None && is_claimed && self.etcd.shard(shard).epoch == 0 {
            if let Some(node) = self.machines[machine].node.as_mut() {
                node.claim(now, shard as ShardIx);
            }
            return self.carry_out(machine);
        }
        if role != Role::Primary || !self.runs(machine) {
            return;
        }
        if self.time <= WARM && self.third == Third::Usual {
            return self.grow_to(machine, shard, self.wanted[shard].1);
        }
        if self.random.chance(self.nature.evict) && !self.is_calm() {
            self.evict(machine, shard);
        }
        if self.random.chance(self.hand_over_chance()) {
            self.hand_over(machine, shard);
        } else if self.random.chance(self.nature.shrink) {
            self.shrink(machine, shard);
        } else if self.random.chance(self.nature.join) {
            self.grow_to(machine, shard, MACHINES);
        } else if self.random.chance(self.nature.impatience) {
            let other = self.random.below(MACHINES);
            let id = self.machines[other].id;
            if let Some(node) = self.machines[machine].node.as_mut() {
                node.give_up(shard as ShardIx, id);
            }
        }
        self.carry_out(machine);
    }

    fn grow_to(&mut self, machine: usize, shard: usize, replicas: usize) {
        let now = self.clock(machine);
        let out: Vec<NodeId> = self.machines.iter().map(|machine| machine.id).collect();
        let Some(node) = self.machines[machine].node.as_mut() else { return };
        let replica = node.replica(shard as ShardIx);
        let out: Vec<NodeId> = out
            .into_iter()
            .filter(|id| !replica.state().in_sync.has(*id) && replica.channels().all(|to| to != *id))
            .collect();
        let copies = 1 + replica.channels().count();
        if !out.is_empty() && copies < replicas {
            let to = self.random.one(&out);
            self.machines[machine].node.as_mut().unwrap().join(now, shard as ShardIx, to);
        }
        self.carry_out(machine);
    }

    fn hand_over(&mut self, machine: usize, shard: usize) {
        if !self.runs(machine) {
            return;
        }
        let now = self.clock(machine);
        let me = self.machines[machine].id;
        let Some(node) = self.machines[machine].node.as_mut() else { return };
        let next: Vec<NodeId> =
            node.replica(shard as ShardIx).state().in_sync.iter().filter(|id| *id != me).collect();
        if next.is_empty() {
            return;
        }
        let wanted =
            next.iter().copied().find(|id| self.machine_of(*id).is_some_and(|it| Some(it) == self.next));
        let next = wanted.unwrap_or_else(|| self.random.one(&next));
        if self.machines[machine].node.as_mut().unwrap().hand_over(now, shard as ShardIx, next) {
            self.moment(Moment::Closed, machine);
        }
        self.carry_out(machine);
    }

    fn shrink(&mut self, machine: usize, shard: usize) {
        let now = self.clock(machine);
        let me = self.machines[machine].id;
        let Some(node) = self.machines[machine].node.as_ref() else { return };
        let replica = node.replica(shard as ShardIx);
        let standbys: Vec<NodeId> = replica.state().in_sync.iter().filter(|id| *id != me).collect();
        if replica.under_way() > 0 && !standbys.is_empty() {
            let standby = self.random.one(&standbys);
            self.machines[machine].node.as_mut().unwrap().leave_out(now, shard as ShardIx, standby);
        }
        self.carry_out(machine);
    }

    /// CL13
    fn evict(&mut self, machine: usize, shard: usize) {
        let key = self.random.below(usize::from(self.nature.keys)) as u8;
        self.copy += 1;
        let copy = self.copy;
        self.removes(machine, shard as ShardIx, key, copy, Effect::Evicted);
        let key = key_of(shard as ShardIx, key);
        let request = Request {
            copy,
            id: None,
            shard: shard as ShardIx,
            key,
            kind: Kind::Remove,
            wanted: Wanted::Usual,
        };
        let now = self.clock(machine);
        self.machines[machine].node.as_mut().unwrap().requested(now, Peer::SELF, request);
        self.carry_out(machine);
    }

    /// It begins to remove a key by itself.
    fn removes(&mut self, machine: usize, shard: ShardIx, key: u8, copy: u64, effect: Effect) {
        let name = (machine, self.machines[machine].process, copy);
        self.evictions.push((name, self.history.len()));
        self.history.push(Event {
            shard,
            key,
            start: self.time,
            end: crate::history::NEVER,
            kind: match effect {
                Effect::Expired => crate::history::Kind::Expire,
                Effect::OwnerGone => crate::history::Kind::OwnerGone,
                _ => crate::history::Kind::Remove,
            },
            value: 0,
            outcome: Outcome::Done,
            is_void: false,
        });
    }

    /// What a node wants done. READs that lurk have seen what it stored.
    fn carry_out(&mut self, machine: usize) {
        let mut outputs = self.machines[machine].node.as_mut().map(|node| node.outputs()).unwrap_or_default();
        let is_killed = self.was_killed(machine);
        if is_killed {
            // Nothing was sent. But an entry may be gone.
            let memory = self.machines[machine].memory.borrow();
            outputs.retain(|output| match output {
                Output::Removes { key, .. } => !memory.entries.contains_key(key),
                _ => false,
            });
        }
        let stored = std::mem::take(&mut self.machines[machine].memory.borrow_mut().stored);
        let id = self.machines[machine].id;
        for stored in &stored {
            if let (true, Stored::Entry(key)) = (self.traces, stored) {
                let value = number_of(
                    self.machines[machine].memory.borrow().entries.get(key).filter(|v| v.len() == 8),
                );
                println!("{}: {id:?} has {key:?} = {value}", self.time);
            }
            self.seen_by_lurkers(id, stored);
        }
        let is_visible = stored.iter().any(|stored| matches!(stored, Stored::Entry(_)));
        let process = self.machines[machine].process;
        let mut began = false;
        for output in outputs {
            // Whatever happened to it meanwhile: this was sent before.
            match output {
                Output::Etcd(call, what) => {
                    self.send(machine, ETCD, Message::Call { from: machine, process, call, what });
                }
                Output::Node(to, message) => {
                    began |= matches!(message, NodeMessage::Item { .. });
                    if let NodeMessage::Answer { shard, .. } = &message {
                        self.answered.insert((machine, process, *shard));
                    }
                    self.tell(machine, to, Message::Node { to, from: id, message });
                }
                // Outcomes and owners leave so only where that rule is broken.
                Output::Removes { key, .. } if own::shard_of(&key).is_some() => {}
                Output::Removes { copy, key, effect } => {
                    self.removes(machine, ShardIx::from(key[0]), key[1], copy, effect);
                    self.count(match effect {
                        Effect::Expired => "expired",
                        Effect::OwnerGone => "left with their owner",
                        _ => "evicted for room",
                    });
                }
                Output::Reply(Peer::SELF, reply) => self.evicted((machine, process, reply.copy), reply),
                Output::Reply(Peer(client), reply) => self.replies(machine, client as usize, reply),
            }
        }
        if is_killed {
            return self.kill(machine);
        }
        if is_visible {
            self.moment(Moment::Visible, machine);
        }
        if began {
            self.moment(Moment::Began, machine);
        }
        if stored.contains(&Stored::Life) {
            self.moment(Moment::Learned, machine);
        }
    }

    fn evicted(&mut self, name: (usize, u32, u64), reply: Reply) {
        let Some(index) = self.evictions.iter().position(|(other, _)| *other == name) else { return };
        let (_, event) = self.evictions.swap_remove(index);
        let event = &mut self.history[event];
        match reply.ended {
            Ok(outcome) => (event.end, event.outcome) = (self.time, outcome),
            Err(_) => event.is_void = true,
        }
        if reply.ended == Ok(Outcome::Done) {
            self.count("evictions");
        }
    }

    fn replies(&mut self, machine: usize, client: usize, reply: Reply) {
        let operation = self.clients[client].operation.as_ref();
        let request = operation.map(|operation| (operation.id, operation.kind, operation.shard));
        if let (Some((id, kind, shard)), Ok(_)) = (request, reply.ended) {
            let p = match self.plot {
                Plot::Displaced if self.time < self.plot_at || id.is_none() => 0.0,
                Plot::Displaced if kind == crate::history::Kind::Put => 0.1,
                Plot::Displaced => 0.5,
                _ => self.nature.moments[Moment::Visible as usize],
            };
            if !self.is_calm() && self.random.chance(p) {
                return self.answer_is_lost(machine, client, shard);
            }
        }
        self.send(machine, MACHINES + client, Message::Reply { reply });
    }
}
