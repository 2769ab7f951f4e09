//! A worker: answers the messages of its clients.

#![allow(unsafe_code)]

use super::host::VerbsServer;
use super::receives::{MESSAGES, Receives};
use super::session::{SEND, VerbsSession};
use crate::server::parking::Parking;
use crate::server::turns::{EventLoop, TurnCount};
use crate::verbs::Wait;
use crate::verbs::device::{CompletionQueue, SharedReceives, succeeded};
use crate::verbs::error::{SetupError, VerbsError};
use crate::verbs::ffi::Completion;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time for one client's messages per turn.
const TURN_TIME: Duration = Duration::from_millis(2);
/// Time that a client's resources are kept after it has gone, if the device does not report that
/// its queue pair has taken its last receive. (Some devices report that only when the queue pair is
/// destroyed.) Far longer than any completion takes.
const LAST_RECEIVE_WITHIN: Duration = Duration::from_millis(100);
/// Time between checks for traces that no worker knows of.
const IDLE: Duration = Duration::from_secs(1);

const WAKER: mio::Token = mio::Token(1);
const COMPLETIONS: mio::Token = mio::Token(2);
const FIRST_CLIENT: usize = 4;

/// The acceptor's end of a worker.
pub(super) struct WorkerInbox {
    queue: Arc<CompletionQueue>,
    receives: Arc<SharedReceives>,
    clients: Arc<AtomicUsize>,
    events: mpsc::Sender<WorkerEvent>,
    event_loop: EventLoop,
}

/// A message from the acceptor to a worker.
enum WorkerEvent {
    Joined(Box<VerbsSession>),
    /// The device reports this for a queue pair, which may belong to another worker.
    LastReceive {
        number: u32,
    },
}

impl WorkerInbox {
    /// Number of clients that its queues have room for.
    pub fn room(&self) -> usize {
        (self.queue.capacity() as usize / (2 * MESSAGES)).min(self.receives.capacity() as usize / MESSAGES)
    }

    /// Number of clients that it has.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// The queues that a client's queue pair works with.
    pub fn queues(&self) -> (&Arc<CompletionQueue>, &Arc<SharedReceives>) {
        (&self.queue, &self.receives)
    }

    /// The worker's event loop, for other threads.
    pub fn event_loop(&self) -> &EventLoop {
        &self.event_loop
    }

    /// Gives the worker a client. The worker learns of it before the client learns that it has joined.
    pub fn hand_over(&self, client: VerbsSession) {
        self.clients.fetch_add(1, Ordering::Relaxed);
        // The inbox of a worker that has ended is closed for good.
        if self.events.send(WorkerEvent::Joined(Box::new(client))).is_err() {
            self.clients.store(usize::MAX / 2, Ordering::Relaxed);
        }
        let _ = self.event_loop.waker.wake();
    }

    /// Tells the worker that the device has reported the last receive of a queue pair, which may belong to another
    /// worker.
    pub fn tell_of_last_receive(&self, number: u32) {
        let _ = self.events.send(WorkerEvent::LastReceive { number });
        let _ = self.event_loop.waker.wake();
    }
}

/// A client that is gone. It is kept until all completions of its queue pair have been taken.
struct Leaving {
    client: Box<VerbsSession>,
    /// When all of them have completed.
    ends: Instant,
}

/// Answers the messages of its clients.
pub(super) struct VerbsWorker {
    host: Arc<VerbsServer>,
    poll: Poll,
    // Clients' queue pairs are dropped before the receives they draw from.
    clients: HashMap<u32, Box<VerbsSession>>,
    leaving: Vec<Leaving>,
    by_token: HashMap<mio::Token, u32>,
    next: usize,
    events: mpsc::Receiver<WorkerEvent>,
    count: Arc<AtomicUsize>,
    queue: Arc<CompletionQueue>,
    receives: Receives,
    /// Clients with unanswered messages, each once.
    turns: VecDeque<u32>,
    /// The turns of its own event loop.
    turned: Arc<TurnCount>,
    /// When it last looked for clients that have stopped in the middle of an upload.
    looked: Instant,
    /// Clients with a request that waits.
    parking: Parking<u32>,
}

impl VerbsWorker {
    /// Makes a worker, and the acceptor's end of it.
    pub fn new(host: Arc<VerbsServer>) -> Result<(VerbsWorker, WorkerInbox), SetupError> {
        let context = host.station.domain().context();
        // Room for `clients_max` clients, as far as the device allows. The device's own limit may
        // be millions, and the memory for them would be locked at once.
        let room = |for_one: usize, limit: i32| {
            let for_all = host.shared.clients_max.saturating_mul(for_one as u64);
            for_all.clamp(1, limit.max(1) as u64) as u32
        };
        let limits = context.limits();
        let queue = CompletionQueue::new(context.clone(), room(2 * MESSAGES, limits.max_cqe))?;
        let receives = SharedReceives::new(host.station.domain().clone(), room(MESSAGES, limits.max_srq_wr))?;
        let os = |e: io::Error| SetupError::Call { call: "epoll", errno: e.raw_os_error().unwrap_or(0) };
        let poll = Poll::new().map_err(os)?;
        let fd = queue.fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), COMPLETIONS, Interest::READABLE).map_err(os)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(os)?);
        let parking = Parking::new(&host.shared.index, &waker);
        let (sender, events) = mpsc::channel();
        let turned = Arc::<TurnCount>::default();
        let count = Arc::new(AtomicUsize::new(0));
        let inbox = WorkerInbox {
            queue: queue.clone(),
            receives: receives.clone(),
            clients: count.clone(),
            events: sender,
            event_loop: EventLoop { waker, turns: turned.clone() },
        };
        let worker = VerbsWorker {
            host,
            poll,
            clients: HashMap::new(),
            leaving: Vec::new(),
            by_token: HashMap::new(),
            next: FIRST_CLIENT,
            events,
            count,
            queue,
            receives: Receives::new(receives),
            turns: VecDeque::new(),
            turned,
            looked: Instant::now(),
            parking,
        };
        Ok((worker, inbox))
    }

    /// Serves until the server stops.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(64);
        if let Err(error) = self.serve(&mut events) {
            tracing::error!(%error, "the device or the event queue failed; this worker ends");
        }
        self.clients.values().for_each(|client| client.hang_up());
    }

    fn serve(&mut self, events: &mut Events) -> Result<(), Box<dyn std::error::Error>> {
        /// Rounds, busy or not, between checks of descriptors and traces.
        const ROUNDS: u32 = 1024;
        let mut rounds = 0;
        while !self.host.shared.is_stopping() {
            self.turned.count();
            let busy = self.take_completions()? | self.take_turns() | self.look_at_parked();
            rounds += 1;
            if rounds < ROUNDS && (busy || self.host.wait == Wait::Poll) {
                std::hint::spin_loop();
                continue;
            }
            rounds = 0;
            self.drop_halfway();
            let tidy = self.host.shared.index.tidy();
            self.host.shared.looks_now();
            let timeout = match self.host.wait {
                Wait::Poll => Duration::ZERO,
                Wait::Block if busy => Duration::ZERO,
                Wait::Block => {
                    // A completion between the last poll and arming does not wake the worker, so
                    // poll once more.
                    self.queue.arm()?;
                    let busy = self.take_completions()?;
                    if busy { Duration::ZERO } else { tidy.unwrap_or(IDLE).min(self.idle()) }
                }
            };
            let timeout = self.parking.sleeps(&self.host.shared.index, Some(timeout));
            let polled = self.poll.poll(events, timeout);
            self.parking.wakes(&self.host.shared.index);
            match polled {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e.into()),
                _ => {}
            }
            for token in events.iter().map(|event| event.token()).collect::<Vec<_>>() {
                match token {
                    WAKER => self.hear_news(),
                    COMPLETIONS => self.queue.take_events(),
                    token => self.look_after(token),
                }
            }
            if self.host.wait == Wait::Poll {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    // ---- clients come and go --------------------------------------------------------------------

    /// Longest time that the worker may sleep.
    fn idle(&self) -> Duration {
        let now = Instant::now();
        self.leaving
            .iter()
            .map(|gone| gone.ends.saturating_duration_since(now))
            .min()
            .unwrap_or(IDLE)
            .min(IDLE)
    }

    fn hear_news(&mut self) {
        while let Ok(events) = self.events.try_recv() {
            match events {
                WorkerEvent::Joined(client) => {
                    let number = client.number();
                    if let Err(why) = self.adopt(client) {
                        tracing::warn!(%why, number, "a client could not be taken in");
                        self.count.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                WorkerEvent::LastReceive { number } => {
                    if let Some(client) = self.clients.get_mut(&number) {
                        client.spend();
                    }
                    if let Some(gone) = self.leaving.iter_mut().find(|gone| gone.client.number() == number) {
                        gone.ends = Instant::now();
                    }
                }
            }
        }
    }

    fn adopt(&mut self, mut client: Box<VerbsSession>) -> Result<(), String> {
        // One receive for each message that all clients together may have unanswered.
        while self.receives.clients() <= self.clients.len() + self.leaving.len() {
            let domain = self.host.station.domain();
            self.receives.add_client(domain, self.host.message_bytes).map_err(|e| e.to_string())?;
        }
        let token = mio::Token(self.next);
        self.next += 1;
        let number = client.number();
        client.greet(self.poll.registry(), token)?;
        self.by_token.insert(token, number);
        self.clients.insert(number, client);
        Ok(())
    }

    /// Called when a client's TCP connection is readable, which normally means that the client is
    /// gone.
    fn look_after(&mut self, token: mio::Token) {
        let Some(&number) = self.by_token.get(&token) else { return };
        let gone = self.clients.get_mut(&number).is_none_or(|client| client.has_hung_up());
        if gone {
            self.drop_client(number, "it hung up");
        }
    }

    /// Drops a client, and keeps its queue pair for some time. The queue pair has taken receives
    /// whose completions have not been seen, and may be taking another one. If it were destroyed
    /// now, those receives would be lost and could not be posted again. The device reports when the
    /// queue pair has taken its last receive.
    fn drop_client(&mut self, number: u32, why: &str) {
        let Some(mut client) = self.clients.remove(&number) else { return };
        self.parking.note(number, None);
        tracing::debug!(number, why, "a client is gone");
        self.by_token.retain(|_, of| *of != number);
        client.leave(&self.receives);
        let ends = Instant::now() + if client.is_spent() { Duration::ZERO } else { LAST_RECEIVE_WITHIN };
        self.leaving.push(Leaving { client, ends });
    }

    /// Drops clients that have stopped in the middle of an upload (Q8). Looks now and then.
    fn drop_halfway(&mut self) {
        let (now, half_open) = (Instant::now(), self.host.shared.half_open);
        if now.saturating_duration_since(self.looked) < half_open / 4 {
            return;
        }
        self.looked = now;
        let late = self.clients.iter().filter(|(_, client)| client.uploads_for(now) > half_open);
        let late: Vec<u32> = late.map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.drop_client(number, "it stopped in the middle of an upload"));
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Takes completions. Returns whether there were any.
    fn take_completions(&mut self) -> Result<bool, VerbsError> {
        let mut completions = [Completion::default(); 32];
        let polled_at = (!self.leaving.is_empty()).then(Instant::now);
        let n = self.queue.poll(&mut completions)?;
        for completion in &completions[..n] {
            self.take(completion);
        }
        if let Some(polled_at) = polled_at.filter(|_| n < completions.len()) {
            // Completions from before that time have been taken.
            let leaving = self.leaving.len();
            self.leaving.retain(|gone| gone.ends > polled_at);
            self.count.fetch_sub(leaving - self.leaving.len(), Ordering::Relaxed);
        }
        Ok(n > 0)
    }

    fn take(&mut self, completion: &Completion) {
        let number = completion.qp_num;
        let (is_send, slot) = (completion.wr_id() & SEND != 0, (completion.wr_id() & !SEND) as usize);
        let what = if is_send { "SEND" } else { "RECV" };
        let failed = succeeded(completion, what).err();
        // SAFETY: other than SENDs, only these receives complete here, each once for each post.
        let landed = (!is_send).then(|| unsafe { self.receives.landed(slot, completion.len()) });
        match (self.clients.get_mut(&number), landed, failed) {
            (Some(client), None, None) => {
                if let Err(error) = client.sent(slot) {
                    self.drop_client(number, &error.to_string());
                }
            }
            (Some(client), Some(landed), None) => match client.take(landed) {
                Ok(true) => self.turns.push_back(number),
                Ok(false) => {}
                Err(landed) => {
                    let _ = self.receives.post(landed);
                    self.drop_client(number, "it has more messages unanswered than it may");
                }
            },
            (_, landed, failed) => {
                // A message of a client that is gone, or a failed completion.
                if let Some(landed) = landed {
                    let _ = self.receives.post(landed);
                }
                if let Some(error) = failed {
                    self.drop_client(number, &error.to_string());
                }
            }
        }
    }

    /// Gives the next client its turn. Returns whether there was one.
    fn take_turns(&mut self) -> bool {
        let Some(number) = self.turns.pop_front() else { return false };
        match self.turn(number) {
            Ok(true) => self.turns.push_back(number),
            Ok(false) => {}
            Err(why) => self.drop_client(number, &why),
        }
        true
    }

    /// Answers a client's messages for at most one turn. Returns whether there are more.
    fn turn(&mut self, number: u32) -> Result<bool, String> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(false) };
        let more = client.turn(&self.receives, &self.host.shared, Instant::now() + TURN_TIME);
        self.parking.note(number, client.parked());
        more
    }

    /// Looks at the next request that waits, if something has come for it or its time is over. Returns whether there was
    /// one.
    fn look_at_parked(&mut self) -> bool {
        if self.parking.is_empty() {
            return false;
        }
        let Some(number) = self.parking.next(&self.host.shared.index, Instant::now()) else {
            return false;
        };
        let Some(client) = self.clients.get_mut(&number) else {
            self.parking.note(number, None);
            return true;
        };
        let looked = client.look_again(&self.receives, &self.host.shared, Instant::now() + TURN_TIME);
        self.parking.note(number, client.parked());
        match looked {
            Ok(true) if !self.turns.contains(&number) => self.turns.push_back(number),
            Ok(_) => {}
            Err(why) => self.drop_client(number, &why),
        }
        true
    }
}
