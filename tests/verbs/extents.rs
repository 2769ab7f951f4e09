//! Values that do not fit their slots, READ over a network, on any RDMA device: Soft-RoCE in
//! `tests/soft-roce-guest`, or `tests/fake_ibverbs.c`. Without a device these tests pass without testing
//! anything, and say so, unless ONEREAD_REQUIRE_VERBS is set.

use oneread::internals::region::Backing;
use oneread::internals::server::{ServerConfig, StartMode};
use oneread::internals::verbs::{DeviceChoice, VerbsOptions};
use oneread::{Address, Client, ClientOptions, Config, PutMode, Server, TableSize, VerbsAddress};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Numbers, patient, wait_for};

const LONGEST: usize = 300_000;
/// Under emulation a READ takes some 100 us, and much longer when the machine is busy. A GET that takes longer
/// than this looks again.
const GRACE: Duration = Duration::from_millis(100);
const HEAP_BYTES: u64 = 24 << 20;
/// The shortest chunk, in bytes.
const CHUNK: u64 = 16 << 20;

fn serve(port: u16, size: TableSize, backing: Backing, grace: Duration) -> Option<Server> {
    serve_table(
        port,
        Config::new().size(size).value_max(LONGEST).heap_bytes(HEAP_BYTES).grace(grace),
        backing,
    )
}

fn serve_table(port: u16, table: Config, backing: Backing) -> Option<Server> {
    let table = table.key_max(8).inline_max(40);
    let address = Address::Verbs(VerbsAddress::new("127.0.0.1", port, DeviceChoice::default()));
    crate::started(ServerConfig::new(address, table).backing(backing).start(StartMode::OpenOrCreate))
}

/// With a queue pair of its own, and with one that handles share.
const PATHS: [Option<usize>; 2] = [None, Some(1)];

fn options(pairs: Option<usize>) -> ClientOptions {
    patient().verbs(VerbsOptions::new().pairs(pairs))
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// A value of at least 16 bytes names its key and its version.
fn value(number: u64, version: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers(number ^ version << 20);
    let mut value: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| numbers.next().to_le_bytes()).collect();
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value.truncate(len);
    value
}

/// The version in a value; fails if the value is not one of this key's.
fn version(number: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    assert!(bytes == value(number, version, bytes.len()), "key {number}: no value that it ever had");
    version
}

/// A GET of a long value is two READs: the window, and the value's bytes.
#[test]
fn two_reads() {
    let Some(server) = serve(0, ONE_SIZE, Backing::Anonymous, 50 * GRACE) else { return };
    let lengths = [30, 41, 200, 1_000, 4_095, 4_096, 65_537, LONGEST];
    for (number, &len) in (0..).zip(&lengths) {
        server.index().put(&key(number), &value(number, 1, len), PutMode::Insert).unwrap();
    }
    for pairs in PATHS {
        let mut client = Client::connect_with(server.address(), options(pairs).hint_bytes(0)).unwrap();
        let mut window = 0;
        for (number, &len) in (0..).zip(&lengths) {
            let (before, queue) = (client.stats().read, client.queue_counts().unwrap());
            let begun = Instant::now();
            assert!(client.get(&key(number)).unwrap() == Some(value(number, 1, len)), "{len}");
            let (took, after) = (begun.elapsed(), client.stats().read);
            let reads = client.queue_counts().unwrap().reads - queue.reads;
            let (asked, bytes) = (after.reads - before.reads, after.bytes - before.bytes);
            println!("{pairs:?}, {len} bytes: {reads} READs of {bytes} bytes in {took:?}");
            if len <= 40 {
                assert_eq!((reads, asked), (1, 1), "it is in its slot");
                window = bytes;
            } else {
                assert_eq!((reads, asked, bytes), (2, 2, window + len as u64), "{len}");
            }
        }
        let keys: Vec<_> = (0..20).map(key).collect();
        for (number, found) in (0..).zip(client.get_many(&keys).unwrap()) {
            let expected = lengths.get(number as usize).map(|&len| value(number, 1, len));
            assert!(found.unwrap() == expected, "{number}");
        }
        assert_eq!(client.stats().reattached, 0);
    }
    server.stop();
}

/// Values of megabytes are uploaded in pieces and READ at once, whole and in part.
#[test]
fn megabytes() {
    const LONGEST: usize = 6 << 20;
    let table = Config::new().size(ONE_SIZE).value_max(LONGEST).heap_bytes(64 << 20).grace(50 * GRACE);
    let Some(server) = serve_table(0, table, Backing::Anonymous) else { return };
    for pairs in PATHS {
        let mut client = Client::connect_with(server.address(), options(pairs)).unwrap();
        for (number, len) in [(1, (1 << 20) + 1), (2, LONGEST)] {
            let value = value(number, 1, len);
            client.put(&key(number), &value).expect("room");
            let (before, begun) = (client.stats().read, Instant::now());
            assert!(client.get(&key(number)).unwrap().as_deref() == Some(&value), "{len}");
            let (took, after) = (begun.elapsed(), client.stats().read);
            println!("{pairs:?}, {len} bytes: {} READs in {took:?}", after.reads - before.reads);
            assert_eq!(after.reads - before.reads, 2, "{len}");
            let (part, mut got) = (len / 2 - 1..len - 7, Vec::new());
            assert_eq!(client.get_range(&key(number), part.clone(), &mut got).unwrap(), Some(len));
            assert!(got == value[part], "{len}");
        }
        let found = client.get_many(&[key(1), key(2)]).unwrap();
        assert!((1..).zip(found).all(|(n, found)| found.unwrap().is_some_and(|it| version(n, &it) == 1)));
        assert_eq!(client.stats().reattached, 0);
    }
    server.stop();
}

/// Stops the readers, also when the code beside them panicked, because the scope waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Values of all lengths are replaced all the while. Two clients see whole values, and none that is older than
/// one that they saw. Returns the GETs of each.
fn churn(server: &Server) -> [u64; 2] {
    const KEYS: u64 = 40;
    let mut numbers = Numbers(5);
    let mut put = |number: u64, version: u64| {
        let len =
            [16 + numbers.below(60), 50 + numbers.below(4_000), 16 + numbers.below(LONGEST as u64 - 15)];
        let len = len[numbers.below(8).saturating_sub(5) as usize] as usize;
        server.index().put(&key(number), &value(number, version, len), PutMode::Upsert).expect("room");
    };
    (0..KEYS).for_each(|number| put(number, 0));
    let stop = AtomicBool::new(false);
    let answered = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|nth| {
            let mut client = Client::connect_with(server.address(), options(PATHS[nth])).unwrap();
            let (stop, answered) = (&stop, &answered[nth]);
            scope.spawn(move || {
                let (mut newest, mut numbers) = (vec![0; KEYS as usize], Numbers(nth as u64));
                let mut see = |number: u64, found: Option<Vec<u8>>| {
                    let version = version(number, &found.expect("it is never removed"));
                    let newest = &mut newest[number as usize];
                    assert!(version >= *newest, "key {number} went back to version {version}");
                    *newest = version;
                };
                while !stop.load(Ordering::Relaxed) {
                    let number = numbers.below(KEYS);
                    see(number, client.get(&key(number)).expect("an answer"));
                    let batch: Vec<_> = (0..8).map(|n| (number + 5 * n) % KEYS).collect();
                    let keys: Vec<_> = batch.iter().map(|&number| key(number)).collect();
                    for (&number, found) in batch.iter().zip(client.get_many(&keys).expect("answers")) {
                        see(number, found.unwrap());
                    }
                    answered.fetch_add(9, Ordering::Relaxed);
                }
                let stats = client.stats();
                println!("{:?}: {:?} {:?} {:?}", PATHS[nth], stats.get, stats.read, stats.hints);
                assert_eq!(stats.reattached, 0, "no connection failed");
            })
        });
        let stopping = Stop(&stop);
        let begun = Instant::now();
        let mut version = 0;
        while begun.elapsed() < Duration::from_secs(3) {
            version += 1;
            put(version * 7 % KEYS, version);
            // So much waits for its grace time that the heap need not refuse.
            std::thread::sleep(Duration::from_millis(1));
        }
        let enough = || answered.iter().all(|answered| answered.load(Ordering::Relaxed) > 90);
        wait_for("answers", || enough().then_some(()));
        drop(stopping);
        readers.into_iter().for_each(|reader| reader.join().expect("all answers right"));
    });
    println!("{:?}", server.index().heap());
    answered.map(AtomicU64::into_inner)
}

const ONE_SIZE: TableSize = TableSize::Slots(256);
const GROWING: TableSize = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(1024) };

#[test]
fn values_are_replaced_under_their_readers() {
    for size in [ONE_SIZE, GROWING] {
        let Some(server) = serve(0, size, Backing::Anonymous, GRACE) else { return };
        println!("{size:?}: {:?} GETs", churn(&server));
        server.stop();
    }
}

/// Handles go on with the next server's table. In a table that grows, the values take two chunks of
/// the heap, registered while the handles read; the next server has other keys for them.
#[test]
fn the_next_server() {
    const KEYS: u64 = 70;
    let folder = tempfile::tempdir().unwrap();
    for (nth, size) in [ONE_SIZE, GROWING].into_iter().enumerate() {
        let backing = || Backing::File(folder.path().join(format!("region {nth}")));
        let Some(server) = serve(0, size, backing(), GRACE) else { return };
        let Address::Verbs(address) = server.address().clone() else { unreachable!("served over verbs") };
        let lens = |number: u64| if number.is_multiple_of(10) { 16 + number as usize } else { LONGEST };
        let mut clients = PATHS.map(|pairs| Client::connect_with(server.address(), options(pairs)).unwrap());
        let mut get = |number: u64| {
            for client in &mut clients {
                assert!(
                    client.get(&key(number)).unwrap() == Some(value(number, 1, lens(number))),
                    "{number}"
                );
            }
        };
        for number in 0..KEYS {
            server.index().put(&key(number), &value(number, 1, lens(number)), PutMode::Insert).unwrap();
            get(number);
        }
        let heap = server.index().heap();
        assert!(heap.open_blocks * heap.block_bytes > CHUNK, "{heap:?}");
        server.stop();
        let server = serve(address.port(), size, backing(), GRACE).expect("a device");
        (0..KEYS).for_each(&mut get);
        // Others take the places of those that go.
        for number in (0..KEYS).filter(|number| number % 3 == 0) {
            assert_eq!(server.index().remove(&key(number)), Ok(true));
        }
        for number in (0..KEYS).filter(|number| number % 6 == 0) {
            let put =
                || server.index().put(&key(number), &value(number, 1, lens(number)), PutMode::Insert).ok();
            wait_for("room in the heap", put);
        }
        (0..KEYS).filter(|number| number % 6 == 0 || number % 3 != 0).for_each(&mut get);
        assert!(
            clients.iter().all(|client| client.stats().reattached == 1),
            "the new server, and no other failure"
        );
        server.stop();
    }
}
