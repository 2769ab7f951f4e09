//! As primary: entries that are an owner's, and leave with it (CL19).
//!
//! ```text
//! Own          a session may put                      the shard has an entry for the owner
//! Stay         it is still there                      the primary notes when, and tells nobody
//! RemoveOwner, or it was not heard for too long       the entry says that the owner leaves: nobody puts as it any more
//! passes       each of its entries is removed         until a whole pass over the table has found none
//! gone         the owner's entry is removed           the number may be given again; who asks (Leaves) hears it
//! ```

use super::Replica;
use super::changes::Change;
use crate::core::message::{
    Effect, Entry, Kind, Life, NotDone, Outcome, Peer, Request, Session, Store, Wanted,
};
use crate::core::node::Shared;
use crate::core::owners::{self, Known, Owner};
use crate::core::state::Time;
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;

/// What is decided of an owner.
pub(super) enum OfOwner {
    /// Its outcome, when all counted replicas have this, if it is anything.
    Changes(Outcome, Option<Owner>),
    /// This, at once.
    AtOnce(Result<Outcome, NotDone>),
}

impl<C> Replica<C> {
    /// What is decided of an owner, of which no change is under way.
    pub(super) fn decide_owner<T: Table<Cursor = C>>(
        &self,
        shared: &mut Shared<T>,
        now: Time,
        request: &Request,
    ) -> OfOwner {
        let Some((_, number)) = owners::parts(&request.key) else {
            return OfOwner::AtOnce(Err(NotDone::Invalid));
        };
        let known = shared.owners.get(self.shard, number);
        let is_there = |session: &Session| shared.owners.may_put(self.shard, *session);
        let (outcome, owner) = match &request.kind {
            Kind::Own(session, absent_for) => match known {
                None if !self.all_know_owners(shared) => return OfOwner::AtOnce(Err(NotDone::NoOwners)),
                None => {
                    let owner = Owner { session: session.number, absent_for: *absent_for, leaves: false };
                    (Outcome::Done, Some(owner))
                }
                // It was asked twice.
                Some(_) if is_there(session) => (Outcome::Done, None),
                Some(_) => (Outcome::Exists, None),
            },
            Kind::Stay(session) if is_there(session) => {
                shared.owners.hear(self.shard, number, now);
                // Others need not know.
                return OfOwner::AtOnce(Ok(Outcome::Done));
            }
            Kind::RemoveOwner(session) => match known {
                Some(owner) if session.is_none_or(|session| session.number == owner.session) => {
                    let leaves = Owner { leaves: true, ..owner };
                    (Outcome::Done, Some(leaves).filter(|_| !owner.leaves))
                }
                _ => (Outcome::Absent, None),
            },
            Kind::Leaves if known.is_some_and(|owner| owner.leaves) => (Outcome::Done, None),
            _ => (Outcome::Absent, None),
        };
        OfOwner::Changes(outcome, owner)
    }

    /// Whether the table has owners, and all who have a copy or get one know them.
    fn all_know_owners<T: Table<Cursor = C>>(&self, shared: &Shared<T>) -> bool {
        let copies = self.map.in_sync.iter().chain(self.growing.iter());
        let mut others = copies.chain(self.channels()).filter(|node| *node != shared.id);
        shared.table.has_owners() && others.all(|node| shared.knows_owners(node))
    }

    /// Owners that were not heard for too long leave.
    pub(super) fn look_for_absent<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if !shared.owners.has_any(self.shard) || !self.may_change(shared, now) {
            return;
        }
        let is_absent = |known: &mut Known| {
            let heard = *known.heard.get_or_insert(now);
            !known.owner.leaves && now.saturating_sub(heard) >= known.owner.absent_for
        };
        let absent = shared.owners.of_mut(self.shard).filter_map(|(number, known)| {
            is_absent(known).then_some((number, Owner { leaves: true, ..known.owner }))
        });
        for (number, owner) in absent.collect::<SmallVec<[_; 4]>>() {
            self.change_owner(shared, now, number, Some(owner));
        }
    }

    /// A pass is over: owners of which it has found no entry are gone.
    pub(in crate::core) fn remove_owners<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        pass: u64,
    ) {
        if !shared.owners.has_any(self.shard) || !self.may_change(shared, now) {
            return;
        }
        let is_over = |known: &Known| {
            known.pass.is_some_and(|(of, has_found)| of == pass && (!has_found || broken(Rule::OnePass)))
        };
        let gone = shared.owners.of(self.shard).filter(|(_, known)| known.owner.leaves && is_over(known));
        for number in gone.map(|(number, _)| number).collect::<SmallVec<[_; 4]>>() {
            self.change_owner(shared, now, number, None);
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
        let (kind, wanted) = (Kind::RemoveOwner(None), Wanted::Usual);
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
