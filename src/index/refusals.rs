//! Searches for room that failed a moment ago. The next put of that key is refused at once. If search after search
//! failed, so are most puts of other keys.

use crate::base::sync::Ordering;
use crate::layout::geometry::Geometry;
use crate::layout::hash::{Hashed, mix};
use crate::placement::families;
use std::sync::atomic::AtomicU64;

/// Failed searches that are remembered. A later one takes the place of an older one.
const REMEMBERED: usize = if cfg!(loom) { 1 } else { 1024 };

/// A failed search for room for a key, at this count of made room
/// ([`Counters::room_made`](super::counters::Counters::room_made)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPath {
    /// The key, or its home, whichever determines where room is looked for.
    pub from: u64,
    pub room_made: u64,
}

impl NoPath {
    pub fn of(geometry: &Geometry, key: Hashed<'_>, room_made: u64) -> NoPath {
        NoPath { from: families::looks_for_room_from(geometry, key), room_made }
    }

    /// One word that stands for it. Two searches have the same word once in 2^64.
    fn word(self) -> u64 {
        mix(mix(self.from).wrapping_add(self.room_made)) | 1
    }
}

/// The last failed searches.
#[derive(Debug)]
pub(super) struct Refusals(Box<[AtomicU64]>);

impl Refusals {
    pub fn new() -> Refusals {
        Refusals((0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }

    /// Remembers nothing.
    pub fn none() -> Refusals {
        Refusals(Box::default())
    }

    fn place(&self, search: NoPath) -> &AtomicU64 {
        &self.0[mix(search.from) as usize % REMEMBERED]
    }

    pub fn remember(&self, search: NoPath) {
        // Relaxed: only the word itself is communicated.
        self.place(search).store(search.word(), Ordering::Relaxed);
    }

    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn forget_all(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    pub fn know(&self, search: NoPath) -> bool {
        self.place(search).load(Ordering::Relaxed) == search.word()
    }
}

/// How many searches of a segment failed in a row, whatever their keys, while no room was made. After some of them,
/// most searches are left out: each looks at a large part of the segment, and would fail, too.
///
/// This affects only time. A key that is refused without a search might have found a path; so might a key that came a
/// moment later. Where searches succeed now and then, one is never far.
#[derive(Debug, Default)]
pub(super) struct VainSearches(AtomicU64);

impl VainSearches {
    /// After this number of failed searches, searches are left out ([`ONE_OF`]).
    const ENOUGH: u64 = 16;
    /// One search in this number is made all the same.
    const ONE_OF: u64 = 64;
    const TIMES_BITS: u32 = 16;

    /// How many puts in a row found no room. 0 if room was made since.
    fn times(&self, room_made: u64) -> u64 {
        // Relaxed: only the word itself is communicated.
        let word = self.0.load(Ordering::Relaxed);
        let is_since = word >> Self::TIMES_BITS == room_made << Self::TIMES_BITS >> Self::TIMES_BITS;
        if is_since { word & ((1 << Self::TIMES_BITS) - 1) } else { 0 }
    }

    fn set(&self, room_made: u64, times: u64) {
        // The number stays congruent, so that the same searches are made.
        let times = if times < 1 << Self::TIMES_BITS { times } else { times - (1 << (Self::TIMES_BITS - 1)) };
        self.0.store(room_made << Self::TIMES_BITS | times, Ordering::Relaxed);
    }

    /// Whether any search failed since the last that found room.
    pub fn are_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Notes a search that failed.
    pub fn note(&self, room_made: u64) {
        #[cfg(all(test, not(loom)))]
        tests::FAILED.set(tests::FAILED.get() + 1);
        self.set(room_made, self.times(room_made) + 1);
    }

    /// Notes a search that found room.
    pub fn forget(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this search is left out, because the last 16 or more failed. Counts it.
    pub fn is_one_more(&self, room_made: u64) -> bool {
        let times = self.times(room_made);
        let is_left_out = times >= Self::ENOUGH && !times.is_multiple_of(Self::ONE_OF);
        if is_left_out {
            self.set(room_made, times + 1);
        }
        is_left_out
    }

    /// Whether most searches are left out now. Counts nothing.
    pub fn are_many(&self, room_made: u64) -> bool {
        self.times(room_made) >= Self::ENOUGH
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Searches of this thread that failed.
        pub static FAILED: Cell<u64> = const { Cell::new(0) };
    }

    /// After some failed searches, all but one of 64 are left out, for as long as no room is made and none is
    /// found.
    #[test]
    fn searches_in_vain_are_left_out() {
        let vain = VainSearches::default();
        // How many of these puts search, and fail.
        let searches = |puts: u32, room_made| {
            (0..puts)
                .filter(|_| {
                    let searches = !vain.is_one_more(room_made);
                    if searches {
                        vain.note(room_made);
                    }
                    searches
                })
                .count()
        };
        for room_made in [0, 1, u64::MAX, 1 << 48] {
            assert!(!vain.are_many(room_made));
            assert_eq!(searches(16, room_made), 16);
            assert!(vain.are_many(room_made));
            assert_eq!((searches(48, room_made), searches(1, room_made), searches(63, room_made)), (0, 1, 0));
            // The count has a bound.
            assert_eq!(searches(64 * 5_000, room_made), 5_000, "{room_made}");
        }
        vain.forget();
        assert_eq!(searches(16, 1 << 48), 16);
        assert_eq!(searches(16, 5), 16, "room was made");
    }
}
