//! Random schedules on tables that grow and shrink: keys that are always there, and keys that never are.

use super::{COUNTED, LINES, LOADS, SLOW, WORDS, grace, ns};
use oneread::families::presets;
use oneread::layout::geometry::{Geometry, SlotIx};
use oneread::sim::{Adversary, Aim, Hardware, History, Instant, Random, Recorder, Sim};
use oneread::{Clock, Config, Index, Layout, Limits, PutMode, Reader, Seeds, TableSize};
use std::sync::Arc;
use std::time::Duration;

/// A table that has grown and shrunk.
struct Grown {
    geometry: Geometry,
    history: History,
    /// When all keys were there that stay.
    begin: Instant,
    splits: u64,
    merges: u64,
    given_up: u64,
}

/// Keys that stay, and keys that never come.
const STAY: u64 = 12;
const NEVER: std::ops::Range<u64> = 1_000_000..1_000_008;

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn grown(layout: Layout, seed: u64) -> Grown {
    let mut random = Random::new(seed);
    let segment_slots = [16, 32][random.pick(2)].max(2 * u64::from(layout.window_slots()));
    let size = TableSize::Growing { bytes_max: 2 << 20, segment_slots: Some(segment_slots) };
    let value_max = [8, 70][random.pick(2)];
    let config = Config::new().layout(layout).size(size).key_max(8).value_max(value_max);
    let geometry = config.seeds(Seeds::from_number(seed)).grace(grace()).geometry().unwrap();
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), ns(1)));
    let region = recorder.region(geometry.region_bytes());
    let index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
    for n in 0..STAY {
        index.put(&key(n), &key(n), PutMode::Insert).unwrap();
    }
    let begin = recorder.now();
    let most = 8 * segment_slots;
    let mut there: Vec<u64> = Vec::new();
    let mut next = STAY;
    for phase in 0..4 {
        let (puts, until) = if phase % 2 == 0 { (8, most) } else { (2, random.pick(20) as u64) };
        for _ in 0..4 * most {
            if (there.len() as u64 >= until) == (puts == 8) {
                break;
            }
            if random.pick(10) < puts || there.is_empty() {
                // Segments are so small that one may be full before it is split.
                if index.put(&key(next), &key(next), PutMode::Insert).is_ok() {
                    there.push(next);
                }
                next += 1;
            } else {
                let gone = there.swap_remove(random.pick(there.len()));
                assert_eq!(index.remove(&key(gone)), Ok(true));
            }
            match random.pick(12) {
                0 => clock.advance([grace() / 8, grace(), 2 * grace() + ns(20), 5 * grace()][random.pick(4)]),
                1 | 2 => drop(index.tidy()),
                3 if phase % 2 == 1 => drop(index.shrink()),
                4 => index.give_up_merges(),
                _ => {}
            }
        }
    }
    let growth = index.growth();
    Grown {
        history: recorder.history(geometry.region_bytes()),
        geometry,
        begin,
        splits: growth.splits,
        merges: growth.merges,
        given_up: growth.given_up,
    }
}

impl Grown {
    /// The instants at which the header of the key's home changes in any segment, or a directory entry.
    fn leaps(&self, key: &[u8]) -> Vec<Instant> {
        let (geometry, history) = (&self.geometry, &self.history);
        let word = |slot: u64| geometry.slot_offset(SlotIx(slot)) as usize / 8;
        let home_slot = geometry.primary(geometry.hashed(key)).first.0;
        let words = geometry.shape().words();
        let headers = (0..geometry.segments_max())
            .map(|memory| word(geometry.directory_slots() + memory * geometry.slots() + home_slot) + 1);
        let mut leaps = Vec::new();
        for header in headers {
            leaps.extend(
                history.stores(header..header + 1, self.begin, history.end()).iter().map(|store| store.0),
            );
        }
        let entries = word(0)..word(0) + 64 * words;
        leaps.extend(history.stores(entries, self.begin, history.end()).iter().map(|store| store.0));
        leaps.sort();
        leaps.dedup();
        leaps
    }

    /// GETs of one client, in turn: the entries that it remembers get older. Returns what was wrong.
    fn client(&self, hardware: Hardware, seed: u64, gets: usize) -> Option<String> {
        let mut choices = Random::new(seed);
        let mut random = Random::new(!seed);
        let number = if random.pick(3) == 0 {
            NEVER.start + random.pick(8) as u64
        } else {
            random.pick(STAY as usize) as u64
        };
        let name = key(number);
        let leaps = self.leaps(&name);
        let hashed = self.geometry.hashed(&name);
        let sim = Sim::new(&self.history, &self.geometry, hardware, &mut choices, Instant(0));
        let limits = Limits::new().retries_max(1_000).deadline(Duration::from_secs(3600));
        let mut reader = Reader::new(sim, &self.geometry, Clock::manual(), limits);
        let mut begins: Vec<Instant> = (0..gets)
            .map(|_| {
                let near = leaps[random.pick(leaps.len())].0 + random.pick(60);
                Instant(near.saturating_sub(50).clamp(self.begin.0, self.history.end().0))
            })
            .collect();
        begins.sort();
        for from in begins {
            let read_stores_max = Some([2, 10, 40, 150, 390][random.pick(5)]);
            let aim = Aim { home: hashed.home(), ghost: hashed.ghost(), read_stores_max, leaps: &leaps };
            reader.fabric_mut().begin(from, aim);
            let mut value = Vec::new();
            let found = reader.get_into(&name, &mut value);
            let right =
                if NEVER.contains(&number) { found == Ok(false) } else { found == Ok(true) && value == name };
            if !right {
                return Some(format!("key {number} from {}: {found:?}, {value:?}", from.0));
            }
        }
        None
    }
}

/// The hardware of these runs: a client looks several times.
fn several(hardware: Hardware) -> Hardware {
    Hardware { passes_max: 8, ..hardware }
}

/// What is wrong with these seeds' tables, and how many GETs were made.
fn found_wrong(layout: Layout, seeds: u64, clients: u64) -> (Option<String>, u64, [u64; 3]) {
    let (mut gets, mut met) = (0, [0; 3]);
    for seed in 0..seeds {
        let grown = grown(layout, seed);
        for (sum, more) in met.iter_mut().zip([grown.splits, grown.merges, grown.given_up]) {
            *sum += more;
        }
        for client in 0..clients {
            let hardware = [LINES, SLOW, WORDS, COUNTED, LOADS][client as usize % 5];
            gets += 4;
            if let Some(wrong) = grown.client(several(hardware), seed << 20 | client, 4) {
                return (
                    Some(format!("{layout}, seed {seed}, client {client} ({hardware:?}): {wrong}")),
                    gets,
                    met,
                );
            }
        }
    }
    (None, gets, met)
}

#[test]
fn random_schedules_of_growth() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (2_000, 2_000) } else { (12, 400) };
    for preset in presets() {
        let (wrong, gets, met) = found_wrong(preset.layout, seeds, clients);
        println!("{}: {gets} GETs; splits, merges, merges given up: {met:?}", preset.name);
        assert_eq!(wrong, None);
        assert!(met[0] > 5 * seeds && met[1] > 2 * seeds, "{}: {met:?}", preset.name);
    }
}

/// A rule of growth is broken, and GETs, or the server itself, go wrong.
#[cfg(feature = "faults")]
fn must_be_found(rule: oneread::faults::Rule, names: &[&str], seeds: u64) {
    let broken = oneread::faults::Broken::rule(rule);
    let found = names.iter().find_map(|name| {
        match std::panic::catch_unwind(|| found_wrong(name.parse().unwrap(), seeds, 400)) {
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
fn broken_rules_of_growth_are_found() {
    use oneread::faults::Rule;
    for rule in [
        Rule::DirectoryLast,
        Rule::DepthFirst,
        Rule::MarkFirst,
        Rule::DepthBack,
        Rule::SegmentUse,
        Rule::EntryBound,
        Rule::AskFirst,
    ] {
        must_be_found(rule, &["windowed:8", "cluster", "list"], 40);
    }
}

/// These take long. `tests/segments_model.rs` finds each of them in a minute.
#[cfg(feature = "faults")]
#[test]
#[ignore = "takes an hour"]
fn rarely_broken_rules_of_growth_are_found() {
    use oneread::faults::Rule;
    for rule in [Rule::EntryAgain, Rule::BothWindows, Rule::OldChild, Rule::MarkStays, Rule::DepthStays] {
        must_be_found(rule, &["windowed:8", "cluster", "pilaf"], 4_000);
    }
}
