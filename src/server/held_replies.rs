//! Replies of changes that have their outcome, and of what was asked behind them (Q15).
//!
//! A change that was decided waits for what comes before it is made; one that is made may wait for its split. Either has
//! its reply, which is sent after that. Meanwhile the connection's next changes are tried, too: so those of a batch wait
//! together. Replies are sent in the order in which they were asked for.

use super::park_room::{ParkPlace, ParkRoom, RequestAt};
use super::shared::ServerState;
use crate::index::{ChangeWait, ChangeWaits};
use crate::wire::Reply;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// No more changes are tried while replies of this many bytes are held.
const HELD_MAX: usize = 1 << 17;

/// The reply to a change that has its outcome, and waits (Q15).
#[derive(Debug)]
pub(super) struct LaterReply {
    pub reply: Reply,
    pub waits: ChangeWaits,
    /// What was told before this number, its try has seen.
    pub seen: u64,
}

/// The replies that a connection has to wait for.
#[derive(Debug)]
pub(super) struct HeldReplies {
    at: RequestAt,
    replies: VecDeque<HeldReply>,
    bytes: usize,
    /// What was told before this number, the last look has seen.
    seen: u64,
    _place: ParkPlace,
}

#[derive(Debug)]
struct HeldReply {
    /// The number of its request.
    id: u64,
    reply: Reply,
    /// What its change waits for.
    waits: ChangeWaits,
    since: Instant,
}

impl HeldReplies {
    /// Holds a reply, as the last one. Where a connection may hold none, this waits, and returns the reply.
    pub fn hold(
        held: &mut Option<HeldReplies>,
        shared: &ServerState,
        at: RequestAt,
        (id, later): (u64, LaterReply),
    ) -> Option<Reply> {
        let held = match held {
            Some(held) => held,
            None => {
                let Some(place) = shared.parking.place() else {
                    return Some(wait_here(shared, later));
                };
                let (replies, bytes, seen) = (VecDeque::new(), 0, later.seen);
                held.insert(HeldReplies { at, replies, bytes, seen, _place: place })
            }
        };
        held.push(id, later);
        None
    }

    /// Holds one more.
    pub fn push(&mut self, id: u64, LaterReply { reply, waits, .. }: LaterReply) {
        self.bytes += size_of::<HeldReply>() + reply.told_bytes();
        self.replies.push_back(HeldReply { id, reply, waits, since: Instant::now() });
    }

    /// Since when the first one waits.
    pub fn since(&self) -> Instant {
        self.replies.front().map_or_else(Instant::now, |front| front.since)
    }

    /// Whether no more is to be asked before these are sent.
    pub fn are_many(&self) -> bool {
        self.bytes >= HELD_MAX
    }

    pub fn at(&self) -> RequestAt {
        self.at
    }

    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn bytes(&self) -> usize {
        self.bytes + size_of::<HeldReplies>()
    }

    /// When they are looked at next, if nothing is told before.
    pub fn until(&self, shared: &ServerState) -> Instant {
        let left = self.replies.front().and_then(|front| front.waits.now());
        Instant::now() + left.map_or(Duration::ZERO, |wait| shared.index.wait_left(wait))
    }

    /// Sends those that wait no longer, in order. Returns whether all are sent.
    pub fn send(&mut self, shared: &ServerState, mut send: impl FnMut(u64, Reply)) -> bool {
        let index = &shared.index;
        self.seen = index.news().told();
        while let Some(front) = self.replies.front_mut() {
            let wait = front.waits.now();
            index.end_wait(&front.waits);
            if let Err(error) = index.go_on(&front.waits) {
                front.reply = shared.counted(front.reply.refused(error));
            } else if front.waits.now().is_some() && !is_over(wait, front.since) {
                return false;
            }
            if let Some(HeldReply { id, reply, .. }) = self.replies.pop_front() {
                send(id, reply);
            }
        }
        true
    }
}

/// Whether a change waits no longer for this, however that ends: not for its split; but always for what comes before it
/// is made.
fn is_over(wait: Option<ChangeWait>, since: Instant) -> bool {
    match wait {
        None | Some(ChangeWait::Decided) => false,
        Some(wait) => since.elapsed() >= ParkRoom::longest(wait, Duration::ZERO),
    }
}

/// Waits on this thread.
#[cold]
fn wait_here(shared: &ServerState, LaterReply { reply, waits, .. }: LaterReply) -> Reply {
    while shared.index.sleep_through(&waits) {
        if let Err(error) = shared.index.go_on(&waits) {
            return shared.counted(reply.refused(error));
        }
    }
    reply
}
