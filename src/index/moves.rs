//! Moves along a path, and the slot writes that they consist of (M1 to M6).
//!
//! | function | what it writes | counter (M4) | ghost left (M2) |
//! |---|---|---|---|
//! | `place` | a new key, by `overwrite` | as `overwrite` | as `overwrite` |
//! | `vacate` | no key, over one copied away, by `overwrite` | up | that key's |
//! | `erase` | no key, over one removed, by `rewrite` | no | the slot's old one |
//! | `rewrite` | what is given, over no key or the same one | no | the slot's old one |
//! | `overwrite` of a free slot | what is given, by `rewrite` | no | the slot's old one |
//! | `overwrite` of another slot | what is given, over a key copied away | up | that key's |
//! | `write` | what is given: the last step of all of them | no | the one given |
//!
//! `kept`, `obey`, `disobey`, `by_rule` and `in_order` are switches of `src/faults.rs`. In a real
//! build, what stands under `disobey` never runs, and all else is done as the rule demands.

use super::notes::Note;
use super::*;
use crate::layout::slot::Header;

/// Whether the occupant of a slot with this ghost may be moved (M3).
pub(super) fn has_room_for_ghost(ghost: u8) -> bool {
    kept(Rule::OneGhost, || ghost == 0)
}

impl Index {
    /// Puts a key by moving others along a path that was found without locks. `None` when the path
    /// has changed since.
    pub(super) fn put_along(
        &self,
        path: &MovePath,
        key: Hashed<'_>,
        value: &[u8],
        mode: PutMode,
    ) -> Option<PutOutcome> {
        let mut set = self.stripes_of_key(key);
        self.add_path(&mut set, path);
        let mut locked = self.stripes.lock(set);
        // L5: another thread may have put the same key meanwhile.
        let answer = obey(Rule::LookAgain, || self.put_present(&mut locked, key, value, mode));
        if answer.is_some() {
            return answer;
        }
        if !self.still_good(&locked, path) {
            return None;
        }
        self.move_along(&mut locked, path, |locked| self.place(locked, path[0], key, value));
        Some(PutOutcome::Inserted)
    }

    /// Whether a path is still as the search saw it (L4). The caller holds its locks.
    pub(super) fn still_good(&self, locked: &Locked<'_>, path: &MovePath) -> bool {
        kept(Rule::PathCheck, || self.is_as_found(locked, path))
    }

    fn is_as_found(&self, locked: &Locked<'_>, path: &MovePath) -> bool {
        let (&last, movers) = path.split_last().expect("a path has a slot");
        self.slots().header(last).is_free()
            && movers.iter().zip(&path[1..]).all(|(&from, &to)| {
                let (header, occupant) = self.slots().occupant(from);
                let mover = self.geometry.hashed(&occupant);
                !header.is_free()
                    && has_room_for_ghost(header.ghost)
                    && locked.covers(self.home_slot(mover))
                    && families::destinations(&self.geometry, mover, Some(from))
                        .iter()
                        .any(|d| d.window.contains(to))
            })
    }

    /// Moves every occupant of the path one step on, starting at the free end. `finish` then
    /// overwrites `path[0]`, whose occupant has been copied away, by [`Index::place`] or
    /// [`Index::vacate`].
    pub(super) fn move_along<'a>(
        &self,
        locked: &mut Locked<'a>,
        path: &MovePath,
        finish: impl FnOnce(&mut Locked<'a>),
    ) {
        let mut filters = AtOnce::new(Rule::FilterBeforeCopy);
        let mut came_home: SmallVec<[(u64, u32, SlotIx); 4]> = SmallVec::new();
        for step in path.windows(2).rev() {
            let (from, to) = (step[0], step[1]);
            let left = self.copy(locked, from, to, &mut filters);
            came_home.extend(left.map(|(home, bit)| (home, bit, from)));
        }
        finish(locked);
        filters.finish(|home| self.set_filter(locked, home));
        // M5: their displaced copies are gone only now, so the grace time counts from here.
        for (home, bit, from) in came_home {
            self.linger(locked, home, bit, from);
        }
    }

    /// Copies the occupant of `from` to `to`. Returns its home and filter bit if this brings it
    /// home.
    fn copy(
        &self,
        locked: &mut Locked<'_>,
        from: SlotIx,
        to: SlotIx,
        filters: &mut AtOnce<u64>,
    ) -> Option<(u64, u32)> {
        let occupant = self.slots().read(from);
        let mover = self.geometry.hashed(&occupant.key);
        debug_assert!(self.may_change(locked, mover), "L2");
        let (primary, home) = (self.geometry.primary(mover), mover.home());
        let bit = families::filter_bit(&self.geometry, mover);
        let free = Content { aux: occupant.aux, ..Content::default() };
        disobey(Rule::CopyBeforeErase, || self.write(locked, from, &free));
        match (primary.contains(from), primary.contains(to)) {
            (true, false) => {
                self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(to) });
                filters.step(home, |home| self.set_filter(locked, home));
            }
            (false, false) => self.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to)),
            (_, true) => {}
        }
        // M1: the copy is live before `from` is overwritten, by the next step or the caller.
        self.overwrite(locked, to, &occupant.key, &occupant.value);
        self.note(to, mover);
        count(&self.counters.mine().moves);
        (!primary.contains(from) && primary.contains(to)).then_some((home, bit))
    }

    /// Puts a new key into a slot that is free, or whose occupant was copied away.
    pub(super) fn place(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>, value: &[u8]) {
        debug_assert!(self.may_change(locked, key), "L2");
        if !self.geometry.primary(key).contains(slot) {
            let (home, bit) = (key.home(), families::filter_bit(&self.geometry, key));
            self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
            self.set_filter(locked, home);
        }
        self.overwrite(locked, slot, key.key(), value);
        self.note(slot, key);
        count(&self.counters.mine().inserts);
    }

    /// Frees a slot whose occupant was copied away.
    pub(super) fn vacate(&self, locked: &Locked<'_>, slot: SlotIx) {
        self.overwrite(locked, slot, &[], &[]);
    }

    /// Frees the slot of a key that is removed (M6).
    pub(super) fn erase(&self, locked: &mut Locked<'_>, slot: SlotIx, key: Hashed<'_>) {
        debug_assert!(self.may_change(locked, key), "L2");
        self.rewrite(locked, slot, self.slots().header(slot), &[], &[]);
        if !self.geometry.primary(key).contains(slot) {
            self.linger(locked, key.home(), families::filter_bit(&self.geometry, key), slot);
        }
        self.left_slot_of_home(locked, slot, key.home());
    }

    /// Writes key and value into a slot that is free, or whose occupant is updated or removed. The
    /// slot keeps its ghost (M2) and its `aux` from `before`: they are about other keys.
    pub(super) fn rewrite(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        before: Header,
        key: &[u8],
        value: &[u8],
    ) {
        let ghost = by_rule(Rule::GhostStays, before.ghost, 0);
        self.write(locked, slot, &Content { key, value, ghost, aux: before.aux });
    }

    /// Writes key and value over the content of `slot`. An occupant that is still there has been
    /// copied elsewhere, so it leaves its ghost behind.
    pub(super) fn overwrite(&self, locked: &Locked<'_>, slot: SlotIx, key: &[u8], value: &[u8]) {
        let before = self.slots().header(slot);
        if before.is_free() {
            return self.rewrite(locked, slot, before, key, value);
        }
        debug_assert!(has_room_for_ghost(before.ghost), "M3");
        let (_, occupant) = self.slots().occupant(slot);
        let moved = self.geometry.hashed(&occupant);
        let ghost = by_rule(Rule::Ghost, moved.ghost(), before.ghost);
        let begun = |index: &mut &Index| {
            index.region.add(move_counter_word(moved.home()));
            // Pairs with R4: a reader that sees the slot overwritten sees the count. A reader that
            // sees the count by R3 sees the copy, or its slot being written: the fence before W3 of
            // the copy came earlier.
            fence(Ordering::Release);
        };
        let content = Content { key, value, ghost, aux: before.aux };
        // M4
        in_order(Rule::CountBeforeErase, self, begun, |index| index.write(locked, slot, &content));
        let guard = self.guard_of(slot, moved);
        self.push_trace(self.grace.due_ns(Rule::GhostGrace), Trace::Ghost { slot, guard });
    }

    /// Notes the key that was just written into a slot, unless a ghost there keeps it from moving.
    pub(super) fn note(&self, slot: SlotIx, key: Hashed<'_>) {
        self.notes.learn(slot, Note::of_key(&self.geometry, slot, key));
    }

    /// Replaces a slot's content. All slot writes of an index go through here.
    pub(super) fn write(&self, locked: &Locked<'_>, slot: SlotIx, content: &Content<'_>) {
        debug_assert!(self.may_write(locked, slot), "L1: {slot:?} is written without its lock");
        // What is erased stands elsewhere (M1), or a remove that is cut off takes effect.
        let keep = || if content.key.is_empty() { None } else { self.undo.keep(self.slots(), slot) };
        let free = |undo: Option<Undo<'_>>| undo.into_iter().for_each(Undo::free);
        // U1
        let mut undo = obey(Rule::Undo, || obey(Rule::UndoFirst, keep));
        disobey(Rule::UndoStays, || free(undo.take()));
        self.slots().write(slot, content);
        disobey(Rule::UndoFirst, || free(keep()));
        // U2
        free(undo);
        let is_stuck = !has_room_for_ghost(content.ghost);
        self.notes.set(
            slot,
            match content.key {
                [] => Note::Free,
                _ if is_stuck => Note::Stuck,
                _ => Note::Unknown,
            },
        );
    }
}
