//! Changes of a part of a value, and the removal of all keys, through clients.

use super::fake::Fake;
use crate::common::*;
use oneread::error::{PartError, PutError};
use oneread::internals::wire::{self, Reply, Request};
use oneread::{
    Client, ClientPool, Config, MutateError, PartChange, PartEffect, RequestPath, Server, ServerConfig,
    SwapOutcome, TableSize, Tell,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

over_shm_and_tcp! {
    parts_are_changed,
    numbers_are_text_and_ends_are_set,
    a_swap_begins_and_ends_with_absence,
    batches_change_parts,
    counters_are_exact_while_the_table_grows,
    all_keys_are_removed,
}

/// A server of a table that grows, with values that do not fit their slots.
fn growing(over: Over) -> (Place, Server) {
    let place = over.place();
    let table = Config::new()
        .size(TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(1 << 10) })
        .key_max(16)
        .value_max(100_000)
        .inline_max(Some(40))
        .grace(GRACE);
    let server = start(ServerConfig::new(place.address.clone(), table).workers(2));
    (place, server)
}

fn client(place: &Place, path: RequestPath) -> Client {
    Client::connect_with(&place.address, patient().requests(path)).unwrap()
}

fn is_part(answer: Result<impl std::fmt::Debug, MutateError>, expected: PartError) {
    match answer {
        Err(MutateError::Part(error)) => assert_eq!(error, expected),
        other => panic!("{other:?}"),
    }
}

/// Each call does what it says, by each way of requests, and its errors change nothing.
fn parts_are_changed(over: Over) {
    let (place, server) = growing(over);
    for path in over.paths() {
        let mut client = client(&place, path);
        let before = client.stats().changes;
        // A counter.
        assert_eq!(client.add(b"n", 5, None).unwrap(), None);
        assert_eq!(client.add(b"n", -5, Some(7)).unwrap(), Some(2));
        assert_eq!(client.add(b"n", 40, Some(7)).unwrap(), Some(42));
        is_part(client.add(b"n", -43, None), PartError::CounterRange { value: 42, delta: -43 });
        assert_eq!(client.get(b"n").unwrap(), Some(42u64.to_le_bytes().to_vec()));
        // Bits.
        assert_eq!(client.and_not(b"bits", b"\x01").unwrap(), PartEffect::Absent);
        assert_eq!(client.or(b"bits", b"\x01\x02").unwrap(), PartEffect::Inserted);
        assert_eq!(client.or(b"bits", b"\x05").unwrap(), PartEffect::Updated);
        assert_eq!(client.or(b"bits", b"\x01\x02").unwrap(), PartEffect::Unchanged);
        assert_eq!(client.and_not(b"bits", b"\x01\x02").unwrap(), PartEffect::Updated);
        assert_eq!(client.get(b"bits").unwrap().unwrap(), b"\x04\0");
        is_part(client.or(b"bits", b"\0\0\0"), PartError::BitsLength { given: 3, max: 2 });
        is_part(client.add(b"bits", 1, None), PartError::CounterLength { given: 2 });
        // An append, out of the slot, and up to the bound.
        let mut whole = Vec::new();
        for n in 0..60u8 {
            let piece = [n; 200];
            let done = client.append(b"log", &piece, 12_000).unwrap();
            assert_eq!(done, if n == 0 { PartEffect::Inserted } else { PartEffect::Updated });
            whole.extend(piece);
        }
        is_part(client.append(b"log", b"+", 12_000), PartError::AppendLength { given: 12_001, max: 12_000 });
        assert_eq!(client.get(b"log").unwrap().as_ref(), Some(&whole));
        // In one piece: longer than a cell or a frame, and too long for a request.
        whole.extend([7; 50_000]);
        assert_eq!(client.append(b"log", &[7; 50_000], 70_000).unwrap(), PartEffect::Updated);
        assert_eq!(client.get(b"log").unwrap().as_ref(), Some(&whole));
        let too_long = client.append(b"log", &[7; 61_441], usize::MAX);
        assert!(
            matches!(too_long, Err(MutateError::ValueLength { given: 61_441, max: 61_440 })),
            "{too_long:?}"
        );
        let over = client.append(b"log", &[7; 50_000], usize::MAX);
        assert!(matches!(over, Err(MutateError::ValueLength { given: 112_000, max: 100_000 })), "{over:?}");
        // What is told.
        let or = PartChange::Or { bits: b"\x01" };
        let told = client.change_part(b"bits", or, Tell::Before).unwrap();
        assert_eq!((told.effect, told.value.as_deref()), (PartEffect::Updated, Some(&b"\x04\0"[..])));
        let told = client.change_part(b"bits", or, Tell::After).unwrap();
        assert_eq!((told.effect, told.value.as_deref()), (PartEffect::Unchanged, Some(&b"\x05\0"[..])));
        let told = client.change_part(b"none", PartChange::AndNot { bits: b"" }, Tell::Before).unwrap();
        assert_eq!((told.effect, told.value), (PartEffect::Absent, None));
        is_part(
            client.change_part(b"log", or, Tell::Before),
            PartError::AnswerLength { given: 62_000, max: wire::FRAME_VALUE_MAX },
        );
        assert_eq!(client.get(b"log").unwrap().as_ref(), Some(&whole), "nothing is changed");
        let counts = client.stats().changes;
        assert_eq!((counts.parts - before.parts, counts.rejected - before.rejected), (79, 7));
        assert_eq!(client.clear().unwrap(), 3);
    }
    // The client itself rejects what is too long for a request.
    assert_eq!(server.refused().part, 5 * over.paths().len() as u64);
    assert_eq!(server.stats().keys, 0);
}

/// A number that was put as text is added to, and read as text. An entry gets another end by one request.
fn numbers_are_text_and_ends_are_set(over: Over) {
    let place = over.place();
    let table = Config::new().size(TableSize::Keys(1_000)).life(true).grace(GRACE);
    let server = start(ServerConfig::new(place.address.clone(), table));
    for path in over.paths() {
        let mut client = client(&place, path);
        assert_eq!(client.incr(b"n", 5, None).unwrap(), None);
        client.put(b"n", b"41").unwrap();
        assert_eq!(client.incr(b"n", 1, None).unwrap(), Some(42));
        assert_eq!(client.incr(b"n", -142, Some(7.into())).unwrap(), Some(-100));
        assert_eq!(client.get(b"n").unwrap().unwrap(), b"-100");
        is_part(client.incr(b"n", i64::MIN, None), PartError::NumberRange { value: -100, delta: i64::MIN });
        assert_eq!(client.get(b"n").unwrap().unwrap(), b"-100", "nothing is changed");
        client.put(b"text", b"042").unwrap();
        is_part(client.incr(b"text", 1, None), PartError::NoNumber { given: 3 });
        client.add(b"binary", 1, Some(0)).unwrap();
        is_part(client.incr(b"binary", 1, None), PartError::NoNumber { given: 8 });
        let absent = oneread::NewNumber { value: 9, ttl: Some(Duration::from_secs(1_000)) };
        assert_eq!(client.incr(b"ends", 1, Some(absent)).unwrap(), Some(10));
        let first = client.life(b"ends").unwrap().unwrap();
        assert!(first.expiry > 0 && client.life(b"n").unwrap().unwrap().expiry == 0);
        assert!(client.touch(b"ends", Some(Duration::from_secs(2_000))).unwrap());
        let later = client.life(b"ends").unwrap().unwrap();
        assert!(later.expiry > first.expiry && later.number == first.number);
        assert!(client.touch(b"ends", None).unwrap() && !client.touch(b"none", None).unwrap());
        assert_eq!(client.life(b"ends").unwrap().unwrap().expiry, 0);
        assert!(matches!(client.touch(b"n", Some(Duration::ZERO)), Err(MutateError::TimeToLive { .. })));
        assert_eq!(client.clear().unwrap(), 4);
    }
    server.stop();
}

/// From absence, and to absence.
fn a_swap_begins_and_ends_with_absence(over: Over) {
    let (place, server) = growing(over);
    for path in over.paths() {
        let mut client = client(&place, path);
        for value in [vec![1; 8], vec![2; 300], vec![3; 9_000]] {
            let (value, other) = (&value[..], [&value[1..], b"+"].concat());
            let mut swap = |expected, value| client.compare_exchange(b"key", expected, value).unwrap();
            assert_eq!(swap(None, None), SwapOutcome::Swapped);
            assert_eq!(swap(Some(value), None), SwapOutcome::Absent);
            assert_eq!(swap(None, Some(value)), SwapOutcome::Swapped);
            assert_eq!(swap(None, Some(value)), SwapOutcome::Differs);
            assert_eq!(swap(None, None), SwapOutcome::Differs);
            assert_eq!(swap(Some(&other), None), SwapOutcome::Differs);
            assert_eq!(swap(Some(value), Some(&other)), SwapOutcome::Swapped);
            assert_eq!(client.remove_if(b"key", value).unwrap(), SwapOutcome::Differs);
            assert_eq!(client.remove_if(b"key", &other).unwrap(), SwapOutcome::Swapped);
            assert_eq!(client.get(b"key").unwrap(), None);
            // These swaps in a batch, of which the client makes some one by one.
            let (value, other) = (value.to_vec(), other);
            for is_one_by_one in [false, true] {
                let mut swaps = vec![
                    (b"key", None, Some(value.clone())),
                    (b"key", None, Some(value.clone())),
                    (b"key", Some(other.clone()), None),
                    (b"key", Some(value.clone()), Some(other.clone())),
                    (b"key", Some(other.clone()), None),
                    (b"key", Some(other.clone()), None),
                ];
                if is_one_by_one {
                    swaps.push((b"key", None, None));
                }
                let swapped = client.compare_exchange_many(&swaps).unwrap();
                use SwapOutcome::{Absent, Differs, Swapped};
                let expected = [Swapped, Differs, Differs, Swapped, Swapped, Absent, Swapped].map(Ok);
                assert_eq!(swapped, expected[..swaps.len()]);
            }
        }
    }
    assert_eq!((server.stats().keys, server.index().heap().values), (0, 0));
}

/// Batches answer for each key, in order, and each change takes effect by itself.
fn batches_change_parts(over: Over) {
    let (place, _server) = growing(over);
    for path in [RequestPath::Auto, RequestPath::Message] {
        let mut client = client(&place, path);
        client.put(b"short", b"ab").unwrap();
        let deltas: Vec<_> =
            (0..1_500i64).map(|n| (if n == 700 { &b"short"[..] } else { b"n" }, n)).collect();
        let (mut sum, sums) = (0, client.add_many(&deltas, Some(0)).unwrap());
        for (n, told) in (0..).zip(sums) {
            if n == 700 {
                assert_eq!(told, Err(PutError::Part(PartError::CounterLength { given: 2 })));
            } else {
                sum += n;
                assert_eq!(told, Ok(Some(sum)));
            }
        }
        let lines: Vec<_> = (0..400u32).map(|n| (b"log", n.to_le_bytes())).collect();
        assert!(client.append_many(&lines, 1_600).unwrap().iter().all(Result::is_ok));
        let all: Vec<u8> = (0..400u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(client.get(b"log").unwrap(), Some(all));
        let bits: Vec<_> = (0..50u8).map(|n| ([b'k', n], [1 << (n % 8), 1])).collect();
        assert_eq!(client.or_many(&bits).unwrap(), vec![Ok(PartEffect::Inserted); 50]);
        assert_eq!(client.and_not_many(&bits[..25]).unwrap(), vec![Ok(PartEffect::Updated); 25]);
        // Long answers do not fill up the socket: each is as long as a frame takes.
        client.put(b"long", &[0; 4_080]).unwrap();
        let parts = vec![(b"long", PartChange::Or { bits: b"\x01" }); 600];
        let told = client.change_parts(&parts, Tell::Before).unwrap();
        assert_eq!(told[0].as_ref().unwrap().value, Some(vec![0; 4_080]));
        assert!(told[1..].iter().all(|told| told.as_ref().unwrap().effect == PartEffect::Unchanged));
        assert_eq!(client.clear().unwrap(), 54);
    }
}

/// Threads add to few counters, by two threads of the server, while others make the table grow and shrink: the sums
/// are exact, and no sum is told twice.
fn counters_are_exact_while_the_table_grows(over: Over) {
    const ADDS: u64 = 3_000;
    let (place, server) = growing(over);
    let pool = ClientPool::connect_with(&place.address, patient()).unwrap();
    let is_over = AtomicBool::new(false);
    let mut told = std::thread::scope(|scope| {
        let (pool, is_over) = (&pool, &is_over);
        scope.spawn(move || {
            let mut client = pool.get();
            while !is_over.load(Ordering::Relaxed) {
                let keys: Vec<_> = (0..6_000u64).map(u64::to_le_bytes).collect();
                let pairs: Vec<_> = keys.iter().map(|key| (key, key)).collect();
                client.put_many(&pairs).unwrap();
                client.remove_many(&keys).unwrap();
                client.shrink().unwrap();
            }
        });
        let adding = [0, 1, 2].map(|thread| {
            scope.spawn(move || {
                let (mut client, mut told) = (pool.get(), Vec::new());
                while told.len() < ADDS as usize {
                    let n = (told.len() as u64 + thread) % 3;
                    if told.len() % 100 == 0 {
                        let deltas: Vec<_> = (0..100).map(|_| ([n as u8], 1)).collect();
                        let sums = client.add_many(&deltas, Some(0)).unwrap();
                        told.extend(sums.into_iter().map(|sum| (n, sum.unwrap().unwrap())));
                    } else {
                        told.push((n, client.add(&[n as u8], 1, Some(0)).unwrap().unwrap()));
                    }
                }
                told
            })
        });
        let told = adding.map(|thread| thread.join());
        is_over.store(true, Ordering::Relaxed);
        told.map(|told| told.unwrap()).concat()
    });
    told.sort_unstable();
    let mut client = pool.get();
    for n in 0..3 {
        let sums: Vec<_> = told.iter().filter(|told| told.0 == n).map(|told| told.1).collect();
        assert_eq!(sums, (1..=sums.len() as u64).collect::<Vec<_>>());
        assert_eq!(client.get(&[n as u8]).unwrap(), Some((sums.len() as u64).to_le_bytes().to_vec()));
    }
    assert!(server.index().growth().splits > 0, "it did not grow");
}

/// All keys go; progress is told; a removal that is broken off leaves the rest.
fn all_keys_are_removed(over: Over) {
    let (place, server) = growing(over);
    let mut client = client(&place, RequestPath::Auto);
    let keys: Vec<_> = (0..20_000u64).map(u64::to_le_bytes).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (key, key)).collect();
    client.put_many(&pairs).unwrap();
    client.put(b"long", &[1; 50_000]).unwrap();
    let mut steps = 0;
    let some = client.clear_with(|_| {
        steps += 1;
        steps < 2
    });
    let some = some.unwrap();
    assert_eq!(server.stats().keys, 20_001 - some);
    let mut told = Vec::new();
    let rest = client.clear_with(|step| {
        told.push((step.progress_ppm, step.removed));
        true
    });
    assert_eq!(some + rest.unwrap(), 20_001);
    assert!(told.is_sorted() && told.iter().all(|told| told.0 < 1_000_000), "{told:?}");
    assert_eq!((server.stats().keys, server.index().heap().values), (0, 0));
    assert_eq!(client.get(b"long").unwrap(), None);
    assert_eq!(client.clear().unwrap(), 0);
}

/// A server of a version before these requests is not sent any: the error says so, nothing is changed, and the
/// connection stays.
#[test]
fn an_old_server_is_not_asked() {
    let fake = Fake::new();
    let was_asked = AtomicBool::new(false);
    let serve = |mut stream: UnixStream| {
        let as_before = |welcome| match welcome {
            Reply::Welcome { version, .. } => Reply::Welcome { version, level: 0 },
            other => other,
        };
        let Some(mut raw) = fake.welcome_as(&mut stream, as_before) else { return };
        let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut chunk) {
            input.extend_from_slice(&chunk[..read]);
            while let Some(frame) = wire::decode(&input).unwrap() {
                let request = Request::decode(&frame).unwrap();
                if request.level() > 0 {
                    was_asked.store(true, Ordering::Relaxed);
                    return;
                }
                raw.send(&request);
                let (mut out, length) = (Vec::new(), frame.length);
                raw.reply().unwrap().encode(frame.id, &mut out);
                input.drain(..length);
                stream.write_all(&out).unwrap();
            }
        }
    };
    fake.during(serve, || {
        let mut client = fake.client(&patient().requests(RequestPath::Message));
        client.put(b"key", b"value").unwrap();
        let old = |answer: Result<(), MutateError>| {
            assert!(matches!(answer, Err(MutateError::OldServer)), "{answer:?}")
        };
        old(client.add(b"key", 1, Some(0)).map(drop));
        old(client.or(b"key", b"\x01").map(drop));
        old(client.and_not(b"key", b"\x01").map(drop));
        let padded = PartChange::OrPadded { bits: b"\x01" };
        old(client.change_part(b"key", padded, Tell::Nothing).map(drop));
        old(client.append(b"key", b"+", 9).map(drop));
        old(client.remove_if(b"key", b"value").map(drop));
        old(client.clear().map(drop));
        let answers = client.add_many(&[(b"key", 1), (b"one", 1)], None).unwrap();
        assert_eq!(answers, [Err(PutError::OldServer), Err(PutError::OldServer)]);
        assert_eq!(client.get(b"key").unwrap().unwrap(), b"value");
        client.put(b"key", b"other").unwrap();
        assert_eq!(client.stats().failures.gone, 0);
    });
    assert!(!was_asked.load(Ordering::Relaxed));
}
