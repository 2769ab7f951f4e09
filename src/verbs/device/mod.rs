//! Verbs objects that release themselves: context, protection domain, memory, completion queue,
//! queue pair.
//!
//! Each object holds what it was made from in an `Arc`. They are therefore dropped in the order
//! that verbs demands: children first. A NIC writes only into [`Buffer`]s, and only while a queue
//! pair that was handed them lives. A queue pair is destroyed before its buffers are freed.
//!
//! `post_send`, `post_recv` and `poll_cq` are inline functions in C. Here, too, they go through the
//! context's table of operations.

pub(crate) mod calls;
mod completions;
mod context;
mod memory;
pub(crate) mod queue_pair;
mod receives;

pub(crate) use completions::{CompletionQueue, succeeded};
pub(crate) use context::{Context, DeviceEvent, ProtectionDomain};
pub(crate) use memory::{Access, Buffer, RegisteredRegion};
pub(crate) use queue_pair::{Depth, Endpoint, QueuePair, Route, Work, WorkKind};
pub(crate) use receives::SharedReceives;
