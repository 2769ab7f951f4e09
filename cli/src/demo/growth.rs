//! The act of the demo in which a table grows tenfold while it is read.

use super::names::{Named, put_all, readers};
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use oneread::Client;
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::at_once_beside;
use rand::RngExt;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The longest key of the act, in bytes.
const KEY_MAX: usize = 12;
/// Bytes of a value beside the name.
const VALUE_EXTRA: usize = 2;
/// As many keys at the end as this times those at the beginning.
const TIMES: u64 = 10;
/// Samples that a line of the picture shows.
pub const COLUMNS: usize = 40;

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub struct GrowthOutcome {
    pub keys_before: u64,
    pub keys: u64,
    pub segments_before: u64,
    pub segments: u64,
    pub splits: u64,
    pub bytes_before: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub gets: u64,
    pub failed: u64,
    pub missed: u64,
    pub wrong: u64,
    pub reads_per_get: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Samples while it grew.
    #[serde(skip)]
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    segments: u64,
    bytes: u64,
    load: f64,
}

/// Key and value with this number, of which each name has several.
fn pair(names: &[Named], number: u64) -> (Vec<u8>, String) {
    let (key, name) = &names[number as usize % names.len()];
    let copy = number / names.len() as u64;
    let key = [&key[..], format!(".{copy}").as_bytes()].concat();
    (key, format!("{name} {copy}"))
}

/// Starts a server without a size, puts all names, and then nine times as many keys while this process
/// reads those that are there.
pub fn run(fabric: Fabric, names: &[Named]) -> Result<GrowthOutcome> {
    // Over verbs, memory is registered chunk by chunk, and slower.
    let names = if fabric == Fabric::Verbs { &names[..names.len() / 10] } else { names };
    let longest = names.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
    let mut table = vec![
        format!("--max-memory={}", if fabric == Fabric::Verbs { "64MiB" } else { "1GiB" }),
        format!("--key-max={KEY_MAX}"),
        format!("--value-max={}", longest + VALUE_EXTRA),
    ];
    if fabric == Fabric::Verbs {
        table.push("--grace=100ms".into());
    }
    let server = ServerChild::spawn(fabric, &table)?;
    let mut client = server.connect()?;
    let (first, last) = (names.len() as u64, TIMES * names.len() as u64);
    put(&mut client, names, 0..first, |_, _| Ok(()))?;
    let begin = client.growth()?;
    ensure!(
        begin.segments > 0,
        "the server's table has one size, and this needs one that grows; start the server without --capacity and --slots"
    );

    let (there, is_done) = (AtomicU64::new(first), AtomicBool::new(false));
    let bar = Progress::of(last - first, "  putting and reading", "keys");
    let begun = Instant::now();
    let mut outcome = GrowthOutcome::default();
    let readers: Vec<_> = (0..readers()).map(|_| client.clone()).collect();
    let read = |client| read_while(client, names, &there, &is_done);
    let (grown, all) = at_once_beside(readers, read, || {
        let grown = put(&mut client, names, first..last, |client, keys| {
            there.store(keys, Ordering::Release);
            bar.set_position(keys - first);
            let (growth, stats) = (client.growth()?, client.server_stats()?);
            let load = stats.keys as f64 / stats.slots as f64;
            outcome.samples.push(Sample { segments: growth.segments, bytes: growth.bytes_backed, load });
            Ok(())
        });
        is_done.store(true, Ordering::Relaxed);
        grown
    })?;
    outcome.seconds = begun.elapsed().as_secs_f64();
    bar.finish();
    grown?;
    let end = client.growth()?;
    (outcome.keys_before, outcome.keys) = (first, last);
    (outcome.segments_before, outcome.segments) = (begin.segments, end.segments);
    (outcome.bytes_before, outcome.bytes) = (begin.bytes_backed, end.bytes_backed);
    outcome.splits = end.splits - begin.splits;
    let mut times = new_histogram()?;
    let mut reads = 0;
    for seen in all {
        outcome.gets += seen.times.len();
        outcome.failed += seen.failed;
        outcome.missed += seen.missed;
        outcome.wrong += seen.wrong;
        reads += seen.reads;
        times.add(&seen.times)?;
    }
    outcome.reads_per_get = reads as f64 / outcome.gets.max(1) as f64;
    (outcome.p50_ns, outcome.p99_ns) = (times.value_at_quantile(0.5), times.value_at_quantile(0.99));
    Ok(outcome)
}

fn new_histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 1_000_000_000, 3)?)
}

/// Puts these keys. `done` hears how many are there.
fn put(
    client: &mut Client,
    names: &[Named],
    keys: std::ops::Range<u64>,
    mut done: impl FnMut(&mut Client, u64) -> Result<()>,
) -> Result<()> {
    const BATCH: usize = 256;
    for begin in keys.clone().step_by(BATCH) {
        let end = keys.end.min(begin + BATCH as u64);
        let pairs: Vec<_> = (begin..end).map(|number| pair(names, number)).collect();
        put_all(client, &pairs)?;
        done(client, end)?;
    }
    Ok(())
}

struct Seen {
    times: Histogram<u64>,
    failed: u64,
    missed: u64,
    wrong: u64,
    reads: u64,
}

/// Reads keys that are there, at random, until it is done.
fn read_while(mut client: Client, names: &[Named], there: &AtomicU64, is_done: &AtomicBool) -> Result<Seen> {
    let mut seen = Seen { times: new_histogram()?, failed: 0, missed: 0, wrong: 0, reads: 0 };
    let before = client.stats().read.reads;
    let mut value = Vec::new();
    let mut random = rand::rng();
    while !is_done.load(Ordering::Relaxed) {
        let number = random.random_range(0..there.load(Ordering::Acquire));
        let (key, expected) = pair(names, number);
        let begun = Instant::now();
        let found = client.get_into(&key, &mut value);
        seen.times.saturating_record(begun.elapsed().as_nanos() as u64);
        match found {
            Err(_) => seen.failed += 1,
            Ok(false) => seen.missed += 1,
            Ok(true) => seen.wrong += u64::from(value != expected.as_bytes()),
        }
    }
    seen.reads = client.stats().read.reads - before;
    Ok(seen)
}

impl GrowthOutcome {
    pub fn is_well(&self) -> bool {
        self.failed + self.missed + self.wrong == 0
    }

    /// Segments, memory and load over time, one line each.
    pub fn picture(&self) -> String {
        let line = |name: &str, of: fn(&Sample) -> f64, said: fn(f64) -> String| {
            let values: Vec<f64> = columns(&self.samples).map(of).collect();
            let ends = [values.first(), values.last()].map(|end| said(end.copied().unwrap_or(0.0)));
            let [first, last] = ends;
            format!("  {name:<9}{first:>9} {} {last}", bars(&values))
        };
        let bytes = |bytes: f64| show::bytes(bytes as u64);
        [
            line("segments", |sample| sample.segments as f64, |n| format!("{n:.0}")),
            line("memory", |sample| sample.bytes as f64, bytes),
            line("load", |sample| sample.load, |load| format!("{:.0} %", 100.0 * load)),
        ]
        .join("\n")
    }
}

/// As many samples as there are columns, evenly over time.
fn columns(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    (0..COLUMNS).filter_map(|column| samples.get(column * samples.len().saturating_sub(1) / (COLUMNS - 1)))
}

/// Values from 0 on as a line of bars.
pub fn bars(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    values.iter().map(|value| BARS[(value / most * 7.99) as usize % BARS.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_reach_from_the_lowest_to_the_highest() {
        assert_eq!(bars(&[0.0, 1.0, 4.0, 8.0]), "▁▁▄█");
        assert_eq!(bars(&[]), "");
        assert_eq!(bars(&[0.0, 0.0]), "▁▁");
    }

    /// Each number has a key of its own, whose value names it.
    #[test]
    fn pairs_differ() {
        let names = vec![(b"U+0041".to_vec(), "A".to_string()), (b"U+10FFFD".to_vec(), "LAST".to_string())];
        let all: std::collections::HashSet<_> = (0..20).map(|number| pair(&names, number)).collect();
        assert_eq!(all.len(), 20);
        assert_eq!(pair(&names, 3), (b"U+10FFFD.1".to_vec(), "LAST 1".into()));
        assert!(all.iter().all(|(key, _)| key.len() <= KEY_MAX));
    }
}
