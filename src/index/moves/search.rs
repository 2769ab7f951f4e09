//! The search for room: a path of moves that ends in a free slot.
//!
//! [`Search`] finds the cheapest path. It goes breadth first, in layers: layer `n` holds the paths
//! that newly displace `n` keys. So the path displaces as few keys as possible (later GETs need
//! fewer READs) and, among such paths, has few moves. [`walk`] finds a random path, as `pilaf` is
//! published.
//!
//! A search holds no lock. The path is checked again under its locks
//! (MemC3, NSDI'13, section 4.2; libcuckoo, EuroSys'14, section 4.3).

use crate::index::slots::{Note, Slots, has_room_for_ghost, home_slot};
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::{Hashed, mix, reduce};
use crate::layout::slot::Key;
use crate::placement::Destination;
use crate::placement::families::{self, destinations};
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

/// Slots that a search has entered from one slot: neighbours, in their order.
#[derive(Clone, Copy)]
struct Entered {
    first: SlotIx,
    slots: u32,
    from: EnteredSlot,
}

/// A slot that a search has entered, and its place in [`Search::entered`].
#[derive(Clone, Copy)]
struct EnteredSlot {
    slot: SlotIx,
    entered: u32,
}

/// Where the newcomer comes from.
const NEWCOMER: EnteredSlot = EnteredSlot { slot: SlotIx(u64::MAX), entered: u32::MAX };

/// Finds a path for a newcomer. `None` when the search reached its bounds first.
pub(crate) fn find_path(slots: &Slots, key: Hashed<'_>) -> Option<MovePath> {
    let table = Searched::of(slots);
    if families::walks(table.slots.geometry()) {
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
fn walk(slots: &Slots, newcomer: Hashed<'_>, round: u64) -> Option<MovePath> {
    let mut path = MovePath::new();
    let mut random = mix(newcomer.first().0 ^ round);
    let mut pick = |n: usize| {
        random = mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        reduce(random, n as u64) as usize
    };
    let mut evicted = Key::new();
    while path.len() < STEPS_MAX {
        let mover = if path.is_empty() { newcomer } else { slots.geometry().hashed(&evicted) };
        let onward = destinations(slots.geometry(), mover, path.last().copied());
        let all = || onward.iter().flat_map(|d| d.window.iter());
        let free: SmallVec<[SlotIx; 4]> = all().filter(|&slot| slots.may_take(slot)).collect();
        if !free.is_empty() {
            path.push(if path.is_empty() { free[0] } else { free[pick(free.len())] });
            return Some(path);
        }
        let evictable: SmallVec<[SlotIx; 4]> = all()
            .filter(|slot| has_room_for_ghost(slots.header(*slot).ghost) && !path.contains(slot))
            .filter(|&slot| !slots.is_held(slot))
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
struct Searched<'a> {
    slots: &'a Slots,
}

impl<'a> Searched<'a> {
    fn of(slots: &'a Slots) -> Searched<'a> {
        Searched { slots }
    }

    /// The note of a slot. Looks at the slot if there is none. `None` while the slot is being written.
    fn note(self, slot: SlotIx) -> Option<Note> {
        match self.slots.notes().of(slot) {
            Note::Unknown => self.look(slot),
            known => Some(known),
        }
    }

    #[cold]
    fn look(self, slot: SlotIx) -> Option<Note> {
        let (header, key) = self.slots.peek_hash(slot)?;
        if header.is_free() {
            return Some(Note::Free);
        }
        if !has_room_for_ghost(header.ghost) {
            return Some(Note::Stuck);
        }
        let geometry = self.slots.geometry();
        let note = Note::of_key(geometry, slot, key);
        self.slots.notes().learn(slot, note);
        Some(note)
    }

    /// The first slot of a window that has no key.
    #[inline(always)]
    fn first_free(self, window: Window) -> Option<SlotIx> {
        self.slots.notes().first_free(window, |slot| self.slots.may_take(slot))
    }

    /// Where the key in a slot may go. `None` if it may not be moved, or another thread works there.
    fn destinations(self, slot: SlotIx) -> Option<SmallVec<[Destination; 3]>> {
        // M3: a slot with a ghost cannot give up its occupant. A slot that is being written is passed
        // over.
        let there = self.slots.peek_hash(slot).filter(|(h, _)| has_room_for_ghost(h.ghost) && !h.is_free());
        Some(destinations(self.slots.geometry(), there?.1, Some(slot)))
    }
}

#[derive(Default)]
struct Search {
    /// What was entered, in order.
    entered: Vec<Entered>,
    /// The number of entered slots.
    slots: usize,
    visited: Visited,
}

impl Search {
    fn run(&mut self, table: Searched<'_>, newcomer: Hashed<'_>) -> Option<MovePath> {
        self.entered.clear();
        self.slots = 0;
        self.visited.clear();
        let geometry = table.slots.geometry();
        let (gives_way, home) = (families::gives_way(geometry), geometry.window(0));
        let onward = destinations(geometry, newcomer, None);
        if let Some(path) = self.enter_those(table, NEWCOMER, &onward, false) {
            return Some(path);
        }
        let mut layer = 0;
        loop {
            let leave = |search: &mut Search, step: EnteredSlot, note| match note {
                Note::AtHome(distance) if gives_way.at_home => {
                    search.enter(table, step, Window { first: home_slot(step.slot, distance), ..home })
                }
                Note::Displaced => search.leave(table, step, false),
                _ => None,
            };
            let path = self.leave_each(table, layer..usize::MAX, leave);
            if path.is_some() || self.slots >= SEARCH_MAX {
                return path;
            }
            // The next layer begins where a key of this one would be newly displaced.
            let last = std::mem::replace(&mut layer, self.entered.len());
            if last == 0
                && let Some(path) = self.enter_those(table, NEWCOMER, &onward, true)
            {
                return Some(path);
            }
            if gives_way.displaced {
                let leave = |search: &mut Search, step: EnteredSlot, note| match note {
                    Note::AtHome(_) => search.leave(table, step, true),
                    _ => None,
                };
                let path = self.leave_each(table, last..layer, leave);
                if path.is_some() {
                    return path;
                }
            }
            if self.entered.len() == layer {
                return None;
            }
        }
    }

    /// Leaves the slots of a layer one after the other, including those that are added meanwhile, up to `LAYER_MAX`.
    /// Returns the path if one is found.
    #[inline(always)]
    fn leave_each(
        &mut self,
        table: Searched<'_>,
        layer: Range<usize>,
        leave: impl Fn(&mut Search, EnteredSlot, Note) -> Option<MovePath>,
    ) -> Option<MovePath> {
        let mut left = LAYER_MAX as u32;
        for number in layer {
            let &Entered { first, slots, .. } = self.entered.get(number)?;
            let these = Window { slots: slots.min(left), first, incarnation: 0 };
            for slot in these.iter() {
                if let Some(note) = table.note(slot)
                    && let Some(path) = leave(self, EnteredSlot { slot, entered: number as u32 }, note)
                {
                    return Some(path);
                }
            }
            left -= these.slots;
            if left == 0 {
                break;
            }
        }
        None
    }

    /// Goes on from a slot to the windows in which its key would be newly displaced, or to the other ones.
    #[inline(never)]
    fn leave(&mut self, table: Searched<'_>, from: EnteredSlot, displaces: bool) -> Option<MovePath> {
        let onward = table.destinations(from.slot)?;
        self.enter_those(table, from, &onward, displaces)
    }

    fn enter_those(
        &mut self,
        table: Searched<'_>,
        from: EnteredSlot,
        onward: &[Destination],
        displaces: bool,
    ) -> Option<MovePath> {
        let mut those = onward.iter().filter(|destination| destination.displaces == displaces);
        those.find_map(|destination| self.enter(table, from, destination.window))
    }

    /// Adds the slots of a window to this layer. Returns the path if one of the slots is free.
    #[inline(always)]
    fn enter(&mut self, table: Searched<'_>, from: EnteredSlot, window: Window) -> Option<MovePath> {
        if self.visited.covers(window) {
            return None;
        }
        match self.visited.lengthen(window) {
            Some(new) => self.enter_neighbours(table, from, new),
            None => self.enter_any(table, from, window),
        }
    }

    /// Enters slots one by one. Some of them may have been visited.
    #[inline(never)]
    fn enter_any(&mut self, table: Searched<'_>, from: EnteredSlot, window: Window) -> Option<MovePath> {
        let mut new = self.visited.insert(window);
        while new != 0 {
            let number = new.trailing_zeros();
            let slots = (new >> number).trailing_ones();
            new &= !((u64::MAX >> (64 - slots)) << number);
            let path =
                self.enter_neighbours(table, from, Window { first: window.slot(number), slots, ..window });
            if path.is_some() {
                return path;
            }
        }
        None
    }

    /// Enters slots that are new.
    #[inline(always)]
    fn enter_neighbours(&mut self, table: Searched<'_>, from: EnteredSlot, new: Window) -> Option<MovePath> {
        if let Some(free) = table.first_free(new) {
            return Some(self.path(from, free));
        }
        self.entered.push(Entered { first: new.first, slots: new.slots, from });
        self.slots += new.slots as usize;
        None
    }

    #[inline(never)]
    fn path(&self, mut step: EnteredSlot, end: SlotIx) -> MovePath {
        let mut path = MovePath::new();
        path.push(end);
        while step.entered != NEWCOMER.entered {
            path.push(step.slot);
            step = self.entered[step.entered as usize].from;
        }
        path.reverse();
        path
    }
}

/// A set of slots that is emptied in constant time. Windows of neighbours overlap, so the slots around
/// the newcomer's home are one run. All others are in a table with open addressing, with a bitmap for
/// each group of 64 slots; entries of earlier searches are void.
struct Visited {
    run: Range<u64>,
    entries: Box<[Group]>,
    round: u32,
    /// The number of groups of this search.
    len: usize,
    /// The last neighbours in the table.
    last: Range<u64>,
}

#[derive(Clone, Copy, bytemuck::Zeroable)]
struct Group {
    round: u32,
    number: u64,
    slots: u64,
}

impl Default for Visited {
    fn default() -> Visited {
        // All are void: the memory is untouched.
        Visited {
            run: 0..0,
            entries: bytemuck::zeroed_slice_box(4 * SEARCH_MAX),
            round: 1,
            len: 0,
            last: 0..0,
        }
    }
}

impl Visited {
    fn clear(&mut self) {
        self.len = 0;
        self.run = 0..0;
        self.last = 0..0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            *self = Visited::default();
        }
    }

    /// Whether it is certain that adding this window adds nothing.
    #[inline(always)]
    fn covers(&self, window: Window) -> bool {
        let (first, end) = (window.first.0, window.end());
        self.run.start <= first && end <= self.run.end || self.last.start <= first && end <= self.last.end
    }

    /// Adds the first window, or a window that overlaps the run at one end. Returns the new slots. `None`, without a
    /// change, if it does not overlap so, or has slots that are in the table.
    #[inline(always)]
    fn lengthen(&mut self, window: Window) -> Option<Window> {
        let (first, end) = (window.first.0, window.end());
        let Range { start: from, end: to } = self.run;
        if from == to {
            self.run = first..end;
            return Some(window);
        }
        if end < from || to < first || (first < from) == (to < end) {
            return None;
        }
        let new = if first < from { first..from } else { to..end };
        if self.len > 0 && self.has_any_of(&new) {
            return None;
        }
        self.run = from.min(first)..to.max(end);
        Some(Window { first: SlotIx(new.start), slots: (new.end - new.start) as u32, ..window })
    }

    /// Whether any of these slots, at most 64, is in the table.
    #[inline(never)]
    fn has_any_of(&self, slots: &Range<u64>) -> bool {
        let mut groups = slots.start / 64..=(slots.end - 1) / 64;
        groups.any(|number| {
            let (first, end) = (slots.start.max(64 * number), slots.end.min(64 * (number + 1)));
            let these = u64::MAX >> (64 - (end - first)) << (first - 64 * number);
            self.group(number).is_some_and(|group| group.slots & these != 0)
        })
    }

    /// The entry of a group.
    fn group(&self, number: u64) -> Option<&Group> {
        let mask = self.entries.len() - 1;
        let entries = (mix(number) as usize & mask..).map(|at| &self.entries[at & mask]);
        entries.take_while(|group| group.round == self.round).find(|group| group.number == number)
    }

    /// Adds a window of at most 64 slots. Returns which of them were new: bit 0 is the first slot's.
    fn insert(&mut self, window: Window) -> u64 {
        let (first, end) = (window.first.0, window.end());
        self.last = if first <= self.last.end && self.last.start <= end {
            self.last.start.min(first)..self.last.end.max(end)
        } else {
            first..end
        };
        let all = u64::MAX >> (64 - window.slots);
        let (from, to) = (self.run.start.max(first), self.run.end.min(end));
        let others = if from < to { all & !(u64::MAX >> (64 - (to - from)) << (from - first)) } else { all };
        let (group, shift) = (first / 64, first % 64);
        let mut new = self.insert_into(group, others << shift) >> shift;
        if shift + u64::from(window.slots) > 64 {
            new |= self.insert_into(group + 1, others >> (64 - shift)) << (64 - shift);
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
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::slots::SlotWriter;
    use crate::index::whole::OneSize;
    use crate::layout::hash::Seeds;
    use crate::layout::slot::Content;
    use crate::outcome::PutMode;
    use crate::region::{Backing, Region};

    /// Groups that fall on one entry, the last one, take the first entries, too.
    #[test]
    fn groups_beyond_the_last_entry() {
        let mut visited = Visited::default();
        let last = visited.entries.len() - 1;
        let groups: Vec<u64> = (0..).filter(|&group| mix(group) as usize & last == last).take(3).collect();
        for &group in &groups {
            assert_eq!(visited.insert_into(group, 0b11), 0b11, "group {group}");
        }
        for &group in &groups {
            assert_eq!(visited.insert_into(group, 0b110), 0b100, "group {group}");
        }
    }

    fn index(layout: &str, slots: u64) -> OneSize {
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
        OneSize::create(region, geometry, Clock::manual()).unwrap()
    }

    fn displaced_by(slots: &Slots, key: &[u8], at: Option<SlotIx>, to: SlotIx) -> usize {
        let key = slots.geometry().hashed(key);
        let onward = destinations(slots.geometry(), key, at);
        assert!(onward.iter().any(|d| d.window.contains(to)), "a step leads into a window of the key");
        let is_home = |slot| slots.geometry().primary(key).contains(slot);
        usize::from(at.is_none_or(is_home) && !is_home(to))
    }

    /// The length of the shortest path that displaces no key, found from neighbour to neighbour.
    fn shortest(slots: &Slots, key: &[u8]) -> Option<usize> {
        let geometry = slots.geometry();
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
    fn least_displaced(slots: &Slots, key: &[u8]) -> Option<usize> {
        let geometry = slots.geometry();
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
                let path = find_path(index.slots(), index.geometry().hashed(&key));
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
                    index.homes().grace().clock().advance(3 * index.geometry().grace());
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
                for slot in (0..index.geometry().main_slots()).map(SlotIx) {
                    let before = index.slots().header(slot);
                    if before.ghost != 0 && !before.is_free() {
                        assert!(index.remove(&index.slots().read(slot).key).unwrap());
                        assert_eq!(index.slots().header(slot).ghost, before.ghost, "{layout}, {slot:?}");
                        ghosts += 1;
                    }
                }
                index.homes().grace().clock().advance(3 * index.geometry().grace());
                index.tidy();
            }
            assert!(ghosts > 3, "{layout}: {ghosts}");
        }
    }

    /// The search of a table without a free slot ends at its bound.
    #[test]
    fn a_search_ends_at_its_bound() {
        let index = index("windowed:8", 6000);
        let geometry = index.geometry();
        let mut numbers = 0u64..;
        for slot in (0..geometry.main_slots()).map(SlotIx) {
            let at_home = |n: &u64| geometry.primary(geometry.hashed(&n.to_le_bytes())).contains(slot);
            let key = numbers.find(at_home).unwrap().to_le_bytes();
            SlotWriter::new(index.region(), geometry)
                .write(slot, &Content { key: &key, ..Content::default() });
        }
        let mut search = Search::default();
        index.slots().notes().forget(&(0..geometry.main_slots()).map(SlotIx).collect::<Vec<_>>());
        assert!(search.run(Searched::of(index.slots()), geometry.hashed(b"newcomer")).is_none());
        // What one layer adds at the most while the bound is not yet reached.
        let layer = LAYER_MAX * geometry.layout().window_slots() as usize;
        let entered = SEARCH_MAX..SEARCH_MAX + layer;
        assert!(entered.contains(&search.slots), "{} slots entered", search.slots);
        let listed: u32 = search.entered.iter().map(|entered| entered.slots).sum();
        assert_eq!(listed as usize, search.slots);
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

    /// In whichever order windows come, near and far, each slot is new once.
    #[test]
    fn each_slot_is_new_once() {
        let (mut visited, mut random) = (Visited::default(), 1);
        let mut pick = |n| {
            random = mix(random);
            random % n
        };
        for _ in 0..2_000 {
            visited.clear();
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..20 {
                let first = 60 * pick(3) + pick(20);
                let window = Window { first: SlotIx(first), slots: 1 + pick(64) as u32, incarnation: 0 };
                let new = match visited.lengthen(window) {
                    Some(new) => u64::MAX >> (64 - new.slots) << (new.first.0 - first),
                    None => visited.insert(window),
                };
                for (number, SlotIx(slot)) in window.iter().enumerate() {
                    assert_eq!(new >> number & 1 == 1, seen.insert(slot), "{slot} of {window:?}");
                }
                assert_eq!(new & !(u64::MAX >> (64 - window.slots)), 0, "no other slot");
                assert!(visited.covers(window));
            }
        }
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
