//! Errors of verbs: while setting up, and while connected.

use super::gid::{GidError, GidMismatch};
use crate::base::units::time;
use crate::wire::WireError;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A verbs connection failed. Its operations in flight are lost, and none of them counts as
/// answered.
#[derive(Debug, thiserror::Error, Clone)]
#[non_exhaustive]
pub enum VerbsError {
    /// A work request completed with an error.
    #[error("a {what} failed with {status} (vendor error {vendor:#x}): {cause}")]
    Completion {
        /// READ, WRITE, SEND or RECV.
        what: &'static str,
        /// The status, by its name in verbs.h.
        status: &'static str,
        /// Its usual cause.
        cause: &'static str,
        /// The vendor's error code; 0 if there is none.
        vendor: u32,
    },
    /// The device did not accept a work request.
    #[error("posting to the queue pair: {}; the connection is made again", os(.errno))]
    Post {
        /// The error number.
        errno: i32,
    },
    /// No completion came in time.
    #[error("no completion within {}; the network is down, or the device has stopped", time(*within))]
    Late {
        /// The time limit.
        within: Duration,
    },
    /// The peer sent something that is not a message of the protocol.
    #[error(
        "the peer does not speak oneread's protocol: {what}; use the same version of oneread on both sides"
    )]
    Garbage {
        /// What was wrong.
        what: String,
    },
    /// The bytes are not valid frames, or not those that are due.
    #[error("the peer does not speak oneread's protocol; use the same version of oneread on both sides")]
    Wire(#[from] WireError),
    /// The server closed the connection.
    #[error("the server closed the connection; it may be stopping")]
    Closed,
    /// The connection could not be made again.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

fn os(errno: &i32) -> io::Error {
    io::Error::from_raw_os_error(*errno)
}

impl VerbsError {
    /// The error number of a work request that was not accepted, else 0.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            VerbsError::Post { errno } => *errno,
            _ => 0,
        }
    }
}

/// The source of an error that handles share.
type Cause = Arc<dyn Error + Send + Sync>;

/// Why verbs could not be set up. Each error names one cause and its remedy.
#[derive(Debug, thiserror::Error, Clone)]
#[non_exhaustive]
pub enum SetupError {
    /// The library cannot be loaded.
    #[error("libibverbs.so.1 cannot be loaded (on Debian: apt-get install libibverbs1 ibverbs-providers)")]
    Library {
        /// The loader's answer.
        source: Cause,
    },
    /// This machine has no RDMA device.
    #[error(
        "this machine has no RDMA device{}; for one in software: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
        if *.no_module { " (the kernel module ib_uverbs is not loaded)" } else { "" }
    )]
    NoDevice {
        /// Whether the kernel module is missing, too.
        no_module: bool,
    },
    /// No device has that name.
    #[error("there is no RDMA device {name:?}; there are: {}", have.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The devices that exist.
        have: Vec<String>,
    },
    /// The device has no such port.
    #[error("device {device} has no port {port}; it has ports 1 to {ports}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
        /// How many ports it has.
        ports: u8,
    },
    /// No port is up.
    #[error(
        "{}; bring its link up (ip link set DEV up, or the cable), or name another with ?dev=DEVICE&port=N",
        ports_down(device, port)
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port; `None` stands for all of them.
        port: Option<u8>,
    },
    /// No GID fits.
    #[error("device {device}, port {port}, has no GID to use")]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What is wrong, and how to mend it.
        source: GidError,
    },
    /// The MTU is not possible.
    #[error(
        "an MTU of {asked} bytes is not to be had on device {device}, whose port carries up to {active}; a path MTU is 256, 512, 1024, 2048 or 4096"
    )]
    Mtu {
        /// The device.
        device: String,
        /// The MTU asked for.
        asked: u32,
        /// The MTU that the port carries.
        active: u32,
    },
    /// The memory could not be registered.
    #[error("registering {bytes} bytes of memory: {}{}", os(.errno), register_hint(*errno, *limit))]
    Register {
        /// Its length.
        bytes: u64,
        /// The error number.
        errno: i32,
        /// The process's limit on locked memory in bytes; `None` when unlimited.
        limit: Option<u64>,
    },
    /// There is not the memory that was to be registered.
    #[error("memory to be registered")]
    Backing {
        /// Why not.
        source: Arc<crate::region::RegionError>,
    },
    /// A verbs call failed.
    #[error("{call}: {}{}", os(.errno), call_hint(*errno))]
    Call {
        /// The function.
        call: &'static str,
        /// The error number.
        errno: i32,
    },
    /// The client cannot be the owner that it is to be (`ClientOptions::owner`).
    #[error("the client cannot be the owner that it is to be; the cause says why")]
    Owner {
        /// What the server says, or how the connection failed.
        source: Cause,
    },
    /// Nobody listens at the address.
    #[error("no server at {address}")]
    NotThere {
        /// Host and port.
        address: String,
        /// The operating system's answer.
        source: Arc<io::Error>,
    },
    /// The server cannot listen at its port.
    #[error("listening at {address} (name another port, or stop who has it)")]
    Listen {
        /// Host and port.
        address: String,
        /// The operating system's answer.
        source: Arc<io::Error>,
    },
    /// Another handle of the same client is making the connection that both share, and has not
    /// finished in time.
    #[error(
        "another handle of this client is still connecting to the server; it may be suspended (SIGSTOP) or unreachable"
    )]
    Connecting,
    /// The conversation before the first READ broke off.
    #[error("the server at {peer} {why}")]
    Handshake {
        /// The server.
        peer: SocketAddr,
        /// What the server did, or failed to do.
        why: String,
        /// What the operating system or the decoder says of it.
        source: Option<Cause>,
    },
    /// The server refused the connection.
    #[error("the server at {peer} turned this client away: {why}")]
    Refused {
        /// The server.
        peer: SocketAddr,
        /// The server's reason.
        why: String,
    },
    /// The server has another token.
    #[error("the server at {peer} has another token; give this client the server's (`ClientOptions::token`)")]
    Token {
        /// The server.
        peer: SocketAddr,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "the server at {peer} speaks version {theirs} of the protocol, this program version {ours}; use the same version of oneread on both sides"
    )]
    Version {
        /// The server.
        peer: SocketAddr,
        /// Its version.
        theirs: u32,
        /// This program's.
        ours: u32,
    },
    /// Requests cannot be made in the way that was asked for
    /// ([`RequestPath::Extension`](crate::RequestPath::Extension)).
    #[error("{name}: {why}")]
    Extension {
        /// Which way.
        name: &'static str,
        /// Why not, and what mends it.
        why: String,
        /// What the decoder says of it.
        source: Option<Cause>,
    },
    /// The server describes a table that cannot be read: its superblock is invalid, or does not fit
    /// the rest of the description.
    #[error("the server at {peer} describes a table that this program cannot read")]
    Table {
        /// The server.
        peer: SocketAddr,
        /// What is wrong.
        source: Cause,
    },
    /// The two devices' ports or GIDs do not fit each other.
    #[error("no queue pair joins this host and the server at {peer}")]
    Mismatch {
        /// The server.
        peer: SocketAddr,
        /// Why not, and what mends it.
        source: GidMismatch,
    },
}

fn ports_down(device: &str, port: &Option<u8>) -> String {
    match port {
        Some(port) => format!("port {port} of device {device} is down"),
        None => format!("no port of device {device} is up"),
    }
}

fn register_hint(errno: i32, limit: Option<u64>) -> String {
    match (rustix::io::Errno::from_raw_os_error(errno), limit) {
        (rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN | rustix::io::Errno::PERM, Some(limit)) => {
            format!(
                "; this process may lock only {limit} bytes: raise the limit (ulimit -l unlimited, or `* - memlock unlimited` in /etc/security/limits.conf; LimitMEMLOCK=infinity in a systemd unit)"
            )
        }
        (rustix::io::Errno::NOMEM, None) => "; not enough memory: serve a smaller table".into(),
        _ => String::new(),
    }
}

fn call_hint(errno: i32) -> &'static str {
    match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
            "; may this user open /dev/infiniband/uverbs*?"
        }
        rustix::io::Errno::NOMEM => "; the device or the limit on locked memory (ulimit -l) is exhausted",
        _ => "",
    }
}

/// Name and usual cause of a completion status (verbs.h, `enum ibv_wc_status`).
pub(crate) fn status(number: u32) -> (&'static str, &'static str) {
    const STATUSES: [(&str, &str); 24] = [
        ("IBV_WC_SUCCESS", "no error"),
        ("IBV_WC_LOC_LEN_ERR", "a message was longer than the buffer it was to land in"),
        ("IBV_WC_LOC_QP_OP_ERR", "the queue pair cannot carry this operation"),
        ("IBV_WC_LOC_EEC_OP_ERR", "an end-to-end context is inconsistent"),
        ("IBV_WC_LOC_PROT_ERR", "the local buffer is not registered memory"),
        ("IBV_WC_WR_FLUSH_ERR", "the queue pair had failed before this came to its turn"),
        ("IBV_WC_MW_BIND_ERR", "a memory window could not be bound"),
        ("IBV_WC_BAD_RESP_ERR", "the other side answered with an unexpected packet"),
        ("IBV_WC_LOC_ACCESS_ERR", "the local buffer may not be written"),
        ("IBV_WC_REM_INV_REQ_ERR", "the other side does not allow this operation on this queue pair"),
        (
            "IBV_WC_REM_ACCESS_ERR",
            "the server no longer has that memory registered: it was restarted, or gave its region up",
        ),
        ("IBV_WC_REM_OP_ERR", "the other side's device failed"),
        (
            "IBV_WC_RETRY_EXC_ERR",
            "no acknowledgement: the server's process or host is gone, or the network is down",
        ),
        ("IBV_WC_RNR_RETRY_EXC_ERR", "the other side has no buffer for a message"),
        ("IBV_WC_LOC_RDD_VIOL_ERR", "a reliable datagram domain does not fit"),
        ("IBV_WC_REM_INV_RD_REQ_ERR", "the other side rejects the reliable datagram"),
        ("IBV_WC_REM_ABORT_ERR", "the other side aborted the operation"),
        ("IBV_WC_INV_EECN_ERR", "an end-to-end context does not exist"),
        ("IBV_WC_INV_EEC_STATE_ERR", "an end-to-end context is in the wrong state"),
        ("IBV_WC_FATAL_ERR", "the device has failed"),
        ("IBV_WC_RESP_TIMEOUT_ERR", "the response did not come in time"),
        ("IBV_WC_GENERAL_ERR", "the device gives no cause"),
        ("IBV_WC_TM_ERR", "tag matching failed"),
        ("IBV_WC_TM_RNDV_INCOMPLETE", "a rendezvous was not completed"),
    ];
    STATUSES.get(number as usize).copied().unwrap_or(("an unknown status", "the device gives no cause"))
}
