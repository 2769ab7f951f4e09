//! Every byte that a remote reader can see.
//!
//! A region holds, in this order (`docs/FORMAT.md` draws it):
//!
//! ```text
//! 0        superblock       4 KiB   who I am, where things are          (superblock.rs)
//! 4 KiB    control page     4 KiB   state word, counters of begun moves (control.rs)
//! 8 KiB    undo lines               slots that are being written over   (undo.rs)
//! ...      main slots               homes and windows                   (slot.rs, geometry.rs)
//! ...      overflow slots           chain blocks, where the layout has them
//! ...      heap                     extents, where values may be too long for slots (extent.rs)
//! ```
//!
//! Only the server's threads write, and only through `Region::store` and `Region::add`. Anybody
//! reads, at any time, and holds nothing. So everything here must do one of three things: verify
//! itself (slots and superblock: stamp and CRC), be one 8-byte word (control page), or stay
//! unchanged for twice the grace time.
//!
//! All integers are little-endian.

pub mod chain;
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "servers and clients over verbs"))]
pub mod chunk;
pub(crate) mod compare;
pub mod control;
pub(crate) mod crc;
pub mod extent;
pub(crate) mod family;
pub mod geometry;
pub mod hash;
pub(crate) mod mapped;
pub mod segment;
pub mod slot;
pub mod superblock;
pub mod undo;
pub(crate) mod window;
pub(crate) mod words;

#[cfg(target_endian = "big")]
compile_error!("oneread's region format is little-endian and is read in place");

/// Bytes in a line: what memory and PCIe move at one instant (H1).
pub const LINE: usize = 64;
/// Bytes in a word: never torn (H0).
pub const WORD: usize = 8;
/// Bytes in a page. The superblock and the control page have one each.
pub const PAGE: usize = if cfg!(loom) { 512 } else { 4096 };
