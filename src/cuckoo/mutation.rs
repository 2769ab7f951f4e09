//! How to make room: where a newcomer may go, and where an occupant may go to give way.
//!
//! The search (`index/moves/search.rs`) finds the cheapest path of moves: fewest keys newly displaced,
//! then fewest moves. For `windowed`, moves in the first layer displace no key: this is hopscotch
//! displacement inside overlapping primary windows. Only when that layer is exhausted, the newcomer
//! or a cheaper neighbour goes to its second window.
//!
//! `pilaf` walks at random, as cuckoo tables of its time do. All slots of a key are equally good
//! there. `docs/LAYOUTS.md` compares it with the breadth-first search on the same table.

use super::placement::choices;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::placement::Destination;
use smallvec::SmallVec;

/// Where a key may go. It is at `at`, or is a newcomer if that is `None`.
pub fn destinations(geometry: &Geometry, key: Hashed<'_>, at: Option<SlotIx>) -> SmallVec<[Destination; 3]> {
    let primary = geometry.primary(key);
    let is_home = at.is_none_or(|slot| primary.contains(slot));
    let mut all = SmallVec::new();
    for (n, window) in choices(geometry, key).enumerate() {
        all.push(Destination { window, displaces: is_home && n > 0 });
    }
    all
}

/// Whether paths are searched by random walks. They are in `pilaf`.
pub fn walks(geometry: &Geometry) -> bool {
    geometry.layout().window_slots() == 1
}

/// Whether deletes bring displaced keys home. They do not in `pilaf`, as published.
pub fn homes_on_delete(geometry: &Geometry) -> bool {
    geometry.layout().window_slots() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::geometry::{Family, Layout};

    /// Layouts with windows of one slot walk at random and do no homing, whatever their choices.
    #[test]
    fn who_walks() {
        for (choices, bucket_slots, window_buckets) in [(3, 1, 1), (2, 1, 1), (3, 4, 1), (3, 1, 8), (2, 8, 1)]
        {
            let layout =
                Layout { family: Family::Cuckoo, choices, bucket_slots, window_buckets, block_slots: 0 };
            let config = Config { layout, size: TableSize::Slots(64), ..Config::short() };
            let geometry = config.geometry().unwrap();
            let single = bucket_slots * window_buckets == 1;
            assert_eq!((walks(&geometry), homes_on_delete(&geometry)), (single, !single), "{layout:?}");
        }
    }
}
