//! Scenarios for the adversarial fabric, and the oracle that judges what GETs report.
//!
//! A [`World`] is a server over a recorded region. It remembers, for each key, every value the key had and
//! from when to when. [`World::judge`] then holds a GET's answer against that: `Found(v)` is right only if
//! `v` was the key's value at some instant of the GET, `Absent` only if the key was absent at some instant
//! of it, and later GETs of the same client never go back to an older version.

use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::fabric::sim::{Adversary, Hardware, History, Instant, ReadFailed, Recorder, Sim};
use crate::index::{Index, Put, PutError, PutMode};
use crate::inspect::Inspector;
use crate::layout::geometry::{Config, Geometry, Layout, Size, SlotIx};
use crate::layout::hash::Seeds;
use crate::reader::{Limits, ReadError, Reader};
use crate::region::Region;
use crate::turns;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// A key, by number; its bytes follow from it.
pub type KeyNumber = u32;

/// What a world is made from.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The layout.
    pub layout: Layout,
    /// Main slots.
    pub slots: u64,
    /// Bytes of value: decides how many lines a slot has.
    pub value_bytes: usize,
    /// The grace time; a store takes 1 ns.
    pub grace: Duration,
    /// Seed of the table's hashes.
    pub seed: u64,
}

/// Memory for a table, whose stores are recorded. Each takes 1 ns.
fn memory(geometry: &Geometry) -> (Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    (Region::recorded(geometry.region_bytes(), recorder.clone()), recorder, clock)
}

/// Bytes of every key.
pub const KEY_BYTES: usize = 8;

/// Bounds of every GET in a world: its clock stands still, so only retries end one.
const LIMITS: Limits = Limits { retries_max: 1_000, deadline: Duration::from_secs(3600) };

impl Scene {
    fn config(&self) -> Config {
        Config {
            layout: self.layout,
            size: Size::Slots(self.slots),
            key_max: KEY_BYTES,
            value_max: self.value_bytes,
            grace: self.grace,
            seeds: Some(Seeds::from_number(self.seed)),
        }
    }
}

/// A value that a key had, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    value: Option<Vec<u8>>,
    /// When the operation that made it began.
    from: Instant,
    /// When the operation that ended it had ended; `None`: it is the last.
    until: Option<Instant>,
}

impl Version {
    /// What every key is at first.
    const ABSENT: Version = Version { value: None, from: Instant(0), until: None };

    fn is<E>(&self, answer: &Answer<E>) -> bool {
        answer.as_ref().is_ok_and(|answer| *answer == self.value)
    }

    fn show(&self) -> String {
        self.value.as_ref().map_or("absent".into(), |value| show_value(value))
    }
}

/// What a server thread is to do.
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
}

impl Change {
    fn number(self) -> Option<KeyNumber> {
        match self {
            Change::Put(number) | Change::Remove(number) => Some(number),
            Change::Tidy | Change::Wait(_) => None,
        }
    }
}

/// What a change of a key came to: whether the server found it, what it has then, and when the operation began and ended.
struct Done {
    number: KeyNumber,
    had: bool,
    has: Option<Vec<u8>>,
    from: Instant,
    to: Instant,
}

impl Done {
    fn changes(&self) -> bool {
        self.had || self.has.is_some()
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
    killed: Option<Instant>,
    /// Most server threads at once.
    threads: u64,
}

/// A key that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The key.
    pub key: KeyNumber,
    /// When the operation that moved it began.
    pub began: Instant,
    /// Where it stood.
    pub from: SlotIx,
    /// Where it stands.
    pub to: SlotIx,
}

/// A GET's answer, or why there was none.
pub type Answer<E = ReadFailed> = Result<Option<Vec<u8>>, ReadError<E>>;

fn answer<F: Fabric>(reader: &mut Reader<'_, F>, number: KeyNumber) -> Answer<F::Error> {
    let mut value = Vec::new();
    reader.get_into(&key(number), &mut value).map(|found| found.then_some(value))
}

/// A GET that reported what was not so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GET of key {key} from instant {} to {} answered {answer}; right were {right}{story}", from.0, to.0)]
pub struct Violation {
    /// The key.
    pub key: KeyNumber,
    /// When the GET began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
    /// What it answered.
    pub answer: String,
    /// What it might have answered.
    pub right: String,
    /// What the server stored meanwhile and what the GET's READs sampled, if that was to be told.
    pub story: String,
}

impl Violation {
    fn new(key: KeyNumber, (from, to): (Instant, Instant), answer: String, right: String) -> Box<Violation> {
        Box::new(Violation { key, from, to, answer, right, story: String::new() })
    }
}

fn show_answer<E: std::error::Error>(answer: &Answer<E>) -> String {
    match answer {
        Ok(Some(value)) => show_value(value),
        Ok(None) => "absent".into(),
        Err(error) => error.to_string(),
    }
}

/// The bytes of a key.
pub fn key(number: KeyNumber) -> [u8; KEY_BYTES] {
    (u64::from(number) << 32 | 0xabcd_ef01).to_le_bytes()
}

impl World {
    /// A server with an empty table.
    ///
    /// # Panics
    /// When the scene is impossible.
    pub fn new(scene: Scene) -> World {
        let geometry = scene.config().geometry().expect("a possible scene");
        let (region, recorder, clock) = memory(&geometry);
        let index = Index::create(region, geometry, clock.clone()).expect("private memory needs no backing");
        World::over(index, recorder, clock, scene)
    }

    fn over(index: Index, recorder: Arc<Recorder>, clock: Clock, scene: Scene) -> World {
        let (versions, operations, places, moves, killed) = Default::default();
        World { index, recorder, clock, scene, versions, operations, places, moves, killed, threads: 1 }
    }

    /// The server.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Looks into its region.
    pub fn inspector(&self) -> Inspector<'_> {
        Inspector::new(self.index.region(), self.geometry())
    }

    /// The scene.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// The instant now.
    pub fn now(&self) -> Instant {
        self.recorder.now()
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.recorder.history(self.geometry().region_bytes())
    }

    /// The table's geometry.
    pub fn geometry(&self) -> &Geometry {
        self.index.geometry()
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Takes away traces that are due.
    pub fn tidy(&self) {
        self.index.tidy();
    }

    /// Puts a new value; `false` when the table is full.
    pub fn put(&mut self, number: KeyNumber) -> bool {
        self.operations += 1;
        self.change_and_record(Change::Put(number))
    }

    /// Removes a key; was it there?
    pub fn remove(&mut self, number: KeyNumber) -> bool {
        self.change_and_record(Change::Remove(number))
    }

    /// Does what the scripts say, each with a server thread of its own. Their accesses interleave as `seed` decides.
    /// [`World::moves`] does not tell of them.
    ///
    /// # Errors
    /// [`Violation`], when the server was wrong about whether a key was there, or at the end has lost or doubled one.
    ///
    /// # Panics
    /// When one key is in two scripts: which change came first would be anybody's guess.
    pub fn interleave(&mut self, seed: u64, scripts: &[Vec<Change>]) -> Result<(), Box<Violation>> {
        let keys = scripts.iter().map(|script| script.iter().filter_map(|change| change.number()).collect());
        let keys: Vec<BTreeSet<_>> = keys.collect();
        let all: BTreeSet<_> = keys.iter().flatten().collect();
        assert_eq!(all.len(), keys.iter().map(BTreeSet::len).sum::<usize>(), "a key in two scripts");
        self.threads = self.threads.max(scripts.len() as u64);
        let from = self.now();
        let mut operation = self.operations;
        let world = &*self;
        let work = |script: &Vec<Change>| {
            let numbered: Vec<_> = (operation + 1..).zip(script.clone()).collect();
            operation += script.len() as u64;
            move || numbered.into_iter().filter_map(|(n, change)| world.change(n, change)).collect::<Vec<_>>()
        };
        let done = turns::run(seed, scripts.iter().map(work).collect());
        self.operations = operation;
        done.into_iter().flatten().try_for_each(|done| self.note(&done))?;

        let mut slots: BTreeMap<Vec<u8>, Vec<SlotIx>> = BTreeMap::new();
        for report in self.inspector().slots().filter(|report| !report.key.is_empty()) {
            slots.entry(report.key).or_default().push(report.slot);
        }
        self.places.clear();
        for (&number, versions) in &self.versions {
            let last = versions.last().expect("at least one");
            match (&last.value, slots.get(&key(number)[..]).map_or(&[][..], |slots| slots)) {
                (Some(_), &[slot]) => {
                    self.places.insert(number, slot);
                }
                (None, []) => {}
                (_, copies) => {
                    let answer = format!("nothing: {} slots hold it", copies.len());
                    return Err(Violation::new(number, (from, self.now()), answer, last.show()));
                }
            }
        }
        Ok(())
    }

    /// Makes a change; `None` if it is not of a key.
    fn change(&self, operation: u64, change: Change) -> Option<Done> {
        let from = self.now();
        let (number, had, has) = match change {
            Change::Put(number) => {
                // Every word differs from every other value's: a mixture of two is never taken for either.
                let stamp = operation.to_le_bytes();
                let value: Vec<u8> = stamp.iter().cycle().take(self.scene.value_bytes).copied().collect();
                match self.index.put(&key(number), &value, PutMode::Upsert) {
                    Ok(put) => (number, put == Put::Updated, Some(value)),
                    Err(PutError::Full { .. }) => (number, false, None),
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
        };
        Some(Done { number, had, has, from, to: self.now() })
    }

    /// The world in which this server was killed at the instant `killed` and another has taken its region
    /// over ([`Index::open`]); and how many keys were lost.
    ///
    /// # Errors
    /// [`Violation`], when more is amiss than a killed server may leave behind: a value that never was, or a
    /// key lost though no slot was half written, or more than it had threads.
    pub fn taken_over_at(&self, killed: Instant) -> Result<(World, u64), Box<Violation>> {
        let (region, recorder, clock) = memory(self.geometry());
        self.recorder.repeat(killed, &region, &clock);
        let (index, found) = Index::open(region, clock.clone()).expect("a region that was served");
        let mut world = World::over(index, recorder, clock, self.scene);
        (world.operations, world.killed) = (self.operations, Some(killed));
        let taken_over = world.now();
        let mut lost = 0;
        for (&number, versions) in &self.versions {
            let mut versions: Vec<_> = versions.iter().filter(|v| v.from <= killed).cloned().collect();
            let answer = answer(&mut world.index.reader(), number);
            // The operation that was under way has been done or not. Whichever it is, it may be so only now.
            let under_way = |v: &Version| v.until.is_some_and(|until| until > killed);
            if let [.., before, last] = &mut versions[..]
                && under_way(before)
            {
                before.until = Some(taken_over);
                if !last.is(&answer) && before.is(&answer) {
                    versions.pop();
                }
            }
            let last = versions.last_mut().expect("each key was absent at first");
            last.until = None;
            if !last.is(&answer) {
                lost += 1;
                if !matches!(answer, Ok(None)) || lost > found.torn.min(self.threads) {
                    let right = format!("{}, {} slots half written", last.show(), found.torn);
                    return Err(Violation::new(number, (killed, taken_over), show_answer(&answer), right));
                }
                last.until = Some(taken_over);
                versions.push(Version { value: None, from: killed, until: None });
            }
            world.versions.insert(number, versions);
            if let Some(place) = world.place(number) {
                world.places.insert(number, place);
            }
        }
        Ok((world, lost))
    }

    /// Keys moved so far, in order; a key that one operation moved twice is in it once.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// When the server before this one was killed.
    pub fn killed(&self) -> Option<Instant> {
        self.killed
    }

    fn place(&self, number: KeyNumber) -> Option<SlotIx> {
        let inspector = self.inspector();
        let (windows, _) = inspector.windows(&key(number));
        let mut slots = windows.iter().flat_map(|window| window.iter());
        slots.find(|&slot| inspector.slot(slot).key == key(number))
    }

    /// Makes a change of a key, and takes down what came of it; `false` if it changed nothing.
    fn change_and_record(&mut self, change: Change) -> bool {
        let moves = self.index.counts().moves;
        let done = self.change(self.operations, change).expect("a change of a key");
        self.note(&done).unwrap_or_else(|violation| panic!("{violation}"));
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

    /// Takes a change down: the key had another value from then on. The server cannot have been wrong about whether it
    /// was there: only one thread at a time changes a key.
    fn note(&mut self, done: &Done) -> Result<(), Box<Violation>> {
        let versions = self.versions.entry(done.number).or_insert_with(|| vec![Version::ABSENT]);
        let last = versions.last_mut().expect("at least one");
        if done.had != last.value.is_some() {
            let found = if done.had { "there" } else { "not there" };
            let answer = format!("the server, which was to change it, {found}");
            return Err(Violation::new(done.number, (done.from, done.to), answer, last.show()));
        }
        if done.changes() {
            last.until = Some(done.to);
            versions.push(Version { value: done.has.clone(), from: done.from, until: None });
        }
        Ok(())
    }

    /// Holds an answer against what was so. `seen` is the number of the newest version of the key that the
    /// same client has seen before; the number of the version it has seen now comes back.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn judge(
        &self,
        number: KeyNumber,
        answer: &Answer,
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
        Err(Violation::new(number, (from, to), show_answer(answer), right))
    }

    /// Stores into the key's windows during a GET that went wrong, then what its READs sampled.
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

    /// A client's GETs of one key after the other, from `start` on, against `history`. With `tell`, a
    /// violation comes with its story.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn client(
        &self,
        history: &History,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        start: Instant,
        numbers: &[KeyNumber],
        tell: bool,
    ) -> Result<(), Box<Violation>> {
        let mut seen: HashMap<KeyNumber, usize> = HashMap::new();
        let geometry = self.geometry();
        let mut fabric = Sim::new(history, geometry, hardware, adversary, start);
        if tell {
            fabric.tell();
        }
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        for &number in numbers {
            let from = reader.fabric().now();
            reader.fabric_mut().begin();
            let answer = answer(&mut reader, number);
            if hardware.error_one_in > 0 && matches!(answer, Err(ReadError::Fabric(ReadFailed))) {
                continue;
            }
            let newest = seen.entry(number).or_default();
            let judged = self.judge(number, &answer, (from, reader.fabric().now()), *newest);
            *newest = judged.map_err(|mut violation| {
                if tell {
                    violation.story = self.story(history, &violation, reader.fabric().story());
                }
                violation
            })?;
        }
        Ok(())
    }

    /// A batch of GETs in one [`Reader::get_many`].
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn batch(
        &self,
        history: &History,
        hardware: Hardware,
        adversary: &mut impl Adversary,
        start: Instant,
        numbers: &[KeyNumber],
    ) -> Result<(), Box<Violation>> {
        let geometry = self.geometry();
        let fabric = Sim::new(history, geometry, hardware, adversary, start);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        let keys: Vec<_> = numbers.iter().map(|&n| key(n)).collect();
        let mut answers: Vec<Option<Answer>> = vec![None; keys.len()];
        let ended = reader.get_many(&keys, |n, value| answers[n] = Some(Ok(value.map(<[u8]>::to_vec))));
        let to = reader.fabric().now();
        if hardware.error_one_in > 0 && matches!(ended, Err(ReadError::Fabric(ReadFailed))) {
            return Ok(());
        }
        for (&number, answer) in numbers.iter().zip(answers) {
            let answer =
                answer.unwrap_or_else(|| Err(ended.clone().expect_err("a missing answer has a reason")));
            self.judge(number, &answer, (start, to), 0)?;
        }
        Ok(())
    }
}

/// The operation that wrote a value; all of them for a mixture.
fn show_value(value: &[u8]) -> String {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let mut words: Vec<u64> = value.chunks_exact(8).map(word).collect();
    words.dedup();
    match words[..] {
        [operation] => format!("value of operation {operation}"),
        _ => format!("a mixture of operations {words:?}"),
    }
}
