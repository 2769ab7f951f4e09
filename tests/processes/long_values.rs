//! Clients put, swap and get values that fit no slot and no frame, whatever way requests take.

use crate::common::*;
use oneread::internals::layout::extent::{Expected, Reference, extent_bytes};
use oneread::internals::wire::{self, FRAME_VALUE_MAX, PROTOCOL_VERSION, Reply, Request};
use oneread::{
    Address, Client, Config, GetError, MutateError, PutMode, PutOutcome, RequestPath, Server, ServerConfig,
    SwapOutcome, TableSize, error::PutError, stats::HeapCounts,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

over_shm_and_tcp! {
    values_of_any_length_by_every_path,
    mixed_batches,
    every_value_read_is_whole,
    swaps,
    swaps_lose_nothing,
    a_full_heap_changes_nothing,
    puts_wait_for_memory,
    a_killed_client_leaves_the_old_value,
}

const MIB: usize = 1 << 20;

fn config(heap_bytes: usize, value_max: usize) -> Config {
    Config::new()
        .size(TableSize::Slots(256))
        .key_max(16)
        .value_max(value_max)
        .inline_max(40)
        .heap_bytes(heap_bytes as u64)
        .grace(Duration::from_micros(100))
}

fn serve(place: &Place, heap_bytes: usize, value_max: usize) -> Server {
    start(ServerConfig::new(place.address.clone(), config(heap_bytes, value_max)))
}

fn client(place: &Place, path: RequestPath) -> Client {
    Client::connect_with(&place.address, patient().requests(path)).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A value of so many bytes that says its number, and each of whose bytes follows from it.
fn value(number: u64, len: usize) -> Vec<u8> {
    let mut value: Vec<u8> = (0..len as u64)
        .map(|at| {
            (number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at.wrapping_mul(0x2545_f491)) >> 17)
                as u8
        })
        .collect();
    let head = len.min(8);
    value[..head].copy_from_slice(&number.to_le_bytes()[..head]);
    value
}

/// The number of a value. Fails if the rest of it is another's.
fn number_of(got: &[u8]) -> u64 {
    let number = u64::from_le_bytes(got[..8].try_into().unwrap());
    assert!(got == value(number, got.len()), "a value of {} bytes is not whole", got.len());
    number
}

/// Waits until all memory of values but that of so many bytes is free.
fn wait_for_memory(server: &Server, live_bytes: u64) {
    wait_for("memory to be free", || {
        let HeapCounts { live_bytes: live, waiting_bytes, .. } = server.index().heap();
        (live == live_bytes && waiting_bytes == 0).then_some(())
    });
}

/// Values of each length about where slots, frames and pieces end are put by every path in every mode, and
/// come back whole and in parts.
fn values_of_any_length_by_every_path(over: Over) {
    let place = over.place();
    let server = serve(&place, 128 * MIB, 8 * MIB);
    let frame = FRAME_VALUE_MAX;
    let piece = 60 << 10;
    for path in over.paths() {
        let mut client = client(&place, path);
        let lengths = [0, 1, 40, 41, 500, frame - 1, frame, frame + 1, 2 * frame, 2 * frame + 1, piece]
            .into_iter()
            .chain([piece + 1, 2 * piece, MIB - 1, MIB, MIB + 1, 3 * MIB + 7, 8 * MIB]);
        for len in lengths {
            let (first, second, third) = (value(1, len), value(2, len), value(3, len));
            assert_eq!(client.update(b"key", &first).unwrap(), PutOutcome::Missing);
            assert_eq!(client.insert(b"key", &first).unwrap(), PutOutcome::Inserted, "{path:?}, {len}");
            assert_eq!(client.insert(b"key", &second).unwrap(), PutOutcome::Exists);
            assert!(client.get(b"key").unwrap() == Some(first), "{path:?}, {len}");
            assert_eq!(client.update(b"key", &second).unwrap(), PutOutcome::Updated);
            assert!(client.get(b"key").unwrap() == Some(second.clone()));
            assert_eq!(client.put(b"key", &third).unwrap(), PutOutcome::Updated);
            assert_eq!(client.value_len(b"key").unwrap(), Some(len));
            let mut part = Vec::new();
            for range in [0..len, len / 3..len / 2, len / 2..usize::MAX, len..len + 9] {
                assert_eq!(client.get_range(b"key", range.clone(), &mut part).unwrap(), Some(len));
                assert!(
                    part == third[range.start..range.end.min(len).max(range.start)],
                    "{range:?} of {len}"
                );
            }
            // The server itself sends what fits a frame.
            match client.get_two_sided(b"key") {
                Ok(got) => assert!(len <= frame && got == Some(third), "{len}"),
                Err(GetError::LongValue { given, max }) => {
                    assert!(len > frame && (given, max) == (len, frame));
                }
                Err(error) => panic!("{error}"),
            }
            assert!(client.remove(b"key").unwrap());
            assert_eq!((client.get(b"key").unwrap(), client.value_len(b"key").unwrap()), (None, None));
            assert_eq!(client.get_range(b"key", 0..9, &mut part).unwrap(), None);
        }
        let too_long = client.put(b"key", &vec![0; 8 * MIB + 1]).unwrap_err();
        let expected = PutError::ValueLength { given: 8 * MIB + 1, max: 8 * MIB };
        assert_eq!(too_long.rejection(), Some(expected));
        let requests = client.stats().requests;
        let has_mailbox = over == Over::Shm && path != RequestPath::Message;
        assert_eq!(requests.mailbox > 0, has_mailbox, "{requests:?}");
        // Those with values that do not stand in their slots.
        assert!(requests.message > 0, "{requests:?}");
        // What the client could not send is not counted: 5 puts and a remove for each length.
        assert_eq!((client.stats().changes.puts, client.stats().changes.removes), (5 * 18 + 1, 18));
    }
    wait_for_memory(&server, 0);
}

/// A batch of values of all lengths: each has its outcome in its place.
fn mixed_batches(over: Over) {
    let place = over.place();
    let server = serve(&place, 128 * MIB, MIB);
    for path in over.paths() {
        let mut client = client(&place, path);
        let lengths = |n: u64| [5, 300, 5_000, 70_000, 400_000][n as usize % 5] + n as usize;
        let pairs: Vec<_> = (0..60).map(|n| (key(n), value(n, lengths(n)))).collect();
        let mut asked = pairs.clone();
        asked.insert(30, (Vec::new(), vec![1; 5_000]));
        asked.insert(31, (vec![1; 17], vec![1; 5_000]));
        asked.insert(32, (vec![1; 16], vec![1; MIB + 1]));
        let outcomes = client.put_many(&asked).unwrap();
        for (n, outcome) in outcomes.iter().enumerate() {
            match n {
                30 => assert_eq!(*outcome, Err(PutError::KeyLength { given: 0, max: 16 })),
                31 => assert_eq!(*outcome, Err(PutError::KeyLength { given: 17, max: 16 })),
                32 => assert_eq!(*outcome, Err(PutError::ValueLength { given: MIB + 1, max: MIB })),
                _ => assert_eq!(*outcome, Ok(PutOutcome::Inserted), "{n}"),
            }
        }
        let keys: Vec<_> = pairs.iter().map(|(key, _)| key).collect();
        for (got, (_, put)) in client.get_many(&keys).unwrap().iter().zip(&pairs) {
            assert!(got == &Ok(Some(put.clone())));
        }
        assert!(client.insert_many(&pairs).unwrap().iter().all(|outcome| *outcome == Ok(PutOutcome::Exists)));
        assert!(
            client.update_many(&pairs).unwrap().iter().all(|outcome| *outcome == Ok(PutOutcome::Updated))
        );
        assert_eq!(client.heap().unwrap().values, 48, "{:?}", server.index().heap());
        assert!(client.remove_many(&keys).unwrap().iter().all(|there| *there == Ok(true)));
    }
    wait_for_memory(&server, 0);
}

/// Several clients replace each other's values. Every value that is read is one of those put.
fn every_value_read_is_whole(over: Over) {
    const ROUNDS: u64 = 60;
    let place = over.place();
    let _server = serve(&place, 64 * MIB, MIB);
    let (done, read) = (AtomicBool::new(false), AtomicU64::new(0));
    client(&place, RequestPath::Auto).put(b"key", &value(0, MIB)).unwrap();
    std::thread::scope(|scope| {
        let writers: Vec<_> = over
            .paths()
            .into_iter()
            .enumerate()
            .map(|(nth, path)| {
                let mut client = client(&place, path);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let number = round * 10 + nth as u64;
                        let len = if number.is_multiple_of(7) { 30_000 } else { MIB };
                        assert_eq!(client.put(b"key", &value(number, len)).unwrap(), PutOutcome::Updated);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let mut client = client(&place, RequestPath::Auto);
            let (done, read) = (&done, &read);
            scope.spawn(move || {
                let mut got = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    match client.get_into(b"key", &mut got) {
                        Ok(true) => {
                            number_of(&got);
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(false) => panic!("the key is there"),
                        Err(oneread::GetError::Replaced { .. } | oneread::GetError::Inconclusive { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(read.into_inner() > 0);
}

/// Compare-and-swap with short and long expected and new values, by every path.
fn swaps(over: Over) {
    let place = over.place();
    let server = serve(&place, 64 * MIB, MIB);
    for path in over.paths() {
        let mut client = client(&place, path);
        let values = [20, 600, 4_080, 4_081, 100_000, MIB].map(|len| value(len as u64, len));
        for old in &values {
            for new in &values {
                assert_eq!(client.compare_and_swap(b"none", old, new).unwrap(), SwapOutcome::Absent);
                client.put(b"key", old).unwrap();
                let mut other = old.clone();
                *other.last_mut().unwrap() ^= 1;
                assert_eq!(client.compare_and_swap(b"key", &other, new).unwrap(), SwapOutcome::Differs);
                assert_eq!(client.compare_and_swap(b"key", &old[1..], new).unwrap(), SwapOutcome::Differs);
                assert!(client.get(b"key").unwrap().as_ref() == Some(old));
                assert_eq!(client.compare_and_swap(b"key", old, new).unwrap(), SwapOutcome::Swapped);
                assert!(client.get(b"key").unwrap().as_ref() == Some(new), "{} {}", old.len(), new.len());
            }
            let long = vec![0; MIB + 1];
            let too_long = Some(PutError::ValueLength { given: MIB + 1, max: MIB });
            assert_eq!(client.compare_and_swap(b"key", old, &long).unwrap_err().rejection(), too_long);
            assert_eq!(client.compare_and_swap(b"key", &long, old).unwrap_err().rejection(), too_long);
        }
        assert!(client.remove(b"key").unwrap());
    }
    wait_for_memory(&server, 0);
}

/// Clients add to a counter in a long value by compare-and-swap: no addition is lost.
fn swaps_lose_nothing(over: Over) {
    const EACH: u64 = 30;
    let place = over.place();
    let _server = serve(&place, 64 * MIB, MIB);
    client(&place, RequestPath::Auto).put(b"key", &value(0, 20_000)).unwrap();
    std::thread::scope(|scope| {
        for path in over.paths() {
            let mut client = client(&place, path);
            scope.spawn(move || {
                let mut added = 0;
                while added < EACH {
                    let old = client.get(b"key").unwrap().unwrap();
                    let number = number_of(&old);
                    match client.compare_and_swap(b"key", &old, &value(number + 1, 20_000)).unwrap() {
                        SwapOutcome::Swapped => added += 1,
                        SwapOutcome::Differs => {}
                        SwapOutcome::Absent => panic!("it is there"),
                    }
                }
            });
        }
    });
    let got = client(&place, RequestPath::Auto).get(b"key").unwrap().unwrap();
    assert_eq!(number_of(&got), EACH * over.paths().len() as u64);
}

/// A heap that is full is an error by name. Nothing is changed, also not by the rest of a batch.
fn a_full_heap_changes_nothing(over: Over) {
    let place = over.place();
    let server = serve(&place, 9 * MIB, MIB);
    for path in over.paths() {
        let mut client = client(&place, path);
        let mut put = 0;
        let error = loop {
            match client.insert(&key(put), &value(put, 900_000)) {
                Ok(_) => put += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, MutateError::HeapFull { heap_bytes, .. } if heap_bytes <= 9 << 20),
            "{error}"
        );
        let live = server.index().heap().live_bytes;
        assert_eq!(live, put * extent_bytes(900_000));
        let rejected = client.put(&key(0), &value(99, MIB)).unwrap_err();
        assert!(matches!(rejected, MutateError::HeapFull { .. }), "{rejected}");
        let pairs = [(key(0), value(98, MIB)), (key(50), value(97, 30)), (key(77), value(96, MIB))];
        let outcomes = client.put_many(&pairs).unwrap();
        assert!(
            matches!(
                outcomes[..],
                [Err(PutError::HeapFull { .. }), Ok(PutOutcome::Inserted), Err(PutError::HeapFull { .. })]
            ),
            "{outcomes:?}"
        );
        for n in 0..put {
            assert!(client.get(&key(n)).unwrap() == Some(value(n, 900_000)));
        }
        assert_eq!(client.get(&key(50)).unwrap(), Some(value(97, 30)));
        assert_eq!(client.get(&key(77)).unwrap(), None);
        (0..put).chain([50]).for_each(|n| assert!(client.remove(&key(n)).unwrap()));
        wait_for_memory(&server, 0);
    }
}

/// A client asks again while memory waits for readers: the heap has room for few values, and each put
/// leaves one behind.
fn puts_wait_for_memory(over: Over) {
    let place = over.place();
    let server = serve(&place, 9 * MIB, MIB);
    for path in over.paths() {
        let mut client = client(&place, path);
        for n in 0..40 {
            client.put(&key(n % 3), &value(n, 800_000)).unwrap();
        }
        assert_eq!((client.stats().changes.puts, client.stats().changes.rejected), (40, 0), "each once");
        let pairs: Vec<_> = (0..20).map(|n| (key(n % 4), value(n, 500_000))).collect();
        let outcomes = client.put_many(&pairs).unwrap();
        let overtaken = outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
        assert_eq!((client.stats().changes.puts, client.stats().changes.rejected), (60, overtaken));
        for (n, outcome) in outcomes.into_iter().enumerate() {
            let was_overtaken = matches!(outcome, Err(PutError::HeapBusy { given: 500_000, .. }) if n < 16);
            assert!(outcome.is_ok() || was_overtaken, "{n}: {outcome:?}");
        }
        for n in 16..20 {
            assert!(client.get(&key(n % 4)).unwrap() == Some(value(n, 500_000)), "{n}");
        }
        let keys: Vec<_> = (0..4).map(key).collect();
        assert!(client.remove_many(&keys).unwrap().iter().all(|there| *there == Ok(true)));
    }
    wait_for_memory(&server, 0);
}

// ---- clients that end, and clients that are no oneread clients ---------------------------------------

/// Puts one long value after the other, by the path that its parent names, until it is killed.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn uploading_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let path = Over::Shm.paths()[told("ONEREAD_TEST_PATH").unwrap().parse::<usize>().unwrap()];
    let mut client = Client::connect_with(&address.parse().unwrap(), patient().requests(path)).unwrap();
    for number in 1.. {
        client.put(b"key", &value(number, 4 * MIB)).unwrap();
    }
}

/// A client that is killed in the middle of a value leaves the one before, and no memory is lost.
fn a_killed_client_leaves_the_old_value(over: Over) {
    let place = over.place();
    let server = serve(&place, 128 * MIB, 4 * MIB);
    let mut reader = client(&place, RequestPath::Auto);
    reader.put(b"key", &value(0, 4 * MIB)).unwrap();
    for nth in 0..over.paths().len() {
        for pause_ms in [3, 17] {
            let before = server.stats().updates;
            let address = place.address.to_string();
            let env = [("ONEREAD_TEST_ADDRESS", address), ("ONEREAD_TEST_PATH", nth.to_string())];
            let child = Process::start("long_values::uploading_child", &env);
            wait_for("its first values", || (server.stats().updates > before + 2).then_some(()));
            std::thread::sleep(Duration::from_millis(pause_ms));
            child.kill();
            wait_for("its end", || (server.stats().clients == 1).then_some(()));
            wait_for_memory(&server, extent_bytes(4 * MIB));
            number_of(&reader.get(b"key").unwrap().unwrap());
        }
    }
}

struct Raw(UnixStream, Vec<u8>);

impl Raw {
    fn greeted(address: &Address) -> Raw {
        let stream = UnixStream::connect(address.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut raw = Raw(stream, Vec::new());
        let hello = raw.ask(&[Request::Hello { version: PROTOCOL_VERSION }]);
        assert_eq!(hello, [Reply::WELCOME]);
        raw
    }

    fn ask(&mut self, requests: &[Request<'_>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(1, &mut bytes));
        self.0.write_all(&bytes).unwrap();
        let mut replies = Vec::new();
        while replies.len() < requests.len() {
            match wire::decode(&self.1).unwrap() {
                Some(frame) => {
                    replies.push(Reply::decode(&frame).unwrap());
                    self.1.drain(..frame.length);
                }
                None => {
                    let mut chunk = [0; 4096];
                    let read = self.0.read(&mut chunk).unwrap();
                    assert!(read > 0, "it hung up");
                    self.1.extend_from_slice(&chunk[..read]);
                }
            }
        }
        replies
    }
}

/// Clients that have begun to upload, and are suspended, keep no memory from the others but that of their own
/// values: also where these lie in each block.
#[test]
fn suspended_uploads_hold_up_nobody() {
    const LEN: usize = 16_000;
    let place = Place::new();
    let table = config(4 * MIB, LEN).size(TableSize::Slots(1 << 13));
    // However long they are suspended.
    let config = ServerConfig::new(place.address.clone(), table).half_open(Duration::from_secs(3600));
    let server = start(config);
    let mut client = client(&place, RequestPath::Auto);
    let (mut uploads, mut put, mut n) = (Vec::new(), 0, 0);
    for of_block in 1..=40 {
        let mut raw = Raw::greeted(&place.address);
        let begin = Request::UploadBegin { key: b"stays", len: LEN as u32 };
        assert_eq!(
            raw.ask(&[begin, Request::UploadPiece { bytes: &[3; 999] }]),
            [Reply::Taken, Reply::Taken]
        );
        uploads.push(raw);
        while n < of_block * 80 {
            client.insert(&key(n), &[1; 1_000]).unwrap();
            n += 1;
        }
    }
    // All but every tenth go. Then there is room for many long ones, wherever the uploads are.
    (0..n).filter(|n| n % 10 != 0).for_each(|n| assert!(client.remove(&key(n)).unwrap()));
    let live = server.index().heap().live_bytes;
    let refused = loop {
        match client.insert(&key(1 << 32 | put), &value(put, 12_000)) {
            Ok(_) => put += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, MutateError::HeapFull { .. }), "after {put}: {refused}");
    let (heap, one) = (server.index().heap(), extent_bytes(12_000));
    let room = (heap.blocks - 1) * (heap.block_bytes * 3 / 4);
    assert!(live + put * one >= room, "{put} values beside {live} bytes: {heap:?}");
    (0..put).for_each(|n| assert_eq!(number_of(&client.get(&key(1 << 32 | n)).unwrap().unwrap()), n));
    // The uploads go on.
    for (nth, raw) in uploads.iter_mut().enumerate() {
        let key = format!("stays {nth}");
        let (rest, put) =
            (vec![3; LEN - 999], Request::UploadPut { options: PutMode::Upsert.into(), key: b"stays" });
        let replies = raw.ask(&[Request::UploadPiece { bytes: &rest }, put]);
        assert!(matches!(replies[..], [Reply::Taken, Reply::Put(Ok(_))]), "{key}: {replies:?}");
        assert!(client.get(b"stays").unwrap().unwrap() == [3; LEN], "{key}");
    }
}

/// Conversations that no oneread client holds are answered by name, change nothing, and leave no memory.
#[test]
fn hostile_uploads() {
    let place = Place::new();
    let server = serve(&place, 64 * MIB, MIB);
    let mut raw = Raw::greeted(&place.address);
    let begin = |len| Request::UploadBegin { key: b"key", len };
    let bytes = vec![7; 5_000];
    let piece = Request::UploadPiece { bytes: &bytes };
    let put = Request::UploadPut { options: PutMode::Upsert.into(), key: b"key" };
    let other = Request::UploadPut { options: PutMode::Upsert.into(), key: b"other" };
    let swap = Request::UploadSwap { key: b"key", expected: Expected::Value(b"old") };
    let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
    let swap_extent = Request::UploadSwap { key: b"key", expected: Expected::Extent(extent) };
    let (taken, unfit) = (Reply::Taken, Reply::Unfit);
    for (what, requests, expected) in [
        ("nothing begun", vec![piece, put, swap, swap_extent], vec![&unfit; 4]),
        (
            "dropped",
            vec![begin(5_000), piece, Request::UploadDrop, put],
            vec![&taken, &taken, &taken, &unfit],
        ),
        ("too many bytes", vec![begin(9_999), piece, piece, put], vec![&taken, &taken, &unfit, &unfit]),
        ("ends too early", vec![begin(5_001), piece, put, put], vec![&taken, &taken, &unfit, &unfit]),
        ("another key", vec![begin(5_000), piece, other, put], vec![&taken, &taken, &unfit, &unfit]),
        ("fits its slot", vec![begin(3), piece], vec![&unfit; 2]),
        ("begun again", vec![begin(5_000), begin(10_000), piece, put], vec![&taken, &taken, &taken, &unfit]),
        (
            "begun again in vain",
            vec![begin(5_000), piece, begin(3), put],
            vec![&taken, &taken, &unfit, &unfit],
        ),
    ] {
        assert_eq!(raw.ask(&requests).iter().collect::<Vec<_>>(), expected, "{what}");
        assert_eq!((server.stats().keys, server.index().heap().live_bytes), (0, 0), "{what}");
    }
    for (request, error) in [
        (Request::UploadBegin { key: b"", len: 5_000 }, PutError::KeyLength { given: 0, max: 16 }),
        (Request::UploadBegin { key: &[1; 17], len: 5_000 }, PutError::KeyLength { given: 17, max: 16 }),
        (begin(MIB as u32 + 1), PutError::ValueLength { given: MIB + 1, max: MIB }),
        (begin(u32::MAX), PutError::ValueLength { given: u32::MAX as usize, max: MIB }),
    ] {
        // The upload before is dropped, too.
        let replies = [taken.clone(), taken.clone(), Reply::Put(Err(error)), unfit.clone(), unfit.clone()];
        assert_eq!(raw.ask(&[begin(5_000), piece, request, piece, put]), replies);
        assert_eq!(server.index().heap().live_bytes, 0);
    }
    // A wrong extent is expected of a key that is absent, that has a short value, and a long one.
    let swaps = [begin(5_000), piece, swap_extent];
    assert_eq!(raw.ask(&swaps)[2], Reply::Swapped(Ok(SwapOutcome::Absent)));
    for value in [&bytes[..9], &bytes] {
        let request = Request::Put { options: PutMode::Upsert.into(), key: b"key", value };
        assert!(matches!(raw.ask(&[request])[..], [Reply::Put(Ok(_))]));
        assert_eq!(raw.ask(&swaps)[2], Reply::Swapped(Ok(SwapOutcome::Differs)));
        let short = Request::SwapExtent { key: b"key", expected: extent, value: b"" };
        assert_eq!(raw.ask(&[short]), [Reply::Swapped(Ok(SwapOutcome::Differs))]);
    }
    // One upload at a time; it goes with the connection.
    assert_eq!(raw.ask(&[begin(MIB as u32), begin(MIB as u32), piece]), vec![taken; 3]);
    assert_eq!(server.index().heap().live_bytes, extent_bytes(MIB) + extent_bytes(5_000));
    drop(raw);
    wait_for_memory(&server, extent_bytes(5_000));
    assert_eq!(client(&place, RequestPath::Auto).get(b"key").unwrap(), Some(bytes));
}

/// Who may only read uploads nothing.
#[test]
fn readers_upload_nothing() {
    let place = Place::new();
    let table = config(64 * MIB, MIB);
    let server = start(ServerConfig::new(place.address.clone(), table).allow_read_uids([STRANGER]));
    let ended = as_stranger(|| {
        let options = patient().server_uids([0]);
        let mut client = Client::connect_with(&place.address, options).unwrap();
        let long = value(1, 50_000);
        for error in
            [client.put(b"key", &long).unwrap_err(), client.compare_and_swap(b"key", &long, b"").unwrap_err()]
        {
            assert!(matches!(error, MutateError::ReadOnly { .. }), "{error}");
        }
        assert_eq!(client.heap().unwrap().live_bytes, 0);
    });
    assert!(ended.is_none() || server.index().heap().live_bytes == 0);
}
