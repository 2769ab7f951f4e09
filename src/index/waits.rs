//! Changes that wait: for readers, for another thread, for memory.
//!
//! ```text
//! try ── made ──────────────────────────────────────────────────► the outcome
//!  │ ├── made, and its segment is too full ── a wait ── a step ──► the outcome
//!  │ └── decided, and to be made later ── a wait ── made ────────► the outcome
//!  └── cannot be made yet ── a wait ── the next try
//! ```
//!
//! No step of a change sleeps. A *try* that has to wait changes nothing, and holds nothing afterwards: no lock, no turn, no
//! memory (Q13). It notes in [`ChangeWaits`] what it waits for. Who has asked for the change decides what becomes of the
//! wait: the thread of an embedder sleeps (`making.rs`). A server's worker has others to serve: it parks the request
//! (`src/server/parking.rs`).
//!
//! A change that has its outcome may wait, too: its split has to catch up before more keys come; or it was decided, and
//! something has to come before it is made (L13). It is not tried again.

use super::refusals::NoPath;
use super::seams::DecidedEnd;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// What a change waits for. Times are those of the table's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeWait {
    /// Until no reader depends on what is there now (M2): then there may be room.
    Readers { due_ns: u64 },
    /// For a thread that carries a split on, that uses memory which comes back, or that has the key's turn.
    Thread,
    /// For a thread that makes a segment.
    Maker,
    /// For memory of a long value, which comes no earlier than this.
    Memory { due_ns: u64 },
    /// For what comes between its decision and its making. It has its outcome.
    Decided,
}

/// The waits of one change, from try to try. Who makes the change keeps them.
#[derive(Default)]
pub(crate) struct ChangeWaits(Cell<Option<Box<WaitState>>>);

/// How far a change has waited.
#[derive(Debug, Default)]
pub(super) struct WaitState {
    now: Option<ChangeWait>,
    /// For room in the table.
    pub room: RoomWait,
    /// Since when it has waited for memory.
    memory_since_ns: Option<u64>,
    /// The split that has to go on before a change ends that is made.
    pub split: Option<LateSplit>,
    /// What becomes of the change, which was decided.
    decided: Option<Arc<DecidedEnd>>,
    /// Whether an earlier try has begun what others go on with.
    has_begun: bool,
}

/// How a put that found no room waits for it.
#[derive(Debug, Default)]
pub(super) struct RoomWait {
    /// The number of waits for readers.
    pub waits: u32,
    /// The number of waits of any kind.
    pub tries: u32,
    /// The number of waits for another thread.
    pub naps: u32,
    /// Waiting makes no room: no slot of the segment is free, or another put has just waited in vain.
    pub is_hopeless: bool,
    /// The failed search that a further one would repeat.
    pub next: Option<NoPath>,
    pub searched: Option<NoPath>,
}

impl RoomWait {
    /// Counts one more wait for readers, if there were fewer than this. Returns whether there were.
    pub fn waits_once_more(&mut self, most: u32) -> bool {
        let has_time = self.waits < most;
        self.waits += u32::from(has_time);
        has_time
    }
}

/// The split of a segment that has more keys than it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LateSplit {
    /// The memory of the segment.
    pub memory: u32,
    /// Waits for readers so far.
    pub waits: u32,
}

impl fmt::Debug for ChangeWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChangeWaits").field(&self.now()).finish()
    }
}

impl ChangeWaits {
    /// Whether any step has noted something.
    #[inline(always)]
    pub fn are_any(&self) -> bool {
        let state = self.0.take();
        let are_any = state.is_some();
        if are_any {
            self.0.set(state);
        }
        are_any
    }

    /// What the last try, or the last step, waits for. `None`: it has ended.
    pub fn now(&self) -> Option<ChangeWait> {
        if self.are_any() { self.with(|state| state.now) } else { None }
    }

    /// Whether the change has its outcome, and waits before it ends.
    pub fn has_outcome(&self) -> bool {
        self.are_any() && self.with(|state| state.split.is_some() || state.decided.is_some())
    }

    /// What becomes of the change, if it was decided, and is to be made later.
    #[inline(always)]
    pub(super) fn decided(&self) -> Option<Arc<DecidedEnd>> {
        if self.are_any() { self.with(|state| state.decided.clone()) } else { None }
    }

    /// The change was decided, and is to be made later.
    #[cold]
    pub(super) fn was_decided(&self, end: Arc<DecidedEnd>) {
        self.with(|state| (state.now, state.decided) = (Some(ChangeWait::Decided), Some(end)));
    }

    /// Others go on with what was asked for. `has_begun`: this try has begun it.
    #[cold]
    pub(super) fn goes_on(&self, has_begun: bool) {
        self.with(|state| {
            state.now = Some(ChangeWait::Thread);
            state.has_begun |= has_begun;
        });
    }

    /// Whether an earlier try has begun it.
    pub(super) fn has_begun(&self) -> bool {
        self.are_any() && self.with(|state| state.has_begun)
    }

    /// What was decided has ended.
    pub(super) fn has_ended(&self) {
        self.with(|state| state.decided = None);
    }

    /// Ends this wait. Returns what it was for.
    pub fn end(&self) -> Option<ChangeWait> {
        if self.are_any() { self.with(|state| state.now.take()) } else { None }
    }

    /// The last wait for readers does not count: it has not come to its end.
    pub(super) fn ended_early(&self) {
        self.with(|state| match &mut state.split {
            Some(split) => split.waits = split.waits.saturating_sub(1),
            None => state.room.waits = state.room.waits.saturating_sub(1),
        });
    }

    /// A wait for another thread does not count: who is told of everything is tried again more often than who sleeps, and waits for
    /// a bounded time anyway.
    pub(super) fn is_told(&self) {
        self.with(|state| {
            state.room.tries = state.room.tries.saturating_sub(1);
            state.room.naps = state.room.naps.saturating_sub(1);
        });
    }

    /// Notes what the change waits for.
    #[cold]
    pub(super) fn begin(&self, wait: ChangeWait) {
        self.with(|state| state.now = Some(wait));
    }

    #[cold]
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut WaitState) -> R) -> R {
        let mut state = self.0.take().unwrap_or_default();
        let result = act(&mut state);
        self.0.set(Some(state));
        result
    }

    /// Since when the change has waited for memory: since now, if it did not wait before.
    pub(super) fn memory_since(&self, now_ns: u64) -> u64 {
        self.with(|state| *state.memory_since_ns.get_or_insert(now_ns))
    }

    /// The change has its memory.
    pub(super) fn has_memory(&self) {
        if self.are_any() {
            self.with(|state| state.memory_since_ns = None);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The waits of a change are kept from try to try. A wait that has ended is over; when its memory has come, the time for
    /// it begins again.
    #[test]
    fn waits_are_kept_from_try_to_try() {
        let waits = ChangeWaits::default();
        assert_eq!((waits.are_any(), waits.now(), waits.end()), (false, None, None));
        waits.has_memory();
        assert!(!waits.are_any(), "nothing was noted");
        waits.begin(ChangeWait::Memory { due_ns: 7 });
        assert_eq!((waits.memory_since(3), waits.memory_since(9)), (3, 3));
        assert_eq!(waits.now(), Some(ChangeWait::Memory { due_ns: 7 }));
        assert_eq!(waits.end(), Some(ChangeWait::Memory { due_ns: 7 }));
        assert!(waits.are_any() && waits.now().is_none() && waits.end().is_none());
        assert_eq!(waits.memory_since(11), 3, "it has waited since then");
        waits.has_memory();
        assert_eq!(waits.memory_since(11), 11);
    }
}
