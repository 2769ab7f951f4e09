//! Segments give memory to values (Z5), in a table that evicts and has all the memory that it may have.
//!
//! ```text
//! two segments are chosen    that a merge can make one
//! entries of theirs leave    some at a time, by the policy, until one has room for those of both
//! they are merged            as any two; then the memory of one goes back to the system
//! ```
//!
//! Each call does a bounded part of this. Meanwhile no segment takes memory: `Budget` keeps what becomes free.

use super::Growth;
use super::directory::entry_word;
use super::givers::{ChosenPair, Givers};
use super::live::UnusedMemory;
use super::pairs::Driven;
use crate::base::sync::{lock, try_lock};
use crate::faults::{Rule, kept};
use crate::index::segment::Segment;
use crate::index::share::PairRole;
use crate::layout::hash::First;
use crate::layout::segment::{self, low};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Segments that are looked at to choose two.
const LOOKED_AT: usize = 64;
/// Two segments are merged when both together have fewer keys than this many hundredths of the design load of one. So
/// the parent has room for keys that come meanwhile, and for those of the child.
const GIVE_AT: u64 = 75;
/// If the parent has no room, the next try is with this much less.
const LESS: u64 = 15;
/// After this many choices of which no entry may leave, the table counts as one where none may.
const VAIN_MAX: u32 = 16;
/// How long memory is kept for values after the last request.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The state of giving memory of segments to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Giving {
    /// There is memory for a block.
    Done,
    /// There is more to do.
    On,
    /// Another thread, or time, has to go on first.
    Waits,
    /// No segment can give memory, or no entry may leave.
    Nothing,
}

impl Growth {
    /// Does a part of giving memory of segments to a block of values. `evict` evicts the next entry of the policy that
    /// has this hash, and returns whether it did. It is called up to `most` times.
    pub fn give(&self, most: u32, evict: &mut dyn FnMut(First) -> bool) -> Giving {
        let block_bytes = self.geometry.heap().block_bytes;
        if self.budget.has_for_values(block_bytes) {
            return Giving::Done;
        }
        let Some(mut givers) = try_lock(&self.givers) else { return Giving::Waits };
        self.budget.want(block_bytes, self.grace.clock().now_ns() + KEPT_FOR.as_nanos() as u64);
        if let Some(giving) = self.give_unused() {
            return giving;
        }
        // Ghosts hold up a merge.
        self.reap(self.pace.homes_per_tidy as usize);
        let guard = epoch::pin();
        let Some(chosen) = givers.chosen.or_else(|| self.choose(&mut givers, &guard)) else {
            // Splits and merges under way end first.
            let is_busy =
                self.drive_oldest(&guard, self.pace.homes_per_tidy) || self.under_way.load(Relaxed) > 0;
            return if is_busy { Giving::Waits } else { Giving::Nothing };
        };
        givers.chosen = Some(chosen);
        self.give_chosen(&mut givers, chosen, &guard, most, evict)
    }

    /// Whether values wait for memory of segments. Values that have waited for too long do not count.
    pub fn is_to_give(&self) -> bool {
        self.budget.wants(self.grace.clock().now_ns())
            && !self.budget.has_for_values(self.geometry.heap().block_bytes)
    }

    /// Gives memory that no segment has back to the system.
    fn give_unused(&self) -> Option<Giving> {
        if let Some(segment) = self.stock.take_any() {
            lock(&self.memory).keep(UnusedMemory::of(segment));
        }
        let (unused, is_coming) = {
            let mut memory = lock(&self.memory);
            (memory.take_unused(), memory.coming > 0)
        };
        if let Some(memory) = unused {
            let bytes = self.region.give_back(self.bytes_of(memory));
            lock(&self.memory).returned(memory, bytes);
            return Some(if bytes.is_some() { Giving::On } else { Giving::Nothing });
        }
        is_coming.then(|| {
            // The memory comes when no thread uses the segment any more.
            epoch::pin().flush();
            Giving::Waits
        })
    }

    /// The two chosen segments, which are in no pair. `None` if they are gone.
    fn both<'g>(&'g self, chosen: ChosenPair, guard: &'g Guard) -> Option<[&'g Segment; 2]> {
        let ChosenPair { prefix, depth, .. } = chosen;
        let whole = |prefix: u32| {
            let entry = entry_word(&self.region, &self.geometry, prefix);
            self.live.get(segment::memory(entry), guard).filter(|segment| {
                let share = segment.share().get();
                (share.prefix, share.depth, share.role) == (prefix, depth, PairRole::Whole)
            })
        };
        Some([whole(prefix)?, whole(prefix | 1 << (depth - 1))?])
    }

    /// Chooses two segments with few keys.
    fn choose(&self, givers: &mut Givers, guard: &Guard) -> Option<ChosenPair> {
        let memories = self.geometry.segments_max() as u32;
        let from = givers.hand;
        let numbers = (0..memories).map(|n| (from + n) % memories);
        let live = numbers.filter_map(|memory| self.live.get(memory, guard)).take(LOOKED_AT);
        let pairs = live.filter_map(|segment| {
            givers.hand = (segment.memory() + 1) % memories;
            let share = segment.share().get();
            let depth = share.depth;
            let prefix = share.prefix & low(depth.checked_sub(1)?);
            let pair = ChosenPair { prefix, depth, at: GIVE_AT, is_merging: false };
            let [one, other] = self.both(pair, guard)?;
            Some((one.len() + other.len(), pair))
        });
        pairs.min_by_key(|&(keys, _)| keys).map(|(_, pair)| pair)
    }

    fn give_chosen(
        &self,
        givers: &mut Givers,
        chosen: ChosenPair,
        guard: &Guard,
        most: u32,
        evict: &mut dyn FnMut(First) -> bool,
    ) -> Giving {
        let Some([one, other]) = self.both(chosen, guard) else {
            return self.drive_chosen(givers, chosen, guard);
        };
        let keys_max = self.share_of_design(chosen.at);
        if chosen.is_merging {
            // The merge was given up: the parent had no room.
            let at = chosen.at.saturating_sub(LESS).max(LESS);
            givers.chosen = Some(ChosenPair { at, is_merging: false, ..chosen });
            return Giving::On;
        }
        if one.len() + other.len() < keys_max {
            if !self.begin_merge(one, guard, keys_max) {
                return Giving::Waits;
            }
            givers.chosen = Some(ChosenPair { is_merging: true, ..chosen });
            return self.drive_chosen(givers, chosen, guard);
        }
        // Policies have the keys whose directory hashes end alike.
        let mut gone = 0;
        for _ in 0..most {
            givers.part = givers.part.wrapping_add(1);
            let directory = chosen.prefix | givers.part << (chosen.depth - 1);
            gone += u32::from(kept(Rule::GiveSegment, || evict(First::of_directory(directory))));
        }
        if gone > 0 {
            givers.vain = 0;
            return Giving::On;
        }
        // Other segments may have entries that may leave.
        givers.chosen = None;
        givers.vain = (givers.vain + 1) % VAIN_MAX;
        if givers.vain == 0 { Giving::Nothing } else { Giving::On }
    }

    /// Drives the merge of the chosen two.
    fn drive_chosen(&self, givers: &mut Givers, chosen: ChosenPair, guard: &Guard) -> Giving {
        let entry = entry_word(&self.region, &self.geometry, chosen.prefix);
        let segment = self.live.get(segment::memory(entry), guard);
        let Some(pair) = segment.and_then(|segment| self.pair_of(segment)) else {
            // The merge has ended, or other threads have split or merged the segments.
            givers.chosen = None;
            return Giving::On;
        };
        self.urge(&pair);
        match self.drive(&pair, self.pace.homes_per_tidy, guard) {
            Driven::On | Driven::Ended => Giving::On,
            Driven::Waits | Driven::Taken => Giving::Waits,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, Evict, TableSize};
    use crate::index::{Index, whole::Table};
    use crate::layout::hash::Seeds;
    use crate::outcome::PutMode;
    use crate::region::Region;
    use std::collections::BTreeMap;

    const SECOND: Duration = Duration::from_secs(1);

    fn index(bytes_max: u64, segment_slots: u64) -> (Index, Clock) {
        let config = Config {
            size: TableSize::Growing { bytes_max, segment_slots: Some(segment_slots) },
            key_max: 8,
            value_max: 70_000,
            inline_max: Some(20),
            grace: Duration::from_micros(200),
            seeds: Some(Seeds::from_number(5)),
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let index = Index::create(Region::private(geometry.region_bytes()), geometry, clock.clone()).unwrap();
        (index.with_eviction(Evict::S3Fifo).unwrap(), clock)
    }

    fn growth(index: &Index) -> &Growth {
        match index.table() {
            Table::Many(growth) => growth,
            Table::One(_) => unreachable!("it grows"),
        }
    }

    /// Fills a table of some segments, none of which is in a pair.
    fn filled(keys: u64) -> (Index, Clock) {
        let (index, clock) = index(8 << 20, 256);
        (0..keys).for_each(|n| assert!(index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_ok()));
        for _ in 0..10_000 {
            let growth = index.growth();
            if growth.splitting + growth.merging == 0 {
                break;
            }
            clock.advance(Duration::from_millis(1));
            index.tidy();
        }
        (index, clock)
    }

    /// All pairs that a merge can make one, by prefix and depth, with their keys.
    fn pairs(growth: &Growth, guard: &Guard) -> BTreeMap<(u32, u32), u64> {
        let memories = 0..growth.geometry.segments_max() as u32;
        let live = memories.filter_map(|memory| growth.live.get(memory, guard));
        let mut all = BTreeMap::new();
        for share in live.map(|segment| segment.share().get()).filter(|share| share.depth > 0) {
            let (prefix, depth) = (share.prefix & low(share.depth - 1), share.depth);
            let pair = ChosenPair { prefix, depth, at: GIVE_AT, is_merging: false };
            if let Some([one, other]) = growth.both(pair, guard) {
                all.insert((prefix, depth), one.len() + other.len());
            }
        }
        all
    }

    /// Of all pairs of segments, those two give that have the fewest keys: so the fewest leave.
    #[test]
    fn those_with_the_fewest_keys_give() {
        let guard = epoch::pin();
        let count = pairs(growth(&filled(4_000).0), &guard).len();
        assert!(count >= 3, "{count} pairs");
        for nth in 0..count {
            let (index, _) = filled(4_000);
            let growth = growth(&index);
            let (&(prefix, depth), _) = pairs(growth, &guard).iter().nth(nth).unwrap();
            // Some of the keys of this pair leave.
            let is_its = |n: &u64| {
                let directory = index.geometry().hashed(&n.to_le_bytes()).first().directory();
                directory & low(depth - 1) == prefix
            };
            let its: Vec<u64> = (0..4_000).filter(is_its).collect();
            for n in &its[..its.len() / 4] {
                assert_eq!(index.remove(&n.to_le_bytes()), Ok(true));
            }
            let keys = pairs(growth, &guard);
            let fewest = keys.values().min();
            for hand in 0..growth.geometry.segments_max() as u32 {
                let mut givers = Givers { hand, ..Givers::default() };
                let chosen = growth.choose(&mut givers, &guard).unwrap();
                assert_eq!(keys.get(&(chosen.prefix, chosen.depth)), fewest, "{nth}, from {hand}: {keys:?}");
            }
        }
    }

    /// Two segments of which no entry may leave make room for others to be chosen; when that was so for [`VAIN_MAX`], nothing
    /// can be given. One that leaves begins the count again.
    #[test]
    fn others_are_chosen_where_none_may_leave() {
        let (index, _) = filled(4_000);
        let (growth, guard) = (growth(&index), epoch::pin());
        let all: Vec<_> = pairs(growth, &guard).into_keys().collect();
        let mut givers = Givers::default();
        let mut give = |nth: u32, goes: bool| {
            let (prefix, depth) = all[nth as usize % all.len()];
            let chosen = ChosenPair { prefix, depth, at: 0, is_merging: false };
            givers.chosen = Some(chosen);
            let giving = growth.give_chosen(&mut givers, chosen, &guard, 4, &mut |by| {
                assert_eq!(by.directory() & low(depth - 1), prefix, "of these two");
                goes
            });
            (giving, givers.chosen.is_some())
        };
        for round in 0..3 {
            for nth in 1..VAIN_MAX - round {
                assert_eq!(give(nth, false), (Giving::On, false), "{round} {nth}");
            }
            assert_eq!(give(0, true), (Giving::On, true), "one has left, and they go on");
        }
        for nth in 1..VAIN_MAX {
            assert_eq!(give(nth, false), (Giving::On, false), "{nth}");
        }
        assert_eq!(give(0, false), (Giving::Nothing, false));
        assert_eq!(give(1, false), (Giving::On, false), "and from the beginning");
    }

    /// A merge that was given up is tried again with fewer keys each time, down to some; one that has ended, or that others have
    /// begun, is no choice any more.
    #[test]
    fn a_merge_that_was_given_up_waits_for_fewer_keys() {
        let (index, _) = filled(4_000);
        let (growth, guard) = (growth(&index), epoch::pin());
        let (&(prefix, depth), _) = pairs(growth, &guard).first_key_value().unwrap();
        let mut givers = Givers::default();
        let (mut at, mut seen) = (GIVE_AT, Vec::new());
        for _ in 0..7 {
            let chosen = ChosenPair { prefix, depth, at, is_merging: true };
            assert_eq!(growth.give_chosen(&mut givers, chosen, &guard, 4, &mut |_| false), Giving::On);
            let next = givers.chosen.take().unwrap();
            assert!(!next.is_merging && (next.prefix, next.depth) == (prefix, depth));
            at = next.at;
            seen.push(at);
        }
        assert_eq!(seen, [60, 45, 30, 15, 15, 15, 15]);
        // Of another depth there are no two segments.
        let chosen = ChosenPair { prefix, depth: depth + 3, at, is_merging: true };
        givers.chosen = Some(chosen);
        assert_eq!(growth.give_chosen(&mut givers, chosen, &guard, 4, &mut |_| false), Giving::On);
        assert!(givers.chosen.is_none());
    }

    /// Values that wait for memory keep what becomes free from segments, for a while after they have asked last; and no longer than
    /// until they have it.
    #[test]
    fn memory_is_kept_for_values_that_wait() {
        let (index, clock) = index(4 << 20, 4 << 10);
        let mut n = 0u64;
        while growth(&index).budget.has_for_values(growth(&index).geometry.heap().block_bytes) && n < 200_000
        {
            n += 1;
            let _ = index.put(&n.to_le_bytes(), b"", PutMode::Insert);
            clock.advance(Duration::from_micros(20));
            index.tidy();
        }
        let growth = growth(&index);
        let block = growth.geometry.heap().block_bytes;
        assert!(!growth.budget.has_for_values(block), "{n} keys");
        let wants = || growth.budget.wants(clock.now_ns());
        assert!(!growth.is_to_give() && !wants(), "nobody waits");
        assert_ne!(growth.give(0, &mut |_| false), Giving::Done);
        assert!(wants());
        clock.advance(SECOND - Duration::from_millis(1));
        assert!(wants() && !growth.budget.take(block), "segments leave it");
        clock.advance(Duration::from_millis(1));
        assert!(!wants() && !growth.is_to_give(), "nobody has asked for long");
    }
}
