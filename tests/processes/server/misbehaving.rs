//! Clients that misbehave cost their own connection, and nobody else anything.

use super::fake::as_change;
use super::raw::Raw;
use super::{on_every_family, table};
use crate::common::*;
use oneread::internals::client::LinkError;
use oneread::internals::region::Backing;
use oneread::internals::wire::{self, PROTOCOL_VERSION, Reply, Request};
use oneread::{
    Address, Client, ClientOptions, ConnectError, MutateError, PutOutcome, RequestPath, Server, ServerConfig,
    StartMode, error::Refusal,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
        let server = start(config);
        let mut good = place.client();
        good.put(b"good", b"1").unwrap();
        let mut numbers = Numbers(1);
        let mut kept = Vec::new();
        let put = Request::Put { options: oneread::PutMode::Upsert.into(), key: b"bad", value: b"value" };
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
    let server = start(config);
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
        (&place.address, RequestPath::HERD),
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
            |client| match client.get_two_sided(b"k") {
                Ok(found) => {
                    assert_eq!(found.unwrap(), b"a value");
                    Ok(())
                }
                Err(error) => Err(as_change(error)),
            },
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
