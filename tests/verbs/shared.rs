//! Many threads share a few queue pairs, on any RDMA device: Soft-RoCE in `tests/soft-roce-guest`,
//! or `tests/fake_ibverbs.c`. Without a device these tests pass without testing anything, and say
//! so, unless ONEREAD_REQUIRE_VERBS is set.

use oneread::internals::region::Backing;
use oneread::internals::server::{ServerConfig, StartMode};
use oneread::internals::verbs::{DeviceChoice, QueueCounts, VerbsOptions, Wait};
use oneread::{Address, Client, ClientOptions, Config, Server, TableSize, VerbsAddress};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{patient, wait_for};

const THREADS: usize = 8;
const KEYS: u64 = 1000;

fn serve() -> Option<Server> {
    serve_at(0, Backing::Anonymous)
}

fn serve_at(port: u16, backing: Backing) -> Option<Server> {
    let config = Config::new().size(TableSize::Keys(2 * KEYS)).key_max(8).value_max(32);
    let config = ServerConfig::new(at(port), config).backing(backing).start(StartMode::OpenOrCreate);
    crate::started(config)
}

fn port(address: &Address) -> u16 {
    let Address::Verbs(address) = address else { unreachable!("served over verbs") };
    address.port()
}

fn at(port: u16) -> Address {
    Address::Verbs(VerbsAddress::new("127.0.0.1", port, DeviceChoice::default()))
}

fn options(pairs: Option<usize>, credits: usize, wait: Wait) -> ClientOptions {
    let verbs = VerbsOptions::new().pairs(pairs).credits(credits).wait(wait);
    patient().verbs(verbs)
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// A value names its key and its version.
fn value(number: u64, version: u64) -> [u8; 32] {
    let mut value = [0; 32];
    for (i, word) in value.chunks_mut(8).enumerate() {
        word.copy_from_slice(
            &(number.wrapping_mul(0x9e37_79b9) ^ (version << 32) ^ (i as u64 * version)).to_le_bytes(),
        );
    }
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value
}

/// The version in a value; fails if the value is not one of this key's.
fn version(number: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    assert_eq!(bytes, value(number, version), "key {number}: no value that it ever had");
    version
}

fn fill(client: &mut Client) {
    let pairs: Vec<_> = (0..KEYS).map(|number| (key(number), value(number, 0))).collect();
    for answer in client.put_many(&pairs).expect("the server is there") {
        answer.expect("there is room");
    }
}

fn sum(counts: impl IntoIterator<Item = QueueCounts>) -> QueueCounts {
    counts.into_iter().fold(QueueCounts::default(), |mut all, counts| {
        all += counts;
        all
    })
}

/// What one of several threads did.
struct Done {
    gets: u64,
    reattached: u64,
    counts: QueueCounts,
}

/// Stops the readers, also when the code beside them panicked, because the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// THREADS threads GET for a while, one of them in batches. `meanwhile` runs beside them. Its
/// argument waits until each thread has begun a GET after the call and got its answer.
fn readers(client: &Client, meanwhile: impl FnOnce(&dyn Fn())) -> Vec<Done> {
    let stop = AtomicBool::new(false);
    let answered = [const { AtomicU64::new(0) }; THREADS];
    let all_go_on = || {
        let before = answered.each_ref().map(|answered| answered.load(Ordering::Relaxed));
        wait_for("a GET by each thread", || {
            let mut both = before.iter().zip(&answered);
            // The first answer may belong to a GET that began before.
            both.all(|(before, now)| now.load(Ordering::Relaxed) >= before + 2).then_some(())
        });
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (mut client, stop, answered) = (client.clone(), &stop, &answered[thread]);
                scope.spawn(move || {
                    let mut newest = vec![0; KEYS as usize];
                    let (mut next, mut gets) = (thread as u64, 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        let batch = if thread == 0 { 32 } else { 1 };
                        let numbers: Vec<u64> = (0..batch).map(|i| (next + i * 7) % KEYS).collect();
                        next = next.wrapping_mul(25_214_903_917).wrapping_add(11) >> 3;
                        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
                        let values = match batch {
                            1 => vec![client.get(&keys[0]).expect("an answer")],
                            _ => client
                                .get_many(&keys)
                                .expect("answers")
                                .into_iter()
                                .map(Result::unwrap)
                                .collect(),
                        };
                        for (number, value) in numbers.into_iter().zip(values) {
                            let version = version(number, &value.expect("it is never removed"));
                            let newest = &mut newest[number as usize];
                            assert!(version >= *newest, "key {number} went back to version {version}");
                            *newest = version;
                        }
                        gets += batch;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    let counts = client.queue_counts().expect("verbs");
                    Done { gets, reattached: client.stats().reattached, counts }
                })
            })
            .collect();
        let stopping = Stop(&stop);
        meanwhile(&all_go_on);
        drop(stopping);
        threads.into_iter().map(|thread| thread.join().expect("a reader's assertions hold")).collect()
    })
}

/// The server changes keys all the time. Readers see only values that were there, in order.
fn churn(pairs: usize, credits: usize, wait: Wait) {
    let Some(server) = serve() else { return };
    let mut client =
        Client::connect_with(server.address(), options(Some(pairs), credits, wait)).expect("connects");
    fill(&mut client);
    let mut writer = client.clone();
    let mut changes = 0;
    let done = readers(&client, |all_go_on| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            changes += 1;
            let number = changes * 31 % KEYS;
            writer.put(&key(number), &value(number, changes)).expect("the server is there");
        }
        all_go_on();
        // All READs go over `pairs` queue pairs, and all changes over one more.
        let clients = writer.server_stats().expect("the server is there").clients;
        assert_eq!(clients, pairs as u64 + 1, "queue pairs");
    });
    let gets: Vec<u64> = done.iter().map(|done| done.gets).collect();
    let counts = sum(done.iter().map(|done| done.counts));
    println!(
        "{pairs} pairs, {credits} credits, {wait:?}: {changes} changes, GETs {gets:?}, {:.2} READs a doorbell",
        counts.reads as f64 / counts.doorbells as f64
    );
    assert!(changes > 0);
    assert!(done.iter().all(|done| done.reattached == 0), "a queue pair failed");
    // Thread 0 asks for 32 keys at a time. It may get more than the others, but must not starve
    // them.
    let (least, most) = (*gets[1..].iter().min().expect("7"), *gets[1..].iter().max().expect("7"));
    // (On a busy machine, the scheduler decides which threads run. Unit tests check that the queue
    // pair gives each an equal share.)
    assert!(least > 0 && most <= 10 * least, "unfair: {gets:?}");
}

#[test]
fn one_pair() {
    churn(1, 64, Wait::Poll);
}

#[test]
fn two_pairs() {
    churn(2, 64, Wait::Poll);
}

#[test]
fn two_pairs_asleep() {
    churn(2, 64, Wait::Block);
}

/// Eight threads have two READs in flight together. The others wait for their turn.
#[test]
fn tiny_credits() {
    churn(1, 2, Wait::Poll);
}

#[test]
fn one_credit_asleep() {
    churn(1, 1, Wait::Block);
}

/// A TCP relay in front of a server. It counts connections, and can close all of them.
struct Relay {
    port: u16,
    accepted: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(to: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let relay = Relay { port, accepted: accepted.clone(), open: open.clone() };
        // (Ends with the test's process.)
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, Ok(server)) = (client.expect("a client"), TcpStream::connect(("127.0.0.1", to)))
                else {
                    continue;
                };
                accepted.fetch_add(1, Ordering::SeqCst);
                for (from, into) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut into) = (from.try_clone().expect("fd"), into.try_clone().expect("fd"));
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(n @ 1..) = from.read(&mut bytes) {
                            let _ = into.write_all(&bytes[..n]);
                        }
                        let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
                    });
                }
                open.lock().expect("no panics").push(server);
            }
        });
        relay
    }

    fn hang_up(&self) {
        for stream in self.open.lock().expect("no panics").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// The server drops a queue pair while eight threads use it. Each GET is still answered, over one
/// new queue pair for all threads.
fn killed(pairs: usize, wait: Wait) {
    let Some(server) = serve() else { return };
    let mut filler = Client::connect_with(server.address(), patient()).expect("connects");
    fill(&mut filler);
    drop(filler);
    let relay = Relay::start(port(server.address()));
    let client = Client::connect_with(&at(relay.port), options(Some(pairs), 64, wait)).expect("connects");
    let mut before = 0;
    let done = readers(&client, |all_go_on| {
        all_go_on();
        before = relay.accepted();
        for times in 1..=2 {
            relay.hang_up();
            wait_for("new queue pairs", || (relay.accepted() >= before + times * pairs).then_some(()));
            all_go_on();
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(relay.accepted(), before + times * pairs, "each queue pair is made again once");
        }
    });
    assert_eq!(before, pairs);
    let reattached: Vec<u64> = done.iter().map(|done| done.reattached).collect();
    assert_eq!(reattached, vec![2; THREADS], "every handle went over to the new ones");
}

#[test]
fn killed_pair() {
    killed(1, Wait::Poll);
}

#[test]
fn killed_pairs_asleep() {
    killed(2, Wait::Block);
}

/// The server ends, and another one starts at the same place. GETs that are under way wait for it.
#[test]
fn restarted_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let backing = Backing::File(folder.path().join("table"));
    let Some(server) = serve_at(0, backing.clone()) else { return };
    let port = port(server.address());
    let mut client =
        Client::connect_with(server.address(), options(Some(1), 16, Wait::Poll)).expect("connects");
    fill(&mut client);
    let mut server = Some(server);
    let done = readers(&client, |all_go_on| {
        all_go_on();
        drop(server.take());
        server = serve_at(port, backing);
        all_go_on();
        client.clone().put(&key(1), &value(1, 1)).expect("the new server is there");
    });
    for (thread, done) in done.iter().enumerate() {
        assert!(done.gets > 0 && done.reattached >= 1, "thread {thread}");
    }
    assert!(server.is_some());
}

/// Dropped handles leave nothing behind: their places on queue pairs, and their memory, are used
/// again.
#[test]
fn handles_come_and_go() {
    let Some(server) = serve() else { return };
    let mut client =
        Client::connect_with(server.address(), options(Some(2), 16, Wait::Poll)).expect("connects");
    fill(&mut client);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for number in 0..25 {
                    let (mut handle, number) = (client.clone(), thread * 100 + number);
                    let bytes = handle.get(&key(number)).expect("an answer").expect("it is there");
                    assert_eq!(bytes, value(number, 0));
                    assert_eq!(handle.stats().reattached, 0);
                }
            });
        }
    });
    assert_eq!(client.server_stats().expect("the server is there").clients, 3);
}
