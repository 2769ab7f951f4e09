//! The state and the superblock, which the server writes for all clients of a region.

use crate::base::sync::{Ordering, fence};
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::Superblock;
use crate::region::Region;
use std::sync::atomic::compiler_fence;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the state word, with one store.
pub(super) fn publish_state(region: &Region, incarnation: u64, phase: Phase) {
    // Pairs with the acquire fences of a GET that follows a load of the state.
    fence(Ordering::Release);
    region.store(STATE_WORD, State { incarnation, phase }.to_word());
}

/// Writes the superblock, once, into a region that nobody reads yet.
pub(super) fn publish_superblock(region: &Region, geometry: &Geometry) {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let words = Superblock::new(geometry, created).to_words();
    words.iter().enumerate().skip(1).for_each(|(w, &word)| region.store(w, word));
    // The magic number comes last. A killed server's stores end where its program did.
    compiler_fence(Ordering::Release);
    region.store(0, words[0]);
}
