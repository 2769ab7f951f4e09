//! A folder for sockets and regions, and the processes that use it: Ctrl-C removes both.

use crate::interrupt::{self, Hooked};
use anyhow::{Context, Result};
use oneread::Server;
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use std::fs::{DirBuilder, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A folder of this user's alone. It is removed with its guard. On Ctrl-C, too, which ends this process
/// without running destructors.
pub struct Folder {
    path: PathBuf,
    /// What a signal kills: a stopped child would stay.
    children: Arc<Mutex<Vec<Pid>>>,
    hooked: Option<Hooked>,
}

fn lock(children: &Mutex<Vec<Pid>>) -> MutexGuard<'_, Vec<Pid>> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Folder {
    /// Makes it, among the temporary files. A process may have several.
    ///
    /// # Errors
    /// It cannot be made, or signals cannot be heeded.
    pub fn new() -> Result<Folder> {
        Folder::new_in(&std::env::temp_dir())
    }

    /// Makes it among the files that are memory (`/dev/shm`), for what is not to wait for a disk.
    ///
    /// # Errors
    /// As [`Folder::new`].
    pub fn in_memory() -> Result<Folder> {
        Folder::new_in(Path::new("/dev/shm"))
    }

    fn new_in(parent: &Path) -> Result<Folder> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // No number of a process is taken for one of a user, whose default folder that would be.
        let name = format!("oneread-run-{}", std::process::id());
        let name = if number == 0 { name } else { format!("{name}-{number}") };
        let path = parent.join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("making the folder {}", path.display()))?;
        let children = Arc::<Mutex<Vec<Pid>>>::default();
        let hooked = interrupt::hook({
            let (path, children) = (path.clone(), children.clone());
            move || {
                for &pid in &*lock(&children) {
                    let _ = kill_process(pid, Signal::KILL);
                    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                }
                let _ = std::fs::remove_dir_all(path);
                false
            }
        })?;
        Ok(Folder { path, children, hooked: Some(hooked) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Has Ctrl-C kill a child.
    pub fn began(&self, child: &Child) {
        lock(&self.children).push(Pid::from_child(child));
    }

    /// Has Ctrl-C kill a child no more: it has ended.
    pub fn ended(&self, child: &Child) {
        lock(&self.children).retain(|pid| *pid != Pid::from_child(child));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A signal that came first ends the process here.
        drop(self.hooked.take());
        // All have ended. Their numbers may be other processes' by now.
        lock(&self.children).clear();
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The memory behind a server's region.
pub fn bytes_behind(server: &Server) -> Result<u64> {
    let region = File::from(server.index().region().share()?);
    Ok(bytes_taken(&region.metadata()?))
}

/// The memory, or room on a disk, that a file takes. A table that grows has a file that is longer.
pub fn bytes_taken(about: &Metadata) -> u64 {
    about.blocks() * 512
}
