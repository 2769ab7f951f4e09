//! Of each two features, one is stopped after each store, and the other one runs meanwhile.
//!
//! ```text
//! first    prepared ── stores ─┤ stopped                                         ├─ to its end
//! second   prepared            └─ to its end, or to a lock ── 2A ── memory used ─┘
//! ```
//!
//! GETs of the keys concerned span all that. At its end, and as it is while the first one is stopped, the
//! table is taken over by another server.

use super::super::extents::config;
use super::*;
use oneread::internals::layout::extent::Reference;
use oneread::internals::sim::{StopAt, interrupt};
use oneread::{TableSize, layout::Layout};

const LAYOUTS: [&str; 4] = ["windowed:8", "bucketized:4", "farm", "list"];

/// Features that a server's thread brings about.
const OPERATIONS: [Feature; 8] = [
    Feature::Move,
    Feature::Split,
    Feature::Merge,
    Feature::GivenUp,
    Feature::ExtentMove,
    Feature::Walk,
    Feature::Swap,
    Feature::Encryption,
];

/// The first is stopped after each of so many stores, and after so many of the later ones.
const EACH: usize = 40;
const LATER: usize = 12;

/// GETs of each witness that must meet both features of each pair.
const LEAST: u64 = 16;

/// GETs of each witness in each schedule.
const GETS: usize = 6;

/// Pairs of these come in every schedule, of others in ./test one in three.
const CLOSE: [Feature; 4] = [Feature::Split, Feature::Merge, Feature::GivenUp, Feature::ExtentMove];

/// The keys of a table. Segments are named by the two lowest bits of the directory hash; 10 is merged into 00,
/// or sends the keys of 110 away, and 11 is beside 01.
#[derive(Clone, Debug)]
struct Cast {
    /// In segment 10, of home 0, with a long value.
    hero: u64,
    /// Of the same home and segment.
    mate: u64,
    /// As many as fill the hero's primary window, and at least two.
    fillers: Vec<u64>,
    /// In segment 11, of home 0, with a long value.
    other: u64,
    /// In segments 01 and 11, with long values, most of which go.
    crowd: Vec<u64>,
}

impl Cast {
    fn new(server: &Server, layout: Layout) -> Cast {
        let of = |bits: u32| (0u64..).filter(move |&n| server.directory(n, 3) == bits && server.home(n) == 0);
        let mut those = of(6);
        let mut one = || those.next().expect("there are enough");
        let fillers = (0..layout.window_slots().max(2)).map(|_| one()).collect();
        let (hero, mate) = (one(), one());
        let other = of(7).next().expect("there are enough");
        let crowd = (0..).filter(|&n| n != other && server.directory(n, 1) == 1).take(24).collect();
        Cast { hero, mate, fillers, other, crowd }
    }
}

/// A table that two features are about to meet in.
struct Stage {
    server: Server,
    oracle: Oracle,
    cast: Cast,
    /// The hero's value.
    value: Vec<u8>,
    features: [Feature; 2],
}

fn is_growth(feature: Feature) -> bool {
    matches!(feature, Feature::Split | Feature::Merge | Feature::GivenUp)
}

impl Stage {
    /// `moves` is how many extents have moved already.
    fn new(layout: Layout, cast: Option<&Cast>, features: [Feature; 2], moves: usize) -> Stage {
        let size = TableSize::Growing { bytes_max: 128 << 10, segment_slots: Some(64) };
        let mut server = Server::new(&config(layout, 2).size(size).heap_bytes(3 * 4096));
        let cast = cast.map_or_else(|| Cast::new(&server, layout), Cast::clone);
        server.encrypted = vec![cast.hero, cast.other];
        let (oracle, value) = Default::default();
        let mut stage = Stage { server, oracle, cast, value, features };
        stage.grow();
        stage.fill();
        for nth in [0, 1] {
            if is_growth(features[nth]) {
                stage.prepare(features[nth], stage.key_of(nth == 1));
            }
        }
        if features.contains(&Feature::ExtentMove) {
            (0..moves).for_each(|_| drop(stage.act(Feature::ExtentMove, false)));
            stage.server.clock.advance(LONG_TIME);
        }
        stage
    }

    /// The key concerned: the hero, but for the second of two growths, which needs another pair of segments.
    fn key_of(&self, is_second: bool) -> u64 {
        if is_second && self.features.iter().all(|&feature| is_growth(feature)) {
            self.cast.other
        } else {
            self.cast.hero
        }
    }

    /// Splits the one segment into four.
    fn grow(&self) {
        let index = &self.server.index;
        for bits in [0, 0, 1] {
            let number = (0..).find(|&n| self.server.directory(n, 2) == bits).expect("there are enough");
            index.split(&key(number));
            self.server.rest();
        }
        assert_eq!(index.growth().segments, 4);
    }

    fn all_done(&mut self, events: Vec<Event>) {
        self.oracle.add(events).expect("one thread did it");
    }

    fn put(&mut self, number: u64, len: usize) {
        let events = self.server.put(number, len);
        assert!(!events.is_empty(), "{number} finds room");
        self.all_done(events);
    }

    /// Fills the heap, so that the hero's block becomes sparse.
    fn fill(&mut self) {
        let Cast { hero, mate, fillers, other, crowd } = self.cast.clone();
        if self.features.contains(&Feature::Move) {
            fillers.into_iter().for_each(|number| self.put(number, SHORT));
        }
        self.put(hero, LONG);
        let last = self.oracle.0[&hero].last().and_then(|version| version.value.clone());
        self.value = last.expect("it was just put");
        self.put(mate, SHORT);
        self.put(other, LONG);
        for &number in &crowd {
            self.put(number, LONG);
        }
        for &number in &crowd[..20] {
            self.server.clock.advance(LONG_TIME);
            self.put(number, SHORT);
        }
        self.reap();
    }

    /// Traces go, and nothing else happens.
    fn reap(&self) {
        for _ in 0..20 {
            self.server.clock.advance(LONG_TIME);
            assert_eq!(self.server.index.put(&key(u64::MAX), b"", PutMode::Update), Ok(PutOutcome::Missing));
        }
    }

    /// Begins a split or a merge, so that the home of this key is the next to go.
    fn prepare(&self, feature: Feature, number: u64) {
        let index = &self.server.index;
        assert!(index.pair_up(&key(number), feature != Feature::Split), "{feature:?}");
        if feature == Feature::GivenUp {
            index.drive_at(&key(number), 5);
            self.reap();
            index.give_up_merges();
        }
    }

    /// Brings a feature about.
    fn act(&self, feature: Feature, is_second: bool) -> Vec<Event> {
        let (server, number) = (&self.server, self.key_of(is_second));
        match feature {
            Feature::Move => server.remove(self.cast.fillers[usize::from(is_second)]),
            Feature::Split | Feature::Merge | Feature::GivenUp => {
                (0..4).for_each(|_| server.index.drive_at(&key(number), 1));
                server.index.drive_at(&key(number), 99);
                Vec::new()
            }
            Feature::ExtentMove => {
                let moved = || server.index.heap().moved_bytes;
                let before = moved();
                for _ in 0..30 {
                    server.index.move_extent();
                    if moved() > before {
                        break;
                    }
                    server.clock.advance(LONG_TIME);
                }
                Vec::new()
            }
            Feature::Walk => server.walk(self.oracle.0.keys().copied()),
            Feature::Swap => server.swap(number, &self.value, server.value(number, LONG)),
            Feature::Encryption => server.encrypted_swap(number),
            Feature::Kill => server.put(number, LONG),
            Feature::Hint => unreachable!("clients do it"),
        }
    }

    /// As [`Self::act`], and then time passes and memory is used again. When it began, when it ended, and when all
    /// was used.
    fn act_and_use_memory(&self, feature: Feature, is_second: bool) -> Part {
        let mut marks = vec![self.server.now()];
        let mut events = self.act(feature, is_second);
        marks.push(self.server.now());
        events.extend(self.use_memory());
        marks.push(self.server.now());
        (events, marks)
    }

    /// More than twice the allowance goes by. Values of others take what memory there is.
    fn use_memory(&self) -> Vec<Event> {
        self.server.clock.advance(LONG_TIME);
        let mut events = Vec::new();
        for &number in &self.cast.crowd[..22] {
            events.extend(self.server.put(number, LONG));
        }
        events.extend(self.server.get(self.cast.hero));
        events
    }

    /// What the slots of the hero name.
    fn named(&self) -> Option<Reference> {
        self.server.named(self.cast.hero)
    }
}

/// One pair of features in one layout.
struct Pair<'p> {
    layout: &'static str,
    cast: &'p Cast,
    features: [Feature; 2],
    /// Extents that have moved before the hero's does.
    moves: usize,
}

/// What a thread did, and when it began and ended what matters.
type Part = (Vec<Event>, Vec<Instant>);

impl Pair<'_> {
    fn new<'p>(layout: &'static str, cast: &'p Cast, features: [Feature; 2]) -> Pair<'p> {
        let mut pair = Pair { layout, cast, features, moves: 0 };
        if features.contains(&Feature::ExtentMove) {
            pair.moves = pair.moves_before();
        }
        pair
    }

    fn stage(&self) -> Stage {
        Stage::new(self.layout.parse().unwrap(), Some(self.cast), self.features, self.moves)
    }

    /// How many extents move before the hero's.
    fn moves_before(&self) -> usize {
        let stage = self.stage();
        let before = stage.named();
        for n in 0..100 {
            stage.act(Feature::ExtentMove, false);
            if stage.named() != before {
                // A GET that is misled will notice.
                stage.use_memory();
                let taken = |&number: &u64| {
                    let [now, then] = [stage.server.named(number), before].map(|it| it.map(|it| it.offset));
                    now.is_some_and(|now| now.abs_diff(then.expect("it was long")) < LONG as u64)
                };
                assert!(self.cast.crowd.iter().any(taken), "its memory is not used again");
                return n;
            }
        }
        panic!("{}, {:?}: the extent does not move", self.layout, self.features);
    }

    /// The places at which the first is stopped.
    fn stops(&self) -> Vec<StopAt> {
        let is_whole = is_long() || self.features.iter().all(|feature| CLOSE.contains(feature));
        self.all_stops().into_iter().step_by(if is_whole { 1 } else { 3 }).collect()
    }

    fn all_stops(&self) -> Vec<StopAt> {
        let stage = self.stage();
        let (from, first) = (stage.server.now(), self.features[0]);
        if first == Feature::Walk {
            let accesses = oneread::internals::sim::accesses_of(|| drop(stage.act(first, false)));
            return (1..accesses).step_by((accesses / EACH).max(1)).map(StopAt::Access).collect();
        }
        stage.act(first, false);
        let stores = stage.server.now().0 - from.0;
        assert!(stores > 0, "{}: {first:?} stores nothing", self.layout);
        let later = (EACH..stores).step_by((stores.saturating_sub(EACH) / LATER).max(1));
        (1..EACH.min(stores)).chain(later).map(|n| StopAt::Store(Instant(from.0 + n))).collect()
    }

    /// One schedule. In every second one the server is killed while the first is stopped, and GETs span the
    /// takeover; else both go on to their ends.
    fn meet(&self, stop: StopAt, nth: u64, met: &mut Met) -> Result<(), String> {
        let mut stage = self.stage();
        let [first, second] = self.features;
        let (it, server) = (&stage, &stage.server);
        let begun = server.now();
        let one = || -> Part {
            let events = it.act(first, false);
            (events, vec![begun, server.now()])
        };
        let two = || it.act_and_use_memory(second, true);
        let [one, two] = interrupt(&server.recorder, stop, one, two);
        let mut spans = vec![Span(first, one.1[0], one.1[1]), Span(second, two.1[0], two.1[1])];
        let used = two.1[2];
        let marks = [one.1, two.1].concat();
        stage.oracle.add([one.0, two.0].into_iter().flatten().collect())?;
        stage.server.rest();
        stage.server.check(&stage.oracle, "at rest")?;
        let is_killed = nth % 2 == 1;
        let killed = if is_killed { used } else { stage.server.now() };
        let (next, oracle, opened) = stage.server.killed(killed, &stage.oracle)?;
        next.rest();
        next.check(&oracle, &format!("taken over, killed at {}", killed.0))?;
        if is_killed {
            spans.push(Span(Feature::Kill, killed, opened));
            return self.gets(&next, &oracle, (spans, [marks, vec![opened]].concat()), nth, met);
        }
        self.gets(&stage.server, &stage.oracle, (spans, marks), nth, met)
    }

    /// The server is killed at a store of a put, and the next one brings the second feature about.
    fn after_a_kill(&self, mut stage: Stage, at: Instant, nth: u64, met: &mut Met) -> Result<(), String> {
        let opened;
        (stage.server, stage.oracle, opened) = stage.server.killed(at, &stage.oracle)?;
        let (events, marks) = stage.act_and_use_memory(self.features[1], false);
        stage.oracle.add(events)?;
        stage.server.rest();
        stage.server.check(&stage.oracle, "at rest after a kill")?;
        let spans = vec![Span(Feature::Kill, at, opened), Span(self.features[1], marks[0], marks[1])];
        let marks = [vec![at, opened], marks].concat();
        self.gets(&stage.server, &stage.oracle, (spans, marks), nth, met)
    }

    fn gets(
        &self,
        server: &Server,
        oracle: &Oracle,
        (spans, mut marks): (Vec<Span>, Vec<Instant>),
        nth: u64,
        met: &mut Met,
    ) -> Result<(), String> {
        let history = server.history();
        marks.retain(|mark| *mark <= history.end());
        marks.sort();
        marks.dedup();
        let past = Past { geometry: &server.geometry, history, oracle, spans, marks };
        (0..WITNESSES.len()).try_for_each(|witness| {
            let is_others = (nth / 2 + witness as u64).is_multiple_of(4);
            let number = if is_others { self.cast.other } else { self.cast.hero };
            past.client(number, witness, nth << 8 | witness as u64, GETS, met)
        })
    }

    /// What is wrong with each schedule that something is wrong with. Each is run when it is asked for.
    fn all_wrong(&self, stops: &[StopAt], met: &mut Met) -> impl Iterator<Item = String> {
        let is_kill = self.features[0] == Feature::Kill;
        (0..).zip(stops).filter_map(move |(nth, &stop)| {
            let wrong = or_panic(|| match stop {
                StopAt::Store(at) if is_kill => {
                    let mut stage = self.stage();
                    let events = stage.act(Feature::Kill, false);
                    stage.oracle.add(events)?;
                    self.after_a_kill(stage, at, nth, met)
                }
                _ => self.meet(stop, nth, met),
            });
            wrong
                .err()
                .map(|wrong| format!("{}, {:?}, {stop:?} (#{nth}): {wrong}", self.layout, self.features))
        })
    }
}

fn every_pair(layout: &'static str) {
    let begun = std::time::Instant::now();
    let cast = Stage::new(layout.parse().unwrap(), None, [Feature::Swap; 2], 0).cast;
    let (mut met, mut schedules, mut all_wrong) = (Met::default(), 0, Vec::new());
    for first in OPERATIONS.into_iter().chain([Feature::Kill]) {
        for second in OPERATIONS {
            let at = begun.elapsed();
            let pair = Pair::new(layout, &cast, [first, second]);
            let stops = pair.stops();
            let wrong: Vec<_> = pair.all_wrong(&stops, &mut met).collect();
            schedules += stops.len();
            println!(
                "{layout}: {first:?} x {second:?}: {} stops, {} wrong, {:?}",
                stops.len(),
                wrong.len(),
                begun.elapsed() - at
            );
            all_wrong.extend(wrong);
        }
    }
    println!("{layout}: {schedules} schedules, {:?}; {met}", begun.elapsed());
    met.check(LEAST, is_hinted(layout));
    assert!(
        all_wrong.is_empty(),
        "{} wrong, the first of them: {:#?}",
        all_wrong.len(),
        &all_wrong[..all_wrong.len().min(5)]
    );
}

#[test]
fn every_pair_in_windows() {
    every_pair(LAYOUTS[0]);
}

#[test]
fn every_pair_in_buckets() {
    every_pair(LAYOUTS[1]);
}

#[test]
fn every_pair_in_neighbourhoods() {
    every_pair(LAYOUTS[2]);
}

#[test]
fn every_pair_in_chains() {
    every_pair(LAYOUTS[3]);
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    /// While a rule is broken, some schedule of these two features shows it. The first one is enough.
    #[test]
    fn broken_rules_are_found_where_features_meet() {
        use Feature::{Encryption, ExtentMove, Kill, Merge, Swap, Walk};
        let cast = Stage::new("bucketized:4".parse().unwrap(), None, [Swap; 2], 0).cast;
        let mut lost = Vec::new();
        for (rule, features) in [
            (Rule::MoveHere, [Merge, ExtentMove]),
            (Rule::MoveHere, [Merge, Encryption]),
            (Rule::MoveCheck, [ExtentMove, Swap]),
            (Rule::MoveCheck, [ExtentMove, Encryption]),
            (Rule::Undo, [Kill, Walk]),
            (Rule::UndoFirst, [Kill, Swap]),
            (Rule::NumberFirst, [Kill, Swap]),
        ] {
            let _broken = Broken::rule(rule);
            let found = std::panic::catch_unwind(|| {
                let pair = Pair::new("bucketized:4", &cast, features);
                pair.all_wrong(&pair.stops(), &mut Met::default()).next()
            });
            let wrong = found.unwrap_or_else(|_| Some("the server ends".into()));
            println!("{rule:?}, {features:?}: {wrong:?}");
            lost.extend(wrong.is_none().then_some((rule, features)));
        }
        assert!(lost.is_empty(), "cases lost: {lost:?}");
    }
}
