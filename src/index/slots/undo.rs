//! Undo lines: they let the next server undo a slot write that a killed server left half done.
//!
//! A line keeps the image of a slot with a key in it, from before the slot's stamp becomes odd (U1)
//! until after it is even again (U2). Slot writes are short, so a thread that finds every line in
//! use waits for one.

use super::reader::{SlotCopy, SlotReader};
use super::writer::{SlotWriter, Target};
use crate::base::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::faults::{Rule, broken, kept};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::{Image, check};
use crate::layout::undo::{UNDO_LINES, line_word, name, named};
use crate::layout::words;
use crate::region::{Region, StoreWords};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

/// The undo lines of a table, and which of them are in use. All segments share them.
#[derive(Clone, Debug)]
pub(crate) struct UndoLines {
    all: Arc<[Line; UNDO_LINES]>,
}

/// Locked while a thread uses the undo line with this number (U3). Each lies in a line of its own:
/// threads that use different undo lines do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Mutex<()>);

std::thread_local! {
    /// The undo line that this thread used last. It is probably in the thread's cache.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// An undo line that keeps a slot's image.
#[must_use]
pub(crate) struct Undo<'a> {
    line: StoreWords<'a>,
    /// Held until the line is free again.
    _used: Option<MutexGuard<'a, ()>>,
}

impl UndoLines {
    pub fn new() -> UndoLines {
        UndoLines { all: Arc::new(std::array::from_fn(|_| Line::default())) }
    }

    /// Keeps the slot's image, for a thread that is about to write the slot and holds its lock.
    /// `None` if nothing can be lost: the slot is free, or a dead writer has left it odd.
    pub fn keep<'a>(&'a self, region: &'a Region, geometry: &Geometry, slot: SlotIx) -> Option<Undo<'a>> {
        let target = SlotWriter::new(region, geometry).target(geometry.shape(), slot);
        self.keep_target(region, geometry, &target)
    }

    /// Keeps the image of a target.
    #[inline(always)]
    pub fn keep_target<'a>(
        &'a self,
        region: &'a Region,
        geometry: &Geometry,
        target: &Target<'_>,
    ) -> Option<Undo<'a>> {
        let before = target.before();
        if before.is_free() || !before.stamp.is_multiple_of(2) {
            return None;
        }
        let (number, used) = self.claim();
        let line = region.stores(line_word(target.shape, number), 1 + target.shape.words());
        line.copy(1, target.words());
        // The line names a slot only when it has all of its image.
        compiler_fence(Ordering::Release);
        line.store(0, name(geometry.numbered_through(target.slot)));
        // U1: all this before W1.
        compiler_fence(Ordering::Release);
        Some(Undo { line, _used: used })
    }

    /// A line that no other thread uses (U3), and its number.
    #[inline(always)]
    fn claim(&self) -> (usize, Option<MutexGuard<'_, ()>>) {
        let last = LAST.get() % UNDO_LINES;
        if broken(Rule::UndoClaim) {
            return (last, None);
        }
        match try_lock(&self.all[last].0) {
            Some(line) => (last, Some(line)),
            None => self.claim_another(last),
        }
    }

    #[cold]
    fn claim_another(&self, last: usize) -> (usize, Option<MutexGuard<'_, ()>>) {
        let mut others = (1..UNDO_LINES).map(|n| (last + n) % UNDO_LINES);
        let free = others.find_map(|n| Some((n, try_lock(&self.all[n].0)?)));
        // There are enough: a thread that has a line waits for nothing.
        let (number, line) = free.unwrap_or_else(|| (last, lock(&self.all[last].0)));
        LAST.set(number);
        (number, Some(line))
    }
}

impl Undo<'_> {
    /// Frees the line, because the slot is written (U2).
    #[inline(always)]
    pub fn free(self) {
        // U2: all this after W3.
        compiler_fence(Ordering::Release);
        self.line.store(0, 0);
    }
}

/// The slot's content that the undo line at this word keeps. `None` unless a writer died between W1 and W3 of the write
/// for which it was kept.
pub(crate) fn before_the_write(
    region: &Region,
    geometry: &Geometry,
    slot: SlotIx,
    line: usize,
) -> Option<SlotCopy> {
    let shape = geometry.shape();
    let image: Image = words::image(region.words(line + 1, shape.words()));
    let view = check(shape, geometry.identity(slot), &image).ok()?;
    let (header, stamp) = (view.header(), SlotReader::new(region, geometry).header(slot).stamp);
    let is_torn = kept(Rule::RestoreStamp, || stamp == header.stamp.wrapping_add(1));
    is_torn.then(|| SlotReader::new(region, geometry).owned(view))
}

/// Applies U4 to each undo line. `restore` restores a slot, and returns whether it was torn. Returns how many were.
pub(crate) fn restore_all(
    region: &Region,
    geometry: &Geometry,
    mut restore: impl FnMut(SlotIx, usize) -> Option<bool>,
) -> u64 {
    let mut torn = 0;
    for line in (0..UNDO_LINES).map(|line| line_word(geometry.shape(), line)) {
        let name = region.load(line);
        if name == 0 {
            continue;
        }
        let restored = named(geometry.slots_in_all(), name).map_or(Some(false), |slot| restore(slot, line));
        if let Some(was_torn) = restored {
            torn += u64::from(was_torn);
            compiler_fence(Ordering::Release);
            region.store(line, 0);
        }
    }
    torn
}
