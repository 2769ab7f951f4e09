//! What a server stored, in which order and when.

use super::choices::{Adversary, Random};
use crate::base::clock::Clock;
use crate::base::observe::Observer;
use crate::layout::WORD;
use crate::region::Region;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Store {
    word: u32,
    value: u64,
    at_ns: u64,
}

/// Records every store into a region, with its time.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    per_store: Duration,
    state: Mutex<RecorderState>,
}

#[derive(Debug, Default)]
struct RecorderState {
    stores: Vec<Store>,
    stalls: Stalls,
    meanwhile: Option<Meanwhile>,
}

/// What another thread does once, after the store that makes this instant the current one.
struct Meanwhile(Instant, Box<dyn FnOnce() + Send>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meanwhile").field(&self.0).finish_non_exhaustive()
    }
}

/// Where the server loses its processor.
#[derive(Clone, Copy, Debug, Default)]
pub enum Stalls {
    /// Nowhere.
    #[default]
    Never,
    /// Once, for this long, after the store that makes this instant the current one.
    Once(Instant, Duration),
    /// Once in this many stores on average, for up to this long.
    Random(Random, usize, Duration),
}

impl Recorder {
    /// Takes times from `clock`, which each store advances by `per_store`.
    pub fn new(clock: Clock, per_store: Duration) -> Recorder {
        Recorder { clock, per_store, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region of `bytes` zero bytes whose stores are recorded here.
    pub fn region(self: &Arc<Self>, bytes: u64) -> Region {
        Region::private(bytes).observed(self.clone())
    }

    /// Sets where the server loses its processor from now on.
    pub fn stall(&self, stalls: Stalls) {
        self.state().stalls = stalls;
    }

    /// Has another thread act once, after the store that makes `after` the current instant, while the
    /// thread that stores waits. It must not need a lock that this one holds then.
    pub fn meanwhile(&self, after: Instant, act: impl FnOnce() + Send + 'static) {
        self.state().meanwhile = Some(Meanwhile(after, Box::new(act)));
    }

    /// The current instant: the number of stores so far.
    pub fn now(&self) -> Instant {
        Instant(self.state().stores.len())
    }

    /// Repeats the stores up to `until`, each at its time, into `region`. That region has a
    /// recorder of its own, with the clock `clock`.
    pub fn repeat(&self, until: Instant, region: &Region, clock: &Clock) {
        let stores = self.state().stores[..until.0].to_vec();
        for store in stores {
            let begun_ns = store.at_ns - self.per_store.as_nanos() as u64;
            clock.sleep_until(begun_ns);
            region.store(store.word as usize, store.value);
        }
    }

    /// The history so far of a region of at least `bytes` bytes that was zero at first.
    pub fn history(&self, bytes: u64) -> History {
        let RecorderState { stores, .. } = &*self.state();
        let words = stores.iter().map(|store| store.word as usize + 1).max().unwrap_or(0);
        let mut versions = vec![Vec::new(); words.max(bytes as usize / WORD)];
        let mut times = Vec::with_capacity(stores.len() + 1);
        times.push(0);
        for (n, store) in stores.iter().enumerate() {
            versions[store.word as usize].push((n as u32 + 1, store.value));
            times.push(store.at_ns);
        }
        History { versions, times, end: stores.len() }
    }
}

impl Observer for Recorder {
    fn stored(&self, word: usize, value: u64) {
        self.clock.advance(self.per_store);
        let store = Store { word: word as u32, value, at_ns: self.clock.now_ns() };
        let mut state = self.state();
        state.stores.push(store);
        let now = Instant(state.stores.len());
        match &mut state.stalls {
            Stalls::Once(after, time) if *after == now => self.clock.advance(*time),
            Stalls::Random(random, one_in, most) => {
                if random.pick(*one_in) == 0 {
                    self.clock.advance(*most * (1 + random.pick(8)) as u32 / 8);
                }
            }
            Stalls::Once(..) | Stalls::Never => {}
        }
        let due = state.meanwhile.take_if(|meanwhile| meanwhile.0 == now);
        drop(state);
        if let Some(Meanwhile(_, act)) = due {
            act();
        }
    }
}

/// A point in a history, given by the number of stores before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Instant(pub usize);

/// All stores into a region.
#[derive(Clone, Debug)]
pub struct History {
    /// For each word, its values and the instant from which each holds. Zero before the first.
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

    /// The time of an instant, in nanoseconds.
    pub fn time_ns(&self, instant: Instant) -> u64 {
        self.times[instant.0]
    }

    /// The last nanosecond of an instant. A client that begins in the instant may begin this late.
    pub(super) fn last_ns(&self, instant: Instant) -> u64 {
        self.times.get(instant.0 + 1).map_or(self.times[instant.0], |next| next - 1)
    }

    /// A word's value at an instant.
    pub fn word(&self, word: usize, instant: Instant) -> u64 {
        let versions = &self.versions[word];
        let known = versions.partition_point(|&(since, _)| since as usize <= instant.0);
        known.checked_sub(1).map_or(0, |n| versions[n].1)
    }

    /// The stores into `words` after `from` and up to `to`: instant, word, value.
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

    /// The instants within `[from, to]` at which some word of `first..first + len` is new, and
    /// `from` itself. Samples at other instants show nothing else.
    pub(super) fn distinct(
        &self,
        first: usize,
        len: usize,
        from: Instant,
        to: Instant,
        out: &mut Vec<Instant>,
    ) {
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
