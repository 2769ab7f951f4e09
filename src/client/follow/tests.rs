//! Followers beside changes, by turns: what they hear makes the table.

use super::*;
use crate::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::Index;
use crate::index::growth::pace::Pace;
use crate::layout::hash::Seeds;
use crate::outcome::PutMode;
use crate::server::feed::{self, FollowerCounters};
use crate::sim::{Adversary, Random, Recorder, turns};
use crate::wire::{FeedRefusal, FeedReply, FeedRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const GRACE: Duration = Duration::from_micros(200);

/// Asks an index.
struct DirectSource<'i> {
    index: &'i Index,
    /// Bytes of the feed, and of a reply.
    feed_bytes: u64,
    room: usize,
}

impl DirectSource<'_> {
    fn ask(&self, request: FeedRequest<'_>) -> Result<Vec<u8>, FeedRefusal> {
        match feed::answer(self.index, request, self.feed_bytes, self.room, &FollowerCounters::default()) {
            FeedReply::Scanned(body) | FeedReply::Changed(body) => Ok(body),
            FeedReply::Refused(why) => Err(why),
        }
    }
}

impl FeedSource for DirectSource<'_> {
    type Error = FeedRefusal;

    fn look(&mut self, table: u64, cursor: &[u8]) -> Result<Vec<u8>, FeedRefusal> {
        self.ask(FeedRequest::Scan { table, values: true, prefix: &[], cursor })
    }

    fn changes(
        &mut self,
        from: FeedPosition,
        end: u64,
        passed: Option<&[u8]>,
    ) -> Result<Vec<u8>, FeedRefusal> {
        let FeedPosition { table, launch, number } = from;
        let (values, prefix) = (true, &[][..]);
        self.ask(FeedRequest::Changes { table, launch, from: number, end, values, prefix, passed })
    }

    fn is_of_other_table(&self, error: &FeedRefusal) -> bool {
        matches!(error, FeedRefusal::OtherTable { .. })
    }

    fn nonsense(&mut self) -> FeedRefusal {
        panic!("a server's own bytes")
    }
}

/// What a follower knows of a table.
#[derive(Debug, Default)]
struct Known {
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Keys that the walk has shown, or of which something was heard.
    met: BTreeMap<Vec<u8>, ()>,
    last: u64,
    gaps: u64,
    joined: u64,
    heard: u64,
}

fn here(value: HeardValue) -> Result<Vec<u8>, String> {
    match value {
        HeardValue::Here(value) => Ok(value),
        other => Err(format!("a value that is {other:?}")),
    }
}

impl Known {
    /// Returns whether it has to begin anew.
    fn hear(&mut self, heard: HeardItem) -> Result<bool, String> {
        match heard {
            HeardItem::Gap { .. } => {
                (self.keys, self.met) = Default::default();
                (self.last, self.gaps) = (0, self.gaps + 1);
                return Ok(true);
            }
            HeardItem::Joined => self.joined += 1,
            HeardItem::Key(key, value, _) => {
                if self.met.insert(key.clone(), ()).is_some() {
                    return Err(format!("the walk shows {key:?}, of which something was heard"));
                }
                self.keys.insert(key, here(value)?);
            }
            HeardItem::Change { number, what, key, value, .. } => {
                if number <= self.last {
                    return Err(format!("change {number} after {}", self.last));
                }
                (self.last, self.heard) = (number, self.heard + 1);
                self.met.insert(key.clone(), ());
                let was = match what {
                    Changed::Left => self.keys.remove(&key),
                    _ => self.keys.insert(key.clone(), here(value)?),
                };
                if was.is_some() == (what == Changed::Came) {
                    return Err(format!("change {number}, {what:?}: {key:?} was {was:?}"));
                }
            }
        }
        Ok(false)
    }
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
struct Run {
    layout: &'static str,
    grows: bool,
    feed_bytes: u64,
    /// Most steps of the follower before it rests for some turns of the others.
    eager: usize,
}

fn index(run: Run, seed: u64) -> Index {
    let size = match run.grows {
        true => TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(128) },
        false => TableSize::Slots(200),
    };
    let config = Config {
        layout: run.layout.parse().unwrap(),
        size,
        key_max: 8,
        value_max: 60,
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        ..Config::default()
    };
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = recorder.region(geometry.region_bytes());
    Index::create_at_pace(region, geometry, clock, Pace::small()).unwrap()
}

const KEYS: usize = 60;

/// Changes few keys, and has the table grow and shrink.
fn change(index: &Index, run: Run, seed: u64, changes: u64) {
    let mut random = Random::new(seed);
    let mut grows = random.pick(2) == 0;
    for version in 1..=changes {
        if random.pick(50) == 0 {
            grows = !grows;
        }
        let most = [4, KEYS, if run.grows { 10 * KEYS } else { KEYS }][random.pick(3)];
        let key = (1 + random.pick(most) as u64).to_le_bytes();
        let value = (seed << 32 | version).to_le_bytes().repeat(1 + random.pick(7));
        match random.pick(if grows { 8 } else { 3 }) {
            0 | 1 => drop(index.remove(&key).unwrap()),
            _ => drop(index.put(&key, &value, PutMode::Upsert)),
        }
        if run.grows && random.pick(12) == 0 {
            index.pair_up(&key, random.pick(2) == 0);
            index.drive(1 + random.pick(8) as u32);
        }
        if random.pick(2) == 0 {
            index.tidy();
        }
    }
}

/// Follows until the others have ended and everything is heard.
fn follow(index: &Index, run: Run, working: &AtomicU64, seed: u64) -> Result<Known, String> {
    let mut random = Random::new(seed);
    let mut source =
        DirectSource { index, feed_bytes: run.feed_bytes, room: (1 << 10) + random.pick(2) * 3_000 };
    let (mut known, mut follower) = (Known::default(), Follower::new(FeedPosition::default()));
    follower.join(&mut source).map_err(|error| error.to_string())?;
    loop {
        let others_work = working.load(Relaxed) > 0;
        let mut is_new = follower.is_joining();
        for _ in 0..=random.pick(run.eager) {
            is_new |= follower.step(&mut source).map_err(|error| error.to_string())?;
            while let Some(heard) = follower.take() {
                if known.hear(heard)? {
                    follower.join(&mut source).map_err(|error| error.to_string())?;
                    is_new = true;
                }
            }
        }
        if !others_work && !is_new && !follower.is_joining() {
            return Ok(known);
        }
        // Others may go on.
        (0..random.pick(400)).for_each(|_| {
            index.region().load(0);
        });
    }
}

/// Two that change, and one that follows. What is wrong, or what he knows.
fn by_turns(run: Run, seed: u64) -> Result<Known, String> {
    const CHANGES: u64 = 120;
    let index = index(run, seed % 8);
    change(&index, run, !seed, 100 + seed % 100);
    let working = AtomicU64::new(2);
    type Work<'w> = Box<dyn FnOnce() -> Option<Result<Known, String>> + Send + 'w>;
    let works = |thread: u64| -> Work<'_> {
        let (index, working) = (&index, &working);
        Box::new(move || {
            change(index, run, seed << 1 | thread, CHANGES);
            working.fetch_sub(1, Relaxed);
            None
        })
    };
    let follows: Work<'_> = Box::new(|| Some(follow(&index, run, &working, seed)));
    let known = turns::run(seed, vec![works(0), works(1), follows]).into_iter().flatten().next();
    let known = known.expect("one follows")?;
    let mut there = BTreeMap::new();
    index.show_all(&mut |key, value| drop(there.insert(key.to_vec(), value.to_vec())));
    if known.keys != there {
        let differs = |(key, value): &(&Vec<u8>, &Vec<u8>)| there.get(*key) != Some(*value);
        let too_much: Vec<_> = known.keys.iter().filter(differs).collect();
        let missing: Vec<_> = there.keys().filter(|key| !known.keys.contains_key(*key)).collect();
        return Err(format!("known is {too_much:?}, which is not so; not known is {missing:?}"));
    }
    Ok(known)
}

const LAYOUTS: [&str; 4] = ["windowed:8", "farm", "pilaf", "list"];

/// J1 to J7: whoever joins while others change the table, and while it grows and shrinks, knows in the end what is
/// there, and heard each key in an order that makes sense.
#[test]
fn what_is_heard_makes_the_table() {
    let (mut heard, mut joined) = (0, 0);
    for layout in LAYOUTS {
        for seed in 0..25 {
            for grows in [false, true] {
                let run = Run { layout, grows, feed_bytes: 1 << 20, eager: 6 };
                let known = by_turns(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
                assert_eq!((known.gaps, known.joined), (0, 1));
                (heard, joined) = (heard + known.heard, joined + known.joined);
            }
        }
    }
    println!("{heard} changes were heard");
    assert!(heard > 5_000 && joined > 100, "{heard}");
}

/// J6: one that is too slow for a small ring is told, joins again, and knows in the end what is there.
#[test]
fn who_is_too_slow_is_told() {
    let mut gaps = 0;
    for layout in LAYOUTS {
        for seed in 0..25 {
            for grows in [false, true] {
                let run = Run { layout, grows, feed_bytes: 1 << 10, eager: 2 };
                let known = by_turns(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
                gaps += known.gaps;
            }
        }
    }
    println!("{gaps} gaps");
    assert!(gaps > 100, "{gaps}");
}

/// A scan that is cut anywhere shows what stays exactly once: D6.
fn scans(run: Run, seed: u64) -> Result<u64, String> {
    let index = index(run, seed % 8);
    let key = |n: usize| (n as u64).to_le_bytes();
    for n in (1..=KEYS).filter(|n| n % 2 == 0) {
        index.put(&key(n + (1 << 20)), b"stays", PutMode::Upsert).unwrap();
    }
    let shared = &index;
    type Work<'w> = Box<dyn FnOnce() -> Option<Result<BTreeMap<Vec<u8>, u32>, String>> + Send + 'w>;
    let works: Work<'_> = Box::new(move || {
        change(shared, run, seed, 200);
        None
    });
    let scans: Work<'_> = Box::new(move || {
        let (mut shown, mut cursor, mut random) = (BTreeMap::new(), Vec::new(), Random::new(seed));
        loop {
            let point = crate::index::ScanPoint::from_bytes(&cursor, shared.geometry());
            let Ok(mut point) = point else { return Some(Err(format!("{cursor:?}: {point:?}"))) };
            let mut left = random.pick(6);
            shared.scan(&mut point, &mut |key, _, _| {
                let is_taken = left > 0;
                if is_taken {
                    *shown.entry(key.to_vec()).or_default() += 1;
                    left -= 1;
                }
                is_taken
            });
            if point.is_at_end() {
                return Some(Ok(shown));
            }
            cursor = point.to_bytes(shared.geometry());
        }
    });
    let shown = turns::run(seed, vec![works, scans]).into_iter().flatten().next().expect("one scans")?;
    let twice = shown.iter().find(|(_, times)| **times > 1);
    let missed = (1..=KEYS).filter(|n| n % 2 == 0).find(|n| !shown.contains_key(&key(n + (1 << 20))[..]));
    match (twice, missed) {
        (None, None) => Ok(shown.len() as u64),
        wrong => Err(format!("shown twice, and missed: {wrong:?}")),
    }
}

#[test]
fn a_scan_shows_what_stays_once() {
    for layout in LAYOUTS {
        for seed in 0..50 {
            for grows in [false, true] {
                let run = Run { layout, grows, feed_bytes: 1 << 10, eager: 1 };
                scans(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
            }
        }
    }
}

/// Each broken rule is noticed.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_the_feed_are_noticed() {
    use crate::faults::Broken;
    const MOST: u64 = 400;
    let large = Run { layout: "windowed:8", grows: false, feed_bytes: 1 << 20, eager: 6 };
    let growing = Run { grows: true, ..large };
    let small = Run { feed_bytes: 1 << 10, eager: 2, ..large };
    let mut lost = Vec::new();
    for (rule, run) in [
        (Rule::FeedLock, large),
        (Rule::FeedStart, large),
        (Rule::FeedNumber, large),
        (Rule::FeedPair, growing),
        (Rule::FeedGap, small),
        (Rule::FeedPassed, large),
        (Rule::ScanOrder, large),
    ] {
        let _broken = Broken::rule(rule);
        let found = (0..MOST).find_map(|seed| Some((seed, by_turns(run, seed).err()?)));
        println!("{rule:?} broken: {found:?}");
        lost.extend(found.is_none().then_some(rule));
    }
    assert_eq!(lost, []);
    let _broken = Broken::rule(Rule::ScanOrder);
    let found = (0..MOST).find_map(|seed| scans(growing, seed).err());
    println!("{}", found.expect("case lost: ScanOrder, by scans"));
}
