//! The memory that a table may take, and the device that has to know of it.

use crate::region::RegionError;
use crate::sync::Ordering;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How much memory segments and extents have together, and may have.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    taken: AtomicU64,
}

impl Budget {
    pub fn new(bytes_max: u64) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, taken: AtomicU64::new(0) })
    }

    /// Bytes taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether these bytes may be taken, too. They may be gone a moment later.
    pub fn has(&self, bytes: u64) -> bool {
        self.taken() + bytes <= self.bytes_max
    }

    /// Takes these bytes, if they may be taken. Relaxed: it guards no memory, it only counts.
    pub fn take(&self, bytes: u64) -> bool {
        let more = |taken| Some(taken + bytes).filter(|&taken| taken <= self.bytes_max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives these bytes back.
    pub fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The last server had these bytes.
    pub fn have(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Registers memory with a device.
pub(crate) trait Registrar: Send + Sync {
    /// Sees to it that this memory of a segment is registered, and its key told (E0).
    fn before_use(&self, memory: u32) -> Result<(), RegionError>;

    /// The same for a block of the heap.
    fn before_use_of_block(&self, block: u64) -> Result<(), RegionError>;
}
