//! Messages and their answers: order, number, length, and receives that are never lost.

use super::*;
use oneread::{FeedFrom, FeedItem, FeedOptions};
use std::collections::BTreeMap;

stories! {
    hanging_up_while_asking,
    answers_that_come_first,
    answers_that_fit_into_a_message,
    answers_that_do_not_fit,
    messages_beyond_the_bound,
    answers_before_the_hang_up,
    answers_that_wait_for_a_slot,
    completions_without_an_event,
    receives_that_come_back_late,
    receives_of_clients_that_leave,
    duplicate_answers,
    misnumbered_answers,
    late_answers,
    answers_beyond_the_bound,
    scans_and_followers,
    followers_that_wait,
    changes_that_wait,
}

/// A client may hang up at any time, even when its message has just arrived and the server has not
/// looked yet. The receive that the message took is posted again for the next client.
fn hanging_up_while_asking(fake: &Fake) {
    let server = serve(128);
    for n in 0..200 {
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let verbs = options().verbs.wait(if n % 2 == 0 { Wait::Poll } else { Wait::Block });
        let deadline = Duration::from_secs(10);
        let mut client = Client::connect_with(&address, options().verbs(verbs).deadline(deadline)).unwrap();
        let [to_client, to_server] = streams.recv().unwrap();
        let began = Instant::now();
        let put = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                to_client.shutdown(Shutdown::Both).unwrap();
            });
            to_server.shutdown(Shutdown::Both).unwrap();
            // There is usually no answer any more, unless the server was very quick.
            client.put(b"key", b"value")
        });
        // A client that noticed before it asked tries the relay, which is gone, until its deadline.
        let is_late = matches!(put, Err(MutateError::Connect(_)));
        assert!(is_late || began.elapsed() < deadline, "the client notices before its deadline");
        fake.check();
    }
    let mut client = connect(&server);
    fill(&mut client, 60);
    check_all(&mut client, 60);
}

/// The answer to a message may come before the completion of the message itself. No client waits
/// for an answer that it already has, and none overwrites a message that the device may still be
/// sending.
fn answers_that_come_first(fake: &Fake) {
    const KEYS: u32 = 2000;
    let server = serve(20_000);
    for wait in [Wait::Poll, Wait::Block] {
        let mut options = options();
        options.verbs.wait = wait;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        for polls in [1, 10, 1000, 100_000] {
            fake.set("FAKE_DELAY_SENDS", polls);
            let before = client.queue_counts().unwrap().messages;
            fill(&mut client, KEYS);
            let messages = client.queue_counts().unwrap().messages - before;
            assert!(messages > 16, "{messages} messages: more than may be under way");
            for n in 0..20 {
                client.put(&ours(n).0, &ours(n).1).unwrap();
            }
            fake.set("FAKE_DELAY_SENDS", 0);
        }
        check_all(&mut client, KEYS);
        assert_eq!(client.stats().reattached, 0);
    }
}

/// The length of a message; the length of the longest reply, its head included; how many of these
/// fit into one message.
const MESSAGE: usize = 4096;

const REPLY: usize = 16 + size_of::<oneread::stats::ServerStats>();

const FRAMES: usize = MESSAGE / REPLY;

/// A message holds as many requests as have room for their longest replies in one message.
fn answers_that_fit_into_a_message(_: &Fake) {
    let frames = FRAMES;
    let server = serve(2000);
    let mut client = connect(&server);
    for (pairs, messages) in [(1, 1), (frames, 1), (frames + 1, 2), (3 * frames, 3), (3 * frames + 1, 4)] {
        let pairs: Vec<_> = (0..pairs as u32).map(|n| (key(n, 16), b"value")).collect();
        let counts =
            |client: &mut Client| [client.queue_counts().unwrap().messages, client.stats().requests.message];
        let [messages_before, requests_before] = counts(&mut client);
        assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
        let [messages_after, requests_after] = counts(&mut client);
        assert_eq!(messages_after - messages_before, messages, "{} pairs", pairs.len());
        assert_eq!(requests_after - requests_before, pairs.len() as u64);
    }
}

/// A client believes that messages are longer than they are. The server hangs up on it when an
/// answer does not fit, or when the message itself does not. Nobody else is affected.
fn answers_that_do_not_fit(fake: &Fake) {
    // A refusal takes 48 bytes, a put of such a pair 20.
    const PAIRS: usize = MESSAGE / 48;
    let server = serve(64);
    let pairs = |n: usize| (0..n as u16).map(|n| (n.to_le_bytes(), [])).collect::<Vec<_>>();
    // A key in each slot. Some keys find no place any more before that.
    let mut others = (0u32..).map(|n| [&b"full"[..], &n.to_le_bytes()].concat());
    while server.index().len() < server.index().geometry().main_slots() {
        let _ = server.index().put(&others.next().expect("one more"), b"", PutMode::Upsert);
    }
    for (key, value) in pairs(MESSAGE / 20 + 1) {
        let refused = server.index().put(&key, &value, PutMode::Upsert);
        assert!(matches!(refused, Err(PutError::Full { .. })), "{refused:?}");
    }
    let mut other = connect(&server);
    for (asked, fits) in [(PAIRS, true), (PAIRS + 1, false), (MESSAGE / 20, false), (MESSAGE / 20 + 1, false)]
    {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "message_bytes", &(asked * REPLY).to_string())
        });
        let mut client = Client::connect_with(&address, options()).unwrap();
        match client.put_many(&pairs(asked)) {
            Ok(answers) if fits => {
                assert!(answers.iter().all(|answer| matches!(answer, Err(PutError::Full { .. }))));
            }
            Err(MutateError::ServerGone { .. }) if !fits => {}
            answer => panic!("{asked} puts in one message: {answer:?}"),
        }
        assert_eq!(client.queue_counts().unwrap().messages, 1, "{asked} puts");
        drop(client);
        wait_for("the server to notice", || (server.stats().clients == 1).then_some(()));
        for (key, _) in pairs(10) {
            assert_eq!(other.get_two_sided(&key).unwrap(), None);
        }
        fake.check();
    }
}

/// A client may have eight messages unanswered. The server hangs up on one that sends more. The
/// receives that its messages took are posted again, whether its messages came before that or
/// after.
fn messages_beyond_the_bound(fake: &Fake) {
    const BOUND: usize = 8;
    let one = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 4000, 16, 46, 7)).workers(1);
    let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
    // Each client asks for `messages` messages while the server sees none of them. `sent` of them are
    // sent, and not one more.
    let ask = |clients: &mut [&mut Client], messages: usize, sent: usize| {
        let pairs: Vec<_> = (0..(messages * FRAMES) as u32).map(ours).collect();
        let before = fake.count("sends");
        fake.set("FAKE_HOLD_SHARED", 1);
        std::thread::scope(|scope| {
            let asked: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    let pairs = &pairs;
                    scope.spawn(move || {
                        client.put_many(pairs).map(|answers| answers.iter().all(Result::is_ok))
                    })
                })
                .collect();
            let sent_so_far = || fake.count("sends") - before;
            let is_sent = || (sent_so_far() >= sent as i64 || fake.count("rnr_waits") > 0).then_some(());
            wait_for("the messages", is_sent);
            // A client that could send another one would poll a few times before that.
            let polls = fake.count("polls");
            wait_for("clients that wait", || (fake.count("polls") > polls + 1000).then_some(()));
            let sent_now = sent_so_far();
            fake.set("FAKE_HOLD_SHARED", 0);
            assert_eq!((sent_now, fake.count("rnr_waits")), (sent as i64, 0));
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut one = connect(&server);
    let is_all_right = |answers: &[Result<bool, _>]| answers.iter().all(|answer| matches!(answer, Ok(true)));
    assert!(is_all_right(&ask(&mut [&mut one], BOUND + 1, BOUND)));
    let mut other = connect(&server);
    // (A batch has room for 14 messages.)
    for messages in [BOUND + 1, 14] {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "messages", &messages.to_string())
        });
        let mut greedy = Client::connect_with(&address, options()).unwrap();
        let answers = ask(&mut [&mut greedy], messages, messages);
        assert!(matches!(answers[..], [Err(MutateError::ServerGone { .. })]), "{messages}: {answers:?}");
        drop(greedy);
        wait_for("it to be gone", || (server.stats().clients == 2).then_some(()));
        // There are as many receives as three clients may have messages.
        let mut third = connect(&server);
        let answers = ask(&mut [&mut one, &mut other, &mut third], BOUND, 3 * BOUND);
        assert!(is_all_right(&answers), "{answers:?}");
        fake.check();
        drop(third);
        wait_for("it to be gone", || (server.stats().clients == 2).then_some(()));
    }
}

/// A server may answer and hang up at once, when it stops. A client that finds both has its answer.
fn answers_before_the_hang_up(fake: &Fake) {
    let server = serve(128);
    let verbs = options().verbs.wait(Wait::Block);
    for n in 0..20 {
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let mut client = Client::connect_with(&address, options().verbs(verbs.clone())).unwrap();
        let [mut to_client, _to_server] = streams.recv().unwrap();
        fake.set("FAKE_HANG_UP", to_client.as_raw_fd().into());
        assert_eq!(client.put(&ours(n).0, b"value").unwrap(), PutOutcome::Inserted);
        assert_eq!(to_client.read(&mut [0]).unwrap(), 0, "the connection is shut down");
        drop(client);
    }
}

/// All of the server's slots for answers wait for the completions of their SENDs. An answer that
/// finds none is sent when the first of them has come.
fn answers_that_wait_for_a_slot(fake: &Fake) {
    let polling = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    let server = Server::start(polling.wait(Wait::Poll).token(Token::new(TOKEN))).unwrap();
    // This client arms its queue, which ends the delay on its side only.
    let verbs = options().verbs.wait(Wait::Block);
    let mut client = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fake.set("FAKE_DELAY_SENDS", 100_000);
    for n in 0..30 {
        client.put(&ours(n).0, &ours(n).1).unwrap();
    }
    fake.set("FAKE_DELAY_SENDS", 0);
    assert_eq!(client.stats().reattached, 0);
}

/// A completion that comes just before a queue is armed raises no event. Neither side sleeps over
/// it: the client until its deadline, a worker for a second each time.
fn completions_without_an_event(fake: &Fake) {
    let server = serve(2000);
    let verbs = options().verbs.wait(Wait::Block);
    let mut client = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fake.set("FAKE_LATE_RECEIVES", 1);
    let began = Instant::now();
    for n in 0..5 * SOON.as_secs() as u32 {
        client.put(&ours(n).0, &ours(n).1).unwrap();
        assert!(began.elapsed() < SOON, "{n} puts");
    }
    fake.set("FAKE_LATE_RECEIVES", 0);
    assert_eq!(client.stats().reattached, 0);
}

/// A queue pair that has failed may still take a receive from the queue that it shares with others.
/// No receive is lost, however many clients come and go.
fn receives_that_come_back_late(fake: &Fake) {
    for wait in [Wait::Block, Wait::Poll] {
        let table = config(default_preset(), 2000, 16, 46, 7);
        let at = at("127.0.0.1:0");
        let one = ServerConfig::new(at, table).workers(1).wait(wait);
        let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
        fake.set("FAKE_LATE_FLUSH", 50);
        let before = fake.count("flushes");
        for n in 0..40 {
            let mut client = connect(&server);
            client.put(&ours(n).0, &ours(n).1).unwrap();
        }
        // The server learns of it by the device's event, or after some time.
        wait_for("all to be gone", || (server.stats().clients == 0).then_some(()));
        let flushed = fake.count("flushes") - before;
        assert!(flushed >= 40, "{wait:?}: each of them took a receive along: {flushed}");
        fake.set("FAKE_LATE_FLUSH", 0);
        let mut client = connect(&server);
        fill(&mut client, 1000);
        check_all(&mut client, 1000);
        drop(client);
        wait_for("the last to be gone", || (server.stats().clients == 0).then_some(()));
    }
}

/// A client that leaves has messages that its worker has not polled yet, more than one poll brings.
/// All of their receives come back. While they are out, a newcomer has receives of its own.
fn receives_of_clients_that_leave(fake: &Fake) {
    const BOUND: usize = 8;
    const STAYING: usize = 4;
    // For so long a worker waits until the device says which receive was the last.
    const EVENT_WITHIN: Duration = Duration::from_millis(100);
    let pairs: Vec<_> = (0..(BOUND * FRAMES) as u32).map(ours).collect();
    let put = |client: &mut Client| client.put_many(&pairs).map(|all| all.iter().all(Result::is_ok));
    let wait_for_messages = |clients: usize, before: i64| {
        let are_sent = || fake.count("sends") - before >= (clients * BOUND) as i64;
        wait_for("the messages", || (are_sent() || fake.count("rnr_waits") > 0).then_some(()));
    };
    // Returns whether the device was quick enough.
    let leave = |with_newcomer: bool| {
        let table = config(default_preset(), 4000, 16, 46, 7);
        let one = ServerConfig::new(at("127.0.0.1:0"), table).workers(1).wait(Wait::Block);
        let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
        let mut staying: Vec<_> = (0..STAYING).map(|_| connect(&server)).collect();
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let mut leaver = Client::connect_with(&address, options()).unwrap();
        let [to_client, to_server] = streams.recv().unwrap();
        let (sends, failures) = (fake.count("sends"), fake.count("failures"));
        fake.set("FAKE_HOLD_SHARED", 1);
        let (waits, took, answers) = std::thread::scope(|scope| {
            let mut asked: Vec<_> =
                staying.iter_mut().map(|client| scope.spawn(move || put(client))).collect();
            wait_for_messages(STAYING, sends);
            let left = scope.spawn(move || put(&mut leaver));
            wait_for_messages(STAYING + 1, sends);
            let began = Instant::now();
            to_server.shutdown(Shutdown::Both).unwrap();
            wait_for("the server", || (fake.count("failures") > failures).then_some(()));
            if with_newcomer {
                let mut newcomer = connect(&server);
                asked.push(scope.spawn(move || put(&mut newcomer)));
                wait_for_messages(STAYING + 2, sends);
            }
            let waits = fake.count("rnr_waits");
            fake.set("FAKE_HOLD_SHARED", -1);
            let took = began.elapsed();
            to_client.shutdown(Shutdown::Both).unwrap();
            left.join().unwrap().expect_err("it has left");
            (waits, took, asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>())
        });
        if took >= EVENT_WITHIN {
            // The worker did not wait for the receives.
            fake.set("counts", 0);
            return false;
        }
        assert!(answers.iter().all(|answer| matches!(answer, Ok(true))), "{answers:?}");
        assert_eq!(waits, 0, "the newcomer's messages find receives");
        wait_for("all to be gone", || (server.stats().clients == STAYING as u64).then_some(()));
        let mut fifth = connect(&server);
        let sends = fake.count("sends");
        fake.set("FAKE_HOLD_SHARED", 1);
        let (waits, answers) = std::thread::scope(|scope| {
            let all = staying.iter_mut().chain([&mut fifth]);
            let asked: Vec<_> = all.map(|client| scope.spawn(move || put(client))).collect();
            wait_for_messages(STAYING + 1, sends);
            let waits = fake.count("rnr_waits");
            fake.set("FAKE_HOLD_SHARED", 0);
            (waits, asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>())
        });
        assert!(answers.iter().all(|answer| matches!(answer, Ok(true))), "{answers:?}");
        assert_eq!(waits, 0, "all receives have come back");
        fake.check();
        true
    };
    for with_newcomer in [false, true] {
        wait_for("a device that is quick enough", || leave(with_newcomer).then_some(()));
    }
}

/// The server answers twice, or executes twice what was asked once. Only that connection is given
/// up.
fn duplicate_answers(fake: &Fake) {
    let server = serve(2000);
    let mut client = connect(&server);
    let mut given_up = 0;
    // A message arrives twice, or its answer does.
    for nth in 1..=8 {
        fake.set("FAKE_TWICE_NTH", nth);
        for n in 0..20 {
            let (key, value) = ours(n);
            match client.put(&key, &value) {
                Ok(_) => {}
                Err(MutateError::ServerGone { source, .. }) => {
                    assert!(source.to_string().contains("nothing that was asked"), "{source}");
                    given_up += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(client.get(&key).unwrap(), Some(value), "key {n}");
        }
        fake.set("FAKE_TWICE_NTH", 0);
        fill(&mut client, 500);
        check_all(&mut client, 500);
    }
    assert!((1..=8).contains(&given_up), "{given_up} times given up");
}

/// A reply with another number is not taken for the expected one. The server may misnumber it, or
/// the request may have arrived under another number. By messages, only that connection is given
/// up. HERD's requests are repeated.
fn misnumbered_answers(fake: &Fake) {
    let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    for options in ways() {
        let is_herd = options.requests != RequestPath::Message;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        client.put(b"there", b"value").unwrap();
        for batch in [1u32, 2, 300] {
            for nth in [1, 2] {
                // The first SEND is the request, if the request is a SEND. The second is its reply.
                fake.set("FAKE_RENUMBER_NTH", nth);
                let pairs: Vec<_> = (0..batch).map(ours).collect();
                match client.put_many(&pairs) {
                    Ok(answers) => {
                        assert!(is_herd, "an answer to something else");
                        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                    }
                    Err(MutateError::ServerGone { source, .. }) if !is_herd => {
                        let LinkError::Verbs(VerbsError::Wire(error)) = source else { panic!("{source}") };
                        assert!(matches!(error, WireError::Order { .. }), "{error}");
                    }
                    Err(error) => panic!("{error:?}"),
                }
                fake.set("FAKE_RENUMBER_NTH", 0);
                assert_eq!(client.get_two_sided(b"there").unwrap().as_deref(), Some(&b"value"[..]));
                assert_eq!(client.get_two_sided(b"not there").unwrap(), None);
            }
        }
        if is_herd {
            // (A batch of one has one SEND.)
            #[cfg(feature = "herd")]
            assert!(client.queue_counts().unwrap().repeats >= 5, "{:?}", client.queue_counts());
        }
    }
}

/// Late answers to changes still arrive, several of them one after the other. None is taken for the
/// answer to the next request, and the connection stays good.
fn late_answers(_: &Fake) {
    for options in ways() {
        let table = config(default_preset(), 64, 16, 46, 7);
        let server = serve_ways(at("127.0.0.1:0"), table.grace(Duration::from_millis(50)));
        let hasty = options.clone().deadline(Duration::from_millis(20));
        let connect = || Client::connect_with(server.address(), hasty.clone()).ok();
        let mut client = wait_for("a connection within 20 ms", connect);
        server.index().put(b"there", b"value", PutMode::Upsert).unwrap();
        let (mut late, mut oldest, mut next) = (0, 0, 0);
        let began = Instant::now();
        while late < 4 {
            assert!(began.elapsed() < SOON, "{options:?}: {late} were late");
            // Where keys come and go, slots wait until traces are removed. A put that needs such a
            // slot waits, too.
            for (n, is_late) in (next..).zip((0..).map(|n| n % 2 == 1)).take(12) {
                match client.put(&ours(n).0, &ours(n).1) {
                    Ok(_) => {}
                    Err(MutateError::Full { .. }) => {}
                    // By messages, a connection's requests are answered in order. After a late
                    // answer, the next ones are late, too.
                    Err(MutateError::Deadline { .. }) => late += 1,
                    Err(error) => panic!("{options:?}: {error}"),
                }
                let (key, value) =
                    if is_late { (&b"there"[..], Some(&b"value"[..])) } else { (&b"not"[..], None) };
                match client.get_two_sided(key) {
                    Ok(found) => assert_eq!(found.as_deref(), value, "{options:?}"),
                    Err(GetError::Deadline { .. }) => late += 1,
                    Err(error) => panic!("{options:?}: {error}"),
                }
            }
            next += 12;
            while server.index().len() > 50 {
                server.index().remove(&ours(oldest).0).unwrap();
                oldest += 1;
            }
        }
        // (Puts that are still under way are executed before this one.)
        wait_for("an answer in time", || client.put(b"there", b"last").ok());
        let found = wait_for("an answer in time", || client.get_two_sided(b"there").ok());
        assert_eq!(found.as_deref(), Some(&b"last"[..]), "{options:?}");
        assert_eq!(client.stats().reattached, 0, "{options:?}");
    }
}

/// A message whose answer waits for a slot is unanswered, too: a client may have eight of these, and is hung
/// up on if it sends more. The server keeps no answers without end.
fn answers_beyond_the_bound(fake: &Fake) {
    const BOUND: u32 = 8;
    let polling = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 4000, 16, 46, 7)).workers(1);
    let server = Server::start(polling.wait(Wait::Poll).token(Token::new(TOKEN))).unwrap();
    let mut next = 0;
    for messages in [BOUND, BOUND + 1, 14] {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "messages", &messages.to_string())
        });
        // This client arms its queue, which ends the delay on its side only.
        let verbs = options().verbs.wait(Wait::Block);
        let hasty = options().verbs(verbs).deadline(Duration::from_millis(50));
        let mut client =
            wait_for("a connection within 50 ms", || Client::connect_with(&address, hasty.clone()).ok());
        wait_for("those before to be gone", || (server.stats().clients == 1).then_some(()));
        let before = server.index().counts().inserts;
        let done = || server.index().counts().inserts - before;
        fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
        // Asks for something more. Returns how many messages have been sent.
        let mut put = || {
            next += 1;
            let answer = client.put(&ours(next).0, &ours(next).1);
            (answer, client.queue_counts().unwrap().messages)
        };
        // The answers to the first eight take all slots, and those to the others wait for one.
        let mut sent = 0;
        while sent < 2 * u64::from(BOUND) {
            let (answer, now) = put();
            let may_come = now <= BOUND.into() && answer.is_ok();
            assert!(may_come || matches!(answer, Err(MutateError::Deadline { .. })), "{now}: {answer:?}");
            wait_for("the put", || (done() == now).then_some(()));
            sent = now;
        }
        let is_greedy = messages > BOUND;
        if is_greedy {
            wait_for("one message more", || (put().1 > sent).then_some(()));
        } else {
            let (answer, now) = put();
            assert!(matches!(answer, Err(MutateError::Deadline { .. })) && now == sent, "{answer:?}");
        }
        if is_greedy {
            let is_over = || server.stats().clients == 0 || done() > 2 * u64::from(BOUND);
            wait_for("the server to hang up", || is_over().then_some(()));
        }
        assert_eq!((server.stats().clients, done()), (u64::from(!is_greedy), 2 * u64::from(BOUND)));
        fake.set("FAKE_DELAY_SENDS", 0);
        if !is_greedy {
            wait_for("an answer", || put().0.ok());
            assert_eq!(client.stats().reattached, 0);
        }
    }
    fill(&mut connect(&server), 300);
}

/// Over verbs, too, a scan shows each key once, and a follower hears of each change: in replies as long as a message.
fn scans_and_followers(_: &Fake) {
    const KEYS: u32 = 2000;
    let server = serve(20_000);
    let mut client = connect(&server);
    fill(&mut client, KEYS / 2);
    let options = FeedOptions::new().from(FeedFrom::Keys).values(true);
    let mut changes = client.changes(options).unwrap();
    fill(&mut client, KEYS);
    let right: BTreeMap<_, _> = (0..KEYS).map(ours).collect();
    let (mut copy, mut shown) = (BTreeMap::new(), BTreeMap::new());
    while let Some(item) = changes.next(Duration::ZERO).unwrap() {
        match item {
            FeedItem::Key { key, value, .. }
            | FeedItem::Came { key, value, .. }
            | FeedItem::Replaced { key, value, .. } => drop(copy.insert(key, value.unwrap())),
            FeedItem::Joined => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(copy == right, "{} of {} keys", copy.len(), right.len());
    let before = client.queue_counts().unwrap().messages;
    for found in client.scan().values(true) {
        let found = found.unwrap();
        assert_eq!(shown.insert(found.key, found.value.unwrap()), None, "shown twice");
    }
    assert!(shown == right, "{} of {} keys", shown.len(), right.len());
    assert!(client.queue_counts().unwrap().messages - before > 10);
}

/// Over verbs, too, who follows and has nothing to hear leaves a request with the server, and hears of a change by its reply:
/// over a connection of the handle's own, or beside connections that handles share, which it holds up for nobody. The next
/// request takes it back.
fn followers_that_wait(_: &Fake) {
    for wait in [Wait::Poll, Wait::Block] {
        for pairs in [None, Some(1)] {
            let server = serve(20_000);
            let verbs = options().verbs.wait(wait).pairs(pairs);
            let address = server.address().clone();
            let mut client = Client::connect_with(&address, options().verbs(verbs)).unwrap();
            let mut changes = client.changes(FeedOptions::new()).unwrap();
            let parked = |count| wait_for("requests that wait", || (server.parked() == count).then_some(()));
            for number in 1..=3u64 {
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| changes.next(Duration::from_secs(60)).unwrap());
                    parked(1);
                    client.put(&number.to_le_bytes(), b"value").unwrap();
                    let item = waiting.join().unwrap();
                    assert!(
                        matches!(item, Some(FeedItem::Came { number: it, .. }) if it == number),
                        "{item:?}"
                    );
                });
            }
            let rest = |changes: &mut oneread::ChangeFeed| {
                assert_eq!(changes.next(Duration::from_millis(20)).unwrap(), None);
                parked(1);
            };
            rest(&mut changes);
            assert_eq!((changes.next(Duration::ZERO).unwrap(), server.parked()), (None, 0), "it was hurried");
            rest(&mut changes);
            server.index().put(b"its own", b"value", oneread::PutMode::Insert).unwrap();
            let item = changes.next(Duration::from_secs(60)).unwrap();
            assert!(matches!(item, Some(FeedItem::Came { number: 4, .. })), "{item:?}");
            rest(&mut changes);
            changes.resync().unwrap();
            let mut keys = 0;
            while let Some(FeedItem::Key { .. }) = changes.next(Duration::from_secs(60)).unwrap() {
                keys += 1;
            }
            assert_eq!(keys, 4);
            rest(&mut changes);
            drop(changes);
            parked(0);
        }
    }
}

/// Over verbs, too, a change that waits for memory holds up its client only: another one of the same worker puts and reads.
/// What is asked behind it, in the same messages, is answered after it: here, when the server has ended, not at all.
fn changes_that_wait(_: &Fake) {
    const LONG: usize = 300_000;
    let grace = Duration::from_secs(50);
    let table = config(default_preset(), 4_000, 16, LONG, 7).inline_max(40).heap_bytes(16 << 20).grace(grace);
    let config = ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN)).workers(1);
    let server = Server::start(config).unwrap();
    let (mut keys, long) = (Vec::new(), vec![7; LONG]);
    while server.index().put_with(&key(keys.len() as u32, 16), &long, PutMode::Insert.into()).is_ok() {
        keys.push(key(keys.len() as u32, 16));
    }
    keys.iter().for_each(|key| assert!(server.index().remove(key).unwrap()));
    // The block that is kept free is left.
    for key in keys {
        server.index().put(&key, &long, PutMode::Insert).unwrap();
        if server.index().heap().largest_gap_bytes < LONG as u64 {
            break;
        }
    }
    let client = || Client::connect_with(server.address(), options()).unwrap();
    let (mut waiting, mut other) = (client(), client());
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let pairs = [(b"long", &long[..]), (b"next", b"value")];
            waiting.put_many(&pairs)
        });
        wait_for("a put that waits", || (server.parked() == 1).then_some(()));
        for n in 0..100 {
            other.put(&key(n, 16), b"short").unwrap();
            assert_eq!(other.get(&key(n, 16)).unwrap().as_deref(), Some(&b"short"[..]));
        }
        assert_eq!((server.parked(), other.get(b"next").unwrap()), (1, None));
        drop(server.stop());
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(MutateError::ServerGone { .. })), "{ended:?}");
    });
}
