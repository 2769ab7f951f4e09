//! The superblock: the first page of a region. A client needs nothing else to find its way.
//!
//! Checksummed as a whole, and stamped like a slot (odd while it is being written). Written once, when the
//! region is made, before anybody reads it; what changes later stands in the control page.

use super::geometry::{
    Family, GRACE_MAX, Geometry, HOMES_MAX, Layout, OVERFLOW_BLOCKS_MAX, OutOfRange, within,
};
use super::hash::Seeds;
use super::slot::{KEY_MAX, SlotShape};
use super::{PAGE, WORD};
use std::mem::{offset_of, size_of};
use std::time::Duration;

/// "ONEREAD" and a zero byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ONEREAD\0");
/// Version of the region format that this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// The superblock as it stands at byte 0 of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Even: at rest. Odd: being written.
    pub stamp: u32,
    /// Number of the table; part of every slot's CRC.
    pub generation: u64,
    /// Zero. (Which server has the region is in the state word, which changes.)
    pub reserved_0: u64,
    /// [`Family`] as a number.
    pub family: u32,
    /// Number of windows a key may be in (cuckoo), else 1.
    pub choices: u32,
    /// Slots per bucket.
    pub bucket_slots: u32,
    /// Buckets per window.
    pub window_buckets: u32,
    /// Slots per overflow block; 0 when the layout has none.
    pub block_slots: u32,
    /// Bytes per slot.
    pub slot_bytes: u32,
    /// Longest key accepted, in bytes.
    pub key_max: u32,
    /// Longest inline value accepted, in bytes.
    pub value_max: u32,
    /// Number of homes.
    pub homes: u64,
    /// Number of overflow blocks reserved.
    pub overflow_blocks: u64,
    /// Byte offset of slot 0.
    pub table_offset: u64,
    /// Length of the region in bytes.
    pub region_bytes: u64,
    /// The grace time T in nanoseconds: a client trusts a GET's miss only if it took less.
    pub grace_ns: u64,
    /// Seconds since 1970 when the region was made.
    pub created: u64,
    /// Seeds of the three hashes.
    pub seeds: [[u64; 4]; 3],
    /// Zero.
    pub reserved: u32,
    /// CRC-32 of everything before this field.
    pub crc: u32,
}

const _: () = {
    assert!(size_of::<Superblock>() == 216);
    assert!(size_of::<Superblock>() <= PAGE);
    assert!(size_of::<Superblock>().is_multiple_of(WORD));
    assert!(offset_of!(Superblock, magic) == 0);
    assert!(offset_of!(Superblock, version) == 8);
    assert!(offset_of!(Superblock, stamp) == 12);
    assert!(offset_of!(Superblock, generation) == 16);
    assert!(offset_of!(Superblock, reserved_0) == 24);
    assert!(offset_of!(Superblock, family) == 32);
    assert!(offset_of!(Superblock, slot_bytes) == 52);
    assert!(offset_of!(Superblock, homes) == 64);
    assert!(offset_of!(Superblock, table_offset) == 80);
    assert!(offset_of!(Superblock, region_bytes) == 88);
    assert!(offset_of!(Superblock, grace_ns) == 96);
    assert!(offset_of!(Superblock, created) == 104);
    assert!(offset_of!(Superblock, seeds) == 112);
    assert!(offset_of!(Superblock, reserved) == 208);
    assert!(offset_of!(Superblock, crc) == 212);
};

/// Words in the superblock.
pub const SUPERBLOCK_WORDS: usize = size_of::<Superblock>() / WORD;

/// Why the first page of a region could not be used.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum SuperblockError {
    /// Not a oneread region at all.
    #[error(
        "this is no oneread region: it begins with {found:#018x}, a region begins with \"ONEREAD\"; name a file that `oneread serve` made"
    )]
    Magic {
        /// The first 8 bytes.
        found: u64,
    },
    /// A region of another format version.
    #[error(
        "region format version {found}, this build reads version {FORMAT_VERSION}; use the oneread release that wrote it, or dump there and load here"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// A server was writing the superblock when it died.
    #[error(
        "the superblock is being written (stamp {stamp}); if this stays so, the server died while writing it: make the region anew"
    )]
    Writing {
        /// The odd stamp.
        stamp: u32,
    },
    /// The checksum does not match.
    #[error(
        "the superblock is damaged: checksum {found:#010x}, computed {computed:#010x}; make the region anew"
    )]
    Checksum {
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// A layout this build does not have.
    #[error("the region uses layout family {family}, this build has {}; use a newer build", Family::list())]
    Layout {
        /// The number found.
        family: u32,
    },
    /// A field with an impossible value, although the checksum matches.
    #[error(
        "the superblock says {field} = {value}, allowed is {allowed}; it was written by a faulty program"
    )]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The value found.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The region is shorter than its superblock says.
    #[error("the region is truncated: it has {have} bytes, its superblock says {need}")]
    Truncated {
        /// Bytes there are.
        have: u64,
        /// Bytes there should be.
        need: u64,
    },
}

impl From<OutOfRange> for SuperblockError {
    fn from(number: OutOfRange) -> SuperblockError {
        let allowed = number.allowed();
        SuperblockError::Field { field: number.field, value: number.value, allowed }
    }
}

impl Superblock {
    /// The superblock of a table with this geometry.
    pub fn new(geometry: &Geometry, created: u64) -> Superblock {
        let layout = geometry.layout();
        let mut it = Superblock {
            magic: MAGIC,
            version: FORMAT_VERSION,
            stamp: 0,
            generation: geometry.generation(),
            reserved_0: 0,
            family: layout.family as u32,
            choices: layout.choices,
            bucket_slots: layout.bucket_slots,
            window_buckets: layout.window_buckets,
            block_slots: layout.block_slots,
            slot_bytes: geometry.shape().bytes() as u32,
            key_max: geometry.key_max() as u32,
            value_max: geometry.value_max() as u32,
            homes: geometry.homes(),
            overflow_blocks: geometry.overflow_blocks(),
            table_offset: geometry.table_offset(),
            region_bytes: geometry.region_bytes(),
            grace_ns: geometry.grace().as_nanos() as u64,
            created,
            seeds: geometry.seeds().0,
            reserved: 0,
            crc: 0,
        };
        it.crc = it.computed_crc();
        it
    }

    fn computed_crc(&self) -> u32 {
        // The stamp is left out: it changes after the rest is in place.
        let at_rest = Superblock { stamp: 0, ..*self };
        crc32fast::hash(&bytemuck::bytes_of(&at_rest)[..offset_of!(Superblock, crc)])
    }

    /// Bytes to superblock. Any bytes will do; only [`Superblock::geometry`] says whether they make sense.
    pub fn from_words(words: [u64; SUPERBLOCK_WORDS]) -> Superblock {
        bytemuck::cast(words)
    }

    /// The bytes as words.
    pub fn to_words(self) -> [u64; SUPERBLOCK_WORDS] {
        bytemuck::cast(self)
    }

    /// Validates everything once. Whoever holds the [`Geometry`] need not check it again: every slot it
    /// names lies inside the region's `have` bytes.
    ///
    /// # Errors
    /// [`SuperblockError`] says which field is wrong and what is allowed.
    pub fn geometry(&self, have: u64) -> Result<Geometry, SuperblockError> {
        if self.magic != MAGIC {
            return Err(SuperblockError::Magic { found: self.magic });
        }
        if self.version != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: self.version });
        }
        if self.stamp % 2 == 1 {
            return Err(SuperblockError::Writing { stamp: self.stamp });
        }
        let computed = self.computed_crc();
        if self.crc != computed {
            return Err(SuperblockError::Checksum { found: self.crc, computed });
        }
        let family =
            Family::from_number(self.family).ok_or(SuperblockError::Layout { family: self.family })?;
        let layout = Layout {
            family,
            choices: self.choices,
            bucket_slots: self.bucket_slots,
            window_buckets: self.window_buckets,
            block_slots: self.block_slots,
        };
        layout.check()?;
        within("homes", self.homes, 1..=HOMES_MAX)?;
        // Blocks if and only if the layout has chains.
        let blocks = if layout.block_slots == 0 { 0..=0 } else { 1..=OVERFLOW_BLOCKS_MAX };
        within("overflow_blocks", self.overflow_blocks, blocks)?;
        within("grace_ns", self.grace_ns, 0..=GRACE_MAX.as_nanos() as u64)?;
        let shape = SlotShape::from_bytes(self.slot_bytes as usize).ok_or(SuperblockError::Field {
            field: "slot_bytes",
            value: self.slot_bytes.into(),
            allowed: "32 or 64 to 4096 in steps of 64".into(),
        })?;
        let payload = shape.payload_max() as u64;
        within("key_max", self.key_max.into(), 1..=payload.min(KEY_MAX as u64))?;
        within("value_max", self.value_max.into(), 0..=payload - u64::from(self.key_max))?;
        within("table_offset", self.table_offset, 2 * PAGE as u64..=2 * PAGE as u64)?;
        let geometry = Geometry::assemble(
            layout,
            shape,
            self.key_max as usize,
            self.value_max as usize,
            self.homes,
            self.overflow_blocks,
            Duration::from_nanos(self.grace_ns),
            self.generation,
            Seeds(self.seeds),
        );
        let need = geometry.region_bytes();
        within("region_bytes", self.region_bytes, need..=need)?;
        if have < need {
            return Err(SuperblockError::Truncated { have, need });
        }
        Ok(geometry)
    }
}
