//! Servers of tables that grow, killed at every store of a split, a merge, and a merge given up. The next one
//! takes over and goes on. GETs of keys that are always there span kill and takeover.

use super::cases::{client, recorded};
use super::{COUNTED, LINES, LOADS, SLOW, WORDS, grace, several};
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{
    self, Adversary, Aim, Hardware, History, Instant, KeyNumber, Pace, Random, Recorder,
};
use oneread::{
    Config, PutMode, TableSize,
    embedded::{Clock, Index},
    layout::Seeds,
};
use std::sync::Arc;

/// What the server was about when it was killed.
#[derive(Clone, Copy, Debug)]
enum Work {
    Split,
    Merge,
    /// The merge is given up at once, or when traces of it have gone.
    GivenUp {
        late: bool,
    },
}

const WORKS: [Work; 4] =
    [Work::Split, Work::Merge, Work::GivenUp { late: false }, Work::GivenUp { late: true }];
const LAYOUTS: [&str; 6] = ["bucketized:4", "windowed:8", "farm", "list", "cluster", "pilaf"];
const EACH: [Hardware; 5] = [COUNTED, LOADS, LINES, SLOW, WORDS];

/// How large the segments of a table are, how it splits and merges them, and where its server is killed.
#[derive(Clone, Copy)]
struct Scale {
    segment_slots: u64,
    pace: Pace,
    /// Homes that are carried before time passes.
    homes_at_once: u32,
    /// The server is killed at each store whose number is a multiple of this.
    kill_every: usize,
}

const SMALL: Scale = Scale { segment_slots: 16, pace: Pace::small(), homes_at_once: u32::MAX, kill_every: 1 };
/// The pace of products. Inserts carry a split on, and time passes between them.
const SHIPPED: Scale = Scale {
    segment_slots: 128,
    pace: Pace::shipped(),
    homes_at_once: Pace::shipped().homes_per_insert,
    kill_every: 41,
};

/// A table that did such work, and the keys that were there all the while.
struct Worked {
    geometry: Geometry,
    pace: Pace,
    recorder: Arc<Recorder>,
    begin: Instant,
    end: Instant,
    keys: Vec<Vec<u8>>,
}

/// The next server of one that was killed.
struct TakenOver<'a> {
    worked: &'a Worked,
    history: History,
    killed: Instant,
    served: Instant,
}

fn settle(index: &Index, clock: &Clock) {
    for _ in 0..100 {
        clock.advance(3 * grace());
        index.tidy();
    }
}

/// Every other key has two words; keys of five words have slots of two lines.
fn key(n: u64, is_long: bool) -> Vec<u8> {
    let name = sim::key(sim::mixed(n as KeyNumber));
    if is_long { name.iter().copied().cycle().take(40).collect() } else { name }
}

/// Carries what is under way to its end.
fn drive(index: &Index, clock: &Clock, scale: Scale) {
    index.drive(scale.homes_at_once);
    for _ in 0..1_000 {
        let growth = index.growth();
        if scale.homes_at_once == u32::MAX || growth.splitting + growth.merging == 0 {
            return;
        }
        clock.advance(grace());
        // Takes traces away, and carries no home.
        assert_eq!(index.remove(b"no key"), Ok(false));
        index.drive(scale.homes_at_once);
    }
    panic!("it does not end: {:?}", index.growth());
}

fn worked(layout: &str, work: Work, seed: u64, scale: Scale) -> Worked {
    let layout: oneread::layout::Layout = layout.parse().unwrap();
    let segment_slots = scale.segment_slots.max(2 * u64::from(layout.window_slots()));
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(segment_slots) };
    let is_long = seed % 2 == 1;
    let config = Config::new().layout(layout).size(size).key_max(if is_long { 40 } else { 16 }).value_max(16);
    let geometry = config.seeds(Seeds::from_number(seed)).grace(grace()).geometry().unwrap();
    let (region, recorder, clock) = recorded(&geometry);
    let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), scale.pace).unwrap();
    let all = (0..segment_slots * 7 / 10).map(|n| key(n, is_long));
    let keys: Vec<_> = all.filter(|name| index.put(name, &name[..8], PutMode::Insert).is_ok()).collect();
    settle(&index, &clock);
    if !matches!(work, Work::Split) {
        if index.growth().segments == 1 {
            index.split(&keys[0]);
        }
        drive(&index, &clock, scale);
        settle(&index, &clock);
    }
    let before = index.growth();
    let begin = recorder.now();
    match work {
        Work::Split => index.split(&keys[0]),
        Work::Merge => index.merge(&keys[0]),
        Work::GivenUp { late } => {
            index.merge(&keys[0]);
            let half = geometry.homes() as u32 / 2;
            index.drive(if scale.homes_at_once == u32::MAX { 1 } else { scale.homes_at_once.min(half) });
            if late {
                clock.advance(3 * grace());
                // Takes traces away, and carries no home.
                assert_eq!(index.remove(b"no key"), Ok(false));
            }
            index.give_up_merges();
        }
    };
    drive(&index, &clock, scale);
    settle(&index, &clock);
    let (now, end) = (index.growth(), recorder.now());
    let did = [now.splits - before.splits, now.merges - before.merges, now.given_up - before.given_up];
    let is_done = match work {
        Work::Split => did[0] > 0,
        Work::Merge => did[1] > 0,
        Work::GivenUp { .. } => did[2] > 0,
    };
    assert!(is_done && !keys.is_empty(), "{layout}, {work:?}, seed {seed}: {did:?}");
    Worked { geometry, pace: scale.pace, recorder, begin, end, keys }
}

impl Worked {
    fn killed(&self, killed: Instant) -> TakenOver<'_> {
        let (region, recorder, clock) = recorded(&self.geometry);
        self.recorder.repeat(killed, &region, &clock);
        let (index, found) = Index::open_at_pace(region, clock.clone(), self.pace).unwrap();
        assert_eq!(found.keys, self.keys.len() as u64, "killed at {killed:?}: {found:?}");
        let served = recorder.now();
        for _ in 0..6 {
            clock.advance(3 * grace());
            index.tidy();
        }
        TakenOver { worked: self, history: recorder.history(self.geometry.region_bytes()), killed, served }
    }
}

impl TakenOver<'_> {
    /// GETs that begin shortly before the kill, or in the takeover. Returns how many saw the table before the
    /// takeover was done and after the kill.
    fn get(&self, hardware: Hardware, seed: u64, gets: u64) -> Result<u64, String> {
        let (mut random, mut choices) = (Random::new(!seed), Random::new(seed));
        let geometry = &self.worked.geometry;
        let leaps = [self.killed, self.served];
        let (mut spanned, before) = (0, self.worked.begin.0);
        for _ in 0..gets {
            let name = &self.worked.keys[random.pick(self.worked.keys.len())];
            let hashed = geometry.hashed(name);
            let from = match random.pick(3) {
                0 => self.killed.0 + random.pick(self.served.0 - self.killed.0 + 1),
                _ => self.killed.0.saturating_sub(random.pick(60)).max(before),
            };
            let aim =
                Aim { home: hashed.home(), ghost: hashed.ghost(), read_stores_max: None, leaps: &leaps };
            let mut reader = client(&self.history, geometry, several(hardware), &mut choices);
            reader.fabric_mut().tell();
            reader.fabric_mut().begin(Instant(from), aim);
            let mut value = Vec::new();
            let found = reader.get_into(name, &mut value);
            spanned += u64::from(from < self.served.0 && reader.fabric().now() > self.killed);
            if found != Ok(true) || value != name[..8] {
                let story = reader.fabric().story().join("\n   ");
                return Err(format!(
                    "{name:?} from {from}, killed at {}, served from {}, {hardware:?}: {found:?}, {value:?}\n   {story}",
                    self.killed.0, self.served.0
                ));
            }
        }
        Ok(spanned)
    }
}

/// What is wrong, and else how many servers were killed, and how many GETs spanned a takeover.
fn found_wrong(
    layout: &str,
    work: Work,
    seed: u64,
    hardware: &[Hardware],
    gets: u64,
    scale: Scale,
) -> Result<[u64; 2], String> {
    let worked = worked(layout, work, seed, scale);
    let (mut kills, mut spanned) = (0, 0);
    for at in (worked.begin.0..=worked.end.0).step_by(scale.kill_every) {
        let taken_over = worked.killed(Instant(at));
        kills += 1;
        for (nth, &hardware) in (0..).zip(hardware) {
            let seed = seed << 40 | (at as u64) << 8 | nth;
            spanned += taken_over
                .get(hardware, seed, gets)
                .map_err(|wrong| format!("{layout}, {work:?}, kill {kills}: {wrong}"))?;
        }
    }
    Ok([kills, spanned])
}

/// T1 to T5 in tables that grow.
#[test]
fn gets_that_span_a_takeover_of_a_table_that_grows() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, gets) = if is_long { (50, 40) } else { (2, 2) };
    for layout in LAYOUTS {
        for work in WORKS {
            let (mut kills, mut spanned) = (0, 0);
            for seed in 0..seeds {
                match found_wrong(layout, work, seed, &EACH, gets, SMALL) {
                    Ok([more, spans]) => (kills, spanned) = (kills + more, spanned + spans),
                    Err(wrong) => panic!("{wrong}"),
                }
            }
            let all = kills * EACH.len() as u64 * gets;
            println!("{layout}, {work:?}: {kills} kills, {spanned} of {all} GETs spanned a takeover");
            assert!(
                kills > 50 * seeds && spanned > all / 2,
                "{layout}, {work:?}: {kills}, {spanned} of {all}"
            );
        }
    }
}

/// GETs that span a takeover at the pace that ships: a kill leaves many homes here and many there.
#[test]
fn gets_that_span_a_takeover_at_the_shipped_pace() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, gets) = if is_long { (20, 40) } else { (1, 3) };
    for layout in ["bucketized:4", "windowed:8"] {
        for work in WORKS {
            let (mut kills, mut spanned) = (0, 0);
            for seed in 0..seeds {
                match found_wrong(layout, work, seed, &EACH, gets, SHIPPED) {
                    Ok([more, spans]) => (kills, spanned) = (kills + more, spanned + spans),
                    Err(wrong) => panic!("{wrong}"),
                }
            }
            let all = kills * EACH.len() as u64 * gets;
            println!("{layout}, {work:?}: {kills} kills, {spanned} of {all} GETs spanned a takeover");
            assert!(
                kills > 30 * seeds && spanned > all / 2,
                "{layout}, {work:?}: {kills}, {spanned} of {all}"
            );
        }
    }
}

/// T5 in tables that grow: without the count, an original goes unnoticed.
#[cfg(feature = "faults")]
#[test]
fn originals_of_a_killed_split_or_merge_that_go_uncounted() {
    use oneread::internals::faults::{Broken, Rule};
    let _broken = Broken::rule(Rule::TakeoverCount);
    for work in [Work::Split, Work::Merge] {
        let found =
            (0..4).find_map(|seed| found_wrong("windowed:8", work, seed, &[COUNTED], 20, SMALL).err());
        println!("{found:?}");
        assert!(found.is_some(), "case lost: {work:?}");
    }
}
