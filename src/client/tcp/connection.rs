//! One connection over TCP: opening it, and requests over it.

use crate::address::{Address, TcpAddress};
use crate::base::sync::lock_std;
use crate::client::error::{ConnectError, LinkError};
use crate::client::handle::Deadline;
use crate::client::link::{
    Link, MEMORY_ID, ServerStream, hello, is_hung_up, is_out_of_descriptors, link_failed,
};
use crate::client::options::ClientOptions;
use crate::client::owning::{OwnOwner, OwnerRefusal};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::{SUPERBLOCK_WORDS, Superblock};
use crate::server::tcp::{SERVER, prove_client};
use crate::tls::{ClientTls, TlsSession, is_of_tls, is_tls};
use crate::wire::proof::{self, Statement};
use crate::wire::{self, Frame, KeysWriter, Refusal, Reply, Request, TableBytes, Wants};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that are received at once.
const CHUNK: usize = 1 << 17;

/// One connection, after the server has let the client in.
#[derive(Debug)]
pub(in crate::client) struct TcpConnection {
    link: Link<FarStream>,
    geometry: Arc<Geometry>,
    /// Number of the next request.
    next_id: u64,
    /// Number of the next reply.
    next_reply: u64,
    /// Requests that will be sent.
    output: Vec<u8>,
    /// Bytes of input that were looked at.
    taken: usize,
    /// Length of the last value that was read to its end. The next one may be as long.
    pub last_len: usize,
    /// Why the server does not make it a session of the client's owner, if it does not. It is still good for GETs.
    refused: Option<OwnerRefusal>,
}

impl TcpConnection {
    /// Connects to the first of the host's addresses that answers. Client and server prove that they know the token. If
    /// the client puts as an owner, asks the server to make the connection a session of the owner.
    pub fn open(
        at: &TcpAddress,
        address: &Address,
        options: &ClientOptions,
        owner: Option<&OwnOwner>,
        within: Duration,
    ) -> Result<TcpConnection, ConnectError> {
        let deadline = Instant::now() + within;
        let stream = FarStream::new(connect(at, address, deadline)?, at, options.tls.as_ref());
        let stream = stream.map_err(|e| failed_at(address, LinkError::Os(e)))?;
        let mut link = Link::new(Arc::new(stream), within).taking(CHUNK);
        let failed = |error| failed_at(address, error);
        let (token, unexpected) = (&options.token, || failed(LinkError::Unexpected));
        let first = match ask(&mut link, &hello(), deadline) {
            Err(_) if is_tls(&link.input) => return Err(ConnectError::WantsTls { address: address.clone() }),
            answered => answered.map_err(failed)?,
        };
        let theirs = match first {
            Reply::Challenge { nonce } => nonce,
            other => return Err(refused(address, other).unwrap_or_else(unexpected)),
        };
        let ours = proof::nonce().map_err(|e| failed(LinkError::Os(e)))?;
        let (mut join, proof) = (Vec::new(), prove_client(token, &theirs, &ours));
        Request::Join { nonce: ours, proof }.encode(MEMORY_ID, &mut join);
        let about = match ask(&mut link, &join, deadline).map_err(failed)? {
            Reply::Table { proof, about } => {
                let said = Statement { role: SERVER, server: &theirs, client: &ours, message: &about[..] };
                if !said.is_proven(token, &proof) {
                    return Err(ConnectError::Token { address: address.clone() });
                }
                about
            }
            other => return Err(refused(address, other).unwrap_or_else(unexpected)),
        };
        let (level, superblock) = table_of(&about);
        link.level = level;
        let geometry = superblock
            .geometry(u64::MAX)
            .map_err(|source| ConnectError::Superblock { address: address.clone(), source })?;
        let mut connection = TcpConnection {
            link: link.allowing(options.deadline),
            geometry: Arc::new(geometry),
            next_id: MEMORY_ID + 1,
            next_reply: MEMORY_ID + 1,
            output: Vec::new(),
            taken: 0,
            last_len: 0,
            refused: None,
        };
        if let Some(owner) = owner {
            let (mut deadline, mut replies) = (Deadline::until(deadline, Duration::ZERO), Vec::new());
            let asked = connection.converse(&[owner.request()], &mut deadline, &mut replies);
            let heard = asked.map(|()| owner.hear(replies.pop())).map_err(failed)?;
            connection.refused = heard.ok_or_else(unexpected)?.err();
        }
        Ok(connection)
    }

    /// Checks that the server made this connection a session of the client's owner, if it has one.
    ///
    /// # Errors
    /// If the server refused that.
    pub fn check_owner(&self, owner: Option<&OwnOwner>, address: &Address) -> Result<(), ConnectError> {
        match (owner, &self.refused) {
            (Some(owner), Some(why)) => Err(why.clone().at(address, owner.number())),
            (None, _) | (_, None) => Ok(()),
        }
    }

    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.stream().as_fd()
    }

    /// The level of requests that the server knows.
    pub fn level(&self) -> u16 {
        self.link.level()
    }

    /// Whether the server has hung up. Does not wait.
    pub fn is_hung_up(&self) -> bool {
        is_hung_up(&**self.link.stream())
    }

    /// Whether replies are still to come to requests that were sent.
    pub fn is_owed(&self) -> bool {
        self.next_reply != self.next_id
    }

    /// Sends requests that change keys, and receives their replies.
    pub fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), LinkError> {
        self.forget_taken();
        let first = self.next_id;
        self.next_id += requests.len() as u64;
        self.link.converse(requests, first, deadline, replies)?;
        self.next_reply = self.next_id;
        Ok(())
    }

    /// Sends a request, and does not wait for its reply.
    pub fn post(&mut self, request: &Request<'_>, deadline: Instant) -> Result<(), LinkError> {
        self.forget_taken();
        let mut out = Vec::new();
        request.encode(self.next_id, &mut out);
        self.next_id += 1;
        self.link.send_and_take(&out, deadline)
    }

    /// The reply to that request, if it comes until then.
    pub fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, LinkError> {
        let reply = self.link.late_reply(self.next_reply, until)?;
        if reply.is_some() {
            self.next_reply += 1;
        }
        Ok(reply)
    }

    /// Has the server answer it at once (Q11).
    pub fn hurry(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.link.wake(deadline)
    }

    // ---- requests for keys ----------------------------------------------------------------------

    /// Adds a request to those that are sent next.
    pub fn push(&mut self, keys: &KeysWriter, wants: Wants) {
        Request::Gets(keys.request(wants)).encode(self.next_id, &mut self.output);
        self.next_id += 1;
    }

    /// Sends the added requests.
    pub fn send(&mut self, deadline: &Deadline) -> Result<(), LinkError> {
        if self.output.is_empty() {
            return Ok(());
        }
        self.forget_taken();
        let sent = self.link.send_and_take(&self.output, deadline.at);
        self.output.clear();
        sent
    }

    /// The next reply, if it is there.
    pub fn reply(&mut self) -> Result<Option<Frame<'_>>, LinkError> {
        let Some(frame) = wire::decode(&self.link.input[self.taken..])? else { return Ok(None) };
        if frame.id != self.next_reply || !self.is_owed() {
            return Err(LinkError::Unexpected);
        }
        self.next_reply += 1;
        self.taken += frame.length;
        Ok(Some(frame))
    }

    /// Waits for more bytes.
    pub fn receive(&mut self, deadline: &Deadline) -> Result<(), LinkError> {
        self.forget_taken();
        self.link.receive(deadline.at)
    }

    /// Waits for all replies that are still to come, and leaves them unread.
    pub fn drain(&mut self, deadline: &mut Deadline) -> Result<(), LinkError> {
        self.output.clear();
        while self.is_owed() {
            match self.reply()? {
                Some(_) => deadline.renew(),
                None => self.receive(deadline)?,
            }
        }
        Ok(())
    }

    fn forget_taken(&mut self) {
        self.link.input.drain(..std::mem::take(&mut self.taken));
    }
}

/// Connects to the first of the host's addresses that answers: each may take its share of the time.
fn connect(at: &TcpAddress, address: &Address, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let not_there = |source: io::Error| match address.clone() {
        address if is_out_of_descriptors(&source) => ConnectError::Descriptors { address, source },
        address => ConnectError::NotThere { address, source },
    };
    let places: Vec<_> = (at.host(), at.port()).to_socket_addrs().map_err(not_there)?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (nth, place) in places.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = (left / (places.len() - nth) as u32).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(place, share) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                crate::verbs::keep_alive(&stream);
                stream.set_nonblocking(true).map_err(not_there)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(not_there(last))
}

/// A stream to a server over TCP, with TLS or without.
#[derive(Debug)]
struct FarStream {
    stream: TcpStream,
    tls: Option<Mutex<TlsSession>>,
}

impl FarStream {
    fn new(stream: TcpStream, at: &TcpAddress, tls: Option<&ClientTls>) -> io::Result<FarStream> {
        let tls = tls.map(|tls| tls.session(at.host())).transpose()?;
        Ok(FarStream { stream, tls: tls.map(Mutex::new) })
    }
}

impl AsFd for FarStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl ServerStream for FarStream {
    fn take(&self, input: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        match &self.tls {
            None => self.stream.take(input, most),
            Some(tls) => lock_std(tls).take(&self.stream, input),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => ServerStream::send(&self.stream, bytes),
            Some(tls) => lock_std(tls).send(&self.stream, bytes),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| lock_std(tls).flush(&self.stream))
    }

    fn is_owing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock_std(tls).is_owing())
    }
}

impl ServerStream for TcpStream {}

/// The error of a connection that could not be made.
fn failed_at(address: &Address, error: LinkError) -> ConnectError {
    match error {
        LinkError::Os(source) if is_of_tls(&source) => ConnectError::Tls { address: address.clone(), source },
        error => link_failed(address, error),
    }
}

/// Sends a request by which a client is let in, and waits for the reply.
fn ask(link: &mut Link<FarStream>, request: &[u8], deadline: Instant) -> Result<Reply, LinkError> {
    // A server that refuses hangs up at once. Its refusal can still be read.
    let sent = link.send(request, deadline);
    loop {
        if let Some(reply) = link.first_reply()? {
            return Ok(reply);
        }
        match link.receive(deadline) {
            Err(LinkError::HungUp) => return Err(sent.err().unwrap_or(LinkError::HungUp)),
            received => received?,
        }
    }
}

/// Why the server does not let the client in, if it says so.
fn refused(address: &Address, reply: Reply) -> Option<ConnectError> {
    let address = address.clone();
    match reply {
        Reply::Refused { version: theirs } => Some(ConnectError::Refused { address, theirs }),
        Reply::TurnedAway(Refusal::Token) => Some(ConnectError::Token { address }),
        Reply::TurnedAway(source) => Some(ConnectError::TurnedAway { address, source }),
        _ => None,
    }
}

/// The server's level, and its superblock.
fn table_of(about: &TableBytes) -> (u16, Superblock) {
    let word = |n: usize| {
        let bytes = &about[n * size_of::<u64>()..][..size_of::<u64>()];
        u64::from_le_bytes(bytes.try_into().expect("a word has as many bytes"))
    };
    let words: [u64; SUPERBLOCK_WORDS] = std::array::from_fn(|n| word(n + 1));
    (u16::try_from(word(0)).unwrap_or(u16::MAX), Superblock::from_words(words))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::server::{Server, ServerConfig};
    use crate::wire::proof::Token;
    use crate::{Client, ErrorKind};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server whose welcome `change` alters on the way, and what a client makes of it. Who alters it may know the
    /// token, and prove it anew.
    fn altered<R>(
        proves_it: bool,
        change: impl FnOnce(&mut TableBytes) + Send,
        act: impl FnOnce(Result<Client, ConnectError>) -> R,
    ) -> R {
        let token = Token::new("a token");
        let table = Config { size: TableSize::Keys(100), ..Config::short() };
        let config =
            ServerConfig::new(Address::Tcp(TcpAddress::new("127.0.0.1", 0)), table).token(token.clone());
        let server = Server::start(config).unwrap();
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
        let options = ClientOptions::new().token(token.clone()).deadline(Duration::from_secs(60));
        let port = server.tcp_address().unwrap().port();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut client, _) = relay.accept().unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                hand_on(&mut client, &mut server, |_| None);
                let mut theirs = None;
                hand_on(&mut server, &mut client, |frame| {
                    let Ok(Reply::Challenge { nonce }) = Reply::decode(frame) else { panic!("a challenge") };
                    theirs = Some(nonce);
                    None
                });
                let mut ours = None;
                hand_on(&mut client, &mut server, |frame| {
                    let Ok(Request::Join { nonce, .. }) = Request::decode(frame) else { panic!("a proof") };
                    ours = Some(nonce);
                    None
                });
                let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
                hand_on(&mut server, &mut client, |frame| {
                    let Ok(Reply::Table { mut proof, mut about }) = Reply::decode(frame) else {
                        panic!("a table")
                    };
                    change(&mut about);
                    if proves_it {
                        let said =
                            Statement { role: SERVER, server: &theirs, client: &ours, message: &about[..] };
                        proof = said.prove(&token);
                    }
                    Some(Reply::Table { proof, about })
                });
                while hand_on(&mut client, &mut server, |_| None)
                    && hand_on(&mut server, &mut client, |_| None)
                {}
            });
            act(Client::connect_with(&address, options))
        })
    }

    /// Hands a frame on, or another reply instead. Returns whether there was one.
    fn hand_on(
        from: &mut TcpStream,
        to: &mut TcpStream,
        instead: impl FnOnce(&Frame<'_>) -> Option<Reply>,
    ) -> bool {
        let mut bytes = Vec::new();
        while wire::decode(&bytes).unwrap().is_none() {
            let mut byte = [0];
            if from.read_exact(&mut byte).is_err() {
                return false;
            }
            bytes.extend(byte);
        }
        let frame = wire::decode(&bytes).unwrap().unwrap();
        let mut out = Vec::new();
        match instead(&frame) {
            Some(reply) => reply.encode(frame.id, &mut out),
            None => out.extend_from_slice(&bytes[..frame.length]),
        }
        to.write_all(&out).is_ok()
    }

    /// Nobody on the way makes a server older than it is, or its table another one.
    #[test]
    fn a_welcome_cannot_be_altered() {
        for at in [0, 1, 8, 16, 64, size_of::<TableBytes>() - 1] {
            let error = altered(false, |about| about[at] ^= 1, Result::unwrap_err);
            assert!(matches!(error, ConnectError::Token { .. }), "byte {at}: {error:?}");
        }
    }

    /// A server of a later version is asked for what this client knows. One of an earlier one is asked for no more than
    /// it knows: that is said, and the connection stays.
    #[test]
    fn versions_that_differ_work_together() {
        let says =
            |level: u64| move |about: &mut TableBytes| about[..8].copy_from_slice(&level.to_le_bytes());
        altered(true, says(u64::from(u16::MAX)), |client| {
            let mut client = client.unwrap();
            client.put(b"key", b"value").unwrap();
            assert_eq!(client.get(b"key").unwrap().unwrap(), b"value");
            client.add(b"count", 1, Some(0)).unwrap();
        });
        altered(true, says(0), |client| {
            let mut client = client.unwrap();
            client.put(b"key", b"value").unwrap();
            let error = client.add(b"count", 1, Some(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert_eq!(client.get(b"key").unwrap().unwrap(), b"value");
            assert_eq!(client.stats().reattached, 0);
        });
    }
}
