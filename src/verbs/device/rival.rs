//! The parts of a device that only HERD uses: memory that others WRITE into, and datagrams.

#![allow(unsafe_code)]

use super::super::error::SetupError;
use super::{Access, Buffer, ProtectionDomain, QueuePair, Route, address_of, destroyed, object};
use ibverbs_sys::{ibv_ah, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use std::ptr::NonNull;
use std::sync::Arc;

impl Buffer {
    /// The address of a cell for work requests of the other side.
    pub fn address(&self, cell: usize) -> u64 {
        self.cell(cell) as u64
    }

    /// The words of a cell that a NIC may be writing. Load them `Relaxed`, then fence.
    pub fn shared_words(&self, cell: usize) -> &[crate::sync::AtomicU64] {
        let words = self.memory.cell_bytes / size_of::<u64>();
        // SAFETY: inside the mapping and aligned; this process touches the memory as atomics
        // wherever it uses this method.
        unsafe { std::slice::from_raw_parts(self.cell(cell).cast(), words) }
    }
}

impl QueuePair {
    /// Makes a queue pair for datagrams ready to send and receive.
    pub fn open_for_datagrams(&mut self) -> Result<(), SetupError> {
        self.initialise(Access::Local)?;
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..Default::default() };
        self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE)?;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.first_packet,
            ..Default::default()
        };
        self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN)
    }
}

/// The destination of datagrams.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    raw: NonNull<ibv_ah>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: as for `Context`.
unsafe impl Send for AddressHandle {}
// SAFETY: as for `Context`.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub fn new(
        domain: Arc<ProtectionDomain>,
        route: &Route,
        to: &ibverbs::QueuePairEndpoint,
    ) -> Result<AddressHandle, SetupError> {
        let mut attr = address_of(route, to);
        // SAFETY: an existing domain, and a filled-in address.
        let raw = unsafe { (domain.context.functions.ibv_create_ah)(domain.raw.as_ptr(), &mut attr) };
        Ok(AddressHandle { raw: object("ibv_create_ah", raw)?, domain })
    }

    pub fn raw(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let functions = self.domain.context.functions;
        // SAFETY: made by us, freed once.
        destroyed("ibv_destroy_ah", unsafe { (functions.ibv_destroy_ah)(self.raw.as_ptr()) });
    }
}
