//! Handles of an index over one Python client. Each serves one thread at a time; a thread takes one that is free, and
//! makes another one if there is none.

use crate::client::Client;
use crate::error::Raise;
use crate::fork;
use crate::waiting::detached;
use oneread::GetError;
use oneread::stats::ClientStats;
use oneread_prefix::PrefixError;
use pyo3::prelude::{Py, PyResult, Python};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From so many blocks on, they are looked for without the interpreter's lock. To give it back and take it again costs
/// some 100 ns; but another thread that has it meanwhile may keep it for 5 ms.
const DETACHED: usize = 2048;
/// The pause of a lookup that has to look again.
const PAUSE: Duration = Duration::from_millis(1);

/// An index of `oneread-prefix`.
pub(super) trait Handle: Send + Sized {
    fn over(client: oneread::Client) -> Result<Self, PrefixError>;
    fn stats(&self) -> ClientStats;
}

impl Handle for oneread_prefix::LocationIndex {
    fn over(client: oneread::Client) -> Result<Self, PrefixError> {
        Self::new(client)
    }
    fn stats(&self) -> ClientStats {
        self.stats()
    }
}

impl Handle for oneread_prefix::PlacementIndex {
    fn over(client: oneread::Client) -> Result<Self, PrefixError> {
        Self::new(client)
    }
    fn stats(&self) -> ClientStats {
        self.stats()
    }
}

/// The handles that are free, each with the process that has made it; the last one used is taken first.
pub(super) struct Shelf<I: Handle> {
    client: Py<Client>,
    /// Locked for some instructions, with the interpreter's lock. So no thread has it while Python forks.
    free: Mutex<Vec<(u64, I)>>,
}

impl<I: Handle> Shelf<I> {
    pub fn new(py: Python<'_>, client: Py<Client>) -> PyResult<Shelf<I>> {
        let shelf = Shelf { client, free: Mutex::default() };
        let first = shelf.take(py)?;
        shelf.give_back(first);
        Ok(shelf)
    }

    pub fn client(&self) -> &Client {
        self.client.get()
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(u64, I)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that nobody else has. In a child made by `fork`, another one than its parent's.
    fn take(&self, py: Python<'_>) -> PyResult<I> {
        // Fails where the client was closed.
        self.client().shared(py, |_| ())?;
        loop {
            let Some((process, index)) = self.all().pop() else { break };
            if process == fork::process() {
                return Ok(index);
            }
            std::mem::forget(index);
        }
        let client = self.client().shared(py, oneread::Client::clone)?;
        I::over(client).raise(py)
    }

    fn give_back(&self, index: I) {
        self.all().push((fork::process(), index));
    }

    /// Does work with a handle.
    pub fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut I) -> R) -> PyResult<R> {
        let mut index = self.take(py)?;
        let done = work(&mut index);
        self.give_back(index);
        Ok(done)
    }

    /// Something that may wait for the server, without the interpreter's lock. A look that is inconclusive for long is
    /// made again; so `work` may be done more than once.
    pub fn ask<R: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut I) -> Result<R, PrefixError> + Send,
    ) -> PyResult<R> {
        self.client().mending(py, || self.ask_until_sure(py, &mut work))
    }

    fn ask_until_sure<R: Send>(
        &self,
        py: Python<'_>,
        work: &mut (impl FnMut(&mut I) -> Result<R, PrefixError> + Send),
    ) -> PyResult<R> {
        let begun = Instant::now();
        loop {
            match self.with(py, |index| detached(py, || work(index)))?? {
                Err(PrefixError::Get(GetError::Inconclusive { .. }))
                    if begun.elapsed() < self.client().get_timeout() =>
                {
                    py.check_signals()?;
                    py.detach(|| std::thread::sleep(PAUSE));
                }
                answered => return answered.raise(py),
            }
        }
    }

    /// Looks for so many blocks: a few with the interpreter's lock.
    pub fn look<R: Send>(
        &self,
        py: Python<'_>,
        blocks: usize,
        mut work: impl FnMut(&mut I) -> Result<R, PrefixError> + Send,
    ) -> PyResult<R> {
        if blocks < DETACHED {
            match self.with(py, &mut work)? {
                // It may pass, or a server may have to be started.
                Err(PrefixError::Get(_)) => {}
                answered => return answered.raise(py),
            }
        }
        self.ask(py, work)
    }

    /// What the handles did that are free.
    pub fn stats(&self) -> ClientStats {
        let mut sum = ClientStats::default();
        for (process, index) in &*self.all() {
            if *process == fork::process() {
                sum += index.stats();
            }
        }
        sum
    }
}

impl<I: Handle> Drop for Shelf<I> {
    fn drop(&mut self) {
        // A parent's connections stay as they are: its threads may have been using them.
        for (process, index) in self.all().drain(..) {
            if process != fork::process() {
                std::mem::forget(index);
            }
        }
    }
}
