//! Every possible schedule of small tables that grow: one home or two, a few keys.

use super::cases::{Whole, scene};
use super::{COUNTED, HINTED, KeyNumber, LINES, LOADS, SLOW, grace, ns, passes};
use oneread::internals::layout::control::move_counter_word;
use oneread::internals::layout::geometry::SlotIx;
use oneread::internals::sim::{Hardware, Instant, PlannedGet, Scene, Violation, Witness, World, key};
#[cfg(feature = "faults")]
use std::time::Duration;

/// A table that grows, and what happened to it, step by step.
struct Story {
    name: &'static str,
    world: World,
    /// When each step began.
    steps: Vec<Instant>,
    /// GETs begin from this one on.
    begin: usize,
    /// Keys that GETs look for.
    keys: Vec<KeyNumber>,
    /// Merges given up on purpose.
    given_up: u64,
}

/// What a table is like: layout, slots of a segment, bytes of a value.
#[derive(Clone, Copy, Debug)]
struct Small(&'static str, u64, usize);

impl Story {
    fn new(name: &'static str, Small(preset, slots, value_bytes): Small, segments: u64) -> Story {
        let world = World::new(Scene { segments, ..scene(preset, slots, value_bytes, 1) });
        let steps = vec![world.now()];
        Story { name, world, steps, begin: 0, keys: Vec::new(), given_up: 0 }
    }

    /// Keys of the first home, the last three bits of whose directory hash are these.
    fn keys_of<const N: usize>(&self, bits: u32) -> [KeyNumber; N] {
        let geometry = self.world.geometry();
        let is_it = |&number: &KeyNumber| {
            let name = key(number);
            let hashed = geometry.hashed(&name);
            hashed.home() == 0 && hashed.first().directory() & 7 == bits
        };
        let mut all = (0..).filter(is_it);
        std::array::from_fn(|_| all.next().expect("there are enough"))
    }

    /// From here on, GETs begin.
    fn begin(&mut self) {
        self.begin = self.steps.len() - 1;
    }

    fn step(&mut self, act: impl FnOnce(&mut World)) {
        act(&mut self.world);
        self.steps.push(self.world.now());
    }

    fn put(&mut self, number: KeyNumber) {
        self.step(|world| assert!(world.put(number)));
    }

    fn split(&mut self, number: KeyNumber) {
        self.step(|world| world.index().split(&key(number)));
    }

    fn merge(&mut self, number: KeyNumber) {
        self.step(|world| world.index().merge(&key(number)));
    }

    /// Takes the split or merge under way on by so many homes.
    fn drive(&mut self, homes: u32) {
        self.step(|world| world.index().drive(homes));
    }

    /// Takes it to its end.
    fn end(&mut self) {
        self.step(|world| world.index().drive(99));
        let growth = self.world.index().growth();
        assert_eq!((growth.splitting, growth.merging), (0, 0), "{}", self.name);
        assert_eq!(growth.given_up, self.given_up, "{}", self.name);
    }

    fn give_up(&mut self) {
        self.world.index().give_up_merges();
        self.given_up = 1;
    }

    /// The slot of a key, of all slots.
    fn place(&self, number: KeyNumber) -> SlotIx {
        let name = key(number);
        let windows = self.world.inspector().key(&name).windows;
        windows.iter().flatten().find(|report| report.key == name).expect("it is there").slot
    }

    /// Takes traces away that are due, and the split or merge on.
    fn tidy(&mut self) {
        self.step(|world| world.tidy());
    }

    /// Lets every trace go. An empty block is unlinked first, and used again after that.
    fn rest(&mut self) {
        for _ in 0..2 {
            self.step(|world| {
                world.wait(3 * grace());
                world.tidy();
            });
        }
    }
}

/// Runs every schedule of GETs of each key. A client by the clock knows the directory entry of each step
/// before, or none. A GET begins at any step. By the counter also after each count.
fn every(story: &Story, hardware: Hardware) -> Result<u64, (u64, Box<Violation>)> {
    const SCHEDULES_MAX: u64 = 50_000_000;
    let world = &story.world;
    let mut past = world.bare_past();
    let mut schedules = 0;
    let by_clock = hardware.witness == Witness::Clock;
    for &number in &story.keys {
        past.may_sleep(number, story.steps.clone());
        let mut begins = story.steps[story.begin..].to_vec();
        if !by_clock {
            let word = move_counter_word(world.geometry().hashed(&key(number)).home());
            let counts = past.history.stores(word..word + 1, begins[0], world.now());
            begins.extend(counts.iter().map(|count| count.0));
        }
        for from in begins {
            let known = story.steps.iter().copied().filter(|&known| by_clock && known < from).map(Some);
            for known in known.chain([None]) {
                let look = |from, read_stores_max| PlannedGet { key: number, from, read_stores_max };
                let first = known.map(|known| look(known, Some(0)));
                let gets: Vec<_> = first.into_iter().chain([look(from, None)]).collect();
                let mut every = Whole::default();
                while every.0.next_schedule() {
                    let mut gets = gets.iter();
                    world
                        .client(&past, hardware, &mut every, &mut |_| gets.next().copied(), false)
                        .map_err(|violation| (schedules + every.0.schedules(), violation))?;
                    assert!(every.0.schedules() < SCHEDULES_MAX, "{}: not a small case", story.name);
                }
                schedules += every.0.schedules();
            }
        }
    }
    Ok(schedules)
}

fn all_right(story: &Story, hardware: Hardware) {
    let begun = std::time::Instant::now();
    let scene = story.world.scene();
    let schedules = every(story, hardware).unwrap_or_else(|(n, violation)| {
        panic!("{} in {}, {hardware:?}, schedule {n}: {violation}", story.name, scene.layout)
    });
    println!(
        "{schedules:>10} schedules, {:?}: {} in {}, {} stores, {:?}, {} passes",
        begun.elapsed(),
        story.name,
        scene.layout,
        story.world.now().0 - story.steps[story.begin].0,
        hardware.witness,
        hardware.passes_max,
    );
}

/// One of each family: cuckoo, hopscotch, chained.
const SMALL: [Small; 4] =
    [Small("bucketized:4", 8, 8), Small("bucketized:4", 8, 16), Small("farm", 12, 16), CHAINS];
const CHAINS: Small = Small("list", 8, 8);

/// A segment is split: keys that go, one that stays, one that comes meanwhile, one that is never there.
fn split(small: Small) -> Story {
    let mut story = Story::new("split", small, 2);
    let [goes, goes_too, comes, never] = story.keys_of(1);
    let [stays] = story.keys_of(2);
    [stays, goes, goes_too].into_iter().for_each(|number| story.put(number));
    story.begin();
    story.split(goes);
    story.put(comes);
    story.end();
    story.rest();
    story.keys = vec![goes, goes_too, comes, never, stays];
    story
}

/// A child goes back into its parent. One key comes meanwhile.
fn merge(small: Small) -> Story {
    let mut story = Story::new("merge", small, 2);
    let [goes, goes_too, comes, never] = story.keys_of(1);
    let [stays] = story.keys_of(2);
    [stays, goes, goes_too].into_iter().for_each(|number| story.put(number));
    story.split(goes);
    story.end();
    story.rest();
    story.begin();
    story.merge(goes);
    story.put(comes);
    story.tidy();
    story.end();
    story.rest();
    story.keys = vec![goes, goes_too, comes, never, stays];
    story
}

/// A merge is given up: at once, or after the depth of the parent's home has gone back.
fn given_up(small: Small, at_once: bool) -> Story {
    let mut story = Story::new("merge given up", small, 2);
    let [goes, goes_too, never] = story.keys_of(1);
    let [stays] = story.keys_of(2);
    [stays, goes, goes_too].into_iter().for_each(|number| story.put(number));
    story.split(goes);
    story.end();
    story.rest();
    story.begin();
    story.merge(goes);
    story.drive(1);
    if !at_once {
        story.step(|world| world.wait(3 * grace()));
        story.put(goes_too);
    }
    story.give_up();
    story.drive(1);
    story.tidy();
    story.rest();
    story.end();
    story.keys = vec![goes, goes_too, never, stays];
    story
}

/// A merge is given up, and then a key moves in the child, shortly before the mark goes. In a cuckoo
/// layout with two buckets.
fn moved_back(small: Small) -> Story {
    let told = (0..8).find_map(|first| {
        let mut story = Story::new("key that moves after a merge given up", small, 2);
        let numbers: [KeyNumber; 16] = story.keys_of(1);
        let [all @ .., comes, never]: [KeyNumber; 6] = std::array::from_fn(|n| numbers[first + n]);
        all.into_iter().for_each(|number| story.put(number));
        story.split(comes);
        story.end();
        story.rest();
        story.merge(comes);
        story.drive(1);
        story.step(|world| world.wait(3 * grace()));
        // The ghosts that the merge has left go.
        story.put(all[0]);
        story.give_up();
        story.drive(99);
        story.step(|world| world.wait(2 * grace() - ns(120)));
        story.begin();
        let stood = all.map(|number| story.place(number));
        story.put(comes);
        let left: Vec<_> = (0..4).filter(|&n| story.place(all[n]) != stood[n]).map(|n| stood[n]).collect();
        story.step(|world| world.wait(ns(150)));
        story.tidy();
        story.keys = all.into_iter().chain([comes, never]).collect();
        // A GET that sees the filter of the home change is sent on, and finds the key.
        let home_slot = story.world.geometry().segment_first(1);
        (left.len() == 1 && left[0] != home_slot).then_some(story)
    });
    told.expect("some of these keys do it")
}

/// The memory of a child that was merged is its parent's next child.
fn used_again(small: Small) -> Story {
    let mut story = Story::new("memory used again", small, 2);
    let [goes, never] = story.keys_of(1);
    let [stays] = story.keys_of(2);
    [stays, goes].into_iter().for_each(|number| story.put(number));
    story.split(goes);
    story.end();
    story.rest();
    story.merge(goes);
    story.drive(1);
    story.begin();
    story.end();
    story.rest();
    story.split(goes);
    story.drive(1);
    story.end();
    story.rest();
    story.keys = vec![goes, never, stays];
    story
}

/// The memory of a child that was merged is another segment's next child, without keys, as deep as it was:
/// at once, or later.
fn used_elsewhere(small: Small, at_once: bool) -> Story {
    let name = if at_once { "memory used elsewhere at once" } else { "memory used elsewhere later" };
    let mut story = Story::new(name, small, 4);
    let [goes] = story.keys_of(3);
    let [other] = story.keys_of(0);
    story.put(goes);
    story.split(other);
    story.end();
    story.split(other);
    story.end();
    story.split(goes);
    story.end();
    story.rest();
    story.merge(other);
    story.end();
    story.rest();
    story.begin();
    story.merge(goes);
    story.drive(1);
    story.end();
    if !at_once {
        story.rest();
    }
    story.split(other);
    story.end();
    story.keys = vec![goes];
    story
}

/// A segment is split, and then the child, or the parent once more.
fn split_twice(small: Small, is_child: bool) -> Story {
    let mut story = Story::new(if is_child { "split of a child" } else { "parent split again" }, small, 4);
    let bits = if is_child { 3 } else { 2 };
    let [goes, never] = story.keys_of(bits);
    story.put(goes);
    story.begin();
    story.split(goes);
    story.drive(1);
    story.end();
    story.split(goes);
    story.drive(1);
    story.end();
    story.rest();
    story.keys = vec![goes, never];
    story
}

type Tell = fn(Small) -> Story;

fn given_up_at_once(small: Small) -> Story {
    given_up(small, true)
}

fn given_up_late(small: Small) -> Story {
    given_up(small, false)
}

fn used_elsewhere_at_once(small: Small) -> Story {
    used_elsewhere(small, true)
}

fn used_elsewhere_later(small: Small) -> Story {
    used_elsewhere(small, false)
}

fn child_split(small: Small) -> Story {
    split_twice(small, true)
}

fn parent_split_again(small: Small) -> Story {
    split_twice(small, false)
}

const STORIES: [Tell; 9] = [
    split,
    merge,
    given_up_at_once,
    given_up_late,
    used_again,
    used_elsewhere_at_once,
    used_elsewhere_later,
    child_split,
    parent_split_again,
];

#[test]
fn every_schedule_of_growth() {
    for tell in STORIES {
        all_right(&tell(SMALL[0]), passes(2, LINES));
        all_right(&tell(SMALL[0]), passes(2, COUNTED));
        all_right(&tell(CHAINS), passes(2, LINES));
        for small in SMALL {
            let story = tell(small);
            all_right(&story, passes(1, SLOW));
            all_right(&story, passes(1, COUNTED));
        }
    }
    all_right(&child_split(SMALL[0]), passes(3, LINES));
    let story = moved_back(SMALL[1]);
    for hardware in [LINES, COUNTED, LOADS] {
        all_right(&story, passes(2, hardware));
    }
}

/// The adversary names any slots of the key, in any segment, also in one that has gone or is pending.
#[test]
fn every_schedule_of_growth_with_hints() {
    for tell in [split, merge, used_again] {
        for small in [SMALL[0], CHAINS] {
            all_right(&tell(small), passes(1, HINTED));
        }
    }
}

/// In chains that change, loads have too many schedules.
#[test]
fn every_schedule_of_growth_by_loads() {
    for tell in STORIES {
        all_right(&tell(SMALL[0]), passes(1, LOADS));
    }
    for tell in [split, merge, used_again, used_elsewhere_at_once] {
        all_right(&tell(SMALL[2]), passes(1, LOADS));
    }
    for tell in [used_again, used_elsewhere_at_once, child_split, parent_split_again] {
        all_right(&tell(CHAINS), passes(1, LOADS));
    }
}

/// A merge, and so long after it a look for what is due then: the depth of the parent's home.
#[cfg(feature = "faults")]
fn merge_settled_after(small: Small, after: Duration) -> Story {
    let mut story = Story::new("merge, and a look after it", small, 2);
    let [goes, never] = story.keys_of(1);
    // The other key comes to stand beside the header.
    let [stays] = story.keys_of(2);
    [stays, goes].into_iter().for_each(|number| story.put(number));
    story.split(goes);
    story.end();
    story.rest();
    story.begin();
    story.merge(goes);
    story.end();
    story.step(|world| world.wait(after));
    story.tidy();
    story.keys = vec![goes, never];
    story
}

/// A merge given up after the depth has gone back, and so long after that a look for what is due then: the marks in
/// the child.
#[cfg(feature = "faults")]
fn given_up_settled_after(small: Small, after: Duration) -> Story {
    let mut story = Story::new("merge given up, and a look after it", small, 2);
    let [goes, goes_too, never] = story.keys_of(1);
    [goes, goes_too].into_iter().for_each(|number| story.put(number));
    story.split(goes);
    story.end();
    story.rest();
    story.merge(goes);
    story.drive(1);
    story.step(|world| world.wait(3 * grace()));
    story.put(goes_too);
    story.begin();
    story.give_up();
    story.drive(1);
    story.step(|world| world.wait(after));
    story.tidy();
    story.keys = vec![goes, goes_too, never];
    story
}

#[cfg(feature = "faults")]
mod broken {
    use super::super::with_grace;
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    /// While the rule is broken, some schedule shows it.
    fn must_be_caught(rule: Rule, tell: Tell, small: Small, hardware: Hardware) {
        let _broken = Broken::rule(rule);
        let story = tell(small);
        let name = story.name;
        match every(&story, hardware) {
            Err((schedule, wrong)) => {
                println!("{rule:?}: {name}, {hardware:?}, schedule {schedule}: {wrong}")
            }
            Ok(_) => panic!("case lost: {rule:?} broken, no counterexample: {name}, {hardware:?}"),
        }
    }

    #[test]
    fn every_broken_rule_of_growth() {
        for (rule, tell, small, hardware) in [
            (Rule::DirectoryLast, split as Tell, SMALL[0], passes(1, LINES)),
            (Rule::DirectoryLast, split, SMALL[0], passes(1, COUNTED)),
            (Rule::DepthFirst, split, SMALL[0], passes(2, LINES)),
            (Rule::DepthFirst, split, SMALL[0], passes(1, COUNTED)),
            (Rule::DepthFirst, split, SMALL[0], passes(1, LOADS)),
            (Rule::MarkFirst, merge, SMALL[0], passes(2, LINES)),
            (Rule::MarkFirst, merge, SMALL[0], passes(1, COUNTED)),
            (Rule::MarkFirst, merge, SMALL[0], passes(1, LOADS)),
            (Rule::DepthStays, merge, SMALL[1], passes(1, LINES)),
            (Rule::DepthBack, given_up_late, SMALL[0], passes(1, LINES)),
            (Rule::MarkStays, given_up_late, SMALL[1], passes(1, LINES)),
            (Rule::MarkStays, given_up_at_once, SMALL[1], passes(2, LINES)),
            (Rule::SegmentUse, used_again, SMALL[0], passes(1, LINES)),
            (Rule::EntryAgain, used_elsewhere_at_once, SMALL[0], passes(1, LOADS)),
            (Rule::EntryAgain, used_elsewhere_later, SMALL[0], passes(1, LOADS)),
            (Rule::EntryBound, split, SMALL[0], passes(2, LINES)),
            (Rule::AskFirst, child_split, SMALL[0], passes(3, LINES)),
            (Rule::BothWindows, moved_back, SMALL[1], passes(1, LINES)),
            (Rule::OldChild, parent_split_again, SMALL[0], passes(1, LINES)),
            (Rule::Ghost, split, SMALL[0], passes(1, LINES)),
            (Rule::Ghost, merge, SMALL[1], passes(1, LINES)),
            (Rule::MoveCounter, split, SMALL[0], passes(1, COUNTED)),
            (Rule::MoveCounter, merge, SMALL[1], passes(1, COUNTED)),
            (Rule::CountBeforeErase, split, SMALL[1], passes(1, COUNTED)),
            (Rule::HintMiss, split, SMALL[0], passes(1, HINTED)),
            (Rule::HintMiss, merge, SMALL[2], passes(1, HINTED)),
            (Rule::HintMiss, used_again, SMALL[0], passes(1, HINTED)),
            (Rule::SegmentUse, used_again, SMALL[0], passes(1, HINTED)),
        ] {
            must_be_caught(rule, tell, small, hardware);
        }
    }

    /// E5, E6: the waits are cut to T, to 1.5T, and to just below 2T. They take 2T where a client's clock
    /// runs at half the rate. Where it runs at the full rate, T is enough.
    #[test]
    fn waits_of_growth_cut_short() {
        /// So long that the duration of a write does not matter.
        const GRACE_NS: u64 = 30_000;
        type Tell = fn(Small, Duration) -> Story;
        let cases: [(Rule, Tell); 2] =
            [(Rule::DepthStays, merge_settled_after), (Rule::MarkStays, given_up_settled_after)];
        with_grace(GRACE_NS, || {
            for (rule, tell) in cases {
                for percent in [100, 150, 199] {
                    let wait = grace() * percent / 100;
                    let told = || tell(SMALL[1], wait + ns(40));
                    all_right(&told(), passes(1, SLOW));
                    let _short = Broken::wait(rule, wait);
                    let story = told();
                    match every(&story, passes(1, SLOW)) {
                        Err((schedule, wrong)) => {
                            println!("{rule:?} cut to {percent} %: schedule {schedule}: {wrong}")
                        }
                        Ok(_) => panic!("case lost: {rule:?} cut to {percent} %, no counterexample"),
                    }
                    all_right(&story, passes(1, LINES));
                }
            }
        });
    }
}
