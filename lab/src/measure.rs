//! Measures a layout by the READs that the client's own GET code issues.

use crate::plan::{PlanError, SampleTable};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use oneread_kit::show;
use oneread_kit::threads::at_once;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One measurement. The names are those of the JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub family: String,
    pub preset: String,
    pub phase: Phase,
    pub keys: Keys,
    /// The load asked for, counted against main slots; null for the highest load reached.
    pub load_asked: Option<f64>,
    pub load_true: f64,
    pub load_main: f64,
    pub reads_hit: f64,
    pub reads_miss: f64,
    pub bytes_hit: f64,
    pub bytes_miss: f64,
    pub trips_hit: f64,
    pub trips_miss: f64,
    pub moves_per_insert: f64,
    pub displaced: f64,
    pub window_bytes: u64,
    pub live_keys: u64,
    pub main_slots: u64,
    pub all_slots: u64,
    /// The hits of a client with hints. Left out unless asked for, and where hints save nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hinted: Option<HintedHits>,
}

/// Hits of a client that has looked for each key some times, with a byte of hints for each main
/// slot.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HintedHits {
    pub reads: f64,
    pub bytes: f64,
    pub trips: f64,
    pub client_bytes_per_key: f64,
}

impl HintedHits {
    pub fn of(table: &SampleTable) -> Result<Option<HintedHits>, PlanError> {
        let n = table.keys().max(1) as f64;
        Ok(table.hinted_reads()?.map(|(counts, bytes)| HintedHits {
            reads: counts.reads as f64 / n,
            bytes: counts.bytes as f64 / n,
            trips: counts.doorbells as f64 / n,
            client_bytes_per_key: bytes as f64 / n,
        }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Filled by inserts alone.
    Fresh,
    /// After 2N pairs of one delete and one insert each.
    Steady,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// Every key as often as any other.
    Uniform,
    /// Zipfian with exponent 0.99, as in YCSB.
    Zipf,
}

impl Keys {
    /// The exponent of their popularity.
    fn zipf(self) -> f64 {
        match self {
            Keys::Uniform => 0.0,
            Keys::Zipf => 0.99,
        }
    }
}

/// The keys and values of every bench.
pub const KEY_BYTES: usize = SampleTable::KEY_BYTES;
pub const VALUE_BYTES: usize = SampleTable::VALUE_BYTES;

pub fn key(n: u64) -> [u8; KEY_BYTES] {
    SampleTable::key(n)
}

pub fn value(n: u64) -> [u8; VALUE_BYTES] {
    SampleTable::value(n)
}

/// For latencies in nanoseconds, from 1 ns to a minute, with three digits.
pub fn latencies() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// A quantile of what was sampled. `None` if nothing was.
pub fn quantile(sampled: &Histogram<u64>, part: f64) -> Option<u64> {
    (!sampled.is_empty()).then(|| sampled.value_at_quantile(part))
}

/// What a table shows of a figure: `-` if nothing was sampled.
pub fn told<T>(sampled: Option<T>, tell: impl FnOnce(T) -> String) -> String {
    sampled.map_or("-".into(), tell)
}

/// As [`told`], for nanoseconds.
pub fn told_ns(sampled: Option<u64>) -> String {
    told(sampled, |ns| show::nanos(ns as f64))
}

/// The median; 0 for an empty list.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// What `make` makes of each job, in the order of the jobs. There is a thread for each CPU, which takes one
/// after the other. The first thread that failed or panicked is an error.
pub fn on_all_cpus<J: Sync, T: Send>(jobs: &[J], make: impl Fn(&J) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        // One thread takes each number; nothing else is shared.
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        for (n, job) in numbers.map_while(|n| Some((n, jobs.get(n)?))) {
            done.push((n, make(job)?));
        }
        Ok(done)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    let mut all: Vec<(usize, T)> = at_once(0..threads, |_| work())?.into_iter().flatten().collect();
    all.sort_by_key(|(n, _)| *n);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

impl Row {
    /// Describes a table's present state.
    pub fn of(
        table: &mut SampleTable,
        phase: Phase,
        keys: Keys,
        load_asked: Option<f64>,
        moves_per_insert: f64,
    ) -> Result<Row, PlanError> {
        let (hit, miss) = table.reads(keys.zipf())?;
        let n = table.keys().max(1) as f64;
        let counts = table.counts();
        let geometry = table.index().geometry();
        let layout = geometry.layout();
        Ok(Row {
            family: layout.family.name().into(),
            preset: layout.preset().map_or_else(|| layout.to_string(), |p| p.name.into()),
            phase,
            keys,
            load_asked,
            load_true: counts.keys as f64 / counts.slots as f64,
            load_main: counts.keys as f64 / counts.main_slots as f64,
            reads_hit: hit.reads as f64 / n,
            reads_miss: miss.reads as f64 / n,
            bytes_hit: hit.bytes as f64 / n,
            bytes_miss: miss.bytes as f64 / n,
            trips_hit: hit.doorbells as f64 / n,
            trips_miss: miss.doorbells as f64 / n,
            moves_per_insert,
            displaced: table.index().displaced() as f64 / n,
            window_bytes: geometry.window_bytes(geometry.window(0)),
            live_keys: counts.keys,
            main_slots: counts.main_slots,
            all_slots: counts.slots,
            hinted: None,
        })
    }
}

/// The CPUs that this thread may use.
pub fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("asking which CPUs this process may use")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Has this thread, and the threads and processes that it starts from here on, run on these CPUs only.
pub fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).with_context(|| format!("running on CPUs {cpus:?} only"))
}

/// The CPU's name, the number of CPUs, and the kernel's setting for huge pages.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    let chosen =
        |path: &str| read(path).split(['[', ']']).nth(1).map_or_else(|| "unknown".to_owned(), str::to_owned);
    format!(
        "{model}, {cpus} CPUs; huge pages: anonymous {}, shared {}",
        chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A layout's row of the picture and the table.
    pub fn row(hinted: Option<HintedHits>) -> Row {
        Row {
            family: "cuckoo".into(),
            preset: "pilaf".into(),
            phase: Phase::Steady,
            keys: Keys::Zipf,
            load_asked: None,
            load_true: 0.8125,
            load_main: 0.91,
            reads_hit: 1.25,
            reads_miss: 2.5,
            bytes_hit: 100.0,
            bytes_miss: 200.0,
            trips_hit: 1.0,
            trips_miss: 2.0,
            moves_per_insert: 0.5,
            displaced: 0.1,
            window_bytes: 64,
            live_keys: 91,
            main_slots: 100,
            all_slots: 112,
            hinted,
        }
    }

    /// What was not sampled is no 0.
    #[test]
    fn nothing_sampled_is_no_zero() {
        let mut sampled = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        assert_eq!((quantile(&sampled, 0.5), told_ns(None)), (None, "-".into()));
        sampled.record(700).unwrap();
        assert_eq!(quantile(&sampled, 0.99), Some(700));
        assert_eq!(told_ns(Some(700)), show::nanos(700.0));
    }
}
