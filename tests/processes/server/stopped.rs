//! Servers that stop, are stopped, or die: GETs go on, changes end at their deadline, and the same clients go on.

use super::raw::Raw;
use super::{on_every_family, table};
use crate::common::*;
use oneread::internals::client::LinkError;
use oneread::internals::placement::Preset;
use oneread::internals::reader::Limits;
use oneread::internals::region::Backing;
use oneread::internals::wire::{PROTOCOL_VERSION, Reply, Request};
use oneread::{
    Address, Client, ClientOptions, ConnectError, GetError, MutateError, PutOutcome, RequestPath, Server,
    ServerConfig, StartMode, TableSize,
    error::{FileError, Refusal, RegionError},
};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

over_shm_and_tcp! {
    killed_while_changing,
    stopped_and_started_again_on_the_same_file,
    a_client_has_a_table_shrink,
}

/// GETs need no server: they go on while it is stopped, and puts end at their deadline. When the
/// server goes on, puts work again.
#[test]
fn a_stopped_server_is_read() {
    on_every_family(|preset| {
        let place = Place::new();
        let server = place.serve_apart(preset, false);
        let deadline = Duration::from_millis(500);
        // The next change is sent to a server that has already answered one.
        let mut client = place.hasty(patient().lease(SOON), deadline);
        let mut other = place.client();
        for n in 0..500 {
            other.put(&key(n, 16), &value(n.into(), 20)).unwrap();
        }
        server.stop();
        let mut shortest = SOON;
        for round in 0..3 {
            let began = Instant::now();
            let error = client.put(b"new", &[round]).expect_err("nobody answers");
            let took = began.elapsed();
            assert!(took >= deadline, "{took:?}");
            shortest = shortest.min(took);
            // A conversation that was cut off is not resumed: without a connection there is no
            // change. Either way, the change was late.
            let is_deadline = matches!(error, MutateError::Deadline { .. });
            assert!(is_deadline, "{error}");
            for n in 0..500 {
                assert_eq!(other.get(&key(n, 16)).unwrap(), Some(value(n.into(), 20)));
                assert_eq!(client.get(&key(n, 16)).unwrap(), Some(value(n.into(), 20)));
            }
        }
        // One deadline, not several. A busy machine does not delay each of them.
        assert!(shortest < 4 * deadline, "{shortest:?}");
        server.signal(Signal::CONT);
        wait_for("the server to go on", || other.put(b"other", b"1").ok());
        // The server's answers to abandoned changes are not taken for the answer to this one.
        wait_for("a change", || match client.put(b"after", b"1") {
            Ok(put) => Some(put),
            Err(MutateError::ServerGone { source, .. }) => panic!("{source}"),
            Err(_) => None,
        });
        assert_eq!(other.get(b"after").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(client.stats().reattached, 0, "it was never gone");
    });
}

/// The longest deadline means to wait for ever. A deadline of zero means not to wait.
#[test]
fn longest_and_zero_deadlines() {
    let place = Place::new();
    let server = place.serve_apart(default_preset(), false);
    let options = |time| {
        let limits = Limits::new().deadline(time);
        ClientOptions::new().limits(limits).deadline(time).lease(time)
    };
    let mut client = Client::connect_with(&place.address, options(Duration::MAX)).unwrap();
    client.put(b"key", b"value").unwrap();
    drop(client.clone());
    server.signal(Signal::KILL);
    wait_for("the server to be gone", || client.put(b"key", b"other").err());
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(Client::connect_with(&place.address, options(Duration::MAX)).is_err());

    let place = Place::new();
    let server = place.serve_apart(default_preset(), false);
    server.stop();
    let error = Client::connect_with(&place.address, options(Duration::ZERO)).expect_err("no time");
    assert!(with_causes(&error).contains("no answer within 0 ns"), "{error:?}");
}

/// The first put to a stopped server, over a connection that was made before, says that the
/// deadline has passed and that the change may still happen. The change does happen, although the
/// client has hung up, whichever way the request went.
#[test]
fn a_deadline_leaves_it_open() {
    let place = Place::new();
    let server = place.serve_apart(default_preset(), false);
    let deadline = Duration::from_millis(500);
    let mut clients = [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox]
        .map(|path| place.hasty(patient().lease(SOON).requests(path), deadline));
    server.stop();
    for (n, client) in clients.iter_mut().enumerate() {
        let error = client.put(&[n as u8 + 1], b"2").expect_err("nobody answers");
        assert!(matches!(error, MutateError::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("may still happen"), "{error}");
    }
    server.signal(Signal::CONT);
    for n in 0..3 {
        wait_for("the change to happen", || clients[0].get(&[n + 1]).unwrap());
    }
}

/// A killed server leaves its region to its clients. GETs answer from it until the lease ends, and
/// then name the lost server. Puts fail at once.
#[test]
fn a_killed_server() {
    on_every_family(|preset| {
        let place = Place::new();
        let server = place.serve_apart(preset, false);
        let lease = Duration::from_secs(2);
        let mut client = place.client_with(lease);
        for n in 0..500 {
            client.put(&key(n, 16), &value(n.into(), 20)).unwrap();
        }
        let killed = Instant::now();
        server.kill();
        let error = client.put(b"new", b"1").expect_err("nobody is there");
        assert!(matches!(error, MutateError::ServerGone { .. } | MutateError::Connect(_)), "{error}");
        let (mut answers, mut n) = (0, 0);
        let error = loop {
            n = (n + 1) % 500;
            match client.get(&key(n, 16)) {
                Ok(found) => assert_eq!(found, Some(value(n.into(), 20))),
                Err(error) => break error,
            }
            answers += 1;
            assert!(killed.elapsed() < SOON, "GETs go on after the lease");
        };
        assert!(killed.elapsed() >= lease, "the lease lasts: {:?}", killed.elapsed());
        let has_ended = matches!(&error, GetError::ServerGone { source: LinkError::LeaseEnded(_), .. });
        assert!(has_ended, "{error:?}");
        assert!(answers > 0, "GETs go on for a while");
        assert!(matches!(client.get_many(&[b"key"]), Err(GetError::ServerGone { .. })));
    });
}

/// The server is killed during changes and started again on the same file, several times.
/// Everything that was acknowledged is there, and the same clients go on.
#[test]
fn killed_and_started_again_on_the_same_file() {
    on_every_preset(|preset| {
        let place = Place::new();
        let mut server = place.serve_apart(preset, true);
        let mut client = place.client_with(SOON);
        let mut reader = client.clone();
        let mut model = Model::default();
        for round in 0..3u32 {
            for n in round * 400..(round + 1) * 400 {
                let (key, value) = (key(n, 16), value(n.into(), 20));
                assert_eq!(client.put(&key, &value).unwrap(), PutOutcome::Inserted);
                model.keys.insert(key, value);
            }
            for n in (round * 400..(round + 1) * 400).step_by(5) {
                assert!(client.remove(&key(n, 16)).unwrap());
                model.keys.remove(&key(n, 16));
            }
            server.kill();
            // In between, the old mapping answers.
            for (key, value) in model.keys.iter().take(50) {
                assert_eq!(reader.get(key).unwrap().as_ref(), Some(value));
            }
            server = place.serve_apart(preset, true);
            let stats = wait_for("the client to find the server", || client.server_stats().ok());
            assert_eq!(stats.keys, model.keys.len() as u64);
            assert_eq!(stats.incarnation, u64::from(round) + 2);
            for n in 0..(round + 1) * 400 {
                assert_eq!(reader.get(&key(n, 16)).unwrap().as_ref(), model.keys.get(&key(n, 16)));
            }
            wait_for("the reader to go over to the new server's region", || {
                reader.get(b"any").unwrap();
                (reader.stats().reattached == u64::from(round) + 1).then_some(())
            });
        }
        // A clean stop leaves the file readable and the table as it was.
        drop(server.0.stdin.take());
        server.0.wait().unwrap();
        let (key, value) = model.keys.iter().next().unwrap();
        assert_eq!(reader.get(key).unwrap().as_ref(), Some(value));
    });
}

/// A slot may be half written when the server is killed during a change. No acknowledged change is
/// missing.
fn killed_while_changing(over: Over) {
    let rounds = if std::env::var_os("ONEREAD_LONG").is_some() { 100 } else { 2 };
    on_every_preset(|preset| {
        let place = over.place();
        let mut sound = Vec::new();
        for round in 0..rounds {
            let server = place.serve_apart(preset, true);
            let mut client = place.client();
            if round == 0 {
                sound = (0..1500).map(|n| (key(n, 16), value(n.into(), 20))).collect();
                assert!(client.put_many(&sound).unwrap().iter().all(Result::is_ok));
            }
            let child = Process::start(
                "server::putting_child",
                &[("ONEREAD_TEST_ADDRESS", place.address.to_string())],
            );
            wait_for("the child to be putting", || {
                (client.server_stats().unwrap().updates > 300).then_some(())
            });
            server.kill();
            child.kill();
            let server = start(
                ServerConfig::new(place.address.clone(), table(preset))
                    .backing(Backing::File(place.file()))
                    .start(StartMode::Open),
            );
            let recovered = server.recovered().unwrap();
            let index = server.index();
            let mut got = Vec::new();
            for (key, value) in &sound {
                let found = index.reader().get_into(key, &mut got).unwrap();
                assert!(found && got == *value, "{key:02x?} is missing, {recovered:?}");
            }
            let inspector = oneread::internals::inspect::Inspector::new(index.region(), index.geometry());
            let occupancy = inspector.occupancy(|_| {});
            assert_eq!(occupancy.torn, 0);
            assert_eq!(occupancy.live_main + occupancy.live_overflow, recovered.keys);
            if recovered.torn > 0 || recovered.doubled > 0 {
                println!("{}: round {round}: {recovered:?}", preset.layout);
            }
        }
    });
}

/// The new server has a new, anonymous region. The same client reads it: old keys are gone, and new
/// ones are found.
#[test]
fn killed_and_started_again_with_a_new_region() {
    on_every_preset(|preset| {
        let place = Place::new();
        let server = place.serve_apart(preset, false);
        let mut client = place.client_with(SOON);
        let mut reader = client.clone();
        client.put(b"old", b"1").unwrap();
        assert_eq!(reader.get(b"old").unwrap().as_deref(), Some(&b"1"[..]));
        server.kill();
        assert_eq!(reader.get(b"old").unwrap().as_deref(), Some(&b"1"[..]), "the lease lasts");
        let _server = place.serve_apart(preset, false);
        wait_for("the client to find the server", || client.put(b"new", b"2").ok());
        wait_for("the reader to see the new region", || reader.get(b"new").unwrap());
        assert_eq!(reader.get(b"old").unwrap(), None, "the old table is gone");
        assert_eq!(client.get(b"old").unwrap(), None);
        assert_eq!((reader.stats().reattached, client.stats().reattached), (1, 1));
    });
}

/// A server that stops cleanly marks its region as ended, if the region goes with it. GETs then
/// fail at once, whatever the lease, until there is a new server.
#[test]
fn a_clean_stop() {
    on_every_family(|preset| {
        let place = Place::new();
        let server = place.serve(preset);
        let mut client = place.client_with(60 * SOON);
        client.put(b"key", b"value").unwrap();
        let mut reader = client.clone();
        server.stop();
        assert!(!place.address.socket().unwrap().exists());
        for _ in 0..3 {
            let error = reader.get(b"key").expect_err("retired");
            let is_retired = matches!(&error, GetError::ServerGone { source: LinkError::Retired, .. });
            assert!(is_retired, "{error:?}");
        }
        assert!(client.put(b"key", b"value").is_err());
        let _server = place.serve(preset);
        wait_for("the reader to see the new region", || reader.get(b"key").ok().filter(Option::is_none));
        client.put(b"key", b"again").unwrap();
        assert_eq!(reader.get(b"key").unwrap().as_deref(), Some(&b"again"[..]));
    });
}

/// A connection that is silent before its hello, or in the middle of a frame, is closed after the time
/// that the server was given for that.
#[test]
fn a_silent_client_is_dropped_at_last() {
    let place = Place::new();
    let config = ServerConfig::new(place.address.clone(), table(default_preset()))
        .half_open(Duration::from_millis(1500));
    let server = start(config);
    let mut idle = Raw::greeted(&place.address);
    let mut half = Raw::greeted(&place.address);
    half.stream.write_all(&[1, 2]).unwrap();
    let mut silent = Raw::connect(&place.address);
    for raw in [&mut silent, &mut half] {
        assert_eq!(raw.reply(), None);
    }
    idle.send(&Request::Remove { key: b"k" });
    assert_eq!(idle.reply(), Some(Reply::Removed(Ok(false))), "between frames one may be silent");
    // (A client sees the end of its connection before the server has counted it.)
    wait_for("one client", || (server.stats().clients == 1).then_some(()));
}

/// A server that serves the region file, in this process.
fn serve_file(place: &Place, preset: &Preset) -> Server {
    let config = ServerConfig::new(place.address.clone(), table(preset))
        .backing(Backing::File(place.file()))
        .start(StartMode::OpenOrCreate);
    start(config)
}

/// A server of a table that grows stops, in the middle of splits and merges, and the next one on its
/// file knows all keys at once, and goes on. Readers go on throughout.
#[test]
fn a_table_that_grows_is_stopped_and_started_again() {
    const STAY: u32 = 500;
    on_every_family(|preset| {
        let place = Place::new();
        let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
        let serve = || {
            let config = ServerConfig::new(place.address.clone(), table(preset).size(size))
                .backing(Backing::File(place.file()))
                .start(StartMode::OpenOrCreate);
            start(config)
        };
        let mut server = Some(serve());
        let mut client = place.client_with(SOON);
        for n in 0..STAY {
            client.put(&key(n, 16), &value(n.into(), 20)).unwrap();
        }
        let (stop, mut under_way, mut keys) = (AtomicBool::new(false), 0, u64::from(STAY));
        std::thread::scope(|scope| {
            let (mut reader, stop) = (client.clone(), &stop);
            let reading = scope.spawn(move || {
                for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let n = n * 7 % (STAY + 50);
                    let expected = (n < STAY).then(|| value(n.into(), 20));
                    let absent = key(n + 1_000_000, 16);
                    let asked = if n < STAY { key(n, 16) } else { absent };
                    assert_eq!(reader.get(&asked).unwrap(), expected);
                }
            });
            for round in 0..8u32 {
                let range = STAY..STAY + 2_000;
                // Up, and down again; a server stops while it is at it.
                for n in range.skip(round as usize / 4 * 300).take(1_500) {
                    let changed = if round % 2 == 0 {
                        let outcome = || client.put(&key(n, 16), b"other").ok();
                        u64::from(wait_for("a change", outcome) == PutOutcome::Inserted)
                    } else {
                        u64::from(wait_for("a change", || client.remove(&key(n, 16)).ok()))
                    };
                    keys = if round % 2 == 0 { keys + changed } else { keys - changed };
                    let growth = server.as_ref().unwrap().index().growth();
                    // At any change until one was met: the server's own work may always be done by a fiftieth.
                    if (n % 50 == 0 || under_way == 0) && growth.splitting + growth.merging > 0 {
                        under_way += growth.splitting + growth.merging;
                        server.take().unwrap().stop();
                        let found = server.insert(serve()).recovered().unwrap();
                        assert_eq!((found.handed_over, found.keys), (true, keys), "{}", preset.name);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            reading.join().unwrap();
        });
        println!("{}: {under_way} splits and merges under way", preset.name);
        assert!(under_way > 0, "{}", preset.name);
    });
}

/// A server stops, and the next one on its file knows all keys at once. Readers go on throughout. A
/// server killed right after its start has handed nothing over: the next one looks at every slot.
fn stopped_and_started_again_on_the_same_file(over: Over) {
    on_every_preset(|preset| {
        let place = over.place();
        let mut server = Some(serve_file(&place, preset));
        let mut client = place.client_with(SOON);
        let mut model = Model::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut reader = client.clone();
            let first = (key(0, 16), value(0, 20));
            client.put(&first.0, &first.1).unwrap();
            let stop = &stop;
            let reading = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(reader.get(&first.0).unwrap().as_ref(), Some(&first.1));
                }
            });
            for round in 0..3u32 {
                for n in round * 400..(round + 1) * 400 {
                    let (key, value) = (key(n, 16), value(n.into(), 20));
                    wait_for("a change", || client.put(&key, &value).ok());
                    model.keys.insert(key, value);
                }
                for n in (round * 400 + 1..(round + 1) * 400).step_by(5) {
                    client.remove(&key(n, 16)).unwrap();
                    model.keys.remove(&key(n, 16));
                }
                server.take().unwrap().stop();
                let next = server.insert(serve_file(&place, preset));
                let found = next.recovered().unwrap();
                assert_eq!((found.handed_over, found.keys), (true, model.keys.len() as u64));
            }
            stop.store(true, Ordering::Relaxed);
            reading.join().unwrap();
        });
        drop(server);
        let killed = place.serve_apart(preset, true);
        killed.kill();
        let server = serve_file(&place, preset);
        let found = server.recovered().unwrap();
        assert_eq!((found.handed_over, found.keys), (false, model.keys.len() as u64));
        let mut reader = place.client();
        for n in 0..1200 {
            assert_eq!(reader.get(&key(n, 16)).unwrap().as_ref(), model.keys.get(&key(n, 16)));
        }
    });
}

/// A client that gets no answer reads the region file that it names. When the server goes on, it is a client as
/// any other.
#[test]
fn a_client_reads_the_file_of_a_server_that_is_suspended() {
    let place = Place::new();
    let server = place.serve_apart(default_preset(), true);
    Client::connect_with(&place.address, patient()).unwrap().put(b"key", b"value").unwrap();
    server.stop();
    let connect = |options: ClientOptions| {
        Client::connect_with(&place.address, options.deadline(Duration::from_millis(20)))
    };
    let error = connect(patient()).unwrap_err();
    assert!(matches!(error, ConnectError::Link { .. }), "{error}");
    let mut client = connect(patient().region(place.file())).unwrap();
    assert!(!client.is_served());
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    server.signal(rustix::process::Signal::CONT);
    wait_for("the client to find the server", || client.is_served().then_some(()));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    server.kill();
}

/// A client that finds no server reads the region file that it names, and says so. It changes
/// nothing. When a server comes, it is a client as any other.
#[test]
fn a_client_reads_the_file_of_a_server_that_is_gone() {
    on_every_family(|preset| {
        let place = Place::new();
        let connect = || {
            let options = patient().region(place.file()).lease(Duration::ZERO);
            Client::connect_with(&place.address, options)
        };
        assert!(matches!(connect(), Err(ConnectError::NotThere { .. })), "no server, and no file");
        let server = serve_file(&place, preset);
        let mut client = connect().unwrap();
        assert!(client.is_served());
        client.put(b"key", b"value").unwrap();
        server.stop();

        let mut client = connect().unwrap();
        assert!(!client.is_served() && !client.clone().is_served());
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(client.get(b"other").unwrap(), None);
        let error = client.put(b"key", b"other").unwrap_err();
        assert!(matches!(error, MutateError::Connect(ConnectError::NotThere { .. })), "{error}");

        let server = serve_file(&place, preset);
        wait_for("the client to find the server", || client.is_served().then_some(()));
        client.put(b"key", b"new").unwrap();
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"new"[..]));
        assert!(client.stats().reattached > 0);
        server.stop();

        // A file that others may write to is not read, nor is one that holds no table.
        let permit = |mode| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(place.file(), permissions).unwrap();
        };
        permit(0o602);
        let error = connect().unwrap_err();
        assert!(
            matches!(error, ConnectError::Region(RegionError::File(FileError::Writable { .. }))),
            "{error}"
        );
        permit(0o600);
        let file = std::fs::OpenOptions::new().write(true).open(place.file()).unwrap();
        for (state, phase) in [(3u64 << 8, "starting"), (3 << 8 | 2, "given up")] {
            std::os::unix::fs::FileExt::write_all_at(&file, &state.to_le_bytes(), 4096).unwrap();
            let error = connect().unwrap_err();
            assert!(matches!(error, ConnectError::NoTable { .. }), "{phase}: {error}");
        }
        std::os::unix::fs::FileExt::write_all_at(&file, b"nonsense", 0).unwrap();
        assert!(matches!(connect(), Err(ConnectError::Superblock { .. })));
    });
}

/// A client that comes just when a server goes, or was turned away because it goes, reads its file. A
/// server that is there, and does not take the client, is not gone: its file is not read past it.
#[test]
fn a_file_is_read_only_if_its_server_is_gone() {
    let place = Place::new();
    let server = serve_file(&place, default_preset());
    place.client().put(b"key", b"value").unwrap();
    server.stop();
    let away = |why| Some(Reply::TurnedAway(why));
    type Is = fn(&ConnectError) -> bool;
    let turned_away: Is = |error| matches!(error, ConnectError::TurnedAway { .. });
    let cases: [(&str, Option<Reply>, bool, Option<Is>); 6] = [
        ("it hangs up", None, true, None),
        ("it stops", away(Refusal::Stopping), true, None),
        ("it is full", away(Refusal::ServerFull { max: 1 }), true, Some(turned_away)),
        ("another user", away(Refusal::User { uid: 7 }), true, Some(turned_away)),
        (
            "another version",
            Some(Reply::Refused { version: PROTOCOL_VERSION + 1 }),
            true,
            Some(|error| matches!(error, ConnectError::Refused { .. })),
        ),
        ("it is silent", None, false, None),
    ];
    for (name, reply, hangs_up, is_there) in cases {
        let path = place.dir.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let deadline = if hangs_up { SOON } else { Duration::from_millis(50) };
        let options = patient().deadline(deadline).region(place.file()).requests(RequestPath::Mailbox);
        let connecting = std::thread::spawn(move || Client::connect_with(&Address::Shm(path), options));
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        if let Some(reply) = reply {
            let mut out = Vec::new();
            reply.encode(0, &mut out);
            stream.write_all(&out).unwrap();
        }
        if hangs_up {
            drop(stream);
        }
        match (connecting.join().unwrap(), is_there) {
            (Ok(mut client), None) => {
                assert!(!client.is_served(), "{name}");
                assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "{name}");
            }
            (Err(error), Some(is)) => assert!(is(&error), "{name}: {error}"),
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
}

/// A client with hints meets a server with another table: it forgets what it knew of the one before, finds
/// everything, and knows it again. Its handles share the memory for that, which is bounded.
#[test]
fn hints_are_those_of_the_present_server() {
    let place = Place::new();
    let serve = |slots, offset: u32| {
        let table = config(default_preset(), slots, 16, 32, slots);
        let server = start(ServerConfig::new(place.address.clone(), table));
        for n in 0..500 {
            let (key, value) = (key(n + offset, 16), value((n + offset).into(), 20));
            server.index().put(&key, &value, oneread::PutMode::Upsert).unwrap();
        }
        server
    };
    let mut server = serve(1024, 0);
    assert_eq!(place.client().hint_bytes(), 0, "none on shm, unless they are wanted");
    let options = patient().hint_bytes(1500);
    let mut client = Client::connect_with(&place.address, options).unwrap();
    let mut other = client.clone();
    for (slots, offset) in [(1024, 0), (4096, 250), (1024, 100)] {
        if slots != 1024 || offset != 0 {
            server.stop();
            server = serve(slots, offset);
            wait_for("the next server", || client.server_stats().ok());
        }
        for handle in [&mut client, &mut other] {
            let before = handle.stats().hints;
            for round in 0..3 {
                for n in 0..800 {
                    let expected = (offset..offset + 500).contains(&n).then(|| value(n.into(), 20));
                    assert_eq!(handle.get(&key(n, 16)).unwrap(), expected, "{slots}, {round}, {n}");
                }
            }
            assert!(handle.stats().hints.hits > before.hits + 200, "{slots}: {:?}", handle.stats().hints);
        }
        assert_eq!(client.hint_bytes(), other.hint_bytes());
        assert!((1..=1500).contains(&client.hint_bytes()), "{slots}: {}", client.hint_bytes());
    }
}

/// What a table is made of is told by name: nothing of a table of one size, and of one that grows what it
/// did. A client has it shrink.
fn a_client_has_a_table_shrink(over: Over) {
    let place = over.place();
    let server = place.serve(default_preset());
    for path in over.paths() {
        let mut client = Client::connect_with(&place.address, patient().requests(path)).unwrap();
        client.put(b"key", b"value").unwrap();
        let none = oneread::stats::GrowthCounts::default();
        assert_eq!((client.growth().unwrap(), client.shrink().unwrap(), server.growth()), (none, none, none));
        assert_eq!(client.heap().unwrap(), oneread::stats::HeapCounts::default());
    }
    server.stop();
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
    let config = ServerConfig::new(place.address.clone(), table(default_preset()).size(size));
    let server = start(config);
    for path in over.paths() {
        let mut client =
            wait_for("the server", || Client::connect_with(&place.address, patient().requests(path)).ok());
        for n in 0..4000 {
            client.put(&key(n, 16), &value(n.into(), 20)).unwrap();
        }
        let grown =
            wait_for("the splits", || Some(client.growth().unwrap()).filter(|growth| growth.splitting == 0));
        assert!(grown.segments > 8, "{grown:?}");
        assert_eq!(grown.segments, server.growth().segments);
        for n in 100..4000 {
            assert!(client.remove(&key(n, 16)).unwrap());
        }
        wait_for("few segments", || {
            let growth = client.shrink().unwrap();
            (growth.segments <= 2).then_some(())
        });
        for n in 0..100 {
            assert_eq!(client.get(&key(n, 16)).unwrap(), Some(value(n.into(), 20)));
        }
    }
}
