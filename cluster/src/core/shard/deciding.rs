//! As primary: decides a request, step by step, by the present state of its key.

use super::primary::{Fits, Primary};
use crate::core::context::Context;
use crate::core::message::{
    Effect, Entry, Key, Kind, Life, NotDone, Outcome, Peer, Request, Store, value_len,
};
use crate::core::owners;
use crate::core::results::{self, ResultKey};
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;

/// The decision on a request.
pub(super) enum Decided {
    /// Not yet: an answer, or time, is missing.
    Wait,
    /// Not yet: a change of this key is under way.
    Behind(Key),
    /// None: its client has given it up.
    Drop,
    /// It is certainly not done.
    NotDone(NotDone),
    /// It ends with this outcome, and no other node need agree.
    Ended(Outcome),
    /// It ends with this outcome when all counted replicas have these stores. It takes and frees this room.
    Begin { outcome: Outcome, effect: Effect, stores: SmallVec<[Store; 2]>, takes: u64, frees: u64 },
}

impl<T: Table> Primary<T> {
    /// Decides a request, by the present state of its key.
    pub(super) fn decide(&mut self, cx: &mut Context<T>, peer: Peer, request: &Request) -> Decided {
        let has_room = self.channels.iter().all(|channel| !channel.is_full() && !channel.holds(cx));
        if cx.now < self.first || self.closing.is_some() || !has_room {
            return Decided::Wait;
        }
        let result_key = request.id.map(|id| ResultKey::new(self.base.shard, id.lane).0);
        if let Some(key) = self.is_behind(request, result_key.as_ref()) {
            return Decided::Behind(key);
        }
        let known = result_key.as_ref().and_then(|key| cx.memory.table.get(key));
        if let (Some(id), Some((last, outcome))) = (request.id, known.as_deref().and_then(results::decode))
            && id.number <= last
        {
            // Its client has given up an older request.
            return if id.number == last { Decided::Ended(outcome) } else { Decided::Drop };
        }
        let may_put =
            |session| cx.memory.owners.may_put(self.base.shard, session) || broken(Rule::AnyonePuts);
        if !request.wanted.session().is_none_or(may_put) {
            return Decided::NotDone(NotDone::OwnerGone);
        }
        let old = cx.memory.table.value_len(&request.key);
        let (mut outcome, mut store) = match self.comes_to(cx, request, old) {
            Ok(comes_to) => comes_to,
            Err(why) => return Decided::NotDone(why),
        };
        let (was, is) = (cx.memory.cost(&request.key, old), store.as_ref().map(value_len));
        let is = is.map(|len| cx.memory.cost(&request.key, len));
        let (mut takes, mut frees) = is.map_or((0, 0), |is| (is.saturating_sub(was), was.saturating_sub(is)));
        let for_result = match &result_key {
            Some(key) if known.is_none() => cx.memory.table.cost(key, results::LEN),
            _ => 0,
        };
        if for_result > 0 {
            match self.room_for(cx, for_result, for_result) {
                Fits::NotYet => return Decided::Wait,
                Fits::No => return Decided::NotDone(NotDone::NoRoomForResult),
                Fits::Yes => {}
            }
        }
        if takes > 0 {
            match self.room_for(cx, for_result + takes, for_result + is.unwrap_or(0)) {
                Fits::NotYet => return Decided::Wait,
                Fits::No => (outcome, store, takes, frees) = (Outcome::Full, None, 0, 0),
                Fits::Yes => {}
            }
        }
        // Nothing changes, and the answer says nothing of the key's value, so no other node need agree.
        if outcome == Outcome::Full && (request.id.is_none() || broken(Rule::RefusalsForgotten))
            || store.is_none() && broken(Rule::FailureAtOnce)
        {
            return Decided::Ended(outcome);
        }
        let effect = effect(peer, request, old, store.as_ref());
        let is_forgotten = broken(Rule::RefusalsForgotten) && store.is_none();
        let mut stores: SmallVec<[Store; 2]> = store.into_iter().collect();
        if let (Some(key), Some(id), false) = (result_key, request.id, is_forgotten) {
            let value = results::encode(id.number, outcome);
            stores.push((key, Some(Entry { value, life: Life::Lasting })));
            takes += for_result;
        }
        Decided::Begin { outcome, effect, stores, takes, frees }
    }

    /// Changes of a key go one by one (CL5). So do changes of an outcome, and puts behind a change of their owner
    /// (CL19).
    fn is_behind(&self, request: &Request, result_key: Option<&Key>) -> Option<Key> {
        let session = request.wanted.session().filter(|_| !broken(Rule::PutBesideOwner));
        let owner_key = session.map(|session| owners::key(self.base.shard, session.owner));
        let mut keys = result_key.into_iter().chain(&owner_key).chain([&request.key]);
        keys.find(|key| self.behind.contains_key(*key)).cloned()
    }

    /// The outcome, and the store, if any. `old` is the length of the key's value.
    fn comes_to(
        &self,
        cx: &mut Context<T>,
        request: &Request,
        old: Option<usize>,
    ) -> Result<(Outcome, Option<Store>), NotDone> {
        let table = &mut cx.memory.table;
        let key = &request.key;
        let (value, life) = match &request.kind {
            Kind::Insert(_) if old.is_some() => return Ok((Outcome::Exists, None)),
            Kind::Swap { .. } | Kind::Update(_) | Kind::Remove if old.is_none() => {
                return Ok((Outcome::Absent, None));
            }
            Kind::Swap { expected, .. }
                if old != Some(expected.len()) || table.get(key).as_ref() != Some(expected) =>
            {
                return Ok((Outcome::Differs, None));
            }
            Kind::Remove => return Ok((Outcome::Done, Some((key.clone(), None)))),
            // As in a single table, the entry keeps its end and its owner.
            Kind::Swap { new, .. } => (new.clone(), table.life(key).unwrap_or_default()),
            Kind::Put(value) | Kind::Insert(value) | Kind::Update(value) => {
                let ttl = request.wanted.ttl().or(cx.memory.ttl);
                let end = ttl.map(|ttl| table.end_after(ttl).ok_or(NotDone::NoLife)).transpose()?;
                (value.clone(), Life::new(end, request.wanted.session().map(|session| session.owner)))
            }
            Kind::Own(..) | Kind::Stay(_) | Kind::Who | Kind::RemoveOwner(_) => {
                let (outcome, owner) = self.decide_owner(cx, request)?;
                let Some(owner) = owner else { return Ok((outcome, None)) };
                (owner.encode(), Life::Lasting)
            }
        };
        Ok((Outcome::Done, Some((key.clone(), Some(Entry { value, life })))))
    }
}

/// The effect that followers are told.
fn effect(peer: Peer, request: &Request, old: Option<usize>, store: Option<&Store>) -> Effect {
    match store {
        None => Effect::Nothing,
        Some(_) if request.kind.is_of_owner() => Effect::Nothing,
        Some((_, None)) if peer == Peer::SELF => Effect::Evicted,
        Some((_, None)) => Effect::Removed,
        Some(_) if old.is_none() => Effect::Came,
        Some(_) => Effect::Replaced,
    }
}
