//! The search for room: the cheapest path of moves that ends in a free slot.
//!
//! Breadth first, in layers: layer `n` holds the paths that newly displace `n` keys. So the path found
//! displaces as few keys as possible (fewer READs per GET later) and, among those, takes few moves.
//! Searching holds no lock; what it found is checked again under the locks of the path
//! (MemC3, NSDI'13, section 4.2; libcuckoo, EuroSys'14, section 4.3).

use super::writer::SlotWriter;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::First;
use crate::mutation::{Destination, destinations};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Slots expanded in one layer before the search pays for the next one. Measured on 2^20 slots at 95 %:
/// more than this no longer changes READs per GET in the third decimal.
const LAYER_MAX: usize = 512;
/// Slots expanded altogether before the table counts as full.
const SEARCH_MAX: usize = 4096;

/// Slots from where the newcomer goes to the free one; each occupant moves to the next.
pub(crate) type Path = SmallVec<[SlotIx; 8]>;

#[derive(Clone, Copy)]
struct Node {
    slot: SlotIx,
    parent: u32,
}

const ROOT: u32 = u32::MAX;

/// The cheapest path for a newcomer; `None` when the bounds of the search were reached first.
pub(crate) fn find_path(slots: SlotWriter<'_>, key: &[u8], first: First) -> Option<Path> {
    let mut search = Search {
        geometry: slots.geometry,
        nodes: Vec::new(),
        visited: FxHashSet::default(),
        now: VecDeque::new(),
        later: Vec::new(),
    };
    if let Some(path) = search.reach(slots, ROOT, &destinations(slots.geometry, key, first, None)) {
        return Some(path);
    }
    let mut expanded = 0;
    loop {
        let mut in_layer = 0;
        while let Some(node) = search.now.pop_front().filter(|_| in_layer < LAYER_MAX) {
            in_layer += 1;
            let slot = search.nodes[node as usize].slot;
            // A slot with a ghost cannot give up its occupant: it has room for one ghost. A slot that is
            // being written is passed over: somebody is busy there.
            let Some((occupant, header)) = slots.peek(slot).filter(|(_, h)| h.ghost == 0) else { continue };
            let hash = slots.geometry.seeds().first(&occupant);
            let onward = destinations(slots.geometry, &occupant, hash, Some(slot));
            if let Some(path) = search.reach(slots, node, &onward) {
                return Some(path);
            }
            debug_assert!(header.klen > 0 || occupant.is_empty());
        }
        expanded += in_layer;
        if search.later.is_empty() || expanded >= SEARCH_MAX {
            return None;
        }
        search.now.clear();
        for (parent, window) in std::mem::take(&mut search.later) {
            if let Some(path) = search.enter(slots, parent, window) {
                return Some(path);
            }
        }
    }
}

struct Search<'a> {
    geometry: &'a Geometry,
    nodes: Vec<Node>,
    visited: FxHashSet<SlotIx>,
    /// Nodes of this layer, to be expanded.
    now: VecDeque<u32>,
    /// Windows that the next layer may enter, and from where.
    later: Vec<(u32, Window)>,
}

impl Search<'_> {
    fn reach(&mut self, slots: SlotWriter<'_>, parent: u32, onward: &[Destination]) -> Option<Path> {
        for destination in onward {
            if destination.displaces {
                self.later.push((parent, destination.window));
            } else if let Some(path) = self.enter(slots, parent, destination.window) {
                return Some(path);
            }
        }
        None
    }

    /// Adds the slots of a window to this layer; the path, if one of them is free.
    fn enter(&mut self, slots: SlotWriter<'_>, parent: u32, window: Window) -> Option<Path> {
        for slot in window.iter() {
            debug_assert!(slot.0 < self.geometry.main_slots());
            if !self.visited.insert(slot) {
                continue;
            }
            if slots.header(slot).is_free() {
                return Some(self.path(parent, slot));
            }
            self.now.push_back(self.nodes.len() as u32);
            self.nodes.push(Node { slot, parent });
        }
        None
    }

    fn path(&self, mut node: u32, end: SlotIx) -> Path {
        let mut path = Path::new();
        path.push(end);
        while node != ROOT {
            let Node { slot, parent } = self.nodes[node as usize];
            path.push(slot);
            node = parent;
        }
        path.reverse();
        path
    }
}
