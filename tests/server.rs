//! Server and clients over real sockets, in real processes. No client disturbs another. A client
//! survives a server that is stopped, ends, or dies.

mod common;

use common::*;
use oneread::client::LinkError;
use oneread::families::presets;
use oneread::placement::Preset;
use oneread::reader::Limits;
use oneread::region::Backing;
use oneread::wire::{self, PROTOCOL_VERSION, Reply, Request};
use oneread::{
    Address, Client, ClientOptions, Config, ConnectError, GetError, MutateError, PlaceError, PutError,
    PutOutcome, Refusal, RegionError, RequestPath, Server, ServerConfig, StartMode, TableSize,
};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SLOTS: u64 = 2048;

fn table(preset: &Preset) -> Config {
    config(preset, SLOTS, 16, 32, 11)
}

impl Place {
    fn file(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    /// Starts a server in this process.
    fn serve(&self, preset: &Preset) -> Server {
        Server::start(ServerConfig::new(self.address.clone(), table(preset))).unwrap()
    }

    /// Starts a server in a process of its own: on the region file, or in anonymous memory.
    fn serve_apart(&self, preset: &Preset, file: bool) -> Process {
        let file = if file { self.file().display().to_string() } else { String::new() };
        self.serve_in_a_process(preset, ("ONEREAD_TEST_FILE", file))
    }

    /// The same, in anonymous memory, for so many connections.
    fn serve_apart_for(&self, preset: &Preset, clients_max: usize) -> Process {
        self.serve_in_a_process(preset, ("ONEREAD_TEST_CLIENTS", clients_max.to_string()))
    }

    fn serve_in_a_process(&self, preset: &Preset, more: (&str, String)) -> Process {
        let (address, layout) = (self.address.to_string(), preset.layout.to_string());
        let env = [("ONEREAD_TEST_ADDRESS", address), ("ONEREAD_TEST_PRESET", layout), more];
        let process = Process::start("server_child", &env);
        wait_for("the server to come up", || UnixStream::connect(self.address.socket().unwrap()).ok());
        process
    }

    fn client(&self) -> Client {
        Client::connect_with(&self.address, patient()).unwrap()
    }

    /// A client whose GETs go on for so long without a server.
    fn client_with(&self, lease: Duration) -> Client {
        Client::connect_with(&self.address, patient().lease(lease)).unwrap()
    }

    /// A client that gives up so soon. It has made a change.
    fn hasty(&self, options: ClientOptions, deadline: Duration) -> Client {
        let options = options.deadline(deadline);
        let connect = || Client::connect_with(&self.address, options.clone()).ok();
        let mut client = wait_for("a connection", connect);
        wait_for("a change", || client.put(b"before", b"1").ok());
        client
    }
}

/// Runs a test on the default preset of each family: for tests of the server, not of the layout.
fn on_every_family(mut story: impl FnMut(&'static Preset)) {
    let mut seen = Vec::new();
    on_every_preset(|preset| {
        if !seen.contains(&preset.layout.family) {
            seen.push(preset.layout.family);
            story(preset);
        }
    });
}

// ---- processes that tests start ---------------------------------------------------------------------

/// Serves as its parent says, until the parent is gone or closes its input. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let layout = told("ONEREAD_TEST_PRESET").unwrap();
    let preset = presets().find(|preset| preset.layout.to_string() == layout).unwrap();
    let mut config = ServerConfig::new(address.parse().unwrap(), table(preset));
    if let Some(file) = told("ONEREAD_TEST_FILE").filter(|file| !file.is_empty()) {
        config.backing = Backing::File(file.into());
        config.start = StartMode::OpenOrCreate;
    }
    if let Some(most) = told("ONEREAD_TEST_CLIENTS") {
        config.clients_max = most.parse().unwrap();
    }
    serve_until_told(config);
}

/// Puts, updates and removes its own keys in a loop, alone and in batches, until it is killed.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn putting_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let mut client = Client::connect_with(&address.parse().unwrap(), patient()).unwrap();
    put_for_ever(&mut client, |client, key| drop(client.remove(key)));
}

// ---- clients ----------------------------------------------------------------------------------------

/// A client is a map: it answers the model's operations as the model does, on every preset.
#[test]
fn a_client_is_a_map() {
    on_every_preset(|preset| {
        let place = Place::new();
        let server = place.serve(preset);
        let mut client = place.client();
        let mut model = Model::default();
        let mut numbers = Numbers(3);
        for _ in 0..1500 {
            let n = numbers.below(600) as u32;
            let op = some_op(&mut numbers, n, 12);
            assert_eq!(model.apply(&mut client, &op), None, "{op:?}");
        }
        assert_eq!(client.server_stats().unwrap().keys, model.keys.len() as u64);
        assert_eq!(server.stats().keys, server.index().len());
        // A client that connects now sees everything that was acknowledged.
        let mut late = place.client();
        for n in 0..600 {
            assert_eq!(late.get(&key(n, 16)).unwrap().as_ref(), model.keys.get(&key(n, 16)));
            assert_eq!(late.contains(&key(n, 16)).unwrap(), model.keys.contains_key(&key(n, 16)));
        }
    });
}

/// The cost of a GET is as promised: 1 READ of one window for a key in its primary window, whatever
/// else happens. The counters say exactly that, for batches, too.
#[test]
fn stats_count_reads_exactly() {
    on_every_preset(|preset| {
        let place = Place::new();
        let server = place.serve(preset);
        let mut client = place.client();
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.stats().read.reads, 0, "puts READ nothing");
        let geometry = client.geometry().clone();
        let window = geometry.window_bytes(geometry.primary(geometry.hashed(b"key")));
        for n in 1..=10 {
            assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
            let stats = client.stats();
            assert_eq!((stats.read.reads, stats.read.doorbells, stats.read.bytes), (n, n, n * window));
            assert_eq!((stats.get.gets, stats.get.hits), (n, n));
        }
        assert_eq!(client.get(b"absent").unwrap(), None);
        let stats = client.stats();
        assert_eq!((stats.read.reads, stats.get.gets, stats.get.hits), (11, 11, 10));

        let pairs: Vec<_> = (0..1500).map(|n| (key(n, 16), value(n.into(), 8))).collect();
        client.put_many(&pairs).unwrap();
        // A GET reads a slot again while its trace is being removed.
        wait_for("all traces to be gone", || server.index().tidy().is_none().then_some(()));
        std::thread::sleep(Duration::from_millis(5));
        let inspector = oneread::inspect::Inspector::new(server.index().region(), &geometry);
        let reads = |key: &[u8]| {
            let (windows, named) = inspector.windows(key);
            let holds =
                |w: &oneread::layout::geometry::Window| w.iter().any(|s| inspector.slot(s).key == key);
            let nth = windows.iter().position(holds).map(|nth| nth as u64 + 1);
            nth.unwrap_or(if named { windows.len() as u64 } else { 1 })
        };
        let keys: Vec<_> = (0..2000).map(|n| key(n, 16)).collect();
        let expected: u64 = keys.iter().map(|key| reads(key)).sum();
        for batch in [1, 7, 16, 2000] {
            let before = client.stats().read;
            keys.chunks(batch).for_each(|batch| {
                client.get_many(batch).unwrap();
            });
            let after = client.stats().read;
            assert_eq!(after.reads - before.reads, expected, "in batches of {batch}");
            if batch == 1 {
                assert_eq!(after.doorbells - before.doorbells, expected);
            } else if batch > 1 {
                assert!(after.doorbells - before.doorbells < expected, "in batches of {batch}");
            }
        }
        assert_eq!(client.stats().reattached, 0);
    });
}

/// `get_many` gives the same answers as `get`, key by key.
#[test]
fn get_many_answers_as_get() {
    on_every_preset(|preset| {
        let place = Place::new();
        let _server = place.serve(preset);
        let mut client = place.client();
        let pairs: Vec<_> = (0..1000).map(|n| (key(n, 16), value(n.into(), n as usize % 33))).collect();
        let answers = client.put_many(&pairs).unwrap();
        assert!(answers.iter().all(|answer| *answer == Ok(PutOutcome::Inserted)));
        let keys: Vec<_> = (0..1200).rev().map(|n| key(n, 16)).collect();
        let one_by_one: Vec<_> = keys.iter().map(|key| client.get(key).unwrap()).collect();
        assert_eq!(one_by_one.iter().flatten().count(), 1000);
        let one_by_one: Vec<_> = one_by_one.into_iter().map(Ok).collect();
        assert_eq!(client.get_many(&keys).unwrap(), one_by_one);
        assert_eq!(client.get_many::<&[u8]>(&[]).unwrap(), []);
    });
}

/// Keys and values of wrong lengths are refused with the numbers, alone or in a batch. The rest of
/// the batch is executed.
#[test]
fn wrong_lengths_are_refused() {
    let place = Place::new();
    let server = place.serve(default_preset());
    let mut client = place.client();
    for given in [0, 17, 255, 100_000] {
        let wrong = PutError::KeyLength { given, max: 16 };
        let key = vec![1; given];
        let rejected = |result: Result<PutOutcome, MutateError>| result.unwrap_err().rejection().unwrap();
        assert_eq!(rejected(client.put(&key, b"")), wrong);
        assert_eq!(rejected(client.insert(&key, b"")), wrong);
        assert_eq!(rejected(client.update(&key, b"")), wrong);
        assert_eq!(client.remove(&key).unwrap_err().rejection().unwrap(), wrong);
        let read = client.get(&key).unwrap_err();
        assert!(matches!(read, GetError::KeyLength { given: told, max: 16 } if told == given), "{read}");
        let pairs = [(b"good".to_vec(), vec![1]), (key, vec![]), (b"fine".to_vec(), vec![0; 33])];
        let answers = client.put_many(&pairs).unwrap();
        assert!(answers[0].is_ok());
        assert_eq!(answers[1..], [Err(wrong), Err(PutError::ValueLength { given: 33, max: 32 })]);
    }
    assert_eq!(server.index().len(), 1);
}

/// Some pairs of a batch are wrong. Each answer belongs to its own pair.
#[test]
fn bad_pairs_in_a_batch() {
    let place = Place::new();
    let _server = place.serve(default_preset());
    bad_pairs_in_batches(&mut place.client());
}

/// Batches have an outcome for each key, and may end early. A value is swapped if it is still the same.
#[test]
fn batches_and_swaps_by_message() {
    on_every_family(|preset| {
        let place = Place::new();
        let _server = place.serve(preset);
        let options = patient().requests(RequestPath::Message);
        batches_and_swaps(&mut Client::connect_with(&place.address, options).unwrap());
    });
}

/// Another thread reads what a handle has done, while the handle works and after it is gone.
#[test]
fn counters_are_read_by_other_threads() {
    let place = Place::new();
    let server = place.serve(default_preset());
    let mut client = place.client();
    let counters = client.counters();
    let read = || std::thread::scope(|scope| scope.spawn(|| counters.stats()).join().unwrap());
    client.put(b"a", b"1").unwrap();
    client.put_many(&[(&b"b"[..], b"2"), (b"", b"3"), (b"c", b"4")]).unwrap();
    client.compare_and_swap(b"a", b"0", b"5").unwrap();
    client.remove_many(&[b"b", b"d"]).unwrap();
    client.put(b"", b"").unwrap_err();
    client.server_stats().unwrap();
    let stats = read();
    assert_eq!(stats, client.stats());
    let changes = stats.changes;
    assert_eq!((changes.puts, changes.swaps, changes.removes, changes.rejected), (5, 1, 2, 2));
    // GETs come in steps.
    for n in 1..=200 {
        client.get(b"a").unwrap();
        assert_eq!((read().get.gets, client.stats().get.gets), (n / 64 * 64, n));
    }
    client.get_many(&[b"a", b"e"]).unwrap();
    assert_eq!((read(), read().get.gets, read().get.hits), (client.stats(), 202, 201));
    client.get(b"").unwrap_err();
    assert_eq!((read(), read().failures.refused), (client.stats(), 1));
    assert_eq!(client.clone().counters().stats(), oneread::ClientStats::default());
    // While the handle works.
    std::thread::scope(|scope| {
        let working = scope.spawn(|| (0..20_000).for_each(|_| drop(client.get(b"a").unwrap())));
        let mut last = read().get.gets;
        while !working.is_finished() {
            let now = counters.stats().get.gets;
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    });
    server.stop();
    client.put(b"a", b"1").unwrap_err();
    client.get(b"a").unwrap_err();
    assert_eq!((read(), read().failures.gone), (client.stats(), 2));
    drop(client);
    assert_eq!(read().failures.gone, 2);
}

/// Every kind of GET of a single key is published in steps, not only those that return the value.
#[test]
fn every_kind_of_get_is_published() {
    type Get = fn(&mut Client) -> bool;
    let gets: [Get; 4] = [
        |client| client.get_into(b"key", &mut Vec::new()).unwrap(),
        |client| client.contains(b"key").unwrap(),
        |client| client.value_len(b"key").unwrap() == Some(5),
        |client| client.get_range(b"key", 1..3, &mut Vec::new()).unwrap() == Some(5),
    ];
    let place = Place::new();
    let _server = place.serve(default_preset());
    let mut client = place.client();
    client.put(b"key", b"value").unwrap();
    for hint_bytes in [0, 1 << 12] {
        for (which, get) in gets.iter().enumerate() {
            let options = patient().hint_bytes(hint_bytes);
            let mut client = Client::connect_with(&place.address, options).unwrap();
            let counters = client.counters();
            for n in 1..=130 {
                assert!(get(&mut client));
                let published = counters.stats().get.gets;
                assert_eq!((published, client.stats().get.gets), (n / 64 * 64, n), "{which}");
            }
            get(&mut client);
            client.get_range(b"", 0..1, &mut Vec::new()).unwrap_err();
            client.value_len(&[1; 17]).unwrap_err();
            assert_eq!((counters.stats(), counters.stats().failures.refused), (client.stats(), 2), "{which}");
        }
    }
}

/// A change that ends at its deadline is counted as that.
#[test]
fn deadlines_are_counted() {
    let place = Place::new();
    let server = place.serve_apart(default_preset(), false);
    let options = patient().deadline(Duration::from_millis(50));
    let mut client = wait_for("the server", || Client::connect_with(&place.address, options.clone()).ok());
    let counters = client.counters();
    server.stop();
    let late = client.put(b"key", b"value").unwrap_err();
    assert!(matches!(late, MutateError::Deadline { .. }), "{late}");
    assert_eq!((counters.stats().failures.deadlines, counters.stats().changes.puts), (1, 0));
    server.signal(Signal::CONT);
}

/// A client applies the limits of the present server, not those of the one before, in both
/// directions.
#[test]
fn limits_are_those_of_the_present_server() {
    let place = Place::new();
    lengths_of_the_next_server(&patient(), |_, table| {
        Server::start(ServerConfig::new(place.address.clone(), *table)).unwrap()
    });
}

/// The server itself checks lengths, even if a client does not. The connection stays usable.
#[test]
fn the_server_checks_lengths_too() {
    let place = Place::new();
    let _server = place.serve(default_preset());
    let mut raw = Raw::greeted(&place.address);
    let long = [7; 300];
    for (request, expected) in [
        (
            Request::Put { mode: oneread::PutMode::Upsert, key: &long, value: b"" },
            PutError::KeyLength { given: 300, max: 16 },
        ),
        (
            Request::Put { mode: oneread::PutMode::Insert, key: b"", value: b"" },
            PutError::KeyLength { given: 0, max: 16 },
        ),
        (
            Request::Put { mode: oneread::PutMode::Update, key: b"k", value: &long },
            PutError::ValueLength { given: 300, max: 32 },
        ),
        (
            Request::Swap { key: b"k", expected: &long, value: b"" },
            PutError::ValueLength { given: 300, max: 32 },
        ),
        (
            Request::Swap { key: b"k", expected: b"", value: &long },
            PutError::ValueLength { given: 300, max: 32 },
        ),
        (Request::Remove { key: &long }, PutError::KeyLength { given: 300, max: 16 }),
        (Request::Get { key: &long }, PutError::KeyLength { given: 300, max: 16 }),
        (Request::Get { key: b"" }, PutError::KeyLength { given: 0, max: 16 }),
    ] {
        raw.send(&request);
        assert_eq!(raw.reply(), Some(Reply::Put(Err(expected))));
    }
    raw.send(&Request::Remove { key: b"k" });
    assert_eq!(raw.reply(), Some(Reply::Removed(Ok(false))));
}

/// Clones share only the mapping. Two threads change and read at once, and each immediately sees
/// its own changes.
#[test]
fn clones_share_only_the_mapping() {
    on_every_family(|preset| {
        let place = Place::new();
        let server = place.serve(preset);
        let client = place.client();
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let mut mine = client.clone();
                scope.spawn(move || {
                    for n in 0..400 {
                        let (key, value) = (key(2 * n + lane, 16), value(n.into(), 20));
                        assert_eq!(mine.put(&key, &value).unwrap(), PutOutcome::Inserted);
                        assert_eq!(mine.get(&key).unwrap(), Some(value));
                    }
                    assert_eq!(mine.stats().get.hits, 400);
                });
            }
        });
        assert_eq!(client.stats(), oneread::client::ClientStats::default(), "clones count for themselves");
        assert_eq!(server.index().len(), 800);
    });
}

/// Many clients at once, more than the server has threads, each with its own keys.
#[test]
fn many_clients() {
    let place = Place::new();
    let server = place.serve(default_preset());
    std::thread::scope(|scope| {
        for lane in 0..24u32 {
            let place = &place;
            scope.spawn(move || {
                let mut client = place.client();
                let pairs: Vec<_> =
                    (0..40).map(|n| (key(lane * 40 + n, 16), value(lane.into(), 9))).collect();
                assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
                for (key, value) in &pairs {
                    assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
                }
            });
        }
    });
    assert_eq!(server.index().len(), 24 * 40);
    // All clients have left, and the server has noticed.
    wait_for("the clients to be gone", || (server.stats().clients == 0).then_some(()));
}

/// The watching threads of this process: their folders.
fn watching_threads() -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // (A thread may end meanwhile.)
    let name = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task).trim() == "oneread-watch").collect()
}

/// Starts and drops clients in a process that does nothing else. Not a test by itself.
#[test]
#[ignore = "started by another test, in a process of its own"]
fn crowded_child() {
    if told("ONEREAD_TEST_ADDRESS").is_none() {
        return;
    }
    // Client and server have a descriptor for each connection.
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let place = Place::new();
    let server = place.serve(default_preset());
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let none_are_left = |before: usize| {
        wait_for("the connections to end", || (server.stats().clients == 0).then_some(()));
        wait_for("the thread to end", || watching_threads().is_empty().then_some(()));
        wait_for("the server to close them", || (fds() == before).then_some(()));
    };
    let before = fds();
    // All at once: some only read, some change things, too.
    let room = maximum.unwrap_or(u64::MAX).saturating_sub(100) / 2;
    let crowd: Vec<_> = (0..room.min(1000) as u32)
        .map(|n| {
            let mut client = place.client();
            if n % 3 == 0 {
                client.put(&key(n, 16), &n.to_le_bytes()).unwrap();
            }
            assert!(client.get(&key(n, 16)).unwrap().is_some() == (n % 3 == 0));
            client
        })
        .collect();
    assert_eq!(server.stats().clients, crowd.len() as u64);
    wait_for("the thread's name", || (watching_threads().len() == 1).then_some(()));
    drop(crowd);
    none_are_left(before);
    // One after the other, alone and beside one that stays: more than may be there at a time.
    let mut stays = None;
    for n in 0..6000u32 {
        let mut client = place.client();
        if n % 10 == 0 {
            client.put(b"key", &n.to_le_bytes()).unwrap();
        }
        if n == 3000 {
            stays = Some(client);
        }
        // (One that has ended may be listed for a moment.)
        wait_for("one thread at most", || (watching_threads().len() <= 1).then_some(()));
    }
    assert!(stays.unwrap().contains(b"key").unwrap());
    none_are_left(before);
    // The thread watches for the end of connections alone: replies on them do not wake it.
    let options = patient().requests(RequestPath::Message);
    let mut client = Client::connect_with(&place.address, options).unwrap();
    // (It has its name soon after its start.)
    let thread = wait_for("the thread", || watching_threads().pop());
    let sleeps = || -> u64 {
        let status = std::fs::read_to_string(thread.join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    client.put(b"key", b"").unwrap();
    let before = sleeps();
    for n in 0..1000u32 {
        client.put(b"key", &n.to_le_bytes()).unwrap();
    }
    assert!(sleeps() - before < 100, "{before}, {}", sleeps());
}

/// One thread watches the servers of all clients of a process. Neither threads nor connections nor
/// descriptors are left of clients that were dropped. However many come one after the other, the
/// server takes them all.
#[test]
fn a_crowd_of_clients_has_one_thread() {
    Process::start("crowded_child", &[("ONEREAD_TEST_ADDRESS", "none".into())]).finish();
}

/// Servers that do not answer hold up the watching of no other. Attempts to reconnect to a silent
/// one are under way for two seconds each: one after the other, these would take minutes.
#[test]
fn silent_servers_hold_up_no_other() {
    let fake = Fake::new();
    let is_silent = AtomicBool::new(false);
    let attempts = AtomicUsize::new(0);
    let serve = |mut stream: UnixStream| {
        if is_silent.load(Ordering::SeqCst) {
            attempts.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read_to_end(&mut Vec::new());
        } else {
            let _raw = fake.welcome(&mut stream);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    };
    let (place, stopped) = (Place::new(), Place::new());
    let mut server = Some(place.serve(default_preset()));
    let process = stopped.serve_apart(default_preset(), false);
    let mut client = place.client();
    let options = patient().lease(SOON).deadline(Duration::from_millis(50));
    let mut reader =
        wait_for("a connection", || Client::connect_with(&stopped.address, options.clone()).ok());
    fake.during(serve, || {
        let waiting: Vec<_> = (0..100).map(|_| fake.client(&patient())).collect();
        is_silent.store(true, Ordering::SeqCst);
        process.stop();
        fake.hang_up();
        wait_for("attempts", || (attempts.load(Ordering::SeqCst) >= 100).then_some(()));
        for round in 0..5u8 {
            server.take().unwrap().stop();
            wait_for("the client to know", || (!client.is_served()).then_some(()));
            server = Some(place.serve(default_preset()));
            wait_for("the client to be back", || client.is_served().then_some(()));
            client.put(b"key", &[round]).unwrap();
            assert_eq!(client.get(b"key").unwrap(), Some(vec![round]));
            assert!(waiting.iter().all(|client| !client.is_served()));
            // Suspended is not gone, and a client that gave up a request is not gone either.
            assert!(matches!(reader.put(b"key", b"value"), Err(MutateError::Deadline { .. })));
            assert!(reader.is_served() && reader.get(b"other").unwrap().is_none());
        }
    });
    process.kill();
    wait_for("the end of the suspended one", || (!reader.is_served()).then_some(()));
}

/// A server has room for one connection. The client that has it gives it up, because its server
/// was suspended and did not answer in time. When the server goes on, the client takes the place of
/// its own connection. It never counts twice, and is never without a server.
#[test]
fn a_given_up_connection_takes_no_place() {
    let place = Place::new();
    let process = place.serve_apart_for(default_preset(), 1);
    for path in [RequestPath::Message, RequestPath::Mailbox, RequestPath::Auto] {
        let mut client = place.hasty(patient().requests(path), Duration::from_millis(200));
        wait_for("an answer", || client.put(b"key", b"value").ok());
        process.stop();
        for _ in 0..3 {
            let error = client.put(b"key", b"other").unwrap_err();
            assert!(matches!(error, MutateError::Deadline { .. }), "{error:?}");
            assert!(client.is_served() && client.get(b"key").unwrap().is_some());
        }
        process.signal(Signal::CONT);
        wait_for("an answer", || client.put(b"key", b"third").ok());
        wait_for("the others to be gone", || {
            let stats = client.server_stats().ok()?;
            (stats.clients == 1).then_some(())
        });
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"third"[..]));
        assert!(client.is_served());
    }
}

// ---- clients that misbehave -------------------------------------------------------------------------

/// A connection without a client. It sends whatever the test wants.
struct Raw {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Raw {
    fn connect(address: &Address) -> Raw {
        let stream = UnixStream::connect(address.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Raw { stream, input: Vec::new() }
    }

    fn greeted(address: &Address) -> Raw {
        let mut raw = Raw::connect(address);
        raw.send(&Request::Hello { version: PROTOCOL_VERSION });
        assert_eq!(raw.reply(), Some(Reply::Welcome { version: PROTOCOL_VERSION }));
        raw
    }

    fn send(&mut self, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(1, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next reply; `None` when the server closes the connection instead.
    fn reply(&mut self) -> Option<Reply> {
        loop {
            if let Some(frame) = wire::decode(&self.input).unwrap() {
                let reply = Reply::decode(&frame).unwrap();
                self.input.drain(..frame.length);
                return Some(reply);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply and no end: {error}"),
            }
        }
    }
}

/// An empty region file, left by an earlier start, is made into a table. A server that admits other
/// users also admits its own.
#[test]
fn what_a_server_starts_from() {
    let place = Place::new();
    let file = place.dir.path().join("region");
    write_own(&file, b"");
    let config = ServerConfig::new(place.address.clone(), table(default_preset()))
        .backing(Backing::File(file))
        .start(StartMode::OpenOrCreate)
        .allow_uids(vec![12_345]);
    let server = start(config);
    assert_eq!(server.recovered(), None);
    place.client().put(b"key", b"value").unwrap();
}

/// A client sends more requests at once than a worker answers in one turn, and then nothing. All
/// are answered.
#[test]
fn a_client_with_very_many_requests() {
    const REQUESTS: usize = 100_000;
    let place = Place::new();
    let _server = place.serve(default_preset());
    let mut raw = Raw::greeted(&place.address);
    let mut bytes = Vec::new();
    (0..REQUESTS).for_each(|_| Request::Get { key: b"nobody" }.encode(1, &mut bytes));
    let mut writer = raw.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(&bytes).unwrap());
        (0..REQUESTS).for_each(|n| assert_eq!(raw.reply(), Some(Reply::Value(None)), "request {n}"));
    });
}

/// Garbage, half a frame, nothing at all, a wrong first word, replies that nobody reads, a sudden
/// end: each costs at most the connection it came over. Clients that connected before or connect
/// later are served as usual.
#[test]
fn a_bad_client_costs_its_own_connection() {
    on_every_family(|preset| {
        let place = Place::new();
        // It keeps the silent ones longer than this takes.
        let config = ServerConfig::new(place.address.clone(), table(preset)).half_open(2 * SOON);
        let server = Server::start(config).unwrap();
        let mut good = place.client();
        good.put(b"good", b"1").unwrap();
        let mut numbers = Numbers(1);
        let mut kept = Vec::new();
        let put = Request::Put { mode: oneread::PutMode::Upsert, key: b"bad", value: b"value" };
        for round in 0..20 {
            // Random bytes, before and after the hello. In every other round, the first 4 bytes are
            // a valid length, so that the server must check the rest.
            let mut garbage: Vec<u8> = (0..100).flat_map(|_| numbers.next().to_le_bytes()).collect();
            if round % 2 == 0 {
                garbage[..4].copy_from_slice(&((round as u32) * 3).to_le_bytes());
            }
            let mut raw = Raw::connect(&place.address);
            raw.stream.write_all(&garbage).unwrap();
            assert_eq!(raw.reply(), None, "garbage instead of a hello");
            let mut raw = Raw::greeted(&place.address);
            let _ = raw.stream.write_all(&garbage);
            let ended = raw.reply();
            assert!(ended.is_none(), "garbage after the hello: {ended:?}");

            // Half of a put, then the end; half of a put, then silence; a whole put, then the end.
            let mut frame = Vec::new();
            put.encode(2, &mut frame);
            let mut half = Raw::greeted(&place.address);
            half.stream.write_all(&frame[..1 + round]).unwrap();
            drop(half);
            let mut half = Raw::greeted(&place.address);
            half.stream.write_all(&frame[..1 + round]).unwrap();
            kept.push(half);
            let mut whole = Raw::greeted(&place.address);
            whole.send(&put);
            drop(whole);
            // Nothing at all.
            kept.push(Raw::connect(&place.address));
            drop(Raw::connect(&place.address));

            good.put(b"good", &[round as u8]).unwrap();
            assert_eq!(good.get(b"good").unwrap(), Some(vec![round as u8]));
        }
        // A put without a hello; a second hello.
        let mut rude = Raw::connect(&place.address);
        rude.send(&put);
        assert_eq!(rude.reply(), None);
        let mut twice = Raw::greeted(&place.address);
        twice.send(&Request::Hello { version: PROTOCOL_VERSION });
        assert_eq!(twice.reply(), Some(Reply::Refused { version: PROTOCOL_VERSION }));
        assert_eq!(twice.reply(), None);

        // The connections that stay are the silent ones, and the good client's.
        let silent = kept.len() as u64;
        wait_for("the bad clients to be dropped", || (server.stats().clients == silent + 1).then_some(()));
        let mut newcomer = place.client();
        assert_eq!(newcomer.put(b"new", b"1").unwrap(), PutOutcome::Inserted);
        assert_eq!(newcomer.get(b"good").unwrap(), Some(vec![19]));
        assert_eq!(newcomer.get(b"bad").unwrap().as_deref(), Some(&b"value"[..]), "whole frames count");
    });
}

/// A client sends requests and never reads the answers. At some point the server stops reading from
/// it, and nobody else waits. When the client reads at last, it gets every answer, in order.
#[test]
fn a_client_that_does_not_read() {
    let place = Place::new();
    let _server = place.serve(default_preset());
    let mut good = place.client();
    let mut raw = Raw::greeted(&place.address);
    let mut sender = raw.stream.try_clone().unwrap();
    // 1 MB of requests. Their answers, 112 bytes each, are 7 MB and fit into no buffer.
    const QUESTIONS: u64 = 60_000;
    let asking = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        (0..QUESTIONS).for_each(|id| Request::Stat.encode(id, &mut bytes));
        sender.write_all(&bytes).unwrap();
    });
    for n in 0..200u32 {
        let began = Instant::now();
        good.put(b"good", &n.to_le_bytes()).unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    let mut answers = 0;
    while answers < QUESTIONS {
        assert!(matches!(raw.reply(), Some(Reply::Stat(_))));
        answers += 1;
    }
    asking.join().unwrap();
}

/// A client of another protocol version is told the server's version and refused. One client too
/// many is refused, too. A client that reads and changes counts once.
#[test]
fn other_versions_and_too_many_clients_are_refused() {
    let place = Place::new();
    for version in [0, PROTOCOL_VERSION + 1, u32::MAX] {
        let _server = place.serve(default_preset());
        let mut raw = Raw::connect(&place.address);
        raw.send(&Request::Hello { version });
        assert_eq!(raw.reply(), Some(Reply::Refused { version: PROTOCOL_VERSION }), "version {version}");
        assert_eq!(raw.reply(), None);
    }
    let config = ServerConfig::new(place.address.clone(), table(default_preset())).clients_max(1);
    let server = Server::start(config).unwrap();
    let mut first = place.client();
    first.put(b"key", b"value").unwrap();
    let refused = Client::connect(&place.address).expect_err("the only connection is taken");
    assert!(
        matches!(refused, ConnectError::TurnedAway { source: Refusal::ServerFull { max: 1 }, .. }),
        "{refused}"
    );
    // Its clone needs a connection of its own while the first one has one, and no longer.
    let mut second = first.clone();
    match second.put(b"key", b"other") {
        Err(MutateError::Connect(ConnectError::TurnedAway {
            source: Refusal::ServerFull { max: 1 },
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(first.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    drop(first);
    second.put(b"key", b"other").unwrap();
    assert_eq!((second.get(b"key").unwrap().as_deref(), server.stats().clients), (Some(&b"other"[..]), 1));
    drop(second);
    wait_for("room for another client", || Client::connect(&place.address).ok());
}

/// A socket whose server is gone is replaced. Any other file stays. Anybody who can reach the
/// socket may connect; credentials decide who is admitted.
#[test]
fn stale_sockets_are_replaced_and_other_files_stay() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let path = place.address.socket().unwrap();
    let config = || ServerConfig::new(place.address.clone(), table(default_preset()));
    std::fs::write(path, "somebody's file").unwrap();
    let error = Server::start(config()).expect_err("a file is there");
    assert!(matches!(error, oneread::ServeError::NoSocket { kind: "file", .. }), "{error}");
    assert_eq!(std::fs::read(path).unwrap(), b"somebody's file");
    std::fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink("nowhere", path).unwrap();
    let error = Server::start(config()).expect_err("a link is there");
    assert!(matches!(error, oneread::ServeError::NoSocket { kind: "link", .. }), "{error}");
    assert!(path.is_symlink());
    std::fs::remove_file(path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let _server = start(config());
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o666);
    place.client().put(b"key", b"value").unwrap();
}

/// Options of another fabric are refused by name, by the server and by the client. Nothing is left
/// behind.
#[test]
fn options_of_another_fabric_are_refused() {
    let place = Place::new();
    let verbs: Address = "verbs://127.0.0.1:1".parse().unwrap();
    #[cfg(feature = "herd")]
    {
        let config = ServerConfig::new(place.address.clone(), table(default_preset())).herd(true);
        let error = Server::start(config).unwrap_err();
        let oneread::ServeError::Elsewhere { option, fabric, address } = error else { panic!("{error}") };
        assert_eq!((option, fabric, &address), ("herd", "verbs", &place.address));
        assert!(!place.address.socket().unwrap().exists());
    }
    let _server = place.serve(default_preset());
    let refused = [
        #[cfg(feature = "herd")]
        (&place.address, RequestPath::Herd),
        (&verbs, RequestPath::Mailbox),
    ];
    for (at, requests) in refused {
        let options = patient().requests(requests);
        let error = Client::connect_with(at, options).unwrap_err();
        let ConnectError::RequestPath { path, address, why } = &error else { panic!("{error}") };
        assert_eq!((path, address), (&requests, at));
        assert!(why.contains("messages") && error.to_string().contains(requests.name()), "{error}");
    }
}

/// Connecting fails if nobody listens, or if the listener is no server.
#[test]
fn connecting_without_a_server_fails() {
    let place = Place::new();
    let error = Client::connect(&place.address).expect_err("nobody is there");
    assert!(matches!(error, ConnectError::NotThere { .. }), "{error}");
    let too_long = Address::Shm(place.dir.path().join("x".repeat(100)));
    let error = Client::connect(&too_long).expect_err("no socket has such a name");
    assert!(matches!(error, ConnectError::Address(_)), "{error}");
    let listener = std::os::unix::net::UnixListener::bind(place.address.socket().unwrap()).unwrap();
    let options = ClientOptions::new().deadline(Duration::from_millis(100));
    let error = Client::connect_with(&place.address, options).expect_err("nobody answers");
    assert!(matches!(error, ConnectError::Link { .. }), "{error}");
    let answering = std::thread::spawn(move || {
        // The first connection is that of the client that gave up above.
        for stream in listener.incoming().take(2) {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = Client::connect(&place.address).expect_err("no server of ours");
    assert!(matches!(error, ConnectError::Link { .. }), "{error}");
    answering.join().unwrap();
}

/// A server that ends before it accepts a connection, or before it reads from it, resets it. The
/// client reports that the server hung up, and not which call returned the error.
#[test]
fn a_server_that_ends_while_clients_connect() {
    use rustix::event::{PollFd, PollFlags, poll};
    let place = Place::new();
    for accepts in [false, true] {
        let listener = std::os::unix::net::UnixListener::bind(place.address.socket().unwrap()).unwrap();
        let address = place.address.clone();
        let connecting = std::thread::spawn(move || Client::connect(&address).expect_err("it ends"));
        assert_eq!(poll(&mut [PollFd::new(&listener, PollFlags::IN)], None), Ok(1), "somebody connects");
        if accepts {
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(poll(&mut [PollFd::new(&stream, PollFlags::IN)], None), Ok(1), "a hello");
        }
        drop(listener);
        let error = connecting.join().unwrap();
        let hung_up = matches!(error, ConnectError::Link { source: LinkError::HungUp, .. });
        assert!(hung_up, "accepted: {accepts}: {error:?}");
        std::fs::remove_file(place.address.socket().unwrap()).unwrap();
    }
}

/// The server welcomes clients correctly and then gives its replies false numbers. Each reply is a
/// whole frame and a valid answer. The client accepts none of them.
#[test]
fn misnumbered_replies_are_rejected() {
    /// Maps the numbers of requests to the numbers of their replies.
    type Lie = (&'static str, fn(&[u64]) -> Vec<u64>);
    type Question = fn(&mut Client) -> Result<(), MutateError>;
    const LIES: [Lie; 10] = [
        ("one more", |ids| ids.iter().map(|id| id + 1).collect()),
        ("one less", |ids| ids.iter().map(|id| id.wrapping_sub(1)).collect()),
        ("far more", |ids| ids.iter().map(|id| id | 1 << 40).collect()),
        ("of the hello", |ids| vec![0; ids.len()]),
        ("of the last conversation", |ids| ids.iter().map(|id| id - ids.len() as u64).collect()),
        ("backwards", |ids| if ids.len() > 1 { ids.iter().rev().copied().collect() } else { vec![9] }),
        ("the last two swapped", |ids| {
            let mut ids = ids.to_vec();
            let n = ids.len();
            if n > 1 {
                ids.swap(n - 1, n - 2)
            } else {
                ids[0] += 1
            }
            ids
        }),
        ("the first twice", |ids| {
            let mut ids = ids.to_vec();
            if ids.len() > 1 {
                ids[1] = ids[0]
            } else {
                ids[0] -= 1
            }
            ids
        }),
        ("the last missing, then another", |ids| {
            let mut ids = ids.to_vec();
            *ids.last_mut().unwrap() += 1;
            ids
        }),
        ("only the last wrong", |ids| {
            let mut ids = ids.to_vec();
            *ids.last_mut().unwrap() ^= 2;
            ids
        }),
    ];
    let place = Place::new();
    let _server = place.serve(default_preset());
    let path = place.dir.path().join("liar");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // The number of the answer to a hello, and whether answers are of another kind.
    let (hello_id, other_kind) = (AtomicU64::new(0), AtomicBool::new(false));
    // The index of the current lie. Beyond the last one, the server tells the truth.
    let lie = AtomicUsize::new(LIES.len());
    let [lies, welcomed] = [const { AtomicUsize::new(0) }; 2];
    let ordering = Ordering::SeqCst;
    let serve = |mut stream: UnixStream| -> std::io::Result<()> {
        let mut hello = [0; 32];
        stream.read_exact(&mut hello)?;
        let mut raw = Raw::connect(&place.address);
        raw.stream.write_all(&hello)?;
        let (welcome, memory) = receive(&raw.stream);
        let mut bytes = Vec::new();
        welcome.encode(hello_id.load(ordering), &mut bytes);
        send_with(&stream, &bytes, &memory.expect("a region"));
        welcomed.fetch_add(1, ordering);
        let mut input = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            let n = stream.read(&mut chunk)?;
            if n == 0 {
                return Ok(());
            }
            input.extend_from_slice(&chunk[..n]);
            let (mut ids, mut replies, mut rest) = (Vec::new(), Vec::new(), &input[..]);
            while let Some(frame) = wire::decode(rest).unwrap() {
                ids.push(frame.id);
                replies.push(match Request::decode(&frame).unwrap() {
                    Request::Put { .. } if other_kind.load(ordering) => Reply::Removed(Ok(true)),
                    _ if other_kind.load(ordering) => Reply::Put(Ok(PutOutcome::Updated)),
                    Request::Put { .. } => Reply::Put(Ok(PutOutcome::Inserted)),
                    Request::Remove { .. } => Reply::Removed(Ok(true)),
                    Request::Get { .. } => Reply::Value(Some(b"a value".to_vec())),
                    other => panic!("{other:?}"),
                });
                rest = &rest[frame.length..];
            }
            input = rest.to_vec();
            if let Some((_, lie)) = LIES.get(lie.load(ordering)).filter(|_| !ids.is_empty()) {
                ids = lie(&ids);
                lies.fetch_add(1, ordering);
            }
            let mut out = Vec::new();
            replies.iter().zip(ids).for_each(|(reply, id)| reply.encode(id, &mut out));
            stream.write_all(&out)?;
        }
    };
    std::thread::scope(|scope| {
        /// Ends the accepting thread, also when a check fails, because the scope waits for it.
        struct Over<'a>(&'a AtomicUsize, &'a std::path::Path);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(usize::MAX, Ordering::SeqCst);
                let _ = UnixStream::connect(self.1);
            }
        }
        let _over = Over(&lie, &path);
        let (listener, serve, lie) = (&listener, &serve, &lie);
        scope.spawn(move || {
            for stream in listener.incoming() {
                if lie.load(ordering) > LIES.len() {
                    return;
                }
                // (It ends when the client hangs up, which may reset the connection.)
                scope.spawn(move || drop(serve(stream.unwrap())));
            }
        });
        let options = patient().requests(RequestPath::Message);
        let mut client = Client::connect_with(&Address::Shm(path.clone()), options).unwrap();
        let asks: [Question; 4] = [
            |client| client.put(b"k", b"v").map(|put| assert_eq!(put, PutOutcome::Inserted)),
            |client| client.remove(b"k").map(|there| assert!(there)),
            |client| client.get_two_sided(b"k").map(|found| assert_eq!(found.unwrap(), b"a value")),
            |client| {
                let pairs = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")];
                client.put_many(&pairs).map(|answers| assert_eq!(answers, vec![Ok(PutOutcome::Inserted); 3]))
            },
        ];
        for (number, (name, _)) in LIES.iter().enumerate() {
            for (which, ask) in asks.iter().enumerate() {
                // The server tells the truth, over a new connection. Numbers start again, so the
                // next lie concerns others.
                (0..4).for_each(|_| ask(&mut client).unwrap());
                lie.store(number, ordering);
                let told = lies.load(ordering);
                match ask(&mut client) {
                    Err(MutateError::ServerGone { source, .. }) => {
                        let told = source.to_string();
                        assert!(told.contains("does not speak oneread's protocol"), "{name}: {told}");
                    }
                    other => panic!("{name}, request {which}: {other:?}"),
                }
                assert!(lies.load(ordering) > told);
                lie.store(LIES.len(), ordering);
            }
        }
        let speaks_otherwise = |result: Result<(), MutateError>| match result {
            Err(MutateError::ServerGone { source, .. }) => {
                assert!(source.to_string().contains("does not speak oneread's protocol"), "{source}");
            }
            other => panic!("{other:?}"),
        };
        // Answers of another kind. The connection they came over is not used again.
        for ask in &asks {
            ask(&mut client).unwrap();
            other_kind.store(true, ordering);
            let connections = welcomed.load(ordering);
            speaks_otherwise(ask(&mut client));
            other_kind.store(false, ordering);
            ask(&mut client).unwrap();
            assert_eq!(welcomed.load(ordering), connections + 1);
        }
        // A welcome with another number than the hello's.
        hello_id.store(1, ordering);
        let error = Client::connect(&Address::Shm(path.clone())).expect_err("no answer to its hello");
        assert!(matches!(error, ConnectError::Link { .. }), "{error}");
        assert!(with_causes(&error).contains("does not speak oneread's protocol"), "{error:?}");
    });
}

// ---- servers that say what their test says ------------------------------------------------------------

/// Has the region and the mailboxes of a true server. The test decides what clients are told, and
/// when.
struct Fake {
    listener: UnixListener,
    address: Address,
    streams: Mutex<Vec<UnixStream>>,
    is_over: AtomicBool,
    server: Server,
    place: Place,
}

impl Fake {
    fn new() -> Fake {
        let place = Place::new();
        let config = ServerConfig::new(place.address.clone(), table(default_preset()));
        let server = Server::start(config).unwrap();
        let path = place.dir.path().join("fake");
        let listener = UnixListener::bind(&path).unwrap();
        let (address, is_over) = (Address::Shm(path), AtomicBool::new(false));
        Fake { listener, address, streams: Mutex::default(), is_over, server, place }
    }

    /// A client with this deadline. Its connections are made within it.
    fn client(&self, options: &ClientOptions) -> Client {
        wait_for("a connection", || Client::connect_with(&self.address, options.clone()).ok())
    }

    /// The next connection.
    fn accept(&self) -> UnixStream {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let soon = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        let there = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&soon));
        assert_eq!(there, Ok(1), "nobody connects");
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Answers a hello as the true server does. Returns the server's end of the connection, or
    /// `None` if the client is gone.
    fn welcome(&self, stream: &mut UnixStream) -> Option<Raw> {
        let mut hello = [0; 32];
        stream.read_exact(&mut hello).ok()?;
        let mut raw = Raw::connect(&self.place.address);
        raw.stream.write_all(&hello).unwrap();
        let (welcome, memory) = receive(&raw.stream);
        let mut bytes = Vec::new();
        welcome.encode(0, &mut bytes);
        send_with(stream, &bytes, &memory.expect("a region"));
        Some(raw)
    }

    fn welcomed(&self) -> UnixStream {
        let mut stream = self.accept();
        self.welcome(&mut stream).expect("a hello");
        stream
    }

    /// Calls `each` with every connection, on a thread of its own, while `then` runs.
    fn during(&self, each: impl Fn(UnixStream) + Sync, then: impl FnOnce()) {
        /// Ends all threads, also when a check fails, because the scope waits for them.
        struct Over<'a>(&'a Fake);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.is_over.store(true, Ordering::SeqCst);
                let _ = UnixStream::connect(self.0.address.socket().unwrap());
                self.0.hang_up();
            }
        }
        std::thread::scope(|scope| {
            let each = &each;
            scope.spawn(move || {
                for stream in self.listener.incoming() {
                    let stream = stream.unwrap();
                    let mut streams = self.streams.lock().unwrap();
                    if self.is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    stream.set_read_timeout(Some(SOON)).unwrap();
                    streams.push(stream.try_clone().unwrap());
                    scope.spawn(move || each(stream));
                }
            });
            let _over = Over(self);
            then();
        });
    }

    /// Closes all connections.
    fn hang_up(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Reads until there are `n` requests, or the client hangs up. Returns their numbers, and whether
/// there is more.
fn requests_of(stream: &mut UnixStream, n: usize) -> (Vec<u64>, bool) {
    let (mut input, mut ids, mut taken) = (Vec::new(), Vec::new(), 0);
    while ids.len() < n {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(read @ 1..) => input.extend_from_slice(&chunk[..read]),
            _ => break,
        }
        while let Some(frame) = wire::decode(&input[taken..]).unwrap().filter(|_| ids.len() < n) {
            ids.push(frame.id);
            taken += frame.length;
        }
    }
    (ids, taken < input.len())
}

/// A server answers every request with the same words. Where these are no answer to it, the call fails,
/// is counted, and its connection is not used again. Where they say that the client may only read, that
/// is the error, and the connection stays.
#[test]
fn answers_to_no_request() {
    type Question = fn(&mut Client) -> Result<(), MutateError>;
    let asks: [Question; 16] = [
        |client| client.put(b"k", b"v").map(drop),
        |client| client.insert(b"k", b"v").map(drop),
        |client| client.update(b"k", b"v").map(drop),
        |client| client.remove(b"k").map(drop),
        |client| client.compare_and_swap(b"k", b"v", b"w").map(drop),
        // The server is asked first whether it is there.
        |client| client.compare_and_swap(b"k", &[1; 5_000], b"w").map(drop),
        |client| client.get_two_sided(b"k").map(drop),
        |client| client.server_stats().map(drop),
        |client| client.growth().map(drop),
        |client| client.shrink().map(drop),
        |client| client.heap().map(drop),
        |client| client.snapshot_status().map(drop),
        |client| client.ask_for_snapshot().map(drop),
        |client| client.put_many(&[(b"k", b"v"), (b"l", b"v")]).map(drop),
        |client| client.update_many(&[(b"k", b"v")]).map(drop),
        |client| client.remove_many(&[b"k", b"l"]).map(drop),
    ];
    let fake = Fake::new();
    let (connections, denies) = (AtomicUsize::new(0), AtomicBool::new(false));
    let serve = |mut stream: UnixStream| {
        connections.fetch_add(1, Ordering::SeqCst);
        let Some(_raw) = fake.welcome(&mut stream) else { return };
        let mut input = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            match stream.read(&mut chunk) {
                Ok(read @ 1..) => input.extend_from_slice(&chunk[..read]),
                _ => return,
            }
            let mut out = Vec::new();
            while let Some(frame) = wire::decode(&input).unwrap() {
                let reply = if denies.load(Ordering::SeqCst) { Reply::Denied } else { Reply::Unfit };
                reply.encode(frame.id, &mut out);
                let length = frame.length;
                input.drain(..length);
            }
            let _ = stream.write_all(&out);
        }
    };
    fake.during(serve, || {
        let mut client = fake.client(&patient().requests(RequestPath::Message));
        let counters = client.counters();
        for (which, ask) in asks.iter().enumerate() {
            let before = (connections.load(Ordering::SeqCst), client.stats().failures);
            match ask(&mut client) {
                Err(MutateError::ServerGone { address, source: LinkError::Unexpected }) => {
                    assert_eq!(address, fake.address, "{which}");
                }
                other => panic!("{which}: {other:?}"),
            }
            let failures = client.stats().failures;
            assert_eq!((failures.gone, failures.refused), (before.1.gone + 1, before.1.refused), "{which}");
            assert_eq!(counters.stats(), client.stats(), "{which}");
            denies.store(true, Ordering::SeqCst);
            for round in 0..2 {
                match ask(&mut client) {
                    Err(MutateError::ReadOnly { address }) => assert_eq!(address, fake.address, "{which}"),
                    other => panic!("{which}: {other:?}"),
                }
                let failures = client.stats().failures;
                assert_eq!(failures.refused, before.1.refused + round + 1, "{which}");
                assert_eq!(counters.stats(), client.stats(), "{which}");
            }
            denies.store(false, Ordering::SeqCst);
            assert_eq!(connections.load(Ordering::SeqCst), before.0 + 1, "{which}");
        }
        assert_eq!(client.stats().changes.rejected, 0);
    });
}

/// A client sends a batch before it reads replies, but only so many pairs at a time that their
/// replies fit into a socket.
#[test]
fn batches_are_sent_in_pieces() {
    let fake = Fake::new();
    let pairs: Vec<_> = (0..1025u32).map(|n| (n.to_le_bytes(), n.to_le_bytes())).collect();
    let address = fake.address.clone();
    let putting = std::thread::spawn(move || {
        let options = patient().requests(RequestPath::Message);
        let mut client = Client::connect_with(&address, options).unwrap();
        assert_eq!(client.put_many(&pairs).unwrap(), vec![Ok(PutOutcome::Inserted); 1025]);
    });
    let mut stream = fake.welcomed();
    let mut first_id = 0;
    for length in [512, 512, 1] {
        let (ids, has_more) = requests_of(&mut stream, length);
        assert_eq!(ids, (first_id..first_id + length as u64).collect::<Vec<_>>());
        assert!(!has_more, "more than {length}");
        std::thread::sleep(Duration::from_millis(20));
        stream.set_nonblocking(true).unwrap();
        let more = stream.read(&mut [0]).unwrap_err();
        assert_eq!(more.kind(), std::io::ErrorKind::WouldBlock, "more than {length}");
        stream.set_nonblocking(false).unwrap();
        let mut out = Vec::new();
        ids.into_iter().for_each(|id| Reply::Put(Ok(PutOutcome::Inserted)).encode(id, &mut out));
        stream.write_all(&out).unwrap();
        first_id += length as u64;
    }
    putting.join().unwrap();
}

/// The connection that is made for a change shares the deadline of the change.
#[test]
fn a_deadline_is_for_all_of_it() {
    let deadline = Duration::from_millis(250);
    let pause = deadline * 3 / 5;
    let fake = Fake::new();
    let is_slow = AtomicBool::new(false);
    let serve = |mut stream: UnixStream| {
        if is_slow.load(Ordering::SeqCst) {
            std::thread::sleep(pause);
        }
        let Some(_raw) = fake.welcome(&mut stream) else { return };
        loop {
            let (ids, _) = requests_of(&mut stream, 1);
            if ids.is_empty() {
                return;
            }
            std::thread::sleep(pause);
            let mut out = Vec::new();
            ids.into_iter().for_each(|id| Reply::Put(Ok(PutOutcome::Inserted)).encode(id, &mut out));
            let _ = stream.write_all(&out);
        }
    };
    fake.during(serve, || {
        let options = patient().deadline(deadline).requests(RequestPath::Message);
        // A clone makes a connection for its change while the first handle has one.
        let mut first = fake.client(&options);
        let mut client = first.clone();
        let _ = first.put(b"k", b"v");
        is_slow.store(true, Ordering::SeqCst);
        let began = Instant::now();
        let answer = client.put(b"k", b"v");
        assert!(matches!(answer, Err(MutateError::Deadline { .. })), "{answer:?}");
        assert!(began.elapsed() >= deadline);
    });
}

/// A server answers a part of a batch and falls silent. The outcomes that there are, are given.
#[test]
fn outcomes_before_an_error_are_given() {
    const ANSWERED: usize = 512 + 100;
    let fake = Fake::new();
    let serve = |mut stream: UnixStream| {
        let Some(_raw) = fake.welcome(&mut stream) else { return };
        for answered in [512, 100] {
            let (ids, _) = requests_of(&mut stream, 512);
            let mut out = Vec::new();
            let ids = ids.into_iter().take(answered);
            ids.for_each(|id| Reply::Put(Ok(PutOutcome::Inserted)).encode(id, &mut out));
            let _ = stream.write_all(&out);
        }
        let _ = stream.read(&mut [0]);
    };
    fake.during(serve, || {
        let options = patient().deadline(Duration::from_secs(2)).requests(RequestPath::Message);
        let mut client = fake.client(&options);
        let pairs: Vec<_> = (0..2_000u32).map(|n| (n.to_le_bytes(), n.to_le_bytes())).collect();
        let mut done = Vec::new();
        let ended = client.put_many_with(oneread::PutMode::Upsert, &pairs, |nth, put| {
            assert_eq!(put, Ok(PutOutcome::Inserted));
            done.push(nth);
        });
        assert!(matches!(ended, Err(MutateError::Deadline { .. })), "{ended:?}");
        assert!(done.iter().copied().eq(0..ANSWERED), "{done:?}");
        assert_eq!(client.stats().changes.puts, ANSWERED as u64);
    });
}

/// Every request to a server that does not answer ends in the client's own deadline, with the
/// server's address. The connection is given up, so a late answer is not taken for another one.
#[test]
fn every_request_ends_at_its_deadline() {
    type Question = fn(&mut Client) -> Result<(), MutateError>;
    let asks: [Question; 8] = [
        |client| client.put(b"k", b"v").map(drop),
        |client| client.insert(b"k", b"v").map(drop),
        |client| client.update(b"k", b"v").map(drop),
        |client| client.remove(b"k").map(drop),
        |client| client.get_two_sided(b"k").map(drop),
        |client| client.server_stats().map(drop),
        |client| client.put_many(&[(b"k", b"v")]).map(drop),
        // A clone has the same limits as its original.
        |client| client.clone().put(b"k", b"v").map(drop),
    ];
    let fake = Fake::new();
    let deadline = Duration::from_millis(40);
    let connections = AtomicUsize::new(0);
    let serve = |mut stream: UnixStream| {
        connections.fetch_add(1, Ordering::SeqCst);
        let _raw = fake.welcome(&mut stream);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    fake.during(serve, || {
        for path in [RequestPath::Auto, RequestPath::Message] {
            let mut client = fake.client(&patient().deadline(deadline).requests(path));
            assert_eq!(client.address(), &fake.address);
            // The first request goes over the connection that is there, each further one over
            // another.
            let first = connections.load(Ordering::SeqCst);
            for (which, ask) in asks.iter().enumerate() {
                let began = Instant::now();
                match ask(&mut client) {
                    Err(MutateError::Deadline { address, deadline: bound }) => {
                        assert_eq!((address, bound), (fake.address.clone(), deadline), "{which}");
                    }
                    other => panic!("{which}: {other:?}"),
                }
                assert!(began.elapsed() >= deadline, "{which}: {:?}", began.elapsed());
                wait_for("a connection", || {
                    (connections.load(Ordering::SeqCst) >= first + which).then_some(())
                });
            }
            assert_eq!(client.stats().reattached, 0);
        }
    });
}

/// The server offers a wrong mailbox, or none, or no answer. The error names what is wrong. By
/// default, the client uses messages, unless the connection failed. If a server rings again and
/// again and answers nothing, the client waits until its deadline.
#[test]
fn wrong_mailboxes() {
    const MAILBOX: u32 = 4;
    type Is = fn(&ConnectError) -> bool;
    /// The case's name, the number and the reply, whether memory comes with it, and the kind of the
    /// error.
    type Case = (&'static str, Option<(u64, Reply)>, bool, Is);
    let answers: [Case; 10] = [
        ("it has none; give it more of", Some((0, Reply::Refused { version: 0 })), false, is_path),
        ("it has no room for another one", Some((0, Reply::Refused { version: MAILBOX })), false, is_path),
        (
            "version 7 of them, this program version 4",
            Some((0, Reply::Refused { version: 7 })),
            false,
            is_path,
        ),
        (
            "version 1 of them, this program version 4",
            Some((0, Reply::Mailbox { version: 1 })),
            true,
            is_path,
        ),
        ("unexpected reply", Some((0, Reply::Mailbox { version: MAILBOX })), false, is_unexpected),
        ("unexpected reply", Some((0, Reply::Value(None))), false, is_unexpected),
        ("unexpected reply", Some((1, Reply::Mailbox { version: MAILBOX })), true, is_unexpected),
        ("checking the mailbox", Some((0, Reply::Mailbox { version: MAILBOX })), true, |error| {
            matches!(error, ConnectError::Region(_))
        }),
        ("hung up", None, false, |error| {
            matches!(error, ConnectError::Link { source: LinkError::HungUp, .. })
        }),
        ("no answer within", None, true, |error| {
            matches!(error, ConnectError::Link { source: LinkError::Deadline(_), .. })
        }),
    ];
    fn is_unexpected(error: &ConnectError) -> bool {
        matches!(error, ConnectError::Link { source: LinkError::Unexpected, .. })
    }
    fn is_path(error: &ConnectError) -> bool {
        matches!(error, ConnectError::RequestPath { .. })
    }
    let fake = Fake::new();
    let nth = AtomicUsize::new(0);
    let serve = |mut stream: UnixStream| {
        let Some(mut raw) = fake.welcome(&mut stream) else { return };
        let (ids, _) = requests_of(&mut stream, 1);
        if ids.is_empty() {
            return;
        }
        match answers.get(nth.load(Ordering::SeqCst)) {
            Some((_, Some((id, reply)), has_memory, _)) => {
                let mut out = Vec::new();
                reply.encode(*id, &mut out);
                if *has_memory {
                    send_with(&stream, &out, &tempfile::tempfile().unwrap().into());
                } else {
                    stream.write_all(&out).unwrap();
                }
                let (ids, _) = requests_of(&mut stream, 1);
                let mut out = Vec::new();
                ids.into_iter().for_each(|id| Reply::Put(Ok(PutOutcome::Exists)).encode(id, &mut out));
                let _ = stream.write_all(&out);
                let _ = stream.read_to_end(&mut Vec::new());
            }
            Some((_, None, false, _)) => stream.shutdown(std::net::Shutdown::Both).unwrap(),
            Some((_, None, true, _)) => drop(stream.read_to_end(&mut Vec::new())),
            None => {
                // The true server polls a new mailbox for a moment. After that, the client would
                // have to ring.
                let rests = fake.server.mailbox_counts().rests;
                raw.send(&Request::Mailbox { version: MAILBOX });
                let (reply, memory) = receive(&raw.stream);
                let rested = || (fake.server.mailbox_counts().rests > rests).then_some(());
                wait_for("the true server to look no longer", rested);
                let mut out = Vec::new();
                reply.encode(0, &mut out);
                send_with(&stream, &out, &memory.unwrap());
                let mut ring = Vec::new();
                Reply::Wake.encode(0, &mut ring);
                while stream.write_all(&ring.repeat(10)).is_ok() {}
            }
        }
    };
    fake.during(serve, || {
        let options = patient().requests(RequestPath::Mailbox);
        for (number, (text, _, _, is)) in answers.iter().enumerate() {
            nth.store(number, Ordering::SeqCst);
            let deadline = if number + 1 == answers.len() { Duration::from_millis(100) } else { SOON };
            let by_default = options.clone().requests(RequestPath::Auto).deadline(deadline);
            let mut client = fake.client(&by_default);
            match client.put(b"k", b"v") {
                Ok(outcome) => {
                    assert_eq!((outcome, client.stats().requests.message), (PutOutcome::Exists, 1));
                }
                Err(MutateError::Deadline { .. }) => assert!(text.contains("no answer"), "{number}"),
                Err(MutateError::Connect(error)) => {
                    assert!(is(&error) && matches!(error, ConnectError::Link { .. }), "{number}: {error:?}");
                }
                Err(error) => panic!("{number}: {error:?}"),
            }
            let options = options.clone().deadline(deadline);
            let error = Client::connect_with(&fake.address, options).expect_err("no mailbox");
            assert!(is(&error) && with_causes(&error).contains(text), "{number}: {error:?}");
            if let ConnectError::RequestPath { address, .. } | ConnectError::Link { address, .. } = error {
                assert_eq!(address, fake.address);
            }
        }
        nth.store(answers.len(), Ordering::SeqCst);
        let deadline = Duration::from_millis(150);
        let mut client = fake.client(&options.deadline(deadline));
        for _ in 0..2 {
            let error = client.put(b"k", b"v").unwrap_err();
            assert!(
                matches!(error, MutateError::Deadline { deadline: bound, .. } if bound == deadline),
                "{error}"
            );
        }
    });
}

/// A client tries to reconnect at once, then after pauses that double from 1 ms to 100 ms. When the
/// server is lost again, the pauses start at 1 ms again. If the region it finds is the same, the
/// client keeps its mapping.
#[test]
fn attempts_to_reconnect() {
    let fake = Fake::new();
    let (address, options) = (fake.address.clone(), patient().lease(Duration::ZERO));
    let connecting = std::thread::spawn(move || Client::connect_with(&address, options).unwrap());
    let mut watch = fake.welcomed();
    let mut client = connecting.join().unwrap();
    for round in 0.. {
        assert_eq!(client.get(b"k").unwrap(), None);
        let began = Instant::now();
        drop(watch);
        for n in 0..if round == 0 { 17 } else { 7 } {
            drop(fake.accept());
            let pauses: u64 = (0..n).map(|n| (1 << n).min(100)).sum();
            let took = began.elapsed();
            assert!((Duration::from_millis(pauses)..SOON).contains(&took), "attempt {n} after {took:?}");
        }
        let took = began.elapsed();
        assert!(matches!(client.get(b"k"), Err(GetError::ServerGone { .. })));
        watch = fake.welcomed();
        wait_for("the client to know", || client.get(b"k").ok());
        // 63 ms; if it had gone on as it ended, 600. On a busy machine it may take some rounds to get
        // a quick one.
        if round > 0 && took < Duration::from_millis(600) {
            break;
        }
        assert!(round < 50, "it goes on as it ended: {took:?}");
    }
    assert_eq!(client.stats().reattached, 0);
}

/// A handle that makes a change while the watching thread waits for a silent server finds that server
/// first: the client is served again at once, no lease ends, and the thread watches the handle's connection.
#[test]
fn a_handle_finds_the_server_first() {
    let fake = Fake::new();
    let (is_silent, attempts) = (AtomicBool::new(false), AtomicUsize::new(0));
    let serve = |mut stream: UnixStream| {
        if is_silent.load(Ordering::SeqCst) {
            attempts.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read_to_end(&mut Vec::new());
            return;
        }
        let Some(_raw) = fake.welcome(&mut stream) else { return };
        while let Some(id) = requests_of(&mut stream, 1).0.first() {
            let mut out = Vec::new();
            Reply::Put(Ok(PutOutcome::Inserted)).encode(*id, &mut out);
            let _ = stream.write_all(&out);
        }
    };
    fake.during(serve, || {
        let options = patient().lease(Duration::ZERO).requests(RequestPath::Message);
        let mut client = fake.client(&options);
        let mut reader = client.clone();
        for round in 0..3 {
            is_silent.store(true, Ordering::SeqCst);
            let before = attempts.load(Ordering::SeqCst);
            fake.hang_up();
            // (One that it gave up before may be accepted only now.)
            wait_for("the client to know", || (!client.is_served()).then_some(()));
            wait_for("an attempt", || (attempts.load(Ordering::SeqCst) > before).then_some(()));
            assert!(!client.is_served() && reader.get(b"k").is_err(), "round {round}");
            is_silent.store(false, Ordering::SeqCst);
            assert_eq!(client.put(b"k", b"v").unwrap(), PutOutcome::Inserted);
            assert!(client.is_served() && reader.is_served(), "round {round}");
            assert_eq!(reader.get(b"k").unwrap(), None);
        }
        assert_eq!((client.stats().reattached, reader.stats().reattached), (0, 0), "it is the same region");
    });
}

/// A server has no room, for whatever reason that is a lack of room: the client closes a connection that it
/// has given up, and gets in. A server that turns it away for another reason leaves it its connection.
#[test]
fn room_is_made_at_a_full_server() {
    let fake = Fake::new();
    let (is_silent, open) = (AtomicBool::new(false), AtomicUsize::new(0));
    let refusal = Mutex::new(Refusal::Stopping);
    let serve = |mut stream: UnixStream| {
        if open.fetch_add(1, Ordering::SeqCst) > 0 {
            open.fetch_sub(1, Ordering::SeqCst);
            let mut out = Vec::new();
            Reply::TurnedAway(*refusal.lock().unwrap()).encode(0, &mut out);
            let _ = stream.write_all(&out);
            return;
        }
        if let Some(_raw) = fake.welcome(&mut stream) {
            while let Some(id) = requests_of(&mut stream, 1).0.first() {
                let mut out = Vec::new();
                Reply::Put(Ok(PutOutcome::Inserted)).encode(*id, &mut out);
                if !is_silent.load(Ordering::SeqCst) {
                    let _ = stream.write_all(&out);
                }
            }
        }
        open.fetch_sub(1, Ordering::SeqCst);
    };
    fake.during(serve, || {
        let options = patient().deadline(Duration::from_millis(100)).requests(RequestPath::Message);
        let mut client = fake.client(&options);
        for (why, is_full) in [
            (Refusal::Stopping, false),
            (Refusal::PeerFull { max: 1 }, true),
            (Refusal::User { uid: 7 }, false),
            (Refusal::Descriptors, true),
            (Refusal::ServerFull { max: 1 }, true),
        ] {
            wait_for("an answer", || client.put(b"k", b"v").ok());
            *refusal.lock().unwrap() = why;
            is_silent.store(true, Ordering::SeqCst);
            let late = client.put(b"k", b"v").unwrap_err();
            assert!(matches!(late, MutateError::Deadline { .. }), "{why}: {late}");
            is_silent.store(false, Ordering::SeqCst);
            if is_full {
                wait_for("room", || client.put(b"k", b"v").ok());
                continue;
            }
            for _ in 0..3 {
                // (On a busy machine, an answer may be too late.)
                let (source, open) = wait_for("a refusal", || match client.put(b"k", b"v") {
                    Err(MutateError::Connect(ConnectError::TurnedAway { source, .. })) => {
                        Some((source, open.load(Ordering::SeqCst)))
                    }
                    Err(MutateError::Deadline { .. }) => None,
                    other => panic!("{why}: {other:?}"),
                });
                assert_eq!((source, open), (why, 1));
            }
            assert!(client.is_served(), "{why}");
            *refusal.lock().unwrap() = Refusal::ServerFull { max: 1 };
        }
    });
}

/// An attempt to reconnect that nobody answers is given up for another one after the client's
/// deadline or after two seconds, whichever is longer.
#[test]
fn unanswered_attempts_are_given_up() {
    for (deadline, least) in [(Duration::from_millis(30), 30), (Duration::MAX, 2000)] {
        let fake = Fake::new();
        let answers = AtomicBool::new(true);
        let took = Mutex::new(Vec::new());
        let serve = |mut stream: UnixStream| {
            let began = Instant::now();
            if answers.load(Ordering::SeqCst) {
                let _raw = fake.welcome(&mut stream);
                let _ = stream.read_to_end(&mut Vec::new());
            } else {
                let _ = stream.read_to_end(&mut Vec::new());
                took.lock().unwrap().push(began.elapsed());
            }
        };
        fake.during(serve, || {
            let mut client = fake.client(&patient().deadline(deadline).lease(Duration::ZERO));
            answers.store(false, Ordering::SeqCst);
            let began = Instant::now();
            fake.hang_up();
            // For the first timed attempt, its duration. For a short one, a duration that shows
            // that it is short.
            wait_for("an attempt to be given up", || {
                let short = |took: &&Duration| least == 2000 || **took < Duration::from_secs(1);
                took.lock().unwrap().iter().find(short).copied()
            });
            assert!(began.elapsed() >= Duration::from_millis(least), "{:?}", began.elapsed());
            assert!(client.get(b"k").is_err());
            answers.store(true, Ordering::SeqCst);
            wait_for("the client to be back", || client.get(b"k").ok());
        });
    }
}

/// A server accepts nobody, and its backlog is full. A client waits for a place until its deadline.
#[test]
fn a_full_backlog() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let place = Place::new();
    let name = SocketAddrUnix::new(place.address.socket().unwrap()).unwrap();
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let listener = socket();
    rustix::net::bind(&listener, &name).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let stream = socket();
        match rustix::net::connect(&stream, &name) {
            Ok(()) => waiting.push(stream),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    let deadline = Duration::from_millis(50);
    let began = Instant::now();
    let error = Client::connect_with(&place.address, patient().deadline(deadline)).unwrap_err();
    assert!(began.elapsed() >= deadline);
    let is_late = |source: &LinkError| matches!(source, LinkError::Deadline(bound) if *bound == deadline);
    assert!(matches!(&error, ConnectError::Link { source, .. } if is_late(source)), "{error:?}");
    let address = place.address.clone();
    let connecting = std::thread::spawn(move || Client::connect_with(&address, patient()));
    std::thread::sleep(Duration::from_millis(10));
    assert!(!connecting.is_finished());
    // Now there is a place, but nobody accepts.
    (0..waiting.len()).for_each(|_| drop(rustix::net::accept(&listener).unwrap()));
    let mut there = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut there, None), Ok(1));
    drop(listener);
    let error = connecting.join().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::Link { source: LinkError::HungUp, .. }), "{error:?}");
}

/// Batches by messages of pairs far longer than a socket's buffer. Every value arrives whole, under
/// its key.
#[test]
fn batches_longer_than_a_socket() {
    let place = Place::new();
    let table = Config::new().size(TableSize::Keys(600)).key_max(255).value_max(3699);
    let _server = Server::start(ServerConfig::new(place.address.clone(), table)).unwrap();
    let mut client = place.client();
    let pairs: Vec<_> = (0..520).map(|n| (key(n, 255), value(n.into(), 3699 - n as usize))).collect();
    assert_eq!(client.put_many(&pairs).unwrap(), vec![Ok(PutOutcome::Inserted); 520]);
    for (key, value) in &pairs {
        assert_eq!(client.get_two_sided(key).unwrap().as_ref(), Some(value));
        assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
    }
}

/// A client is killed while it puts. The others go on, every slot of the table is sound, and all
/// their puts are there.
#[test]
fn a_client_killed_in_the_middle_of_a_put() {
    on_every_family(|preset| {
        let place = Place::new();
        let server = place.serve(preset);
        let mut good = place.client();
        for n in 0..6u32 {
            let child =
                Process::start("putting_child", &[("ONEREAD_TEST_ADDRESS", place.address.to_string())]);
            let before = server.stats();
            wait_for("the child to be putting", || {
                let now = server.stats();
                (now.inserts + now.updates > before.inserts + before.updates + 200).then_some(())
            });
            good.put(&key(n, 16), &n.to_le_bytes()).unwrap();
            child.kill();
            assert_eq!(good.get(&key(n, 16)).unwrap(), Some(n.to_le_bytes().to_vec()));
        }
        wait_for("the killed clients to be gone", || (server.stats().clients == 1).then_some(()));
        for n in 0..6u32 {
            assert_eq!(good.get(&key(n, 16)).unwrap(), Some(n.to_le_bytes().to_vec()));
        }
        let index = server.index();
        let inspector = oneread::inspect::Inspector::new(index.region(), index.geometry());
        let occupancy = inspector.occupancy(|_| {});
        assert_eq!(occupancy.torn, 0);
        assert_eq!(occupancy.live_main + occupancy.live_overflow, index.len());
        for n in 10_000..10_200 {
            if let Some(found) = good.get(&key(n, 16)).unwrap() {
                assert!([20, 30].contains(&found.len()), "{found:02x?}");
            }
        }
    });
}

// ---- servers that stop, are stopped, or die ---------------------------------------------------------

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
#[test]
fn killed_while_changing() {
    let rounds = if std::env::var_os("ONEREAD_LONG").is_some() { 100 } else { 2 };
    on_every_preset(|preset| {
        let place = Place::new();
        let mut sound = Vec::new();
        for round in 0..rounds {
            let server = place.serve_apart(preset, true);
            let mut client = place.client();
            if round == 0 {
                sound = (0..1500).map(|n| (key(n, 16), value(n.into(), 20))).collect();
                assert!(client.put_many(&sound).unwrap().iter().all(Result::is_ok));
            }
            let child =
                Process::start("putting_child", &[("ONEREAD_TEST_ADDRESS", place.address.to_string())]);
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
            let inspector = oneread::inspect::Inspector::new(index.region(), index.geometry());
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
    let server = Server::start(config).unwrap();
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
#[test]
fn stopped_and_started_again_on_the_same_file() {
    on_every_preset(|preset| {
        let place = Place::new();
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
            matches!(error, ConnectError::Region(RegionError::Place(PlaceError::Writable { .. }))),
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
        let server = Server::start(ServerConfig::new(place.address.clone(), table)).unwrap();
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
#[test]
fn a_client_has_a_table_shrink() {
    let place = Place::new();
    let server = place.serve(default_preset());
    for path in [RequestPath::Message, RequestPath::Mailbox] {
        let mut client = Client::connect_with(&place.address, patient().requests(path)).unwrap();
        client.put(b"key", b"value").unwrap();
        let none = oneread::GrowthCounts::default();
        assert_eq!((client.growth().unwrap(), client.shrink().unwrap(), server.growth()), (none, none, none));
        assert_eq!(client.heap().unwrap(), oneread::HeapCounts::default());
    }
    server.stop();
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
    let config = ServerConfig::new(place.address.clone(), table(default_preset()).size(size));
    let server = Server::start(config).unwrap();
    for path in [RequestPath::Message, RequestPath::Mailbox] {
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
