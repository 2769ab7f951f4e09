//! Snapshots: all keys and values of a table in one file. `docs/FORMAT.md` has its bytes.
//!
//! ```text
//! head | block | block | ... | last block (counts) | end of file
//! ```
//!
//! * `write` makes the file: under another name at first, so that the old file stays until the new
//!   one is whole and on the disk.
//! * `read` takes any bytes. Nothing of a block is used before its CRC fits, and no more memory is
//!   taken than the file has bytes.
//! * `index/whole/snapshot.rs` has `index/whole/walk.rs` show the keys (D1, D2), and puts them into a table again.
//! * `server/snapshots.rs` decides when.

mod read;
mod write;

pub use read::{Snapshot, SnapshotBlock, SnapshotBlocks, SnapshotContent, SnapshotEntry, SnapshotError};
pub use write::{SaveError, SaveStep, Saved};
pub(crate) use write::{SnapshotPath, SnapshotWriter};

use crate::layout::crc;
use crate::layout::geometry::{Family, GRACE_MAX, Geometry, Layout};
use crate::layout::life::Life;
use bytemuck::{Pod, Zeroable};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first bytes of a snapshot.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"ONESNAP\0";
/// Version of the format.
pub const SNAPSHOT_VERSION: u32 = 5;
/// The versions before are read as well: one whose entries have no life, one that does not say whether they may have
/// owners, and one that knows no log.
const VERSIONS_BEFORE: [u32; 3] = [VERSION_WITHOUT_LIFE, VERSION_WITHOUT_OWNERS, 4];
const VERSION_WITHOUT_LIFE: u32 = 2;
const VERSION_WITHOUT_OWNERS: u32 = 3;
/// In the length of a record's value: the entry's life stands behind the value.
const WITH_LIFE: u32 = 1 << 31;
/// In the head's flags: the table's entries may have owners.
const WITH_OWNERS: u64 = 1;

/// A block of records begins with this.
const BLOCK_MARK: u32 = u32::from_le_bytes(*b"BLCK");
/// The last block begins with this.
const LAST_MARK: u32 = u32::from_le_bytes(*b"LAST");

/// A block ends with the record that makes it this long: large enough for the disk, small enough to
/// keep some in memory.
const BLOCK_BYTES: usize = 256 << 10;
/// The longest value that the format allows. Tables of today take far less.
const VALUE_BYTES_MAX: u32 = 64 << 20;
/// The longest key that the format allows.
const KEY_BYTES_MAX: u32 = 255;
/// Bytes of a record before its key: two lengths.
const RECORD_HEAD: usize = 8;

const HEAD_BYTES: u64 = size_of::<Head>() as u64;
/// In the versions before.
const HEAD_BYTES_BEFORE: u64 = 128;
const _: () = assert!(HEAD_BYTES == 144 && BLOCK_HEAD_BYTES == 32 && LAST_BYTES == 72);
const BLOCK_HEAD_BYTES: u64 = size_of::<BlockHead>() as u64;
const LAST_BYTES: u64 = BLOCK_HEAD_BYTES + size_of::<Counts>() as u64;

/// The head of a snapshot, as the file has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Head {
    magic: [u8; 8],
    version: u32,
    /// CRC-32C of all other bytes of the head.
    crc: u32,
    /// Random. The heads of all blocks are bound to it.
    id: u64,
    generation: u64,
    incarnation: u64,
    began_ns: u64,
    family: u32,
    choices: u32,
    bucket_slots: u32,
    window_buckets: u32,
    block_slots: u32,
    key_max: u32,
    value_max: u32,
    slot_bytes: u32,
    main_slots: u64,
    grace_ns: u64,
    bytes_max: u64,
    heap_bytes: u64,
    /// Of a table whose entries have a life: when it was made.
    made_ns: u64,
    /// [`WITH_OWNERS`], or 0.
    flags: u64,
    /// Of the table's log, and the first record that may not be in the snapshot. 0: the table had none.
    log_id: u64,
    log_from: u64,
}

/// The head of a block, as the file has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct BlockHead {
    mark: u32,
    /// Bytes of records that follow.
    bytes: u32,
    /// Number of the block, from 0 on.
    number: u64,
    records: u32,
    /// CRC-32C of the records.
    crc: u32,
    reserved: u32,
    /// CRC-32C of the snapshot's `id` and of the bytes before this field.
    head_crc: u32,
}

/// What the last block holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Counts {
    records: u64,
    /// Bytes of all records.
    bytes: u64,
    ended_ns: u64,
    /// Slots that were damaged in the table. What stood there is not in the snapshot.
    damaged: u64,
    longest_key: u32,
    longest_value: u32,
}

impl Head {
    /// Bytes of the head, as its version has it.
    fn len(&self) -> u64 {
        if VERSIONS_BEFORE.contains(&self.version) { HEAD_BYTES_BEFORE } else { HEAD_BYTES }
    }

    fn sum(&self) -> u32 {
        let bytes = &bytemuck::bytes_of(self)[..self.len() as usize];
        crc::append(crc::append(0, &bytes[..12]), &bytes[16..])
    }
}

impl BlockHead {
    fn new(mark: u32, id: u64, number: u64, records: u32, payload: &[u8]) -> BlockHead {
        let bytes = payload.len() as u32;
        let crc = crc::append_long(0, payload);
        let head = BlockHead { mark, bytes, number, records, crc, reserved: 0, head_crc: 0 };
        BlockHead { head_crc: head.sum(id), ..head }
    }

    fn sum(&self, id: u64) -> u32 {
        crc::append(crc::append(0, &id.to_le_bytes()), &bytemuck::bytes_of(self)[..28])
    }
}

/// The table that a snapshot is of. A table of another layout or size can take its keys, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotTerms {
    /// How its keys were placed.
    pub layout: Layout,
    /// The number of its main slots when the snapshot began.
    pub main_slots: u64,
    /// The most bytes that it could come to take, if it could grow.
    pub bytes_max: Option<u64>,
    /// The longest key that it took, in bytes.
    pub key_max: usize,
    /// The longest value that it took, in bytes.
    pub value_max: usize,
    /// Bytes of its slots; 0 in a snapshot of an older version.
    pub slot_bytes: usize,
    /// Memory that it had for values that do not fit their slots, in bytes.
    pub heap_bytes: u64,
    /// Its grace time.
    pub grace: Duration,
    /// Its number, drawn when it was made.
    pub generation: u64,
    /// Which server process of it made the snapshot.
    pub incarnation: u64,
    /// When the snapshot began. Every change acknowledged before is in it.
    pub began: SystemTime,
    /// When the table was made, if its entries have a life: their times count from then on.
    pub made: Option<SystemTime>,
    /// Whether its entries may have owners. `false` in a snapshot of an older version, which does not say it.
    pub has_owners: bool,
    /// Where its log goes on from the snapshot, if it has one.
    pub log: Option<LogPosition>,
}

/// A record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// The log's number, random.
    pub id: u64,
    /// The first record whose change may not be in the snapshot.
    pub from: u64,
}

impl SnapshotTerms {
    pub(crate) fn of(geometry: &Geometry, incarnation: u64, began: SystemTime) -> SnapshotTerms {
        SnapshotTerms {
            layout: geometry.layout(),
            main_slots: geometry.main_slots(),
            bytes_max: geometry.grows().then(|| geometry.slots_end()),
            key_max: geometry.key_max(),
            value_max: geometry.value_max(),
            slot_bytes: geometry.shape().bytes(),
            heap_bytes: geometry.heap().bytes,
            grace: geometry.grace(),
            generation: geometry.generation(),
            incarnation,
            began,
            made: None,
            has_owners: geometry.has_owners(),
            log: None,
        }
    }

    fn to_head(self, id: u64) -> Head {
        let Layout { family, choices, bucket_slots, window_buckets, block_slots } = self.layout;
        let head = Head {
            magic: SNAPSHOT_MAGIC,
            version: SNAPSHOT_VERSION,
            crc: 0,
            id,
            generation: self.generation,
            incarnation: self.incarnation,
            began_ns: since_1970(self.began),
            family: family as u32,
            choices,
            bucket_slots,
            window_buckets,
            block_slots,
            key_max: self.key_max as u32,
            value_max: self.value_max as u32,
            slot_bytes: self.slot_bytes as u32,
            main_slots: self.main_slots,
            grace_ns: self.grace.as_nanos() as u64,
            bytes_max: self.bytes_max.unwrap_or(0),
            heap_bytes: self.heap_bytes,
            made_ns: self.made.map_or(0, since_1970),
            flags: if self.has_owners { WITH_OWNERS } else { 0 },
            log_id: self.log.map_or(0, |log| log.id),
            log_from: self.log.map_or(0, |log| log.from),
        };
        Head { crc: head.sum(), ..head }
    }

    /// The terms in a head whose CRC fits. Else the byte of the field that is out of range, and its
    /// name.
    fn from_head(head: &Head) -> Result<SnapshotTerms, (u64, &'static str)> {
        let family = Family::from_number(head.family).ok_or((48, "family"))?;
        let Head { choices, bucket_slots, window_buckets, block_slots, .. } = *head;
        let layout = Layout { family, choices, bucket_slots, window_buckets, block_slots };
        layout.check().map_err(|bad| (52, bad.field))?;
        let grace = Duration::from_nanos(head.grace_ns);
        for (is_good, at, field) in [
            ((1..=KEY_BYTES_MAX).contains(&head.key_max), 68, "key_max"),
            (head.value_max <= VALUE_BYTES_MAX, 72, "value_max"),
            (head.main_slots > 0, 80, "main_slots"),
            (grace <= GRACE_MAX, 88, "grace_ns"),
        ] {
            if !is_good {
                return Err((at, field));
            }
        }
        Ok(SnapshotTerms {
            layout,
            main_slots: head.main_slots,
            bytes_max: Some(head.bytes_max).filter(|&bytes| bytes > 0),
            key_max: head.key_max as usize,
            value_max: head.value_max as usize,
            slot_bytes: head.slot_bytes as usize,
            heap_bytes: head.heap_bytes,
            grace,
            generation: head.generation,
            incarnation: head.incarnation,
            began: UNIX_EPOCH + Duration::from_nanos(head.began_ns),
            made: Some(head.made_ns)
                .filter(|&ns| ns > 0 && head.version != VERSION_WITHOUT_LIFE)
                .map(|ns| UNIX_EPOCH + Duration::from_nanos(ns)),
            has_owners: head.version > VERSION_WITHOUT_OWNERS && head.flags & WITH_OWNERS != 0,
            log: (head.version == SNAPSHOT_VERSION && head.log_id != 0)
                .then_some(LogPosition { id: head.log_id, from: head.log_from }),
        })
    }
}

/// Nanoseconds from 1970 on.
pub(crate) fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Appends a record.
fn append_record(out: &mut Vec<u8>, (key, value, life): Record<'_>) {
    let flag = if life.is_some() { WITH_LIFE } else { 0 };
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32 | flag).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out.extend(life.map(Life::to_bytes).iter().flatten());
}

/// A key, its value, and the entry's life.
pub(crate) type Record<'a> = (&'a [u8], &'a [u8], Option<Life>);

/// Takes the first record off. `None` if the bytes do not begin with a whole one.
fn take_record<'a>(bytes: &mut &'a [u8]) -> Option<Record<'a>> {
    let (klen, rest) = bytes.split_first_chunk()?;
    let (vlen, rest) = rest.split_first_chunk()?;
    let (klen, vlen) = (u32::from_le_bytes(*klen), u32::from_le_bytes(*vlen));
    let (vlen, has_life) = (vlen & !WITH_LIFE, vlen & WITH_LIFE != 0);
    if !(1..=KEY_BYTES_MAX).contains(&klen) || vlen > VALUE_BYTES_MAX {
        return None;
    }
    let (key, rest) = rest.split_at_checked(klen as usize)?;
    let (value, rest) = rest.split_at_checked(vlen as usize)?;
    let (life, rest) = match has_life {
        true => rest.split_first_chunk().map(|(life, rest)| (Some(Life::from_bytes(*life)), rest))?,
        false => (None, rest),
    };
    *bytes = rest;
    Some((key, value, life))
}

#[cfg(all(test, not(loom)))]
mod tests;
