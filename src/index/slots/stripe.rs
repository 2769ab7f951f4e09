//! The data that a stripe's lock guards besides its slots (L2): the register of the displaced keys of its homes, and
//! what waits at these homes.

use crate::faults::{Rule, obey};
use crate::layout::chain::Block;
use crate::layout::geometry::SlotIx;
use crate::region::Region;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Range;

/// Words of a displaced key in a region.
pub(crate) const ENTRY_WORDS: usize = 2;

/// A displaced key, or the filter bit of one that was: it lingers for at least 2T (M5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Displaced {
    /// The key's bit in its home's filter.
    pub bit: u32,
    /// Where the key is, or how long its bit lingers.
    pub place: DisplacedAt,
}

/// Where a displaced key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisplacedAt {
    /// In this slot.
    At(SlotIx),
    /// The key has left. Its filter bit may be cleared at this time.
    Lingers {
        /// Nanoseconds on the server's clock.
        until_ns: u64,
    },
}

/// The data that a stripe's lock guards besides its slots.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    displaced: FxHashMap<u64, SmallVec<[Displaced; 2]>>,
    /// Empty linked blocks of the stripe's homes, and when each may be unlinked.
    empty_blocks: FxHashMap<Block, u64>,
    /// Homes whose headers are still those of a merge, and when they may get their final state.
    settling: FxHashMap<u64, u64>,
    /// Words of the region with displaced keys that another server has left (T7).
    unread: Range<usize>,
}

impl Stripe {
    /// Displaced keys of `home`.
    pub fn displaced(&self, home: u64) -> &[Displaced] {
        self.displaced.get(&home).map_or(&[], |entries| entries)
    }

    /// The slots of the displaced keys of `home`.
    pub fn displaced_slots(&self, home: u64) -> SmallVec<[SlotIx; 4]> {
        let there = |entry: &Displaced| match entry.place {
            DisplacedAt::At(slot) => Some(slot),
            DisplacedAt::Lingers { .. } => None,
        };
        self.displaced(home).iter().filter_map(there).collect()
    }

    /// The filter that follows from the home's entries.
    pub fn filter(&self, home: u64) -> u32 {
        self.displaced(home).iter().fold(0, |filter, entry| filter | entry.bit)
    }

    /// Adds a displaced key.
    pub fn add(&mut self, home: u64, entry: Displaced) {
        self.displaced.entry(home).or_default().push(entry);
    }

    /// Notes that the key of `home` with this bit went from `from` to `to`. The slot alone does not
    /// name the key: along a path, one key of a home may leave a slot and another may enter it.
    pub fn change(&mut self, home: u64, bit: u32, from: SlotIx, to: DisplacedAt) {
        let was = Displaced { bit, place: DisplacedAt::At(from) };
        let entries = self.displaced.get_mut(&home);
        let entry = entries.and_then(|all| all.iter_mut().find(|e| **e == was));
        debug_assert!(entry.is_some(), "no displaced key of home {home} at {from:?}");
        if let Some(entry) = entry {
            entry.place = to;
        }
    }

    /// Forgets entries of `home` that have lingered long enough.
    pub fn expire(&mut self, home: u64, now_ns: u64) {
        if let Some(entries) = self.displaced.get_mut(&home) {
            entries.retain(|e| !matches!(e.place, DisplacedAt::Lingers { until_ns } if until_ns <= now_ns));
            if entries.is_empty() {
                self.displaced.remove(&home);
            }
        }
    }

    /// Displaced keys: home, filter bit and slot of each, in this order.
    pub fn all_displaced(&self) -> Vec<(u64, u32, SlotIx)> {
        let there = |home, entry: &Displaced| match entry.place {
            DisplacedAt::At(slot) => Some((home, entry.bit, slot)),
            DisplacedAt::Lingers { .. } => None,
        };
        let all = self.displaced.iter();
        let mut all: Vec<_> =
            all.flat_map(|(&home, of)| of.iter().filter_map(move |e| there(home, e))).collect();
        all.sort_unstable();
        all
    }

    /// For each home with entries, how many displaced keys it has.
    pub fn census(&self) -> impl Iterator<Item = usize> {
        self.displaced
            .values()
            .map(|entries| entries.iter().filter(|e| matches!(e.place, DisplacedAt::At(_))).count())
    }

    /// The number of displaced keys.
    pub fn displaced_count(&self) -> usize {
        self.census().sum::<usize>() + self.unread.len() / ENTRY_WORDS
    }

    /// Notes that a linked block has become empty, and may be unlinked at this time.
    pub fn note_empty(&mut self, block: Block, due_ns: u64) {
        self.empty_blocks.insert(block, due_ns);
    }

    /// Whether a block has been empty since this time was noted.
    pub fn is_empty_since(&self, block: Block, due_ns: u64) -> bool {
        self.empty_blocks.get(&block) == Some(&due_ns)
    }

    /// Notes that a block is used again, or unlinked.
    pub fn forget_empty(&mut self, block: Block) {
        self.empty_blocks.remove(&block);
    }

    /// Notes when the header of a home may get its final state. Returns whether the home had no time yet.
    pub fn settle_at(&mut self, home: u64, due_ns: u64) -> bool {
        self.settling.insert(home, due_ns).is_none()
    }

    /// Whether the home's time is this one.
    pub fn settles_at(&self, home: u64, due_ns: u64) -> bool {
        self.settling.get(&home) == Some(&due_ns)
    }

    /// Notes that the header of a home has its final state. Returns whether it had not before.
    pub fn settled(&mut self, home: u64) -> bool {
        self.settling.remove(&home).is_some()
    }

    /// Notes that these words of the region have displaced keys of the stripe's homes. They are read later.
    pub fn leave_unread(&mut self, words: Range<usize>) {
        self.unread = words;
    }

    /// Reads what another server has left, when the stripe is first used.
    #[inline]
    pub fn read_left(&mut self, region: &Region) {
        if !self.unread.is_empty() {
            self.read_words(region);
        }
    }

    #[cold]
    fn read_words(&mut self, region: &Region) {
        let unread = std::mem::take(&mut self.unread);
        obey(Rule::HandoverRead, || {
            entries_in(region, unread).for_each(|(home, displaced)| self.add(home, displaced));
        });
    }

    /// The empty linked blocks, with their times.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn empty_blocks(&self) -> impl Iterator<Item = (Block, u64)> {
        self.empty_blocks.iter().map(|(&block, &due_ns)| (block, due_ns))
    }
}

/// The displaced keys in these words of a region, with their homes.
pub(crate) fn entries_in(region: &Region, words: Range<usize>) -> impl Iterator<Item = (u64, Displaced)> {
    words.step_by(ENTRY_WORDS).map(|word| {
        let (slot, home) = (region.load(word), region.load(word + 1));
        (home >> 8, Displaced { bit: 1 << (home & 31), place: DisplacedAt::At(SlotIx(slot)) })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One key of a home leaves a slot and another key of it enters that slot. Each keeps its own
    /// bit.
    #[test]
    fn the_register_tells_keys_apart() {
        let mut stripe = Stripe::default();
        let at = |slot| DisplacedAt::At(SlotIx(slot));
        stripe.add(3, Displaced { bit: 1, place: at(10) });
        stripe.add(3, Displaced { bit: 4, place: at(10) });
        stripe.add(8, Displaced { bit: 2, place: at(10) });
        stripe.add(8, Displaced { bit: 2, place: at(13) });
        stripe.change(3, 4, SlotIx(10), at(11));
        stripe.change(3, 1, SlotIx(10), DisplacedAt::Lingers { until_ns: 50 });
        assert_eq!((stripe.filter(3), stripe.filter(8), stripe.filter(4)), (5, 2, 0));
        assert_eq!(stripe.displaced(3)[1], Displaced { bit: 4, place: at(11) });
        stripe.expire(3, 49);
        assert_eq!(stripe.filter(3), 5, "one nanosecond before");
        stripe.expire(3, 50);
        assert_eq!(stripe.filter(3), 4);
        stripe.change(3, 4, SlotIx(11), DisplacedAt::Lingers { until_ns: 60 });
        stripe.expire(3, 70);
        assert_eq!(stripe.census().collect::<Vec<_>>(), [2], "nothing is kept of a home without entries");
    }
}
