//! One client's connection, on shm or over TCP: reads requests, answers them, writes replies.

use super::caller::{Caller, Role};
use super::held::HeldShare;
use super::held_replies::HeldReplies;
use super::mailbox::{MailboxParked, ServerMailbox, Visit};
use super::park_room::RequestAt;
use super::parking::{ParkAnswer, ParkLook, Parked, may_be_behind};
use super::shared::{Admission, Peer, ServerState};
use super::stream::ClientStream;
use super::{gets, tcp};
use crate::faults::{Rule, broken, obey};
use crate::mailbox::memory;
use crate::outcome::with_causes;
use crate::region::{GetCountMap, TouchMap};
use crate::wire::proof::{self, Nonce};
use crate::wire::{self, Frame, PROTOCOL_VERSION, Refusal, Reply, Request};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::io::{self, IoSlice, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes read from one client per turn.
const TURN_BYTES: usize = 1 << 18;
const CHUNK: usize = 1 << 16;
/// Buffer of a client that has not said hello: longer than any hello. Each read has room for at least this many bytes.
const QUIET_BYTES: usize = 1 << 12;
/// Bytes of replies that are sent before more of them are made. They are still in the core's cache.
const FLUSH_BYTES: usize = 1 << 17;
/// Spare room that a session's own buffer keeps from one turn to the next.
const SPARE_BYTES: usize = 1 << 16;
/// Time for one client's requests per turn. A change that must wait is the last of its turn.
const TURN_TIME: Duration = Duration::from_millis(2);

/// The host of a session that ends.
const NOBODY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// Most bytes that a worker keeps of each of its buffers.
const LENT_MAX: usize = 1 << 21;

thread_local! {
    /// A worker's buffers for input and output. A session without buffers of its own borrows them for its turn. A quiet
    /// session has none.
    static LENT: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// What happens to a session after a turn.
pub(super) enum Fate {
    /// It continues when its socket has something new.
    Stay,
    /// It continues after the turns of the others.
    Again,
    /// It ends, for this reason.
    Close(String),
}

/// A client's connection.
pub(super) struct Session {
    stream: ClientStream,
    caller: Caller,
    standing: Standing,
    /// Its share of the memory of all connections.
    share: HeldShare,
    input: Vec<u8>,
    output: Vec<u8>,
    owes: Owes,
    /// Whether the client has rung, or got its mailbox, since the last call of
    /// [`wakes`](Self::wakes).
    has_rung: bool,
    /// Where further requests may be, if the client has asked for a mailbox.
    mailbox: Option<ServerMailbox>,
    /// A request that waits.
    parked: Option<Parked>,
    /// Whether its mailbox is not polled, because a change waits.
    is_off: bool,
}

/// What a turn is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnFor {
    /// New input, or room for replies. A change that waits is not tried.
    Input,
    /// The change that waits.
    Waiting,
}

/// Whether a request was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    Yes,
    /// It waits where it stands: for itself, or for the replies to requests before it.
    No,
    /// Nothing behind it is.
    AsLast,
}

/// How far the conversation has come.
enum Standing {
    /// The client has not said hello.
    Quiet(Guest),
    /// Over TCP: it has said hello, was sent this number, and has not yet proven that it knows a token.
    Challenged { host: IpAddr, nonce: Nonce },
    /// Its requests are answered.
    In(Admission),
}

/// A client that has not said hello. While it has an admission, it counts as a connection. Over TCP it gets one only
/// when it has proven that it knows a token.
enum Guest {
    Local(Admission),
    Far(IpAddr),
}

/// What the client has to do, and since when.
#[derive(Clone, Copy)]
enum Owes {
    Nothing,
    /// Send the rest of a frame, or the hello.
    Frame(Instant),
    /// Over TCP: read, because too much is unread.
    Reading(Instant),
}

impl Owes {
    fn since(self) -> Option<Instant> {
        match self {
            Owes::Nothing => None,
            Owes::Frame(since) | Owes::Reading(since) => Some(since),
        }
    }
}

/// Tells a client why it is turned away, if it is still there.
pub(super) fn refuse(mut stream: impl Write, why: Refusal) {
    let mut out = Vec::new();
    Reply::TurnedAway(why).encode(0, &mut out);
    let _ = stream.write(&out);
}

impl Session {
    /// A client on this host, with the rights of its user.
    pub fn new(
        stream: impl Into<ClientStream>,
        role: Role,
        admission: Admission,
        share: HeldShare,
    ) -> Session {
        Session::of(stream.into(), role, Guest::Local(admission), share)
    }

    /// A client over TCP.
    pub fn stranger(stream: impl Into<ClientStream>, host: IpAddr, share: HeldShare) -> Session {
        Session::of(stream.into(), Role::Read, Guest::Far(host), share)
    }

    fn of(stream: ClientStream, role: Role, guest: Guest, share: HeldShare) -> Session {
        let mut session = Session {
            stream,
            caller: Caller::new(role).with_replies_of(wire::BODY_MAX),
            standing: Standing::Quiet(guest),
            share,
            input: Vec::new(),
            output: Vec::new(),
            owes: Owes::Frame(Instant::now()),
            has_rung: false,
            mailbox: None,
            parked: None,
            is_off: false,
        };
        session.say_held();
        session
    }

    /// Whether it has not yet proven that it knows a token.
    pub fn is_stranger(&self) -> bool {
        match self.standing {
            Standing::Quiet(Guest::Far(_)) | Standing::Challenged { .. } => true,
            Standing::Quiet(Guest::Local(_)) | Standing::In(_) => false,
        }
    }

    fn is_in(&self) -> bool {
        matches!(self.standing, Standing::In(_))
    }

    fn peer(&self) -> Peer {
        match &self.standing {
            Standing::Quiet(Guest::Local(admission)) | Standing::In(admission) => admission.peer(),
            Standing::Quiet(Guest::Far(host)) | Standing::Challenged { host, .. } => Peer::Host(*host),
        }
    }

    /// Whether the client comes over TCP.
    fn is_far(&self) -> bool {
        matches!(self.stream, ClientStream::Tcp(..))
    }

    /// Called after input. Returns whether the worker must poll its mailbox again.
    pub fn wakes(&mut self) -> bool {
        std::mem::take(&mut self.has_rung) && self.mailbox.as_mut().is_some_and(ServerMailbox::wakes)
    }

    /// Returns whether the worker may stop polling its mailbox.
    pub fn rests(&mut self, now: Instant) -> bool {
        self.mailbox.as_mut().is_none_or(|mailbox| mailbox.rests(now))
    }

    /// Answers the requests in its mailbox, until about `turn_ends`.
    #[inline]
    pub fn visit(&mut self, shared: &ServerState, turn_ends: Instant) -> Result<Visit, String> {
        // Q13
        if self.waits() { Ok(Visit::default()) } else { self.visit_mailbox(shared, turn_ends) }
    }

    #[inline]
    fn visit_mailbox(&mut self, shared: &ServerState, turn_ends: Instant) -> Result<Visit, String> {
        let Some(mailbox) = &mut self.mailbox else { return Ok(Visit::default()) };
        let mut parked = MailboxParked { parked: &mut self.parked, replies: None };
        let visit = mailbox.visit(shared, &mut self.caller, turn_ends, (&mut parked, ParkLook::Again))?;
        if let Some(replies) = parked.replies {
            self.hold(shared, replies)?;
        }
        if visit.has_rung {
            self.ring()?;
        }
        Ok(visit)
    }

    /// From now on these replies wait. A request for changes of the table waits no longer (Q11).
    #[cold]
    fn hold(&mut self, shared: &ServerState, replies: HeldReplies) -> Result<(), String> {
        if self.parked.is_some() {
            self.answer_parked(shared, ParkLook::Last);
            self.flush()?;
        }
        self.parked = Some(Parked::replies(replies, shared));
        Ok(())
    }

    /// Sends the replies that wait no longer, to requests on the socket. Returns whether none waits any more.
    fn send_held(&mut self, shared: &ServerState) -> bool {
        let Some(mut held) = Parked::take_replies(&mut self.parked, RequestAt::Socket) else { return true };
        let are_all = held.send(shared, |id, reply| reply.encode(id, &mut self.output));
        if !are_all {
            self.parked = Some(Parked::replies(held, shared));
        }
        are_all
    }

    /// Stores those to requests in the mailbox, likewise.
    fn store_held(&mut self, shared: &ServerState) -> Result<bool, String> {
        let Some(mailbox) = &mut self.mailbox else { return Ok(true) };
        let Some(mut held) = Parked::take_replies(&mut self.parked, RequestAt::Mailbox) else {
            return Ok(true);
        };
        let (are_all, visit) = mailbox.send_held(shared, &mut held)?;
        if !are_all {
            self.parked = Some(Parked::replies(held, shared));
        }
        if visit.has_rung {
            // A client that is gone hears nothing. What it has asked for is done.
            let _ = self.ring();
        }
        Ok(are_all)
    }

    /// Whether a change waits, or its reply: then no request is answered.
    pub fn waits(&self) -> bool {
        self.waits_at().is_some()
    }

    fn waits_at(&self) -> Option<RequestAt> {
        self.parked.as_ref().and_then(Parked::change_at)
    }

    /// Its worker stops polling its mailbox, because a change waits.
    pub fn turn_off(&mut self) {
        self.is_off = true;
    }

    /// Whether its worker has stopped polling its mailbox, and must poll it again: no change waits any more.
    pub fn comes_back(&mut self) -> bool {
        let comes_back = self.is_off && !self.waits();
        self.is_off &= !comes_back;
        comes_back && self.mailbox.as_ref().is_some_and(ServerMailbox::is_awake)
    }

    /// Wakes the client. After an error the caller must hang up, which also wakes the client.
    fn ring(&mut self) -> Result<(), String> {
        // Otherwise the socket is full of unread bytes, which wake the client.
        if self.output.is_empty() {
            Reply::Wake.encode(0, &mut self.output);
        }
        self.flush()
    }

    /// Whether the client is in the middle of a frame or of an upload, has not said hello yet, or, over TCP, does not read its
    /// replies.
    pub fn is_halfway(&self) -> bool {
        self.halfway_since().is_some()
    }

    /// How long the client has been halfway.
    pub fn halfway_for(&self, now: Instant) -> Duration {
        self.halfway_since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn halfway_since(&self) -> Option<Instant> {
        // It is the server that is to go on.
        if self.waits() {
            return None;
        }
        self.owes.since().into_iter().chain(self.caller.uploads_since()).min()
    }

    /// Reads, answers and writes as far as possible without waiting, for at most one turn.
    pub fn advance(&mut self, shared: &Arc<ServerState>) -> Fate {
        self.advance_for(shared, TurnFor::Input)
    }

    fn advance_for(&mut self, shared: &Arc<ServerState>, turn_for: TurnFor) -> Fate {
        self.borrow_buffers();
        let fate = self.turn(shared, turn_for).unwrap_or_else(Fate::Close);
        self.return_buffers();
        self.say_held();
        if self.is_to_end() { self.end(shared) } else { fate }
    }

    /// The request that waits, if one does.
    pub fn parked(&self) -> Option<&Parked> {
        self.parked.as_ref()
    }

    /// Looks again at the request that waits, and sends its reply if there is one by now.
    pub fn look_again(&mut self, shared: &Arc<ServerState>) -> Fate {
        match self.waits_at() {
            None => self.look_at_feed(shared),
            Some(RequestAt::Socket | RequestAt::Message { .. }) => self.advance_for(shared, TurnFor::Waiting),
            Some(RequestAt::Mailbox) => match self.go_on_in_mailbox(shared) {
                Ok(Visit { answered, .. }) => {
                    shared.mailboxes.requests.fetch_add(answered, Ordering::Relaxed);
                    // What has come over the socket meanwhile.
                    if self.waits() { Fate::Stay } else { self.advance(shared) }
                }
                Err(why) => Fate::Close(why),
            },
        }
    }

    /// Looks again at a change in the mailbox, or at replies to such, and at what is behind it.
    fn go_on_in_mailbox(&mut self, shared: &ServerState) -> Result<Visit, String> {
        match self.store_held(shared)? {
            true => self.visit_mailbox(shared, Instant::now() + TURN_TIME),
            false => Ok(Visit::default()),
        }
    }

    fn look_at_feed(&mut self, shared: &ServerState) -> Fate {
        self.borrow_buffers();
        self.answer_parked(shared, ParkLook::Again);
        let flushed = self.flush();
        let has_unread = self.output.len() > shared.unread_max();
        if self.is_far() && has_unread && self.owes.since().is_none() {
            self.owes = Owes::Reading(Instant::now());
        }
        self.return_buffers();
        self.say_held();
        match flushed {
            Ok(()) if self.is_to_end() => self.end(shared),
            Ok(()) => Fate::Stay,
            Err(why) => Fate::Close(why),
        }
    }

    fn answer_parked(&mut self, shared: &ServerState, look: ParkLook) {
        let Some(parked) = &mut self.parked else { return };
        if let Some((id, reply)) = parked.answer(shared, &self.caller, look) {
            reply.encode(id, &mut self.output);
            self.parked = None;
        }
    }

    /// Whether the connection has to end, because it holds most of the memory of all connections, which is all in use
    /// (Q7).
    pub fn is_to_end(&self) -> bool {
        self.share.is_to_end()
    }

    fn end(&self, shared: &ServerState) -> Fate {
        let why = format!(
            "it left {} bytes unread, more than others, when connections held all that they may",
            self.output.len()
        );
        shared.warn_of(&self.peer(), &why);
        Fate::Close(why)
    }

    /// Reports the bytes that it holds between its turns.
    fn say_held(&mut self) {
        let buffers = self.input.capacity() + self.output.capacity();
        let mailbox = self.mailbox.as_ref().map_or(0, ServerMailbox::private_bytes);
        let parked = self.parked.as_ref().map_or(0, Parked::held_bytes);
        let own = size_of::<Session>() + self.stream.held_bytes();
        self.share.hold((own + buffers + mailbox + parked) as u64);
    }

    /// Borrows the worker's buffers. Before its hello, the session has a small one of its own: no more than that is
    /// read.
    fn borrow_buffers(&mut self) {
        if self.is_in() {
            LENT.with_borrow_mut(|lent| {
                let own = [&mut self.input, &mut self.output].into_iter().zip(lent);
                own.filter(|(own, _)| own.is_empty()).for_each(|(own, lent)| std::mem::swap(own, lent));
            });
        }
    }

    /// Returns empty buffers. The worker keeps the larger one.
    fn return_buffers(&mut self) {
        LENT.with_borrow_mut(|lent| {
            for (own, lent) in [&mut self.input, &mut self.output].into_iter().zip(lent) {
                if !own.is_empty() {
                    if own.capacity() - own.len() > SPARE_BYTES {
                        own.shrink_to_fit();
                    }
                } else {
                    let own = std::mem::take(own);
                    if own.capacity() > lent.capacity() {
                        *lent = own;
                        lent.shrink_to(LENT_MAX);
                    }
                }
            }
        });
    }

    fn turn(&mut self, shared: &Arc<ServerState>, turn_for: TurnFor) -> Result<Fate, String> {
        let unread = self.output.len();
        self.flush()?;
        // Q6. (A change that waits is the first of its turn.)
        let unread_max = shared.unread_max();
        if self.output.len() > unread_max && turn_for == TurnFor::Input {
            // The session continues when the client has read: the socket becomes writable then. A process of this host
            // may be suspended as long as it likes. Over TCP the client may be gone.
            self.owes = match self.owes {
                Owes::Reading(since) if self.output.len() == unread => Owes::Reading(since),
                _ if self.is_far() => Owes::Reading(Instant::now()),
                _ => Owes::Nothing,
            };
            return Ok(Fate::Stay);
        }
        if unread > unread_max {
            self.owes = Owes::Nothing;
        }
        let filled = self.fill(unread_max);
        // The requests of a client that has hung up are handled, but none waits.
        let look = match &filled {
            Ok(Intake::More | Intake::Drained) => ParkLook::Again,
            Ok(Intake::Ended) | Err(_) => ParkLook::Last,
        };
        let is_for_later = turn_for == TurnFor::Input && look == ParkLook::Again;
        if is_for_later && self.waits() {
            self.owes = Owes::Nothing;
            return Ok(Fate::Stay);
        }
        let answered = match self.waits_at() {
            // Those in the mailbox are first.
            Some(RequestAt::Mailbox) if look == ParkLook::Last => self.store_held(shared).map(|_| true),
            Some(RequestAt::Mailbox) => Ok(true),
            Some(RequestAt::Socket | RequestAt::Message { .. }) | None if !self.send_held(shared) => Ok(true),
            Some(RequestAt::Socket | RequestAt::Message { .. }) | None => {
                self.answer_all(shared, Instant::now() + TURN_TIME, unread_max, (turn_for, look))
            }
        };
        match self.flush() {
            // Nobody reads them. What was asked for is done.
            Err(_) if look == ParkLook::Last => self.output.clear(),
            flushed => flushed?,
        }
        if self.is_far() && self.output.len() > unread_max && self.owes.since().is_none() {
            self.owes = Owes::Reading(Instant::now());
        }
        let all_answered = answered?;
        let has_replies = self.parked.as_ref().is_some_and(Parked::are_replies);
        if has_replies || look == ParkLook::Again && self.waits() {
            return Ok(Fate::Stay);
        }
        match filled {
            Ok(Intake::More) => Ok(Fate::Again),
            _ if !all_answered => Ok(Fate::Again),
            Ok(Intake::Drained) => Ok(Fate::Stay),
            _ if self.answers_left(shared)? => Ok(if self.waits() { Fate::Stay } else { Fate::Again }),
            Ok(Intake::Ended) => Err("it hung up".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Answers requests that are still in the mailbox of a client that is gone, for at most one
    /// turn. Returns whether there were any.
    fn answers_left(&mut self, shared: &ServerState) -> Result<bool, String> {
        let Some(mailbox) = &mut self.mailbox else { return Ok(false) };
        let mut parked = MailboxParked { parked: &mut self.parked, replies: None };
        let (look, turn_ends) = ((&mut parked, ParkLook::Last), Instant::now() + TURN_TIME);
        let Visit { answered, .. } = mailbox.visit(shared, &mut self.caller, turn_ends, look)?;
        shared.mailboxes.requests.fetch_add(answered, Ordering::Relaxed);
        if let Some(replies) = parked.replies {
            self.hold(shared, replies)?;
        }
        Ok(answered > 0)
    }

    fn fill(&mut self, unread_max: usize) -> io::Result<Intake> {
        // Input that a turn has left unanswered counts, too. Otherwise a client could make it longer without end. Two
        // chunks are longer than any frame.
        let most = if self.is_in() { unread_max.clamp(2 * CHUNK, TURN_BYTES) } else { QUIET_BYTES };
        while self.input.len() < most {
            let is_quiet = !self.is_in() || self.input.is_empty();
            self.input.reserve(if is_quiet { QUIET_BYTES } else { CHUNK });
            match self.stream.take(&mut self.input) {
                Ok(0) => return Ok(Intake::Ended),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Intake::Drained),
                Err(e) => return Err(e),
            }
        }
        Ok(Intake::More)
    }

    /// Answers the complete requests in the input. After `turn_ends` it answers no more than one: a worker can lose the
    /// CPU anywhere. Stops when the client does not read the replies, and at a change that has to wait (Q13). Returns
    /// whether all were answered, or one waits.
    fn answer_all(
        &mut self,
        shared: &Arc<ServerState>,
        turn_ends: Instant,
        unread_max: usize,
        (turn_for, look): (TurnFor, ParkLook),
    ) -> Result<bool, String> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        let mut all_answered = true;
        // Bytes of the change that waits, if Q13 is broken: what is behind it is answered.
        let mut kept = 0;
        let mut replies = None;
        let mut flush_at = unread_max.min(FLUSH_BYTES);
        while let Some(frame) = wire::decode(rest).map_err(|e| e.to_string())? {
            if rest.len() < input.len() && Instant::now() >= turn_ends {
                all_answered = false;
                break;
            }
            // A short request may have a long reply. The client reads replies while others are made.
            let is_waited_for = turn_for == TurnFor::Waiting && rest.len() == input.len();
            if self.output.len() > flush_at && !is_waited_for {
                self.flush()?;
                if self.output.len() > unread_max {
                    all_answered = false;
                    break;
                }
                flush_at = unread_max.min(self.output.len() + FLUSH_BYTES);
            }
            let request = Request::decode(&frame).map_err(|e| e.to_string())?;
            let handled = self.answer(&frame, request, shared, (look, &mut replies))?;
            if handled == Handled::No && !broken(Rule::WaitOrder) {
                break;
            }
            kept += if handled == Handled::No { frame.length } else { 0 };
            rest = if handled == Handled::AsLast { &[] } else { &rest[frame.length..] };
        }
        if let Some(replies) = replies {
            self.hold(shared, replies)?;
        }
        // Before the hello, input takes no more memory than this.
        let hello_bytes = if self.is_stranger() { wire::JOIN_BYTES } else { wire::HELLO_BYTES };
        if !self.is_in() && rest.len() >= hello_bytes {
            return Err("it did not say hello first".into());
        }
        let done = input.len() - rest.len();
        self.owes = match self.owes {
            _ if rest.is_empty() && self.is_in() || self.waits() => Owes::Nothing,
            Owes::Frame(since) if done == 0 => Owes::Frame(since),
            _ => Owes::Frame(Instant::now()),
        };
        self.input = input;
        self.input.drain(kept..done.max(kept));
        Ok(all_answered)
    }

    /// Handles a request.
    fn answer(
        &mut self,
        frame: &Frame<'_>,
        request: Request<'_>,
        shared: &Arc<ServerState>,
        (look, replies): (ParkLook, &mut Option<HeldReplies>),
    ) -> Result<Handled, String> {
        let id = frame.id;
        if replies.is_some() && !may_be_behind(&request) {
            return Ok(Handled::No);
        }
        if !self.is_in() {
            return self.let_in(id, request, shared).map(|()| Handled::Yes);
        }
        // Q11
        obey(Rule::ParkNext, || self.answer_parked(shared, ParkLook::Last));
        match request {
            Request::Hello { version } => self.refuse_version(id, version)?,
            Request::Mailbox { version } => self.be_seated(id, version, shared)?,
            Request::Wake => self.has_rung = true,
            Request::Gets(request) => gets::answer(shared, id, &request, &mut self.output),
            request => {
                let held = Parked::take_from(&mut self.parked, RequestAt::Socket);
                let asked = (id, frame.patience(), request);
                let at = (RequestAt::Socket, look);
                match shared.answer_or_park(&mut self.caller, asked, held, at, replies) {
                    ParkAnswer::Now(reply) => reply.encode(id, &mut self.output),
                    ParkAnswer::Refused(reply) => {
                        reply.encode(id, &mut self.output);
                        return Ok(Handled::AsLast);
                    }
                    ParkAnswer::Taken(parked) => self.parked = Some(parked),
                    ParkAnswer::Stays(parked) => {
                        self.parked = Some(parked);
                        return Ok(Handled::No);
                    }
                    ParkAnswer::Behind => return Ok(Handled::No),
                    ParkAnswer::Held | ParkAnswer::NotHere => {}
                }
            }
        }
        Ok(Handled::Yes)
    }

    fn refuse_version(&mut self, id: u64, version: u32) -> Result<(), String> {
        Reply::Refused { version: PROTOCOL_VERSION }.encode(id, &mut self.output);
        Err(format!("it said hello in protocol version {version}"))
    }

    /// Takes the first requests of a client: it says hello, and over TCP proves that it knows a token. Then it is let
    /// in, if there is room.
    fn let_in(&mut self, id: u64, request: Request<'_>, shared: &Arc<ServerState>) -> Result<(), String> {
        // A client that gets an error is hung up on, so its standing does not matter then.
        let standing = std::mem::replace(&mut self.standing, Standing::Quiet(Guest::Far(NOBODY)));
        self.standing = match (standing, request) {
            (Standing::Quiet(Guest::Local(admission)), Request::Hello { version: PROTOCOL_VERSION }) => {
                let region = shared.index.region().shared().ok_or("the region is private")?;
                let touches = shared.index.touches().and_then(TouchMap::handed);
                let counts = shared.get_counts.as_ref().and_then(GetCountMap::handed);
                let notes: SmallVec<[&OwnedFd; 2]> = touches.into_iter().chain(counts).collect();
                self.send_with(id, &Reply::WELCOME, &region, &notes)?;
                Standing::In(admission)
            }
            (Standing::Quiet(Guest::Far(host)), Request::Hello { version: PROTOCOL_VERSION }) => {
                let nonce = proof::nonce().map_err(|e| e.to_string())?;
                Reply::Challenge { nonce }.encode(id, &mut self.output);
                Standing::Challenged { host, nonce }
            }
            (Standing::Challenged { host, nonce: ours }, Request::Join { nonce, proof }) => {
                let known = tcp::admit(shared, &ours, &nonce, &proof).ok_or(Refusal::Token);
                let admitted = known.and_then(|known| Ok((known, shared.admit(Peer::Host(host))?)));
                match admitted {
                    Ok(((role, welcome), admission)) => {
                        welcome.encode(id, &mut self.output);
                        self.caller = Caller::new(role).with_replies_of(wire::BODY_MAX);
                        Standing::In(admission)
                    }
                    Err(why) => {
                        shared.warn_of(&host, &why.to_string());
                        Reply::TurnedAway(why).encode(id, &mut self.output);
                        return Err(why.to_string());
                    }
                }
            }
            (_, Request::Hello { version }) => return self.refuse_version(id, version),
            _ => return Err("it did not say hello first".into()),
        };
        Ok(())
    }

    /// Gives the client a mailbox, once. Refuses with the server's version of mailboxes, or 0 if it
    /// has none. If that is the version asked for, there is no room for another one now.
    fn be_seated(&mut self, id: u64, version: u32, shared: &ServerState) -> Result<(), String> {
        let (room, geometry) = (&shared.mailbox_memory, shared.index.geometry());
        // Memory can be shared on this host only.
        let has_any = !self.is_far() && room.has_any(geometry);
        let ours = if has_any { memory::VERSION } else { 0 };
        if version != memory::VERSION || ours == 0 {
            Reply::Refused { version: ours }.encode(id, &mut self.output);
            return Ok(());
        }
        if self.mailbox.is_some() || !self.output.is_empty() {
            return Err("it asked for a mailbox in the middle of a conversation".into());
        }
        let why = match ServerMailbox::new(room, geometry) {
            Ok(Some((mailbox, memory))) => {
                self.send_with(id, &Reply::Mailbox { version }, &memory, &[])?;
                self.mailbox = Some(mailbox);
                self.has_rung = true;
                return Ok(());
            }
            Ok(None) => "the mailboxes have all that they may take".into(),
            Err(error) => with_causes(&error),
        };
        let refused = shared.mailboxes.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused.is_power_of_two() {
            let bytes = room.taken();
            tracing::warn!(why, bytes, refused, "no room for another mailbox; clients use messages");
        }
        Reply::Refused { version: ours }.encode(id, &mut self.output);
        Ok(())
    }

    /// Sends a reply with a descriptor, or two.
    fn send_with(
        &mut self,
        id: u64,
        reply: &Reply,
        memory: &impl AsFd,
        others: &[&OwnedFd],
    ) -> Result<(), String> {
        let mut out = Vec::new();
        reply.encode(id, &mut out);
        let fds: SmallVec<[BorrowedFd<'_>; 3]> =
            std::iter::once(memory.as_fd()).chain(others.iter().map(AsFd::as_fd)).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        // The socket's buffer is empty, so these few bytes are sent whole or not at all.
        let sent =
            rustix::net::sendmsg(&self.stream, &[IoSlice::new(&out)], &mut ancillary, SendFlags::NOSIGNAL)
                .map_err(|e| e.to_string())?;
        if sent != out.len() {
            return Err("its socket took half a reply".into());
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        let mut written = 0;
        let ended = loop {
            let sent = match &self.output[written..] {
                [] => self.stream.flush().map(|()| 0),
                rest => self.stream.write(rest),
            };
            match sent {
                Ok(0) if written == self.output.len() => break Ok(()),
                Ok(0) => break Err("its socket takes nothing".to_string()),
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e.to_string()),
            }
        };
        self.output.drain(..written);
        ended
    }
}

#[cfg(all(test, not(loom)))]
impl Session {
    /// Pretends that the client has been halfway since this time.
    pub fn be_halfway_since(&mut self, since: Instant) {
        self.owes = Owes::Frame(since);
    }

    /// Pretends that a client of this host has said hello.
    pub fn be_in(&mut self) {
        let standing = std::mem::replace(&mut self.standing, Standing::Quiet(Guest::Far(NOBODY)));
        let Standing::Quiet(Guest::Local(admission)) = standing else { panic!("it has said hello") };
        (self.standing, self.owes) = (Standing::In(admission), Owes::Nothing);
    }

    /// Pretends that the client has asked for a mailbox and got this one.
    pub fn take_mailbox(&mut self, mailbox: ServerMailbox) {
        self.mailbox = Some(mailbox);
    }

    /// Bytes of its buffers.
    pub fn memory(&self) -> usize {
        self.input.capacity() + self.output.capacity()
    }

    /// The bytes that it last reported.
    pub fn share_bytes(&self) -> u64 {
        self.share.bytes()
    }

    /// Its mailbox.
    pub fn mailbox(&mut self) -> &mut ServerMailbox {
        self.mailbox.as_mut().expect("it has slots")
    }

    /// Pretends that these bytes were received.
    pub fn has_read(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }
}

impl Drop for Session {
    /// Hangs up. Closing is not enough: a child made by `fork` may have the same socket.
    fn drop(&mut self) {
        let _ = self.stream.shutdown();
    }
}

enum Intake {
    /// There may be more to read.
    More,
    /// Nothing more for now.
    Drained,
    /// The client has closed its end.
    Ended,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::shared::Peer;
    use super::super::{Server, ServerConfig};
    use super::*;
    use crate::address::Address;
    use crate::config::{Config, TableSize};
    use crate::outcome::PutMode;
    use crate::wire::ServerStats;
    use mio::net::UnixStream;

    /// A session that the test drives, its client's end, and a server that answers.
    fn session() -> (Session, std::os::unix::net::UnixStream, Server, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(dir.path().join("s")), table)).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
        }
        let admission = server.shared.admit(Peer::User(0)).unwrap();
        let share = server.shared.client_memory.share(None);
        (Session::new(UnixStream::from_std(ours), Role::Change, admission, share), theirs, server, dir)
    }

    fn frames(requests: &[Request<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(0, &mut bytes));
        bytes
    }

    const HELLO: Request<'_> = Request::Hello { version: PROTOCOL_VERSION };
    const UNREAD: usize = 1 << 20;
    const USUAL: (TurnFor, ParkLook) = (TurnFor::Input, ParkLook::Again);

    /// A client is halfway from its connection until its hello is whole, and from the first byte of
    /// a frame to the last, however slowly they come. It is not halfway between frames.
    #[test]
    fn a_client_is_halfway_until_its_frame_is_whole() {
        let (mut session, mut client, server, _dir) = session();
        let mut advance = |bytes: &[u8]| {
            client.write_all(bytes).unwrap();
            assert!(matches!(session.advance(&server.shared), Fate::Stay));
            let later = Instant::now() + Duration::from_secs(60);
            assert_eq!(session.halfway_for(later) > Duration::from_secs(50), session.is_halfway());
            session.owes.since()
        };
        let (hello, get) = (frames(&[HELLO]), frames(&[Request::Get { key: b"key" }]));
        let since = advance(&[]);
        assert!(since.is_some(), "it has not said hello");
        assert_eq!(advance(&hello[..1]), since);
        assert_eq!(advance(&hello[1..10]), since);
        assert_eq!(advance(&hello[10..]), None);
        assert_eq!(advance(&[]), None);
        let since = advance(&get[..1]);
        assert!(since.is_some());
        assert_eq!(advance(&get[1..17]), since, "slow bytes do not begin it again");
        assert_eq!(advance(&get[17..]), None);
        // The end of one frame and the beginning of the next.
        let first = advance(&get[..5]);
        std::thread::sleep(Duration::from_millis(2));
        let second = advance(&[&get[5..], &get[..5]].concat());
        assert!(second > first, "it began later");
        assert_eq!(advance(&get[5..]), None);
    }

    /// Why it is hung up on, however many turns that takes: whoever loses the CPU needs another.
    fn why(session: &mut Session, shared: &Arc<ServerState>) -> String {
        loop {
            match session.advance(shared) {
                Fate::Close(why) => return why,
                Fate::Stay => panic!("it stays"),
                Fate::Again => {}
            }
        }
    }

    /// A conversation begins with one hello of this version. A client that says anything else is
    /// told the version where that helps, and is disconnected.
    #[test]
    fn a_conversation_begins_with_one_hello() {
        let refused = frames_of(&[Reply::Refused { version: PROTOCOL_VERSION }]);
        let welcome = frames_of(&[Reply::WELCOME]);
        let (twice, nothing) = ([&welcome[..], &refused[..]].concat(), Vec::new());
        let other = Request::Hello { version: PROTOCOL_VERSION + 1 };
        let long = [0xff; 16].to_vec();
        for (asked, answered, expected) in [
            (frames(&[other]), &refused, "it said hello in protocol version 3"),
            (frames(&[HELLO, HELLO]), &twice, "it said hello in protocol version 2"),
            (frames(&[Request::Stat, HELLO]), &nothing, "it did not say hello first"),
            (frames(&[Request::Mailbox { version: 1 }]), &nothing, "it did not say hello first"),
            (long, &nothing, "a frame of 4294967295 bytes was announced, the longest is 65536"),
            (Vec::new(), &nothing, "it hung up"),
        ] {
            let (mut session, mut client, server, _dir) = session();
            client.write_all(&asked).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(why(&mut session, &server.shared), expected);
            drop(session);
            let mut output = Vec::new();
            io::Read::read_to_end(&mut client, &mut output).unwrap();
            assert_eq!(&output, answered, "{expected}");
        }
    }

    fn frames_of(replies: &[Reply]) -> Vec<u8> {
        let mut bytes = Vec::new();
        replies.iter().for_each(|reply| reply.encode(0, &mut bytes));
        bytes
    }

    /// A client gets a mailbox once, and only while no reply to it is due.
    #[test]
    fn mailboxes_are_handed_out_between_answers() {
        let slots = Request::Mailbox { version: memory::VERSION };
        for asked in [&[HELLO, Request::Stat, slots][..], &[HELLO, slots, slots]] {
            let (mut session, _client, _server, _dir) = session();
            session.has_read(&frames(asked));
            // In one turn, however long it takes.
            let answered = session.answer_all(
                &Arc::new(super::super::tests::shared()),
                Instant::now() + Duration::from_secs(3600),
                UNREAD,
                USUAL,
            );
            assert_eq!(answered, Err("it asked for a mailbox in the middle of a conversation".into()));
        }
    }

    /// Where the machine has no memory left for a mailbox, its client gets none, and keeps its connection. When
    /// there is room again, it gets one.
    #[test]
    fn mailboxes_need_room() {
        use crate::region::room::tests::{PRETENDED, pretend};
        let (mut session, mut client, server, _dir) = session();
        let asks = Request::Mailbox { version: memory::VERSION };
        let bytes = memory::bytes(server.shared.index.geometry());
        let later = Instant::now() + Duration::from_secs(3600);
        session.has_read(&frames(&[HELLO]));
        assert_eq!(session.answer_all(&server.shared, later, UNREAD, USUAL), Ok(true));
        client.set_nonblocking(false).unwrap();
        io::Read::read_exact(&mut client, &mut [0; 20]).unwrap();
        let mut ask = |left| {
            pretend(left);
            session.has_read(&frames(&[asks]));
            assert_eq!(session.answer_all(&server.shared, later, UNREAD, USUAL), Ok(true));
            session.flush().unwrap();
            let mut answer = [0; 20];
            io::Read::read_exact(&mut client, &mut answer).unwrap();
            (answer.to_vec(), server.shared.mailbox_memory.taken(), server.mailbox_counts().refused)
        };
        let refused = frames_of(&[Reply::Refused { version: memory::VERSION }]);
        for times in 1..=3 {
            assert_eq!(ask((16 << 20) + bytes - 1), (refused.clone(), 0, times), "others need the rest");
        }
        assert_eq!(
            ask((16 << 20) + bytes),
            (frames_of(&[Reply::Mailbox { version: memory::VERSION }]), bytes, 3)
        );
        PRETENDED.set(None);
    }

    /// A turn that ends before it has begun, because the worker lost the CPU, answers the first request
    /// all the same. So a hello is not taken for something else, and each turn gets on.
    #[test]
    fn a_turn_answers_at_least_one_request() {
        let (mut session, mut client, server, _dir) = session();
        let over = Instant::now();
        session.has_read(&frames(&[HELLO, Request::Stat, Request::Stat]));
        for (all, left) in [(false, 2), (false, 1), (true, 0)] {
            assert_eq!(session.answer_all(&server.shared, over, UNREAD, USUAL), Ok(all));
            assert_eq!(session.input.len(), frames(&vec![Request::Stat; left]).len());
            session.flush().unwrap();
            assert!(io::Read::read(&mut client, &mut [0; 1 << 10]).unwrap() > 0, "an answer");
        }
    }

    /// A session over TCP that was let in, its client's end, a server that keeps 64 KiB for a client that does not read,
    /// and a request of some bytes for a value of 50,000.
    fn asking_for_much() -> (Session, std::net::TcpStream, Server, tempfile::TempDir, Vec<u8>) {
        use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
        let dir = tempfile::tempdir().unwrap();
        let table = Config::new().size(TableSize::Slots(64)).value_max(50_000).inline_max(40);
        let config = ServerConfig::new(Address::Shm(dir.path().join("s")), table.heap_bytes(4 << 20));
        let server = Server::start(config.unread_bytes_max(1 << 16)).unwrap();
        server.index().put(b"long", &[1; 50_000], PutMode::Insert).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        // So that the system keeps little beside.
        set_socket_send_buffer_size(&ours, 1 << 16).unwrap();
        set_socket_recv_buffer_size(&client, 1 << 16).unwrap();
        [&ours, &client].into_iter().for_each(|end| end.set_nonblocking(true).unwrap());
        let admission = server.shared.admit(Peer::User(0)).unwrap();
        let share = server.shared.client_memory.share(None);
        let mut session = Session::new(mio::net::TcpStream::from_std(ours), Role::Change, admission, share);
        session.be_in();
        let mut keys = wire::KeysWriter::default();
        assert!(keys.push(b"long"));
        let wants = wire::Wants { lives: false, bits: false, from: 0, most: u32::MAX };
        let request = frames(&[Request::Gets(keys.request(wants))]);
        (session, client, server, dir, request)
    }

    /// A client asks for as much as it can, and reads little of it. The session takes no more memory for that than for
    /// one turn's requests, what may be unread, and one reply, whose buffers may be twice as long.
    #[test]
    fn memory_for_a_client_that_reads_slowly_is_bounded() {
        let (mut session, mut client, server, _dir, request) = asking_for_much();
        let many = request.repeat(10_000);
        let (mut said, mut read, mut most, mut some) = (0, 0, 0, vec![0; 100_000]);
        let begun = Instant::now();
        while said < 2 * TURN_BYTES || read < 10_000_000 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{said} bytes said, {read} read");
            while let Ok(n) = client.write(&many[said % many.len()..]) {
                said += n;
            }
            assert!(!matches!(session.advance(&server.shared), Fate::Close(_)));
            most = most.max(session.memory());
            read += io::Read::read(&mut client, &mut some).unwrap_or(0);
        }
        let bound = 2 * (TURN_BYTES + CHUNK + (1 << 16) + wire::BODY_MAX);
        assert!(most < bound, "{most} bytes, {bound} are allowed");
    }

    /// Over TCP a client is halfway from the moment at which too much is unread. When it has read something, the time
    /// begins again; when it has read all, it is not halfway any more.
    #[test]
    fn who_does_not_read_over_tcp_is_halfway() {
        let (mut session, mut client, server, _dir, request) = asking_for_much();
        client.write_all(&request.repeat(40)).unwrap();
        let begun = Instant::now();
        // Whoever loses the CPU needs another turn, and what is sent may take a while.
        let mut until = |is_so: &mut dyn FnMut(&mut Session) -> bool| {
            while !is_so(&mut session) {
                assert!(begun.elapsed() < Duration::from_secs(60));
                assert!(!matches!(session.advance(&server.shared), Fate::Close(_)));
            }
        };
        // Until nothing moves any more.
        let (mut since, mut unread, mut times) = (None, 0, 0);
        until(&mut |session| {
            let is_same = session.owes.since() == since && session.output.len() == unread;
            (since, unread) = (session.owes.since(), session.output.len());
            times = if is_same && since.is_some() && unread > 1 << 16 { times + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
            times == 200
        });
        let (mut read, mut some) = (0, vec![0; 100_000]);
        until(&mut |session| {
            read += io::Read::read(&mut client, &mut some).unwrap_or(0);
            session.owes.since() > since
        });
        let all = 40 * (16 + 8 + 50_000 + 24);
        until(&mut |_| {
            read += io::Read::read(&mut client, &mut some).unwrap_or(0);
            read >= all
        });
        until(&mut |session| session.output.is_empty() && !session.is_halfway());
        assert_eq!(read, all);
    }

    /// Over TCP who reads slowly has as long again with whatever it reads, also while too much is still unread.
    #[test]
    fn slow_readers_over_tcp_are_waited_for() {
        let (mut session, mut client, server, _dir, _) = asking_for_much();
        session.output.resize(8 << 20, 0);
        let begun = Instant::now();
        let advance = |session: &mut Session| {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing begins again");
            assert!(matches!(session.advance(&server.shared), Fate::Stay));
            (session.owes.since(), session.output.len())
        };
        let mut some = vec![0; 100_000];
        for _ in 0..3 {
            let (since, unread) = advance(&mut session);
            assert!(since.is_some() && unread > 1 << 20, "{unread}");
            std::thread::sleep(Duration::from_millis(2));
            loop {
                let _ = io::Read::read(&mut client, &mut some);
                let (now, left) = advance(&mut session);
                if left < unread && now > since {
                    break;
                }
                assert!(now == since || left < unread, "it has read nothing");
            }
        }
    }

    /// A turn reads only part of a long input. The rest is read in later turns.
    #[test]
    fn a_turn_reads_a_limited_number_of_bytes() {
        let (mut session, mut client, server, _dir) = session();
        rustix::net::sockopt::set_socket_send_buffer_size(&client, 1 << 20).unwrap();
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        let mut replies = vec![0; 1 << 16];
        assert_eq!(io::Read::read(&mut client, &mut replies).unwrap(), 20);
        // Each request takes 64 KiB. Of the last one, as much is sent as there is room for.
        let remove = frames(&[Request::Remove { key: &[1; (1 << 16) - 16] }]);
        let mut sent = 0;
        while let Ok(n) = client.write(&remove[sent % remove.len()..]) {
            sent += n;
        }
        if sent < 5 << 16 {
            return eprintln!("skipped: this system's sockets hold no more than {sent} bytes");
        }
        assert!(matches!(session.advance(&server.shared), Fate::Again));
        assert_eq!(io::Read::read(&mut client, &mut replies).unwrap(), 4 * 32, "answers");
        while matches!(session.advance(&server.shared), Fate::Again) {}
        assert_eq!(io::Read::read(&mut client, &mut replies).unwrap(), ((sent >> 16) - 4) * 32, "the rest");
    }

    /// Requests made before the client hung up are handled, however many.
    #[test]
    fn requests_before_a_hang_up_are_handled() {
        let (mut session, mut client, server, _dir) = session();
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        let put =
            Request::Put { options: crate::outcome::PutMode::Insert.into(), key: b"last", value: b"value" };
        session.has_read(&frames(&[Request::Remove { key: b"none" }]).repeat(100_000));
        session.has_read(&frames(&[put]));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let reads = std::thread::spawn(move || {
            client.set_nonblocking(false).unwrap();
            io::copy(&mut client, &mut io::sink()).unwrap()
        });
        let mut turns = 0;
        let why = loop {
            match session.advance(&server.shared) {
                Fate::Close(why) => break why,
                Fate::Again => turns += 1,
                // Its replies must be read first.
                Fate::Stay => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        assert_eq!(why, "it hung up");
        assert!(turns > 0, "so fast");
        assert_eq!(server.shared.stats().keys, 1);
        drop(session);
        assert!(reads.join().unwrap() > 0);
    }

    /// So are those in its mailbox, although nobody rings any more.
    #[test]
    fn requests_left_in_a_mailbox_are_handled() {
        let (mut session, mut client, server, _dir) = session();
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        let ServerState { index, mailbox_memory, .. } = &*server.shared;
        let (ours, memory) = ServerMailbox::new(mailbox_memory, index.geometry()).unwrap().unwrap();
        let theirs = memory::Mailbox::map(memory, index.geometry()).unwrap();
        session.take_mailbox(ours);
        for number in 1..=memory::WINDOW {
            let mut frame = Vec::new();
            let mode = crate::outcome::PutMode::Upsert;
            Request::Put { options: mode.into(), key: b"key", value: b"value" }.encode(number, &mut frame);
            assert!(crate::mailbox::store(theirs.request(number), number, &frame));
        }
        theirs.client().announce(memory::WINDOW);
        drop(client);
        let why = loop {
            match session.advance(&server.shared) {
                Fate::Close(why) => break why,
                Fate::Again => {}
                Fate::Stay => panic!("it has hung up"),
            }
        };
        let (updates, answered) = (server.stats().updates, server.mailbox_counts().requests);
        assert_eq!((updates + 1, answered), (memory::WINDOW, memory::WINDOW), "{why}");
    }

    /// A frame wakes a client with a mailbox. A full socket already wakes its client, and a client
    /// that is gone needs no waking. A client's frame wakes its mailbox; a request that goes over
    /// the socket does not.
    #[test]
    fn rings_wake_both_sides() {
        let (mut session, mut client, server, _dir) = session();
        assert!(session.rests(Instant::now()), "it has no mailbox");
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert!(!session.wakes(), "it has no mailbox");
        let ServerState { index, mailbox_memory, .. } = &*server.shared;
        let (mailbox, _memory) = ServerMailbox::new(mailbox_memory, index.geometry()).unwrap().unwrap();
        session.take_mailbox(mailbox);
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert!(!session.wakes(), "nothing has come");
        client.write_all(&frames(&[Request::Wake])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert_eq!([session.wakes(), session.wakes()], [true, false]);
        client.write_all(&frames(&[Request::Wake])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert!(!session.wakes(), "it is awake");
        assert!(!session.rests(Instant::now() - Duration::from_secs(1)), "it has asked lately");
        assert!(session.rests(Instant::now() + Duration::from_secs(1)));
        let mut welcome = [0; 20];
        io::Read::read_exact(&mut client, &mut welcome).unwrap();
        session.ring().unwrap();
        let mut ring = [0; 100];
        assert_eq!(io::Read::read(&mut client, &mut ring).unwrap(), 16, "a ring");
        assert_eq!(wire::replies(&ring[..16], 0), Ok(vec![Reply::Wake]));
        client.write_all(&frames(&[Request::Get { key: b"key" }])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert!(!session.wakes(), "nothing is in its mailbox");
        (0..100_000).for_each(|_| session.ring().expect("a full socket is no harm"));
        assert_eq!(session.output.len(), 16, "one ring waits until it has read");
        drop(client);
        assert!(session.ring().is_err());
    }

    /// The server keeps a limited number of unread replies for a client. When the client reads, the
    /// server reads again.
    #[test]
    fn unread_replies_are_limited() {
        let (mut session, mut client, server, _dir) = session();
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        let stats = frames(&[Request::Stat; 1000]);
        let reply = 16 + size_of::<ServerStats>();
        // The most that one turn may add.
        let most = (1 << 20) + ((1 << 18) + (1 << 16)) / 16 * reply;
        let (mut asked, mut refusals) = (0, 0);
        while refusals < 100 {
            // Half a request is fine here: the rest follows.
            match client.write(&stats[asked % stats.len()..]) {
                Ok(n) => asked += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => refusals += 1,
                Err(e) => panic!("{e}"),
            }
            assert!(!matches!(session.advance(&server.shared), Fate::Close(_)));
            assert!(session.output.len() <= most, "{} bytes of replies are kept", session.output.len());
            assert!(asked < 100 * most, "it is heard for ever");
        }
        assert!(session.output.len() > 1 << 20);
        session.be_halfway_since(Instant::now());
        assert!(matches!(session.advance(&server.shared), Fate::Stay), "there is nothing to do for it");
        assert!(!session.is_halfway(), "its silence is not held against it");
        // The limit is exact: beyond it, nothing is read or answered.
        for (kept, is_heard) in [((1 << 20) + 1, false), (1 << 20, true)] {
            let (mut session, mut client, server, _dir) = self::session();
            // Fills the socket until it takes nothing.
            while session.output.is_empty() {
                session.output.resize(1 << 16, 0);
                session.flush().unwrap();
            }
            session.output.resize(kept, 0);
            client.write_all(&frames(&[HELLO])[..5]).unwrap();
            assert!(matches!(session.advance(&server.shared), Fate::Stay));
            assert_eq!(session.input.len() == 5, is_heard, "{kept} bytes are kept");
        }
        let (mut chunk, mut received) = (vec![0; 1 << 16], 0);
        // The welcome comes first.
        while received < 16 + 4 + asked / 16 * reply {
            match io::Read::read(&mut client, &mut chunk) {
                Ok(n) => received += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    assert!(!matches!(session.advance(&server.shared), Fate::Close(_)));
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(session.output.len(), 0);
    }

    /// What clients leave unread of many replies, each of which asks for as much as it can: bytes of the longest one,
    /// while half of the memory for all is in use.
    fn unread_while_memory_is_short() -> usize {
        let (_, _, server, _dir) = session();
        let memory = super::super::held::ClientMemory::new(4 << 20);
        let mut shared = super::super::tests::shared();
        shared.client_memory = Arc::clone(&memory);
        let shared = Arc::new(shared);
        let _taken = memory.take((2 << 20) + 1).expect("there is room");
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
        let admission = server.shared.admit(Peer::User(0)).unwrap();
        let mut session =
            Session::new(UnixStream::from_std(ours), Role::Change, admission, memory.share(None));
        session.be_in();
        let (stats, mut asked, mut refusals) = (frames(&[Request::Stat; 1000]), 0, 0);
        while refusals < 100 {
            match theirs.write(&stats[asked % stats.len()..]) {
                Ok(n) => asked += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => refusals += 1,
                Err(e) => panic!("{e}"),
            }
            assert!(!matches!(session.advance(&shared), Fate::Close(_)));
        }
        assert_eq!(memory.counts().bytes, (2 << 20) + 1 + session.share_bytes(), "all of it counts");
        assert!(session.share_bytes() >= session.memory() as u64);
        session.output.len()
    }

    /// Q7: what a client has pinned counts as held for clients, until it takes the pins back.
    #[test]
    fn pins_count_as_held() {
        const PINS: usize = 100;
        let (mut session, mut client, server, _dir) = session();
        server.index().put(b"key", b"value", PutMode::Insert).unwrap();
        let mut held_after = |session: &mut Session, requests: &[Request<'_>]| {
            client.write_all(&frames(requests)).unwrap();
            // Whoever loses the CPU needs another turn.
            while !matches!(session.advance(&server.shared), Fate::Stay) {}
            server.shared.client_memory.counts().bytes
        };
        let before = held_after(&mut session, &[HELLO]);
        let pinned = held_after(&mut session, &[Request::Pin { key: b"key" }; PINS]);
        assert!(pinned >= before + (PINS * size_of::<usize>()) as u64, "{before}, then {pinned}");
        let after = held_after(&mut session, &[Request::Unpin { key: b"key" }; PINS]);
        assert_eq!(after, before);
    }

    /// Q6: while half of the memory for all is in use, little more than a reply is left unread.
    #[test]
    fn little_is_left_unread_while_memory_is_short() {
        assert!(unread_while_memory_is_short() <= 2 * wire::BODY_MAX);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn much_that_is_unread_is_noticed() {
        let _broken = crate::faults::Broken::rule(crate::faults::Rule::ShortMemory);
        assert!(unread_while_memory_is_short() > 1 << 20);
    }

    /// Q7: who holds most when all hold too much is hung up on, and what it held is free.
    #[test]
    fn who_holds_most_is_hung_up_on() {
        let (mut session, mut client, server, _dir) = session();
        let memory = &server.shared.client_memory;
        client.write_all(&frames(&[HELLO])).unwrap();
        assert!(matches!(session.advance(&server.shared), Fate::Stay));
        assert_eq!((memory.ended(), session.is_to_end()), (0, false));
        let mut other = memory.share(None);
        other.hold(memory.counts().bytes_max);
        // It is the other one that holds most.
        assert!(other.is_to_end() && !session.is_to_end());
        session.share.hold(memory.counts().bytes_max + 1);
        assert_eq!(
            why(&mut session, &server.shared),
            "it left 0 bytes unread, more than others, when connections held all that they may"
        );
        drop((session, other));
        assert_eq!(memory.counts().bytes, 0);
    }
}
