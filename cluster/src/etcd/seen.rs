//! The newest revision of etcd that a node has seen.

use std::sync::{Mutex, PoisonError};

/// How far a watch has come, and the etcd's cluster id.
#[derive(Debug, Default)]
pub struct Seen(Mutex<(u64, i64)>);

impl Seen {
    /// A watch begins behind this revision.
    pub fn begin(&self, etcd: u64, revision: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (etcd, revision);
    }

    /// The watch has delivered everything up to this revision.
    pub fn went_on(&self, etcd: u64, revision: i64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.0 == etcd {
            seen.1 = seen.1.max(revision);
        }
    }

    /// The last revision that was delivered. 0: none yet.
    pub fn revision(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
