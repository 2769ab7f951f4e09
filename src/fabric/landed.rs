//! Windows that a fabric has copied into private memory: slots validated by stamps and CRC.

use crate::get::{Landed, Look};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::slot::check;

/// A landed window. Nobody writes the memory it borrows any more.
#[derive(Debug)]
pub struct LandedWindow<'a> {
    geometry: &'a Geometry,
    window: Window,
    words: &'a [u64],
}

impl<'a> LandedWindow<'a> {
    /// The window that was READ into `words`.
    ///
    /// # Panics
    /// When `words` is shorter than the window.
    pub fn new(geometry: &'a Geometry, window: Window, words: &'a [u64]) -> LandedWindow<'a> {
        assert!(words.len() >= window.slots as usize * geometry.shape().words(), "a window's worth of words");
        LandedWindow { geometry, window, words }
    }
}

impl Landed for LandedWindow<'_> {
    #[inline]
    fn look(&mut self, slot: SlotIx, key: &[u8], value: &mut Vec<u8>) -> Look {
        debug_assert!(self.window.contains(slot));
        let shape = self.geometry.shape();
        let at = (slot.0 - self.window.first.0) as usize * shape.words();
        match check(shape, self.geometry.identity(slot), &self.words[at..at + shape.words()]) {
            Err(_) => Look::Torn,
            Ok(view) if view.holds(key) => {
                view.value_into(value);
                Look::Match
            }
            Ok(view) => Look::Other(view.header()),
        }
    }
}
