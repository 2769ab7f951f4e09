//! GETs against a NIC that may do anything hardware may do.
//!
//! First every way there is, on small scenes; then random schedules on larger ones; then, with the feature
//! `faults`, the same again for each rule of the protocol broken on purpose: the adversary must find a
//! counterexample.
//!
//! A random run that fails prints its seed, the stores meanwhile, what each READ sampled, and the verdict.
//! `ONEREAD_SEED=n ./test --adversary` runs it again.
#![cfg(feature = "sim")]

use oneread::Layout;
use oneread::adversary::{Change, KeyNumber, Scene, Violation, World, key};
use oneread::fabric::sim::{Adversary, Every, Hardware, History, Instant, Random, Unit, Witness};
use std::time::Duration;

const GRACE: Duration = Duration::from_nanos(400);

/// H1, going by the clock.
const LINES: Hardware = Hardware {
    unit: Unit::Line,
    witness: Witness::Clock,
    read_stores_max: usize::MAX >> 1,
    error_one_in: 0,
    client_ns: 1,
    passes_max: 2,
};
/// The same, and the client's clock runs at half the rate of the server's.
const SLOW: Hardware = Hardware { client_ns: 2, ..LINES };
/// H0, going by the clock.
const WORDS: Hardware = Hardware { unit: Unit::Word, ..LINES };
/// H1, going by the counters of begun moves.
const COUNTED: Hardware = Hardware { witness: Witness::Counter, ..LINES };

fn layout(name: &str) -> Layout {
    name.parse().unwrap()
}

// ---- small scenes: one mutation, and everything a GET may see of it ----------------------------------

/// A table in some state, then one mutation (and what follows it), to be looked at in every way.
struct Case {
    name: &'static str,
    world: World,
    /// From where on GETs begin.
    begin: Instant,
    keys: Vec<KeyNumber>,
}

fn scene(name: &str, slots: u64, value_bytes: usize, seed: u64) -> Scene {
    Scene { layout: layout(name), slots, value_bytes, grace: GRACE, seed }
}

/// Value lengths that make slots of half a line, 1, 2, 3 and 4 lines.
const HALF_LINE: usize = 8;
const ONE_LINE: usize = 16;
const TWO_LINES: usize = 60;
const THREE_LINES: usize = 120;
const FOUR_LINES: usize = 180;

fn update(value_bytes: usize) -> Case {
    let mut world = World::new(scene("cluster", 8, value_bytes, 1));
    world.put(1);
    world.put(2);
    let begin = world.now();
    world.put(1);
    Case { name: "update", world, begin, keys: vec![1, 2, 3] }
}

fn delete(name: &str) -> Case {
    let mut world = World::new(scene(name, 8, ONE_LINE, 1));
    world.put(1);
    world.put(2);
    let begin = world.now();
    world.remove(1);
    Case { name: "delete", world, begin, keys: vec![1, 2] }
}

/// Fills tables, with seed after seed, each until a put makes exactly `moves` moves.
fn puts_that_move(name: &str, slots: u64, value_bytes: usize, moves: u64) -> impl Iterator<Item = Case> {
    (0..5000).filter_map(move |seed| {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        for number in 0..slots as KeyNumber {
            world.wait(Duration::from_nanos(5_000));
            world.tidy();
            let (begin, before) = (world.now(), world.index().counts());
            if !world.put(number) {
                break;
            }
            let after = world.index().counts();
            if after.waits == before.waits && after.moves - before.moves == moves {
                return Some(Case { name: "put that moves", world, begin, keys: (0..=number + 1).collect() });
            }
        }
        None
    })
}

fn put_that_moves(name: &str, slots: u64, value_bytes: usize, moves: u64) -> Case {
    let first = puts_that_move(name, slots, value_bytes, moves).next();
    first.unwrap_or_else(|| panic!("no put of {moves} moves in {name}"))
}

/// Removes that let a displaced key come home, with seed after seed.
fn homings(name: &str, slots: u64, value_bytes: usize) -> impl Iterator<Item = Case> {
    (0..5000).filter_map(move |seed| {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        let mut numbers = Vec::new();
        for number in 0..2 * slots as KeyNumber {
            if world.put(number) {
                numbers.push(number);
            }
        }
        world.wait(Duration::from_nanos(50_000));
        world.tidy();
        if world.index().displaced() == 0 {
            return None;
        }
        for &victim in &numbers {
            world.wait(Duration::from_nanos(50_000));
            world.tidy();
            let (begin, before) = (world.now(), world.index().counts());
            if before.keys < 2 || !world.remove(victim) {
                break;
            }
            if world.index().counts().homings == before.homings + 1 {
                return Some(Case { name: "homing", world, begin, keys: numbers });
            }
        }
        None
    })
}

fn homing(name: &str, slots: u64, value_bytes: usize) -> Case {
    homings(name, slots, value_bytes).next().unwrap_or_else(|| panic!("no homing in {name}"))
}

/// A put that is displaced without moving anybody: into its second window, or into a chain.
fn displaced_put(name: &str, slots: u64, value_bytes: usize) -> Case {
    for seed in 0..5000 {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        for number in 0..2 * slots as KeyNumber {
            world.wait(Duration::from_nanos(5_000));
            world.tidy();
            let (begin, before, moves) =
                (world.now(), world.index().displaced(), world.index().counts().moves);
            if !world.put(number) {
                break;
            }
            if world.index().counts().moves == moves && world.index().displaced() == before + 1 {
                return Case { name: "displaced put", world, begin, keys: (0..=number + 1).collect() };
            }
        }
    }
    panic!("no displaced put in {name}");
}

/// A delete of a key that was moved a moment ago, so that its ghost is still there.
fn delete_of_moved(name: &str, slots: u64, value_bytes: usize) -> Case {
    let mut case = put_that_moves(name, slots, value_bytes, 1);
    let begin = case.world.now();
    for &number in &case.keys.clone() {
        if case.world.index().counts().keys > 1 {
            case.world.remove(number);
        }
    }
    case.begin = begin;
    case.name = "delete of moved keys";
    case
}

/// The last key of a chain goes; its block is unlinked after the grace time, and used again after another.
fn unlink(name: &str, slots: u64, value_bytes: usize) -> Case {
    let mut case = displaced_put(name, slots, value_bytes);
    let newest = case.keys[case.keys.len() - 2];
    case.begin = case.world.now();
    // Somebody in the primary window goes, the displaced key comes home, its block is empty.
    for &number in &case.keys.clone() {
        if number != newest && case.world.remove(number) && case.world.index().displaced() == 0 {
            break;
        }
    }
    case.world.wait(3 * GRACE);
    case.world.tidy();
    case.name = "unlink";
    case
}

/// Runs every schedule of `gets` GETs of each key, one after the other. How many there were.
fn every_schedule(case: &Case, hardware: Hardware, gets: usize) -> Result<u64, (u64, Box<Violation>)> {
    /// A case with more schedules than this is too large to be called small.
    const SCHEDULES_MAX: u64 = 20_000_000;
    let history = case.world.history();
    let mut schedules = 0;
    for &number in &case.keys {
        let mut every = Every::default();
        while every.next_schedule() {
            case.world
                .client(&history, hardware, &mut every, case.begin, &vec![number; gets], false)
                .map_err(|violation| (schedules + every.schedules(), violation))?;
            assert!(every.schedules() < SCHEDULES_MAX, "{}: not a small case", case.name);
        }
        schedules += every.schedules();
    }
    Ok(schedules)
}

/// The same; each must be right.
fn right_schedules(case: &Case, hardware: Hardware, gets: usize) -> u64 {
    every_schedule(case, hardware, gets).unwrap_or_else(|(n, violation)| {
        let (layout, killed) = (case.world.scene().layout, case.world.killed());
        panic!("{} in {layout} ({hardware:?}, killed: {killed:?}), schedule {n}: {violation}", case.name)
    })
}

fn all_right(case: Case, hardware: Hardware, gets: usize) {
    let (scene, schedules) = (case.world.scene(), right_schedules(&case, hardware, gets));
    println!(
        "{:>10} schedules: {} in {}, {} bytes of value, {gets} GETs, {:?} {:?}",
        schedules, case.name, scene.layout, scene.value_bytes, hardware.unit, hardware.witness
    );
}

#[test]
fn every_schedule_of_an_update() {
    for value_bytes in [HALF_LINE, ONE_LINE, TWO_LINES, THREE_LINES] {
        all_right(update(value_bytes), LINES, 1);
        all_right(update(value_bytes), COUNTED, 1);
    }
    all_right(update(FOUR_LINES), Hardware { passes_max: 1, ..LINES }, 1);
    all_right(update(ONE_LINE), LINES, 2);
    all_right(update(TWO_LINES), Hardware { passes_max: 1, ..LINES }, 2);
    all_right(update(HALF_LINE), WORDS, 1);
    all_right(update(ONE_LINE), Hardware { passes_max: 1, ..WORDS }, 1);
}

#[test]
fn every_schedule_of_a_delete() {
    for name in ["pilaf", "bucketized:4", "farm", "cluster", "list"] {
        all_right(delete(name), LINES, 2);
        all_right(delete(name), COUNTED, 2);
        all_right(delete(name), Hardware { passes_max: 1, ..WORDS }, 1);
    }
}

#[test]
fn every_schedule_of_moves() {
    for name in ["pilaf", "bucketized:4", "farm", "slotwise:8", "windowed:8"] {
        let slots = if name == "pilaf" { 8 } else { 24 };
        for hardware in [LINES, SLOW, COUNTED] {
            all_right(put_that_moves(name, slots, HALF_LINE, 1), hardware, 1);
            all_right(put_that_moves(name, slots, ONE_LINE, 1), hardware, 1);
        }
    }
    for name in ["pilaf", "windowed:8", "farm"] {
        let slots = if name == "pilaf" { 8 } else { 24 };
        all_right(put_that_moves(name, slots, ONE_LINE, 2), Hardware { passes_max: 1, ..LINES }, 1);
        all_right(put_that_moves(name, slots, TWO_LINES, 1), Hardware { passes_max: 1, ..LINES }, 1);
    }
    all_right(put_that_moves("pilaf", 8, HALF_LINE, 1), Hardware { passes_max: 1, ..WORDS }, 1);
}

#[test]
fn every_schedule_of_a_homing() {
    for name in ["bucketized:4", "windowed:8", "farm", "cluster", "list"] {
        for hardware in [LINES, COUNTED] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            all_right(homing(name, if name == "list" { 4 } else { 24 }, ONE_LINE), hardware, 1);
        }
    }
}

#[test]
fn every_schedule_of_a_displaced_put() {
    for name in ["pilaf", "bucketized:4", "windowed:8", "farm", "cluster", "list"] {
        for hardware in [LINES, COUNTED] {
            all_right(displaced_put(name, if name == "list" { 4 } else { 24 }, ONE_LINE), hardware, 1);
        }
    }
}

#[test]
fn every_schedule_of_a_delete_after_a_move() {
    for name in ["pilaf", "windowed:8", "farm"] {
        let slots = if name == "pilaf" { 8 } else { 24 };
        all_right(delete_of_moved(name, slots, HALF_LINE), Hardware { passes_max: 1, ..LINES }, 1);
    }
}

#[test]
fn every_schedule_of_an_unlink() {
    for name in ["list", "cluster", "farm"] {
        for hardware in [LINES, COUNTED] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            all_right(unlink(name, if name == "list" { 2 } else { 16 }, ONE_LINE), hardware, 1);
        }
    }
}

fn taken_over(world: &World, killed: Instant) -> (World, u64) {
    world.taken_over_at(killed).unwrap_or_else(|violation| panic!("killed at {}: {violation}", killed.0))
}

/// The server is killed at each store of the case's mutation, and another takes over. `after` is what that one
/// does then.
fn every_kill(case: &Case, after: impl Fn(&mut World)) -> impl Iterator<Item = (Case, u64)> {
    (case.begin.0..=case.world.now().0).map(move |killed| {
        let (mut world, lost) = taken_over(&case.world, Instant(killed));
        after(&mut world);
        (Case { name: case.name, world, begin: case.begin, keys: case.keys.clone() }, lost)
    })
}

#[test]
fn every_schedule_of_a_killed_server() {
    for name in ["pilaf", "bucketized:4", "windowed:8", "farm", "cluster", "list"] {
        let slots = match name {
            "pilaf" => 8,
            "list" => 4,
            _ => 24,
        };
        let mut cases = vec![delete(name), displaced_put(name, slots, ONE_LINE)];
        if name != "pilaf" {
            cases.push(homing(name, slots, ONE_LINE));
        }
        if !["cluster", "list"].contains(&name) {
            cases.push(put_that_moves(name, slots, ONE_LINE, 1));
        }
        if ["farm", "cluster", "list"].contains(&name) {
            cases.push(unlink(name, if name == "list" { 2 } else { 16 }, ONE_LINE));
        }
        for hardware in [LINES, COUNTED] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            for case in &cases {
                let (mut schedules, mut kills, mut lost) = (0, 0, 0);
                for (killed, lost_here) in every_kill(case, |_| {}) {
                    schedules += right_schedules(&killed, hardware, 1);
                    kills += 1;
                    lost += lost_here;
                }
                println!(
                    "{schedules:>10} schedules: {kills} kills in {} in {name}, {lost} keys lost, {:?}",
                    case.name, hardware.witness
                );
            }
        }
    }
}

/// The first `n` keys with this home.
fn keys_of_home(world: &World, home: u64, n: usize) -> Vec<KeyNumber> {
    let geometry = world.geometry();
    let is_home = |&number: &KeyNumber| geometry.home(geometry.seeds().first(&key(number)).0) == home;
    (0..).filter(is_home).take(n).collect()
}

/// A chain of two blocks. The first is empty, and cannot be filled from the second, whose key stands
/// beside a ghost: so it will be unlinked while there is a key behind it. That key, and one that only
/// finds room in a block of another chain.
fn block_emptied_before_another() -> (World, KeyNumber, KeyNumber) {
    let mut world = World::new(scene("list", 2, ONE_LINE, 1));
    let [a, b, c, d] = keys_of_home(&world, 0, 4)[..] else { unreachable!() };
    let [other, newcomer] = keys_of_home(&world, 1, 2)[..] else { unreachable!() };
    let all_put = [a, b, c, other].into_iter().all(|number| world.put(number));
    // `c` goes from the second block to the first, `d` to where its ghost is, `c` out of the first.
    assert!(all_put && world.remove(b) && world.put(d) && world.remove(c));
    (world, d, newcomer)
}

fn chain_case(world: World, begin: Instant, wanted: KeyNumber) -> Case {
    Case { name: "block unlinked before another", world, begin, keys: vec![wanted] }
}

/// A block is unlinked. The case, and a key that would use the block.
fn block_unlinked_before_another() -> (Case, KeyNumber) {
    let (world, behind, newcomer) = block_emptied_before_another();
    world.wait(3 * GRACE);
    let begin = world.now();
    world.tidy();
    (chain_case(world, begin, behind), newcomer)
}

/// A block was unlinked, its server is killed, and the next one uses the block for another home at once.
#[test]
fn every_schedule_of_a_block_used_again_by_another_server() {
    let (case, newcomer) = block_unlinked_before_another();
    for hardware in [LINES, COUNTED] {
        for (case, _) in every_kill(&case, |world| assert!(world.put(newcomer))) {
            all_right(case, hardware, 1);
        }
    }
}

/// GETs that begin after the kill, at each store of the takeover: they are not over before it goes on.
#[test]
fn every_schedule_begun_in_a_takeover() {
    /// Past the last of these stores, counters go up and nothing else happens.
    const COUNTERS: usize = oneread::layout::control::MOVE_COUNTERS as usize;
    for name in ["pilaf", "windowed:8", "farm", "list"] {
        let cases = match name {
            "list" => {
                vec![displaced_put(name, 4, ONE_LINE), homing(name, 4, ONE_LINE), unlink(name, 2, ONE_LINE)]
            }
            "pilaf" => vec![put_that_moves(name, 8, ONE_LINE, 2)],
            _ => vec![put_that_moves(name, 24, ONE_LINE, 1), homing(name, 24, ONE_LINE)],
        };
        for case in &cases {
            let mut schedules = 0;
            for (mut taken_over, _) in every_kill(case, |_| {}) {
                let killed = taken_over.world.killed().expect("it was killed");
                for begin in killed.0..taken_over.world.now().0 - COUNTERS {
                    taken_over.begin = Instant(begin);
                    for hardware in [LINES, COUNTED] {
                        schedules += right_schedules(&taken_over, Hardware { passes_max: 1, ..hardware }, 1);
                    }
                }
            }
            println!("{schedules:>10} schedules: {} in {name}", case.name);
        }
    }
}

/// A new server waits until nobody rests on the traces of the old one; then no trace is left, and filters say
/// what they say once all has come to rest.
#[test]
fn a_takeover_leaves_no_trace() {
    for name in ["pilaf", "bucketized:4", "windowed:8"] {
        let mut traces = 0;
        for seed in 0..150 {
            let mut world = World::new(scene(name, 40, ONE_LINE, seed));
            let mut random = Random::new(seed);
            let numbers: Vec<KeyNumber> = (0..42).collect();
            for &number in &numbers {
                world.put(number);
            }
            churn(&mut world, &numbers, &mut random, 100);
            let headers = |world: &World| -> Vec<_> {
                world.inspector().slots().map(|report| (report.header.ghost, report.header.aux)).collect()
            };
            let before = headers(&world);
            let (next, lost) = taken_over(&world, world.now());
            assert_eq!((lost, next.index().tidy()), (0, None));
            world.wait(3 * GRACE);
            world.tidy();
            assert_eq!(headers(&next), headers(&world), "{name}, seed {seed}");
            traces += before.iter().zip(headers(&world)).filter(|(old, new)| *old != new).count();
        }
        assert!(traces > 10, "{name}: {traces}");
    }
}

// ---- random schedules on a table that is churned ------------------------------------------------------

/// A server that has served, the instant when churn began, and its keys.
type Served = Result<(World, Instant, Vec<KeyNumber>), Box<Violation>>;

/// A server that churns a small, nearly full table. In every third one it is killed in the midst of it, and
/// another goes on.
fn churned(name: &str, seed: u64, operations: usize) -> Served {
    let mut random = Random::new(seed);
    let value_bytes = [HALF_LINE, ONE_LINE, TWO_LINES][random.pick(3)];
    let slots = 24 + random.pick(40) as u64;
    let mut world = World::new(scene(name, slots, value_bytes, seed));
    let numbers: Vec<KeyNumber> = (0..(slots + slots / 8) as KeyNumber).collect();
    for &number in &numbers {
        world.put(number);
    }
    let begin = world.now();
    if random.pick(3) == 0 {
        churn(&mut world, &numbers, &mut random, operations / 2);
        world = killed_since(&world, begin, &mut random)?;
        if random.pick(2) == 0 {
            // The next one is killed while it takes over.
            world = killed_since(&world, world.killed().expect("it was"), &mut random)?;
        }
        churn(&mut world, &numbers, &mut random, operations / 2);
    } else {
        churn(&mut world, &numbers, &mut random, operations);
    }
    Ok((world, begin, numbers))
}

/// The world in which the server was killed at some store after `since`, and another goes on.
fn killed_since(world: &World, since: Instant, random: &mut Random) -> Result<World, Box<Violation>> {
    let killed = Instant(since.0 + random.pick(world.now().0 - since.0));
    Ok(world.taken_over_at(killed)?.0)
}

fn churn(world: &mut World, numbers: &[KeyNumber], random: &mut Random, operations: usize) {
    let mut latest = [0; 4];
    for operation in 0..operations {
        // Half of the time one of the latest again: what matters happens between two changes of one slot.
        let number = match random.pick(2) {
            0 => numbers[random.pick(numbers.len())],
            _ => latest[random.pick(latest.len())],
        };
        latest[operation % latest.len()] = number;
        match random.pick(8) {
            0..3 => {
                world.remove(number);
            }
            3..7 => {
                world.put(number);
            }
            _ => world.tidy(),
        }
        // Time passes: mostly little, sometimes longer than any grace time.
        let wait = [0, 5, 50, 300, 2_000][random.pick(5)];
        world.wait(Duration::from_nanos(wait));
    }
}

fn random_client(
    world: &World,
    history: &History,
    begin: Instant,
    numbers: &[KeyNumber],
    seed: u64,
    tell: bool,
) -> Result<u64, Box<Violation>> {
    const GETS: usize = 16;
    let mut random = Random::new(seed);
    let hardware = Hardware {
        unit: if random.pick(4) == 0 { Unit::Word } else { Unit::Line },
        witness: if random.pick(3) == 0 { Witness::Counter } else { Witness::Clock },
        read_stores_max: [3, 30, 120, 300][random.pick(4)],
        error_one_in: [0, 0, 50][random.pick(3)],
        client_ns: 1 + seed % 2,
        passes_max: usize::MAX,
    };
    // A few keys again and again: versions must not go back.
    let mut few: Vec<KeyNumber> = (0..4).map(|_| numbers[random.pick(numbers.len())]).collect();
    let mut start = Instant(begin.0 + random.pick(history.end().0 - begin.0));
    let moves = &world.moves()[world.moves().partition_point(|moved| moved.began < begin)..];
    let shortly_before = |random: &mut Random, instant: Instant| {
        Instant(instant.0.saturating_sub(random.pick(30)).max(begin.0))
    };
    match (random.pick(4), world.killed()) {
        (0, Some(killed)) => start = shortly_before(&mut random, killed),
        (0 | 1, _) if !moves.is_empty() => {
            let moved = moves[random.pick(moves.len())];
            (few[0], start) = (moved.key, shortly_before(&mut random, moved.began));
        }
        _ => {}
    }
    let wanted: Vec<KeyNumber> = (0..GETS).map(|_| few[random.pick(few.len())]).collect();
    if random.pick(4) == 0 {
        world.batch(history, hardware, &mut random, start, &wanted)
    } else {
        world.client(history, hardware, &mut random, start, &wanted, tell)
    }
}

/// A nearly full table of a few stripes, which two server threads churn at once, half of the time on either side of where
/// one stripe ends, where they get in each other's way. In every third table they are killed in the midst of it, each with
/// at most one change half done, and another server goes on.
fn interleaved(name: &str, seed: u64) -> Served {
    let mut random = Random::new(seed);
    /// Slots that share a lock.
    const STRIPE: u64 = 64;
    let slots = STRIPE + 40 + random.pick(150) as u64;
    let value_bytes = [HALF_LINE, ONE_LINE, TWO_LINES][random.pick(3)];
    let mut world = World::new(scene(name, slots, value_bytes, seed));
    let numbers: Vec<KeyNumber> = (0..(slots + slots / 8) as KeyNumber).collect();
    for &number in &numbers[..(slots * 9 / 10) as usize] {
        world.put(number);
    }
    let begin = world.now();
    let geometry = world.geometry().clone();
    for round in 0..4 {
        let reach = [12, u64::MAX][random.pick(2)];
        let is_near = |number: &KeyNumber| {
            let first = geometry.seeds().first(&key(*number));
            geometry.primary(first).first.0.abs_diff(STRIPE) < reach
        };
        let near: Vec<_> = numbers.iter().copied().filter(is_near).collect();
        // What both change more than anything else.
        let few: [_; 3] = std::array::from_fn(|_| near[random.pick(near.len())]);
        let mut script = || -> Vec<Change> {
            let number = |random: &mut Random| match random.pick(3) {
                0 => few[random.pick(few.len())],
                _ => near[random.pick(near.len())],
            };
            let mut change = || match random.pick(8) {
                0..3 => Change::Remove(number(&mut random)),
                3..6 => Change::Put(number(&mut random)),
                6 => Change::Tidy,
                _ => Change::Wait(Duration::from_nanos([5, 300, 2_000][random.pick(3)])),
            };
            (0..16).map(|_| change()).collect()
        };
        let scripts = [script(), script()];
        world.interleave(seed << 8 | round, &scripts)?;
    }
    if random.pick(3) == 0 {
        world = killed_since(&world, begin, &mut random)?;
        churn(&mut world, &numbers, &mut random, 40);
    }
    Ok((world, begin, numbers))
}

/// Random GETs against what random servers did, one server a seed.
fn random_run(
    serve: impl Fn(u64) -> Served,
    seeds: impl Iterator<Item = u64>,
    clients: u64,
) -> Result<u64, (u64, Box<Violation>)> {
    let mut gets = 0;
    for seed in seeds {
        let (world, begin, numbers) = serve(seed).map_err(|violation| (seed, violation))?;
        let history = world.history();
        for client in 0..clients {
            let run = |tell| random_client(&world, &history, begin, &numbers, seed << 20 | client, tell);
            // Once more, for the story: the same seed does the same.
            gets += run(false).or_else(|_| run(true)).map_err(|violation| (seed, violation))?;
        }
        // Nothing is lost at the end.
        let last = world.client(&history, LINES, &mut Random::new(seed), history.end(), &numbers, true);
        last.map_err(|violation| (seed, violation))?;
    }
    Ok(gets)
}

/// The same on every preset; so many seeds and clients in short runs, and in long ones.
fn random_runs(serve: impl Fn(&str, u64) -> Served, short: (u64, u64), long: (u64, u64)) {
    let started = std::time::Instant::now();
    let chosen = std::env::var("ONEREAD_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    // One seed replays what long runs found, too.
    let is_long = chosen.is_some() || std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { long } else { short };
    let mut total = 0;
    for preset in oneread::layout::geometry::presets() {
        let seeds = chosen.map_or(0..seeds, |seed| seed..seed + 1);
        match random_run(|seed| serve(preset.name, seed), seeds, clients) {
            Ok(gets) => total += gets,
            Err((seed, violation)) => panic!("{}, ONEREAD_SEED={seed}: {violation}", preset.name),
        }
    }
    println!("{total} GETs, {:.0} a second", total as f64 / started.elapsed().as_secs_f64());
}

#[test]
fn random_schedules() {
    random_runs(|name, seed| churned(name, seed, 400), (50, 135), (2_000, 350));
}

#[test]
fn interleaved_server_threads() {
    random_runs(interleaved, (20, 50), (1_000, 100));
}

/// A server that stops for ever at any store: GETs go on, but for those that need the slot it was just writing.
#[test]
fn a_server_that_stops_anywhere() {
    for preset in oneread::layout::geometry::presets() {
        let (world, begin, numbers) = churned(preset.name, 7, 40).expect("a sound takeover");
        let history = world.history();
        for stop in begin.0..history.end().0 {
            let stopped = history.clone().until(Instant(stop));
            let mut random = Random::new(stop as u64);
            for _ in 0..2 {
                let number = numbers[random.pick(numbers.len())];
                let hardware = Hardware { passes_max: usize::MAX, ..LINES };
                let result = world.client(&stopped, hardware, &mut random, Instant(stop), &[number], false);
                if let Err(violation) = result {
                    // The one excuse: a slot in its windows is half written.
                    assert!(violation.answer.contains("inconclusive"), "{}: {violation}", preset.name);
                    assert!(violation.answer.contains("Torn"), "{}: {violation}", preset.name);
                }
            }
        }
    }
}

// ---- every rule broken on purpose ---------------------------------------------------------------------

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::adversary::Move;
    use oneread::faults::{Broken, Rule};
    use oneread::inspect::SlotReport;
    use oneread::layout::geometry::SlotIx;
    use std::panic::catch_unwind;

    /// Breaks rules while `case` is made and looked at; the schedule that shows it.
    fn caught(rules: &[Rule], hardware: Hardware, gets: usize, case: impl Fn() -> Case) -> Option<u64> {
        let _broken: Vec<_> = rules.iter().map(|&rule| Broken::rule(rule)).collect();
        every_schedule(&case(), hardware, gets).err().map(|(schedules, violation)| {
            println!("{rules:?}: schedule {schedules}: {violation}");
            schedules
        })
    }

    fn must_be_caught(rules: &[Rule], hardware: Hardware, gets: usize, case: impl Fn() -> Case) {
        all_right(case(), hardware, gets);
        assert!(caught(rules, hardware, gets, &case).is_some(), "{rules:?}: no counterexample");
    }

    fn kick() -> Case {
        put_that_moves("windowed:8", 24, ONE_LINE, 1)
    }

    /// The same case, with the traces that are due taken away so long `after` it.
    fn then_tidy(case: Case, after: Duration) -> Case {
        case.world.wait(after);
        case.world.tidy();
        case
    }

    fn kick_then_tidy(after: Duration) -> Case {
        then_tidy(kick(), after)
    }

    fn homing_then_tidy(after: Duration) -> Case {
        then_tidy(homing("bucketized:4", 24, ONE_LINE), after)
    }

    #[test]
    fn no_odd_pass() {
        // Stamps alone: the CRC would notice, too.
        let _no_crc = Broken::rule(Rule::CrcCheck);
        must_be_caught(&[Rule::OddPass], LINES, 1, || update(ONE_LINE));
        must_be_caught(&[Rule::OddPass], LINES, 1, || update(TWO_LINES));
    }

    #[test]
    fn no_stamp_check() {
        let _no_crc = Broken::rule(Rule::CrcCheck);
        must_be_caught(&[Rule::StampCheck], LINES, 1, || update(ONE_LINE));
    }

    #[test]
    fn no_crc_check() {
        // (A value of one word is whole under H0 anyway.)
        must_be_caught(&[Rule::CrcCheck], Hardware { passes_max: 1, ..WORDS }, 1, || update(ONE_LINE));
    }

    /// Each of the two defences is enough by itself under its own assumption.
    #[test]
    fn either_defence_suffices() {
        {
            let _no_crc = Broken::rule(Rule::CrcCheck);
            for value_bytes in [HALF_LINE, ONE_LINE, TWO_LINES, THREE_LINES] {
                all_right(update(value_bytes), LINES, 1);
            }
            all_right(update(FOUR_LINES), Hardware { passes_max: 1, ..LINES }, 1);
            all_right(kick(), LINES, 1);
            all_right(put_that_moves("farm", 24, TWO_LINES, 1), Hardware { passes_max: 1, ..LINES }, 1);
        }
        let _no_stamps = Broken::rule(Rule::StampCheck);
        all_right(update(HALF_LINE), WORDS, 1);
        all_right(update(ONE_LINE), Hardware { passes_max: 1, ..WORDS }, 1);
        all_right(kick(), LINES, 1);
    }

    #[test]
    fn erase_before_copy() {
        must_be_caught(&[Rule::CopyBeforeErase], LINES, 1, kick);
        must_be_caught(&[Rule::CopyBeforeErase], COUNTED, 1, kick);
    }

    #[test]
    fn no_ghost() {
        must_be_caught(&[Rule::Ghost], LINES, 1, kick);
    }

    #[test]
    fn ghost_gone_at_once() {
        must_be_caught(&[Rule::GhostGrace], LINES, 1, || kick_then_tidy(Duration::ZERO));
    }

    /// The first of these cases in which one key moved, and in which `next` then changed what it was to change. The
    /// key that moved is looked for.
    fn just_moved(
        mut cases: impl Iterator<Item = Case>,
        mut next: impl FnMut(&mut World, Move) -> bool,
    ) -> Case {
        let changed = cases.find_map(|mut case| {
            let mut moves = case.world.moves().iter().filter(|moved| moved.began == case.begin);
            let (Some(&moved), None) = (moves.next(), moves.next()) else { return None };
            case.name = "slot written again after a move";
            case.keys = vec![moved.key];
            next(&mut case.world, moved).then_some(case)
        });
        changed.expect("some seed does it")
    }

    fn slot_of(world: &World, slot: SlotIx) -> SlotReport {
        world.inspector().slot(slot)
    }

    fn number_of(world: &World, slot: SlotIx) -> KeyNumber {
        let there = slot_of(world, slot).key;
        (0..1000).find(|&number| key(number)[..] == there[..]).expect("a key")
    }

    /// The ghost is still needed when the slot is written again: each kind of write keeps it.
    #[test]
    fn ghost_gone_with_the_next_write() {
        let caught = |case: &dyn Fn() -> Case| {
            must_be_caught(&[Rule::GhostStays], Hardware { passes_max: 1, ..LINES }, 1, case);
        };
        // The key that came into the slot is removed, ...
        caught(&|| {
            just_moved(puts_that_move("windowed:8", 12, ONE_LINE, 1), |world, moved| {
                world.remove(number_of(world, moved.from))
            })
        });
        // ... is updated, ...
        caught(&|| {
            just_moved(puts_that_move("windowed:8", 12, ONE_LINE, 1), |world, moved| {
                world.put(number_of(world, moved.from))
            })
        });
        // ... stays, but the home that the slot begins gets another filter.
        caught(&|| {
            just_moved(puts_that_move("windowed:8", 12, ONE_LINE, 1), |world, moved| {
                let home_slot = world.inspector().windows(&key(moved.key)).0[0].first;
                let before = slot_of(world, moved.from);
                moved.from != home_slot
                    && (100..110).any(|number| {
                        world.put(number);
                        let after = slot_of(world, moved.from);
                        after.key == before.key && after.header.aux != before.header.aux
                    })
            })
        });
        // The slot was left free, and a new key comes.
        caught(&|| {
            just_moved(homings("windowed:8", 12, ONE_LINE), |world, moved| {
                world.put(100) && slot_of(world, moved.from).key == key(100)
            })
        });
    }

    #[test]
    fn filter_set_late() {
        let displacing = || {
            // A put that sends a neighbour to its second window.
            (0..5000)
                .find_map(|seed| {
                    let mut world = World::new(scene("bucketized:4", 16, ONE_LINE, seed));
                    for number in 0..16 {
                        world.wait(Duration::from_nanos(5_000));
                        world.tidy();
                        let (begin, before) = (world.now(), world.index().counts().moves);
                        let displaced = world.index().displaced();
                        if !world.put(number) {
                            return None;
                        }
                        let moved = world.index().counts().moves - before;
                        if moved == 1 && world.index().displaced() == displaced + 1 {
                            let keys = (0..=number).collect();
                            return Some(Case { name: "displacing put", world, begin, keys });
                        }
                    }
                    None
                })
                .expect("some seed displaces a neighbour")
        };
        must_be_caught(&[Rule::FilterBeforeCopy], LINES, 1, displacing);
    }

    #[test]
    fn filter_cleared_early() {
        let homing = || homing_then_tidy(Duration::ZERO);
        must_be_caught(&[Rule::FilterGrace], Hardware { passes_max: 1, ..LINES }, 1, homing);
    }

    /// Traces kept for the grace time alone: too short where the client's clock is slow, long enough where not.
    #[test]
    fn traces_kept_for_one_grace_time() {
        let kick = || kick_then_tidy(GRACE);
        must_be_caught(&[Rule::GraceTwice], SLOW, 1, kick);
        assert_eq!(caught(&[Rule::GraceTwice], LINES, 1, kick), None);
        let homing = || homing_then_tidy(GRACE);
        must_be_caught(&[Rule::GraceTwice], Hardware { passes_max: 1, ..SLOW }, 1, homing);
    }

    #[test]
    fn client_that_ignores_time() {
        must_be_caught(&[Rule::ClientClock], LINES, 1, || kick_then_tidy(3 * GRACE));
    }

    #[test]
    fn client_that_ignores_ghosts() {
        must_be_caught(&[Rule::ClientGhost], LINES, 1, kick);
    }

    #[test]
    fn block_unlinked_at_once() {
        let emptied = || {
            let mut case = displaced_put("list", 2, ONE_LINE);
            let newest = case.keys[case.keys.len() - 2];
            case.begin = case.world.now();
            for &number in &case.keys.clone() {
                if number != newest && case.world.remove(number) && case.world.index().displaced() == 0 {
                    break;
                }
            }
            // Twice: once to take it out of the chain, once to free it.
            case.world.tidy();
            case.world.tidy();
            case
        };
        must_be_caught(&[Rule::BlockGrace, Rule::GhostGrace], LINES, 1, emptied);
    }

    #[test]
    fn block_used_again_at_once() {
        must_be_caught(&[Rule::BlockGrace], LINES, 1, || {
            let (mut world, behind, newcomer) = block_emptied_before_another();
            let begin = world.now();
            world.tidy();
            assert!(world.put(newcomer));
            chain_case(world, begin, behind)
        });
    }

    #[test]
    fn unlinked_block_that_leads_nowhere() {
        must_be_caught(&[Rule::BlockLink], LINES, 1, || block_unlinked_before_another().0);
    }

    #[test]
    fn block_used_again_uncounted() {
        must_be_caught(&[Rule::BlockCount], COUNTED, 1, || {
            let (mut case, newcomer) = block_unlinked_before_another();
            // Given back.
            case.world.wait(3 * GRACE);
            case.world.tidy();
            assert!(case.world.put(newcomer));
            case
        });
    }

    #[test]
    fn block_used_again_by_another_server() {
        let taken_over = || {
            let (mut case, newcomer) = block_unlinked_before_another();
            case.world = taken_over(&case.world, case.world.now()).0;
            assert!(case.world.put(newcomer));
            case
        };
        must_be_caught(&[Rule::TakeoverGrace], LINES, 1, taken_over);
        must_be_caught(&[Rule::TakeoverCount], COUNTED, 1, taken_over);
    }

    /// A key moves out of a slot; the next one there, too: the second ghost takes the place of the first.
    #[test]
    fn two_ghosts_in_one_slot() {
        must_be_caught(&[Rule::OneGhost], Hardware { passes_max: 1, ..LINES }, 1, || {
            let mut world = World::new(scene("list", 1, ONE_LINE, 1));
            assert!((0..4).all(|number| world.put(number)));
            let begin = world.now();
            // 3 goes from the third block to the first, 4 comes to where its ghost is. 4 might fill the
            // second block.
            assert!(world.remove(1) && world.put(4) && world.remove(2));
            Case { name: "two moves out of a slot", world, begin, keys: vec![3] }
        });
    }

    #[test]
    fn counter_late_or_ignored() {
        must_be_caught(&[Rule::CountBeforeErase], COUNTED, 1, kick);
        must_be_caught(&[Rule::MoveCounter], COUNTED, 1, kick);
    }

    /// Memory of another slot: what a READ brings that went to a wrong address. Stamps say nothing about
    /// it; the CRC does.
    #[test]
    fn crc_without_slot_number() {
        use oneread::layout::slot::{Content, Identity, SlotShape, Torn, check, encode};
        let shape = SlotShape::from_bytes(64).unwrap();
        let (here, there) = (Identity { generation: 1, index: 4 }, Identity { generation: 1, index: 5 });
        let content = Content { key: b"key", value: b"value", ..Content::default() };
        let other = encode(shape, there, 2, &content);
        assert_eq!(check(shape, here, &other).err(), Some(Torn::Crc));
        let _broken = Broken::rule(Rule::CrcBindsSlot);
        let other = encode(shape, there, 2, &content);
        assert!(check(shape, here, &other).is_ok_and(|view| view.holds(b"key")), "caught");
    }

    /// Two server threads without a lock, with a path that is walked unseen, with locks in any order, with a key that
    /// the other has put meanwhile: keys are lost or doubled, an assertion fails, or nobody goes on.
    #[test]
    fn interleaved_threads_find_broken_rules() {
        for (rule, name) in [
            (Rule::SlotLock, "bucketized:4"),
            (Rule::PathCheck, "pilaf"),
            (Rule::LockOrder, "bucketized:4"),
            (Rule::LookAgain, "windowed:8"),
            (Rule::LookAgain, "farm"),
        ] {
            let broken = Broken::rule(rule);
            let run = |seed| random_run(|seed| interleaved(name, seed), seed..seed + 1, 50);
            let (seed, how) = (0..400)
                .find_map(|seed| match catch_unwind(|| run(seed)) {
                    Ok(Ok(_)) => None,
                    Ok(Err((_, violation))) => Some((seed, violation.to_string())),
                    Err(_) => Some((seed, "a panic".into())),
                })
                .unwrap_or_else(|| panic!("{rule:?}: not found"));
            println!("{rule:?}: {name}, seed {seed}: {how}");
            drop(broken);
            assert_eq!(run(seed).map_err(|(_, violation)| violation).err(), None, "{rule:?}: not for that");
        }
    }

    /// The random run notices each of these, too, without being told where to look.
    #[test]
    fn random_schedules_find_broken_rules() {
        let rules = [
            &[Rule::CrcCheck, Rule::StampCheck][..],
            &[Rule::CopyBeforeErase],
            &[Rule::Ghost],
            &[Rule::GhostGrace],
            &[Rule::GhostStays],
            &[Rule::FilterBeforeCopy],
            &[Rule::FilterGrace],
            &[Rule::ClientClock],
            &[Rule::ClientGhost],
            &[Rule::GraceTwice],
            &[Rule::CountBeforeErase],
            &[Rule::MoveCounter],
        ];
        for broken in rules {
            let _broken: Vec<_> = broken.iter().map(|&rule| Broken::rule(rule)).collect();
            let found = ["bucketized:4", "windowed:8", "list"].iter().find_map(|name| {
                (0..400).find_map(|seed| {
                    random_run(|seed| churned(name, seed, 400), seed..seed + 1, 200)
                        .err()
                        .map(|(s, v)| (*name, s, v))
                })
            });
            let (name, seed, violation) = found.unwrap_or_else(|| panic!("{broken:?}: not found"));
            println!("{broken:?}: {name}, seed {seed}: {violation}");
            assert!(
                violation.story.is_empty() || violation.story.contains("READ of slots"),
                "its story is told"
            );
        }
    }
}
