//! A table, of one size or one that grows, from its making to its handover.

use super::one::OneSize;
use crate::base::clock::Clock;
use crate::config::Evict;
use crate::fabric::shm::Shm;
use crate::faults::Rule;
use crate::index::change::{Made, What};
use crate::index::entries::EntrySeen;
use crate::index::evict::Evictor;
use crate::index::extents::{ExtentNames, Extents};
use crate::index::growth::Growth;
use crate::index::homes::NotHandedOver;
use crate::index::news::News;
use crate::index::observers::Observers;
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::seams::Between;
use crate::index::segment::{Segment, Stop};
use crate::index::slots::{HeldRoom, SlotWritten};
use crate::index::start::Start;
use crate::index::waits::{ChangeWait, ChangeWaits};
use crate::layout::control::{MOVE_COUNTERS, Phase};
use crate::layout::extent::Reference;
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::life::Life;
use crate::layout::slot::{Key, Stored};
use crate::layout::superblock::Superblock;
use crate::outcome::{IndexCounts, PutError};
use crate::reader::{Limits, Reader};
use crate::region::{Region, RegionError};
use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::time::Duration;

/// The server's side of a table.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one")]
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

    /// T6: waits until no trace is left, writes down what the next server needs to know, and says in the state word
    /// that this server has stopped. Fails if traces stay longer than `within`, or if there is no memory for it. Then
    /// the next server looks at every slot.
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

    /// Counts of operations so far.
    pub fn counts(&self) -> IndexCounts {
        match self {
            Table::One(one) => one.segment().counts(),
            Table::Many(growth) => growth.counts(),
        }
    }

    /// The long values, if the table has any.
    #[inline]
    pub fn extents(&self) -> Option<&Arc<Extents>> {
        match self {
            Table::One(one) => one.segment().extents(),
            Table::Many(growth) => growth.extents.as_ref(),
        }
    }

    /// The observers of changes.
    #[inline]
    pub fn observers(&self) -> &Observers {
        match self {
            Table::One(one) => one.segment().observers(),
            Table::Many(growth) => &growth.observers,
        }
    }

    /// A reader of this table in this process.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let (fabric, geometry) = (Shm::new(self.region(), self.geometry()), self.geometry());
        Reader::new(fabric, geometry, self.clock().clone(), Limits::default())
    }

    /// Lets room go that was held for a key which has not come.
    pub fn let_go(&self, room: &HeldRoom) {
        match self {
            Table::One(one) => one.segment().homes().let_go(room),
            Table::Many(growth) => {
                // L12: the segment stays.
                let guard = epoch::pin();
                growth
                    .live
                    .get(room.memory, &guard)
                    .into_iter()
                    .for_each(|segment| segment.homes().let_go(room));
            }
        }
    }

    /// Makes a change of `key`, in the segment that has it.
    #[inline(always)]
    pub fn change<W: What, B: Between>(
        &self,
        key: &[u8],
        what: W,
        new: Stored<'_>,
        between: B,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        match self {
            Table::One(one) => one.change(key, what, new, between, waits),
            Table::Many(growth) => growth.change(key, what, new, between, waits),
        }
    }

    /// Sleeps until this is over, or may be.
    pub fn sleep(&self, wait: ChangeWait) {
        match (wait, self) {
            (ChangeWait::Memory { due_ns }, _) => self.sleep_for_memory(due_ns),
            (_, Table::One(one)) => one.sleep(wait),
            (_, Table::Many(growth)) => growth.sleep(wait),
        }
    }

    /// Does what is pending for long values. If there is nothing, sleeps until this time, but a millisecond at most:
    /// extents may have to move first.
    fn sleep_for_memory(&self, due_ns: u64) {
        /// Between two steps of that: there may always be another one, and the wait is to end.
        const STEP_NS: u64 = 10_000;
        let has_done = self.extents().is_some_and(|extents| extents.tidy(self));
        let now_ns = self.clock().now_ns();
        let until_ns =
            if has_done { now_ns + STEP_NS } else { due_ns.clamp(now_ns + 1_000, now_ns + 1_000_000) };
        self.clock().sleep_until(until_ns);
    }

    /// To be called between a wait and the next try.
    pub fn waited(&self, wait: ChangeWait) {
        match self {
            Table::One(one) => one.waited(wait),
            Table::Many(growth) => growth.waited(wait),
        }
    }

    /// The next step of a change that is made, but has to wait before it ends.
    pub fn go_on(&self, waits: &ChangeWaits) {
        match self {
            Table::One(_) => {}
            Table::Many(growth) => growth.press_on(waits),
        }
    }

    /// What changes may wait for, when it is there.
    pub fn news(&self) -> &News {
        match self {
            Table::One(one) => one.news(),
            Table::Many(growth) => growth.news(),
        }
    }

    /// Looks at the keys with this hash, in the segment that has them. `None` if they cannot be seen now.
    pub fn look_at<R>(&self, hash: First, mut look: impl FnMut(&Segment) -> Result<R, Stop>) -> Option<R> {
        match self {
            Table::One(one) => look(one.segment()).ok(),
            Table::Many(growth) => growth.look_at(hash, look),
        }
    }

    /// Prefetches the slots in which keys with this hash mostly are.
    pub fn expect(&self, hash: First) {
        self.with_segment_of(hash, |segment| {
            segment.expect(hash);
            Some(())
        });
    }

    /// Counts up every counter of begun moves, if the rule is kept. A reader that has loaded one before looks again.
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
        self.look_at(hash, |segment| segment.entries_of(hash)).unwrap_or_default()
    }

    /// The key whose slot names the extent with this number, and the extent's bytes. `None` if no slot does.
    pub fn key_of_extent(&self, hash: First, number: u64) -> Option<(Key, u64)> {
        self.with_segment_of(hash, |segment| {
            let is_it = |there: &Reference| there.number == number;
            segment.with_name(hash, is_it, |_, _, key, there| (key.clone(), there.len.into()))
        })
    }

    /// The keys in the primary window of a key. When one of them leaves, the key has a slot.
    pub fn keys_beside(&self, key: &[u8]) -> Vec<Key> {
        let key = self.geometry().hashed(key);
        self.with_segment_of(key.first(), |segment| segment.keys_beside(&key)).unwrap_or_default()
    }

    /// Whether the segment of a key with this hash has more keys than its design load, and cannot be split.
    pub fn is_crowded(&self, hash: First) -> bool {
        match self {
            Table::One(one) => one.segment().is_crowded(),
            Table::Many(growth) => growth.is_crowded(hash),
        }
    }

    /// Evicts entries from now on.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for what clients note of their GETs.
    pub fn begin_evicting(&self, policy: Evict) -> Result<(), RegionError> {
        let evictor = Evictor::new(self.geometry(), policy)?;
        self.show_lives(&mut |hash, _| evictor.came(hash));
        self.observers().set_evictor(evictor);
        Ok(())
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

    /// Acts in the segment that has the keys with this hash, or in both segments of a pair.
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
