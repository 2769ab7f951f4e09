//! The acceptor: clients join here, and are handed to a worker.

use super::host::VerbsServer;
use super::session::VerbsSession;
use super::worker::WorkerInbox;
use crate::base::peer::{DescriptorShare, JOINING_MAX, gives_way};
use crate::outcome::with_causes;
use crate::server::caller::Role;
use crate::server::shared::{ACCEPT_AGAIN, Peer};
use crate::server::turns::{EventLoop, TurnCount};
use crate::verbs::bootstrap::{self, Challenge, Join, JoinAnswer, Nonce};
use crate::verbs::device::DeviceEvent;
use crate::wire::LEVEL;
use crate::wire::proof::Token;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

const LISTENER: mio::Token = mio::Token(0);
const WAKER: mio::Token = mio::Token(1);
const EVENTS: mio::Token = mio::Token(3);
const FIRST_CLIENT: usize = 4;

/// Lets clients join. One thread for all, which does not wait for a slow client. (The kernel may
/// resolve a client's address while it connects the client's queue pair. That takes up to a second
/// if the client cannot be reached.)
pub(super) struct Acceptor {
    host: Arc<VerbsServer>,
    poll: Poll,
    listener: TcpListener,
    joining: HashMap<mio::Token, PendingSession>,
    /// The most clients that may be joining. For a further one, another gives way.
    joining_max: usize,
    next: usize,
    inboxes: Vec<WorkerInbox>,
    turns: Arc<TurnCount>,
}

/// A client that has not joined yet.
struct PendingSession {
    stream: TcpStream,
    host: IpAddr,
    nonce: Nonce,
    input: Vec<u8>,
    since: Instant,
}

impl Acceptor {
    pub fn new(
        host: Arc<VerbsServer>,
        mut listener: TcpListener,
        inboxes: Vec<WorkerInbox>,
    ) -> io::Result<(Acceptor, EventLoop)> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let events = host.station.domain().context().events_fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&events), EVENTS, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (joining, turns) = (HashMap::new(), Arc::<TurnCount>::default());
        let event_loop = EventLoop { waker, turns: turns.clone() };
        let joining_max = DescriptorShare::now(0, 1).strangers;
        let next = FIRST_CLIENT;
        Ok((Acceptor { host, poll, listener, joining, joining_max, next, inboxes, turns }, event_loop))
    }

    /// Lets clients in until the server stops.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut more = false;
        let join_within = self.host.shared.half_open;
        while !self.host.shared.is_stopping() {
            self.turns.count();
            let timeout = match more {
                true => Some(ACCEPT_AGAIN),
                false => (!self.joining.is_empty()).then_some(join_within / 4),
            };
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                return tracing::error!(error = %e, "polling failed; no more clients are let in");
            }
            for token in events.iter().map(|event| event.token()).collect::<Vec<_>>() {
                match token {
                    LISTENER => more = true,
                    WAKER => {}
                    EVENTS => self.take_events(),
                    token => self.listen_to(token),
                }
            }
            if more {
                more = self.accept_some();
            }
            self.joining.retain(|_, client| client.since.elapsed() < join_within);
        }
        // No client connects any more, even if a child made by `fork` has the same listener.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Takes the device's events, and passes on those for the workers.
    fn take_events(&self) {
        while let Some(event) = self.host.station.domain().context().next_event() {
            tracing::debug!(?event, "from the device");
            let DeviceEvent::LastReceive { number } = event else { continue };
            for inbox in &self.inboxes {
                inbox.tell_of_last_receive(number);
            }
        }
    }

    /// Accepts waiting clients, but a limited number, so that joining ones do not starve. Returns
    /// whether there may be more.
    fn accept_some(&mut self) -> bool {
        for _ in 0..JOINING_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.accept(stream, peer.ip()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => {
                    // For example, out of descriptors until one of the joining clients gives up.
                    self.host.shared.warn_of(&"a client that could not be accepted", &e.to_string());
                    return true;
                }
            }
        }
        true
    }

    fn accept(&mut self, mut stream: TcpStream, host: IpAddr) {
        if self.joining.len() >= self.joining_max {
            let joining = self.joining.iter().map(|(token, client)| (*token, client.host, client.since));
            if let Some(gone) = gives_way(joining).and_then(|token| self.joining.remove(&token)) {
                self.host.shared.warn_of(&gone.host, "too many are joining, of this host most");
            }
        }
        let _ = stream.set_nodelay(true);
        crate::verbs::keep_alive(&stream);
        let Ok(nonce) = bootstrap::nonce() else { return };
        let extension = self.host.extension.as_ref().map(|extension| extension.offer());
        let challenge = Challenge {
            oneread: bootstrap::NAME.into(),
            version: bootstrap::VERSION,
            nonce,
            level: LEVEL,
            extension,
        };
        let token = mio::Token(self.next);
        self.next += 1;
        // The socket's buffer is empty, so these few bytes are sent whole or not at all.
        let sent = stream.write(&bootstrap::encode(&challenge));
        let watched = self.poll.registry().register(&mut stream, token, Interest::READABLE);
        if sent.is_ok() && watched.is_ok() {
            let since = Instant::now();
            self.joining.insert(token, PendingSession { stream, host, nonce, input: Vec::new(), since });
        }
    }

    fn listen_to(&mut self, token: mio::Token) {
        let Some(client) = self.joining.get_mut(&token) else { return };
        let mut join = match client.hear() {
            Ok(None) => return,
            Ok(Some(join)) => join,
            Err(why) => {
                tracing::debug!(%why, "a client that did not join");
                self.joining.remove(&token);
                return;
            }
        };
        let Some(PendingSession { mut stream, nonce, .. }) = self.joining.remove(&token) else { return };
        let _ = self.poll.registry().deregister(&mut stream);
        if let Err((token, why, mut stream)) = self.admit(stream, &nonce, &mut join) {
            self.host.shared.warn_of(&stream.peer_addr().ok(), &why);
            let _ = stream.write(&bootstrap::encode(&JoinAnswer::Refused { token, why }));
        }
    }

    /// Makes the client's queue pair and hands it to a worker.
    fn admit(
        &self,
        stream: TcpStream,
        nonce: &Nonce,
        join: &mut Join,
    ) -> Result<(), (bool, String, TcpStream)> {
        let host = &self.host;
        if join.version != bootstrap::VERSION {
            let why = format!("it speaks version {}, the server {}", join.version, bootstrap::VERSION);
            return Err((false, why, stream));
        }
        let theirs = join.nonce;
        let proof = join.proof;
        let knows = |token: &Token| {
            join.proof = proof;
            bootstrap::is_proven(token, nonce, &theirs, join)
        };
        let Some((role, _)) = Role::proven(&host.token, &host.read_token, knows) else {
            return Err((true, "its token is not the server's".into(), stream));
        };
        let peer = match stream.peer_addr() {
            Ok(peer) => Peer::Host(peer.ip()),
            Err(e) => return Err((false, e.to_string(), stream)),
        };
        let inbox = self.inboxes.iter().min_by_key(|inbox| inbox.clients());
        let inbox = inbox.expect("a host has workers");
        if inbox.clients() >= inbox.room() {
            return Err((false, "the server's device has as many clients as it can take".into(), stream));
        }
        let admission = match host.shared.admit(peer) {
            Ok(admission) => admission,
            Err(why) => return Err((false, why.to_string(), stream)),
        };
        let (queue, receives) = inbox.queues();
        let client = VerbsSession::new(host, queue, receives, join, nonce, stream, role, admission);
        client.map(|client| inbox.hand_over(client)).map_err(|(why, stream)| (false, why, stream))
    }
}

impl PendingSession {
    /// Returns the client's message, once it is complete.
    fn hear(&mut self) -> Result<Option<Join>, String> {
        let joined = |input: &[u8]| bootstrap::decode(input).map_err(|e| with_causes(&e));
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("hung up".into()),
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return joined(&self.input);
                }
                Err(e) => return Err(e.to_string()),
            }
            // Checked after each chunk, so that a message that is too long is refused before it is
            // collected.
            if let Some(join) = joined(&self.input)? {
                return Ok(Some(join));
            }
        }
    }
}
