//! What to do about a refusal of the operating system, whatever was tried.

use rustix::io::Errno;
use std::io;

/// Whether no descriptor is left, to this process or to the system.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The mend, where the error alone says it. `None`: it depends on what was tried.
pub(crate) fn of(error: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(error)? {
        Errno::MFILE => "raise this process's limit on file descriptors (RLIMIT_NOFILE, `ulimit -n`)",
        Errno::NFILE => "the system has no file descriptor left; close programs, or raise fs.file-max",
        Errno::NOSPC | Errno::DQUOT => "the file system is full; make room there",
        Errno::ROFS => "the file system is for reading only; name a path on another one",
        Errno::FBIG => "raise this process's limit on the length of files (RLIMIT_FSIZE, `ulimit -f`)",
        _ => return None,
    })
}

/// Like `of`, behind what failed: in brackets, or nothing.
pub(crate) fn behind(error: &io::Error) -> String {
    of(error).map_or(String::new(), |mend| format!(" ({mend})"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::error::{FileError, ServeError};
    use crate::region::RegionError;

    /// Who has no descriptor left is told so, whatever needed one, and of nothing else.
    #[test]
    fn descriptors_are_named_as_the_cause() {
        let source = || io::Error::from(Errno::MFILE);
        let address = || Address::Shm("/a/socket".into());
        for error in [
            ServeError::Listen { address: address(), source: source() },
            ServeError::ListenTcp { address: address(), source: source() },
            ServeError::Threads(source()),
            ServeError::File(FileError::Os { doing: "opening", path: "/a".into(), source: source() }),
            ServeError::Region(RegionError::Os { doing: "making", what: "it".into(), source: source() }),
        ] {
            let told = error.to_string();
            assert!(told.contains("ulimit -n"), "{told}");
            assert!(!told.contains("may you write") && !told.contains("ulimit -u"), "{told}");
        }
        let denied = ServeError::Listen { address: address(), source: Errno::ACCESS.into() }.to_string();
        assert!(denied.contains("may you write into that folder?"), "{denied}");
        let threads = ServeError::Threads(Errno::AGAIN.into()).to_string();
        assert!(threads.contains("ulimit -u"), "{threads}");
    }
}
