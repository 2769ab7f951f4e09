//! Servers killed at every store of a change by which entries make room for others, an owner goes, or a put is made in
//! two steps. The next server has each entry as it was before or after, of an owner all or none, and the room of all
//! that is not there.

use super::cases::recorded;
use super::extents::{config, key, value};
use super::killed_extents::check_books;
use super::{grace, ns};
use oneread::embedded::{Clock, Index, OwnerSession, StartSession};
use oneread::internals::families::presets;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::sim::{Instant, Pace, Recorder};
use oneread::layout::Life;
use oneread::sink::LifeSink;
use oneread::{Config, Evict, PutMode, PutOptions, SwapOutcome, TableSize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const KEYS: u64 = 10;
const OWNER: u16 = 7;
const OTHER: u16 = 9;
/// Presets of short runs.
const TWO: [&str; 2] = ["windowed:8", "list"];
const AWAY: Duration = Duration::from_millis(4);
const HOUR: Duration = Duration::from_secs(3600);
/// Bytes of values: in the slot, and not.
const INLINE: usize = 8;
const LONG: usize = 200;

/// What a table has for those who read it: each key's value and life.
pub type Entries = BTreeMap<u64, (Vec<u8>, Life)>;

pub fn entries(index: &Index, keys: u64) -> Entries {
    let get = |number| {
        let (mut bytes, mut reader) = (Vec::new(), index.reader());
        let life = reader.get_into(&key(number), &mut LifeSink::default()).unwrap()?;
        assert!(reader.get_into(&key(number), &mut bytes).unwrap());
        Some((number, (bytes, life.expect("an entry of this table has one"))))
    };
    (0..keys).filter_map(get).collect()
}

struct Step {
    name: &'static str,
    from: Instant,
    to: Instant,
    before: Entries,
    after: Entries,
    /// Owners that have gone by now, for good or not.
    hidden: BTreeSet<u16>,
}

/// A server that is killed at each of its stores.
struct Served {
    index: Index,
    recorder: Arc<Recorder>,
    clock: Clock,
    geometry: Geometry,
    keys: u64,
    policy: Option<Evict>,
    steps: Vec<Step>,
    hidden: BTreeSet<u16>,
    puts: u64,
}

impl Served {
    fn new(config: &Config, keys: u64, policy: Option<Evict>) -> Served {
        let geometry = config.geometry().unwrap();
        let (region, recorder, clock) = recorded(&geometry);
        let index = Index::create_at_pace(region, geometry.clone(), clock.clone(), Pace::small()).unwrap();
        let index = match policy {
            Some(policy) => index.with_eviction(policy).unwrap(),
            None => index,
        };
        let (steps, hidden, puts) = Default::default();
        Served { index, recorder, clock, geometry, keys, policy, steps, hidden, puts }
    }

    fn step<R>(&mut self, name: &'static str, act: impl FnOnce(&mut Served) -> R) -> R {
        let (from, before) = (self.recorder.now(), entries(&self.index, self.keys));
        let result = act(self);
        let (to, after) = (self.recorder.now(), entries(&self.index, self.keys));
        self.steps.push(Step { name, from, to, before, after, hidden: self.hidden.clone() });
        result
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.puts += 1;
        value(self.puts, len)
    }

    fn put(&mut self, name: &'static str, number: u64, len: usize) {
        let bytes = self.bytes(len);
        self.step(name, |it| it.index.put(&key(number), &bytes, PutMode::Upsert).map(drop).expect("room"));
    }

    fn put_of(&mut self, name: &'static str, session: &OwnerSession, number: u64, len: usize) {
        let bytes = self.bytes(len);
        self.step(name, |it| {
            it.index.put_of(session, &key(number), &bytes, PutOptions::new()).map(drop).expect("room");
        });
    }

    fn tidy(&mut self, name: &'static str) {
        self.step(name, |it| it.index.tidy());
        self.clock.advance(2 * grace() + ns(600));
    }

    /// The next server, of which this one was killed at this store.
    fn killed(&self, at: Instant) -> (Index, Clock, Arc<Recorder>) {
        let (region, recorder, clock) = recorded(&self.geometry);
        self.recorder.repeat(at, &region, &clock);
        let (index, found) = Index::open_at_pace(region, clock.clone(), Pace::small()).unwrap();
        assert_eq!(found.misplaced, 0, "killed at {}", at.0);
        let index = match self.policy {
            Some(policy) => index.with_eviction(policy).unwrap(),
            None => index,
        };
        (index, clock, recorder)
    }

    /// Kills the server at every store of one in so many of each kind of steps. Returns how often.
    fn every_kill(&self, case: &str, each: usize) -> u64 {
        let mut kills = 0;
        let mut nth: BTreeMap<&str, usize> = BTreeMap::new();
        for Step { name, from, to, before, after, hidden } in &self.steps {
            let nth = nth.entry(name).or_default();
            *nth += 1;
            if *nth % each != 1 % each {
                continue;
            }
            for at in from.0..=to.0 {
                let when = format!("{case}, {name}, killed at store {} of {}", at - from.0, to.0 - from.0);
                let (index, clock, _recorder) = self.killed(Instant(at));
                let there = entries(&index, self.keys);
                let of_owner = |all: &Entries| all.values().filter(|(_, life)| life.owner == OWNER).count();
                if *name == "owner goes" {
                    // O1: all or none.
                    assert!(of_owner(&there) == 0 || there == *before, "{when}: {there:?}");
                }
                let is_one_of_both = |number: &u64| {
                    let now = there.get(number);
                    now == before.get(number) || now == after.get(number)
                };
                assert!((0..self.keys).all(|number| is_one_of_both(&number)), "{when}: {there:?}");
                assert!(at < to.0 || there == *after, "{when}: {there:?}, not {after:?}");
                kills += 1;
                self.goes_on(&index, &clock, &there, hidden, &when);
            }
        }
        kills
    }

    /// The next server comes to an end with all that was left, and takes as much as a new one.
    fn goes_on(&self, index: &Index, clock: &Clock, there: &Entries, hidden: &BTreeSet<u16>, when: &str) {
        for _ in 0..20 {
            while index.tidy() == Some(Duration::ZERO) {}
            clock.advance(4 * grace());
        }
        // Those who were not removed are only away.
        assert_eq!(entries(index, self.keys), *there, "{when}, and some time later");
        // P2, O5: what is hidden has gone.
        assert_eq!(index.len(), there.len() as u64, "{when}: entries that nobody can see");
        check_books(index, when);
        for owner in hidden {
            assert!(index.owner(*owner, HOUR).is_ok(), "{when}: owner {owner} cannot come again");
        }
        // O6: who is away for too long goes, with all entries.
        for _ in 0..8 {
            clock.advance(AWAY);
            while index.tidy() == Some(Duration::ZERO) {}
        }
        let stays: Entries = there.clone().into_iter().filter(|(_, (_, life))| life.owner != OTHER).collect();
        assert_eq!(entries(index, self.keys), stays, "{when}, and when nobody has come");
        if self.policy.is_some() {
            // Z1: the policy knows each key that is there.
            for number in 0..100 {
                let put = index.put(&key(1_000 + number), &value(number, INLINE), PutMode::Insert);
                assert!(put.is_ok(), "{when}: {number}: {put:?}");
            }
        }
    }
}

fn config_of(preset: oneread::layout::Layout, size: TableSize) -> Config {
    config(preset, 2).size(size).life(true).owners(true)
}

/// An owner's entries come, are replaced, go with it, are replaced again while they are hidden, and are removed.
fn owners(config: &Config) -> Served {
    let mut it = Served::new(config, KEYS, None);
    let session = it.step("session", |it| it.index.owner(OWNER, HOUR).unwrap());
    // It is there until the server is killed.
    let other = it.step("session", |it| it.index.owner(OTHER, AWAY).unwrap());
    for number in 0..6 {
        it.put_of("put of an owner", &session, number, if number % 2 == 0 { LONG } else { INLINE });
    }
    it.put_of("put of another", &other, 6, INLINE);
    it.put_of("put of another", &other, 7, LONG);
    it.put("nobody's", 8, INLINE);
    it.put("nobody's in its place", 0, INLINE);
    it.put_of("owner's in its place", &session, 8, LONG);
    it.put_of("another's in its place", &other, 1, INLINE);
    it.step("owner goes", |it| {
        it.hidden.insert(OWNER);
        assert!(it.index.remove_owner(OWNER).unwrap());
    });
    it.put("in place of what is hidden", 2, LONG);
    let bytes = it.bytes(INLINE);
    it.step("swapped from absence", |it| {
        let put = it.index.put(&key(3), &bytes, PutMode::Insert);
        assert!(put.is_ok(), "{put:?}");
    });
    for _ in 0..6 {
        it.tidy("removed with its owner");
    }
    let session = it.step("comes again", |it| {
        it.hidden.remove(&OWNER);
        it.index.owner(OWNER, HOUR).unwrap()
    });
    it.put_of("put of an owner again", &session, 4, LONG);
    let (there, _) = entries(&it.index, KEYS)[&4].clone();
    let bytes = it.bytes(INLINE);
    it.step("swapped", |it| {
        assert_eq!(it.index.compare_and_swap(&key(4), &there, &bytes), Ok(SwapOutcome::Swapped));
    });
    it
}

fn start(it: &mut Served, session: &StartSession, number: u64, len: usize) -> (u64, Vec<u8>) {
    let bytes = it.bytes(len);
    let ticket = it.step("start", |it| it.index.put_start(session, &key(number), len, HOUR).expect("room"));
    (ticket, bytes)
}

fn commit(it: &mut Served, session: &StartSession, number: u64, (ticket, bytes): (u64, Vec<u8>)) {
    it.step("piece", |it| it.index.put_piece(session, &key(number), ticket, &bytes).expect("it fits"));
    it.step("commit", |it| {
        it.index.put_commit(session, &key(number), ticket, None).map(drop).expect("its room is held");
    });
}

/// Puts are started over something and nothing, and committed, given up, removed in between, or left.
fn two_steps(config: &Config) -> Served {
    let mut it = Served::new(config, KEYS, None);
    let session = it.index.start_session().unwrap();
    for number in 0..4 {
        it.put("put", number, if number % 2 == 0 { LONG } else { INLINE });
    }
    for (number, len) in [(0, LONG), (1, INLINE), (4, LONG), (5, INLINE)] {
        let started = start(&mut it, &session, number, len);
        commit(&mut it, &session, number, started);
    }
    for number in [2, 6] {
        let (ticket, _) = start(&mut it, &session, number, LONG);
        it.step("abort", |it| assert_eq!(it.index.put_abort(&session, &key(number), ticket), Ok(true)));
    }
    let started = start(&mut it, &session, 3, INLINE);
    it.step("removed while it is started", |it| assert_eq!(it.index.remove(&key(3)), Ok(true)));
    commit(&mut it, &session, 3, started);
    let started = start(&mut it, &session, 7, LONG);
    it.put("put while it is started", 7, INLINE);
    commit(&mut it, &session, 7, started);
    start(&mut it, &session, 8, LONG);
    drop(session);
    for _ in 0..4 {
        it.tidy("its session has ended");
    }
    it
}

/// A table is full, and its heap, too: each put has others go.
fn evicting(config: &Config, policy: Evict) -> Served {
    const MANY: u64 = 80;
    let mut it = Served::new(config, MANY, Some(policy));
    for number in 0..70 {
        it.put("fills", number, if number % 7 == 0 { LONG } else { INLINE });
    }
    let evictions = it.index.evictions();
    assert!(evictions.ahead + evictions.at_put > 0, "{evictions:?}");
    for number in 70..74 {
        it.put("puts", number, INLINE);
    }
    for number in 0..30 {
        it.put("puts a long value", 40 + number, LONG);
        it.clock.advance(2 * grace() + ns(600));
    }
    it.tidy("tidies");
    it
}

#[test]
fn every_kill_of_owners() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    for preset in presets().filter(|preset| is_long || TWO.contains(&preset.name)) {
        let config = config_of(preset.layout, TableSize::Slots(64));
        let kills = [owners(&config), two_steps(&config)].map(|it| it.every_kill(preset.name, 1));
        println!("{}: {kills:?} kills", preset.name);
        assert!(kills.iter().all(|kills| *kills > 100), "{}: {kills:?}", preset.name);
    }
}

/// Kills in a table that grows.
#[test]
fn every_kill_of_owners_in_a_table_that_grows() {
    for name in TWO {
        let size = TableSize::Growing { bytes_max: (512 + 320) << 10, segment_slots: Some(64) };
        let config = config_of(name.parse().unwrap(), size);
        let kills = [owners(&config), two_steps(&config)].map(|it| it.every_kill(name, 1));
        println!("{name}, which grows: {kills:?} kills");
        assert!(kills.iter().all(|kills| *kills > 100), "{name}: {kills:?}");
    }
}

#[test]
fn every_kill_of_entries_that_make_room() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let some = presets().filter(|preset| is_long || TWO.contains(&preset.name));
    for (nth, preset) in some.enumerate() {
        let config = config_of(preset.layout, TableSize::Slots(64));
        let (policy, _) = Evict::ALL[nth % Evict::ALL.len()];
        let kills = evicting(&config, policy).every_kill(preset.name, if is_long { 1 } else { 48 });
        println!("{}, {policy}: {kills} kills", preset.name);
        assert!(kills > 100, "{}: {kills}", preset.name);
    }
}

/// What a killed server has half written stays.
#[cfg(feature = "faults")]
#[test]
fn what_is_half_written_beside_owners_is_noticed() {
    use oneread::internals::faults::{Broken, Rule};
    let _broken = Broken::rule(Rule::Undo);
    let config = config_of("windowed:8".parse().unwrap(), TableSize::Slots(64));
    let run = || [owners(&config), two_steps(&config)].map(|it| it.every_kill("Undo broken", 1));
    let panic = std::panic::catch_unwind(run).expect_err("case lost");
    println!("{:?}", panic.downcast_ref::<String>());
}
