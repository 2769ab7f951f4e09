//! The search for room: the cheapest path of moves that ends in a free slot.
//!
//! Breadth first, in layers: layer `n` holds the paths that newly displace `n` keys. So the path found
//! displaces as few keys as possible (fewer READs per GET later) and, among those, takes few moves.
//! Searching holds no lock; what it found is checked again under the locks of the path
//! (MemC3, NSDI'13, section 4.2; libcuckoo, EuroSys'14, section 4.3).

use super::writer::SlotWriter;
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::{First, mix};
use crate::mutation::{Destination, destinations};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Slots entered in one layer before the search pays for the next one. `docs/LAYOUTS.md` shows what READs
/// per GET and time per insert other values give.
const LAYER_MAX: usize = 256;
/// Slots entered altogether before the table counts as full.
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
    thread_local! {
        static SCRATCH: RefCell<Search> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|search| search.run(slots, key, first))
}

#[derive(Default)]
struct Search {
    /// Slots entered, in order; those of this layer from `expanded` on are still to be expanded.
    nodes: Vec<Node>,
    visited: Visited,
    /// Windows that the next layer may enter, and from where.
    later: Vec<(u32, Window)>,
}

impl Search {
    fn run(&mut self, slots: SlotWriter<'_>, key: &[u8], first: First) -> Option<Path> {
        self.nodes.clear();
        self.visited.clear();
        self.later.clear();
        let mut next = 0;
        let mut layer_end = LAYER_MAX;
        if let Some(path) = self.reach(slots, ROOT, &destinations(slots.geometry, key, first, None)) {
            return Some(path);
        }
        loop {
            while next < self.nodes.len().min(layer_end) {
                let node = next as u32;
                next += 1;
                let slot = self.nodes[node as usize].slot;
                // A slot with a ghost cannot give up its occupant: it has room for one ghost. A slot that
                // is being written is passed over: somebody is busy there.
                let Some((_, occupant)) = slots.peek(slot).filter(|(h, _)| h.ghost == 0 && !h.is_free())
                else {
                    continue;
                };
                let hash = slots.geometry.seeds().first(&occupant);
                let onward = destinations(slots.geometry, &occupant, hash, Some(slot));
                if let Some(path) = self.reach(slots, node, &onward) {
                    return Some(path);
                }
            }
            if self.later.is_empty() || self.nodes.len() >= SEARCH_MAX {
                return None;
            }
            layer_end = next.max(self.nodes.len()) + LAYER_MAX;
            next = self.nodes.len();
            for (parent, window) in std::mem::take(&mut self.later) {
                if let Some(path) = self.enter(slots, parent, window) {
                    return Some(path);
                }
            }
        }
    }

    /// Adds what can be reached from `parent`: to this layer, or to the next if it displaces a key. The
    /// path, if it ends here.
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
            if !self.visited.insert(slot) {
                continue;
            }
            if slots.header(slot).is_free() {
                return Some(self.path(parent, slot));
            }
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

/// A set of slots that is emptied in no time: open addressing, entries of earlier searches are void.
struct Visited {
    entries: Box<[(u32, u64)]>,
    round: u32,
    len: usize,
}

impl Default for Visited {
    fn default() -> Visited {
        Visited { entries: vec![(0, 0); 4 * SEARCH_MAX].into(), round: 1, len: 0 }
    }
}

impl Visited {
    fn clear(&mut self) {
        self.len = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            *self = Visited::default();
        }
    }

    /// Adds a slot; was it new? When the set is half full, nothing is new any more, which ends the search.
    fn insert(&mut self, slot: SlotIx) -> bool {
        let mask = self.entries.len() - 1;
        let mut at = mix(slot.0) as usize & mask;
        loop {
            match self.entries[at] {
                (round, _) if round != self.round => {
                    if self.len >= self.entries.len() / 2 {
                        return false;
                    }
                    self.entries[at] = (self.round, slot.0);
                    self.len += 1;
                    return true;
                }
                (_, n) if n == slot.0 => return false,
                _ => at = (at + 1) & mask,
            }
        }
    }
}
