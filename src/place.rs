//! Where this user's servers keep sockets and region files by default, and who else could change
//! what is there.
//!
//! Whoever owns a region file, or may write to it, can read and change every value, and can make it
//! shorter, which ends server and clients by SIGBUS. Whoever may write to a folder can put a file
//! there first. So a file is opened without following a link at its end, and then checked; and the
//! folders of default places are this user's own.

use crate::process::Process;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a file or folder is not safe to use. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It is something else: a link, a folder, a device.
    #[error("{} is no {expected}; name another path", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// It belongs to another user, neither this one nor root.
    #[error(
        "{} belongs to user {owner}, who could read and change what is kept there; name another path, or have it removed",
        path.display()
    )]
    Owner {
        /// The path.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
    },
    /// Other users may write to it.
    #[error("{0} may be written by other users (mode {mode:o}); chmod go-w {0}", path.display())]
    Writable {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It holds a secret, and other users may read it.
    #[error("{0} holds a secret and may be read by other users (mode {mode:o}); chmod go= {0}", path.display())]
    Readable {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A system call failed.
    #[error("{doing} {}", path.display())]
    Os {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// This user's default socket: `oneread.sock` in `$XDG_RUNTIME_DIR`, else in `/run/user/UID`, if the folder
/// belongs to this user alone; else in `/run/oneread` for root, and in `/tmp/oneread-UID` for others. If
/// there is one in any of them, that is it: a server that was started without a session is found by those
/// who have one, and the other way round.
pub fn socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let run_user = PathBuf::from(format!("/run/user/{}", own_uid()));
    socket_in([runtime, Some(run_user), Some(made_for_sockets())])
        .unwrap_or_else(|| name_in(&made_for_sockets()))
}

fn name_in(folder: &Path) -> PathBuf {
    folder.join("oneread.sock")
}

/// The first socket in those of these folders that belong to this user alone; if there is none, the one
/// that may be made in the first of them.
fn socket_in(folders: [Option<PathBuf>; 3]) -> Option<PathBuf> {
    let own =
        folders.into_iter().flatten().filter(|folder| folder.is_absolute() && open_folder(folder).is_ok());
    let names: Vec<PathBuf> = own.map(|folder| name_in(&folder)).collect();
    let is_socket =
        |name: &&PathBuf| name.symlink_metadata().is_ok_and(|about| about.file_type().is_socket());
    names.iter().find(is_socket).or(names.first()).cloned()
}

fn made_for_sockets() -> PathBuf {
    match own_uid() {
        0 => "/run/oneread".into(),
        uid => format!("/tmp/oneread-{uid}").into(),
    }
}

/// The folder of this user's region files: `oneread-UID` in `/dev/shm`, which is memory, or in the
/// folder that `$ONEREAD_SHM` names. (A runtime folder would be too small, and goes at logout.)
pub fn regions() -> PathBuf {
    let named = std::env::var_os("ONEREAD_SHM").map(PathBuf::from).filter(|shm| shm.is_absolute());
    named.unwrap_or_else(|| "/dev/shm".into()).join(format!("oneread-{}", own_uid()))
}

/// The user `nobody`. In a user namespace, the kernel also shows by this number every user who has none there.
pub const UNMAPPED: u32 = 65534;

/// The user that this thread acts as.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether what this user has made may be relied on: it is this process's own, root, or one of
/// those named.
pub(crate) fn is_trusted(uid: u32, named: &[u32]) -> bool {
    uid == own_uid() || uid == 0 || named.contains(&uid)
}

/// The user to whom root has given the folder of this path: only that user and root can put anything there,
/// and only root can make the path lead elsewhere. So whoever names the path names that user. `None` where
/// others may write to a folder on the way, or own one, or where there is a link on it.
pub(crate) fn appointed(path: &Path) -> Option<u32> {
    let owner = |folder: &Path| {
        let about = rustix::fs::lstat(folder).ok()?;
        let is_folder = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
        (is_folder && about.st_mode & 0o022 == 0).then_some(about.st_uid)
    };
    let folder = path.parent().filter(|folder| folder.is_absolute())?;
    folder.ancestors().skip(1).all(|above| owner(above) == Some(0)).then(|| owner(folder))?
}

/// Makes the folder of a path, if it is one of this user's default folders, and checks that it
/// belongs to this user alone. Any other folder is left to whoever named it.
///
/// # Errors
/// [`PlaceError`], also when another user has made the folder first.
pub fn prepare(path: &Path) -> Result<(), PlaceError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    // Everybody may look for root's socket, and is told whether they may connect.
    let mode = match folder {
        folder if folder == Path::new("/run/oneread") && own_uid() == 0 => 0o755,
        folder if folder == made_for_sockets() || folder == regions() => 0o700,
        _ => return Ok(()),
    };
    make_own(folder, mode)
}

/// Makes a folder, or checks that the one that is there belongs to this user alone.
fn make_own(folder: &Path, mode: u32) -> Result<(), PlaceError> {
    let failed =
        |e: Errno| PlaceError::Os { doing: "making the folder", path: folder.into(), source: e.into() };
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mkdir(folder, mode) {
        // The process's umask may have taken from the mode what others need.
        Ok(()) => rustix::fs::chmod(folder, mode).map_err(failed)?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    open_folder(folder)
}

/// Checks that a folder is there, and that nobody but this user and root can put anything into it.
fn open_folder(path: &Path) -> Result<(), PlaceError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(path, "folder", e))?;
    let about = rustix::fs::fstat(&folder).map_err(|e| failed(path, "folder", e))?;
    check(path, &about, FileType::Directory)
}

/// Opens a file, without following a link, if it is a file that only this user and root can write
/// to. Whether others may read it is its owner's choice. A new file is this user's alone.
///
/// # Errors
/// [`PlaceError`].
pub fn open_file(path: &Path, flags: OFlags) -> Result<File, PlaceError> {
    // NONBLOCK: opening a pipe or a device waits for nothing.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags, mode).map_err(|e| failed(path, "file", e))?;
    let about = rustix::fs::fstat(&file).map_err(|e| failed(path, "file", e))?;
    check(path, &about, FileType::RegularFile)?;
    Ok(file.into())
}

/// Opens a file that holds a secret, to read it: as [`open_file`], and only this user and root may read
/// it.
///
/// # Errors
/// [`PlaceError`].
pub fn open_secret(path: &Path) -> Result<File, PlaceError> {
    let file = open_file(path, OFlags::RDONLY)?;
    let about = rustix::fs::fstat(&file).map_err(|e| failed(path, "file", e))?;
    if about.st_mode & 0o044 != 0 {
        return Err(PlaceError::Readable { path: path.into(), mode: about.st_mode & 0o7777 });
    }
    Ok(file)
}

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
    /// [`PlaceError`] where no such file can be made, or another user has made it.
    pub fn take(path: &Path, within: Duration) -> Result<Option<LockFile>, PlaceError> {
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
                Err(e) => return Err(PlaceError::Os { doing: "locking", path, source: e.into() }),
            }
        }
    }

    /// Whether a process has the lock of what is at `path`. Makes no file.
    ///
    /// # Errors
    /// [`PlaceError`] if that cannot be found out.
    pub fn is_taken(path: &Path) -> Result<bool, PlaceError> {
        let path = lock_path(path);
        let file = match open_file(&path, OFlags::RDWR) {
            Err(PlaceError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            opened => opened?,
        };
        // Shared: who looks at the same time is no server.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(PlaceError::Os { doing: "locking", path, source: e.into() }),
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

fn failed(path: &Path, expected: &'static str, error: Errno) -> PlaceError {
    let path = path.to_path_buf();
    match error {
        Errno::LOOP | Errno::ISDIR | Errno::NOTDIR | Errno::NXIO => PlaceError::Kind { path, expected },
        error => PlaceError::Os { doing: "opening", path, source: error.into() },
    }
}

fn check(path: &Path, about: &Stat, expected: FileType) -> Result<(), PlaceError> {
    let path = path.to_path_buf();
    if FileType::from_raw_mode(about.st_mode) != expected {
        let expected = if expected == FileType::Directory { "folder" } else { "file" };
        return Err(PlaceError::Kind { path, expected });
    }
    if about.st_uid != own_uid() && about.st_uid != 0 {
        return Err(PlaceError::Owner { path, owner: about.st_uid });
    }
    if about.st_mode & 0o022 != 0 {
        return Err(PlaceError::Writable { path, mode: about.st_mode & 0o7777 });
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn open(path: &Path) -> Result<File, PlaceError> {
        open_file(path, OFlags::RDWR | OFlags::CREATE)
    }

    fn permit(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A link, a folder, a pipe and a socket are no files, and nothing waits for a pipe's other end.
    #[test]
    fn only_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        permit(&path("file"), 0o600);
        symlink(path("file"), path("link")).unwrap();
        symlink(path("new"), path("dangling")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for name in ["link", "dangling", "folder", "pipe", "socket"] {
            let error = open(&path(name)).unwrap_err();
            assert!(matches!(error, PlaceError::Kind { expected: "file", .. }), "{name}: {error}");
        }
        assert!(!path("new").exists());
        let file = open(&path("file")).unwrap();
        // No program that this one starts has it.
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        // To open a pipe for reading alone would wait for a writer.
        let (told, hears) = std::sync::mpsc::channel();
        let pipe = path("pipe");
        std::thread::spawn(move || told.send(open_file(&pipe, OFlags::RDONLY).map(drop)));
        let opened = hears.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits for nobody");
        assert!(matches!(opened, Err(PlaceError::Kind { expected: "file", .. })), "{opened:?}");
    }

    /// A file of another user is not opened, whatever its mode. (Only root can make one.)
    #[test]
    fn files_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        drop(open(&path).unwrap());
        if own_uid() != 0 {
            return;
        }
        std::os::unix::fs::chown(&path, Some(7), None).unwrap();
        for opened in [open(&path), open_file(&path, OFlags::RDONLY), open_secret(&path)] {
            assert!(matches!(opened, Err(PlaceError::Owner { owner: 7, .. })), "{opened:?}");
        }
    }

    /// Nobody but its owner may write to a file, empty or not. A new one is its owner's alone.
    #[test]
    fn nobody_else_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for content in ["", "text"] {
            std::fs::write(&path, content).unwrap();
            for (mode, is_open) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
                permit(&path, mode);
                match open(&path) {
                    Err(PlaceError::Writable { mode: which, .. }) => {
                        assert_eq!((which, is_open), (mode, false))
                    }
                    other => assert!(is_open && other.is_ok(), "{other:?}"),
                }
            }
        }
        let made = open(&dir.path().join("new")).unwrap();
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    /// A secret is opened only if nobody else may read or write it, and never through a link.
    #[test]
    fn nobody_else_may_read_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "text").unwrap();
        for mode in [0o600, 0o400, 0o700, 0o640, 0o604, 0o440, 0o444, 0o644, 0o620, 0o602] {
            permit(&path, mode);
            match open_secret(&path) {
                Ok(_) => assert_eq!(mode & 0o077, 0, "{mode:o}"),
                Err(PlaceError::Readable { mode: which, .. }) => {
                    assert!(which == mode && mode & 0o044 != 0, "{mode:o}");
                }
                Err(PlaceError::Writable { mode: which, .. }) => {
                    assert!(which == mode && mode & 0o022 != 0, "{mode:o}");
                }
                Err(error) => panic!("{mode:o}: {error}"),
            }
        }
        permit(&path, 0o600);
        symlink(&path, dir.path().join("link")).unwrap();
        assert!(matches!(open_secret(&dir.path().join("link")), Err(PlaceError::Kind { .. })));
        assert!(matches!(open_secret(&dir.path().join("none")), Err(PlaceError::Os { .. })));
    }

    /// A folder is this user's own only if nobody else may put anything into it.
    #[test]
    fn folders_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        for (mode, is_own) in [(0o700, true), (0o755, true), (0o770, false), (0o1777, false)] {
            permit(&folder, mode);
            assert_eq!(open_folder(&folder).is_ok(), is_own, "{mode:o}");
        }
        symlink(dir.path(), dir.path().join("link")).unwrap();
        for other in ["link", "none"] {
            open_folder(&dir.path().join(other)).unwrap_err();
        }
    }

    /// A default folder is made with its mode. One that is there is not changed, and used only if it is
    /// this user's own.
    #[test]
    fn folders_that_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        let mode = || std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777;
        make_own(&folder, 0o700).unwrap();
        assert_eq!(mode(), 0o700);
        permit(&folder, 0o750);
        make_own(&folder, 0o700).unwrap();
        assert_eq!(mode(), 0o750);
        permit(&folder, 0o770);
        assert!(matches!(make_own(&folder, 0o700), Err(PlaceError::Writable { mode: 0o770, .. })));
        // The umask (most often 022) takes nothing from the mode.
        let made = make_own(&dir.path().join("other"), 0o722);
        assert!(matches!(made, Err(PlaceError::Writable { mode: 0o722, .. })), "{made:?}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = make_own(&dir.path().join("file"), 0o700).unwrap_err();
        assert!(matches!(error, PlaceError::Kind { expected: "folder", .. }), "{error}");
        assert!(error.to_string().contains("is no folder"), "{error}");
    }

    /// One process at a time has a lock, and the next one waits for it as long as it says. To look makes no
    /// file, and none is left.
    #[test]
    fn one_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("what");
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let take = |within| LockFile::take(&path, Duration::from_secs(within)).unwrap();
        assert!(!LockFile::is_taken(&path).unwrap() && names() == 0);
        let first = take(0).unwrap();
        assert!(LockFile::is_taken(&path).unwrap() && take(0).is_none());
        let mode = std::fs::metadata(first.path()).unwrap().permissions().mode();
        assert_eq!((mode & 0o7777, names()), (0o600, 1));
        // What a killed process has left is nobody's.
        let left = File::open(first.path()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(60).expect("its turn comes"));
            drop(first);
            assert!(second.join().unwrap().stands());
        });
        assert!(!LockFile::is_taken(&path).unwrap() && names() == 0);
        std::fs::write(dir.path().join("what.lock"), "").unwrap();
        permit(&dir.path().join("what.lock"), 0o600);
        assert!(!LockFile::is_taken(&path).unwrap());
        drop(take(0).unwrap());
        assert_eq!(names(), 0);
        drop(left);
    }

    /// Locks taken and left at the same time: never two at once, though each removes its file.
    #[test]
    fn locks_exclude_one_another() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let (path, inside) = (dir.path().join("what"), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut taken = 0;
                    while taken < 2000 {
                        let Some(lock) = LockFile::take(&path, Duration::ZERO).unwrap() else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(lock.stands(), "nobody finds it");
                        inside.fetch_sub(1, Ordering::SeqCst);
                        taken += 1;
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A lock that another user has made is not taken. (Only root can make one.)
    #[test]
    fn locks_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lock) = (dir.path().join("what"), dir.path().join("what.lock"));
        std::fs::write(&lock, "").unwrap();
        permit(&lock, 0o622);
        assert!(matches!(LockFile::take(&path, Duration::ZERO), Err(PlaceError::Writable { .. })));
        if own_uid() != 0 {
            return;
        }
        permit(&lock, 0o600);
        std::os::unix::fs::chown(&lock, Some(7), None).unwrap();
        assert!(matches!(LockFile::take(&path, Duration::ZERO), Err(PlaceError::Owner { owner: 7, .. })));
        assert!(matches!(LockFile::is_taken(&path), Err(PlaceError::Owner { owner: 7, .. })));
        assert!(lock.exists());
    }

    /// Sockets are in the first folder that is this user's own, and named by its whole path. If there is
    /// one in a later folder, that is it.
    #[test]
    fn where_sockets_are() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| Some(dir.path().join(name));
        let socket = |folder: Option<PathBuf>| folder.map(|folder: PathBuf| folder.join("oneread.sock"));
        for (name, mode) in [("own", 0o700), ("second", 0o755), ("shared", 0o777)] {
            std::fs::create_dir(folder(name).unwrap()).unwrap();
            permit(&folder(name).unwrap(), mode);
        }
        for (folders, first) in [
            ([folder("own"), folder("second"), None], folder("own")),
            ([folder("shared"), folder("second"), None], folder("second")),
            ([folder("none"), folder("second"), None], folder("second")),
            ([Some(".".into()), folder("second"), None], folder("second")),
            ([None, folder("own"), folder("second")], folder("own")),
            ([None, folder("shared"), None], None),
        ] {
            assert_eq!(socket_in(folders.clone()), socket(first), "{folders:?}");
        }
        let all = || [folder("own"), folder("shared"), folder("second")];
        // What is no socket, and what others may have put there, is not one of this user's servers.
        std::fs::write(socket(folder("second")).unwrap(), "").unwrap();
        let bind = |name| std::os::unix::net::UnixListener::bind(socket(folder(name)).unwrap()).unwrap();
        let _strange = bind("shared");
        assert_eq!(socket_in(all()), socket(folder("own")));
        std::fs::remove_file(socket(folder("second")).unwrap()).unwrap();
        let _listener = bind("second");
        assert_eq!(socket_in(all()), socket(folder("second")), "a server is there");
        let _both = bind("own");
        assert_eq!(socket_in(all()), socket(folder("own")), "the first of two");
    }
}
