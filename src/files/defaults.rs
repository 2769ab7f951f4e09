//! Where this user's servers keep sockets and region files by default.

use super::trust::{FileError, make_own, open_folder, own_uid};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

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
pub(super) fn socket_in(folders: [Option<PathBuf>; 3]) -> Option<PathBuf> {
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

/// Makes the folder of a path, if it is one of this user's default folders, and checks that it
/// belongs to this user alone. Any other folder is left to whoever named it.
///
/// # Errors
/// [`FileError`], also when another user has made the folder first.
pub fn prepare(path: &Path) -> Result<(), FileError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    // Everybody may look for root's socket, and is told whether they may connect.
    let (mode, of) = match folder {
        folder if folder == regions() => (0o700, REGIONS),
        folder if folder == Path::new("/run/oneread") && own_uid() == 0 => (0o755, SOCKETS),
        folder if folder == made_for_sockets() => (0o700, SOCKETS),
        _ => return Ok(()),
    };
    make_own(folder, mode).map_err(|error| named(folder, of, error))
}

/// What a default folder is for, and what to do where another user has made it first. (There is no other place of memory
/// that nobody else can take before: whoever may write to `/dev/shm` may make any name there.)
type Purpose = [&'static str; 2];

const REGIONS: Purpose = [
    "region files",
    "set ONEREAD_SHM to a folder in memory that nobody else may write to, or name a region file elsewhere (`Backing::File`); docs/OPERATIONS.md (\"As a service\") has the line by which systemd makes the folder first",
];
const SOCKETS: Purpose =
    ["sockets", "set XDG_RUNTIME_DIR to a folder of this user's alone, or name another address"];

/// An error with such a folder, as that of whoever owns what stands there.
fn named(folder: &Path, [holds, instead]: Purpose, error: FileError) -> FileError {
    match (error, folder.symlink_metadata()) {
        (FileError::Owner { .. } | FileError::Kind { .. } | FileError::Writable { .. }, Ok(about))
            if ![0, own_uid()].contains(&about.uid()) =>
        {
            FileError::Squatted { path: folder.into(), owner: about.uid(), holds, instead }
        }
        (error, _) => error,
    }
}
