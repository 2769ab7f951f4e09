//! Two server threads and a reader take turns at everything, in one table that grows and shrinks.

use super::super::extents::config;
use super::super::{grace, ns};
use super::*;
use oneread::internals::sim::{StopAt, interrupt, take_turns};
use oneread::{TableSize, layout::Layout};

/// Keys of one home, most of whose directory hashes agree in their last bits, and others.
struct Keys {
    hot: Vec<u64>,
    others: Vec<u64>,
}

impl Keys {
    fn new(server: &Server, random: &mut Random) -> Keys {
        let home = random.pick(2) as u64;
        let hot = (0..).filter(|&n| server.home(n) == home && server.directory(n, 1) == 0).take(6).collect();
        Keys { hot, others: (1_000_000..1_000_080).collect() }
    }

    fn pick(&self, random: &mut Random) -> u64 {
        if random.pick(3) > 0 {
            self.hot[random.pick(self.hot.len())]
        } else {
            self.others[random.pick(self.others.len())]
        }
    }
}

/// What a server has done so far that tells features.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counted {
    moves: u64,
    carried: u64,
    moved_bytes: u64,
    splitting: u64,
    merging: u64,
    given_up: u64,
}

impl Counted {
    fn of(server: &Server) -> Counted {
        let (counts, growth) = (server.index.counts(), server.index.growth());
        Counted {
            moves: counts.moves + counts.homings,
            carried: growth.moved,
            moved_bytes: server.index.heap().moved_bytes,
            splitting: growth.splitting,
            merging: growth.merging,
            given_up: growth.given_up,
        }
    }

    /// What was at work since `before`.
    fn features(&self, before: &Counted) -> Vec<Feature> {
        let carried = self.carried > before.carried;
        let merging = self.merging + before.merging > 0;
        // Of a merge it is not known from outside whether it goes on or back.
        let is_given_up = merging && self.given_up > before.given_up;
        [
            (self.moves > before.moves, Feature::Move),
            (carried && self.splitting + before.splitting > 0, Feature::Split),
            (carried && merging, Feature::Merge),
            (is_given_up, Feature::GivenUp),
            (self.moved_bytes > before.moved_bytes, Feature::ExtentMove),
        ]
        .into_iter()
        .filter_map(|(is_so, feature)| is_so.then_some(feature))
        .collect()
    }
}

/// What a thread did, and which features were at work when.
type Part = (Vec<Event>, Vec<Span>);

/// One step of a server thread.
fn step(server: &Server, keys: &Keys, random: &mut Random, part: &mut Part) {
    let (from, before) = (server.now(), Counted::of(server));
    let (number, index) = (keys.pick(random), &server.index);
    let mut own = None;
    let events = match random.pick(20) {
        0..5 => server.put(number, [LONG, LONG, SHORT, 100][random.pick(4)]),
        5..7 => server.remove(number),
        7 => {
            own = Some(Feature::Swap);
            let mut events = server.get(number);
            if let Some(Did::Saw(Some(value))) = events.last().map(|event| &event.did) {
                let expected = value.clone();
                events.extend(server.swap(number, &expected, server.value(number, LONG)));
            }
            events
        }
        8 => {
            own = Some(Feature::Encryption);
            server.encrypted_swap(number)
        }
        9..12 => {
            (0..=random.pick(6)).for_each(|_| {
                index.move_extent();
            });
            // Sometimes the memory that they left is used again as soon as it may.
            let mut events = Vec::new();
            if random.pick(2) == 0 {
                server.clock.advance(LONG_TIME);
                (0..random.pick(5)).for_each(|_| events.extend(server.put(keys.pick(random), LONG)));
                events.extend(server.get(number));
            }
            events
        }
        12 => {
            index.tidy();
            Vec::new()
        }
        13 | 14 => {
            let waits = [grace() / 8, 2 * grace() + ns(20), LONG_TIME, LONG_TIME];
            server.clock.advance(waits[random.pick(4)]);
            Vec::new()
        }
        15 | 16 => {
            index.pair_up(&key(number), random.pick(2) == 0);
            Vec::new()
        }
        17 => {
            index.give_up_merges();
            index.drive_at(&key(number), 99);
            Vec::new()
        }
        _ => {
            index.drive_at(&key(number), [1, 3, 99][random.pick(3)]);
            Vec::new()
        }
    };
    let to = server.now();
    part.0.extend(events);
    let features = Counted::of(server).features(&before).into_iter().chain(own);
    part.1.extend(features.map(|feature| Span(feature, from, to)));
}

/// Two threads change the table. They take turns with a third one, which reads it and walks; or the first is
/// stopped once, while the second does all that it does.
fn turn(server: &Server, keys: &Keys, seed: u64) -> Part {
    const STEPS: usize = 24;
    const STORES: usize = 1_500;
    type Work<'w> = Box<dyn FnOnce() -> Part + Send + 'w>;
    let change = |n: u64| -> Work<'_> {
        let mut random = Random::new(seed ^ n << 50);
        Box::new(move || {
            let mut part = Part::default();
            (0..STEPS).for_each(|_| step(server, keys, &mut random, &mut part));
            part
        })
    };
    let mut random = Random::new(seed ^ 3 << 50);
    let stop = (random.pick(2) == 0).then(|| Instant(server.now().0 + 1 + random.pick(STORES)));
    let read: Work<'_> = Box::new(move || {
        let mut part = Part::default();
        (0..6).for_each(|_| part.0.extend(server.get(keys.pick(&mut random))));
        let from = server.now();
        part.0.extend(server.walk(keys.hot.iter().chain(&keys.others).copied()));
        part.1.push(Span(Feature::Walk, from, server.now()));
        part
    });
    let parts = match stop {
        None => take_turns(seed, vec![change(1), change(2), read]),
        Some(at) => {
            let second = change(2);
            let two = move || {
                let [mut changed, seen] = [second(), read()];
                changed.0.extend(seen.0);
                changed.1.extend(seen.1);
                changed
            };
            interrupt(&server.recorder, StopAt::Store(at), change(1), two).into()
        }
    };
    let (events, spans): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    // What threads saw is judged when it is known what all of them did.
    (events.into_iter().flatten().collect(), spans.into_iter().flatten().collect())
}

/// A table that much happened to.
struct Lived {
    server: Server,
    oracle: Oracle,
    keys: Keys,
    spans: Vec<Span>,
}

fn lived(layout: Layout, seed: u64) -> Result<Lived, String> {
    let mut random = Random::new(seed);
    let size = TableSize::Growing { bytes_max: 128 << 10, segment_slots: Some(64) };
    let heap_bytes = (3 + random.pick(3) as u64) * 4096;
    let mut server = Server::new(&config(layout, seed).size(size).heap_bytes(heap_bytes));
    let keys = Keys::new(&server, &mut random);
    server.encrypted = keys.hot.clone();
    let (mut oracle, mut spans) = (Oracle::default(), Vec::new());
    for number in keys.hot.iter().chain(&keys.others[..40]) {
        oracle.add(server.put(*number, [LONG, SHORT][random.pick(2)]))?;
    }
    for round in 0..3 {
        let begun = server.now();
        let (events, more) = turn(&server, &keys, seed << 8 | round);
        spans.extend(more);
        oracle.add(events)?;
        if round == 1 && random.pick(2) == 0 {
            let at = Instant(begun.0 + random.pick(server.now().0 - begun.0 + 1));
            let opened;
            (server, oracle, opened) = server.killed(at, &oracle)?;
            spans.retain(|span: &Span| span.1 < at);
            spans.iter_mut().for_each(|span| span.2 = span.2.min(at));
            spans.push(Span(Feature::Kill, at, opened));
        }
    }
    server.rest();
    server.check(&oracle, "at rest")?;
    let (next, of_next, _) = server.killed(server.now(), &oracle)?;
    next.rest();
    next.check(&of_next, "taken over at rest")?;
    Ok(Lived { server, oracle, keys, spans })
}

/// What is wrong with a seed's table, or with what clients saw of it.
fn wrong(layout: Layout, seed: u64, clients: u64, met: &mut Met) -> Result<(), String> {
    let Lived { server, oracle, keys, spans } = lived(layout, seed)?;
    let mut marks: Vec<Instant> = spans.iter().flat_map(|span| [span.1, span.2]).collect();
    marks.sort();
    marks.dedup();
    let past = Past { geometry: &server.geometry, history: server.history(), oracle: &oracle, spans, marks };
    let mut random = Random::new(!seed);
    (0..clients).try_for_each(|client| {
        let number = keys.pick(&mut random);
        past.client(number, client as usize % WITNESSES.len(), seed << 20 | client, 4, met)
    })
}

/// GETs of each witness that must meet both features of each pair: some two thirds of those that do.
const LEAST: u64 = 60;

/// Clients of each table.
const CLIENTS: u64 = 60;

fn random_pairs(name: &str) {
    let begun = std::time::Instant::now();
    let chosen = std::env::var("ONEREAD_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = if is_long() { 20_000 } else { 120 };
    let mut met = Met::default();
    for seed in chosen.map_or(0..seeds, |seed| seed..seed + 1) {
        let run = || wrong(name.parse().unwrap(), seed, CLIENTS, &mut met);
        if let Err(wrong) = or_panic(run) {
            panic!("{name}, ONEREAD_SEED={seed}: {wrong}");
        }
    }
    println!("{name}: {seeds} tables, {:?}; {met}", begun.elapsed());
    if chosen.is_none() {
        met.check(LEAST, is_hinted(name));
    }
}

#[test]
fn random_pairs_in_windows() {
    random_pairs("windowed:8");
}

#[test]
fn random_pairs_in_buckets() {
    random_pairs("bucketized:4");
}

#[test]
fn random_pairs_in_neighbourhoods() {
    random_pairs("farm");
}

#[test]
fn random_pairs_in_chains() {
    random_pairs("list");
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    /// While a rule is broken, some table shows it.
    #[test]
    fn broken_rules_are_found_at_random() {
        const SEEDS: u64 = 300;
        let mut lost = Vec::new();
        for rule in [Rule::MoveCheck, Rule::ExtentFirst, Rule::NumberFirst, Rule::Undo, Rule::DepthFirst] {
            let _broken = Broken::rule(rule);
            let found = (0..SEEDS).find_map(|seed| {
                let run = || wrong("bucketized:4".parse().unwrap(), seed, CLIENTS, &mut Met::default());
                Some((seed, or_panic(run).err()?))
            });
            println!("{rule:?}: {found:?}");
            lost.extend(found.is_none().then_some(rule));
        }
        assert!(lost.is_empty(), "cases lost: {lost:?}");
    }
}
