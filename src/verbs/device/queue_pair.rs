//! Queue pairs, and the work that is posted to them.

#![allow(unsafe_code)]

use super::super::error::{SetupError, VerbsError};
use super::calls::{destroyed, done, object, posted};
use super::completions::CompletionQueue;
use super::context::{Port, ProtectionDomain};
use super::memory::Access;
use super::receives::SharedReceives;
use ibverbs_sys::*;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Where a queue pair is and what it can do. Each side sends its own to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Endpoint {
    /// Number, LID and GID.
    pub at: ibverbs::QueuePairEndpoint,
    /// Sequence number of the first packet it sends.
    pub first_packet: u32,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// The number of READs that it may have in flight, and that it lets the other side have in
    /// flight.
    pub reads: u8,
}

/// How the local side reaches the network.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub port: Port,
    /// The GID and its index; none on InfiniBand without global routing.
    pub gid: Option<(u8, ibverbs::Gid)>,
    /// Largest packet in bytes.
    pub mtu: u32,
}

impl Route {
    /// How packets reach this queue pair of another host.
    pub(crate) fn address_of(&self, to: &ibverbs::QueuePairEndpoint) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr { dlid: to.lid, port_num: self.port.number, ..Default::default() };
        if let (Some((index, _)), Some(gid)) = (self.gid, to.gid) {
            attr.is_global = 1;
            attr.grh =
                ibv_global_route { dgid: gid.into(), sgid_index: index, hop_limit: 64, ..Default::default() };
        }
        attr
    }
}

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub sends: u32,
    pub receives: u32,
}

/// A queue pair. Posting takes `&mut`; `Send`.
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    transport: ibv_qp_type::Type,
    route: Route,
    first_packet: u32,
    /// Work requests and their elements; filled again for each post.
    requests: Vec<ibv_send_wr>,
    elements: Vec<ibv_sge>,
    domain: Arc<ProtectionDomain>,
    _queue: Arc<CompletionQueue>,
    _receives: Option<Arc<SharedReceives>>,
}

// SAFETY: as for `Context`; the vectors hold pointers only while `post` runs.
unsafe impl Send for QueuePair {}
// SAFETY: `&QueuePair` reads only its number.
unsafe impl Sync for QueuePair {}

/// One work request of a chain.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub id: u64,
    pub element: ibv_sge,
    pub kind: WorkKind,
    /// Whether it gives a completion. A completion also stands for the unsignalled requests before
    /// it.
    pub signalled: bool,
}

/// What a work request does.
#[derive(Clone, Copy)]
pub(crate) struct WorkKind {
    opcode: ibv_wr_opcode::Type,
    to: ibv_send_wr__bindgen_ty_2,
}

impl WorkKind {
    /// READs remote memory into the element.
    pub fn read(address: u64, key: u32) -> WorkKind {
        WorkKind::of(ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(address, key))
    }

    /// SENDs the element to the other side's queue pair.
    pub fn send() -> WorkKind {
        WorkKind::of(ibv_wr_opcode::IBV_WR_SEND, ibv_send_wr__bindgen_ty_2::default())
    }

    /// Does this to the memory or the queue pair that `to` names.
    pub fn of(opcode: ibv_wr_opcode::Type, to: ibv_send_wr__bindgen_ty_2) -> WorkKind {
        WorkKind { opcode, to }
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number())
            .field("transport", &self.transport)
            .finish()
    }
}

impl QueuePair {
    /// Makes a queue pair of this type, RC for most, that sends and receives with completions in `queue`.
    pub fn new(
        domain: Arc<ProtectionDomain>,
        queue: Arc<CompletionQueue>,
        receives: Option<Arc<SharedReceives>>,
        transport: ibv_qp_type::Type,
        depth: Depth,
        route: Route,
    ) -> Result<QueuePair, SetupError> {
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: receives.as_ref().map_or(ptr::null_mut(), |receives| receives.raw()),
            cap: ibv_qp_cap {
                max_send_wr: depth.sends,
                max_recv_wr: depth.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: transport,
            sq_sig_all: 0,
        };
        // SAFETY: existing domain and queues, and a filled-in request.
        let raw = unsafe { (domain.functions().ibv_create_qp)(domain.raw(), &mut attr) };
        let raw = object("ibv_create_qp", raw)?;
        // Unpredictable, so that packets of an earlier connection do not fit (24 bits).
        let mut random = [0; 4];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        Ok(QueuePair {
            raw,
            transport,
            route,
            first_packet: u32::from_le_bytes(random) & 0xff_ffff,
            requests: Vec::new(),
            elements: Vec::new(),
            domain,
            _queue: queue,
            _receives: receives,
        })
    }

    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is there as long as `self`; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// What the other side must know to connect.
    pub fn endpoint(&self) -> Endpoint {
        let limits = self.domain.context().limits();
        let reads = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom).clamp(1, i32::from(u8::MAX));
        Endpoint {
            at: ibverbs::QueuePairEndpoint {
                num: self.number(),
                lid: self.route.port.lid,
                gid: self.route.gid.map(|(_, gid)| gid),
            },
            first_packet: self.first_packet,
            mtu: self.route.mtu,
            reads: reads as u8,
        }
    }

    /// Sets the attributes that the mask names.
    pub(crate) fn modify(&mut self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), SetupError> {
        let functions = self.domain.functions();
        // SAFETY: an existing queue pair, and the fields that the mask names are filled in.
        done("ibv_modify_qp", unsafe {
            (functions.ibv_modify_qp)(self.raw.as_ptr(), &mut attr, mask.0 as c_int)
        })
    }

    /// Connects to the other side's queue pair; then both may post. `access` is what the other side
    /// may do with registered memory.
    pub fn connect(&mut self, to: &Endpoint, access: Access) -> Result<(), SetupError> {
        self.initialise(access)?;
        let is_rc = self.transport == ibv_qp_type::IBV_QPT_RC;
        let reads = to.reads.min(self.endpoint().reads);
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.route.mtu.min(to.mtu).ilog2() - 7,
            dest_qp_num: to.at.num,
            rq_psn: to.first_packet,
            max_dest_rd_atomic: reads,
            // 0.64 ms: how long the other side waits when no receive is posted.
            min_rnr_timer: 12,
            ah_attr: self.route.address_of(&to.at),
            ..Default::default()
        };
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        if is_rc {
            mask =
                mask | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify(attr, mask)?;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.first_packet,
            // 4.096 us * 2^14 = 67 ms until a packet is sent again, up to 7 times. The wait for a
            // receiver without buffers has no limit.
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: reads,
            ..Default::default()
        };
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        if is_rc {
            mask = mask
                | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(attr, mask)
    }

    /// Moves it from RESET to INIT: receives may be posted.
    fn initialise(&mut self, access: Access) -> Result<(), SetupError> {
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: self.route.port.number,
            qp_access_flags: access.of_pair(),
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask)
    }

    /// Moves it to the error state. Outstanding work requests complete with an error, and later
    /// ones fail.
    pub fn fail(&mut self) {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE) {
            tracing::warn!(%error, "a queue pair could not be stopped");
        }
    }

    /// Posts a chain of work requests with one doorbell.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Post`]: some of the requests may have been posted. The queue pair must not be
    /// used any more.
    ///
    /// # Safety
    ///
    /// Every element names a cell of a [`Buffer`](super::Buffer) that outlives this queue pair. Until the
    /// request's completion, the cell of a READ is neither borrowed from nor posted again, and the
    /// cell of anything else is not written. What its kind names lives until its completion, too.
    pub unsafe fn post(&mut self, works: impl IntoIterator<Item = Work>) -> Result<(), VerbsError> {
        self.requests.clear();
        self.elements.clear();
        for work in works {
            let WorkKind { opcode, to } = work.kind;
            let signalled = if work.signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
            self.elements.push(work.element);
            self.requests.push(ibv_send_wr {
                wr_id: work.id,
                num_sge: 1,
                opcode,
                send_flags: signalled,
                wr: to,
                ..Default::default()
            });
        }
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let (requests, elements) = (self.requests.as_mut_ptr(), self.elements.as_mut_ptr());
        for i in 0..count {
            // SAFETY: `i < count`, and `i + 1 < count` where it is used.
            unsafe {
                (*requests.add(i)).sg_list = elements.add(i);
                (*requests.add(i)).next = if i + 1 < count { requests.add(i + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        let post = self.domain.context().operations().post_send.expect("every provider has post_send");
        // SAFETY: a connected queue pair; the chain is copied before the call returns; the caller
        // promises the rest about the memory.
        posted(unsafe { post(self.raw.as_ptr(), requests, &mut bad) })
    }

    /// Posts a cell that a message can land in.
    ///
    /// # Safety
    /// As for [`SharedReceives::post`], until this queue pair is gone.
    pub unsafe fn post_receive(&mut self, id: u64, mut element: ibv_sge) -> Result<(), VerbsError> {
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = ptr::null_mut();
        let post = self.domain.context().operations().post_recv.expect("every provider has post_recv");
        // SAFETY: an existing queue pair; the request is copied before the call returns.
        posted(unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let functions = self.domain.functions();
        // SAFETY: made by us, freed once. After this, no NIC touches memory for it.
        destroyed("ibv_destroy_qp", unsafe { (functions.ibv_destroy_qp)(self.raw.as_ptr()) });
    }
}

/// Remote memory, for a work request.
pub(crate) fn rdma(remote_addr: u64, rkey: u32) -> ibv_send_wr__bindgen_ty_2 {
    ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } }
}
