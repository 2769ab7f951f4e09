//! Undo lines: they let the next server undo a slot write that a killed server left half done.
//!
//! A line keeps the image of a slot with a key in it, from before the slot's stamp becomes odd (U1)
//! until after it is even again (U2). Slot writes are short, so a thread that finds every line in
//! use waits for one.

use super::writer::SlotWriter;
use crate::faults::{Rule, broken};
use crate::layout::geometry::SlotIx;
use crate::layout::undo::{UNDO_LINES, line_word, name};
use crate::layout::words;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

/// The undo lines of a table, and which of them are in use. All segments share them.
#[derive(Clone, Debug)]
pub(super) struct UndoLines {
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
pub(super) struct Undo<'a> {
    slots: SlotWriter<'a>,
    word: usize,
    /// Held until the line is free again.
    _line: Option<MutexGuard<'a, ()>>,
}

impl UndoLines {
    pub fn new() -> UndoLines {
        UndoLines { all: Arc::new(std::array::from_fn(|_| Line::default())) }
    }

    /// Keeps the slot's image, for a thread that is about to write the slot and holds its lock.
    /// `None` if nothing can be lost: the slot is free, or a dead writer has left it odd.
    #[inline(always)]
    pub fn keep<'a>(&'a self, slots: SlotWriter<'a>, slot: SlotIx) -> Option<Undo<'a>> {
        let words = slots.words(slot);
        let header = words::header(words);
        if header.is_free() || !header.stamp.is_multiple_of(2) {
            return None;
        }
        let (number, line) = self.claim();
        let word = line_word(slots.geometry.shape(), number);
        slots.region.copy(words, word + 1);
        // The line names a slot only when it has all of its image.
        compiler_fence(Ordering::Release);
        slots.region.store(word, name(slots.geometry, slot));
        // U1: all this before W1.
        compiler_fence(Ordering::Release);
        Some(Undo { slots, word, _line: line })
    }

    /// A line that no other thread uses (U3), and its number.
    #[inline]
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
        // Never too few: a thread that has a line waits for nothing.
        let (number, line) = free.unwrap_or_else(|| (last, lock(&self.all[last].0)));
        LAST.set(number);
        (number, Some(line))
    }
}

impl Undo<'_> {
    /// Lets the line keep nothing any more, because the slot is written (U2).
    #[inline]
    pub fn free(self) {
        // U2: all this after W3.
        compiler_fence(Ordering::Release);
        self.slots.region.store(self.word, 0);
    }
}
