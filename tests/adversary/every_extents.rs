//! Every possible schedule of a value that does not fit its slot: it is replaced, removed and moved, and
//! servers are killed, while a client fetches it.

use super::cases::{Whole, client, layout};
use super::extents::{Life, Met, Table, WHOLE, config, key, value};
use super::{COUNTED, LINES, LOADS, SLOW, grace, ns, passes};
use oneread::internals::families::presets;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::extent::Reference;
use oneread::internals::layout::geometry::SlotIx;
use oneread::internals::sim::{Aim, Hardware, Instant};
use oneread::{PutMode, TableSize};
use std::sync::Arc;
use std::time::Duration;

/// The key that GETs look for.
const KEY: u64 = 0;
/// Bytes of values: in the slot; an extent that begins in one line and ends in the next; a longer one.
const INLINE: usize = 8;
const SHORT: usize = 48;
const LONG: usize = 100;
/// A part of a value that no CRC is checked of.
const PART: std::ops::Range<usize> = 1..usize::MAX;

/// What happened to a value, step by step.
struct Story {
    name: &'static str,
    preset: &'static str,
    life: Life,
    /// When each step began.
    steps: Vec<Instant>,
    /// GETs begin from this one on.
    begin: usize,
    /// When the change ended in whose middle servers are killed.
    changed: Instant,
    /// Puts so far: no two make the same value.
    puts: u64,
    /// Other keys so far.
    others: u64,
}

impl Story {
    fn new(name: &'static str, preset: &'static str, seed: u64) -> Story {
        let life = Life::new(&config(layout(preset), seed).size(TableSize::Slots(256)), 1);
        let steps = vec![life.now()];
        let changed = life.now();
        Story { name, preset, life, steps, begin: 0, changed, puts: 0, others: 100 }
    }

    fn step<R>(&mut self, act: impl FnOnce(&mut Life) -> R) -> R {
        let result = act(&mut self.life);
        self.steps.push(self.life.now());
        result
    }

    fn wait(&mut self, time: Duration) {
        self.life.clock.advance(time);
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.puts += 1;
        value(self.puts, len)
    }

    /// Puts the key, with another value.
    fn put(&mut self, len: usize) {
        let value = self.value(len);
        self.step(|life| assert!(life.put(KEY, value).is_ok()));
    }

    /// Puts another key, of another home, if there is memory.
    fn other(&mut self, len: usize) -> u64 {
        let inspector = Inspector::new(self.life.index.region(), self.life.index.geometry());
        let windows = |number| inspector.windows(&key(number)).0;
        let slots = |number| -> Vec<SlotIx> {
            let each = |window: &oneread::internals::layout::geometry::Window| {
                let first = window.first.0;
                (first..first + u64::from(window.slots)).map(SlotIx).collect::<Vec<_>>()
            };
            windows(number).iter().flat_map(each).collect()
        };
        let mine = slots(KEY);
        let number = (self.others + 1..)
            .find(|&number| !slots(number).iter().any(|slot| mine.contains(slot)))
            .expect("there are enough");
        self.others = number;
        let value = self.value(len);
        self.step(|life| drop(life.put(number, value)));
        number
    }

    /// From here on, GETs begin, and servers are killed.
    fn begin(&mut self) {
        self.begin = self.steps.len() - 1;
    }

    /// So far, servers are killed.
    fn changed(&mut self) {
        self.changed = self.life.now();
    }

    /// Values of other keys use memory of this length as soon as they may: at once, after 2T, and later.
    fn others(&mut self, len: usize) {
        self.other(len);
        self.wait(2 * grace() + ns(20));
        self.other(len);
        self.wait(ns(200));
        self.other(len);
    }

    /// What the slot of a key names.
    fn named(&self, number: u64) -> Option<Reference> {
        let name = key(number);
        let report = Inspector::new(self.life.index.region(), self.life.index.geometry()).key(&name);
        report.windows.iter().flatten().find(|report| report.key == name)?.reference()
    }

    /// Whether another key's value, or another value of the key, is where this was.
    fn is_used_again(&self, was: Reference) -> bool {
        (100..=self.others).chain([KEY]).any(|number| {
            self.named(number).is_some_and(|now| now.number != was.number && now.offset == was.offset)
        })
    }

    /// This story, whose server was killed at this instant.
    fn killed(&self, at: Instant) -> Story {
        let life = self.life.killed(at);
        let steps = self.steps.iter().copied().filter(|&step| step < at).chain([at, life.now()]).collect();
        Story { life, steps, changed: at, ..*self }
    }
}

/// Runs every schedule of a GET of the value, and of one of a part of it, that begin at any step.
fn every(story: &Story, hardware: Hardware) -> Result<u64, (u64, String)> {
    const SCHEDULES_MAX: u64 = 20_000_000;
    let table: Table = story.life.table();
    let (mut schedules, mut met) = (0, Met::default());
    for range in [WHOLE, PART] {
        for &from in &story.steps[story.begin..] {
            let mut every = Whole::default();
            while every.0.next_schedule() {
                let aim = Aim { leaps: &story.steps, ..Aim::default() };
                let mut reader = client(&table.history, &table.geometry, hardware, &mut every);
                let got = table.get(&mut reader, KEY as usize, range.clone(), from, aim, &mut met);
                drop(reader);
                got.map_err(|wrong| (schedules + every.0.schedules(), wrong))?;
                assert!(every.0.schedules() < SCHEDULES_MAX, "{}: not a small case", story.name);
            }
            schedules += every.0.schedules();
        }
    }
    assert_eq!(met.replaced, 0, "{}: no client looks so often", story.name);
    Ok(schedules)
}

fn right(story: &Story, hardware: Hardware) -> u64 {
    every(story, hardware).unwrap_or_else(|(n, wrong)| {
        let killed = story.changed;
        panic!("{} in {}, until {killed:?}, {hardware:?}, schedule {n}: {wrong}", story.name, story.preset)
    })
}

fn all_right(story: &Story, hardware: Hardware) {
    let begun = std::time::Instant::now();
    let schedules = right(story, hardware);
    println!(
        "{schedules:>10} schedules, {:?}: {} in {}, {:?}, {} passes",
        begun.elapsed(),
        story.name,
        story.preset,
        hardware.witness,
        hardware.passes_max
    );
}

/// A value is replaced by one of another length. Others take its memory.
fn replaced(name: &'static str, preset: &'static str, before: usize, after: usize) -> Story {
    let mut story = Story::new(name, preset, 0);
    story.put(before);
    let was = story.named(KEY).expect("an extent");
    // Its memory is no part of a longer gap.
    story.other(SHORT);
    story.begin();
    story.put(after);
    story.changed();
    story.others(before);
    assert!(story.is_used_again(was), "{name} in {preset}");
    story
}

/// A value is replaced, and so long after that another key's value takes its memory, if it may.
#[cfg(feature = "faults")]
fn replaced_and_used_after(preset: &'static str, after: Duration) -> (Story, bool) {
    let mut story = Story::new("replaced, and its memory used", preset, 0);
    story.put(LONG);
    let was = story.named(KEY).expect("an extent");
    story.other(SHORT);
    story.begin();
    story.put(SHORT);
    story.changed();
    story.wait(after);
    story.other(LONG);
    let is_used = story.is_used_again(was);
    (story, is_used)
}

fn longer(preset: &'static str) -> Story {
    replaced("replaced by a longer value", preset, SHORT, LONG)
}

fn shorter(preset: &'static str) -> Story {
    replaced("replaced by a shorter value", preset, LONG, SHORT)
}

fn inline(preset: &'static str) -> Story {
    replaced("replaced by a value in the slot", preset, SHORT, INLINE)
}

/// A value is replaced, and the next one is where the first was.
fn same_place(preset: &'static str) -> Story {
    let mut story = Story::new("replaced twice", preset, 0);
    story.put(SHORT);
    let was = story.named(KEY).expect("an extent");
    story.other(SHORT);
    story.begin();
    story.put(SHORT);
    story.changed();
    story.wait(3 * grace());
    story.put(SHORT);
    assert!(story.is_used_again(was) && story.named(KEY).is_some_and(|now| now.offset == was.offset));
    story
}

/// A key is removed, and put again where it was.
fn removed(preset: &'static str) -> Story {
    let mut story = Story::new("removed and put again", preset, 0);
    story.put(SHORT);
    let was = story.named(KEY).expect("an extent");
    story.other(SHORT);
    story.begin();
    story.step(|life| assert!(life.remove(KEY)));
    story.changed();
    story.wait(3 * grace());
    story.put(SHORT);
    assert!(story.is_used_again(was));
    story
}

/// The heap moves the value, and its memory is used again. In the step in which it moves, if that is given,
/// another thread puts the key after so many stores.
fn moved_with(preset: &'static str, put: Option<(usize, usize)>) -> Story {
    // A block becomes sparse, while others are full.
    let mut story = Story::new("moved", preset, 2);
    story.put(SHORT);
    let was = story.named(KEY).expect("an extent");
    let fillers: Vec<u64> = (0..41).map(|_| story.other(240)).collect();
    fillers[..36].iter().for_each(|&number| story.step(|life| assert!(life.remove(number))));
    while story.named(KEY) == Some(was) {
        assert!(story.steps.len() < 500, "it does not move");
        story.begin();
        let from = story.life.now();
        let is_due = put.filter(|&(step, _)| step == story.begin);
        if let Some((_, after)) = is_due {
            let index = Arc::clone(&story.life.index);
            story.life.recorder.meanwhile(Instant(from.0 + after), move || {
                index.put(&key(KEY), &value(1_000, SHORT), PutMode::Upsert).unwrap();
            });
        }
        let wait = story.step(|life| life.index.tidy());
        if is_due.is_some() {
            story.life.note(KEY, Some(value(1_000, SHORT)), from);
        } else if wait.is_some() {
            story.wait(3 * grace());
        }
    }
    story.changed();
    // What is left of the block moves, too.
    for _ in 0..100 {
        if story.life.index.tidy().is_some() {
            story.wait(3 * grace());
        }
    }
    while !story.is_used_again(was) {
        story.other(SHORT);
        assert!(story.others < 500, "its memory is not used again");
    }
    story.steps.truncate(story.begin + 2);
    story.steps.push(story.life.now());
    story
}

fn moved(preset: &'static str) -> Story {
    moved_with(preset, None)
}

/// The story of [`moved`] with a put of the key, after each store of the copy.
fn moved_while_put(preset: &'static str) -> Vec<Story> {
    let story = moved(preset);
    let (from, to) = (story.steps[story.begin], story.changed);
    let heap = story.life.index.geometry().heap().offset as usize / 8;
    let table = story.life.table();
    let end = story.life.index.geometry().region_bytes() as usize / 8;
    let copy = table.history.stores(heap..end, from, to);
    assert_eq!(copy.len(), 3 + SHORT / 8);
    copy.iter().map(|store| moved_with(preset, Some((story.begin, store.0.0 - from.0)))).collect()
}

type Tell = fn(&'static str) -> Story;

const STORIES: [Tell; 6] = [longer, shorter, inline, same_place, removed, moved];

#[test]
fn every_schedule_of_extents() {
    for tell in STORIES {
        for preset in presets() {
            let story = tell(preset.name);
            for hardware in [LINES, SLOW, COUNTED] {
                all_right(&story, passes(3, hardware));
            }
            all_right(&story, passes(2, LOADS));
        }
    }
}

/// X6: the put stays, whenever it comes.
#[test]
fn every_put_while_an_extent_moves() {
    for preset in presets() {
        let mut schedules = 0;
        for story in moved_while_put(preset.name) {
            for hardware in [passes(3, LINES), passes(3, COUNTED), passes(2, LOADS)] {
                schedules += right(&story, hardware);
            }
        }
        println!("{schedules:>10} schedules: moved while put in {}", preset.name);
    }
}

/// Each server that was killed at a store of the change, and the next one, which puts the key and others.
fn every_kill(story: &Story) -> impl Iterator<Item = Story> {
    (story.steps[story.begin].0..=story.changed.0).map(|at| {
        let mut next = story.killed(Instant(at));
        next.put(SHORT);
        next.other(LONG);
        next.others(SHORT);
        next
    })
}

#[test]
fn every_schedule_of_extents_after_each_kill() {
    for tell in STORIES {
        for preset in presets() {
            let (mut schedules, mut kills) = (0, 0);
            let story = tell(preset.name);
            for killed in every_kill(&story) {
                for hardware in [LINES, SLOW, COUNTED] {
                    schedules += right(&killed, passes(2, hardware));
                }
                kills += 1;
            }
            println!("{schedules:>10} schedules: {kills} kills, {} in {}", story.name, preset.name);
        }
    }
}

#[cfg(feature = "faults")]
mod broken {
    use super::super::with_grace;
    use super::*;
    use oneread::internals::faults::{Broken, Rule};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// While the rule is broken, some schedule of one of these stories shows it.
    fn must_be_caught(rule: Rule, hardware: Hardware, tell: impl Fn() -> Vec<Story>) {
        // The CRC is a belt, and would show only that the memory is another's.
        let _broken = [rule, Rule::CrcCheck].map(Broken::rule);
        let mut schedules = 0;
        let mut look = || {
            tell().iter().find_map(|story| match every(story, hardware) {
                Ok(n) => {
                    schedules += n;
                    None
                }
                Err((n, wrong)) => {
                    schedules += n;
                    Some(format!("{}: {wrong}", story.name))
                }
            })
        };
        let found = catch_unwind(AssertUnwindSafe(&mut look))
            .unwrap_or_else(|_| Some("the server ends, or has lost an acknowledged change".into()));
        println!("{rule:?}: {:?}, schedule {schedules}: {found:?}", hardware.witness);
        assert!(found.is_some(), "case lost: {rule:?} broken, no counterexample: {hardware:?}");
    }

    /// X3: the wait is cut to T, to 1.5T, and to just below 2T, where a client's clock runs at half the rate.
    #[test]
    fn waits_of_extents_cut_short() {
        with_grace(30_000, || {
            let hardware = passes(1, SLOW);
            for preset in ["bucketized:4", "list"] {
                for percent in [100, 150, 199] {
                    let wait = grace() * percent / 100;
                    let (story, is_used) = replaced_and_used_after(preset, wait + ns(300));
                    right(&story, hardware);
                    assert!(!is_used, "{preset}, {percent} %");
                    let _short = Broken::wait(Rule::ExtentGrace, wait);
                    let _no_crc = Broken::rule(Rule::CrcCheck);
                    let (story, is_used) = replaced_and_used_after(preset, wait + ns(300));
                    assert!(is_used, "{preset}, {percent} %");
                    let found = every(&story, hardware);
                    assert!(found.is_err(), "case lost: cut to {percent} % in {preset}, no counterexample");
                }
            }
        });
    }

    #[test]
    fn every_broken_rule_of_extents() {
        const PRESET: &str = "bucketized:4";
        let told = |tell: Tell| move || vec![tell(PRESET)];
        let killed = |tell: Tell| move || every_kill(&tell(PRESET)).collect();
        for hardware in [passes(2, LINES), passes(2, COUNTED), passes(2, LOADS)] {
            must_be_caught(Rule::ExtentFirst, hardware, told(longer));
            must_be_caught(Rule::ExtentLook, hardware, told(longer));
            must_be_caught(Rule::ExtentNumber, hardware, told(same_place));
            must_be_caught(Rule::NumberFirst, hardware, killed(inline));
            must_be_caught(Rule::MoveNumber, hardware, told(moved));
            must_be_caught(Rule::MoveCheck, hardware, || moved_while_put(PRESET));
        }
        for hardware in [passes(1, LINES), passes(1, SLOW)] {
            must_be_caught(Rule::ExtentGrace, hardware, told(shorter));
        }
        must_be_caught(Rule::ExtentLength, passes(1, SLOW), told(shorter));
        must_be_caught(Rule::TakeoverExtents, passes(1, SLOW), killed(shorter));
        // With the CRC left out, but no rule broken, nothing is wrong.
        let _no_crc = Broken::rule(Rule::CrcCheck);
        let schedules: u64 = STORIES.iter().map(|tell| right(&tell(PRESET), passes(2, LINES))).sum();
        assert!(schedules > 500, "{schedules}");
    }
}
