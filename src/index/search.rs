//! The search for room: a path of moves that ends in a free slot.
//!
//! [`Search`] finds the cheapest path. It goes breadth first, in layers: layer `n` holds the paths
//! that newly displace `n` keys. So the path displaces as few keys as possible (later GETs need
//! fewer READs) and, among such paths, has few moves. [`walk`] finds a random path, as `pilaf` is
//! published.
//!
//! A search holds no lock. The path is checked again under its locks
//! (MemC3, NSDI'13, section 4.2; libcuckoo, EuroSys'14, section 4.3).

use super::has_room_for_ghost;
use super::notes::{Note, Notes};
use super::writer::SlotWriter;
use crate::families::{self, destinations};
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::{Hashed, mix, reduce};
use crate::layout::slot::Key;
use crate::placement::Destination;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;

/// Slots that one layer enters before the search goes on to the next layer. `docs/LAYOUTS.md` shows
/// the READs per GET and the time per insert for other values.
const LAYER_MAX: usize = 256;
/// Slots entered in all before the table counts as full.
const SEARCH_MAX: usize = 4096;

/// The slots of a path, from the newcomer's slot to the free one. Each occupant moves to the next.
pub(crate) type MovePath = SmallVec<[SlotIx; 8]>;

#[derive(Clone, Copy)]
struct Node {
    slot: SlotIx,
    parent: u32,
}

const ROOT: u32 = u32::MAX;

/// Finds a path for a newcomer. `None` when the search reached its bounds first.
pub(crate) fn find_path(table: Searched<'_>, key: Hashed<'_>) -> Option<MovePath> {
    if families::walks(table.slots.geometry) {
        return (0..WALKS_MAX).find_map(|round| walk(table.slots, key, round));
    }
    thread_local! {
        static SCRATCH: RefCell<Search> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|search| search.run(table, key))
}

/// Walks before the table counts as full, and steps of each walk.
const WALKS_MAX: u64 = 16;
const STEPS_MAX: usize = 512;

/// One random walk (Fotakis, Pagh, Sanders, Spirakis, 2005). The newcomer takes the first of its
/// windows that has a free slot. If none has, it evicts a random occupant. That key goes to one of
/// its other windows, at random, but to one with a free slot if there is one. No slot is taken
/// twice.
fn walk(slots: SlotWriter<'_>, newcomer: Hashed<'_>, round: u64) -> Option<MovePath> {
    let mut path = MovePath::new();
    let mut random = mix(newcomer.first().0 ^ round);
    let mut pick = |n: usize| {
        random = mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        reduce(random, n as u64) as usize
    };
    let mut evicted = Key::new();
    while path.len() < STEPS_MAX {
        let mover = if path.is_empty() { newcomer } else { slots.geometry.hashed(&evicted) };
        let onward = destinations(slots.geometry, mover, path.last().copied());
        let all = || onward.iter().flat_map(|d| d.window.iter());
        let free: SmallVec<[SlotIx; 4]> = all().filter(|&slot| slots.header(slot).is_free()).collect();
        if !free.is_empty() {
            path.push(if path.is_empty() { free[0] } else { free[pick(free.len())] });
            return Some(path);
        }
        let evictable: SmallVec<[SlotIx; 4]> = all()
            .filter(|slot| has_room_for_ghost(slots.header(*slot).ghost) && !path.contains(slot))
            .collect();
        if evictable.is_empty() {
            return None;
        }
        let slot = evictable[pick(evictable.len())];
        path.push(slot);
        evicted = slots.peek(slot).filter(|(header, _)| !header.is_free())?.1;
    }
    None
}

/// What a search reads.
#[derive(Clone, Copy)]
pub(crate) struct Searched<'a> {
    pub slots: SlotWriter<'a>,
    pub notes: &'a Notes,
}

impl Searched<'_> {
    /// What is known of a slot. Looks at the slot if nothing is. `None` while the slot is being written.
    fn note(self, slot: SlotIx) -> Option<Note> {
        match self.notes.of(slot) {
            Note::Unknown => self.look(slot),
            known => Some(known),
        }
    }

    #[cold]
    fn look(self, slot: SlotIx) -> Option<Note> {
        let (header, key) = self.slots.peek(slot)?;
        if header.is_free() {
            return Some(Note::Free);
        }
        if !has_room_for_ghost(header.ghost) {
            return Some(Note::Stuck);
        }
        let geometry = self.slots.geometry;
        let note = Note::of_key(geometry, slot, geometry.hashed(&key));
        self.notes.learn(slot, note);
        Some(note)
    }

    #[inline]
    fn is_free(self, slot: SlotIx) -> bool {
        self.notes.is_free(slot).unwrap_or_else(|| self.slots.header(slot).is_free())
    }

    /// Where the key in a slot may go. `None` if it may not be moved, or another thread works there.
    fn destinations(self, slot: SlotIx) -> Option<SmallVec<[Destination; 3]>> {
        // M3: a slot with a ghost cannot give up its occupant. A slot that is being written is passed
        // over.
        let (_, key) = self.slots.peek(slot).filter(|(h, _)| has_room_for_ghost(h.ghost) && !h.is_free())?;
        let geometry = self.slots.geometry;
        Some(destinations(geometry, geometry.hashed(&key), Some(slot)))
    }
}

#[derive(Default)]
struct Search {
    /// Slots entered, in order.
    nodes: Vec<Node>,
    visited: Visited,
}

impl Search {
    fn run(&mut self, table: Searched<'_>, newcomer: Hashed<'_>) -> Option<MovePath> {
        self.nodes.clear();
        self.visited.clear();
        let geometry = table.slots.geometry;
        let gives_way = families::gives_way(geometry);
        let onward = destinations(geometry, newcomer, None);
        if let Some(path) = self.enter_those(table, ROOT, &onward, false) {
            return Some(path);
        }
        let (mut begin, mut next) = (0, 0);
        loop {
            let layer_end = begin + LAYER_MAX;
            while next < self.nodes.len().min(layer_end) {
                let node = next as u32;
                next += 1;
                let path = match table.note(self.nodes[node as usize].slot) {
                    Some(Note::AtHome(distance)) if gives_way.at_home => {
                        self.leave_home(table, node, distance)
                    }
                    Some(Note::Displaced) => self.leave(table, node, false),
                    _ => None,
                };
                if path.is_some() {
                    return path;
                }
            }
            if self.nodes.len() >= SEARCH_MAX {
                return None;
            }
            // The next layer begins where a key of this one would be newly displaced.
            let looked_at = begin..next;
            begin = self.nodes.len();
            next = begin;
            if looked_at.start == 0
                && let Some(path) = self.enter_those(table, ROOT, &onward, true)
            {
                return Some(path);
            }
            for node in looked_at.filter(|_| gives_way.displaced) {
                if let Some(Note::AtHome(_)) = table.note(self.nodes[node].slot)
                    && let Some(path) = self.leave(table, node as u32, true)
                {
                    return Some(path);
                }
            }
            if self.nodes.len() == begin {
                return None;
            }
        }
    }

    /// Goes on from a slot whose key is in its primary window, which begins `distance` slots before,
    /// to other slots of that window.
    #[inline]
    fn leave_home(&mut self, table: Searched<'_>, node: u32, distance: u8) -> Option<MovePath> {
        let SlotIx(slot) = self.nodes[node as usize].slot;
        let first = SlotIx(slot.saturating_sub(distance.into()));
        self.enter(table, node, Window { first, ..table.slots.geometry.window(0) })
    }

    /// Goes on from a slot to the windows in which its key would be newly displaced, or to the others.
    fn leave(&mut self, table: Searched<'_>, node: u32, displaces: bool) -> Option<MovePath> {
        let onward = table.destinations(self.nodes[node as usize].slot)?;
        self.enter_those(table, node, &onward, displaces)
    }

    fn enter_those(
        &mut self,
        table: Searched<'_>,
        parent: u32,
        onward: &[Destination],
        displaces: bool,
    ) -> Option<MovePath> {
        let mut those = onward.iter().filter(|destination| destination.displaces == displaces);
        those.find_map(|destination| self.enter(table, parent, destination.window))
    }

    /// Adds the slots of a window to this layer. Returns the path if one of the slots is free.
    #[inline]
    fn enter(&mut self, table: Searched<'_>, parent: u32, window: Window) -> Option<MovePath> {
        if self.visited.covers(window) { None } else { self.enter_new(table, parent, window) }
    }

    #[inline(never)]
    fn enter_new(&mut self, table: Searched<'_>, parent: u32, window: Window) -> Option<MovePath> {
        let mut new = self.visited.insert(window);
        while new != 0 {
            let slot = window.slot(new.trailing_zeros());
            new &= new - 1;
            if table.is_free(slot) {
                return Some(self.path(parent, slot));
            }
            self.nodes.push(Node { slot, parent });
        }
        None
    }

    fn path(&self, mut node: u32, end: SlotIx) -> MovePath {
        let mut path = MovePath::new();
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

/// A set of slots that is emptied in constant time. It uses open addressing, with a bitmap for each
/// group of 64 slots; entries of earlier searches are void.
struct Visited {
    entries: Box<[Group]>,
    round: u32,
    len: usize,
    /// Neighbouring slots that were added: the windows of neighbours overlap.
    run: Range<u64>,
}

#[derive(Clone, Copy, Default)]
struct Group {
    round: u32,
    number: u64,
    slots: u64,
}

impl Default for Visited {
    fn default() -> Visited {
        Visited { entries: vec![Group::default(); 4 * SEARCH_MAX].into(), round: 1, len: 0, run: 0..0 }
    }
}

impl Visited {
    fn clear(&mut self) {
        self.len = 0;
        self.run = 0..0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            *self = Visited::default();
        }
    }

    /// Whether it is certain that adding this window adds nothing.
    #[inline]
    fn covers(&self, window: Window) -> bool {
        self.run.start <= window.first.0 && window.first.0 + u64::from(window.slots) <= self.run.end
    }

    /// Adds a window of at most 64 slots. Returns which of them were new: bit 0 is the first slot's.
    fn insert(&mut self, window: Window) -> u64 {
        let these = window.first.0..window.first.0 + u64::from(window.slots);
        self.run = if these.start <= self.run.end && self.run.start <= these.end {
            self.run.start.min(these.start)..self.run.end.max(these.end)
        } else {
            these
        };
        let (group, shift) = (window.first.0 / 64, window.first.0 % 64);
        let all = u64::MAX >> (64 - window.slots);
        let mut new = self.insert_into(group, all << shift) >> shift;
        if shift + u64::from(window.slots) > 64 {
            new |= self.insert_into(group + 1, all >> (64 - shift)) << (64 - shift);
        }
        new
    }

    /// Adds slots of a group. Returns which of them were new. A half full set calls every slot old,
    /// which ends the search.
    fn insert_into(&mut self, number: u64, slots: u64) -> u64 {
        let mask = self.entries.len() - 1;
        let mut at = mix(number) as usize & mask;
        loop {
            let is_full = self.len >= self.entries.len() / 2;
            let group = &mut self.entries[at];
            if group.round != self.round {
                if is_full {
                    return 0;
                }
                *group = Group { round: self.round, number, slots };
                self.len += 1;
                return slots;
            }
            if group.number == number {
                let new = slots & !group.slots;
                group.slots |= slots;
                return new;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::Segment;
    use crate::layout::hash::Seeds;
    use crate::layout::slot::Content;
    use crate::outcome::PutMode;
    use crate::region::{Backing, Region};

    fn index(layout: &str, slots: u64) -> Segment {
        let config = Config {
            layout: layout.parse().unwrap(),
            size: TableSize::Slots(slots),
            key_max: 8,
            value_max: 8,
            seeds: Some(Seeds::from_number(slots)),
            ..Config::default()
        };
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        Segment::create(region, geometry, Clock::manual()).unwrap()
    }

    fn displaced_by(slots: SlotWriter<'_>, key: &[u8], at: Option<SlotIx>, to: SlotIx) -> usize {
        let key = slots.geometry.hashed(key);
        let onward = destinations(slots.geometry, key, at);
        assert!(onward.iter().any(|d| d.window.contains(to)), "a step leads into a window of the key");
        let is_home = |slot| slots.geometry.primary(key).contains(slot);
        usize::from(at.is_none_or(is_home) && !is_home(to))
    }

    /// The length of the shortest path that displaces no key, found from neighbour to neighbour.
    fn shortest(slots: SlotWriter<'_>, key: &[u8]) -> Option<usize> {
        let geometry = slots.geometry;
        let mut seen = vec![false; geometry.main_slots() as usize];
        let mut layer = vec![(None, key.to_vec())];
        for length in 1.. {
            for (at, mover) in std::mem::take(&mut layer) {
                for d in destinations(geometry, geometry.hashed(&mover), at) {
                    for slot in d.window.iter().filter(|&slot| displaced_by(slots, &mover, at, slot) == 0) {
                        let (header, occupant) = slots.peek(slot).unwrap();
                        if header.is_free() {
                            return Some(length);
                        }
                        let is_new = !std::mem::replace(&mut seen[slot.0 as usize], true);
                        if is_new && header.ghost == 0 {
                            layer.push((Some(slot), occupant.to_vec()));
                        }
                    }
                }
            }
            if layer.is_empty() {
                break;
            }
        }
        None
    }

    /// The least number of keys that a newcomer must displace, found by trying everything.
    fn least_displaced(slots: SlotWriter<'_>, key: &[u8]) -> Option<usize> {
        let geometry = slots.geometry;
        let mut cost = vec![usize::MAX; geometry.main_slots() as usize];
        let mut todo = vec![(None, key.to_vec(), 0)];
        while let Some((at, mover, so_far)) = todo.pop() {
            for d in destinations(geometry, geometry.hashed(&mover), at) {
                for slot in d.window.iter() {
                    let there = so_far + displaced_by(slots, &mover, at, slot);
                    if there >= cost[slot.0 as usize] {
                        continue;
                    }
                    cost[slot.0 as usize] = there;
                    let (header, occupant) = slots.peek(slot).unwrap();
                    if !header.is_free() && header.ghost == 0 {
                        todo.push((Some(slot), occupant.to_vec(), there));
                    }
                }
            }
        }
        let free = (0..geometry.main_slots()).filter(|&slot| slots.header(SlotIx(slot)).is_free());
        free.map(|slot| cost[slot as usize]).min().filter(|&least| least < usize::MAX)
    }

    /// Each step leads into a window of the key that takes it, and the end is free. No path
    /// displaces fewer keys. No path that displaces none is shorter.
    #[test]
    fn a_path_displaces_as_few_as_possible() {
        for layout in ["windowed:8", "bucketized:4", "slotwise:8"] {
            let index = index(layout, 120);
            let mut paths = [0; 3];
            for n in 0..300u64 {
                let key = n.to_le_bytes();
                let slots = index.slots();
                let path = find_path(index.table(), index.geometry.hashed(&key));
                let mut displaced = path.is_some().then_some(0);
                let (mut mover, mut at) = (key.to_vec(), None);
                for &slot in path.iter().flatten() {
                    *displaced.as_mut().unwrap() += displaced_by(slots, &mover, at, slot);
                    (mover, at) = (slots.read(slot).key.to_vec(), Some(slot));
                }
                assert!(mover.is_empty() || path.is_none(), "the end is free");
                assert_eq!(displaced, least_displaced(slots, &key), "{layout}, key {n}");
                if displaced == Some(0) {
                    assert_eq!(path.map(|path| path.len()), shortest(slots, &key), "{layout}, key {n}");
                }
                if let Some(displaced) = displaced {
                    paths[displaced.min(2)] += 1;
                    index.put(&key, b"", PutMode::Insert).unwrap();
                    index.grace.clock().advance(3 * index.geometry.grace());
                    index.tidy();
                }
            }
            assert!(paths[0] > 80 && (layout == "slotwise:8" || paths[1] > 3), "{layout}: {paths:?}");
        }
    }

    /// A removed key leaves the ghost in its slot: a reader that looks for the moved key must see
    /// it.
    #[test]
    fn a_removed_key_leaves_the_ghost() {
        for layout in ["windowed:8", "bucketized:4", "slotwise:8"] {
            let index = index(layout, 120);
            let mut ghosts = 0;
            for n in 0..400u64 {
                let _ = index.put(&n.to_le_bytes(), b"", PutMode::Insert);
                for slot in (0..index.geometry.main_slots()).map(SlotIx) {
                    let before = index.slots().header(slot);
                    if before.ghost != 0 && !before.is_free() {
                        assert!(index.remove(&index.slots().read(slot).key).unwrap());
                        assert_eq!(index.slots().header(slot).ghost, before.ghost, "{layout}, {slot:?}");
                        ghosts += 1;
                    }
                }
                index.grace.clock().advance(3 * index.geometry.grace());
                index.tidy();
            }
            assert!(ghosts > 3, "{layout}: {ghosts}");
        }
    }

    /// The search of a table without a free slot ends at its bound.
    #[test]
    fn a_search_ends_at_its_bound() {
        let index = index("windowed:8", 6000);
        let geometry = &index.geometry;
        let mut numbers = 0u64..;
        for slot in (0..geometry.main_slots()).map(SlotIx) {
            let at_home = |n: &u64| geometry.primary(geometry.hashed(&n.to_le_bytes())).contains(slot);
            let key = numbers.find(at_home).unwrap().to_le_bytes();
            index.slots().write(slot, &Content { key: &key, ..Content::default() });
        }
        let mut search = Search::default();
        index.notes.forget(&(0..geometry.main_slots()).map(SlotIx).collect::<Vec<_>>());
        assert!(search.run(index.table(), geometry.hashed(b"newcomer")).is_none());
        // What one layer adds at the most while the bound is not yet reached.
        let layer = LAYER_MAX * geometry.layout().window_slots() as usize;
        let entered = SEARCH_MAX..SEARCH_MAX + layer;
        assert!(entered.contains(&search.nodes.len()), "{} slots entered", search.nodes.len());
    }

    #[test]
    fn slots_are_visited_once() {
        let window = |first, slots| Window { first: SlotIx(first), slots, incarnation: 0 };
        let mut visited = Visited::default();
        let most = 2 * SEARCH_MAX as u64;
        for _ in 0..3 {
            assert!((0..most).all(|n| visited.insert(window(64 * n + 3, 1)) == 1));
            assert!((0..most).all(|n| visited.insert(window(64 * n + 3, 1)) == 0), "again");
            assert_eq!(visited.insert(window(64 * most, 1)), 0, "half full");
            visited.clear();
        }
        // The rounds begin again: an empty entry must not look like one of this round.
        visited.round = u32::MAX;
        assert_eq!(visited.insert(window(1, 1)), 1);
        visited.clear();
        assert_eq!([0, 1].map(|first| visited.insert(window(first, 1))), [1, 1]);
    }

    /// Of a window that was visited in part, the other slots are new, wherever groups of 64 begin.
    #[test]
    fn windows_overlap() {
        for first in 0..130 {
            for slots in [1, 2, 8, 63, 64] {
                let mut visited = Visited::default();
                let at = |slot: u64| Window { first: SlotIx(first + slot), slots: 1, incarnation: 0 };
                let before: Vec<u64> = (0..slots).filter(|slot| slot % 3 == 1).collect();
                assert!(before.iter().all(|&slot| visited.insert(at(slot)) == 1));
                let expected =
                    (0..slots).filter(|slot| !before.contains(slot)).fold(0, |all, n| all | 1 << n);
                let window = Window { first: SlotIx(first), slots: slots as u32, incarnation: 0 };
                assert_eq!(
                    (visited.insert(window), visited.insert(window)),
                    (expected, 0),
                    "{first}, {slots}"
                );
                assert_eq!(visited.insert(at(slots)), 1, "behind it");
            }
        }
    }
}
