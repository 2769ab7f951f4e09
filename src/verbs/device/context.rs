//! A device, its ports and its protection domains.

#![allow(unsafe_code)]

use super::super::error::SetupError;
use super::super::ffi::{Functions, functions};
use super::calls::{destroyed, done, last_errno, never_block, object};
use ibverbs_sys::*;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

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

    /// The functions of the loaded library.
    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// The device, for calls of the library.
    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
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

    /// The operations that are inline functions in C.
    pub(super) fn operations(&self) -> &ibv_context_ops {
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

    /// The domain, for calls of the library.
    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// The functions of the loaded library.
    pub(super) fn functions(&self) -> &'static Functions {
        self.context.functions
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        let functions = self.context.functions;
        // SAFETY: made by us, freed once, after everything made from it.
        destroyed("ibv_dealloc_pd", unsafe { (functions.ibv_dealloc_pd)(self.raw.as_ptr()) });
    }
}
