//! Where a log's files are: a folder, or what tests make of it.

use rustix::fs::{Mode, OFlags};
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder of files.
pub(super) trait Disk: Debug + Send + Sync {
    /// The names of all files.
    ///
    /// # Errors
    /// The system's.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes a file, which must not be there. Its name may not be on the disk yet.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// The bytes of a file from one on, as many as fit. Fewer only at its end.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, name: &str, at: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The length of a file.
    ///
    /// # Errors
    /// The system's.
    fn len(&self, name: &str) -> io::Result<u64>;

    /// Cuts a file, and waits until the disk has it.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Waits until the disk has all names that were made and removed.
    ///
    /// # Errors
    /// The system's.
    fn sync_names(&self) -> io::Result<()>;
}

/// A file that is written at its end.
pub(super) trait DiskFile: Debug + Send {
    /// Appends these bytes. Some of them may be there after an error.
    ///
    /// # Errors
    /// The system's.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits until the disk has all that was appended. After an error nobody knows what it has: the system may have
    /// forgotten that some of it was still to be written.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder, made if it is not there, for this user alone.
    ///
    /// # Errors
    /// The system's.
    pub fn new(path: &Path) -> io::Result<Folder> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            // Its own name is on the disk, too.
            Ok(()) => {
                sync_folder(path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Folder { path: path.into() })
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(folder)?)
}

impl Disk for Folder {
    fn names(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.path)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.path.join(name), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Box::new(File::from(file)))
    }

    fn read(&self, name: &str, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let file = File::open(self.path.join(name))?;
        let mut read = 0;
        while read < into.len() {
            match file.read_at(&mut into[read..], at + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.path.join(name))?.len())
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = File::options().write(true).open(self.path.join(name))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        sync_folder(&self.path)
    }
}

impl DiskFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
