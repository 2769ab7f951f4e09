//! The fabric of one host: a READ is loads from a mapping.
//!
//! A slot is read as a seqlock: stamp, words, stamp. The reader's fences pair with those of
//! the slot writer (`index/slots/writer.rs`): if any word loaded belongs to a later write than the first
//! stamp, the second load of the stamp shows it. No CRC, no clock, no system call; nothing is copied but
//! a matching slot.

use super::direct::{self, at_rest};
use super::{BegunLook, Direct, Fabric, ReadCounts, ReadId, Stretch};
use crate::get::{Landed, Look, Proof};
use crate::layout::compare::{self, Loadable};
use crate::layout::control::move_counter_word;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::long::SoughtKey;
use crate::layout::mapped;
use crate::layout::words::{self, Words};
use crate::outcome::ReadError;

use crate::base::sync::{Ordering, fence};
use crate::region::Region;
use crate::sink::Sink;
use smallvec::SmallVec;
use std::time::Duration;

/// Loads from a mapped region. Cheap to make; one per thread.
#[derive(Clone, Debug)]
pub struct Shm<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
    /// READs posted and not yet polled.
    posted: SmallVec<[(ReadId, Window); CREDITS]>,
}

/// More in flight than this buys nothing: a core has 10 to 16 line-fill buffers.
const CREDITS: usize = 16;

impl<'a> Shm<'a> {
    /// A fabric over a region with this geometry.
    pub fn new(region: &'a Region, geometry: &'a Geometry) -> Shm<'a> {
        Shm { region, geometry, posted: SmallVec::new() }
    }

    /// [`Fabric::glance`] for a key that is hashed, without a fabric.
    #[inline(always)]
    pub(crate) fn glance_from(
        region: &Region,
        geometry: &Geometry,
        key: Hashed<'_>,
        value: &mut impl Sink,
    ) -> Option<bool> {
        direct::glance(region, geometry, key, value)
    }

    /// Asks for the first lines of a window.
    #[inline]
    fn expect_window(&self, window: Window) {
        self.region.expect(self.geometry.slot_word(window.first));
    }

    fn landed(&self) -> MappedSlots<'a> {
        MappedSlots { region: self.region, geometry: self.geometry }
    }
}

/// Slots in a mapping, read in place.
#[derive(Clone, Copy, Debug)]
pub struct MappedSlots<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
}

impl Landed for MappedSlots<'_> {
    #[inline]
    fn look(&mut self, slot: SlotIx, wanted: SoughtKey<'_>, value: &mut impl Sink) -> Look {
        let (shape, key) = (self.geometry.shape(), wanted.key.key());
        let words = self.region.words(self.geometry.slot_word(slot), shape.words());
        let read = at_rest(words, || {
            let header = words::header(words);
            let shows = || match header.is_long_key() {
                true => {
                    mapped::long_key(shape, words).is_some_and(|long| wanted.may_be(self.geometry, &long))
                }
                false => compare::begins_with(shape, words, key),
            };
            if usize::from(header.klen) != key.len() || !shows() {
                return Look::Other(header);
            }
            match mapped::reference(shape, words, &header, value) {
                Some(reference) => Look::Reference(reference),
                None if mapped::value_into(shape, words, &header, value).is_ok() => Look::Match,
                None => Look::Torn,
            }
        });
        read.unwrap_or(Look::Torn)
    }

    fn entry(&self, slot: SlotIx) -> Option<[u64; 2]> {
        let words = self.region.words(self.geometry.slot_word(slot), self.geometry.shape().words());
        at_rest(words, || [2, 3].map(|word| Words::load(words, word)))
    }

    fn occupant(&self, slot: SlotIx) -> Option<First> {
        let shape = self.geometry.shape();
        let words = self.region.words(self.geometry.slot_word(slot), shape.words());
        at_rest(words, || {
            let (header, key) = mapped::header_and_key(shape, words).ok()?;
            match header.is_long_key() {
                true => mapped::long_key(shape, words).map(|long| long.first()),
                false => (!header.is_free()).then(|| self.geometry.hashed(&key).first()),
            }
        })?
    }
}

impl Direct for Shm<'_> {
    #[inline(always)]
    fn is_direct(&self) -> bool {
        true
    }

    #[inline(always)]
    fn expect(&self, key: &[u8]) -> BegunLook {
        direct::expect(self.region, self.geometry, key)
    }

    #[inline(always)]
    fn glance(&mut self, key: &[u8], value: &mut impl Sink) -> Option<bool> {
        let geometry = self.geometry;
        if !geometry.can_glance(key) {
            return None;
        }
        direct::glance(self.region, geometry, geometry.hashed(key), value)
    }

    #[inline(always)]
    fn glance_expected(&mut self, key: &[u8], expected: &BegunLook, value: &mut impl Sink) -> Option<bool> {
        direct::glance_expected(self.region, self.geometry, key, expected, value)
    }

    #[inline(always)]
    fn get_directly(
        &mut self,
        key: Hashed<'_>,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        direct::look(self.region, self.geometry, key.key(), key.first(), value, reads)
    }

    #[inline(always)]
    fn get_unhidden(
        &mut self,
        key: &[u8],
        expected: &BegunLook,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        direct::look_unhidden(self.region, self.geometry, key, expected, value, reads)
    }
}

impl<'f> Fabric for Shm<'f> {
    type Landed<'a>
        = MappedSlots<'f>
    where
        Self: 'a;
    const EXACT: bool = true;
    type Mark = u64;
    /// The memory is there, or the process is not.
    type Error = ReadError;

    fn credits(&self) -> usize {
        CREDITS
    }

    #[inline]
    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        debug_assert!(self.posted.len() + reads.len() <= CREDITS);
        self.posted.extend_from_slice(reads);
        for &(_, window) in reads {
            // The first lines of each window come in side by side; the rest follows when it is looked at.
            self.expect_window(window);
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut take: impl FnMut(ReadId, &mut MappedSlots<'f>)) -> Result<(), ReadError> {
        let mut landed = self.landed();
        for (token, _) in self.posted.drain(..) {
            take(token, &mut landed);
        }
        Ok(())
    }

    #[inline]
    fn mark(&mut self, home: u64) -> u64 {
        let begun = self.region.load(move_counter_word(home));
        // R3: the pass's loads come after. Pairs with the fence before W3 of the copy
        // (`index/slots/writer.rs`), which comes before the counter's add: whoever sees the count sees
        // the copy. X9: of a second look, after the bytes of the value, too. Pairs with the fence before
        // memory is used again (`index/extents/mod.rs`).
        fence(Ordering::Acquire);
        begun
    }

    #[inline]
    fn proof(&mut self, home: u64, mark: u64) -> Proof {
        // R4: the counter is loaded after the pass's loads. Pairs with the fence after the
        // counter's add (`index/homes/mod.rs`): whoever saw a source overwritten, or a filter bit
        // cleared, sees the count.
        fence(Ordering::Acquire);
        Proof::by_counter(mark, self.region.load(move_counter_word(home)))
    }

    /// Nothing on this host goes by time: the key is looked up again.
    fn took_less(&mut self, _mark: u64, _allowance: Duration) -> bool {
        false
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        stretches.iter().for_each(|bytes| self.region.append_bytes(bytes.offset, bytes.len, out));
        Ok(())
    }

    #[inline]
    fn read<R>(
        &mut self,
        window: Window,
        take: impl FnOnce(&mut MappedSlots<'f>) -> R,
    ) -> Result<R, ReadError> {
        self.expect_window(window);
        Ok(take(&mut self.landed()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    /// Bytes that are at rest and make no sense (a damaged region: no server writes such lengths): the slot holds
    /// the key, and says that its value is longer than the slot. That is no hit, in slots of one line and of two.
    #[test]
    fn impossible_lengths_are_no_hit() {
        for (key_max, value_max) in [(8, 8), (8, 30), (8, 90)] {
            let config = Config { key_max, value_max, size: TableSize::Slots(16), ..Config::default() };
            let geometry = config.geometry().unwrap();
            let region = Region::private(geometry.region_bytes());
            let (slot, payload) = (SlotIx(3), geometry.shape().payload_max() as u64);
            let base = geometry.slot_word(slot);
            let shm = Shm::new(&region, &geometry);
            for (vlen, hits) in [(payload - 8, true), (payload - 7, false), (0xffff, false)] {
                region.store(base + 1, 8 | vlen << 16);
                region.store(base + 2, u64::from_le_bytes(*b"mykeyis8"));
                let mut value = vec![1, 2, 3];
                let wanted = SoughtKey { key: geometry.hashed(b"mykeyis8"), others: &[] };
                let look = shm.landed().look(slot, wanted, &mut value);
                assert_eq!(look == Look::Match, hits, "{value_max}: {vlen}: {look:?}");
                assert_eq!(look == Look::Torn, !hits, "{value_max}: {vlen}: {look:?}");
                assert!(!hits || value.len() as u64 == vlen);
            }
        }
    }
}
