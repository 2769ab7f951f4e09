//! Region memory: the one place where memory that others read or write is touched.
//!
//! A region is an array of words. The server stores into it through `Region::store` and counts in
//! it through `Region::add`. Every byte reaches a reader through one of these. Readers load words,
//! or have a NIC copy them.
//!
//! Nobody ever holds `&[u8]` or `&mut` to it: words are [`AtomicU64`]s, loaded and stored `Relaxed`, and
//! ordered by explicit fences in the protocols above. A mapping that another process can write is, to
//! Rust's memory model, memory shared with a thread that uses atomics of the same size; that is as far as
//! the language speaks of it.

#![allow(unsafe_code)]

use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::mapped::EIGHT_LINES;
use crate::layout::superblock::{FORMAT_VERSION, SUPERBLOCK_WORDS, Superblock, SuperblockError};
use crate::layout::{LINE, PAGE, WORD, mapped};
use crate::observe::{Observed, ObservedBy};
use crate::place::{self, LockFile, PlaceError};
pub use crate::room::MemoryShare;
use crate::room::{self, Room};
use crate::sync::{AtomicU64, Ordering};
use crate::units;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

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

/// Why a region's memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A system call failed.
    #[error("{doing} {what}{}", hint(.source))]
    Os {
        /// What was tried.
        doing: &'static str,
        /// On what.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Memory that is there could not be mapped: the process has no addresses left for it.
    #[error(
        "mapping {what} ({}): this process has no address space left for it; raise its limit (RLIMIT_AS, `ulimit -v`)",
        units::bytes(*bytes)
    )]
    AddressSpace {
        /// What was to be mapped.
        what: String,
        /// Its length.
        bytes: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Too few huge pages are reserved, or free.
    #[error(
        "{} in huge pages of 2 MiB are not to be had; reserve more (sysctl vm.nr_hugepages={}), or serve without them",
        units::bytes(*bytes),
        bytes.div_ceil(2 << 20)
    )]
    HugePages {
        /// Bytes asked for.
        bytes: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file, or the folder of a default place, is not this user's alone.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The memory that a server handed over is not sealed, and no file of a trusted user either.
    #[error(
        "the server handed over memory that could be made shorter while it is read; it is no server of oneread's; name another address"
    )]
    Unsealed,
    /// Memory that a table was to grow into cannot be registered with the network device.
    #[error(
        "memory for the table to grow into cannot be registered with the network device; raise the limit on locked memory (ulimit -l)"
    )]
    Unregistered {
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A new region does not fit into the memory that is left. None was taken.
    #[error(
        "a region of {} does not fit: {of} leaves {}; ask for a smaller table, or make room",
        units::bytes(*need),
        units::bytes(*left)
    )]
    NoRoom {
        /// Bytes needed.
        need: u64,
        /// Bytes left.
        left: u64,
        /// What bounds them.
        of: String,
    },
    /// A server ended while it made the table in this file, or is still at it. Nobody was ever served from it.
    #[error(
        "the table in {} was never finished: its server ended while it made it, or is still at it; it has no keys, and the next start makes it again",
        path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// The start was cancelled ([`ServerConfig::cancel`](crate::ServerConfig::cancel)).
    #[error("the start was cancelled")]
    Cancelled,
    /// There is no file to open.
    #[error("there is no region file {}; `StartMode::OpenOrCreate` makes one", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another server has the file open.
    #[error("{} is in use by another server; stop it, or serve another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Other names lead to the file, and a server by another name would have another lock.
    #[error(
        "other names lead to {} (hard links, or a mount of the file itself), and a server by another name would not see the lock of this one; leave it one name, or mount its folder",
        path.display()
    )]
    SeveralNames {
        /// The file.
        path: PathBuf,
    },
    /// The file is there already and not empty, and was to be made.
    #[error(
        "{} is there already ({have} bytes; a new table needs {need}); take it over with `StartMode::OpenOrCreate`, or remove it",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        have: u64,
        /// The length asked for.
        need: u64,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOMEM) => " (not enough memory: ask for a smaller table, or free some)",
        Some(rustix::io::Errno::NOSPC) => {
            " (the file system is full: make room there, ask for a smaller table, or serve a file elsewhere)"
        }
        Some(rustix::io::Errno::FBIG) => {
            " (it is longer than this process may make a file: raise the limit, RLIMIT_FSIZE, `ulimit -f`)"
        }
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            " (check who owns it, or name a file of your own)"
        }
        Some(rustix::io::Errno::NOENT) => " (does the folder exist?)",
        _ => "",
    }
}

fn os(doing: &'static str, what: impl Into<String>) -> impl FnOnce(io::Error) -> RegionError {
    let what = what.into();
    move |source| RegionError::Os { doing, what, source }
}

/// Why `bytes` of memory that is there could not be mapped.
fn unmapped(what: impl Into<String>, bytes: u64) -> impl FnOnce(io::Error) -> RegionError {
    let what = what.into();
    move |source| match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOMEM) => RegionError::AddressSpace { what, bytes, source },
        _ => RegionError::Os { doing: "mapping", what, source },
    }
}

/// Whether the limit on this process's addresses is below what is asked for. What it has used of it is not
/// counted: less than a table as a rule.
fn is_address_space_short(bytes: u64) -> bool {
    rustix::process::getrlimit(rustix::process::Resource::As).current.is_some_and(|limit| limit <= bytes)
}

/// A mapped region. `Send + Sync`: it is only touched word by word.
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    /// Eight lines may begin at words below this one.
    eight_lines_end: usize,
    writable: bool,
    /// Keeps `base..base + words` where they are.
    memory: Arc<Memory>,
    /// What clients are handed: cannot be mapped writable. Private memory is not shared.
    share: Option<Arc<OwnedFd>>,
    /// The memory as a file, open for writing by the one server.
    file: Option<Arc<File>>,
    /// The same with its lock. An alias has none.
    own: Option<OwnFile>,
    /// A device has its memory pinned: what is given back would be lost to its READs.
    pinned: Arc<AtomicBool>,
    observed: Observed,
}

/// The file of a region, as its server has it.
struct OwnFile {
    file: Arc<File>,
    /// Where it was made. It is removed with the region unless it is kept.
    made_at: Option<PathBuf>,
    is_kept: AtomicBool,
    /// Keeps a second server away. Clients are never handed it. Memory without a name needs none.
    lock: Option<LockFile>,
}

impl OwnFile {
    fn of(file: File, lock: Option<LockFile>) -> OwnFile {
        OwnFile { file: Arc::new(file), made_at: None, is_kept: AtomicBool::new(false), lock }
    }
}

impl Drop for OwnFile {
    /// The lock goes after this.
    fn drop(&mut self) {
        let is_ours = self.lock.as_ref().is_some_and(LockFile::is_ours) && !*self.is_kept.get_mut();
        if let Some(path) = self.made_at.take_if(|_| is_ours)
            && place::stands_at(&self.file, &path)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[allow(dead_code, reason = "held for the memory, which is reached through `base`")]
enum Memory {
    Mapped(MmapRaw),
    Private(Box<[AtomicU64]>),
}

// SAFETY: `base` points into `memory`, which lives as long as the region and is never unmapped or moved
// before; all access to it goes through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).field("writable", &self.writable).finish()
    }
}

impl Region {
    /// Makes a region of `bytes` zero bytes. An existing file must be empty, or hold a table that was never
    /// finished. The file is removed again with the region, unless a table is made in it
    /// ([`Index::create`](crate::Index::create)).
    ///
    /// # Errors
    /// [`RegionError`], with the likely cause.
    pub fn create(backing: &Backing, bytes: u64) -> Result<Region, RegionError> {
        Region::create_sparse(backing, bytes, bytes)
    }

    /// The same for a region of which only `first` bytes are needed at once. The others are addresses
    /// without memory, until it is put there ([`Region::back`]). Huge pages are all reserved at once.
    ///
    /// # Errors
    /// [`RegionError`], with the likely cause.
    pub fn create_sparse(backing: &Backing, bytes: u64, first: u64) -> Result<Region, RegionError> {
        // A smaller table would waste a large part of its last page.
        const WORTH_HUGE: u64 = 16 << 20;
        if *backing == Backing::Anonymous && bytes >= WORTH_HUGE {
            // Reserved pages do not count as free memory.
            match Region::create(&Backing::HugePages, bytes) {
                Ok(region) => return Ok(region),
                Err(why) => tracing::debug!(%why, bytes, "no reserved huge pages for this table"),
            }
        }
        const HUGE: u64 = 2 << 20;
        let bytes = if *backing == Backing::HugePages { bytes.next_multiple_of(HUGE) } else { bytes };
        check_room(backing, bytes, first)?;
        match backing {
            Backing::Anonymous => Region::anonymous(MemfdFlags::empty(), bytes),
            Backing::HugePages => Region::anonymous(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, bytes),
            Backing::File(path) => {
                let name = path.display().to_string();
                let mut own = lock_file(path, true)?;
                let file = Arc::clone(&own.file);
                let have = file.metadata().map_err(os("reading the length of", &name))?.len();
                if have != 0 && !is_unfinished(&file).map_err(os("reading", &name))? {
                    return Err(RegionError::Length { path: path.clone(), have, need: bytes });
                }
                own.made_at = Some(place::fixed(path));
                // An empty file that was there may be readable by others.
                file.set_permissions(Permissions::from_mode(0o600)).map_err(os("protecting", &name))?;
                let bytes = huge_page(&file).map_or(bytes, |page| bytes.next_multiple_of(page));
                let cleared = file.set_len(0).and_then(|()| set_len(&file, bytes));
                cleared.map_err(os("making room in", &name))?;
                Region::of_file(path, own)
            }
        }
    }

    /// Opens the region in an existing file for serving.
    ///
    /// # Errors
    /// [`RegionError`], also when another server has it open.
    pub fn open(path: &Path) -> Result<Region, RegionError> {
        let own = lock_file(path, false)?;
        check_finished(path, &own.file)?;
        Region::of_file(path, own)
    }

    /// Maps a region file for reading only, whether or not a server has it. The file must belong to
    /// this user or root, and nobody else may write to it.
    ///
    /// # Errors
    /// [`RegionError`] when it is not there, not safe, or cannot be mapped.
    pub fn open_to_read(path: &Path) -> Result<Region, RegionError> {
        Region::map_file(path, place::open_file(path, OFlags::RDONLY)?)
    }

    /// The same for a file that the caller has opened, and judged whose it is.
    ///
    /// # Errors
    /// [`RegionError`] when it holds no finished table, or cannot be mapped.
    pub fn map_file(path: &Path, file: File) -> Result<Region, RegionError> {
        check_finished(path, &file)?;
        Region::map_shared(file.into())
    }

    /// From now on the file that was made for this region stays when the region goes.
    pub(crate) fn keep(&self) {
        if let Some(own) = &self.own {
            // Relaxed: whoever drops the region has it alone.
            own.is_kept.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn of_file(path: &Path, own: OwnFile) -> Result<Region, RegionError> {
        let name = path.display().to_string();
        // Clients are handed this second, read-only opening. With a copy of `file` they could write.
        let share = place::open_file(path, OFlags::RDONLY)?;
        let about = |file: &File| file.metadata().map_err(os("reading the length of", &name));
        let (ours, theirs) = (about(&own.file)?, about(&share)?);
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            let source = io::Error::other("another file took its place meanwhile; try again");
            return Err(os("opening for reading", &name)(source));
        }
        let bytes = ours.len();
        let map = MmapOptions::new().len(bytes as usize).map_raw(&*own.file);
        let map = map.map_err(|error| match huge_page(&own.file) {
            // All of its pages are reserved now.
            Some(_) => os("mapping", &name)(error),
            None => unmapped(&name, bytes)(error),
        })?;
        Ok(Region::from_map(map, is_in_memory(&own.file), true, Some(share.into()), Some(own)))
    }

    fn anonymous(flags: MemfdFlags, bytes: u64) -> Result<Region, RegionError> {
        let what = || format!("{bytes} bytes of shared memory");
        let file = memfd(flags, bytes)?;
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file).map_err(|source| {
            match unmapped(what(), bytes)(source) {
                RegionError::AddressSpace { source, .. }
                    if flags.contains(MemfdFlags::HUGETLB) && !is_address_space_short(bytes) =>
                {
                    RegionError::HugePages { bytes, source }
                }
                error => error,
            }
        })?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))
            .map_err(|e| os("protecting", what())(e.into()))?;
        // A seal against writers would keep the server from giving memory back. It is for where no
        // descriptor for reading can be had.
        let lengths = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        let (share, seals) = match File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
            Ok(share) => (share.into(), lengths),
            Err(why) => {
                tracing::debug!(%why, "no /proc: a table that shrinks gives no memory back");
                let share = file.as_fd().try_clone_to_owned().map_err(os("sharing", what()))?;
                (share, lengths | SealFlags::FUTURE_WRITE)
            }
        };
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|e| os("sealing", what())(e.into()))?;
        Ok(Region::from_map(map, is_in_memory(&file), true, Some(share), Some(OwnFile::of(file, None))))
    }

    /// Memory that this process and one other both write: so many zero bytes, and what the other is handed. It is
    /// there, and sealed: nobody can make it shorter, and have an access of the other side end in SIGBUS. (What the
    /// seals allow is to punch holes. They fill with zeros when they are touched, unless the system is then out of
    /// memory.)
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough.
    pub(crate) fn exchange(bytes: u64) -> Result<(Region, OwnedFd), RegionError> {
        let what = || format!("{bytes} bytes of shared memory");
        leaves_room(bytes)?;
        let file = memfd(MemfdFlags::empty(), bytes)?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|e| os("sealing", what())(e.into()))?;
        reserve(&file, 0..bytes)?;
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file).map_err(unmapped(what(), bytes))?;
        Ok((Region::from_map(map, is_in_memory(&file), true, None, None), file.into()))
    }

    /// Maps memory that a server made with [`Region::exchange`] and handed over.
    ///
    /// # Errors
    /// [`RegionError`] when it cannot be mapped, or is not sealed.
    pub(crate) fn map_exchange(fd: OwnedFd) -> Result<Region, RegionError> {
        let file = File::from(fd);
        let what = "the mailbox the server handed over";
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|e| os("checking", what)(e.into()))?;
        if !seals.contains(SealFlags::SHRINK) {
            let source =
                io::Error::other("it can be made shorter; use the same version of oneread on both sides");
            return Err(os("checking", what)(source));
        }
        let bytes = file.metadata().map_err(os("reading the length of", what))?.len();
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file).map_err(unmapped(what, bytes))?;
        Ok(Region::from_map(map, is_in_memory(&file), true, None, None))
    }

    /// Maps a region that a server handed over, for reading only.
    ///
    /// # Errors
    /// [`RegionError`] when it cannot be mapped.
    pub fn map_shared(fd: OwnedFd) -> Result<Region, RegionError> {
        let file = File::from(fd);
        let what = "the region the server handed over";
        let bytes = file.metadata().map_err(os("reading the length of", what))?.len();
        let map = MmapOptions::new().len(bytes as usize).map_raw_read_only(&file);
        let map = map.map_err(unmapped(what, bytes))?;
        Ok(Region::from_map(map, is_in_memory(&file), false, Some(file.into()), None))
    }

    /// Maps the region that a server handed to this client, for reading only. Anonymous memory must be
    /// sealed: nobody can make it shorter, and have a GET end in SIGBUS. A file can be made shorter by
    /// its owner, who must be one of the `trusted` users, this one, or root.
    ///
    /// # Errors
    /// [`RegionError`] when it is neither, or cannot be mapped.
    pub(crate) fn map_handed(fd: OwnedFd, trusted: &[u32]) -> Result<Region, RegionError> {
        let what = "the region the server handed over";
        // What has a name in a file system has no seals, or one seal: that it takes no others.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::SEAL);
        if seals.contains(SealFlags::SHRINK) {
            return Region::map_shared(fd);
        }
        let about = rustix::fs::fstat(&fd).map_err(|e| os("checking", what)(e.into()))?;
        let is_file = rustix::fs::FileType::from_raw_mode(about.st_mode).is_file();
        if !(is_file && seals.contains(SealFlags::SEAL) && place::is_trusted(about.st_uid, trusted)) {
            return Err(RegionError::Unsealed);
        }
        Region::map_shared(fd)
    }

    fn from_map(
        map: MmapRaw,
        is_in_memory: bool,
        writable: bool,
        share: Option<OwnedFd>,
        own: Option<OwnFile>,
    ) -> Region {
        // A window is read at random: fewer, larger TLB entries where the system allows it. Best effort.
        // A store into a page of a disk's file needs blocks for all of the page, holes too, and where the disk
        // has none, it ends in SIGBUS. So pages there are as short as can be: those read ahead are longer.
        let advice = if is_in_memory { memmap2::Advice::HugePage } else { memmap2::Advice::Random };
        let _ = map.advise(advice);
        Region {
            words: map.len() / WORD,
            eight_lines_end: eight_lines_end(map.len() / WORD),
            base: NonNull::new(map.as_mut_ptr().cast()).unwrap_or(NonNull::dangling()),
            writable,
            memory: Arc::new(Memory::Mapped(map)),
            share: share.map(Arc::new),
            file: own.as_ref().map(|own| Arc::clone(&own.file)),
            own,
            pinned: Arc::default(),
            observed: Observed::default(),
        }
    }

    /// Zero bytes of this process alone: in a copy of it that `fork` or `clone` makes, they are zero again.
    ///
    /// # Errors
    /// When the system cannot do that.
    #[cfg(not(loom))]
    pub(crate) fn of_this_process(bytes: u64) -> io::Result<Region> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes as usize).map_anon()?);
        // SAFETY: the advice changes what a child process sees, and nothing in this one.
        unsafe {
            rustix::mm::madvise(map.as_mut_ptr().cast(), map.len(), rustix::mm::Advice::LinuxWipeOnFork)?;
        }
        Ok(Region::from_map(map, false, true, None, None))
    }

    /// A region of `bytes` zero bytes in this process's own memory, which no other can map.
    pub fn private(bytes: u64) -> Region {
        let words = bytes as usize / WORD;
        let memory: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        Region {
            base: NonNull::from(&*memory).cast(),
            words,
            eight_lines_end: eight_lines_end(words),
            writable: true,
            memory: Arc::new(Memory::Private(memory)),
            share: None,
            file: None,
            own: None,
            pinned: Arc::default(),
            observed: Observed::default(),
        }
    }

    /// The same region under another name, for one more owner of a part of it. The file's lock goes
    /// with the first.
    pub(crate) fn alias(&self) -> Region {
        Region {
            memory: Arc::clone(&self.memory),
            share: self.share.clone(),
            file: self.file.clone(),
            own: None,
            pinned: Arc::clone(&self.pinned),
            observed: self.observed.clone(),
            ..*self
        }
    }

    /// The same region, observed from now on.
    #[cfg(feature = "sim")]
    pub(crate) fn observed(self, observer: std::sync::Arc<dyn crate::observe::Observer>) -> Region {
        Region { observed: Observed::by(observer), ..self }
    }

    /// Length in bytes. A last word that is not whole cannot be touched.
    pub fn bytes(&self) -> u64 {
        match &*self.memory {
            Memory::Mapped(map) => map.len() as u64,
            Memory::Private(words) => (words.len() * WORD) as u64,
        }
    }

    /// Where it is mapped: what a NIC is told to read. Nothing in this process goes through this pointer.
    #[cfg(feature = "verbs")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    /// How many of its bytes this process has mapped in huge pages so far: pages are mapped when they
    /// are first touched. Reads `/proc/self/smaps`, which walks the page tables; 0 without it.
    pub fn huge_bytes(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        huge_bytes(&smaps, self.base.as_ptr() as u64)
    }

    /// May this process store into it?
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Sees to it that memory stands behind `bytes` of the region: what it has not got now would be missed
    /// later, by a signal in the middle of a store.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough.
    pub fn back(&self, bytes: std::ops::Range<u64>) -> Result<(), RegionError> {
        match (&self.file, &*self.memory) {
            (Some(file), Memory::Mapped(map)) => back(file, map, 0, bytes),
            _ => Ok(()),
        }
    }

    /// As [`Region::back`], for a table in service. What the system could give only by ending
    /// processes counts as refused, too: it would end this one first.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough.
    pub(crate) fn back_more(&self, bytes: std::ops::Range<u64>) -> Result<(), RegionError> {
        self.file.as_ref().map_or(Ok(()), |file| check_more(file, &bytes))?;
        self.back(bytes)
    }

    /// How many of its bytes have memory, or a disk's blocks, behind them, as the system says.
    pub fn backed_bytes(&self) -> u64 {
        match &self.file {
            Some(file) => file.metadata().map_or(0, |about| about.blocks() * 512),
            None => self.bytes(),
        }
    }

    /// Memory for `bytes` bytes at byte `start`, a multiple of the page size, beside or behind what was
    /// asked for when the region was made. Makes a file longer.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough, or the region is no file.
    pub(crate) fn behind(&self, start: u64, bytes: u64) -> Result<Behind<'_>, RegionError> {
        let what = || format!("{bytes} bytes behind a table");
        let end = start + bytes;
        if end <= self.bytes() {
            self.back_more(start..end)?;
            return Ok(Behind::Within(self, start as usize / WORD));
        }
        let Some(file) = &self.file else {
            return Err(os("making room for", what())(io::ErrorKind::Unsupported.into()));
        };
        check_more(file, &(start..end))?;
        set_len(file, end).map_err(os("making room for", what()))?;
        let options = MmapOptions::new().offset(start).len(bytes as usize).map_raw(file);
        let backed = options.map_err(unmapped(what(), bytes)).and_then(|map| {
            back(file, &map, start, start..end)?;
            Ok(map)
        });
        // Nobody has mapped what is behind.
        let map = backed.inspect_err(|_| drop(file.set_len(self.bytes())))?;
        // It has no lock: that goes with this region.
        let apart = Region::from_map(map, is_in_memory(file), true, None, None);
        Ok(Behind::Apart(Region { file: self.file.clone(), ..apart }))
    }

    /// For a device that is about to pin these bytes: nothing is given back any more. Touches all of them, piece
    /// by piece, and tells `progress` how many are done: a NIC pins memory that is there in a fraction of the
    /// time, and nobody sees how far it is. Best effort.
    #[cfg(feature = "verbs")]
    pub(crate) fn touch(&self, bytes: std::ops::Range<u64>, mut progress: impl FnMut(u64)) {
        const PIECE: usize = 64 << 20;
        self.pinned.store(true, std::sync::atomic::Ordering::Relaxed);
        let Memory::Mapped(map) = &*self.memory else { return };
        let (first, last) = (bytes.start as usize & !(PAGE - 1), (bytes.end as usize).min(map.len()));
        for start in (first..last).step_by(PIECE) {
            let end = (start + PIECE).min(last);
            // Kernels before 5.14 do not know it: the NIC's driver then does all the work.
            let _ = map.advise_range(memmap2::Advice::PopulateWrite, start, end - start);
            progress((end - first) as u64);
        }
    }

    /// Gives the memory behind these bytes back to the system, in whole pages: they read as zero from now on.
    /// Returns how many bytes came back, as the system counts them: what other threads take meanwhile is
    /// missing. `None` where the system keeps it, or more than an eighth of it: then it still takes memory.
    pub(crate) fn give_back(&self, bytes: std::ops::Range<u64>) -> Option<u64> {
        use rustix::fs::FallocateFlags;
        // Relaxed: set before anybody can change the table.
        let is_pinned = self.pinned.load(std::sync::atomic::Ordering::Relaxed);
        let file = self.file.as_ref().filter(|_| !is_pinned)?;
        // Of huge pages, the part of one that is not asked for would stay, and with it the whole page.
        let page = rustix::fs::fstatfs(file).map_or(1, |about| (about.f_bsize as u64).max(1));
        let (start, end) = (bytes.start.next_multiple_of(page), bytes.end / page * page);
        let len = end.saturating_sub(start);
        if len == 0 || 8 * len < 7 * (bytes.end - bytes.start) {
            return None;
        }
        let blocks = || file.metadata().map_or(0, |about| about.blocks());
        let before = blocks();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(why) = rustix::fs::fallocate(file, flags, start, len) {
            tracing::debug!(%why, "memory stays");
            return None;
        }
        Some(before.saturating_sub(blocks()) * 512)
    }

    /// Gives the pages of [exchanged](Region::exchange) memory back to the system, also those that the other process has
    /// mapped: they read as zero from now on. Best effort.
    pub(crate) fn discard(&self) {
        let Memory::Mapped(map) = &*self.memory else { return };
        // SAFETY: the mapping stays; its words are only touched as atomics, and any words are good.
        let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::Remove) };
    }

    /// Whether its file stands at the path: neither removed nor replaced since it was opened. `false` for
    /// memory that is no file.
    pub fn stands_at(&self, path: &Path) -> bool {
        self.file.as_ref().is_some_and(|file| place::stands_at(file, path))
    }

    /// The file of its lock, if that was removed: nothing keeps a second server away any more.
    pub(crate) fn lost_lock(&self) -> Option<&Path> {
        self.own.as_ref()?.lock.as_ref().filter(|lock| !lock.stands()).map(LockFile::path)
    }

    /// The region's memory, as it can be mapped for reading only. `None` if it is private.
    pub(crate) fn shared(&self) -> Option<BorrowedFd<'_>> {
        self.share.as_ref().map(|fd| fd.as_fd())
    }

    /// A descriptor for the region's memory that cannot be mapped writable.
    ///
    /// # Errors
    /// The operating system's error when it has no descriptor left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        match self.shared() {
            Some(fd) => fd.try_clone_to_owned(),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "this region is private to its process")),
        }
    }

    /// `len` words from word `first` on.
    ///
    /// # Panics
    /// When they do not lie inside the region: a bug, since a [`Geometry`](crate::layout::geometry::Geometry)
    /// names only slots inside.
    #[inline]
    pub(crate) fn words(&self, first: usize, len: usize) -> &[AtomicU64] {
        self.observed.access();
        self.slice(first, len)
    }

    #[inline(always)]
    fn slice(&self, first: usize, len: usize) -> &[AtomicU64] {
        match first.checked_add(len) {
            Some(end) if end <= self.words => {}
            _ => outside(first, len, self.words),
        }
        // SAFETY:
        // * the range lies inside `memory` (asserted), which lives as long as `self`;
        // * it is aligned: a mapping begins on a page, and AtomicU64 has alignment 8;
        // * any bits are a valid AtomicU64;
        // * this process touches the memory only as AtomicU64;
        // * a read-only mapping is only loaded from, `Relaxed` and word-sized, which std::sync::atomic
        //   allows for read-only memory (`store` and `add` refuse read-only regions).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first), len) }
    }

    /// Loads a word. Relaxed: pair it with a fence.
    ///
    /// # Panics
    /// When it lies outside the region.
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.observed.access();
        if word >= self.words {
            outside(word, 1, self.words);
        }
        // SAFETY: as in `slice`; the word lies inside the memory.
        unsafe { &*self.base.as_ptr().add(word) }.load(Ordering::Relaxed)
    }

    /// Stores a word. Relaxed: pair it with a fence. Everything a remote reader ever sees comes through
    /// here or through `Region::add`.
    ///
    /// # Panics
    /// When it lies outside the region, or the region is read-only.
    #[inline]
    pub fn store(&self, word: usize, value: u64) {
        assert!(self.writable, "a store into a read-only region");
        self.before_store();
        self.words(word, 1)[0].store(value, Ordering::Relaxed);
        self.observed.stored(word, value);
    }

    /// `len` words from word `first` on, to be stored into one by one. Bounds are checked here, once.
    #[inline(always)]
    pub(crate) fn stores(&self, first: usize, len: usize) -> StoreWords<'_> {
        assert!(self.writable, "a store into a read-only region");
        StoreWords { region: self, first, words: self.words(first, len) }
    }

    /// Lets a test kill this process here.
    #[inline(always)]
    fn before_store(&self) {
        #[cfg(feature = "faults")]
        if self.file.is_some() {
            crate::faults::before_store();
        }
    }

    /// StoreWords the words `from`, one after the other, from word `first` on. Relaxed, as
    /// [`Region::store`].
    #[inline(always)]
    pub(crate) fn copy(&self, from: &[AtomicU64], first: usize) {
        assert!(self.writable, "a store into a read-only region");
        let to = self.words(first, from.len());
        let copy = |n: usize, to: &AtomicU64, from: &AtomicU64| {
            self.observed.access();
            self.before_store();
            let value = from.load(Ordering::Relaxed);
            to.store(value, Ordering::Relaxed);
            self.observed.stored(first + n, value);
        };
        // One line, as most often.
        if let (Ok(from), Ok(to)) = (<&[_; LINE_WORDS]>::try_from(from), <&[_; LINE_WORDS]>::try_from(to)) {
            return (0..LINE_WORDS).for_each(|n| copy(n, &to[n], &from[n]));
        }
        // Line by line: the loop over a line's words costs nothing.
        let ((lines, rest), (to_lines, to_rest)) =
            (from.as_chunks::<LINE_WORDS>(), to.as_chunks::<LINE_WORDS>());
        for (line, (to, from)) in to_lines.iter().zip(lines).enumerate() {
            for n in 0..LINE_WORDS {
                copy(LINE_WORDS * line + n, &to[n], &from[n]);
            }
        }
        for (n, (to, from)) in (LINE_WORDS * lines.len()..).zip(to_rest.iter().zip(rest)) {
            copy(n, to, from);
        }
    }

    /// Appends `len` bytes from byte `offset` on, loaded by words or in longer pieces, in no order.
    pub(crate) fn append_bytes(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        let (first, skip) = (offset as usize / WORD, offset as usize % WORD);
        let words = self.words(first, (skip + len).div_ceil(WORD));
        let (before, all) = (out.len(), words.len() * WORD);
        out.reserve(all);
        load_bytes(words, &mut out.spare_capacity_mut()[..all]);
        // SAFETY:
        // * so much was reserved;
        // * `load_bytes` has written all of it.
        unsafe { out.set_len(before + all) };
        out.truncate(before + skip + len);
        if skip > 0 {
            out.drain(before..before + skip);
        }
    }

    /// Adds 1 to a word that several server threads count in.
    #[inline]
    pub(crate) fn add(&self, word: usize) {
        assert!(self.writable, "a store into a read-only region");
        self.before_store();
        let before = self.words(word, 1)[0].fetch_add(1, Ordering::Relaxed);
        self.observed.stored(word, before.wrapping_add(1));
    }

    /// Asks the CPU to fetch the lines of these bytes, but no more than it can fetch side by side. No effect
    /// but on time.
    #[inline]
    pub(crate) fn prefetch_bytes(&self, offset: u64, bytes: u64) {
        /// Line-fill buffers of a core, or a little less.
        const LINES_MAX: usize = 8;
        let begin = self.base.as_ptr().wrapping_byte_add(offset as usize);
        let ask = |lines: std::ops::Range<usize>| {
            lines.for_each(|line| prefetch(begin.wrapping_byte_add(line * LINE)))
        };
        // In halves: a branch for each line costs more than a line too many.
        ask(0..LINES_MAX / 2);
        if bytes > (LINES_MAX / 2 * LINE) as u64 {
            ask(LINES_MAX / 2..LINES_MAX);
        }
    }
}

/// Replaces `out` with the first `len` bytes of these `N` words. Copies them all: that is quicker than to copy
/// a length known at run time.
///
/// # Panics
/// When there are not so many.
#[inline(always)]
pub(crate) fn replace<const N: usize>(out: &mut Vec<u8>, len: usize, word: impl Fn(usize) -> u64) {
    assert!(len <= N * WORD, "no more bytes than there are");
    if out.capacity() < N * WORD {
        make_room(out, N * WORD);
    }
    let to = out.as_mut_ptr().cast::<[u8; WORD]>();
    for n in 0..N {
        // SAFETY: the vector has memory for `N` words, and nobody else refers to it.
        unsafe { to.add(n).write(word(n).to_le_bytes()) };
    }
    // SAFETY: `len` bytes, or more, were written.
    unsafe { out.set_len(len) };
}

#[cold]
#[inline(never)]
fn make_room(out: &mut Vec<u8>, bytes: usize) {
    out.clear();
    out.reserve(bytes);
    assert!(out.capacity() >= bytes, "room was made");
}

const LINE_WORDS: usize = LINE / WORD;

/// Loads all words into memory of that length. Not by way of a buffer on the stack: what is stored there in
/// words and loaded in longer pieces waits for the stores, which takes ten times as long.
fn load_bytes(words: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    assert_eq!(words.len() * WORD, to.len(), "memory of this length");
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    if to.len() >= STRING_MIN && std::arch::is_x86_feature_detected!("ermsb") {
        return load_string(words, to);
    }
    let (lines, rest) = words.as_chunks::<LINE_WORDS>();
    let (to_lines, to_rest) = to.as_chunks_mut::<LINE>();
    for (to, line) in to_lines.iter_mut().zip(lines) {
        *to = load_line(line).map(MaybeUninit::new);
    }
    for (to, word) in to_rest.as_chunks_mut::<WORD>().0.iter_mut().zip(rest) {
        *to = word.load(Ordering::Relaxed).to_le_bytes().map(MaybeUninit::new);
    }
}

/// Bytes from which on one string instruction is faster than loads: it takes some 50 cycles to begin.
#[cfg(all(target_arch = "x86_64", not(loom)))]
const STRING_MIN: usize = 2048;

/// The same by the processor's own copy loop, which moves whole lines.
#[cfg(all(target_arch = "x86_64", not(loom)))]
fn load_string(words: &[AtomicU64], to: &mut [MaybeUninit<u8>]) {
    // SAFETY:
    // * the words are there, and as many bytes of memory of ours: the caller has compared the lengths.
    //   Nothing else is touched;
    // * these are relaxed loads, in no order and of any width, and stores to memory that nobody else
    //   knows. Nobody relies on whole words: the bytes count only if nobody stored there meanwhile (X4);
    // * later loads stay behind them: the manuals order a string's stores, and are silent on its loads,
    //   so a fence orders these.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            "lfence",
            inout("rcx") to.len() => _,
            inout("rsi") words.as_ptr() => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Loads a line of words, two at a time: the compiler does not join atomic loads, and one word a cycle is
/// half of what `memcpy` brings from the cache.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
fn load_line(words: &[AtomicU64; LINE_WORDS]) -> [u8; LINE] {
    use std::arch::x86_64::__m128i;
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY:
    // * the words are there: the instructions load these 64 bytes and touch nothing else;
    // * it is what eight relaxed loads do, in no order. The processor loads each word at once where a pair
    //   of them lies in one line, and where it does not, each is in a line of its own. Nobody relies on
    //   that: the bytes count only if nobody stored there meanwhile (X4).
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            from = in(reg) words.as_ptr(),
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
    }
    bytemuck::cast([a, b, c, d])
}

/// Loads a line of words.
#[cfg(not(all(target_arch = "x86_64", not(loom))))]
#[inline(always)]
fn load_line(words: &[AtomicU64; LINE_WORDS]) -> [u8; LINE] {
    bytemuck::cast(std::array::from_fn::<_, LINE_WORDS, _>(|n| {
        words[n].load(Ordering::Relaxed).to_le_bytes()
    }))
}

/// Asks the CPU to fetch a line. No effect but on time, whatever the address.
#[inline(always)]
fn prefetch(at: *const AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch touches no memory architecturally, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Memory behind a table ([`Region::behind`]).
pub(crate) enum Behind<'a> {
    /// In the region, from this word on.
    Within(&'a Region, usize),
    /// Mapped for itself.
    Apart(Region),
}

impl Behind<'_> {
    /// Stores a word, as [`Region::store`].
    pub fn store(&self, word: u64, value: u64) {
        match self {
            Behind::Within(region, first) => region.store(first + word as usize, value),
            Behind::Apart(region) => region.store(word as usize, value),
        }
    }
}

/// Words of a region. Each slot's look is an access of its own.
#[derive(Clone, Copy)]
pub(crate) struct MappedWords<'a> {
    words: &'a [AtomicU64],
    observed: ObservedBy<'a>,
}

impl mapped::Words for MappedWords<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn load(self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn split(self, words: usize) -> Option<(Self, Self)> {
        let (first, others) = self.words.split_at_checked(words)?;
        self.observed.access();
        Some((MappedWords { words: first, ..self }, MappedWords { words: others, ..self }))
    }

    #[inline(always)]
    fn line(self, number: usize) -> Self {
        self.observed.access();
        MappedWords { words: &self.words.as_chunks::<LINE_WORDS>().0[number], ..self }
    }

    #[inline(always)]
    fn lines_with(self, key: &[u8]) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if let (slots, Some(end), ..=mapped::KeyEnd::KEY_MAX) =
            (self.words.as_chunks().0, key.last_chunk(), key.len())
            && (slots.len() == 4 || slots.len() == 8)
        {
            slots.iter().for_each(|_| self.observed.access());
            return slots_with(slots, u64::from_le_bytes(*end), key.len());
        }
        mapped::lines_with(self, key)
    }
}

/// Which of four or eight slots show the last eight bytes of a key of this length: bit `2 * n` stands for slot
/// `n`. Twenty instructions for eight; compilers make forty of loads and comparisons without branches.
///
/// Where the bytes are not aligned, they are of two words, each as it was at an instant of its own. That is
/// as good: while a slot holds the key, both show it at each instant (G8).
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
fn slots_with(slots: &[[AtomicU64; LINE_WORDS]], end: u64, len: usize) -> u32 {
    use std::arch::x86_64::{__m128i, _mm_set1_epi64x, _mm_setzero_si128};
    use std::arch::x86_64::{_mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32};
    assert!((8..=mapped::KeyEnd::KEY_MAX).contains(&len), "the key ends in the slot's line");
    assert!(slots.len() == 4 || slots.len() == 8, "four or eight slots");
    // SAFETY:
    // * each load is of eight bytes of one of these slots: they begin 16 + len - 8 bytes behind its beginning
    //   and, by the first assertion, end in it; by the second, there are as many slots as are loaded from;
    // * the instructions are SSE2, which every x86-64 processor has; they store nothing;
    // * to the compiler, the loads may see any value in memory that others write. They do: what this returns
    //   is a guess until the slot has been read as a seqlock, or the counter of moves again.
    let halves = unsafe {
        let (at, end) = (slots.as_ptr().cast::<u8>().add(8 + len), _mm_set1_epi64x(end.cast_signed()));
        // The comparison of a slot this far behind the first and of the next one: four halves of eight bytes.
        macro_rules! two {
            ($offset:literal) => {{
                let both: __m128i;
                std::arch::asm!(
                    concat!("movq {both}, [{at} + ", $offset, "]"),
                    concat!("movhps {both}, [{at} + ", $offset, " + 64]"),
                    at = in(reg) at,
                    both = out(xmm_reg) both,
                    options(nostack, readonly, preserves_flags),
                );
                _mm_cmpeq_epi32(both, end)
            }};
        }
        let first = _mm_packs_epi32(two!(0), two!(128));
        let others = match slots.len() {
            4 => _mm_setzero_si128(),
            _ => _mm_packs_epi32(two!(256), two!(384)),
        };
        _mm_movemask_epi8(_mm_packs_epi16(first, others)).cast_unsigned()
    };
    halves & halves >> 1 & 0x5555
}

impl mapped::Loadable for Region {
    type Words<'a> = MappedWords<'a>;

    #[inline(always)]
    fn words(&self, first: usize, len: usize) -> MappedWords<'_> {
        self.observed.access();
        MappedWords { words: self.slice(first, len), observed: (&self.observed).into() }
    }

    #[inline(always)]
    fn word(&self, number: usize) -> u64 {
        self.load(number)
    }

    #[inline(always)]
    fn expect(&self, first: usize) {
        let lines = self.base.as_ptr().wrapping_add(first);
        (0..4).for_each(|line| prefetch(lines.wrapping_add(line * LINE_WORDS)));
    }

    #[inline(always)]
    fn eight_lines(&self, first: usize) -> MappedWords<'_> {
        if first >= self.eight_lines_end {
            outside(first, EIGHT_LINES, self.words);
        }
        self.observed.access();
        // SAFETY: as in `slice`; the range lies inside the memory, by the definition of `eight_lines_end`.
        let words = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first), EIGHT_LINES) };
        MappedWords { words, observed: (&self.observed).into() }
    }
}

/// Some words of a region that this process may store into.
#[derive(Clone, Copy)]
pub(crate) struct StoreWords<'a> {
    region: &'a Region,
    first: usize,
    words: &'a [AtomicU64],
}

impl StoreWords<'_> {
    /// As [`Region::load`], of the word with this number among these.
    #[inline(always)]
    pub fn load(&self, word: usize) -> u64 {
        self.region.observed.access();
        self.words[word].load(Ordering::Relaxed)
    }

    /// As [`Region::store`], into the word with this number among these.
    #[inline(always)]
    pub fn store(&self, word: usize, value: u64) {
        self.region.observed.access();
        self.region.before_store();
        self.words[word].store(value, Ordering::Relaxed);
        self.region.observed.stored(self.first + word, value);
    }

    /// Stores words one after the other, from the word with this number on.
    #[inline(always)]
    pub fn store_all(&self, first: usize, values: &[u64]) {
        for (n, (to, &value)) in (first..).zip(self.words[first..].iter().zip(values)) {
            self.region.observed.access();
            self.region.before_store();
            to.store(value, Ordering::Relaxed);
            self.region.observed.stored(self.first + n, value);
        }
    }
}

/// Where eight lines do not fit any more into so many words.
fn eight_lines_end(words: usize) -> usize {
    (words + 1).saturating_sub(EIGHT_LINES)
}

/// Ends in a panic. Apart, so that what leads here costs the others nothing.
#[cold]
fn outside(first: usize, len: usize, words: usize) -> ! {
    panic!("words {first}+{len} of {words}");
}

/// Checks that a new region fits into the memory that is left, of which it needs `first` bytes at once.
/// Memory that others take meanwhile is not reserved.
fn check_room(backing: &Backing, bytes: u64, first: u64) -> Result<(), RegionError> {
    /// Looking costs more than such a region.
    const SMALL: u64 = 4 << 20;
    let long = (bytes > SMALL).then(room::of_length).flatten().map(|room| (bytes, room));
    let rooms = if first > SMALL { room::left_to(backing) } else { Vec::new() };
    let all = long.into_iter().chain(rooms.into_iter().map(|room| (first, room)));
    match all.filter(|(need, room)| *need > room.bytes).min_by_key(|(_, room)| room.bytes) {
        Some((need, Room { bytes: left, of, .. })) => Err(RegionError::NoRoom { need, left, of }),
        None => Ok(()),
    }
}

/// The bytes in huge pages of the mapping that holds an address, from the text of `/proc/self/smaps`.
fn huge_bytes(smaps: &str, address: u64) -> u64 {
    let mut is_ours = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first.strip_suffix(':') {
            // The first two are of reserved pages.
            Some("Private_Hugetlb" | "Shared_Hugetlb" | "ShmemPmdMapped" | "FilePmdMapped") if is_ours => {
                kib += rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            }
            Some(_) => {}
            // A mapping's first line: its addresses.
            None => {
                let number = |text| u64::from_str_radix(text, 16).ok();
                let range = first.split_once('-').and_then(|(from, to)| Some(number(from)?..number(to)?));
                is_ours = range.is_some_and(|range| range.contains(&address));
            }
        }
    }
    kib << 10
}

/// Whether the system can give so much memory to a server in service, and has some left for everything
/// else: if not, it would end processes, this one first.
fn leaves_room(bytes: u64) -> Result<(), RegionError> {
    const SPARE: u64 = 16 << 20;
    let need = bytes + SPARE;
    let short = room::of_machine().into_iter().find(|room| room.bytes < need);
    match short {
        Some(Room { bytes: left, of, .. }) => Err(RegionError::NoRoom { need, left, of }),
        None => Ok(()),
    }
}

/// Anonymous shared memory that can be sealed.
fn memfd(flags: MemfdFlags, bytes: u64) -> Result<File, RegionError> {
    let what = || format!("{bytes} bytes of shared memory");
    let fd = rustix::fs::memfd_create("oneread", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| os("making", what())(e.into()))?;
    let file = File::from(fd);
    set_len(&file, bytes).map_err(os("making", what()))?;
    Ok(file)
}

/// Whether a file is in memory, in pages of the usual length.
fn is_in_memory(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|about| room::is_tmpfs(&about))
}

/// The length of the pages of a file on hugetlbfs.
fn huge_page(file: &File) -> Option<u64> {
    const HUGETLBFS: u64 = 0x9584_58f6;
    let about = rustix::fs::fstatfs(file).ok().filter(|about| about.f_type as u64 == HUGETLBFS)?;
    Some(about.f_bsize as u64)
}

/// Makes a file longer.
fn set_len(file: &File, len: u64) -> io::Result<()> {
    room::check_length(len)?;
    file.set_len(len)
}

/// Checks that the system has these bytes for a file in memory, if they are not there yet, without ending
/// processes.
fn check_more(file: &File, bytes: &std::ops::Range<u64>) -> Result<(), RegionError> {
    /// Left to the system for everything else.
    const SPARE: u64 = 16 << 20;
    let is_there =
        rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(bytes.start)).is_ok_and(|hole| hole >= bytes.end);
    if is_there || !is_in_memory(file) {
        return Ok(());
    }
    let need = bytes.end.saturating_sub(bytes.start) + SPARE;
    match room::of_machine().into_iter().find(|room| room.bytes < need) {
        Some(Room { bytes: left, of, .. }) => Err(RegionError::NoRoom { need, left, of }),
        None => Ok(()),
    }
}

/// Puts memory behind these bytes of a file, which is mapped from byte `mapped` on: afterwards the first
/// store into any page of them is refused by nobody.
fn back(file: &File, map: &MmapRaw, mapped: u64, bytes: std::ops::Range<u64>) -> Result<(), RegionError> {
    let bytes = bytes.start..bytes.end.min(mapped + map.len() as u64);
    let has_pages = reserve(file, bytes.clone())? && is_in_memory(file);
    if !has_pages && !bytes.is_empty() {
        populate(map, bytes.start - mapped..bytes.end - mapped)?;
    }
    Ok(())
}

/// Has the file system put memory behind these bytes of a file. `false` if it cannot promise any.
fn reserve(file: &File, bytes: std::ops::Range<u64>) -> Result<bool, RegionError> {
    /// A call that a signal interrupts has done nothing. So each is short enough to end between two signals.
    const PIECE: u64 = 4 << 20;
    let all = bytes.end.saturating_sub(bytes.start);
    for start in bytes.clone().step_by(PIECE as usize) {
        let len = PIECE.min(bytes.end - start);
        let ask = || rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), start, len);
        match rustix::io::retry_on_intr(ask) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(false),
            Err(e) => return Err(os("reserving", format!("{all} bytes of shared memory"))(e.into())),
        }
    }
    Ok(true)
}

/// Takes a file's pages by touching them, where the kernel can say that this fails (from 5.14 on). A disk's
/// block that was reserved is not enough: a page of the cache that is longer than a block needs them all.
fn populate(map: &MmapRaw, bytes: std::ops::Range<u64>) -> Result<(), RegionError> {
    let len = bytes.end - bytes.start;
    let touch = || {
        let touched = map.advise_range(memmap2::Advice::PopulateWrite, bytes.start as usize, len as usize);
        touched.map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
    };
    match rustix::io::retry_on_intr(touch) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(_) => {
            let source = rustix::io::Errno::NOSPC.into();
            Err(os("reserving", format!("{len} bytes of the region"))(source))
        }
    }
}

/// # Errors
/// [`RegionError::Unfinished`] of a file whose table was never finished.
fn check_finished(path: &Path, file: &File) -> Result<(), RegionError> {
    match is_unfinished(file).map_err(os("reading", path.display().to_string()))? {
        true => Err(RegionError::Unfinished { path: path.into() }),
        false => Ok(()),
    }
}

/// Whether a file holds a table that no server has finished: it has the state of the first one, which is at
/// it, or nothing at all yet. Nobody was ever served from it.
///
/// Reads it and does not map it: to touch a page that is not there takes memory, or ends in SIGBUS.
fn is_unfinished(file: &File) -> io::Result<bool> {
    const HEAD: usize = 2 * PAGE;
    let have = file.metadata()?.len();
    if have < HEAD as u64 {
        return Ok(have == 0);
    }
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let mut words: Vec<u64> = head.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let state = std::mem::take(&mut words[STATE_WORD]);
    let is_first = state == State { incarnation: 1, phase: Phase::Starting }.to_word();
    let superblock = Superblock::from_words(std::array::from_fn(|word| words[word]));
    match superblock.geometry(have) {
        Ok(_) => Ok(is_first),
        // The first word is written last, and the slots later.
        Err(SuperblockError::Magic { found: 0 }) => {
            let is_ours = matches!(superblock.version, 0 | FORMAT_VERSION) && (state == 0 || is_first);
            let is_empty = words[SUPERBLOCK_WORDS..].iter().all(|&word| word == 0);
            Ok(is_ours && is_empty && is_zero_from(file, HEAD as u64)?)
        }
        Err(_) => Ok(false),
    }
}

/// Whether a file has nothing but zeros from this byte on. Holes are not read.
fn is_zero_from(file: &File, mut at: u64) -> io::Result<bool> {
    let mut piece = vec![0; 64 << 10];
    loop {
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            data => data.unwrap_or(at),
        };
        let read = file.read_at(&mut piece, at)?;
        if read == 0 || piece[..read].iter().any(|&byte| byte != 0) {
            return Ok(read == 0);
        }
        at += read as u64;
    }
}

/// A server that stops, or a look at the lock, may have it for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

/// Opens a region file for writing and keeps other servers away from it. Locks before it opens: nobody
/// removes the file in between.
fn lock_file(path: &Path, create: bool) -> Result<OwnFile, RegionError> {
    let failed = |error| match error {
        PlaceError::Os { source, .. } if source.kind() == io::ErrorKind::NotFound && !create => {
            RegionError::Missing { path: path.into() }
        }
        PlaceError::Os { doing, path, source } => os(doing, path.display().to_string())(source),
        error => error.into(),
    };
    place::prepare(path)?;
    let lock = LockFile::take(path, LOCK_WITHIN).map_err(failed)?;
    let lock = lock.ok_or_else(|| RegionError::InUse { path: path.into() })?;
    let make = if create { OFlags::CREATE } else { OFlags::empty() };
    let file = place::open_file(path, OFlags::RDWR | make).map_err(failed)?;
    let about = |file: &File| file.metadata().map_err(os("looking at", path.display().to_string()));
    let (of_file, of_lock) = (about(&file)?, about(&lock.file)?);
    if of_file.nlink() > 1 || of_file.dev() != of_lock.dev() {
        return Err(RegionError::SeveralNames { path: path.into() });
    }
    Ok(OwnFile::of(file, Some(lock)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::slot::HEADER;

    /// Eight slots compared at once are what one after the other gives: for keys of every length, their last
    /// byte or another one of their last word changed, and the key in any of the slots, in several, or in none.
    #[test]
    fn eight_lines_as_one_after_the_other() {
        let region = Region::private(3 * LINE as u64 * 8);
        let first = 8 * LINE_WORDS;
        for len in 1..=mapped::KeyEnd::KEY_MAX {
            let key: Vec<u8> = (0..len as u8).map(|n| n + 1).collect();
            for which in 0u32..256 {
                for slot in 0..8 {
                    let mut payload = [0xee; LINE - HEADER];
                    payload[..len].copy_from_slice(&key);
                    if which >> slot & 1 == 0 {
                        payload[len - 1 - (which as usize + slot) % ((len - 1) % WORD + 1)] ^=
                            1 << (which % 8);
                    }
                    let words: [u64; 6] = bytemuck::cast(payload);
                    let at = first + slot * LINE_WORDS + HEADER / WORD;
                    (at..).zip(words).for_each(|(at, word)| region.store(at, word));
                }
                let lines = mapped::Loadable::eight_lines(&region, first);
                let found = mapped::Words::lines_with(lines, &key);
                assert_eq!(found, mapped::lines_with(lines, &key), "{len}: {which:b}");
                let expected = (0..8).fold(0, |bits, slot| bits | (which >> slot & 1) << (2 * slot));
                assert_eq!(found, expected, "{len}: {which:b}");
            }
        }
    }

    /// Eight lines end with the region, and no word is beyond it.
    #[test]
    fn nothing_beyond_the_region() {
        let region = Region::private(10 * LINE as u64);
        let lines = |first| mapped::Loadable::eight_lines(&region, first).words.len();
        assert_eq!(lines(2 * LINE_WORDS), EIGHT_LINES);
        assert!(std::panic::catch_unwind(|| lines(2 * LINE_WORDS + 1)).is_err());
        assert!(std::panic::catch_unwind(|| lines(usize::MAX)).is_err());
        assert_eq!(region.load(10 * LINE_WORDS - 1), 0);
        assert!(std::panic::catch_unwind(|| region.load(10 * LINE_WORDS)).is_err());
        let small = Region::private(LINE as u64);
        assert!(std::panic::catch_unwind(|| mapped::Loadable::eight_lines(&small, 0).words.len()).is_err());
    }

    /// What clients are handed cannot be written: not through the descriptor, not through a mapping.
    #[test]
    fn shared_region_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        for backing in [Backing::Anonymous, Backing::File(dir.path().join("r"))] {
            let server = Region::create(&backing, 8192).unwrap();
            server.store(3, 42);
            let client = Region::map_shared(server.share().unwrap()).unwrap();
            assert_eq!((client.load(3), client.is_writable()), (42, false), "{backing:?}");
            let file = File::from(server.share().unwrap());
            assert!(MmapOptions::new().len(8192).map_raw(&file).is_err(), "{backing:?} mapped writable");
            assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err(), "{backing:?} written");
            assert!(client.bytes() == 8192 && file.set_len(0).is_err(), "{backing:?} truncated");
        }
    }

    /// Bytes are appended as they were stored, wherever they begin and end among words and lines, and nothing
    /// beside them.
    #[test]
    fn appended_bytes_are_those_stored() {
        let region = Region::private(4096);
        let stored: Vec<u8> = (0..4096u32).map(|n| ((n * 37) >> 2) as u8).collect();
        for (word, bytes) in stored.as_chunks().0.iter().enumerate() {
            region.store(word, u64::from_le_bytes(*bytes));
        }
        for begin in 0..80 {
            for len in (0..140).chain([255, 256, 257, 384, 2040, 2047, 2048, 2049, 3000]) {
                let mut out = vec![7; 3];
                region.append_bytes(begin, len, &mut out);
                let there = &stored[begin as usize..begin as usize + len];
                assert!(out[..3] == [7; 3] && out[3..] == *there, "{len} bytes from {begin}: {out:?}");
            }
        }
    }

    /// What server and client both write: each sees the other's stores, and neither can make it shorter.
    #[test]
    fn exchanged_memory_stays() {
        let (server, fd) = Region::exchange(8192).unwrap();
        let file = File::from(fd.try_clone().unwrap());
        let client = Region::map_exchange(fd).unwrap();
        server.store(3, 42);
        client.store(4, 43);
        assert_eq!((client.load(3), server.load(4), client.bytes()), (42, 43, 8192));
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let pages = || file.metadata().unwrap().blocks();
        assert!(pages() > 0);
        server.discard();
        assert_eq!(
            (pages(), client.load(4)),
            (0, 0),
            "the client keeps a mapping, and no memory of the server's"
        );
        let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
        assert!(Region::map_exchange(unsealed.into()).is_err());
    }

    #[test]
    fn a_second_server_is_kept_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let first = Region::create(&Backing::File(path.clone()), 8192).unwrap();
        assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })));
        first.store(1000, 1);
        first.keep();
        drop(first);
        assert_eq!(Region::open(&path).unwrap().bytes(), 8192);
    }

    /// Whoever was handed the region, or may read its file, can lock that, and keeps no server away.
    #[test]
    fn readers_lock_no_server_out() {
        use rustix::fs::{FlockOperation, flock};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let first = Region::create(&Backing::File(path.clone()), 8192).unwrap();
        first.keep();
        first.store(0, 1); // a file of zeros is one that was never finished
        let handed = first.share().unwrap();
        flock(&handed, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })), "the server keeps it");
        drop(first);
        drop(Region::open(&path).unwrap());
        drop(handed);
        flock(File::open(&path).unwrap(), FlockOperation::LockExclusive).unwrap();
        drop(Region::open(&path).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no lock is left");
    }

    /// Two servers that serve one file by two names would not see each other's locks.
    #[test]
    fn a_file_has_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["r", "r2"].map(|name| dir.path().join(name));
        let region = Region::create(&Backing::File(path.clone()), 1 << 16).unwrap();
        region.keep();
        std::fs::hard_link(&path, &other).unwrap();
        assert!(matches!(Region::open(&other), Err(RegionError::SeveralNames { .. })));
    }

    /// A region knows whether its file is still where it was opened, and its lock, too.
    #[test]
    fn what_was_removed_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let region = Region::create(&Backing::File(path.clone()), 8192).unwrap();
        assert!(region.stands_at(&path) && region.lost_lock().is_none());
        let lock = dir.path().join("r.lock");
        std::fs::remove_file(&lock).unwrap();
        assert_eq!(region.lost_lock(), Some(&*lock));
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(!region.stands_at(&path));
        std::fs::write(&path, [0; 8192]).unwrap();
        assert!(!region.stands_at(&path) && region.stands_at(&dir.path().join("other")));
        assert!(!Region::create(&Backing::Anonymous, 8192).unwrap().stands_at(&path));
    }

    fn about(error: RegionError) -> (&'static str, String, io::Error) {
        match error {
            RegionError::Os { doing, what, source } => (doing, what, source),
            other => panic!("{other}"),
        }
    }

    /// A new file is the user's alone, and as long as was asked for; one that holds something is refused with both
    /// lengths, and left as it is; one that is not there is not made by who opens it.
    #[test]
    fn files_of_regions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        match Region::open(&path) {
            Err(RegionError::Missing { path: which }) => assert_eq!(which, path),
            other => panic!("{other:?}"),
        }
        assert!(!path.exists(), "who opens makes nothing");
        let backing = Backing::File(path.clone());
        let region = Region::create(&backing, 8192).unwrap();
        let about_file = std::fs::metadata(&path).unwrap();
        assert_eq!((about_file.len(), about_file.permissions().mode() & 0o7777), (8192, 0o600));
        // An empty file that was there, and that others could read, becomes private.
        let empty = dir.path().join("empty");
        File::create(&empty).unwrap();
        std::fs::set_permissions(&empty, Permissions::from_mode(0o644)).unwrap();
        let made = Region::create(&Backing::File(empty.clone()), 8192).unwrap();
        assert_eq!(std::fs::metadata(&empty).unwrap().permissions().mode() & 0o7777, 0o600);
        drop(made);
        assert!(!empty.exists(), "nothing was kept in it");
        assert!(region.is_writable() && region.bytes() == 8192);
        region.store(1, 42);
        region.store(1000, 1);
        region.keep();
        // The lock goes with the region, not with another name of it.
        drop(region.alias());
        for opened in [Region::open(&path), Region::create(&backing, 8192)] {
            match opened {
                Err(RegionError::InUse { path: which }) => assert_eq!(which, path),
                other => panic!("{other:?}"),
            }
        }
        // Whoever keeps another name of it does not keep the lock.
        let alias = region.alias();
        drop(region);
        drop(Region::open(&path).unwrap());
        drop(alias);
        for need in [4096, 8192, 16384] {
            match Region::create(&backing, need) {
                Err(RegionError::Length { path: which, have: 8192, need: asked }) => {
                    assert_eq!((which, asked), (path.clone(), need));
                }
                other => panic!("{other:?}"),
            }
        }
        let region = Region::open(&path).unwrap();
        assert_eq!((region.load(1), region.bytes(), region.is_writable()), (42, 8192, true));
        drop(region);
        // Its mode is its owner's business from then on.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        drop(Region::open(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        // Who makes one in a folder that is not there is told so, and does not hear that one is missing.
        let nowhere = Region::create(&Backing::File(dir.path().join("no/r")), 8192).unwrap_err();
        assert!(nowhere.to_string().ends_with("(does the folder exist?)"), "{nowhere}");
        // Whoever reads it checks who else may write to it.
        assert_eq!(Region::open_to_read(&path).unwrap().load(1), 42);
        std::fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        let shared = Region::open_to_read(&path);
        assert!(matches!(shared, Err(RegionError::Place(PlaceError::Writable { mode: 0o660, .. }))));
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // What is handed out is not the file that has taken its place.
        let other = dir.path().join("other");
        std::fs::write(&other, [0; 8192]).unwrap();
        let lock = LockFile::take(&other, Duration::ZERO).unwrap();
        let own = OwnFile::of(File::open(&path).unwrap(), lock);
        let (_, what, source) = about(Region::of_file(&other, own).unwrap_err());
        assert_eq!(what, other.to_str().unwrap());
        assert!(source.to_string().contains("another file took its place"), "{source}");
    }

    /// Anonymous memory is sealed against other lengths, and so is what is exchanged; neither is inherited by programs
    /// that this one starts. What is handed out of the former is for reading, other users cannot open it for
    /// writing, and its memory can be given back.
    #[test]
    fn seals() {
        let always = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        let region = Region::create(&Backing::Anonymous, 8192).unwrap();
        let (exchanged, fd) = Region::exchange(8192).unwrap();
        let shared = File::from(region.share().unwrap());
        assert_eq!(shared.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        let map = MmapOptions::new().len(8192).map_raw(&shared);
        assert_eq!(map.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        region.store(600, 7);
        assert_eq!((region.give_back(4096..8192), region.load(600)), (Some(4096), 0));
        region.store(600, 7);
        // Less than a page, or pages of which too much would stay.
        assert_eq!([4096..8191, 2048..8192].map(|part| region.give_back(part)), [None; 2]);
        assert_eq!(region.load(600), 7);
        for fd in [shared.into(), fd] {
            assert_eq!(rustix::fs::fcntl_get_seals(&fd).unwrap(), always);
            assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(exchanged.share().unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(exchanged.is_writable() && exchanged.bytes() == 8192);
        // A file that is no such memory, and memory that could be made shorter, or only not be made longer.
        let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
        let grown = memfd(MemfdFlags::empty(), 8192).unwrap();
        rustix::fs::fcntl_add_seals(&grown, SealFlags::GROW | SealFlags::SEAL).unwrap();
        let file = tempfile::tempfile().unwrap();
        for fd in [unsealed, grown, file] {
            let (doing, _, _) = about(Region::map_exchange(fd.into()).unwrap_err());
            assert_eq!(doing, "checking");
        }
    }

    /// A region that a server hands over cannot be made shorter, or is a file of a trusted user. Memory
    /// without the seal is refused, and so is what is no memory.
    #[test]
    fn what_is_handed_over_is_checked() {
        let anonymous = Region::create(&Backing::Anonymous, 8192).unwrap();
        Region::map_handed(anonymous.share().unwrap(), &[]).unwrap();
        let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
        let grown = memfd(MemfdFlags::empty(), 8192).unwrap();
        rustix::fs::fcntl_add_seals(&grown, SealFlags::GROW).unwrap();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        for fd in [unsealed.into(), grown.into(), pipe] {
            assert!(matches!(Region::map_handed(fd, &[]), Err(RegionError::Unsealed)));
        }
        for folder in ["/tmp", "/dev/shm"] {
            let Ok(file) = tempfile::tempfile_in(folder) else { continue };
            file.set_len(8192).unwrap();
            Region::map_handed(file.try_clone().unwrap().into(), &[]).unwrap();
            if place::own_uid() == 0 {
                rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
                assert!(matches!(
                    Region::map_handed(file.try_clone().unwrap().into(), &[]),
                    Err(RegionError::Unsealed)
                ));
                Region::map_handed(file.into(), &[7]).unwrap();
            }
        }
    }

    /// Nothing is stored into what is mapped for reading, and nothing is touched beyond a region's last word.
    #[test]
    fn what_a_region_does_not_do() {
        let server = Region::create(&Backing::Anonymous, 4096).unwrap();
        let client = Region::map_shared(server.share().unwrap()).unwrap();
        let panics = |what: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err();
        assert!(panics(&|| client.store(3, 1)) && panics(&|| client.add(3)));
        server.add(3);
        server.add(3);
        assert_eq!((server.load(3), client.load(3)), (2, 2));
        assert_eq!(server.words(511, 1).len() + server.words(512, 0).len() + server.words(0, 512).len(), 513);
        for (first, len) in [(512, 1), (511, 2), (513, 0), (0, 513), (1, usize::MAX), (usize::MAX, 1)] {
            assert!(panics(&|| _ = server.words(first, len)), "{first}+{len}");
        }
    }

    /// Memory is put behind what is asked for, and the file is never made longer for it.
    #[test]
    fn memory_behind_a_region() {
        let region = Region::create(&Backing::Anonymous, 16384).unwrap();
        let file = File::from(region.share().unwrap());
        let blocks = || file.metadata().unwrap().blocks();
        assert_eq!(blocks(), 0);
        region.back(4096..8192).unwrap();
        assert!((8..=32).contains(&blocks()), "{}", blocks());
        assert_eq!(region.backed_bytes(), 512 * blocks());
        region.back(0..u64::MAX).unwrap();
        assert_eq!(blocks(), 32);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let region = Region::create(&Backing::File(path.clone()), 16384).unwrap();
        region.back(8192..1 << 20).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16384);
        // Behind it there is as much as is asked for, to the word: within it, or apart.
        for (bytes, is_within) in [(8192, true), (8200, false)] {
            let behind = region.behind(8192, bytes).unwrap();
            assert_eq!(matches!(behind, Behind::Within(..)), is_within, "{bytes}");
            behind.store(bytes / 8 - 1, bytes);
            let mut word = [0; 8];
            let file = File::open(&path).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, 8192 + bytes - 8).unwrap();
            assert_eq!(u64::from_ne_bytes(word), bytes);
            drop(behind);
            // The lock goes with the region, not with what is behind it.
            assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })), "{bytes}");
        }
        // What is exchanged has all of it from the beginning.
        let (_region, fd) = Region::exchange(16384).unwrap();
        assert_eq!(File::from(fd).metadata().unwrap().blocks(), 32);
        // There is nothing to be done for a region that somebody else made.
        let shared = Region::map_shared(region.share().unwrap()).unwrap();
        shared.back(0..16384).unwrap();
        // No memory is that large: an error, and no region. A file that was not there is not made.
        let none = dir.path().join("none");
        for backing in [Backing::Anonymous, Backing::File(none.clone())] {
            match Region::create(&backing, 1 << 62) {
                Err(RegionError::NoRoom { need, left, .. }) => assert!(need == 1 << 62 && left < need),
                other => panic!("{other:?}"),
            }
        }
        assert!(!none.exists());
        let (doing, what, _) = about(memfd(MemfdFlags::empty(), 1 << 63).unwrap_err());
        assert_eq!((doing, what), ("making", format!("{} bytes of shared memory", 1u64 << 63)));
    }

    /// Memory behind a region is there before anything is stored into it. (On tmpfs, which says so to the page.)
    #[test]
    fn memory_behind_a_region_is_reserved() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = dir.path().join("r");
        let region = Region::create(&Backing::File(path.clone()), 8192).unwrap();
        let pages = || std::fs::metadata(&path).unwrap().blocks() / 8;
        assert_eq!(pages(), 0);
        let behind = region.behind(8192, 8200).unwrap();
        assert!(matches!(behind, Behind::Apart(_)) && pages() == 3, "{}", pages());
    }

    /// What a device has pinned is not given back, whichever name of the region is asked.
    #[cfg(feature = "verbs")]
    #[test]
    fn pinned_memory_is_not_given_back() {
        for touches in [false, true] {
            let region = Region::create(&Backing::Anonymous, 16384).unwrap();
            let alias = region.alias();
            (0..2048).for_each(|word| region.store(word, 7));
            if touches {
                region.touch(0..8192, |_| {});
            }
            let given = [alias.give_back(0..4096), region.give_back(8192..12288)];
            assert_eq!(given, if touches { [None; 2] } else { [Some(4096); 2] });
            let is_there = u64::from(touches) * 7;
            assert_eq!((alias.load(0), region.load(1024), region.load(2047)), (is_there, is_there, 7));
        }
    }

    /// Huge pages are huge, and where there are none, that is an error that says so; memory of another kind is not
    /// taken instead.
    #[test]
    fn huge_pages() {
        match Region::create(&Backing::HugePages, 4 << 10 | 4 << 20) {
            Ok(region) => {
                assert_eq!(region.bytes(), 6 << 20);
                assert_eq!(File::from(region.share().unwrap()).metadata().unwrap().blksize(), 2 << 20);
            }
            Err(error) => {
                assert!(error.to_string().contains("reserve more (sysctl vm.nr_hugepages=3)"), "{error}");
                assert!(matches!(error, RegionError::HugePages { bytes, .. } if bytes == 6 << 20), "{error}");
            }
        }
    }

    /// Anonymous memory is huge where pages are reserved, and ordinary where not. What is mapped in huge pages is
    /// counted as it is touched.
    #[test]
    fn huge_if_there_are_any() {
        let is_huge = Region::create(&Backing::HugePages, 16 << 20).is_ok();
        let region = Region::create(&Backing::Anonymous, 16 << 20 | 4096).unwrap();
        assert!(region.bytes() == 16 << 20 | 4096 || region.bytes() == 18 << 20, "{}", region.bytes());
        // Another process may take the pages, or give some back, between the two.
        if is_huge && region.bytes() == 18 << 20 {
            assert_eq!(region.huge_bytes(), 0);
            region.store(0, 1);
            region.store((4 << 20) / WORD, 1);
            assert_eq!(region.huge_bytes(), 4 << 20);
        }
        let small = Region::create(&Backing::Anonymous, 1 << 20).unwrap();
        assert_eq!((small.bytes(), small.huge_bytes()), (1 << 20, 0));
        assert_eq!(Region::private(4096).huge_bytes(), 0);
    }

    /// Of all mappings, the one that holds the address counts, with every kind of huge page.
    #[test]
    fn smaps() {
        let text = "1000-3000 rw-s 00000000 00:01 7   /memfd:oneread (deleted)\n\
            Size:                  8 kB\nShmemPmdMapped:     2048 kB\nVmFlags: rd wr\n\
            3000-5000 r--s 00000000 00:01 8   /a b: c\nShared_Hugetlb:     4096 kB\nPrivate_Hugetlb:  2048 kB\n\
            FilePmdMapped: 2048 kB\nAnonHugePages: 2048 kB\n5000-6000 r--p 0 0 0\nShmemPmdMapped: 2048 kB\n";
        let of = |address| huge_bytes(text, address) >> 20;
        assert_eq!((of(0x1000), of(0x3000), of(0x4fff), of(0x6000)), (2, 8, 8, 0));
        assert_eq!(huge_bytes("", 0) + huge_bytes("garbage\n: \n-\nShmemPmdMapped: x kB", 0), 0);
    }

    /// An error says what would help, where anybody knows.
    #[test]
    fn hints() {
        use rustix::io::Errno;
        for (errno, hint) in [
            (Errno::NOMEM, "not enough memory"),
            (Errno::NOSPC, "the file system is full"),
            (Errno::ACCESS, "check who owns it"),
            (Errno::PERM, "check who owns it"),
            (Errno::NOENT, "does the folder exist?"),
        ] {
            let error = os("doing", "it")(errno.into()).to_string();
            assert!(error.starts_with(&format!("doing it ({hint}")) && error.ends_with(')'), "{error}");
        }
        assert_eq!(os("doing", "it")(Errno::IO.into()).to_string(), "doing it");
        // Memory that is there, and finds no addresses, needs another help.
        let error = unmapped("it", 7)(Errno::NOMEM.into());
        assert!(matches!(error, RegionError::AddressSpace { bytes: 7, .. }), "{error}");
        assert_eq!(unmapped("it", 7)(Errno::IO.into()).to_string(), "mapping it");
    }

    /// All of a region is touched, and what is done is told piece by piece.
    #[cfg(feature = "verbs")]
    #[test]
    fn touched() {
        let region = Region::create(&Backing::Anonymous, (64 << 20) + 8192).unwrap();
        // More if it is in huge pages.
        let bytes = region.bytes();
        let mut told = Vec::new();
        region.touch(0..region.bytes(), |done| told.push(done));
        assert_eq!(told, [64 << 20, bytes]);
        let blocks = File::from(region.share().unwrap()).metadata().unwrap().blocks();
        assert!(blocks == bytes / 512 || blocks == 0, "{blocks}");
    }
}
