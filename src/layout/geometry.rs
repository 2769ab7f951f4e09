//! Where everything is. Parsed once from a configuration or a superblock, and trusted from then on.

use super::WORD;
use super::extent::{EXTENT_HEADER, GRANULE, HeapSpace, Reference};
pub use super::family::{Family, Layout};
use super::hash::{First, FirstHash, Hashed, SHORT_KEY, Seeds, mix, reduce};
use super::life::LIFE_BYTES;
use super::owners::{self, OWNERS_BYTES};
use super::slot::{HEADER, Identity, SlotShape};
use super::undo;
pub use super::window::{SlotIx, Window};
use super::words::EIGHT_LINES;
use crate::faults::{Rule, broken};
use std::ops::Range;
use std::time::Duration;

/// The most homes. With [`OVERFLOW_BLOCKS_MAX`], every size computed from numbers within their
/// limits fits into 63 bits: (2^40 + 64) * 64 slots + 2^24 * 64 slots, times 4096 bytes, is below
/// 2^59.
pub(crate) const HOMES_MAX: u64 = 1 << 40;
/// The most overflow blocks. A link has room for each number up to this.
pub(crate) const OVERFLOW_BLOCKS_MAX: u64 = (1 << 24) - 1;
/// The most segments: each has a number in a directory entry.
pub(crate) const SEGMENTS_MAX: u64 = 1 << 22;
/// Homes, and overflow blocks, of a segment: more, and links and sizes would not fit their words.
pub(crate) const SEGMENT_HOMES_MAX: u64 = 1 << 17;

/// The most segments that a table may have whose segments have `homes` homes and `overflow_blocks` blocks: 0 if these
/// are too many for a segment.
pub(crate) fn segments_max(homes: u64, overflow_blocks: u64) -> u64 {
    if homes.max(overflow_blocks) <= SEGMENT_HOMES_MAX { SEGMENTS_MAX } else { 0 }
}

/// Directory entries reserved for each segment there may be: segments are not all equally deep.
const ENTRIES_PER_SEGMENT: u64 = 4;
/// Slots behind the directory of a table that grows: one for each chunk that a device may register (`chunk.rs`).
pub(super) const CHUNK_SLOTS: u32 = 384;
/// The longest grace time.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(60);

/// A table's geometry. Every slot that it names lies inside the table's region, so nothing needs
/// checking again. Made from a [`Config`](crate::Config) or a superblock, and from nothing else.
///
/// Of a table that grows, this is the geometry of each segment, and says how many there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    layout: Layout,
    shape: SlotShape,
    key_max: usize,
    /// The longest key that stands in its slot.
    key_inline: usize,
    value_max: usize,
    homes: u64,
    overflow_blocks: u64,
    /// Bytes of life behind each value.
    has_life: bool,
    /// The most bytes of a key and its value in a slot.
    inline_max: usize,
    /// Whether entries may have owners.
    has_owners: bool,
    /// The most segments of a table that grows; 0 in a table of one size.
    segments_max: u64,
    heap: HeapSpace,
    grace: Duration,
    generation: u64,
    seeds: Seeds,
    derived: Derived,
}

/// The numbers from which all else of a table of one size follows, without a heap. Each is within its limits.
pub(crate) struct Numbers {
    pub layout: Layout,
    pub shape: SlotShape,
    pub key_max: usize,
    pub key_inline: usize,
    pub value_max: usize,
    pub has_life: bool,
    pub has_owners: bool,
    pub homes: u64,
    pub overflow_blocks: u64,
    pub grace: Duration,
    pub generation: u64,
    pub seeds: Seeds,
}

/// What follows from the rest of a geometry. Kept, because every GET needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Derived {
    first_hash: FirstHash,
    table_offset: u64,
    /// Words of a slot, from one home's slot to the next one's, and in a home's window.
    slot_words: usize,
    home_words: usize,
    window_words: usize,
    window_slots: u32,
    /// The word in which the first home's window begins, and the first of that slot's payload.
    first_word: usize,
    first_payload: usize,
    /// Bits in the filter of displaced keys, in a home's header.
    filter_bits: u32,
    /// The longest key in a slot of one line; 0 where slots are not one line.
    line_keys: usize,
    /// The longest key of which a direct look has a short form (`fabric/direct.rs`); 0 where there is none.
    glance_keys: usize,
    /// The longest key that has the simplest one: 0 where windows have another number of slots than eight.
    glance_keys_simply: usize,
    /// Like `glance_keys_simply`; 0 in a table that grows, too.
    glance_keys_of_one_size: usize,
    /// The longest key of which a look has the answer: 0 where an entry may be hidden.
    plain_key_max: usize,
    /// What the slots of one segment are bound to: the number of its first slot, and which use of its
    /// memory this is.
    first_slot: u64,
    incarnation: u32,
    /// Of a table that grows: words in front of the first segment, and in each.
    directory_words: usize,
    segment_words: usize,
    directory_slots: u64,
    /// The word in which the window of the first segment's first home begins.
    first_segment_word: usize,
}

/// Byte offset of slot 0.
pub(super) fn table_offset(shape: SlotShape, has_owners: bool) -> u64 {
    undo::end(shape) + if has_owners { OWNERS_BYTES } else { 0 }
}

impl Derived {
    fn of(
        layout: Layout,
        shape: SlotShape,
        [key_max, key_inline]: [usize; 2],
        seeds: &Seeds,
        has_owners: bool,
    ) -> Derived {
        let table_offset = table_offset(shape, has_owners);
        let [plain_key_max, plain_inline] = if has_owners { [0; 2] } else { [key_max, key_inline] };
        let window_words = layout.window_slots() as usize * shape.words();
        let in_a_line = |keys| if shape == SlotShape::LINE { keys } else { 0 };
        let (line_keys, glance_keys) = (in_a_line(key_inline), in_a_line(plain_inline));
        let glance_keys_simply = if window_words == EIGHT_LINES { glance_keys } else { 0 };
        Derived {
            first_hash: FirstHash::new(seeds),
            table_offset,
            slot_words: shape.words(),
            home_words: layout.bucket_slots as usize * shape.words(),
            window_words,
            window_slots: layout.window_slots(),
            first_word: table_offset as usize / WORD,
            first_payload: (table_offset as usize + HEADER) / WORD,
            filter_bits: layout.filter_bits(false),
            line_keys,
            glance_keys,
            glance_keys_simply,
            glance_keys_of_one_size: glance_keys_simply,
            plain_key_max,
            first_slot: 0,
            incarnation: 0,
            directory_words: 0,
            segment_words: 0,
            directory_slots: 0,
            first_segment_word: 0,
        }
    }
}

impl From<Numbers> for Geometry {
    fn from(numbers: Numbers) -> Geometry {
        let Numbers { layout, shape, key_max, key_inline, value_max, has_life, has_owners, .. } = numbers;
        let Numbers { homes, overflow_blocks, grace, generation, seeds, .. } = numbers;
        let (segments_max, heap) = (0, HeapSpace::default());
        let derived = Derived::of(layout, shape, [key_max, key_inline], &seeds, has_owners);
        Geometry {
            layout,
            shape,
            key_max,
            key_inline,
            value_max,
            homes,
            overflow_blocks,
            has_life,
            inline_max: shape.payload_max() - if has_life { LIFE_BYTES } else { 0 },
            has_owners,
            segments_max,
            heap,
            grace,
            generation,
            seeds,
            derived,
        }
    }
}

impl Geometry {
    /// The layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// The shape of every slot.
    #[inline]
    pub fn shape(&self) -> SlotShape {
        self.shape
    }
    /// The longest key, in bytes.
    #[inline]
    pub fn key_max(&self) -> usize {
        self.key_max
    }
    /// The longest key that stands in its slot, in bytes. A longer one is in an extent, and a GET of it takes one READ
    /// more.
    pub fn key_inline(&self) -> usize {
        self.key_inline
    }
    /// Whether the key does not stand in its slot.
    #[inline(always)]
    pub(crate) fn is_long(&self, key: &[u8]) -> bool {
        key.len() > self.key_inline
    }
    /// The longest extent, in bytes: of a value, with its key if that does not stand in its slot.
    pub(crate) fn extent_max(&self) -> usize {
        self.value_max + if self.key_max > self.key_inline { self.key_max } else { 0 }
    }
    /// Whether the key has a length that keys of this table may have.
    #[inline(always)]
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        key.len().wrapping_sub(1) < self.key_max
    }
    /// Like `may_hold`, in a table where nothing hides an entry.
    #[inline(always)]
    pub(crate) fn may_hold_plainly(&self, key: &[u8]) -> bool {
        key.len().wrapping_sub(1) < self.derived.plain_key_max
    }
    /// The longest value, in bytes.
    pub fn value_max(&self) -> usize {
        self.value_max
    }
    /// Whether values may be too long for their slots.
    #[inline(always)]
    pub fn has_heap(&self) -> bool {
        self.heap.bytes > 0
    }
    /// Bytes that an entry takes in the memory for long values: 0 if key and value stand in its slot.
    pub fn extent_bytes(&self, key: &[u8], value_len: usize) -> u64 {
        let key_len = if self.is_long(key) { key.len() } else { 0 };
        if self.is_inline(key, value_len) { 0 } else { super::extent::extent_bytes(key_len + value_len) }
    }
    /// Where long values are.
    pub fn heap(&self) -> &HeapSpace {
        &self.heap
    }
    /// Whether entries have a [`Life`](super::Life): a number, an owner, a time when they end.
    #[inline(always)]
    pub fn has_life(&self) -> bool {
        self.has_life
    }
    /// Whether entries may have owners, whose entries can be hidden all at once.
    #[inline(always)]
    pub fn has_owners(&self) -> bool {
        self.has_owners
    }
    /// The number of the region's word in which the owner's bit is, of a table with owners (O1).
    #[inline]
    pub fn owner_word(&self, owner: u16) -> usize {
        self.mask_offset() as usize / WORD + owners::mask_word(owner)
    }
    /// The number of the region's word in which the owner's time is.
    pub(crate) fn owner_time_word(&self, owner: u16) -> usize {
        self.mask_offset() as usize / WORD + owners::time_word(owner)
    }

    /// The word that says which owner has this number (I4).
    pub(crate) fn owner_tenure_word(&self, owner: u16) -> usize {
        self.mask_offset() as usize / WORD + owners::tenure_word(owner)
    }
    /// Byte offset of the mask of hidden owners.
    #[inline]
    pub(crate) fn mask_offset(&self) -> u64 {
        undo::end(self.shape)
    }
    /// Whether a value stands in the slot itself, with this key.
    #[inline(always)]
    pub(crate) fn is_inline(&self, key: &[u8], value_bytes: usize) -> bool {
        !self.is_long(key) && key.len() + value_bytes <= self.inline_max
    }
    /// Bytes of a slot for the value, beside the longest key that stands in one.
    pub(crate) fn beside_key_inline(&self) -> usize {
        self.inline_max.saturating_sub(self.key_inline)
    }
    /// The number of homes.
    pub fn homes(&self) -> u64 {
        self.homes
    }
    /// The number of overflow blocks reserved.
    pub fn overflow_blocks(&self) -> u64 {
        self.overflow_blocks
    }
    /// The grace time T.
    pub fn grace(&self) -> Duration {
        self.grace
    }
    /// The table's number: drawn at random for each new table, and kept by each server that takes it over (I1).
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// This table with another number: for tests of bytes that depend on it.
    #[doc(hidden)]
    pub fn with_generation(self, generation: u64) -> Geometry {
        Geometry { generation, ..self }
    }
    /// The seeds of the hashes.
    #[inline]
    pub fn seeds(&self) -> &Seeds {
        &self.seeds
    }

    /// The number of main slots.
    #[inline]
    pub fn main_slots(&self) -> u64 {
        (self.homes + u64::from(self.layout.window_buckets) - 1) * u64::from(self.layout.bucket_slots)
    }
    /// The number of slots, overflow included; of one segment in a table that grows.
    #[inline]
    pub fn slots(&self) -> u64 {
        self.main_slots() + self.overflow_blocks * u64::from(self.layout.block_slots)
    }
    /// Whether the table grows and shrinks, by segments.
    #[inline(always)]
    pub fn grows(&self) -> bool {
        self.segments_max > 0
    }
    /// Whether a direct look for this key has a short form (`fabric/direct.rs`): where slots are one line.
    #[inline(always)]
    pub(crate) fn can_glance(&self, key: &[u8]) -> bool {
        key.len().wrapping_sub(1) < self.derived.glance_keys
    }
    /// Whether the simplest one applies: where windows have eight slots, for keys of 8 to 16 bytes.
    #[inline(always)]
    pub(crate) fn can_glance_simply(&self, key: &[u8]) -> bool {
        matches!(key.len(), 8..=SHORT_KEY) && key.len() <= self.derived.glance_keys_simply
    }
    /// Whether it applies, and the table has one size.
    #[inline(always)]
    pub(crate) fn can_glance_in_one_size(&self, key: &[u8]) -> bool {
        matches!(key.len(), 8..=SHORT_KEY) && key.len() <= self.derived.glance_keys_of_one_size
    }
    /// Whether slots are one line, which this key may stand in, if owners hide entries or not.
    #[inline(always)]
    pub(crate) fn shows_lines(&self, key: &[u8]) -> bool {
        key.len().wrapping_sub(1) < self.derived.line_keys
    }
    /// Like `shows_lines`, where the simplest look applies, but for what hides an entry.
    #[inline(always)]
    pub(crate) fn shows_eight_lines(&self, key: &[u8]) -> bool {
        self.shows_lines(key)
            && self.derived.window_words == EIGHT_LINES
            && matches!(key.len(), 8..=SHORT_KEY)
    }
    /// Bits in the filter of displaced keys, in a home's header: a power of two.
    #[inline(always)]
    pub(crate) fn filter_bits(&self) -> u32 {
        self.derived.filter_bits
    }
    /// The most segments; 0 in a table of one size.
    pub fn segments_max(&self) -> u64 {
        self.segments_max
    }
    /// The number of directory entries reserved, a power of two; 0 in a table of one size.
    pub fn directory_slots(&self) -> u64 {
        self.derived.directory_slots
    }
    /// The geometry of a table of up to `segments_max` such segments; 0 for a table of one size.
    pub(crate) fn growing(mut self, segments_max: u64) -> Geometry {
        self.segments_max = segments_max;
        let words = self.shape.words();
        if segments_max > 0 {
            self.derived.filter_bits = self.layout.filter_bits(true);
            self.derived.glance_keys_of_one_size = 0;
            self.derived.directory_slots = (segments_max * ENTRIES_PER_SEGMENT).next_power_of_two();
            self.derived.directory_words =
                (self.derived.directory_slots + u64::from(CHUNK_SLOTS)) as usize * words;
            self.derived.segment_words = self.slots() as usize * words;
            self.derived.first_segment_word = self.derived.first_word + self.derived.directory_words;
        }
        self
    }
    /// The first slot of a segment, numbered through.
    #[inline]
    pub fn segment_first(&self, memory: u32) -> SlotIx {
        SlotIx(self.slots_in_front() + u64::from(memory) * self.slots())
    }
    /// Slots in front of the first segment: those of the directory, and the chunk slots.
    #[inline]
    fn slots_in_front(&self) -> u64 {
        if self.grows() { self.derived.directory_slots + u64::from(CHUNK_SLOTS) } else { 0 }
    }
    /// The geometry of one segment, whose slots are numbered by themselves.
    pub(crate) fn segment(&self, memory: u32, incarnation: u32) -> Geometry {
        let first = self.segment_first(memory);
        let table_offset = self.slot_offset(first);
        let derived = Derived {
            table_offset,
            first_word: table_offset as usize / WORD,
            first_payload: (table_offset as usize + HEADER) / WORD,
            first_slot: first.0,
            incarnation,
            ..self.derived.clone()
        };
        Geometry { derived, ..self.clone() }
    }
    /// What the slots of this geometry's segment are bound to besides their numbers.
    pub(crate) fn incarnation(&self) -> u32 {
        self.derived.incarnation
    }
    /// Byte offset of slot 0 in the region.
    #[inline]
    pub fn table_offset(&self) -> u64 {
        self.derived.table_offset
    }
    /// Length of the region in bytes. Of a table that grows, all that it may come to.
    pub fn region_bytes(&self) -> u64 {
        if self.has_heap() { self.heap.offset + self.heap.bytes } else { self.slots_end() }
    }
    /// The most memory that the table takes, in bytes: of one that grows the budget that its slots and
    /// long values share, for each of which there are that many addresses.
    pub fn bytes_max(&self) -> u64 {
        if self.grows() { self.slots_end() } else { self.region_bytes() }
    }
    /// The byte behind the last slot.
    pub(crate) fn slots_end(&self) -> u64 {
        self.table_offset() + self.slots_in_all() * self.shape.bytes() as u64
    }
    /// This table with this heap.
    pub(super) fn with_heap_at(self, heap: HeapSpace) -> Geometry {
        Geometry { heap, ..self }
    }
    /// This table with a heap of at most `bytes_max` bytes for the longest extents. `None` if they are too few.
    pub(crate) fn with_heap(mut self, bytes_max: u64) -> Option<Geometry> {
        self.heap = HeapSpace::behind(self.slots_end(), bytes_max, self.extent_max())?;
        Some(self)
    }
    /// Bytes of the region that an empty table needs: of one that grows, those of its first segment, and
    /// the beginning of the directory. The heap comes as values do.
    pub fn bytes_at_first(&self) -> u64 {
        const DIRECTORY: u64 = 128 << 10;
        let one = self.table_offset() + self.slots() * self.shape.bytes() as u64;
        if self.grows() { (one + DIRECTORY).min(self.slots_end()) } else { self.slots_end() }
    }
    /// All slots numbered through, those in front of the segments and of segments to come included.
    pub(crate) fn slots_in_all(&self) -> u64 {
        self.slots_in_front() + self.segments_max.max(1) * self.slots()
    }
    /// The bytes of the region where slots are that have keys: of every segment that there may be, also if this is the
    /// geometry of one.
    pub(crate) fn bytes_of_slots(&self) -> Range<u64> {
        let slot_bytes = self.shape.bytes() as u64;
        let begin = table_offset(self.shape, self.has_owners) + self.slots_in_front() * slot_bytes;
        begin..begin + self.segments_max.max(1) * self.slots() * slot_bytes
    }
    /// The number of a segment's slot among all.
    #[inline]
    pub(crate) fn numbered_through(&self, slot: SlotIx) -> SlotIx {
        SlotIx(self.derived.first_slot + slot.0)
    }
    /// Byte offset of `slot` in the region.
    #[inline]
    pub fn slot_offset(&self, slot: SlotIx) -> u64 {
        self.table_offset() + slot.0 * self.shape.bytes() as u64
    }
    /// The number of the region's word that is the first of `slot`.
    #[inline]
    pub(crate) fn slot_word(&self, slot: SlotIx) -> usize {
        self.derived.first_word + slot.0 as usize * self.derived.slot_words
    }
    /// Like `slot_word`, in a table whose slots have this shape.
    #[inline(always)]
    pub(crate) fn slot_word_of(&self, shape: SlotShape, slot: SlotIx) -> usize {
        self.derived.first_word + slot.0 as usize * shape.words()
    }
    /// The number of the region's word that is the first of the slot's payload.
    #[inline(always)]
    pub(crate) fn payload_word(&self, slot: SlotIx) -> usize {
        self.derived.first_payload + slot.0 as usize * self.derived.slot_words
    }
    /// The number of the region's word that is the first of a home's window.
    #[inline(always)]
    pub(crate) fn home_word(&self, home: u64) -> usize {
        self.derived.first_word + home as usize * self.derived.home_words
    }
    /// The first word of a home's window in the segment with this memory. A number that is none of this table may
    /// lead out of the region, by fewer than 2^58 words.
    #[inline(always)]
    pub(crate) fn home_word_in(&self, memory: u32, home: u64) -> usize {
        let Derived { first_segment_word, segment_words, home_words, .. } = &self.derived;
        first_segment_word + memory as usize * segment_words + home as usize * home_words
    }
    /// The words of a home's window.
    #[inline(always)]
    pub(crate) fn window_words(&self) -> usize {
        self.derived.window_words
    }
    /// Bytes that a READ of a home's window moves.
    #[inline(always)]
    pub(crate) fn home_window_bytes(&self) -> u64 {
        (self.derived.window_words * WORD) as u64
    }
    /// Bytes that a READ of `window` moves.
    #[inline]
    pub fn window_bytes(&self, window: Window) -> u64 {
        u64::from(window.slots) * self.shape.bytes() as u64
    }
    /// What the CRC of `slot` is bound to.
    #[inline]
    pub(crate) fn identity(&self, slot: SlotIx) -> Identity {
        self.identity_in(slot, self.derived.incarnation)
    }
    /// Like `identity`, in this use of the memory.
    #[inline]
    pub(crate) fn identity_in(&self, slot: SlotIx, incarnation: u32) -> Identity {
        Identity {
            // A CRC notices every change of up to 32 bits in a row.
            generation: self.generation ^ u64::from(incarnation),
            index: self.derived.first_slot + slot.0,
        }
    }

    /// Hashes a key once, for its home and tags. Later steps take the result.
    #[inline(always)]
    pub fn hashed<'a>(&self, key: &'a [u8]) -> Hashed<'a> {
        self.hashed_to(key, self.narrowed(key, self.derived.first_hash.of(key)))
    }
    /// In a test that wants equal digests, a hash of few bits for a long key; else the same.
    #[inline(always)]
    fn narrowed(&self, key: &[u8], first: First) -> First {
        const BITS: u64 = 0x1f;
        if broken(Rule::WideDigest) && self.is_long(key) { First(mix(first.0 & BITS)) } else { first }
    }
    /// The key whose first hash this is.
    #[inline(always)]
    pub(crate) fn hashed_to<'a>(&self, key: &'a [u8], first: First) -> Hashed<'a> {
        Hashed { key, first, home: self.home(first.0) }
    }
    /// The home of a hash.
    #[inline]
    pub fn home(&self, hash: u64) -> u64 {
        reduce(hash, self.homes)
    }
    /// The window that begins at a home's slot.
    #[inline]
    pub fn window(&self, home: u64) -> Window {
        Window {
            first: SlotIx(home * u64::from(self.layout.bucket_slots)),
            slots: self.derived.window_slots,
            incarnation: self.derived.incarnation,
        }
    }
    /// A key's primary window. Its first slot is the key's home slot, whose header holds the
    /// filter.
    #[inline]
    pub fn primary(&self, key: Hashed<'_>) -> Window {
        self.window(key.home)
    }
    /// The number of the bucket that contains the main slot `slot`. It is the number of the home
    /// whose window begins there, if one does: in the last `window_buckets - 1` buckets none does.
    pub(crate) fn home_of_slot(&self, slot: SlotIx) -> u64 {
        slot.0 / u64::from(self.layout.bucket_slots)
    }
}

impl Reference {
    /// Whether it leads to a value in the heap. No other is followed.
    pub fn is_sound(&self, geometry: &Geometry) -> bool {
        let heap = geometry.heap();
        let begins = heap.offset + EXTENT_HEADER as u64;
        let last = (heap.offset + heap.bytes).saturating_sub(self.len.into());
        self.offset % GRANULE == begins % GRANULE
            && (begins..=last).contains(&self.offset)
            && (1..=geometry.extent_max()).contains(&(self.len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::First;
    use super::*;
    use crate::config::{Config, TableSize};

    /// The geometry has what the configuration asked for, and everything is where docs/FORMAT.md
    /// says.
    #[test]
    fn everything_is_where_the_format_says() {
        let layout = "farm".parse().unwrap();
        let seeds = Seeds::from_number(5);
        let grace = Duration::from_micros(300);
        let size = TableSize::Slots(100);
        let config = Config {
            layout,
            size,
            key_max: 20,
            value_max: 90,
            grace,
            seeds: Some(seeds),
            ..Config::default()
        };
        let it = config.geometry().unwrap();
        assert_eq!((it.layout(), it.shape().bytes(), it.key_max(), it.value_max()), (layout, 128, 20, 90));
        assert_eq!((it.homes(), it.main_slots(), it.overflow_blocks(), it.slots()), (24, 100, 12, 148));
        assert_eq!((it.grace(), *it.seeds()), (grace, seeds));
        let other = config.geometry().unwrap();
        assert_ne!(it.generation(), other.generation(), "I1: each table has its own");
        assert_eq!(other.with_generation(it.generation()), it);
        // Behind two pages, and 64 undo lines of 192 bytes.
        let table = 20_480;
        assert_eq!((it.table_offset(), it.region_bytes()), (table, table + 148 * 128));
        assert_eq!((it.slot_offset(SlotIx(0)), it.slot_offset(SlotIx(147))), (table, table + 147 * 128));
        assert_eq!((it.slot_word(SlotIx(0)), it.slot_word(SlotIx(3))), (2_560, 2_560 + 3 * 16));
        let identity = it.identity(SlotIx(7));
        assert_eq!((identity.generation, identity.index), (it.generation(), 7));

        // Home 23, the last: buckets 23 and 24.
        let last = it.window(23);
        assert_eq!(
            (last, it.window_bytes(last)),
            (Window { first: SlotIx(92), slots: 8, incarnation: 0 }, 1_024)
        );
        let of = |hash| it.primary(Hashed { key: b"", first: First(hash), home: it.home(hash) });
        assert_eq!(of(u64::MAX), last);
        assert_eq!(of(0), it.window(0));
        assert_eq!(([0, 23].map(|home| it.home_word(home)), it.window_words()), ([2_560, 4_032], 128));
        assert_eq!([0, 3, 4, 92].map(|slot| it.home_of_slot(SlotIx(slot))), [0, 0, 1, 23]);
        assert!(last.iter().map(|slot| slot.0).eq(92..100));
        assert_eq!([91, 92, 99, 100].map(|n| last.contains(SlotIx(n))), [false, true, true, false]);
        assert_eq!(it.bytes_of_slots(), table..it.region_bytes());
        let growing = it.growing(5);
        let first = growing.slot_offset(growing.segment_first(0));
        for geometry in [&growing, &growing.segment(3, 7)] {
            assert_eq!(geometry.bytes_of_slots(), first..growing.slots_end());
        }
    }
}
