//! A node's part in one shard: primary, standby, newcomer, or none.

use crate::core::etcd::{At, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::message::{
    ChannelId, Item, Key, Kind, Message, NotDone, Outcome, Peer, Reply, Request, RequestId, Store, Value,
};
use crate::core::node::{Pending, Shared, Standing};
use crate::core::results::{self, ResultKey};
use crate::core::state::{NodeId, NodeIds, ShardIx, ShardState, Time, Word};
use crate::core::table::{Stock, Table};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What a node is for a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Nothing, or a newcomer.
    None,
    /// In sync.
    Standby,
    /// Serves it.
    Primary,
    /// Named primary, but started again: wants a new epoch (CL10).
    Again,
}

/// A change, or an outcome without one, that waits for the counted replicas.
#[derive(Debug)]
struct Change {
    peer: Peer,
    request: Request,
    stores: SmallVec<[Store; 2]>,
    outcome: Outcome,
    /// Bytes of room that are free when it is done.
    frees: u64,
    /// Its number in each channel.
    numbers: SmallVec<[(ChannelId, u64); 2]>,
}

#[derive(Debug)]
struct Channel<C> {
    to: NodeId,
    id: ChannelId,
    /// Items that were not answered. The first has the number `answered + 1`.
    log: VecDeque<Item>,
    answered: u64,
    /// When something was answered last, or the first item was sent that is not.
    since: Time,
    sent: Time,
    /// To a newcomer: what is still to be walked.
    walk: Option<Walk<C>>,
    /// What the standby has set aside, in bytes.
    room: Option<u64>,
    /// What it was asked for, by which item, and when.
    asked_room: Option<(u64, u64, Time)>,
}

#[derive(Debug)]
struct Walk<C> {
    from: Option<C>,
    is_over: bool,
    /// Keys that were seen, and not sent yet.
    left: VecDeque<Key>,
    /// The number of the last item that was walked.
    last: u64,
}

impl<C> Channel<C> {
    fn last(&self) -> u64 {
        self.answered + self.log.len() as u64
    }

    fn push<T: Table>(&mut self, shared: &mut Shared<T>, now: Time, shard: ShardIx, item: Item) -> u64 {
        if self.log.is_empty() {
            (self.since, self.sent) = (now, now);
        }
        self.log.push_back(item.clone());
        let number = self.last();
        shared.tell(self.to, Message::Item { shard, channel: self.id, number, item });
        number
    }
}

/// As standby or newcomer: what has come over the last channel.
#[derive(Clone, Copy, Debug)]
struct Position {
    channel: ChannelId,
    number: u64,
    /// Without a gap, and not given up.
    is_whole: bool,
    /// Somebody waits for an answer.
    is_due: bool,
    is_refused: bool,
}

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
struct Closing {
    to: NodeId,
    since: Time,
    /// The word is closed. Before that, what is under way is awaited.
    is_closed: bool,
}

/// What is decided of a request.
enum Decided {
    /// Nothing yet: for want of an answer, or of time.
    Wait,
    /// Nothing yet: a change of this key is under way.
    Behind(Key),
    /// Nothing: its client has given it up.
    Drop,
    /// Nothing, for certain.
    NotDone(NotDone),
    /// Its outcome is known, and no other node need agree.
    Ended(Outcome),
    /// Its outcome, when all counted replicas have these stores; the room that it takes, and frees.
    Begin { outcome: Outcome, stores: SmallVec<[Store; 2]>, takes: u64, frees: u64 },
}

/// Unanswered items of a channel at which no request is taken any more.
const ITEMS_MAX: usize = 4_096;
/// Requests that wait, at which no further one is taken.
const WAITING_MAX: usize = 16_384;
/// Most items that are sent again at once, or walked.
const ITEMS_AT_ONCE: usize = 64;
/// Times of a call of etcd after which a standby that had no room is asked again.
const ASK_ROOM_AGAIN: u32 = 4;

/// A node's part in one shard.
#[derive(Debug)]
pub struct Replica<C> {
    shard: ShardIx,
    map: ShardState,
    at: At,
    role: Role,
    /// Room that its entries take, with those that changes under way will; room that is set aside.
    used: u64,
    room: u64,
    // As primary.
    busy: VecDeque<Change>,
    /// Keys of changes under way, and requests behind them.
    behind: FxHashMap<Key, VecDeque<(Peer, Request)>>,
    waiting: VecDeque<(Peer, Request)>,
    channels: Vec<Channel<C>>,
    transaction: Option<Pending>,
    closing: Option<Closing>,
    growing: NodeIds,
    /// No change before that time (CL9).
    first: Time,
    // As standby.
    position: Option<Position>,
    /// Epoch of the last channel that brought something, until its sender gives it up (CL12).
    joined: Option<u64>,
    /// A copy that is out may be READ until then (CL9).
    keeps_until: Time,
    /// Something of an old copy may be left.
    is_stale: bool,
    /// So far an old copy was removed.
    freed_to: Option<C>,
    started_again: bool,
}

impl<C> Replica<C> {
    pub(in crate::core) fn new(shard: ShardIx) -> Replica<C> {
        Replica {
            shard,
            map: ShardState::default(),
            at: 0,
            role: Role::None,
            used: 0,
            room: 0,
            busy: VecDeque::new(),
            behind: FxHashMap::default(),
            waiting: VecDeque::new(),
            channels: Vec::new(),
            transaction: None,
            closing: None,
            growing: NodeIds::default(),
            first: 0,
            position: None,
            joined: None,
            keeps_until: 0,
            is_stale: false,
            freed_to: None,
            started_again: true,
        }
    }

    /// The shard.
    pub fn shard(&self) -> ShardIx {
        self.shard
    }

    /// How many newcomers it copies the shard to.
    pub(in crate::core) fn newcomers(&self) -> usize {
        self.channels.iter().filter(|channel| !self.map.in_sync.has(channel.to)).count()
    }

    /// What it is for the shard.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The shard, as etcd said last.
    pub fn state(&self) -> &ShardState {
        &self.map
    }

    /// The room that its entries take, in bytes.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The room that is set aside for it, in bytes.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// How many changes are under way.
    pub fn under_way(&self) -> usize {
        self.busy.len()
    }

    /// Nodes that it has a channel to.
    pub fn channels(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.channels.iter().map(|channel| channel.to)
    }

    /// Whether etcd was asked for something, and has not answered.
    pub fn has_asked(&self) -> bool {
        self.transaction.is_some()
    }

    // ---- what etcd says ----

    /// A node begins again: what its table has of the shard.
    pub(in crate::core) fn take_stock<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, stock: Stock) {
        (self.used, self.is_stale) = (stock.bytes, stock.entries > 0);
        self.set_room(shared, self.used);
        // Whoever it was: leases of clients may last.
        self.keeps_until = Time::MAX;
    }

    pub(in crate::core) fn answered(&mut self, answer: &EtcdAnswer) {
        if self.transaction.is_some_and(|transaction| answer.is_of(transaction.call)) {
            self.transaction = None;
        }
    }

    /// CL10: goes on as what etcd says after the new life has begun.
    pub(in crate::core) fn resume<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let is_closed = self.closing.is_some_and(|closing| closing.is_closed);
        if self.role == Role::Primary && self.map.primary == Some(shared.id) && !is_closed {
            self.set_word(shared, true);
            self.progress(shared, now);
        }
    }

    fn set_word<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, is_open: bool) -> bool {
        let (shard, epoch) = (usize::from(self.shard), self.map.epoch);
        shared.change_page(|page| page.words[shard] = Word { epoch, is_open })
    }

    pub(in crate::core) fn learn<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        state: &ShardState,
        at: At,
    ) {
        // A role can be taken only when the word says so. It is tried again with the next answer.
        let was_open = shared.page.words[usize::from(self.shard)].is_open;
        let is_new_epoch = state.epoch != self.map.epoch;
        if state.revision <= self.map.revision {
            return;
        }
        if is_new_epoch && was_open && !self.set_word(shared, false) {
            return;
        }
        let old = std::mem::replace(&mut self.map, state.clone());
        self.at = at;
        shared.note(self.shard, state);
        (self.transaction, self.growing) = (None, NodeIds::default());
        if is_new_epoch {
            self.take_role(shared, now);
        } else if matches!(self.role, Role::Primary | Role::Again) {
            let left: Vec<NodeId> = old.in_sync.iter().filter(|node| !state.in_sync.has(*node)).collect();
            left.into_iter().for_each(|node| self.give_up(shared, node));
        } else {
            let was = self.role;
            self.role = if state.in_sync.has(shared.id) { Role::Standby } else { Role::None };
            if was == Role::Standby && self.role == Role::None {
                self.leaves(shared, now);
            }
        }
        if self.role == Role::Primary {
            self.progress(shared, now);
        }
    }

    /// A copy that is out stays as it is until all leases on it are over (CL9).
    fn leaves<T>(&mut self, shared: &Shared<T>, now: Time) {
        let is_freed = broken(Rule::FrozenCopyFreed);
        self.keeps_until = if is_freed { 0 } else { now + shared.timing.wait() };
    }

    /// A new epoch. The word is closed.
    fn take_role<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let me = shared.id;
        // Nothing is under way any more.
        let behind = std::mem::take(&mut self.behind).into_values().flatten();
        for (peer, request) in std::mem::take(&mut self.waiting).into_iter().chain(behind) {
            shared.not_done(peer, &request, NotDone::NotServed);
        }
        for change in std::mem::take(&mut self.busy) {
            self.used -= change.taken(shared);
        }
        self.channels.clear();
        self.closing = None;
        if self.map.primary == Some(me) && self.started_again && !broken(Rule::OldEpochAtStart) {
            // What was under way is not known: a new epoch, alone.
            self.role = Role::Again;
            self.set_word(shared, false);
        } else if self.map.primary == Some(me) {
            self.role = Role::Primary;
            self.started_again = false;
            let waits = self.map.waits && !broken(Rule::NoWaitAfterHandOver);
            self.first = if waits { now + shared.timing.wait() } else { 0 };
            self.is_stale = true;
            self.set_word(shared, true);
            for to in self.map.in_sync.clone().without(me).iter() {
                self.open_channel(shared, now, to, Item::Begin, None);
            }
        } else {
            // It may be about to be named, by one that it forgot (CL12).
            if std::mem::take(&mut self.started_again) && self.is_stale {
                self.joined = Some(self.map.epoch);
            }
            self.role = if self.map.in_sync.has(me) { Role::Standby } else { Role::None };
            self.leaves(shared, now);
            self.set_word(shared, false);
        }
    }

    fn transact<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        new: ShardState,
        gone: Option<NodeId>,
    ) {
        let name = EtcdKey::Shard(self.shard);
        let (mut compare, mut put) = (vec![(name, self.at)], Vec::new());
        put.push((name, EtcdValue::Shard(ShardState { revision: self.map.revision + 1, ..new })));
        if let Some(seen) = gone.and_then(|gone| shared.seen.get(&gone).map(|seen| (gone, seen))) {
            let (gone, seen) = seen;
            compare.push((EtcdKey::Node(gone), seen.at));
            let mut key = seen.key.clone();
            key.alive = false;
            put.push((EtcdKey::Node(gone), EtcdValue::Node(key)));
        }
        let call = shared.transact(compare, put);
        self.transaction = Some(Pending { call, since: now });
    }

    /// Whether it serves the shard, and hands it over to nobody.
    fn leads<T>(&self, shared: &Shared<T>) -> bool {
        self.role == Role::Primary && shared.standing == Standing::Good && self.closing.is_none()
    }

    /// A state that this primary tells etcd: whether the wait is over (CL9).
    fn now_waits(&self, now: Time) -> bool {
        self.map.waits && now < self.first
    }

    /// CL9: tells etcd when it is, so that a takeover from now on need not wait again.
    fn wait_is_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if self.map.waits && !self.now_waits(now) && self.transaction.is_none() {
            self.transact(shared, now, ShardState { waits: false, ..self.map.clone() }, None);
        }
    }

    // ---- what is due ----

    pub(in crate::core) fn tick<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if shared.standing != Standing::Good {
            return;
        }
        // The answer was lost: what became of it etcd tells whoever looks.
        if self.transaction.is_some_and(|pending| now >= pending.since + shared.timing.call) {
            self.transaction = None;
        }
        match self.role {
            Role::Primary => {
                // There was no memory for it.
                if self.closing.is_none() && !shared.page.words[usize::from(self.shard)].is_open {
                    self.set_word(shared, true);
                }
                self.resend(shared, now);
                self.progress(shared, now);
                if self.closing.is_some() {
                    self.close_on(shared, now);
                } else {
                    self.look_for_late(shared, now);
                    self.walk_on(shared, now);
                    self.wait_is_over(shared, now);
                }
            }
            Role::Standby => self.take_over(shared, now),
            Role::None => self.free_copy(shared, now),
            Role::Again => self.begin_again(shared, now),
        }
    }

    /// CL10
    fn begin_again<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if self.map.primary == Some(shared.id) && self.transaction.is_none() {
            // The transaction's answer is learned as any other.
            self.started_again = false;
            let in_sync = NodeIds::of(shared.id);
            self.transact(
                shared,
                now,
                ShardState { epoch: self.map.epoch + 1, in_sync, ..self.map.clone() },
                None,
            );
        }
    }

    /// Becomes primary of a shard that nobody ever served.
    pub(in crate::core) fn claim<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) -> bool {
        let is_free = self.map.epoch == 0 && self.map.primary.is_none() && self.at != 0;
        if !is_free || shared.standing != Standing::Good || self.transaction.is_some() {
            return false;
        }
        let me = shared.id;
        let new = ShardState { epoch: 1, primary: Some(me), in_sync: NodeIds::of(me), ..self.map.clone() };
        self.transact(shared, now, new, None);
        true
    }

    /// CL8
    fn take_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let Some(primary) = self.map.primary.filter(|_| self.transaction.is_none()) else { return };
        let mut gone = None;
        if !broken(Rule::TakenWhileItBeats) {
            let Some(seen) = shared.seen.get(&primary) else { return };
            let ttl = if broken(Rule::NoTtl) { 0 } else { shared.timing.ttl };
            if seen.key.alive && now < seen.since + ttl {
                return;
            }
            gone = Some(primary);
        }
        let waits = self.map.waits && !broken(Rule::WaitForgotten);
        let in_sync = NodeIds::of(shared.id);
        let new =
            ShardState { epoch: self.map.epoch + 1, primary: Some(shared.id), in_sync, waits, revision: 0 };
        self.transact(shared, now, new, gone);
    }

    /// CL9
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
    fn close_on<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
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

    fn ask_hand_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
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
    fn counts(&self, me: NodeId, node: NodeId) -> bool {
        let is_growing = !broken(Rule::CountsLate) && self.growing.has(node);
        node != me && (self.map.in_sync.has(node) || is_growing)
    }

    /// CL7: standbys that have not answered for too long, or that no channel leads to.
    fn look_for_late<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
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

    // ---- channels ----

    fn open_channel<T: Table<Cursor = C>>(
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

    fn resend<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
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

    /// CL11
    pub(in crate::core) fn begin_join<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        to: NodeId,
    ) -> bool {
        let is_ready = self.leads(shared)
            && to != shared.id
            && !self.map.in_sync.has(to)
            && self.channels.iter().all(|channel| channel.to != to);
        if is_ready {
            // What is under way goes over no channel to it, and a key that comes so is in no walk yet.
            let under_way = self.busy.iter().flat_map(|change| &change.stores);
            let left = under_way.map(|(key, _)| key.clone()).collect();
            let walk = Walk { from: None, is_over: false, left, last: 1 };
            self.open_channel(shared, now, to, Item::Join { room: self.used }, Some(walk));
        }
        is_ready
    }

    /// Walks on for newcomers, and names those that have everything.
    fn walk_on<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let mut grows = !self.growing.is_empty();
        for index in 0..self.channels.len() {
            let to = self.channels[index].to;
            if self.map.in_sync.has(to) || self.growing.has(to) {
                continue;
            }
            self.walk_some(shared, now, index);
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
            if !has_room && channel.room.is_some() {
                self.ask_room(shared, now, index, self.used);
            }
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
    fn walk_some<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time, index: usize) {
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
            if broken(Rule::ResultsNotWalked) && results::is_result(&key) {
                continue;
            }
            let Some(value) = shared.table.get(&key) else { continue };
            let last = channel.push(shared, now, self.shard, Item::Walked(key, value));
            sent += 1;
            if let Some(walk) = &mut channel.walk {
                walk.last = last;
            }
        }
    }

    // ---- requests ----

    pub(in crate::core) fn request_comes<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        peer: Peer,
        request: Request,
    ) {
        let serves = self.role == Role::Primary && shared.standing == Standing::Good;
        if !serves || self.waiting.len() >= WAITING_MAX {
            return shared.not_done(peer, &request, NotDone::NotServed);
        }
        // Behind others that wait, it waits with them, until the next answer or tick.
        self.waiting.push_back((peer, request));
        if self.waiting.len() == 1 {
            self.progress(shared, now);
        }
    }

    /// Sets room aside up to `wanted`, if there is any.
    fn set_room<T>(&mut self, shared: &mut Shared<T>, wanted: u64) {
        let more = wanted.saturating_sub(self.room).min(shared.room_left);
        (self.room, shared.room_left) = (self.room + more, shared.room_left - more);
    }

    /// Asks a standby to set room aside. True: it was asked, and its answer is not there yet.
    fn ask_room<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        index: usize,
        wanted: u64,
    ) -> bool {
        let channel = &mut self.channels[index];
        let again = shared.timing.call * Time::from(ASK_ROOM_AGAIN);
        if let Some((asked, number, since)) = channel.asked_room
            && asked >= wanted
        {
            if channel.answered < number {
                return true;
            }
            if now < since + again {
                return false;
            }
        }
        // More than is needed, so that it need not be asked for each.
        let number = channel.push(shared, now, self.shard, Item::Room(wanted + wanted / 8));
        channel.asked_room = Some((wanted, number, now));
        true
    }

    /// Room here and at all replicas that count, for all entries to come (CL12). `None`: not known yet.
    fn has_room<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        used: u64,
    ) -> Option<bool> {
        if used > self.room {
            self.set_room(shared, used + used / 8);
        }
        if used > self.room {
            return Some(false);
        }
        if broken(Rule::NoRoomHeld) || broken(Rule::RefusedLate) {
            return Some(true);
        }
        let nodes: NodeIds = self.map.in_sync.clone().and(&self.growing).without(shared.id);
        for node in nodes.iter().filter(|node| self.counts(shared.id, *node)) {
            let index = self.channels.iter().position(|channel| channel.to == node)?;
            if used > self.channels[index].room? {
                return if self.ask_room(shared, now, index, used) { None } else { Some(false) };
            }
        }
        Some(true)
    }

    /// What a request comes to, as its key is now.
    fn decide<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        request: &Request,
    ) -> Decided {
        let is_full = self.channels.iter().any(|channel| channel.log.len() >= ITEMS_MAX);
        if now < self.first || self.closing.is_some() || is_full {
            return Decided::Wait;
        }
        let result_key = request.id.map(|id| ResultKey::new(self.shard, id.lane));
        for key in [Some(&request.key), result_key.as_ref().map(|result| &result.0)].into_iter().flatten() {
            if self.behind.contains_key(key) {
                return Decided::Behind(key.clone());
            }
        }
        let known = result_key.as_ref().and_then(|result| shared.table.get(&result.0));
        if let (Some(id), Some((last, outcome))) =
            (request.id, known.as_ref().and_then(|v| results::decode(v)))
            && id.number <= last
        {
            // An older one was given up by its client.
            return if id.number == last { Decided::Ended(outcome) } else { Decided::Drop };
        }
        let old = shared.table.value_len(&request.key);
        let mut differs = |expected: &Value| {
            old != Some(expected.len()) || shared.table.get(&request.key).as_ref() != Some(expected)
        };
        let (mut outcome, new) = match &request.kind {
            Kind::Insert(_) if old.is_some() => (Outcome::Exists, None),
            Kind::Swap { .. } | Kind::Remove if old.is_none() => (Outcome::Absent, None),
            Kind::Swap { expected, .. } if differs(expected) => (Outcome::Differs, None),
            Kind::Remove => (Outcome::Done, Some(None)),
            Kind::Put(value) | Kind::Insert(value) | Kind::Swap { new: value, .. } => {
                (Outcome::Done, Some(Some(value.clone())))
            }
        };
        let cost = |len: Option<usize>| shared.cost(&request.key, len);
        let mut store: Option<Store> = new.map(|new| (request.key.clone(), new));
        let (was, is) = (cost(old), store.as_ref().map(|store| cost(store.1.as_ref().map(Value::len))));
        let (mut takes, mut frees) = is.map_or((0, 0), |is| (is.saturating_sub(was), was.saturating_sub(is)));
        let for_result = match &result_key {
            Some(result) if known.is_none() => shared.table.cost(&result.0, results::LEN),
            _ => 0,
        };
        if for_result > 0 {
            match self.has_room(shared, now, self.used + for_result) {
                None => return Decided::Wait,
                Some(false) => return Decided::NotDone(NotDone::NoRoomForResult),
                Some(true) => {}
            }
        }
        if takes > 0 {
            match self.has_room(shared, now, self.used + for_result + takes) {
                None => return Decided::Wait,
                Some(false) => (outcome, store, takes, frees) = (Outcome::Full, None, 0, 0),
                Some(true) => {}
            }
        }
        // Nothing is changed, and nothing is told of what is there: no other node need agree.
        if outcome == Outcome::Full && (request.id.is_none() || broken(Rule::RefusalsForgotten))
            || store.is_none() && broken(Rule::FailureAtOnce)
        {
            return Decided::Ended(outcome);
        }
        let is_forgotten = broken(Rule::RefusalsForgotten) && store.is_none();
        let mut stores: SmallVec<[Store; 2]> = store.into_iter().collect();
        if let (Some(result), Some(RequestId { number, .. }), false) = (result_key, request.id, is_forgotten)
        {
            stores.push((result.0, Some(results::encode(number, outcome))));
            takes += for_result;
        }
        Decided::Begin { outcome, stores, takes, frees }
    }

    /// Decides what waits. Changes of one key go one by one (CL5).
    fn take<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        for (peer, request) in std::mem::take(&mut self.waiting) {
            match self.decide(shared, now, &request) {
                Decided::Wait => self.waiting.push_back((peer, request)),
                Decided::Behind(key) => self.behind.entry(key).or_default().push_back((peer, request)),
                Decided::Drop => {}
                Decided::NotDone(why) => shared.not_done(peer, &request, why),
                Decided::Ended(outcome) => {
                    shared.reply(peer, Reply { copy: request.copy, ended: Ok(outcome) });
                }
                Decided::Begin { outcome, stores, takes, frees } => {
                    self.used += takes;
                    self.begin(shared, now, peer, request, outcome, stores, frees);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn begin<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        peer: Peer,
        request: Request,
        outcome: Outcome,
        stores: SmallVec<[Store; 2]>,
        frees: u64,
    ) {
        let mut sent = stores.clone();
        if broken(Rule::ResultsAlone) {
            sent.retain(|(key, _)| !results::is_result(key));
        }
        let mut numbers = SmallVec::new();
        for channel in &mut self.channels {
            let number = channel.push(shared, now, self.shard, Item::Change(sent.clone()));
            numbers.push((channel.id, number));
        }
        if broken(Rule::VisibleFirst) {
            let _ = stores.iter().try_for_each(|store| shared.store(store));
        }
        // One that changes nothing holds its key, too: it is as of then.
        self.behind.insert(request.key.clone(), VecDeque::new());
        for (key, _) in &stores {
            self.behind.insert(key.clone(), VecDeque::new());
        }
        self.busy.push_back(Change { peer, request, stores, outcome, frees, numbers });
    }

    /// Changes that all counted replicas have are made visible and answered (CL5).
    fn progress<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        while shared.standing == Standing::Good {
            self.take(shared, now);
            let under_way = self.busy.len();
            // Channels are in order, so the first under way is the first that all have.
            while let Some(change) = self.busy.front().filter(|change| self.is_ready(shared.id, change)) {
                if change.stores.iter().any(|store| shared.store(store).is_err()) {
                    return shared.fails(self.shard);
                }
                let Some(change) = self.busy.pop_front() else { return };
                self.used -= change.frees;
                self.end(shared, &change, change.outcome);
            }
            if self.busy.len() == under_way {
                return;
            }
        }
    }

    /// A change is not under way any more: requests behind it wait no longer, and its client hears what became of it.
    fn end<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, change: &Change, outcome: Outcome) {
        for key in change.stores.iter().map(|store| &store.0).chain([&change.request.key]) {
            self.waiting.extend(self.behind.remove(key).into_iter().flatten());
        }
        shared.reply(change.peer, Reply { copy: change.request.copy, ended: Ok(outcome) });
    }

    fn is_ready(&self, me: NodeId, change: &Change) -> bool {
        if broken(Rule::AnsweredFirst) {
            return true;
        }
        let has = |node: NodeId| {
            let channel = self.channels.iter().find(|channel| channel.to == node);
            channel.is_some_and(|channel| {
                let number = change.numbers.iter().find(|(id, _)| *id == channel.id);
                channel.answered >= number.map_or(0, |(_, number)| *number)
            })
        };
        let counted = self.map.in_sync.iter().chain(self.growing.iter());
        counted.filter(|node| self.counts(me, *node)).all(has)
    }

    // ---- as standby ----

    /// CL6
    pub(in crate::core) fn item_comes<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        from: NodeId,
        channel: ChannelId,
        number: u64,
        item: Item,
    ) {
        let is_primarys = channel.epoch == self.map.epoch && self.map.primary == Some(from);
        let is_standby = matches!(self.role, Role::Standby | Role::None);
        if !is_primarys || !is_standby || shared.standing != Standing::Good {
            return;
        }
        let is_first = number == 1 && self.position.is_none_or(|position| position.channel < channel);
        let is_next = self.position.is_some_and(|position| {
            let has_gap = broken(Rule::ChannelWithGaps) && number > position.number;
            position.channel == channel && position.is_whole && (number == position.number + 1 || has_gap)
        });
        let mut is_refused = false;
        if is_first || is_next {
            match self.apply(shared, now, item) {
                None => return,
                Some(is_taken) => is_refused = !is_taken,
            }
            let position = Position { channel, number, is_whole: true, is_due: true, is_refused };
            (self.position, self.joined) = (Some(position), Some(channel.epoch));
        } else if let Some(position) = &mut self.position
            && position.channel == channel
        {
            position.is_due = position.is_whole;
        }
        if is_refused {
            self.answer(shared);
        }
    }

    /// Answers what has come.
    pub(in crate::core) fn answer<T>(&mut self, shared: &mut Shared<T>)
    where
        T: Table<Cursor = C>,
    {
        let (shard, room) = (self.shard, self.room);
        let Some(position) = &mut self.position else { return };
        if !std::mem::take(&mut position.is_due) || shared.standing != Standing::Good {
            return;
        }
        let Position { channel, number, is_refused, .. } = *position;
        position.is_refused = false;
        if let Some(primary) = self.map.primary {
            shared.tell(primary, Message::Answer { shard, channel, number, room, is_refused });
        }
    }

    /// Whether the item was taken. `None`: there is no answer, for now or at all.
    fn apply<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time, item: Item) -> Option<bool> {
        match item {
            Item::Begin => {}
            Item::Join { room } => {
                // Leases on an old copy may last (CL9). The primary sends this again.
                if self.is_stale && !broken(Rule::OldCopyKept) {
                    self.free_stale(shared, now);
                    if self.is_stale {
                        return None;
                    }
                }
                self.set_room(shared, room + room / 8);
            }
            Item::Room(room) => self.set_room(shared, room),
            Item::Change(stores) => return self.apply_stores(shared, &stores),
            Item::Walked(key, value) => return self.apply_stores(shared, &[(key, Some(value))]),
        }
        Some(true)
    }

    fn apply_stores<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        stores: &[Store],
    ) -> Option<bool> {
        let mut used = self.used;
        for (key, value) in stores {
            used = used - shared.cost_now(key) + shared.cost(key, value.as_ref().map(Value::len));
        }
        if used > self.room && used > self.used {
            return match () {
                () if broken(Rule::NoRoomHeld) => Some(true),
                () if broken(Rule::RefusedLate) => Some(false),
                () => None,
            };
        }
        for store in stores {
            if shared.store(store).is_err() {
                // Not answered: the primary leaves it out.
                if let Some(position) = &mut self.position {
                    position.is_whole = false;
                }
                return None;
            }
        }
        self.used = used;
        self.is_stale |= !stores.is_empty();
        Some(true)
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

    /// Only with a broken rule.
    fn withdraw<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, id: ChannelId, number: u64) {
        let is_it = |change: &Change| change.numbers.contains(&(id, number));
        let Some(index) = self.busy.iter().position(is_it) else { return };
        let Some(change) = self.busy.remove(index) else { return };
        self.used -= change.taken(shared);
        self.end(shared, &change, Outcome::Full);
    }

    pub(in crate::core) fn given_up(&mut self, channel: ChannelId) {
        if let Some(position) = &mut self.position
            && position.channel == channel
        {
            (position.is_whole, position.is_due) = (false, false);
            self.joined = None;
        }
    }

    /// CL9 and CL12: when a copy that is out may be given up. Each walk looks at the whole table, so they go one by one.
    fn free_copy<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let is_asked_for = self.joined == Some(self.map.epoch) && !broken(Rule::CopyGivenUp);
        if !is_asked_for && self.has_stale() && shared.frees_left > 0 {
            shared.frees_left -= 1;
            self.free_stale(shared, now);
        }
    }

    /// Whether there is anything of an old copy, room for it included.
    fn has_stale(&self) -> bool {
        self.is_stale || self.room > 0
    }

    /// Nobody is late as of now.
    pub(in crate::core) fn forgive(&mut self, now: Time) {
        self.channels.iter_mut().for_each(|channel| channel.since = now);
    }

    /// Removes some of an old copy, if no lease on it can last.
    fn free_stale<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if now < self.keeps_until {
            return;
        }
        if let Some(position) = &mut self.position {
            position.is_whole = false;
        }
        for _ in 0..T::WALKS_AT_ONCE {
            let (keys, next) = shared.table.walk(self.shard, self.freed_to.take());
            for key in keys {
                let cost = shared.cost_now(&key);
                if shared.table.remove(&key).is_err() {
                    // From the beginning, next time.
                    return;
                }
                self.used -= cost;
            }
            self.freed_to = next;
            if self.freed_to.is_none() {
                shared.room_left += self.room;
                (self.room, self.is_stale) = (0, false);
                return;
            }
        }
    }
}

impl Change {
    /// The room that was held for it.
    fn taken<T: Table>(&self, shared: &mut Shared<T>) -> u64 {
        self.stores.iter().fold(0, |taken, (key, value)| {
            let was = shared.cost_now(key);
            taken + shared.cost(key, value.as_ref().map(Value::len)).saturating_sub(was)
        })
    }
}
