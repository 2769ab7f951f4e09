//! What the last steps of a start need, and what is undone if one of them fails.

use super::daemon::PidFile;
use super::serving::Watched;
use oneread::embedded::MemoryShare;
use oneread::internals::region::Backing;
use std::sync::{Mutex, PoisonError};

/// What the server is told with, once it is ready.
pub struct Ready<'s> {
    pub backing: &'s Backing,
    pub share: Option<MemoryShare>,
    #[cfg(feature = "metrics")]
    pub scrapes: Option<super::scraped::Listener>,
    pub pid_file: &'s Mutex<Option<PidFile>>,
}

/// Removes the file with the server's number.
pub fn drop_file(pid_file: &Mutex<Option<PidFile>>) {
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Ends a server whose start has failed in its last steps, and what it has made with it. Keys that somebody has put stay.
pub fn undo(server: &Watched, pid_file: &Mutex<Option<PidFile>>) {
    drop_file(pid_file);
    let serving = server.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(serving) = serving {
        serving.undo_start();
        let _ = serving.stop();
    }
}
