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
        if !region_stays {
            index.retire();
        } else if let Err(why) = index.hand_over(REST_MAX) {
            let error = &why as &dyn std::error::Error;
            tracing::warn!(error, "the table is not handed over; the next server looks at every slot");
        } else {
            tracing::info!(keys = index.len(), took = ?begun.elapsed(), "handed the table over");
        }
        Retired(())
    }
}
