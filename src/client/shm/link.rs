//! A Unix socket to a server on this host: opening it, and frames over it.

use super::mailbox::BellSocket;
use crate::address::Address;
use crate::breaking::{interrupted, sleeps_until};
use crate::client::error::{ConnectError, LinkError};
use crate::client::handle::Deadline;
use crate::files;
use crate::peer::SocketPeer;
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use std::io::{self, IoSliceMut, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of requests whose reply comes with memory, and of their replies.
pub(super) const MEMORY_ID: u64 = 0;

/// What came with a reply. A welcome comes with the region, and perhaps with where a client notes what it reads.
#[derive(Debug, Default)]
pub(super) struct HandedMemory {
    pub first: Option<OwnedFd>,
    pub second: Option<OwnedFd>,
}

/// A connection to the server.
#[derive(Debug)]
pub(super) struct SocketLink {
    /// Shared with the watch, if that watches this connection.
    stream: Arc<UnixStream>,
    input: Vec<u8>,
    /// Which requests the server knows, as its welcome says.
    level: u16,
    /// The whole time allowed, for error messages.
    allowed: Duration,
}

impl SocketLink {
    pub fn new(stream: Arc<UnixStream>, allowed: Duration) -> SocketLink {
        SocketLink { stream, input: Vec::new(), level: 0, allowed }
    }

    /// The same link, for errors that name another time.
    pub fn allowing(self, allowed: Duration) -> SocketLink {
        SocketLink { allowed, ..self }
    }

    /// Which requests the server knows ([`wire::LEVEL`]).
    pub fn level(&self) -> u16 {
        self.level
    }

    #[cfg(test)]
    pub fn allowed(&self) -> Duration {
        self.allowed
    }

    pub fn stream(&self) -> &Arc<UnixStream> {
        &self.stream
    }

    /// Sends a request whose reply comes with descriptors. Returns both; descriptors may be missing.
    pub fn ask_for_memory(
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
        let Some(frame) = wire::decode(&self.input)? else { return Ok(None) };
        let reply = Reply::decode(&frame)?;
        if frame.id != MEMORY_ID {
            return Err(LinkError::Unexpected);
        }
        self.input.drain(..frame.length);
        if let Reply::Welcome { level, .. } = reply {
            self.level = level;
        }
        Ok(Some(reply))
    }

    /// Receives what is there of such a reply, and its descriptors. Does not wait.
    pub fn receive_memory(&mut self, handed: &mut HandedMemory) -> Result<(), LinkError> {
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
                *handed = HandedMemory { first: Some(first), second: fds.next() };
            }
        }
        if received.bytes == 0 {
            return Err(LinkError::HungUp);
        }
        self.input.extend_from_slice(&chunk[..received.bytes]);
        Ok(())
    }

    /// Sends requests, numbered from `first_id`, and receives their replies.
    pub fn converse(
        &mut self,
        requests: &[Request<'_>],
        first_id: u64,
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), LinkError> {
        let mut out = Vec::new();
        requests.iter().zip(first_id..).for_each(|(request, id)| request.encode(id, &mut out));
        self.send(&out, deadline.at)?;
        self.receive_replies(first_id..first_id + requests.len() as u64, deadline, replies)
    }

    /// Receives the replies to requests with these numbers, which were sent.
    pub fn receive_replies(
        &mut self,
        mut missing: Range<u64>,
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), LinkError> {
        loop {
            let (mut taken, before) = (0, replies.len());
            while !missing.is_empty() {
                let Some(frame) = wire::decode(&self.input[taken..])? else { break };
                taken += frame.length;
                match Reply::decode(&frame)? {
                    // A late ring, for a request that went through the mailbox.
                    Reply::Wake => {}
                    reply if frame.id == missing.start => {
                        missing.start += 1;
                        replies.push(reply);
                    }
                    _ => return Err(LinkError::Unexpected),
                }
            }
            self.input.drain(..taken);
            if replies.len() > before {
                deadline.renew();
            }
            if missing.is_empty() {
                return Ok(());
            }
            if taken > 0 && replies.len() == before {
                self.check(deadline.at)?;
            }
            self.receive(deadline.at)?;
        }
    }

    /// Fails after the deadline. Without this check, a server that always rings and never answers
    /// would keep the client awake for ever.
    fn check(&self, deadline: Instant) -> Result<(), LinkError> {
        if Instant::now() < deadline { Ok(()) } else { Err(LinkError::Deadline(self.allowed)) }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.wait(PollFlags::IN, deadline)?;
        let mut chunk = [0u8; 1 << 14];
        match (&*self.stream).read(&mut chunk) {
            Ok(0) => Err(LinkError::HungUp),
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(())
            }
            Err(e) if is_transient(&e) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match (&*self.stream).write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_transient(&e) => self.wait(PollFlags::OUT, deadline)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Waits until the stream is ready, at most until the deadline, and no longer than that is wanted.
    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), LinkError> {
        loop {
            let until = sleeps_until(deadline).ok_or(LinkError::Deadline(self.allowed))?;
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.stream, what)], Some(&timeout)) {
                Ok(0) if until < deadline => {}
                Ok(0) => return Err(LinkError::Deadline(self.allowed)),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => interrupted(),
                Err(e) => return Err(LinkError::Os(e.into())),
            }
        }
    }
}

impl BellSocket for SocketLink {
    fn ring(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let mut out = Vec::new();
        Request::Wake.encode(0, &mut out);
        self.send(&out, deadline)
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
    // Whoever listens at the address, or listened when the connection was made.
    let uid = SocketPeer::of(&socket).map_err(os)?.uid;
    if !files::is_trusted(uid, trusted) {
        return Err(ConnectError::Stranger { address: address.clone(), uid });
    }
    Ok(UnixStream::from(socket))
}

/// The process that listens at the other end: readable when it has ended. `None` where that cannot be
/// watched: in another namespace of processes, before Linux 5.3, or without a descriptor.
///
/// To be called before the hello. The process that answers it had this number when it began to listen, and
/// has not ended since. So nobody else had the number in between.
pub(super) fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = SocketPeer::of(stream).ok()?.pid?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// The first request of every connection.
pub(super) fn hello() -> Vec<u8> {
    let mut out = Vec::new();
    Request::Hello { version: PROTOCOL_VERSION }.encode(MEMORY_ID, &mut out);
    out
}

/// Whether the other side has closed its end. Does not wait.
pub(super) fn is_hung_up(stream: &UnixStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(rustix::event::poll(&mut watched, Some(&now)), Ok(n) if n > 0)
}

pub(super) fn link_failed(address: &Address, source: LinkError) -> ConnectError {
    match (address.clone(), source) {
        (address, LinkError::Os(source)) if is_out_of_descriptors(&source) => {
            ConnectError::Descriptors { address, source }
        }
        (address, source) => ConnectError::Link { address, source },
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
            let (mut deadline, mut replies) = (Deadline { at, allowed }, Vec::new());
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
        use crate::breaking::breakable;
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
            let (mut deadline, mut replies) = (Deadline { at: Instant::now(), allowed }, Vec::new());
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
