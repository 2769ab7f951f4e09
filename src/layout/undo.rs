//! Undo lines: each has room for one slot's image, kept while the slot is written over (U1, U2).
//!
//! ```text
//! word 0     number of the slot plus 1; 0: the line keeps nothing
//! word 1..   the slot's words, as they were at rest
//! ```
//!
//! Lines begin at multiples of 64 bytes. The area of all lines begins behind the control page.

use super::slot::SlotShape;
use super::window::SlotIx;
use super::{LINE, PAGE, WORD};

/// The number of undo lines. Under the model checker there is one, so that threads wait for it.
pub const UNDO_LINES: usize = if cfg!(loom) { 1 } else { 64 };
/// Byte offset of the first undo line in a region.
pub const UNDO_OFFSET: usize = 2 * PAGE;

/// Bytes in an undo line.
#[inline]
fn line_bytes(shape: SlotShape) -> usize {
    (WORD + shape.bytes()).next_multiple_of(LINE)
}

/// Byte offset of slot 0: behind the last undo line.
#[inline]
pub fn end(shape: SlotShape) -> u64 {
    (UNDO_OFFSET + UNDO_LINES * line_bytes(shape)) as u64
}

/// The number of the region's word that says whose image undo line `line` keeps. The image follows.
#[inline]
pub(crate) fn line_word(shape: SlotShape, line: usize) -> usize {
    (UNDO_OFFSET + line * line_bytes(shape)) / WORD
}

/// What the first word of an undo line says that keeps the image of this slot, numbered through.
#[inline]
pub(crate) fn name(slot: SlotIx) -> u64 {
    slot.0 + 1
}

/// The slot that the first word of an undo line names; the table has `slots` of them. `None` if the line keeps
/// nothing, or the table has no such slot.
pub(crate) fn named(slots: u64, word: u64) -> Option<SlotIx> {
    word.checked_sub(1).filter(|&number| number < slots).map(SlotIx)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// These positions are part of the format. The table begins on a page.
    #[test]
    fn undo_lines_have_fixed_places() {
        for (bytes, line) in [(32, 64), (64, 128), (128, 192), (4096, 4160)] {
            let shape = SlotShape::from_bytes(bytes).unwrap();
            let words = [0, 1, 63].map(|n| line_word(shape, n));
            assert_eq!(words, [1024, 1024 + line / 8, 1024 + 63 * line / 8]);
            assert_eq!((end(shape), end(shape) % PAGE as u64), (8192 + 64 * line as u64, 0));
        }
    }

    /// A line names each slot of the table, or none.
    #[test]
    fn lines_name_slots_of_the_table() {
        let (first, last) = (SlotIx(0), SlotIx(99));
        let named = [0, name(first), name(last), name(last) + 1, u64::MAX].map(|word| named(100, word));
        assert_eq!(named, [None, Some(first), Some(last), None, None]);
    }
}
