//! The bytes of a log's files: a head, and records. `docs/FORMAT.md` has them.
//!
//! ```text
//! head | record | record | ...                 one file, named by the number of its first record
//! record: head (length, CRC, number, how far) | kind, key's length, owner, end | key | value
//! ```
//!
//! A record says what its key has *after* a change, never by how much it changed. So records that were applied already
//! may be applied again.

use crate::layout::crc;
use bytemuck::{Pod, Zeroable};

/// The first bytes of a file.
const LOG_MAGIC: [u8; 8] = *b"ONELOG\0\0";
/// Version of the format.
const LOG_VERSION: u16 = 1;
pub(super) const FILE_HEAD_BYTES: usize = size_of::<FileHead>();
pub(super) const RECORD_HEAD_BYTES: usize = size_of::<LoggedHead>();
/// Bytes of a record's body before its key.
pub(super) const BODY_HEAD: usize = 8;
/// The longest body: the longest key, the longest value.
pub(super) const BODY_BYTES_MAX: usize = BODY_HEAD + 255 + (64 << 20);
const _: () = assert!(FILE_HEAD_BYTES == 64 && RECORD_HEAD_BYTES == 32);

/// The table that a file's records are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedTable {
    /// The table's number, drawn when it was made.
    pub generation: u64,
    /// Which server process of it wrote the file.
    pub incarnation: u64,
    /// When the table was made, in nanoseconds since 1970: ends of entries count from then on. 0: entries have none.
    pub made_ns: u64,
    /// Which boot of the machine it was; 0: the system does not say.
    pub boot: u64,
}

/// When the changes of a file's records were visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visible {
    /// When the disk had their records (K1): the log has all that a table of its server's had.
    OnDisk = 0,
    /// At once: a table that outlives its server may have more than the log (K10).
    AtOnce = 1,
}

/// The head of a file, as the file has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct FileHead {
    magic: [u8; 8],
    version: u16,
    /// A number of [`Visible`].
    visible: u16,
    /// CRC-32C of all other bytes of the head.
    crc: u32,
    /// Of the log, random: the same in all its files.
    pub id: u64,
    /// The number of the first record.
    pub first: u64,
    generation: u64,
    incarnation: u64,
    made_ns: u64,
    boot: u64,
}

impl FileHead {
    pub fn new(id: u64, first: u64, table: LoggedTable, visible: Visible) -> FileHead {
        let LoggedTable { generation, incarnation, made_ns, boot } = table;
        let head = FileHead {
            magic: LOG_MAGIC,
            version: LOG_VERSION,
            visible: visible as u16,
            crc: 0,
            id,
            first,
            generation,
            incarnation,
            made_ns,
            boot,
        };
        FileHead { crc: head.sum(), ..head }
    }

    pub fn table(&self) -> LoggedTable {
        let FileHead { generation, incarnation, made_ns, boot, .. } = *self;
        LoggedTable { generation, incarnation, made_ns, boot }
    }

    pub fn visible(&self) -> Visible {
        if self.visible == Visible::OnDisk as u16 { Visible::OnDisk } else { Visible::AtOnce }
    }

    fn sum(&self) -> u32 {
        let bytes = bytemuck::bytes_of(self);
        crc::append(crc::append(0, &bytes[..12]), &bytes[16..])
    }

    /// The head that these bytes begin with. `Err`: what is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<FileHead, HeadError> {
        let Some(bytes) = bytes.first_chunk::<FILE_HEAD_BYTES>() else { return Err(HeadError::Short) };
        let head: FileHead = bytemuck::pod_read_unaligned(bytes);
        if head.magic != LOG_MAGIC {
            return Err(HeadError::Magic);
        }
        if head.version > LOG_VERSION {
            return Err(HeadError::Version(head.version.into()));
        }
        if head.version != LOG_VERSION || head.crc != head.sum() {
            return Err(HeadError::Crc);
        }
        Ok(head)
    }
}

/// What is wrong with the head of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    Short,
    Magic,
    Version(u32),
    Crc,
}

/// The head of a record, as the file has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct LoggedHead {
    /// Bytes of the body, which follows.
    pub bytes: u32,
    /// CRC-32C of the body, the log's id, and the three numbers.
    crc: u32,
    /// The record's number, from 1 on, without gaps.
    pub number: u64,
    /// All records below this one were visible in the table when this one was written (K3).
    pub applied: u64,
    /// All records below this one were on the disk when this one was written (K5).
    pub durable: u64,
}

impl LoggedHead {
    fn sum(&self, id: u64, body: u32) -> u32 {
        let LoggedHead { bytes, number, applied, durable, .. } = *self;
        let words = [id, u64::from(bytes), number, applied, durable];
        crc::append(body, bytemuck::bytes_of(&words))
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecord<'a> {
    /// The key has this value.
    Put {
        key: &'a [u8],
        value: &'a [u8],
        /// Whose the entry is; 0: nobody's.
        owner: u16,
        /// The tick with which the entry ends; 0: it does not end by itself.
        expiry: u32,
    },
    /// The key is absent.
    Remove { key: &'a [u8] },
    /// No entry is this owner's.
    OwnerGone { owner: u16 },
}

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const OWNER_GONE: u8 = 3;

impl LogRecord<'_> {
    /// Appends the record's body behind room for its head. Returns the CRC of the body.
    pub fn write(&self, out: &mut Vec<u8>) -> u32 {
        let (kind, key, value, owner, expiry) = match *self {
            LogRecord::Put { key, value, owner, expiry } => (PUT, key, value, owner, expiry),
            LogRecord::Remove { key } => (REMOVE, key, &[][..], 0, 0),
            LogRecord::OwnerGone { owner } => (OWNER_GONE, &[][..], &[][..], owner, 0),
        };
        out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
        let start = out.len();
        out.extend_from_slice(&[kind, key.len() as u8]);
        out.extend_from_slice(&owner.to_le_bytes());
        out.extend_from_slice(&expiry.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
        crc::append(0, &out[start..])
    }

    /// Bytes of the record in its file.
    pub fn bytes(&self) -> u64 {
        let rest = match self {
            LogRecord::Put { key, value, .. } => key.len() + value.len(),
            LogRecord::Remove { key } => key.len(),
            LogRecord::OwnerGone { .. } => 0,
        };
        (RECORD_HEAD_BYTES + BODY_HEAD + rest) as u64
    }

    /// The record in a body whose CRC fits. `None`: a later version has written it.
    pub fn read(body: &[u8]) -> Option<LogRecord<'_>> {
        let (head, rest) = body.split_first_chunk::<BODY_HEAD>()?;
        let [kind, key_len, a, b, expiry @ ..] = *head;
        let (owner, expiry) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(expiry));
        let (key, value) = rest.split_at_checked(key_len.into())?;
        match kind {
            PUT if !key.is_empty() => Some(LogRecord::Put { key, value, owner, expiry }),
            REMOVE if !key.is_empty() && value.is_empty() => Some(LogRecord::Remove { key }),
            OWNER_GONE if rest.is_empty() => Some(LogRecord::OwnerGone { owner }),
            _ => None,
        }
    }
}

/// Writes the head of a record whose body stands behind it.
pub(super) fn finish(record: &mut [u8], id: u64, body_crc: u32, number: u64, applied: u64, durable: u64) {
    let (place, body) = record.split_at_mut(RECORD_HEAD_BYTES);
    let head = LoggedHead { bytes: body.len() as u32, crc: 0, number, applied, durable };
    let head = LoggedHead { crc: head.sum(id, body_crc), ..head };
    place.copy_from_slice(bytemuck::bytes_of(&head));
}

/// The record that these bytes begin with: its head, and its body. `None`: none that is whole.
pub(super) fn read_record(bytes: &[u8], id: u64) -> Option<(LoggedHead, &[u8])> {
    let (head, body) = unchecked_record(bytes)?;
    is_whole(&head, body, id).then_some((head, body))
}

/// Likewise, if its CRC fits, which is not looked at. `None`: it has another length.
pub(super) fn unchecked_record(bytes: &[u8]) -> Option<(LoggedHead, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>()?;
    let head: LoggedHead = bytemuck::pod_read_unaligned(head);
    let len = head.bytes as usize;
    let body = rest.get(..len)?;
    (BODY_HEAD..=BODY_BYTES_MAX).contains(&len).then_some((head, body))
}

/// Whether a record's CRC fits.
pub(super) fn is_whole(head: &LoggedHead, body: &[u8], id: u64) -> bool {
    head.crc == head.sum(id, crc::append(0, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(record: &LogRecord<'_>, number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let crc = record.write(&mut out);
        finish(&mut out, 7, crc, number, number - 1, number - 2);
        out
    }

    /// What was written is read, and nothing else: not of another log, not with a bit changed, not when it is cut.
    #[test]
    fn records_are_read_as_written() {
        let all = [
            LogRecord::Put { key: b"key", value: b"some value", owner: 3, expiry: 99 },
            LogRecord::Put { key: &[9; 255], value: b"", owner: 0, expiry: 0 },
            LogRecord::Remove { key: b"k" },
            LogRecord::OwnerGone { owner: u16::MAX },
        ];
        for record in all {
            let bytes = framed(&record, 12);
            let (head, body) = read_record(&bytes, 7).unwrap();
            assert_eq!((head.number, head.applied, head.durable), (12, 11, 10));
            assert_eq!(LogRecord::read(body), Some(record));
            assert!(read_record(&bytes, 8).is_none(), "another log's");
            for cut in 0..bytes.len() {
                assert!(read_record(&bytes[..cut], 7).is_none(), "{record:?} cut at {cut}");
            }
            for bit in 0..8 * bytes.len() {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(read_record(&bad, 7).is_none(), "{record:?} with bit {bit} changed");
            }
        }
        assert_eq!(LogRecord::read(&[4, 0, 0, 0, 0, 0, 0, 0]), None, "of a later version");
        assert_eq!(LogRecord::read(&[1, 3, 0, 0, 0, 0, 0, 0, b'k']), None, "a key that is not all there");
    }

    #[test]
    fn heads_are_read_as_written() {
        let table = LoggedTable { generation: 1, incarnation: 2, made_ns: 3, boot: 4 };
        for visible in [Visible::OnDisk, Visible::AtOnce] {
            let head = FileHead::new(5, 6, table, visible);
            let head = FileHead::read(bytemuck::bytes_of(&head)).unwrap();
            assert_eq!((head.id, head.first, head.table(), head.visible()), (5, 6, table, visible));
        }
        let bytes = bytemuck::bytes_of(&FileHead::new(5, 6, table, Visible::OnDisk)).to_vec();
        assert_eq!(FileHead::read(&bytes[..63]).unwrap_err(), HeadError::Short);
        for bit in 0..8 * bytes.len() {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHead::read(&bad).is_err(), "bit {bit}");
        }
    }
}
