//! Locks on what stands at a path.

use super::trust::{FileError, open_file, open_to_read};
use crate::base::process::Process;
use rustix::fs::{FlockOperation, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a path leads now: the same place after the process goes to another folder.
pub(crate) fn fixed(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Whether this very file, and no other, stands at the path. (While it is open, no other gets its inode's
/// number.)
pub(crate) fn stands_at(file: impl AsFd, path: &Path) -> bool {
    let which = |about: Stat| (about.st_dev, about.st_ino);
    match (rustix::fs::fstat(file), rustix::fs::lstat(path)) {
        (Ok(ours), Ok(there)) => which(ours) == which(there),
        _ => false,
    }
}

/// A lock on what stands at a path: a file beside it, `PATH.lock`, for this user alone. Whoever can read a
/// file can lock it, so the lock is not on the file itself, which clients are handed. The kernel lets go of
/// it when the process ends. The file is removed when this is dropped.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    pub(crate) file: File,
    /// A forked process has a copy that is not its own.
    process: Process,
}

impl LockFile {
    /// Takes the lock of what is at `path`, or will be. `None` if another process keeps it for longer than
    /// `within`.
    ///
    /// # Errors
    /// [`FileError`] where no such file can be made, or another user has made it.
    pub fn take(path: &Path, within: Duration) -> Result<Option<LockFile>, FileError> {
        let (path, gives_up) = (lock_path(&fixed(path)), Instant::now() + within);
        loop {
            let file = open_file(&path, OFlags::RDWR | OFlags::CREATE)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if stands_at(&file, &path) => {
                    return Ok(Some(LockFile { path, file, process: Process::this() }));
                }
                // Who had it has removed the file.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() >= gives_up => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(FileError::Os { doing: "locking", path, source: e.into() }),
            }
        }
    }

    /// Whether a process has the lock of what is at `path`. Makes no file.
    ///
    /// # Errors
    /// [`FileError`] if that cannot be found out.
    pub fn is_taken(path: &Path) -> Result<bool, FileError> {
        let path = lock_path(path);
        // Whoever owns it: root looks at everybody's, and changes none.
        let file = match open_to_read(&path) {
            Err(FileError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            opened => opened?,
        };
        // Shared: who looks at the same time is no server.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(FileError::Os { doing: "locking", path, source: e.into() }),
        }
    }

    /// Whether its file is still there. Without it, others do not find the lock.
    pub(crate) fn stands(&self) -> bool {
        stands_at(&self.file, &self.path)
    }

    /// Whether this process took it, and is no child of the one that did.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
        // Closing the file is not enough: a child that another thread is just starting may have a copy of
        // its descriptor for a moment.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}
