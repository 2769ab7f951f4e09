//! The memory behind a region: taken, added, given back.

use super::error::{RegionError, os, unmapped};
use super::file::{OwnFile, back, check_more, is_in_memory, set_len};
#[cfg(feature = "verbs")]
use super::mapping::HarmlessAdvice;
use super::mapping::Mapping;
use super::words::Region;
use crate::layout::WORD;
use rustix::fs::FallocateFlags;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Region {
    /// Sees to it that memory stands behind `bytes` of the region: what it has not got now would be missed
    /// later, by a signal in the middle of a store. Whole blocks of 2 MiB that have none yet get it in huge pages, where
    /// the kernel can ([`Region::make_huge`]).
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough.
    pub fn back(&self, bytes: Range<u64>) -> Result<(), RegionError> {
        match (self.file(), self.map()) {
            (Some(file), Some(map)) => {
                self.take_huge(bytes.clone());
                back(file, map, 0, bytes)
            }
            _ => Ok(()),
        }
    }

    /// As [`Region::back`], for a table in service. What the system could give only by ending
    /// processes counts as refused, too: it would end this one first.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough.
    pub(crate) fn back_more(&self, bytes: Range<u64>) -> Result<(), RegionError> {
        self.file().map_or(Ok(()), |file| check_more(file, &bytes))?;
        self.back(bytes)
    }

    /// How many of its bytes have memory, or a disk's blocks, behind them, as the system says.
    pub fn backed_bytes(&self) -> u64 {
        let of_server = self.file().map(|file| file.as_fd());
        match of_server.or(self.shared()) {
            Some(file) => rustix::fs::fstat(file).map_or(0, |about| about.st_blocks as u64 * 512),
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
        let Some(file) = self.file() else {
            return Err(os("making room for", what())(io::ErrorKind::Unsupported.into()));
        };
        check_more(file, &(start..end))?;
        set_len(file, end).map_err(os("making room for", what()))?;
        let backed =
            Mapping::of_part(file, start, bytes, true).map_err(unmapped(what(), bytes)).and_then(|map| {
                back(file, &map, start, start..end)?;
                Ok(map)
            });
        // Nobody has mapped what is behind.
        let map = backed.inspect_err(|_| drop(file.set_len(self.bytes())))?;
        // It has no lock: that goes with this region.
        let own = OwnFile::of(Arc::clone(file), None);
        Ok(Behind::Apart(Region::from_map(map, is_in_memory(file), true, None, Some(own))))
    }

    /// For a device that is about to pin these bytes: nothing is given back any more. Touches all of them, piece
    /// by piece, and tells `progress` how many are done: a NIC pins memory that is there in a fraction of the
    /// time, and nobody sees how far it is. Best effort.
    #[cfg(feature = "verbs")]
    pub(crate) fn touch(&self, bytes: Range<u64>, mut progress: impl FnMut(u64)) {
        const PIECE: u64 = 64 << 20;
        self.pinned().store(true, Ordering::Relaxed);
        let Some(map) = self.map() else { return };
        let page = crate::layout::PAGE as u64;
        let (first, last) = (bytes.start / page * page, bytes.end.min(map.len() as u64));
        for start in (first..last).step_by(PIECE as usize) {
            let end = (start + PIECE).min(last);
            // Kernels before 5.14 do not know it: the NIC's driver then does all the work.
            let _ = map.advise(start..end, HarmlessAdvice::Take);
            progress(end - first);
        }
    }

    /// Gives the memory behind these bytes back to the system, in whole pages: they read as zero from now on.
    /// Returns how many bytes came back, as the system counts them: what other threads take meanwhile is
    /// missing. `None` where the system keeps it, or more than an eighth of it: then it still takes memory.
    pub(crate) fn give_back(&self, bytes: Range<u64>) -> Option<u64> {
        // Relaxed: set before anybody can change the table.
        let is_pinned = self.pinned().load(Ordering::Relaxed);
        let file = self.file().filter(|_| !is_pinned)?;
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
        let Some(map) = self.map() else { return };
        // Any words are good in it.
        let _ = map.remove();
    }
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
