//! Searches for room that failed a moment ago, so that the next put of that key is refused at once.

use crate::families;
use crate::layout::geometry::Geometry;
use crate::layout::hash::{Hashed, mix};
use crate::sync::Ordering;
use std::sync::atomic::AtomicU64;

/// Failed searches that are remembered. A later one takes the place of an older one.
const REMEMBERED: usize = if cfg!(loom) { 1 } else { 1024 };

/// There was no way to make room for a key, when so much room had been made
/// ([`Counters::room_made`](super::counters::Counters::room_made)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPath {
    /// The key, or its home, whichever decides where room is looked for.
    pub from: u64,
    pub room_made: u64,
}

impl NoPath {
    pub fn of(geometry: &Geometry, key: Hashed<'_>, room_made: u64) -> NoPath {
        NoPath { from: families::looks_for_room_from(geometry, key), room_made }
    }

    /// The one word that stands for it. Another one's is the same once in 2^64.
    fn word(self) -> u64 {
        mix(mix(self.from).wrapping_add(self.room_made)) | 1
    }
}

/// The last failed searches.
#[derive(Debug)]
pub(super) struct Refusals(Box<[AtomicU64]>);

impl Refusals {
    pub fn new() -> Refusals {
        Refusals((0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }

    /// Remembers nothing.
    pub fn none() -> Refusals {
        Refusals(Box::default())
    }

    fn place(&self, search: NoPath) -> &AtomicU64 {
        &self.0[mix(search.from) as usize % REMEMBERED]
    }

    pub fn remember(&self, search: NoPath) {
        // Relaxed: only the word itself is communicated.
        self.place(search).store(search.word(), Ordering::Relaxed);
    }

    pub fn know(&self, search: NoPath) -> bool {
        self.place(search).load(Ordering::Relaxed) == search.word()
    }
}
