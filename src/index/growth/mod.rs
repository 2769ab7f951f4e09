//! A table that grows and shrinks while it is read: splits and merges of segments (E1 to E7).
//!
//! ```text
//! split   entries: the child is pending
//!         each home:  copy to the child ─ raise the depth ─ overwrite the originals
//!         entries: the child has its keys
//! merge   entries of the child: the parent is pending
//!         each home:  copy to the parent ─ mark as merged ─ overwrite the originals
//!         entries: the parent has the keys; the child's memory is free
//! ```
//!
//! A merge that meets new keys is *given up*: its homes are split again, from where it stands.
//!
//! Whatever happens to a home, happens under its lock in the segment that its keys leave. That
//! thread then locks stripes of the other segment (L7): a pair has one thread at a time, and a
//! segment is in one pair at a time, so no thread waits in a circle.
//!
//! Puts and removes drive pairs on, by a few homes each, and [`Growth::tidy`] does: always the oldest
//! pair that can go on, so that few homes are under way at a time and few GETs have to look in two
//! segments. A put into a segment that is nearly full drives that one's pair.
//!
//! From the top down:
//!
//! * `takeover` starts with what another server has left, `handover` leaves it. `counts` says what there is and was done.
//! * `routing` finds the segment that has a key, and puts, swaps and removes there.
//! * `room` is for a put that finds none. `driving` has changes, and idle time, take pairs on.
//! * `steps` is a split or merge from its first entry to its last.
//! * `making` takes memory for a segment, and gives it back; `ahead` does so before it is needed, into `stock`; `giving` has
//!   values get some of it: `givers` says whose.
//! * `carry` takes the keys of one home to the other segment of a pair.
//! * `directory`, `live`, `memory`, `pairs` and `totals` keep what the rest work on; `pace` says when, and how much
//!   at a time.

mod ahead;
mod carry;
mod counts;
mod directory;
mod driving;
#[cfg(feature = "sim")]
mod for_sim;
mod givers;
mod giving;
mod handover;
mod huge;
mod live;
mod making;
mod memory;
pub(crate) mod pace;
mod pairs;
mod room;
mod routing;
#[cfg(all(test, feature = "sim", not(loom)))]
mod step_tests;
mod steps;
mod stock;
mod takeover;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod totals;

use crate::base::clock::Clock;
use crate::base::sync::{Mutex, lock};
use crate::index::budget::{Budget, Registrar};
use crate::index::extents::Extents;
use crate::index::homes::Grace;
use crate::index::observers::Observers;
use crate::index::publish::{publish_state, publish_superblock};
use crate::index::refusals::Refusals;
use crate::index::share::KeyShare;
use crate::index::slots::UndoLines;
use crate::index::start::{Start, StartStep};
use crate::layout::control::Phase;
use crate::layout::geometry::Geometry;
use crate::layout::segment::{DirectoryEntry, Pending};
use crate::region::{Region, RegionError};
pub(crate) use ahead::Ahead;
use directory::Directory;
use givers::Givers;
pub(super) use giving::Giving;
use live::LiveSegments;
use memory::FreeMemory;
use pace::Pace;
use pairs::Pairs;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use stock::Stock;
use totals::SplitTotals;

#[cfg(feature = "sim")]
pub(crate) use handover::handover_end;

/// A table that grows.
#[derive(Debug)]
pub(in crate::index) struct Growth {
    pub region: Region,
    pub geometry: Geometry,
    pub incarnation: u64,
    pub(super) pace: Pace,
    pub grace: Grace,
    undo: UndoLines,
    pub extents: Option<Arc<Extents>>,
    pub observers: Arc<Observers>,
    pub live: LiveSegments,
    directory: Mutex<Directory>,
    pairs: Mutex<Pairs>,
    /// As many pairs as there are. Relaxed: a hint that saves changes the lock.
    under_way: AtomicU64,
    /// Until when all pairs rest ([`Pair::rests_until_ns`]); 0 if one may not. Relaxed: a hint.
    all_rest_until_ns: AtomicU64,
    memory: Arc<Mutex<FreeMemory>>,
    budget: Arc<Budget>,
    givers: Mutex<Givers>,
    /// One thread at a time makes a segment.
    making: Mutex<()>,
    stock: Stock,
    /// Keys that the table will have, as somebody said; 0 where it is as large as it is then. Relaxed: a hint.
    foreseen: AtomicU64,
    registrar: OnceLock<Weak<dyn Registrar>>,
    done: SplitTotals,
    /// Keys that found no room, though they waited for it.
    refusals: Refusals,
}

impl Drop for Growth {
    fn drop(&mut self) {
        lock(&self.memory).closed = true;
    }
}

impl Growth {
    fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64, pace: Pace) -> Growth {
        let undo = UndoLines::new();
        let in_front = geometry.slot_offset(geometry.segment_first(0));
        let budget = Budget::new(geometry.slots_end() - in_front);
        Growth {
            memory: Arc::new(Mutex::new(FreeMemory::new(&geometry, &budget))),
            givers: Mutex::default(),
            directory: Mutex::new(Directory::new(&region, &geometry, &undo)),
            extents: Extents::new(&region, &geometry, &clock, &budget, pace.value_numbers),
            budget,
            observers: Arc::default(),
            grace: Grace::new(clock, geometry.grace()),
            live: LiveSegments::new(geometry.segments_max()),
            pairs: Mutex::default(),
            under_way: AtomicU64::new(0),
            all_rest_until_ns: AtomicU64::new(0),
            making: Mutex::default(),
            stock: Stock::default(),
            foreseen: AtomicU64::new(0),
            registrar: OnceLock::new(),
            done: SplitTotals::default(),
            refusals: Refusals::new(),
            pace,
            undo,
            region,
            geometry,
            incarnation,
        }
    }

    /// Makes an empty table of one segment that is not yet in service.
    pub fn create_unready(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Growth, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.table_offset())?;
        let growth = Growth::over(region, geometry, clock, 1, start.pace);
        growth.publish_state(Phase::Starting);
        publish_superblock(&growth.region, &growth.geometry);
        let bytes = growth.segment_bytes();
        let first = start.step(StartStep::Make, bytes, |_| growth.make(KeyShare::ALL))?;
        let named = first.named();
        growth.live.insert(first);
        let entry = DirectoryEntry { segment: named, depth: 0, pending: Pending::Nothing };
        lock(&growth.directory).begin(entry)?;
        Ok(growth)
    }

    /// Writes the state word, with one store.
    pub fn publish_state(&self, phase: Phase) {
        publish_state(&self.region, self.incarnation, phase);
    }

    fn segment_bytes(&self) -> u64 {
        self.geometry.slots() * self.geometry.shape().bytes() as u64
    }
}
