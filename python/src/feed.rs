//! The feed of changes of a table.

use crate::calls::made;
use crate::client::Client;
use crate::convert::{bytes_of, extracted};
use crate::error::error_of;
use crate::follow::{Feed, Followed, Interrupt, Told, Wrong, wrong};
use crate::verbs::Verbs;
use oneread::{ChangeFeed, FeedFrom, FeedItem, FeedOptions, FeedPosition, GapCause, LeftCause};
use oneread_cluster::core::state::ShardIx;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::{PyBytes, PyString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

impl Feed for ChangeFeed {
    type Item = FeedItem;
    type Place = FeedPosition;
    /// The whole place.
    type Step = FeedPosition;

    fn next(&mut self, within: Duration) -> Result<Option<Told<Self>>, Wrong> {
        let item = ChangeFeed::next(self, within).map_err(|error| wrong(&error))?;
        Ok(item.map(|item| (item, self.position())))
    }

    fn interrupt(&mut self) -> io::Result<Interrupt> {
        let interrupter = self.interrupter()?;
        Ok(Arc::new(move || interrupter.interrupt()))
    }

    fn resync(&mut self, _: Option<ShardIx>) -> Result<(), Wrong> {
        ChangeFeed::resync(self).map_err(|error| wrong(&error))
    }

    fn place(&self) -> FeedPosition {
        self.position()
    }

    fn pass(place: &mut FeedPosition, _: &FeedItem, step: FeedPosition) {
        *place = step;
    }

    /// Changes are told from the new place on.
    fn is_void(_: &FeedItem, _: Option<ShardIx>) -> bool {
        true
    }
}

/// The changes of a table, one after the other.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct Changes {
    followed: Followed<ChangeFeed>,
    /// Who has a server started where none is there.
    client: Py<Client>,
}

fn triple(position: FeedPosition) -> (u64, u64, u64) {
    (position.table, position.launch, position.number)
}

fn position(given: (u64, u64, u64)) -> FeedPosition {
    let mut position = FeedPosition::default();
    (position.table, position.launch, position.number) = given;
    position
}

/// Why a key left, in a word.
pub(crate) fn left(cause: LeftCause) -> &'static str {
    match cause {
        LeftCause::Removed => "removed",
        LeftCause::Expired => "expired",
        LeftCause::OwnerGone => "owner_gone",
        LeftCause::Evicted => "evicted",
        _ => "other",
    }
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
            cause = Some(left(why));
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
        item(py, self.client.get().mending(py, || self.followed.next(py))?)
    }

    /// The next change, if there is one within so many seconds.
    #[pyo3(signature = (timeout=0.0, /))]
    fn poll<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let next = self.client.get().mending(py, || self.followed.poll(py, timeout))?;
        next.map(|next| item(py, next)).transpose()
    }

    /// A descriptor that is readable while there is something to poll. From the first call on, a thread of the library
    /// asks the server.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.followed.fileno(py)
    }

    /// From now on all keys that are there come, and then what becomes of them.
    fn resync(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().mending(py, || self.followed.resync(py, None))
    }

    /// Where another feed goes on that is to hear what this one has not given.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        self.followed.place(py, |place| triple(*place))
    }

    /// Ends the feed. A call that waits for a change ends soon after, as closed. Closing it again does nothing.
    fn close(&self, py: Python<'_>) {
        self.followed.close(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.followed.close(py);
    }
}

/// Where a feed begins, as a program says it: with the next change, all keys, or another one's position.
pub(crate) enum Start<'a, 'py> {
    Now,
    Keys,
    At(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Start<'a, 'py> {
    pub fn of(start: Option<&'a Bound<'py, PyAny>>) -> PyResult<Start<'a, 'py>> {
        let Some(start) = start else { return Ok(Start::Now) };
        match start.cast::<PyString>() {
            Ok(name) if name == "now" => Ok(Start::Now),
            Ok(name) if name == "keys" => Ok(Start::Keys),
            Ok(name) => {
                let text =
                    format!("start is {name:?}; there are: now, keys, or the position of another feed");
                Err(error_of(start.py(), "Invalid", text))
            }
            Err(_) => Ok(Start::At(start)),
        }
    }
}

#[pyo3::pymethods]
impl Client {
    /// Follows the changes of the table. `start`: `"now"`, `"keys"` (all keys first), or the `position` of another feed.
    #[pyo3(signature = (*, start=None, prefix=None, values=false))]
    fn changes(
        slf: Py<Self>,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        values: bool,
    ) -> PyResult<Changes> {
        let from = match Start::of(start)? {
            Start::Now => FeedFrom::Now,
            Start::Keys => FeedFrom::Keys,
            Start::At(start) => FeedFrom::Position(position(extracted(start, "start")?)),
        };
        let mut options = FeedOptions::new().from(from).values(values);
        if let Some(prefix) = prefix {
            options.prefix = bytes_of(prefix, "prefix")?.into_owned();
        }
        let feed = slf.get().ask(py, |client| client.changes(options.clone()).map_err(Box::new))?;
        Ok(Changes { followed: Followed::new(feed)?, client: slf })
    }
}
