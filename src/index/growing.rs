//! Growing and shrinking, as an embedder or a server asks for it.

#[cfg(feature = "verbs")]
use super::budget::Registrar;
use super::face::Index;
use super::growth::Ahead;
#[cfg(any(feature = "verbs", feature = "sim"))]
use super::growth::Growth;
use super::whole::Table;
use crate::client::breaking::is_wanted;
use crate::outcome::GrowthCounts;
#[cfg(feature = "verbs")]
use crate::region::RegionError;
use std::time::{Duration, Instant};

impl Index {
    /// Counts of a table that grows: its splits and merges so far, and its segments. All zero for a table of one size.
    pub fn growth(&self) -> GrowthCounts {
        match self.table() {
            Table::One(_) => GrowthCounts::default(),
            Table::Many(growth) => growth.growth_counts(),
        }
    }

    /// From now on, this registrar registers memory of a table that grows before it is used (E0).
    #[cfg(feature = "verbs")]
    pub(crate) fn register_with(&self, registrar: std::sync::Weak<dyn Registrar>) {
        self.growing().register_with(registrar);
    }

    /// Which blocks of a growing table's heap have been used.
    #[cfg(feature = "verbs")]
    pub(crate) fn blocks_used(&self) -> Vec<u64> {
        self.growing().blocks_used()
    }

    /// Tells clients over a network the remote key of a chunk (E0).
    #[cfg(feature = "verbs")]
    pub(crate) fn tell_key(&self, chunk: u32, remote_key: u32) -> Result<(), RegionError> {
        self.growing().tell_key(chunk, remote_key)
    }

    /// The numbers of the memories that have segments, in a table that grows.
    #[cfg(feature = "verbs")]
    pub(crate) fn memories(&self) -> Vec<u32> {
        self.growing().memories()
    }

    /// The table's segments. Only for a table that grows.
    #[cfg(any(feature = "verbs", feature = "sim"))]
    pub(super) fn growing(&self) -> &Growth {
        match self.table() {
            Table::One(_) => unreachable!("asked of tables that grow"),
            Table::Many(growth) => growth,
        }
    }

    /// Makes a segment that may be needed soon, in a table that grows. Without it, the put that begins a split makes
    /// the segment, which takes milliseconds. Returns whether there may be more to do. At most four segments are made
    /// ahead, and fewer in a small table. A server has a thread for this. A program that embeds an index may have one,
    /// too. Takes milliseconds if there is something to do, else some microseconds. Memory that the system refuses is
    /// counted ([`GrowthCounts::refused`]); the put that needs it gets the error.
    ///
    /// [`GrowthCounts::refused`]: crate::stats::GrowthCounts::refused
    pub fn make_ahead(&self) -> bool {
        match self.table() {
            Table::One(_) => false,
            Table::Many(growth) => growth.make_ahead(),
        }
    }

    /// Grows a table for this many keys in all, before they come. Then no put splits a segment, and no key is copied.
    /// Does nothing to a table of one size.
    ///
    /// Returns when the table has grown, or when there is no memory for more: then the put that needs it gets the
    /// error. Also returns when a split or merge that is under way has not ended for a second: then
    /// [`Index::make_ahead`] goes on. Takes some 3 ms for each segment.
    ///
    /// Where a thread makes segments beside the puts ([`Index::make_ahead`]), this saves a single putting thread no
    /// time, but it does save several. If the keys do not come, the table stays larger than it need be:
    /// [`Index::shrink`] merges segments again.
    ///
    /// [`Index::restore_from`] does this by itself.
    pub fn grow_for(&self, keys: u64) {
        const UNDER_WAY_MAX: Duration = Duration::from_secs(1);
        self.foresee(keys);
        let Table::Many(growth) = self.table() else { return };
        let mut went_on = Instant::now();
        while is_wanted() {
            match growth.grow_as_foreseen() {
                Ahead::On => went_on = Instant::now(),
                Ahead::Waits if went_on.elapsed() < UNDER_WAY_MAX => {
                    self.tidy();
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ahead::Waits | Ahead::Done => return,
            }
        }
    }

    /// Whether the table has not yet grown for all foreseen keys.
    pub(crate) fn foresees(&self) -> bool {
        match self.table() {
            Table::One(_) => false,
            Table::Many(growth) => growth.foresees(),
        }
    }

    /// Notes that this number of keys will come: [`Index::make_ahead`] makes room for them.
    pub(crate) fn foresee(&self, keys: u64) {
        if let Table::Many(growth) = self.table() {
            growth.foresee(keys);
        }
    }

    /// Sets the thread that calls [`Index::make_ahead`] from now on. It is unparked when there may be something to do.
    pub(crate) fn set_maker(&self, thread: std::thread::Thread) {
        if let Table::Many(growth) = self.table() {
            growth.set_maker(thread);
        }
    }

    /// Begins every merge of two segments whose result has at most 85 % of a segment's design load. [`Index::tidy`],
    /// changes and a server's idle time carry the merges out. Returns how many were begun; 0 for a table of one size.
    ///
    /// A remove begins a merge by itself where both segments together have less than 52 to 62 %.
    pub fn shrink(&self) -> u64 {
        match self.table() {
            Table::One(_) => 0,
            Table::Many(growth) => growth.shrink(),
        }
    }
}
