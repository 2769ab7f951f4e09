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
use crate::layout::slot::{Header, check};
use crate::reader::{Limits, ReadError, Reader};
use crate::region::Region;
use crate::turns;
use std::collections::{BTreeMap, HashMap};
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
    /// When the operation that made it began, or, where that is known, made it.
    from: Instant,
    /// When the operation that ended it, or one after that, had ended; `None`: it is the last.
    until: Option<Instant>,
}

impl Version {
    /// What every key is at first.
    const ABSENT: Version = Version { value: None, from: Instant(0), until: None };

    fn is<E>(&self, answer: &Answer<E>) -> bool {
        answer.as_ref().is_ok_and(|answer| *answer == self.value)
    }

    fn show(&self) -> String {
        show(&self.value)
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

/// What a change of a key came to: whether the server found it, what it has then, and when the operation began and ended.
#[derive(Debug)]
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

    /// The changes of one key that did something, each with its event, in the order of the events. Each change must have
    /// had its event, and each event its change; a change that did nothing must have had an instant at which the key was
    /// absent.
    fn in_order(
        number: KeyNumber,
        mut done: Vec<Done>,
        events: &[Event],
        mut had: bool,
        during: (Instant, Instant),
    ) -> Result<Vec<(Done, &Event)>, Box<Violation>> {
        // Of several removes that a disappearance may be due to, it was the one that ended first, if any order is right.
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

    /// Did it do nothing, and was there reason to, the key being absent from `since` until `until`?
    fn did_nothing(&self, since: Instant, until: Instant) -> bool {
        !self.changes() && since <= self.to && self.from < until
    }
}

/// A key got another value, or none.
#[derive(Debug)]
struct Event {
    at: Instant,
    has: Option<Vec<u8>>,
}

/// What stores did to keys.
#[derive(Debug, Default)]
struct Stores {
    events: BTreeMap<KeyNumber, Vec<Event>>,
    moves: Vec<Move>,
    /// A key that got another value in one slot while it stood in two.
    differ: Option<(KeyNumber, Instant)>,
    /// The slots in which each key stands at the end.
    copies: BTreeMap<KeyNumber, Vec<SlotIx>>,
}

impl Stores {
    /// Looks at each slot at `from`, and then whenever one was written.
    fn read_off(history: &History, geometry: &Geometry, from: Instant) -> Stores {
        let (shape, words) = (geometry.shape(), geometry.shape().words());
        let occupant = |slot: SlotIx, at: Instant| {
            let first = geometry.slot_word(slot);
            let image: Vec<u64> = (first..first + words).map(|word| history.word(word, at)).collect();
            let view = check(shape, geometry.identity(slot), &image).ok()?;
            (!view.header().is_free()).then(|| (number_of(&view.key()), view.value().to_vec()))
        };
        let mut stores = Stores::default();
        let mut occupants: Vec<_> = (0..geometry.slots()).map(|n| occupant(SlotIx(n), from)).collect();
        for (n, occupant) in occupants.iter().enumerate() {
            if let Some((number, _)) = occupant {
                stores.copies.entry(*number).or_default().push(SlotIx(n as u64));
            }
        }
        let first = geometry.slot_word(SlotIx(0));
        let all = first..first + geometry.slots() as usize * words;
        for (at, word, value) in history.stores(all, from, history.end()) {
            // A slot's first word is the last one that is written, and the one that then has an even stamp.
            let (slot, nth) = (SlotIx(((word - first) / words) as u64), (word - first) % words);
            if nth != 0 || !Header::from_words([value, 0]).stamp.is_multiple_of(2) {
                continue;
            }
            let now = occupant(slot, at);
            if let Some((number, value)) = &now {
                let copies = stores.copies.entry(*number).or_default();
                let is_new = copies.first().is_none_or(|&copy| occupants[copy.0 as usize] != now);
                if is_new {
                    let event = Event { at, has: Some(value.clone()) };
                    stores.events.entry(*number).or_default().push(event);
                }
                if !copies.contains(&slot) {
                    if let (&[from], false) = (&copies[..], is_new) {
                        stores.moves.push(Move { key: *number, began: at, from, to: slot });
                    }
                    copies.push(slot);
                }
                if is_new && copies.len() > 1 {
                    stores.differ.get_or_insert((*number, at));
                }
            }
            let stays = now.as_ref().map(|(number, _)| *number);
            let before = std::mem::replace(&mut occupants[slot.0 as usize], now);
            if let Some((number, _)) = before
                && stays != Some(number)
            {
                let copies = stores.copies.entry(number).or_default();
                copies.retain(|&copy| copy != slot);
                if copies.is_empty() {
                    stores.events.entry(number).or_default().push(Event { at, has: None });
                }
            }
        }
        stores
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
    /// When the operation that moved it began, or, with several server threads, its copy was whole.
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

/// A GET, or a server thread, that reported what was not so, or memory that holds what no change explains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {key} from instant {} to {}: {answer}; right: {right}{story}", from.0, to.0)]
pub struct Violation {
    /// The key.
    pub key: KeyNumber,
    /// When the GET, or what else was wrong, began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
    /// What was wrong.
    pub answer: String,
    /// What would have been right.
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

fn number_of(bytes: &[u8]) -> KeyNumber {
    let bytes = bytes.try_into().expect("a key of this module's");
    (u64::from_le_bytes(bytes) >> 32) as KeyNumber
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

    /// Does what the scripts say, each with a server thread of its own. Their accesses interleave as `seed` decides. Which
    /// of two changes of one key came first is read off the stores.
    ///
    /// # Errors
    /// [`Violation`], when what the threads stored is not what the changes, one after the other in some order that their
    /// times allow, would have done; when the server was wrong about whether a key was there; or when at the end a
    /// key does not stand in just one slot.
    pub fn interleave(&mut self, seed: u64, scripts: &[Vec<Change>]) -> Result<(), Box<Violation>> {
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
        let mut all_done: BTreeMap<KeyNumber, Vec<Done>> = BTreeMap::new();
        for done in done.into_iter().flatten() {
            all_done.entry(done.number).or_default().push(done);
        }

        let stores = Stores::read_off(&self.history(), self.geometry(), from);
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
            // A change shows from its store on, and what was before it until it, or any change after it, has ended.
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
            // Operations that were under way have been done or not. Whichever it is, it may be so only now.
            let under_way = |v: &Version| v.until.is_some_and(|until| until > killed);
            let ended = versions[..versions.len() - 1].iter().rposition(|v| !under_way(v));
            let sure = ended.map_or(0, |n| n + 1);
            let newest = (sure..versions.len()).rev().find(|&n| versions[n].is(&answer));
            versions.truncate(newest.map_or(versions.len(), |n| n + 1));
            versions[sure..].iter_mut().for_each(|version| version.until = Some(taken_over));
            let last = versions.last_mut().expect("each key was absent at first");
            last.until = None;
            if !last.is(&answer) {
                lost += 1;
                if !matches!(answer, Ok(None)) || lost > found.torn.min(self.threads) {
                    let right = format!("{}, {} slots half written", last.show(), found.torn);
                    let answer = format!("a GET after the takeover answered {}", show_answer(&answer));
                    return Err(Violation::new(number, (killed, taken_over), answer, right));
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

    /// Keys moved so far, in order; a key that one operation of a single thread moved twice is in it once.
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

    /// Takes a change down: the key had another value from then on. The server cannot have been wrong about whether it
    /// was there: only one thread at a time changes a key.
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
        Err(Violation::new(number, (from, to), format!("a GET answered {}", show_answer(answer)), right))
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

    /// A client's GETs of one key after the other, from `start` on, against `history`; how many had an answer. With `tell`,
    /// a violation comes with its story.
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
    ) -> Result<u64, Box<Violation>> {
        let mut judged_gets = 0;
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
            judged_gets += 1;
        }
        Ok(judged_gets)
    }

    /// A batch of GETs in one [`Reader::get_many`]; how many had an answer.
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
    ) -> Result<u64, Box<Violation>> {
        let geometry = self.geometry();
        let fabric = Sim::new(history, geometry, hardware, adversary, start);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        let keys: Vec<_> = numbers.iter().map(|&n| key(n)).collect();
        let mut answers: Vec<Option<Answer>> = vec![None; keys.len()];
        let ended = reader.get_many(&keys, |n, value| answers[n] = Some(Ok(value.map(<[u8]>::to_vec))));
        let to = reader.fabric().now();
        let may_end = hardware.error_one_in > 0 && matches!(ended, Err(ReadError::Fabric(ReadFailed)));
        let mut judged_gets = 0;
        for (&number, answer) in numbers.iter().zip(answers) {
            if answer.is_none() && may_end {
                continue;
            }
            let answer =
                answer.unwrap_or_else(|| Err(ended.clone().expect_err("a missing answer has a reason")));
            self.judge(number, &answer, (start, to), 0)?;
            judged_gets += 1;
        }
        Ok(judged_gets)
    }
}

fn show(value: &Option<Vec<u8>>) -> String {
    value.as_ref().map_or("absent".into(), |value| show_value(value))
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
