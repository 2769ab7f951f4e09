//! Drives GET machines over a fabric: one at a time, or many in flight. Counts what it does, bounds what
//! it may do.

use crate::clock::Clock;
use crate::fabric::{Fabric, Token};
use crate::get::{Get, Retry, Step};
use crate::layout::geometry::{Geometry, Window};
use std::time::Duration;

/// Bounds of one GET. The first one reached ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Passes that may be inconclusive before the GET ends in [`ReadError::Contended`].
    pub retries_max: u32,
    /// Time a GET (or a whole batch) may take once it has to look again, before it ends in
    /// [`ReadError::Deadline`].
    pub deadline: Duration,
}

impl Default for Limits {
    /// 100,000 retries, one second.
    fn default() -> Limits {
        Limits { retries_max: 100_000, deadline: Duration::from_secs(1) }
    }
}

/// Why a GET gave no answer.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ReadError<E> {
    /// The key's length is out of range.
    #[error("the key is {given} bytes long, this table takes 1 to {max}")]
    KeyLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The bound on retries was reached.
    #[error(
        "{retries} looks in a row were inconclusive (last cause: {last:?}); the slot is rewritten without pause, or the server stopped in the middle of writing it"
    )]
    Contended {
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// The deadline was reached.
    #[error(
        "no conclusive look within {deadline:?} ({retries} retries, last cause: {last:?}); the server may have stopped in the middle of writing the slot"
    )]
    Deadline {
        /// The bound.
        deadline: Duration,
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// The fabric failed.
    #[error(transparent)]
    Fabric(E),
}

impl ReadError<std::convert::Infallible> {
    /// The same error where fabrics can fail.
    pub fn widen<E>(self) -> ReadError<E> {
        match self {
            ReadError::KeyLength { given, max } => ReadError::KeyLength { given, max },
            ReadError::Contended { retries, last } => ReadError::Contended { retries, last },
            ReadError::Deadline { deadline, retries, last } => {
                ReadError::Deadline { deadline, retries, last }
            }
            ReadError::Fabric(never) => match never {},
        }
    }
}

/// Counts of what GETs did. Add them up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetStats {
    /// GETs answered.
    pub gets: u64,
    /// Of these, keys found.
    pub hits: u64,
    /// Passes repeated because a slot was being written.
    pub retries_torn: u64,
    /// Passes repeated because the key may have been moved meanwhile.
    pub retries_moved: u64,
    /// Passes repeated because they could not be proven in time.
    pub retries_late: u64,
    /// Passes repeated because a chain had no end: the memory is damaged.
    pub retries_chain: u64,
}

impl std::ops::AddAssign for GetStats {
    fn add_assign(&mut self, other: GetStats) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.retries_torn += other.retries_torn;
        self.retries_moved += other.retries_moved;
        self.retries_late += other.retries_late;
        self.retries_chain += other.retries_chain;
    }
}

impl GetStats {
    fn count(&mut self, why: Retry) {
        match why {
            Retry::Torn => self.retries_torn += 1,
            Retry::Moved => self.retries_moved += 1,
            Retry::Late => self.retries_late += 1,
            Retry::Chain => self.retries_chain += 1,
        }
    }
}

/// Looks keys up through a fabric. One per thread (`&mut self`); cheap to make.
#[derive(Debug)]
pub struct Reader<'g, F> {
    fabric: F,
    geometry: &'g Geometry,
    clock: Clock,
    limits: Limits,
    stats: GetStats,
}

impl<'g, F: Fabric> Reader<'g, F> {
    /// A reader of the table with this geometry.
    pub fn new(fabric: F, geometry: &'g Geometry, clock: Clock, limits: Limits) -> Reader<'g, F> {
        Reader { fabric, geometry, clock, limits, stats: GetStats::default() }
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The fabric, to be told of something between GETs.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Counts so far.
    pub fn stats(&self) -> GetStats {
        self.stats
    }

    /// Looks `key` up; its value replaces what was in `value`. Returns whether it was found. Usually 1
    /// READ and 1 round trip; allocates only if `value` is too small.
    ///
    /// # Errors
    /// [`ReadError`]; absence is not one.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ReadError<F::Error>> {
        self.check_key(key)?;
        let mut get = Get::new(self.geometry, key);
        let home = get.home();
        let mut patience = Patience::new();
        let mut mark = self.fabric.mark(home);
        let mut step = Step::Read(get.start());
        loop {
            step = match step {
                Step::Read(window) => self
                    .fabric
                    .read(window, |landed| get.feed(landed, F::EXACT, value))
                    .map_err(ReadError::Fabric)?,
                Step::Judge => get.judge(self.fabric.proof(home, mark)),
                Step::Again(window, why) => {
                    self.stats.count(why);
                    patience.pause(why, &self.clock, &self.limits)?;
                    mark = self.fabric.mark(home);
                    Step::Read(window)
                }
                Step::Found => {
                    self.stats.gets += 1;
                    self.stats.hits += 1;
                    return Ok(true);
                }
                Step::Absent => {
                    self.stats.gets += 1;
                    value.clear();
                    return Ok(false);
                }
            };
        }
    }

    /// Looks many keys up with as many READs in flight as the fabric allows: whenever some have completed, a
    /// doorbell for all that are ready to follow. Hands each answer to `each` with the key's number in `keys`, in no particular order.
    ///
    /// # Errors
    /// [`ReadError`] as soon as one GET ends in one; `each` has then not been called for every key.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), ReadError<F::Error>> {
        keys.iter().try_for_each(|key| self.check_key(key.as_ref()))?;
        let lanes_max = self.fabric.credits().min(keys.len());
        let mut lanes: Vec<Lane<'_, F::Mark>> = Vec::with_capacity(lanes_max);
        let mut doorbell: Vec<(Token, Window)> = Vec::with_capacity(lanes_max);
        let mut judged: Vec<(Token, Step)> = Vec::with_capacity(lanes_max);
        let mut todo = keys.iter().enumerate();
        for (number, key) in todo.by_ref().take(lanes_max) {
            doorbell.push((
                lanes.len() as Token,
                self.geometry.primary(self.geometry.seeds().first(key.as_ref())),
            ));
            lanes.push(Lane::new(self.geometry, &mut self.fabric, number, key.as_ref()));
        }
        let mut in_flight = 0;
        while in_flight + doorbell.len() > 0 {
            if !doorbell.is_empty() {
                self.fabric.post(&doorbell).map_err(ReadError::Fabric)?;
                in_flight += doorbell.len();
                doorbell.clear();
            }
            // What has completed makes room for what comes next, while the rest is still under way.
            self.fabric
                .poll(|token, landed| {
                    let lane = &mut lanes[token as usize];
                    judged.push((token, lane.get.feed(landed, F::EXACT, &mut lane.value)));
                })
                .map_err(ReadError::Fabric)?;
            in_flight -= judged.len();
            for (token, step) in judged.drain(..) {
                let lane = &mut lanes[token as usize];
                let step = match step {
                    Step::Judge => lane.get.judge(self.fabric.proof(lane.get.home(), lane.mark)),
                    step => step,
                };
                match step {
                    Step::Read(window) => doorbell.push((token, window)),
                    Step::Again(window, why) => {
                        self.stats.count(why);
                        lane.patience.pause(why, &self.clock, &self.limits)?;
                        lane.mark = self.fabric.mark(lane.get.home());
                        doorbell.push((token, window));
                    }
                    Step::Found | Step::Absent | Step::Judge => {
                        let found = step == Step::Found;
                        self.stats.gets += 1;
                        self.stats.hits += u64::from(found);
                        each(lane.number, found.then_some(lane.value.as_slice()));
                        if let Some((number, key)) = todo.next() {
                            lane.restart(self.geometry, &mut self.fabric, number, key.as_ref());
                            doorbell.push((token, lane.get.start()));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), ReadError<F::Error>> {
        let max = self.geometry.key_max();
        if key.is_empty() || key.len() > max {
            return Err(ReadError::KeyLength { given: key.len(), max });
        }
        Ok(())
    }
}

/// One of several GETs in flight.
struct Lane<'a, M> {
    get: Get<'a>,
    number: usize,
    mark: M,
    value: Vec<u8>,
    patience: Patience,
}

impl<'a, M: Copy> Lane<'a, M> {
    fn new<F: Fabric<Mark = M>>(
        geometry: &'a Geometry,
        fabric: &mut F,
        number: usize,
        key: &'a [u8],
    ) -> Self {
        let get = Get::new(geometry, key);
        let mark = fabric.mark(get.home());
        Lane { get, number, mark, value: Vec::new(), patience: Patience::new() }
    }

    fn restart<F: Fabric<Mark = M>>(
        &mut self,
        geometry: &'a Geometry,
        fabric: &mut F,
        number: usize,
        key: &'a [u8],
    ) {
        self.get = Get::new(geometry, key);
        self.mark = fabric.mark(self.get.home());
        self.number = number;
        self.patience = Patience::new();
    }
}

/// How long one GET goes on looking again, and how it waits in between: first it spins, because a slot is
/// rewritten in some 20 ns; then it lets others run, because the writer may have been preempted; then it
/// sleeps.
struct Patience {
    retries: u32,
    since_ns: u64,
}

/// Retries that spin, and retries after which it sleeps.
const SPINS: u32 = 8;
const YIELDS: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);

impl Patience {
    #[inline]
    fn new() -> Patience {
        Patience { retries: 0, since_ns: 0 }
    }

    #[cold]
    fn pause<E>(&mut self, last: Retry, clock: &Clock, limits: &Limits) -> Result<(), ReadError<E>> {
        self.retries += 1;
        if self.retries >= limits.retries_max {
            return Err(ReadError::Contended { retries: self.retries, last });
        }
        let now = clock.now_ns();
        if self.retries == 1 {
            self.since_ns = now;
        }
        if Duration::from_nanos(now - self.since_ns) >= limits.deadline {
            return Err(ReadError::Deadline { deadline: limits.deadline, retries: self.retries, last });
        }
        if self.retries <= SPINS {
            std::hint::spin_loop();
        } else if matches!(clock, Clock::Manual(_)) {
            // Simulated time does not pass by waiting.
        } else if self.retries <= YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::time::Instant;

    fn pause(patience: &mut Patience, clock: &Clock, limits: &Limits) -> Result<(), ReadError<Infallible>> {
        patience.pause(Retry::Torn, clock, limits)
    }

    #[test]
    fn patience_ends_at_its_bounds() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(5));
        let last = Retry::Torn;
        let limits = Limits { retries_max: 3, deadline: Duration::from_nanos(10) };
        let mut patience = Patience::new();
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
        assert_eq!(pause(&mut patience, &clock, &limits), Ok(()));
        let contended = Err(ReadError::Contended { retries: 3, last });
        assert_eq!(pause(&mut patience, &clock, &limits), contended);

        let limits = Limits { retries_max: 1000, ..limits };
        let mut patience = Patience::new();
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
        let mut patience = Patience::new();
        for _ in 0..YIELDS {
            pause(&mut patience, &Clock::System, &limits).unwrap();
        }
        let begun = Instant::now();
        for _ in 0..100 {
            pause(&mut patience, &Clock::System, &limits).unwrap();
        }
        assert!(begun.elapsed() >= 100 * SLEEP);
    }

    #[test]
    fn counts_are_added_up() {
        let numbers = |n: u64| GetStats {
            gets: n,
            hits: 2 * n,
            retries_torn: 3 * n,
            retries_moved: 4 * n,
            retries_late: 5 * n,
            retries_chain: 6 * n,
        };
        let mut sum = numbers(10);
        sum += numbers(100);
        assert_eq!(sum, numbers(110));
        let mut counted = numbers(10);
        for (times, why) in [(2, Retry::Torn), (3, Retry::Moved), (4, Retry::Late), (5, Retry::Chain)] {
            (0..times).for_each(|_| counted.count(why));
        }
        let expected = GetStats {
            retries_torn: 32,
            retries_moved: 43,
            retries_late: 54,
            retries_chain: 65,
            ..numbers(10)
        };
        assert_eq!(counted, expected);
    }
}
