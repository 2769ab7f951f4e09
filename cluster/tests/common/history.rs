//! What clients saw of a key, and whether there is an order that explains it.

use oneread_cluster::core::message::Outcome;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::HashSet;

pub const NEVER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    Get,
    Put,
    Insert,
    /// With the value that is expected.
    Swap(u64),
    Remove,
    /// By its primary: at its end.
    Expire,
    /// By its primary: with its owner.
    OwnerGone,
}

/// A value that ends no sooner than then, by the time of the history. Its number is among the low 32 bits.
pub fn value_with_due(due: u32, number: u64) -> u64 {
    u64::from(due) << 32 | number
}

/// A value that was put by an owner has this bit.
pub const OWNED: u64 = 1 << 31;

/// When a value may end, at the soonest. `None`: it does not end by itself.
pub fn due_of(value: u64) -> Option<u32> {
    Some((value >> 32) as u32).filter(|due| *due > 0)
}

/// An operation as its client saw it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Event {
    pub shard: u16,
    pub key: u8,
    pub start: u32,
    /// Without one it may have happened at any time after its start, or not.
    pub end: u32,
    pub kind: Kind,
    /// What was got, or put. 0: no such key.
    pub value: u64,
    pub outcome: Outcome,
    /// Certainly not done.
    pub is_void: bool,
}

/// What an operation does to a key's value, or says of it.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Is(u64),
    /// Some value, but not this one.
    IsNot(u64),
    Becomes(u64),
    Swaps(u64, u64),
    /// Some value left.
    Leaves,
    /// A value left, which may have come to its end by then.
    Ends(u32),
    /// A value of an owner left.
    GoesWithOwner,
}

impl Act {
    fn of(event: &Event) -> Act {
        let is_open = event.end == NEVER;
        match (event.kind, event.outcome) {
            (Kind::Get, _) => Act::Is(event.value),
            (Kind::Put, _) => Act::Becomes(event.value),
            (Kind::Remove, _) if is_open => Act::Becomes(0),
            (Kind::Expire, _) => Act::Ends(event.end),
            (Kind::OwnerGone, _) => Act::GoesWithOwner,
            (Kind::Insert, _) if is_open => Act::Swaps(0, event.value),
            (Kind::Swap(expected), _) if is_open => Act::Swaps(expected, event.value),
            (Kind::Insert, Outcome::Done) => Act::Swaps(0, event.value),
            (Kind::Swap(expected), Outcome::Done) => Act::Swaps(expected, event.value),
            (Kind::Remove, Outcome::Done) => Act::Leaves,
            (_, Outcome::Absent) => Act::Is(0),
            (Kind::Swap(expected), Outcome::Differs) => Act::IsNot(expected),
            (_, Outcome::Exists) => Act::IsNot(0),
            _ => unreachable!("{event:?}"),
        }
    }

    /// Whether it says that the value was that.
    fn sees(self, value: u64) -> bool {
        match self {
            Act::Is(seen) | Act::Swaps(seen, _) => seen == value,
            Act::IsNot(not) => value != 0 && value != not,
            Act::Leaves => value != 0,
            Act::Ends(end) => value == SOME || due_of(value).is_some_and(|due| due <= end),
            Act::GoesWithOwner => value == SOME || value & OWNED != 0,
            Act::Becomes(_) => false,
        }
    }

    /// The value after it, if it fits the value before.
    fn apply(self, value: u64) -> Option<u64> {
        match self {
            Act::Becomes(new) => Some(new),
            _ if !self.sees(value) => None,
            Act::Is(_) | Act::IsNot(_) => Some(value),
            Act::Swaps(_, new) => Some(new),
            Act::Leaves | Act::Ends(_) | Act::GoesWithOwner => Some(0),
        }
    }
}

/// A set of small numbers. The last word is not 0.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Bits(SmallVec<[u64; 4]>);

impl Bits {
    fn has(&self, bit: usize) -> bool {
        self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }
    fn with(&self, bit: usize) -> Bits {
        let mut bits = self.clone();
        bits.0.resize(bits.0.len().max(bit / 64 + 1), 0);
        bits.0[bit / 64] |= 1 << (bit % 64);
        bits
    }
    /// Each number is smaller by so many, and those below that are gone.
    fn shift(&mut self, by: usize) {
        self.0.drain(..(by / 64).min(self.0.len()));
        for at in 0..self.0.len() {
            let next = self.0.get(at + 1).copied().unwrap_or(0);
            self.0[at] = ((u128::from(next) << 64 | u128::from(self.0[at])) >> (by % 64)) as u64;
        }
        if self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
    /// The smallest number that is not in it.
    fn first_gap(&self) -> usize {
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        64 * full + self.0.get(full).map_or(0, |word| word.trailing_ones() as usize)
    }
}

/// Some value that nobody has seen by itself.
const SOME: u64 = u64::MAX;

/// States that are looked at. A history that needs more has too many operations at a time.
const STATES_MAX: usize = 4_000_000;

/// Whether a key's history has an order that its operations may have had (Wing and Gong): each at one instant between
/// its start and its end.
pub fn is_linearizable(history: &[Event], shard: u16, key: u8) -> bool {
    let of_key = || history.iter().filter(|event| (event.shard, event.key) == (shard, key) && !event.is_void);
    let mut seen = HashSet::from([0]);
    for event in of_key().filter(|event| event.end != NEVER) {
        if let Act::Is(value) | Act::Swaps(value, _) = Act::of(event) {
            seen.insert(value);
        }
    }
    let (mut certain, mut open, mut some) = (Vec::new(), Vec::new(), NEVER);
    // Backwards, since a value was put before another is swapped for it. Those that nobody saw may have come at any
    // time after the first of them began.
    for event in of_key().rev() {
        let act = Act::of(event);
        match act {
            _ if event.end != NEVER => certain.push((event.start, event.end, act)),
            Act::Ends(_) | Act::GoesWithOwner => open.push((event.start, act)),
            Act::Becomes(value) if seen.contains(&value) => open.push((event.start, act)),
            Act::Swaps(old, value) if seen.contains(&value) => {
                seen.insert(old);
                open.push((event.start, act));
            }
            _ => some = some.min(event.start),
        }
    }
    open.sort_by_key(|operation| operation.0);
    certain.sort_by_key(|operation| operation.0);
    // The first operation that is not ordered yet, those after it that are, and the open ones that are.
    let mut stack = vec![(0, Bits::default(), Bits::default(), 0)];
    let mut tried = HashSet::new();
    while let Some((mut first, mut after, used, value)) = stack.pop() {
        let ordered = after.first_gap();
        first += ordered;
        after.shift(ordered);
        if first >= certain.len() {
            return true;
        }
        if !tried.insert((first, after.clone(), used.clone(), value)) {
            continue;
        }
        assert!(tried.len() < STATES_MAX, "the history of key {key} of shard {shard} cannot be checked");
        let rest = || (0..certain.len() - first).filter(|&bit| !after.has(bit));
        let (mut until, mut next) = (NEVER, Vec::new());
        for bit in rest() {
            let (start, end, _) = certain[first + bit];
            if start > until {
                break;
            }
            until = until.min(end);
            next.push(bit);
        }
        next.retain(|&bit| certain[first + bit].0 <= until);
        // Who only looks and is right may come first.
        let looks = next.iter().copied().find(|&bit| {
            let act = certain[first + bit].2;
            matches!(act, Act::Is(_) | Act::IsNot(_)) && act.sees(value)
        });
        if let Some(bit) = looks {
            stack.push((first, after.with(bit), used, value));
            continue;
        }
        // One without an end comes right before one that sees its value. Of equals the first to begin comes first.
        let is_free = |index: usize| {
            let is_equal = |other: usize| !used.has(other) && open[other].1 == open[index].1;
            !used.has(index) && open[index].0 <= until && !(0..index).any(is_equal)
        };
        let is_seen = |value: u64| {
            next.iter().any(|bit| certain[first + bit].2.sees(value))
                || (0..open.len()).any(|other| is_free(other) && open[other].1.sees(value))
        };
        if some <= until && value != SOME && is_seen(SOME) {
            stack.push((first, after.clone(), used.clone(), SOME));
        }
        for index in (0..open.len()).filter(|&index| is_free(index)) {
            if let Some(new) = open[index].1.apply(value).filter(|&new| is_seen(new)) {
                stack.push((first, after.clone(), used.with(index), new));
            }
        }
        for bit in next {
            if let Some(new) = certain[first + bit].2.apply(value) {
                stack.push((first, after.with(bit), used.clone(), new));
            }
        }
    }
    false
}
