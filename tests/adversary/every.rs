//! Every possible schedule, on small scenes.

use super::cases::*;
use super::random::churn;
use super::{COUNTED, HINTED, KeyNumber, LINES, LOADS, SLOW, WORDS, grace, ns};
use oneread::internals::sim::{Every, Hardware, Instant, Random};
use oneread::internals::sim::{PlannedGet, Violation, World};

/// Runs every schedule of `gets` GETs of each key, one after the other. Returns their number.
pub fn every_schedule(case: &Case, hardware: Hardware, gets: usize) -> Result<u64, (u64, Box<Violation>)> {
    /// A case with more schedules than this is not small.
    const SCHEDULES_MAX: u64 = 20_000_000;
    let past = case.past();
    let mut schedules = 0;
    for &number in &case.keys {
        let mut every = Every::default();
        while every.next_schedule() {
            case.world
                .client(
                    &past,
                    hardware,
                    &mut every,
                    &mut PlannedGet::all(case.begin, &vec![number; gets]),
                    false,
                )
                .map_err(|violation| (schedules + every.schedules(), violation))?;
            assert!(every.schedules() < SCHEDULES_MAX, "{}: not a small case", case.name);
        }
        schedules += every.schedules();
    }
    Ok(schedules)
}

/// Runs every schedule. Each must be right.
pub fn right_schedules(case: &Case, hardware: Hardware, gets: usize) -> u64 {
    every_schedule(case, hardware, gets).unwrap_or_else(|(n, violation)| {
        let (layout, killed) = (case.world.scene().layout, case.world.killed());
        panic!("{} in {layout} ({hardware:?}, killed: {killed:?}), schedule {n}: {violation}", case.name)
    })
}

pub fn all_right(case: Case, hardware: Hardware, gets: usize) {
    let (scene, schedules) = (case.world.scene(), right_schedules(&case, hardware, gets));
    println!(
        "{:>10} schedules: {} in {}, {} bytes of value, {gets} GETs, {:?} {:?}",
        schedules, case.name, scene.layout, scene.value_bytes, hardware.unit, hardware.witness
    );
}

#[test]
fn every_schedule_of_an_update() {
    for value_bytes in [HALF_LINE, ONE_LINE, TWO_LINES, THREE_LINES] {
        all_right(update("cluster", value_bytes), LINES, 1);
        all_right(update("cluster", value_bytes), COUNTED, 1);
    }
    all_right(update("cluster", HALF_LINE), LOADS, 1);
    all_right(update("cluster", ONE_LINE), LOADS, 1);
    all_right(update("cluster", TWO_LINES), Hardware { passes_max: 1, ..LOADS }, 1);
    all_right(update("cluster", FOUR_LINES), Hardware { passes_max: 1, ..LINES }, 1);
    all_right(update("cluster", ONE_LINE), LINES, 2);
    all_right(update("cluster", TWO_LINES), Hardware { passes_max: 1, ..LINES }, 2);
    all_right(update("cluster", HALF_LINE), WORDS, 1);
    all_right(update("cluster", ONE_LINE), Hardware { passes_max: 1, ..WORDS }, 1);
}

#[test]
fn every_schedule_of_a_delete() {
    for name in ["pilaf", "bucketized:4", "farm", "cluster", "list"] {
        all_right(delete(name), LINES, 2);
        all_right(delete(name), COUNTED, 2);
        all_right(delete(name), LOADS, 2);
        all_right(delete(name), Hardware { passes_max: 1, ..WORDS }, 1);
    }
}

#[test]
fn every_schedule_of_moves() {
    for name in ["pilaf", "bucketized:4", "farm", "slotwise:8", "windowed:8"] {
        let slots = if name == "pilaf" { 8 } else { 24 };
        for hardware in [LINES, SLOW, COUNTED, LOADS] {
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

/// Hints name any one or two slots in which the key may be, or nothing of it: where it stands, stood
/// or will stand, and where it never is.
#[test]
fn every_schedule_with_hints() {
    let first = Hardware { passes_max: 1, ..HINTED };
    for value_bytes in [HALF_LINE, ONE_LINE, TWO_LINES] {
        all_right(update("cluster", value_bytes), HINTED, 1);
    }
    all_right(update("cluster", ONE_LINE), first, 2);
    all_right(update("cluster", ONE_LINE), Hardware { hints: true, passes_max: 1, ..COUNTED }, 1);
    all_right(update("cluster", HALF_LINE), Hardware { hints: true, passes_max: 1, ..WORDS }, 1);
    for name in ["pilaf", "bucketized:4", "farm", "list"] {
        all_right(delete(name), first, 2);
    }
    for name in ["pilaf", "bucketized:4", "windowed:8", "farm"] {
        let slots = if name == "pilaf" { 8 } else { 24 };
        all_right(put_that_moves(name, slots, ONE_LINE, 1), first, 1);
        all_right(homing_or_move(name, slots), first, 1);
    }
    all_right(unlink("list", 2, ONE_LINE), first, 1);
}

/// A homing, where the layout has one that is small.
fn homing_or_move(name: &str, slots: u64) -> Case {
    match name {
        "pilaf" => put_that_moves(name, slots, HALF_LINE, 1),
        _ => homing(name, slots, ONE_LINE),
    }
}

#[test]
fn every_schedule_of_a_homing() {
    for name in ["bucketized:4", "windowed:8", "farm", "cluster", "list"] {
        for hardware in [LINES, COUNTED, LOADS] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            all_right(homing(name, if name == "list" { 4 } else { 24 }, ONE_LINE), hardware, 1);
        }
    }
}

#[test]
fn every_schedule_of_a_displaced_put() {
    for name in ["pilaf", "bucketized:4", "windowed:8", "farm", "cluster", "list"] {
        for hardware in [LINES, COUNTED, LOADS] {
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
        for hardware in [LINES, COUNTED, LOADS] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            all_right(unlink(name, if name == "list" { 2 } else { 16 }, ONE_LINE), hardware, 1);
        }
    }
}

pub fn taken_over(world: &World, killed: Instant) -> World {
    world.taken_over_at(killed).unwrap_or_else(|violation| panic!("killed at {}: {violation}", killed.0))
}

/// The server is killed at each store of the case's mutation, and another takes over. `after` is
/// what the second server does then.
pub fn every_kill(case: &Case, after: impl Fn(&mut World)) -> impl Iterator<Item = Case> {
    (case.begin.0..=case.world.now().0).map(move |killed| {
        let mut world = taken_over(&case.world, Instant(killed));
        after(&mut world);
        Case::new(case.name, world, case.begin, case.keys.clone())
    })
}

/// Of two GETs, one stands on the block while it is away, and one comes by the link.
#[test]
fn every_schedule_of_a_block_that_comes_back() {
    for hardware in [LINES, COUNTED, LOADS] {
        all_right(block_comes_back("list", 2), Hardware { passes_max: 1, ..hardware }, 2);
    }
}

#[test]
fn every_schedule_of_a_key_that_leaves_twice() {
    for name in ["windowed:8", "bucketized:4"] {
        for hardware in [LINES, SLOW, COUNTED] {
            all_right(leaves_twice(name, 12), hardware, 1);
        }
    }
}

/// The server loses its processor after any store of a change, for longer than the grace time. Its
/// traces are taken away no earlier than 2T after the last store, and not much later.
#[test]
fn every_schedule_of_a_server_that_loses_its_processor() {
    let chain = || {
        let (mut case, newcomer) = block_unlinked_before_another();
        case.world.wait(2 * grace() + ns(20));
        case.world.tidy();
        assert!(case.world.put(newcomer));
        case
    };
    let cases = [
        put_that_moves("windowed:8", 24, ONE_LINE, 1),
        put_that_moves("farm", 24, ONE_LINE, 1),
        homing("bucketized:4", 24, ONE_LINE),
        homing("list", 4, ONE_LINE),
        displaced_put("cluster", 24, ONE_LINE),
        unlink("list", 2, ONE_LINE),
        chain(),
    ];
    for case in cases {
        // Only these keys matter: a GET of another key shows nothing here.
        let (begin, end) = (case.begin, case.world.now());
        for wait in [2 * grace() - ns(1), ns(30)] {
            case.world.wait(wait);
            case.world.tidy();
        }
        let concerned: std::collections::BTreeSet<_> =
            case.world.past(begin).incidents.iter().map(|incident| incident.key).collect();
        let mut schedules = 0;
        for after in (begin.0..end.0).map(Instant) {
            for time in [grace() + ns(1), 3 * grace()] {
                let world = case.world.stalled_at(after, time);
                let keys = case.keys.iter().copied().filter(|key| concerned.contains(key)).collect();
                let stalled = Case::new(case.name, world, begin, keys);
                for hardware in [SLOW, COUNTED, LOADS] {
                    schedules += right_schedules(&stalled, Hardware { passes_max: 1, ..hardware }, 1);
                }
            }
        }
        println!("{schedules:>10} schedules: {} in {}, stalled", case.name, case.world.scene().layout);
        assert!(schedules > 1_000);
    }
}

/// Changes of each kind in a layout, during which a server is to be killed.
fn changes(name: &str) -> Vec<Case> {
    let slots = match name {
        "pilaf" => 8,
        "list" => 4,
        _ => 24,
    };
    let mut cases = vec![update(name, ONE_LINE), delete(name), displaced_put(name, slots, ONE_LINE)];
    if name != "pilaf" {
        cases.push(homing(name, slots, ONE_LINE));
    }
    if !["cluster", "list"].contains(&name) {
        cases.push(put_that_moves(name, slots, ONE_LINE, 1));
        cases.push(reaping(name, slots, ONE_LINE));
    }
    if ["farm", "cluster", "list"].contains(&name) {
        cases.push(unlink(name, if name == "list" { 2 } else { 16 }, ONE_LINE));
    }
    cases
}

const LAYOUTS: [&str; 6] = ["pilaf", "bucketized:4", "windowed:8", "farm", "cluster", "list"];

/// The server is killed at each store of a case, and each takeover at each of its stores. Returns
/// the number of kills, or the first key that is not as it must be.
pub fn kill_everywhere(case: &Case) -> Result<u64, Box<Violation>> {
    let mut kills = 0;
    for killed in (case.begin.0..=case.world.now().0).map(Instant) {
        let second = case.world.taken_over_at(killed)?;
        for killed in (killed.0..=second.now().0).map(Instant) {
            second.taken_over_at(killed)?;
            kills += 1;
        }
    }
    Ok(kills)
}

/// No key is lost, also if the takeover is killed, at any store of both.
#[test]
fn every_kill_of_a_takeover() {
    let cases = LAYOUTS.into_iter().flat_map(changes);
    let long = [TWO_LINES, THREE_LINES].into_iter().flat_map(|bytes| {
        [update("cluster", bytes), put_that_moves("windowed:8", 24, bytes, 2), reaping("farm", 24, bytes)]
    });
    for case in cases.chain(long) {
        let layout = case.world.scene().layout;
        let kills = kill_everywhere(&case).unwrap_or_else(|lost| panic!("{} in {layout}: {lost}", case.name));
        println!("{kills:>10} kills: {} in {layout}", case.name);
        assert!(kills > 400);
    }
}

/// A server makes a change, stops, and is killed at any store of both. Each takeover is killed at any
/// of its stores. No key is lost, and each server knows its keys. After a whole stop, the next server
/// knows them at once, and what it changes first meets no second copy.
#[test]
fn every_kill_of_a_stop() {
    for mut case in LAYOUTS.into_iter().flat_map(changes) {
        let layout = case.world.scene().layout;
        let name = case.name;
        case.world.stop();
        let kills = kill_everywhere(&case).unwrap_or_else(|lost| panic!("{name} in {layout}: {lost}"));
        let mut next = taken_over(&case.world, case.world.now());
        assert!(next.recovered().handed_over && next.recovered().doubled == 0);
        for &number in case.keys.iter().take(3) {
            next.put(number);
            next.remove(number);
            next.put(number);
        }
        let (_, begun) = next.killed().expect("it took over");
        for killed in (begun.0..=next.now().0).map(Instant) {
            assert!(!taken_over(&next, killed).recovered().handed_over, "{name} in {layout}");
        }
        println!("{kills:>10} kills: {name} in {layout}, with a stop");
        assert!(kills > 400);
    }
}

/// GETs go on while a server makes a change, stops, and the next one makes another change.
#[test]
fn every_schedule_of_a_stopped_server() {
    for name in ["pilaf", "windowed:8", "farm", "list"] {
        for mut case in changes(name) {
            case.world.stop();
            let mut next = taken_over(&case.world, case.world.now());
            let other = case.keys[0];
            next.remove(other);
            next.put(other);
            let case = Case::new(case.name, next, case.begin, case.keys);
            for hardware in [LINES, COUNTED, LOADS] {
                let schedules = right_schedules(&case, Hardware { passes_max: 1, ..hardware }, 1);
                println!(
                    "{schedules:>10} schedules: {} in {name}, stopped, {:?}",
                    case.name, hardware.witness
                );
            }
        }
    }
}

#[test]
fn every_schedule_of_a_killed_server() {
    for name in LAYOUTS {
        let cases = changes(name);
        for hardware in [LINES, COUNTED, LOADS] {
            let hardware = Hardware { passes_max: 1, ..hardware };
            for case in &cases {
                let (mut schedules, mut kills) = (0, 0);
                for killed in every_kill(case, |_| {}) {
                    schedules += right_schedules(&killed, hardware, 1);
                    kills += 1;
                }
                println!(
                    "{schedules:>10} schedules: {kills} kills in {} in {name}, {:?}",
                    case.name, hardware.witness
                );
            }
        }
    }
}

/// A block is unlinked and its server is killed. The next server uses the block at once for another
/// home.
#[test]
fn every_schedule_of_a_block_used_again_by_another_server() {
    let (case, newcomer) = block_unlinked_before_another();
    for hardware in [LINES, COUNTED, LOADS] {
        for case in every_kill(&case, |world| assert!(world.put(newcomer))) {
            all_right(case, hardware, 1);
        }
    }
}

/// GETs that begin after the kill, at each store of the takeover, and are still running when it
/// goes on.
#[test]
fn every_schedule_begun_in_a_takeover() {
    /// The last stores of a takeover. They only count the counters up.
    const COUNTERS: usize = oneread::internals::layout::control::MOVE_COUNTERS as usize;
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
            for mut taken_over in every_kill(case, |_| {}) {
                let killed = taken_over.world.killed().expect("it was killed").0;
                for begin in killed.0..taken_over.world.now().0 - COUNTERS {
                    taken_over.begin = Instant(begin);
                    for hardware in [LINES, COUNTED, LOADS] {
                        schedules += right_schedules(&taken_over, Hardware { passes_max: 1, ..hardware }, 1);
                    }
                }
            }
            println!("{schedules:>10} schedules: {} in {name}", case.name);
        }
    }
}

/// A new server waits until no GET rests on the old server's traces. Then no trace is left, and
/// filters are what they would be at rest.
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
            let next = taken_over(&world, world.now());
            assert_eq!(next.index().tidy(), None);
            world.wait(3 * grace());
            world.tidy();
            assert_eq!(headers(&next), headers(&world), "{name}, seed {seed}");
            traces += before.iter().zip(headers(&world)).filter(|(old, new)| *old != new).count();
        }
        assert!(traces > 10, "{name}: {traces}");
    }
}
