//! Chunks: what a device registers at a time of a table that grows.
//!
//! A network device reads registered memory only, and has it pinned. So a server registers the part in
//! front of the segments, and then chunk by chunk: of segments, before a directory entry names memory in it; of
//! the heap, before a slot does. Each chunk has a remote key of its own. The **chunk slots** behind the
//! directory tell it: slot `n` of them is a slot with the chunk's number as its key and the remote key as its
//! value, 8 bytes each. It is free while the chunk is not registered, and where there is no device.
//!
//! Chunks get longer: there are 32 of each length, twice as long as the 32 before. So few of them cover
//! any reservation, and from the 33rd on, a chunk is at most a sixteenth of what is in front of it. The heap's
//! chunks follow those of the segments, and begin short again.

use super::geometry::{CHUNK_SLOTS, Geometry};
use super::slot::Content;
use super::window::{SlotIx, Window};
use std::ops::Range;

/// Chunk slots of a table that grows: those of segments, then those of the heap.
pub const CHUNKS: u32 = CHUNK_SLOTS;
/// Chunks of segments, and of the heap.
const EACH: u32 = SAME * GROUPS;
const _: () = assert!(CHUNKS == 2 * EACH);
/// Chunks of one length.
const SAME: u32 = 32;
/// Lengths of chunks.
const GROUPS: u32 = 6;
/// The shortest chunk, in bytes, or one segment.
const BYTES_MIN: u64 = 16 << 20;
/// How many times the shortest chunk all chunks are long.
const ALL: u64 = SAME as u64 * ((1 << GROUPS) - 1);

/// A part of the region that is registered chunk by chunk, in whole pieces: segments, or blocks of the heap.
struct Pieces {
    /// The first of its chunks.
    first: u32,
    /// The byte of the region at which it begins.
    begins: u64,
    bytes: u64,
    count: u64,
}

impl Pieces {
    fn segments(geometry: &Geometry) -> Pieces {
        let bytes = geometry.slots() * geometry.shape().bytes() as u64;
        let begins = geometry.slot_offset(geometry.segment_first(0));
        Pieces { first: 0, begins, bytes, count: geometry.segments_max() }
    }

    fn blocks(geometry: &Geometry) -> Pieces {
        let heap = geometry.heap();
        let count = heap.bytes.checked_div(heap.block_bytes).unwrap_or(0);
        Pieces { first: EACH, begins: heap.offset, bytes: heap.block_bytes.max(1), count }
    }

    fn of_chunk(geometry: &Geometry, chunk: u32) -> Pieces {
        if chunk < EACH { Pieces::segments(geometry) } else { Pieces::blocks(geometry) }
    }

    /// Pieces in the shortest chunk: as many as it takes for all chunks to cover the part.
    fn unit(&self) -> u64 {
        BYTES_MIN.div_ceil(self.bytes).max(self.count.div_ceil(ALL))
    }

    fn chunk_of(&self, piece: u64) -> u32 {
        debug_assert!(piece < self.count);
        let units = piece / self.unit();
        let group = (units / u64::from(SAME) + 1).ilog2();
        let before = u64::from(SAME) * ((1 << group) - 1);
        self.first + SAME * group + ((units - before) >> group) as u32
    }

    fn in_chunk(&self, chunk: u32) -> Range<u64> {
        let chunk = chunk - self.first;
        let (group, number) = (chunk / SAME, u64::from(chunk % SAME));
        let from = |number: u64| {
            let units = u64::from(SAME) * ((1 << group) - 1) + (number << group);
            (units * self.unit()).min(self.count)
        };
        from(number)..from(number + 1)
    }
}

/// The chunk of a segment's memory.
pub(crate) fn chunk_of(geometry: &Geometry, memory: u32) -> u32 {
    Pieces::segments(geometry).chunk_of(memory.into())
}

/// The chunk of a block of the heap.
pub(crate) fn chunk_of_block(geometry: &Geometry, block: u64) -> u32 {
    Pieces::blocks(geometry).chunk_of(block)
}

/// What is in a chunk: numbers of segments' memory, or of blocks. Empty if there are no more.
pub(crate) fn pieces_of(geometry: &Geometry, chunk: u32) -> Range<u64> {
    Pieces::of_chunk(geometry, chunk).in_chunk(chunk)
}

/// The chunk after this one, of the same part. `None` if that ends with this one.
pub(crate) fn next_chunk(geometry: &Geometry, chunk: u32) -> Option<u32> {
    let is_last = (chunk + 1).is_multiple_of(EACH);
    (!is_last && !pieces_of(geometry, chunk + 1).is_empty()).then_some(chunk + 1)
}

/// The bytes of a chunk in the region.
pub(crate) fn bytes_of(geometry: &Geometry, chunk: u32) -> Range<u64> {
    let Pieces { begins, bytes, .. } = Pieces::of_chunk(geometry, chunk);
    let pieces = pieces_of(geometry, chunk);
    begins + pieces.start * bytes..begins + pieces.end * bytes
}

/// The chunk that this byte of the heap is in. `None` in a table of one size.
#[inline]
pub(crate) fn chunk_of_value(geometry: &Geometry, offset: u64) -> Option<u32> {
    let (heap, blocks) = (geometry.heap(), Pieces::blocks(geometry));
    let block = offset.checked_sub(heap.offset)?.checked_div(heap.block_bytes)?;
    (geometry.grows() && block < blocks.count).then(|| blocks.chunk_of(block))
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
    write(&Content { key: &key, value: (&value).into(), ..Content::default() })
}

/// The remote key in the words of a chunk slot. `None` if they are of no chunk slot of this number.
pub(crate) fn remote_key(chunk: u32, [number, key]: [u64; 2]) -> Option<u32> {
    (number == u64::from(chunk)).then_some(u32::try_from(key).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    fn growing(bytes_max: u64, segment_slots: Option<u64>, heap_bytes: Option<u64>) -> Geometry {
        let size = TableSize::Growing { bytes_max, segment_slots };
        let value_max = if heap_bytes.is_some() { 100_000 } else { 8 };
        Config { size, key_max: 8, value_max, heap_bytes, ..Config::default() }.geometry().unwrap()
    }

    /// Chunks follow each other, cover all of their part, and are at most a sixteenth of what is in front of
    /// them, but for the first.
    fn check(geometry: &Geometry, parts: [(Range<u32>, u64); 2]) {
        for (chunks, count) in parts {
            let mut next = 0;
            for chunk in chunks.clone() {
                let pieces = pieces_of(geometry, chunk);
                assert_eq!(pieces.start, next);
                let is_short = pieces.end - pieces.start <= pieces.start / u64::from(SAME / 2);
                assert!(chunk - chunks.start < SAME || is_short, "{chunk}: {pieces:?}");
                let more = next_chunk(geometry, chunk);
                assert_eq!(more, Some(chunk + 1).filter(|_| pieces.end < count && chunk + 1 < chunks.end));
                next = pieces.end;
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn chunks_cover_the_reservation() {
        for (bytes_max, segment_slots, heap_bytes) in [
            (2 << 20, None, None),
            (1 << 30, None, None),
            (1 << 36, None, Some(1 << 20)),
            (1 << 42, None, Some(1 << 30)),
            (1 << 30, Some(64), Some(1 << 36)),
            (1 << 30, Some(64), Some(1 << 44)),
        ] {
            let geometry = growing(bytes_max, segment_slots, heap_bytes);
            let heap = geometry.heap();
            let blocks = heap.bytes.checked_div(heap.block_bytes).unwrap_or(0);
            check(&geometry, [(0..EACH, geometry.segments_max()), (EACH..CHUNKS, blocks)]);
            for chunk in 0..EACH {
                let memory = pieces_of(&geometry, chunk);
                let ends = [memory.start, memory.end.saturating_sub(1)];
                for one in ends.into_iter().filter(|n| memory.contains(n)) {
                    assert_eq!(chunk_of(&geometry, one as u32), chunk, "{bytes_max}: {one}");
                    let first = geometry.segment_first(one as u32);
                    let window = Window { first, slots: 1, incarnation: 0 };
                    assert_eq!(chunk_of_window(&geometry, window), Some(chunk));
                    let bytes = bytes_of(&geometry, chunk);
                    assert!(bytes.contains(&geometry.slot_offset(first)), "{bytes:?}");
                }
            }
            for chunk in EACH..CHUNKS {
                let (held, bytes) = (pieces_of(&geometry, chunk), bytes_of(&geometry, chunk));
                assert!(held.is_empty() || chunk_of_block(&geometry, held.start) == chunk);
                for byte in
                    [bytes.start, bytes.end.saturating_sub(1)].into_iter().filter(|n| bytes.contains(n))
                {
                    assert_eq!(chunk_of_value(&geometry, byte), Some(chunk), "{bytes_max}: {byte}");
                }
            }
            assert_eq!(bytes_of(&geometry, EACH).start, heap.offset);
            assert_eq!(chunk_of_value(&geometry, heap.offset + heap.bytes), None);
            let front = Window { first: chunk_slot(&geometry, CHUNKS - 1), slots: 1, incarnation: 0 };
            assert_eq!(chunk_of_window(&geometry, front), None);
        }
    }
}
