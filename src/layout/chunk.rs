//! Chunks: what a device registers at a time of a table that grows.
//!
//! A network device reads registered memory only, and has it pinned. So a server registers the part in
//! front of the segments, and then chunk by chunk, before a directory entry names memory in it.
//! Each chunk has a remote key of its own. The **chunk slots** behind the directory tell it: slot
//! `n` of them is a slot with the chunk's number as its key and the remote key as its value, 8 bytes each.
//! It is free while the chunk is not registered, and where there is no device.
//!
//! Chunks get longer: there are 32 of each length, twice as long as the 32 before. So few of them cover
//! any reservation, and from the 33rd on, a chunk is at most a sixteenth of what is in front of it.

use super::geometry::{Geometry, SlotIx, Window};
use super::slot::Content;
use std::ops::Range;

/// Chunk slots of a table that grows.
pub const CHUNKS: u32 = SAME * GROUPS;
/// Chunks of one length.
const SAME: u32 = 32;
/// Lengths of chunks.
const GROUPS: u32 = 6;
/// The shortest chunk, in bytes, or one segment.
const BYTES_MIN: u64 = 16 << 20;
/// How many times the shortest chunk all chunks are long.
const ALL: u64 = SAME as u64 * ((1 << GROUPS) - 1);

/// Segments in the shortest chunk: as many as it takes for all chunks to cover the reservation.
fn unit(geometry: &Geometry) -> u64 {
    let segment_bytes = geometry.slots() * geometry.shape().bytes() as u64;
    BYTES_MIN.div_ceil(segment_bytes).max(geometry.segments_max().div_ceil(ALL))
}

/// The chunk of a segment's memory.
pub(crate) fn chunk_of(geometry: &Geometry, memory: u32) -> u32 {
    debug_assert!(u64::from(memory) < geometry.segments_max());
    let units = u64::from(memory) / unit(geometry);
    let group = (units / u64::from(SAME) + 1).ilog2();
    let before = u64::from(SAME) * ((1 << group) - 1);
    SAME * group + ((units - before) >> group) as u32
}

/// The memory in a chunk: numbers of segments. Empty if the reservation ends before.
pub(crate) fn memory_of(geometry: &Geometry, chunk: u32) -> Range<u32> {
    let (group, number) = (chunk / SAME, u64::from(chunk % SAME));
    let from = |number: u64| {
        let units = u64::from(SAME) * ((1 << group) - 1) + (number << group);
        (units * unit(geometry)).min(geometry.segments_max()) as u32
    };
    from(number)..from(number + 1)
}

/// The bytes of a chunk in the region.
pub(crate) fn bytes_of(geometry: &Geometry, chunk: u32) -> Range<u64> {
    let memory = memory_of(geometry, chunk);
    let at = |memory: u32| geometry.slot_offset(geometry.segment_first(memory));
    at(memory.start)..at(memory.end)
}

/// The chunk that a window is in. `None` in front of the segments, and in a table of one size.
#[inline]
pub(crate) fn chunk_of_window(geometry: &Geometry, window: Window) -> Option<u32> {
    if !geometry.grows() {
        return None;
    }
    let number = window.first.0.checked_sub(geometry.segment_first(0).0)? / geometry.slots();
    Some(chunk_of(geometry, number.min(geometry.segments_max() - 1) as u32))
}

/// The slot that tells a chunk's key.
pub(crate) fn chunk_slot(geometry: &Geometry, chunk: u32) -> SlotIx {
    SlotIx(geometry.directory_slots() + u64::from(chunk))
}

/// The READ of that slot.
pub(crate) fn chunk_window(geometry: &Geometry, chunk: u32) -> Window {
    Window { first: chunk_slot(geometry, chunk), slots: 1, incarnation: 0 }
}

/// Hands the slot's content to `write`.
pub(crate) fn as_content<R>(chunk: u32, remote_key: u32, write: impl FnOnce(&Content<'_>) -> R) -> R {
    let [key, value] = [chunk, remote_key].map(|part| u64::from(part).to_le_bytes());
    write(&Content { key: &key, value: &value, ..Content::default() })
}

/// The remote key in the words of a chunk slot. `None` if they are of no chunk slot of this number.
pub(crate) fn remote_key(chunk: u32, [number, key]: [u64; 2]) -> Option<u32> {
    (number == u64::from(chunk)).then_some(u32::try_from(key).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    fn growing(bytes_max: u64, segment_slots: Option<u64>) -> Geometry {
        let size = TableSize::Growing { bytes_max, segment_slots };
        Config { size, key_max: 8, value_max: 8, ..Config::default() }.geometry().unwrap()
    }

    /// Chunks follow each other, cover all memory, and are at most a sixteenth of what is in front of them,
    /// but for the first.
    #[test]
    fn chunks_cover_the_reservation() {
        for (bytes_max, segment_slots) in
            [(2 << 20, None), (1 << 30, None), (1 << 36, None), (1 << 42, None), (1 << 30, Some(64))]
        {
            let geometry = growing(bytes_max, segment_slots);
            let mut next = 0;
            for chunk in 0..CHUNKS {
                let memory = memory_of(&geometry, chunk);
                assert_eq!(memory.start, next);
                for one in
                    [memory.start, memory.end.saturating_sub(1)].into_iter().filter(|n| memory.contains(n))
                {
                    assert_eq!(chunk_of(&geometry, one), chunk, "{bytes_max}: {one}");
                    let window = Window { first: geometry.segment_first(one), slots: 1, incarnation: 0 };
                    assert_eq!(chunk_of_window(&geometry, window), Some(chunk));
                }
                assert!(
                    chunk < SAME || memory.len() as u32 * SAME <= 2 * memory.start,
                    "{bytes_max}: {chunk}"
                );
                next = memory.end;
            }
            assert_eq!(u64::from(next), geometry.segments_max(), "{bytes_max}");
            let front = Window { first: chunk_slot(&geometry, CHUNKS - 1), slots: 1, incarnation: 0 };
            assert_eq!(chunk_of_window(&geometry, front), None);
        }
    }
}
