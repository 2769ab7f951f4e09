//! The client's path to a server on this host: the mapped region, and a Unix socket for requests.

use super::attachment::{Attachment, attach, open_file};
use super::connection::ShmConnection;
use super::link::{WatchedLink, link_failed};
use super::shared::{Publisher, ShmShared};
use super::watch::Watch;
use crate::address::Address;
use crate::base::process::{self, Process};
use crate::base::times::TimeCounts;
use crate::client::error::{AskError, ConnectError, GetError, LinkError};
use crate::client::handle::{Deadline, Handle, Posted, broke_off};
use crate::client::options::{ClientOptions, RequestPath};
use crate::client::owning::OwnOwner;
use crate::client::stats::ClientStats;
use crate::client::tries::{Failed, Tries};
use crate::fabric::shm::Shm;
use crate::faults::{Rule, by_rule};
use crate::files;
use crate::hints::Hints;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::geometry::Geometry;
use crate::layout::life::tick_at;
use crate::outcome::{GetCounts, ReadError};
use crate::reader::{Answers, DirectAnswers, KnownEntries, Noting, Reader};
use crate::region::Region;
use crate::region::table_clock;
use crate::sink::{LivedSink, Sink};
use crate::wire::{self, Refusal, Reply, Request};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most requests of a batch that go through a mailbox ([`RequestPath::Auto`]). Longer batches cost
/// less as one message: `docs/BENCHMARKS.md`.
const MAILBOX_BATCH: usize = 32;

/// A number of news that never occurs: the handle looks again at its next GET.
const UNHEARD: u64 = u64::MAX;

/// How a handle's GETs begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GetWay {
    /// With a glance, which nearly always suffices.
    Glances,
    /// With a look, whose result is noted for the server.
    Notes,
    /// With hints.
    Hinted,
    /// With a clock: the time is taken, or the GET is exact.
    Otherwise,
}

impl GetWay {
    fn of(options: &ClientOptions, hints: &Option<Arc<Hints>>, attached: &Attachment) -> GetWay {
        match hints {
            _ if options.exact_expiry || options.timed => GetWay::Otherwise,
            None if attached.touches().is_some() => GetWay::Notes,
            None => GetWay::Glances,
            Some(_) => GetWay::Hinted,
        }
    }
}

/// One thread's path to the server.
#[derive(Debug)]
pub(in crate::client) struct ShmHandle {
    shared: Arc<ShmShared>,
    attached: Arc<Attachment>,
    /// Hints of the table attached to, if the client wants any.
    hints: Option<Arc<Hints>>,
    way: GetWay,
    /// How long GETs of one key took, if that is asked for.
    times: Option<Box<TimeCounts>>,
    /// Directory entries of that table, if it grows.
    entries: KnownEntries,
    conversation: Option<ShmConnection>,
    reattached: u64,
    /// This process's word, which goes up with news of any server. `heard` is its value when the server was last seen
    /// to be there, with this region.
    news: &'static AtomicU64,
    heard: u64,
    /// The watch ends with the last handle. `None` in tests without a server.
    watch: Option<Arc<Watch>>,
}

impl ShmHandle {
    pub fn connect(socket: &Path, options: &ClientOptions) -> Result<ShmHandle, ConnectError> {
        let address = Address::Shm(socket.into());
        let mut options = options.clone();
        options.server_uids.extend(files::appointed(socket));
        let (link, attachment) = match attach(&address, socket, &options.server_uids, options.deadline) {
            Ok((link, server, attachment)) => (Some((link, server)), attachment),
            Err(error) => (None, open_file(&address, &options, error)?),
        };
        let (link, server) = link.unzip();
        let attached = Arc::new(attachment);
        let watched = link
            .as_ref()
            .zip(server)
            .map(|(link, server)| WatchedLink { stream: link.stream().clone(), server });
        let spare = link.map(|link| ShmConnection::new(link, attached.geometry().clone(), Instant::now()));
        let shared = ShmShared::new(address.clone(), socket, options.clone(), attached.clone(), spare);
        let shared = Arc::new(shared);
        let is_linked = watched.is_some();
        let watch = Watch::new(&shared, watched).map_err(|e| link_failed(&address, LinkError::Os(e)))?;
        let (watch, mut hints, entries) = (Some(Arc::new(watch)), None, KnownEntries::default());
        shared.hints().refresh(attached.geometry(), &mut hints);
        let (news, heard, conversation) = (process::word(), UNHEARD, None);
        let (way, times) = (GetWay::of(&options, &hints, &attached), options.timed.then(Box::default));
        let mut handle = ShmHandle {
            shared,
            attached,
            hints,
            way,
            times,
            entries,
            conversation,
            reattached: 0,
            news,
            heard,
            watch,
        };
        if (options.requests == RequestPath::Mailbox || options.owner.is_some()) && is_linked {
            // Fails here if the server has no mailboxes, or refuses the owner.
            handle.prepare(&[], Instant::now() + options.deadline)?;
        }
        Ok(handle)
    }

    pub fn region(&self) -> &Region {
        self.attached.region()
    }

    /// Tells the server how many GETs this client has made. The handle has this number.
    pub fn tell_gets(&self, handle: usize, counts: GetCounts) {
        if let Some(map) = self.attached.get_counts() {
            map.add(handle, counts);
        }
    }

    /// The owner as which the client puts.
    pub fn owner(&self) -> Option<&OwnOwner> {
        self.shared.owner()
    }

    /// Whether a server was there when the watcher last looked.
    pub fn is_served(&self) -> bool {
        self.shared.is_served()
    }

    // ---- GETs -----------------------------------------------------------------------------------

    /// Runs GETs, and adds their counts to `stats`.
    #[inline]
    pub fn read<R>(
        &mut self,
        stats: &mut ClientStats,
        get: impl FnOnce(&mut Reader<'_, Shm<'_>>) -> Result<R, ReadError>,
    ) -> Result<R, GetError> {
        self.attach_newest()?;
        let (region, geometry) = (self.attached.region(), &**self.attached.geometry());
        let (clock, limits) = (self.shared.clock().clone(), self.shared.options().limits);
        let mut reader = Reader::new(Shm::new(region, geometry), geometry, clock, limits);
        if let Some(hints) = &self.hints {
            reader.set_hints(hints);
        }
        if geometry.grows() {
            self.entries.keep(geometry);
            reader.swap_entries(&mut self.entries);
        }
        let result = get(&mut reader);
        stats.get += reader.stats();
        stats.read += reader.read_counts();
        if self.hints.is_some() {
            stats.hints += reader.hint_counts();
        }
        if geometry.grows() {
            reader.swap_entries(&mut self.entries);
        }
        Ok(result?)
    }

    /// A GET. Nearly always a direct look suffices, and no reader is needed.
    #[inline]
    pub fn get_into<S: Sink>(
        &mut self,
        stats: &mut ClientStats,
        direct: &mut DirectAnswers,
        key: &[u8],
        value: &mut S,
    ) -> Result<S::Outcome, GetError> {
        self.attach_newest()?;
        let (region, geometry) = (self.attached.region(), &**self.attached.geometry());
        if matches!(self.way, GetWay::Glances | GetWay::Notes) && geometry.can_glance(key) {
            let hashed = geometry.hashed(key);
            if let Some(found) = Shm::glance_from(region, geometry, hashed, value) {
                if found && let Some(touches) = self.attached.touches() {
                    touches.note(hashed.first());
                }
                direct.count(found, geometry);
                return Ok(value.outcome(found));
            }
        }
        self.get_otherwise(stats, key, value)
    }

    /// A GET for which a glance does not suffice.
    #[inline(never)]
    fn get_otherwise<S: Sink>(
        &mut self,
        stats: &mut ClientStats,
        key: &[u8],
        value: &mut S,
    ) -> Result<S::Outcome, GetError> {
        let hits = stats.get.hits;
        let outcome = match self.way {
            GetWay::Otherwise => self.get_specially(stats, key, value),
            _ => self.read(stats, |reader| reader.get_otherwise(key, value)),
        }?;
        if stats.get.hits > hits {
            self.attached.note(key);
        }
        Ok(outcome)
    }

    /// A GET that takes the time, or is exact.
    #[cold]
    #[inline(never)]
    fn get_specially<S: Sink>(
        &mut self,
        stats: &mut ClientStats,
        key: &[u8],
        value: &mut S,
    ) -> Result<S::Outcome, GetError> {
        let begun = self.times.is_some().then(Instant::now);
        let outcome = match self.shared.options().exact_expiry {
            true => self.get_exact(stats, key, value).map(|found| value.outcome(found)),
            false => self.read(stats, |reader| reader.get_otherwise(key, value)),
        };
        if let (Some(times), Some(begun)) = (&mut self.times, begun) {
            times.add(begun.elapsed());
        }
        outcome
    }

    /// A GET that takes entries which have come to their end for absent (V4). Returns whether it found one.
    fn get_exact<S: Sink>(
        &mut self,
        stats: &mut ClientStats,
        key: &[u8],
        value: &mut S,
    ) -> Result<bool, GetError> {
        let mut judged = LivedSink::new(&mut *value);
        let is_there = self.read(stats, |reader| reader.get_otherwise(key, &mut judged))?;
        let Some(life) = judged.life.filter(|life| is_there && life.expiry != 0) else {
            return Ok(is_there);
        };
        // After the look: an entry that had ended when the GET began has ended now.
        let (region, clock) = (self.attached.region(), self.shared.clock());
        let now = tick_at(table_clock::since_ns(table_clock::epoch_ns(region, clock), clock));
        let has_ended = by_rule(Rule::ReaderExpiry, life.has_ended(now), false);
        if has_ended {
            value.put_none();
        }
        Ok(!has_ended)
    }

    /// Switches to a newer region if there is one. Fails when the region may no longer be read, or not by this
    /// process.
    #[inline]
    fn attach_newest(&mut self) -> Result<(), GetError> {
        // Relaxed: only a hint to look again. In a child made by `fork` it is another word.
        let is_heard = self.news.load(Ordering::Relaxed) == self.heard;
        if is_heard && State::is_serving(self.attached.region().load(STATE_WORD)) {
            return Ok(());
        }
        self.look_again()
    }

    #[cold]
    fn look_again(&mut self) -> Result<(), GetError> {
        if !self.shared.process().is_this() {
            return Err(ConnectError::Forked { address: self.shared.address().clone() }.into());
        }
        // Acquire: pairs with `tell_news`. Stores before these news are seen below.
        let news = self.news.load(Ordering::Acquire);
        if self.shared.version() != self.attached.version() {
            self.reattach();
        }
        let gone_ns = self.shared.gone_ns();
        let state = self.attached.region().load(STATE_WORD);
        if gone_ns == 0 && State::is_serving(state) {
            self.heard = news;
            return Ok(());
        }
        self.heard = UNHEARD;
        self.check_lease(gone_ns, State::from_word(state))
    }

    fn reattach(&mut self) {
        self.attached = self.shared.newest();
        self.shared.hints().refresh(self.attached.geometry(), &mut self.hints);
        self.way = GetWay::of(self.shared.options(), &self.hints, &self.attached);
        // The region may be another table's, or the same in another state.
        self.entries = KnownEntries::default();
        self.reattached += 1;
    }

    #[cold]
    fn check_lease(&mut self, gone_ns: u64, state: State) -> Result<(), GetError> {
        let gone = |source| Err(GetError::ServerGone { address: self.shared.address().clone(), source });
        if state.phase == Phase::Retired {
            return gone(LinkError::Retired);
        }
        if self.attached.is_file() {
            return Ok(());
        }
        let lease = self.shared.options().lease;
        let since = Duration::from_nanos(self.shared.clock().now_ns().saturating_sub(gone_ns));
        if gone_ns != 0 && since >= lease {
            return gone(LinkError::LeaseEnded(lease));
        }
        Ok(())
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Whether these requests go through a mailbox, if there is one, to a table of this geometry.
    fn wants_mailbox(&self, requests: &[Request<'_>], geometry: &Geometry) -> bool {
        let is_wanted = match self.shared.options().requests {
            RequestPath::Auto => requests.len() <= MAILBOX_BATCH,
            path => path == RequestPath::Mailbox,
        };
        is_wanted && requests.iter().all(|request| wire::fits_cells(request, geometry))
    }

    /// Whether there is a connection that the server has not closed ([`ShmConnection::is_linked`]).
    fn is_linked(&mut self, requests: &[Request<'_>], deadline: Instant) -> bool {
        let Some(conversation) = self.conversation.as_ref().filter(|it| !it.is_posted()) else {
            return false;
        };
        let wants_mailbox = self.wants_mailbox(requests, conversation.geometry());
        let may_trust = wants_mailbox && self.shared.is_served();
        let conversation = self.conversation.as_mut();
        conversation.is_some_and(|conversation| conversation.is_linked(requests, may_trust, deadline))
    }

    /// Takes the client's connection for changes, or opens another one.
    fn open_conversation(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        let mut makes_way = false;
        loop {
            if self.takes_spare(deadline) {
                return Ok(());
            }
            match self.connect_again(deadline) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_full(&error) && Instant::now() < deadline => {
                    let watch = self.watch.as_ref();
                    makes_way |= watch.is_some_and(|watch| watch.gives_way());
                    if !makes_way && !self.shared.has_spare() {
                        return Err(error);
                    }
                    // Waits until the server notices that there is room, or the thread has connected.
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens a connection for changes. Returns `false` if another handle, or the watching thread,
    /// has found another server meanwhile.
    fn connect_again(&mut self, deadline: Instant) -> Result<bool, ConnectError> {
        let within = deadline.saturating_duration_since(Instant::now());
        let shared = &self.shared;
        let (seen, found) = shared
            .finding(|| attach(shared.address(), shared.socket(), &shared.options().server_uids, within));
        let (link, server, attachment) = found?;
        let geometry = attachment.geometry().clone();
        if attachment.identity() != self.attached.identity() {
            // A new server, maybe with a new region. GETs must read where changes go.
            if !shared.publish(seen, attachment, Publisher::Handle) {
                return Ok(false);
            }
            self.reattach();
        }
        let offered = WatchedLink { stream: link.stream().clone(), server };
        let is_watched = self.watch.as_ref().is_some_and(|watch| watch.offer(&self.shared, offered));
        // If the thread has connected meanwhile, that connection is enough.
        if is_watched || !self.takes_spare(deadline) {
            self.conversation = Some(ShmConnection::new(link, geometry, deadline));
        }
        Ok(true)
    }

    /// Takes the client's connection, if no handle uses it.
    fn takes_spare(&mut self, deadline: Instant) -> bool {
        let Some(spare) = self.shared.take_spare(deadline) else { return false };
        // GETs must read where changes go. Relaxed: the region was published before the connection
        // was there to be taken, under its lock.
        if self.shared.version() != self.attached.version() {
            self.reattach();
        }
        self.conversation = Some(spare);
        true
    }

    /// Opens a connection if there is none, and asks for a mailbox if these requests want one and
    /// the server may have one. Returns whether they want one.
    fn prepare(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<bool, ConnectError> {
        if !self.is_linked(requests, deadline) {
            self.conversation = None;
            self.open_conversation(deadline)?;
        }
        let geometry = self.conversation.as_ref().expect("opened above").geometry();
        let wants_mailbox = self.wants_mailbox(requests, geometry);
        let conversation = self.conversation.as_mut().expect("opened above");
        conversation.check_owner(self.shared.owner(), self.shared.address(), deadline)?;
        if wants_mailbox {
            let (address, path) = (self.shared.address(), self.shared.options().requests);
            conversation.ask_for_mailbox(address, path, deadline)?;
        }
        Ok(wants_mailbox)
    }

    /// Makes sure that there is a connection for these requests. Returns whether they want its mailbox.
    fn ready_to_ask(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<bool, AskError> {
        match self.prepare(requests, deadline) {
            Ok(wants_mailbox) => Ok(wants_mailbox),
            Err(ConnectError::Link { source: source @ LinkError::Deadline(_), .. }) => Err(self.lost(source)),
            // The server has no mailbox for it. The connection is as good as before.
            Err(error @ ConnectError::RequestPath { .. }) => Err(error.into()),
            Err(error) => {
                self.disconnect();
                Err(error.into())
            }
        }
    }

    /// Does something with the connection. One that is not there was lost.
    fn over_link<R>(
        &mut self,
        act: impl FnOnce(&mut ShmConnection) -> Result<R, LinkError>,
    ) -> Result<R, AskError> {
        let done = self.conversation.as_mut().map_or(Err(LinkError::HungUp), act);
        done.map_err(|error| self.lost(error))
    }

    /// Sends requests over one connection.
    fn converse_once(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), Failed<LinkError, AskError>> {
        let wants_mailbox = self.ready_to_ask(requests, deadline.at).map_err(Failed::ForGood)?;
        let Some(conversation) = &mut self.conversation else {
            return Err(Failed::ForGood(self.lost(LinkError::HungUp)));
        };
        let (counts, mut has_sent) = (&mut stats.requests, false);
        let sent = conversation.converse(requests, wants_mailbox, deadline, replies, &mut has_sent, counts);
        sent.map_err(|error| {
            self.disconnect();
            broke_off(has_sent, error, |error| self.lost(error))
        })
    }

    fn lost(&mut self, error: LinkError) -> AskError {
        self.disconnect();
        AskError::lost(self.shared.address(), self.shared.options().deadline, error)
    }
}

impl Handle for ShmHandle {
    fn note(&mut self, key: &[u8]) {
        self.attached.note(key);
    }

    fn process(&self) -> Process {
        self.shared.process()
    }

    fn geometry(&self) -> &Geometry {
        self.attached.geometry()
    }

    fn reattached(&self) -> u64 {
        self.reattached
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
        if self.attached.touches().is_none() {
            return self.read(stats, |reader| reader.answer_each(keys, answers));
        }
        let attached = Arc::clone(&self.attached);
        let note = |number: usize| attached.note(keys[number].as_ref());
        self.read(stats, |reader| reader.answer_each(keys, &mut Noting { answers, note }))
    }

    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), AskError> {
        let mut tries = Tries::of_requests(deadline.at);
        let asked = tries.run(|_| {}, |_| self.converse_once(requests, deadline, replies, stats));
        asked.map_err(|failed| failed.or(|error| self.lost(error)))
    }

    fn post(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
        stats: &mut ClientStats,
    ) -> Result<Posted, AskError> {
        self.ready_to_ask(std::slice::from_ref(request), deadline)?;
        let level = self.conversation.as_ref().map_or(0, ShmConnection::level);
        if request.level() > level {
            return Ok(Posted::OldServer);
        }
        stats.requests.message += 1;
        self.over_link(|conversation| conversation.post(request, deadline)).map(|()| Posted::Sent)
    }

    fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, AskError> {
        self.over_link(|conversation| conversation.late_reply(until))
    }

    fn hurry(&mut self, deadline: Instant) -> Result<(), AskError> {
        self.over_link(|conversation| conversation.hurry(deadline))
    }

    fn disconnect(&mut self) {
        self.conversation = None;
    }
}

impl Clone for ShmHandle {
    /// Shares the mapping. The clone has no connection yet.
    fn clone(&self) -> ShmHandle {
        ShmHandle {
            shared: self.shared.clone(),
            attached: self.attached.clone(),
            hints: self.hints.clone(),
            way: self.way,
            times: self.times.as_ref().map(|_| Box::default()),
            entries: self.entries.clone(),
            conversation: None,
            reattached: 0,
            news: self.news,
            heard: self.heard,
            watch: self.watch.clone(),
        }
    }
}

impl Drop for ShmHandle {
    /// Leaves its connection to the next handle, if it is the client's.
    fn drop(&mut self) {
        // In a child made by `fork`, another thread of the parent may have held the lock.
        if self.shared.process().is_this()
            && let Some(connection) = self.conversation.take().filter(|it| !it.is_posted())
        {
            self.shared.keep_spare(connection);
        }
    }
}

/// Whether the server has no room for another connection.
fn is_full(error: &ConnectError) -> bool {
    use Refusal::{Descriptors, PeerFull, ServerFull};
    matches!(
        error,
        ConnectError::TurnedAway { source: ServerFull { .. } | PeerFull { .. } | Descriptors, .. }
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::attachment::tests::attachment;
    use super::super::link::{MEMORY_ID, SocketLink, hello};
    use super::super::shared::tests::{leave, shared, shared_at};
    use super::*;
    use crate::client::Client;
    use crate::config::{Config, TableSize};
    use crate::layout::geometry::SlotIx;
    use crate::outcome::{PutError, PutMode, PutOutcome};
    use crate::reader::Limits;
    use crate::server::{Server, ServerConfig};
    use crate::wire::PROTOCOL_VERSION;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// What a GET that fails has read is counted, and how often it looked again.
    #[test]
    fn reads_of_failed_gets_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Shm(dir.path().join("s"));
        let config = Config::short().size(TableSize::Slots(64));
        let server = Server::start(ServerConfig::new(address.clone(), config)).unwrap();
        let options = ClientOptions::new().limits(Limits::new().retries_max(3));
        let mut client = Client::connect_with(&address, options).unwrap();
        client.put(b"key", b"value").unwrap();
        // As if a writer had died in each slot.
        let (region, geometry) = (server.index().region(), server.index().geometry());
        for word in (0..geometry.main_slots()).map(|slot| geometry.slot_word(SlotIx(slot))) {
            region.store(word, region.load(word) | 1);
        }
        let answer = client.get(b"key");
        assert!(matches!(answer, Err(GetError::Contended { retries: 3, .. })), "{answer:?}");
        let ClientStats { get, read, .. } = client.stats();
        assert_eq!((get.gets, get.retries_torn), (0, 3), "{get:?}");
        assert!(read.reads >= 4, "{read:?}");
        drop(client);
        server.stop();
    }

    /// A server that answers a hello with something else than its region is not connected to. The error says
    /// what it is.
    #[test]
    fn only_a_region_is_a_welcome() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let connect_to = |reply: Reply| {
            let server = std::thread::spawn({
                let listener = listener.try_clone().unwrap();
                move || {
                    let (mut client, _) = listener.accept().unwrap();
                    let mut asked = vec![0; hello().len()];
                    client.read_exact(&mut asked).unwrap();
                    assert_eq!(asked, hello());
                    let mut bytes = Vec::new();
                    reply.encode(MEMORY_ID, &mut bytes);
                    client.write_all(&bytes).unwrap();
                    // The client hangs up.
                    let _ = client.read(&mut [0]);
                }
            });
            let options = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::default() };
            let error = ShmHandle::connect(&socket, &options).unwrap_err();
            server.join().unwrap();
            error
        };
        assert!(matches!(
            connect_to(Reply::Refused { version: PROTOCOL_VERSION + 7 }),
            ConnectError::Refused { theirs, .. } if theirs == PROTOCOL_VERSION + 7
        ));
        assert!(matches!(
            connect_to(Reply::TurnedAway(Refusal::User { uid: 9 })),
            ConnectError::TurnedAway { source: Refusal::User { uid: 9 }, .. }
        ));
        for reply in [Reply::WELCOME, Reply::Wake, Reply::Unfit] {
            let error = connect_to(reply);
            assert!(matches!(error, ConnectError::Link { source: LinkError::Unexpected, .. }), "{error}");
        }
    }

    /// A handle of a server that is not there, with a manual clock.
    fn handle(lease: Duration) -> ShmHandle {
        handle_of(shared(ClientOptions { lease, ..ClientOptions::default() }))
    }

    fn handle_of(shared: ShmShared) -> ShmHandle {
        let shared = Arc::new(shared);
        let attached = shared.newest();
        let (hints, entries, watch, conversation) = Default::default();
        let (news, heard, way, times) = (process::word(), UNHEARD, GetWay::Glances, None);
        ShmHandle {
            shared,
            attached,
            hints,
            way,
            times,
            entries,
            conversation,
            reattached: 0,
            news,
            heard,
            watch,
        }
    }

    fn enters(attachment: &Attachment, phase: Phase) {
        attachment.region().store(STATE_WORD, State { incarnation: 1, phase }.to_word());
    }

    /// Waits until this is so.
    fn until(what: &str, is_so: impl Fn() -> bool) {
        let ends = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < ends, "{what}");
            std::thread::yield_now();
        }
    }

    /// One request, until this instant.
    fn ask(handle: &mut ShmHandle, request: Request<'_>, at: Instant) -> Result<Vec<Reply>, AskError> {
        let (mut deadline, mut replies) = (Deadline::until(at, Duration::ZERO), Vec::new());
        let asked = handle.converse(&[request], &mut deadline, &mut replies, &mut ClientStats::default());
        asked.map(|()| replies)
    }

    /// A client that remembers the limits of a server refuses nothing by them before that server has
    /// answered: here it is gone, and its end of the socket is still open somewhere.
    #[test]
    fn a_refusal_is_confirmed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), value_max: 100, ..Config::short() };
        let _server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let small = Config { value_max: 8, ..table }.geometry().unwrap();
        let put = Request::Put { options: PutMode::Upsert.into(), key: b"key", value: &[1; 50] };
        let mut handle = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let link = SocketLink::new(Arc::new(stream), Duration::ZERO);
        let deadline = Instant::now() + Duration::from_secs(60);
        // The mailbox would be asked for first.
        handle.conversation = Some(ShmConnection::new(link, Arc::new(small), deadline).without_mailbox());
        let goes = std::thread::spawn(move || (&theirs).read(&mut [0; 16]).map(|_| ()));
        assert_eq!(ask(&mut handle, put, deadline).unwrap(), [Reply::Put(Ok(PutOutcome::Inserted))]);
        goes.join().unwrap().unwrap();
    }

    /// Connecting again inside a batch takes what is left of its deadline, not all of it.
    #[test]
    fn connecting_again_takes_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        // It accepts connections and never answers.
        let _server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let all = Duration::from_secs(30);
        for requests in [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox] {
            let options = ClientOptions { requests, deadline: all, ..ClientOptions::default() };
            let mut handle = handle_of(shared_at(&socket, options));
            for left in [Duration::from_millis(50), Duration::ZERO] {
                let begun = Instant::now();
                let late = ask(&mut handle, Request::Wake, begun + left);
                let took = begun.elapsed();
                let is_late = matches!(late, Err(AskError::Deadline { deadline, .. }) if deadline == all);
                assert!(is_late, "{late:?}");
                assert!((left..all).contains(&took), "{took:?} of {left:?}");
            }
        }
    }

    /// GETs answer until the last nanosecond of the lease, counted from when the server was found
    /// gone. They never answer from a region that was given up.
    #[test]
    fn gets_answer_until_the_lease_ends() {
        let lease = Duration::from_nanos(1000);
        let mut handle = handle(lease);
        let mut why = |gone_ns: u64, now_ns: u64, phase| {
            enters(&handle.attached, phase);
            let now = handle.shared.clock().now_ns();
            handle.shared.clock().advance(Duration::from_nanos(now_ns - now));
            handle.shared.gone_since(gone_ns);
            handle.attach_newest().err().map(|error| match error {
                GetError::ServerGone { address, source } => {
                    assert_eq!(address, Address::Shm("/nowhere".into()));
                    source.to_string()
                }
                error => panic!("{error}"),
            })
        };
        let kept = [Phase::Serving, Phase::Starting, Phase::Stopped];
        for phase in kept {
            assert_eq!(why(0, 5000, phase), None, "it is there");
        }
        assert!(why(0, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert!(why(5000, 5000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(5000, 5000, Phase::Serving), None);
        for phase in kept {
            assert_eq!(why(5000, 5999, phase), None, "{phase:?}");
        }
        assert_eq!(why(9000, 5999, Phase::Serving), None, "another thread's clock was ahead");
        for phase in kept {
            let ended = why(5000, 6000, phase).unwrap();
            assert!(ended.contains("lease of 1 µs has ended"), "{ended}");
        }
        assert!(why(5000, 7000, Phase::Retired).unwrap().contains("given its region up"));
        assert_eq!(why(6001, 7000, Phase::Serving), None, "it was gone again later");
        assert_eq!(why(0, 7000, Phase::Serving), None, "it is back");
    }

    /// A handle switches once for each newer region that it finds, and counts that. A clone begins
    /// with the region of its original, and counts for itself.
    #[test]
    fn handles_switch_to_newer_regions() {
        let mut first = handle(Duration::ZERO);
        enters(&first.attached, Phase::Serving);
        let mut second = first.clone();
        let mut publish = |inode| {
            let (seen, new) = first.shared.finding(|| attachment(inode));
            enters(&new, Phase::Serving);
            assert!(first.shared.publish(seen, new, Publisher::Watcher));
            for _ in 0..3 {
                first.attach_newest().unwrap();
            }
            (first.reattached(), first.attached.version(), first.attached.identity().1)
        };
        assert_eq!(publish(1), (1, 1, 1));
        assert_eq!(publish(2), (2, 2, 2));
        assert_eq!(publish(2), (2, 2, 2), "the same one");
        // A handle that missed a region switches once.
        second.attach_newest().unwrap();
        second.attach_newest().unwrap();
        assert_eq!((second.reattached(), second.attached.version(), second.attached.identity().1), (1, 2, 2));
        let mut third = first.clone();
        third.attach_newest().unwrap();
        assert_eq!((third.reattached(), third.attached.version(), third.attached.identity().1), (0, 2, 2));
        assert!(Arc::ptr_eq(&third.attached, &first.attached) && third.conversation.is_none());
        // A handle switches even if the lease of the newer region has ended.
        first.shared.gone_since(1);
        first.shared.clock().advance(Duration::from_nanos(2));
        assert!(first.attach_newest().is_err());
        assert_eq!(first.reattached(), 2);
    }

    /// A handle that takes the client's connection, which is to a newer server, has its GETs go where its changes go.
    #[test]
    fn a_handle_that_takes_the_connection_switches() {
        let mut handle = handle(Duration::ZERO);
        let (seen, new) = handle.shared.finding(|| attachment(1));
        assert!(handle.shared.publish(seen, new, Publisher::Watcher));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let ours = Arc::new(ours);
        for _ in 0..2 {
            leave(&handle.shared, &ours);
            assert!(handle.takes_spare(Instant::now()));
            let attached = &handle.attached;
            assert_eq!((handle.reattached(), attached.version(), attached.identity().1), (1, 1, 1));
        }
    }

    /// A client leaves the watching thread with its last handle, and its connection is closed.
    #[test]
    fn the_watch_ends_with_the_last_handle() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let first = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let (watch, shared) = (Arc::downgrade(first.watch.as_ref().unwrap()), Arc::downgrade(&first.shared));
        let second = first.clone();
        drop(first);
        assert_eq!((watch.strong_count(), server.stats().clients), (1, 1));
        drop(second);
        assert_eq!((watch.strong_count(), shared.strong_count()), (0, 0));
        until("no client is left", || server.stats().clients == 0);
    }

    /// A client has one connection, which goes from handle to handle: one handle uses it at a time,
    /// and leaves it to the next one. What a handle has to ask meanwhile goes over a connection of
    /// its own. A connection that was given up is replaced by the next one.
    #[test]
    fn handles_pass_the_connection_on() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let mut first = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        let clients = |expected| until("so many clients", || server.stats().clients == expected);
        let ask = |handle: &mut ShmHandle| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let reply = ask(handle, Request::Get { key: b"k" }, deadline);
            assert_eq!(reply.unwrap(), [Reply::Value(None)]);
            Arc::as_ptr(handle.conversation.as_ref().unwrap().stream())
        };
        let one = ask(&mut first);
        assert_eq!(ask(&mut first), one);
        clients(1);
        let mut second = first.clone();
        assert_ne!(ask(&mut second), one);
        clients(2);
        // Only the watched one is left to others.
        drop(second);
        clients(1);
        assert!(!first.shared.has_spare());
        let mut third = first.clone();
        drop(first);
        assert_eq!(ask(&mut third), one);
        for _ in 0..3 {
            let before = ask(&mut third);
            third.disconnect();
            assert_ne!(ask(&mut third), before);
            clients(1);
        }
        // The new one is watched, too.
        server.stop();
        until("the server is gone", || !third.is_served());
    }

    /// The thread and the mapping of a client go with it, even while its server is gone.
    #[test]
    fn nothing_is_left_of_a_client_without_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let table = Config { size: TableSize::Keys(10), ..Config::short() };
        let server = Server::start(ServerConfig::new(Address::Shm(socket.clone()), table)).unwrap();
        let handle = ShmHandle::connect(&socket, &ClientOptions::default()).unwrap();
        server.stop();
        until("the server is gone", || !handle.shared.is_served());
        let left = Arc::downgrade(&handle.shared);
        drop(handle);
        until("nothing is left", || left.strong_count() == 0);
    }

    /// A client with a mailbox does not check the socket before a request that follows the last one
    /// at once. It does if it rejects the request itself: otherwise a client that makes only such
    /// requests would never notice the next server.
    #[test]
    fn a_request_that_is_not_sent_looks_for_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let serve = |value_max| {
            let table = Config { size: TableSize::Keys(10), value_max, ..Config::short() };
            let config = ServerConfig::new(Address::Shm(socket.clone()), table);
            Server::start(config).unwrap()
        };
        let put = |value| Request::Put { options: PutMode::Upsert.into(), key: b"key", value };
        for requests in [RequestPath::Auto, RequestPath::Message, RequestPath::Mailbox] {
            let server = serve(8);
            let options = ClientOptions { requests, ..ClientOptions::default() };
            let mut handle = ShmHandle::connect(&socket, &options).unwrap();
            // All conversations have the same deadline, so each follows the last one at once.
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut ask = |put| ask(&mut handle, put, deadline);
            let too_long = [Reply::Put(Err(PutError::ValueLength { given: 50, max: 8 }))];
            for _ in 0..3 {
                assert_eq!(ask(put(&[1; 50])).unwrap(), too_long);
                assert_eq!(ask(put(&[1; 5])).unwrap().len(), 1);
            }
            server.stop();
            let server = serve(100);
            let inserted = [Reply::Put(Ok(PutOutcome::Inserted))];
            assert_eq!(ask(put(&[1; 50])).unwrap(), inserted);
            server.stop();
            // There is no server whose limits could reject it.
            let error = ask(put(&[1; 101])).unwrap_err();
            assert!(matches!(error, AskError::Connect(ConnectError::NotThere { .. })), "{error}");
        }
    }
}
