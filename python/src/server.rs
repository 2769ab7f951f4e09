//! `oneread.Server`: a server in this process.

use crate::counts;
use crate::error::{Raise, error_of};
use crate::fork;
use crate::options::{self, Arguments};
use oneread::internals::peer::{self, NoProcess, PeerProcess};
use oneread::{Address, ServeError};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python};
use pyo3::types::PyDict;
use rustix::io::Errno;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The process that listens at the Unix socket `path`: its number, and a descriptor for it, which the caller closes. `None`
/// where nobody listens. `within` is how long a listener whose backlog is full may take.
#[pyo3::pyfunction]
pub(crate) fn listener(py: Python<'_>, path: PathBuf, within: f64) -> PyResult<Option<(i32, i32)>> {
    let within = Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX).min(LONGEST);
    let found = py.detach(|| {
        let socket = peer::connect(&path, within).map_err(NoProcess::Os)?;
        PeerProcess::listening(&socket, &path)
    });
    let at = path.display();
    let (error, text) = match found {
        Ok(process) => {
            let pid = process.pid().as_raw_nonzero().get();
            return Ok(Some((pid, OwnedFd::from(process).into_raw_fd())));
        }
        Err(NoProcess::Ended(_) | NoProcess::Os(Errno::NOENT | Errno::CONNREFUSED)) => return Ok(None),
        Err(NoProcess::Unseen) => ("Refused", format!("the server at {at} is in a container; stop it there")),
        Err(NoProcess::Unproved(pid)) => (
            "Refused",
            format!(
                "process {0} began to listen at {at}, and this system does not prove that it still has that number (Linux 6.5 does); if it is the server, kill {0} stops it",
                pid.as_raw_nonzero()
            ),
        ),
        Err(NoProcess::Os(Errno::AGAIN)) => {
            ("Timeout", format!("the server at {at} takes no connection; try again"))
        }
        Err(NoProcess::Os(why)) => {
            ("OnereadError", format!("asking for the server's process at {at}: {why}"))
        }
    };
    Err(error_of(py, error, text))
}

/// The longest time that a connection waits for.
const LONGEST: Duration = Duration::from_secs(3600);

/// A table, served by threads of this process, which need no interpreter. Stops at the latest when it is collected.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct Server {
    process: u64,
    address: String,
    tcp: Option<String>,
    /// `None` once it was stopped.
    running: Arc<Mutex<Option<oneread::Server>>>,
}

impl Server {
    /// Looks at the running server.
    fn with<R>(&self, py: Python<'_>, look: impl FnOnce(&oneread::Server) -> R) -> PyResult<R> {
        fork::check(py, self.process, "server", "connect a Client to it")?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(server) => Ok(look(server)),
            None => Err(error_of(py, "Closed", "this server was stopped; start another one".into())),
        }
    }
}

#[pyo3::pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (address=None, **options))]
    fn new(
        py: Python<'_>,
        address: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Server> {
        crate::log::begin();
        let arguments = Arguments::new(py, options)?;
        let (mut config, index) = arguments.server(options::address(py, address)?)?;
        arguments.end("Server")?;
        let cancel = Arc::new(AtomicBool::new(false));
        config.cancel = Some(cancel.clone());
        // A large table takes seconds. Meanwhile the program may be interrupted.
        let starts = std::thread::Builder::new()
            .name("oneread-start".into())
            .spawn(move || oneread::Server::start(config))
            .map_err(ServeError::Threads)
            .raise(py)?;
        while !starts.is_finished() {
            if let Err(interrupted) = py.check_signals() {
                cancel.store(true, Ordering::Relaxed);
                let _ = py.detach(|| starts.join());
                return Err(interrupted);
            }
            py.detach(|| std::thread::sleep(Duration::from_micros(500)));
        }
        let started = match starts.join() {
            Ok(started) => started.raise(py)?,
            Err(_) => {
                return Err(error_of(py, "OnereadError", "the server panicked while it started".into()));
            }
        };
        if let Some(index) = index {
            py.detach(|| index.mark(&started)).raise(py)?;
        }
        let address = started.address().to_string();
        let tcp = started.tcp_address().map(|at| Address::Tcp(at.clone()).to_string());
        Ok(Server { process: fork::process(), address, tcp, running: Arc::new(Mutex::new(Some(started))) })
    }

    /// The address that clients connect to.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The address that clients over TCP connect to, with its port, if there is one.
    #[getter]
    fn tcp_address(&self) -> Option<&str> {
        self.tcp.as_deref()
    }

    /// Ends the server. Stopping it again does nothing; in a child made by `fork` it does nothing, either.
    fn stop(&self, py: Python<'_>) {
        if self.process != fork::process() {
            return;
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = running {
            py.detach(|| server.stop());
        }
    }

    /// What the server did, since it started.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, oneread::Server::stats)?;
        counts::of_server(py, &stats)
    }

    /// How many GETs clients on this host, and over TCP, have made: `gets`, of these `hits` and `misses`.
    fn get_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_gets(py, &self.with(py, oneread::Server::get_counts)?)
    }

    /// What the table is made of, and what it did to grow and shrink; all 0 for a table of one size.
    fn growth<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts::of_growth(py, &self.with(py, oneread::Server::growth)?)
    }

    /// Answers scrapes of Prometheus at an address, as in `127.0.0.1:9464`, until this process ends. Returns where.
    fn answer_scrapes(&self, py: Python<'_>, address: &str) -> PyResult<String> {
        self.with(py, |_| ())?;
        let answers = oneread_cli::answer_scrapes(address, Arc::clone(&self.running));
        answers.map_err(|why| error_of(py, "OnereadError", why.to_string()))
    }

    /// What became of the snapshots. `None` without `snapshots=`.
    fn snapshot_status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let status = self.with(py, oneread::Server::snapshot_status)?;
        status.map(|status| counts::of_snapshots(py, &status)).transpose()
    }

    /// How far the log is. `None` without `log=`.
    fn log<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let log = self.with(py, oneread::Server::log)?;
        log.map(|log| counts::of_log(py, &log)).transpose()
    }

    /// Asks for a snapshot, as of a client. `None` without `snapshots=`.
    fn ask_for_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let status = self.with(py, oneread::Server::ask_for_snapshot)?;
        status.map(|status| counts::of_snapshots(py, &status)).transpose()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.stop(py);
    }

    fn __repr__(&self) -> String {
        format!("oneread.Server({:?})", self.address)
    }

    /// How many keys are in the table.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |server| server.stats().keys as usize)
    }

    /// A server is true, whatever is in its table.
    fn __bool__(&self) -> bool {
        true
    }
}
