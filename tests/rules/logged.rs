//! What a log has survives its server (K): each kind of change, from a copy of the log's folder at any moment.
//!
//! A copy is what a killed server leaves. What a power cut leaves besides is for the log's own tests (`src/log/tests.rs`).

use oneread::embedded::Index;
use oneread::error::LogError;
use oneread::layout::Life;
use oneread::{
    Address, Backing, Config, Evict, Fsync, LogConfig, PartChange, PutMode, PutOptions, ServeError, Server,
    ServerConfig, Snapshots, StartMode, TableSize, Tell,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
const OWNERS: [u16; 2] = [7, 9];
const KEYS: u64 = 40;

fn sizes() -> [TableSize; 2] {
    [TableSize::Slots(400), TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(64) }]
}

fn config(dir: &Path, size: TableSize) -> ServerConfig {
    let heap = matches!(size, TableSize::Slots(_)).then_some(4 << 20);
    let table = Config::new().size(size).key_max(200).value_max(3_000).inline_max(28).heap_bytes(heap);
    let table = table.grace(Duration::ZERO).life(true).owners(true);
    let address = Address::Shm(dir.join("sock"));
    ServerConfig::new(address, table).log(LogConfig::new(dir.join("log")))
}

/// Short keys and long ones.
fn key(n: u64) -> Vec<u8> {
    let mut key = n.to_le_bytes().to_vec();
    key.resize(if n.is_multiple_of(5) { 150 } else { 8 }, b'k');
    key
}

fn value(n: u64, version: u64) -> Vec<u8> {
    let mut value = version.to_string().into_bytes();
    value.resize(if n.is_multiple_of(7) { 2_000 } else { 8 }, b'v');
    value
}

/// An entry: its value, whether it ends, and its owner.
type Entry = (Vec<u8>, bool, u16);

fn entries(index: &Index) -> BTreeMap<Vec<u8>, Entry> {
    let mut found = BTreeMap::new();
    for n in 0..KEYS {
        let mut value = Vec::new();
        if index.reader().get_into(&key(n), &mut value).unwrap() {
            let Life { owner, expiry, .. } = index.life(&key(n)).unwrap().unwrap();
            found.insert(key(n), (value, expiry != 0, owner));
        }
    }
    assert_eq!(found.len() as u64, index.len());
    found
}

/// A copy of a log's folder: the log first, so that the snapshot is not older.
fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("log")).unwrap();
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(from.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".log") || name == "snapshot" {
            let into = to.path().join("log").join(name);
            std::fs::copy(&path, &into).unwrap();
        }
    }
    to
}

/// Makes changes of every kind, and now and then holds what a copy of the log has against what is there. Returns the
/// first difference.
fn changes(size: TableSize, seed: u64) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(config(dir.path(), size)).unwrap();
    let mut state = seed;
    let mut random = move |end: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % end
    };
    for step in 0..400 {
        let index = server.index();
        let n = random(KEYS);
        let (key, value) = (key(n), value(n, step));
        let part = |part| index.change_part(&key, part, Tell::Nothing).map(drop);
        match random(20) {
            0..6 => drop(index.put(&key, &value, PutMode::Upsert).unwrap()),
            6 => drop(index.put_with(&key, &value, PutOptions::new().ttl(DAY)).unwrap()),
            7 => drop(index.touch(&key, Some(DAY)).unwrap()),
            8 => drop(index.touch(&key, None).unwrap()),
            9..12 => drop(index.remove(&key).unwrap()),
            12 => part(PartChange::Append { bytes: b"more", len_max: 3_000 }).unwrap(),
            13 => drop(part(PartChange::Increment { delta: 1, absent: None })),
            14 => {
                let session = index.owner(OWNERS[step as usize % 2], DAY);
                if let Ok(session) = session {
                    index.put_of(&session, &key, &value, PutMode::Upsert.into()).unwrap();
                }
            }
            15 if random(4) == 0 => drop(index.remove_owner(OWNERS[step as usize % 2]).unwrap()),
            16 => {
                let session = index.start_session().unwrap();
                let ticket = index.put_start(&session, &key, value.len(), DAY / 48).unwrap();
                if random(2) == 0 {
                    index.put_piece(&session, &key, ticket, &value).unwrap();
                    index.put_commit(&session, &key, ticket, None).unwrap();
                }
            }
            17 if random(20) == 0 => drop(index.clear(&mut |_| true).unwrap()),
            18 if random(8) == 0 => {
                let mut client = oneread::Client::connect(server.address()).unwrap();
                let asked = client.ask_for_snapshot().unwrap();
                while client.snapshot_status().unwrap().has_ended(&asked) == Some(false) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
        index.tidy();
        if random(40) == 0 {
            let expected = entries(server.index());
            let dir = copy(dir.path());
            let next =
                Server::start(config(dir.path(), size)).map_err(|error| format!("step {step}: {error:?}"))?;
            let found = entries(next.index());
            if found != expected {
                let differs = |key: &&Vec<u8>| found.get(*key) != expected.get(*key);
                let first = found.keys().chain(expected.keys()).find(differs).unwrap();
                return Err(format!("step {step}: {:?}, not {:?}", found.get(first), expected.get(first)));
            }
            next.stop();
        }
        if random(100) == 0 {
            let expected = entries(server.index());
            server.stop();
            server =
                Server::start(config(dir.path(), size)).map_err(|error| format!("step {step}: {error:?}"))?;
            assert_eq!(entries(server.index()), expected, "step {step}: after a stop");
        }
    }
    Ok(())
}

#[test]
fn each_kind_of_change_is_made_again() {
    for size in sizes() {
        for seed in 0..6 {
            changes(size, seed).unwrap_or_else(|why| panic!("{size:?}, seed {seed}: {why}"));
        }
    }
}

/// A log does not go on from another snapshot than its own, nor from a table that was served without it.
#[test]
fn a_log_goes_on_from_its_own() {
    let [size, _] = sizes();
    let dir = tempfile::tempdir().unwrap();
    let start = |config: ServerConfig| Server::start(config);
    let put = |server: &Server, n| assert!(server.index().put(&key(n), b"value", PutMode::Upsert).is_ok());
    let server = start(config(dir.path(), size)).unwrap();
    put(&server, 1);
    server.stop();
    // The log was forgotten up to there.
    let at = dir.path().join("log/snapshot");
    let snapshot = std::fs::read(&at).unwrap();
    std::fs::remove_file(&at).unwrap();
    let server = start(config(dir.path(), size)).unwrap();
    assert_eq!(server.index().len(), 1, "the log has all");
    put(&server, 2);
    server.stop();
    let server = start(config(dir.path(), size)).unwrap();
    put(&server, 3);
    server.stop();
    std::fs::remove_file(&at).unwrap();
    let refused = start(config(dir.path(), size)).unwrap_err();
    assert!(matches!(refused, ServeError::Log { .. }), "{refused:?}");
    std::fs::write(&at, snapshot).unwrap();
    let told = start(config(dir.path(), size)).map(|server| server.index().len());
    assert!(!matches!(told, Ok(0..3)), "{told:?}");
    // A snapshot of a table without a log.
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other");
    let plain = config(other.path(), size).log(None).snapshots(Snapshots::new(&path));
    let server = start(plain).unwrap();
    put(&server, 9);
    server.stop();
    let refused = start(config(dir.path(), size).restore(path.clone())).unwrap_err();
    assert!(matches!(refused, ServeError::Log { .. }), "{refused:?}");
    // With an empty log it begins one, from a snapshot of its own.
    let begun = config(other.path(), size).restore(path.clone());
    let server = start(begun.clone()).unwrap();
    put(&server, 10);
    let dir = copy(other.path());
    let next = start(config(dir.path(), size)).unwrap();
    assert_eq!(next.index().len(), 2);
    next.stop();
    server.stop();
}

/// A log is one server's at a time.
#[test]
fn a_log_has_one_server() {
    let [size, _] = sizes();
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Server::start(config(dir.path(), size)).unwrap();
    // Its snapshots are elsewhere.
    let log = LogConfig::new(dir.path().join("log"));
    let second = config(other.path(), size).log(log).snapshots(Snapshots::new(other.path().join("snapshot")));
    let refused = Server::start(second.clone()).unwrap_err();
    let is_locked =
        matches!(&refused, ServeError::Log { source, .. } if matches!(source, LogError::Locked { .. }));
    assert!(is_locked, "{refused:?}");
    first.index().put(&key(1), b"value", PutMode::Upsert).unwrap();
    first.stop();
    std::fs::rename(dir.path().join("log/snapshot"), other.path().join("snapshot")).unwrap();
    let second = Server::start(second).unwrap();
    assert_eq!(second.index().len(), 1);
    second.stop();
}

/// A table that evicts comes back with what it had, or more: what was evicted may come back.
#[test]
fn a_table_that_evicts_has_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let config = |dir: &Path| config(dir, TableSize::Slots(64)).evict(Evict::S3Fifo);
    let server = Server::start(config(dir.path())).unwrap();
    for n in 0..500 {
        server.index().put(&(n as u64).to_le_bytes(), b"value", PutMode::Upsert).unwrap();
    }
    let copied = copy(dir.path());
    let next = Server::start(config(copied.path())).unwrap();
    let has_last = next.index().reader().get_into(&499u64.to_le_bytes(), &mut Vec::new()).unwrap();
    assert!(has_last && next.index().len() <= 64);
    next.stop();
    server.stop();
}

/// Logs that are synced later have all that was changed once the server has stopped.
#[test]
fn a_stop_syncs_the_log() {
    for fsync in [Fsync::EverySecond, Fsync::Never] {
        let dir = tempfile::tempdir().unwrap();
        let [size, _] = sizes();
        let config = |dir: &Path| {
            let config = config(dir, size);
            config.log(LogConfig::new(dir.join("log")).fsync(fsync))
        };
        let server = Server::start(config(dir.path())).unwrap();
        for n in 0..30 {
            server.index().put(&key(n), &value(n, 1), PutMode::Upsert).unwrap();
        }
        server.stop();
        std::fs::remove_file(dir.path().join("log/snapshot")).unwrap();
        let server = Server::start(config(dir.path())).unwrap();
        assert_eq!(server.index().len(), 30, "{fsync:?}");
        server.stop();
    }
}

// ---- tables that outlive their servers ------------------------------------------------------------------

/// A table in a region file, with a log that is synced so.
fn with_region(dir: &Path, fsync: Fsync) -> ServerConfig {
    let [size, _] = sizes();
    let log = LogConfig::new(dir.join("log")).fsync(fsync);
    let config = config(dir, size).backing(Backing::File(dir.join("region"))).log(log);
    config.start(StartMode::OpenOrCreate)
}

/// What a killed server leaves: its table, and a log that lacks so many bytes at the end, which its memory had.
fn killed(from: &Path, lacks: u64) -> tempfile::TempDir {
    let to = copy(from);
    // Without holes.
    std::fs::write(to.path().join("region"), std::fs::read(from.join("region")).unwrap()).unwrap();
    let last = log_files(to.path()).pop().unwrap();
    let file = std::fs::File::options().write(true).open(last).unwrap();
    file.set_len(file.metadata().unwrap().len() - lacks).unwrap();
    to
}

fn log_files(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|it| it == "log")).collect();
    logs.sort();
    logs
}

/// How many keys there are after a power cut now: the region file is gone.
fn keys_after_a_power_cut(dir: &Path) -> u64 {
    let cut = copy(dir);
    let server = Server::start(with_region(cut.path(), Fsync::Always)).unwrap();
    let keys = server.index().len();
    server.stop();
    keys
}

/// Waits until the system has all records.
fn until_written(server: &Server) {
    let begun = std::time::Instant::now();
    while server.log().is_some_and(|log| log.written < log.next) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the log is not written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A log is to begin over a table that has keys, and its start ends before there is a snapshot. The next start begins it: a power
/// cut takes none of the keys.
#[test]
fn a_log_begins_with_its_snapshot() {
    const MANY: u64 = 150;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(with_region(dir.path(), Fsync::Always).log(None)).unwrap();
    for n in 0..MANY {
        server.index().put(&n.to_le_bytes(), &[7; 3_000], PutMode::Insert).unwrap();
    }
    server.stop();
    let cancel = Arc::new(AtomicBool::new(true));
    let ended = Server::start(with_region(dir.path(), Fsync::Always).cancel(cancel));
    assert!(matches!(ended, Err(ServeError::Cancelled)));
    assert!(log_files(dir.path()).is_empty(), "it has not begun");
    let server = Server::start(with_region(dir.path(), Fsync::Always)).unwrap();
    assert_eq!((server.index().len(), keys_after_a_power_cut(dir.path())), (MANY, MANY));
    // Without the snapshot it is not taken for one that began with an empty table.
    let lost = copy(dir.path());
    std::fs::remove_file(lost.path().join("log/snapshot")).unwrap();
    let refused = Server::start(with_region(lost.path(), Fsync::Always)).map(drop).unwrap_err();
    assert!(matches!(refused, ServeError::Log { .. }), "{refused:?}");
    server.stop();
}

/// A server is killed while its memory has records of what it has answered, if `then` allows that. The next one takes its table over.
/// Returns how many snapshots that made, and how many keys a power cut takes then.
fn lost_behind_a_kill(then: Fsync, now: Fsync) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(with_region(dir.path(), then)).unwrap();
    for n in 0..30 {
        server.index().put(&key(n), &value(n, 1), PutMode::Insert).unwrap();
    }
    until_written(&server);
    let dir = killed(dir.path(), if then == Fsync::Always { 0 } else { 100 });
    server.stop();
    let server = Server::start(with_region(dir.path(), now)).unwrap();
    server.index().put(&key(30), &value(30, 1), PutMode::Insert).unwrap();
    until_written(&server);
    assert_eq!(server.index().len(), 31);
    let (made, kept) = (server.snapshot_status().unwrap().saved, keys_after_a_power_cut(dir.path()));
    server.stop();
    // One that has stopped has handed over all that it had.
    let server = Server::start(with_region(dir.path(), now)).unwrap();
    assert_eq!((server.index().len(), server.snapshot_status().unwrap().saved), (31, 0));
    server.stop();
    (made, 31 - kept)
}

#[test]
fn what_a_killed_server_has_answered_is_saved() {
    for then in [Fsync::EverySecond, Fsync::Never] {
        for now in [then, Fsync::Always] {
            assert_eq!(lost_behind_a_kill(then, now), (1, 0), "{then:?}, {now:?}");
        }
    }
    assert_eq!(lost_behind_a_kill(Fsync::Always, Fsync::EverySecond), (0, 0), "its log has all");
}

/// The last records that a snapshot has were on no disk, as those of evicted keys may be, when the server was killed. Returns how many
/// keys a power cut takes that came after.
fn lost_behind_a_snapshot() -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(with_region(dir.path(), Fsync::Always)).unwrap();
    for n in 0..10 {
        server.index().put(&key(n), b"value", PutMode::Insert).unwrap();
    }
    let mut client = oneread::Client::connect(server.address()).unwrap();
    let asked = client.ask_for_snapshot().unwrap();
    while client.snapshot_status().unwrap().has_ended(&asked) == Some(false) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let dir = killed(dir.path(), 60);
    server.stop();
    let server = Server::start(with_region(dir.path(), Fsync::Always)).unwrap();
    for n in 10..12 {
        server.index().put(&key(n), b"value", PutMode::Insert).unwrap();
    }
    let kept = keys_after_a_power_cut(dir.path());
    server.stop();
    12 - kept
}

#[test]
fn numbers_that_a_snapshot_is_past_are_not_given_again() {
    assert_eq!(lost_behind_a_snapshot(), 0);
}

/// A log that is cut by request goes on from a snapshot of the table that is there.
#[test]
fn a_log_that_is_cut_is_begun_from_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(with_region(dir.path(), Fsync::Always)).unwrap();
    for n in 0..10 {
        server.index().put(&key(n), b"value", PutMode::Insert).unwrap();
    }
    let dir = killed(dir.path(), 0);
    server.stop();
    let file = log_files(dir.path()).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let Err(ServeError::Log { source: LogError::Damaged { number, .. }, .. }) =
        Server::start(with_region(dir.path(), Fsync::Always))
    else {
        panic!("it is damaged");
    };
    let cut = |dir: &Path| {
        let log = LogConfig::new(dir.join("log")).truncate_at(number);
        Server::start(with_region(dir, Fsync::Always).log(log)).unwrap()
    };
    let server = cut(dir.path());
    assert_eq!((server.index().len(), keys_after_a_power_cut(dir.path())), (10, 10));
    for n in 10..20 {
        server.index().put(&key(n), b"value", PutMode::Insert).unwrap();
    }
    let dir = killed(dir.path(), 0);
    server.stop();
    // Who leaves it in a configuration loses nothing of what came since.
    let server = cut(dir.path());
    assert_eq!((server.index().len(), keys_after_a_power_cut(dir.path())), (20, 20));
    server.stop();
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    #[test]
    fn broken_rules_are_noticed() {
        for rule in [Rule::LogLife, Rule::LogOwner] {
            let _broken = Broken::rule(rule);
            let is_noticed = (0..20).any(|seed| changes(sizes()[seed as usize % 2], seed).is_err());
            assert!(is_noticed, "{rule:?} was broken, and nobody noticed");
        }
    }

    #[test]
    fn what_a_killed_server_has_answered_may_be_lost() {
        let _broken = Broken::rule(Rule::LogBehind);
        assert_eq!(lost_behind_a_kill(Fsync::EverySecond, Fsync::EverySecond), (0, 2), "nobody noticed");
    }

    #[test]
    fn a_number_that_is_given_again_is_noticed() {
        let _broken = Broken::rule(Rule::LogNumber);
        assert_eq!(lost_behind_a_snapshot(), 2, "nobody noticed");
    }
}
