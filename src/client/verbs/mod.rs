//! The client's path over verbs: GETs and changes over one connection per handle, or over
//! connections that all handles share. Failed connections are replaced.

mod chunk_keys;
pub(crate) mod connection;
pub(crate) mod extension;
mod fabric;
mod landing;
mod long;
mod pairs;
pub(crate) mod waiting;

use super::error::{AskError, ConnectError, GetError, LinkError, MutateError};
use super::handle::{Deadline, Handle, Posted, connected, hung_up};
use super::options::ClientOptions;
use super::owning::{OwnOwner, OwnerRefusal};
use super::send::send_fitting;
use super::stats::{ClientStats, RequestCounts};
use super::tries::{Failed, Repeatable, Tries};
use crate::address::{Address, VerbsAddress};
use crate::base::clock::Clock;
use crate::base::process::Process;
use crate::hints::{HINT_BYTES, Hints, SharedHints};
use crate::layout::geometry::Geometry;
use crate::layout::life::Life;
use crate::outcome::PutError;
use crate::reader::{Answers, KnownEntries, Reader, StoredAnswer};
use crate::sink::AnySink;

use crate::base::sync::lock_std;
use crate::base::times::TimeCounts;
use crate::verbs::QueueCounts;
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::station::Station;
use crate::wire::{self, Reply, Request};
use connection::Connection;
use fabric::{ReadPath, Verbs, VerbsGetError};
use pairs::{LaneReader, PairLease, SharedPairs};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One thread's path to the server.
#[derive(Debug)]
pub(crate) struct VerbsHandle {
    shared: Arc<VerbsShared>,
    /// The handle's own connection. Where connections are shared, it has one only during its turn
    /// to request changes.
    connection: Option<Connection>,
    /// Where connections are shared: one for a request that was [posted](Handle::post), which holds up no other handle.
    late: Option<Connection>,
    /// The number of that request, until its reply is there or given up.
    posted: Option<u64>,
    // The seat is dropped before the place that it belongs to.
    seat: Option<LaneReader>,
    place: Option<PairLease>,
    /// The geometry of the last connection, of this handle or of the one that it was cloned from.
    geometry: Arc<Geometry>,
    /// Hints of that table, if the client wants any.
    hints: Option<Arc<Hints>>,
    /// Directory entries of that table, if it grows.
    entries: KnownEntries,
    counts: QueueCounts,
    /// How long GETs of one key took, if the client takes the time.
    times: Option<Box<TimeCounts>>,
    /// The number of connections, or seats on one, that it had.
    connected: u64,
    next_id: u64,
}

/// The state that the handles of one client share.
#[derive(Debug)]
struct VerbsShared {
    process: Process,
    address: VerbsAddress,
    options: ClientOptions,
    hints: SharedHints,
    clock: Clock,
    /// The open device. Opened again after a failure to connect.
    station: Mutex<Option<Arc<Station>>>,
    /// The shared queue pairs. `None` where each handle has its own.
    pairs: Option<Arc<SharedPairs>>,
    /// The owner as which the client puts.
    owner: Option<OwnOwner>,
}

impl VerbsShared {
    /// Connects, with room for `credits` READs in flight.
    fn open(&self, credits: usize, within: Duration) -> Result<Connection, SetupError> {
        // The lock is not held while connecting, so handles connect in parallel.
        let mut station = lock_std(&self.station).clone();
        let opened = Connection::open(&self.address, &mut station, &self.options, credits, within);
        // After a failure the device is opened again: it may have been reset, or its address may
        // have changed.
        *lock_std(&self.station) = station.filter(|_| opened.is_ok());
        opened
    }

    /// Makes a connection for changes a session of the owner, if the client has one.
    fn begin_owner(&self, connection: &mut Connection, deadline: Instant) -> Result<(), SetupError> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let (request, mut replies) = (owner.request(), Vec::new());
        if connection.level() < request.level() {
            return Err(SetupError::Owner { source: Arc::new(PutError::OldServer) });
        }
        let mut deadline = Deadline::until(deadline, Duration::ZERO);
        let failed = |source| SetupError::Owner { source };
        talk(connection, &[request], 0, &mut deadline, &mut replies).map_err(|e| failed(Arc::new(e)))?;
        match owner.hear(replies.pop()) {
            Some(Ok(())) => Ok(()),
            Some(Err(OwnerRefusal::Rejected(error))) => Err(failed(Arc::new(error))),
            Some(Err(OwnerRefusal::ReadOnly)) => {
                let address = Address::Verbs(self.address.clone());
                Err(failed(Arc::new(MutateError::ReadOnly { address })))
            }
            None => Err(failed(Arc::new(LinkError::Unexpected))),
        }
    }

    fn join(&self, place: &PairLease, within: Duration) -> Result<LaneReader, SetupError> {
        place.join(self.options.verbs.wait, within, || self.open(self.options.verbs.credits, within))
    }
}

impl VerbsHandle {
    /// The owner as which the client puts.
    pub(in crate::client) fn owner(&self) -> Option<&OwnOwner> {
        self.shared.owner.as_ref()
    }

    pub fn connect(address: &VerbsAddress, options: &ClientOptions) -> Result<VerbsHandle, ConnectError> {
        let shared = Arc::new(VerbsShared {
            process: Process::this(),
            address: address.clone(),
            options: options.clone(),
            hints: SharedHints::new(options.hint_bytes.unwrap_or(HINT_BYTES)),
            clock: Clock::System,
            station: Mutex::new(None),
            pairs: options.verbs.pairs.map(SharedPairs::new),
            owner: OwnOwner::of(options),
        });
        let (mut connection, mut seat, mut place) = (None, None, None);
        let geometry = match &shared.pairs {
            None => {
                let opened = connection.insert(shared.open(options.verbs.credits, options.deadline)?);
                shared.begin_owner(opened, Instant::now() + options.deadline)?;
                opened.geometry().clone()
            }
            Some(pairs) => {
                let place = place.insert(pairs.place());
                seat.insert(shared.join(place, options.deadline)?).geometry().clone()
            }
        };
        let (counts, mut hints, entries) = (QueueCounts::default(), None, KnownEntries::default());
        shared.hints.refresh(&geometry, &mut hints);
        Ok(VerbsHandle {
            shared,
            connection,
            late: None,
            posted: None,
            seat,
            place,
            geometry,
            hints,
            entries,
            counts,
            times: options.timed.then(Box::default),
            connected: 1,
            next_id: 0,
        })
    }

    /// Counts of the handle's queues.
    pub fn queue_counts(&self) -> QueueCounts {
        self.counts
    }

    fn address(&self) -> Address {
        Address::Verbs(self.shared.address.clone())
    }

    // ---- GETs -----------------------------------------------------------------------------------

    /// Runs GETs. If the connection fails, runs them again on a new one, until the deadline.
    pub(super) fn get_into(
        &mut self,
        stats: &mut ClientStats,
        key: &[u8],
        value: &mut AnySink<'_>,
    ) -> Result<bool, GetError> {
        let begun = self.times.is_some().then(Instant::now);
        let outcome = self.read(stats, |reader| reader.get_into(key, value));
        if let (Some(times), Some(begun)) = (&mut self.times, begun) {
            times.add(begun.elapsed());
        }
        outcome
    }

    /// Looks for the keys of `open`, each with its number in the batch.
    fn get_batch(
        &mut self,
        mut open: Vec<(usize, &[u8])>,
        answers: &mut impl Answers,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError> {
        self.read(stats, |reader| {
            let asked: Vec<&[u8]> = open.iter().map(|(_, key)| *key).collect();
            let mut answered = vec![false; asked.len()];
            let mut those = OpenAnswers {
                answers: &mut *answers,
                open: &open,
                answered: &mut answered,
                flow: ControlFlow::Continue(()),
            };
            let result = reader.answer_each(&asked, &mut those);
            let flow = those.flow;
            if flow.is_break() {
                return Ok(flow);
            }
            // After a failure, only the keys without an answer are asked for again.
            if result.is_err() {
                let mut answered = answered.iter();
                open.retain(|_| !answered.next().copied().unwrap_or(false));
            }
            result
        })
    }

    pub(super) fn read<R>(
        &mut self,
        stats: &mut ClientStats,
        mut get: impl FnMut(&mut Reader<'_, Verbs<'_>>) -> Result<R, VerbsGetError>,
    ) -> Result<R, GetError> {
        if !self.shared.process.is_this() {
            return Err(ConnectError::Forked { address: self.address() }.into());
        }
        let within = self.shared.options.deadline;
        // A callback that panicked may have left READs in flight. They must not be taken for those
        // of this call.
        let is_reading = self.connection.as_ref().is_some_and(Connection::is_reading)
            || self.seat.as_ref().is_some_and(LaneReader::is_reading);
        if is_reading {
            self.stop_reading();
        }
        let tell = |error: &VerbsError| tracing::warn!(error = error as &dyn Error, "reconnecting");
        let read = Tries::of_gets(within).run(tell, |tries| {
            let ends = tries.ends();
            self.ready_to_read(ends).map_err(|error| Failed::ForGood(self.not_ready(error, ends)))?;
            self.read_once(stats, &mut get, within)
        });
        read.map_err(|failed| failed.or(|error| self.failed_to_read(error)))
    }

    /// Runs GETs over the present connection.
    fn read_once<R>(
        &mut self,
        stats: &mut ClientStats,
        get: &mut impl FnMut(&mut Reader<'_, Verbs<'_>>) -> Result<R, VerbsGetError>,
        within: Duration,
    ) -> Result<R, Failed<VerbsError, GetError>> {
        self.shared.hints.refresh(&self.geometry, &mut self.hints);
        let way = match (&mut self.seat, &mut self.connection) {
            (Some(seat), _) => ReadPath::Shared(seat),
            (None, Some(connection)) => ReadPath::Own(connection),
            (None, None) => return Err(Failed::ForNow(VerbsError::Late { within }, Repeatable::READ)),
        };
        let geometry = &*self.geometry;
        let (clock, grace) = (&self.shared.clock, geometry.grace());
        let fabric = Verbs { way, geometry, keyless: Vec::new(), clock, grace, within };
        let limits = self.shared.options.limits;
        let mut reader = Reader::new(fabric, geometry, self.shared.clock.clone(), limits);
        if let Some(hints) = &self.hints {
            reader = reader.with_hints(hints);
        }
        self.entries.keep(geometry);
        reader.swap_entries(&mut self.entries);
        let result = get(&mut reader);
        stats.get += reader.stats();
        stats.read += reader.read_counts();
        stats.hints += reader.hint_counts();
        reader.swap_entries(&mut self.entries);
        self.take_counts();
        match result {
            Ok(result) => Ok(result),
            Err(VerbsGetError::Link(error)) => {
                self.stop_reading();
                Err(Failed::ForNow(error, Repeatable::READ))
            }
            // Another connection would not help.
            Err(VerbsGetError::Memory(error)) => Err(Failed::ForGood(GetError::Connect(error.into()))),
            // READs may still be in flight. They must not be taken for those of the next call.
            Err(VerbsGetError::Read(error)) => {
                let drained = match (&mut self.seat, &mut self.connection) {
                    (Some(seat), _) => seat.drain(within),
                    (None, Some(connection)) => connection.drain(within),
                    (None, None) => Ok(()),
                };
                if let Err(error) = drained {
                    tracing::warn!(error = &error as &dyn Error, "reconnecting");
                    self.stop_reading();
                }
                Err(Failed::ForGood(error.into()))
            }
        }
    }

    fn not_ready(&self, error: SetupError, deadline: Instant) -> GetError {
        match is_late(&error, deadline) {
            true => GetError::Deadline { address: self.address(), deadline: self.shared.options.deadline },
            false => GetError::Connect(error.into()),
        }
    }

    fn failed_to_read(&self, error: VerbsError) -> GetError {
        let address = self.address();
        match error {
            VerbsError::Late { .. } => GetError::Deadline { address, deadline: self.shared.options.deadline },
            error => GetError::ServerGone { address, source: error.into() },
        }
    }

    /// Connects for READs if there is no connection, until the deadline.
    fn ready_to_read(&mut self, deadline: Instant) -> Result<(), SetupError> {
        let Some(pairs) = &self.shared.pairs else { return self.connected(deadline) };
        if self.seat.as_ref().is_some_and(|seat| !seat.has_failed()) {
            return Ok(());
        }
        let place = self.place.get_or_insert_with(|| pairs.place());
        self.seat = None;
        let seat = connected(deadline, may_pass, |within| self.shared.join(place, within))?;
        self.geometry = seat.geometry().clone();
        self.seat = Some(seat);
        // An entry may name memory that the next server has not registered.
        self.entries = KnownEntries::default();
        self.connected += 1;
        Ok(())
    }

    /// Connects the handle if it has no connection, until the deadline.
    fn connected(&mut self, deadline: Instant) -> Result<(), SetupError> {
        if self.connection.is_none() {
            // Where queue pairs are shared, this connection carries no READs.
            let credits = if self.shared.pairs.is_some() { 1 } else { self.shared.options.verbs.credits };
            let mut connection = connected(deadline, may_pass, |within| self.shared.open(credits, within))?;
            self.shared.begin_owner(&mut connection, deadline)?;
            if self.shared.pairs.is_none() {
                self.geometry = connection.geometry().clone();
                self.entries = KnownEntries::default();
                self.connected += 1;
            }
            self.connection = Some(connection);
        }
        Ok(())
    }

    fn take_counts(&mut self) {
        if let Some(seat) = &mut self.seat {
            self.counts += seat.take_counts();
        }
        if let Some(connection) = &mut self.connection {
            self.counts += connection.take_counts();
        }
    }

    /// Drops the connection or seat for READs. The next GET makes another one, or joins one that
    /// another handle made.
    fn stop_reading(&mut self) {
        self.take_counts();
        match &self.shared.pairs {
            Some(_) => self.seat = None,
            None => self.connection = None,
        }
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Sends requests over a connection that no other handle uses, in messages of at most their longest length.
    fn converse_alone(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        counts: &mut RequestCounts,
    ) -> Result<(), AskError> {
        let mut tries = Tries::of_requests(deadline.at);
        let asked = tries.run(|_| {}, |_| self.converse_once(requests, deadline, replies, counts));
        asked.map_err(|failed| failed.or(|error| error))
    }

    /// As `converse_alone`, over one connection.
    fn converse_once(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        counts: &mut RequestCounts,
    ) -> Result<(), Failed<AskError, AskError>> {
        self.ready_to_ask(deadline.at).map_err(Failed::ForGood)?;
        if self.shared.pairs.is_none() {
            self.give_up_posted();
        }
        let Some(connection) = &mut self.connection else { return Err(Failed::ForGood(self.late())) };
        let mut has_sent = false;
        let geometry = connection.geometry().clone();
        // An extension may handle requests in any order, but the pieces of a value have an order.
        let piece_max = Some(wire::FRAME_VALUE_MAX).filter(|_| connection.extension().is_none());
        let server = (&*geometry, connection.level());
        let result =
            send_fitting(requests, server, piece_max, replies, &mut has_sent, |requests, replies| {
                let sent = requests.len() as u64;
                // Keys and changes come in replies as long as a message.
                let is_feed = matches!(requests, [Request::Feed(_)]);
                // Requests by an extension have no owner.
                let is_owner = self.shared.options.owner.is_some();
                if let Some(extension) = connection.extension().filter(|_| !is_feed && !is_owner) {
                    counts.extension += sent;
                    return extension.call(requests, deadline, replies);
                }
                let first_id = self.next_id;
                self.next_id += sent;
                counts.message += sent;
                talk(connection, requests, first_id, deadline, replies)
            });
        self.asked(result).map_err(|error| match error {
            gone @ AskError::ServerGone { .. } => hung_up(has_sent, gone, |gone| gone),
            error => Failed::ForGood(error),
        })
    }

    /// Makes sure that there is a connection that the server has not closed, until the deadline.
    fn ready_to_ask(&mut self, deadline: Instant) -> Result<(), AskError> {
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            self.take_counts();
            self.connection = None;
        }
        self.connected(deadline).map_err(|error| match is_late(&error, deadline) {
            true => self.late(),
            false => AskError::Connect(error.into()),
        })
    }

    /// What a conversation over the connection has come to.
    fn asked<R>(&mut self, result: Result<R, VerbsError>) -> Result<R, AskError> {
        self.take_counts();
        match (result, &mut self.connection) {
            (Ok(result), _) => Ok(result),
            (Err(VerbsError::Late { .. }), Some(connection)) => {
                // The connection is still good. Its answers are discarded when they come.
                connection.give_up_messages();
                Err(self.late())
            }
            (Err(error), _) => {
                self.connection = None;
                Err(AskError::ServerGone { address: self.address(), source: error.into() })
            }
        }
    }

    /// Does something with the connection for a request that is posted in the place of the handle's own. Where handles have
    /// connections of their own, it is that one.
    fn with_late<R>(&mut self, act: impl FnOnce(&mut VerbsHandle) -> R) -> R {
        let is_shared = self.shared.pairs.is_some();
        let exchange = |handle: &mut VerbsHandle| {
            if is_shared {
                std::mem::swap(&mut handle.connection, &mut handle.late);
            }
        };
        exchange(self);
        let done = act(self);
        exchange(self);
        done
    }

    /// The reply to a request that was posted is not waited for any more: it is discarded when it comes.
    fn give_up_posted(&mut self) {
        if self.posted.take().is_some() {
            self.connection.iter_mut().for_each(Connection::give_up_messages);
        }
    }

    /// Sends one request as a message, over the connection, which must be there. Returns its number.
    fn send_one(&mut self, request: &Request<'_>, deadline: Instant) -> Result<u64, AskError> {
        let (id, mut message) = (self.next_id, Vec::new());
        self.next_id += 1;
        request.encode(id, &mut message);
        let sent = match &mut self.connection {
            Some(connection) => connection.send(&message, deadline),
            None => Err(VerbsError::Closed),
        };
        self.asked(sent).map(|()| id)
    }

    fn late(&self) -> AskError {
        AskError::Deadline { address: self.address(), deadline: self.shared.options.deadline }
    }
}

impl Handle for VerbsHandle {
    fn process(&self) -> Process {
        self.shared.process
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn reattached(&self) -> u64 {
        self.connected.saturating_sub(1)
    }

    fn times(&self) -> Option<&TimeCounts> {
        self.times.as_deref()
    }

    fn hint_bytes(&self) -> u64 {
        self.hints.as_ref().map_or(0, |hints| hints.bytes())
    }

    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError> {
        self.get_batch(keys.iter().map(AsRef::as_ref).enumerate().collect(), answers, stats)
    }

    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), AskError> {
        let counts = &mut stats.requests;
        let Some(pairs) = self.shared.pairs.clone() else {
            return self.converse_alone(requests, deadline, replies, counts);
        };
        let Some(mut turn) = pairs.changes.turn(deadline.at) else { return Err(self.late()) };
        self.connection = turn.connection.take();
        // Others wait for the connection: a request that has to wait for memory leaves it to them, and is made again.
        let patience = std::mem::take(&mut deadline.patience);
        let result = self.converse_alone(requests, deadline, replies, counts);
        deadline.patience = patience;
        turn.connection = self.connection.take();
        result
    }

    fn post(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
        stats: &mut ClientStats,
    ) -> Result<Posted, AskError> {
        self.with_late(|handle| {
            handle.ready_to_ask(deadline)?;
            if request.level() > handle.connection.as_ref().map_or(0, Connection::level) {
                return Ok(Posted::OldServer);
            }
            handle.give_up_posted();
            stats.requests.message += 1;
            handle.posted = Some(handle.send_one(request, deadline)?);
            Ok(Posted::Sent)
        })
    }

    fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, AskError> {
        self.with_late(|handle| {
            let received = match (handle.posted, &mut handle.connection) {
                (Some(id), Some(connection)) => {
                    let received = connection.receive_late(until, |bytes| wire::replies(bytes, id));
                    received.and_then(|replies| Ok(replies.transpose()?))
                }
                (None, _) | (_, None) => Err(VerbsError::Closed),
            };
            let Some(mut replies) = handle.asked(received)? else { return Ok(None) };
            handle.posted = None;
            // Of a request by which it was hurried.
            handle.connection.iter_mut().for_each(Connection::give_up_messages);
            Ok(replies.pop())
        })
    }

    /// Another message has it answered (Q11). The answer to that one is discarded.
    fn hurry(&mut self, deadline: Instant) -> Result<(), AskError> {
        self.with_late(|handle| handle.send_one(&Request::Stat, deadline).map(drop))
    }

    fn disconnect(&mut self) {
        self.take_counts();
        (self.connection, self.late) = (None, None);
        if let Some(pairs) = &self.shared.pairs {
            pairs.changes.forget();
        }
    }
}

/// Passes on the answers of those keys of a batch that had none yet.
struct OpenAnswers<'a, A> {
    answers: &'a mut A,
    /// These keys, with their numbers in the whole batch.
    open: &'a [(usize, &'a [u8])],
    answered: &'a mut [bool],
    flow: ControlFlow<()>,
}

impl<A: Answers> Answers for OpenAnswers<'_, A> {
    type Sink = A::Sink;

    fn sink(&mut self) -> &mut A::Sink {
        self.answers.sink()
    }

    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        self.answered[number] = true;
        self.flow = self.answers.landed(self.open[number].0, is_there);
        self.flow
    }

    fn of_table(&mut self, table: u64) {
        self.answers.of_table(table);
    }

    fn put_life(&mut self, life: Option<Life>) {
        self.answers.put_life(life);
    }

    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        self.answered[number] = true;
        self.flow = self.answers.answer(self.open[number].0, answer);
        self.flow
    }
}

/// Whether connecting ended because the time was up.
fn is_late(error: &SetupError, deadline: Instant) -> bool {
    matches!(error, SetupError::Handshake { .. }) && Instant::now() >= deadline
}

impl Clone for VerbsHandle {
    /// Shares the device, and the queue pairs if they are shared. The clone has no connection and
    /// no seat yet.
    fn clone(&self) -> VerbsHandle {
        VerbsHandle {
            shared: self.shared.clone(),
            connection: None,
            late: None,
            posted: None,
            seat: None,
            place: None,
            geometry: self.geometry.clone(),
            hints: self.hints.clone(),
            entries: self.entries.clone(),
            counts: QueueCounts::default(),
            times: self.times.as_ref().map(|_| Box::default()),
            connected: 0,
            next_id: 0,
        }
    }
}

/// Whether the next attempt may end in another way.
fn may_pass(error: &SetupError) -> bool {
    !matches!(
        error,
        SetupError::Token { .. }
            | SetupError::Extension { .. }
            | SetupError::Version { .. }
            | SetupError::Library { .. }
            | SetupError::UnknownDevice { .. }
            | SetupError::UnknownPort { .. }
            | SetupError::Mtu { .. }
            | SetupError::Register { .. }
            | SetupError::Owner { .. }
    )
}

fn talk(
    connection: &mut Connection,
    requests: &[Request<'_>],
    first_id: u64,
    deadline: &mut Deadline,
    replies: &mut Vec<Reply>,
) -> Result<(), VerbsError> {
    let bytes_max = connection.message_bytes();
    let mut missing = first_id..first_id + requests.len() as u64;
    let mut asked = requests.iter().zip(first_id..).peekable();
    let (mut message, mut next) = (Vec::new(), Vec::new());
    while !missing.is_empty() {
        let mut answer_bytes = 0;
        message.clear();
        while let Some((request, id)) = asked.peek() {
            next.clear();
            request.encode_patient(*id, deadline.patience, &mut next);
            // The answers to a message must also fit into one message.
            answer_bytes += wire::reply_bytes_max_to(request, connection.geometry());
            if message.len() + next.len() > bytes_max || answer_bytes > bytes_max {
                // A single request and its answer always fit: the length of messages was checked when
                // the connection was made.
                break;
            }
            message.extend_from_slice(&next);
            asked.next();
        }
        if !message.is_empty() {
            connection.send(&message, deadline.at)?;
        }
        // Messages are sent ahead of their answers while the server has room for them.
        while !missing.is_empty() && (asked.peek().is_none() || connection.is_full()) {
            let first = missing.start;
            let received = connection.receive(deadline.at, |bytes| wire::replies(bytes, first))??;
            missing.start += received.len() as u64;
            if missing.start > missing.end {
                return Err(VerbsError::Garbage { what: "more replies than requests".into() });
            }
            replies.extend(received);
            deadline.renew();
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::verbs::VerbsOptions;
    use std::net::TcpListener;

    /// Connecting again inside a batch takes what is left of its deadline, not all of it. The same
    /// holds where handles take turns.
    #[test]
    fn connecting_again_takes_what_is_left() {
        // It accepts connections and never answers.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("verbs://{}", server.local_addr().unwrap());
        let Ok(Address::Verbs(address)) = place.parse() else { panic!("{place}") };
        let all = Duration::from_secs(30);
        let table = Config { size: TableSize::Slots(8), ..Config::short() };
        for pairs in [None, Some(1)] {
            let verbs = VerbsOptions { pairs, ..VerbsOptions::default() };
            let options = ClientOptions { deadline: all, verbs, ..ClientOptions::default() };
            let mut handle = VerbsHandle {
                late: None,
                posted: None,
                shared: Arc::new(VerbsShared {
                    process: Process::this(),
                    address: address.clone(),
                    clock: Clock::System,
                    station: Mutex::new(None),
                    pairs: options.verbs.pairs.map(SharedPairs::new),
                    hints: SharedHints::new(0),
                    owner: None,
                    options,
                }),
                connection: None,
                seat: None,
                place: None,
                geometry: Arc::new(table.geometry().unwrap()),
                hints: None,
                entries: KnownEntries::default(),
                counts: QueueCounts::default(),
                times: None,
                connected: 0,
                next_id: 0,
            };
            for left in [Duration::from_millis(50), Duration::from_millis(1)] {
                let begun = Instant::now();
                let (mut deadline, mut replies) = (Deadline::until(begun + left, all), Vec::new());
                let mut stats = ClientStats::default();
                let late = handle.converse(&[Request::Wake], &mut deadline, &mut replies, &mut stats);
                let took = begun.elapsed();
                let is_late = matches!(late, Err(AskError::Deadline { deadline, .. }) if deadline == all);
                assert!(is_late, "{late:?}");
                assert!((left..all).contains(&took), "{took:?} of {left:?}");
            }
        }
    }
}
