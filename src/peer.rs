//! Who is at the other end of a Unix socket.
//!
//! Not by `rustix`: its process numbers are never 0, but the kernel says 0 of a process in another namespace,
//! as it is in another container.
#![allow(unsafe_code, reason = "a call of the system")]

use rustix::io::Errno;
use rustix::process::Pid;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Who listens, or has connected.
#[derive(Clone, Copy, Debug)]
pub struct SocketPeer {
    /// `None` where this process cannot see it.
    pub pid: Option<Pid>,
    /// The user, as this process sees it.
    pub uid: u32,
}

impl SocketPeer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The kernel's, as for a file that is no socket.
    pub fn of(socket: impl AsFd) -> Result<SocketPeer, Errno> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of_val(&found) as libc::socklen_t;
        // SAFETY:
        // * both pointers are to variables of this function, and nothing else uses them meanwhile;
        // * `length` is the length of the first, and any bytes are a `ucred`.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(SocketPeer { pid: Pid::from_raw(found.pid), uid: found.uid })
    }
}
