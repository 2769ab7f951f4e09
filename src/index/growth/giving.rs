//! Segments give memory to values (Z5): where entries make room for others, and the table has all memory that it may.
//!
//! ```text
//! two segments are chosen    that a merge can make one
//! entries of theirs leave    some at a time, by the policy, until one has room for those of both
//! they are merged            as any two; then the memory of one goes back to the system
//! ```
//!
//! Each call takes this on by a bounded part. Meanwhile no segment takes memory: `Budget` keeps what becomes free.

use super::Growth;
use super::directory::entry_word;
use super::live::UnusedMemory;
use super::pairs::Driven;
use crate::faults::{Rule, kept};
use crate::index::segment::Segment;
use crate::index::share::PairRole;
use crate::layout::hash::First;
use crate::layout::segment::{self, low};
use crate::sync::{lock, try_lock};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Segments that are looked at to choose two.
const LOOKED_AT: usize = 64;
/// Two segments are merged when both together have fewer keys than this many hundredths of the design load of one: the
/// parent has room for keys that come meanwhile, and finds it for those of the child.
const GIVE_AT: u64 = 75;
/// If the parent has none, the next try is with so many less.
const LESS: u64 = 15;
/// After so many choices of which no entry may leave, it counts that none does.
const VAIN_MAX: u32 = 16;
/// How long memory is kept for values after one has asked for it last.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// How far it is that values get memory of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Giving {
    /// There is memory for a block.
    Done,
    /// It goes on.
    On,
    /// It goes on when another thread, or time, has gone on.
    Waits,
    /// No segment can give any, or no entry may leave.
    Nothing,
}

/// Who gives.
#[derive(Debug, Default)]
pub(super) struct Givers {
    /// The keys of the two segments, as those of their parent.
    chosen: Option<ChosenPair>,
    /// The number of the memory at which the next choice begins.
    hand: u32,
    /// Whose entries leave next.
    part: u32,
    /// Choices one after the other of which no entry could leave.
    vain: u32,
}

#[derive(Clone, Copy, Debug)]
struct ChosenPair {
    prefix: u32,
    /// The depth of the two.
    depth: u32,
    /// They are merged below this many hundredths.
    at: u64,
    /// Their merge has begun.
    is_merging: bool,
}

impl Growth {
    /// Takes on that segments give memory for a block of values. `evict` has the entry leave that is next by the policy
    /// that knows this hash, and says whether one did; it is asked up to `most` times.
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

    /// Whether values wait for memory of segments. Those that have waited for too long do so no more.
    pub fn is_to_give(&self) -> bool {
        self.budget.wants(self.grace.clock().now_ns())
            && !self.budget.has_for_values(self.geometry.heap().block_bytes)
    }

    /// Gives a piece of memory back to the system that no segment has.
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
            // Until no thread uses the segment any more.
            epoch::pin().flush();
            Giving::Waits
        })
    }

    /// The two segments of these keys, which are in no pair. `None` if there are none any more.
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

    /// Chooses two segments with few keys, of some.
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
            // It was given up: the parent had no room.
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
        // Others may have entries that may leave.
        givers.chosen = None;
        givers.vain = (givers.vain + 1) % VAIN_MAX;
        if givers.vain == 0 { Giving::Nothing } else { Giving::On }
    }

    /// Takes the merge of the chosen two on.
    fn drive_chosen(&self, givers: &mut Givers, chosen: ChosenPair, guard: &Guard) -> Giving {
        let entry = entry_word(&self.region, &self.geometry, chosen.prefix);
        let segment = self.live.get(segment::memory(entry), guard);
        let Some(pair) = segment.and_then(|segment| self.pair_of(segment)) else {
            // It has ended, or others have split or merged them.
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
