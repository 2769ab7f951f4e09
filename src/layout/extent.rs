//! Extents: values that are too long for their slots.
//!
//! An extent is written whole, then named by a slot, and never written again (X2). The slot has a
//! *reference*:
//!
//! ```text
//! 0..8     number   u64  of the extent; no other ever had it (X1)
//! 8..16    offset   u64  byte of the region where the value begins; a multiple of 8
//! 16..20   length   u32  bytes of value
//! 20..24   crc      u32  CRC-32 of the value
//! ```
//!
//! A key that does not fit its slot stands in front of its value (`long.rs`): then length and CRC are those of both.
//!
//! The extent itself, at a multiple of 32 bytes of the *heap*, which is behind the slots:
//!
//! ```text
//! 0..8     number   u64  \
//! 8..16    hash     u64   } for the server, which reads them when it moves the extent (X6)
//! 16..20   length   u32  /
//! 20..24   zero
//! 24..     value, and zeros up to the next multiple of 32
//! ```

use super::{PAGE, WORD};
use std::mem::size_of;
use std::time::Duration;

/// The longest value of any table, in bytes.
pub const VALUE_MAX: usize = 64 << 20;
/// Bytes of a reference.
pub const REFERENCE_BYTES: usize = 24;
/// The longest heap, in bytes.
pub(crate) const HEAP_BYTES_MAX: u64 = BLOCKS * BLOCK_BYTES_MAX;
/// The longest block, in bytes.
pub(crate) const BLOCK_BYTES_MAX: u64 = 1 << 36;
/// An extent has at most this part of a block.
pub(crate) const LONGEST_PART: u64 = 4;
/// Bytes of header before the value of an extent.
pub const EXTENT_HEADER: usize = 24;
/// Words of that header.
pub(crate) const EXTENT_HEADER_WORDS: usize = EXTENT_HEADER / WORD;
/// Extents begin and end at multiples of this many bytes.
pub const GRANULE: u64 = 32;
/// The slowest client that a table is meant for brings this many bytes a microsecond.
const RATE: u64 = 1_000;
/// As many blocks as a large heap has.
const BLOCKS: u64 = 1_024;

/// Bytes that the extent of a value of `len` bytes takes.
#[inline]
pub fn extent_bytes(len: usize) -> u64 {
    ((EXTENT_HEADER + len) as u64).next_multiple_of(GRANULE)
}

/// How long the blocks of a heap are: short, so that two of them (Y1, Y3) are a small part of it, and long
/// enough for the longest extent.
pub(crate) fn block_bytes(heap_bytes: u64, longest_bytes: u64) -> u64 {
    let for_longest = longest_bytes.next_multiple_of(GRANULE).saturating_mul(LONGEST_PART);
    for_longest.max(heap_bytes / BLOCKS).max(1).next_multiple_of(PAGE as u64)
}

/// Where a long value is, as its slot says.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Reference {
    /// Number of the extent.
    pub number: u64,
    /// Byte of the region at which the value begins.
    pub offset: u64,
    /// Bytes of value.
    pub len: u32,
    /// CRC-32 of the value.
    pub crc: u32,
}

const _: () = assert!(size_of::<Reference>() == REFERENCE_BYTES);

/// The value that a compare-and-swap expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'a> {
    /// This value, byte for byte.
    Value(&'a [u8]),
    /// The value in this extent: who expects it has read it there. No other extent ever has the number (X1).
    Extent(Reference),
}

impl<'a> Expected<'a> {
    /// The value, if it is given itself.
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Expected::Value(value) => value,
            Expected::Extent(_) => &[],
        }
    }
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Expected<'a> {
    fn from(value: &'a B) -> Expected<'a> {
        Expected::Value(value.as_ref())
    }
}

impl Reference {
    /// The reference as a slot has it.
    pub fn to_bytes(self) -> [u8; REFERENCE_BYTES] {
        bytemuck::cast(self)
    }

    /// The reference in a slot's bytes. It may say anything: see [`Reference::is_sound`].
    pub fn from_bytes(bytes: [u8; REFERENCE_BYTES]) -> Reference {
        bytemuck::cast(bytes)
    }
}

/// The part of a region where extents are. Of no bytes in a table whose values all fit their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapSpace {
    /// Byte of the region at which it begins.
    pub offset: u64,
    /// Its length in bytes: whole blocks.
    pub bytes: u64,
    /// The length of a block. Extents do not reach from one into the next.
    pub block_bytes: u64,
    /// Bytes a microsecond that the slowest reader brings.
    pub rate: u64,
}

impl HeapSpace {
    /// The heap behind this byte, of at most `bytes_max` bytes, for values of at most `longest`. `None` if it
    /// has no room for two blocks: one is kept free, to move extents into. A heap that is asked for with the
    /// length of this one is this one.
    pub(crate) fn behind(end: u64, bytes_max: u64, longest: usize) -> Option<HeapSpace> {
        let offset = end.next_multiple_of(PAGE as u64);
        let mut bytes = bytes_max;
        loop {
            // In steps of two: what is rounded off a heap seldom makes its blocks shorter, and twice at most.
            let block_bytes = block_bytes(bytes.next_power_of_two(), extent_bytes(longest));
            if bytes < 2 * block_bytes {
                return None;
            }
            match bytes % block_bytes {
                0 => return Some(HeapSpace { offset, bytes, block_bytes, rate: RATE }),
                rest => bytes -= rest,
            }
        }
    }

    /// The allowance A(n) of an extent of n bytes (X4): how long a reader by the clock may take without
    /// another look. Rounded down.
    #[inline]
    pub fn allowance(&self, grace: Duration, len: u32) -> Duration {
        grace + Duration::from_nanos(u64::from(len) * 1_000 / self.rate.max(1))
    }

    /// How long the memory of such an extent is kept after its name has ended (X3): 2A(n), rounded up.
    pub(crate) fn kept_for(&self, grace: Duration, len: u32) -> Duration {
        2 * grace + Duration::from_nanos((2 * u64::from(len) * 1_000).div_ceil(self.rate.max(1)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Memory is kept for twice as long as a reader believes what it brought (X3, X4): its clock may run at
    /// half the rate.
    #[test]
    fn memory_is_kept_for_twice_the_allowance() {
        for rate in [1, 3, 999, RATE, 1_000_000] {
            let heap = HeapSpace { rate, ..HeapSpace::default() };
            for grace in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(2)] {
                for len in [0, 1, 7, 4_096, VALUE_MAX as u32, u32::MAX] {
                    let (kept, allowed) = (heap.kept_for(grace, len), heap.allowance(grace, len));
                    assert!(kept >= 2 * allowed && kept <= 2 * allowed + Duration::from_nanos(2));
                }
            }
        }
    }
}
