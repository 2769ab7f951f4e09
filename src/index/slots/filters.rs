//! The filters of homes (C3), and which of them are known to be empty.
//!
//! Most homes have no displaced key. A bit for each home says so, in memory of this process, so that a remove or a split
//! need not look at headers, which lie in lines of their own. The holder of a home's lock sets its filter and its bit.
//! For the holder a bit that is set is true. Without the lock it is a guess, as a header is.
//!
//! In a table that was taken over, nothing is known of a home until somebody has looked at its header under its lock.

use crate::index::home_set::HomeSet;
use crate::layout::geometry::Geometry;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each home: its filter is known to be empty.
#[derive(Debug)]
pub(super) struct EmptyFilters(Box<[AtomicU64]>);

impl EmptyFilters {
    /// Nothing is known. The memory is untouched.
    pub fn unknown(geometry: &Geometry) -> EmptyFilters {
        EmptyFilters(bytemuck::zeroed_slice_box(geometry.homes().div_ceil(64) as usize))
    }

    /// All filters are empty.
    pub fn note_all(&self) {
        self.0.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }

    /// Notes whether the filters of these homes are empty. The caller holds the locks of the homes: that orders this.
    pub fn note(&self, homes: HomeSet, are_empty: bool) {
        for (number, bits) in homes.words() {
            match are_empty {
                true => self.0[number].fetch_or(bits, Ordering::Relaxed),
                false => self.0[number].fetch_and(!bits, Ordering::Relaxed),
            };
        }
    }

    /// The homes among these whose filters may have a bit.
    #[inline(always)]
    pub fn others(&self, homes: HomeSet) -> HomeSet {
        homes
            .without(homes.set_in(|number| self.0.get(number).map_or(0, |word| word.load(Ordering::Relaxed))))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Slots;
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::start::Start;
    use crate::index::whole::OneSize;
    use crate::layout::hash::Seeds;
    use crate::outcome::PutMode;
    use crate::region::Region;
    use std::time::Duration;

    const SLOTS: u64 = 512;

    fn table(layout: &str) -> (OneSize, Clock) {
        let config = Config {
            layout: layout.parse().unwrap(),
            size: TableSize::Slots(SLOTS),
            seeds: Some(Seeds::from_number(3)),
            ..Config::short()
        };
        let geometry = config.geometry().unwrap();
        let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
        (OneSize::create(region, geometry, clock.clone()).unwrap(), clock)
    }

    /// All homes, 64 at a time at most.
    fn all_homes(slots: &Slots) -> impl Iterator<Item = HomeSet> {
        let homes = slots.geometry().homes();
        (0..homes).step_by(64).map(move |first| HomeSet::of(first..homes.min(first + 64)))
    }

    /// Compares what is said of each home with its header. Returns how many homes have displaced keys.
    fn compared(table: &OneSize) -> u32 {
        let slots = table.slots();
        let all = all_homes(slots).map(|homes| {
            let by_headers = slots.by_headers(homes);
            assert_eq!(slots.with_displaced(homes), by_headers);
            let mut locked = slots.none();
            locked.lock(
                homes.iter().map(|home| slots.stripe_of(slots.geometry().window(home).first)).collect(),
            );
            assert_eq!(slots.with_displaced_locked(&locked, homes), by_headers);
            by_headers.len()
        });
        all.sum()
    }

    /// While keys come, leave, are moved and brought home, a filter that is known to be empty is empty; in a table that was taken
    /// over, too.
    #[test]
    fn filters_known_to_be_empty_are() {
        for layout in ["windowed:8", "cluster", "farm", "bucketized:4"] {
            let (table, clock) = table(layout);
            assert_eq!(compared(&table), 0, "{layout}");
            let key = |n: u64| n.to_le_bytes();
            let keys = SLOTS * 88 / 100;
            (0..keys).for_each(|n| drop(table.put(&key(n), b"", PutMode::Insert)));
            let most = compared(&table);
            assert!(most > 0, "{layout}: some key is displaced");
            for n in 0..keys / 2 {
                assert!(table.remove(&key(n)).is_ok());
                clock.advance(Duration::from_micros(10));
                compared(&table);
            }
            clock.advance(Duration::from_secs(1));
            table.tidy();
            assert!(compared(&table) < most, "{layout}: filters have become empty");

            let region = table.region().alias();
            drop(table);
            let (table, _) = OneSize::open(region, clock.clone(), &Start::default()).unwrap();
            compared(&table);
        }
    }

    /// Nobody looks at headers where all keys are at home: from the beginning in a new table; after the first look under their
    /// locks in one that was taken over.
    #[test]
    fn headers_are_looked_at_once() {
        let (table, clock) = table("windowed:8");
        let unknown = |table: &OneSize| -> u32 {
            let slots = table.slots();
            all_homes(slots).map(|homes| slots.empty_filters.others(homes).len()).sum()
        };
        assert_eq!(unknown(&table), 0);
        assert!(table.put(b"key", b"", PutMode::Insert).is_ok());
        assert_eq!(unknown(&table), 0);
        let region = table.region().alias();
        drop(table);
        let (table, _) = OneSize::open(region, clock, &Start::default()).unwrap();
        assert_eq!(u64::from(unknown(&table)), table.geometry().homes());
        assert_eq!(compared(&table), 0);
        assert_eq!(unknown(&table), 0);
    }
}
