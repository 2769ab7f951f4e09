//! Extents: values that are too long for their slots (X1 to X6).
//!
//! ```text
//! put     memory ─ number ─ bytes ─ the slot names it ─ what the slot named before waits 2A
//! move    memory ─ number ─ the bytes again ─ the slot names them, if it still names the old ones
//! ```
//!
//! A value that a client uploads has no name yet. It may move, too, between two of its pieces (X10).
//!
//! `heap` has the memory. Its lock is a leaf: whoever holds it takes no other.

#[cfg(all(test, feature = "verbs", not(loom)))]
mod memory_tests;
#[cfg(all(test, feature = "faults", not(loom)))]
mod tests;

use crate::base::clock::Clock;
use crate::base::sync::{Mutex, Ordering, fence, lock, try_lock};
use crate::faults::{Rule, by_rule, kept, obey, wait_ns};
use crate::index::budget::{Budget, Registrar};
use crate::index::heap::{Heap, HeapError, HeapMarks, HeapShape, HeapUsage, MoveEnd};
use crate::index::news::News;
use crate::index::numbers::NumberSource;
use crate::index::slots::SlotWritten;
use crate::layout::control::NUMBERS_WORD;
use crate::layout::extent::{EXTENT_HEADER, EXTENT_HEADER_WORDS, Reference, extent_bytes};
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::{WORD, crc};
use crate::outcome::{HeapCounts, PutError};
use crate::region::{Region, RegionError};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The time until the next look at a block whose extents cannot move, because a thread is about to name them.
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
    /// Registers blocks of a table that grows, over verbs.
    registrar: OnceLock<Weak<dyn Registrar>>,
    /// The number of extents that slots name. Negative for a moment, where an extent has gone before the put that named
    /// it has counted it.
    named: AtomicI64,
    moved_bytes: AtomicU64,
    returned_bytes: AtomicU64,
}

#[derive(Debug)]
struct HeapState {
    heap: Heap,
    numbers: NumberSource,
    /// For each block, whether it has memory that counts.
    backed: Vec<bool>,
    /// For each block, whether slots may name memory in it.
    used: Vec<bool>,
    /// An extent has moved since every extent of the leaving block was tried.
    has_moved: bool,
    /// Every extent of the leaving block was tried, and none could move.
    is_stuck: bool,
    /// The end of the last extent that was evicted ([`Extents::next_to_go`]).
    hand: u64,
    /// What clients upload, by its place.
    uploads: FxHashMap<u64, Arc<UploadCell>>,
}

/// Whoever takes the draft out may name it. As long as it is inside, it may move.
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
    /// Memory comes, this much later at the earliest. Extents have to move first.
    Busy(Duration),
    Refused(PutError),
}

impl Extents {
    /// The extents of a table whose heap was never written. `None` if the table has no heap.
    pub fn new(
        region: &Region,
        geometry: &Geometry,
        clock: &Clock,
        budget: &Arc<Budget>,
        numbers_at_a_time: u64,
    ) -> Option<Arc<Extents>> {
        let space = geometry.heap();
        let backed = vec![false; space.bytes.checked_div(space.block_bytes)? as usize];
        let (heap, used) = (Heap::new(shape(geometry)), backed.clone());
        let (numbers, uploads) =
            (NumberSource::from(region, NUMBERS_WORD, numbers_at_a_time), FxHashMap::default());
        let (has_moved, is_stuck, hand) = (false, false, 0);
        let state = HeapState { heap, numbers, backed, used, has_moved, is_stuck, hand, uploads };
        Some(Arc::new(Extents {
            region: region.alias(),
            geometry: geometry.clone(),
            clock: clock.clone(),
            heap: Mutex::new(state),
            budget: Arc::clone(budget),
            registrar: OnceLock::new(),
            named: AtomicI64::new(0),
            moved_bytes: AtomicU64::new(0),
            returned_bytes: AtomicU64::new(0),
        }))
    }

    /// X5: takes the heap over, with the extents that slots name. `bad` is told the number of each reference that no
    /// table can have.
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
        let longest = self.geometry.heap().kept_for(self.geometry.grace(), self.geometry.extent_max() as u32);
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

    /// The number of the region's word at which a value begins.
    fn first_word(reference: &Reference) -> usize {
        reference.offset as usize / WORD
    }

    /// Allocates memory and a number for an extent of this length. The key has this hash.
    pub fn draft(self: &Arc<Extents>, hash: First, len: usize) -> Result<ExtentDraft, NoMemory> {
        let bytes = extent_bytes(len);
        let was_refused = self.budget.was_refused(self.clock.now_ns());
        let at = {
            let mut state = lock(&self.heap);
            state.heap.allocate(bytes, self.clock.now_ns())
        };
        let at = at.map_err(|why| match why {
            HeapError::Busy { wait } => NoMemory::Busy(wait),
            HeapError::Length | HeapError::Full => NoMemory::Refused(self.full(len, was_refused)),
        })?;
        if let Err(why) = self.back(at) {
            let mut state = lock(&self.heap);
            // Another thread, whose extent is in the same block, may have put memory behind it.
            if self.is_backed(&state, at) {
                state.heap.give_back(at, bytes);
            } else {
                state.heap.give_back_without_memory(at, bytes);
            }
            drop(state);
            let Some(why) = why else { return Err(NoMemory::Refused(self.full(len, was_refused))) };
            tracing::error!(%why, "memory for a long value is refused");
            return Err(NoMemory::Refused(PutError::HeapMemory { given: len }));
        }
        let (reference, extents) = (self.begin(at, hash, len), Arc::clone(self));
        Ok(ExtentDraft { extents, reference, written: 0, partial: [0; WORD], is_named: false })
    }

    fn full(&self, given: usize, was_refused: bool) -> PutError {
        if was_refused {
            return PutError::HeapMemory { given };
        }
        let HeapCounts { live_bytes, heap_bytes, .. } = self.counts();
        // Where a table grows, keys may have the rest.
        let heap_bytes = if self.is_at_bound() { self.backed_bytes() } else { heap_bytes };
        PutError::HeapFull { live_bytes, heap_bytes }
    }

    /// Writes the beginning of an extent at this place of the heap.
    fn begin(&self, at: u64, hash: First, len: usize) -> Reference {
        let offset = self.geometry.heap().offset + at + EXTENT_HEADER as u64;
        let reference = Reference { number: self.number(), offset, len: len as u32, crc: 0 };
        // X9: pairs with R3 of a second look. Who sees a store into this memory sees the slot write that ended its last
        // name.
        obey(Rule::NameFence, || fence(Ordering::Release));
        let header = [reference.number, hash.0, len as u64];
        let first = Extents::first_word(&reference) - EXTENT_HEADER_WORDS;
        self.region.stores(first, header.len()).store_all(0, &header);
        reference
    }

    /// X1: draws a number that no extent ever had.
    fn number(&self) -> u64 {
        lock(&self.heap).numbers.next(&self.region)
    }

    /// From now on, this registrar registers blocks before they are used (E0).
    #[cfg(feature = "verbs")]
    pub fn register_with(&self, registrar: Weak<dyn Registrar>) {
        self.registrar.set(registrar).expect("a server starts once");
    }

    /// What changes may wait for, when it is there.
    pub fn news(&self) -> &News {
        self.budget.news()
    }

    /// The blocks that slots may name memory in.
    #[cfg(feature = "verbs")]
    pub fn blocks_used(&self) -> Vec<u64> {
        (0..).zip(&lock(&self.heap).used).filter_map(|(block, &used)| used.then_some(block)).collect()
    }

    /// Puts memory behind this block, once, and registers it. Fails without an error of the system if the table has all
    /// the memory that it may have.
    fn back(&self, at: u64) -> Result<(), Option<RegionError>> {
        let space = self.geometry.heap();
        let block = at / space.block_bytes;
        if lock(&self.heap).backed[block as usize] {
            return Ok(());
        }
        if !self.budget.take_for_values(space.block_bytes) {
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

    /// The system has refused memory, and entries make room. In a table that grows, as in one that has all the memory that
    /// it may have: for a while the system is not asked again, and segments give some (Z5).
    pub fn refuse_more(&self) {
        if self.geometry.grows() {
            self.budget.refuse(self.clock.now_ns());
        }
    }

    /// Whether there is memory behind the block of this place.
    fn is_backed(&self, state: &HeapState, at: u64) -> bool {
        state.backed[(at / self.geometry.heap().block_bytes) as usize]
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

    /// When the memory of an extent may be used again. This slot write has just ended the extent's name.
    fn ready_ns(&self, len: u32, _: SlotWritten) -> u64 {
        let (heap, grace) = (self.geometry.heap(), self.geometry.grace());
        let kept = heap.kept_for(grace, by_rule(Rule::ExtentLength, len, 0));
        self.clock.now_ns() + wait_ns(Rule::ExtentGrace, kept.as_nanos() as u64)
    }

    /// Appends the value of this key's slot. The caller keeps the extent's name from ending, or checks afterwards that
    /// it has not ended.
    pub fn read(&self, reference: &Reference, key: &[u8], out: &mut Vec<u8>) -> bool {
        let before = self.geometry.bytes_before_value(key);
        if !reference.is_sound(&self.geometry) || before > reference.len as usize {
            return false;
        }
        self.region.append_bytes(reference.offset + before as u64, reference.len as usize - before, out);
        true
    }

    /// Whether the extent of this key's slot has this value. The caller holds the key's lock.
    pub fn holds(&self, reference: &Reference, key: &[u8], value: &[u8]) -> bool {
        let before = &key[..self.geometry.bytes_before_value(key)];
        let len = before.len() + value.len();
        if reference.len as usize != len
            || reference.crc != crc::append_long(crc::append_long(0, before), value)
        {
            return false;
        }
        let mut bytes = Vec::new();
        self.read(reference, key, &mut bytes) && bytes == value
    }

    /// X6: takes in memory that has waited, and moves one extent if one should move. Returns whether there is more to
    /// do at once.
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

    /// Copies what is written of an extent to other memory. `name` makes the copy the extent, and returns whether it
    /// did. If so, the old memory waits until `ready_ns`.
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
        if self.back(to).is_err() {
            let mut state = lock(&self.heap);
            let is_backed = self.is_backed(&state, to);
            return state.heap.end_move(if is_backed { MoveEnd::Unnamed } else { MoveEnd::NoMemory });
        }
        let new = Reference { len: old.len, crc: old.crc, ..self.begin(to, hash, old.len as usize) };
        let words = self.region.words(Extents::first_word(old), written.div_ceil(WORD));
        self.region.copy(words, Extents::first_word(&new));
        let named = name(new);
        if named.is_some() {
            self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut state = lock(&self.heap);
        state.has_moved |= named.is_some();
        let end = named.map(ready_ns).map(|ready_ns| MoveEnd::Named { ready_ns });
        state.heap.end_move(end.unwrap_or(MoveEnd::Unnamed));
    }

    /// X10: moves the value that a client uploads to this place, unless a thread writes it.
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

    /// The place of the next extent that should move.
    fn next_move(&self) -> Option<u64> {
        let mut state = lock(&self.heap);
        let next = state.heap.next_move(self.clock.now_ns());
        // The thread that has allocated there may still be putting memory behind it.
        let next = next.filter(|at| self.is_backed(&state, *at));
        if next.is_none() {
            let has_moved = std::mem::take(&mut state.has_moved);
            state.is_stuck = !has_moved && state.heap.is_leaving();
        }
        next
    }

    /// The hash and the number of the next extent, as its header has them. A hand goes through the blocks, one after
    /// the other. So neighbours are evicted and leave room for a longer value, and pinned ones are passed by.
    pub fn next_to_go(&self) -> Option<(First, u64)> {
        let mut state = lock(&self.heap);
        // The thread that has allocated in another block may still be putting memory behind it.
        let at = state.heap.extent_from(state.hand, |block| state.backed[block])?;
        state.hand = at + 1;
        drop(state);
        let first = (self.geometry.heap().offset + at) as usize / WORD;
        let [number, hash] = std::array::from_fn(|n| self.region.load(first + n));
        Some((First(hash), number))
    }

    /// Whether there is no memory for another block, because segments have the rest.
    pub fn is_at_bound(&self) -> bool {
        self.geometry.grows() && !self.budget.has_for_values(self.geometry.heap().block_bytes)
    }

    /// Bytes of the blocks that have memory.
    fn backed_bytes(&self) -> u64 {
        lock(&self.heap).backed_blocks() * self.geometry.heap().block_bytes
    }

    /// Whether so much of the memory is in use that some should be freed ahead.
    pub fn is_crowded(&self) -> bool {
        let block_bytes = self.geometry.heap().block_bytes;
        let state = lock(&self.heap);
        let (live, mut most) = state.heap.filled();
        if self.geometry.grows() {
            // Segments have taken what is left.
            if self.budget.has_for_values(block_bytes) {
                return false;
            }
            most = most.min(state.backed_blocks().saturating_sub(1) * block_bytes);
        }
        live > most - most / 16
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
            values: self.named.load(Ordering::Relaxed).try_into().unwrap_or(0),
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

impl HeapState {
    /// How many blocks have memory.
    fn backed_blocks(&self) -> u64 {
        self.backed.iter().filter(|&&is_backed| is_backed).count() as u64
    }
}

/// The shape of a table's heap.
fn shape(geometry: &Geometry) -> HeapShape {
    let heap = geometry.heap();
    let longest = extent_bytes(geometry.extent_max());
    HeapShape::new(heap.bytes, heap.block_bytes, longest).expect("a geometry's heap has a shape")
}

/// Looks up which slots name extents, and has them name others.
pub(super) trait ExtentNames {
    /// The reference with this number, in the slot of a key whose home belongs to this hash, and the key's own hash.
    /// `None` also if the key went to another segment meanwhile.
    fn named(&self, hash: First, number: u64) -> Option<(First, Reference)>;

    /// Has the slot that names the reference `old` name `new`, under the key's lock. `None` if the slot does not name
    /// `old` any more (X6).
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

    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        lock(&self.cell).as_ref().map_or(0, ExtentDraft::left)
    }

    /// The value, which does not move any more. `None` if bytes are missing.
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
        // (What a try has taken and gives back is no news: that memory was there before.)
        if let Some(draft) = self.take() {
            drop(draft);
            self.extents.news().tell();
        }
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

    /// Stores the word that is not complete.
    fn store_partial(&mut self, word: usize) {
        let at = Extents::first_word(&self.reference) + word;
        self.extents.region.store(at, u64::from_le_bytes(std::mem::take(&mut self.partial)));
    }

    /// Ends the writing. Returns the reference to the value.
    pub fn finish(&mut self) -> Reference {
        debug_assert!(kept(Rule::ExtentFirst, || self.left() == 0), "a value is written whole (X2)");
        if !self.written.is_multiple_of(WORD) {
            self.store_partial(self.written / WORD);
        }
        self.reference
    }

    /// The draft, for who has a slot name it later.
    pub fn hand_over(&mut self) -> ExtentDraft {
        self.is_named = true;
        let ExtentDraft { extents, reference, written, partial, .. } = self;
        let (extents, is_named) = (Arc::clone(extents), false);
        ExtentDraft { extents, reference: *reference, written: *written, partial: *partial, is_named }
    }

    /// A slot names the extent now.
    pub fn named(&mut self) {
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
