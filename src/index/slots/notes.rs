//! What the server remembers of each main slot, so that a search for room need not read and hash the
//! keys in other slots.
//!
//! A note is a hint. Whoever writes a slot, under its lock, notes what it wrote. A search holds no
//! lock, so it may read a note that is out of date, or leave one. A path is checked again under its
//! locks (L4), and notes along a path that was not good are forgotten. After a takeover every slot is
//! unknown until somebody looks.

use crate::faults::{Rule, kept};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use std::sync::atomic::{AtomicU8, Ordering};

/// One slot's note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Nothing is known.
    Unknown,
    /// The slot has no key.
    Free,
    /// The slot has a ghost, so its key cannot be moved (M3).
    Stuck,
    /// Its key is displaced.
    Displaced,
    /// Its key's home begins this number of slots before it.
    AtHome(u8),
}

/// Whether the occupant of a slot with this ghost may be moved (M3).
pub(crate) fn has_room_for_ghost(ghost: u8) -> bool {
    kept(Rule::OneGhost, || ghost == 0)
}

/// The first number that stands for [`Note::AtHome`].
const AT_HOME: u8 = 3;
/// Set if the slot has a ghost, beside the note of its key.
const STUCK: u8 = 1 << 7;

impl Note {
    const fn to_byte(self) -> u8 {
        match self {
            Note::Unknown => 0,
            Note::Free => 1,
            Note::Displaced => 2,
            Note::Stuck => STUCK,
            Note::AtHome(distance) => AT_HOME + distance,
        }
    }

    fn from_byte(byte: u8) -> Note {
        match byte {
            // As most are.
            AT_HOME..STUCK => Note::AtHome(byte - AT_HOME),
            0 => Note::Unknown,
            1 => Note::Free,
            2 => Note::Displaced,
            _ => Note::Stuck,
        }
    }

    /// The note of a slot with this key and no ghost.
    #[inline(always)]
    pub fn of_key(geometry: &Geometry, slot: SlotIx, key: Hashed<'_>) -> Note {
        let primary = geometry.primary(key);
        // A window has at most 64 slots.
        if primary.contains(slot) { Note::AtHome((slot.0 - primary.first.0) as u8) } else { Note::Displaced }
    }
}

/// The first slot of the primary window of the key in this slot ([`Note::AtHome`]).
#[inline(always)]
pub(crate) fn home_slot(slot: SlotIx, distance: u8) -> SlotIx {
    SlotIx(slot.0.saturating_sub(distance.into()))
}

/// A note for each main slot.
#[derive(Debug)]
pub(crate) struct Notes(Box<[AtomicU8]>);

impl Notes {
    pub fn new(main_slots: u64) -> Notes {
        // All are unknown: the memory is untouched.
        Notes(bytemuck::zeroed_slice_box(main_slots as usize))
    }

    #[inline]
    pub fn of(&self, slot: SlotIx) -> Note {
        Note::from_byte(self.byte(slot))
    }

    /// The note of the slot's key, whether the slot has a ghost or not.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn of_key_in(&self, slot: SlotIx) -> Note {
        Note::from_byte(self.byte(slot) & !STUCK)
    }

    /// Notes that a slot has no ghost any more. The caller holds its lock.
    #[inline]
    pub fn take_ghost(&self, slot: SlotIx) {
        if let Some(byte) = self.0.get(slot.0 as usize) {
            byte.store(byte.load(Ordering::Relaxed) & !STUCK, Ordering::Relaxed);
        }
    }

    #[inline]
    fn byte(&self, slot: SlotIx) -> u8 {
        // Relaxed, here and below: a hint.
        self.0.get(slot.0 as usize).map_or(Note::Unknown.to_byte(), |byte| byte.load(Ordering::Relaxed))
    }

    /// The first of these main slots that has no key. `is_free` is asked about slots without a note.
    #[inline(always)]
    pub fn first_free(&self, window: Window, is_free: impl Fn(SlotIx) -> bool) -> Option<SlotIx> {
        const UNKNOWN: u8 = Note::Unknown.to_byte();
        const FREE: u8 = Note::Free.to_byte();
        let first = window.first.0 as usize;
        let these = &self.0[first..first + window.slots as usize];
        for (number, note) in (0..).zip(these) {
            let slot = window.slot(number);
            match note.load(Ordering::Relaxed) {
                FREE => return Some(slot),
                UNKNOWN if is_free(slot) => return Some(slot),
                _ => {}
            }
        }
        None
    }

    /// Notes what was written into a slot, and whether it has a ghost beside a key. Overflow slots have no
    /// notes.
    #[inline]
    pub fn set(&self, slot: SlotIx, note: Note, is_stuck: bool) {
        if let Some(byte) = self.0.get(slot.0 as usize) {
            byte.store(note.to_byte() | if is_stuck { STUCK } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Notes what was seen without the slot's lock, unless a writer has noted something since.
    pub fn learn(&self, slot: SlotIx, note: Note) {
        if let Some(byte) = self.0.get(slot.0 as usize) {
            let (unknown, note) = (Note::Unknown.to_byte(), note.to_byte());
            let _ = byte.compare_exchange(unknown, note, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Forgets what is noted of these slots.
    pub fn forget(&self, slots: &[SlotIx]) {
        slots.iter().for_each(|&slot| self.set(slot, Note::Unknown, false));
    }
}
