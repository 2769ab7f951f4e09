use super::patience::{Rest, RetryBudget, SLEEP_NS, YIELDS};
use super::*;
use crate::config::{Config, TableSize};
use crate::fabric::shm::{MappedSlots, Shm};
use crate::fabric::{Direct, ReadId, Stretch};
use crate::get::{Landed, Look, Proof, Retry};
use crate::layout::chain::{Block, with_link};
use crate::layout::control::move_counter_word;
use crate::layout::extent::Reference;
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::First;
use crate::layout::long::SoughtKey;
use crate::layout::slot::Header;
use crate::outcome::{KeyLengthError, ReadError};
use crate::region::Region;
use crate::sink::Sink;
use std::ops::ControlFlow;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

fn pause(patience: &mut RetryBudget, clock: &Clock, limits: &Limits) -> Result<(), ReadError> {
    patience.again(Retry::Torn, clock.now_ns(), limits).map(|rest| rest.take(clock))
}

#[test]
fn patience_ends_at_its_bounds() {
    let clock = Clock::manual();
    clock.advance(Duration::from_secs(5));
    let last = Retry::Torn;
    let limits = Limits { retries_max: 3, deadline: Duration::from_nanos(10) };
    let mut patience = RetryBudget::default();
    assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
    assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
    let contended = Err(ReadError::Contended { retries: 3, last });
    assert_eq!(pause(&mut patience, &clock, &limits), contended);

    let limits = Limits { retries_max: 1000, ..limits };
    let mut patience = RetryBudget::default();
    assert_eq!(pause(&mut patience, &clock, &limits), Ok(()), "the time until now does not count");
    clock.advance(Duration::from_nanos(9));
    assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
    clock.advance(Duration::from_nanos(1));
    let late = Err(ReadError::Deadline { deadline: limits.deadline, retries: 3, last });
    assert_eq!(pause(&mut patience, &clock, &limits), late);
}

#[test]
fn patience_sleeps_after_a_while() {
    let limits = Limits { retries_max: 1000, deadline: Duration::from_secs(600) };
    let mut patience = RetryBudget::default();
    for _ in 0..YIELDS {
        pause(&mut patience, &Clock::System, &limits).unwrap();
    }
    let begun = Instant::now();
    for _ in 0..100 {
        pause(&mut patience, &Clock::System, &limits).unwrap();
    }
    assert!(begun.elapsed() >= 100 * Duration::from_nanos(SLEEP_NS));
}

/// First it spins, then lets others run, then sleeps, for as long as is said.
#[test]
fn patience_rests_longer_and_longer() {
    let limits = Limits { retries_max: 1000, deadline: Duration::from_secs(1) };
    let mut patience = RetryBudget::default();
    let mut rest = || patience.again(Retry::Torn, 7, &limits).unwrap();
    let (spins, yields, sleeps) = (Rest::Spin, Rest::Yield, Rest::Sleep);
    assert!((0..8).all(|_| rest() == spins));
    assert!((0..56).all(|_| rest() == yields));
    assert!((0..100).all(|_| rest() == sleeps));
    let clock = Clock::manual();
    [spins, yields, sleeps].into_iter().for_each(|rest| rest.take(&clock));
    assert_eq!(clock.now_ns(), 50_000);
}

// ---- batches, over a fabric whose READs take as long as is said --------------------------------------

/// Milliseconds, in nanoseconds.
const MS: u64 = 1_000_000;
const GRACE: Duration = Duration::from_millis(2);

/// Slots that show nothing, by what is said of the key that is looked for.
struct Shown<'a> {
    is_torn: &'a mut dyn FnMut(u32) -> bool,
    windows: fn(u32) -> u32,
    geometry: &'a Geometry,
}

impl Landed for Shown<'_> {
    fn look(&mut self, slot: SlotIx, wanted: SoughtKey<'_>, _value: &mut impl Sink) -> Look {
        let number = u32::from_le_bytes(wanted.key.key().try_into().unwrap());
        // Chains of single slots, block after block.
        let nth = slot.0.checked_sub(self.geometry.main_slots()).map_or(0, |block| block as u32 + 1);
        let aux = with_link(self.geometry, 0xff, (nth + 1 < (self.windows)(number)).then_some(Block(nth)));
        let free = Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux };
        if (self.is_torn)(number) { Look::Torn } else { Look::Other(free) }
    }
}

/// READs over one queue pair: they complete in the order in which they were posted, each so long after. Time
/// passes while one waits for a READ, sleeps, or hands an answer over, and never otherwise.
struct Slow<'a, L, T> {
    clock: Clock,
    credits: usize,
    posted: std::collections::VecDeque<(ReadId, u64)>,
    /// How long a READ takes that is posted now.
    takes_ns: L,
    /// Is the slot of the key with this number being written now?
    is_torn: T,
    /// Windows that the key with this number is looked for in.
    windows: fn(u32) -> u32,
    geometry: &'a Geometry,
    reads: u64,
}

/// What one poll brings at the most.
const COMPLETIONS: usize = 16;

impl<L, T> Direct for Slow<'_, L, T> {}

impl<'g, L: FnMut(u64) -> u64, T: FnMut(u64, u32) -> bool> Fabric for Slow<'g, L, T> {
    type Landed<'a>
        = Shown<'a>
    where
        Self: 'a;
    const EXACT: bool = false;
    type Mark = u64;
    type Error = ReadError;

    fn credits(&self) -> usize {
        self.credits
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        let now = self.clock.now_ns();
        let done = (now + (self.takes_ns)(now)).max(self.posted.back().map_or(0, |(_, done)| *done));
        self.posted.extend(reads.iter().map(|(token, _)| (*token, done)));
        self.reads += reads.len() as u64;
        assert!(self.posted.len() <= self.credits, "no more in flight than there are credits");
        Ok(())
    }

    fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut Shown<'_>)) -> Result<(), ReadError> {
        self.clock.sleep_until(self.posted.front().expect("something is in flight").1);
        let now = self.clock.now_ns();
        for _ in 0..COMPLETIONS {
            if self.posted.front().is_none_or(|&(_, done)| done > now) {
                break;
            }
            let (token, _) = self.posted.pop_front().expect("it is there");
            let is_torn = &mut |number| (self.is_torn)(now, number);
            sink(token, &mut Shown { is_torn, windows: self.windows, geometry: self.geometry });
        }
        Ok(())
    }

    fn mark(&mut self, _home: u64) -> u64 {
        self.clock.now_ns()
    }

    fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
        false
    }

    fn fetch(&mut self, _stretches: &[Stretch], _out: &mut impl Sink) -> Result<(), ReadError> {
        unreachable!("no value is so long")
    }

    fn proof(&mut self, _home: u64, mark: u64) -> Proof {
        Proof::by_clock(self.clock.now_ns() - mark, GRACE)
    }
}

/// What a batch came to.
struct Came {
    result: Result<(), ReadError>,
    stats: GetStats,
    reads: u64,
    /// When each key was answered, in nanoseconds.
    at_ns: Vec<Option<u64>>,
    took_ns: u64,
}

/// Looks up `keys` keys over `credits` lanes, with the default limits; each answer takes the caller `each_ns`.
fn batch(
    shape: (u32, usize, u64),
    takes_ns: impl FnMut(u64) -> u64,
    is_torn: impl FnMut(u64, u32) -> bool,
) -> Came {
    batch_of(|_| 1, shape, takes_ns, is_torn)
}

/// Looks keys up that are looked for in as many windows as `windows` says.
fn batch_of(
    windows: fn(u32) -> u32,
    (keys, credits, each_ns): (u32, usize, u64),
    takes_ns: impl FnMut(u64) -> u64,
    is_torn: impl FnMut(u64, u32) -> bool,
) -> Came {
    let config = Config {
        layout: "list".parse().unwrap(),
        size: TableSize::Slots(64),
        key_max: 4,
        value_max: 8,
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    let clock = Clock::manual();
    let (posted, reads) = Default::default();
    let fabric = Slow {
        clock: clock.clone(),
        credits,
        posted,
        takes_ns,
        is_torn,
        windows,
        geometry: &geometry,
        reads,
    };
    let mut reader = Reader::new(fabric, &geometry, clock.clone(), Limits::default());
    let numbers: Vec<_> = (0..keys).map(u32::to_le_bytes).collect();
    let mut at_ns = vec![None; keys as usize];
    let result = reader.get_many(&numbers, |n, value| {
        assert_eq!((value, at_ns[n]), (None, None));
        at_ns[n] = Some(clock.now_ns());
        clock.advance(Duration::from_nanos(each_ns));
    });
    Came { result, stats: reader.stats(), reads: reader.fabric().reads, at_ns, took_ns: clock.now_ns() }
}

impl Came {
    fn all_answered(&self) {
        assert_eq!(self.result, Ok(()));
        assert!(self.at_ns.iter().all(Option::is_some));
    }

    fn reached_its_deadline(&self) -> u64 {
        let deadline = Limits::default().deadline;
        assert!(matches!(self.result, Err(ReadError::Deadline { deadline: d, .. }) if d == deadline));
        self.took_ns
    }
}

/// READs that take longer than the grace time for a while: with any number of lanes a batch goes on as soon as they
/// are fast again. Each lane's mark is as old as its own READ, not as the rest of another lane.
#[test]
fn a_batch_recovers_from_slow_reads() {
    for credits in [1, 16, 32, 64, 512] {
        let slow = |now| if now < 300 * MS { 3 * MS } else { 2_000 };
        let came = batch((20_064, credits, 0), slow, |_, _| false);
        came.all_answered();
        let fast_ns = 20_064 / credits as u64 * 2_000;
        assert!(came.took_ns < 304 * MS + 2 * fast_ns, "{credits} lanes: {} ns", came.took_ns);
        assert_eq!(came.stats.retries_late, 100 * credits as u64, "{credits} lanes");
    }
}

/// Slots that are being written for a while: the lanes that need them look again, the others know nothing of it.
#[test]
fn one_lanes_trouble_is_not_the_others() {
    for (torn, credits) in [(1, 2), (16, 64), (63, 64)] {
        let came = batch((20_000, credits, 0), |_| 10_000, |now, n| n < torn && now < 300 * MS);
        came.all_answered();
        assert_eq!((came.stats.retries_late, came.stats.retries_moved), (0, 0));
        let free = credits as u64 - u64::from(torn);
        // Twice what it takes when nobody looks again.
        let others = came.at_ns[torn as usize..].iter().flatten().max().unwrap();
        assert!(*others < 2 * 20_000 / free * 10_000, "{torn} of {credits}: {others} ns");
        let torn_ones = came.at_ns[..torn as usize].iter().flatten();
        assert!(torn_ones.min().unwrap() >= &(300 * MS));
        // They rest in between.
        let retries = came.stats.retries_torn / u64::from(torn);
        assert!((100..300 * MS / SLEEP_NS + 100).contains(&retries), "{retries} retries");
    }
}

/// However many keys of a batch have to be looked for again, one after the other or side by side, the
/// deadline bounds the batch; and one key that never becomes conclusive ends it though all others do.
#[test]
fn the_deadline_bounds_a_batch() {
    let second = 1_000 * MS;
    for (keys, credits) in [(50, 1), (50, 50), (500, 64), (3_000, 7)] {
        // Each is torn for 900 ms from when it is first looked at.
        let mut first_look = vec![None; keys as usize];
        let is_torn = |now, n: u32| now < *first_look[n as usize].get_or_insert(now) + 900 * MS;
        let took = batch((keys, credits, 0), |_| 5_000, is_torn);
        if keys as usize > credits {
            let took_ns = took.reached_its_deadline();
            assert!((second..second + 200 * MS).contains(&took_ns), "{keys}, {credits}: {took_ns}");
        } else {
            took.all_answered();
        }
    }
    let never = batch((u32::pow(10, 6), 64, 0), |_| 100_000, |_, n| n == 7);
    let took_ns = never.reached_its_deadline();
    assert!((second..second + 2 * MS).contains(&took_ns), "{took_ns}");
    assert!(never.at_ns.iter().flatten().count() > 600_000);
}

/// A large batch, of which now and then a key is to be looked for again, takes longer than the deadline allows for
/// looking again, and is answered. So does one whose caller takes his time.
#[test]
fn a_batch_that_goes_on_has_no_deadline() {
    for (keys, credits, each_ns) in
        [(1_000_000, 64, 0), (40_000, 1, 0), (2_000, 64, 5 * MS), (500, 1, 5 * MS)]
    {
        let mut looks = vec![0; keys as usize];
        let is_torn = |_, n: u32| {
            looks[n as usize] += 1;
            n % 20 == 3 && looks[n as usize] < 12
        };
        let came = batch((keys, credits, each_ns), |_| 100_000, is_torn);
        came.all_answered();
        assert!(came.took_ns > 1_500 * MS, "{} ns", came.took_ns);
    }
}

/// Keys in several windows: that a GET reads one after the other is no sign that it looks again.
#[test]
fn long_ways_are_no_lag() {
    for credits in [1, 16] {
        let mut looks = vec![0; 200_000];
        let is_torn = |_, n: u32| {
            looks[n as usize] += 1;
            n % 1_000 == 3 && looks[n as usize] == 1
        };
        let came = batch_of(|_| 4, (200_000, credits, 0), |_| 20_000 * credits as u64, is_torn);
        came.all_answered();
        assert!(came.took_ns > 10_000 * MS, "{} ns", came.took_ns);
        assert_eq!(came.reads, 4 * 200_000 + 200, "one more for each key that was torn");
    }
}

/// Windows that a GET reads on its first way change nothing; those that it reads when it looks again are time
/// that the batch loses. The bound is reached at the very READ that this gives.
#[test]
fn only_a_second_way_is_lag() {
    const READ_NS: u64 = 400_000;
    let mut looks = vec![0; 1_000];
    // Each key is read in four windows, twice: the last one is torn at first.
    let is_torn = |_, n: u32| {
        looks[n as usize] += 1;
        looks[n as usize] == 4
    };
    let came = batch_of(|_| 4, (1_000, 1, 0), |_| READ_NS, is_torn);
    // A key adds the READ that is torn and the three of its second way that lead on; the one that answers is
    // taken off. Of the first key, the READ that is torn begins the measure. So key n comes to its torn READ
    // with 3 n READs behind, and the first with a second behind is number 834.
    let last = (1_000 * MS).div_ceil(3 * READ_NS);
    assert_eq!(came.reached_its_deadline(), (8 * last + 4) * READ_NS);
    assert_eq!(came.at_ns.iter().flatten().count() as u64, last);
    assert_eq!((came.stats.gets, came.stats.retries_torn), (last, last + 1));
}

/// A caller that takes longer with each answer than the grace time makes GETs late that are under way, but none of
/// them twice; nor one that has further windows to read.
#[test]
fn a_slow_caller_makes_no_get_late_twice() {
    for (windows, credits) in
        [((|_| 1) as fn(u32) -> u32, 64), (|n| 1 + u32::from(n == 0), 2), (|n| 1 + n % 3, 64)]
    {
        let mut looks = vec![0; 3_200];
        let is_torn = |_, n: u32| {
            looks[n as usize] += 1;
            false
        };
        let came = batch_of(windows, (3_200, credits, 5 * MS), |_| 10_000, is_torn);
        came.all_answered();
        assert!(came.stats.retries_late > 0);
        for (n, &looks) in (0..).zip(&looks) {
            assert!(looks <= 2 * windows(n), "key {n} in {} windows: {looks} READs", windows(n));
        }
    }
}

type Never = fn(u64, u32) -> bool;

/// A reader of a table of single slots, and the clock that its READs advance.
fn reader_of<L: FnMut(u64) -> u64>(
    geometry: &Geometry,
    windows: fn(u32) -> u32,
    credits: usize,
    takes_ns: L,
) -> Reader<'_, Slow<'_, L, Never>> {
    let clock = Clock::manual();
    let is_torn: Never = |_, _| false;
    let (posted, reads) = Default::default();
    let fabric = Slow { clock: clock.clone(), credits, posted, takes_ns, is_torn, windows, geometry, reads };
    Reader::new(fabric, geometry, clock, Limits::default())
}

fn list() -> Geometry {
    let (layout, size) = ("list".parse().unwrap(), TableSize::Slots(64));
    Config { layout, size, key_max: 4, value_max: 8, ..Config::default() }.geometry().unwrap()
}

/// A pass over several windows is as old as its first READ: two READs of three quarters of the grace time
/// each prove nothing. The next pass is as old as its own first READ.
#[test]
fn a_pass_is_as_old_as_its_first_read() {
    let geometry = list();
    let slow = |now| if now < 100 * MS { 3 * MS / 2 } else { 2_000 };
    // Of 3 ms each; the one that begins after 99 ms has one slow READ.
    let expected = GetStats { gets: 1, retries_late: 33, ..GetStats::default() };
    let key = 7u32.to_le_bytes();
    let mut one = reader_of(&geometry, |_| 2, 1, slow);
    let mut value = vec![1, 2, 3];
    assert_eq!(one.get_into(&key, &mut value), Ok(false));
    assert_eq!((value, one.stats(), one.fabric().reads), (vec![], expected, 68));
    let mut many = reader_of(&geometry, |_| 2, 1, slow);
    let mut answers = Vec::new();
    many.get_many(&[key], |n, value| answers.push((n, value.map(Vec::from)))).unwrap();
    assert_eq!((answers, many.stats(), many.fabric().reads), (vec![(0, None)], expected, 68));
}

/// What a GET rests before it looks again is not part of the pass: after 50 microseconds of sleep, a READ that takes
/// nearly the grace time still proves something.
#[test]
fn a_pass_begins_after_the_rest() {
    let geometry = list();
    let takes_ns = |_| GRACE.as_nanos() as u64 - 20_000;
    for batch in [false, true] {
        let (clock, mut looks) = (Clock::manual(), 0);
        let fabric = Slow {
            clock: clock.clone(),
            credits: 1,
            posted: Default::default(),
            takes_ns,
            is_torn: |_, _| {
                looks += 1;
                looks <= YIELDS + 5
            },
            windows: |_| 1,
            geometry: &geometry,
            reads: 0,
        };
        let mut reader = Reader::new(fabric, &geometry, clock, Limits::default());
        match batch {
            false => assert_eq!(reader.get_into(&[0; 4], &mut Vec::new()), Ok(false)),
            true => reader.get_many(&[[0; 4]], |_, value| assert_eq!(value, None)).unwrap(),
        }
        let torn = u64::from(YIELDS) + 5;
        assert_eq!(reader.stats(), GetStats { gets: 1, retries_torn: torn, ..GetStats::default() });
    }
}

/// A mapping whose server counts a move during each of the next passes.
struct Moving {
    shm: Shm<'static>,
    region: &'static Region,
    moves: u32,
}

impl Direct for Moving {}

impl Fabric for Moving {
    type Landed<'a> = MappedSlots<'static>;
    const EXACT: bool = true;
    type Mark = u64;
    type Error = ReadError;

    fn credits(&self) -> usize {
        self.shm.credits()
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.shm.post(reads)
    }

    fn poll(&mut self, sink: impl FnMut(ReadId, &mut MappedSlots<'static>)) -> Result<(), ReadError> {
        self.shm.poll(sink)
    }

    fn mark(&mut self, home: u64) -> u64 {
        let mark = self.shm.mark(home);
        if self.moves > 0 {
            self.moves -= 1;
            self.region.add(move_counter_word(home));
        }
        mark
    }

    fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
        false
    }

    fn fetch(&mut self, _stretches: &[Stretch], _out: &mut impl Sink) -> Result<(), ReadError> {
        unreachable!("no value is so long")
    }

    fn proof(&mut self, home: u64, mark: u64) -> Proof {
        self.shm.proof(home, mark)
    }
}

/// On shm a move during a pass is counted and reported as a move. Nothing there is late.
#[test]
fn a_move_on_shm_is_not_late() {
    static TABLE: LazyLock<(Geometry, Region)> = LazyLock::new(|| {
        let geometry = list();
        let region = Region::private(geometry.region_bytes());
        (geometry, region)
    });
    let (geometry, region) = &*TABLE;
    let limits = Limits { retries_max: 4, ..Limits::default() };
    for batch in [false, true] {
        let moving = Moving { shm: Shm::new(region, geometry), region, moves: 3 };
        let mut reader = Reader::new(moving, geometry, Clock::manual(), limits);
        let get = |reader: &mut Reader<'_, Moving>| match batch {
            false => reader.get_into(&[1; 4], &mut Vec::new()).map(|found| assert!(!found)),
            true => reader.get_many(&[[1; 4]], |_, value| assert_eq!(value, None)),
        };
        assert_eq!(get(&mut reader), Ok(()));
        assert_eq!(reader.stats(), GetStats { gets: 1, retries_moved: 3, ..GetStats::default() });
        reader.fabric_mut().moves = 4;
        assert_eq!(get(&mut reader), Err(ReadError::Contended { retries: 4, last: Retry::Moved }));
    }
}

/// A fabric over which nothing can be READ.
struct NoReads;

const BROKEN: ReadError = ReadError::Contended { retries: 77, last: Retry::Torn };

impl Direct for NoReads {}

impl Fabric for NoReads {
    type Landed<'a>
        = Shown<'a>
    where
        Self: 'a;
    const EXACT: bool = false;
    type Mark = ();
    type Error = ReadError;

    fn credits(&self) -> usize {
        5
    }

    fn post(&mut self, _: &[(ReadId, Window)]) -> Result<(), ReadError> {
        Err(BROKEN)
    }

    fn poll(&mut self, _: impl FnMut(ReadId, &mut Shown<'_>)) -> Result<(), ReadError> {
        Err(BROKEN)
    }

    fn mark(&mut self, _home: u64) {}

    fn took_less(&mut self, _mark: Self::Mark, _allowance: Duration) -> bool {
        false
    }

    fn fetch(&mut self, _stretches: &[Stretch], _out: &mut impl Sink) -> Result<(), ReadError> {
        unreachable!("no value is so long")
    }

    fn proof(&mut self, _home: u64, (): ()) -> Proof {
        Proof::Late
    }
}

/// A doorbell counts once for all its READs, each READ for all its bytes; what a batch could not post is
/// not counted.
#[test]
fn what_is_read_is_counted() {
    let geometry = list();
    let slot = geometry.shape().bytes() as u64;
    let mut reader = reader_of(&geometry, |_| 3, 4, |_| 1_000);
    assert_eq!(reader.read_counts(), ReadCounts::default());
    reader.get_into(&[7; 4], &mut Vec::new()).unwrap();
    let one = ReadCounts { reads: 3, bytes: 3 * slot, doorbells: 3 };
    assert_eq!(reader.read_counts(), one);
    // Four at once in three windows each, then the fifth.
    reader.get_many(&[[1; 4]; 5], |_, _| {}).unwrap();
    let six = ReadCounts { reads: 18, bytes: 18 * slot, doorbells: 9 };
    assert_eq!((reader.read_counts(), reader.fabric().reads), (six, 18));

    let config = Config { size: TableSize::Slots(64), key_max: 4, value_max: 100, ..Config::default() };
    let geometry = config.geometry().unwrap();
    assert_eq!((geometry.window(3).slots, geometry.shape().bytes()), (8, 128));
    let mut reader = Reader::new(NoReads, &geometry, Clock::manual(), Limits::default());
    assert_eq!(reader.get_many(&[[1; 4]; 3], |n, _| panic!("{n} is answered")), Err(BROKEN));
    assert_eq!((reader.read_counts(), reader.stats()), Default::default());
    assert_eq!(reader.get_into(&[1; 4], &mut Vec::new()), Err(BROKEN));
    let window = ReadCounts { reads: 1, bytes: 8 * 128, doorbells: 1 };
    assert_eq!(reader.read_counts(), window);

    let mut sum = ReadCounts { reads: 1, bytes: 20, doorbells: 300 };
    sum += ReadCounts { reads: 4_000, bytes: 50_000, doorbells: 600_000 };
    assert_eq!(sum, ReadCounts { reads: 4_001, bytes: 50_020, doorbells: 600_300 });
}

/// As many keys as there are lanes, one less, one more, none: each is READ once and answered once.
#[test]
fn batches_of_every_size() {
    let geometry = list();
    for keys in [0, 1, 3, 4, 5, 8, 9] {
        let mut reader = reader_of(&geometry, |_| 1, 4, |_| 1_000);
        let keys: Vec<_> = (0..keys).map(u32::to_le_bytes).collect();
        let mut answered = vec![0; keys.len()];
        reader.get_many(&keys, |n, _| answered[n] += 1).unwrap();
        assert!(answered.iter().all(|&times| times == 1), "{answered:?}");
        let gets = keys.len() as u64;
        assert_eq!(reader.stats(), GetStats { gets, ..GetStats::default() });
        assert_eq!(reader.fabric().reads, gets);
    }
}

/// A batch that breaks off reads nothing more, and waits for what is under way: the next one begins
/// with an empty queue. So does a GET.
#[test]
fn nothing_is_under_way_after_a_break() {
    let geometry = list();
    for credits in [1, 4, 64] {
        for last in [1, 3, 20] {
            let mut reader = reader_of(&geometry, |n| 1 + n % 3, credits, |_| 1_000);
            let keys: Vec<_> = (0..20).map(u32::to_le_bytes).collect();
            let mut answered = 0;
            let flow = reader.get_each(&keys, |_, value| {
                assert_eq!(value, Ok(None));
                answered += 1;
                if answered == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!((flow, answered), (Ok(ControlFlow::Break(())), last));
            assert!(reader.fabric().posted.is_empty(), "{credits} credits, broken off at {last}");
            assert_eq!(reader.stats().gets, last, "only answers count");
            let mut all = 0;
            reader.get_many(&keys, |_, _| all += 1).unwrap();
            assert_eq!((all, reader.get_into(&keys[0], &mut Vec::new())), (20, Ok(false)));
        }
    }
}

/// In order, each key is answered once, in its turn, whatever comes first: some are torn for a while, some have
/// several windows, some are refused. A caller that breaks off saves the READs that were not posted by then.
#[test]
fn answers_in_order() {
    let geometry = list();
    let mut keys: Vec<Vec<u8>> = (0..500u32).map(|n| n.to_le_bytes().to_vec()).collect();
    keys[0].push(0);
    keys[300].clear();
    for credits in [1, 8, 64] {
        let last = 100;
        for breaks in [false, true] {
            let clock = Clock::manual();
            let fabric = Slow {
                clock: clock.clone(),
                credits,
                posted: Default::default(),
                takes_ns: |_| 10_000,
                is_torn: |now, n| n % 7 == 1 && now < MS,
                windows: |n| 1 + n % 3,
                geometry: &geometry,
                reads: 0,
            };
            let mut reader = Reader::new(fabric, &geometry, clock, Limits::default());
            let mut next = 0;
            let flow = reader.get_in_order(&keys, |number, answer| {
                assert_eq!(number, next);
                assert_eq!(answer.is_err(), [0, 300].contains(&number));
                next += 1;
                if breaks && number == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(flow.map(|flow| flow.is_break()), Ok(breaks), "{credits} credits");
            assert_eq!(next, if breaks { last + 1 } else { keys.len() });
            assert!(reader.fabric().posted.is_empty());
            let reads = reader.fabric().reads - reader.stats().retries_torn;
            // Keys have two windows on average.
            match breaks {
                true => assert!(reads < 2 * 128 + 64, "{reads} READs"),
                false => assert!(reads > 900, "{reads} READs"),
            }
        }
    }
    // All READs take equally long: no more than those under way are in excess.
    for credits in [1, 8, 64] {
        let mut reader = reader_of(&geometry, |_| 1, credits, |_| 1_000);
        let keys: Vec<_> = (0..100_000u32).map(u32::to_le_bytes).collect();
        let each = |number, _: StoredAnswer<'_>| match number {
            20 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        assert_eq!(reader.get_in_order(&keys, each), Ok(ControlFlow::Break(())));
        let reads = reader.fabric().reads;
        assert!((21..=21 + credits as u64 + 16).contains(&reads), "{reads} READs, {credits} credits");
    }
}

/// A key that the table does not take is refused before anything is READ, wherever it stands in a batch.
#[test]
fn lengths_are_looked_at_first() {
    let geometry = list();
    let mut reader = reader_of(&geometry, |_| 1, 4, |_| 1_000);
    for given in [0, 5, 256] {
        let refused = Err(ReadError::KeyLength { given, max: 4 });
        let bad = vec![1; given];
        assert_eq!(reader.get_into(&bad, &mut Vec::new()).map(|_| ()), refused);
        let last = [vec![vec![1; 4]; 20], vec![bad.clone()]].concat();
        for keys in [vec![bad.clone()], vec![vec![1; 4], bad.clone()], vec![bad.clone(), vec![1; 4]], last] {
            assert_eq!(reader.get_many(&keys, |n, _| panic!("{n} is answered")), refused);
        }
    }
    assert_eq!((reader.stats(), reader.fabric().reads), (GetStats::default(), 0));
    assert_eq!(reader.get_into(&[1; 4], &mut Vec::new()), Ok(false));
}

/// A key that is torn for long, and a caller that takes long with each of the others: in the end nothing
/// is under way but the one that rests, and it sleeps by the clock that counts the caller's time, too.
#[test]
fn a_rest_after_a_slow_caller() {
    let came = batch((100, 2, MS), |_| 10_000, |now, n| n == 0 && now < 300 * MS);
    came.all_answered();
    let at_ns = came.at_ns[0].unwrap();
    assert!((300 * MS..301 * MS).contains(&at_ns), "{at_ns} ns");
    // Every 60 us while nothing else goes on, and less often before.
    assert!((3_000..5_100).contains(&came.stats.retries_torn), "{:?}", came.stats);
}

/// A key whose value does not fit its slot, until that was fetched. By then it has another one.
struct Replaced<'g> {
    geometry: &'g Geometry,
    was_fetched: bool,
    posted: Vec<ReadId>,
    /// The times within which bytes would count.
    allowances: Vec<Duration>,
    /// What is said of a value that is fetched, and of a server that is asked for.
    failure: Option<ReadError>,
}

/// The bytes in the key's slot, or where the value is.
struct InSlot(Result<&'static [u8], Reference>, First);

const SHORT: &[u8] = b"short";

impl Landed for InSlot {
    /// For hints: the key seems to be in one slot of eight, so in one of each window.
    fn occupant(&self, slot: SlotIx) -> Option<First> {
        slot.0.is_multiple_of(8).then_some(self.1)
    }

    fn look(&mut self, _slot: SlotIx, _: SoughtKey<'_>, value: &mut impl Sink) -> Look {
        match self.0 {
            Err(reference) => Look::Reference(reference),
            Ok(bytes) => {
                if value.begin(bytes.len()) {
                    value.put(bytes);
                }
                Look::Match
            }
        }
    }
}

impl Replaced<'_> {
    fn reference(&self) -> Reference {
        let offset = self.geometry.heap().offset + 24;
        Reference { number: 1, offset, len: 700, crc: 0 }
    }
}

impl Direct for Replaced<'_> {}

impl Fabric for Replaced<'_> {
    type Landed<'a>
        = InSlot
    where
        Self: 'a;
    const EXACT: bool = false;
    type Mark = ();
    type Error = ReadError;

    fn credits(&self) -> usize {
        2
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.posted.extend(reads.iter().map(|(token, _)| token));
        Ok(())
    }

    fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut InSlot)) -> Result<(), ReadError> {
        let there = if self.was_fetched { Ok(SHORT) } else { Err(self.reference()) };
        let first = self.geometry.hashed(&[1; 4]).first();
        self.posted.drain(..).for_each(|token| sink(token, &mut InSlot(there, first)));
        Ok(())
    }

    fn mark(&mut self, _home: u64) {}

    fn took_less(&mut self, (): (), allowance: Duration) -> bool {
        self.allowances.push(allowance);
        false
    }

    fn check(&mut self) -> Result<(), ReadError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        self.check()?;
        stretches.iter().for_each(|bytes| out.put(&vec![9; bytes.len]));
        self.was_fetched = true;
        Ok(())
    }

    fn proof(&mut self, _home: u64, (): ()) -> Proof {
        Proof::InGrace
    }
}

fn with_heap() -> Geometry {
    let config = Config { size: TableSize::Slots(64), key_max: 4, value_max: 1000, ..Config::default() };
    config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap()
}

/// A reader of a table whose every key is such a one.
fn reader_of_replaced(geometry: &Geometry) -> Reader<'_, Replaced<'_>> {
    let (was_fetched, posted, allowances, failure) = Default::default();
    let fabric = Replaced { geometry, was_fetched, posted, allowances, failure };
    Reader::new(fabric, geometry, Clock::manual(), Limits::default())
}

/// X4: bytes that took A(n) or longer count only if another look agrees. If that finds a value in the slot,
/// this is the answer, and no byte of the long one.
#[test]
fn a_value_that_became_short_while_it_was_fetched() {
    let geometry = with_heap();
    let mut reader = reader_of_replaced(&geometry);
    let mut value = vec![7; 3];
    assert_eq!((reader.get_into(&[1; 4], &mut value), &value[..]), (Ok(true), SHORT));
    reader.fabric_mut().was_fetched = false;
    assert_eq!(reader.get_range(&[1; 4], 1..3, &mut value), Ok(Some(SHORT.len())));
    assert_eq!(value, SHORT[1..3]);
    reader.fabric_mut().was_fetched = false;
    let mut answered = 0;
    let each = |_, value: Option<&[u8]>| {
        assert_eq!(value, Some(SHORT));
        answered += 1;
    };
    assert_eq!((reader.get_many(&[[1; 4], [2; 4]], each), answered), (Ok(()), 2));
    let allowed = geometry.heap().allowance(geometry.grace(), 700);
    assert_eq!(reader.fabric().allowances, [allowed; 4]);
}

/// A GET is counted when it has an answer. One whose value could not be brought has none: by hints or
/// without, alone or in a batch.
#[test]
fn a_value_that_was_not_brought_is_no_answer() {
    let geometry = with_heap();
    let hints = Hints::new(&geometry, usize::MAX).unwrap();
    let failure = ReadError::Damaged { what: "it is" };
    for hinted in [false, true] {
        let mut reader = reader_of_replaced(&geometry);
        if hinted {
            reader.set_hints(&hints);
        }
        let mut value = Vec::new();
        reader.fabric_mut().failure = Some(failure.clone());
        // The first one learns where the key is.
        for _ in 0..2 {
            assert_eq!(reader.get_into(&[1; 4], &mut value), Err(failure.clone()));
        }
        assert_eq!(reader.get_range(&[1; 4], 1..3, &mut value), Err(failure.clone()));
        let each = |_, _: Option<&[u8]>| panic!("an answer");
        assert_eq!(reader.get_many(&[[1; 4]], each), Err(failure.clone()));
        assert_eq!(reader.stats(), GetStats::default(), "hints: {hinted}");
        reader.fabric_mut().failure = None;
        assert_eq!(reader.get_into(&[1; 4], &mut value), Ok(true));
        assert_eq!(reader.stats(), GetStats { gets: 1, hits: 1, ..GetStats::default() });
        assert_eq!(reader.hint_counts().hinted, 3 * u64::from(hinted));
    }
}

/// A key is refused for its length only while the server is there: the next one may take it. So it is with
/// one key, and in a batch, whose other keys have had their answers then.
#[test]
fn a_length_is_refused_by_a_server_that_is_there() {
    let geometry = with_heap();
    let (long, gone) = ([1; 5], ReadError::Damaged { what: "it is gone" });
    let refused = KeyLengthError { given: 5, max: 4 };
    let mut reader = reader_of_replaced(&geometry);
    reader.fabric_mut().was_fetched = true;
    let mut value = Vec::new();
    let batch = |reader: &mut Reader<'_, Replaced<'_>>, keys: &[&[u8]]| {
        let mut answers = Vec::new();
        let each = |number, answer: Result<Option<&[u8]>, _>| {
            answers.push((number, answer.map(|value| value.is_some())));
            ControlFlow::Continue(())
        };
        (reader.get_each(keys, each).map(|_| ()), answers)
    };
    let keys: [&[u8]; 3] = [&long, &[1; 4], &[]];
    for is_gone in [true, false] {
        reader.fabric_mut().failure = is_gone.then(|| gone.clone());
        let expected = if is_gone { gone.clone() } else { refused.into() };
        assert_eq!(reader.get_into(&long, &mut value), Err(expected.clone()));
        assert_eq!(reader.value_len(&long), Err(expected.clone()));
        assert_eq!(reader.get_range(&long, 0..1, &mut value), Err(expected.clone()));
        assert_eq!(reader.get_many(&[&long], |_, _| panic!("an answer")), Err(expected));
        let (alone, both) = (batch(&mut reader, &keys[..1]), batch(&mut reader, &keys));
        if is_gone {
            assert_eq!(alone, (Err(gone.clone()), vec![]));
            assert_eq!(both, (Err(gone.clone()), vec![(1, Ok(true))]));
        } else {
            let none = KeyLengthError { given: 0, max: 4 };
            assert_eq!(alone, (Ok(()), vec![(0, Err(refused))]));
            assert_eq!(both, (Ok(()), vec![(1, Ok(true)), (0, Err(refused)), (2, Err(none))]));
        }
    }
}

/// What is in the documentation.
#[test]
fn limits_by_default() {
    let documented = Limits { retries_max: 100_000, deadline: Duration::from_secs(1) };
    assert_eq!(Limits::default(), documented);
}

#[test]
fn counts_are_added_up() {
    let counts = |n: u64| GetStats {
        gets: n,
        hits: 2 * n,
        retries_torn: 3 * n,
        retries_moved: 4 * n,
        retries_late: 5 * n,
        retries_chain: 6 * n,
        retries_replaced: 7 * n,
        retries_other_key: 8 * n,
    };
    let mut sum = counts(10);
    sum += counts(100);
    assert_eq!(sum, counts(110));
    let numbers = |n: u64| HintCounts { hinted: n, hits: 2 * n, reads: 3 * n };
    let mut hinted = numbers(10);
    hinted += numbers(100);
    assert_eq!(hinted, numbers(110));
    let numbers = |n: u64| ReadCounts { reads: n, bytes: 2 * n, doorbells: 3 * n };
    let mut reads = numbers(10);
    reads += numbers(100);
    assert_eq!(reads, numbers(110));
    let mut counted = counts(10);
    for (times, why) in [
        (2, Retry::Torn),
        (3, Retry::Moved),
        (4, Retry::Late),
        (5, Retry::Chain),
        (6, Retry::Replaced),
        (7, Retry::OtherKey),
    ] {
        (0..times).for_each(|_| counted.count(why));
    }
    let expected = GetStats {
        retries_torn: 32,
        retries_moved: 43,
        retries_late: 54,
        retries_chain: 65,
        retries_replaced: 76,
        retries_other_key: 87,
        ..counts(10)
    };
    assert_eq!(counted, expected);
}
