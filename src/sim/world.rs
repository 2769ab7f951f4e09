//! A server over a recorded region, and what it did.
//!
//! A [`World`] remembers every value of each key, and from when to when the key had it.
//! [`World::judge`] compares a GET's answer with that. `Found(v)` is right only if `v` was the key's
//! value at some instant of the GET. `Absent` is right only if the key was absent at some instant of
//! it. Later GETs of the same client never go back to an older version.

use super::decided::{By, Decided};
use super::history::{History, Instant, Recorder, Stalls};
use super::keys::{KeyNumber, key};
use super::oracle::{Change, Did, Done, GetAnswer, Oracle, Violation};
use super::past::Past;
use super::scene::{LIMITS, Scene, memory};
use super::stores::{Move, Stores};
use super::turns;
use crate::base::clock::Clock;
use crate::fabric::Fabric;
use crate::fabric::shm::Shm;
use crate::index::growth::pace::Pace;
use crate::index::{Index, Recovered, waits_max};
use crate::inspect::{Inspector, SlotReport};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::outcome::{PutError, PutMode, PutOutcome};
use crate::reader::Reader;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A server over a recorded region, and what it did.
#[derive(Debug)]
pub struct World {
    index: Index,
    recorder: Arc<Recorder>,
    clock: Clock,
    scene: Scene,
    oracle: Oracle,
    operations: u64,
    stands: BTreeMap<KeyNumber, SlotIx>,
    moves: Vec<Move>,
    killed: Option<(Instant, Instant)>,
    recovered: Recovered,
    /// Every change, so that it can be repeated. `None` if repeating would not give the same
    /// result.
    log: Option<Mutex<Vec<Change>>>,
    /// What threads encountered while they were interleaved.
    met: Decided,
}

pub(super) fn answer<F: Fabric>(reader: &mut Reader<'_, F>, number: KeyNumber) -> GetAnswer<F::Error> {
    let mut value = Vec::new();
    reader.get_into(&key(number), &mut value).map(|found| found.then_some(value))
}

impl World {
    /// A server with an empty table.
    ///
    /// # Panics
    /// When the scene is impossible.
    pub fn new(scene: Scene) -> World {
        let geometry = scene.geometry();
        let (region, recorder, clock) = memory(&geometry);
        let index = Index::create_at_pace(region, geometry, clock.clone(), Pace::small())
            .expect("private memory needs no backing");
        World::over(index, recorder, clock, scene)
    }

    fn over(index: Index, recorder: Arc<Recorder>, clock: Clock, scene: Scene) -> World {
        let (oracle, operations, stands, moves, killed) = Default::default();
        let (log, met, recovered) = (Some(Mutex::default()), Decided::default(), Recovered::default());
        World {
            index,
            recorder,
            clock,
            scene,
            oracle,
            operations,
            stands,
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
        self.index.make_ahead();
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
        let most = puts * u64::from(waits_max(self.index.geometry(), &Pace::small()));
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
        self.stands = self.oracle.explain(all_done, &stores, during)?;
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
        let (index, found) =
            Index::open_at_pace(region, clock.clone(), Pace::small()).expect("a region that was served");
        let mut world = World::over(index, recorder, clock, self.scene);
        let taken_over = world.now();
        (world.operations, world.killed, world.log) = (self.operations, Some((killed, taken_over)), None);
        world.recovered = found;
        world.check_counts()?;
        let reader_answers = |number| answer(&mut world.index.reader(), number);
        world.oracle = self.oracle.taken_over((killed, taken_over), found.torn, reader_answers)?;
        let stand = world.oracle.keys().filter_map(|number| Some((number, world.slot_of(number)?)));
        world.stands = stand.collect();
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

    fn slot_of(&self, number: KeyNumber) -> Option<SlotIx> {
        let key = key(number);
        let report = self.inspector().key(&key);
        report.windows.iter().flatten().find(|report| report.key == key).map(|report| report.slot)
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
        during: (Instant, Instant),
        seen: usize,
    ) -> Result<usize, Box<Violation>> {
        self.oracle.judge(number, answer, during, seen)
    }

    /// Whether the key was there at every instant of `[from, to]`.
    pub(super) fn stays(&self, number: KeyNumber, during: (Instant, Instant)) -> bool {
        self.oracle.stays(number, during)
    }

    /// Makes a change of a key and records its result. `false` if it changed nothing.
    fn change_and_record(&mut self, change: Change) -> bool {
        self.log(change);
        let moves = self.index.counts().moves;
        let Some(Did::Change(done)) = self.change(self.operations, change) else {
            unreachable!("a change of a key")
        };
        self.oracle.note(&done);
        if done.has.is_some() {
            let slot = self.slot_of(done.number).expect("it was just put");
            self.stands.insert(done.number, slot);
        } else {
            self.stands.remove(&done.number);
        }
        if self.index.counts().moves != moves {
            for (key, stood) in std::mem::take(&mut self.stands) {
                let stands = self.slot_of(key).expect("a key that is there");
                if stands != stood {
                    self.moves.push(Move { key, began: done.from, from: stood, to: stands });
                }
                self.stands.insert(key, stands);
            }
        }
        done.changes()
    }
}
