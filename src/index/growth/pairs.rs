//! The list of splits and merges under way, and how far each is.

use crate::sync::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// All pairs: by the memory of either segment, and the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) by_memory: FxHashMap<u32, Arc<Pair>>,
    pub(super) queue: VecDeque<Arc<Pair>>,
}

/// A parent and its child, of a split or merge under way.
#[derive(Debug)]
pub(in crate::index) struct Pair {
    pub parent: u32,
    pub child: u32,
    pub(super) state: Mutex<PairState>,
}

/// How far a pair is. Its homes go one after the other, and then those that had to wait.
#[derive(Debug)]
pub(super) struct PairState {
    pub(super) toward: Toward,
    next: u64,
    pub(super) left: VecDeque<u64>,
    /// Homes tried in vain since the last one went.
    pub(super) in_vain: usize,
    /// So many looks are spared, and were after the last round in vain.
    pub(super) spare: u32,
    pub(super) spared: u32,
    pub(super) has_ended: bool,
}

impl PairState {
    pub(super) fn new(toward: Toward) -> PairState {
        PairState {
            toward,
            next: 0,
            left: VecDeque::new(),
            in_vain: 0,
            spare: 0,
            spared: 0,
            has_ended: false,
        }
    }

    /// The next home to try. `None` if there is none, or each one left was tried in vain.
    pub(super) fn next_home(&mut self, homes: u64, has_gone: impl Fn(u64) -> bool) -> Option<u64> {
        while self.next < homes {
            self.next += 1;
            if !has_gone(self.next - 1) {
                return Some(self.next - 1);
            }
        }
        if self.in_vain < self.left.len() { self.left.pop_front() } else { None }
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

impl Pairs {
    pub(super) fn put_last(&mut self, pair: &Arc<Pair>) {
        if let Some(at) = self.queue.iter().position(|other| Arc::ptr_eq(other, pair)) {
            let pair = self.queue.remove(at);
            self.queue.extend(pair);
        }
    }
}
