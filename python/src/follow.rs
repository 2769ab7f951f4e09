//! How a program follows a feed of changes, of a table or of a cluster.
//!
//! The library has no descriptor that says when there is something. So for who waits with others, as `asyncio` does, one
//! thread waits, and a descriptor of ours is readable as long as something is there. Who takes one change after the other
//! needs neither.

use crate::convert::seconds;
use crate::error::{Classed, error_of, told};
use crate::fork::{self, PerProcess};
use crate::turn::{Taken, Turn};
use crate::waiting::{detached, detached_for_long};
use oneread_cluster::core::state::ShardIx;
use pyo3::prelude::{PyResult, Python};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// After so long it is looked whether the program is to be interrupted, where a thread waits for the changes.
const SLICE: Duration = Duration::from_millis(50);
/// Longer than that nobody waits at a time. Who wants something of a waiting thread interrupts it.
const LONGEST: Duration = Duration::from_secs(3600);
/// So many changes wait for the program. Then no more are asked for.
const WAITING: usize = 4096;
/// The pause after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// An error: its class, and what it says.
pub(crate) type Wrong = (&'static str, String);

/// This error of the library.
pub(crate) fn wrong(error: &impl Classed) -> Wrong {
    (error.class(), told(error))
}

#[cold]
fn closed() -> Wrong {
    ("Closed", "this feed was closed; begin another one".into())
}

/// An item, and how it moves the place of who was given it.
pub(crate) type Told<F> = (<F as Feed>::Item, <F as Feed>::Step);

/// Ends the wait for a change that is under way, or the next one.
pub(crate) type Interrupt = Arc<dyn Fn() + Send + Sync>;

/// A feed of the library.
pub(crate) trait Feed: Send + Sized + 'static {
    /// What it tells.
    type Item: Send + 'static;
    /// Where a follower goes on.
    type Place: Clone + Send + 'static;
    /// What is known of the place behind an item, beside the item.
    type Step: Send + 'static;

    /// What comes next, within this time.
    fn next(&mut self, within: Duration) -> Result<Option<Told<Self>>, Wrong>;

    /// What ends waits of it.
    fn interrupt(&mut self) -> io::Result<Interrupt>;

    /// From now on all keys that are there come: of one shard, or all. A table has no shards.
    fn resync(&mut self, shard: Option<ShardIx>) -> Result<(), Wrong>;

    /// The place behind all that it has told.
    fn place(&self) -> Self::Place;

    /// Moves the place behind this item.
    fn pass(place: &mut Self::Place, item: &Self::Item, step: Self::Step);

    /// Whether an item that waits is of no use any more when these keys are to come.
    fn is_void(item: &Self::Item, resync: Option<ShardIx>) -> bool;
}

/// What the thread and the program share.
struct Shared<F: Feed> {
    waiting: Mutex<Waiting<F>>,
    /// Told of every change of `waiting`.
    changed: Condvar,
    /// Readable while something is waiting.
    readable: OwnedFd,
    /// Ends the thread's wait.
    interrupt: Interrupt,
}

struct Waiting<F: Feed> {
    heard: VecDeque<Result<Told<F>, Wrong>>,
    /// Behind all that the program was given.
    place: F::Place,
    /// What the program wants anew. No two are the same.
    resyncs: VecDeque<Option<ShardIx>>,
    closed: bool,
}

impl<F: Feed> Shared<F> {
    fn lock(&self) -> MutexGuard<'_, Waiting<F>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable, or not, as there is something or not. With the lock.
    fn show(&self, waiting: &Waiting<F>) {
        if waiting.heard.is_empty() && !waiting.closed {
            let _ = rustix::io::read(&self.readable, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
        }
    }

    /// What the thread does until the feed is closed.
    fn follow(&self, mut feed: F) {
        loop {
            let mut waiting = self.lock();
            while waiting.heard.len() >= WAITING && !waiting.closed && waiting.resyncs.is_empty() {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            if waiting.closed {
                return;
            }
            let resync = waiting.resyncs.pop_front();
            drop(waiting);
            let heard = match resync {
                Some(shard) => feed.resync(shard).map(|()| None),
                None => feed.next(LONGEST),
            };
            let has_failed = heard.is_err();
            let mut waiting = self.lock();
            match (heard, resync) {
                // It has told all, and all was given.
                (Ok(None), None) if waiting.heard.is_empty() => waiting.place = feed.place(),
                (Ok(None), _) => {}
                // What was asked for before does not count any more.
                (Ok(Some((item, _))), _) if waiting.resyncs.iter().any(|shard| F::is_void(&item, *shard)) => {
                }
                (Ok(Some(told)), _) => waiting.heard.push_back(Ok(told)),
                (Err(error), resync) => {
                    let is_new = waiting.resyncs.is_empty();
                    if let Some(shard) = resync.filter(|shard| !waiting.resyncs.contains(shard)) {
                        waiting.resyncs.push_front(shard);
                    }
                    // Once, until the program has heard of it.
                    if is_new && !matches!(waiting.heard.back(), Some(Err(_))) {
                        waiting.heard.push_back(Err(error));
                    }
                }
            }
            self.show(&waiting);
            self.changed.notify_all();
            if has_failed {
                drop(self.changed.wait_timeout(waiting, PAUSE));
            }
        }
    }
}

/// What a thread hears that follows until this is dropped.
struct Following<F: Feed>(Arc<Shared<F>>);

impl<F: Feed> Drop for Following<F> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        // Who waits for the descriptor finds out, too.
        self.0.show(&waiting);
        self.0.changed.notify_all();
        drop(waiting);
        (self.0.interrupt)();
    }
}

/// A feed that the program asks by itself.
struct Asked<F: Feed> {
    feed: F,
    /// Behind all that the program was given.
    place: F::Place,
    /// What has come, and was not given yet.
    heard: Option<Told<F>>,
}

/// Who waits for changes.
#[derive(Default)]
enum Follower<F: Feed> {
    /// Who takes a change.
    Caller(Box<Asked<F>>),
    /// A thread.
    Thread(Following<F>),
    #[default]
    Closed,
}

impl<F: Feed> Follower<F> {
    /// Waits until there is something to give, or this time is over.
    fn wait(&mut self, within: Duration) -> Result<(), Wrong> {
        match self {
            Follower::Caller(asked) => {
                if asked.heard.is_none() {
                    asked.heard = asked.feed.next(within)?;
                }
                if asked.heard.is_none() {
                    asked.place = asked.feed.place();
                }
                Ok(())
            }
            Follower::Thread(Following(shared)) => {
                let waiting = shared.lock();
                if waiting.heard.is_empty() && !within.is_zero() {
                    drop(shared.changed.wait_timeout(waiting, within.min(SLICE)));
                }
                Ok(())
            }
            Follower::Closed => Err(closed()),
        }
    }

    /// What has come, if there is something. Does not wait.
    fn give(&mut self) -> Result<Option<F::Item>, Wrong> {
        match self {
            Follower::Caller(asked) => {
                let given = asked.heard.take();
                Ok(given.map(|(item, step)| {
                    F::pass(&mut asked.place, &item, step);
                    item
                }))
            }
            Follower::Thread(Following(shared)) => {
                let mut waiting = shared.lock();
                let Some(heard) = waiting.heard.pop_front() else { return Ok(None) };
                let given = heard.map(|(item, step)| {
                    F::pass(&mut waiting.place, &item, step);
                    Some(item)
                });
                shared.show(&waiting);
                shared.changed.notify_all();
                given
            }
            Follower::Closed => Err(closed()),
        }
    }

    fn resync(&mut self, shard: Option<ShardIx>) -> Result<(), Wrong> {
        match self {
            Follower::Caller(asked) => {
                asked.feed.resync(shard)?;
                asked.heard.take_if(|(item, _)| F::is_void(item, shard));
                Ok(())
            }
            Follower::Thread(Following(shared)) => {
                let mut waiting = shared.lock();
                waiting.heard.retain(|heard| heard.as_ref().is_ok_and(|(item, _)| !F::is_void(item, shard)));
                if shard.is_none() {
                    waiting.resyncs.clear();
                }
                if !waiting.resyncs.contains(&shard) {
                    waiting.resyncs.push_back(shard);
                }
                shared.show(&waiting);
                shared.changed.notify_all();
                drop(waiting);
                (shared.interrupt)();
                Ok(())
            }
            Follower::Closed => Err(closed()),
        }
    }

    /// The descriptor, and a thread that makes it readable.
    fn descriptor(&mut self, interrupt: &Interrupt) -> io::Result<Option<i32>> {
        if let Follower::Caller(asked) = self {
            let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            let readable = rustix::event::eventfd(0, flags)?;
            let place = asked.place.clone();
            let waiting = Waiting { heard: VecDeque::new(), place, resyncs: VecDeque::new(), closed: false };
            let (waiting, changed) = (Mutex::new(waiting), Condvar::new());
            let shared = Arc::new(Shared { waiting, changed, readable, interrupt: Arc::clone(interrupt) });
            let (hand, handed) = mpsc::channel();
            let follows = shared.clone();
            // The feed is handed over when the thread is there: a system that refuses one does not end the feed.
            std::thread::Builder::new().name("oneread-changes".into()).spawn(move || {
                if let Ok(feed) = handed.recv() {
                    follows.follow(feed);
                }
            })?;
            let following = Follower::Thread(Following(shared.clone()));
            if let Follower::Caller(asked) = std::mem::replace(self, following) {
                let Asked { feed, heard, .. } = *asked;
                let mut waiting = shared.lock();
                waiting.heard.extend(heard.map(Ok));
                shared.show(&waiting);
                drop(waiting);
                let _ = hand.send(feed);
            }
        }
        Ok(match self {
            Follower::Thread(Following(shared)) => Some(shared.readable.as_raw_fd()),
            _ => None,
        })
    }
}

/// A feed, as a program has it: any thread may use it, in the process that has begun it.
pub(crate) struct Followed<F: Feed> {
    follower: PerProcess<Turn<Follower<F>>>,
    interrupt: Interrupt,
}

impl<F: Feed> Followed<F> {
    pub fn new(mut feed: F) -> io::Result<Followed<F>> {
        let interrupt = feed.interrupt()?;
        let asked = Asked { place: feed.place(), feed, heard: None };
        let follower = PerProcess::new(Turn::new(Follower::Caller(Box::new(asked))));
        Ok(Followed { follower, interrupt })
    }

    /// After other threads.
    fn take(&self, py: Python<'_>) -> PyResult<Taken<'_, Follower<F>>> {
        let follower = self.follower.own().ok_or_else(|| fork::refused(py, "feed", "begin another one"))?;
        follower.take_asking(py, || (self.interrupt)())?.ok_or_else(|| raised(py, closed()))
    }

    /// Does work that may wait, without the interpreter's lock, after other threads.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Follower<F>) -> R + Send) -> PyResult<R> {
        let mut taken = self.take(py)?;
        detached(py, move || work(&mut taken))
    }

    /// What comes next, within this time. Waits once, and not to the end if another thread wants the feed.
    fn next_within(&self, py: Python<'_>, within: Duration) -> PyResult<Option<F::Item>> {
        let mut taken = self.take(py)?;
        if let Some(item) = taken.give().map_err(|wrong| raised(py, wrong))? {
            return Ok(Some(item));
        }
        // What has come is kept, also if a handler of a signal raises something.
        detached_for_long(py, || taken.wait(within))?.map_err(|wrong| raised(py, wrong))?;
        taken.give().map_err(|wrong| raised(py, wrong))
    }

    /// The next change. Waits for it.
    pub fn next(&self, py: Python<'_>) -> PyResult<F::Item> {
        loop {
            if let Some(next) = self.next_within(py, LONGEST)? {
                return Ok(next);
            }
            py.check_signals()?;
        }
    }

    /// The next change, if there is one within so many seconds.
    pub fn poll(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<F::Item>> {
        let (begun, within) = (Instant::now(), seconds(py, timeout, "timeout")?);
        loop {
            let left = within.saturating_sub(begun.elapsed());
            if let Some(next) = self.next_within(py, left)? {
                return Ok(Some(next));
            }
            if left.is_zero() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// A descriptor that is readable while there is something to poll. From the first call on, a thread waits.
    pub fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.with(py, |follower| follower.descriptor(&self.interrupt))??.ok_or_else(|| raised(py, closed()))
    }

    pub fn resync(&self, py: Python<'_>, shard: Option<ShardIx>) -> PyResult<()> {
        self.with(py, |follower| follower.resync(shard))?.map_err(|wrong| raised(py, wrong))
    }

    /// Where another feed goes on that is to hear what this one has not given.
    pub fn place<R: Send>(&self, py: Python<'_>, look: impl FnOnce(&F::Place) -> R + Send) -> PyResult<R> {
        let place = self.with(py, |follower| match follower {
            Follower::Caller(asked) => Some(look(&asked.place)),
            Follower::Thread(Following(shared)) => Some(look(&shared.lock().place)),
            Follower::Closed => None,
        })?;
        place.ok_or_else(|| raised(py, closed()))
    }

    /// Ends it. A call that waits for a change ends soon after, as closed.
    pub fn close(&self, py: Python<'_>) {
        if let Some(follower) = self.follower.own() {
            py.detach(|| {
                drop(follower.close());
                (self.interrupt)();
            });
        }
    }
}

#[cold]
fn raised(py: Python<'_>, (class, text): Wrong) -> pyo3::PyErr {
    error_of(py, class, text)
}
