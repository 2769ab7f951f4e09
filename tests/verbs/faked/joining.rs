//! Who may join a server, and what each side checks of the other.

use super::*;

stories! {
    servers_that_are_full,
    failed_handshakes,
    clients_that_never_join,
    readers_change_nothing,
    each_host_has_a_limit,
    welcomes_that_are_changed,
    joins_that_are_changed,
    clients_that_go_on_talking,
    errors_that_are_final,
    clients_that_join_at_once,
    limits_are_those_of_the_present_server,
    a_server_that_is_away,
}

/// A server admits as many clients as its queues have room for. The next one is told so.
fn servers_that_are_full(fake: &Fake) {
    // The room of each of the two workers.
    for (setting, value, room) in [("FAKE_MAX_CQE", 64, 4), ("FAKE_MAX_SRQ_WR", 31, 3)] {
        fake.set(setting, value);
        let server = serve(1024);
        // One that could not be taken in takes no room: the server's memory for its answers is
        // registered, that for its messages is not.
        fake.set("FAKE_REG_SPARED", 1);
        fake.set("FAKE_REG_ERRNO", 12);
        Client::connect_with(server.address(), options()).expect_err("no memory");
        fake.set("FAKE_REG_ERRNO", 0);
        let mut clients: Vec<_> = (0..2 * room).map(|_| connect(&server)).collect();
        fill(&mut clients[0], 100);
        for round in 0..3 {
            match refused(server.address(), options()) {
                SetupError::Refused { why, .. } => assert!(why.contains("as many clients as it can take")),
                error => panic!("{error}"),
            }
            // All clients at once, each with the most messages it may have.
            std::thread::scope(|scope| {
                for client in &mut clients {
                    scope.spawn(|| {
                        fill(client, 300);
                        check_all(client, 300);
                    });
                }
            });
            fake.check();
            clients.remove(round);
            let again = wait_for("room", || Client::connect_with(server.address(), options()).ok());
            clients.push(again);
        }
        fake.set("FAKE_MAX_CQE", 65536);
    }
}

/// A handshake may end in any way. Nothing is left of it on either side.
fn failed_handshakes(fake: &Fake) {
    let server = serve(128);
    let of_the_server: Vec<_> = ["qps", "mrs"].map(|kind| fake.count(&format!("live_{kind}"))).into();
    let mut stranger = options();
    for token in [Token::new("another"), Token::default()] {
        stranger.token = token;
        assert!(matches!(refused(server.address(), stranger.clone()), SetupError::Token { .. }));
    }
    let mut stayers = Vec::new();
    for garbage in [&b""[..], b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x10\0\0\0{\"version\":1"] {
        let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
        stream.write_all(garbage).unwrap();
        stayers.push(stream);
    }
    // The server welcomes a client that is gone before it reads the welcome.
    let library = told("ONEREAD_TEST_LIBRARY").unwrap();
    let address = relay(&server, move |_| Fake::load(&library).set("FAKE_REG_ERRNO", 14));
    let error = refused(&address, options());
    assert!(matches!(error, SetupError::Register { errno: 14, .. }), "{error}");
    fake.set("FAKE_REG_ERRNO", 0);
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let left: Vec<_> = ["qps", "mrs"].map(|kind| fake.count(&format!("live_{kind}"))).into();
    // One client's receives are kept for the next one.
    assert_eq!((left[0], left[1]), (of_the_server[0], of_the_server[1] + 1));
    let options = options().deadline(Duration::from_secs(10));
    let mut client = Client::connect_with(server.address(), options).unwrap();
    fill(&mut client, 30);
    // One client is dropped before its server, the other after it.
    let mut other = client.clone();
    check_all(&mut other, 30);
    drop(client);
    server.stop();
    let GetError::Connect(_) = other.get(&ours(1).0).expect_err("no server") else { panic!() };
}

/// A client that does not join is hung up on after some time, even if nothing else happens.
fn clients_that_never_join(_: &Fake) {
    let server = serve(128);
    let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("the server hangs up");
    assert!(said.len() > 4, "its challenge");
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}: too early", begun.elapsed());
}

/// A client with the token of readers READs and asks, and changes nothing, whichever way requests
/// go. A server with a token for readers alone would let everybody change the table: it does not
/// start.
fn readers_change_nothing(_: &Fake) {
    let table = config(default_preset(), 2000, 16, 46, 7);
    let reading = Token::new("a token for readers");
    for options in ways() {
        let how = ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN));
        #[cfg(feature = "herd")]
        let how = how.herd(true);
        let server = Server::start(how.read_token(reading.clone())).unwrap();
        fill(&mut Client::connect_with(server.address(), options.clone()).unwrap(), 30);
        let mut reader = Client::connect_with(server.address(), options.token(reading.clone())).unwrap();
        check_all(&mut reader, 30);
        let (key, value) = ours(1);
        assert_eq!(reader.get_two_sided(&key).unwrap(), Some(value));
        for denied in [
            reader.put(&key, b"other").map(drop),
            reader.remove(&key).map(drop),
            reader.compare_and_swap(&key, b"", b"other").map(drop),
            reader.remove_many(&[&key]).map(drop),
            reader.put_many(&[(b"new", b"other"); 100]).map(drop),
        ] {
            assert!(matches!(denied, Err(MutateError::ReadOnly { .. })), "{denied:?}");
        }
        check_all(&mut reader, 30);
        assert_eq!(server.stats().inserts, 30);
    }
    for token in [Token::default(), reading.clone()] {
        let how = ServerConfig::new(at("127.0.0.1:0"), table).token(token).read_token(reading.clone());
        assert!(matches!(Server::start(how), Err(ServeError::ReadToken)));
    }
}

/// A host that has all the connections that one may have is told so.
fn each_host_has_a_limit(_: &Fake) {
    let how = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 128, 16, 46, 7));
    let server = Server::start(how.token(Token::new(TOKEN)).clients_per_peer(2)).unwrap();
    let clients = [connect(&server), connect(&server)];
    match refused(server.address(), options()) {
        SetupError::Refused { why, .. } => assert!(why.contains("this peer has 2 connections"), "{why}"),
        error => panic!("{error}"),
    }
    drop(clients);
    wait_for("room", || Client::connect_with(server.address(), options()).ok());
}

/// The clients that one turn accepts may be joining at the same time. For one more the oldest gives way,
/// so that many who never join keep no client out.
fn clients_that_join_at_once(_: &Fake) {
    const JOINING_MAX: usize = 256;
    let server = serve(128);
    let join = || {
        let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert!(stream.read(&mut [0; 4]).unwrap() > 0, "it is challenged");
        stream
    };
    let mut all: Vec<_> = (0..JOINING_MAX + 1).map(|_| join()).collect();
    all[0].read_to_end(&mut Vec::new()).expect("the first is hung up on");
    fill(&mut connect(&server), 30);
}

/// The client rejects welcomes that were changed on the way, and accepts the same ones unchanged.
fn welcomes_that_are_changed(_: &Fake) {
    let server = serve(128);
    forged::forged_welcomes(place(&server));
    let address = forged::relay(place(&server), true, |welcome| welcome);
    let mut client = Client::connect_with(&address, options()).unwrap();
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

/// The server checks what a client says of itself, and names what is wrong. A relay that does not
/// know the token can change nothing.
fn joins_that_are_changed(_: &Fake) {
    let server = serve(128);
    for (field, value, expected) in [
        ("version", "2", "it speaks version 2, the server 1"),
        ("mtu", "1000", "1000 bytes is no path MTU"),
        ("infiniband", "true", "being the server's"),
    ] {
        let change = move |join: String| forged::with_field(&join, field, value);
        let address = forged::forge(place(&server), true, change, |welcome| welcome);
        match refused(&address, options()) {
            SetupError::Refused { why, .. } => assert!(why.contains(expected), "{field}: {why}"),
            error => panic!("{field}: {error}"),
        }
    }
    let change = |join: String| forged::with_field(&join, "mtu", "256");
    let address = forged::forge(place(&server), false, change, |welcome| welcome);
    assert!(matches!(refused(&address, options()), SetupError::Token { .. }));
    assert_eq!(server.stats().clients, 0);
    fill(&mut connect(&server), 30);
}

/// After the handshake, a client says nothing more over TCP. One that does is hung up on.
fn clients_that_go_on_talking(_: &Fake) {
    let server = serve(128);
    let (sender, streams) = std::sync::mpsc::channel();
    let address = relay(&server, move |streams| {
        sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
    });
    let client = Client::connect_with(&address, options()).unwrap();
    let [_to_client, mut to_server] = streams.recv().unwrap();
    to_server.write_all(b"more").unwrap();
    wait_for("the server to hang up", || (server.stats().clients == 0).then_some(()));
    drop(client);
}

/// A client that finds a server with another token in its server's place does not try again until
/// its deadline: the next attempt would end in the same way.
fn errors_that_are_final(_: &Fake) {
    for pairs in [None, Some(1)] {
        let server = serve(128);
        let address = server.address().clone();
        let verbs = options().verbs.pairs(pairs);
        let mut client = Client::connect_with(&address, options().verbs(verbs)).unwrap();
        fill(&mut client, 30);
        server.stop();
        let table = config(default_preset(), 128, 16, 46, 7);
        let _other = Server::start(ServerConfig::new(address, table).token(Token::new("another"))).unwrap();
        let began = Instant::now();
        let is_token = |error: &ConnectError| matches!(error, ConnectError::Verbs(SetupError::Token { .. }));
        let error = client.get(&ours(1).0).unwrap_err();
        assert!(matches!(&error, GetError::Connect(error) if is_token(error)), "{error}");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
        let error = client.put(b"key", b"value").unwrap_err();
        assert!(matches!(&error, MutateError::Connect(error) if is_token(error)), "{error}");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    }
}

/// A client applies the limits of the present server, not those of the one before, in both
/// directions.
fn limits_are_those_of_the_present_server(_: &Fake) {
    for options in ways() {
        lengths_of_the_next_server(&options, |address, table| {
            let address = address.cloned().unwrap_or_else(|| at("127.0.0.1:0"));
            serve_ways(address, table.grace(Duration::from_millis(500)))
        });
    }
}

/// While a server is away, each call looks for it until its deadline. When another server is at its
/// place, the handles find it, and each reconnects once.
fn a_server_that_is_away(_: &Fake) {
    for options in ways().filter(|way| way.requests == RequestPath::Message && way.verbs.wait == Wait::Poll) {
        let table = config(default_preset(), 1024, 16, 46, 7).grace(Duration::from_millis(500));
        let server = serve_ways(at("127.0.0.1:0"), table);
        let address = server.address().clone();
        let brief = options.clone().deadline(Duration::from_millis(300));
        let connect = || Client::connect_with(&address, brief.clone()).ok();
        let mut client = wait_for("a connection within 300 ms", connect);
        wait_for("a put", || client.put(b"key", b"one").ok());
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"one"[..]));
        let before = client.stats().reattached;
        server.stop();
        assert!(matches!(client.get(b"key"), Err(GetError::Connect(_))), "{options:?}");
        match client.put(b"key", b"two") {
            Err(MutateError::ServerGone { .. } | MutateError::Connect(_) | MutateError::Deadline { .. }) => {}
            other => panic!("{options:?}: {other:?}"),
        }
        let server = serve_ways(address.clone(), table);
        assert_eq!(wait_for("a GET", || client.get(b"key").ok()), None, "another table, {options:?}");
        wait_for("a put", || client.put(b"key", b"three").ok());
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(client.stats().reattached - before, 1, "{options:?}");
        server.stop();
    }
}
