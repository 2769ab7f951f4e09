//! The memory into which long values are READ.
//!
//! A handle registers it when it first READs a long value, as long as the value needs, rounded up to a power of two. It
//! grows with the values. Up to [`KEPT`] bytes are kept. Longer memory is given back when [`PATIENCE`] values in a row
//! would have fitted a quarter of it. Registering takes the system some time for each page, so it is not done for each
//! value.

#![allow(unsafe_code)]

use crate::client::lanes::ReadWanted;
use crate::fabric::Stretch;
use crate::sink::Sink;
use crate::verbs::device::{Access, Buffer, ProtectionDomain};
use crate::verbs::error::SetupError;
use ibverbs_sys::ibv_sge;
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes that are kept, however short the values are.
const KEPT: usize = 1 << 20;
/// The shortest memory, in bytes.
const SHORTEST: usize = 64 << 10;
/// Values in a row that need a quarter at most, before memory is given back.
const PATIENCE: u32 = 64;

/// The memory of one handle.
#[derive(Debug, Default)]
pub(crate) struct LongLanding {
    memory: Option<Arc<Buffer>>,
    need: LongNeed,
}

impl LongLanding {
    /// Makes room for a value of this length, registered with `domain`. It may drop the old memory, so no READ into
    /// that may be in flight.
    pub fn make_room(&mut self, bytes: usize, domain: &Arc<ProtectionDomain>) -> Result<(), SetupError> {
        let have = self.memory.as_ref().map_or(0, |memory| memory.cell_bytes());
        if let Some(bytes) = self.need.change(have, bytes) {
            // The old memory is dropped first, so that the limit on locked memory need not cover both.
            self.memory = None;
            self.memory = Some(Arc::new(Buffer::new(domain.clone(), 1, bytes, Access::LOCAL)?));
        }
        Ok(())
    }

    pub fn memory(&self) -> Option<&Arc<Buffer>> {
        self.memory.as_ref()
    }

    /// Copies the first bytes into `out`.
    ///
    /// # Safety
    /// No READ into the memory is in flight.
    pub unsafe fn copy(&self, bytes: usize, out: &mut impl Sink) {
        if let Some(memory) = &self.memory {
            // SAFETY: the caller's promise.
            out.put(unsafe { memory.bytes(0, bytes) });
        }
    }
}

impl Buffer {
    /// The landing of these bytes of a value.
    pub fn landing_of(&self, wanted: ReadWanted) -> ibv_sge {
        let ReadWanted::Bytes { len, at, .. } = wanted else { unreachable!("windows land elsewhere") };
        self.element_at(0, at as usize, len as usize)
    }
}

/// How much memory was needed lately.
#[derive(Debug, Default)]
struct LongNeed {
    /// Values in a row that a quarter has room for, and the longest of them.
    short: u32,
    longest: usize,
}

impl LongNeed {
    /// The length of the memory that replaces `have` bytes, for a value of `bytes`. `None` if the memory stays.
    fn change(&mut self, have: usize, bytes: usize) -> Option<usize> {
        let room = |bytes: usize| bytes.next_power_of_two().max(SHORTEST);
        if bytes > have {
            *self = LongNeed::default();
            return Some(room(bytes));
        }
        if have <= KEPT || bytes > have / 4 {
            *self = LongNeed::default();
            return None;
        }
        self.longest = self.longest.max(bytes);
        self.short += 1;
        if self.short < PATIENCE {
            return None;
        }
        let longest = std::mem::take(self).longest;
        Some(room(longest).max(KEPT))
    }
}

/// The READs that bring these bytes, one stretch after the other: one READ for each, if the device carries that many
/// bytes at a time.
pub(crate) fn pieces(stretches: &[Stretch], message_max: usize) -> SmallVec<[ReadWanted; 4]> {
    let mut pieces = SmallVec::new();
    let mut before = 0;
    for &Stretch { offset, len } in stretches {
        pieces.extend((0..len).step_by(message_max).map(|at| {
            let len = message_max.min(len - at) as u32;
            ReadWanted::Bytes { offset: offset + at as u64, len, at: (before + at) as u32 }
        }));
        before += len;
    }
    pieces
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Memory grows at once. It shrinks after many values that are much shorter, but not below what is kept.
    #[test]
    fn memory_follows_the_values() {
        let (mut need, mut have) = (LongNeed::default(), 0);
        let mut ask = |bytes: usize, times: u32| {
            for _ in 0..times {
                have = need.change(have, bytes).unwrap_or(have);
                assert!(have >= bytes);
            }
            have
        };
        assert_eq!(ask(1, 1), SHORTEST);
        assert_eq!(ask(SHORTEST, 100), SHORTEST);
        assert_eq!(ask(SHORTEST + 1, 1), 2 * SHORTEST);
        assert_eq!(ask(KEPT, 1), KEPT);
        assert_eq!(ask(1, 1_000), KEPT, "so much is kept");
        assert_eq!(ask((64 << 20) - 5, 1), 64 << 20);
        assert_eq!(ask(3 << 20, PATIENCE - 1), 64 << 20);
        assert_eq!(ask(17 << 20, 1), 64 << 20, "more than a quarter");
        assert_eq!(ask(3 << 20, PATIENCE - 1), 64 << 20, "counted from there");
        assert_eq!(ask(1 << 20, 1), 4 << 20, "room for the longest of them");
        assert_eq!(ask(100, PATIENCE), KEPT);
    }

    /// Pieces follow each other, and only the last of a value is shorter than the device allows. Values
    /// lie side by side.
    #[test]
    fn pieces_of_values() {
        for (len, most) in
            [(1, 4096), (4096, 4096), (4097, 4096), (64 << 20, 1 << 23), ((64 << 20) - 1, 4096)]
        {
            let values = [(1 << 40, len), (1 << 30, 17)].map(|(offset, len)| Stretch { offset, len });
            let all = pieces(&values, most);
            assert_eq!(all.len(), len.div_ceil(most) + 1);
            let mut next = 0;
            for piece in all {
                let ReadWanted::Bytes { offset, len: bytes, at } = piece else { panic!("{piece:?}") };
                let is_first = next < len;
                let begins = if is_first { (1 << 40) + next as u64 } else { 1 << 30 };
                assert_eq!((offset, at as usize), (begins, next));
                assert!(!is_first || bytes as usize == most || next + bytes as usize == len);
                next += bytes as usize;
            }
            assert_eq!(next, len + 17);
        }
    }
}
