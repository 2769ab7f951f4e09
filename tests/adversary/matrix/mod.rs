//! Features that meet: two server threads in one table that grows, with values that do not fit their slots.
//!
//! `directed` stops one thread after each of its stores, and another one does something else meanwhile.
//! `random` lets two threads and a reader take turns at everything. GETs run against each history. Those
//! during which two features were at work are counted for each pair of features.

mod directed;
mod random;

use super::cases::{client, recorded};
use super::extents::{WHOLE, key, value};
use super::killed_extents::check_books;
use super::{COUNTED, HINTED, LINES, LOADS, SLOW, several};
use oneread::internals::hints::Hints;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::extent::Reference;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{
    Adversary, Aim, Hardware, History, Instant, Pace, Random, Recorder, SimGetError,
};
use oneread::{
    Config, Limits, PutMode, PutOutcome, SwapOutcome,
    embedded::{Clock, Index, Reader},
    error::{PutError, ReadError},
    fabric::Shm,
    layout::Layout,
};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a table does, or its clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Feature {
    /// A key moves within its segment.
    Move,
    Split,
    Merge,
    /// A merge is given up: keys go back.
    GivenUp,
    /// An extent moves (X6).
    ExtentMove,
    /// A walk over all keys, as a snapshot takes it.
    Walk,
    /// A compare-and-swap.
    Swap,
    /// A client reads, decrypts, encrypts again and swaps.
    Encryption,
    /// A server is killed. The next one restores what it was writing over, and mends the rest.
    Kill,
    /// The GET looks first where it remembers.
    Hint,
}

const FEATURES: [Feature; 10] = [
    Feature::Move,
    Feature::Split,
    Feature::Merge,
    Feature::GivenUp,
    Feature::ExtentMove,
    Feature::Walk,
    Feature::Swap,
    Feature::Encryption,
    Feature::Kill,
    Feature::Hint,
];

/// When a feature was at work.
#[derive(Clone, Copy, Debug)]
struct Span(Feature, Instant, Instant);

/// Longer than any grace time or allowance.
const LONG_TIME: Duration = Duration::from_micros(100);
/// The longest value, and one that fits a slot.
const LONG: usize = 240;
const SHORT: usize = 8;

// ---- values that are encrypted ----------------------------------------------------------------------

#[cfg(feature = "encryption")]
mod sealed {
    use oneread::Encryption;

    pub const OVERHEAD: usize = Encryption::OVERHEAD;

    fn secret() -> Encryption {
        Encryption::new(&[7; 32], b"matrix")
    }

    pub fn seal(key: &[u8], put: u64, value: &[u8]) -> Vec<u8> {
        let nonce: [u8; 24] = std::array::from_fn(|n| put.to_le_bytes()[n % 8]);
        secret().encrypt_with_nonce(nonce, key, value)
    }

    pub fn open(key: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        secret().decrypt(key, stored).ok()
    }
}

/// Stands for encryption in builds without it: the stored bytes differ with each put, and name their key.
#[cfg(not(feature = "encryption"))]
mod sealed {
    pub const OVERHEAD: usize = 16;

    pub fn seal(key: &[u8], put: u64, value: &[u8]) -> Vec<u8> {
        [key, &put.to_le_bytes(), value].concat()
    }

    pub fn open(key: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        Some(stored.strip_prefix(key)?.get(8..)?.to_vec())
    }
}

// ---- what threads did -------------------------------------------------------------------------------

/// What a thread did to a key, or saw of it.
#[derive(Debug)]
enum Did {
    /// The key has this value then, or none.
    Made(Option<Vec<u8>>),
    /// It had this value, or none.
    Saw(Option<Vec<u8>>),
    /// It was there, or not.
    SawThere(bool),
    /// It had another value than this one.
    SawOther(Vec<u8>),
    /// Something that is never right.
    Wrong(&'static str),
}

#[derive(Debug)]
struct Event {
    number: u64,
    did: Did,
    from: Instant,
    to: Instant,
}

/// A value that a key had, or its absence, and when the change began and ended that made it.
#[derive(Clone, Debug)]
struct Version {
    value: Option<Vec<u8>>,
    from: Instant,
    to: Instant,
    /// From when on it is certain that the change had no effect that lasts: a takeover found another one's.
    gone: Option<Instant>,
}

/// Every key that was ever there, and its versions, in no order.
#[derive(Clone, Debug, Default)]
struct Oracle(BTreeMap<u64, Vec<Version>>);

impl Oracle {
    /// Takes what threads did, and judges what they saw.
    fn add(&mut self, events: Vec<Event>) -> Result<(), String> {
        let (made, seen): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| matches!(event.did, Did::Made(_)));
        for Event { number, did, from, to } in made {
            let Did::Made(value) = did else { unreachable!("partitioned") };
            self.versions(number).push(Version { value, from, to, gone: None });
        }
        seen.into_iter().try_for_each(|Event { number, did, from, to }| match did {
            Did::Saw(value) => self.judge(number, (from, to), "saw", |v| *v == value),
            Did::SawThere(is_there) => self.judge(number, (from, to), "saw", |v| v.is_some() == is_there),
            Did::SawOther(other) => self.judge(number, (from, to), "saw", |v| v.as_ref() != Some(&other)),
            Did::Wrong(what) => Err(format!("key {number} from {} to {}: {what}", from.0, to.0)),
            Did::Made(_) => unreachable!("partitioned"),
        })
    }

    fn versions(&mut self, number: u64) -> &mut Vec<Version> {
        let first = Version { value: None, from: Instant(0), to: Instant(0), gone: None };
        self.0.entry(number).or_insert_with(|| vec![first])
    }

    /// Whether the key had such a value at some instant. A version is over when a change that began after
    /// its own has ended.
    fn judge(
        &self,
        number: u64,
        (from, to): (Instant, Instant),
        what: &str,
        is_it: impl Fn(&Option<Vec<u8>>) -> bool,
    ) -> Result<(), String> {
        let versions = self.0.get(&number).map_or(&[][..], |versions| versions);
        let is_over = |v: &Version| {
            let is_after = |next: &Version| next.from >= v.to && next.to <= from && next.to > v.to;
            v.gone.is_some_and(|gone| gone <= from) || versions.iter().any(is_after)
        };
        let possible: Vec<_> = versions.iter().filter(|v| v.from <= to && !is_over(v)).collect();
        if possible.iter().any(|v| is_it(&v.value)) || versions.is_empty() && is_it(&None) {
            return Ok(());
        }
        let show = |v: &&Version| format!("{} from {} to {}", show(&v.value), v.from.0, v.to.0);
        let possible: Vec<_> = possible.iter().map(show).collect();
        Err(format!("key {number} from {} to {}: {what} something else than {possible:?}", from.0, to.0))
    }

    /// As the check of a read, after a takeover in which these keys have these values. The server was killed at an
    /// instant.
    fn taken_over(
        &self,
        (killed, opened): (Instant, Instant),
        has: impl Fn(u64) -> Option<Vec<u8>>,
    ) -> Result<Oracle, String> {
        let mut next = self.clone();
        for (&number, versions) in &mut next.0 {
            let value = has(number);
            let what = format!("a takeover at {} left {}, which is", killed.0, show(&value));
            self.judge(number, (killed, killed), &what, |v| *v == value)?;
            versions.retain(|version| version.from < killed || version.from == Instant(0));
            for version in versions.iter_mut().filter(|version| version.to > killed) {
                // It has taken effect by now, or never will.
                (version.to, version.gone) = (opened, Some(opened));
            }
            versions.push(Version { value, from: killed, to: opened, gone: None });
        }
        Ok(next)
    }
}

fn show(value: &Option<Vec<u8>>) -> String {
    match value {
        None => "nothing".into(),
        Some(value) => {
            let first: Vec<u8> = value.iter().copied().take(8).collect();
            format!("{} bytes {first:x?}", value.len())
        }
    }
}

// ---- the server -------------------------------------------------------------------------------------

/// A server over a recorded region, for several threads.
struct Server {
    index: Index,
    recorder: Arc<Recorder>,
    clock: Clock,
    geometry: Geometry,
    /// Keys whose long values are encrypted.
    encrypted: Vec<u64>,
    /// No two puts make the same value.
    puts: AtomicU64,
}

impl Server {
    fn new(config: &Config) -> Server {
        let geometry = config.geometry().unwrap();
        let (region, recorder, clock) = recorded(&geometry);
        let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap();
        Server { index, recorder, clock, geometry, encrypted: Vec::new(), puts: AtomicU64::new(1) }
    }

    fn now(&self) -> Instant {
        self.recorder.now()
    }

    fn home(&self, number: u64) -> u64 {
        self.geometry.hashed(&key(number)).home()
    }

    /// The lowest bits of a key's directory hash.
    fn directory(&self, number: u64, bits: u32) -> u32 {
        self.geometry.hashed(&key(number)).first().directory() & ((1 << bits) - 1)
    }

    /// What a key's slot names.
    fn named(&self, number: u64) -> Option<Reference> {
        let name = key(number);
        let inspector = Inspector::new(self.index.region(), &self.geometry);
        inspector.slots().find(|report| report.key == name)?.reference()
    }

    /// A value that no put made yet.
    fn value(&self, number: u64, len: usize) -> Vec<u8> {
        let put = self.puts.fetch_add(1, Ordering::Relaxed);
        match len.checked_sub(sealed::OVERHEAD).filter(|_| self.encrypted.contains(&number)) {
            Some(plain) => sealed::seal(&key(number), put, &value(put, plain)),
            None => value(put, len),
        }
    }

    fn put(&self, number: u64, len: usize) -> Vec<Event> {
        let (from, value) = (self.now(), self.value(number, len));
        let outcome = self.index.put(&key(number), &value, PutMode::Upsert);
        let to = self.now();
        let event = |did| Event { number, did, from, to };
        match outcome {
            Ok(PutOutcome::Updated) => vec![event(Did::Made(Some(value)))],
            // The key was absent before.
            Ok(_) => vec![event(Did::Made(Some(value))), event(Did::SawThere(false))],
            Err(PutError::Full { .. } | PutError::Busy { .. } | PutError::HeapFull { .. }) => Vec::new(),
            Err(error) => panic!("the table allows every put: {error}"),
        }
    }

    fn remove(&self, number: u64) -> Vec<Event> {
        let from = self.now();
        let was_there = self.index.remove(&key(number)).expect("a key of allowed length");
        let to = self.now();
        let did = if was_there { Did::Made(None) } else { Did::SawThere(false) };
        vec![Event { number, did, from, to }]
    }

    /// A GET over the real shm fabric.
    fn get(&self, number: u64) -> Vec<Event> {
        let (from, mut got) = (self.now(), Vec::new());
        // Another thread may be stopped in the middle of a slot.
        let limits = Limits::new().retries_max(50);
        let fabric = Shm::new(self.index.region(), &self.geometry);
        let mut reader = Reader::new(fabric, &self.geometry, Clock::manual(), limits);
        let found = reader.get_into(&key(number), &mut got);
        let to = self.now();
        match found {
            Ok(found) => vec![Event { number, did: Did::Saw(found.then_some(got)), from, to }],
            Err(ReadError::Contended { .. } | ReadError::Replaced { .. }) => Vec::new(),
            Err(error) => panic!("key {number}: {error}"),
        }
    }

    fn swap(&self, number: u64, expected: &[u8], new: Vec<u8>) -> Vec<Event> {
        let from = self.now();
        let outcome = self.index.compare_and_swap(&key(number), expected, &new);
        let to = self.now();
        let event = |did| Event { number, did, from, to };
        match outcome {
            Ok(SwapOutcome::Swapped) => {
                vec![event(Did::Made(Some(new))), event(Did::Saw(Some(expected.to_vec())))]
            }
            Ok(SwapOutcome::Differs) => {
                vec![event(Did::SawOther(expected.to_vec())), event(Did::SawThere(true))]
            }
            Ok(SwapOutcome::Absent) => vec![event(Did::SawThere(false))],
            Err(PutError::HeapFull { .. }) => Vec::new(),
            Err(error) => panic!("the table allows every swap: {error}"),
        }
    }

    /// What a client with a secret does: it reads, decrypts, encrypts again, and swaps if nobody was quicker.
    fn encrypted_swap(&self, number: u64) -> Vec<Event> {
        let mut events = self.get(number);
        let Some(Event { did: Did::Saw(Some(stored)), .. }) = events.last() else { return events };
        if stored.len() < sealed::OVERHEAD || !self.encrypted.contains(&number) {
            return events;
        }
        let (stored, from) = (stored.clone(), self.now());
        if sealed::open(&key(number), &stored).is_none() {
            let did = Did::Wrong("what a GET answered is no value of this key, or cannot be decrypted");
            events.push(Event { number, did, from, to: from });
            return events;
        }
        events.extend(self.swap(number, &stored, self.value(number, LONG)));
        events
    }

    /// A walk. Of `numbers`, it must have seen those that were there all the while, once.
    fn walk(&self, numbers: impl Iterator<Item = u64>) -> Vec<Event> {
        let (from, mut shown) = (self.now(), BTreeMap::<u64, Vec<Vec<u8>>>::new());
        let damaged = self.index.show_all(&mut |key, value| {
            shown.entry(u64::from_le_bytes(key.try_into().unwrap())).or_default().push(value.to_vec());
        });
        let to = self.now();
        let event = |number, did| Event { number, did, from, to };
        let mut events: Vec<Event> = (0..damaged).map(|_| event(0, Did::Wrong("a damaged slot"))).collect();
        for number in numbers {
            let mut values = shown.remove(&number).unwrap_or_default();
            if values.len() > 1 {
                events.push(event(number, Did::Wrong("a walk showed it twice")));
            }
            events.push(event(number, Did::Saw(values.pop())));
        }
        events.extend(
            shown.into_keys().map(|number| event(number, Did::Wrong("a walk showed it, and nobody put it"))),
        );
        events
    }

    /// Lets all that is under way end, and every trace go.
    fn rest(&self) {
        for _ in 0..2_000 {
            self.clock.advance(LONG_TIME);
            let next = self.index.tidy();
            let growth = self.index.growth();
            if next.is_none() && growth.splitting + growth.merging == 0 {
                return;
            }
        }
        panic!("it does not end: {:?}", self.index.growth());
    }

    /// At rest each key has its value, in one slot, and the server's books are right.
    fn check(&self, oracle: &Oracle, when: &str) -> Result<(), String> {
        let mut events: Vec<Event> = oracle.0.keys().flat_map(|&number| self.get(number)).collect();
        events.extend(self.walk(oracle.0.keys().copied()));
        let there = events.iter().filter(|event| matches!(event.did, Did::Saw(Some(_)))).count() as u64;
        oracle.clone().add(events).map_err(|wrong| format!("{when}: {wrong}"))?;
        if 2 * self.index.len() != there {
            return Err(format!("{when}: {} keys, GETs and a walk saw {there}", self.index.len()));
        }
        check_books(&self.index, when);
        Ok(())
    }

    /// The next server, of which this one was killed at an instant, and when it had taken over.
    fn killed(&self, at: Instant, oracle: &Oracle) -> Result<(Server, Oracle, Instant), String> {
        let (region, recorder, clock) = recorded(&self.geometry);
        self.recorder.repeat(at, &region, &clock);
        let (index, found) =
            Index::open_at_pace(region, clock.clone(), Pace::small()).map_err(|error| error.to_string())?;
        if found.misplaced + found.cut > 0 {
            return Err(format!("killed at {}: {found:?}", at.0));
        }
        let opened = recorder.now();
        let puts = AtomicU64::new(self.puts.load(Ordering::Relaxed));
        let (geometry, encrypted) = (self.geometry.clone(), self.encrypted.clone());
        let next = Server { index, recorder, clock, geometry, encrypted, puts };
        let mut reader = next.index.reader();
        let mut got = Vec::new();
        let mut all = BTreeMap::new();
        for &number in oracle.0.keys() {
            let found = reader.get_into(&key(number), &mut got);
            let found = found.map_err(|error| format!("killed at {}, key {number}: {error}", at.0))?;
            all.insert(number, found.then(|| got.clone()));
        }
        drop(reader);
        let oracle = oracle.taken_over((at, opened), |number| all[&number].clone())?;
        Ok((next, oracle, opened))
    }

    fn history(&self) -> History {
        self.recorder.history(self.geometry.region_bytes())
    }
}

/// Where a key has only one slot in the beginning, there are no hints.
fn is_hinted(layout: &str) -> impl Fn([Feature; 2]) -> bool {
    let layout: Layout = layout.parse().unwrap();
    let is_hinted = layout.choices * layout.window_slots() > 1;
    move |[_, other]| is_hinted || other != Feature::Hint
}

fn is_long() -> bool {
    std::env::var_os("ONEREAD_LONG").is_some()
}

/// What is wrong, also if the server panics.
fn or_panic(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "the server ends".into()))
    })
}

// ---- clients ----------------------------------------------------------------------------------------

/// What GETs rest on.
const WITNESSES: [(&str, [Hardware; 2]); 4] = [
    ("clock", [LINES, SLOW]),
    ("counters", [COUNTED, COUNTED]),
    ("loads", [LOADS, LOADS]),
    ("hints", [HINTED, Hardware { hints: true, ..COUNTED }]),
];

/// How many GETs met both features of each pair, by what they rested on.
#[derive(Clone, Debug, Default)]
struct Met {
    gets: u64,
    pairs: BTreeMap<[Feature; 2], [u64; 4]>,
}

impl Met {
    fn count(&mut self, spans: &[Span], (from, to): (Instant, Instant), witness: usize, is_hinted: bool) {
        self.gets += 1;
        let during = spans.iter().filter(|span| span.1 <= to && from <= span.2);
        let hint = is_hinted.then_some(Feature::Hint);
        let all: Vec<Feature> = during.map(|span| span.0).chain(hint).collect();
        let mut pairs: Vec<[Feature; 2]> = Vec::new();
        for (n, &one) in all.iter().enumerate() {
            for &other in &all[n + 1..] {
                pairs.push([one.min(other), one.max(other)]);
            }
        }
        pairs.sort();
        pairs.dedup();
        pairs.into_iter().for_each(|pair| self.pairs.entry(pair).or_default()[witness] += 1);
    }

    /// Each two features have met in at least so many GETs by each witness.
    fn check(&self, least: u64, is_possible: impl Fn([Feature; 2]) -> bool) {
        for (n, &one) in FEATURES.iter().enumerate() {
            for &other in FEATURES[n + 1..].iter().filter(|&&other| is_possible([one, other])) {
                let counts = self.pairs.get(&[one, other]).copied().unwrap_or_default();
                // Only GETs with hints meet them.
                let these = if other == Feature::Hint { &counts[3..] } else { &counts[..] };
                assert!(these.iter().all(|&count| count >= least), "{one:?} and {other:?}: {counts:?}");
            }
        }
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GETs; those that met both, by clock, counters, loads, hints:", self.gets)?;
        self.pairs.iter().try_for_each(|(pair, counts)| write!(f, "\n  {pair:?}: {counts:?}"))
    }
}

/// What servers did, for clients to look at.
struct Past<'p> {
    geometry: &'p Geometry,
    history: History,
    oracle: &'p Oracle,
    spans: Vec<Span>,
    /// When something began or ended.
    marks: Vec<Instant>,
}

impl Past<'_> {
    /// GETs of one client, each from shortly before or after some mark on.
    fn client(
        &self,
        number: u64,
        witness: usize,
        seed: u64,
        gets: usize,
        met: &mut Met,
    ) -> Result<(), String> {
        let (mut choices, mut random) = (Random::new(seed), Random::new(!seed));
        let hardware = several(WITNESSES[witness].1[random.pick(2)]);
        let mut reader = client(&self.history, self.geometry, hardware, &mut choices);
        let hints = Hints::new(self.geometry, usize::MAX).filter(|_| hardware.hints);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        let name = key(number);
        let hashed = self.geometry.hashed(&name);
        let mut begins: Vec<Instant> = (0..gets)
            .map(|_| {
                let mark = self.marks[random.pick(self.marks.len())].0;
                let jitter = [0, 0, 3, 40][random.pick(4)];
                Instant((mark + random.pick(jitter + 1)).saturating_sub(jitter / 2).min(self.history.end().0))
            })
            .collect();
        begins.sort();
        for from in begins {
            let read_stores_max = [Some(2), Some(40), Some(400), None][random.pick(4)];
            let aim = Aim { home: hashed.home(), ghost: hashed.ghost(), read_stores_max, leaps: &self.marks };
            reader.fabric_mut().begin(from, aim);
            let (from, before) = (reader.fabric().now(), reader.hint_counts());
            let range = if random.pick(4) == 0 { random.pick(LONG)..LONG } else { WHOLE };
            let mut got = Vec::new();
            let found = match range {
                WHOLE => reader.get_into(&name, &mut got).map(|found| found.then_some(got.len())),
                _ => reader.get_range(&name, range.clone(), &mut got),
            };
            let during = (from, reader.fabric().now());
            let len = match found {
                Ok(len) => len,
                Err(SimGetError::Read(ReadError::Replaced { .. })) => continue,
                Err(error) => return Err(format!("key {number} from {}: {error}", from.0)),
            };
            let what = format!(
                "by {}, {range:?}: a GET answered {}",
                WITNESSES[witness].0,
                show(&len.map(|_| got.clone()))
            );
            self.oracle.judge(number, during, &what, |v| match (v, len) {
                (None, None) => true,
                (Some(value), Some(len)) => {
                    value.len() == len
                        && value[range.start.min(len)..range.end.min(len).max(range.start.min(len))]
                            == got[..]
                }
                _ => false,
            })?;
            let is_hinted = reader.hint_counts().hinted > before.hinted;
            met.count(&self.spans, during, witness, is_hinted);
        }
        Ok(())
    }
}
