//! The two seams of a change: before it is made, and after.
//!
//! ```text
//! decided   under the key's lock: the outcome is known, there is room for it, nothing is visible
//!   waits   nothing is locked; the room is held (L11, L12), the key's turn goes on (L10); no thread has to wait with it
//! done      under the key's lock: every look sees it
//! ```
//!
//! [`Seams`] hears of both. A segment does not know the listener. Each change brings a [`Between`]: nobody, which costs
//! nothing, or a [`Turn`]. A change that is to wait becomes a [`DecidedChange`].

mod decided;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod turns;

pub use decided::DecidedChange;
pub(in crate::index) use decided::{DecidedEnd, Deferred, LaterValue, MadeLater};

use crate::faults::{Rule, broken};
use crate::index::feed::LeftCause;
use crate::index::slots::HeldRoom;
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::slot::Stored;
use std::cell::Cell;
use std::fmt::{self, Debug};
use std::sync::Arc;
use turns::{KeyTurn, KeyTurns};

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It came.
    Came,
    /// It has another value.
    Replaced,
    /// It left.
    Left,
}

/// A value, as its slot has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotValue<'v> {
    /// The value itself.
    Inline(&'v [u8]),
    /// The value does not fit the slot. It is written whole, and this says where.
    Extent(Reference),
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange<'c> {
    /// What becomes of the key.
    pub what: Changed,
    /// The key.
    pub key: &'c [u8],
    /// The key's new value. `None` if the key leaves.
    pub value: Option<SlotValue<'c>>,
    /// The owner of the entry from then on; 0: nobody.
    pub owner: u16,
    /// The tick with which the entry ends from then on; 0: it does not end by itself.
    pub expiry: u32,
}

/// The slot of a key that has changed. If the key has left, its slot before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The number of the segment's memory; 0 in a table of one size.
    pub memory: u32,
    /// The slot of the segment.
    pub slot: SlotIx,
}

/// Hears of every change of a table: each put, swap and remove that changes something, once before and once after. Keys
/// and values that move have not changed.
///
/// For each key, the calls come in the order in which readers see the changes. Other threads report changes of other
/// keys at the same time. A change that was decided is made next, unless it was withdrawn.
///
/// Both calls are made under locks: they should be short, and may not use the table.
pub trait Seams: Debug + Send + Sync {
    /// A change is about to be made. There is room for it, and no reader sees it yet. `cause`: why the key leaves, if it
    /// does.
    fn decided(&self, change: &KeyChange<'_>, cause: LeftCause) -> Decision;

    /// Whether changes may come. If not, they are tried again a little later.
    fn has_room(&self) -> bool {
        true
    }

    /// A change was made. Every look that begins from now on sees it. May not panic.
    fn done(&self, change: &KeyChange<'_>, at: KeyPlace);
}

/// When a decided change is made.
#[derive(Debug)]
pub enum Decision {
    /// At once.
    Now,
    /// After this wait. Meanwhile the room stays held, changes of the same key wait behind this one, and all others go on.
    After(Box<dyn Awaited>),
}

/// The event for which a change waits.
pub trait Awaited: Debug + Send {
    /// Has `change` made, or withdrawn, when the event is there: at once, or later by another thread. Waits as little as
    /// it may: the caller may have others to serve.
    fn then(self: Box<Self>, change: DecidedChange);
}

impl<'c> KeyChange<'c> {
    #[inline(always)]
    fn with_value(what: Changed, key: &'c [u8], value: Stored<'c>) -> KeyChange<'c> {
        let (owner, expiry) = (value.owner(), value.expiry());
        let value = value.as_reference().map_or(SlotValue::Inline(value.bytes()), SlotValue::Extent);
        KeyChange { what, key, value: Some(value), owner, expiry }
    }

    #[inline(always)]
    pub(in crate::index) fn came(key: &'c [u8], value: Stored<'c>) -> KeyChange<'c> {
        KeyChange::with_value(Changed::Came, key, value)
    }

    #[inline(always)]
    pub(in crate::index) fn replaced(key: &'c [u8], value: Stored<'c>) -> KeyChange<'c> {
        KeyChange::with_value(Changed::Replaced, key, value)
    }

    pub(in crate::index) fn owner_gone(owner: u16) -> KeyChange<'static> {
        KeyChange { what: Changed::Left, key: &[], value: None, owner, expiry: 0 }
    }

    #[inline(always)]
    pub(in crate::index) fn left(key: &'c [u8]) -> KeyChange<'c> {
        KeyChange { what: Changed::Left, key, value: None, owner: 0, expiry: 0 }
    }

    /// The change as a reader sees it, for whom hidden entries are absent (O3). `before` and `after`: whether the entry
    /// before the change, or after it, is hidden. `None`: the reader sees no change.
    pub(in crate::index) fn among_shown(self, before: bool, after: bool) -> Option<KeyChange<'c>> {
        let was_there = self.what != Changed::Came && !before;
        let is_there = self.what != Changed::Left && !after;
        match (was_there, is_there) {
            (true, true) => Some(KeyChange { what: Changed::Replaced, ..self }),
            (false, true) => Some(KeyChange { what: Changed::Came, ..self }),
            (true, false) => Some(KeyChange::left(self.key)),
            (false, false) => None,
        }
    }
}

/// The listener between the decision of one change and its effect.
pub(in crate::index) trait Between: Copy {
    /// Whether a change may have to wait.
    const MAY_WAIT: bool;

    /// The change is decided. The caller holds the key's lock. Returns whether the change is made now. If not, the caller
    /// holds its room, [says](Between::defer) what is to be made, and stores nothing. Its outcome is the same.
    fn decided<'c>(self, change: impl FnOnce() -> KeyChange<'c>, cause: LeftCause) -> bool;

    /// What is to be made later.
    fn defer(self, key: &[u8], value: LaterValue, room: Option<HeldRoom>);

    /// The change is made. The caller holds the key's lock.
    fn done<'c>(self, change: impl FnOnce() -> KeyChange<'c>, at: impl FnOnce() -> KeyPlace);

    /// Whether the change was decided before, and has waited: now it is made, however long that takes.
    fn was_decided(self) -> bool;
}

/// The listener of a table whose changes nobody hears.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct Nobody;

impl Between for Nobody {
    const MAY_WAIT: bool = false;

    #[inline(always)]
    fn decided<'c>(self, _: impl FnOnce() -> KeyChange<'c>, _: LeftCause) -> bool {
        true
    }

    #[inline(always)]
    fn defer(self, _: &[u8], _: LaterValue, _: Option<HeldRoom>) {}

    #[inline(always)]
    fn done<'c>(self, _: impl FnOnce() -> KeyChange<'c>, _: impl FnOnce() -> KeyPlace) {}

    #[inline(always)]
    fn was_decided(self) -> bool {
        false
    }
}

/// The listener of a table's changes, and the turns of its keys.
#[derive(Debug)]
pub(in crate::index) struct SeamTurns {
    seams: Arc<dyn Seams>,
    turns: Arc<KeyTurns>,
}

impl SeamTurns {
    pub fn new(seams: Arc<dyn Seams>) -> SeamTurns {
        SeamTurns { seams, turns: Arc::default() }
    }

    /// Waits for the turn of the key with this hash (L10).
    pub fn take(&self, hash: u64) -> Turn {
        self.turn(self.turns.take(hash))
    }

    /// Takes this turn, if the listener takes changes now, and nobody has it.
    pub fn try_begin(&self, hash: u64) -> Option<Turn> {
        if self.has_room() { self.try_take(hash) } else { None }
    }

    /// Takes this turn, if nobody has it.
    pub fn try_take(&self, hash: u64) -> Option<Turn> {
        self.turns.try_take(hash).map(|turn| self.turn(turn))
    }

    fn turn(&self, turn: KeyTurn) -> Turn {
        let (awaited, deferred) = Default::default();
        Turn { seams: Arc::clone(&self.seams), _turn: turn, time: WhichTime::First, awaited, deferred }
    }

    /// Whether the listener takes changes now.
    pub fn has_room(&self) -> bool {
        self.seams.has_room()
    }

    /// How many keys are being changed.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn under_way(&self) -> usize {
        self.turns.len()
    }
}

/// How often a change has come to its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhichTime {
    First,
    /// It was decided, and has waited.
    Second,
}

/// One change, whose key's turn it is.
pub(in crate::index) struct Turn {
    seams: Arc<dyn Seams>,
    _turn: KeyTurn,
    time: WhichTime,
    awaited: Cell<Option<Box<dyn Awaited>>>,
    deferred: Cell<Option<Deferred>>,
}

/// A turn that was taken before its change is tried.
#[derive(Default)]
pub(crate) struct TurnTaken(Cell<Option<Turn>>);

impl TurnTaken {
    /// It is there to be taken, for the first time or again.
    pub(in crate::index) fn give(&self, turn: Turn) {
        self.0.set(Some(turn));
    }

    pub(in crate::index) fn take(&self) -> Option<Turn> {
        self.0.take()
    }
}

impl Debug for TurnTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnTaken").finish_non_exhaustive()
    }
}

impl Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Turn { seams, _turn: turn, time, .. } = self;
        f.debug_struct("Turn")
            .field("seams", seams)
            .field("turn", turn)
            .field("time", time)
            .finish_non_exhaustive()
    }
}

impl Turn {
    /// Ends the turn, unless its change is to be made later: what for it waits, its turn then, and what is to be made.
    pub fn end(self) -> Option<(Box<dyn Awaited>, Turn, Deferred)> {
        let (awaited, deferred) = (self.awaited.take()?, self.deferred.take()?);
        Some((awaited, Turn { time: WhichTime::Second, ..self }, deferred))
    }
}

impl Between for &Turn {
    const MAY_WAIT: bool = true;

    fn decided<'c>(self, change: impl FnOnce() -> KeyChange<'c>, cause: LeftCause) -> bool {
        if self.was_decided() {
            return true;
        }
        match self.seams.decided(&change(), cause) {
            // L13
            Decision::After(awaited) if !broken(Rule::WaitFirst) => {
                self.awaited.set(Some(awaited));
                false
            }
            Decision::After(_) | Decision::Now => true,
        }
    }

    fn defer(self, key: &[u8], value: LaterValue, room: Option<HeldRoom>) {
        self.deferred.set(Some(Deferred { key: key.into(), value, room }));
    }

    fn done<'c>(self, change: impl FnOnce() -> KeyChange<'c>, at: impl FnOnce() -> KeyPlace) {
        self.seams.done(&change(), at());
    }

    fn was_decided(self) -> bool {
        self.time == WhichTime::Second
    }
}
