//! READs that fail, or take long, or are left in flight.

use super::*;

stories! {
    a_read_that_fails,
    reads_that_all_fail,
    short_posts,
    reordered_words_and_writers,
    a_callback_that_panics,
    costs_of_a_batch,
    reads_left_in_flight,
    reads_that_never_come,
    connections_are_kept_alive,
}

/// Each READ may fail with any status. The same request is then made again on a new connection.
fn a_read_that_fails(fake: &Fake) {
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    let mut failures = 0;
    for status in 1..=23 {
        for (nth, delay) in [(1, 0), (30, 3), (200, 0), (215, 0)] {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_STATUS", status);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            check_all(&mut client, 200);
            failures += 1;
            assert_eq!(client.stats().reattached, failures, "status {status} of READ {nth}");
        }
    }
    assert_eq!(fake.count("errors") - fake.count("flushes"), failures as i64 - 4, "one of them is a flush");
    // What was answered before is not answered again.
    fake.set("FAKE_FAIL_NTH_READ", 150);
    let mut answers = [0; 200];
    let told = client.get_many_with(&keys(200), |n, answer| {
        assert_eq!(answer.unwrap(), Some(&ours(n as u32).1[..]));
        answers[n] += 1;
        ControlFlow::<()>::Continue(())
    });
    assert!(told.unwrap().is_continue());
    assert_eq!((answers, client.stats().reattached), ([1; 200], failures + 1));
}

/// When all READs fail, the client gives up, and the error names the status.
fn reads_that_all_fail(fake: &Fake) {
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 100);
    let mut reattached = 0;
    let statuses = [
        (1, "IBV_WC_LOC_LEN_ERR"),
        (4, "IBV_WC_LOC_PROT_ERR"),
        (5, "IBV_WC_WR_FLUSH_ERR"),
        (10, "IBV_WC_REM_ACCESS_ERR"),
        (12, "IBV_WC_RETRY_EXC_ERR"),
        (21, "IBV_WC_GENERAL_ERR"),
        (99, "an unknown status"),
    ];
    for (number, name) in statuses {
        fake.set("FAKE_FAIL_STATUS", number);
        fake.set("FAKE_FAIL_NTH_READ", -1);
        fake.set("counts", 0);
        let began = Instant::now();
        let error = client.get(&ours(1).0).expect_err("no READ arrives");
        let GetError::ServerGone {
            source: LinkError::Verbs(VerbsError::Completion { what: "READ", status, vendor, .. }),
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!((*status, i64::from(*vendor)), (name, 0x80 + number));
        assert!(with_causes(&error).contains(name), "{error:?}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_eq!(fake.count("reads"), 9, "one, and eight more");
        client.get_many_with(&keys(100), unanswered).expect_err("no READ arrives");
        assert_eq!(fake.count("reads"), 18, "of a chain only the first is tried");
        fake.check();

        fake.set("FAKE_FAIL_NTH_READ", 0);
        check_all(&mut client, 100);
        reattached += 8 + 9 + 1;
        assert_eq!(client.stats().reattached, reattached);
    }
}

/// Only the first requests of a chain are posted. The rest, and those in flight, are made again.
fn short_posts(fake: &Fake) {
    let post = |result| match result {
        Err(GetError::ServerGone { source: LinkError::Verbs(error), .. }) => {
            assert!(matches!(error, VerbsError::Post { errno: 12 }), "{error}");
        }
        other => panic!("nothing can be posted: {other:?}"),
    };
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    for taken in [0, 1, 3, 15, 63] {
        for delay in [0, 3] {
            fake.set("FAKE_DELAY_READS", delay);
            // After a chain that is cut short, the device takes whole chains again.
            fake.set("FAKE_SHORT_POST", taken);
            let (before, reattached) = (fake.count("doorbells"), client.stats().reattached);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_for("a doorbell", || (fake.count("doorbells") > before).then_some(()));
                    fake.set("FAKE_SHORT_POST", -1);
                });
                for (n, found) in client.get_many(&keys(200)).unwrap().into_iter().enumerate() {
                    assert_eq!(found, Ok(Some(ours(n as u32).1)), "key {n}, of a chain {taken} taken");
                }
            });
            assert!(client.stats().reattached > reattached, "of a chain {taken} taken: no failure");
        }
    }
    // Now the device cuts every chain short.
    fake.set("FAKE_SHORT_POST", 3);
    post(client.get_many(&keys(200)).map(|_| ()));
    assert_eq!(client.get(&ours(1).0).unwrap(), Some(ours(1).1), "a chain of one");
    fake.set("FAKE_SHORT_POST", 0);
    post(client.get(&ours(1).0).map(|_| ()));
    // The server cannot send anything either, and survives that.
    for _ in 0..2 {
        let error = client.put(b"key", b"value").expect_err("nothing can be posted");
        let MutateError::ServerGone { source: LinkError::Verbs(error), .. } = error else {
            panic!("{error}");
        };
        assert!(matches!(error, VerbsError::Post { errno: 12 }), "{error}");
    }
    fake.set("FAKE_SHORT_POST", -1);
    client.put(b"key", b"value").unwrap();
    check_all(&mut client, 200);
}

/// No READ comes back, and nothing fails: the GET ends at its deadline, over a queue pair of its own or a shared
/// one. The next one is made over another connection. (Arming a queue ends the delay, so this client polls.)
fn reads_that_never_come(fake: &Fake) {
    const WITHIN: Duration = Duration::from_millis(150);
    let server = serve(1024);
    fill(&mut connect(&server), 30);
    for options in ways().filter(|way| way.requests == RequestPath::Message && way.verbs.wait == Wait::Poll) {
        let connect = || Client::connect_with(server.address(), options.clone().deadline(WITHIN)).ok();
        let mut client = wait_for("a connection in time", connect);
        for is_batch in [false, true] {
            fake.set("FAKE_DELAY_READS", i32::MAX.into());
            let answer = match is_batch {
                true => client.get_many_with(&keys(30), unanswered).map(|_| None),
                false => client.get(&ours(1).0),
            };
            fake.set("FAKE_DELAY_READS", 0);
            let is_late = matches!(&answer, Err(GetError::Deadline { deadline: WITHIN, address }) if address == server.address());
            assert!(is_late, "{options:?}: {answer:?}");
            let before = client.stats().reattached;
            let found = wait_for("a READ in time", || client.get(&ours(2).0).ok());
            assert_eq!(found, Some(ours(2).1), "{options:?}");
            assert!(client.stats().reattached > before, "{options:?}");
        }
    }
}

/// Both ends of a connection notice a host that has vanished, and neither waits for more to send.
fn connections_are_kept_alive(_: &Fake) {
    use rustix::net::sockopt;
    let server = serve(128);
    let mut client = connect(&server);
    fill(&mut client, 30);
    let mut ends = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if !std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")) {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        // SAFETY: nobody closes a socket meanwhile: server and client stay.
        let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let is_tcp = sockopt::socket_domain(socket) == Ok(rustix::net::AddressFamily::INET);
        if !is_tcp || sockopt::socket_acceptconn(socket) == Ok(true) {
            continue;
        }
        ends += 1;
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        assert!(sockopt::tcp_keepidle(socket).unwrap() <= Duration::from_secs(60));
        assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
    }
    assert_eq!(ends, 2);
}

/// READs take long and copy their words in random order while the table changes. All answers are
/// right.
fn reordered_words_and_writers(fake: &Fake) {
    for family in [Family::Cuckoo, Family::Hopscotch, Family::Chained] {
        let preset = presets().find(|preset| preset.layout.family == family).unwrap();
        let server = try_to_serve("127.0.0.1:0", preset, 256).unwrap();
        churn(fake, &server);
        println!("{}", preset.layout);
    }
}

/// Keys that stay, each with a growing version. The others come and go.
const STAY: u32 = 24;

const COME: std::ops::Range<u32> = STAY..260;

fn version(n: u32, version: u64) -> Vec<u8> {
    let rest = value(version << 8 | u64::from(n), version as usize % 38);
    [&version.to_le_bytes()[..], &rest].concat()
}

/// The version of a value. Fails if the value mixes versions.
fn version_of(n: u32, found: Option<Vec<u8>>) -> u64 {
    let found = found.unwrap_or_else(|| panic!("key {n} is missing"));
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(found, version(n, number), "a value that nobody wrote, of key {n}");
    number
}

fn churn(fake: &Fake, server: &Server) {
    let (begun, done): (Vec<_>, Vec<_>) = (0..STAY).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
    // With few READs at a time, each batch gives way to the writers many times.
    let mut client = Client::connect_with(server.address(), with_credits(8)).unwrap();
    for n in 0..STAY {
        client.put(&ours(n).0, &version(n, 0)).unwrap();
    }
    fake.set("FAKE_REORDER_UNITS", 1);
    fake.set("FAKE_DELAY_READS", 20);
    let over = AtomicBool::new(false);
    let write = |first: u32| {
        let mut options = options();
        options.verbs.wait = Wait::Block;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut numbers = Numbers(first.into());
        for number in 1.. {
            for n in (first..STAY).step_by(2) {
                begun[n as usize].store(number, Ordering::SeqCst);
                client.put(&ours(n).0, &version(n, number)).unwrap();
                done[n as usize].store(number, Ordering::SeqCst);
                let come =
                    COME.start + 2 * numbers.below(u64::from(COME.end - COME.start) / 2) as u32 + first;
                match numbers.below(2) {
                    // The table may be full.
                    0 => drop(client.put(&ours(come).0, &version(come, number))),
                    _ => drop(client.remove(&ours(come).0).unwrap()),
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        /// Stops the threads, also when a check fails.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&over);
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
        let all = keys(COME.end);
        let began = Instant::now();
        let mut rounds = 0;
        while began.elapsed() < Duration::from_millis(1500) || client.stats().get.retries_torn == 0 {
            assert!(began.elapsed() < SOON, "no READ is torn: {:?}", client.stats());
            let numbers = |of: &[AtomicU64]| of.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
            let oldest = numbers(&done);
            let found = client.get_many(&all).unwrap();
            let newest = numbers(&begun);
            for (n, found) in (0..).zip(found.into_iter().map(Result::unwrap)) {
                if n >= STAY {
                    found.map(|found| version_of(n, Some(found)));
                    continue;
                }
                let number = version_of(n, found);
                let may_be = oldest[n as usize]..=newest[n as usize];
                assert!(may_be.contains(&number), "key {n}: version {number}, not of {may_be:?}");
            }
            let n = rounds % STAY;
            let oldest = done[n as usize].load(Ordering::SeqCst);
            assert!(version_of(n, client.get(&ours(n).0).unwrap()) >= oldest);
            assert_eq!(client.get(&ours(1000 + n).0).unwrap(), None);
            rounds += 1;
        }
        println!("{rounds} rounds, {:?}", client.stats().get);
    });
    assert_eq!(client.stats().reattached, 0);
    fake.set("FAKE_REORDER_UNITS", 0);
    fake.set("FAKE_DELAY_READS", 0);
}

/// A callback that panics leaves READs in flight. They are not taken for the answers to the next
/// requests.
fn a_callback_that_panics(fake: &Fake) {
    std::panic::set_hook(Box::new(|_| {}));
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    for delay in [0, 200] {
        fake.set("FAKE_DELAY_READS", delay);
        for answers in [0u32, 1, 20] {
            let mut left = answers;
            let panics = |n: usize, found: BatchAnswer<'_>| {
                assert_eq!(found, Ok(Some(&ours(n as u32).1[..])));
                left = left.checked_sub(1).expect("that is enough");
                ControlFlow::<()>::Continue(())
            };
            catch_unwind(AssertUnwindSafe(|| client.get_many_with(&keys(200), panics))).expect_err("a panic");
            // Keys that the last batch did not ask for.
            for n in (0..200).rev().step_by(9) {
                assert_eq!(client.get(&ours(n).0).unwrap(), Some(ours(n).1), "key {n}");
            }
            check_all(&mut client, 200);
        }
    }
    // A client that is dropped with READs in flight.
    let panics = |_: usize, _: BatchAnswer<'_>| -> ControlFlow<()> { panic!("at once") };
    catch_unwind(AssertUnwindSafe(|| client.get_many_with(&keys(200), panics))).expect_err("a panic");
    drop(client);
    fake.check();
}

/// The work that a batch gives the device, by the device's count and by the client's.
fn costs_of_a_batch(fake: &Fake) {
    const KEYS: u32 = 1000;
    let server = serve(20_000);
    for (wait, credits, doorbells, completions) in [
        // 15 times 64 READs and 40 more. One completion in 16 is signalled, and the last of each
        // doorbell.
        (Wait::Poll, 64, 16, 15 * 4 + 3),
        (Wait::Block, 64, 16, 15 * 4 + 3),
        (Wait::Poll, 7, 143, 143),
        (Wait::Poll, 1, 1000, 1000),
    ] {
        let mut options = with_credits(credits);
        options.verbs.wait = wait;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        fill(&mut client, KEYS);
        // The server's SENDs may not have completed yet.
        std::thread::sleep(Duration::from_millis(20));
        let before = client.queue_counts().unwrap();
        fake.set("counts", 0);
        for (n, found) in client.get_many(&keys(KEYS)).unwrap().into_iter().enumerate() {
            assert_eq!(found, Ok(Some(ours(n as u32).1)));
        }
        let counted = ["doorbells", "reads", "completions", "wrs"].map(|name| fake.count(name));
        assert_eq!(
            counted,
            [doorbells, KEYS.into(), completions, KEYS.into()],
            "{wait:?}, {credits} credits"
        );
        let after = client.queue_counts().unwrap();
        let asked = [
            after.doorbells - before.doorbells,
            after.reads - before.reads,
            after.completions - before.completions,
        ];
        assert_eq!(asked.map(|n| n as i64), [doorbells, KEYS.into(), completions]);
        assert_eq!(after.messages, before.messages, "the server is not asked");
        let read = client.stats().read;
        assert_eq!((read.reads as i64, read.doorbells as i64), (KEYS.into(), doorbells));
    }
}

/// A batch that ends in an error leaves READs in flight. The client waits for them, since the
/// connection is good. Their data is not taken for the answers to the next requests.
fn reads_left_in_flight(fake: &Fake) {
    for pairs in [None, Some(1)] {
        // No pass is ever fast enough to prove that a key is absent. A slot of one line proves
        // itself.
        let table = config(default_preset(), 1024, 16, 32, 7);
        let server = serve_ways(at("127.0.0.1:0"), table.grace(Duration::from_nanos(1)));
        let verbs = options().verbs.pairs(pairs).credits(64);
        let limits = options().limits.retries_max(3);
        let mut client =
            Client::connect_with(server.address(), options().verbs(verbs).limits(limits)).unwrap();
        let pairs: Vec<_> = (0..100).map(|n| (key(n, 16), value(u64::from(n), 32))).collect();
        client
            .put_many(&pairs)
            .unwrap()
            .into_iter()
            .for_each(|answer| assert_eq!(answer, Ok(PutOutcome::Inserted)));
        for delay in [0, 200] {
            fake.set("FAKE_DELAY_READS", delay);
            for _ in 0..3 {
                let absent: Vec<_> = (1_000..1_100).map(|n| key(n, 16)).collect();
                match client.get_many_with(&absent, unanswered) {
                    Err(GetError::Contended { retries: 3, last: Retry::Late }) => {}
                    other => panic!("{other:?}"),
                }
                for (key, value) in &pairs {
                    assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
                }
            }
        }
        assert_eq!(client.stats().reattached, 0);
        fake.set("FAKE_DELAY_READS", 0);
    }
}
