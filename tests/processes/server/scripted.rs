//! Servers that say what their test says: a client takes nothing for an answer that is none.

use super::fake::{Fake, as_change, requests_of};
use super::on_every_family;
use crate::common::*;
use oneread::internals::client::LinkError;
use oneread::internals::wire::{self, Reply, Request};
use oneread::{
    Client, Config, ConnectError, GetError, MutateError, PutOutcome, RequestPath, ServerConfig, TableSize,
    error::Refusal,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A server answers every request with the same words. Where these are no answer to it, the call fails,
/// is counted, and its connection is not used again. Where they say that the client may only read, that
/// is the error, and the connection stays.
#[test]
fn answers_to_no_request() {
    type Question = fn(&mut Client) -> Result<(), MutateError>;
    let asks: [Question; 22] = [
        |client| client.put(b"k", b"v").map(drop),
        |client| client.insert(b"k", b"v").map(drop),
        |client| client.update(b"k", b"v").map(drop),
        |client| client.remove(b"k").map(drop),
        |client| client.compare_and_swap(b"k", b"v", b"w").map(drop),
        // The server is asked first whether it is there.
        |client| client.compare_and_swap(b"k", &[1; 5_000], b"w").map(drop),
        |client| client.get_two_sided(b"k").map(drop).map_err(as_change),
        |client| Ok(client.server_stats().map(drop)?),
        |client| Ok(client.growth().map(drop)?),
        |client| Ok(client.shrink().map(drop)?),
        |client| Ok(client.heap().map(drop)?),
        |client| Ok(client.snapshot_status().map(drop)?),
        |client| Ok(client.ask_for_snapshot().map(drop)?),
        |client| client.put_many(&[(b"k", b"v"), (b"l", b"v")]).map(drop),
        |client| client.update_many(&[(b"k", b"v")]).map(drop),
        |client| client.remove_many(&[b"k", b"l"]).map(drop),
        |client| client.add(b"k", 1, None).map(drop),
        |client| client.append(b"k", b"v", 9).map(drop),
        |client| client.add_many(&[(b"k", 1), (b"l", 1)], None).map(drop),
        |client| client.remove_if(b"k", b"v").map(drop),
        |client| client.remove_if(b"k", &[1; 5_000]).map(drop),
        |client| client.clear().map(drop),
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
                    // Every client may read: that is no answer to a GET.
                    Err(MutateError::ServerGone { source: LinkError::Unexpected, .. }) if which == 6 => {}
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
        |client| client.get_two_sided(b"k").map(drop).map_err(as_change),
        |client| Ok(client.server_stats().map(drop)?),
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
    let table = Config::new().size(TableSize::Keys(600)).key_max(255).key_inline(255).value_max(3699);
    let _server = start(ServerConfig::new(place.address.clone(), table));
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
            let child = Process::start(
                "server::putting_child",
                &[("ONEREAD_TEST_ADDRESS", place.address.to_string())],
            );
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
        let inspector = oneread::internals::inspect::Inspector::new(index.region(), index.geometry());
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
