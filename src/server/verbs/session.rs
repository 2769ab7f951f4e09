//! A client that has joined: its queue pair, its messages, and their answers.

#![allow(unsafe_code)]

use super::extension::ExtensionLease;
use super::host::VerbsServer;
use super::receives::{LandedMessage, MESSAGES, Receives};
use crate::faults::{Rule, broken};
use crate::outcome::with_causes;
use crate::server::caller::{Caller, Role};
use crate::server::held::TakenShare;
use crate::server::held_replies::HeldReplies;
use crate::server::park_room::RequestAt;
use crate::server::parking::{ParkAnswer, ParkLook, Parked};
use crate::server::shared::{Admission, ServerState};
use crate::verbs::bootstrap::{self, Descriptor, Join, JoinAnswer, Nonce, Welcome};
use crate::verbs::device::{
    Access, Buffer, CompletionQueue, Depth, QueuePair, SharedReceives, Work, WorkKind,
};
use crate::verbs::error::{SetupError, VerbsError};
use crate::wire;
use ibverbs_sys::ibv_qp_type;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client that has joined.
pub(super) struct VerbsSession {
    // The queue pair is dropped before the buffer that its work requests name.
    pair: QueuePair,
    outgoing: Buffer,
    /// Its end shows that the client is gone.
    stream: TcpStream,
    caller: Caller,
    /// While it is held, the client counts as a connection, and holds its memory.
    _admission: Admission,
    _share: TakenShare,
    /// Sent once the worker has taken the client.
    welcome: Vec<u8>,
    /// Slots of `outgoing` whose SENDs have completed.
    free: Vec<usize>,
    /// Messages received, oldest first.
    requests: VecDeque<ReceivedMessage>,
    /// The incomplete answer to the first of `requests`.
    answer: Vec<u8>,
    /// Answers that wait for a free slot of `outgoing`.
    ready: VecDeque<Vec<u8>>,
    /// A request that waits. One for changes of the table is the first of `requests`, and the whole message. A change is the
    /// next one of the first message.
    parked: Option<Parked>,
    /// Whether its queue pair has taken its last receive.
    is_spent: bool,
    /// The extension's state for the client, if it asked for the extension.
    extension: Option<ExtensionLease>,
}

/// A message, and how many of its bytes are answered.
struct ReceivedMessage {
    landed: LandedMessage,
    done: usize,
}

/// Marks work requests that are SENDs.
pub(super) const SEND: u64 = 1 << 63;

impl VerbsSession {
    /// Makes the server's end of a client that joins. `Err` says why not, and gives the stream back.
    #[expect(clippy::too_many_arguments, reason = "all that the conversation has brought")]
    pub fn new(
        host: &VerbsServer,
        queue: &Arc<CompletionQueue>,
        receives: &Arc<SharedReceives>,
        join: &Join,
        nonce: &Nonce,
        stream: TcpStream,
        role: Role,
        admission: Admission,
    ) -> Result<VerbsSession, (String, TcpStream)> {
        let made = || -> Result<_, SetupError> {
            let domain = host.station.domain();
            let mut pair = QueuePair::new(
                domain.clone(),
                queue.clone(),
                Some(receives.clone()),
                ibv_qp_type::IBV_QPT_RC,
                Depth { sends: MESSAGES as u32, receives: 0 },
                host.station.route().clone(),
            )?;
            pair.connect(&join.endpoint, Access::REMOTE_READ)?;
            let outgoing = Buffer::new(domain.clone(), MESSAGES, host.message_bytes, Access::LOCAL)?;
            Ok((pair, outgoing))
        };
        let mtu = join.endpoint.mtu;
        if !crate::verbs::is_mtu(mtu) {
            return Err((format!("{mtu} bytes is no path MTU"), stream));
        }
        if let Err(why) = host.station.check(&join.endpoint.at, join.network) {
            return Err((format!("{why} (\"this side\" being the server's)"), stream));
        }
        let (pair, outgoing) = match made() {
            Ok(made) => made,
            Err(error) => {
                let why = with_causes(&error);
                return Err((format!("the server's queue pair cannot be connected: {why}"), stream));
            }
        };
        let (lease, extension) = match (&join.extension, &host.extension) {
            (None, _) => (None, None),
            (Some(asked), Some(extension)) => match extension.admit(asked, role) {
                Ok((lease, told)) => (Some(lease), Some(told)),
                Err(why) => return Err((why, stream)),
            },
            (Some(_), None) => return Err(("it asks for what this server does not serve".into(), stream)),
        };
        // For answers that are sent, answers that wait to be sent, and requests.
        let bytes = (3 * MESSAGES * host.message_bytes) as u64;
        let Some(share) = host.shared.client_memory.take(bytes) else {
            let why = "the connections of the server's clients hold all the memory that they may";
            return Err((why.into(), stream));
        };
        let mut welcome = Welcome {
            proof: Default::default(),
            endpoint: pair.endpoint(),
            region: Descriptor {
                address: host.region.address(),
                key: host.region.remote_key(),
                bytes: host.shared.index.region().bytes(),
            },
            superblock: host.superblock.clone(),
            messages: MESSAGES as u16,
            message_bytes: host.message_bytes as u32,
            network: host.station.network(),
            extension,
        };
        let token = if role == Role::Change { &host.token } else { &host.read_token };
        bootstrap::prove(token, nonce, &join.nonce, &mut welcome);
        let welcome = JoinAnswer::Welcome(Box::new(welcome));
        let free = (0..MESSAGES).collect();
        let welcome = bootstrap::encode(&welcome);
        let (requests, ready) = (VecDeque::new(), VecDeque::new());
        Ok(VerbsSession {
            pair,
            outgoing,
            stream,
            caller: Caller::new(role).with_replies_of(host.message_bytes),
            _admission: admission,
            _share: share,
            welcome,
            free,
            requests,
            answer: Vec::new(),
            ready,
            parked: None,
            is_spent: false,
            extension: lease,
        })
    }

    /// How long the next bytes of its upload have been due, if it uploads (Q8).
    pub fn uploads_for(&self, now: Instant) -> Duration {
        // It is the server that is to go on.
        if self.waits() {
            return Duration::ZERO;
        }
        self.caller.uploads_since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The number of its queue pair.
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Sends the welcome. From then on the worker learns through `registry` when the client hangs up.
    pub fn greet(&mut self, registry: &Registry, token: Token) -> Result<(), String> {
        registry.register(&mut self.stream, token, Interest::READABLE).map_err(|e| e.to_string())?;
        // The socket's buffer is empty, so this is sent whole or not at all.
        let welcome = std::mem::take(&mut self.welcome);
        if self.stream.write(&welcome).map_err(|e| e.to_string())? != welcome.len() {
            return Err("its socket took half a welcome".into());
        }
        Ok(())
    }

    /// Whether it has hung up. Asked when its TCP connection is readable, which normally means that.
    pub fn has_hung_up(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            // After the handshake, only the end of the connection is expected.
            _ => true,
        }
    }

    /// Hangs up, also where a child made by `fork` has the same descriptor.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Fails the queue pair of a client that is dropped, and posts the receives of its messages again.
    pub fn leave(&mut self, receives: &Receives) {
        self.pair.fail();
        (self.extension, self.parked) = (None, None);
        for request in self.requests.drain(..) {
            let _ = receives.post(request.landed);
        }
    }

    /// Notes that the device has reported the last receive of its queue pair.
    pub fn spend(&mut self) {
        self.is_spent = true;
    }

    /// Whether its queue pair has taken its last receive.
    pub fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Takes a message. Returns whether it is the first one that is to be answered: it is the only one, or the one behind
    /// a request that waits. A client that has more unanswered than it may loses it: `Err` has its receive.
    pub fn take(&mut self, landed: LandedMessage) -> Result<bool, LandedMessage> {
        if self.requests.len() + self.ready.len() >= MESSAGES {
            return Err(landed);
        }
        self.requests.push_back(ReceivedMessage { landed, done: 0 });
        Ok(self.requests.len() == 1 + usize::from(self.parked.is_some()))
    }

    /// The request that waits, if one does.
    pub fn parked(&self) -> Option<&Parked> {
        self.parked.as_ref()
    }

    /// Whether replies wait.
    fn waits_for_replies(&self) -> bool {
        self.parked.as_ref().is_some_and(Parked::are_replies)
    }

    /// Whether a change waits: then no request is answered.
    fn waits(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| parked.change_at().is_some())
    }

    /// Looks again at the request that waits, and sends its reply if there is one by now. Then answers what is behind it,
    /// until `ends`. Returns whether there is more.
    pub fn look_again(
        &mut self,
        receives: &Receives,
        shared: &ServerState,
        ends: Instant,
    ) -> Result<bool, String> {
        match self.waits() {
            true => {
                self.send_held(shared);
                if self.waits_for_replies() { Ok(false) } else { self.answer_all(receives, shared, ends) }
            }
            false => self.look_at_feed(receives, shared, ParkLook::Again).map(|()| false),
        }
    }

    fn look_at_feed(
        &mut self,
        receives: &Receives,
        shared: &ServerState,
        look: ParkLook,
    ) -> Result<(), String> {
        let Some(parked) = &mut self.parked else { return Ok(()) };
        let Some((id, reply)) = parked.answer(shared, &self.caller, look) else { return Ok(()) };
        reply.encode(id, &mut self.answer);
        self.parked = None;
        self.end_message(receives)
    }

    /// Takes the completion of a SEND.
    pub fn sent(&mut self, slot: usize) -> Result<(), VerbsError> {
        self.free.push(slot);
        self.flush()
    }

    /// Answers its messages until `ends`. Returns whether there are more.
    pub fn turn(&mut self, receives: &Receives, shared: &ServerState, ends: Instant) -> Result<bool, String> {
        if self.waits() {
            // Q13
            return Ok(false);
        }
        if self.parked.is_some() {
            // Q11
            if self.requests.len() == 1 || broken(Rule::ParkNext) {
                return Ok(false);
            }
            self.look_at_feed(receives, shared, ParkLook::Last)?;
        }
        self.answer_all(receives, shared, ends)
    }

    /// Puts the replies that wait no longer into the answer.
    fn send_held(&mut self, shared: &ServerState) {
        let Some(mut held) = Parked::take_replies(&mut self.parked, RequestAt::MESSAGE) else { return };
        if !held.send(shared, |id, reply| reply.encode(id, &mut self.answer)) {
            self.parked = Some(Parked::replies(held, shared));
        }
    }

    /// Answers what is there. Replies of one message wait together.
    fn answer_all(
        &mut self,
        receives: &Receives,
        shared: &ServerState,
        ends: Instant,
    ) -> Result<bool, String> {
        let mut replies = None;
        let answered = self.answer_until(receives, shared, (ends, &mut replies));
        if let Some(replies) = replies {
            self.parked = Some(Parked::replies(replies, shared));
            return answered.map(|_| false);
        }
        answered
    }

    fn answer_until(
        &mut self,
        receives: &Receives,
        shared: &ServerState,
        (ends, replies): (Instant, &mut Option<HeldReplies>),
    ) -> Result<bool, String> {
        loop {
            let is_alone = self.requests.len() == 1;
            let Some(ReceivedMessage { landed, done }) = self.requests.front_mut() else { break };
            let message = receives.message(landed);
            while *done < message.len() {
                // (A change that has waited is tried even if its worker has lost the CPU.)
                if self.parked.is_none() && Instant::now() >= ends {
                    return Ok(true);
                }
                let frame = wire::decode(&message[*done..]).map_err(|e| e.to_string())?;
                let frame = frame.ok_or("it sent half a frame")?;
                let asked = wire::Request::decode(&frame).map_err(|e| e.to_string())?;
                let at = RequestAt::Message { is_alone: is_alone && frame.length == message.len() };
                let held = Parked::take_from(&mut self.parked, at);
                let asked = (frame.id, frame.patience(), asked);
                let at = (at, ParkLook::Again);
                match shared.answer_or_park(&mut self.caller, asked, held, at, replies) {
                    ParkAnswer::Now(reply) | ParkAnswer::Refused(reply) => {
                        reply.encode(frame.id, &mut self.answer);
                    }
                    ParkAnswer::Held => {}
                    ParkAnswer::Taken(parked) => {
                        *done += frame.length;
                        self.parked = Some(parked);
                        return Ok(false);
                    }
                    ParkAnswer::Stays(parked) => {
                        self.parked = Some(parked);
                        return Ok(false);
                    }
                    ParkAnswer::Behind => return Ok(false),
                    ParkAnswer::NotHere => return Err("it said hello twice, or asked for slots".into()),
                }
                *done += frame.length;
            }
            if replies.is_some() {
                return Ok(false);
            }
            self.end_message(receives)?;
        }
        Ok(false)
    }

    /// All of the first message is answered: its answer is sent.
    fn end_message(&mut self, receives: &Receives) -> Result<(), String> {
        if self.answer.len() > self.outgoing.cell_bytes() {
            return Err("it asked for more than an answer holds".into());
        }
        self.ready.push_back(std::mem::take(&mut self.answer));
        // Posted before the client learns that it may send another message.
        if let Some(request) = self.requests.pop_front() {
            receives.post(request.landed).map_err(|e| e.to_string())?;
        }
        self.flush().map_err(|e| e.to_string())
    }

    /// Sends answers while there are free slots.
    fn flush(&mut self) -> Result<(), VerbsError> {
        while let (Some(&slot), Some(answer)) = (self.free.last(), self.ready.front()) {
            // SAFETY: the slot is free: its last SEND has completed.
            let bytes = unsafe { self.outgoing.fill(slot, &[answer]) };
            let work = Work {
                id: SEND | slot as u64,
                element: self.outgoing.element(slot, bytes),
                kind: WorkKind::send(),
                signalled: true,
            };
            // SAFETY: as above; it is written again only once it is free.
            unsafe { self.pair.post([work]) }?;
            self.free.pop();
            self.ready.pop_front();
        }
        Ok(())
    }
}
