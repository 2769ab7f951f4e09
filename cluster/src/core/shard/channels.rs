//! As primary: channels to standbys and newcomers, and the nodes with copies.

use super::change::Change;
use super::channel::{Channel, Closing, ITEMS_AT_ONCE, Walk};
use super::primary::{Primary, Stalled};
use crate::core::context::Context;
use crate::core::ids::{NodeId, NodeIds, Time};
use crate::core::message::{ChannelId, Effect, FeedAt, Item, Message};
use crate::core::state::ShardState;
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// Unanswered items up to which a walk goes on, so that both nodes are busy; and most of its parts in one turn, since beats
/// must go on.
const WALKED_AHEAD: usize = 1_024;
const PARTS_AT_ONCE: usize = 4;
/// TTLs for which no copy is begun with a node that did not get on with one of the shard.
const STALLED: Time = 8;

impl<T: Table> Primary<T> {
    /// CL9: begins to hand the shard over to this node. Returns whether that is possible.
    pub(in crate::core) fn hand_over(&mut self, cx: &mut Context<T>, to: NodeId) -> bool {
        let is_ready = self.leads(cx) && to != cx.me && self.base.map.in_sync.has(to);
        if is_ready {
            self.closing = Some(Closing { to, since: cx.now, is_closed: false });
            self.close_on(cx);
        }
        is_ready
    }

    /// Continues a hand-over. Meanwhile no change begins.
    pub(super) fn close_on(&mut self, cx: &mut Context<T>) {
        let Some(closing) = &mut self.closing else { return };
        if self.base.transaction.is_some() {
        } else if closing.is_closed {
            self.ask_hand_over(cx);
        } else if self.busy.is_empty() && self.growing.is_empty() {
            closing.is_closed = true;
            if self.base.set_word(cx, false) {
                self.ask_hand_over(cx);
            } else {
                self.closing = None;
            }
        } else if cx.now >= closing.since + cx.timing.late {
            // A node does not answer: it is left out first.
            self.closing = None;
            self.progress(cx);
        }
    }

    pub(super) fn ask_hand_over(&mut self, cx: &mut Context<T>) {
        let Some(Closing { to: next, .. }) = self.closing else { return };
        if !self.base.map.in_sync.has(next) && !broken(Rule::NextIsOut) {
            // The standby was left out meanwhile. An earlier transaction rests on an older revision, and fails.
            if self.base.set_word(cx, true) {
                self.closing = None;
                self.progress(cx);
            }
            return;
        }
        let (epoch, primary) = (self.base.map.epoch + 1, Some(next));
        let new = ShardState { epoch, primary, waits: true, ..self.base.map.clone() };
        self.base.transact(cx, new, None);
    }

    /// CL7: standbys that have not answered for too long, or to which there is no channel.
    pub(super) fn look_for_late(&mut self, cx: &mut Context<T>) {
        let late = cx.timing.late;
        let is_late =
            |channel: &&Channel<T::Cursor>| !channel.log.is_empty() && cx.now >= channel.since + late;
        let nodes: NodeIds = self.channels.iter().filter(is_late).map(|channel| channel.to).collect();
        let in_sync = nodes.iter().filter(|node| self.base.map.in_sync.has(*node)).collect::<NodeIds>();
        // Who counts is not given up.
        let others: NodeIds = nodes.iter().filter(|node| !self.counts(cx.me, *node)).collect();
        for node in others.iter() {
            // It has begun, and does not get on: it has no room, say.
            let (now, until) = (cx.now, cx.now + STALLED * cx.timing.ttl);
            let channel = self.channel(node).filter(|channel| channel.answered > 0);
            let stalled = channel.map(|channel| Stalled { node, life: channel.life, until });
            self.stalled.retain(|stalled| stalled.node != node && now < stalled.until);
            self.stalled.extend(stalled);
            self.give_up(cx, node);
        }
        if !in_sync.is_empty() {
            self.leave_out(cx, in_sync);
        }
    }

    /// CL20: whether nothing is known that would keep a node from getting a copy.
    pub(in crate::core) fn gets_on(&self, cx: &Context<T>, node: NodeId) -> bool {
        let is_it = |stalled: &Stalled| {
            stalled.node == node && stalled.life == cx.life_of(node) && cx.now < stalled.until
        };
        let is_in = self.base.map.in_sync.has(node);
        is_in || !self.stalled.iter().any(is_it)
    }

    /// Until when a node is passed over that did not get on.
    pub(in crate::core) fn stalled_until(&self, node: NodeId) -> Option<Time> {
        self.stalled.iter().find(|stalled| stalled.node == node).map(|stalled| stalled.until)
    }

    /// CL21: standbys that have another life have what they had answered, and begin anew with the rest.
    pub(super) fn begin_anew(&mut self, cx: &mut Context<T>) {
        for index in 0..self.channels.len() {
            let Channel { to, life, id: before, answered, .. } = self.channels[index];
            if !self.base.map.in_sync.has(to) || life == cx.life_of(to) {
                continue;
            }
            let is_left = |(id, number): &(ChannelId, u64)| *id == before && *number > answered;
            let after = self.feed_at(cx, |change| !change.numbers.iter().any(is_left));
            let mut channel = Channel::new(cx, to, self.base.map.epoch, None);
            channel.push(cx, self.base.shard, Item::Begin { after });
            // What it had set aside beyond its entries it has forgotten.
            let room = self.base.used + cx.room.growth_of(self.base.used);
            let first = channel.push(cx, self.base.shard, Item::Room(room));
            let is_sent = !broken(Rule::ForgottenAtStart);
            for item in std::mem::take(&mut self.channels[index].log).into_iter().filter(|_| is_sent) {
                channel.push(cx, self.base.shard, item);
            }
            for change in &mut self.busy {
                change.numbers.retain(|place| place.0 != before || is_left(place) && is_sent);
                let left = change.numbers.iter_mut().filter(|(id, _)| *id == before);
                left.for_each(|place| *place = (channel.id, first + place.1 - answered));
            }
            self.channels[index] = channel;
        }
    }

    pub(in crate::core) fn leave_out(&mut self, cx: &mut Context<T>, standbys: NodeIds) -> bool {
        self.ask_to_leave_out(cx, &standbys, &NodeIds::default())
    }

    /// CL20: leaves standbys out that are silent, if none of them beats meanwhile.
    pub(in crate::core) fn leave_out_silent(&mut self, cx: &mut Context<T>, standbys: NodeIds) -> bool {
        self.ask_to_leave_out(cx, &standbys, &standbys)
    }

    fn ask_to_leave_out(&mut self, cx: &mut Context<T>, standbys: &NodeIds, silent: &NodeIds) -> bool {
        let is_ready = self.leads(cx) && self.base.transaction.is_none();
        let in_sync =
            standbys.clone().without(cx.me).iter().fold(self.base.map.in_sync.clone(), NodeIds::without);
        if !is_ready || in_sync == self.base.map.in_sync {
            return false;
        }
        if broken(Rule::LeftOutWithoutEtcd) {
            self.base.map.in_sync = in_sync;
            self.progress(cx);
            return true;
        }
        // A newcomer that may be named counts until etcd has answered (CL11).
        let waits = self.now_waits(cx);
        let new = ShardState { in_sync, waits, ..self.base.map.clone() };
        self.base.transact_if_silent(cx, new, silent);
        true
    }

    pub(in crate::core) fn give_up(&mut self, cx: &mut Context<T>, node: NodeId) {
        if self.counts(cx.me, node) {
            return;
        }
        if let Some(index) = self.channels.iter().position(|channel| channel.to == node) {
            let channel = self.channels.remove(index).id;
            cx.outbox.tell(node, Message::GivenUp { shard: self.base.shard, channel });
        }
    }

    /// A new primary's channels to the nodes in sync.
    pub(super) fn begin_channels(&mut self, cx: &mut Context<T>) {
        for to in self.base.map.in_sync.clone().without(cx.me).iter() {
            let after = self.feed_at(cx, |_| true);
            self.open_channel(cx, to, Item::Begin { after }, None);
        }
    }

    fn open_channel(&mut self, cx: &mut Context<T>, to: NodeId, item: Item, walk: Option<Walk<T::Cursor>>) {
        let mut channel = Channel::new(cx, to, self.base.map.epoch, walk);
        if let Item::Join { room, .. } = item {
            channel.asked_room = Some((room, 1, cx.now));
        }
        channel.push(cx, self.base.shard, item);
        self.channels.push(channel);
    }

    /// CL11: begins to copy the shard to this node. Returns whether that is possible.
    pub(in crate::core) fn begin_join(&mut self, cx: &mut Context<T>, to: NodeId) -> bool {
        let is_ready = self.leads(cx)
            && to != cx.me
            && !self.base.map.in_sync.has(to)
            && self.may_have(cx, to)
            && self.channels.iter().all(|channel| channel.to != to);
        if is_ready {
            // Changes under way do not go over the new channel, and their new keys are in no walk yet.
            let under_way = self.busy.iter().flat_map(|change| &change.stores);
            let left = under_way.map(|(key, _)| key.clone()).collect();
            let walk = Walk { from: None, is_over: false, left, last: 1 };
            let after = self.feed_at(cx, |_| true);
            // Where entries leave, the shard may grow that far while it is copied.
            let room = if cx.room.evicts { self.base.used.max(self.base.room) } else { self.base.used };
            self.open_channel(cx, to, Item::Join { room, after }, Some(walk));
        }
        is_ready
    }

    /// The place of the last change that was begun, and is there (CL18).
    fn feed_at(&self, cx: &Context<T>, is_there: impl Fn(&Change) -> bool) -> FeedAt {
        let last = cx.feed.last(self.base.shard).unwrap_or_default();
        let counts = |change: &&Change| change.effect != Effect::Nothing && is_there(change);
        match self.busy.iter().filter(counts).count() as u64 {
            0 => last,
            _ if broken(Rule::UnderWayUncounted) => last,
            under_way => FeedAt { epoch: self.base.map.epoch, number: last.number + under_way },
        }
    }

    /// Continues the walks for newcomers, and names those that have everything.
    pub(super) fn walk_on(&mut self, cx: &mut Context<T>) {
        let mut grows = !self.growing.is_empty();
        for index in 0..self.channels.len() {
            let to = self.channels[index].to;
            if self.base.map.in_sync.has(to) || self.growing.has(to) {
                continue;
            }
            self.walk_some(cx, index);
            // Before it is full. An item that finds no room would hold up the one that gives it some.
            if self.channels[index].room.is_some_and(|room| room < self.base.used + self.base.used / 16) {
                self.ask_room(cx, index, self.base.used);
            }
            let channel = &mut self.channels[index];
            let Some(walk) = &channel.walk else { continue };
            if !walk.is_over || !walk.left.is_empty() {
                continue;
            }
            // It has answered everything but the changes under way.
            let numbers = self.busy.iter().flat_map(|change| &change.numbers);
            let under_way = numbers.filter(|(id, number)| *id == channel.id && *number > channel.answered);
            let is_whole = under_way.count() == channel.log.len();
            let is_enough = broken(Rule::WalkIsEnough) && channel.answered >= walk.last;
            let has_room = channel.room.is_some_and(|room| room >= self.base.used);
            let any_room = broken(Rule::NoRoomHeld) || broken(Rule::RefusedLate);
            if !is_whole && has_room && channel.answered >= walk.last && !broken(Rule::NewcomerStarved) {
                channel.hold(cx);
            }
            if (is_whole || is_enough) && (has_room || any_room) && self.base.transaction.is_none() {
                channel.goes_on();
                if broken(Rule::NewcomerForgotten) {
                    self.growing = NodeIds::default();
                }
                self.growing = std::mem::take(&mut self.growing).with(to);
                grows = true;
            }
        }
        if grows && self.base.transaction.is_none() {
            let in_sync = self.base.map.in_sync.clone().and(&self.growing);
            let waits = self.now_waits(cx);
            self.base.transact(cx, ShardState { in_sync, waits, ..self.base.map.clone() }, None);
            // Those that were held.
            self.progress(cx);
        }
    }

    /// Sends the next keys of a walk. Each goes under the lock that orders its changes: no change of it is under way.
    pub(super) fn walk_some(&mut self, cx: &mut Context<T>, index: usize) {
        // What it has set aside is known with its first answer.
        if self.channels[index].answered == 0 {
            return;
        }
        for _ in 0..PARTS_AT_ONCE {
            if self.channels[index].log.len() < WALKED_AHEAD {
                self.walk_part(cx, index);
            }
        }
    }

    fn walk_part(&mut self, cx: &mut Context<T>, index: usize) {
        let channel = &mut self.channels[index];
        let Some(walk) = &mut channel.walk else { return };
        if walk.left.len() < ITEMS_AT_ONCE && !walk.is_over {
            let (keys, next) = cx.memory.table.walk(self.base.shard, walk.from.take());
            walk.left.extend(keys);
            walk.is_over = next.is_none();
            walk.from = next;
        }
        let (mut sent, left) = (0, walk.left.len());
        for _ in 0..left {
            if channel.log.len() >= WALKED_AHEAD || sent == ITEMS_AT_ONCE {
                break;
            }
            let Some(walk) = &mut channel.walk else { break };
            let Some(key) = walk.left.pop_front() else { break };
            if self.behind.contains_key(&key) && !broken(Rule::WalkBesideLock) {
                walk.left.push_back(key);
                continue;
            }
            sent += usize::from(channel.walk_key(cx, self.base.shard, key));
        }
    }

    /// A change has ended, and no other change of its keys is under way. Sends those keys that a walk still has to
    /// send. Otherwise a key that changes all the time would keep the walk from its end.
    pub(super) fn walk_changed(&mut self, cx: &mut Context<T>, change: &Change) {
        for channel in &mut self.channels {
            for key in change.keys() {
                let is_full = channel.is_full();
                let Some(walk) = channel.walk.as_mut().filter(|walk| !walk.left.is_empty()) else { break };
                if !is_full
                    && !self.behind.contains_key(key)
                    && let Some(at) = walk.left.iter().position(|left| left == key)
                {
                    walk.left.remove(at);
                    channel.walk_key(cx, self.base.shard, key.clone());
                }
            }
        }
    }

    /// The receiver has taken all items of a channel up to this one. The node is good.
    pub(in crate::core) fn answer_comes(
        &mut self,
        cx: &mut Context<T>,
        from: NodeId,
        id: ChannelId,
        number: u64,
        room: u64,
        is_refused: bool,
    ) {
        let is_it = |channel: &&mut Channel<T::Cursor>| {
            channel.to == from && (channel.id == id || broken(Rule::AnswerOfOldChannel))
        };
        let Some(channel) = self.channels.iter_mut().find(is_it) else { return };
        let number = number.min(channel.last());
        if number >= channel.answered {
            channel.log.drain(..(number - channel.answered) as usize);
            if number > channel.answered {
                channel.since = cx.now;
            }
            (channel.answered, channel.room) = (number, Some(room));
        }
        if is_refused {
            self.withdraw(cx, id, number);
        }
        self.progress(cx);
        // A walk goes as fast as it is answered.
        let is_newcomer = !self.base.map.in_sync.has(from);
        if is_newcomer && self.closing.is_none() && cx.is_good() {
            self.walk_on(cx);
        }
    }
}
