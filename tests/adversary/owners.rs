//! Random schedules on tables whose entries have owners, and leave so that others find room: owners go with all
//! they have, and come again, while keys move, segments are split and merged, and extents move. By one server
//! thread, whose every answer is known, and by two.

use super::cases::recorded;
use super::extents::{ABSENT, Met, Table, Version, config, key, value};
use super::{EACH, grace, ns, several};
use oneread::embedded::{Clock, Index, OwnerSession, StartSession};
use oneread::error::PutError;
use oneread::internals::families::presets;
use oneread::internals::index::KeyPin;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{Adversary, Hardware, History, Instant, Pace, Random, Recorder, take_turns};
use oneread::layout::Layout;
use oneread::{Config, Evict, PutMode, PutOptions, TableSize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Keys whose values are known.
const KEYS: usize = 6;
/// Other keys, so many that they do not all find room in most tables.
const FILLERS: usize = 160;
/// The owners are 1 to this.
const OWNERS: u16 = 2;
const HOUR: Duration = Duration::from_secs(3600);
/// Lengths of values: in their slots, and not.
const LENGTHS: [usize; 5] = [0, 8, 60, 120, 200];

/// Every fourth table has one size, and so on.
fn config_of(layout: Layout, seed: u64) -> (Config, bool) {
    // 512 KiB are tenures of owners.
    let growing = |bytes_max| TableSize::Growing { bytes_max, segment_slots: Some(64) };
    let size =
        [TableSize::Slots(64), TableSize::Slots(64), growing((512 + 320) << 10), growing((512 + 168) << 10)];
    let nth = seed as usize % size.len();
    (config(layout, seed).size(size[nth]).life(true).owners(true), nth % 2 == 1)
}

/// A table that begins, over recorded memory.
fn begin(config: &Config, seed: u64, evicts: bool) -> (Index, Arc<Recorder>, Clock, Geometry) {
    let geometry = config.geometry().unwrap();
    let (region, recorder, clock) = recorded(&geometry);
    let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap();
    let (policy, _) = Evict::ALL[seed as usize / 2 % Evict::ALL.len()];
    let index = if evicts { index.with_eviction(policy).unwrap() } else { index };
    (index, recorder, clock, geometry)
}

fn got(index: &Index, number: usize) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    index.reader().get_into(&key(number as u64), &mut value).unwrap().then_some(value)
}

/// What happened to servers, to tell that a run tests something.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    owners_gone: u64,
    came_again: u64,
    evictions: u64,
    known_evicted: u64,
    moved_bytes: u64,
    splits: u64,
    merges: u64,
    moves: u64,
    commits: u64,
    refused: u64,
}

impl Happened {
    fn add(&mut self, index: &Index) {
        let (evictions, growth) = (index.evictions(), index.growth());
        self.evictions += evictions.ahead + evictions.at_put + evictions.for_heap;
        self.moved_bytes += index.heap().moved_bytes;
        self.splits += growth.splits;
        self.merges += growth.merges;
        self.moves += index.counts().moves;
    }
}

/// When this owner's entries were hidden.
pub fn hidden_at(history: &History, geometry: &Geometry, owner: u16) -> Vec<Instant> {
    let word = geometry.owner_word(owner);
    let (mut before, mut at) = (0, Vec::new());
    for (instant, _, value) in history.stores(word..word + 1, Instant(0), history.end()) {
        let bit = 1 << (owner % 64);
        if value & bit != 0 && before & bit == 0 {
            at.push(instant);
        }
        before = value;
    }
    at
}

/// A server by one thread. What each key has is known.
struct Owned {
    index: Index,
    recorder: Arc<Recorder>,
    clock: Clock,
    geometry: Geometry,
    evicts: bool,
    versions: Vec<Vec<Version>>,
    /// Whose the entries of the keys are; 0: nobody's.
    owner_of: [u16; KEYS],
    /// Of a key, which of its versions is that its owner has gone.
    gone: Vec<(usize, usize, u16)>,
    sessions: [Option<OwnerSession>; OWNERS as usize],
    /// Owners whose session has ended, and whose entries go with the next tidying.
    is_away: [bool; OWNERS as usize],
    starts: StartSession,
    started: Option<(usize, u64, Vec<u8>)>,
    pin: Option<(usize, KeyPin)>,
    leaps: Vec<Instant>,
    happened: Happened,
}

impl Owned {
    fn new(layout: Layout, seed: u64) -> Owned {
        let (config, evicts) = config_of(layout, seed);
        let (index, recorder, clock, geometry) = begin(&config, seed, evicts);
        let starts = index.start_session().unwrap();
        let versions = vec![vec![ABSENT]; KEYS];
        let (owner_of, gone, sessions, is_away, started, pin, leaps, happened) = Default::default();
        Owned {
            index,
            recorder,
            clock,
            geometry,
            evicts,
            versions,
            owner_of,
            gone,
            sessions,
            is_away,
            starts,
            started,
            pin,
            leaps,
            happened,
        }
    }

    fn has(&self, number: usize) -> &Option<Vec<u8>> {
        &self.versions[number].last().expect("the first").value
    }

    /// Something happens, after which a key has this, or this owner's have nothing.
    fn change(&mut self, what: &str, act: impl FnOnce(&mut Owned) -> (Option<Became>, Option<u16>)) {
        let from = self.recorder.now();
        let (becomes, gone) = act(self);
        let made = self.recorder.now();
        self.leaps.extend([from, made]);
        for number in 0..KEYS {
            let goes = gone.is_some_and(|owner| owner == self.owner_of[number]);
            let expected = match &becomes {
                Some((changed, value, owner)) if *changed == number => {
                    self.owner_of[number] = *owner;
                    value.clone()
                }
                _ if goes => None,
                _ => self.has(number).clone(),
            };
            let there = got(&self.index, number);
            if there != expected {
                let is_pinned = self.pin.as_ref().is_some_and(|(pinned, _)| *pinned == number);
                let when = format!("{what}, from {} to {}", from.0, made.0);
                assert!(self.evicts && there.is_none(), "{when}: key {number}: {there:?}, not {expected:?}");
                assert!(!is_pinned, "{when}: key {number} is pinned, and has gone");
                self.happened.known_evicted += 1;
                // It may have had the new value for a while.
                if expected != *self.has(number) {
                    self.versions[number].push(Version { value: expected, from, made });
                }
            }
            if there.is_none() {
                self.owner_of[number] = 0;
            }
            if there != *self.has(number) {
                if let (true, Some(owner)) = (goes, gone) {
                    self.gone.push((number, self.versions[number].len(), owner));
                }
                self.versions[number].push(Version { value: there, from, made });
            }
        }
    }

    /// Does something. `put` tells values apart.
    fn step(&mut self, put: u64, random: &mut Random) {
        let number = random.pick(KEYS);
        let bytes = value(put, LENGTHS[random.pick(LENGTHS.len())]);
        let filler = 100 + random.pick(FILLERS) as u64;
        let owner = 1 + random.pick(OWNERS.into()) as u16;
        let at = usize::from(owner) - 1;
        match random.pick(20) {
            0..3 => self.change("put", |it| {
                let put = it.index.put(&key(number as u64), &bytes, PutMode::Upsert);
                it.refused(put.clone().err());
                (put.is_ok().then_some((number, Some(bytes), 0)), None)
            }),
            3..7 => self.change("put of an owner", |it| {
                let Some(session) = &it.sessions[at] else { return (None, None) };
                let put = it.index.put_of(session, &key(number as u64), &bytes, PutOptions::new());
                it.refused(put.clone().err());
                (put.is_ok().then_some((number, Some(bytes), owner)), None)
            }),
            7 => self.change("remove", |it| {
                let was_there = it.index.remove(&key(number as u64)).unwrap();
                assert_eq!(was_there, it.has(number).is_some(), "key {number}, removed");
                (Some((number, None, 0)), None)
            }),
            8..10 => {
                // Now and then so many that segments are split.
                let many = if random.pick(8) == 0 { 90 } else { 1 };
                (filler..filler + many).for_each(|filler| self.put_filler(filler, put, at));
            }
            10 | 11 => {
                // Or merged.
                let many = if random.pick(4) == 0 { FILLERS as u64 } else { 1 };
                self.change("others go", |it| {
                    (filler..filler + many).for_each(|filler| _ = it.index.remove(&key(filler)).unwrap());
                    (None, None)
                });
            }
            12 => self.change("owner goes", |it| {
                let is_here = it.index.remove_owner(owner).unwrap();
                it.happened.owners_gone += u64::from(is_here);
                (it.sessions[at], it.is_away[at]) = (None, false);
                (None, is_here.then_some(owner))
            }),
            13 => {
                self.is_away[at] |= self.sessions[at].take().is_some();
            }
            14 | 15 => {
                if let (None, Ok(session)) = (&self.sessions[at], self.index.owner(owner, Duration::ZERO)) {
                    self.sessions[at] = Some(session);
                    self.is_away[at] = false;
                    self.happened.came_again += 1;
                }
            }
            16 => {
                let time = [grace() / 8, grace(), 2 * grace() + ns(20), 2 * grace() + ns(600)];
                self.clock.advance(time[random.pick(4)]);
            }
            17 => match self.started.take() {
                None => self.change("start", |it| {
                    let start = it.index.put_start(&it.starts, &key(number as u64), bytes.len(), HOUR);
                    it.started = start.ok().map(|ticket| (number, ticket, bytes));
                    (None, None)
                }),
                Some(started) if random.pick(4) == 0 => {
                    let again = self.index.put_start(&self.starts, &key(started.0 as u64), 1, HOUR);
                    assert_eq!(again, Err(PutError::AlreadyStarted));
                    self.started = Some(started);
                }
                Some((number, ticket, _)) if random.pick(3) == 0 => self.change("abort", |it| {
                    assert_eq!(it.index.put_abort(&it.starts, &key(number as u64), ticket), Ok(true));
                    (None, None)
                }),
                Some((number, ticket, bytes)) => self.change("commit", |it| {
                    let key = key(number as u64);
                    it.index.put_piece(&it.starts, &key, ticket, &bytes).unwrap();
                    it.index.put_commit(&it.starts, &key, ticket, None).expect("its room was held");
                    it.happened.commits += 1;
                    (Some((number, Some(bytes), 0)), None)
                }),
            },
            18 if self.evicts => {
                self.pin = None;
                self.pin = self.index.pin(&key(number as u64)).unwrap().map(|pin| (number, pin));
                assert_eq!(self.pin.is_some(), self.has(number).is_some(), "key {number}, pinned");
            }
            // One who is away goes with it.
            _ => self.tidy(at),
        }
    }

    /// Puts one of the others, nobody's or of this owner's.
    fn put_filler(&mut self, filler: u64, put: u64, at: usize) {
        let bytes = value(put, LENGTHS[(put + filler) as usize % LENGTHS.len()]);
        self.change("another key", |it| {
            let put = match &it.sessions[at] {
                Some(session) if put.is_multiple_of(2) => {
                    it.index.put_of(session, &key(filler), &bytes, PutOptions::new()).err()
                }
                _ => it.index.put(&key(filler), &bytes, PutMode::Upsert).err(),
            };
            it.refused(put);
            (None, None)
        });
    }

    /// Counts a put that was refused.
    fn refused(&mut self, error: Option<PutError>) {
        let Some(error) = error else { return };
        let is_full =
            matches!(error, PutError::Full { .. } | PutError::HeapFull { .. } | PutError::NoMemory { .. });
        assert!(!is_full || !self.evicts, "no entry made room: {error}");
        check_patience(&error);
        self.happened.refused += 1;
    }

    fn tidy(&mut self, at: usize) {
        // Of several that are away one goes after the other, so that it is known when.
        let others: Vec<usize> =
            (0..OWNERS.into()).filter(|&other| other != at && self.is_away[other]).collect();
        let back: Vec<OwnerSession> = others
            .iter()
            .map(|&other| self.index.owner(1 + other as u16, Duration::ZERO).expect("it is only away"))
            .collect();
        self.change("tidied", |it| {
            let is_away = std::mem::take(&mut it.is_away[at]);
            it.index.tidy();
            it.happened.owners_gone += u64::from(is_away);
            (None, is_away.then_some(1 + at as u16))
        });
        drop(back);
    }

    /// What it did, for clients to look at. An owner's entries go with one store.
    fn table(mut self) -> (Table, Happened) {
        let history = self.recorder.history(self.geometry.region_bytes());
        let hidden: Vec<_> = (1..=OWNERS).map(|owner| hidden_at(&history, &self.geometry, owner)).collect();
        for (number, nth, owner) in self.gone {
            let version = &mut self.versions[number][nth];
            let during = |at: &&Instant| version.from <= **at && **at <= version.made;
            let at = *hidden[usize::from(owner) - 1].iter().find(during).expect("its bit was set");
            (version.from, version.made) = (at, at);
        }
        self.happened.add(&self.index);
        let table = Table { geometry: self.geometry, history, versions: self.versions, leaps: self.leaps };
        (table, self.happened)
    }
}

/// What a key has from now on, and whose it is.
type Became = (usize, Option<Vec<u8>>, u16);

fn by_one_thread(layout: Layout, seed: u64) -> (Table, Happened) {
    let mut random = Random::new(seed);
    let mut owned = Owned::new(layout, seed);
    (0..50).for_each(|filler| owned.put_filler(100 + filler, 1 << 40, 0));
    (1..320).for_each(|put| owned.step(put, &mut random));
    owned.table()
}

// ---- two threads ------------------------------------------------------------------------------------

/// A key, what it has then, whose that is, from when to when.
type Changed = (usize, Option<Vec<u8>>, u16, Instant, Instant);

/// What a thread did with keys of its own.
#[derive(Default)]
struct Did {
    changes: Vec<Changed>,
    came_again: u64,
    refused: u64,
}

impl Did {
    fn refuse(&mut self, error: &PutError) {
        check_patience(error);
        self.refused += 1;
    }
}

/// What a put waits for comes, or it is told at once that it never does: nothing in these tables takes a second.
fn check_patience(error: &PutError) {
    assert!(!matches!(error, PutError::HeapBusy { .. }), "it waited in vain: {error}");
}

/// Changes every other key, and others without a name; its owner goes now and then, and so does the other thread's.
fn script(it: (&Index, &Recorder, &Clock), me: u16, seed: u64, is_over: &AtomicBool) -> Did {
    let (index, recorder, clock) = it;
    let mut random = Random::new(seed ^ u64::from(me) << 32);
    let mut did = Did::default();
    let mut sessions: [Option<OwnerSession>; OWNERS as usize] = Default::default();
    for nth in 0..70u64 {
        if is_over.load(Relaxed) {
            break;
        }
        let put = nth << 8 | u64::from(me);
        let number = usize::from(me) + 2 * random.pick(KEYS / 2);
        let bytes = value(put, LENGTHS[random.pick(LENGTHS.len())]);
        let at = random.pick(OWNERS.into());
        let owner = 1 + at as u16;
        let from = recorder.now();
        match random.pick(12) {
            0..2 => match index.put(&key(number as u64), &bytes, PutMode::Upsert) {
                Ok(_) => did.changes.push((number, Some(bytes), 0, from, recorder.now())),
                Err(error) => did.refuse(&error),
            },
            2..5 => {
                if sessions[at].is_none() {
                    sessions[at] = index.owner(owner, HOUR).ok();
                    did.came_again += u64::from(sessions[at].is_some());
                }
                let Some(session) = &sessions[at] else { continue };
                let from = recorder.now();
                match index.put_of(session, &key(number as u64), &bytes, PutOptions::new()) {
                    Ok(_) => did.changes.push((number, Some(bytes), owner, from, recorder.now())),
                    Err(PutError::OwnerGone { .. }) => sessions[at] = None,
                    Err(error) => did.refuse(&error),
                }
            }
            5 => {
                index.remove(&key(number as u64)).unwrap();
                did.changes.push((number, None, 0, from, recorder.now()));
            }
            6..8 => {
                let many = if random.pick(8) == 0 { 30 } else { 1 };
                let filler = 100 + 2 * random.pick(60) as u64 + u64::from(me);
                for filler in (filler..).step_by(2).take(many) {
                    let put = index.put(&key(filler), &bytes, PutMode::Upsert);
                    put.err().iter().for_each(|error| did.refuse(error));
                }
            }
            8 => drop(index.remove_owner(owner).unwrap()),
            9 => clock.advance([grace() / 8, 2 * grace() + ns(20), 2 * grace() + ns(600)][random.pick(3)]),
            _ => drop(index.tidy()),
        }
    }
    did
}

fn by_two_threads(layout: Layout, seed: u64) -> (Table, Happened) {
    let (config, evicts) = config_of(layout, seed);
    let (index, recorder, clock, geometry) = begin(&config, seed, evicts);
    for filler in 0..60 {
        // Some find no room.
        let _ = index.put(&key(100 + filler), &value(filler, LENGTHS[filler as usize % 5]), PutMode::Upsert);
    }
    let is_over = AtomicBool::new(false);
    let works = (0..2).map(|me| {
        let (it, is_over) = ((&index, &*recorder, &clock), &is_over);
        move || script(it, me, seed, is_over)
    });
    let did = take_turns(seed, works.collect());
    let history = recorder.history(geometry.region_bytes());
    let hidden: Vec<_> = (1..=OWNERS).map(|owner| hidden_at(&history, &geometry, owner)).collect();
    let mut happened =
        Happened { owners_gone: hidden.iter().map(|at| at.len() as u64).sum(), ..Happened::default() };
    happened.add(&index);
    let mut versions = vec![vec![ABSENT]; KEYS];
    for Did { changes, came_again, refused } in did {
        happened.came_again += came_again;
        happened.refused += refused;
        for (nth, (number, has, owner, from, made)) in changes.iter().enumerate() {
            let next = changes[nth + 1..].iter().find(|(other, ..)| other == number);
            let until = next.map_or(history.end(), |(.., made)| *made);
            let versions = &mut versions[*number];
            versions.push(Version { value: has.clone(), from: *from, made: *made });
            // O1: what an owner was allowed to put was there before it went.
            let of_owner = usize::from(*owner).checked_sub(1).map(|at| &hidden[at]);
            let gone = of_owner.and_then(|at| at.iter().find(|at| **at > *from && **at <= until));
            match gone {
                _ if evicts && has.is_some() => {
                    // It may have gone at any time.
                    let until = gone.map_or(until, |at| *at);
                    versions.push(Version { value: None, from: *from, made: until });
                }
                Some(&at) => versions.push(Version { value: None, from: at, made: at }),
                None => {}
            }
        }
    }
    for (number, versions) in versions.iter().enumerate() {
        let (there, last) = (got(&index, number), versions.last().expect("the first"));
        let is_value = |version: &&Version| version.value == there && version.made >= last.from;
        let may_be = versions.iter().rev().take(2).any(|version| is_value(&version));
        assert!(may_be, "{layout}, seed {seed}: key {number} is {there:?} in the end, not {:?}", last.value);
    }
    (Table { geometry, history, versions, leaps: hidden.concat() }, happened)
}

// ---- runs -------------------------------------------------------------------------------------------

type Served = fn(Layout, u64) -> (Table, Happened);

/// What is wrong with these seeds' tables, and what clients and servers met.
fn found_wrong(
    serve: Served,
    layout: Layout,
    hardware: &[Hardware],
    seeds: std::ops::Range<u64>,
    clients: u64,
) -> (Option<String>, Met, Vec<Happened>) {
    let (mut met, mut servers) = (Met::default(), Vec::new());
    for seed in seeds {
        let (table, happened) = serve(layout, seed);
        servers.push(happened);
        for client in 0..clients {
            let hardware = hardware[client as usize % hardware.len()];
            if let Err(wrong) = table.client(several(hardware), seed << 20 | client, 4, &mut met) {
                let wrong = format!("{layout}, seed {seed}, client {client} ({hardware:?}): {wrong}");
                return (Some(wrong), met, servers);
            }
        }
    }
    (None, met, servers)
}

/// Presets of short runs: those of each family.
const SOME: [&str; 4] = ["windowed:8", "bucketized:4", "cluster", "list"];

/// Runs, and what happened to a layout's servers at least: owners that went and came again, entries that made room,
/// bytes of extents that moved, segments split and merged, keys moved.
fn random_schedules(serve: Served, short: (u64, u64), least: [u64; 6]) {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let (seeds, clients) = if is_long { (400, 600) } else { short };
    let mut moves = 0;
    for preset in presets().filter(|preset| is_long || SOME.contains(&preset.name)) {
        let (wrong, met, servers) = found_wrong(serve, preset.layout, &EACH, 0..seeds, clients);
        let sum = |what: fn(&Happened) -> u64| servers.iter().map(what).sum::<u64>();
        let sums = [
            sum(|it| it.owners_gone),
            sum(|it| it.came_again),
            sum(|it| it.evictions),
            sum(|it| it.moved_bytes),
            sum(|it| it.splits),
            sum(|it| it.merges),
        ];
        moves += sum(|it| it.moves);
        let others = [sum(|it| it.known_evicted), sum(|it| it.commits), sum(|it| it.refused)];
        println!("{}: {met:?}, {sums:?}, {others:?}", preset.name);
        assert_eq!(wrong, None);
        assert!(met.hidden > met.gets / 30, "{}: {met:?}", preset.name);
        assert!(sums.iter().zip(least).all(|(sum, least)| *sum >= least), "{}: {sums:?}", preset.name);
    }
    assert!(moves > 500, "{moves} moves");
}

#[test]
fn random_schedules_of_owners_and_eviction() {
    random_schedules(by_one_thread, (8, 120), [30, 30, 100, 20_000, 2, 1]);
}

#[test]
fn two_threads_that_remove_owners_and_evict() {
    random_schedules(by_two_threads, (8, 80), [20, 30, 100, 10_000, 2, 0]);
}

/// A rule is broken, and GETs, or the server itself, go wrong. No CRC is believed.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_owners_and_eviction_are_found() {
    use super::{LINES, SLOW};
    use oneread::internals::faults::{Broken, Rule};
    let (one, two): (Served, Served) = (by_one_thread, by_two_threads);
    let cases = [
        (Rule::OwnerGrace, one),
        (Rule::OwnerAbsent, one),
        (Rule::OwnerCheck, one),
        (Rule::OwnerPuts, two),
        (Rule::EvictBeside, one),
        (Rule::PinLook, one),
        (Rule::StartOnce, one),
        (Rule::StartKeeps, one),
    ];
    let mut lost = Vec::new();
    for (rule, serve) in cases {
        let broken = Broken::rule(rule);
        let found = ["windowed:8", "cluster", "list"].iter().find_map(|name| {
            let run = || found_wrong(serve, name.parse().unwrap(), &[LINES, SLOW], 0..40, 300);
            match std::panic::catch_unwind(run) {
                Ok((wrong, ..)) => wrong,
                Err(said) => {
                    let said = said.downcast_ref::<String>().cloned();
                    Some(format!("{name}: the server ends: {}", said.unwrap_or_default()))
                }
            }
        });
        drop(broken);
        println!("{rule:?}: {found:?}");
        lost.extend(found.is_none().then_some(rule));
    }
    assert!(lost.is_empty(), "cases lost: {lost:?}");
}
