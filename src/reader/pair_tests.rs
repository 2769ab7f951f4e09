//! What hits take while a segment is being split: one READ on either side.

use super::*;
use crate::config::{Config, TableSize};
use crate::fabric::shm::{MappedSlots, Shm};
use crate::fabric::{Direct, ReadId, Stretch};
use crate::get::Proof;
use crate::index::Index;
use crate::layout::geometry::Window;
use crate::layout::hash::Seeds;
use crate::outcome::{PutMode, ReadError};
use crate::region::Region;
use crate::sink::Sink;
use std::time::Duration;

const SEGMENT_SLOTS: u64 = 512;

fn key(n: u64) -> [u8; 16] {
    bytemuck::cast([crate::layout::hash::mix(n), n])
}

/// A table whose first segment is being split, the keys in it, and its clock. Ghosts are gone when the next key comes.
fn splitting(seed: u64) -> (Index, u64, Clock) {
    let config = Config {
        size: TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(SEGMENT_SLOTS) },
        key_max: 16,
        value_max: 32,
        grace: Duration::from_micros(200),
        seeds: Some(Seeds::from_number(seed)),
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    let clock = Clock::manual();
    let index = Index::create(Region::private(geometry.region_bytes()), geometry, clock.clone()).unwrap();
    let mut keys = 0;
    while index.growth().splitting == 0 {
        put(&index, &mut keys, &clock);
    }
    (index, keys, clock)
}

fn put(index: &Index, keys: &mut u64, clock: &Clock) {
    clock.advance(Duration::from_millis(1));
    index.put(&key(*keys), &[7; 32], PutMode::Insert).unwrap();
    *keys += 1;
}

/// The READs that hits of these keys take.
fn hits<F: Fabric<Error = ReadError>>(
    reader: &mut Reader<'_, F>,
    keys: impl IntoIterator<Item = u64>,
) -> u64 {
    let (before, mut value) = (reader.read_counts().reads, Vec::new());
    for n in keys {
        assert_eq!(reader.get_into(&key(n), &mut value), Ok(true), "key {n}");
        assert_eq!(value, [7; 32]);
    }
    reader.read_counts().reads - before
}

/// On shm, from the first home that goes to the last: one READ for each key, and one more for each displaced key. The home's
/// header says on which side the key is.
#[test]
fn hits_on_shm_take_one_read_while_homes_go() {
    for seed in 1..4 {
        let (index, mut keys, clock) = splitting(seed);
        let mut steps = 0;
        while index.growth().splitting == 1 {
            let displaced = index.displaced() as u64;
            assert_eq!(hits(&mut index.reader(), 0..keys), keys + displaced, "seed {seed}, {keys} keys");
            put(&index, &mut keys, &clock);
            steps += 1;
        }
        assert!(steps > 4, "seed {seed}: {steps}");
    }
}

/// READs by the clock, as over a network.
struct ByClock(Shm<'static>);

impl Direct for ByClock {}

impl Fabric for ByClock {
    type Landed<'a> = MappedSlots<'static>;
    const EXACT: bool = false;
    type Mark = ();
    type Error = ReadError;

    fn credits(&self) -> usize {
        self.0.credits()
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.0.post(reads)
    }

    fn poll(&mut self, take: impl FnMut(ReadId, &mut MappedSlots<'static>)) -> Result<(), ReadError> {
        self.0.poll(take)
    }

    fn mark(&mut self, _home: u64) {}

    fn proof(&mut self, _home: u64, (): ()) -> Proof {
        Proof::InGrace
    }

    fn took_less(&mut self, (): (), _allowance: Duration) -> bool {
        true
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        self.0.fetch(stretches, out)
    }
}

/// By the clock, a client that has found a key in the child looks there first for others that go there: one READ for each key
/// of a home that has gone, alone and in a batch.
#[test]
fn hits_by_the_clock_take_one_read_of_homes_that_have_gone() {
    let tried = (1..100).find(|&seed| {
        let (index, mut keys, clock) = splitting(seed);
        // Each insert takes 64 homes on.
        (0..4).for_each(|_| put(&index, &mut keys, &clock));
        let index: &'static Index = Box::leak(Box::new(index));
        let geometry = index.geometry();
        let mut reader =
            Reader::new(ByClock(Shm::new(index.region(), geometry)), geometry, clock, Limits::default());
        let gone: Vec<_> = (0..keys).filter(|&n| geometry.hashed(&key(n)).home() < 4 * 64).collect();
        let first = hits(&mut reader, gone.iter().copied());
        // A home may have had to wait, or a key be displaced.
        if index.growth().splitting != 1 || hits(&mut reader, gone.iter().copied()) != gone.len() as u64 {
            return false;
        }
        assert!(first > gone.len() as u64, "the entry was READ, and the parent looked at in vain");
        let before = reader.read_counts().reads;
        let all: Vec<_> = gone.iter().map(|&n| key(n)).collect();
        let mut found = 0;
        reader.get_many(&all, |_, value| found += usize::from(value.is_some())).unwrap();
        assert_eq!((found, reader.read_counts().reads - before), (gone.len(), gone.len() as u64));
        hits(&mut reader, 0..keys);
        assert_eq!(reader.get_into(b"absent", &mut Vec::new()), Ok(false));
        true
    });
    assert!(tried.is_some(), "of no seed these homes have gone");
}
