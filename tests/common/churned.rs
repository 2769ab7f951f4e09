//! A table that has been churned, and what GETs of its keys take. For the tests of hints, on every
//! fabric.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use oneread::fabric::Fabric;
use oneread::internals::hints::Hints;
use oneread::internals::layout::hash::mix;
use oneread::{
    Config, Limits, PutMode, TableSize,
    embedded::{Clock, Index, Reader, Region},
    error::PutError,
    fabric::Shm,
    layout::{Geometry, Layout, Seeds},
    stats::{HintCounts, ReadCounts},
};
use std::fmt::Debug;
use std::time::Duration;

/// Keys of 16 bytes with values of 32, so that a slot is one line.
pub fn key(n: u64) -> [u8; 16] {
    bytemuck::cast([mix(n), n])
}

/// A table that has been churned, and the numbers of its keys.
pub struct Table {
    pub index: Index,
    pub clock: Clock,
    pub live: Vec<u64>,
    next: u64,
    random: u64,
}

/// What such a table is made by.
pub fn config(layout: Layout, slots: u64) -> Config {
    let config = Config::new().layout(layout).size(TableSize::Slots(slots)).seeds(Seeds::from_number(1));
    config.key_max(16).value_max(32)
}

pub fn geometry(layout: Layout, slots: u64) -> Geometry {
    config(layout, slots).geometry().unwrap()
}

impl Table {
    /// A table in this region, filled to `percent`. Then two keys for each one are replaced.
    pub fn churned(region: Region, geometry: Geometry, clock: Clock, percent: u64) -> Table {
        let keys = geometry.main_slots() * percent / 100;
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let mut table = Table { index, clock, live: Vec::new(), next: 0, random: 0 };
        (0..keys).for_each(|_| table.insert());
        (0..2 * keys).for_each(|_| table.replace());
        table
    }

    pub fn new(layout: Layout, slots: u64, percent: u64) -> Table {
        let geometry = geometry(layout, slots);
        let region = Region::create(&oneread::Backing::Anonymous, geometry.region_bytes()).unwrap();
        Table::churned(region, geometry, Clock::manual(), percent)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.random += 1;
        mix(self.random) % n
    }

    pub fn insert(&mut self) {
        self.clock.advance(Duration::from_micros(1));
        match self.index.put(&key(self.next), &[7; 32], PutMode::Insert) {
            Ok(_) => self.live.push(self.next),
            // A little below the load that was asked for.
            Err(PutError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.next += 1;
    }

    /// Removes a key, and inserts a new one.
    pub fn replace(&mut self) {
        let at = self.below(self.live.len() as u64) as usize;
        assert!(self.index.remove(&key(self.live.swap_remove(at))).unwrap());
        self.insert();
    }

    pub fn reader<'a>(&'a self, hints: Option<&'a Hints>) -> Reader<'a, Shm<'a>> {
        reader(&self.index, hints)
    }

    /// Hints of a byte a slot, after so many GETs of each key.
    pub fn learned(&self, rounds: u32) -> Option<Hints> {
        let hints = Hints::new(self.index.geometry(), usize::MAX)?;
        for _ in 0..rounds {
            hits(&mut self.reader(Some(&hints)), &self.live);
        }
        Some(hints)
    }
}

/// A reader of a table in this process.
pub fn reader<'a>(index: &'a Index, hints: Option<&'a Hints>) -> Reader<'a, Shm<'a>> {
    let geometry = index.geometry();
    let shm = Shm::new(index.region(), geometry);
    let reader = Reader::new(shm, geometry, Clock::manual(), Limits::default());
    match hints {
        None => reader,
        Some(hints) => reader.with_hints(hints),
    }
}

/// What GETs of keys that are there took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub gets: f64,
    pub reads: ReadCounts,
    pub hints: HintCounts,
}

impl Took {
    pub fn reads(&self) -> f64 {
        self.reads.reads as f64 / self.gets
    }

    pub fn bytes(&self) -> f64 {
        self.reads.bytes as f64 / self.gets
    }

    pub fn trips(&self) -> f64 {
        self.reads.doorbells as f64 / self.gets
    }

    /// GETs that a hint answered, in percent.
    pub fn hit_rate(&self) -> f64 {
        100.0 * self.hints.hits as f64 / self.gets
    }
}

/// Looks for these keys, which are there.
pub fn hits<F: Fabric<Error: Debug>>(reader: &mut Reader<'_, F>, numbers: &[u64]) -> Took {
    let mut value = Vec::new();
    for &n in numbers {
        assert!(reader.get_into(&key(n), &mut value).unwrap() && value == [7; 32], "key {n}");
    }
    let (reads, hints) = (reader.read_counts(), reader.hint_counts());
    assert_eq!(reader.stats().gets, numbers.len() as u64);
    Took { gets: numbers.len() as f64, reads, hints }
}
