//! Writes a snapshot: blocks behind a head, under another name. When all is on the disk, the file
//! takes the place of the old one.

use super::{
    BLOCK_BYTES, BLOCK_MARK, BlockHead, Counts, LAST_MARK, LogPosition, Record, SnapshotTerms, append_record,
    since_1970, take_record,
};
use crate::base::random;
use crate::files::{self, FileError, LockFile};
use crate::region::room;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// A step of writing a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum SaveStep {
    /// Making the file beside the old one.
    Make = 1,
    /// Writing into it.
    Write = 2,
    /// Waiting until the disk has it.
    Sync = 3,
    /// Putting it into the place of the old one.
    Rename = 4,
    /// Waiting until the disk has the name, when the new one already stands there.
    SyncName = 5,
    /// A step that this version does not know.
    Other = 0,
}

impl SaveStep {
    pub(crate) fn from_number(number: u32) -> SaveStep {
        let all = [SaveStep::Make, SaveStep::Write, SaveStep::Sync, SaveStep::Rename, SaveStep::SyncName];
        all.into_iter().find(|&step| step as u32 == number).unwrap_or(SaveStep::Other)
    }
}

impl std::fmt::Display for SaveStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SaveStep::Make => "making the file",
            SaveStep::Write => "writing the file",
            SaveStep::Sync => "waiting for the disk",
            SaveStep::Rename => "renaming the file",
            SaveStep::SyncName => "waiting for the disk to have the name",
            SaveStep::Other => "an unknown step",
        })
    }
}

/// Why a snapshot was not made. The one that was there before is still there, but for a failed
/// [`SaveStep::SyncName`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A system call failed.
    #[error("{step}, for the snapshot {}; {old}{mend}", path.display(), old = stays(*step), mend = mend(source))]
    Os {
        /// What was tried.
        step: SaveStep,
        /// The snapshot's path.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// What stands at the path, or beside it, is not to be replaced.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another server, or another call, has this path.
    #[error(
        "another process has the lock {}: a server that makes snapshots at {}, as a rule; stop that one (`fuser` and the lock's name show its number), or name another path",
        lock.display(),
        path.display()
    )]
    Busy {
        /// The snapshot's path.
        path: PathBuf,
        /// The file with the lock.
        lock: PathBuf,
    },
    /// The server is stopping. It makes a last snapshot when no change can come any more.
    #[error("the snapshot was broken off, because the server is stopping; {OLD_STAYS}")]
    BrokenOff,
}

/// Also where there never was one.
const OLD_STAYS: &str = "a snapshot that was made before is still there";

fn stays(step: SaveStep) -> &'static str {
    match step {
        SaveStep::SyncName => "it is there, but if the machine stops now, the last one may come back",
        _ => OLD_STAYS,
    }
}

fn mend(error: &io::Error) -> String {
    let own = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some room, or name a path on another disk"
        }
        io::ErrorKind::NotFound => "; make its folder",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let this user write to its folder, or name another path"
        }
        _ => return crate::error::mend::of(error).map_or(String::new(), |mend| format!("; {mend}")),
    };
    own.into()
}

impl SaveError {
    /// The step that failed, and the operating system's number of the error, or of a similar one.
    pub(crate) fn code(&self) -> (SaveStep, i32) {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        match self {
            SaveError::Os { step, source, .. } => (*step, number(source)),
            SaveError::File(FileError::Os { source, .. }) => (SaveStep::Make, number(source)),
            SaveError::File(_) => (SaveStep::Make, Errno::PERM.raw_os_error()),
            SaveError::Busy { .. } => (SaveStep::Make, Errno::BUSY.raw_os_error()),
            SaveError::BrokenOff => (SaveStep::Write, Errno::CANCELED.raw_os_error()),
        }
    }
}

/// A snapshot that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// When it began. Every change acknowledged before is in it.
    pub began: SystemTime,
    /// How long it took, until the disk had it.
    pub took: Duration,
    /// Keys in it.
    pub keys: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Slots of the table that were damaged. What stood there is not in the snapshot. 0 unless
    /// somebody else has written into the region.
    pub damaged: u64,
    /// Where the table's log goes on from it, if it has one.
    pub log: Option<LogPosition>,
}

/// The path of a snapshot, locked: nobody else makes snapshots there meanwhile.
#[derive(Debug)]
pub(crate) struct SnapshotPath {
    path: PathBuf,
    folder: PathBuf,
    /// The file's name until it is whole.
    partial: PathBuf,
    #[allow(dead_code, reason = "held until it is dropped")]
    pub(super) lock: LockFile,
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A server that stops, or a look at the lock, may have it for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

impl SnapshotPath {
    /// Locks the path of a snapshot, and finds out whether a file can be made there.
    ///
    /// # Errors
    /// [`SaveError`]; nothing has changed, but that there may be a file with the lock.
    pub fn claim(path: &Path) -> Result<SnapshotPath, SaveError> {
        // What is no file is not to be replaced by one: a link that somebody made on purpose, a device.
        match std::fs::symlink_metadata(path) {
            Ok(about) if !about.is_file() => {
                return Err(FileError::Kind { path: path.into(), expected: "file" }.into());
            }
            _ => {}
        }
        if path.file_name().is_none() {
            return Err(FileError::Kind { path: path.into(), expected: "file" }.into());
        }
        let path = &files::fixed(path);
        let folder = path.parent().unwrap_or(Path::new("/"));
        let lock = LockFile::take(path, LOCK_WITHIN).map_err(|error| match error {
            FileError::Os { source, .. } => SaveError::Os { step: SaveStep::Make, path: path.into(), source },
            error => error.into(),
        })?;
        let lock = lock.ok_or_else(|| SaveError::Busy { path: path.into(), lock: beside(path, ".lock") })?;
        let target = SnapshotPath {
            path: path.into(),
            folder: folder.into(),
            partial: beside(path, ".partial"),
            lock,
        };
        drop(target.make().map_err(|source| target.failed(SaveStep::Make, source))?);
        let _ = std::fs::remove_file(&target.partial);
        Ok(target)
    }

    /// The snapshot's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file under its first name, for this user alone. What a killed server left is removed.
    fn make(&self) -> io::Result<File> {
        match std::fs::remove_file(&self.partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.partial, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    fn failed(&self, step: SaveStep, source: io::Error) -> SaveError {
        SaveError::Os { step, path: self.path.clone(), source }
    }
}

/// Bytes after which the disk is asked to take what was written, and the pages are given back. So the
/// disk works all the while, and a snapshot takes little of the machine's memory.
const SYNC_BYTES: u64 = 32 << 20;

/// A thread that waits for the disk while the next blocks are written.
#[derive(Debug)]
struct Syncing {
    /// How far the file was written. Has room for one: so at most three times [`SYNC_BYTES`] are on
    /// their way to the disk.
    written: SyncSender<u64>,
    thread: JoinHandle<io::Result<()>>,
}

impl Syncing {
    /// `None` if there is no thread for it. Then only the end waits for the disk.
    fn start(file: &File) -> Option<Syncing> {
        let file = file.try_clone().ok()?;
        let (written, to_sync) = sync_channel(1);
        let work = move || {
            let mut done = 0;
            for end in to_sync {
                file.sync_data()?;
                // The pages are on the disk. Nobody reads them here. A refusal costs memory only.
                let _ = rustix::fs::fadvise(&file, done, NonZeroU64::new(end - done), Advice::DontNeed);
                done = end;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("oneread-sync".into()).spawn(work).ok()?;
        Some(Syncing { written, thread })
    }

    /// Waits until the thread has ended. An error of the disk is told once, to whoever asks first: so
    /// the thread's counts as much as that of the last wait.
    fn end(self) -> io::Result<()> {
        drop(self.written);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Writes one snapshot. If this is dropped before [`SnapshotWriter::finish`], nothing is left of it.
#[derive(Debug)]
pub(crate) struct SnapshotWriter<'a> {
    target: &'a SnapshotPath,
    file: Option<File>,
    syncing: Option<Syncing>,
    id: u64,
    began: Instant,
    began_at: SystemTime,
    log: Option<LogPosition>,
    /// Records that no block has yet.
    records: Vec<u8>,
    blocks: u64,
    /// Bytes of the file.
    written: u64,
    /// Bytes of it that the disk was asked to take.
    asked: u64,
    counts: Counts,
}

impl Drop for SnapshotWriter<'_> {
    fn drop(&mut self) {
        let _ = self.syncing.take().map(Syncing::end);
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.target.partial);
        }
    }
}

impl<'a> SnapshotWriter<'a> {
    /// Begins a snapshot of a table with these terms.
    pub fn new(target: &'a SnapshotPath, terms: SnapshotTerms) -> Result<SnapshotWriter<'a>, SaveError> {
        let id = random::number().map_err(|source| target.failed(SaveStep::Make, source))?;
        let file = target.make().map_err(|source| target.failed(SaveStep::Make, source))?;
        let mut writer = SnapshotWriter {
            target,
            syncing: Syncing::start(&file),
            file: Some(file),
            id,
            began: Instant::now(),
            began_at: terms.began,
            log: terms.log,
            records: Vec::with_capacity(2 * BLOCK_BYTES),
            blocks: 0,
            written: 0,
            asked: 0,
            counts: Counts::default(),
        };
        writer.put(bytemuck::bytes_of(&terms.to_head(id)))?;
        Ok(writer)
    }

    /// Takes a record. Only copies it: the caller holds locks.
    #[inline]
    pub fn take(&mut self, record: Record<'_>) {
        let (key, value, _) = record;
        append_record(&mut self.records, record);
        self.counts.longest_key = self.counts.longest_key.max(key.len() as u32);
        self.counts.longest_value = self.counts.longest_value.max(value.len() as u32);
    }

    /// Writes whole blocks, if there are enough records. Returns whether it did. The caller holds no
    /// lock.
    pub fn flush(&mut self) -> Result<bool, SaveError> {
        let is_due = self.records.len() >= BLOCK_BYTES;
        if is_due {
            self.write_blocks(BLOCK_BYTES)?;
        }
        Ok(is_due)
    }

    /// Writes blocks until fewer bytes than `left` have none.
    fn write_blocks(&mut self, left: usize) -> Result<(), SaveError> {
        let all = std::mem::take(&mut self.records);
        let mut rest = &all[..];
        while !rest.is_empty() && rest.len() >= left {
            let (block, mut records) = (rest, 0);
            while !rest.is_empty() && block.len() - rest.len() < BLOCK_BYTES {
                take_record(&mut rest).expect("whole records");
                records += 1;
            }
            self.write_block(BLOCK_MARK, records, &block[..block.len() - rest.len()])?;
            self.counts.records += u64::from(records);
        }
        let rest = all.len() - rest.len()..;
        self.records = all;
        self.records.copy_within(rest.clone(), 0);
        self.records.truncate(self.records.len() - rest.start);
        Ok(())
    }

    fn write_block(&mut self, mark: u32, records: u32, payload: &[u8]) -> Result<(), SaveError> {
        let head = BlockHead::new(mark, self.id, self.blocks, records, payload);
        self.blocks += 1;
        self.counts.bytes += if mark == BLOCK_MARK { payload.len() as u64 } else { 0 };
        self.put(bytemuck::bytes_of(&head))?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SaveError> {
        let file = self.file.as_mut().expect("it is open until the end");
        let written =
            room::check_length(self.written + bytes.len() as u64).and_then(|()| file.write_all(bytes));
        written.map_err(|source| self.target.failed(SaveStep::Write, source))?;
        self.written += bytes.len() as u64;
        if self.written - self.asked >= SYNC_BYTES
            && let Some(syncing) = &self.syncing
        {
            self.asked = self.written;
            if syncing.written.send(self.written).is_err() {
                // The thread has ended, so it has failed.
                let ended = self.syncing.take().map_or(Ok(()), Syncing::end);
                return ended.map_err(|source| self.target.failed(SaveStep::Sync, source));
            }
        }
        Ok(())
    }

    /// Writes the rest and the counts, waits for the disk, and puts the file into its place. So many
    /// slots of the table were damaged.
    pub fn finish(mut self, damaged: u64) -> Result<Saved, SaveError> {
        self.write_blocks(0)?;
        let counts = Counts { ended_ns: since_1970(SystemTime::now()), damaged, ..self.counts };
        self.write_block(LAST_MARK, 0, bytemuck::bytes_of(&counts))?;
        let target = self.target;
        let failed = |step| move |source| target.failed(step, source);
        self.syncing.take().map_or(Ok(()), Syncing::end).map_err(failed(SaveStep::Sync))?;
        let file = self.file.as_ref().expect("it is open until the end");
        // D3: the name, when all of it is on the disk.
        file.sync_all().map_err(failed(SaveStep::Sync))?;
        std::fs::rename(&target.partial, &target.path).map_err(failed(SaveStep::Rename))?;
        self.file = None;
        // Without this, a crash of the machine might bring the old name back.
        let folder = File::open(&target.folder).and_then(|folder| folder.sync_all());
        folder.map_err(failed(SaveStep::SyncName))?;
        Ok(Saved {
            began: self.began_at,
            log: self.log,
            took: self.began.elapsed(),
            keys: counts.records,
            bytes: self.written,
            damaged: counts.damaged,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::outcome::PutMode;
    use crate::region::Region;

    /// D3: the disk does not take the end of a snapshot. It gets no name, nothing is left of it, and the
    /// old one stays.
    #[test]
    fn a_snapshot_that_the_disk_has_not_gets_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
        let geometry = Config::short().size(TableSize::Slots(1000)).geometry().unwrap();
        let writer = || {
            let mut writer =
                SnapshotWriter::new(&target, SnapshotTerms::of(&geometry, 7, SystemTime::now())).unwrap();
            writer.take((b"key", b"value", None));
            writer
        };
        let fails = || {
            // A device without a disk takes every write, and no wait.
            let mut failing = writer();
            failing.file = Some(File::options().write(true).open("/dev/null").unwrap());
            let error = failing.finish(0).unwrap_err();
            assert!(matches!(error, SaveError::Os { step: SaveStep::Sync, .. }), "{error}");
            assert!(!target.partial.exists());
        };
        fails();
        assert!(!target.path.exists(), "it has its name");
        writer().finish(0).unwrap();
        let old = std::fs::read(&target.path).unwrap();
        fails();
        assert_eq!(std::fs::read(&target.path).unwrap(), old);
    }

    /// What a client is told about a snapshot that failed: the step, and the system's number.
    #[test]
    fn errors_have_codes() {
        let (path, lock) = (PathBuf::from("/none/snapshot"), PathBuf::from("/none/lock"));
        let full = io::Error::from(Errno::NOSPC);
        let os = SaveError::Os { step: SaveStep::Sync, path: path.clone(), source: full };
        let nowhere = SnapshotPath::claim(&path).expect_err("there is no such folder");
        let kind = FileError::Kind { path: path.clone(), expected: "file" };
        let refused = FileError::Os { doing: "opening", path: path.clone(), source: Errno::ACCESS.into() };
        for (error, code) in [
            (os, (SaveStep::Sync, Errno::NOSPC)),
            (nowhere, (SaveStep::Make, Errno::NOENT)),
            (kind.into(), (SaveStep::Make, Errno::PERM)),
            (refused.into(), (SaveStep::Make, Errno::ACCESS)),
            (SaveError::Busy { path, lock }, (SaveStep::Make, Errno::BUSY)),
            (SaveError::BrokenOff, (SaveStep::Write, Errno::CANCELED)),
        ] {
            assert_eq!(error.code(), (code.0, code.1.raw_os_error()), "{error}");
        }
    }

    /// An error that the disk tells once is the snapshot's, whenever it is heard: at a step of the walk, in
    /// the middle of one, when the rest is written, or at the end. So is a disk that is full by then.
    #[test]
    fn an_error_that_is_told_once_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let target = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
        let table = |value_max: usize, keys: u32| {
            let config = Config { size: TableSize::Slots(1000), value_max, ..Config::short() };
            let config = if value_max > 1000 { config.heap_bytes(4 << 20) } else { config };
            let geometry = config.geometry().unwrap();
            let region = Region::private(geometry.region_bytes());
            let index = Index::create(region, geometry, Clock::System).unwrap();
            for key in 0..keys {
                index.put(&key.to_le_bytes(), &vec![7; value_max], PutMode::Insert).unwrap();
            }
            index
        };
        let fails = |index: &Index, change: &dyn Fn(&mut SnapshotWriter<'_>)| {
            let terms = SnapshotTerms::of(index.geometry(), 7, SystemTime::now());
            let mut writer = SnapshotWriter::new(&target, terms).unwrap();
            change(&mut writer);
            let error = index.save_by(writer, &mut |_, _| true).unwrap_err();
            assert!(!target.partial.exists() && !target.path.exists(), "{error}");
            error
        };
        for (index, written) in [
            (table(1000, 700), SYNC_BYTES),
            (table(BLOCK_BYTES, 1), SYNC_BYTES),
            (table(100, 1), SYNC_BYTES),
            (table(100, 1), 0),
        ] {
            let error = fails(&index, &|writer| {
                let thread = std::thread::spawn(|| Err(Errno::IO.into()));
                writer.syncing = Some(Syncing { written: sync_channel(1).0, thread });
                writer.written = written;
            });
            assert!(matches!(error, SaveError::Os { step: SaveStep::Sync, .. }), "{error}");
        }
        let error = fails(&table(100, 1), &|writer| {
            writer.file = Some(File::options().write(true).open("/dev/full").unwrap());
        });
        assert!(matches!(error, SaveError::Os { step: SaveStep::Write, .. }), "{error}");
        assert_eq!(error.code().1, Errno::NOSPC.raw_os_error());
    }
}
