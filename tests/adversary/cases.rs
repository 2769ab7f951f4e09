//! Small scenes: one mutation, and everything that a GET may see of it.

use super::{KeyNumber, grace, ns};
use oneread::internals::layout::geometry::{Geometry, SlotIx};
use oneread::internals::region::Region;
use oneread::internals::sim::{Adversary, Every, Hardware, History, Instant, Random, Recorder, Sim};
use oneread::internals::sim::{Past, Scene, World, key};
use oneread::{
    Limits,
    embedded::{Clock, Index, Reader},
    layout::Layout,
};
use std::sync::Arc;
use std::time::Duration;

/// A table in some state, then one mutation and what follows it. GETs look at it in every way.
pub struct Case {
    pub name: &'static str,
    pub world: World,
    /// The instant from which on GETs begin.
    pub begin: Instant,
    pub keys: Vec<KeyNumber>,
    /// Instants until which a client may sleep between two passes.
    pub sleeps: Vec<Instant>,
}

impl Case {
    pub fn new(name: &'static str, world: World, begin: Instant, keys: Vec<KeyNumber>) -> Case {
        Case { name, world, begin, keys, sleeps: Vec::new() }
    }

    /// What the server did.
    pub fn past(&self) -> Past {
        let mut past = self.world.bare_past();
        self.keys.iter().for_each(|&number| past.may_sleep(number, self.sleeps.clone()));
        past
    }
}

pub fn layout(name: &str) -> Layout {
    name.parse().unwrap()
}

pub fn scene(name: &str, slots: u64, value_bytes: usize, seed: u64) -> Scene {
    Scene { layout: layout(name), slots, segments: 0, value_bytes, long_keys: false, grace: grace(), seed }
}

/// Value lengths for slots of half a line, 1, 2, 3 and 4 lines.
pub const HALF_LINE: usize = 8;
pub const ONE_LINE: usize = 16;
pub const TWO_LINES: usize = 60;
pub const THREE_LINES: usize = 120;
pub const FOUR_LINES: usize = 180;

pub fn update(name: &str, value_bytes: usize) -> Case {
    let mut world = World::new(scene(name, 8, value_bytes, 1));
    world.put(1);
    world.put(2);
    let begin = world.now();
    world.put(1);
    Case::new("update", world, begin, vec![1, 2, 3])
}

pub fn delete(name: &str) -> Case {
    let mut world = World::new(scene(name, 8, ONE_LINE, 1));
    world.put(1);
    world.put(2);
    let begin = world.now();
    world.remove(1);
    Case::new("delete", world, begin, vec![1, 2])
}

/// Fills tables, one for each seed, until a put makes exactly `moves` moves.
pub fn puts_that_move(name: &str, slots: u64, value_bytes: usize, moves: u64) -> impl Iterator<Item = Case> {
    (0..5000).filter_map(move |seed| {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        for number in 0..slots as KeyNumber {
            world.wait(13 * grace());
            world.tidy();
            let (begin, before) = (world.now(), world.index().counts());
            if !world.put(number) {
                break;
            }
            let after = world.index().counts();
            if after.waits == before.waits && after.moves - before.moves == moves {
                return Some(Case::new("put that moves", world, begin, (0..=number + 1).collect()));
            }
        }
        None
    })
}

pub fn put_that_moves(name: &str, slots: u64, value_bytes: usize, moves: u64) -> Case {
    let first = puts_that_move(name, slots, value_bytes, moves).next();
    first.unwrap_or_else(|| panic!("no put of {moves} moves in {name}"))
}

/// Removes by which a displaced key comes home, one for each seed.
pub fn homings(name: &str, slots: u64, value_bytes: usize) -> impl Iterator<Item = Case> {
    (0..5000).filter_map(move |seed| {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        let mut numbers = Vec::new();
        for number in 0..2 * slots as KeyNumber {
            if world.put(number) {
                numbers.push(number);
            }
        }
        world.wait(125 * grace());
        world.tidy();
        if world.index().displaced() == 0 {
            return None;
        }
        for &victim in &numbers {
            world.wait(125 * grace());
            world.tidy();
            let (begin, before) = (world.now(), world.index().counts());
            if before.keys < 2 || !world.remove(victim) {
                break;
            }
            if world.index().counts().homings == before.homings + 1 {
                return Some(Case::new("homing", world, begin, numbers));
            }
        }
        None
    })
}

pub fn homing(name: &str, slots: u64, value_bytes: usize) -> Case {
    homings(name, slots, value_bytes).next().unwrap_or_else(|| panic!("no homing in {name}"))
}

/// A put that is displaced and moves no other key: into its second window, or into a chain.
pub fn displaced_put(name: &str, slots: u64, value_bytes: usize) -> Case {
    for seed in 0..5000 {
        let mut world = World::new(scene(name, slots, value_bytes, seed));
        for number in 0..2 * slots as KeyNumber {
            world.wait(13 * grace());
            world.tidy();
            let (begin, before, moves) =
                (world.now(), world.index().displaced(), world.index().counts().moves);
            if !world.put(number) {
                break;
            }
            if world.index().counts().moves == moves && world.index().displaced() == before + 1 {
                return Case::new("displaced put", world, begin, (0..=number + 1).collect());
            }
        }
    }
    panic!("no displaced put in {name}");
}

/// A delete of a key that has just been moved, so that its ghost is still there.
pub fn delete_of_moved(name: &str, slots: u64, value_bytes: usize) -> Case {
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

/// A put moves a key. Then the ghost that the move left, and other traces, are taken away.
pub fn reaping(name: &str, slots: u64, value_bytes: usize) -> Case {
    let mut case = put_that_moves(name, slots, value_bytes, 1);
    case.begin = case.world.now();
    case.world.wait(3 * grace());
    case.world.tidy();
    assert!(case.world.now() > case.begin, "nothing was taken away");
    case.name = "reaping";
    case
}

/// The last key of a chain leaves. Its block is unlinked 2T later, and reused after another 2T.
pub fn unlink(name: &str, slots: u64, value_bytes: usize) -> Case {
    let mut case = displaced_put(name, slots, value_bytes);
    let newest = case.keys[case.keys.len() - 2];
    case.begin = case.world.now();
    // A key in the primary window is removed, the displaced key comes home, and its block is empty.
    for &number in &case.keys.clone() {
        if number != newest && case.world.remove(number) && case.world.index().displaced() == 0 {
            break;
        }
    }
    case.world.wait(3 * grace());
    case.world.tidy();
    case.name = "unlink";
    case
}

/// The first `n` keys with this home.
pub fn keys_of_home(world: &World, home: u64, n: usize) -> Vec<KeyNumber> {
    let geometry = world.geometry();
    let is_home = |&number: &KeyNumber| geometry.hashed(&key(number)).home() == home;
    (0..).filter(is_home).take(n).collect()
}

/// A chain of two blocks, the first one empty. It cannot be filled from the second, whose key
/// stands beside a ghost. So it will be unlinked while there is a key behind it. Returns that key,
/// and one that only finds room in a block of another chain.
pub fn block_emptied_before_another() -> (World, KeyNumber, KeyNumber) {
    let mut world = World::new(scene("list", 2, ONE_LINE, 1));
    let [a, b, c, d] = keys_of_home(&world, 0, 4)[..] else { unreachable!() };
    let [other, newcomer] = keys_of_home(&world, 1, 2)[..] else { unreachable!() };
    let all_put = [a, b, c, other].into_iter().all(|number| world.put(number));
    // `c` goes from the second block to the first. `d` goes to the slot with `c`'s ghost. Then `c`
    // leaves the first block.
    assert!(all_put && world.remove(b) && world.put(d) && world.remove(c));
    (world, d, newcomer)
}

pub fn chain_case(world: World, begin: Instant, wanted: KeyNumber) -> Case {
    Case::new("block unlinked before another", world, begin, vec![wanted])
}

/// A block is unlinked. Returns the case, and a key that would use the block.
pub fn block_unlinked_before_another() -> (Case, KeyNumber) {
    let (world, behind, newcomer) = block_emptied_before_another();
    world.wait(3 * grace());
    let begin = world.now();
    world.tidy();
    (chain_case(world, begin, behind), newcomer)
}

/// A key leaves a slot, comes back, and leaves it again, while a client sleeps between its first
/// and second pass. Only the slot's stamp tells the second ghost from the first.
pub fn leaves_twice(name: &str, slots: u64) -> Case {
    let found = puts_that_move(name, slots, ONE_LINE, 1).filter_map(|mut case| {
        let pusher = case.keys[case.keys.len() - 2];
        let moves = |case: &Case| -> Vec<_> {
            let since = |moved: &&oneread::internals::sim::Move| moved.began >= case.begin;
            case.world.moves().iter().filter(since).copied().collect()
        };
        let [first] = moves(&case)[..] else { return None };
        for is_put in [false, true] {
            case.world.wait(3 * grace());
            case.world.tidy();
            case.sleeps = vec![case.world.now()];
            if is_put {
                case.world.put(pusher)
            } else {
                case.world.remove(pusher)
            };
        }
        let [_, back, again] = moves(&case)[..] else { return None };
        // A GET that sees the filter of the home change is sent on, and finds the key.
        let home_slot = case.world.inspector().windows(&key(first.key)).0[0].first;
        let is_it = first.from != home_slot
            && (back.key, back.to) == (first.key, first.from)
            && (again.key, again.from) == (first.key, first.from);
        case.keys = vec![first.key];
        is_it.then_some(case)
    });
    // Of some, the one with the fewest schedules.
    let smallest = found.take(8).min_by(|a, b| f64::total_cmp(&ln_samples(a), &ln_samples(b)));
    Case { name: "key that leaves a slot twice", ..smallest.expect("some seed does it") }
}

/// In how many ways the lines of the windows of the case's first key can be sampled once each, as a
/// logarithm: the number of schedules grows with it.
fn ln_samples(case: &Case) -> f64 {
    let (world, history) = (&case.world, case.world.history());
    let shape = world.geometry().shape();
    let windows = world.inspector().windows(&key(case.keys[0])).0;
    let slots = windows.iter().flat_map(|window| window.first.0..window.first.0 + u64::from(window.slots));
    let lines = slots.map(|slot| world.geometry().slot_offset(SlotIx(slot)) as usize / 8);
    let stores = lines.map(|word| history.stores(word..word + shape.words(), case.begin, world.now()).len());
    stores.map(|stores| (1.0 + stores as f64).ln()).sum()
}

/// A key is removed from a block of its home's chain. The block is unlinked and freed, and comes
/// back with the same key.
pub fn block_comes_back(name: &str, slots: u64) -> Case {
    let mut case = displaced_put(name, slots, ONE_LINE);
    let newest = case.keys[case.keys.len() - 2];
    assert!(case.world.remove(newest));
    // GETs begin when the block is unlinked. The key's filter bit lingers until then.
    case.begin = case.world.now();
    for _ in 0..2 {
        case.world.wait(3 * grace());
        case.world.tidy();
    }
    assert!(case.world.put(newest) && case.world.index().displaced() == 1);
    case.keys = vec![newest];
    case.name = "block that comes back";
    case
}

/// Memory for a table. Its stores are recorded, and each takes 1 ns.
pub fn recorded(geometry: &Geometry) -> (Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), ns(1)));
    (recorder.region(Index::bytes_with_handover(geometry)), recorder, clock)
}

/// A client of a server that did this. Its clock stands still, so only retries end a GET.
pub fn client<'a, A: Adversary>(
    history: &'a History,
    geometry: &'a Geometry,
    hardware: Hardware,
    choices: &'a mut A,
) -> Reader<'a, Sim<'a, A>> {
    let sim = Sim::new(history, geometry, hardware, choices, Instant(0));
    let limits = Limits::new().retries_max(1_000).deadline(Duration::from_secs(3600));
    Reader::new(sim, geometry, Clock::manual(), limits)
}

/// So many instants in order, each shortly before or after one of the `leaps`.
pub fn near(leaps: &[Instant], n: usize, random: &mut Random, first: Instant, last: Instant) -> Vec<Instant> {
    let mut one = || {
        let near = leaps[random.pick(leaps.len())].0 + random.pick(60);
        Instant(near.saturating_sub(50).clamp(first.0, last.0))
    };
    let mut all: Vec<Instant> = (0..n).map(|_| one()).collect();
    all.sort();
    all
}

/// Decides in every way that matters. A line that is being written makes a GET look again, and whole
/// lines show all that it may find: so one torn sample stands for all.
#[derive(Default)]
pub struct Whole(pub Every);

impl Adversary for Whole {
    fn pick(&mut self, n: usize) -> usize {
        self.0.pick(n)
    }

    fn pick_sample(&mut self, n: usize, is_whole: impl Fn(usize) -> bool) -> usize {
        let (mut all, torn): (Vec<usize>, Vec<usize>) = (0..n).partition(|&instant| is_whole(instant));
        // Words outside of slots are never torn.
        all.extend(torn.into_iter().take(if all.is_empty() { n } else { 1 }));
        all[self.0.pick(all.len())]
    }
}
