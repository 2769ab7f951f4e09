//! Windows that a fabric has copied into private memory: slots validated by stamps and CRC.

use crate::get::{Landed, Look};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::First;
use crate::layout::long::SoughtKey;
use crate::layout::segment;
use crate::layout::slot::{View, check};
use crate::sink::Sink;

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

    fn slot(&self, slot: SlotIx) -> &'a [u64] {
        let words = self.geometry.shape().words();
        let at = (slot.0 - self.window.first.0) as usize * words;
        &self.words[at..at + words]
    }

    /// Whether the slot has the key, or what it has of a long one.
    #[inline]
    fn shows(&self, view: &View<'_>, wanted: SoughtKey<'_>) -> bool {
        let key = wanted.key.key();
        if usize::from(view.header().klen) != key.len() {
            return false;
        }
        match view.long_key() {
            Some(long) => wanted.may_be(self.geometry, &long),
            None => view.holds(key),
        }
    }
}

impl Landed for LandedWindow<'_> {
    #[inline]
    fn look(&mut self, slot: SlotIx, wanted: SoughtKey<'_>, value: &mut impl Sink) -> Look {
        debug_assert!(self.window.contains(slot));
        match check(
            self.geometry.shape(),
            self.geometry.identity_in(slot, self.window.incarnation),
            self.slot(slot),
        ) {
            Err(_) => Look::Torn,
            Ok(view) if self.shows(&view, wanted) => {
                view.life_into(value);
                match view.reference() {
                    Some(reference) => Look::Reference(reference),
                    None => {
                        view.value_into(value);
                        Look::Match
                    }
                }
            }
            Ok(view) => Look::Other(view.header()),
        }
    }

    /// Comparing keys costs less than the CRC of a slot.
    #[inline]
    fn glance(&self, window: Window, wanted: SoughtKey<'_>) -> Option<SlotIx> {
        debug_assert_eq!(window, self.window);
        let shape = self.geometry.shape();
        let shows =
            |slot| View::consistent(shape, self.slot(slot)).is_ok_and(|view| self.shows(&view, wanted));
        window.iter().find(|slot| shows(*slot))
    }

    fn entry(&self, slot: SlotIx) -> Option<[u64; 2]> {
        let view = check(self.geometry.shape(), self.geometry.identity(slot), self.slot(slot)).ok()?;
        segment::words(&view.key(), &view.value())
    }

    fn occupant(&self, slot: SlotIx) -> Option<First> {
        let view = View::consistent(self.geometry.shape(), self.slot(slot)).ok()?;
        let is_there = !view.header().is_free() && view.header().stamp.is_multiple_of(2);
        is_there.then(|| match view.long_key() {
            Some(long) => long.first(),
            None => self.geometry.hashed(&view.key()).first(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::slot::{Content, encode};

    /// A glance finds the slot of a key without proof, and finds nothing in bytes with impossible lengths.
    #[test]
    fn glances() {
        let config = Config { size: TableSize::Slots(64), key_max: 8, value_max: 8, ..Config::default() };
        let geometry = config.geometry().unwrap();
        let (shape, window) = (geometry.shape(), geometry.window(0));
        let mut words = vec![0; window.slots as usize * shape.words()];
        let at = |n: u64| SlotIx(window.first.0 + n);
        let put = |words: &mut [u64], n: u64, key: &[u8]| {
            let content = Content { key, value: (&b"value"[..key.len()]).into(), ..Content::default() };
            let image = encode(shape, geometry.identity(at(n)), 4, &content);
            words[n as usize * shape.words()..][..shape.words()].copy_from_slice(&image);
        };
        (0..4).for_each(|n| put(&mut words, n, &[b'a' + n as u8; 5]));
        let mut value = Vec::new();
        let geometry = &geometry;
        fn wanted<'a>(geometry: &Geometry, key: &'a [u8]) -> SoughtKey<'a> {
            SoughtKey { key: geometry.hashed(key), others: &[] }
        }
        let landed = |words: &[u64], key: &[u8], value: &mut Vec<u8>| {
            let mut landed = LandedWindow::new(geometry, window, words);
            let likely = landed.glance(window, wanted(geometry, key));
            likely.map(|slot| (slot, landed.look(slot, wanted(geometry, key), value)))
        };
        assert_eq!(landed(&words, b"ccccc", &mut value), Some((at(2), Look::Match)));
        assert_eq!(value, b"value");
        assert_eq!(landed(&words, b"cccc", &mut value), None);
        assert_eq!(landed(&words, b"zzzzz", &mut value), None);
        // The CRC is wrong: it is still the first to look at, and is no hit.
        words[2 * shape.words() + 3] ^= 1 << 8;
        assert_eq!(landed(&words, b"ccccc", &mut value), Some((at(2), Look::Torn)));
        // Nor is a free slot believed whose CRC is wrong.
        put(&mut words, 3, b"");
        words[3 * shape.words() + 1] ^= 1 << 40;
        let look =
            LandedWindow::new(geometry, window, &words).look(at(3), wanted(geometry, b"ccccc"), &mut value);
        assert_eq!(look, Look::Torn);
        // Lengths that go beyond the slot.
        words[2 * shape.words() + 1] = u64::MAX;
        assert_eq!(landed(&words, b"ccccc", &mut value), None);
    }

    /// Too few words are refused at once, not when the slot that is missing is looked at.
    #[test]
    #[should_panic(expected = "a window's worth of words")]
    fn a_window_is_whole() {
        let geometry = Config { size: TableSize::Slots(64), ..Config::short() }.geometry().unwrap();
        let window = geometry.window(0);
        let words = vec![0; window.slots as usize * geometry.shape().words() - 1];
        let _ = LandedWindow::new(&geometry, window, &words);
    }
}
