//! Verbs objects that release themselves: context, protection domain, memory, completion queue,
//! queue pair.
//!
//! Each object holds what it was made from in an `Arc`. They are therefore dropped in the order
//! that verbs demands: children first. A NIC writes only into [`Buffer`]s, and only while a queue
//! pair that was handed them lives. A queue pair is destroyed before its buffers are freed.
//!
//! `post_send`, `post_recv` and `poll_cq` are inline functions in C. Here, too, they go through the
//! context's table of operations.

#![allow(unsafe_code)]

#[cfg(feature = "herd")]
mod rival;

#[cfg(feature = "herd")]
pub(crate) use rival::AddressHandle;

use super::error::{SetupError, VerbsError, status};
use super::ffi::{Completion, Functions, functions};
use crate::region::Region;
use ibverbs_sys::*;
use memmap2::{MmapOptions, MmapRaw};
use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The top bits of a work request's number hold its kind.
pub(crate) mod id {
    pub const READ: u64 = 0;
    pub const SEND: u64 = 1 << 62;
    pub const RECEIVE: u64 = 2 << 62;
    #[cfg(feature = "herd")]
    pub const HERD: u64 = 3 << 62;
    pub const KIND: u64 = 3 << 62;
}

/// The C library's `errno`, which verbs calls that return pointers set.
fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn object<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>, SetupError> {
    NonNull::new(pointer).ok_or_else(|| SetupError::Call { call, errno: last_errno() })
}

/// The result of a call that returns 0 or the error's number. Some return -1 and set `errno`.
fn done(call: &'static str, result: c_int) -> Result<(), SetupError> {
    match result {
        0 => Ok(()),
        -1 => Err(SetupError::Call { call, errno: last_errno() }),
        errno => Err(SetupError::Call { call, errno: errno.abs() }),
    }
}

/// Makes the descriptor non-blocking: events are taken until there are none.
fn never_block(events: BorrowedFd<'_>) -> Result<(), SetupError> {
    rustix::io::ioctl_fionbio(events, true)
        .map_err(|e| SetupError::Call { call: "ioctl(FIONBIO)", errno: e.raw_os_error() })
}

/// Checks a destroy call. It fails only when something made from the object is left, and the `Arc`s
/// rule that out.
fn destroyed(call: &'static str, result: c_int) {
    if result != 0 {
        tracing::error!(call, result, "a verbs object could not be destroyed");
    }
}

// ---- device -----------------------------------------------------------------------------------------

/// An open device. `Send + Sync`: libibverbs' functions may be called from any thread.
#[derive(Debug)]
pub(crate) struct Context {
    functions: &'static Functions,
    raw: NonNull<ibv_context>,
    name: String,
    limits: ibv_device_attr,
}

// SAFETY: libibverbs is thread-safe for all objects (ibv(7)); the pointer is never handed out for
// writing.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceEvent {
    /// This queue pair has failed and takes no more from its shared receive queue. All receives
    /// that it took have completed.
    LastReceive { number: u32 },
    /// Any other event: a value of `enum ibv_event_type`.
    Other { kind: u32 },
}

/// The answer to a query of a port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub number: u8,
    pub is_active: bool,
    pub is_infiniband: bool,
    pub lid: u16,
    /// The active MTU in bytes.
    pub mtu: u32,
    /// Most bytes of one READ.
    pub message_max: u32,
}

/// The list of devices that libibverbs returns.
struct List {
    functions: &'static Functions,
    raw: NonNull<*mut ibv_device>,
    length: usize,
}

impl List {
    fn new() -> Result<List, SetupError> {
        let functions = functions()?;
        let mut length = 0;
        // SAFETY: `length` is written; the list is freed when dropped.
        let raw = unsafe { (functions.ibv_get_device_list)(&mut length) };
        match NonNull::new(raw) {
            // ENOSYS: the kernel module ib_uverbs is missing.
            None if last_errno() == rustix::io::Errno::NOSYS.raw_os_error() => {
                Err(SetupError::NoDevice { no_module: true })
            }
            None => Err(SetupError::Call { call: "ibv_get_device_list", errno: last_errno() }),
            Some(raw) => {
                let list = List { functions, raw, length: length.max(0) as usize };
                if list.length == 0 { Err(SetupError::NoDevice { no_module: false }) } else { Ok(list) }
            }
        }
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        (0..self.length).map(|i| {
            // SAFETY: the list has `length` entries and lives as long as `self`; names are C
            // strings.
            let (device, name) = unsafe {
                let device = *self.raw.as_ptr().add(i);
                (device, CStr::from_ptr((self.functions.ibv_get_device_name)(device)))
            };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from ibv_get_device_list and is freed once. Open devices do not need it.
        unsafe { (self.functions.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}

impl Context {
    /// Opens the device of this name and picks the port. Without names, it takes the first device
    /// with a port that is up.
    pub fn open(name: Option<&str>, port: Option<u8>) -> Result<(Arc<Context>, Port), SetupError> {
        let list = List::new()?;
        let mut down = None;
        for (device, device_name) in list.devices() {
            if name.is_some_and(|name| name != device_name) {
                continue;
            }
            let opened = Context::of(list.functions, device, device_name).and_then(|context| {
                let port = context.pick_port(port)?;
                Ok((Arc::new(context), port))
            });
            match opened {
                Ok(opened) => return Ok(opened),
                Err(error) => down = down.or(Some(error)),
            }
        }
        Err(down.unwrap_or_else(|| SetupError::UnknownDevice {
            name: name.unwrap_or_default().into(),
            have: list.devices().map(|(_, name)| name).collect(),
        }))
    }

    fn of(
        functions: &'static Functions,
        device: *mut ibv_device,
        name: String,
    ) -> Result<Context, SetupError> {
        // SAFETY: `device` is in the list, which is still there.
        let raw = object("ibv_open_device", unsafe { (functions.ibv_open_device)(device) })?;
        let mut context = Context { functions, raw, name, limits: ibv_device_attr::default() };
        // SAFETY: an open context, and room for the answer.
        done("ibv_query_device", unsafe { (functions.ibv_query_device)(raw.as_ptr(), &mut context.limits) })?;
        never_block(context.events_fd())?;
        Ok(context)
    }

    /// Readable when the device has an event. `poll(2)` it, then call
    /// [`next_event`](Self::next_event) until it returns `None`.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, and does not change.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// The device's next event, if there is one. Does not wait.
    pub fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = ibv_async_event::default();
        // SAFETY: an open context, and room for the answer; it does not block.
        if unsafe { (self.functions.ibv_get_async_event)(self.raw.as_ptr(), &mut event) } != 0 {
            return None;
        }
        let told = match event.event_type {
            IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: this kind of event names a queue pair; destroying that waits for the
                // acknowledgement.
                let number = unsafe { (*event.element.qp).qp_num };
                DeviceEvent::LastReceive { number }
            }
            kind => DeviceEvent::Other { kind },
        };
        // SAFETY: taken above, acknowledged once.
        unsafe { (self.functions.ibv_ack_async_event)(&mut event) };
        Some(told)
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's limits.
    pub fn limits(&self) -> &ibv_device_attr {
        &self.limits
    }

    fn pick_port(&self, asked: Option<u8>) -> Result<Port, SetupError> {
        let ports = self.limits.phys_port_cnt;
        let device = || self.name.clone();
        match asked {
            Some(port) if port == 0 || port > ports => {
                Err(SetupError::UnknownPort { device: device(), port, ports })
            }
            Some(number) => {
                let port = self.port(number)?;
                if port.is_active {
                    Ok(port)
                } else {
                    Err(SetupError::PortDown { device: device(), port: asked })
                }
            }
            None => {
                for number in 1..=ports {
                    let port = self.port(number)?;
                    if port.is_active {
                        return Ok(port);
                    }
                }
                Err(SetupError::PortDown { device: device(), port: None })
            }
        }
    }

    fn port(&self, number: u8) -> Result<Port, SetupError> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: ibv_port_attr begins with the fields of _compat_ibv_port_attr, which the exported
        // function fills in (verbs.h, `ibv_query_port`).
        done("ibv_query_port", unsafe {
            (self.functions.ibv_query_port)(self.raw.as_ptr(), number, (&raw mut attr).cast())
        })?;
        Ok(Port {
            number,
            is_active: attr.state == ibv_port_state::IBV_PORT_ACTIVE,
            is_infiniband: u32::from(attr.link_layer) != IBV_LINK_LAYER_ETHERNET,
            lid: attr.lid,
            mtu: 128 << attr.active_mtu,
            // A device that says nothing carries a page at least.
            message_max: attr.max_msg_sz.max(4096),
        })
    }

    /// The GIDs of all ports that are not empty. The table is sparse: an index is not a position.
    pub fn gids(&self) -> Result<Vec<ibverbs::GidEntry>, SetupError> {
        let room = 64 * usize::from(self.limits.phys_port_cnt).max(4) * 4;
        let mut entries = vec![ibv_gid_entry::default(); room];
        // SAFETY: room for `room` entries of that size.
        let found = unsafe {
            (self.functions._ibv_query_gid_table)(
                self.raw.as_ptr(),
                entries.as_mut_ptr(),
                room,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        if found < 0 {
            return Err(SetupError::Call { call: "ibv_query_gid_table", errno: -found as i32 });
        }
        entries.truncate(found as usize);
        Ok(entries.into_iter().map(ibverbs::GidEntry::from).collect())
    }

    fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as `self`; the table is filled before ibv_open_device
        // returns.
        unsafe { &(*self.raw.as_ptr()).ops }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once, after everything made from it (`Arc`).
        destroyed("ibv_close_device", unsafe { (self.functions.ibv_close_device)(self.raw.as_ptr()) });
    }
}

/// A protection domain: the objects of one program on one device.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Context`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub fn new(context: Arc<Context>) -> Result<Arc<ProtectionDomain>, SetupError> {
        // SAFETY: an open context.
        let raw = object("ibv_alloc_pd", unsafe { (context.functions.ibv_alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(ProtectionDomain { raw, context }))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        let functions = self.context.functions;
        // SAFETY: made by us, freed once, after everything made from it.
        destroyed("ibv_dealloc_pd", unsafe { (functions.ibv_dealloc_pd)(self.raw.as_ptr()) });
    }
}

// ---- memory -----------------------------------------------------------------------------------------

/// What the other side may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing. The local NIC may write messages there.
    Local,
    /// READ it.
    RemoteRead,
    #[cfg(feature = "herd")]
    /// WRITE it.
    RemoteWrite,
}

impl Access {
    fn flags(self) -> c_int {
        let flags = match self {
            Access::Local => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteRead => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            #[cfg(feature = "herd")]
            Access::RemoteWrite => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        flags.0 as c_int
    }
}

/// Memory that the device knows. It is deregistered before its owner is dropped.
#[derive(Debug)]
pub(crate) struct Registered<M> {
    raw: NonNull<ibv_mr>,
    domain: Arc<ProtectionDomain>,
    memory: M,
}

// SAFETY: as for `Context`; the bounds on `M` cover the memory.
unsafe impl<M: Send> Send for Registered<M> {}
// SAFETY: as above.
unsafe impl<M: Sync> Sync for Registered<M> {}

impl<M> Registered<M> {
    /// # Safety
    /// `memory` keeps `start..start + bytes` mapped and in place until it is dropped, and nothing
    /// in this process holds a reference to bytes there that `access` lets a NIC write.
    unsafe fn register(
        domain: Arc<ProtectionDomain>,
        memory: M,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registered<M>, SetupError> {
        let functions = domain.context.functions;
        // SAFETY: the caller's promise.
        let raw = unsafe { (functions.ibv_reg_mr)(domain.raw.as_ptr(), start.cast(), bytes, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| SetupError::Register {
            bytes: bytes as u64,
            errno: last_errno(),
            limit: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        })?;
        Ok(Registered { raw, domain, memory })
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: registered as long as `self`; the keys do not change.
        unsafe { ((*self.raw.as_ptr()).lkey, (*self.raw.as_ptr()).rkey) }
    }

    /// The key by which work requests of the other side name it.
    pub fn remote_key(&self) -> u32 {
        self.keys().1
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M> Drop for Registered<M> {
    fn drop(&mut self) {
        let functions = self.domain.context.functions;
        // SAFETY: made by us, freed once. Later work requests of the other side that name it fail.
        destroyed("ibv_dereg_mr", unsafe { (functions.ibv_dereg_mr)(self.raw.as_ptr()) });
    }
}

/// A region, registered for READs by others.
pub(crate) type RegisteredRegion = Registered<Arc<dyn AsRef<Region> + Send + Sync>>;

impl RegisteredRegion {
    /// Registers these bytes of the region that `owner` holds. The device pins their pages, so the time it
    /// takes is proportional to their number.
    ///
    /// # Panics
    /// When they lie outside the region.
    pub fn of_region(
        domain: Arc<ProtectionDomain>,
        owner: Arc<dyn AsRef<Region> + Send + Sync>,
        bytes: std::ops::Range<u64>,
    ) -> Result<RegisteredRegion, SetupError> {
        let region: &Region = (*owner).as_ref();
        assert!(bytes.start < bytes.end && bytes.end <= region.bytes(), "bytes outside the region");
        let start = region.start().wrapping_add(bytes.start as usize);
        // SAFETY: `owner` keeps the region, which has these bytes (asserted) and never unmaps or moves its
        // memory; the NIC only reads it.
        unsafe {
            Registered::register(domain, owner, start, (bytes.end - bytes.start) as usize, Access::RemoteRead)
        }
    }

    /// The address at which work requests of the other side reach the region's first byte.
    pub fn address(&self) -> u64 {
        (*self.memory).as_ref().start() as u64
    }
}

/// Memory of our own that NICs write into or read from, cut into equal cells.
pub(crate) type Buffer = Registered<Cells>;

/// An anonymous mapping cut into cells.
#[derive(Debug)]
pub(crate) struct Cells {
    map: MmapRaw,
    cell_bytes: usize,
}

impl Cells {
    /// The number of cells.
    pub fn cells(&self) -> usize {
        self.map.len() / self.cell_bytes
    }
}

impl Buffer {
    /// Makes `cells` zeroed cells of `cell_bytes` bytes each, rounded up to whole cache lines.
    pub fn new(
        domain: Arc<ProtectionDomain>,
        cells: usize,
        cell_bytes: usize,
        access: Access,
    ) -> Result<Buffer, SetupError> {
        let cell_bytes = cell_bytes.next_multiple_of(crate::layout::LINE);
        let bytes = cells * cell_bytes;
        let map = MmapOptions::new()
            .len(bytes)
            .map_anon()
            .map_err(|e| SetupError::Call { call: "mmap", errno: e.raw_os_error().unwrap_or(0) })?;
        let map = MmapRaw::from(map);
        // After a fork, the NIC would write into pages that this process no longer has.
        map.advise(memmap2::Advice::DontFork)
            .map_err(|e| SetupError::Call { call: "madvise", errno: e.raw_os_error().unwrap_or(0) })?;
        let start = map.as_mut_ptr();
        // SAFETY: the mapping stays where it is until dropped; its bytes are reached only through
        // the methods below.
        unsafe { Registered::register(domain, Cells { map, cell_bytes }, start, bytes, access) }
    }

    pub fn cell_bytes(&self) -> usize {
        self.memory.cell_bytes
    }

    fn cell(&self, cell: usize) -> *mut u8 {
        let at = cell * self.memory.cell_bytes;
        assert!(at + self.memory.cell_bytes <= self.memory.map.len(), "cell {cell} lies outside the buffer");
        // SAFETY: inside the mapping.
        unsafe { self.memory.map.as_mut_ptr().add(at) }
    }

    /// The first words of a cell.
    ///
    /// # Safety
    ///
    /// No NIC and no code of this process writes into the cell while the words are borrowed. That
    /// holds once each work request that names the cell has completed, or its queue pair is gone.
    pub unsafe fn words(&self, cell: usize, words: usize) -> &[u64] {
        assert!(words * size_of::<u64>() <= self.memory.cell_bytes, "more words than a cell has");
        // SAFETY: inside the mapping, aligned to lines; any bits are a u64; the caller promises the
        // rest.
        unsafe { std::slice::from_raw_parts(self.cell(cell).cast(), words) }
    }

    /// The first bytes of a cell.
    ///
    /// # Safety
    /// As for [`Buffer::words`].
    pub unsafe fn bytes(&self, cell: usize, bytes: usize) -> &[u8] {
        assert!(bytes <= self.memory.cell_bytes, "more bytes than a cell has");
        // SAFETY: inside the mapping; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.cell(cell), bytes) }
    }

    /// Copies the parts into a cell, one after the other. Returns their length in bytes.
    ///
    /// # Safety
    /// No work request that names the cell is in flight, and nobody borrows from it.
    pub unsafe fn fill(&self, cell: usize, parts: &[&[u8]]) -> usize {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(bytes <= self.memory.cell_bytes, "more bytes than a cell has");
        let mut to = self.cell(cell);
        for part in parts {
            // SAFETY: there is room (asserted); the caller promises that nobody else touches the
            // cell.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        bytes
    }

    /// A scatter/gather element for the first bytes of a cell.
    pub fn element(&self, cell: usize, bytes: usize) -> ibv_sge {
        self.element_at(cell, 0, bytes)
    }

    /// A scatter/gather element for some bytes of a cell, from byte `at` on.
    pub fn element_at(&self, cell: usize, at: usize, bytes: usize) -> ibv_sge {
        let room = self.memory.cell_bytes;
        assert!(at <= room && bytes <= room - at, "more bytes than a cell has");
        ibv_sge { addr: self.cell(cell) as u64 + at as u64, length: bytes as u32, lkey: self.keys().0 }
    }
}

// ---- completions ------------------------------------------------------------------------------------

/// A descriptor that becomes readable when an armed completion queue gets a completion.
#[derive(Debug)]
struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: Arc<Context>) -> Result<Channel, SetupError> {
        let functions = context.functions;
        // SAFETY: an open context.
        let raw = unsafe { (functions.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let channel = Channel { raw: object("ibv_create_comp_channel", raw)?, context };
        never_block(channel.fd())?;
        Ok(channel)
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is there as long as `self`; its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let functions = self.context.functions;
        // SAFETY: made by us, freed once; the queue that uses it is gone (its field comes first).
        destroyed("ibv_destroy_comp_channel", unsafe {
            (functions.ibv_destroy_comp_channel)(self.raw.as_ptr())
        });
    }
}

/// Where completions arrive. Any number of threads may poll it: libibverbs locks.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    channel: Channel,
    context: Arc<Context>,
    capacity: u32,
    /// Events taken and not yet acknowledged.
    events: AtomicU32,
}

// SAFETY: as for `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue for this many completions.
    pub fn new(context: Arc<Context>, entries: u32) -> Result<Arc<CompletionQueue>, SetupError> {
        let channel = Channel::new(context.clone())?;
        // SAFETY: open context and channel; no context pointer.
        let raw = unsafe {
            (context.functions.ibv_create_cq)(
                context.raw.as_ptr(),
                entries as c_int,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw = object("ibv_create_cq", raw)?;
        Ok(Arc::new(CompletionQueue { raw, channel, context, capacity: entries, events: AtomicU32::new(0) }))
    }

    /// The number of completions it has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Takes at most `into.len()` completions. Returns how many it took.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let poll_cq = self.context.operations().poll_cq.expect("every provider has poll_cq");
        // SAFETY: an existing queue and room for that many.
        let n = unsafe { poll_cq(self.raw.as_ptr(), into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(n).map_err(|_| VerbsError::Post { errno: -n })
    }

    /// Makes [`CompletionQueue::fd`] readable at the next completion. Poll once more after this
    /// call: a completion that came just before does not make it readable.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let req_notify_cq =
            self.context.operations().req_notify_cq.expect("every provider has req_notify_cq");
        // SAFETY: an existing queue.
        match unsafe { req_notify_cq(self.raw.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(VerbsError::Post { errno: errno.abs() }),
        }
    }

    /// Readable after a completion if the queue was armed. `poll(2)` it, then call
    /// [`take_events`](Self::take_events).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Empties the descriptor.
    pub fn take_events(&self) {
        /// Acknowledging takes a lock, so events are acknowledged in batches of this size.
        const ACKNOWLEDGED: u32 = 64;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        let functions = self.context.functions;
        // SAFETY: an existing channel, and room for the answers; it does not block.
        while unsafe { (functions.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut queue, &mut context) }
            == 0
        {
            if self.events.fetch_add(1, Ordering::Relaxed) + 1 >= ACKNOWLEDGED {
                self.acknowledge();
            }
        }
    }

    fn acknowledge(&self) {
        // SAFETY: as many events as were taken from this queue.
        unsafe {
            (self.context.functions.ibv_ack_cq_events)(
                self.raw.as_ptr(),
                self.events.swap(0, Ordering::Relaxed),
            );
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Destroying waits for acknowledgements.
        self.acknowledge();
        // SAFETY: made by us, freed once, after the queue pairs that use it (`Arc`).
        destroyed("ibv_destroy_cq", unsafe { (self.context.functions.ibv_destroy_cq)(self.raw.as_ptr()) });
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Returns an error if the work request did not succeed.
pub(crate) fn succeeded(completion: &Completion, what: &'static str) -> Result<(), VerbsError> {
    match completion.error() {
        None => Ok(()),
        Some((number, vendor)) => {
            let (status, cause) = status(number);
            Err(VerbsError::Completion { what, status, cause, vendor })
        }
    }
}

// ---- queue pairs ------------------------------------------------------------------------------------

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
        let context = &domain.context;
        let attr = ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: an existing domain, and a filled-in request.
        let raw = unsafe { (context.functions.ibv_create_srq)(domain.raw.as_ptr(), &mut attr) };
        Ok(Arc::new(SharedReceives { raw: object("ibv_create_srq", raw)?, domain, capacity: receives }))
    }

    /// The number of receives it has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Posts a cell that a message can land in.
    ///
    /// # Safety
    ///
    /// `element` names a cell of a [`Buffer`]. Nobody borrows from the cell or has posted it
    /// elsewhere. The buffer lives until every queue pair on this object is gone.
    pub unsafe fn post(&self, id: u64, mut element: ibv_sge) -> Result<(), VerbsError> {
        let mut request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = ptr::null_mut();
        let post = self.domain.context.operations().post_srq_recv.expect("every provider has post_srq_recv");
        // SAFETY: an existing queue; the request is copied before the call returns.
        posted(unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        let functions = self.domain.context.functions;
        // SAFETY: made by us, freed once, after the queue pairs that use it (`Arc`).
        destroyed("ibv_destroy_srq", unsafe { (functions.ibv_destroy_srq)(self.raw.as_ptr()) });
    }
}

/// The result of a post call: 0 or the error's number. Some negate it, or return -1 and set
/// `errno`.
fn posted(result: c_int) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(VerbsError::Post { errno: last_errno() }),
        errno => Err(VerbsError::Post { errno: errno.abs() }),
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Reliable, connected: all operations.
    Rc,
    #[cfg(feature = "herd")]
    /// Unreliable, connected: WRITE and SEND.
    Uc,
    #[cfg(feature = "herd")]
    /// Unreliable datagrams to any queue pair: SEND.
    Ud,
}

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

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub sends: u32,
    pub receives: u32,
}

/// A queue pair. Posting takes `&mut`; `Send`.
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    transport: Transport,
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub id: u64,
    pub element: ibv_sge,
    pub kind: WorkKind,
    /// Whether it gives a completion. A completion also stands for the unsignalled requests before
    /// it.
    pub signalled: bool,
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkKind {
    /// READs remote memory into the element.
    Read { address: u64, key: u32 },
    #[cfg(feature = "herd")]
    /// WRITEs the element into remote memory.
    Write { address: u64, key: u32 },
    /// SENDs the element.
    Send,
    #[cfg(feature = "herd")]
    /// SENDs the element as a datagram.
    Datagram { to: *mut ibv_ah, number: u32, key: u32 },
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
    /// Makes a queue pair that sends and receives with completions in `queue`.
    pub fn new(
        domain: Arc<ProtectionDomain>,
        queue: Arc<CompletionQueue>,
        receives: Option<Arc<SharedReceives>>,
        transport: Transport,
        depth: Depth,
        route: Route,
    ) -> Result<QueuePair, SetupError> {
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            srq: receives.as_ref().map_or(ptr::null_mut(), |receives| receives.raw.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: depth.sends,
                max_recv_wr: depth.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: match transport {
                Transport::Rc => ibv_qp_type::IBV_QPT_RC,
                #[cfg(feature = "herd")]
                Transport::Uc => ibv_qp_type::IBV_QPT_UC,
                #[cfg(feature = "herd")]
                Transport::Ud => ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: 0,
        };
        // SAFETY: existing domain and queues, and a filled-in request.
        let raw = unsafe { (domain.context.functions.ibv_create_qp)(domain.raw.as_ptr(), &mut attr) };
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
        let limits = self.domain.context.limits();
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

    fn modify(&mut self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), SetupError> {
        let functions = self.domain.context.functions;
        // SAFETY: an existing queue pair, and the fields that the mask names are filled in.
        done("ibv_modify_qp", unsafe {
            (functions.ibv_modify_qp)(self.raw.as_ptr(), &mut attr, mask.0 as c_int)
        })
    }

    /// Connects to the other side's queue pair; then both may post. `access` is what the other side
    /// may do with registered memory.
    pub fn connect(&mut self, to: &Endpoint, access: Access) -> Result<(), SetupError> {
        self.initialise(access)?;
        let is_rc = self.transport == Transport::Rc;
        let reads = to.reads.min(self.endpoint().reads);
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.route.mtu.min(to.mtu).ilog2() - 7,
            dest_qp_num: to.at.num,
            rq_psn: to.first_packet,
            max_dest_rd_atomic: reads,
            // 0.64 ms: how long the other side waits when no receive is posted.
            min_rnr_timer: 12,
            ah_attr: self.address_of(&to.at),
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
    pub fn initialise(&mut self, access: Access) -> Result<(), SetupError> {
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: self.route.port.number,
            qp_access_flags: match access {
                Access::Local => 0,
                access => access.flags() as u32,
            },
            qkey: DATAGRAM_KEY,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT;
        self.modify(
            attr,
            mask | match self.transport {
                #[cfg(feature = "herd")]
                Transport::Ud => ibv_qp_attr_mask::IBV_QP_QKEY,
                _ => ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
            },
        )
    }

    /// Moves it to the error state. Outstanding work requests complete with an error, and later
    /// ones fail.
    pub fn fail(&mut self) {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE) {
            tracing::warn!(%error, "a queue pair could not be stopped");
        }
    }

    fn address_of(&self, to: &ibverbs::QueuePairEndpoint) -> ibv_ah_attr {
        address_of(&self.route, to)
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
    /// Every element names a cell of a [`Buffer`] that outlives this queue pair. Until the
    /// request's completion, the cell of a READ is neither borrowed from nor posted again, and the
    /// cell of a SEND or WRITE is not written. The address handle that a datagram names lives until
    /// its completion, too.
    pub unsafe fn post(&mut self, works: impl IntoIterator<Item = Work>) -> Result<(), VerbsError> {
        self.requests.clear();
        self.elements.clear();
        for work in works {
            let (opcode, wr) = match work.kind {
                WorkKind::Read { address, key } => (ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(address, key)),
                #[cfg(feature = "herd")]
                WorkKind::Write { address, key } => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(address, key)),
                WorkKind::Send => (ibv_wr_opcode::IBV_WR_SEND, Default::default()),
                #[cfg(feature = "herd")]
                WorkKind::Datagram { to, number, key } => {
                    let ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                        ah: to,
                        remote_qpn: number,
                        remote_qkey: key,
                    };
                    (ibv_wr_opcode::IBV_WR_SEND, ibv_send_wr__bindgen_ty_2 { ud })
                }
            };
            let signalled = if work.signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
            self.elements.push(work.element);
            self.requests.push(ibv_send_wr {
                wr_id: work.id,
                num_sge: 1,
                opcode,
                send_flags: signalled,
                wr,
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
        let post = self.domain.context.operations().post_send.expect("every provider has post_send");
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
        let post = self.domain.context.operations().post_recv.expect("every provider has post_recv");
        // SAFETY: an existing queue pair; the request is copied before the call returns.
        posted(unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let functions = self.domain.context.functions;
        // SAFETY: made by us, freed once. After this, no NIC touches memory for it.
        destroyed("ibv_destroy_qp", unsafe { (functions.ibv_destroy_qp)(self.raw.as_ptr()) });
    }
}

/// The Q_Key of datagrams between oneread's queue pairs. It keeps stray datagrams away; it is no
/// secret.
pub(crate) const DATAGRAM_KEY: u32 = 0x1ea_d001;

fn rdma(remote_addr: u64, rkey: u32) -> ibv_send_wr__bindgen_ty_2 {
    ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } }
}

fn address_of(route: &Route, to: &ibverbs::QueuePairEndpoint) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { dlid: to.lid, port_num: route.port.number, ..Default::default() };
    if let (Some((index, _)), Some(gid)) = (route.gid, to.gid) {
        attr.is_global = 1;
        attr.grh =
            ibv_global_route { dgid: gid.into(), sgid_index: index, hop_limit: 64, ..Default::default() };
    }
    attr
}
