//! The library's handles of one Python client. A handle serves one thread at a time. Threads take turns at a few of
//! them, and never wait for one: who finds all in use makes another one, for one call.

use crate::fork;
use oneread::Client;
use oneread::stats::ClientStats;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};

/// As many threads have a handle of their own.
const SLOTS: usize = 16;

/// A handle, on lines of its own: others' locks do not slow it down.
#[repr(align(128))]
#[derive(Default)]
struct Slot(Mutex<Option<Client>>);

/// The handles of one Python client, in one process.
pub(crate) struct Handles {
    /// The process that has made them.
    process: u64,
    /// What others are cloned from. `None` once they are closed.
    first: RwLock<Option<Client>>,
    slots: [Slot; SLOTS],
    /// What the handles did that are no more.
    gone: Mutex<ClientStats>,
    /// The handle whose connection pins and started puts belong to.
    bound: Mutex<Option<Client>>,
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
        let slots: [Slot; SLOTS] = Default::default();
        *slots[own_slot()].0.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Handles {
            process: fork::process(),
            first: RwLock::new(Some(client)),
            slots,
            gone: Mutex::default(),
            bound: Mutex::default(),
        }
    }

    /// Whether this process has made them. In a child of it, no lock here may be waited for: a thread may have it that
    /// is not there.
    #[inline]
    pub fn are_of_this_process(&self) -> bool {
        self.process == fork::process()
    }

    /// Does work with a handle that nobody else uses meanwhile. `None` if they are closed. Does not wait.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Client) -> R) -> Option<R> {
        match self.slots[own_slot()].0.try_lock() {
            Ok(mut slot) if slot.is_some() => slot.as_mut().map(work),
            _ => self.with_another(work),
        }
    }

    #[cold]
    fn with_another<R>(&self, work: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let own = own_slot();
        for number in (own..SLOTS).chain(0..own) {
            let mut slot = match self.slots[number].0.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if slot.is_none() {
                *slot = Some(self.another()?);
            }
            return slot.as_mut().map(work);
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

    /// The same with the one handle that pins and started puts belong to. Waits for other threads that use it: not to be
    /// called with the interpreter's lock.
    pub fn with_bound<R>(&self, work: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.is_none() {
            *bound = Some(self.another()?);
        }
        bound.as_mut().map(work)
    }

    /// Looks at what all handles have in common. `None` if they are closed.
    pub fn look<R>(&self, look: impl FnOnce(&Client) -> R) -> Option<R> {
        self.first.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    /// The sum of what all handles did. Waits for those in use: not to be called with the interpreter's lock.
    pub fn stats(&self) -> ClientStats {
        let mut sum = *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots.iter().map(|slot| &slot.0);
        for slot in slots.chain([&self.bound]) {
            if let Some(client) = &*slot.lock().unwrap_or_else(PoisonError::into_inner) {
                sum += client.stats();
            }
        }
        sum
    }

    /// Closes them all. Waits for those in use: not to be called with the interpreter's lock.
    pub fn close(&self) {
        self.first.write().unwrap_or_else(PoisonError::into_inner).take();
        let slots = self.slots.iter().map(|slot| &slot.0);
        for slot in slots.chain([&self.bound]) {
            let closed = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(client) = closed {
                *self.gone.lock().unwrap_or_else(PoisonError::into_inner) += client.stats();
            }
        }
    }
}
