//! Which keys a segment has: those with its bits of the directory hash, without those on the other side of a split or
//! merge under way.
//!
//! A *pair* is a parent and its child. Home by home, the keys whose next bit is set go from one to the other. Both
//! segments know of each home whether it is *away*, which means that its shared keys are on the other side.

use super::home_set::HomeSet;
use crate::base::sync::Ordering::Relaxed;
use crate::base::sync::{AtomicU64, Ordering, fence};
use crate::layout::hash::{DIRECTORY_BITS_MAX, Hashed};
use crate::layout::segment::{HomeState, low};
use std::ops::Range;

/// A segment's share of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyShare {
    /// The segment's bits of the directory hash.
    pub prefix: u32,
    /// The number of these bits.
    pub depth: u32,
    pub role: PairRole,
}

/// A segment's role in a split or merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairRole {
    /// No split or merge is under way.
    Whole,
    /// It shares its keys with a child.
    Parent,
    /// It shares the keys with its parent.
    Child,
    /// It has no keys any more.
    Gone,
}

impl KeyShare {
    /// The whole table.
    pub const ALL: KeyShare = KeyShare { prefix: 0, depth: 0, role: PairRole::Whole };

    /// The share of this parent's child.
    pub fn child(self) -> KeyShare {
        let KeyShare { prefix, depth, .. } = self;
        KeyShare { prefix: prefix | 1 << depth, depth: depth + 1, role: PairRole::Child }
    }

    /// Whether keys with this directory hash are the segment's, or its pair's if it is a parent.
    #[inline]
    pub fn covers(self, directory: u32) -> bool {
        (directory ^ self.prefix) & low(self.depth) == 0
    }

    /// Whether a key with this directory hash is in the segment. `is_away` tells whether the key's home is away.
    #[inline]
    fn has(self, directory: u32, is_away: bool) -> bool {
        self.covers(directory)
            && match self.role {
                PairRole::Whole => true,
                PairRole::Parent => directory >> self.depth & 1 == 0 || !is_away,
                PairRole::Child => !is_away,
                PairRole::Gone => false,
            }
    }

    pub fn to_word(self) -> u64 {
        u64::from(self.depth) | (self.role as u64) << 5 | u64::from(self.prefix) << 8
    }

    #[inline(always)]
    pub fn from_word(word: u64) -> KeyShare {
        let role = match word >> 5 & 3 {
            0 => PairRole::Whole,
            1 => PairRole::Parent,
            2 => PairRole::Child,
            _ => PairRole::Gone,
        };
        KeyShare { prefix: (word >> 8) as u32 & 0xff_ffff, depth: word as u32 & 31, role }
    }
}

/// Places in the directory. The place of a key is its directory hash with the bits reversed: so the keys of a
/// segment are neighbours, and so are those of a pair.
pub(super) const PLACES: u32 = 1 << DIRECTORY_BITS_MAX;

/// The place of a directory hash, and back.
pub(super) fn reversed(directory: u32) -> u32 {
    directory.reverse_bits() >> (u32::BITS - DIRECTORY_BITS_MAX)
}

/// The places of a share's keys.
pub(super) fn places(share: KeyShare) -> Range<u32> {
    let first = reversed(share.prefix);
    first..first + (PLACES >> share.depth)
}

/// Which keys of some neighbouring homes, at most 64, a segment had at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HomesHere {
    pub share: KeyShare,
    /// A bit for each home, by its number modulo 64.
    away: u64,
    /// The bits that count.
    homes: u64,
}

impl HomesHere {
    /// Whether a key of one of these homes was in the segment.
    pub fn has(&self, directory: u32, home: u64) -> bool {
        self.share.has(directory, self.away >> (home % 64) & 1 == 1)
    }

    /// Whether this parent and that child had all keys of a pair, and none twice.
    pub fn goes_with(&self, child: &HomesHere) -> bool {
        let is_parent = self.share.role == PairRole::Parent;
        is_parent && child.share == self.share.child() && self.away ^ child.away == self.homes
    }
}

/// A share that several threads read. The holder of a home's lock knows whether that home is away: this changes only
/// under the lock of the home in the segment that the keys leave.
#[derive(Debug)]
pub(super) struct SharedKeyShare {
    share: AtomicU64,
    /// A bit for each home.
    away: Box<[AtomicU64]>,
    homes: u64,
    /// How many homes are away.
    homes_away: AtomicU64,
}

impl SharedKeyShare {
    /// `homes` is 0 in a table of one segment.
    pub fn new(share: KeyShare, homes: u64) -> SharedKeyShare {
        let away = (0..homes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        SharedKeyShare { share: AtomicU64::new(share.to_word()), away, homes, homes_away: AtomicU64::new(0) }
    }

    /// Acquire: pairs with the release of `set`.
    #[inline(always)]
    pub fn get(&self) -> KeyShare {
        KeyShare::from_word(self.share.load(Ordering::Acquire))
    }

    pub fn set(&self, share: KeyShare) {
        self.share.store(share.to_word(), Ordering::Release);
    }

    /// Whether it is the child of a pair. Without the pair's lock, a guess.
    #[inline(always)]
    pub fn is_child(&self) -> bool {
        self.get().role == PairRole::Child
    }

    /// Takes a role, with every home away, or none.
    pub fn begin(&self, share: KeyShare, away: bool) {
        let bits = if away { u64::MAX } else { 0 };
        // Who sees new bits sees that the last pair has ended.
        fence(Ordering::Release);
        self.away.iter().for_each(|word| word.store(bits, Relaxed));
        self.homes_away.store(if away { self.homes } else { 0 }, Relaxed);
        self.set(share);
    }

    /// The homes that are away: a bit for each. For a thread that is alone.
    pub fn away_words(&self) -> impl Iterator<Item = u64> {
        self.away.iter().map(|word| word.load(Relaxed))
    }

    /// Acquire: pairs with the release of `set_away`. Who sees that keys have come sees their slots.
    #[inline]
    pub fn is_away(&self, home: u64) -> bool {
        self.away
            .get(home as usize / 64)
            .is_some_and(|word| word.load(Ordering::Acquire) >> (home % 64) & 1 == 1)
    }

    /// The homes among these that are away. Acquire, as [`SharedKeyShare::is_away`].
    pub fn away_among(&self, homes: HomeSet) -> HomeSet {
        homes.set_in(|number| self.away.get(number).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// How many homes are away. Exact for the thread that has the pair, a guess for others.
    pub fn homes_away(&self) -> u64 {
        self.homes_away.load(Relaxed)
    }

    pub fn set_away(&self, homes: HomeSet, away: bool) {
        for (number, bits) in homes.words() {
            let Some(word) = self.away.get(number) else { continue };
            if away {
                let before = word.fetch_or(bits, Ordering::Release);
                self.homes_away.fetch_add((bits & !before).count_ones().into(), Relaxed);
            } else {
                let before = word.fetch_and(!bits, Ordering::Release);
                self.homes_away.fetch_sub((bits & before).count_ones().into(), Relaxed);
            }
        }
    }

    /// Whether a key of this home is in the segment.
    #[inline(always)]
    pub fn has(&self, directory: u32, home: u64) -> bool {
        let share = self.get();
        match share.role {
            // No home is away.
            PairRole::Whole => share.covers(directory),
            _ => self.has_in_pair(directory, home),
        }
    }

    #[inline(never)]
    fn has_in_pair(&self, directory: u32, home: u64) -> bool {
        let (share, is_away) = self.both(|| self.is_away(home));
        share.has(directory, is_away)
    }

    /// Which keys of these homes, at most 64, are in the segment. The holder of the homes' locks knows that none of the
    /// keys leaves.
    pub fn homes_here(&self, homes: &Range<u64>) -> HomesHere {
        let bits = |is_in: &dyn Fn(u64) -> bool| {
            homes.clone().fold(0, |bits, home| bits | u64::from(is_in(home)) << (home % 64))
        };
        let (share, away) = self.both(|| bits(&|home| self.is_away(home)));
        HomesHere { share, away, homes: bits(&|_| true) }
    }

    /// Whether a split or merge may be about to take this key to the other segment. A guess.
    pub fn may_go(&self, key: Hashed<'_>) -> bool {
        let share = self.get();
        match share.role {
            PairRole::Parent => key.first().directory() >> share.depth & 1 == 1,
            PairRole::Child => true,
            PairRole::Whole | PairRole::Gone => false,
        }
    }

    /// The share, and the result of `away` for it. The next pair begins with other bits.
    #[inline]
    fn both<A>(&self, away: impl Fn() -> A) -> (KeyShare, A) {
        let mut share = self.get();
        loop {
            let away = away();
            let now = self.get();
            if now == share {
                return (share, away);
            }
            share = now;
        }
    }

    /// The header of a home without traces of earlier splits and merges.
    pub fn state(&self, home: u64) -> HomeState {
        let (share, is_away) = self.both(|| self.is_away(home));
        match share.role {
            PairRole::Parent => HomeState { depth: share.depth + u32::from(is_away), merged: false },
            PairRole::Child => HomeState { depth: share.depth, merged: is_away },
            PairRole::Whole | PairRole::Gone => HomeState { depth: share.depth, merged: false },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each key of a pair is in one of the two, whichever homes are away, and a share is the same after
    /// it was stored.
    #[test]
    fn one_of_a_pair_has_each_key() {
        const HOMES: u64 = 70;
        for (depth, prefix) in [(0, 0), (1, 1), (3, 0b101)] {
            let parent = KeyShare { prefix, depth, role: PairRole::Parent };
            let child = KeyShare { prefix: prefix | 1 << depth, depth: depth + 1, role: PairRole::Child };
            for share in [parent, child, KeyShare::ALL, KeyShare { role: PairRole::Gone, ..child }] {
                assert_eq!(KeyShare::from_word(share.to_word()), share);
                assert_eq!(
                    SharedKeyShare::new(share, HOMES).has(child.prefix, 3),
                    share.role != PairRole::Gone
                );
            }
            let both = [parent, child].map(|share| SharedKeyShare::new(share, HOMES));
            both[1].begin(child, true);
            for gone in 0..=HOMES {
                for home in 0..HOMES {
                    let in_child = home < gone;
                    for directory in 0..32 {
                        let ours = directory & low(depth) == prefix;
                        let in_child = ours && in_child && directory >> depth & 1 == 1;
                        let has = [0, 1].map(|n| both[n].has(directory, home));
                        assert_eq!(has, [ours && !in_child, in_child], "{directory}, {home} of {gone}");
                    }
                    assert_eq!(both[0].state(home).depth, depth + u32::from(in_child));
                    assert_eq!(both[1].state(home), HomeState { depth: depth + 1, merged: !in_child });
                }
                let away = [0, 1].map(|n| both[n].homes_away());
                assert_eq!(away, [gone, HOMES - gone]);
                both[0].set_away(HomeSet::one(gone), true);
                both[1].set_away(HomeSet::one(gone), false);
            }
        }
    }
}

/// A pair ends and the segment's next one begins, with other bits, while another thread looks at the share.
#[cfg(all(test, loom))]
mod checked {
    use super::*;
    use crate::base::sync::model;
    use std::sync::Arc;

    /// Keys by their directory hashes: one that the segment never has, and one that it has all the while.
    const NEVER: u32 = 0b01;
    const ALWAYS: u32 = 0b10;

    /// From `first`, with its one home away or not, over `whole` to `next`.
    fn from_pair_to_pair(first: (KeyShare, bool), whole: KeyShare, next: (KeyShare, bool)) {
        let share = Arc::new(SharedKeyShare::new(first.0, 1));
        share.set_away(HomeSet::one(0), first.1);
        let other = {
            let share = share.clone();
            loom::thread::spawn(move || {
                share.set(whole);
                share.begin(next.0, next.1);
            })
        };
        assert_eq!([NEVER, ALWAYS].map(|directory| share.has(directory, 0)), [false, true]);
        other.join().expect("the other thread ends");
    }

    /// Compares shares by the look of a walk and by what a header is to say.
    fn looked_at(first: (KeyShare, bool), whole: KeyShare, next: (KeyShare, bool)) {
        let share = Arc::new(SharedKeyShare::new(first.0, 1));
        share.set_away(HomeSet::one(0), first.1);
        let other = {
            let share = share.clone();
            loom::thread::spawn(move || {
                share.set(whole);
                share.begin(next.0, next.1);
            })
        };
        let here = share.homes_here(&(0..1));
        assert_eq!([NEVER, ALWAYS].map(|directory| here.has(directory, 0)), [false, true]);
        // Both pairs, and what is between them, leave the header as it is.
        assert_eq!(share.state(0), HomeState { depth: 1, merged: false });
        other.join().expect("the other thread ends");
    }

    /// A split ends, with the home away, and the next one begins. And a merge, with the home here, and the
    /// next one, of a segment twice as large.
    fn each(test: fn((KeyShare, bool), KeyShare, (KeyShare, bool))) {
        let at = |depth, role| KeyShare { prefix: 0, depth, role };
        let whole = at(1, PairRole::Whole);
        let (small, large) = (at(1, PairRole::Parent), at(0, PairRole::Parent));
        for (first, next) in [((large, true), (small, false)), ((small, false), (large, true))] {
            model(3, move || test(first, whole, next));
        }
    }

    #[test]
    fn loom_share_from_pair_to_pair() {
        each(from_pair_to_pair);
    }

    #[test]
    fn loom_share_looked_at_from_pair_to_pair() {
        each(looked_at);
    }
}
