//! Receives that several queue pairs share.

#![allow(unsafe_code)]

use super::super::error::{SetupError, VerbsError};
use super::calls::{destroyed, object, posted};
use super::context::ProtectionDomain;
use ibverbs_sys::*;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Receive buffers that several queue pairs share.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    raw: NonNull<ibv_srq>,
    domain: Arc<ProtectionDomain>,
    capacity: u32,
}

// SAFETY: as for `Context`.
unsafe impl Send for SharedReceives {}
// SAFETY: as for `Context`.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    /// Makes a shared receive queue with room for this many receives.
    pub fn new(domain: Arc<ProtectionDomain>, receives: u32) -> Result<Arc<SharedReceives>, SetupError> {
        let attr = ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: an existing domain, and a filled-in request.
        let raw = unsafe { (domain.functions().ibv_create_srq)(domain.raw(), &mut attr) };
        Ok(Arc::new(SharedReceives { raw: object("ibv_create_srq", raw)?, domain, capacity: receives }))
    }

    /// The queue, for calls of the library.
    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// The number of receives it has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Posts a cell that a message can land in.
    ///
    /// # Safety
    ///
    /// `element` names a cell of a [`Buffer`](super::Buffer). Nobody borrows from the cell or has posted it
    /// elsewhere. The buffer lives until every queue pair on this object is gone.
    pub unsafe fn post(&self, id: u64, mut element: ibv_sge) -> Result<(), VerbsError> {
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = ptr::null_mut();
        let post =
            self.domain.context().operations().post_srq_recv.expect("every provider has post_srq_recv");
        // SAFETY: an existing queue; the request is copied before the call returns.
        posted(unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        let functions = self.domain.functions();
        // SAFETY: made by us, freed once, after the queue pairs that use it (`Arc`).
        destroyed("ibv_destroy_srq", unsafe { (functions.ibv_destroy_srq)(self.raw.as_ptr()) });
    }
}
