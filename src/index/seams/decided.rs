//! Changes that were decided, and are made later.
//!
//! ```text
//! decided ── its room is held, its turn goes on ──┬── over: made, and then what follows it
//!                                                 └── withdrawn: its room is let go
//! ```
//!
//! Who makes them knows the table (`src/index/later.rs`).

use super::Turn;
use crate::base::sync::{Condvar, Mutex, lock, wait_until};
use crate::index::slots::{HeldRoom, SlotCopy};
use crate::layout::life::Life;
use crate::layout::slot::{Key, Stored};
use crate::outcome::PutError;
use std::fmt;

/// What a key has by a change that is made later.
#[derive(Clone, Debug)]
pub(in crate::index) enum LaterValue {
    /// A value.
    New(Box<SlotCopy>),
    /// The extent that it has, with another life. The extent may move meanwhile (X6).
    Kept(Life),
    /// None: it leaves.
    None,
}

impl LaterValue {
    /// This value, for a key that has this extent.
    pub fn of(value: &Stored<'_>, there: Option<u64>) -> LaterValue {
        match (value.as_reference(), value.life()) {
            (Some(now), Some(life)) if there == Some(now.number) => LaterValue::Kept(*life),
            (reference, life) => {
                let (value, life) = (value.bytes().into(), life.copied());
                LaterValue::New(Box::new(SlotCopy { value, reference, life, ..SlotCopy::default() }))
            }
        }
    }
}

/// What is left of a change when its first try has ended.
#[derive(Debug)]
pub(in crate::index) struct Deferred {
    pub key: Key,
    pub value: LaterValue,
    /// The room that is held for a key that comes.
    pub room: Option<HeldRoom>,
}

/// What can be made later, or withdrawn.
pub(in crate::index) trait MadeLater: fmt::Debug + Send {
    /// Makes it. Whoever may wait for it is told, or told soon.
    fn make(self: Box<Self>, tells: bool);
    fn withdraw(self: Box<Self>);
}

/// A change that was decided, and waits. It is made by [`DecidedChange::make`]. If it is dropped before, it is withdrawn:
/// the table stays as if it had not been asked for.
#[derive(Debug)]
pub struct DecidedChange(Option<Box<dyn MadeLater>>);

impl DecidedChange {
    pub(in crate::index) fn new(change: Box<dyn MadeLater>) -> DecidedChange {
        DecidedChange(Some(change))
    }

    /// Makes the change. Every GET that begins after the return sees it.
    pub fn make(mut self) {
        self.0.take().into_iter().for_each(|change| change.make(true));
    }

    /// Makes the change, as one before others that are made at once. The last one of them tells whoever waits.
    pub(crate) fn make_quietly(mut self) {
        self.0.take().into_iter().for_each(|change| change.make(false));
    }
}

impl Drop for DecidedChange {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|change| change.withdraw());
    }
}

/// What is to be done when a change is made.
type Follows = Box<dyn FnOnce() + Send>;

/// What becomes of a change that was decided.
#[derive(Default)]
pub(in crate::index) struct DecidedEnd {
    state: Mutex<EndState>,
    ended: Condvar,
}

enum EndState {
    /// It waits. These follow.
    Waits(Vec<Follows>),
    Made,
    Withdrawn,
}

impl Default for EndState {
    fn default() -> EndState {
        EndState::Waits(Vec::new())
    }
}

impl fmt::Debug for DecidedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DecidedEnd").field(&self.now()).finish()
    }
}

impl DecidedEnd {
    /// How it has ended. `None`: it waits.
    ///
    /// # Errors
    /// [`PutError::Withdrawn`]
    pub fn now(&self) -> Option<Result<(), PutError>> {
        match *lock(&self.state) {
            EndState::Waits(_) => None,
            EndState::Made => Some(Ok(())),
            EndState::Withdrawn => Some(Err(PutError::Withdrawn)),
        }
    }

    /// Sleeps until it has ended.
    pub fn wait(&self) {
        let has_ended = |state: &EndState| match state {
            EndState::Waits(_) => false,
            EndState::Made | EndState::Withdrawn => true,
        };
        drop(wait_until((&self.state, &self.ended), lock(&self.state), has_ended));
    }

    /// Has this done when the change is made: at once, if it is. Not if it is withdrawn.
    pub fn when_made(&self, follows: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        match &mut *state {
            EndState::Waits(all) => all.push(Box::new(follows)),
            EndState::Made => {
                drop(state);
                follows();
            }
            EndState::Withdrawn => {
                drop(state);
                drop(follows);
            }
        }
    }

    /// The change is made. Does what follows, ends the turn, and tells.
    pub fn say_made(&self, turn: Turn) {
        loop {
            let mut state = lock(&self.state);
            let EndState::Waits(all) = &mut *state else { return };
            let all = std::mem::take(all);
            if all.is_empty() {
                // Whoever hears that it is made has the key's next turn.
                drop(turn);
                *state = EndState::Made;
                break;
            }
            drop(state);
            all.into_iter().for_each(|follows| follows());
        }
        self.ended.notify_all();
    }

    pub fn say_withdrawn(&self, turn: Turn) {
        drop(turn);
        let before = std::mem::replace(&mut *lock(&self.state), EndState::Withdrawn);
        self.ended.notify_all();
        // What it would have led to: memory is free again.
        drop(before);
    }
}
