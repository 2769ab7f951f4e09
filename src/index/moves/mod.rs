//! Keys move within a segment, to make room for others or to come home (M), over its homes.
//!
//! * `search` finds the cheapest path of moves, without locks.
//! * `path` locks it, looks whether it is still good (L4), and moves the keys along it.
//! * `homing` brings displaced keys home after a delete.

mod homing;
mod path;
mod search;

pub(crate) use search::MovePath;

use super::homes::Homes;
use super::slots::Slots;
use crate::layout::geometry::Geometry;
use crate::layout::hash::Hashed;

/// Moves of the keys of one segment.
#[derive(Debug)]
pub(crate) struct Moves {
    homes: Homes,
}

impl Moves {
    pub fn new(homes: Homes) -> Moves {
        Moves { homes }
    }

    #[inline(always)]
    pub fn homes(&self) -> &Homes {
        &self.homes
    }

    #[inline(always)]
    pub fn slots(&self) -> &Slots {
        self.homes.slots()
    }

    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        self.homes.geometry()
    }

    /// Looks for a path of moves that makes room for a key. `None` if the search reached its bounds first.
    #[inline]
    pub fn find_path(&self, key: Hashed<'_>) -> Option<MovePath> {
        search::find_path(self.slots(), key)
    }
}
