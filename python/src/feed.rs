//! The feed of changes.
//!
//! The library asks the server again and again, and has no descriptor that says when there is something. So for
//! who waits with others, as `asyncio` does, one thread asks, and a descriptor of ours is readable as long as something
//! is there. Who takes one change after the other needs neither.

use crate::calls::made;
use crate::client::Client;
use crate::convert::{bytes_of, extracted, seconds};
use crate::error::{Classed, Raise, error_of, told};
use crate::fork;
use crate::turn::Turn;
use crate::waiting::detached;
use oneread::{ChangeFeed, FeedError, FeedFrom, FeedItem, FeedOptions, FeedPosition, GapCause, LeftCause};
use pyo3::prelude::{Bound, Py, PyAny, PyErr, PyResult, Python};
use pyo3::types::{PyBytes, PyString};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// After so long it is looked whether the program is to be interrupted, or the feed closed.
const SLICE: Duration = Duration::from_millis(50);
/// So many changes wait for the program. Then no more are asked for.
const WAITING: usize = 4096;
/// The pause after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// What is heard: an item, and where a follower goes on after it; or an error.
type Heard = Result<(FeedItem, FeedPosition), (&'static str, String)>;

fn wrong(error: &FeedError) -> (&'static str, String) {
    (error.class(), told(error))
}

/// What the thread and the program share.
struct Shared {
    waiting: Mutex<Waiting>,
    /// Told of every change of `waiting`.
    changed: Condvar,
    /// Readable while something is waiting.
    readable: OwnedFd,
}

struct Waiting {
    heard: VecDeque<Heard>,
    position: FeedPosition,
    /// The program wants all keys anew.
    resync: bool,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable, or not, as there is something or not. With the lock.
    fn show(&self, waiting: &Waiting) {
        if waiting.heard.is_empty() && !waiting.closed {
            let _ = rustix::io::read(&self.readable, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
        }
    }

    /// What the thread does until the feed is closed.
    fn follow(&self, mut feed: ChangeFeed) {
        loop {
            let mut waiting = self.lock();
            while waiting.heard.len() >= WAITING && !waiting.closed && !waiting.resync {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            if waiting.closed {
                return;
            }
            let resync = std::mem::take(&mut waiting.resync);
            drop(waiting);
            let heard = match resync {
                true => feed.resync().map(|()| None),
                false => feed.next(SLICE),
            };
            let has_failed = heard.is_err();
            let mut waiting = self.lock();
            // What was asked for before does not count any more.
            if waiting.resync {
                continue;
            }
            waiting.resync |= resync && has_failed;
            match heard {
                Ok(None) => {}
                Ok(Some(item)) => waiting.heard.push_back(Ok((item, feed.position()))),
                // Once, until the program has heard of it.
                Err(_) if matches!(waiting.heard.back(), Some(Err(_))) => {}
                Err(error) => waiting.heard.push_back(Err(wrong(&error))),
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
struct Following {
    process: u64,
    shared: Arc<Shared>,
}

impl Drop for Following {
    fn drop(&mut self) {
        // In a child, a lock may be held by a thread that is not there.
        if self.process == fork::process() {
            self.shared.lock().closed = true;
            self.shared.changed.notify_all();
        }
    }
}

/// Who asks the server.
#[derive(Default)]
enum Follower {
    /// Who takes a change.
    Caller(Box<ChangeFeed>),
    /// A thread.
    Thread(Following),
    #[default]
    Closed,
}

/// The changes of a table, one after the other.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct Changes {
    process: u64,
    follower: Turn<Follower>,
}

impl Changes {
    /// Does work that may wait, without the interpreter's lock, after other threads.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Follower) -> R + Send) -> PyResult<R> {
        fork::check(py, self.process, "feed", "begin another one")?;
        let mut taken = self.follower.take(py)?.ok_or_else(|| closed(py))?;
        detached(py, move || work(&mut taken))
    }

    /// What comes next, within this time. Waits once, for a slice of it at most.
    fn next_within(&self, py: Python<'_>, within: Duration) -> PyResult<Option<FeedItem>> {
        let heard = self.with(py, |follower| match follower {
            Follower::Closed => None,
            Follower::Caller(feed) => {
                let heard = feed.next(within).map_err(|error| wrong(&error));
                Some(heard.map(|item| item.map(|item| (item, feed.position()))).transpose())
            }
            Follower::Thread(Following { shared, .. }) => {
                let mut waiting = shared.lock();
                if waiting.heard.is_empty() && !within.is_zero() {
                    let waited = shared.changed.wait_timeout(waiting, within);
                    waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                let heard = waiting.heard.pop_front();
                if let Some(Ok((_, position))) = &heard {
                    waiting.position = *position;
                }
                shared.show(&waiting);
                shared.changed.notify_all();
                Some(heard)
            }
        })?;
        match heard {
            None => Err(closed(py)),
            Some(None) => Ok(None),
            Some(Some(Ok((item, _)))) => Ok(Some(item)),
            Some(Some(Err((class, text)))) => Err(error_of(py, class, text)),
        }
    }
}

#[cold]
fn closed(py: Python<'_>) -> PyErr {
    error_of(py, "Closed", "this feed was closed; begin another one".into())
}

fn triple(position: FeedPosition) -> (u64, u64, u64) {
    (position.table, position.incarnation, position.number)
}

fn position(given: (u64, u64, u64)) -> FeedPosition {
    let mut position = FeedPosition::default();
    (position.table, position.incarnation, position.number) = given;
    position
}

/// The item as Python has it.
fn item<'py>(py: Python<'py>, item: FeedItem) -> PyResult<Bound<'py, PyAny>> {
    let bytes = |bytes: Option<Vec<u8>>| bytes.map(|bytes| PyBytes::new(py, &bytes));
    let (mut cause, mut gap) = (None, None);
    let (kind, key, value, owner, number) = match item {
        FeedItem::Key { key, value, owner } => ("key", Some(key), value, owner, 0),
        FeedItem::Joined => ("joined", None, None, 0, 0),
        FeedItem::Came { number, key, value, owner } => ("came", Some(key), value, owner, number),
        FeedItem::Replaced { number, key, value, owner } => ("replaced", Some(key), value, owner, number),
        FeedItem::Left { number, key, cause: why } => {
            cause = Some(match why {
                LeftCause::Removed => "removed",
                LeftCause::Expired => "expired",
                LeftCause::OwnerGone => "owner_gone",
                LeftCause::Evicted => "evicted",
                _ => "other",
            });
            ("left", Some(key), None, 0, number)
        }
        FeedItem::OwnerGone { number, owner } => ("owner_gone", None, None, owner, number),
        FeedItem::Gap { from, to, cause: why } => {
            cause = Some(match why {
                GapCause::TooSlow => "too_slow",
                GapCause::OtherServer => "other_server",
                GapCause::OtherTable => "other_table",
                _ => "other",
            });
            gap = Some((triple(from), triple(to)));
            ("gap", None, None, 0, to.number)
        }
        _ => ("other", None, None, 0, 0),
    };
    made(py, "Change", (kind, bytes(key), bytes(value), owner, number, cause, gap))
}

#[pyo3::pymethods]
impl Changes {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next change. Waits for it.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        loop {
            if let Some(next) = self.next_within(py, SLICE)? {
                return item(py, next);
            }
            py.check_signals()?;
        }
    }

    /// The next change, if there is one within so many seconds.
    #[pyo3(signature = (timeout=0.0, /))]
    fn poll<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (begun, within) = (Instant::now(), seconds(py, timeout, "timeout")?);
        loop {
            let left = within.saturating_sub(begun.elapsed());
            if let Some(next) = self.next_within(py, left.min(SLICE))? {
                return item(py, next).map(Some);
            }
            if left.is_zero() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// A descriptor that is readable while there is something to poll. From the first call on, a thread of the library
    /// asks the server.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let number = self.with(py, |follower| {
            if let Follower::Caller(feed) = follower {
                let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
                let waiting = Waiting {
                    heard: VecDeque::new(),
                    position: feed.position(),
                    resync: false,
                    closed: false,
                };
                let readable = rustix::event::eventfd(0, flags)?;
                let shared =
                    Arc::new(Shared { waiting: Mutex::new(waiting), changed: Condvar::new(), readable });
                let (hand, handed) = mpsc::channel();
                let follows = shared.clone();
                // The feed is handed over when the thread is there: a system that refuses one does not end the feed.
                std::thread::Builder::new().name("oneread-changes".into()).spawn(move || {
                    if let Ok(feed) = handed.recv() {
                        follows.follow(feed);
                    }
                })?;
                let following = Follower::Thread(Following { process: self.process, shared });
                if let Follower::Caller(feed) = std::mem::replace(follower, following) {
                    let _ = hand.send(*feed);
                }
            }
            io::Result::Ok(match follower {
                Follower::Thread(Following { shared, .. }) => Some(shared.readable.as_raw_fd()),
                _ => None,
            })
        })?;
        number?.ok_or_else(|| closed(py))
    }

    /// From now on all keys that are there come, and then what becomes of them.
    fn resync(&self, py: Python<'_>) -> PyResult<()> {
        let synced = self.with(py, |follower| match follower {
            Follower::Closed => None,
            Follower::Caller(feed) => Some(feed.resync()),
            Follower::Thread(Following { shared, .. }) => {
                let mut waiting = shared.lock();
                waiting.heard.clear();
                waiting.resync = true;
                shared.show(&waiting);
                shared.changed.notify_all();
                Some(Ok(()))
            }
        })?;
        synced.ok_or_else(|| closed(py))?.raise(py)
    }

    /// Where another feed goes on that is to hear what this one has not given.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let position = self.with(py, |follower| match follower {
            Follower::Closed => None,
            Follower::Caller(feed) => Some(feed.position()),
            Follower::Thread(Following { shared, .. }) => Some(shared.lock().position),
        })?;
        position.map(triple).ok_or_else(|| closed(py))
    }

    /// Ends the feed. A call that waits for a change ends soon after, as closed. Closing it again does nothing.
    fn close(&self, py: Python<'_>) {
        if self.process == fork::process() {
            py.detach(|| drop(self.follower.close()));
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}

#[pyo3::pymethods]
impl Client {
    /// Follows the changes of the table. `start`: `"now"`, `"keys"` (all keys first), or the `position` of another feed.
    #[pyo3(signature = (*, start=None, prefix=None, values=false))]
    fn changes(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        values: bool,
    ) -> PyResult<Changes> {
        let from = match start {
            None => FeedFrom::Now,
            Some(start) => match start.cast::<PyString>() {
                Ok(name) if name == "now" => FeedFrom::Now,
                Ok(name) if name == "keys" => FeedFrom::Keys,
                Ok(name) => {
                    let text =
                        format!("start is {name:?}; there are: now, keys, or the position of another feed");
                    return Err(error_of(py, "Invalid", text));
                }
                Err(_) => FeedFrom::Position(position(extracted(start, "start")?)),
            },
        };
        let mut options = FeedOptions::new().from(from).values(values);
        if let Some(prefix) = prefix {
            options.prefix = bytes_of(prefix, "prefix")?.into_owned();
        }
        let feed = self.ask(py, |client| client.changes(options).map_err(Box::new))?;
        Ok(Changes { process: fork::process(), follower: Turn::new(Follower::Caller(Box::new(feed))) })
    }
}
