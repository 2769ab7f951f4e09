//! The state that the handles of one client share, with each other and with the watching thread.

use super::attachment::Attachment;
use super::connection::ShmConnection;
use super::link::{
    HandedMemory, SocketLink, WatchedLink, hello, is_hung_up, link_failed, open_socket, process_of,
};
use crate::address::Address;
use crate::base::clock::Clock;
use crate::base::process::{self, Process};
use crate::base::sync::lock_std;
use crate::client::error::{ConnectError, LinkError};
use crate::client::options::ClientOptions;
use crate::client::owning::OwnOwner;
use crate::hints::SharedHints;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The state that the handles of one client share.
#[derive(Debug)]
pub(super) struct ShmShared {
    process: Process,
    /// The server's address, for messages.
    address: Address,
    /// The server's socket.
    socket: PathBuf,
    options: ClientOptions,
    /// The owner as which the client puts.
    owner: Option<OwnOwner>,
    hints: SharedHints,
    clock: Clock,
    /// The newest mapping.
    newest: Mutex<Arc<Attachment>>,
    /// The version of `newest`, stored under its lock. A hint: a handle with another version takes
    /// the lock.
    version: AtomicU64,
    /// When the server was found to be gone, by `clock`. 0 while it is there.
    gone_ns: AtomicU64,
    /// The watched connection, until a handle takes it for its requests. So a client with one
    /// handle has one connection.
    spare: Mutex<Option<ShmConnection>>,
}

impl ShmShared {
    /// `spare`: the connection over which the region came. Without one, no server is there.
    pub fn new(
        address: Address,
        socket: &Path,
        options: ClientOptions,
        attached: Arc<Attachment>,
        spare: Option<ShmConnection>,
    ) -> ShmShared {
        let clock = Clock::System;
        let gone_ns = if spare.is_some() { 0 } else { clock.now_ns().max(1) };
        ShmShared {
            process: Process::this(),
            address,
            socket: socket.into(),
            hints: SharedHints::new(options.hint_bytes.unwrap_or(0)),
            owner: OwnOwner::of(&options),
            options,
            clock,
            newest: Mutex::new(attached),
            version: AtomicU64::new(0),
            gone_ns: AtomicU64::new(gone_ns),
            spare: Mutex::new(spare),
        }
    }

    pub fn process(&self) -> Process {
        self.process
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The owner as which the client puts.
    pub fn owner(&self) -> Option<&OwnOwner> {
        self.owner.as_ref()
    }

    pub fn hints(&self) -> &SharedHints {
        &self.hints
    }

    #[inline]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The version of the newest mapping that this thread has seen. A handle with another one looks for it
    /// ([`ShmShared::newest`]).
    pub fn version(&self) -> u64 {
        // Relaxed: only a hint to take the lock.
        self.version.load(Ordering::Relaxed)
    }

    /// When the server was found to be gone. 0 while it is there.
    pub fn gone_ns(&self) -> u64 {
        self.gone_ns.load(Ordering::Relaxed)
    }

    /// Looks for a server, by `find`. Also returns the version of the mapping before that: [`ShmShared::publish`] needs
    /// it to notice that another server was found meanwhile.
    pub fn finding<R>(&self, find: impl FnOnce() -> R) -> (SeenVersion, R) {
        let seen = SeenVersion(self.newest().version());
        (seen, find())
    }

    /// Records that a server is there, with this region. If the region is new, every handle
    /// switches to it at its next GET. `seen` is the version before that server was looked for.
    /// Returns `false` if another region was published since: which server came later is then
    /// unknown, and the caller must look again.
    pub fn publish(&self, seen: SeenVersion, attachment: Attachment, who: Publisher) -> bool {
        let mut newest = lock_std(&self.newest);
        if attachment.identity() != newest.identity() {
            if newest.version() != seen.0 {
                return false;
            }
            let version = seen.0 + 1;
            *newest = Arc::new(attachment.published(version));
            // Relaxed: a handle that sees it takes the lock, which orders what was stored under it.
            self.version.store(version, Ordering::Relaxed);
        }
        match who {
            Publisher::Watcher => self.gone_ns.store(0, Ordering::Relaxed),
            // The server was there just now. The watcher will tell whether it still is.
            Publisher::Handle if self.gone_ns.load(Ordering::Relaxed) != 0 => self.is_gone(),
            Publisher::Handle => {}
        }
        process::tell_news();
        true
    }

    /// Starts the lease.
    fn is_gone(&self) {
        self.gone_ns.store(self.clock.now_ns().max(1), Ordering::Relaxed);
        process::tell_news();
    }

    pub fn newest(&self) -> Arc<Attachment> {
        lock_std(&self.newest).clone()
    }

    /// The watched connection, if no handle uses it, with this deadline.
    pub fn take_spare(&self, deadline: Instant) -> Option<ShmConnection> {
        let spare = lock_std(&self.spare).take().filter(|spare| !is_hung_up(spare.stream()))?;
        Some(spare.passed_on(self.options.deadline, deadline))
    }

    /// Whether the watched connection is left to the next handle that has something to ask.
    pub fn has_spare(&self) -> bool {
        lock_std(&self.spare).is_some()
    }

    /// Keeps a connection for the next handle that has something to ask, if it is the watched one.
    pub fn keep_spare(&self, connection: ShmConnection) {
        let mut spare = lock_std(&self.spare);
        // The watch has the other reference.
        if spare.is_none() && Arc::strong_count(connection.stream()) > 1 {
            *spare = Some(connection);
        }
    }

    // ---- for the watching thread, which must not wait ---------------------------------------------

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Leaves this connection to no handle.
    pub fn drop_spare(&self, link: &Arc<UnixStream>) {
        let spare = lock_std(&self.spare).take_if(|spare| Arc::ptr_eq(spare.stream(), link));
        drop(spare);
    }

    /// Records that the server has closed the watched connection.
    pub fn has_lost(&self, link: &Arc<UnixStream>) {
        self.drop_spare(link);
        self.is_gone();
        // A handle may be waiting for an answer over it, and a child of the server's may keep it open.
        let _ = link.shutdown(std::net::Shutdown::Both);
        tracing::warn!(address = %self.address, "the server is gone; reconnecting in the background");
    }

    /// Records that a server is there, whose region is already known.
    pub fn is_back(&self) {
        // Under the lock, because `publish` looks and stores.
        let _newest = lock_std(&self.newest);
        self.gone_ns.store(0, Ordering::Relaxed);
    }

    /// Records that an attempt to connect failed.
    pub fn has_not_found(&self, error: &ConnectError) {
        tracing::debug!(error = error as &dyn std::error::Error, "not yet");
        // A client that gave up its connection to make room (`Watch::gives_way`) finds out here
        // whether the server is gone. One that refuses or is silent is there.
        let is_there = matches!(
            error,
            ConnectError::TurnedAway { .. } | ConnectError::Link { source: LinkError::Deadline(_), .. }
        );
        if !is_there && self.is_served() {
            self.is_gone();
        }
    }

    pub fn is_served(&self) -> bool {
        self.gone_ns.load(Ordering::Relaxed) == 0
    }

    /// Connects and says hello.
    pub fn greet(&self) -> Result<Greeting, ConnectError> {
        let (allowed, now) = (Duration::ZERO, Instant::now());
        let (seen, stream) = self
            .finding(|| open_socket(&self.address, &self.socket, &self.options.server_uids, allowed, now));
        let stream = stream?;
        let server = process_of(&stream);
        let mut link = SocketLink::new(Arc::new(stream), allowed);
        // An empty socket takes it. If the server has hung up, reading will tell.
        let _ = link.send(&hello(), now);
        Ok(Greeting { link, server, handed: HandedMemory::default(), seen })
    }

    /// Reads what has come of the answer to a hello. If it is all there, maps the region.
    pub fn receive_welcome(&self, mut greeting: Greeting) -> Result<Greeted, ConnectError> {
        let Greeting { link, handed, seen, .. } = &mut greeting;
        let reply = link.receive_memory(handed).and_then(|()| link.memory_reply());
        let Some(reply) = reply.map_err(|e| link_failed(&self.address, e))? else {
            return Ok(Greeted::NotYet(greeting));
        };
        let handed = std::mem::take(handed);
        let attachment = Attachment::new(&self.address, &self.options.server_uids, reply, handed)?;
        let geometry = attachment.geometry().clone();
        if !self.publish(*seen, attachment, Publisher::Watcher) {
            return Ok(Greeted::Late);
        }
        let linked = WatchedLink { stream: greeting.link.stream().clone(), server: greeting.server };
        let connection = ShmConnection::new(greeting.link, geometry, Instant::now());
        *lock_std(&self.spare) = Some(connection.staying(self.owner()));
        tracing::info!(address = %self.address, "reconnected");
        Ok(Greeted::Linked(linked))
    }
}

/// A connection that waits for the answer to its hello.
#[derive(Debug)]
pub(super) struct Greeting {
    link: SocketLink,
    server: Option<OwnedFd>,
    /// The region's descriptor, if it has come.
    handed: HandedMemory,
    seen: SeenVersion,
}

/// The version of the newest mapping before a server was looked for ([`ShmShared::finding`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenVersion(u64);

impl Greeting {
    pub fn socket(&self) -> &UnixStream {
        self.link.stream()
    }
}

/// The result of a [`Greeting`].
#[derive(Debug)]
pub(super) enum Greeted {
    /// There is a server, and its region is known.
    Linked(WatchedLink),
    /// The answer is not yet whole.
    NotYet(Greeting),
    /// Another server was found meanwhile ([`ShmShared::publish`]).
    Late,
}

/// Who found the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publisher {
    /// The watcher, which also notices when the server is gone.
    Watcher,
    /// A handle that made a change.
    Handle,
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::super::attachment::tests::{attachment, attachment_of};
    use super::*;
    use crate::wire::Refusal;
    use std::io;

    /// What the handles of a client share whose server is not there, with a manual clock.
    pub(in crate::client::shm) fn shared(options: ClientOptions) -> ShmShared {
        shared_at(Path::new("/nowhere"), options)
    }

    /// Like `shared`, for a server with this socket.
    pub(in crate::client::shm) fn shared_at(socket: &Path, options: ClientOptions) -> ShmShared {
        let (address, newest) = (Address::Shm(socket.into()), Arc::new(attachment(0)));
        let shared = ShmShared::new(address, socket, options, newest, None);
        ShmShared { clock: Clock::manual(), gone_ns: AtomicU64::new(0), ..shared }
    }

    impl ShmShared {
        /// Says since when the server is gone, or with 0 that it is there.
        pub(in crate::client::shm) fn gone_since(&self, ns: u64) {
            self.gone_ns.store(ns, Ordering::Relaxed);
            process::tell_news();
        }
    }

    /// Leaves this connection to the next handle.
    pub(in crate::client::shm) fn leave(shared: &ShmShared, stream: &Arc<UnixStream>) {
        let link = SocketLink::new(stream.clone(), Duration::ZERO);
        let geometry = shared.newest().geometry().clone();
        *lock_std(&shared.spare) = Some(ShmConnection::new(link, geometry, Instant::now()));
    }

    /// A connection that waits for the answer to its hello.
    pub(in crate::client::shm) fn greeting(stream: &Arc<UnixStream>) -> Greeting {
        let link = SocketLink::new(stream.clone(), Duration::ZERO);
        Greeting { link, server: None, handed: HandedMemory::default(), seen: SeenVersion(0) }
    }

    /// A connection that is left to the next handle is taken once, by its time, and not if the server has
    /// closed it. The connection that the server has closed takes no other one with it.
    #[test]
    fn only_a_good_connection_is_taken() {
        let bound = Duration::from_secs(3);
        let shared = shared(ClientOptions { deadline: bound, ..ClientOptions::default() });
        let until = Instant::now() + Duration::from_secs(60);
        assert!(shared.take_spare(until).is_none());
        let ((ours, theirs), (other, peer)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let [ours, other] = [ours, other].map(Arc::new);
        leave(&shared, &ours);
        let taken = shared.take_spare(until).unwrap();
        assert!(Arc::ptr_eq(taken.stream(), &ours));
        assert_eq!((taken.allowed(), taken.asked_until()), (bound, until));
        assert!(shared.take_spare(until).is_none(), "it is taken");
        leave(&shared, &ours);
        shared.drop_spare(&other);
        assert!(shared.has_spare(), "that was another one");
        shared.has_lost(&other);
        assert!(shared.has_spare() && !shared.is_served());
        assert!(is_hung_up(&peer), "a child of the server's may keep the other end");
        shared.drop_spare(&ours);
        assert!(!shared.has_spare());
        drop(theirs);
        leave(&shared, &ours);
        assert!(shared.take_spare(until).is_none(), "it is closed");
        // What a handle leaves goes to the next one if it is watched, and if there is none yet.
        let connection = |stream: &Arc<UnixStream>| {
            let link = SocketLink::new(stream.clone(), bound);
            ShmConnection::new(link, shared.newest().geometry().clone(), until)
        };
        let (other, _peer) = UnixStream::pair().unwrap();
        let other = Arc::new(other);
        shared.keep_spare(connection(&other));
        shared.keep_spare(connection(&ours));
        assert!(Arc::ptr_eq(shared.take_spare(until).unwrap().stream(), &other), "the first one stays");
    }

    /// An attempt to connect that fails says that the server is gone, unless it was there and did not take the
    /// client, or was silent. The lease runs from the first time.
    #[test]
    fn failed_attempts_say_whether_the_server_is_gone() {
        let address = || Address::Shm("/nowhere".into());
        let link = |source| ConnectError::Link { address: address(), source };
        for (error, is_there) in [
            (ConnectError::TurnedAway { address: address(), source: Refusal::Stopping }, true),
            (ConnectError::TurnedAway { address: address(), source: Refusal::ServerFull { max: 1 } }, true),
            (link(LinkError::Deadline(Duration::ZERO)), true),
            (link(LinkError::HungUp), false),
            (link(LinkError::Unexpected), false),
            (ConnectError::NotThere { address: address(), source: io::ErrorKind::NotFound.into() }, false),
            (ConnectError::Refused { address: address(), theirs: 1 }, false),
            (ConnectError::Stranger { address: address(), uid: 1 }, false),
        ] {
            let shared = shared(ClientOptions::default());
            shared.has_not_found(&error);
            assert_eq!(shared.is_served(), is_there, "{error}");
            assert_eq!(
                shared.gone_ns.load(Ordering::Relaxed),
                u64::from(!is_there),
                "on a clock that reads 0"
            );
            shared.gone_ns.store(7, Ordering::Relaxed);
            shared.clock.advance(Duration::from_nanos(100));
            shared.has_not_found(&error);
            assert_eq!(shared.gone_ns.load(Ordering::Relaxed), 7, "{error}");
            shared.is_back();
            assert!(shared.is_served());
        }
    }

    /// A handle that found a server, and slept until that server was gone and the next one known,
    /// does not publish the first one.
    #[test]
    fn a_late_handle_does_not_publish() {
        let shared = ShmShared { gone_ns: AtomicU64::new(7), ..shared(ClientOptions::default()) };
        let known = || {
            let newest = shared.newest();
            assert_eq!(newest.version(), shared.version.load(Ordering::Relaxed), "handles look at this one");
            (newest.identity().1, newest.version())
        };
        assert!(shared.publish(SeenVersion(0), attachment(2), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((2, 1), 0));
        assert!(!shared.publish(SeenVersion(0), attachment(1), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // The region that is already known may be published late.
        assert!(shared.publish(SeenVersion(0), attachment(2), Publisher::Handle));
        assert_eq!(known(), (2, 1));
        // A handle says that a server was there just now, not that it still is: the lease begins
        // again.
        shared.gone_ns.store(7, Ordering::Relaxed);
        shared.clock.advance(Duration::from_nanos(100));
        assert!(shared.publish(SeenVersion(1), attachment(3), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 100));
        // The watcher finds the same region: the server is there, and no lease runs.
        assert!(shared.publish(SeenVersion(2), attachment(3), Publisher::Watcher));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((3, 2), 0));
        // While the server is not known to be gone, a handle begins no lease.
        assert!(shared.publish(SeenVersion(2), attachment(4), Publisher::Handle));
        assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 0));
        // A late publisher changes nothing.
        for who in [Publisher::Watcher, Publisher::Handle] {
            shared.gone_ns.store(7, Ordering::Relaxed);
            for seen in [2, 4] {
                assert!(!shared.publish(SeenVersion(seen), attachment(5), who));
                assert_eq!((known(), shared.gone_ns.load(Ordering::Relaxed)), ((4, 3), 7), "{who:?}");
            }
        }
        // A region on another device, or of another server, is a different one.
        for (at, other) in [(0, (2, 4, 1)), (1, (2, 4, 2))] {
            assert!(shared.publish(SeenVersion(3 + at), attachment_of(other), Publisher::Watcher));
            assert_eq!(known(), (4, 4 + at));
        }
        // A lease begins also on a clock that reads 0.
        let new = ShmShared { clock: Clock::manual(), gone_ns: AtomicU64::new(7), ..shared };
        assert!(new.publish(SeenVersion(5), attachment(6), Publisher::Handle));
        assert_eq!(new.gone_ns.load(Ordering::Relaxed), 1);
    }

    /// Another server is found while one is looked for: nobody knows which of the two came later.
    #[test]
    fn a_server_found_meanwhile_is_noticed() {
        let shared = shared(ClientOptions::default());
        let (late, seen) = shared.finding(|| {
            let (seen, found) = shared.finding(|| attachment(1));
            assert!(shared.publish(seen, found, Publisher::Watcher));
            seen
        });
        for seen in [late, seen] {
            assert!(!shared.publish(seen, attachment(2), Publisher::Handle));
        }
        let (seen, found) = shared.finding(|| attachment(2));
        assert!(shared.publish(seen, found, Publisher::Handle));
    }
}
