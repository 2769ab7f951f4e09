//! Memory that a device knows: regions, and buffers cut into cells.

#![allow(unsafe_code)]

use super::super::error::SetupError;
use super::calls::{destroyed, last_errno};
use super::context::ProtectionDomain;
use crate::layout::LINE;
use crate::region::Region;
use ibverbs_sys::*;
use memmap2::{MmapOptions, MmapRaw};
use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// What the other side may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access(ibv_access_flags);

impl Access {
    /// Nothing. The local NIC may write messages there.
    pub const LOCAL: Access = Access::of(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE);
    /// READ it.
    pub const REMOTE_READ: Access = Access::of(ibv_access_flags::IBV_ACCESS_REMOTE_READ);

    /// What these flags say.
    pub const fn of(flags: ibv_access_flags) -> Access {
        Access(flags)
    }

    /// The flags of memory.
    fn flags(self) -> c_int {
        self.0.0 as c_int
    }

    /// The flags of a queue pair.
    pub(super) fn of_pair(self) -> u32 {
        if self == Access::LOCAL { 0 } else { self.0.0 }
    }
}

/// Memory that the device knows. It is deregistered before its owner is dropped.
#[derive(Debug)]
pub(crate) struct Registered<M> {
    raw: NonNull<ibv_mr>,
    domain: Arc<ProtectionDomain>,
    memory: M,
}

// SAFETY: as for `Context`; the bounds on `M` cover the memory.
unsafe impl<M: Send> Send for Registered<M> {}
// SAFETY: as above.
unsafe impl<M: Sync> Sync for Registered<M> {}

impl<M> Registered<M> {
    /// Registers these bytes for the NIC.
    ///
    /// # Safety
    /// `memory` keeps `start..start + bytes` mapped and in place until it is dropped, and nothing
    /// in this process holds a reference to bytes there that `access` lets a NIC write.
    unsafe fn register(
        domain: Arc<ProtectionDomain>,
        memory: M,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registered<M>, SetupError> {
        let functions = domain.functions();
        // SAFETY: the caller's promise.
        let raw = unsafe { (functions.ibv_reg_mr)(domain.raw(), start.cast(), bytes, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| SetupError::Register {
            bytes: bytes as u64,
            errno: last_errno(),
            limit: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        })?;
        Ok(Registered { raw, domain, memory })
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: registered as long as `self`; the keys do not change.
        unsafe { ((*self.raw.as_ptr()).lkey, (*self.raw.as_ptr()).rkey) }
    }

    /// The key by which work requests of the other side name it.
    pub fn remote_key(&self) -> u32 {
        self.keys().1
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M> Drop for Registered<M> {
    fn drop(&mut self) {
        let functions = self.domain.functions();
        // SAFETY: made by us, freed once. Later work requests of the other side that name it fail.
        destroyed("ibv_dereg_mr", unsafe { (functions.ibv_dereg_mr)(self.raw.as_ptr()) });
    }
}

/// A region, registered for READs by others.
pub(crate) type RegisteredRegion = Registered<Arc<dyn AsRef<Region> + Send + Sync>>;

impl RegisteredRegion {
    /// Registers these bytes of the region that `owner` holds. The device pins their pages, so the time it
    /// takes is proportional to their number.
    ///
    /// # Panics
    /// When they lie outside the region.
    pub fn of_region(
        domain: Arc<ProtectionDomain>,
        owner: Arc<dyn AsRef<Region> + Send + Sync>,
        bytes: Range<u64>,
    ) -> Result<RegisteredRegion, SetupError> {
        let region: &Region = (*owner).as_ref();
        assert!(bytes.start < bytes.end && bytes.end <= region.bytes(), "bytes outside the region");
        let start = region.start().wrapping_add(bytes.start as usize);
        // SAFETY: `owner` keeps the region, which has these bytes (asserted) and never unmaps or moves its
        // memory; the NIC only reads it.
        unsafe {
            Registered::register(
                domain,
                owner,
                start,
                (bytes.end - bytes.start) as usize,
                Access::REMOTE_READ,
            )
        }
    }

    /// The address at which work requests of the other side reach the region's first byte.
    pub fn address(&self) -> u64 {
        (*self.memory).as_ref().start() as u64
    }
}

/// Memory of our own that NICs write into or read from, cut into equal cells.
pub(crate) type Buffer = Registered<Cells>;

/// An anonymous mapping cut into cells.
#[derive(Debug)]
pub(crate) struct Cells {
    map: MmapRaw,
    cell_bytes: usize,
}

impl Cells {
    /// The number of cells.
    pub fn cells(&self) -> usize {
        self.map.len() / self.cell_bytes
    }
}

impl Buffer {
    /// Makes `cells` zeroed cells of `cell_bytes` bytes each, rounded up to whole cache lines.
    pub fn new(
        domain: Arc<ProtectionDomain>,
        cells: usize,
        cell_bytes: usize,
        access: Access,
    ) -> Result<Buffer, SetupError> {
        let cell_bytes = cell_bytes.next_multiple_of(LINE);
        let bytes = cells * cell_bytes;
        let map = MmapOptions::new()
            .len(bytes)
            .map_anon()
            .map_err(|e| SetupError::Call { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let map = MmapRaw::from(map);
        // After a fork, the NIC would write into pages that this process no longer has.
        map.advise(memmap2::Advice::DontFork)
            .map_err(|e| SetupError::Call { call: "madvise", errno: e.raw_os_error().unwrap_or(0) })?;
        let start = map.as_mut_ptr();
        // SAFETY: the mapping stays where it is until dropped; its bytes are reached only through
        // the methods below.
        unsafe { Registered::register(domain, Cells { map, cell_bytes }, start, bytes, access) }
    }

    pub fn cell_bytes(&self) -> usize {
        self.memory.cell_bytes
    }

    /// The first byte of a cell.
    pub(crate) fn cell(&self, cell: usize) -> *mut u8 {
        let at = cell * self.memory.cell_bytes;
        assert!(at + self.memory.cell_bytes <= self.memory.map.len(), "cell {cell} lies outside the buffer");
        // SAFETY: inside the mapping.
        unsafe { self.memory.map.as_mut_ptr().add(at) }
    }

    /// The first words of a cell.
    ///
    /// # Safety
    ///
    /// No NIC and no code of this process writes into the cell while the words are borrowed. That
    /// holds once each work request that names the cell has completed, or its queue pair is gone.
    pub unsafe fn words(&self, cell: usize, words: usize) -> &[u64] {
        assert!(words * size_of::<u64>() <= self.memory.cell_bytes, "more words than a cell has");
        // SAFETY: inside the mapping, aligned to lines; any bits are a u64; the caller promises the
        // rest.
        unsafe { std::slice::from_raw_parts(self.cell(cell).cast(), words) }
    }

    /// The first bytes of a cell.
    ///
    /// # Safety
    /// As for [`Buffer::words`].
    pub unsafe fn bytes(&self, cell: usize, bytes: usize) -> &[u8] {
        assert!(bytes <= self.memory.cell_bytes, "more bytes than a cell has");
        // SAFETY: inside the mapping; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.cell(cell), bytes) }
    }

    /// Copies the parts into a cell, one after the other. Returns their length in bytes.
    ///
    /// # Safety
    /// No work request that names the cell is in flight, and nobody borrows from it.
    pub unsafe fn fill(&self, cell: usize, parts: &[&[u8]]) -> usize {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(bytes <= self.memory.cell_bytes, "more bytes than a cell has");
        let mut to = self.cell(cell);
        for part in parts {
            // SAFETY: there is room (asserted); the caller promises that nobody else touches the
            // cell.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        bytes
    }

    /// A scatter/gather element for the first bytes of a cell.
    pub fn element(&self, cell: usize, bytes: usize) -> ibv_sge {
        self.element_at(cell, 0, bytes)
    }

    /// A scatter/gather element for some bytes of a cell, from byte `at` on.
    pub fn element_at(&self, cell: usize, at: usize, bytes: usize) -> ibv_sge {
        let room = self.memory.cell_bytes;
        assert!(at <= room && bytes <= room - at, "more bytes than a cell has");
        ibv_sge { addr: self.cell(cell) as u64 + at as u64, length: bytes as u32, lkey: self.keys().0 }
    }
}
