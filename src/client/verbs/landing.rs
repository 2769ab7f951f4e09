//! The memory into which connections and lanes READ.

use crate::base::sync::lock_std;
use crate::layout::geometry::Geometry;
use crate::verbs::device::{Access, Buffer, ProtectionDomain};
use crate::verbs::error::SetupError;
use std::sync::{Arc, Mutex};

/// Memory in which this many windows of any kind can land.
pub(crate) fn landing_for(
    domain: &Arc<ProtectionDomain>,
    geometry: &Geometry,
    windows: usize,
) -> Result<Buffer, SetupError> {
    let layout = geometry.layout();
    let slots = layout.window_slots().max(layout.block_slots) as usize;
    Buffer::new(domain.clone(), windows, slots * geometry.shape().bytes(), Access::LOCAL)
}

/// Memory of a lane.
#[derive(Debug)]
pub(crate) struct LaneLanding {
    windows: Buffer,
    /// The memory for long values. Its owner exchanges it only while none of its READs is in flight, so no thread waits
    /// for this lock.
    long: Mutex<Option<Arc<Buffer>>>,
}

impl LaneLanding {
    /// Memory for this many windows, and none for long values.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        geometry: &Geometry,
        windows: usize,
    ) -> Result<LaneLanding, SetupError> {
        Ok(LaneLanding { windows: landing_for(domain, geometry, windows)?, long: Mutex::new(None) })
    }

    pub fn windows(&self) -> &Buffer {
        &self.windows
    }

    /// Drops the memory for long values, and then stores the memory that `make` makes: that may drop the same memory.
    pub fn exchange_long<R>(&self, make: impl FnOnce() -> (R, Option<Arc<Buffer>>)) -> R {
        let mut long = lock_std(&self.long);
        *long = None;
        let (made, memory) = make();
        *long = memory;
        made
    }

    /// The memory for a READ that is about to be posted. It stays at least until that has completed.
    pub fn long(&self) -> Arc<Buffer> {
        lock_std(&self.long).clone().expect("a value has room before it is fetched")
    }
}
