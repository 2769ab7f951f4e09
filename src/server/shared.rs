//! The state that a server's threads share, and the answer to a request.

use super::caller::{Caller, Denied, Role, Tokens};
use super::driver::TableDriver;
use super::feed;
use super::held::ClientMemory;
use super::mailboxes::{MailboxCounters, MailboxCounts, MailboxMemory};
use super::park_room::ParkRoom;
use super::put_times::PutTimes;
use super::refused::RefusedCounters;
use super::snapshots::Saver;
use crate::base::sync::lock_std;
use crate::files;
#[cfg(any(feature = "herd", test))]
use crate::index::ChangeWait;
use crate::index::{ChangeWaits, Index, OwnerClaim};
use crate::layout::extent::Expected;
use crate::outcome::GetCounts;
use crate::outcome::PutError;
use crate::outcome::ReadError;
use crate::reader::GetStats;
use crate::region::{GetCountMap, Region};
use crate::tls::ServerTls;
use crate::wire::{self, HeldCounts, Refusal, Reply, Request, ServerStats, ServerTimes};
use rustc_hash::FxHashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time until a worker accepts the connections that it could not, or did not yet, accept. No event
/// announces them again.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// The peer for which a connection counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A user of this host.
    User(u32),
    /// A host, over verbs or TCP.
    Host(IpAddr),
}

/// A connection that counts against the limits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    shared: Arc<ServerState>,
    peer: Peer,
}

impl Admission {
    /// The connection's peer.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        let mut peers = lock_std(&self.shared.peers);
        if let Some(count) = peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

/// Lets one warning a second through, and counts the others: strangers do not fill the log.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit(Mutex<(Option<Instant>, u64)>);

impl WarningLimit {
    /// The number of warnings left out since the last one, if there may be another one now.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        const APART: Duration = Duration::from_secs(1);
        let (last, left_out) = &mut *lock_std(&self.0);
        if last.is_some_and(|last| now.saturating_duration_since(last) < APART) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

/// The state that all threads of a server share.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) index: Index,
    pub(super) stopping: AtomicBool,
    pub(super) clients: AtomicU64,
    pub(crate) clients_max: u64,
    /// Most connections of a peer. The server's own user is not limited.
    pub(super) clients_per_peer: u64,
    pub(super) peers: Mutex<FxHashMap<Peer, u64>>,
    pub(super) allow_uids: Vec<u32>,
    pub(super) allow_read_uids: Vec<u32>,
    /// Who changes the table.
    pub(super) driver: TableDriver,
    /// The secrets that clients over TCP must know.
    pub(super) tokens: Tokens,
    /// Longest time for a client to complete a frame that it has begun, its hello, or a step of an upload.
    pub(super) half_open: Duration,
    /// Unread bytes of replies at which the server stops reading a client's requests.
    pub(super) unread_bytes_max: usize,
    pub(super) refusals: WarningLimit,
    /// The region's file, if it is one.
    pub(super) region_file: Option<PathBuf>,
    pub(super) looks: WarningLimit,
    pub(super) is_loss_told: AtomicBool,
    /// The memory that the connections of all clients may hold.
    pub(crate) client_memory: Arc<ClientMemory>,
    /// The memory of it that mailboxes of clients on shm may take.
    pub(super) mailbox_memory: MailboxMemory,
    pub(super) mailboxes: MailboxCounters,
    pub(super) refused: RefusedCounters,
    /// The memory that the feed's records may take.
    pub(super) feed_bytes: u64,
    /// What clients on this host count their GETs in, and this server those that it is asked for.
    pub(super) get_counts: Option<GetCountMap>,
    /// Counts of what its followers were told.
    pub(super) followers: feed::FollowerCounters,
    /// What requests that wait may take.
    pub(super) parking: ParkRoom,
    /// How long puts take, if the server takes the time.
    pub(super) put_times: Option<Box<PutTimes>>,
    /// Makes snapshots, if this server makes any.
    pub(super) saver: Option<Saver>,
}

impl ServerState {
    pub(super) fn mailbox_counts(&self) -> MailboxCounts {
        self.mailboxes.read(&self.mailbox_memory)
    }

    /// Q6: unread bytes of replies to a client at which nothing more of it is read or answered.
    pub(super) fn unread_max(&self) -> usize {
        /// About the longest reply.
        const SHORT: usize = wire::BODY_MAX;
        if self.client_memory.is_short() { self.unread_bytes_max.min(SHORT) } else { self.unread_bytes_max }
    }

    /// Counts of what is held for clients, and by them.
    pub(super) fn held(&self) -> HeldCounts {
        let parked = [self.parking.taken(), self.parking.most()];
        HeldCounts::new(self.index.starts(), self.client_memory.counts(), parked)
    }

    /// GETs of clients.
    pub(super) fn get_counts(&self) -> GetCounts {
        self.get_counts.as_ref().map(GetCountMap::sum).unwrap_or_default()
    }

    /// Counts GETs that the server has answered.
    pub(super) fn count_gets(&self, stats: GetStats) {
        let counts = GetCounts { gets: stats.gets, hits: stats.hits };
        // As the handle of a client: workers share a cell.
        self.get_counts.iter().for_each(|map| map.add(0, counts));
    }

    pub(super) fn stats(&self) -> ServerStats {
        let clients = self.clients.load(Ordering::Relaxed);
        ServerStats::new(self.index.counts(), clients, self.index.incarnation(), self.index.launch())
    }

    /// Whether the region stays for the next server. Otherwise it is marked as given up when this one
    /// stops.
    pub(super) fn region_stays(&self) -> bool {
        self.region_file.as_ref().is_some_and(|path| self.index.region().stands_at(path))
    }

    /// Checks, once a second at most, whether the region's file and lock are still there, and logs it if they are not.
    /// Returns whether it checked.
    pub(super) fn looks_now(&self) -> bool {
        if self.looks.pass(Instant::now()).is_none() {
            return false;
        }
        self.tokens.tls.iter().for_each(ServerTls::look);
        let Some(path) = &self.region_file else { return true };
        let lost_lock = self.index.region().lost_lock();
        let is_lost = !self.region_stays();
        if (is_lost || lost_lock.is_some()) && !self.is_loss_told.swap(true, Ordering::Relaxed) {
            let path = path.display();
            if is_lost {
                tracing::error!(%path, "the region file was removed or replaced: the table ends with this server, and no other can take it over; save it now (a snapshot, or a dump)");
            } else {
                tracing::error!(%path, ?lost_lock, "the lock of the region file was removed: nothing keeps a second server from this table; start no other, and restart this one");
            }
        }
        true
    }

    /// Whether the server is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The rights of this user. `None`: none.
    pub(super) fn role_of(&self, uid: u32) -> Option<Role> {
        match uid {
            // Root can take any right that it is refused.
            0 => Some(Role::Change),
            // To the kernel, this number means no user.
            u32::MAX => None,
            uid if self.allow_uids.contains(&uid) => Some(Role::Change),
            uid if self.allow_read_uids.contains(&uid) => Some(Role::Read),
            _ => None,
        }
    }

    /// Counts one more connection, unless a limit is reached.
    pub(crate) fn admit(self: &Arc<ServerState>, peer: Peer) -> Result<Admission, Refusal> {
        let mut peers = lock_std(&self.peers);
        let count = peers.get(&peer).copied().unwrap_or(0);
        let is_limited = peer != Peer::User(files::own_uid());
        // The count goes up only under the lock, so it cannot exceed the limit.
        if self.clients.load(Ordering::Relaxed) >= self.clients_max {
            return Err(Refusal::ServerFull { max: self.clients_max });
        }
        if is_limited && count >= self.clients_per_peer {
            return Err(Refusal::PeerFull { max: self.clients_per_peer });
        }
        peers.insert(peer, count + 1);
        self.clients.fetch_add(1, Ordering::Relaxed);
        Ok(Admission { shared: self.clone(), peer })
    }

    /// Warns that a client was turned away, but not more often than once a second.
    pub(crate) fn warn_of(&self, peer: &dyn std::fmt::Debug, why: &str) {
        if let Some(left_out) = self.refusals.pass(Instant::now()) {
            tracing::warn!(?peer, why, left_out, "turned a client away");
        }
    }

    /// Answers a request. `None` for requests about the conversation itself. Sleeps where a change has to wait, but not
    /// for memory of long values: then the answer is [`PutError::HeapBusy`], and the client asks again.
    #[cfg(any(feature = "herd", test))]
    pub(crate) fn answer(&self, caller: &mut Caller, request: Request<'_>) -> Option<Reply> {
        let waits = ChangeWaits::default();
        let mut reply = self.try_answer(caller, request, &waits, None);
        loop {
            match waits.now() {
                None => return reply,
                Some(ChangeWait::Memory { .. }) => return reply.map(|reply| self.counted(reply)),
                Some(
                    ChangeWait::Readers { .. } | ChangeWait::Thread | ChangeWait::Maker | ChangeWait::Decided,
                ) => {
                    self.index.sleep_through(&waits);
                }
            }
            match waits.has_outcome() {
                // Tried again, a change that was withdrawn says so.
                true if self.index.go_on(&waits).is_ok() => {}
                true | false => reply = self.try_answer(caller, request, &waits, None),
            }
        }
    }

    /// Tries to answer a request. `None` for requests about the conversation itself. A change that has to wait notes in
    /// `waits` what it waits for. The answer is then what its client is told if it cannot wait, or, if the change is made,
    /// what it is told afterwards. `begun`: when the change was first tried, if it was.
    pub(super) fn try_answer(
        &self,
        caller: &mut Caller,
        request: Request<'_>,
        waits: &ChangeWaits,
        begun: Option<Instant>,
    ) -> Option<Reply> {
        let answer = self.answer_who_may(caller, request, waits, begun);
        answer.unwrap_or_else(|Denied| {
            // One upload counts once.
            let goes_on = matches!(
                request,
                Request::UploadPiece { .. }
                    | Request::UploadPut { .. }
                    | Request::UploadSwap { .. }
                    | Request::UploadDrop
            );
            if !goes_on {
                self.refused.count_read_only();
            }
            Some(Reply::Denied)
        })
    }

    /// Answers a request of a client that has the right to make it. Only a [`Changer`](super::caller::Changer) can make
    /// changes. A client that may only read does not get one.
    fn answer_who_may(
        &self,
        caller: &mut Caller,
        request: Request<'_>,
        waits: &ChangeWaits,
        begun: Option<Instant>,
    ) -> Result<Option<Reply>, Denied> {
        let over = |reply| self.over(waits, reply);
        let changer = |caller| Caller::changer(caller, &self.index, self.driver);
        Ok(Some(match request {
            Request::Hello { .. } | Request::Join { .. } | Request::Mailbox { .. } | Request::Wake => {
                return Ok(None);
            }
            // Clients with READs do not ask for this.
            Request::Gets(_) => Reply::Unfit,
            Request::Put { options, key, value } => {
                let changer = changer(caller)?;
                self.timed(key, (waits, begun), || over(changer.put(key, value, options, waits)))
            }
            Request::Swap { key, expected, value } => {
                over(changer(caller)?.swap(key, Expected::Value(expected), value, waits))
            }
            Request::SwapExtent { key, expected, value } => {
                over(changer(caller)?.swap(key, Expected::Extent(expected), value, waits))
            }
            Request::UploadBegin { key, len } => over(changer(caller)?.begin_upload(key, len, waits)),
            Request::UploadPiece { bytes } => changer(caller)?.take_piece(bytes),
            Request::UploadPut { options, key } => {
                let changer = changer(caller)?;
                self.timed(key, (waits, begun), || over(changer.put_upload(key, options, waits)))
            }
            Request::UploadSwap { key, expected } => over(changer(caller)?.swap_upload(key, expected, waits)),
            Request::UploadDrop => changer(caller)?.drop_upload(),
            Request::Remove { key } => over(changer(caller)?.remove(key, waits)),
            Request::RemoveIf { key, expected } => over(changer(caller)?.remove_if(key, expected, waits)),
            Request::Part { key, part, tell } => over(changer(caller)?.part(key, part, tell, waits)),
            Request::Touch { key, ttl } => over(changer(caller)?.touch(key, ttl, waits)),
            Request::Clear { place } => over(changer(caller)?.clear_on(place, waits)),
            Request::Owner { number, absent_for, tenure } => {
                let claim = OwnerClaim::from_word(tenure);
                over(changer(caller)?.be_owner(number, claim, absent_for))
            }
            Request::PutStart { key, len, within } => {
                over(changer(caller)?.put_start(key, (len, within), waits))
            }
            Request::PutPiece { key, ticket, bytes } => over(changer(caller)?.put_piece(key, ticket, bytes)),
            Request::PutCommit { key, ticket } => over(changer(caller)?.put_commit(key, ticket, waits)),
            Request::PutAbort { key, ticket } => over(changer(caller)?.put_abort(key, ticket)),
            Request::RemoveOwner { number } => over(changer(caller)?.remove_owner(number, waits)),
            Request::Pin { key } => over(changer(caller)?.pin(&self.client_memory, key)),
            Request::Unpin { key } => changer(caller)?.unpin(key),
            Request::Growth { shrink: true } => changer(caller)?.shrink(),
            Request::GrowFor { keys } => changer(caller)?.grow_for(keys),
            Request::Snapshot { begin: true } => changer(caller)?.snapshot(self.saver.as_ref()),
            Request::Get { key } => self.look_up(key),
            Request::Stat => Reply::Stat(self.stats()),
            Request::Growth { shrink: false } => Reply::Growth(self.index.growth()),
            Request::Heap => Reply::Heap(self.index.heap()),
            Request::Notes => Reply::Notes(self.index.notes()),
            Request::Evictions => Reply::Evictions(self.index.evictions()),
            Request::Held => Reply::Held(self.held()),
            Request::GetCounts => Reply::GetCounts(self.get_counts()),
            Request::Log => Reply::Log(self.index.log().map(|log| log.status())),
            Request::Times => Reply::Times(Box::new(self.times())),
            Request::Feed(request) => {
                let (room, followers) = (caller.feed_room(), &self.followers);
                Reply::Feed(feed::answer(&self.index, request, self.feed_bytes, room, followers))
            }
            Request::Snapshot { begin: false } => {
                Reply::Snapshot(self.saver.as_ref().map(Saver::status).unwrap_or_default())
            }
        }))
    }

    /// Makes a put, and takes the time if this server does that.
    #[inline(always)]
    fn timed(
        &self,
        key: &[u8],
        (waits, begun): (&ChangeWaits, Option<Instant>),
        put: impl FnOnce() -> Reply,
    ) -> Reply {
        match &self.put_times {
            None => put(),
            Some(times) => {
                let begun = begun.unwrap_or_else(Instant::now);
                let reply = put();
                // One that is made counts as long as it took to make it.
                if waits.now().is_none() || waits.has_outcome() {
                    times.took(key, begun);
                }
                reply
            }
        }
    }

    /// The answer to a change that may have to wait. If it does, it is not the last one, and does not count.
    fn over(&self, waits: &ChangeWaits, reply: Reply) -> Reply {
        if waits.now().is_some() { reply } else { self.counted(reply) }
    }

    pub(super) fn times(&self) -> ServerTimes {
        let (lag, gaps) = self.followers.read();
        ServerTimes {
            expired: self.index.expired(),
            expiry_lag_ns: self.index.expiry_lag().as_nanos() as u64,
            refused: self.refused.read().all(),
            feed_lag: lag,
            feed_gaps: gaps,
            is_timed: self.put_times.is_some().into(),
            puts: self.put_times.as_ref().map(|times| times.counts()).unwrap_or_default(),
            slowest: self.put_times.as_ref().map(|times| times.slowest()).unwrap_or_default(),
        }
    }

    /// The answer to a change. Counts it if it is a refusal.
    pub(super) fn counted(&self, reply: Reply) -> Reply {
        if let Reply::Put(Err(error))
        | Reply::Swapped(Err(error))
        | Reply::Removed(Err(error))
        | Reply::Part(Err(error)) = &reply
        {
            self.refused.count(error);
        }
        reply
    }

    fn look_up(&self, key: &[u8]) -> Reply {
        let (mut value, max) = (Vec::new(), wire::frame_value_max(self.index.geometry()));
        let mut reader = self.index.reader();
        let found = reader.get_range(key, 0..max, &mut value);
        self.count_gets(reader.stats());
        match found {
            // Clients READ longer values.
            Ok(Some(given)) if given > max => Reply::Put(Err(PutError::ValueLength { given, max })),
            Ok(found) => {
                if found.is_some() {
                    self.index.note_read(key);
                }
                Reply::Value(found.map(|_| value))
            }
            Err(ReadError::KeyLength { given, max }) => Reply::Put(Err(PutError::KeyLength { given, max })),
            Err(
                ReadError::Contended { retries: rounds, .. } | ReadError::Deadline { retries: rounds, .. },
            ) => Reply::Put(Err(PutError::Busy { rounds })),
            Err(ReadError::Replaced { times: rounds, .. }) => Reply::Put(Err(PutError::Busy { rounds })),
            Err(ReadError::Damaged { what }) => {
                tracing::error!(what, "the memory of a value is damaged");
                Reply::Put(Err(PutError::Busy { rounds: 0 }))
            }
        }
    }
}

impl AsRef<Region> for ServerState {
    fn as_ref(&self) -> &Region {
        self.index.region()
    }
}
