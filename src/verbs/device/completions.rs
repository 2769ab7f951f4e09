//! Completion queues.

#![allow(unsafe_code)]

use super::super::error::{SetupError, VerbsError, status};
use super::super::ffi::Completion;
use super::calls::{destroyed, never_block, object};
use super::context::Context;
use ibverbs_sys::*;
use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A descriptor that becomes readable when an armed completion queue gets a completion.
#[derive(Debug)]
struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: Arc<Context>) -> Result<Channel, SetupError> {
        let functions = context.functions();
        // SAFETY: an open context.
        let raw = unsafe { (functions.ibv_create_comp_channel)(context.raw()) };
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
        let functions = self.context.functions();
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
            (context.functions().ibv_create_cq)(
                context.raw(),
                entries as c_int,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw = object("ibv_create_cq", raw)?;
        Ok(Arc::new(CompletionQueue { raw, channel, context, capacity: entries, events: AtomicU32::new(0) }))
    }

    /// The queue, for calls of the library.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
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
        let functions = self.context.functions();
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
            (self.context.functions().ibv_ack_cq_events)(
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
        destroyed("ibv_destroy_cq", unsafe { (self.context.functions().ibv_destroy_cq)(self.raw.as_ptr()) });
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
