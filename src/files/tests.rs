use super::defaults::socket_in;
use super::trust::{make_own, open_folder};
use super::*;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn open(path: &Path) -> Result<File, FileError> {
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
        assert!(matches!(error, FileError::Kind { expected: "file", .. }), "{name}: {error}");
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
    assert!(matches!(opened, Err(FileError::Kind { expected: "file", .. })), "{opened:?}");
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
        assert!(matches!(opened, Err(FileError::Owner { owner: 7, .. })), "{opened:?}");
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
                Err(FileError::Writable { mode: which, .. }) => {
                    assert_eq!((which, is_open), (mode, false))
                }
                other => assert!(is_open && other.is_ok(), "{other:?}"),
            }
        }
    }
    let made = open(&dir.path().join("new")).unwrap();
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
}

/// A secret is opened only if nobody else may read or write it, whether a link leads to it or not.
#[test]
fn nobody_else_may_read_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, "text").unwrap();
    for mode in [0o600, 0o400, 0o700, 0o640, 0o604, 0o440, 0o444, 0o644, 0o620, 0o602] {
        permit(&path, mode);
        match open_secret(&path) {
            Ok(_) => assert_eq!(mode & 0o077, 0, "{mode:o}"),
            Err(FileError::Readable { mode: which, .. }) => {
                assert!(which == mode && mode & 0o044 != 0, "{mode:o}");
            }
            Err(FileError::Writable { mode: which, .. }) => {
                assert!(which == mode && mode & 0o022 != 0, "{mode:o}");
            }
            Err(error) => panic!("{mode:o}: {error}"),
        }
    }
    permit(&path, 0o600);
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(read_secret(&link).unwrap(), b"text");
    permit(&path, 0o604);
    assert!(matches!(read_secret(&link), Err(FileError::Readable { mode: 0o604, .. })));
    assert!(matches!(open_secret(&dir.path().join("none")), Err(FileError::Os { .. })));
}

/// What is named to be read is a file, or a link to one, whoever may write to it. Nobody waits for a pipe or a device.
#[test]
fn only_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("file"), "text").unwrap();
    permit(&path("file"), 0o666);
    symlink(path("file"), path("link")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    symlink(path("pipe"), path("link to a pipe")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(read(&path(name)).unwrap(), b"text");
    }
    let (told, hears) = std::sync::mpsc::channel();
    let refused: Vec<PathBuf> = ["folder", "pipe", "link to a pipe"].map(path).into();
    let refused = [refused, vec!["/dev/zero".into(), "/dev/tty".into()]].concat();
    std::thread::spawn(move || {
        for path in refused {
            let _ = told.send([open_to_read(&path), open_secret(&path)].map(|opened| (path.clone(), opened)));
        }
    });
    for _ in 0..5 {
        let [first, second] = hears.recv_timeout(Duration::from_secs(60)).expect("it waits for nobody");
        for (path, opened) in [first, second] {
            let error = opened.unwrap_err();
            let is_no_file = matches!(error, FileError::Kind { expected: "file", .. });
            // Who has no terminal cannot open this one.
            assert!(is_no_file || path.ends_with("tty"), "{}: {error}", path.display());
        }
    }
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
    assert!(matches!(make_own(&folder, 0o700), Err(FileError::Writable { mode: 0o770, .. })));
    // The umask (most often 022) takes nothing from the mode.
    let made = make_own(&dir.path().join("other"), 0o722);
    assert!(matches!(made, Err(FileError::Writable { mode: 0o722, .. })), "{made:?}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = make_own(&dir.path().join("file"), 0o700).unwrap_err();
    assert!(matches!(error, FileError::Kind { expected: "folder", .. }), "{error}");
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
    assert!(matches!(LockFile::take(&path, Duration::ZERO), Err(FileError::Writable { .. })));
    if own_uid() != 0 {
        return;
    }
    permit(&lock, 0o600);
    std::os::unix::fs::chown(&lock, Some(7), None).unwrap();
    assert!(matches!(LockFile::take(&path, Duration::ZERO), Err(FileError::Owner { owner: 7, .. })));
    // Who only looks changes nothing.
    assert!(!LockFile::is_taken(&path).unwrap());
    let held = File::open(&lock).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(LockFile::is_taken(&path).unwrap() && lock.exists());
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
