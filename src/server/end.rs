//! The end of a server: first its threads, then its region, then its socket's name (`socket.rs`).
//!
//! Each step needs the proof that the step before returns, so no other order compiles.

use super::turns::EventLoop;
use crate::index::Index;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread and its event loop. `None` for a thread that is parked when it sleeps, or that wakes when the others end.
pub(super) type Thread = (Option<EventLoop>, JoinHandle<()>);

/// Proof that no thread of the server answers requests any more, and that all changes are made that were decided.
#[derive(Debug)]
pub(super) struct Ended(());

impl Ended {
    /// Tells the threads to stop and waits for them.
    pub fn new(stopping: &AtomicBool, threads: &mut Vec<Thread>, index: &Index) -> Ended {
        stopping.store(true, Ordering::Release);
        for (event_loop, thread) in threads.drain(..) {
            // The waker is kept until the thread has ended: closing it would discard its event.
            if let Some(EventLoop { waker, .. }) = &event_loop {
                let _ = waker.wake();
            }
            thread.thread().unpark();
            let _ = thread.join();
        }
        index.log().into_iter().for_each(|log| log.drain());
        Ended(())
    }
}

/// Proof that the region says that its server has ended: it is given up, or handed over.
#[derive(Debug)]
pub(super) struct Retired(());

/// Longest time to wait until no trace is left.
const REST_MAX: Duration = Duration::from_secs(1);

impl Retired {
    /// Marks the region as given up, or hands it over to the next server.
    pub fn new(_: &Ended, index: &Index, region_stays: bool) -> Retired {
        let begun = Instant::now();
        // K10: a table that has more than its log is not handed over, as after a kill.
        let log_lacks = index.log().and_then(|log| log.finish().err());
        if !region_stays {
            index.retire();
        } else if let Some(error) = log_lacks {
            tracing::warn!(%error, "the table is not handed over: it has changes that the log has not; the next server saves it first");
        } else if let Err(why) = index.hand_over(REST_MAX) {
            let error = &why as &dyn std::error::Error;
            tracing::warn!(error, "the table is not handed over; the next server looks at every slot");
        } else {
            tracing::info!(keys = index.len(), took = ?begun.elapsed(), "handed the table over");
        }
        Retired(())
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::log::{Fsync, SimDisk, log_on};
    use crate::outcome::PutMode;
    use crate::region::{Backing, Region};

    /// A server ends, whose log's disk may have failed at its only change. Returns whether the next one has its table handed over.
    fn is_handed_over(fsync: Fsync, fails: bool) -> bool {
        let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::default());
        let path = dir.path().join("region");
        let geometry = Config { size: TableSize::Slots(64), ..Config::short() }.geometry().unwrap();
        let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
        let index = Index::create(region, geometry, Clock::System).unwrap().with_log(log_on(&disk, fsync));
        index.region().keep();
        if fails {
            disk.fail_in(0);
        }
        let put = index.put(b"key", b"value", PutMode::Insert);
        assert_eq!(put.is_ok(), !(fails && fsync == Fsync::Always), "{put:?}");
        Retired::new(&Ended(()), &index, true);
        drop(index);
        let (_, found) = Index::open(Region::open(&path).unwrap(), Clock::System).unwrap();
        found.handed_over
    }

    /// K10: not a table that has more than its log. What waits for the disk is not made when that fails.
    #[test]
    fn a_table_is_handed_over_if_its_log_has_all() {
        for fsync in [Fsync::Always, Fsync::EverySecond, Fsync::Never] {
            assert!(is_handed_over(fsync, false), "{fsync:?}");
            assert_eq!(is_handed_over(fsync, true), fsync == Fsync::Always, "{fsync:?}");
        }
    }
}
