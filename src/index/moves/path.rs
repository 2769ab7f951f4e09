//! Moves along a path (M1 to M5).
//!
//! | function | what it writes | counter (M4) | ghost left (M2) |
//! |---|---|---|---|
//! | `Homes::place` | a new key into a free slot, by `rewrite` | no | the slot's old one |
//! | `place_over` | a new key, over one copied away, by `overwrite` | up | that key's |
//! | `copy` | a key that moves, by `overwrite` | as `overwrite` | as `overwrite` |
//! | `Homes::vacate` | no key, over one copied away, by `overwrite` | up | that key's |
//! | `Homes::erase` | no key, over one removed, by `free` | no | the slot's old one |
//! | `Slots::rewrite`, `Slots::free` | a key over no key or itself, no key over one | no | the slot's old one |
//! | `Homes::overwrite` of a free slot | what is given | no | the slot's old one |
//! | `Homes::overwrite` of another slot | what is given, over a key copied away | up | that key's |
//! | `Slots::fill` | what is given: the last step of `overwrite` | no | the one given |
//! | `Slots::write` | what is given | no | the one given |
//!
//! `kept`, `obey`, `disobey`, `by_rule` and `in_order` are switches of `src/faults.rs`. In a real
//! build, what stands under `disobey` never runs, and all else is done as the rule demands.

use super::Moves;
use super::search::MovePath;
use crate::base::sync::{AtomicU64, Ordering};
use crate::faults::{AtOnce, Rule, broken, disobey, kept};
use crate::index::homes::count;
use crate::index::slots::{Displaced, DisplacedAt, Filling, Locked, Note, SlotWritten, has_room_for_ghost};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::{Content, Stored};
use crate::placement::families;
use smallvec::SmallVec;

impl Moves {
    /// Locks the slots of a path that was found without locks, and the windows of a key (L2).
    #[inline]
    pub fn lock_path(&self, path: &MovePath, key: Hashed<'_>) -> Locked<'_> {
        let mut set = self.slots().stripes_of_key(key);
        self.slots().add_path(&mut set, path);
        self.slots().lock(set)
    }

    /// Puts a new key into the first slot of a path, whose keys move one step on. The caller holds the path's locks,
    /// and has checked that the path is still good.
    #[inline]
    pub fn place_along(
        &self,
        locked: &mut Locked<'_>,
        path: &MovePath,
        movers: &[Hashed<'_>],
        key: Hashed<'_>,
        value: Stored<'_>,
    ) -> SlotWritten {
        self.move_along(locked, path, movers, |locked| match movers.first() {
            None => self.homes.place(locked, path[0], &key, &value),
            Some(&moved) => self.place_over(locked, path[0], moved, key, value),
        })
    }

    /// Moves the keys of a path one step on, and leaves its first slot free. The caller holds the path's locks, and has
    /// checked that the path is still good.
    pub fn free_along(&self, locked: &mut Locked<'_>, path: &MovePath, movers: &[Hashed<'_>]) -> SlotIx {
        if let Some(&moved) = movers.first() {
            self.move_along(locked, path, movers, |locked| self.homes.vacate(locked, path[0], moved));
        }
        path[0]
    }

    /// The hashes of the keys in the slots of a path, without its free end. The caller holds the path's locks.
    pub fn movers_along(&self, path: &MovePath) -> SmallVec<[Hashed<'static>; 4]> {
        let (_, from) = path.split_last().expect("a path has a slot");
        from.iter().map(|&slot| self.slots().reader().hash_in(slot)).collect()
    }

    /// Whether a path is still as the search saw it (L4). The caller holds its locks. `movers` are the keys that will
    /// be moved.
    pub fn still_good(&self, locked: &Locked<'_>, path: &MovePath, movers: &[Hashed<'_>]) -> bool {
        kept(Rule::PathCheck, || self.is_as_found(locked, path, movers))
    }

    fn is_as_found(&self, locked: &Locked<'_>, path: &MovePath, movers: &[Hashed<'_>]) -> bool {
        let &last = path.last().expect("a path has a slot");
        // L11
        self.slots().may_take(last)
            && movers.iter().zip(path.windows(2)).all(|(&mover, step)| {
                let (from, to) = (step[0], step[1]);
                let header = self.slots().header(from);
                !header.is_free()
                    && has_room_for_ghost(header.ghost)
                    && locked.covers(self.slots().home_slot(mover))
                    && families::may_move(self.geometry(), mover, from, to)
            })
    }

    /// Moves every occupant of the path one step on, starting at the free end. `finish` then
    /// overwrites `path[0]`, whose occupant has been copied away, by [`Moves::place_over`] or
    /// [`Homes::vacate`](super::Homes::vacate).
    pub fn move_along<'a, R>(
        &self,
        locked: &mut Locked<'a>,
        path: &MovePath,
        movers: &[Hashed<'_>],
        finish: impl FnOnce(&mut Locked<'a>) -> R,
    ) -> R {
        let mut filters = AtOnce::new(Rule::FilterBeforeCopy);
        let mut came_home: SmallVec<[(u64, u32, SlotIx); 4]> = SmallVec::new();
        let mut moved = None;
        for (step, &mover) in path.windows(2).zip(movers).rev() {
            let (from, to) = (step[0], step[1]);
            let left = self.copy(locked, mover, from, to, moved, &mut filters);
            if let Some((home, bit)) = left {
                came_home.push((home, bit, from));
            }
            moved = Some(mover);
        }
        let finished = finish(locked);
        filters.finish(|home| self.homes.set_filter(locked, home));
        // M5: their displaced copies are gone only now, so the grace time counts from here.
        for (home, bit, from) in came_home {
            self.homes.linger(locked, home, bit, from);
        }
        finished
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
        // (A test that breaks M1 erases the original first.)
        let taken: Option<Vec<_>> = broken(Rule::CopyBeforeErase).then(|| {
            let words = self.slots().words(from).iter().map(|word| word.load(Ordering::Relaxed));
            words.map(AtomicU64::new).collect()
        });
        debug_assert!(self.slots().may_change(locked, mover), "L2");
        let (primary, home) = (self.geometry().primary(mover), mover.home());
        let bit = families::filter_bit(self.geometry(), mover);
        disobey(Rule::CopyBeforeErase, || {
            let aux = self.slots().header(from).aux;
            self.slots().write(locked, from, &Content { aux, ..Content::default() });
        });
        match (primary.contains(from), primary.contains(to)) {
            (true, false) => {
                self.homes.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(to) });
                filters.step(home, |home| self.homes.set_filter(locked, home));
            }
            (false, false) => self.homes.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to)),
            (_, true) => {}
        }
        // M1: the copy is live before `from` is overwritten, by the next step or the caller.
        let copy = Filling::Copy(taken.as_deref().unwrap_or_else(|| self.slots().words(from)));
        self.homes.overwrite(locked, to, moved, copy, Note::of_key(self.geometry(), to, mover));
        count(&self.homes.counters().mine().moves);
        (!primary.contains(from) && primary.contains(to)).then_some((home, bit))
    }

    /// Puts a new key into a slot whose occupant `moved` was copied away.
    fn place_over(
        &self,
        locked: &mut Locked<'_>,
        slot: SlotIx,
        moved: Hashed<'_>,
        key: Hashed<'_>,
        value: Stored<'_>,
    ) -> SlotWritten {
        let note = Note::of_key(self.geometry(), slot, key);
        self.homes.name_displaced(locked, note, slot, &key);
        let written = self.homes.overwrite(locked, slot, Some(moved), Filling::Entry(key.key(), value), note);
        count(&self.homes.counters().mine().inserts);
        written
    }
}
