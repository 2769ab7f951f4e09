//! Requests that wait for something: *parked* ones (Q9 to Q15). None of the server's threads waits with them.
//!
//! ```text
//! request ── a look: is it there? ── yes: the reply
//!                  │ no: parked, with a time
//!                  ▼
//!            a state of its connection ◄── looked at again: when it is due, or something was told, in its worker's next turn
//!                  │
//!                  ├── it is there                          the reply
//!                  ├── its time is over, or more is asked   the reply that says so
//!                  └── its connection ends, or the server   none
//! ```
//!
//! There are three kinds. A request for changes of the table was taken, and its connection's next request ends the wait
//! (Q11). A change that cannot be made yet stays the first request of its queue: what is behind it waits, too (Q13). Of a
//! change that has its outcome, and cannot be answered yet, only the reply waits (`held_replies.rs`).
//!
//! A connection has one parked request at most, and all of them together a bound. Beyond that a request is answered at
//! once, with what there is, and its client asks again after a pause, as clients of earlier versions do.
//!
//! What a request waits for may come while its worker sleeps. The worker has a bell for each kind (`src/index/bells.rs`).

use super::caller::Caller;
use super::feed::{self, FeedFound};
use super::held_replies::{HeldReplies, LaterReply};
use super::park_room::{ParkPlace, ParkRoom, RequestAt};
use super::shared::ServerState;
use crate::faults::{Rule, broken};
use crate::index::{ChangeWait, ChangeWaits, Index, ThreadBell};
use crate::outcome::PutError;
use crate::wire::{self, FeedRequest, Reply, Request};
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// A request that waits.
#[derive(Debug)]
pub(super) struct Parked {
    what: ParkedRequest,
    /// When it is looked at next, if nothing is told before.
    until: Instant,
}

#[derive(Debug)]
enum ParkedRequest {
    Feed(ParkedFeed),
    Change(Box<ParkedChange>),
    Replies(Box<HeldReplies>),
}

/// A request for changes of the table. It was taken out of its queue.
#[derive(Debug)]
struct ParkedFeed {
    id: u64,
    /// As it came.
    frame: Box<[u8]>,
    /// Changes before this one were looked at: none of them is wanted.
    seen: u64,
    since: Instant,
    _place: ParkPlace,
}

/// A change that waits. It is still the first request of its queue.
#[derive(Debug)]
struct ParkedChange {
    at: RequestAt,
    waits: ChangeWaits,
    begun: Instant,
    /// How long its client lets it wait for memory.
    patience: Duration,
    /// What was told before this number, the last try has seen.
    seen: u64,
    _place: ParkPlace,
}

/// What becomes of a request.
pub(super) enum ParkAnswer {
    Now(Reply),
    /// It would have to wait, and its client is gone. What is behind it is not handled: changes of a connection are made in
    /// order, or not at all.
    Refused(Reply),
    /// It was taken, and waits.
    Taken(Parked),
    /// It waits where it stands.
    Stays(Parked),
    /// It waits where it stands, until the replies before it are sent.
    Behind,
    /// It was handled, and its reply waits.
    Held,
    /// It is about the conversation.
    NotHere,
}

/// What a try of a request has come to.
enum Tried {
    Over(ParkAnswer),
    /// It has its reply, which waits.
    Later(LaterReply),
}

/// Whether a look at a request that may wait is its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParkLook {
    /// It waits on, if nothing is there and it has time.
    Again,
    /// It is answered.
    Last,
    /// Replies before it wait: if it has to wait, it is tried again behind them.
    Behind,
}

impl ServerState {
    /// Answers a request, or parks it: if it may wait, and there is room. `held` is what the first request of this queue
    /// has waited so far. `patience` is how long the client lets it wait for memory. `replies` are those that wait.
    pub(super) fn answer_or_park(
        &self,
        caller: &mut Caller,
        (id, patience, request): (u64, Duration, Request<'_>),
        held: Option<Parked>,
        (at, look): (RequestAt, ParkLook),
        replies: &mut Option<HeldReplies>,
    ) -> ParkAnswer {
        if let Some(replies) = replies {
            return self.answer_behind(caller, (id, patience, request), replies);
        }
        let tried = match request {
            Request::Feed(wanted @ FeedRequest::Changes { within: Some(within), .. }) => {
                return self.answer_follower(caller, (id, request), (wanted, within), (at, look));
            }
            request => match held {
                None => self.begin_change(caller, patience, request, (at, look)),
                Some(Parked { what: ParkedRequest::Change(change), .. }) => {
                    self.go_on(caller, request, change, look)
                }
                Some(Parked { what: ParkedRequest::Feed(_) | ParkedRequest::Replies(_), .. }) => {
                    unreachable!("it was taken")
                }
            },
        };
        match tried {
            Tried::Over(answer) => answer,
            Tried::Later(later) => match HeldReplies::hold(replies, self, at, (id, later)) {
                None => ParkAnswer::Held,
                Some(reply) => ParkAnswer::Now(reply),
            },
        }
    }

    /// Handles a request while replies to requests before it wait (Q15). Its own is behind them, or it waits for them itself:
    /// where it would see the table without the changes that they are about, where it has to wait, and where it finds no
    /// room, for they may make some.
    #[cold]
    fn answer_behind(
        &self,
        caller: &mut Caller,
        (id, patience, request): (u64, Duration, Request<'_>),
        replies: &mut HeldReplies,
    ) -> ParkAnswer {
        if replies.are_many() || !may_be_behind(&request) {
            return ParkAnswer::Behind;
        }
        let later = match self.begin_change(caller, patience, request, (replies.at(), ParkLook::Behind)) {
            Tried::Over(ParkAnswer::Now(reply)) if lacks_room(&reply) => return ParkAnswer::Behind,
            Tried::Over(ParkAnswer::Now(reply)) => {
                LaterReply { reply, waits: ChangeWaits::default(), seen: replies.seen() }
            }
            Tried::Over(other) => return other,
            Tried::Later(later) => later,
        };
        replies.push(id, later);
        ParkAnswer::Held
    }

    /// Answers a request for changes of the table, or parks it.
    fn answer_follower(
        &self,
        caller: &mut Caller,
        (id, request): (u64, Request<'_>),
        (wanted, within): (FeedRequest<'_>, Duration),
        (at, look): (RequestAt, ParkLook),
    ) -> ParkAnswer {
        let may_wait = look == ParkLook::Again && at.may_wait_for_feed();
        match self.feed_found(caller, wanted, 0) {
            FeedFound::Told(reply) => ParkAnswer::Now(Reply::Feed(reply)),
            FeedFound::Nothing { reply, seen } => match may_wait.then(|| self.parking.place()).flatten() {
                None => ParkAnswer::Now(Reply::Feed(reply)),
                Some(place) => {
                    let (until, mut frame) = (self.parking.until(within), Vec::new());
                    request.encode(id, &mut frame);
                    let (frame, since) = (frame.into(), Instant::now());
                    let feed = ParkedFeed { id, frame, seen, since, _place: place };
                    ParkAnswer::Taken(Parked { what: ParkedRequest::Feed(feed), until })
                }
            },
        }
    }

    /// The first try of a change, or the answer to any other request.
    #[inline]
    fn begin_change(
        &self,
        caller: &mut Caller,
        patience: Duration,
        request: Request<'_>,
        (at, look): (RequestAt, ParkLook),
    ) -> Tried {
        let (waits, seen) = (ChangeWaits::default(), self.index.news().told());
        let Some(reply) = self.try_answer(caller, request, &waits, None) else {
            return Tried::Over(ParkAnswer::NotHere);
        };
        let Some(wait) = waits.now() else { return Tried::Over(ParkAnswer::Now(reply)) };
        // Q15
        if waits.has_outcome() && !broken(Rule::WaitOnce) {
            return Tried::Later(LaterReply { reply, waits, seen });
        }
        if look == ParkLook::Behind {
            return Tried::Over(ParkAnswer::Behind);
        }
        let begun = Instant::now();
        let ends = begun + ParkRoom::longest(wait, patience);
        let may_wait = look == ParkLook::Again && begun < ends;
        let Some(place) = may_wait.then(|| self.parking.place()).flatten() else {
            return Tried::Over(self.last_answer(caller, request, reply, look));
        };
        let change = ParkedChange { at, waits, begun, patience, seen, _place: place };
        Tried::Over(ParkAnswer::Stays(self.parked(change, (wait, ends))))
    }

    /// The answer to a change that has to wait, but cannot.
    #[cold]
    fn last_answer(
        &self,
        caller: &mut Caller,
        request: Request<'_>,
        reply: Reply,
        look: ParkLook,
    ) -> ParkAnswer {
        if let Request::UploadPut { .. } | Request::UploadSwap { .. } = request {
            caller.drop_upload();
        }
        match look {
            ParkLook::Last => ParkAnswer::Refused(self.counted(reply)),
            ParkLook::Again | ParkLook::Behind => ParkAnswer::Now(self.counted(reply)),
        }
    }

    /// The next try of a change that has waited.
    #[cold]
    fn go_on(
        &self,
        caller: &mut Caller,
        request: Request<'_>,
        mut change: Box<ParkedChange>,
        look: ParkLook,
    ) -> Tried {
        if broken(Rule::WaitWake) && look == ParkLook::Again {
            let until = change.begun + ParkRoom::longest(ChangeWait::Thread, change.patience);
            return Tried::Over(ParkAnswer::Stays(Parked { what: ParkedRequest::Change(change), until }));
        }
        change.seen = self.index.news().told();
        self.index.end_wait(&change.waits);
        let Some(reply) = self.try_answer(caller, request, &change.waits, Some(change.begun)) else {
            return Tried::Over(ParkAnswer::NotHere);
        };
        let Some(wait) = change.waits.now() else { return Tried::Over(ParkAnswer::Now(reply)) };
        if change.waits.has_outcome() && !broken(Rule::WaitOnce) {
            let ParkedChange { waits, seen, .. } = *change;
            return Tried::Later(LaterReply { reply, waits, seen });
        }
        let ends = change.begun + ParkRoom::longest(wait, change.patience);
        if look == ParkLook::Last || Instant::now() >= ends {
            return Tried::Over(self.last_answer(caller, request, reply, look));
        }
        Tried::Over(ParkAnswer::Stays(self.parked(*change, (wait, ends))))
    }

    fn parked(&self, change: ParkedChange, (wait, ends): (ChangeWait, Instant)) -> Parked {
        let until = (Instant::now() + self.index.wait_left(wait)).min(ends);
        Parked { what: ParkedRequest::Change(Box::new(change)), until }
    }

    fn feed_found(&self, caller: &Caller, request: FeedRequest<'_>, seen: u64) -> FeedFound {
        feed::find(&self.index, request, seen, self.feed_bytes, caller.feed_room(), &self.followers)
    }
}

/// Whether a request may be handled while replies to requests before it wait: a change of one key, which waits for that key's
/// turn. What keeps an upload for its next try, or sees more of the table, is not.
pub(super) fn may_be_behind(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Put { .. }
            | Request::Swap { .. }
            | Request::SwapExtent { .. }
            | Request::Remove { .. }
            | Request::RemoveIf { .. }
            | Request::Part { .. }
            | Request::Touch { .. }
            | Request::PutStart { .. }
            | Request::PutPiece { .. }
            | Request::PutCommit { .. }
            | Request::PutAbort { .. }
    )
}

/// Whether a change was refused because there is no room for it.
fn lacks_room(reply: &Reply) -> bool {
    let (Reply::Put(Err(error)) | Reply::Swapped(Err(error)) | Reply::Part(Err(error))) = reply else {
        return false;
    };
    matches!(
        error,
        PutError::Full { .. }
            | PutError::NoMemory { .. }
            | PutError::HeapFull { .. }
            | PutError::HeapMemory { .. }
            | PutError::HeapBusy { .. }
            | PutError::Pinned
            | PutError::StartBound(_)
    )
}

impl Parked {
    /// Bytes that it has.
    pub fn held_bytes(&self) -> usize {
        /// What a change has noted of its waits.
        const WAITS: usize = size_of::<ParkedChange>() + 128;
        let more = match &self.what {
            ParkedRequest::Feed(feed) => feed.frame.len(),
            ParkedRequest::Change(_) => WAITS,
            ParkedRequest::Replies(held) => held.bytes(),
        };
        size_of::<Parked>() + more
    }

    /// These replies, which wait.
    pub fn replies(held: HeldReplies, shared: &ServerState) -> Parked {
        let until = held.until(shared);
        Parked { what: ParkedRequest::Replies(Box::new(held)), until }
    }

    /// Where the change stands that waits, or stood. `None`: it is a request for changes of the table.
    pub fn change_at(&self) -> Option<RequestAt> {
        match &self.what {
            ParkedRequest::Feed(_) => None,
            ParkedRequest::Change(change) => Some(change.at),
            ParkedRequest::Replies(held) => Some(held.at()),
        }
    }

    /// Whether it is a change that waits, the first request of this queue.
    pub fn is_change_of(&self, queue: RequestAt) -> bool {
        match &self.what {
            ParkedRequest::Change(change) => change.at.is_queue_of(queue),
            ParkedRequest::Feed(_) | ParkedRequest::Replies(_) => false,
        }
    }

    /// Takes out what the first request of this queue has waited so far.
    pub fn take_from(parked: &mut Option<Parked>, queue: RequestAt) -> Option<Parked> {
        parked.take_if(|parked| parked.is_change_of(queue))
    }

    /// Whether replies wait.
    pub fn are_replies(&self) -> bool {
        match &self.what {
            ParkedRequest::Replies(_) => true,
            ParkedRequest::Feed(_) | ParkedRequest::Change(_) => false,
        }
    }

    /// Takes out the replies that wait, to requests of this queue.
    pub fn take_replies(parked: &mut Option<Parked>, queue: RequestAt) -> Option<HeldReplies> {
        let are_its = |parked: &mut Parked| match &parked.what {
            ParkedRequest::Replies(held) => held.at().is_queue_of(queue),
            ParkedRequest::Feed(_) | ParkedRequest::Change(_) => false,
        };
        match parked.take_if(are_its)?.what {
            ParkedRequest::Replies(held) => Some(*held),
            ParkedRequest::Feed(_) | ParkedRequest::Change(_) => None,
        }
    }

    /// The number of a request for changes of the table, and its reply, if it is to be answered now.
    pub fn answer(&mut self, shared: &ServerState, caller: &Caller, look: ParkLook) -> Option<(u64, Reply)> {
        let ParkedRequest::Feed(feed) = &mut self.what else { return None };
        let is_over = look == ParkLook::Last || Instant::now() >= self.until;
        // Q10
        if broken(Rule::ParkWake) && !is_over {
            return None;
        }
        let Some(request) = feed.request() else { return Some((feed.id, Reply::Unfit)) };
        match shared.feed_found(caller, request, feed.seen) {
            FeedFound::Told(reply) => Some((feed.id, Reply::Feed(reply))),
            FeedFound::Nothing { reply, .. } if is_over => Some((feed.id, Reply::Feed(reply))),
            FeedFound::Nothing { seen, .. } => {
                feed.seen = seen;
                None
            }
        }
    }
}

impl ParkedFeed {
    fn request(&self) -> Option<FeedRequest<'_>> {
        let frame = wire::decode(&self.frame).ok()??;
        match Request::decode(&frame) {
            Ok(Request::Feed(request)) => Some(request),
            _ => None,
        }
    }
}

/// What the parked requests of one kind wait for.
#[derive(Debug)]
struct ParkedKind {
    bell: ThreadBell,
    /// How many there are.
    waiting: usize,
    /// All of them have seen what was told before this.
    looked: u64,
}

impl ParkedKind {
    fn new(bell: ThreadBell) -> ParkedKind {
        ParkedKind { bell, waiting: 0, looked: 0 }
    }

    fn came(&mut self, seen: u64) {
        self.looked = if self.waiting == 0 { seen } else { self.looked.min(seen) };
        self.waiting += 1;
    }

    /// Whether something was told that some have not seen. From then on they count as those who have: they are looked at.
    fn hears(&mut self, told: u64) -> bool {
        self.waiting > 0 && std::mem::replace(&mut self.looked, told) != told
    }
}

/// Of which kind a parked request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Feed,
    Change,
}

/// What a worker knows of a parked request.
#[derive(Clone, Copy, Debug)]
struct NotedPark {
    until: Instant,
    kind: Kind,
    /// Since when it waits.
    since: Instant,
}

/// The parked requests of a worker's connections.
#[derive(Debug)]
pub(super) struct Parking<K> {
    feeds: ParkedKind,
    changes: ParkedKind,
    waiting: FxHashMap<K, NotedPark>,
    due: BTreeSet<(Instant, K)>,
    /// Those that are to be looked at.
    queue: VecDeque<K>,
}

/// Wakes a worker's event loop.
struct LoopWaker(Arc<mio::Waker>);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Err(error) = self.0.wake() {
            tracing::warn!(%error, "a worker could not be woken");
        }
    }
}

impl<K: Copy + Ord + Hash> Parking<K> {
    /// Those of a worker whose event loop this wakes.
    pub fn new(index: &Index, waker: &Arc<mio::Waker>) -> Parking<K> {
        let waker = Waker::from(Arc::new(LoopWaker(Arc::clone(waker))));
        let feeds = ParkedKind::new(index.feed().bell(waker.clone()));
        let changes = ParkedKind::new(index.news().bell(waker));
        let (waiting, due, queue) = (FxHashMap::default(), BTreeSet::new(), VecDeque::new());
        Parking { feeds, changes, waiting, due, queue }
    }

    fn kind(&mut self, kind: Kind) -> &mut ParkedKind {
        match kind {
            Kind::Feed => &mut self.feeds,
            Kind::Change => &mut self.changes,
        }
    }

    /// A connection has this one now, or has it no more.
    pub fn note(&mut self, who: K, parked: Option<&Parked>) {
        if parked.is_none() && self.waiting.is_empty() {
            return;
        }
        if let Some(NotedPark { until, kind, .. }) = self.waiting.remove(&who) {
            self.due.remove(&(until, who));
            self.kind(kind).waiting -= 1;
        }
        if let Some(parked) = parked {
            let (kind, seen, since) = match &parked.what {
                ParkedRequest::Feed(feed) => (Kind::Feed, feed.seen, feed.since),
                ParkedRequest::Change(change) => (Kind::Change, change.seen, change.begun),
                ParkedRequest::Replies(held) => (Kind::Change, held.seen(), held.since()),
            };
            self.kind(kind).came(seen);
            self.waiting.insert(who, NotedPark { until: parked.until, kind, since });
            self.due.insert((parked.until, who));
        }
    }

    /// Whether none is parked.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next one that is to be looked at.
    pub fn next(&mut self, index: &Index, now: Instant) -> Option<K> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.queue.is_empty() {
            let hears = [
                (Kind::Feed, self.feeds.hears(index.feed().next())),
                (Kind::Change, self.changes.hears(index.news().told())),
            ];
            for (told, _) in hears.into_iter().filter(|(_, hears)| *hears) {
                let its = self.waiting.iter().filter(|(_, noted)| noted.kind == told);
                // Who has waited longest is first: of those who want one key, each has its turn.
                let mut its: Vec<_> = its.map(|(who, noted)| (noted.since, *who)).collect();
                its.sort_unstable();
                self.queue.extend(its.into_iter().map(|(_, who)| who));
            }
        }
        while let Some(who) = self.queue.pop_front() {
            if self.waiting.contains_key(&who) {
                return Some(who);
            }
        }
        self.due.first().filter(|(until, _)| *until <= now).map(|(_, who)| *who)
    }

    /// How long the worker may sleep that could sleep for `timeout` without them. If it may at all, its bells ring from
    /// now on.
    pub fn sleeps(&self, index: &Index, timeout: Option<Duration>) -> Option<Duration> {
        let Some((until, _)) = self.due.first() else { return timeout };
        if !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = timeout.map_or(left, |timeout| timeout.min(left));
        // Q9, Q14
        let may_sleep = timeout.is_zero()
            || (self.feeds.waiting == 0 || index.feed().may_sleep(&self.feeds.bell, self.feeds.looked))
                && (self.changes.waiting == 0
                    || index.news().may_sleep(&self.changes.bell, self.changes.looked));
        Some(if may_sleep { timeout } else { Duration::ZERO })
    }

    /// The worker does not sleep any more.
    pub fn wakes(&self, index: &Index) {
        index.feed().wakes(&self.feeds.bell);
        index.news().wakes(&self.changes.bell);
    }
}

#[cfg(all(test, not(loom)))]
impl<K: Copy + Ord + Hash> Parking<K> {
    /// Pretends that the request of this connection is due then.
    pub fn wait_on(&mut self, who: K, until: Instant) {
        let noted = self.waiting[&who];
        self.due.remove(&(noted.until, who));
        self.waiting.insert(who, NotedPark { until, ..noted });
        self.due.insert((until, who));
    }
}
