//! A table of one size: one segment, from its making to its handover.

use crate::base::clock::Clock;
use crate::base::cores::Cores;
use crate::base::sync::nap;
use crate::faults::{Rule, broken, kept, obey};
use crate::index::change::{Made, What};
use crate::index::homes::{
    Handover, NotHandedOver, REAP_MAX, handover_offset, has_no_undo, traces_stay, write_down,
};
use crate::index::news::News;
use crate::index::publish::{publish_state, publish_superblock};
use crate::index::recovered::{RecoverError, Recovered};
use crate::index::seams::Between;
use crate::index::segment::{Segment, Stop, WAITS_MAX};
use crate::index::start::{Start, StartStep};
use crate::index::waits::{ChangeWait, ChangeWaits};
use crate::layout::WORD;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
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
    /// Of a table without long values: nothing is told.
    no_news: News,
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
        let segment = Segment::whole(region, geometry, clock, start);
        let table = OneSize { segment, incarnation: 1, no_news: News::default() };
        table.publish_state(Phase::Starting);
        publish_superblock(table.region(), table.geometry());
        let (slots, slot_bytes) = (table.geometry().main_slots(), table.geometry().shape().bytes() as u64);
        start.step(StartStep::Make, slots * slot_bytes, |done| {
            let make = |slots: Range<u64>| table.segment.slots().make(slots);
            let made = start.split(0..slots, PIECE, make, |slots| done(slots * slot_bytes));
            made.ok_or(RegionError::Cancelled)?.into_iter().collect::<Result<(), _>>()
        })?;
        table.segment.slots().note_filters_empty();
        Ok(table)
    }

    /// Takes a table over from a server that is gone.
    pub fn open(region: Region, clock: Clock, start: &Start) -> Result<(OneSize, Recovered), RecoverError> {
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))?;
        let State { incarnation, phase } = State::from_word(region.load(STATE_WORD));
        if phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let segment = Segment::whole(region, geometry, clock, start);
        let table = OneSize { segment, incarnation: incarnation + 1, no_news: News::default() };
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
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        what.check(self.geometry(), key, &new)?;
        self.segment.homes().reap(REAP_MAX);
        let key = self.geometry().hashed(key);
        match what.make(&self.segment, &key, &new, between) {
            Ok(outcome) => Ok(outcome),
            Err(stop) => self.change_again(stop, (what, &key, &new), between, waits),
        }
    }

    /// What becomes of a change that has stopped.
    #[cold]
    #[inline(never)]
    fn change_again<W: What, B: Between>(
        &self,
        stop: Stop,
        (what, key, new): (W, &Hashed<'_>, &Stored<'_>),
        between: B,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        match stop {
            Stop::Refused(error) => return Err(error),
            Stop::NoRoom => {}
            Stop::Elsewhere => unreachable!("the one segment has every key"),
        }
        if let Some(wait) = self.wait_for_room(waits) {
            waits.begin(wait);
            return Err(PutError::Busy { rounds: 0 });
        }
        // L6: it looks a last time before it is refused.
        let room_made = self.segment.homes().counters().room_made();
        let looked = match broken(Rule::LastLook) {
            true => Err(Stop::NoRoom),
            false => what.make(&self.segment, key, new, between),
        };
        looked.map_err(|stop| match stop {
            Stop::NoRoom => self.segment.refuse(key, room_made),
            Stop::Refused(error) => error,
            Stop::Elsewhere => unreachable!("the one segment has every key"),
        })
    }

    /// What a put waits for that has found no room. `None`: it has waited often enough, or nothing makes room by time.
    fn wait_for_room(&self, waits: &ChangeWaits) -> Option<ChangeWait> {
        let due_ns = self.segment.homes().grace().last_due_ns()?;
        let has_time = waits.with(|state| state.room.waits_once_more(WAITS_MAX));
        has_time.then_some(ChangeWait::Readers { due_ns })
    }

    /// Sleeps until this is over.
    pub fn sleep(&self, wait: ChangeWait) {
        let clock = self.segment.homes().grace().clock();
        match wait {
            ChangeWait::Readers { due_ns } => clock.sleep_until(due_ns),
            ChangeWait::Thread => nap(),
            ChangeWait::Memory { .. } | ChangeWait::Maker | ChangeWait::Decided => {}
        }
    }

    /// To be called after a wait.
    pub fn waited(&self, wait: ChangeWait) {
        match wait {
            ChangeWait::Readers { .. } => self.segment.homes().waited(),
            ChangeWait::Memory { .. } | ChangeWait::Thread | ChangeWait::Maker | ChangeWait::Decided => {}
        }
    }

    /// What changes may wait for, when it is there.
    pub fn news(&self) -> &News {
        self.segment.extents().map_or(&self.no_news, |extents| extents.news())
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
            let value = value.into();
            self.sleeping(|waits| self.change(key, mode, value, Nobody, waits))
        }

        pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
            self.sleeping(|waits| self.change(key, Which::Any, Stored::default(), Nobody, waits))
        }

        /// Tries until it is made or refused.
        fn sleeping<R>(
            &self,
            mut attempt: impl FnMut(&ChangeWaits) -> Result<R, PutError>,
        ) -> Result<R, PutError> {
            let waits = ChangeWaits::default();
            loop {
                let tried = attempt(&waits);
                let Some(wait) = waits.end() else { return tried };
                self.sleep(wait);
                self.waited(wait);
            }
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
