//! Servers of tables that grow, which stop, or are killed at every store of a split, a merge, and a
//! merge given up. The next server loses nothing, has nothing twice, leaks nothing, and goes on.

use super::Growth;
use super::pace::Pace;
use super::pairs::Driven;
use crate::base::clock::Clock;
use crate::base::observe::{Scheduler, schedule};
use crate::config::{Config, TableSize};
use crate::faults::Rule;
use crate::index::Index;
use crate::index::growth::handover_end;
use crate::index::home_set::HomeSet;
use crate::index::homes::Trace;
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::segment::Segment;
use crate::index::share::PairRole;
use crate::index::tests::check_books;
use crate::index::whole::Table;
use crate::index::whole::Walk;
use crate::layout::control::Phase;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Seeds;
use crate::layout::life::Life;
use crate::layout::slot::Key;
use crate::outcome::{PutError, PutMode, PutOutcome};
use crate::placement::families::presets;
use crate::region::Region;
use crate::sim::{Adversary, Instant, Random, Recorder};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "verbs")]
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(feature = "verbs")]
use {crate::index::budget::Registrar, crate::region::RegionError};

const GRACE: Duration = Duration::from_nanos(500);
/// So many segments, and no more, have memory.
const SEGMENTS_MAX: u64 = 4;
const LAYOUTS: [&str; 6] = ["pilaf", "bucketized:4", "windowed:8", "farm", "cluster", "list"];

/// The versions of the keys.
type Model = BTreeMap<u64, u64>;

/// A change that a client asked for: from which store to which, of which key, and its versions before
/// and after.
#[derive(Clone, Debug)]
struct AskedChange {
    from: Instant,
    to: Instant,
    key: u64,
    is: Option<u64>,
}

/// A table that grows, every store of which is recorded.
struct Lived {
    index: Index,
    clock: Clock,
    recorder: Arc<Recorder>,
    /// All changes. Those that did nothing are not among them.
    changes: Vec<AskedChange>,
    model: Model,
    next_version: u64,
}

fn value(key: u64, version: u64) -> [u8; 8] {
    (key << 32 | version).to_le_bytes()
}

fn config(layout: &str, seed: u64) -> Config {
    let layout: crate::layout::geometry::Layout = layout.parse().unwrap();
    config_of(layout, seed, 16.max(2 * u64::from(layout.window_slots())))
}

/// A table of segments of this number of slots.
fn config_of(layout: crate::layout::geometry::Layout, seed: u64, segment_slots: u64) -> Config {
    let sized = |bytes_max| Config {
        layout,
        size: TableSize::Growing { bytes_max, segment_slots: Some(segment_slots) },
        key_max: 8,
        value_max: 8,
        grace: GRACE,
        seeds: Some(Seeds::from_number(seed)),
        ..Config::default()
    };
    let fits = |bytes: &u64| sized(*bytes).geometry().is_ok_and(|it| it.segments_max() == SEGMENTS_MAX);
    sized((8..1 << 12).map(|kib| kib << 10).find(fits).expect("a size of so many segments"))
}

fn recorded(geometry: &Geometry) -> (Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    (recorder.region(handover_end(geometry)), recorder, clock)
}

impl Lived {
    fn new(layout: &str, seed: u64) -> Lived {
        Lived::of(config(layout, seed))
    }

    fn of(config: Config) -> Lived {
        let geometry = config.geometry().unwrap();
        let (region, recorder, clock) = recorded(&geometry);
        let index = Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap();
        Lived { index, clock, recorder, changes: Vec::new(), model: Model::new(), next_version: 1 }
    }

    fn growth(&self) -> &Growth {
        match &self.index.table() {
            Table::Many(growth) => growth,
            Table::One(_) => unreachable!("it grows"),
        }
    }

    fn now(&self) -> Instant {
        self.recorder.now()
    }

    /// Puts a key. Returns whether there was room.
    fn put(&mut self, key: u64) -> bool {
        let (from, version) = (self.now(), self.next_version);
        let put = self.index.put(&key.to_le_bytes(), &value(key, version), PutMode::Upsert);
        if put.is_ok() {
            self.note(from, key, Some(version));
        } else {
            // Memory comes back when no thread looks at it any more; other tests have threads, too.
            crossbeam_epoch::pin().flush();
            std::thread::sleep(Duration::from_micros(100));
        }
        put.is_ok()
    }

    fn remove(&mut self, key: u64) {
        let from = self.now();
        if self.index.remove(&key.to_le_bytes()).unwrap() {
            self.note(from, key, None);
        }
    }

    fn note(&mut self, from: Instant, key: u64, is: Option<u64>) {
        self.next_version += 1;
        self.changes.push(AskedChange { from, to: self.now(), key, is });
        match is {
            Some(version) => drop(self.model.insert(key, version)),
            None => drop(self.model.remove(&key)),
        }
    }

    /// The next server, of which this one was killed at this instant, or has stopped.
    fn open(&self, at: Instant, damage: impl FnOnce(&Region)) -> (Lived, Recovered) {
        let geometry = self.index.geometry().clone();
        let (region, recorder, clock) = recorded(&geometry);
        self.recorder.repeat(at, &region, &clock);
        damage(&region);
        let (index, found) = Index::open_at_pace(region, clock.clone(), Pace::small()).unwrap();
        let done = self.changes.iter().take_while(|change| change.to <= at);
        let changes: Vec<_> = done.cloned().collect();
        let mut model = Model::new();
        for change in &changes {
            match change.is {
                Some(version) => drop(model.insert(change.key, version)),
                None => drop(model.remove(&change.key)),
            }
        }
        let mut next = Lived { index, clock, recorder, changes, model, next_version: self.next_version };
        // The change that was under way is done, or it is not.
        if let Some(change) = self.changes.iter().find(|change| change.from < at && at < change.to)
            && next.version(change.key) == change.is
        {
            let is = change.is;
            next.note(change.from, change.key, is);
        }
        (next, found)
    }

    /// The version of a key by a GET.
    fn version(&self, key: u64) -> Option<u64> {
        let mut got = Vec::new();
        let found = self.index.reader().get_into(&key.to_le_bytes(), &mut got).unwrap();
        found.then(|| {
            let word = u64::from_le_bytes(got[..].try_into().unwrap());
            assert_eq!(word >> 32, key);
            word & u64::from(u32::MAX)
        })
    }

    /// Each key is there, once, with its value, and no other.
    fn check(&self, when: &str) {
        let (mut seen, mut walk) = (Vec::new(), Walk::default());
        let mut see = |key: &[u8], value: &[u8], _: Option<Life>| {
            let [key, value] = [key, value].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert_eq!(value >> 32, key);
            seen.push((key, value & u64::from(u32::MAX)));
        };
        while self.index.table().walk(&mut walk, &mut see) {}
        seen.sort_unstable();
        assert_eq!(walk.damaged, 0, "{when}");
        assert_eq!(seen, self.model.clone().into_iter().collect::<Vec<_>>(), "{when}");
        assert_eq!(self.index.len(), self.model.len() as u64, "{when}");
        for key in 0..self.model.keys().next_back().map_or(1, |last| last + 2) {
            assert_eq!(self.version(key), self.model.get(&key).copied(), "{when}: {key}");
        }
    }

    /// Lets every split and merge end, and every trace go.
    fn settle(&self, when: &str) {
        for _ in 0..1_000 {
            match self.index.tidy() {
                Some(wait) => self.clock.advance(wait.max(Duration::from_nanos(1))),
                None => {
                    let growth = self.index.growth();
                    assert_eq!((growth.splitting, growth.merging), (0, 0), "{when}");
                    return;
                }
            }
        }
        panic!("{when}: it does not end: {:?}", self.index.growth());
    }

    /// At rest, the books of each segment are right, and no piece of memory is lost.
    fn check_at_rest(&self, when: &str) {
        let guard = crossbeam_epoch::pin();
        let mut memories = Vec::new();
        for segment in self.growth().live.all(&guard) {
            check_books(segment);
            memories.push(segment.memory());
            let share = segment.share().get();
            assert_eq!(share.role, PairRole::Whole, "{when}");
            for home in 0..segment.geometry().homes() {
                let aux = segment.slots().header(segment.geometry().window(home).first).aux;
                let state = crate::layout::segment::HomeState { depth: share.depth, merged: false };
                assert_eq!(crate::layout::segment::HomeState::of(aux), state, "{when}: home {home}");
            }
        }
        drop(guard);
        // A piece comes back when no thread looks at its segment any more; other tests have threads, too.
        let is_all = || {
            crossbeam_epoch::pin().flush();
            let mut all = memories.clone();
            all.extend(self.growth().memory_left());
            all.sort_unstable();
            all.iter().copied().eq(0..SEGMENTS_MAX as u32)
        };
        let give_up = std::time::Instant::now() + Duration::from_secs(30);
        while !is_all() {
            assert!(std::time::Instant::now() < give_up, "{when}: memory is lost");
            std::thread::yield_now();
        }
        for line in 0..crate::layout::undo::UNDO_LINES {
            let word = crate::layout::undo::line_word(self.index.geometry().shape(), line);
            assert_eq!(self.index.region().load(word), 0, "{when}: undo line {line}");
        }
    }

    /// Changes some keys, so that the table splits, merges, or gives a merge up.
    fn live(&mut self, to: LifePhase, random: &mut Random) {
        let growth = |it: &Lived| it.index.growth();
        let before = growth(self);
        for _ in 0..2_000 {
            let now = growth(self);
            let next = 1 + self.model.keys().next_back().copied().unwrap_or(0);
            match to {
                LifePhase::Split if now.splits > before.splits && now.splitting == 0 => return,
                LifePhase::Merge if now.merges > before.merges && now.merging == 0 => return,
                LifePhase::GiveUp if now.given_up > before.given_up && now.merging == 0 => return,
                _ => {}
            }
            let some = |random: &mut Random, it: &Lived| {
                let nth = random.pick(it.model.len().max(1));
                it.model.keys().nth(nth).copied().unwrap_or(0)
            };
            // Where there is nothing to merge, it grows first.
            let grows = to == LifePhase::Split || now.segments == 1 || now.splitting > 0;
            match (to, random.pick(8)) {
                (_, 0..4) if grows && now.splitting == 0 => drop(self.put(next)),
                (_, 0) if grows => drop(self.put(next)),
                (_, 0..4) if !grows && now.merging == 0 => {
                    let key = some(random, self);
                    self.remove(key);
                    self.index.shrink();
                }
                (LifePhase::GiveUp, 1..4) if now.merging > 0 => self.index.give_up_merges(),
                (_, 4) => {
                    let key = some(random, self);
                    self.put(key);
                }
                (_, 5) => self.clock.advance(GRACE),
                (_, 6) => drop(self.index.tidy()),
                _ => self.clock.advance(GRACE / 20),
            }
        }
        panic!("no {to:?} comes of it: {before:?}, {:?}", growth(self));
    }
}

/// What a table goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifePhase {
    Split,
    Merge,
    GiveUp,
}

/// A table that has split, split again, given a merge up, merged, and split again in memory that it
/// has used before. With the instants at which each began.
fn life(layout: &str, seed: u64) -> (Lived, Vec<(LifePhase, Instant)>) {
    let (mut lived, mut random) = (Lived::new(layout, seed), Random::new(seed));
    let mut begun = Vec::new();
    for phase in [
        LifePhase::Split,
        LifePhase::Split,
        LifePhase::GiveUp,
        LifePhase::Merge,
        LifePhase::Merge,
        LifePhase::Split,
    ] {
        begun.push((phase, lived.now()));
        lived.live(phase, &mut random);
    }
    (lived, begun)
}

/// Takes over from a server that was killed at this instant, and lets the next one live on.
fn taken_over(lived: &Lived, at: Instant, when: &str) -> Lived {
    let (next, found) = lived.open(at, |_| {});
    assert!(!found.handed_over, "{when}");
    next.check(when);
    assert_eq!(found.keys, next.model.len() as u64, "{when}");
    next
}

/// A server is killed at every store of splits, of merges, and of merges given up. Nothing is lost,
/// doubled or leaked. The next one goes on with what was under way, and ends it. So does the one after
/// it, if that is killed in its takeover, or soon after.
#[test]
fn every_kill_of_splits_and_merges() {
    let (kills, each) = if std::env::var_os("ONEREAD_LONG").is_some() { (usize::MAX, 1) } else { (2, 1) };
    for layout in LAYOUTS {
        let (lived, begun) = life(layout, 1);
        let (mut count, mut under_way) = (0, [0; 2]);
        for at in (begun[0].1.0..=lived.now().0).step_by(each) {
            let phase = begun.iter().rev().find(|(_, from)| from.0 <= at).expect("it begins with one").0;
            let when = format!("{layout}, {phase:?}, killed at store {at}");
            let mut next = taken_over(&lived, Instant(at), &when);
            let growth = next.index.growth();
            under_way = [under_way[0] + growth.splitting, under_way[1] + growth.merging];
            // A takeover that is killed, too.
            let mut random = Random::new(at as u64);
            let (from, until) = (at, next.now().0);
            for _ in 0..kills.min(until - from) {
                let second = from + random.pick(until - from);
                let when = format!("{when}, and the next at {second}");
                let third = taken_over(&next, Instant(second), &when);
                third.settle(&when);
                third.check(&when);
                third.check_at_rest(&when);
                count += 1;
            }
            next.settle(&when);
            next.check(&when);
            next.check_at_rest(&when);
            // All memory is of use: the table becomes as large as it may.
            let first = 1_000;
            for key in first..first + 200 {
                if !next.put(key) && next.index.growth().segments == SEGMENTS_MAX {
                    break;
                }
                next.clock.advance(GRACE / 4);
            }
            next.settle(&when);
            assert_eq!(next.index.growth().segments, SEGMENTS_MAX, "{when}");
            next.check(&when);
            count += 1;
        }
        println!("{layout}: {count} kills, {under_way:?} splits and merges under way");
        assert!(count > 1_000 && under_way.iter().all(|&n| n > 100), "{layout}: {count}, {under_way:?}");
    }
}

/// A server stops with splits and merges under way, and the next one knows all that this one knew, at
/// once, and goes on. It stores nothing but its incarnation, and waits for nothing. Killed at any store
/// before the last, the server was killed. A handover is used once.
#[test]
fn a_stopped_server_hands_over_a_table_that_grows() {
    for preset in presets() {
        let (lived, begun) = life(preset.name, 2);
        let mut under_way = [0; 2];
        let every = (lived.now().0 - begun[0].1.0) / 60;
        for (nth, at) in (begun[0].1.0..=lived.now().0).step_by(every).enumerate() {
            let when = format!("{}, from store {at}", preset.name);
            let mut server = taken_over(&lived, Instant(at), &when);
            let mut random = Random::new(at as u64);
            for _ in 0..random.pick(6) {
                server.put(random.pick(20) as u64);
                server.remove(random.pick(20) as u64);
            }
            if nth % 3 == 0 {
                server.index.give_up_merges();
            }
            let before = server.now();
            server.index.hand_over(Duration::from_secs(1)).unwrap();
            assert!(server.growth().grace.until_next().is_none());
            let end = server.now();
            for killed in (before.0..end.0).filter(|_| random.pick(8) == 0) {
                taken_over(&server, Instant(killed), &format!("{when}, killed at {killed} of {}", end.0));
            }
            let (mut next, found) = server.open(end, |_| {});
            let keys = server.index.len();
            assert_eq!(found, Recovered { keys, handed_over: true, ..Recovered::default() }, "{when}");
            assert_eq!(next.now().0, end.0 + 1, "{when}: one store, its incarnation");
            assert_eq!(next.growth().pairs_left(), server.growth().pairs_left(), "{when}");
            assert_eq!(next.index.displaced(), server.index.displaced(), "{when}");
            let growth = next.index.growth();
            under_way = [under_way[0] + growth.splitting, under_way[1] + growth.merging];
            next.check(&when);
            // It stops at once. What it has not read goes on.
            next.index.hand_over(Duration::from_secs(1)).unwrap();
            let (mut third, found) = next.open(next.now(), |_| {});
            assert!(found.handed_over, "{when}");
            let begun = third.now();
            for key in 0..12 {
                third.put(key);
                third.remove(random.pick(20) as u64);
            }
            for killed in (begun.0..=third.now().0).filter(|_| random.pick(16) == 0) {
                taken_over(&third, Instant(killed), &format!("{when}, the third killed at {killed}"));
            }
            next = third;
            next.settle(&when);
            next.check(&when);
            next.check_at_rest(&when);
        }
        println!("{}: {under_way:?} splits and merges under way", preset.name);
        assert!(under_way.iter().all(|&n| n > 0), "{}: {under_way:?}", preset.name);
    }
}

/// A table with a pair, and the words of its handover.
fn handed_over(layout: &str) -> (Lived, Vec<usize>) {
    let (lived, begun) = life(layout, 1);
    let is_merging = |at: &usize| {
        let growth = lived.open(Instant(*at), |_| {}).0.index.growth();
        growth.merging > 0 && growth.segments > 2
    };
    let at = (begun[3].1.0..lived.now().0).find(is_merging).expect("a merge");
    let server = lived.open(Instant(at + 40), |_| {}).0;
    server.index.hand_over(Duration::from_secs(1)).unwrap();
    let geometry = server.index.geometry();
    let first = geometry.region_bytes().next_multiple_of(crate::layout::PAGE as u64);
    let words = [first, handover_end(geometry)].map(|byte| byte as usize / crate::layout::WORD);
    let used = (words[0]..words[1]).filter(|&word| server.index.region().load(word) != 0).collect();
    (server, used)
}

/// What becomes of a server that finds a word of a handover damaged. Returns whether it believed it.
fn with_damage(server: &Lived, word: usize, other: u64) -> bool {
    let (next, found) = server.open(server.now(), |region| region.store(word, other));
    let when = format!("word {word} is {other:#x}");
    next.check(&when);
    next.settle(&when);
    next.check(&when);
    next.check_at_rest(&when);
    found.handed_over
}

/// A handover with any wrong word is not believed, and nothing is wrong then.
#[test]
fn a_damaged_handover_of_a_table_that_grows_is_not_believed() {
    for layout in ["windowed:8", "list"] {
        let (server, words) = handed_over(layout);
        let mut damaged = 0;
        for word in words {
            let is = server.index.region().load(word);
            for other in [is ^ 1, is ^ 1 << 20, is ^ 1 << 40, 0, u64::MAX] {
                if other == is {
                    continue;
                }
                if with_damage(&server, word, other) {
                    // The upper half of the word that holds the CRC is not looked at.
                    assert_eq!(other as u32, is as u32, "{layout}, word {word}");
                } else {
                    damaged += 1;
                }
            }
        }
        println!("{layout}: {damaged}");
        assert!(damaged > 100, "{layout}: {damaged}");
    }
}

/// With these rules broken, a handover is believed that is damaged, or that is true no more.
#[cfg(feature = "faults")]
#[test]
fn broken_handovers_of_a_table_that_grows_are_noticed() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let is_wrong = |rule: Rule, story: &dyn Fn()| {
        let _broken = crate::faults::Broken::rule(rule);
        catch_unwind(AssertUnwindSafe(story)).is_err()
    };
    let (server, words) = handed_over("windowed:8");
    assert!(
        is_wrong(Rule::HandoverCheck, &|| {
            for &word in &words {
                with_damage(&server, word, server.index.region().load(word) ^ 1);
            }
        }),
        "case lost: HandoverCheck"
    );
    let used_twice = || {
        let mut next = server.open(server.now(), |_| {}).0;
        (0..12).for_each(|key| assert!(next.put(key)));
        taken_over(&next, next.now(), "used twice").settle("used twice");
    };
    assert!(is_wrong(Rule::HandoverOnce, &used_twice), "case lost: HandoverOnce");
    used_twice();
}

/// A table without keys, of two segments that a merge has begun to join: the first `homes` homes have gone.
fn merging(layout: &str, homes: u32) -> Lived {
    let lived = Lived::new(layout, 3);
    lived.growth().split(b"a key");
    lived.settle(layout);
    lived.growth().merge(b"a key");
    lived.growth().drive_on(homes);
    lived
}

/// What the header of a home says.
fn header(segment: &Segment, home: u64) -> crate::layout::segment::HomeState {
    let aux = segment.slots().header(segment.geometry().window(home).first).aux;
    crate::layout::segment::HomeState::of(aux)
}

/// A thread has taken the note out of its queue that a home is to be settled, and is slow. Meanwhile the
/// merge is given up, and the home is merged again. E5: the header stays for 2T from then.
#[test]
fn an_old_note_settles_no_home() {
    for layout in LAYOUTS {
        let lived = merging(layout, 1);
        let guard = crossbeam_epoch::pin();
        let parent = lived.growth().live.get(0, &guard).unwrap();
        let is_unsettled = || header(parent, 0).depth == 1 && !parent.homes().are_settled();
        assert!(is_unsettled(), "{layout}");
        lived.clock.advance(2 * GRACE);
        let (due_ns, old) = lived.growth().grace.pop_due().unwrap();
        assert_eq!((old.memory, old.trace), (0, Trace::Settle { homes: HomeSet::one(0) }), "{layout}");
        lived.growth().give_up_merges();
        lived.settle(layout);
        lived.growth().merge(b"a key");
        lived.growth().drive_on(1);
        assert!(is_unsettled(), "{layout}");
        parent.homes().take_away(due_ns, old.trace);
        assert!(is_unsettled(), "{layout}: settled by the old note");
        drop(guard);
        lived.settle(layout);
        lived.check_at_rest(layout);
    }
}

/// E6: a merge that is given up ends when no home is marked any more, and not before. Until then clients
/// may come to a marked home, and the directory names the pair.
#[test]
fn a_merge_given_up_ends_with_its_marks() {
    for layout in LAYOUTS {
        let mut lived = Lived::new(layout, 3);
        (0..6).for_each(|key| assert!(lived.put(key)));
        lived.growth().split(&0u64.to_le_bytes());
        lived.settle(layout);
        lived.growth().merge(&0u64.to_le_bytes());
        let homes = lived.index.geometry().homes();
        lived.growth().drive_on(homes as u32 / 2 + 1);
        lived.growth().give_up_merges();
        let guard = crossbeam_epoch::pin();
        let before = lived.growth().growth_counts();
        let child = lived.growth().live.get(1, &guard).unwrap();
        let marked = || (0..homes).filter(|&home| header(child, home).merged).count();
        let is_pair = || lived.growth().pairs_left().len() == 1;
        assert!(marked() > 0 && is_pair(), "{layout}");
        let mut all_back = 0;
        while is_pair() {
            all_back += u32::from(child.share().homes_away() == 0 && marked() > 0);
            lived.index.tidy();
            assert!(is_pair() || marked() == 0, "{layout}: {} homes are marked", marked());
            // Keys that are not there are not there, and no GET goes on until the marks are gone.
            (0..40)
                .for_each(|key| assert_eq!(lived.version(key), lived.model.get(&key).copied(), "{layout}"));
            lived.clock.advance(GRACE / 20);
        }
        assert!(all_back > 10, "{layout}: {all_back}");
        // That was neither a split nor a merge.
        let now = lived.growth().growth_counts();
        assert_eq!((now.splits, now.merges), (before.splits, before.merges), "{layout}");
        assert_eq!((now.splits, now.merges, now.given_up), (1, 0, 1), "{layout}");
        drop(guard);
        lived.settle(layout);
        lived.check(layout);
        lived.check_at_rest(layout);
    }
}

/// A merge is given up when its parent has no room for a key, and not when its child has none.
#[test]
fn a_merge_whose_parent_is_full_is_given_up() {
    for layout in LAYOUTS {
        for (memory, given_up) in [(0, 1), (1, 0)] {
            let lived = merging(layout, 1);
            let guard = crossbeam_epoch::pin();
            let full = lived.growth().live.get(memory, &guard).unwrap();
            lived.growth().make_room(full, &guard);
            let counts = lived.growth().growth_counts();
            assert_eq!(counts.given_up, given_up, "{layout}: no room in segment {memory}");
            drop(guard);
            lived.settle(layout);
            lived.check_at_rest(layout);
        }
    }
}

/// A slot that was being written when the server was killed counts once as torn, however many threads look
/// at the segments.
#[test]
fn a_torn_slot_counts_once() {
    for layout in LAYOUTS {
        let mut lived = Lived::new(layout, 3);
        assert!(lived.put(1));
        lived.growth().split(&1u64.to_le_bytes());
        lived.settle(layout);
        let from = lived.now().0;
        assert!(lived.put(1));
        let kills = from..=lived.now().0;
        let torn: Vec<u64> = kills.map(|at| lived.open(Instant(at), |_| {}).1.torn).collect();
        assert!(torn.contains(&1) && torn.iter().all(|&n| n <= 1), "{layout}: {torn:?}");
    }
}

/// A split takes keys out of the middle of a home's chain. Those of later blocks that stay come into their
/// slots, and the blocks that are then empty are free.
#[test]
fn a_split_makes_chains_shorter() {
    for layout in ["cluster", "list"] {
        // So large that no put splits it.
        let mut lived = Lived::of(config_of(layout.parse().unwrap(), 3, 64));
        let geometry = lived.index.geometry().clone();
        let (window, block) = (geometry.layout().window_slots(), geometry.layout().block_slots);
        let of_home = |goes: bool| {
            let geometry = &geometry;
            (0..).filter(move |key: &u64| {
                let key = key.to_le_bytes();
                let key = geometry.hashed(&key);
                key.home() == 0 && (key.first().directory() & 1 == 1) == goes
            })
        };
        // Some that stay in the window, some that go in the first block, as many that stay in the next one.
        let (mut stay, mut go) = (of_home(false), of_home(true));
        for (keys, count) in [(&mut stay as &mut dyn Iterator<Item = u64>, window), (&mut go, block)] {
            keys.take(count as usize).for_each(|key| assert!(lived.put(key)));
        }
        stay.take(block as usize).for_each(|key| assert!(lived.put(key)));
        let guard = crossbeam_epoch::pin();
        let parent = lived.growth().live.get(0, &guard).unwrap();
        let reserved = geometry.overflow_blocks() as usize;
        let chain =
            || (parent.homes().chain_heads(SlotIx(0)).count(), reserved - parent.homes().free_blocks().len());
        let growth = || lived.index.growth();
        assert_eq!((chain(), growth().splitting + growth().splits), ((3, 2), 0), "{layout}");
        let moves = parent.counts().moves;
        lived.growth().split(b"a key");
        lived.settle(layout);
        assert_eq!((chain(), growth().splits), ((2, 1), 1), "{layout}");
        assert_eq!(parent.counts().moves, moves + u64::from(block), "{layout}");
        drop(guard);
        lived.check(layout);
        lived.check_at_rest(layout);
    }
}

/// L9: a thread has found a split, and loses the CPU. Meanwhile the split ends, and the same two segments begin
/// to merge. The thread does not go on with the split: both would wait for each other's locks.
#[test]
fn a_pair_that_has_ended_is_not_driven() {
    let driven = |layout: &str| {
        let mut lived = Lived::new(layout, 3);
        (0..6).for_each(|key| assert!(lived.put(key)));
        let key = 0u64.to_le_bytes();
        lived.growth().split(&key);
        let guard = crossbeam_epoch::pin();
        let growth = lived.growth();
        let split = growth.pair_of(growth.live.get(0, &guard).unwrap()).unwrap();
        lived.settle(layout);
        growth.merge(&key);
        let homes = lived.index.geometry().homes() as u32;
        growth.drive_on(homes / 2);
        let merge = growth.pair_of(growth.live.get(0, &guard).unwrap()).unwrap();
        assert_eq!([split.parent, split.child], [merge.parent, merge.child], "{layout}");
        let child = growth.live.get(merge.child, &guard).unwrap();
        let (had_gone, driven) = (child.share().homes_away(), growth.drive(&split, homes, &guard));
        assert!(had_gone > 0, "{layout}");
        (driven, had_gone == child.share().homes_away())
    };
    for layout in LAYOUTS {
        assert_eq!(driven(layout), (Driven::Ended, true), "{layout}");
    }
    #[cfg(feature = "faults")]
    {
        let _broken = crate::faults::Broken::rule(Rule::PairEnds);
        assert_ne!(driven("windowed:8"), (Driven::Ended, true), "case lost: PairEnds");
    }
}

/// A thread makes the memory of a split ready. Meanwhile another one begins to merge the segment. So the
/// split does not begin, and its memory is free again.
#[cfg(feature = "verbs")]
#[test]
fn memory_of_a_split_that_does_not_begin_comes_back() {
    use std::sync::{Mutex, Weak, mpsc};
    /// Says that memory is about to be used, and waits.
    struct SlowRegistrar(Mutex<(mpsc::Sender<u32>, mpsc::Receiver<()>)>);
    impl Registrar for SlowRegistrar {
        fn before_use(&self, memory: u32) -> Result<(), RegionError> {
            let ends = crate::base::sync::lock_std(&self.0);
            ends.0.send(memory).unwrap();
            ends.1.recv().unwrap();
            Ok(())
        }
        fn before_use_of_block(&self, _: u64) -> Result<(), RegionError> {
            unreachable!("no values are long")
        }
    }
    for layout in LAYOUTS {
        let mut lived = Lived::new(layout, 3);
        (0..6).for_each(|key| assert!(lived.put(key)));
        let key = 0u64.to_le_bytes();
        lived.growth().split(&key);
        lived.settle(layout);
        let ((says, hears), (goes, waits)) = (mpsc::channel(), mpsc::channel());
        let registrar: Arc<dyn Registrar> = Arc::new(SlowRegistrar(Mutex::new((says, waits))));
        let of_growth: Weak<dyn Registrar> = Arc::downgrade(&registrar);
        lived.growth().register_with(of_growth);
        let growth = lived.growth();
        std::thread::scope(|scope| {
            let splits = scope.spawn(|| {
                let guard = crossbeam_epoch::pin();
                growth.begin_split(growth.live.get(0, &guard).unwrap())
            });
            let memory = hears.recv().unwrap();
            assert!(!growth.memory_left().contains(&memory), "{layout}: {memory} is taken");
            growth.merge(&key);
            goes.send(()).unwrap();
            assert!(
                splits.join().unwrap().is_err_and(|why| why.is_busy()),
                "{layout}: another one is under way"
            );
            assert!(growth.memory_left().contains(&memory), "{layout}: {memory} is lost");
        });
        drop(registrar);
        lived.settle(layout);
        lived.check(layout);
        lived.check_at_rest(layout);
    }
}

/// E1, in the order of the stores: when the directory begins to use a bit more, every entry that it leads to
/// is there, and says what the entry said that it takes the place of.
#[test]
fn entries_are_there_before_the_directory_uses_them() {
    use crate::layout::control::DIRECTORY_WORD;
    use crate::layout::segment::DirectoryEntry;
    use crate::layout::slot::check;
    for layout in LAYOUTS {
        let lived = Lived::new(layout, 3);
        let from = lived.now();
        // (No call of `tidy`, which would fill the next half long before.)
        for depth in 1..SEGMENTS_MAX {
            lived.growth().split(b"a key");
            lived.growth().drive_on(u32::MAX);
            assert_eq!((lived.index.growth().depth, lived.index.growth().splitting), (depth, 0), "{layout}");
        }
        let geometry = lived.index.geometry();
        let history = lived.recorder.history(lived.index.region().bytes());
        let entry = |number: u32, at: Instant| {
            let (slot, words) = (SlotIx(number.into()), geometry.shape().words());
            let first = geometry.slot_word(slot);
            let image: Vec<u64> = (first..first + words).map(|word| history.word(word, at)).collect();
            let view = check(geometry.shape(), geometry.identity(slot), &image).ok()?;
            DirectoryEntry::from_slot(geometry, &view.key(), &view.value())
        };
        let deeper = history.stores(DIRECTORY_WORD..DIRECTORY_WORD + 1, from, lived.now());
        let bits: Vec<u64> = deeper.iter().map(|&(.., bits)| bits).collect();
        assert_eq!(bits, (1..SEGMENTS_MAX).collect::<Vec<_>>(), "{layout}");
        for (at, _, bits) in deeper {
            let half = 1 << (bits - 1);
            for number in 0..half {
                let [old, new] = [number, half + number].map(|number| entry(number, at));
                assert!(old.is_some() && old == new, "{layout}, {bits} bits: {number}: {old:?}, {new:?}");
            }
        }
    }
}

/// A table that has all the memory that it may take says so, and how much that is. Puts that it refuses search
/// for room only now and then, whatever their keys, until room is made.
#[test]
fn refusals_at_the_bound_are_cheap() {
    const PUTS: u64 = 4_000;
    use crate::index::refusals::tests::FAILED;
    for layout in ["windowed:8", "windowed:16"] {
        let lived = Lived::of(config_of(layout.parse().unwrap(), 3, 512));
        let geometry = lived.index.geometry();
        let put = |key: u64| lived.index.put(&key.to_le_bytes(), &value(key, 1), PutMode::Insert);
        let mut next = 0;
        // So many in a row are refused.
        let mut refused = 0;
        while refused < 200 {
            match put(next) {
                Ok(_) => refused = 0,
                Err(error) => {
                    refused += 1;
                    let PutError::Full { keys, slots, bytes_max, heap_bytes: 0 } = error else {
                        panic!("{layout}: {error}")
                    };
                    assert_eq!(keys, lived.index.len(), "{layout}");
                    assert!(
                        keys <= slots && [0, geometry.slots_end()].contains(&bytes_max),
                        "{layout}: {error}"
                    );
                }
            }
            next += 1;
        }
        assert!(matches!(put(next), Err(PutError::Full { bytes_max, .. }) if bytes_max > 0), "{layout}");
        let before = FAILED.get();
        let refused = (next..next + PUTS).filter(|&key| put(key).is_err()).count() as u64;
        let searches = FAILED.get() - before;
        eprintln!("{layout}: {refused} of {PUTS} were refused, after {searches} searches");
        assert!(refused > PUTS / 2, "{layout}: {refused}");
        assert!(searches <= 2 * SEGMENTS_MAX * 16 + 2 * PUTS / 64, "{layout}: {searches} searches");
        // Where room was made, the next put finds it.
        assert_eq!(lived.index.remove(&0u64.to_le_bytes()), Ok(true));
        assert_eq!(put(0), Ok(PutOutcome::Inserted), "{layout}");
    }
}

/// The system refuses memory for segments. Each time the piece is free again, and counts for nobody. It is not
/// asked again until some time has passed. In the end it gives the memory, and the table grows.
#[cfg(feature = "verbs")]
#[test]
fn memory_that_is_refused_is_asked_for_again() {
    use std::sync::Weak;
    use std::sync::atomic::AtomicBool;
    /// Notes when it was asked, and refuses.
    struct RefusingPieces {
        clock: Clock,
        asked: std::sync::Mutex<Vec<u64>>,
        refuses: AtomicBool,
    }
    impl Registrar for RefusingPieces {
        fn before_use(&self, _: u32) -> Result<(), RegionError> {
            crate::base::sync::lock_std(&self.asked).push(self.clock.now_ns());
            match self.refuses.load(Ordering::Relaxed) {
                true => Err(RegionError::NoRoom { need: 1, left: 0, of: "the device".into() }),
                false => Ok(()),
            }
        }
        fn before_use_of_block(&self, _: u64) -> Result<(), RegionError> {
            unreachable!("no values are long")
        }
    }
    const AGAIN: Duration = Duration::from_millis(10);
    for layout in LAYOUTS {
        let mut lived = Lived::new(layout, 3);
        let refuses = AtomicBool::new(true);
        let refusing =
            Arc::new(RefusingPieces { clock: lived.clock.clone(), asked: Default::default(), refuses });
        let registrar: Arc<dyn Registrar> = refusing.clone();
        let of_growth: Weak<dyn Registrar> = Arc::downgrade(&registrar);
        lived.growth().register_with(of_growth);
        let mut next = 0;
        for _ in 0..3 * SEGMENTS_MAX {
            lived.clock.advance(AGAIN);
            let refused = (0..200).find_map(|_| {
                let put = lived.index.put(&u64::to_le_bytes(next), &value(next, 1), PutMode::Insert);
                next += u64::from(put.is_ok());
                put.err()
            });
            assert!(matches!(refused, Some(PutError::NoMemory { .. })), "{layout}: {refused:?}");
            let mut left = lived.growth().memory_left();
            left.sort_unstable();
            assert!(left.into_iter().eq(1..SEGMENTS_MAX as u32), "{layout}: memory is lost");
        }
        let asked = crate::base::sync::lock_std(&refusing.asked).clone();
        assert_eq!(lived.index.growth().refused, asked.len() as u64, "{layout}");
        assert!(asked.len() as u64 >= 3 * SEGMENTS_MAX, "{layout}: {asked:?}");
        let apart = |pair: &[u64]| Duration::from_nanos(pair[1] - pair[0]) >= AGAIN;
        assert!(asked.windows(2).all(apart), "{layout}: {asked:?}");
        refusing.refuses.store(false, Ordering::Relaxed);
        lived.clock.advance(AGAIN);
        lived.next_version = 2;
        assert!(lived.put(next), "{layout}");
        lived.settle(layout);
        assert_eq!((lived.index.growth().segments, lived.index.len()), (2, next + 1), "{layout}");
    }
}

/// The counts of segments, and their loads: of those that are whole, as long as there are any.
#[test]
fn loads_of_segments_are_counted() {
    for layout in LAYOUTS {
        let mut lived = Lived::new(layout, 3);
        (0..8).for_each(|key| assert!(lived.put(key)));
        let loads = |lived: &Lived, memories: &[u32]| {
            let guard = crossbeam_epoch::pin();
            let of = |&memory: &u32| {
                let counts = lived.growth().live.get(memory, &guard).unwrap().counts();
                counts.keys * 1_000_000 / counts.slots
            };
            let all: Vec<u64> = memories.iter().map(of).collect();
            [all.iter().copied().min().unwrap(), all.iter().copied().max().unwrap()]
        };
        let check = |lived: &Lived, counted: &[u32], expected: (u64, u64, u64, u64)| {
            let now = lived.index.growth();
            let its = (now.segments, now.splitting, now.merging, now.depth);
            assert_eq!(its, expected, "{layout}: {now:?}");
            assert_eq!([now.load_min_ppm, now.load_max_ppm], loads(lived, counted), "{layout}: {now:?}");
        };
        check(&lived, &[0], (1, 0, 0, 0));
        let key = 0u64.to_le_bytes();
        lived.growth().split(&key);
        check(&lived, &[0, 1], (2, 1, 0, 1));
        lived.settle(layout);
        check(&lived, &[0, 1], (2, 0, 0, 1));
        // One more, of the first segment: the other one is the only one that is whole.
        let of_first =
            |key: &u64| lived.index.geometry().hashed(&key.to_le_bytes()).first().directory() & 1 == 0;
        let key = (0..8).find(of_first).unwrap().to_le_bytes();
        lived.growth().split(&key);
        check(&lived, &[1], (3, 1, 0, 2));
        lived.settle(layout);
        check(&lived, &[0, 1, 2], (3, 0, 0, 2));
        lived.growth().merge(&key);
        check(&lived, &[1], (3, 0, 1, 2));
        lived.settle(layout);
        check(&lived, &[0, 1], (2, 0, 0, 1));
    }
}

/// A server that was killed while it made the table leaves one that nobody takes over.
#[test]
fn a_growing_table_half_made_is_not_taken_over() {
    for layout in LAYOUTS {
        let lived = Lived::new(layout, 3);
        lived.growth().publish_state(Phase::Starting);
        let opened = Index::open_at_pace(lived.index.region().alias(), Clock::manual(), Pace::small());
        assert_eq!(opened.map(|(_, found)| found).unwrap_err(), RecoverError::Unfinished, "{layout}");
        lived.growth().publish_state(Phase::Serving);
        assert!(
            Index::open_at_pace(lived.index.region().alias(), Clock::manual(), Pace::small()).is_ok(),
            "{layout}"
        );
    }
}

/// The next server has registered nothing yet. So clients are told of no remote keys that the last one had.
#[cfg(feature = "verbs")]
#[test]
fn remote_keys_are_told_by_who_has_them() {
    use crate::layout::chunk::chunk_slot;
    use crate::layout::slot::check;
    for layout in LAYOUTS {
        let lived = Lived::new(layout, 3);
        let geometry = lived.index.geometry();
        let told = || {
            let slot = chunk_slot(geometry, 0);
            let first = geometry.slot_word(slot);
            let words = first..first + geometry.shape().words();
            let image: Vec<u64> = words.map(|word| lived.index.region().load(word)).collect();
            let view = check(geometry.shape(), geometry.identity(slot), &image).unwrap();
            view.value().to_vec()
        };
        lived.growth().tell_key(0, 77).unwrap();
        assert_eq!(told(), 77u64.to_le_bytes(), "{layout}");
        let nobody: std::sync::Weak<NoOneElse> = std::sync::Weak::new();
        lived.growth().register_with(nobody);
        assert!(told().is_empty(), "{layout}");
        lived.growth().tell_key(0, 78).unwrap();
        assert_eq!(told(), 78u64.to_le_bytes(), "{layout}");
    }
    struct NoOneElse;
    impl Registrar for NoOneElse {
        fn before_use(&self, _: u32) -> Result<(), RegionError> {
            unreachable!("it is gone")
        }
        fn before_use_of_block(&self, _: u64) -> Result<(), RegionError> {
            unreachable!("it is gone")
        }
    }
}

/// A server thread's changes of its own keys, which share their homes with those of others; what it asks
/// of segments. Returns the versions of its keys.
fn live_beside(lived: &Lived, keys: std::ops::Range<u64>, seed: u64) -> Model {
    const CHANGES: u64 = 150;
    let (index, growth) = (&lived.index, lived.growth());
    let (mut random, mut model) = (Random::new(seed), Model::new());
    for version in 1..=CHANGES {
        let key = keys.start + random.pick((keys.end - keys.start) as usize) as u64;
        let name = key.to_le_bytes();
        match random.pick(16) {
            0..4 => {
                let expected =
                    if model.contains_key(&key) { PutOutcome::Updated } else { PutOutcome::Inserted };
                // Without room, nothing has changed.
                if let Ok(outcome) = index.put(&name, &value(key, version), PutMode::Upsert) {
                    assert_eq!(outcome, expected, "{key}");
                    model.insert(key, version);
                }
            }
            4 => assert_eq!(index.remove(&name), Ok(model.remove(&key).is_some()), "{key}"),
            5 => {
                let guard = crossbeam_epoch::pin();
                let hash = index.geometry().hashed(&name).first();
                let _ = growth.begin_split(growth.pair_at(hash.directory(), &guard).0);
            }
            6 => drop(growth.shrink()),
            7 if random.pick(8) == 0 => growth.give_up_merges(),
            7..12 => {
                crossbeam_epoch::pin().flush();
                index.tidy();
            }
            12 | 13 => lived.clock.advance(GRACE),
            _ => assert_eq!(lived.version(key), model.get(&key).copied(), "{key}"),
        }
    }
    model
}

/// Two server threads begin, drive and end splits and merges, and a segment's next pair begins where its last
/// one has just ended, in memory used before. Each finds its own keys as it left them, and a reader misses none
/// that stays; in the end the books are right and no memory is lost.
#[test]
fn two_threads_from_pair_to_pair() {
    const STAY: std::ops::Range<u64> = 0..6;
    let mut all = [0; 3];
    for layout in LAYOUTS {
        let mut sum = [0; 3];
        for seed in 0..40 {
            let mut lived = Lived::new(layout, seed);
            STAY.for_each(|key| assert!(lived.put(key)));
            let (server, model) = (&lived, &lived.model);
            let work: Vec<Box<dyn FnOnce() -> Model + Send + '_>> = vec![
                Box::new(move || live_beside(server, 6..14, seed)),
                Box::new(move || live_beside(server, 14..22, !seed)),
                Box::new(move || {
                    for key in STAY.cycle().take(120) {
                        assert_eq!(
                            server.version(key),
                            model.get(&key).copied(),
                            "{layout}, seed {seed}: {key}"
                        );
                    }
                    Model::new()
                }),
            ];
            let theirs = crate::sim::turns::run(seed, work);
            let growth = lived.index.growth();
            let met = [growth.splits, growth.merges, growth.given_up];
            sum.iter_mut().zip(met).for_each(|(sum, met)| *sum += met);
            lived.model.extend(theirs.into_iter().flatten());
            let when = format!("{layout}, seed {seed}");
            lived.check(&when);
            lived.settle(&when);
            lived.check(&when);
            lived.check_at_rest(&when);
        }
        println!("{layout}: splits, merges, given up: {sum:?}");
        all.iter_mut().zip(sum).for_each(|(all, met)| *all += met);
    }
    assert!(all.iter().all(|&n| n > 10), "{all:?}");
}

/// Acts as another thread would when this one is about to take its nth lock.
struct AtLock<F> {
    left: Cell<usize>,
    act: F,
}

impl<F: Fn()> Scheduler for AtLock<F> {
    fn may_pass(&self) {}

    fn wait_until(&self, _is_free: &dyn Fn() -> bool) {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 {
            (self.act)();
        }
    }
}

/// A table that has grown as far as it may, a key that finds its segment full, and one that stands in that
/// key's primary window.
fn full(layout: &str) -> (Lived, [u8; 8], Key) {
    let mut lived = Lived::new(layout, 5);
    (0..300).for_each(|key| {
        if !lived.put(key) {
            lived.clock.advance(5 * GRACE);
            lived.index.tidy();
        }
    });
    let guard = crossbeam_epoch::pin();
    let found = (300..3_000u64).map(u64::to_le_bytes).find_map(|name| {
        let key = lived.index.geometry().hashed(&name);
        let segment = lived.growth().pair_at(key.first().directory(), &guard).0;
        let mut window = segment.geometry().primary(key).iter().map(|slot| segment.homes().key_in(slot));
        let is_of_home = |other: &Key| segment.geometry().hashed(other).home() == key.home();
        let there = window.find(is_of_home).filter(|_| segment.homes().has_no_free_slot())?;
        Some((name, there))
    });
    drop(guard);
    let (newcomer, there) = found.unwrap_or_else(|| panic!("{layout}: {:?}", lived.index.growth()));
    (lived, newcomer, there)
}

/// At each lock that a put into a full table takes, another thread makes room and puts the same key: how often the put
/// answers `Full`, and how often it found the key.
fn puts_into_a_full_table(layout: &'static str, mode: PutMode) -> (u32, u32) {
    let (mut wrong, mut found) = (0, 0);
    for nth in 0.. {
        let (lived, newcomer, there) = full(layout);
        let (lived, has_put) = (Rc::new(lived), Rc::new(Cell::new(false)));
        let act = {
            let (lived, has_put) = (lived.clone(), has_put.clone());
            move || {
                assert_eq!(lived.index.remove(&there), Ok(true));
                let put = lived.index.put(&newcomer, b"", PutMode::Insert);
                assert_eq!(put, Ok(PutOutcome::Inserted), "{layout}, lock {nth}");
                has_put.set(true);
            }
        };
        schedule(Some(Rc::new(AtLock { left: Cell::new(nth), act })));
        let answer = lived.index.put(&newcomer, b"", mode);
        schedule(None);
        match answer {
            Ok(PutOutcome::Updated | PutOutcome::Exists) => found += 1,
            Err(PutError::Full { .. }) if has_put.get() => wrong += 1,
            // It takes no more locks than that.
            Err(PutError::Full { .. }) => break,
            answer => panic!("{layout}, lock {nth}: {answer:?}"),
        }
    }
    (wrong, found)
}

/// L6 in a table that has grown as far as it may.
#[test]
fn a_put_into_a_full_table_that_grows_looks_a_last_time() {
    for (layout, mode) in [("windowed:8", PutMode::Upsert), ("bucketized:4", PutMode::Insert)] {
        let (wrong, found) = puts_into_a_full_table(layout, mode);
        assert!(wrong == 0 && found > 3, "{layout}: {wrong} times full, {found} times found");
        #[cfg(feature = "faults")]
        {
            let _broken = crate::faults::Broken::rule(Rule::LastLook);
            let (wrong, _) = puts_into_a_full_table(layout, mode);
            assert!(wrong > 0, "{layout}: case lost: LastLook");
        }
    }
}
