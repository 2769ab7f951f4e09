//! Handles of one client of a cluster. A handle serves one call at a time, and is used again afterwards: with
//! `exactly_once` each that ever made a change costs the cluster an entry a shard.
//!
//! No lock is held while a call waits: handlers of signals run then, and may close the client.

use oneread_cluster::client::ClusterClient;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Pool {
    /// Locked for moments only, in which nothing of Python runs. `None` once it is closed.
    handles: Mutex<Option<Handles>>,
    is_closed: AtomicBool,
}

struct Handles {
    /// What others are cloned from.
    first: ClusterClient,
    /// Those that no call uses, the last used last. There were never more calls at a time than there are handles.
    idle: Vec<ClusterClient>,
}

impl Pool {
    pub fn new(first: ClusterClient) -> Pool {
        let handles = Mutex::new(Some(Handles { first, idle: Vec::new() }));
        Pool { handles, is_closed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handles>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work with a handle that nobody else uses meanwhile. `None`: it is closed.
    pub fn with<R>(&self, work: impl FnOnce(&mut ClusterClient) -> R) -> Option<R> {
        let mut handle = {
            let mut handles = self.lock();
            let handles = handles.as_mut()?;
            handles.idle.pop().unwrap_or_else(|| handles.first.clone())
        };
        let outcome = work(&mut handle);
        let mut handles = self.lock();
        let left = match handles.as_mut() {
            Some(handles) => {
                handles.idle.push(handle);
                None
            }
            None => Some(handle),
        };
        // It was closed meanwhile, perhaps the last one: that ends without the lock.
        drop(handles);
        drop(left);
        Some(outcome)
    }

    /// Whether it is open. Does not wait: in a child, nobody may give the lock back.
    pub fn is_open(&self) -> bool {
        // Relaxed: nothing else hangs on it.
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes all handles. Those in use close when their calls end, for which it does not wait.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let handles = self.lock().take();
        drop(handles);
    }
}
