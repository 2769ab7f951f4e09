//! Every byte a remote reader can see.
//!
//! A region holds, in this order (`docs/FORMAT.md` draws it):
//!
//! ```text
//! 0        superblock       4 KiB   who I am, where things are          (superblock.rs)
//! 4 KiB    control page     4 KiB   state word, counters of begun moves (control.rs)
//! 8 KiB    main slots               homes and windows                   (slot.rs, geometry.rs)
//! ...      overflow slots           chain blocks, where the layout has them
//! ```
//!
//! Who writes: the server's threads, through `Region::store` and
//! nowhere else. Who reads: anybody, at any time, holding nothing. So whatever stands here must either
//! verify itself (slots: stamps and CRC; superblock: stamp and CRC), be one 8-byte word (control page),
//! or stay put for twice the grace time.
//!
//! All integers are little-endian.

pub mod chain;
pub mod control;
pub mod geometry;
pub mod hash;
pub(crate) mod mapped;
pub mod slot;
pub mod superblock;

#[cfg(target_endian = "big")]
compile_error!("oneread's region format is little-endian and is read in place");

/// Bytes in a line: the unit that memory and PCIe move at one instant (assumption H1).
pub const LINE: usize = 64;
/// Bytes in a word: the unit that is never torn (assumption H0).
pub const WORD: usize = 8;
/// Bytes in a page of the region's fixed head.
pub const PAGE: usize = 4096;
