//! Memory mapped into this process.

#![allow(unsafe_code)]

use crate::base::clock::Clock;
use crate::layout::PAGE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The length of the huge pages that ordinary memory can be in: 2 MiB, where pages have 4 KiB.
pub(super) const HUGE: u64 = 2 << 20;

/// The length of the pages of a file on hugetlbfs.
pub(super) fn huge_page(file: &File) -> Option<u64> {
    const HUGETLBFS: u64 = 0x9584_58f6;
    let about = rustix::fs::fstatfs(file).ok().filter(|about| about.f_type as u64 == HUGETLBFS)?;
    Some(about.f_bsize as u64)
}

/// Memory mapped into this process. A mapping as long as a huge page, or longer, begins where one may begin: so the
/// kernel can map huge pages.
///
/// Nothing here makes a reference to it. `Send + Sync`: it is an address and a length.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
    /// When the kernel may be asked for huge pages again, by [`Clock::System`]. Relaxed: who sees an old one asks once
    /// more, or not yet.
    huge_again_ns: AtomicU64,
}

// SAFETY: any thread may change or end a mapping, and it is ended once, by its owner.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out an address, and advice to the kernel, which serializes it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `len` bytes of a file, for reading, and for writing where `writable`.
    pub fn of_file(file: &File, len: u64, writable: bool) -> io::Result<Mapping> {
        Mapping::of_part(file, 0, len, writable)
    }

    /// `len` bytes of a file from byte `offset` on, a multiple of the page size.
    pub fn of_part(file: &File, offset: u64, len: u64, writable: bool) -> io::Result<Mapping> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: see `map`.
        let map = |at, len, flags| unsafe { mmap(at, len, access, MapFlags::SHARED | flags, file, offset) };
        // Pages of hugetlbfs have a length of their own, which the kernel looks after.
        Mapping::placed(len, huge_page(file).is_none(), map)
    }

    /// `len` zero bytes that no other process has. A child that `fork` makes has a copy.
    pub fn private(len: u64) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: see `map`.
        let map = |at, len, flags| unsafe { mmap_anonymous(at, len, access, MapFlags::PRIVATE | flags) };
        Mapping::placed(len, true, map)
    }

    /// Has `map` map `len` bytes: at an address of the kernel's choice, or at one that is given, over what is mapped
    /// there.
    fn placed(
        len: u64,
        may_choose: bool,
        map: impl Fn(*mut c_void, usize, MapFlags) -> rustix::io::Result<*mut c_void>,
    ) -> io::Result<Mapping> {
        let page = rustix::param::page_size();
        // Nothing cannot be mapped.
        let whole = usize::try_from(len.max(1)).ok().and_then(|len| len.checked_next_multiple_of(page));
        let whole = whole.ok_or(Errno::NOMEM)?;
        let len = len as usize;
        if whole < HUGE as usize || !may_choose {
            let start = map(null_mut(), whole, MapFlags::empty())?;
            return Ok(Mapping::at(start, len));
        }
        // Addresses for as much and a huge page more, which cost nothing; then the memory over a part of them.
        let all = whole.checked_add(HUGE as usize).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice is over nobody else's memory.
        let reserved = unsafe { mmap_anonymous(null_mut(), all, ProtFlags::empty(), flags)? };
        let before = reserved.addr().next_multiple_of(HUGE as usize) - reserved.addr();
        let start = reserved.wrapping_byte_add(before);
        let unmap = |bytes: Range<usize>| {
            if !bytes.is_empty() {
                // SAFETY: `bytes` are addresses reserved above, which nobody else was told, and which are whole
                // pages.
                let _ = unsafe { munmap(reserved.wrapping_byte_add(bytes.start), bytes.end - bytes.start) };
            }
        };
        // What is mapped over lies inside the addresses reserved above, which nobody else was told.
        if let Err(why) = map(start, whole, MapFlags::FIXED) {
            unmap(0..all);
            return Err(why.into());
        }
        unmap(0..before);
        unmap(before + whole..all);
        Ok(Mapping::at(start, len))
    }

    fn at(start: *mut c_void, len: usize) -> Mapping {
        // The kernel maps nothing at 0 but for those who ask for that.
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Mapping { start, len, huge_again_ns: AtomicU64::new(0) }
    }

    /// The address of its first byte, which begins a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Its length in bytes, as it was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tells the kernel how these bytes will be used, or has it take memory for them. No word of them changes.
    pub fn advise(&self, bytes: Range<u64>, advice: HarmlessAdvice) -> rustix::io::Result<()> {
        let advice = match advice {
            HarmlessAdvice::HugePages => Advice::LinuxHugepage,
            #[cfg(test)]
            HarmlessAdvice::SmallPages => Advice::LinuxNoHugepage,
            HarmlessAdvice::AtRandom => Advice::Random,
            HarmlessAdvice::Take => Advice::LinuxPopulateWrite,
        };
        // The kernel takes no advice that begins within a page. The mapping begins with one.
        let page = rustix::param::page_size() as u64;
        let (at, len) = self.part(&(bytes.start / page * page..bytes.end));
        // SAFETY: the bytes are a part of this mapping, and none of these advices changes a word of them.
        unsafe { madvise(at, len, advice) }
    }

    /// Whether the kernel has huge pages, of [`HUGE`] bytes, and has refused none for this mapping in the last ten
    /// seconds.
    pub fn may_be_huge(&self) -> bool {
        static LENGTH: OnceLock<u64> = OnceLock::new();
        let length = LENGTH.get_or_init(|| {
            let length = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
            length.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        });
        let again_ns = self.huge_again_ns.load(Relaxed);
        *length == HUGE && (again_ns == 0 || Clock::System.now_ns() >= again_ns)
    }

    /// From now on the kernel is not asked for huge pages.
    pub fn never_huge(&self) {
        self.huge_again_ns.store(u64::MAX, Relaxed);
    }

    /// Takes memory for a block of [`HUGE`] bytes that has none, in one huge page. After an error it may have memory
    /// in part.
    pub fn take_huge(&self, block: &Range<u64>) -> rustix::io::Result<()> {
        /// To find that there is no huge page takes the kernel time.
        const APART_NS: u64 = 10_000_000_000;
        // A block without any page is refused.
        let first = block.start..block.start + PAGE as u64;
        let touched = rustix::io::retry_on_intr(|| self.advise(first.clone(), HarmlessAdvice::Take));
        let taken = touched.and_then(|()| self.collapse(block));
        if let Err(why) = taken {
            tracing::debug!(%why, "memory stays in small pages");
            self.huge_again_ns.store(Clock::System.now_ns() + APART_NS, Relaxed);
        }
        taken
    }

    /// Has the kernel move a block of [`HUGE`] bytes into one huge page, now. No word of it changes.
    fn collapse(&self, block: &Range<u64>) -> rustix::io::Result<()> {
        /// Linux 6.1. Not every libc has it.
        const MADV_COLLAPSE: i32 = 25;
        const TRIES: u32 = 10;
        const APART: Duration = Duration::from_millis(1);
        let (at, len) = self.part(block);
        let mut done = Ok(());
        for _ in 0..TRIES {
            // SAFETY: the bytes are a part of this mapping. A kernel that knows the advice moves them while
            // every access waits; to another it is an error.
            let answer = unsafe { libc::madvise(at, len, MADV_COLLAPSE) };
            done = if answer == 0 { Ok(()) } else { Err(last_error()) };
            // The kernel's word for what may go in a moment: somebody else looks at the page.
            if done != Err(Errno::AGAIN) {
                break;
            }
            std::thread::sleep(APART);
        }
        done
    }

    /// Gives all of its memory back: its words are zero from now on, also in other processes. To be used where any
    /// words are good.
    pub fn remove(&self) -> rustix::io::Result<()> {
        // SAFETY: the mapping stays; its words are only touched as atomics, and any words are good.
        unsafe { madvise(self.start.as_ptr(), self.len, Advice::LinuxRemove) }
    }

    /// Where these bytes are mapped, and how many there are.
    ///
    /// # Panics
    /// When the bytes do not lie inside: a bug.
    fn part(&self, bytes: &Range<u64>) -> (*mut c_void, usize) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len as u64, "{bytes:?} of {}", self.len);
        let at = self.start.as_ptr().wrapping_byte_add(bytes.start as usize);
        (at, (bytes.end - bytes.start) as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped here, with this length up to a page, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len.max(1)) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What the kernel may be told without any effect but on time and memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum HarmlessAdvice {
    /// Huge pages, where the system's settings allow them.
    HugePages,
    /// Small pages, whatever is asked for later.
    #[cfg(test)]
    SmallPages,
    /// No page is read ahead.
    AtRandom,
    /// Memory for all of it, now.
    Take,
}
