//! How to make room: no key moves. A full bucket sends the newcomer into its chain.

use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::placement::Destination;
use smallvec::{SmallVec, smallvec};

/// Where a key may go by moves alone: a newcomer into its bucket, an occupant nowhere.
pub fn destinations(geometry: &Geometry, key: Hashed<'_>, at: Option<SlotIx>) -> SmallVec<[Destination; 3]> {
    let primary = geometry.primary(key);
    match at {
        Some(slot) if primary.contains(slot) => smallvec![],
        _ => smallvec![Destination { window: primary, displaces: false }],
    }
}
