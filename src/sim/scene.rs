//! The parameters of a world, and the memory of its server.

use super::history::Recorder;
use super::keys::{KEY_BYTES, KeyNumber, mixed};
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::layout::geometry::{Geometry, Layout};
use crate::layout::hash::Seeds;
use crate::reader::Limits;
use crate::region::Region;
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The layout.
    pub layout: Layout,
    /// Main slots; in a table that grows, of a segment.
    pub slots: u64,
    /// The most segments of a table that grows; 0 for a table of one size.
    pub segments: u64,
    /// Bytes of value. They determine how many lines a slot has.
    pub value_bytes: usize,
    /// Whether every other key has two words, one of which it shares with others ([`mixed`]).
    pub long_keys: bool,
    /// The grace time. A store takes 1 ns.
    pub grace: Duration,
    /// The seed of the table's hashes.
    pub seed: u64,
}

impl Scene {
    fn config(&self) -> Config {
        Config {
            layout: self.layout,
            size: TableSize::Slots(self.slots),
            key_max: KEY_BYTES[usize::from(self.long_keys)],
            value_max: self.value_bytes,
            grace: self.grace,
            seeds: Some(Seeds::from_number(self.seed)),
            ..Config::default()
        }
    }

    /// The number of the `n`th key.
    pub fn number(&self, n: KeyNumber) -> KeyNumber {
        if self.long_keys { mixed(n) } else { n }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.config().geometry().expect("a possible scene").growing(self.segments)
    }
}

/// Memory for a table. Its stores are recorded, and each takes 1 ns.
pub(super) fn memory(geometry: &Geometry) -> (Region, Arc<Recorder>, Clock) {
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    (recorder.region(crate::index::handover_end(geometry)), recorder, clock)
}

/// Bounds of every GET in a world. The clock stands still, so only the retries end a GET.
pub(super) const LIMITS: Limits = Limits { retries_max: 1_000, deadline: Duration::from_secs(3600) };
