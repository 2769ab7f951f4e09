//! A GET's way through the directory of a table that grows: which segment it looks in, and when it
//! asks for the directory entry again. Part of the GET machine (`get`), and as pure.

use crate::faults::{Rule, broken, kept};
use crate::layout::geometry::{Geometry, Window};
use crate::layout::segment::{DirectoryEntry, HomeState, Named, Pending, entry_window, low};

/// What a GET knows of its key's segment.
#[derive(Debug)]
pub(crate) struct SegmentRoute {
    /// The key's directory hash, and how many bits of it the entry is looked up by.
    directory: u32,
    bits: u32,
    /// What the next READ is for.
    reads: Reads,
    /// The entry that the pass goes by, and the segment that it is in now.
    entry: Option<DirectoryEntry>,
    at: DirectoryEntry,
    /// The entry was READ in this GET, and the pass's mark was taken before that READ.
    asked: bool,
    /// The depth of a parent that does not count: it stays for the child that was left.
    lingers: Option<u32>,
    /// The entry was READ in this GET.
    was_read: bool,
    /// The next READ begins a pass.
    pub begins: bool,
    /// The home of the last pass was split deeper than its entry.
    wants_child: bool,
    /// Misses rest on the counters of begun moves (E8), not on time (E9).
    pub by_counter: bool,
}

/// What a READ is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Window,
    /// The window in the pending child, before the first pass (G9).
    Ahead,
    Entry,
    /// The entry again, at the end of a pass on shm.
    EntryAgain,
}

/// What an entry tells.
pub(crate) enum EntrySays {
    /// The directory uses more bits. READ this entry.
    Deeper(Window),
    /// It has not changed since the pass began.
    Same,
    Changed,
    /// A pass in this segment.
    Go(Named),
}

/// Where to look next.
pub(crate) enum Onward {
    /// READ the entry, and make a new pass.
    Ask,
    /// In the parent, as a part of this pass.
    Parent(Named),
    /// In the child, in a new pass.
    Child(Named),
    /// Nowhere else: the pass is judged.
    Judge,
}

/// In place of an entry, before there is one.
const NONE: DirectoryEntry =
    DirectoryEntry { segment: Named { memory: 0, incarnation: 0 }, depth: 0, pending: Pending::Nothing };

impl SegmentRoute {
    /// The way of a key with this directory hash. Also returns the READ of its entry.
    pub fn new(
        directory: u32,
        known: Option<DirectoryEntry>,
        bits: u32,
        by_counter: bool,
    ) -> (SegmentRoute, Window) {
        let route = SegmentRoute {
            directory,
            bits: known.map_or(bits, |entry| entry.depth.max(bits)),
            reads: if known.is_some() { Reads::Window } else { Reads::Entry },
            entry: known,
            at: known.unwrap_or(NONE),
            asked: false,
            lingers: None,
            was_read: false,
            begins: true,
            wants_child: false,
            by_counter,
        };
        let window = route.entry_window();
        (route, window)
    }

    fn entry_window(&self) -> Window {
        entry_window(self.directory & low(self.bits))
    }

    /// What the next READ is for.
    #[inline(always)]
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// The pending child, if the key is one of those that go there. Then the first READ is of that (G9).
    pub fn look_ahead(&mut self) -> Option<Named> {
        let (child, _) = self.goes_to()?;
        self.reads = Reads::Ahead;
        Some(child)
    }

    /// The READ ahead has landed. Without a hit, the first pass begins.
    pub fn has_looked_ahead(&mut self) {
        self.reads = Reads::Window;
        self.begins = true;
    }

    /// The pending child of the entry, and the entry's depth, if the key is one of those that go there. `None` by the
    /// counter, which goes by no remembered entry.
    pub fn goes_to(&self) -> Option<(Named, u32)> {
        let DirectoryEntry { depth, pending, .. } = self.entry.filter(|_| !self.by_counter)?;
        let Pending::Child(child) = pending else { return None };
        (self.directory >> depth & 1 == 1).then_some((child, depth))
    }

    /// Whether the pass is in this segment.
    pub fn is_in(&self, segment: Named) -> bool {
        self.at.segment == segment
    }

    pub fn was_asked(&self) -> bool {
        self.asked
    }

    /// The entry, if it was READ in this GET.
    pub fn learned(&self) -> Option<(u32, DirectoryEntry)> {
        self.entry.filter(|_| self.was_read).map(|entry| (self.directory, entry))
    }

    /// Whether the pass goes by an entry that names no pair: the key is in its segment, or nowhere (E8).
    pub fn is_alone(&self) -> bool {
        self.entry.is_some_and(|entry| entry.pending == Pending::Nothing)
    }

    /// The window of the key's segment.
    pub fn place(&self, geometry: &Geometry, window: Window) -> Window {
        let Named { memory, incarnation } = self.at.segment;
        window.of_segment(geometry.segment_first(memory), incarnation)
    }

    /// Asks for the entry. The next pass is in the segment that it names.
    pub fn ask(&mut self) -> Window {
        self.reads = Reads::Entry;
        self.entry_window()
    }

    /// Asks for the entry once more, at the end of a pass.
    pub fn ask_again(&mut self) -> Window {
        self.reads = Reads::EntryAgain;
        self.entry_window()
    }

    /// Takes in the entry.
    pub fn take(&mut self, entry: DirectoryEntry) -> EntrySays {
        if entry.depth > self.bits {
            self.bits = entry.depth;
            return EntrySays::Deeper(self.entry_window());
        }
        let before = self.entry.replace(entry);
        self.was_read = true;
        let was_again = self.reads == Reads::EntryAgain;
        self.reads = Reads::Window;
        if was_again {
            let is_same = kept(Rule::EntryAgain, || before == Some(entry));
            return if is_same { EntrySays::Same } else { EntrySays::Changed };
        }
        self.at = entry;
        (self.asked, self.lingers) = (true, None);
        EntrySays::Go(entry.segment)
    }

    /// The child, if the rule is broken that a split home is looked at once more before.
    pub fn child_at_once(&mut self) -> Option<Named> {
        match self.at.pending {
            Pending::Child(child) if broken(Rule::AskFirst) && self.wants_child => {
                self.go(child, self.at.depth + 1);
                self.asked = false;
                Some(child)
            }
            _ => None,
        }
    }

    fn go(&mut self, segment: Named, depth: u32) {
        self.at = DirectoryEntry { segment, depth, pending: Pending::Nothing };
    }

    /// The other segment of the pair, if the home says that the key may be there. Once in a pass.
    pub fn other_side(&mut self, home: HomeState) -> Option<Named> {
        let may_be_there = home.has_gone(self.at.depth, self.directory);
        match self.at.pending {
            Pending::Child(other) | Pending::Parent(other) if may_be_there => {
                self.go(other, self.at.depth);
                Some(other)
            }
            _ => None,
        }
    }

    /// Where to look after a pass that found nothing.
    pub fn next(&mut self, home: HomeState, in_time: bool) -> Onward {
        let DirectoryEntry { depth, pending, .. } = self.at;
        let lingers = !home.merged && self.lingers == Some(home.depth);
        if !lingers && home.has_gone(depth, self.directory) {
            // No trace of a merge is that deep: the entry is old, and so is what is pending.
            let is_old = !home.merged && home.depth > depth + 1 && !broken(Rule::OldChild);
            self.wants_child = !home.merged && !self.asked;
            if !self.asked || !in_time || is_old {
                return Onward::Ask;
            }
            match (home.merged, pending) {
                // The home has gone to the parent, whose depth for this child does not count.
                (true, Pending::Parent(parent)) => {
                    self.lingers = Some(depth);
                    self.go(parent, depth.saturating_sub(1));
                    return Onward::Parent(parent);
                }
                (true, _) => return Onward::Ask,
                (false, Pending::Child(child)) => {
                    self.go(child, depth + 1);
                    self.asked = false;
                    return Onward::Child(child);
                }
                // The entry knows of no child: the depth is a trace of a merge.
                (false, _) => {}
            }
        }
        Onward::Judge
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(depth: u32, pending: Pending) -> DirectoryEntry {
        DirectoryEntry { depth, pending, ..NONE }
    }

    fn split(depth: u32) -> HomeState {
        HomeState { depth, merged: false }
    }

    /// A key stays in a segment only if each split since its entry has left it there.
    #[test]
    fn every_split_since_the_entry_counts() {
        for directory in 0..16 {
            let known = entry(1, Pending::Nothing);
            let (mut route, _) = SegmentRoute::new(directory, Some(known), 1, false);
            let stays = directory >> 1 & 7 == 0;
            assert_eq!(matches!(route.next(split(4), true), Onward::Judge), stays, "{directory:#b}");
        }
    }

    /// What a late pass says of a home leads to the entry, and only then to the child that is pending.
    #[test]
    fn a_late_pass_leads_nowhere() {
        let child = Named { memory: 1, incarnation: 2 };
        let (mut route, _) = SegmentRoute::new(1, None, 0, false);
        assert!(matches!(route.take(entry(0, Pending::Child(child))), EntrySays::Go(_)));
        assert!(matches!(route.next(split(1), false), Onward::Ask));
        assert!(matches!(route.take(entry(0, Pending::Child(child))), EntrySays::Go(_)));
        assert!(matches!(route.next(split(1), true), Onward::Child(named) if named == child));
    }
}
