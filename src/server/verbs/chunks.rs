//! The memory that a server over verbs has registered. Of a table of one size, all of it. Of a table that grows, the
//! part in front of its segments, and then segments and heap chunk by chunk (E0).

use crate::base::sync::lock_std;
use crate::index::Registrar;
use crate::layout::chunk::{CHUNKS, bytes_of, chunk_of, chunk_of_block, next_chunk, pieces_of};
use crate::region::RegionError;
use crate::server::shared::ServerState;
use crate::verbs::device::RegisteredRegion;
use crate::verbs::error::SetupError;
use crate::verbs::station::Station;
use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;

/// Registers the chunks of a table that grows.
pub(crate) struct RegisteredChunks {
    station: Arc<Station>,
    shared: Arc<ServerState>,
    chunks: Mutex<Box<[Option<RegisteredRegion>; CHUNKS as usize]>>,
    /// Chunks that will soon be needed.
    soon: mpsc::Sender<u32>,
}

/// The chunks, and the thread that registers them ahead. It ends when the chunks are dropped.
pub(crate) type StartedChunks = (Arc<RegisteredChunks>, JoinHandle<()>);

impl RegisteredChunks {
    /// Registers the memory that is in use. Later memory is registered before it is needed.
    pub fn start(
        station: &Arc<Station>,
        shared: &Arc<ServerState>,
        mut progress: impl FnMut(u64),
    ) -> Result<StartedChunks, SetupError> {
        let (soon, asked) = mpsc::channel();
        let chunks = Arc::new(RegisteredChunks {
            station: station.clone(),
            shared: shared.clone(),
            chunks: Mutex::new(Box::new([const { None }; CHUNKS as usize])),
            soon,
        });
        let registrar: Weak<dyn Registrar> = Arc::downgrade(&chunks) as _;
        shared.index.register_with(registrar);
        let mut done = 0;
        for chunk in chunks_in_use(shared) {
            let bytes = bytes_of(shared.index.geometry(), chunk);
            chunks.register(chunk, |more| progress(done + more))?;
            done += bytes.end - bytes.start;
        }
        let of_thread = Arc::downgrade(&chunks);
        let thread = std::thread::Builder::new()
            .name("oneread-chunks".into())
            .spawn(move || {
                for chunk in asked {
                    let Some(chunks) = of_thread.upgrade() else { break };
                    if let Err(error) = chunks.register(chunk, |_| {}) {
                        tracing::warn!(
                            error = &error as &dyn Error,
                            "memory that is needed soon is not to be had"
                        );
                    }
                }
            })
            .map_err(|e| SetupError::Call {
                call: "starting a thread",
                errno: e.raw_os_error().unwrap_or(0),
            })?;
        Ok((chunks, thread))
    }

    /// Registers a chunk, and tells clients its key, if that was not done yet.
    fn register(&self, chunk: u32, progress: impl FnMut(u64)) -> Result<(), SetupError> {
        let mut chunks = lock_std(&self.chunks);
        let place = &mut chunks[chunk as usize];
        if place.is_some() {
            return Ok(());
        }
        let bytes = bytes_of(self.shared.index.geometry(), chunk);
        let registered = register(&self.station, &self.shared, bytes, progress)?;
        let told = self.shared.index.tell_key(chunk, registered.remote_key());
        told.map_err(|source| SetupError::Backing { source: Arc::new(source) })?;
        *place = Some(registered);
        Ok(())
    }
}

impl RegisteredChunks {
    /// Registers the chunk in which this piece is.
    fn register_for(&self, piece: u64, chunk: u32) -> Result<(), RegionError> {
        let unregistered = |error| RegionError::Unregistered { source: Box::new(error) };
        self.register(chunk, |_| {}).map_err(unregistered)?;
        // The next chunk is registered when half of this one is used, so no put waits for it.
        let geometry = self.shared.index.geometry();
        let this = pieces_of(geometry, chunk);
        let is_due = piece - this.start >= (this.end - this.start) / 2;
        if let Some(next) = next_chunk(geometry, chunk).filter(|_| is_due) {
            // The thread ends with the server.
            let _ = self.soon.send(next);
        }
        Ok(())
    }
}

impl Registrar for RegisteredChunks {
    fn before_use(&self, memory: u32) -> Result<(), RegionError> {
        self.register_for(memory.into(), chunk_of(self.shared.index.geometry(), memory))
    }

    fn before_use_of_block(&self, block: u64) -> Result<(), RegionError> {
        self.register_for(block, chunk_of_block(self.shared.index.geometry(), block))
    }
}

/// Bytes of the chunks that are in use.
pub(crate) fn bytes_in_use(shared: &ServerState) -> u64 {
    chunks_in_use(shared)
        .into_iter()
        .map(|chunk| bytes_of(shared.index.geometry(), chunk))
        .map(|bytes| bytes.end - bytes.start)
        .sum()
}

/// The chunks of the segments, and of the blocks that have values.
fn chunks_in_use(shared: &ServerState) -> BTreeSet<u32> {
    let geometry = shared.index.geometry();
    let segments = shared.index.memories().into_iter().map(|memory| chunk_of(geometry, memory));
    let blocks = shared.index.blocks_used().into_iter().map(|block| chunk_of_block(geometry, block));
    segments.chain(blocks).collect()
}

/// Registers some bytes of the table's region.
pub(crate) fn register(
    station: &Station,
    shared: &Arc<ServerState>,
    bytes: Range<u64>,
    progress: impl FnMut(u64),
) -> Result<RegisteredRegion, SetupError> {
    let region = shared.index.region();
    region.back_more(bytes.clone()).map_err(|source| SetupError::Backing { source: Arc::new(source) })?;
    region.touch(bytes.clone(), progress);
    RegisteredRegion::of_region(station.domain().clone(), shared.clone(), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::outcome::PutMode;
    use crate::server::{ServerConfig, table::index_for, tests::shared};

    /// What is registered at first: the chunks of the segments, and those of the blocks that have values, also
    /// where these are not the first ones, as a takeover finds them.
    #[test]
    fn chunks_in_use_have_segments_or_values() {
        let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(1 << 10) };
        let table = Config::new().size(size).key_max(16).value_max(64 << 10);
        let config = ServerConfig::new(crate::Address::Shm("nowhere".into()), table);
        let shared = ServerState { index: index_for(&config).unwrap().index, ..shared() };
        let geometry = shared.index.geometry().clone();
        let segments = BTreeSet::from([chunk_of(&geometry, 0)]);
        assert_eq!(chunks_in_use(&shared), segments, "an empty table");
        let mut n = 0u64;
        let in_blocks = || shared.index.blocks_used().iter().map(|&b| chunk_of_block(&geometry, b)).collect();
        let mut blocks: BTreeSet<u32> = in_blocks();
        while blocks.len() < 3 {
            shared.index.put(&n.to_le_bytes(), &vec![7; 60_000], PutMode::Insert).expect("room");
            (n, blocks) = (n + 1, in_blocks());
        }
        assert!(blocks.is_disjoint(&segments));
        assert_eq!(chunks_in_use(&shared), &segments | &blocks);
        let bytes = |chunk: &u32| bytes_of(&geometry, *chunk).end - bytes_of(&geometry, *chunk).start;
        assert_eq!(bytes_in_use(&shared), chunks_in_use(&shared).iter().map(bytes).sum::<u64>());
    }
}
