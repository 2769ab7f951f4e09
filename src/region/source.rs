//! Where a region comes from: made, opened, handed over.

use super::backing::Backing;
use super::error::{RegionError, os, unmapped};
use super::file::{
    OwnFile, is_address_space_short, is_in_memory, leaves_room, lock_file, memfd, reserve, set_len,
};
use super::mapping::{HUGE, HarmlessAdvice, Mapping, huge_page};
use super::room::{self, Room};
use super::unfinished::{check_finished, is_unfinished};
use super::words::Region;
use crate::files;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

impl Region {
    /// Makes a region of `bytes` zero bytes. An existing file must be empty, or hold a table that was never
    /// finished. The file is removed again with the region, unless a table is made in it
    /// ([`Index::create`](crate::embedded::Index::create)).
    ///
    /// # Errors
    /// [`RegionError`], with the likely cause.
    pub fn create(backing: &Backing, bytes: u64) -> Result<Region, RegionError> {
        Region::create_sparse(backing, bytes, bytes)
    }

    /// Like `create`, for a region of which only `first` bytes are needed at once. The others are addresses
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
        let bytes = if *backing == Backing::HugePages { bytes.next_multiple_of(HUGE) } else { bytes };
        check_room(backing, bytes, first)?;
        match backing {
            Backing::Anonymous => Region::anonymous(MemfdFlags::empty(), bytes),
            Backing::HugePages => Region::anonymous(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, bytes),
            Backing::File(path) => {
                let name = path.display().to_string();
                let own = lock_file(path, true)?;
                let file = Arc::clone(own.file());
                let have = file.metadata().map_err(os("reading the length of", &name))?.len();
                if have != 0 && !is_unfinished(&file).map_err(os("reading", &name))? {
                    return Err(RegionError::Length { path: path.clone(), have, need: bytes });
                }
                let own = own.made_at(path);
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
        check_finished(path, own.file())?;
        Region::of_file(path, own)
    }

    /// Maps a region file for reading only, whether or not a server has it. The file must belong to
    /// this user or root, and nobody else may write to it.
    ///
    /// # Errors
    /// [`RegionError`] when it is not there, not safe, or cannot be mapped.
    pub fn open_to_read(path: &Path) -> Result<Region, RegionError> {
        Region::map_file(path, files::open_file(path, OFlags::RDONLY)?)
    }

    /// Like `open_to_read`, for a file that the caller has opened, and judged whose it is.
    ///
    /// # Errors
    /// [`RegionError`] when it holds no finished table, or cannot be mapped.
    pub fn map_file(path: &Path, file: File) -> Result<Region, RegionError> {
        check_finished(path, &file)?;
        Region::map_shared(file.into())
    }

    /// From now on the file that was made for this region stays when the region goes.
    pub(crate) fn keep(&self) {
        if let Some(own) = self.own() {
            own.keep();
        }
    }

    /// From now on the file goes with the region, if it was made for it.
    pub(crate) fn let_go(&self) {
        if let Some(own) = self.own() {
            own.let_go();
        }
    }

    pub(super) fn of_file(path: &Path, own: OwnFile) -> Result<Region, RegionError> {
        let name = path.display().to_string();
        // Clients are handed this second, read-only opening. With a copy of `file` they could write.
        let share = files::open_file(path, OFlags::RDONLY)?;
        let about = |file: &File| file.metadata().map_err(os("reading the length of", &name));
        let (ours, theirs) = (about(own.file())?, about(&share)?);
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            let source = io::Error::other("another file took its place meanwhile; try again");
            return Err(os("opening for reading", &name)(source));
        }
        let bytes = ours.len();
        let map = Mapping::of_file(own.file(), bytes, true);
        let map = map.map_err(|error| match huge_page(own.file()) {
            // All of its pages are reserved now.
            Some(_) => os("mapping", &name)(error),
            None => unmapped(&name, bytes)(error),
        })?;
        Ok(Region::from_map(map, is_in_memory(own.file()), true, Some(share.into()), Some(own)))
    }

    fn anonymous(flags: MemfdFlags, bytes: u64) -> Result<Region, RegionError> {
        let what = || format!("{bytes} bytes of shared memory");
        let file = memfd(flags, bytes)?;
        let map =
            Mapping::of_file(&file, bytes, true).map_err(|source| match unmapped(what(), bytes)(source) {
                RegionError::AddressSpace { source, .. }
                    if flags.contains(MemfdFlags::HUGETLB) && !is_address_space_short(bytes) =>
                {
                    RegionError::HugePages { bytes, source }
                }
                error => error,
            })?;
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

    /// Memory that this process and one other both write: `bytes` zero bytes, and what the other is handed. It is
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
        let map = Mapping::of_file(&file, bytes, true).map_err(unmapped(what(), bytes))?;
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
        let map = Mapping::of_file(&file, bytes, true).map_err(unmapped(what, bytes))?;
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
        let map = Mapping::of_file(&file, bytes, false);
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
        if !(is_file && seals.contains(SealFlags::SEAL) && files::is_trusted(about.st_uid, trusted)) {
            return Err(RegionError::Unsealed);
        }
        Region::map_shared(fd)
    }

    /// A region in this mapping.
    pub(super) fn from_map(
        map: Mapping,
        is_in_memory: bool,
        writable: bool,
        share: Option<OwnedFd>,
        own: Option<OwnFile>,
    ) -> Region {
        // A window is read at random: fewer, larger TLB entries where the system allows it. Best effort.
        // A store into a page of a disk's file needs blocks for all of the page, holes too, and where the disk
        // has none, it ends in SIGBUS. So pages there are as short as can be: those read ahead are longer.
        let advice = if is_in_memory { HarmlessAdvice::HugePages } else { HarmlessAdvice::AtRandom };
        let _ = map.advise(0..map.len() as u64, advice);
        Region::mapped(map, writable, share, own)
    }

    /// Whether its file stands at the path: neither removed nor replaced since it was opened. `false` for
    /// memory that is no file.
    pub fn stands_at(&self, path: &Path) -> bool {
        self.file().is_some_and(|file| files::stands_at(file, path))
    }

    /// The file of its lock, if that was removed: nothing keeps a second server away any more.
    pub(crate) fn lost_lock(&self) -> Option<&Path> {
        self.own()?.lost_lock()
    }

    /// The region's memory, as it can be mapped for reading only. `None` if it is private.
    pub(crate) fn shared(&self) -> Option<BorrowedFd<'_>> {
        self.handed().map(|fd| fd.as_fd())
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
