//! The watching thread: one for all clients on shm of this process. It notices when a server is
//! gone, and connects again.
//!
//! | stage of a client | until | then |
//! |---|---|---|
//! | `Linked` | the server hangs up, or its process ends | an attempt |
//! | | it stands in the way: no handle may use it again, and the server has no room | `Pausing` |
//! | `Pausing` | the pause is over | an attempt: it connects and says hello (`Greeting`), or fails (`Pausing`) |
//! | `Greeting` | the server welcomes it | `Linked` |
//! | | it is refused, hung up on, or not answered in time | `Pausing` |
//! | any but a `Linked` that handles use | a handle has connected first | `Linked` |
//!
//! * The thread never waits for one client or one server: it connects without blocking and reads
//!   what is there. It only touches memory that a trusted server handed over (`docs/SECURITY.md`).
//! * It works at a stage without the lock. Meanwhile the stage is `None`, and other threads leave connections in
//!   `offered`. So dropping a client waits for nothing.
//! * A linked socket is watched for its end alone: replies on it wake nobody here. For that reason
//!   this is `epoll` as it is, and not `mio`, whose sockets are always watched for input, too.
//! * The thread starts with the first client and ends with the last one.
//! * A child made by `fork` has no such thread. There, clients of the parent are left alone, and the
//!   first client that connects starts a thread.

use super::link::WatchedLink;
use super::shared::{Greeted, Greeting, ShmShared};
use crate::base::process::Process;
use crate::base::sync::lock_std;
use crate::client::error::{ConnectError, LinkError};
use crate::client::tries::{ATTEMPT_MAX, RETRY_FIRST, RETRY_MAX};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// This process's watching thread, while it has clients.
static WATCHER: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());

/// The number of the alarm among the watched descriptors. Clients have numbers from 1 on.
const ALARM: u64 = 0;
/// Descriptors looked at in one round.
const ROUND: usize = 256;

/// A client's place at the watching thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    number: u64,
    watcher: Arc<Watcher>,
}

/// The watching thread, until this is dropped.
#[derive(Debug)]
struct Watcher {
    list: Arc<WatchList>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread belongs to.
    process: Process,
}

/// The state that the watching thread and the clients share.
#[derive(Debug)]
struct WatchList {
    epoll: OwnedFd,
    /// An eventfd that has the thread look again at what is due.
    alarm: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    clients: FxHashMap<u64, WatchedClient>,
    /// When to look at each client, even if its socket is quiet.
    due: BTreeSet<(Instant, u64)>,
    /// The number of the newest client.
    newest: u64,
    is_over: bool,
}

#[derive(Debug)]
struct WatchedClient {
    shared: Weak<ShmShared>,
    /// `None` while the thread works at it.
    stage: Option<WatchStage>,
    /// A handle's connection, which is watched when the thread has finished the stage.
    offered: Option<WatchedLink>,
}

#[derive(Debug)]
enum WatchStage {
    /// There is a connection.
    Linked(WatchedLink),
    /// There is no connection. The next attempt is due at `until`. If it fails, another one follows after `pause`.
    Pausing { until: Instant, pause: Duration },
    /// The hello was sent. Its answer is due at `until`.
    Greeting { greeting: Greeting, until: Instant, pause: Duration },
}

impl WatchStage {
    /// When to look at it, if its socket is quiet.
    fn until(&self) -> Option<Instant> {
        match self {
            WatchStage::Linked(_) => None,
            WatchStage::Pausing { until, .. } | WatchStage::Greeting { until, .. } => Some(*until),
        }
    }

    /// Its descriptors, and what to watch them for.
    fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, EventFlags)> {
        let (socket, server) = match self {
            WatchStage::Linked(WatchedLink { stream, server }) => {
                (Some((stream.as_fd(), EventFlags::RDHUP)), server.as_ref())
            }
            WatchStage::Greeting { greeting, .. } => {
                (Some((greeting.socket().as_fd(), EventFlags::IN | EventFlags::RDHUP)), None)
            }
            WatchStage::Pausing { .. } => (None, None),
        };
        socket.into_iter().chain(server.map(|server| (server.as_fd(), EventFlags::IN)))
    }

    /// The next stage that is reached without waiting.
    fn advance(self, shared: &ShmShared) -> WatchStage {
        let now = Instant::now();
        match self {
            WatchStage::Linked(link) if link.is_lost() => {
                shared.has_lost(&link.stream);
                WatchStage::attempt(shared, RETRY_FIRST)
            }
            WatchStage::Pausing { until, pause } if now >= until => WatchStage::attempt(shared, pause),
            WatchStage::Greeting { greeting, until, pause } => match shared.receive_welcome(greeting) {
                Ok(Greeted::Linked(link)) => WatchStage::Linked(link),
                Ok(Greeted::Late) => WatchStage::pause(pause),
                Ok(Greeted::NotYet(greeting)) if now < until => {
                    WatchStage::Greeting { greeting, until, pause }
                }
                Ok(Greeted::NotYet(_)) => {
                    let (address, source) =
                        (shared.address().clone(), LinkError::Deadline(shared.attempt_max()));
                    WatchStage::failed(shared, &ConnectError::Link { address, source }, pause)
                }
                Err(error) => WatchStage::failed(shared, &error, pause),
            },
            stage => stage,
        }
    }

    fn attempt(shared: &ShmShared, pause: Duration) -> WatchStage {
        let until = Instant::now() + shared.attempt_max();
        match shared.greet() {
            Ok(greeting) => WatchStage::Greeting { greeting, until, pause },
            Err(error) => WatchStage::failed(shared, &error, pause),
        }
    }

    fn failed(shared: &ShmShared, error: &ConnectError, pause: Duration) -> WatchStage {
        shared.has_not_found(error);
        WatchStage::pause(pause)
    }

    fn pause(pause: Duration) -> WatchStage {
        WatchStage::Pausing { until: Instant::now() + pause, pause: (2 * pause).min(RETRY_MAX) }
    }
}

impl ShmShared {
    /// Longest time that an attempt to connect again waits for its answer.
    fn attempt_max(&self) -> Duration {
        self.options().deadline.min(ATTEMPT_MAX)
    }
}

impl Watch {
    /// Has the thread watch this connection, or look for a server if there is none.
    ///
    /// # Errors
    /// When the process has no descriptor, thread or memory left.
    pub fn new(shared: &Arc<ShmShared>, link: Option<WatchedLink>) -> io::Result<Watch> {
        let watcher = Watcher::of_this_process()?;
        let stage = link.map_or_else(
            || WatchStage::Pausing { until: Instant::now(), pause: RETRY_FIRST },
            WatchStage::Linked,
        );
        let mut watched = lock_std(&watcher.list.watched);
        watched.newest += 1;
        let number = watched.newest;
        watcher.list.enter(&mut watched, number, &stage)?;
        let is_due = stage.until().is_some();
        let client = WatchedClient { shared: Arc::downgrade(shared), stage: Some(stage), offered: None };
        watched.clients.insert(number, client);
        drop(watched);
        if is_due {
            watcher.list.alert();
        }
        Ok(Watch { number, watcher })
    }

    /// Has the thread watch this connection of a handle, unless it has another one that a handle uses or may use. Then
    /// the other one is closed, and the thread stops looking for a server. Returns whether it does.
    pub fn offer(&self, shared: &ShmShared, link: WatchedLink) -> bool {
        let Some(mut watched) = self.watched() else { return false };
        let Some(client) = watched.clients.get_mut(&self.number) else { return false };
        match &client.stage {
            None => client.offered = Some(link),
            Some(stage) if stage.is_used() => return false,
            Some(_) => {
                let stage = client.stage.take();
                let list = &self.watcher.list;
                stage.iter().for_each(|stage| list.leave(&mut watched, self.number, stage));
                let next = list.enter_or_pause(&mut watched, self.number, WatchStage::Linked(link));
                if matches!(next, WatchStage::Linked(_)) {
                    shared.is_back();
                }
                watched.put(self.number, next);
                drop(watched);
                drop(stage);
                list.alert();
            }
        }
        true
    }

    /// Called if the server had no room for another connection. Returns whether this client has, or may soon have, a
    /// connection that no handle can use yet. Closes it if no handle ever will.
    pub fn gives_way(&self) -> bool {
        let Some(mut watched) = self.watched() else { return false };
        let Some(client) = watched.clients.get_mut(&self.number) else { return false };
        match client.stage.take_if(|stage| matches!(stage, WatchStage::Linked(_)) && !stage.is_used()) {
            None => !matches!(client.stage, Some(WatchStage::Linked(_) | WatchStage::Pausing { .. })),
            Some(stage) => {
                let list = &self.watcher.list;
                list.leave(&mut watched, self.number, &stage);
                let next = WatchStage::Pausing { until: Instant::now(), pause: RETRY_FIRST };
                let next = list.enter_or_pause(&mut watched, self.number, next);
                watched.put(self.number, next);
                drop(watched);
                drop(stage);
                list.alert();
                true
            }
        }
    }

    /// `None` in a child made by `fork`.
    fn watched(&self) -> Option<std::sync::MutexGuard<'_, Watched>> {
        self.watcher.is_of_this_process().then(|| lock_std(&self.watcher.list.watched))
    }
}

impl WatchStage {
    /// Whether a handle uses its connection, or may.
    fn is_used(&self) -> bool {
        // The list has one reference, and a conversation has the other one: that of a handle, or
        // the one that the next handle takes. A conversation that was given up does not come back.
        matches!(self, WatchStage::Linked(link) if Arc::strong_count(&link.stream) > 1)
    }
}

impl Drop for Watch {
    /// Closes the connection, unless a handle has it still.
    fn drop(&mut self) {
        let Some(mut watched) = self.watched() else { return };
        let client = watched.clients.remove(&self.number);
        if let Some(stage) = client.as_ref().and_then(|client| client.stage.as_ref()) {
            self.watcher.list.leave(&mut watched, self.number, stage);
        }
        drop(watched);
        drop(client);
    }
}

impl Watched {
    fn put(&mut self, number: u64, stage: WatchStage) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.stage = Some(stage);
        }
    }
}

impl Watcher {
    /// The thread of this process. Starts it if there is none.
    fn of_this_process() -> io::Result<Arc<Watcher>> {
        let mut watcher = lock_std(&WATCHER);
        if let Some(there) = watcher.upgrade().filter(|there| there.is_of_this_process()) {
            return Ok(there);
        }
        let new = Arc::new(Watcher::start()?);
        *watcher = Arc::downgrade(&new);
        Ok(new)
    }

    fn start() -> io::Result<Watcher> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        let list = Arc::new(WatchList { epoll, alarm, watched: Mutex::default() });
        let thread = std::thread::Builder::new().name("oneread-watch".into()).spawn({
            let list = list.clone();
            move || list.watch()
        })?;
        Ok(Watcher { list, thread: Some(thread), process: Process::this() })
    }

    fn is_of_this_process(&self) -> bool {
        self.process.is_this()
    }
}

impl Drop for Watcher {
    /// Waits for the thread, so that a program leaves nothing behind when it ends. That takes microseconds, because the
    /// thread never waits for a server.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.is_of_this_process() {
            // There is no such thread to wait for or to detach, and the alarm would be the parent's.
            return std::mem::forget(thread);
        }
        lock_std(&self.list.watched).is_over = true;
        self.list.alert();
        // (A subscriber to traces that drops a client in this thread must not wait for itself.)
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl WatchList {
    /// The thread's loop.
    fn watch(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(ROUND);
        loop {
            let timeout = {
                let watched = lock_std(&self.watched);
                if watched.is_over {
                    return;
                }
                let due = watched.due.first().map(|(at, _)| at.saturating_duration_since(Instant::now()));
                due.map(|due| Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() })
            };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "waiting failed; servers are watched no longer"),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    ALARM => drop(rustix::io::read(&self.alarm, &mut [0u8; 8])),
                    number => self.look_at(number),
                }
            }
            let now = Instant::now();
            let due: Vec<u64> = lock_std(&self.watched)
                .due
                .iter()
                .take_while(|(at, _)| *at <= now)
                .map(|due| due.1)
                .collect();
            due.into_iter().for_each(|number| self.look_at(number));
        }
    }

    /// Moves a client on as far as possible without waiting. Its socket may be another one by now than the one that had
    /// an event, so only the stage counts.
    fn look_at(&self, number: u64) {
        let mut watched = lock_std(&self.watched);
        let Some(client) = watched.clients.get_mut(&number) else { return };
        let (Some(stage), shared) = (client.stage.take(), client.shared.upgrade()) else { return };
        self.leave(&mut watched, number, &stage);
        drop(watched);
        // Otherwise its last handle is being dropped.
        let Some(shared) = shared else { return };
        let stage = stage.advance(&shared);

        let mut watched = lock_std(&self.watched);
        let Some(client) = watched.clients.get_mut(&number) else { return };
        let (next, left) = match client.offered.take() {
            Some(link) => (WatchStage::Linked(link), Some(stage)),
            None => (stage, None),
        };
        let next = self.enter_or_pause(&mut watched, number, next);
        if left.is_some() && matches!(next, WatchStage::Linked(_)) {
            shared.is_back();
        }
        watched.put(number, next);
        drop(watched);
        if let Some(WatchStage::Linked(link)) = left {
            shared.drop_spare(&link.stream);
        }
    }

    /// Has the thread look at this stage when something happens.
    fn enter(&self, watched: &mut Watched, number: u64, stage: &WatchStage) -> io::Result<()> {
        for (descriptor, what) in stage.descriptors() {
            epoll::add(&self.epoll, descriptor, EventData::new_u64(number), what)?;
        }
        if let Some(until) = stage.until() {
            watched.due.insert((until, number));
        }
        Ok(())
    }

    /// Like `enter`. If the socket cannot be watched, it is given up, and an attempt follows.
    fn enter_or_pause(&self, watched: &mut Watched, number: u64, stage: WatchStage) -> WatchStage {
        if self.enter(watched, number, &stage).is_ok() {
            return stage;
        }
        self.leave(watched, number, &stage);
        let stage = WatchStage::pause(RETRY_MAX);
        let _ = self.enter(watched, number, &stage);
        stage
    }

    /// Undoes `enter`.
    fn leave(&self, watched: &mut Watched, number: u64, stage: &WatchStage) {
        for (descriptor, _) in stage.descriptors() {
            // Not left to closing: a child made by `fork` may have the same descriptor open.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        if let Some(until) = stage.until() {
            watched.due.remove(&(until, number));
        }
    }

    fn alert(&self) {
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::link::is_hung_up;
    use super::super::shared::tests::{greeting, leave, shared as shared_of};
    use super::*;
    use std::os::unix::net::UnixStream;

    /// However long a server is away, it is looked for again after `RETRY_MAX` at the latest.
    #[test]
    fn pauses_are_bounded() {
        let mut pause = RETRY_FIRST;
        for _ in 0..40 {
            let now = Instant::now();
            let WatchStage::Pausing { until, pause: next } = WatchStage::pause(pause) else { unreachable!() };
            assert!(until >= now + pause && next == (2 * pause).min(RETRY_MAX), "{next:?}");
            pause = next;
        }
        assert_eq!(pause, RETRY_MAX);
    }

    /// A client at a watching thread whose work the test does.
    fn watched(shared: &Arc<ShmShared>) -> Watch {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let alarm = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let list = Arc::new(WatchList { epoll, alarm, watched: Mutex::default() });
        let client = WatchedClient { shared: Arc::downgrade(shared), stage: None, offered: None };
        lock_std(&list.watched).clients.insert(1, client);
        let watcher = Arc::new(Watcher { list, thread: None, process: Process::this() });
        Watch { number: 1, watcher }
    }

    /// Ends the thread's work with this stage.
    fn be_at(watch: &Watch, stage: WatchStage) {
        let list = &watch.watcher.list;
        let mut watched = lock_std(&list.watched);
        list.enter(&mut watched, watch.number, &stage).unwrap();
        watched.put(watch.number, stage);
    }

    fn linked_to(watch: &Watch) -> Option<Arc<UnixStream>> {
        let watched = lock_std(&watch.watcher.list.watched);
        match &watched.clients[&watch.number].stage {
            Some(WatchStage::Linked(link)) => {
                assert!(watched.due.is_empty(), "nothing more is due");
                Some(link.stream.clone())
            }
            _ => None,
        }
    }

    fn link() -> (Arc<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Arc::new(ours), theirs)
    }

    fn link_to(stream: &Arc<UnixStream>) -> WatchedLink {
        WatchedLink { stream: stream.clone(), server: None }
    }

    fn pausing() -> WatchStage {
        WatchStage::Pausing { until: Instant::now() + Duration::from_secs(3600), pause: RETRY_MAX }
    }

    fn shared() -> Arc<ShmShared> {
        Arc::new(shared_of(Default::default()))
    }

    /// An attempt to connect waits for its answer until its time is over, and another one follows after a
    /// longer pause. A server that is silent until then is there; one that hangs up or answers nonsense is gone.
    #[test]
    fn attempts_end_in_time() {
        use std::io::Write;
        type Answer = fn(&mut UnixStream);
        let first = |until: Instant, answer: Answer| {
            let shared = shared();
            let (ours, mut theirs) = link();
            answer(&mut theirs);
            let stage = WatchStage::Greeting { greeting: greeting(&ours), until, pause: RETRY_FIRST };
            (stage.advance(&shared), shared.is_served(), theirs)
        };
        let (later, past) = (Instant::now() + Duration::from_secs(3600), Instant::now());
        let (stage, is_served, _theirs) = first(later, |_| {});
        assert!(is_served && matches!(stage, WatchStage::Greeting { until, .. } if until == later));
        let hangs_up: Answer = |theirs| theirs.shutdown(std::net::Shutdown::Both).unwrap();
        let talks: Answer = |theirs| theirs.write_all(&[0xff; 64]).unwrap();
        let (is_there, is_gone) = (true, false);
        let cases: [(Instant, Answer, bool); 3] =
            [(past, |_| {}, is_there), (later, hangs_up, is_gone), (later, talks, is_gone)];
        for (n, (until, answer, expected)) in cases.into_iter().enumerate() {
            let now = Instant::now();
            let (stage, is_served, _theirs) = first(until, answer);
            let WatchStage::Pausing { until, pause } = stage else { panic!("{n}: no pause") };
            assert_eq!((is_served, pause), (expected, 2 * RETRY_FIRST), "{n}");
            assert!(until >= now + RETRY_FIRST, "{n}");
        }
    }

    /// A handle has found the server before the thread: the client is served, and its connection is watched. So
    /// it is if the thread was at work just then, also if that had found the server meanwhile: then the
    /// thread's connection is not needed any more. A connection that handles use stays.
    #[test]
    fn a_handle_connects_before_the_thread() {
        let shared = shared();
        let ((found, server), (lost, _)) = (link(), link());
        // The thread pauses.
        let watch = watched(&shared);
        be_at(&watch, pausing());
        shared.has_lost(&lost);
        assert!(!shared.is_served());
        assert!(watch.offer(&shared, link_to(&found)) && shared.is_served());
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &found)));
        // It is used, so it stays.
        let (other, _peer) = link();
        assert!(!watch.offer(&shared, link_to(&other)));
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &found)));
        // It is used no more: it gives way to another one, and is closed.
        drop(found);
        assert!(watch.offer(&shared, link_to(&other)));
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &other)));
        assert!(is_hung_up(&server));
        // The thread is at work, and finds nobody.
        let watch = watched(&shared);
        shared.has_lost(&lost);
        assert!(
            watch.offer(&shared, link_to(&other)) && !shared.is_served(),
            "the thread sees it when it is done"
        );
        assert!(linked_to(&watch).is_none());
        be_at(&watch, pausing());
        watch.watcher.list.look_at(watch.number);
        assert!(shared.is_served());
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &other)));
        // The thread is at work, and finds the server, too.
        let watch = watched(&shared);
        shared.has_lost(&lost);
        assert!(watch.offer(&shared, link_to(&other)));
        let (own, peer) = link();
        leave(&shared, &own);
        be_at(&watch, WatchStage::Linked(link_to(&own)));
        drop(own);
        watch.watcher.list.look_at(watch.number);
        assert!(shared.is_served() && !shared.has_spare(), "one connection is enough");
        assert!(is_hung_up(&peer));
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &other)));
        // The next look finds nothing new.
        watch.watcher.list.look_at(watch.number);
        assert!(linked_to(&watch).is_some_and(|link| Arc::ptr_eq(&link, &other)));
    }

    /// A connection that no handle can use gives way where the server has no room, and one that is under way is
    /// waited for. One that is used does not, nor is one waited for that nobody makes.
    #[test]
    fn a_useless_connection_gives_way() {
        let shared = shared();
        let watch = watched(&shared);
        assert!(watch.gives_way(), "the thread is at work");
        be_at(&watch, pausing());
        assert!(!watch.gives_way());
        let ((used, server), list) = (link(), &watch.watcher.list);
        assert!(watch.offer(&shared, link_to(&used)));
        assert!(!watch.gives_way() && !is_hung_up(&server));
        drop(used);
        let is_alerted = || rustix::io::read(&list.alarm, &mut [0u8; 8]).is_ok();
        assert!(is_alerted() && !is_alerted(), "until now");
        assert!(watch.gives_way() && is_hung_up(&server));
        assert!(is_alerted(), "the thread looks again");
        let due = lock_std(&list.watched).due.first().copied();
        assert!(due.is_some_and(|(at, number)| at <= Instant::now() && number == watch.number), "{due:?}");
        assert!(!watch.gives_way(), "there is none any more");
        assert!(shared.is_served(), "the server is not gone for that");
    }

    /// Of a client that is dropped, nothing is due any more: else the thread would never sleep again.
    #[test]
    fn a_dropped_client_leaves_nothing() {
        let shared = shared();
        let (linked, _peer) = link();
        for stage in [pausing(), WatchStage::Linked(link_to(&linked))] {
            let watch = watched(&shared);
            be_at(&watch, stage);
            let list = watch.watcher.list.clone();
            drop(watch);
            let watched = lock_std(&list.watched);
            assert!(watched.clients.is_empty() && watched.due.is_empty(), "{watched:?}");
        }
    }
}
