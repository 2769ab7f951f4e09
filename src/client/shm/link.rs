//! A Unix socket to a server on this host: opening it, and frames over it.

use super::mailbox::BellSocket;
use crate::address::Address;
use crate::base::peer::SocketPeer;
use crate::client::breaking::sleeps_until;
use crate::client::error::{ConnectError, LinkError};
use crate::client::link::{Link, is_out_of_descriptors, is_transient};
pub(super) use crate::client::link::{MEMORY_ID, hello, is_hung_up, link_failed};
use crate::files;
use crate::wire::{self, Reply};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use smallvec::SmallVec;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The memory that came with a reply. A welcome comes with the region, and perhaps with a map in which a client notes its
/// reads, and with counters of them.
#[derive(Debug, Default)]
pub(super) struct HandedMemory {
    pub first: Option<OwnedFd>,
    pub others: SmallVec<[OwnedFd; 2]>,
}

/// A connection to the server on this host.
pub(super) type SocketLink = Link<UnixStream>;

impl SocketLink {
    /// Sends a request whose reply comes with descriptors. Returns both; descriptors may be missing.
    pub(super) fn ask_for_memory(
        &mut self,
        request: &[u8],
        deadline: Instant,
    ) -> Result<(Reply, HandedMemory), LinkError> {
        // A server that refuses hangs up at once. Its refusal can still be read.
        let sent = self.send(request, deadline);
        let mut handed = HandedMemory::default();
        loop {
            if let Some(reply) = self.memory_reply()? {
                return Ok((reply, handed));
            }
            self.wait(PollFlags::IN, deadline)?;
            match self.receive_memory(&mut handed) {
                Err(LinkError::HungUp) => {
                    sent?;
                    return Err(LinkError::HungUp);
                }
                received => received?,
            }
        }
    }

    /// The reply to a request for memory, if it is whole.
    pub fn memory_reply(&mut self) -> Result<Option<Reply>, LinkError> {
        let reply = self.first_reply()?;
        if let Some(Reply::Welcome { level, .. }) = reply {
            self.level = level;
        }
        Ok(reply)
    }

    /// Receives the available part of such a reply, and its descriptors. Does not wait.
    pub(super) fn receive_memory(&mut self, handed: &mut HandedMemory) -> Result<(), LinkError> {
        let mut chunk = [0u8; 256];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .map_err(io::Error::from);
        let received = match received {
            Err(e) if is_transient(&e) => return Ok(()),
            received => received?,
        };
        // The kernel could not give this process a descriptor.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LinkError::Os(rustix::io::Errno::MFILE.into()));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message
                && let Some(first) = fds.next()
            {
                *handed = HandedMemory { first: Some(first), others: fds.collect() };
            }
        }
        if received.bytes == 0 {
            return Err(LinkError::HungUp);
        }
        self.input.extend_from_slice(&chunk[..received.bytes]);
        Ok(())
    }
}

impl BellSocket for SocketLink {
    fn ring(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.wake(deadline)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.check(deadline)?;
        self.receive(deadline)?;
        // All requests that went over the stream were answered, so only rings are left.
        let mut taken = 0;
        while let Some(frame) = wire::decode(&self.input[taken..])? {
            if Reply::decode(&frame)? != Reply::Wake {
                return Err(LinkError::Unexpected);
            }
            taken += frame.length;
        }
        self.input.drain(..taken);
        Ok(())
    }
}

/// A connection, and the server's process, if that can be watched: a child that it made by `fork` may keep
/// the connection open after its end.
#[derive(Debug)]
pub(super) struct WatchedLink {
    pub stream: Arc<UnixStream>,
    pub server: Option<OwnedFd>,
}

impl WatchedLink {
    /// Whether the server has hung up or ended. Does not wait.
    pub fn is_lost(&self) -> bool {
        let has_ended = |server| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut watched = [PollFd::new(server, PollFlags::IN)];
            matches!(rustix::event::poll(&mut watched, Some(&now)), Ok(n) if n > 0)
        };
        is_hung_up(&self.stream) || self.server.as_ref().is_some_and(has_ended)
    }
}

/// Opens a non-blocking socket to the server. Never waits past the deadline, although the backlog
/// of a suspended server may be full.
pub(super) fn open_socket(
    address: &Address,
    path: &Path,
    trusted: &[u32],
    within: Duration,
    deadline: Instant,
) -> Result<UnixStream, ConnectError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let os = |e: rustix::io::Errno| match (address.clone(), io::Error::from(e)) {
        (address, source) if is_out_of_descriptors(&source) => ConnectError::Descriptors { address, source },
        (address, source) if source.kind() == io::ErrorKind::PermissionDenied => {
            ConnectError::NoAccess { address, source }
        }
        (address, source) => ConnectError::NotThere { address, source },
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(os)?;
    let name = SocketAddrUnix::new(path).map_err(os)?;
    loop {
        match rustix::net::connect(&socket, &name) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN)
                if Instant::now() < deadline && sleeps_until(deadline).is_some() =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(rustix::io::Errno::AGAIN) => {
                let source = LinkError::Deadline(within);
                return Err(ConnectError::Link { address: address.clone(), source });
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(os(e)),
        }
    }
    // The user that listens at the address, or listened when the connection was made.
    let uid = SocketPeer::of(&socket).map_err(os)?.uid;
    if !files::is_trusted(uid, trusted) {
        return Err(ConnectError::Stranger { address: address.clone(), uid });
    }
    Ok(UnixStream::from(socket))
}

/// The process that listens at the other end: readable when it has ended. `None` if it cannot be watched: in another
/// namespace of processes, before Linux 5.3, or without a descriptor.
///
/// To be called before the hello. The process that answers it had this number when it began to listen, and has not
/// ended since. So no other process had the number in between.
pub(super) fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = SocketPeer::of(stream).ok()?.pid?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::client::handle::Deadline;
    use crate::wire::Request;
    use std::io::Write;

    /// A server that always rings and never answers keeps no client awake past the deadline. The
    /// client does not keep the bytes of the rings.
    #[test]
    fn rings_do_not_extend_the_deadline() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let allowed = Duration::from_secs(3);
        let mut link = SocketLink::new(Arc::new(stream), allowed);
        let mut rings = Vec::new();
        (0..3).for_each(|_| Reply::Wake.encode(0, &mut rings));
        server.write_all(&rings[..40]).unwrap();
        let (past, soon) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let late = link.sleep(past);
        assert!(matches!(late, Err(LinkError::Deadline(bound)) if bound == allowed), "{late:?}");
        link.sleep(soon).unwrap();
        assert_eq!(link.input, rings[32..40], "half a ring");
        // It waits for replies over the stream: rings among them are late ones.
        let get = [Request::Get { key: b"key" }];
        server.write_all(&rings[40..]).unwrap();
        let converse = |link: &mut SocketLink, first_id, at| {
            let (mut deadline, mut replies) = (Deadline::until(at, allowed), Vec::new());
            link.converse(&get, first_id, &mut deadline, &mut replies).map(|()| replies)
        };
        let late = converse(&mut link, 7, past);
        assert!(matches!(late, Err(LinkError::Deadline(bound)) if bound == allowed), "{late:?}");
        let mut answer = rings.clone();
        Reply::Value(None).encode(8, &mut answer);
        server.write_all(&answer).unwrap();
        assert_eq!(converse(&mut link, 8, soon).unwrap(), [Reply::Value(None)]);
        // Anything but a ring is nothing that a client with a mailbox waits for.
        server.write_all(&answer).unwrap();
        let wrong = link.sleep(soon);
        assert!(matches!(wrong, Err(LinkError::Unexpected)), "{wrong:?}");
        drop(server);
        let gone = link.sleep(soon);
        assert!(matches!(gone, Err(LinkError::HungUp)), "{gone:?}");
    }

    /// A wait ends before its deadline when it is not wanted any more, and not before.
    #[test]
    fn a_wait_that_is_not_wanted_ends() {
        use crate::client::breaking::breakable;
        use std::sync::atomic::{AtomicU32, Ordering};
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let (stream, _server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut link = SocketLink::new(Arc::new(stream), Duration::from_secs(3600));
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ended = breakable(|| ASKED.fetch_add(1, Ordering::Relaxed) == 2, || link.sleep(deadline));
        assert!(matches!(ended, Err(LinkError::Deadline(_))), "{ended:?}");
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
        let late = breakable(|| false, || link.sleep(Instant::now() + Duration::from_millis(1)));
        assert!(matches!(late, Err(LinkError::Deadline(_))), "{late:?}");
    }

    /// Each answer renews the deadline, so that a batch is bounded by the time without one. What came before an
    /// error is there.
    #[test]
    fn answers_renew_the_deadline() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let allowed = Duration::from_secs(60);
        let mut link = SocketLink::new(Arc::new(stream), allowed);
        let answer = |id| {
            let mut bytes = Vec::new();
            Reply::Value(None).encode(id, &mut bytes);
            bytes
        };
        let gets = [Request::Get { key: b"key" }; 3];
        server.write_all(&answer(7)).unwrap();
        let answers = std::thread::spawn(move || {
            for id in [8, 9, 10, 11] {
                std::thread::sleep(Duration::from_millis(30));
                server.write_all(&answer(id)).unwrap();
            }
            // It says no more.
            server.shutdown(std::net::Shutdown::Write).unwrap();
            server
        });
        let mut ask = |first_id| {
            let (mut deadline, mut replies) = (Deadline::until(Instant::now(), allowed), Vec::new());
            // The first answer is there, and none of the others before the deadline.
            let asked = link.converse(&gets, first_id, &mut deadline, &mut replies);
            (asked, replies.len(), deadline.at > Instant::now())
        };
        let (asked, replies, is_renewed) = ask(7);
        assert!(asked.is_ok() && replies == 3 && is_renewed, "{asked:?}");
        let _server = answers.join().unwrap();
        let (asked, replies, is_renewed) = ask(10);
        assert!(matches!(asked, Err(LinkError::HungUp)) && replies == 2 && is_renewed, "{asked:?}");
    }
}
