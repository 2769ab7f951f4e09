//! Snapshots of a large table: how fast they are written, beside a plain copy of the same bytes to the
//! same disk, what they cost the puts of another thread, and how fast they are read back.
//!
//! `cargo bench -p oneread --bench snapshot -- FOLDER` writes into that folder, else into the system's
//! folder for temporary files. ONEREAD_KEYS sets the number of keys (10 million).

use oneread::internals::region::{Backing, Region};
use oneread::{
    Config, PutMode, TableSize,
    embedded::{Clock, Index},
    snapshot::Snapshot,
};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&oneread::internals::layout::hash::mix(n).to_le_bytes());
    key[8..].copy_from_slice(&n.to_le_bytes());
    key
}

fn empty(keys: u64) -> Index {
    let config = Config::new().size(TableSize::Keys(keys)).key_max(16).value_max(64);
    let geometry = config.geometry().expect("possible");
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).expect("memory");
    Index::create(region, geometry, Clock::System).expect("memory")
}

/// A copy through the page cache, until the disk has it: `dd bs=1M conv=fsync`.
fn copy(from: &Path, to: &Path) -> Duration {
    let (mut from, mut to) = (File::open(from).expect("the snapshot"), File::create(to).expect("room"));
    let mut piece = vec![0; 1 << 20];
    let begun = Instant::now();
    loop {
        let read = from.read(&mut piece).expect("reading");
        if read == 0 {
            break;
        }
        to.write_all(&piece[..read]).expect("room");
    }
    to.sync_all().expect("the disk");
    begun.elapsed()
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Updates keys until told to stop. Returns how many, and the times of the slowest ones in a
/// millionth, a thousandth, and the longest.
fn put(index: &Index, keys: u64, stop: &AtomicBool) -> (u64, [Duration; 3]) {
    let mut times = Vec::new();
    let mut n = 1u64;
    // At least once.
    while !stop.load(Ordering::Relaxed) || times.is_empty() {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = key((n >> 20) % keys);
        let begun = Instant::now();
        index.put(&key, &[9; 64], PutMode::Update).expect("it is there");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    // The last one, if there are too few.
    let last = times.len().checked_sub(1).expect("there was time for a put");
    let at = |one_in: usize| times[last.saturating_sub(times.len() / one_in)];
    (times.len() as u64, [at(1_000), at(100_000), times[last]])
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_measured = arguments.iter().any(|it| it == "--bench");
    arguments.retain(|it| !it.starts_with("--"));
    let folder = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let keys = std::env::var("ONEREAD_KEYS").ok().and_then(|keys| keys.parse().ok());
    let keys: u64 = keys.unwrap_or(if is_measured { 10_000_000 } else { 10_000 });
    let rounds = if is_measured { 5 } else { 1 };
    let dir = tempfile::tempdir_in(&folder).expect("a folder");
    let (path, other) = (dir.path().join("snapshot"), dir.path().join("copy"));
    let index = empty(keys);
    (0..keys).for_each(|n| drop(index.put(&key(n), &[7; 64], PutMode::Insert).map(drop)));
    println!("{keys} keys of 16 bytes with values of 64, in {}", folder.display());
    let mb = |bytes: u64, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    for _ in 0..rounds {
        let before = busy();
        let saved = index.save(&path, &mut |_, _| true).expect("room");
        let (bytes, worked) = (saved.bytes, busy() - before);
        let copied = copy(&path, &other);
        println!(
            "snapshot {:>6.0} MB in {:.2?}: {:.0} MB/s, {:.0} MB/s of processor time; a copy of it: {:.0} MB/s",
            bytes as f64 / 1e6,
            saved.took,
            mb(bytes, saved.took),
            mb(bytes, worked),
            mb(bytes, copied)
        );
    }
    for with_snapshots in [false, true, false, true] {
        let stop = AtomicBool::new(false);
        let (count, [thousandth, rare, longest]) = std::thread::scope(|scope| {
            let putting = scope.spawn(|| put(&index, keys, &stop));
            let until = Instant::now() + Duration::from_secs(if is_measured { 5 } else { 0 });
            let mut made = 0;
            while Instant::now() < until || with_snapshots && made == 0 {
                if with_snapshots {
                    index.save(&path, &mut |_, _| true).expect("room");
                    made += 1;
                } else {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            stop.store(true, Ordering::Relaxed);
            putting.join().expect("puts")
        });
        println!(
            "{count} puts {}: one in 1,000 took {thousandth:.1?}, one in 100,000 {rare:.1?}, the longest {longest:.1?}",
            if with_snapshots { "during snapshots" } else { "alone" },
        );
    }
    for _ in 0..rounds.min(2) {
        let target = empty(keys);
        let snapshot = Snapshot::open(&path).expect("whole");
        let begun = Instant::now();
        snapshot.check(&mut |_| {}).expect("whole");
        let checked = begun.elapsed();
        let restored = target.restore_from(&snapshot, &mut |_, _| {}).expect("room");
        println!(
            "checked in {checked:.2?}, {:.0} MB/s; restored in {:.2?} with its check, {:.2} M keys/s",
            mb(snapshot.bytes(), checked),
            restored.took,
            keys as f64 / 1e6 / restored.took.as_secs_f64()
        );
    }
}
