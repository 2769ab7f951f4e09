//! The verbs fabric: READs by an RDMA device (InfiniBand, RoCE, iWARP, Soft-RoCE).
//!
//! | module | what it holds |
//! | --- | --- |
//! | `ffi` | libibverbs, loaded at run time |
//! | `device` | verbs objects that release themselves |
//! | [`gid`] | which GID to use, and why |
//! | `station` | an open device with its port, GID and MTU |
//! | `bootstrap` | the conversation over TCP before the first READ |
//!
//! Nothing here knows keys or slots. The client's use of verbs is in `client/verbs/`, the server's
//! in `server/verbs/`.
//!
//! Everything but the options and the choice of a GID needs the cargo feature
//! `verbs`.

#[cfg(feature = "verbs")]
pub(crate) mod bootstrap;
#[cfg(feature = "verbs")]
pub(crate) mod device;
#[cfg(feature = "verbs")]
pub mod error;
#[cfg(feature = "verbs")]
pub(crate) mod ffi;
pub mod gid;
#[cfg(feature = "verbs")]
pub(crate) mod station;

#[cfg(feature = "verbs")]
pub use error::{SetupError, VerbsError};

use crate::base::setters::setters;
use std::num::NonZeroU8;

/// Counts of a connection's work on the NIC's queues, in addition to the counts of READs.
#[cfg(feature = "verbs")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Calls of `ibv_post_send`.
    pub doorbells: u64,
    /// READs posted.
    pub reads: u64,
    /// Messages sent.
    pub messages: u64,
    /// Requests of an extension that were made again because no reply had come. Messages are never lost.
    pub repeats: u64,
    /// Completions taken from the completion queue.
    pub completions: u64,
}

#[cfg(feature = "verbs")]
impl std::ops::AddAssign for QueueCounts {
    fn add_assign(&mut self, other: QueueCounts) {
        self.doorbells += other.doorbells;
        self.reads += other.reads;
        self.messages += other.messages;
        self.repeats += other.repeats;
        self.completions += other.completions;
    }
}

/// How to wait for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls the queue, and yields to other threads after some microseconds. Lowest latency; keeps
    /// one core busy.
    #[default]
    Poll,
    /// Sleeps until the device wakes this thread. Takes some microseconds more, and no CPU
    /// meanwhile.
    Block,
}

/// How a client uses verbs. Other fabrics ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsOptions {
    /// How to wait for READs and answers.
    pub wait: Wait,
    /// READs in flight at once, for [`Client::get_many`](crate::Client::get_many): 1 to 1,024. The
    /// device may allow fewer. With [`pairs`](VerbsOptions::pairs), this is the limit of each queue
    /// pair, for all its handles together. Further READs wait.
    pub credits: usize,
    /// Queue pairs for the READs of one client with all its clones.
    ///
    /// With `None`, each handle has its own. That is fastest while there are few handles.
    ///
    /// With `Some(m)`, all handles share `m` queue pairs (0 counts as 1). Each is made when it is
    /// first needed. One more serves changes, which then happen one handle at a time. No handle
    /// waits for a lock to GET, and the handles on a queue pair have equal shares of it. A queue
    /// pair that fails is made again once for all of them.
    pub pairs: Option<usize>,
}

setters!(VerbsOptions {
    wait: Wait,
    credits: usize,
    pairs: impl Into<Option<usize>>,
});

impl VerbsOptions {
    /// [`VerbsOptions::default`].
    pub fn new() -> VerbsOptions {
        VerbsOptions::default()
    }
}

impl Default for VerbsOptions {
    /// Polling, 64 READs in flight, one queue pair for each handle.
    fn default() -> VerbsOptions {
        VerbsOptions { wait: Wait::Poll, credits: 64, pairs: None }
    }
}

/// Which device, port, GID and MTU to use. The library chooses what is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DeviceChoice {
    /// The device's name, as `ibv_devices` lists it. Without one, the first device with a port that
    /// is up.
    pub device: Option<String>,
    /// The port's number, from 1. Without one, the first port that is up.
    pub port: Option<NonZeroU8>,
    /// The index of the GID. Without one, the best for the peer ([`gid::choose`]).
    pub gid: Option<u32>,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096. Without one, the MTU that the port
    /// carries.
    pub mtu: Option<u32>,
}

setters!(DeviceChoice {
    device: impl Into<Option<String>>,
    port: impl Into<Option<NonZeroU8>>,
    gid: impl Into<Option<u32>>,
    mtu: impl Into<Option<u32>>,
});

impl DeviceChoice {
    /// Sets nothing: the library chooses everything.
    pub fn new() -> DeviceChoice {
        DeviceChoice::default()
    }
}

/// Host and port as one text. An IPv6 address goes in brackets.
pub(crate) fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') || host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Turns on TCP keep-alive. Without it, a connection whose peer's host has vanished would stay idle
/// for ever.
pub(crate) fn keep_alive(stream: &impl std::os::fd::AsFd) {
    use rustix::net::sockopt;
    use std::time::Duration;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

/// Whether this is a valid path MTU.
pub(crate) fn is_mtu(bytes: u32) -> bool {
    matches!(bytes, 256 | 512 | 1024 | 2048 | 4096)
}
