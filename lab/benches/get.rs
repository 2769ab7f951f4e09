//! One thread looks up present keys at random, out of cache: one million keys of 16 bytes with
//! values of 32 bytes. Compare the lines of one run with each other, not with those of another
//! machine.
//!
//! * `bare 64-byte read`: one line of a mapping of the same size, at a random place. This is the
//!   lower bound.
//! * `oneread`: GET from the region, as a client in another process does it. (The mapping is the
//!   same memory. That the server is another process costs a reader nothing.)
//! * `oneread get_many`: 1,000 keys in one call; time per key.
//! * `DashMap`, `papaya`: maps inside this process.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oneread::internals::region::{Backing, Region};
use oneread::{
    Config, PutMode, TableSize,
    embedded::{Clock, Index},
    layout::Layout,
};
use std::hint::black_box;

const KEYS: u64 = 1_000_000;

fn mix(x: u64) -> u64 {
    oneread::internals::layout::hash::mix(x)
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n).to_le_bytes());
    key[8..].copy_from_slice(&n.to_le_bytes());
    key
}

fn value(n: u64) -> [u8; 32] {
    let mut value = [0; 32];
    value[..8].copy_from_slice(&mix(!n).to_le_bytes());
    value
}

/// The next key number of a random walk over `0..KEYS`.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    oneread::internals::layout::hash::reduce(mix(*state), KEYS)
}

fn index(layout: &str) -> Index {
    let layout: Layout = layout.parse().expect("a preset");
    let config = Config::new().layout(layout).size(TableSize::Keys(KEYS)).key_max(16).value_max(32);
    let geometry = config.geometry().expect("possible");
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).expect("memory");
    let index = Index::create(region, geometry, Clock::System).expect("memory");
    for n in 0..KEYS {
        index.put(&key(n), &value(n), PutMode::Insert).expect("room");
    }
    index
}

fn get(c: &mut Criterion) {
    let mut group = c.benchmark_group("get");
    group.throughput(Throughput::Elements(1)).sample_size(30);

    let lines = vec![[1u64; 8]; (KEYS as usize).next_power_of_two()];
    let mut state = 1;
    group.bench_function("bare 64-byte read", |b| {
        b.iter(|| {
            black_box(
                lines[oneread::internals::layout::hash::reduce(mix(next(&mut state)), lines.len() as u64)
                    as usize],
            )
        })
    });

    for layout in ["windowed:8", "windowed:16", "farm", "cluster"] {
        let index = index(layout);
        let mut reader = index.reader();
        let mut got = Vec::new();
        group.bench_function(format!("oneread {layout}"), |b| {
            b.iter(|| {
                assert!(reader.get_into(&key(next(&mut state)), &mut got).expect("readable"));
                black_box(got.len())
            })
        });
        if layout != "windowed:8" {
            continue;
        }
        group.throughput(Throughput::Elements(1000));
        group.bench_function(format!("oneread get_many 1000 {layout}"), |b| {
            b.iter(|| {
                let keys: Vec<_> = (0..1000).map(|_| key(next(&mut state))).collect();
                let mut found = 0;
                reader.get_many(&keys, |_, value| found += usize::from(value.is_some())).expect("readable");
                assert_eq!(found, 1000);
            })
        });
        group.throughput(Throughput::Elements(1));
        let mut absent = KEYS;
        group.bench_function(format!("oneread miss {layout}"), |b| {
            b.iter(|| {
                absent += 1;
                assert!(!reader.get_into(&key(absent), &mut got).expect("readable"));
            })
        });
    }

    let map: dashmap::DashMap<[u8; 16], [u8; 32]> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    group.bench_function("DashMap", |b| {
        b.iter(|| black_box(*map.get(&key(next(&mut state))).expect("present").value()))
    });
    drop(map);

    let map: papaya::HashMap<[u8; 16], [u8; 32]> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    group.bench_function("papaya", |b| {
        b.iter(|| black_box(*map.pin().get(&key(next(&mut state))).expect("present")))
    });
    group.finish();
}

criterion_group!(benches, get);
criterion_main!(benches);
