//! Inserts one million keys of 16 bytes with values of 32 bytes, with one thread and with two. The
//! table is sized for them (90 % load at the end for `windowed:8`). The other contestant is DashMap
//! with the same capacity reserved. Compare the lines of one run with each other.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use oneread::internals::region::{Backing, Region};
use oneread::{
    Config, PutMode, TableSize,
    embedded::{Clock, Index},
    layout::Layout,
};

const KEYS: u64 = 1_000_000;

fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&oneread::internals::layout::hash::mix(n).to_le_bytes());
    key[8..].copy_from_slice(&n.to_le_bytes());
    key
}

fn empty(layout: &str) -> Index {
    let layout: Layout = layout.parse().expect("a preset");
    let config = Config::new().layout(layout).size(TableSize::Keys(KEYS)).key_max(16).value_max(32);
    let geometry = config.geometry().expect("possible");
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).expect("memory");
    Index::create(region, geometry, Clock::System).expect("memory")
}

/// Splits `0..KEYS` among threads. Each thread calls `insert` for its part.
fn with_threads(threads: u64, insert: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let insert = &insert;
            scope.spawn(move || (thread..KEYS).step_by(threads as usize).for_each(insert));
        }
    });
}

fn insert(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert to design load");
    group.throughput(Throughput::Elements(KEYS)).sample_size(10);
    for threads in [1, 2] {
        for layout in ["windowed:8", "farm", "cluster"] {
            group.bench_function(format!("oneread {layout}, {threads} threads"), |b| {
                b.iter_batched_ref(
                    || empty(layout),
                    |index| {
                        with_threads(threads, |n| {
                            index.put(&key(n), &[7; 32], PutMode::Insert).expect("room");
                        });
                    },
                    BatchSize::PerIteration,
                )
            });
        }
        group.bench_function(format!("DashMap, {threads} threads"), |b| {
            b.iter_batched_ref(
                || dashmap::DashMap::<[u8; 16], [u8; 32]>::with_capacity(KEYS as usize),
                |map| {
                    with_threads(threads, |n| {
                        map.insert(key(n), [7; 32]);
                    });
                },
                BatchSize::PerIteration,
            )
        });
    }
    group.finish();
}

criterion_group!(benches, insert);
criterion_main!(benches);
