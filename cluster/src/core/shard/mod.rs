//! A node's part in one shard: primary, standby, newcomer, or none.

mod changes;
mod channels;
pub(in crate::core) mod evicting;
mod owned;
mod standby;

use crate::core::etcd::{At, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::message::{Entry, Item, Key, Life, NotDone, Peer, Request};
use crate::core::node::{Pending, Shared, Standing};
use crate::core::state::{NodeId, NodeIds, ShardIx, ShardState, Time, Word};
use crate::core::table::{Stock, Table};
use crate::faults::{Rule, broken};
use changes::Change;
use channels::{Channel, Closing};
use evicting::Evicting;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use standby::Position;
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

/// Unanswered items of a channel at which no request is taken any more.
const ITEMS_MAX: usize = 4_096;
/// The same, for what a node removes by itself: else nothing would leave while more is asked for than is answered.
const ITEMS_OF_OWN: usize = 512;

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
    evicting: Evicting<C>,
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
            evicting: Evicting::new(),
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
        for key in stock.owners {
            if let Some(value) = shared.table.get(&key) {
                shared.owners.see(&(key, Some(Entry { value, life: Life::Lasting })));
            }
        }
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
            // Nobody was heard meanwhile.
            shared.owners.begin_anew(self.shard);
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
        shared.owners.begin_anew(self.shard);
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
            shared.feed.leads(self.shard, self.map.epoch);
            self.set_word(shared, true);
            for to in self.map.in_sync.clone().without(me).iter() {
                let after = self.feed_at(shared);
                self.open_channel(shared, now, to, Item::Begin { after }, None);
            }
        } else {
            // It may be about to be named, by one that it forgot (CL12). Where nobody serves the shard, nobody names it.
            if std::mem::take(&mut self.started_again) && self.is_stale && self.map.primary.is_some() {
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

    /// Whether it may begin a change by itself, now.
    pub(in crate::core) fn may_change<T>(&self, shared: &Shared<T>, now: Time) -> bool {
        let most = ITEMS_MAX + ITEMS_OF_OWN;
        let is_full = self.channels.iter().any(|channel| channel.log.len() >= most);
        self.leads(shared) && now >= self.first && !is_full
    }

    /// A state that this primary tells etcd: whether the wait is over (CL9).
    fn now_waits(&self, now: Time) -> bool {
        self.map.waits && now < self.first
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

    /// CL10: a primary that has started again begins a new epoch, alone.
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

    /// Becomes primary of a shard of which nobody has a copy: nobody ever served it, or it begins anew. What is left of
    /// a copy of before goes first.
    pub(in crate::core) fn claim<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) -> bool {
        let is_free = self.map.primary.is_none() && self.at != 0 && !self.has_stale();
        if !is_free || shared.standing != Standing::Good || self.transaction.is_some() {
            return false;
        }
        let me = shared.id;
        let (epoch, in_sync) = (self.map.epoch + 1, NodeIds::of(me));
        self.transact(
            shared,
            now,
            ShardState { epoch, primary: Some(me), in_sync, ..self.map.clone() },
            None,
        );
        true
    }
}
