//! When a server makes snapshots: on request, every so often, and when it stops.
//!
//! One thread makes them, one after the other. Workers only note that one is wanted.

use crate::base::setters::setters;
use crate::base::sync::lock_std;
use crate::faults::{Rule, disobey};
use crate::index::Index;
use crate::snapshot::{LogPosition, SaveError, Saved, SnapshotPath, since_1970};
use crate::wire::SnapshotStatus;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Which snapshots a server makes ([`ServerConfig::snapshots`](super::ServerConfig::snapshots)).
///
/// # What a crash of the machine costs
///
/// The last complete snapshot has every change that was acknowledged before it began. With `every`, snapshots begin
/// that far apart, or one after the other if one takes longer. So a crash costs at most the changes of `every`, and of
/// the time that one snapshot takes. While snapshots fail (a full disk), it costs the changes since the last one that
/// did not; [`SnapshotStatus`] says so.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshots {
    /// The file. Each snapshot takes the place of the one before. Beside it, `PATH.partial` is there
    /// while one is made, and `PATH.lock` keeps other servers from this path.
    pub path: PathBuf,
    /// The time from the beginning of one snapshot to the beginning of the next. One is left out
    /// while nothing changes. `None`: only on request
    /// ([`Client::ask_for_snapshot`](crate::Client::ask_for_snapshot)) and when the server stops.
    pub every: Option<Duration>,
}

impl Snapshots {
    /// Snapshots in this file, on request and when the server stops.
    pub fn new(path: impl Into<PathBuf>) -> Snapshots {
        Snapshots { path: path.into(), every: None }
    }
}

setters!(Snapshots {
    path: impl Into<PathBuf>,
    every: impl Into<Option<Duration>>,
});

/// The content of a server's table at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// The table is empty, and no snapshot has more.
    Empty,
    /// The table has the keys of this snapshot, whose path is that of the server's own snapshots.
    AsSaved(Saved),
    /// The table has keys that may be in no snapshot.
    Otherwise,
}

/// Makes the snapshots of one server.
#[derive(Debug)]
pub(crate) struct Saver {
    place: SnapshotPath,
    /// The server's number (I3).
    launch: u64,
    every: Option<Duration>,
    state: Mutex<SaverState>,
    changed: Condvar,
    is_ending: AtomicBool,
    /// Finished parts of a million of the present snapshot.
    progress_ppm: AtomicU64,
}

#[derive(Debug)]
struct SaverState {
    /// The number of the last snapshot that was asked for.
    asked: u64,
    /// Numbers of the last snapshot that was begun, that has ended, and that was made.
    begun: u64,
    finished: u64,
    saved: u64,
    last: Option<Saved>,
    /// When the last failure was, the step, and the system's number of the error.
    failure: Option<(SystemTime, u32, i32)>,
    /// Changes that had been made when the last snapshot began. It has at least all of these.
    changes: Option<u64>,
    /// When the next snapshot is due.
    due: Option<Instant>,
}

/// The longest time between snapshots that a status can state. The next number says that there is none.
const LONGEST_MS: u128 = u64::MAX as u128 - 1;

impl Saver {
    pub fn new(place: SnapshotPath, every: Option<Duration>, index: &Index, begins: Begins) -> Saver {
        let now = Instant::now();
        let first =
            if begins == Begins::Otherwise { Some(now) } else { every.and_then(|e| now.checked_add(e)) };
        let state = SaverState {
            asked: 0,
            begun: 0,
            finished: 0,
            saved: 0,
            last: if let Begins::AsSaved(saved) = begins { Some(saved) } else { None },
            failure: None,
            changes: matches!(begins, Begins::AsSaved(_)).then(|| index.changes_made()),
            due: every.and(first),
        };
        Saver {
            place,
            launch: index.launch(),
            every,
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_ending: AtomicBool::new(false),
            progress_ppm: AtomicU64::new(0),
        }
    }

    /// Asks for a snapshot with every change made so far. Returns the state, which names its number.
    pub fn ask(&self) -> SnapshotStatus {
        {
            let mut state = lock_std(&self.state);
            // The present snapshot may have passed a key that has changed since.
            state.asked = state.begun + 1;
        }
        self.changed.notify_all();
        self.status()
    }

    pub fn status(&self) -> SnapshotStatus {
        let state = lock_std(&self.state);
        let ms = |time: SystemTime| since_1970(time) / 1_000_000;
        let (failed_ms, failure) = state
            .failure
            .map_or((0, 0), |(at, step, error)| (ms(at), u64::from(step) << 32 | u64::from(error as u32)));
        SnapshotStatus {
            every_ms: self.every.map_or(u64::MAX, |every| every.as_millis().clamp(1, LONGEST_MS) as u64),
            launch: self.launch,
            asked: state.asked,
            begun: state.begun,
            finished: state.finished,
            saved: state.saved,
            progress_ppm: self.progress_ppm.load(Ordering::Relaxed),
            saved_ms: state.last.map_or(0, |last| ms(last.began)),
            took_us: state.last.map_or(0, |last| last.took.as_micros() as u64),
            keys: state.last.map_or(0, |last| last.keys),
            bytes: state.last.map_or(0, |last| last.bytes),
            failed_ms,
            failure,
        }
    }

    /// Makes snapshots until the server stops.
    pub fn run(&self, index: &Index) {
        while self.wait() {
            self.make(index);
        }
    }

    /// Waits until a snapshot is due. `false` when the server stops.
    fn wait(&self) -> bool {
        let mut state = lock_std(&self.state);
        loop {
            if self.is_ending.load(Ordering::Relaxed) {
                return false;
            }
            let left = state.due.map(|due| due.saturating_duration_since(Instant::now()));
            if state.asked > state.begun || left == Some(Duration::ZERO) {
                return true;
            }
            state = match left {
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Makes a snapshot, unless nobody has asked for it and nothing has changed.
    fn make(&self, index: &Index) {
        let is_asked = {
            let mut state = lock_std(&self.state);
            state.due = self.every.and_then(|every| Instant::now().checked_add(every));
            state.asked > state.begun
        };
        if is_asked || !self.is_current(index) {
            let _ = self.save(index, None, &|| self.is_ending.load(Ordering::Relaxed));
        }
    }

    /// Whether the last snapshot is still there and has all that is in the table. If so, it counts as one that begins
    /// now.
    fn is_current(&self, index: &Index) -> bool {
        let now = SystemTime::now();
        // D7. A change is counted after it is made. So one that is counted now was made before `now`, and
        // one that was not counted when the last snapshot began is missing from `state.changes`.
        let changes = index.changes_made();
        let mut state = lock_std(&self.state);
        let is_there = || std::fs::symlink_metadata(self.place.path()).is_ok_and(|about| about.is_file());
        let is_current = state.changes == Some(changes) && is_there();
        if is_current && let Some(last) = &mut state.last {
            last.began = now;
        }
        is_current
    }

    fn save(
        &self,
        index: &Index,
        log: Option<LogPosition>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Saved, SaveError> {
        let before = index.changes_made();
        let number = {
            let mut state = lock_std(&self.state);
            state.begun += 1;
            state.begun
        };
        self.progress_ppm.store(0, Ordering::Relaxed);
        disobey(Rule::LogForget, || index.forget_log());
        let saved = index.begin_snapshot(&self.place, log).and_then(|writer| {
            index.save_by(writer, &mut |done, total| {
                self.progress_ppm.store(done.saturating_mul(1_000_000) / total.max(1), Ordering::Relaxed);
                !is_ending()
            })
        });
        let mut state = lock_std(&self.state);
        state.finished = number;
        let path = self.place.path().display();
        match &saved {
            Ok(saved) => {
                (state.saved, state.last, state.changes) = (number, Some(*saved), Some(before));
                let Saved { keys, bytes, took, .. } = saved;
                tracing::info!(keys, bytes, ?took, %path, "made a snapshot");
                // K6: the disk has it.
                index.forget_log_below(saved);
            }
            // The last snapshot is made when the threads have ended.
            Err(SaveError::BrokenOff) => {}
            Err(error) => {
                let (step, code) = error.code();
                state.failure = Some((SystemTime::now(), step as u32, code));
                tracing::error!(error = error as &dyn std::error::Error, "no snapshot was made");
            }
        }
        saved
    }

    /// Makes a snapshot before the table is served, from which its log goes on there (K10).
    pub fn save_first(
        &self,
        index: &Index,
        log: LogPosition,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Saved, SaveError> {
        self.save(index, Some(log), is_cancelled)
    }

    /// Lets [`Saver::run`] return. Breaks off a snapshot that is being made.
    pub fn end(&self) {
        let state = lock_std(&self.state);
        self.is_ending.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Makes the last snapshot, when no thread changes the table any more. `None` if the present one has every change.
    pub fn save_last(&self, index: &Index) -> Option<Result<Saved, SaveError>> {
        (!self.is_current(index)).then(|| self.save(index, None, &|| false))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::outcome::{PutMode, PutOptions};
    use crate::part::{PartChange, Tell};
    use crate::region::Region;
    use std::cell::Cell;

    /// A table with more than one block of a snapshot, and a place for that.
    fn filled() -> (Index, SnapshotPath, tempfile::TempDir) {
        let config = Config { size: TableSize::Slots(1000), value_max: 1000, ..Config::short() };
        let geometry = config.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, Clock::System).unwrap();
        for n in 0..700u32 {
            index.put(&n.to_le_bytes(), &[7; 1000], PutMode::Insert).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let place = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
        (index, place, dir)
    }

    /// Who asks while a snapshot is being made gets the next one: this one may have passed the last change by.
    #[test]
    fn a_snapshot_under_way_answers_no_request() {
        let (index, place, _dir) = filled();
        let saver = Saver::new(place, None, &index, Begins::Empty);
        let asked = Cell::new(0);
        let ask = || {
            asked.set(saver.ask().asked);
            false
        };
        saver.save(&index, None, &ask).unwrap();
        let status = saver.status();
        assert_eq!((asked.get(), status.begun, status.finished), (2, 1, 1));
        assert!(saver.wait(), "the second one is due");
    }

    /// A snapshot is current until anything changes, also while it is made, and as long as its file is there.
    #[test]
    fn every_change_makes_a_snapshot_old() {
        let (index, place, _dir) = filled();
        let saver = Saver::new(place, None, &index, Begins::Empty);
        let save = || saver.save(&index, None, &|| false).unwrap();
        save();
        let changes: [&dyn Fn(); 3] = [
            &|| assert!(index.put(b"key", b"value", PutMode::Insert).is_ok()),
            &|| assert!(index.put(b"key", b"other", PutMode::Update).is_ok()),
            &|| assert!(index.remove(b"key").unwrap()),
        ];
        for change in changes {
            assert!(saver.is_current(&index));
            change();
            assert!(!saver.is_current(&index));
            save();
        }
        let meanwhile = || {
            index.put(b"key", b"value", PutMode::Upsert).unwrap();
            false
        };
        saver.save(&index, None, &meanwhile).unwrap();
        assert!(!saver.is_current(&index));
        save();
        assert!(saver.is_current(&index));
        std::fs::remove_file(saver.place.path()).unwrap();
        assert!(!saver.is_current(&index));
        std::fs::create_dir(saver.place.path()).unwrap();
        assert!(!saver.is_current(&index), "what stands there is no snapshot");
    }

    /// D7: whatever a walk shows otherwise makes a snapshot old, also what is no change of a key. Returns those that do not.
    fn changes_that_do_not_count() -> Vec<&'static str> {
        let config = Config { size: TableSize::Slots(1000), value_max: 1000, ..Config::short() };
        let geometry = config.owners(true).life(true).geometry().unwrap();
        let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let session = index.owner(7, Duration::from_secs(60)).unwrap();
        let starts = index.start_session().unwrap();
        let second = Duration::from_secs(1);
        let changes: [(&str, &dyn Fn()); 11] = [
            ("an entry comes", &|| assert!(index.put(b"key", b"value", PutMode::Insert).is_ok())),
            ("it gets an end", &|| {
                let ttl = PutOptions::new().ttl(second);
                assert!(index.put_with(b"key", b"value", ttl).is_ok());
            }),
            ("its end", &|| {
                clock.advance(2 * second);
                index.tidy();
            }),
            ("of an owner", &|| {
                assert!(index.put_of(&session, b"owned", b"7", PutMode::Upsert.into()).is_ok())
            }),
            ("a swap", &|| assert!(index.compare_and_swap(b"owned", b"7", b"8").is_ok())),
            ("a part", &|| {
                let part = PartChange::Append { bytes: b"9", len_max: 10 };
                assert!(index.change_part(b"owned", part, Tell::Nothing).is_ok());
            }),
            ("a commit", &|| {
                let ticket = index.put_start(&starts, b"started", 0, second).unwrap();
                index.put_commit(&starts, b"started", ticket, None).unwrap();
            }),
            ("a remove", &|| assert!(index.remove(b"started").unwrap())),
            ("its owner is removed", &|| assert!(index.remove_owner(7).unwrap())),
            ("a key in the place of a hidden one", &|| {
                assert!(index.put(b"owned", b"", PutMode::Insert).is_ok())
            }),
            ("all keys", &|| assert_eq!(index.clear(&mut |_| true).unwrap(), 1)),
        ];
        let dir = tempfile::tempdir().unwrap();
        let place = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
        let saver = Saver::new(place, None, &index, Begins::Empty);
        let is_old_after = |change: &dyn Fn()| {
            saver.save(&index, None, &|| false).unwrap();
            assert!(saver.is_current(&index));
            change();
            !saver.is_current(&index)
        };
        changes.into_iter().filter(|(_, change)| !is_old_after(change)).map(|(name, _)| name).collect()
    }

    #[test]
    fn every_kind_of_change_makes_a_snapshot_old() {
        assert_eq!(changes_that_do_not_count(), [""; 0]);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn an_owner_that_does_not_count_is_noticed() {
        let _broken = crate::faults::Broken::rule(crate::faults::Rule::HidesCounted);
        assert_eq!(changes_that_do_not_count(), ["its owner is removed"]);
    }

    /// A server is killed while it makes a snapshot. Returns whether the next one can begin with its log and the snapshot
    /// that was there.
    #[cfg(feature = "faults")]
    fn begins_after_a_kill() -> bool {
        use crate::log::{Fsync, LogOnDisk, LoggedTable};
        let (index, place, dir) = filled();
        let path = dir.path().join("log");
        let log = LogOnDisk::look(&path, None).unwrap();
        let index = index.with_log(log.go_on(LoggedTable::default(), Fsync::Always).unwrap());
        let saver = Saver::new(place, None, &index, Begins::Empty);
        let first = saver.save(&index, None, &|| false).unwrap();
        index.put(b"key", b"value", PutMode::Upsert).unwrap();
        let index = with_next_file(index, &path);
        let killed = saver.save(&index, None, &|| true);
        assert!(matches!(killed, Err(SaveError::BrokenOff)));
        drop(index);
        let log = LogOnDisk::look(&path, None).unwrap();
        log.records().start <= first.log.unwrap().from
    }

    /// The table with a log that begins another file.
    #[cfg(feature = "faults")]
    fn with_next_file(index: Index, path: &std::path::Path) -> Index {
        use crate::log::{Fsync, LogOnDisk, LoggedTable};
        drop(index);
        let (index, _, _dir) = filled();
        let log = LogOnDisk::look(path, None).unwrap();
        index.with_log(log.go_on(LoggedTable::default(), Fsync::Always).unwrap())
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_log_that_is_forgotten_too_early_is_noticed() {
        assert!(begins_after_a_kill());
        let _broken = crate::faults::Broken::rule(Rule::LogForget);
        assert!(!begins_after_a_kill(), "nobody noticed");
    }

    /// A status tells what is known of the last snapshot, and how far the next one is. A time between two
    /// that is shorter than it can name is not told as 0.
    #[test]
    fn a_status_tells_what_is_known() {
        let (index, place, _dir) = filled();
        let (began, took) =
            (SystemTime::UNIX_EPOCH + Duration::from_millis(77), Duration::from_micros(12_345));
        let saved = Saved { began, took, keys: 5, bytes: 1_234, damaged: 0, log: None };
        let saver = Saver::new(place, Some(Duration::from_micros(100)), &index, Begins::AsSaved(saved));
        let status = saver.status();
        assert_eq!((status.every_ms, status.saved_ms, status.took_us), (1, 77, 12_345));
        assert_eq!((status.keys, status.bytes, status.progress_ppm), (5, 1_234, 0));
        let told = std::cell::RefCell::new(Vec::new());
        let tell = || {
            told.borrow_mut().push(saver.status().progress_ppm);
            false
        };
        saver.save(&index, None, &tell).unwrap();
        let told = told.into_inner();
        assert!(told.is_sorted() && told.last().is_some_and(|last| (500_000..=1_000_000).contains(last)));
    }

    /// Keys that may be in no snapshot are saved at once, if snapshots are made by themselves at all. Else the
    /// first one comes after the time between two; if that is too long for a clock, never.
    #[test]
    fn the_first_snapshot_is_due() {
        let (index, place, dir) = filled();
        let saved = Saver::new(place, None, &index, Begins::Empty).save(&index, None, &|| false).unwrap();
        let hour = Duration::from_secs(3600);
        for (begins, is_at_once, is_current) in [
            (Begins::Empty, false, false),
            (Begins::AsSaved(saved), false, true),
            (Begins::Otherwise, true, false),
        ] {
            for every in [None, Some(hour), Some(Duration::MAX)] {
                let place = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
                let saver = Saver::new(place, every, &index, begins);
                let due = lock_std(&saver.state).due;
                match (every, is_at_once) {
                    (None, _) | (Some(Duration::MAX), false) => assert_eq!(due, None, "{begins:?}"),
                    (Some(_), true) => assert!(due.is_some_and(|due| due <= Instant::now()), "{begins:?}"),
                    (Some(_), false) => assert!(due.is_some_and(|due| due > Instant::now() + hour / 2)),
                }
                assert_eq!(saver.is_current(&index), is_current, "{begins:?}");
                let status = saver.status();
                let longest = Duration::from_millis(u64::MAX - 1);
                assert_eq!((status.every(), status.begun), (every.map(|every| every.min(longest)), 0));
                assert_eq!((status.keys, status.saved), (if is_current { 700 } else { 0 }, 0));
                if is_at_once && every.is_some() {
                    assert!(saver.wait());
                }
                // The next one is due so much later, and is not made while nothing changes.
                saver.make(&index);
                assert_eq!(saver.status().begun, u64::from(!is_current), "{begins:?}");
                let due = lock_std(&saver.state).due;
                assert_eq!(due.is_some(), every == Some(hour), "{begins:?}");
                assert!(due.is_none_or(|due| due > Instant::now() + hour / 2));
                let before = saver.status();
                std::thread::sleep(Duration::from_millis(3));
                saver.make(&index);
                let status = saver.status();
                assert_eq!((status.begun, status.saved), (before.begun, before.saved));
                assert!(status.saved_ms > before.saved_ms, "it is as good as one that begins now");
                // Unless somebody asks.
                assert_eq!(saver.ask().asked, before.begun + 1);
                saver.make(&index);
                assert_eq!(saver.status().saved, before.begun + 1);
            }
        }
    }

    /// A snapshot that fails, or is broken off because the server stops, is not taken for the last one: what is
    /// known of that stays, and the next one is made. A failure is told, and stays so when the next one
    /// succeeds. A server that ends makes no more on request.
    #[test]
    fn a_failed_snapshot_leaves_the_last() {
        let (index, place, dir) = filled();
        let saver = Saver::new(place, None, &index, Begins::Empty);
        saver.save(&index, None, &|| false).unwrap();
        let first = saver.status();
        let about = |status: &SnapshotStatus| (status.saved, status.saved_ms, status.keys, status.bytes);
        assert_eq!((first.keys, first.failed_ms), (700, 0));
        index.put(b"key", b"value", PutMode::Insert).unwrap();
        assert!(matches!(saver.save(&index, None, &|| true), Err(SaveError::BrokenOff)));
        let status = saver.status();
        assert_eq!((about(&status), status.begun, status.finished), (about(&first), 2, 2));
        assert!(status.failure().is_none() && !saver.is_current(&index));
        std::fs::remove_dir_all(dir.path()).unwrap();
        saver.save(&index, None, &|| false).unwrap_err();
        let status = saver.status();
        assert_eq!((about(&status), status.begun, status.finished), (about(&first), 3, 3));
        let (_, why) = status.failure().unwrap();
        assert_eq!(why.kind(), std::io::ErrorKind::NotFound);
        assert!(status.failed_ms >= first.saved_ms && !saver.is_current(&index));
        std::fs::create_dir(dir.path()).unwrap();
        saver.save(&index, None, &|| false).unwrap();
        let status = saver.status();
        assert_eq!((status.saved, status.keys, status.finished), (4, 701, 4));
        assert!(status.failure().is_some() && saver.is_current(&index));
        assert!(saver.save_last(&index).is_none(), "it has all");
        saver.ask();
        assert!(saver.wait());
        saver.end();
        assert!(!saver.wait());
        index.remove(b"key").unwrap();
        assert_eq!(saver.save_last(&index).unwrap().unwrap().keys, 700);
    }
}
