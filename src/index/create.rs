//! Makes an empty table.

use super::segment::Segment;
use crate::clock::Clock;
use crate::layout::control::Phase;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::mix;
use crate::layout::segment::HomeState;
use crate::layout::slot::{Content, encode, stamp_copies};
use crate::layout::superblock::Superblock;
use crate::region::{Region, RegionError};
use crate::start::{Start, StartStep};
use crate::sync::Ordering;
use std::sync::atomic::compiler_fence;

/// Slots that a thread makes before it takes the next ones.
const PIECE: u64 = 1 << 15;

impl Segment {
    #[cfg(all(test, not(loom)))]
    pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<Segment, RegionError> {
        Segment::create_by(region, geometry, clock, &Start::default())
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn create_by(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Segment, RegionError> {
        let segment = Segment::create_unready(region, geometry, clock, start)?;
        segment.publish_state(Phase::Serving);
        Ok(segment)
    }

    /// Makes an empty table that is not yet in service.
    pub(crate) fn create_unready(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Segment, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.table_offset())?;
        let index = Segment::over(region, geometry, clock, 1);
        index.publish_state(Phase::Starting);
        publish_superblock(&index.region, &index.geometry);
        let (slots, slot_bytes) = (index.geometry.main_slots(), index.geometry.shape().bytes() as u64);
        start.step(StartStep::Make, slots * slot_bytes, |done| {
            let make = |slots: std::ops::Range<u64>| index.make_slots(slots);
            let made = start.split(0..slots, PIECE, make, |slots| done(slots * slot_bytes));
            made.ok_or(RegionError::Cancelled)?.into_iter().collect::<Result<(), _>>()
        })?;
        Ok(index)
    }

    /// Puts memory behind these slots, and makes each a free slot at rest under stamp 2. Nobody reads
    /// yet, and most words stay zero.
    fn make_slots(&self, slots: std::ops::Range<u64>) -> Result<(), RegionError> {
        let (shape, at) = (self.geometry.shape(), |slot| self.geometry.slot_offset(SlotIx(slot)));
        self.region.back(at(slots.start)..at(slots.end))?;
        for slot in slots.map(SlotIx) {
            let base = self.geometry.slot_word(slot);
            let image = encode(shape, self.geometry.identity(slot), 2, &Content::default());
            stamp_copies(shape).for_each(|word| self.region.store(base + word, image[word]));
            self.region.store(base, image[0]);
        }
        Ok(())
    }

    /// Puts memory behind all slots of a segment, and makes each a free slot at rest. The memory may have
    /// been another segment's, which clients with an old entry still read: a slot's stamp never goes
    /// back to one that it had a moment ago.
    pub(super) fn make_all_slots(&self) -> Result<(), RegionError> {
        let (geometry, at) = (&self.geometry, |slot| self.geometry.slot_offset(SlotIx(slot)));
        self.region.back_more(at(0)..at(geometry.slots()))?;
        let first_stamp = mix(geometry.incarnation().into()) & 0xffff_fffe;
        let bucket_slots = u64::from(geometry.layout().bucket_slots);
        let at_first = HomeState { depth: self.share.get().depth, merged: false };
        for slot in (0..geometry.slots()).map(SlotIx) {
            let home = Some(geometry.home_of_slot(slot)).filter(|&home| home < geometry.homes());
            let home = home.filter(|home| slot.0 == home * bucket_slots);
            let aux = if home.is_some() { at_first.in_aux(0) } else { 0 };
            let word = geometry.slot_word(slot);
            if self.region.load(word) == 0 {
                self.region.store(word, first_stamp);
            }
            self.slots().write(slot, &Content { aux, ..Content::default() });
        }
        Ok(())
    }
}

/// Writes the superblock, once, into a region that nobody reads yet.
pub(super) fn publish_superblock(region: &Region, geometry: &Geometry) {
    let created =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let words = Superblock::new(geometry, created).to_words();
    words.iter().enumerate().skip(1).for_each(|(w, &word)| region.store(w, word));
    // The magic number comes last. A killed server's stores end where its program did.
    compiler_fence(Ordering::Release);
    region.store(0, words[0]);
}
