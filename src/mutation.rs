//! How a layout makes room: one question, answered by each layout.

use crate::layout::geometry::{Family, Geometry, SlotIx, Window};
use crate::layout::hash::First;
use crate::{chained, cuckoo, hopscotch};
use smallvec::SmallVec;

/// A window that a key may be put into.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The window.
    pub window: Window,
    /// Would the key be newly displaced there?
    pub displaces: bool,
}

/// Where a key that is at `at` (or nowhere yet) may go, by moves alone.
pub(crate) fn destinations(
    geometry: &Geometry,
    key: &[u8],
    first: First,
    at: Option<SlotIx>,
) -> SmallVec<[Destination; 3]> {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::destinations(geometry, key, first, at),
        Family::Hopscotch => hopscotch::mutation::destinations(geometry, first),
        Family::Chained => chained::mutation::destinations(geometry, first, at),
    }
}

/// Is a path searched by random walks rather than breadth first?
pub(crate) fn walks(geometry: &Geometry) -> bool {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::walks(geometry),
        Family::Hopscotch | Family::Chained => false,
    }
}

/// Does a slot that a delete frees attract displaced keys whose primary window contains it?
pub(crate) fn homes_on_delete(geometry: &Geometry) -> bool {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::homes_on_delete(geometry),
        Family::Hopscotch | Family::Chained => true,
    }
}
