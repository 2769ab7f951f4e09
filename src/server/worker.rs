//! A worker on shm and over TCP: an event loop over its own connections.

use super::mailbox::Visit;
use super::parking::Parking;
use super::session::{self, Fate, Session};
use super::shared::{ACCEPT_AGAIN, Peer, ServerState};
use super::socket::{LISTENER, Socket};
use super::stream::ClientStream;
use super::turns::{EventLoop, TurnCount};
use crate::base::peer::{DescriptorShare, SocketPeer, gives_way};
use crate::tls::ServerTls;
use crate::wire::Refusal;
use mio::net::{TcpListener, TcpStream, UnixStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WAKER: Token = Token(1);
const PORT: Token = Token(2);
const FIRST_SESSION: usize = 3;
/// Time between looks for traces that no worker knows of, and for files that others may remove.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Polls of mailboxes before a worker checks its sockets again.
const SWEEPS: u64 = 64;
/// Time that a worker answers requests in mailboxes before it checks its sockets again.
const TURN_TIME: Duration = Duration::from_millis(1);
/// Time between runs of a worker's less urgent work while it polls mailboxes.
const CHORES: Duration = Duration::from_millis(1);

/// Serves the clients that it has accepted.
pub(super) struct StreamWorker {
    shared: Arc<ServerState>,
    poll: Poll,
    /// The sockets of clients on this host, and over TCP.
    socket: Option<Arc<Socket>>,
    port: Option<Arc<TcpListener>>,
    sessions: FxHashMap<Token, Session>,
    /// Sessions whose mailboxes are polled.
    awake: Vec<Token>,
    /// Clients whose descriptors have this number or a higher one are turned away. (The kernel gives
    /// the lowest that is free.)
    descriptors_max: u64,
    /// Sessions that may be halfway ([`Session::is_halfway`]). Every session that is halfway is one
    /// of them, so a round costs nothing for idle clients.
    halfway: FxHashSet<Token>,
    /// Clients over TCP that have not joined yet, with their hosts, and when they connected.
    joining: Vec<(Token, IpAddr, Instant)>,
    /// The most such clients. For a further one, another gives way ([`gives_way`]).
    joining_max: usize,
    /// When to accept again after a failure.
    accept_again: Option<Instant>,
    next: usize,
    /// Sessions whose turn ended before their input did.
    unfinished: Vec<Token>,
    /// Whether this worker wakes up now and then: for traces of changes that no worker made (an
    /// embedder's), and to see whether socket and region are still there.
    looks_around: bool,
    turns: Arc<TurnCount>,
    waker: Arc<Waker>,
    /// How many connections of all workers had to end, when this one last looked (Q7).
    ended: u64,
    /// Sessions with a request that waits.
    parking: Parking<Token>,
}

impl StreamWorker {
    pub fn new(
        shared: Arc<ServerState>,
        socket: Option<Arc<Socket>>,
        port: Option<Arc<TcpListener>>,
        looks_around: bool,
        share: DescriptorShare,
    ) -> io::Result<StreamWorker> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        socket.iter().try_for_each(|socket| socket.watch(poll.registry()))?;
        if let Some(port) = &port {
            let port = port.as_raw_fd();
            poll.registry().register(&mut SourceFd(&port), PORT, Interest::READABLE)?;
        }
        let parking = Parking::new(&shared.index, &waker);
        Ok(StreamWorker {
            shared,
            poll,
            socket,
            port,
            sessions: FxHashMap::default(),
            awake: Vec::new(),
            descriptors_max: share.limit.saturating_sub(DescriptorShare::KEPT),
            halfway: FxHashSet::default(),
            joining: Vec::new(),
            joining_max: share.strangers,
            accept_again: None,
            next: FIRST_SESSION,
            unfinished: Vec::new(),
            looks_around,
            turns: Arc::default(),
            waker,
            ended: 0,
            parking,
        })
    }

    /// The worker's event loop, for other threads.
    pub fn event_loop(&self) -> EventLoop {
        EventLoop { waker: Arc::clone(&self.waker), turns: self.turns.clone() }
    }

    /// Serves until the server stops.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut chores_done = Instant::now();
        while !self.shared.is_stopping() {
            self.turns.count();
            let is_polling = !self.awake.is_empty() && self.unfinished.is_empty();
            let timeout = if is_polling && chores_done.elapsed() < CHORES {
                Some(Duration::ZERO)
            } else {
                chores_done = Instant::now();
                self.drop_halfway(chores_done);
                self.shared.client_memory.give_back();
                self.tidy()
            };
            let timeout = self.parking.sleeps(&self.shared.index, timeout);
            let polled = self.poll.poll(&mut events, timeout);
            self.parking.wakes(&self.shared.index);
            match polled {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(error = %e, "polling failed; this worker ends");
                    return;
                }
                _ => {}
            }
            if self.accept_again.take_if(|at| *at <= Instant::now()).is_some() {
                self.accept_all();
            }
            let unfinished = std::mem::take(&mut self.unfinished);
            for token in unfinished.into_iter().chain(events.iter().map(|event| event.token())) {
                match token {
                    LISTENER | PORT => self.accept_all(),
                    WAKER => {}
                    token => self.serve(token),
                }
            }
            self.sweep();
            self.end_worst();
            self.look_at_parked();
        }
    }

    /// Looks at requests that wait, if something has come for them or their time is over, for one turn.
    fn look_at_parked(&mut self) {
        if self.parking.is_empty() {
            return;
        }
        let mut now = Instant::now();
        let turn_ends = now + TURN_TIME;
        while let Some(token) = self.parking.next(&self.shared.index, now) {
            if let Some(session) = self.sessions.get_mut(&token) {
                let fate = session.look_again(&self.shared);
                self.settle(token, fate);
            }
            now = Instant::now();
            if now >= turn_ends {
                return;
            }
        }
    }

    /// Q7: ends its connections that hold most of the memory of all, if there are any.
    fn end_worst(&mut self) {
        let ended = self.shared.client_memory.ended();
        if std::mem::replace(&mut self.ended, ended) == ended {
            return;
        }
        let worst = self.sessions.iter().filter(|(_, session)| session.is_to_end());
        worst.map(|(token, _)| *token).collect::<Vec<_>>().into_iter().for_each(|token| self.serve(token));
    }

    /// Tidies the table. Returns how long the worker may sleep afterwards. `None` means without
    /// limit.
    fn tidy(&self) -> Option<Duration> {
        let tidy = self.shared.index.tidy();
        if self.looks_around && self.shared.looks_now() {
            self.socket.iter().for_each(|socket| socket.look());
        }
        let idle = self.looks_around.then_some(LOOK_AROUND);
        let is_halfway = |token| self.sessions.get(token).is_some_and(Session::is_halfway);
        let half = self.halfway.iter().any(is_halfway).then_some(self.shared.half_open / 4);
        let at_once = (!self.unfinished.is_empty() || !self.awake.is_empty()).then_some(Duration::ZERO);
        let again = self.accept_again.map(|at| at.saturating_duration_since(Instant::now()));
        [tidy, idle, half, at_once, again].into_iter().flatten().min()
    }

    /// Answers the requests in the mailboxes of awake clients, for one turn. A client that has been
    /// quiet for some time is no longer polled until it rings.
    fn sweep(&mut self) {
        if self.awake.is_empty() {
            return;
        }
        let turn_ends = Instant::now() + TURN_TIME;
        let (mut requests, mut rings, mut sweeps, mut rests) = (0, 0, 0, 0);
        while sweeps < SWEEPS {
            sweeps += 1;
            let before = requests;
            let mut is_worth_it = false;
            self.awake.retain(|token| {
                let Some(session) = self.sessions.get_mut(token) else { return false };
                match session.visit(&self.shared, turn_ends) {
                    Ok(Visit { answered, has_rung, lingers }) => {
                        requests += answered;
                        if answered > 0 && session.is_halfway() {
                            self.halfway.insert(*token);
                        }
                        is_worth_it |= lingers;
                        rings += u64::from(has_rung);
                    }
                    Err(why) => {
                        tracing::debug!(%why, "a client is gone");
                        self.sessions.remove(token);
                        self.parking.note(*token, None);
                        return false;
                    }
                }
                // Q13
                let waits = session.waits();
                if waits {
                    session.turn_off();
                    self.parking.note(*token, session.parked());
                }
                !waits
            });
            if requests == before && !is_worth_it {
                break;
            } else if requests == before {
                std::hint::spin_loop();
            } else if Instant::now() >= turn_ends {
                break;
            }
        }
        let now = Instant::now();
        self.awake.retain(|token| {
            let Some(session) = self.sessions.get_mut(token) else { return false };
            let rests_now = session.rests(now);
            rests += u64::from(rests_now);
            !rests_now
        });
        // Rotates the order, so that no client is always the first.
        if !self.awake.is_empty() {
            self.awake.rotate_left(1);
        }
        let counters = &self.shared.mailboxes;
        for (counter, n) in [
            (&counters.requests, requests),
            (&counters.sweeps, sweeps),
            (&counters.rests, rests),
            (&counters.rings, rings),
        ] {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn accept_all(&mut self) {
        let (socket, port) = (self.socket.as_ref().map(|socket| socket.listener()), self.port.clone());
        if let Some(listener) = socket {
            self.accept_each(|| listener.accept(), |worker, (stream, _)| worker.accept(stream));
        }
        if let Some(listener) = port {
            let accept = |worker: &mut Self, (stream, peer): (_, std::net::SocketAddr)| {
                worker.accept_stranger(stream, peer.ip().to_canonical());
            };
            self.accept_each(|| listener.accept(), accept);
        }
    }

    fn accept_each<S>(&mut self, next: impl Fn() -> io::Result<S>, accept: impl Fn(&mut Self, S)) {
        loop {
            match next() {
                Ok(accepted) => accept(self, accepted),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The client has hung up already.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    // The connection stays in the backlog, and no event announces it again.
                    self.shared.warn_of(&"a client that could not be accepted", &e.to_string());
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn accept(&mut self, stream: UnixStream) {
        let uid = match SocketPeer::of(&stream) {
            Ok(peer) => peer.uid,
            Err(e) => return self.shared.warn_of(&"a client without credentials", &e.to_string()),
        };
        let peer = Peer::User(uid);
        let Some(role) = self.shared.role_of(uid) else {
            return self.turn_away(&stream, &peer, Refusal::User { uid });
        };
        if stream.as_raw_fd() as u64 >= self.descriptors_max {
            return self.turn_away(&stream, &peer, Refusal::Descriptors);
        }
        let admission = match self.shared.admit(peer) {
            Ok(admission) => admission,
            Err(why) => return self.turn_away(&stream, &peer, why),
        };
        let share = self.shared.client_memory.share(Some(&self.waker));
        self.take(stream.into(), |stream| Session::new(stream, role, admission, share));
    }

    /// Accepts a client over TCP, which has proven nothing. If there is one too many, another gives way.
    fn accept_stranger(&mut self, stream: TcpStream, host: IpAddr) {
        if stream.as_raw_fd() as u64 >= self.descriptors_max {
            if self.shared.tokens.tls.is_some() {
                return self.shared.warn_of(&host, &Refusal::Descriptors.to_string());
            }
            return self.turn_away(&stream, &host, Refusal::Descriptors);
        }
        if self.joining.len() >= self.joining_max
            && let Some(gone) = gives_way(self.joining.iter().copied())
        {
            self.shared.warn_of(&host, "too many are joining, of this host most");
            self.leave(gone);
        }
        let _ = stream.set_nodelay(true);
        crate::verbs::keep_alive(&stream);
        let stream = match self.shared.tokens.tls.as_ref().map(ServerTls::session).transpose() {
            Ok(tls) => ClientStream::Tcp(stream, tls.map(Box::new)),
            Err(e) => return self.shared.warn_of(&host, &format!("TLS did not begin: {e}")),
        };
        let share = self.shared.client_memory.share(Some(&self.waker));
        if let Some(token) = self.take(stream, |stream| Session::stranger(stream, host, share)) {
            self.joining.push((token, host, Instant::now()));
        }
    }

    /// Watches a stream, and serves it from now on.
    fn take(
        &mut self,
        mut stream: ClientStream,
        session: impl FnOnce(ClientStream) -> Session,
    ) -> Option<Token> {
        let token = Token(self.next);
        self.next += 1;
        if let Err(e) = stream.watch(self.poll.registry(), token) {
            self.shared.warn_of(&"a client", &format!("watching it failed: {e}"));
            return None;
        }
        self.sessions.insert(token, session(stream));
        self.halfway.insert(token);
        Some(token)
    }

    fn leave(&mut self, token: Token) {
        self.sessions.remove(&token);
        self.parking.note(token, None);
        self.joining.retain(|(joining, ..)| *joining != token);
    }

    fn turn_away(&self, stream: impl io::Write, peer: &dyn std::fmt::Debug, why: Refusal) {
        self.shared.warn_of(peer, &why.to_string());
        session::refuse(stream, why);
    }

    fn serve(&mut self, token: Token) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        let fate = session.advance(&self.shared);
        self.settle(token, fate);
    }

    /// Sees to a session after it has done something.
    fn settle(&mut self, token: Token, fate: Fate) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        self.parking.note(token, session.parked());
        if session.wakes() || session.comes_back() {
            self.awake.push(token);
        }
        if session.is_halfway() {
            self.halfway.insert(token);
        }
        let has_joined = !session.is_stranger();
        match fate {
            Fate::Stay => {}
            Fate::Again => self.unfinished.push(token),
            Fate::Close(why) => {
                tracing::debug!(%why, "a client is gone");
                self.leave(token);
            }
        }
        if has_joined && !self.joining.is_empty() {
            self.joining.retain(|(joining, ..)| *joining != token);
        }
    }

    fn drop_halfway(&mut self, now: Instant) {
        let mut late = Vec::new();
        self.halfway.retain(|token| {
            let Some(session) = self.sessions.get(token) else { return false };
            if session.halfway_for(now) > self.shared.half_open {
                late.push(*token);
            }
            session.is_halfway()
        });
        for token in late {
            // The worker may have been busy: the rest of the frame, or room for replies, may be there by now.
            self.serve(token);
            if self.sessions.get(&token).is_some_and(|s| s.halfway_for(now) > self.shared.half_open) {
                tracing::debug!("a client stopped in the middle of a frame or an upload, or does not read");
                self.leave(token);
            }
        }
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod logged_tests;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod parked_tests;

#[cfg(all(test, not(loom)))]
mod waiting_tests;
