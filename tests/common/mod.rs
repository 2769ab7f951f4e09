//! Shared by all integration tests: a run over all presets, one type of operation, one model, and
//! one check of the table's structure.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use oneread::fabric::{Direct, Fabric, ReadId, Stretch};
use oneread::internals::fabric::shm::Shm;
use oneread::internals::families;
use oneread::internals::families::presets;
use oneread::internals::get::Proof;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::chain::{self, Block};
use oneread::internals::layout::geometry::{Family, Window};
use oneread::internals::layout::hash::{Seeds, mix};
use oneread::internals::placement::Preset;
use oneread::internals::reader::{Limits, Reader};
use oneread::internals::region::{Backing, Region, RegionError};
use oneread::internals::wire::{self, Reply};
use oneread::sink::Sink;
use oneread::{
    Address, Client, ClientOptions, Config, PutMode, PutOutcome, RequestPath, ServeError, Server,
    ServerConfig, SwapOutcome, TableSize, TcpAddress, Values,
    embedded::{Clock, Index},
    error::{KeyError, KeyLengthError, PutError, SaveError},
    layout::Geometry,
};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An error and its causes.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

// ---- every preset -----------------------------------------------------------------------------------

/// Runs a test once on every preset of every family. When the test fails, it names the preset.
pub fn on_every_preset(mut story: impl FnMut(&'static Preset)) {
    /// Prints the preset's name when dropped by a panic.
    struct Name(String);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("this was preset {}", self.0);
            }
        }
    }
    for preset in presets() {
        let _name = Name(preset.layout.to_string());
        story(preset);
    }
}

/// The grace time of tests that set their clock by hand.
pub const GRACE: Duration = Duration::from_millis(2);

/// The time allowed for anything that ends by itself, on a busy machine. It only tells a hang from
/// slowness.
pub const SOON: Duration = Duration::from_secs(60);

/// Options of a client that gives up only when something hangs.
pub fn patient() -> ClientOptions {
    let limits = Limits::new().deadline(SOON);
    ClientOptions::new().limits(limits).deadline(SOON)
}

/// The default preset.
pub fn default_preset() -> &'static Preset {
    presets().next().unwrap()
}

/// A table of `slots` main slots. Its seeds follow from `seed`.
pub fn config(preset: &Preset, slots: u64, key_max: usize, value_max: usize, seed: u64) -> Config {
    Config::new()
        .layout(preset.layout)
        .size(TableSize::Slots(slots))
        .key_max(key_max)
        .key_inline(key_max)
        .value_max(value_max)
        .grace(GRACE)
        .seeds(Seeds::from_number(seed))
}

/// An empty table in anonymous memory.
pub fn index(config: &Config, clock: Clock) -> Index {
    let geometry = config.geometry().expect("a sound configuration");
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).expect("memory for a region");
    Index::create(region, geometry, clock).unwrap()
}

// ---- devices ---------------------------------------------------------------------------------------

/// Whether there is an RDMA device. If not, says so, and fails if ONEREAD_REQUIRE_VERBS is set.
pub fn is_there_a_device(test: &str) -> bool {
    let there = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if !there {
        eprintln!("skipped {test}: this machine has no RDMA device (tests/soft-roce-guest has one)");
        assert!(std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none(), "a device was required");
    }
    there
}

// ---- numbers, keys and values -----------------------------------------------------------------------

/// A small random number generator for tests without proptest. It gives the same numbers on every
/// machine.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Key number `n`, 1 to `key_max` bytes long. Where there is room, five successive numbers give a key, a
/// longer key that begins with it, and three that differ from the longer one in one byte: near the
/// beginning, in the middle, at the end. Slots that compare too little would confuse them.
pub fn key(n: u32, key_max: usize) -> Vec<u8> {
    let root = n / 5;
    let short = (2 + mix(root.into()) as usize % 40).min(key_max.div_ceil(2));
    let length = if n.is_multiple_of(5) { short } else { key_max };
    let mut key: Vec<u8> = root.to_le_bytes()[..2].to_vec();
    key.extend((2..length).map(|at| mix((u64::from(root) << 32) + at as u64) as u8));
    match n % 5 {
        2 => key[2] ^= 1,
        3 => key[length / 2] ^= 2,
        4 => key[length - 1] ^= 4,
        _ => {}
    }
    key
}

/// A value of `length` bytes, different for each `seed`.
pub fn value(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| mix(seed ^ (at as u64 / 8) << 40).to_le_bytes()[at % 8]).collect()
}

// ---- operations -------------------------------------------------------------------------------------

/// All operations on a table.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Update(Vec<u8>, Vec<u8>),
    /// Expects the value that the key has, or else another one.
    Swap(Vec<u8>, bool, Vec<u8>),
    Remove(Vec<u8>),
    Get(Vec<u8>),
    GetMany(Vec<Vec<u8>>),
    AdvanceTime(Duration),
    Tidy,
}

impl fmt::Debug for Op {
    /// Short, so that a failing sequence fits on a screen.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |k: &[u8]| {
            let hex: String = k.iter().take(3).map(|b| format!("{b:02x}")).collect();
            format!("{hex}..{}", k.len())
        };
        match self {
            Op::Put(k, v) => write!(f, "Put({}, {})", name(k), name(v)),
            Op::Insert(k, v) => write!(f, "Insert({}, {})", name(k), name(v)),
            Op::Update(k, v) => write!(f, "Update({}, {})", name(k), name(v)),
            Op::Swap(k, of, v) => write!(f, "Swap({}, {of}, {})", name(k), name(v)),
            Op::Remove(k) => write!(f, "Remove({})", name(k)),
            Op::Get(k) => write!(f, "Get({})", name(k)),
            Op::GetMany(ks) => write!(f, "GetMany({} keys)", ks.len()),
            Op::AdvanceTime(by) => write!(f, "AdvanceTime({by:?})"),
            Op::Tidy => write!(f, "Tidy"),
        }
    }
}

/// The target of operations: a table in this process, or a server through its client.
pub trait Target {
    fn put(&mut self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError>;
    fn swap(&mut self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<SwapOutcome, PutError>;
    fn remove(&mut self, key: &[u8]) -> Result<bool, PutError>;
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>>;
    fn get_many(&mut self, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>>;
    fn advance(&mut self, by: Duration);
    fn tidy(&mut self);
}

/// A table and its clock.
pub struct Table {
    pub index: Index,
    pub clock: Clock,
}

impl Table {
    pub fn new(config: &Config) -> Table {
        let clock = Clock::manual();
        Table { index: index(config, clock.clone()), clock }
    }

    pub fn geometry(&self) -> &Geometry {
        self.index.geometry()
    }

    pub fn inspector(&self) -> Inspector<'_> {
        Inspector::new(self.index.region(), self.index.geometry())
    }

    /// A reader that uses the table's clock.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let fabric = Shm::new(self.index.region(), self.geometry());
        Reader::new(fabric, self.geometry(), self.clock.clone(), Limits::default())
    }

    /// Lets grace periods pass until nothing waits for one.
    pub fn settle(&self) {
        // A block is emptied, unlinked and given back: three periods. More are needed only if one
        // of these steps makes another one necessary.
        for _ in 0..16 {
            self.clock.advance(3 * self.geometry().grace());
            if self.index.tidy().is_none() {
                return;
            }
        }
        panic!("traces are left after 16 grace periods: {:?}", self.index.tidy());
    }
}

/// A fabric without its direct look: every GET goes through the machine.
pub struct ByMachine<F>(pub F);

impl<F> Direct for ByMachine<F> {}

impl<F: Fabric> Fabric for ByMachine<F> {
    type Landed<'a>
        = F::Landed<'a>
    where
        Self: 'a;
    const EXACT: bool = F::EXACT;
    type Mark = F::Mark;
    type Error = F::Error;

    fn credits(&self) -> usize {
        self.0.credits()
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), F::Error> {
        self.0.post(reads)
    }

    fn poll(&mut self, sink: impl FnMut(ReadId, &mut F::Landed<'_>)) -> Result<(), F::Error> {
        self.0.poll(sink)
    }

    fn mark(&mut self, home: u64) -> F::Mark {
        self.0.mark(home)
    }

    fn proof(&mut self, home: u64, mark: F::Mark) -> Proof {
        self.0.proof(home, mark)
    }

    fn took_less(&mut self, mark: F::Mark, allowance: Duration) -> bool {
        self.0.took_less(mark, allowance)
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), F::Error> {
        self.0.fetch(stretches, out)
    }
}

impl Target for Table {
    fn put(&mut self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        self.index.put(key, value, mode)
    }

    fn swap(&mut self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<SwapOutcome, PutError> {
        self.index.compare_and_swap(key, expected, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool, PutError> {
        self.index.remove(key)
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = vec![0xee; 3];
        self.index.reader().get_into(key, &mut value).expect("a conclusive look").then_some(value)
    }

    fn get_many(&mut self, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let mut calls = 0;
        let each = |n: usize, value: Option<&[u8]>| {
            calls += 1;
            values[n] = value.map(<[u8]>::to_vec);
        };
        self.index.reader().get_many(keys, each).expect("conclusive looks");
        assert_eq!(calls, keys.len(), "one answer for each key");
        values
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
    }

    fn tidy(&mut self) {
        self.index.tidy();
    }
}

impl Target for Client {
    fn put(&mut self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        let answer = match mode {
            PutMode::Upsert => Client::put(self, key, value),
            PutMode::Insert => Client::insert(self, key, value),
            PutMode::Update => Client::update(self, key, value),
        };
        rejected_or(answer)
    }

    fn swap(&mut self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<SwapOutcome, PutError> {
        rejected_or(Client::compare_and_swap(self, key, expected, value))
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool, PutError> {
        rejected_or(Client::remove(self, key))
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        Client::get(self, key).expect("a conclusive look")
    }

    fn get_many(&mut self, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
        let values = Client::get_many(self, keys).expect("conclusive looks");
        let values: Vec<_> = values.into_iter().map(|value| value.expect("a key that fits")).collect();
        // The model's keys change only between two operations: every way has the same answers.
        let (mut flat, mut present) = (Values::new(), vec![u64::MAX; 9]);
        self.get_many_into(keys, &mut flat).expect("conclusive looks");
        assert!(flat.iter().eq(values.iter().map(|value| value.as_deref())));
        self.contains_many(keys, &mut present).expect("conclusive looks");
        assert_eq!(present.len(), keys.len().div_ceil(64));
        let bit = |n: usize| present[n / 64] >> (n % 64) & 1 == 1;
        assert!(values.iter().enumerate().all(|(n, value)| bit(n) == value.is_some()));
        values
    }

    /// A served table uses the system's clock.
    fn advance(&mut self, _: Duration) {}

    /// The server tidies by itself.
    fn tidy(&mut self) {}
}

fn rejected_or<T>(answer: Result<T, oneread::MutateError>) -> Result<T, PutError> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.rejection().unwrap_or_else(|| panic!("the server is there: {error}"))),
    }
}

/// An operation on key `n`, with keys of up to 16 bytes and values of up to 32. It is one of the
/// first `kinds` of 12: puts, inserts, updates, swaps, removes (9), GETs (2), batches of GETs (1).
pub fn some_op(numbers: &mut Numbers, n: u32, kinds: u64) -> Op {
    let v = value(numbers.next(), numbers.below(33) as usize);
    match numbers.below(kinds) {
        0..4 => Op::Put(key(n, 16), v),
        4..6 => Op::Insert(key(n, 16), v),
        6 if v.len().is_multiple_of(2) => Op::Update(key(n, 16), v),
        6 => Op::Swap(key(n, 16), v.len() % 4 == 1, v),
        7 | 8 => Op::Remove(key(n, 16)),
        9 | 10 => Op::Get(key(n, 16)),
        _ => Op::GetMany((n..n + 40).map(|n| key(n, 16)).collect()),
    }
}

/// The expected content of a table.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub keys: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Model {
    /// Applies `op` to the model and to the target, and compares the answers. Returns the key of an
    /// insert for which the table was full. Whether that was right is for the caller to check, who
    /// can see the table.
    pub fn apply(&mut self, target: &mut impl Target, op: &Op) -> Option<Vec<u8>> {
        match op {
            Op::Put(k, v) => return self.put(target, k, v, PutMode::Upsert),
            Op::Insert(k, v) => return self.put(target, k, v, PutMode::Insert),
            Op::Update(k, v) => return self.put(target, k, v, PutMode::Update),
            Op::Swap(k, of_the_key, v) => {
                let mut given = self.keys.get(k).cloned().unwrap_or_default();
                if !of_the_key && given.pop().is_none() {
                    given.push(7);
                }
                let expected = match self.keys.get_mut(k) {
                    None => SwapOutcome::Absent,
                    Some(_) if !of_the_key => SwapOutcome::Differs,
                    Some(value) => {
                        value.clone_from(v);
                        SwapOutcome::Swapped
                    }
                };
                assert_eq!(target.swap(k, &given, v), Ok(expected), "{op:?}");
            }
            Op::Remove(k) => {
                assert_eq!(target.remove(k), Ok(self.keys.remove(k).is_some()), "{op:?}");
            }
            Op::Get(k) => assert_eq!(target.get(k).as_ref(), self.keys.get(k), "{op:?}"),
            Op::GetMany(ks) => {
                let expected: Vec<_> = ks.iter().map(|k| self.keys.get(k).cloned()).collect();
                assert_eq!(target.get_many(ks), expected, "{op:?}");
            }
            Op::AdvanceTime(by) => target.advance(*by),
            Op::Tidy => target.tidy(),
        }
        None
    }

    fn put(&mut self, target: &mut impl Target, k: &[u8], v: &[u8], mode: PutMode) -> Option<Vec<u8>> {
        let there = self.keys.contains_key(k);
        let expected = match (mode, there) {
            (PutMode::Insert, true) => PutOutcome::Exists,
            (PutMode::Update, false) => PutOutcome::Missing,
            (_, true) => PutOutcome::Updated,
            (_, false) => PutOutcome::Inserted,
        };
        match target.put(k, v, mode) {
            Ok(put) => {
                assert_eq!(put, expected, "{mode:?} of {k:02x?}");
                if matches!(put, PutOutcome::Inserted | PutOutcome::Updated) {
                    self.keys.insert(k.to_vec(), v.to_vec());
                }
                None
            }
            Err(PutError::Full { keys, .. }) if expected == PutOutcome::Inserted => {
                assert_eq!(keys, self.keys.len() as u64, "the error counts the keys");
                Some(k.to_vec())
            }
            Err(error) => panic!("{mode:?} of {k:02x?}, present: {there}: {error}"),
        }
    }
}

// ---- structure --------------------------------------------------------------------------------------

/// Checks every slot. The slots pass the check of a remote reader. Each key of the model is in
/// exactly one slot, inside its windows. Where a key is displaced, its home's filter names it.
pub fn check_structure(table: &Table, model: &Model) {
    let geometry = table.geometry();
    let inspector = table.inspector();
    let mut left: HashMap<&[u8], &[u8]> = model.keys.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let linked = linked_blocks(table);
    let (mut displaced, mut main, mut overflow) = (0, 0, 0);
    for report in inspector.slots() {
        // Nobody reads a block that no chain leads to.
        let block = chain::block_of(geometry, report.slot);
        if block.is_some_and(|block| !linked.contains_key(&block)) {
            continue;
        }
        assert_eq!(report.verdict, Ok(()), "{:?}", report.slot);
        if report.key.is_empty() {
            assert!(report.value.is_empty(), "a free slot with a value: {report:?}");
            continue;
        }
        let expected = left.remove(report.key.as_slice());
        assert_eq!(expected, Some(report.value.as_slice()), "in no slot or in two: {report:?}");
        let (windows, named) = inspector.windows(&report.key);
        let nth = windows.iter().position(|window| window.contains(report.slot));
        assert!(nth.is_some(), "outside its windows {windows:?}: {report:?}");
        assert!(nth == Some(0) || named, "displaced, and its home's filter does not say so: {report:?}");
        displaced += usize::from(nth != Some(0));
        *if block.is_none() { &mut main } else { &mut overflow } += 1;
    }
    assert!(left.is_empty(), "keys in no slot: {left:02x?}");
    assert_eq!((table.index.len(), table.index.displaced()), (main + overflow, displaced));
    let occupancy = inspector.occupancy(|_| {});
    assert_eq!((occupancy.live_main, occupancy.live_overflow), (main, overflow));
    assert_eq!(occupancy.displaced, displaced as u64);
    assert_eq!(table.index.is_empty(), model.keys.is_empty());
    assert_eq!(table.index.counts().main_slots, geometry.main_slots());
}

/// Checks the table after every grace period: there are no ghosts, and filters name exactly the
/// displaced keys. No chain leads through a block without keys.
pub fn check_settled(table: &Table) {
    let geometry = table.geometry();
    let inspector = table.inspector();
    let mut filters: HashMap<u64, u32> = HashMap::new();
    let mut live_blocks = std::collections::HashSet::new();
    for report in inspector.slots() {
        assert_eq!(report.header.ghost, 0, "a ghost that nobody takes away: {report:?}");
        if report.key.is_empty() {
            continue;
        }
        let key = geometry.hashed(&report.key);
        if !geometry.primary(key).contains(report.slot) {
            *filters.entry(key.home()).or_default() |= families::filter_bit(geometry, key);
        }
        live_blocks.extend(chain::block_of(geometry, report.slot));
    }
    let mask = u32::MAX >> (32 - families::filter_bits(geometry));
    for home in 0..geometry.homes() {
        let aux = inspector.slot(geometry.window(home).first).header.aux;
        let exact = filters.get(&home).copied().unwrap_or(0);
        assert_eq!(aux & mask, exact, "filter of home {home}");
    }
    for (block, home) in linked_blocks(table) {
        assert!(live_blocks.contains(&block), "home {home}: nobody unlinks the empty {block:?}");
    }
}

/// The overflow blocks in chains, with the home of each.
pub fn linked_blocks(table: &Table) -> HashMap<Block, u64> {
    let geometry = table.geometry();
    let inspector = table.inspector();
    let mut linked = HashMap::new();
    for home in 0..if geometry.overflow_blocks() == 0 { 0 } else { geometry.homes() } {
        let mut head = geometry.window(home).first;
        while let Some(block) = chain::link(geometry, inspector.slot(head).header.aux) {
            assert_eq!(linked.insert(block, home), None, "{block:?} is in two chains");
            head = chain::window(geometry, block).first;
        }
    }
    linked
}

/// The cost of a GET of `key` when nobody changes the table. A present key takes one READ for each
/// window up to its own. An absent key takes one, or all of them if the home's filter happens to
/// name it.
pub fn reads_expected(table: &Table, key: &[u8]) -> u64 {
    let inspector = table.inspector();
    let (windows, named) = inspector.windows(key);
    let holds = |window: &oneread::internals::layout::geometry::Window| {
        window.iter().any(|slot| inspector.slot(slot).key == key)
    };
    match windows.iter().position(holds) {
        Some(nth) => nth as u64 + 1,
        None if named => windows.len() as u64,
        None => 1,
    }
}

/// Whether a put was right to find no room for `newcomer`. For cuckoo: no arrangement of keys in
/// their windows includes it (decided by a bipartite matching). For the others, and for `pilaf`,
/// which walks at random and gives up at some point: there is no free slot in its windows or its
/// chain.
pub fn is_full_for(table: &Table, model: &Model, newcomer: &[u8]) -> bool {
    let inspector = table.inspector();
    let geometry = table.geometry();
    let windows = |key: &[u8]| inspector.windows(key).0;
    if geometry.layout().family != Family::Cuckoo || geometry.layout().window_slots() == 1 {
        let mut slots = windows(newcomer).into_iter().flat_map(|window| window.iter());
        return slots.all(|slot| !inspector.slot(slot).key.is_empty());
    }
    let keys: Vec<&[u8]> = model.keys.keys().map(Vec::as_slice).chain([newcomer]).collect();
    let mut owner: Vec<Option<usize>> = vec![None; geometry.slots() as usize];
    // Kuhn's augmenting paths: finds a slot for key `n` if others can make room.
    fn seat(n: usize, options: &[Vec<usize>], owner: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        options[n].iter().any(|&slot| {
            if std::mem::replace(&mut seen[slot], true) {
                return false;
            }
            let free = owner[slot].is_none_or(|other| seat(other, options, owner, seen));
            if free {
                owner[slot] = Some(n);
            }
            free
        })
    }
    let options: Vec<Vec<usize>> = keys
        .iter()
        .map(|k| windows(k).into_iter().flat_map(|w| w.iter()).map(|slot| slot.0 as usize).collect())
        .collect();
    let seated = (0..keys.len()).filter(|&n| {
        let mut seen = vec![false; owner.len()];
        seat(n, &options, &mut owner, &mut seen)
    });
    seated.count() < keys.len()
}

// ---- what any client is asked, over any fabric ------------------------------------------------------

/// The model suite: a served table of 64 slots, with keys up to 16 bytes and values up to 46, answers as a map does.
pub fn is_a_map(client: &mut Client) {
    let mut model = Model::default();
    let mut numbers = Numbers(11);
    for _ in 0..400 {
        let n = numbers.below(100) as u32;
        let (k, v) = (key(n, 16), value(numbers.next(), numbers.below(47) as usize));
        let op = match numbers.below(10) {
            0..3 => Op::Put(k, v),
            3 => Op::Insert(k, v),
            4 => Op::Update(k, v),
            5 => Op::Remove(k),
            6 => Op::GetMany((0..numbers.below(40) as u32).map(|m| key((n + m) % 110, 16)).collect()),
            _ => Op::Get(k),
        };
        model.apply(client, &op);
    }
    let all: Vec<_> = (0..110).map(|n| key(n, 16)).collect();
    model.apply(client, &Op::GetMany(all));
    assert_eq!(client.server_stats().unwrap().keys, model.keys.len() as u64);
    assert!(model.keys.len() > 20, "too few keys to show anything");
}

/// Batches whose keys have outcomes of their own, batches that end early, and compare-and-swap. The
/// table takes 200 keys more, and values of at least 8 bytes.
pub fn batches_and_swaps(client: &mut Client) {
    modes_of_batches(client);
    gets_of_bad_keys(client);
    gets_that_end_early(client);
    swaps(client);
    counts_by_swaps(client);
}

/// The rejection of a value of this length.
fn too_long(client: &Client, given: usize) -> PutError {
    let (max, stored_max) = (client.value_max(), client.geometry().value_max());
    match stored_max - max {
        0 => PutError::ValueLength { given, max },
        overhead => PutError::EncryptedLength { given, stored: given + overhead, stored_max },
    }
}

/// A batch only inserts, only updates, or removes; the answers are those of single changes.
fn modes_of_batches(client: &mut Client) {
    let key_max = client.geometry().key_max();
    let bad = vec![1; key_max + 1];
    let key_length = |given| PutError::KeyLength { given, max: key_max };
    let (a, b): (&[u8], &[u8]) = (b"a", b"b");
    let answers = client.update_many(&[(a, b"1"), (&bad, b"1")]).unwrap();
    assert_eq!(answers, [Ok(PutOutcome::Missing), Err(key_length(bad.len()))]);
    let answers = client.insert_many(&[(a, b"1"), (b"", b"1"), (a, b"2"), (b, b"3")]).unwrap();
    let (inserted, exists) = (Ok(PutOutcome::Inserted), Ok(PutOutcome::Exists));
    assert_eq!(answers, [inserted.clone(), Err(key_length(0)), exists, inserted]);
    let found = client.get_many(&[a, b]).unwrap();
    assert_eq!(found, [Ok(Some(b"1".to_vec())), Ok(Some(b"3".to_vec()))]);
    let answers = client.update_many(&[(a, b"4"), (b"c", b"5")]).unwrap();
    assert_eq!(answers, [Ok(PutOutcome::Updated), Ok(PutOutcome::Missing)]);
    assert_eq!(client.get(a).unwrap().as_deref(), Some(&b"4"[..]));
    let answers = client.remove_many(&[a, b"c", &bad, b, a]).unwrap();
    assert_eq!(answers, [Ok(true), Ok(false), Err(key_length(bad.len())), Ok(true), Ok(false)]);
    assert_eq!(client.remove_many::<&[u8]>(&[]).unwrap(), []);
    // More than are sent ahead of the replies.
    let keys: Vec<_> = (0..1300u32).map(|n| (n % 150).to_le_bytes()).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (key, key)).collect();
    for (n, answer) in client.insert_many(&pairs).unwrap().into_iter().enumerate() {
        assert_eq!(answer, Ok(if n < 150 { PutOutcome::Inserted } else { PutOutcome::Exists }));
    }
    for (n, answer) in client.remove_many(&keys).unwrap().into_iter().enumerate() {
        assert_eq!(answer, Ok(n < 150), "key {n}");
    }
}

/// A key that the table cannot hold fails no other key of a batch, wherever it stands.
fn gets_of_bad_keys(client: &mut Client) {
    let max = client.geometry().key_max();
    client.put(b"there", b"value").unwrap();
    let (there, absent, long) = (b"there".to_vec(), b"absent".to_vec(), vec![1; max + 1]);
    let mut flat = Values::new();
    let mut present = Vec::new();
    for bad in [Vec::new(), long] {
        let refused = KeyError::from(KeyLengthError { given: bad.len(), max });
        for place in 0..=4 {
            let mut keys = vec![there.clone(), absent.clone(), there.clone(), absent.clone()];
            keys.insert(place, bad.clone());
            let answers = client.get_many(&keys).unwrap();
            client.get_many_into(&keys, &mut flat).unwrap();
            client.contains_many(&keys, &mut present).unwrap();
            assert_eq!((flat.len(), flat.refused()), (5, &[(place, refused)][..]));
            for (n, answer) in answers.into_iter().enumerate() {
                let expected = match &keys[n] {
                    key if *key == bad => Err(refused),
                    key => Ok((*key == there).then(|| b"value".to_vec())),
                };
                assert_eq!(answer, expected, "key {n} with a bad one at {place}");
                assert_eq!(flat.get(n), expected.as_ref().ok().and_then(|value| value.as_deref()));
                assert_eq!(present[0] >> n & 1 == 1, matches!(expected, Ok(Some(_))));
            }
        }
        let all_bad = client.get_many(&[&bad, &bad]).unwrap();
        assert_eq!(all_bad, [Err(refused), Err(refused)]);
    }
    client.get_many_into(&[&there], &mut flat).unwrap();
    assert_eq!(flat.refused(), [], "nothing is left of the batch before");
    client.remove(&there).unwrap();
}

/// A callback breaks off at any answer: it is not called again, and the next batch is not disturbed.
fn gets_that_end_early(client: &mut Client) {
    let keys: Vec<_> = (0..100u32).map(|n| n.to_le_bytes()).collect();
    let pairs: Vec<_> = keys.iter().step_by(2).map(|key| (key, key)).collect();
    assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
    let with_bad: Vec<_> = keys.iter().map(|key| &key[..]).chain([&b""[..], &[]]).collect();
    for last in [1, 2, 15, 16, 17, 40, 99, 100, 101, 102, 103] {
        let mut answered = 0;
        let broken_off = client
            .get_many_with(&with_bad, |n, answer| {
                answered += 1;
                let expected = (n < 100).then(|| (n % 2 == 0).then_some(with_bad[n]));
                assert_eq!(answer.ok(), expected, "key {n}");
                if answered == last { ControlFlow::Break(n) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!((answered, broken_off.is_break()), (last.min(102), last <= 102));
        // Only keys that fit: on shm they are looked for directly.
        answered = 0;
        let broken_off = client.get_many_with(&keys, |_, _| {
            answered += 1;
            if answered == last { ControlFlow::Break("enough") } else { ControlFlow::Continue(()) }
        });
        let expected = if last <= 100 { ControlFlow::Break("enough") } else { ControlFlow::Continue(()) };
        assert_eq!((answered, broken_off.unwrap()), (last.min(100), expected));
        for (n, found) in client.get_many(&keys).unwrap().into_iter().enumerate() {
            assert_eq!(found, Ok((n % 2 == 0).then(|| keys[n].to_vec())), "after a batch of {last}");
        }
    }
    assert!(client.remove_many(&keys).unwrap().iter().step_by(2).all(|there| *there == Ok(true)));
    assert_eq!(client.stats().reattached, 0, "no connection was given up");
}

/// The outcomes of compare-and-swap, with values of all lengths up to the longest.
fn swaps(client: &mut Client) {
    use SwapOutcome::{Absent, Differs, Swapped};
    let (key_max, value_max) = (client.geometry().key_max(), client.value_max());
    for key in [vec![b'k'], vec![b'k'; key_max]] {
        assert_eq!(client.compare_and_swap(&key, b"", b"new").unwrap(), Absent);
        assert_eq!(client.get(&key).unwrap(), None);
        let mut last = Vec::new();
        client.put(&key, &last).unwrap();
        for length in [1, 0, 3, value_max - 1, value_max, value_max, 2] {
            let next = value(7 + length as u64, length);
            let mut other = last.clone();
            let byte = other.pop().map_or(1, |byte| byte ^ 1);
            other.push(byte);
            assert_eq!(client.compare_and_swap(&key, &other, &next).unwrap(), Differs);
            assert_eq!(client.compare_and_swap(&key, &last[..last.len() / 2], b"").unwrap(), {
                if last.len() / 2 == last.len() { Swapped } else { Differs }
            });
            assert_eq!(client.get(&key).unwrap().as_ref(), Some(&last));
            assert_eq!(client.compare_and_swap(&key, &last, &next).unwrap(), Swapped);
            assert_eq!(client.get(&key).unwrap().as_ref(), Some(&next));
            last = next;
        }
        let rejected = |result: Result<SwapOutcome, oneread::MutateError>| result.unwrap_err().rejection();
        let long = vec![1; value_max + 1];
        let too_long = Some(too_long(client, long.len()));
        assert_eq!(rejected(client.compare_and_swap(&key, &long, b"")), too_long);
        assert_eq!(rejected(client.compare_and_swap(&key, &last, &long)), too_long);
        assert_eq!(client.get(&key).unwrap().as_ref(), Some(&last));
        client.remove(&key).unwrap();
    }
}

/// Clients count together by swaps, and no step is lost.
fn counts_by_swaps(client: &mut Client) {
    const STEPS: u64 = 100;
    client.put(b"count", &0u64.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut mine = client.clone();
            scope.spawn(move || {
                let mut done = 0;
                while done < STEPS {
                    let now = mine.get(b"count").unwrap().unwrap();
                    let next = u64::from_le_bytes(now.clone().try_into().unwrap()) + 1;
                    done += match mine.compare_and_swap(b"count", &now, &next.to_le_bytes()).unwrap() {
                        SwapOutcome::Swapped => 1,
                        outcome => u64::from(outcome == SwapOutcome::Absent) * STEPS,
                    };
                }
            });
        }
    });
    assert_eq!(client.get(b"count").unwrap().unwrap(), (4 * STEPS).to_le_bytes());
    client.remove(b"count").unwrap();
}

/// Batches with wrong pairs in all places. Each answer belongs to its own pair.
pub fn bad_pairs_in_batches(client: &mut Client) {
    let (key_max, value_max) = (client.geometry().key_max(), client.value_max());
    let mut there = std::collections::BTreeSet::new();
    let mut numbers = Numbers(5);
    let mut put = |client: &mut Client, are_bad: &[bool]| {
        let (mut pairs, mut expected) = (Vec::new(), Vec::new());
        for &is_bad in are_bad {
            // There are few keys, so some are new and some are not.
            let n = numbers.below(100) as u32;
            let (mut key, mut value) = (key(n, key_max), n.to_le_bytes().to_vec());
            expected.push(match numbers.below(3) {
                _ if !is_bad && there.insert(key.clone()) => Ok(PutOutcome::Inserted),
                _ if !is_bad => Ok(PutOutcome::Updated),
                0 => {
                    value = vec![0; value_max + 1 + n as usize];
                    Err(too_long(client, value.len()))
                }
                which => {
                    key = if which == 1 { Vec::new() } else { vec![1; key_max + 1 + n as usize] };
                    Err(PutError::KeyLength { given: key.len(), max: key_max })
                }
            });
            pairs.push((key, value));
        }
        assert_eq!(client.put_many(&pairs).unwrap(), expected, "{are_bad:?}");
        for ((key, value), answer) in pairs.iter().zip(expected) {
            if answer.is_ok() {
                assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
            }
        }
        // Half of them are removed again.
        for (key, _) in pairs.iter().step_by(2).filter(|(key, _)| !key.is_empty() && key.len() <= key_max) {
            assert_eq!(client.remove(key).unwrap(), there.remove(key), "{are_bad:?}");
        }
    };
    // Every subset of five pairs is wrong.
    for which in 0..32 {
        put(client, &[0, 1, 2, 3, 4].map(|n| which >> n & 1 == 1));
    }
    // In long batches: the first, one in the middle, the last, all.
    for length in [1, 63, 64, 65, 130, 512, 513, 1300] {
        for bad in [0..1, length / 2..length / 2 + 1, length - 1..length, 0..length, 1..length, 0..length - 1]
        {
            put(client, &(0..length).map(|n| bad.contains(&n)).collect::<Vec<_>>());
        }
        put(client, &(0..length).map(|n| n % 3 == 0).collect::<Vec<_>>());
    }
}

/// A request to a server with a key and a value of these lengths. One of the lengths may be too
/// long.
type Attempt = fn(&mut Client, &[u8], &[u8]) -> Result<(), Refusal>;

/// What a refusal says.
#[derive(Clone, Debug, PartialEq)]
enum Refusal {
    Rejected(PutError),
    Gone,
}

impl From<oneread::MutateError> for Refusal {
    fn from(error: oneread::MutateError) -> Refusal {
        Refusal::Rejected(error.rejection().unwrap_or_else(|| panic!("no answer: {error}")))
    }
}

impl From<&KeyError> for Refusal {
    fn from(error: &KeyError) -> Refusal {
        match *error {
            KeyError::Length(KeyLengthError { given, max }) => {
                Refusal::Rejected(PutError::KeyLength { given, max })
            }
            error => panic!("no answer: {error}"),
        }
    }
}

impl From<oneread::GetError> for Refusal {
    fn from(error: oneread::GetError) -> Refusal {
        use oneread::GetError;
        match error {
            GetError::KeyLength { given, max } => Refusal::Rejected(PutError::KeyLength { given, max }),
            GetError::ServerGone { .. } | GetError::Connect(_) => Refusal::Gone,
            error => panic!("no answer: {error}"),
        }
    }
}

/// A server is replaced by one at the same address whose table takes longer keys and values, and
/// that one by the first again. A client that has asked before gets the limits of the present
/// server, whatever it asks first.
pub fn lengths_of_the_next_server(
    options: &ClientOptions,
    serve: impl Fn(Option<&Address>, &Config) -> Server,
) {
    const SMALL: (usize, usize) = (8, 8);
    const LARGE: (usize, usize) = (40, 100);
    let put_many: Attempt = |client, key, value| {
        // The pairs around it have their own answers.
        let (short, long) = ((b"s".to_vec(), b"s".to_vec()), (b"l".to_vec(), vec![1; 1000]));
        let max = |client: &Client| client.geometry().value_max();
        let pairs = [short.clone(), long.clone(), (key.to_vec(), value.to_vec()), short, long];
        let answers = client.put_many(&pairs)?;
        let too_long = Err(PutError::ValueLength { given: 1000, max: max(client) });
        assert!(answers[0].is_ok() && answers[3] == Ok(PutOutcome::Updated), "{answers:?}");
        // (Over verbs with shared queue pairs, the geometry is that of the READs.)
        assert!(answers[1] == too_long || client.region().is_none(), "{answers:?}");
        assert_eq!(answers[1], answers[4]);
        answers[2].clone().map(drop).map_err(Refusal::Rejected)
    };
    let changes: [(&str, bool, Attempt); 8] = [
        ("put", true, |client, key, value| Ok(client.put(key, value).map(|_| ())?)),
        ("insert", true, |client, key, value| Ok(client.insert(key, value).map(|_| ())?)),
        ("update", true, |client, key, value| Ok(client.update(key, value).map(|_| ())?)),
        ("put_many", true, put_many),
        ("compare_and_swap", true, |client, key, value| {
            Ok(client.compare_and_swap(key, b"", value).map(|_| ())?)
        }),
        ("remove_many", false, |client, key, _| {
            client.remove_many(&[b"s", key]).map_err(Refusal::from)?[1]
                .clone()
                .map(drop)
                .map_err(Refusal::Rejected)
        }),
        ("remove", false, |client, key, _| Ok(client.remove(key).map(|_| ())?)),
        ("get_two_sided", false, |client, key, _| Ok(client.get_two_sided(key).map(|_| ())?)),
    ];
    let gets: [(&str, bool, Attempt); 4] = [
        ("get", false, |client, key, _| Ok(client.get(key).map(|_| ())?)),
        ("get_many", false, |client, key, _| {
            let found = client.get_many(&[b"s", key, b"t"])?;
            assert_eq!((&found[0], &found[2]), (&Ok(None), &Ok(None)), "a bad key fails no other");
            found[1].as_ref().map(|_| ()).map_err(Refusal::from)
        }),
        ("get_many of bad keys only", false, |client, key, _| {
            let found = client.get_many(&[key])?;
            found[0].as_ref().map(|_| ()).map_err(Refusal::from)
        }),
        ("contains", false, |client, key, _| Ok(client.contains(key).map(|_| ())?)),
    ];
    let table =
        |(key_max, value_max)| config(default_preset(), 0, key_max, value_max, 3).size(TableSize::Keys(200));
    let mut server = serve(None, &table(SMALL));
    let mut client = Client::connect_with(server.address(), options.clone()).unwrap();
    let asks = changes.map(|ask| (ask, false)).into_iter().chain(gets.map(|ask| (ask, true)));
    for ((name, has_value, ask), is_get) in asks {
        // One client already has a connection of its own; the other has none.
        let mut fresh = client.clone();
        // On shm, a new server is found in the background, after the old one has given its region
        // up.
        let asked = |client: &mut Client, key: &[u8], value: &[u8]| {
            wait_for("an answer", || match ask(client, key, value) {
                Err(Refusal::Gone) if is_get && client.region().is_some() => None,
                answer => Some(answer),
            })
        };
        for (now, next) in [(SMALL, LARGE), (LARGE, SMALL)] {
            let too_long = |of: usize, value: bool| match value {
                false => Err(Refusal::Rejected(PutError::KeyLength { given: of, max: now.0 })),
                true => Err(Refusal::Rejected(PutError::ValueLength { given: of, max: now.1 })),
            };
            for client in [&mut client, &mut fresh] {
                for length in [1, now.0, now.0 + 1, 0, 2000] {
                    let expected =
                        if (1..=now.0).contains(&length) { Ok(()) } else { too_long(length, false) };
                    assert_eq!(asked(client, &vec![2; length], b""), expected, "{name}: a key of {length}");
                }
                for length in [0, now.1, now.1 + 1, 2000] {
                    let expected = if has_value && length > now.1 { too_long(length, true) } else { Ok(()) };
                    assert_eq!(
                        asked(client, b"k", &vec![2; length]),
                        expected,
                        "{name}: a value of {length}"
                    );
                }
            }
            // The clients' last request went to this server.
            let address = server.address().clone();
            server.stop();
            // Mailbox requests in quick succession do not check the socket first. A request that is
            // sent may then find the server gone.
            std::thread::sleep(Duration::from_millis(3));
            server = serve(Some(&address), &table(next));
            for (client, key, value) in [(&mut client, 12, 1), (&mut fresh, 1, 50)] {
                let expected = match (next == SMALL, key > 8, has_value) {
                    (true, true, _) => Err(Refusal::Rejected(PutError::KeyLength { given: key, max: 8 })),
                    (true, false, true) => {
                        Err(Refusal::Rejected(PutError::ValueLength { given: value, max: 8 }))
                    }
                    _ => Ok(()),
                };
                assert_eq!(asked(client, &vec![3; key], &vec![3; value]), expected, "{name}: from {now:?}");
            }
        }
    }
}

// ---- bytes with descriptors --------------------------------------------------------------------------

/// A reply, and the descriptor that came with it.
pub fn receive(stream: &UnixStream) -> (Reply, Option<OwnedFd>) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut chunk = [0; 64];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stream, &mut [std::io::IoSliceMut::new(&mut chunk)], &mut ancillary, RecvFlags::empty());
    let bytes = received.unwrap().bytes;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (Reply::decode(&wire::decode(&chunk[..bytes]).unwrap().unwrap()).unwrap(), fd)
}

/// Sends bytes with a descriptor, unless the other side has given up already.
pub fn send_with(stream: &UnixStream, bytes: &[u8], fd: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let fds = [fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    match sendmsg(stream, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) | Err(rustix::io::Errno::PIPE) => {}
        Err(e) => panic!("{e}"),
    }
}

// ---- other processes --------------------------------------------------------------------------------

/// Runs an ignored test of this test binary as another process, with its arguments in the
/// environment. The process is killed when this is dropped. Its standard input ends when the parent
/// process does, so a child that waits for that never outlives its test.
pub struct Process(pub Child);

impl Process {
    pub fn start(test: &str, env: &[(&str, String)]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
        // Nothing tells it other places than those of its arguments and the usual ones.
        command.env_remove("XDG_RUNTIME_DIR").env_remove("ONEREAD_SHM");
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.envs(env.iter().map(|(name, value)| (*name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Process(command.spawn().expect("starting a process"))
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill(mut self) {
        self.0.kill().expect("killing a process");
        self.0.wait().expect("waiting for a process");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("sending a signal");
    }

    /// Stops the process, and waits until each of its threads has stopped.
    pub fn stop(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        // The parent is notified when the last of them has stopped.
        let told = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).expect("a child");
        assert!(told.is_some_and(|(_, status)| status.stopped()), "{told:?}");
    }

    /// Waits for the process to end, and looks whether it has run the test. Returns its output.
    pub fn finish(mut self) -> String {
        let mut output = String::new();
        let mut stdout = self.0.stdout.take().expect("piped");
        std::io::Read::read_to_string(&mut stdout, &mut output).expect("reading a process's output");
        let status = self.0.wait().expect("waiting for a process");
        assert!(status.success(), "the process failed ({status}):\n{output}");
        assert!(output.contains(" 1 passed"), "there is no such test:\n{output}");
        output
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Puts its own keys in a loop, alone and in batches, until it is killed. In each round, `more` is
/// called with a key of the last round.
pub fn put_for_ever(client: &mut Client, mut more: impl FnMut(&mut Client, &[u8])) {
    for n in 0.. {
        let key = |n: u32| key(10_000 + n % 200, 16);
        let _ = client.put(&key(n), &value(n.into(), 30));
        let batch: Vec<_> = (0..50).map(|more| (key(n + more), value(more.into(), 20))).collect();
        let _ = client.put_many(&batch);
        more(client, &key(n + 7));
    }
}

/// Starts a server in this process where an earlier one may have been. While another test starts a process,
/// that process holds a copy of all descriptors until its program runs: also of locks and sockets that are
/// closed here. So these are waited for.
pub fn start(config: ServerConfig) -> Server {
    wait_for("region and socket", || match Server::start(config.clone()) {
        Err(
            ServeError::Region(RegionError::InUse { .. })
            | ServeError::Snapshots(SaveError::Busy { .. })
            | ServeError::AddressInUse { .. },
        ) => None,
        started => Some(started.unwrap()),
    })
}

/// Serves until this process's input ends. (The test's own process may have had the region before.)
pub fn serve_until_told(config: ServerConfig) {
    let server = start(config);
    let _ = std::io::stdin().read(&mut [0]);
    server.stop();
}

/// Where a server is, and a folder. The folder is removed when this is dropped.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub address: Address,
    /// Over TCP: keeps the port for the servers of this place. It listens to nothing.
    _port: Option<OwnedFd>,
}

impl Place {
    /// On shm.
    pub fn new() -> Place {
        Over::Shm.place()
    }

    /// Whether a server listens here.
    pub fn has_a_server(&self) -> bool {
        match &self.address {
            Address::Tcp(at) => TcpStream::connect((at.host(), at.port())).is_ok(),
            _ => UnixStream::connect(self.address.socket().unwrap()).is_ok(),
        }
    }
}

// ---- what does not depend on the fabric -------------------------------------------------------------

/// The fabric of a test that [`over_shm_and_tcp`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Shm,
    Tcp,
}

impl Over {
    /// A place of its own for servers.
    pub fn place(self) -> Place {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
        let dir = tempfile::tempdir().unwrap();
        if self == Over::Shm {
            return Place { address: Address::Shm(dir.path().join("socket")), dir, _port: None };
        }
        // A port that is bound, and not listened to, is given to nobody who asks for any. Servers may have it, one
        // after the other, as both sides say SO_REUSEADDR.
        let port = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&port, true).unwrap();
        bind(&port, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let at = SocketAddr::try_from(getsockname(&port).unwrap()).unwrap();
        let address = Address::Tcp(TcpAddress::new("127.0.0.1", at.port()));
        Place { dir, address, _port: Some(port) }
    }

    /// The ways that requests go.
    pub fn paths(self) -> Vec<RequestPath> {
        let all = [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox];
        all.into_iter().filter(|path| self == Over::Shm || *path != RequestPath::Mailbox).collect()
    }
}

/// Runs each of these tests twice: its parameter is the fabric.
#[allow(unused_macros, reason = "each test binary uses its part of this")]
macro_rules! over_shm_and_tcp {
    ($($(#[$only:meta])* $test:ident,)*) => {
        mod over_shm {
            $($(#[$only])* #[test] fn $test() { super::$test(crate::common::Over::Shm); })*
        }
        mod over_tcp {
            $($(#[$only])* #[test] fn $test() { super::$test(crate::common::Over::Tcp); })*
        }
    };
}
#[allow(unused_imports, reason = "each test binary uses its part of this")]
pub(crate) use over_shm_and_tcp;

/// Writes a file that nobody but its owner may change, whatever the umask says: servers refuse others.
pub fn write_own(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A user's number that is not this process's.
pub const STRANGER: u32 = 54_321;

/// Runs `act` as that user.
pub fn as_stranger<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    as_user(STRANGER, act)
}

/// Runs `act` in a thread that acts as another user, as do the threads that it starts. Only root
/// can: for other users it says so, and returns `None`.
pub fn as_user<R: Send>(uid: u32, act: impl FnOnce() -> R + Send) -> Option<R> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can act as another user");
        return None;
    }
    let run = || {
        rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(uid)).unwrap();
        act()
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(result) => Some(result),
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A folder that everybody may write to. (It is not sticky: the kernel protects files in /tmp itself.)
pub fn open_to_all() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// An argument from the parent process; `None` if there is none (somebody ran all ignored tests).
pub fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Polls until there is an answer. Fails the test when that takes too long.
pub fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + SOON;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < give_up, "waited {SOON:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
