//! Every possible schedule of a GET of a key whose owner goes, and comes again, beside each other thing that may
//! happen to it: it is replaced, moved, its home is split or merged, its value moves.

use super::cases::{Whole, client, layout};
use super::extents::{Life, Met, Table, WHOLE, config, key, value};
use super::owners::hidden_at;
use super::{COUNTED, LINES, LOADS, SLOW, grace, ns, passes};
use oneread::embedded::OwnerSession;
use oneread::internals::sim::{Adversary, Aim, Hardware, Instant, Random};
use oneread::{PutOptions, TableSize};
use std::time::Duration;

/// The key that GETs look for, and its owner.
const KEY: u64 = 0;
const OWNER: u16 = 7;
const HOUR: Duration = Duration::from_secs(3600);
/// Bytes of values: in the slot, and not.
const INLINE: usize = 8;
const SHORT: usize = 48;
/// 512 KiB of it are tenures.
const GROWING: TableSize = TableSize::Growing { bytes_max: (512 + 256) << 10, segment_slots: Some(64) };

/// What happened, step by step.
struct Story {
    name: &'static str,
    life: Life,
    session: Option<OwnerSession>,
    /// When each step began. GETs begin from this one on.
    steps: Vec<Instant>,
    begin: usize,
    puts: u64,
}

impl Story {
    fn new(name: &'static str, preset: &'static str, size: TableSize) -> Story {
        let life = Life::new(&config(layout(preset), 2).size(size).life(true).owners(true), 1);
        let session = Some(life.index.owner(OWNER, HOUR).unwrap());
        let steps = vec![life.now()];
        Story { name, life, session, steps, begin: 0, puts: 0 }
    }

    fn step<R>(&mut self, act: impl FnOnce(&mut Life) -> R) -> R {
        let result = act(&mut self.life);
        self.steps.push(self.life.now());
        result
    }

    /// Something happens to another key: what was before has ended when a GET begins behind it.
    fn another(&mut self) {
        self.step(|life| assert!(life.put(100, value(100, INLINE)).is_ok()));
    }

    fn begin(&mut self) {
        self.another();
        self.begin = self.steps.len() - 1;
    }

    fn wait(&mut self) {
        self.life.clock.advance(2 * grace() + ns(600));
    }

    /// The owner puts the key.
    fn put_of(&mut self, len: usize) {
        self.puts += 1;
        let (bytes, session) = (value(self.puts, len), self.session.as_ref().expect("it is here"));
        let from = self.life.now();
        self.life.index.put_of(session, &key(KEY), &bytes, PutOptions::new()).unwrap();
        self.life.note(KEY, Some(bytes), from);
        self.steps.push(self.life.now());
    }

    /// Nobody in particular puts it.
    fn put(&mut self, len: usize) {
        self.puts += 1;
        let bytes = value(self.puts, len);
        self.step(|life| assert!(life.put(KEY, bytes).is_ok()));
    }

    /// The owner goes, and with it the entry, if it has it.
    fn goes(&mut self, has: bool) {
        self.session = None;
        self.step(|life| {
            assert!(life.index.remove_owner(OWNER).unwrap());
            if has {
                let table = life.table();
                let at = *hidden_at(&table.history, &table.geometry, OWNER).last().expect("it went");
                life.note_at(KEY, at);
            }
        });
        self.another();
    }

    fn tidy(&mut self) {
        self.step(|life| life.index.tidy());
    }

    /// Its entries are removed, and its bit is cleared.
    fn is_cleared(&mut self) {
        while self.life.index.owner(OWNER, HOUR).is_err() {
            self.tidy();
            self.wait();
        }
    }

    fn comes(&mut self) {
        self.is_cleared();
        self.session = Some(self.life.index.owner(OWNER, HOUR).unwrap());
        self.steps.push(self.life.now());
    }
}

/// An owner goes, and its number is given again.
fn goes(preset: &'static str, len: usize) -> Story {
    let mut story = Story::new("goes", preset, TableSize::Slots(64));
    story.put_of(len);
    story.begin();
    story.goes(true);
    story.is_cleared();
    story
}

/// Somebody replaces the entry, and then its owner goes.
fn replaced(preset: &'static str, len: usize) -> Story {
    let mut story = Story::new("replaced", preset, TableSize::Slots(64));
    story.put_of(len);
    story.begin();
    story.put(INLINE);
    story.goes(false);
    story
}

/// The owner goes, and somebody puts the key.
fn in_its_place(preset: &'static str, len: usize) -> Story {
    let mut story = Story::new("in its place", preset, TableSize::Slots(64));
    story.put_of(len);
    story.begin();
    story.goes(true);
    story.put(INLINE);
    story.tidy();
    story
}

/// The owner goes, and puts the key again.
fn comes_again(preset: &'static str, len: usize) -> Story {
    let mut story = Story::new("comes again", preset, TableSize::Slots(64));
    story.put_of(len);
    story.begin();
    story.goes(true);
    story.comes();
    story.put_of(len);
    story
}

/// The home of the entry is split, or merged, whose owner goes meanwhile.
fn parted(preset: &'static str, len: usize, merged: bool) -> Story {
    let mut story = Story::new(if merged { "merged" } else { "split" }, preset, GROWING);
    story.put_of(len);
    if merged {
        story.life.index.split(&key(KEY));
        (0..1_000).for_each(|_| _ = story.life.index.tidy());
        story.wait();
        story.life.index.merge(&key(KEY));
    }
    story.begin();
    if !merged {
        story.step(|life| life.index.split(&key(KEY)));
    }
    story.goes(true);
    for _ in 0..3 {
        story.tidy();
    }
    story
}

fn look(
    story: &Story,
    table: &Table,
    (hardware, from): (Hardware, Instant),
    choices: &mut impl Adversary,
    met: &mut Met,
) -> Result<(), String> {
    let aim = Aim { leaps: &story.steps, ..Aim::default() };
    let mut reader = client(&table.history, &table.geometry, hardware, choices);
    table.get(&mut reader, KEY as usize, WHOLE, from, aim, met)
}

/// Chooses the first of what there is this number of times, and then the last: samples that are as far apart as can be.
struct Apart(usize);

impl Adversary for Apart {
    fn pick(&mut self, n: usize) -> usize {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                0
            }
            None => n - 1,
        }
    }
}

/// Looks at the key from every step on: in every schedule, if there are no more than a thousand, else in as many
/// by chance, and in those that are far apart at one place. Returns how many those were, and during how many of them
/// the owner went.
fn looks(story: &Story, hardware: Hardware) -> Result<(u64, u64), (u64, String)> {
    const SCHEDULES_MAX: u64 = 1_000;
    let table: Table = story.life.table();
    let (mut schedules, mut met) = (0, Met::default());
    for &from in &story.steps[story.begin..] {
        let mut every = Whole::default();
        let before = schedules;
        while every.0.next_schedule() && every.0.schedules() <= SCHEDULES_MAX {
            schedules += 1;
            look(story, &table, (hardware, from), &mut every, &mut met)
                .map_err(|wrong| (schedules, wrong))?;
        }
        if schedules == before + SCHEDULES_MAX {
            for seed in 0..SCHEDULES_MAX {
                schedules += 1;
                look(story, &table, (hardware, from), &mut Random::new(seed), &mut met)
                    .map_err(|wrong| (schedules, wrong))?;
            }
            for place in 0..100 {
                schedules += 1;
                look(story, &table, (hardware, from), &mut Apart(place), &mut met)
                    .map_err(|wrong| (schedules, wrong))?;
            }
        }
    }
    Ok((schedules, met.hidden))
}

fn stories(preset: &'static str) -> Vec<Story> {
    vec![
        goes(preset, INLINE),
        goes(preset, SHORT),
        replaced(preset, INLINE),
        replaced(preset, SHORT),
        in_its_place(preset, INLINE),
        comes_again(preset, INLINE),
        parted(preset, INLINE, false),
        parted(preset, INLINE, true),
    ]
}

#[test]
fn every_schedule_of_owners() {
    for preset in ["cluster", "list"] {
        for story in stories(preset) {
            for hardware in [LINES, SLOW, COUNTED, LOADS] {
                let (schedules, hidden) = looks(&story, passes(2, hardware)).unwrap_or_else(|(n, wrong)| {
                    panic!("{} in {preset}, {hardware:?}, schedule {n}: {wrong}", story.name)
                });
                println!("{schedules:>6}, {hidden} with its owner: {} in {preset}, {hardware:?}", story.name);
                assert!(schedules > 20, "{} in {preset}", story.name);
            }
        }
    }
}

#[cfg(feature = "faults")]
#[test]
fn every_broken_rule_of_owners() {
    use oneread::internals::faults::{Broken, Rule};
    type Tell = fn(&'static str, usize) -> Story;
    let cases: [(Rule, Tell, Hardware); 10] = [
        (Rule::OwnerMask, goes, LINES),
        (Rule::OwnerMask, goes, LOADS),
        (Rule::OwnerProof, goes, LINES),
        (Rule::OwnerProof, goes, COUNTED),
        (Rule::OwnerProof, goes, LOADS),
        (Rule::OwnerCount, goes, COUNTED),
        (Rule::OwnerCount, goes, LOADS),
        (Rule::OwnerAgain, replaced, LINES),
        (Rule::OwnerAgain, replaced, COUNTED),
        (Rule::OwnerAgain, replaced, LOADS),
    ];
    let mut lost = Vec::new();
    for (rule, tell, hardware) in cases {
        let _broken = Broken::rule(rule);
        match looks(&tell("cluster", INLINE), passes(2, hardware)) {
            Err((n, wrong)) => println!("{rule:?}, {:?}: schedule {n}: {wrong}", hardware.witness),
            Ok(_) => lost.push((rule, hardware.witness)),
        }
    }
    assert!(lost.is_empty(), "cases lost: {lost:?}");
}
