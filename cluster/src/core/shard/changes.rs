//! As primary: requests.

use super::change::Change;
use super::deciding::Decided;
use super::primary::Primary;
use crate::core::context::Context;
use crate::core::ids::NodeId;
use crate::core::message::{ChannelId, Effect, Item, NotDone, Outcome, Peer, Reply, Request};
use crate::core::owners;
use crate::core::results;
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// With this many waiting requests, no further one is taken.
const WAITING_MAX: usize = 16_384;

impl<T: Table> Primary<T> {
    /// A request has come, and the node is good.
    pub(super) fn request_comes(&mut self, cx: &mut Context<T>, peer: Peer, request: Request) {
        if self.hears(cx, &request) {
            // Other nodes need not know of it.
            return cx.outbox.reply(peer, Reply { copy: request.copy, ended: Ok(Outcome::Done) });
        }
        if self.waiting.len() >= WAITING_MAX {
            return cx.outbox.not_done(peer, &request, NotDone::NotServed);
        }
        // It waits behind earlier ones, until the next answer or tick.
        self.waiting.push_back((peer, request));
        if self.waiting.len() == 1 {
            self.progress(cx);
        }
    }

    /// Decides waiting requests. Changes of one key go one by one (CL5).
    pub(super) fn take(&mut self, cx: &mut Context<T>) {
        self.take_some(cx);
        if self.evict(cx) {
            self.take_some(cx);
            self.evict(cx);
        }
    }

    fn take_some(&mut self, cx: &mut Context<T>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        while !self.eviction.is_enough()
            && let Some((peer, request)) = waiting.pop_front()
        {
            // An entry that is over leaves first. Otherwise a key with a constant stream of requests would never be
            // without a change under way, and would stay.
            if let Some(why) = cx.memory.is_over(self.base.shard, &request.key) {
                self.expire(cx, request.key.clone(), why);
            } else if request.kind.is_of_owner()
                && let Some((_, number)) = owners::parts(&request.key)
            {
                self.change_due(cx, number);
            }
            match self.decide(cx, peer, &request) {
                Decided::Wait => self.waiting.push_back((peer, request)),
                Decided::Behind(key) => self.behind.entry(key).or_default().push_back((peer, request)),
                Decided::Drop => {}
                Decided::NotDone(why) => cx.outbox.not_done(peer, &request, why),
                Decided::Ended(outcome) => {
                    cx.outbox.reply(peer, Reply { copy: request.copy, ended: Ok(outcome) });
                }
                Decided::Begin { outcome, effect, stores, takes, frees } => {
                    self.base.used += takes;
                    self.eviction.found_room(takes);
                    let numbers = SmallVec::new();
                    let change = Change { peer, request, stores, outcome, effect, frees, numbers };
                    self.begin(cx, change);
                }
            }
        }
        self.waiting.append(&mut waiting);
    }

    pub(super) fn begin(&mut self, cx: &mut Context<T>, mut change: Change) {
        let mut sent = change.stores.clone();
        if broken(Rule::ResultsAlone) {
            sent.retain(|(key, _)| !results::is_result(key));
        }
        for index in 0..self.channels.len() {
            // Behind an item that finds no room, a newcomer takes none that would give it some.
            let channel = &self.channels[index];
            if !self.counts(cx.me, channel.to) && channel.room.is_none_or(|room| room < self.base.used) {
                self.ask_room(cx, index, self.base.used);
            }
            let item = Item::Change(change.effect, sent.clone());
            let channel = &mut self.channels[index];
            let number = channel.push(cx, self.base.shard, item);
            change.numbers.push((channel.id, number));
        }
        if broken(Rule::VisibleFirst) {
            let _ = cx.memory.store_all(&change.stores);
        }
        if broken(Rule::ToldFirst) {
            self.tell_followers(cx, &change);
        }
        for key in [&change.request.key].into_iter().chain(change.stores.iter().map(|store| &store.0)) {
            self.behind.insert(key.clone(), VecDeque::new());
        }
        self.busy.push_back(change);
    }

    /// CL18: a visible change gets the next place.
    fn tell_followers(&self, cx: &mut Context<T>, change: &Change) {
        if let Some(store) = change.stores.first() {
            cx.feed.push(self.base.shard, self.base.map.epoch, change.effect, store);
        }
    }

    /// Changes that all counted replicas have are made visible and answered (CL5).
    pub(super) fn progress(&mut self, cx: &mut Context<T>) {
        while cx.is_good() {
            self.take(cx);
            let under_way = self.busy.len();
            // Channels are in order, so the first change under way is the first that all replicas have.
            while let Some(change) = self.busy.front().filter(|change| self.is_ready(cx.me, change)) {
                if cx.memory.store_all(&change.stores).is_err() {
                    return cx.fails(self.base.shard);
                }
                let Some(change) = self.busy.pop_front() else { return };
                if !broken(Rule::ToldFirst) {
                    self.tell_followers(cx, &change);
                }
                self.base.used -= change.frees;
                self.end(cx, &change, change.outcome);
                self.walk_changed(cx, &change);
            }
            if self.busy.len() == under_way {
                return;
            }
        }
    }

    /// A change has ended. Requests behind it wait no longer, and its client gets the outcome.
    pub(super) fn end(&mut self, cx: &mut Context<T>, change: &Change, outcome: Outcome) {
        for key in change.keys() {
            self.waiting.extend(self.behind.remove(key).into_iter().flatten());
        }
        match change.effect {
            Effect::Evicted => cx.evicted += 1,
            Effect::Expired | Effect::OwnerGone => cx.expired += 1,
            _ => {}
        }
        cx.outbox.reply(change.peer, change.reply(outcome));
    }

    pub(super) fn is_ready(&self, me: NodeId, change: &Change) -> bool {
        if broken(Rule::AnsweredFirst) {
            return true;
        }
        let has = |node: NodeId| {
            self.channel(node).is_some_and(|channel| {
                let number = change.numbers.iter().find(|(id, _)| *id == channel.id);
                channel.answered >= number.map_or(0, |(_, number)| *number)
            })
        };
        self.counted(me).all(has)
    }

    /// Only if a test breaks a rule.
    pub(super) fn withdraw(&mut self, cx: &mut Context<T>, id: ChannelId, number: u64) {
        let is_it = |change: &Change| change.numbers.contains(&(id, number));
        let Some(index) = self.busy.iter().position(is_it) else { return };
        let Some(change) = self.busy.remove(index) else { return };
        self.base.used -= change.taken(cx);
        self.end(cx, &change, Outcome::Full);
    }
}
