//! A log of changes on a disk: what was acknowledged survives a power cut (K). `docs/PROTOCOL.md` has the rules.
//!
//! ```text
//! change ─ decided ─ record                                  answered       of a worker, which goes on meanwhile
//!                      │                                        ▲
//!                      ▼                                        │
//!                    buffer ─ write ─ sync ─ made, visible ─ told            of the log's thread, for all that came meanwhile
//! ```
//!
//! * `frame` has the bytes of files and records.
//! * `disk` is where the files are.
//! * `read` finds what a log has, and shows it.
//! * [`Log`] takes records, and has changes made when they are on the disk.
//! * `index/seams/` has changes wait for it; `server/replay.rs` begins with it.

mod disk;
mod frame;
mod read;
#[cfg(all(test, feature = "sim", not(loom)))]
mod sim_disk;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
#[cfg(all(test, feature = "sim", not(loom)))]
pub(crate) use {sim_disk::SimDisk, tests::begin as log_on};

use crate::base::random;
use crate::base::sync::lock_std;
use crate::faults::{Rule, all_broken, break_all, broken};
use crate::files::LockFile;
use crate::snapshot::LogPosition;
use disk::{Disk, DiskFile, Folder};
pub(crate) use frame::LogRecord;
pub use frame::LoggedTable;
use frame::Visible;
pub use read::LogError;
use read::{FoundLog, LogFile, name_of};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server that stops may have the lock for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(100);
/// A file is followed by another one when it has this many bytes.
const FILE_BYTES: u64 = 64 << 20;
/// A log that is longer, and longer than twice its snapshot, is long: a snapshot makes it shorter.
const LONG_BYTES: u64 = 256 << 20;
/// While this many bytes wait for the disk, no more changes are decided.
const BUFFER_BYTES: usize = 32 << 20;

/// When records are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fsync {
    /// Before the change is visible, and answered. A power cut takes nothing back that anybody has seen.
    Always,
    /// At most a second later. A power cut takes back what was changed in the last second, also what GETs have
    /// returned.
    EverySecond,
    /// When the system writes it. A power cut takes back what it has not written yet: half a minute, as a rule.
    Never,
}

impl Fsync {
    fn visible(self) -> Visible {
        match self {
            Fsync::Always => Visible::OnDisk,
            Fsync::EverySecond | Fsync::Never => Visible::AtOnce,
        }
    }
}

/// Where a log is, and when records are on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogConfig {
    /// The folder, which nothing else is in. It is made if it is not there; its parent must be.
    pub path: PathBuf,
    /// When records are on the disk.
    pub fsync: Fsync,
    /// Goes on without this record and all later ones, where the log is damaged. A log that has the record is not cut.
    pub truncate_at: Option<u64>,
}

impl LogConfig {
    /// A log in this folder, synced before each answer.
    pub fn new(path: impl Into<PathBuf>) -> LogConfig {
        LogConfig { path: path.into(), fsync: Fsync::Always, truncate_at: None }
    }

    /// Where the snapshots are from which the log goes on, if the server's configuration names no other place.
    pub fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot")
    }
}

crate::base::setters::setters!(LogConfig {
    fsync: Fsync,
    truncate_at: impl Into<Option<u64>>,
});

/// What a log says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStatus {
    /// The number of the next record.
    pub next: u64,
    /// All records below this one were given to the system.
    pub written: u64,
    /// All records below this one are on the disk.
    pub durable: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// How often the disk was waited for.
    pub syncs: u64,
    /// Whether the disk has failed. No change is made any more.
    pub has_failed: bool,
}

/// The disk has failed: nobody knows what it has.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log's disk has failed: {0}; restart the server when the disk is good")]
pub(crate) struct LogFailed(Arc<str>);

/// Makes a log's folder, if it is not there.
///
/// # Errors
/// [`LogError`].
pub(crate) fn make_folder(path: &Path) -> Result<(), LogError> {
    folder(path).map(drop)
}

fn folder(path: &Path) -> Result<Folder, LogError> {
    let name = path.display().to_string();
    Folder::new(path).map_err(|source| LogError::Os { what: "making", name, source })
}

/// A log that was looked at, and takes no records yet.
#[derive(Debug)]
pub(crate) struct LogOnDisk {
    disk: Arc<dyn Disk>,
    found: FoundLog,
    /// The number of the first record, if there are no files.
    next: u64,
    /// Held until the log is dropped: it is one server's.
    lock: Option<LockFile>,
}

impl LogOnDisk {
    /// Looks at the log in a folder. Cuts off what was not synced.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn look(path: &Path, cut_at: Option<u64>) -> Result<LogOnDisk, LogError> {
        let folder = folder(path)?;
        let at = path.join("log");
        let lock = LockFile::take(&at, LOCK_WITHIN)?.ok_or(LogError::Locked { path: path.into() })?;
        let log = LogOnDisk::on(Arc::new(folder), cut_at)?;
        Ok(LogOnDisk { lock: Some(lock), ..log })
    }

    fn on(disk: Arc<dyn Disk>, cut_at: Option<u64>) -> Result<LogOnDisk, LogError> {
        let found = read::look(&*disk, cut_at)?;
        Ok(LogOnDisk { disk, found, next: 1, lock: None })
    }

    /// Whether there is no log yet.
    pub fn is_new(&self) -> bool {
        self.found.files.is_empty()
    }

    /// The log's number, random.
    pub fn id(&self) -> u64 {
        self.found.id
    }

    /// The numbers of its records.
    pub fn records(&self) -> std::ops::Range<u64> {
        match self.is_new() {
            true => self.next..self.next,
            false => self.found.first()..self.found.end(),
        }
    }

    /// All records below this one were visible in the table of the last file when the last record was written.
    pub fn applied(&self) -> u64 {
        self.found.applied.max(self.found.first())
    }

    /// The table that the last records are of.
    pub fn table(&self) -> Option<LoggedTable> {
        self.found.table()
    }

    /// Bytes of the files that have records from this one on.
    pub fn bytes_from(&self, from: u64) -> u64 {
        self.found.files.iter().filter(|file| file.end > from).map(|file| file.bytes).sum()
    }

    /// Whether a table that outlived its server may have changes that the log has not: of records that were in memory when
    /// the server was killed. Of records that were removed by request anyway.
    pub fn may_lack(&self, was_killed: bool) -> bool {
        let last = self.found.files.last().map(|file| file.visible);
        let lacks_last = match last {
            Some(Visible::AtOnce) => was_killed,
            Some(Visible::OnDisk) | None => false,
        };
        lacks_last || self.found.is_shortened
    }

    /// Where the log goes on. A new one draws its number.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn position(&mut self) -> Result<LogPosition, LogError> {
        if self.found.id == 0 {
            let drawn = random::number();
            let what = "drawing a number for";
            self.found.id =
                drawn.map_err(|source| LogError::Os { what, name: "a log".to_owned(), source })?;
        }
        Ok(LogPosition { id: self.found.id, from: self.records().end })
    }

    /// Bytes that were cut off the end: they were not synced.
    pub fn cut(&self) -> u64 {
        self.found.cut
    }

    /// Shows all records from this one on, in order, as [`read::replay`].
    ///
    /// # Errors
    /// [`LogError`].
    pub fn replay(
        &self,
        from: u64,
        mut show: impl FnMut(u64, LogRecord<'_>, &LoggedTable) -> bool,
    ) -> Result<bool, LogError> {
        read::replay(&*self.disk, &self.found, from, &mut show)
    }

    /// Goes on from a snapshot: its table has what all records below this one did. So none of them may be missing, but
    /// for those at the end that the snapshot has, and no disk. Their numbers are not given again.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn begin_at(&mut self, from: u64) -> Result<(), LogError> {
        if from > self.found.end() || self.is_new() {
            for file in std::mem::take(&mut self.found.files) {
                let failed = |source| LogError::Os { what: "removing", name: file.name.clone(), source };
                self.disk.remove(&file.name).map_err(failed)?;
            }
            self.next = from;
        }
        Ok(())
    }

    /// Takes records from now on, of this table.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn go_on(mut self, table: LoggedTable, fsync: Fsync) -> Result<Log, LogError> {
        let failed = |what: &'static str, name: &str| {
            let name = name.to_owned();
            move |source| LogError::Os { what, name, source }
        };
        let LogPosition { id, from: next } = self.position()?;
        // A last file without a record has the name that the next one needs.
        if let Some(last) = self.found.files.pop_if(|last| last.first == last.end) {
            self.disk.remove(&last.name).map_err(failed("removing", &last.name))?;
        }
        let begun = (table, fsync.visible());
        let writer =
            Writer::new(self.disk.clone(), id, next, begun).map_err(failed("making", &name_of(next)))?;
        let files: VecDeque<LogFile> = self.found.files.into();
        let bytes = files.iter().map(|file| file.bytes).sum::<u64>() + writer.bytes;
        let state = LogState {
            next,
            buffer: Vec::new(),
            in_flight: BTreeSet::new(),
            by_subject: HashMap::default(),
            long: Long { bytes: LONG_BYTES, tell: None },
            waiting: BTreeMap::new(),
            being_made: 0,
            durable: next,
            written: next,
            failed: None,
            is_ending: false,
            files,
            bytes,
            syncs: 0,
        };
        let shared = Arc::new(LogShared {
            id,
            fsync,
            disk: self.disk,
            state: Mutex::new(state),
            buffered: AtomicUsize::new(0),
            to_write: Condvar::new(),
            changed: Condvar::new(),
        });
        let (its, faults) = (shared.clone(), all_broken());
        let lock = self.lock;
        let run = move || {
            // Held until the last record is written.
            let _lock = lock;
            break_all(faults);
            its.run(writer);
        };
        let thread = std::thread::Builder::new()
            .name("oneread-log".into())
            .spawn(run)
            .map_err(failed("starting a thread for", "a log"))?;
        Ok(Log { shared, thread: Some(thread) })
    }
}

/// A log that takes records.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<LogShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct LogShared {
    id: u64,
    fsync: Fsync,
    disk: Arc<dyn Disk>,
    state: Mutex<LogState>,
    /// The length of the buffer. Relaxed: a hint.
    buffered: AtomicUsize,
    /// Told when there is something to write.
    to_write: Condvar,
    /// Told when something is on the disk, or the log has failed.
    changed: Condvar,
}

#[derive(Debug)]
struct LogState {
    /// The number of the next record.
    next: u64,
    /// Records that the thread has not taken.
    buffer: Vec<u8>,
    /// Records whose changes are not visible yet (K3).
    in_flight: BTreeSet<u64>,
    /// Their numbers by what they are about, in order.
    by_subject: HashMap<Subject, SmallVec<[u64; 1]>>,
    /// What waits for records, by their numbers.
    waiting: BTreeMap<u64, LogWaiter>,
    /// How many of them do not wait any more, and are not done yet.
    being_made: usize,
    /// All records below were written, and are on the disk.
    written: u64,
    durable: u64,
    failed: Option<LogFailed>,
    is_ending: bool,
    /// Files that no record is written to any more.
    files: VecDeque<LogFile>,
    /// Of all files.
    bytes: u64,
    long: Long,
    syncs: u64,
}

impl LogState {
    /// All records below this one are visible.
    fn applied(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.next)
    }

    /// A change is visible, or there is none any more. A later one may be about the same by now.
    fn is_done(&mut self, Logged { number, subject }: Logged) {
        self.in_flight.remove(&number);
        if let Some(numbers) = self.by_subject.get_mut(&subject) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_subject.remove(&subject);
            }
        }
    }

    /// The first change of this that is not visible yet is visible: they are made in order (L10).
    fn first_is_done(&mut self, subject: Subject) {
        if let Some(number) = self.by_subject.get(&subject).and_then(|numbers| numbers.first().copied()) {
            self.is_done(Logged { number, subject });
        }
    }
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// The key with this hash.
    Key(u64),
    /// All entries of this owner.
    Owner(u16),
}

/// Who is told that the files have become long.
struct Long {
    bytes: u64,
    tell: Option<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for Long {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Long").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A record that was taken, until its change is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    number: u64,
    subject: Subject,
}

/// Waits until a record is on the disk. Dropped, when nobody knows whether it will be.
pub(crate) trait WaitsForDisk: std::fmt::Debug + Send {
    /// The record is there. Waits for no disk.
    fn is_there(self: Box<Self>, at: InBatch);
}

/// Whether others whose records are there follow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InBatch {
    Before,
    Last,
}

#[derive(Debug)]
struct LogWaiter {
    logged: Logged,
    who: Box<dyn WaitsForDisk>,
}

impl Log {
    /// Takes the record of a change of the key with this hash. It is not on the disk yet. The key's lock is held: this
    /// waits for no disk.
    ///
    /// # Errors
    /// [`LogFailed`]: no change may be made any more.
    pub fn take(&self, hash: u64, record: LogRecord<'_>) -> Result<Logged, LogFailed> {
        self.take_of(Subject::Key(hash), record)
    }

    fn take_of(&self, subject: Subject, record: LogRecord<'_>) -> Result<Logged, LogFailed> {
        let mut framed = Vec::new();
        let mut crc = record.write(&mut framed);
        let mut state = lock_std(&self.shared.state);
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        // K8: the entry that keeps an owner who is going will be hidden.
        if let LogRecord::Put { key, owner: owner @ 1.., .. } = record
            && state.by_subject.contains_key(&Subject::Owner(owner))
        {
            framed.clear();
            crc = LogRecord::Remove { key }.write(&mut framed);
        }
        let number = state.next;
        state.next += 1;
        state.in_flight.insert(number);
        state.by_subject.entry(subject).or_default().push(number);
        frame::finish(&mut framed, self.shared.id, crc, number, state.applied(), state.durable);
        let is_first = state.buffer.is_empty();
        state.buffer.append(&mut framed);
        self.shared.buffered.store(state.buffer.len(), Relaxed);
        drop(state);
        if is_first {
            self.shared.to_write.notify_one();
        }
        Ok(Logged { number, subject })
    }

    /// Whether a change must wait for the disk before it is made (K1).
    pub fn must_wait(&self) -> bool {
        match self.shared.fsync.visible() {
            Visible::OnDisk => !broken(Rule::LogFirst),
            Visible::AtOnce => false,
        }
    }

    /// Whether records may come: not while very many wait for the disk.
    pub fn has_room(&self) -> bool {
        self.shared.buffered.load(Relaxed) < BUFFER_BYTES
    }

    /// Has this told when a record is on the disk: by the log's thread, or at once, where changes do not wait for that. Drops
    /// it if the disk fails.
    pub fn when_there(&self, logged: Logged, who: Box<dyn WaitsForDisk>) {
        let mut state = lock_std(&self.shared.state);
        if !self.must_wait() || state.durable > logged.number {
            drop(state);
            who.is_there(InBatch::Last);
            lock_std(&self.shared.state).is_done(logged);
        } else if state.failed.is_some() {
            drop(state);
            drop(who);
        } else {
            state.waiting.insert(logged.number, LogWaiter { logged, who });
        }
    }

    /// Waits until nothing waits for a record any more.
    pub fn drain(&self) {
        let waits = |state: &mut LogState| !state.waiting.is_empty() || state.being_made > 0;
        let state = lock_std(&self.shared.state);
        drop(self.shared.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes what is left, and waits until the disk has it. From then on the log takes nothing: the table is not changed any
    /// more.
    ///
    /// # Errors
    /// [`LogFailed`]: the disk may not have all that was visible (K10). Not if changes wait for it (K1).
    pub fn finish(&self) -> Result<(), LogFailed> {
        let mut state = lock_std(&self.shared.state);
        state.is_ending = true;
        self.shared.to_write.notify_one();
        let is_left = |state: &mut LogState| state.durable < state.next && state.failed.is_none();
        let state = self.shared.changed.wait_while(state, is_left).unwrap_or_else(PoisonError::into_inner);
        match &state.failed {
            Some(failed) if !self.must_wait() => Err(failed.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// The change of the key with this hash is visible (K3).
    pub fn is_visible(&self, hash: u64) {
        lock_std(&self.shared.state).first_is_done(Subject::Key(hash));
    }

    /// An owner is about to go. Takes the record of that, which is to be there before (K8).
    ///
    /// # Errors
    /// [`LogFailed`]: the owner stays.
    pub fn owner_goes(&self, owner: u16) -> Result<Logged, LogFailed> {
        self.take_of(Subject::Owner(owner), LogRecord::OwnerGone { owner })
    }

    /// The owner's entries are hidden (K3).
    pub fn owner_has_gone(&self, owner: u16) {
        lock_std(&self.shared.state).first_is_done(Subject::Owner(owner));
    }

    /// Where the log goes on from a walk that begins now.
    pub fn position(&self) -> LogPosition {
        LogPosition { id: self.shared.id, from: self.applied() }
    }

    /// Has `tell` called by the log's thread whenever the files have become long: longer than twice the last snapshot,
    /// and than [`LONG_BYTES`].
    pub fn when_longer(&self, tell: impl Fn() + Send + 'static) {
        lock_std(&self.shared.state).long = Long { bytes: LONG_BYTES, tell: Some(Box::new(tell)) };
    }

    /// All records below this one are visible in the table: a walk that begins now shows them, or newer ones (K3).
    pub fn applied(&self) -> u64 {
        let state = lock_std(&self.shared.state);
        match broken(Rule::LogApplied) {
            true => state.next,
            false => state.applied(),
        }
    }

    /// Forgets all records below this one: a snapshot has what they did, and is on the disk (K6). Files go that have
    /// no other record.
    ///
    /// # Errors
    /// The system's.
    pub fn forget_below(&self, number: u64, snapshot_bytes: u64) -> io::Result<()> {
        {
            let mut state = lock_std(&self.shared.state);
            state.long.bytes = LONG_BYTES.max(2 * snapshot_bytes);
        }
        let first = || {
            let state = lock_std(&self.shared.state);
            state.files.front().filter(|file| file.end <= number).cloned()
        };
        while let Some(file) = first() {
            self.shared.disk.remove(&file.name)?;
            // In order: a hole would look like a loss.
            self.shared.disk.sync_names()?;
            let mut state = lock_std(&self.shared.state);
            state.bytes -= file.bytes;
            state.files.pop_front();
        }
        Ok(())
    }

    pub fn status(&self) -> LogStatus {
        let state = lock_std(&self.shared.state);
        LogStatus {
            next: state.next,
            written: state.written,
            durable: state.durable,
            bytes: state.bytes,
            syncs: state.syncs,
            has_failed: state.failed.is_some(),
        }
    }
}

impl Drop for Log {
    /// Writes what is left, and waits until the disk has it.
    fn drop(&mut self) {
        lock_std(&self.shared.state).is_ending = true;
        self.shared.to_write.notify_one();
        // The last one who had the log may be a change that its thread has made.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !is_own(thread)) {
            let _ = thread.join();
        }
    }
}

/// The file that records are written to.
#[derive(Debug)]
struct Writer {
    disk: Arc<dyn Disk>,
    id: u64,
    begun: (LoggedTable, Visible),
    file: Box<dyn DiskFile>,
    name: String,
    first: u64,
    bytes: u64,
}

impl Writer {
    /// Makes a file. When this returns, the disk has its head and its name (K4).
    fn new(disk: Arc<dyn Disk>, id: u64, first: u64, begun: (LoggedTable, Visible)) -> io::Result<Writer> {
        let name = name_of(first);
        let mut file = disk.create(&name)?;
        file.append(bytemuck::bytes_of(&frame::FileHead::new(id, first, begun.0, begun.1)))?;
        file.sync()?;
        if !broken(Rule::LogNames) {
            disk.sync_names()?;
        }
        Ok(Writer { disk, id, begun, file, name, first, bytes: frame::FILE_HEAD_BYTES as u64 })
    }

    /// A next file. The disk has all of this one before (K4).
    fn next(&mut self, first: u64) -> io::Result<LogFile> {
        self.file.sync()?;
        let next = Writer::new(self.disk.clone(), self.id, first, self.begun)?;
        let Writer { name, first: began, bytes, begun, .. } = std::mem::replace(self, next);
        Ok(LogFile { name, first: began, end: first, bytes, table: begun.0, visible: begun.1 })
    }
}

impl LogShared {
    /// Writes records until the log ends, or its disk fails.
    fn run(&self, mut writer: Writer) {
        /// A thread that panics writes nothing any more.
        struct FailsByPanic<'l>(&'l LogShared);
        impl Drop for FailsByPanic<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail("its thread has panicked");
                }
            }
        }
        let _fails = FailsByPanic(self);
        if let Err(error) = self.write_all(&mut writer) {
            tracing::error!(%error, file = %writer.name, "the log's disk has failed; no change is made any more");
            self.fail(&error.to_string());
        }
    }

    /// From now on no change is made. Those that wait are withdrawn.
    fn fail(&self, why: &str) {
        let mut state = lock_std(&self.state);
        state.failed = Some(LogFailed(why.into()));
        let waiting = std::mem::take(&mut state.waiting);
        state.being_made = waiting.len();
        // Nothing is written any more, so nobody waits for room.
        state.buffer = Vec::new();
        self.buffered.store(0, Relaxed);
        drop(state);
        drop(waiting);
        lock_std(&self.state).being_made = 0;
        self.changed.notify_all();
    }

    /// Tells all whose records are there.
    fn tell(&self) {
        let mut state = lock_std(&self.state);
        let durable = state.durable;
        let later = state.waiting.split_off(&durable);
        let there = std::mem::replace(&mut state.waiting, later);
        let many = there.len();
        state.being_made = many;
        drop(state);
        self.changed.notify_all();
        if many == 0 {
            return;
        }
        let mut done = Vec::with_capacity(many);
        for (nth, LogWaiter { logged, who }) in there.into_values().enumerate() {
            who.is_there(if nth + 1 == many { InBatch::Last } else { InBatch::Before });
            done.push(logged);
        }
        let mut state = lock_std(&self.state);
        // Those that were made are done already.
        done.into_iter().for_each(|logged| state.is_done(logged));
        state.being_made = 0;
        drop(state);
        self.changed.notify_all();
    }

    fn write_all(&self, writer: &mut Writer) -> io::Result<()> {
        const SYNC_EVERY: Duration = Duration::from_secs(1);
        // Records that were written, and are not synced, since then.
        let mut since: Option<Instant> = None;
        let mut records = Vec::new();
        loop {
            let mut state = lock_std(&self.state);
            loop {
                let due = since.filter(|_| self.fsync == Fsync::EverySecond);
                let left = due.map(|since| SYNC_EVERY.saturating_sub(since.elapsed()));
                if !state.buffer.is_empty() || state.is_ending || left == Some(Duration::ZERO) {
                    break;
                }
                state = match left {
                    Some(left) => {
                        self.to_write.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.to_write.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
            let (from, to, is_ending) = (state.written, state.next, state.is_ending);
            std::mem::swap(&mut state.buffer, &mut records);
            self.buffered.store(0, Relaxed);
            drop(state);
            if !records.is_empty() {
                if writer.bytes >= FILE_BYTES {
                    let full = writer.next(from)?;
                    let mut state = lock_std(&self.state);
                    state.bytes += frame::FILE_HEAD_BYTES as u64;
                    state.files.push_back(full);
                    // K4: the next file was begun when all before were on the disk.
                    state.durable = from;
                }
                writer.file.append(&records)?;
                writer.bytes += records.len() as u64;
                since.get_or_insert_with(Instant::now);
            }
            let is_due = match self.fsync {
                Fsync::Always => true,
                Fsync::EverySecond => is_ending || since.is_some_and(|since| since.elapsed() >= SYNC_EVERY),
                Fsync::Never => is_ending,
            };
            let syncs = is_due && since.is_some();
            if syncs {
                let synced = writer.file.sync();
                // K2: the system writes nothing again that it could not write.
                if broken(Rule::LogFailed) { writer.file.sync() } else { synced }?;
                since = None;
            }
            let mut state = lock_std(&self.state);
            state.written = to;
            state.bytes += records.len() as u64;
            if syncs {
                state.durable = to;
                state.syncs += 1;
            }
            let is_over = state.is_ending && state.buffer.is_empty();
            if state.bytes > state.long.bytes {
                // A snapshot that fails is asked for again later.
                state.long.bytes = state.bytes + LONG_BYTES;
                // Under the lock: it only notes that a snapshot is wanted.
                state.long.tell.as_ref().inspect(|tell| tell());
            }
            drop(state);
            self.tell();
            if is_over {
                return Ok(());
            }
            records.clear();
            records.shrink_to(BUFFER_BYTES);
        }
    }
}
