//! Over TCP a client does what it does elsewhere, and each GET is a request. Strangers get nothing, and disturb
//! nobody.

use crate::common::*;
use crate::relay::*;
use oneread::internals::region::Backing;
use oneread::internals::wire::{self, KeysWriter, PROTOCOL_VERSION, Reply, Request, Wants};
use oneread::{
    Address, Client, Config, ConnectError, ErrorKind, GetError, MutateError, OwnerOptions, PutMode,
    PutOutcome, ServeError, Server, ServerConfig, StartMode, SwapOutcome, TableSize, TcpAddress, Token,
    error::{PutError, Refusal},
    sink::{SliceOutcome, SliceSink},
};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PIECE: usize = 60 << 10;

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(0, &mut bytes);
    bytes
}

const HELLO: Request<'_> = Request::Hello { version: PROTOCOL_VERSION };

/// The next reply. `None` if the server hangs up instead.
fn reply(stream: &mut TcpStream) -> Option<Reply> {
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes).ok()?;
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes.resize(16 + len, 0);
    stream.read_exact(&mut bytes[16..]).ok()?;
    let frame = wire::decode(&bytes).unwrap().unwrap();
    Some(Reply::decode(&frame).unwrap())
}

/// A stream to the server, of somebody who has proven to know the token.
fn joined(server: &Server) -> TcpStream {
    let has_joined = |number| if number < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    relayed(server, has_joined, drop).1
}

/// A request for the whole values of these keys.
fn gets(keys: &[&[u8]]) -> Vec<u8> {
    let mut writer = KeysWriter::default();
    assert!(keys.iter().all(|key| writer.push(key)), "a frame has room");
    frame(&Request::Gets(writer.request(Wants { lives: false, bits: false, from: 0, most: u32::MAX })))
}

/// Whether the server hangs up, whatever it says before.
fn hangs_up(stream: &mut TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

fn pair(n: u32) -> (Vec<u8>, Vec<u8>) {
    (key(n, 16), value(u64::from(n), n as usize % 101))
}

fn fill(client: &mut Client, n: u32) {
    let pairs: Vec<_> = (0..n).map(pair).collect();
    client.put_many(&pairs).unwrap().into_iter().for_each(|answer| assert!(answer.is_ok(), "{answer:?}"));
}

fn check_all(client: &mut Client, n: u32) {
    let keys: Vec<_> = (0..n + 10).map(|n| pair(n).0).collect();
    for (n, found) in (0..).zip(client.get_many(&keys).unwrap()) {
        assert_eq!(found, Ok((n < keys.len() as u32 - 10).then(|| pair(n).1)), "key {n} in a batch");
    }
    for n in (0..n).step_by(97) {
        assert_eq!(client.get(&keys[n as usize]).unwrap(), Some(pair(n).1), "key {n}");
    }
}

// ---- what it does -----------------------------------------------------------------------------------

/// The model suite: on every preset, a served table answers as a map does.
#[test]
fn every_preset_is_a_map() {
    on_every_preset(|preset| {
        let server = serve(config(preset, 64, 16, 46, 7));
        is_a_map(&mut connect(&server));
    });
}

/// What other fabrics' clients are tested with.
#[test]
fn batches_and_swaps_are_as_elsewhere() {
    let table = config(default_preset(), 4096, 16, 46, 7);
    batches_and_swaps(&mut connect(&serve(table)));
    bad_pairs_in_batches(&mut connect(&serve(table)));
    lengths_of_the_next_server(&with_token(TOKEN), |address, table| {
        start(served(address.unwrap_or(&here()), *table))
    });
}

/// A GET is a request: the client READs nothing, and says how many keys the server has looked up.
#[test]
fn gets_are_requests() {
    let server = serve(small());
    let mut client = connect(&server);
    fill(&mut client, 3_000);
    let changes = client.stats().requests.message;
    check_all(&mut client, 3_000);
    let stats = client.stats();
    let gets = 3_010 + 3_000_u64.div_ceil(97);
    assert_eq!((stats.requests.gets, stats.get.gets, stats.get.hits), (gets, gets, gets - 10));
    assert_eq!((stats.read.reads, stats.requests.message), (0, changes));
    assert!(client.region().is_none() && client.is_served() && client.hint_bytes() == 0);
}

/// Presence is told as bits, for more keys than a request has, in any place.
#[test]
fn presence_of_many_keys() {
    let server = serve(small());
    let mut client = connect(&server);
    fill(&mut client, 700);
    let is_there = |n: u32| n % 3 != 1 && n < 700;
    let gone: Vec<_> = (0..700).filter(|&n| !is_there(n)).map(|n| pair(n).0).collect();
    client.remove_many(&gone).unwrap();
    let mut present = vec![7; 3];
    for count in [0, 1, 63, 64, 65, 255, 256, 257, 800] {
        let mut keys: Vec<_> = (0..count).map(|n| pair(n).0).collect();
        // Keys that the table cannot hold are not there.
        keys.extend([vec![], vec![1; 17]]);
        client.contains_many(&keys, &mut present).unwrap();
        for (n, _) in keys.iter().enumerate() {
            let told = present[n / 64] >> (n % 64) & 1 == 1;
            assert_eq!(told, n < count as usize && is_there(n as u32), "key {n} of {count}");
        }
        assert_eq!(present.len(), keys.len().div_ceil(64));
    }
}

/// A batch that is broken off ends there, and the connection goes on with the next call.
#[test]
fn batches_end_early() {
    let server = serve(small());
    let mut client = connect(&server);
    fill(&mut client, 5_000);
    let keys: Vec<_> = (0..5_000).map(|n| pair(n).0).collect();
    for at in [0, 1, 127, 128, 300, 4_000] {
        let mut seen = 0;
        let flow = client.get_many_in_order(&keys, |n, value| {
            assert_eq!((n, value), (seen, Ok(Some(&pair(n as u32).1[..]))));
            seen += 1;
            if n == at { ControlFlow::Break(n) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((flow.unwrap(), seen), (ControlFlow::Break(at), at + 1));
        let any = client.get_many_with(&keys, |n, _| ControlFlow::Break(n)).unwrap();
        assert!(any.is_break());
        assert_eq!(client.get(&keys[at]).unwrap(), Some(pair(at as u32).1), "nothing is left of the batch");
    }
    assert_eq!(client.stats().reattached, 0, "it is the same connection");
}

/// What breaks a callback off by a panic leaves replies on their way. They are not taken for those of the
/// next call.
#[test]
fn a_callback_that_panics_spoils_nothing() {
    let server = serve(small());
    let mut client = connect(&server);
    fill(&mut client, 3_000);
    let keys: Vec<_> = (0..3_000).map(|n| pair(n).0).collect();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = client.get_many_with::<_, ()>(&keys, |_, _| panic!("a callback's own"));
    }));
    assert!(panicked.is_err());
    check_all(&mut client, 3_000);
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Values of each length about where slots, frames and pieces end come back whole, in part, by length, and in
/// batches.
#[test]
fn values_of_any_length() {
    let table = Config::new().size(TableSize::Slots(256)).key_max(16).value_max(4 << 20).inline_max(40);
    let server = serve(table.heap_bytes(64 << 20));
    let mut client = connect(&server);
    let lengths = [0, 1, 40, 41, 4_080, 4_081, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 1 << 20, 4 << 20];
    for (n, len) in (0..).zip(lengths) {
        let (key, value) = (key(n, 16), value(n.into(), len));
        assert_eq!(client.put(&key, &value).unwrap(), PutOutcome::Inserted);
        assert!(client.get(&key).unwrap().as_ref() == Some(&value), "{len}");
        assert_eq!(client.value_len(&key).unwrap(), Some(len));
        let mut part = vec![1; 3];
        for range in [0..0, 0..1, 5..len / 2, len / 3..len, len.saturating_sub(1)..len + 9, len + 1..len + 2]
        {
            let range = range.start.min(range.end)..range.end;
            let told = client.get_range(&key, range.clone(), &mut part).unwrap();
            let expected = &value[range.start.min(len)..range.end.min(len)];
            assert!(told == Some(len) && part == expected, "{range:?} of {len}");
        }
        let mut memory = vec![0; 1_000];
        let outcome = client.get_into(&key, &mut SliceSink::new(&mut memory)).unwrap();
        match len <= 1_000 {
            true => assert!(outcome == SliceOutcome::Value(len) && memory[..len] == value),
            false => assert_eq!(outcome, SliceOutcome::TooLong(len)),
        }
        let (next, other) = (self::value(99, len), self::value(98, len));
        let swapped = client.compare_and_swap(&key, &other, &next).unwrap();
        assert_eq!(swapped == SwapOutcome::Swapped, value == other, "{len}");
        assert_eq!(client.compare_and_swap(&key, &value, &next).unwrap(), SwapOutcome::Swapped, "{len}");
        assert!(client.get(&key).unwrap() == Some(next), "{len}");
    }
    let keys: Vec<_> = (0..lengths.len() as u32 + 1).map(|n| key(n, 16)).collect();
    let found = client.get_many(&keys).unwrap();
    for (n, found) in found.into_iter().enumerate() {
        let expected = lengths.get(n).map(|&len| value(99, len));
        assert!(found == Ok(expected), "key {n} of a batch");
    }
}

/// After a long value, one as long is asked for whole in one round trip, and what is shorter, or not there, is found
/// as before.
#[test]
fn as_much_is_asked_for_as_the_last_value_had() {
    const LONG: usize = 1 << 20;
    let size = TableSize::Growing { bytes_max: 256 << 20, segment_slots: None };
    let server = serve(Config::new().size(size).key_max(16).value_max(LONG));
    let lengths = [0, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 20 * PIECE / 3, LONG - 1, LONG];
    let mut client = connect(&server);
    for len in lengths {
        client.put(&len.to_le_bytes(), &value(len as u64, len)).unwrap();
    }
    for last in lengths {
        for len in lengths {
            let whole = value(len as u64, len);
            let mut get = |len: usize| client.get(&len.to_le_bytes()).unwrap();
            assert_eq!(get(last).map(|value| value.len()), Some(last));
            assert_eq!(get(LONG + 1), None);
            assert_eq!(get(last).map(|value| value.len()), Some(last));
            assert_eq!(get(len).as_ref(), Some(&whole), "{len} after {last}");
            let mut part = Vec::new();
            for range in [0..last, len / 2..len / 2 + last, last..usize::MAX, 0..1 << 40] {
                let found = client.get_range(&len.to_le_bytes(), range.clone(), &mut part).unwrap();
                let there = range.start.min(len)..range.end.min(len);
                assert!(found == Some(len) && part == whole[there], "{range:?} of {len} after {last}");
            }
        }
    }
    assert_eq!(client.stats().reattached, 0);

    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
    let mut theirs = dial(&server);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut client, _) = relay.accept().unwrap();
            client.set_read_timeout(Some(SOON)).unwrap();
            // It joins, and gets the first value.
            for _ in 0..2 + LONG.div_ceil(PIECE) {
                assert!(pass(&mut client, &mut theirs) && pass(&mut theirs, &mut client));
            }
            // No reply of the second comes before eight more pieces are asked for.
            for nth in 0..9 {
                assert!(pass(&mut client, &mut theirs), "{nth} requests before the first reply");
            }
            let (mut from, mut to) = (theirs.try_clone().unwrap(), client.try_clone().unwrap());
            let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            while pass(&mut client, &mut theirs) {}
            let _ = theirs.shutdown(Shutdown::Both);
            let _ = back.join();
        });
        let mut client = Client::connect_with(&address, with_token(TOKEN)).unwrap();
        for _ in 0..2 {
            assert_eq!(client.get(&LONG.to_le_bytes()).unwrap(), Some(value(LONG as u64, LONG)));
        }
    });
}

/// Whether it is about a value that is put faster than it is read.
fn is_replaced(error: &GetError) -> bool {
    matches!(error, GetError::Replaced { .. } | GetError::Inconclusive { .. })
}

/// A long value is replaced all the time while others read it in pieces. Each GET returns one of them whole. Whether one is
/// replaced between two pieces is chance here; `found_while_it_is_replaced` sees to it.
#[test]
fn pieces_are_of_one_value() {
    let table = Config::new().size(TableSize::Slots(256)).key_max(16).value_max(1 << 20).inline_max(40);
    let server = serve(table.heap_bytes(32 << 20).grace(Duration::from_micros(100)));
    let mut writer = connect(&server);
    let len = 5 * PIECE + 17;
    let whole = |number: u64| -> Vec<u8> { number.to_le_bytes().repeat(len / 8 + 1)[..len].to_vec() };
    writer.put(b"key", &whole(0)).unwrap();
    // How many were got, so that the writer lets some through. At the end, however it comes, it is told to stop.
    let (got, begun) = (AtomicU64::new(0), Instant::now());
    struct Over<'g>(&'g AtomicU64);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(u64::MAX, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let got = &got;
        scope.spawn(move || {
            for number in 1.. {
                writer.put(b"key", &whole(number)).unwrap();
                let before = got.load(Ordering::Relaxed);
                while number % 20 == 0 && got.load(Ordering::Relaxed) == before && before != u64::MAX {
                    std::thread::yield_now();
                }
                if before == u64::MAX {
                    return;
                }
            }
        });
        let _over = Over(got);
        let mut client = connect(&server);
        let mut seen = HashSet::new();
        while seen.len() < 1_000 {
            assert!(begun.elapsed() < SOON, "{} values", seen.len());
            match client.get(b"key") {
                Ok(found) => {
                    let found = found.expect("the key is always there");
                    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert!(found == whole(number), "a value is not whole");
                    seen.insert(number);
                    got.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(is_replaced(&error), "{error}"),
            }
        }
    });
}

/// Lives, parts and scans work as they do elsewhere. (Owners, the feed, puts in two steps and encryption over
/// TCP are in the tests of these.)
#[test]
fn lives_parts_and_scans() {
    let server = serve(small().life(true).owners(true));
    let mut client = connect(&server);
    client.put(b"a", b"1").unwrap();
    let first = client.life(b"a").unwrap().expect("entries have lives");
    client.put(b"a", b"2").unwrap();
    let second = client.life(b"a").unwrap().expect("entries have lives");
    assert_ne!(first.number, second.number);
    assert_eq!(
        client.revalidate(&[b"a", b"a", b"b"], &[first.number, second.number, 0]).unwrap(),
        [false, true, false]
    );
    let mut lived = Vec::new();
    client
        .get_many_with_life(&[b"a", b"b"], |n, answer| {
            lived.push((n, answer.unwrap().map(|(value, life)| (value.to_vec(), life.unwrap().number))));
            ControlFlow::Continue(())
        })
        .unwrap();
    lived.sort();
    assert_eq!(lived, [(0, Some((b"2".to_vec(), second.number))), (1, None)]);
    client.append(b"a", b"3", 10).unwrap();
    assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"23"[..]));
    fill(&mut client, 500);
    let mut scanned: Vec<_> = client.scan().map(|entry| entry.unwrap().key).collect();
    scanned.sort();
    let mut expected: Vec<_> = (0..500).map(|n| pair(n).0).chain([b"a".to_vec()]).collect();
    expected.sort();
    expected.dedup();
    assert_eq!(scanned, expected);
}

// ---- servers that go and come -----------------------------------------------------------------------

/// A server is replaced by another one in the middle of a batch. That one answers the rest, and no key is
/// answered twice.
#[test]
fn a_batch_survives_its_server() {
    let mut server = Some(serve(small()));
    let address = server.as_ref().unwrap().address().clone();
    let mut client = connect(server.as_ref().unwrap());
    fill(&mut client, 6_000);
    let keys: Vec<_> = (0..6_000).map(|n| pair(n).0).collect();
    let (mut answered, mut absent) = (vec![0; keys.len()], 0);
    let flow = client.get_many_with(&keys, |n, found| {
        answered[n] += 1;
        match found.unwrap() {
            Some(found) => assert_eq!(found, pair(n as u32).1),
            None => absent += 1,
        }
        if answered.iter().sum::<i32>() == 500
            && let Some(old) = server.take()
        {
            old.stop();
            server = Some(start(served(&address, small())));
        }
        ControlFlow::<()>::Continue(())
    });
    assert!(flow.unwrap().is_continue());
    assert!(answered.iter().all(|&times| times == 1), "each key once");
    assert!((1..=5_500).contains(&absent), "{absent} keys were asked of the new, empty table");
    assert!(client.stats().reattached >= 1);
}

/// Without a server, calls end in an error that says so. With the next one, the same handle goes on.
#[test]
fn the_next_server_is_found() {
    let server = serve(small());
    let address = server.address().clone();
    let options = with_token(TOKEN).deadline(Duration::from_millis(200));
    let mut client = Client::connect_with(&address, options).unwrap();
    fill(&mut client, 100);
    server.stop();
    let error = client.get(b"key").unwrap_err();
    assert!(matches!(error, GetError::Connect(ConnectError::NotThere { .. })), "{error}");
    let error = client.put(b"key", b"value").unwrap_err();
    assert!(matches!(error, MutateError::Connect(ConnectError::NotThere { .. })), "{error}");
    let _server = start(served(&address, small()));
    assert_eq!(wait_for("an answer", || client.get(&pair(1).0).ok()), None, "it is another table");
    fill(&mut client, 100);
    check_all(&mut client, 100);
}

/// A server is killed and another one takes its table over, again and again, while clients go on: what was
/// acknowledged is there, and no GET fails but by its deadline.
#[test]
fn a_killed_server_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", free));
    let serve = || serve_apart(free, dir.path());
    let mut server = serve();
    wait_for("the server", || TcpStream::connect(("127.0.0.1", free)).ok());
    let mut client = Client::connect_with(&address, with_token(TOKEN)).unwrap();
    let mut reader = client.clone();
    check_all(&mut reader, 0);
    let mut acknowledged = 0;
    for round in 1..=3 {
        let until = acknowledged + 300;
        let mut killed = false;
        while acknowledged < until || !killed {
            if acknowledged == until - 150 && !killed {
                server.signal(rustix::process::Signal::KILL);
                server = serve();
                killed = true;
            }
            let (key, value) = pair(acknowledged);
            match client.put(&key, &value) {
                Ok(_) => acknowledged += 1,
                // It may have been done, or not: it is asked for again.
                Err(MutateError::ServerGone { .. } | MutateError::Connect(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        check_all(&mut reader, acknowledged);
        assert!(reader.stats().reattached >= round && client.stats().reattached >= round);
    }
}

/// Clients that are idle take little of the server's memory, and none of its time: as many as a process may have
/// descriptors for, up to 10,000. Whoever asks is answered.
#[test]
fn idle_clients_cost_little() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const MOST: u64 = 10_000;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map_or(2 * MOST, |most| most.min(2 * MOST)).into();
    setrlimit(Resource::Nofile, limit).unwrap();
    // The rest is for the other tests of this process.
    let count = MOST.min(limit.current.unwrap() / 2);
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", free));
    let server = serve_apart(free, dir.path());
    wait_for("the server", || TcpStream::connect(("127.0.0.1", free)).ok());
    let told = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", server.0.id())).unwrap();
    let resident = || {
        let pages: u64 = told("statm").split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size() as u64
    };
    let ticks = || {
        let stat = told("stat");
        let fields: Vec<u64> = stat
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .skip(11)
            .take(2)
            .map(|n| n.parse().unwrap())
            .collect();
        fields[0] + fields[1]
    };
    let connect = || Client::connect_with(&address, with_token(TOKEN)).unwrap();
    // What the first ones cost is not theirs.
    let mut first: Vec<_> = (0..100).map(|_| connect()).collect();
    fill(&mut first[0], 100);
    first.iter_mut().for_each(|client| check_all(client, 100));
    let before = resident();
    let mut idle: Vec<_> = (0..count - 100).map(|_| connect()).collect();
    idle.iter_mut().for_each(|client| assert_eq!(client.get(&pair(7).0).unwrap(), Some(pair(7).1)));
    let each = resident().saturating_sub(before) / idle.len() as u64;
    let (begun, spent) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_secs(2));
    let (spent, took) = (ticks() - spent, begun.elapsed());
    eprintln!("{count} clients, {each} bytes each, {spent} ticks in {took:?}");
    assert!(each < 16 << 10, "{each} bytes a client");
    assert!(spent <= 10, "{spent} ticks in {took:?}");
    check_all(&mut first[0], 100);
    assert_eq!(first[0].server_stats().unwrap().clients, count);
}

/// A server in a process of its own, with its region in this folder.
fn serve_apart(port: u16, dir: &std::path::Path) -> Process {
    let region = dir.join("region").display().to_string();
    Process::start(
        "tcp::serving_child",
        &[("ONEREAD_TEST_PORT", port.to_string()), ("ONEREAD_TEST_REGION", region)],
    )
}

/// Serves until its input ends. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn serving_child() {
    let (Some(port), Some(region)) = (told("ONEREAD_TEST_PORT"), told("ONEREAD_TEST_REGION")) else { return };
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", port.parse().unwrap()));
    let config = served(&address, small()).backing(Backing::File(region.into()));
    let config = config.clients_max(20_000).clients_per_peer(20_000);
    serve_until_told(config.start(StartMode::OpenOrCreate));
}

/// A server that accepts and says nothing is not waited for beyond the deadline; nor is one that stops in the
/// middle of what it says.
#[test]
fn a_silent_server_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", listener.local_addr().unwrap().port()));
    let options = with_token(TOKEN).deadline(Duration::from_millis(100));
    for says in [&b""[..], &[0; 5], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let (begun, accepting) = (Instant::now(), listener.try_clone().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            stream.write_all(says).unwrap();
            // Until the client hangs up.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = Client::connect_with(&address, options.clone()).unwrap_err();
        assert!(matches!(error, ConnectError::Link { .. }), "{error}");
        assert!(begun.elapsed() < SOON);
        server.join().unwrap();
    }
}

/// All addresses of a name are tried, those of IPv6, too.
#[test]
fn every_address_of_a_name_is_tried() {
    for (listens, connects) in [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1"), ("::1", "[::1]")] {
        let at = Address::Tcp(TcpAddress::new(listens, 0));
        let server = match Server::start(served(&at, small())) {
            Err(ServeError::ListenTcp { source, .. }) if listens == "::1" => {
                eprintln!("skipped {listens}: {source}");
                continue;
            }
            server => server.unwrap(),
        };
        if listens == "localhost" && TcpStream::connect((connects, port_of(&server))).is_err() {
            eprintln!("skipped {listens}: here it is an address of IPv6");
            continue;
        }
        let place = Address::Tcp(TcpAddress::new(connects, port_of(&server)));
        let mut client = Client::connect_with(&place, with_token(TOKEN)).unwrap();
        client.put(b"key", b"value").unwrap();
    }
    let nowhere = Address::Tcp(TcpAddress::new("no.such.host.invalid", 7471));
    let error = Client::connect_with(&nowhere, patient()).unwrap_err();
    assert!(matches!(error, ConnectError::NotThere { .. }), "{error}");
}

/// A server on shm serves TCP, too. Both clients see one table.
#[test]
fn a_server_has_both() {
    let place = Place::new();
    let config = ServerConfig::new(place.address.clone(), small()).tcp(TcpAddress::new("127.0.0.1", 0));
    let server = start(config);
    let far = Address::Tcp(server.tcp_address().unwrap().clone());
    let (mut near, mut far) = (Client::connect(&place.address).unwrap(), Client::connect(&far).unwrap());
    near.put(b"near", b"1").unwrap();
    far.put(b"far", b"2").unwrap();
    for client in [&mut near, &mut far] {
        let found = client.get_many(&[&b"near"[..], b"far"]).unwrap();
        assert_eq!(found, [Ok(Some(b"1".to_vec())), Ok(Some(b"2".to_vec()))]);
    }
    assert_eq!((near.stats().requests.gets, far.stats().requests.gets), (0, 2));
    let both = ServerConfig::new(here(), small()).tcp(TcpAddress::new("127.0.0.1", 0));
    assert!(matches!(Server::start(both), Err(ServeError::TwoPorts)));
}

// ---- strangers --------------------------------------------------------------------------------------

/// Without the token nobody is let in. With that of readers, nobody changes anything. A server that does not
/// know the token is not believed.
#[test]
fn tokens_decide() {
    let config = served(&here(), small()).read_token(Token::new("for readers"));
    let server = start(config);
    let mut owner = connect(&server);
    owner.put(b"key", b"value").unwrap();
    for wrong in ["", "a token for test", "A token for tests"] {
        let error = Client::connect_with(server.address(), with_token(wrong)).unwrap_err();
        assert!(matches!(error, ConnectError::Token { .. }), "{wrong:?}: {error}");
    }
    let mut reader = Client::connect_with(server.address(), with_token("for readers")).unwrap();
    assert_eq!(reader.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let error = reader.put(b"key", b"other").unwrap_err();
    assert!(matches!(error, MutateError::ReadOnly { .. }), "{error}");
    assert_eq!(owner.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(server.stats().clients, 2);
    // Who may not put can be no owner, and is told why.
    let error = reader.owner(OwnerOptions::new(7)).unwrap_err();
    assert!(matches!(error, ConnectError::ReadOnly { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Refused);
    let open = ServerConfig::new(Address::Tcp(TcpAddress::new("0.0.0.0", 0)), small());
    let error = Server::start(open).unwrap_err();
    assert!(matches!(error, ServeError::NoToken { .. }) && error.to_string().contains("token"), "{error}");
}

/// What a client with the token has said is recorded and said again: it opens no second connection.
#[test]
fn a_proof_cannot_be_replayed() {
    let server = serve(small());
    let port = port_of(&server);
    // The client goes through a relay that keeps what it says.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
    let recording = std::thread::spawn(move || {
        let (mut client, _) = relay.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let returning = std::thread::spawn(move || {
            let (mut from, mut to) = back;
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = client.read(&mut chunk) {
            said.extend_from_slice(&chunk[..n]);
            server.write_all(&chunk[..n]).unwrap();
        }
        let _ = server.shutdown(Shutdown::Both);
        returning.join().unwrap();
        said
    });
    let mut client = Client::connect_with(&address, with_token(TOKEN)).unwrap();
    client.put(b"key", b"value").unwrap();
    drop(client);
    let said = recording.join().unwrap();
    let mut again = dial(&server);
    again.write_all(&said).unwrap();
    assert!(matches!(reply(&mut again), Some(Reply::Challenge { .. })));
    assert!(matches!(reply(&mut again), None | Some(Reply::TurnedAway(Refusal::Token))));
    assert!(hangs_up(&mut again));
}

/// Bytes that are no conversation, floods of them, requests before the proof, and halves of frames: the server
/// hangs up, and nobody else notices.
#[test]
fn strangers_get_nothing() {
    let server = start(served(&here(), small()).half_open(Duration::from_secs(3)));
    let mut client = connect(&server);
    fill(&mut client, 500);
    let mut numbers = Numbers(3);
    let mut garbage = vec![0; 200_000];
    garbage.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
    let nonce = [7; 32];
    let join = frame(&Request::Join { nonce, proof: [9; 32] });
    let get = frame(&Request::Get { key: b"key" });
    let attacks: [(&str, Vec<u8>); 9] = [
        ("garbage", garbage),
        ("another service's client", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec()),
        ("a frame of 4 GiB", [[0xff; 4], [0; 4], [0; 4], [0; 4]].concat()),
        ("a request without a hello", get.clone()),
        ("a proof without a hello", join.clone()),
        ("a request after the hello", [frame(&HELLO), get].concat()),
        ("a wrong proof", [frame(&HELLO), join].concat()),
        ("two hellos", [frame(&HELLO), frame(&HELLO)].concat()),
        ("another version", frame(&Request::Hello { version: PROTOCOL_VERSION + 1 })),
    ];
    for (what, bytes) in &attacks {
        let mut stream = dial(&server);
        // The server may hang up in the middle.
        let _ = stream.write_all(bytes);
        assert!(hangs_up(&mut stream), "{what}");
    }
    // Who says nothing, or half of something, has a limited time.
    for half in [&b""[..], &frame(&HELLO)[..20]] {
        let mut stream = dial(&server);
        stream.write_all(half).unwrap();
        assert!(hangs_up(&mut stream));
    }
    check_all(&mut client, 500);
    wait_for("them to be gone", || (server.stats().clients == 1).then_some(()));
    assert_eq!(client.stats().reattached, 0);
}

/// A flood of connections that prove nothing keeps nobody out.
#[test]
fn a_flood_keeps_nobody_out() {
    let server = start(served(&here(), small()).workers(1));
    let mut flood = Vec::new();
    for _ in 0..600 {
        flood.push(dial(&server));
    }
    let mut client = connect(&server);
    fill(&mut client, 100);
    check_all(&mut client, 100);
    assert_eq!(server.stats().clients, 1, "those who have proven nothing are no clients");
    drop(flood);
}

/// The answers to one batch are two thousand times what the server keeps for a client that does not read.
/// They arrive, and others are served meanwhile.
#[test]
fn more_than_is_kept_arrives() {
    let server = serve_long(Duration::from_secs(3_600));
    let (mut client, mut other) = (connect(&server), connect(&server));
    let keys: Vec<_> = std::iter::repeat_n(b"long", 3_000).collect();
    let mut answers = 0;
    let flow = client.get_many_with(&keys, |_, found| {
        assert!(found.unwrap() == Some(&long()));
        answers += 1;
        if answers % 500 == 0 {
            assert!(other.get(b"long").unwrap() == Some(long()));
        }
        ControlFlow::<()>::Continue(())
    });
    assert!(flow.unwrap().is_continue() && answers == 3_000);
}

fn long() -> Vec<u8> {
    value(1, 50_000)
}

/// A server that keeps 64 KiB for a client that does not read, with a long value in its table. One thread
/// serves all.
fn serve_long(half_open: Duration) -> Server {
    let table = Config::new().size(TableSize::Slots(256)).key_max(16).value_max(1 << 20).inline_max(40);
    let config = served(&here(), table.heap_bytes(16 << 20)).unread_bytes_max(1 << 16);
    let server = start(config.workers(1).half_open(half_open));
    connect(&server).put(b"long", &long()).unwrap();
    server
}

/// Peers ask for more and more and read nothing. Others are served meanwhile, and the peers are hung up on.
/// They get a small part of what they asked for: what lay in the system's buffers. (How much memory the
/// server takes for them is tested in `src/server/session.rs`.)
#[test]
fn who_does_not_read_is_hung_up_on() {
    let server = serve_long(Duration::from_secs(5));
    let mut client = connect(&server);
    let asked = gets(&[b"long"]).repeat(1_000);
    let asked_for: Vec<(TcpStream, usize)> = std::thread::scope(|scope| {
        let peers: Vec<_> = (0..3)
            .map(|_| {
                let (mut peer, asked) = (joined(&server), &asked);
                scope.spawn(move || {
                    let mut said = 0;
                    while let Ok(n) = peer.write(&asked[said % asked.len()..]) {
                        said += n;
                    }
                    (peer, said / (asked.len() / 1_000) * long().len())
                })
            })
            .collect();
        wait_for("them to be hung up on", || {
            assert!(client.get(b"long").unwrap() == Some(long()));
            client.put(b"short", b"value").unwrap();
            peers.iter().all(|peer| peer.is_finished()).then_some(())
        });
        peers.into_iter().map(|peer| peer.join().unwrap()).collect()
    });
    wait_for("them to be gone", || (server.stats().clients == 1).then_some(()));
    for (mut peer, asked_for) in asked_for {
        let mut came = Vec::new();
        let _ = peer.read_to_end(&mut came);
        assert!(asked_for > 10 * came.len(), "{asked_for} were asked for, {} came", came.len());
    }
    assert_eq!(client.stats().reattached, 0);
}

/// A crowd of both kinds, shm and TCP, on one table, with two threads of the server: each client changes keys
/// of its own and reads everybody's. Values never go back, and in the end all clients see the same table.
#[test]
fn a_mixed_crowd() {
    const KEYS: u32 = 200;
    const ROUNDS: u64 = 40;
    let place = Place::new();
    let table = Config::new().size(TableSize::up_to(64 << 20)).key_max(16).value_max(300_000);
    let config = served(&place.address, table).tcp(TcpAddress::new("127.0.0.1", 0));
    let server = start(config);
    let far = Address::Tcp(server.tcp_address().unwrap().clone());
    let connect = |n: u32| {
        let address = if n.is_multiple_of(2) { &place.address } else { &far };
        Client::connect_with(address, with_token(TOKEN)).unwrap()
    };
    // Most are short, and some are longer than a piece.
    let value_of = |n: u32, round: u64| -> Vec<u8> {
        let words = if n % 50 == 3 { 20_000 } else { 1 + n as usize % 5 };
        round.to_le_bytes().repeat(words)
    };
    let check = |n: u32, found: &[u8], seen: &mut u64| {
        let round = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(found == value_of(n, round), "key {n}: a value is not whole");
        assert!(round >= *seen, "key {n}: round {round} after {seen}");
        *seen = round;
    };
    let keys: Vec<_> = (0..4 * KEYS).map(|n| key(n, 16)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (mut client, keys) = (connect(thread), &keys);
            scope.spawn(move || {
                let mut seen = vec![0; keys.len()];
                for round in 1..=ROUNDS {
                    let own = thread * KEYS..(thread + 1) * KEYS;
                    let pairs: Vec<_> = own.map(|n| (keys[n as usize].clone(), value_of(n, round))).collect();
                    assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
                    let all = client.get_many_with(keys, |n, found| {
                        if let Some(found) = found.unwrap() {
                            check(n as u32, found, &mut seen[n]);
                        }
                        ControlFlow::<()>::Continue(())
                    });
                    match all {
                        Ok(flow) => assert!(flow.is_continue()),
                        Err(error) => assert!(is_replaced(&error), "{error}"),
                    }
                    let some = (round * 37) as usize % keys.len();
                    match client.get(&keys[some]) {
                        Ok(found) => {
                            found.iter().for_each(|found| check(some as u32, found, &mut seen[some]));
                        }
                        Err(error) => assert!(is_replaced(&error), "{error}"),
                    }
                }
            });
        }
    });
    for mut client in [connect(0), connect(1)] {
        for (n, found) in (0..).zip(client.get_many(&keys).unwrap()) {
            assert!(found == Ok(Some(value_of(n, ROUNDS))), "key {n}");
        }
    }
}

/// One host has so many connections, and no more.
#[test]
fn connections_of_a_host_are_limited() {
    let server = start(served(&here(), small()).clients_per_peer(2));
    let _two = [connect(&server), connect(&server)];
    let options = with_token(TOKEN).deadline(Duration::from_millis(200));
    let error = Client::connect_with(server.address(), options).unwrap_err();
    let is_full = matches!(&error, ConnectError::TurnedAway { source: Refusal::PeerFull { max: 2 }, .. });
    assert!(is_full, "{error}");
}

/// Rejections of the table come as everywhere.
#[test]
fn rejections_are_told() {
    let server = serve(small());
    let mut client = connect(&server);
    let error = client.get(&[1; 17]).unwrap_err();
    assert!(matches!(error, GetError::KeyLength { given: 17, max: 16 }), "{error}");
    let error = client.put(b"key", &[1; 101]).unwrap_err();
    assert!(matches!(error.rejection(), Some(PutError::ValueLength { given: 101, max: 100 })), "{error}");
    assert_eq!(Target::put(&mut client, b"key", b"1", PutMode::Update), Ok(PutOutcome::Missing));
}
