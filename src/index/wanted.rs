//! A change of a key that was asked for.

use super::owners::OwnerSession;
use super::seams::TurnTaken;
use super::waits::ChangeWaits;
use crate::outcome::{PutMode, PutOptions};
use std::time::Duration;

/// What a thread does when a change has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience<'w> {
    /// It sleeps, until the change can be made or is refused.
    Sleeps,
    /// It has others to serve. The try ends with an error, and these waits have what the change waits for.
    Tries(&'w ChangeWaits),
    /// Likewise, and the thread has the key's turn, if anybody hears of changes.
    HasTurn(&'w ChangeWaits, &'w TurnTaken),
}

/// The owner of a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum NewOwner<'a> {
    /// The owner with this number, in a table without owners; 0: nobody.
    Number(u16),
    /// The owner of this session.
    Session(&'a OwnerSession),
}

/// A change of a key that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedChange<'a, W> {
    pub key: &'a [u8],
    pub what: W,
    /// The new value, if the change has one.
    pub value: Option<&'a [u8]>,
    /// How long the new entry lives. `None`: as long as all that are put without a time.
    pub ttl: Option<Duration>,
    pub owner: NewOwner<'a>,
    pub patience: Patience<'a>,
}

impl<'a, W> WantedChange<'a, W> {
    /// A change without a value, by a thread that sleeps.
    #[inline(always)]
    pub fn new(key: &'a [u8], what: W) -> WantedChange<'a, W> {
        let owner = NewOwner::Number(0);
        WantedChange { key, what, value: None, ttl: None, owner, patience: Patience::Sleeps }
    }

    /// A copy of the change, for a step that is seldom taken. (That step takes it in memory. A change whose own memory
    /// nobody is given stays in registers.)
    #[inline(always)]
    pub fn apart(&self) -> WantedChange<'a, W>
    where
        W: Copy,
    {
        let WantedChange { key, what, value, ttl, owner, patience } = *self;
        WantedChange { key, what, value, ttl, owner, patience }
    }

    /// The change, with this value.
    #[inline(always)]
    pub fn value(self, value: &'a [u8]) -> WantedChange<'a, W> {
        WantedChange { value: Some(value), ..self }
    }

    /// The entry that comes of it lives so long.
    #[inline(always)]
    pub fn ttl(self, ttl: Option<Duration>) -> WantedChange<'a, W> {
        WantedChange { ttl, ..self }
    }

    /// The change, by the owner of this session, if there is one.
    #[inline(always)]
    pub fn by(self, session: Option<&'a OwnerSession>) -> WantedChange<'a, W> {
        WantedChange { owner: session.map_or(self.owner, NewOwner::Session), ..self }
    }

    /// The change, by a thread with this patience.
    #[inline(always)]
    pub fn patience(self, patience: Patience<'a>) -> WantedChange<'a, W> {
        WantedChange { patience, ..self }
    }
}

impl<'a> WantedChange<'a, PutMode> {
    /// A put.
    #[inline(always)]
    pub fn put(key: &'a [u8], options: PutOptions) -> WantedChange<'a, PutMode> {
        let PutOptions { mode, ttl, owner } = options;
        WantedChange { ttl, owner: NewOwner::Number(owner), ..WantedChange::new(key, mode) }
    }
}
