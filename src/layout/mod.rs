//! Layouts: where keys go; and every byte that a remote reader can see.
//!
//! A [`Layout`] says where a key may stand and how much a GET reads for it. Its [`Family`] is the
//! algorithm: cuckoo, hopscotch or chained. [`presets`](crate::presets) have names. A [`Geometry`] is a
//! layout with sizes: it places keys and slots in a region, and is what clients learn of a table when they
//! connect. [`Config::geometry`](crate::Config::geometry) makes one.
//!
//! ```
//! use oneread::layout::Layout;
//! use oneread::{Config, TableSize};
//!
//! let layout: Layout = "farm".parse()?;
//! let geometry = Config::new().layout(layout).size(TableSize::Keys(1_000)).geometry()?;
//! assert_eq!(geometry.layout(), layout);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The bytes
//!
//! A region holds, in this order (`docs/FORMAT.md` draws it):
//!
//! ```text
//! 0        superblock       4 KiB   who I am, where things are          (superblock.rs)
//! 4 KiB    control page     4 KiB   state word, counters of begun moves (control.rs)
//! 8 KiB    undo lines               slots that are being written over   (undo.rs)
//! ...      owners                   where entries have owners: which are hidden (owners.rs)
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

pub(crate) mod chain;
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "servers and clients over verbs"))]
pub(crate) mod chunk;
pub(crate) mod compare;
pub(crate) mod control;
pub(crate) mod crc;
pub(crate) mod digest;
pub(crate) mod extent;
pub(crate) mod family;
pub(crate) mod geometry;
pub(crate) mod hash;
pub(crate) mod life;
pub(crate) mod long;
pub(crate) mod mapped;
pub(crate) mod owners;
pub(crate) mod segment;
pub(crate) mod slot;
pub(crate) mod superblock;
pub(crate) mod undo;
pub(crate) mod window;
pub(crate) mod words;

pub use geometry::{Family, Geometry, Layout};
pub use hash::Seeds;
pub use life::{LIFE_BYTES, Life};
pub use long::SoughtKey;
pub use owners::OWNER_MAX;

#[cfg(target_endian = "big")]
compile_error!("oneread's region format is little-endian and is read in place");

/// Bytes in a line: what memory and PCIe move at one instant (H1).
pub const LINE: usize = 64;
/// Bytes in a word: never torn (H0).
pub const WORD: usize = 8;
/// Bytes in a page. The superblock and the control page have one each.
pub const PAGE: usize = if cfg!(loom) { 512 } else { 4096 };
