//! What a log has survives its server (K): each kind of change, from a copy of the log's folder at any moment.
//!
//! A copy is what a killed server leaves. What a power cut leaves besides is for the log's own tests (`src/log/tests.rs`).

use oneread::embedded::Index;
use oneread::error::LogError;
use oneread::layout::Life;
use oneread::{
    Address, Config, Evict, Fsync, LogConfig, PartChange, PutMode, PutOptions, ServeError, Server,
    ServerConfig, Snapshots, TableSize, Tell,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
}
