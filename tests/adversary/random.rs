//! Random schedules, on tables that are churned by one server thread or by two.

use super::cases::{HALF_LINE, ONE_LINE, TWO_LINES};
use super::{KeyNumber, LINES, grace};
use oneread::internals::families::presets;
use oneread::internals::layout::geometry::{Family, Window};
use oneread::internals::sim::{Adversary, Hardware, Instant, Random, Stalls, Unit, Witness};
use oneread::internals::sim::{
    By, Change, Decided, Incident, IncidentKind, Past, PlannedGet, Scene, Violation, World, key,
};
use oneread::layout::Layout;
use std::collections::BTreeMap;
use std::time::Duration;

/// A server that has served, the instant when the churn began, and its keys.
pub type Served = Result<(World, Instant, Vec<KeyNumber>), Box<Violation>>;

fn scene(layout: Layout, slots: u64, random: &mut Random, seed: u64) -> Scene {
    let value_bytes = [HALF_LINE, ONE_LINE, TWO_LINES][random.pick(3)];
    // In every third table, half of the keys have two words and differ in one of them.
    let long_keys = value_bytes != HALF_LINE && seed % 2 == 1;
    Scene { layout, slots, segments: 0, value_bytes, long_keys, grace: grace(), seed }
}

/// In every third table the server loses its processor now and then, for up to three grace times.
fn may_stall(world: &World, random: &mut Random) {
    if random.pick(3) == 0 {
        world.stall(Stalls::Random(*random, 150, 3 * grace()));
    }
}

/// The number of main slots, and of keys, which do not all find room. Every other table with chains
/// has only a few homes, whose chains are long and change all the time.
fn sizes(layout: Layout, slots: u64, random: &mut Random) -> (u64, KeyNumber) {
    if layout.block_slots == 0 || random.pick(2) == 0 {
        return (slots, (slots + slots / 8) as KeyNumber);
    }
    let slots = u64::from(layout.window_slots()).max(2) * (1 + random.pick(3) as u64);
    (slots, (slots + u64::from(layout.block_slots) * 4 + 3) as KeyNumber)
}

/// A server that churns a small, nearly full table. In two of five tables it is killed half way,
/// and another server goes on.
pub fn churned(layout: Layout, seed: u64, operations: usize) -> Served {
    let mut random = Random::new(seed);
    let (slots, keys) = sizes(layout, 16 + random.pick(32) as u64, &mut random);
    let mut world = World::new(scene(layout, slots, &mut random, seed));
    let numbers: Vec<KeyNumber> = (0..keys).map(|n| world.scene().number(n)).collect();
    for &number in &numbers {
        world.put(number);
    }
    let begin = world.now();
    may_stall(&world, &mut random);
    if random.pick(5) < 2 {
        churn(&mut world, &numbers, &mut random, operations / 2);
        let mut since = begin;
        if layout.block_slots > 0 && random.pick(2) == 0 && hollow(&mut world, &numbers) {
            // A block has just been unlinked when the server is killed. The next server uses it.
            world.wait(2 * grace() + Duration::from_nanos(20));
            since = world.now();
            world.tidy();
            world.put(numbers[0]);
        }
        world = killed_since(&world, since, &mut random)?;
        if since > begin {
            for &number in &numbers {
                world.put(number);
            }
        }
        if random.pick(2) == 0 {
            // The second server is killed while it takes over.
            world = killed_since(&world, world.killed().expect("it was").0, &mut random)?;
        }
        churn(&mut world, &numbers, &mut random, operations / 2);
    } else {
        churn(&mut world, &numbers, &mut random, operations);
    }
    Ok((world, begin, numbers))
}

/// The world in which the server was killed at some store after `since`, and another goes on.
fn killed_since(world: &World, since: Instant, random: &mut Random) -> Result<World, Box<Violation>> {
    let mut killed = Instant(since.0 + random.pick(world.now().0 - since.0));
    // Half of the kills come shortly after something that rests on time.
    let past = world.past(since);
    let lasting = |incident: &&Incident| {
        matches!(incident.kind, IncidentKind::Link | IncidentKind::Kick | IncidentKind::Homing)
    };
    let lasting: Vec<_> = past.incidents.iter().filter(lasting).collect();
    if random.pick(2) == 0 && !lasting.is_empty() {
        let after = lasting[random.pick(lasting.len())].to.0 + random.pick(40);
        killed = Instant(after.min(world.now().0 - 1));
    }
    world.taken_over_at(killed)
}

fn is_there(world: &World, number: KeyNumber) -> bool {
    world.index().reader().get_into(&key(number), &mut Vec::new()) == Ok(true)
}

/// Changes keys of a table that stays nearly full. Half of the changes are of a key changed lately:
/// what matters happens between two changes of one slot.
pub fn churn(world: &mut World, numbers: &[KeyNumber], random: &mut Random, operations: usize) {
    let (mut absent, mut present): (Vec<KeyNumber>, Vec<KeyNumber>) =
        numbers.iter().partition(|&&number| !is_there(world, number));
    // A key whose put made others give way. Removing it lets them come back, and putting it sends
    // them the same way again.
    let mut pusher = None;
    for _ in 0..operations {
        if world.scene().layout.block_slots > 0 && random.pick(6) == 0 && hollow(world, numbers) {
            // The block is unlinked, perhaps reused, and in any case wanted.
            for _ in 0..2 {
                world.wait([Duration::ZERO, 2 * grace() + Duration::from_nanos(20)][random.pick(2)]);
                world.tidy();
            }
            (absent, present) = numbers.iter().partition(|&&number| !is_there(world, number));
            for number in std::mem::take(&mut absent) {
                if world.put(number) { &mut present } else { &mut absent }.push(number);
            }
            continue;
        }
        let pick = |numbers: &mut Vec<KeyNumber>, random: &mut Random| {
            let latest = numbers.len().saturating_sub(4);
            let from = if random.pick(2) == 0 { 0 } else { latest };
            (!numbers.is_empty()).then(|| numbers.remove(from + random.pick(numbers.len() - from)))
        };
        let how = random.pick(10);
        let (put, number) = match how {
            0..3 => (true, pick(&mut absent, random)),
            3..5 => (true, pick(&mut present, random)),
            5..7 => (false, pick(&mut present, random)),
            7 => {
                world.tidy();
                continue;
            }
            _ => {
                let Some(number) = pusher else { continue };
                world
                    .wait([grace() / 8, 2 * grace() + Duration::from_nanos(20), 3 * grace()][random.pick(3)]);
                world.tidy();
                let was_there = present.contains(&number);
                present.retain(|&other| other != number);
                absent.retain(|&other| other != number);
                (!was_there, Some(number))
            }
        };
        let Some(number) = number else { continue };
        let moves = world.index().counts().moves;
        let is_there = if put { world.put(number) } else { !world.remove(number) };
        if put && is_there && world.index().counts().moves != moves {
            pusher = Some(number);
        }
        if is_there { &mut present } else { &mut absent }.push(number);
        // Time passes: mostly a little, sometimes longer than any grace time.
        let wait = [0, 5, 50, 300, 2_000][random.pick(5)];
        world.wait(Duration::from_nanos(wait));
    }
}

/// In a chain of at least two blocks, empties the first one while the last is not empty. Compaction
/// mostly prevents this, but here the last key stands beside a ghost and may not be moved. So the
/// block will be unlinked with a key behind it.
fn hollow(world: &mut World, numbers: &[KeyNumber]) -> bool {
    let main_slots = world.geometry().main_slots();
    let keys_in = |world: &World, window: Window| -> Vec<KeyNumber> {
        let of = |slot| {
            let there = world.inspector().slot(slot).key;
            numbers.iter().copied().find(|&n| key(n) == there)
        };
        window.iter().filter_map(of).collect()
    };
    let found = numbers.iter().find_map(|&number| {
        let (windows, _) = world.inspector().windows(&key(number));
        let blocks: Vec<_> = windows.into_iter().filter(|window| window.first.0 >= main_slots).collect();
        let (&[first, ..], &[.., last]) = (&blocks[..], &blocks[..]) else { return None };
        let full = keys_in(world, first);
        let is_it = blocks.len() > 1
            && full.len() == first.slots as usize
            && !world.inspector().slot(last.first).header.is_free();
        is_it.then_some((number, first, last))
    });
    let Some((number, first, last)) = found else { return false };
    let home = |n: KeyNumber| world.geometry().primary(world.geometry().hashed(&key(n))).first;
    let is_absent = |n: &KeyNumber| !is_there(world, *n) && home(*n) == home(number);
    let Some(newcomer) = numbers.iter().copied().find(is_absent) else { return false };
    for &number in keys_in(world, last).iter().skip(1) {
        world.remove(number);
    }
    let before = keys_in(world, first);
    world.remove(before[0]);
    world.put(newcomer);
    for number in keys_in(world, first) {
        world.remove(number);
    }
    true
}

/// GETs of keys to which something happens, each from shortly before it.
fn where_something_goes_on(past: &Past, mut random: Random) -> impl FnMut(Instant) -> Option<PlannedGet> {
    let mut by_kind: BTreeMap<IncidentKind, Vec<&Incident>> = BTreeMap::new();
    past.incidents.iter().for_each(|incident| by_kind.entry(incident.kind).or_default().push(incident));
    let mut kinds = Vec::new();
    for (kind, incidents) in by_kind {
        // Moves, blocks and takeovers come more often than the rest.
        let weight = match kind {
            IncidentKind::Return => 4,
            IncidentKind::Kick | IncidentKind::Homing | IncidentKind::Compaction | IncidentKind::Overlaid => {
                3
            }
            IncidentKind::Takeover => 3,
            IncidentKind::Reuse | IncidentKind::ComesBack => 4,
            IncidentKind::Filter | IncidentKind::Link => 2,
            _ => 1,
        };
        kinds.extend(std::iter::repeat_n(incidents, weight));
    }
    let mut gets = 0;
    let mut last: Option<KeyNumber> = None;
    move |now| {
        const TRIES: usize = 4;
        gets += 1;
        // Now and then the same key again: a client never goes back in time.
        if let Some(key) = last.take().filter(|_| gets <= GETS && random.pick(4) == 0) {
            return Some(PlannedGet { key, from: now, read_stores_max: Some(random.pick(12)) });
        }
        let incident = (0..TRIES).filter(|_| gets <= GETS && !kinds.is_empty()).find_map(|_| {
            let of_kind = &kinds[random.pick(kinds.len())];
            let ahead = &of_kind[of_kind.partition_point(|incident| incident.from < now)..];
            // At first any incident, then one of the next few.
            let reach = if gets == 1 { ahead.len() } else { ahead.len().min(4) };
            (reach > 0).then(|| ahead[random.pick(reach)])
        })?;
        let from = Instant(incident.from.0.saturating_sub(random.pick(4)));
        // A READ that ends with the incident shows the state before and after, and little else.
        let stores = incident.to.0 - from.0;
        let stores = if incident.kind == IncidentKind::Return { 40 } else { stores };
        let read_stores_max = (random.pick(4) > 0).then(|| stores + random.pick(12));
        last = Some(incident.key);
        Some(PlannedGet { key: incident.key, from, read_stores_max })
    }
}

const GETS: usize = 16;

fn random_client(
    world: &World,
    past: &Past,
    begin: Instant,
    numbers: &[KeyNumber],
    (seed, hints): (u64, bool),
    tell: bool,
) -> Result<Decided, Box<Violation>> {
    let mut random = Random::new(seed);
    let hardware = Hardware {
        unit: if random.pick(4) == 0 { Unit::Word } else { Unit::Line },
        witness: [Witness::Counter, Witness::Loads, Witness::Clock][random.pick(6).min(2)],
        read_stores_max: [3, 30, 120, 300][random.pick(4)],
        error_one_in: [0, 0, 50][random.pick(3)],
        client_ns: 1 + random.pick(2) as u64,
        passes_max: usize::MAX,
        hints,
    };
    let mut asks = where_something_goes_on(past, Random::new(!seed));
    if random.pick(8) < 5 {
        return world.client(past, hardware, &mut random, &mut asks, tell);
    }
    // A few keys again and again: versions must not go back. Half of the GETs go where something
    // happens to a key.
    let mut few: Vec<KeyNumber> = (0..4).map(|_| numbers[random.pick(numbers.len())]).collect();
    let mut start = Instant(begin.0 + random.pick(past.history.end().0 - begin.0));
    if let (0, Some(first)) = (random.pick(2), asks(begin)) {
        start = first.from;
        few[0] = first.key;
        if let Some(next) = asks(start) {
            few[1] = next.key;
        }
    }
    if let (0, Some((killed, _))) = (random.pick(4), world.killed()) {
        start = Instant(killed.0.saturating_sub(random.pick(30)).max(begin.0));
    }
    let wanted: Vec<KeyNumber> = (0..GETS).map(|_| few[random.pick(few.len())]).collect();
    if random.pick(2) == 0 {
        world.batch(past, hardware, &mut random, start, &wanted)
    } else {
        world.client(past, hardware, &mut random, &mut PlannedGet::all(start, &wanted), tell)
    }
}

/// A nearly full table of a few stripes. Two server threads churn it at once, and a shm client
/// reads. Some rounds change keys anywhere, some near the border of two stripes, where the threads
/// meet, and some around two homes. In every third table the server is killed half way, with at
/// most one change per thread half done, and another server goes on.
pub fn interleaved(layout: Layout, seed: u64) -> Served {
    let mut random = Random::new(seed);
    /// The number of slots that share a lock.
    const STRIPE: u64 = 64;
    let (slots, keys) = sizes(layout, STRIPE + 40 + random.pick(150) as u64, &mut random);
    let mut world = World::new(scene(layout, slots, &mut random, seed));
    let numbers: Vec<KeyNumber> = (0..keys).map(|n| world.scene().number(n)).collect();
    // In every third table there is hardly a free slot. Paths are long, and lead to the same few
    // ends.
    let crowded = random.pick(3) == 0;
    for &number in &numbers[..numbers.len() * if crowded { 10 } else { 9 } / 10] {
        world.put(number);
    }
    let begin = world.now();
    may_stall(&world, &mut random);
    let geometry = world.geometry().clone();
    let home_slot = |number: KeyNumber| geometry.primary(geometry.hashed(&key(number))).first.0;
    for round in 0..4 {
        let near: Vec<_> = match random.pick(3) {
            _ if crowded => {
                world.remove(numbers[random.pick(numbers.len())]);
                world.wait(3 * grace());
                world.tidy();
                let is_absent = |n: &KeyNumber| !is_there(&world, *n);
                numbers.iter().copied().filter(is_absent).chain([numbers[0], numbers[1]]).collect()
            }
            0 => numbers.clone(),
            1 => numbers.iter().copied().filter(|&n| home_slot(n).abs_diff(STRIPE) < 12).collect(),
            // As many keys of two homes as it takes for their windows, or chains, to overflow.
            _ => {
                let homes = [home_slot(numbers[0]), home_slot(numbers[1])];
                let all =
                    (0..10_000).map(|n| world.scene().number(n)).filter(|&n| homes.contains(&home_slot(n)));
                all.take(layout.window_slots() as usize * 2 + 6).collect()
            }
        };
        let near = if near.len() < 3 { numbers.clone() } else { near };
        if layout.block_slots > 0 && random.pick(2) == 0 && hollow(&mut world, &numbers) {
            // Due traces: of ghosts and of the block, or of the block's reuse.
            if random.pick(2) == 0 {
                world.wait(2 * grace() + Duration::from_nanos(20));
                world.tidy();
            }
            world.wait(2 * grace() + Duration::from_nanos(20));
        }
        // Keys that both threads change most often.
        let few: [_; 3] = std::array::from_fn(|_| near[random.pick(near.len())]);
        let number = |random: &mut Random| match random.pick(3) {
            0 => few[random.pick(few.len())],
            _ => near[random.pick(near.len())],
        };
        let mut script = || -> Vec<Change> {
            let mut change = || match random.pick(8) {
                0 | 1 => Change::Remove(number(&mut random)),
                2..6 => Change::Put(number(&mut random)),
                6 => Change::Tidy,
                _ => Change::Wait(Duration::from_nanos([5, 300, 2_000][random.pick(3)])),
            };
            (0..16).map(|_| change()).collect()
        };
        let mut scripts = vec![script(), script()];
        scripts.push((0..24).map(|_| Change::Get(number(&mut random))).collect());
        world.interleave(seed << 8 | round, &scripts)?;
    }
    if random.pick(3) == 0 {
        world = killed_since(&world, begin, &mut random)?;
        churn(&mut world, &numbers, &mut random, 40);
    }
    Ok((world, begin, numbers))
}

/// Random GETs against a random server. Returns what decided them, also those before a violation.
pub fn random_run(
    serve: impl Fn(u64) -> Served,
    seed: u64,
    clients: u64,
) -> (Decided, Result<(), Box<Violation>>) {
    let (world, begin, numbers) = match serve(seed) {
        Ok(served) => served,
        Err(violation) => return (Decided::default(), Err(violation)),
    };
    let past = world.past(begin);
    let mut decided = world.met();
    // The last clients have hints.
    for client in 0..clients + clients / 4 {
        let hints = client >= clients;
        let run = |tell| random_client(&world, &past, begin, &numbers, (seed << 20 | client, hints), tell);
        // Again, for the story: the same seed gives the same run.
        match run(false).or_else(|_| run(true)) {
            Ok(more) => decided += more,
            Err(violation) => return (decided, Err(violation)),
        }
    }
    // At the end no key is lost.
    let mut last = PlannedGet::all(past.history.end(), &numbers);
    let ended = world.client(&past, LINES, &mut Random::new(seed), &mut last, true);
    (decided, ended.map(drop))
}

/// Random runs on each of these layouts, with seeds and clients for short and for long runs.
/// Returns what decided the GETs of each layout.
fn random_runs(
    layouts: impl IntoIterator<Item = Layout>,
    serve: impl Fn(Layout, u64) -> Served,
    short: (u64, u64),
    long: (u64, u64),
) -> Vec<(Layout, Decided)> {
    let started = std::time::Instant::now();
    let chosen = std::env::var("ONEREAD_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    // A single seed also replays what a long run found.
    let is_long = chosen.is_some() || std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { long } else { short };
    let mut all = Vec::new();
    let mut total = Decided::default();
    for layout in layouts {
        let mut decided = Decided::default();
        for seed in chosen.map_or(0..seeds, |seed| seed..seed + 1) {
            let (more, ended) = random_run(|seed| serve(layout, seed), seed, clients);
            ended.unwrap_or_else(|violation| panic!("{layout}, ONEREAD_SEED={seed}: {violation}"));
            decided += more;
        }
        println!("{layout}: {decided}");
        total += decided.clone();
        all.push((layout, decided));
    }
    println!("{total}; {:.0} a second", total.gets as f64 / started.elapsed().as_secs_f64());
    if is_long {
        // The minimums are known for short runs only.
        all.clear();
    }
    all
}

fn all_presets() -> impl Iterator<Item = Layout> {
    presets().map(|preset| preset.layout)
}

/// Operations of each server.
pub const OPERATIONS: usize = 300;
/// Runs of churned tables in `./test`: seeds, and clients of each.
pub const SHORT: (u64, u64) = (100, 130);
/// Runs of interleaved threads in `./test`: seeds, and clients of each.
pub const SHORT_INTERLEAVED: (u64, u64) = (96, 75);

/// Each rule must have decided at least this number of the GETs of each preset, so that a run that
/// tests nothing fails. The counts of a run are always the same; the minimums are some two thirds
/// of them.
fn decided_enough(all: &[(Layout, Decided)], minimums: &[(By, u64, Which)]) {
    for (layout, decided) in all {
        let has_chains = layout.block_slots > 0;
        for &(what, minimum, which) in minimums {
            let is_hinted = layout.choices * layout.window_slots() > 1;
            let is_met = match which {
                Which::All => true,
                Which::Chains => has_chains,
                Which::Hinted => is_hinted,
            };
            let minimum = if is_met { minimum } else { 0 };
            let by = decided.by(what);
            assert!(by >= minimum, "{layout}: {what:?} decided {by} GETs, at least {minimum} are wanted");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Chains,
    /// A key has several slots to be looked for in first.
    Hinted,
}

#[test]
fn random_schedules() {
    use Which::{All, Chains, Hinted};
    let all =
        random_runs(all_presets(), |layout, seed| churned(layout, seed, OPERATIONS), SHORT, (2_000, 350));
    let minimums = [
        (By::Choice, 60_000, All),
        (By::Torn, 9_000, All),
        (By::Late, 200, All),
        (By::NewGhost, 250, All),
        (By::OldGhost, 30, All),
        (By::Counter, 160, All),
        (By::Filter, 50, All),
        (By::DisplacedHit, 2_000, All),
        (By::BlockHit, 10_000, Chains),
        (By::BlockReused, 100, Chains),
        (By::Takeover, 500, All),
        (By::Slept, 4_000, All),
        (By::Hint, 2_500, Hinted),
        (By::WrongHint, 10_000, Hinted),
    ];
    decided_enough(&all, &minimums);
}

/// Layouts whose numbers no preset has: three choices, overlapping windows, blocks of 1 to 5 slots.
#[test]
fn layouts_that_are_no_preset() {
    let cuckoo = [(3, 2, 1), (3, 1, 4), (2, 2, 3), (3, 4, 2), (2, 3, 1), (2, 1, 5)];
    let cuckoo = cuckoo.map(|(choices, bucket_slots, window_buckets)| Layout {
        family: Family::Cuckoo,
        choices,
        bucket_slots,
        window_buckets,
        block_slots: 0,
    });
    let chains = [
        (Family::Hopscotch, 2, 2, 1),
        (Family::Hopscotch, 1, 3, 2),
        (Family::Hopscotch, 3, 2, 3),
        (Family::Hopscotch, 1, 5, 4),
        (Family::Hopscotch, 4, 1, 5),
        (Family::Chained, 2, 1, 1),
        (Family::Chained, 3, 1, 2),
        (Family::Chained, 1, 1, 3),
        (Family::Chained, 5, 1, 4),
        (Family::Chained, 2, 1, 5),
    ];
    let chains = chains.map(|(family, bucket_slots, window_buckets, block_slots)| Layout {
        family,
        choices: 1,
        bucket_slots,
        window_buckets,
        block_slots,
    });
    let layouts = || cuckoo.into_iter().chain(chains);
    let serve = |layout, seed| churned(layout, seed, OPERATIONS);
    let all = random_runs(layouts(), serve, (12, 70), (400, 350));
    decided_enough(&all, &[(By::Choice, 4_000, Which::All), (By::NewGhost, 20, Which::All)]);
    random_runs(layouts(), interleaved, (6, 40), (200, 100));
}

#[test]
fn interleaved_server_threads() {
    use Which::{All, Chains};
    let all = random_runs(all_presets(), interleaved, SHORT_INTERLEAVED, (1_000, 100));
    let minimums = [
        (By::Choice, 14_000, All),
        (By::NewGhost, 70, All),
        (By::OldGhost, 20, All),
        (By::Counter, 25, All),
        (By::Filter, 50, All),
        (By::DisplacedHit, 2_000, All),
        (By::BlockReused, 40, Chains),
        (By::Takeover, 200, All),
        (By::Shm, 300, All),
        (By::TwoInChain, 150, Chains),
    ];
    decided_enough(&all, &minimums);
}

/// A server stops for ever at any store. GETs go on, except those that need the slot that it was
/// writing.
#[test]
fn a_server_that_stops_anywhere() {
    let (mut answered, mut excused) = (0, 0);
    for layout in all_presets() {
        let (world, begin, numbers) = churned(layout, 7, 40).expect("a sound takeover");
        let past = world.past(begin);
        for stop in (begin.0..past.history.end().0).map(Instant) {
            let stopped = past.until(stop);
            let mut random = Random::new(stop.0 as u64);
            for _ in 0..2 {
                let number = numbers[random.pick(numbers.len())];
                let hardware = Hardware { passes_max: usize::MAX, ..LINES };
                let one = &[number];
                let mut asks = PlannedGet::all(stop, one);
                let result = world.client(&stopped, hardware, &mut random, &mut asks, false);
                let is_half_written = world.is_half_written(&stopped.history, number, stop);
                match result {
                    Ok(decided) => answered += decided.gets,
                    Err(violation) => {
                        assert!(is_half_written, "{layout}, stopped at {}: {violation}", stop.0);
                        excused += 1;
                    }
                }
            }
        }
    }
    assert!(answered > 10_000 && excused > 300, "{answered} answers, {excused} GETs met a half-written slot");
}
