//! Snapshots of a served table, and servers that begin with one. What a crash of the machine costs:
//! the server is killed and its region thrown away.

use crate::common::*;
use oneread::internals::region::Backing;
use oneread::{
    Client, Config, ServeError, Server, ServerConfig, Snapshots, StartMode, TableSize, error::RegionError,
    snapshot::Snapshot, stats::SnapshotStatus,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

fn table() -> Config {
    Config::new().size(TableSize::Keys(4_000)).key_max(16).value_max(60)
}

/// A table that grows, with the lengths of [`table`].
fn growing() -> Config {
    table().size(TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(512) })
}

struct Files {
    place: Place,
    snapshot: PathBuf,
    region: PathBuf,
}

impl Files {
    fn new() -> Files {
        let place = Place::new();
        let file = |name| place.dir.path().join(name);
        let (snapshot, region) = (file("snapshot"), file("region"));
        Files { place, snapshot, region }
    }

    /// A server that takes over what is there, or makes a new table.
    fn config(&self) -> ServerConfig {
        ServerConfig::new(self.place.address.clone(), table())
            .backing(Backing::File(self.region.clone()))
            .start(StartMode::OpenOrCreate)
            .snapshots(Snapshots::new(&self.snapshot))
    }

    fn serve(&self) -> Server {
        start(self.config())
    }

    fn client(&self) -> Client {
        Client::connect_with(&self.place.address, patient()).unwrap()
    }
}

/// Waits until the snapshot that was asked for has ended.
fn made(client: &mut Client) -> SnapshotStatus {
    let asked = client.ask_for_snapshot().unwrap().asked;
    wait_for("a snapshot", || Some(client.snapshot_status().unwrap()).filter(|it| it.finished >= asked))
}

fn keys(snapshot: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let snapshot = Snapshot::open(snapshot).unwrap();
    let (mut blocks, mut keys) = (snapshot.blocks(), BTreeMap::new());
    while let Some(block) = blocks.next().unwrap() {
        for entry in block.entries() {
            assert_eq!(keys.insert(entry.key.to_vec(), entry.value.to_vec()), None, "a key is there twice");
        }
    }
    keys
}

/// A snapshot on request has every change that was acknowledged before, and the status says what was
/// made. A server without snapshots says so.
#[test]
fn on_request() {
    let files = Files::new();
    let server = files.serve();
    let mut client = files.client();
    assert_eq!(client.snapshot_status().unwrap().finished, 0);
    for round in 1..4u32 {
        for n in 0..1000 {
            client.put(&key(n, 16), &value(u64::from(n * round), 20)).unwrap();
        }
        client.remove(&key(round, 16)).unwrap();
        let about = made(&mut client);
        assert_eq!((about.begun, about.saved, about.finished), (round.into(), round.into(), round.into()));
        assert_eq!((about.keys, about.failure().is_none(), about.every()), (999, true, None));
        assert_eq!(about.bytes, fs::metadata(&files.snapshot).unwrap().len());
        let there = keys(&files.snapshot);
        assert_eq!(there.len(), 999);
        assert!(
            (0..1000).filter(|&n| n != round).all(|n| there[&key(n, 16)] == value(u64::from(n * round), 20))
        );
    }
    // Whoever asks gets one, although nothing has changed; also who has the server itself.
    assert_eq!(made(&mut client).saved, 4);
    let asked = server.ask_for_snapshot().unwrap();
    assert!(asked.asked == 5 && asked.saved >= 4, "{asked:?}");
    let is_made = || server.snapshot_status().filter(|status| status.finished >= 5);
    assert_eq!(wait_for("a snapshot", is_made).saved, 5);
    // Nothing has changed since: the end makes no other.
    assert!(server.stop().saved.is_none());
    assert_eq!(fs::read_dir(files.place.dir.path()).unwrap().count(), 2, "snapshot and region");

    let other = Place::new();
    let server = start(ServerConfig::new(other.address.clone(), table()));
    let mut client = Client::connect_with(&other.address, patient()).unwrap();
    assert!(!client.ask_for_snapshot().unwrap().is_on() && server.snapshot_status().is_none());
    assert!(server.ask_for_snapshot().is_none() && server.stop().saved.is_none());
}

/// A server that stops leaves a snapshot of everything. A new table begins with it; a table that is
/// taken over has newer keys, and keeps them.
#[test]
fn a_new_table_begins_with_the_last_snapshot() {
    let files = Files::new();
    let server = files.serve();
    assert!(server.restored().is_none() && server.recovered().is_none());
    let mut client = files.client();
    (0..1000).for_each(|n| assert!(client.put(&key(n, 16), b"first").is_ok()));
    let saved = server.stop().saved.unwrap().unwrap();
    assert_eq!((saved.keys, keys(&files.snapshot).len()), (1000, 1000));
    let older = files.place.dir.path().join("older");
    fs::copy(&files.snapshot, &older).unwrap();

    // The region is still there.
    let server = files.serve();
    assert_eq!((server.restored(), server.recovered().unwrap().keys), (None, 1000));
    client.remove(&key(7, 16)).unwrap();
    let _ = server.stop();

    // It is gone, as after a crash of the machine.
    fs::remove_file(&files.region).unwrap();
    let server = files.serve();
    assert_eq!((server.restored().unwrap().keys, server.recovered(), server.index().len()), (999, None, 999));
    let mut client = files.client();
    assert_eq!(client.get(&key(8, 16)).unwrap().as_deref(), Some(&b"first"[..]));
    assert_eq!(client.get(&key(7, 16)).unwrap(), None);
    let status = client.snapshot_status().unwrap();
    assert_eq!((status.keys, status.bytes), (999, fs::metadata(&files.snapshot).unwrap().len()));
    assert!(server.stop().saved.is_none(), "the snapshot has all");

    // Another file, where the server makes its own elsewhere; also where an older one is.
    for own in [files.place.dir.path().join("own"), older] {
        fs::remove_file(&files.region).unwrap();
        let config = files.config().restore(files.snapshot.clone()).snapshots(Snapshots::new(&own));
        let server = start(config);
        assert_eq!(server.restored().unwrap().keys, 999);
        assert_eq!(server.stop().saved.unwrap().unwrap().keys, 999);
        assert_eq!(keys(&own), keys(&files.snapshot));
    }
}

/// A server that was killed while it made its table has left a region that nobody was served from. The next
/// one makes another, with the keys of a snapshot if there is one.
#[test]
fn a_table_that_was_not_finished_is_made_again() {
    let files = Files::new();
    let server = files.serve();
    let mut client = files.client();
    (0..500).for_each(|n| assert!(client.put(&key(n, 16), b"value").is_ok()));
    let _ = server.stop();
    let mut region = fs::read(&files.region).unwrap();
    region[4096] = 0;
    fs::write(&files.region, &region).unwrap();
    let server = files.serve();
    assert_eq!((server.restored().unwrap().keys, server.recovered(), server.index().len()), (500, None, 500));
    assert_eq!(files.client().get(&key(7, 16)).unwrap().as_deref(), Some(&b"value"[..]));
    let _ = server.stop();

    fs::write(&files.region, &region).unwrap();
    fs::remove_file(&files.snapshot).unwrap();
    let error = Server::start(files.config().start(StartMode::Open)).unwrap_err();
    assert!(matches!(error, ServeError::Region(RegionError::Unfinished { .. })), "{error:?}");
    assert!(fs::read(&files.region).unwrap() == region, "it stays");
    let server = files.serve();
    assert_eq!((server.restored(), server.recovered(), server.index().len()), (None, None, 0));
}

/// A snapshot that is damaged, or that the table cannot take, ends the start. It stays as it is, and
/// no region is left that a later server would take for the table.
#[test]
fn a_server_does_not_begin_with_less_than_the_snapshot() {
    let files = Files::new();
    let server = files.serve();
    let index = server.index();
    (0..2000).for_each(|n| drop(index.put(&key(n, 16), &value(n.into(), 60), oneread::PutMode::Upsert)));
    let _ = server.stop();
    fs::remove_file(&files.region).unwrap();
    let good = fs::read(&files.snapshot).unwrap();
    let refused = |config: ServerConfig, says: &str| {
        let error = Server::start(config).unwrap_err();
        assert!(matches!(error, ServeError::Restore { .. }), "{error:?}");
        assert!(with_causes(&error).contains(says), "{}", with_causes(&error));
        assert!(!files.region.exists());
    };
    for (bytes, says) in [
        (&good[..good.len() / 2], "cut off"),
        (&[&good[..1000], &[!good[1000]], &good[1001..]].concat(), "damaged at byte"),
        (b"some text", "no snapshot"),
        (b"", "no snapshot"),
    ] {
        fs::write(&files.snapshot, bytes).unwrap();
        refused(files.config(), says);
        assert_eq!(fs::read(&files.snapshot).unwrap(), bytes);
    }
    fs::write(&files.snapshot, &good).unwrap();
    refused(files.config().table(table().value_max(59)), "a larger `Config::value_max`");
    refused(files.config().table(table().size(TableSize::Slots(1000))), "make a larger table");
    // A table that is taken over does not need it, but will not replace what is no snapshot.
    let server = files.serve();
    assert_eq!(server.restored().unwrap().keys, 2000);
    let _ = server.stop();
    fs::write(&files.snapshot, "a letter").unwrap();
    assert!(matches!(Server::start(files.config()), Err(ServeError::Restore { .. })));
    assert_eq!(fs::read(&files.snapshot).unwrap(), b"a letter");
    // Two servers never make snapshots in one place.
    fs::write(&files.snapshot, &good).unwrap();
    let _server = files.serve();
    let other = Place::new();
    let second = ServerConfig::new(other.address.clone(), table()).snapshots(Snapshots::new(&files.snapshot));
    assert!(matches!(
        Server::start(second),
        Err(ServeError::Snapshots(oneread::error::SaveError::Busy { .. }))
    ));
}

/// A server that could not start has served nobody: it makes no snapshot, neither of the empty table that it
/// made nor of another one's keys, and leaves the one that is there.
#[test]
fn a_server_that_does_not_start_makes_no_snapshot() {
    let files = Files::new();
    let _taken = start(ServerConfig::new(files.place.address.clone(), table()));
    let fails = |config: ServerConfig| {
        let error = Server::start(config).unwrap_err();
        assert!(matches!(error, ServeError::AddressInUse { .. }), "{error}");
    };
    fails(files.config());
    assert!(!files.snapshot.exists(), "of no key");
    let other = Files::new();
    let server = other.serve();
    (0..100).for_each(|n| drop(server.index().put(&key(n, 16), b"value", oneread::PutMode::Upsert)));
    assert_eq!(server.stop().saved.unwrap().unwrap().keys, 100);
    for _ in 0..2 {
        let _ = fs::remove_file(&files.region);
        fails(files.config().restore(other.snapshot.clone()));
        assert!(!files.snapshot.exists(), "of what was restored");
    }
    // The one that is there stays as it is.
    fs::copy(&other.snapshot, &files.snapshot).unwrap();
    let before = fs::read(&files.snapshot).unwrap();
    let _ = fs::remove_file(&files.region);
    fails(files.config());
    assert_eq!(fs::read(&files.snapshot).unwrap(), before);
}

/// A table of another layout or size takes all keys.
#[test]
fn another_layout_takes_the_keys() {
    let files = Files::new();
    let server = files.serve();
    let mut client = files.client();
    (0..1000).for_each(|n| assert!(client.put(&key(n, 16), &value(n.into(), 30)).is_ok()));
    let _ = server.stop();
    on_every_preset(|preset| {
        fs::remove_file(&files.region).unwrap();
        let server = start(files.config().table(table().layout(preset.layout)));
        assert_eq!(server.restored().unwrap().keys, 1000);
        let mut got = Vec::new();
        let reader = &mut server.index().reader();
        let mut is_there =
            |n: u32| reader.get_into(&key(n, 16), &mut got).unwrap() && got == value(n.into(), 30);
        assert!((0..1000).all(&mut is_there));
    });
}

/// A table that grows begins with a snapshot of any table, and any table with one of it: also of
/// splits under way.
#[test]
fn tables_that_grow_are_saved_and_restored() {
    const KEYS: u32 = 3_000;
    let files = Files::new();
    let config = |config: Config| files.config().table(config);
    let server = start(config(growing()));
    let mut client = files.client();
    for n in 0..KEYS {
        client.put(&key(n, 16), &value(n.into(), 30)).unwrap();
        if n % 1_000 == 500 {
            let about = made(&mut client);
            assert_eq!((about.keys, keys(&files.snapshot).len() as u32), (u64::from(n) + 1, n + 1));
        }
    }
    assert!(server.index().growth().segments > 4);
    let saved = server.stop().saved.unwrap().unwrap();
    assert_eq!((saved.keys, saved.damaged), (u64::from(KEYS), 0));
    let terms = Snapshot::open(&files.snapshot).unwrap().terms();
    assert_eq!(terms.bytes_max, Some(growing().geometry().unwrap().region_bytes()));
    assert!(terms.main_slots > u64::from(KEYS), "{terms:?}");

    let restored = |table: Config| {
        fs::remove_file(&files.region).unwrap();
        let server = start(config(table));
        assert_eq!(server.restored().unwrap().keys, u64::from(KEYS), "{table:?}");
        let (mut reader, mut got) = (server.index().reader(), Vec::new());
        let mut is_there =
            |n: u32| reader.get_into(&key(n, 16), &mut got).unwrap() && got == value(n.into(), 30);
        assert!((0..KEYS).all(&mut is_there));
        // It grew before the keys came. A segment that happens to get more than its part is still split then.
        let growth = server.index().growth();
        assert!(growth.moved <= u64::from(KEYS) / 3, "{growth:?}");
        let segments = growth.segments;
        drop(reader);
        // Snapshots of the last round's table are what the next one begins with.
        server.index().put(&key(0, 16), &value(0, 30), oneread::PutMode::Upsert).unwrap();
        assert_eq!(server.stop().saved.unwrap().unwrap().keys, u64::from(KEYS));
        segments
    };
    on_every_preset(|preset| {
        assert_eq!(restored(table().layout(preset.layout)), 0);
        let small = TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(256) };
        assert!(restored(growing().layout(preset.layout).size(small)) > 8);
    });

    // One that may not grow so far.
    fs::remove_file(&files.region).unwrap();
    for (bytes_max, is_said) in [(128 << 10, "slots at most"), (460 << 10, "the table was full")] {
        let size = TableSize::Growing { bytes_max, segment_slots: Some(256) };
        let error = with_causes(&Server::start(config(growing().size(size))).unwrap_err());
        assert!(error.contains(is_said), "{error}");
        assert!(!files.region.exists() && keys(&files.snapshot).len() as u32 == KEYS);
    }
}

/// Serves with a snapshot every so often. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let every = Duration::from_millis(told("ONEREAD_TEST_EVERY").unwrap().parse().unwrap());
    let table = if told("ONEREAD_TEST_GROWS").is_some() { growing() } else { table() };
    let config = ServerConfig::new(address.parse().unwrap(), table)
        .backing(Backing::File(told("ONEREAD_TEST_REGION").unwrap().into()))
        .start(StartMode::OpenOrCreate)
        .snapshots(Snapshots::new(told("ONEREAD_TEST_SNAPSHOT").unwrap()).every(every));
    serve_until_told(config);
}

/// What one writer knows of a key: the versions that it asked for, when it did, and when each was
/// acknowledged. Odd versions are removals.
type Notes = BTreeMap<u32, Vec<(u64, SystemTime, Option<SystemTime>)>>;

/// Changes its keys until the server is gone.
fn write(client: &mut Client, lane: u32, stop: &AtomicBool) -> Notes {
    let mut notes = Notes::new();
    let mut numbers = Numbers(lane.into());
    for version in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let n = lane * 1000 + numbers.below(800) as u32;
        let asked = SystemTime::now();
        let answer = if version % 3 == 0 {
            client.remove(&key(n, 16)).map(drop)
        } else {
            client.put(&key(n, 16), &value(version << 20 | u64::from(n), 40)).map(drop)
        };
        let answered = answer.is_ok().then(SystemTime::now);
        notes.entry(n).or_default().push((version, asked, answered));
        if answered.is_none() {
            break;
        }
    }
    notes
}

/// What a crash of the machine costs: the server is killed under load, and its region is thrown away.
/// The next server has every change that was acknowledged before the last snapshot began, and of each
/// key one state that it had. The last snapshot began no longer ago than the time between two, and the
/// time that one takes.
#[test]
fn a_crash_costs_what_is_stated() {
    const EVERY: Duration = Duration::from_millis(300);
    /// The kernel may let a busy machine's threads wait.
    const SLACK: Duration = Duration::from_secs(20);
    let rounds = if std::env::var_os("ONEREAD_LONG").is_some() { 100 } else { 3 };
    let mut numbers = Numbers(9);
    for round in 0..rounds {
        let files = Files::new();
        let grows = round % 3 > 0;
        let mut told = vec![
            ("ONEREAD_TEST_ADDRESS", files.place.address.to_string()),
            ("ONEREAD_TEST_REGION", files.region.display().to_string()),
            ("ONEREAD_TEST_SNAPSHOT", files.snapshot.display().to_string()),
            ("ONEREAD_TEST_EVERY", EVERY.as_millis().to_string()),
        ];
        told.extend(grows.then(|| ("ONEREAD_TEST_GROWS", String::new())));
        let process = Process::start("snapshots::server_child", &told);
        let connect = || Client::connect_with(&files.place.address, patient()).ok();
        let mut about = wait_for("the server", connect);
        let stop = AtomicBool::new(false);
        let (notes, killed_at, longest) = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|lane| {
                    let (mut client, stop) = (connect().expect("a server"), &stop);
                    scope.spawn(move || write(&mut client, lane, stop))
                })
                .collect();
            let life = Instant::now() + EVERY * 4 + Duration::from_millis(numbers.below(700));
            let mut longest = Duration::ZERO;
            while Instant::now() < life || about.snapshot_status().unwrap().saved < 2 {
                let status = about.snapshot_status().unwrap();
                assert!(status.failure().is_none(), "{status:?}");
                longest = longest.max(Duration::from_micros(status.took_us));
                std::thread::sleep(Duration::from_millis(5));
            }
            let killed_at = SystemTime::now();
            process.kill();
            stop.store(true, Ordering::Relaxed);
            let notes: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            (notes, killed_at, longest)
        });
        fs::remove_file(&files.region).unwrap();
        let began = Snapshot::open(&files.snapshot).unwrap().terms().began;
        let server = start(files.config().table(if grows { growing() } else { table() }));
        let restored = server.restored().unwrap();
        assert_eq!(restored.began, began);
        let cost = killed_at.duration_since(began).unwrap();
        assert!(cost <= EVERY + longest + SLACK, "{cost:?} lost, a snapshot took up to {longest:?}");
        let (mut checked, mut lost, mut got) = (0, 0, Vec::new());
        for (&n, versions) in notes.iter().flatten() {
            let there = server.index().reader().get_into(&key(n, 16), &mut got).unwrap();
            let is = |version: u64| match version % 3 {
                0 => !there,
                _ => there && got == value(version << 20 | u64::from(n), 40),
            };
            // What was acknowledged before the snapshot began is in it, or something newer is.
            let before = |at: &(u64, SystemTime, Option<SystemTime>)| at.2.is_some_and(|at| at < began);
            let oldest = versions.iter().rposition(before);
            let since = &versions[oldest.unwrap_or(0)..];
            let is_right = since.iter().any(|&(version, ..)| is(version)) || oldest.is_none() && !there;
            assert!(is_right, "round {round}, key {n}: {got:?}, {there}; {since:?}");
            checked += usize::from(oldest.is_some());
            lost += versions.iter().filter(|at| at.1 > began && at.2.is_some()).count();
        }
        println!("{checked} keys are as they were; {cost:?} and {lost} acknowledged changes lost");
        assert!(checked > 100, "{checked} keys changed before the snapshot");
    }
}

/// Snapshots on time, and none while nothing changes. The table that nobody changes is as good as
/// saved again.
#[test]
fn every_so_often() {
    let files = Files::new();
    let every = Duration::from_millis(50);
    let server = start(files.config().snapshots(Snapshots::new(&files.snapshot).every(every)));
    let mut client = files.client();
    let status = || server.snapshot_status().unwrap();
    for n in 1..4 {
        client.put(&key(n, 16), b"value").unwrap();
        let saved = status().saved;
        let now = wait_for("a snapshot", || {
            Some(status()).filter(|now| now.saved > saved && now.keys == u64::from(n))
        });
        assert_eq!(now.every(), Some(every));
        let later =
            wait_for("the next look", || Some(status()).filter(|later| later.saved_ms > now.saved_ms));
        assert!(later.saved <= now.saved + 1, "one may have been under way");
    }
    // Who removes the file gets another one.
    fs::remove_file(&files.snapshot).unwrap();
    wait_for("the file", || files.snapshot.exists().then_some(()));
    assert_eq!(keys(&files.snapshot).len(), 3);
}

/// Ends other threads when dropped, also by a failure.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While snapshots are made one after the other, two threads change a nearly full table, so that keys
/// move. Each snapshot has the keys that stay, with their values.
#[test]
fn churn() {
    on_every_preset(|preset| {
        let dir = tempfile::tempdir().unwrap();
        let index = index(&config(preset, 4096, 16, 60, 11), oneread::embedded::Clock::System);
        let fits =
            |n: &u32| index.put(&key(*n, 16), &value(u64::from(*n), 30), oneread::PutMode::Insert).is_ok();
        let wanted = (index.geometry().main_slots() * 9 / 10) as u32;
        let reached = (0..wanted).take_while(fits).count() as u32;
        (reached * 9 / 10..reached).for_each(|n| assert!(index.remove(&key(n, 16)).unwrap()));
        let stays = |n: u32| n < reached / 2;
        let all: BTreeMap<_, _> = (0..reached).map(|n| (key(n, 16), value(n.into(), 30))).collect();
        let stop = AtomicBool::new(false);
        let moves = index.counts().moves;
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let (index, stop) = (&index, &stop);
                scope.spawn(move || {
                    let mut numbers = Numbers(lane + 5);
                    while !stop.load(Ordering::Relaxed) {
                        let n = reached / 2 + numbers.below(u64::from(reached - reached / 2)) as u32;
                        if n % 2 == lane as u32 {
                            let _ = index.remove(&key(n, 16));
                        } else {
                            let _ =
                                index.put(&key(n, 16), &value(u64::from(n), 30), oneread::PutMode::Upsert);
                        }
                        // The other lane's keys, so that they come back.
                        let n = n ^ 1;
                        if !stays(n) && n < reached {
                            let _ =
                                index.put(&key(n, 16), &value(u64::from(n), 30), oneread::PutMode::Upsert);
                        }
                    }
                });
            }
            let _stopper = Stop(&stop);
            let until = Instant::now() + Duration::from_millis(500);
            let mut snapshots = 0;
            while Instant::now() < until || snapshots < 3 {
                let path = dir.path().join("snapshot");
                let saved = index.save(&path, &mut |_, _| true).unwrap();
                assert_eq!(saved.damaged, 0);
                let there = keys(&path);
                assert!(there.iter().all(|(k, v)| all.get(k) == Some(v)), "a key or value that nobody put");
                let missing = (0..reached).filter(|&n| stays(n) && !there.contains_key(&key(n, 16))).count();
                assert_eq!(missing, 0, "{missing} keys that stay are missing");
                snapshots += 1;
            }
        });
        println!("{}: {} moves", preset.name, index.counts().moves - moves);
    });
}

/// While snapshots are made one after the other, two threads make a table grow and shrink. Each
/// snapshot has the keys that stay, once, with their values.
#[test]
fn churn_of_a_table_that_grows() {
    const STAY: u32 = 2_000;
    const MOST: u32 = 8_000;
    on_every_preset(|preset| {
        let dir = tempfile::tempdir().unwrap();
        let config = config(preset, 512, 16, 60, 11).size(growing().size);
        let index = index(&config, oneread::embedded::Clock::System);
        let put = |n: u32| {
            index.put(&key(n, 16), &value(u64::from(n), 30), oneread::PutMode::Upsert).unwrap();
        };
        (0..STAY).for_each(put);
        let stop = AtomicBool::new(false);
        let mut snapshots = 0;
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let (index, stop) = (&index, &stop);
                scope.spawn(move || {
                    let all = || (STAY..MOST).filter(|n| n % 2 == lane);
                    while !stop.load(Ordering::Relaxed) {
                        all().take_while(|_| !stop.load(Ordering::Relaxed)).for_each(put);
                        for n in all().take_while(|_| !stop.load(Ordering::Relaxed)) {
                            index.remove(&key(n, 16)).unwrap();
                        }
                        index.shrink();
                    }
                });
            }
            let _stopper = Stop(&stop);
            let begun = Instant::now();
            // A busy machine takes longer.
            let is_enough = |snapshots| snapshots >= 3 && index.growth().splits > 10;
            let within = |ms| begun.elapsed() < Duration::from_millis(ms);
            while within(500) || !is_enough(snapshots) && within(60_000) {
                let path = dir.path().join("snapshot");
                let saved = index.save(&path, &mut |_, _| true).unwrap();
                assert_eq!(saved.damaged, 0);
                let there = keys(&path);
                let missing = (0..STAY).filter(|&n| !there.contains_key(&key(n, 16))).count();
                assert_eq!(missing, 0, "{missing} keys that stay are missing");
                let known = (0..MOST).filter(|&n| there.get(&key(n, 16)) == Some(&value(n.into(), 30)));
                assert_eq!(known.count(), there.len(), "a key or value that nobody put");
                snapshots += 1;
            }
        });
        println!("{}: {snapshots} snapshots, {:?}", preset.name, index.growth());
        assert!(snapshots >= 3 && index.growth().splits > 10);
    });
}
