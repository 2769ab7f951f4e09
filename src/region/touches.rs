//! What clients read: a byte for each of some hashes, in memory that server and clients map.
//!
//! ```text
//! GET    hash ── its high bits: which byte ── its low bits: the tag ── the byte has another one? store it
//! hand   hash ── the byte has its tag? it was read; store another one
//! ```
//!
//! Anybody who may read the table may store anything here, and it changes no answer: entries look read that were
//! not, or the other way round.

#![allow(unsafe_code)]

use super::{Region, RegionError};
use crate::layout::hash::First;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// The memory, as one of them has it mapped.
#[derive(Debug)]
pub(crate) struct TouchMap {
    base: NonNull<AtomicU8>,
    /// Bits of a hash below those that choose the byte.
    shift: u32,
    /// What clients are handed, on the server's side.
    handed: Option<OwnedFd>,
    /// Keeps the memory where it is.
    _memory: Region,
}

// SAFETY: `base` points into `_memory`, which lives as long as this and is never unmapped or moved before; all
// access to it goes through atomics.
unsafe impl Send for TouchMap {}
// SAFETY: as above.
unsafe impl Sync for TouchMap {}

impl TouchMap {
    /// For a table with `slots` slots: two bytes for each, but at least 4 KiB and at most 16 MiB. In a larger table, more
    /// keys share a byte, of which the last one read counts.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for it.
    pub fn make(slots: u64) -> Result<TouchMap, RegionError> {
        let bytes = slots.saturating_mul(2).clamp(1 << 12, 1 << 24).next_power_of_two();
        let (memory, fd) = Region::exchange(bytes)?;
        Ok(TouchMap::over(memory, Some(fd)))
    }

    /// Maps what a server has handed over.
    ///
    /// # Errors
    /// [`RegionError`] when it cannot be mapped, or is not sealed.
    #[cfg(test)]
    pub fn map(fd: OwnedFd) -> Result<TouchMap, RegionError> {
        Ok(TouchMap::in_memory(Region::map_exchange(fd)?))
    }

    /// The map in memory that a server has handed over.
    pub fn in_memory(memory: Region) -> TouchMap {
        TouchMap::over(memory, None)
    }

    fn over(memory: Region, handed: Option<OwnedFd>) -> TouchMap {
        // At least a page: a mapping has no less.
        let bits = memory.bytes().max(1).ilog2();
        TouchMap { base: memory.first_byte(), shift: u64::BITS - bits.clamp(1, 63), handed, _memory: memory }
    }

    /// What clients are handed.
    pub fn handed(&self) -> Option<&OwnedFd> {
        self.handed.as_ref()
    }

    #[inline(always)]
    fn byte(&self, hash: First) -> &AtomicU8 {
        // SAFETY:
        // * the number is less than 2^(64 - shift), which is at most the memory's length in bytes;
        // * the memory lives as long as `self`, and any bits are a valid AtomicU8;
        // * it is touched only here, only as AtomicU8, and it was mapped to be stored into.
        unsafe { &*self.base.as_ptr().add((hash.0 >> self.shift) as usize) }
    }

    /// A GET has found a key with this hash. Where it was noted, nothing is stored: lines of keys that many threads
    /// read stay in the caches of all of them.
    #[inline(always)]
    pub fn note(&self, hash: First) {
        let (byte, tag) = (self.byte(hash), hash.0 as u8);
        // Relaxed: it is a hint.
        if byte.load(Ordering::Relaxed) != tag {
            byte.store(tag, Ordering::Relaxed);
        }
    }

    /// Whether a key with this hash was noted.
    pub fn is_noted(&self, hash: First) -> bool {
        self.byte(hash).load(Ordering::Relaxed) == hash.0 as u8
    }

    /// Whether it was noted since this was asked last.
    pub fn take(&self, hash: First) -> bool {
        let is_noted = self.is_noted(hash);
        if is_noted {
            // Not its tag, so a later GET is seen.
            self.byte(hash).store(!(hash.0 as u8), Ordering::Relaxed);
        }
        is_noted
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What a GET notes is seen once. Other keys of the same byte are told apart. Two mappings are one memory.
    #[test]
    fn what_was_read_is_seen_once() {
        let server = TouchMap::make(100).unwrap();
        let client = TouchMap::map(server.handed().unwrap().try_clone().unwrap()).unwrap();
        for hash in [0, 1, u64::MAX, 0x1234_5678_9abc_def0].map(First) {
            assert!(!server.take(First(hash.0 ^ 1)), "another tag");
            client.note(hash);
            assert_eq!([server.is_noted(hash), server.take(hash), server.take(hash)], [true, true, false]);
            client.note(hash);
            client.note(First(hash.0 ^ 2));
            assert!(!server.take(hash), "the last one counts");
        }
    }

    /// Any hash has a byte in memory of any length that a server may hand over.
    #[test]
    fn every_hash_has_a_byte() {
        for bytes in [4096, 4097, 8191, 8192, 12_288] {
            let (_, fd) = Region::exchange(bytes).unwrap();
            let map = TouchMap::map(fd).unwrap();
            let is_last = 1u64 << (64 - map.shift);
            assert!(is_last <= bytes && is_last * 2 > bytes, "{bytes}");
            map.note(First(u64::MAX));
            assert!(map.take(First(u64::MAX)));
        }
    }
}
