//! How to make room: displacement inside overlapping neighbourhoods, and the chain when that fails.
//!
//! The search (`index/moves/search.rs`) moves each key only inside its own neighbourhood. So it displaces
//! no key, and finds the path with the fewest moves.

use crate::layout::geometry::Geometry;
use crate::layout::hash::Hashed;
use crate::placement::Destination;
use smallvec::{SmallVec, smallvec};

/// Where a key may go by moves alone.
pub fn destinations(geometry: &Geometry, key: Hashed<'_>) -> SmallVec<[Destination; 3]> {
    smallvec![Destination { window: geometry.primary(key), displaces: false }]
}
