//! What an index leaves behind besides keys: ghosts, filters, links, blocks, counters. Compares
//! them with separate accounts, and checks when each may go.

use super::growth::handover_end;
use super::homes::{NotHandedOver, REAP_MAX, Trace};
use super::recovered::{RecoverError, Recovered};
use super::refusals::NoPath;
use super::seams::Nobody;
use super::segment::{Put, ROUNDS_MAX, Segment};
use super::slots::{DisplacedAt, Note, SlotCopy, StripeSet};
use super::whole::OneSize as Index;
use crate::base::clock::Clock;
use crate::base::observe::{self, Scheduler};
use crate::config::{Config, TableSize};
use crate::faults::Rule;
use crate::get::{Get, Landed, Look, Proof, Retry, Step};
use crate::index::start::Start;
use crate::layout::chain::{self, Block};
use crate::layout::control::{BLOCKS_WORD, MOVE_COUNTERS, Phase, STATE_WORD, State, move_counter_word};
use crate::layout::geometry::{Family, Geometry, SlotIx};
use crate::layout::hash::Seeds;
use crate::layout::long::SoughtKey;
use crate::layout::slot::{Content, Header, Key, Stored};
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome};
use crate::placement::families;
use crate::placement::families::presets;
use crate::region::{Backing, Region, RegionError};
use crate::sim::{Adversary, History, Instant, Random, Recorder};
use crate::sink::Sink;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The grace time. A store takes a nanosecond.
const GRACE: Duration = Duration::from_micros(200);
const TWICE_NS: u64 = 2 * GRACE.as_nanos() as u64;

// ---- formulas of this file's own ----------------------------------------------------------------

/// The tag that a key leaves behind (docs/FORMAT.md).
fn tag_of(index: &Segment, key: &[u8]) -> u8 {
    let hash = index.geometry().seeds().first(key).0;
    (hash / 32 % 65_536 % 255 + 1) as u8
}

fn filter_bits(index: &Segment) -> u64 {
    match index.geometry().layout().family {
        Family::Cuckoo if index.geometry().grows() => 16,
        Family::Cuckoo => 32,
        _ => 8,
    }
}

/// The number of the key's bit in its home's filter.
fn bit_of(index: &Segment, key: &[u8]) -> u64 {
    index.geometry().seeds().first(key).0 % filter_bits(index)
}

fn filter_at(index: &Segment, home: u64) -> u64 {
    let aux = index.slots().header(index.geometry().window(home).first).aux;
    u64::from(aux) & ((1 << filter_bits(index)) - 1)
}

fn home_of(index: &Segment, key: &[u8]) -> u64 {
    index.geometry().hashed(key).home()
}

fn is_displaced(index: &Segment, key: &[u8], slot: SlotIx) -> bool {
    !index.geometry().window(home_of(index, key)).contains(slot)
}

/// Long keys that begin alike, and end alike, in one window, are keys of their own.
#[test]
fn long_keys_that_begin_and_end_alike() {
    let config = Config { key_max: 100, key_inline: Some(100), ..small("windowed:8", 8) };
    let geometry = config.geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::System).unwrap();
    for length in [9, 17, 56, 100] {
        let keys: Vec<Vec<u8>> = (0..8u8)
            .map(|n| {
                let mut key = vec![7; length];
                key[length - 1 - usize::from(n) % (length - 8).min(8)] = n;
                key
            })
            .collect();
        let keys: std::collections::BTreeSet<_> = keys.into_iter().take(6).collect();
        for key in &keys {
            assert_eq!(index.put(key, b"1", PutMode::Insert), Ok(PutOutcome::Inserted), "{key:?}");
        }
        for (n, key) in (0..).zip(&keys) {
            assert_eq!(index.put(key, &[n], PutMode::Update), Ok(PutOutcome::Updated), "{key:?}");
        }
        for (n, key) in (0..).zip(&keys) {
            let mut value = Vec::new();
            assert!(index.reader().get_into(key, &mut value).unwrap() && value == [n], "{key:?}");
        }
        for key in &keys {
            assert_eq!(index.remove(key), Ok(true), "{key:?}");
        }
    }
}

// ---- a table that is watched --------------------------------------------------------------------

fn small(layout: &str, slots: u64) -> Config {
    let (layout, size) = (layout.parse().unwrap(), TableSize::Slots(slots));
    Config { layout, size, key_max: 8, value_max: 8, grace: GRACE, seeds: None, ..Config::default() }
}

fn recorded(layout: &str, slots: u64, seed: u64) -> (Region, Arc<Recorder>, Clock, Geometry) {
    let config = Config { seeds: Some(Seeds::from_number(seed)), ..small(layout, slots) };
    let geometry = config.geometry().unwrap();
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    (recorder.region(handover_end(&geometry)), recorder, clock, geometry)
}

/// A slot at rest.
#[derive(Clone, Debug, PartialEq)]
struct SeenSlot {
    key: Key,
    value: Vec<u8>,
    header: Header,
}

/// The counters of begun moves.
fn counters(region: &Region) -> [u64; MOVE_COUNTERS as usize] {
    std::array::from_fn(|home| region.load(move_counter_word(home as u64)))
}

/// The first word of the key field of a slot with this key.
fn word_of(key: &[u8]) -> u64 {
    u64::from_le_bytes(key.try_into().expect("keys are words"))
}

/// Every slot that was ever used.
fn look(index: &Segment) -> Vec<SeenSlot> {
    let overflow = index.homes().blocks_ever_used() * u64::from(index.geometry().layout().block_slots);
    let seen = |slot| {
        let SlotCopy { key, value, .. } = index.slots().read(slot);
        SeenSlot { key, value: value.to_vec(), header: index.slots().header(slot) }
    };
    (0..index.geometry().main_slots() + overflow).map(|slot| seen(SlotIx(slot))).collect()
}

/// Where each key stands. Each stands in one slot.
fn places(index: &Segment, slots: &[SeenSlot]) -> BTreeMap<Key, SlotIx> {
    let mut places = BTreeMap::new();
    for (n, seen) in slots.iter().enumerate().filter(|(_, seen)| !seen.key.is_empty()) {
        let other = places.insert(seen.key.clone(), SlotIx(n as u64));
        assert_eq!(other, None, "{:?} stands in {n}, too", seen.key);
    }
    assert_eq!(places.len() as u64, index.len());
    places
}

/// The chain of each home, by block.
fn chains(index: &Segment) -> Vec<(Block, u64)> {
    let homes = if index.geometry().overflow_blocks() == 0 { 0 } else { index.geometry().homes() };
    let chain = |home| {
        let heads = index.homes().chain_heads(index.geometry().window(home).first).skip(1);
        heads.map(move |head| (chain::block_of(index.geometry(), head).expect("a block"), home))
    };
    (0..homes).flat_map(chain).collect()
}

/// Compares what the server remembers with what stands in the region. Each ghost and each
/// lingering filter bit has one entry in the queue. The registers name the displaced keys. Each
/// block is linked, waiting or free, in one place. Each empty block has a note. A segment of many has
/// no traces when this is called: they are in one queue with those of others.
pub(super) fn check_books(index: &Segment) {
    let geometry = index.geometry();
    let (traces, slots) = (index.homes().grace().traces(), look(index));
    for (slot, SeenSlot { key, header, .. }) in (0..geometry.main_slots()).map(SlotIx).zip(&slots) {
        let home_slot = || index.slots().home_slot(geometry.hashed(key));
        let is_right = match index.slots().notes().of(slot) {
            Note::Unknown => true,
            Note::Free => key.is_empty(),
            Note::Stuck => header.ghost != 0,
            Note::Displaced => header.ghost == 0 && is_displaced(index, key, slot),
            Note::AtHome(distance) => header.ghost == 0 && slot.0 == home_slot().0 + u64::from(distance),
        };
        assert!(is_right, "{slot:?} has {key:?}, not {:?}", index.slots().notes().of(slot));
        let is_right = match index.slots().notes().of_key_in(slot) {
            Note::Unknown => true,
            Note::Free => key.is_empty(),
            Note::Stuck => false,
            Note::Displaced => is_displaced(index, key, slot),
            Note::AtHome(distance) => slot.0 == home_slot().0 + u64::from(distance),
        };
        assert!(is_right, "{slot:?} has {key:?}, not {:?}", index.slots().notes().of_key_in(slot));
    }
    let mut ghosts: BTreeSet<SlotIx> =
        (0..slots.len()).filter(|&n| slots[n].header.ghost != 0).map(|n| SlotIx(n as u64)).collect();
    let mut blocks = BTreeMap::new();
    let linked = chains(index);
    for &(block, home) in &linked {
        assert_eq!(blocks.insert(block, "linked"), None, "{block:?} in two chains");
        assert_eq!(index.slots().owner(block), Some(home), "{block:?} is guarded by its home");
    }
    for block in index.homes().free_blocks() {
        assert_eq!(blocks.insert(block, "free"), None, "{block:?} is free");
        assert_eq!(index.slots().owner(block), None, "{block:?} is free");
    }
    let mut lingering: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut to_unlink: BTreeMap<Block, Vec<(u64, u64)>> = BTreeMap::new();
    for &(due_ns, trace) in &traces {
        match trace {
            Trace::Ghost { slot, guard } => {
                assert!(ghosts.remove(&slot), "the ghost in {slot:?} is gone, or has two entries");
                assert!(index.slots().is_guarded_by(slot, guard), "{slot:?}");
            }
            Trace::Filter { home } => lingering.entry(home).or_default().push(due_ns),
            Trace::Unlink { home, block } => to_unlink.entry(block).or_default().push((home, due_ns)),
            Trace::Reuse { home, block } => {
                assert_eq!(blocks.insert(block, "waiting"), None, "{block:?} waits to be used again");
                assert_eq!(index.slots().owner(block), Some(home), "{block:?}");
            }
            Trace::Ghosts { .. } | Trace::Settle { .. } => panic!("{trace:?} is left"),
        }
    }
    assert!(ghosts.is_empty(), "nobody takes these ghosts away: {ghosts:?}");
    assert_eq!(blocks.len() as u64, index.homes().blocks_ever_used(), "{blocks:?}");
    if !geometry.grows() {
        assert_eq!(index.region().load(BLOCKS_WORD), index.homes().blocks_ever_used());
    }
    assert!(blocks.keys().all(|block| u64::from(block.0) < index.homes().blocks_ever_used()));

    let mut displaced: BTreeMap<u64, Vec<(u32, SlotIx)>> = BTreeMap::new();
    for (key, slot) in places(index, &slots) {
        if is_displaced(index, &key, slot) {
            let entry = (1u32 << bit_of(index, &key), slot);
            displaced.entry(home_of(index, &key)).or_default().push(entry);
        }
    }
    let mut noted = BTreeMap::new();
    for home in 0..geometry.homes() {
        let mut locked = index.slots().lock_home(home);
        let stripe = index.homes().stripe(&mut locked, home);
        noted.extend(stripe.empty_blocks());
        let (mut at, mut lingers) = (Vec::new(), Vec::new());
        for entry in stripe.displaced(home) {
            match entry.place {
                DisplacedAt::At(slot) => at.push((entry.bit, slot)),
                DisplacedAt::Lingers { until_ns } => lingers.push(until_ns),
            }
        }
        let filter = stripe.displaced(home).iter().fold(0, |filter, entry| filter | u64::from(entry.bit));
        let mut expected = displaced.remove(&home).unwrap_or_default();
        at.sort();
        expected.sort();
        lingers.sort();
        assert_eq!(at, expected, "the register of home {home}");
        assert_eq!(lingers, lingering.remove(&home).unwrap_or_default(), "what lingers at home {home}");
        assert_eq!(filter_at(index, home), filter, "the filter of home {home}");
    }
    for (block, home) in linked {
        let window = chain::window(geometry, block);
        let is_empty = window.iter().all(|slot| slots[slot.0 as usize].key.is_empty());
        let note = noted.remove(&block);
        assert_eq!(note.is_some(), is_empty, "{block:?} of home {home}");
        if let Some(due_ns) = note {
            let entries = to_unlink.get(&block).map_or(&[][..], |entries| entries);
            assert!(entries.contains(&(home, due_ns)), "nobody unlinks {block:?}");
        }
    }
    assert!(noted.is_empty(), "notes about blocks that are not linked: {noted:?}");
}

/// A key that one change moved.
#[derive(Clone, Debug)]
struct Moved {
    key: Key,
    from: SlotIx,
    to: SlotIx,
}

/// A table, and its state before the last change.
struct WatchedTable {
    index: Index,
    clock: Clock,
    recorder: Arc<Recorder>,
    before: Vec<SeenSlot>,
    changes: Vec<WatchedChange>,
    /// What the takeover of this table found.
    found: Recovered,
}

/// What is checked about a change when the history is known.
struct WatchedChange {
    from: Instant,
    to: Instant,
    /// New entries of the queue.
    new: Vec<(u64, Trace)>,
    /// Displaced keys that left their slots, and their homes.
    left: Vec<(u64, Key, SlotIx)>,
    /// The heads that linked to each block before. An unlinked block keeps its link (B3), so there
    /// may be two.
    heads: Vec<(Block, SlotIx)>,
    /// Keys that came to a slot, and the slot that each had left, if it had one.
    came: Vec<(Key, Option<SlotIx>, SlotIx)>,
}

impl WatchedChange {
    fn heads_of(&self, block: Block) -> impl Iterator<Item = SlotIx> {
        self.heads.iter().filter(move |(linked, _)| *linked == block).map(|(_, head)| *head)
    }
}

impl WatchedTable {
    fn new(layout: &str, slots: u64, seed: u64) -> WatchedTable {
        let (region, recorder, clock, geometry) = recorded(layout, slots, seed);
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        WatchedTable::over(index, clock, recorder, Recovered::default())
    }

    fn over(index: Index, clock: Clock, recorder: Arc<Recorder>, found: Recovered) -> WatchedTable {
        let before = look(&index);
        WatchedTable { index, clock, recorder, before, changes: Vec::new(), found }
    }

    /// Makes a change and returns its result and the keys that it moved. Afterwards the books are
    /// right, each moved key has left its tag and was counted, and every ghost whose time has not
    /// come is unchanged.
    fn change<T>(&mut self, change: impl FnOnce(&Index) -> T) -> (T, Vec<Moved>) {
        let index = &self.index;
        let (from, traces) = (self.recorder.now(), index.homes().grace().traces());
        let (mut counted, counts) = (counters(index.region()), index.counts());
        let waits = counts.waits;
        let heads_of = |slots: &[SeenSlot]| {
            let links = slots.iter().enumerate().filter_map(|(n, seen)| {
                let is_chained = index.geometry().overflow_blocks() > 0;
                Some((
                    chain::link(index.geometry(), seen.header.aux).filter(|_| is_chained)?,
                    SlotIx(n as u64),
                ))
            });
            links.collect::<Vec<_>>()
        };
        let heads = heads_of(&self.before);
        let had = places(index, &self.before);
        let answer = change(index);

        check_books(index);
        let after = look(index);
        let has = places(index, &after);
        let left_behind = index.homes().grace().traces();
        let came = has.iter().map(|(key, &to)| (key.clone(), had.get(key).copied(), to));
        let came = came.filter(|&(_, from, to)| from != Some(to)).collect();
        let mut moved = Vec::new();
        let mut left = Vec::new();
        for (key, from) in had {
            let to = has.get(&key).copied();
            if to.is_none_or(|to| !is_displaced(index, &key, to)) && is_displaced(index, &key, from) {
                left.push((home_of(index, &key), key.clone(), from));
            }
            if let Some(to) = to.filter(|&to| to != from) {
                let ghost = after[from.0 as usize].header.ghost;
                assert_eq!(ghost, tag_of(index, &key), "{key:?} left {from:?}");
                assert!(
                    self.before[from.0 as usize].header.ghost == 0 || waits != index.counts().waits,
                    "M3"
                );
                counted[(home_of(index, &key) % MOVE_COUNTERS) as usize] += 1;
                moved.push(Moved { key, from, to });
            }
        }
        for (_, trace) in traces.iter().filter(|entry| !left_behind.contains(entry)) {
            if let Trace::Reuse { home, .. } = trace {
                counted[(home % MOVE_COUNTERS) as usize] += 1;
            }
        }
        // A put that waits takes traces away and leaves others, several times.
        if waits == index.counts().waits {
            assert_eq!(counters(index.region()), counted, "moves and blocks used again, as counted");
        }
        let more = index.counts();
        assert_eq!(more.moves - counts.moves, moved.len() as u64);
        let came_home = moved.iter().filter(|moved| {
            is_displaced(index, &moved.key, moved.from) && !is_displaced(index, &moved.key, moved.to)
        });
        let by_a_delete = more.removes > counts.removes;
        let homings = if by_a_delete { came_home.count() as u64 } else { 0 };
        assert_eq!(more.homings - counts.homings, homings, "what a put moves home is no homing");
        assert_eq!(more.inserts + counts.keys + counts.removes, counts.inserts + more.keys + more.removes);
        for (_, trace) in traces.iter().filter(|entry| left_behind.contains(entry)) {
            if let Trace::Ghost { slot, .. } = trace {
                let ghost = |slots: &[SeenSlot]| slots[slot.0 as usize].header.ghost;
                assert_eq!(ghost(&after), ghost(&self.before), "the ghost in {slot:?}");
            }
        }
        let new: Vec<_> = left_behind.into_iter().filter(|entry| !traces.contains(entry)).collect();
        self.before = after;
        self.changes.push(WatchedChange { from, to: self.recorder.now(), new, left, heads, came });
        (answer, moved)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> (Result<PutOutcome, PutError>, Vec<Moved>) {
        let updates = self.index.counts().updates;
        let (answer, moved) = self.change(|index| index.put(key, value, PutMode::Upsert));
        let updated = answer == Ok(PutOutcome::Updated);
        assert_eq!(self.index.counts().updates - updates, u64::from(updated));
        (answer, moved)
    }

    fn remove(&mut self, key: &[u8]) -> (bool, Vec<Moved>) {
        self.change(|index| index.remove(key).unwrap())
    }

    fn wait(&mut self, time: Duration) {
        self.clock.advance(time);
        self.change(|index| index.tidy());
    }

    /// Lets time pass until nothing waits for it.
    fn settle(&mut self) {
        for _ in 0..16 {
            self.wait(3 * GRACE);
            if self.index.homes().grace().traces().is_empty() {
                return;
            }
        }
        panic!("left: {:?}", self.index.homes().grace().traces());
    }

    /// A copy is whole, and its move is counted (M4), before the original is overwritten (M1). When
    /// a displaced copy is whole, its home's filter has its bit (M5).
    fn check_order(&self, history: &History, change: &WatchedChange) {
        let index = &self.index;
        for (key, from, to) in &change.came {
            let (home, key_word) = (home_of(index, key), word_of(key));
            let during = (change.from, change.to);
            let holds = |header: Header, first| !header.is_free() && first == key_word;
            let whole = self.at_rest(history, *to, during, holds).expect("it came");
            if is_displaced(index, key, *to) {
                let home_slot = index.geometry().window(home).first;
                let filter = u64::from(self.header(history, home_slot, whole).aux);
                assert_eq!(filter >> bit_of(index, key) & 1, 1, "M5: {key:?} comes to {to:?}");
            }
            let Some(from) = *from else { continue };
            let word = index.geometry().slot_word(from);
            let header = self.header(history, from, whole);
            let is_there = header.stamp.is_multiple_of(2) && holds(header, history.word(word + 2, whole));
            assert!(is_there, "M1: {key:?} is in {from:?} until it is in {to:?}");
            let overwritten = history.stores(word..word + 1, whole, change.to)[0].0;
            let counter = move_counter_word(home);
            let counted = history.stores(counter..counter + 1, change.from, overwritten).len();
            assert!(counted > 0, "M4: {key:?} leaves {from:?}");
        }
    }

    /// Each time counts from after the store that it is about: the store by which a key left its
    /// slot, a block became empty, or a block lost its last link.
    fn check_times_and_order(&self) {
        let history = self.recorder.history(self.index.geometry().region_bytes());
        for change in &self.changes {
            self.check_order(&history, change);
            let during = (change.from, change.to);
            let mut left: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (home, key, slot) in &change.left {
                let word = word_of(key);
                let gone =
                    self.at_rest(&history, *slot, during, |header, first| header.is_free() || first != word);
                left.entry(*home).or_default().push(history.time_ns(gone.expect("it left")));
            }
            let mut lingering: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for &(due_ns, trace) in &change.new {
                let since = match trace {
                    Trace::Ghost { slot, .. } => {
                        self.at_rest(&history, slot, during, |header, _| header.ghost != 0)
                    }
                    Trace::Filter { home } => {
                        lingering.entry(home).or_default().push(due_ns - TWICE_NS);
                        None
                    }
                    Trace::Unlink { block, .. } => {
                        let slots = chain::window(self.index.geometry(), block).iter();
                        let emptied = |slot| {
                            let was_free = self.header(&history, slot, change.from).is_free();
                            self.at_rest(&history, slot, during, |header, _| header.is_free())
                                .filter(|_| !was_free)
                        };
                        slots.filter_map(emptied).max()
                    }
                    Trace::Reuse { block, .. } => {
                        let unlinked = |head| {
                            let is_so = |header: Header, _| {
                                chain::link(self.index.geometry(), header.aux) != Some(block)
                            };
                            self.at_rest(&history, head, during, is_so)
                        };
                        change.heads_of(block).filter_map(unlinked).max()
                    }
                    Trace::Ghosts { .. } | Trace::Settle { .. } => panic!("{trace:?} is left"),
                };
                let since_ns = since.map(|at| history.time_ns(at));
                let is_after = since_ns.is_none_or(|since_ns| due_ns >= since_ns + TWICE_NS);
                assert!(is_after, "{trace:?} is due at {due_ns}, and is about {since_ns:?}");
                // The head before it may have been unlinked just before, and keeps its link (B3).
                let unlinked_too = |head: SlotIx| {
                    let block = chain::block_of(self.index.geometry(), head);
                    let is_it =
                        |other: Trace| matches!(other, Trace::Reuse { block: b, .. } if Some(b) == block);
                    block.is_some() && change.new.iter().any(|&(_, other)| is_it(other))
                };
                let needs_none = match trace {
                    Trace::Filter { .. } | Trace::Unlink { .. } => true,
                    Trace::Reuse { block, .. } => change.heads_of(block).any(unlinked_too),
                    Trace::Ghost { .. } | Trace::Ghosts { .. } | Trace::Settle { .. } => false,
                };
                assert!(since_ns.is_some() || needs_none, "{trace:?}: of when?");
            }
            for &(_, trace) in &change.new {
                let Trace::Reuse { block, .. } = trace else { continue };
                let emptied_ns = chain::window(self.index.geometry(), block).iter().filter_map(|slot| {
                    let last = |header: &Header| !header.is_free();
                    self.last_at_rest(&history, slot, change.to, last).map(|at| history.time_ns(at))
                });
                let since_ns = emptied_ns.max().unwrap_or(0);
                let unlinked_ns = history.time_ns(change.to);
                assert!(unlinked_ns >= since_ns + TWICE_NS, "B2: {block:?} was emptied at {since_ns}");
            }
            for (home, gone_ns) in &mut left {
                let since_ns = lingering.remove(home).unwrap_or_default();
                gone_ns.sort();
                assert_eq!(since_ns.len(), gone_ns.len(), "bits that linger at home {home}");
                assert!(since_ns.iter().zip(gone_ns).all(|(since_ns, gone_ns)| since_ns >= gone_ns));
            }
            assert!(lingering.is_empty(), "bits of nobody linger: {lingering:?}");
        }
    }

    fn header(&self, history: &History, slot: SlotIx, at: Instant) -> Header {
        let word = self.index.geometry().slot_word(slot);
        Header::from_words([history.word(word, at), history.word(word + 1, at)])
    }

    /// When the slot was first at rest after a write, with the given header and first word of the
    /// key.
    fn at_rest(
        &self,
        history: &History,
        slot: SlotIx,
        (from, to): (Instant, Instant),
        is_so: impl Fn(Header, u64) -> bool,
    ) -> Option<Instant> {
        let word = self.index.geometry().slot_word(slot);
        let mut stores = history.stores(word..word + 1, from, to).into_iter();
        let found = stores.find(|&(at, _, first)| {
            first.is_multiple_of(2) && is_so(self.header(history, slot, at), history.word(word + 2, at))
        });
        found.map(|(at, ..)| at)
    }

    /// When the slot was first at rest again, after it last was so before `until`.
    fn last_at_rest(
        &self,
        history: &History,
        slot: SlotIx,
        until: Instant,
        was_so: impl Fn(&Header) -> bool,
    ) -> Option<Instant> {
        let word = self.index.geometry().slot_word(slot);
        let rests = history
            .stores(word..word + 1, Instant(0), until)
            .into_iter()
            .filter(|(.., v)| v.is_multiple_of(2));
        let rests: Vec<_> = rests.map(|(at, ..)| at).collect();
        let last = rests.iter().rposition(|&at| was_so(&self.header(history, slot, at)))?;
        rests.get(last + 1).copied()
    }

    /// Another server takes the table over. This one was killed at instant `at`.
    fn take_over(&self, at: Instant) -> WatchedTable {
        self.take_over_damaged(at, |_| {})
    }

    /// Another server takes the table over, after something happened to the region.
    fn take_over_damaged(&self, at: Instant, damage: impl FnOnce(&Region)) -> WatchedTable {
        let next = self.open(at, damage);
        check_books(&next.index);
        next
    }

    /// Opens the table by a server that has not looked at anything yet.
    fn open(&self, at: Instant, damage: impl FnOnce(&Region)) -> WatchedTable {
        let geometry = self.index.geometry().clone();
        let clock = Clock::manual();
        let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
        let region = recorder.region(handover_end(&geometry));
        self.recorder.repeat(at, &region, &clock);
        damage(&region);
        let before = counters(&region);
        let (index, found) = Index::open(region, clock.clone(), &Start::default()).unwrap();
        let after = counters(index.region());
        let more: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        if found.handed_over {
            assert!(more.iter().all(|&more| more == 0), "nothing to count: {more:?}");
        } else {
            assert!(more.iter().all(|&more| more > 0), "each counter goes up: {more:?}");
            assert_eq!(more.iter().sum::<u64>(), MOVE_COUNTERS + found.doubled);
        }
        WatchedTable::over(index, clock, recorder, found)
    }

    /// The server stops. Returns the instant before.
    fn stop(&self) -> Instant {
        let before = self.recorder.now();
        self.index.hand_over(Duration::from_secs(1)).unwrap();
        before
    }
}

fn key(n: u64) -> [u8; 8] {
    (n << 20 | 0xabcde).to_le_bytes()
}

/// Makes a random change of a key below `keys`, or lets time pass.
fn some_change(watch: &mut WatchedTable, random: &mut Random, keys: usize) {
    let n = key(random.pick(keys) as u64);
    match random.pick(16) {
        0..8 => drop(watch.put(&n, &(random.pick(1 << 16) as u64).to_le_bytes())),
        8..14 => drop(watch.remove(&n)),
        14 => watch.wait(Duration::from_nanos(random.pick(TWICE_NS as usize / 2) as u64)),
        _ => watch.wait(Duration::from_nanos(random.pick(2 * TWICE_NS as usize) as u64)),
    }
}

/// Tables of one stripe, and of several. After every change the books are right. A server that
/// takes the table over, at any store, also has right books, and goes on.
#[test]
fn the_books_are_right() {
    for preset in presets() {
        for seed in 0..8 {
            let slots = [6, 20, 64, 200][seed as usize % 4];
            let mut random = Random::new(seed);
            let mut watch = WatchedTable::new(preset.name, slots, seed);
            let keys = slots as usize * 3 / 2 + 4;
            for _ in 0..3 {
                let start = watch.recorder.now();
                for _ in 0..keys + 60 {
                    some_change(&mut watch, &mut random, keys);
                }
                watch.check_times_and_order();
                let stores = watch.recorder.now().0 - start.0;
                let killed = Instant(start.0 + random.pick(stores + 1));
                watch = watch.take_over(killed);
            }
            watch.settle();
            assert!(chains(&watch.index).len() as u64 <= watch.index.homes().blocks_ever_used());
        }
    }
}

// ---- every tag, every bit -----------------------------------------------------------------------

/// What moved a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MoveCause {
    /// A newcomer.
    Kick,
    /// A free slot in its primary window.
    Homing,
    /// A hole in its chain.
    Compaction,
}

/// Slots as a pass samples them.
struct Sampled<'a>(&'a [SeenSlot]);

impl Landed for Sampled<'_> {
    fn look(&mut self, slot: SlotIx, wanted: SoughtKey<'_>, _value: &mut impl Sink) -> Look {
        let seen = &self.0[slot.0 as usize];
        if seen.key[..] == *wanted.key.key() { Look::Match } else { Look::Other(seen.header) }
    }
}

/// A quick pass of a GET that goes by the clock.
fn pass(get: &mut Get<'_>, slots: &[SeenSlot]) -> Step {
    while let Step::Read(_) = get.feed(&mut Sampled(slots), false, &mut Vec::new()) {}
    get.judge(Proof::InGrace)
}

/// A GET samples the slot that a key comes to before the move, and the slot that it leaves after
/// it. It looks again, once. The same ghost, in the same slot under the same stamp, is an old one.
/// Under another stamp or in another slot it is another ghost.
fn check_ghost(index: &Index, before: &[SeenSlot], after: &[SeenSlot], moved: &Moved) {
    let (from, tag) = (moved.from.0 as usize, tag_of(index, &moved.key));
    let mut sampled = before.to_vec();
    sampled[from] = after[from].clone();
    let again = Step::Again(index.geometry().window(home_of(index, &moved.key)), Retry::Moved);
    let mut get = Get::new(index.geometry(), &moved.key);
    assert_eq!(pass(&mut get, &sampled), again, "{moved:?}: a ghost");
    assert_eq!(pass(&mut get, &sampled), Step::Absent, "{moved:?}: the same ghost");
    let mut later = sampled.clone();
    later[from].header.stamp = later[from].header.stamp.wrapping_add(2);
    let mut get = Get::new(index.geometry(), &moved.key);
    assert_eq!(pass(&mut get, &sampled), again);
    assert_eq!(pass(&mut get, &later), again, "{moved:?}: another stamp");
    assert_eq!(pass(&mut get, &later), Step::Absent);
    let mut elsewhere = before.to_vec();
    elsewhere[from] = SeenSlot { header: Header { ghost: 0, ..after[from].header }, ..after[from].clone() };
    let mut get = Get::new(index.geometry(), &moved.key);
    let other = get.start().first.0 as usize;
    assert_eq!(pass(&mut get, &sampled), again);
    if other != from {
        elsewhere[other].header.ghost = tag;
        elsewhere[other].header.stamp = after[from].header.stamp;
        assert_eq!(pass(&mut get, &elsewhere), again, "{moved:?}: another slot");
    }
}

/// Keys with every tag are moved in each way. Each leaves exactly its tag, and a GET for the key
/// goes by it. Keys with every bit are displaced and found. Their bit stays when they leave, and
/// goes later.
#[test]
fn every_tag_and_every_bit() {
    use MoveCause::{Compaction, Homing, Kick};
    for (layout, slots, causes) in [
        ("windowed:8", 24, &[Kick, Homing][..]),
        ("bucketized:4", 24, &[Kick, Homing]),
        ("pilaf", 16, &[Kick]),
        ("farm", 12, &[Homing, Compaction]),
        ("slotwise:8", 12, &[Kick, Homing, Compaction]),
        ("cluster", 12, &[Homing, Compaction]),
        ("list", 4, &[Homing, Compaction]),
    ] {
        let mut watch = WatchedTable::new(layout, slots, 1);
        let mut random = Random::new(1);
        let mut of_tag: BTreeMap<u8, Vec<[u8; 8]>> = BTreeMap::new();
        (0..30_000).map(key).for_each(|key| of_tag.entry(tag_of(&watch.index, &key)).or_default().push(key));
        let mut tags: BTreeSet<(MoveCause, u8)> =
            causes.iter().flat_map(|&cause| (1..=255).map(move |tag| (cause, tag))).collect();
        // Set, lingering, gone.
        let mut bits: BTreeSet<(u8, u64)> =
            (0..filter_bits(&watch.index)).flat_map(|bit| [0, 1, 2].map(|when| (when, bit))).collect();
        let mut changes = 0;
        while !tags.is_empty() || !bits.is_empty() {
            changes += 1;
            assert!(changes < 200_000, "{layout}: never moved, or no such bit: {tags:?}, {bits:?}");
            watch.settle();
            let before = watch.before.clone();
            let there: Vec<_> = places(&watch.index, &before).into_keys().collect();
            let is_put = there.is_empty() || random.pick(2) == 0;
            let moved = if is_put {
                let wanted: Vec<_> = tags.iter().map(|(_, tag)| *tag).collect();
                let tag = if wanted.is_empty() {
                    1 + random.pick(255) as u8
                } else {
                    wanted[random.pick(wanted.len())]
                };
                let of_tag = &of_tag[&tag];
                watch.put(&of_tag[random.pick(of_tag.len())], b"").1
            } else {
                watch.remove(&there[random.pick(there.len())]).1
            };
            let index = &watch.index;
            let is_main = |slot: SlotIx| slot.0 < index.geometry().main_slots();
            for moved in &moved {
                let cause = match (is_put, is_main(moved.from), is_main(moved.to)) {
                    (true, true, true) => Kick,
                    (false, false, false) => Compaction,
                    (false, _, true) => {
                        assert!(is_displaced(index, &moved.key, moved.from), "nobody else comes home");
                        Homing
                    }
                    _ => panic!("{moved:?}, put: {is_put}"),
                };
                check_ghost(index, &before, &watch.before, moved);
                tags.remove(&(cause, tag_of(index, &moved.key)));
            }
            let mut value = Vec::new();
            for (key, slot) in places(index, &watch.before) {
                let (bit, home) = (bit_of(index, &key), home_of(index, &key));
                if is_displaced(index, &key, slot) && bits.contains(&(0, bit)) {
                    assert_eq!(filter_at(index, home) >> bit & 1, 1);
                    assert_eq!(index.reader().get_into(&key, &mut value), Ok(true), "{key:?}");
                    bits.remove(&(0, bit));
                }
            }
            let left = watch.changes.last().expect("a change").left.clone();
            let left: Vec<_> =
                left.into_iter().map(|(home, key, _)| (home, bit_of(&watch.index, &key))).collect();
            let is_set =
                |watch: &WatchedTable, (home, bit): (u64, u64)| filter_at(&watch.index, home) >> bit & 1 == 1;
            for &of in &left {
                assert!(is_set(&watch, of), "{layout}: the bit lingers: {of:?}");
                bits.remove(&(1, of.1));
            }
            if !left.is_empty() {
                watch.settle();
            }
            for &of in left.iter().filter(|&&of| !is_set(&watch, of)) {
                bits.remove(&(2, of.1));
            }
            watch.changes.clear();
        }
        println!("{layout}: {changes} changes");
    }
}

// ---- ghosts stay --------------------------------------------------------------------------------

/// What was written into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    Update,
    Remove,
    NewKey,
    Filter,
    Link,
}

fn write_of(index: &Index, before: &SeenSlot, after: &SeenSlot) -> Option<Write> {
    let filter = u32::MAX >> (32 - filter_bits(index));
    let changed = before.header.aux ^ after.header.aux;
    let key = match (before.key.is_empty(), after.key.is_empty()) {
        (true, true) => None,
        (true, false) => Some(Write::NewKey),
        (false, true) => Some(Write::Remove),
        (false, false) if before.key != after.key => return None,
        (false, false) => (before.value != after.value).then_some(Write::Update),
    };
    let of_aux = [(filter, Write::Filter), (!filter, Write::Link)];
    let of_aux = of_aux.map(|(mask, write)| (changed & mask != 0).then_some(write));
    let mut writes = key.into_iter().chain(of_aux.into_iter().flatten());
    let write = writes.next()?;
    writes.next().is_none().then_some(write)
}

/// Writes each kind of content into slots with ghosts whose time has not come. Counts how many left
/// the ghost, and how many took it away. Every second change is counted; it is made while the
/// result of `during` lives.
fn writes_over_ghosts<D>(layout: &str, during: impl Fn() -> D) -> BTreeMap<Write, (u32, u32)> {
    let mut writes: BTreeMap<Write, (u32, u32)> = BTreeMap::new();
    for seed in 0..120 {
        let slots = 8 + 8 * (seed % 3);
        let watch = WatchedTable::new(layout, slots, seed);
        let (index, mut random) = (&watch.index, Random::new(seed));
        for n in 0..300 {
            let (before, traces) = (look(index), index.homes().grace().traces());
            let there: Vec<_> = before.iter().filter(|seen| !seen.key.is_empty()).collect();
            // Keys that stand on ghosts are changed most often.
            let haunted: Vec<_> = there.iter().filter(|seen| seen.header.ghost != 0).collect();
            let known = match (haunted.is_empty(), there.is_empty(), random.pick(2)) {
                (false, _, 0) => haunted[random.pick(haunted.len())].key.clone(),
                (_, false, _) => there[random.pick(there.len())].key.clone(),
                _ => SmallVec::from_slice(&key(n)),
            };
            let some = key(random.pick(4 * slots as usize) as u64);
            let value = (n + 1).to_le_bytes();
            let is_asked = n % 2 == 1;
            let during = is_asked.then(&during);
            match random.pick(16) {
                0..8 => drop(index.put(&some, &value, PutMode::Upsert)),
                8..11 => drop(index.put(&known, &value, PutMode::Upsert)),
                11..15 => drop(index.remove(&known)),
                _ => {
                    watch.clock.advance(GRACE);
                    index.tidy();
                }
            }
            drop(during);
            let after = look(index);
            // Ghosts that were there before and whose time has not come.
            for trace in index.homes().grace().traces().iter().filter(|entry| traces.contains(entry)) {
                let (_, Trace::Ghost { slot, .. }) = *trace else { continue };
                let [before, after] = [&before, &after].map(|slots| &slots[slot.0 as usize]);
                let is_asked = is_asked && before.header.ghost != 0;
                let Some(write) = write_of(index, before, after).filter(|_| is_asked) else { continue };
                let (kept, lost) = writes.entry(write).or_default();
                *(if after.header.ghost == before.header.ghost { kept } else { lost }) += 1;
            }
        }
    }
    writes
}

fn kinds_of_writes(layout: &str) -> Vec<Write> {
    use Write::{Filter, Link, NewKey, Remove, Update};
    match layout.parse::<crate::layout::geometry::Layout>().unwrap().family {
        Family::Cuckoo => vec![Update, Remove, NewKey, Filter],
        Family::Hopscotch => vec![Update, Remove, NewKey, Filter, Link],
        // No key is moved out of a home slot, and only home slots have a filter.
        Family::Chained => vec![Update, Remove, NewKey, Link],
    }
}

/// Layouts of each family, with windows small enough that keys are moved often.
const HAUNTED: [&str; 7] = ["windowed:8", "bucketized:4", "pilaf", "farm", "slotwise:8", "cluster", "list"];

/// A ghost stays in its slot whatever is written there (M2).
#[test]
fn ghosts_stay() {
    for layout in HAUNTED {
        let writes = writes_over_ghosts(layout, || ());
        println!("{layout}: {writes:?}");
        assert_eq!(writes.keys().copied().collect::<Vec<_>>(), kinds_of_writes(layout), "{layout}");
        assert!(writes.values().all(|&(kept, lost)| kept > 0 && lost == 0), "{layout}: {writes:?}");
    }
}

// ---- blocks -------------------------------------------------------------------------------------

/// Keys of one home.
fn keys_of_home(index: &Index, home: u64) -> impl Iterator<Item = [u8; 8]> {
    (0..).map(key).filter(move |key| home_of(index, key) == home)
}

/// A table whose home 0 has a chain of two blocks, the second one empty. The key that was in it
/// was moved to the slot of a key that came home.
fn emptied() -> (WatchedTable, Block) {
    emptied_of("list", 1)
}

/// Such a table in another layout. `in_second` keys were in the second block.
fn emptied_of(layout: &str, in_second: usize) -> (WatchedTable, Block) {
    let mut watch = WatchedTable::new(layout, 4, 1);
    let layout = watch.index.geometry().layout();
    let before = layout.window_slots() as usize + layout.block_slots as usize;
    let keys: Vec<_> = keys_of_home(&watch.index, 0).take(before + in_second).collect();
    keys.iter().for_each(|key| assert_eq!(watch.put(key, b"").0, Ok(PutOutcome::Inserted)));
    let chain: Vec<_> = chains(&watch.index).into_iter().map(|(block, _)| block).collect();
    assert_eq!(chain.len(), 2);
    for key in &keys[..in_second] {
        assert_eq!(watch.remove(key).1.len(), 2);
    }
    (watch, chain[1])
}

/// Waits until all traces are due, and removes them, but for the ghost in this slot: its entry is out of the queue.
fn taken_ghost(index: &Index, clock: &Clock, slot: SlotIx) -> (u64, Trace) {
    clock.sleep_until(index.homes().grace().last_due_ns().unwrap());
    let mut ghost = None;
    while let Some((due_ns, waiting)) = index.homes().grace().pop_due() {
        if matches!(waiting.trace, Trace::Ghost { slot: of, .. } if of == slot) {
            ghost = Some((due_ns, waiting.trace));
        } else {
            index.homes().take_away(due_ns, waiting.trace);
        }
    }
    ghost.expect("a ghost in the block")
}

/// A server thread has taken the entry of a ghost out of the queue, and is slow. Its block is
/// empty, and the block's time has come. The block must stay linked until the ghost is gone and the
/// grace time has passed again. Returns whether it was unlinked too early.
fn a_block_with_a_ghost(layout: &str, ghosts: usize) -> bool {
    let (mut watch, block) = emptied_of(layout, ghosts);
    let (index, clock) = (&watch.index, &watch.clock);
    let has_ghost = |slot: &SlotIx| index.slots().header(*slot).ghost != 0;
    let with_ghosts: Vec<_> = chain::window(index.geometry(), block).iter().filter(has_ghost).collect();
    assert_eq!(with_ghosts.len(), ghosts);
    let slot = *with_ghosts.last().unwrap();
    let is_linked = |index: &Index| chains(index).iter().any(|&(linked, _)| linked == block);
    let (due_ns, ghost) = taken_ghost(index, clock, slot);
    assert_ne!(index.slots().header(slot).ghost, 0);
    if !is_linked(index) {
        return true;
    }
    index.homes().take_away(due_ns, ghost);
    check_books(index);
    let since_ns = clock.now_ns();
    let (next_ns, _) = index.homes().grace().traces()[0];
    assert!((since_ns..=since_ns + TWICE_NS).contains(&next_ns) && next_ns + 10 > since_ns + TWICE_NS);
    clock.sleep_until(next_ns - 1);
    watch.change(|index| index.tidy());
    assert!(is_linked(&watch.index), "one nanosecond before");
    watch.wait(Duration::from_nanos(1));
    assert!(!is_linked(&watch.index), "no ghost any more");
    false
}

#[test]
fn blocks_with_ghosts_stay_linked() {
    for (layout, ghosts) in [("list", 1), ("cluster", 2), ("farm", 3)] {
        assert!(!a_block_with_a_ghost(layout, ghosts), "{layout}");
    }
}

/// A server is killed while a block that it had linked is empty. The next server unlinks the block
/// and uses it for another home. It takes no more memory.
#[test]
fn empty_blocks_are_taken_over() {
    let (watch, block) = emptied();
    let mut watch = watch.take_over(watch.recorder.now());
    let slots = watch.index.counts().slots;
    let is_linked = |watch: &WatchedTable| chains(&watch.index).iter().any(|&(linked, _)| linked == block);
    assert!(is_linked(&watch));
    let since_ns = watch.clock.now_ns();
    watch.wait(2 * GRACE - Duration::from_nanos(since_ns.min(TWICE_NS / 2)));
    watch.wait(2 * GRACE);
    assert!(!is_linked(&watch), "unlinked after the grace time");
    let keys: Vec<_> = keys_of_home(&watch.index, 1).take(3).collect();
    watch.wait(2 * GRACE);
    assert_eq!(watch.index.homes().free_blocks(), [block]);
    keys[..2].iter().for_each(|key| assert_eq!(watch.put(key, b"").0, Ok(PutOutcome::Inserted)));
    assert!(chains(&watch.index).contains(&(block, 1)), "used again by another home");
    assert_eq!((watch.index.counts().slots, watch.index.homes().blocks_ever_used()), (slots, 2));
    assert_eq!(watch.put(&keys[2], b"").0, Ok(PutOutcome::Inserted));
    assert_eq!((watch.index.counts().slots, watch.index.homes().blocks_ever_used()), (slots + 1, 3));
}

/// A server is killed at any store of a put that takes the first or second block of a chain. The
/// block is free, or linked with or without the key. In each case the keys, put again, take no
/// further block.
#[test]
fn a_block_half_taken_is_taken_over() {
    for layout in ["list", "cluster", "farm", "slotwise:8"] {
        [1, 2].into_iter().for_each(|blocks| half_taken(layout, blocks));
    }
}

fn half_taken(layout: &str, blocks: u64) {
    let mut watch = WatchedTable::new(layout, 4, 1);
    let mut keys: Vec<_> = keys_of_home(&watch.index, 0).take(200).collect();
    let (mut begun, mut n) = (watch.recorder.now(), 0);
    while watch.index.homes().blocks_ever_used() < blocks {
        begun = watch.recorder.now();
        assert_eq!(watch.put(&keys[n], b"").0, Ok(PutOutcome::Inserted));
        n += 1;
    }
    keys.truncate(n);
    let (mut relinked, mut unused, mut without_key) = (0, 0, 0);
    for at in begun.0..=watch.recorder.now().0 {
        let mut next = watch.take_over(Instant(at));
        let (taken, linked) = (next.index.homes().blocks_ever_used(), chains(&next.index).len() as u64);
        relinked += u32::from(taken == blocks && linked == blocks);
        unused += u32::from(taken > linked);
        let there = places(&next.index, &next.before);
        let (newcomer, others) = keys.split_last().unwrap();
        let is_there = there.contains_key(&newcomer[..]);
        assert!(!is_there || linked == blocks, "{layout}: the key is where the block is linked");
        without_key += u32::from(!is_there && linked == blocks);
        let lost: Vec<_> = others.iter().filter(|key| !there.contains_key(&key[..])).collect();
        assert!(lost.is_empty(), "{layout}, killed at {at}: {lost:?}, {:?}", next.found);
        keys.iter().for_each(|key| assert!(next.put(key, b"").0.is_ok()));
        assert_eq!(
            (next.index.homes().blocks_ever_used(), chains(&next.index).len() as u64),
            (blocks, blocks)
        );
        next.settle();
    }
    assert!(relinked > 1 && unused > 1 && without_key > 1, "{layout}: {relinked}, {unused}, {without_key}");
}

/// One thread frees an unlinked block for reuse. Another needs a block for a key of another home.
/// The counter of the block's old home must go up before that key is written into the block.
/// Returns how often the block was used again, and how often it was not counted first.
fn a_block_between_two_homes() -> (u32, u32) {
    let (mut used, mut uncounted) = (0, 0);
    for seed in 0..400 {
        let (mut watch, block) = emptied();
        let is_waiting = |watch: &WatchedTable| {
            let is_reuse = |(_, trace): &(u64, Trace)| matches!(trace, Trace::Reuse { .. });
            watch.index.homes().grace().traces().iter().all(is_reuse)
        };
        while !is_waiting(&watch) {
            watch.wait(2 * GRACE);
        }
        let keys: Vec<_> = keys_of_home(&watch.index, 1).take(2).collect();
        assert_eq!(watch.put(&keys[0], b"").0, Ok(PutOutcome::Inserted));
        let (index, from) = (&watch.index, watch.recorder.now());
        index
            .homes()
            .grace()
            .clock()
            .sleep_until(index.homes().grace().last_due_ns().expect("a block waits") - 200);
        crate::sim::turns::run(
            seed,
            [true, false]
                .map(|tidies| {
                    let key = &keys[1];
                    move || {
                        if tidies {
                            index.homes().grace().clock().advance(Duration::from_nanos(200));
                            index.tidy();
                        } else {
                            assert_eq!(index.put(key, b"", PutMode::Insert), Ok(PutOutcome::Inserted));
                        }
                    }
                })
                .into(),
        );
        let history = watch.recorder.history(index.geometry().region_bytes());
        let word = index.geometry().slot_word(chain::window(index.geometry(), block).first);
        let stores = |word, to| history.stores(word..word + 1, from, to);
        if let Some(&(written, ..)) = stores(word, watch.recorder.now()).first() {
            used += 1;
            uncounted += u32::from(stores(move_counter_word(0), written).is_empty());
        }
    }
    (used, uncounted)
}

#[test]
fn a_block_is_counted_before_it_is_given_back() {
    let (used, uncounted) = a_block_between_two_homes();
    assert!(used > 10 && uncounted == 0, "{used} times used again, {uncounted} times uncounted");
}

/// A chain gets as long as readers follow one, and no longer. Each key in it is found.
#[test]
fn a_chain_is_as_long_as_readers_follow() {
    let mut watch = WatchedTable::new("list", 200, 1);
    let keys: Vec<_> = keys_of_home(&watch.index, 0).take(chain::CHAIN_MAX as usize + 1).collect();
    let (newcomer, keys) = keys.split_last().unwrap();
    keys.iter().for_each(|key| assert_eq!(watch.put(key, b"").0, Ok(PutOutcome::Inserted)));
    assert!(matches!(watch.put(newcomer, b"").0, Err(PutError::Full { .. })));
    let mut reader = watch.index.reader();
    assert!(keys.iter().all(|key| reader.get_into(key, &mut Vec::new()) == Ok(true)));
    assert_eq!(reader.get_into(newcomer, &mut Vec::new()), Ok(false));
    drop(reader);
    let next = watch.take_over(watch.recorder.now());
    assert_eq!((next.index.len(), chains(&next.index).len()), (keys.len() as u64, keys.len() - 1));
}

// ---- room ---------------------------------------------------------------------------------------

/// A displaced key takes the slot that a delete frees, if its primary window has the slot. Another
/// takes the slot that this one leaves, and so on, up to four in one delete. Other keys stay in
/// their second windows and chains, where they cost a READ more.
#[test]
fn displaced_keys_come_home() {
    for preset in presets().filter(|preset| preset.name != "pilaf") {
        let (mut most, mut none) = (0, 0);
        for seed in 0..3 {
            let slots = [24, 80, 200][seed as usize % 3];
            let mut watch = WatchedTable::new(preset.name, slots, seed);
            let there: Vec<_> = (0..3 * slots / 2)
                .map(key)
                .filter(|key| watch.index.put(key, b"", PutMode::Insert).is_ok())
                .collect();
            watch.before = look(&watch.index);
            for key in there.iter().take(40) {
                watch.settle();
                let mut free = places(&watch.index, &watch.before)[&key[..]];
                let (_, moved) = watch.remove(key);
                let mut homings = 0;
                while let Some(moved) = moved.iter().find(|moved| moved.to == free) {
                    homings += u64::from(!is_displaced(&watch.index, &moved.key, moved.to));
                    free = moved.from;
                }
                let could = |(key, &slot): (&Key, &SlotIx)| {
                    let window = watch.index.geometry().window(home_of(&watch.index, key));
                    is_displaced(&watch.index, key, slot) && window.contains(free)
                };
                let somebody_could = places(&watch.index, &watch.before).iter().any(could);
                assert!(!somebody_could || homings == 4, "{}: {homings}, {free:?} stays free", preset.name);
                most = most.max(homings);
                none += u32::from(homings == 0);
            }
        }
        assert!(most > 0 && most <= 4 && none > 0, "{}: {most}, {none}", preset.name);
        assert!(most == 4 || preset.name != "bucketized:4", "{most}");
        println!("{}: {most}", preset.name);
    }
}

/// A displaced key that stands on a ghost stays (M3). Another key of its home comes home instead.
#[test]
fn a_key_on_a_ghost_does_not_come_home() {
    let index = WatchedTable::new("list", 4, 1).index;
    let keys: Vec<_> = keys_of_home(&index, 0).take(3).collect();
    keys.iter().for_each(|key| assert_eq!(index.put(key, b"", PutMode::Insert), Ok(PutOutcome::Inserted)));
    let home_slot = index.geometry().window(0).first;
    let next = index.homes().chain_heads(home_slot).nth(1).unwrap();
    let there = index.slots().read(next);
    assert_eq!(there.key[..], keys[1]);
    index.slots().write(&index.slots().alone(), next, &Content { ghost: 7, ..there.content() });
    assert_eq!(index.remove(&keys[0]), Ok(true));
    assert!(index.slots().holds(next, &keys[1]) && index.slots().holds(home_slot, &keys[2]));
}

/// A newcomer takes the first free slot in the first of its windows that has one. It moves
/// no other key. Otherwise GETs of it would cost a READ more from the start.
#[test]
fn a_newcomer_takes_the_first_free_slot() {
    for layout in ["pilaf", "bucketized:4", "windowed:8", "farm", "list"] {
        let watch = WatchedTable::new(layout, 64, 1);
        let index = &watch.index;
        let mut taken = [0; 3];
        for key in (0..80).map(key) {
            let hashed = index.geometry().hashed(&key);
            let windows: Vec<_> = match index.geometry().layout().family {
                Family::Cuckoo => crate::cuckoo::placement::choices(index.geometry(), hashed).collect(),
                _ => vec![index.geometry().primary(hashed)],
            };
            // Beyond the primary window, only `pilaf` does not look for cheaper paths.
            let windows = if layout == "pilaf" { &windows[..] } else { &windows[..1] };
            let free = windows.iter().enumerate().find_map(|(n, window)| {
                Some((n, window.iter().find(|&slot| index.slots().header(slot).is_free())?))
            });
            let moves = index.counts().moves;
            let Ok(put) = index.put(&key, b"", PutMode::Insert) else { continue };
            let Some((n, slot)) = free else { continue };
            assert!(put == PutOutcome::Inserted && index.slots().holds(slot, &key), "{layout}: {slot:?}");
            assert_eq!(index.counts().moves, moves);
            taken[n] += 1;
        }
        assert!(taken[0] > 10 && (taken[1] > 5 && taken[2] > 3 || layout != "pilaf"), "{layout}: {taken:?}");
    }
}

/// A server thread has taken the entry of a ghost out of the queue and stands still, so there is
/// always something to wait for. A put without room waits three times. Then it reports how many
/// keys are in how many slots. When the ghost is gone, it waits for the block to be unlinked, and
/// for it to be free. Where a chain has room, it does not wait.
#[test]
fn a_put_waits_three_times() {
    let (watch, block) = emptied();
    let (index, clock) = (&watch.index, &watch.clock);
    let put = |key: &[u8; 8]| index.put(key, b"", PutMode::Insert);
    let keys: Vec<_> = keys_of_home(index, 1).take(4).collect();
    keys[..3].iter().for_each(|key| assert_eq!(put(key), Ok(PutOutcome::Inserted)));
    let ever_used = index.homes().blocks_ever_used();
    assert_eq!((ever_used, index.geometry().overflow_blocks(), index.counts().waits), (4, 4, 0));
    let slot = chain::window(index.geometry(), block).first;
    let ghost = taken_ghost(index, clock, slot);
    let begun_ns = clock.now_ns();
    let slots = index.geometry().main_slots() + 4;
    assert_eq!(put(&keys[3]), Err(PutError::Full { keys: 5, slots, bytes_max: 0, heap_bytes: 0 }));
    assert_eq!(index.counts().waits, 3);
    let waited_ns = clock.now_ns() - begun_ns;
    assert!((2 * TWICE_NS..3 * TWICE_NS + 1_000).contains(&waited_ns), "{waited_ns}");
    let (due_ns, ghost) = ghost;
    index.homes().take_away(due_ns, ghost);
    assert_eq!(put(&keys[3]), Ok(PutOutcome::Inserted));
    assert_eq!(index.counts().waits, 5, "until it is unlinked, and until it is free");
    assert!(chains(index).contains(&(block, 1)));
    let (watch, _) = emptied();
    let newcomer = keys_of_home(&watch.index, 0).nth(3).unwrap();
    assert!(!watch.index.homes().grace().traces().is_empty());
    assert_eq!(watch.index.put(&newcomer, b"", PutMode::Insert), Ok(PutOutcome::Inserted));
    assert_eq!(watch.index.counts().waits, 0, "the empty block is in the chain still");
}

/// What was refused is refused again without a search, until something makes room.
#[test]
fn refusals_are_remembered() {
    for layout in ["windowed:8", "bucketized:4", "pilaf", "farm", "list"] {
        let watch = WatchedTable::new(layout, 64, 1);
        let index = &watch.index;
        let put = |key: &[u8; 8]| index.put(key, b"", PutMode::Insert);
        let newcomer = (0..).map(key).find(|key| put(key).is_err()).unwrap();
        let is_refused_at_once = || {
            let room_made = index.homes().counters().room_made();
            let search = NoPath::of(index.geometry(), index.geometry().hashed(&newcomer), room_made);
            index.homes().has_no_free_slot() || index.refusals().know(search)
        };
        assert!(is_refused_at_once(), "{layout}");
        let (before, waits) = (look(index), index.counts().waits);
        assert!(matches!(put(&newcomer), Err(PutError::Full { .. })), "{layout}");
        assert_eq!((look(index), index.counts().waits), (before, waits), "{layout}");
        assert_eq!(index.put(&newcomer, b"", PutMode::Update), Ok(PutOutcome::Missing), "{layout}");
        assert_eq!(index.remove(&key(0)), Ok(true));
        assert!(!is_refused_at_once(), "{layout}");
    }
}

/// A put finds no path while another thread makes room. Its refusal is older than that room: the
/// same put, again, finds the path that there is now.
#[test]
fn room_made_during_a_search_is_room_made_since() {
    let full = || {
        let watch = WatchedTable::new("windowed:8", 64, 1);
        let index = &watch.index;
        // One key fewer is counted than there are. Else a put does not search when no slot is free.
        index.homes().counters().found(u64::MAX);
        let newcomer = (0..).map(key).find(|key| index.put(key, b"", PutMode::Insert).is_err()).unwrap();
        // No trace is left. (The books do not fit the count.)
        while let Some(wait) = watch.index.tidy() {
            watch.index.homes().grace().clock().advance(wait);
        }
        // It has not been refused a moment ago.
        watch.index.refusals().forget_all();
        (watch, newcomer)
    };
    let (watch, newcomer) = full();
    let primary = watch.index.geometry().primary(watch.index.geometry().hashed(&newcomer));
    // Without this key, there is room only by moves.
    let victim = (0..).map(key).find(|victim| {
        let (watch, _) = full();
        let index = &watch.index;
        assert_eq!(index.remove(victim), Ok(true), "there is such a key");
        index.slots().free_slot(primary).is_none() && index.put(&newcomer, b"", PutMode::Insert).is_ok()
    });
    let (victim, mut refused) = (victim.unwrap(), 0);
    for seed in 0..100 {
        let (watch, _) = full();
        let index = &watch.index;
        let answers = crate::sim::turns::run(
            seed,
            [true, false]
                .map(|puts| {
                    let (newcomer, victim) = (&newcomer, &victim);
                    move || match puts {
                        true => index.put(newcomer, b"", PutMode::Insert).is_ok(),
                        false => index.remove(victim).unwrap(),
                    }
                })
                .into(),
        );
        assert!(answers[1]);
        if !answers[0] {
            refused += 1;
            let again = index.put(&newcomer, b"", PutMode::Insert);
            assert_eq!(again, Ok(PutOutcome::Inserted), "seed {seed}");
        }
    }
    assert!(refused > 0);
}

/// A note that is out of date leads a put astray once. Then it is forgotten with its path.
#[test]
fn a_note_that_is_out_of_date_is_forgotten() {
    let mut watch = WatchedTable::new("windowed:8", 160, 1);
    let mut by_moves = 0;
    for newcomer in (0..140).map(key) {
        watch.settle();
        let index = &watch.index;
        let primary = index.geometry().primary(index.geometry().hashed(&newcomer));
        if index.slots().free_slot(primary).is_none() {
            primary.iter().for_each(|slot| index.slots().notes().set(slot, Note::Free, false));
            by_moves += 1;
        }
        assert_eq!(watch.put(&newcomer, b"").0, Ok(PutOutcome::Inserted));
    }
    assert!(by_moves > 0);
}

/// Each put and each remove takes up to eight due traces away, oldest first, also if it changes
/// nothing. An idle server takes all of them away, and learns when the next one is due.
#[test]
fn traces_are_taken_away_in_passing() {
    let watch = WatchedTable::new("windowed:8", 200, 1);
    let index = &watch.index;
    let mut keys = (0..).map(key);
    while index.homes().grace().traces().len() < 4 * 8 {
        let _ = index.put(&keys.next().unwrap(), b"", PutMode::Insert);
    }
    let absent = key(1 << 30);
    let first_due_ns = index.homes().grace().traces()[0].0;
    let left_ns = first_due_ns - watch.clock.now_ns();
    assert_eq!(index.tidy(), Some(Duration::from_nanos(left_ns)), "nothing is due");
    watch.clock.advance(2 * GRACE);
    let traces = index.homes().grace().traces();
    assert_eq!(index.put(&absent, b"", PutMode::Update), Ok(PutOutcome::Missing));
    assert_eq!(index.homes().grace().traces(), traces[8..]);
    assert_eq!(index.remove(&absent), Ok(false));
    assert_eq!(index.homes().grace().traces(), traces[16..]);
    check_books(index);
    assert_eq!((index.tidy(), index.homes().grace().traces()), (None, vec![]));
}

/// The sums over two tables of each preset, made for 2,000 keys and filled until they are full:
/// keys, moves, displaced keys, and puts that waited.
const FILLED: [(&str, [u64; 4]); 11] = [
    ("windowed:8", [4460, 1741, 343, 0]),
    ("windowed:16", [4375, 1348, 189, 2]),
    ("bucketized:8", [4431, 647, 959, 2]),
    ("bucketized:4", [4610, 1040, 1397, 2]),
    ("pilaf", [4847, 8775, 3149, 15]),
    ("farm", [5659, 1186, 1022, 0]),
    ("slotwise:8", [5287, 1684, 659, 2]),
    ("slotwise:16", [5088, 1822, 619, 0]),
    ("slotwise:32", [5094, 1006, 607, 0]),
    ("cluster", [5499, 0, 990, 0]),
    ("list", [6408, 0, 2668, 0]),
];

/// A table takes at least as many keys as it was made for, and the search finds the same paths each
/// time. A deliberate change of the search updates these numbers, if they get no worse. Fewer keys
/// or more displaced ones mean that the search gives up early or takes bad paths.
#[test]
fn tables_get_so_full() {
    const KEYS: u64 = 2_000;
    let mut all = Vec::new();
    for (preset, (name, _)) in presets().zip(FILLED) {
        let mut sums = [0; 4];
        for seed in 0..2 {
            let seeds = Some(Seeds::from_number(seed));
            let config =
                Config { layout: preset.layout, size: TableSize::Keys(KEYS), seeds, ..small(name, 1) };
            let geometry = config.geometry().unwrap();
            let region = Region::create(&crate::region::Backing::Anonymous, geometry.region_bytes()).unwrap();
            let clock = Clock::manual();
            let index = Index::create(region, geometry, clock.clone()).unwrap();
            let newcomers = (0..).map(key);
            newcomers.map(|key| index.put(&key, b"", PutMode::Insert)).take_while(Result::is_ok).for_each(
                |_| {
                    clock.advance(GRACE / 10);
                },
            );
            let IndexCounts { keys, moves, waits, .. } = index.counts();
            assert!(keys > KEYS, "{name}, seed {seed}: made for more than {keys}");
            let found = [keys, moves, index.homes().displaced() as u64, waits];
            sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
        all.push((preset.name, sums));
    }
    assert_eq!(all, FILLED);
}

/// A path is walked only if it is still as the search saw it: its end is free, and each mover is
/// there, has no ghost and may go to its next slot. Otherwise nothing is changed, and the put
/// searches again.
#[test]
fn a_path_that_has_changed_is_not_walked() {
    for layout in ["windowed:8", "bucketized:4", "pilaf", "slotwise:8"] {
        let mut watch = WatchedTable::new(layout, 160, 1);
        let (mut walked, mut longest, mut uncovered) = (0, 0, 0);
        for newcomer in (0..175).map(key) {
            watch.settle();
            let index = &watch.index;
            let hashed = index.geometry().hashed(&newcomer);
            let path = index.moves().find_path(hashed).filter(|path| path.len() > 1);
            let Some(path) = path else {
                drop(watch.put(&newcomer, b""));
                continue;
            };
            let refused = |at: SlotIx, now: Content<'_>| {
                let was = index.slots().read(at);
                index.slots().write(&index.slots().alone(), at, &Content { aux: was.aux, ..now });
                let before = (look(index), index.counts());
                let how = (PutMode::Insert, Nobody);
                let answer = index.put_along(&path, &hashed, &Stored::default(), how, Put::New);
                assert_eq!(answer, None, "{layout}: {at:?} of {path:?} is {now:?}");
                assert_eq!((look(index), index.counts()), before);
                index.slots().write(&index.slots().alone(), at, &was.content());
            };
            let (&end, movers) = path.split_last().unwrap();
            refused(end, Content { key: &key(1_000), ..Content::default() });
            for (&at, &to) in movers.iter().zip(&path[1..]) {
                let mover = index.slots().read(at);
                refused(at, Content::default());
                refused(at, Content { ghost: 1, ..mover.content() });
                let may_go = |key: &[u8; 8]| {
                    let key = index.geometry().hashed(key);
                    let windows = families::destinations(index.geometry(), key, Some(at));
                    windows.iter().any(|destination| destination.window.contains(to))
                };
                let other = (1_000..).map(key).find(|key| !may_go(key)).unwrap();
                refused(at, Content { key: &other, ..Content::default() });
            }
            // Without the lock of a mover's home. The mover may have come after the stripes were
            // chosen.
            let of = |slot| index.slots().stripe_of(slot);
            let home =
                |&at: &SlotIx| index.slots().home_slot(index.geometry().hashed(&index.slots().read(at).key));
            let locks: StripeSet = path.iter().map(|&slot| of(slot)).collect();
            let covered = movers.iter().all(|at| locks.contains(&of(home(at))));
            uncovered += u32::from(!covered);
            assert_eq!(
                index.moves().still_good(
                    &index.slots().lock(locks),
                    &path,
                    &index.moves().movers_along(&path)
                ),
                covered,
                "{layout}: {path:?}"
            );
            watch.before = look(index);
            let along = |index: &Index| {
                let how = (PutMode::Insert, Nobody);
                index.put_along(&path, &hashed, &Stored::default(), how, Put::New)
            };
            let (answer, moved) = watch.change(along);
            assert_eq!((answer, moved.len()), (Some(PutOutcome::Inserted), movers.len()));
            let (answer, moved) = watch.change(along);
            assert_eq!((answer, moved.len()), (Some(PutOutcome::Exists), 0), "it is there already");
            walked += 1;
            longest = longest.max(path.len());
        }
        assert!(walked > 10 && longest > 2, "{layout}: {walked}, {longest}");
        assert!(uncovered > 0 || layout != "pilaf", "{layout}: each home is near");
    }
}

/// A server thread that moves a key to another slot each time this thread is about to take a lock.
struct Restless {
    index: Arc<Index>,
    /// The key's slot, and the free slot.
    at: Cell<[SlotIx; 2]>,
    moves: Cell<u32>,
}

impl Restless {
    fn go(&self) {
        let [from, to] = self.at.get();
        let [was, free] = [from, to].map(|slot| self.index.slots().read(slot));
        let (nobody, alone) = (Content::default(), self.index.slots().alone());
        self.index.slots().write(&alone, to, &Content { ghost: free.ghost, aux: free.aux, ..was.content() });
        self.index.slots().write(&alone, from, &Content { ghost: was.ghost, aux: was.aux, ..nobody });
        self.at.set([to, from]);
        self.moves.set(self.moves.get() + 1);
    }
}

impl Scheduler for Restless {
    fn may_pass(&self) {}

    fn wait_until(&self, _is_free: &dyn Fn() -> bool) {
        self.go();
    }
}

/// Each path that a put finds is changed before it is locked. After 1,000 paths the put gives up,
/// and nothing has changed. It succeeds when it is left alone.
#[test]
fn a_put_gives_up_after_a_thousand_paths() {
    for layout in ["windowed:8", "bucketized:4", "pilaf", "slotwise:8"] {
        // One stripe: each attempt takes one lock.
        let config = Config { seeds: Some(Seeds::from_number(1)), ..small(layout, 40) };
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let index = Arc::new(Index::create(region, geometry, Clock::manual()).unwrap());
        assert!(index.geometry().main_slots() <= 64);
        let has_room = |key: &[u8]| {
            index.slots().free_slot(index.geometry().primary(index.geometry().hashed(key))).is_some()
        };
        for key in (0..200).map(key).filter(|key| has_room(key)).take(38) {
            assert_eq!(index.put(&key, b"value", PutMode::Insert), Ok(PutOutcome::Inserted));
        }
        // A newcomer's path ends at a free slot. That slot gets occupied; another one that a path
        // reaches becomes free.
        let end = |key: &[u8]| index.moves().find_path(index.geometry().hashed(key))?.last().copied();
        let taken = || (0..index.geometry().main_slots()).map(SlotIx).filter(|&at| !is_free(&index, at));
        let restless = (200..300).map(key).filter(|key| !has_room(key)).find_map(|newcomer| {
            let free = end(&newcomer)?;
            let primary = index.geometry().primary(index.geometry().hashed(&newcomer));
            taken().filter(|&at| !primary.contains(at)).collect::<Vec<_>>().into_iter().find_map(|at| {
                let (index, at, moves) = (index.clone(), Cell::new([at, free]), Cell::new(0));
                let restless = Restless { index, at, moves };
                restless.go();
                let is_found = end(&newcomer) == Some(restless.at.get()[1]);
                restless.go();
                is_found.then_some((newcomer, restless))
            })
        });
        let (newcomer, restless) = restless.unwrap_or_else(|| panic!("{layout}: no two paths"));
        let restless = Rc::new(restless);
        // Slots as they are, except how often the other thread has written two of them.
        let shown = || {
            let slots = (0..).map(SlotIx).zip(look(&index)).map(|(at, seen)| {
                let moves = if restless.at.get().contains(&at) { restless.moves.get() } else { 0 };
                let Header { stamp, ghost, aux, .. } = seen.header;
                (seen.key, seen.value, stamp - 2 * moves, ghost, aux)
            });
            (slots.collect::<Vec<_>>(), index.counts(), index.homes().grace().traces())
        };
        // The locks that each change takes for its own key.
        observe::schedule(Some(restless.clone()));
        assert_eq!(index.remove(&newcomer), Ok(false));
        observe::schedule(None);
        let locks = restless.moves.replace(0) - 2;
        if locks % 2 == 1 {
            restless.go();
            restless.moves.set(0);
        }
        let before = shown();
        observe::schedule(Some(restless.clone()));
        let answer = index.put(&newcomer, b"new", PutMode::Upsert);
        observe::schedule(None);
        assert_eq!(answer, Err(PutError::Busy { rounds: 1_000 }), "{layout}");
        assert_eq!(restless.moves.get(), locks + 1_000, "{layout}");
        if locks % 2 == 1 {
            restless.go();
        }
        assert_eq!(shown(), before, "{layout}");
        assert_eq!(index.put(&newcomer, b"new", PutMode::Upsert), Ok(PutOutcome::Inserted), "{layout}");
    }
}

fn is_free(index: &Segment, slot: SlotIx) -> bool {
    index.slots().header(slot).is_free()
}

/// A filter or link that is already right is not written again: readers of the slot would have to
/// look again.
#[test]
fn right_filters_and_links_are_not_rewritten() {
    for layout in ["windowed:8", "list"] {
        let full = |seed| {
            let mut watch = WatchedTable::new(layout, 24, seed);
            (0..30).for_each(|n| drop(watch.put(&key(n), b"")));
            (watch.index.homes().displaced() > 0).then_some(watch)
        };
        let mut watch = (1..100).find_map(full).expect("some seed displaces a key");
        let recorder = watch.recorder.clone();
        let (_, moved) = watch.change(|index| {
            let stored = recorder.now();
            for home in 0..index.geometry().homes() {
                let mut locked = index.slots().lock_home(home);
                index.homes().set_filter(&mut locked, home);
                let head = index.geometry().window(home).first;
                let link = chain::link(index.geometry(), index.slots().header(head).aux);
                if index.geometry().overflow_blocks() > 0 {
                    index.homes().link(&locked, head, link);
                }
            }
            assert_eq!(recorder.now(), stored, "{layout}");
        });
        assert!(moved.is_empty());
    }
}

/// A refused put says how full the table is, or how often other threads changed its path.
#[test]
fn refusals_say_why() {
    let full = PutError::Full { keys: 5, slots: 8, bytes_max: 0, heap_bytes: 0 }.to_string();
    assert!(full.starts_with("the table is full: 5 keys in 8 slots (load 62.5 %), "), "{full}");
    let busy = PutError::Busy { rounds: ROUNDS_MAX }.to_string();
    assert!(busy.starts_with("other changes came in between, 1000 times in a row; "), "{busy}");
}

/// A table records when it was made. It is made only in a region that is large enough.
#[test]
fn a_table_records_its_time_and_fits_its_region() {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let begun = now();
    let watch = WatchedTable::new("list", 4, 1);
    let (geometry, superblock) = crate::inspect::Inspector::superblock(watch.index.region()).unwrap();
    assert!((begun..=now()).contains(&superblock.created), "{}", superblock.created);
    assert_eq!((geometry, watch.index.incarnation()), (watch.index.geometry().clone(), 1));
    let geometry = small("list", 400).geometry().unwrap();
    let page = crate::layout::PAGE as u64;
    let bytes = geometry.region_bytes().next_multiple_of(page) - page;
    let short = Region::create(&crate::region::Backing::Anonymous, bytes).unwrap();
    let made = std::panic::catch_unwind(|| Index::create(short, geometry, Clock::manual()).map(drop));
    let panic = made.expect_err("the region is too short");
    assert!(panic.downcast_ref::<&str>().unwrap().contains("too short for the table"));
}

// ---- servers that are killed early --------------------------------------------------------------

/// A server is killed at any store of a takeover. Its first store, after the grace time, says that
/// it is the table's server. So the next server has the next number, never the same one. The books
/// are right, and no key is lost.
#[test]
fn a_takeover_is_taken_over() {
    for (layout, slots) in [("windowed:8", 12), ("bucketized:4", 12), ("farm", 8), ("list", 3)] {
        // In the middle of a move, with ghosts, filters and chains.
        let amid_a_move = |seed| {
            let (mut watch, mut random) = (WatchedTable::new(layout, slots, seed), Random::new(seed));
            for _ in 0..500 {
                let begun = watch.recorder.now();
                let n = key(random.pick(2 * slots as usize) as u64);
                let moved = if random.pick(2) == 0 { watch.put(&n, b"").1 } else { watch.remove(&n).1 };
                let index = &watch.index;
                if !moved.is_empty()
                    && index.homes().displaced() > 1
                    && index.homes().grace().traces().len() > 4
                {
                    let mut stores = begun.0..watch.recorder.now().0;
                    let is_doubled = |at: &usize| watch.take_over(Instant(*at)).found.doubled == 1;
                    if let Some(amid) = stores.find(is_doubled) {
                        return Some((watch, Instant(amid)));
                    }
                }
            }
            None
        };
        let (watch, killed) = (1..100).find_map(amid_a_move).expect("some seed does it");
        let second = watch.take_over(killed);
        assert_eq!(second.index.incarnation(), 2);
        let history = second.recorder.history(second.index.geometry().region_bytes());
        let stated = history.stores(STATE_WORD..STATE_WORD + 1, Instant(0), second.recorder.now());
        let stated = stated.last().unwrap().0;
        assert_eq!(stated.0, killed.0 + 1, "the first store of the takeover");
        let watched = watch.recorder.history(watch.index.geometry().region_bytes());
        assert!(history.time_ns(stated) >= watched.time_ns(killed) + TWICE_NS, "not before the grace time");
        let there = places(&second.index, &second.before);
        for at in killed.0..=second.recorder.now().0 {
            let third = second.take_over(Instant(at));
            let incarnation = if at < stated.0 { 2 } else { 3 };
            assert_eq!(third.index.incarnation(), incarnation, "{layout}, at {at}");
            let has = places(&third.index, &third.before);
            assert!(has.keys().eq(there.keys()), "{layout}, at {at}: {has:?}, {there:?}");
        }
    }
}

/// A server that gave its table up on purpose may leave the region behind. The next server serves
/// it.
#[test]
fn a_retired_table_is_taken_over() {
    let mut watch = WatchedTable::new("windowed:8", 12, 1);
    assert_eq!(watch.put(&key(1), b"").0, Ok(PutOutcome::Inserted));
    watch.index.publish_state(Phase::Retired);
    assert_eq!(State::from_word(watch.index.region().load(STATE_WORD)).phase, Phase::Retired);
    let next = watch.take_over(watch.recorder.now());
    let state = State::from_word(next.index.region().load(STATE_WORD));
    assert_eq!(state, State { incarnation: 2, phase: Phase::Serving });
    assert_eq!(next.found, Recovered { keys: 1, ..Recovered::default() });
}

// ---- the last look ------------------------------------------------------------------------------

/// One thread puts a key into a full table. Another makes room and puts the same key. Returns how
/// often the first answered that the table is full although the other had put the key before the
/// last look, and how often the first found the key. (The first holds the key's locks from the last
/// look until it answers.)
fn put_into_a_full_table(layout: &str, mode: PutMode) -> (u32, u32) {
    let (mut wrong, mut found) = (0, 0);
    for seed in 0..300 {
        let watch = WatchedTable::new(layout, 1, 1);
        let index = &watch.index;
        let mut keys = (0..).map(key);
        // One key fewer is counted than there are. Else a put does not search when no slot is free.
        index.homes().counters().found(u64::MAX);
        let first = keys.next().unwrap();
        let mut filler = first;
        while index.put(&filler, b"", PutMode::Insert).is_ok() {
            filler = keys.next().unwrap();
        }
        // Not a key that was refused a moment ago.
        let newcomer = keys.next().unwrap();
        let is_put = std::sync::atomic::AtomicBool::new(false);
        let put = || {
            let answer = index.put(&newcomer, b"", mode);
            (answer, is_put.load(Ordering::Relaxed))
        };
        let make_room = || {
            assert_eq!(index.remove(&first), Ok(true));
            let answer = index.put(&newcomer, b"", PutMode::Insert);
            is_put.store(true, Ordering::Relaxed);
            (answer, true)
        };
        let answers = crate::sim::turns::run(
            seed,
            [true, false]
                .map(|puts| {
                    let (put, make_room) = (&put, &make_room);
                    move || if puts { put() } else { make_room() }
                })
                .into(),
        );
        match answers[0] {
            (Err(PutError::Full { .. }), is_put) => wrong += u32::from(is_put),
            (Ok(PutOutcome::Updated | PutOutcome::Exists), _) => found += 1,
            (Ok(PutOutcome::Inserted), _) => assert_eq!(answers[1].0, Ok(PutOutcome::Exists)),
            _ => panic!("{answers:?}"),
        }
    }
    (wrong, found)
}

/// A put that waits for grace periods takes away everything that is due then, not only as much as
/// other mutations do in passing. What is left would only be in its way.
#[test]
fn a_put_that_waits_takes_all_due_traces_away() {
    let mut watch = WatchedTable::new("windowed:8", 120, 1);
    let mut keys = (0..).map(key);
    while watch.index.homes().grace().traces().len() <= 2 * REAP_MAX {
        let next = keys.next().unwrap();
        if watch.put(&next, b"").0.is_err() {
            watch.remove(&key(0));
        }
    }
    assert!(watch.index.homes().wait_for_grace());
    assert_eq!(watch.index.homes().grace().traces(), []);
    assert!(!watch.index.homes().wait_for_grace(), "nothing to wait for");
}

// ---- servers that stop --------------------------------------------------------------------------

/// A table in use: with displaced keys and traces, unless the layout displaces hardly any.
fn in_use(layout: &str, seed: u64) -> WatchedTable {
    let mut random = Random::new(seed);
    let mut watch = WatchedTable::new(layout, 20, seed);
    for _ in 0..1000 {
        some_change(&mut watch, &mut random, 34);
        if watch.index.homes().displaced() >= 2 && watch.index.homes().grace().traces().len() >= 3 {
            break;
        }
    }
    watch
}

/// A server stops when no trace is left, and the next one knows all that this one knew, at once. It
/// counts no counter up, and waits for nothing. Killed at any store before the last, the server was
/// killed: the next one looks at every slot.
#[test]
fn a_stopped_server_hands_its_table_over() {
    for preset in presets() {
        for seed in 0..6 {
            let watch = in_use(preset.name, seed);
            let before = watch.stop();
            assert!(watch.index.homes().grace().traces().is_empty());
            let end = watch.recorder.now();
            let state = State::from_word(watch.index.region().load(STATE_WORD));
            assert_eq!(state, State { incarnation: 1, phase: Phase::Stopped });
            for at in before.0..end.0 {
                let next = watch.take_over(Instant(at));
                assert!(!next.found.handed_over, "{}, killed at {at} of {}", preset.name, end.0);
            }
            let next = watch.take_over(end);
            let keys = watch.index.len();
            assert_eq!(next.found, Recovered { keys, handed_over: true, ..Recovered::default() });
            assert_eq!(
                (next.index.homes().displaced(), next.index.incarnation()),
                (watch.index.homes().displaced(), 2)
            );
            assert_eq!(next.recorder.now().0, end.0 + 1, "one store: its incarnation");
            assert_eq!(look(&next.index), look(&watch.index));
        }
    }
}

/// What was handed over is of use once. The next server makes changes, and is killed at any store of
/// them: nobody believes the old handover. It may stop as well, at once or later.
#[test]
fn a_handover_is_used_once() {
    for layout in ["windowed:8", "pilaf", "farm", "list"] {
        for seed in 0..4 {
            let watch = in_use(layout, seed);
            watch.stop();
            let (mut next, mut random) = (watch.take_over(watch.recorder.now()), Random::new(seed));
            let begun = next.recorder.now();
            (0..12).for_each(|_| some_change(&mut next, &mut random, 34));
            for at in begun.0..=next.recorder.now().0 {
                let third = next.take_over(Instant(at));
                assert_eq!(
                    (third.found.handed_over, third.index.incarnation()),
                    (false, 3),
                    "{layout}, at {at}"
                );
            }
            next.stop();
            let third = next.take_over(next.recorder.now());
            assert_eq!((third.found.handed_over, third.index.len()), (true, next.index.len()));
            // It stops at once. What it has not read goes on.
            third.stop();
            let mut fourth = third.take_over(third.recorder.now());
            assert!(fourth.found.handed_over);
            (0..60).for_each(|_| some_change(&mut fourth, &mut random, 34));
            fourth.settle();
        }
    }
}

/// A server knows how many displaced keys it was told of before it has looked at them. When it stops
/// by then, it hands all of them on.
#[test]
fn a_handover_that_was_not_read_is_handed_on() {
    for preset in presets() {
        let watch = in_use(preset.name, 0);
        watch.stop();
        let next = watch.open(watch.recorder.now(), |_| {});
        assert_eq!(next.index.homes().displaced(), watch.index.homes().displaced(), "{}", preset.name);
        next.stop();
        let third = next.take_over(next.recorder.now());
        assert!(third.found.handed_over);
        assert_eq!(third.index.homes().displaced(), watch.index.homes().displaced(), "{}", preset.name);
    }
}

/// The words of a handover, and each as it is with a bit flipped, or zero, or the largest.
fn damaged_handovers(watch: &WatchedTable) -> impl Iterator<Item = (usize, u64)> + use<'_> {
    let geometry = &watch.index.geometry();
    let first =
        geometry.region_bytes().next_multiple_of(crate::layout::PAGE as u64) as usize / crate::layout::WORD;
    let last = handover_end(geometry) as usize / crate::layout::WORD;
    let used = (first..last).filter(|&word| watch.index.region().load(word) != 0);
    used.flat_map(|word| {
        let is = watch.index.region().load(word);
        [is ^ 1, is ^ 1 << 20, is ^ 1 << 40, 0, u64::MAX].map(|other| (word, other))
    })
}

/// A handover with any wrong word is not believed, and nothing is wrong then. Nor is one if an undo
/// line names a slot.
#[test]
fn a_damaged_handover_is_not_believed() {
    for layout in ["windowed:8", "list"] {
        let watch = in_use(layout, 1);
        watch.stop();
        let there = places(&watch.index, &look(&watch.index));
        let mut damaged = 0;
        for (word, other) in damaged_handovers(&watch) {
            if watch.index.region().load(word) == other {
                continue;
            }
            let next = watch.take_over_damaged(watch.recorder.now(), |region| region.store(word, other));
            // The upper half of the word that holds the CRC is not looked at.
            if next.found.handed_over {
                assert_eq!(other as u32, watch.index.region().load(word) as u32, "word {word}");
                continue;
            }
            assert_eq!(places(&next.index, &next.before), there, "{layout}, word {word} is {other:#x}");
            damaged += 1;
        }
        assert!(damaged > 20, "{layout}: {damaged}");
        let line = crate::layout::undo::line_word(watch.index.geometry().shape(), 7);
        let next = watch.take_over_damaged(watch.recorder.now(), |region| region.store(line, 1));
        assert!(!next.found.handed_over && next.index.len() == watch.index.len());
        // The handover is whole, and of another server than the one that the region names.
        let state = State { incarnation: 2, phase: Phase::Stopped };
        let another = |region: &Region| region.store(STATE_WORD, state.to_word());
        let next = watch.take_over_damaged(watch.recorder.now(), another);
        assert!(!next.found.handed_over && next.index.len() == watch.index.len());
    }
}

/// Blocks that were never used are not free for use again: a handover that names one is not
/// believed.
#[test]
fn a_handover_names_blocks_that_were_used() {
    let mut watch = WatchedTable::new("list", 20, 1);
    (0..30).map(key).for_each(|key| drop(watch.put(&key, b"")));
    (0..30).map(key).for_each(|key| drop(watch.remove(&key)));
    watch.settle();
    watch.stop();
    let last = watch.index.homes().free_blocks().into_iter().max().unwrap();
    for (used, is_believed) in [(last.0 + 1, true), (last.0, false)] {
        let count = |region: &Region| region.store(BLOCKS_WORD, used.into());
        let next = watch.take_over_damaged(watch.recorder.now(), count);
        assert_eq!(next.found.handed_over, is_believed, "{used} blocks");
    }
}

/// A server whose traces stay too long hands nothing over, and the next one looks at every slot.
#[test]
fn a_stop_does_not_wait_for_long() {
    let watch = in_use("windowed:8", 1);
    let within = Duration::from_nanos(1);
    assert!(matches!(watch.index.hand_over(within), Err(NotHandedOver::Traces(most)) if most == within));
    let next = watch.take_over(watch.recorder.now());
    assert_eq!((next.found.handed_over, next.index.len()), (false, watch.index.len()));
    // Private memory has nothing behind the table.
    let geometry = small("windowed:8", 20).geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::manual()).unwrap();
    assert!(matches!(index.hand_over(within), Err(NotHandedOver::NoMemory(_))));
    assert_eq!(State::from_word(index.region().load(STATE_WORD)).phase, Phase::Serving);
}

/// Until a table is whole, the region says that it is being made. If the server dies meanwhile,
/// nobody takes the region over.
#[test]
fn a_table_half_made_is_not_taken_over() {
    for layout in ["windowed:8", "list"] {
        let (region, recorder, clock, geometry) = recorded(layout, 6, 1);
        let index = Index::create(region, geometry.clone(), clock).unwrap();
        let end = recorder.now();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        assert_eq!(State::from_word(index.region().load(STATE_WORD)).phase, Phase::Serving);
        for at in 0..=end.0 {
            let clock = Clock::manual();
            let again = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
            let region = again.region(geometry.region_bytes());
            recorder.repeat(Instant(at), &region, &clock);
            let words = geometry.region_bytes() as usize / crate::layout::WORD;
            let bytes: Vec<u8> = (0..words).flat_map(|word| region.load(word).to_ne_bytes()).collect();
            let opened =
                Index::open(region, clock, &Start::default()).map(|(_, found)| (found.torn, found.keys));
            // In a file, it is known without a touch of its pages. Nobody reads it, and the next start makes it again.
            std::fs::write(&path, &bytes).unwrap();
            let to_read = Region::open_to_read(&path);
            let to_serve = Region::open(&path);
            if at == end.0 {
                assert_eq!(opened, Ok((0, 0)), "{layout}");
                assert!(to_read.is_ok() && to_serve.is_ok(), "{layout}");
                drop((to_read, to_serve));
                let again = Region::create(&Backing::File(path.clone()), geometry.region_bytes());
                assert!(matches!(again, Err(RegionError::Length { .. })), "{layout}: {again:?}");
            } else {
                for opened in [to_read, to_serve] {
                    let is_known = matches!(opened, Err(RegionError::Unfinished { .. }));
                    assert!(is_known, "{layout}, at {at} of {}: {opened:?}", end.0);
                }
                drop(Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap());
                let refused = matches!(opened, Err(RecoverError::Unfinished | RecoverError::Superblock(_)));
                assert!(refused, "{layout}, at {at} of {}: {opened:?}", end.0);
            }
        }
    }
}

/// A table with one home's chain of `blocks` blocks, whose links `relink` changes. Returns what a
/// takeover makes of it: the number of those keys found, links cut, and blocks linked.
fn relinked(blocks: usize, relink: impl Fn(&Index, &[SlotIx])) -> (usize, u64, usize) {
    let (index, there, cut) = taken_over(blocks, relink);
    check_books(&index);
    (there, cut, chains(&index).len())
}

/// The table of [`relinked`], the number of keys found, and of links cut.
fn taken_over(blocks: usize, relink: impl Fn(&Index, &[SlotIx])) -> (Index, usize, u64) {
    let watch = WatchedTable::new("list", 4, 1);
    let keys: Vec<_> = keys_of_home(&watch.index, 0).take(blocks + 1).collect();
    keys.iter()
        .for_each(|key| assert_eq!(watch.index.put(key, b"", PutMode::Insert), Ok(PutOutcome::Inserted)));
    let home_slot = watch.index.geometry().window(0).first;
    let heads: Vec<_> = watch.index.homes().chain_heads(home_slot).collect();
    assert_eq!(heads.len(), blocks + 1);
    relink(&watch.index, &heads);
    let clock = Clock::manual();
    let again = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = again.region(watch.index.geometry().region_bytes());
    watch.recorder.repeat(watch.recorder.now(), &region, &clock);
    let (index, found) = Index::open(region, clock, &Start::default()).unwrap();
    let there =
        keys.iter().filter(|key| index.reader().get_into(&key[..], &mut Vec::new()) == Ok(true)).count();
    assert_eq!(found.keys, there as u64);
    (index, there, found.cut)
}

fn link_to(index: &Index, head: SlotIx, block: Option<Block>) {
    index.homes().link(&index.slots().alone(), head, block);
}

/// Damaged links: a circle, a chain that leads into another one, a block without a link to it.
/// After the takeover each block is in one chain, and no key is lost.
#[test]
fn damaged_links_are_taken_over() {
    let block_of = |index: &Index, head| chain::block_of(index.geometry(), head);
    assert_eq!(relinked(3, |_, _| ()), (4, 0, 3));
    let circle = relinked(3, |index, heads| link_to(index, heads[3], block_of(index, heads[1])));
    assert_eq!(circle, (4, 1, 3));
    let into_another = relinked(3, |index, heads| {
        link_to(index, index.geometry().window(2).first, block_of(index, heads[2]));
    });
    assert_eq!(into_another, (4, 1, 3));
    for cut_off in 1..3 {
        let cut = relinked(3, |index, heads| link_to(index, heads[cut_off], None));
        assert_eq!(cut, (4, 0, 3), "behind block {cut_off}");
    }
    // A key in another home's chain, where no GET looks for it, in place of the last key.
    let stray = relinked(3, |index, heads| {
        let (key, aux) = (keys_of_home(index, 1).next().unwrap(), index.slots().header(heads[3]).aux);
        index.slots().write(
            &index.slots().alone(),
            heads[3],
            &Content { key: &key, aux, ..Content::default() },
        );
    });
    assert_eq!(stray, (3, 0, 3));
    // One key twice in one chain, as when a server dies while it fills a hole.
    let doubled = relinked(3, |index, heads| {
        let SlotCopy { key, value, .. } = index.slots().read(heads[3]);
        let aux = index.slots().header(heads[2]).aux;
        let copy = Content { key: &key, value: (&value).into(), ghost: 0, aux };
        index.slots().write(&index.slots().alone(), heads[2], &copy);
    });
    assert_eq!(doubled, (3, 0, 3));
    // The number of blocks ever used. If it is too small, links lead nowhere. If it is too large,
    // it is not believed.
    let ever_used = |blocks| move |index: &Index, _: &[SlotIx]| index.region().store(BLOCKS_WORD, blocks);
    assert_eq!(relinked(3, ever_used(0)), (1, 1, 0));
    assert_eq!(relinked(3, ever_used(2)), (3, 1, 2));
    for blocks in [5, 6, 1 << 33] {
        let (index, there, cut) = taken_over(3, ever_used(blocks));
        assert_eq!((there, cut, chains(&index).len()), (4, 0, 3));
        let reserved = index.geometry().overflow_blocks();
        assert_eq!(
            (reserved, index.homes().blocks_ever_used(), index.homes().free_blocks()),
            (4, 4, vec![Block(3)])
        );
    }
}

/// On a clock that runs, an empty block is unlinked and used again.
#[test]
fn empty_blocks_are_reused_on_a_running_clock() {
    let config =
        Config { grace: Duration::from_micros(200), seeds: Some(Seeds::from_number(1)), ..small("list", 4) };
    let geometry = config.geometry().unwrap();
    let region = Region::create(&crate::region::Backing::Anonymous, geometry.region_bytes()).unwrap();
    let index = Index::create(region, geometry, Clock::System).unwrap();
    let keys: Vec<_> = keys_of_home(&index, 0).take(3).collect();
    keys.iter().for_each(|key| assert_eq!(index.put(key, b"", PutMode::Insert), Ok(PutOutcome::Inserted)));
    assert_eq!(chains(&index).len(), 2);
    keys.iter().for_each(|key| assert_eq!(index.remove(key), Ok(true)));
    let begun = std::time::Instant::now();
    while !chains(&index).is_empty() || index.homes().free_blocks().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} are linked still", chains(&index));
        index.tidy();
        std::thread::sleep(Duration::from_micros(100));
    }
    check_books(&index);
}

const FULL_TABLES: [(&str, PutMode); 4] = [
    ("windowed:8", PutMode::Upsert),
    ("windowed:8", PutMode::Insert),
    ("pilaf", PutMode::Upsert),
    ("cluster", PutMode::Insert),
];

#[test]
fn a_put_looks_a_last_time() {
    for (layout, mode) in FULL_TABLES {
        let (wrong, found) = put_into_a_full_table(layout, mode);
        println!("{layout}: {found} found");
        assert!(wrong == 0 && found > 0, "{layout}: {wrong} times full, {found} times found");
    }
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::faults::Broken;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Whether a server that takes over a table, after a stop and maybe more, has wrong books.
    fn is_wrong(rules: &[Rule], then: impl Fn(WatchedTable) -> WatchedTable) -> bool {
        let right = in_use("pilaf", 3);
        assert!(right.index.homes().displaced() >= 2 && right.index.homes().grace().traces().len() >= 3);
        right.stop();
        drop(then(right));
        let broken: Vec<_> = rules.iter().map(|&rule| Broken::rule(rule)).collect();
        let watch = in_use("pilaf", 3);
        watch.stop();
        let is_wrong = catch_unwind(AssertUnwindSafe(|| drop(then(watch)))).is_err();
        drop(broken);
        is_wrong
    }

    fn taken_over_at_the_end(watch: WatchedTable) -> WatchedTable {
        watch.take_over(watch.recorder.now())
    }

    #[test]
    fn a_stop_with_traces() {
        assert!(is_wrong(&[Rule::StopAtRest], taken_over_at_the_end));
    }

    #[test]
    fn a_register_that_is_not_read() {
        assert!(is_wrong(&[Rule::HandoverRead], taken_over_at_the_end));
    }

    #[test]
    fn a_handover_used_twice() {
        let twice = |watch: WatchedTable| {
            let (mut next, mut random) = (watch.take_over(watch.recorder.now()), Random::new(1));
            (0..30).for_each(|_| some_change(&mut next, &mut random, 34));
            next.take_over(next.recorder.now())
        };
        assert!(is_wrong(&[Rule::HandoverOnce], twice));
    }

    #[test]
    fn a_damaged_handover_that_is_believed() {
        let damaged = |watch: WatchedTable| {
            let (word, other) = damaged_handovers(&watch).nth(5).expect("the number of keys");
            watch.take_over_damaged(watch.recorder.now(), |region| region.store(word, other))
        };
        assert!(is_wrong(&[Rule::HandoverCheck], damaged));
    }

    /// Either the order or the CRC suffices. Without both, a server killed while it stops leaves a
    /// handover that is wrong.
    #[test]
    fn a_state_stored_before_the_handover() {
        let killed = |watch: WatchedTable| {
            // An old handover stands behind the table, of an earlier stop of the same table.
            let mut next = watch.take_over(watch.recorder.now());
            let mut random = Random::new(2);
            (0..40).for_each(|_| some_change(&mut next, &mut random, 34));
            let before = next.stop();
            (before.0..=next.recorder.now().0).for_each(|at| drop(next.take_over(Instant(at))));
            next
        };
        assert!(!is_wrong(&[Rule::StopLast], killed));
        assert!(!is_wrong(&[Rule::HandoverCheck], killed));
        assert!(is_wrong(&[Rule::StopLast, Rule::HandoverCheck], killed));
    }

    #[test]
    fn ghosts_that_go() {
        for layout in HAUNTED {
            let writes = writes_over_ghosts(layout, || Broken::rule(Rule::GhostStays));
            for kind in kinds_of_writes(layout) {
                let lost = writes.get(&kind).map_or(0, |&(_, lost)| lost);
                assert!(lost > 0, "{layout}: {kind:?} must be caught: {writes:?}");
            }
        }
    }

    #[test]
    fn a_block_with_a_ghost_unlinked() {
        let _broken = Broken::rule(Rule::BlockGhost);
        assert!(a_block_with_a_ghost("list", 1), "must be caught");
    }

    #[test]
    fn a_block_given_back_before_it_is_counted() {
        let _broken = Broken::rule(Rule::BlockCountFirst);
        let (used, uncounted) = a_block_between_two_homes();
        assert!(uncounted > 0, "must be caught: {used} times used again");
    }

    #[test]
    fn no_last_look() {
        let _broken = Broken::rule(Rule::LastLook);
        // Where there is a chain, the key was looked for just before, so this is too rare.
        for (layout, mode) in FULL_TABLES.into_iter().filter(|(layout, _)| *layout != "cluster") {
            let (wrong, _) = put_into_a_full_table(layout, mode);
            assert!(wrong > 0, "{layout}: must be caught");
        }
    }
}
