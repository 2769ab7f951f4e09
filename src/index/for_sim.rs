//! Operations of an index for the simulator.

use super::face::Index;
use super::growth::handover_end;
use super::growth::pace::Pace;
use super::recovered::{RecoverError, Recovered};
use super::segment::WAITS_MAX;
use super::whole::{Table, Walk};
use crate::base::clock::Clock;
use crate::index::start::Start;
use crate::layout::geometry::Geometry;
use crate::region::{Region, RegionError};
use std::time::Duration;

/// The most times that a put waits for grace periods.
pub(crate) fn waits_max(geometry: &Geometry, pace: &Pace) -> u32 {
    // Beside the waits for a split, it may wait as any put does, to complete one.
    WAITS_MAX + if geometry.grows() { pace.split_waits_max } else { 0 }
}

impl Index {
    /// As [`Index::create`], at another pace.
    ///
    /// # Errors
    /// As [`Index::create`].
    #[doc(hidden)]
    pub fn create_at_pace(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        pace: Pace,
    ) -> Result<Index, RegionError> {
        Index::create_by(region, geometry, clock, &Start { pace, ..Start::default() })
    }

    /// As [`Index::open`], at another pace.
    ///
    /// # Errors
    /// As [`Index::open`].
    #[doc(hidden)]
    pub fn open_at_pace(
        region: Region,
        clock: Clock,
        pace: Pace,
    ) -> Result<(Index, Recovered), RecoverError> {
        Index::open_by(region, clock, &Start { pace, ..Start::default() })
    }

    /// Hands the table over to the next server, as a server does that stops. Returns whether it did. After that, nobody
    /// may change the table.
    #[doc(hidden)]
    pub fn stop(&self) -> bool {
        self.hand_over(Duration::from_secs(1)).is_ok()
    }

    /// The length of a region with room for the longest handover.
    #[doc(hidden)]
    pub fn bytes_with_handover(geometry: &Geometry) -> u64 {
        handover_end(geometry)
    }

    /// Begins to split the segment that has this key.
    #[doc(hidden)]
    pub fn split(&self, key: &[u8]) {
        self.growing().split(key);
    }

    /// Begins to merge the segment that has this key, and its sibling.
    #[doc(hidden)]
    pub fn merge(&self, key: &[u8]) {
        self.growing().merge(key);
    }

    /// Begins to split the segment that has this key, or to merge it with its sibling, if that is possible now.
    #[doc(hidden)]
    pub fn pair_up(&self, key: &[u8], is_merge: bool) -> bool {
        self.growing().pair_up(key, is_merge)
    }

    /// Moves the split or merge of the segment that has this key on by `homes` homes.
    #[doc(hidden)]
    pub fn drive_at(&self, key: &[u8], homes: u32) {
        self.growing().drive_at(key, homes);
    }

    /// Moves one extent if one should move (X6). Returns whether there is more to do at once.
    #[doc(hidden)]
    pub fn move_extent(&self) -> bool {
        self.table().extents().is_some_and(|extents| extents.tidy(self.table()))
    }

    /// Shows every key with its value, as a snapshot does. Returns how many slots were damaged.
    #[doc(hidden)]
    pub fn show_all(&self, see: &mut dyn FnMut(&[u8], &[u8])) -> u64 {
        let mut walk = Walk::default();
        while self.table().walk(&mut walk, &mut |key, value, _| see(key, value)) {}
        walk.damaged
    }

    /// Moves the oldest split or merge on by `homes` homes.
    #[doc(hidden)]
    pub fn drive(&self, homes: u32) {
        self.growing().drive_on(homes);
    }

    /// Gives up every merge under way.
    #[doc(hidden)]
    pub fn give_up_merges(&self) {
        if let Table::Many(growth) = self.table() {
            growth.give_up_merges();
        }
    }
}
