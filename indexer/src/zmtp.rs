//! ZeroMQ's protocol ZMTP 3.0 with the mechanism NULL (RFC 23), as much of it as publishers of events need.
//!
//! ```text
//! greeting  ff 00000000 00000000 7f, version 3 0, "NULL" and 16 zeros, as-server 0, 31 zeros     64 bytes
//! frame     flags (1 more, 2 long, 4 command), length (1 byte, or 8 big-endian), body
//! READY     a command: "\5READY", then properties: length and name, length (4 bytes) and value
//! ```
//!
//! Both sides send a greeting, then READY, then messages of one or more frames. A subscriber's first message is 1 and the
//! topic.
//!
//! Why no crate: `zeromq` 0.7 is written in Rust and kept well, but sets memory aside for the length that a peer names
//! before a byte of it has come, and has no limit for it; `zmq` and `tmq` need libzmq, a library in C++ that is built
//! or installed besides. What is needed here are these lines.

use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of a greeting.
const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Most frames of a message. Publishers of events send three.
const FRAMES_MAX: usize = 8;
/// Memory for a frame is set aside in steps of so many bytes, as they come.
const STEP: usize = 64 << 10;
/// From the first byte of a message to its last.
const WHOLE: Duration = Duration::from_secs(60);
/// Memory that a connection keeps between messages that come one after the other. A quiet one keeps none.
const KEPT: usize = 4 * STEP;
/// The longest command.
const COMMAND_MAX: usize = 4096;

/// What is wrong with a peer.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// The connection.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer speaks something else.
    #[error("the peer does not speak ZMTP 3 without encryption; is this the endpoint of a ZeroMQ socket?")]
    Greeting,
    /// The peer is a socket of a kind that is not looked for.
    #[error("the peer is a {found} socket, and {wanted} is looked for; is this the right endpoint?")]
    Kind {
        /// What it is.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A frame, command or message that is none.
    #[error("the peer sent a frame that ZMTP does not have")]
    Frame,
    /// A message is longer than is taken.
    #[error(
        "the peer sent a message of more than {max} bytes; have it send smaller batches, or raise the limit"
    )]
    Long {
        /// The most that is taken.
        max: usize,
    },
}

/// A connection: TCP, or a Unix socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// Another handle of the same connection.
    ///
    /// # Errors
    /// The system's.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Ends the connection for all handles.
    pub fn shutdown(&self) {
        // It may have ended.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn receive(&self, bytes: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let read = match self {
            Stream::Tcp(stream) => recv(stream, bytes, flags),
            Stream::Unix(stream) => recv(stream, bytes, flags),
        };
        Ok(read?.1)
    }

    fn set_times(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.flush(),
            Stream::Unix(stream) => stream.flush(),
        }
    }
}

/// A kind of socket, and the kinds that it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hears what is published.
    Sub,
    /// Publishes.
    Pub,
    /// Asks, and hears several answers.
    Dealer,
    /// Answers, and knows whom.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sub => "SUB",
            Kind::Pub => "PUB",
            Kind::Dealer => "DEALER",
            Kind::Router => "ROUTER",
        }
    }

    /// What the peer has to be; the first one is named where it is not.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Kind::Sub => &["PUB", "XPUB"],
            Kind::Pub => &["SUB", "XSUB"],
            Kind::Dealer => &["ROUTER", "REP", "DEALER"],
            Kind::Router => &["DEALER", "REQ", "ROUTER"],
        }
    }
}

/// A conversation. Each call blocks.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    /// What was read and is not used yet.
    buffer: Vec<u8>,
    used: usize,
    message_max: usize,
}

impl Socket {
    /// Begins a conversation over a connection, within a time.
    ///
    /// # Errors
    /// The peer is no socket of ZeroMQ, or of another kind; the connection's.
    pub fn begin(
        stream: Stream,
        kind: Kind,
        message_max: usize,
        within: Duration,
    ) -> Result<Socket, ZmtpError> {
        let mut socket = Socket { stream, buffer: Vec::new(), used: 0, message_max };
        let until = Instant::now() + within;
        socket.waits(until)?;
        let mut greeting = [0; GREETING];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        socket.stream.write_all(&greeting)?;
        socket.fill(GREETING, until)?;
        let theirs = socket.take(GREETING);
        let is_null =
            theirs[12..32].strip_prefix(b"NULL").is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
        if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 || !is_null {
            return Err(ZmtpError::Greeting);
        }
        let mut ready = b"\x05READY".to_vec();
        property(&mut ready, b"Socket-Type", kind.name().as_bytes());
        if kind == Kind::Dealer {
            property(&mut ready, b"Identity", b"");
        }
        socket.stream.write_all(&frame(COMMAND, &ready))?;
        let (flags, body) = socket.frame(COMMAND_MAX, until)?;
        let properties = body.strip_prefix(b"\x05READY").filter(|_| flags & COMMAND != 0);
        let found = properties.and_then(socket_type).ok_or(ZmtpError::Greeting)?;
        if !kind.peers().contains(&found.as_str()) {
            return Err(ZmtpError::Kind { found, wanted: kind.peers()[0] });
        }
        Ok(socket)
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sends a message, within a time.
    ///
    /// # Errors
    /// The connection's.
    pub fn send(&mut self, frames: &[&[u8]], within: Duration) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(frames.iter().map(|body| body.len() + 9).sum());
        for (number, body) in frames.iter().enumerate() {
            bytes.extend(frame(if number + 1 < frames.len() { MORE } else { 0 }, body));
        }
        self.stream.set_times(None, Some(within))?;
        self.stream.write_all(&bytes)
    }

    /// The next message. `None`: none has begun within the time. One that has begun has [`WHOLE`] to end.
    ///
    /// # Errors
    /// The peer hung up, or sent what is no message, or one that is too long.
    pub fn receive(&mut self, within: Duration) -> Result<Option<Vec<Vec<u8>>>, ZmtpError> {
        if self.buffer.len() == self.used && !self.waits_for_bytes(within)? {
            return Ok(None);
        }
        let until = Instant::now() + WHOLE;
        let (mut frames, mut left) = (Vec::new(), self.message_max);
        loop {
            let (flags, body) = self.frame(left, until)?;
            if flags & COMMAND != 0 {
                self.answer(&body, within)?;
                if frames.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            left -= body.len();
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(Some(frames));
            }
            if frames.len() == FRAMES_MAX {
                return Err(ZmtpError::Frame);
            }
        }
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// As [`Socket::receive`].
    pub fn receive_now(&mut self) -> Result<Option<Vec<Vec<u8>>>, ZmtpError> {
        loop {
            if !self.has_message() {
                if !self.fill_now()? {
                    return Ok(None);
                }
            // A command is none.
            } else if let Some(frames) = self.receive(WHOLE)? {
                return Ok(Some(frames));
            }
        }
    }

    /// Whether a message, a command before it, or what is wrong with it, is in the buffer.
    fn has_message(&self) -> bool {
        let (mut rest, mut bytes, mut frames) = (&self.buffer[self.used..], 0_usize, 0);
        loop {
            let Some((flags, length, body)) = head(rest) else { return false };
            let is_command = flags & COMMAND != 0;
            if !is_command {
                bytes = bytes.saturating_add(length);
                frames += 1;
            }
            let is_wrong = length > self.message_max || bytes > self.message_max || frames > FRAMES_MAX;
            if is_wrong || flags & !(MORE | LONG | COMMAND) != 0 {
                return true;
            }
            let Some(behind) = body.get(length..) else { return false };
            if if is_command { frames == 0 } else { flags & MORE == 0 } {
                return true;
            }
            rest = behind;
        }
    }

    /// Takes what has come into the buffer. Returns whether something has.
    fn fill_now(&mut self) -> Result<bool, ZmtpError> {
        self.make_room();
        let had = self.buffer.len();
        self.buffer.resize(had + STEP / 4, 0);
        let read = self.stream.receive(&mut self.buffer[had..], RecvFlags::DONTWAIT);
        self.buffer.truncate(had + read.as_ref().map_or(0, |read| *read));
        match read {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => Ok(true),
            Err(error) if is_late(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// A peer that asks whether this one is there is told so. It may know a newer version than was agreed on.
    fn answer(&mut self, command: &[u8], within: Duration) -> Result<(), ZmtpError> {
        let Some(ping) = command.strip_prefix(b"\x04PING") else { return Ok(()) };
        let context = ping.get(2..).ok_or(ZmtpError::Frame)?;
        let pong = [&b"\x04PONG"[..], context].concat();
        self.stream.set_times(None, Some(within))?;
        Ok(self.stream.write_all(&frame(COMMAND, &pong))?)
    }

    /// The flags and the body of the next frame.
    fn frame(&mut self, max: usize, until: Instant) -> Result<(u8, Vec<u8>), ZmtpError> {
        self.fill(2, until)?;
        let flags = self.take(1)[0];
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Frame);
        }
        let size = if flags & LONG == 0 { 1 } else { 8 };
        self.fill(size, until)?;
        let length = self.take(size).iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > max {
            return Err(ZmtpError::Long { max: self.message_max });
        }
        self.fill(length, until)?;
        Ok((flags, self.take(length).to_vec()))
    }

    /// Waits for a byte, without memory for it. Returns whether one has come.
    fn waits_for_bytes(&mut self, within: Duration) -> Result<bool, ZmtpError> {
        (self.buffer, self.used) = (Vec::new(), 0);
        let until = Instant::now() + within;
        loop {
            match self.waits(until).and_then(|()| self.stream.receive(&mut [0], RecvFlags::PEEK)) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => return Ok(true),
                Err(error) if is_late(&error) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits no longer than until then.
    fn waits(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_times(Some(left), Some(left))
    }

    /// Has so many bytes in the buffer at least.
    fn fill(&mut self, bytes: usize, until: Instant) -> Result<(), ZmtpError> {
        while self.buffer.len() - self.used < bytes {
            self.make_room();
            self.waits(until)?;
            let (had, wanted) = (self.buffer.len(), bytes - self.buffer.len());
            self.buffer.resize(had + wanted.clamp(STEP / 8, STEP), 0);
            let read = self.stream.read(&mut self.buffer[had..]);
            self.buffer.truncate(had + read.as_ref().map_or(0, |read| *read));
            match read {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes what was used out of the buffer.
    fn make_room(&mut self) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
            self.buffer.shrink_to(KEPT);
        }
    }

    /// Takes bytes that are there.
    fn take(&mut self, bytes: usize) -> &[u8] {
        self.used += bytes;
        &self.buffer[self.used - bytes..self.used]
    }
}

/// The flags of a frame, the length of its body, and what is there of that.
fn head(bytes: &[u8]) -> Option<(u8, usize, &[u8])> {
    let (flags, rest) = bytes.split_first()?;
    if flags & LONG == 0 {
        let (length, body) = rest.split_first()?;
        return Some((*flags, usize::from(*length), body));
    }
    let (length, body) = rest.split_first_chunk()?;
    Some((*flags, usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX), body))
}

/// Whether a time is over.
pub fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn property(bytes: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    bytes.push(name.len() as u8);
    bytes.extend(name);
    bytes.extend((value.len() as u32).to_be_bytes());
    bytes.extend(value);
}

/// The type of socket that READY names.
fn socket_type(mut properties: &[u8]) -> Option<String> {
    while let Some((length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(String::from_utf8_lossy(value).into_owned());
        }
        properties = rest;
    }
    None
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + body.len());
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const MINUTE: Duration = Duration::from_secs(60);

    fn pair() -> (Stream, Stream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Stream::Unix(one), Stream::Unix(other))
    }

    /// Two sockets that fit each other agree, and messages of any lengths go both ways.
    #[test]
    fn messages_go_both_ways() {
        for (one, other) in [(Kind::Sub, Kind::Pub), (Kind::Dealer, Kind::Router)] {
            let (here, there) = pair();
            let peer = thread::spawn(move || {
                let mut socket = Socket::begin(there, other, 1 << 20, MINUTE).unwrap();
                let heard = socket.receive(MINUTE).unwrap().unwrap();
                let frames: Vec<&[u8]> = heard.iter().map(Vec::as_slice).collect();
                socket.send(&frames, MINUTE).unwrap();
                socket
            });
            let mut socket = Socket::begin(here, one, 1 << 20, MINUTE).unwrap();
            let frames = [&b""[..], &[7; 255], &[8; 256], &vec![9; 300_000]];
            socket.send(&frames, MINUTE).unwrap();
            assert_eq!(socket.receive(MINUTE).unwrap().unwrap(), frames);
            drop(peer.join().unwrap());
            assert!(matches!(socket.receive(MINUTE), Err(ZmtpError::Io(_))), "it hung up");
        }
    }

    /// What has come is taken without a wait: whole messages, and none of one that has only begun.
    #[test]
    fn messages_that_have_come_are_taken_at_once() {
        let (here, there) = pair();
        let peer = thread::spawn(move || Socket::begin(there, Kind::Pub, 1 << 20, MINUTE).unwrap());
        let mut socket = Socket::begin(here, Kind::Sub, 100_000, MINUTE).unwrap();
        let mut peer = peer.join().unwrap();
        assert_eq!(socket.receive_now().unwrap(), None);
        let long = vec![9; 90_000];
        let message = |body: &[u8]| [frame(MORE, b"topic"), frame(0, body)].concat();
        let ping = frame(COMMAND, b"\x04PING\x00\x0aabc");
        let all = [message(b"one"), ping.clone(), message(&[2; 300]), ping, message(&long)].concat();
        let (come, comes) = all.split_at(all.len() - 1);
        peer.stream.write_all(come).unwrap();
        let mut now = || socket.receive_now().unwrap().map(|frames| frames[1].clone());
        assert_eq!((now(), now(), now()), (Some(b"one".to_vec()), Some(vec![2; 300]), None));
        assert_eq!(now(), None, "its last byte has not come");
        peer.stream.write_all(comes).unwrap();
        assert_eq!((now(), now()), (Some(long), None));
        // What is wrong is told, also of a message that has only begun.
        peer.stream.write_all(&[LONG, 0, 0, 0, 0, 0xff, 0, 0, 0]).unwrap();
        assert!(matches!(socket.receive_now(), Err(ZmtpError::Long { .. })));
        drop(peer);
        assert!(matches!(socket.receive_now(), Err(ZmtpError::Io(_))), "it hung up");
    }

    /// A connection on which nothing comes has no memory for what may come.
    #[test]
    fn a_quiet_connection_has_no_buffer() {
        let (here, there) = pair();
        let peer = thread::spawn(move || Socket::begin(there, Kind::Pub, 1 << 20, MINUTE).unwrap());
        let mut socket = Socket::begin(here, Kind::Sub, 1 << 20, MINUTE).unwrap();
        let mut peer = peer.join().unwrap();
        peer.send(&[b"", &[9; 30_000]], MINUTE).unwrap();
        assert_eq!(socket.receive(MINUTE).unwrap().unwrap()[1], [9; 30_000]);
        assert_eq!(socket.receive_now().unwrap(), None);
        assert_eq!(socket.receive(Duration::from_millis(1)).unwrap(), None);
        assert_eq!(socket.buffer.capacity(), 0);
    }

    /// What a peer says before messages, with a length, flags, a kind or a version that are not agreed on.
    #[test]
    fn wrong_peers_are_told() {
        let greeting = |version: u8, mechanism: &[u8]| {
            let mut bytes = [0; GREETING];
            (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, version);
            bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
            bytes.to_vec()
        };
        let ready = |kind: &[u8]| {
            let mut body = b"\x05READY".to_vec();
            property(&mut body, b"Socket-Type", kind);
            frame(COMMAND, &body)
        };
        let said = |bytes: Vec<u8>| {
            let (here, mut there) = pair();
            there.write_all(&bytes).unwrap();
            there.shutdown_write();
            let told =
                Socket::begin(here, Kind::Sub, 1000, MINUTE).and_then(|mut socket| socket.receive(MINUTE));
            told.err().map(|error| format!("{error:?}"))
        };
        let good = || [greeting(3, b"NULL"), ready(b"PUB")].concat();
        for (bytes, expected) in [
            (
                b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n".to_vec(),
                "Greeting",
            ),
            (greeting(2, b"NULL"), "Greeting"),
            (greeting(3, b"CURVE"), "Greeting"),
            (greeting(3, b"NULL"), "UnexpectedEof"),
            ([greeting(3, b"NULL"), ready(b"REP")].concat(), "Kind"),
            ([greeting(3, b"NULL"), frame(0, b"READY")].concat(), "Greeting"),
            ([good(), vec![8, 0]].concat(), "Frame"),
            ([good(), vec![0, 5, 1]].concat(), "UnexpectedEof"),
            ([good(), frame(0, &[0; 1001])].concat(), "Long"),
            ([good(), frame(MORE, &[0; 600]), frame(0, &[0; 600])].concat(), "Long"),
            ([good(), vec![LONG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat(), "Long"),
            ([good(), frame(MORE, b"").repeat(20)].concat(), "Frame"),
        ] {
            let told = said(bytes).unwrap_or_default();
            assert!(told.contains(expected), "{expected}: {told}");
        }
        assert_eq!(said([good(), frame(0, &[0; 1000])].concat()), None);
    }

    /// A peer that asks is answered with what it sent; nothing within a time is no error.
    #[test]
    fn a_ping_is_answered() {
        let (here, there) = pair();
        let peer = thread::spawn(move || {
            let mut socket = Socket::begin(there, Kind::Pub, 1000, MINUTE).unwrap();
            socket.stream.write_all(&frame(COMMAND, b"\x04PING\x00\x0aabc")).unwrap();
            socket.frame(1000, Instant::now() + MINUTE).unwrap()
        });
        let mut socket = Socket::begin(here, Kind::Sub, 1000, MINUTE).unwrap();
        assert_eq!(socket.receive(MINUTE).unwrap(), None);
        assert_eq!(peer.join().unwrap(), (COMMAND, b"\x04PONGabc".to_vec()));
    }

    impl Stream {
        fn shutdown_write(&self) {
            match self {
                Stream::Tcp(stream) => stream.shutdown(Shutdown::Write).unwrap(),
                Stream::Unix(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            }
        }
    }
}
