//! Making slots, and mending them after another server, before any thread of this server shares them.

use super::Slots;
use super::reader::SlotCopy;
use super::undo::before_the_write;
use crate::faults::{Rule, disobey};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::mix;
use crate::layout::slot::{Content, Header, Image, Key, SlotShape, check, encode, seal, stamp_copies};
use crate::layout::words;
use crate::region::RegionError;
use std::ops::Range;

/// What the mending of a slot found.
pub(crate) struct Mended {
    pub key: Key,
    pub aux: u32,
    /// Whether a writer had left the slot half written.
    pub was_torn: bool,
}

impl Slots {
    /// Puts memory behind these slots of a new region, and makes each a free slot at rest under stamp 2. No reader is
    /// there yet, and most words stay zero.
    pub fn make(&self, slots: Range<u64>) -> Result<(), RegionError> {
        let (region, geometry) = (self.region(), self.geometry());
        let (shape, at) = (geometry.shape(), |slot| geometry.slot_offset(SlotIx(slot)));
        region.make_huge(at(slots.start)..at(slots.end), 0..at(geometry.main_slots()));
        region.back(at(slots.start)..at(slots.end))?;
        for slot in slots.map(SlotIx) {
            let base = geometry.slot_word(slot);
            let image = encode(shape, geometry.identity(slot), 2, &Content::default());
            stamp_copies(shape).for_each(|word| region.store(base + word, image[word]));
            region.store(base, image[0]);
        }
        Ok(())
    }

    /// Puts memory behind all slots of a segment, and makes each a free slot at rest. The first slot of a home gets
    /// `aux`. The memory may have been another segment's, which clients with an old entry still read. So a slot's stamp
    /// never goes back to a recent one.
    pub fn make_again(&self, aux: u32) -> Result<(), RegionError> {
        let (region, geometry) = (self.region(), self.geometry());
        let at = |slot| geometry.slot_offset(SlotIx(slot));
        region.back_more(at(0)..at(geometry.slots()))?;
        match geometry.shape() {
            SlotShape::LINE => self.free_all(SlotShape::LINE, aux),
            shape => self.free_all(shape, aux),
        }
        self.note_filters_empty();
        Ok(())
    }

    /// Makes each slot of a segment, whose slots have this shape, a free slot at rest.
    #[inline(always)]
    fn free_all(&self, shape: SlotShape, aux: u32) {
        let (region, geometry) = (self.region(), self.geometry());
        let first_stamp = mix(geometry.incarnation().into()) as u32 & !1;
        let bucket_slots = u64::from(geometry.layout().bucket_slots);
        let (mut next_home, homes_end) = (SlotIx(0), geometry.homes() * bucket_slots);
        let [mut of_home, mut of_other] = [aux, 0].map(|aux| {
            encode(shape, geometry.identity(SlotIx(0)), 2, &Content { aux, ..Content::default() })
        });
        let (of_home, of_other) = (&mut of_home[..shape.words()], &mut of_other[..shape.words()]);
        for slot in (0..geometry.slots()).map(SlotIx) {
            let is_home = slot == next_home;
            if is_home {
                let next = slot.0 + bucket_slots;
                next_home = SlotIx(if next < homes_end { next } else { u64::MAX });
            }
            let words = region.stores(geometry.slot_word_of(shape, slot), shape.words());
            if words.load(0) != 0 {
                let aux = if is_home { aux } else { 0 };
                self.writer().write(slot, &Content { aux, ..Content::default() });
                continue;
            }
            // No reader takes the present words for a slot: the CRC does not match, and on shm there is no key. Most
            // words stay zero.
            let image = if is_home { &mut *of_home } else { &mut *of_other };
            seal(shape, geometry.identity(slot), first_stamp, image);
            stamp_copies(shape).for_each(|copy| words.store(copy, image[copy]));
            words.store(1, image[1]);
            words.store(0, image[0]);
        }
    }

    /// U4: gives a slot its former content, if a dead writer was writing over that, and the undo line that begins with
    /// this word keeps it.
    pub fn restore(&self, slot: SlotIx, line: usize) -> bool {
        let before = before_the_write(self.region(), self.geometry(), slot, line);
        disobey(Rule::RestoreStays, || self.region().store(line, 0));
        if let Some(before) = &before {
            // Until it ends, this write leaves the slot's stamp as it is. If this server is
            // killed meanwhile, the next one restores the slot.
            self.write(&self.alone(), slot, &before.content());
        }
        before.is_some()
    }

    /// T2: mends a slot, and takes its ghost away. A slot that is odd by now was free before the
    /// torn write, since no undo line has its image (U1, U4): it is freed, and keeps `aux`.
    pub fn mend(&self, slot: SlotIx) -> Mended {
        let (shape, identity) = (self.geometry().shape(), self.geometry().identity(slot));
        let image: Image = words::image(self.words(slot));
        let header = Header::from_words([image[0], image[1]]);
        let view = check(shape, identity, &image);
        if let Ok(view) = view
            && header.ghost == 0
        {
            return Mended { key: self.reader().key_of(&view), aux: header.aux, was_torn: false };
        }
        let was_torn = view.is_err();
        let mut mended = view.map_or_else(|_| SlotCopy::default(), |_| self.read(slot));
        (mended.ghost, mended.aux) = (0, header.aux);
        self.write(&self.alone(), slot, &mended.content());
        Mended { key: mended.key, aux: header.aux, was_torn }
    }
}
