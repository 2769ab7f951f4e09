//! What takes note of a table's changes, under their keys' locks. All segments of a table share it.

use super::ends::EndNotes;
use super::evict::Evictor;
use super::feed::Feed;
use super::owners::LeftByOwner;
use super::started::StartedPuts;
use crate::region::TouchMap;
use std::sync::{Arc, OnceLock};

/// All that takes note of changes.
#[derive(Debug, Default)]
pub(super) struct Observers {
    feed: Feed,
    evictor: OnceLock<Evictor>,
    touches: OnceLock<TouchMap>,
    ends: Arc<EndNotes>,
    owned_left: LeftByOwner,
    started: OnceLock<StartedPuts>,
}

impl Observers {
    #[inline(always)]
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The policy that chooses which entries make room, where entries do.
    #[inline(always)]
    pub fn evictor(&self) -> Option<&Evictor> {
        self.evictor.get()
    }

    /// When entries end.
    #[inline(always)]
    pub fn ends(&self) -> &Arc<EndNotes> {
        &self.ends
    }

    /// Entries of owners that have left one by one.
    #[inline(always)]
    pub fn owned_left(&self) -> &LeftByOwner {
        &self.owned_left
    }

    /// Puts in two steps, where there may be any.
    #[inline(always)]
    pub fn started(&self) -> Option<&StartedPuts> {
        self.started.get()
    }

    /// From now on there may be such puts.
    ///
    /// # Panics
    /// The second time.
    pub fn set_started(&self, started: StartedPuts) {
        assert!(self.started.set(started).is_ok(), "a table begins once");
    }

    /// What clients note of their GETs, where entries do not make room by themselves.
    pub fn touches(&self) -> &OnceLock<TouchMap> {
        &self.touches
    }

    /// From now on entries make room for others.
    ///
    /// # Panics
    /// The second time.
    pub fn set_evictor(&self, evictor: Evictor) {
        assert!(self.evictor.set(evictor).is_ok(), "a table begins to evict once");
    }
}
