//! One connection over TCP: opening it, and requests over it.

use crate::address::{Address, TcpAddress};
use crate::client::error::{ConnectError, LinkError};
use crate::client::handle::Deadline;
use crate::client::link::{Link, MEMORY_ID, hello, is_hung_up, is_out_of_descriptors, link_failed};
use crate::client::options::{ClientOptions, OwnerOptions};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::{SUPERBLOCK_WORDS, Superblock};
use crate::proof::{self, Statement};
use crate::server::tcp::{SERVER, prove_client};
use crate::wire::{self, Frame, KeysWriter, Refusal, Reply, Request, TableBytes, Wants};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are taken at once.
const CHUNK: usize = 1 << 17;

/// One connection, after the server has let the client in.
#[derive(Debug)]
pub(in crate::client) struct TcpConnection {
    link: Link<TcpStream>,
    geometry: Arc<Geometry>,
    /// Number of the next request.
    next_id: u64,
    /// Number of the next reply.
    next_reply: u64,
    /// Requests that are to be sent.
    output: Vec<u8>,
    /// Bytes of input that were looked at.
    taken: usize,
}

impl TcpConnection {
    /// Connects to the first of the host's addresses that answers, and proves to know the token, as the server
    /// does.
    pub fn open(
        at: &TcpAddress,
        address: &Address,
        options: &ClientOptions,
        within: Duration,
    ) -> Result<TcpConnection, ConnectError> {
        let deadline = Instant::now() + within;
        let stream = connect(at, address, deadline)?;
        let mut link = Link::new(Arc::new(stream), within).taking(CHUNK);
        let failed = |error| link_failed(address, error);
        let (token, unexpected) = (&options.token, || failed(LinkError::Unexpected));
        let theirs = match ask(&mut link, &hello(), deadline).map_err(failed)? {
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
        };
        connection.begin_owner(address, options.owner, deadline)?;
        Ok(connection)
    }

    /// Makes it a session of the owner, if the client puts as one.
    fn begin_owner(
        &mut self,
        address: &Address,
        owner: Option<OwnerOptions>,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        let Some(OwnerOptions { number, absent_for }) = owner else { return Ok(()) };
        let (request, mut replies) = (Request::Owner { number, absent_for }, Vec::new());
        let mut deadline = Deadline { at: deadline, allowed: Duration::ZERO };
        self.converse(&[request], &mut deadline, &mut replies).map_err(|e| link_failed(address, e))?;
        let refused = |source| Err(ConnectError::Owner { address: address.clone(), owner: number, source });
        match replies.pop() {
            Some(Reply::Taken) => Ok(()),
            Some(Reply::Put(Err(error))) => refused(error),
            _ => Err(link_failed(address, LinkError::Unexpected)),
        }
    }

    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// Which requests the server knows.
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

    // ---- requests for keys ----------------------------------------------------------------------

    /// Adds a request to those that are sent next.
    pub fn push(&mut self, keys: &KeysWriter, wants: Wants) {
        Request::Gets(keys.request(wants)).encode(self.next_id, &mut self.output);
        self.next_id += 1;
    }

    /// Sends them.
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

/// Sends a request by which a client is let in, and waits for the reply.
fn ask(link: &mut Link<TcpStream>, request: &[u8], deadline: Instant) -> Result<Reply, LinkError> {
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
