//! Reads a snapshot. Any bytes give records or an error that names the byte: nothing of a block is
//! used before its CRC fits, and nothing is allocated for bytes that the file does not have.

use super::{
    BLOCK_BYTES, BLOCK_HEAD_BYTES, BLOCK_MARK, BlockHead, Counts, HEAD_BYTES, HEAD_BYTES_BEFORE, Head,
    LAST_BYTES, LAST_MARK, RECORD_HEAD, SNAPSHOT_MAGIC, SNAPSHOT_VERSION, Saved, SnapshotTerms,
    VERSIONS_BEFORE, take_record,
};
use crate::faults::{Rule, by_rule};
use crate::files::{self, FileError};
use crate::layout::LIFE_BYTES;
use crate::layout::crc;
use bytemuck::Zeroable;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It cannot be opened.
    #[error("opening the snapshot {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It stands where the server makes its own snapshots, and is not this user's alone.
    #[error("{source}; or name it by `ServerConfig::restore`, if it is to be believed")]
    File {
        /// Whose it is, or who may write to it.
        source: FileError,
    },
    /// It is something else: a folder, a pipe.
    #[error("{} is no file; name a snapshot", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
    },
    /// It does not begin as a snapshot does.
    #[error("{} is no snapshot: it does not begin with `ONESNAP`; name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Another version of this software has made it.
    #[error(
        "{} has version {found} of the format, this build reads version {SNAPSHOT_VERSION}; read it with the release that made it", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It ends too early.
    #[error("{} is cut off: it ends at byte {bytes}, within {within}; take an older one, or what is whole of this one", path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// What is not whole.
        within: &'static str,
    },
    /// It was damaged, or no server has made it.
    #[error("{} is damaged at byte {byte}: {what}; take an older one, or what is whole of this one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage was noticed: the first byte of what does not fit.
        byte: u64,
        /// What does not fit.
        what: String,
    },
    /// The disk failed.
    #[error("reading the snapshot {} at byte {byte}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where.
        byte: u64,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl From<FileError> for SnapshotError {
    fn from(error: FileError) -> SnapshotError {
        match error {
            FileError::Os { path, source, .. } => SnapshotError::Open { path, source },
            FileError::Kind { path, .. } => SnapshotError::Kind { path },
            source => SnapshotError::File { source },
        }
    }
}

/// What is in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotContent {
    /// Keys.
    pub keys: u64,
    /// Bytes of all keys and values, with their lengths.
    pub record_bytes: u64,
    /// The longest key, in bytes.
    pub longest_key: usize,
    /// The longest value, in bytes.
    pub longest_value: usize,
    /// Slots of the table that were damaged. What stood there is not in the snapshot.
    pub damaged: u64,
    /// When it was complete.
    pub ended: SystemTime,
}

/// A snapshot to be read. `Send` and `Sync`.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    file: File,
    bytes: u64,
    id: u64,
    head_bytes: u64,
    terms: SnapshotTerms,
    counts: Counts,
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

impl Snapshot {
    /// Opens a snapshot, and reads its first and its last bytes. [`Snapshot::check`] reads all.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
        let mut it = Snapshot::open_head(path)?;
        it.read_counts()?;
        Ok(it)
    }

    /// Opens a snapshot, and reads its first bytes only: for one that may be damaged
    /// ([`SnapshotBlocks::resume`]). Its [`Snapshot::content`] is not known.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn open_head(path: &Path) -> Result<Snapshot, SnapshotError> {
        let failed = |source: io::Error| SnapshotError::Open { path: path.into(), source };
        // NONBLOCK: a pipe is no file, and is not waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?.into();
        Snapshot::head_of(path, file)
    }

    /// Opens the first bytes of a snapshot that nobody has named: the one that stands where a server makes
    /// its own. Anybody could have put it there, if others may write to the folder, so it must be this
    /// user's or root's, and nobody else may write to it.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub(crate) fn open_own_head(path: &Path) -> Result<Snapshot, SnapshotError> {
        Snapshot::head_of(path, files::open_file(path, OFlags::RDONLY)?)
    }

    /// Like `open_own_head`, for all of it.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub(crate) fn open_own(path: &Path) -> Result<Snapshot, SnapshotError> {
        let mut it = Snapshot::open_own_head(path)?;
        it.read_counts()?;
        Ok(it)
    }

    fn head_of(path: &Path, file: File) -> Result<Snapshot, SnapshotError> {
        let failed = |source: io::Error| SnapshotError::Open { path: path.into(), source };
        let about = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(SnapshotError::Kind { path: path.into() });
        }
        let terms = SnapshotTerms::nothing();
        let bytes = about.st_size as u64;
        let (id, head_bytes, counts) = (0, HEAD_BYTES, Counts::default());
        let mut it = Snapshot { path: path.into(), file, bytes, id, head_bytes, terms, counts };
        it.read_head()?;
        Ok(it)
    }

    fn read_head(&mut self) -> Result<(), SnapshotError> {
        let mut head = Head::zeroed();
        let there = &mut bytemuck::bytes_of_mut(&mut head)[..HEAD_BYTES.min(self.bytes) as usize];
        self.read(there, 0)?;
        let magic = &SNAPSHOT_MAGIC[..there.len().min(SNAPSHOT_MAGIC.len())];
        if !there.starts_with(magic) || there.is_empty() {
            return Err(SnapshotError::Foreign { path: self.path.clone() });
        }
        let len = there.len() as u64;
        if len < HEAD_BYTES_BEFORE || !VERSIONS_BEFORE.contains(&head.version) && len < HEAD_BYTES {
            return Err(self.cut("the head"));
        }
        if head.version != SNAPSHOT_VERSION && !VERSIONS_BEFORE.contains(&head.version) {
            return Err(SnapshotError::Version { path: self.path.clone(), found: head.version });
        }
        if head.crc != head.sum() {
            return Err(self.damaged(0, "the head's checksum"));
        }
        self.terms = SnapshotTerms::from_head(&head)
            .map_err(|(byte, field)| self.damaged(byte, &format!("{field} is out of range")))?;
        (self.id, self.head_bytes) = (head.id, head.len());
        Ok(())
    }

    /// Reads the counts at the end. If they are not there, looks for the byte that is to blame.
    fn read_counts(&mut self) -> Result<(), SnapshotError> {
        let at = self.bytes.checked_sub(LAST_BYTES).filter(|&at| at >= self.head_bytes);
        let found = at.map(|at| self.counts_at(at)).transpose()?.flatten();
        match found {
            Some(counts) => self.counts = counts,
            None => {
                let mut blocks = self.blocks();
                while blocks.next()?.is_some() {}
                return Err(self.damaged(self.bytes.saturating_sub(LAST_BYTES), "the last block"));
            }
        }
        Ok(())
    }

    fn counts_at(&self, at: u64) -> Result<Option<Counts>, SnapshotError> {
        let (mut head, mut counts) = (BlockHead::zeroed(), Counts::zeroed());
        self.read(bytemuck::bytes_of_mut(&mut head), at)?;
        self.read(bytemuck::bytes_of_mut(&mut counts), at + BLOCK_HEAD_BYTES)?;
        let bytes = bytemuck::bytes_of(&counts);
        let is_good = head.mark == LAST_MARK
            && head.head_crc == head.sum(self.id)
            && head.bytes as usize == bytes.len()
            && head.crc == crc::append_long(0, bytes);
        Ok(is_good.then_some(counts))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The file's length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The table that it is of.
    pub fn terms(&self) -> SnapshotTerms {
        self.terms
    }
    /// What is in it, as its last block says.
    pub fn content(&self) -> SnapshotContent {
        let Counts { records, bytes, ended_ns, damaged, longest_key, longest_value } = self.counts;
        SnapshotContent {
            keys: records,
            record_bytes: bytes,
            longest_key: longest_key as usize,
            longest_value: longest_value as usize,
            damaged,
            ended: UNIX_EPOCH + Duration::from_nanos(ended_ns),
        }
    }

    /// What the server that made it would say of it.
    pub(crate) fn as_saved(&self) -> Saved {
        let SnapshotContent { keys, damaged, ended, .. } = self.content();
        let began = self.terms.began;
        let took = ended.duration_since(began).unwrap_or_default();
        Saved { began, took, keys, bytes: self.bytes, damaged, log: self.terms.log }
    }

    /// Reads every byte and checks it. `progress` hears now and then how many bytes were read.
    ///
    /// # Errors
    /// [`SnapshotError`], of the first byte that does not fit.
    pub fn check(&self, progress: &mut dyn FnMut(u64)) -> Result<SnapshotContent, SnapshotError> {
        self.check_while(&mut |at| {
            progress(at);
            true
        })?;
        Ok(self.content())
    }

    /// Like `check`. `None` if `progress` ends it early, by `false`.
    pub(crate) fn check_while(
        &self,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<SnapshotContent>, SnapshotError> {
        let mut blocks = self.blocks();
        while blocks.next()?.is_some() {
            if !progress(blocks.at()) {
                return Ok(None);
            }
        }
        Ok(Some(self.content()))
    }

    /// The blocks, from the first on. Each is checked when it is read.
    pub fn blocks(&self) -> SnapshotBlocks<'_> {
        SnapshotBlocks {
            of: self,
            at: self.head_bytes,
            number: 0,
            seen: Counts::default(),
            has_gap: false,
            is_done: false,
        }
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<(), SnapshotError> {
        self.file.read_exact_at(into, at).map_err(|source| match source.kind() {
            // It has become shorter since it was opened.
            io::ErrorKind::UnexpectedEof => self.cut("what was there when it was opened"),
            _ => SnapshotError::Read { path: self.path.clone(), byte: at, source },
        })
    }

    fn cut(&self, within: &'static str) -> SnapshotError {
        SnapshotError::Cut { path: self.path.clone(), bytes: self.bytes, within }
    }

    fn damaged(&self, byte: u64, what: &str) -> SnapshotError {
        SnapshotError::Damaged { path: self.path.clone(), byte, what: what.into() }
    }
}

/// Records whose CRC fits.
#[derive(Debug)]
pub struct SnapshotBlock {
    payload: Vec<u8>,
    /// When the table was made, if its entries have a life.
    made: Option<SystemTime>,
}

/// A key of a snapshot, its value, and all that its entry is beside these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value, as it is stored.
    pub value: &'a [u8],
    /// When the entry ends, by the time of day: the clock of another start of the machine says nothing. `None`: it does
    /// not end by itself.
    pub end: Option<SystemTime>,
    /// Whose the entry is; 0: nobody's.
    pub owner: u16,
}

impl SnapshotEntry<'_> {
    /// Whether the entry has ended by now.
    pub fn has_ended(&self, now: SystemTime) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// How long it lives from now on; zero if it has ended. `None`: it does not end by itself.
    pub fn ttl(&self, now: SystemTime) -> Option<Duration> {
        self.end.map(|end| end.duration_since(now).unwrap_or_default())
    }
}

impl SnapshotBlock {
    /// The entries: each with its end and its owner, so that who puts them again gives them both.
    pub fn entries(&self) -> impl Iterator<Item = SnapshotEntry<'_>> {
        let mut rest = &self.payload[..];
        let next = move || take_record(&mut rest);
        std::iter::from_fn(next).map(|(key, value, life)| {
            let expiry = life.zip(self.made).filter(|(life, _)| life.expiry != 0);
            let end = expiry.map(|(life, made)| made + life.end());
            let owner = life.map_or(0, |life| life.owner);
            // D8
            let (end, owner) = by_rule(Rule::EntryWhole, (end, owner), (None, 0));
            SnapshotEntry { key, value, end, owner }
        })
    }
}

/// The blocks of a snapshot, one after the other.
#[derive(Debug)]
pub struct SnapshotBlocks<'a> {
    of: &'a Snapshot,
    at: u64,
    number: u64,
    seen: Counts,
    /// Whether blocks were left out, so that the counts do not fit.
    has_gap: bool,
    is_done: bool,
}

impl SnapshotBlocks<'_> {
    /// How many bytes of the file were read.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next block. `None` at the end of a snapshot that is whole. (No `Iterator`: an error does
    /// not end it, see [`SnapshotBlocks::resume`].)
    ///
    /// # Errors
    /// [`SnapshotError`]. The next call says the same.
    #[expect(clippy::should_implement_trait, reason = "see above")]
    pub fn next(&mut self) -> Result<Option<SnapshotBlock>, SnapshotError> {
        if self.is_done {
            return Ok(None);
        }
        let (of, at) = (self.of, self.at);
        let Some(left) = of.bytes.checked_sub(at + BLOCK_HEAD_BYTES) else {
            return Err(of.cut("the head of a block"));
        };
        let mut head = BlockHead::zeroed();
        of.read(bytemuck::bytes_of_mut(&mut head), at)?;
        if head.mark != BLOCK_MARK && head.mark != LAST_MARK {
            return Err(of.damaged(at, "no block begins here"));
        }
        if head.head_crc != head.sum(of.id) {
            return Err(of.damaged(at, "the checksum of a block's head"));
        }
        if !self.has_gap && head.number != self.number {
            let what = format!("block {} stands where block {} belongs", head.number, self.number);
            return Err(of.damaged(at + 8, &what));
        }
        let is_last = head.mark == LAST_MARK;
        let bytes_max = match is_last {
            true => size_of::<Counts>(),
            false => BLOCK_BYTES + RECORD_HEAD + of.terms.key_max + of.terms.value_max + LIFE_BYTES,
        };
        if head.bytes as usize > bytes_max {
            return Err(of.damaged(at + 4, "a block is longer than any"));
        }
        if u64::from(head.bytes) > left {
            return Err(of.cut("a block"));
        }
        let start = at + BLOCK_HEAD_BYTES;
        let mut payload = Vec::new();
        while payload.len() < head.bytes as usize {
            let (have, more) = (payload.len(), (head.bytes as usize - payload.len()).min(PIECE));
            payload.resize(have + more, 0);
            of.read(&mut payload[have..], start + have as u64)?;
        }
        if head.crc != crc::append_long(0, &payload) {
            return Err(of.damaged(start, "the checksum of a block's records"));
        }
        let end = start + u64::from(head.bytes);
        if is_last {
            self.end(start, end, &payload)?;
            (self.at, self.is_done) = (end, true);
            return Ok(None);
        }
        let (mut rest, mut seen) = (&payload[..], Counts::default());
        while !rest.is_empty() {
            let byte = start + (payload.len() - rest.len()) as u64;
            let (key, value, life) =
                take_record(&mut rest).ok_or_else(|| of.damaged(byte, "the lengths of a record"))?;
            if life.is_some() != of.terms.made.is_some() {
                return Err(
                    of.damaged(byte, "a record has a life, or has none, where the head says otherwise")
                );
            }
            if key.len() > of.terms.key_max || value.len() > of.terms.value_max {
                return Err(of.damaged(byte, "a record is longer than the head allows"));
            }
            seen.records += 1;
            seen.longest_key = seen.longest_key.max(key.len() as u32);
            seen.longest_value = seen.longest_value.max(value.len() as u32);
        }
        if seen.records != u64::from(head.records) {
            return Err(of.damaged(at + 16, "a block's number of records"));
        }
        self.seen.records += seen.records;
        self.seen.bytes += payload.len() as u64;
        self.seen.longest_key = self.seen.longest_key.max(seen.longest_key);
        self.seen.longest_value = self.seen.longest_value.max(seen.longest_value);
        (self.at, self.number) = (end, head.number + 1);
        Ok(Some(SnapshotBlock { payload, made: of.terms.made }))
    }

    /// Checks what the last block says, and that it is the last.
    fn end(&self, start: u64, end: u64, payload: &[u8]) -> Result<(), SnapshotError> {
        let of = self.of;
        let counts: Counts = bytemuck::try_pod_read_unaligned(payload)
            .map_err(|_| of.damaged(start, "the length of the last block"))?;
        if end != of.bytes {
            return Err(of.damaged(end, "there are bytes behind the last block"));
        }
        let Counts { ended_ns, damaged, .. } = counts;
        if !self.has_gap && counts != (Counts { ended_ns, damaged, ..self.seen }) {
            return Err(of.damaged(start, "the counts do not fit the records"));
        }
        Ok(())
    }

    /// After an error: goes on with the next block that is whole. Returns which bytes are left out.
    /// `None` if no whole block follows.
    ///
    /// # Errors
    /// [`SnapshotError::Read`].
    pub fn resume(&mut self) -> Result<Option<Range<u64>>, SnapshotError> {
        const HEAD: usize = BLOCK_HEAD_BYTES as usize;
        let (of, from) = (self.of, self.at);
        self.has_gap = true;
        let mut at = from + 1;
        let mut piece = Vec::new();
        while at + BLOCK_HEAD_BYTES <= of.bytes {
            piece.resize((of.bytes - at).min(PIECE as u64) as usize, 0);
            of.read(&mut piece, at)?;
            for start in 0..piece.len().saturating_sub(HEAD - 1) {
                let head: BlockHead = bytemuck::pod_read_unaligned(&piece[start..start + HEAD]);
                if (head.mark == BLOCK_MARK || head.mark == LAST_MARK) && head.head_crc == head.sum(of.id) {
                    self.at = at + start as u64;
                    match self.next_is_whole() {
                        Err(SnapshotError::Read { path, byte, source }) => {
                            return Err(SnapshotError::Read { path, byte, source });
                        }
                        Ok(true) => return Ok(Some(from..self.at)),
                        _ => {}
                    }
                }
            }
            at += (piece.len() - (HEAD - 1)) as u64;
        }
        (self.at, self.is_done) = (of.bytes, true);
        Ok(None)
    }

    /// Whether the next block is whole. Does not take it.
    fn next_is_whole(&self) -> Result<bool, SnapshotError> {
        let mut probe = SnapshotBlocks { ..*self };
        probe.next().map(|_| true)
    }
}

impl SnapshotTerms {
    /// Stands in until the head is read.
    fn nothing() -> SnapshotTerms {
        let config = crate::config::Config::default();
        SnapshotTerms {
            layout: config.layout,
            main_slots: 0,
            bytes_max: None,
            key_max: 0,
            value_max: 0,
            slot_bytes: 0,
            heap_bytes: 0,
            grace: Duration::ZERO,
            generation: 0,
            incarnation: 0,
            began: UNIX_EPOCH,
            made: None,
            has_owners: false,
            log: None,
        }
    }
}
