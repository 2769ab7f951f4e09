//! The slot writer: the only code that changes a slot. First every stamp becomes odd (W1). Then
//! come the bytes (W2). Then every stamp becomes even (W3). Release fences part the three.
//!
//! One server thread writes a slot at a time, and holds the slot's lock. Anybody reads. A writer that dies half way
//! leaves the slot odd, until the next server mends it (U4, T2). Until then, a GET that READs a window with this slot,
//! and does not find its key in that window, looks again until it ends in `Deadline` or `Contended`. This affects every
//! miss whose windows contain the slot, a GET of the key in the slot, and a GET of a key in a later window. It does not
//! affect a hit beside the slot.
//!
//! `obey`, `disobey` and `by_rule` are switches of `src/faults.rs`. In a real build every step is taken.

use crate::base::sync::{AtomicU64, Ordering, fence};
use crate::faults::{Rule, broken, by_rule, disobey, obey};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::{
    Content, Header, Image, SlotShape, lay_out, lay_out_line, seal, seal_line, stamp_copies, with_copy,
};
use crate::region::{Region, StoreWords};

/// Writes slots of one table, for a thread that holds their locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotWriter<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
}

/// A slot that is about to be written.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub shape: SlotShape,
    pub slot: SlotIx,
    words: StoreWords<'a>,
    /// The slot's first two words, before the write.
    before: [u64; 2],
}

impl<'a> Target<'a> {
    /// The slot's header, before the write.
    #[inline(always)]
    pub fn before(&self) -> Header {
        Header::from_words(self.before)
    }

    /// The stamps of the slot while it is written, and after.
    #[inline(always)]
    fn stamps(&self) -> [u32; 2] {
        // An even stamp n gives n + 1 and n + 2. If a dead writer has left n + 1 here, further lines
        // may show its n + 2. So this write ends under n + 4 (U5).
        let before = self.before[0] as u32;
        let odd = before | 1;
        let is_torn = by_rule(Rule::TornStamp, before & 1, 0);
        [odd, odd.wrapping_add(1 + 2 * is_torn)]
    }

    /// The slot's words, for loads.
    #[inline(always)]
    pub fn words(&self) -> &'a [AtomicU64] {
        self.words.words()
    }
}

impl<'a> SlotWriter<'a> {
    #[inline(always)]
    pub fn new(region: &'a Region, geometry: &'a Geometry) -> SlotWriter<'a> {
        SlotWriter { region, geometry }
    }

    /// A slot that is about to be written, of a table whose slots have this shape.
    #[inline(always)]
    pub fn target(&self, shape: SlotShape, slot: SlotIx) -> Target<'a> {
        debug_assert_eq!(shape, self.geometry.shape());
        let words = self.region.stores(self.geometry.slot_word_of(shape, slot), shape.words());
        Target { shape, slot, words, before: [words.load(0), words.load(1)] }
    }

    /// Replaces the slot's content. Makes 2 * lines + words - 1 stores.
    #[inline]
    pub fn write(&self, slot: SlotIx, content: &Content<'_>) {
        match self.geometry.shape() {
            SlotShape::LINE => {
                let target = self.target(SlotShape::LINE, slot);
                self.write_image(&target, &mut lay_out_line(content), target.shape.words());
            }
            shape => {
                let mut image = Image::from_elem(0, shape.words());
                lay_out(shape, content, &mut image);
                self.write_image(&self.target(shape, slot), &mut image, shape.words());
            }
        }
    }

    /// The first word that a slot of one line gets with this second word, if [`SlotWriter::write_second`] can write it.
    #[inline(always)]
    pub fn sealed(&self, to: &Target<'_>, second: u64) -> Option<u64> {
        let line = to.words().try_into().ok().filter(|_| !broken(Rule::KeyBytes))?;
        seal_line(self.geometry.identity(to.slot), to.stamps()[1], second, line)
    }

    /// Replaces the second word of a slot of one line, as [`SlotWriter::write_image`] does. Its first word is sealed.
    #[inline(always)]
    pub fn write_second(&self, to: &Target<'_>, [sealed, second]: [u64; 2]) {
        // W1
        if !broken(Rule::OddPass) {
            to.words.store(0, to.before[0] & !0xffff_ffff | u64::from(to.stamps()[0]));
        }
        // Pairs with R2, as in `write_image`.
        obey(Rule::WriterFence, || fence(Ordering::Release));
        // W2
        to.words.store(1, second);
        // Pairs with R1, as in `write_image`.
        obey(Rule::EvenFence, || fence(Ordering::Release));
        // W3
        to.words.store(0, sealed);
    }

    /// Replaces the slot's content by that of an image, whose stamps and CRC do not matter. The slot has the words from
    /// `same_from` on already: if they are the payload, this makes 2 * lines + 1 stores.
    #[inline(always)]
    pub fn write_image(&self, to: &Target<'_>, image: &mut [u64], same_from: usize) {
        let Target { shape, slot, words, before: [before, _] } = *to;
        let [odd, even] = to.stamps();
        seal(shape, self.geometry.identity(slot), even, image);

        // W1
        if !broken(Rule::OddPass) {
            words.store(0, before & !0xffff_ffff | u64::from(odd));
            for w in stamp_copies(shape) {
                words.store(w, with_copy(words.load(w), odd));
            }
        }
        // Pairs with R2: a reader that sees a word of W2 sees the odd stamp after its fence.
        obey(Rule::WriterFence, || fence(Ordering::Release));
        disobey(Rule::KeyBytes, || (2..shape.words()).for_each(|w| words.store(w, 0)));
        // W2. Where a key stays, its bytes are stored again as they are (G8).
        if !broken(Rule::OddPass) {
            for w in stamp_copies(shape) {
                image[w] = with_copy(image[w], odd);
            }
        }
        let until = by_rule(Rule::KeyBytes, same_from, shape.words());
        words.store_all(1, &image[1..until]);
        // Pairs with R1: a reader that sees the even stamp sees the words of W2 after its fence.
        obey(Rule::EvenFence, || fence(Ordering::Release));
        // W3. The first line comes last: a shm reader goes by it alone and must see the whole slot.
        for w in stamp_copies(shape) {
            words.store(w, with_copy(image[w], even));
        }
        words.store(0, image[0]);
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::super::reader::SlotReader;
    use super::*;
    use crate::base::clock::Clock;
    use crate::config::Config;
    use crate::layout::slot::COPY_SHIFT;
    use crate::sim::{Instant, Recorder};
    use std::sync::Arc;
    use std::time::Duration;

    /// From its first store to its last, every line shows an odd stamp, also where the copies wrap.
    /// Marking a line changes nothing else in it, so a slot that is only marked is still whole.
    #[test]
    fn every_line_is_marked() {
        let geometry = Config { value_max: 150, ..Config::short() }.geometry().unwrap();
        let recorder = Arc::new(Recorder::new(Clock::manual(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        let (writer, slot) = (SlotWriter::new(&region, &geometry), SlotIx(0));
        let content =
            |value: &'static [u8; 150]| Content { key: b"key", value: value.into(), ..Content::default() };
        writer.write(slot, &content(&[0xaa; 150]));
        let base = geometry.slot_word(slot);
        region.store(base, region.load(base) & !0xffff_ffff | 0xfffe);
        let begin = recorder.now();
        writer.write(slot, &content(&[0x55; 150]));
        let history = recorder.history(geometry.region_bytes());
        let first: Vec<_> = history.stores(base..base + 1, begin, history.end());
        assert_eq!(first.len(), 2, "W1 and W3");
        assert_eq!(first[0].2, history.word(base, begin) + 1, "only the stamp, and that odd");
        assert!(stamp_copies(geometry.shape()).count() == 3);
        for word in stamp_copies(geometry.shape()).map(|copy| base + copy) {
            let stores = history.stores(word..word + 1, begin, history.end());
            let (&(.., last), before_last) = stores.split_last().unwrap();
            assert_eq!(last >> COPY_SHIFT, 0, "the copy has wrapped");
            assert_eq!(before_last.len(), 2, "W1 and W2");
            assert!(before_last.iter().all(|&(.., value)| value >> COPY_SHIFT & 1 == 1), "{stores:x?}");
            let payload = |value: u64| value & ((1 << COPY_SHIFT) - 1);
            assert_eq!(payload(stores[0].2), payload(history.word(word, begin)), "only marked");
            assert_eq!(payload(last), payload(stores[1].2));
        }
        assert!(SlotReader::new(&region, &geometry).is_valid(slot) && history.end() > Instant(begin.0));
    }
}
