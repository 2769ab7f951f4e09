//! The slot writer: the only code that changes a slot. First every stamp becomes odd (W1). Then
//! come the bytes (W2). Then every stamp becomes even (W3). Release fences part the three.
//!
//! One server thread writes a slot at a time, and holds the slot's lock. Anybody reads. A writer
//! that dies half way leaves the slot odd, until the next server mends it (U4, T2). Until then, a GET
//! that READs a window with this slot, and does not find its key in that window, looks again until
//! it ends in `Deadline` or `Contended`. That is every miss whose windows contain the slot, a GET
//! of the key in it, and one of a key in a later window. A hit beside the slot is as good as ever.
//!
//! `obey`, `disobey` and `by_rule` are switches of `src/faults.rs`. In a real build every step is taken.

use crate::faults::{Rule, by_rule, disobey, obey};
use crate::layout::compare::{self, KeyEnd, Lines, Loadable};
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::mapped;
use crate::layout::slot::{
    Content, Header, Image, Key, SlotShape, Stored, View, lay_out, lay_out_line, seal, stamp_copies,
    with_copy,
};
use crate::layout::words::{self, EIGHT_LINES, Words};
use crate::layout::{LINE, WORD};
use crate::region::Region;
use crate::sync::{AtomicU64, Ordering, fence};
use smallvec::SmallVec;

const LINE_WORDS: usize = LINE / WORD;

/// Writes and reads slots of one table, for a thread that holds their locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotWriter<'a> {
    pub region: &'a Region,
    pub geometry: &'a Geometry,
}

/// A slot's content in private memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owned {
    pub key: Key,
    /// The value, or the reference to it: [`Owned::stored`] tells which.
    pub value: SmallVec<[u8; 112]>,
    pub reference: Option<Reference>,
    pub ghost: u8,
    pub aux: u32,
}

impl Owned {
    pub fn of(view: View<'_>) -> Owned {
        let Header { ghost, aux, .. } = view.header();
        Owned { key: view.key(), value: view.value(), reference: view.reference(), ghost, aux }
    }

    pub fn stored(&self) -> Stored<'_> {
        match self.reference {
            None => (&self.value).into(),
            Some(_) => Stored::reference(self.value[..].try_into().expect("the bytes of a reference")),
        }
    }

    pub fn content(&self) -> Content<'_> {
        Content { key: &self.key, value: self.stored(), ghost: self.ghost, aux: self.aux }
    }
}

/// What a look at a window, or at all windows of a key, has shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sought {
    /// The key, in this slot.
    At(SlotIx),
    /// No key, and the first free slot of the window, or of the key's primary one.
    Free(SlotIx),
    /// Neither.
    Nowhere,
}

impl Sought {
    /// The slot that holds the key.
    #[inline]
    pub fn at(self) -> Option<SlotIx> {
        if let Sought::At(slot) = self { Some(slot) } else { None }
    }
}

/// Whether a slot that seems to hold the key does. Apart: seldom needed, and never twice.
#[inline(never)]
fn begins_with(shape: SlotShape, slot: &[AtomicU64], key: &[u8]) -> bool {
    compare::begins_with(shape, slot, key)
}

impl<'a> SlotWriter<'a> {
    pub fn words(&self, slot: SlotIx) -> &'a [AtomicU64] {
        self.region.words(self.geometry.slot_word(slot), self.geometry.shape().words())
    }

    /// Replaces the slot's content. Makes 2 * lines + words - 1 stores.
    #[inline]
    pub fn write(&self, slot: SlotIx, content: &Content<'_>) {
        if self.geometry.shape() == SlotShape::LINE {
            let mut image = lay_out_line(content);
            self.write_as(SlotShape::LINE, slot, &mut image);
        } else {
            self.write_other(slot, content);
        }
    }

    /// The same for slots that are not one line.
    #[inline(never)]
    fn write_other(&self, slot: SlotIx, content: &Content<'_>) {
        let shape = self.geometry.shape();
        let mut image = Image::from_elem(0, shape.words());
        lay_out(shape, content, &mut image);
        self.write_as(shape, slot, &mut image);
    }

    /// Replaces the slot's content by that of an image, whose stamps and CRC do not matter.
    #[inline]
    pub fn write_image(&self, slot: SlotIx, image: &mut Image) {
        match <&mut [u64; LINE_WORDS]>::try_from(&mut image[..]) {
            Ok(line) => self.write_as(SlotShape::LINE, slot, line),
            Err(_) => self.write_as(self.geometry.shape(), slot, image),
        }
    }

    /// The same in a table of slots of this shape.
    #[inline(always)]
    fn write_as(&self, shape: SlotShape, slot: SlotIx, image: &mut [u64]) {
        let words = self.region.stores(self.geometry.slot_word(slot), shape.words());
        let before = words.load(0);
        // An even stamp n gives n + 1 and n + 2. If a dead writer has left n + 1 here, further lines
        // may show its n + 2. So this write ends under n + 4 (U5).
        let odd = (before as u32) | 1;
        let is_torn = by_rule(Rule::TornStamp, before as u32 & 1, 0);
        let even = odd.wrapping_add(1 + 2 * is_torn);
        seal(shape, self.geometry.identity(slot), even, image);

        // W1
        obey(Rule::OddPass, || {
            words.store(0, before & !0xffff_ffff | u64::from(odd));
            stamp_copies(shape).for_each(|w| words.store(w, with_copy(words.load(w), odd)));
        });
        // Pairs with R2: a reader that sees a word of W2 sees the odd stamp after its fence.
        obey(Rule::WriterFence, || fence(Ordering::Release));
        disobey(Rule::KeyBytes, || (2..shape.words()).for_each(|w| words.store(w, 0)));
        // W2. Where a key stays, its bytes are stored again as they are (G8).
        obey(Rule::OddPass, || stamp_copies(shape).for_each(|w| image[w] = with_copy(image[w], odd)));
        words.store_all(1, &image[1..]);
        // Pairs with R1: a reader that sees the even stamp sees the words of W2 after its fence.
        obey(Rule::EvenFence, || fence(Ordering::Release));
        // W3. The first line comes last: a shm reader goes by it alone and must see the whole slot.
        stamp_copies(shape).for_each(|w| words.store(w, with_copy(image[w], even)));
        words.store(0, image[0]);
    }

    /// Looks for `key` in a window, for a thread that holds its locks.
    #[inline(always)]
    pub fn seek(&self, window: Window, key: &[u8]) -> Sought {
        let shape = self.geometry.shape();
        let words = window.slots as usize * shape.words();
        let all = self.region.words(self.geometry.slot_word(window.first), words);
        match shape {
            SlotShape::LINE if words == EIGHT_LINES && KeyEnd::of(key).is_some() => {
                self.seek_in_eight(window, key)
            }
            SlotShape::LINE => {
                let slots = all.as_chunks::<LINE_WORDS>().0.iter().map(|slot| &slot[..]);
                self.seek_in(SlotShape::LINE, slots, window, key)
            }
            _ => self.seek_other(all, window, key),
        }
    }

    /// The same in eight slots of one line.
    #[inline(always)]
    fn seek_in_eight(&self, window: Window, key: &[u8]) -> Sought {
        let lines = self.region.eight_lines(self.geometry.slot_word(window.first));
        let mut shown = lines.lines_with(key);
        while shown != 0 {
            let number = compare::first_line(shown);
            if compare::line_holds(lines.line(number), key) {
                return Sought::At(window.slot(number as u32));
            }
            shown &= shown - 1;
        }
        let free = (0..window.slots).find(|&number| lines.load(number as usize * LINE_WORDS + 1) as u8 == 0);
        free.map_or(Sought::Nowhere, |number| Sought::Free(window.slot(number)))
    }

    /// The same in slots that are not one line.
    #[inline(never)]
    fn seek_other(&self, all: &[AtomicU64], window: Window, key: &[u8]) -> Sought {
        let shape = self.geometry.shape();
        self.seek_in(shape, all.chunks_exact(shape.words()), window, key)
    }

    /// The same in these slots of this shape.
    #[inline(always)]
    fn seek_in<'w>(
        &self,
        shape: SlotShape,
        slots: impl Iterator<Item = &'w [AtomicU64]> + Clone,
        window: Window,
        key: &[u8],
    ) -> Sought {
        // Long keys do not end in the first line. Then every slot is worth a look.
        let end = KeyEnd::of(key).unwrap_or(KeyEnd::ANY);
        let klen = |words: &[AtomicU64]| words[1].load(Ordering::Relaxed) as u8;
        for (number, words) in (0..).zip(slots.clone()) {
            if end.is_in(words) && usize::from(klen(words)) == key.len() && begins_with(shape, words, key) {
                return Sought::At(window.slot(number));
            }
        }
        // Apart: the lines are near now, and each loop fits the registers.
        let free = (0..).zip(slots).find(|(_, words)| klen(words) == 0);
        free.map_or(Sought::Nowhere, |(number, _)| Sought::Free(window.slot(number)))
    }

    /// The header and the key of a slot whose lock is held. As [`SlotWriter::read`], without the value.
    pub fn occupant(&self, slot: SlotIx) -> (Header, Key) {
        let seen = mapped::header_and_key(self.geometry.shape(), self.words(slot));
        seen.unwrap_or_else(|_| (bytemuck::Zeroable::zeroed(), Key::new()))
    }

    /// The slot's header.
    pub fn header(&self, slot: SlotIx) -> Header {
        words::header(self.words(slot))
    }

    /// The slot's `aux`.
    #[inline]
    pub fn aux(&self, slot: SlotIx) -> u32 {
        Header::from_words([0, self.words(slot)[1].load(Ordering::Relaxed)]).aux
    }

    /// Whether the slot holds `key`.
    pub fn holds(&self, slot: SlotIx, key: &[u8]) -> bool {
        let words = self.words(slot);
        usize::from(words::header(words).klen) == key.len() && begins_with(self.geometry.shape(), words, key)
    }

    /// The slot's words. An invalid slot reads as free; under its lock a slot is invalid only if
    /// the region was damaged.
    pub fn image(&self, slot: SlotIx) -> Image {
        let mut image: Image = words::image(self.words(slot));
        if View::consistent(self.geometry.shape(), &image).is_err() {
            image.fill(0);
        }
        image
    }

    /// The slot's content, as [`SlotWriter::image`].
    pub fn read(&self, slot: SlotIx) -> Owned {
        let image = self.image(slot);
        Owned::of(View::consistent(self.geometry.shape(), &image).expect("zeros at the worst"))
    }

    /// Reads header and key of a slot whose lock is not held. `None` while the slot is being
    /// written.
    pub fn peek(&self, slot: SlotIx) -> Option<(Header, Key)> {
        let words = self.words(slot);
        let stamp = words[0].load(Ordering::Relaxed);
        // Fences as in the shm reader: R1 and R2.
        fence(Ordering::Acquire);
        let seen = mapped::header_and_key(self.geometry.shape(), words).ok()?;
        fence(Ordering::Acquire);
        (stamp & 1 == 0 && words[0].load(Ordering::Relaxed) == stamp).then_some(seen)
    }

    /// Whether the slot passes the checks of a remote reader.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn is_valid(&self, slot: SlotIx) -> bool {
        let image: Image = words::image(self.words(slot));
        crate::layout::slot::check(self.geometry.shape(), self.geometry.identity(slot), &image).is_ok()
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::clock::Clock;
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
        let (writer, slot) = (SlotWriter { region: &region, geometry: &geometry }, SlotIx(0));
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
        assert!(writer.is_valid(slot) && history.end() > Instant(begin.0));
    }
}
