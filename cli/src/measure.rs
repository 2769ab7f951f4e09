//! Measures a layout by the READs that the client's own GET code issues.

use oneread::IndexCounts;
use oneread::fabric::shm::Shm;
use oneread::layout::hash::{Seeds, mix};
use oneread::reader::{Limits, Reader};
use oneread::region::{Backing, Region};
use oneread::{Clock, Config, Index, Layout, PutError, PutMode, ReadCounts, TableSize};
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::time::Duration;

/// Key and value of FaRM's microbenchmark (NSDI'14, section 5.1): a 64-byte slot.
pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 32;

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

/// The median; 0 for an empty list.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// Makes a 16-byte key from a number.
pub fn key(n: u64) -> [u8; KEY_BYTES] {
    let mut out = [0; KEY_BYTES];
    out[..8].copy_from_slice(&mix(n).to_le_bytes());
    out[8..].copy_from_slice(&n.to_le_bytes());
    out
}

/// The value that belongs to key number `n`.
pub fn value(n: u64) -> [u8; VALUE_BYTES] {
    let mut out = [0; VALUE_BYTES];
    for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(n ^ (i as u64 + 1) << 56).to_le_bytes());
    }
    out
}

/// A table that is being measured, with the numbers of the keys in it.
pub struct Table {
    index: Index,
    clock: Clock,
    live: Vec<u64>,
    next: u64,
    rng: SmallRng,
}

impl Table {
    /// Makes an empty table. Time is simulated: one microsecond for each mutation. A run therefore
    /// depends on its seed alone.
    pub fn new(layout: Layout, slots: u64, seed: u64) -> anyhow::Result<Table> {
        let config = Config::new()
            .layout(layout)
            .size(TableSize::Slots(slots))
            .key_max(KEY_BYTES)
            .value_max(VALUE_BYTES)
            .seeds(Seeds::from_number(seed));
        let geometry = config.geometry()?;
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone())?;
        Ok(Table { index, clock, live: Vec::new(), next: 0, rng: SmallRng::seed_from_u64(seed) })
    }

    pub fn live(&self) -> u64 {
        self.live.len() as u64
    }

    pub fn counts(&self) -> IndexCounts {
        self.index.counts()
    }

    /// Inserts a key that was never in the table.
    pub fn insert(&mut self) -> Result<(), PutError> {
        self.clock.advance(Duration::from_micros(1));
        self.index.put(&key(self.next), &value(self.next), PutMode::Insert)?;
        self.live.push(self.next);
        self.next += 1;
        Ok(())
    }

    /// Removes a random key and inserts a new one.
    pub fn churn(&mut self) -> Result<(), PutError> {
        let victim = self.rng.random_range(0..self.live.len());
        self.index.remove(&key(self.live.swap_remove(victim)))?;
        self.insert()
    }

    /// GETs as many present and as many absent keys as the table holds, and counts READs.
    pub fn measure(&mut self, keys: Keys) -> anyhow::Result<(ReadCounts, ReadCounts)> {
        let n = self.live.len() as u64;
        let hits: Vec<u64> = match keys {
            Keys::Uniform => self.live.clone(),
            Keys::Zipf => {
                let zipf = rand_distr::Zipf::new(n as f64, 0.99)?;
                // The order is random. Otherwise the hottest keys would be the oldest, which were
                // inserted into an empty table.
                let mut ranked = self.live.clone();
                ranked.shuffle(&mut self.rng);
                (0..n).map(|_| ranked[zipf.sample(&mut self.rng) as usize - 1]).collect()
            }
        };
        // Absent keys: numbers that no key has had. Which numbers does not matter: each is new to
        // the table.
        let misses: Vec<u64> = (0..n).map(|i| u64::MAX - i).collect();
        Ok((self.count(&hits, true)?, self.count(&misses, false)?))
    }

    fn count(&self, numbers: &[u64], present: bool) -> anyhow::Result<ReadCounts> {
        let geometry = self.index.geometry();
        let fabric = Shm::new(self.index.region(), geometry);
        let mut reader = Reader::new(fabric, geometry, Clock::System, Limits::default());
        let mut got = Vec::new();
        for &n in numbers {
            let found = reader.get_into(&key(n), &mut got)?;
            anyhow::ensure!(found == present, "key {n}: found {found}, expected {present}");
            anyhow::ensure!(!found || got == value(n), "key {n} has a wrong value");
        }
        Ok(reader.read_counts())
    }

    /// A row that describes the table's present state.
    pub fn row(
        &mut self,
        phase: Phase,
        keys: Keys,
        load_asked: Option<f64>,
        moves_per_insert: f64,
    ) -> anyhow::Result<Row> {
        let (hit, miss) = self.measure(keys)?;
        let n = self.live.len().max(1) as f64;
        let counts = self.index.counts();
        let geometry = self.index.geometry();
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
            displaced: self.index.displaced() as f64 / n,
            window_bytes: geometry.window_bytes(geometry.window(0)),
            live_keys: counts.keys,
            main_slots: counts.main_slots,
            all_slots: counts.slots,
        })
    }
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
