//! A table of one size: one segment, from its making to its handover.

use crate::base::clock::Clock;
use crate::base::cores::Cores;
use crate::faults::{Rule, kept, obey};
use crate::index::change::{Made, What};
use crate::index::homes::{
    Handover, NotHandedOver, REAP_MAX, handover_offset, has_no_undo, traces_stay, write_down,
};
use crate::index::publish::{publish_state, publish_superblock};
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::seams::{Between, LetsGo};
use crate::index::segment::{Segment, Stop};
use crate::index::slots::HeldRoom;
use crate::index::start::{Start, StartStep};
use crate::layout::WORD;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::{Key, Stored};
use crate::layout::superblock::Superblock;
use crate::outcome::PutError;
use crate::region::{Region, RegionError};
use std::ops::Range;
use std::time::Duration;

/// Slots that a thread makes before it takes the next ones.
const PIECE: u64 = 1 << 15;

/// A table of one size.
#[derive(Debug)]
pub(crate) struct OneSize {
    segment: Segment,
    incarnation: u64,
}

/// The error of a table of one segment.
#[cold]
fn in_one(stop: Stop) -> PutError {
    match stop {
        Stop::Refused(error) => error,
        Stop::Elsewhere | Stop::NoRoom => unreachable!("the one segment has every key"),
        Stop::Waits => unreachable!("nobody is between"),
    }
}

impl OneSize {
    /// Makes an empty table that is not yet in service.
    pub fn create_unready(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<OneSize, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        let end = geometry.slot_offset(SlotIx(geometry.main_slots()));
        region.make_huge(0..geometry.table_offset(), 0..end);
        region.back(0..geometry.table_offset())?;
        let table = OneSize { segment: Segment::whole(region, geometry, clock, start), incarnation: 1 };
        table.publish_state(Phase::Starting);
        publish_superblock(table.region(), table.geometry());
        let (slots, slot_bytes) = (table.geometry().main_slots(), table.geometry().shape().bytes() as u64);
        start.step(StartStep::Make, slots * slot_bytes, |done| {
            let make = |slots: Range<u64>| table.segment.slots().make(slots);
            let made = start.split(0..slots, PIECE, make, |slots| done(slots * slot_bytes));
            made.ok_or(RegionError::Cancelled)?.into_iter().collect::<Result<(), _>>()
        })?;
        Ok(table)
    }

    /// Takes a table over from a server that is gone.
    pub fn open(region: Region, clock: Clock, start: &Start) -> Result<(OneSize, Recovered), RecoverError> {
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))?;
        let State { incarnation, phase } = State::from_word(region.load(STATE_WORD));
        if phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let table =
            OneSize { segment: Segment::whole(region, geometry, clock, start), incarnation: incarnation + 1 };
        let homes = table.segment.homes();
        if phase == Phase::Stopped {
            if let Some(handover) = table.handed_over(start.cores) {
                // T7: if this server is killed from here on, nobody takes this handover again.
                obey(Rule::HandoverOnce, || table.publish_state(Phase::Serving));
                let keys = homes.take_handover(handover);
                let mut found = Recovered { keys, handed_over: true, ..Recovered::default() };
                table.take_extents(start.cores, &mut found);
                return Ok((table, found));
            }
            tracing::warn!("what the last server handed over is damaged; every slot is looked at");
        }
        // T1: after this wait no GET over a network rests on the old server's traces. A pass that began before it has
        // taken T or longer by its clock, so the GET looks again (G4, G7). A GET on shm does not go by time: it looks
        // again if its counter goes up (M4, T5).
        homes.grace().clock().sleep_until(homes.grace().due_ns(Rule::TakeoverGrace));
        // Clients that have the region mapped read while it is mended, so it stays in service. With
        // `Starting`, a server killed from here on would leave a region that the next one refuses.
        // The incarnation is counted first, so that a takeover cut off has a number of its own. New
        // clients come later: the server binds its socket when this is done (`server/mod.rs`).
        table.publish_state(Phase::Serving);
        let bytes = table.geometry().main_slots() * table.geometry().shape().bytes() as u64;
        let found = start.step(StartStep::Survey, bytes, |done| homes.survey(start, done));
        let mut found = found.ok_or(RecoverError::Cancelled)?;
        table.take_extents(start.cores, &mut found);
        Ok((table, found))
    }

    /// X5, after every slot is restored and mended.
    fn take_extents(&self, cores: Cores, found: &mut Recovered) {
        let Some(extents) = self.segment.extents() else { return };
        let homes = self.segment.homes();
        let named = homes.all_references(cores);
        let mut bad = Vec::new();
        let references = named.iter().map(|&(_, reference)| reference);
        extents.take_over(references, |nth| bad.push(nth));
        // The keys are read first: when one is removed, another key of its chain may come into its slot.
        let bad: Vec<Key> = bad.into_iter().map(|nth| homes.key_in(named[nth].0)).collect();
        bad.iter().for_each(|key| homes.drop_misplaced(key, found));
    }

    /// As [`Table::hand_over`](super::Table::hand_over).
    pub fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        let homes = self.segment.homes();
        let reap = || homes.reap(usize::MAX);
        if obey(Rule::StopAtRest, || traces_stay(homes.grace(), reap, within)) {
            return Err(NotHandedOver::Traces(within));
        }
        let words = homes.handover(self.incarnation);
        write_down(self.region(), self.geometry(), &words, || self.publish_state(Phase::Stopped))
    }

    /// Finds the handover of the server that had the region before, if it is whole (T7).
    fn handed_over(&self, cores: Cores) -> Option<Handover> {
        if !kept(Rule::HandoverCheck, || has_no_undo(self.region(), self.geometry())) {
            return None;
        }
        let first = handover_offset(self.geometry()) / WORD as u64;
        self.segment.homes().find_handover(first, self.incarnation.wrapping_sub(1), cores)
    }

    /// Writes the state word, with one store.
    pub fn publish_state(&self, phase: Phase) {
        publish_state(self.region(), self.incarnation, phase);
    }

    #[inline(always)]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    #[inline(always)]
    pub fn region(&self) -> &Region {
        self.segment.region()
    }

    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        self.segment.geometry()
    }

    /// Which server of the region this is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes a change. Every GET that starts after the return sees it.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    #[inline(always)]
    pub fn change<W: What, B: Between>(
        &self,
        key: &[u8],
        what: W,
        new: Stored<'_>,
        between: B,
    ) -> Made<W, PutError> {
        what.check(self.geometry(), key, &new)?;
        self.segment.homes().reap(REAP_MAX);
        let key = self.geometry().hashed(key);
        let _held = LetsGo(between, |room: &HeldRoom| self.segment.homes().let_go(room));
        loop {
            match what.make(&self.segment, &key, &new, between) {
                Err(Stop::Waits) if B::MAY_WAIT => between.wait()?,
                made => return made.map_err(in_one),
            }
        }
    }

    /// Takes away every trace that is due. Mutations do this in passing; a server also does it when
    /// idle. Returns how long until the next trace is due.
    pub fn tidy(&self) -> Option<Duration> {
        self.segment.homes().reap(usize::MAX);
        self.segment.homes().grace().until_next()
    }
}

/// In tests, a table of one size is its segment, too.
#[cfg(all(test, not(loom)))]
mod for_tests {
    use super::*;
    use crate::index::seams::Nobody;
    use crate::index::segment::Which;
    use crate::outcome::{PutMode, PutOutcome};
    use std::ops::Deref;

    impl Deref for OneSize {
        type Target = Segment;

        fn deref(&self) -> &Segment {
            &self.segment
        }
    }

    impl OneSize {
        pub fn put<'v>(
            &self,
            key: &[u8],
            value: impl Into<Stored<'v>>,
            mode: PutMode,
        ) -> Result<PutOutcome, PutError> {
            self.change(key, mode, value.into(), Nobody)
        }

        pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
            self.change(key, Which::Any, Stored::default(), Nobody)
        }

        pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<OneSize, RegionError> {
            OneSize::create_by(region, geometry, clock, &Start::default())
        }

        pub fn create_by(
            region: Region,
            geometry: Geometry,
            clock: Clock,
            start: &Start,
        ) -> Result<OneSize, RegionError> {
            let table = OneSize::create_unready(region, geometry, clock, start)?;
            table.publish_state(Phase::Serving);
            Ok(table)
        }

        /// It does the same GET as clients.
        #[cfg(feature = "sim")]
        pub fn reader(&self) -> crate::reader::Reader<'_, crate::fabric::shm::Shm<'_>> {
            use crate::fabric::shm::Shm;
            use crate::reader::{Limits, Reader};
            let (fabric, clock) = (Shm::new(self.region(), self.geometry()), self.homes().grace().clock());
            Reader::new(fabric, self.geometry(), clock.clone(), Limits::default())
        }
    }
}
