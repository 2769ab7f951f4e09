//! Moves along a path, and the slot writes that they consist of (M1 to M6).
//!
//! | function | what it writes | counter (M4) | ghost left (M2) |
//! |---|---|---|---|
//! | `place` | a new key into a free slot, by `rewrite` | no | the slot's old one |
//! | `place_over` | a new key, over one copied away, by `overwrite` | up | that key's |
//! | `copy` | a key that moves, by `overwrite` | as `overwrite` | as `overwrite` |
//! | `vacate` | no key, over one copied away, by `overwrite` | up | that key's |
//! | `erase` | no key, over one removed, by `rewrite` | no | the slot's old one |
//! | `rewrite` | what is given, over no key or the same one | no | the slot's old one |
//! | `overwrite` of a free slot | what is given | no | the slot's old one |
//! | `overwrite` of another slot | what is given, over a key copied away | up | that key's |
//! | `write`, `write_image` | what is given: the last step of all of them | no | the one given |
//!
//! `kept`, `obey`, `disobey`, `by_rule` and `in_order` are switches of `src/faults.rs`. In a real
//! build, what stands under `disobey` never runs, and all else is done as the rule demands.

use super::counters::count;
use super::grace::Trace;
use super::notes::Note;
use super::search::MovePath;
use super::segment::Segment;
use super::stripes::{Displaced, DisplacedAt, Locked};
use super::undo::Undo;
use super::writer::SlotWriter;
use crate::families;
use crate::faults::{AtOnce, Rule, by_rule, disobey, in_order, kept, obey};
use crate::layout::control::move_counter_word;
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::{Content, Header, Image, Key, Stored, lay_out, set_ghost_and_aux};
use crate::outcome::{PutMode, PutOutcome};
use crate::sync::{Ordering, fence};
use smallvec::SmallVec;

/// Whether the occupant of a slot with this ghost may be moved (M3).
pub(super) fn has_room_for_ghost(ghost: u8) -> bool {
    kept(Rule::OneGhost, || ghost == 0)
}

/// A key's slot has been written. The time of an extent that it named before counts from after that (X3).
pub(super) struct SlotWritten(());

impl Segment {
    /// Puts a key by moving others along a path that was found without locks. `None` when the path
    /// has changed since. A copy is of a key that is still elsewhere (E3).
    pub(super) fn put_along(
        &self,
        path: &MovePath,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
        is_copy: bool,
    ) -> Option<PutOutcome> {
        let mut set = self.stripes_of_key(key);
        self.add_path(&mut set, path);
        let mut locked = self.stripes.lock(set);
        if !is_copy && self.is_elsewhere(key) {
            return None;
        }
        // L5: another thread may have put the same key meanwhile.
        let answer = obey(Rule::LookAgain, || self.put_present(&mut locked, key, value, mode));
        if answer.is_some() {
            return answer;
        }
        let keys = self.keys_along(path);
        let movers = self.hashed_all(&keys);
        if !self.still_good(&locked, path, &movers) {
            return None;
        }
        self.move_along(&mut locked, path, &movers, |locked| match movers.first() {
            None => self.place(locked, path[0], key, value),
            Some(&moved) => self.place_over(locked, path[0], moved, key, value),
        });
        Some(PutOutcome::Inserted)
    }

    /// The keys in the slots of a path, but for its free end. The caller holds its locks.
    pub(super) fn keys_along(&self, path: &MovePath) -> SmallVec<[Key; 4]> {
        let (_, from) = path.split_last().expect("a path has a slot");
        from.iter().map(|&slot| self.slots().occupant(slot).1).collect()
    }

    pub(super) fn hashed_all<'k>(&self, keys: &'k [Key]) -> SmallVec<[Hashed<'k>; 4]> {
        keys.iter().map(|key| self.geometry.hashed(key)).collect()
    }

    /// Whether a path is still as the search saw it (L4). The caller holds its locks. `movers` are the
    /// keys that are to be moved.
    pub(super) fn still_good(&self, locked: &Locked<'_>, path: &MovePath, movers: &[Hashed<'_>]) -> bool {
        kept(Rule::PathCheck, || self.is_as_found(locked, path, movers))
    }

    fn is_as_found(&self, locked: &Locked<'_>, path: &MovePath, movers: &[Hashed<'_>]) -> bool {
        let &last = path.last().expect("a path has a slot");
        self.slots().header(last).is_free()
            && movers.iter().zip(path.windows(2)).all(|(&mover, step)| {
                let (from, to) = (step[0], step[1]);
                let header = self.slots().header(from);
                !header.is_free()
                    && has_room_for_ghost(header.ghost)
                    && locked.covers(self.home_slot(mover))
                    && families::may_move(&self.geometry, mover, from, to)
            })
    }

    /// Moves every occupant of the path one step on, starting at the free end. `finish` then
    /// overwrites `path[0]`, whose occupant has been copied away, by [`Segment::place_over`] or
    /// [`Segment::vacate`].
    pub(super) fn move_along<'a>(
        &self,
        locked: &mut Locked<'a>,
        path: &MovePath,
        movers: &[Hashed<'_>],
        finish: impl FnOnce(&mut Locked<'a>),
    ) {
        let mut filters = AtOnce::new(Rule::FilterBeforeCopy);
        let mut came_home: SmallVec<[(u64, u32, SlotIx); 4]> = SmallVec::new();
        let mut moved = None;
        for (step, &mover) in path.windows(2).zip(movers).rev() {
            let (from, to) = (step[0], step[1]);
            let left = self.copy(locked, mover, from, to, moved, &mut filters);
            came_home.extend(left.map(|(home, bit)| (home, bit, from)));
            moved = Some(mover);
        }
        finish(locked);
        filters.finish(|home| self.set_filter(locked, home));
        // M5: their displaced copies are gone only now, so the grace time counts from here.
        for (home, bit, from) in came_home {
            self.linger(locked, home, bit, from);
        }
    }

    /// Copies `mover`, the occupant of `from`, to `to`, over `moved` if that was moved away from there.
    /// Returns its home and filter bit if this brings it home.
    fn copy(
        &self,
        locked: &mut Locked<'_>,
        mover: Hashed<'_>,
        from: SlotIx,
        to: SlotIx,
        moved: Option<Hashed<'_>>,
        filters: &mut AtOnce<u64>,
    ) -> Option<(u64, u32)> {
        let mut image = self.slots().image(from);
        debug_assert!(self.may_change(locked, mover), "L2");
        let (primary, home) = (self.geometry.primary(mover), mover.home());
        let bit = families::filter_bit(&self.geometry, mover);
        disobey(Rule::CopyBeforeErase, || {
            let aux = self.slots().header(from).aux;
            self.write(locked, from, &Content { aux, ..Content::default() });
        });
        match (primary.contains(from), primary.contains(to)) {
            (true, false) => {
                self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(to) });
                filters.step(home, |home| self.set_filter(locked, home));
            }
            (false, false) => self.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to)),
            (_, true) => {}
        }
        // M1: the copy is live before `from` is overwritten, by the next step or the caller.
        self.overwrite(locked, to, moved, &mut image, Note::of_key(&self.geometry, to, mover));
        count(&self.counters.mine().moves);
        (!primary.contains(from) && primary.contains(to)).then_some((home, bit))
    }

    /// Puts a new key into a slot that is free.
    #[inline(always)]
    pub(super) fn place(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>, value: Stored<'_>) {
        self.name_displaced(locked, slot, key);
        self.rewrite(locked, slot, Some(key), value);
        count(&self.counters.mine().inserts);
    }

    /// Puts a new key into a slot whose occupant `moved` was copied away.
    fn place_over(
        &self,
        locked: &mut Locked<'_>,
        slot: SlotIx,
        moved: Hashed<'_>,
        key: Hashed<'_>,
        value: Stored<'_>,
    ) {
        self.name_displaced(locked, slot, key);
        let shape = self.geometry.shape();
        let mut image = Image::from_elem(0, shape.words());
        lay_out(shape, &Content { key: key.key(), value, ..Content::default() }, &mut image);
        self.overwrite(locked, slot, Some(moved), &mut image, Note::of_key(&self.geometry, slot, key));
        count(&self.counters.mine().inserts);
    }

    /// Has the register and the home's filter name a key that is to be put into this slot, if that
    /// is not in its primary window.
    #[inline]
    fn name_displaced(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>) {
        debug_assert!(self.may_change(locked, key), "L2");
        if !self.geometry.primary(key).contains(slot) {
            let (home, bit) = (key.home(), families::filter_bit(&self.geometry, key));
            self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
            self.set_filter(locked, home);
        }
    }

    /// Frees a slot whose occupant `moved` was copied away.
    pub(super) fn vacate(&self, locked: &Locked<'_>, slot: SlotIx, moved: Hashed<'_>) {
        let mut empty = Image::from_elem(0, self.geometry.shape().words());
        self.overwrite(locked, slot, Some(moved), &mut empty, Note::Free);
    }

    /// Frees the slot of a key that is removed (M6).
    pub(super) fn erase(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>) -> SlotWritten {
        debug_assert!(self.may_change(locked, key), "L2");
        let written = self.rewrite(locked, slot, None, Stored::default());
        if !self.geometry.primary(key).contains(slot) {
            self.linger(locked, key.home(), families::filter_bit(&self.geometry, key), slot);
        }
        self.left_slot_of_home(locked, slot, key.home());
        written
    }

    /// Writes key and value into a slot that is free, or whose occupant is updated; or no key, over
    /// one that is removed. The slot keeps its ghost (M2) and its `aux`: they are about other keys.
    #[inline(always)]
    pub(super) fn rewrite(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        key: Option<Hashed<'_>>,
        value: Stored<'_>,
    ) -> SlotWritten {
        let before = self.slots().header(slot);
        let ghost = by_rule(Rule::GhostStays, before.ghost, 0);
        let note = key.map_or(Note::Free, |key| Note::of_key(&self.geometry, slot, key));
        let key = key.map_or(&[][..], |key| key.key());
        self.write_noted(locked, slot, &Content { key, value, ghost, aux: before.aux }, note);
        SlotWritten(())
    }

    /// Writes an image's key and value over `moved`, which has been copied elsewhere and leaves its
    /// ghost behind; or into a free slot.
    pub(super) fn overwrite(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        moved: Option<Hashed<'_>>,
        image: &mut Image,
        note: Note,
    ) {
        let before = self.slots().header(slot);
        let Some(moved) = moved.filter(|_| !before.is_free()) else {
            set_ghost_and_aux(image, by_rule(Rule::GhostStays, before.ghost, 0), before.aux);
            return self.write_image(locked, slot, image, note);
        };
        debug_assert!(has_room_for_ghost(before.ghost), "M3");
        set_ghost_and_aux(image, by_rule(Rule::Ghost, moved.ghost(), before.ghost), before.aux);
        let begun = |index: &mut &Segment| {
            index.region.add(move_counter_word(moved.home()));
            // Pairs with R4: a reader that sees the slot overwritten sees the count. A reader that
            // sees the count by R3 sees the copy, or its slot being written: the fence before W3 of
            // the copy came earlier.
            fence(Ordering::Release);
        };
        // M4
        in_order(Rule::CountBeforeErase, self, begun, |index| {
            index.write_image(locked, slot, image, note);
        });
        let guard = self.guard_of(slot, moved);
        self.push_trace(self.grace.due_ns(Rule::GhostGrace), Trace::Ghost { slot, guard });
    }

    /// Replaces a slot's content. All slot writes of an index go through here, or through
    /// [`Segment::write_image`].
    pub(super) fn write(&self, locked: &Locked<'_>, slot: SlotIx, content: &Content<'_>) {
        self.write_noted(locked, slot, content, Note::Unknown);
    }

    /// The same. `note` is about the key.
    #[inline(always)]
    fn write_noted(&self, locked: &Locked<'_>, slot: SlotIx, content: &Content<'_>, note: Note) {
        let (is_free, ghost) = (content.key.is_empty(), content.ghost);
        self.write_by(locked, slot, is_free, ghost, note, |slots| slots.write(slot, content));
    }

    /// The same by an image.
    pub(super) fn write_image(&self, locked: &Locked<'_>, slot: SlotIx, image: &mut Image, note: Note) {
        let header = Header::from_words([image[0], image[1]]);
        self.write_by(locked, slot, header.is_free(), header.ghost, note, |slots| {
            slots.write_image(slot, image);
        });
    }

    /// Keeps the image of a slot that is about to be written.
    #[inline(always)]
    fn keep(&self, slot: SlotIx, is_free: bool) -> Option<Undo<'_>> {
        // What is erased stands elsewhere (M1), or a remove that is cut off takes effect.
        if is_free { None } else { self.undo.keep(self.slots(), slot) }
    }

    #[inline(always)]
    fn write_by(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        is_free: bool,
        ghost: u8,
        note: Note,
        write: impl FnOnce(SlotWriter<'_>),
    ) {
        debug_assert!(self.may_write(locked, slot), "L1: {slot:?} is written without its lock");
        let free = |undo: Option<Undo<'_>>| {
            if let Some(undo) = undo {
                undo.free();
            }
        };
        // U1
        let mut undo = obey(Rule::Undo, || obey(Rule::UndoFirst, || self.keep(slot, is_free)));
        disobey(Rule::UndoStays, || free(undo.take()));
        write(self.slots());
        disobey(Rule::UndoFirst, || free(self.keep(slot, is_free)));
        // U2
        free(undo);
        match is_free {
            true => self.notes.set(slot, Note::Free, false),
            false => self.notes.set(slot, note, !has_room_for_ghost(ghost)),
        }
    }
}
