//! Huge pages that nobody has reserved: memory is moved into them while it is empty.
//!
//! Most systems put shared memory into pages of 4 KiB, whatever is advised. From Linux 6.1 on they move it into huge
//! pages when they are told to, block by block. Everybody who has mapped a block then has it in one huge page, if its
//! mapping begins where a huge page may begin, as a [`Mapping`](super::mapping::Mapping) does.
//!
//! A block that has memory stays as it is: while it is moved, every access to it waits for some milliseconds. A
//! device has pinned no empty block, so pinned memory is not moved either.

use super::file::{check_more, is_hole, is_in_memory};
use super::mapping::HUGE;
use super::words::Region;
use crate::layout::WORD;
use std::ops::Range;
use std::os::fd::AsFd;

impl Region {
    /// Takes memory for the blocks of 2 MiB that `bytes` reach into, each in one huge page: those that have no
    /// memory yet, and lie inside `within`. To be called before [`Region::back`], which takes what is missing.
    ///
    /// Returns how many bytes this has put into huge pages: 0 where the region is not this process's shared memory
    /// (tmpfs or memfd), where the system has less memory left than that and 16 MiB, and where the kernel cannot
    /// do it or has no huge page free. It is then not asked again for ten seconds.
    ///
    /// Takes as long as the kernel takes to clear the memory, and where that is in pieces, to find some: 0.2 to 5 ms
    /// a block. Whoever touches the same block meanwhile waits as long. Any thread may call it at any time.
    pub fn make_huge(&self, bytes: Range<u64>, within: Range<u64>) -> u64 {
        let first = (bytes.start / HUGE * HUGE).max(within.start.next_multiple_of(HUGE));
        let end = bytes.end.next_multiple_of(HUGE).min(within.end / HUGE * HUGE);
        match self.file() {
            Some(file) if first < end && check_more(file, &(first..end)).is_ok() => {
                self.take_huge(first..end)
            }
            _ => 0,
        }
    }

    /// Like `make_huge`, for all whole blocks in `bytes`, for which there is memory.
    pub(super) fn take_huge(&self, bytes: Range<u64>) -> u64 {
        let blocks = bytes.start.next_multiple_of(HUGE)..bytes.end.min(self.bytes()) / HUGE * HUGE;
        let (Some(file), Some(map)) = (self.file(), self.map()) else { return 0 };
        if blocks.is_empty() || !is_in_memory(file) {
            return 0;
        }
        let blocks = blocks.step_by(HUGE as usize).map(|start| start..start + HUGE);
        let empty = blocks.filter(|block| map.may_be_huge() && is_hole(file, block));
        empty.filter(|block| map.take_huge(block).is_ok()).count() as u64 * HUGE
    }

    /// From now on its memory is left in the pages that the system's settings give it. To be called before it has any.
    pub fn leave_small(&self) {
        if let Some(map) = self.map() {
            map.never_huge();
        }
    }

    /// Has this process map all of the region that has memory: loads a word of each block of 2 MiB. Some tenths of a
    /// microsecond a block. Does nothing for memory of this process alone.
    pub fn map_all(&self) {
        let of_server = self.file().map(|file| file.as_fd());
        let Some(file) = of_server.or(self.shared()) else { return };
        let mut at = 0;
        // A load where there is no memory would take some.
        while let Ok(data) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            if data / WORD as u64 >= self.bytes() / WORD as u64 {
                break;
            }
            self.load((data / WORD as u64) as usize);
            at = (data / HUGE + 1) * HUGE;
        }
    }

    /// How many of its bytes this process has mapped in huge pages so far: pages are mapped when they
    /// are first touched. Reads `/proc/self/smaps`, which walks the page tables; 0 without it.
    pub fn huge_bytes(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        huge_bytes(&smaps, |mapping| mapping.addresses.contains(&self.address()))
    }

    /// Like `huge_bytes`, of another process that has mapped the region, such as its server. `None` if this user may not look,
    /// or that process has not mapped it.
    pub fn huge_bytes_of(&self, process: u32) -> Option<u64> {
        let of_server = self.file().map(|file| file.as_fd());
        let about = rustix::fs::fstat(of_server.or(self.shared())?).ok()?;
        let smaps = std::fs::read_to_string(format!("/proc/{process}/smaps")).ok()?;
        let mut is_there = false;
        let bytes = huge_bytes(&smaps, |mapping| {
            let is_it = mapping.file == (about.st_dev, about.st_ino);
            is_there |= is_it;
            is_it
        });
        is_there.then_some(bytes)
    }
}

/// A mapping, as its first line in `/proc/PID/smaps` has it.
pub(super) struct MappingTold {
    pub addresses: Range<u64>,
    /// Device and inode.
    pub file: (u64, u64),
}

impl MappingTold {
    fn parse(line: &str) -> Option<MappingTold> {
        let number = |text| u64::from_str_radix(text, 16).ok();
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let (major, minor) = words.nth(2)?.split_once(':')?;
        let device = rustix::fs::makedev(number(major)? as u32, number(minor)? as u32);
        let file = (device, words.next()?.parse().ok()?);
        Some(MappingTold { addresses: number(from)?..number(to)?, file })
    }
}

/// The bytes in huge pages of some mappings, from the text of `/proc/PID/smaps`.
pub(super) fn huge_bytes(smaps: &str, mut is_meant: impl FnMut(&MappingTold) -> bool) -> u64 {
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
            None => is_ours = MappingTold::parse(line).is_some_and(|mapping| is_meant(&mapping)),
        }
    }
    kib << 10
}
