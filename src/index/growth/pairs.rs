//! The list of splits and merges under way, and their progress.

use crate::base::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::index::home_set::HomeSet;
use crate::index::homes::end_of_step;
use crate::layout::geometry::Geometry;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// All pairs: by the memory of either segment, and the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    by_memory: FxHashMap<u32, Arc<Pair>>,
    queue: VecDeque<Arc<Pair>>,
}

impl Pairs {
    /// The pair of the segment in this memory.
    pub fn of(&self, memory: u32) -> Option<&Arc<Pair>> {
        self.by_memory.get(&memory)
    }

    /// The pair with this number; the oldest has number 0.
    pub fn nth(&self, number: usize) -> Option<Arc<Pair>> {
        self.queue.get(number).cloned()
    }

    /// All pairs, the oldest first.
    pub fn all(&self) -> Vec<Arc<Pair>> {
        self.queue.iter().cloned().collect()
    }

    pub fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    pub fn add(&mut self, parent: u32, child: u32, toward: Toward) {
        let state = Mutex::new(PairState::new(toward));
        let pair = Arc::new(Pair { parent, child, state, rests_until_ns: AtomicU64::new(0) });
        for memory in [parent, child] {
            self.by_memory.insert(memory, Arc::clone(&pair));
        }
        self.queue.push_back(pair);
    }

    pub fn remove(&mut self, parent: u32, child: u32) {
        for memory in [parent, child] {
            self.by_memory.remove(&memory);
        }
        self.queue.retain(|pair| pair.parent != parent);
    }

    /// Until when all pairs rest; 0 if one does not.
    pub fn rest_until_ns(&self) -> u64 {
        self.queue.iter().map(|pair| pair.rests_until_ns()).min().unwrap_or(0)
    }

    /// Counts this pair as the newest from now on.
    pub fn put_last(&mut self, pair: &Arc<Pair>) {
        if let Some(at) = self.queue.iter().position(|other| Arc::ptr_eq(other, pair)) {
            let pair = self.queue.remove(at);
            self.queue.extend(pair);
        }
    }
}

/// A parent and its child, of a split or merge under way.
#[derive(Debug)]
pub(in crate::index) struct Pair {
    pub parent: u32,
    pub child: u32,
    state: Mutex<PairState>,
    /// No change takes the pair on before that time, in nanoseconds: the homes that are left wait for ghosts.
    /// Relaxed: a hint.
    rests_until_ns: AtomicU64,
}

impl Pair {
    /// The state of the pair. Waits for the thread that carries its homes.
    pub(super) fn state(&self) -> MutexGuard<'_, PairState> {
        lock(&self.state)
    }

    /// The state of the pair. `None` if another thread carries its homes.
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, PairState>> {
        try_lock(&self.state)
    }

    pub(super) fn rests_until_ns(&self) -> u64 {
        self.rests_until_ns.load(Relaxed)
    }

    /// Lets no change drive the pair before this time.
    pub(super) fn rest_until(&self, at_ns: u64) {
        self.rests_until_ns.store(at_ns, Relaxed);
    }
}

/// The progress of a pair. Each home is tried once, in order. Then, in rounds, those that had to wait.
#[derive(Debug)]
pub(super) struct PairState {
    toward: Toward,
    /// The homes from this one on were not tried yet.
    next: u64,
    /// Homes that were tried, and have to be tried again.
    waiting: VecDeque<HomeSet>,
    /// The first of these are still to be tried in this round.
    round: usize,
    /// Whether a home has gone since the round began.
    has_gone_on: bool,
    has_ended: bool,
}

impl PairState {
    fn new(toward: Toward) -> PairState {
        let (waiting, has_gone_on) = (VecDeque::new(), false);
        PairState { toward, next: 0, waiting, round: 0, has_gone_on, has_ended: false }
    }

    pub fn toward(&self) -> Toward {
        self.toward
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Ends the split or merge.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Begins with the first home again, perhaps in the other direction.
    pub fn restart(&mut self, toward: Toward) {
        *self = PairState::new(toward);
    }

    /// The next homes to try: at most this number, of one step. `left` takes away those that have gone. `None` at the
    /// end of a round.
    pub fn next_homes(
        &mut self,
        geometry: &Geometry,
        most: u32,
        left: impl Fn(HomeSet) -> HomeSet,
    ) -> Option<HomeSet> {
        while self.next < geometry.homes() {
            let end = end_of_step(geometry, self.next);
            let all = left(HomeSet::of(self.next..end));
            let homes = all.first_few(most);
            self.next = if homes == all { end } else { homes.ends().map_or(self.next, |(_, last)| last + 1) };
            if !homes.is_empty() {
                return Some(homes);
            }
        }
        self.round = self.round.checked_sub(1)?;
        self.waiting.pop_front()
    }

    /// Notes that homes have gone.
    pub fn went(&mut self) {
        self.has_gone_on = true;
    }

    /// Notes that these homes could not be carried. They are tried again after the others.
    pub fn failed(&mut self, homes: HomeSet) {
        if !homes.is_empty() {
            self.waiting.push_back(homes);
        }
    }

    /// Ends a round, in which every home that had not gone was tried once. Begins another round with those that are
    /// left.
    pub fn end_of_round(&mut self) -> RoundEnd {
        self.round = self.waiting.len();
        let has_gone_on = std::mem::take(&mut self.has_gone_on);
        match self.round {
            0 => RoundEnd::AllGone,
            _ if has_gone_on => RoundEnd::SomeWent,
            _ => RoundEnd::NoneWent,
        }
    }
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// No home is left.
    AllGone,
    /// Some homes are left, and some went.
    SomeWent,
    /// Every home that was tried is left.
    NoneWent,
}

/// The direction in which the keys of a pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Toward {
    /// To the child: a split.
    Child,
    /// To the parent: a merge.
    Parent,
    /// To the child again: a merge that was given up.
    Back,
}

impl Toward {
    /// The direction with this number in a handover.
    pub fn from_number(number: u64) -> Option<Toward> {
        [Toward::Child, Toward::Parent, Toward::Back].into_iter().find(|&toward| toward as u64 == number)
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Driven {
    /// There is more to do.
    On,
    /// The pair must wait for ghosts, or for room.
    Waits,
    /// Another thread carries its homes.
    Taken,
    /// The pair has ended.
    Ended,
}

/// A split or merge that was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) struct LeftPair {
    pub parent: u32,
    pub child: u32,
    pub toward: Toward,
}

/// Why a segment cannot be split.
#[derive(Debug)]
pub(in crate::index) enum NoSplit {
    /// Another split or merge is under way there, or was a moment ago.
    Busy,
    /// Another thread is making a segment.
    Making,
    /// The table has all the memory that it may have. Some of it was merged segments', and comes back when no thread
    /// uses them any more (E7).
    Coming,
    /// The table has no deeper directory.
    Limit,
    /// The table has all the memory that it may have.
    Bound,
    /// The system has refused the memory.
    Memory,
}

impl NoSplit {
    /// Whether it may be split when other threads have gone on.
    pub fn is_busy(&self) -> bool {
        matches!(self, NoSplit::Busy | NoSplit::Making | NoSplit::Coming)
    }
}
