//! Steps of a server's start that take long for a large table.

use crate::base::cores::Cores;
use crate::config::Evict;
use crate::index::growth::pace::Pace;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A step of a server's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartStep {
    /// A new table is made: memory is taken, and every main slot is written once.
    Make,
    /// A table is taken over from a server that was killed: every slot is looked at.
    Survey,
    /// A new table gets the keys of a snapshot. Its bytes count twice: they are checked first.
    Restore,
    /// Changes are made again that a log has.
    Replay,
    /// The region is registered with the device (verbs). When all bytes are in memory, the device
    /// pins them.
    Register,
}

/// Progress of a server's start ([`ServerConfig::progress`](crate::ServerConfig::progress)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartProgress {
    /// The present step.
    pub step: StartStep,
    /// Bytes done so far.
    pub ready: u64,
    /// Bytes in all.
    pub total: u64,
    /// Whether the step is complete.
    pub done: bool,
}

/// How a server starts: its number of threads, who hears of it, and the pace at which its table grows.
#[derive(Debug)]
pub(crate) struct Start {
    pub cores: Cores,
    pub tell: Option<fn(StartProgress)>,
    /// The start ends early when this is true.
    pub cancel: Option<Arc<AtomicBool>>,
    /// How fast its splits and merges go.
    pub pace: Pace,
    /// The eviction policy of a new table, if it evicts.
    pub evict: Option<Evict>,
}

impl Default for Start {
    fn default() -> Start {
        Start { cores: Cores::all(), tell: None, cancel: None, pace: Pace::shipped(), evict: None }
    }
}

impl Start {
    /// Whether the start was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// As [`Cores::split`]. `None` if the start is cancelled: then some pieces were left out.
    pub fn split<R: Send>(
        &self,
        range: Range<u64>,
        piece: u64,
        work: impl Fn(Range<u64>) -> R + Sync,
        done: impl FnMut(u64),
    ) -> Option<Vec<R>> {
        let work = |part| (!self.is_cancelled()).then(|| work(part));
        self.cores.split(range, piece, work, done).into_iter().collect()
    }

    /// Does a step. The step reports now and then how many of `total` bytes are done.
    pub fn step<R>(&self, step: StartStep, total: u64, take: impl FnOnce(&mut dyn FnMut(u64)) -> R) -> R {
        /// Time between lines in the log.
        const APART: Duration = Duration::from_secs(2);
        let tell = |ready, done| {
            if let Some(tell) = self.tell {
                tell(StartProgress { step, ready, total, done });
            }
        };
        let begun = Instant::now();
        let mut logged = begun;
        tell(0, false);
        let result = take(&mut |ready| {
            tell(ready, false);
            if logged.elapsed() >= APART {
                logged = Instant::now();
                tracing::info!(?step, bytes = ready, of = total, "the server is starting");
            }
        });
        tell(total, true);
        tracing::info!(?step, bytes = total, took = ?begun.elapsed(), "a step of the start is done");
        result
    }
}
