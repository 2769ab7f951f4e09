//! The superblock: the first page of a region. It holds all that a client needs to find its way.
//!
//! One checksum covers it. It is written once, when the region is made, before anybody reads it.
//! What changes later is in the control page.

use super::digest::LONG_KEY_BYTES;
use super::extent::{
    BLOCK_BYTES_MAX, HEAP_BYTES_MAX, HeapSpace, REFERENCE_BYTES, VALUE_MAX, block_bytes, extent_bytes,
};
use super::family::{Family, Layout, OutOfRange, within};
use super::geometry::{self, GRACE_MAX, Geometry, HOMES_MAX, Numbers, OVERFLOW_BLOCKS_MAX, segments_max};
use super::hash::Seeds;
use super::life::LIFE_BYTES;
use super::slot::{KEY_MAX, SlotShape};
use super::{PAGE, WORD};
use std::mem::{offset_of, size_of};
use std::time::Duration;

/// "ONEREAD" and a zero byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ONEREAD\0");
/// Version of the region format that this build reads and writes.
pub const FORMAT_VERSION: u32 = 9;
/// In [`Superblock::flags`]: entries have a life.
const FLAG_LIFE: u16 = 1;
/// In [`Superblock::flags`]: they may have owners. Only with a life.
const FLAG_OWNERS: u16 = 2;

/// The superblock as it stands at byte 0 of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Always even. Odd is reserved: no server stores such a stamp, and readers refuse it.
    pub stamp: u32,
    /// Number of the table; part of every slot's CRC.
    pub generation: u64,
    /// The most segments of a table that grows; 0 in a table of one size.
    pub segments_max: u64,
    /// [`Family`] as a number.
    pub family: u32,
    /// Windows that a key may be in (cuckoo), otherwise 1.
    pub choices: u32,
    /// Slots per bucket.
    pub bucket_slots: u32,
    /// Buckets per window.
    pub window_buckets: u32,
    /// Slots per overflow block; 0 when the layout has none.
    pub block_slots: u32,
    /// Bytes per slot.
    pub slot_bytes: u32,
    /// The longest key accepted, in bytes.
    pub key_max: u32,
    /// The longest value accepted, in bytes.
    pub value_max: u32,
    /// Number of homes.
    pub homes: u64,
    /// Number of overflow blocks reserved.
    pub overflow_blocks: u64,
    /// Byte offset of slot 0 in the region.
    pub table_offset: u64,
    /// Length of the region in bytes.
    pub region_bytes: u64,
    /// The grace time T in nanoseconds. Over a network, a pass that finds nothing is trusted only
    /// if it took less than T (G4).
    pub grace_ns: u64,
    /// Seconds since 1970 when the region was made.
    pub created: u64,
    /// Seeds of the three hashes.
    pub seeds: Seeds,
    /// Byte offset of the heap; 0 in a table without one, as the next three.
    pub heap_offset: u64,
    /// Length of the heap in bytes.
    pub heap_bytes: u64,
    /// Length of its blocks.
    pub block_bytes: u64,
    /// Bytes a microsecond that the slowest reader brings.
    pub rate: u64,
    /// Bit 0: entries have a life ([`Life`](super::Life)); bit 1: and may have owners. The others are zero.
    pub flags: u16,
    /// The longest key that stands in its slot, in bytes.
    pub key_inline: u16,
    /// CRC-32C of everything before this field.
    pub crc: u32,
}

const _: () = {
    assert!(size_of::<Superblock>() == 256);
    assert!(size_of::<Superblock>() <= PAGE);
    assert!(size_of::<Superblock>().is_multiple_of(WORD));
    assert!(offset_of!(Superblock, magic) == 0);
    assert!(offset_of!(Superblock, version) == 8);
    assert!(offset_of!(Superblock, stamp) == 12);
    assert!(offset_of!(Superblock, generation) == 16);
    assert!(offset_of!(Superblock, segments_max) == 24);
    assert!(offset_of!(Superblock, family) == 32);
    assert!(offset_of!(Superblock, slot_bytes) == 52);
    assert!(offset_of!(Superblock, homes) == 64);
    assert!(offset_of!(Superblock, table_offset) == 80);
    assert!(offset_of!(Superblock, region_bytes) == 88);
    assert!(offset_of!(Superblock, grace_ns) == 96);
    assert!(offset_of!(Superblock, created) == 104);
    assert!(offset_of!(Superblock, seeds) == 112);
    assert!(offset_of!(Superblock, heap_offset) == 216);
    assert!(offset_of!(Superblock, heap_bytes) == 224);
    assert!(offset_of!(Superblock, block_bytes) == 232);
    assert!(offset_of!(Superblock, rate) == 240);
    assert!(offset_of!(Superblock, flags) == 248);
    assert!(offset_of!(Superblock, key_inline) == 250);
    assert!(offset_of!(Superblock, crc) == 252);
};

/// Words in the superblock.
pub const SUPERBLOCK_WORDS: usize = size_of::<Superblock>() / WORD;

/// Why the first page of a region cannot be used.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Shorter than the superblock and the control page.
    #[error(
        "this is no oneread region: it is shorter than {} bytes; name a file that a server of oneread made",
        2 * PAGE
    )]
    TooShort {
        /// The length in bytes.
        have: u64,
    },
    /// The bytes do not begin like a region.
    #[error(
        "this is no oneread region: it begins with {found:#018x}, a region begins with \"ONEREAD\"; name a file that a server of oneread made"
    )]
    Magic {
        /// The first 8 bytes.
        found: u64,
    },
    /// A region of another format version.
    #[error(
        "region format version {found}, this build reads version {FORMAT_VERSION}; use the oneread release that wrote it, or remove the file"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// The stamp is odd, which is reserved.
    #[error(
        "the superblock has the odd stamp {stamp}, which no server writes; remove the file and serve again"
    )]
    Writing {
        /// The odd stamp.
        stamp: u32,
    },
    /// The checksum does not match.
    #[error(
        "the superblock is damaged: checksum {found:#010x}, computed {computed:#010x}; remove the file and serve again"
    )]
    Checksum {
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// A layout family that this build does not have.
    #[error("the region uses layout family {family}, this build has {}; use a newer build", Family::list())]
    Layout {
        /// The number found.
        family: u32,
    },
    /// A field with an impossible value, although the checksum matches.
    #[error(
        "the superblock says {field} = {value}, allowed is {allowed}; it was written by a faulty program; remove the file and serve again"
    )]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The value found.
        value: u64,
        /// The allowed values.
        allowed: String,
    },
    /// The region is shorter than its superblock says.
    #[error(
        "the region is truncated: it has {have} bytes, its superblock says {need}; remove the file and serve again"
    )]
    Truncated {
        /// The region's length in bytes.
        have: u64,
        /// The length in bytes that the superblock says.
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
            segments_max: geometry.segments_max(),
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
            seeds: *geometry.seeds(),
            heap_offset: geometry.heap().offset,
            heap_bytes: geometry.heap().bytes,
            block_bytes: geometry.heap().block_bytes,
            rate: geometry.heap().rate,
            flags: if geometry.has_life() { FLAG_LIFE } else { 0 }
                | if geometry.has_owners() { FLAG_OWNERS } else { 0 },
            key_inline: geometry.key_inline() as u16,
            crc: 0,
        };
        it.crc = it.computed_crc();
        it
    }

    fn computed_crc(&self) -> u32 {
        // The CRC does not cover the stamp.
        let at_rest = Superblock { stamp: 0, ..*self };
        super::crc::append(0, &bytemuck::bytes_of(&at_rest)[..offset_of!(Superblock, crc)])
    }

    /// The superblock in these words. They may be anything: [`Superblock::geometry`] validates
    /// them.
    pub fn from_words(words: [u64; SUPERBLOCK_WORDS]) -> Superblock {
        bytemuck::cast(words)
    }

    /// The superblock as words.
    pub fn to_words(self) -> [u64; SUPERBLOCK_WORDS] {
        bytemuck::cast(self)
    }

    /// Opens a region of `have` bytes and validates its superblock. `load` reads the region's
    /// words.
    ///
    /// # Errors
    /// [`SuperblockError`]
    pub(crate) fn open(
        have: u64,
        load: impl FnMut(usize) -> u64,
    ) -> Result<(Geometry, Superblock), SuperblockError> {
        if have < 2 * PAGE as u64 {
            return Err(SuperblockError::TooShort { have });
        }
        let superblock = Superblock::from_words(std::array::from_fn(load));
        Ok((superblock.geometry(have)?, superblock))
    }

    /// Validates every field. A [`Geometry`] needs no further checks: every slot that it names lies
    /// inside the region's `have` bytes.
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
        // A layout has blocks if and only if it has chains.
        let blocks = if layout.block_slots == 0 { 0..=0 } else { 1..=OVERFLOW_BLOCKS_MAX };
        within("overflow_blocks", self.overflow_blocks, blocks)?;
        let segments = segments_max(self.homes, self.overflow_blocks);
        within("segments_max", self.segments_max, 0..=segments)?;
        within("grace_ns", self.grace_ns, 0..=GRACE_MAX.as_nanos() as u64)?;
        let shape = SlotShape::from_bytes(self.slot_bytes as usize).ok_or(SuperblockError::Field {
            field: "slot_bytes",
            value: self.slot_bytes.into(),
            allowed: "32 or 64 to 4096 in steps of 64".into(),
        })?;
        let payload = shape.payload_max() as u64;
        within("flags", self.flags.into(), 0..=u64::from(FLAG_LIFE | FLAG_OWNERS))?;
        let (has_life, has_owners) = (self.flags & FLAG_LIFE != 0, self.flags & FLAG_OWNERS != 0);
        if has_owners && !has_life {
            let (field, value, allowed) = ("flags", self.flags.into(), "0, 1 or 3".into());
            return Err(SuperblockError::Field { field, value, allowed });
        }
        let life = if has_life { LIFE_BYTES as u64 } else { 0 };
        // With a heap, a reference stands beside a key, or what there is of a longer one.
        let has_heap = self.heap_bytes > 0;
        let beside = life + if has_heap { REFERENCE_BYTES as u64 } else { 0 };
        let longest = payload.saturating_sub(beside).min(KEY_MAX as u64);
        let may_be_long = has_heap && payload >= life + LONG_KEY_BYTES as u64;
        within("key_max", self.key_max.into(), 1..=if may_be_long { KEY_MAX as u64 } else { longest })?;
        let key_inline = longest.min(self.key_max.into());
        let least = if may_be_long { 0 } else { key_inline };
        within("key_inline", self.key_inline.into(), least..=key_inline)?;
        let value_max = if has_heap { VALUE_MAX as u64 } else { payload - life - u64::from(self.key_max) };
        within("value_max", self.value_max.into(), 0..=value_max)?;
        let table_offset = geometry::table_offset(shape, has_owners);
        within("table_offset", self.table_offset, table_offset..=table_offset)?;
        let geometry = Geometry::from(Numbers {
            layout,
            shape,
            key_max: self.key_max as usize,
            key_inline: self.key_inline.into(),
            value_max: self.value_max as usize,
            has_life,
            has_owners,
            homes: self.homes,
            overflow_blocks: self.overflow_blocks,
            grace: Duration::from_nanos(self.grace_ns),
            generation: self.generation,
            seeds: self.seeds,
        })
        .growing(self.segments_max);
        let geometry = self.with_heap(geometry)?;
        let need = geometry.region_bytes();
        within("region_bytes", self.region_bytes, need..=need)?;
        if have < need {
            return Err(SuperblockError::Truncated { have, need });
        }
        Ok(geometry)
    }

    /// The heap is where it must be, and its blocks are as long as they must be.
    fn with_heap(&self, geometry: Geometry) -> Result<Geometry, SuperblockError> {
        let mut heap = HeapSpace::default();
        if self.heap_bytes > 0 {
            let least = block_bytes(self.heap_bytes, extent_bytes(geometry.extent_max()));
            within("block_bytes", self.block_bytes, least..=BLOCK_BYTES_MAX)?;
            within("block_bytes % 4096", self.block_bytes % PAGE as u64, 0..=0)?;
            within("heap_bytes", self.heap_bytes, 2 * self.block_bytes..=HEAP_BYTES_MAX)?;
            within("heap_bytes % block_bytes", self.heap_bytes % self.block_bytes, 0..=0)?;
            let offset = geometry.slots_end().next_multiple_of(PAGE as u64);
            within("heap_offset", self.heap_offset, offset..=offset)?;
            within("rate", self.rate, 1..=1_000_000)?;
            let Superblock { heap_offset: offset, heap_bytes: bytes, block_bytes, rate, .. } = *self;
            heap = HeapSpace { offset, bytes, block_bytes, rate };
        }
        Ok(geometry.with_heap_at(heap))
    }
}

#[cfg(test)]
mod tests {
    use super::super::undo;
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::placement::families::presets;

    fn geometry(layout: Layout) -> Geometry {
        let config = Config {
            layout,
            size: TableSize::Slots(100),
            key_max: 20,
            value_max: 70,
            grace: Duration::from_micros(1500),
            seeds: Some(Seeds::from_number(9)),
            ..Config::default()
        };
        config.geometry().unwrap()
    }

    /// The superblock with its right checksum.
    fn sealed(superblock: Superblock) -> Superblock {
        Superblock { crc: superblock.computed_crc(), ..superblock }
    }

    /// Each field says what its name says, in a table where no two fields are alike. A client gets
    /// the same table back.
    #[test]
    fn fields_mean_what_their_names_say() {
        for preset in presets() {
            let geometry = geometry(preset.layout);
            let it = Superblock::new(&geometry, 12_345);
            assert_eq!((it.magic.to_le_bytes(), it.version, it.stamp), (*b"ONEREAD\0", FORMAT_VERSION, 0));
            assert_eq!((it.heap_offset, it.heap_bytes, it.block_bytes, it.rate), (0, 0, 0, 0));
            assert_eq!((it.segments_max, it.flags, it.created), (0, 0, 12_345));
            assert_eq!((it.generation, it.seeds), (geometry.generation(), Seeds::from_number(9)));
            let layout = preset.layout;
            assert_eq!((it.family, it.choices), (layout.family as u32, layout.choices));
            assert_eq!((it.bucket_slots, it.window_buckets), (layout.bucket_slots, layout.window_buckets));
            assert_eq!((it.block_slots, it.slot_bytes), (layout.block_slots, 128));
            assert_eq!((it.key_max, it.value_max, it.grace_ns), (20, 70, 1_500_000));
            assert_eq!(it.key_inline, 20);
            assert_eq!((it.homes, it.overflow_blocks), (geometry.homes(), geometry.overflow_blocks()));
            assert_eq!((it.table_offset, it.region_bytes), (20_480, geometry.region_bytes()));
            assert_eq!(it.geometry(it.region_bytes), Ok(geometry.clone()));
            assert_eq!(Superblock::from_words(it.to_words()), it);
            // The time and the generation do not change where anything is. The generation is the
            // table's own.
            let other = sealed(Superblock { created: 1, generation: it.generation ^ 1, ..it });
            let found = other.geometry(it.region_bytes).unwrap();
            assert_eq!(found.generation(), it.generation ^ 1);
            assert_eq!((found.homes(), found.region_bytes()), (it.homes, it.region_bytes));
        }
    }

    /// The last allowed value of each field passes, and the first forbidden one is refused: the
    /// error names the field, its value and what is allowed. (A value that is allowed by itself may
    /// make the table longer than `region_bytes` says.)
    #[test]
    fn fields_at_their_limits() {
        type Set = fn(&mut Superblock, u64);
        for preset in presets() {
            let geometry = geometry(preset.layout);
            let it = Superblock::new(&geometry, 1);
            let check = |field: &'static str, set: Set, value: u64, is_allowed: bool, region: &str| {
                let mut changed = it;
                set(&mut changed, value);
                match sealed(changed).geometry(u64::MAX) {
                    Ok(_) => assert!(is_allowed, "{field} = {value}"),
                    Err(SuperblockError::Field { field: "region_bytes", .. }) if field == "region_bytes" => {
                        assert!(!is_allowed, "{value}");
                    }
                    Err(SuperblockError::Field { field: found, value: which, allowed }) if is_allowed => {
                        assert_eq!((found, which), ("region_bytes", it.region_bytes), "{field} = {value}");
                        assert!(!allowed.is_empty());
                    }
                    Err(SuperblockError::Field { field: found, value: which, allowed }) => {
                        assert_eq!((found, which), (field, value));
                        assert!(allowed.contains(region), "{field} = {value}: {allowed}");
                    }
                    other => panic!("{field} = {value}: {other:?}"),
                }
            };
            let homes: Set = |it, value| it.homes = value;
            let key_max: Set = |it, value| (it.key_max, it.key_inline) = (value as u32, value as u16);
            let key_inline: Set = |it, value| it.key_inline = value as u16;
            let value_max: Set = |it, value| it.value_max = value as u32;
            let blocks: Set = |it, value| it.overflow_blocks = value;
            let grace: Set = |it, value| it.grace_ns = value;
            let offset: Set = |it, value| it.table_offset = value;
            let bytes: Set = |it, value| it.region_bytes = value;
            let slot: Set = |it, value| {
                it.slot_bytes = value as u32;
                let shape = SlotShape::from_bytes(value as usize);
                it.table_offset = shape.map_or(it.table_offset, undo::end);
            };
            let few = 1 << 40;
            [(0, false), (1, true), (few, true), (few + 1, false)]
                .into_iter()
                .for_each(|(value, good)| check("homes", homes, value, good, "1099511627776"));
            let most = (1 << 24) - 1;
            if it.block_slots == 0 {
                [(0, true), (1, false)]
                    .into_iter()
                    .for_each(|(value, good)| check("overflow_blocks", blocks, value, good, "0"));
            } else {
                [(0, false), (1, true), (most, true), (most + 1, false)]
                    .into_iter()
                    .for_each(|(value, good)| check("overflow_blocks", blocks, value, good, "16777215"));
            }
            let minute = 60_000_000_000;
            [(0, true), (minute, true), (minute + 1, false)]
                .into_iter()
                .for_each(|(value, good)| check("grace_ns", grace, value, good, "60000000000"));
            [(20_479, false), (20_480, true), (20_481, false)]
                .into_iter()
                .for_each(|(value, good)| check("table_offset", offset, value, good, "20480"));
            let need = it.region_bytes;
            [(need - 1, false), (need, true), (need + 1, false)]
                .into_iter()
                .for_each(|(value, good)| check("region_bytes", bytes, value, good, &need.to_string()));
            // 128 bytes in two lines: 16 of header, 2 of the second line's stamp.
            [(70, true), (90, true), (91, false), (0, true)]
                .into_iter()
                .for_each(|(value, good)| check("value_max", value_max, value, good, "90"));
            [(0, false), (1, true), (40, true)]
                .into_iter()
                .for_each(|(value, good)| check("key_max", key_max, value, good, "1"));
            // Without a heap, each key stands in its slot.
            [(0, false), (19, false), (20, true), (21, false)]
                .into_iter()
                .for_each(|(value, good)| check("key_inline", key_inline, value, good, "20"));
            [(0, false), (31, false), (96, false), (128, true), (192, true), (4096, true), (4160, false)]
                .into_iter()
                .for_each(|(value, good)| check("slot_bytes", slot, value, good, "64 to 4096"));
            // A key takes no more than its slot has, and never more than 255 bytes.
            for (slot_bytes, most, value_max) in [(128, 110, 0), (4096, 255, 70)] {
                for (key_max, good) in [(most, true), (most + 1, false)] {
                    let key_inline = key_max as u16;
                    let changed = sealed(Superblock { slot_bytes, key_max, key_inline, value_max, ..it });
                    match changed.geometry(u64::MAX) {
                        Err(SuperblockError::Field { field: "key_max", value, .. }) => {
                            assert!(!good && value == u64::from(key_max), "{key_max}");
                        }
                        other => assert!(good, "{key_max}: {other:?}"),
                    }
                }
            }
            for (have, good) in [(need - 1, false), (need, true), (need + 1, true), (0, false)] {
                let found = it.geometry(have);
                assert_eq!(found.is_ok(), good, "{have}");
                assert!(good || found == Err(SuperblockError::Truncated { have, need }));
            }
        }
    }

    /// A table with a heap says where that is. Each field of it has its limits, too.
    #[test]
    fn heaps_at_their_limits() {
        let config = Config {
            value_max: 10_000,
            heap_bytes: Some(1 << 20),
            size: TableSize::Slots(100),
            seeds: Some(Seeds::from_number(9)),
            ..Config::short()
        };
        let geometry = config.geometry().unwrap();
        let it = Superblock::new(&geometry, 1);
        // Blocks of four of the longest, in whole pages; the heap in whole blocks, from a page on.
        assert_eq!((it.block_bytes, it.heap_bytes, it.rate), (40_960, 25 * 40_960, 1_000));
        assert_eq!(it.heap_offset, geometry.slots_end().next_multiple_of(4_096));
        assert_eq!(it.region_bytes, it.heap_offset + it.heap_bytes);
        assert_eq!(it.geometry(it.region_bytes).as_ref(), Ok(&geometry));
        let refused = |field: &str, changed: Superblock| {
            let found = sealed(changed).geometry(u64::MAX);
            let is_so = matches!(&found, Err(SuperblockError::Field { field: found, .. }) if *found == field);
            assert!(is_so, "{field}: {found:?}");
        };
        refused("block_bytes", Superblock { block_bytes: 40_959, ..it });
        refused("block_bytes", Superblock { block_bytes: (1 << 36) + 4_096, ..it });
        refused("block_bytes % 4096", Superblock { block_bytes: 40_992, ..it });
        refused("heap_bytes", Superblock { heap_bytes: 40_960, ..it });
        refused("heap_bytes % block_bytes", Superblock { heap_bytes: it.heap_bytes + 1, ..it });
        refused("heap_offset", Superblock { heap_offset: it.heap_offset - 4_096, ..it });
        refused("rate", Superblock { rate: 0, ..it });
        refused("rate", Superblock { rate: 1_000_001, ..it });
        refused("region_bytes", Superblock { region_bytes: it.region_bytes - 1, ..it });
        refused("value_max", Superblock { value_max: VALUE_MAX as u32 + 1, ..it });
        refused("value_max", Superblock { heap_bytes: 0, ..it });
        // Beside the longest key that stands in its slot is a reference. There may be longer ones, up to 255 bytes.
        refused("key_max", Superblock { key_max: 256, ..it });
        refused("key_inline", Superblock { key_inline: 33, ..it });
        refused("key_inline", Superblock { key_max: 255, key_inline: 87, ..it });
        let long = Config::from(&geometry).key_max(255).key_inline(86).inline_max(24).geometry().unwrap();
        let it = Superblock::new(&long, 1);
        assert_eq!((it.key_max, it.key_inline, it.slot_bytes), (255, 86, 128));
        assert_eq!(it.geometry(it.region_bytes).as_ref(), Ok(&long));
        // In slots of half a line, and of one whose entries have a life, is no room for what there is of such a key.
        for (slot_bytes, flags, key_inline) in [(32, 0, 0), (64, FLAG_LIFE, 12)] {
            refused("key_max", Superblock { slot_bytes, flags, key_inline, ..it });
        }
        let it = Superblock::new(&geometry, 1);
        // A region that ends in its heap, or before it, is cut off.
        for have in [geometry.slots_end(), it.heap_offset, it.region_bytes - 1] {
            let need = it.region_bytes;
            assert_eq!(it.geometry(have), Err(SuperblockError::Truncated { have, need }));
        }
    }

    /// Of several wrong fields, the one that explains the others is named first. What is no region
    /// has no version, and another version has another checksum.
    #[test]
    fn the_first_cause_is_named() {
        let geometry = geometry(presets().next().unwrap().layout);
        let good = Superblock::new(&geometry, 1);
        let mut it = Superblock { homes: 0, family: 77, ..good };
        let found = |it: &Superblock| it.geometry(0).unwrap_err();
        (it.crc, it.stamp, it.version, it.magic) = (it.crc ^ 1, 7, FORMAT_VERSION + 1, 3);
        assert_eq!(found(&it), SuperblockError::Magic { found: 3 });
        it.magic = MAGIC;
        assert_eq!(found(&it), SuperblockError::Version { found: FORMAT_VERSION + 1 });
        it.version = 0;
        assert_eq!(found(&it), SuperblockError::Version { found: 0 });
        it.version = FORMAT_VERSION;
        assert_eq!(found(&it), SuperblockError::Writing { stamp: 7 });
        it.stamp = 8;
        let computed = it.computed_crc();
        assert_eq!(computed, Superblock { stamp: 0, ..it }.computed_crc(), "whatever the stamp");
        assert_eq!(found(&it), SuperblockError::Checksum { found: it.crc, computed });
        it.crc = computed;
        assert_eq!(found(&it), SuperblockError::Layout { family: 77 });
        it = sealed(Superblock { family: good.family, ..it });
        assert!(matches!(found(&it), SuperblockError::Field { field: "homes", value: 0, .. }));
        it = sealed(Superblock { homes: good.homes, ..it });
        assert_eq!(found(&it), SuperblockError::Truncated { have: 0, need: good.region_bytes });
    }
}
