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
//! A home changes only under its lock in the segment that its keys leave. The thread then locks stripes of the other
//! segment (L7). A pair has one thread at a time, and a segment is in one pair at a time. So no threads wait in a
//! circle.
//!
//! Puts and removes drive pairs, a few homes each, and so does [`Growth::tidy`]. They drive the oldest pair that can go
//! on, so that few homes are under way at a time, and few GETs have to look in two segments. A put into a segment that
//! is nearly full drives the pair of that segment.
//!
//! From the top down:
//!
//! * `takeover` starts with what another server has left, and `handover` leaves it. `counts` has the counts.
//! * `routing` finds the segment that has a key, and puts, swaps and removes there.
//! * `room` is for a put that finds no room. `driving` has changes, and idle time, drive pairs.
//! * `steps` is a split or merge from its first entry to its last.
//! * `making` takes memory for a segment, and gives it back. `ahead` does so before it is needed, into `stock`.
//!   `giving` gives some of it to values; `givers` says which segments give.
//! * `carry` takes the keys of one home to the other segment of a pair.
//! * `directory`, `live`, `memory`, `pairs` and `totals` keep the state of the rest; `pace` says when, and how much at
//!   a time.

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
    /// The number of pairs. Relaxed: a hint that saves changes the lock.
    under_way: AtomicU64,
    /// Until when all pairs rest ([`Pair::rests_until_ns`]); 0 if a pair does not rest. Relaxed: a hint.
    all_rest_until_ns: AtomicU64,
    memory: Arc<Mutex<FreeMemory>>,
    budget: Arc<Budget>,
    givers: Mutex<Givers>,
    /// Held while a thread makes a segment.
    making: Mutex<()>,
    stock: Stock,
    /// The foreseen number of keys; 0 once the table has grown for it. Relaxed: a hint.
    foreseen: AtomicU64,
    registrar: OnceLock<Weak<dyn Registrar>>,
    done: SplitTotals,
    /// Keys that found no room, although they waited for it.
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
