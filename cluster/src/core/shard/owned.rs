//! As primary: entries that are an owner's, and leave with it (CL19).
//!
//! ```text
//! Own          a session may put                      the shard has an entry for the owner
//! Who          which session that is
//! Stay         it is still there                      the primary notes when, and tells nobody
//! RemoveOwner, or it was not heard for too long       the entry says that the owner leaves: nobody puts as it any more
//! passes       each of its entries is removed         until a whole pass over the table has found none
//! gone         the owner's entry is removed           the number may be given again; who removes it hears that it is absent
//! ```

use super::Replica;
use super::changes::Change;
use crate::core::message::{
    Effect, Entry, Kind, Life, NotDone, Outcome, Peer, Request, Session, Store, Wanted,
};
use crate::core::node::Shared;
use crate::core::owners::{self, Owner};
use crate::core::state::{NodeId, Time};
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;

/// What is decided of an owner.
pub(super) enum OfOwner {
    /// Its outcome, when all counted replicas have this, if it is anything.
    Changes(Outcome, Option<Owner>),
    /// Nothing, for certain.
    NotDone(NotDone),
}

impl<C> Replica<C> {
    /// What is decided of an owner, of which no change is under way.
    pub(super) fn decide_owner<T: Table<Cursor = C>>(
        &self,
        shared: &Shared<T>,
        request: &Request,
    ) -> OfOwner {
        let Some((_, number)) = owners::parts(&request.key) else {
            return OfOwner::NotDone(NotDone::Invalid);
        };
        let known = shared.owners.get(self.shard, number);
        let is_there = |session: &Session| shared.owners.may_put(self.shard, *session);
        let (outcome, owner) = match &request.kind {
            Kind::Own(session, absent_for) => match known {
                None if !self.all_know_owners(shared) => return OfOwner::NotDone(NotDone::NoOwners),
                None => {
                    let owner = Owner { session: session.number, absent_for: *absent_for, leaves: false };
                    (Outcome::Done, Some(owner))
                }
                // It was asked twice.
                Some(_) if is_there(session) => (Outcome::Done, None),
                Some(_) => (Outcome::Exists, None),
            },
            // It has waited behind what made it so.
            Kind::Stay(session) if is_there(session) => (Outcome::Done, None),
            Kind::Who => (known.map_or(Outcome::Absent, |owner| Outcome::Is(owner.session)), None),
            Kind::RemoveOwner(session) => match known {
                Some(owner) if owner.session == session.number => {
                    let leaves = Owner { leaves: true, ..owner };
                    (Outcome::Done, Some(leaves).filter(|_| !owner.leaves))
                }
                _ => (Outcome::Absent, None),
            },
            _ => (Outcome::Absent, None),
        };
        OfOwner::Changes(outcome, owner)
    }

    /// Whether a node may have a copy, as far as owners go: those that are there, and those that are about to be.
    pub(in crate::core) fn may_have<T: Table<Cursor = C>>(&self, shared: &Shared<T>, node: NodeId) -> bool {
        let about_to_be = || {
            let mut stores = self.busy.iter().flat_map(|change| &change.stores);
            stores.any(|(key, _)| owners::parts(key).is_some())
        };
        shared.knows_owners(node) || !shared.owners.has_any(self.shard) && !about_to_be()
    }

    /// Whether the table has owners, and all who have a copy or get one know them.
    fn all_know_owners<T: Table<Cursor = C>>(&self, shared: &Shared<T>) -> bool {
        let copies = self.map.in_sync.iter().chain(self.growing.iter());
        let mut others = copies.chain(self.channels()).filter(|node| *node != shared.id);
        shared.table.has_owners() && others.all(|node| shared.knows_owners(node))
    }

    /// A session says that it is there: it is heard at once, whatever waits. False: it is not, or not any more, and that is
    /// decided as other requests are.
    pub(super) fn hears<T: Table<Cursor = C>>(
        &self,
        shared: &mut Shared<T>,
        now: Time,
        request: &Request,
    ) -> bool {
        let Kind::Stay(session) = request.kind else { return false };
        let is_there = shared.owners.may_put(self.shard, session);
        if is_there {
            shared.owners.hear(self.shard, session.owner, now);
        }
        is_there
    }

    /// Owners that were not heard for too long leave.
    pub(in crate::core) fn look_for_absent<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
    ) {
        if !shared.owners.has_any(self.shard) || !self.may_change(shared, now) {
            return;
        }
        shared.owners.of_mut(self.shard).for_each(|(_, known)| _ = known.heard.get_or_insert(now));
        self.change_owners(shared, now);
    }

    /// A pass is over: owners of which it has found no entry are gone.
    pub(in crate::core) fn remove_owners<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        pass: u64,
    ) {
        for (_, known) in shared.owners.of_mut(self.shard) {
            let is_over = |(of, has_found): (u64, bool)| of == pass && (!has_found || broken(Rule::OnePass));
            known.is_empty |= known.owner.leaves && known.pass.is_some_and(is_over);
        }
        self.change_owners(shared, now);
    }

    fn change_owners<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let due = shared.owners.of(self.shard).filter(|(_, known)| known.due(now).is_some());
        for number in due.map(|(number, _)| number).collect::<SmallVec<[_; 4]>>() {
            self.change_due(shared, now, number);
        }
    }

    /// Has an owner leave, or be gone, if that is due: also before a request for it is decided. Else the owner's entry
    /// would never be without one under way, where it is asked for all the time.
    pub(super) fn change_due<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        number: u16,
    ) {
        let due = shared.owners.known(self.shard, number).and_then(|known| known.due(now));
        if let Some(owner) = due.filter(|_| self.may_change(shared, now)) {
            self.change_owner(shared, now, number, owner);
        }
    }

    /// Changes what the shard has of an owner, unless somebody else does.
    fn change_owner<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        number: u16,
        owner: Option<Owner>,
    ) {
        let key = owners::key(self.shard, number);
        if self.behind.contains_key(&key) {
            return;
        }
        let frees = if owner.is_none() { shared.cost_now(&key) } else { 0 };
        let entry = owner.map(|owner| Entry { value: owner.encode(), life: Life::Lasting });
        let store: Store = (key.clone(), entry);
        let (kind, wanted) = (Kind::Who, Wanted::Usual);
        let request = Request { copy: 0, id: None, shard: self.shard, key, kind, wanted };
        self.begin(
            shared,
            now,
            Change {
                peer: Peer::SELF,
                request,
                stores: std::iter::once(store).collect(),
                outcome: Outcome::Done,
                effect: Effect::Nothing,
                frees,
                numbers: SmallVec::new(),
            },
        );
    }
}
