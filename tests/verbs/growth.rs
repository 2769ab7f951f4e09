//! A table grows and shrinks while clients READ it over a network, on any RDMA device: Soft-RoCE in
//! `tests/soft-roce-guest`, or `tests/fake_ibverbs.c`. Without a device these tests pass without testing
//! anything, and say so, unless ONEREAD_REQUIRE_VERBS is set.

use oneread::internals::region::Backing;
use oneread::internals::server::{ServerConfig, StartMode};
use oneread::internals::verbs::{DeviceChoice, VerbsOptions};
use oneread::{Address, Client, ClientOptions, Config, PutMode, Server, TableSize, VerbsAddress};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{patient, wait_for};

/// The shortest chunk, in bytes.
const CHUNK: u64 = 16 << 20;
/// Slots of a segment: 256 KiB.
const SEGMENT_SLOTS: u64 = 4096;
/// This number of keys takes three chunks.
const KEYS: u64 = 600_000;

fn serve(port: u16, backing: Backing) -> Option<Server> {
    // Under emulation a READ takes some 100 us, and much longer when the machine is busy.
    let size = TableSize::Growing { bytes_max: 1 << 30, segment_slots: Some(SEGMENT_SLOTS) };
    let table = Config::new().size(size).key_max(8).value_max(32).grace(Duration::from_millis(20));
    let address = Address::Verbs(VerbsAddress::new("127.0.0.1", port, DeviceChoice::default()));
    crate::started(ServerConfig::new(address, table).backing(backing).start(StartMode::OpenOrCreate))
}

fn options(pairs: Option<usize>) -> ClientOptions {
    patient().verbs(VerbsOptions::new().pairs(pairs))
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn value(number: u64) -> [u8; 32] {
    std::array::from_fn(|n| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 8 * 8)) as u8)
}

/// Stops the readers, also when the code beside them panicked, because the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two clients GET while `change` works: one with a connection of its own, one whose handles share a pair.
/// The keys below the number that `change` is handed are there all the while. Returns the GETs of each.
fn readers(address: &Address, change: impl FnOnce(&AtomicU64, &AtomicU64)) -> [u64; 2] {
    let (there, stop, answered) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads = [None, Some(1)].map(|pairs| {
            let mut client = Client::connect_with(address, options(pairs)).expect("a server");
            let (there, stop, answered) = (&there, &stop, &answered);
            scope.spawn(move || {
                let mut random = 7u64;
                while !stop.load(Ordering::Relaxed) {
                    let there = there.load(Ordering::Acquire);
                    if there == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let numbers: Vec<u64> =
                        (0..16).map(|n| (random >> 20).wrapping_add(n * 77_777) % there).collect();
                    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
                    for (number, found) in numbers.iter().zip(client.get_many(&keys).expect("answers")) {
                        assert_eq!(
                            found.as_ref().map(Option::as_deref),
                            Ok(Some(&value(*number)[..])),
                            "{number}"
                        );
                    }
                    let single = numbers[0];
                    assert_eq!(
                        client.get(&key(single)).expect("an answer").as_deref(),
                        Some(&value(single)[..])
                    );
                    assert_eq!(client.get(&key(u64::MAX - single)).expect("an answer"), None);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                let stats = client.stats();
                println!("{pairs:?}: {:?} {:?} {:?}", stats.get, stats.read, stats.hints);
                assert_eq!(stats.reattached, 0, "no connection failed");
                stats.get.gets
            })
        });
        let stopped = Stop(&stop);
        change(&there, &answered);
        drop(stopped);
        threads.map(|thread| thread.join().expect("all answers right"))
    })
}

#[test]
fn a_table_grows_and_shrinks_under_its_readers() {
    let folder = tempfile::tempdir().unwrap();
    let backing = || Backing::File(folder.path().join("region"));
    let Some(server) = serve(0, backing()) else { return };
    let Address::Verbs(address) = server.address().clone() else { unreachable!("served over verbs") };
    let keep = KEYS / 20;
    let gets = readers(&server.address().clone(), |there, answered| {
        let index = server.index();
        let go_on = || {
            let before = answered.load(Ordering::Relaxed);
            wait_for("answers", || (answered.load(Ordering::Relaxed) > before + 2).then_some(()));
        };
        for number in 0..KEYS {
            index.put(&key(number), &value(number), PutMode::Insert).expect("room");
            if number % 1_000 == 999 {
                there.store(number + 1, Ordering::Release);
            }
            if number % (KEYS / 20) == 0 && number > 0 {
                go_on();
            }
        }
        there.store(keep, Ordering::Release);
        // Those that were asked for before are answered.
        (0..2).for_each(|_| go_on());
        let growth = index.growth();
        let bytes = growth.segments * SEGMENT_SLOTS * 64;
        assert!(bytes > 2 * CHUNK, "{growth:?}");
        for number in keep..KEYS {
            assert_eq!(index.remove(&key(number)), Ok(true));
            if number % (KEYS / 10) == 0 {
                go_on();
            }
        }
        wait_for("merges", || {
            index.shrink();
            index.tidy();
            (index.growth().segments < growth.segments / 4).then_some(())
        });
        go_on();
    });
    println!("{gets:?} GETs, {:?}", server.index().growth());
    assert!(gets.iter().all(|&gets| gets > 100), "{gets:?}");

    // The next server has other keys for the same memory.
    let mut client = Client::connect_with(server.address(), options(None)).unwrap();
    assert_eq!(client.get(&key(0)).unwrap().as_deref(), Some(&value(0)[..]));
    let before = server.index().growth().segments;
    server.stop();
    let server = serve(address.port(), backing()).expect("a device");
    for number in (0..keep).step_by(97) {
        assert_eq!(client.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
    }
    assert!(server.index().growth().segments >= 1 && before >= 1);
    for number in KEYS..KEYS + 50_000 {
        server.index().put(&key(number), &value(number), PutMode::Insert).expect("room");
    }
    for number in (KEYS..KEYS + 50_000).step_by(997) {
        assert_eq!(client.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
    }
    server.stop();
}
