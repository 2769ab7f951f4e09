//! A table that grows: the directory of its segments, and what a home's header says of a segment
//! that is being split or merged.
//!
//! A **directory entry** is a slot of the table, with the same stamps and the same CRC. Its first
//! word of payload says where the keys of the entry are; the second, which use of that memory it is.
//!
//! ```text
//! key of the slot     bits 0..5    depth: how many bits of the directory hash all its keys share
//!                     bits 5..7    pending: 0 nothing, 1 a child (split), 2 the parent (merge)
//!                     bits 8..32   memory of the segment
//!                     bits 32..56  memory of the child or parent
//! value of the slot   bits 0..32   incarnation: which use of the segment's memory this is
//!                     bits 32..64  incarnation of the child or parent
//! ```
//!
//! The entry of a key is the one whose number is the low bits of the key's directory hash. The
//! directory word of the control page says how many bits these are. A reader that uses fewer is
//! told by the entry's depth.
//!
//! The **state of a home** is in `aux` of its home slot: bits 26..31 its depth, bit 31 whether it is
//! merged into the parent.

use super::geometry::{Geometry, SlotIx, Window};
use super::hash::DIRECTORY_BITS_MAX;
use super::slot::Content;

/// The bits of `aux` that are the state of a home.
pub const STATE_MASK: u32 = u32::MAX << DEPTH_SHIFT;
const DEPTH_SHIFT: u32 = 26;
const DEPTH_BITS: u32 = 5;
/// No depth is greater.
pub(crate) const DEPTH_MAX: u32 = DIRECTORY_BITS_MAX;
const MERGED: u32 = 1 << 31;

/// What a home's header says of splits and merges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeState {
    /// So many bits of the directory hash are those of the segment, for each key of this home that is
    /// in it, or was a moment ago.
    pub depth: u32,
    /// The keys of this home are in the parent.
    pub merged: bool,
}

impl HomeState {
    /// The state in the `aux` of a home slot.
    #[inline(always)]
    pub fn of(aux: u32) -> HomeState {
        HomeState { depth: aux >> DEPTH_SHIFT & ((1 << DEPTH_BITS) - 1), merged: aux & MERGED != 0 }
    }

    /// Whether a home with this `aux` has neither been split deeper than that nor merged.
    #[inline(always)]
    pub(crate) fn is_as_deep(aux: u32, depth: u32) -> bool {
        aux >> DEPTH_SHIFT == depth
    }

    /// Whether a key with this directory hash has gone to the other segment of a pair, whose entry has this depth; or is
    /// about to.
    pub(crate) fn has_gone(self, depth: u32, directory: u32) -> bool {
        self.merged || self.depth > depth && directory & low(self.depth) & !low(depth) != 0
    }

    /// `aux` with this state.
    pub fn in_aux(self, aux: u32) -> u32 {
        aux & !STATE_MASK | self.depth << DEPTH_SHIFT | if self.merged { MERGED } else { 0 }
    }
}

/// A segment as an entry names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The number of its memory.
    pub memory: u32,
    /// Which use of that memory it is.
    pub incarnation: u32,
}

/// The other segment of a split or merge under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// There is none.
    Nothing,
    /// Keys go to this child.
    Child(Named),
    /// Keys go back to this parent.
    Parent(Named),
}

impl Pending {
    /// The segment that is pending.
    #[inline]
    pub(crate) fn named(self) -> Option<Named> {
        match self {
            Pending::Nothing => None,
            Pending::Child(named) | Pending::Parent(named) => Some(named),
        }
    }
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The segment.
    pub segment: Named,
    /// Its depth.
    pub depth: u32,
    /// The other segment, if there is one.
    pub pending: Pending,
}

/// A directory entry that a client remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEntry {
    /// The entry, as old as it may be.
    pub entry: DirectoryEntry,
    /// The last key that was found of those that go to the pending child was there.
    pub keys_have_gone: bool,
}

impl From<DirectoryEntry> for KnownEntry {
    fn from(entry: DirectoryEntry) -> KnownEntry {
        KnownEntry { entry, keys_have_gone: false }
    }
}

const MEMORY_MASK: u64 = (1 << 24) - 1;

/// The memory in an entry's first word.
#[inline(always)]
pub(crate) fn memory(word: u64) -> u32 {
    (word >> 8 & MEMORY_MASK) as u32
}

/// The memory of the other segment of a pair in an entry's first word. Without a pair it means nothing.
#[inline(always)]
pub(crate) fn other_memory(word: u64) -> u32 {
    (word >> 32 & MEMORY_MASK) as u32
}

/// Whether an entry's first word names a pair.
#[inline(always)]
pub(crate) fn is_paired(word: u64) -> bool {
    word >> 5 & 3 != 0
}

/// The depth in an entry's first word.
#[inline(always)]
pub(crate) fn depth(word: u64) -> u32 {
    (word & 31) as u32
}

impl DirectoryEntry {
    /// The entry as its two words.
    pub fn to_words(self) -> [u64; 2] {
        let (kind, other) = match self.pending {
            Pending::Nothing => (0, Named { memory: 0, incarnation: 0 }),
            Pending::Child(child) => (1, child),
            Pending::Parent(parent) => (2, parent),
        };
        let word = u64::from(self.depth)
            | kind << 5
            | u64::from(self.segment.memory) << 8
            | u64::from(other.memory) << 32;
        [word, u64::from(self.segment.incarnation) | u64::from(other.incarnation) << 32]
    }

    /// The entry in two words. `None` if they are none of a table with this geometry.
    pub fn from_words(geometry: &Geometry, [word, uses]: [u64; 2]) -> Option<DirectoryEntry> {
        let named = |memory: u64, incarnation: u64| {
            let memory = memory & MEMORY_MASK;
            (memory < geometry.segments_max())
                .then_some(Named { memory: memory as u32, incarnation: incarnation as u32 })
        };
        let other = || named(word >> 32, uses >> 32);
        let pending = match word >> 5 & 3 {
            0 => Pending::Nothing,
            1 => Pending::Child(other()?),
            2 => Pending::Parent(other()?),
            _ => return None,
        };
        let depth = depth(word);
        let fits = depth <= directory_bits_max(geometry);
        fits.then_some(DirectoryEntry { segment: named(word >> 8, uses)?, depth, pending })
    }

    /// The entry in the key and the value of a directory slot.
    pub fn from_slot(geometry: &Geometry, key: &[u8], value: &[u8]) -> Option<DirectoryEntry> {
        DirectoryEntry::from_words(geometry, words(key, value)?)
    }

    /// Hands the slot's content to `write`.
    pub(crate) fn as_content<R>(self, write: impl FnOnce(&Content<'_>) -> R) -> R {
        let [key, value] = self.to_words().map(u64::to_le_bytes);
        write(&Content { key: &key, value: (&value).into(), ..Content::default() })
    }
}

/// The words of an entry in the key and the value of a directory slot.
pub(crate) fn words(key: &[u8], value: &[u8]) -> Option<[u64; 2]> {
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    Some([word(key)?, word(value)?])
}

/// The most bits that the directory may come to use.
pub(crate) fn directory_bits_max(geometry: &Geometry) -> u32 {
    geometry.directory_slots().trailing_zeros().min(DIRECTORY_BITS_MAX)
}

/// The low `bits` bits.
#[inline(always)]
pub(crate) fn low(bits: u32) -> u32 {
    (1u32 << bits).wrapping_sub(1)
}

/// The READ of a directory entry.
#[inline]
pub(crate) fn entry_window(number: u32) -> Window {
    Window { first: SlotIx(number.into()), slots: 1, incarnation: 0 }
}

/// The region's word that is the first of a directory entry's payload.
#[inline(always)]
pub(crate) fn segment_word(geometry: &Geometry, number: u32) -> usize {
    geometry.payload_word(SlotIx(number.into()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each depth that a directory can have is read as it was stated, and the filter and link beside it stay.
    #[test]
    fn a_home_states_every_depth() {
        for depth in 0..=DEPTH_MAX {
            for merged in [false, true] {
                let state = HomeState { depth, merged };
                for beside in [0, !STATE_MASK, 0x0155_5555] {
                    for before in [0, STATE_MASK] {
                        let aux = state.in_aux(before | beside);
                        assert_eq!((HomeState::of(aux), aux & !STATE_MASK), (state, beside));
                        assert_eq!(HomeState::is_as_deep(aux, depth), !merged);
                    }
                }
            }
        }
    }
}
