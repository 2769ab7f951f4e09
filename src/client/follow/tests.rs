//! Followers beside changes, by turns and by threads: what they hear makes the table.

use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, Evict, TableSize};
use crate::faults;
use crate::index::growth::pace::Pace;
use crate::index::{Index, OwnerSession, ScanPoint, StartSession};
use crate::layout::hash::Seeds;
use crate::layout::life::TICK_NS;
use crate::outcome::{PutError, PutMode, PutOptions};
use crate::part::{PartChange, Tell};
use crate::region::Region;
use crate::server::feed::{self, FollowerCounters};
use crate::sim::{Adversary, Random, Recorder, turns};
use crate::wire::{FeedRefusal, FeedReply, FeedRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

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
        let within = None;
        self.ask(FeedRequest::Changes { table, launch, from: number, end, values, prefix, passed, within })
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
    /// Each with its value, and whose entry it is.
    keys: BTreeMap<Vec<u8>, (Vec<u8>, u16)>,
    /// Keys that the walk has shown, or of which something was heard.
    met: BTreeMap<Vec<u8>, ()>,
    last: u64,
    gaps: u64,
    joined: u64,
    heard: u64,
    owners_gone: u64,
    causes: BTreeMap<String, u64>,
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
            HeardItem::Key(key, value, owner) => {
                if self.met.insert(key.clone(), ()).is_some() {
                    return Err(format!("the walk shows {key:?}, of which something was heard"));
                }
                self.keys.insert(key, (here(value)?, owner));
            }
            HeardItem::Change { number, what, key, value, owner, cause } => {
                if number <= self.last {
                    return Err(format!("change {number} after {}", self.last));
                }
                (self.last, self.heard) = (number, self.heard + 1);
                if key.is_empty() {
                    self.keys.retain(|_, (_, its)| *its != owner);
                    self.owners_gone += 1;
                    return Ok(false);
                }
                self.met.insert(key.clone(), ());
                let was = match what {
                    Changed::Left => {
                        *self.causes.entry(format!("{cause:?}")).or_default() += 1;
                        self.keys.remove(&key)
                    }
                    _ => self.keys.insert(key.clone(), (here(value)?, owner)),
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
    /// With owners, puts in two steps, ends and eviction; else with none of them.
    all: bool,
    threads: RunsBy,
}

/// How the threads of a run go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunsBy {
    /// One at a time, in an order that the seed says.
    Turns,
    /// All at once.
    Themselves,
}

impl RunsBy {
    fn run<T: Send>(self, seed: u64, works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
        match self {
            RunsBy::Turns => turns::run(seed, works),
            RunsBy::Themselves => at_once(works),
        }
    }
}

impl Run {
    /// What those who change do.
    fn changes(self) -> u64 {
        match self.threads {
            RunsBy::Turns => 120,
            RunsBy::Themselves => 1_000,
        }
    }
}

/// A table, and its clock.
#[derive(Debug)]
struct TimedTable {
    index: Index,
    clock: Clock,
}

fn table(run: Run, seed: u64) -> TimedTable {
    let size = match run.grows {
        true => TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(128) },
        false => TableSize::Slots(if run.all { 100 } else { 200 }),
    };
    let config = Config {
        layout: run.layout.parse().unwrap(),
        size,
        key_max: 8,
        value_max: 60,
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        life: run.all,
        owners: run.all,
        ..Config::default()
    };
    let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
    let region = match run.threads {
        RunsBy::Turns => {
            let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
            recorder.region(geometry.region_bytes())
        }
        RunsBy::Themselves => Region::private(geometry.region_bytes()),
    };
    let index = Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap();
    let index = if run.all { index.with_eviction(Evict::Clock).unwrap() } else { index };
    TimedTable { index, clock }
}

const KEYS: usize = 60;

/// What there is beside plain puts and removes, as one thread does it.
struct MixedWork<'i> {
    index: &'i Index,
    clock: &'i Clock,
    sessions: [Option<OwnerSession>; 3],
    starts: StartSession,
    /// What is started: key, ticket, and bytes.
    started: Vec<([u8; 8], u64, usize)>,
}

impl<'i> MixedWork<'i> {
    fn new(TimedTable { index, clock }: &'i TimedTable) -> MixedWork<'i> {
        let starts = index.start_session().unwrap();
        MixedWork { index, clock, sessions: Default::default(), starts, started: Vec::new() }
    }

    /// Puts as an owner, who begins if he is not there.
    fn put_of(&mut self, nth: usize, key: &[u8], value: &[u8]) {
        const ABSENT_FOR: Duration = Duration::from_secs(3600);
        let number = 1 + nth as u16;
        let session = match self.sessions[nth].take() {
            Some(session) => session,
            None => match self.index.owner(number, ABSENT_FOR) {
                Ok(session) => session,
                Err(PutError::OwnerGone { .. }) => return,
                Err(other) => panic!("{other}"),
            },
        };
        match self.index.put_of(&session, key, value, PutOptions::new()) {
            Err(PutError::OwnerGone { .. }) => {}
            _ => self.sessions[nth] = Some(session),
        }
    }

    /// Ends a put that was started.
    fn end_start(&mut self, random: &mut Random, value: u8) {
        if self.started.is_empty() {
            return;
        }
        let (key, ticket, len) = self.started.swap_remove(random.pick(self.started.len()));
        let nth = random.pick(self.sessions.len() + 1);
        match random.pick(4) {
            0 => drop(self.index.put_abort(&self.starts, &key, ticket).unwrap()),
            _ => {
                let _ = self.index.put_piece(&self.starts, &key, ticket, &vec![value; len]);
                let owner = self.sessions.get(nth).and_then(|session| session.as_ref());
                let _ = self.index.put_commit(&self.starts, &key, ticket, owner);
            }
        }
    }

    fn change(&mut self, random: &mut Random, key: [u8; 8], value: &[u8]) {
        let index = self.index;
        let nth = random.pick(self.sessions.len());
        match random.pick(16) {
            0..5 => self.put_of(nth, &key, value),
            5..8 => {
                let mut there = Vec::new();
                if index.reader().get_into(&key, &mut there).unwrap() {
                    let _ = index.compare_and_swap(&key, &there, value);
                }
            }
            8 => {
                let add = PartChange::Add { delta: 1, initial: Some(1) };
                let _ = index.change_part(&key, add, Tell::Nothing);
            }
            9 => drop(index.remove_owner(1 + nth as u16).unwrap()),
            10 | 11 => {
                let ttl = Duration::from_nanos(TICK_NS * (1 + 2 * random.pick(2) as u64));
                let _ = index.put_with(&key, value, PutOptions::new().ttl(ttl));
            }
            12 | 13 => {
                let (len, within) = (random.pick(60), Duration::from_nanos(TICK_NS * 4));
                if let Ok(ticket) = index.put_start(&self.starts, &key, len, within) {
                    self.started.push((key, ticket, len));
                }
            }
            14 => self.end_start(random, value[0]),
            _ if random.pick(2) == 0 => self.clock.advance(Duration::from_nanos(2 * TICK_NS)),
            _ => self.clock.advance(GRACE),
        }
    }
}

/// Changes few keys, and has the table grow and shrink.
fn change(table: &TimedTable, run: Run, seed: u64, changes: u64) {
    let index = &table.index;
    let mut random = Random::new(seed);
    let mut grows = random.pick(2) == 0;
    let mut others = run.all.then(|| MixedWork::new(table));
    for version in 1..=changes {
        if random.pick(50) == 0 {
            grows = !grows;
        }
        let most = [4, KEYS, if run.grows || run.all { 10 * KEYS } else { KEYS }][random.pick(3)];
        let key = (1 + random.pick(most) as u64).to_le_bytes();
        let value = (seed << 32 | version).to_le_bytes().repeat(1 + random.pick(7));
        match (&mut others, random.pick(if grows { 8 } else { 3 })) {
            (Some(others), _) if random.pick(2) == 0 => others.change(&mut random, key, &value),
            (_, 0 | 1) => drop(index.remove(&key).unwrap()),
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
        // Some begin anew without need.
        if run.all && !follower.is_joining() && random.pick(3) == 0 {
            (known.keys, known.met) = Default::default();
            follower.join(&mut source).map_err(|error| error.to_string())?;
        }
        // Others may go on.
        (0..random.pick(400)).for_each(|_| {
            index.region().load(0);
        });
    }
}

/// Two that change, and one that follows. What is wrong, or what he knows.
fn followed(run: Run, seed: u64) -> Result<Known, String> {
    let table = table(run, seed % 8);
    change(&table, run, !seed, 100 + seed % 100);
    let working = AtomicU64::new(2);
    type Work<'w> = Box<dyn FnOnce() -> Option<Result<Known, String>> + Send + 'w>;
    let works = |thread: u64| -> Work<'_> {
        let (table, working) = (&table, &working);
        Box::new(move || {
            change(table, run, seed << 1 | thread, run.changes());
            working.fetch_sub(1, Relaxed);
            None
        })
    };
    let follows: Work<'_> = Box::new(|| Some(follow(&table.index, run, &working, seed)));
    let ended = run.threads.run(seed, vec![works(0), works(1), follows]);
    is_so(&table, ended.into_iter().flatten().next().expect("one follows")?)
}

/// What one knows who has followed is what is there, or what is wrong with it.
fn is_so(table: &TimedTable, known: Known) -> Result<Known, String> {
    let (mut there, mut point) = (BTreeMap::new(), ScanPoint::default());
    while !point.is_at_end() {
        table.index.scan(&mut point, &mut |key, value, owner| {
            there.insert(key.to_vec(), (value.expect("it is in its slot").to_vec(), owner));
            true
        });
    }
    if known.keys != there {
        let differs = |(key, value): &(&Vec<u8>, &(Vec<u8>, u16))| there.get(*key) != Some(*value);
        let too_much: Vec<_> = known.keys.iter().filter(differs).collect();
        let missing: Vec<_> = there.keys().filter(|key| !known.keys.contains_key(*key)).collect();
        return Err(format!("known is {too_much:?}, which is not so; not known is {missing:?}"));
    }
    Ok(known)
}

/// An owner is removed while one begins to follow, and starts the feed.
fn removed_beside_a_walk(threads: RunsBy, seed: u64) -> Result<Known, String> {
    const MOST: usize = 60;
    let run = Run { all: true, grows: seed % 2 == 1, threads, ..PLAIN };
    let (table, working) = (table(run, seed % 8), AtomicU64::new(1));
    let session = table.index.owner(1, Duration::from_secs(3600)).unwrap();
    for n in 0..MOST as u64 {
        table.index.put_of(&session, &n.to_le_bytes(), b"value", PutOptions::new()).unwrap();
    }
    type Work<'w> = Box<dyn FnOnce() -> Option<Result<Known, String>> + Send + 'w>;
    let both = Barrier::new(2);
    let begins = || {
        // By turns, the order is the seed's.
        if threads == RunsBy::Themselves {
            both.wait();
        }
    };
    let removes: Work<'_> = Box::new(|| {
        begins();
        // Often at once, while the feed begins.
        for _ in 0..Random::new(seed).pick([1, 4_000][seed as usize / 2 % 2]) {
            table.index.region().load(0);
        }
        assert!(table.index.remove_owner(1).unwrap());
        working.fetch_sub(1, Relaxed);
        None
    });
    let follows: Work<'_> = Box::new(|| {
        begins();
        Some(follow(&table.index, run, &working, seed))
    });
    let ended = threads.run(seed, vec![removes, follows]);
    is_so(&table, ended.into_iter().flatten().next().expect("one follows")?)
}

/// Runs each on a thread of its own. The rules that are broken on this one are broken there.
fn at_once<T: Send>(works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    let rules = faults::all_broken();
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(works.len());
        for work in works {
            threads.push(scope.spawn(move || {
                faults::break_all(rules);
                work()
            }));
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LAYOUTS: [&str; 4] = ["windowed:8", "farm", "pilaf", "list"];
const PLAIN: Run = Run {
    layout: LAYOUTS[0],
    grows: false,
    feed_bytes: 1 << 20,
    eager: 6,
    all: false,
    threads: RunsBy::Turns,
};

/// J1 to J7: whoever joins while others change the table, and while it grows and shrinks, knows in the end what is
/// there, and heard each key in an order that makes sense.
#[test]
fn what_is_heard_makes_the_table() {
    let (mut heard, mut joined) = (0, 0);
    for layout in LAYOUTS {
        for seed in 0..25 {
            for grows in [false, true] {
                let run = Run { layout, grows, ..PLAIN };
                let known = followed(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
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
                let run = Run { layout, grows, feed_bytes: 1 << 10, eager: 2, ..PLAIN };
                let known = followed(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
                gaps += known.gaps;
            }
        }
    }
    println!("{gaps} gaps");
    assert!(gaps > 100, "{gaps}");
}

/// J8: the same where entries have owners, who go, and ends, are put in two steps, and make room for others: by turns, with a
/// large ring and a small one.
#[test]
fn what_is_heard_makes_a_table_with_everything() {
    let (mut heard, mut gone, mut causes) = (0, 0, BTreeMap::<String, u64>::new());
    for (layout, grows) in LAYOUTS.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        for seed in 0..8 {
            let large = Run { layout, grows, all: true, ..PLAIN };
            for run in [large, Run { feed_bytes: 1 << 10, eager: 2, ..large }] {
                let known = followed(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
                (heard, gone) = (heard + known.heard, gone + known.owners_gone);
                known.causes.into_iter().for_each(|(why, count)| *causes.entry(why).or_default() += count);
            }
        }
    }
    println!("{heard} changes were heard, {gone} owners went, and others left: {causes:?}");
    assert!(heard > 5_000 && gone > 100, "{heard} {gone}");
    for seed in 0..400 {
        let known = removed_beside_a_walk(RunsBy::Turns, seed);
        known.unwrap_or_else(|wrong| panic!("removed beside a walk, {seed}: {wrong}"));
    }
    for why in ["Removed", "Expired", "Evicted"] {
        assert!(causes.get(why).is_some_and(|&count| count > 20), "{why}: {causes:?}");
    }
    assert!(!causes.contains_key("OwnerGone"), "one change tells it of all: {causes:?}");
}

/// J8: and by threads.
#[test]
fn what_threads_tell_makes_the_table() {
    let (mut heard, mut gone, mut gaps) = (0, 0, 0);
    for (layout, grows) in LAYOUTS.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        for seed in 0..5 {
            let large = Run { layout, grows, all: true, threads: RunsBy::Themselves, ..PLAIN };
            for run in [large, Run { feed_bytes: 1 << 12, ..large }] {
                let known = followed(run, seed).unwrap_or_else(|wrong| panic!("{run:?}, {seed}: {wrong}"));
                (heard, gone, gaps) = (heard + known.heard, gone + known.owners_gone, gaps + known.gaps);
            }
        }
    }
    println!("{heard} changes were heard, {gone} owners went, {gaps} gaps");
    assert!(heard > 5_000 && gone > 100, "{heard} {gone}");
    for seed in 0..400 {
        let known = removed_beside_a_walk(RunsBy::Themselves, seed);
        known.unwrap_or_else(|wrong| panic!("removed beside a walk, {seed}: {wrong}"));
    }
}

/// Where threads run at once, a broken rule is found within a minute. What a busy machine does not find within one is
/// looked for in long runs only; by turns it is found always.
#[cfg(feature = "faults")]
#[test]
fn rules_of_owners_and_feeds_are_noticed_by_threads() {
    use crate::faults::Broken;
    const MOST: Duration = Duration::from_secs(60);
    let run = Run { all: true, threads: RunsBy::Themselves, ..PLAIN };
    type Found = fn(Run, u64) -> Result<Known, String>;
    let cases: [(Rule, Found); 2] = [
        (Rule::OwnerNumber, |run, seed| removed_beside_a_walk(run.threads, seed)),
        (Rule::OwnerTurn, |run, seed| followed(Run { grows: seed % 2 == 1, ..run }, seed)),
    ];
    let many = if std::env::var_os("ONEREAD_LONG").is_some() { cases.len() } else { 1 };
    for (rule, find) in cases.into_iter().take(many) {
        let _broken = Broken::rule(rule);
        let begun = Instant::now();
        let mut runs = (0..).take_while(|_| begun.elapsed() < MOST);
        let found = runs.find_map(|seed| Some((seed, find(run, seed).err()?)));
        let (seed, wrong) = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
        println!("{rule:?} broken: run {seed}, after {:?}: {wrong}", begun.elapsed());
    }
}

/// A scan that is cut anywhere shows what stays exactly once: D6.
fn scans(run: Run, seed: u64) -> Result<u64, String> {
    let table = table(run, seed % 8);
    let index = &table.index;
    let key = |n: usize| (n as u64).to_le_bytes();
    for n in (1..=KEYS).filter(|n| n % 2 == 0) {
        index.put(&key(n + (1 << 20)), b"stays", PutMode::Upsert).unwrap();
    }
    let (shared, changed) = (index, &table);
    type Work<'w> = Box<dyn FnOnce() -> Option<Result<BTreeMap<Vec<u8>, u32>, String>> + Send + 'w>;
    let works: Work<'_> = Box::new(move || {
        change(changed, run, seed, 200);
        None
    });
    let scans: Work<'_> = Box::new(move || {
        let (mut shown, mut cursor, mut random) = (BTreeMap::new(), Vec::new(), Random::new(seed));
        loop {
            let point = ScanPoint::from_bytes(&cursor, shared.geometry());
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
                let run = Run { layout, grows, feed_bytes: 1 << 10, eager: 1, ..PLAIN };
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
    let large = PLAIN;
    let growing = Run { grows: true, ..large };
    let small = Run { feed_bytes: 1 << 10, eager: 2, ..large };
    let all = Run { all: true, ..large };
    let mut lost = Vec::new();
    for (rule, run) in [
        (Rule::FeedLock, large),
        (Rule::FeedStart, large),
        (Rule::FeedNumber, large),
        (Rule::FeedPair, growing),
        (Rule::FeedGap, small),
        (Rule::FeedPassed, large),
        (Rule::ScanOrder, large),
        (Rule::OwnerTurn, all),
        (Rule::OwnerTurn, Run { grows: true, ..all }),
    ] {
        let _broken = Broken::rule(rule);
        let found = (0..MOST).find_map(|seed| Some((seed, followed(run, seed).err()?)));
        println!("{rule:?} broken: {found:?}");
        lost.extend(found.is_none().then_some(rule));
    }
    for rule in [Rule::OwnerNumber, Rule::OwnerStart] {
        let _broken = Broken::rule(rule);
        let found =
            (0..10 * MOST).find_map(|seed| Some((seed, removed_beside_a_walk(RunsBy::Turns, seed).err()?)));
        println!("{rule:?} broken: {found:?}");
        lost.extend(found.is_none().then_some(rule));
    }
    assert_eq!(lost, []);
    let _broken = Broken::rule(Rule::ScanOrder);
    let found = (0..MOST).find_map(|seed| scans(growing, seed).err());
    println!("{}", found.expect("case lost: ScanOrder, by scans"));
}
