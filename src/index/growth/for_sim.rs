//! Operations of a table that grows, for the simulator.

use super::Growth;
use super::pace::GIVE_UP_AT;
use super::pace::TRIES_MAX;
use super::pairs::NoSplit;
use super::routing::give_way;
use crate::base::sync::lock;
use crossbeam_epoch::{self as epoch};

impl Growth {
    /// Gives up every merge under way. For the simulator.
    pub fn give_up_merges(&self) {
        let pairs = lock(&self.pairs).all();
        pairs.iter().for_each(|pair| self.turn_back(&mut pair.state()));
    }

    /// Begins to split the segment that has this key. For the simulator.
    pub fn split(&self, key: &[u8]) {
        for tried in 0..TRIES_MAX {
            give_way(tried);
            let guard = epoch::pin();
            // Memory comes back when no thread uses it any more. Tests have other threads.
            guard.flush();
            let segment = self.find(&self.geometry.hashed(key), &guard).expect("some segment has each key");
            match self.begin_split(segment) {
                Err(NoSplit::Limit | NoSplit::Bound | NoSplit::Coming) => {}
                begun => return begun.expect("a segment that is whole can be split"),
            }
        }
        panic!("there is no memory for another segment");
    }

    /// Begins to merge the segment that has this key, and its sibling. For the simulator.
    pub fn merge(&self, key: &[u8]) {
        let guard = epoch::pin();
        let segment = self.find(&self.geometry.hashed(key), &guard).expect("some segment has each key");
        assert!(self.begin_merge(segment, &guard, u64::MAX), "the segment can be merged");
    }

    /// Begins a split, or a merge, of the segment that has this key, if that is possible now. For the simulator.
    pub fn pair_up(&self, key: &[u8], is_merge: bool) -> bool {
        let guard = epoch::pin();
        let segment = self.find(&self.geometry.hashed(key), &guard);
        segment.is_some_and(|segment| match is_merge {
            true => self.begin_merge(segment, &guard, self.share_of_design(GIVE_UP_AT)),
            false => self.begin_split(segment).is_ok(),
        })
    }

    /// Drives the pair of the segment with this key, by up to this number of homes. For the simulator.
    pub fn drive_at(&self, key: &[u8], homes: u32) {
        let guard = epoch::pin();
        let segment = self.find(&self.geometry.hashed(key), &guard);
        if let Some(pair) = segment.and_then(|segment| self.pair_of(segment)) {
            self.drive(&pair, homes, &guard);
        }
    }

    /// Drives the oldest pair by up to this number of homes. For the simulator.
    pub fn drive_on(&self, homes: u32) {
        self.drive_oldest(&epoch::pin(), homes);
    }
}
