//! A channel from a primary to a standby or a newcomer.

use crate::core::context::Context;
use crate::core::ids::{NodeId, ShardIx, Time};
use crate::core::message::{ChannelId, Entry, Item, Key, Life, Message};
use crate::core::results;
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use std::collections::VecDeque;

/// With this many unanswered items on a channel, no request is taken.
const ITEMS_MAX: usize = 4_096;
/// As `ITEMS_MAX`, for removals by the node itself. It is lower, so that entries leave even while more is asked for
/// than is answered.
const ITEMS_OF_OWN: usize = 512;
/// The most items that are repeated at once, or walked.
pub(super) const ITEMS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct Channel<C> {
    pub to: NodeId,
    /// Its life when the channel began.
    pub life: Option<u64>,
    pub id: ChannelId,
    /// Items without an answer yet. The first has the number `answered + 1`.
    pub log: VecDeque<Item>,
    pub answered: u64,
    /// When the last answer came, or when the first unanswered item was sent.
    pub since: Time,
    pub sent: Time,
    /// For a newcomer: the rest of the walk.
    pub walk: Option<Walk<C>>,
    /// The room that the standby has set aside, in bytes.
    pub room: Option<u64>,
    /// The room that it was asked for, by which item, and when.
    pub asked_room: Option<(u64, u64, Time)>,
    /// Since when no change has begun, or did for a while, so that a newcomer can answer all (CL11).
    held: Option<Time>,
}

#[derive(Debug)]
pub(super) struct Walk<C> {
    pub from: Option<C>,
    pub is_over: bool,
    /// Keys that the walk has found, and that were not sent yet.
    pub left: VecDeque<Key>,
    /// The number of the last item that was walked.
    pub last: u64,
}

impl<C> Channel<C> {
    pub fn new<T>(cx: &mut Context<T>, to: NodeId, epoch: u64, walk: Option<Walk<C>>) -> Channel<C> {
        Channel {
            to,
            life: cx.life_of(to),
            id: cx.outbox.new_channel(epoch),
            log: VecDeque::new(),
            answered: 0,
            since: cx.now,
            sent: cx.now,
            walk,
            room: None,
            asked_room: None,
            held: None,
        }
    }

    /// CL11: a newcomer has all but what has come meanwhile. So that it can answer that, no change begins for a while; if that
    /// does not help, some do, and it is tried again.
    pub fn hold<T>(&mut self, cx: &Context<T>) {
        if self.held.is_none_or(|since| cx.now >= since + cx.timing.ttl) {
            self.held = Some(cx.now);
        }
    }

    /// It is named, or is about to be.
    pub fn goes_on(&mut self) {
        self.held = None;
    }

    /// Whether changes wait for it.
    pub fn holds<T>(&self, cx: &Context<T>) -> bool {
        self.held.is_some_and(|since| cx.now < since + cx.timing.ttl / 2)
    }

    pub fn last(&self) -> u64 {
        self.answered + self.log.len() as u64
    }

    pub fn is_full(&self) -> bool {
        self.log.len() >= ITEMS_MAX
    }

    /// Whether the node begins no change by itself.
    pub fn is_full_of_own(&self) -> bool {
        self.log.len() >= ITEMS_MAX + ITEMS_OF_OWN
    }

    pub fn push<T>(&mut self, cx: &mut Context<T>, shard: ShardIx, item: Item) -> u64 {
        if self.log.is_empty() {
            (self.since, self.sent) = (cx.now, cx.now);
        }
        self.log.push_back(item.clone());
        let number = self.last();
        cx.outbox.tell(self.to, Message::Item { shard, channel: self.id, number, item });
        number
    }

    /// Repeats the first items, if none of them was answered for a while.
    pub fn resend<T>(&mut self, cx: &mut Context<T>, shard: ShardIx) {
        if self.log.is_empty() || cx.now < self.sent + cx.timing.resend {
            return;
        }
        self.sent = cx.now;
        for (item, number) in self.log.iter().take(ITEMS_AT_ONCE).zip(self.answered + 1..) {
            let message = Message::Item { shard, channel: self.id, number, item: item.clone() };
            cx.outbox.tell(self.to, message);
        }
    }

    /// Sends a key with its entry. No change of it is under way. `false`: the key is gone.
    pub fn walk_key<T: Table>(&mut self, cx: &mut Context<T>, shard: ShardIx, key: Key) -> bool {
        if broken(Rule::ResultsNotWalked) && results::is_result(&key) {
            return false;
        }
        let Some(value) = cx.memory.table.get(&key) else { return false };
        let life = cx.memory.table.life(&key).unwrap_or_default();
        let end = life.end().filter(|_| !broken(Rule::EndsNotWalked));
        let life = Life::new(end, life.owner().filter(|_| !broken(Rule::OwnersNotWalked)));
        let last = self.push(cx, shard, Item::Walked(key, Entry { value, life }));
        if let Some(walk) = &mut self.walk {
            walk.last = last;
        }
        true
    }
}

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub to: NodeId,
    pub since: Time,
    /// Whether the word is closed. Before that, changes under way are awaited.
    pub is_closed: bool,
}
