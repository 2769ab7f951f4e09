//! The adversarial fabric: a NIC that may do anything hardware may do.
//!
//! Clients of a one-sided index do not influence the server. So the server runs first, unmodified, over a
//! [recorded](Region::recorded) region: each store goes into a [`History`] with its time. Then GETs, driven
//! by the same machine as ever, run against that history: a READ that is posted at `p` and completes at `c`
//! returns each *unit* of memory as it was at some instant of `[p, c]`, and an [`Adversary`] picks the
//! instants: units in any order, READs of one doorbell interleaved at will, as long as it likes.
//!
//! * [`Unit::Line`] is assumption H1: a 64-byte line is sampled at one instant.
//! * [`Unit::Word`] is H0: only an 8-byte word is.
//!
//! Time is that of a manual [`Clock`], which each store advances. A server that stops for ever at some
//! store is a history that ends there ([`History::until`]).

use super::{Fabric, Token};
use crate::clock::Clock;
use crate::fabric::landed::LandedWindow;
use crate::get::Proof;
use crate::layout::control::move_counter_word;
use crate::layout::geometry::{Geometry, Window};
use crate::layout::{LINE, WORD};
use crate::region::Region;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Store {
    word: u32,
    value: u64,
    at_ns: u64,
}

/// Takes down every store into a region, with its time.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    per_store: Duration,
    stores: Mutex<Vec<Store>>,
}

impl Recorder {
    /// Takes times from `clock`, which each store advances by `per_store`.
    pub fn new(clock: Clock, per_store: Duration) -> Recorder {
        Recorder { clock, per_store, stores: Mutex::default() }
    }

    pub(crate) fn store(&self, word: usize, value: u64) {
        self.clock.advance(self.per_store);
        let store = Store { word: word as u32, value, at_ns: self.clock.now_ns() };
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// Stores so far: the instant now.
    pub fn now(&self) -> Instant {
        Instant(self.stores.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    /// Stores again what had been stored up to `until`, each store at its time, into `region`, which has a
    /// recorder of its own with the clock `clock`.
    pub(crate) fn repeat(&self, until: Instant, region: &Region, clock: &Clock) {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner)[..until.0].to_vec();
        for store in stores {
            let begun_ns = store.at_ns - self.per_store.as_nanos() as u64;
            clock.sleep_until(begun_ns);
            region.store(store.word as usize, store.value);
        }
    }

    /// The history so far, of a region of `bytes` bytes that was zero at first.
    pub fn history(&self, bytes: u64) -> History {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let mut versions = vec![Vec::new(); bytes as usize / WORD];
        let mut times = Vec::with_capacity(stores.len() + 1);
        times.push(0);
        for (n, store) in stores.iter().enumerate() {
            versions[store.word as usize].push((n as u32 + 1, store.value));
            times.push(store.at_ns);
        }
        History { versions, times, end: stores.len() }
    }
}

/// A place in a history: after so many stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Instant(pub usize);

/// All stores into a region.
#[derive(Clone, Debug)]
pub struct History {
    /// For each word, its values and the instant from which each holds; zero before the first.
    versions: Vec<Vec<(u32, u64)>>,
    /// When each instant began.
    times: Vec<u64>,
    end: usize,
}

impl History {
    /// The last instant.
    pub fn end(&self) -> Instant {
        Instant(self.end)
    }

    /// The history of a server that stops for ever at `instant`.
    pub fn until(mut self, instant: Instant) -> History {
        self.end = instant.0.min(self.end);
        self
    }

    /// Time of an instant, in nanoseconds.
    pub fn time_ns(&self, instant: Instant) -> u64 {
        self.times[instant.0]
    }

    /// The last nanosecond of an instant: a client that begins in it may have begun as late as that.
    fn last_ns(&self, instant: Instant) -> u64 {
        self.times.get(instant.0 + 1).map_or(self.times[instant.0], |next| next - 1)
    }

    /// A word's value at an instant.
    pub fn word(&self, word: usize, instant: Instant) -> u64 {
        let versions = &self.versions[word];
        let known = versions.partition_point(|&(since, _)| since as usize <= instant.0);
        known.checked_sub(1).map_or(0, |n| versions[n].1)
    }

    /// Stores into `words` after `from` and up to `to`: instant, word, value.
    pub fn stores(
        &self,
        words: std::ops::Range<usize>,
        from: Instant,
        to: Instant,
    ) -> Vec<(Instant, usize, u64)> {
        let within = |since: u32| (from.0 + 1..=to.0).contains(&(since as usize));
        let mut stores: Vec<_> = words
            .flat_map(|word| self.versions[word].iter().map(move |&(since, value)| (since, word, value)))
            .filter(|&(since, ..)| within(since))
            .map(|(since, word, value)| (Instant(since as usize), word, value))
            .collect();
        stores.sort_unstable();
        stores
    }

    /// Instants within `[from, to]` at which some word of `first..first + len` is new, and `from` itself:
    /// samples at other instants show nothing else.
    fn distinct(&self, first: usize, len: usize, from: Instant, to: Instant, out: &mut Vec<Instant>) {
        out.clear();
        out.push(from);
        for versions in &self.versions[first..first + len] {
            let start = versions.partition_point(|&(since, _)| since as usize <= from.0);
            let within = versions[start..].iter().take_while(|&&(since, _)| since as usize <= to.0);
            out.extend(within.map(|&(since, _)| Instant(since as usize)));
        }
        out[1..].sort_unstable();
        out.dedup();
    }
}

/// Decides whatever hardware leaves open.
pub trait Adversary {
    /// A number below `n`, which is at least 1.
    fn pick(&mut self, n: usize) -> usize;
}

/// Decides by a pseudo-random sequence.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that follows from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(crate::layout::hash::mix(seed ^ 0x5eed))
    }
}

impl Adversary for Random {
    fn pick(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::layout::hash::reduce(crate::layout::hash::mix(self.0), n as u64) as usize
    }
}

/// Decides every way there is, one after the other.
///
/// ```
/// # use oneread::fabric::sim::{Adversary, Every};
/// let mut every = Every::default();
/// let mut seen = Vec::new();
/// while every.next_schedule() {
///     seen.push((every.pick(2), every.pick(3)));
/// }
/// assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Every {
    /// Decisions of this schedule, and out of how many.
    decisions: Vec<(usize, usize)>,
    at: usize,
    schedules: u64,
}

impl Every {
    /// Goes over to the next schedule; `false` after the last.
    pub fn next_schedule(&mut self) -> bool {
        self.decisions.truncate(self.at);
        self.at = 0;
        if self.schedules > 0 {
            loop {
                match self.decisions.last_mut() {
                    None => return false,
                    Some((choice, n)) if *choice + 1 < *n => {
                        *choice += 1;
                        break;
                    }
                    Some(_) => {
                        self.decisions.pop();
                    }
                }
            }
        }
        self.schedules += 1;
        true
    }

    /// Schedules so far, the current one included.
    pub fn schedules(&self) -> u64 {
        self.schedules
    }
}

impl Adversary for Every {
    fn pick(&mut self, n: usize) -> usize {
        if self.at == self.decisions.len() {
            self.decisions.push((0, n));
        }
        let (choice, _) = self.decisions[self.at];
        self.at += 1;
        choice
    }
}

/// Decides as given bytes say (a fuzzer's), and always 0 when they are used up.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Adversary for Bytes<'_> {
    fn pick(&mut self, n: usize) -> usize {
        let mut number = 0usize;
        let mut left = n - 1;
        while left > 0 {
            let Some((&byte, rest)) = self.0.split_first() else { break };
            number = number << 8 | usize::from(byte);
            self.0 = rest;
            left >>= 8;
        }
        number % n
    }
}

/// What memory gives at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A 64-byte line (H1).
    Line,
    /// An 8-byte word (H0).
    Word,
}

/// What a client goes by when it reports a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The grace time, as over a network.
    Clock,
    /// The counters of begun moves, as on shm.
    Counter,
}

/// How an adversary's READs behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// What is sampled at one instant.
    pub unit: Unit,
    /// What the client goes by.
    pub witness: Witness,
    /// A READ lasts at most so many stores.
    pub read_stores_max: usize,
    /// One READ in so many fails; 0: none does.
    pub error_one_in: usize,
    /// How many nanoseconds of the server's clock one of the client's takes.
    pub client_ns: u64,
    /// Passes of one GET that the adversary meddles with; the ones after see memory as it is at the end.
    pub passes_max: usize,
}

/// A READ that the adversary let fail.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("the READ failed")]
pub struct ReadFailed;

/// A client's fabric over a history. Starts at some instant and moves on with each READ.
#[derive(Debug)]
pub struct Sim<'a, A> {
    history: &'a History,
    geometry: &'a Geometry,
    hardware: Hardware,
    adversary: &'a mut A,
    now: Instant,
    passes: usize,
    posted: Vec<(Token, Window, Instant)>,
    landing: Vec<u64>,
    instants: Vec<Instant>,
    story: Option<Vec<String>>,
}

impl<'a, A: Adversary> Sim<'a, A> {
    /// A fabric that begins at `start`.
    pub fn new(
        history: &'a History,
        geometry: &'a Geometry,
        hardware: Hardware,
        adversary: &'a mut A,
        start: Instant,
    ) -> Sim<'a, A> {
        Sim {
            history,
            geometry,
            hardware,
            adversary,
            now: start,
            passes: 0,
            posted: Vec::new(),
            landing: Vec::new(),
            instants: Vec::new(),
            story: None,
        }
    }

    /// A new GET begins.
    pub fn begin(&mut self) {
        self.passes = 0;
        self.story.iter_mut().for_each(Vec::clear);
    }

    /// Takes down from now on what each READ of a GET samples.
    pub fn tell(&mut self) {
        self.story = Some(Vec::new());
    }

    /// What the READs of the GET that began last have sampled.
    pub fn story(&self) -> &[String] {
        self.story.as_deref().unwrap_or_default()
    }

    /// The instant that the client has reached.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Lands a READ that was posted at `posted`; the instant of its last sample.
    fn land(&mut self, window: Window, posted: Instant) -> Instant {
        let first = self.geometry.slot_word(window.first);
        let words = window.slots as usize * self.geometry.shape().words();
        let latest = Instant(self.history.end.min(posted.0 + self.hardware.read_stores_max));
        let unit_words = match self.hardware.unit {
            Unit::Line => LINE / WORD,
            Unit::Word => 1,
        };
        self.landing.clear();
        let mut sampled = Vec::new();
        let mut completed = posted;
        let mut at = first;
        while at < first + words {
            let next = ((at / unit_words + 1) * unit_words).min(first + words);
            self.history.distinct(at, next - at, posted, latest, &mut self.instants);
            let instant = self.instants[self.adversary.pick(self.instants.len())];
            completed = completed.max(instant);
            if self.story.is_some() {
                sampled.push(instant.0);
            }
            self.landing.extend((at..next).map(|word| self.history.word(word, instant)));
            at = next;
        }
        if let Some(story) = &mut self.story {
            let (first, last) = (window.first.0, window.first.0 + u64::from(window.slots) - 1);
            let unit = self.hardware.unit;
            story.push(format!(
                "READ of slots {first}..={last}, posted at {}; each {unit:?} as it was at {sampled:?}",
                posted.0
            ));
        }
        completed
    }
}

impl<A: Adversary> Fabric for Sim<'_, A> {
    type Landed<'l>
        = LandedWindow<'l>
    where
        Self: 'l;
    const EXACT: bool = false;
    type Mark = Instant;
    type Error = ReadFailed;

    fn credits(&self) -> usize {
        8
    }

    fn post(&mut self, reads: &[(Token, Window)]) -> Result<(), ReadFailed> {
        self.posted.extend(reads.iter().map(|&(token, window)| (token, window, self.now)));
        Ok(())
    }

    fn poll(&mut self, mut sink: impl FnMut(Token, &mut LandedWindow<'_>)) -> Result<(), ReadFailed> {
        if self.posted.is_empty() {
            return Ok(());
        }
        let one_in = self.hardware.error_one_in;
        if one_in > 0 && self.adversary.pick(one_in) == 0 {
            self.posted.clear();
            return Err(ReadFailed);
        }
        let which = self.adversary.pick(self.posted.len());
        let (token, window, posted) = self.posted.swap_remove(which);
        let completed = self.land(window, posted);
        self.now = self.now.max(completed);
        sink(token, &mut LandedWindow::new(self.geometry, window, &self.landing));
        Ok(())
    }

    fn mark(&mut self, _home: u64) -> Instant {
        // Between two passes the server may do something or nothing.
        match self.passes {
            0 => {}
            n if n < self.hardware.passes_max => {
                let on = self.adversary.pick(2);
                self.now = Instant((self.now.0 + on).min(self.history.end));
            }
            _ => self.now = self.history.end(),
        }
        self.passes += 1;
        self.now
    }

    fn proof(&mut self, home: u64, mark: Instant) -> Proof {
        match self.hardware.witness {
            Witness::Clock => {
                // It may have begun late in the first instant and ended early in the last.
                let took_ns = self.history.time_ns(self.now).saturating_sub(self.history.last_ns(mark));
                let in_grace =
                    u128::from(took_ns / self.hardware.client_ns) < self.geometry.grace().as_nanos();
                if in_grace { Proof::InGrace } else { Proof::None }
            }
            Witness::Counter => {
                let word = move_counter_word(home);
                let unchanged = self.history.word(word, mark) == self.history.word(word, self.now);
                let broken = crate::faults::broken(crate::faults::Rule::MoveCounter);
                if unchanged || broken { Proof::NoMove } else { Proof::None }
            }
        }
    }
}
