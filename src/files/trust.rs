//! Whose a file or folder is, and who else could change it.

use crate::error::mend;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Why a file or folder is not safe to use. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
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
    /// A default folder of this user's is another user's, who has made it first.
    #[error(
        "{}, this user's default folder for {holds}, belongs to user {owner}, who has made it first; have root remove it, or {instead}",
        path.display()
    )]
    Squatted {
        /// The folder.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
        /// What it is for.
        holds: &'static str,
        /// What to do without it.
        instead: &'static str,
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
    #[error("{doing} {}{}", path.display(), mend::behind(source))]
    Os {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
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
    // To the kernel the highest number means no user.
    uid == own_uid() || uid == 0 || uid != u32::MAX && named.contains(&uid)
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

/// Makes a folder, or checks that the one that is there belongs to this user alone.
pub(super) fn make_own(folder: &Path, mode: u32) -> Result<(), FileError> {
    let failed =
        |e: Errno| FileError::Os { doing: "making the folder", path: folder.into(), source: e.into() };
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mkdir(folder, mode) {
        // The process's umask may have taken from the mode what others need.
        Ok(()) => set_mode(open_folder(folder)?, mode).map_err(failed)?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    open_folder(folder).map(drop)
}

/// Sets the mode of what is open here, whatever its path leads to by now. It may have been opened only as a place
/// (`O_PATH`), so this goes through `/proc`. Whoever has the mode needs none.
pub(crate) fn set_mode(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    let file = file.as_fd();
    if Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode) & Mode::from_raw_mode(0o7777) == mode {
        return Ok(());
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
}

/// Checks that a folder is there, and that nobody but this user and root can put anything into it.
pub(super) fn open_folder(path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(path, "folder", e))?;
    let about = rustix::fs::fstat(&folder).map_err(|e| failed(path, "folder", e))?;
    check(path, &about, FileType::Directory)?;
    Ok(folder)
}

/// Opens a file, without following a link, if it is a file that only this user and root can write
/// to. Whether others may read it is its owner's choice. A new file is this user's alone.
///
/// # Errors
/// [`FileError`].
pub fn open_file(path: &Path, flags: OFlags) -> Result<File, FileError> {
    // NONBLOCK: opening a pipe or a device waits for nothing.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags, mode).map_err(|e| failed(path, "file", e))?;
    let about = rustix::fs::fstat(&file).map_err(|e| failed(path, "file", e))?;
    check(path, &about, FileType::RegularFile)?;
    Ok(file.into())
}

/// Opens a file that somebody has named, to read it, whoever owns it. A link to a file is followed. What is no file is
/// refused: a pipe or a device might have the reader wait for ever.
///
/// # Errors
/// [`FileError`].
pub fn open_to_read(path: &Path) -> Result<File, FileError> {
    open_named(path).map(|(file, _)| file)
}

fn open_named(path: &Path) -> Result<(File, Stat), FileError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(path, "file", e))?;
    let about = rustix::fs::fstat(&file).map_err(|e| failed(path, "file", e))?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(FileError::Kind { path: path.into(), expected: "file" });
    }
    Ok((file.into(), about))
}

/// The bytes of a file that somebody has named, as [`open_to_read`] opens it.
///
/// # Errors
/// [`FileError`].
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_all(path, open_to_read(path)?)
}

/// Opens a file that holds a secret, to read it: the one that the path leads to, which belongs to this user or root, and
/// which nobody else may read or write to. The group may read a file of root's if this user is another one: so systemd
/// and others hand secrets to services.
///
/// # Errors
/// [`FileError`].
pub fn open_secret(path: &Path) -> Result<File, FileError> {
    let (file, about) = open_named(path)?;
    check(path, &about, FileType::RegularFile)?;
    let is_handed = about.st_uid == 0 && own_uid() != 0;
    let closed_to = if is_handed { 0o004 } else { 0o044 };
    if about.st_mode & closed_to != 0 {
        return Err(FileError::Readable { path: path.into(), mode: about.st_mode & 0o7777 });
    }
    Ok(file)
}

/// The secret in a file, as [`open_secret`] opens it.
///
/// # Errors
/// [`FileError`].
pub fn read_secret(path: &Path) -> Result<Vec<u8>, FileError> {
    read_all(path, open_secret(path)?)
}

fn read_all(path: &Path, mut file: File) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    match file.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(FileError::Os { doing: "reading", path: path.into(), source }),
    }
}

fn failed(path: &Path, expected: &'static str, error: Errno) -> FileError {
    let path = path.to_path_buf();
    match error {
        Errno::LOOP | Errno::ISDIR | Errno::NOTDIR | Errno::NXIO => FileError::Kind { path, expected },
        error => FileError::Os { doing: "opening", path, source: error.into() },
    }
}

fn check(path: &Path, about: &Stat, expected: FileType) -> Result<(), FileError> {
    let path = path.to_path_buf();
    if FileType::from_raw_mode(about.st_mode) != expected {
        let expected = if expected == FileType::Directory { "folder" } else { "file" };
        return Err(FileError::Kind { path, expected });
    }
    if about.st_uid != own_uid() && about.st_uid != 0 {
        return Err(FileError::Owner { path, owner: about.st_uid });
    }
    if about.st_mode & 0o022 != 0 {
        return Err(FileError::Writable { path, mode: about.st_mode & 0o7777 });
    }
    Ok(())
}
