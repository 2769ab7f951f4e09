//! Requests made HERD's way.

use super::*;

stories! {
    herd_over_uc_and_rc,
    herd_areas_are_apart,
    herd_clients_that_leave,
    herd_keeps_the_order_of_a_key,
    herd_welcomes_that_are_changed,
    datagrams_of_strangers,
    herd_replies_that_complete_late,
    herd_cells_that_are_being_sent,
    herd_replies_fit_a_packet,
}

/// A reply is one packet. A table whose replies may be longer is not served HERD's way, and the error says what to
/// do.
fn herd_replies_fit_a_packet(fake: &Fake) {
    fake.set("FAKE_MTU", 1024);
    let start = |value_max| {
        let table = config(default_preset(), 128, 16, value_max, 7);
        Server::start(ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN)).herd(true))
    };
    match start(1100) {
        Err(ServeError::Verbs(SetupError::Extension { why, .. })) => {
            assert!(why.contains("a datagram 1024 (the MTU): serve a table with shorter values"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    fake.check_closed();
    let server = start(900).unwrap();
    let herd = options().requests(RequestPath::HERD);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    client.put(b"key", &[7; 900]).unwrap();
    assert_eq!(client.get_two_sided(b"key").unwrap().as_deref(), Some(&[7; 900][..]));
}

/// The server gives each client of HERD a protection domain of its own: its queue pair, which may WRITE,
/// reaches no other client's requests. (A client has one, too.)
fn herd_areas_are_apart(fake: &Fake) {
    let table = config(default_preset(), 2000, 16, 46, 7);
    let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true);
    let server = Server::start(herd.token(Token::new(TOKEN))).unwrap();
    let mut options = options();
    options.requests = RequestPath::HERD;
    let before = fake.count("live_pds");
    let mut clients: Vec<_> =
        (0..3).map(|_| Client::connect_with(server.address(), options.clone()).unwrap()).collect();
    fill(&mut clients[2], 30);
    check_all(&mut clients[0], 30);
    assert_eq!(fake.count("live_pds") - before, 6);
    drop(clients);
    wait_for("their domains to go", || (fake.count("live_pds") == before).then_some(()));
}

/// HERD's WRITEs go over UC if both sides have it, else over RC. Lost requests are repeated.
fn herd_over_uc_and_rc(fake: &Fake) {
    const KEYS: u32 = 300;
    for (server_lacks_uc, client_lacks_uc) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        fake.set("FAKE_NO_UC", server_lacks_uc);
        let table = config(default_preset(), 2000, 16, 46, 7);
        let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true);
        let server = Server::start(herd.token(Token::new(TOKEN))).unwrap();
        fake.set("FAKE_NO_UC", client_lacks_uc);
        let mut options = options();
        options.requests = RequestPath::HERD;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        fill(&mut client, KEYS);
        // From here on, the n-th WRITE or datagram is lost. RC loses none.
        for lost in 1..=8i64 {
            fake.set("FAKE_DROP_NTH", lost);
            for n in 0..8 {
                let (key, value) = ours(KEYS + 8 * lost as u32 + n);
                assert_eq!(
                    client.insert(&key, &value).unwrap(),
                    PutOutcome::Inserted,
                    "once, though asked twice"
                );
                assert_eq!(client.get_two_sided(&key).unwrap(), Some(value));
            }
        }
        fake.set("FAKE_DROP_NTH", 0);
        let repeats = client.queue_counts().unwrap().repeats;
        assert!(repeats >= 8, "{repeats} repeats for 8 that were lost");
        check_all(&mut client, KEYS);
        assert_eq!(client.stats().reattached, 0);
    }
}

/// When a client that used HERD's way is gone, the workers free its place, even if others stay.
/// Nothing of it is left on the server's side.
fn herd_clients_that_leave(fake: &Fake) {
    let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    let herd = options().requests(RequestPath::HERD);
    let mut stays = Client::connect_with(server.address(), herd.clone()).unwrap();
    let ask = |client: &mut Client| {
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.get_two_sided(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    };
    let kinds = ["live_qps", "live_ahs"];
    ask(&mut stays);
    let before = kinds.map(|kind| fake.count(kind));
    for _ in 0..5 {
        let mut goes = Client::connect_with(server.address(), herd.clone()).unwrap();
        ask(&mut goes);
        assert!(kinds.map(|kind| fake.count(kind)).into_iter().zip(before).all(|(now, then)| now > then));
        drop(goes);
        wait_for("its place to be given up", || (kinds.map(|kind| fake.count(kind)) == before).then_some(()));
        ask(&mut stays);
    }
}

/// Serves requests HERD's way, by this number of workers.
fn serve_herd(workers: usize) -> (Server, ClientOptions) {
    let table = config(default_preset(), 4000, 16, 46, 7);
    let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true).workers(workers);
    (Server::start(herd.token(Token::new(TOKEN))).unwrap(), options().requests(RequestPath::HERD))
}

/// Q4: requests for one key are done in their order, also when the first of them is lost and comes again
/// later. Those for other keys do not wait.
fn herd_keeps_the_order_of_a_key(fake: &Fake) {
    let (server, herd) = serve_herd(1);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    let mut repeats = 0;
    for lost in 1..=5 {
        let one = ours(lost).0;
        let (values, other) = ([b"first", b"again", b"third"], key(1_000 + lost, 16));
        let pairs: Vec<(&[u8], &[u8])> =
            vec![(&one, values[0]), (&one, values[1]), (&other, values[0]), (&one, values[2])];
        // A WRITE of these, or a reply.
        fake.set("FAKE_DROP_NTH", lost.into());
        let answers: Vec<_> = client.put_many(&pairs).unwrap().into_iter().map(Result::unwrap).collect();
        fake.set("FAKE_DROP_NTH", 0);
        let (inserted, updated) = (PutOutcome::Inserted, PutOutcome::Updated);
        assert_eq!(answers, [inserted, updated, inserted, updated], "message {lost} was lost");
        assert_eq!(client.get(&one).unwrap().as_deref(), Some(&values[2][..]), "message {lost} was lost");
        // It is there once, for the first of these.
        fake.set("FAKE_DROP_NTH", lost.into());
        let answers: Vec<_> = client.remove_many(&[&one, &other, &one]).unwrap();
        fake.set("FAKE_DROP_NTH", 0);
        let there: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(there, [true, true, false], "message {lost} was lost");
        let before = std::mem::replace(&mut repeats, client.queue_counts().unwrap().repeats);
        assert!(repeats > before, "message {lost} came again");
    }
}

fn less_by_one(text: &str, field: &str) -> String {
    forged::with_field(text, field, &(forged::number_in(text, field) - 1).to_string())
}

/// The client checks the place that a server has for its requests before it WRITEs there.
fn herd_welcomes_that_are_changed(_: &Fake) {
    let (server, herd) = serve_herd(2);
    // What is changed stands behind the rest of the welcome.
    type WelcomeChange = fn(&str) -> String;
    let relay = |change: WelcomeChange| {
        forged::relay(place(&server), true, move |welcome| {
            let at = welcome.find("\"extension\":").expect("an extension");
            format!("{}{}", &welcome[..at], change(&welcome[at..]))
        })
    };
    let changes: [(WelcomeChange, &str); 5] = [
        (|text| forged::with_field(text, "workers", "[]"), "too small a place"),
        (|text| forged::with_field(text, "workers", "[5,6,7]"), "too small a place"),
        (|text| less_by_one(text, "bytes"), "too small a place"),
        (|text| less_by_one(text, "cell_bytes"), "too small a place"),
        (|text| forged::with_field(text, "mtu", "1000"), "MTU is none"),
    ];
    for (n, (change, expected)) in changes.into_iter().enumerate() {
        let error = refused(&relay(change), herd.clone());
        let is_refused = matches!(&error, SetupError::Extension { why, .. } if why.contains(expected));
        assert!(is_refused, "{n}: {error}");
    }
    let mut client = Client::connect_with(&relay(str::to_owned), herd.clone()).unwrap();
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

/// Q5: a datagram of a queue pair that is no worker's is no reply, whatever it says.
fn datagrams_of_strangers(fake: &Fake) {
    let (server, herd) = serve_herd(2);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    fill(&mut client, 30);
    let strays = fake.count("strays");
    // More of them than there are receives.
    for n in 0..30 {
        let (key, value) = ours(n);
        fake.set("FAKE_STRAY_NTH", 1);
        assert_eq!(client.get_two_sided(&key).unwrap(), Some(value), "{n}");
    }
    assert_eq!(fake.count("strays") - strays, 30);
    assert_eq!(client.stats().reattached, 0);
}

/// The replies of a worker complete late: it sends no more than its queue has room for, and those of a
/// client that leaves complete before its address is given up.
fn herd_replies_that_complete_late(fake: &Fake) {
    const REPLIES: u32 = 128;
    let (server, herd) = serve_herd(1);
    let mut stays = Client::connect_with(server.address(), herd.clone()).unwrap();
    fake.set("FAKE_DELAY_SENDS", 300);
    let ahs = fake.count("live_ahs");
    for round in 1..=3 {
        let mut leaves = Client::connect_with(server.address(), herd.clone()).unwrap();
        fill(&mut leaves, 3 * REPLIES + 7);
        drop(leaves);
        wait_for("its place to be given up", || (fake.count("live_ahs") == ahs).then_some(()));
        assert_eq!((fake.count("misuse"), fake.count("queue_full")), (0, 0), "round {round}");
        fill(&mut stays, REPLIES + 1);
    }
    fake.set("FAKE_DELAY_SENDS", 0);
    assert_eq!(stays.stats().reattached, 0);
}

/// A WRITE has arrived, but it is not known to be over. Its cell is not written until it is: not by the
/// next request, and not by the same one, whose reply was lost.
fn herd_cells_that_are_being_sent(fake: &Fake) {
    let (server, herd) = serve_herd(1);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    fill(&mut client, 30);
    let (before, drops) = (client.queue_counts().unwrap().repeats, fake.count("drops"));
    // The WRITE is the first message, the reply the second. It is repeated after 10 ms.
    fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
    fake.set("FAKE_DROP_NTH", 2);
    let found = std::thread::scope(|scope| {
        let got = scope.spawn(|| client.get_two_sided(&ours(0).0));
        wait_for("the reply to be lost", || (fake.count("drops") > drops).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!got.is_finished());
        // The worker, which had one reply to send, and the client learn of it now.
        fake.set("FAKE_DELAY_SENDS", 0);
        got.join().unwrap()
    });
    assert_eq!(found.unwrap(), Some(ours(0).1));
    assert!(client.queue_counts().unwrap().repeats > before);
    // Of a batch, each cell has one request under way, whether it is answered or not.
    const CELLS: u64 = 4;
    let before = server.index().counts().inserts;
    let done = || server.index().counts().inserts - before;
    fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
    let answers = std::thread::scope(|scope| {
        let pairs: Vec<_> = (100..120).map(ours).collect();
        let client = &mut client;
        let put = scope.spawn(move || client.put_many(&pairs));
        wait_for("the first requests", || (done() >= CELLS).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        let now = done();
        fake.set("FAKE_DELAY_SENDS", 0);
        assert_eq!(now, CELLS);
        put.join().unwrap()
    });
    answers.unwrap().into_iter().for_each(|answer| assert_eq!(answer, Ok(PutOutcome::Inserted)));
}
