//! Who is at the other end: of a Unix socket; and who of many strangers gives way to one more.
//!
//! Not by `rustix`: its process numbers are never 0, but the kernel says 0 of a process in another namespace,
//! as it is in another container.
//!
//! The kernel notes at a socket who called `listen`, and hands that on to each connection. The process may have ended
//! since, and its number may be another one's by now, while a child still has the socket. So a number proves nothing;
//! [`PeerProcess`] does.
#![allow(unsafe_code, reason = "a call of the system")]

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Who listens, or has connected.
#[derive(Clone, Copy, Debug)]
pub struct SocketPeer {
    /// The number that the process had then. `None` where this process cannot see it.
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
        ask(&socket, libc::SO_PEERCRED, &mut found)?;
        Ok(SocketPeer { pid: Pid::from_raw(found.pid), uid: found.uid })
    }
}

/// Reads an option of a socket. `T` is an integer, or a struct of integers.
fn ask<T: Copy>(socket: impl AsFd, option: libc::c_int, found: &mut T) -> Result<(), Errno> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY:
    // * both pointers are to variables of this function or its caller, and nothing else uses them meanwhile;
    // * `length` is the length of the first, and any bytes are integers.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(found).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// A connection to a Unix socket that asks for nothing. A listener whose backlog is full has it wait, for up to `within`.
///
/// # Errors
/// The kernel's: AGAIN after that time.
pub fn connect(path: &Path, within: Duration) -> Result<OwnedFd, Errno> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // None at all would be for ever.
    set_socket_timeout(&socket, Timeout::Send, Some(within.max(Duration::from_millis(1))))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Why the process that listens cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProcess {
    /// It is in another namespace of processes, as in a container.
    Unseen,
    /// It had this number, and has ended. Another process may have its socket.
    Ended(Pid),
    /// It had this number. Nothing proves that the process with this number now is that one.
    Unproved(Pid),
    /// The system refuses to say.
    Os(Errno),
}

/// A process, held by a descriptor: a signal reaches this one or nobody, whoever has its number later.
#[derive(Debug)]
pub struct PeerProcess {
    pid: Pid,
    handle: OwnedFd,
}

impl PeerProcess {
    /// The process that listens at the other end of this connection, which was made to the socket at `path`.
    ///
    /// # Errors
    /// [`NoProcess`] where that is not known for certain.
    pub fn listening(socket: impl AsFd, path: &Path) -> Result<PeerProcess, NoProcess> {
        let pid = SocketPeer::of(&socket).map_err(NoProcess::Os)?.pid.ok_or(NoProcess::Unseen)?;
        let mut handle = -1;
        match ask(&socket, libc::SO_PEERPIDFD, &mut handle) {
            Ok(()) => {
                // SAFETY: the kernel has made this descriptor for this call, and nobody else has it.
                let handle = unsafe { OwnedFd::from_raw_fd(handle) };
                PeerProcess { pid, handle }.unless_ended()
            }
            // Linux before 6.5 knows no such option.
            Err(Errno::NOPROTOOPT) => PeerProcess::holding(pid, path),
            Err(Errno::SRCH | Errno::INVAL) => Err(NoProcess::Ended(pid)),
            Err(why) => Err(NoProcess::Os(why)),
        }
    }

    /// The process with this number, if it has the socket that listens at `path`, as `/proc` shows it.
    ///
    /// # Errors
    /// [`NoProcess`] where that is not known for certain.
    pub fn holding(pid: Pid, path: &Path) -> Result<PeerProcess, NoProcess> {
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|why| match why {
            Errno::SRCH => NoProcess::Ended(pid),
            why => NoProcess::Os(why),
        })?;
        let process = PeerProcess { pid, handle };
        if !has_listener(pid, path) {
            return Err(process.unless_ended().map_or_else(|ended| ended, |_| NoProcess::Unproved(pid)));
        }
        // What was read was this process's: it has not ended since, so nobody else had its number.
        process.unless_ended()
    }

    fn unless_ended(self) -> Result<PeerProcess, NoProcess> {
        // No signal: it only asks whether there is anybody to send one to.
        let has_ended = is_readable(self.handle.as_fd());
        if has_ended { Err(NoProcess::Ended(self.pid)) } else { Ok(self) }
    }

    /// Its number, as long as it has not ended.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The kernel's: ESRCH when it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd_send_signal(&self.handle, signal)
    }
}

/// Readable when the process has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl From<PeerProcess> for OwnedFd {
    fn from(process: PeerProcess) -> OwnedFd {
        process.handle
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether a process has the socket open that listens at `path`. `false` where `/proc` does not show it.
fn has_listener(pid: Pid, path: &Path) -> bool {
    let of_process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let Ok(sought) = path.metadata() else { return false };
    let Ok(sockets) = std::fs::read(of_process.join("net/unix")) else { return false };
    let is_sought = |name: &Path| {
        // A relative name is from the folder in which the process was when it bound the socket.
        let from = if name.is_absolute() { "root" } else { "cwd" };
        let name = of_process.join(from).join(name.strip_prefix("/").unwrap_or(name));
        name.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == (sought.dev(), sought.ino()))
    };
    let sought =
        sockets.split(|&byte| byte == b'\n').filter_map(listener_in).filter(|(_, name)| is_sought(name));
    let links: Vec<String> = sought.map(|(socket, _)| format!("socket:[{socket}]")).collect();
    let Ok(open) = std::fs::read_dir(of_process.join("fd")) else { return false };
    let mut open = open.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    open.any(|file| links.iter().any(|link| file.as_os_str() == link.as_str()))
}

/// The number of a socket that listens, and its name, in this line of `/proc/net/unix`.
fn listener_in(line: &[u8]) -> Option<(u64, &Path)> {
    /// The flag of a socket that listens.
    const LISTENS: u64 = 1 << 16;
    let mut rest = line;
    let mut fields = [&b""[..]; 7];
    for field in &mut fields {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        (*field, rest) = rest.split_at(end);
    }
    let number = |field: &[u8], radix| u64::from_str_radix(std::str::from_utf8(field).ok()?, radix).ok();
    let name = rest.strip_prefix(b" ").filter(|name| !name.is_empty())?;
    let listens = number(fields[3], 16)? & LISTENS != 0;
    listens.then_some((number(fields[6], 10)?, Path::new(OsStr::from_bytes(name))))
}

/// Most strangers of an acceptor at the same time: those who have proven nothing yet.
pub const JOINING_MAX: usize = 256;

/// How the file descriptors are shared out that a process may still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShare {
    /// The most that the process may have open.
    pub limit: u64,
    /// The most strangers of each acceptor. They have a quarter of what is left, so the rest is there for clients.
    pub strangers: usize,
    /// The most clients that there is room for, beside strangers.
    pub clients: u64,
}

impl DescriptorShare {
    /// Kept to answer those with who are turned away, and for mailboxes.
    pub const KEPT: u64 = 16;

    /// What there is now, for a server that is going to open `own` descriptors more, and has so many acceptors.
    pub fn now(own: u64, acceptors: usize) -> DescriptorShare {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        // The kernel gives the lowest number that is free.
        let free = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let in_use = free.map_or(limit, |fd| fd.as_raw_fd() as u64);
        DescriptorShare::of(limit, in_use.saturating_add(own), acceptors)
    }

    fn of(limit: u64, in_use: u64, acceptors: usize) -> DescriptorShare {
        let left = limit.saturating_sub(in_use.saturating_add(DescriptorShare::KEPT));
        let acceptors = acceptors.max(1) as u64;
        let strangers = (left / 4 / acceptors).clamp(1, JOINING_MAX as u64);
        DescriptorShare {
            limit,
            strangers: strangers as usize,
            clients: left.saturating_sub(strangers * acceptors),
        }
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
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Strangers have a quarter at most of what is left, of all acceptors together, and one each at least.
    #[test]
    fn strangers_leave_room_for_clients() {
        for (limit, in_use, acceptors, strangers, clients) in [
            (64, 24, 2, 3, 18),
            (1024, 24, 2, 123, 738),
            (1024, 24, 1, 246, 738),
            (1 << 20, 24, 2, 256, (1 << 20) - 24 - 16 - 512),
            (u64::MAX, 24, 2, 256, u64::MAX - 24 - 16 - 512),
            (43, 24, 2, 1, 1),
            (42, 24, 2, 1, 0),
            (16, 24, 2, 1, 0),
        ] {
            let share = DescriptorShare::of(limit, in_use, acceptors);
            assert_eq!(share, DescriptorShare { limit, strangers, clients }, "{limit}");
        }
        let now = DescriptorShare::now(0, 1);
        let less = DescriptorShare::now(now.clients, 1);
        assert!(now.clients > 0 && less.clients < now.clients, "{now:?} {less:?}");
    }

    /// Who listens is found by both ways. A process that does not have the socket is not taken for it, nor is one that has
    /// another socket, or has ended.
    #[test]
    fn who_listens_is_proved() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a name", "other"].map(|name| dir.path().join(name));
        let listener = UnixListener::bind(&path).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let own = Pid::from_raw(std::process::id() as i32).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let found = PeerProcess::listening(&stream, &path).unwrap();
        assert_eq!(found.pid(), own);
        assert_eq!(PeerProcess::holding(own, &path).unwrap().pid(), own);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let stranger = Pid::from_child(&child);
        let unproved = PeerProcess::holding(stranger, &path).unwrap_err();
        assert_eq!(unproved, NoProcess::Unproved(stranger));
        child.kill().unwrap();
        // It has ended, and keeps its number until it is waited for.
        assert!(child.wait().is_ok());
        assert_eq!(PeerProcess::holding(stranger, &path).unwrap_err(), NoProcess::Ended(stranger));
        // The name leads to no socket that listens, though this process has one of that name.
        drop(listener);
        assert_eq!(PeerProcess::holding(own, &path).unwrap_err(), NoProcess::Unproved(own));
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(PeerProcess::holding(own, &path).unwrap_err(), NoProcess::Unproved(own), "it was renamed");
    }

    /// Names may have spaces. Sockets that do not listen, or have no name, are none.
    #[test]
    fn listeners_are_found_in_a_list() {
        let line = "ffff8b0000000000: 00000002 00000000 00010000 0001 01 22334 /a b/c";
        assert_eq!(listener_in(line.as_bytes()), Some((22_334, Path::new("/a b/c"))));
        for none in [
            "Num       RefCount Protocol Flags    Type St Inode Path",
            "ffff8b0000000000: 00000003 00000000 00000000 0001 03 22334 /a",
            "ffff8b0000000000: 00000003 00000000 00010000 0001 01 22334",
            "",
        ] {
            assert_eq!(listener_in(none.as_bytes()), None, "{none}");
        }
    }

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
