//! The parts of a device that only HERD uses: memory that others WRITE into, and datagrams.

#![allow(unsafe_code)]

use crate::base::sync::AtomicU64;
use crate::verbs::device::calls::{destroyed, object};
use crate::verbs::device::queue_pair::rdma;
use crate::verbs::device::{Access, Buffer, ProtectionDomain, QueuePair, WorkKind};
use crate::verbs::error::SetupError;
use crate::verbs::ffi;
use crate::verbs::station::Station;
use ibverbs_sys::*;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Memory that the other side may WRITE.
pub(super) const REMOTE_WRITE: Access = Access::of(ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
));

/// The Q_Key of datagrams between oneread's queue pairs. It keeps stray datagrams away; it is no
/// secret.
const DATAGRAM_KEY: u32 = 0x1ea_d001;

/// WRITEs the element into remote memory.
pub(super) fn write(address: u64, key: u32) -> WorkKind {
    WorkKind::of(ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(address, key))
}

/// The address of a cell for work requests of the other side.
pub(super) fn address_of(memory: &Buffer, cell: usize) -> u64 {
    memory.cell(cell) as u64
}

/// The words of a cell that a NIC may be writing. Load them `Relaxed`, then fence.
pub(super) fn shared_words(memory: &Buffer, cell: usize) -> &[AtomicU64] {
    let words = memory.cell_bytes() / size_of::<u64>();
    // SAFETY: inside the mapping and aligned; this process touches the memory as atomics
    // wherever it uses this function.
    unsafe { std::slice::from_raw_parts(memory.cell(cell).cast(), words) }
}

/// Makes a queue pair for datagrams ready to send and receive.
pub(super) fn open_for_datagrams(pair: &mut QueuePair, station: &Station) -> Result<(), SetupError> {
    let first_packet = pair.endpoint().first_packet;
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        port_num: station.route().port.number,
        qkey: DATAGRAM_KEY,
        ..Default::default()
    };
    let mask = ibv_qp_attr_mask::IBV_QP_STATE
        | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | ibv_qp_attr_mask::IBV_QP_PORT
        | ibv_qp_attr_mask::IBV_QP_QKEY;
    pair.modify(attr, mask)?;
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..Default::default() };
    pair.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE)?;
    let attr =
        ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, sq_psn: first_packet, ..Default::default() };
    pair.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN)
}

/// The library's functions for addresses of datagrams.
struct AddressFunctions {
    create: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
    destroy: unsafe extern "C" fn(*mut ibv_ah) -> i32,
}

/// Never called. It compiles only if the signatures above are those of the headers.
#[expect(dead_code, reason = "for the compiler to check")]
const SAME_SIGNATURES: AddressFunctions = AddressFunctions { create: ibv_create_ah, destroy: ibv_destroy_ah };

fn functions() -> Result<&'static AddressFunctions, SetupError> {
    static LOADED: OnceLock<Result<AddressFunctions, Arc<libloading::Error>>> = OnceLock::new();
    let library = ffi::library()?;
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: the symbols are functions of libibverbs' stable ABI with these signatures
        // (`SAME_SIGNATURES`), and the library is never unloaded.
        unsafe {
            Ok(AddressFunctions {
                create: *library.get(b"ibv_create_ah\0")?,
                destroy: *library.get(b"ibv_destroy_ah\0")?,
            })
        }
    });
    loaded.as_ref().map_err(|why| SetupError::Library { source: why.clone() })
}

/// The destination of datagrams: a queue pair.
#[derive(Debug)]
pub(super) struct AddressHandle {
    raw: NonNull<ibv_ah>,
    /// The number of the queue pair.
    number: u32,
    destroy: unsafe extern "C" fn(*mut ibv_ah) -> i32,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs is thread-safe for all objects (ibv(7)); the pointer is never handed out for
// writing.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub fn new(station: &Station, to: &ibverbs::QueuePairEndpoint) -> Result<AddressHandle, SetupError> {
        let AddressFunctions { create, destroy } = functions()?;
        let domain = station.domain().clone();
        let mut attr = station.route().address_of(to);
        // SAFETY: an existing domain, and a filled-in address.
        let raw = object("ibv_create_ah", unsafe { create(domain.raw(), &mut attr) })?;
        Ok(AddressHandle { raw, number: to.num, destroy: *destroy, _domain: domain })
    }

    /// SENDs the element there as a datagram. The handle must live until the SEND has completed.
    pub fn datagram(&self) -> WorkKind {
        let ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: self.raw.as_ptr(),
            remote_qpn: self.number,
            remote_qkey: DATAGRAM_KEY,
        };
        WorkKind::of(ibv_wr_opcode::IBV_WR_SEND, ibv_send_wr__bindgen_ty_2 { ud })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once.
        destroyed("ibv_destroy_ah", unsafe { (self.destroy)(self.raw.as_ptr()) });
    }
}
