//! `oneread.ClusterClient`: the client of a cluster, with Python's buffers.
//!
//! All calls are done without the interpreter's lock, gets, too: a node may be on another host, and a failover takes
//! seconds.

mod feed;
mod pool;
mod scan;

use crate::client::closed;
use crate::convert::{bytes_of, seconds};
use crate::error::{Classed, Raise, error_at};
use crate::fork::PerProcess;
use crate::keys::{CHUNK, Items, Pair};
use crate::options::{self, Arguments, ClusterArguments};
use crate::verbs::{Outcomes, Puts, Verbs};
use crate::waiting::detached;
pub(crate) use feed::ClusterChanges;
use oneread::{OwnerOptions, PutMode, PutOptions, SwapOutcome};
use oneread_cluster::client::{self, ClusterError};
use oneread_cluster::core::state::ClusterConfig;
use pool::Pool;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::{PyBytes, PyDict, PyList, PyListMethods};
pub(crate) use scan::ClusterScan;

/// After so many gets of a batch it is looked whether the program is to be interrupted. Each such part has the client's
/// time for itself.
const GETS: usize = 32 * CHUNK;

/// A client of a cluster of tables (docs/CLUSTER.md). Any thread may use it, and several at a time.
///
/// A get is one READ at the node that serves the key, and a look at the clock; it is linearizable. Changes are requests to
/// that node: when they return, all standbys in sync have them.
///
/// `name` is the cluster's, `etcd` the URLs of its etcd: some, or one text with commas. `timeout`: the seconds that a call
/// may take, 10; a failover takes less than two TTLs of the cluster, 4. `secret`: what the cluster's nodes and clients
/// know. `exactly_once`: outcomes of changes are remembered, so that a change whose answer was lost is made again and
/// still once. Each change then takes two, and the cluster an entry a shard for each thread that ever called at the
/// same time as others.
///
/// Raises `Invalid` if there is no such cluster, `Disconnected` or `Timeout` if etcd does not answer (`etcd_timeout`, 2
/// seconds), `Refused` if it wants another user.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct ClusterClient {
    arguments: ClusterArguments,
    config: ClusterConfig,
    owner: Option<OwnerOptions>,
    handles: PerProcess<Pool>,
}

fn connect(
    py: Python<'_>,
    arguments: &ClusterArguments,
    owner: Option<OwnerOptions>,
) -> PyResult<client::ClusterClient> {
    let ClusterArguments { name, etcd, options, exactly_once } = arguments;
    let connect = || client::ClusterClient::connect(name.clone(), etcd.clone(), options.clone());
    let client = detached(py, connect)?.raise(py)?.exactly_once(*exactly_once);
    match owner {
        Some(owner) => detached(py, move || client.owner(owner))?.raise(py),
        None => Ok(client),
    }
}

impl ClusterClient {
    fn with_owner(
        py: Python<'_>,
        arguments: ClusterArguments,
        owner: Option<OwnerOptions>,
    ) -> PyResult<ClusterClient> {
        let first = connect(py, &arguments, owner)?;
        let config = first.config().clone();
        Ok(ClusterClient { arguments, config, owner, handles: PerProcess::new(Pool::new(first)) })
    }

    /// The handles of this process. Connects, in a child of the process that has connected.
    fn handles(&self, py: Python<'_>) -> PyResult<&Pool> {
        self.handles.get(|parents| match parents.is_open() {
            true => connect(py, &self.arguments, self.owner).map(Pool::new),
            false => Err(closed(py)),
        })
    }

    /// Does work that may wait, without the interpreter's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut client::ClusterClient) -> R + Send,
    ) -> PyResult<R> {
        let handles = self.handles(py)?;
        detached(py, || handles.with(work))?.ok_or_else(|| closed(py))
    }

    /// Refuses what can be in no table of the cluster, before anything is done.
    fn check_all<'k>(
        &self,
        py: Python<'_>,
        entries: impl Iterator<Item = (&'k [u8], usize)>,
    ) -> PyResult<()> {
        let mut entries = entries.enumerate();
        let wrong = entries.find(|(_, (key, value_len))| !self.config.may_hold(key, *value_len));
        let Some((number, (key, value_len))) = wrong else { return Ok(()) };
        let (key_max, value_max) = (self.config.key_max.into(), self.config.value_max as usize);
        let error = ClusterError::Invalid { key_len: key.len(), value_len, key_max, value_max };
        Err(error_at(py, error.class(), format!("key {number}: {error}"), number))
    }
}

impl Verbs for ClusterClient {
    type Handle = client::ClusterClient;
    type Refusal = ClusterError;
    type Put = bool;
    type PutError = ClusterError;
    const PUT: Puts<client::ClusterClient, bool, ClusterError> = client::ClusterClient::put_with;

    fn ask<R: Send, E: Classed + Send>(
        &self,
        py: Python<'_>,
        work: impl FnMut(&mut client::ClusterClient) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        self.with(py, work)?.raise(py)
    }

    fn change_part<E: Classed + Send>(
        &self,
        py: Python<'_>,
        outcomes: &mut Outcomes<ClusterError>,
        mut work: impl FnMut(&mut client::ClusterClient, &mut Outcomes<ClusterError>) -> Result<(), E> + Send,
    ) -> PyResult<()> {
        let asked = self.with(py, |client| work(client, outcomes));
        asked.map_err(|error| outcomes.broken_off(py, error))?.raise(py)
    }

    fn check_pairs(&self, py: Python<'_>, pairs: &[Pair<'_>]) -> PyResult<()> {
        self.check_all(py, pairs.iter().map(|(key, value)| (&**key, value.len())))
    }
}

fn some_bytes<'py>(py: Python<'py>, value: Option<Vec<u8>>) -> Option<Bound<'py, PyAny>> {
    value.map(|value| PyBytes::new(py, &value).into_any())
}

#[pyo3::pymethods]
impl ClusterClient {
    #[new]
    #[pyo3(signature = (name, etcd=None, *, timeout=None, **options))]
    fn new<'py>(
        py: Python<'py>,
        name: &str,
        etcd: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<ClusterClient> {
        let given = Arguments::new(py, options)?;
        let arguments = given.cluster(name, etcd, timeout)?;
        given.end("ClusterClient")?;
        crate::log::begin();
        ClusterClient::with_owner(py, arguments, None)
    }

    /// Another client, which puts as this owner: what it puts, inserts or updates is the owner's, and goes with it. When
    /// a shard has not heard of it for `absent_for` seconds, or somebody calls `remove_owner`, it puts no more there, and
    /// the owner's entries leave one after the other. An owner has one such client at a time: not a forked child beside its
    /// parent.
    ///
    /// Raises `Refused` if the owner has another one, or its entries are still leaving, and so do puts when it was removed or
    /// away; `Invalid` for a number or a time that cannot be, and where entries have no owners (`oneread serve --life`).
    #[pyo3(signature = (number, *, absent_for=10.0))]
    fn owner(&self, py: Python<'_>, number: u16, absent_for: f64) -> PyResult<ClusterClient> {
        let owner = OwnerOptions::new(number).absent_for(seconds(py, absent_for, "absent_for")?);
        ClusterClient::with_owner(py, self.arguments.clone(), Some(owner))
    }

    /// Removes all entries of an owner, and waits until they are gone: no get that begins after that finds one. Whether there
    /// was such an owner.
    ///
    /// Raises `Timeout` if some are left when the time for a call is over: call it again.
    #[pyo3(signature = (number, /))]
    fn remove_owner(&self, py: Python<'_>, number: u16) -> PyResult<bool> {
        self.ask(py, |client| client.remove_owner(number))
    }

    /// The cluster's name.
    #[getter]
    fn name(&self) -> String {
        self.arguments.name.to_string()
    }

    /// The longest key that the cluster takes, in bytes.
    #[getter]
    fn key_max(&self) -> usize {
        self.config.key_max.into()
    }

    /// The longest value that the cluster takes, in bytes.
    #[getter]
    fn value_max(&self) -> usize {
        self.config.value_max as usize
    }

    /// How many shards the cluster has.
    #[getter]
    fn shards(&self) -> usize {
        self.config.shards.into()
    }

    /// The number of the shard that has this key. Asks nobody.
    #[pyo3(signature = (key, /))]
    fn shard_of(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.config.shard_of(&bytes_of(key, "a key")?).into())
    }

    /// Whether a get of this key would be believed at once: a lease covers its shard. Asks nobody. The first get at a node
    /// waits for one, up to half a second with the default times.
    #[pyo3(signature = (key, /))]
    fn has_lease(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.with(py, |client| client.has_lease(&key))
    }

    /// The value of `key`, or `default` if it is absent: linearizable. One READ at the key's primary.
    ///
    /// Raises `Unavailable` if no value could be believed in time, and `KeyTooLong`.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes_of(key, "a key")?;
        let value = self.ask(py, |client| client.get(&key))?;
        Ok(some_bytes(py, value).or(default))
    }

    /// Whether the key is in the cluster: a get whose value nobody sees.
    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.ask(py, |client| client.get_into(&key, &mut Vec::new()))
    }

    /// The value of `key` in any whole copy, the primary's first; `default` if that copy has no such key. Never torn,
    /// perhaps old. It goes on while etcd and primaries are gone.
    ///
    /// Raises `Unavailable` at once if no copy can be read.
    #[pyo3(signature = (key, default=None, /))]
    fn get_advisory<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = bytes_of(key, "a key")?;
        let value = self.ask(py, |client| client.get_advisory(&key))?;
        Ok(some_bytes(py, value).or(default))
    }

    /// The values of many keys, in order: `None` for each that is absent. One READ each, many at once at each node.
    ///
    /// Each value is linearizable; all of them are no snapshot. Errors are as those of `get`, for any of them.
    #[pyo3(signature = (keys, /, *, width=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let kept = Items::of(keys, width, "keys")?.keep(py)?;
        let keys = kept.bytes("key")?;
        self.check_all(py, keys.iter().map(|key| (&**key, 0)))?;
        let all = PyList::empty(py);
        for part in keys.chunks(GETS) {
            let values = self.ask(py, |client| client.get_many(part))?;
            values.into_iter().try_for_each(|value| all.append(some_bytes(py, value)))?;
            py.check_signals()?;
        }
        Ok(all.into_any())
    }

    /// Gives the key this value, new or not. When it returns, it is visible, and all standbys in sync have it.
    ///
    /// With `ttl` (seconds) the entry leaves after that time, usually some milliseconds later; where nodes have lives
    /// (`oneread serve --life`).
    ///
    /// Raises `NotDone` if it was certainly not made, `Unknown` if it may have been, or may yet be; `Full`, `KeyTooLong`,
    /// `ValueTooLong`. After Ctrl-C it may have been made.
    #[pyo3(signature = (key, value, /, *, ttl=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<()> {
        self.put_one(py, key, value, (PutMode::Upsert, ttl)).map(drop)
    }

    /// Inserts the key if it is absent. Whether it was. Errors, and `ttl`, are as those of `put`.
    #[pyo3(signature = (key, value, /, *, ttl=None))]
    fn insert(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<bool> {
        self.put_one(py, key, value, (PutMode::Insert, ttl))
    }

    /// Gives the key this value if it is there. Whether it was. Errors, and `ttl`, are as those of `put`.
    #[pyo3(signature = (key, value, /, *, ttl=None))]
    fn update(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<bool> {
        self.put_one(py, key, value, (PutMode::Update, ttl))
    }

    /// Removes the key. Whether it was there. Errors are as those of `put`.
    #[pyo3(signature = (key, /))]
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        self.ask(py, |client| client.remove(&key))
    }

    /// Gives the key `value` if it has `expected`. Whether it had. Errors are as those of `put`.
    #[pyo3(signature = (key, expected, value, /))]
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let key = bytes_of(key, "a key")?;
        let (expected, value) = (bytes_of(expected, "the expected value")?, bytes_of(value, "a value")?);
        Ok(self.ask(py, |client| client.compare_and_swap(&key, &expected, &value))? == SwapOutcome::Swapped)
    }

    /// Puts many keys with their values, each by itself: no transaction. `ttl` is as that of `put`, for all.
    ///
    /// Lengths are looked at first: where one is wrong, nothing is put. Where the cluster does not take some, the error has
    /// the numbers of those keys: `rejected` were certainly not put, and `unknown` may have been. It is an `Unknown` if
    /// there are any such.
    #[pyo3(signature = (keys, values, /, *, width=None, value_width=None, ttl=None))]
    fn put_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        width: Option<usize>,
        value_width: Option<usize>,
        ttl: Option<f64>,
    ) -> PyResult<()> {
        let options = PutOptions::new().ttl(options::ttl(py, ttl)?);
        let put = self.put_all(py, (keys, width), (values, value_width), |client, part, note| {
            let ended = client.put_many_with(part, options)?;
            ended.into_iter().enumerate().for_each(|(number, outcome)| note(number, outcome));
            Ok::<_, ClusterError>(())
        });
        put.map(drop)
    }

    /// Ends the client's connections, and its threads. A call that is under way ends as it would have. Closing it again
    /// does nothing.
    fn close(&self, py: Python<'_>) {
        if let Some(handles) = self.handles.own() {
            py.detach(|| handles.close());
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let ClusterArguments { name, etcd, .. } = &self.arguments;
        format!("oneread.ClusterClient({:?}, etcd={:?})", name.to_string(), etcd.endpoints)
    }
}
