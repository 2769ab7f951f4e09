//! A log on a disk that loses, tears, reorders and fails.

use super::read::{may_say_more, name_of, says_more};
use super::sim_disk::SimDisk;
use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::faults::Broken;
use crate::index::Index;
use crate::outcome::PutMode;
use crate::region::Region;
use crate::sim::{Adversary, Random};
use crate::snapshot::{Snapshot, SnapshotPath};
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: LoggedTable = LoggedTable { generation: 1, incarnation: 1, made_ns: 0, boot: 1 };

pub(crate) fn begin(disk: &SimDisk, fsync: Fsync) -> Log {
    LogOnDisk::on(Arc::new(disk.clone()), None).unwrap().go_on(TABLE, fsync).unwrap()
}

impl Log {
    /// Waits until a record is on the disk.
    ///
    /// # Errors
    /// [`LogFailed`]: nobody knows whether it will be there after a crash.
    fn wait(&self, Logged { number, .. }: Logged) -> Result<(), LogFailed> {
        let mut state = lock_std(&self.shared.state);
        loop {
            if state.durable > number {
                return Ok(());
            }
            // K2
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What a record of these tests has.
fn value(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 37 % 200) as usize]
}

fn put(log: &Log, number: u64) -> Result<Logged, LogFailed> {
    let (key, value) = (number.to_le_bytes(), value(number));
    log.take(number, LogRecord::Put { key: &key, value: &value, owner: 0, expiry: 0 })
}

/// The numbers of all records of a log. Checks what they have.
fn records(disk: &SimDisk) -> Result<std::ops::Range<u64>, LogError> {
    let log = LogOnDisk::on(Arc::new(disk.clone()), None)?;
    let mut next = log.records().start;
    log.replay(next, |number, record, table| {
        assert_eq!((number, *table), (next, TABLE));
        let (key, value) = (number.to_le_bytes(), value(number));
        assert_eq!(record, LogRecord::Put { key: &key, value: &value, owner: 0, expiry: 0 });
        next += 1;
        true
    })?;
    assert_eq!(next, log.records().end);
    Ok(log.records())
}

/// Several threads take records and wait, while the power is cut at some moment. Returns the first record that was
/// acknowledged and is not there, if there is one.
fn cut_at_random(seed: u64, fails: bool) -> Result<(), String> {
    let disk = SimDisk::default();
    let mut random = Random::new(seed);
    // A log that has had other servers.
    for _ in 0..random.pick(3) {
        let log = begin(&disk, Fsync::Always);
        for _ in 0..random.pick(4) {
            let number = log.status().next;
            log.wait(put(&log, number).unwrap()).unwrap();
        }
    }
    let log = begin(&disk, Fsync::Always);
    if fails {
        disk.fail_in(random.pick(8) as u64);
    }
    let faults = crate::faults::all_broken();
    let numbers = Mutex::new(());
    let acknowledged = AtomicU64::new(log.status().next);
    let image = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                crate::faults::break_all(faults);
                for _ in 0..6 {
                    // So that each record has the value of its number.
                    let logged = {
                        let _one = lock_std(&numbers);
                        put(&log, log.status().next)
                    };
                    let Ok(logged) = logged else { return };
                    if !log.must_wait() || log.wait(logged).is_ok() {
                        acknowledged.fetch_max(logged.number + 1, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..random.pick(200) {
            std::hint::spin_loop();
        }
        if random.pick(4) == 0 {
            std::thread::sleep(Duration::from_micros(random.pick(300) as u64));
        }
        let end = acknowledged.load(Ordering::SeqCst);
        (end, disk.cut_power(&mut random))
    });
    for (end, disk) in [image, (acknowledged.load(Ordering::SeqCst), disk.cut_power(&mut random))] {
        let there = records(&disk).map_err(|error| error.to_string())?;
        if there.end < end {
            return Err(format!("record {} was acknowledged, and there are {there:?}", end - 1));
        }
        // It goes on from there.
        let log = begin(&disk, Fsync::Always);
        assert_eq!(log.status().next, there.end);
        log.wait(put(&log, there.end).unwrap()).unwrap();
        drop(log);
        assert_eq!(records(&disk).unwrap(), there.start..there.end + 1);
    }
    Ok(())
}

/// What was acknowledged is there after a power cut, in order, without gaps; and the log goes on.
#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    for seed in 0..400 {
        cut_at_random(seed, seed % 2 == 1).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// Without one of these rules, some of it is lost.
#[test]
fn a_broken_rule_loses_what_was_acknowledged() {
    for rule in [Rule::LogFirst, Rule::LogFailed, Rule::LogNames] {
        let _broken = Broken::rule(rule);
        let is_found = (0..4_000).any(|seed| cut_at_random(seed, rule == Rule::LogFailed).is_err());
        assert!(is_found, "{rule:?} was broken, and nobody noticed");
    }
}

/// A log of two files, all of it synced by several syncs.
fn two_files() -> (SimDisk, Vec<u64>) {
    let disk = SimDisk::default();
    let mut durable = Vec::new();
    for _ in 0..2 {
        let log = begin(&disk, Fsync::Always);
        for _ in 0..4 {
            let number = log.status().next;
            log.wait(put(&log, number).unwrap()).unwrap();
            durable.push(number);
        }
    }
    (disk, durable)
}

/// However a file is cut, what is there is the beginning of what was. The last record may go; where others go, the log says
/// so.
#[test]
fn a_log_that_is_cut_at_any_byte() {
    let (disk, _) = two_files();
    for file in [name_of(1), name_of(5)] {
        let len = disk.len(&file).unwrap() as usize;
        for cut in 0..len {
            let cut_disk = disk.copy();
            cut_disk.change(&file, |bytes| bytes.truncate(cut));
            match records(&cut_disk) {
                Ok(there) => assert!(
                    file == name_of(5) && there.start == 1 && there.end >= 5,
                    "{file} {cut}: {there:?}"
                ),
                Err(error) => assert!(file == name_of(1), "{file} {cut}: {error}"),
            }
        }
    }
}

/// With any bit changed, the log is read as it was but for its last record, or refused with the place.
fn bits_that_are_believed() -> Vec<String> {
    let (disk, durable) = two_files();
    let last = *durable.last().unwrap();
    let mut believed = Vec::new();
    for file in [name_of(1), name_of(5)] {
        let len = disk.len(&file).unwrap() as usize;
        for byte in 0..len {
            let bad = disk.copy();
            bad.change(&file, |bytes| bytes[byte] ^= 1 << (byte % 8));
            match records(&bad) {
                Ok(there) if there.end >= last => {}
                Ok(there) => believed.push(format!("{file} {byte}: {there:?}")),
                Err(LogError::Damaged { name, .. }) => assert_eq!(name, file),
                Err(LogError::Version { .. }) if (8..12).contains(&byte) => {}
                Err(LogError::Hole { .. }) => {}
                Err(error) => panic!("{file} {byte}: {error}"),
            }
        }
    }
    believed
}

#[test]
fn damage_is_told_from_what_was_not_synced() {
    assert_eq!(bits_that_are_believed(), [""; 0]);
    let _broken = Broken::rule(Rule::LogTail);
    assert_ne!(bits_that_are_believed(), [""; 0], "acknowledged records were cut off");
}

/// What may be found behind the end of a log: values of any kind, of records whose heads are lost. Little of that is summed to
/// find whether a record among it says that more was on the disk, and such a record is found.
#[test]
fn little_is_summed_behind_the_end() {
    const BYTES: usize = 1 << 20;
    let (id, end) = (7, 1_000u64);
    let words = |word: fn(u64) -> u64| (0..BYTES as u64 / 8).flat_map(|n| word(n).to_le_bytes()).collect();
    let tails: [Vec<u8>; 5] = [
        vec![1; BYTES],
        words(|n| n),
        words(|n| (n << 32) | n),
        words(|n| ((n * 4_099 % 60_000) << 32) | (n * 8_191 % 50_000)),
        words(|_| 900),
    ];
    for (nth, mut tail) in tails.into_iter().enumerate() {
        let summed: usize = may_say_more(&tail, end).map(|(_, body)| body.len()).sum();
        assert!(!says_more(&tail, id, end) && summed <= BYTES, "{nth}: {summed} bytes");
        let mut record = Vec::new();
        let crc = LogRecord::Remove { key: b"key" }.write(&mut record);
        for (durable, is_more) in [(end, false), (end + 1, true)] {
            frame::finish(&mut record, id, crc, end + 9, end, durable);
            tail[BYTES - 777..][..record.len()].copy_from_slice(&record);
            assert_eq!(says_more(&tail, id, end), is_more, "{nth}");
        }
    }
}

/// A damaged log goes on without its end, where that is asked for.
#[test]
fn a_damaged_log_is_cut_where_asked() {
    let (disk, _) = two_files();
    disk.change(&name_of(1), |bytes| bytes[200] ^= 1);
    let Err(LogError::Damaged { number, .. }) = records(&disk) else { panic!("it is damaged") };
    let log = LogOnDisk::on(Arc::new(disk.clone()), Some(number)).unwrap();
    assert_eq!(log.records(), 1..number);
    let log = log.go_on(TABLE, Fsync::Always).unwrap();
    log.wait(put(&log, number).unwrap()).unwrap();
    drop(log);
    assert_eq!(records(&disk).unwrap(), 1..number + 1);
    // It is asked for once more, as by a configuration: the record is there now.
    let log = LogOnDisk::on(Arc::new(disk.clone()), Some(number)).unwrap();
    assert_eq!(log.records(), 1..number + 1);
    drop(log);
    // A file that is missing.
    disk.remove(&name_of(1)).unwrap();
    let log = begin(&disk, Fsync::Always);
    log.wait(put(&log, number + 1).unwrap()).unwrap();
    drop(log);
    assert_eq!(records(&disk).unwrap(), number..number + 2);
    let (disk, _) = two_files();
    begin(&disk, Fsync::Always);
    let log = begin(&disk, Fsync::Always);
    log.wait(put(&log, 9).unwrap()).unwrap();
    drop(log);
    disk.remove(&name_of(5)).unwrap();
    assert!(matches!(records(&disk), Err(LogError::Hole { number: 5, .. })));
}

/// One sync is for all that came while the last one went on.
#[test]
fn many_share_a_sync() {
    let disk = SimDisk::default();
    let log = begin(&disk, Fsync::Always);
    let before = disk.syncs();
    let all: Vec<Logged> = (1..=64).map(|number| put(&log, number).unwrap()).collect();
    all.iter().for_each(|logged| log.wait(*logged).unwrap());
    let syncs = disk.syncs() - before;
    assert!(syncs <= 64 && log.status().syncs == syncs, "{syncs}");
    assert_eq!(log.status().durable, 65);
    // What is not visible yet holds up what may be forgotten.
    assert_eq!(log.applied(), 1);
    (1..=64).filter(|number| *number != 7).for_each(|number| log.is_visible(number));
    assert_eq!(log.applied(), 7);
    log.is_visible(7);
    assert_eq!(log.applied(), 65);
}

/// Files go whose records a snapshot has, and no others.
#[test]
fn files_are_forgotten_in_order() {
    let (disk, _) = two_files();
    let log = begin(&disk, Fsync::Always);
    let names = || disk.names().unwrap();
    assert_eq!(names(), [name_of(1), name_of(5), name_of(9)]);
    log.forget_below(4, 0).unwrap();
    assert_eq!(names().len(), 3);
    log.forget_below(5, 0).unwrap();
    assert_eq!(names(), [name_of(5), name_of(9)]);
    log.forget_below(100, 0).unwrap();
    assert_eq!(names(), [name_of(9)], "the present one stays");
    drop(log);
    assert_eq!(records(&disk).unwrap(), 9..9);
}

/// A table of its own.
fn table() -> Index {
    let geometry = Config { size: TableSize::Slots(100), ..Config::short() }.geometry().unwrap();
    Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap()
}

/// A snapshot is made while a change waits for the disk. Returns whether the change is there after a crash.
fn is_there_after_a_walk() -> bool {
    let (disk, dir) = (SimDisk::default(), tempfile::tempdir().unwrap());
    let index = table().with_log(begin(&disk, Fsync::Always));
    index.put(b"first", b"1", PutMode::Insert).unwrap();
    disk.hold(true);
    let path = dir.path().join("snapshot");
    let place = SnapshotPath::claim(&path).unwrap();
    let saved = std::thread::scope(|scope| {
        let waits = scope.spawn(|| index.put(b"key", b"value", PutMode::Insert).unwrap());
        while index.log().unwrap().status().next < 3 {
            std::thread::yield_now();
        }
        let saved = index.save_at(&place, &mut |_, _| true).unwrap();
        disk.hold(false);
        waits.join().unwrap();
        saved
    });
    assert_eq!(saved.keys, 1, "the change was not visible");
    let next = table();
    next.restore_from(&Snapshot::open(&path).unwrap(), &mut |_, _| {}).unwrap();
    let log = LogOnDisk::on(Arc::new(disk), None).unwrap();
    log.replay(saved.log.unwrap().from, |_, record, of| next.replay_record(record, of).is_ok()).unwrap();
    next.len() == 2
}

#[test]
fn a_change_that_waits_during_a_walk_is_noticed() {
    assert!(is_there_after_a_walk());
    let _broken = Broken::rule(Rule::LogApplied);
    assert!(!is_there_after_a_walk(), "nobody noticed");
}

/// A change that waits is in no GET. When the disk fails, it is not made, and no other one is.
#[test]
fn what_waits_is_not_visible_and_what_failed_is_not_made() {
    let disk = SimDisk::default();
    let index = table().with_log(begin(&disk, Fsync::Always));
    let has = |key: &[u8]| index.reader().get_into(key, &mut Vec::new()).unwrap();
    disk.hold(true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| index.put(b"key", b"value", PutMode::Insert));
        while index.log().unwrap().status().next < 2 {
            std::thread::yield_now();
        }
        assert!(!has(b"key"));
        disk.hold(false);
        assert!(waits.join().unwrap().is_ok() && has(b"key"));
    });
    disk.fail_in(1);
    assert!(index.put(b"other", b"value", PutMode::Insert).is_err());
    assert!(index.put(b"another", b"value", PutMode::Insert).is_err());
    assert!(index.remove(b"key").is_err());
    assert!(has(b"key") && !has(b"other") && index.len() == 1);
    assert!(index.log().unwrap().status().has_failed);
}

/// An entry that keeps its owner, whose record says that he goes, will be hidden with his others: its record says that it is gone
/// (K8).
#[test]
fn entries_of_an_owner_who_goes_do_not_come_back() {
    let disk = SimDisk::default();
    let log = begin(&disk, Fsync::Always);
    let put = |owner| log.take(1, LogRecord::Put { key: b"key", value: b"value", owner, expiry: 0 }).unwrap();
    log.wait(put(7)).unwrap();
    log.is_visible(1);
    let goes = log.owner_goes(7).unwrap();
    put(7);
    put(8);
    log.wait(goes).unwrap();
    log.owner_has_gone(7);
    log.wait(put(7)).unwrap();
    drop(log);
    let mut told = Vec::new();
    let log = LogOnDisk::on(Arc::new(disk), None).unwrap();
    let show = |_, record: LogRecord<'_>, _: &LoggedTable| {
        told.push(match record {
            LogRecord::Put { owner, .. } => Some(owner),
            LogRecord::Remove { .. } | LogRecord::OwnerGone { .. } => None,
        });
        true
    };
    assert!(log.replay(1, show).unwrap());
    assert_eq!(told, [Some(7), None, None, Some(8), Some(7)]);
}

/// A table is taken over while a change of one key waits, and another key has changed twice since. Returns how often
/// that one was written again.
fn written_again() -> u64 {
    let disk = SimDisk::default();
    let log = begin(&disk, Fsync::Always);
    let put = |key: &[u8], value: &[u8]| {
        log.wait(log.take(key[0].into(), LogRecord::Put { key, value, owner: 0, expiry: 0 }).unwrap())
            .unwrap();
    };
    put(b"waits", b"1");
    for value in [b"older", b"newer"] {
        put(b"key", value);
        log.is_visible(b'k'.into());
    }
    drop(log);
    let index = table();
    index.put(b"key", b"newer", PutMode::Insert).unwrap();
    let log = LogOnDisk::on(Arc::new(disk), None).unwrap();
    assert_eq!(log.applied(), 1);
    crate::server::made_again_of_test(log, &index);
    assert_eq!(index.len(), 2, "what waited is there");
    index.counts().updates
}

#[test]
fn an_older_value_is_noticed() {
    assert_eq!(written_again(), 1, "the newer value, once more");
    let _broken = Broken::rule(Rule::LogLast);
    assert_eq!(written_again(), 2, "nobody noticed the older one");
}
