//! What dependencies do, and what else could do it: docs/ARCHITECTURE.md has the table. Compare the
//! lines of one run with each other.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use parking_lot::Mutex;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hint::black_box;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 % 251) as u8).collect()
}

/// CRC-32C as slots have it, CRC-32 as long values and snapshots.
fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for len in [104, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        let bytes = bytes(len);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::new("crc32c", len), &bytes, |b, bytes| {
            b.iter(|| crc32c::crc32c(black_box(bytes)));
        });
        group.bench_with_input(BenchmarkId::new("crc32fast", len), &bytes, |b, bytes| {
            b.iter(|| crc32fast::hash(black_box(bytes)));
        });
    }
}

/// Of keys: rapidhash decides the home, seahash the shard.
fn hashes(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    let secrets = RapidSecrets::seed(7);
    for len in [8, 16, 35, 86, 255] {
        let key = bytes(len);
        group.bench_with_input(BenchmarkId::new("rapidhash", len), &key, |b, key| {
            b.iter(|| rapidhash_v3_micro_inline::<true, false>(black_box(key), &secrets));
        });
        group.bench_with_input(BenchmarkId::new("seahash", len), &key, |b, key| {
            b.iter(|| seahash::hash_seeded(black_box(key), 1, 2, 3, 4));
        });
    }
}

/// Maps by numbers, short lists, locks that nobody else wants.
fn containers(c: &mut Criterion) {
    let numbers = || (0..1024u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).map(|n| (n, n));
    let mut group = c.benchmark_group("map");
    let (std, fx): (HashMap<_, _>, FxHashMap<_, _>) = (numbers().collect(), numbers().collect());
    group.bench_function("std", |b| b.iter(|| numbers().map(|(n, _)| std[&n]).fold(0, u64::wrapping_add)));
    group.bench_function("rustc-hash", |b| {
        b.iter(|| numbers().map(|(n, _)| fx[&n]).fold(0, u64::wrapping_add))
    });
    group.finish();
    let mut group = c.benchmark_group("list of four");
    group
        .bench_function("std", |b| b.iter(|| black_box(&(0..4u64).map(black_box).collect::<Vec<_>>()).len()));
    group.bench_function("smallvec", |b| {
        b.iter(|| black_box(&(0..4u64).map(black_box).collect::<SmallVec<[_; 8]>>()).len())
    });
    group.finish();
    let mut group = c.benchmark_group("lock");
    let (std, parking_lot) = (std::sync::Mutex::new(0u64), Mutex::new(0u64));
    group.bench_function("std", |b| b.iter(|| *std.lock().expect("nobody panics") += black_box(1)));
    group.bench_function("parking_lot", |b| b.iter(|| *parking_lot.lock() += black_box(1)));
    group.finish();
}

criterion_group!(benches, checksums, hashes, containers);
criterion_main!(benches);
