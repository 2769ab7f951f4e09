//! Changes that wait at a server with one worker: what else that worker does meanwhile, and what ends a wait.

use crate::common::*;
use oneread::error::MutateError;
use oneread::{Client, ClientOptions, Config, RequestPath, Server, ServerConfig, TableSize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

over_shm_and_tcp! {
    a_put_that_waits_for_memory_holds_up_nobody,
    memory_comes_to_who_waits,
}

static VALUE: [u8; 60_000] = [7; 60_000];

/// A table with room for a few long values, whose readers are gone after twice this time.
fn table(grace: Duration) -> Config {
    Config::new()
        .size(TableSize::Keys(1_000))
        .key_max(16)
        .value_max(VALUE.len())
        .heap_bytes(1 << 20)
        .grace(grace)
}

fn serve(place: &Place, grace: Duration) -> Server {
    start(ServerConfig::new(place.address.clone(), table(grace)).workers(1))
}

fn client(place: &Place, path: RequestPath) -> Client {
    Client::connect_with(&place.address, patient().requests(path)).unwrap()
}

fn name(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

/// Fills the memory for long values, and empties it: readers may still read what was there.
fn take_all_memory(client: &mut Client, server: &Server) {
    let mut keys = Vec::new();
    while client.put(&name(keys.len() as u64), &VALUE).is_ok() {
        keys.push(name(keys.len() as u64));
    }
    assert!(!keys.is_empty());
    keys.iter().for_each(|key| assert!(client.remove(key).unwrap()));
    // The block that is kept free is left.
    for key in keys {
        client.put(&key, &VALUE).unwrap();
        if server.index().heap().largest_gap_bytes < VALUE.len() as u64 {
            return;
        }
    }
    panic!("there is memory");
}

/// A put waits for memory that does not come. Other clients of the one worker put, and read, on every path of requests. When
/// the server ends, the put is not made.
fn a_put_that_waits_for_memory_holds_up_nobody(over: Over) {
    for path in over.paths() {
        let place = over.place();
        let server = serve(&place, Duration::from_secs(50));
        take_all_memory(&mut client(&place, path), &server);
        let (mut waiting, mut other) = (client(&place, path), client(&place, path));
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || waiting.put(b"waits", &VALUE));
            wait_for("a put that waits", || (server.parked() == 1).then_some(()));
            for n in 0..1_000 {
                other.put(&name(n), b"short").unwrap();
                assert_eq!(other.get(&name(n)).unwrap().as_deref(), Some(&b"short"[..]));
            }
            assert_eq!((server.parked(), other.get(b"waits").unwrap()), (1, None), "{path:?}");
            drop(server.stop());
            let ended = waits.join().unwrap();
            assert!(matches!(ended, Err(MutateError::ServerGone { .. })), "{path:?}: {ended:?}");
        });
    }
}

/// Values are replaced over and over in a heap that is nearly full, by two clients, one of which asks for many at a time:
/// each put waits for memory, and gets it.
fn memory_comes_to_who_waits(over: Over) {
    for path in over.paths() {
        let place = over.place();
        let server = serve(&place, Duration::from_millis(100));
        take_all_memory(&mut client(&place, path), &server);
        let [has_waited, ended] = [(); 2].map(|()| AtomicBool::new(false));
        std::thread::scope(|scope| {
            let watches = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    has_waited.fetch_or(server.parked() > 0, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let puts: Vec<_> = (0..2)
                .map(|nth| {
                    let mut client = client(&place, path);
                    scope.spawn(move || {
                        for _ in 0..20 {
                            let keys = [name(2 * nth), name(2 * nth + 1)];
                            let pairs = keys.each_ref().map(|key| (&key[..], &VALUE[..]));
                            let all = client.put_many(&pairs).unwrap();
                            assert!(all.iter().all(Result::is_ok), "{all:?}");
                        }
                    })
                })
                .collect();
            puts.into_iter().for_each(|put| put.join().unwrap());
            ended.store(true, Ordering::Relaxed);
            watches.join().unwrap();
        });
        assert!(has_waited.load(Ordering::Relaxed), "{path:?}: no put has waited");
        assert_eq!(server.parked(), 0);
    }
}

/// A client whose deadline is shorter than the wait is told that the memory is busy, and not that its server is silent.
#[test]
fn a_short_deadline_is_kept() {
    let place = Over::Shm.place();
    let server = serve(&place, Duration::from_secs(50));
    take_all_memory(&mut client(&place, RequestPath::Auto), &server);
    let options = ClientOptions::new().deadline(Duration::from_secs(2));
    let mut client = Client::connect_with(&place.address, options).unwrap();
    let ended = client.put(b"key", &VALUE);
    assert!(matches!(ended, Err(MutateError::HeapBusy { given: 60_000, .. })), "{ended:?}");
    client.put(b"key", b"short").unwrap();
}
