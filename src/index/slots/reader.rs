//! Reads slots, for a thread that holds their locks. [`SlotReader::peek`] is for a thread that does not.

use crate::base::sync::{AtomicU64, Ordering, fence};
use crate::faults::{Rule, kept};
use crate::layout::compare::{self, KeyEnd, Lines, Loadable};
use crate::layout::digest::LongKey;
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::life::Life;
use crate::layout::mapped;
use crate::layout::slot::{Content, Header, Image, Key, SlotShape, Stored, View};
use crate::layout::words::{self, LINE_WORDS, Words};
use crate::region::Region;
use smallvec::SmallVec;

/// Reads slots of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotReader<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
}

/// A slot's content in private memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotCopy {
    /// The whole key, even if the slot does not have all of it.
    pub key: Key,
    /// The value, or the reference to it, with the digest of a long key: [`SlotCopy::stored`] tells which.
    pub value: SmallVec<[u8; 112]>,
    pub reference: Option<Reference>,
    pub life: Option<Life>,
    pub ghost: u8,
    pub aux: u32,
}

impl SlotCopy {
    pub fn stored(&self) -> Stored<'_> {
        let stored = match self.reference {
            None => (&self.value).into(),
            Some(_) => Stored::in_heap(&self.value),
        };
        stored.with_life(self.life.as_ref())
    }

    pub fn content(&self) -> Content<'_> {
        Content { key: &self.key, value: self.stored(), ghost: self.ghost, aux: self.aux }
    }
}

/// The result of a look for a key, in one window or in all windows of the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sought {
    /// The key, in this slot.
    At(SlotIx),
    /// No key, and the first free slot of the window, or of the key's primary one.
    Free(SlotIx),
    /// Neither the key nor a free slot.
    Nowhere,
}

impl Sought {
    /// The slot that holds the key.
    #[inline]
    pub fn at(self) -> Option<SlotIx> {
        if let Sought::At(slot) = self { Some(slot) } else { None }
    }
}

/// Whether a slot that seems to hold the key does. A function of its own, because it is seldom needed, and never twice.
#[inline(never)]
fn begins_with(shape: SlotShape, slot: &[AtomicU64], key: &[u8]) -> bool {
    compare::begins_with(shape, slot, key)
}

impl<'a> SlotReader<'a> {
    #[inline(always)]
    pub fn new(region: &'a Region, geometry: &'a Geometry) -> SlotReader<'a> {
        SlotReader { region, geometry }
    }

    pub fn words(&self, slot: SlotIx) -> &'a [AtomicU64] {
        self.region.words(self.geometry.slot_word(slot), self.geometry.shape().words())
    }

    /// Looks for `key` in a window, for a thread that holds its locks.
    #[inline(always)]
    pub fn seek(self, window: Window, key: &[u8]) -> Sought {
        match self.geometry.shape() {
            _ if self.geometry.is_long(key) => self.seek_long(window, key),
            SlotShape::LINE if window.slots == 8 && KeyEnd::of(key).is_some() => {
                self.seek_in_eight(window, key)
            }
            SlotShape::LINE => {
                let words = self.all_words(SlotShape::LINE, window);
                let slots = words.as_chunks::<LINE_WORDS>().0.iter().map(|slot| &slot[..]);
                self.seek_in(SlotShape::LINE, slots, window, key)
            }
            _ => self.seek_other(window, key),
        }
    }

    /// All words of a window, in a table whose slots have this shape.
    #[inline(always)]
    fn all_words(self, shape: SlotShape, window: Window) -> &'a [AtomicU64] {
        let first = self.geometry.slot_word_of(shape, window.first);
        self.region.words(first, window.slots as usize * shape.words())
    }

    /// Looks for `key` in eight slots of one line.
    #[inline(always)]
    fn seek_in_eight(self, window: Window, key: &[u8]) -> Sought {
        let lines = self.region.eight_lines(self.geometry.slot_word_of(SlotShape::LINE, window.first));
        let mut shown = lines.lines_with(key);
        while shown != 0 {
            let number = compare::first_line(shown);
            if compare::line_holds(lines.line(number), key) {
                return Sought::At(window.slot(number as u32));
            }
            shown &= shown - 1;
        }
        for number in 0..window.slots {
            if lines.load(number as usize * LINE_WORDS + 1) as u8 == 0 {
                return Sought::Free(window.slot(number));
            }
        }
        Sought::Nowhere
    }

    /// Looks for a key that does not fit its slot.
    #[cold]
    #[inline(never)]
    fn seek_long(self, window: Window, key: &[u8]) -> Sought {
        let key = self.geometry.hashed(key);
        match window.iter().find(|&slot| self.holds_long(slot, key)) {
            Some(slot) => Sought::At(slot),
            None => {
                let free = window.iter().find(|&slot| self.header(slot).is_free());
                free.map_or(Sought::Nowhere, Sought::Free)
            }
        }
    }

    /// Whether the slot holds a key that does not fit it (F1).
    fn holds_long(&self, slot: SlotIx, key: Hashed<'_>) -> bool {
        let (shape, words) = (self.geometry.shape(), self.words(slot));
        if usize::from(words::header(words).klen) != key.key().len() {
            return false;
        }
        let is_it = |long: LongKey| {
            kept(Rule::WholeKeyHeld, || self.whole_key(&long, key.key().len())[..] == *key.key())
        };
        mapped::long_key(shape, words).is_some_and(|long| long.may_be(self.geometry, key) && is_it(long))
    }

    /// The key in an extent that a slot names. In a damaged region, a key with another digest. The takeover frees such
    /// a slot.
    fn whole_key(&self, long: &LongKey, len: usize) -> Key {
        let reference = &long.reference;
        let mut bytes = Vec::with_capacity(len);
        if reference.is_sound(self.geometry) && len <= reference.len as usize {
            self.region.append_bytes(reference.offset, len, &mut bytes);
        }
        bytes.resize(len, 0);
        Key::from_vec(bytes)
    }

    /// The key of a slot that was looked at.
    #[inline(never)]
    pub fn key_of(&self, view: &View<'_>) -> Key {
        match view.long_key() {
            Some(long) => self.whole_key(&long, view.header().klen.into()),
            None => view.key(),
        }
    }

    /// The whole content of a slot that was looked at.
    #[inline(always)]
    pub fn owned(&self, view: View<'_>) -> SlotCopy {
        let Header { ghost, aux, .. } = view.header();
        let mut owned = SlotCopy {
            key: view.key(),
            value: view.value(),
            reference: view.reference(),
            life: view.life(),
            ghost,
            aux,
        };
        if view.header().is_long_key() {
            owned.key = self.key_of(&view);
        }
        owned
    }

    /// The header and the key of a slot. Without the slot's lock, they may be any bytes.
    fn header_and_key(&self, slot: SlotIx) -> Option<(Header, Key)> {
        let (shape, words) = (self.geometry.shape(), self.words(slot));
        let (header, key) = mapped::header_and_key(shape, words).ok()?;
        if header.is_long_key() {
            let long = mapped::long_key(shape, words)?;
            return Some((header, self.whole_key(&long, header.klen.into())));
        }
        Some((header, key))
    }

    /// Looks for `key` in slots that are not one line.
    #[inline(never)]
    fn seek_other(self, window: Window, key: &[u8]) -> Sought {
        let shape = self.geometry.shape();
        self.seek_in(shape, self.all_words(shape, window).chunks_exact(shape.words()), window, key)
    }

    /// Looks for `key` in these slots of this shape.
    #[inline(always)]
    fn seek_in<'w>(
        self,
        shape: SlotShape,
        slots: impl Iterator<Item = &'w [AtomicU64]> + Clone,
        window: Window,
        key: &[u8],
    ) -> Sought {
        // A long key does not end in the first line. Then every slot has to be compared.
        let end = KeyEnd::of(key).unwrap_or(KeyEnd::ANY);
        let klen = |words: &[AtomicU64]| words[1].load(Ordering::Relaxed) as u8;
        for (number, words) in (0..).zip(slots.clone()) {
            if end.is_in(words) && usize::from(klen(words)) == key.len() && begins_with(shape, words, key) {
                return Sought::At(window.slot(number));
            }
        }
        // A loop of its own: the lines are in the cache now, and each loop fits the registers.
        for (number, words) in (0..).zip(slots) {
            if klen(words) == 0 {
                return Sought::Free(window.slot(number));
            }
        }
        Sought::Nowhere
    }

    /// The header and the key of a slot whose lock is held. As [`SlotReader::read`], without the value.
    pub fn occupant(&self, slot: SlotIx) -> (Header, Key) {
        self.header_and_key(slot).unwrap_or_else(|| (bytemuck::Zeroable::zeroed(), Key::new()))
    }

    /// Shows the key of a slot whose lock is held. Shows none if the slot is damaged.
    #[inline(always)]
    pub fn with_key(&self, slot: SlotIx, see: impl FnOnce(&[u8])) {
        self.with_entry(slot, |_, key| see(key));
    }

    /// Shows the header and the key of a slot. Without the slot's lock, they may be any bytes. `None` if the slot is
    /// damaged.
    #[inline(always)]
    fn with_entry<R>(&self, slot: SlotIx, see: impl FnOnce(Header, &[u8]) -> R) -> Option<R> {
        if let Some((header, key)) = mapped::short_key(self.geometry.shape(), self.words(slot)) {
            return Some(see(header, &key[..usize::from(header.klen)]));
        }
        let (header, key) = self.header_and_key(slot)?;
        Some(see(header, &key))
    }

    /// The hash of the key in a slot whose lock is held. It stands for the key where only its place matters.
    #[inline]
    pub fn hash_in(&self, slot: SlotIx) -> Hashed<'static> {
        let first = self.with_entry(slot, |_, key| self.geometry.hashed(key).first());
        self.geometry.hashed_to(&[], first.unwrap_or(First(0)))
    }

    /// The slot's header.
    #[inline]
    pub fn header(&self, slot: SlotIx) -> Header {
        words::header(self.words(slot))
    }

    /// The slot's `aux`.
    #[inline]
    pub fn aux(&self, slot: SlotIx) -> u32 {
        Header::from_words([0, self.region.load(self.geometry.slot_word(slot) + 1)]).aux
    }

    /// The life of the entry in a slot whose lock is held.
    #[inline]
    pub fn life(&self, slot: SlotIx) -> Option<Life> {
        let (words, header) = (self.words(slot), self.header(slot));
        header.has_life().then(|| mapped::life(self.geometry.shape(), words, &header)).flatten()
    }

    /// Whether the slot holds `key`.
    pub fn holds(&self, slot: SlotIx, key: &[u8]) -> bool {
        if self.geometry.is_long(key) {
            return self.holds_long(slot, self.geometry.hashed(key));
        }
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

    /// The slot's content, as [`SlotReader::image`].
    pub fn read(&self, slot: SlotIx) -> SlotCopy {
        let image = self.image(slot);
        self.owned(View::consistent(self.geometry.shape(), &image).expect("zeros at the worst"))
    }

    /// Reads header and key of a slot whose lock is not held. `None` while the slot is being
    /// written.
    pub fn peek(&self, slot: SlotIx) -> Option<(Header, Key)> {
        self.at_rest(slot, || self.header_and_key(slot))
    }

    /// Reads the header of a slot whose lock is not held, and the hash of its key, as [`SlotReader::peek`].
    #[inline]
    pub fn peek_hash(&self, slot: SlotIx) -> Option<(Header, Hashed<'static>)> {
        self.at_rest(slot, || {
            self.with_entry(slot, |header, key| {
                (header, self.geometry.hashed_to(&[], self.geometry.hashed(key).first()))
            })
        })
    }

    /// The result of a look at a slot whose lock is not held. `None` while the slot is being written.
    #[inline(always)]
    fn at_rest<R>(&self, slot: SlotIx, look: impl FnOnce() -> Option<R>) -> Option<R> {
        let words = self.words(slot);
        let stamp = words[0].load(Ordering::Relaxed);
        // Fences as in the shm reader: R1, and R2; and as in its second look, X9, because a long key is in an extent.
        fence(Ordering::Acquire);
        let seen = look()?;
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
