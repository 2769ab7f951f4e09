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
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::slot::{COPY_SHIFT, View};
use crate::layout::{LINE, WORD};
use crate::region::Region;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
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
    stalls: Mutex<Stalls>,
}

/// Where the server loses its processor.
#[derive(Clone, Copy, Debug, Default)]
pub enum Stalls {
    /// Nowhere.
    #[default]
    Never,
    /// After the store that makes this the instant now, for so long.
    Once(Instant, Duration),
    /// Once in so many stores, for up to so long.
    Random(Random, usize, Duration),
}

impl Recorder {
    /// Takes times from `clock`, which each store advances by `per_store`.
    pub fn new(clock: Clock, per_store: Duration) -> Recorder {
        Recorder { clock, per_store, stores: Mutex::default(), stalls: Mutex::default() }
    }

    pub(crate) fn store(&self, word: usize, value: u64) {
        self.clock.advance(self.per_store);
        let store = Store { word: word as u32, value, at_ns: self.clock.now_ns() };
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.push(store);
        match &mut *self.stalls.lock().unwrap_or_else(PoisonError::into_inner) {
            Stalls::Once(after, time) if after.0 == stores.len() => self.clock.advance(*time),
            Stalls::Random(random, one_in, most) => {
                if random.pick(*one_in) == 0 {
                    self.clock.advance(*most * (1 + random.pick(8)) as u32 / 8);
                }
            }
            Stalls::Once(..) | Stalls::Never => {}
        }
    }

    /// From now on the server loses its processor so.
    pub fn stall(&self, stalls: Stalls) {
        *self.stalls.lock().unwrap_or_else(PoisonError::into_inner) = stalls;
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
    pub fn stores(&self, words: Range<usize>, from: Instant, to: Instant) -> Vec<(Instant, usize, u64)> {
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

    /// Which of `n` instants a unit is sampled at. `is_whole` says at which of them no write of it is under way.
    fn pick_sample(&mut self, n: usize, is_whole: impl Fn(usize) -> bool) -> usize {
        let _ = is_whole;
        self.pick(n)
    }

    /// Between two passes: 0 to go on at once, 1 to let the server store once, beyond that to sleep until one of so many
    /// `leaps`.
    fn pick_pause(&mut self, leaps: usize) -> usize {
        self.pick(2 + leaps)
    }
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

    /// Seven times in eight one at which the unit is whole, as early or as late as can be, or any: what is torn
    /// sends a GET round again, and what lies furthest apart contradicts itself most.
    fn pick_sample(&mut self, n: usize, is_whole: impl Fn(usize) -> bool) -> usize {
        let how = self.pick(8);
        if n < 3 || how == 0 {
            return self.pick(n);
        }
        let mut whole = (0..n).filter(|&instant| is_whole(instant));
        let found = match how {
            1..3 => whole.next(),
            3..6 => whole.next_back(),
            _ => {
                let whole: SmallVec<[usize; 32]> = whole.collect();
                (!whole.is_empty()).then(|| whole[self.pick(whole.len())])
            }
        };
        found.unwrap_or_else(|| self.pick(n))
    }

    /// Two times in five it sleeps.
    fn pick_pause(&mut self, leaps: usize) -> usize {
        match self.pick(5) {
            0 | 1 if leaps > 0 => 2 + self.pick(leaps),
            _ => self.pick(2),
        }
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

/// Leaps that a client chooses among.
const LEAPS_MAX: usize = 3;

/// What a GET looks for, and when its client sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aim<'a> {
    /// The key's home and ghost.
    pub home: u64,
    /// 0: nobody's.
    pub ghost: u8,
    /// Its READs last at most so many stores, if that is less than the hardware allows.
    pub read_stores_max: Option<usize>,
    /// Instants up to which its client may sleep between two passes.
    pub leaps: &'a [Instant],
}

/// One pass of a GET.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// When it began.
    pub from: Instant,
    /// When its last READ had completed.
    pub to: Instant,
    /// What could be said of it; `None` if a slot was torn, or nothing needed to be said.
    pub proof: Option<Proof>,
}

/// What a GET met with.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// Could some unit show more than one thing?
    pub choice: bool,
    /// Its passes.
    pub passes: Vec<Pass>,
    /// Has a client slept between two passes?
    pub slept: bool,
    /// In the last pass: windows beyond the primary one, overflow blocks among them, ghosts of the key.
    pub further: u32,
    /// See above.
    pub blocks: u32,
    /// See above.
    pub ghosts: u32,
    /// Was there a key of another home in an overflow block?
    pub block_reused: bool,
}

/// A client's fabric over a history. Starts at some instant and moves on with each READ.
#[derive(Debug)]
pub struct Sim<'a, A> {
    history: &'a History,
    geometry: &'a Geometry,
    hardware: Hardware,
    adversary: &'a mut A,
    /// Who hands answers over can look at it.
    now: Rc<Cell<Instant>>,
    aim: Aim<'a>,
    met: Met,
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
            now: Rc::new(Cell::new(start)),
            aim: Aim::default(),
            met: Met::default(),
            passes: 0,
            posted: Vec::new(),
            landing: Vec::new(),
            instants: Vec::new(),
            story: None,
        }
    }

    /// A new GET begins, no earlier than at `from`.
    pub fn begin(&mut self, from: Instant, aim: Aim<'a>) {
        self.now.set(self.now.get().max(from));
        self.passes = 0;
        self.aim = aim;
        self.met = Met::default();
        self.story.iter_mut().for_each(Vec::clear);
    }

    /// What the GET that began last has met with.
    pub fn met(&self) -> &Met {
        &self.met
    }

    /// Shows the instant that the client has reached, also while a batch is under way.
    pub fn watch(&self) -> Rc<Cell<Instant>> {
        self.now.clone()
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
        self.now.get()
    }

    /// Lands a READ that was posted at `posted`; the instant of its last sample.
    fn land(&mut self, window: Window, posted: Instant) -> Instant {
        let first = self.geometry.slot_word(window.first);
        let words = window.slots as usize * self.geometry.shape().words();
        let stores_max =
            self.hardware.read_stores_max.min(self.aim.read_stores_max.unwrap_or(usize::MAX >> 1));
        let latest = Instant(self.history.end.min(posted.0 + stores_max));
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
            let instants = &self.instants;
            let (history, geometry) = (self.history, self.geometry);
            let whole = |n: usize| is_whole(history, geometry, at..next, instants[n]);
            let instant = match instants[..] {
                [only] => only,
                _ => instants[self.adversary.pick_sample(instants.len(), whole)],
            };
            self.met.choice |= self.instants.len() > 1;
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
        self.look_for_what_it_met(window);
        completed
    }

    fn look_for_what_it_met(&mut self, window: Window) {
        let is_block = window.first.0 >= self.geometry.main_slots();
        self.met.blocks += u32::from(is_block);
        self.met.further += u32::from(window.first != self.geometry.window(self.aim.home).first);
        if self.aim.ghost == 0 {
            return;
        }
        let shape = self.geometry.shape();
        for image in self.landing.chunks_exact(shape.words()) {
            let Ok(view) = View::consistent(shape, image) else { continue };
            let header = view.header();
            self.met.ghosts += u32::from(header.ghost == self.aim.ghost);
            if is_block && !header.is_free() && header.stamp.is_multiple_of(2) {
                let home = self.geometry.home(self.geometry.seeds().first(&view.key()).0);
                self.met.block_reused |= home != self.aim.home;
            }
        }
    }
}

/// Is no write of these words' slots under way, as far as their stamps say?
fn is_whole(history: &History, geometry: &Geometry, mut words: Range<usize>, at: Instant) -> bool {
    let slot_words = geometry.shape().words();
    let first = geometry.slot_word(SlotIx(0));
    words.all(|word| {
        let nth = (word - first) % slot_words;
        let is_odd = |shift: u32| history.word(word, at) >> shift & 1 == 1;
        match nth {
            0 => !is_odd(0),
            _ if nth >= LINE / WORD && nth % (LINE / WORD) == LINE / WORD - 1 => !is_odd(COPY_SHIFT),
            _ => true,
        }
    })
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
        self.posted.extend(reads.iter().map(|&(token, window)| (token, window, self.now.get())));
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
        self.now.set(self.now.get().max(completed));
        if let Some(pass) = self.met.passes.last_mut() {
            pass.to = self.now.get();
        }
        sink(token, &mut LandedWindow::new(self.geometry, window, &self.landing));
        Ok(())
    }

    fn mark(&mut self, _home: u64) -> Instant {
        let now = self.now.get();
        let begins = match self.passes {
            0 => now,
            n if n < self.hardware.passes_max => {
                // Between two passes the server may do something or nothing, or much, while the client sleeps.
                let next = Instant((now.0 + 1).min(self.history.end));
                let leaps = self.aim.leaps;
                let ahead = &leaps[leaps.partition_point(|leap| *leap <= next)..];
                match self.adversary.pick_pause(ahead.len().min(LEAPS_MAX)) {
                    0 => now,
                    1 => next,
                    n => {
                        self.met.slept = true;
                        ahead[n - 2].min(self.history.end())
                    }
                }
            }
            _ => self.history.end(),
        };
        self.now.set(begins);
        self.passes += 1;
        self.met.passes.push(Pass { from: begins, to: begins, proof: None });
        (self.met.further, self.met.blocks, self.met.ghosts) = (0, 0, 0);
        begins
    }

    fn proof(&mut self, home: u64, mark: Instant) -> Proof {
        let proof = match self.hardware.witness {
            Witness::Clock => {
                // It may have begun late in the first instant and ended early in the last.
                let took_ns = self.history.time_ns(self.now.get()).saturating_sub(self.history.last_ns(mark));
                Proof::by_clock(took_ns / self.hardware.client_ns, self.geometry.grace())
            }
            Witness::Counter => {
                let word = move_counter_word(home);
                Proof::by_counter(self.history.word(word, mark), self.history.word(word, self.now.get()))
            }
        };
        if let Some(pass) = self.met.passes.last_mut() {
            pass.proof = Some(proof);
        }
        proof
    }
}
