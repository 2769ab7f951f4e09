//! The shm reader against the slot writer under loom, which tries every interleaving of threads and every
//! value that the memory model lets a load return. Run with `RUSTFLAGS="--cfg loom"` (docs/TESTING.md says how).

use crate::adversary::key;
use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::fabric::shm::Shm;
use crate::fabric::sim::Recorder;
use crate::get::{Landed, Look};
use crate::index::loom_access::write_slot;
use crate::layout::geometry::{Config, Geometry, Layout, Size, SlotIx, Window};
use crate::layout::hash::Seeds;
use crate::region::Region;
use std::sync::Arc;
use std::time::Duration;

fn geometry(layout: &str, slots: u64) -> Geometry {
    let config = Config {
        layout: layout.parse::<Layout>().expect("a preset"),
        size: Size::Slots(slots),
        key_max: 8,
        value_max: 8,
        seeds: Some(Seeds::from_number(1)),
        grace: Duration::ZERO,
    };
    config.geometry().expect("possible")
}

fn region(geometry: &Geometry) -> Region {
    let recorder = Arc::new(Recorder::new(Clock::manual(), Duration::from_nanos(1)));
    Region::recorded(geometry.region_bytes(), recorder)
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(test);
}

/// (Generic, because a closure over a concrete fabric's landed window would have to live for ever.)
fn look<F: Fabric>(fabric: &mut F, window: Window, key: &[u8], value: &mut Vec<u8>) -> Look {
    let looked = fabric.read(window, |landed| landed.look(window.first, key, value));
    looked.unwrap_or(Look::Torn)
}

/// One writer rewrites a slot while one reader looks: the reader sees one write or the other, or that the
/// slot is being written; never a mixture.
fn reader_against_writer() {
    let geometry = Arc::new(geometry("list", 1));
    let region = Arc::new(region(&geometry));
    // Every value is its key's bytes: a mixture shows.
    write_slot(&region, &geometry, SlotIx(0), &key(1), &key(1));
    let writer = {
        let (region, geometry) = (region.clone(), geometry.clone());
        loom::thread::spawn(move || write_slot(&region, &geometry, SlotIx(0), &key(2), &key(2)))
    };
    let mut value = Vec::new();
    let window = Window { first: SlotIx(0), slots: 1 };
    let mut shm = Shm::new(&region, &geometry);
    for wanted in [1, 2] {
        match look(&mut shm, window, &key(wanted), &mut value) {
            Look::Match => assert_eq!(value, key(wanted), "a mixture"),
            Look::Other(header) => assert_eq!((header.klen, header.stamp % 2), (8, 0)),
            Look::Torn => {}
        }
    }
    writer.join().expect("the writer ends");
}

#[test]
fn loom_reader_against_writer() {
    model(3, reader_against_writer);
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::faults::{Broken, Rule};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Loom's threads run on this one, so a broken rule is broken for all of them.
    fn must_be_caught(rule: Rule) {
        let tries = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = tries.clone();
        let result = catch_unwind(AssertUnwindSafe(|| {
            model(3, move || {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let _broken = Broken::rule(rule);
                reader_against_writer();
            });
        }));
        let tries = tries.load(std::sync::atomic::Ordering::Relaxed);
        assert!(result.is_err(), "{rule:?}: not caught in {tries} executions");
        println!("{rule:?}: caught in execution {tries}");
    }

    #[test]
    fn loom_reader_without_fence() {
        must_be_caught(Rule::ReaderFence);
    }

    #[test]
    fn loom_writer_without_fence() {
        must_be_caught(Rule::WriterFence);
    }

    #[test]
    fn loom_no_odd_pass() {
        must_be_caught(Rule::OddPass);
    }

    #[test]
    fn loom_no_stamp_check() {
        must_be_caught(Rule::StampCheck);
    }
}
