//! The file that a region's memory is, with a name or without: making it, having memory behind it, its lock.

use super::error::{RegionError, os};
use super::mapping::{HarmlessAdvice, Mapping};
use super::room::{self, Room};
use crate::files::{self, FileError, LockFile};
use rustix::fs::{AtFlags, MemfdFlags, OFlags, StatxFlags, statx};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The file of a region, as its server has it.
pub(super) struct OwnFile {
    file: Arc<File>,
    /// Where it was made. It is removed with the region unless it is kept.
    made_at: Option<PathBuf>,
    is_kept: AtomicBool,
    /// Keeps a second server away. Clients are never handed it. Memory without a name needs none.
    lock: Option<LockFile>,
}

impl OwnFile {
    pub fn of(file: impl Into<Arc<File>>, lock: Option<LockFile>) -> OwnFile {
        OwnFile { file: file.into(), made_at: None, is_kept: AtomicBool::new(false), lock }
    }

    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// A file that was made here. It is removed from there when it is dropped, unless it is kept.
    pub fn made_at(mut self, path: &Path) -> OwnFile {
        self.made_at = Some(files::fixed(path));
        self
    }

    /// From now on the file stays.
    pub fn keep(&self) {
        // Relaxed: whoever drops it has it alone.
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// From now on it goes, if it was made here.
    pub fn let_go(&self) {
        self.is_kept.store(false, Ordering::Relaxed);
    }

    /// The file of its lock, if that was removed.
    pub fn lost_lock(&self) -> Option<&Path> {
        self.lock.as_ref().filter(|lock| !lock.stands()).map(LockFile::path)
    }
}

impl Drop for OwnFile {
    /// The lock goes after this.
    fn drop(&mut self) {
        let is_ours = self.lock.as_ref().is_some_and(LockFile::is_ours) && !*self.is_kept.get_mut();
        if let Some(path) = self.made_at.take_if(|_| is_ours)
            && files::stands_at(&self.file, &path)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the limit on this process's addresses is below what is asked for. What it has used of it is not
/// counted: less than a table as a rule.
pub(super) fn is_address_space_short(bytes: u64) -> bool {
    rustix::process::getrlimit(rustix::process::Resource::As).current.is_some_and(|limit| limit <= bytes)
}

/// Anonymous shared memory that can be sealed.
pub(super) fn memfd(flags: MemfdFlags, bytes: u64) -> Result<File, RegionError> {
    let what = || format!("{bytes} bytes of shared memory");
    let fd = rustix::fs::memfd_create("oneread", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| os("making", what())(e.into()))?;
    let file = File::from(fd);
    set_len(&file, bytes).map_err(os("making", what()))?;
    // Only this user could open it again, whatever it is handed out for.
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::fchmod(&file, mode).map_err(|e| os("protecting", what())(e.into()))?;
    Ok(file)
}

/// Whether a file is in memory, in pages of the usual length.
pub(super) fn is_in_memory(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|about| room::is_tmpfs(&about))
}

/// Makes a file longer.
pub(super) fn set_len(file: &File, len: u64) -> io::Result<()> {
    room::check_length(len)?;
    file.set_len(len)
}

/// Whether the system can give so much memory to a server in service, and has some left for everything
/// else: if not, it would end processes, this one first.
pub(super) fn leaves_room(bytes: u64) -> Result<(), RegionError> {
    const SPARE: u64 = 16 << 20;
    let need = bytes + SPARE;
    let short = room::of_machine().into_iter().find(|room| room.bytes < need);
    match short {
        Some(Room { bytes: left, of, .. }) => Err(RegionError::NoRoom { need, left, of }),
        None => Ok(()),
    }
}

/// Checks that the system has these bytes for a file in memory, if they are not there yet, without ending
/// processes.
pub(super) fn check_more(file: &File, bytes: &Range<u64>) -> Result<(), RegionError> {
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

/// Whether nothing has been stored into these bytes of a file yet.
pub(super) fn is_hole(file: &File, bytes: &Range<u64>) -> bool {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(bytes.start)) {
        Ok(data) => data >= bytes.end,
        Err(why) => why == rustix::io::Errno::NXIO,
    }
}

/// Puts memory behind these bytes of a file, which is mapped from byte `mapped` on: afterwards the first
/// store into any page of them is refused by nobody.
pub(super) fn back(file: &File, map: &Mapping, mapped: u64, bytes: Range<u64>) -> Result<(), RegionError> {
    let bytes = bytes.start..bytes.end.min(mapped + map.len() as u64);
    let has_pages = reserve(file, bytes.clone())? && is_in_memory(file);
    if !has_pages && !bytes.is_empty() {
        populate(map, bytes.start - mapped..bytes.end - mapped)?;
    }
    Ok(())
}

/// Has the file system put memory behind these bytes of a file. `false` if it cannot promise any.
pub(super) fn reserve(file: &File, bytes: Range<u64>) -> Result<bool, RegionError> {
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
fn populate(map: &Mapping, bytes: Range<u64>) -> Result<(), RegionError> {
    let len = bytes.end - bytes.start;
    match rustix::io::retry_on_intr(|| map.advise(bytes.clone(), HarmlessAdvice::Take)) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(_) => {
            let source = rustix::io::Errno::NOSPC.into();
            Err(os("reserving", format!("{len} bytes of the region"))(source))
        }
    }
}

/// A server that stops, or a look at the lock, may have it for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

/// The mount that a file was opened in. `None`: the system is older than Linux 5.8, and does not say.
fn mount_of(file: &File) -> Option<u64> {
    let about = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (about.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(about.stx_mnt_id)
}

/// Opens a region file for writing and keeps other servers away from it. Locks before it opens: nobody
/// removes the file in between.
pub(super) fn lock_file(path: &Path, create: bool) -> Result<OwnFile, RegionError> {
    let failed = |error| match error {
        FileError::Os { source, .. } if source.kind() == io::ErrorKind::NotFound && !create => {
            RegionError::Missing { path: path.into() }
        }
        FileError::Os { doing, path, source } => os(doing, path.display().to_string())(source),
        error => error.into(),
    };
    files::prepare(path)?;
    let lock = LockFile::take(path, LOCK_WITHIN).map_err(failed)?;
    let lock = lock.ok_or_else(|| RegionError::InUse { path: path.into() })?;
    let make = if create { OFlags::CREATE } else { OFlags::empty() };
    let file = files::open_file(path, OFlags::RDWR | make).map_err(failed)?;
    let about = |file: &File| file.metadata().map_err(os("looking at", path.display().to_string()));
    let (of_file, of_lock) = (about(&file)?, about(&lock.file)?);
    let is_elsewhere = of_file.dev() != of_lock.dev() || mount_of(&file) != mount_of(&lock.file);
    if of_file.nlink() > 1 || is_elsewhere {
        return Err(RegionError::SeveralNames { path: path.into() });
    }
    Ok(OwnFile::of(file, Some(lock)))
}
