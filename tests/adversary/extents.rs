//! Random schedules on tables whose values do not fit their slots: they are replaced, removed and moved, and
//! servers are killed, while clients fetch them.

use super::cases::{client, near, recorded};
use super::{COUNTED, EACH, LINES, LOADS, SLOW, grace, ns, several};
use oneread::internals::families::presets;
use oneread::internals::hints::Hints;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{Adversary, Aim, Hardware, History, Instant, Random, Recorder, Sim};
use oneread::internals::sim::{Pace, SimGetError};
use oneread::{
    Config, PutMode, PutOutcome, TableSize,
    embedded::{Clock, Index, Reader},
    error::{PutError, ReadError},
    layout::{Layout, Seeds},
};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Keys of a table.
const KEYS: u64 = 5;
/// The longest value.
const VALUE_MAX: usize = 240;

thread_local! {
    static KEY_BYTES: Cell<usize> = const { Cell::new(8) };
}

/// Keys of a slot of one line that it has no room for, beside a reference.
const LONG_KEY_BYTES: usize = 30;

/// Runs a test with keys that do not fit their slots.
fn with_long_keys<R>(then: impl FnOnce() -> R) -> R {
    let before = KEY_BYTES.replace(LONG_KEY_BYTES);
    let result = then();
    KEY_BYTES.set(before);
    result
}

pub fn key(n: u64) -> Vec<u8> {
    let mut key = n.to_le_bytes().to_vec();
    key.resize(KEY_BYTES.get(), n as u8);
    key
}

/// A value that tells which put made it, in each of its words.
pub fn value(put: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (put ^ (n / 8).wrapping_mul(0x35)).to_le_bytes()[n as usize % 8]).collect()
}

/// A value that a key had, or its absence: from the beginning of the change that made it to the end of the
/// next one.
#[derive(Clone, Debug)]
pub struct Version {
    pub value: Option<Vec<u8>>,
    pub from: Instant,
    /// When that change had ended.
    pub made: Instant,
}

/// The first version of every key.
pub const ABSENT: Version = Version { value: None, from: Instant(0), made: Instant(0) };

/// A server over a recorded region. It remembers the values that the first keys had.
pub struct Life {
    pub index: Arc<Index>,
    pub recorder: Arc<Recorder>,
    pub clock: Clock,
    geometry: Geometry,
    /// Of each key, in order.
    versions: Vec<Vec<Version>>,
    /// Bytes that extents moved under servers before this one.
    moved_before: u64,
}

impl Life {
    pub fn new(config: &Config, keys: u64) -> Life {
        let geometry = config.geometry().unwrap();
        let (region, recorder, clock) = recorded(&geometry);
        let index =
            Arc::new(Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap());
        let versions = (0..keys).map(|_| vec![ABSENT]).collect();
        Life { index, recorder, clock, geometry, versions, moved_before: 0 }
    }

    pub fn now(&self) -> Instant {
        self.recorder.now()
    }

    pub fn put(&mut self, number: u64, value: Vec<u8>) -> Result<PutOutcome, PutError> {
        let from = self.now();
        let outcome = self.index.put(&key(number), &value, PutMode::Upsert)?;
        self.note(number, Some(value), from);
        Ok(outcome)
    }

    pub fn remove(&mut self, number: u64) -> bool {
        let from = self.now();
        let was_there = self.index.remove(&key(number)).unwrap();
        if was_there {
            self.note(number, None, from);
        }
        was_there
    }

    /// Notes a change that began at `from` and has ended.
    pub fn note(&mut self, number: u64, value: Option<Vec<u8>>, from: Instant) {
        let made = self.now();
        if let Some(versions) = self.versions.get_mut(number as usize) {
            versions.push(Version { value, from, made });
        }
    }

    /// Notes that a key left with one store, which made this instant.
    pub fn note_at(&mut self, number: u64, at: Instant) {
        self.versions[number as usize].push(Version { value: None, from: at, made: at });
    }

    fn moved_bytes(&self) -> u64 {
        self.moved_before + self.index.heap().moved_bytes
    }

    /// The next server, of which this one was killed at this instant, perhaps in the middle of a change.
    pub fn killed(&self, at: Instant) -> Life {
        let (region, recorder, clock) = recorded(&self.geometry);
        self.recorder.repeat(at, &region, &clock);
        let (index, found) = Index::open_at_pace(region, clock.clone(), Pace::small()).unwrap();
        assert_eq!(found.misplaced, 0, "killed at {}", at.0);
        let mut versions = self.versions.clone();
        for (number, versions) in versions.iter_mut().enumerate() {
            versions.retain(|version| version.from < at || version.from == Instant(0));
            let mut there = Vec::new();
            let has = index.reader().get_into(&key(number as u64), &mut there).unwrap().then_some(there);
            if versions.last().unwrap().value != has {
                // The change that was cut off had no effect.
                let cut_off = versions.pop().unwrap();
                assert!(cut_off.made > at, "killed at {}: an acknowledged change is lost", at.0);
                assert_eq!(versions.last().unwrap().value, has, "killed at {}, key {number}", at.0);
            }
            let last = versions.last_mut().unwrap();
            if last.made > at {
                last.made = recorder.now();
            }
        }
        let geometry = self.geometry.clone();
        let moved_before = self.moved_bytes();
        Life { index: Arc::new(index), recorder, clock, geometry, versions, moved_before }
    }

    /// What it did, for clients to look at.
    pub fn table(&self) -> Table {
        Table {
            history: self.recorder.history(self.geometry.region_bytes()),
            geometry: self.geometry.clone(),
            versions: self.versions.clone(),
            leaps: Vec::new(),
        }
    }
}

/// A table whose values have come and gone.
pub struct Table {
    pub geometry: Geometry,
    pub history: History,
    /// Of each key, in order.
    pub versions: Vec<Vec<Version>>,
    /// When else something happens that matters to GETs.
    pub leaps: Vec<Instant>,
}

/// Blocks of the heap. With few, extents move often; with more, memory that they left is used again soon.
fn blocks(seed: u64) -> u64 {
    2 + seed % 3
}

pub fn config(layout: Layout, seed: u64) -> Config {
    Config::new()
        .layout(layout)
        .size(TableSize::Slots(64))
        .key_max(KEY_BYTES.get())
        .key_inline(8)
        .value_max(VALUE_MAX)
        // A reference fits beside a short key, and short values do.
        .inline_max(30)
        .heap_bytes(blocks(seed) * 4096)
        .grace(grace())
        .seeds(Seeds::from_number(seed))
}

/// A table that much happened to; bytes moved, puts refused, and servers killed.
fn table(layout: Layout, seed: u64) -> (Table, [u64; 3]) {
    let mut random = Random::new(seed);
    let mut life = Life::new(&config(layout, seed), KEYS);
    let begin = life.now();
    // Others fill the heap, so that memory is used again soon and blocks leave.
    let filler = |n: usize| 100 + n as u64;
    let fillers = 15 * (blocks(seed) as usize - 1);
    let (mut refused, mut killed) = (0, 0);
    let ends = seed % 2 == 1;
    for put in 1..260u64 {
        let number = random.pick(KEYS as usize) as u64;
        let len = [0, 8, 31, 60, 120, 200, VALUE_MAX][random.pick(7)];
        match random.pick(14) {
            0..6 => match life.put(number, value(put, len)) {
                Ok(_) | Err(PutError::HeapFull { .. } | PutError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            6 => drop(life.remove(number)),
            7..10 => {
                refused += u64::from(life.put(filler(random.pick(fillers)), value(put, 200)).is_err());
            }
            10 => drop(life.remove(filler(random.pick(fillers)))),
            11 => {
                life.clock.advance(
                    [grace() / 8, grace(), 2 * grace() + ns(20), 2 * grace() + ns(600)][random.pick(4)],
                );
            }
            _ => drop(life.index.tidy()),
        }
        if ends && random.pick(40) == 0 {
            life = life.killed(Instant(life.now().0.saturating_sub(random.pick(80)).max(begin.0)));
            killed += 1;
        }
    }
    (life.table(), [life.moved_bytes(), refused, killed])
}

/// A table whose first key's value moves to another block, and whose old memory is used again.
#[cfg(feature = "faults")]
fn moved_and_used_again() -> Table {
    let mut life = Life::new(&config("windowed:8".parse().unwrap(), 2), 1);
    let put = |life: &mut Life, n: u64, put: u64| assert!(life.put(n, value(put, VALUE_MAX)).is_ok());
    let rest = |life: &Life| {
        while life.index.tidy().is_some() {
            life.clock.advance(4 * grace());
        }
    };
    put(&mut life, 0, 1);
    // The key's block has few values left, and another one many.
    (100..141).for_each(|n| put(&mut life, n, n));
    (100..136).for_each(|n| assert!(life.remove(n)));
    rest(&life);
    assert!(life.moved_bytes() > 0, "{:?}", life.index.heap());
    (200..220).for_each(|n| put(&mut life, n, n));
    rest(&life);
    life.table()
}

/// A range that is all of a value.
pub const WHOLE: Range<usize> = 0..usize::MAX;

/// What clients met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub gets: u64,
    pub long: u64,
    pub again: u64,
    /// Looks at keys with the digest of another one.
    pub others: u64,
    pub replaced: u64,
    pub batches: u64,
    /// Batches of more than one value that was not in its slot.
    pub long_together: u64,
    /// GETs during which all entries of their key's owner were hidden with one store.
    pub hidden: u64,
}

impl Table {
    /// GETs of one client.
    pub fn client(&self, hardware: Hardware, seed: u64, gets: usize, met: &mut Met) -> Result<(), String> {
        let mut choices = Random::new(seed);
        let mut random = Random::new(!seed);
        let number = random.pick(self.versions.len());
        let mut leaps: Vec<Instant> =
            self.versions[number].iter().flat_map(|version| [version.from, version.made]).collect();
        leaps.extend(&self.leaps);
        leaps.sort();
        leaps.dedup();
        let mut reader = client(&self.history, &self.geometry, hardware, &mut choices);
        let hints = Hints::new(&self.geometry, usize::MAX).filter(|_| hardware.hints);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        for from in near(&leaps, gets, &mut random, Instant(0), self.history.end()) {
            let read_stores_max = [Some(10), Some(40), Some(150), Some(1_500), None][random.pick(5)];
            let range = match random.pick(4) {
                0 => random.pick(VALUE_MAX)..random.pick(VALUE_MAX) + 1,
                _ => WHOLE,
            };
            let aim = Aim { read_stores_max, leaps: &leaps, ..Aim::default() };
            match random.pick(4) {
                0 => self.get_many(&mut reader, number, from, aim, met)?,
                _ => self.get(&mut reader, number, range, from, aim, met)?,
            }
        }
        met.again += reader.stats().retries_replaced;
        met.others += reader.stats().retries_other_key;
        Ok(())
    }

    /// A GET of this part of a value, from this instant on.
    pub fn get<'a, A: Adversary>(
        &self,
        reader: &mut Reader<'_, Sim<'a, A>>,
        number: usize,
        range: Range<usize>,
        from: Instant,
        aim: Aim<'a>,
        met: &mut Met,
    ) -> Result<(), String> {
        let name = key(number as u64);
        let hashed = self.geometry.hashed(&name);
        reader.fabric_mut().begin(from, Aim { home: hashed.home(), ghost: hashed.ghost(), ..aim });
        let from = reader.fabric().now();
        let mut got = vec![0xee; 3];
        let found = match range {
            WHOLE => reader.get_into(&name, &mut got).map(|found| found.then_some(got.len())),
            _ => reader.get_range(&name, range.clone(), &mut got),
        };
        let to = reader.fabric().now();
        met.gets += 1;
        let len = match found {
            Ok(len) => len,
            Err(SimGetError::Read(ReadError::Replaced { .. })) => {
                met.replaced += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("key {number} from {}: {error}", from.0)),
        };
        met.long += u64::from(len.is_some_and(|len| len > 30));
        let at_once = |version: &Version| version.from == version.made && (from..=to).contains(&version.made);
        met.hidden += u64::from(self.versions[number].iter().skip(1).any(at_once));
        self.judge(number, len, &range, &got, from..to)
    }

    /// One batch of GETs of this key, of the next, and of it again, from this instant on.
    fn get_many<'a, A: Adversary>(
        &self,
        reader: &mut Reader<'_, Sim<'a, A>>,
        number: usize,
        from: Instant,
        aim: Aim<'a>,
        met: &mut Met,
    ) -> Result<(), String> {
        let numbers = [number, (number + 1) % self.versions.len(), number];
        let names = numbers.map(|number| key(number as u64));
        let hashed = self.geometry.hashed(&names[0]);
        reader.fabric_mut().begin(from, Aim { home: hashed.home(), ghost: hashed.ghost(), ..aim });
        let from = reader.fabric().now();
        let mut got = Vec::new();
        let found = reader.get_many(&names, |nth, value| got.push((nth, value.map(<[u8]>::to_vec))));
        let to = reader.fabric().now();
        met.batches += 1;
        match found {
            Ok(()) => {}
            Err(SimGetError::Read(ReadError::Replaced { .. })) => {
                met.replaced += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("keys {numbers:?} from {}: {error}", from.0)),
        }
        assert_eq!(got.len(), numbers.len());
        let long = got.iter().filter(|(_, value)| value.as_ref().is_some_and(|value| value.len() > 30));
        met.long_together += u64::from(long.count() > 1);
        got.into_iter().try_for_each(|(nth, value)| {
            let (len, bytes) = (value.as_ref().map(Vec::len), value.unwrap_or_default());
            self.judge(numbers[nth], len, &WHOLE, &bytes, from..to)
        })
    }

    /// Whether the key had this value, and this part of it, at some instant of the GET.
    fn judge(
        &self,
        number: usize,
        len: Option<usize>,
        range: &Range<usize>,
        got: &[u8],
        during: Range<Instant>,
    ) -> Result<(), String> {
        let versions = &self.versions[number];
        let is_right = versions.iter().enumerate().any(|(n, version)| {
            let until = versions.get(n + 1).map_or(self.history.end(), |next| next.made);
            let is_it = match (&version.value, len) {
                (None, None) => true,
                (Some(value), Some(len)) => {
                    let part = range.start.min(len)..range.end.clamp(range.start.min(len), len);
                    value.len() == len && value[part] == got[..]
                }
                _ => false,
            };
            is_it && version.from <= during.end && during.start <= until
        });
        if is_right {
            return Ok(());
        }
        let what = format!("{len:?}, {range:?} of it: {got:?}");
        Err(format!("key {number} from {} to {}: {what}", during.start.0, during.end.0))
    }
}

/// What is wrong with these seeds' tables, and what clients and servers met.
fn found_wrong(
    layout: Layout,
    hardware: &[Hardware],
    seeds: std::ops::Range<u64>,
    clients: u64,
) -> (Option<String>, Met, [u64; 3]) {
    let (mut met, mut servers) = (Met::default(), [0; 3]);
    for seed in seeds {
        let (table, more) = table(layout, seed);
        servers.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        for client in 0..clients {
            let hardware = hardware[client as usize % hardware.len()];
            if let Err(wrong) = table.client(several(hardware), seed << 20 | client, 4, &mut met) {
                let wrong = format!("{layout}, seed {seed}, client {client} ({hardware:?}): {wrong}");
                return (Some(wrong), met, servers);
            }
        }
    }
    (None, met, servers)
}

#[test]
fn random_schedules_of_extents() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (2_000, 2_000) } else { (12, 300) };
    for preset in presets() {
        let (wrong, met, servers) = found_wrong(preset.layout, &EACH, 0..seeds, clients);
        println!("{}: {met:?}; bytes moved, puts refused, servers killed: {servers:?}", preset.name);
        assert_eq!(wrong, None);
        assert!(met.long > met.gets / 4 && met.again > seeds, "{}: {met:?}", preset.name);
        assert!(met.long_together > met.batches / 4 && met.batches > seeds, "{}: {met:?}", preset.name);
        let [moved_bytes, _, killed] = servers;
        assert!(moved_bytes > 1_000 * seeds && killed > seeds, "{}: {servers:?}", preset.name);
    }
}

/// Random schedules with keys that do not fit their slots, most of which have another one's digest.
#[cfg(feature = "faults")]
#[test]
fn random_schedules_of_equal_digests() {
    use oneread::internals::faults::{Broken, Rule};
    let _few_bits = Broken::rule(Rule::WideDigest);
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (1_000, 1_000) } else { (8, 200) };
    for preset in presets() {
        let (wrong, met, servers) = with_long_keys(|| found_wrong(preset.layout, &EACH, 0..seeds, clients));
        println!("{}: {met:?}; bytes moved, puts refused, servers killed: {servers:?}", preset.name);
        assert_eq!(wrong, None);
        assert!(met.long > met.gets / 4 && met.again > seeds && met.others > met.gets / 20, "{met:?}");
        let [moved_bytes, _, killed] = servers;
        assert!(moved_bytes > 1_000 * seeds && killed > seeds, "{}: {servers:?}", preset.name);
    }
}

/// A rule of keys that do not fit their slots is broken, and GETs, or the server itself, go wrong.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_long_keys_are_found() {
    use oneread::internals::faults::{Broken, Rule};
    let _few_bits = Broken::rule(Rule::WideDigest);
    for rule in [Rule::WholeKeyRead, Rule::WholeKeyHeld, Rule::OthersPassed] {
        with_long_keys(|| must_be_found(rule, &[LINES, SLOW, COUNTED, LOADS]));
    }
}

/// A rule of extents is broken, and GETs, or the server itself, go wrong. No CRC is believed.
#[cfg(feature = "faults")]
fn must_be_found(rule: oneread::internals::faults::Rule, hardware: &[Hardware]) {
    use oneread::internals::faults::{Broken, Rule};
    let broken = [rule, Rule::CrcCheck].map(Broken::rule);
    // Without the CRC a line or a word may be of another write, where it is not the unit of sampling.
    let found = ["windowed:8", "cluster", "list"].iter().find_map(|name| {
        let run = || found_wrong(name.parse().unwrap(), hardware, 0..60, 400);
        match std::panic::catch_unwind(run) {
            Ok((wrong, ..)) => wrong,
            Err(_) => Some(format!("{name}: the server ends")),
        }
    });
    drop(broken);
    println!("{rule:?}: {found:?}");
    assert!(found.is_some(), "case lost: {rule:?}");
}

#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_extents_are_found() {
    use oneread::internals::faults::Rule;
    // With the CRC left out nothing goes wrong, where stamps suffice.
    let hardware = [LINES, SLOW, COUNTED, LOADS];
    {
        let _no_crc = oneread::internals::faults::Broken::rule(Rule::CrcCheck);
        let (wrong, ..) = found_wrong("windowed:8".parse().unwrap(), &hardware, 0..12, 300);
        assert_eq!(wrong, None);
    }
    for rule in [
        Rule::NumberFirst,
        Rule::ExtentFirst,
        Rule::ExtentGrace,
        Rule::ExtentLength,
        Rule::ExtentLook,
        Rule::ExtentNumber,
        Rule::TakeoverExtents,
    ] {
        must_be_found(rule, &hardware);
    }
}

/// X6: a value that moves is another extent.
#[cfg(feature = "faults")]
#[test]
fn a_moved_extent_keeps_its_number() {
    use oneread::internals::faults::{Broken, Rule};
    let wrong = || {
        let table = moved_and_used_again();
        let hardware = [LINES, SLOW, COUNTED, LOADS];
        (0..2_000).find_map(|client| {
            let hardware = several(hardware[client as usize % 4]);
            table.client(hardware, client, 4, &mut Met::default()).err()
        })
    };
    let _no_crc = Broken::rule(Rule::CrcCheck);
    assert_eq!(wrong(), None);
    let _broken = Broken::rule(Rule::MoveNumber);
    let found = wrong();
    println!("MoveNumber: {found:?}");
    assert!(found.is_some(), "case lost");
}
