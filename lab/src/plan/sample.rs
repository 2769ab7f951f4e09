//! READs of a layout, counted on a table of its geometry.

use super::demand::{
    FILL, GET_HINTED_HIT, GET_HINTED_MISS, GET_HIT, GET_LINES, GET_MISS, HERD_NS, MESSAGE_HEADER, UPDATE,
};
use super::{Demand, Design, PlanError, Side, Workload, within};
use oneread::internals::hints::Hints;
use oneread::internals::layout::hash::{Seeds, mix};
use oneread::{
    Backing, Config, PutMode, TableSize,
    embedded::{Clock, Index, Region},
    error::PutError,
    layout::Layout,
    stats::{IndexCounts, ReadCounts},
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// READs of a layout, counted on a sample table. They depend on the layout, the load and the
/// popularity of keys, hardly on the size, and not on the lengths of key and value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The layout's name.
    pub layout: String,
    #[serde(skip)]
    shape: Layout,
    /// Main slots of the sample.
    pub slots: u64,
    /// Keys over all slots, overflow included, after two deletes and two inserts for each key.
    pub load_true: f64,
    /// READs of a GET that finds its key.
    pub reads_hit: f64,
    /// READs of another.
    pub reads_miss: f64,
    /// Slots that a hit fetches.
    pub slots_hit: f64,
    /// Slots that a miss fetches.
    pub slots_miss: f64,
    /// Moves of other keys for each insert.
    pub moves: f64,
    /// These GETs by a client with hints. `None` for a layout in which hints save nothing.
    pub hinted: Option<HintedSample>,
}

/// What [`Sample::hinted_design`] calls the design of a layout.
pub fn hinted_name(layout: &str) -> String {
    format!("{layout}, hints")
}

/// GETs by a client with a hint for each main slot, which has looked for each key six times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HintedSample {
    /// READs of a GET that finds its key.
    pub reads_hit: f64,
    /// READs of another.
    pub reads_miss: f64,
    /// Round trips of a GET that finds its key: two hinted slots take one.
    pub trips_hit: f64,
    /// Round trips of another.
    pub trips_miss: f64,
    /// Slots that a hit fetches.
    pub slots_hit: f64,
    /// Slots that a miss fetches.
    pub slots_miss: f64,
    /// The client's memory for hints, for each key.
    pub bytes_per_key: f64,
}

impl Sample {
    /// Fills a table of so many main slots to `load` (or the layout's design load), churns it, and
    /// counts the READs of real GETs. Time is simulated: the same arguments give the same numbers.
    ///
    /// # Errors
    /// [`PlanError::Number`], [`PlanError::Sample`], or that there is no memory.
    pub fn count(layout: Layout, slots: u64, load: Option<f64>, zipf: f64) -> Result<Sample, PlanError> {
        within("sample slots", slots as f64, 64.0, (1u64 << 24) as f64)?;
        let load = load.unwrap_or_else(|| layout.preset().map_or(0.85, |p| f64::from(p.design_load) / 100.0));
        within("load", load, 0.01, 1.0)?;
        let mut table = SampleTable::new(layout, slots, 1)?;
        let target = (load * table.counts().main_slots as f64).round() as u64;
        while table.keys() < target && table.insert()? {}
        let before = table.counts().moves;
        let pairs = 2 * table.keys();
        if pairs == 0 {
            return Err(table.failed("it took no key"));
        }
        for _ in 0..pairs {
            table.churn()?;
        }
        let (hits, misses) = table.asked(zipf);
        let (hit, miss) = (table.count(&hits, true, None)?, table.count(&misses, false, None)?);
        let n = table.keys() as f64;
        let counts = table.counts();
        let slot = table.index().geometry().shape().bytes() as f64;
        let hinted = match table.learned()? {
            None => None,
            Some(hints) => {
                let hit = table.count(&hits, true, Some(&hints))?;
                let miss = table.count(&misses, false, Some(&hints))?;
                Some(HintedSample {
                    reads_hit: hit.reads as f64 / n,
                    reads_miss: miss.reads as f64 / n,
                    trips_hit: hit.doorbells as f64 / n,
                    trips_miss: miss.doorbells as f64 / n,
                    slots_hit: hit.bytes as f64 / n / slot,
                    slots_miss: miss.bytes as f64 / n / slot,
                    bytes_per_key: hints.bytes() as f64 / n,
                })
            }
        };
        Ok(Sample {
            layout: layout.preset().map_or_else(|| layout.to_string(), |p| p.name.into()),
            shape: layout,
            slots,
            load_true: counts.keys as f64 / counts.slots as f64,
            reads_hit: hit.reads as f64 / n,
            reads_miss: miss.reads as f64 / n,
            slots_hit: hit.bytes as f64 / n / slot,
            slots_miss: miss.bytes as f64 / n / slot,
            moves: (counts.moves - before) as f64 / pairs as f64,
            hinted,
        })
    }

    /// The design that the sample stands for, for keys and values of the workload's lengths.
    ///
    /// # Errors
    /// [`PlanError::Config`] when they do not fit into a slot.
    pub fn design(&self, workload: &Workload) -> Result<Design, PlanError> {
        let lengths = (workload.key_bytes as usize, workload.value_bytes as usize);
        let config = Config::new().layout(self.shape).size(TableSize::Slots(self.slots));
        let config = config.key_max(lengths.0).value_max(lengths.1).inline_max(lengths.1);
        let slot = config.geometry()?.shape().bytes() as f64;
        let mean = |hit: f64, miss: f64| workload.hits * hit + (1.0 - workload.hits) * miss;
        let reads = mean(self.reads_hit, self.reads_miss);
        let get = Demand {
            reads,
            trips: reads,
            doorbells: reads,
            fetched_bytes: mean(self.slots_hit, self.slots_miss) * slot,
            client_instructions: mean(GET_HIT.instructions, GET_MISS.instructions),
            client_lines: reads,
            touched_lines: reads * GET_LINES,
            ..Demand::default()
        };
        let put = Demand {
            server_instructions: UPDATE.instructions
                + workload.inserts * (FILL.instructions - UPDATE.instructions),
            // The home window, and for each move one more.
            server_lines: 1.0 + workload.inserts * self.moves,
            server_ns: HERD_NS,
            ..put_message(workload)
        };
        let name = self.layout.clone();
        let bytes_per_key = slot / self.load_true;
        let source = format!("counted on {} slots", self.slots);
        let (side, client_bytes_per_key, pause) = (Side::Layout, 0.0, None);
        Ok(Design { name, side, get, put, bytes_per_key, client_bytes_per_key, pause, source })
    }

    /// This design for clients that remember each slot
    /// ([`ClientOptions::hint_bytes`](oneread::ClientOptions::hint_bytes)). `None` where hints save
    /// nothing.
    ///
    /// # Errors
    /// As [`Sample::design`].
    pub fn hinted_design(&self, workload: &Workload) -> Result<Option<Design>, PlanError> {
        let Some(hinted) = self.hinted else { return Ok(None) };
        let plain = self.design(workload)?;
        let mean = |hit: f64, miss: f64| workload.hits * hit + (1.0 - workload.hits) * miss;
        let slot = plain.get.fetched_bytes / mean(self.slots_hit, self.slots_miss);
        let (reads, trips) =
            (mean(hinted.reads_hit, hinted.reads_miss), mean(hinted.trips_hit, hinted.trips_miss));
        let get = Demand {
            reads,
            trips,
            doorbells: trips,
            fetched_bytes: mean(hinted.slots_hit, hinted.slots_miss) * slot,
            client_instructions: mean(GET_HINTED_HIT.instructions, GET_HINTED_MISS.instructions),
            client_lines: trips,
            // The tags of all windows, side by side.
            hint_lines: 1.0,
            touched_lines: reads,
            ..Demand::default()
        };
        let name = hinted_name(&self.layout);
        let source = format!("{}, after six GETs of each key", plain.source);
        Ok(Some(Design { name, get, client_bytes_per_key: hinted.bytes_per_key, source, ..plain }))
    }
}

/// The message of a PUT, and its answer.
pub(super) fn put_message(workload: &Workload) -> Demand {
    Demand {
        messages: 1.0,
        trips: 1.0,
        doorbells: 1.0,
        sent_bytes: (workload.key_bytes + workload.value_bytes) as f64 + MESSAGE_HEADER,
        fetched_bytes: MESSAGE_HEADER,
        ..Demand::default()
    }
}

/// A table that is filled and churned to count what GETs cost. Time is simulated, one microsecond
/// for each change, five in a table that grows, and every choice comes from the seed: the same calls
/// give the same counts.
///
/// Keys have 16 bytes and values 32, as in FaRM's microbenchmark (NSDI'14, section 5.1): one key
/// takes one line. For one thread.
#[derive(Debug)]
pub struct SampleTable {
    layout: Layout,
    index: Arc<Index>,
    clock: Clock,
    /// Simulated time of a change.
    step: Duration,
    /// The numbers of the keys in it.
    live: Vec<u64>,
    next: u64,
    rng: SmallRng,
}

impl SampleTable {
    /// Length of its keys in bytes.
    pub const KEY_BYTES: usize = 16;
    /// Length of its values in bytes.
    pub const VALUE_BYTES: usize = 32;

    /// Makes an empty table with so many main slots.
    ///
    /// # Errors
    /// [`PlanError::Config`], [`PlanError::Memory`].
    pub fn new(layout: Layout, slots: u64, seed: u64) -> Result<SampleTable, PlanError> {
        SampleTable::of_size(layout, TableSize::Slots(slots), Duration::from_micros(1), seed)
    }

    /// Makes an empty table that grows, by segments of so many main slots, to so many keys at least. A
    /// change takes five microseconds: splits are among them.
    ///
    /// # Errors
    /// As [`SampleTable::new`].
    pub fn growing(
        layout: Layout,
        segment_slots: u64,
        keys: u64,
        seed: u64,
    ) -> Result<SampleTable, PlanError> {
        // Four slots for each key: no table that has grown is as empty. And some segments to begin with.
        let bytes_max = 64 * (4 * keys + 16 * segment_slots) + (1 << 20);
        let size = TableSize::Growing { bytes_max, segment_slots: Some(segment_slots) };
        SampleTable::of_size(layout, size, Duration::from_micros(5), seed)
    }

    fn of_size(layout: Layout, size: TableSize, step: Duration, seed: u64) -> Result<SampleTable, PlanError> {
        let config = Config::new().layout(layout).size(size);
        let lengths = config.key_max(SampleTable::KEY_BYTES).value_max(SampleTable::VALUE_BYTES);
        let geometry = lengths.seeds(Seeds::from_number(seed)).geometry()?;
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
        let clock = Clock::manual();
        let index = Arc::new(Index::create(region, geometry, clock.clone())?);
        let rng = SmallRng::seed_from_u64(seed);
        Ok(SampleTable { layout, index, clock, step, live: Vec::new(), next: 0, rng })
    }

    /// Key number `n`.
    pub fn key(n: u64) -> [u8; SampleTable::KEY_BYTES] {
        let mut key = [0; SampleTable::KEY_BYTES];
        key[..8].copy_from_slice(&mix(n).to_le_bytes());
        key[8..].copy_from_slice(&n.to_le_bytes());
        key
    }

    /// The value of key number `n`.
    pub fn value(n: u64) -> [u8; SampleTable::VALUE_BYTES] {
        let mut value = [0; SampleTable::VALUE_BYTES];
        for (i, word) in value.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mix(n ^ (i as u64 + 1) << 56).to_le_bytes());
        }
        value
    }

    /// Number of keys in it.
    pub fn keys(&self) -> u64 {
        self.live.len() as u64
    }

    /// What it holds and what was done to it.
    pub fn counts(&self) -> IndexCounts {
        self.index.counts()
    }

    /// The table itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The table itself, for readers that stay while it changes.
    pub(super) fn shared(&self) -> Arc<Index> {
        self.index.clone()
    }

    /// Ends the splits and merges that are under way, and lets all traces go.
    pub(super) fn rest(&self) {
        while self.index.tidy().is_some() {
            self.clock.advance(2 * self.index.geometry().grace());
        }
    }

    /// The numbers of the keys in it.
    pub(super) fn live(&self) -> &[u64] {
        &self.live
    }

    /// Puts the keys' numbers into a random order. Those that stand first are asked for most.
    pub(super) fn shuffle(&mut self) {
        self.live.shuffle(&mut self.rng);
    }

    /// How popular its keys are now. `None` if all are alike.
    pub(super) fn popular(&self, zipf: f64) -> Option<Zipf<f64>> {
        Zipf::new(self.live.len().max(1) as f64, zipf).ok().filter(|_| zipf > 0.0)
    }

    /// The number of a key to look for.
    pub(super) fn asked_for(&mut self, popular: Option<&Zipf<f64>>) -> u64 {
        let n = self.live.len();
        let at = match popular {
            // There may be fewer keys by now.
            Some(ranks) => (ranks.sample(&mut self.rng) as usize).clamp(1, n) - 1,
            None => self.rng.random_range(0..n),
        };
        self.live[at]
    }

    pub(super) fn failed(&self, why: impl ToString) -> PlanError {
        PlanError::Sample { layout: self.layout.to_string(), why: why.to_string() }
    }

    /// Inserts a key that was never in the table. Returns whether there was room.
    ///
    /// # Errors
    /// [`PlanError::Sample`].
    pub fn insert(&mut self) -> Result<bool, PlanError> {
        self.clock.advance(self.step);
        let (key, value) = (SampleTable::key(self.next), SampleTable::value(self.next));
        match self.index.put(&key, &value, PutMode::Insert) {
            Ok(_) => {}
            Err(PutError::Full { .. }) => return Ok(false),
            Err(error) => return Err(self.failed(error)),
        }
        self.live.push(self.next);
        self.next += 1;
        Ok(true)
    }

    /// Removes a random key and inserts a new one. Returns whether there was room: if not, the table
    /// has one key less from here on.
    ///
    /// # Errors
    /// [`PlanError::Sample`], also when there is no key.
    pub fn churn(&mut self) -> Result<bool, PlanError> {
        self.remove_random()?;
        self.insert()
    }

    /// Removes a random key.
    ///
    /// # Errors
    /// [`PlanError::Sample`], also when there is no key.
    pub fn remove(&mut self) -> Result<(), PlanError> {
        self.clock.advance(self.step);
        self.remove_random()
    }

    fn remove_random(&mut self) -> Result<(), PlanError> {
        if self.live.is_empty() {
            return Err(self.failed("it has no key"));
        }
        let victim = self.rng.random_range(0..self.live.len());
        let key = SampleTable::key(self.live.swap_remove(victim));
        self.index.remove(&key).map(drop).map_err(|error| self.failed(error))
    }

    /// READs of as many GETs of present keys as the table has keys, and of as many of absent ones.
    /// `zipf` is the exponent of the keys' popularity: 0 gets each key once.
    ///
    /// # Errors
    /// [`PlanError::Sample`] if a GET fails or gives a wrong answer.
    pub fn reads(&mut self, zipf: f64) -> Result<(ReadCounts, ReadCounts), PlanError> {
        let (hits, misses) = self.asked(zipf);
        Ok((self.count(&hits, true, None)?, self.count(&misses, false, None)?))
    }

    /// The numbers of keys to look for: as many present ones as there are, and as many absent ones.
    fn asked(&mut self, zipf: f64) -> (Vec<u64>, Vec<u64>) {
        let n = self.live.len();
        let mut hits = self.live.clone();
        if let Some(ranks) = self.popular(zipf) {
            // The order is random. Otherwise the hottest keys would be the oldest, which were
            // inserted into an empty table.
            hits.shuffle(&mut self.rng);
            let rank = |rng: &mut SmallRng| (ranks.sample(rng) as usize).clamp(1, n) - 1;
            hits = (0..n).map(|_| hits[rank(&mut self.rng)]).collect();
        }
        // Numbers that no key has had. Which ones does not matter: each is new to the table.
        (hits, (0..n as u64).map(|i| u64::MAX - i).collect())
    }

    /// READs of a GET of each key by a client with hints
    /// ([`ClientOptions::hint_bytes`](oneread::ClientOptions::hint_bytes)), a byte for each main slot,
    /// after six GETs of each. And the bytes of its memory that hints take. `None` for a layout in
    /// which hints save nothing.
    ///
    /// # Errors
    /// As [`SampleTable::reads`].
    pub fn hinted_reads(&self) -> Result<Option<(ReadCounts, u64)>, PlanError> {
        let Some(hints) = self.learned()? else { return Ok(None) };
        Ok(Some((self.count(&self.live, true, Some(&hints))?, hints.bytes())))
    }

    /// Hints, after six GETs of each key.
    fn learned(&self) -> Result<Option<Hints>, PlanError> {
        const ROUNDS: u32 = 6;
        let Some(hints) = Hints::new(self.index.geometry(), usize::MAX) else { return Ok(None) };
        for _ in 0..ROUNDS {
            self.count(&self.live, true, Some(&hints))?;
        }
        Ok(Some(hints))
    }

    fn count(
        &self,
        numbers: &[u64],
        is_present: bool,
        hints: Option<&Hints>,
    ) -> Result<ReadCounts, PlanError> {
        let mut reader = self.index.reader();
        if let Some(hints) = hints {
            reader = reader.with_hints(hints);
        }
        let mut value = Vec::new();
        for &n in numbers {
            let found =
                reader.get_into(&SampleTable::key(n), &mut value).map_err(|error| self.failed(error))?;
            if found != is_present || found && value != SampleTable::value(n) {
                return Err(self.failed(format_args!("a GET of key {n} gave a wrong answer")));
            }
        }
        Ok(reader.read_counts())
    }
}
