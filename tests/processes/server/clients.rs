//! What a client does, what it counts, and that no client disturbs another.

use super::fake::Fake;
use super::on_every_family;
use super::raw::Raw;
use crate::common::*;
use oneread::internals::wire::{Reply, Request};
use oneread::{Client, Evict, GetError, MutateError, PutOutcome, RequestPath, ServerConfig, error::PutError};
use rustix::process::Signal;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

over_shm_and_tcp! {
    a_client_is_a_map,
    get_many_answers_as_get,
    wrong_lengths_are_refused,
    bad_pairs_in_a_batch,
    batches_and_swaps_by_message,
    counters_are_read_by_other_threads,
    gets_of_all_clients_are_counted_by_the_server,
    clones_share_only_the_mapping,
    many_clients,
}

/// A client is a map: it answers the model's operations as the model does, on every preset.
fn a_client_is_a_map(over: Over) {
    on_every_preset(|preset| {
        let place = over.place();
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
        let inspector = oneread::internals::inspect::Inspector::new(server.index().region(), &geometry);
        let reads = |key: &[u8]| {
            let (windows, named) = inspector.windows(key);
            let holds = |w: &oneread::internals::layout::geometry::Window| {
                w.iter().any(|s| inspector.slot(s).key == key)
            };
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
fn get_many_answers_as_get(over: Over) {
    on_every_preset(|preset| {
        let place = over.place();
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
fn wrong_lengths_are_refused(over: Over) {
    let place = over.place();
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
fn bad_pairs_in_a_batch(over: Over) {
    let place = over.place();
    let _server = place.serve(default_preset());
    bad_pairs_in_batches(&mut place.client());
}

/// Batches have an outcome for each key, and may end early. A value is swapped if it is still the same.
fn batches_and_swaps_by_message(over: Over) {
    on_every_family(|preset| {
        let place = over.place();
        let _server = place.serve(preset);
        let options = patient().requests(RequestPath::Message);
        batches_and_swaps(&mut Client::connect_with(&place.address, options).unwrap());
    });
}

/// The server sums the GETs of all handles: those that go on, those that are gone, and those that it answers itself; whether or
/// not it has a map of reads, too.
fn gets_of_all_clients_are_counted_by_the_server(over: Over) {
    for evict in [None, Some(Evict::Sieve)] {
        let place = over.place();
        let table = config(default_preset(), 1_000, 8, 8, 1);
        let mut config = ServerConfig::new(place.address.clone(), table);
        config.evict = evict;
        let server = start(config);
        let mut client = place.client();
        client.put(b"a", b"1").unwrap();
        let counted = |gets, hits| {
            let counts = server.get_counts();
            assert_eq!((counts.gets, counts.hits, counts.misses()), (gets, hits, gets - hits), "{evict:?}");
        };
        counted(0, 0);
        for _ in 0..64 {
            assert!(client.get(b"a").unwrap().is_some());
        }
        counted(64, 64);
        // A batch, another handle on another thread, and one that goes before it has told.
        client.get_many(&[b"a", b"b", b"c"]).unwrap();
        counted(67, 65);
        let mut other = client.clone();
        std::thread::spawn(move || assert!(other.get(b"b").unwrap().is_none())).join().unwrap();
        counted(68, 65);
        assert!(client.get(b"a").unwrap().is_some() && client.get(b"z").unwrap().is_none());
        assert_eq!(client.get_counts().unwrap(), Some(server.get_counts()), "{evict:?}");
        counted(70, 66);
        assert_eq!(client.get_range(b"a", 0..1, &mut Vec::new()).unwrap(), Some(1));
        drop(client);
        counted(71, 67);
    }
}

/// Another thread reads what a handle has done, while the handle works and after it is gone.
fn counters_are_read_by_other_threads(over: Over) {
    let place = over.place();
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
    assert_eq!(client.clone().counters().stats(), oneread::stats::ClientStats::default());
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
    // Over TCP both would wait for the next one.
    let gone = if over == Over::Shm { 2 } else { 0 };
    if over == Over::Shm {
        server.stop();
        client.put(b"a", b"1").unwrap_err();
        client.get(b"a").unwrap_err();
    } else {
        client.server_stats().unwrap();
    }
    assert_eq!((read(), read().failures.gone), (client.stats(), gone));
    drop(client);
    assert_eq!(read().failures.gone, gone);
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
        start(ServerConfig::new(place.address.clone(), *table))
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
            Request::Put { options: oneread::PutMode::Upsert.into(), key: &long, value: b"" },
            PutError::KeyLength { given: 300, max: 16 },
        ),
        (
            Request::Put { options: oneread::PutMode::Insert.into(), key: b"", value: b"" },
            PutError::KeyLength { given: 0, max: 16 },
        ),
        (
            Request::Put { options: oneread::PutMode::Update.into(), key: b"k", value: &long },
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
fn clones_share_only_the_mapping(over: Over) {
    on_every_family(|preset| {
        let place = over.place();
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
        assert_eq!(
            client.stats(),
            oneread::internals::client::ClientStats::default(),
            "clones count for themselves"
        );
        assert_eq!(server.index().len(), 800);
    });
}

/// Many clients at once, more than the server has threads, each with its own keys.
fn many_clients(over: Over) {
    let place = over.place();
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
    Process::start("server::clients::crowded_child", &[("ONEREAD_TEST_ADDRESS", "none".into())]).finish();
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
