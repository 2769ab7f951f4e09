//! Requests through mailboxes in shared memory: all of them (`RequestPath::Mailbox`), or those for
//! which it is faster and for which the server has room (`RequestPath::Auto`, the default). The
//! answers are the same as over the socket. Clients and servers may stop, die, or write garbage into
//! the cells.

use crate::common::*;
use memmap2::{MmapOptions, MmapRaw};
use oneread::internals::client::LinkError;
use oneread::internals::placement::Preset;
use oneread::internals::region::Backing;
use oneread::internals::wire::{PROTOCOL_VERSION, Reply, Request};
use oneread::{
    Address, Client, ClientOptions, Config, ConnectError, MutateError, PutOutcome, RequestPath, Server,
    ServerConfig, StartMode, TableSize, error::PutError,
};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WINDOW: u32 = 64;
/// Most requests of a batch that go through a mailbox by default.
const MAILBOX_BATCH: u64 = 32;
/// Version of the mailbox.
const VERSION: u32 = 4;

/// A place whose clients ask through mailboxes.
struct Place(crate::common::Place);

impl Deref for Place {
    type Target = crate::common::Place;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Place {
    fn new() -> Place {
        Place(crate::common::Place::new())
    }

    fn config(&self, preset: &Preset) -> ServerConfig {
        let table = config(preset, 2048, 16, 32, 11);
        ServerConfig::new(self.address.clone(), table)
    }

    fn serve(&self) -> Server {
        start(self.config(default_preset()))
    }

    /// Starts a server in a process of its own, with its table in a file.
    fn serve_apart(&self) -> Process {
        let file = self.dir.path().join("region").display().to_string();
        let process = Process::start(
            "mailbox::serving_child",
            &[("ONEREAD_TEST_ADDRESS", self.address.to_string()), ("ONEREAD_TEST_FILE", file)],
        );
        wait_for("the server to come up", || UnixStream::connect(self.address.socket().unwrap()).ok());
        process
    }

    fn client(&self) -> Client {
        self.client_within(SOON)
    }

    fn client_within(&self, deadline: Duration) -> Client {
        self.client_by(RequestPath::Mailbox, deadline)
    }

    fn client_by(&self, path: RequestPath, deadline: Duration) -> Client {
        Client::connect_with(&self.address, patient().requests(path).deadline(deadline)).unwrap()
    }
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn serving_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let table = config(default_preset(), 2048, 16, 32, 11);
    let config = ServerConfig::new(address.parse().unwrap(), table)
        .backing(Backing::File(told("ONEREAD_TEST_FILE").unwrap().into()))
        .start(StartMode::OpenOrCreate);
    serve_until_told(config);
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn putting_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let options = patient().requests(RequestPath::Mailbox);
    let mut client = Client::connect_with(&address.parse().unwrap(), options).unwrap();
    put_for_ever(&mut client, |_, _| {});
}

// ---- answers ----------------------------------------------------------------------------------------

/// A client is a map, on every preset: the model's operations give the same answers, looked up by
/// the server. By default, batches of all lengths in between go by message or through the mailbox.
#[test]
fn a_client_is_a_map() {
    on_every_preset(|preset| {
        let place = Place::new();
        let server = start(place.config(preset));
        for path in [RequestPath::Mailbox, RequestPath::Auto] {
            let mut client = place.client_by(path, SOON);
            let mut model = Model::default();
            let mut numbers = Numbers(3);
            for round in 0..1000 {
                let n = numbers.below(600) as u32;
                let op = some_op(&mut numbers, n, 10);
                assert_eq!(model.apply(&mut client, &op), None, "{op:?}");
                if round % 10 == 0 {
                    // They overwrite each other and what came before. What comes later overwrites
                    // them.
                    let puts: Vec<_> = (0..numbers.below(2 * MAILBOX_BATCH))
                        .map(|_| (key(numbers.below(40) as u32, 16), numbers.next().to_le_bytes()))
                        .filter(|(key, _)| model.keys.contains_key(key))
                        .collect();
                    assert!(client.put_many(&puts).unwrap().iter().all(Result::is_ok));
                    puts.into_iter().for_each(|(key, value)| drop(model.keys.insert(key, value.into())));
                }
                assert_eq!(client.get_two_sided(&key(n, 16)).unwrap().as_ref(), model.keys.get(&key(n, 16)));
            }
            assert_eq!(client.server_stats().unwrap().keys, model.keys.len() as u64);
            let (counts, asked) = (server.mailbox_counts(), client.stats().requests);
            assert!(asked.mailbox >= 1800 && counts.requests >= 1800, "{asked:?}, {counts:?}");
            assert_eq!(asked.message > 0, path == RequestPath::Auto, "{asked:?}");
            for key in model.keys.keys() {
                assert!(client.remove(key).unwrap());
            }
        }
    });
}

/// By default, a client asks for a mailbox at its first request that is to go through it. Short
/// batches go through the mailbox too, long ones by message. The client counts what went which way.
#[test]
fn requests_go_the_faster_way() {
    let place = Place::new();
    let server = place.serve();
    let mut client = Client::connect_with(&place.address, patient()).unwrap();
    let went = |client: &Client| (client.stats().requests.message, client.stats().requests.mailbox);
    let pairs: Vec<_> = (0..600u32).map(|n| (n.to_le_bytes(), b"value")).collect();
    let long = MAILBOX_BATCH as usize + 1;
    client.put_many(&pairs[..long]).unwrap();
    assert_eq!((went(&client), server.mailbox_counts().bytes), ((33, 0), 0));
    client.put_many(&pairs[..long - 1]).unwrap();
    assert_eq!(went(&client), (33, 32));
    assert!(server.mailbox_counts().bytes > 0);
    client.put_many(&pairs).unwrap();
    assert_eq!(went(&client), (633, 32));
    client.put(b"key", b"value").unwrap();
    client.put(&[1; 17], b"").expect_err("its key is too long");
    assert_eq!(went(&client), (633, 34), "it was not sent, but the server asked whether it is there");
    for (path, expected) in [(RequestPath::Message, (601, 0)), (RequestPath::Mailbox, (0, 601))] {
        let mut client = place.client_by(path, SOON);
        client.put_many(&pairs).unwrap();
        client.get_two_sided(b"key").unwrap();
        assert_eq!(went(&client), expected);
        assert_eq!(went(&client.clone()), (0, 0));
    }
    drop(client);
    wait_for("the memory to be given back", || (server.mailbox_counts().bytes == 0).then_some(()));
}

/// The mailboxes of all clients together take no more memory than allowed. A client that gets none
/// uses messages, or says how to mend it if it was told to use a mailbox. When there is room, it
/// gets one after all.
#[test]
fn mailboxes_take_limited_memory() {
    let place = Place::new();
    let server = place.serve();
    let first = place.client();
    let bytes = server.mailbox_counts().bytes;
    drop((first, server));
    let config = place.config(default_preset()).mailbox_bytes_max(3 * bytes - 1);
    let server = start(config);
    let connect = || Client::connect_with(&place.address, patient()).unwrap();
    let mut clients: Vec<_> = (0..5).map(|_| connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        for _ in 0..10 {
            client.put(b"key", b"value").unwrap();
        }
        let went = (client.stats().requests.message, client.stats().requests.mailbox);
        assert_eq!(went, if n < 2 { (0, 10) } else { (10, 0) });
    }
    let counts = server.mailbox_counts();
    assert_eq!(counts.bytes, 2 * bytes);
    assert!(counts.refused >= 3, "{counts:?}");
    let options = patient().requests(RequestPath::Mailbox);
    let error = Client::connect_with(&place.address, options.clone()).unwrap_err();
    assert!(matches!(error, ConnectError::RequestPath { .. }), "{error:?}");
    assert!(error.to_string().contains("no room for another one"), "{error}");
    drop(clients.remove(0));
    let late = clients.last_mut().unwrap();
    wait_for("a mailbox", || {
        late.put(b"key", b"value").unwrap();
        (late.stats().requests.mailbox > 0).then_some(())
    });
    assert_eq!(server.mailbox_counts().bytes, 2 * bytes);
}

/// Batches of every length around the number of cells. Answers come in the order of the pairs; of
/// several puts of one key the last one stays. Keys that do not fit are refused, and the rest of
/// the batch is executed.
#[test]
fn batches() {
    let place = Place::new();
    let _server = place.serve();
    let mut client = place.client();
    for length in [0, 1, 2, WINDOW / 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 1200] {
        let pairs: Vec<_> =
            (0..length).map(|n| ([n / 3, length].map(u32::to_le_bytes).concat(), n)).collect();
        let pairs: Vec<_> = pairs.into_iter().map(|(key, n)| (key, n.to_le_bytes())).collect();
        let answers = client.put_many(&pairs).unwrap();
        assert_eq!(answers.len(), pairs.len());
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap(), if n % 3 == 0 { PutOutcome::Inserted } else { PutOutcome::Updated });
        }
        for (n, (key, _)) in pairs.iter().enumerate() {
            let last = (n as u32 / 3 * 3 + 2).min(length - 1).to_le_bytes();
            assert_eq!(client.get(key).unwrap().unwrap(), last, "{n} of {length}");
        }
        for (n, (key, _)) in pairs.iter().enumerate() {
            assert_eq!(client.remove(key).unwrap(), n % 3 == 0);
        }
    }
    for given in [0, 17, 255, 100_000] {
        let wrong = PutError::KeyLength { given, max: 16 };
        let error = client.put(&vec![1; given], b"").unwrap_err();
        assert_eq!(error.rejection().as_ref(), Some(&wrong), "{error}");
        let pairs = [(b"good".to_vec(), vec![1]), (vec![1; given], vec![]), (b"fine".to_vec(), vec![0; 33])];
        let answers = client.put_many(&pairs).unwrap();
        assert!(answers[0].is_ok());
        assert_eq!(answers[1..], [Err(wrong), Err(PutError::ValueLength { given: 33, max: 32 })]);
    }
}

/// Batches and swaps through a mailbox have the answers that they have by message.
#[test]
fn batches_and_swaps_through_mailboxes() {
    let place = Place::new();
    let _server = place.serve();
    for path in [RequestPath::Mailbox, RequestPath::Auto] {
        batches_and_swaps(&mut place.client_by(path, SOON));
    }
}

/// Some pairs of a batch are wrong. Each answer belongs to its own pair.
#[test]
fn bad_pairs_in_a_batch() {
    let place = Place::new();
    let _server = place.serve();
    for path in [RequestPath::Mailbox, RequestPath::Auto] {
        bad_pairs_in_batches(&mut place.client_by(path, SOON));
    }
}

/// A client applies the limits of the present server, not those of the one before, in both
/// directions.
#[test]
fn limits_are_those_of_the_present_server() {
    let place = Place::new();
    // (Over messages: `tests/processes/server/`. That client uses both by default.)
    let options = patient().requests(RequestPath::Mailbox);
    lengths_of_the_next_server(&options, |_, table| start(ServerConfig::new(place.address.clone(), *table)));
}

/// Cells are large enough for the table's longest pair: the longest possible key and value, and
/// empty values.
#[test]
fn longest_and_empty_values() {
    let place = Place::new();
    let table = Config::new().size(TableSize::Keys(200)).key_max(255).key_inline(255).value_max(3699);
    let config = ServerConfig::new(place.address.clone(), table);
    let _server = start(config);
    let mut client = place.client();
    let pairs: Vec<_> =
        (0..100).map(|n| (vec![n + 1; 255], vec![n; if n % 2 == 0 { 3699 } else { 0 }])).collect();
    client
        .put_many(&pairs)
        .unwrap()
        .into_iter()
        .for_each(|answer| assert_eq!(answer, Ok(PutOutcome::Inserted)));
    for (key, value) in &pairs {
        assert_eq!(client.get_two_sided(key).unwrap().as_ref(), Some(value));
    }
}

/// More clients than the server has threads, each on a thread, singly and in batches. A third of
/// them use messages, a third mailboxes, a third both.
#[test]
fn many_clients() {
    let place = Place::new();
    let server = place.serve();
    let first = place.client();
    let others = [RequestPath::Message, RequestPath::Auto].map(|path| place.client_by(path, SOON));
    std::thread::scope(|scope| {
        for lane in 0..12u32 {
            let mut client = [&first, &others[0], &others[1]][lane as usize % 3].clone();
            scope.spawn(move || {
                for round in 0..20u32 {
                    let pairs: Vec<_> =
                        (0..40).map(|n| (key(lane * 40 + n, 16), round.to_le_bytes())).collect();
                    assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
                    for (key, value) in &pairs {
                        assert_eq!(client.get_two_sided(key).unwrap().unwrap(), value);
                        assert_eq!(client.get(key).unwrap().unwrap(), value);
                    }
                }
            });
        }
    });
    assert_eq!(server.index().len(), 12 * 40);
    drop(others);
    wait_for("the clients to be gone", || (server.stats().clients == 1).then_some(()));
}

/// A server without mailboxes says so at once, and says how to mend it. By default, requests then go
/// by message. One client too many is refused.
#[test]
fn refused_mailboxes() {
    let place = Place::new();
    let server = start(place.config(default_preset()).mailbox_bytes_max(0));
    let options = patient().requests(RequestPath::Mailbox);
    let error = Client::connect_with(&place.address, options.clone()).unwrap_err();
    assert!(
        matches!(error, ConnectError::RequestPath { .. })
            && error.to_string().contains("ServerConfig::mailbox"),
        "{error}"
    );
    let mut by_default = Client::connect_with(&place.address, patient()).unwrap();
    for _ in 0..3 {
        by_default.put(b"key", b"value").unwrap();
    }
    assert_eq!((by_default.stats().requests.message, by_default.stats().requests.mailbox), (3, 0));
    drop(by_default);
    wait_for("the clients to be gone", || (server.stats().clients == 0).then_some(()));
    drop(server);
    let server = start(place.config(default_preset()).clients_max(2));
    let mut client = Client::connect_with(&place.address, options).unwrap();
    client.put(b"key", b"value").unwrap();
    let mut second = client.clone();
    second.put(b"key", b"value").unwrap();
    let error = client.clone().put(b"key", b"value").unwrap_err();
    assert!(matches!(error, MutateError::Connect(ConnectError::TurnedAway { .. })), "{error}");
    drop(second);
    wait_for("room", || (server.stats().clients == 1).then_some(()));
    client.clone().put(b"key", b"value").unwrap();
}

// ---- sleeping and waking ----------------------------------------------------------------------------

/// No ring is lost: requests come after pauses of every length around the time after which either
/// side sleeps. After a lost ring, the request would end in the deadline.
#[test]
fn no_ring_is_lost() {
    let place = Place::new();
    let server = place.serve();
    let is_enough = |asked| asked >= 10_000 && server.mailbox_counts().rests > 500;
    let begun = Instant::now();
    let requests = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for lane in 0..3u32 {
            let (place, is_enough, requests) = (&place, &is_enough, &requests);
            scope.spawn(move || {
                let mut client = place.client();
                let mut numbers = Numbers(lane.into());
                // Up to 100,000 requests. A busy machine makes fewer, or takes longer.
                let goes_on = |asked| {
                    let within = |time| begun.elapsed() < time;
                    asked < 100_000 && (within(Duration::from_secs(6)) || !is_enough(asked) && within(SOON))
                };
                while goes_on(requests.fetch_add(1, Ordering::Relaxed)) {
                    let n = numbers.next();
                    let key = [lane, n as u32 % 64].map(u32::to_le_bytes).concat();
                    client.put(&key, &n.to_le_bytes()).unwrap();
                    match n >> 60 {
                        0 => std::thread::sleep(Duration::from_micros(n >> 8 & 63)),
                        1..12 => (0..n >> 8 & 0xfff).for_each(|_| std::hint::spin_loop()),
                        _ => {}
                    }
                    if n.is_multiple_of(16) {
                        assert_eq!(client.get_two_sided(&key).unwrap().unwrap(), n.to_le_bytes());
                    }
                }
            });
        }
    });
    let counts = server.mailbox_counts();
    println!("{} requests, {counts:?}, {:?}", requests.load(Ordering::Relaxed), begun.elapsed());
    assert!(is_enough(requests.into_inner()), "{counts:?}");
}

/// An idle client costs nothing: the server stops polling its cells, and does not start again.
#[test]
fn idle_workers_sleep() {
    let place = Place::new();
    let server = place.serve();
    let mut clients: Vec<_> = (0..4).map(|_| place.client()).collect();
    for client in &mut clients {
        client.put(b"key", b"value").unwrap();
    }
    // (A worker that still looks may lose its CPU for a while.)
    let quiet = wait_for("the workers to sleep", || {
        let before = server.mailbox_counts();
        std::thread::sleep(Duration::from_millis(300));
        (server.mailbox_counts() == before).then_some(before)
    });
    assert!(quiet.rests >= 4, "{quiet:?}");
    for client in &mut clients {
        assert_eq!(client.get_two_sided(b"key").unwrap().unwrap(), b"value");
    }
    assert!(server.mailbox_counts().sweeps > quiet.sweeps);
}

// ---- servers that stop and die ----------------------------------------------------------------------

/// Stopped: requests end in the deadline. Resumed: the same client goes on. Killed: a typed error,
/// long before the deadline. Restarted: the same client goes on, and idle clients do not notice.
#[test]
fn server_stopped_killed_and_back() {
    [RequestPath::Mailbox, RequestPath::Auto].into_iter().for_each(stopped_killed_and_back);
}

fn stopped_killed_and_back(path: RequestPath) {
    let place = Place::new();
    let server = place.serve_apart();
    let deadline = Duration::from_millis(500);
    let options = patient().requests(path).deadline(deadline);
    let mut client = wait_for("a connection", || Client::connect_with(&place.address, options.clone()).ok());
    let mut idle = place.client_by(path, SOON);
    wait_for("an answer", || client.put(b"key", b"1").ok());
    idle.put(b"idle", b"1").unwrap();
    server.stop();
    let begun = Instant::now();
    // (It may still happen, also after a later change. So no other change is of its key.)
    let error = client.put(b"late", b"2").expect_err("nobody answers");
    assert!(matches!(error, MutateError::Deadline { .. }), "{error}");
    assert!((deadline..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(client.get(b"idle").unwrap().unwrap(), b"1", "GETs go on");
    server.signal(Signal::CONT);
    wait_for("the server to go on", || client.put(b"key", b"3").ok());
    let found = wait_for("an answer", || client.get_two_sided(b"key").ok());
    assert_eq!(found.unwrap(), b"3");

    // The server is killed while it is asked. Every thread's client gets a typed error.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..3u32 {
            let (mut client, stop) = (idle.clone(), &stop);
            scope.spawn(move || {
                let begun = Instant::now();
                let error = loop {
                    assert!(begun.elapsed() < SOON, "nobody said that it is gone");
                    if let Err(error) = client.put(&lane.to_le_bytes(), b"value") {
                        break error;
                    }
                };
                assert!(stop.load(Ordering::Relaxed), "before it was killed: {error}");
                let is_typed = matches!(
                    error,
                    MutateError::ServerGone { .. }
                        | MutateError::Connect(
                            ConnectError::NotThere { .. }
                                | ConnectError::Link { source: LinkError::HungUp, .. }
                        )
                );
                assert!(is_typed, "{error:?}");
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        server.kill();
    });
    let begun = Instant::now();
    let error = idle.put(b"idle", b"2").unwrap_err();
    assert!(matches!(error, MutateError::Connect(ConnectError::NotThere { .. })), "{error:?}");
    assert!(begun.elapsed() < SOON);

    let server = place.serve_apart();
    assert_eq!(idle.get_two_sided(b"idle").unwrap().unwrap(), b"1", "it took the table over");
    idle.put(b"idle", b"3").unwrap();
    server.kill();
    let server = place.serve_apart();
    // This client asked nothing in the meantime. As over the socket, it finds the new server
    // without an error, although the last one was killed while it still polled the cells.
    idle.put(b"idle", b"4").unwrap();
    assert_eq!(idle.get(b"idle").unwrap().unwrap(), b"4");
    drop(server);
}

// ---- clients that die and scribble ------------------------------------------------------------------

/// The number of shared mappings in this process, and the number of its descriptors.
fn mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (maps.lines().filter(|line| line.contains("memfd:oneread")).count(), fds)
}

/// Serves in a process that does nothing else, and counts its mappings. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn counting_child() {
    if told("ONEREAD_TEST_FILE").is_none() {
        return;
    }
    let place = Place::new();
    let server = place.serve();
    let before = mappings();
    for round in 0..4 {
        let children: Vec<_> = (0..2)
            .map(|_| {
                Process::start(
                    "mailbox::putting_child",
                    &[("ONEREAD_TEST_ADDRESS", place.address.to_string())],
                )
            })
            .collect();
        let asked = server.mailbox_counts().requests;
        wait_for("the children to be putting", || {
            (server.mailbox_counts().requests > asked + 500).then_some(())
        });
        assert!(mappings() > before, "{round}");
        children.into_iter().for_each(Process::kill);
        wait_for("the killed clients to be gone", || (server.stats().clients == 0).then_some(()));
        wait_for("their cells to be gone", || (mappings() == before).then_some(()));
    }
}

/// A killed client's resources are freed: mappings and descriptors are as before.
#[test]
fn killed_clients_leave_nothing() {
    let child = Process::start("mailbox::counting_child", &[("ONEREAD_TEST_FILE", "none".into())]);
    child.finish();
}

/// A connection with cells, but without a client. It writes whatever the test wants into them.
struct Raw {
    stream: UnixStream,
    map: MmapRaw,
}

impl Raw {
    fn connect(address: &Address) -> Raw {
        let mut stream = UnixStream::connect(address.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        for (request, expected) in [
            (Request::Hello { version: PROTOCOL_VERSION }, Reply::WELCOME),
            (Request::Mailbox { version: VERSION }, Reply::Mailbox { version: VERSION }),
        ] {
            let mut bytes = Vec::new();
            request.encode(1, &mut bytes);
            stream.write_all(&bytes).unwrap();
            let (reply, fd) = receive(&stream);
            assert_eq!(reply, expected);
            if request != (Request::Mailbox { version: VERSION }) {
                continue;
            }
            let file = std::fs::File::from(fd.expect("the cells' memory"));
            assert!(file.set_len(0).is_err(), "it is sealed");
            let length = file.metadata().unwrap().len() as usize;
            return Raw { stream, map: MmapOptions::new().len(length).map_raw(&file).unwrap() };
        }
        unreachable!("the second request is the last")
    }

    #[allow(unsafe_code)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: inside the mapping, which lives as long as `self`; aligned; accessed only as
        // atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast(), self.map.len() / 8) }
    }

    /// Waits until the server closes the connection.
    fn ends(mut self) {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the server does not hang up: {error}"),
        }
    }

    fn ring(&mut self) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        Request::Wake.encode(1, &mut bytes);
        self.stream.write_all(&bytes)
    }
}

/// A client that is gone but keeps its mapping does not keep the server's memory: the mapping reads
/// as zero.
#[test]
fn a_kept_mapping_keeps_no_memory() {
    let place = Place::new();
    let server = place.serve();
    let raw = Raw::connect(&place.address);
    raw.words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    raw.stream.shutdown(std::net::Shutdown::Both).unwrap();
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let is_gone = || raw.words().iter().all(|word| word.load(Ordering::Relaxed) == 0);
    wait_for("the memory to go", || is_gone().then_some(()));
}

/// A client that wants a mailbox of another version, or from a server that offers none, gets an
/// error that says so. It may go on by messages.
#[test]
fn mailboxes_of_another_version() {
    let place = Place::new();
    for ours in [VERSION, 0] {
        let bytes_max = if ours == 0 { 0 } else { 1 << 20 };
        let _server = start(place.config(default_preset()).mailbox_bytes_max(bytes_max));
        let mut stream = UnixStream::connect(place.address.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut ask = |request: &Request<'_>| {
            let mut bytes = Vec::new();
            request.encode(1, &mut bytes);
            stream.write_all(&bytes).unwrap();
            receive(&stream)
        };
        let (welcome, _) = ask(&Request::Hello { version: PROTOCOL_VERSION });
        assert_eq!(welcome, Reply::WELCOME);
        for version in [0, 1, VERSION + 1, u32::MAX] {
            let (reply, memory) = ask(&Request::Mailbox { version });
            assert_eq!(reply, Reply::Refused { version: ours });
            assert!(memory.is_none());
            assert_eq!(ask(&Request::Remove { key: b"k" }).0, Reply::Removed(Ok(false)));
        }
    }
}

/// A client writes garbage over its whole mailbox, all the time: random words, and words that look
/// like cells. Nobody else notices. (The server closes the connection when it finds nonsense in a
/// cell. Then the next such client comes.)
#[test]
fn a_client_that_writes_garbage() {
    let place = Place::new();
    let server = place.serve();
    let (stop, connections) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let scribbler = scope.spawn(|| {
            let mut numbers = Numbers(7);
            while !stop.load(Ordering::Relaxed) {
                connections.fetch_add(1, Ordering::Relaxed);
                let mut raw = Raw::connect(&place.address);
                for round in 0..50 {
                    for word in raw.words() {
                        let n = numbers.next();
                        let word_of_a_cell = match n >> 61 {
                            0 => n & 0x3f,
                            1 => (n & 0x7f) << 32,
                            2 => u64::MAX,
                            3 => 0,
                            _ => n,
                        };
                        word.store(word_of_a_cell, Ordering::Relaxed);
                    }
                    if round % 4 == 0 && raw.ring().is_err() {
                        break;
                    }
                }
            }
        });
        let mut clients: Vec<_> = (0..3).map(|_| place.client()).collect();
        let begun = Instant::now();
        let mut rounds = 0u32;
        // A busy machine takes longer.
        let is_enough = |rounds| rounds > 5 && connections.load(Ordering::Relaxed) > 5;
        let within = |time| begun.elapsed() < time;
        while within(Duration::from_secs(2)) || !is_enough(rounds) && within(SOON) {
            for (n, client) in clients.iter_mut().enumerate() {
                let pairs: Vec<_> = (0..100u32)
                    .map(|m| ([n as u32, m].map(u32::to_le_bytes).concat(), rounds.to_le_bytes()))
                    .collect();
                assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
                for (key, value) in pairs.iter().step_by(10) {
                    assert_eq!(client.get_two_sided(key).unwrap().unwrap(), value);
                }
            }
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
        println!("{rounds} rounds, {connections:?} scribblers");
        assert!(is_enough(rounds));
        assert!(clients.iter().all(|client| client.stats().reattached == 0));
    });
    // The three clients have one watch each.
    wait_for("the scribblers to be gone", || (server.stats().clients == 0).then_some(()));
}

/// Nonsense in the next cell ends that conversation: a length that is too long, no request, a
/// hello, another request's number.
#[test]
fn nonsense_in_a_cell_ends_the_conversation() {
    let place = Place::new();
    let _server = place.serve();
    let mut good = place.client();
    let frame = |request: &Request<'_>, id| {
        let mut bytes = Vec::new();
        request.encode(id, &mut bytes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    let hello = frame(&Request::Hello { version: PROTOCOL_VERSION }, 1);
    let wake = frame(&Request::Wake, 1);
    let other = frame(&Request::Stat, 2);
    for (length, body) in [
        (u32::MAX, &other),
        (1000, &other),
        (0, &other),
        (7, &other),
        (16, &other),
        (16, &wake),
        (32, &hello),
        (40, &vec![u64::MAX; 5]),
    ] {
        let mut raw = Raw::connect(&place.address);
        // Request 1 is in cell 1. A cell of this table has 24 + 16 + 2 + 16 + 32 bytes, rounded up
        // to whole lines.
        let cell = &raw.words()[16 + 16..];
        cell[1].store(u64::from(length) << 32, Ordering::Relaxed);
        cell[2].store(0, Ordering::Relaxed);
        cell[3..].iter().zip(body).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        cell[0].store(1, Ordering::Release);
        let _ = raw.ring();
        raw.ends();
        good.put(b"key", &length.to_le_bytes()).unwrap();
        assert_eq!(good.get_two_sided(b"key").unwrap().unwrap(), length.to_le_bytes());
    }
    // Cells are given once, and not in the middle of a conversation.
    let mut raw = Raw::connect(&place.address);
    let mut bytes = Vec::new();
    Request::Mailbox { version: VERSION }.encode(1, &mut bytes);
    raw.stream.write_all(&bytes).unwrap();
    raw.ends();
}

/// A server writes garbage. The client gets typed errors, and no later than shortly after the
/// deadline. (The server is a thread of this test that says hello and hands over cells as a server
/// does.)
#[test]
fn a_server_that_writes_garbage() {
    let place = Place::new();
    let server = place.serve();
    let path = place.dir.path().join("proxy");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let stop = AtomicBool::new(false);
    let relay = |stream: UnixStream| {
        // The real server's welcome and memory, and then garbage.
        let mut stream = stream;
        let mut raw = UnixStream::connect(place.address.socket().unwrap()).unwrap();
        let mut memory = None;
        let mut numbers = Numbers(9);
        for _ in 0..2 {
            let mut bytes = vec![0; 64];
            let Ok(n @ 1..) = stream.read(&mut bytes) else { return };
            raw.write_all(&bytes[..n]).unwrap();
            let (reply, fd) = receive(&raw);
            let fd = fd.expect("memory");
            let mut out = Vec::new();
            reply.encode(0, &mut out);
            send_with(&stream, &out, &fd);
            memory = Some(std::fs::File::from(fd));
        }
        let file = memory.unwrap();
        let length = file.metadata().unwrap().len() as usize;
        let map = MmapOptions::new().len(length).map_raw(&file).unwrap();
        let garbage = Raw { stream: raw, map };
        let (mut n, mut ring) = (0u64, Vec::new());
        Reply::Wake.encode(0, &mut ring);
        while !stop.load(Ordering::Relaxed) {
            for word in garbage.words() {
                let random = numbers.next();
                word.store(if random >> 63 == 0 { random & 0x3f } else { random }, Ordering::Relaxed);
            }
            n += 1;
            if n.is_multiple_of(8) && stream.write_all(&ring).is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let listener = &listener;
        let (stop, relay) = (&stop, &relay);
        scope.spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                scope.spawn(move || relay(stream.unwrap()));
            }
        });
        let address = Address::Shm(path.clone());
        let deadline = Duration::from_millis(200);
        let options = ClientOptions::new().requests(RequestPath::Mailbox).deadline(deadline);
        let mut client = wait_for("a connection", || Client::connect_with(&address, options.clone()).ok());
        let begun = Instant::now();
        for n in 0..10u32 {
            let pairs: Vec<_> = (0..100u32).map(|m| (m.to_le_bytes(), n.to_le_bytes())).collect();
            let tried = Instant::now();
            // The result does not matter: a random reply that makes sense cannot be told from a
            // true one.
            let _ = client.put_many(&pairs);
            let _ = client.get_two_sided(b"key");
            assert!(tried.elapsed() < SOON, "{:?}", tried.elapsed());
        }
        println!("{:?}", begun.elapsed());
        stop.store(true, Ordering::Relaxed);
        drop(client);
        let _ = UnixStream::connect(&path);
    });
    drop(server);
}
