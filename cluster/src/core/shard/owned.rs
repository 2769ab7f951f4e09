//! As primary: owners, and entries that leave with them (CL19).
//!
//! ```text
//! Own          a session may put                      the shard has an entry for the owner
//! Who          which session that is
//! Stay         it is still there                      the primary notes when, and tells nobody
//! RemoveOwner, or silence for too long                the entry says that the owner leaves: no session puts as it any more
//! passes       each of its entries is removed         until a whole pass over the table has found none
//! gone         the owner's entry is removed           the number may be given again; whoever removes it hears that it is absent
//! ```

use super::change::Change;
use super::primary::Primary;
use crate::core::context::Context;
use crate::core::ids::NodeId;
use crate::core::message::{Effect, Entry, Kind, Life, NotDone, Outcome, Request, Session};
use crate::core::owners::{self, Owner};
use crate::core::table::Table;
use crate::faults::{Rule, broken};
use smallvec::SmallVec;

impl<T: Table> Primary<T> {
    /// Decides a request for an owner, of which no change is under way: the outcome, and the owner's new state, if that
    /// differs.
    pub(super) fn decide_owner(
        &self,
        cx: &Context<T>,
        request: &Request,
    ) -> Result<(Outcome, Option<Owner>), NotDone> {
        let Some((_, number)) = owners::parts(&request.key) else {
            return Err(NotDone::Invalid);
        };
        let known = cx.memory.owners.get(self.base.shard, number);
        let is_there = |session: &Session| cx.memory.owners.may_put(self.base.shard, *session);
        Ok(match &request.kind {
            Kind::Own(session, absent_for) => match known {
                None if !self.all_know_owners(cx) => return Err(NotDone::NoOwners),
                None => {
                    let owner = Owner { session: session.number, absent_for: *absent_for, leaves: false };
                    (Outcome::Done, Some(owner))
                }
                // The request is a repeated one.
                Some(_) if is_there(session) => (Outcome::Done, None),
                Some(_) => (Outcome::Exists, None),
            },
            // It has waited behind the change that began the session.
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
        })
    }

    /// Whether a node may have a copy, with respect to owners: those that are there, and those that are about to be.
    pub(in crate::core) fn may_have(&self, cx: &Context<T>, node: NodeId) -> bool {
        let about_to_be = || {
            let mut stores = self.busy.iter().flat_map(|change| &change.stores);
            stores.any(|(key, _)| owners::parts(key).is_some())
        };
        cx.knows_owners(node) || !cx.memory.owners.has_any(self.base.shard) && !about_to_be()
    }

    /// Whether the table has owners, and all nodes know them that have a copy or get one.
    fn all_know_owners(&self, cx: &Context<T>) -> bool {
        let copies = self.base.map.in_sync.iter().chain(self.growing.iter());
        let mut others =
            copies.chain(self.channels.iter().map(|channel| channel.to)).filter(|node| *node != cx.me);
        cx.memory.table.has_owners() && others.all(|node| cx.knows_owners(node))
    }

    /// Notes at once that a session is there, whatever else waits. `false`: it is not, or not any more. Then the
    /// request is decided as others are.
    pub(super) fn hears(&self, cx: &mut Context<T>, request: &Request) -> bool {
        let Kind::Stay(session) = request.kind else { return false };
        let is_there = cx.memory.owners.may_put(self.base.shard, session);
        if is_there {
            cx.memory.owners.hear(self.base.shard, session.owner, cx.now);
        }
        is_there
    }

    /// Makes owners leave that were silent for too long.
    pub(in crate::core) fn look_for_absent(&mut self, cx: &mut Context<T>) {
        if !cx.memory.owners.has_any(self.base.shard) || !self.may_change(cx) {
            return;
        }
        cx.memory.owners.of_mut(self.base.shard).for_each(|(_, known)| _ = known.heard.get_or_insert(cx.now));
        self.change_owners(cx);
    }

    /// A pass is over: removes the owners of which it has found no entry.
    pub(in crate::core) fn remove_owners(&mut self, cx: &mut Context<T>, pass: u64) {
        for (_, known) in cx.memory.owners.of_mut(self.base.shard) {
            let is_over = |(of, has_found): (u64, bool)| of == pass && (!has_found || broken(Rule::OnePass));
            known.is_empty |= known.owner.leaves && known.pass.is_some_and(is_over);
        }
        self.change_owners(cx);
    }

    fn change_owners(&mut self, cx: &mut Context<T>) {
        let due = cx.memory.owners.of(self.base.shard).filter(|(_, known)| known.due(cx.now).is_some());
        for number in due.map(|(number, _)| number).collect::<SmallVec<[_; 4]>>() {
            self.change_due(cx, number);
        }
    }

    /// Makes an owner leave, or removes it, if that is due. Also done before a request for it is decided: otherwise a
    /// constant stream of requests would always have a change of the owner's entry under way.
    pub(super) fn change_due(&mut self, cx: &mut Context<T>, number: u16) {
        let due = cx.memory.owners.known(self.base.shard, number).and_then(|known| known.due(cx.now));
        if let Some(owner) = due.filter(|_| self.may_change(cx)) {
            self.change_owner(cx, number, owner);
        }
    }

    /// Changes the shard's entry of an owner, unless a change of it is under way.
    fn change_owner(&mut self, cx: &mut Context<T>, number: u16, owner: Option<Owner>) {
        let key = owners::key(self.base.shard, number);
        if self.behind.contains_key(&key) {
            return;
        }
        let frees = if owner.is_none() { cx.memory.cost_now(&key) } else { 0 };
        let entry = owner.map(|owner| Entry { value: owner.encode(), life: Life::Lasting });
        let store = (key, entry);
        self.begin(cx, Change::own(self.base.shard, 0, Kind::Who, store, Effect::Nothing, frees));
    }
}
