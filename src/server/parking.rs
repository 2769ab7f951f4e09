//! Requests that wait for something: *parked* ones (Q9 to Q12). None of the server's threads waits with them.
//!
//! ```text
//! request ── a look: is it there? ── yes: the reply
//!                  │ no: parked, with a time
//!                  ▼
//!            a state of its connection ◄── looked at again: after a change, in its worker's next turn
//!                  │
//!                  ├── it is there                          the reply
//!                  ├── its time is over, or more is asked   the reply that says so
//!                  └── its connection ends, or the server   none
//! ```
//!
//! A connection has one parked request at most, and all of them together a bound. Beyond that a request is answered at
//! once, with nothing, and its client asks again after a pause, as clients of earlier versions do.
//!
//! What a request waits for may come while its worker sleeps. The worker has a bell for that, which rings for it
//! (`src/index/feed/bells.rs`).

use super::caller::Caller;
use super::feed::{self, FeedFound};
use super::park_room::ParkPlace;
use super::shared::ServerState;
use crate::faults::{Rule, broken};
use crate::index::{Feed, FeedBell};
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
    id: u64,
    /// As it came.
    frame: Box<[u8]>,
    /// Changes before this one were looked at: none of them is wanted.
    seen: u64,
    until: Instant,
    _place: ParkPlace,
}

/// What becomes of a request.
pub(super) enum ParkAnswer {
    Now(Reply),
    Later(Parked),
    /// It is about the conversation.
    NotHere,
}

/// Whether a look at a parked request is its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParkLook {
    /// It waits on, if nothing is there and it has time.
    Again,
    /// It is answered.
    Last,
}

impl ServerState {
    /// Answers a request, or parks it: if it may wait, nothing is there for it yet, and there is room.
    pub(super) fn answer_or_park(&self, caller: &mut Caller, id: u64, request: Request<'_>) -> ParkAnswer {
        match request {
            Request::Feed(wanted @ FeedRequest::Changes { within: Some(within), .. }) => {
                match self.feed_found(caller, wanted, 0) {
                    FeedFound::Told(reply) => ParkAnswer::Now(Reply::Feed(reply)),
                    FeedFound::Nothing { reply, seen } => match self.parking.place() {
                        None => ParkAnswer::Now(Reply::Feed(reply)),
                        Some(place) => {
                            let (until, mut frame) = (self.parking.until(within), Vec::new());
                            request.encode(id, &mut frame);
                            ParkAnswer::Later(Parked { id, frame: frame.into(), seen, until, _place: place })
                        }
                    },
                }
            }
            request => self.answer(caller, request).map_or(ParkAnswer::NotHere, ParkAnswer::Now),
        }
    }

    fn feed_found(&self, caller: &Caller, request: FeedRequest<'_>, seen: u64) -> FeedFound {
        feed::find(&self.index, request, seen, self.feed_bytes, caller.feed_room(), &self.followers)
    }
}

impl Parked {
    /// The number of the request.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes that it has.
    pub fn held_bytes(&self) -> usize {
        size_of::<Parked>() + self.frame.len()
    }

    /// Its reply, if it is to be answered now.
    pub fn answer(&mut self, shared: &ServerState, caller: &Caller, look: ParkLook) -> Option<Reply> {
        let is_over = look == ParkLook::Last || Instant::now() >= self.until;
        // Q10
        if broken(Rule::ParkWake) && !is_over {
            return None;
        }
        let Some(request) = self.request() else { return Some(Reply::Unfit) };
        match shared.feed_found(caller, request, self.seen) {
            FeedFound::Told(reply) => Some(Reply::Feed(reply)),
            FeedFound::Nothing { reply, .. } if is_over => Some(Reply::Feed(reply)),
            FeedFound::Nothing { seen, .. } => {
                self.seen = seen;
                None
            }
        }
    }

    fn request(&self) -> Option<FeedRequest<'_>> {
        let frame = wire::decode(&self.frame).ok()??;
        match Request::decode(&frame) {
            Ok(Request::Feed(request)) => Some(request),
            _ => None,
        }
    }
}

/// The parked requests of a worker's connections.
#[derive(Debug)]
pub(super) struct Parking<K> {
    bell: FeedBell,
    waiting: FxHashMap<K, Instant>,
    due: BTreeSet<(Instant, K)>,
    /// Those that are to be looked at.
    queue: VecDeque<K>,
    /// All others have seen what is before this change.
    looked: u64,
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
    pub fn new(feed: &Feed, waker: &Arc<mio::Waker>) -> Parking<K> {
        let bell = feed.bell(Waker::from(Arc::new(LoopWaker(Arc::clone(waker)))));
        let (waiting, due, queue) = (FxHashMap::default(), BTreeSet::new(), VecDeque::new());
        Parking { bell, waiting, due, queue, looked: 0 }
    }

    /// A connection has this one now, or has it no more.
    pub fn note(&mut self, who: K, parked: Option<&Parked>) {
        match (parked, self.waiting.is_empty()) {
            (None, true) => {}
            (None, false) => self.remove(who),
            (Some(parked), is_first) => {
                self.remove(who);
                self.looked = if is_first { parked.seen } else { self.looked.min(parked.seen) };
                self.waiting.insert(who, parked.until);
                self.due.insert((parked.until, who));
            }
        }
    }

    /// A connection waits no more.
    fn remove(&mut self, who: K) {
        if let Some(until) = self.waiting.remove(&who) {
            self.due.remove(&(until, who));
        }
    }

    /// Whether none is parked.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next one that is to be looked at.
    pub fn next(&mut self, feed: &Feed, now: Instant) -> Option<K> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.queue.is_empty() {
            let next = feed.next();
            if next != self.looked {
                self.looked = next;
                self.queue.extend(self.waiting.keys());
            }
        }
        while let Some(who) = self.queue.pop_front() {
            if self.waiting.contains_key(&who) {
                return Some(who);
            }
        }
        self.due.first().filter(|(until, _)| *until <= now).map(|(_, who)| *who)
    }

    /// How long the worker may sleep that could sleep for `timeout` without them. If it may at all, its bell rings from
    /// now on.
    pub fn sleeps(&self, feed: &Feed, timeout: Option<Duration>) -> Option<Duration> {
        let Some((until, _)) = self.due.first() else { return timeout };
        if !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = timeout.map_or(left, |timeout| timeout.min(left));
        // Q9
        let may_sleep = timeout.is_zero() || feed.may_sleep(&self.bell, self.looked);
        Some(if may_sleep { timeout } else { Duration::ZERO })
    }

    /// The worker does not sleep any more.
    pub fn wakes(&self, feed: &Feed) {
        feed.wakes(&self.bell);
    }
}
