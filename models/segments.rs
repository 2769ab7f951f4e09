//! A random model of growth by segments under one-sided readers. The rules are checked here before
//! the code has them.
//!
//! One key, which is always present or never, with one home; three slots a segment, up to three
//! splits above one another, four pieces of memory that are used again and again. Every cell is
//! sampled at an arbitrary instant of the READ that fetches it. A reader *by the clock* is over a
//! network: it holds a directory entry as stale as it likes, and loses its processor between any two
//! READs. A reader *by the counter* is on shm, and has no bound on time. A server may stop for ever
//! at any store.
//!
//! The rules show nothing wrong. Each variant breaks one rule and is found.
//!
//! Memory is used again at once, whatever its traces: its incarnation protects readers by the clock,
//! and the entry those by the counter.
//!
//! Kept, though no schedule here shows a difference: copies come before the depth and before the mark.

mod history;

use history::History;
use oneread::internals::layout::hash::mix;
use std::collections::BTreeMap;

/// The grace time: a READ and what rests on it fit into it, or it counts for nothing.
const T: i64 = 40;
const SLOTS: usize = 3;
const DEPTH: usize = 3;
const MEMORY: usize = 4;
const NEVER: i64 = i64::MAX;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Broken {
    Nothing,
    /// An overwritten original leaves no ghost.
    Ghost,
    /// A ghost goes at once.
    GhostGoes,
    /// The counter of begun moves stands still.
    Moves,
    /// An entry that names a pair is not loaded again after a pass by the counter.
    EntryOnce,
    /// A home's depth is raised after its originals are overwritten.
    DepthAfterOverwrite,
    /// The directory names the child before its homes are split.
    DirectoryFirst,
    /// A home is marked as merged after its originals are overwritten.
    MarkAfterOverwrite,
    /// The depth of a merged home goes back at once.
    DepthBack,
    /// Memory that is used again keeps its incarnation.
    Incarnation,
    /// A pass on a segment may begin long after the entry that names it was read.
    NoBound,
    /// A pending child is looked at without asking for the entry again.
    ChildAtOnce,
    /// A merge is given up, and the depth that it had lowered stays low.
    DepthStaysLow,
    /// A merge is given up, and the mark of a home goes as soon as its keys are back.
    UnmarkAtOnce,
    /// Ghosts of a merged home's window do not count in that of its parent.
    OneWindow,
    /// A pending child is looked at, though the home has been split once more than it knows.
    OldChild,
}

const ALL: [Broken; 15] = [
    Broken::Ghost,
    Broken::GhostGoes,
    Broken::Moves,
    Broken::EntryOnce,
    Broken::DepthAfterOverwrite,
    Broken::DirectoryFirst,
    Broken::MarkAfterOverwrite,
    Broken::DepthBack,
    Broken::Incarnation,
    Broken::NoBound,
    Broken::ChildAtOnce,
    Broken::DepthStaysLow,
    Broken::UnmarkAtOnce,
    Broken::OneWindow,
    Broken::OldChild,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn between(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() % (to - from + 1) as u64) as i64
    }

    fn one<X: Copy>(&mut self, of: &[X]) -> X {
        of[self.below(of.len())]
    }

    fn in_ten(&mut self, n: usize) -> bool {
        self.below(10) < n
    }
}

/// Bound to an incarnation of the segment, as its checksum binds it.
#[derive(Clone, Copy, PartialEq)]
struct Header {
    incarnation: u64,
    depth: usize,
    merged: bool,
}

/// As [`Header`].
#[derive(Clone, Copy, PartialEq)]
struct Slot {
    incarnation: u64,
    key: bool,
    /// 0 without a ghost.
    ghost: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Pending {
    Nothing,
    Child(usize, u64),
    Parent(usize, u64),
}

#[derive(Clone, Copy, PartialEq)]
struct Entry {
    memory: usize,
    incarnation: u64,
    depth: usize,
    pending: Pending,
}

/// A split or a merge under way.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Split {
        child: usize,
    },
    /// The key's segment goes into its parent.
    Merge {
        parent: usize,
    },
    /// The key is in the parent already; its child goes.
    ChildGoes {
        child: usize,
    },
    /// A merge is given up, and the key is back in its segment, whose mark is still there.
    Back,
}

struct Half {
    step: Step,
    /// The key is in the other segment.
    moved: bool,
    home_done: bool,
}

/// A parent above the key's segment: below it, the key went on in the child, or stayed.
#[derive(Clone, Copy)]
enum Above {
    Went { parent: usize, depth: usize },
    Stayed { child: usize, depth: usize },
}

struct World {
    random: Random,
    broken: Broken,
    there: bool,
    bits: [bool; DEPTH],
    headers: Vec<History<Header>>,
    slots: Vec<[History<Slot>; SLOTS]>,
    entry: History<Entry>,
    moves: History<u64>,
    time: i64,
    /// When the key was there: readers begin no earlier.
    since: i64,
    stamps: u64,
    incarnations: u64,
    incarnation: [u64; MEMORY],
    /// The key's published segment, its depth, and the key's slot.
    segment: usize,
    depth: usize,
    slot: usize,
    above: Vec<Above>,
    /// Ghosts: memory, slot, since when.
    ghosts: Vec<(usize, usize, i64)>,
    /// Depths that are to be lowered: memory, to what, since when.
    lingering: Vec<(usize, usize, i64)>,
    /// Marks that are to be taken away: memory, since when.
    marks: Vec<(usize, i64)>,
    half: Option<Half>,
    free: Vec<usize>,
    story: usize,
}

impl World {
    fn new(mut random: Random, broken: Broken, there: bool) -> World {
        let bits = std::array::from_fn(|_| random.in_ten(5));
        let header = Header { incarnation: 0, depth: 0, merged: false };
        let slot = Slot { incarnation: 0, key: false, ghost: 0 };
        let entry = Entry { memory: 0, incarnation: 0, depth: 0, pending: Pending::Nothing };
        let mut world = World {
            random,
            broken,
            there,
            bits,
            headers: (0..MEMORY).map(|_| History::new(header)).collect(),
            slots: (0..MEMORY).map(|_| std::array::from_fn(|_| History::new(slot))).collect(),
            entry: History::new(entry),
            moves: History::new(0),
            time: 0,
            since: 0,
            stamps: 0,
            incarnations: 0,
            incarnation: [0; MEMORY],
            segment: 0,
            depth: 0,
            slot: 0,
            above: Vec::new(),
            ghosts: Vec::new(),
            lingering: Vec::new(),
            marks: Vec::new(),
            half: None,
            free: (1..MEMORY).collect(),
            story: 0,
        };
        world.set_slot(0, 0, there, 0);
        world.since = world.time;
        world
    }

    /// Some time passes before each store.
    fn tick(&mut self) -> i64 {
        self.time += self.random.one(&[1, 1, 1, 2, 5, 15]);
        self.time
    }

    fn set_slot(&mut self, memory: usize, slot: usize, key: bool, ghost: u64) {
        let at = self.tick();
        self.slots[memory][slot].0.push((at, Slot { incarnation: self.incarnation[memory], key, ghost }));
    }

    fn set_header(&mut self, memory: usize, depth: usize, merged: bool) {
        let at = self.tick();
        self.headers[memory].0.push((at, Header { incarnation: self.incarnation[memory], depth, merged }));
    }

    fn set_entry(&mut self, memory: usize, depth: usize, pending: Pending) {
        let at = self.tick();
        self.entry.0.push((at, Entry { memory, incarnation: self.incarnation[memory], depth, pending }));
    }

    fn a_free_slot(&mut self, memory: usize) -> Option<usize> {
        let free: Vec<usize> = (0..SLOTS).filter(|&i| !self.slots[memory][i].now().key).collect();
        (!free.is_empty()).then(|| self.random.one(&free))
    }

    fn has_ghost(&self, memory: usize, slot: usize) -> bool {
        self.slots[memory][slot].now().ghost != 0
    }

    fn copy_to(&mut self, memory: usize, slot: usize) {
        let ghost = self.slots[memory][slot].now().ghost;
        self.set_slot(memory, slot, self.there, ghost);
    }

    fn overwrite(&mut self, memory: usize, slot: usize) {
        if self.broken != Broken::Moves {
            let at = self.tick();
            self.moves.0.push((at, self.moves.now() + 1));
        }
        self.stamps += 1;
        let leaves = self.there && self.broken != Broken::Ghost;
        self.set_slot(memory, slot, false, if leaves { self.stamps } else { 0 });
        self.ghosts.push((memory, slot, self.time));
    }

    /// Removes traces that are old enough.
    fn tidy(&mut self) {
        let wait = if self.broken == Broken::GhostGoes { 0 } else { 2 * T };
        for ghost in self.ghosts.clone() {
            let (memory, slot, since) = ghost;
            if self.time >= since + wait {
                let key = self.slots[memory][slot].now().key;
                self.set_slot(memory, slot, key, 0);
                self.ghosts.retain(|&other| other != ghost);
            }
        }
        let wait = if self.broken == Broken::DepthBack { 0 } else { 2 * T };
        for linger in self.lingering.clone() {
            let (memory, depth, since) = linger;
            if self.time >= since + wait {
                let merged = self.headers[memory].now().merged;
                self.set_header(memory, depth, merged);
                self.lingering.retain(|&other| other != linger);
            }
        }
        let wait = if self.broken == Broken::UnmarkAtOnce { 0 } else { 2 * T };
        for mark in self.marks.clone() {
            let (memory, since) = mark;
            if self.time >= since + wait {
                let depth = self.headers[memory].now().depth;
                self.set_header(memory, depth, false);
                self.marks.retain(|&other| other != mark);
            }
        }
    }

    /// A move within the segment that holds the key.
    fn move_key(&mut self) {
        let memory = match &self.half {
            Some(Half {
                step: Step::Split { child: other } | Step::Merge { parent: other },
                moved: true,
                ..
            }) => *other,
            _ => self.segment,
        };
        if self.has_ghost(memory, self.slot) {
            return;
        }
        let Some(to) = self.a_free_slot(memory) else { return };
        self.copy_to(memory, to);
        self.overwrite(memory, self.slot);
        self.slot = to;
    }

    fn lingers(&self) -> bool {
        self.lingering.iter().any(|linger| linger.0 == self.segment)
    }

    fn split_begin(&mut self) {
        if self.half.is_some() || self.depth == DEPTH || self.free.is_empty() || self.lingers() {
            return;
        }
        let child = self.free.swap_remove(self.random.below(self.free.len()));
        self.incarnations += 1;
        if self.broken != Broken::Incarnation {
            self.incarnation[child] = self.incarnations;
        }
        for slot in 0..SLOTS {
            self.set_slot(child, slot, false, 0);
        }
        self.set_header(child, self.depth + 1, false);
        self.set_entry(self.segment, self.depth, Pending::Child(child, self.incarnation[child]));
        self.half = Some(Half { step: Step::Split { child }, moved: false, home_done: false });
    }

    fn raise_depth(&mut self) {
        let merged = self.headers[self.segment].now().merged;
        self.set_header(self.segment, self.depth + 1, merged);
    }

    fn split_home(&mut self) {
        let Some(Half { step: Step::Split { child }, home_done: false, .. }) = self.half else { return };
        let mut moved = false;
        if self.bits[self.depth] {
            if self.has_ghost(self.segment, self.slot) && self.there {
                return;
            }
            let Some(to) = self.a_free_slot(child) else { return };
            self.copy_to(child, to);
            if self.broken != Broken::DepthAfterOverwrite {
                self.raise_depth();
            }
            self.overwrite(self.segment, self.slot);
            if self.broken == Broken::DepthAfterOverwrite {
                self.time += self.random.one(&[0, 3 * T]);
                self.raise_depth();
            }
            self.slot = to;
            moved = true;
        } else {
            self.raise_depth();
        }
        self.half = Some(Half { step: Step::Split { child }, moved, home_done: true });
    }

    fn split_end(&mut self) {
        let Some(Half { step: Step::Split { child }, home_done, .. }) = self.half else { return };
        if !home_done {
            if self.broken != Broken::DirectoryFirst || !self.bits[self.depth] {
                return;
            }
            self.set_entry(child, self.depth + 1, Pending::Nothing);
            self.time += self.random.one(&[0, 30]);
            self.split_home();
            if !self.half.as_ref().is_some_and(|half| half.home_done) {
                self.set_entry(self.segment, self.depth, Pending::Child(child, self.incarnation[child]));
                return;
            }
        }
        self.above.push(match self.bits[self.depth] {
            true => Above::Went { parent: self.segment, depth: self.depth },
            false => Above::Stayed { child, depth: self.depth },
        });
        if self.bits[self.depth] {
            self.segment = child;
        }
        self.depth += 1;
        self.half = None;
        self.set_entry(self.segment, self.depth, Pending::Nothing);
    }

    /// Takes the last split back.
    fn merge_begin(&mut self) {
        if self.half.is_some() || self.lingers() {
            return;
        }
        let Some(&above) = self.above.last() else { return };
        let step = match above {
            Above::Stayed { child, .. } => {
                self.set_entry(self.segment, self.depth, Pending::Nothing);
                Step::ChildGoes { child }
            }
            Above::Went { parent, .. } => {
                self.set_entry(self.segment, self.depth, Pending::Parent(parent, self.incarnation[parent]));
                Step::Merge { parent }
            }
        };
        self.half = Some(Half { step, moved: false, home_done: false });
    }

    fn merge_home(&mut self) {
        let Some(Half { step, home_done: false, .. }) = self.half else { return };
        match step {
            Step::Split { .. } | Step::Back => {}
            Step::ChildGoes { child } => {
                self.lingering.push((self.segment, self.depth - 1, self.time));
                self.half = Some(Half { step: Step::ChildGoes { child }, moved: false, home_done: true });
            }
            Step::Merge { parent } => {
                if self.has_ghost(self.segment, self.slot) && self.there {
                    return;
                }
                let Some(to) = self.a_free_slot(parent) else { return };
                let depth = self.headers[self.segment].now().depth;
                self.copy_to(parent, to);
                if self.broken != Broken::MarkAfterOverwrite {
                    self.set_header(self.segment, depth, true);
                }
                self.overwrite(self.segment, self.slot);
                if self.broken == Broken::MarkAfterOverwrite {
                    self.time += self.random.one(&[0, 3 * T]);
                    self.set_header(self.segment, depth, true);
                }
                self.lingering.push((parent, self.depth - 1, self.time));
                self.slot = to;
                self.half = Some(Half { step: Step::Merge { parent }, moved: true, home_done: true });
            }
        }
    }

    fn merge_end(&mut self) {
        let Some(Half { step, home_done: true, .. }) = self.half else { return };
        let gone = match step {
            Step::Split { .. } => return,
            Step::Back => return self.merge_given_up(),
            Step::ChildGoes { child } => child,
            Step::Merge { parent } => std::mem::replace(&mut self.segment, parent),
        };
        let (Some(Above::Went { depth, .. }) | Some(Above::Stayed { depth, .. })) = self.above.pop() else {
            return;
        };
        self.depth = depth;
        self.half = None;
        self.set_entry(self.segment, self.depth, Pending::Nothing);
        // Its memory is free at once. Its traces go with it.
        self.ghosts.retain(|ghost| ghost.0 != gone);
        self.lingering.retain(|linger| linger.0 != gone);
        self.marks.retain(|mark| mark.0 != gone);
        self.free.push(gone);
    }

    /// Begins to give a merge up: what went into the parent goes back, as it came.
    fn merge_back(&mut self) {
        let Some(Half { step, home_done, .. }) = self.half else { return };
        match step {
            Step::Split { .. } | Step::Back => return,
            Step::Merge { parent } if home_done => {
                if self.has_ghost(parent, self.slot) && self.there {
                    return;
                }
                let Some(to) = self.a_free_slot(self.segment) else { return };
                self.copy_to(self.segment, to);
                self.depth_stays(parent);
                self.overwrite(parent, self.slot);
                self.slot = to;
                self.marks.push((self.segment, self.time));
            }
            Step::ChildGoes { .. } if home_done => self.depth_stays(self.segment),
            _ => {}
        }
        self.half = Some(Half { step: Step::Back, moved: false, home_done: true });
    }

    /// Ends that, when no mark is left. A READ that saw a slot before its key came back sees the
    /// mark, or takes too long.
    fn merge_given_up(&mut self) {
        if self.marks.is_empty() {
            self.half = None;
            self.set_entry(self.segment, self.depth, Pending::Nothing);
        }
    }

    /// The depth of a parent's home is what it was before the merge, whether it was lowered or not.
    fn depth_stays(&mut self, memory: usize) {
        if self.broken == Broken::DepthStaysLow {
            return;
        }
        self.lingering.retain(|linger| linger.0 != memory);
        let header = self.headers[memory].now();
        if header.depth < self.depth {
            self.set_header(memory, self.depth, header.merged);
        }
    }

    /// Some changes: splits and merges in order, mostly, or whatever comes.
    fn run(&mut self, steps: i64) {
        const STORY: [fn(&mut World); 6] = [
            World::split_begin,
            World::split_home,
            World::split_end,
            World::merge_begin,
            World::merge_home,
            World::merge_end,
        ];
        let told = self.random.in_ten(7);
        for _ in 0..steps {
            if self.random.in_ten(2) {
                self.time += self.random.one(&[1, T / 2, T, 2 * T, 5 * T]);
            }
            if told && self.story % 6 == 5 && self.random.in_ten(1) {
                self.merge_back();
            }
            if told && self.random.in_ten(8) {
                let part = self.story % 6;
                STORY[part](self);
                let done = match part {
                    0 | 3 => self.half.is_some(),
                    1 | 4 => self.half.as_ref().is_some_and(|half| half.home_done),
                    _ => self.half.is_none(),
                };
                if done {
                    // A merge that was given up may be tried again, and a child be split at once.
                    let again = self.random.in_ten(4);
                    self.story = match part {
                        5 if again && !self.above.is_empty() => 3,
                        2 if again && self.depth < DEPTH => 0,
                        _ => self.story + 1,
                    };
                } else if part == 0 && self.half.is_none() && self.free.is_empty() {
                    self.time += 2 * T;
                }
            } else {
                match self.random.below(if told { 2 } else { 9 }) {
                    0 | 1 => self.move_key(),
                    2 => self.merge_back(),
                    other => STORY[other - 3](self),
                }
            }
            self.tidy();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Found,
    Absent,
    Endless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Clock,
    Counter,
}

/// What a reader by the clock knows before a pass.
struct Pass {
    /// When the pass begins.
    time: i64,
    entry: Entry,
    /// When the entry was asked for. The pass rests on it.
    asked: Option<i64>,
    /// The depth of a parent that does not count: it is there for the child that is left.
    lingers: Option<usize>,
    /// A new ghost was in the child's window. A merged home and its parent's are looked at in one
    /// pass, whose ghosts count together: after a merge that was given up, keys move in the child.
    doubt: bool,
}

impl Pass {
    /// On to a segment that is pending in the entry.
    fn go(&mut self, memory: usize, incarnation: u64, depth: usize) {
        self.entry = Entry { memory, incarnation, depth, pending: Pending::Nothing };
    }
}

/// What one READ of the home's window lands.
struct Window {
    header: Header,
    slots: [Slot; SLOTS],
}

struct Reader<'a> {
    world: &'a World,
    random: &'a mut Random,
    /// When the server stopped.
    end: i64,
}

impl Reader<'_> {
    /// A cell, sampled between two instants.
    fn sample<X: Copy>(&mut self, cell: &History<X>, from: i64, to: i64) -> X {
        cell.at(self.random.between(from, to).min(self.end))
    }

    /// An instant near a store, mostly.
    fn begin(&mut self) -> i64 {
        const NEAR: [i64; 14] = [-38, -30, -20, -15, -10, -8, -5, -3, -2, -1, 0, 1, 3, 8];
        if self.random.in_ten(2) {
            return self.random.between(self.world.since, self.world.time);
        }
        let near = |random: &mut Random, times: &mut dyn ExactSizeIterator<Item = i64>| {
            let n = random.below(times.len());
            times.nth(n).unwrap_or(0) + random.one(&NEAR)
        };
        let memory = self.random.below(MEMORY);
        let store = match self.random.below(5) {
            0 => near(self.random, &mut self.world.entry.0.iter().map(|store| store.0)),
            1 => near(self.random, &mut self.world.headers[memory].0.iter().map(|store| store.0)),
            _ => {
                let slot = self.random.below(SLOTS);
                near(self.random, &mut self.world.slots[memory][slot].0.iter().map(|store| store.0))
            }
        };
        store.max(self.world.since)
    }

    fn look(&mut self, memory: usize, from: i64, to: i64) -> Window {
        let world = self.world;
        let header = self.sample(&world.headers[memory], from, to);
        Window { header, slots: std::array::from_fn(|i| self.sample(&world.slots[memory][i], from, to)) }
    }

    /// Whether the key stays in a segment known by depth `from` whose home has been split to `to`.
    fn stays(&self, from: usize, to: usize) -> bool {
        self.world.bits.get(from..to).is_none_or(|bits| bits.iter().all(|&bit| !bit))
    }

    /// The client loses its processor, or not.
    fn pause(&mut self) -> i64 {
        self.random.one(&[0, 0, 1, 4, 4, 3 * T, 7 * T])
    }

    /// READs the entry. The next pass is on the segment that it names, whatever was seen.
    fn ask(&mut self, pass: &mut Pass, now: i64) {
        let world = self.world;
        pass.entry = self.sample(&world.entry, now, now + 3);
        pass.asked = Some(now);
        (pass.lingers, pass.doubt) = (None, false);
        pass.time = now + 3 + self.pause();
    }

    fn by_clock(&mut self) -> Verdict {
        let broken = self.world.broken;
        let time = self.begin();
        // As stale as it likes.
        let stale = self.random.between(-1, time.min(self.end));
        let mut pass =
            Pass { time, entry: self.world.entry.at(stale), asked: None, lingers: None, doubt: false };
        let mut seen: Vec<(usize, u64, usize, u64)> = Vec::new();
        for _ in 0..400 {
            let landed = pass.time + self.random.one(&[3, 8, 20, 30, T - 1, T + 5]);
            let window = self.look(pass.entry.memory, pass.time, landed);
            let now = landed + self.pause();
            let Entry { memory, incarnation, depth, pending } = pass.entry;
            if window.slots.iter().any(|slot| slot.key && slot.incarnation == incarnation) {
                return Verdict::Found;
            }
            let ghosts = window.slots.iter().enumerate().filter(|(_, slot)| slot.ghost != 0);
            let ghosts: Vec<_> = ghosts.map(|(i, slot)| (memory, incarnation, i, slot.ghost)).collect();
            let has_new_ghost = ghosts.iter().any(|ghost| !seen.contains(ghost));
            seen.extend(ghosts);
            let rests_on = pass.asked.filter(|_| broken != Broken::NoBound);
            let in_time = landed - rests_on.unwrap_or(pass.time) < T;
            let is_bound = window.header.incarnation == incarnation
                && window.slots.iter().all(|slot| slot.incarnation == incarnation);
            if !is_bound {
                self.ask(&mut pass, now);
                continue;
            }
            let Header { depth: home, merged, .. } = window.header;
            if merged || pass.lingers != Some(home) && !self.stays(depth, home) {
                let is_fresh = pass.asked.is_some();
                // No trace of a merge is that deep: the entry is old, and so is what is pending.
                let is_old = !merged && home > depth + 1 && broken != Broken::OldChild;
                if !is_fresh || !in_time || is_old {
                    self.ask(&mut pass, now);
                    if broken == Broken::ChildAtOnce
                        && !merged
                        && !is_fresh
                        && let Pending::Child(memory, incarnation) = pass.entry.pending
                    {
                        pass.go(memory, incarnation, pass.entry.depth + 1);
                        pass.asked = None;
                    }
                    continue;
                }
                match (merged, pending) {
                    // The home has gone to the parent, whose depth for this child does not count.
                    (true, Pending::Parent(memory, incarnation)) => {
                        pass.lingers = Some(depth);
                        pass.doubt = has_new_ghost && broken != Broken::OneWindow;
                        pass.go(memory, incarnation, depth - 1);
                        pass.time = now;
                        continue;
                    }
                    (true, _) => {
                        self.ask(&mut pass, now);
                        continue;
                    }
                    (false, Pending::Child(memory, incarnation)) => {
                        pass.go(memory, incarnation, depth + 1);
                        (pass.asked, pass.time) = (None, now);
                        continue;
                    }
                    // The entry knows of no child: the depth is a trace of a merge.
                    (false, _) => {}
                }
            }
            if in_time && !has_new_ghost && !pass.doubt {
                return Verdict::Absent;
            }
            match pass.asked {
                Some(_) => self.ask(&mut pass, now),
                None => pass.time = now,
            }
        }
        Verdict::Endless
    }

    /// The entry is loaded before each pass, and if it names a pair after it, too; nothing rests on time. A miss
    /// holds if no move began and the entry is the same. (A version of the directory that goes up before each
    /// change does not do: who loads it then has the new version and the old entry.)
    fn by_counter(&mut self) -> Verdict {
        let (world, broken) = (self.world, self.world.broken);
        let mut time = self.begin();
        for _ in 0..300 {
            let moves = self.sample(&world.moves, time, time);
            let entry = self.sample(&world.entry, time, time + 3);
            time += 3;
            let (mut memory, mut visited) = (entry.memory, Vec::new());
            loop {
                let landed = time + self.random.one(&[0, 1, 5, 20, T, 6 * T]);
                let window = self.look(memory, time, landed);
                time = landed;
                visited.push(memory);
                // Also in memory that is not the key's segment any more: other uses have other keys.
                if window.slots.iter().any(|slot| slot.key) {
                    return Verdict::Found;
                }
                match entry.pending {
                    Pending::Child(other, _) | Pending::Parent(other, _)
                        if !visited.contains(&other)
                            && (window.header.merged || !self.stays(entry.depth, window.header.depth)) =>
                    {
                        memory = other;
                    }
                    _ => break,
                }
            }
            time += self.random.one(&[0, 1, 5, 20, T, 6 * T]);
            let is_same = entry.pending == Pending::Nothing
                || self.sample(&world.entry, time, time) == entry
                || broken == Broken::EntryOnce;
            if self.sample(&world.moves, time, time) == moves && is_same {
                return Verdict::Absent;
            }
        }
        Verdict::Endless
    }
}

/// Wrong answers, counted.
type Wrong = BTreeMap<(By, Verdict), u64>;

/// One world, some readers: what they got wrong.
fn wrong(broken: Broken, seed: u64, there: bool) -> Wrong {
    let mut world = World::new(Random(mix(seed * 2 + u64::from(there))), broken, there);
    let steps = world.random.between(3, 70);
    world.run(steps);
    let mut random = Random(world.random.next());
    let mut found = BTreeMap::new();
    for _ in 0..8 {
        let end = if random.in_ten(5) { NEVER } else { random.between(world.since, world.time) };
        for by in [By::Clock, By::Counter] {
            let mut reader = Reader { world: &world, random: &mut random, end };
            let verdict = match by {
                By::Clock => reader.by_clock(),
                By::Counter => reader.by_counter(),
            };
            if verdict != if there { Verdict::Found } else { Verdict::Absent } {
                *found.entry((by, verdict)).or_default() += 1;
            }
        }
    }
    found
}

/// The first seed from `first` on that shows the broken rule.
fn first_wrong(broken: Broken, seeds: std::ops::Range<u64>) -> Option<(u64, bool, Wrong)> {
    seeds.into_iter().find_map(|seed| {
        [true, false].into_iter().find_map(|there| {
            let found = wrong(broken, seed, there);
            (!found.is_empty()).then_some((seed, there, found))
        })
    })
}

#[test]
fn nothing_is_wrong() {
    let seeds = if std::env::var_os("ONEREAD_LONG").is_some() { 100_000_000 } else { 300_000 };
    assert_eq!(first_wrong(Broken::Nothing, 0..seeds), None);
}

#[test]
fn every_broken_rule_is_found() {
    for broken in ALL {
        let found = first_wrong(broken, 0..20_000_000);
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?}");
    }
}
