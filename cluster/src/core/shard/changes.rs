//! As primary: what becomes of requests.

use super::owned::OfOwner;
use super::{ITEMS_MAX, Replica, Role};
use crate::core::message::{
    ChannelId, Effect, Entry, Item, Key, Kind, Life, NotDone, Outcome, Peer, Reply, Request, RequestId,
    Store, Value, value_len,
};
use crate::core::node::{Shared, Standing};
use crate::core::owners;
use crate::core::results::{self, ResultKey};
use crate::core::state::{NodeId, NodeIds, Time};
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Requests that wait, at which no further one is taken.
const WAITING_MAX: usize = 16_384;
/// Times of a call of etcd after which a standby that had no room is asked again.
const ASK_ROOM_AGAIN: u32 = 4;

/// A change, or an outcome without one, that waits for the counted replicas.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) peer: Peer,
    pub(super) request: Request,
    pub(super) stores: SmallVec<[Store; 2]>,
    pub(super) outcome: Outcome,
    pub(super) effect: Effect,
    /// Bytes of room that are free when it is done.
    pub(super) frees: u64,
    /// Its number in each channel.
    pub(super) numbers: SmallVec<[(ChannelId, u64); 2]>,
}

/// What is decided of a request.
pub(super) enum Decided {
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
    Begin { outcome: Outcome, effect: Effect, stores: SmallVec<[Store; 2]>, takes: u64, frees: u64 },
}

impl<C> Replica<C> {
    pub(in crate::core) fn request_comes<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        peer: Peer,
        request: Request,
    ) {
        let serves = self.role == Role::Primary && shared.standing == Standing::Good;
        if serves && self.hears(shared, now, &request) {
            // Others need not know.
            return shared.reply(peer, Reply { copy: request.copy, ended: Ok(Outcome::Done) });
        }
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
    pub(super) fn set_room<T>(&mut self, shared: &mut Shared<T>, wanted: u64) {
        // A copy that comes is as large as others are. One that is there grows up to its share.
        let wanted = if self.role == Role::None { wanted } else { wanted.min(shared.share) };
        let more = wanted.saturating_sub(self.room).min(shared.room_left);
        (self.room, shared.room_left) = (self.room + more, shared.room_left - more);
    }

    /// Asks a standby to set room aside. True: it was asked, and its answer is not there yet.
    pub(super) fn ask_room<T: Table<Cursor = C>>(
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
        let wanted_soon = wanted + shared.growth_of(wanted);
        let number = channel.push(shared, now, self.shard, Item::Room(wanted_soon));
        channel.asked_room = Some((wanted, number, now));
        true
    }

    /// Room here and at all replicas that count, for all entries to come (CL12). `None`: not known yet.
    pub(super) fn has_room<T: Table<Cursor = C>>(
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
    pub(super) fn decide<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        peer: Peer,
        request: &Request,
    ) -> Decided {
        let is_full = self.channels.iter().any(|channel| channel.log.len() >= ITEMS_MAX);
        if now < self.first || self.closing.is_some() || is_full {
            return Decided::Wait;
        }
        let result_key = request.id.map(|id| ResultKey::new(self.shard, id.lane));
        let session = request.wanted.session();
        let owner_key = session.map(|session| owners::key(self.shard, session.owner));
        let owner_key = owner_key.as_ref().filter(|_| !broken(Rule::PutBesideOwner));
        let also = [result_key.as_ref().map(|result| &result.0), owner_key];
        for key in also.into_iter().flatten().chain([&request.key]) {
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
        if session.is_some_and(|session| !shared.owners.may_put(self.shard, session))
            && !broken(Rule::AnyonePuts)
        {
            return Decided::NotDone(NotDone::OwnerGone);
        }
        let old = shared.table.value_len(&request.key);
        let mut differs = |expected: &Value| {
            old != Some(expected.len()) || shared.table.get(&request.key).as_ref() != Some(expected)
        };
        let (mut outcome, new) = match &request.kind {
            Kind::Insert(_) if old.is_some() => (Outcome::Exists, None),
            Kind::Swap { .. } | Kind::Update(_) | Kind::Remove if old.is_none() => (Outcome::Absent, None),
            Kind::Swap { expected, .. } if differs(expected) => (Outcome::Differs, None),
            Kind::Remove => (Outcome::Done, Some(None)),
            // As in a table of its own, the entry keeps its end, and whose it is.
            Kind::Swap { new, .. } => {
                let life = shared.table.life(&request.key).unwrap_or_default();
                (Outcome::Done, Some(Some((new.clone(), life))))
            }
            Kind::Put(value) | Kind::Insert(value) | Kind::Update(value) => {
                let end = request.wanted.ttl().or(shared.ttl).map(|ttl| shared.table.end_after(ttl));
                if end == Some(None) {
                    return Decided::NotDone(NotDone::NoLife);
                }
                let life = Life::new(end.flatten(), session.map(|session| session.owner));
                (Outcome::Done, Some(Some((value.clone(), life))))
            }
            Kind::Own(..) | Kind::Stay(_) | Kind::Who | Kind::RemoveOwner(_) => {
                match self.decide_owner(shared, request) {
                    OfOwner::Changes(outcome, owner) => {
                        (outcome, owner.map(|owner| Some((owner.encode(), Life::Lasting))))
                    }
                    OfOwner::NotDone(why) => return Decided::NotDone(why),
                }
            }
        };
        let entry = |(value, life): (Value, Life)| Entry { value, life };
        let cost = |len: Option<usize>| shared.cost(&request.key, len);
        let mut store: Option<Store> = new.map(|new| (request.key.clone(), new.map(entry)));
        let (was, is) = (cost(old), store.as_ref().map(|store| cost(value_len(store))));
        let (mut takes, mut frees) = is.map_or((0, 0), |is| (is.saturating_sub(was), was.saturating_sub(is)));
        let for_result = match &result_key {
            Some(result) if known.is_none() => shared.table.cost(&result.0, results::LEN),
            _ => 0,
        };
        if for_result > 0 {
            match self.room_for(shared, now, for_result, for_result) {
                None => return Decided::Wait,
                Some(false) => return Decided::NotDone(NotDone::NoRoomForResult),
                Some(true) => {}
            }
        }
        if takes > 0 {
            match self.room_for(shared, now, for_result + takes, for_result + is.unwrap_or(0)) {
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
        let effect = match &store {
            None => Effect::Nothing,
            Some(_) if request.kind.is_of_owner() => Effect::Nothing,
            Some((_, None)) if peer == Peer::SELF => Effect::Evicted,
            Some((_, None)) => Effect::Removed,
            Some(_) if old.is_none() => Effect::Came,
            Some(_) => Effect::Replaced,
        };
        let is_forgotten = broken(Rule::RefusalsForgotten) && store.is_none();
        let mut stores: SmallVec<[Store; 2]> = store.into_iter().collect();
        if let (Some(result), Some(RequestId { number, .. }), false) = (result_key, request.id, is_forgotten)
        {
            let value = results::encode(number, outcome);
            stores.push((result.0, Some(Entry { value, life: Life::Lasting })));
            takes += for_result;
        }
        Decided::Begin { outcome, effect, stores, takes, frees }
    }

    /// Decides what waits. Changes of one key go one by one (CL5).
    pub(super) fn take<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        self.take_some(shared, now);
        if self.evict(shared, now) {
            self.take_some(shared, now);
            self.evict(shared, now);
        }
    }

    fn take_some<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let mut waiting = std::mem::take(&mut self.waiting);
        while !self.evicting.is_enough()
            && let Some((peer, request)) = waiting.pop_front()
        {
            // What is over leaves first. Else a key that is asked for all the time would never be without a change under way,
            // and stay.
            if let Some(why) = shared.is_over(self.shard, &request.key) {
                self.expire(shared, now, request.key.clone(), why);
            } else if request.kind.is_of_owner()
                && let Some((_, number)) = owners::parts(&request.key)
            {
                self.change_due(shared, now, number);
            }
            match self.decide(shared, now, peer, &request) {
                Decided::Wait => self.waiting.push_back((peer, request)),
                Decided::Behind(key) => self.behind.entry(key).or_default().push_back((peer, request)),
                Decided::Drop => {}
                Decided::NotDone(why) => shared.not_done(peer, &request, why),
                Decided::Ended(outcome) => {
                    shared.reply(peer, Reply { copy: request.copy, ended: Ok(outcome) });
                }
                Decided::Begin { outcome, effect, stores, takes, frees } => {
                    self.used += takes;
                    self.evicting.found_room(takes);
                    let numbers = SmallVec::new();
                    let change = Change { peer, request, stores, outcome, effect, frees, numbers };
                    self.begin(shared, now, change);
                }
            }
        }
        self.waiting.append(&mut waiting);
    }

    pub(super) fn begin<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        mut change: Change,
    ) {
        let mut sent = change.stores.clone();
        if broken(Rule::ResultsAlone) {
            sent.retain(|(key, _)| !results::is_result(key));
        }
        for channel in &mut self.channels {
            let item = Item::Change(change.effect, sent.clone());
            let number = channel.push(shared, now, self.shard, item);
            change.numbers.push((channel.id, number));
        }
        if broken(Rule::VisibleFirst) {
            let _ = shared.store_all(&change.stores);
        }
        if broken(Rule::ToldFirst) {
            self.tell_followers(shared, &change);
        }
        // One that changes nothing holds its key, too: it is as of then.
        self.behind.insert(change.request.key.clone(), VecDeque::new());
        for (key, _) in &change.stores {
            self.behind.insert(key.clone(), VecDeque::new());
        }
        self.busy.push_back(change);
    }

    /// CL18: a change that is visible has the next place.
    fn tell_followers<T: Table<Cursor = C>>(&self, shared: &mut Shared<T>, change: &Change) {
        if let Some(store) = change.stores.first() {
            shared.feed.push(self.shard, self.map.epoch, change.effect, store);
        }
    }

    /// Changes that all counted replicas have are made visible and answered (CL5).
    pub(super) fn progress<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        while shared.standing == Standing::Good {
            self.take(shared, now);
            let under_way = self.busy.len();
            // Channels are in order, so the first under way is the first that all have.
            while let Some(change) = self.busy.front().filter(|change| self.is_ready(shared.id, change)) {
                if shared.store_all(&change.stores).is_err() {
                    return shared.fails(self.shard);
                }
                let Some(change) = self.busy.pop_front() else { return };
                if !broken(Rule::ToldFirst) {
                    self.tell_followers(shared, &change);
                }
                self.used -= change.frees;
                self.end(shared, &change, change.outcome);
                self.walk_changed(shared, now, &change);
            }
            if self.busy.len() == under_way {
                return;
            }
        }
    }

    /// A change is not under way any more: requests behind it wait no longer, and its client hears what became of it.
    pub(super) fn end<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        change: &Change,
        outcome: Outcome,
    ) {
        for key in change.stores.iter().map(|store| &store.0).chain([&change.request.key]) {
            self.waiting.extend(self.behind.remove(key).into_iter().flatten());
        }
        match change.effect {
            Effect::Evicted => shared.evicted += 1,
            Effect::Expired | Effect::OwnerGone => shared.expired += 1,
            _ => {}
        }
        shared.reply(change.peer, Reply { copy: change.request.copy, ended: Ok(outcome) });
    }

    pub(super) fn is_ready(&self, me: NodeId, change: &Change) -> bool {
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

    /// Only with a broken rule.
    pub(super) fn withdraw<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        id: ChannelId,
        number: u64,
    ) {
        let is_it = |change: &Change| change.numbers.contains(&(id, number));
        let Some(index) = self.busy.iter().position(is_it) else { return };
        let Some(change) = self.busy.remove(index) else { return };
        self.used -= change.taken(shared);
        self.end(shared, &change, Outcome::Full);
    }
}

impl Change {
    /// The room that was held for it.
    pub(super) fn taken<T: Table>(&self, shared: &mut Shared<T>) -> u64 {
        self.stores.iter().fold(0, |taken, store| {
            let was = shared.cost_now(&store.0);
            taken + shared.cost(&store.0, value_len(store)).saturating_sub(was)
        })
    }
}
