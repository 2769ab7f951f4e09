//! The counts of a table that grows.

use super::Growth;
use super::pairs::{Pair, Toward};
use super::totals::add_counts;
use crate::base::sync::lock;
use crate::index::share::PairRole;
use crate::outcome::{GrowthCounts, IndexCounts};
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Growth {
    pub fn displaced(&self) -> usize {
        self.live.all(&epoch::pin()).map(|segment| segment.homes().displaced()).sum()
    }

    /// The numbers of the memories that have segments.
    #[cfg(feature = "verbs")]
    pub fn memories(&self) -> Vec<u32> {
        self.live.all(&epoch::pin()).map(|segment| segment.memory()).collect()
    }

    pub fn counts(&self) -> IndexCounts {
        let guard = epoch::pin();
        // D9: no segment goes while this is held.
        let gone = lock(&self.done.gone);
        let mut sum = *gone;
        sum.waits += self.done.waits.load(Relaxed);
        for segment in self.live.all(&guard) {
            let counts = segment.counts();
            add_counts(&mut sum, &counts);
            sum.keys += counts.keys;
            sum.slots += counts.slots;
            sum.main_slots += counts.main_slots;
        }
        sum
    }

    pub fn growth_counts(&self) -> GrowthCounts {
        let guard = epoch::pin();
        let pairs = lock(&self.pairs).all();
        let merging = |pair: &&Arc<Pair>| pair.state().toward() != Toward::Child;
        let merging = pairs.iter().filter(merging).count() as u64;
        let (mut segments, mut depth) = (0, 0);
        let mut loads = [Vec::new(), Vec::new()];
        for segment in self.live.all(&guard) {
            let share = segment.share().get();
            if share.role != PairRole::Gone {
                segments += 1;
                depth = depth.max(share.depth.into());
                let counts = segment.counts();
                loads[usize::from(share.role != PairRole::Whole)]
                    .push(counts.keys * 1_000_000 / counts.slots.max(1));
            }
        }
        let [whole, paired] = &loads;
        let loads = if whole.is_empty() { paired } else { whole };
        GrowthCounts {
            segments,
            segments_max: self.geometry.segments_max(),
            depth,
            load_min_ppm: loads.iter().copied().min().unwrap_or(0),
            load_max_ppm: loads.iter().copied().max().unwrap_or(0),
            splitting: pairs.len() as u64 - merging,
            merging,
            splits: self.done.splits.load(Relaxed),
            merges: self.done.merges.load(Relaxed),
            given_up: self.done.given_up.load(Relaxed),
            moved: self.done.moved.load(Relaxed),
            refused: self.done.refused.times.load(Relaxed),
            bytes_backed: self.region.backed_bytes(),
            bytes_max: self.geometry.slots_end(),
            bytes_returned: lock(&self.memory).bytes_returned,
        }
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::super::pace::Pace;
    use crate::base::clock::Clock;
    use crate::base::observe::{Scheduler, schedule};
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::layout::hash::Seeds;
    use crate::outcome::PutMode;
    use crate::sim::{Adversary, Random, Recorder};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    const GRACE: Duration = Duration::from_micros(200);
    const KEYS: u64 = 60;

    /// Sums what was done before each lock and each access to memory, as another thread might.
    struct SumsAlways {
        index: Arc<Index>,
        is_at_it: Cell<bool>,
        highest: Cell<u64>,
    }

    impl Scheduler for SumsAlways {
        fn may_pass(&self) {
            if !self.is_at_it.replace(true) {
                self.highest.set(self.highest.get().max(self.index.changes_made()));
                self.is_at_it.set(false);
            }
        }

        fn wait_until(&self, _: &dyn Fn() -> bool) {
            self.may_pass();
        }
    }

    /// Segments are split and merged, and nothing else is changed. Returns what was done before that, and the highest sum
    /// meanwhile.
    fn sums(seed: u64) -> [u64; 2] {
        let config = Config {
            size: TableSize::Growing { bytes_max: 1 << 18, segment_slots: Some(64) },
            key_max: 8,
            value_max: 8,
            grace: GRACE,
            seeds: Some(Seeds::from_number(seed)),
            ..Config::default()
        };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        let index = Arc::new(Index::create_at_pace(region, geometry, clock.clone(), Pace::small()).unwrap());
        let puts = |mode| {
            for n in 0..KEYS {
                index.put(&n.to_le_bytes(), b"value", mode).unwrap();
            }
        };
        let mut random = Random::new(seed);
        let mut goes = |is_merge, times| {
            for _ in 0..times {
                let key = random.pick(KEYS as usize) as u64;
                index.pair_up(&key.to_le_bytes(), is_merge);
                for _ in 0..20 {
                    index.tidy();
                    clock.advance(GRACE);
                }
            }
        };
        puts(PutMode::Insert);
        goes(false, 8);
        // Each segment has done something.
        puts(PutMode::Update);
        let (done, before) = (index.changes_made(), index.growth());
        let always =
            SumsAlways { index: Arc::clone(&index), is_at_it: Cell::new(false), highest: Cell::new(0) };
        let always = Rc::new(always);
        schedule(Some(always.clone()));
        goes(true, 8);
        goes(false, 4);
        schedule(None);
        let after = index.growth();
        assert!(after.splits > before.splits && after.merges > before.merges, "seed {seed}: {after:?}");
        assert_eq!(index.changes_made(), done, "at rest");
        [done, always.highest.get()]
    }

    /// D9: what was done is summed once, wherever it was done.
    #[test]
    fn no_sum_is_beyond_what_was_done() {
        for seed in 0..8 {
            let [done, highest] = sums(seed);
            assert_eq!(highest, done, "seed {seed}");
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn what_is_counted_twice_is_noticed() {
        use crate::faults::{Broken, Rule};
        for rule in [Rule::CountedOnce, Rule::CopiesCame] {
            let _broken = Broken::rule(rule);
            let found = (0..8).map(sums).find(|[done, highest]| highest > done);
            let [done, highest] = found.unwrap_or_else(|| panic!("case lost: {rule:?}"));
            println!("{rule:?} broken: {highest} of {done} changes");
        }
    }
}
