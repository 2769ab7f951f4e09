//! `oneread.Client`: the library's client, with Python's buffers.

mod batch;
mod changes;
mod gets;

pub(crate) use changes::PutTicket;

use crate::convert::seconds;
use crate::counts;
use crate::error::{Classed, Raise, error_at, error_of, is_maybe_made, raised};
use crate::fork::PerProcess;
use crate::handles::Handles;
use crate::keys::{Pair, check_lengths};
use crate::mend::Mender;
use crate::options::{self, Arguments, ClientArguments};
use crate::verbs::{Outcomes, Puts, Verbs};
use crate::waiting::detached;
use oneread::error::PutError;
use oneread::{Address, ClientOptions, GetError, MutateError, OwnerOptions, PutOutcome};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyDict;
use std::time::{Duration, Instant};

/// The pause of a GET that has to look again, without the interpreter's lock.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection to a table. Any thread may use it, and several at a time.
///
/// Gets read the server's memory, without the server. Changes are requests to it.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct Client {
    address: Address,
    options: ClientOptions,
    /// How long a GET may take in all.
    get_timeout: Duration,
    handles: PerProcess<Handles>,
    mender: Option<Mender>,
}

impl Client {
    fn connect(
        py: Python<'_>,
        address: Address,
        arguments: ClientArguments,
        mender: Option<Mender>,
    ) -> PyResult<Client> {
        crate::log::begin();
        let ClientArguments { mut options, get_timeout } = arguments;
        let connect = || detached(py, || oneread::Client::connect_with(&address, options.clone()))?.raise(py);
        let connected = Mender::mending(mender.as_ref(), py, connect)?;
        // A child made by `fork` goes on as this owner, and as no other one.
        options.owner = options.owner.map(|owner| owner.tenure(connected.tenure()));
        let handles = PerProcess::new(Handles::new(connected));
        Ok(Client { address, options, get_timeout, handles, mender })
    }

    /// The handles of this process. Connects, in a child of the process that has connected.
    #[inline]
    fn handles(&self, py: Python<'_>) -> PyResult<&Handles> {
        self.handles.get(|parents| self.connect_again(py, parents))
    }

    /// In a child made by `fork`: connects as the parent did.
    #[cold]
    fn connect_again(&self, py: Python<'_>, parents: &Handles) -> PyResult<Handles> {
        if !parents.are_open() {
            return Err(closed(py));
        }
        let connect =
            || detached(py, || oneread::Client::connect_with(&self.address, self.options.clone()))?.raise(py);
        Ok(Handles::new(self.mending(py, connect)?))
    }

    /// What the call gives. Has a server started where none is there, if this client can ([`Mender`]).
    #[inline]
    pub(crate) fn mending<R>(&self, py: Python<'_>, call: impl FnMut() -> PyResult<R>) -> PyResult<R> {
        Mender::mending(self.mender.as_ref(), py, call)
    }

    /// A GET. A look that is inconclusive for long is made again, in between without the interpreter's lock, and it
    /// ends where the program is interrupted.
    #[inline]
    fn look<R>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut oneread::Client) -> Result<R, GetError>,
    ) -> PyResult<R> {
        match self.handles(py)?.with(&mut work) {
            Some(Ok(found)) => Ok(found),
            looked => self.look_again(py, looked, &mut work),
        }
    }

    #[cold]
    fn look_again<R>(
        &self,
        py: Python<'_>,
        looked: Option<Result<R, GetError>>,
        work: &mut impl FnMut(&mut oneread::Client) -> Result<R, GetError>,
    ) -> PyResult<R> {
        let mut first = Some(looked);
        self.mending(py, || {
            let looked = match first.take() {
                Some(looked) => looked,
                None => self.handles(py)?.with(&mut *work),
            };
            self.look_until_sure(py, looked, work)
        })
    }

    fn look_until_sure<R>(
        &self,
        py: Python<'_>,
        mut looked: Option<Result<R, GetError>>,
        work: &mut impl FnMut(&mut oneread::Client) -> Result<R, GetError>,
    ) -> PyResult<R> {
        let begun = Instant::now();
        loop {
            match looked {
                None => return Err(closed(py)),
                Some(Ok(found)) => return Ok(found),
                Some(Err(GetError::Inconclusive { retries, last, .. })) => {
                    if begun.elapsed() >= self.get_timeout {
                        let error = GetError::Inconclusive { within: self.get_timeout, retries, last };
                        return Err(raised(py, &error));
                    }
                }
                Some(Err(error)) => return Err(raised(py, &error)),
            }
            py.check_signals()?;
            py.detach(|| std::thread::sleep(PAUSE));
            looked = self.handles(py)?.with(&mut *work);
        }
    }

    /// Like `ask`, on the connection that pins and started puts belong to. What began on another one cannot be mended.
    fn ask_bound<R: Send, E: Classed + Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut oneread::Client) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        let handles = self.handles(py)?;
        match handles.wait_with_bound(py, work)? {
            Some(answered) => answered.raise(py),
            None => Err(closed(py)),
        }
    }

    /// What all handles have in common.
    pub(crate) fn shared<R>(&self, py: Python<'_>, look: impl FnOnce(&oneread::Client) -> R) -> PyResult<R> {
        self.handles(py)?.look(look).ok_or_else(|| closed(py))
    }

    /// How long a GET may take in all.
    pub(crate) fn get_timeout(&self) -> Duration {
        self.get_timeout
    }

    /// The longest key that the table takes.
    fn longest_key(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared(py, |client| client.geometry().key_max())
    }
}

impl Verbs for Client {
    type Handle = oneread::Client;
    type Refusal = PutError;
    type Put = PutOutcome;
    type PutError = MutateError;
    const PUT: Puts<oneread::Client, PutOutcome, MutateError> = oneread::Client::put_with;

    fn ask<R: Send, E: Classed + Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut oneread::Client) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        self.mending(py, || {
            let handles = self.handles(py)?;
            match detached(py, || handles.wait_with(&mut work))? {
                Some(answered) => answered.raise(py),
                None => Err(closed(py)),
            }
        })
    }

    fn change_part<E: Classed + Send>(
        &self,
        py: Python<'_>,
        outcomes: &mut Outcomes<PutError>,
        mut work: impl FnMut(&mut oneread::Client, &mut Outcomes<PutError>) -> Result<(), E> + Send,
    ) -> PyResult<()> {
        let before = outcomes.noted();
        let asked = self.mending(py, || {
            let handles = self.handles(py)?;
            let asked = detached(py, || handles.wait_with(|client| work(client, outcomes)))?;
            let asked = asked.ok_or_else(|| closed(py))?.raise(py);
            let are_some_made = outcomes.noted() > before;
            asked.map_err(|error| if are_some_made { is_maybe_made(py, error) } else { error })
        });
        asked.map_err(|error| outcomes.broken_off(py, error))
    }

    fn check_pairs(&self, py: Python<'_>, pairs: &[Pair<'_>]) -> PyResult<()> {
        check_lengths(py, pairs.iter().map(|(key, _)| key), 0, self.longest_key(py)?)?;
        let max = self.shared(py, oneread::Client::value_max)?;
        match pairs.iter().position(|(_, value)| value.len() > max) {
            None => Ok(()),
            Some(long) => {
                let why = MutateError::ValueLength { given: pairs[long].1.len(), max };
                Err(error_at(py, why.class(), format!("value {long}: {why}"), long))
            }
        }
    }
}

#[cold]
pub(crate) fn closed(py: Python<'_>) -> pyo3::PyErr {
    error_of(py, "Closed", "this client was closed; connect another one".into())
}

#[pyo3::pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address=None, *, timeout=None, **options))]
    fn new(
        py: Python<'_>,
        address: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Client> {
        let address = options::address(py, address)?;
        let arguments = Arguments::new(py, options)?;
        let (options, mender) = (arguments.client(timeout)?, arguments.mender()?);
        arguments.end("Client")?;
        Client::connect(py, address, options, mender)
    }

    /// Another client, which puts as this owner.
    #[pyo3(signature = (number, *, absent_for=10.0))]
    pub(crate) fn owner(&self, py: Python<'_>, number: u16, absent_for: f64) -> PyResult<Client> {
        let owner = OwnerOptions::new(number).absent_for(seconds(py, absent_for, "absent_for")?);
        let options = self.options.clone().owner(owner);
        let get_timeout = self.get_timeout;
        let mender = self.mender.as_ref().map(|mender| mender.another(py));
        Client::connect(py, self.address.clone(), ClientArguments { options, get_timeout }, mender)
    }

    /// The server's address.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// The longest key that the table takes, in bytes.
    #[getter]
    fn key_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.longest_key(py)
    }

    /// The longest value that this client can put, in bytes.
    #[getter]
    fn value_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared(py, oneread::Client::value_max)
    }

    /// Whether a server was there when the client last looked.
    #[getter]
    fn is_served(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared(py, oneread::Client::is_served)
    }

    /// What this client did, in all threads of this process. What a call does that still waits is counted at its end.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let handles = self.handles(py)?;
        counts::of_client(py, &py.detach(|| handles.stats()))
    }

    /// What the server did, since it started. Asks the server.
    fn server_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_server(py, &self.ask(py, |client| client.server_stats())?)
    }

    /// How many GETs clients on the server's host, and over TCP, have made since it started: `gets`, of these `hits` and
    /// `misses`. `None` from an older server.
    fn get_counts<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let counted = self.ask(py, |client| client.get_counts())?;
        counted.map(|counts| counts::of_gets(py, &counts)).transpose()
    }

    /// How far the server's log is: `next`, the number of its next record; `written` and `durable`, the numbers below which all
    /// are in its files, and on the disk; `bytes`, `syncs`, `has_failed`. `None` from a server without one, or an older one.
    fn log<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let log = self.ask(py, |client| client.log())?;
        log.map(|log| counts::of_log(py, &log)).transpose()
    }

    /// What the server's table is made of, and what it did to grow and shrink; all 0 for a table of one size. Asks the
    /// server.
    fn growth<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_growth(py, &self.ask(py, |client| client.growth())?)
    }

    /// Has the server make a table that grows as large as it becomes with this many keys in all, and does not wait for
    /// that. Counts as of `growth`.
    #[pyo3(signature = (keys, /))]
    fn grow_for<'py>(&self, py: Python<'py>, keys: u64) -> PyResult<Bound<'py, PyDict>> {
        counts::of_growth(py, &self.ask(py, |client| client.grow_for(keys))?)
    }

    /// Has the server begin to give memory back that the table's keys do not need, and does not wait for that. Counts as
    /// of `growth`: when none is `merging` any more, there may be more to give back.
    fn shrink<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_growth(py, &self.ask(py, |client| client.shrink())?)
    }

    /// What became of the server's snapshots. Asks the server.
    fn snapshot_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        counts::of_snapshots(py, &self.ask(py, |client| client.snapshot_status())?)
    }

    /// Asks for a snapshot with every change made so far, and does not wait for it: it has ended when `finished` has
    /// reached what `asked` is in the answer. Nothing happens if the server makes none (`is_on`).
    fn ask_for_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        counts::of_snapshots(py, &self.ask(py, |client| client.ask_for_snapshot())?)
    }

    /// Ends the client's connections. One on which a call waits for the server ends after that call. Closing it again
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
        format!("oneread.Client({:?})", self.address.to_string())
    }

    /// How many keys are in the table. Asks the server.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let keys = self.ask(py, |client| client.server_stats())?.keys;
        usize::try_from(keys).map_err(|_| PyOverflowError::new_err(keys))
    }

    /// A client is true, whatever is in its table.
    fn __bool__(&self) -> bool {
        true
    }
}
