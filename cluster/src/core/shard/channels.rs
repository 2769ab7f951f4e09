//! As primary: channels to standbys and newcomers, and who has copies.

use super::changes::Change;
use super::{ITEMS_MAX, Replica, Role};
use crate::core::feed::FeedAt;
use crate::core::message::{ChannelId, Effect, Entry, Item, Key, Life, Message};
use crate::core::node::{Shared, Standing};
use crate::core::results;
use crate::core::state::{NodeId, NodeIds, ShardIx, ShardState, Time};
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use std::collections::VecDeque;

/// Most items that are sent again at once, or walked.
const ITEMS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct Channel<C> {
    pub(super) to: NodeId,
    pub(super) id: ChannelId,
    /// Items that were not answered. The first has the number `answered + 1`.
    pub(super) log: VecDeque<Item>,
    pub(super) answered: u64,
    /// When something was answered last, or the first item was sent that is not.
    pub(super) since: Time,
    pub(super) sent: Time,
    /// To a newcomer: what is still to be walked.
    pub(super) walk: Option<Walk<C>>,
    /// What the standby has set aside, in bytes.
    pub(super) room: Option<u64>,
    /// What it was asked for, by which item, and when.
    pub(super) asked_room: Option<(u64, u64, Time)>,
}

#[derive(Debug)]
pub(super) struct Walk<C> {
    pub(super) from: Option<C>,
    pub(super) is_over: bool,
    /// Keys that were seen, and not sent yet.
    pub(super) left: VecDeque<Key>,
    /// The number of the last item that was walked.
    pub(super) last: u64,
}

impl<C> Channel<C> {
    pub(super) fn last(&self) -> u64 {
        self.answered + self.log.len() as u64
    }

    pub(super) fn push<T: Table>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        shard: ShardIx,
        item: Item,
    ) -> u64 {
        if self.log.is_empty() {
            (self.since, self.sent) = (now, now);
        }
        self.log.push_back(item.clone());
        let number = self.last();
        shared.tell(self.to, Message::Item { shard, channel: self.id, number, item });
        number
    }
}

impl<C> Channel<C> {
    /// Sends a key with what it has, of which no change is under way. False: it is gone.
    fn walk_key<T: Table>(&mut self, shared: &mut Shared<T>, now: Time, shard: ShardIx, key: Key) -> bool {
        if broken(Rule::ResultsNotWalked) && results::is_result(&key) {
            return false;
        }
        let Some(value) = shared.table.get(&key) else { return false };
        let life = shared.table.life(&key).unwrap_or_default();
        let end = life.end().filter(|_| !broken(Rule::EndsNotWalked));
        let life = Life::new(end, life.owner().filter(|_| !broken(Rule::OwnersNotWalked)));
        let last = self.push(shared, now, shard, Item::Walked(key, Entry { value, life }));
        if let Some(walk) = &mut self.walk {
            walk.last = last;
        }
        true
    }
}

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub(super) to: NodeId,
    pub(super) since: Time,
    /// The word is closed. Before that, what is under way is awaited.
    pub(super) is_closed: bool,
}

impl<C> Replica<C> {
    /// CL9: the primary begins to hand the shard over to this node. Returns whether it can.
    pub(in crate::core) fn hand_over<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        to: NodeId,
    ) -> bool {
        let is_ready = self.leads(shared) && to != shared.id && self.map.in_sync.has(to);
        if is_ready {
            self.closing = Some(Closing { to, since: now, is_closed: false });
            self.close_on(shared, now);
        }
        is_ready
    }

    /// Goes on with a hand-over. No change begins meanwhile.
    pub(super) fn close_on<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let Some(closing) = &mut self.closing else { return };
        if self.transaction.is_some() {
        } else if closing.is_closed {
            self.ask_hand_over(shared, now);
        } else if self.busy.is_empty() && self.growing.is_empty() {
            closing.is_closed = true;
            if self.set_word(shared, false) {
                self.ask_hand_over(shared, now);
            } else {
                self.closing = None;
            }
        } else if now >= closing.since + shared.timing.late {
            // Somebody does not answer: it is left out first.
            self.closing = None;
            self.progress(shared, now);
        }
    }

    pub(super) fn ask_hand_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let Some(Closing { to: next, .. }) = self.closing else { return };
        if !self.map.in_sync.has(next) && !broken(Rule::NextIsOut) {
            // It was left out meanwhile. What was asked for before rests on an older revision, and fails.
            if self.set_word(shared, true) {
                self.closing = None;
                self.progress(shared, now);
            }
            return;
        }
        let (epoch, primary) = (self.map.epoch + 1, Some(next));
        let new = ShardState { epoch, primary, waits: true, ..self.map.clone() };
        self.transact(shared, now, new, None);
    }

    /// Every replica that etcd may name (CL11), but the primary itself.
    pub(super) fn counts(&self, me: NodeId, node: NodeId) -> bool {
        let is_growing = !broken(Rule::CountsLate) && self.growing.has(node);
        node != me && (self.map.in_sync.has(node) || is_growing)
    }

    /// CL7: standbys that have not answered for too long, or that no channel leads to.
    pub(super) fn look_for_late<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let late = shared.timing.late;
        let is_late = |channel: &&Channel<C>| !channel.log.is_empty() && now >= channel.since + late;
        let nodes: NodeIds = self.channels.iter().filter(is_late).map(|channel| channel.to).collect();
        let in_sync = nodes.iter().filter(|node| self.map.in_sync.has(*node)).collect::<NodeIds>();
        // Who counts is not given up.
        nodes.iter().for_each(|node| self.give_up(shared, node));
        if !in_sync.is_empty() {
            self.leave_out(shared, now, in_sync);
        }
    }

    pub(in crate::core) fn leave_out<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        standbys: NodeIds,
    ) -> bool {
        let is_ready = self.leads(shared) && self.transaction.is_none();
        let in_sync = standbys.without(shared.id).iter().fold(self.map.in_sync.clone(), NodeIds::without);
        if !is_ready || in_sync == self.map.in_sync {
            return false;
        }
        if broken(Rule::LeftOutWithoutEtcd) {
            self.map.in_sync = in_sync;
            self.progress(shared, now);
            return true;
        }
        // One that may be named counts on, until etcd has said otherwise (CL11).
        let waits = self.now_waits(now);
        self.transact(shared, now, ShardState { in_sync, waits, ..self.map.clone() }, None);
        true
    }

    pub(in crate::core) fn give_up<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, node: NodeId) {
        if self.counts(shared.id, node) {
            return;
        }
        if let Some(index) = self.channels.iter().position(|channel| channel.to == node) {
            let channel = self.channels.remove(index).id;
            shared.tell(node, Message::GivenUp { shard: self.shard, channel });
        }
    }

    pub(super) fn open_channel<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        to: NodeId,
        item: Item,
        walk: Option<Walk<C>>,
    ) {
        let id = shared.new_channel(self.map.epoch);
        let mut channel = Channel {
            to,
            id,
            log: VecDeque::new(),
            answered: 0,
            since: now,
            sent: now,
            walk,
            room: None,
            asked_room: None,
        };
        channel.push(shared, now, self.shard, item);
        self.channels.push(channel);
    }

    pub(super) fn resend<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        for channel in &mut self.channels {
            if channel.log.is_empty() || now < channel.sent + shared.timing.resend {
                continue;
            }
            channel.sent = now;
            for (item, number) in channel.log.iter().take(ITEMS_AT_ONCE).zip(channel.answered + 1..) {
                let (shard, id, item) = (self.shard, channel.id, item.clone());
                shared.tell(channel.to, Message::Item { shard, channel: id, number, item });
            }
        }
    }

    /// CL11: this node begins to get a copy of the shard. Returns whether it can.
    pub(in crate::core) fn begin_join<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        to: NodeId,
    ) -> bool {
        let is_ready = self.leads(shared)
            && to != shared.id
            && !self.map.in_sync.has(to)
            && self.may_have(shared, to)
            && self.channels.iter().all(|channel| channel.to != to);
        if is_ready {
            // What is under way goes over no channel to it, and a key that comes so is in no walk yet.
            let under_way = self.busy.iter().flat_map(|change| &change.stores);
            let left = under_way.map(|(key, _)| key.clone()).collect();
            let walk = Walk { from: None, is_over: false, left, last: 1 };
            let after = self.feed_at(shared);
            // Where entries leave, the shard may grow that far while it is copied.
            let room = if shared.evicts { self.used.max(self.room) } else { self.used };
            self.open_channel(shared, now, to, Item::Join { room, after }, Some(walk));
        }
        is_ready
    }

    /// The place of the last change that was begun (CL18).
    pub(super) fn feed_at<T: Table<Cursor = C>>(&self, shared: &Shared<T>) -> FeedAt {
        let last = shared.feed.last(self.shard).unwrap_or_default();
        let has_effect = |change: &&Change| change.effect != Effect::Nothing;
        match self.busy.iter().filter(has_effect).count() as u64 {
            0 => last,
            _ if broken(Rule::UnderWayUncounted) => last,
            under_way => FeedAt { epoch: self.map.epoch, number: last.number + under_way },
        }
    }

    /// Walks on for newcomers, and names those that have everything.
    pub(super) fn walk_on<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let mut grows = !self.growing.is_empty();
        for index in 0..self.channels.len() {
            let to = self.channels[index].to;
            if self.map.in_sync.has(to) || self.growing.has(to) {
                continue;
            }
            self.walk_some(shared, now, index);
            // Before it is full: behind an item that finds no room, none is taken that would give it some.
            if self.channels[index].room.is_some_and(|room| room < self.used + self.used / 16) {
                self.ask_room(shared, now, index, self.used);
            }
            let channel = &self.channels[index];
            let Some(walk) = &channel.walk else { continue };
            if !walk.is_over || !walk.left.is_empty() {
                continue;
            }
            // It has answered all but what is under way.
            let numbers = self.busy.iter().flat_map(|change| &change.numbers);
            let under_way = numbers.filter(|(id, number)| *id == channel.id && *number > channel.answered);
            let is_whole = under_way.count() == channel.log.len();
            let is_enough = broken(Rule::WalkIsEnough) && channel.answered >= walk.last;
            let has_room = channel.room.is_some_and(|room| room >= self.used);
            let any_room = broken(Rule::NoRoomHeld) || broken(Rule::RefusedLate);
            if (is_whole || is_enough) && (has_room || any_room) && self.transaction.is_none() {
                if broken(Rule::NewcomerForgotten) {
                    self.growing = NodeIds::default();
                }
                self.growing = std::mem::take(&mut self.growing).with(to);
                grows = true;
            }
        }
        if grows && self.transaction.is_none() {
            let in_sync = self.map.in_sync.clone().and(&self.growing);
            let waits = self.now_waits(now);
            self.transact(shared, now, ShardState { in_sync, waits, ..self.map.clone() }, None);
        }
    }

    /// The next keys of a walk. Each goes under the lock that orders its changes: none is under way.
    pub(super) fn walk_some<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        index: usize,
    ) {
        let channel = &mut self.channels[index];
        let Some(walk) = &mut channel.walk else { return };
        // What it has set aside is known with its first answer.
        if channel.answered == 0 {
            return;
        }
        if walk.left.len() < ITEMS_AT_ONCE && !walk.is_over {
            let (keys, next) = shared.table.walk(self.shard, walk.from.take());
            walk.left.extend(keys);
            walk.is_over = next.is_none();
            walk.from = next;
        }
        let mut sent = 0;
        for _ in 0..walk.left.len() {
            let Some(walk) = &mut channel.walk else { break };
            if channel.log.len() >= ITEMS_MAX || sent == ITEMS_AT_ONCE {
                break;
            }
            let Some(key) = walk.left.pop_front() else { break };
            if self.behind.contains_key(&key) && !broken(Rule::WalkBesideLock) {
                walk.left.push_back(key);
                continue;
            }
            sent += usize::from(channel.walk_key(shared, now, self.shard, key));
        }
    }

    /// A change is over, and no other one of its keys is under way: those that a walk has still to send go now. Else a key that
    /// is changed all the time would keep the walk from its end.
    pub(super) fn walk_changed<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        change: &Change,
    ) {
        for channel in &mut self.channels {
            for key in change.stores.iter().map(|store| &store.0).chain([&change.request.key]) {
                let Some(walk) = channel.walk.as_mut().filter(|walk| !walk.left.is_empty()) else { break };
                if channel.log.len() < ITEMS_MAX
                    && !self.behind.contains_key(key)
                    && let Some(at) = walk.left.iter().position(|left| left == key)
                {
                    walk.left.remove(at);
                    channel.walk_key(shared, now, self.shard, key.clone());
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(in crate::core) fn answer_comes<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        from: NodeId,
        id: ChannelId,
        number: u64,
        room: u64,
        is_refused: bool,
    ) {
        if shared.standing != Standing::Good || self.role != Role::Primary {
            return;
        }
        let is_it = |channel: &&mut Channel<C>| {
            channel.to == from && (channel.id == id || broken(Rule::AnswerOfOldChannel))
        };
        let Some(channel) = self.channels.iter_mut().find(is_it) else { return };
        let number = number.min(channel.last());
        if number >= channel.answered {
            channel.log.drain(..(number - channel.answered) as usize);
            if number > channel.answered {
                channel.since = now;
            }
            (channel.answered, channel.room) = (number, Some(room));
        }
        if is_refused {
            self.withdraw(shared, id, number);
        }
        self.progress(shared, now);
        // A walk goes as fast as it is answered.
        let is_newcomer = !self.map.in_sync.has(from);
        if is_newcomer && self.closing.is_none() && shared.standing == Standing::Good {
            self.walk_on(shared, now);
        }
    }

    /// Nobody is late as of now.
    pub(in crate::core) fn forgive(&mut self, now: Time) {
        self.channels.iter_mut().for_each(|channel| channel.since = now);
        self.evicting.forgive();
    }

    /// CL9: tells etcd when it is, so that a takeover from now on need not wait again.
    pub(super) fn wait_is_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if self.map.waits && !self.now_waits(now) && self.transaction.is_none() {
            self.transact(shared, now, ShardState { waits: false, ..self.map.clone() }, None);
        }
    }
}
