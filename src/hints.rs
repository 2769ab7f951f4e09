//! Hints: what a client remembers of the slots that it has seen, one byte a slot.
//!
//! The byte is a *tag* of the key that stood there. A GET compares it with the tags of its own key,
//! over all the windows where the key can be (`families::known_windows`). Where one slot matches,
//! or two, it READs those alone: [`HintedLook`](crate::get::HintedLook). Nothing rests on a tag
//! (G9): one that is old, foreign or hostile costs a READ of one slot.
//!
//! # Four tags of a key
//!
//! ```text
//! byte        0     1..=127   128..=191   192..=223   224..=255
//! stands for  unknown   first     second      third       fourth tag
//! ```
//!
//! A slot has the first tag of its key, until a GET of another key matched it while its own key was
//! found elsewhere. Then the slot gets the next tag that the other key does not have, as in an
//! adaptive cuckoo filter (Mitzenmacher, Pontarelli, Reviriego, ALENEX'18). So one match in ten is
//! false at first, and one in some hundreds when each key has been looked for a few times.
//!
//! # Memory
//!
//! At most as many bytes as the client allows, whatever a region says of itself. If that is one for
//! each main slot, a slot has a byte of its own, and a GET that READs a window refreshes the bytes
//! of all its slots. Otherwise slots share bytes (slot number modulo bytes), and only slots where a
//! key was found are remembered: others would crowd them out. Overflow slots have no byte, but for those of
//! a table that grows.
//!
//! # In a table that grows
//!
//! The windows are those of the segments that the remembered directory entry names, as old as it may be
//! (`reader::KnownEntries`): the key's, and the pending one of a split or merge. Without an entry there is
//! no hint. A key that went to the other segment is looked for as without hints, which teaches both, so
//! the next GET READs its slot there, with the same old entry. As many slots count as the client has
//! seen: whether each has a byte of its own does not hang on the reservation.
//!
//! # Threads
//!
//! All handles of a client share its hints. Loads and stores are relaxed, and a byte is stored with
//! its seven neighbours. So a tag may be lost or come back. Nothing rests on it.

use crate::base::sync::lock_std;
use crate::get::Landed;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::segment::{DirectoryEntry, Named};
use crate::placement::families;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of hints over verbs, if nothing else is asked for: tables of up to 16 million slots have
/// one for each slot.
pub const HINT_BYTES: usize = 16 << 20;

/// Windows of one slot that a GET READs first: none, one, or two. More than two are none.
pub(crate) type Hinted = SmallVec<[Window; 2]>;

/// Bytes in a word.
const BYTES: u64 = 8;
/// A word with 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The tags of one key. They come from the low 24 bits of its first hash. Homes come from the high
/// bits, at most 40 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tags([u8; 4]);

impl Tags {
    fn of(first: First) -> Tags {
        let bits = |from: u32, n: u32| (first.0 >> from & ((1 << n) - 1)) as u8;
        Tags([bits(0, 7).max(1), 128 | bits(7, 6), 192 | bits(13, 5), 224 | bits(18, 5)])
    }

    fn has(self, tag: u8) -> bool {
        self.0.contains(&tag)
    }

    /// The tag after this one, in a circle, that the other key does not have. 0 if there is none.
    fn after(self, tag: u8, other: Tags) -> u8 {
        let at = self.0.iter().position(|&mine| mine == tag).map_or(0, |at| at + 1);
        (0..4).map(|n| self.0[(at + n) % 4]).find(|&next| !other.has(next)).unwrap_or(0)
    }
}

/// The bytes of a word that are one of these tags: bit 7 of each is set.
#[inline(always)]
fn matches(word: u64, tags: Tags) -> u64 {
    let equal = |tag: u8| {
        let differ = word ^ (u64::from(tag) * ONES);
        // Bit 7 of each byte that is 0. No carry leaves a byte.
        !(((differ & (0x7f * ONES)) + 0x7f * ONES) | differ) & (0x80 * ONES)
    };
    tags.0.into_iter().fold(0, |all, tag| all | equal(tag))
}

/// Tags of the slots of one table. `Send + Sync`.
#[derive(Debug)]
pub struct Hints {
    words: Box<[AtomicU64]>,
    /// Slots that may have a byte, and the first of them.
    slots: u64,
    first: SlotIx,
    /// How many of them the client has come to, at least. Those of a table of one size are all known.
    known: AtomicU64,
    generation: u64,
}

impl Hints {
    /// No tags yet, for a table with this geometry, in at most `bytes_max` bytes. `None` if that is
    /// less than a word, if the memory is not to be had, or if a key has only one slot to be looked
    /// for in first, so that hints save nothing.
    pub fn new(geometry: &Geometry, bytes_max: usize) -> Option<Hints> {
        let layout = geometry.layout();
        if layout.choices * layout.window_slots() == 1 {
            return None;
        }
        let (first, slots) = hinted_slots(geometry);
        let words = slots.div_ceil(BYTES).min(bytes_max as u64 / BYTES) as usize;
        let words = bytemuck::allocation::try_zeroed_slice_box(words).ok()?;
        let known = AtomicU64::new(if geometry.grows() { 0 } else { slots });
        (!words.is_empty()).then_some(Hints { words, slots, first, known, generation: geometry.generation() })
    }

    /// Bytes of memory for tags.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * BYTES
    }

    /// Bytes of memory for tags of the slots that the client has come to. The system backs no others.
    pub fn bytes_used(&self) -> u64 {
        self.bytes().min(self.known.load(Ordering::Relaxed))
    }

    /// Whether each slot that the client has come to has a byte of its own.
    fn is_whole(&self) -> bool {
        self.bytes() >= self.known.load(Ordering::Relaxed)
    }

    fn fits(&self, geometry: &Geometry) -> bool {
        (self.generation, (self.first, self.slots)) == (geometry.generation(), hinted_slots(geometry))
    }

    /// The slots that a GET of this key READs first. `entry`: by which it looks in a table that grows.
    #[inline]
    pub(crate) fn of(&self, geometry: &Geometry, key: Hashed<'_>, entry: Option<DirectoryEntry>) -> Hinted {
        let tags = Tags::of(key.first());
        let mut hinted = Hinted::new();
        match entry {
            None => families::known_windows(geometry, key)
                .for_each(|window| self.collect(window, tags, &mut hinted)),
            Some(entry) => self.collect_grown(geometry, key, &entry, &mut hinted),
        }
        if hinted.len() > 2 {
            hinted.clear();
        }
        hinted
    }

    /// Like `of`, in a table that grows: the slots of the key's segment and of the pending one.
    #[inline(never)]
    fn collect_grown(
        &self,
        geometry: &Geometry,
        key: Hashed<'_>,
        entry: &DirectoryEntry,
        hinted: &mut Hinted,
    ) {
        let tags = Tags::of(key.first());
        for window in families::known_windows(geometry, key) {
            for Named { memory, incarnation } in
                [Some(entry.segment), entry.pending.named()].into_iter().flatten()
            {
                let window = window.of_segment(geometry.segment_first(memory), incarnation);
                self.collect(window, tags, hinted);
            }
        }
    }

    /// Adds the slots of a window that these tags name: three of all windows at the most.
    #[inline(always)]
    fn collect(&self, window: Window, tags: Tags, hinted: &mut Hinted) {
        self.look_in(window, tags, |slot| {
            // Windows may overlap.
            if hinted.len() < 3 && !hinted.iter().any(|other| other.first == slot) {
                hinted.push(Window { first: slot, slots: 1, ..window });
            }
        });
    }

    #[inline]
    fn look_in(&self, window: Window, tags: Tags, mut each: impl FnMut(SlotIx)) {
        let (mut slot, end) = (window.first.0, window.end());
        while slot < end {
            let (word, offset) = self.place(SlotIx(slot));
            let here = (BYTES - u64::from(offset)).min(end - slot);
            let mut found = matches(self.words[word].load(Ordering::Relaxed), tags) >> (8 * offset);
            while found != 0 {
                let nth = u64::from(found.trailing_zeros() / 8);
                if nth >= here {
                    break;
                }
                each(SlotIx(slot + nth));
                found &= found - 1;
            }
            slot += here;
        }
    }

    /// The word of a main slot's byte, and which byte of it.
    #[inline]
    fn place(&self, slot: SlotIx) -> (usize, u32) {
        let (bytes, number) = (self.bytes(), slot.0 - self.first.0);
        let at = if number < bytes { number } else { number % bytes };
        ((at / BYTES) as usize, (at % BYTES) as u32)
    }

    fn tag(&self, slot: SlotIx) -> u8 {
        let (word, byte) = self.place(slot);
        (self.words[word].load(Ordering::Relaxed) >> (8 * byte)) as u8
    }

    fn set(&self, slot: SlotIx, tag: u8) {
        let (word, byte) = self.place(slot);
        // Relaxed, and in two steps: the tags of another thread may be lost.
        let kept = self.words[word].load(Ordering::Relaxed) & !(0xff << (8 * byte));
        self.words[word].store(kept | u64::from(tag) << (8 * byte), Ordering::Relaxed);
    }

    /// A window was READ for `key`.
    pub(crate) fn learn<L: Landed>(&self, window: Window, landed: &L, key: Hashed<'_>) {
        let known = window.end().wrapping_sub(self.first.0);
        if window.first < self.first || known > self.slots {
            return;
        }
        if known > self.known.load(Ordering::Relaxed) {
            self.known.fetch_max(known, Ordering::Relaxed);
        }
        let is_whole = self.is_whole();
        let occupants: SmallVec<[_; 8]> = window.iter().map(|slot| (slot, landed.occupant(slot))).collect();
        let is_here = occupants.iter().any(|(_, occupant)| *occupant == Some(key.first()));
        for &(slot, occupant) in &occupants {
            if is_whole || occupant == Some(key.first()) {
                self.put(slot, occupant);
            }
            // More than two slots may have matched, so that none was READ.
            if is_whole && is_here && Tags::of(key.first()).has(self.tag(slot)) {
                self.correct(slot, occupant, key, true);
            }
        }
    }

    /// The slot seems to hold the key with this hash, or none.
    fn put(&self, slot: SlotIx, occupant: Option<First>) {
        let tag = self.tag(slot);
        let Some(first) = occupant else {
            if tag != 0 {
                self.set(slot, 0);
            }
            return;
        };
        let tags = Tags::of(first);
        if !tags.has(tag) {
            self.set(slot, tags.0[0]);
        }
    }

    /// The tags of these slots matched `key`, which is not there. `is_elsewhere`: it was found in
    /// another slot.
    pub(crate) fn correct_all(&self, wrong: &[(SlotIx, Option<First>)], key: Hashed<'_>, is_elsewhere: bool) {
        for &(slot, occupant) in wrong {
            self.correct(slot, occupant, key, is_elsewhere);
        }
    }

    fn correct(&self, slot: SlotIx, occupant: Option<First>, key: Hashed<'_>, is_elsewhere: bool) {
        if occupant == Some(key.first()) {
            // A move's other copy.
            return;
        }
        let tag = self.tag(slot);
        let theirs = occupant.map(Tags::of);
        let theirs = theirs.filter(|tags| self.is_whole() || tags.has(tag));
        match theirs {
            // Right of its occupant. Only keys that are there are worth another tag: absent ones
            // are too many.
            Some(tags) if tags.has(tag) && !is_elsewhere => {}
            Some(tags) => self.set(slot, tags.after(tag, Tags::of(key.first()))),
            None => self.set(slot, 0),
        }
    }

    /// Forgets the windows of `key`, and remembers it in these slots.
    #[cfg(feature = "sim")]
    pub(crate) fn pretend(&self, geometry: &Geometry, key: Hashed<'_>, slots: &[SlotIx]) {
        for slot in slots_of(geometry, key) {
            self.set(slot, if slots.contains(&slot) { Tags::of(key.first()).0[0] } else { 0 });
        }
    }
}

/// The slots of which a hint may say that they have this key: in a table that grows, those of every segment.
#[cfg(feature = "sim")]
pub(crate) fn slots_of(geometry: &Geometry, key: Hashed<'_>) -> impl Iterator<Item = SlotIx> {
    let segments = if geometry.grows() { geometry.segments_max() as u32 } else { 1 };
    let first = move |memory| if geometry.grows() { geometry.segment_first(memory).0 } else { 0 };
    (0..segments).flat_map(move |memory| {
        let windows = families::known_windows(geometry, key).flat_map(|window| window.iter());
        windows.map(move |slot| SlotIx(first(memory) + slot.0))
    })
}

/// The first of the slots that may have a byte, and how many there are.
fn hinted_slots(geometry: &Geometry) -> (SlotIx, u64) {
    match geometry.grows() {
        false => (SlotIx(0), geometry.main_slots()),
        true => (geometry.segment_first(0), geometry.segments_max() * geometry.slots()),
    }
}

/// The hints of a client's handles.
#[derive(Debug)]
pub(crate) struct SharedHints {
    bytes_max: usize,
    /// Those of the newest table.
    newest: Mutex<Option<Arc<Hints>>>,
}

impl SharedHints {
    /// Hints that take at most `bytes_max` bytes. With 0 there are none.
    pub fn new(bytes_max: usize) -> SharedHints {
        SharedHints { bytes_max, newest: Mutex::new(None) }
    }

    /// Makes `mine` the hints of the table with this geometry. A new table has none yet.
    #[inline]
    pub fn refresh(&self, geometry: &Geometry, mine: &mut Option<Arc<Hints>>) {
        if self.bytes_max == 0 || mine.as_ref().is_some_and(|hints| hints.fits(geometry)) {
            return;
        }
        let mut newest = lock_std(&self.newest);
        if !newest.as_ref().is_some_and(|hints| hints.fits(geometry)) {
            *newest = Hints::new(geometry, self.bytes_max).map(Arc::new);
        }
        mine.clone_from(&newest);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
