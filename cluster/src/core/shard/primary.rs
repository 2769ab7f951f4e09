//! As primary: changes under way, and nodes with copies.

use super::base::Base;
use super::change::Change;
use super::channel::{Channel, Closing};
use crate::core::context::Context;
use crate::core::ids::{NodeId, NodeIds, ShardIx, Time};
use crate::core::message::{Item, Key, NotDone, Peer, Request};
use crate::core::state::ShardState;
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A standby without room is asked again after this many times of a call of etcd.
const ASK_ROOM_AGAIN: u32 = 4;

/// After this many requests that wait for room, no further one is looked at in the same turn.
const LOOKED_AT: usize = 64;

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    No,
    /// Not known yet: a standby was asked, or entries are evicted first.
    NotYet,
}

/// The state of a primary's eviction.
#[derive(Debug)]
pub(super) struct Eviction<C> {
    /// Keys that a walk has found. They may be gone by now.
    pub keys: VecDeque<Key>,
    /// Where the walk continues, if it has begun; and whether it has found anything that may be evicted, now or soon.
    pub from: Option<C>,
    pub has_begun: bool,
    pub has_found: bool,
    /// The room that requests wait for in this turn, and the number of these requests.
    pub asked: u64,
    pub waiting: usize,
    /// Since when none of them has found room.
    pub since: Option<Time>,
    /// Whether one of them waits for an answer, which may bring room.
    pub is_asking: bool,
    /// Whether a round has found nothing that may be evicted.
    pub is_dry: bool,
}

impl<C> Default for Eviction<C> {
    fn default() -> Eviction<C> {
        Eviction {
            keys: VecDeque::new(),
            from: None,
            has_begun: false,
            has_found: false,
            asked: 0,
            waiting: 0,
            since: None,
            is_asking: false,
            is_dry: false,
        }
    }
}

impl<C> Eviction<C> {
    /// A request has found this much room.
    pub fn found_room(&mut self, room: u64) {
        self.since.take_if(|_| room > 0);
    }

    /// The node has stood still: no request has waited for long.
    pub fn forgive(&mut self) {
        self.since = None;
    }

    /// Whether requests that were not looked at in this turn have to wait for the next one.
    pub fn is_enough(&self) -> bool {
        self.waiting >= LOOKED_AT
    }
}

/// A newcomer, in this life, whose copy did not get on: no other one is begun until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalled {
    pub node: NodeId,
    pub life: Option<u64>,
    pub until: Time,
}

/// A shard's primary in one epoch.
#[derive(Debug)]
pub struct Primary<T: Table> {
    pub(super) base: Base<T::Cursor>,
    pub(super) busy: VecDeque<Change>,
    /// Keys of changes under way, and requests behind them.
    pub(super) behind: FxHashMap<Key, VecDeque<(Peer, Request)>>,
    pub(super) waiting: VecDeque<(Peer, Request)>,
    pub(super) channels: Vec<Channel<T::Cursor>>,
    pub(super) closing: Option<Closing>,
    /// Newcomers whose copies did not get on.
    pub(super) stalled: Vec<Stalled>,
    /// Newcomers that etcd may have named.
    pub(super) growing: NodeIds,
    pub(super) eviction: Eviction<T::Cursor>,
    /// No change begins before this time (CL9).
    pub(super) first: Time,
}

impl<T: Table> Primary<T> {
    pub(super) fn new(base: Base<T::Cursor>, first: Time) -> Primary<T> {
        Primary {
            base,
            busy: VecDeque::new(),
            behind: FxHashMap::default(),
            waiting: VecDeque::new(),
            channels: Vec::new(),
            closing: None,
            stalled: Vec::new(),
            growing: NodeIds::default(),
            eviction: Eviction::default(),
            first,
        }
    }

    /// Ends the epoch: nothing is under way any more.
    pub(super) fn ends(self, cx: &mut Context<T>) -> Base<T::Cursor> {
        let Primary { mut base, busy, behind, waiting, .. } = self;
        for (peer, request) in waiting.into_iter().chain(behind.into_values().flatten()) {
            cx.outbox.not_done(peer, &request, NotDone::NotServed);
        }
        busy.iter().for_each(|change| base.used -= change.taken(cx));
        base
    }

    pub(in crate::core) fn shard(&self) -> ShardIx {
        self.base.shard
    }

    /// The shard's state, as etcd last had it.
    pub(in crate::core) fn state(&self) -> &ShardState {
        &self.base.map
    }

    /// The number of newcomers to which it copies the shard.
    pub(in crate::core) fn newcomers(&self) -> usize {
        self.channels.iter().filter(|channel| !self.base.map.in_sync.has(channel.to)).count()
    }

    /// Whether it serves the shard, and is not handing it over.
    pub(super) fn leads(&self, cx: &Context<T>) -> bool {
        cx.is_good() && self.closing.is_none()
    }

    /// Whether it may begin a change by itself now.
    pub(in crate::core) fn may_change(&self, cx: &Context<T>) -> bool {
        let has_room = self.channels.iter().all(|channel| !channel.is_full_of_own() && !channel.holds(cx));
        self.leads(cx) && cx.now >= self.first && has_room
    }

    /// The channel to a node.
    pub(super) fn channel(&self, to: NodeId) -> Option<&Channel<T::Cursor>> {
        self.channels.iter().find(|channel| channel.to == to)
    }

    /// CL10: after a new life, etcd has confirmed this primary: it continues.
    pub(super) fn resume(&mut self, cx: &mut Context<T>) {
        if !self.closing.is_some_and(|closing| closing.is_closed) {
            // No session was heard from meanwhile.
            cx.memory.owners.begin_anew(self.base.shard);
            self.base.set_word(cx, true);
            self.progress(cx);
        }
    }

    /// Takes a new state of the same epoch from etcd.
    pub(super) fn learns(&mut self, cx: &mut Context<T>, old: &ShardState) {
        self.growing = NodeIds::default();
        let in_sync = &self.base.map.in_sync;
        let left: NodeIds = old.in_sync.iter().filter(|node| !in_sync.has(*node)).collect();
        left.iter().for_each(|node| self.give_up(cx, node));
        self.progress(cx);
    }

    pub(super) fn tick(&mut self, cx: &mut Context<T>) {
        // There was no memory for it.
        if self.closing.is_none() && !cx.memory.page.words[usize::from(self.base.shard)].is_open {
            self.base.set_word(cx, true);
        }
        self.begin_anew(cx);
        self.channels.iter_mut().for_each(|channel| channel.resend(cx, self.base.shard));
        self.progress(cx);
        if self.closing.is_some() {
            self.close_on(cx);
        } else {
            self.look_for_late(cx);
            self.walk_on(cx);
            self.wait_is_over(cx);
        }
    }

    /// Restarts the time of all standbys: none is late now.
    pub(in crate::core) fn forgive(&mut self, now: Time) {
        self.channels.iter_mut().for_each(|channel| channel.since = now);
        self.eviction.forgive();
    }

    /// Whether the state that this primary writes to etcd says that it waits (CL9).
    pub(super) fn now_waits(&self, cx: &Context<T>) -> bool {
        self.base.map.waits && cx.now < self.first
    }

    /// CL9: tells etcd when the wait is over, so that a later takeover need not wait again.
    fn wait_is_over(&mut self, cx: &mut Context<T>) {
        if self.base.map.waits && !self.now_waits(cx) && self.base.transaction.is_none() {
            let new = ShardState { waits: false, ..self.base.map.clone() };
            self.base.transact(cx, new, None);
        }
    }

    // ---- room, here and at all replicas that count (CL12) ----

    /// Whether a node is one of the replicas that etcd may name (CL11), other than the primary.
    pub(super) fn counts(&self, me: NodeId, node: NodeId) -> bool {
        let is_growing = !broken(Rule::CountsLate) && self.growing.has(node);
        node != me && (self.base.map.in_sync.has(node) || is_growing)
    }

    pub(super) fn counted(&self, me: NodeId) -> impl Iterator<Item = NodeId> {
        let all = self.base.map.in_sync.iter().chain(self.growing.iter());
        all.filter(move |node| self.counts(me, *node))
    }

    /// Asks a standby to set room aside. `true`: it was asked, and its answer has not come yet.
    pub(super) fn ask_room(&mut self, cx: &mut Context<T>, index: usize, wanted: u64) -> bool {
        let channel = &mut self.channels[index];
        let again = cx.timing.call * Time::from(ASK_ROOM_AGAIN);
        if let Some((asked, number, since)) = channel.asked_room
            && asked >= wanted
        {
            if channel.answered < number {
                return true;
            }
            if cx.now < since + again {
                return false;
            }
        }
        // More than is needed, so that not every change has to ask.
        let wanted_soon = wanted + cx.room.growth_of(wanted);
        let number = channel.push(cx, self.base.shard, Item::Room(wanted_soon));
        channel.asked_room = Some((wanted, number, cx.now));
        true
    }

    /// Checks for room here and at all replicas that count, for all coming entries.
    pub(super) fn has_room(&mut self, cx: &mut Context<T>, used: u64) -> Fits {
        if used > self.base.room {
            let most = cx.room.share;
            self.base.set_room(cx, (used + used / 8).min(most));
        }
        if used > self.base.room {
            return Fits::No;
        }
        if broken(Rule::NoRoomHeld) || broken(Rule::RefusedLate) {
            return Fits::Yes;
        }
        for node in self.counted(cx.me).collect::<NodeIds>().iter() {
            let at = self.channels.iter().position(|channel| channel.to == node);
            let Some((at, room)) = at.and_then(|at| Some((at, self.channels[at].room?))) else {
                return Fits::NotYet;
            };
            if used > room {
                return if self.ask_room(cx, at, used) { Fits::NotYet } else { Fits::No };
            }
        }
        Fits::Yes
    }

    /// The room that the shard's entries may take, here and at all replicas that count. `None`: not known yet.
    pub(super) fn limit(&self, me: NodeId) -> Option<u64> {
        let room = |node| self.channel(node)?.room;
        self.counted(me).try_fold(self.base.room, |limit, node| Some(limit.min(room(node)?)))
    }
}
