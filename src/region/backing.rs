//! Where a region's memory comes from.

use std::fmt;
use std::path::PathBuf;

/// Where a region's memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Anonymous shared memory (memfd), sealed against other lengths. Clients get a descriptor for
    /// reading, and other users cannot make one for writing of it. Gone when the last process that maps it is. From 16 MiB on it is in huge pages of 2 MiB if the
    /// administrator has reserved enough of them, else in pages that the kernel may make huge.
    Anonymous,
    /// Anonymous shared memory in huge pages of 2 MiB, or none.
    HugePages,
    /// A file, which outlives the server: on tmpfs (`/dev/shm`), hugetlbfs or a disk. It must
    /// belong to this user or root, and nobody else may write to it; a new table is made with mode 0600, an old
    /// one may be readable by others. For a server that takes its table over when it starts again:
    ///
    /// ```
    /// # use oneread::{Address, Backing, Client, Config, Server, ServerConfig, StartMode, TableSize};
    /// # let dir = tempfile::tempdir()?;
    /// # let address = Address::Shm(dir.path().join("socket"));
    /// # let path = dir.path().join("region");
    /// let table = Config::new().size(TableSize::Keys(100));
    /// let config = ServerConfig::new(address.clone(), table)
    ///     .backing(Backing::File(path))
    ///     .start(StartMode::OpenOrCreate); // else a second start is an error
    /// let server = Server::start(config.clone())?;
    /// Client::connect(&address)?.put(b"key", b"value")?;
    /// server.stop();
    ///
    /// let server = Server::start(config)?;
    /// assert_eq!(server.recovered().map(|found| found.keys), Some(1));
    /// assert!(Client::connect(&address)?.contains(b"key")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    File(PathBuf),
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Anonymous => f.write_str("anonymous memory"),
            Backing::HugePages => f.write_str("anonymous huge pages"),
            Backing::File(path) => path.display().fmt(f),
        }
    }
}
