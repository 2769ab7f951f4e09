//! Frames over a stream to a server: a Unix socket, or TCP.

use super::error::{ConnectError, LinkError};
use super::handle::Deadline;
use crate::address::Address;
use crate::client::breaking::{ending, interrupted, sleeps_until};
pub(in crate::client) use crate::error::mend::is_out_of_descriptors;
use crate::wire::{self, PROTOCOL_VERSION, Reply, Request};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of requests whose reply comes with memory, and of the requests by which a client is let in.
pub(in crate::client) const MEMORY_ID: u64 = 0;

/// A stream to a server. It never waits.
pub(in crate::client) trait ServerStream: AsFd {
    /// Receives bytes, at most this many, or with TLS some more. Returns how many, and 0 when the server has hung up.
    fn take(&self, input: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        input.reserve(most);
        Ok(rustix::io::read(self, spare_capacity(input))?)
    }

    /// Sends some of these bytes.
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Sends what TLS has taken and not sent.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether TLS has bytes to send.
    fn is_owing(&self) -> bool {
        false
    }
}

impl ServerStream for UnixStream {}

/// A connection to the server.
#[derive(Debug)]
pub(in crate::client) struct Link<S> {
    /// Shared with the watch, if it watches this connection.
    pub(in crate::client) stream: Arc<S>,
    pub(in crate::client) input: Vec<u8>,
    /// The level of requests that the server knows, from its welcome.
    pub(in crate::client) level: u16,
    /// Whether a reply may come to the last request that nobody has waited for. (Here it takes no room.)
    pub(in crate::client) is_posted: bool,
    /// Room for bytes that are received at once.
    chunk: usize,
    /// The whole time allowed, for error messages.
    pub(in crate::client) allowed: Duration,
}

impl<S: ServerStream> Link<S> {
    pub fn new(stream: Arc<S>, allowed: Duration) -> Link<S> {
        Link { stream, input: Vec::new(), level: 0, is_posted: false, chunk: 1 << 14, allowed }
    }

    /// The link, which receives this many bytes at once.
    pub fn taking(self, chunk: usize) -> Link<S> {
        Link { chunk, ..self }
    }

    /// The link, whose errors name this time.
    pub fn allowing(self, allowed: Duration) -> Link<S> {
        Link { allowed, ..self }
    }

    /// The level of requests that the server knows ([`wire::LEVEL`]).
    pub fn level(&self) -> u16 {
        self.level
    }

    #[cfg(test)]
    pub fn allowed(&self) -> Duration {
        self.allowed
    }

    pub fn stream(&self) -> &Arc<S> {
        &self.stream
    }

    /// The reply to a request with [`MEMORY_ID`], if it is whole.
    pub fn first_reply(&mut self) -> Result<Option<Reply>, LinkError> {
        let Some(frame) = wire::decode(&self.input)? else { return Ok(None) };
        let reply = Reply::decode(&frame)?;
        if frame.id != MEMORY_ID {
            return Err(LinkError::Unexpected);
        }
        self.input.drain(..frame.length);
        Ok(Some(reply))
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
        let patience = deadline.patience;
        requests
            .iter()
            .zip(first_id..)
            .for_each(|(request, id)| request.encode_patient(id, patience, &mut out));
        self.send_and_take(&out, deadline.at)?;
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

    /// Receives the reply to the request with this number, if it comes until then.
    pub fn late_reply(&mut self, id: u64, until: Instant) -> Result<Option<Reply>, LinkError> {
        let (mut deadline, mut replies) = (Deadline::until(until, Duration::ZERO), Vec::new());
        match self.receive_replies(id..id + 1, &mut deadline, &mut replies) {
            Ok(()) => Ok(replies.pop()),
            // What has come of it stays.
            Err(LinkError::Deadline(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Wakes the server: something is in the mailbox, or a request that waits is to be answered.
    pub fn wake(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let mut out = Vec::new();
        Request::Wake.encode(0, &mut out);
        self.send(&out, deadline)
    }

    /// Fails after the deadline. Without this check, a server that always rings and never answers
    /// would keep the client awake for ever.
    pub fn check(&self, deadline: Instant) -> Result<(), LinkError> {
        if Instant::now() < deadline { Ok(()) } else { Err(LinkError::Deadline(self.allowed)) }
    }

    pub fn receive(&mut self, deadline: Instant) -> Result<(), LinkError> {
        // A TLS handshake has to send, too.
        let more = if self.stream.is_owing() { PollFlags::OUT } else { PollFlags::empty() };
        self.wait(PollFlags::IN | more, deadline)?;
        self.flush()?;
        self.take().map(drop)
    }

    /// Receives what has come. Returns whether there was something.
    fn take(&mut self) -> Result<bool, LinkError> {
        match self.stream.take(&mut self.input, self.chunk) {
            Ok(0) => Err(LinkError::HungUp),
            Ok(_) => Ok(true),
            Err(e) if is_transient(&e) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends all of these bytes.
    pub fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        self.send_all(bytes, PollFlags::OUT, deadline)
    }

    /// As `send`, but receives replies meanwhile: the server may take no more requests until its replies are read.
    pub fn send_and_take(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        self.send_all(bytes, PollFlags::OUT | PollFlags::IN, deadline)
    }

    fn send_all(&mut self, mut bytes: &[u8], until: PollFlags, deadline: Instant) -> Result<(), LinkError> {
        loop {
            let sent =
                if bytes.is_empty() { self.stream.flush().map(|()| 0) } else { self.stream.send(bytes) };
            match sent {
                Ok(_) if bytes.is_empty() => return Ok(()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_transient(&e) => {
                    self.wait(until, deadline)?;
                    if until.contains(PollFlags::IN) {
                        self.take()?;
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends what the stream has taken, without waiting.
    fn flush(&self) -> Result<(), LinkError> {
        match self.stream.flush() {
            Err(e) if !is_transient(&e) => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the stream is ready, at most until the deadline, and only as long as the wait is wanted.
    pub fn wait(&self, what: PollFlags, deadline: Instant) -> Result<(), LinkError> {
        let ending = ending();
        let mut watched = SmallVec::<[PollFd<'_>; 2]>::new();
        watched.push(PollFd::new(&self.stream, what));
        watched.extend(ending.iter().map(|ending| PollFd::new(ending, PollFlags::IN)));
        loop {
            let until = sleeps_until(deadline).ok_or(LinkError::Deadline(self.allowed))?;
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut watched, Some(&timeout)) {
                Ok(0) if until < deadline => {}
                Ok(0) => return Err(LinkError::Deadline(self.allowed)),
                Ok(_) if watched[0].revents().is_empty() => return Err(LinkError::Deadline(self.allowed)),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => interrupted(),
                Err(e) => return Err(LinkError::Os(e.into())),
            }
        }
    }
}

/// The first request of every connection.
pub(in crate::client) fn hello() -> Vec<u8> {
    let mut out = Vec::new();
    Request::Hello { version: PROTOCOL_VERSION }.encode(MEMORY_ID, &mut out);
    out
}

/// Whether the other side has closed its end. Does not wait.
pub(in crate::client) fn is_hung_up(stream: &impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(rustix::event::poll(&mut watched, Some(&now)), Ok(n) if n > 0)
}

pub(in crate::client) fn link_failed(address: &Address, source: LinkError) -> ConnectError {
    match (address.clone(), source) {
        (address, LinkError::Os(source)) if is_out_of_descriptors(&source) => {
            ConnectError::Descriptors { address, source }
        }
        (address, source) => ConnectError::Link { address, source },
    }
}

pub(in crate::client) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
