//! Random schedules on tables that grow and shrink: keys that are always there, and keys that never are.
//! In some tables, servers are killed or stop meanwhile.

use super::cases::{client, near, recorded};
use super::{EACH, HINTED, LINES, WORDS, grace, ns, several};
use oneread::internals::families::presets;
use oneread::internals::hints::Hints;
use oneread::internals::layout::geometry::{Geometry, SlotIx};
use oneread::internals::sim::{self, Adversary, Aim, Hardware, History, Instant, KeyNumber, Pace, Random};
use oneread::{
    Config, PutMode, TableSize,
    embedded::Index,
    layout::{Layout, Seeds},
};

/// A table that has grown and shrunk.
struct Grown {
    geometry: Geometry,
    history: History,
    /// When all keys were there that stay.
    begin: Instant,
    splits: u64,
    merges: u64,
    given_up: u64,
    /// Servers that were killed, and that stopped.
    ended: [u64; 2],
}

/// Keys that stay, and keys that never come.
const STAY: u64 = 12;
const NEVER: std::ops::Range<u64> = 1_000_000..1_000_008;

/// Every other key has two words.
fn key(n: u64) -> Vec<u8> {
    sim::key(sim::mixed(n as KeyNumber))
}

/// How large a table's segments are, how fast it splits and merges them, and how often its server ends.
#[derive(Clone, Copy)]
struct Scale {
    segment_slots: [u64; 2],
    /// Keys at the most, in slots of a segment.
    segments: u64,
    pace: Pace,
    /// Changes between two ends of a server, on average.
    changes_a_life: usize,
}

/// A split of a segment with few homes takes about as many changes.
const SMALL: Scale = Scale { segment_slots: [16, 32], segments: 8, pace: Pace::small(), changes_a_life: 60 };
/// The pace of products. A split takes up to eight changes.
const SHIPPED: Scale =
    Scale { segment_slots: [128, 256], segments: 4, pace: Pace::shipped(), changes_a_life: 700 };

fn grown(layout: Layout, seed: u64, scale: Scale) -> Grown {
    let mut random = Random::new(seed);
    let segment_slots = scale.segment_slots[random.pick(2)].max(2 * u64::from(layout.window_slots()));
    let size = TableSize::Growing { bytes_max: 2 << 20, segment_slots: Some(segment_slots) };
    let value_max = [16, 70][random.pick(2)];
    let config = Config::new().layout(layout).size(size).key_max(16).value_max(value_max);
    let geometry = config.seeds(Seeds::from_number(seed)).grace(grace()).geometry().unwrap();
    let (region, mut recorder, mut clock) = recorded(&geometry);
    let mut index = Index::create_at_pace(region, geometry.clone(), clock.clone(), scale.pace).unwrap();
    // In one table of three, servers end now and then.
    let ends = seed % 3 == 2;
    let (mut ended, mut before) = ([0; 2], [0; 3]);
    for n in 0..STAY {
        index.put(&key(n), &key(n), PutMode::Insert).unwrap();
    }
    let begin = recorder.now();
    let most = scale.segments * segment_slots;
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
            if !ends || random.pick(scale.changes_a_life) > 0 {
                continue;
            }
            let stops = random.pick(2) == 0 && index.stop();
            let back = if stops { 0 } else { random.pick(60) };
            let at = Instant(recorder.now().0.saturating_sub(back).max(begin.0));
            let next_life = recorded(&geometry);
            recorder.repeat(at, &next_life.0, &next_life.2);
            for (sum, more) in before.iter_mut().zip(counted(&index)) {
                *sum += more;
            }
            (recorder, clock) = (next_life.1, next_life.2);
            let found;
            (index, found) = Index::open_at_pace(next_life.0, clock.clone(), scale.pace).unwrap();
            assert_eq!(found.handed_over, stops);
            ended[usize::from(stops)] += 1;
            let (mut reader, mut value) = (index.reader(), Vec::new());
            there = (STAY..next).filter(|&n| reader.get_into(&key(n), &mut value).unwrap()).collect();
        }
    }
    let mut sum = counted(&index);
    sum.iter_mut().zip(before).for_each(|(sum, before)| *sum += before);
    let [splits, merges, given_up] = sum;
    Grown {
        history: recorder.history(geometry.region_bytes()),
        geometry,
        begin,
        splits,
        merges,
        given_up,
        ended,
    }
}

/// Splits, merges, and merges given up.
fn counted(index: &Index) -> [u64; 3] {
    let growth = index.growth();
    [growth.splits, growth.merges, growth.given_up]
}

impl Grown {
    /// The instants at which the header of the key's home changes in any segment, or a directory entry.
    fn leaps(&self, key: &[u8]) -> Vec<Instant> {
        let (geometry, history) = (&self.geometry, &self.history);
        let word = |slot: u64| geometry.slot_offset(SlotIx(slot)) as usize / 8;
        let home_slot = geometry.primary(geometry.hashed(key)).first.0;
        let words = geometry.shape().words();
        let headers = (0..geometry.segments_max())
            .map(|memory| word(geometry.segment_first(memory as u32).0 + home_slot) + 1);
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

    /// GETs of one client, in turn: the entries and slots that it remembers get older. Returns how many were
    /// answered by a hint.
    fn client(&self, hardware: Hardware, seed: u64, gets: usize) -> Result<u64, String> {
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
        let mut reader = client(&self.history, &self.geometry, hardware, &mut choices);
        let hints = Hints::new(&self.geometry, usize::MAX).filter(|_| hardware.hints);
        if let Some(hints) = &hints {
            reader = reader.with_hints(hints);
        }
        for from in near(&leaps, gets, &mut random, self.begin, self.history.end()) {
            let read_stores_max = Some([2, 10, 40, 150, 390][random.pick(5)]);
            let aim = Aim { home: hashed.home(), ghost: hashed.ghost(), read_stores_max, leaps: &leaps };
            reader.fabric_mut().begin(from, aim);
            let mut value = Vec::new();
            let found = reader.get_into(&name, &mut value);
            let right =
                if NEVER.contains(&number) { found == Ok(false) } else { found == Ok(true) && value == name };
            if !right {
                return Err(format!("key {number} from {}: {found:?}, {value:?}", from.0));
            }
        }
        Ok(reader.hint_counts().hits)
    }
}

/// What is wrong with these seeds' tables, how many GETs were made, and what they met: splits, merges, merges
/// that were given up, hits by hints.
fn found_wrong(
    layout: Layout,
    hardware: &[Hardware],
    seeds: u64,
    clients: u64,
    scale: Scale,
) -> (Option<String>, u64, [u64; 6]) {
    let (mut gets, mut met) = (0, [0; 6]);
    for seed in 0..seeds {
        let grown = grown(layout, seed, scale);
        let [killed, stopped] = grown.ended;
        for (sum, more) in
            met.iter_mut().zip([grown.splits, grown.merges, grown.given_up, 0, killed, stopped])
        {
            *sum += more;
        }
        for client in 0..clients {
            let hardware = hardware[client as usize % hardware.len()];
            gets += 4;
            match grown.client(several(hardware), seed << 20 | client, 4) {
                Ok(hits) => met[3] += hits,
                Err(wrong) => {
                    let wrong = format!("{layout}, seed {seed}, client {client} ({hardware:?}): {wrong}");
                    return (Some(wrong), gets, met);
                }
            }
        }
    }
    (None, gets, met)
}

#[test]
fn random_schedules_of_growth() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (2_000, 2_000) } else { (6, 400) };
    for preset in presets() {
        let (wrong, gets, met) = found_wrong(preset.layout, &EACH, seeds, clients, SMALL);
        println!(
            "{}: {gets} GETs; splits, merges, merges given up, hits by hints, servers killed and stopped: {met:?}",
            preset.name
        );
        assert_eq!(wrong, None);
        assert!(met[0] > 5 * seeds && met[1] > 2 * seeds, "{}: {met:?}", preset.name);
        assert!(met[4].min(met[5]) > seeds / 2, "{}: {met:?}", preset.name);
        // Where a key has only one slot in the beginning, there are no hints.
        let is_hinted = preset.layout.choices * preset.layout.window_slots() > 1;
        assert_eq!(met[3] > seeds, is_hinted, "{}: {met:?}", preset.name);
    }
}

/// At the pace that ships, a change carries many homes at once, and a pair whose homes wait for ghosts rests.
#[test]
fn random_schedules_of_growth_at_the_shipped_pace() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (60, 2_000) } else { (3, 60) };
    for preset in presets() {
        let (wrong, gets, met) = found_wrong(preset.layout, &EACH, seeds, clients, SHIPPED);
        println!(
            "{}: {gets} GETs; splits, merges, merges given up, hits by hints, servers killed and stopped: {met:?}",
            preset.name
        );
        assert_eq!(wrong, None);
        assert!(met[0] > 5 * seeds && met[1] > 2 * seeds, "{}: {met:?}", preset.name);
        assert!(met[4] + met[5] > 0, "{}: {met:?}", preset.name);
        // Where one change carries all homes of a segment, a merge is over before it is given up.
        let homes = SHIPPED.segment_slots[1] / u64::from(preset.layout.bucket_slots);
        let is_over_at_once = homes <= SHIPPED.pace.homes_per_insert.into();
        assert!(met[2] > 0 || is_over_at_once, "{}: {met:?}", preset.name);
    }
}

/// A client READs a directory entry once, even if the key that it looked for is not there.
#[test]
fn an_absent_key_teaches_the_entry() {
    for preset in presets() {
        let grown = grown(preset.layout, 1, SMALL);
        let mut choices = Random::new(1);
        let mut reader = client(&grown.history, &grown.geometry, LINES, &mut choices);
        let mut learned = 0;
        for name in NEVER.map(key) {
            reader.fabric_mut().begin(grown.history.end(), Aim::default());
            let mut reads = || {
                let before = reader.read_counts().reads;
                assert_eq!(reader.get_into(&name, &mut Vec::new()), Ok(false));
                reader.read_counts().reads - before
            };
            let [first, second, third] = [(); 3].map(|()| reads());
            assert_eq!(second, third, "{}: {first} READs first", preset.name);
            learned += u32::from(first > second);
        }
        assert!(learned > 0, "{}", preset.name);
    }
}

/// A rule of growth is broken, and GETs, or the server itself, go wrong.
#[cfg(feature = "faults")]
fn must_be_found(rule: oneread::internals::faults::Rule, names: &[&str], hardware: &[Hardware], seeds: u64) {
    let broken = oneread::internals::faults::Broken::rule(rule);
    let found = names.iter().find_map(|name| {
        match std::panic::catch_unwind(|| found_wrong(name.parse().unwrap(), hardware, seeds, 400, SMALL)) {
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
    use oneread::internals::faults::Rule;
    for (rule, hardware) in [
        (Rule::HintMiss, &[HINTED][..]),
        // Without hints, a GET looks into the child of a split first.
        (Rule::HintMiss, &[LINES]),
        (Rule::DirectoryLast, &EACH),
        (Rule::DepthFirst, &EACH),
        (Rule::MarkFirst, &EACH),
        (Rule::DepthBack, &EACH),
        (Rule::SegmentUse, &EACH),
        (Rule::EntryBound, &[WORDS]),
        (Rule::AskFirst, &EACH),
    ] {
        must_be_found(rule, &["windowed:8", "cluster", "list"], hardware, 40);
    }
}
