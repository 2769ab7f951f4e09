//! The remote keys with which a client READs the chunks of a table that grows.

use crate::layout::chunk::{CHUNKS, chunk_of_value, chunk_of_window};
use crate::layout::geometry::{Geometry, Window};
use std::sync::atomic::{AtomicU64, Ordering};

/// The remote keys of chunks of a table that grows that were READ so far (E0). They are valid as long as the
/// connection, because they belong to the server process. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct ChunkKeys {
    /// For each chunk: 0 if its key is not known; else the key, and a bit above it.
    words: Box<[AtomicU64]>,
}

impl ChunkKeys {
    pub fn new(geometry: &Geometry) -> ChunkKeys {
        let chunks = if geometry.grows() { CHUNKS } else { 0 };
        ChunkKeys { words: (0..chunks).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The chunk of this window, if its key is not known and must be READ first.
    #[inline]
    pub fn unknown(&self, geometry: &Geometry, window: Window) -> Option<u32> {
        chunk_of_window(geometry, window).filter(|&chunk| !self.has(chunk))
    }

    /// The chunk of this byte of the heap, if its key is not known and must be READ first.
    pub fn unknown_to(&self, geometry: &Geometry, offset: u64) -> Option<u32> {
        chunk_of_value(geometry, offset).filter(|&chunk| !self.has(chunk))
    }

    #[inline]
    fn has(&self, chunk: u32) -> bool {
        // Relaxed: a word is a whole key.
        self.words[chunk as usize].load(Ordering::Relaxed) != 0
    }

    /// Stores the key that the chunk's slot has.
    pub fn learn(&self, chunk: u32, key: u32) {
        self.words[chunk as usize].store(1 << 32 | u64::from(key), Ordering::Relaxed);
    }

    /// The stored key of a chunk.
    #[inline]
    pub fn known(&self, chunk: u32) -> u32 {
        self.words[chunk as usize].load(Ordering::Relaxed) as u32
    }
}
