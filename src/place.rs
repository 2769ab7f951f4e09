//! Where this user's servers keep sockets and region files by default, and who else could change
//! what is there.
//!
//! Whoever owns a region file, or may write to it, can read and change every value, and can make it
//! shorter, which ends server and clients by SIGBUS. Whoever may write to a folder can put a file
//! there first. So a file is opened without following a link at its end, and then checked; and the
//! folders of default places are this user's own.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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

/// The folder of this user's sockets: `$XDG_RUNTIME_DIR`, else `/run/user/UID`, if the folder
/// belongs to this user alone; else `/run/oneread` for root, and `/tmp/oneread-UID` for others.
pub fn sockets() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let run_user = PathBuf::from(format!("/run/user/{}", own_uid()));
    own_of([runtime, Some(run_user)]).unwrap_or_else(made_for_sockets)
}

/// The first of these folders that belongs to this user alone.
fn own_of(folders: [Option<PathBuf>; 2]) -> Option<PathBuf> {
    folders.into_iter().flatten().find(|folder| folder.is_absolute() && open_folder(folder).is_ok())
}

fn made_for_sockets() -> PathBuf {
    match own_uid() {
        0 => "/run/oneread".into(),
        uid => format!("/tmp/oneread-{uid}").into(),
    }
}

/// The folder of this user's region files: `/dev/shm/oneread-UID`, in memory. (A runtime folder
/// would be too small, and goes at logout.)
pub fn regions() -> PathBuf {
    format!("/dev/shm/oneread-{}", own_uid()).into()
}

/// The user that this thread acts as.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether what this user has made may be relied on: it is this process's own, root, or one of
/// those named.
pub(crate) fn is_trusted(uid: u32, named: &[u32]) -> bool {
    uid == own_uid() || uid == 0 || named.contains(&uid)
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
    match rustix::fs::mkdir(folder, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => open_folder(folder),
        Err(e) => Err(PlaceError::Os { doing: "making the folder", path: folder.into(), source: e.into() }),
    }
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
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = make_own(&dir.path().join("file"), 0o700).unwrap_err();
        assert!(matches!(error, PlaceError::Kind { expected: "folder", .. }), "{error}");
        assert!(error.to_string().contains("is no folder"), "{error}");
    }

    /// Sockets are in the first folder that is this user's own, and named by its whole path.
    #[test]
    fn where_sockets_are() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| Some(dir.path().join(name));
        for (name, mode) in [("own", 0o700), ("second", 0o755), ("shared", 0o777)] {
            std::fs::create_dir(folder(name).unwrap()).unwrap();
            permit(&folder(name).unwrap(), mode);
        }
        for (folders, first) in [
            ([folder("own"), folder("second")], folder("own")),
            ([folder("shared"), folder("second")], folder("second")),
            ([folder("none"), folder("second")], folder("second")),
            ([Some(".".into()), folder("second")], folder("second")),
            ([None, folder("own")], folder("own")),
            ([None, folder("shared")], None),
        ] {
            assert_eq!(own_of(folders.clone()), first, "{folders:?}");
        }
    }
}
