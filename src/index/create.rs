//! Makes an empty table.

use super::*;
use crate::layout::slot::{encode, stamp_copies};
use crate::start::{Start, StartStep};

/// Slots that a thread makes before it takes the next ones.
const PIECE: u64 = 1 << 15;

impl Index {
    /// Makes an empty table in `region`, which must be zero and at least
    /// [`Geometry::region_bytes`] long.
    ///
    /// Writes every main slot once, so that each is valid. All cores work at it.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough memory for the main slots.
    ///
    /// # Panics
    /// When the region is too short.
    pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<Index, RegionError> {
        Index::create_by(region, geometry, clock, &Start::default())
    }

    pub(crate) fn create_by(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Index, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.table_offset())?;
        let index = Index::over(region, geometry, clock, 1);
        index.publish_state(Phase::Starting);
        index.publish_superblock();
        let (slots, slot_bytes) = (index.geometry.main_slots(), index.geometry.shape().bytes() as u64);
        start.step(StartStep::Make, slots * slot_bytes, |done| {
            let make = |slots: std::ops::Range<u64>| index.make_slots(slots);
            let made = start.cores.split(0..slots, PIECE, make, |slots| done(slots * slot_bytes));
            made.into_iter().collect::<Result<(), _>>()
        })?;
        index.publish_state(Phase::Serving);
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

    /// Writes the superblock, once, into a region that nobody reads yet.
    fn publish_superblock(&self) {
        let created = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let words = Superblock::new(&self.geometry, created).to_words();
        words.iter().enumerate().for_each(|(w, &word)| self.region.store(w, word));
    }
}
