//! The client's end of a connection: one reliable queue pair that carries READs, and messages for
//! everything that is not a GET.
//!
//! # Credits
//!
//! There are never more READs in flight than landing slots, nor more messages than the server has
//! posted receives for this client. The send queue has room for both, and the completion queue for
//! all their completions. So nothing overflows, and the full receive queue of a suspended server
//! never delays a READ.
//!
//! # Ownership
//!
//! The landing slots and the message slots belong to the connection until their work requests have
//! completed. A failed connection is dropped: first its queue pair, then its buffers.

#![allow(unsafe_code)]

use super::chunk_keys::ChunkKeys;
use super::extension::ExtensionRequests;
use super::landing::{LaneLanding, landing_for};
use super::long::LongLanding;
use super::waiting::{Completes, WaitPlace, check_stream, is_closed};
use crate::address::VerbsAddress;
use crate::client::lanes::{Posting, ReadWanted};
use crate::client::options::{ClientOptions, RequestPath};
use crate::fabric::ReadId;
use crate::fabric::landed::LandedWindow;
use crate::layout::chunk::{chunk_of_value, chunk_of_window};
use crate::layout::geometry::{Geometry, Window};
use crate::layout::superblock::{SUPERBLOCK_WORDS, Superblock};
use crate::sink::Sink;
use crate::verbs::bootstrap::MESSAGES_MAX;
use crate::verbs::bootstrap::{self, Challenge, Descriptor, Handshake, Join, JoinAnswer, Welcome};
use crate::verbs::device::{
    Access, Buffer, CompletionQueue, Depth, Endpoint, ProtectionDomain, QueuePair, Work, WorkKind, succeeded,
};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use crate::verbs::station::Station;
use crate::verbs::{QueueCounts, Wait};
use crate::wire;
use ibverbs_sys::{ibv_qp_type, ibv_sge};
use std::collections::VecDeque;
use std::error::Error;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most completions taken by one poll.
const POLLED: usize = 32;
/// Most READs in flight: more than any device works on at once, and still a small queue.
const CREDITS_MAX: usize = 1024;
/// Within one doorbell, the completion of every 16th READ is reported. The landing slots come free
/// together.
const SIGNAL_EVERY: usize = 16;
/// Longest message that the client accepts from a server's welcome, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The top bits of a work request's number hold its kind.
mod id {
    pub const READ: u64 = 0;
    pub const SEND: u64 = 1 << 62;
    pub const RECEIVE: u64 = 2 << 62;
    pub const KIND: u64 = 3 << 62;
}

/// A connected queue pair with its buffers.
#[derive(Debug)]
pub(crate) struct Connection {
    // The queue pair is dropped before the buffers that its work requests name.
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    landing: Buffer,
    /// The memory for long values.
    long: LongLanding,
    /// Most bytes of one READ.
    message_max: usize,
    outgoing: Buffer,
    incoming: Buffer,
    domain: Arc<ProtectionDomain>,
    region: Descriptor,
    keys: Arc<ChunkKeys>,
    geometry: Arc<Geometry>,
    /// Its end shows that the server is gone.
    stream: Arc<TcpStream>,
    wait: Wait,
    /// READs posted and not yet handed out, oldest first. Their numbers start at
    /// `reads_handed_out`.
    reads: VecDeque<(ReadId, ReadWanted)>,
    reads_handed_out: u64,
    reads_completed: u64,
    messages: Messages,
    /// The level of requests that the server knows.
    level: u16,
    /// The completions of the last poll. Allocated once, because a GET polls dozens of times.
    polled: Box<[Completion; POLLED]>,
    counts: QueueCounts,
    /// The extension by which requests are made instead of by messages, if the client wants that.
    extension: Option<Box<dyn ExtensionRequests>>,
}

/// Counts of messages. They are sent, and answered, in order.
#[derive(Debug, Default)]
struct Messages {
    sent: u64,
    /// Messages whose SEND has completed.
    delivered: u64,
    answered: u64,
    /// Answers to messages before this one are discarded.
    wanted_from: u64,
    /// Slots and lengths of the answers received.
    arrived: VecDeque<(usize, usize)>,
}

impl Connection {
    /// Connects to the server: TCP, challenge, queue pairs, superblock.
    pub fn open(
        address: &VerbsAddress,
        station: &mut Option<Arc<Station>>,
        options: &ClientOptions,
        credits: usize,
        within: Duration,
    ) -> Result<Connection, SetupError> {
        let (token, wait) = (&options.token, &options.verbs.wait);
        let mut talk = Handshake::open(address.host(), address.port(), within)?;
        let challenge: Challenge = talk.receive()?;
        if challenge.oneread != bootstrap::NAME {
            return Err(talk.failed(bootstrap::NO_MESSAGE));
        }
        if challenge.version != bootstrap::VERSION {
            let (theirs, ours) = (challenge.version, bootstrap::VERSION);
            return Err(SetupError::Version { peer: talk.peer, theirs, ours });
        }
        let station = match station {
            Some(station) => station.clone(),
            None => station.insert(Station::open(address.device(), Some(talk.peer.ip()))?).clone(),
        };
        let limits = station.domain().context().limits();
        // When the queue pair fails, every work request completes: READs, and messages of both directions.
        let others = MESSAGES_MAX as i32;
        let queue_max = limits.max_qp_wr.min(limits.max_cqe.saturating_sub(others));
        let queue_max = (queue_max.max(0) as usize).saturating_sub(MESSAGES_MAX).max(1);
        let credits = credits.clamp(1, queue_max.min(CREDITS_MAX));
        let depth = Depth { sends: (credits + MESSAGES_MAX) as u32, receives: MESSAGES_MAX as u32 };
        let room = (credits + 2 * MESSAGES_MAX) as u32;
        let queue = CompletionQueue::new(station.domain().context().clone(), room)?;
        // Declared before the queue pair, and so dropped after it, also when this function returns
        // an error.
        let (landing, outgoing, incoming);
        let mut pair = QueuePair::new(
            station.domain().clone(),
            queue.clone(),
            None,
            ibv_qp_type::IBV_QPT_RC,
            depth,
            station.route().clone(),
        )?;
        let draft = match options.requests {
            RequestPath::Extension(extension) => {
                Some((extension.draft)(&station, challenge.extension.as_ref())?)
            }
            _ => None,
        };
        let nonce = bootstrap::nonce()?;
        let mut join = Join {
            version: bootstrap::VERSION,
            nonce,
            proof: Default::default(),
            endpoint: pair.endpoint(),
            network: station.network(),
            extension: draft.as_ref().map(|draft| draft.join()),
        };
        bootstrap::prove(token, &challenge.nonce, &nonce, &mut join);
        talk.send(&join)?;
        let mut welcome = match talk.receive()? {
            JoinAnswer::Welcome(welcome) => *welcome,
            JoinAnswer::Refused { token: true, .. } => return Err(SetupError::Token { peer: talk.peer }),
            JoinAnswer::Refused { why, .. } => return Err(SetupError::Refused { peer: talk.peer, why }),
        };
        if !bootstrap::is_proven(token, &challenge.nonce, &nonce, &mut welcome) {
            return Err(SetupError::Token { peer: talk.peer });
        }
        let peer = talk.peer;
        let table = |why: Box<dyn Error + Send + Sync>| SetupError::Table { peer, source: why.into() };
        let geometry = table_of(&welcome).map_err(table)?;
        let mismatch = |source| SetupError::Mismatch { peer, source };
        station.check(&welcome.endpoint.at, welcome.network).map_err(mismatch)?;
        pair.connect(&welcome.endpoint, Access::LOCAL)?;

        let domain = station.domain();
        landing = landing_for(domain, &geometry, credits)?;
        let (messages, message_bytes) = (usize::from(welcome.messages), welcome.message_bytes as usize);
        outgoing = Buffer::new(domain.clone(), messages, message_bytes, Access::LOCAL)?;
        incoming = Buffer::new(domain.clone(), messages, message_bytes, Access::LOCAL)?;
        for slot in 0..messages {
            let element = incoming.element(slot, incoming.cell_bytes());
            // SAFETY: the slot is new, and posted nowhere else; the buffer outlives the queue pair.
            unsafe { pair.post_receive(id::RECEIVE | slot as u64, element) }
                .map_err(|e| SetupError::Call { call: "ibv_post_recv", errno: e.errno() })?;
        }
        crate::verbs::keep_alive(&talk.stream);
        talk.stream
            .set_nonblocking(true)
            .map_err(|e| SetupError::Call { call: "fcntl", errno: e.raw_os_error().unwrap_or(0) })?;
        let (geometry, stream) = (Arc::new(geometry), Arc::new(talk.stream));
        let extension = draft
            .map(|draft| draft.complete(welcome.extension.as_ref(), &station, &geometry, &stream, *wait))
            .transpose()?;
        Ok(Connection {
            pair,
            queue,
            landing,
            long: LongLanding::default(),
            message_max: station.route().port.message_max as usize,
            outgoing,
            incoming,
            domain: domain.clone(),
            region: welcome.region,
            keys: Arc::new(ChunkKeys::new(&geometry)),
            geometry,
            stream,
            wait: *wait,
            reads: VecDeque::with_capacity(credits),
            reads_handed_out: 0,
            reads_completed: 0,
            messages: Messages::default(),
            level: challenge.level,
            polled: Box::new([Completion::default(); POLLED]),
            counts: QueueCounts::default(),
            extension,
        })
    }

    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    pub fn keys(&self) -> &Arc<ChunkKeys> {
        &self.keys
    }

    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Most bytes of one READ.
    pub fn message_max(&self) -> usize {
        self.message_max
    }

    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Makes the next completion signal the queue's descriptor. Earlier signals are cleared.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.queue.take_events();
        self.queue.arm()
    }

    /// Takes the counts since the last call.
    pub fn take_counts(&mut self) -> QueueCounts {
        let mut counts = std::mem::take(&mut self.counts);
        if let Some(extension) = &mut self.extension {
            counts += extension.take_counts();
        }
        counts
    }

    // ---- READs ----------------------------------------------------------------------------------

    /// Most READs that may be in flight.
    pub fn credits(&self) -> usize {
        self.landing.memory().cells()
    }

    /// Whether READs are in flight.
    pub fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Number of READs that may be posted now.
    pub fn room(&self) -> usize {
        self.credits() - self.reads.len()
    }

    /// Posts READs with one doorbell: at least one, at most [`room`](Self::room).
    pub fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), VerbsError> {
        assert!(reads.len() <= self.room(), "more READs than credits");
        let credits = self.credits() as u64;
        let first = self.reads_handed_out + self.reads.len() as u64;
        let target = ReadTarget { geometry: &self.geometry, region: self.region, keys: &self.keys };
        let (landing, last) = (&self.landing, reads.len() - 1);
        let works = reads.iter().enumerate().map(|(i, &(_, window))| {
            let number = first + i as u64;
            let signalled = i == last || i % SIGNAL_EVERY == SIGNAL_EVERY - 1;
            let element = target.element(window, landing, (number % credits) as usize);
            target.read(number, ReadWanted::Window(window), element, signalled)
        });
        // SAFETY: slot `number % credits` was last used by READ `number - credits`, which has been
        // handed out (asserted above). Its contents are borrowed only inside `poll`. The buffer
        // outlives the queue pair.
        unsafe { self.pair.post(works) }?;
        self.reads.extend(reads.iter().map(|&(token, window)| (token, ReadWanted::Window(window))));
        self.counts.doorbells += 1;
        self.counts.reads += reads.len() as u64;
        Ok(())
    }

    /// Makes room for a value of this length to land. No READ may be in flight.
    pub fn make_room(&mut self, bytes: usize) -> Result<(), SetupError> {
        assert!(self.reads.is_empty(), "READs may land in memory that is exchanged");
        self.long.make_room(bytes, &self.domain)
    }

    /// Puts into `out` the first bytes of the memory for long values. No READ may be in flight.
    pub fn copy_long(&self, bytes: usize, out: &mut impl Sink) {
        assert!(self.reads.is_empty(), "READs may land in memory that is copied");
        // SAFETY: all READs into this memory have completed.
        unsafe { self.long.copy(bytes, out) };
    }

    /// Posts READs into the memory for long values, with one doorbell: at least one, at most
    /// [`room`](Self::room). There must be [room](Self::make_room) for the bytes.
    pub fn post_pieces(&mut self, pieces: &[ReadWanted]) -> Result<(), VerbsError> {
        let first = self.reads_handed_out + self.reads.len() as u64;
        let (before, last) = (self.reads.len(), pieces.len() - 1);
        let Connection { pair, reads: posted, geometry, region, keys, long, .. } = self;
        let target = ReadTarget { geometry, region: *region, keys };
        let memory = long.memory().expect("a value has room before it is fetched");
        let works = (first..).zip(pieces.iter().copied()).enumerate().map(|(i, (number, wanted))| {
            posted.push_back((0, wanted));
            let signalled = i == last || i % SIGNAL_EVERY == SIGNAL_EVERY - 1;
            target.read(number, wanted, memory.landing_of(wanted), signalled)
        });
        // SAFETY: the memory is exchanged, and copied from, only while no READ is in flight (`make_room`,
        // `copy_long`). It outlives the queue pair.
        unsafe { pair.post(works) }?;
        self.counts.doorbells += 1;
        self.counts.reads += (self.reads.len() - before) as u64;
        Ok(())
    }

    /// Posts READs that land in the memory of lanes, with one doorbell: at most
    /// [`room`](Self::room). [`take_reads`](Self::take_reads) hands out their seats.
    ///
    /// # Safety
    /// As for [`ReadQueue::post`](crate::client::lanes::ReadQueue::post).
    pub unsafe fn post_for<'a>(
        &mut self,
        reads: impl Iterator<Item = Posting<'a, LaneLanding>>,
    ) -> Result<(), VerbsError> {
        let first = self.reads_handed_out + self.reads.len() as u64;
        let Connection { pair, reads: posted, geometry, region, keys, .. } = self;
        let target = ReadTarget { geometry, region: *region, keys };
        let before = posted.len();
        let works =
            (first..).zip(reads).map(|(number, Posting { seat, wanted, landing, slot, signalled })| {
                posted.push_back((seat, wanted));
                let element = match wanted {
                    ReadWanted::Window(window) => target.element(window, landing.windows(), slot),
                    ReadWanted::Bytes { .. } => landing.long().landing_of(wanted),
                };
                target.read(number, wanted, element, signalled)
            });
        // SAFETY: the caller keeps the contract above.
        unsafe { pair.post(works) }?;
        self.counts.doorbells += 1;
        self.counts.reads += (self.reads.len() - before) as u64;
        Ok(())
    }

    /// Takes completions without waiting, and hands out the seats of READs posted with
    /// [`post_for`](Self::post_for).
    pub fn take_reads(&mut self, mut done: impl FnMut(ReadId)) -> Result<(), VerbsError> {
        let taken = self.take_completions();
        // READs before a failed one have succeeded.
        while self.reads_handed_out < self.reads_completed {
            let Some((seat, _)) = self.reads.pop_front() else { break };
            self.reads_handed_out += 1;
            done(seat);
        }
        taken.map(|_| ())
    }

    /// Waits for at least one READ, if any is in flight, and hands out those that have completed.
    pub fn poll(
        &mut self,
        within: Duration,
        mut sink: impl FnMut(ReadId, &mut LandedWindow<'_>),
    ) -> Result<(), VerbsError> {
        if self.reads.is_empty() {
            return Ok(());
        }
        self.wait_until(within, |this| this.reads_completed > this.reads_handed_out)?;
        let credits = self.credits() as u64;
        while self.reads_handed_out < self.reads_completed {
            let Some((token, wanted)) = self.reads.pop_front() else { break };
            let slot = (self.reads_handed_out % credits) as usize;
            self.reads_handed_out += 1;
            let ReadWanted::Window(window) = wanted else { continue };
            let words = window.slots as usize * self.geometry.shape().words();
            // SAFETY: the READ into this slot has completed, and the slot is not posted again before this
            // borrow ends.
            let words = unsafe { self.landing.words(slot, words) };
            sink(token, &mut LandedWindow::new(&self.geometry, window, words));
        }
        Ok(())
    }

    /// Waits for all READs in flight and discards their results.
    pub fn drain(&mut self, within: Duration) -> Result<(), VerbsError> {
        while !self.reads.is_empty() {
            self.poll(within, |_, _| {})?;
        }
        Ok(())
    }

    /// The extension by which requests are made instead of by messages, if the client wants that.
    pub fn extension(&mut self) -> Option<&mut dyn ExtensionRequests> {
        match &mut self.extension {
            Some(extension) => Some(&mut **extension),
            None => None,
        }
    }

    // ---- messages -------------------------------------------------------------------------------

    /// The level of requests that the server knows ([`wire::LEVEL`]).
    pub fn level(&self) -> u16 {
        self.level
    }

    /// Longest message, in bytes.
    pub fn message_bytes(&self) -> usize {
        self.outgoing.cell_bytes()
    }

    /// Most unanswered messages: the server has posted a receive for each.
    fn messages_max(&self) -> u64 {
        self.outgoing.memory().cells() as u64
    }

    /// Whether an answer must be received before another message can be sent.
    pub fn is_full(&self) -> bool {
        self.messages.sent - self.messages.answered >= self.messages_max()
    }

    /// Sends a message. If the connection [is full](Self::is_full), the caller must first receive
    /// the answers that are still wanted.
    pub fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), VerbsError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        self.discard_unwanted()?;
        while self.is_full() {
            assert!(
                self.messages.answered < self.messages.wanted_from,
                "a wanted answer has not been received"
            );
            self.wait_until(left(), |this| !this.messages.arrived.is_empty())?;
            self.discard_unwanted()?;
        }
        let slots = self.messages_max();
        // An answer may arrive before the completion of its message's SEND.
        self.wait_until(left(), |this| this.messages.sent - this.messages.delivered < slots)?;
        let slot = (self.messages.sent % slots) as usize;
        // SAFETY: the message that used this slot before has been delivered and answered.
        let bytes = unsafe { self.outgoing.fill(slot, &[message]) };
        let work = Work {
            id: id::SEND | self.messages.sent,
            element: self.outgoing.element(slot, bytes),
            kind: WorkKind::send(),
            signalled: true,
        };
        // SAFETY: as above. The slot is not written again before the message has been delivered.
        unsafe { self.pair.post([work]) }?;
        self.messages.sent += 1;
        self.counts.doorbells += 1;
        self.counts.messages += 1;
        Ok(())
    }

    /// Waits for the answer to the oldest message that is still wanted, and passes it to `take`.
    pub fn receive<R>(&mut self, deadline: Instant, take: impl FnOnce(&[u8]) -> R) -> Result<R, VerbsError> {
        loop {
            self.discard_unwanted()?;
            if let Some((slot, length)) = self.messages.arrived.pop_front() {
                // SAFETY: the receive has completed, and is posted again only below.
                let result = take(unsafe { self.incoming.bytes(slot, length) });
                self.answered(slot)?;
                return Ok(result);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.wait_until(left, |this| !this.messages.arrived.is_empty())?;
        }
    }

    /// As [`receive`](Self::receive), of an answer that may be long in coming: the thread sleeps, however it waits for others.
    pub fn receive_late<R>(
        &mut self,
        until: Instant,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, VerbsError> {
        let wait = std::mem::replace(&mut self.wait, Wait::Block);
        let received = self.receive(until, take);
        self.wait = wait;
        match received {
            Ok(received) => Ok(Some(received)),
            Err(VerbsError::Late { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Discards all answers that have not been received yet.
    pub fn give_up_messages(&mut self) {
        self.messages.wanted_from = self.messages.sent;
    }

    fn discard_unwanted(&mut self) -> Result<(), VerbsError> {
        while self.messages.answered < self.messages.wanted_from {
            let Some((slot, _)) = self.messages.arrived.pop_front() else { break };
            self.answered(slot)?;
        }
        Ok(())
    }

    fn answered(&mut self, slot: usize) -> Result<(), VerbsError> {
        self.messages.answered += 1;
        let element = self.incoming.element(slot, self.incoming.cell_bytes());
        // SAFETY: the slot's receive has completed, and nothing borrows from the slot any more.
        unsafe { self.pair.post_receive(id::RECEIVE | slot as u64, element) }
    }

    // ---- completions ----------------------------------------------------------------------------

    /// Looks whether the server still holds the connection open.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub fn check_stream(&self) -> Result<(), VerbsError> {
        check_stream(&self.stream)
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        is_closed(&self.stream)
    }

    /// The socket, for callers of [`is_closed`] that do not own the connection.
    pub fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }
}

impl Completes for Connection {
    #[inline]
    fn take_completions(&mut self) -> Result<bool, VerbsError> {
        let n = self.queue.poll(&mut self.polled[..])?;
        self.counts.completions += n as u64;
        for i in 0..n {
            let completion = &self.polled[i];
            let number = completion.wr_id() & !id::KIND;
            match completion.wr_id() & id::KIND {
                id::READ => {
                    succeeded(completion, "READ")?;
                    self.reads_completed = number + 1;
                }
                id::SEND => {
                    succeeded(completion, "SEND")?;
                    self.messages.delivered = number + 1;
                }
                _ => {
                    succeeded(completion, "RECV")?;
                    let Messages { sent, answered, ref arrived, .. } = self.messages;
                    if answered + arrived.len() as u64 >= sent {
                        return Err(VerbsError::Garbage {
                            what: "an answer to nothing that was asked".into(),
                        });
                    }
                    let length = completion.len().min(self.incoming.cell_bytes());
                    self.messages.arrived.push_back((number as usize, length));
                }
            }
        }
        Ok(n > 0)
    }

    fn waiting(&self) -> WaitPlace<'_> {
        WaitPlace { queue: &self.queue, stream: &self.stream, wait: self.wait }
    }
}

/// The memory that READs are from.
#[derive(Clone, Copy)]
struct ReadTarget<'a> {
    geometry: &'a Geometry,
    region: Descriptor,
    keys: &'a ChunkKeys,
}

impl ReadTarget<'_> {
    /// Where a window lands: a slot of a buffer.
    fn element(&self, window: Window, landing: &Buffer, slot: usize) -> ibv_sge {
        landing.element(slot, self.geometry.window_bytes(window) as usize)
    }

    /// Builds READ number `number`.
    fn read(&self, number: u64, wanted: ReadWanted, element: ibv_sge, signalled: bool) -> Work {
        let offset = match wanted {
            ReadWanted::Window(window) => self.geometry.slot_offset(window.first),
            ReadWanted::Bytes { offset, .. } => offset,
        };
        let chunk = match wanted {
            ReadWanted::Window(window) => chunk_of_window(self.geometry, window),
            ReadWanted::Bytes { offset, .. } => chunk_of_value(self.geometry, offset),
        };
        let address = self.region.address.wrapping_add(offset);
        let key = chunk.map_or(self.region.key, |chunk| self.keys.known(chunk));
        Work { id: id::READ | number, element, kind: WorkKind::read(address, key), signalled }
    }
}

/// The table in a welcome, if the client can use it and the queue pair described with it.
fn table_of(welcome: &Welcome) -> Result<Geometry, Box<dyn Error + Send + Sync>> {
    let geometry = geometry_of(welcome)?;
    let needed = wire::request_bytes_max(&geometry).max(wire::reply_bytes_max(&geometry));
    if !(1..=MESSAGES_MAX).contains(&usize::from(welcome.messages))
        || !(needed..=MESSAGE_BYTES_MAX).contains(&(welcome.message_bytes as usize))
    {
        return Err("its messages have an unlikely size or number".into());
    }
    let Endpoint { reads, mtu, .. } = welcome.endpoint;
    if reads == 0 {
        return Err("its queue pair allows no READs".into());
    }
    if !mtu.is_power_of_two() || !(256..=4096).contains(&mtu) {
        return Err("its path MTU is none".into());
    }
    Ok(geometry)
}

/// The geometry in a welcome, if the table lies inside the region that comes with it.
fn geometry_of(welcome: &Welcome) -> Result<Geometry, Box<dyn Error + Send + Sync>> {
    let words: [u64; SUPERBLOCK_WORDS] =
        welcome.superblock.as_slice().try_into().map_err(|_| "the superblock has another length")?;
    Ok(Superblock::from_words(words).geometry(welcome.region.bytes)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::verbs::bootstrap::Network;
    use std::io::Write;
    use std::net::TcpListener;

    /// The error of a client whose server begins with this challenge. The client has opened no
    /// device yet.
    fn turned_away(challenge: &Challenge) -> SetupError {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("verbs://{}", server.local_addr().unwrap());
        let Ok(crate::Address::Verbs(address)) = place.parse() else { panic!("{place}") };
        let bytes = bootstrap::encode(challenge);
        let says = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(&bytes).unwrap();
            stream
        });
        let within = Duration::from_secs(20);
        let error = Connection::open(&address, &mut None, &ClientOptions::default(), 1, within).unwrap_err();
        drop(says.join().unwrap());
        error
    }

    #[test]
    fn foreign_challenges_are_refused() {
        let challenge = |name: &str, version| Challenge {
            oneread: name.into(),
            version,
            nonce: [1; 32],
            level: 0,
            extension: None,
        };
        for name in ["", "verb", "verbs2", "Verbs"] {
            let error = turned_away(&challenge(name, bootstrap::VERSION));
            let is_other =
                matches!(&error, SetupError::Handshake { why, .. } if why.contains("another service"));
            assert!(is_other, "{name}: {error}");
        }
        for version in [0, 2, u32::MAX] {
            let error = turned_away(&challenge("verbs", version));
            let is_other = matches!(error, SetupError::Version { theirs, ours: 1, .. } if theirs == version);
            assert!(is_other, "{version}: {error}");
        }
    }

    fn welcome() -> Welcome {
        let config = Config { size: TableSize::Slots(64), key_max: 16, value_max: 46, ..Config::default() };
        let geometry = config.geometry().unwrap();
        let at = ibverbs::QueuePairEndpoint { num: 5, lid: 0, gid: Some(ibverbs::Gid::default()) };
        Welcome {
            proof: Default::default(),
            endpoint: Endpoint { at, first_packet: 7, mtu: 1024, reads: 16 },
            region: Descriptor { address: 4096, key: 1, bytes: geometry.region_bytes() },
            superblock: Superblock::new(&geometry, 0).to_words().to_vec(),
            messages: 16,
            message_bytes: 4096,
            network: Network { infiniband: false, kind: Some(2) },
            extension: None,
        }
    }

    type Damage<'a> = &'a dyn Fn(&mut Welcome);

    /// Every field of a welcome is checked, at its bounds.
    #[test]
    fn every_field_of_a_welcome_is_checked() {
        let of = |change: &dyn Fn(&mut Welcome)| {
            let mut welcome = welcome();
            change(&mut welcome);
            table_of(&welcome)
        };
        let geometry = of(&|_| {}).unwrap();
        let longest = wire::request_bytes_max(&geometry).max(wire::reply_bytes_max(&geometry)) as u32;
        assert_eq!((geometry.key_max(), geometry.value_max()), (16, 46));
        let good: [Damage<'_>; 8] = [
            &|welcome| welcome.messages = 1,
            &|welcome| welcome.message_bytes = longest,
            &|welcome| welcome.message_bytes = 1 << 20,
            &|welcome| welcome.endpoint.reads = 1,
            &|welcome| welcome.endpoint.mtu = 256,
            &|welcome| welcome.endpoint.mtu = 4096,
            &|welcome| welcome.region.bytes += 1,
            &|welcome| welcome.region.address = u64::MAX,
        ];
        for (n, change) in good.iter().enumerate() {
            assert!(of(change).is_ok(), "{n}");
        }
        let (messages, words) = ("unlikely size or number", welcome().superblock.len());
        let bad: [(Damage<'_>, &str); 13] = [
            (&|welcome| welcome.messages = 0, messages),
            (&|welcome| welcome.messages = 17, messages),
            (&|welcome| welcome.message_bytes = 0, messages),
            (&|welcome| welcome.message_bytes = longest - 1, messages),
            (&|welcome| welcome.message_bytes = (1 << 20) + 1, messages),
            (&|welcome| welcome.endpoint.reads = 0, "no READs"),
            (&|welcome| welcome.endpoint.mtu = 0, "MTU"),
            (&|welcome| welcome.endpoint.mtu = 128, "MTU"),
            (&|welcome| welcome.endpoint.mtu = 1500, "MTU"),
            (&|welcome| welcome.endpoint.mtu = 8192, "MTU"),
            (&|welcome| welcome.region.bytes = 8192, ""),
            (&|welcome| welcome.superblock.push(0), "length"),
            (&|welcome| welcome.superblock.truncate(words - 1), "length"),
        ];
        for (n, (change, expected)) in bad.iter().enumerate() {
            let why = of(change).unwrap_err().to_string();
            assert!(why.contains(expected), "{n}: {why}");
        }
        // A flipped bit in any word of the superblock is noticed.
        let unseen: Vec<_> =
            (0..words).filter(|&word| of(&|welcome| welcome.superblock[word] ^= 1).is_ok()).collect();
        assert!(unseen.is_empty(), "{unseen:?}");
    }
}
