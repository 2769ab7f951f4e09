//! Random schedules on tables whose values do not fit their slots: they are replaced, removed and moved, and
//! servers are killed, while clients fetch them.

use super::{COUNTED, HINTED, LINES, LOADS, SLOW, WORDS, grace, ns};
use oneread::families::presets;
use oneread::hints::Hints;
use oneread::layout::geometry::Geometry;
use oneread::sim::SimGetError;
use oneread::sim::{Adversary, Aim, Hardware, History, Instant, Random, Recorder, Sim};
use oneread::{Clock, Config, Index, Layout, Limits, PutError, PutMode, ReadError, Reader, Seeds, TableSize};
use std::sync::Arc;
use std::time::Duration;

/// Keys of a table.
const KEYS: u64 = 5;
/// The longest value.
const VALUE_MAX: usize = 240;

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

/// A value that tells which put made it, in each of its words.
fn value(put: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (put ^ (n / 8).wrapping_mul(0x35)).to_le_bytes()[n as usize % 8]).collect()
}

/// A value that a key had, or its absence: from the beginning of the change that made it to the end of the
/// next one.
#[derive(Clone, Debug)]
struct Version {
    value: Option<Vec<u8>>,
    from: Instant,
    /// When that change had ended.
    made: Instant,
}

/// A table whose values have come and gone.
struct Table {
    geometry: Geometry,
    history: History,
    /// Of each key, in order.
    versions: Vec<Vec<Version>>,
    moved_bytes: u64,
    refused: u64,
    killed: u64,
}

/// Blocks of the heap. With few, extents move often; with more, memory that they left is used again soon.
fn blocks(seed: u64) -> u64 {
    2 + seed % 3
}

fn config(layout: Layout, seed: u64) -> Config {
    Config::new()
        .layout(layout)
        .size(TableSize::Slots(64))
        .key_max(8)
        .value_max(VALUE_MAX)
        // A reference fits beside the key, and short values do.
        .inline_max(30)
        .heap_bytes(blocks(seed) * 4096)
        .grace(grace())
        .seeds(Seeds::from_number(seed))
}

fn recorded(geometry: &Geometry) -> (oneread::region::Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), ns(1)));
    (recorder.region(Index::bytes_with_handover(geometry)), recorder, clock)
}

fn table(layout: Layout, seed: u64) -> Table {
    let mut random = Random::new(seed);
    let geometry = config(layout, seed).geometry().unwrap();
    let (region, mut recorder, mut clock) = recorded(&geometry);
    let mut index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
    let begin = recorder.now();
    let absent = Version { value: None, from: Instant(0), made: Instant(0) };
    let mut versions: Vec<Vec<Version>> = (0..KEYS).map(|_| vec![absent.clone()]).collect();
    // Others fill the heap, so that memory is used again soon and blocks leave.
    let filler = |n: usize| 100 + n as u64;
    let fillers = 15 * (blocks(seed) as usize - 1);
    let (mut moved_bytes, mut refused, mut killed) = (0, 0, 0);
    let ends = seed % 2 == 1;
    for put in 1..260u64 {
        let from = recorder.now();
        let number = random.pick(KEYS as usize);
        let len = [0, 8, 31, 60, 120, 200, VALUE_MAX][random.pick(7)];
        let changed = match random.pick(14) {
            0..6 => match index.put(&key(number as u64), &value(put, len), PutMode::Upsert) {
                Ok(_) => Some((number, Some(value(put, len)))),
                Err(PutError::HeapFull { .. } | PutError::HeapBusy { .. } | PutError::Full { .. }) => None,
                Err(error) => panic!("{error}"),
            },
            6 => index.remove(&key(number as u64)).unwrap().then_some((number, None)),
            7..10 => {
                let name = key(filler(random.pick(fillers)));
                refused += u64::from(index.put(&name, &value(put, 200), PutMode::Upsert).is_err());
                None
            }
            10 => {
                let _ = index.remove(&key(filler(random.pick(fillers))));
                None
            }
            11 => {
                clock.advance(
                    [grace() / 8, grace(), 2 * grace() + ns(20), 2 * grace() + ns(600)][random.pick(4)],
                );
                None
            }
            _ => {
                index.tidy();
                None
            }
        };
        let made = recorder.now();
        if let Some((number, value)) = changed {
            versions[number].push(Version { value, from, made });
        }
        if !ends || random.pick(40) > 0 {
            continue;
        }
        // The server is killed a few stores ago, perhaps in the middle of this change.
        let at = Instant(recorder.now().0.saturating_sub(random.pick(80)).max(begin.0));
        moved_bytes += index.heap().moved_bytes;
        let next_life = recorded(&geometry);
        recorder.repeat(at, &next_life.0, &next_life.2);
        (recorder, clock) = (next_life.1, next_life.2);
        let found;
        (index, found) = Index::open(next_life.0, clock.clone()).unwrap();
        assert_eq!(found.misplaced, 0, "{layout}, seed {seed}");
        killed += 1;
        for (number, versions) in versions.iter_mut().enumerate() {
            versions.retain(|version| version.from < at || version.from == Instant(0));
            let mut there = Vec::new();
            let has = index.reader().get_into(&key(number as u64), &mut there).unwrap().then_some(there);
            if versions.last().unwrap().value != has {
                // The change that was cut off had no effect.
                let cut_off = versions.pop().unwrap();
                assert!(cut_off.made > at, "{layout}, seed {seed}: an acknowledged change is lost");
                assert_eq!(versions.last().unwrap().value, has, "{layout}, seed {seed}, key {number}");
            }
            let last = versions.last_mut().unwrap();
            if last.made > at {
                last.made = recorder.now();
            }
        }
    }
    moved_bytes += index.heap().moved_bytes;
    // What every slot names, and nothing else, has memory.
    assert_eq!(recorder.history(geometry.region_bytes()).end(), recorder.now());
    Table {
        history: recorder.history(geometry.region_bytes()),
        geometry,
        versions,
        moved_bytes,
        refused,
        killed,
    }
}

/// A table whose first key's value moves to another block, and whose old memory is used again.
fn moved_and_used_again() -> Table {
    let layout = "windowed:8".parse().unwrap();
    let geometry = config(layout, 2).geometry().unwrap();
    let (region, recorder, clock) = recorded(&geometry);
    let index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
    let put = |n: u64, put: u64| {
        assert!(index.put(&key(n), &value(put, VALUE_MAX), PutMode::Upsert).is_ok());
    };
    let rest = || {
        while index.tidy().is_some() {
            clock.advance(4 * grace());
        }
    };
    let mut versions: Vec<Vec<Version>> = vec![Vec::new(); KEYS as usize];
    versions[0].push(Version { value: None, from: Instant(0), made: Instant(0) });
    let from = recorder.now();
    put(0, 1);
    versions[0].push(Version { value: Some(value(1, VALUE_MAX)), from, made: recorder.now() });
    // The key's block has few values left, and another one many.
    (100..141).for_each(|n| put(n, n));
    (100..136).for_each(|n| assert!(index.remove(&key(n)).unwrap()));
    rest();
    assert!(index.heap().moved_bytes > 0, "{:?}", index.heap());
    (200..220).for_each(|n| put(n, n));
    rest();
    let moved_bytes = index.heap().moved_bytes;
    let history = recorder.history(geometry.region_bytes());
    Table { geometry, history, versions, moved_bytes, refused: 0, killed: 0 }
}

/// What clients met.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    gets: u64,
    long: u64,
    again: u64,
    replaced: u64,
}

impl Table {
    /// GETs of one client.
    fn client(&self, hardware: Hardware, seed: u64, gets: usize, met: &mut Met) -> Result<(), String> {
        let keys = self.versions.iter().filter(|versions| !versions.is_empty()).count();
        let mut choices = Random::new(seed);
        let mut random = Random::new(!seed);
        let number = random.pick(keys);
        let name = key(number as u64);
        let versions = &self.versions[number];
        let mut leaps: Vec<Instant> =
            versions.iter().flat_map(|version| [version.from, version.made]).collect();
        leaps.sort();
        leaps.dedup();
        let hashed = self.geometry.hashed(&name);
        let sim = Sim::new(&self.history, &self.geometry, hardware, &mut choices, Instant(0));
        let limits = Limits::new().retries_max(1_000).deadline(Duration::from_secs(3600));
        let mut reader = Reader::new(sim, &self.geometry, Clock::manual(), limits);
        let hints = Hints::new(&self.geometry, usize::MAX).filter(|_| hardware.hints);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        let mut begins: Vec<Instant> = (0..gets)
            .map(|_| {
                let near = leaps[random.pick(leaps.len())].0 + random.pick(60);
                Instant(near.saturating_sub(50).min(self.history.end().0))
            })
            .collect();
        begins.sort();
        for from in begins {
            let read_stores_max = [Some(10), Some(40), Some(150), Some(1_500), None][random.pick(5)];
            let aim = Aim { home: hashed.home(), ghost: hashed.ghost(), read_stores_max, leaps: &leaps };
            reader.fabric_mut().begin(from, aim);
            let from = reader.fabric().now();
            let mut got = vec![0xee; 3];
            let range = match random.pick(4) {
                0 => random.pick(VALUE_MAX)..random.pick(VALUE_MAX) + 1,
                _ => 0..usize::MAX,
            };
            let found = match range.end {
                usize::MAX => reader.get_into(&name, &mut got).map(|found| found.then_some(got.len())),
                _ => reader.get_range(&name, range.clone(), &mut got),
            };
            let to = reader.fabric().now();
            met.gets += 1;
            let len = match found {
                Ok(len) => len,
                Err(SimGetError::Read(ReadError::Replaced { .. })) => {
                    met.replaced += 1;
                    continue;
                }
                Err(error) => return Err(format!("key {number} from {}: {error}", from.0)),
            };
            met.long += u64::from(len.is_some_and(|len| len > 30));
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
                is_it && version.from <= to && from <= until
            });
            if !is_right {
                let what = format!("{len:?}, {range:?} of it: {got:?}");
                return Err(format!("key {number} from {} to {}: {what}", from.0, to.0));
            }
        }
        met.again += reader.stats().retries_replaced;
        Ok(())
    }
}

/// The hardware of these runs: a client looks several times.
fn several(hardware: Hardware) -> Hardware {
    Hardware { passes_max: 8, ..hardware }
}

/// What clients have, in turn.
const EACH: [Hardware; 6] = [LINES, SLOW, WORDS, COUNTED, LOADS, HINTED];

/// What is wrong with these seeds' tables, and what clients and servers met.
fn found_wrong(
    layout: Layout,
    hardware: &[Hardware],
    seeds: std::ops::Range<u64>,
    clients: u64,
) -> (Option<String>, Met, [u64; 3]) {
    let (mut met, mut servers) = (Met::default(), [0; 3]);
    for seed in seeds {
        let table = table(layout, seed);
        let more = [table.moved_bytes, table.refused, table.killed];
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
        let [moved_bytes, _, killed] = servers;
        assert!(moved_bytes > 1_000 * seeds && killed > seeds, "{}: {servers:?}", preset.name);
    }
}

/// A rule of extents is broken, and GETs, or the server itself, go wrong. No CRC is believed.
#[cfg(feature = "faults")]
fn must_be_found(rule: oneread::faults::Rule, hardware: &[Hardware]) {
    use oneread::faults::{Broken, Rule};
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
    use oneread::faults::Rule;
    // With the CRC left out nothing goes wrong, where stamps suffice.
    let hardware = [LINES, SLOW, COUNTED, LOADS];
    {
        let _no_crc = oneread::faults::Broken::rule(Rule::CrcCheck);
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
    use oneread::faults::{Broken, Rule};
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
