//! The two seams of a change: before it is made, and after.
//!
//! ```text
//! decided   under the key's lock: the outcome is known, there is room for it, nothing is visible
//!   waits   nothing is locked; the room is held (L11, L12), the key's turn goes on (L10)
//! done      under the key's lock: every look sees it
//! ```
//!
//! [`Seams`] hears of both. A segment does not know the listener. Each change brings a [`Between`]: nobody, which costs
//! nothing, or a [`Turn`].

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod turns;

use crate::faults::{Rule, broken};
use crate::index::feed::LeftCause;
use crate::index::slots::HeldRoom;
use crate::layout::extent::Reference;
use crate::layout::geometry::SlotIx;
use crate::layout::slot::Stored;
use crate::outcome::PutError;
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use turns::KeyTurns;

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

    /// A change was made. Every look that begins from now on sees it. May not panic.
    fn done(&self, change: &KeyChange<'_>, at: KeyPlace);
}

/// When a decided change is made.
#[derive(Debug)]
pub enum Decision {
    /// At once.
    Now,
    /// After this wait. Meanwhile the thread holds no lock, the room stays held, changes of the same key wait behind
    /// this one, and all others go on.
    After(Box<dyn Awaited>),
}

/// The event for which a change waits.
pub trait Awaited: Debug {
    /// Waits.
    ///
    /// # Errors
    /// [`Withdrawn`]: the change is not made. The table stays as if it had not been asked for.
    fn wait(self: Box<Self>) -> Result<(), Withdrawn>;
}

/// A change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn;

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
    /// Proof that the change has to wait. Uninhabited for a listener that never waits.
    type MustWait: Debug;
    /// Whether a change may have to wait.
    const MAY_WAIT: bool;

    /// The change is decided. The caller holds the key's lock.
    ///
    /// # Errors
    /// The change has to wait. The caller holds its room, releases all locks, calls [`Between::wait`], and makes the
    /// change again from the beginning.
    fn decided<'c>(
        self,
        change: impl FnOnce() -> KeyChange<'c>,
        cause: LeftCause,
    ) -> Result<(), Self::MustWait>;

    /// The change is made. The caller holds the key's lock.
    fn done<'c>(self, change: impl FnOnce() -> KeyChange<'c>, at: impl FnOnce() -> KeyPlace);

    /// Waits until the change may be made.
    ///
    /// # Errors
    /// [`PutError::Withdrawn`].
    fn wait(self) -> Result<(), PutError>;

    /// Whether the change was decided before, and may be made.
    fn may_go_on(self) -> bool;

    /// Sets or clears the room that is held for the change.
    fn set_room(self, room: Option<HeldRoom>);

    /// The room that is held for the change.
    fn room(self) -> Option<HeldRoom>;
}

/// The listener of a table whose changes nobody hears.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct Nobody;

impl Between for Nobody {
    type MustWait = Infallible;
    const MAY_WAIT: bool = false;

    #[inline(always)]
    fn decided<'c>(self, _: impl FnOnce() -> KeyChange<'c>, _: LeftCause) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline(always)]
    fn done<'c>(self, _: impl FnOnce() -> KeyChange<'c>, _: impl FnOnce() -> KeyPlace) {}

    fn wait(self) -> Result<(), PutError> {
        Ok(())
    }

    #[inline(always)]
    fn may_go_on(self) -> bool {
        false
    }

    #[inline(always)]
    fn set_room(self, _: Option<HeldRoom>) {}

    #[inline(always)]
    fn room(self) -> Option<HeldRoom> {
        None
    }
}

/// The listener of a table's changes, and the turns of its keys.
#[derive(Debug)]
pub(in crate::index) struct SeamTurns {
    seams: Arc<dyn Seams>,
    turns: KeyTurns,
}

impl SeamTurns {
    pub fn new(seams: Arc<dyn Seams>) -> SeamTurns {
        SeamTurns { seams, turns: KeyTurns::default() }
    }

    /// Makes a change of the key with this hash, when it is its turn (L10).
    pub fn in_turn<R>(&self, hash: u64, change: impl FnOnce(&Turn<'_>) -> R) -> R {
        self.turns.in_turn(hash, || {
            let (awaited, may_go_on, room) = Default::default();
            change(&Turn { seams: &*self.seams, awaited, may_go_on, room })
        })
    }

    /// How many keys are being changed.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn under_way(&self) -> usize {
        self.turns.len()
    }
}

/// One change, whose key's turn it is.
pub(in crate::index) struct Turn<'t> {
    seams: &'t dyn Seams,
    awaited: Cell<Option<Box<dyn Awaited>>>,
    may_go_on: Cell<bool>,
    room: Cell<Option<HeldRoom>>,
}

impl Between for &Turn<'_> {
    type MustWait = ();
    const MAY_WAIT: bool = true;

    fn decided<'c>(self, change: impl FnOnce() -> KeyChange<'c>, cause: LeftCause) -> Result<(), ()> {
        if self.may_go_on.get() {
            return Ok(());
        }
        match self.seams.decided(&change(), cause) {
            // L13
            Decision::After(awaited) if !broken(Rule::WaitFirst) => {
                self.awaited.set(Some(awaited));
                Err(())
            }
            _ => Ok(()),
        }
    }

    fn done<'c>(self, change: impl FnOnce() -> KeyChange<'c>, at: impl FnOnce() -> KeyPlace) {
        self.may_go_on.set(false);
        self.seams.done(&change(), at());
    }

    fn wait(self) -> Result<(), PutError> {
        let awaited = self.awaited.take().expect("a change that must wait is told what for");
        awaited.wait().map_err(|Withdrawn| PutError::Withdrawn)?;
        self.may_go_on.set(true);
        Ok(())
    }

    fn may_go_on(self) -> bool {
        self.may_go_on.get()
    }

    fn set_room(self, room: Option<HeldRoom>) {
        self.room.set(room);
    }

    fn room(self) -> Option<HeldRoom> {
        self.room.get()
    }
}

/// Releases the room of a change, if it is still held when this is dropped: then the change was withdrawn, or its
/// thread panicked.
pub(in crate::index) struct LetsGo<B: Between, F: Fn(&HeldRoom)>(pub B, pub F);

impl<B: Between, F: Fn(&HeldRoom)> Drop for LetsGo<B, F> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(room) = self.0.room() {
            self.0.set_room(None);
            (self.1)(&room);
        }
    }
}
