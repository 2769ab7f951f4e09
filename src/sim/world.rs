//! Scenarios for the simulated NIC, and the oracle that judges what GETs report.
//!
//! A [`World`] is a server over a recorded region. It remembers every value of each key, and from
//! when to when the key had it. [`World::judge`] compares a GET's answer with that. `Found(v)` is
//! right only if `v` was the key's value at some instant of the GET. `Absent` is right only if the
//! key was absent at some instant of it. Later GETs of the same client never go back to an older
//! version.

use super::decided::{By, Decided};
use super::keys::{KEY_BYTES, KeyNumber, key, mixed};
use super::stores::{Incident, IncidentKind, Move, StoreEvent, Stores};
use super::turns;
use super::{Adversary, Aim, Hardware, History, Instant, Met, Recorder, Sim, SimGetError, Stalls};
use crate::clock::Clock;
use crate::config::{Config, TableSize};
use crate::fabric::Fabric;
use crate::fabric::shm::Shm;
use crate::families;
use crate::get::Proof;
use crate::hints::{Hints, slots_of};
use crate::index::{Index, Recovered, waits_max};
use crate::inspect::{Inspector, SlotReport};
use crate::layout::chain::CHAIN_MAX;
use crate::layout::geometry::{Geometry, Layout, SlotIx};
use crate::layout::hash::Seeds;
use crate::layout::slot::{Header, View};
use crate::outcome::{PutError, PutMode, PutOutcome, ReadError};
use crate::reader::{Limits, Reader};
use crate::region::Region;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The layout.
    pub layout: Layout,
    /// Main slots; in a table that grows, of a segment.
    pub slots: u64,
    /// The most segments of a table that grows; 0 for a table of one size.
    pub segments: u64,
    /// Bytes of value. They determine how many lines a slot has.
    pub value_bytes: usize,
    /// Whether every other key has two words, one of which it shares with others ([`mixed`]).
    pub long_keys: bool,
    /// The grace time. A store takes 1 ns.
    pub grace: Duration,
    /// The seed of the table's hashes.
    pub seed: u64,
}

/// Memory for a table. Its stores are recorded, and each takes 1 ns.
fn memory(geometry: &Geometry) -> (Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    (recorder.region(crate::index::handover::end(geometry)), recorder, clock)
}

/// Bounds of every GET in a world. The clock stands still, so only the retries end a GET.
const LIMITS: Limits = Limits { retries_max: 1_000, deadline: Duration::from_secs(3600) };

impl Scene {
    fn config(&self) -> Config {
        Config {
            layout: self.layout,
            size: TableSize::Slots(self.slots),
            key_max: KEY_BYTES[usize::from(self.long_keys)],
            value_max: self.value_bytes,
            grace: self.grace,
            seeds: Some(Seeds::from_number(self.seed)),
            ..Config::default()
        }
    }

    /// The number of the `n`th key.
    pub fn number(&self, n: KeyNumber) -> KeyNumber {
        if self.long_keys { mixed(n) } else { n }
    }

    fn geometry(&self) -> Geometry {
        self.config().geometry().expect("a possible scene").growing(self.segments)
    }
}

/// A value that a key had, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    value: Option<Vec<u8>>,
    /// When the operation that made the version began, or when it made it, if that is known.
    from: Instant,
    /// When the operation that ended the version, or a later one, had ended. `None` for the last.
    until: Option<Instant>,
}

impl Version {
    /// The first version of every key.
    const ABSENT: Version = Version { value: None, from: Instant(0), until: None };

    fn is<E>(&self, answer: &GetAnswer<E>) -> bool {
        answer.as_ref().is_ok_and(|answer| *answer == self.value)
    }

    fn show(&self) -> String {
        show(&self.value)
    }
}

/// A step of a server thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Put a new value.
    Put(KeyNumber),
    /// Remove the key.
    Remove(KeyNumber),
    /// Take away traces that are due.
    Tidy,
    /// Let time pass.
    Wait(Duration),
    /// Look a key up, as a shm client does.
    Get(KeyNumber),
}

/// What a server did, for clients to be run against.
#[derive(Clone, Debug)]
pub struct Past {
    /// Every store.
    pub history: History,
    /// What happened to keys, in the order in which it began. Empty for clients that look
    /// everywhere.
    pub incidents: Vec<Incident>,
    /// For each key, the instants at which something begins to happen to it.
    leaps: BTreeMap<KeyNumber, Vec<Instant>>,
}

impl Past {
    fn new(history: History, incidents: Vec<Incident>) -> Past {
        let mut leaps: BTreeMap<KeyNumber, Vec<Instant>> = BTreeMap::new();
        let is_leap = |incident: &&Incident| {
            !matches!(
                incident.kind,
                IncidentKind::GhostGone
                    | IncidentKind::Filter
                    | IncidentKind::Link
                    | IncidentKind::Return
                    | IncidentKind::Overlaid
            )
        };
        for incident in incidents.iter().filter(is_leap) {
            leaps.entry(incident.key).or_default().push(incident.from);
        }
        leaps.values_mut().for_each(|leaps| leaps.dedup());
        Past { history, incidents, leaps }
    }

    /// The past of a server that stops for ever at `instant`.
    pub fn until(&self, instant: Instant) -> Past {
        Past { history: self.history.clone().until(instant), ..self.clone() }
    }

    /// Lets a client that looks this key up sleep, between two passes, until any of these instants.
    pub fn may_sleep(&mut self, number: KeyNumber, until: Vec<Instant>) {
        self.leaps.insert(number, until);
    }
}

/// Names the next GET of a client, given when its previous one ended. `None` when it is done.
pub type PlannedGets<'a> = dyn FnMut(Instant) -> Option<PlannedGet> + 'a;

/// A GET that a client is to make.
#[derive(Clone, Copy, Debug)]
pub struct PlannedGet {
    /// The key to look up.
    pub key: KeyNumber,
    /// The earliest start.
    pub from: Instant,
    /// The most stores during one of its READs, if fewer than the hardware allows.
    pub read_stores_max: Option<usize>,
}

impl PlannedGet {
    /// GETs of these keys, one right after the other.
    pub fn all(from: Instant, numbers: &[KeyNumber]) -> impl FnMut(Instant) -> Option<PlannedGet> {
        let mut numbers = numbers.iter();
        move |_| numbers.next().map(|&key| PlannedGet { key, from, read_stores_max: None })
    }
}

/// A change of a key: whether the server found the key, what it has then, and when the operation
/// began and ended.
#[derive(Debug)]
struct Done {
    number: KeyNumber,
    had: bool,
    has: Option<Vec<u8>>,
    from: Instant,
    to: Instant,
    /// Whether it was a put into a full table.
    is_full: bool,
}

/// What a server thread did: a change, or a look as by a shm client.
#[derive(Debug)]
enum Did {
    Change(Done),
    Look(KeyNumber, GetAnswer<ReadError>, (Instant, Instant)),
}

impl Done {
    fn changes(&self) -> bool {
        self.had || self.has.is_some()
    }

    /// The effective changes of one key, each with its event, in the order of the events. Each
    /// change must have its event, and each event its change. The key must have been absent at some
    /// instant of a change that did nothing.
    fn in_order(
        number: KeyNumber,
        mut done: Vec<Done>,
        events: &[StoreEvent],
        mut had: bool,
        during: (Instant, Instant),
    ) -> Result<Vec<(Done, &StoreEvent)>, Box<Violation>> {
        // A disappearance may be due to several removes. If any order is right, it is right to take
        // the one that ended first.
        done.sort_by_key(|done| done.to);
        let mut in_order = Vec::new();
        let mut absent_since = (!had).then_some(during.0);
        for event in events {
            let due_to = |done: &Done| {
                done.changes()
                    && done.has == event.has
                    && done.had == had
                    && (done.from < event.at && event.at <= done.to)
            };
            let Some(n) = done.iter().position(due_to) else {
                let what = format!("{} since {}, which no change explains", show(&event.has), event.at.0);
                let left: Vec<_> = done.iter().map(Done::show).collect();
                return Err(Violation::new(number, during, what, left.join(", ")));
            };
            in_order.push((done.remove(n), event));
            had = event.has.is_some();
            match (had, absent_since.take()) {
                (true, Some(since)) => done.retain(|done| !done.did_nothing(since, event.at)),
                (false, _) => absent_since = Some(event.at),
                (true, None) => {}
            }
        }
        if let Some(since) = absent_since {
            done.retain(|done| !done.did_nothing(since, Instant(usize::MAX)));
        }
        match done.first() {
            None => Ok(in_order),
            Some(done) => {
                let what = format!("{}, which no store bears out", done.show());
                Err(Violation::new(number, (done.from, done.to), what, "such a store".into()))
            }
        }
    }

    fn show(&self) -> String {
        let [had, has] = [if self.had { "there" } else { "absent" }, &show(&self.has)];
        format!("a change from {} to {}: was {had}, is {has}", self.from.0, self.to.0)
    }

    /// Whether it rightly did nothing, given that the key was absent from `since` until `until`. A
    /// put into a full table looks for its key a last time (L6).
    fn did_nothing(&self, since: Instant, until: Instant) -> bool {
        let looked_last = if self.is_full { self.to } else { self.from };
        !self.changes() && since <= self.to && looked_last < until
    }
}

/// A server over a recorded region, and what it did.
#[derive(Debug)]
pub struct World {
    index: Index,
    recorder: Arc<Recorder>,
    clock: Clock,
    scene: Scene,
    versions: BTreeMap<KeyNumber, Vec<Version>>,
    operations: u64,
    places: BTreeMap<KeyNumber, SlotIx>,
    moves: Vec<Move>,
    killed: Option<(Instant, Instant)>,
    recovered: Recovered,
    /// Every change, so that it can be repeated. `None` if repeating would not give the same
    /// result.
    log: Option<Mutex<Vec<Change>>>,
    /// What threads encountered while they were interleaved.
    met: Decided,
}

/// A GET's answer, or why there was none.
pub type GetAnswer<E = SimGetError> = Result<Option<Vec<u8>>, E>;

fn answer<F: Fabric>(reader: &mut Reader<'_, F>, number: KeyNumber) -> GetAnswer<F::Error> {
    let mut value = Vec::new();
    reader.get_into(&key(number), &mut value).map(|found| found.then_some(value))
}

/// A wrong report by a GET or a server thread, or memory whose content no change explains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {key} from instant {} to {}: {answer}; right: {right}{story}", from.0, to.0)]
pub struct Violation {
    /// The key.
    pub key: KeyNumber,
    /// When the GET, or the other wrong thing, began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
    /// What was wrong.
    pub answer: String,
    /// What would have been right.
    pub right: String,
    /// What the server stored meanwhile and what the GET's READs sampled, if a story was asked for.
    pub story: String,
}

impl Violation {
    fn new(key: KeyNumber, (from, to): (Instant, Instant), answer: String, right: String) -> Box<Violation> {
        Box::new(Violation { key, from, to, answer, right, story: String::new() })
    }
}

fn show_answer<E: std::error::Error>(answer: &GetAnswer<E>) -> String {
    match answer {
        Ok(Some(value)) => show_value(value),
        Ok(None) => "absent".into(),
        Err(error) => error.to_string(),
    }
}

impl World {
    /// A server with an empty table.
    ///
    /// # Panics
    /// When the scene is impossible.
    pub fn new(scene: Scene) -> World {
        let geometry = scene.geometry();
        let (region, recorder, clock) = memory(&geometry);
        let index = Index::create(region, geometry, clock.clone()).expect("private memory needs no backing");
        World::over(index, recorder, clock, scene)
    }

    fn over(index: Index, recorder: Arc<Recorder>, clock: Clock, scene: Scene) -> World {
        let (versions, operations, places, moves, killed) = Default::default();
        let (log, met, recovered) = (Some(Mutex::default()), Decided::default(), Recovered::default());
        World {
            index,
            recorder,
            clock,
            scene,
            versions,
            operations,
            places,
            moves,
            killed,
            recovered,
            log,
            met,
        }
    }

    /// The server.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// An inspector of its region.
    pub fn inspector(&self) -> Inspector<'_> {
        Inspector::new(self.index.region(), self.geometry())
    }

    /// The scene.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// The current instant.
    pub fn now(&self) -> Instant {
        self.recorder.now()
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.recorder.history(self.geometry().region_bytes())
    }

    /// The past so far, for clients that look everywhere.
    pub fn bare_past(&self) -> Past {
        Past::new(self.history(), Vec::new())
    }

    /// The past from `begin` on, for clients that look where something happens.
    pub fn past(&self, begin: Instant) -> Past {
        let history = self.history();
        let incidents = Stores::read_off(&history, self.geometry(), begin, self.killed).incidents;
        Past::new(history, incidents)
    }

    /// What threads encountered while they were interleaved.
    pub fn met(&self) -> Decided {
        self.met.clone()
    }

    /// Sets where the server loses its processor from now on.
    pub fn stall(&self, stalls: Stalls) {
        self.recorder.stall(stalls);
    }

    /// A server that repeats these changes, and loses its processor once: for `time`, after the
    /// store that makes the instant `after`.
    ///
    /// # Panics
    /// When more than one server thread made these changes.
    pub fn stalled_at(&self, after: Instant, time: Duration) -> World {
        let log = self.log.as_ref().expect("one server thread did it all");
        let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut world = World::new(self.scene);
        world.stall(Stalls::Once(after, time));
        for change in log {
            match change {
                Change::Put(number) => {
                    world.put(number);
                }
                Change::Remove(number) => {
                    world.remove(number);
                }
                Change::Tidy => world.tidy(),
                Change::Wait(time) => world.wait(time),
                Change::Get(_) => {}
            }
        }
        world
    }

    fn log(&self, change: Change) {
        if let Some(log) = &self.log {
            log.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        }
    }

    /// The table's geometry.
    pub fn geometry(&self) -> &Geometry {
        self.index.geometry()
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.log(Change::Wait(time));
        self.clock.advance(time);
    }

    /// Takes away traces that are due.
    pub fn tidy(&self) {
        self.log(Change::Tidy);
        self.index.tidy();
    }

    /// Puts a new value; `false` when the table is full.
    pub fn put(&mut self, number: KeyNumber) -> bool {
        self.operations += 1;
        self.change_and_record(Change::Put(number))
    }

    /// Removes a key. Returns whether it was there.
    pub fn remove(&mut self, number: KeyNumber) -> bool {
        self.change_and_record(Change::Remove(number))
    }

    /// Runs each script on a server thread of its own. `seed` decides how their accesses
    /// interleave. The stores show which of two changes of one key came first.
    ///
    /// # Errors
    /// [`Violation`] in three cases. The stores are not those of the changes, one after the other
    /// in some order that their times allow. Or the server was wrong about whether a key was there.
    /// Or at the end a key does not stand in exactly one slot.
    pub fn interleave(&mut self, seed: u64, scripts: &[Vec<Change>]) -> Result<(), Box<Violation>> {
        self.log = None;
        let from = self.now();
        let mut operation = self.operations;
        let world = &*self;
        let work = |script: &Vec<Change>| {
            let numbered: Vec<_> = (operation + 1..).zip(script.clone()).collect();
            operation += script.len() as u64;
            move || numbered.into_iter().filter_map(|(n, change)| world.change(n, change)).collect::<Vec<_>>()
        };
        let waits = self.index.counts().waits;
        let did = turns::run(seed, scripts.iter().map(work).collect());
        let puts = scripts.iter().flatten().filter(|change| matches!(change, Change::Put(_))).count() as u64;
        let waited = self.index.counts().waits - waits;
        let most = puts * u64::from(waits_max(self.index.geometry()));
        assert!(waited <= most, "{puts} puts have waited {waited} times");
        self.operations = operation;
        let mut all_done: BTreeMap<KeyNumber, Vec<Done>> = BTreeMap::new();
        // The looks of each thread, in order.
        let mut looks = Vec::new();
        let mut in_chains: Vec<Vec<(u64, Instant, Instant)>> = Vec::new();
        for did in did {
            let (mut mine, mut chains) = (Vec::new(), Vec::new());
            for did in did {
                match did {
                    Did::Look(number, answer, during) => mine.push((number, answer, during)),
                    Did::Change(done) => {
                        if done.changes() && self.has_chain(done.number) {
                            chains.push((self.home(done.number), done.from, done.to));
                        }
                        all_done.entry(done.number).or_default().push(done);
                    }
                }
            }
            looks.push(mine);
            in_chains.push(chains);
        }
        for (n, mine) in in_chains.iter().enumerate() {
            let others = in_chains[n + 1..].iter().flatten();
            for (home, from, to) in others {
                let met = mine.iter().filter(|(h, f, t)| h == home && f < to && from < t).count();
                (0..met).for_each(|_| self.met.count(By::TwoInChain, true));
            }
        }

        let stores = Stores::read_off(&self.history(), self.geometry(), from, None);
        let during = (from, self.now());
        if let Some((number, at)) = stores.differ {
            let what = format!("another value in one of two slots since {}", at.0);
            return Err(Violation::new(number, during, what, "the same in both".into()));
        }
        self.moves.extend(&stores.moves);
        self.places.clear();
        for &number in all_done.keys().chain(stores.copies.keys()) {
            self.versions.entry(number).or_insert_with(|| vec![Version::ABSENT]);
        }
        for (&number, versions) in &mut self.versions {
            let done = all_done.remove(&number).unwrap_or_default();
            let events = stores.events.get(&number).map_or(&[][..], |events| events);
            let had = versions.last().expect("at least one").value.is_some();
            let in_order = Done::in_order(number, done, events, had, during)?;
            // A change shows from its store on. The version before it shows until the change, or a
            // later one, has ended.
            for (n, (_, event)) in in_order.iter().enumerate() {
                versions.last_mut().expect("at least one").until =
                    in_order[n..].iter().map(|(done, _)| done.to).min();
                versions.push(Version { value: event.has.clone(), from: event.at, until: None });
            }
            let last = versions.last().expect("at least one");
            match (&last.value, stores.copies.get(&number).map_or(&[][..], |slots| slots)) {
                (Some(_), &[slot]) => {
                    self.places.insert(number, slot);
                }
                (None, []) => {}
                (_, copies) => {
                    let answer = format!("{} slots hold it at the end", copies.len());
                    return Err(Violation::new(number, during, answer, last.show()));
                }
            }
        }
        for mine in looks {
            let mut seen: HashMap<KeyNumber, usize> = HashMap::new();
            for (number, answer, during) in mine {
                let newest = seen.entry(number).or_default();
                *newest = self.judge(number, &answer, during, *newest)?;
                self.met.gets += 1;
                self.met.count(By::Shm, during.0 < during.1);
            }
        }
        Ok(())
    }

    fn home(&self, number: KeyNumber) -> u64 {
        self.geometry().hashed(&key(number)).home()
    }

    /// Whether the key's home has a chain now.
    fn has_chain(&self, number: KeyNumber) -> bool {
        self.inspector().windows(&key(number)).0.iter().any(|w| w.first.0 >= self.geometry().main_slots())
    }

    /// Makes a change. `None` if it is not about a key.
    fn change(&self, operation: u64, change: Change) -> Option<Did> {
        let from = self.now();
        let mut is_full = false;
        let (number, had, has) = match change {
            Change::Put(number) => {
                // Every word differs from that of every other value, so a mixture of two is
                // noticed.
                let stamp = operation.to_le_bytes();
                let value: Vec<u8> = stamp.iter().cycle().take(self.scene.value_bytes).copied().collect();
                match self.index.put(&key(number), &value, PutMode::Upsert) {
                    Ok(put) => (number, put == PutOutcome::Updated, Some(value)),
                    Err(PutError::Full { .. }) => {
                        is_full = true;
                        (number, false, None)
                    }
                    Err(error) => panic!("the scene allows every put: {error}"),
                }
            }
            Change::Remove(number) => {
                (number, self.index.remove(&key(number)).expect("a key of allowed length"), None)
            }
            Change::Tidy => {
                self.tidy();
                return None;
            }
            Change::Wait(time) => {
                self.wait(time);
                return None;
            }
            Change::Get(number) => {
                let fabric = Shm::new(self.index.region(), self.geometry());
                let mut reader = Reader::new(fabric, self.geometry(), Clock::manual(), LIMITS);
                let answer = answer(&mut reader, number);
                return Some(Did::Look(number, answer, (from, self.now())));
            }
        };
        Some(Did::Change(Done { number, had, has, from, to: self.now(), is_full }))
    }

    /// The server stops and hands its table over (T6). Nothing may be changed after that.
    ///
    /// # Panics
    /// When traces stay longer than a second.
    pub fn stop(&mut self) {
        self.log = None;
        self.index.hand_over(Duration::from_secs(1)).expect("short grace times");
    }

    /// What this server found when it took its table over.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Compares what the server knows of its keys with what stands in the slots.
    fn check_counts(&self) -> Result<(), Box<Violation>> {
        let there = self.inspector().slots().filter(|report| !report.key.is_empty());
        let is_displaced = |report: &SlotReport| {
            !self.geometry().primary(self.geometry().hashed(&report.key)).contains(report.slot)
        };
        let (displaced, at_home): (Vec<_>, Vec<_>) = there.partition(is_displaced);
        let stand = ((displaced.len() + at_home.len()) as u64, displaced.len());
        let known = (self.index.len(), self.index.displaced());
        if known == stand {
            return Ok(());
        }
        let [answer, right] =
            [known, stand].map(|(keys, displaced)| format!("{keys} keys, {displaced} displaced"));
        Err(Violation::new(
            0,
            self.killed.unwrap_or_default(),
            format!("the server knows of {answer}"),
            right,
        ))
    }

    /// The world in which this server was killed at the instant `killed` and another took its
    /// region over ([`Index::open`]).
    ///
    /// # Errors
    /// [`Violation`] when a key is not as the last change that had ended left it, or as one that was
    /// under way would have.
    pub fn taken_over_at(&self, killed: Instant) -> Result<World, Box<Violation>> {
        let (region, recorder, clock) = memory(self.geometry());
        self.recorder.repeat(killed, &region, &clock);
        let (index, found) = Index::open(region, clock.clone()).expect("a region that was served");
        let mut world = World::over(index, recorder, clock, self.scene);
        let taken_over = world.now();
        (world.operations, world.killed, world.log) = (self.operations, Some((killed, taken_over)), None);
        world.recovered = found;
        world.check_counts()?;
        for (&number, versions) in &self.versions {
            let mut versions: Vec<_> = versions.iter().filter(|v| v.from <= killed).cloned().collect();
            let answer = answer(&mut world.index.reader(), number);
            // Operations that were under way may or may not have been done, and may take effect
            // only now.
            let under_way = |v: &Version| v.until.is_some_and(|until| until > killed);
            let ended = versions[..versions.len() - 1].iter().rposition(|v| !under_way(v));
            let sure = ended.map_or(0, |n| n + 1);
            let newest = (sure..versions.len()).rev().find(|&n| versions[n].is(&answer));
            versions.truncate(newest.map_or(versions.len(), |n| n + 1));
            versions[sure..].iter_mut().for_each(|version| version.until = Some(taken_over));
            let last = versions.last_mut().expect("each key was absent at first");
            last.until = None;
            if !last.is(&answer) {
                let right = format!("{}, {} slots half written", last.show(), found.torn);
                let answer = format!("a GET after the takeover answered {}", show_answer(&answer));
                return Err(Violation::new(number, (killed, taken_over), answer, right));
            }
            world.versions.insert(number, versions);
            if let Some(place) = world.place(number) {
                world.places.insert(number, place);
            }
        }
        Ok(world)
    }

    /// Keys moved so far, in order. A key that one operation of a single thread moved twice counts
    /// once.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// When the previous server was killed, and when this one had taken its region over.
    pub fn killed(&self) -> Option<(Instant, Instant)> {
        self.killed
    }

    fn place(&self, number: KeyNumber) -> Option<SlotIx> {
        let key = key(number);
        let report = self.inspector().key(&key);
        report.windows.iter().flatten().find(|report| report.key == key).map(|report| report.slot)
    }

    /// Makes a change of a key and records its result. `false` if it changed nothing.
    fn change_and_record(&mut self, change: Change) -> bool {
        self.log(change);
        let moves = self.index.counts().moves;
        let Some(Did::Change(done)) = self.change(self.operations, change) else {
            unreachable!("a change of a key")
        };
        self.note(&done);
        if done.has.is_some() {
            let place = self.place(done.number).expect("it was just put");
            self.places.insert(done.number, place);
        } else {
            self.places.remove(&done.number);
        }
        if self.index.counts().moves != moves {
            for (key, stood) in std::mem::take(&mut self.places) {
                let stands = self.place(key).expect("a key that is there");
                if stands != stood {
                    self.moves.push(Move { key, began: done.from, from: stood, to: stands });
                }
                self.places.insert(key, stands);
            }
        }
        done.changes()
    }

    /// Records a change: the key has another value from then on. The server must have been right
    /// about whether the key was there, because only one thread at a time changes a key.
    fn note(&mut self, done: &Done) {
        let versions = self.versions.entry(done.number).or_insert_with(|| vec![Version::ABSENT]);
        let last = versions.last_mut().expect("at least one");
        assert_eq!(
            done.had,
            last.value.is_some(),
            "key {}: {}, not {}",
            done.number,
            done.show(),
            last.show()
        );
        if done.changes() {
            last.until = Some(done.to);
            versions.push(Version { value: done.has.clone(), from: done.from, until: None });
        }
    }

    /// Compares an answer with the key's versions. `seen` is the number of the newest version that
    /// the same client has seen before. Returns the number of the version that it has seen now.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge<E: std::error::Error>(
        &self,
        number: KeyNumber,
        answer: &GetAnswer<E>,
        (from, to): (Instant, Instant),
        seen: usize,
    ) -> Result<usize, Box<Violation>> {
        let versions = self.versions.get(&number).map_or(&[Version::ABSENT][..], |v| v);
        let right = |v: &Version| v.from <= to && v.until.is_none_or(|until| from < until);
        let matching = |(n, v): &(usize, &Version)| *n >= seen && right(v) && v.is(answer);
        if let Some((n, _)) = versions.iter().enumerate().find(matching) {
            return Ok(n);
        }
        let show = |(n, v): (usize, &Version)| format!("#{n} {}", v.show());
        let all: Vec<_> = versions.iter().enumerate().filter(|(_, v)| right(v)).map(show).collect();
        let right = format!("{all:?}, having seen #{seen}");
        Err(Violation::new(number, (from, to), format!("a GET answered {}", show_answer(answer)), right))
    }

    /// Whether a slot is half written at this instant, in any window that a GET of the key then
    /// READs.
    pub fn is_half_written(&self, history: &History, number: KeyNumber, at: Instant) -> bool {
        let (geometry, key) = (self.geometry(), key(number));
        let key = geometry.hashed(&key);
        let header = |slot: SlotIx| {
            let word = geometry.slot_word(slot);
            Header::from_words([history.word(word, at), history.word(word + 1, at)])
        };
        let primary = geometry.primary(key);
        let is_displaced = families::may_be_displaced(geometry, key, header(primary.first).aux);
        let further = (1..=CHAIN_MAX).scan(primary, |last, read| {
            *last = families::after(geometry, key, read, header(last.first).aux)?;
            Some(*last)
        });
        let windows = std::iter::once(primary).chain(further.take_while(|_| is_displaced));
        windows.flat_map(|window| window.iter()).any(|slot| !header(slot).stamp.is_multiple_of(2))
    }

    /// The stores into the key's windows during a wrong GET, then what its READs sampled.
    fn story(&self, history: &History, violation: &Violation, reads: &[String]) -> String {
        let geometry = self.geometry();
        let inspector = self.inspector();
        let (windows, _) = inspector.windows(&key(violation.key));
        let mut story = String::from("\nstores into the windows that the key has at the end:");
        for slot in windows.iter().flat_map(|window| window.iter()) {
            let first = geometry.slot_word(slot);
            for (at, word, value) in
                history.stores(first..first + geometry.shape().words(), violation.from, violation.to)
            {
                story += &format!("\n  {}: slot {} word {} = {value:#018x}", at.0, slot.0, word - first);
            }
        }
        reads.iter().fold(story, |story, read| story + "\n" + read)
    }

    /// Whether the key was there at every instant of `[from, to]`.
    fn stays(&self, number: KeyNumber, (from, to): (Instant, Instant)) -> bool {
        let during = |v: &&Version| v.from <= to && v.until.is_none_or(|until| from <= until);
        let versions = self.versions.get(&number).map_or(&[][..], |versions| versions);
        let mut during = versions.iter().filter(during).peekable();
        during.peek().is_some() && during.all(|version| version.value.is_some())
    }

    /// Runs a client's GETs one after the other. Returns how many had an answer, and what decided
    /// them. With `tell`, a violation comes with its story.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn client(
        &self,
        past: &Past,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        asks: &mut PlannedGets<'_>,
        tell: bool,
    ) -> Result<Decided, Box<Violation>> {
        let mut decided = Decided::default();
        let mut seen: HashMap<KeyNumber, usize> = HashMap::new();
        let geometry = self.geometry();
        let mut fabric = Sim::new(&past.history, geometry, hardware, adversary, Instant(0));
        if tell {
            fabric.tell();
        }
        let hints = Hints::new(geometry, usize::MAX).filter(|_| hardware.hints);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        while let Some(PlannedGet { key: number, from, read_stores_max }) = asks(reader.fabric().now()) {
            let key = key(number);
            let key = geometry.hashed(&key);
            let leaps = past.leaps.get(&number).map_or(&[][..], |leaps| leaps);
            let aim = Aim { home: key.home(), ghost: key.ghost(), read_stores_max, leaps };
            reader.fabric_mut().begin(from, aim);
            if let Some(hints) = &hints {
                self.mislead(&past.history, hints, reader.fabric_mut(), number);
            }
            let (from, before) = (reader.fabric().now(), reader.stats().retries_torn);
            let hinted = reader.hint_counts();
            let answer = answer(&mut reader, number);
            if hardware.error_one_in > 0 && matches!(answer, Err(SimGetError::ReadFailed)) {
                continue;
            }
            let newest = seen.entry(number).or_default();
            let judged = self.judge(number, &answer, (from, reader.fabric().now()), *newest);
            *newest = judged.map_err(|mut violation| {
                if tell {
                    violation.story = self.story(&past.history, &violation, reader.fabric().story());
                }
                violation
            })?;
            let during = (from, reader.fabric().now());
            let was_torn = reader.stats().retries_torn > before;
            decided.gets += 1;
            self.count(&mut decided, number, &answer, during, was_torn, reader.fabric().met());
            let hits = reader.hint_counts().hits > hinted.hits;
            decided.count(By::Hint, hits);
            decided.count(By::WrongHint, !hits && reader.hint_counts().hinted > hinted.hinted);
        }
        Ok(decided)
    }

    /// Lets the adversary decide what hints say of a key: what they say anyway, one of its slots,
    /// or two; in a table that grows one, of any segment. Slots that stay as they are, and never hold
    /// the key, are all the same to a GET: one of them stands for all.
    fn mislead(
        &self,
        history: &History,
        hints: &Hints,
        sim: &mut Sim<'_, impl Adversary>,
        number: KeyNumber,
    ) {
        let (geometry, name, now) = (self.geometry(), key(number), sim.now());
        let hashed = geometry.hashed(&name);
        let mut slots: Vec<SlotIx> = Vec::new();
        let (mut others, mut instants) = (None, Vec::new());
        for slot in slots_of(geometry, hashed) {
            let (first, words) = (geometry.slot_word(slot), geometry.shape().words());
            history.distinct(first, words, now, history.end(), &mut instants);
            let image: Vec<u64> = (first..first + words).map(|word| history.word(word, now)).collect();
            let holds = View::consistent(geometry.shape(), &image).is_ok_and(|view| view.holds(&name));
            if slots.contains(&slot) {
            } else if instants.len() > 1 || holds {
                slots.push(slot);
            } else {
                others = Some(slot);
            }
        }
        slots.extend(others);
        let pairs = (0..slots.len()).flat_map(|one| (one + 1..slots.len()).map(move |other| (one, other)));
        let mut named: Vec<Vec<SlotIx>> = slots.iter().map(|slot| vec![*slot]).collect();
        // With pairs of all segments' slots, small cases would have too many schedules.
        if !geometry.grows() {
            named.extend(pairs.map(|(one, other)| vec![slots[one], slots[other]]));
        }
        if let Some(nth) = sim.pick(named.len() + 1).checked_sub(1) {
            hints.pretend(geometry, hashed, &named[nth]);
        }
    }

    /// Counts what decided a GET.
    fn count(
        &self,
        decided: &mut Decided,
        number: KeyNumber,
        answer: &GetAnswer,
        (from, to): (Instant, Instant),
        was_torn: bool,
        met: &Met,
    ) {
        let found = matches!(answer, Ok(Some(_)));
        // Earlier passes that the GET did not accept: whether accepting one would have been wrong.
        let earlier = &met.passes[..met.passes.len().saturating_sub(1)];
        let saved = |proof| {
            earlier.iter().any(|pass| pass.proof == Some(proof) && self.stays(number, (pass.from, pass.to)))
        };
        let last = met.passes.last().and_then(|pass| pass.proof);
        let taken_over = self.killed.is_some_and(|(killed, until)| from < until && killed < to);
        for (what, is_so) in [
            (By::Choice, met.choice),
            (By::Torn, was_torn),
            (By::NewGhost, saved(Proof::InGrace)),
            (By::Late, saved(Proof::Late)),
            (By::Counter, saved(Proof::Moved)),
            (By::OldGhost, !found && last == Some(Proof::InGrace) && met.ghosts > 0),
            (By::Filter, !found && met.further > 0),
            (By::DisplacedHit, found && met.further > 0),
            (By::BlockHit, found && met.blocks > 0),
            (By::BlockReused, met.block_reused),
            (By::Takeover, taken_over),
            (By::Slept, met.slept),
        ] {
            decided.count(what, is_so);
        }
    }

    /// Runs a batch of GETs in one [`Reader::get_many`]. Returns how many had an answer. Each
    /// answer is judged over its own time, and by what the client had seen of the key before.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn batch(
        &self,
        past: &Past,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        start: Instant,
        numbers: &[KeyNumber],
    ) -> Result<Decided, Box<Violation>> {
        /// A key that notes when it was last read before its answer. That is when its GET begins.
        struct Wanted<'w> {
            bytes: Vec<u8>,
            began: Cell<(Instant, usize)>,
            now: &'w Cell<Instant>,
            answers: &'w Cell<usize>,
        }
        impl AsRef<[u8]> for Wanted<'_> {
            fn as_ref(&self) -> &[u8] {
                self.began.set((self.now.get(), self.answers.get()));
                &self.bytes
            }
        }
        let geometry = self.geometry();
        let fabric = Sim::new(&past.history, geometry, hardware, adversary, start);
        let now = fabric.watch();
        let hints = Hints::new(geometry, usize::MAX).filter(|_| hardware.hints);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        if let Some(hints) = &hints {
            let sim = reader.fabric_mut();
            numbers.iter().for_each(|&number| self.mislead(&past.history, hints, sim, number));
            reader = reader.with_hints(hints);
        }
        let answers = Cell::new(0);
        let wanted = |&n: &KeyNumber| {
            let began = Cell::new((start, 0));
            Wanted { bytes: key(n), began, now: &now, answers: &answers }
        };
        let wanted: Vec<_> = numbers.iter().map(wanted).collect();
        // The key, its answer, when the GET began and how many answers there were by then, and when
        // the GET ended.
        let mut answered: Vec<(usize, GetAnswer, (Instant, usize), Instant)> = Vec::new();
        let ended = reader.get_many(&wanted, |n, value| {
            answered.push((n, Ok(value.map(<[u8]>::to_vec)), wanted[n].began.get(), now.get()));
            answers.set(answers.get() + 1);
        });
        let failed = hardware.error_one_in > 0 && matches!(ended, Err(SimGetError::ReadFailed));
        if let (Err(error), false) = (ended, failed) {
            let open = (0..numbers.len()).find(|n| answered.iter().all(|(other, ..)| other != n));
            let number = numbers[open.unwrap_or(0)];
            self.judge(number, &Err(error), (start, now.get()), 0)?;
        }
        let mut decided = Decided::default();
        let mut seen: Vec<(KeyNumber, usize)> = Vec::new();
        for (n, answer, (from, before), to) in answered {
            let known = seen[..before].iter().filter(|(number, _)| *number == numbers[n]);
            let newest = known.map(|(_, version)| *version).max().unwrap_or(0);
            seen.push((numbers[n], self.judge(numbers[n], &answer, (from, to), newest)?));
            decided.gets += 1;
        }
        let choice = reader.fabric().met().choice;
        (0..decided.gets).for_each(|_| decided.count(By::Choice, choice));
        let hinted = reader.hint_counts();
        (0..hinted.hits).for_each(|_| decided.count(By::Hint, true));
        Ok(decided)
    }
}

fn show(value: &Option<Vec<u8>>) -> String {
    value.as_ref().map_or("absent".into(), |value| show_value(value))
}

/// The operation that wrote a value. For a mixture, all of them.
fn show_value(value: &[u8]) -> String {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let mut words: Vec<u64> = value.chunks_exact(8).map(word).collect();
    words.dedup();
    match words[..] {
        [operation] => format!("value of operation {operation}"),
        _ => format!("a mixture of operations {words:?}"),
    }
}
