//! Extents: values that are too long for their slots (X1 to X6).
//!
//! ```text
//! put     memory ─ number ─ bytes ─ the slot names it ─ what the slot named before waits 2A
//! move    memory ─ number ─ the bytes again ─ the slot names them, if it still names the old ones
//! ```
//!
//! A value that a client uploads has no name yet. It moves likewise, between two of its pieces (X10).
//!
//! `heap` has the memory. Its lock is a leaf: whoever holds it takes no other.

use super::budget::{Budget, Registrar};
use super::heap::{Heap, HeapError, HeapMarks, HeapShape, HeapUsage};
use super::moves::SlotWritten;
use crate::clock::Clock;
use crate::faults::{Rule, by_rule, kept, obey, wait_ns};
use crate::layout::control::NUMBERS_WORD;
use crate::layout::extent::{EXTENT_HEADER, EXTENT_HEADER_WORDS, Reference, extent_bytes};
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::{WORD, crc};
use crate::outcome::{HeapCounts, PutError, PutOutcome};
use crate::region::{Region, RegionError};
use crate::sync::{Mutex, Ordering, fence, lock, try_lock};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Numbers that are taken at a time: a takeover leaves out the rest of them.
const NUMBERS: u64 = if cfg!(feature = "sim") { 4 } else { 1 << 16 };
/// A block whose extents cannot move is looked at again after so long: a thread is about to name them.
const AGAIN: Duration = Duration::from_millis(1);
/// Words that are stored at a time.
const PIECE_WORDS: usize = 512;

/// The extents of a table. All segments share them.
#[derive(Debug)]
pub(super) struct Extents {
    region: Region,
    geometry: Geometry,
    clock: Clock,
    heap: Mutex<HeapState>,
    budget: Arc<Budget>,
    /// Of a table that grows, over verbs.
    registrar: OnceLock<Weak<dyn Registrar>>,
    /// Extents that slots name.
    named: AtomicU64,
    moved_bytes: AtomicU64,
    returned_bytes: AtomicU64,
}

#[derive(Debug)]
struct HeapState {
    heap: Heap,
    /// Numbers that are taken and not used.
    numbers: Range<u64>,
    /// Which blocks have memory that counts.
    backed: Vec<bool>,
    /// Which blocks slots may name memory in.
    used: Vec<bool>,
    /// An extent has moved since all those of the leaving block came up.
    has_moved: bool,
    /// All of them came up, and none could move.
    is_stuck: bool,
    /// What clients upload, by its place.
    uploads: FxHashMap<u64, Arc<UploadCell>>,
}

/// Who takes the draft out may name it; as long as it is inside, it may move.
type UploadCell = Mutex<Option<ExtentDraft>>;

/// A value that comes in pieces. Between them it may move (X10). Dropped, its memory is free again.
#[derive(Debug)]
pub(crate) struct Upload {
    extents: Arc<Extents>,
    cell: Arc<UploadCell>,
}

/// Memory for a value that no slot names yet. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct ExtentDraft {
    extents: Arc<Extents>,
    reference: Reference,
    /// Bytes written.
    written: usize,
    /// Bytes of the word that is not whole yet.
    partial: [u8; WORD],
    is_named: bool,
}

/// Why there is no memory for an extent.
#[derive(Debug)]
pub(super) enum NoMemory {
    /// There will be some, so much later at the earliest. Extents have to move until then.
    Busy(Duration),
    Refused(PutError),
}

impl Extents {
    /// Those of a table in whose heap nothing was ever written. `None` if it has no heap.
    pub fn new(
        region: &Region,
        geometry: &Geometry,
        clock: &Clock,
        budget: &Arc<Budget>,
    ) -> Option<Arc<Extents>> {
        let space = geometry.heap();
        let backed = vec![false; space.bytes.checked_div(space.block_bytes)? as usize];
        let number = region.load(NUMBERS_WORD);
        let (heap, used) = (Heap::new(shape(geometry)), backed.clone());
        let (numbers, uploads) = (number..number, FxHashMap::default());
        let state = HeapState { heap, numbers, backed, used, has_moved: false, is_stuck: false, uploads };
        Some(Arc::new(Extents {
            region: region.alias(),
            geometry: geometry.clone(),
            clock: clock.clone(),
            heap: Mutex::new(state),
            budget: Arc::clone(budget),
            registrar: OnceLock::new(),
            named: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            returned_bytes: AtomicU64::new(0),
        }))
    }

    /// X5: takes the heap over, with the extents that slots name. `bad` hears the number of each reference
    /// that no table can have.
    pub fn take_over(&self, references: impl Iterator<Item = Reference>, mut bad: impl FnMut(usize)) {
        let mut marks = HeapMarks::new(shape(&self.geometry));
        let (mut named, mut places) = (0, Vec::new());
        for (nth, reference) in references.enumerate() {
            let (at, bytes) = Extents::place(&self.geometry, &reference);
            let is_marked = reference.is_sound(&self.geometry) && marks.mark(at, bytes).is_ok();
            if is_marked {
                named += 1;
                places.push(at);
            } else {
                tracing::error!(?reference, "a slot names what is no extent, or another's");
                bad(nth);
            }
        }
        let longest = self.geometry.heap().kept_for(self.geometry.grace(), self.geometry.value_max() as u32);
        let wait = wait_ns(Rule::TakeoverExtents, longest.as_nanos() as u64);
        self.named.store(named, Ordering::Relaxed);
        let begins = self.geometry.heap().offset;
        for unused in marks.unused() {
            self.region.give_back(begins + unused.start..begins + unused.end);
        }
        let mut state = lock(&self.heap);
        state.heap = marks.open_after(self.clock.now_ns() + wait);
        for at in places {
            let block = (at / self.geometry.heap().block_bytes) as usize;
            state.used[block] = true;
            if !std::mem::replace(&mut state.backed[block], true) {
                self.budget.have(self.geometry.heap().block_bytes);
            }
        }
    }

    /// Where in the heap an extent begins, and its bytes.
    fn place(geometry: &Geometry, reference: &Reference) -> (u64, u64) {
        let begins = geometry.heap().offset + EXTENT_HEADER as u64;
        (reference.offset.saturating_sub(begins), extent_bytes(reference.len as usize))
    }

    /// The region's word that is the first of a value.
    fn first_word(reference: &Reference) -> usize {
        reference.offset as usize / WORD
    }

    /// Memory, and a number, for a value of so many bytes of the key with this hash.
    pub fn draft(self: &Arc<Extents>, hash: First, len: usize) -> Result<ExtentDraft, NoMemory> {
        let bytes = extent_bytes(len);
        let at = {
            let mut state = lock(&self.heap);
            state.heap.allocate(bytes, self.clock.now_ns())
        };
        let at = at.map_err(|why| match why {
            HeapError::Busy { wait } => NoMemory::Busy(wait),
            HeapError::Length | HeapError::Full => NoMemory::Refused(self.full()),
        })?;
        if let Err(why) = self.back(at) {
            lock(&self.heap).heap.give_back(at, bytes);
            let Some(why) = why else { return Err(NoMemory::Refused(self.full())) };
            tracing::error!(%why, "memory for a long value is refused");
            return Err(NoMemory::Refused(PutError::HeapMemory { given: len }));
        }
        let (reference, extents) = (self.begin(at, hash, len), Arc::clone(self));
        Ok(ExtentDraft { extents, reference, written: 0, partial: [0; WORD], is_named: false })
    }

    fn full(&self) -> PutError {
        let HeapCounts { live_bytes, heap_bytes, .. } = self.counts();
        PutError::HeapFull { live_bytes, heap_bytes }
    }

    /// Begins an extent in this place of the heap.
    fn begin(&self, at: u64, hash: First, len: usize) -> Reference {
        let offset = self.geometry.heap().offset + at + EXTENT_HEADER as u64;
        let reference = Reference { number: self.number(), offset, len: len as u32, crc: 0 };
        // X9: pairs with R3 of a second look. Who sees a store into this memory sees the slot write that
        // ended its last name.
        obey(Rule::NameFence, || fence(Ordering::Release));
        let header = [reference.number, hash.0, len as u64];
        let first = Extents::first_word(&reference) - EXTENT_HEADER_WORDS;
        self.region.stores(first, header.len()).store_all(0, &header);
        reference
    }

    /// X1: a number that no extent ever had.
    fn number(&self) -> u64 {
        let mut state = lock(&self.heap);
        if state.numbers.is_empty() {
            let end = state.numbers.end + NUMBERS;
            // The word goes up first. A killed server's stores end where its program did.
            obey(Rule::NumberFirst, || self.region.store(NUMBERS_WORD, end));
            state.numbers.end = end;
        }
        state.numbers.start += 1;
        state.numbers.start - 1
    }

    /// From now on, blocks are registered here before they are used (E0).
    #[cfg(feature = "verbs")]
    pub fn register_with(&self, registrar: Weak<dyn Registrar>) {
        self.registrar.set(registrar).expect("a server starts once");
    }

    /// The blocks that slots may name memory in.
    #[cfg(feature = "verbs")]
    pub fn blocks_used(&self) -> Vec<u64> {
        (0..).zip(&lock(&self.heap).used).filter_map(|(block, &used)| used.then_some(block)).collect()
    }

    /// Puts memory behind the block of this place, once, and has it registered. Fails without an error of the system where the
    /// table has all that it may have.
    fn back(&self, at: u64) -> Result<(), Option<RegionError>> {
        let space = self.geometry.heap();
        let block = at / space.block_bytes;
        if lock(&self.heap).backed[block as usize] {
            return Ok(());
        }
        if !self.budget.take(space.block_bytes) {
            return Err(None);
        }
        let begin = space.offset + block * space.block_bytes;
        let backed = self.region.back_more(begin..begin + space.block_bytes).and_then(|()| {
            // E0
            let registrar = self.registrar.get().and_then(Weak::upgrade);
            registrar.map_or(Ok(()), |registrar| registrar.before_use_of_block(block))
        });
        let mut state = lock(&self.heap);
        let is_news = backed.is_ok() && !std::mem::replace(&mut state.backed[block as usize], true);
        state.used[block as usize] |= backed.is_ok();
        if !is_news {
            // Refused, or another thread was first.
            self.budget.give(space.block_bytes);
        }
        backed.map_err(Some)
    }

    /// X3: a slot write has ended this name just now.
    pub fn ended(&self, reference: &Reference, written: SlotWritten) {
        if !reference.is_sound(&self.geometry) {
            return;
        }
        self.named.fetch_sub(1, Ordering::Relaxed);
        let (at, bytes) = Extents::place(&self.geometry, reference);
        lock(&self.heap).heap.retire(at, bytes, self.ready_ns(reference.len, written));
    }

    /// When the memory of an extent may be used again whose name this slot write has ended just now.
    fn ready_ns(&self, len: u32, _: SlotWritten) -> u64 {
        let (heap, grace) = (self.geometry.heap(), self.geometry.grace());
        let kept = heap.kept_for(grace, by_rule(Rule::ExtentLength, len, 0));
        self.clock.now_ns() + wait_ns(Rule::ExtentGrace, kept.as_nanos() as u64)
    }

    /// Appends the value that a slot names. For a thread that keeps its name from ending, or checks
    /// afterwards that it has not ended.
    pub fn read(&self, reference: &Reference, out: &mut Vec<u8>) -> bool {
        if !reference.is_sound(&self.geometry) {
            return false;
        }
        self.region.append_bytes(reference.offset, reference.len as usize, out);
        true
    }

    /// Whether the value that a slot names is this one. The caller holds the key's lock.
    pub fn holds(&self, reference: &Reference, value: &[u8]) -> bool {
        if reference.len as usize != value.len() || reference.crc != crc::append_long(0, value) {
            return false;
        }
        let mut bytes = Vec::new();
        self.read(reference, &mut bytes) && bytes == value
    }

    /// X6: takes in memory that has waited, and has one extent move if one is to. Returns whether there is
    /// more to do at once.
    pub fn tidy(self: &Arc<Extents>, names: &impl ExtentNames) -> bool {
        let Some(at) = self.next_move() else { return self.give_back() };
        let first = (self.geometry.heap().offset + at) as usize / WORD;
        // Another extent may begin here meanwhile, so what the header says is a guess.
        let [number, hash, _] = std::array::from_fn(|n| self.region.load(first + n));
        let named = names.named(First(hash), number);
        if let Some((hash, old)) = named.filter(|(_, old)| Extents::place(&self.geometry, old).0 == at) {
            let rename = |new: Reference| {
                let new = Reference { number: by_rule(Rule::MoveNumber, new.number, old.number), ..new };
                names.rename(hash, &old, &new)
            };
            self.move_extent(hash, &old, old.len as usize, rename, |written| self.ready_ns(old.len, written));
        } else {
            self.move_upload(at);
        }
        true
    }

    /// Copies what is written of an extent to other memory. `name` makes that the extent, and says whether it has.
    /// Then the old memory waits until `ready_ns`.
    fn move_extent<W>(
        &self,
        hash: First,
        old: &Reference,
        written: usize,
        name: impl FnOnce(Reference) -> Option<W>,
        ready_ns: impl FnOnce(W) -> u64,
    ) {
        let (from, bytes) = Extents::place(&self.geometry, old);
        let Some(to) = lock(&self.heap).heap.begin_move(from, bytes) else { return };
        let named = self.back(to).ok().and_then(|()| {
            let new = Reference { len: old.len, crc: old.crc, ..self.begin(to, hash, old.len as usize) };
            let words = self.region.words(Extents::first_word(old), written.div_ceil(WORD));
            self.region.copy(words, Extents::first_word(&new));
            name(new)
        });
        if named.is_some() {
            self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut state = lock(&self.heap);
        state.has_moved |= named.is_some();
        state.heap.end_move(named.map(ready_ns));
    }

    /// X10: has what a client uploads to this place move, unless a thread is at it.
    fn move_upload(&self, at: u64) {
        let Some(cell) = lock(&self.heap).uploads.get(&at).cloned() else { return };
        let Some(mut draft) = try_lock(&cell) else { return };
        let Some(draft) = draft.as_mut().filter(|draft| draft.at() == at) else { return };
        let (old, written) = (draft.reference, draft.written);
        let hash = First(self.region.load(Extents::first_word(&old) - EXTENT_HEADER_WORDS + 1));
        let replace = |new| {
            draft.reference = new;
            let mut state = lock(&self.heap);
            state.uploads.remove(&at);
            state.uploads.insert(draft.at(), Arc::clone(&cell));
            Some(())
        };
        // X3: no slot ever named it, so its memory is free at once.
        self.move_extent(hash, &old, written, replace, |()| self.clock.now_ns());
    }

    /// Where the next extent is that should move.
    fn next_move(&self) -> Option<u64> {
        let mut state = lock(&self.heap);
        let next = state.heap.next_move(self.clock.now_ns());
        // Who has allocated there may still be putting memory behind it.
        let block_bytes = self.geometry.heap().block_bytes;
        let next = next.filter(|at| state.backed[(at / block_bytes) as usize]);
        if next.is_none() {
            let has_moved = std::mem::take(&mut state.has_moved);
            state.is_stuck = !has_moved && state.heap.is_leaving();
        }
        next
    }

    /// Gives a block without extents back to the system, if there is one. Returns whether there was.
    fn give_back(&self) -> bool {
        let lent = lock(&self.heap).heap.lend_block(self.clock.now_ns());
        let Some(loan) = lent else { return false };
        let space = self.geometry.heap();
        let block = (loan.start() / space.block_bytes) as usize;
        let given_back = loan.give_back(|Range { start, end }| {
            self.region.give_back(space.offset + start..space.offset + end)
        });
        self.returned_bytes.fetch_add(given_back.bytes().unwrap_or(0), Ordering::Relaxed);
        let mut state = lock(&self.heap);
        // What the system keeps still counts.
        if given_back.bytes().is_some() && std::mem::take(&mut state.backed[block]) {
            self.budget.give(space.block_bytes);
        }
        state.heap.end_loan(given_back);
        true
    }

    /// How long until [`Extents::tidy`] has something to do. `None` while nothing waits.
    pub fn until_next(&self) -> Option<Duration> {
        let state = lock(&self.heap);
        let due_ns = state.heap.next_due_ns()?;
        let due = Duration::from_nanos(due_ns.saturating_sub(self.clock.now_ns()));
        Some(if state.is_stuck { due.max(AGAIN) } else { due })
    }

    pub fn counts(&self) -> HeapCounts {
        let HeapUsage {
            live_bytes, waiting_bytes, gap_bytes, largest_gap_bytes, open_blocks, blocks, ..
        } = lock(&self.heap).heap.usage(self.clock.now_ns());
        HeapCounts {
            values: self.named.load(Ordering::Relaxed),
            live_bytes,
            waiting_bytes,
            gap_bytes,
            largest_gap_bytes,
            block_bytes: self.geometry.heap().block_bytes,
            blocks,
            open_blocks,
            heap_bytes: self.geometry.heap().bytes,
            moved_bytes: self.moved_bytes.load(Ordering::Relaxed),
            returned_bytes: self.returned_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The shape of a table's heap.
fn shape(geometry: &Geometry) -> HeapShape {
    let heap = geometry.heap();
    let longest = extent_bytes(geometry.value_max());
    HeapShape::new(heap.bytes, heap.block_bytes, longest).expect("a geometry's heap has a shape")
}

/// Looks up which slots name extents, and has them name others.
pub(super) trait ExtentNames {
    /// The reference with this number, in the slot of a key whose home is that of this hash, and the key's
    /// own hash. `None` also if the key went to another segment meanwhile.
    fn named(&self, hash: First, number: u64) -> Option<(First, Reference)>;

    /// Has the slot that names the first reference name the second, under the key's lock. `None` if it
    /// did not name it any more (X6).
    fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten>;
}

impl Upload {
    pub fn new(draft: ExtentDraft) -> Upload {
        let (extents, at) = (Arc::clone(&draft.extents), draft.at());
        let cell = Arc::new(Mutex::new(Some(draft)));
        lock(&extents.heap).uploads.insert(at, Arc::clone(&cell));
        Upload { extents, cell }
    }

    /// Writes the next bytes of the value. `false` if they are more than it has.
    pub fn write(&self, bytes: &[u8]) -> bool {
        let mut draft = lock(&self.cell);
        let fits = draft.as_mut().filter(|draft| bytes.len() <= draft.left());
        fits.map(|draft| draft.write(bytes)).is_some()
    }

    /// The value, which does not move any more. `None` if it is not whole.
    pub fn whole(self) -> Option<ExtentDraft> {
        self.take().filter(|draft| draft.left() == 0)
    }

    fn take(&self) -> Option<ExtentDraft> {
        let mut cell = lock(&self.cell);
        let draft = cell.take()?;
        lock(&self.extents.heap).uploads.remove(&draft.at());
        Some(draft)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl ExtentDraft {
    /// Its place in the heap.
    fn at(&self) -> u64 {
        Extents::place(&self.extents.geometry, &self.reference).0
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        self.reference.len as usize - self.written
    }

    /// Writes the next bytes of the value, at most [`ExtentDraft::left`].
    pub fn write(&mut self, mut bytes: &[u8]) {
        assert!(bytes.len() <= self.left(), "more bytes than the value has");
        // X9: another thread may have begun the extent here (X10).
        obey(Rule::NameFence, || fence(Ordering::Release));
        self.reference.crc = crc::append_long(self.reference.crc, bytes);
        while !self.written.is_multiple_of(WORD) && !bytes.is_empty() {
            self.partial[self.written % WORD] = bytes[0];
            (self.written, bytes) = (self.written + 1, &bytes[1..]);
            if self.written.is_multiple_of(WORD) {
                self.store_partial(self.written / WORD - 1);
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / WORD * WORD);
        for piece in whole.chunks(PIECE_WORDS * WORD) {
            let mut words = [0u64; PIECE_WORDS];
            bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..piece.len()].copy_from_slice(piece);
            let len = piece.len() / WORD;
            let to = Extents::first_word(&self.reference) + self.written / WORD;
            self.extents.region.stores(to, len).store_all(0, &words[..len]);
            self.written += piece.len();
        }
        if !rest.is_empty() {
            self.partial = [0; WORD];
            self.partial[..rest.len()].copy_from_slice(rest);
            self.written += rest.len();
        }
    }

    /// Stores the word that is not whole.
    fn store_partial(&mut self, word: usize) {
        let at = Extents::first_word(&self.reference) + word;
        self.extents.region.store(at, u64::from_le_bytes(std::mem::take(&mut self.partial)));
    }

    /// The reference to the value, all of which is written.
    pub fn finish(&mut self) -> Reference {
        debug_assert!(kept(Rule::ExtentFirst, || self.left() == 0), "a value is written whole (X2)");
        if !self.written.is_multiple_of(WORD) {
            self.store_partial(self.written / WORD);
        }
        self.reference
    }

    /// A put that was to name it ended so. If it did not, the memory is free again.
    pub fn after(self, outcome: Result<PutOutcome, PutError>) -> Result<PutOutcome, PutError> {
        if matches!(outcome, Ok(PutOutcome::Inserted | PutOutcome::Updated)) {
            self.named();
        }
        outcome
    }

    /// A slot names it now.
    pub fn named(mut self) {
        self.extents.named.fetch_add(1, Ordering::Relaxed);
        self.is_named = true;
    }
}

impl Drop for ExtentDraft {
    fn drop(&mut self) {
        if !self.is_named {
            let (at, bytes) = Extents::place(&self.extents.geometry, &self.reference);
            lock(&self.extents.heap).heap.give_back(at, bytes);
        }
    }
}

#[cfg(all(test, feature = "faults", not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::faults::Broken;
    use crate::index::Index;
    use crate::index::Table;
    use crate::index::segment::Segment;
    use crate::layout::slot::Stored;
    use crate::outcome::PutMode;
    use crossbeam_epoch as epoch;
    use std::cell::Cell;

    /// Puts another value of one key, once, just before a copy of the old one is to be named.
    struct Meddling<'a> {
        index: &'a Index,
        has_put: Cell<bool>,
    }

    impl ExtentNames for Meddling<'_> {
        fn named(&self, hash: First, number: u64) -> Option<(First, Reference)> {
            self.index.named(hash, number)
        }

        fn rename(&self, hash: First, old: &Reference, new: &Reference) -> Option<SlotWritten> {
            if hash == self.index.geometry().hashed(b"key").first() && !self.has_put.replace(true) {
                self.index.put(b"key", &[3; 240], PutMode::Update).unwrap();
            }
            self.index.rename(hash, old, new)
        }
    }

    /// Room for 14 of these values in each of three blocks, and one block is the reserve.
    fn four_blocks() -> (Index, Clock) {
        let config = Config {
            size: TableSize::Slots(64),
            key_max: 8,
            value_max: 240,
            inline_max: Some(30),
            heap_bytes: Some(4 * 4096),
            grace: Duration::from_micros(1),
            ..Config::default()
        };
        let geometry = config.geometry().unwrap();
        let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
        (Index::create(region, geometry, clock.clone()).unwrap(), clock)
    }

    /// A value that comes in pieces of any lengths is the same value.
    #[test]
    fn a_value_comes_in_uneven_pieces() {
        let value: Vec<u8> = (0..240u32).map(|n| (n * 37 / 4) as u8).collect();
        for len in (60..=240).step_by(11).chain([239, 240]) {
            for piece in (1..=17).chain([63, 64, 65, 200]) {
                let (index, _clock) = four_blocks();
                let mut draft = index.draft_at_once(b"key", len).unwrap().unwrap();
                for bytes in value[..len].chunks(piece) {
                    draft.write(bytes);
                }
                assert_eq!(draft.left(), 0);
                index.put_draft(b"key", draft, PutMode::Insert).unwrap();
                let mut got = Vec::new();
                assert!(index.reader().get_into(b"key", &mut got).unwrap());
                assert_eq!(got, value[..len], "{len} bytes in pieces of {piece}");
            }
        }
    }

    /// A block that should leave has a value that a client uploads. Nobody looks at it without pause until it
    /// is there, and then it moves.
    #[test]
    fn an_unfinished_upload_is_waited_for_with_pauses() {
        let (index, clock) = four_blocks();
        let mut draft = index.draft_at_once(b"key", 240).unwrap().unwrap();
        for n in 0..41u64 {
            assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
        }
        (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
        clock.advance(Duration::from_micros(10));
        let is_leaving = || lock(&index.extents().unwrap().heap).heap.is_leaving();
        let waits: Vec<_> = (0..100).map(|_| index.tidy()).collect();
        assert!(is_leaving() && waits.iter().filter(|wait| **wait == Some(AGAIN)).count() > 40, "{waits:?}");
        draft.write(&[3; 240]);
        index.put_draft(b"key", draft, PutMode::Insert).unwrap();
        for _ in 0..100 {
            clock.advance(AGAIN);
            index.tidy();
        }
        assert_eq!((is_leaving(), index.tidy()), (false, None));
        assert!(index.heap().moved_bytes > 0 && index.heap().open_blocks == 1, "{:?}", index.heap());
        // Whole extents have moved: a header, a value, and what rounds them up.
        let extent = extent_bytes(240);
        assert!(extent > 240 && index.heap().moved_bytes.is_multiple_of(extent), "{:?}", index.heap());
        let mut got = Vec::new();
        assert!(index.reader().get_into(b"key", &mut got).unwrap() && got == [3; 240]);
    }

    /// X10: a block that should leave has a value that a client uploads. It moves between any two pieces, also in
    /// the middle of a word, and not once it is whole and about to be named.
    #[test]
    fn an_unfinished_upload_moves() {
        let value: Vec<u8> = (0..240u32).map(|n| (n * 37 / 4) as u8).collect();
        for len in (0..240).step_by(7).chain([240]) {
            let (index, clock) = four_blocks();
            let upload = index.upload(b"key", 240).unwrap().unwrap();
            assert!(upload.write(&value[..len]));
            let at = || lock(&upload.cell).as_ref().map(ExtentDraft::at);
            let begun = at();
            for n in 0..41u64 {
                assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
            }
            (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
            for _ in 0..100 {
                clock.advance(AGAIN);
                index.tidy();
            }
            assert!(at() != begun && index.tidy().is_none() && index.heap().open_blocks == 1, "{len} bytes");
            assert!(upload.write(&value[len..]) && !upload.write(b"more"));
            let draft = upload.whole().unwrap();
            assert!(lock(&index.extents().unwrap().heap).uploads.is_empty());
            index.put_draft(b"key", draft, PutMode::Insert).unwrap();
            let mut got = Vec::new();
            assert!(index.reader().get_into(b"key", &mut got).unwrap() && got == value, "{len} bytes");
            (36..41u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
            assert_eq!(index.heap().live_bytes, extent_bytes(240), "{len} bytes");
            // One that is not whole leaves nothing.
            let upload = index.upload(b"key", 240).unwrap().unwrap();
            assert!(upload.write(&value[..len / 2]) && upload.whole().is_none());
            assert_eq!(index.heap().live_bytes, extent_bytes(240), "{len} bytes");
            assert!(lock(&index.extents().unwrap().heap).uploads.is_empty());
        }
    }

    /// A damaged region: two slots name one value, or a slot names what is no value. The takeover frees the slot of
    /// one of the two, or of the one, and counts it; all else is there, and the books are right.
    #[test]
    fn keys_without_values_are_freed() {
        let growing = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        for (size, heap_bytes) in [(TableSize::Slots(64), Some(1 << 18)), (growing, None)] {
            for is_anothers in [false, true] {
                let config = Config { size, value_max: 1_000, heap_bytes, ..Config::short() };
                let geometry = config.inline_max(30).geometry().unwrap();
                let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
                let index = Index::create(region, geometry, clock.clone()).unwrap();
                let keys: [&[u8]; 3] = [b"one", b"two", b"three"];
                (0..)
                    .zip(keys)
                    .for_each(|(n, key)| assert!(index.put(key, &[n; 900], PutMode::Insert).is_ok()));
                let named = |key: &[u8]| {
                    let hash = index.geometry().hashed(key).first();
                    let name = |segment: &Segment| {
                        let all = segment.all_references(crate::cores::Cores(1)).into_iter();
                        all.map(|(_, name)| name).find(|name| {
                            let at = Extents::first_word(name) - EXTENT_HEADER_WORDS + 1;
                            segment.region.load(at) == hash.0
                        })
                    };
                    index.with_segment_of(hash, name).unwrap()
                };
                let (one, two) = (named(b"one"), named(b"two"));
                let bad = if is_anothers { two } else { Reference { offset: one.offset + 1, ..one } };
                let key = index.geometry().hashed(b"one");
                index.with_segment_of(key.first(), |segment| {
                    let slots = segment.all_references(crate::cores::Cores(1)).into_iter();
                    let slot =
                        slots.map(|(slot, _)| slot).find(|&slot| segment.key_in(slot)[..] == *b"one")?;
                    let bytes = bad.to_bytes();
                    segment.rewrite(&segment.lock_slot(slot), slot, Some(key), Stored::reference(&bytes));
                    Some(())
                });
                let region = index.region().alias();
                drop(index);
                let (index, found) = Index::open(region, clock).unwrap();
                assert_eq!((found.misplaced, found.keys, index.len()), (1, 2, 2), "{size:?}: {found:?}");
                let heap = index.heap();
                assert_eq!((heap.values, heap.live_bytes), (2, 2 * extent_bytes(900)), "{size:?}: {heap:?}");
                let mut got = Vec::new();
                let there = keys.map(|key| index.reader().get_into(key, &mut got).unwrap());
                assert!(there[2] && there[0] != there[1] && (is_anothers || there[1]), "{size:?}: {there:?}");
                assert!(got == [2; 900], "{size:?}");
                for key in keys {
                    assert!(index.put(key, &[7; 900], PutMode::Upsert).is_ok(), "{size:?}");
                    assert!(index.reader().get_into(key, &mut got).unwrap() && got == [7; 900], "{size:?}");
                }
            }
        }
    }

    /// T1, X5: the next server of one that was killed waits twice the grace time, and no memory of the heap is used
    /// before readers of the longest value have done. Neither is a nanosecond shorter: a client's clock may run at half
    /// the rate.
    #[test]
    fn a_takeover_waits_as_long_as_readers_may() {
        let growing = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        for (size, heap_bytes) in [(TableSize::Slots(64), Some(1 << 18)), (growing, None)] {
            let config = Config { size, value_max: 1_000, heap_bytes, ..Config::short() };
            let geometry = config.inline_max(30).geometry().unwrap();
            let (region, clock) = (Region::private(geometry.region_bytes()), Clock::manual());
            let index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
            assert!(index.put(b"key", &[1; 900], PutMode::Insert).is_ok());
            let (region, killed_ns) = (index.region().alias(), clock.now_ns());
            drop(index);
            let (index, _) = Index::open(region, clock.clone()).unwrap();
            let begins_ns = clock.now_ns();
            assert!(begins_ns - killed_ns >= 2 * geometry.grace().as_nanos() as u64, "{size:?}");
            let longest = geometry.heap().kept_for(geometry.grace(), 1_000);
            let draft = || index.extents().unwrap().draft(geometry.hashed(b"key").first(), 900).map(drop);
            let busy =
                |wait| assert!(matches!(draft(), Err(NoMemory::Busy(left)) if left == wait), "{size:?}");
            busy(longest);
            clock.advance(longest - Duration::from_nanos(1));
            busy(Duration::from_nanos(1));
            clock.advance(Duration::from_nanos(1));
            assert!(draft().is_ok(), "{size:?}");
        }
    }

    /// X6: a put comes between the copying of an extent and its naming.
    fn put_while_it_moves() -> bool {
        let (index, clock) = four_blocks();
        index.put(b"key", &[1; 240], PutMode::Insert).unwrap();
        for n in 0..41u64 {
            assert!(index.put(&n.to_le_bytes(), &[2; 240], PutMode::Insert).is_ok());
        }
        (0..36u64).for_each(|n| assert!(index.remove(&n.to_le_bytes()).unwrap()));
        let extents = index.extents().unwrap();
        let meddling = Meddling { index: &index, has_put: Cell::new(false) };
        for _ in 0..100 {
            clock.advance(Duration::from_micros(10));
            extents.tidy(&meddling);
        }
        assert!(meddling.has_put.get(), "the key's extent has moved");
        let mut got = Vec::new();
        assert!(index.reader().get_into(b"key", &mut got).unwrap());
        assert!(got == [1; 240] || got == [3; 240]);
        got == [3; 240]
    }

    /// Whether the copy of a key that is about to go to a segment's child gets an extent's new name; and
    /// whether the original does.
    fn renamed_in_copy_and_original() -> [bool; 2] {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry =
            Config { size, value_max: 240, inline_max: Some(30), ..Config::short() }.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry.clone(), Clock::manual()).unwrap();
        let directory = |n: &u64| geometry.hashed(&n.to_le_bytes()).first().directory();
        let name = (0..).find(|n| directory(n) & 1 == 1).unwrap().to_le_bytes();
        index.put(&name, &[7; 240], PutMode::Insert).unwrap();
        index.split(&name);
        let (Table::Many(growth), guard, key) = (&index.table, epoch::pin(), geometry.hashed(&name)) else {
            unreachable!("it grows")
        };
        let (parent, _, child) = growth.pair_at(key.first().directory(), &guard);
        let slot = parent.seek(key, true).at().unwrap();
        let old = parent.reference_in(slot).unwrap();
        let copy = child.expect("a split is under way");
        assert!(copy.adopt(key, parent.slots().read(slot).stored()));
        let new = Reference { number: old.number + 1, ..old };
        [copy, parent].map(|segment| segment.rename(key.first(), &old, &new).is_some())
    }

    /// X6, L8: the copy may be erased again.
    #[test]
    fn an_extent_is_renamed_where_its_key_is() {
        assert_eq!(renamed_in_copy_and_original(), [false, true]);
        let _broken = Broken::rule(Rule::MoveHere);
        assert_eq!(renamed_in_copy_and_original(), [true, true], "case lost");
    }

    #[test]
    fn a_put_while_an_extent_moves_stays() {
        assert!(put_while_it_moves());
        let _broken = Broken::rule(Rule::MoveCheck);
        // The other value is lost, or the heap notices.
        let noticed = std::panic::catch_unwind(put_while_it_moves).map_or(true, |stays| !stays);
        assert!(noticed, "case lost");
    }
}

#[cfg(all(test, feature = "verbs", not(loom)))]
mod refused {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::outcome::{PutMode, PutOutcome};

    /// Refuses memory so many times.
    struct RefusingBlocks(AtomicU64);

    impl Registrar for RefusingBlocks {
        fn before_use(&self, _memory: u32) -> Result<(), RegionError> {
            unreachable!("the table has one size")
        }

        fn before_use_of_block(&self, _block: u64) -> Result<(), RegionError> {
            let fewer = |times: u64| times.checked_sub(1);
            match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
                Ok(_) => Err(RegionError::NoRoom { need: 1, left: 0, of: "the device".into() }),
                Err(_) => Ok(()),
            }
        }
    }

    /// Memory that the system does not take back counts as before, and is used again. The next server, for which
    /// no device has pinned it yet, gives it back.
    #[test]
    fn memory_that_is_kept_counts() {
        const BYTES_MAX: u64 = 8 << 20;
        // (Some file systems back neighbours, too.)
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = folder.path().join("region");
        let size = TableSize::Growing { bytes_max: BYTES_MAX, segment_slots: Some(256) };
        let config = Config { size, value_max: 16 << 10, ..Config::short() }.inline_max(30);
        let geometry = config.geometry().unwrap();
        let backing = crate::region::Backing::File(path.clone());
        let region =
            Region::create_sparse(&backing, geometry.region_bytes(), geometry.bytes_at_first()).unwrap();
        region.touch(0..4096, |_| {});
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        let at_first = index.growth().bytes_backed;
        let fill = |kind: u64, value: &[u8]| {
            let put = |n: &u64| {
                clock.advance(Duration::from_micros(5));
                index.put(&(kind << 32 | n).to_le_bytes(), value, PutMode::Insert).is_ok()
            };
            let put = (0..).take_while(put).count() as u64;
            let backed = index.growth().bytes_backed;
            assert!(backed <= BYTES_MAX + at_first, "{put} of {} bytes: {backed}", value.len());
            put
        };
        let remove = |kind: u64, many: u64| {
            (0..many).for_each(|n| assert!(index.remove(&(kind << 32 | n).to_le_bytes()).unwrap()));
            for _ in 0..1_000 {
                clock.advance(Duration::from_millis(1));
                index.tidy();
            }
        };
        let long = fill(1, &[7; 16_000]);
        remove(1, long);
        assert_eq!((index.heap().live_bytes, index.heap().returned_bytes), (0, 0));
        let backed = index.growth().bytes_backed;
        let short = fill(2, b"short");
        assert!(short < 2_000, "{short} keys beside memory for {long} long values");
        remove(2, short);
        assert_eq!(fill(3, &[7; 16_000]), long, "the memory that was kept");
        remove(3, long);
        assert!(index.growth().bytes_backed >= backed);
        drop(index);
        let (index, _) = Index::open(Region::open(&path).unwrap(), clock).unwrap();
        assert!(index.growth().bytes_backed < BYTES_MAX / 4, "{:?}", index.growth());
    }

    /// Memory that was refused was not taken: however often that happens, there is as much as before.
    #[test]
    fn refused_memory_does_not_count() {
        const TIMES: u64 = 100;
        let config = Config { size: TableSize::Slots(64), value_max: 1_000, ..Config::short() };
        let geometry = config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, Clock::manual()).unwrap();
        let refusing: Arc<dyn Registrar> = Arc::new(RefusingBlocks(TIMES.into()));
        index.extents().unwrap().register_with(Arc::downgrade(&refusing));
        for _ in 0..TIMES {
            let refused = index.put(b"key", &[1; 1_000], PutMode::Insert);
            assert_eq!(refused, Err(PutError::HeapMemory { given: 1_000 }));
            assert_eq!((index.heap().live_bytes, index.heap().values), (0, 0));
        }
        assert_eq!(index.put(b"key", &[1; 1_000], PutMode::Insert), Ok(PutOutcome::Inserted));
    }

    /// Takes memory of a block while another thread has it made ready, and counts how often that is done.
    struct MeanwhileAnother {
        extents: OnceLock<Weak<Extents>>,
        made_ready: AtomicU64,
    }

    impl Registrar for MeanwhileAnother {
        fn before_use(&self, _memory: u32) -> Result<(), RegionError> {
            unreachable!("the table has one size")
        }

        fn before_use_of_block(&self, block: u64) -> Result<(), RegionError> {
            if self.made_ready.fetch_add(1, Ordering::Relaxed) == 0 {
                let extents = self.extents.get().and_then(Weak::upgrade).unwrap();
                assert!(extents.blocks_used().is_empty(), "no slot may name memory in it yet");
                let draft = extents.draft(First(1), 1_000).map_err(|_| "refused").unwrap();
                assert_eq!(
                    self.made_ready.load(Ordering::Relaxed),
                    2,
                    "it is not ready: another one sees to it"
                );
                assert_eq!(extents.blocks_used(), [block]);
                drop(draft);
            }
            Ok(())
        }
    }

    /// E0: a thread that takes memory of a block while another one has it made ready does not go on before it is.
    #[test]
    fn a_block_is_ready_for_each_thread_that_uses_it() {
        let config = Config { size: TableSize::Slots(64), value_max: 1_000, ..Config::short() };
        let geometry = config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry, Clock::manual()).unwrap();
        let extents = index.extents().unwrap();
        let another = MeanwhileAnother { extents: OnceLock::new(), made_ready: AtomicU64::new(0) };
        another.extents.set(Arc::downgrade(extents)).unwrap();
        let another = Arc::new(another);
        let registrar: Arc<dyn Registrar> = another.clone();
        extents.register_with(Arc::downgrade(&registrar));
        assert_eq!(index.put(b"key", &[1; 1_000], PutMode::Insert), Ok(PutOutcome::Inserted));
        assert_eq!(another.made_ready.load(Ordering::Relaxed), 2);
    }
}
