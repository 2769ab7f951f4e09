//! Observers note a table's changes, under the keys' locks. All segments of a table share them.

use super::ends::EndNotes;
use super::evict::Evictor;
use super::feed::Feed;
use super::owners::LeftByOwner;
use super::started::StartedPuts;
use crate::log::Log;
use crate::region::TouchMap;
use std::sync::{Arc, OnceLock};

/// All observers of a table.
#[derive(Debug, Default)]
pub(super) struct Observers {
    feed: Feed,
    evictor: OnceLock<Evictor>,
    touches: OnceLock<TouchMap>,
    ends: Arc<EndNotes>,
    owned_left: LeftByOwner,
    started: OnceLock<StartedPuts>,
    log: OnceLock<Arc<Log>>,
}

impl Observers {
    #[inline(always)]
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The eviction policy, in a table that evicts.
    #[inline(always)]
    pub fn evictor(&self) -> Option<&Evictor> {
        self.evictor.get()
    }

    /// The notes on when entries end.
    #[inline(always)]
    pub fn ends(&self) -> &Arc<EndNotes> {
        &self.ends
    }

    /// Counts of owners' entries that have left one by one.
    #[inline(always)]
    pub fn owned_left(&self) -> &LeftByOwner {
        &self.owned_left
    }

    /// The log of the table's changes, if it has one (K).
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.log.get()
    }

    /// Has a log from now on.
    ///
    /// # Panics
    /// When there is one already.
    pub fn set_log(&self, log: Arc<Log>) {
        assert!(self.log.set(log).is_ok(), "a table has one log");
    }

    /// Puts in two steps, in a table that has them.
    #[inline(always)]
    pub fn started(&self) -> Option<&StartedPuts> {
        self.started.get()
    }

    /// Allows puts in two steps from now on.
    ///
    /// # Panics
    /// When they are allowed already.
    pub fn set_started(&self, started: StartedPuts) {
        assert!(self.started.set(started).is_ok(), "a table begins once");
    }

    /// The notes of clients' GETs, in a table that does not evict by itself.
    pub fn touches(&self) -> &OnceLock<TouchMap> {
        &self.touches
    }

    /// Evicts entries from now on.
    ///
    /// # Panics
    /// When the table evicts already.
    pub fn set_evictor(&self, evictor: Evictor) {
        assert!(self.evictor.set(evictor).is_ok(), "a table begins to evict once");
    }
}
