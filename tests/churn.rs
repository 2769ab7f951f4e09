//! Readers in other processes, writers in this one. Keys that stay are never missed while the table
//! moves them, and no reader sees a value that was not written for its key. Runs over shm and TCP, or over
//! a real verbs device with ONEREAD_TEST_FABRIC=verbs (in the guest: `./test --verbs`).
//!
//! A program of its own: what it does in its time would be less beside other tests.

mod common;

use common::*;
use oneread::internals::families::presets;
use oneread::internals::placement::Preset;
use oneread::internals::reader::Limits;
use oneread::{
    Address, Client, ClientOptions, Config, PutMode, PutOutcome, Server, ServerConfig, TcpAddress,
    embedded::{Clock, Index},
    error::PutError,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SLOTS: u64 = 4096;
const LOAD: f64 = 0.95;
const KEY_MAX: usize = 16;
const VALUE_MAX: usize = 94;
/// The longest value in a slot of one line. Over shm, most GETs of such slots take a road of their own.
const ONE_LINE_MAX: usize = 32;
/// The longest value where values do not fit their slots, and the memory for these.
const LONG_MAX: usize = 32 << 10;
const HEAP_BYTES: u64 = 32 << 20;
const READERS: u64 = 2;
const WRITERS: u64 = 2;
/// Over shm, where it hardly matters. Over an emulated verbs device, where a READ may take
/// milliseconds.
const GRACE_TIME: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

fn over_verbs() -> bool {
    std::env::var("ONEREAD_TEST_FABRIC").is_ok_and(|fabric| fabric == "verbs")
}

/// The number of GETs of one reader. An emulated device does some thousand in a second, and so do requests.
fn gets(are_loads: bool) -> u64 {
    if let Ok(gets) = std::env::var("ONEREAD_GETS") {
        return gets.parse().expect("ONEREAD_GETS is the number of GETs of each reader");
    }
    let many = if are_loads { 200_000 } else { 4_000 };
    if std::env::var_os("ONEREAD_LONG").is_some() { 25 * many } else { many }
}

/// Keys `0..stable` stay. The others, numbered from `stable` on, come and go.
struct Cast {
    stable: u32,
    /// Keys that come and go. Half of them are in the table at any time.
    passing: u32,
    /// The longest value.
    value_max: usize,
}

impl Cast {
    /// Half of the table's keys stay, half of them pass.
    fn of(live: u64, value_max: usize) -> Cast {
        Cast { stable: live as u32 / 2, passing: live as u32, value_max }
    }

    /// A value that names its key and its write: number, sequence, filling, checksum.
    fn describe(&self, n: u32, sequence: u64) -> Vec<u8> {
        let number = sequence.wrapping_mul(7) + u64::from(n);
        let most = match self.value_max {
            // As many between 32 and 64 bytes as between 16 and 32 KiB.
            LONG_MAX => LONG_MAX >> (number % 11),
            short => short,
        };
        let length = 20 + number as usize % (most - 19);
        let mut value = Vec::with_capacity(length);
        value.extend_from_slice(&n.to_le_bytes());
        value.extend_from_slice(&sequence.to_le_bytes());
        value.resize(length - 4, sequence as u8);
        value.extend_from_slice(&crc32c::crc32c(&value).to_le_bytes());
        value
    }

    /// The sequence in the first bytes of a value of `len` bytes, if these were written for `n`.
    fn understand(&self, n: u32, part: &[u8], len: usize) -> Result<u64, String> {
        let sequence = part.get(4..12).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let is_it = |&sequence: &u64| {
            let right = self.describe(n, sequence);
            right.len() == len && right.get(..part.len()) == Some(part)
        };
        sequence
            .filter(is_it)
            .ok_or_else(|| format!("key {n}: nobody wrote {part:02x?} of {len} bytes for it"))
    }
}

fn name(n: u32) -> Vec<u8> {
    // The length follows from the number, so that slots are filled in all ways. Of the keys longer than a
    // word, half differ in their first word only, and half in their last.
    let filling = vec![0xa7; n as usize % (KEY_MAX - 3)];
    let number = n.to_le_bytes();
    if n.is_multiple_of(2) { [&number, &filling[..]].concat() } else { [&filling[..], &number].concat() }
}

// ---- the reader, in a process of its own --------------------------------------------------------

/// Reads as its parent process tells it. Fails on the first wrong answer. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn reader_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let number = |name| told(name).and_then(|n| n.parse::<u64>().ok()).expect("told by the parent");
    let cast = Cast::of(number("ONEREAD_TEST_LIVE"), number("ONEREAD_TEST_VALUE_MAX") as usize);
    let mut numbers = Numbers(number("ONEREAD_TEST_SEED"));
    // On a busy machine a writer may lose the CPU for long while it writes a slot.
    let limits = Limits::new().retries_max(u32::MAX).deadline(Duration::from_secs(120));
    let options = ClientOptions::new().limits(limits).deadline(Duration::from_secs(120));
    let address: Address = address.parse().expect("an address");
    let gets = gets(matches!(address, Address::Shm(_)));
    let mut client = Client::connect_with(&address, options).expect("the parent serves");
    // A reader that has seen a write never sees an earlier write of that key.
    let mut seen = vec![0u64; (cast.stable + cast.passing) as usize];
    let mut check = |n: u32, value: Option<(&[u8], usize)>| match value {
        Some((value, len)) => {
            let sequence = cast.understand(n, value, len).unwrap();
            let latest = &mut seen[n as usize];
            assert!(sequence >= *latest, "key {n}: {sequence} after {latest}");
            *latest = sequence;
        }
        None => assert!(n >= cast.stable, "missed key {n}, which stays"),
    };
    let mut value = Vec::new();
    let is_long = ["ONEREAD_LONG", "ONEREAD_GETS"].iter().any(|name| std::env::var_os(name).is_some());
    let give_up = Instant::now() + Duration::from_secs(if is_long { 900 } else { 15 });
    let mut done = 0;
    while done < gets && Instant::now() < give_up {
        if numbers.below(16) == 0 {
            let all = u64::from(cast.stable + cast.passing);
            let batch: Vec<u32> = (0..32).map(|_| numbers.below(all) as u32).collect();
            let names: Vec<_> = batch.iter().map(|&n| name(n)).collect();
            let _ = client
                .get_many_with(&names, |nth, value| {
                    let value = value.expect("a key that fits");
                    check(batch[nth], value.map(|value| (value, value.len())));
                    ControlFlow::<()>::Continue(())
                })
                .expect("conclusive looks");
            done += 32;
        } else {
            // Three in four GETs are for keys that stay.
            let n = match numbers.below(4) {
                0 => cast.stable + numbers.below(cast.passing.into()) as u32,
                _ => numbers.below(cast.stable.into()) as u32,
            };
            let len = match numbers.below(4) {
                // A part of it.
                0 => client.get_range(&name(n), 0..1000, &mut value).expect("a conclusive look"),
                _ => {
                    let found = client.get_into(&name(n), &mut value).expect("a conclusive look");
                    found.then_some(value.len())
                }
            };
            check(n, len.map(|len| (value.as_slice(), len)));
            done += 1;
        }
    }
    let stats = client.stats();
    println!(
        "gets {} hits {} reads {} torn {} moved {} late {}",
        stats.get.gets,
        stats.get.hits,
        stats.read.reads,
        stats.get.retries_torn,
        stats.get.retries_moved,
        stats.get.retries_late
    );
}

// ---- the writers --------------------------------------------------------------------------------

/// Removes, inserts and updates the passing keys whose number is `lane` modulo the number of
/// writers, and updates some that stay, until `stop`. Returns the number of changes.
fn write(index: &Index, cast: &Cast, lane: u64, stop: &AtomicBool) -> u64 {
    let mine = |n: &u32| u64::from(*n) % WRITERS == lane;
    let (mut live, mut gone): (Vec<u32>, Vec<u32>) =
        (cast.stable..cast.stable + cast.passing).filter(mine).partition(|&n| starts_live(cast, n));
    let staying: Vec<u32> = (0..cast.stable).filter(mine).collect();
    let mut numbers = Numbers(lane);
    let mut sequence = 1;
    while !stop.load(Ordering::Relaxed) {
        sequence += 1;
        let out = numbers.below(live.len() as u64) as usize;
        let leaver = live.swap_remove(out);
        assert_eq!(index.remove(&name(leaver)), Ok(true), "key {leaver}");
        let into = numbers.below(gone.len() as u64) as usize;
        let comer = gone.swap_remove(into);
        gone.push(leaver);
        match index.put(&name(comer), &cast.describe(comer, sequence), PutMode::Insert) {
            Ok(put) => {
                assert_eq!(put, PutOutcome::Inserted, "key {comer}");
                live.push(comer);
            }
            // The load is below the one reached before, but the keys are others.
            Err(PutError::Full { .. }) => gone.push(comer),
            Err(error) => panic!("key {comer}: {error}"),
        }
        if live.is_empty() {
            panic!("nothing fits any more");
        }
        let n =
            if sequence % 2 == 0 { staying[numbers.below(staying.len() as u64) as usize] } else { live[0] };
        let updated = index.put(&name(n), &cast.describe(n, sequence), PutMode::Update);
        assert_eq!(updated, Ok(PutOutcome::Updated), "key {n}");
    }
    sequence
}

/// Whether a key is in the table at the start. Half of the passing keys are.
fn starts_live(cast: &Cast, n: u32) -> bool {
    ((n - cast.stable) / WRITERS as u32).is_multiple_of(2)
}

/// The number of keys to keep: 95 % of the main slots, or 90 % of what the table can take.
fn live_keys(config: &Config) -> u64 {
    let index = index(config, Clock::manual());
    let wanted = (LOAD * index.geometry().main_slots() as f64) as u64;
    // Keys that the test does not use; they are as good as random.
    let fits = |n: &u32| index.put(&name(n | 1 << 30), &[], PutMode::Insert).is_ok();
    let reached = (0..wanted as u32).take_while(fits).count() as u64;
    if reached == wanted { wanted } else { reached * 9 / 10 }
}

/// Two threads change a table at 95 % load as fast as they can: in place, by removing, and by
/// inserting, which moves keys all the time. Readers in other processes look for keys that stay.
#[test]
fn keys_that_stay_are_never_missed() {
    let dir = tempfile::tempdir().unwrap();
    let values_max: &[usize] = if over_verbs() { &[VALUE_MAX] } else { &[VALUE_MAX, ONE_LINE_MAX] };
    on_every_preset(|preset| {
        for &value_max in values_max {
            let [changes, moves] =
                churn(dir.path(), preset, config(preset, SLOTS, KEY_MAX, value_max, 42), 1_000);
            // A quieter run would show nothing.
            assert!(changes > 1000 && moves > 100, "{changes} changes, {moves} moves: too quiet");
        }
    });
}

/// Churn with values of which most do not fit their slots. Their memory is used again all the time.
#[test]
fn long_values_are_whole_and_never_missed() {
    let dir = tempfile::tempdir().unwrap();
    for preset in presets().filter(|preset| ["windowed:8", "farm", "list"].contains(&preset.name)) {
        let table = config(preset, SLOTS, KEY_MAX, LONG_MAX, 42).inline_max(64).heap_bytes(HEAP_BYTES);
        // A change puts two values, of 3 KB on average: the heap is filled several times.
        let [changes, moves] = churn(dir.path(), preset, table, 12_000);
        assert!(changes > 12_000 && moves > 100, "{changes} changes, {moves} moves: too quiet");
    }
}

/// Readers read until there were so many changes. Returns how many were made, and how many keys moved.
fn churn(dir: &Path, preset: &Preset, config: Config, changes_min: u64) -> [u64; 2] {
    /// A machine that makes no more changes in this time shows nothing.
    const PATIENCE: Duration = Duration::from_secs(120);
    let began = Instant::now();
    let config = config.grace(GRACE_TIME[usize::from(over_verbs())]);
    let value_max = config.geometry().unwrap().value_max();
    let live = live_keys(&config);
    let cast = Cast::of(live, value_max);
    let address = match over_verbs() {
        true => "verbs://127.0.0.1:0".parse().unwrap(),
        false => Address::Shm(dir.join(format!("{}-{value_max}", preset.name.replace(':', "-")))),
    };
    let loopback = TcpAddress::new("127.0.0.1", 0);
    let tcp = (!over_verbs()).then_some(loopback);
    let server = Server::start(ServerConfig::new(address.clone(), config).tcp(tcp)).unwrap();
    let index = server.index();
    for n in (0..cast.stable + cast.passing).filter(|&n| n < cast.stable || starts_live(&cast, n)) {
        index.put(&name(n), &cast.describe(n, 1), PutMode::Insert).expect("less than was there before");
    }
    let before = index.counts();
    let stop = AtomicBool::new(false);
    let (changes, reports) = std::thread::scope(|scope| {
        let (cast, stop) = (&cast, &stop);
        let writers: Vec<_> =
            (0..WRITERS).map(|lane| scope.spawn(move || write(index, cast, lane, stop))).collect();
        let reader = |(seed, address): (u64, String)| {
            Process::start(
                "reader_child",
                &[
                    ("ONEREAD_TEST_ADDRESS", address),
                    ("ONEREAD_TEST_LIVE", live.to_string()),
                    ("ONEREAD_TEST_VALUE_MAX", value_max.to_string()),
                    ("ONEREAD_TEST_SEED", seed.to_string()),
                ],
            )
        };
        // Stops the writers even if a reader fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stopper = Stop(stop);
        let mut reports: Vec<String> = Vec::new();
        // There is an update in each change.
        let is_quiet = || index.counts().updates - before.updates <= changes_min;
        while reports.is_empty() || is_quiet() && began.elapsed() < PATIENCE {
            // And one by requests.
            let addresses = (0..READERS).map(|_| server.address().to_string());
            let addresses =
                addresses.chain(server.tcp_address().cloned().map(|at| Address::Tcp(at).to_string()));
            let readers: Vec<_> = (reports.len() as u64 + 1..).zip(addresses).map(reader).collect();
            reports.extend(readers.into_iter().map(Process::finish));
        }
        drop(stopper);
        let changes: u64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
        (changes, reports)
    });
    let after = index.counts();
    let moves = after.moves - before.moves;
    println!(
        "{}: load {:.2}, {changes} changes, {moves} moves, {} waits, {:?}",
        preset.layout,
        live as f64 / after.main_slots as f64,
        after.waits - before.waits,
        began.elapsed()
    );
    for report in &reports {
        let line = report.lines().find_map(|line| line.split_once("gets ").map(|(_, rest)| rest));
        println!("    gets {}", line.expect("a reader's report"));
    }
    assert!((0..cast.stable).all(|n| {
        let mut value = Vec::new();
        index.reader().get_into(&name(n), &mut value) == Ok(true)
            && cast.understand(n, &value, value.len()).unwrap() > 0
    }));
    [changes, moves]
}

/// The checks above can fail: a value for another key, half a value, and a mixture of two are told
/// from a good one.
#[test]
fn a_wrong_value_is_noticed() {
    let cast = Cast::of(0, VALUE_MAX);
    let understand = |value: &[u8]| cast.understand(7, value, value.len());
    let good = cast.describe(7, 3);
    assert_eq!(understand(&good), Ok(3));
    // Sequences 3 and 153 make values of the same length.
    let mixture = [&cast.describe(7, 3 + 150)[..20], &good[20..]].concat();
    assert_eq!(cast.describe(7, 3 + 150).len(), good.len());
    for bad in [cast.describe(8, 3), good[..good.len() - 1].to_vec(), mixture, vec![]] {
        assert!(understand(&bad).is_err(), "{bad:02x?}");
    }
    // A part of it, with the length of the whole.
    assert_eq!(cast.understand(7, &good[..15], good.len()), Ok(3));
    assert!(cast.understand(7, &good[..15], good.len() + 1).is_err());
}
