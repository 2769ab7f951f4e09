//! Who is at the other end: of a Unix socket; and who of many strangers gives way to one more.
//!
//! Not by `rustix`: its process numbers are never 0, but the kernel says 0 of a process in another namespace,
//! as it is in another container.
#![allow(unsafe_code, reason = "a call of the system")]

use rustix::io::Errno;
use rustix::process::Pid;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

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

/// Which of those who have proven nothing yet gives way to one more: of the host that has most of them, who has
/// taken longest. So a host of strangers does not keep others out.
pub fn gives_way<T: Copy>(strangers: impl Iterator<Item = (T, IpAddr, Instant)> + Clone) -> Option<T> {
    let mut of_host = HashMap::new();
    strangers.clone().for_each(|(_, host, _)| *of_host.entry(host).or_insert(0) += 1);
    strangers.max_by_key(|(_, host, since)| (of_host[host], Reverse(*since))).map(|(who, ..)| who)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Of many strangers of one host the oldest gives way, not a client of another, which came before all of
    /// them or after. Where each host has one, it is the oldest of all.
    #[test]
    fn the_host_with_most_gives_way() {
        let (stranger, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let begun = Instant::now();
        let of = |all: &[(IpAddr, u64)]| {
            let all: Vec<_> =
                all.iter().map(|&(host, n)| (n, host, begun + Duration::from_secs(n))).collect();
            gives_way(all.iter().copied())
        };
        assert_eq!(of(&[(other, 1), (stranger, 5), (stranger, 3), (stranger, 4), (other, 9)]), Some(3));
        assert_eq!(of(&[(stranger, 2), (other, 1)]), Some(1));
        assert_eq!(of(&[]), None);
    }
}
