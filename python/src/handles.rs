//! The library's handles of one Python client. A handle serves one thread at a time. Threads take turns at a few of
//! them, and never wait for one: who finds all in use makes another one, for one call.
//!
//! No lock is held while a call waits for the server: handlers of signals run then, and may close the client.

use crate::turn::{Taken, Turn};
use crate::waiting::detached;
use oneread::Client;
use oneread::stats::ClientStats;
use pyo3::prelude::{PyResult, Python};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

/// As many threads have a handle of their own.
const SLOTS: usize = 16;

/// A handle, on lines of its own: others' locks do not slow it down.
#[repr(align(128))]
struct Slot {
    /// `None` before it is used.
    client: Turn<Option<Client>>,
    /// What it had done when it was last taken, or closed.
    before: Mutex<ClientStats>,
}

impl Slot {
    fn new(client: Option<Client>) -> Slot {
        Slot { client: Turn::new(client), before: Mutex::default() }
    }

    fn note(&self, stats: ClientStats) {
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Does work that may wait, and run handlers of signals, with its handle, which is taken.
    fn work<R>(
        &self,
        mut taken: Taken<'_, Option<Client>>,
        handles: &Handles,
        work: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        if taken.is_none() {
            *taken = Some(handles.another()?);
        }
        let client = taken.as_mut()?;
        self.note(client.stats());
        let outcome = work(client);
        self.note(client.stats());
        Some(outcome)
    }

    /// What it did, as of when it was taken if it is.
    fn stats(&self) -> ClientStats {
        match self.client.look(|client| client.as_ref().map(Client::stats)) {
            Some(stats) => stats.unwrap_or_default(),
            None => *self.before.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn close(&self) {
        if let Some(client) = self.client.close() {
            self.note(client.stats());
        }
    }
}

/// The handles of one Python client, in one process.
pub(crate) struct Handles {
    /// What others are cloned from. `None` once they are closed.
    first: RwLock<Option<Client>>,
    slots: [Slot; SLOTS],
    /// What the handles did that were for one call.
    gone: Mutex<ClientStats>,
    /// The handle whose connection pins and started puts belong to.
    bound: Slot,
}

/// The slot at which this thread looks first.
#[inline]
fn own_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<usize> = const { Cell::new(usize::MAX) });
    OWN.with(|own| {
        if own.get() == usize::MAX {
            // Relaxed: only a number is given out.
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS);
        }
        own.get()
    })
}

impl Handles {
    pub fn new(client: Client) -> Handles {
        let own = own_slot();
        let slots = std::array::from_fn(|number| Slot::new((number == own).then(|| client.clone())));
        Handles { first: RwLock::new(Some(client)), slots, gone: Mutex::default(), bound: Slot::new(None) }
    }

    /// Does work with a handle that nobody else uses meanwhile. It must not wait, nor run anything of Python. `None` if
    /// they are closed. Does not wait.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Client) -> R) -> Option<R> {
        if let Some(mut place) = self.slots[own_slot()].client.now()
            && let Some(Some(client)) = place.thing()
        {
            return Some(work(client));
        }
        self.wait_with(work)
    }

    /// Like `with`, for work that may wait, and run handlers of signals.
    pub fn wait_with<R>(&self, work: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let own = own_slot();
        for slot in self.slots[own..].iter().chain(&self.slots[..own]) {
            if let Ok(taken) = slot.client.try_take() {
                return slot.work(taken, self, work);
            }
        }
        let mut client = self.another()?;
        let outcome = work(&mut client);
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner) += client.stats();
        Some(outcome)
    }

    /// Whether they are not closed. Does not wait: in a child, nobody may give the lock back.
    pub fn are_open(&self) -> bool {
        self.first.try_read().is_ok_and(|first| first.is_some())
    }

    fn another(&self) -> Option<Client> {
        self.first.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Like `another`, with the one handle that pins and started puts belong to, without the interpreter's lock. Waits for other
    /// threads that use it.
    ///
    /// # Errors
    /// What a handler of a signal has raised. `Busy` in a handler that interrupts such work of this thread.
    pub fn wait_with_bound<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Client) -> R + Send,
    ) -> PyResult<Option<R>> {
        match self.bound.client.take(py)? {
            Some(taken) => detached(py, move || self.bound.work(taken, self, work)),
            None => Ok(None),
        }
    }

    /// Looks at what all handles have in common. `None` if they are closed.
    pub fn look<R>(&self, look: impl FnOnce(&Client) -> R) -> Option<R> {
        self.first.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    /// The sum of what all handles did; without what a call does that still waits. Does not wait for those in use.
    pub fn stats(&self) -> ClientStats {
        let mut sum = *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        self.slots.iter().chain([&self.bound]).for_each(|slot| sum += slot.stats());
        sum
    }

    /// Closes them all. Those in use close when their calls end, for which it does not wait.
    pub fn close(&self) {
        drop(self.first.write().unwrap_or_else(PoisonError::into_inner).take());
        self.slots.iter().chain([&self.bound]).for_each(Slot::close);
    }
}
