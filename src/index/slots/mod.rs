//! The slots of a segment, the first of its layers: who may look at a slot and write it (L1, L2, W, U).
//!
//! Nothing else stores into a slot of the table. A thread locks stripes ([`Stripes`]), looks
//! ([`SlotReader`]), and writes. A write keeps what it writes over ([`UndoLines`]), writes so that no torn
//! read is accepted ([`SlotWriter`]), and notes what it wrote for searches ([`Notes`]).

mod block_locks;
mod filters;
mod held;
mod make;
mod notes;
mod reader;
mod stripe;
mod stripes;
mod undo;
mod writer;

pub(super) use held::HeldRoom;
pub(super) use make::Mended;
pub(super) use notes::{Note, Notes, has_room_for_ghost, home_slot};
pub(super) use reader::{SlotCopy, SlotReader, Sought};
pub(super) use stripe::{Displaced, DisplacedAt, ENTRY_WORDS, Stripe, entries_in};
pub(super) use stripes::{Locked, add_stripe};
pub(crate) use stripes::{StripeSet, Stripes};
pub(super) use undo::{UndoLines, before_the_write, restore_all};
pub(super) use writer::SlotWriter;

use crate::base::sync::AtomicU64;
use crate::faults::{Rule, broken, by_rule, disobey, kept, obey};
use crate::index::home_set::HomeSet;
use crate::layout::WORD;
use crate::layout::chain::{self, Block};
use crate::layout::compare::Loadable;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::layout::slot::{
    Content, HEADER, Header, Image, Key, SlotShape, Stored, View, lay_out, lay_out_line, set_ghost_and_aux,
};
use crate::layout::words::{self, LINE_WORDS};
use crate::placement::families;
use crate::region::Region;
use block_locks::BlockLocks;
use filters::EmptyFilters;
use held::HeldRooms;
use std::ops::Range;
use undo::Undo;
use writer::Target;

/// The slots of one segment, and what threads that write them need.
#[derive(Debug)]
pub(crate) struct Slots {
    region: Region,
    geometry: Geometry,
    stripes: Stripes,
    owners: BlockLocks,
    undo: UndoLines,
    notes: Notes,
    empty_filters: EmptyFilters,
    held: HeldRooms,
}

/// Proof that a key's slot was written. If it named an extent, the time of that extent counts from now on (X3).
pub(crate) struct SlotWritten(());

/// What is written into a slot besides what belongs to the slot.
#[derive(Clone, Copy)]
pub(crate) enum Filling<'a> {
    /// No key.
    Nothing,
    /// The key and the value in these words of another slot.
    Copy(&'a [AtomicU64]),
    /// This key and this value.
    Entry(&'a [u8], Stored<'a>),
}

/// The words that a slot gets.
enum NewWords<'i> {
    /// All of an image, whose stamps and CRC do not matter, but for those from this number on, which stay as they are.
    Image(&'i mut [u64], usize),
    /// The first one, sealed, and the second one, of a slot of one line.
    Second([u64; 2]),
}

/// The ghost of a slot after a write.
#[derive(Clone, Copy)]
pub(crate) enum GhostAfter {
    /// The slot's old one (M2).
    Stays,
    /// The ghost of the key that was copied away from here. The slot had none (M3).
    Of(u8),
}

impl Slots {
    /// The slots of a table of one segment.
    pub fn whole(region: Region, geometry: Geometry) -> Slots {
        let stripes = Stripes::new(geometry.main_slots());
        Slots::over(region, geometry, stripes, UndoLines::new())
    }

    /// The slots of one segment of many, which share undo lines.
    pub fn part(region: Region, geometry: Geometry, undo: UndoLines) -> Slots {
        let stripes = Stripes::of_segment(geometry.main_slots());
        Slots::over(region, geometry, stripes, undo)
    }

    fn over(region: Region, geometry: Geometry, stripes: Stripes, undo: UndoLines) -> Slots {
        let notes = Notes::new(geometry.main_slots());
        let empty_filters = EmptyFilters::unknown(&geometry);
        let (owners, held) = Default::default();
        Slots { region, geometry, stripes, owners, undo, notes, empty_filters, held }
    }

    #[inline(always)]
    pub fn region(&self) -> &Region {
        &self.region
    }

    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The notes on the slots.
    #[inline(always)]
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    // ---- looks ----------------------------------------------------------------------------------

    #[inline(always)]
    pub fn reader(&self) -> SlotReader<'_> {
        SlotReader::new(&self.region, &self.geometry)
    }

    /// [`SlotReader::words`].
    #[inline]
    pub fn words(&self, slot: SlotIx) -> &[AtomicU64] {
        self.reader().words(slot)
    }

    /// [`SlotReader::header`].
    #[inline]
    pub fn header(&self, slot: SlotIx) -> Header {
        self.reader().header(slot)
    }

    /// [`SlotReader::life`].
    #[inline]
    pub fn life(&self, slot: SlotIx) -> Option<Life> {
        self.reader().life(slot)
    }

    /// [`SlotReader::aux`].
    #[inline]
    pub fn aux(&self, slot: SlotIx) -> u32 {
        self.reader().aux(slot)
    }

    /// [`SlotReader::occupant`].
    #[inline]
    pub fn occupant(&self, slot: SlotIx) -> (Header, Key) {
        self.reader().occupant(slot)
    }

    /// [`SlotReader::holds`].
    #[inline]
    pub fn holds(&self, slot: SlotIx, key: &[u8]) -> bool {
        self.reader().holds(slot, key)
    }

    /// [`SlotReader::read`].
    #[inline]
    pub fn read(&self, slot: SlotIx) -> SlotCopy {
        self.reader().read(slot)
    }

    /// [`SlotReader::peek`].
    #[inline]
    pub fn peek(&self, slot: SlotIx) -> Option<(Header, Key)> {
        self.reader().peek(slot)
    }

    /// [`SlotReader::peek_hash`].
    #[inline]
    pub fn peek_hash(&self, slot: SlotIx) -> Option<(Header, Hashed<'static>)> {
        self.reader().peek_hash(slot)
    }

    /// The first slot of the key's primary window.
    #[inline]
    pub fn home_slot(&self, key: Hashed<'_>) -> SlotIx {
        self.geometry.primary(key).first
    }

    /// Whether the filter of the key's home says that the key may be displaced.
    pub fn may_be_displaced(&self, key: Hashed<'_>) -> bool {
        families::may_be_displaced(&self.geometry, key, self.aux(self.home_slot(key)))
    }

    /// Looks for `key` in its primary window, and if it may be displaced in its others. The caller
    /// holds the key's locks.
    #[inline(always)]
    pub fn seek(&self, key: &Hashed<'_>, may_be_displaced: bool) -> Sought {
        let seen = self.reader().seek(self.geometry.primary(*key), key.key());
        if may_be_displaced && seen.at().is_none() {
            return self.find_displaced(key).map_or(seen, Sought::At);
        }
        seen
    }

    /// The slot outside the primary window that holds `key`.
    #[cold]
    fn find_displaced(&self, &key: &Hashed<'_>) -> Option<SlotIx> {
        let mut last = self.geometry.primary(key);
        let mut windows = (1..).map_while(|read| {
            let head_aux = self.aux(last.first);
            last = families::after(&self.geometry, key, read, head_aux)?;
            Some(last)
        });
        windows.find_map(|window| self.reader().seek(window, key.key()).at())
    }

    /// The first free slot of a window that is not held.
    pub fn free_slot(&self, window: Window) -> Option<SlotIx> {
        window.iter().find(|&slot| self.may_take(slot))
    }

    /// Whether a key may come into this slot: it is free, and not held (L11). Without the slot's lock, a guess.
    #[inline(always)]
    pub fn may_take(&self, slot: SlotIx) -> bool {
        self.header(slot).is_free() && !self.is_held(slot)
    }

    /// The homes among these whose filters have a bit: a key of theirs may be displaced (C3). Without their locks, a
    /// guess.
    #[inline(always)]
    pub fn with_displaced(&self, homes: HomeSet) -> HomeSet {
        let others = self.empty_filters.others(homes);
        if others.is_empty() { others } else { self.by_headers(others) }
    }

    /// As [`Slots::with_displaced`], for the holder of the homes' locks. Nobody looks at the headers of the others again.
    pub fn with_displaced_locked(&self, locked: &Locked<'_>, homes: HomeSet) -> HomeSet {
        let others = self.empty_filters.others(homes);
        if others.is_empty() {
            return others;
        }
        let found = self.by_headers(others);
        debug_assert!(others.iter().all(|home| locked.covers(self.geometry.window(home).first)), "L2");
        self.empty_filters.note(others.without(found), true);
        found
    }

    /// Notes that all slots were made, and that no home has a displaced key. No other thread has the slots yet.
    pub fn note_filters_empty(&self) {
        self.empty_filters.note_all();
    }

    /// The homes among these whose headers say so.
    #[inline(never)]
    fn by_headers(&self, homes: HomeSet) -> HomeSet {
        let mut found = homes.cleared();
        let aux = |home| Header::from_words([0, self.region.load(self.geometry.home_word(home) + 1)]).aux;
        let named = homes.iter().filter(|&home| families::names_displaced(&self.geometry, aux(home)));
        named.for_each(|home| found.add(home));
        found
    }

    /// The slots among these that have a key: a bit for each of at most 128 neighbours.
    pub fn occupied(&self, slots: &Range<u64>) -> u128 {
        let (each, count) = (self.geometry.shape().words(), (slots.end - slots.start) as usize);
        let words = self.region.words(self.geometry.slot_word(SlotIx(slots.start)), count * each);
        let bits = words.chunks_exact(each).fold(0u128, |bits, slot| {
            let is_free = words::header(slot).is_free();
            bits >> 1 | u128::from(!is_free) << 127
        });
        if count == 0 { 0 } else { bits >> (128 - count) }
    }

    /// The slots among these into which a key may come, as [`Slots::may_take`] says of one.
    pub fn free_among(&self, slots: &Range<u64>) -> u128 {
        let mut free = !self.occupied(slots);
        if self.held.are_any() {
            let held = (0..slots.end - slots.start).filter(|bit| self.is_held(SlotIx(slots.start + bit)));
            held.for_each(|bit| free &= !(1 << bit));
        }
        free
    }

    // ---- held slots -----------------------------------------------------------------------------

    /// Whether a free slot is held for a key (L11). Without the slot's lock, a guess.
    #[inline(always)]
    pub fn is_held(&self, slot: SlotIx) -> bool {
        self.held.are_any() && !broken(Rule::HeldSlot) && self.held.is_held(slot)
    }

    /// The homes among these, whose locks are held, for whose keys a slot is held (L12).
    pub fn held_among(&self, homes: HomeSet) -> HomeSet {
        let mut held = homes.cleared();
        if self.held.are_any() {
            homes.iter().filter(|&home| self.held.is_held_for(home)).for_each(|home| held.add(home));
        }
        held
    }

    /// The result of a look, without free slots that are held. The caller holds the key's locks.
    #[inline]
    pub fn pass_by_held(&self, seen: Sought, key: &Hashed<'_>) -> Sought {
        match seen {
            Sought::Free(slot) if self.is_held(slot) => {
                self.free_slot(self.geometry.primary(*key)).map_or(Sought::Nowhere, Sought::Free)
            }
            seen => seen,
        }
    }

    /// Locks a held slot, and the home of the key that it is held for.
    pub fn lock_held(&self, room: &HeldRoom) -> Locked<'_> {
        let home_slot = self.geometry.window(room.home).first;
        self.lock_ends(
            home_slot,
            if room.slot.0 < self.geometry.main_slots() { room.slot } else { home_slot },
        )
    }

    /// Holds a free slot.
    pub fn hold(&self, locked: &Locked<'_>, room: HeldRoom) {
        debug_assert!(self.may_write(locked, room.slot) && self.header(room.slot).is_free(), "L11");
        debug_assert!(locked.covers(self.geometry.window(room.home).first), "L12");
        self.held.add(room);
        // A search looks at the slot, and sees that it is held.
        self.notes.forget(&[room.slot]);
    }

    /// Holds a slot no longer.
    pub fn let_go(&self, locked: &Locked<'_>, room: &HeldRoom) {
        debug_assert!(self.may_write(locked, room.slot), "L11");
        self.held.remove(room);
        if self.header(room.slot).is_free() {
            self.notes.set(room.slot, Note::Free, false);
        }
    }

    // ---- locks ----------------------------------------------------------------------------------

    /// Locks nothing yet.
    pub fn none(&self) -> Locked<'_> {
        self.stripes.none()
    }

    /// [`Stripes::alone`].
    #[inline]
    pub fn alone(&self) -> Locked<'_> {
        self.stripes.alone()
    }

    /// Locks a set of stripes (L3).
    #[inline]
    pub fn lock(&self, set: StripeSet) -> Locked<'_> {
        self.stripes.lock(set)
    }

    /// Locks a key's primary window. [`Slots::lock_displaced`] goes on.
    #[inline(always)]
    pub fn lock_primary(&self, key: &Hashed<'_>) -> Locked<'_> {
        Loadable::expect(&self.region, self.geometry.home_word(key.home()));
        self.stripes.lock_two(self.stripes_of_window(self.geometry.primary(*key)))
    }

    /// Also locks the key's other windows, if the home's filter says that the key may be there. So everything is locked
    /// on which its presence depends. Returns whether the filter says so.
    #[inline(always)]
    pub fn lock_displaced<'l>(&'l self, locked: &mut Locked<'l>, key: &Hashed<'_>) -> bool {
        let home = self.region.load(self.geometry.home_word(key.home()) + 1);
        let aux = Header::from_words([0, home]).aux;
        let may_be_displaced = families::may_be_displaced(&self.geometry, *key, aux);
        if may_be_displaced {
            self.lock_all_windows(locked, key);
        }
        may_be_displaced
    }

    #[cold]
    fn lock_all_windows<'l>(&'l self, locked: &mut Locked<'l>, key: &Hashed<'_>) {
        locked.lock(self.stripes_of_key(*key));
    }

    /// Locks the stripe of one main slot.
    #[inline]
    pub fn lock_slot(&self, slot: SlotIx) -> Locked<'_> {
        self.lock_ends(slot, slot)
    }

    /// Locks the stripe of a home slot.
    #[inline]
    pub fn lock_home(&self, home: u64) -> Locked<'_> {
        self.lock_slot(self.geometry.window(home).first)
    }

    /// Locks the stripes of two main slots.
    pub fn lock_ends(&self, first: SlotIx, last: SlotIx) -> Locked<'_> {
        self.stripes.lock_two([first, last].map(|slot| self.stripe_of(slot)))
    }

    /// The stripe of a main slot.
    #[inline]
    pub fn stripe_of(&self, slot: SlotIx) -> usize {
        self.stripes.of(slot)
    }

    /// The stripes of neighbouring main slots.
    pub fn stripes_of_all(&self, slots: Range<u64>) -> StripeSet {
        self.stripes.of_all(slots)
    }

    /// The number of stripes.
    #[inline]
    pub fn stripe_count(&self) -> usize {
        self.stripes.len()
    }

    /// Looks at each stripe under its lock, one after the other.
    #[inline]
    pub fn each_stripe<R>(&self, look: impl FnMut(usize, &mut Stripe) -> R) -> Vec<R> {
        self.stripes.each(look)
    }

    /// The stripes of all windows of a key.
    pub fn stripes_of_key(&self, key: Hashed<'_>) -> StripeSet {
        let mut set = StripeSet::new();
        families::known_windows(&self.geometry, key).for_each(|window| self.add_window(&mut set, window));
        set
    }

    pub fn add_window(&self, set: &mut StripeSet, window: Window) {
        self.stripes_of_window(window).into_iter().for_each(|number| add_stripe(set, number));
    }

    /// The stripes of a window: two, or twice the same.
    fn stripes_of_window(&self, window: Window) -> [usize; 2] {
        // A window has at most 64 slots, a stripe's group has 64. So the first and the last slot
        // name all stripes of the window.
        let last = SlotIx(window.end() - 1);
        [window.first, last].map(|slot| self.stripe_of(slot))
    }

    /// Adds the stripes of a path's slots, and of the homes of the keys in them (L2). Takes notes for true, where there
    /// are some: L4 has the path checked again.
    pub fn add_path(&self, set: &mut StripeSet, path: &[SlotIx]) {
        for &slot in path {
            if slot.0 < self.geometry.main_slots() {
                obey(Rule::SlotLock, || add_stripe(set, self.stripe_of(slot)));
            }
            match self.notes.of(slot) {
                Note::Free => {}
                Note::AtHome(distance) => add_stripe(set, self.stripe_of(home_slot(slot, distance))),
                Note::Unknown | Note::Stuck | Note::Displaced => {
                    let occupant = self.peek_hash(slot).filter(|(header, _)| !header.is_free());
                    let home = occupant.map(|(_, key)| self.home_slot(key));
                    home.into_iter().for_each(|home| add_stripe(set, self.stripe_of(home)));
                }
            }
        }
    }

    /// A home takes an overflow block, or gives it back. From then on its lock guards the block's slots, or no lock
    /// does.
    pub fn set_owner(&self, block: Block, home: Option<u64>) {
        self.owners.set(block, home);
    }

    /// The home whose lock guards a block in use. `None` in builds without assertions.
    #[inline]
    pub fn owner(&self, block: Block) -> Option<u64> {
        self.owners.home(block)
    }

    /// The main slot whose stripe guards `slot`, if `key` stands there.
    pub fn guard_of(&self, slot: SlotIx, key: Hashed<'_>) -> SlotIx {
        if slot.0 < self.geometry.main_slots() { slot } else { self.home_slot(key) }
    }

    /// The main slot whose stripe guards `slot` (L1). For a block it goes by the block's owner, not
    /// by the key in the slot. `None` for a block that nobody uses. For assertions.
    fn known_guard(&self, slot: SlotIx) -> Option<SlotIx> {
        match chain::block_of(&self.geometry, slot) {
            None => Some(slot),
            Some(block) => self.owner(block).map(|home| self.geometry.window(home).first),
        }
    }

    /// Whether the stripe of the main slot `guard` guards `slot`. For assertions.
    pub fn is_guarded_by(&self, slot: SlotIx, guard: SlotIx) -> bool {
        // If a block is unlinked with a ghost in it, its next home guards that ghost.
        kept(Rule::BlockGhost, || self.known_guard(slot) == Some(guard))
    }

    /// Whether the holder of these locks may write the slot (L1). For assertions.
    fn may_write(&self, locked: &Locked<'_>, slot: SlotIx) -> bool {
        let is_locked = || self.known_guard(slot).is_some_and(|guard| locked.covers(guard));
        locked.is_alone() || kept(Rule::SlotLock, || kept(Rule::BlockGhost, is_locked))
    }

    /// Whether the holder of these locks may insert, update, move or erase the key (L2). For
    /// assertions.
    pub fn may_change(&self, locked: &Locked<'_>, key: Hashed<'_>) -> bool {
        kept(Rule::PathCheck, || locked.covers(self.home_slot(key)))
    }

    // ---- writes ---------------------------------------------------------------------------------

    /// Writes key and value into a free slot, and notes this of the key; or into the key's own slot, whose note stays
    /// true. The slot keeps its ghost (M2) and its `aux`, which are about other keys.
    #[inline(always)]
    pub fn rewrite(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        key: &[u8],
        value: &Stored<'_>,
        note: Option<Note>,
    ) -> SlotWritten {
        let ghost = match self.geometry.shape() {
            SlotShape::LINE => self.rewrite_by(SlotShape::LINE, locked, slot, key, value),
            _ => self.rewrite_other(locked, slot, key, value),
        };
        if let Some(note) = note {
            self.note(slot, key.is_empty(), note, ghost);
        }
        SlotWritten(())
    }

    /// Frees a slot whose occupant is removed. The slot keeps its ghost and its `aux`.
    #[inline(always)]
    pub fn free(&self, locked: &Locked<'_>, slot: SlotIx) -> SlotWritten {
        self.rewrite(locked, slot, &[], &Stored::default(), Some(Note::Free))
    }

    /// Writes key and value into a slot that is not one line. Returns its ghost.
    #[inline(never)]
    fn rewrite_other(&self, locked: &Locked<'_>, slot: SlotIx, key: &[u8], value: &Stored<'_>) -> u8 {
        self.rewrite_by(self.geometry.shape(), locked, slot, key, value)
    }

    /// Writes key and value into a slot of this shape. Returns its ghost.
    #[inline(always)]
    fn rewrite_by(
        &self,
        shape: SlotShape,
        locked: &Locked<'_>,
        slot: SlotIx,
        key: &[u8],
        &value: &Stored<'_>,
    ) -> u8 {
        let target = self.writer().target(shape, slot);
        let before = target.before();
        let ghost = by_rule(Rule::GhostStays, before.ghost, 0);
        let content = Content { key, value, ghost, aux: before.aux };
        if shape == SlotShape::LINE {
            let mut line = lay_out_line(&content);
            self.write_target(locked, &target, key.is_empty(), NewWords::Image(&mut line, shape.words()));
        } else {
            let mut image = image_of(shape, &content);
            self.write_target(locked, &target, key.is_empty(), NewWords::Image(&mut image, shape.words()));
        }
        ghost
    }

    /// Sets the filter of a home. Writes only if that changes it.
    pub fn set_filter(&self, locked: &Locked<'_>, home: u64, filter: u32) {
        let home_slot = self.geometry.window(home).first;
        self.empty_filters.note(HomeSet::one(home), filter == 0);
        let mask = families::filter_mask(&self.geometry);
        self.set_aux(locked, home_slot, self.aux(home_slot) & !mask | filter);
    }

    /// Sets the `aux` of a slot. Writes only if that changes it.
    pub fn set_aux(&self, locked: &Locked<'_>, slot: SlotIx, aux: u32) {
        if self.aux(slot) != aux {
            self.set_aux_part(locked, slot, u32::MAX, aux);
        }
    }

    /// Sets the part of a slot's `aux` that this mask names.
    #[inline]
    pub fn set_aux_part(&self, locked: &Locked<'_>, slot: SlotIx, mask: u32, part: u32) {
        self.write_header(locked, slot, |before| {
            (by_rule(Rule::GhostStays, before.ghost, 0), before.aux & !mask | part)
        });
    }

    /// Takes the ghost of a slot away.
    pub fn take_ghost(&self, locked: &Locked<'_>, slot: SlotIx) {
        self.write_header(locked, slot, |before| (0, before.aux));
        self.notes.take_ghost(slot);
    }

    /// Writes what belongs to the slot and not to its key: a ghost and an `aux`, by what it has. The note on its key
    /// stays true.
    #[inline(always)]
    fn write_header(&self, locked: &Locked<'_>, slot: SlotIx, write: impl Fn(Header) -> (u8, u32)) {
        if self.geometry.shape() == SlotShape::LINE {
            let target = self.writer().target(SlotShape::LINE, slot);
            let before = target.before();
            let (ghost, aux) = write(before);
            let second = Header { ghost, aux, ..before }.to_words()[1];
            // Its payload need not be copied.
            if let Some(sealed) = self.writer().sealed(&target, second) {
                let words = NewWords::Second([sealed, second]);
                return self.write_target(locked, &target, before.is_free(), words);
            }
        }
        self.write_filled(locked, slot, HEADER / WORD, None, |target, image| {
            let before = target.before();
            // A free slot has no payload.
            if !before.is_free() {
                words::load_all(target.words(), image);
            }
            let (ghost, aux) = write(before);
            image[1] = before.to_words()[1];
            set_ghost_and_aux(image, ghost, aux);
        });
    }

    /// Replaces the key and the value of a slot. The slot keeps its `aux`. `note` is about the key, if there is one.
    pub fn fill(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        (filling, ghost): (Filling<'_>, GhostAfter),
        note: Note,
    ) -> SlotWritten {
        let shape = self.geometry.shape();
        self.write_filled(locked, slot, usize::MAX, Some(note), |target, image| {
            match filling {
                Filling::Nothing => {}
                Filling::Copy(of) => {
                    words::load_all(of, image);
                    // As every look: what is damaged reads as free.
                    if View::consistent(shape, image).is_err() {
                        image.fill(0);
                    }
                }
                Filling::Entry(key, value) => {
                    lay_out(shape, &Content { key, value, ..Content::default() }, image);
                }
            }
            let before = target.before();
            let ghost = match ghost {
                GhostAfter::Stays => by_rule(Rule::GhostStays, before.ghost, 0),
                GhostAfter::Of(left) => {
                    debug_assert!(has_room_for_ghost(before.ghost), "M3");
                    by_rule(Rule::Ghost, left, before.ghost)
                }
            };
            set_ghost_and_aux(image, ghost, before.aux);
        });
        SlotWritten(())
    }

    /// Writes the image that `fill` makes of zeros; its stamps and CRC do not matter. The words from `same_from` on
    /// stay as they are. `note` is about the key, if there is one and it is another one.
    #[inline(always)]
    fn write_filled(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        same_from: usize,
        note: Option<Note>,
        fill: impl FnOnce(&Target<'_>, &mut [u64]),
    ) {
        let header = match self.geometry.shape() {
            SlotShape::LINE => {
                let target = self.writer().target(SlotShape::LINE, slot);
                let mut line = [0; LINE_WORDS];
                fill(&target, &mut line);
                let header = Header::from_words([line[0], line[1]]);
                let words = NewWords::Image(&mut line, same_from.min(LINE_WORDS));
                self.write_target(locked, &target, header.is_free(), words);
                header
            }
            shape => {
                let target = self.writer().target(shape, slot);
                let mut image = Image::from_elem(0, shape.words());
                fill(&target, &mut image);
                let header = Header::from_words([image[0], image[1]]);
                let words = NewWords::Image(&mut image, same_from.min(shape.words()));
                self.write_target(locked, &target, header.is_free(), words);
                header
            }
        };
        if let Some(note) = note {
            self.note(slot, header.is_free(), note, header.ghost);
        }
    }

    /// Notes what was written into a slot. `note` is about the key, if there is one.
    #[inline(always)]
    fn note(&self, slot: SlotIx, is_free: bool, note: Note, ghost: u8) {
        match is_free {
            true => self.notes.set(slot, Note::Free, false),
            false => self.notes.set(slot, note, !has_room_for_ghost(ghost)),
        }
    }

    /// Replaces a slot's content.
    pub fn write(&self, locked: &Locked<'_>, slot: SlotIx, content: &Content<'_>) {
        let shape = self.geometry.shape();
        let unknown = Some(Note::Unknown);
        self.write_filled(locked, slot, usize::MAX, unknown, |_, image| lay_out(shape, content, image));
    }

    #[inline(always)]
    fn writer(&self) -> SlotWriter<'_> {
        SlotWriter::new(&self.region, &self.geometry)
    }

    /// Keeps the image of a slot that is about to be written.
    #[inline(always)]
    fn keep(&self, target: &Target<'_>, is_free: bool) -> Option<Undo<'_>> {
        // What is erased stands elsewhere (M1), or belongs to a remove, which then takes effect.
        if is_free { None } else { self.undo.keep_target(&self.region, &self.geometry, target) }
    }

    /// All slot writes go through here. The slot `is_free` after the write.
    #[inline(always)]
    fn write_target(&self, locked: &Locked<'_>, target: &Target<'_>, is_free: bool, words: NewWords<'_>) {
        debug_assert!(
            self.may_write(locked, target.slot),
            "L1: {:?} is written without its lock",
            target.slot
        );
        let free = |undo: Option<Undo<'_>>| {
            if let Some(undo) = undo {
                undo.free();
            }
        };
        // U1
        let mut undo = obey(Rule::Undo, || obey(Rule::UndoFirst, || self.keep(target, is_free)));
        disobey(Rule::UndoStays, || free(undo.take()));
        // (No closure: not all of its callers would have it inlined.)
        match words {
            NewWords::Image(image, same_from) => self.writer().write_image(target, image, same_from),
            NewWords::Second(words) => self.writer().write_second(target, words),
        }
        disobey(Rule::UndoFirst, || free(self.keep(target, is_free)));
        // U2
        free(undo);
    }
}

/// The image of a slot of this shape with this content.
fn image_of(shape: SlotShape, content: &Content<'_>) -> Image {
    let mut image = Image::from_elem(0, shape.words());
    lay_out(shape, content, &mut image);
    image
}
