//! A table, of one size or one that grows, from its making to its handover.

use super::one::OneSize;
use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::faults::Rule;
use crate::index::decide::Decides;
use crate::index::entries::EntrySeen;
use crate::index::extents::{ExtentNames, Extents};
use crate::index::growth::Growth;
use crate::index::homes::NotHandedOver;
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::seams::{Between, Changed};
use crate::index::segment::{Segment, Which};
use crate::index::slots::SlotWritten;
use crate::index::told::Hearers;
use crate::layout::control::{MOVE_COUNTERS, Phase};
use crate::layout::extent::Reference;
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::life::Life;
use crate::layout::slot::{Key, Stored};
use crate::layout::superblock::Superblock;
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome};
use crate::reader::{Limits, Reader};
use crate::region::{Region, RegionError};
use crate::start::Start;
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::time::Duration;

/// The server's side of a table.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one, and a pointer more would cost each operation")]
pub(crate) enum Table {
    /// A table of one size.
    One(OneSize),
    /// A table that grows.
    Many(Growth),
}

impl Table {
    /// Makes an empty table that is not yet in service.
    pub fn create_unready(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Table, RegionError> {
        let table = if geometry.grows() {
            Table::Many(Growth::create_unready(region, geometry, clock, start)?)
        } else {
            Table::One(OneSize::create_unready(region, geometry, clock, start)?)
        };
        table.publish_state(Phase::Starting);
        Ok(table)
    }

    /// Takes a table over from a server that is gone.
    pub fn open(region: Region, clock: Clock, start: &Start) -> Result<(Table, Recovered), RecoverError> {
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))?;
        Ok(if geometry.grows() {
            let (growth, found) = Growth::open(region, geometry, clock, start)?;
            (Table::Many(growth), found)
        } else {
            let (one, found) = OneSize::open(region, clock, start)?;
            (Table::One(one), found)
        })
    }

    /// T6: waits until no trace is left, writes down what the next server needs to know, and says in
    /// the state word that this server has stopped. Does not if traces stay longer than `within`, or
    /// there is no memory for it. Then the next server looks at every slot.
    ///
    /// Nobody may change the table meanwhile or later.
    pub fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        match self {
            Table::One(one) => one.hand_over(within),
            Table::Many(growth) => growth.hand_over(within),
        }
    }

    /// Writes the state word.
    pub fn publish_state(&self, phase: Phase) {
        match self {
            Table::One(one) => one.publish_state(phase),
            Table::Many(growth) => growth.publish_state(phase),
        }
    }

    #[inline]
    pub fn region(&self) -> &Region {
        match self {
            Table::One(one) => one.region(),
            Table::Many(growth) => &growth.region,
        }
    }

    #[inline]
    pub fn geometry(&self) -> &Geometry {
        match self {
            Table::One(one) => one.geometry(),
            Table::Many(growth) => &growth.geometry,
        }
    }

    /// Which server process of this region this is, counted from 1.
    pub fn incarnation(&self) -> u64 {
        match self {
            Table::One(one) => one.incarnation(),
            Table::Many(growth) => growth.incarnation,
        }
    }

    pub fn clock(&self) -> &Clock {
        match self {
            Table::One(one) => one.segment().homes().grace().clock(),
            Table::Many(growth) => growth.grace.clock(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> IndexCounts {
        match self {
            Table::One(one) => one.segment().counts(),
            Table::Many(growth) => growth.counts(),
        }
    }

    /// Where long values are, if there are any.
    #[inline]
    pub fn extents(&self) -> Option<&Arc<Extents>> {
        match self {
            Table::One(one) => one.segment().extents(),
            Table::Many(growth) => growth.extents.as_ref(),
        }
    }

    /// Who is told of changes.
    #[inline]
    pub fn told(&self) -> &Hearers {
        match self {
            Table::One(one) => one.segment().told(),
            Table::Many(growth) => &growth.told,
        }
    }

    /// A reader of this table in this process.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let (fabric, geometry) = (Shm::new(self.region(), self.geometry()), self.geometry());
        Reader::new(fabric, geometry, self.clock().clone(), Limits::default())
    }

    /// Puts `key` with `value`, as `mode` allows.
    #[inline(always)]
    pub fn put<B: Between>(
        &self,
        key: &[u8],
        value: Stored<'_>,
        mode: PutMode,
        between: B,
    ) -> Result<PutOutcome, PutError> {
        match self {
            Table::One(one) => one.put_by(key, value, mode, between),
            Table::Many(growth) => growth.put_by(key, value, mode, between),
        }
    }

    /// Makes a change that depends on what the key has. Returns what became of the key.
    pub fn change<B: Between>(
        &self,
        key: &[u8],
        change: &mut impl Decides,
        between: B,
    ) -> Result<Option<Changed>, PutError> {
        match self {
            Table::One(one) => one.change_by(key, change, between),
            Table::Many(growth) => growth.change_by(key, change, between),
        }
    }

    /// Removes `key`, if its entry is such a one. Returns whether it was there.
    #[inline(always)]
    pub fn remove<B: Between>(&self, key: &[u8], which: Which, between: B) -> Result<bool, PutError> {
        match self {
            Table::One(one) => one.remove_by(key, which, between),
            Table::Many(growth) => growth.remove_by(key, which, between),
        }
    }

    /// The keys with this hash, and their lives. `None` if that cannot be seen now.
    pub fn lives_of(&self, hash: First) -> Option<Vec<(Key, Life)>> {
        match self {
            Table::One(one) => one.segment().lives_of(hash).ok(),
            Table::Many(growth) => growth.lives_of(hash),
        }
    }

    /// The same of a hash whose time has come: it is noted when the next of them ends, and `again` where one has ended (V3).
    pub fn lives_due(&self, hash: First, now: u64, again: u32) -> Option<Vec<(Key, Life)>> {
        match self {
            Table::One(one) => one.segment().lives_due(hash, now, again).ok(),
            Table::Many(growth) => growth.lives_due(hash, now, again),
        }
    }

    /// Asks for the slots in which keys with this hash mostly are.
    pub fn expect(&self, hash: First) {
        self.with_segment_of(hash, |segment| {
            segment.expect(hash);
            Some(())
        });
    }

    /// Lets every counter of begun moves go up, if the rule is kept: whoever has loaded one before looks again.
    pub fn count_all_moves(&self, rule: Rule) {
        let guard = epoch::pin();
        let any = match self {
            Table::One(one) => Some(one.segment()),
            Table::Many(growth) => growth.live.all(&guard).next(),
        };
        any.into_iter().for_each(|segment| segment.homes().count_homes(0..MOVE_COUNTERS, rule));
    }

    /// The entries of keys with this hash.
    pub fn entries_of(&self, hash: First) -> Vec<EntrySeen> {
        match self {
            Table::One(one) => one.segment().entries_of(hash).unwrap_or_default(),
            Table::Many(growth) => growth.entries_of(hash),
        }
    }

    /// The key whose slot names the extent with this number, and the bytes of that. `None` if none does.
    pub fn key_of_extent(&self, hash: First, number: u64) -> Option<(Key, u64)> {
        self.with_segment_of(hash, |segment| {
            let is_it = |there: &Reference| there.number == number;
            segment.with_name(hash, is_it, |_, _, key, there| (key.clone(), there.len.into()))
        })
    }

    /// The keys in the primary window of a key: when one of them leaves, there is a slot for it.
    pub fn keys_beside(&self, key: &[u8]) -> Vec<Key> {
        let key = self.geometry().hashed(key);
        self.with_segment_of(key.first(), |segment| segment.keys_beside(&key)).unwrap_or_default()
    }

    /// Whether there is more in the segment of a key with this hash than it is meant for, and no other to take some.
    pub fn is_crowded(&self, hash: First) -> bool {
        match self {
            Table::One(one) => one.segment().is_crowded(),
            Table::Many(growth) => growth.is_crowded(hash),
        }
    }

    /// Shows the hash and the life of each key. Nobody changes the table meanwhile.
    pub fn show_lives(&self, see: &mut dyn FnMut(First, Option<Life>)) {
        match self {
            Table::One(one) => one.segment().show_lives(see),
            Table::Many(growth) => {
                growth.live.all(&epoch::pin()).for_each(|segment| segment.show_lives(see));
            }
        }
    }

    /// Does something in the segment that has the keys with this hash; in each segment of a pair, if they
    /// are in one.
    pub fn with_segment_of<R>(&self, hash: First, act: impl Fn(&Segment) -> Option<R>) -> Option<R> {
        match self {
            Table::One(one) => act(one.segment()),
            Table::Many(growth) => growth.with_segment_of(hash, act),
        }
    }
}

impl ExtentNames for Table {
    fn named(&self, hash: First, number: u64) -> Option<(First, Reference)> {
        self.with_segment_of(hash, |segment| {
            let is_it = |there: &Reference| there.number == number;
            segment.with_name(hash, is_it, |_, _, key, there| (self.geometry().hashed(key).first(), there))
        })
    }

    fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten> {
        self.with_segment_of(hash, |segment| segment.rename(hash, old, new))
    }
}
