//! The slot writer: the only code that changes a slot. First every stamp becomes odd (W1). Then
//! come the bytes (W2). Then every stamp becomes even (W3). Release fences part the three.
//!
//! One server thread writes a slot at a time, and holds the slot's lock. Anybody reads. A writer
//! that dies half way leaves the slot odd, until the next server mends it (T2). Until then, a GET
//! that READs a window with this slot, and does not find its key in that window, looks again until
//! it ends in `Deadline` or `Contended`. That is every miss whose windows contain the slot, a GET
//! of the key in it, and one of a key in a later window. A hit beside the slot is as good as ever.
//!
//! `obey` and `by_rule` are switches of `src/faults.rs`. In a real build every step is taken.

use crate::faults::{Rule, by_rule, obey};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::{COPY_SHIFT, Content, Header, Image, Key, View, encode, stamp_copies};
use crate::layout::{mapped, slot};
use crate::region::Region;
use crate::sync::{Ordering, fence};
use smallvec::SmallVec;

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
    pub value: SmallVec<[u8; 112]>,
    pub ghost: u8,
    pub aux: u32,
}

impl Owned {
    pub fn content(&self) -> Content<'_> {
        Content { key: &self.key, value: &self.value, ghost: self.ghost, aux: self.aux }
    }
}

impl<'a> SlotWriter<'a> {
    fn words(&self, slot: SlotIx) -> &'a [crate::sync::AtomicU64] {
        self.region.words(self.geometry.slot_word(slot), self.geometry.shape().words())
    }

    /// Replaces the slot's content. Makes 2 * lines + words - 1 stores.
    pub fn write(&self, slot: SlotIx, content: &Content<'_>) {
        let shape = self.geometry.shape();
        let base = self.geometry.slot_word(slot);
        let before = self.region.load(base);
        // An even stamp n gives n + 1 and n + 2. So does n + 1, which a dead writer has left here.
        let odd = (before as u32) | 1;
        let even = odd.wrapping_add(1);
        let image = encode(shape, self.geometry.identity(slot), even, content);
        let odd_copy = |word: u64| word & !(0xffff << COPY_SHIFT) | u64::from(odd as u16) << COPY_SHIFT;

        // W1
        obey(Rule::OddPass, || {
            self.region.store(base, before & !0xffff_ffff | u64::from(odd));
            for w in stamp_copies(shape) {
                self.region.store(base + w, odd_copy(self.region.load(base + w)));
            }
        });
        // Pairs with R2: a reader that sees a word of W2 sees the odd stamp after its fence.
        obey(Rule::WriterFence, || fence(Ordering::Release));
        // W2
        let mut copies = stamp_copies(shape).peekable();
        for (w, &word) in image.iter().enumerate().skip(1) {
            let carries_stamp = copies.next_if_eq(&w).is_some();
            let odd_still = by_rule(Rule::OddPass, carries_stamp, false);
            self.region.store(base + w, if odd_still { odd_copy(word) } else { word });
        }
        // Pairs with R1: a reader that sees the even stamp sees the words of W2 after its fence.
        obey(Rule::EvenFence, || fence(Ordering::Release));
        // W3. The first line comes last: a shm reader goes by it alone and must see the whole slot.
        for w in stamp_copies(shape) {
            self.region.store(base + w, image[w]);
        }
        self.region.store(base, image[0]);
    }

    /// The slot's header.
    pub fn header(&self, slot: SlotIx) -> Header {
        mapped::header(self.words(slot))
    }

    /// Whether the slot holds `key`.
    pub fn holds(&self, slot: SlotIx, key: &[u8]) -> bool {
        let words = self.words(slot);
        usize::from(mapped::header(words).klen) == key.len()
            && mapped::begins_with(self.geometry.shape(), words, key)
    }

    /// The slot's content. An invalid slot reads as free; under its lock a slot is invalid only if
    /// the region was damaged.
    pub fn read(&self, slot: SlotIx) -> Owned {
        let image: Image = mapped::image(self.words(slot));
        let Ok(view) = View::consistent(self.geometry.shape(), &image) else {
            return Owned::default();
        };
        let header = view.header();
        Owned { key: view.key(), value: view.value(), ghost: header.ghost, aux: header.aux }
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

    /// The content of a slot whose writer died after W1, before it stored a byte. With its old
    /// stamps such a slot passes the checks of a remote reader. `None` if it does not.
    pub fn before_the_write(&self, slot: SlotIx) -> Option<Owned> {
        let shape = self.geometry.shape();
        let mut image: Image = mapped::image(self.words(slot));
        image[0] &= !1;
        for w in stamp_copies(shape) {
            image[w] &= !(1 << COPY_SHIFT);
        }
        let view = slot::check(shape, self.geometry.identity(slot), &image).ok()?;
        let header = view.header();
        Some(Owned { key: view.key(), value: view.value(), ghost: header.ghost, aux: header.aux })
    }

    /// Whether the slot passes the checks of a remote reader.
    pub fn is_valid(&self, slot: SlotIx) -> bool {
        let image: Image = mapped::image(self.words(slot));
        slot::check(self.geometry.shape(), self.geometry.identity(slot), &image).is_ok()
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::sim::{Instant, Recorder};
    use std::sync::Arc;
    use std::time::Duration;

    /// From its first store to its last, every line shows an odd stamp, also where the copies wrap.
    /// Marking a line changes nothing else in it, so a slot that is only marked is still whole.
    #[test]
    fn every_line_is_marked() {
        let geometry = Config { value_max: 150, ..Config::default() }.geometry().unwrap();
        let recorder = Arc::new(Recorder::new(Clock::manual(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        let (writer, slot) = (SlotWriter { region: &region, geometry: &geometry }, SlotIx(0));
        let content = |value| Content { key: b"key", value, ..Content::default() };
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

    /// A slot whose writer died while it marked the lines still has its old content, also where the
    /// copies of the stamp wrap. With one bit of the rest changed, the content is lost.
    #[test]
    fn a_marked_slot_keeps_its_content() {
        let geometry = Config { value_max: 150, ..Config::default() }.geometry().unwrap();
        let recorder = Arc::new(Recorder::new(Clock::manual(), Duration::from_nanos(1)));
        let region = recorder.region(geometry.region_bytes());
        let (writer, slot) = (SlotWriter { region: &region, geometry: &geometry }, SlotIx(1));
        let content = Content { key: b"key", value: &[0xaa; 150], ghost: 5, aux: 0x1234_5678 };
        let base = geometry.slot_word(slot);
        let lines: Vec<_> = std::iter::once((base, 1))
            .chain(stamp_copies(geometry.shape()).map(|copy| (base + copy, 1 << COPY_SHIFT)))
            .collect();
        for before in [0, 2, 0xfffc, 0xfffe, 0xffff_fffc, 0xffff_fffe] {
            region.store(base, region.load(base) & !0xffff_ffff | before);
            writer.write(slot, &content);
            assert_eq!(writer.peek(slot).expect("at rest").1[..], *content.key);
            for &(word, odd) in &lines {
                region.store(word, region.load(word) + odd);
                assert!(writer.peek(slot).is_none(), "being written");
                let found = writer.before_the_write(slot).expect("whole");
                assert_eq!((&found.key[..], &found.value[..]), (content.key, content.value));
                assert_eq!((found.ghost, found.aux), (content.ghost, content.aux));
            }
            region.store(base + 4, region.load(base + 4) ^ 1);
            assert!(writer.before_the_write(slot).is_none(), "one bit is wrong");
            writer.write(slot, &content);
            assert!(writer.is_valid(slot), "written again");
        }
    }
}
