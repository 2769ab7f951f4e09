//! The server's end: the clients' areas, and the workers that poll them.

#![allow(unsafe_code)]

use super::conversation::{
    HerdJoin, HerdOffer, HerdWelcome, VERSION, WINDOW, WriteTransport, cell_bytes, known, refused, told,
};
use super::device::{AddressHandle, REMOTE_WRITE, address_of, open_for_datagrams, shared_words};
use super::sealed;
use crate::mailbox::{Once, glance};
use crate::outcome::with_causes;
use crate::server::caller::{Caller, Role};
use crate::server::shared::ServerState;
use crate::server::verbs::extension::{ExtensionAcceptor, ExtensionLease, OpenExtension};
use crate::verbs::bootstrap::Descriptor;
use crate::verbs::device::{
    Access, Buffer, CompletionQueue, Depth, ProtectionDomain, QueuePair, Work, succeeded,
};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use crate::verbs::station::Station;
use crate::wire::{self, Reply, Request};
use ibverbs_sys::ibv_qp_type;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// The most replies of one worker whose SENDs have not completed.
const REPLIES: usize = 128;
/// Sweeps over all cells between two looks for clients that come and go. A worker that found
/// nothing to do then also yields to other threads.
const SWEEPS: u32 = 64;

/// Admits clients: gives each an area.
#[derive(Debug)]
struct HerdAcceptor {
    station: Arc<Station>,
    carrier: WriteTransport,
    cell_bytes: usize,
    /// The completion queue of queue pairs that only receive WRITEs. Nothing ever completes there.
    silent: Arc<CompletionQueue>,
    /// The workers: the numbers of their queue pairs, and the channels through which they get
    /// clients.
    workers: Vec<(u32, mpsc::Sender<Arc<HerdSession>>)>,
}

/// One client's area.
#[derive(Debug)]
struct HerdSession {
    // The queue pair is dropped before the memory it writes.
    requests: QueuePair,
    area: Buffer,
    /// The client's queue pair for datagrams.
    to: AddressHandle,
    role: Role,
    gone: AtomicBool,
}

/// Keeps a client's area in use until it is dropped.
#[derive(Debug)]
struct HerdLease(Arc<HerdSession>);

impl Drop for HerdLease {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }
}

/// Starts the workers. They end after the acceptor is dropped.
pub(super) fn open(
    shared: &Arc<ServerState>,
    station: &Arc<Station>,
    workers: usize,
) -> Result<OpenExtension, SetupError> {
    let (acceptor, threads) = HerdAcceptor::open(shared, station, workers)?;
    Ok((Box::new(acceptor), threads))
}

impl HerdAcceptor {
    fn open(
        shared: &Arc<ServerState>,
        station: &Arc<Station>,
        workers: usize,
    ) -> Result<(HerdAcceptor, Vec<JoinHandle<()>>), SetupError> {
        let geometry = shared.index.geometry();
        let (reply, mtu) = (wire::reply_bytes_max(geometry), station.route().mtu as usize);
        if reply > mtu {
            let why = format!(
                "a reply of this table takes up to {reply} bytes, a datagram {mtu} (the MTU): serve a table with shorter values (`Config::value_max`)"
            );
            return Err(refused(why));
        }
        let silent = CompletionQueue::new(station.domain().context().clone(), 1)?;
        let carrier = best_carrier(station, &silent)?;
        tracing::info!(?carrier, workers, "HERD: workers poll for requests");
        let cell_bytes = cell_bytes(geometry);
        let mut acceptor =
            HerdAcceptor { station: station.clone(), carrier, cell_bytes, silent, workers: Vec::new() };
        let mut threads = Vec::new();
        for number in 0..workers.max(1) {
            let replies = Replies::new(station, reply)?;
            let (sender, incoming) = mpsc::channel();
            acceptor.workers.push((replies.pair.number(), sender));
            let worker = HerdWorker {
                shared: shared.clone(),
                number,
                incoming,
                clients: Vec::new(),
                replies,
                copy: Vec::new(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("oneread-herd-{number}"))
                .spawn(move || worker.run())
                .map_err(|e| SetupError::Call {
                    call: "starting threads",
                    errno: e.raw_os_error().unwrap_or(0),
                })?;
            threads.push(thread);
        }
        Ok((acceptor, threads))
    }

    /// Gives a client an area and shows it to the workers. `Err` says why not.
    fn area_for(&self, join: &Value, role: Role) -> Result<(HerdLease, HerdWelcome), String> {
        let join: HerdJoin = known(join).map_err(|error| with_causes(&error))?;
        if !crate::verbs::is_mtu(join.requests.mtu) {
            return Err(format!("{} bytes is no path MTU", join.requests.mtu));
        }
        let made = || -> Result<_, SetupError> {
            let (shared, route) = (self.station.domain(), self.station.route());
            // This queue pair may WRITE whatever its domain registers for that: its own area alone.
            let domain = ProtectionDomain::new(shared.context().clone())?;
            let mut requests = QueuePair::new(
                domain.clone(),
                self.silent.clone(),
                None,
                join.carrier.pair_type(),
                Depth { sends: 1, receives: 1 },
                route.clone(),
            )?;
            requests.connect(&join.requests, REMOTE_WRITE)?;
            let cells = self.workers.len() * WINDOW;
            let area = Buffer::new(domain, cells, self.cell_bytes, REMOTE_WRITE)?;
            let to = AddressHandle::new(&self.station, &join.replies.at)?;
            Ok(HerdSession { requests, area, to, role, gone: AtomicBool::new(false) })
        };
        let session = made()
            .map_err(|error| format!("the server's end of HERD cannot be set up: {}", with_causes(&error)))?;
        let seated = HerdWelcome {
            requests: session.requests.endpoint(),
            area: Descriptor {
                address: address_of(&session.area, 0),
                key: session.area.remote_key(),
                bytes: (session.area.memory().cells() * session.area.cell_bytes()) as u64,
            },
            cell_bytes: session.area.cell_bytes() as u32,
            workers: self.workers.iter().map(|(number, _)| *number).collect(),
        };
        // From here on, an error gives the area up again.
        let lease = HerdLease(Arc::new(session));
        for (_, incoming) in &self.workers {
            incoming.send(lease.0.clone()).map_err(|_| "a worker of the server's has ended".to_owned())?;
        }
        Ok((lease, seated))
    }
}

impl ExtensionAcceptor for HerdAcceptor {
    fn offer(&self) -> Value {
        told(&HerdOffer { version: VERSION, carrier: self.carrier })
    }

    fn admit(&self, asked: &Value, role: Role) -> Result<(ExtensionLease, Value), String> {
        let (lease, welcome) = self.area_for(asked, role)?;
        Ok((Box::new(lease), told(&welcome)))
    }
}

/// UC if the device has it, otherwise RC.
fn best_carrier(station: &Station, queue: &Arc<CompletionQueue>) -> Result<WriteTransport, SetupError> {
    let depth = Depth { sends: 1, receives: 1 };
    let (domain, route) = (station.domain().clone(), station.route().clone());
    match QueuePair::new(domain, queue.clone(), None, ibv_qp_type::IBV_QPT_UC, depth, route) {
        Ok(_) => Ok(WriteTransport::Uc),
        Err(SetupError::Call { errno, .. }) => {
            tracing::info!(errno, "the device has no UC: WRITEs go over RC");
            Ok(WriteTransport::Rc)
        }
        Err(error) => Err(error),
    }
}

/// Polls this worker's cells in every client's area.
struct HerdWorker {
    shared: Arc<ServerState>,
    number: usize,
    incoming: mpsc::Receiver<Arc<HerdSession>>,
    // The replies' queue pair may still name a client's address; `retire` waits for it.
    clients: Vec<PolledClient>,
    replies: Replies,
    /// A copy of the cell being looked at.
    copy: Vec<u64>,
}

/// A client, as one worker sees it.
struct PolledClient {
    session: Arc<HerdSession>,
    lanes: [Once; WINDOW],
}

impl HerdWorker {
    fn run(mut self) {
        let mut busy = false;
        let mut sweeps = 0;
        loop {
            if self.clients.is_empty() {
                // There are no clients: sleeps until one comes, or the acceptor is dropped.
                match self.incoming.recv() {
                    Ok(session) => self.clients.push(PolledClient::new(session)),
                    Err(mpsc::RecvError) => break,
                }
            }
            match self.sweep() {
                Ok(found) => busy |= found,
                Err(error) => {
                    tracing::error!(%error, "HERD: a reply could not be sent; this worker ends");
                    break;
                }
            }
            sweeps += 1;
            if sweeps < SWEEPS {
                continue;
            }
            if !self.meet() {
                break;
            }
            if !busy {
                self.shared.index.tidy();
                std::thread::yield_now();
            }
            (sweeps, busy) = (0, false);
        }
        self.retire(|_| true);
    }

    /// Adds clients that have come and removes those that are gone. Returns false when the acceptor
    /// is dropped.
    fn meet(&mut self) -> bool {
        let desk_is_there = loop {
            match self.incoming.try_recv() {
                Ok(session) => self.clients.push(PolledClient::new(session)),
                Err(mpsc::TryRecvError::Empty) => break true,
                Err(mpsc::TryRecvError::Disconnected) => break false,
            }
        };
        self.retire(|client| client.session.gone.load(Ordering::Relaxed));
        desk_is_there
    }

    /// Removes clients once no SEND names their addresses any more.
    fn retire(&mut self, is_gone: impl Fn(&PolledClient) -> bool) {
        if self.clients.iter().any(&is_gone) {
            if let Err(error) = self.replies.wait_for_room(REPLIES) {
                tracing::error!(%error, "HERD: replies in flight");
            }
            self.clients.retain(|client| !is_gone(client));
        }
    }

    /// Looks at every cell once. Returns whether there was anything new.
    fn sweep(&mut self) -> Result<bool, VerbsError> {
        let mut busy = false;
        let HerdWorker { shared, number, clients, replies, copy, .. } = self;
        for PolledClient { session, lanes } in clients {
            let caller = &mut Caller::new(session.role);
            for (at, lane) in lanes.iter_mut().enumerate() {
                let cell = shared_words(&session.area, *number * WINDOW + at);
                if glance(cell) == lane.taken() {
                    continue;
                }
                // Part of it may not have landed yet (Q1). Then a later sweep finds it.
                let Some((mark, frame)) = sealed::open(cell, copy) else { continue };
                busy = true;
                let answer = |request: Request<'_>| match request {
                    // A client's requests come to several threads in no order, so none begins an upload.
                    Request::UploadBegin { .. } if session.role == Role::Change => Some(Reply::Unfit),
                    request => shared.answer(caller, request),
                };
                if lane.take(mark, frame, answer) {
                    replies.send(session, lane.reply())?;
                }
            }
        }
        Ok(busy)
    }
}

impl PolledClient {
    fn new(session: Arc<HerdSession>) -> PolledClient {
        PolledClient { session, lanes: Default::default() }
    }
}

/// Sends replies.
struct Replies {
    // The queue pair is dropped before the memory it reads.
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    outgoing: Buffer,
    sent: u64,
    completed: u64,
}

impl Replies {
    fn new(station: &Station, reply_bytes: usize) -> Result<Replies, SetupError> {
        let domain = station.domain();
        let queue = CompletionQueue::new(domain.context().clone(), REPLIES as u32)?;
        let depth = Depth { sends: REPLIES as u32, receives: 1 };
        let route = station.route().clone();
        let mut pair =
            QueuePair::new(domain.clone(), queue.clone(), None, ibv_qp_type::IBV_QPT_UD, depth, route)?;
        open_for_datagrams(&mut pair, station)?;
        let outgoing = Buffer::new(domain.clone(), REPLIES, reply_bytes, Access::LOCAL)?;
        Ok(Replies { pair, queue, outgoing, sent: 0, completed: 0 })
    }

    /// Sends a datagram. The session must live until the SEND has completed ([`HerdWorker::retire`]
    /// sees to that).
    fn send(&mut self, session: &HerdSession, reply: &[u8]) -> Result<(), VerbsError> {
        self.wait_for_room(1)?;
        let cell = (self.sent % REPLIES as u64) as usize;
        // SAFETY: the SEND that used this cell before has completed, since at most REPLIES are in
        // flight.
        let bytes = unsafe { self.outgoing.fill(cell, &[reply]) };
        let work = Work {
            id: self.sent,
            element: self.outgoing.element(cell, bytes),
            kind: session.to.datagram(),
            signalled: true,
        };
        // SAFETY: as above; the buffer outlives the queue pair, and the address outlives the SEND.
        unsafe { self.pair.post([work]) }?;
        self.sent += 1;
        Ok(())
    }

    /// Waits until this many cells are free. That does not take long: a datagram is sent without
    /// the receiver's help.
    fn wait_for_room(&mut self, cells: usize) -> Result<(), VerbsError> {
        let mut completions = [Completion::default(); 32];
        while self.sent - self.completed > (REPLIES - cells) as u64 {
            let n = self.queue.poll(&mut completions)?;
            for completion in &completions[..n] {
                succeeded(completion, "datagram")?;
                self.completed = completion.wr_id() + 1;
            }
        }
        Ok(())
    }
}
