//! The feed of changes of a cluster.

use super::ClusterClient;
use crate::calls::made;
use crate::convert::bytes_of;
use crate::error::error_of;
use crate::feed::{Start, left};
use crate::follow::{Feed, Followed, Interrupt, Told, Wrong, wrong};
use crate::verbs::Verbs;
use oneread_cluster::client::{ClusterFeed, ClusterFeedItem, ClusterFeedOptions, ClusterPosition, FeedAt};
use oneread_cluster::core::state::{ClusterConfig, ShardIx};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyBytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Each so many items, what was left out before them is noted in the place as well.
const WHOLE: usize = 64;

/// A feed, and how many items it has told since it was last said where it is.
struct OfCluster {
    feed: ClusterFeed,
    told: usize,
}

impl Feed for OfCluster {
    type Item = ClusterFeedItem;
    type Place = ClusterPosition;
    /// The whole place, which is as large as there are shards. `None`: the item says enough. Changes of keys that are not
    /// wanted may be heard again then, and left out again.
    type Step = Option<Box<ClusterPosition>>;

    fn next(&mut self, within: Duration) -> Result<Option<Told<Self>>, Wrong> {
        let Some(item) = self.feed.next(within).map_err(|error| wrong(&error))? else { return Ok(None) };
        self.told = (self.told + 1) % WHOLE;
        Ok(Some((item, (self.told == 0).then(|| Box::new(self.feed.position().clone())))))
    }

    fn interrupt(&mut self) -> io::Result<Interrupt> {
        let interrupter = self.feed.interrupter();
        Ok(Arc::new(move || interrupter.interrupt()))
    }

    fn resync(&mut self, shard: Option<ShardIx>) -> Result<(), Wrong> {
        self.feed.resync(shard);
        Ok(())
    }

    fn place(&self) -> ClusterPosition {
        self.feed.position().clone()
    }

    fn pass(place: &mut ClusterPosition, item: &ClusterFeedItem, step: Self::Step) {
        match step {
            Some(whole) => *place = *whole,
            None => place.pass(item),
        }
    }

    /// Changes are not told again: they stay.
    fn is_void(item: &ClusterFeedItem, resync: Option<ShardIx>) -> bool {
        item.is_void_after(resync)
    }
}

/// The changes of a cluster, one after the other.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct ClusterChanges {
    config: ClusterConfig,
    followed: Followed<OfCluster>,
}

impl ClusterChanges {
    /// The item as Python has it.
    fn item<'py>(&self, py: Python<'py>, item: ClusterFeedItem) -> PyResult<Bound<'py, PyAny>> {
        let place = |shard: ShardIx, at: FeedAt| (Some(shard), at.epoch, at.number);
        let nowhere = (None, 0, 0);
        let (kind, key, value, (shard, epoch, number), cause) = match item {
            ClusterFeedItem::Key { shard, key, value } => {
                ("key", Some(key), value, (Some(shard), 0, 0), None)
            }
            ClusterFeedItem::Joined { shard } => ("joined", None, None, (shard, 0, 0), None),
            ClusterFeedItem::Came { shard, at, key, value } => {
                ("came", Some(key), value, place(shard, at), None)
            }
            ClusterFeedItem::Replaced { shard, at, key, value } => {
                ("replaced", Some(key), value, place(shard, at), None)
            }
            ClusterFeedItem::Left { shard, at, key, cause } => {
                ("left", Some(key), None, place(shard, at), Some(left(cause)))
            }
            ClusterFeedItem::Gap { shard, to, .. } => ("gap", None, None, place(shard, to), None),
            _ => ("other", None, None, nowhere, None),
        };
        let (key, value) =
            (key.map(|key| PyBytes::new(py, &key)), value.map(|value| PyBytes::new(py, &value)));
        made(py, "ClusterChange", (kind, key, value, shard, epoch, number, cause))
    }
}

#[pyo3::pymethods]
impl ClusterChanges {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next change. Waits for it.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.item(py, self.followed.next(py)?)
    }

    /// The next change, if there is one within so many seconds. While keys are shown, a node that does not answer may hold
    /// it up for the client's time.
    #[pyo3(signature = (timeout=0.0, /))]
    fn poll<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.followed.poll(py, timeout)?.map(|next| self.item(py, next)).transpose()
    }

    /// A descriptor that is readable while there is something to poll. From the first call on, a thread of the library
    /// waits for changes.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.followed.fileno(py)
    }

    /// All keys that are there come, of this shard or of all, beside what becomes of them. Whoever keeps a copy removes
    /// those keys first.
    #[pyo3(signature = (shard=None))]
    fn resync(&self, py: Python<'_>, shard: Option<ShardIx>) -> PyResult<()> {
        let shards = self.config.shards;
        if let Some(shard) = shard.filter(|shard| *shard >= shards) {
            let text = format!("shard is {shard}; the cluster has {shards}, from 0 on");
            return Err(error_of(py, "Invalid", text));
        }
        self.followed.resync(py, shard)
    }

    /// Where another feed goes on that is to hear what this one has not given: bytes, to be kept, for any process.
    #[getter]
    fn position<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let kept = self.followed.place(py, serde_json::to_vec)?;
        let kept = kept.map_err(|error| error_of(py, "OnereadError", format!("the position: {error}")))?;
        Ok(PyBytes::new(py, &kept))
    }

    /// The number of the shard that has this key. Asks nobody.
    #[pyo3(signature = (key, /))]
    fn shard_of(&self, key: &Bound<'_, PyAny>) -> PyResult<ShardIx> {
        Ok(self.config.shard_of(&bytes_of(key, "a key")?))
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

#[pyo3::pymethods]
impl ClusterClient {
    /// Follows the changes of all shards. `start`: `"now"`, `"keys"` (all keys first), or the `position` of another feed, of
    /// any process. From the return on every change is told, once, in order for each shard, over failovers and moves.
    ///
    /// It has connections of its own, and goes on when the client is closed.
    ///
    /// Raises `Unavailable` if a shard has no primary in time, and `Invalid` if the position is of another cluster.
    #[pyo3(signature = (*, start=None, prefix=None, values=false))]
    fn changes(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        values: bool,
    ) -> PyResult<ClusterChanges> {
        let options = ClusterFeedOptions::new().values(values);
        let mut options = match Start::of(start)? {
            Start::Now => options,
            Start::Keys => options.keys(true),
            Start::At(start) => options.from(position(py, &bytes_of(start, "start")?)?),
        };
        if let Some(prefix) = prefix {
            options = options.prefix(bytes_of(prefix, "prefix")?);
        }
        let feed = self.ask(py, |client| client.changes(options.clone()))?;
        let followed = Followed::new(OfCluster { feed, told: 0 })?;
        Ok(ClusterChanges { config: self.config.clone(), followed })
    }
}

fn position(py: Python<'_>, kept: &[u8]) -> PyResult<ClusterPosition> {
    serde_json::from_slice(kept).map_err(|error| {
        let text = format!("start is no position of a cluster's feed: {error}; give what one's position was");
        error_of(py, "Invalid", text)
    })
}
