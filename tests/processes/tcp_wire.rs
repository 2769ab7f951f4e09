//! TCP over wires that are bad: bytes come in pieces and late, connections stall and are cut, packets are lost, doubled
//! and out of order. Every answer is right, and what is not known to be done is said to be in doubt.
//!
//! `ONEREAD_SEED` begins with another number.

use crate::common::{Numbers, SOON, key, patient, start, value};
use oneread::{
    Address, Client, ClientOptions, Config, ErrorKind, FeedError, FeedFrom, FeedItem, FeedOptions, Server,
    ServerConfig, TableSize, TcpAddress, Token,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TOKEN: &str = "a token for tests";

fn serve() -> Server {
    let size = TableSize::Growing { bytes_max: 256 << 20, segment_slots: None };
    let table = Config::new().size(size).key_max(16).value_max(1 << 20);
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", 0));
    start(ServerConfig::new(address, table).token(Token::new(TOKEN)).half_open(SOON))
}

fn seed() -> u64 {
    std::env::var("ONEREAD_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}

/// Does something when it is dropped, also when the test fails.
struct EndsWith<F: FnMut()>(F);

impl<F: FnMut()> Drop for EndsWith<F> {
    fn drop(&mut self) {
        self.0();
    }
}

// ---- a bad wire -------------------------------------------------------------------------------------

/// What a wire has done.
#[derive(Default, Debug)]
struct Done {
    stalls: AtomicU64,
    cuts: AtomicU64,
}

/// Passes bytes on in pieces of any size, some of them late. `quality` is how many are passed on between two faults.
fn pump(mut from: TcpStream, mut to: TcpStream, mut numbers: Numbers, quality: u64, done: &Done) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let most = [3, 100, 5_000, 1 << 16][numbers.below(4) as usize];
        let Ok(n @ 1..) = from.read(&mut bytes[..1 + numbers.below(most) as usize]) else { break };
        let mut rest = &bytes[..n];
        if numbers.below(quality) == 0 {
            if numbers.below(3) == 0 {
                // Some of it still gets through.
                let _ = to.write_all(&rest[..numbers.below(n as u64) as usize]);
                done.cuts.fetch_add(1, Relaxed);
                break;
            }
            done.stalls.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(numbers.below(300)));
        }
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(1 + numbers.below(rest.len() as u64) as usize);
            if to.write_all(piece).is_err() {
                break;
            }
            rest = later;
        }
    }
    // Both ends see it, at once or after what is under way.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Has `act` go on behind a wire to this port.
fn behind<R>(to: u16, quality: u64, done: &Done, act: impl FnOnce(&Address) -> R) -> R {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (listener, ends) = (&listener, &ends);
        scope.spawn(move || {
            for nth in 0.. {
                let (client, _) = listener.accept().unwrap();
                if ends.load(Relaxed) {
                    return;
                }
                let server = TcpStream::connect(("127.0.0.1", to)).unwrap();
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let ways = [(&client, &server), (&server, &client)];
                for (way, (from, to)) in ways.into_iter().enumerate() {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let numbers = Numbers(seed() << 32 | nth << 1 | way as u64);
                    scope.spawn(move || pump(from, to, numbers, quality, done));
                }
            }
        });
        let _end = EndsWith(|| {
            ends.store(true, Relaxed);
            let _ = TcpStream::connect(("127.0.0.1", port));
        });
        act(&Address::Tcp(TcpAddress::new("127.0.0.1", port)))
    })
}

// ---- who reads and writes over it -------------------------------------------------------------------

/// How far all clients are.
#[derive(Default)]
struct Progress {
    operations: AtomicU64,
    /// Changes of which nobody knows whether they are done.
    in_doubt: AtomicU64,
}

/// What a client has seen, and what may be in the table.
#[derive(Default)]
struct Seen {
    connections: u64,
    /// What is there for certain.
    certain: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Keys of which one change or more may not have been made, or will be, with all that they may have.
    in_doubt: BTreeMap<Vec<u8>, BTreeSet<Option<Vec<u8>>>>,
}

impl Seen {
    /// One operation after the other on the client's own keys, until somebody says so.
    fn work(
        address: &Address,
        options: &ClientOptions,
        thread: u32,
        progress: &Progress,
        ends: &AtomicBool,
    ) -> Seen {
        let begun = Instant::now();
        let mut client = loop {
            match Client::connect_with(address, options.clone()) {
                Ok(client) => break client,
                Err(error) => assert!(is_of_the_wire(error.kind()) && begun.elapsed() < SOON, "{error:?}"),
            }
        };
        let (mut numbers, mut seen) = (Numbers(seed() << 8 | u64::from(thread)), Seen::default());
        // A key in doubt is not used again: another one takes its place.
        let mut names: Vec<u32> = (0..200).collect();
        let mut next = 200;
        while !ends.load(Relaxed) {
            progress.operations.fetch_add(1, Relaxed);
            let place = numbers.below(names.len() as u64) as usize;
            let own = |n: u32| key(thread << 24 | n, 16);
            let name = own(names[place]);
            let is = |seen: &Seen, name: &Vec<u8>| seen.certain.get(name).cloned().flatten();
            let change = match numbers.below(20) {
                0..8 => {
                    // Now and then one that goes in pieces.
                    let most = if numbers.below(10) == 0 { 200_000 } else { 100 };
                    Some(value(numbers.next(), numbers.below(most) as usize))
                }
                8 | 9 => None,
                10..19 => {
                    if let Some(found) = answered(client.get(&name)) {
                        assert_eq!(found, is(&seen, &name), "thread {thread}, key {}", names[place]);
                    }
                    continue;
                }
                _ => {
                    let keys: Vec<_> = names.iter().map(|&n| own(n)).collect();
                    if let Some(found) = answered(client.get_many(&keys)) {
                        for (key, found) in keys.iter().zip(found) {
                            assert_eq!(found.unwrap(), is(&seen, key), "thread {thread}");
                        }
                    }
                    continue;
                }
            };
            let done = match &change {
                Some(value) => client.put(&name, value).map(drop),
                None => client.remove(&name).map(|was| assert_eq!(was, is(&seen, &name).is_some())),
            };
            match done {
                Ok(()) => drop(seen.certain.insert(name, change)),
                Err(error) => {
                    assert!(is_of_the_wire(error.kind()), "{error:?}");
                    let before = seen.certain.remove(&name).flatten();
                    progress.in_doubt.fetch_add(1, Relaxed);
                    seen.in_doubt.insert(name, BTreeSet::from([before, change]));
                    names[place] = next;
                    next += 1;
                }
            }
        }
        seen.connections = client.stats().reattached;
        seen
    }

    /// Looks at all its keys.
    fn check(&self, client: &mut Client) {
        for (key, is) in &self.certain {
            assert_eq!(client.get(key).unwrap(), *is);
        }
        for (key, may_be) in &self.in_doubt {
            let found = client.get(key).unwrap();
            assert!(may_be.contains(&found), "{key:?} has a value that nobody has put");
        }
    }
}

fn is_of_the_wire(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut | ErrorKind::Unreachable)
}

/// What a read says. `None` if the wire has kept it from an answer.
fn answered<T>(answer: Result<T, oneread::GetError>) -> Option<T> {
    answer.map_err(|error| assert!(is_of_the_wire(error.kind()), "{error:?}")).ok()
}

/// A copy of the table, by its changes, until somebody says so and it is what is there. A feed goes on after an error.
fn follow(address: &Address, options: &ClientOptions, ends: &AtomicBool, of: &mut Client) {
    let until = Instant::now() + 10 * SOON;
    let soon = || assert!(Instant::now() < until, "the copy is not what is there");
    let mut changes = loop {
        soon();
        let all = FeedOptions::new().from(FeedFrom::Keys).values(true);
        if let Ok(client) = Client::connect_with(address, options.clone())
            && let Ok(changes) = client.changes(all)
        {
            break changes;
        }
    };
    let mut copy = BTreeMap::new();
    let mut has_gap = false;
    loop {
        soon();
        if has_gap {
            copy.clear();
            has_gap = answered_feed(changes.resync()).is_none();
            continue;
        }
        match answered_feed(changes.next(Duration::from_millis(50))).flatten() {
            Some(FeedItem::Key { key, value, .. }) => drop(copy.insert(key, value)),
            Some(FeedItem::Came { key, value, .. } | FeedItem::Replaced { key, value, .. }) => {
                copy.insert(key, value);
            }
            Some(FeedItem::Left { key, .. }) => drop(copy.remove(&key)),
            Some(FeedItem::Gap { .. }) => has_gap = true,
            Some(_) => {}
            None if ends.load(Relaxed) => {
                let there = of.scan().values(true).map(Result::unwrap);
                if there.map(|found| (found.key, found.value)).collect::<BTreeMap<_, _>>() == copy {
                    return;
                }
            }
            None => {}
        }
    }
}

fn answered_feed<T>(answer: Result<T, FeedError>) -> Option<T> {
    answer.map_err(|error| assert!(is_of_the_wire(error.kind()), "{error:?}")).ok()
}

/// Three clients read and write, and one follows, until `is_enough` of all operations so far.
fn crowd(
    address: &Address,
    server: &Server,
    options: &ClientOptions,
    is_enough: impl Fn(Duration, &Progress) -> bool,
) -> (Progress, Vec<Seen>) {
    let (ends, progress) = (AtomicBool::new(false), Progress::default());
    let direct = || Client::connect_with(server.address(), patient().token(Token::new(TOKEN))).unwrap();
    let seen: Vec<_> = std::thread::scope(|scope| {
        let (ends, progress) = (&ends, &progress);
        let end = EndsWith(|| ends.store(true, Relaxed));
        let workers: Vec<_> = (0..3)
            .map(|thread| scope.spawn(move || Seen::work(address, options, thread, progress, ends)))
            .collect();
        let follower = scope.spawn(|| follow(address, options, ends, &mut direct()));
        let begun = Instant::now();
        while !is_enough(begun.elapsed(), progress) && !workers.iter().any(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(end);
        let seen = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        follower.join().unwrap();
        seen
    });
    let mut client = direct();
    seen.iter().for_each(|seen| seen.check(&mut client));
    (progress, seen)
}

/// Bytes come in pieces and late, and connections are cut in the middle of anything.
#[test]
fn connections_stall_and_are_cut() {
    let server = serve();
    let done = Done::default();
    let options = ClientOptions::new().token(Token::new(TOKEN)).deadline(Duration::from_millis(500));
    behind(server.tcp_address().unwrap().port(), 200, &done, |address| {
        let is_enough = |after, progress: &Progress| {
            let counts = [&done.cuts, &done.stalls, &progress.operations, &progress.in_doubt];
            let least = [50, 100, 2_000, 10];
            counts.iter().zip(least).all(|(count, least)| count.load(Relaxed) >= least) || after > 2 * SOON
        };
        let (Progress { operations, in_doubt }, seen) = crowd(address, &server, &options, is_enough);
        let connections: u64 = seen.iter().map(|seen| seen.connections).sum();
        eprintln!(
            "{operations:?} operations, {in_doubt:?} in doubt, {connections} connections more; {done:?}"
        );
        let [operations, in_doubt] = [operations, in_doubt].map(AtomicU64::into_inner);
        assert!(operations >= 2_000 && in_doubt >= 10 && connections > 10);
    });
}

const IN_A_NAMESPACE: &str = "ONEREAD_TEST_BAD_PACKETS";

/// Packets come late, twice, out of order or not at all, and for half a second none does. TCP mends that, so nothing is
/// in doubt, and no connection ends. In a network namespace of its own, whose kernel can spoil packets (`netem`); the
/// guest of tests/soft-roce-guest has one.
#[test]
fn packets_are_lost_doubled_and_out_of_order() {
    const NAME: &str = "tcp_wire::packets_are_lost_doubled_and_out_of_order";
    const SPOIL: &str =
        "tc qdisc add dev lo root netem delay 2ms 1ms loss 1% duplicate 1% reorder 25% 50% limit 100000";
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &format!("ip link set lo up && {SPOIL} && {script}")]);
        command.arg(std::env::current_exe().unwrap());
        command
    };
    if std::env::var_os(IN_A_NAMESPACE).is_some() {
        return spoiled_packets();
    }
    let can = unshared("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network namespace with netem here (tests/soft-roce-guest has one)");
        assert!(std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none(), "one was required");
        return;
    }
    let script = format!("exec \"$0\" --exact {NAME} --nocapture --test-threads 1");
    assert!(unshared(&script).env(IN_A_NAMESPACE, "1").status().unwrap().success());
}

fn spoiled_packets() {
    let server = serve();
    let options = patient().token(Token::new(TOKEN));
    let tc = |how: &str| {
        let words = format!("qdisc change dev lo root netem {how}");
        assert!(Command::new("tc").args(words.split(' ')).status().unwrap().success());
    };
    let cut = AtomicBool::new(false);
    let (progress, seen) = crowd(server.address(), &server, &options, |after, _| {
        if after > Duration::from_secs(3) && !cut.swap(true, Relaxed) {
            tc("loss 100%");
            std::thread::sleep(Duration::from_millis(500));
            tc("delay 2ms 1ms loss 1% duplicate 1% reorder 25% 50% limit 100000");
        }
        after > Duration::from_secs(8)
    });
    let told = Command::new("tc").args(["-s", "qdisc", "show", "dev", "lo"]).output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let dropped = told.split("dropped ").nth(1).and_then(|rest| rest.split([',', ' ']).next()?.parse().ok());
    let [operations, in_doubt] = [progress.operations, progress.in_doubt].map(AtomicU64::into_inner);
    eprintln!("{operations} operations; {told}");
    assert!(dropped.is_some_and(|dropped: u64| dropped > 10), "no packet was lost: {told}");
    assert!(operations > 200, "{operations}");
    assert!(in_doubt == 0 && seen.iter().all(|seen| seen.connections == 0));
}
