//! Values that do not fit their slots.

use super::*;

stories! {
    costs_of_long_values,
    long_values_that_fail,
    long_values_without_memory,
    long_values_that_are_replaced,
    heaps_that_may_not_be_registered,
}

/// Serves long values: number `n` has `lengths[n]` bytes.
fn serve_long(lengths: &[usize], grace: Duration) -> Server {
    let table =
        config(default_preset(), 256, 16, 300_000, 7).inline_max(40).heap_bytes(16 << 20).grace(grace);
    let server = Server::start(ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN))).unwrap();
    for (n, &length) in (0..).zip(lengths) {
        server.index().put(&key(n, 16), &value(n.into(), length), PutMode::Insert).unwrap();
    }
    server
}

/// A long value is one more READ, of its bytes and no others. Of a device that carries less at a time, it is
/// several, with one doorbell as far as there are credits.
fn costs_of_long_values(fake: &Fake) {
    let lengths = [20, 100, 4_000, 65_536, 65_537, 299_999];
    let server = serve_long(&lengths, CALM);
    for (message_max, credits) in [(1 << 30, 64), (65_536, 64), (4096, 64), (65_536, 2), (4096, 1)] {
        fake.set("FAKE_MAX_MESSAGE", message_max);
        for options in both_paths(credits) {
            let mut client = Client::connect_with(server.address(), options).unwrap();
            let mut window = 0;
            for (n, &length) in (0..).zip(&lengths) {
                // The server's SENDs are far away: nobody has asked it for anything.
                fake.set("counts", 0);
                let (before, asked_before) = (client.stats().read, client.queue_counts().unwrap());
                assert_eq!(client.get(&key(n, 16)).unwrap(), Some(value(n.into(), length)), "{length}");
                let (after, asked) = (client.stats().read, client.queue_counts().unwrap());
                let counted = ["reads", "doorbells", "bytes"].map(|name| fake.count(name));
                if n == 0 {
                    assert_eq!((counted[0], counted[1]), (1, 1), "it is in its slot");
                    window = counted[2];
                    continue;
                }
                let pieces = (length as i64 + message_max - 1) / message_max;
                let doorbells = (pieces + credits as i64 - 1) / credits as i64;
                let bytes = window + length as i64;
                assert_eq!(counted, [1 + pieces, 1 + doorbells, bytes], "{length}, {message_max}, {credits}");
                assert_eq!((asked.reads - asked_before.reads) as i64, 1 + pieces);
                assert_eq!((after.reads - before.reads, after.bytes - before.bytes), (2, bytes as u64));
            }
            let keys: Vec<_> = (0..8).map(|n| key(n, 16)).collect();
            let before = client.stats().read;
            fake.set("counts", 0);
            for (n, found) in (0..).zip(client.get_many(&keys).unwrap()) {
                let expected = lengths.get(n as usize).map(|&length| value(n, length));
                assert_eq!(found.unwrap(), expected, "{n}");
            }
            assert_eq!(client.stats().reattached, 0);
            if (message_max, credits) == (1 << 30, 64) {
                // Windows, the values up to 256 KiB together, the longest alone.
                let after = client.stats().read;
                assert_eq!((fake.count("doorbells"), after.doorbells - before.doorbells), (3, 3));
                assert_eq!((fake.count("reads"), after.reads - before.reads), (8 + 5, 8 + 5));
            }
        }
    }
}

/// The READ of a long value, or a part of it, fails. The value is read again over a new connection.
fn long_values_that_fail(fake: &Fake) {
    fake.set("FAKE_MAX_MESSAGE", 65_536);
    let server = serve_long(&[300_000], CALM);
    for options in both_paths(3) {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut failures = 0;
        for (nth, delay) in (1..=6).flat_map(|nth| [(nth, 0), (nth, 3)]) {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 300_000)), "{nth}");
            failures += 1;
            assert_eq!(client.stats().reattached, failures, "READ {nth}");
        }
        fake.set("FAKE_DELAY_READS", 0);
    }
}

/// There is no memory for a long value to land in: the error names the limit, and all else goes on.
fn long_values_without_memory(fake: &Fake) {
    const ENOMEM: i32 = 12;
    let server = serve_long(&[20, 300_000, 1_000], CALM);
    for options in both_paths(64) {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut get = |n: u32| client.get(&key(n, 16));
        assert_eq!(get(2).unwrap(), Some(value(2, 1_000)));
        fake.set("FAKE_REG_ERRNO", ENOMEM.into());
        match get(1) {
            Err(GetError::Connect(ConnectError::Verbs(error))) => {
                assert!(
                    matches!(error, SetupError::Register { bytes: 524_288, errno: ENOMEM, .. }),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(get(0).unwrap(), Some(value(0, 20)));
        fake.set("FAKE_REG_ERRNO", 0);
        assert_eq!(get(2).unwrap(), Some(value(2, 1_000)));
        assert_eq!(get(1).unwrap(), Some(value(1, 300_000)));
        assert_eq!(client.stats().reattached, 0);
    }
}

/// READs take longer than a value is certain to be kept, and the value is replaced all the while: the error
/// has a name, and no answer is wrong.
fn long_values_that_are_replaced(fake: &Fake) {
    let server = serve_long(&[5_000], Duration::from_millis(20));
    // A value names its version.
    let of = |version: u64| {
        let value = value(version, 1_000 + version as usize % 7_000);
        [&version.to_le_bytes()[..], &value].concat()
    };
    for options in both_paths(64) {
        let limits = options.limits.retries_max(0);
        let mut client = Client::connect_with(server.address(), options.limits(limits)).unwrap();
        let stop = AtomicBool::new(false);
        server.index().put(&key(0, 16), &of(0), PutMode::Upsert).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let put = server.index().put(&key(0, 16), &of(version), PutMode::Upsert);
                    assert!(matches!(put, Ok(_) | Err(PutError::HeapFull { .. })), "{put:?}");
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let _stopping = Stop(&stop);
            // Two READs are to take longer than the grace time, and one of them less.
            let mut delay = 10_000;
            wait_for("a value that is replaced while it is read", || {
                fake.set("FAKE_DELAY_READS", delay);
                match client.get(&key(0, 16)) {
                    Err(GetError::Replaced { len, times }) => {
                        assert!((1_008..8_008).contains(&len) && times == 1, "{len}, {times}");
                        return Some(());
                    }
                    Ok(Some(found)) => {
                        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
                        assert!(found == of(version), "no value that it had");
                        delay += 1 + delay / 4;
                    }
                    Err(GetError::Contended { .. }) => delay -= delay / 4,
                    other => panic!("{other:?}"),
                }
                None
            });
            fake.set("FAKE_DELAY_READS", 0);
        });
        assert!(client.stats().get.retries_replaced > 0);
        assert_eq!(server.index().put(&key(0, 16), b"short", PutMode::Update), Ok(PutOutcome::Updated));
        assert_eq!(client.get(&key(0, 16)).unwrap().as_deref(), Some(&b"short"[..]));
    }
}

/// In a table that grows, memory for long values is registered before they are put. Where it cannot be, the put
/// says so, and all else goes on.
fn heaps_that_may_not_be_registered(fake: &Fake) {
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 300_000, 7).size(size).inline_max(40).heap_bytes(16 << 20);
    let config = ServerConfig::new(at("127.0.0.1:0"), table.grace(CALM)).token(Token::new(TOKEN));
    let server = Server::start(config).unwrap();
    let mut clients = both_paths(64).map(|options| Client::connect_with(server.address(), options).unwrap());
    let put = |n: u32, length| server.index().put(&key(n, 16), &value(n.into(), length), PutMode::Insert);
    fake.set("FAKE_REG_ERRNO", 12);
    assert_eq!(put(0, 1_000), Err(PutError::HeapMemory { given: 1_000 }));
    assert_eq!(put(1, 20), Ok(PutOutcome::Inserted));
    fake.set("FAKE_REG_ERRNO", 0);
    assert_eq!(put(0, 1_000), Ok(PutOutcome::Inserted));
    for client in &mut clients {
        assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        // The entry of the directory, the keys of both chunks, the window and the value.
        let reads = client.queue_counts().unwrap().reads;
        assert_eq!(client.get(&key(1, 16)).unwrap(), Some(value(1, 20)));
        assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        assert_eq!((reads, client.queue_counts().unwrap().reads), (5, 5 + 1 + 2), "keys are READ once");
        assert_eq!(client.stats().reattached, 0);
    }
}
