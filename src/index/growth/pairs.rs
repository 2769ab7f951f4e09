//! The list of splits and merges under way, and how far each is.

use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// All pairs: by the memory of either segment, and the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    by_memory: FxHashMap<u32, Arc<Pair>>,
    queue: VecDeque<Arc<Pair>>,
}

impl Pairs {
    /// The pair that the segment in this memory is in.
    pub fn of(&self, memory: u32) -> Option<&Arc<Pair>> {
        self.by_memory.get(&memory)
    }

    /// The oldest is number 0.
    pub fn nth(&self, number: usize) -> Option<Arc<Pair>> {
        self.queue.get(number).cloned()
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> Vec<Arc<Pair>> {
        self.queue.iter().cloned().collect()
    }

    pub fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    pub fn add(&mut self, parent: u32, child: u32, toward: Toward) {
        let pair = Arc::new(Pair { parent, child, state: Mutex::new(PairState::new(toward)) });
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

    /// This one counts as the newest from now on.
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
}

impl Pair {
    /// How far it is. Waits for the thread that carries its homes.
    pub(super) fn state(&self) -> MutexGuard<'_, PairState> {
        lock(&self.state)
    }

    /// The same. `None` if another thread carries its homes.
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, PairState>> {
        try_lock(&self.state)
    }
}

/// How far a pair is. Its homes go one after the other, and then those that had to wait.
#[derive(Debug)]
pub(super) struct PairState {
    toward: Toward,
    /// The homes from this one on have not been tried.
    next: u64,
    /// Homes that were tried, and have to be tried again.
    waiting: VecDeque<u64>,
    /// Homes that failed one after the other, since the last one that could be carried.
    failed: usize,
    /// Looks at this pair that are still to be skipped.
    skips: u32,
    /// Looks that are skipped after the last round in which every home failed.
    skips_last: u32,
    has_ended: bool,
}

impl PairState {
    fn new(toward: Toward) -> PairState {
        PairState {
            toward,
            next: 0,
            waiting: VecDeque::new(),
            failed: 0,
            skips: 0,
            skips_last: 0,
            has_ended: false,
        }
    }

    pub fn toward(&self) -> Toward {
        self.toward
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The split or merge is done.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Begins with the first home again, perhaps in the other direction.
    pub fn restart(&mut self, toward: Toward) {
        *self = PairState::new(toward);
    }

    /// Whether this look at the pair is skipped. Counts it.
    pub fn skip(&mut self) -> bool {
        let fewer = self.skips.checked_sub(1);
        self.skips = fewer.unwrap_or(0);
        fewer.is_some()
    }

    /// A put waits for this pair: the next look is not skipped.
    pub fn urge(&mut self) {
        self.skips = 0;
    }

    /// The next looks are skipped.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn hold_up(&mut self) {
        self.skips = u32::MAX;
    }

    /// The next home to try. `None` if all have gone, or each home that waits has failed since the last one went.
    pub fn next_home(&mut self, homes: u64, has_gone: impl Fn(u64) -> bool) -> Option<u64> {
        while self.next < homes {
            self.next += 1;
            if !has_gone(self.next - 1) {
                return Some(self.next - 1);
            }
        }
        if self.failed < self.waiting.len() { self.waiting.pop_front() } else { None }
    }

    /// A home has gone.
    pub fn went(&mut self) {
        (self.failed, self.skips_last) = (0, 0);
    }

    /// This home could not be carried. It is tried again when the others have been.
    pub fn failed(&mut self, home: u64) {
        self.waiting.push_back(home);
        self.failed += 1;
    }

    /// There is no next home. Whether some wait: then the next looks are skipped, about twice as many as after the
    /// last such round, and at most this number.
    pub fn must_wait(&mut self, skips_max: u32) -> bool {
        self.failed = 0;
        if self.waiting.is_empty() {
            return false;
        }
        self.skips_last = (2 * self.skips_last + 1).min(skips_max);
        self.skips = self.skips_last;
        true
    }
}

/// Where the keys of a pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Toward {
    /// To the child, whose split this is.
    Child,
    /// To the parent: a merge.
    Parent,
    /// To the child again: the merge is given up.
    Back,
}

impl Toward {
    /// The one with this number in a handover.
    pub fn from_number(number: u64) -> Option<Toward> {
        [Toward::Child, Toward::Parent, Toward::Back].into_iter().find(|&toward| toward as u64 == number)
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Driven {
    /// There is more to do.
    On,
    /// Something must wait: for ghosts, or for room.
    Waits,
    /// Another thread is at it.
    Taken,
    /// The pair is no more.
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
    /// The table has no deeper directory.
    Limit,
    /// The table has all the memory that it may have.
    Bound,
    /// The system has refused the memory.
    Memory,
}

impl NoSplit {
    /// It may be split when others have gone on.
    pub fn is_busy(&self) -> bool {
        matches!(self, NoSplit::Busy | NoSplit::Making)
    }
}
